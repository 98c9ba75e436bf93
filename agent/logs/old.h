/*
 * What workers left on this node (common/paths.h, DIR/jobs): the oldest generations go once there
 * is too much of it, also those of a job that goes on.
 *
 * A generation is as old as the newest of its files. One of which a worker runs here, under
 * whatever agent of this home, is left alone (it holds a lock of its log, which is in the folder of
 * the generation that it was born in), as is one that was written to within quiet_s: a job that is
 * paused, or runs elsewhere now, loses what it wrote here before, if others wrote enough since.
 *
 * Thread: any; one at a time in a home is enough.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"

#define OLD_LOGS_BYTES   (UINT64_C(1) << 30) /* of all jobs of a home */
#define OLD_LOGS_QUIET_S 3600
#define OLD_LOGS_MAX     65536 /* looked at in one pass; of more, the rest with the next */

struct old_logs {
    char folder[LIMIT_PATH]; /* DIR/jobs */
    uint64_t bytes_max;
    int64_t quiet_s;
    int64_t now_s;    /* Unix */
    atomic_bool stop; /* set by another thread: it ends soon */
    /* what came of it */
    uint32_t generations, removed; /* there were; went */
    uint64_t bytes, removed_bytes; /* bytes that the files take on disk */
};

/* Removes the oldest logs. Only files that an agent makes there are removed, and folders that are
 * empty then. Links to folders are not followed, but DIR/jobs may be one. Files that can't be read
 * or removed stay. */
void old_logs_trim(struct old_logs *logs);
