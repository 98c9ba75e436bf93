#include "server/jobfsm/handlers/last_step.h"

#include <stdio.h>

#include "server/jobfsm/catalog.h"
#include "server/jobfsm/failure_policy.h"
#include "server/jobfsm/state.h"

/* Blames a rank whose program does otherwise than that of another rank. */
static void refuse(struct fsm_ctx *t, uint32_t rank, const char *does, uint64_t step)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_USER, .rank = rank, .step = step };
    fsm_text(fault.phase, sizeof(fault.phase), t->m->ranks[rank].phase);
    (void)snprintf(fault.message, sizeof(fault.message),
                   "its program %s step %llu, and that of another rank ends with step %llu: all "
                   "ranks have to end with the same step",
                   does, (unsigned long long)step, (unsigned long long)t->m->last.step);
    fsm_report_fault(t, &fault);
}

static bool is_known(const struct fsm *m)
{
    return m->last.step > 0 && m->last.generation == m->generation;
}

void fsm_note_last(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_ready *ready = &t->ev->ready;
    if (!m->config.program || fsm_ends(m))
        return;
    if (is_known(m) && m->last.step != ready->last_step) {
        refuse(t, t->ev->rank, "ends with", ready->last_step);
        return;
    }
    if (is_known(m)) /* another rank, or the same one once more */
        return;
    m->last = (struct fsm_last){ .step = ready->last_step, .generation = m->generation };
    m->dirty = true;
    fsm_emit_event_of(
        t, ready->last_step, "last",
        "the program ends by itself with step %llu, before its last one, %llu: %.300s",
        (unsigned long long)ready->last_step, (unsigned long long)m->total_steps,
        ready->last_reason);
    for (uint32_t i = 0; i < m->size; i++)
        fsm_check_last(t, i);
}

void fsm_check_last(struct fsm_ctx *t, uint32_t rank)
{
    const struct fsm *m = t->m;
    const uint64_t step = m->ranks[rank].step;
    if (is_known(m) && step > m->last.step && !fsm_ends(m))
        refuse(t, rank, "goes on with", step);
}
