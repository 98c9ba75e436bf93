/*
 * Division of a worker's checkpoint.memory: copy files for snapshots, and memory for encoding. Also
 * what a generation gives up where that is too little, and how large a worker's share of the state
 * may be.
 *
 * Pure functions, so that what `--plan` shows is what a worker does.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"

#define SESSION_FILES_MAX 5
/* More files where copies go to another node: for the last that is there, and the next on its
 * way. */
#define SESSION_PEER_FILES 2

struct session_demand {
    size_t share_bytes; /* of buffers, that a snapshot of this rank copies at most */
    size_t state_bytes; /* of buffers, of all ranks: how large the tables of a base are */
    uint32_t threads;   /* to encode */
    bool every;         /* copies in memory, between checkpoints */
    bool differs;       /* checkpoints are differences: their base is read */
    bool object;        /* the store is S3: parts on their way and blocks read ahead take memory */
    bool peers;         /* copies go to another node */
    uint32_t peer_copies;   /* ranks whose copies come from there: two files for each */
    size_t peer_copy_bytes; /* as share_bytes, of that rank of the job that has most */
    size_t bytes_max;       /* hard bound; 0: none */
};

struct session_budget {
    int files;           /* two, three with `every`; two more with `peers`; fewer: see below */
    int peer_copy_files; /* beside them, for what comes from other nodes */
    uint32_t threads;    /* at most those asked for; 0: the saver encodes */
    size_t file_bytes;   /* of one copy file of its own */
    size_t peer_copy_file_bytes; /* of one for a peer's copy, at most */
    size_t writer_bytes;         /* of all that encodes and writes */
    size_t bytes;                /* of all, at most */
    size_t least;                /* the bound below which nothing can be saved */
};

/* Returns the bytes that a worker's copy files take on its node. */
static inline uint64_t session_budget_copies(const struct session_budget *budget)
{
    return (uint64_t)budget->files * (uint64_t)budget->file_bytes +
           (uint64_t)budget->peer_copy_files * (uint64_t)budget->peer_copy_file_bytes;
}

/*
 * Divides the bound. If it doesn't hold all, encoder threads are given up first, then the second
 * file: a save that is due while the one before is written is then late. `every` needs two files,
 * for a copy must not be overwritten before the next one is complete. What is given up beyond that
 * is given up for a whole generation: see below.
 * Errors: ST_FULL  the bound is below out->least, which alone is set then
 */
MUST_CHECK enum status session_budget(const struct session_demand *demand,
                                      struct session_budget *out);

/*
 * Extras that all ranks of a generation give up alike, since the bound of one of them doesn't hold
 * them. A worker's need changes with every layout: with fewer workers their shares are larger, and
 * one of them may hold more peers' copies. So a bound that was enough for all workers may be too
 * small for those that are left. A job that trains doesn't end for that: it gives up the extras, in
 * this order, and last the bound. Only where a job begins, with all its workers, is a bound refused
 * that doesn't hold what was asked for (session_bound_check).
 *
 * demands: one of each rank, all with the same bound; with copies between checkpoints (every) where
 * the job asks for them, not where it leaves them to what there is room for. Each rank knows all of
 * them, so all find the same.
 */
enum session_lack {
    SESSION_LACK_NOTHING,
    SESSION_LACK_PEERS, /* copies at other nodes */
    SESSION_LACK_EVERY, /* and copies in memory, between checkpoints */
    SESSION_LACK_BOUND, /* and the bound: a rank takes the least that it needs to save */
};

enum session_lack session_lack_of(const struct session_demand *demands, uint32_t count);
/* Changes the demand to one that does without `lack`. */
void session_do_without(enum session_lack lack, struct session_demand *demand);
/* Returns the bound that suffices for the demands without `lack`, whatever their own bound is. */
size_t session_least(const struct session_demand *demands, uint32_t count, enum session_lack lack);
/* Writes a sentence about `lack` (not NOTHING), given up last. least: what the demands of the lack
 * before it need. */
void session_lack_describe(enum session_lack lack, size_t least, uint32_t workers,
                           struct reason *out);

/* Whether a job can begin. Copies at other nodes refuse nothing.
 * Errors: ST_CONFIG  the bound doesn't hold the rest: reason has the least that works */
MUST_CHECK enum status session_bound_check(const struct session_demand *demands, uint32_t count,
                                           struct reason *reason);

/* share_bytes: of the largest share of a state of state_bytes, all of it float32.
 * Errors: ST_CONFIG  it is above LIMIT_SHARE_BYTES: reason has the numbers and a way out */
MUST_CHECK enum status session_share_check(uint64_t share_bytes, uint64_t state_bytes,
                                           struct reason *reason);
