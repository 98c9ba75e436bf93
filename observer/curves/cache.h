/*
 * Jobs that somebody looks at and their rows, kept up to date while he does: the coordinator is
 * asked for what is new, CACHE_FRESH_MS apart at least, whoever looks and how many. Of jobs that
 * nobody looked at for long the rows go when room is needed.
 *
 * Thread: any. Who wants another job's rows isn't held up by one whose rows are being read.
 */
#pragma once

#include "common/buf.h"
#include "observer/coordinator/coordinator.h"

#define CACHE_JOBS_MAX 32 /* of 10 MB each at most */
#define CACHE_FRESH_MS 400

struct cache;

/* coordinator is borrowed. */
MUST_CHECK enum status cache_new(struct coordinator *coordinator, struct cache **out);
void cache_free(struct cache *cache);

/*
 * Writes all rows of a job, an id, in `points` points at most, as JSON (observer/curves/reduce.h).
 * Errors: as coordinator_call; ST_FULL: rows of too many jobs are being read
 */
MUST_CHECK enum status cache_curves(struct cache *cache, const char *job, size_t points,
                                    struct buf *out, struct rpc_result *result);

/* The job itself, an id, as one line of JSON. over: it has ended. Errors: as cache_curves */
MUST_CHECK enum status cache_job(struct cache *cache, const char *job, struct buf *out, bool *over,
                                 struct rpc_result *result);

/* How far somebody who follows a job has got with its rows. */
struct cache_place {
    uint64_t next_step;  /* the follower has rows of earlier steps */
    uint32_t generation; /* of the follower's last row; without one, of the job */
    uint32_t rewinds;    /* of the history, as the follower knows it */
    bool begun;          /* generation and rewinds are known */
    bool more;           /* the follower lacks further rows */
};

/* Appends the rows that the follower lacks, CACHE_NEW_ROWS at most, unreduced; appends nothing if
 * there are none. Errors: as cache_curves */
#define CACHE_NEW_ROWS 1000
MUST_CHECK enum status cache_new_rows(struct cache *cache, const char *job,
                                      struct cache_place *place, struct buf *out,
                                      struct rpc_result *result);
