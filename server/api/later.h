/*
 * Answers that need the journal: begun in the call's handler, with what the core knows, and ended
 * once the group is committed, by a thread that reads the journal beside the core. So neither what
 * a job went through nor one that has ended and isn't in memory costs the core's thread anything.
 *
 * LATER_MAX of them wait at most; what is beyond that is ended by the core's thread itself. An
 * answer may tell of more than was known when it was begun, never of less.
 *
 * Thread: the core's, unless a function says otherwise.
 */
#pragma once

#include "rpc/server.h"
#include "server/api/rows.h"
#include "server/core/core.h"

#define LATER_MAX 64 /* a job's message may have a megabyte */

struct later;

/* What a call asks for, of which job: as core_seek found it. */
struct later_of {
    struct rpc_call *call;
    struct core *core;
    struct core_job *job; /* NULL: it isn't in memory */
    const char *id;
};

/* NULL: no memory; the call is still to be answered. */
struct later *later_job(const struct later_of *of);
struct later *later_explain(const struct later_of *of);
struct later *later_rows(const struct later_of *of, uint64_t from_step); /* a page of them */
/* A page; token: as of render_ckpts, copied. */
struct later *later_ckpts(const struct later_of *of, size_t size, const char *token);

/* What a thread ends answers with. */
struct later_reader {
    struct core *core; /* its own (core_reader_new), with its own journal */
    /* Whose rows were read last, of those that aren't in memory: nothing of it changes any more. */
    char id[16];
    uint32_t generation;
    uint64_t base_step;
    struct rows_page rows;
};
void later_reader_release(struct later_reader *reader); /* but for the core */
/* While nothing waits: who reads rows of a job that isn't in memory goes on to the next page. */
void later_read_ahead(struct later_reader *reader);
/*
 * Answers the call, and frees `later`, whatever comes back. Any thread.
 * Errors: those of the journal, ST_NO_MEMORY; the caller was told
 */
enum status later_end(struct later *later, struct later_reader *reader);
/* The same, where there is no journal to read. */
void later_fail(struct later *later, enum status why);

/* The thread. */
struct later_queue;
/* Of a core with such options, of which clock, log and the journal's path are used, and copied.
 * Errors: ST_NO_MEMORY; those of pthread_create */
MUST_CHECK enum status later_queue_new(const struct core_options *options,
                                       struct later_queue **out);
/* Takes it over; false: LATER_MAX wait already, and it is still the caller's. */
bool later_queue_put(struct later_queue *queue, struct later *later);
/* Those that wait are answered before. NULL is fine. */
void later_queue_free(struct later_queue *queue);
