#include "server/store/queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"

#define NICE         10   /* of threads that read back: trainers of this machine come first */
#define RETRY_MS     1000 /* until a thread that could not be made is tried again */
#define FOREVER_MS   3600000
#define TASK_IS_READ FSM_TASK_VERIFY

/* A thread and the task that it runs. */
struct runner {
    struct runner *next; /* the next runner of the queue */
    struct store_queue *queue;
    struct line *line;
    struct store_task *task;
    unsigned long calls; /* calls of the task that had come back when the watchdog looked last */
    int64_t moved_at;    /* when it saw that, or when the task began */
    bool given_up;       /* its task was answered; the line doesn't wait for it */
};

/* Tasks of one store. It is there as long as somebody waits, runs or hangs in it. */
struct line {
    struct line *next;
    char store[LIMIT_PATH];
    bool reads;
    struct store_task *first, *last; /* waiting */
    struct runner *runner;           /* or NULL */
    uint32_t hung;                   /* runners that were given up */
};

/* One mutex guards everything. watchdog: gives runners up, and starts those that had no thread. */
struct store_queue {
    struct store_queue_options options;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* for the watchdog, and for who frees the queue */
    pthread_t watchdog;
    bool stopping, freed;
    struct line *lines;
    struct runner *runners;
    uint32_t threads, hung;
};

static void lock(struct store_queue *queue)
{
    CHECK(pthread_mutex_lock(&queue->mutex) == 0);
}

static void unlock(struct store_queue *queue)
{
    (void)pthread_mutex_unlock(&queue->mutex);
}

static void queue_destroy(struct store_queue *queue)
{
    CHECK(queue->runners == NULL);
    while (queue->lines != NULL) {
        struct line *line = queue->lines;
        queue->lines = line->next;
        free(line);
    }
    (void)pthread_mutex_destroy(&queue->mutex);
    (void)pthread_cond_destroy(&queue->changed);
    free(queue);
}

/* ---- lines ---- */

static struct line *line_of(struct store_queue *queue, const struct store_task *task)
{
    bool reads = task->kind == TASK_IS_READ;
    for (struct line *line = queue->lines; line != NULL; line = line->next) {
        if (line->reads == reads && strcmp(line->store, task->store) == 0)
            return line;
    }
    struct line *line = calloc(1, sizeof(*line));
    if (line == NULL)
        return NULL;
    memcpy(line->store, task->store, sizeof(line->store));
    line->reads = reads;
    line->next = queue->lines;
    queue->lines = line;
    return line;
}

static void drop_if_idle(struct store_queue *queue, struct line *line)
{
    if (line->first != NULL || line->runner != NULL || line->hung > 0)
        return;
    struct line **at = &queue->lines;
    while (*at != line)
        at = &(*at)->next;
    *at = line->next;
    free(line);
}

static void append_task(struct line *line, struct store_task *task)
{
    task->next = NULL;
    if (line->first != NULL) {
        line->last->next = task;
    } else {
        line->first = task;
    }
    line->last = task;
}

static struct store_task *take_task(struct line *line)
{
    struct store_task *task = line->first;
    if (task != NULL) {
        line->first = task->next;
        task->next = NULL;
        atomic_store(&task->watch.others_wait, line->first != NULL);
    }
    return task;
}

/* ---- answers ---- */

static bool is_hung(const struct store_queue *queue, const struct line *line)
{
    return line->hung >= STORE_HUNG_MAX || queue->hung >= STORE_THREADS_MAX;
}

static void refuse_task(struct store_task *task, uint32_t hung)
{
    task->status = ST_TIMED_OUT;
    (void)snprintf(
        task->message, sizeof(task->message),
        "the checkpoint store hangs (%u calls of the coordinator have not come back; it "
        "is asked again when one does, or by a coordinator that is started anew): %.300s",
        hung, task->store);
}

static void tell_hung(struct store_queue *queue, const char *store, uint32_t count)
{
    if (queue->options.hung != NULL)
        queue->options.hung(queue->options.arg, store, count);
}

/* ---- threads ---- */

static void *run_line(void *arg);

/* Gives the line's next task to a thread, if it has one and there is a thread for it. */
static void start_line(struct store_queue *queue, struct line *line)
{
    if (line->first == NULL || line->runner != NULL || queue->stopping || is_hung(queue, line) ||
        queue->threads >= STORE_THREADS_MAX)
        return;
    struct runner *runner = calloc(1, sizeof(*runner));
    pthread_t thread;
    if (runner == NULL)
        return;
    *runner = (struct runner){ .next = queue->runners, .queue = queue, .line = line };
    runner->moved_at = clock_mono_ms(clock_system());
    if (pthread_create(&thread, NULL, run_line, runner) != 0) {
        free(runner);
        return;
    }
    (void)pthread_detach(thread);
    queue->runners = runner;
    queue->threads++;
    line->runner = runner;
    runner->task = take_task(line);
    (void)pthread_cond_broadcast(&queue->changed);
}

static void start_lines(struct store_queue *queue)
{
    for (struct line *line = queue->lines; line != NULL; line = line->next)
        start_line(queue, line);
}

/* Ends a runner, with the mutex, which it gives back; the last thread after store_queue_free cleans
 * up. Until all is told it counts as a thread: the queue stays for it. */
static void end_runner(struct runner *runner)
{
    struct store_queue *queue = runner->queue;
    struct line *line = runner->line;
    char store[LIMIT_PATH];
    uint32_t hung = 0;
    memcpy(store, line->store, sizeof(store));
    struct runner **at = &queue->runners;
    while (*at != runner)
        at = &(*at)->next;
    *at = runner->next;
    if (runner->given_up) {
        queue->hung--;
        hung = --line->hung;
    } else {
        line->runner = NULL;
    }
    drop_if_idle(queue, line);
    if (runner->given_up && !queue->stopping) {
        unlock(queue);
        tell_hung(queue, store, hung);
        lock(queue);
    }
    queue->threads--;
    start_lines(queue);
    bool last = queue->freed && queue->threads == 0;
    (void)pthread_cond_broadcast(&queue->changed);
    unlock(queue);
    free(runner);
    if (last)
        queue_destroy(queue);
}

static void *run_line(void *arg)
{
    struct runner *runner = arg;
    struct store_queue *queue = runner->queue;
    lock(queue); /* until who started it has let go of it */
    if (runner->line->reads)
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    while (runner->task != NULL) {
        struct store_task *task = runner->task;
        unlock(queue);
        store_task_run(task, queue->options.io);
        lock(queue);
        runner->task = NULL;
        if (runner->given_up || queue->stopping) { /* answered already, or nobody listens */
            store_task_free(task);
            break;
        }
        if (task->status == ST_AGAIN && atomic_load(&task->watch.yielded)) {
            append_task(runner->line, task);
        } else {
            unlock(queue);
            queue->options.done(queue->options.arg, task);
            lock(queue);
        }
        if (runner->given_up || queue->stopping)
            break;
        runner->task = take_task(runner->line);
        runner->calls = 0;
        runner->moved_at = clock_mono_ms(clock_system());
    }
    end_runner(runner);
    return NULL;
}

/* ---- the watchdog ---- */

/* Returns when the runner's task is given up. One that gets on is slow, perhaps, but does not
 * hang. */
static int64_t deadline_of(const struct store_queue *queue, struct runner *runner, int64_t now)
{
    int64_t ms = queue->options.deadline_ms;
    unsigned long calls = atomic_load(&runner->task->watch.calls);
    if (calls != runner->calls) {
        runner->calls = calls;
        runner->moved_at = now;
    }
    return runner->moved_at + (ms > 0 ? ms : store_task_deadline_ms(runner->task->kind));
}

/* Gives a runner up: its line goes on without it. Answers are added to *answers. false: no memory;
 * later. */
static bool give_up(struct store_queue *queue, struct runner *runner, struct store_task **answers)
{
    struct line *line = runner->line;
    struct store_task *answer = store_task_late_answer(runner->task);
    if (answer == NULL)
        return false;
    store_watch_give_up(&runner->task->watch);
    runner->given_up = true;
    line->runner = NULL;
    line->hung++;
    queue->hung++;
    answer->next = *answers;
    *answers = answer;
    for (line = queue->lines; line != NULL;
         line = line->next) { /* tasks of hung lines are refused */
        while (is_hung(queue, line) && line->runner == NULL && line->first != NULL) {
            struct store_task *task = take_task(line);
            refuse_task(task, line->hung);
            task->next = *answers;
            *answers = task;
        }
    }
    return true;
}

static void wait_until(struct store_queue *queue, int64_t mono_ms)
{
    struct timespec at = { .tv_sec = mono_ms / 1000, .tv_nsec = mono_ms % 1000 * 1000000 };
    (void)pthread_cond_timedwait(&queue->changed, &queue->mutex, &at);
}

/* The first runner that is beyond its deadline; else NULL, and when one may be. */
static struct runner *find_late(const struct store_queue *queue, int64_t now, int64_t *out_at)
{
    *out_at = now + FOREVER_MS;
    for (struct runner *runner = queue->runners; runner != NULL; runner = runner->next) {
        if (runner->given_up || runner->task == NULL)
            continue;
        int64_t end = deadline_of(queue, runner, now);
        if (now >= end)
            return runner;
        *out_at = end < *out_at ? end : *out_at;
    }
    for (const struct line *line = queue->lines; line != NULL; line = line->next) {
        if (line->first != NULL && line->runner == NULL && now + RETRY_MS < *out_at)
            *out_at = now + RETRY_MS;
    }
    return NULL;
}

static void answer_all(struct store_queue *queue, struct store_task *answers)
{
    while (answers != NULL) {
        struct store_task *task = answers;
        answers = task->next;
        task->next = NULL;
        queue->options.done(queue->options.arg, task);
    }
}

static void *watch_runners(void *arg)
{
    struct store_queue *queue = arg;
    lock(queue);
    while (!queue->stopping) {
        int64_t at;
        struct store_task *answers = NULL;
        start_lines(queue);
        int64_t now = clock_mono_ms(clock_system());
        struct runner *late = find_late(queue, now, &at);
        if (late == NULL || !give_up(queue, late, &answers)) {
            wait_until(queue, late != NULL ? now + RETRY_MS : at);
            continue;
        }
        char store[LIMIT_PATH];
        uint32_t hung = late->line->hung;
        memcpy(store, late->line->store, sizeof(store));
        unlock(queue);
        tell_hung(queue, store, hung);
        answer_all(queue, answers);
        lock(queue);
    }
    unlock(queue);
    return NULL;
}

/* ---- the way in ---- */

static void queue_submit(void *self, struct store_task *task)
{
    struct store_queue *queue = self;
    lock(queue);
    struct line *line = line_of(queue, task);
    uint32_t hung = line != NULL ? line->hung : queue->hung;
    bool refused = line == NULL || is_hung(queue, line);
    if (!refused) {
        append_task(line, task);
        if (line->runner != NULL && line->runner->task != NULL)
            atomic_store(&line->runner->task->watch.others_wait, true);
        start_line(queue, line);
        (void)pthread_cond_broadcast(&queue->changed);
    } else if (line != NULL) {
        drop_if_idle(queue, line);
    }
    unlock(queue);
    if (refused) {
        refuse_task(task, hung);
        queue->options.done(queue->options.arg, task);
    }
}

struct store_port store_queue_port(struct store_queue *queue)
{
    return (struct store_port){ .self = queue, .submit = queue_submit };
}

enum status store_queue_new(const struct store_queue_options *options, struct store_queue **out)
{
    struct store_queue *queue = calloc(1, sizeof(*queue));
    if (queue == NULL)
        return ST_NO_MEMORY;
    queue->options = *options;
    pthread_condattr_t attributes;
    CHECK(pthread_condattr_init(&attributes) == 0);
    CHECK(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_mutex_init(&queue->mutex, NULL) == 0);
    CHECK(pthread_cond_init(&queue->changed, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
    if (pthread_create(&queue->watchdog, NULL, watch_runners, queue) != 0) {
        queue_destroy(queue);
        return ST_NO_MEMORY;
    }
    *out = queue;
    return ST_OK;
}

void store_queue_free(struct store_queue *queue)
{
    if (queue == NULL)
        return;
    lock(queue);
    queue->stopping = true;
    for (struct line *line = queue->lines; line != NULL; line = line->next) {
        for (struct store_task *task = take_task(line); task != NULL; task = take_task(line))
            store_task_free(task);
    }
    for (struct runner *runner = queue->runners; runner != NULL; runner = runner->next) {
        if (runner->task != NULL)
            store_watch_give_up(&runner->task->watch);
    }
    (void)pthread_cond_broadcast(&queue->changed);
    unlock(queue);
    (void)pthread_join(queue->watchdog, NULL);
    lock(queue);
    int64_t now = clock_mono_ms(clock_system()), end = now + STORE_STOP_MS;
    for (; queue->threads > queue->hung && now < end; now = clock_mono_ms(clock_system()))
        wait_until(queue, end);
    bool left = queue->threads > 0;
    queue->freed = true;
    unlock(queue);
    if (!left)
        queue_destroy(queue);
}
