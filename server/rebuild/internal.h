/*
 * The declarations that the files of this folder share. Jobs are found (find.c), read one by one
 * (read.c), and written (make.c).
 */
#pragma once

#include "common/buf.h"
#include "server/jobfsm/jobfsm.h"
#include "server/journal/journal.h"
#include "server/rebuild/rebuild.h"

#define REBUILD_FOUND_MAX 65536 /* folders with a job's name, in all stores together */
#define REBUILD_OTHER_MAX 8     /* other names that are told */

/* ---- find.c ---- */

/* A folder with a job's name. */
struct rebuild_found {
    char id[16];
    int64_t seq; /* of its submission: what the id is made of */
    const char *store;
};

struct rebuild_list {
    char (*stores)[LIMIT_PATH]; /* as they are used: real paths, none twice; owned */
    size_t store_count;
    struct rebuild_found *list; /* by seq, the newest first; owned */
    size_t count, capacity;
    struct buf other; /* lines about other names */
};

/* Errors: as rebuild_run. */
MUST_CHECK enum status rebuild_find(const struct rebuild_options *options, struct rebuild_list *out,
                                    struct reason *reason);
void rebuild_list_release(struct rebuild_list *list);

/* ---- read.c ---- */

/* A job as its folder has it. */
struct rebuild_job {
    const struct rebuild_found *found;
    struct reason left; /* why it can't be made anew; "": it can, and the rest is known */
    char name[LIMIT_NAME];
    char *job_file, *pins;         /* owned */
    struct fsm m;                  /* with its catalog; of one rank: others differ in nothing */
    uint32_t passed;               /* checkpoints that are not used */
    struct reason passed_why;      /* of one of them */
    char store_before[LIMIT_PATH]; /* what its file said, if it was another; else "" */
};

/* wall_ms: now. Errors: it can't be read now, and reason says why. */
MUST_CHECK enum status rebuild_read(const struct io *io, const struct rebuild_found *found,
                                    int64_t wall_ms, struct rebuild_job *out,
                                    struct reason *reason);
void rebuild_job_release(struct rebuild_job *job);
