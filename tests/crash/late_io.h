/*
 * A caller that is cut off in one of its calls, and that call, which is carried out late: when
 * somebody else has long begun to do the same.
 *
 * Two tables over a third: through `slow` the caller that is cut off works, through `next` the one
 * in its place. The nth call of slow on a path is kept, not made; it and all after it are
 * ST_CLOSED. (rmdir, which only undoes, is not counted.) Just before the mth call of next on a path
 * what was kept is made.
 *
 * Thread: one.
 */
#pragma once

#include "common/io.h"
#include "common/limits.h"

enum late_call { LATE_NONE, LATE_OPEN, LATE_FSYNC_DIR, LATE_MKDIR, LATE_LINK, LATE_UNLINK };

struct late_io {
    struct io slow, next; /* their `call` is NULL at first */
    const struct io *real;
    uint64_t slow_left; /* calls until the one that is kept */
    uint64_t next_left; /* calls until it is made */
    bool made;          /* as next came so far */
    bool cut;           /* slow came so far */
    enum late_call kept;
    char path[LIMIT_PATH], to[LIMIT_PATH];
};

/* late must not move afterwards. Counted from 1. */
void late_io_init(struct late_io *late, const struct io *real, uint64_t slow_nth,
                  uint64_t next_mth);
