/*
 * Failures: which cause counts, and what is done about it.
 *
 *   cause                                 what follows
 *   user error                            FAILED at once, with the message
 *   user error of a node (its data, its   elsewhere; where it is the same on FSM_LACKING_MAX
 *   device's module)                      nodes, or no other one could ever take the job: FAILED,
 *                                         with the message and the nodes
 *   spawn failed, no hello, device gone   once elsewhere; there, too, it counts as any crash
 *   numeric                               computed once more; twice at the same step: the step is
 *                                         left out, or FAILED; the third in a row: FAILED; not
 *                                         again: the node whose lanes they were is suspected
 *   computed wrongly                      from before that, without the node that was wrong, if
 *                                         that is known; else again, and at the second time FAILED
 *   pins                                  the nodes are left out; the job waits for one that fits
 *   data that are not what they were      elsewhere if there is room, else looked at again after
 *                                         0, 1, 2, 4, 8, 15 s, without end
 *   programs of two versions              the same as those below, without end: half of a fleet is
 *                                         upgraded
 *   kill from outside, node lost,
 *   session lost, no hello;
 *   between nodes: communication, and a
 *   hang in which nobody is at fault      a new generation after 0, 1, 2, 4 .. 60 s; of more than
 *                                         FSM_NO_PROGRESS_MAX without progress each after 5 min;
 *                                         without end: it is nobody's, and waiting mends it
 *   a path between two nodes is broken    on other nodes at once, uncounted
 *   crash, out of memory, hang, damage,
 *   store, communication on one node      the same; three at one step or phase: FAILED
 *   store, while restoring                the same, without end
 *   store, and only its node can't write  elsewhere, uncounted; where no other node could take the
 *                                         job: there again, without end
 *
 * What may be the job's own: after FSM_NO_PROGRESS_MAX generations that failed by it, without any
 * progress meanwhile, FAILED, with the first such cause. A job with a budget of its own
 * (fsm_config.budget) fails after so many, wherever they failed.
 */
#include "server/jobfsm/failure_policy.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/corruption.h"
#include "server/jobfsm/failure_kinds.h"
#include "server/jobfsm/memory_copies.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* ---- the first cause ---- */

void fsm_report_fault(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    if (m->ending.to == FSM_RECOVERING && fsm_fault_lacks(m, &m->cause) &&
        fsm_fault_lacks(m, fault)) {
        /* one more: it isn't tried again to find that out */
        (void)exclusion_add(&m->exclusions, m->ranks[fault->rank].node, EXCLUSION_FAILED,
                            (uint32_t)fault->kind, t->wall);
        m->dirty = true;
    }
    if (m->ending.parks && m->cause.kind == FSM_FAULT_HANG && fault->kind == FSM_FAULT_HANG &&
        fault->stays && fault->rank != m->cause.rank) /* where its program was, when all ended */
        fsm_emit_event(t, "stack", "rank %u: %.450s", fault->rank, fault->message);
    if (fsm_ends(m) || fsm_has_waiting(m))
        return;
    CHECK(fault->kind != FSM_FAULT_NONE);
    if (fsm_fault_weight(fault) > fsm_fault_weight(&m->candidate))
        m->candidate = *fault;
    if (fsm_fault_weight(fault) >= 3) {
        struct fsm_fault best = m->candidate;
        fsm_handle_fault(t, &best);
        return;
    }
    const bool is_new = t->now < m->grace_until; /* whoever knows more may not be back yet */
    if (m->window_until == 0)
        m->window_until = t->now + (is_new ? FSM_WINDOW_NEW_MS : FSM_WINDOW_MS);
}

void fsm_window_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (t->now < m->window_until)
        return;
    CHECK(m->candidate.kind != FSM_FAULT_NONE);
    struct fsm_fault best = m->candidate;
    fsm_handle_fault(t, &best);
}

/* ---- policy ---- */

/* Starts counts anew if there was progress: failures before it count no more. */
static void begin_count(struct fsm *m, const struct fsm_fault *fault)
{
    if (m->progressed || m->committed) {
        m->budget.failures = 0;
        m->budget.no_progress = 0;
        m->budget.own = 0;
        m->budget.used = 0;
        m->first_cause = (struct fsm_fault){ 0 };
        exclusion_drop(&m->exclusions, EXCLUSION_FAILED);
    }
    exclusion_drop(&m->exclusions, EXCLUSION_SLOW); /* a slow one may be of use to fewer others */
    m->budget.no_commit = m->committed ? 0 : m->budget.no_commit + 1;
    if (m->first_cause.kind == FSM_FAULT_NONE || (m->budget.own == 0 && fsm_fault_is_own(fault)))
        m->first_cause = *fault;
}

/* Counts the failure: in a row, at the same place, and since the last progress. */
static void count_failure(struct fsm *m, const struct fsm_fault *fault)
{
    bool waits = fault->waits || fault->kind == FSM_FAULT_PINS || fault->kind == FSM_FAULT_DATA ||
                 (fault->kind == FSM_FAULT_STORE && fault->outside);
    if (!m->progressed && !m->committed && !waits) {
        m->budget.no_progress++;
        m->budget.own += fsm_fault_is_own(fault);
    }
    m->budget.failures++;
    if (!fsm_fault_counts(fault))
        return;
    bool same = m->budget.used > 0 && m->budget.kind == fault->kind &&
                (m->budget.step == fault->step || strcmp(m->budget.phase, fault->phase) == 0);
    m->budget.used = same ? m->budget.used + 1 : 1;
    m->budget.kind = fault->kind;
    m->budget.step = fault->step;
    fsm_text(m->budget.phase, sizeof(m->budget.phase), fault->phase);
}

static void emit_fault(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    char who[32] = "";
    if (fault->rank < t->m->size)
        (void)snprintf(who, sizeof(who), "rank %u: ", fault->rank);
    fsm_emit_event(t, "fault", "%s: %s%.400s", fsm_fault_name(fault->kind), who, fault->message);
}

static void end_as_failed(struct fsm_ctx *t, const struct fsm_fault *cause, const char *why)
{
    if (why[0]) {
        fsm_set_reason(t->m, "%s: %.400s (%s)", fsm_fault_name(cause->kind), cause->message, why);
    } else {
        fsm_set_reason(t->m, "%.500s", cause->message);
    }
    fsm_end_generation(t, FSM_FAILED, false);
}

/* Counts the steps right before this one that are left out. */
static uint32_t skips_before(const struct fsm *m, uint64_t step)
{
    uint32_t consecutive = 0;
    for (uint32_t i = 0; i < m->numeric.skip_count;) {
        if (consecutive < step && m->numeric.skip[i] == step - consecutive - 1) {
            consecutive++;
            i = 0;
        } else {
            i++;
        }
    }
    return consecutive;
}

/* Gives up: other samples don't help, as the weights or the learning rate are the cause. So it is
 * the user's to mend, whatever was tried. */
static void give_up_diverged(struct fsm_ctx *t, const struct fsm_fault *fault, uint32_t consecutive)
{
    struct fsm_fault *cause = &t->m->cause;
    cause->kind = FSM_FAULT_USER;
    cause->step = fault->step - consecutive;
    (void)snprintf(cause->message, sizeof(cause->message),
                   "diverged since step %llu: %u steps in a row were not finite, each of them "
                   "twice; lower the learning rate, or clip the gradient (train.clip_norm)",
                   (unsigned long long)cause->step, consecutive + 1);
    emit_fault(t, cause);
    end_as_failed(t, cause, "");
}

/* Has the step computed once more, or left out. true: the job was given up. */
static bool recompute_or_skip(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    if (!m->numeric.seen || m->numeric.step != fault->step) {
        m->numeric.seen = true;
        m->numeric.step = fault->step;
        fsm_text(m->numeric.node, sizeof(m->numeric.node),
                 fault->rank < m->size ? m->ranks[fault->rank].node : "");
        fsm_emit_event(t, "numeric", "step %llu is not finite; it is computed once more",
                       (unsigned long long)fault->step);
        return false;
    }
    m->numeric.seen = false;
    if (!m->config.skip_nan) {
        end_as_failed(t, fault, "twice at the same step, and on_nan is not skip");
        return true;
    }
    const uint32_t consecutive = skips_before(m, fault->step);
    if (consecutive + 1 >= FSM_SKIPS_CONSECUTIVE) {
        give_up_diverged(t, fault, consecutive);
        return true;
    }
    if (m->numeric.skip_count >= FSM_SKIPS_MAX) {
        end_as_failed(t, fault, "too many steps were skipped already");
        return true;
    }
    m->numeric.skip[m->numeric.skip_count++] = fault->step;
    fsm_emit_event(t, "skip", "step %llu is not finite twice; it is left out",
                   (unsigned long long)fault->step);
    return false;
}

/* Goes back, as two ranks computed different bits: to before that, without the rank that is known
 * to be wrong. true: the job was given up. */
static bool go_back(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    const uint64_t good = fsm_fault_good_step(m, fault);
    const uint64_t again = m->audit.good_step + m->config.audited; /* and more was right then */
    if (good > (m->audit.found < again ? m->audit.found : again)) {
        m->audit.weight = 0;
        m->audit.found = 0;
    }
    fsm_emit_event(t, "audit-failed", "%.300s; the job goes back to step %llu or before",
                   fault->message, (unsigned long long)good);
    if (fault->rank < m->size) {
        struct fsm_action *act = fsm_act(t, FSM_ACT_ACCUSE);
        act->rank = fault->rank;
        fsm_text(act->message, LIMIT_REASON, fault->message);
        m->audit.weight += FSM_WRONG_KNOWN;
    } else {
        m->audit.weight += FSM_WRONG_UNKNOWN;
    }
    m->audit.good_step = good;
    m->audit.found = fault->step > m->audit.found ? fault->step : m->audit.found;
    m->audit.generation = m->generation;
    m->restore.memory_from = m->generation + 1;
    m->dirty = true;
    if (m->audit.weight < FSM_WRONG_MAX)
        return false;
    end_as_failed(t, fault, "again, after all of it was computed once more");
    return true;
}

/* ---- nodes ---- */

enum verdict {
    VERDICT_OPEN,     /* nothing says that the fault is the node's */
    VERDICT_NODE,     /* the node is at fault until the job fails elsewhere, too: it isn't
                       * counted */
    VERDICT_AGAIN,    /* on the same node again, as there was no other */
    VERDICT_REPEATED, /* it failed so elsewhere before: the fault is the job's */
};

/* Judges whether the node is at fault; the job keeps away from it, whatever comes out. */
static enum verdict judge_node(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    if (!fault->of_node || fault->rank >= m->size)
        return VERDICT_OPEN;
    const char *node = m->ranks[fault->rank].node;
    bool added =
        exclusion_add(&m->exclusions, node, EXCLUSION_FAILED, (uint32_t)fault->kind, t->wall);
    m->dirty = true;
    if (exclusion_elsewhere(&m->exclusions, node, (uint32_t)fault->kind)) {
        fsm_act(t, FSM_ACT_CLEAR);
        const bool tries_on = fsm_fault_lacks(m, fault) && added &&
                              exclusion_count(&m->exclusions, EXCLUSION_FAILED) < FSM_LACKING_MAX;
        return tries_on ? VERDICT_NODE : VERDICT_REPEATED;
    }
    fsm_act(t, FSM_ACT_BLAME)->rank = fault->rank;
    return added ? VERDICT_NODE : VERDICT_AGAIN;
}

/* Names the nodes whose pins differ, each once. */
static void name_differing(const struct fsm *m, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < m->size; i++) {
        bool named = !m->ranks[i].differs;
        for (uint32_t j = 0; j < i && !named; j++)
            named = m->ranks[j].differs && strcmp(m->ranks[j].node, m->ranks[i].node) == 0;
        if (named)
            continue;
        int size =
            snprintf(out + used, capacity - used, "%s%s", used ? ", " : "", m->ranks[i].node);
        if (size < 0 || (size_t)size >= capacity - used)
            return; /* cut: there are more than fit into a line */
        used += (size_t)size;
    }
}

void fsm_note_pins(struct fsm_ctx *t, const char *difference)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[t->ev->rank];
    struct fsm_fault fault = { .kind = FSM_FAULT_PINS, .rank = t->ev->rank };
    if (fsm_ends(m))
        return;
    rank->differs = true;
    m->dirty = true;
    (void)exclusion_add(&m->exclusions, rank->node, EXCLUSION_PINS, 0, t->wall);
    fsm_text(fault.phase, sizeof(fault.phase), "forming");
    fsm_text(fault.message, sizeof(fault.message), difference);
    if (fsm_fault_weight(&fault) > fsm_fault_weight(&m->candidate))
        m->candidate = fault;
    if (m->window_until == 0)
        m->window_until = t->now + FSM_PINS_MS;
    fsm_pins_tick(t);
}

void fsm_pins_tick(struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    if (m->candidate.kind != FSM_FAULT_PINS || fsm_ends(m))
        return;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].ready && !m->ranks[i].differs)
            return;
    }
    struct fsm_fault best = m->candidate;
    fsm_handle_fault(t, &best);
}

/* Books the time since the last progress as lost until the failure was noticed; returns it. */
static int64_t account_detection(struct fsm *m, int64_t now)
{
    int64_t detect = now - (m->progress_at > m->started_at ? m->progress_at : m->started_at);
    if (m->state == FSM_FORMING || detect <= 0)
        return 0;
    bool replays = fsm_step_now(m) < m->replay_until;
    int64_t *from = replays ? &m->accounts.lost_ms[FSM_LOST_REPLAY] : &m->accounts.train_ms;
    int64_t moved = detect < *from ? detect : *from;
    *from -= moved;
    m->accounts.lost_ms[FSM_LOST_DETECT] += moved;
    return moved;
}

/* Returns where the job goes: where people asked it to. But a job that ends for good, or whose time
 * is over, recovers, to save first what it trained. */
static enum fsm_state state_after(const struct fsm *m)
{
    bool saves_first = m->intent == FSM_INTENT_FINISH || m->intent == FSM_INTENT_STOP;
    return saves_first ? FSM_RECOVERING : fsm_intended(m->intent);
}

static void emit_recovering(struct fsm_ctx *t, int64_t delay_ms)
{
    const char *then = t->m->intent == FSM_INTENT_STOP
                           ? ", to save what was trained; then the job stops (`cairn stop` again "
                             "while it recovers: at once, at its newest checkpoint)"
                           : "";
    if (delay_ms > 0) {
        fsm_emit_event(t, "recovering", "a new generation follows in %.1f s%s",
                       (double)delay_ms / 1000.0, then);
    } else {
        fsm_emit_event(t, "recovering", "a new generation follows%s", then);
    }
}

/* Weighs the failure: what it counts, and against whom. */
static void weigh_failure(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    if (m->uncounted) {
        fsm_emit_event(t, "node",
                       "node %s may be the cause: the next workers go elsewhere, if another node "
                       "could take them",
                       m->ranks[fault->rank].node);
    } else if (fsm_copies_failed(t, fault, fsm_fault_counts(fault))) {
        m->budget.failures = 0; /* the cause is out of the way */
    } else if (fault->kind != FSM_FAULT_PATH) {
        count_failure(m, fault);
    }
    if (fault->kind == FSM_FAULT_PINS) {
        char names[LIMIT_REASON];
        name_differing(m, names, sizeof(names));
        fsm_emit_event(t, "pins", "left out: %.480s", names);
    }
}

/* Leaves the node whose data differ, if there is room elsewhere. Else the data are looked at again
 * after the delay that this returns, for somebody is about to put them back. */
static int64_t leave_data(struct fsm_ctx *t, const struct fsm_fault *fault, int64_t delay)
{
    struct fsm *m = t->m;
    if (fault->rank < m->size)
        (void)exclusion_add(&m->exclusions, m->ranks[fault->rank].node, EXCLUSION_DATA, 0, t->wall);
    return delay < FSM_DATA_MS ? delay : FSM_DATA_MS;
}

static void explain_wait(struct fsm *m, const struct fsm_fault *fault)
{
    const char *kind = fsm_fault_name(fault->kind);
    const bool ends = m->config.budget > 0 && fsm_fault_is_own(fault);
    if (fsm_makes_no_progress(m) && !ends) {
        fsm_set_reason(m,
                       "%s: %.300s; %u generations in a row made no progress, and it is tried "
                       "again each %d min, without end (at once: cairn pause, cairn resume)",
                       kind, fault->message, m->budget.no_progress,
                       FSM_BACKOFF_NO_PROGRESS_MS / 60000);
    } else {
        fsm_set_reason(m, "%s: %.450s", kind, fault->message);
    }
}

void fsm_handle_fault(struct fsm_ctx *t, const struct fsm_fault *reported)
{
    struct fsm *m = t->m;
    if (fsm_ends(m) || fsm_has_waiting(m) || !fsm_alive(m))
        return;
    struct fsm_fault copy = *reported;
    const struct fsm_fault *fault = &copy;
    bool forming = m->state == FSM_FORMING;
    if (forming && copy.kind == FSM_FAULT_COMMUNICATION)
        copy.kind = FSM_FAULT_FORMATION;
    /* The job waits for a store that is away, or that only this node doesn't see, without end. */
    bool restoring = forming && copy.kind == FSM_FAULT_STORE && strcmp(copy.phase, "restore") == 0;
    /* If all ranks are on one machine, the network is not the cause. */
    const bool between =
        (copy.kind == FSM_FAULT_FORMATION && !copy.waits) || copy.kind == FSM_FAULT_COMMUNICATION;
    copy.outside = copy.outside || restoring || (between && fsm_spans(m));
    m->cause = *fault;
    m->dirty = true;
    emit_fault(t, fault);
    const int64_t detect = account_detection(m, t->now);
    if (fsm_final_committed(m)) { /* the work is done; nobody has anything to do */
        fsm_end_generation(t, FSM_SUCCEEDED, false);
        return;
    }
    fsm_recovery_fail(t, detect);
    begin_count(m, fault);
    const enum verdict verdict = judge_node(t, fault);
    m->uncounted = verdict == VERDICT_NODE;
    const bool of_job = verdict == VERDICT_OPEN || verdict == VERDICT_REPEATED;
    if (fault->kind == FSM_FAULT_USER && of_job) {
        struct reason where;
        exclusion_name(&m->exclusions, EXCLUSION_FAILED, &where);
        end_as_failed(t, fault, verdict == VERDICT_REPEATED ? where.text : "");
        return;
    }
    if (fsm_trains(m) && fault->kind != FSM_FAULT_NUMERIC)
        fsm_note_failure(t);
    enum fsm_state to = state_after(m);
    weigh_failure(t, fault);
    if (fault->kind == FSM_FAULT_NUMERIC && recompute_or_skip(t, fault))
        return;
    if (fault->kind == FSM_FAULT_WRONG && go_back(t, fault))
        return;
    char why[FSM_WORN_OUT_BYTES];
    const struct fsm_fault *worn_out_by = fsm_worn_out_by(m, fault, why);
    if (worn_out_by != NULL) {
        end_as_failed(t, worn_out_by, why);
        return;
    }
    if (fault->kind == FSM_FAULT_DAMAGE || (fault->kind == FSM_FAULT_STORE && forming))
        fsm_suspect_damage(t, fault);
    if (fault->kind == FSM_FAULT_STORE)
        m->probed = false; /* asked anew before the next formation */
    if (to == FSM_RECOVERING)
        m->restarts++;
    int64_t delay = m->uncounted || fault->kind == FSM_FAULT_PATH ? 0 : fsm_backoff_ms(m);
    if (fault->kind == FSM_FAULT_DATA)
        delay = leave_data(t, fault, delay);
    m->retry_at = t->now + delay;
    explain_wait(m, fault);
    if (to == FSM_RECOVERING)
        emit_recovering(t, delay);
    if (fsm_fault_of_paths(fault) && fsm_spans(m))
        fsm_act(t, FSM_ACT_SUSPECT);
    fsm_end_or_park(t, to, fault);
}

/* Gives back what the failure took of the budget, by which the job may have been given up: it
 * wasn't the job's. */
static void give_budget_back(struct fsm_ctx *t, const struct fsm_fault *was)
{
    struct fsm *m = t->m;
    const bool counted = fsm_fault_counts(was) && m->budget.used > 0 && m->budget.kind == was->kind;
    m->budget.used -= counted;
    m->budget.own -= fsm_fault_is_own(was) && m->budget.own > 0;
    if (m->ending.to != FSM_FAILED || m->budget.own >= fsm_own_max(m))
        return;
    m->ending.to = FSM_RECOVERING;
    m->restarts++;
    m->retry_at = t->now + fsm_backoff_ms(m);
}

/* Replaces the cause of the generation's end by another one than was seen first. */
static void mend_cause(struct fsm_ctx *t, const struct fsm_fault *cause)
{
    struct fsm *m = t->m;
    const struct fsm_fault was = m->cause;
    m->cause = *cause;
    if (m->first_cause.kind == was.kind && strcmp(m->first_cause.message, was.message) == 0)
        m->first_cause = m->cause;
    fsm_recovery_mend(m);
    m->dirty = true;
    emit_fault(t, &m->cause);
    give_budget_back(t, &was);
    fsm_set_reason(m, "%s: %.450s", fsm_fault_name(m->cause.kind), m->cause.message);
}

void fsm_node_was_lost(struct fsm_ctx *t, uint32_t rank)
{
    struct fsm *m = t->m;
    struct fsm_fault cause = m->cause;
    if (cause.kind == FSM_FAULT_NONE || fsm_fault_weight(&cause) >= 3)
        return;
    cause.kind = FSM_FAULT_NODE;
    cause.waits = false;
    cause.rank = rank;
    cause.outside = true;
    (void)snprintf(cause.message, sizeof(cause.message),
                   "node %s: " FSM_NODE_LOST "; seen first as %s: %.200s", m->ranks[rank].node,
                   fsm_fault_name(m->cause.kind), m->cause.message);
    mend_cause(t, &cause);
}

/* Explains a failure, seen as something else at first, by a broken path: it wasn't the job's. */
static void explain_by_path(struct fsm_ctx *t, const char *message)
{
    struct fsm *m = t->m;
    struct fsm_fault cause = m->cause;
    if (!fsm_fault_of_paths(&cause))
        return;
    cause.kind = FSM_FAULT_PATH;
    cause.rank = FSM_ALL_RANKS;
    cause.outside = true;
    (void)snprintf(cause.message, sizeof(cause.message), "%.380s; seen first as %s", message,
                   fsm_fault_name(m->cause.kind));
    m->budget.failures -= m->budget.failures > 0;
    if (!m->progressed && !m->committed)
        m->budget.no_progress -= m->budget.no_progress > 0;
    mend_cause(t, &cause);
    m->retry_at = t->now;
}

/* Ends a generation that stands still across the path; one that gets on is left alone. */
void fsm_on_path(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->ending.parks || fsm_has_waiting(m)) { /* kept workers would meet it again */
        fsm_end_generation(t, m->ending.parks ? m->ending.to : FSM_RECOVERING, false);
    } else if (m->state == FSM_PLACING) {
        fsm_unplace(t);
    }
    if (fsm_ends(m) || !fsm_alive(m)) {
        if (m->state == FSM_RECOVERING || m->ending.to == FSM_FAILED)
            explain_by_path(t, t->ev->path.message);
        return;
    }
    struct fsm_fault fault = {
        .kind = FSM_FAULT_PATH, .rank = FSM_ALL_RANKS, .step = fsm_step_now(m), .outside = true
    };
    if (t->now - m->progress_at < FSM_STANDSTILL_MS)
        return;
    fsm_text(fault.message, sizeof(fault.message), t->ev->path.message);
    fsm_handle_fault(t, &fault);
}

/* Called when no other node could take the job: as far as can be known, the job is at fault. */
void fsm_on_nowhere(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!fsm_wants_slots(m, t->now))
        return;
    const bool user = m->cause.kind == FSM_FAULT_USER && m->cause.of_node;
    const bool counted = !m->uncounted;
    struct reason where;
    if (user && exclusion_drop_kind(&m->exclusions, FSM_FAULT_STORE)) {
        m->dirty = true; /* where it ran, until the store failed, it has what it lacks here */
        fsm_act(t, FSM_ACT_SCHEDULE);
        return;
    }
    exclusion_name(&m->exclusions, EXCLUSION_FAILED, &where);
    const bool alone = exclusion_count(&m->exclusions, EXCLUSION_FAILED) < 2;
    exclusion_drop(&m->exclusions, EXCLUSION_FAILED);
    m->uncounted = false;
    m->dirty = true;
    fsm_act(t, FSM_ACT_SCHEDULE);
    if (!user && !counted)
        count_failure(m, &m->cause);
    char why[FSM_WORN_OUT_BYTES];
    if (user || (!counted && fsm_worn_out_by(m, &m->cause, why) != NULL)) {
        if (m->restarts > 0)
            m->restarts--; /* no generation followed */
        fsm_set_reason(m, "%.250s%s%s", m->cause.message, alone ? "" : "; it failed ",
                       alone ? "" : where.text);
        if (fsm_has_waiting(m)) {
            fsm_end_generation(t, FSM_FAILED, false);
        } else {
            fsm_enter_idle(t, FSM_FAILED);
        }
        return;
    }
    m->retry_at = t->now + fsm_backoff_ms(m);
}
