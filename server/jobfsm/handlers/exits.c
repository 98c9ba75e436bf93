/* How workers end: what their agents and they themselves say of it, and what failed. */
#include "server/jobfsm/handlers/exits.h"

#include <signal.h>
#include <stdio.h>

#include "server/jobfsm/catalog.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* Reports a fault. If it names no rank, its reporter is blamed. Three kinds blame nobody: failed
 * communication (another rank failed), different bits (either rank may be wrong), and a sum that
 * isn't finite (all ranks share it). */
static void report_fault(struct fsm_ctx *t, const struct fsm_fault *reported)
{
    struct fsm_fault fault = *reported;
    const bool of_all = fault.kind == FSM_FAULT_COMMUNICATION || fault.kind == FSM_FAULT_WRONG ||
                        fault.kind == FSM_FAULT_NUMERIC;
    if (fault.rank == FSM_ALL_RANKS && !of_all)
        fault.rank = t->ev->rank;
    fsm_report_fault(t, &fault);
}

/* True if the process was killed by SIGKILL or its like, which we didn't send: somebody or
 * something outside did. */
static bool is_outside(const struct fsm_exited *exited)
{
    bool killed =
        exited->how == FSM_EXIT_SIGNAL && (exited->code == SIGHUP || exited->code == SIGINT ||
                                           exited->code == SIGKILL || exited->code == SIGTERM);
    return killed || exited->how == FSM_EXIT_UNKNOWN;
}

/* Ranks of a job without a known end leave by themselves once it is over; the job is done when all
 * of them did. (Other jobs end by their last commit.) */
static void end_if_finished(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (fsm_ends(m) || fsm_has_waiting(m) || m->total_steps != 0 || m->intent != FSM_INTENT_NONE)
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].finished)
            return;
    }
    fsm_end_generation(t, FSM_SUCCEEDED, fsm_trains(m));
}

static bool have_all_finished(const struct fsm *m)
{
    bool all = true;
    for (uint32_t i = 0; i < m->size; i++)
        all = all && m->ranks[i].finished;
    return all;
}

/* Tells which step was saved in the place of that with which the program was to leave. */
static void emit_earlier_save(struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    const uint64_t asked = fsm_exit_step(m);
    const struct fsm_ckpt *newest = fsm_newest(m);
    if (asked == 0 || newest == NULL || newest->step >= asked)
        return;
    fsm_emit_event_of(t, newest->step, "earlier-save",
                      "the program didn't come to step %llu, after which it was to end, within "
                      "%.1f s: step %llu is saved instead, of which all ranks had a copy",
                      (unsigned long long)asked, (double)(t->now - m->due.exit_at) / 1e3,
                      (unsigned long long)newest->step);
}

/* Ends a job whose workers all say that it is over before its last step, once that is saved: the
 * step becomes its last one. */
static void end_if_early(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_ckpt *newest = fsm_newest(m);
    if (!m->config.ends_early || fsm_ends(m) || fsm_has_waiting(m) || !have_all_finished(m) ||
        newest == NULL || newest->step >= m->total_steps)
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (m->ranks[i].step != newest->step)
            return;
    }
    fsm_emit_event(t, "early-stop",
                   "train.stop: its metric got no better for as long as it says; the job ends at "
                   "step %llu of %llu",
                   (unsigned long long)newest->step, (unsigned long long)m->total_steps);
    m->total_steps = newest->step;
    m->dirty = true;
    fsm_end_generation(t, FSM_SUCCEEDED, true);
}

/*
 * Handles the end of a rank's program, which is saved. One that was asked to go saves first, what
 * was announced or an earlier step; the generation has left when all of them did. Any other end
 * comes after the last step, or too early.
 */
static void program_left(struct fsm_ctx *t, uint32_t index)
{
    struct fsm *m = t->m;
    const struct fsm_rank *rank = &m->ranks[index];
    if (fsm_ends(m) || fsm_has_waiting(m))
        return;
    if (m->intent != FSM_INTENT_NONE || fsm_leaves(m)) {
        if (have_all_finished(m)) {
            emit_earlier_save(t);
            fsm_end_generation(t, fsm_intended(m->intent), true);
        }
        return;
    }
    if (fsm_final_committed(m) && have_all_finished(m)) /* by a save before it was the last step */
        fsm_end_generation(t, FSM_SUCCEEDED, true);
    if (fsm_is_last(m, rank->step))
        return;
    struct fsm_fault fault = {
        .kind = FSM_FAULT_PROCESS, .rank = index, .step = rank->step, .stays = true
    };
    fsm_text(fault.phase, sizeof(fault.phase), rank->phase);
    if (m->total_steps > 0) {
        (void)snprintf(fault.message, sizeof(fault.message),
                       "its program ended after step %llu, before its last step: %llu",
                       (unsigned long long)rank->step, (unsigned long long)fsm_last_step(m));
    } else {
        fsm_text(fault.message, sizeof(fault.message), "its program ended before it was ready");
    }
    fsm_report_fault(t, &fault);
}

void fsm_on_exited(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[t->ev->rank];
    const struct fsm_exited *exited = &t->ev->exited;
    if (rank->gone)
        return;
    fsm_rank_gone(m, t->ev->rank);
    rank->started = true;
    rank->session = false;
    m->dirty = true;
    if (exited->step > rank->step && (m->total_steps == 0 || exited->step <= m->total_steps))
        rank->step = exited->step; /* its last words */
    if (exited->phase != NULL)
        fsm_text(rank->phase, sizeof(rank->phase), exited->phase);
    bool finished = rank->finished || exited->finished || exited->how == FSM_EXIT_FINISHED;
    rank->finished = finished;
    if (m->ending.to == FSM_RECOVERING && m->cause.kind == FSM_FAULT_HANG &&
        m->cause.rank == t->ev->rank) { /* its agent read its flight recorder */
        fsm_emit_event(t, "culprit", "rank %u on node %s: %.440s", t->ev->rank, rank->node,
                       exited->message);
    }
    if (finished && exited->how != FSM_EXIT_SIGNAL)
        end_if_early(t);
    if (finished && m->config.saves_nothing) { /* the program has ended; what it was is nothing */
        end_if_finished(t);
        return;
    }
    if (finished && m->config.program && exited->how != FSM_EXIT_SIGNAL) {
        program_left(t, t->ev->rank);
        return;
    }
    if (fsm_ends(m) || (finished && exited->how != FSM_EXIT_SIGNAL))
        return;
    if (exited->fault != NULL) {
        report_fault(t, exited->fault);
        return;
    }
    struct fsm_fault fault = {
        .kind = exited->how == FSM_EXIT_OOM ? FSM_FAULT_MEMORY : FSM_FAULT_PROCESS,
        .rank = t->ev->rank,
        .step = rank->step,
        .outside = is_outside(exited),
        .of_node = exited->how == FSM_EXIT_SPAWN_FAILED,
    };
    fsm_text(fault.phase, sizeof(fault.phase), rank->phase);
    fsm_text(fault.message, sizeof(fault.message), exited->message);
    fsm_report_fault(t, &fault);
}

void fsm_on_finished(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[t->ev->rank];
    m->dirty = m->dirty || (m->config.saves_nothing && !rank->finished); /* it is journalled */
    rank->finished = true;
    if (t->ev->finished.step > rank->step)
        rank->step = t->ev->finished.step;
    if (m->config.program && !m->config.saves_nothing) {
        program_left(t, t->ev->rank);
        return;
    }
    end_if_early(t);
    end_if_finished(t);
}

void fsm_on_fault(struct fsm_ctx *t)
{
    report_fault(t, t->ev->fault);
}
