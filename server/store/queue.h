/*
 * A queue of store tasks and the thread that runs them one after the other, so that a slow or
 * hanging store never holds up the coordinator.
 *
 * A task takes as long as it is large: reading a checkpoint may take hours. One of whose calls to
 * the store none came back within its deadline (seen after twice that at the latest) is answered
 * with ST_TIMED_OUT; its thread, stuck in the file system, is left behind with it and another one
 * goes on (STORE_THREADS_MAX in all; then tasks wait). When that call comes back it is the last one
 * of the thread. What it has done is harmless: all store calls may be repeated.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "server/store/task.h"

#define STORE_THREADS_MAX 4
#define STORE_DEADLINE_MS 120000

struct store_queue;

/* done: called on the queue's thread; must pass the task on to the core's thread. */
struct store_queue_options {
    const struct io *io;
    int64_t deadline_ms; /* without a sign of the store; 0: STORE_DEADLINE_MS */
    bool background;     /* of lower priority: trainers of this machine come first */
    void (*done)(void *arg, struct store_task *task);
    void *arg;
};

MUST_CHECK enum status store_queue_new(const struct store_queue_options *options,
                                       struct store_queue **out);
struct store_port store_queue_port(struct store_queue *queue);
/* Waits for the task that runs, drops those that wait. Stuck threads are not waited for: io
 * outlives them, and what they still hold is freed when they come back. */
void store_queue_free(struct store_queue *queue);
