/*
 * Spares: workers that have no part in the generation, and are there to take one.
 *
 *   (a slot is free)  -> STARTING  [fsm_on_spare]  started in this generation
 *   STARTING          -> READY     [on_parked]         model and data are there: `parked`
 *   STARTING, READY   -> GOING     [give_up_spare]           lost, unfit, stuck
 *   any               -> (gone)    [spare_gone]        its process ended, or counts as gone
 *
 * A spare that is READY takes a seat of the next generation (server/jobfsm/elastic.c). Spares go,
 * too, with the job, or if all start anew (server/jobfsm/spares.c).
 *
 * There are as many as the job wants beside those that it trains with, and one for each worker that
 * a generation is short of. A spare is no part of anything: its death ends nothing, and what is
 * wrong with it is not held against the job. After failures in a row the next one waits, as those
 * of the job do.
 *
 * A spare's session is of no generation, and has a token that is the spares' alone. The session
 * outlives generations until the spare takes a seat, by an order to regroup, as kept workers do.
 */
#include "server/jobfsm/handlers/spare_orders.h"

#include "common/backoff.h"
#include "common/check.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/handlers/liveness.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

#define BACKOFF_IDLE_MAX_MS 600000 /* two events each time: 300 a day */
/* A spare that was ready for so long failed by no fault in starting. */
#define READY_STREAK_MS 60000

/* ---- starting ---- */

static uint32_t find_place(struct fsm *m)
{
    for (uint32_t i = m->size; i < m->count; i++) {
        if (m->ranks[i].gone)
            return i;
    }
    CHECK(m->count < fsm_capacity(m));
    return m->count++;
}

void fsm_on_spare(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_placed *placed = &t->ev->placed;
    if (!fsm_wants_spare(m, t->now))
        return;
    CHECK(placed->count == 1);
    if (!m->spares.token[0])
        fsm_text(m->spares.token, sizeof(m->spares.token), placed->token);
    const uint32_t number = fsm_new_number(m, FSM_ALL_RANKS);
    const uint32_t at = find_place(m);
    m->ranks[at] = (struct fsm_rank){ .slot = placed->slots[0],
                                      .birth = m->generation,
                                      .number = number,
                                      .heard_at = t->now,
                                      .counter_at = t->now };
    fsm_text(m->ranks[at].node, sizeof(m->ranks[at].node), placed->nodes[0]);
    m->spares.moves++;
    m->dirty = true;
    fsm_emit_event(t, "spare", "worker %u starts on node %s, to take a seat", number,
                   m->ranks[at].node);
    fsm_act(t, FSM_ACT_START)->rank = at;
}

/* ---- failing ---- */

/* Sets the wait for the next spare, as for failures of the job: the second in a row waits 1 s, and
 * so on. If no seat waits for one, the wait grows until the event is rare in the job's history. */
static void back_off(struct fsm_ctx *t)
{
    struct fsm_spares *spares = &t->m->spares;
    const bool needed = t->m->size < t->m->config.ranks;
    const int64_t most = needed ? FSM_BACKOFF_MAX_MS : BACKOFF_IDLE_MAX_MS;
    spares->retry_at = t->now;
    if (spares->failures > 0)
        spares->retry_at += backoff_ms(1000, 2, spares->failures, most);
    spares->failures++;
}

static void fail_spare(struct fsm_ctx *t, uint32_t index, const char *why)
{
    const struct fsm_rank *spare = &t->m->ranks[index];
    if (spare->ended)
        return;
    if (spare->parked && t->now - t->m->spares.ready_at >= READY_STREAK_MS)
        t->m->spares.failures = 0;
    fsm_emit_event(t, "spare", "worker %u on node %s, without a seat: %.350s", spare->number,
                   spare->node, why);
    back_off(t);
}

static void spare_gone(struct fsm_ctx *t, uint32_t index, const char *why)
{
    struct fsm *m = t->m;
    fail_spare(t, index, why);
    fsm_rank_gone(m, index);
    m->ranks[index].parked = m->ranks[index].session = false;
    m->spares.moves++;
    m->dirty = true;
    fsm_act(t, FSM_ACT_SCHEDULE);
}

static void give_up_spare(struct fsm_ctx *t, uint32_t index, const char *why)
{
    fail_spare(t, index, why);
    fsm_dismiss(t, index);
}

/* Keeps away from a node at fault: the next spare starts elsewhere, if another node could take
 * it. */
static void leave_node(struct fsm_ctx *t, const struct fsm_rank *spare, enum fsm_fault_kind kind)
{
    (void)exclusion_add(&t->m->exclusions, spare->node, EXCLUSION_FAILED, (uint32_t)kind, t->wall);
    t->m->dirty = true;
}

/* ---- what it and its agent say ---- */

static void on_exited(struct fsm_ctx *t, const struct fsm_rank *spare)
{
    if (t->ev->exited.how == FSM_EXIT_SPAWN_FAILED)
        leave_node(t, spare, FSM_FAULT_PROCESS);
    spare_gone(t, t->ev->rank, t->ev->exited.message);
}

/* Returns whether the spare's data make another number of steps. That of a program starts it with
 * its seat, and doesn't know. */
static bool steps_differ(const struct fsm *m, const struct fsm_ready *ready)
{
    return m->total_steps > 0 && !m->config.program &&
           (ready->total_steps != m->total_steps || ready->steps_per_epoch != m->steps_per_epoch);
}

/* Gives up a spare that the job could not go on with: another node may have a better one. */
static void on_ready(struct fsm_ctx *t, struct fsm_rank *spare)
{
    struct fsm *m = t->m;
    const struct fsm_ready *ready = &t->ev->ready;
    if (m->config.relaxed)
        return;
    if (ready->pins_differ != NULL) {
        (void)exclusion_add(&m->exclusions, spare->node, EXCLUSION_PINS, 0, t->wall);
        give_up_spare(t, t->ev->rank, ready->pins_differ);
    } else if (ready->data_differ != NULL) {
        (void)exclusion_add(&m->exclusions, spare->node, EXCLUSION_DATA, 0, t->wall);
        give_up_spare(t, t->ev->rank, ready->data_differ);
    } else if (steps_differ(m, ready)) {
        (void)exclusion_add(&m->exclusions, spare->node, EXCLUSION_DATA, 0, t->wall);
        give_up_spare(t, t->ev->rank, "its data make another number of steps");
    }
}

static void on_parked(struct fsm_ctx *t, struct fsm_rank *spare)
{
    if (spare->parked || spare->ended)
        return;
    spare->parked = true;
    t->m->spares.ready_at = t->now;
    t->m->dirty = true;
    fsm_emit_event(t, "spare", "worker %u on node %s is ready to take a seat", spare->number,
                   spare->node);
    if (t->m->state == FSM_RECOVERING && !fsm_ends(t->m)) /* the job may have waited for this one */
        fsm_act(t, FSM_ACT_SCHEDULE);
}

/* Parked may have been lost with the session, or with the coordinator: its hello says it again. */
static void on_hello(struct fsm_ctx *t, struct fsm_rank *spare)
{
    if (!spare->joined)
        spare->counter_at = t->now;
    spare->session = spare->started = spare->joined = true;
    spare->lost_at = spare->missing_at = 0;
    spare->pid = t->ev->hello.pid;
    if (t->ev->hello.attached && t->ev->hello.parked) {
        on_parked(t, spare);
    } else if (!t->ev->hello.attached && !spare->ended) {
        fsm_act(t, FSM_ACT_ASSIGN)->rank = t->ev->rank;
    }
}

static void on_fault(struct fsm_ctx *t, struct fsm_rank *spare)
{
    if (t->ev->fault->of_node)
        leave_node(t, spare, t->ev->fault->kind);
    give_up_spare(t, t->ev->rank, t->ev->fault->message);
}

static void on_progress(struct fsm_ctx *t, struct fsm_rank *spare)
{
    const struct fsm_progress *said = &t->ev->progress;
    if (said->counter != spare->counter)
        spare->counter_at = t->now;
    spare->counter = said->counter;
    fsm_text(spare->phase, sizeof(spare->phase), said->phase);
}

void fsm_on_spare_event(struct fsm_ctx *t)
{
    struct fsm_rank *spare = &t->m->ranks[t->ev->rank];
    if (spare->gone) { /* or it has a slot, and starts with the next generation */
        if (t->ev->kind == FSM_EV_LEAVING && t->m->state == FSM_PLACING)
            fsm_unplace(t);
        return;
    }
    switch ((int)t->ev->kind) { /* no other event is about a spare */
    case FSM_EV_STARTED:
        spare->started = true;
        spare->missing_at = 0;
        spare->pid = t->ev->started.pid;
        break;
    case FSM_EV_MISSING:
        spare->missing_at = spare->missing_at != 0 ? spare->missing_at : t->now;
        break;
    case FSM_EV_EXITED:
        on_exited(t, spare);
        break;
    case FSM_EV_AGENT:
        if (t->ev->agent.state == FSM_AGENT_HEARD && spare->agent != FSM_AGENT_HEARD)
            fsm_rank_heard(t, t->ev->rank);
        spare->agent = t->ev->agent.state;
        break;
    case FSM_EV_LEAVING:
        give_up_spare(t, t->ev->rank, t->ev->leaving.why);
        if (t->m->state == FSM_PLACING)
            fsm_unplace(t);
        break;
    case FSM_EV_HELLO:
        on_hello(t, spare);
        break;
    case FSM_EV_SESSION_LOST:
        spare->session = false;
        spare->lost_at = t->now;
        break;
    case FSM_EV_READY:
        on_ready(t, spare);
        break;
    case FSM_EV_PARKED:
        on_parked(t, spare);
        break;
    case FSM_EV_PROGRESS:
        on_progress(t, spare);
        break;
    case FSM_EV_FAULT:
        on_fault(t, spare);
        break;
    }
}

/* ---- silence ---- */

/* Returns what is wrong with a spare; NULL: nothing. */
static const char *trouble_of(const struct fsm_ctx *t, const struct fsm_rank *spare)
{
    const struct fsm *m = t->m;
    if (!spare->joined && t->now - spare->counter_at >= FSM_HELLO_MS)
        return "it did not say hello";
    if (spare->joined && !spare->session && spare->lost_at != 0 &&
        t->now - spare->lost_at >= fsm_session_ms(m))
        return "its session was lost";
    if (spare->session && t->now - spare->heard_at >= fsm_mute_ms(m))
        return "it is silent while its process lives";
    if (spare->joined && !spare->parked && t->now - spare->counter_at >= 2 * m->config.hang_ms)
        return "it gets no further";
    return NULL;
}

static void watch_spare(struct fsm_ctx *t, uint32_t index)
{
    struct fsm *m = t->m;
    struct fsm_rank *spare = &m->ranks[index];
    const bool missing = spare->missing_at != 0 && t->now - spare->missing_at >= FSM_MISSING_MS;
    const bool lost = fsm_is_silent(t, spare);
    const bool unkillable = spare->ended && t->now - spare->ended_at >= FSM_UNKILLABLE_MS;
    if (missing) {
        spare_gone(t, index, "its agent came back without it");
    } else if (lost || unkillable) {
        fsm_act(t, FSM_ACT_UNSEEN)->rank = index;
        spare_gone(t, index, FSM_NODE_LOST);
    } else if (!spare->ended && trouble_of(t, spare) != NULL) {
        if (!spare->joined && !spare->parked)
            leave_node(t, spare, FSM_FAULT_FORMATION);
        give_up_spare(t, index, trouble_of(t, spare));
    }
}

/* Ends spares that are too many, as fewer workers were asked for: first those that are not
 * ready. */
static void trim(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const uint32_t wanted = fsm_spares_wanted(m);
    uint32_t staying = fsm_spares_staying(m);
    if (m->state != FSM_RUNNING || t->now < m->grace_until)
        return;
    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = m->count; i > m->size && staying > wanted; i--) {
            const struct fsm_rank *spare = &m->ranks[i - 1];
            if (spare->gone || spare->ended || (pass == 0 && spare->parked))
                continue;
            fsm_dismiss(t, i - 1);
            staying--;
        }
    }
}

void fsm_watch_spares(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const bool again =
        m->spares.again_at != 0 && t->now >= m->spares.again_at && t->now >= m->grace_until;
    bool ends = false;
    if (!fsm_alive(m))
        return;
    if (m->spares.retry_at != 0 && t->now >= m->spares.retry_at) {
        m->spares.retry_at = 0;
        fsm_act(t, FSM_ACT_SCHEDULE);
    }
    for (uint32_t i = m->size; i < m->count && t->now >= m->grace_until; i++) {
        if (t->out->count >= FSM_ACTIONS_MAX / 2)
            return; /* the others at the next look */
        if (!m->ranks[i].gone)
            watch_spare(t, i);
        ends = ends || (!m->ranks[i].gone && m->ranks[i].ended);
        if (again && !m->ranks[i].gone && m->ranks[i].ended)
            fsm_end_spare(t, i);
    }
    if (again)
        m->spares.again_at = ends ? t->now + FSM_END_AGAIN_MS : 0;
    trim(t);
}
