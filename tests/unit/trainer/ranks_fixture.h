/*
 * A job's ranks as threads of one process: real data, models, reduction over Gloo and step loop;
 * only the coordinator is missing. A run may start from a checkpoint and leave one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "session/session.h"
#include "trainer/loop/loop.h"
#include "trainer/worker/worker.h"

#define RANKS_MAX  12
#define RANKS_ROWS 64

#define RANKS_SETS 16

struct ranks_job {
    const char *yaml;
    const char *sets[RANKS_SETS + 1]; /* over it; NULL-terminated */
};

struct ranks_options {
    const struct ranks_job *job;
    const char *const *sets; /* over the job and its own; NULL-terminated; may be NULL */
    uint32_t size;
    uint32_t shares[RANKS_MAX];
    struct stage_plan stages; /* of a pipeline; count 0: none */
    uint64_t stop_at;         /* finished steps; 0: the job's end */
    uint64_t over_at;         /* the generation is over after that row; 0: never */
    const char *restore;      /* a checkpoint's folder; NULL: from the seed */
    uint64_t restore_step;
    bool parts;           /* restoring, each rank reads a part and gets the others' */
    const struct io *io;  /* what they read through; NULL: the machine's */
    const char *save;     /* a folder to leave a checkpoint in; NULL: none */
    const uint64_t *skip; /* steps to leave out */
    size_t skip_count;
    double loss_scale;                 /* what dynamic scaling starts with; 0: as it does */
    const struct backend_table *table; /* both or none: a device of the test's own */
    const struct comm_table *comm;
    /* Called by every rank after each row; may be NULL. */
    void (*row)(void *arg, uint32_t rank, const struct session_row *row);
    void *row_arg;
};

struct ranks_result {
    enum status st; /* of the first rank that failed */
    struct reason reason;
    char digest[33]; /* the same on all ranks, or the run fails; where ranks own parts of the state,
                      * that of what was saved, or "" */
    uint64_t sent_bytes; /* rank 0's */
    uint64_t step;
    struct session_row rows[RANKS_ROWS]; /* of rank 0 */
    size_t row_count;
    enum loop_end end;         /* of rank 0 */
    int64_t lanes_us;          /* of rank 0's newest step */
    uint32_t chunks;           /* of rank 0's stage; 0: it has none */
    enum status evaluation_st; /* over_at, and it evaluates: of one more evaluation of rank 0 */
};

/* Progress of the rank whose thread calls. */
const struct progress *ranks_progress(void);

void ranks_run(const struct ranks_options *options, struct ranks_result *out);
/* Like ranks_run; free() the result. _well: fails the test unless the run ends with ST_OK. */
struct ranks_result *ranks_new(const struct ranks_options *options);
struct ranks_result *ranks_new_well(const struct ranks_options *options);

/* Set-up and tear-down of a test with a folder of its own: *state is its path. */
int ranks_make_folder(void **state);
int ranks_remove_folder(void **state);
