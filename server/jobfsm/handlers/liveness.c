/*
 * The rules of silence, and deadlines.
 *
 * Silence decides what is assumed: whose it is, and how long it lasts (times in
 * server/jobfsm/ctx.h):
 *
 *   agent silent, trainer heard           nothing: the job runs on, "unsupervised"
 *   agent and trainer silent              the node is lost
 *   ... but other ranks finish steps      nothing: they can't without it. It is cut off from the
 *                                         coordinator; lost when the steps stop
 *   ... but other nodes reach it          the same; where no other rank could tell by its steps,
 *                                         it is waited for, for FSM_CUT_OFF_MS
 *   the agent is back without the trainer its process is gone, unless its exit comes after all
 *   no hello while forming                the formation failed
 *   session lost, not opened again        the session is lost: the trainer is ended
 *   session open, but no message          the trainer hangs
 *   messages of all, no counter rises     the rank that hasn't come to the collective in which
 *                                         others wait hangs (server/jobfsm/hang); else who
 *                                         stopped first
 *   ... for a while only                  paths between its nodes may be broken: they are tried
 *   a program is to save and leave, and   the rank that doesn't come to that step hangs: the next
 *   makes no step                         generation has what is in memory, and saves that
 *   its saver gives no sign               its save is dropped; the store hangs, for it or for all
 *   ... for four times as long            it doesn't reach a store that others do: it is ended
 *
 * While all nodes are silent at once (server/fleet/isolation.h), the core keeps these clocks still.
 * After a start of the coordinator nobody is judged for FSM_GRACE_MS.
 */
#include "server/jobfsm/handlers/liveness.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/elastic.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/handlers/generation_end.h"
#include "server/jobfsm/handlers/progress.h"
#include "server/jobfsm/save_abort.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* ---- silence ---- */

static void blame_for(struct fsm_ctx *t, enum fsm_fault_kind kind, uint32_t index, bool outside,
                      const char *what)
{
    const struct fsm_rank *rank = &t->m->ranks[index];
    struct fsm_fault fault = { .kind = kind, .rank = index, .step = rank->step };
    fault.outside = outside;
    /* Nothing was heard from there, or nothing comes from there to a store that others reach. */
    fault.of_node = kind == FSM_FAULT_FORMATION || kind == FSM_FAULT_STORE;
    fsm_text(fault.phase, sizeof(fault.phase), rank->phase[0] ? rank->phase : "forming");
    fsm_text(fault.message, sizeof(fault.message), what);
    fsm_handle_fault(t, &fault);
}

static void blame(struct fsm_ctx *t, enum fsm_fault_kind kind, uint32_t index, const char *what)
{
    blame_for(t, kind, index, kind != FSM_FAULT_HANG, what);
}

/* True if a rank of the generation is heard, or is about to be missed: its steps tell of the
 * others. */
static bool is_one_heard(const struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    bool heard = false;
    for (uint32_t i = 0; i < m->size && !heard; i++)
        heard = !m->ranks[i].gone && !fsm_is_silent(t, &m->ranks[i]);
    return heard;
}

/* Returns when any rank finished its newest step, or when one that is heard made progress: in an
 * evaluation, or in a part of a step that takes long. */
static int64_t got_on_at(const struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    int64_t at = m->stepped_at;
    for (uint32_t i = 0; i < m->size && at < t->now - FSM_WATCH_MS; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        if (!rank->gone && !fsm_is_silent(t, rank) && rank->counter_at > at)
            at = rank->counter_at;
    }
    return at;
}

/*
 * True if a rank that is silent with its agent lives, and is cut off from us alone.
 *
 * No step is finished without it, so one that others finished just now tells (they say so twice a
 * beat). If others reach its node, the next step may take its time, the first one as long as a
 * hang. If nobody else is heard there are no steps to see.
 */
static bool is_cut_off(const struct fsm_ctx *t, const struct fsm_rank *rank)
{
    const struct fsm *m = t->m;
    if (!fsm_trains(m) || t->now - rank->heard_at >= FSM_CUT_OFF_MS)
        return false;
    if (rank->agent != FSM_AGENT_CUT_OFF && m->config.program)
        return false; /* programs may finish steps without each other */
    if (rank->agent != FSM_AGENT_CUT_OFF)
        return m->stepped_at > rank->heard_at && t->now - m->stepped_at < m->config.silent_ms / 2;
    const int64_t steps = m->step_ms > 0 ? (int64_t)(3 * m->step_ms) : m->config.hang_ms;
    const int64_t limit = steps > m->config.silent_ms ? steps : m->config.silent_ms;
    return !is_one_heard(t) || t->now - rank->heard_at < limit || t->now - got_on_at(t) < limit;
}

void fsm_rank_heard(struct fsm_ctx *t, uint32_t rank)
{
    struct fsm_rank *of = &t->m->ranks[rank];
    if (t->now - of->heard_at < t->m->config.silent_ms)
        return;
    of->heard_at = of->counter_at = of->saving_at = t->now;
    if (of->lost_at != 0)
        of->lost_at = t->now;
}

void fsm_hear(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const bool first = t->ev->rank < m->size && !is_one_heard(t);
    for (uint32_t i = 0; first && i < m->size; i++)
        fsm_rank_heard(t, i);
    m->ranks[t->ev->rank].heard_at = t->now;
}

static void blame_silence(struct fsm_ctx *t, uint32_t index)
{
    const struct fsm_rank *rank = &t->m->ranks[index];
    const int64_t began = t->m->started_at;
    const int64_t since = rank->heard_at > began ? rank->heard_at : began;
    char what[LIMIT_REASON];
    (void)snprintf(
        what, sizeof(what), FSM_NODE_LOST " for %.0f s%s", (double)(t->now - since) / 1000.0,
        rank->agent == FSM_AGENT_CUT_OFF ? "; other nodes reach it, but the job gets no further"
                                         : "");
    fsm_count_as_gone(t, index); /* with its node; fenced, should it come back */
    blame(t, FSM_FAULT_NODE, index, what);
}

/* Watches a rank whose program has ended: nobody waits for it, and it may go with its node. */
static void watch_finished(struct fsm_ctx *t, uint32_t index)
{
    struct fsm *m = t->m;
    const struct fsm_rank *rank = &m->ranks[index];
    if (rank->missing_at != 0 && t->now - rank->missing_at >= FSM_MISSING_MS) {
        fsm_rank_gone(m, index);
        m->dirty = true;
    } else if (fsm_is_silent(t, rank)) {
        fsm_count_as_gone(t, index);
    }
}

/* Watches one rank. true: the generation failed. out_held: nothing is known of the rank, and it
 * isn't judged. */
static bool watch_rank(struct fsm_ctx *t, uint32_t index, bool *out_held)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[index];
    int64_t silent = t->now - rank->heard_at;
    if (rank->gone)
        return false;
    if (m->config.saves_nothing && rank->finished) {
        watch_finished(t, index);
        return false;
    }
    if (rank->missing_at != 0 && t->now - rank->missing_at >= FSM_MISSING_MS) {
        fsm_rank_gone(m, index);
        m->dirty = true;
        blame(t, FSM_FAULT_PROCESS, index, "its agent came back without it");
        return true;
    }
    const bool is_lost = fsm_is_silent(t, rank) && !is_cut_off(t, rank);
    if (is_lost) {
        blame_silence(t, index);
        return true;
    }
    if (fsm_is_silent(t, rank) || rank->agent == FSM_AGENT_DOUBTED) {
        *out_held = true;
        return false;
    }
    if (!rank->joined) {
        if (m->state == FSM_FORMING && t->now - m->started_at >= FSM_HELLO_MS) {
            blame(t, FSM_FAULT_FORMATION, index, "the worker did not say hello within 60 s");
            return true;
        }
        if (m->state == FSM_FORMING && rank->birth < m->generation &&
            silent >= fsm_session_ms(m)) { /* a worker that was there need not start */
            blame(t, FSM_FAULT_SESSION, index, "the worker did not go on in this generation");
            return true;
        }
        if (m->state == FSM_FORMING)
            return false;
        if (silent < fsm_session_ms(m)) {
            *out_held = true; /* the others may wait for this one */
            return false;
        }
        blame(t, FSM_FAULT_SESSION, index, "the worker did not come back to the coordinator");
        return true;
    }
    if (!rank->session || silent >= m->config.silent_ms)
        *out_held = true; /* how far it has come nobody knows */
    /* After a start its agent may not have come back: it has that long from the grace's end. */
    if (t->now - m->grace_until < fsm_mute_ms(m))
        return false;
    if (!rank->session && rank->lost_at != 0 && t->now - rank->lost_at >= fsm_session_ms(m)) {
        char what[LIMIT_REASON];
        (void)snprintf(what, sizeof(what),
                       "its session was lost for %lld s while its process lived",
                       (long long)(fsm_session_ms(m) / 1000));
        blame(t, FSM_FAULT_SESSION, index, what);
        return true;
    }
    int64_t limit = m->config.hang_ms < fsm_mute_ms(m) ? m->config.hang_ms : fsm_mute_ms(m);
    if (rank->session && silent >= limit) {
        blame(t, FSM_FAULT_HANG, index, "the worker is silent while its process lives");
        return true;
    }
    return false;
}

/* True if the rank waits for the store, with the save that it leaves after. With any other save
 * nobody waits for us, nor while ranks write by themselves (COLLECTING). */
static bool is_held(const struct fsm *m, uint32_t rank)
{
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        bool again = save->state == FSM_SAVE_DROPPED && save->wanted;
        bool ours = again || (fsm_save_busy(save) && save->state != FSM_SAVE_COLLECTING);
        if (ours && m->ranks[rank].save_flags[i] != 0 && save->generation == m->generation &&
            fsm_leaves_at(m, save->step))
            return true;
    }
    return false;
}

/* Called when no rank gets on. The rank that hasn't come to where others wait holds them up; if
 * none can be named so, the one that stopped first is blamed. */
static void watch_hang(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    uint32_t first = FSM_ALL_RANKS;
    struct hang hang;
    hang_init(&hang);
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        if (rank->gone || !rank->assigned || rank->finished)
            continue;
        if (is_held(m, i)) {
            rank->counter_at = t->now;
            continue;
        }
        if (t->now - rank->counter_at < fsm_hang_ms(m, rank->phase))
            return;
        if (first == FSM_ALL_RANKS || rank->counter_at < m->ranks[first].counter_at)
            first = i;
        hang_add(&hang, i, rank->stage, &rank->place, rank->counter_at);
    }
    if (first == FSM_ALL_RANKS)
        return;
    const uint32_t culprit = hang_culprit(&hang);
    const uint32_t blamed = culprit != HANG_NOBODY ? culprit : first;
    const struct fsm_rank *rank = &m->ranks[blamed];
    const struct hang_suspect suspect = { blamed, rank->node, rank->phase,
                                          t->now - rank->counter_at };
    char why[LIMIT_REASON];
    hang_describe(&hang, &suspect, why, sizeof(why));
    /* All wait for each other: something is lost on its way between two nodes. */
    blame_for(t, FSM_FAULT_HANG, blamed, culprit == HANG_NOBODY && fsm_spans(m), why);
}

/* Has the paths tried, once until the generation gets on. Paths that work change nothing; of a
 * broken one fsm_on_path hears. */
static void watch_paths(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const bool still = t->now - m->progress_at >= FSM_STANDSTILL_MS;
    if (fsm_ends(m) || !still || m->suspected_at > m->progress_at || !fsm_spans(m))
        return;
    m->suspected_at = t->now;
    fsm_act(t, FSM_ACT_SUSPECT);
}

/* Returns the first rank that has not come to the step; FSM_ALL_RANKS: all have. */
static uint32_t find_behind(const struct fsm *m, uint64_t step)
{
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        if (!rank->gone && !rank->finished && rank->step < step)
            return i;
    }
    return FSM_ALL_RANKS;
}

/*
 * Watches a program that is to save and leave: it may be long in something that is no step, or
 * stuck. Its worker saves an earlier step where it can (exits.c). If that doesn't happen the
 * generation ends by a hang, and the next one goes on from what is in memory and saves first. Where
 * that one doesn't get on, either, the job goes with what is saved.
 */
static void watch_leaving(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const uint64_t step = fsm_exit_step(m);
    const int64_t limit = m->config.come_ms + FSM_LEAVE_MS;
    const int64_t since = m->stepped_at > m->due.exit_at ? m->stepped_at : m->due.exit_at;
    const uint32_t behind = find_behind(m, step);
    if (m->config.come_ms == 0 || !fsm_trains(m) || step == 0 || behind == FSM_ALL_RANKS ||
        t->now - since < limit)
        return;
    char why[LIMIT_REASON];
    (void)snprintf(why, sizeof(why),
                   "its program was to come to step %llu, to save and end, and made no step for "
                   "%lld s",
                   (unsigned long long)step, (long long)(limit / 1000));
    if (!m->progressed && m->intent != FSM_INTENT_NONE) {
        fsm_emit_event(t, "late", "rank %u: %s; the job goes with what is saved", behind, why);
        fsm_end_generation(t, fsm_intended(m->intent), false);
        return;
    }
    blame_for(t, FSM_FAULT_HANG, behind, true, why);
}

/* ---- saves that collect ---- */

/* Returns for how long a rank's saver may give no sign before the rank counts as stuck at the
 * store. It is four times the floor of a hang, ten times what saves took, and the time of an fsync
 * of all that it wrote, which gives no sign. */
static int64_t stuck_ms(const struct fsm *m)
{
    CHECK(m->size > 0);
    int64_t share = (int64_t)(m->state_bytes / m->size);
    int64_t limit = 4 * m->config.hang_ms;
    if (limit < 10 * m->due.write_ms)
        limit = 10 * m->due.write_ms;
    return limit + share / FSM_SLOW_BYTES_MS;
}

/* Returns the first rank that has no report in, though it came to that step, and gave no sign for
 * `ms`; FSM_ALL_RANKS: there is none. */
static uint32_t find_late(const struct fsm_ctx *t, int index, int64_t ms)
{
    const struct fsm *m = t->m;
    const struct fsm_save *save = &m->saves[index];
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        uint8_t flags = rank->save_flags[index];
        bool there = (flags & FSM_RANK_BEGUN) || rank->step >= save->step;
        int64_t since = rank->saving_at > save->since ? rank->saving_at : save->since;
        if (!rank->gone && there && !(flags & FSM_RANK_REPORTED) && t->now - since >= ms)
            return i;
    }
    return FSM_ALL_RANKS;
}

static bool some_reported(const struct fsm *m, int index)
{
    bool some = false;
    for (uint32_t i = 0; i < m->size; i++)
        some = some || (m->ranks[i].save_flags[index] & FSM_RANK_REPORTED);
    return some;
}

static void describe_late(const struct fsm *m, uint32_t late, int64_t ms, char out[LIMIT_REASON])
{
    (void)snprintf(out, LIMIT_REASON,
                   "rank %u on node %s wrote nothing to the store for %lld s; look at the store "
                   "from there",
                   late, m->ranks[late].node, (long long)ms / 1000);
}

/*
 * Drops a save of which a rank writes nothing any more, as it can't become a checkpoint. The next
 * one is a new try: training goes on.
 *
 * If ranks wait for the save, to leave, it depends. If others could write theirs, that rank's node
 * doesn't reach the store, and the generation ends. If nobody could, the store hangs for all, and
 * another generation would be no better: they wait.
 */
static void watch_collecting(struct fsm_ctx *t, int index)
{
    struct fsm *m = t->m;
    const struct fsm_save *save = &m->saves[index];
    unsigned long long step = save->step;
    uint32_t late = find_late(t, index, stuck_ms(m));
    if (late == FSM_ALL_RANKS) {
        late = m->state == FSM_SAVING ? find_late(t, index, FSM_LATE_FILE_MS) : late;
        if (late != FSM_ALL_RANKS && !m->store_full.unsaved) {
            fsm_set_reason(m, "waits for rank %u on node %s to write its file of step %llu", late,
                           m->ranks[late].node, step);
        }
        return;
    }
    char why[LIMIT_REASON];
    describe_late(m, late, stuck_ms(m), why);
    if (fsm_leaves_at(m, save->step) && some_reported(m, index)) {
        blame(t, FSM_FAULT_STORE, late, why);
        return;
    }
    bool told = fsm_unsaved(t, why);
    fsm_save_drop(t, index, why, !told);
}

/* ---- ranks that don't reach the store ---- */

/* True if a rank is stuck: it has begun something at the store and gives no sign for that long,
 * while the store doesn't hang for all. Another worker is through with its own, and that didn't
 * fail. It is stuck, too, if there is nothing to do but wait for it: then it makes no difference to
 * the others. */
static bool is_stuck(const struct fsm_ctx *t, uint32_t index, int64_t ms)
{
    const struct fsm *m = t->m;
    const struct fsm_rank *rank = &m->ranks[index];
    if (rank->gone || !rank->at_store || t->now - rank->saving_at < ms)
        return false;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_rank *other = &m->ranks[i];
        if (!other->gone && !other->at_store && !other->save_failed)
            return true;
    }
    return fsm_leaves_at(m, rank->step);
}

/*
 * Ends a rank whose saver hangs for good, as one that hangs is ended; the next workers go
 * elsewhere. Its rank would save nothing any more: the longer the job trains on, the more is lost
 * in the end, and at its last step it would wait for ever.
 *
 * But if the store doesn't answer us, either, no other generation would do better: all wait.
 */
static void watch_stuck(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const int64_t ms = FSM_STUCK_TIMES * stuck_ms(m);
    uint32_t stuck = 0;
    while (stuck < m->size && !is_stuck(t, stuck, ms))
        stuck++;
    if (stuck == m->size) {
        m->probe_at = 0;
        return;
    }
    if (m->probing)
        return;
    if (m->probe_at != 0 && m->probed) {
        char why[LIMIT_REASON];
        describe_late(m, stuck, t->now - m->ranks[stuck].saving_at, why);
        blame(t, FSM_FAULT_STORE, stuck, why);
        return;
    }
    if (t->now < m->probe_at)
        return;
    m->probe_at = t->now + FSM_PROBE_MS;
    m->probed = false;
    m->probing = true;
    fsm_ask_store(t, FSM_TASK_PROBE, 0, m->generation);
}

/* Notes that a generation of a job without steps has run for so long that this is progress. */
static void note_ran(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!m->config.saves_nothing || m->progressed || m->step_max > 0 || !fsm_trains(m) ||
        t->now - m->ran_from < FSM_RAN_MS)
        return;
    m->progressed = true;
    m->dirty = true;
}

/* True if the job waits for retry_at; a tick at or after it ends that, however late it comes. */
static bool backs_off(const struct fsm *m)
{
    return m->retry_at != 0 && !fsm_ends(m) &&
           (m->state == FSM_RECOVERING || m->state == FSM_QUEUED);
}

void fsm_watch(struct fsm_ctx *t, bool looks)
{
    struct fsm *m = t->m;
    if (backs_off(m) && t->now >= m->retry_at) {
        m->retry_at = 0;
        fsm_act(t, FSM_ACT_SCHEDULE);
    }
    if (!fsm_alive(m))
        return;
    if (fsm_ends(m)) {
        fsm_watch_ending(t);
        return;
    }
    if (fsm_has_waiting(m)) {
        fsm_watch_survivors(t);
        return;
    }
    if (m->window_until != 0) {
        fsm_window_tick(t);
        return;
    }
    if (fsm_all_gone(m)) { /* all left by themselves; close_generation looks at what they
                                * saved */
        fsm_end_generation(t, FSM_RECOVERING, false);
        return;
    }
    if (t->now < m->grace_until || !looks)
        return;
    bool held = false;
    for (uint32_t i = 0; i < m->size; i++) {
        if (watch_rank(t, i, &held))
            return;
    }
    watch_paths(t);
    if (!held)
        watch_hang(t);
    for (int i = 0; i < FSM_SAVES_MAX && !fsm_ends(m); i++) {
        if (m->saves[i].state == FSM_SAVE_COLLECTING)
            watch_collecting(t, i);
    }
    if (!fsm_ends(m) && !held && !m->config.saves_nothing)
        watch_stuck(t);
    if (!fsm_ends(m) && !held)
        watch_leaving(t);
    if (!fsm_ends(m))
        note_ran(t);
    if (m->state == FSM_RUNNING && m->config.time_limit_ms > 0 &&
        m->accounts.train_ms >= m->config.time_limit_ms && m->intent == FSM_INTENT_NONE) {
        if (m->config.saves_nothing) {
            fsm_leave(t, FSM_SUCCEEDED);
            return;
        }
        m->intent = FSM_INTENT_FINISH;
        FSM_MOVE(m, FSM_SAVING);
        fsm_announce(t, true);
    }
}

int64_t fsm_deadline(const struct fsm *m)
{
    int64_t at = fsm_saves_deadline(m);
    int64_t due = fsm_due_deadline(m);
    const int64_t resize = fsm_resize_deadline(m);
    if (due < at)
        at = due;
    if (resize < at)
        at = resize;
    if (fsm_alive(m) && m->spares.retry_at != 0 && m->spares.retry_at < at)
        at = m->spares.retry_at;
    if (backs_off(m) && m->retry_at < at)
        at = m->retry_at;
    if (fsm_alive(m) && m->window_until != 0 && m->window_until < at)
        at = m->window_until;
    /* Counted from the last look, not from now: other jobs' events must not put it off for ever. */
    int64_t watch = m->watched_at + FSM_WATCH_MS;
    if ((fsm_alive(m) || m->damage_suspected) && watch < at)
        at = watch;
    return at;
}
