/* The kinds of failures and their meaning, and how long is waited after them. */
#include "server/jobfsm/failure_kinds.h"

#include <stdio.h>

#include "common/backoff.h"

const char *fsm_fault_name(enum fsm_fault_kind kind)
{
    switch (kind) {
    case FSM_FAULT_PROCESS:
        return "process gone";
    case FSM_FAULT_MEMORY:
        return "out of memory";
    case FSM_FAULT_COMMUNICATION:
        return "communication";
    case FSM_FAULT_HANG:
        return "hang";
    case FSM_FAULT_NODE:
        return "node lost";
    case FSM_FAULT_SESSION:
        return "session lost";
    case FSM_FAULT_DAMAGE:
        return "damaged checkpoint";
    case FSM_FAULT_STORE:
        return "checkpoint store";
    case FSM_FAULT_NUMERIC:
        return "numeric";
    case FSM_FAULT_USER:
        return "user error";
    case FSM_FAULT_PINS:
        return "pins";
    case FSM_FAULT_FORMATION:
        return "formation";
    case FSM_FAULT_DATA:
        return "data";
    case FSM_FAULT_PATH:
        return "path";
    case FSM_FAULT_WRONG:
        return "computed wrongly";
    case FSM_FAULT_NONE:
        break;
    }
    return "";
}

int fsm_fault_weight(const struct fsm_fault *fault)
{
    if (fault->waits)
        return 5;
    switch (fault->kind) {
    case FSM_FAULT_USER:
    case FSM_FAULT_PINS:
    case FSM_FAULT_DATA:
    case FSM_FAULT_WRONG:
        return 5;
    case FSM_FAULT_NUMERIC:
    case FSM_FAULT_DAMAGE:
    case FSM_FAULT_STORE:
        return 4;
    case FSM_FAULT_MEMORY:
    case FSM_FAULT_PROCESS:
    case FSM_FAULT_NODE:
    case FSM_FAULT_PATH:
        return 3;
    case FSM_FAULT_HANG:
    case FSM_FAULT_SESSION:
        return 2;
    case FSM_FAULT_COMMUNICATION:
    case FSM_FAULT_FORMATION:
        return 1;
    case FSM_FAULT_NONE:
        break;
    }
    return 0;
}

bool fsm_fault_counts(const struct fsm_fault *fault)
{
    switch (fault->kind) {
    case FSM_FAULT_PROCESS:
    case FSM_FAULT_MEMORY:
    case FSM_FAULT_STORE:
    case FSM_FAULT_HANG:
    case FSM_FAULT_COMMUNICATION:
        return !fault->outside;
    case FSM_FAULT_DAMAGE:
        return true;
    case FSM_FAULT_NODE:
    case FSM_FAULT_SESSION:
    case FSM_FAULT_FORMATION:
    case FSM_FAULT_NUMERIC:
    case FSM_FAULT_USER:
    case FSM_FAULT_PINS:
    case FSM_FAULT_DATA:
    case FSM_FAULT_PATH:
    case FSM_FAULT_WRONG:
    case FSM_FAULT_NONE:
        break;
    }
    return false;
}

bool fsm_fault_is_own(const struct fsm_fault *fault)
{
    switch (fault->kind) {
    case FSM_FAULT_NODE:
    case FSM_FAULT_SESSION:
    case FSM_FAULT_PATH:
    case FSM_FAULT_PINS:
    case FSM_FAULT_DATA:
    case FSM_FAULT_NONE:
        return false;
    case FSM_FAULT_PROCESS:
    case FSM_FAULT_MEMORY:
    case FSM_FAULT_COMMUNICATION:
    case FSM_FAULT_HANG:
    case FSM_FAULT_DAMAGE:
    case FSM_FAULT_STORE:
    case FSM_FAULT_NUMERIC:
    case FSM_FAULT_USER:
    case FSM_FAULT_FORMATION:
    case FSM_FAULT_WRONG:
        break;
    }
    return !fault->outside && !fault->waits;
}

bool fsm_fault_of_paths(const struct fsm_fault *fault)
{
    return fault->kind == FSM_FAULT_HANG || fault->kind == FSM_FAULT_COMMUNICATION ||
           (fault->kind == FSM_FAULT_FORMATION && !fault->waits);
}

bool fsm_fault_outlived(const struct fsm_fault *fault)
{
    switch (fault->kind) {
    case FSM_FAULT_PROCESS:
    case FSM_FAULT_MEMORY:
    case FSM_FAULT_COMMUNICATION:
    case FSM_FAULT_HANG:
    case FSM_FAULT_NODE:
    case FSM_FAULT_SESSION:
        return true;
    case FSM_FAULT_FORMATION:
        return !fault->waits;
    case FSM_FAULT_NONE:
    case FSM_FAULT_DAMAGE:
    case FSM_FAULT_STORE:
    case FSM_FAULT_NUMERIC:
    case FSM_FAULT_USER:
    case FSM_FAULT_PINS:
    case FSM_FAULT_DATA:
    case FSM_FAULT_PATH:
    case FSM_FAULT_WRONG:
        break;
    }
    return false;
}

bool fsm_fault_lacks(const struct fsm *m, const struct fsm_fault *fault)
{
    return fault->kind == FSM_FAULT_USER && fault->of_node && fault->rank < m->size;
}

/* True if the fault says that states differ, not lanes; false: one can't be told from the other. */
static bool is_of_states(const struct fsm *m, const struct fsm_fault *fault)
{
    const uint64_t within = m->config.states_audited;
    return within > 0 && within != m->config.lanes_audited &&
           fault->good_step + within == fault->step;
}

uint64_t fsm_fault_good_step(const struct fsm *m, const struct fsm_fault *fault)
{
    const uint64_t sure = m->audit.sure;
    return is_of_states(m, fault) && fault->good_step > sure ? fault->good_step : sure;
}

/* ---- how often ---- */

/* True if the job, whose steps would be seen, never made one. */
static bool has_no_step(const struct fsm *m)
{
    return m->config.budget_first > 0 && m->step_max == 0 && m->catalog_count == 0;
}

uint32_t fsm_own_max(const struct fsm *m)
{
    if (has_no_step(m))
        return m->config.budget_first;
    return m->config.budget > 0 ? m->config.budget : FSM_NO_PROGRESS_MAX;
}

const struct fsm_fault *fsm_worn_out_by(const struct fsm *m, const struct fsm_fault *fault,
                                        char out_why[FSM_WORN_OUT_BYTES])
{
    const uint32_t most = m->config.budget;
    if (most == 0 && m->budget.used >= FSM_BUDGET) {
        (void)snprintf(out_why, FSM_WORN_OUT_BYTES, "three times at the same place");
        return fault;
    }
    if (m->budget.own < fsm_own_max(m))
        return NULL;
    if (most == 0) {
        (void)snprintf(out_why, FSM_WORN_OUT_BYTES,
                       "%d generations made no progress and failed by themselves; this was the "
                       "first cause",
                       FSM_NO_PROGRESS_MAX);
    } else if (has_no_step(m)) {
        (void)snprintf(out_why, FSM_WORN_OUT_BYTES,
                       "%u failures in a row before the first step; this was the first cause",
                       m->budget.own);
    } else {
        (void)snprintf(out_why, FSM_WORN_OUT_BYTES,
                       "%u failure%s in a row without progress, and the budget is %u; this was "
                       "the first cause",
                       m->budget.own, m->budget.own == 1 ? "" : "s", most);
    }
    return &m->first_cause;
}

/* ---- waits ---- */

bool fsm_makes_no_progress(const struct fsm *m)
{
    return m->budget.no_progress > FSM_NO_PROGRESS_MAX;
}

/* Adds up to a quarter, by job and generation, so that jobs that failed together come back
 * apart. */
int64_t fsm_backoff_ms(const struct fsm *m)
{
    if (m->budget.failures <= 1)
        return 0;
    const int64_t most = fsm_makes_no_progress(m) ? FSM_BACKOFF_NO_PROGRESS_MS : FSM_BACKOFF_MAX_MS;
    const int64_t ms = backoff_ms(1000, 2, m->budget.failures - 1, most);
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (const char *p = m->id; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    hash = (hash ^ m->generation) * 1099511628211u;
    return ms + (int64_t)((hash >> 20) % (uint64_t)(ms / 4 + 1));
}
