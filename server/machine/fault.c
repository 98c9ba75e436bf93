/* The kinds of failures and their meaning, and how long is waited after them. */
#include "server/machine/internal.h"

const char *machine_fault_name(enum machine_fault_kind kind)
{
    static const char *const names[] = {
        [MACHINE_FAULT_NONE] = "",
        [MACHINE_FAULT_PROCESS] = "process gone",
        [MACHINE_FAULT_MEMORY] = "out of memory",
        [MACHINE_FAULT_COMMUNICATION] = "communication",
        [MACHINE_FAULT_HANG] = "hang",
        [MACHINE_FAULT_NODE] = "node lost",
        [MACHINE_FAULT_SESSION] = "session lost",
        [MACHINE_FAULT_DAMAGE] = "damaged checkpoint",
        [MACHINE_FAULT_STORE] = "checkpoint store",
        [MACHINE_FAULT_NUMERIC] = "numeric",
        [MACHINE_FAULT_USER] = "user error",
        [MACHINE_FAULT_PINS] = "pins",
        [MACHINE_FAULT_FORMATION] = "formation",
        [MACHINE_FAULT_DATA] = "data",
        [MACHINE_FAULT_PATH] = "path",
        [MACHINE_FAULT_WRONG] = "computed wrongly",
    };
    return names[kind];
}

int machine_fault_weight(const struct machine_fault *fault)
{
    if (fault->waits)
        return 5;
    switch (fault->kind) {
    case MACHINE_FAULT_USER:
    case MACHINE_FAULT_PINS:
    case MACHINE_FAULT_DATA:
    case MACHINE_FAULT_WRONG:
        return 5;
    case MACHINE_FAULT_NUMERIC:
    case MACHINE_FAULT_DAMAGE:
    case MACHINE_FAULT_STORE:
        return 4;
    case MACHINE_FAULT_MEMORY:
    case MACHINE_FAULT_PROCESS:
    case MACHINE_FAULT_NODE:
    case MACHINE_FAULT_PATH:
        return 3;
    case MACHINE_FAULT_HANG:
    case MACHINE_FAULT_SESSION:
        return 2;
    case MACHINE_FAULT_COMMUNICATION:
    case MACHINE_FAULT_FORMATION:
        return 1;
    case MACHINE_FAULT_NONE:
        break;
    }
    return 0;
}

bool machine_fault_counts(const struct machine_fault *fault)
{
    switch (fault->kind) {
    case MACHINE_FAULT_PROCESS:
    case MACHINE_FAULT_MEMORY:
    case MACHINE_FAULT_STORE:
    case MACHINE_FAULT_HANG:
    case MACHINE_FAULT_COMMUNICATION:
        return !fault->outside;
    case MACHINE_FAULT_DAMAGE:
        return true;
    case MACHINE_FAULT_NODE:
    case MACHINE_FAULT_SESSION:
    case MACHINE_FAULT_FORMATION:
    case MACHINE_FAULT_NUMERIC:
    case MACHINE_FAULT_USER:
    case MACHINE_FAULT_PINS:
    case MACHINE_FAULT_DATA:
    case MACHINE_FAULT_PATH:
    case MACHINE_FAULT_WRONG:
    case MACHINE_FAULT_NONE:
        break;
    }
    return false;
}

bool machine_fault_is_own(const struct machine_fault *fault)
{
    switch (fault->kind) {
    case MACHINE_FAULT_NODE:
    case MACHINE_FAULT_SESSION:
    case MACHINE_FAULT_PATH:
    case MACHINE_FAULT_PINS:
    case MACHINE_FAULT_DATA:
    case MACHINE_FAULT_NONE:
        return false;
    case MACHINE_FAULT_PROCESS:
    case MACHINE_FAULT_MEMORY:
    case MACHINE_FAULT_COMMUNICATION:
    case MACHINE_FAULT_HANG:
    case MACHINE_FAULT_DAMAGE:
    case MACHINE_FAULT_STORE:
    case MACHINE_FAULT_NUMERIC:
    case MACHINE_FAULT_USER:
    case MACHINE_FAULT_FORMATION:
    case MACHINE_FAULT_WRONG:
        break;
    }
    return !fault->outside && !fault->waits;
}

bool machine_fault_of_paths(const struct machine_fault *fault)
{
    return fault->kind == MACHINE_FAULT_HANG || fault->kind == MACHINE_FAULT_COMMUNICATION ||
           (fault->kind == MACHINE_FAULT_FORMATION && !fault->waits);
}

bool machine_fault_outlived(const struct machine_fault *fault)
{
    switch (fault->kind) {
    case MACHINE_FAULT_PROCESS:
    case MACHINE_FAULT_MEMORY:
    case MACHINE_FAULT_COMMUNICATION:
    case MACHINE_FAULT_HANG:
    case MACHINE_FAULT_NODE:
    case MACHINE_FAULT_SESSION:
        return true;
    case MACHINE_FAULT_FORMATION:
        return !fault->waits;
    case MACHINE_FAULT_NONE:
    case MACHINE_FAULT_DAMAGE:
    case MACHINE_FAULT_STORE:
    case MACHINE_FAULT_NUMERIC:
    case MACHINE_FAULT_USER:
    case MACHINE_FAULT_PINS:
    case MACHINE_FAULT_DATA:
    case MACHINE_FAULT_PATH:
    case MACHINE_FAULT_WRONG:
        break;
    }
    return false;
}

/* True if the fault says that states differ, not lanes; false: one can't be told from the other. */
static bool is_of_states(const struct machine *m, const struct machine_fault *fault)
{
    const uint64_t within = m->config.states_audited;
    return within > 0 && within != m->config.lanes_audited &&
           fault->good_step + within == fault->step;
}

uint64_t machine_fault_good_step(const struct machine *m, const struct machine_fault *fault)
{
    const uint64_t sure = m->audit.sure;
    return is_of_states(m, fault) && fault->good_step > sure ? fault->good_step : sure;
}

/* ---- waits ---- */

bool machine_is_barren(const struct machine *m)
{
    return m->budget.barren > MACHINE_BARREN_MAX;
}

/* Adds up to a quarter, by job and generation, so that jobs that failed together come back
 * apart. */
int64_t machine_backoff_ms(const struct machine *m)
{
    if (m->budget.streak <= 1)
        return 0;
    const int64_t most = machine_is_barren(m) ? MACHINE_BACKOFF_BARREN_MS : MACHINE_BACKOFF_MAX_MS;
    int64_t ms = 1000;
    for (uint32_t i = 2; i < m->budget.streak && ms < most; i++)
        ms *= 2;
    if (ms > most)
        ms = most;
    uint64_t hash = 1469598103934665603u; /* FNV-1a */
    for (const char *p = m->id; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    hash = (hash ^ m->generation) * 1099511628211u;
    return ms + (int64_t)((hash >> 20) % (uint64_t)(ms / 4 + 1));
}
