/*
 * The exchanges of the reduction, for a caller that wants to know whether a rank waits for the
 * others in one.
 *
 * Thread: the one that does the exchanges: of the reduction, the communication thread; of
 *         reducer_gather, the caller's. Never both at once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"

struct reducer_watch {
    /* Called where an exchange begins, and where it ended (on a device: was enqueued); NULL:
     * nobody. All ranks do the same ones in one order. */
    void (*exchange)(void *arg, bool inside);
    void *arg;
};

static inline void reducer_watch_notify(const struct reducer_watch *watch, bool inside)
{
    if (watch->exchange != NULL)
        watch->exchange(watch->arg, inside);
}

/* Calls of comm_table, watched. */

static inline enum status reducer_all_to_all_v(const struct reducer_watch *watch,
                                               const struct comm_table *table, struct comm *comm,
                                               const struct comm_segment *send,
                                               const struct comm_segment *recv, int64_t timeout_ms)
{
    reducer_watch_notify(watch, true);
    const enum status st = table->all_to_all_v(comm, send, recv, timeout_ms);
    reducer_watch_notify(watch, false);
    return st;
}

static inline enum status reducer_all_gather_v(const struct reducer_watch *watch,
                                               const struct comm_table *table, struct comm *comm,
                                               const struct comm_segment *parts, int64_t timeout_ms)
{
    reducer_watch_notify(watch, true);
    const enum status st = table->all_gather_v(comm, parts, timeout_ms);
    reducer_watch_notify(watch, false);
    return st;
}

static inline enum status reducer_all_reduce_f32(const struct reducer_watch *watch,
                                                 const struct comm_table *table, struct comm *comm,
                                                 float *data, size_t count, int64_t timeout_ms)
{
    reducer_watch_notify(watch, true);
    const enum status st = table->all_reduce_f32(comm, data, count, timeout_ms);
    reducer_watch_notify(watch, false);
    return st;
}
