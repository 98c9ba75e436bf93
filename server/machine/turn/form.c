/*
 * From slots to a running generation: slots, the store's answer, a new generation, every rank's
 * hello, assignments, every rank ready.
 */
#include <stdio.h>

#include "common/check.h"
#include "common/reason.h"
#include "server/machine/internal.h"

#define STAGES_BYTES 160

/* Prints " in 2 stages of 2, 1"; "": the job is no pipeline. */
static void print_stages(const struct machine *m, char out[STAGES_BYTES])
{
    uint32_t widths[LIMIT_STAGES];
    const uint32_t stages = machine_widths(m, widths);
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t s = 0; m->config.stages > 1 && s < stages && used < STAGES_BYTES; s++) {
        const int size = s == 0 ? snprintf(out, STAGES_BYTES, " in %u stage%s of %u", stages,
                                           stages == 1 ? "" : "s", widths[0])
                                : snprintf(out + used, STAGES_BYTES - used, ", %u", widths[s]);
        used += size > 0 ? (size_t)size : 0;
    }
}

static void tell_forming(struct machine_turn *t, uint32_t kept, const struct machine_ckpt *ckpt)
{
    const struct machine *m = t->m;
    char stages[STAGES_BYTES];
    print_stages(m, stages);
    if (kept > 0) {
        machine_tell(t, "forming", "generation %u with %u workers%s, %u of them go on",
                     m->generation, m->size, stages, kept);
    } else if (ckpt) {
        machine_tell(t, "forming",
                     "generation %u with %u workers%s, from the checkpoint of step %llu",
                     m->generation, m->size, stages, (unsigned long long)ckpt->step);
    } else {
        machine_tell(t, "forming", "generation %u with %u workers%s, from the beginning",
                     m->generation, m->size, stages);
    }
}

/* The one place where a generation begins (invariants 1 and 4). */
static void form_generation(struct machine_turn *t)
{
    struct machine *m = t->m;
    CHECK(m->state == MACHINE_PLACING);
    CHECK(!machine_saves_busy(m));
    const struct machine_ckpt *ckpt = machine_newest(m);
    machine_text(m->token_before, sizeof m->token_before, m->token);
    machine_text(m->token, sizeof m->token, m->token_next);
    machine_seat(t);
    m->generation++;
    m->ran <<= 1;
    m->state = MACHINE_FORMING;
    m->dirty = true;
    m->reason[0] = '\0';
    m->restore.step = ckpt ? ckpt->step : 0;
    m->restore.generation = ckpt ? ckpt->generation : 0;
    m->damage_suspected = false; /* this generation doesn't restore what was suspected */
    machine_memory_forget(m);
    m->restore.live = false;
    m->restore.decided = false;
    machine_copies_clear(m);
    m->progressed = false;
    m->committed = false;
    machine_recovery_form(t);
    m->cause = (struct machine_fault){ 0 };
    m->candidate = (struct machine_fault){ 0 };
    m->window_until = 0;
    m->ending = (struct machine_ending){ 0 };
    m->started_at = t->now;
    m->awaits_saves_at = 0;
    m->progress_at = t->now;
    m->replay_until = m->step_max;
    m->step_at = m->paced_at = 0;
    m->stepped_at = 0;
    m->due.passes = 0;
    for (int i = 0; i < MACHINE_ANNOUNCED_MAX; i++)
        m->due.announced[i] = (struct machine_announced){ 0 };
    m->due.stay_step = 0;
    m->tried_step = 0;
    m->tried_again = 0;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++)
        m->saves[i] = (struct machine_save){ 0 };
    const uint32_t kept = machine_regroup(t);
    machine_lanes_deal(t);
    /* A stop or a pause is done once it has saved, whoever does; a drain by those that go on. */
    if (m->intent == MACHINE_INTENT_FINISH || (kept == 0 && m->intent == MACHINE_INTENT_DRAIN))
        m->intent = MACHINE_INTENT_NONE;
    m->due.moves = m->due.moves && kept > 0;
    m->gone_count = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        CHECK(machine_find_number(m, m->ranks[i].number, i) == MACHINE_ALL_RANKS); /* invariant 6 */
        m->ranks[i].gone = false;
        m->ranks[i].step = m->restore.step;
        m->ranks[i].counter_at = t->now;
    }
    machine_act(t, MACHINE_ACT_GEN_BEGIN);
    tell_forming(t, kept, ckpt);
    machine_act(t, MACHINE_ACT_START);
}

/* Gives a slot to a rank. The rank keeps its pipeline stage until all are dealt anew: a spare that
 * starts earlier is prepared for it. */
static void give_slot(struct machine_turn *t, uint32_t index, uint32_t slot)
{
    struct machine *m = t->m;
    const uint32_t number = machine_new_number(m, index);
    const uint32_t stage = index < m->size ? m->ranks[index].stage : 0;
    m->ranks[index] = (struct machine_rank){ .gone = true,
                                             .birth = m->generation + 1,
                                             .number = number,
                                             .stage = stage,
                                             .slot = t->ev->placed.slots[slot] };
    machine_text(m->ranks[index].node, sizeof m->ranks[index].node, t->ev->placed.nodes[slot]);
}

/* Gives slots to ranks that are vacant, then to more; slots of an earlier placing were given
 * back. */
static void give_slots(struct machine_turn *t)
{
    struct machine *m = t->m;
    const uint32_t count = t->ev->placed.count;
    uint32_t given = 0;
    for (uint32_t i = 0; i < m->count; i++)
        m->ranks[i].birth = m->ranks[i].gone ? 0 : m->ranks[i].birth;
    for (uint32_t i = 0; i < m->count && given < count; i++) {
        if (m->ranks[i].gone)
            give_slot(t, i, given++);
    }
    while (given < count) {
        CHECK(m->count < machine_capacity(m));
        give_slot(t, m->count++, given++);
    }
}

void machine_on_placed(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (!machine_wants_slots(m, t->now))
        return;
    give_slots(t);
    machine_text(m->token_next, sizeof m->token_next, t->ev->placed.token);
    m->state = MACHINE_PLACING;
    if (m->probed) {
        form_generation(t);
        return;
    }
    if (m->probing)
        return; /* machine_watch asked: that answer will do */
    m->probing = true;
    machine_ask_store(t, MACHINE_TASK_PROBE, 0, m->generation);
}

/* Fails the job, as nothing can be written to its store, now or later. */
static void give_up_store(struct machine_turn *t)
{
    struct machine *m = t->m;
    machine_text(m->cause.message, sizeof m->cause.message, t->ev->answer.message);
    m->cause.kind = MACHINE_FAULT_USER;
    machine_tell(t, "fault", "%s", t->ev->answer.message);
    machine_set_reason(m, "%s", t->ev->answer.message);
    if (machine_holds(m)) {
        machine_end_generation(t, MACHINE_FAILED, false);
    } else {
        machine_rest(t, MACHINE_FAILED);
    }
}

void machine_on_probed(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (!m->probing)
        return;
    m->probing = false;
    if (machine_trains(m))
        m->probed = t->ev->answer.status == ST_OK; /* machine_watch asked */
    if (m->state != MACHINE_PLACING)
        return;
    if (t->ev->answer.status == ST_OK) {
        m->probed = true;
        m->store_away = false;
        if (t->ev->answer.mark && t->ev->answer.mark[0])
            machine_text(m->store_mark, sizeof m->store_mark, t->ev->answer.mark);
        form_generation(t);
        return;
    }
    machine_note_away(t);
    machine_unplace(t);
    /* If the store was good before, any of these may pass. */
    const enum status st = t->ev->answer.status;
    const bool refused = st == ST_REFUSED || st == ST_INVALID;
    if ((refused && m->generation == 0) || st == ST_TOO_LONG) {
        give_up_store(t);
        return;
    }
    m->retry_at = t->now + MACHINE_SILENT_MS;
    machine_set_reason(m, "waits for the checkpoint store: %s", t->ev->answer.message);
}

/* Sends the assignments once all ranks said hello. */
static void send_assignments(struct machine_turn *t)
{
    struct machine *m = t->m;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].joined)
            return;
    }
    machine_copies_choose(t);
    uint32_t without = 0;
    for (uint32_t i = 0; i < m->size; i++)
        without += !m->ranks[i].assigned;
    const bool in_one = without > MACHINE_ACTIONS_MAX / 2; /* else one action each, if at all */
    if (in_one)
        machine_act(t, MACHINE_ACT_ASSIGN)->rank = MACHINE_ALL_RANKS;
    for (uint32_t i = 0; i < m->size; i++) {
        struct machine_rank *rank = &m->ranks[i];
        if (!rank->assigned && !in_one)
            machine_act(t, MACHINE_ACT_ASSIGN)->rank = i;
        rank->assigned = true;
        rank->counter_at = t->now;
    }
}

/* Tells a rank what became of saves while it, or the coordinator, was away, and which are
 * announced. */
static void tell_saves(struct machine_turn *t, uint32_t rank)
{
    struct machine *m = t->m;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        if (save->state == MACHINE_SAVE_COMMITTED) {
            machine_send_done(t, save->step, rank, true);
        } else if (save->state == MACHINE_SAVE_DROPPING ||
                   (save->state == MACHINE_SAVE_DROPPED && !save->wanted)) {
            machine_send_done(t, save->step, rank, false);
        }
    }
    const struct machine_ckpt *newest = machine_newest(m);
    if (newest && newest->generation == m->generation &&
        machine_save_index(m, newest->step, m->generation) < 0)
        machine_send_done(t, newest->step, rank, true);
    machine_read_back_resend(t, rank);
    if (m->due.stay_step > 0)
        machine_act_on(t, MACHINE_ACT_STAY, m->due.stay_step, m->generation)->rank = rank;
    for (int i = 0; i < MACHINE_ANNOUNCED_MAX; i++) {
        if (m->due.announced[i].step == 0)
            continue;
        struct machine_action *act =
            machine_act_on(t, MACHINE_ACT_SAVE_AT, m->due.announced[i].step, m->generation);
        act->exit = m->due.announced[i].exit;
        act->rank = rank;
    }
}

/* Handles the hello of a worker whose session was lost while it parks, or waits. */
static void meet_parked(struct machine_turn *t)
{
    if (t->ev->hello.attached && t->ev->hello.parked) {
        machine_note_parked(t, t->ev->rank, &t->ev->hello.kept);
        if (machine_keeps(t->m))
            machine_act(t, MACHINE_ACT_SCHEDULE);
    } else if (t->m->ending.parks && !t->m->ranks[t->ev->rank].ended) {
        machine_act(t, MACHINE_ACT_PARK)->rank = t->ev->rank;
    }
}

void machine_on_hello(struct machine_turn *t)
{
    struct machine *m = t->m;
    struct machine_rank *rank = &m->ranks[t->ev->rank];
    rank->session = true;
    rank->started = true;
    rank->lost_at = 0;
    rank->missing_at = 0;
    rank->pid = t->ev->hello.pid;
    bool again = rank->joined;
    rank->joined = true;
    if (machine_ends_hard(m) && !rank->parked)
        return; /* the generation is being ended; the core answers Over before it comes to this */
    if (m->ending.parks || machine_holds(m)) {
        meet_parked(t);
        return;
    }
    if (t->ev->hello.parked)
        rank->kept = t->ev->hello.kept;
    if (!t->ev->hello.attached) {
        machine_copies_hear(t);
        if (again && rank->assigned) {
            /* The assignment was lost with the session. */
            machine_act(t, MACHINE_ACT_ASSIGN)->rank = t->ev->rank;
        } else if (m->state == MACHINE_FORMING) {
            send_assignments(t);
        }
        return;
    }
    rank->assigned = true;
    rank->counter_at = t->now;
    if (t->ev->hello.step > rank->step)
        rank->step = t->ev->hello.step;
    if (m->state != MACHINE_FORMING) {
        rank->ready = true;
    } else {
        send_assignments(t);
    }
    tell_saves(t, t->ev->rank);
}

void machine_enter_running(struct machine_turn *t)
{
    struct machine *m = t->m;
    CHECK(m->state == MACHINE_FORMING);
    CHECK(!machine_ends(m));
    m->state = MACHINE_RUNNING;
    m->ran |= 1;
    m->dirty = true;
    m->progress_at = t->now;
    if (m->started_wall == 0) {
        m->started_wall = t->wall;
        m->unstarted_ms = machine_lost_total(m);
    }
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].ready = true;
    machine_due_from(t);
    machine_audit_begin(m);
    m->read_back.in_vain = 0;
    machine_set_reason(m, "%s", "");
    machine_tell(t, "running", "generation %u runs after %.1f s", m->generation,
                 (double)(t->now - m->started_at) / 1000.0);
    if (m->intent != MACHINE_INTENT_NONE) { /* the generation before failed before it had saved */
        m->state = MACHINE_SAVING;
        machine_announce_from(t, m->replay_until, true);
        return;
    }
    if (m->due.moves) {
        m->due.moves = false;
        machine_announce(t, true);
        return;
    }
    if (m->budget.commitless >= 2)
        machine_announce(t, false); /* two attempts without a commit: save early */
}

/* True if the rank would train for another number of steps than the others, or than before. */
static bool steps_differ(const struct machine_turn *t)
{
    const struct machine *m = t->m;
    const struct machine_ready *ready = &t->ev->ready;
    bool told = !m->config.relaxed;
    for (uint32_t i = 0; i < m->size; i++)
        told = told || (i != t->ev->rank && m->ranks[i].ready);
    return told && m->total_steps > 0 && ready->total_steps > 0 &&
           (m->total_steps != ready->total_steps || m->steps_per_epoch != ready->steps_per_epoch);
}

/* Refuses a rank whose data are not the job's. */
static void refuse_data(struct machine_turn *t, const char *difference)
{
    struct machine_fault fault = { .kind = MACHINE_FAULT_DATA, .rank = t->ev->rank };
    machine_text(fault.phase, sizeof fault.phase, "forming");
    machine_text(fault.message, sizeof fault.message, difference);
    machine_report_fault(t, &fault);
}

void machine_on_ready(struct machine_turn *t)
{
    struct machine *m = t->m;
    const struct machine_ready *ready = &t->ev->ready;
    struct machine_rank *rank = &m->ranks[t->ev->rank];
    if (ready->pins_differ && !m->config.relaxed) {
        machine_note_pins(t, ready->pins_differ);
        return;
    }
    if (ready->data_differ && !m->config.relaxed) {
        refuse_data(t, ready->data_differ);
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
    const char *differ = ready->pins_differ ? ready->pins_differ : ready->data_differ;
    if (differ)
        machine_tell(t, "pins", "rank %u: %s (exactness: relaxed)", t->ev->rank, differ);
    if (m->total_steps != ready->total_steps || m->steps_per_epoch != ready->steps_per_epoch)
        m->dirty = true;
    m->total_steps = ready->total_steps;
    m->steps_per_epoch = ready->steps_per_epoch;
    if (ready->state_bytes > 0)
        m->state_bytes = ready->state_bytes;
    rank->ready = true;
    if (m->state != MACHINE_FORMING || machine_ends(m))
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].ready) {
            machine_pins_tick(t);
            return;
        }
    }
    machine_enter_running(t);
}
