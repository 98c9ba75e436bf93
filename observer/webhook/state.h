/*
 * What the observer keeps of its webhooks, HOME/observer/webhooks.json: up to where it looked at
 * each job, and the messages that aren't delivered yet. Written as a whole, so that of a message
 * either the cursor is behind it or it is among those that wait: after a restart it is sent at
 * least once.
 *
 * There is no secret in it.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "observer/webhook/job_news.h"
#include "observer/webhook/queue.h"

#define WEBHOOK_JOBS_MAX 4096 /* several times what a coordinator lists */

struct webhook_state {
    int64_t since_ms;               /* older events aren't told, of jobs without a cursor */
    struct webhook_cursor *cursors; /* WEBHOOK_JOBS_MAX of them */
    size_t cursor_count;
    struct webhook_queue *queues[WEBHOOK_MAX];
    size_t queue_count;
    int64_t list_ns; /* which list of webhooks it was: when its file changed last */
};

MUST_CHECK enum status webhook_state_init(struct webhook_state *state);
void webhook_state_release(struct webhook_state *state);

/* The cursor of a job, made where there is none. When there are too many, the cursor of the job
 * that ended first is dropped, and since_ms moves beyond it. Borrowed until the next call. */
struct webhook_cursor *webhook_state_cursor(struct webhook_state *state, const char *job);
/* Returns the queue of the webhook of that name; NULL: there is none. */
struct webhook_queue *webhook_state_queue(const struct webhook_state *state, const char *name);
/* Like webhook_state_queue; makes the queue where there is none. NULL: no memory, or there are
 * WEBHOOK_MAX. */
struct webhook_queue *webhook_state_queue_add(struct webhook_state *state, const char *name,
                                              int64_t retry_ms);
void webhook_state_queue_drop(struct webhook_state *state, struct webhook_queue *queue);

/* Writes the whole state as JSON. Errors: ST_FULL, ST_NO_MEMORY */
MUST_CHECK enum status webhook_state_print(const struct webhook_state *state, struct buf *out);
/* Reads such JSON into a state that was made by init.
 * Errors: ST_CORRUPT  some or all of it can't be read; if all, the state is empty */
MUST_CHECK enum status webhook_state_read(struct webhook_state *state, const char *text,
                                          size_t size, int64_t retry_ms);
