/*
 * Queues of store tasks and the threads that run them, so that a slow or hanging store holds up
 * neither the coordinator nor another store.
 *
 * A store (the root that task->store names) has two lines: one for reading checkpoints back, which
 * takes as long as they are large, one for everything else. A line's tasks run one after the other,
 * on a thread that lives as long as there are some.
 *
 * A removal of many files that others wait for stops after STORE_TURN of them (watch.h) and goes on
 * behind those others: no commit waits for all of a thousand.
 *
 * A task takes as long as it is large. A task is given up if none of its calls to the store came
 * back within its time (FSM_TASKS; seen after twice that at the latest). It is answered with
 * ST_TIMED_OUT, the next call that its thread makes is refused (watch.h), and another thread goes
 * on with the line. What the call that hangs still does is harmless: it works on names that nobody
 * else uses (checkpoint/format/names.h), or does what will be done again anyway.
 *
 * A line with STORE_HUNG_MAX such threads starts no more of them: until one comes back its tasks
 * are answered at once, with ST_TIMED_OUT and the number of those that hang.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "server/store/task.h"

/* Threads of one line that hang, at most. A single one may be a lost request; three, each after its
 * whole time, are a store that is gone, and a fourth would but hang with them. */
#define STORE_HUNG_MAX 3
/* Threads of all lines. Each has a stack, and may read with three more or make sixteen calls at
 * once (checkpoint/store/each_file.h); beyond, lines wait for a thread. */
#define STORE_THREADS_MAX 64

struct store_queue;

/* done, hung: called on a thread of the queue, or by submit; must pass it on to the core's thread.
 */
struct store_queue_options {
    const struct io *io;
    int64_t deadline_ms; /* of a task without a sign of the store; 0: as FSM_TASKS says */
    void (*done)(void *arg, struct store_task *task);
    /* How many calls hang on that store now, each time that this changes; or NULL. */
    void (*hung)(void *arg, const char *store, uint32_t count);
    void *arg;
};

MUST_CHECK enum status store_queue_new(const struct store_queue_options *options,
                                       struct store_queue **out);
struct store_port store_queue_port(struct store_queue *queue);
/* Gives up what runs and drops what waits: neither is answered any more. Threads that don't come
 * back within STORE_STOP_MS are left: io outlives them, and what they hold is freed when they do.
 */
#define STORE_STOP_MS 2000
void store_queue_free(struct store_queue *queue);
