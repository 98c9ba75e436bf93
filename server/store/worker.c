#include "server/store/worker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"

#define NICE 10

/*
 * One mutex guards everything. runner: takes tasks from the queue. A watchdog notices that the
 * running task's deadline passed, answers a copy of it and starts another runner; the old one frees
 * the original when it comes back (its number is not the current one any more).
 */
struct store_worker {
    struct store_worker_options options;
    pthread_mutex_t mutex;
    pthread_cond_t work, watch;
    pthread_t runner, watchdog;
    bool stopping, freed;
    uint32_t number; /* of the current runner */
    uint32_t stuck;
    struct store_task *first, *last; /* waiting */
    struct store_task *running;
    int64_t running_since;
};

struct runner_start {
    struct store_worker *worker;
    uint32_t number;
};

static void destroy(struct store_worker *worker)
{
    (void)pthread_mutex_destroy(&worker->mutex);
    (void)pthread_cond_destroy(&worker->work);
    (void)pthread_cond_destroy(&worker->watch);
    free(worker);
}

/* A thread that was given up comes back, with the mutex; the last one after free cleans up. */
static void leave_late(struct store_worker *worker)
{
    bool last = --worker->stuck == 0 && worker->freed;
    (void)pthread_mutex_unlock(&worker->mutex);
    if (last)
        destroy(worker);
}

static void *run_tasks(void *arg)
{
    struct runner_start start = *(struct runner_start *)arg;
    free(arg);
    struct store_worker *worker = start.worker;
    if (worker->options.background)
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    while (worker->number == start.number) {
        struct store_task *task = worker->first;
        if (!task) {
            if (worker->stopping)
                break;
            (void)pthread_cond_wait(&worker->work, &worker->mutex);
            continue;
        }
        worker->first = task->next;
        task->next = NULL;
        worker->running = task;
        worker->running_since = clock_mono_ms(clock_system());
        (void)pthread_cond_signal(&worker->watch);
        (void)pthread_mutex_unlock(&worker->mutex);
        store_task_run(task, worker->options.io);
        CHECK(pthread_mutex_lock(&worker->mutex) == 0);
        if (worker->number != start.number) { /* too late: answered already */
            store_task_free(task);
            leave_late(worker);
            return NULL;
        }
        worker->running = NULL;
        (void)pthread_mutex_unlock(&worker->mutex);
        worker->options.done(worker->options.arg, task);
        CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    }
    (void)pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

static bool start_runner(struct store_worker *worker)
{
    struct runner_start *start = malloc(sizeof *start);
    if (!start)
        return false;
    *start = (struct runner_start){ worker, worker->number };
    if (pthread_create(&worker->runner, NULL, run_tasks, start) == 0)
        return true;
    free(start);
    return false;
}

/* What the core needs to know of a task that never came back. */
static struct store_task *late_answer(const struct store_task *task)
{
    struct store_task *answer = store_task_new(task->kind);
    if (!answer)
        return NULL;
    memcpy(answer->job, task->job, sizeof answer->job);
    answer->step = task->step;
    answer->generation = task->generation;
    answer->status = ST_TIMED_OUT;
    (void)snprintf(answer->message, sizeof answer->message,
                   "the checkpoint store does not answer: %.400s", task->dir);
    return answer;
}

static void wait_until(struct store_worker *worker, int64_t mono_ms)
{
    struct timespec at = { .tv_sec = mono_ms / 1000, .tv_nsec = mono_ms % 1000 * 1000000 };
    (void)pthread_cond_timedwait(&worker->watch, &worker->mutex, &at);
}

static void *watch_tasks(void *arg)
{
    struct store_worker *worker = arg;
    CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    while (!worker->stopping) {
        if (!worker->running) {
            (void)pthread_cond_wait(&worker->watch, &worker->mutex);
            continue;
        }
        int64_t end = worker->running_since + worker->options.deadline_ms;
        int64_t now = clock_mono_ms(clock_system());
        if (now < end || worker->stuck + 1 >= STORE_THREADS_MAX) {
            wait_until(worker, now < end ? end : now + worker->options.deadline_ms);
            continue;
        }
        struct store_task *answer = late_answer(worker->running);
        pthread_t old = worker->runner;
        worker->number++;
        if (!answer || !start_runner(worker)) {
            worker->number--;
            store_task_free(answer);
            wait_until(worker, now + worker->options.deadline_ms);
            continue;
        }
        (void)pthread_detach(old);
        worker->stuck++;
        worker->running = NULL;
        (void)pthread_mutex_unlock(&worker->mutex);
        worker->options.done(worker->options.arg, answer);
        CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    }
    (void)pthread_mutex_unlock(&worker->mutex);
    return NULL;
}

static void submit(void *self, struct store_task *task)
{
    struct store_worker *worker = self;
    task->next = NULL;
    CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    if (worker->first) {
        worker->last->next = task;
    } else {
        worker->first = task;
    }
    worker->last = task;
    (void)pthread_cond_signal(&worker->work);
    (void)pthread_mutex_unlock(&worker->mutex);
}

struct store_port store_worker_port(struct store_worker *worker)
{
    return (struct store_port){ .self = worker, .submit = submit };
}

enum status store_worker_new(const struct store_worker_options *options, struct store_worker **out)
{
    struct store_worker *worker = calloc(1, sizeof *worker);
    if (!worker)
        return ST_NO_MEMORY;
    worker->options = *options;
    if (worker->options.deadline_ms == 0)
        worker->options.deadline_ms = STORE_DEADLINE_MS;
    pthread_condattr_t attributes;
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_mutex_init(&worker->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&worker->work, NULL) == 0);
    CHECK(pthread_cond_init(&worker->watch, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
    if (!start_runner(worker)) {
        free(worker);
        return ST_NO_MEMORY;
    }
    if (pthread_create(&worker->watchdog, NULL, watch_tasks, worker) != 0) {
        (void)pthread_mutex_lock(&worker->mutex);
        worker->stopping = true;
        (void)pthread_cond_broadcast(&worker->work);
        (void)pthread_mutex_unlock(&worker->mutex);
        (void)pthread_join(worker->runner, NULL);
        free(worker);
        return ST_NO_MEMORY;
    }
    *out = worker;
    return ST_OK;
}

void store_worker_free(struct store_worker *worker)
{
    if (!worker)
        return;
    CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    worker->stopping = true;
    while (worker->first) {
        struct store_task *task = worker->first;
        worker->first = task->next;
        store_task_free(task);
    }
    pthread_t runner = worker->runner;
    (void)pthread_cond_broadcast(&worker->work);
    (void)pthread_cond_broadcast(&worker->watch);
    (void)pthread_mutex_unlock(&worker->mutex);
    (void)pthread_join(worker->watchdog, NULL);
    (void)pthread_join(runner, NULL);
    CHECK(pthread_mutex_lock(&worker->mutex) == 0);
    bool stuck = worker->stuck > 0;
    worker->freed = true;
    (void)pthread_mutex_unlock(&worker->mutex);
    if (!stuck)
        destroy(worker);
}
