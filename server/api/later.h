/*
 * Answers that need the journal. Each is begun in the call's handler, with what the core knows, and
 * ended once the group is committed, by a thread that reads the journal beside the core. So neither
 * what a job went through nor one that has ended and isn't in memory costs the core's thread
 * anything.
 *
 * LATER_MAX of them wait at most; what is beyond that is ended by the core's thread itself. An
 * answer may tell of more than was known when it was begun, never of less.
 *
 * Thread: the core's, unless a function says otherwise.
 */
#pragma once

#include "rpc/server.h"
#include "server/api/rows.h"
#include "server/coord/coord.h"

#define LATER_MAX 64 /* a job's message may have a megabyte */

struct later;

/* A call and the job that it asks about, as coord_seek found it. */
struct later_of {
    struct rpc_call *call;
    struct coord *coord;
    struct coord_job *job; /* NULL: it isn't in memory */
    const char *id;
};

/* Begin an answer. NULL: no memory; the call is still to be answered. */
struct later *later_job(const struct later_of *of);
struct later *later_explain(const struct later_of *of);
struct later *later_rows(const struct later_of *of, uint64_t from_step); /* a page of them */
/* Begins an answer with a page of checkpoints; token: as of render_ckpts, copied. */
struct later *later_ckpts(const struct later_of *of, size_t size, const char *token);

/* The things with which a thread ends answers. */
struct later_reader {
    struct coord *coord; /* the thread's own (coord_reader_new), with its own journal */
    /* The job whose rows were read last, of jobs that aren't in memory: nothing of it changes any
     * more. */
    char id[16];
    uint32_t generation;
    uint64_t base_step;
    struct rows_page rows;
};
void later_reader_release(struct later_reader *reader); /* all but the core */
/* Called while nothing waits: reads the next page of rows of a job that isn't in memory, as its
 * reader will ask for it. */
void later_read_ahead(struct later_reader *reader);
/*
 * Answers the call, and frees `later`, whatever comes back. Any thread.
 * Errors: those of the journal, ST_NO_MEMORY; the caller was told
 */
enum status later_end(struct later *later, struct later_reader *reader);
/* Like later_end, if there is no journal to read: the call fails. */
void later_fail(struct later *later, enum status why);

/* The thread that ends answers, and its queue. */
struct later_queue;
/* Starts the thread for a core with such options, of which clock, log and the journal's path are
 * used, and copied. Errors: ST_NO_MEMORY; those of pthread_create */
MUST_CHECK enum status later_queue_new(const struct coord_options *options,
                                       struct later_queue **out);
/* Takes `later` over; false: LATER_MAX wait already, and it is still the caller's. */
bool later_queue_put(struct later_queue *queue, struct later *later);
/* Ends the thread once all that wait are answered. NULL is fine. */
void later_queue_free(struct later_queue *queue);
