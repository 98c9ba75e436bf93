/*
 * From slots to a running generation: slots, the store's answer, a new generation, every rank's
 * hello, assignments, every rank ready.
 */
#include "server/jobfsm/handlers/generation_start.h"

#include <stdio.h>

#include "common/check.h"
#include "common/reason.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/corruption.h"
#include "server/jobfsm/elastic.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/handlers/divergence.h"
#include "server/jobfsm/handlers/last_step.h"
#include "server/jobfsm/handlers/load_balance.h"
#include "server/jobfsm/memory_copies.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/retention.h"
#include "server/jobfsm/save_abort.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

#define STAGES_BYTES 160

/* Prints " in 2 stages of 2, 1"; "": the job is no pipeline. */
static void print_stages(const struct fsm *m, char out[STAGES_BYTES])
{
    uint32_t widths[LIMIT_STAGES];
    const uint32_t stages = fsm_widths(m, widths);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t s = 0; m->config.stages > 1 && s < stages && used < STAGES_BYTES; s++) {
        const int size = s == 0 ? snprintf(out, STAGES_BYTES, " in %u stage%s of %u", stages,
                                           stages == 1 ? "" : "s", widths[0])
                                : snprintf(out + used, STAGES_BYTES - used, ", %u", widths[s]);
        used += size > 0 ? (size_t)size : 0;
    }
}

static void emit_forming(struct fsm_ctx *t, uint32_t kept, const struct fsm_ckpt *ckpt)
{
    const struct fsm *m = t->m;
    char stages[STAGES_BYTES];
    print_stages(m, stages);
    if (kept > 0 && m->config.saves_nothing) {
        fsm_emit_event(t, "forming",
                       "generation %u with %u workers, %u of them stay; from the beginning: the "
                       "program starts anew",
                       m->generation, m->size, kept);
    } else if (kept > 0 && m->config.program) {
        fsm_emit_event(t, "forming",
                       "generation %u with %u workers, %u of them stay; their programs start anew",
                       m->generation, m->size, kept);
    } else if (kept > 0) {
        fsm_emit_event(t, "forming", "generation %u with %u workers%s, %u of them go on",
                       m->generation, m->size, stages, kept);
    } else if (m->config.saves_nothing) {
        fsm_emit_event(t, "forming", "generation %u with %u workers, from the beginning%s",
                       m->generation, m->size,
                       m->generation > 1 ? ": the program starts anew" : "");
    } else if (ckpt != NULL) {
        fsm_emit_event(t, "forming",
                       "generation %u with %u workers%s, from the checkpoint of step %llu",
                       m->generation, m->size, stages, (unsigned long long)ckpt->step);
    } else {
        fsm_emit_event(t, "forming", "generation %u with %u workers%s, from the beginning",
                       m->generation, m->size, stages);
    }
}

/* The one place where a generation begins (invariants 1 and 4). */
static void form_generation(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    CHECK(m->state == FSM_PLACING);
    CHECK(!fsm_saves_busy(m));
    const struct fsm_ckpt *ckpt = fsm_newest(m);
    fsm_text(m->token_before, sizeof(m->token_before), m->token);
    fsm_text(m->token, sizeof(m->token), m->token_next);
    fsm_assign_ranks(t);
    m->generation++;
    m->ran <<= 1;
    m->dirty = true;
    m->reason[0] = '\0';
    m->restore.step = ckpt != NULL ? ckpt->step : 0;
    m->restore.generation = ckpt != NULL ? ckpt->generation : 0;
    m->damage_suspected = false; /* this generation doesn't restore what was suspected */
    fsm_memory_forget(m);
    m->restore.live = false;
    m->restore.decided = false;
    fsm_copies_clear(m);
    m->progressed = false;
    m->committed = false;
    fsm_recovery_form(t);
    m->cause = (struct fsm_fault){ 0 };
    m->candidate = (struct fsm_fault){ 0 };
    m->window_until = 0;
    m->ending = (struct fsm_ending){ 0 };
    FSM_MOVE(m, FSM_FORMING);
    FSM_GEN_MOVED(m);
    m->started_at = t->now;
    m->awaits_saves_at = 0;
    m->progress_at = t->now;
    m->replay_until = m->step_max;
    m->step_at = m->step_noted_at = 0;
    m->stepped_at = 0;
    m->due.passes = 0;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        m->due.announced[i] = (struct fsm_announced){ 0 };
    m->due.stay_step = 0;
    m->due.exit_at = 0;
    m->tried_step = 0;
    m->tried_again = 0;
    for (int i = 0; i < FSM_SAVES_MAX; i++)
        m->saves[i] = (struct fsm_save){ 0 };
    const uint32_t kept = fsm_regroup(t);
    fsm_lanes_deal(t);
    /* A stop or a pause is done once it has saved, whoever does; a drain by those that go on. */
    if (m->intent == FSM_INTENT_FINISH || (kept == 0 && m->intent == FSM_INTENT_DRAIN))
        m->intent = FSM_INTENT_NONE;
    m->due.moves = m->due.moves && kept > 0;
    m->gone_count = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        CHECK(fsm_find_number(m, m->ranks[i].number, i) == FSM_ALL_RANKS); /* invariant 6 */
        m->ranks[i].gone = false;
        m->ranks[i].step = m->restore.step;
        m->ranks[i].counter_at = t->now;
    }
    fsm_act(t, FSM_ACT_GEN_BEGIN);
    emit_forming(t, kept, ckpt);
    fsm_act(t, FSM_ACT_START);
}

/* Gives a slot to a rank. The rank keeps its pipeline stage until all are dealt anew: a spare that
 * starts earlier is prepared for it. */
static void give_slot(struct fsm_ctx *t, uint32_t index, uint32_t slot)
{
    struct fsm *m = t->m;
    const uint32_t number = fsm_new_number(m, index);
    const uint32_t stage = index < m->size ? m->ranks[index].stage : 0;
    m->ranks[index] = (struct fsm_rank){ .gone = true,
                                         .birth = m->generation + 1,
                                         .number = number,
                                         .stage = stage,
                                         .slot = t->ev->placed.slots[slot] };
    fsm_text(m->ranks[index].node, sizeof(m->ranks[index].node), t->ev->placed.nodes[slot]);
}

/* Gives slots to ranks that are vacant, then to more; slots of an earlier placing were given
 * back. */
static void give_slots(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const uint32_t count = t->ev->placed.count;
    uint32_t given = 0;
    for (uint32_t i = 0; i < m->count; i++)
        m->ranks[i].birth = m->ranks[i].gone ? 0 : m->ranks[i].birth;
    for (uint32_t i = 0; i < m->count && given < count; i++) {
        if (m->ranks[i].gone)
            give_slot(t, i, given++);
    }
    while (given < count) {
        CHECK(m->count < fsm_capacity(m));
        give_slot(t, m->count++, given++);
    }
}

void fsm_on_placed(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!fsm_wants_slots(m, t->now))
        return;
    give_slots(t);
    fsm_text(m->token_next, sizeof(m->token_next), t->ev->placed.token);
    FSM_MOVE(m, FSM_PLACING);
    FSM_GEN_MOVED(m);
    if (m->probed || m->config.saves_nothing) {
        form_generation(t);
        return;
    }
    if (m->probing)
        return; /* fsm_watch asked: that answer will do */
    m->probing = true;
    fsm_ask_store(t, FSM_TASK_PROBE, 0, m->generation);
}

/* Fails the job, as nothing can be written to its store, now or later. */
static void give_up_store(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    fsm_text(m->cause.message, sizeof(m->cause.message), t->ev->answer.message);
    m->cause.kind = FSM_FAULT_USER;
    fsm_emit_event(t, "fault", "%s", t->ev->answer.message);
    fsm_set_reason(m, "%s", t->ev->answer.message);
    if (fsm_has_waiting(m)) {
        fsm_end_generation(t, FSM_FAILED, false);
    } else {
        fsm_enter_idle(t, FSM_FAILED);
    }
}

void fsm_on_probed(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!m->probing)
        return;
    m->probing = false;
    if (fsm_trains(m))
        m->probed = t->ev->answer.status == ST_OK; /* fsm_watch asked */
    if (m->state != FSM_PLACING)
        return;
    m->probe_failed = t->ev->answer.status != ST_OK;
    if (!m->probe_failed) {
        m->probed = true;
        m->mark_mismatch = false;
        if (t->ev->answer.mark != NULL && t->ev->answer.mark[0])
            fsm_text(m->store_id, sizeof(m->store_id), t->ev->answer.mark);
        form_generation(t);
        return;
    }
    fsm_note_mark(t);
    fsm_unplace(t);
    /* If the store was good before, any of these may pass. */
    const enum status st = t->ev->answer.status;
    const bool refused = st == ST_REFUSED || st == ST_INVALID;
    if ((refused && m->generation == 0) || st == ST_TOO_LONG) {
        give_up_store(t);
        return;
    }
    m->retry_at = t->now + FSM_STORE_AGAIN_MS;
    fsm_set_reason(m, "waits for the checkpoint store: %s", t->ev->answer.message);
}

/* Sends the assignments once all ranks said hello. */
static void send_assignments(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].joined)
            return;
    }
    fsm_copies_choose(t);
    uint32_t without = 0;
    for (uint32_t i = 0; i < m->size; i++)
        without += !m->ranks[i].assigned;
    const bool in_one = without > FSM_ACTIONS_MAX / 2; /* else one action each, if at all */
    if (in_one)
        fsm_act(t, FSM_ACT_ASSIGN)->rank = FSM_ALL_RANKS;
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        if (!rank->assigned && !in_one)
            fsm_act(t, FSM_ACT_ASSIGN)->rank = i;
        rank->assigned = true;
        rank->counter_at = t->now;
    }
}

/* Tells a rank what became of saves while it, or the coordinator, was away, and which are
 * announced. */
static void emit_saves(struct fsm_ctx *t, uint32_t rank)
{
    struct fsm *m = t->m;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        if (save->state == FSM_SAVE_COMMITTED) {
            fsm_send_done(t, save->step, rank, true);
        } else if (save->state == FSM_SAVE_DROPPING ||
                   (save->state == FSM_SAVE_DROPPED && !save->wanted)) {
            fsm_send_done(t, save->step, rank, false);
        }
    }
    const struct fsm_ckpt *newest = fsm_newest(m);
    if (newest != NULL && newest->generation == m->generation &&
        fsm_save_index(m, newest->step, m->generation) < 0)
        fsm_send_done(t, newest->step, rank, true);
    fsm_read_back_resend(t, rank);
    if (m->due.stay_step > 0)
        fsm_act_on(t, FSM_ACT_STAY, m->due.stay_step, m->generation)->rank = rank;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        if (m->due.announced[i].step == 0)
            continue;
        struct fsm_action *act =
            fsm_act_on(t, FSM_ACT_SAVE_AT, m->due.announced[i].step, m->generation);
        act->exit = m->due.announced[i].exit;
        act->rank = rank;
    }
}

/* Handles the hello of a worker whose session was lost while it parks, or waits. */
static void meet_parked(struct fsm_ctx *t)
{
    if (t->ev->hello.attached && t->ev->hello.parked) {
        fsm_note_parked(t, t->ev->rank, &t->ev->hello.parked_state);
        if (fsm_gen(t->m) == FSM_GEN_KEPT)
            fsm_act(t, FSM_ACT_SCHEDULE);
    } else if (t->m->ending.parks && !t->m->ranks[t->ev->rank].ended) {
        fsm_act(t, FSM_ACT_PARK)->rank = t->ev->rank;
    }
}

void fsm_on_hello(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[t->ev->rank];
    rank->session = true;
    rank->started = true;
    rank->lost_at = 0;
    rank->missing_at = 0;
    rank->pid = t->ev->hello.pid;
    bool again = rank->joined;
    rank->joined = true;
    if (fsm_is_over(m, t->ev->rank))
        return; /* the generation is being ended; the core answers Over before it comes to this */
    if (m->ending.parks || fsm_has_waiting(m)) {
        meet_parked(t);
        return;
    }
    if (t->ev->hello.parked)
        rank->parked_state = t->ev->hello.parked_state;
    if (!t->ev->hello.attached) {
        fsm_copies_hear(t);
        if (again && rank->assigned) {
            /* The assignment was lost with the session. */
            fsm_act(t, FSM_ACT_ASSIGN)->rank = t->ev->rank;
        } else if (m->state == FSM_FORMING) {
            send_assignments(t);
        }
        return;
    }
    rank->assigned = true;
    rank->counter_at = t->now;
    if (t->ev->hello.step > rank->step)
        rank->step = t->ev->hello.step;
    if (m->state != FSM_FORMING) {
        rank->ready = true;
    } else {
        send_assignments(t);
    }
    emit_saves(t, t->ev->rank);
}

void fsm_enter_running(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    CHECK(m->state == FSM_FORMING);
    CHECK(!fsm_ends(m));
    FSM_MOVE(m, FSM_RUNNING);
    FSM_GEN_MOVED(m);
    m->ran |= 1;
    m->dirty = true;
    m->progress_at = m->ran_from = t->now;
    if (m->started_wall == 0) {
        m->started_wall = t->wall;
        m->unstarted_ms = fsm_lost_total(m);
    }
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].ready = true;
    fsm_due_from(t);
    fsm_audit_begin(m);
    m->read_back.in_vain = 0;
    fsm_set_reason(m, "%s", "");
    fsm_emit_event(t, "running", "generation %u runs after %.1f s", m->generation,
                   (double)(t->now - m->started_at) / 1000.0);
    if (m->config.saves_nothing && fsm_wants_workers(m))
        fsm_act(t, FSM_ACT_SCHEDULE);
    if (m->intent != FSM_INTENT_NONE) { /* the generation before failed before it had saved */
        FSM_MOVE(m, FSM_SAVING);
        fsm_announce_from(t, m->replay_until, true);
        return;
    }
    if (m->due.moves) {
        m->due.moves = false;
        fsm_announce(t, true);
        return;
    }
    if (m->budget.no_commit >= 2)
        fsm_announce(t, false); /* two attempts without a commit: save early */
}

/* True if the rank would train for another number of steps than the others, or than before. How
 * many steps a program has may depend on how many workers there are. A job that ended early and
 * goes on after all has more steps again. */
static bool steps_differ(const struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    const struct fsm_ready *ready = &t->ev->ready;
    if (m->config.ends_early && m->steps_per_epoch == ready->steps_per_epoch &&
        m->total_steps < ready->total_steps)
        return false;
    bool told = !m->config.relaxed && !m->config.program;
    for (uint32_t i = 0; i < m->size; i++)
        told = told || (i != t->ev->rank && m->ranks[i].ready);
    return told && m->total_steps > 0 && ready->total_steps > 0 &&
           (m->total_steps != ready->total_steps || m->steps_per_epoch != ready->steps_per_epoch);
}

/* Refuses a rank whose program doesn't agree with that of another rank. */
static void refuse_steps(struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    const struct fsm_ready *ready = &t->ev->ready;
    struct fsm_fault fault = { .kind = FSM_FAULT_USER, .rank = t->ev->rank };
    fsm_text(fault.phase, sizeof(fault.phase), "forming");
    (void)snprintf(fault.message, sizeof(fault.message),
                   "its program has %llu steps, %llu per epoch, and that of another rank has %llu, "
                   "%llu per epoch: all ranks have to say the same",
                   (unsigned long long)ready->total_steps,
                   (unsigned long long)ready->steps_per_epoch, (unsigned long long)m->total_steps,
                   (unsigned long long)m->steps_per_epoch);
    fsm_report_fault(t, &fault);
}

/* Notes that a program has another number of steps than when it was started before. */
static void note_steps(struct fsm_ctx *t, uint64_t total_steps)
{
    const struct fsm *m = t->m;
    const bool is_known = m->config.program && m->total_steps > 0 && total_steps > 0;
    if (is_known && m->total_steps != total_steps) {
        fsm_emit_event(t, "steps", "the program has %llu steps now, and had %llu before",
                       (unsigned long long)total_steps, (unsigned long long)m->total_steps);
    }
}

/* Refuses a rank whose data are not the job's. */
static void refuse_data(struct fsm_ctx *t, const char *difference)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_DATA, .rank = t->ev->rank };
    fsm_text(fault.phase, sizeof(fault.phase), "forming");
    fsm_text(fault.message, sizeof(fault.message), difference);
    fsm_report_fault(t, &fault);
}

void fsm_on_ready(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_ready *ready = &t->ev->ready;
    struct fsm_rank *rank = &m->ranks[t->ev->rank];
    if (ready->pins_differ != NULL && !m->config.relaxed) {
        fsm_note_pins(t, ready->pins_differ);
        return;
    }
    if (ready->data_differ != NULL && !m->config.relaxed) {
        refuse_data(t, ready->data_differ);
        return;
    }
    if (steps_differ(t) && m->config.program) {
        refuse_steps(t);
        return;
    }
    if (steps_differ(t)) {
        struct reason why;
        reason_set(&why,
                   "node %s: the data make %llu steps of %llu per epoch, but the job has %llu of "
                   "%llu: they are not those that it began with",
                   rank->node, (unsigned long long)ready->total_steps,
                   (unsigned long long)ready->steps_per_epoch, (unsigned long long)m->total_steps,
                   (unsigned long long)m->steps_per_epoch);
        refuse_data(t, why.text);
        return;
    }
    const char *differ = ready->pins_differ != NULL ? ready->pins_differ : ready->data_differ;
    if (differ != NULL)
        fsm_emit_event(t, "pins", "rank %u: %s (exactness: relaxed)", t->ev->rank, differ);
    if (m->total_steps != ready->total_steps || m->steps_per_epoch != ready->steps_per_epoch)
        m->dirty = true;
    note_steps(t, ready->total_steps);
    m->total_steps = m->config.saves_nothing ? 0 : ready->total_steps; /* its end isn't a save */
    m->steps_per_epoch = ready->steps_per_epoch;
    if (ready->state_bytes > 0)
        m->state_bytes = ready->state_bytes;
    rank->ready = true;
    if (ready->last_step > 0)
        fsm_note_last(t);
    if (m->state != FSM_FORMING || fsm_ends(m))
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].ready) {
            fsm_pins_tick(t);
            return;
        }
    }
    fsm_enter_running(t);
}
