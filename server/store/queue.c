#include "server/store/queue.h"

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
struct store_queue {
    struct store_queue_options options;
    pthread_mutex_t mutex;
    pthread_cond_t work, watch;
    pthread_t runner, watchdog;
    bool stopping, freed;
    uint32_t number; /* of the current runner */
    uint32_t stuck;
    struct store_task *first, *last; /* waiting */
    struct store_task *running;
    unsigned long calls; /* of the running one, as the watchdog saw them last */
    int64_t moved_at;    /* when it saw that, or when the task began */
};

struct runner_start {
    struct store_queue *queue;
    uint32_t number;
};

static void queue_destroy(struct store_queue *queue)
{
    (void)pthread_mutex_destroy(&queue->mutex);
    (void)pthread_cond_destroy(&queue->work);
    (void)pthread_cond_destroy(&queue->watch);
    free(queue);
}

/* A thread that was given up comes back, with the mutex; the last one after free cleans up. */
static void leave_late(struct store_queue *queue)
{
    bool last = --queue->stuck == 0 && queue->freed;
    (void)pthread_mutex_unlock(&queue->mutex);
    if (last)
        queue_destroy(queue);
}

static void *run_tasks(void *arg)
{
    struct runner_start start = *(struct runner_start *)arg;
    free(arg);
    struct store_queue *queue = start.queue;
    if (queue->options.background)
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    while (queue->number == start.number) {
        struct store_task *task = queue->first;
        if (!task) {
            if (queue->stopping)
                break;
            (void)pthread_cond_wait(&queue->work, &queue->mutex);
            continue;
        }
        queue->first = task->next;
        task->next = NULL;
        queue->running = task;
        queue->calls = 0;
        queue->moved_at = clock_mono_ms(clock_system());
        (void)pthread_cond_signal(&queue->watch);
        (void)pthread_mutex_unlock(&queue->mutex);
        store_task_run(task, queue->options.io);
        CHECK(pthread_mutex_lock(&queue->mutex) == 0);
        if (queue->number != start.number) { /* too late: answered already */
            store_task_free(task);
            leave_late(queue);
            return NULL;
        }
        queue->running = NULL;
        (void)pthread_mutex_unlock(&queue->mutex);
        queue->options.done(queue->options.arg, task);
        CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    }
    (void)pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static bool start_runner(struct store_queue *queue)
{
    struct runner_start *start = malloc(sizeof *start);
    if (!start)
        return false;
    *start = (struct runner_start){ queue, queue->number };
    if (pthread_create(&queue->runner, NULL, run_tasks, start) == 0)
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
    answer->retry = task->retry;
    answer->status = ST_TIMED_OUT;
    (void)snprintf(answer->message, sizeof answer->message,
                   "the checkpoint store does not answer: %.400s", task->dir);
    return answer;
}

static void wait_until(struct store_queue *queue, int64_t mono_ms)
{
    struct timespec at = { .tv_sec = mono_ms / 1000, .tv_nsec = mono_ms % 1000 * 1000000 };
    (void)pthread_cond_timedwait(&queue->watch, &queue->mutex, &at);
}

static void *watch_tasks(void *arg)
{
    struct store_queue *queue = arg;
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    while (!queue->stopping) {
        if (!queue->running) {
            (void)pthread_cond_wait(&queue->watch, &queue->mutex);
            continue;
        }
        int64_t now = clock_mono_ms(clock_system());
        unsigned long calls = atomic_load(&queue->running->watch.calls);
        if (calls != queue->calls) { /* slow, perhaps, but not stuck */
            queue->calls = calls;
            queue->moved_at = now;
        }
        int64_t end = queue->moved_at + queue->options.deadline_ms;
        if (now < end || queue->stuck + 1 >= STORE_THREADS_MAX) {
            wait_until(queue, now < end ? end : now + queue->options.deadline_ms);
            continue;
        }
        struct store_task *answer = late_answer(queue->running);
        pthread_t old = queue->runner;
        queue->number++;
        if (!answer || !start_runner(queue)) {
            queue->number--;
            store_task_free(answer);
            wait_until(queue, now + queue->options.deadline_ms);
            continue;
        }
        (void)pthread_detach(old);
        store_watch_give_up(&queue->running->watch);
        queue->stuck++;
        queue->running = NULL;
        (void)pthread_mutex_unlock(&queue->mutex);
        queue->options.done(queue->options.arg, answer);
        CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    }
    (void)pthread_mutex_unlock(&queue->mutex);
    return NULL;
}

static void queue_submit(void *self, struct store_task *task)
{
    struct store_queue *queue = self;
    task->next = NULL;
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    if (queue->first) {
        queue->last->next = task;
    } else {
        queue->first = task;
    }
    queue->last = task;
    (void)pthread_cond_signal(&queue->work);
    (void)pthread_mutex_unlock(&queue->mutex);
}

struct store_port store_queue_port(struct store_queue *queue)
{
    return (struct store_port){ .self = queue, .submit = queue_submit };
}

enum status store_queue_new(const struct store_queue_options *options, struct store_queue **out)
{
    struct store_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return ST_NO_MEMORY;
    queue->options = *options;
    if (queue->options.deadline_ms == 0)
        queue->options.deadline_ms = STORE_DEADLINE_MS;
    pthread_condattr_t attributes;
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_mutex_init(&queue->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&queue->work, NULL) == 0);
    CHECK(pthread_cond_init(&queue->watch, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
    if (!start_runner(queue)) {
        free(queue);
        return ST_NO_MEMORY;
    }
    if (pthread_create(&queue->watchdog, NULL, watch_tasks, queue) != 0) {
        (void)pthread_mutex_lock(&queue->mutex);
        queue->stopping = true;
        (void)pthread_cond_broadcast(&queue->work);
        (void)pthread_mutex_unlock(&queue->mutex);
        (void)pthread_join(queue->runner, NULL);
        free(queue);
        return ST_NO_MEMORY;
    }
    *out = queue;
    return ST_OK;
}

void store_queue_free(struct store_queue *queue)
{
    if (!queue)
        return;
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    queue->stopping = true;
    while (queue->first) {
        struct store_task *task = queue->first;
        queue->first = task->next;
        store_task_free(task);
    }
    pthread_t runner = queue->runner;
    (void)pthread_cond_broadcast(&queue->work);
    (void)pthread_cond_broadcast(&queue->watch);
    (void)pthread_mutex_unlock(&queue->mutex);
    (void)pthread_join(queue->watchdog, NULL);
    (void)pthread_join(runner, NULL);
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
    bool stuck = queue->stuck > 0;
    queue->freed = true;
    (void)pthread_mutex_unlock(&queue->mutex);
    if (!stuck)
        queue_destroy(queue);
}
