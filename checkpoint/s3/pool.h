/*
 * A few threads that send and fetch parts of files: each runs a task after the other. A task must
 * not wait for another one, which might never get a thread.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>

#include "common/status.h"

struct s3_pool;

struct s3_task {
    struct s3_task *next; /* the pool's, until it runs */
    void (*run)(void *arg);
    void *arg;
};

#define S3_POOL_THREADS_MAX 16

/* Threads start when they are first needed, up to threads_max. */
MUST_CHECK enum status s3_pool_new(size_t threads_max, struct s3_pool **out);
/* Runs what waits, then ends the threads. */
void s3_pool_free(struct s3_pool *pool);
/* task is borrowed until it has run. ST_NO_MEMORY: not even one thread could be started. */
MUST_CHECK enum status s3_pool_submit(struct s3_pool *pool, struct s3_task *task);
