/*
 * What workers of jobs left on this node (common/paths.h, DIR/jobs): the oldest goes once there is
 * too much of it.
 *
 * A job is as old as the newest of its files. One of which a worker runs here, under whatever
 * agent of this home, is left alone (it holds a lock of its log), as is one that was written to
 * within quiet_s: one that is paused, or runs elsewhere now, loses what it wrote here before, if
 * others wrote enough since.
 *
 * Thread: any; one at a time in a home is enough.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"

#define OLD_LOGS_BYTES   (UINT64_C(1) << 30) /* of all jobs of a home */
#define OLD_LOGS_QUIET_S 86400
#define OLD_LOGS_JOBS    65536 /* looked at in one pass; of more, the rest with the next */

struct old_logs {
    char folder[LIMIT_PATH]; /* DIR/jobs */
    uint64_t bytes_max;
    int64_t quiet_s;
    int64_t now_s;    /* Unix */
    atomic_bool stop; /* set by another thread: it ends soon */
    /* what came of it */
    uint32_t jobs, removed;        /* there were; went */
    uint64_t bytes, removed_bytes; /* as much as they take */
};

/* Only files that an agent makes there are removed, and folders that are empty then. Links to
 * folders are not followed, but that DIR/jobs may be one. What can't be read or removed stays. */
void old_logs_trim(struct old_logs *logs);
