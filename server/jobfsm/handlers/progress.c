/*
 * The progress of workers: what they say of their progress, how long steps take, and how long the
 * same phase may take without any sign. Who is silent: server/jobfsm/handlers/liveness.c.
 */
#include "server/jobfsm/handlers/progress.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/jobfsm/handlers/divergence.h"
#include "server/jobfsm/handlers/last_step.h"
#include "server/jobfsm/handlers/load_balance.h"
#include "server/jobfsm/save.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

#define STEP_TIME_MS 500 /* a beat */
#define GAPS_FEW     3
#define STEP_RISE    4 /* a step counts as so many times as long as usual, at most */

/* Finds the times of the phase, perhaps new ones; NULL: there are too many phases. */
static struct fsm_phase_times *find_phase_times(struct fsm *m, const char *phase)
{
    for (int i = 0; i < FSM_PHASES_MAX; i++) {
        if (m->phase_times[i].count == 0)
            fsm_text(m->phase_times[i].phase, FSM_PHASE_BYTES, phase);
        if (strcmp(m->phase_times[i].phase, phase) == 0)
            return &m->phase_times[i];
    }
    return NULL;
}

static int compare_ms(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t fsm_hang_ms(const struct fsm *m, const char *phase)
{
    for (int i = 0; i < FSM_PHASES_MAX; i++) {
        const struct fsm_phase_times *phase_times = &m->phase_times[i];
        if (phase_times->count == 0 || strcmp(phase_times->phase, phase) != 0)
            continue;
        int64_t sorted[FSM_GAPS];
        CHECK(phase_times->count <= FSM_GAPS);
        size_t count = phase_times->count;
        memcpy(sorted, phase_times->gap_ms, count * sizeof(sorted[0]));
        qsort(sorted, count, sizeof(sorted[0]), compare_ms);
        int64_t limit = 10 * sorted[(count - 1) / 2];
        if (count < GAPS_FEW && limit > 2 * m->config.hang_ms)
            limit = 2 * m->config.hang_ms;
        return limit > m->config.hang_ms ? limit : m->config.hang_ms;
    }
    return m->config.hang_ms;
}

/* Notes a gap. All ranks stand still together: that is one observation, not one of each. */
static void note_gap(struct fsm *m, const char *phase, int64_t gap_ms, int64_t now)
{
    struct fsm_phase_times *phase_times = find_phase_times(m, phase);
    if (phase_times == NULL || (phase_times->count > 0 && now - gap_ms < phase_times->noted_at))
        return;
    phase_times->noted_at = now;
    CHECK(phase_times->next < FSM_GAPS);
    phase_times->gap_ms[phase_times->next] = gap_ms;
    phase_times->next = (phase_times->next + 1) % FSM_GAPS;
    if (phase_times->count < FSM_GAPS)
        phase_times->count++;
}

/* Returns the most that the first step time counts, as it may be a stall: what is waited for by it
 * is no longer than a hang. */
static double first_most(const struct fsm *m)
{
    return (double)m->config.hang_ms / FSM_PARK_STEPS;
}

/* Notes how long steps take, from times that are STEP_TIME_MS apart at least: two ranks that report
 * two steps a millisecond apart say nothing about it. */
static void note_step_time(struct fsm *m, int64_t now, uint64_t step)
{
    if (m->step_noted_at != 0 && now - m->step_noted_at < STEP_TIME_MS)
        return;
    if (m->step_noted_at != 0 && step > m->step_noted) {
        const double each = (double)(now - m->step_noted_at) / (double)(step - m->step_noted);
        const double most = m->usual_step_ms > 0 ? STEP_RISE * m->usual_step_ms : first_most(m);
        const double usual = each > most ? most : each;
        m->step_ms = m->step_ms > 0 ? 0.7 * m->step_ms + 0.3 * each : each;
        m->usual_step_ms = m->usual_step_ms > 0 ? 0.7 * m->usual_step_ms + 0.3 * usual : usual;
    }
    m->step_noted_at = now;
    m->step_noted = step;
}

/* Notes that a step was finite when it was computed again from the same bits: a machine was at
 * fault, not the numbers. */
static void note_finite(struct fsm_ctx *t, uint64_t step)
{
    struct fsm *m = t->m;
    const char *node = m->numeric.node;
    uint32_t there = 0;
    if (!m->numeric.seen || step <= m->numeric.step)
        return;
    m->numeric.seen = false;
    m->dirty = true;
    fsm_emit_event_of(t, m->numeric.step, "numeric", "step %llu is finite, computed again%s%s",
                      (unsigned long long)m->numeric.step, node[0] ? ": suspected is node " : "",
                      node);
    while (there < m->size && strcmp(m->ranks[there].node, node) != 0)
        there++;
    if (there < m->size)
        fsm_act(t, FSM_ACT_BLAME)->rank = there;
}

/* Called for the first rank that finished this step. */
static void note_step(struct fsm_ctx *t, uint64_t step)
{
    struct fsm *m = t->m;
    note_step_time(m, t->now, step);
    note_finite(t, step);
    m->step_at = t->now;
    fsm_note_reached(t, step);
    m->progressed = true;
    m->progress_at = t->now;
}

void fsm_note_progress(struct fsm_ctx *t, struct fsm_rank *rank)
{
    struct fsm *m = t->m;
    const struct fsm_progress *said = &t->ev->progress;
    if (said->saving != rank->saving || (said->at_store && !rank->at_store))
        rank->saving_at = t->now;
    rank->saving = said->saving;
    rank->at_store = said->at_store;
    if (said->counter != rank->counter || said->step > rank->step ||
        strncmp(rank->phase, said->phase, FSM_PHASE_BYTES - 1) != 0) {
        if (rank->counter_at != 0 && !fsm_ends(m)) /* what ended it is not usual */
            note_gap(m, rank->phase, t->now - rank->counter_at, t->now);
        rank->counter_at = t->now;
        m->progress_at = t->now;
    }
    rank->counter = said->counter;
    rank->place.collectives = said->collectives;
    rank->place.exchanges = said->exchanges;
    fsm_text(rank->place.name, sizeof(rank->place.name), said->collective);
    rank->place.in_pipe = strcmp(said->phase, HANG_IN_PIPE) == 0;
    fsm_text(rank->phase, sizeof(rank->phase), said->phase);
    if (said->step > rank->step) {
        rank->step = said->step;
        m->stepped_at = t->now;
        fsm_check_last(t, t->ev->rank);
    }
    if (rank->step > m->step_max && fsm_trains(m))
        note_step(t, rank->step);
    fsm_note_timed(t, rank);
    fsm_note_audited(t, said->audited);
    fsm_saves_beyond(t, t->ev->rank, said->step);
}
