/*
 * Threads for the time of one call, that share a number of tasks.
 *
 * Thread: any; what the threads share is the caller's to protect.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "checkpoint/checkpoint.h"

#define CKPT_CREW_MAX (CKPT_THREADS_MAX + 1) /* with the caller's thread */

/* Returns the number of threads to run beside the caller's: as many as options want, but not more
 * than there is work for. options: or NULL, for none. */
uint32_t ckpt_parallel_threads(const struct ckpt_read_options *options, size_t tasks);

typedef void (*ckpt_parallel_fn)(void *arg, uint32_t number);
/*
 * Calls fn with the numbers 0 to threads: 0 on the caller's thread, each other one on a thread of
 * its own, without signals. Returns when all calls have returned. A thread that can't be made is
 * done without: the calls share the work among those that there are.
 */
void ckpt_parallel_run(uint32_t threads, ckpt_parallel_fn fn, void *arg);

/* Counts one more finished task, and calls the options' progress, if there is one. lock: protects
 * *done, and is held during the call, so that there are never two calls at once. */
void ckpt_parallel_progress(const struct ckpt_read_options *options, pthread_mutex_t *lock,
                            uint64_t *done);
