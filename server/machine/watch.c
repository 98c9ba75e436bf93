/* Deadlines, the rules of silence, and where the seconds of a job went. */
#include <stdlib.h>
#include <string.h>

#include "server/machine/internal.h"

/* ---- accounts ---- */

void jm_note_stall(struct job_machine *m, int64_t us)
{
    m->stall_us += us;
    m->lost_ms[LOST_STALL] += m->stall_us / 1000;
    m->stall_us %= 1000;
}

void jm_account(struct job_machine *m, int64_t now)
{
    int64_t ms = now - m->accounted_at;
    m->accounted_at = now;
    if (ms <= 0)
        return;
    switch (m->state) {
    case JOB_QUEUED:
        m->lost_ms[LOST_WAIT] += ms;
        break;
    case JOB_PLACING:
        m->lost_ms[LOST_FORM] += ms;
        break;
    case JOB_FORMING:
        m->lost_ms[m->ranks[0].planned ? LOST_RESTORE : LOST_FORM] += ms;
        break;
    case JOB_RUNNING:
    case JOB_SAVING:
        if (jm_step_now(m) < m->replay_until) {
            m->lost_ms[LOST_REPLAY] += ms;
        } else {
            m->train_ms += ms;
        }
        break;
    case JOB_RECOVERING:
        m->lost_ms[m->end_to == JOB_NONE ? LOST_WAIT : LOST_FORM] += ms;
        break;
    case JOB_NONE:
    case JOB_PAUSED:
    case JOB_SUCCEEDED:
    case JOB_FAILED:
    case JOB_STOPPED:
    case JOB_KILLED:
        break;
    }
}

/* ---- pace ---- */

static struct jm_pace *find_pace(struct job_machine *m, const char *phase)
{
    for (int i = 0; i < JM_PHASES_MAX; i++) {
        if (m->pace[i].count == 0)
            jm_text(m->pace[i].phase, JM_PHASE, phase);
        if (strcmp(m->pace[i].phase, phase) == 0)
            return &m->pace[i];
    }
    return NULL;
}

static int compare_ms(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* No progress for so long is a hang: max(floor, 10 x median of the phase). */
static int64_t hang_ms(const struct job_machine *m, const char *phase)
{
    for (int i = 0; i < JM_PHASES_MAX; i++) {
        const struct jm_pace *pace = &m->pace[i];
        if (pace->count == 0 || strcmp(pace->phase, phase) != 0)
            continue;
        int64_t sorted[JM_GAPS];
        size_t count = pace->count;
        memcpy(sorted, pace->gap_ms, count * sizeof sorted[0]);
        qsort(sorted, count, sizeof sorted[0], compare_ms);
        int64_t limit = 10 * sorted[count / 2];
        return limit > m->config.hang_ms ? limit : m->config.hang_ms;
    }
    return m->config.hang_ms;
}

static void note_gap(struct job_machine *m, const char *phase, int64_t gap_ms)
{
    struct jm_pace *pace = find_pace(m, phase);
    if (!pace)
        return;
    pace->gap_ms[pace->next] = gap_ms;
    pace->next = (pace->next + 1) % JM_GAPS;
    if (pace->count < JM_GAPS)
        pace->count++;
}

static void note_step(struct jm_step *s, uint64_t step)
{
    struct job_machine *m = s->m;
    if (m->step_at != 0 && step > m->step_max && s->now > m->step_at) {
        double each = (double)(s->now - m->step_at) / (double)(step - m->step_max);
        m->step_ms = m->step_ms > 0 ? 0.7 * m->step_ms + 0.3 * each : each;
    }
    m->step_at = s->now;
    m->step_max = step;
    m->progressed = true;
    m->progress_at = s->now;
}

void jm_note_progress(struct jm_step *s, struct jm_rank *rank)
{
    struct job_machine *m = s->m;
    const struct job_event *ev = s->ev;
    if (ev->counter != rank->counter || ev->step > rank->step ||
        strncmp(rank->phase, ev->phase, JM_PHASE - 1) != 0) {
        if (rank->counter_at != 0)
            note_gap(m, rank->phase, s->now - rank->counter_at);
        rank->counter_at = s->now;
        m->progress_at = s->now;
    }
    rank->counter = ev->counter;
    jm_text(rank->phase, sizeof rank->phase, ev->phase);
    if (ev->step > rank->step)
        rank->step = ev->step;
    if (m->state == JOB_FORMING && m->end_to == JOB_NONE && rank->joined &&
        ev->step > m->restore_step)
        jm_running(s); /* its Ready was lost with the coordinator */
    if (rank->step > m->step_max && (m->state == JOB_RUNNING || m->state == JOB_SAVING))
        note_step(s, rank->step);
}

/* ---- silence ---- */

static void blame(struct jm_step *s, enum jm_fault_kind kind, uint32_t index, const char *what)
{
    const struct jm_rank *rank = &s->m->ranks[index];
    struct jm_fault fault = { .kind = kind, .rank = index, .step = rank->step };
    fault.outside = kind != FAULT_HANG;
    jm_text(fault.phase, sizeof fault.phase, rank->phase[0] ? rank->phase : "forming");
    jm_text(fault.message, sizeof fault.message, what);
    jm_fail(s, &fault);
}

/* One rank against the table of design 9; true: the generation is failed. */
static bool watch_rank(struct jm_step *s, uint32_t index)
{
    struct job_machine *m = s->m;
    struct jm_rank *rank = &m->ranks[index];
    int64_t silent = s->now - rank->heard_at;
    if (rank->gone)
        return false;
    if (rank->missing_at != 0 && s->now - rank->missing_at >= JM_MISSING_MS) {
        rank->gone = true;
        m->dirty = true;
        blame(s, FAULT_PROCESS, index, "its agent came back without it");
        return true;
    }
    if (rank->agent_silent && silent >= JM_SILENT_MS) {
        rank->gone = true; /* with its node; fenced, should it come back */
        m->dirty = true;
        blame(s, FAULT_NODE, index, "neither its agent nor the worker was heard for 5 s");
        return true;
    }
    if (!rank->joined) {
        if (m->state == JOB_FORMING && s->now - m->started_at >= JM_HELLO_MS) {
            blame(s, FAULT_FORMATION, index, "the worker did not say hello within 60 s");
            return true;
        }
        if (m->state == JOB_FORMING || silent < JM_SESSION_MS)
            return false;
        blame(s, FAULT_SESSION, index, "the worker did not come back to the coordinator");
        return true;
    }
    if (!rank->session && rank->lost_at != 0 && s->now - rank->lost_at >= JM_SESSION_MS) {
        blame(s, FAULT_SESSION, index, "its session was lost for 10 s while its process lived");
        return true;
    }
    int64_t limit = m->config.hang_ms < JM_SESSION_MS ? m->config.hang_ms : JM_SESSION_MS;
    if (rank->session && silent >= limit) {
        blame(s, FAULT_HANG, index, "the worker is silent while its process lives");
        return true;
    }
    return false;
}

/* The rank that stopped first holds the others up. */
static void watch_hang(struct jm_step *s)
{
    struct job_machine *m = s->m;
    uint32_t first = JM_ALL;
    if (jm_store_holds(m))
        m->held_at = s->now;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        const struct jm_rank *rank = &m->ranks[i];
        if (rank->gone || !rank->planned || rank->finished)
            continue;
        int64_t since = rank->counter_at > m->held_at ? rank->counter_at : m->held_at;
        if (s->now - since < hang_ms(m, rank->phase))
            return;
        if (first == JM_ALL || rank->counter_at < m->ranks[first].counter_at)
            first = i;
    }
    if (first != JM_ALL)
        blame(s, FAULT_HANG, first, "no progress of any worker");
}

/* Trainers that should be leaving. */
static void watch_ending(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (m->end_hard_at != 0) {
        if (s->now >= m->end_hard_at && !jm_all_gone(m)) {
            m->end_hard_at = 0;
            m->ended_at = s->now;
            m->end_again_at = s->now + JM_END_AGAIN_MS;
            jm_act(s, ACT_END);
        }
        return;
    }
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        struct jm_rank *rank = &m->ranks[i];
        bool never = !rank->started && s->now - m->ended_at >= JM_NEVER_MS;
        bool missing = rank->missing_at != 0 && s->now - rank->missing_at >= JM_MISSING_MS;
        bool lost = rank->agent_silent && s->now - rank->heard_at >= JM_SILENT_MS;
        if (!rank->gone && s->now >= m->grace_until && (never || missing || lost)) {
            rank->gone = true;
            m->dirty = true;
        }
    }
    if (!jm_all_gone(m) && s->now >= m->end_again_at) {
        m->end_again_at = s->now + JM_END_AGAIN_MS;
        jm_act(s, ACT_END);
    }
}

/* Waits for retry_at; a tick at or after it ends that, however late it comes. */
static bool backs_off(const struct job_machine *m)
{
    return m->retry_at != 0 && m->end_to == JOB_NONE &&
           (m->state == JOB_RECOVERING || m->state == JOB_QUEUED);
}

void jm_watch(struct jm_step *s)
{
    struct job_machine *m = s->m;
    if (backs_off(m) && s->now >= m->retry_at) {
        m->retry_at = 0;
        jm_act(s, ACT_SCHEDULE);
    }
    if (!jm_alive(m))
        return;
    if (m->end_to != JOB_NONE) {
        watch_ending(s);
        return;
    }
    if (m->window_until != 0) {
        jm_window(s);
        return;
    }
    if (jm_all_gone(m)) { /* all left by themselves; settle() looks at what they saved */
        jm_end_generation(s, JOB_RECOVERING, false);
        return;
    }
    if (s->now < m->grace_until)
        return;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        if (watch_rank(s, i))
            return;
    }
    watch_hang(s);
    if (m->end_to == JOB_NONE && m->state == JOB_RUNNING && m->config.time_limit_ms > 0 &&
        m->train_ms >= m->config.time_limit_ms && m->intent == INTENT_NONE) {
        m->intent = INTENT_FINISH;
        m->state = JOB_SAVING;
        jm_announce(s, true);
    }
}

void jm_excuse(struct job_machine *m, int64_t ms)
{
    if (!jm_alive(m))
        return;
    m->started_at += ms;
    m->ended_at += ms;
    for (uint32_t i = 0; i < m->config.ranks; i++) {
        struct jm_rank *rank = &m->ranks[i];
        rank->heard_at += ms;
        rank->counter_at += ms;
        if (rank->lost_at != 0)
            rank->lost_at += ms;
        if (rank->missing_at != 0)
            rank->missing_at += ms;
    }
}

int64_t jm_deadline(const struct job_machine *m)
{
    int64_t at = jm_saves_deadline(m);
    if (backs_off(m) && m->retry_at < at)
        at = m->retry_at;
    if (jm_alive(m) && m->window_until != 0 && m->window_until < at)
        at = m->window_until;
    /* Counted from the last look, not from now: other jobs' events must not put it off for ever. */
    int64_t watch = m->watched_at + JM_WATCH_MS;
    if ((jm_alive(m) || m->damage_suspected) && watch < at)
        at = watch;
    return at;
}
