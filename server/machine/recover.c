/*
 * Failures: which cause counts, and what is done about it (design 9).
 *
 *   user error                         FAILED at once, with the message
 *   numeric                            recomputed once; again at the same step: skip list,
 *                                      or FAILED
 *   pins                               the node is left out; the job waits for one that fits
 *   kill from outside, lost node,
 *   lost session, failed formation     back off 0, 1, 2, 4 .. 60 s
 *   crash, memory, hang, communication,
 *   damage, store                      as above, and three at one step or phase: FAILED
 *   store, while restoring             as above, without end
 *   any other, 10 generations in a row
 *   without progress                   FAILED with the first cause
 */
#include <stdio.h>
#include <string.h>

#include "server/machine/internal.h"

const char *jm_fault_name(enum jm_fault_kind kind)
{
    static const char *const names[] = {
        "",           "process gone", "out of memory",      "communication",    "hang",
        "node lost",  "session lost", "damaged checkpoint", "checkpoint store", "numeric",
        "user error", "pins",         "formation"
    };
    return names[kind];
}

/* How much a report says about the cause; a better one replaces a worse one within the window. */
static int weight(const struct jm_fault *fault)
{
    switch (fault->kind) {
    case FAULT_USER:
    case FAULT_PINS:
        return 5;
    case FAULT_NUMERIC:
    case FAULT_DAMAGE:
    case FAULT_STORE:
        return 4;
    case FAULT_MEMORY:
    case FAULT_PROCESS:
    case FAULT_NODE:
        return 3;
    case FAULT_HANG:
    case FAULT_SESSION:
        return 2;
    case FAULT_COMMUNICATION:
    case FAULT_FORMATION:
        return 1;
    case FAULT_NONE:
        break;
    }
    return 0;
}

void jm_fault_report(struct jm_step *s, const struct jm_fault *fault)
{
    struct job_machine *m = s->m;
    if (m->end_to != JOB_NONE)
        return;
    if (weight(fault) > weight(&m->candidate))
        m->candidate = *fault;
    if (weight(fault) >= 3) {
        struct jm_fault best = m->candidate;
        jm_fail(s, &best);
        return;
    }
    if (m->window_until == 0)
        m->window_until = s->now + JM_WINDOW_MS;
}

void jm_window(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (s->now < m->window_until)
        return;
    struct jm_fault best = m->candidate;
    jm_fail(s, &best);
}

/* ---- policy ---- */

int64_t jm_backoff_ms(const struct job_machine *m)
{
    if (m->streak <= 1)
        return 0;
    int64_t ms = 1000;
    for (uint32_t i = 2; i < m->streak && ms < JM_BACKOFF_MAX_MS; i++)
        ms *= 2;
    if (ms > JM_BACKOFF_MAX_MS)
        ms = JM_BACKOFF_MAX_MS;
    uint64_t hash = 1469598103934665603u; /* FNV-1a: jobs that failed together come back apart */
    for (const char *p = m->id; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    hash = (hash ^ m->generation) * 1099511628211u;
    return ms + (int64_t)((hash >> 20) % (uint64_t)(ms / 4 + 1));
}

static bool uses_budget(const struct jm_fault *fault)
{
    switch (fault->kind) {
    case FAULT_PROCESS:
    case FAULT_MEMORY:
    case FAULT_STORE:
        return !fault->outside;
    case FAULT_HANG:
    case FAULT_COMMUNICATION:
    case FAULT_DAMAGE:
        return true;
    case FAULT_NODE:
    case FAULT_SESSION:
    case FAULT_FORMATION:
    case FAULT_NUMERIC:
    case FAULT_USER:
    case FAULT_PINS:
    case FAULT_NONE:
        break;
    }
    return false;
}

static void count_failure(struct job_machine *m, const struct jm_fault *fault)
{
    if (m->progressed || m->committed) {
        m->streak = 0;
        m->barren = 0;
        m->budget_used = 0;
        m->first_cause = (struct jm_fault){ 0 };
    } else if (fault->kind != FAULT_STORE || !fault->outside) {
        m->barren++;
    }
    m->commitless = m->committed ? 0 : m->commitless + 1;
    m->streak++;
    if (m->first_cause.kind == FAULT_NONE)
        m->first_cause = *fault;
    if (!uses_budget(fault))
        return;
    bool same = m->budget_used > 0 && m->budget_kind == fault->kind &&
                (m->budget_step == fault->step || strcmp(m->budget_phase, fault->phase) == 0);
    m->budget_used = same ? m->budget_used + 1 : 1;
    m->budget_kind = fault->kind;
    m->budget_step = fault->step;
    jm_text(m->budget_phase, sizeof m->budget_phase, fault->phase);
}

static void give_up(struct jm_step *s, const struct jm_fault *cause, const char *why)
{
    if (why[0]) {
        jm_set_reason(s->m, "%s: %.400s (%s)", jm_fault_name(cause->kind), cause->message, why);
    } else {
        jm_set_reason(s->m, "%.500s", cause->message);
    }
    jm_end_generation(s, JOB_FAILED, false);
}

/* true: it repeats and nothing helps. */
static bool numeric(struct jm_step *s, const struct jm_fault *fault)
{
    struct job_machine *m = s->m;
    if (!m->numeric_seen || m->numeric_step != fault->step) {
        m->numeric_seen = true;
        m->numeric_step = fault->step;
        jm_event(s, "numeric", "step %llu is not finite; it is computed once more",
                 (unsigned long long)fault->step);
        return false;
    }
    m->numeric_seen = false;
    if (!m->config.skip_nan) {
        give_up(s, fault, "twice at the same step, and on_nan is not skip");
        return true;
    }
    if (m->skip_count >= JM_SKIPS_MAX) {
        give_up(s, fault, "too many steps were skipped already");
        return true;
    }
    m->skip[m->skip_count++] = fault->step;
    jm_event(s, "skip", "step %llu is not finite twice; it is left out",
             (unsigned long long)fault->step);
    return false;
}

static void exclude_node(struct jm_step *s, const struct jm_fault *fault)
{
    struct job_machine *m = s->m;
    if (fault->rank >= m->config.ranks || m->excluded_count >= JM_EXCLUDED_MAX)
        return;
    jm_text(m->excluded[m->excluded_count++], LIMIT_NAME, m->ranks[fault->rank].node);
}

static enum job_state target_of(enum jm_intent intent)
{
    switch (intent) {
    case INTENT_PAUSE:
        return JOB_PAUSED;
    case INTENT_STOP:
        return JOB_STOPPED;
    case INTENT_DRAIN:
        return JOB_QUEUED;
    case INTENT_FINISH:
    case INTENT_NONE:
        break;
    }
    return JOB_RECOVERING;
}

static void describe(struct jm_step *s, const struct jm_fault *fault)
{
    char who[32] = "";
    if (fault->rank < s->m->config.ranks)
        (void)snprintf(who, sizeof who, "rank %u: ", fault->rank);
    jm_event(s, "fault", "%s: %s%.400s", jm_fault_name(fault->kind), who, fault->message);
}

/* The generation is over; the cause decides what comes next. */
void jm_fail(struct jm_step *s, const struct jm_fault *reported)
{
    struct job_machine *m = s->m;
    if (m->end_to != JOB_NONE || !jm_alive(m))
        return;
    struct jm_fault copy = *reported;
    const struct jm_fault *fault = &copy;
    bool forming = m->state == JOB_FORMING;
    if (forming && copy.kind == FAULT_COMMUNICATION)
        copy.kind = FAULT_FORMATION;
    /* The store is waited for, however long it is away; so is a node that doesn't see it. */
    bool restoring = forming && copy.kind == FAULT_STORE && strcmp(copy.phase, "restore") == 0;
    copy.outside = copy.outside || restoring;
    m->cause = *fault;
    m->dirty = true;
    describe(s, fault);
    int64_t since = m->progress_at > m->started_at ? m->progress_at : m->started_at;
    int64_t detect = s->now - since;
    if (m->state != JOB_FORMING && detect > 0) {
        int64_t *from = jm_step_now(m) < m->replay_until ? &m->lost_ms[LOST_REPLAY] : &m->train_ms;
        int64_t moved = detect < *from ? detect : *from;
        *from -= moved;
        m->lost_ms[LOST_DETECT] += moved;
    }
    if (jm_final_committed(m)) { /* the work is done; who is left has nothing to do */
        jm_end_generation(s, JOB_SUCCEEDED, false);
        return;
    }
    if (fault->kind == FAULT_USER) {
        give_up(s, fault, "");
        return;
    }
    if ((m->state == JOB_RUNNING || m->state == JOB_SAVING) && fault->kind != FAULT_NUMERIC)
        jm_note_failure(s);
    enum job_state to = target_of(m->intent);
    if (jm_memory_failed(s, fault, uses_budget(fault))) {
        m->streak = 0; /* the cause is out of the way */
    } else {
        count_failure(m, fault);
    }
    if (fault->kind == FAULT_NUMERIC && numeric(s, fault))
        return;
    if (fault->kind == FAULT_PINS)
        exclude_node(s, fault);
    if (m->budget_used >= JM_BUDGET) {
        give_up(s, fault, "three times at the same place");
        return;
    }
    if (m->barren >= JM_BARREN_MAX) {
        give_up(s, &m->first_cause,
                "10 generations in a row made no progress; this was the first cause");
        return;
    }
    if (fault->kind == FAULT_DAMAGE || (fault->kind == FAULT_STORE && forming))
        jm_suspect_damage(s);
    if (fault->kind == FAULT_STORE)
        m->probed = false; /* asked anew before the next formation */
    if (to == JOB_RECOVERING)
        m->restarts++;
    int64_t delay = jm_backoff_ms(m);
    m->retry_at = s->now + delay;
    jm_set_reason(m, "%s: %.450s", jm_fault_name(fault->kind), fault->message);
    if (to == JOB_RECOVERING && delay > 0) {
        jm_event(s, "recovering", "a new generation follows in %.1f s", (double)delay / 1000.0);
    } else if (to == JOB_RECOVERING) {
        jm_event(s, "recovering", "a new generation follows");
    }
    jm_end_generation(s, to, false);
}
