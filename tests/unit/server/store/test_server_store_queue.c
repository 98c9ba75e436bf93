/* The thread that runs store tasks, and a store that never answers. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint/store/each_file.h"
#include "common/clock.h"
#include "server/store/queue.h"
#include "tests/test.h"

struct answers {
    atomic_int count;
    atomic_int timed_out;
    atomic_int told; /* of those, with how many calls hang */
    atomic_int hung;
    atomic_int first; /* the kind of the first */
};

static void take_answer(void *arg, struct store_task *task)
{
    struct answers *answers = arg;
    if (task->status == ST_TIMED_OUT)
        atomic_fetch_add(&answers->timed_out, 1);
    if (strstr(task->message, "3 calls of the coordinator have not come back") != NULL)
        atomic_fetch_add(&answers->told, 1);
    if (atomic_load(&answers->count) == 0)
        atomic_store(&answers->first, (int)task->kind);
    store_task_free(task);
    atomic_fetch_add(&answers->count, 1);
}

/* What makes a folder at /proc/hangs waits, and then says that it did; elsewhere nothing waits. */
struct stuck {
    struct io io;
    const struct io *real;
    atomic_int entered, released, calls, unlinked;
    int files; /* of a slow one */
};

static enum status stuck_mkdir(void *self, const char *path)
{
    struct stuck *stuck = self;
    if (strncmp(path, "/proc/hangs", 11) == 0) {
        (void)atomic_fetch_add(&stuck->entered, 1);
        while (!atomic_load(&stuck->released))
            (void)sched_yield();
        return ST_OK;
    }
    return stuck->real->mkdir(stuck->real->self, path);
}

/* What who makes a folder does next. */
static enum status counted_fsync_dir(void *self, const char *path)
{
    struct stuck *stuck = self;
    (void)atomic_fetch_add(&stuck->calls, 1);
    return stuck->real->fsync_dir(stuck->real->self, path);
}

static void stuck_init(struct stuck *stuck)
{
    stuck->io = *io_system();
    stuck->real = io_system();
    stuck->io.self = stuck;
    stuck->io.mkdir = stuck_mkdir;
    stuck->io.fsync_dir = counted_fsync_dir;
}

static void submit_probe(struct store_queue *queue, const char *store)
{
    struct store_task *task = store_task_new(FSM_TASK_PROBE);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), "j-1");
    (void)snprintf(task->store, sizeof(task->store), "%s", store);
    (void)snprintf(task->nonce, sizeof(task->nonce), "%032d", 1);
    struct store_port port = store_queue_port(queue);
    port.submit(port.self, task);
}

static void await(atomic_int *counter, int at_least)
{
    int64_t end = clock_mono_ms(clock_system()) + 20000;
    while (atomic_load(counter) < at_least) {
        assert_true(clock_mono_ms(clock_system()) < end);
        (void)sched_yield();
    }
}

static void tasks_are_answered_in_their_turn(void **state)
{
    struct answers answers = { 0 };
    struct store_queue_options options = { .io = io_system(),
                                           .done = take_answer,
                                           .arg = &answers };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    for (int i = 0; i < 10; i++)
        submit_probe(queue, "/proc/none/store");
    await(&answers.count, 10);
    assert_int_equal(atomic_load(&answers.timed_out), 0);
    store_queue_free(queue);
}

static void note_hung(void *arg, const char *store, uint32_t count)
{
    struct answers *answers = arg;
    assert_string_equal(store, "/proc/hangs");
    atomic_store(&answers->hung, (int)count);
}

static void a_task_that_hangs_is_answered_by_its_deadline_and_holds_up_nobody(void **state)
{
    static struct answers answers; /* the late thread may outlive this function */
    static struct stuck stuck;
    stuck_init(&stuck);
    struct store_queue_options options = {
        .io = &stuck.io, .deadline_ms = 50, .done = take_answer, .arg = &answers
    };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    submit_probe(queue, "/proc/hangs");
    await(&stuck.entered, 1);
    submit_probe(queue, "/proc/none");
    await(&answers.count, 2);
    assert_int_equal(atomic_load(&answers.timed_out), 1);
    atomic_store(&stuck.released, 1);
    store_queue_free(queue);
}

static void a_store_that_hangs_costs_a_few_threads_and_no_other_store_anything(void **state)
{
    static struct answers answers;
    static struct stuck stuck;
    stuck_init(&stuck);
    struct store_queue_options options = {
        .io = &stuck.io, .deadline_ms = 500, .done = take_answer, .hung = note_hung, .arg = &answers
    };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    for (int i = 0; i < 10; i++) /* those that wait behind the last that hangs are answered, too */
        submit_probe(queue, "/proc/hangs");
    await(&answers.count, 10);
    assert_int_equal(atomic_load(&answers.timed_out), 10);
    assert_int_equal(atomic_load(&stuck.entered), STORE_HUNG_MAX);
    assert_int_equal(atomic_load(&answers.hung), STORE_HUNG_MAX);
    submit_probe(queue, "/proc/hangs"); /* at once, with a message that says so */
    assert_int_equal(atomic_load(&answers.timed_out), 11);
    assert_int_equal(atomic_load(&answers.told), 11 - STORE_HUNG_MAX);
    for (int i = 0; i < 10; i++)
        submit_probe(queue, "/proc/none");
    await(&answers.count, 21);
    assert_int_equal(atomic_load(&answers.timed_out), 11);
    atomic_store(&stuck.released, 1);
    int64_t end = clock_mono_ms(clock_system()) + 20000;
    while (atomic_load(&answers.hung) > 0)
        assert_true(clock_mono_ms(clock_system()) < end);
    submit_probe(queue, "/proc/hangs"); /* it is asked again */
    await(&answers.count, 22);
    assert_int_equal(atomic_load(&answers.timed_out), 11);
    store_queue_free(queue);
}

static void a_late_thread_makes_no_further_call(void **state)
{
    static struct answers answers;
    static struct stuck stuck;
    stuck_init(&stuck);
    struct store_queue_options options = {
        .io = &stuck.io, .deadline_ms = 50, .done = take_answer, .hung = note_hung, .arg = &answers
    };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    struct store_task *task = store_task_new(FSM_TASK_DROP);
    assert_non_null(task);
    (void)snprintf(task->store, sizeof(task->store), "/proc/hangs");
    (void)snprintf(task->dir, sizeof(task->dir), "/proc/hangs/j-1/step-000000000001.g1");
    struct store_port port = store_queue_port(queue);
    atomic_store(&stuck.released, 1);
    port.submit(port.self, task); /* nothing is there: its parent is synced */
    await(&answers.count, 1);
    assert_true(atomic_load(&stuck.calls) > 0);
    atomic_store(&stuck.calls, 0);
    atomic_store(&stuck.released, 0);
    submit_probe(queue, "/proc/hangs");
    await(&answers.timed_out, 1);
    atomic_store(&stuck.released, 1);
    int64_t end = clock_mono_ms(clock_system()) + 20000;
    while (atomic_load(&answers.hung) > 0)
        assert_true(clock_mono_ms(clock_system()) < end);
    assert_int_equal(atomic_load(&stuck.calls), 0);
    store_queue_free(queue);
}

#define SLOW_FILES 40
#define MANY_FILES (3 * STORE_TURN)

static enum status slow_stat(void *self, const char *path, struct io_stat *out)
{
    (void)self;
    (void)path;
    *out = (struct io_stat){ .is_dir = true };
    return ST_OK;
}

static enum status slow_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    struct stuck *slow = self;
    (void)path;
    bool more = true;
    for (int i = atomic_load(&slow->unlinked); more && i < slow->files; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "shard-%05d-of-%05d.cairn", i, slow->files);
        more = fn(arg, name);
    }
    return ST_OK;
}

static enum status slow_unlink(void *self, const char *path)
{
    struct stuck *slow = self;
    const struct timespec pause = { .tv_nsec = 20000000 };
    (void)nanosleep(&pause, NULL);
    atomic_fetch_add(&slow->unlinked, strstr(path, "shard-") != NULL);
    return ST_OK;
}

static enum status slow_nothing(void *self, const char *path)
{
    (void)self;
    (void)path;
    return ST_OK;
}

static void slow_init(struct stuck *slow, int files,
                      enum status (*unlink)(void *self, const char *path))
{
    *slow = (struct stuck){ .io = *io_system(), .real = io_system(), .files = files };
    slow->io.self = slow;
    slow->io.stat = slow_stat;
    slow->io.list = slow_list;
    slow->io.unlink = unlink;
    slow->io.rmdir = slow_nothing;
    slow->io.fsync_dir = slow_nothing;
}

static void submit_removal(struct store_queue *queue)
{
    struct store_task *task = store_task_new(FSM_TASK_REMOVE);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), "j-1");
    (void)snprintf(task->store, sizeof(task->store), "/store");
    (void)snprintf(task->dir, sizeof(task->dir), "/store/j-1/step-000000000010.g1");
    struct store_port port = store_queue_port(queue);
    port.submit(port.self, task);
}

/* The task takes much longer than the deadline; each call comes back within it. */
static void a_task_that_gets_on_may_take_as_long_as_it_is_large(void **state)
{
    struct answers answers = { 0 };
    struct stuck slow;
    slow_init(&slow, SLOW_FILES, slow_unlink);
    struct store_queue_options options = {
        .io = &slow.io, .deadline_ms = 200, .done = take_answer, .arg = &answers
    };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    submit_removal(queue);
    await(&answers.count, 1);
    assert_int_equal(atomic_load(&slow.unlinked), SLOW_FILES);
    assert_int_equal(atomic_load(&answers.timed_out), 0);
    store_queue_free(queue);
}

/* The first waits. */
static enum status held_unlink(void *self, const char *path)
{
    struct stuck *held = self;
    (void)atomic_fetch_add(&held->entered, 1);
    while (!atomic_load(&held->released))
        (void)sched_yield();
    atomic_fetch_add(&held->unlinked, strstr(path, "shard-") != NULL);
    return ST_OK;
}

static void a_removal_of_many_files_lets_others_go_first(void **state)
{
    struct answers answers = { 0 };
    struct stuck held;
    slow_init(&held, MANY_FILES, held_unlink);
    struct store_queue_options options = { .io = &held.io, .done = take_answer, .arg = &answers };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    submit_removal(queue);
    await(&held.entered, 1);
    submit_probe(queue, "/store");
    atomic_store(&held.released, 1);
    await(&answers.count, 2);
    assert_int_equal(atomic_load(&answers.first), FSM_TASK_PROBE);
    assert_int_equal(atomic_load(&held.unlinked), MANY_FILES);
    store_queue_free(queue);
}

/* Calls hang, side by side. */
static enum status stuck_stat(void *self, const char *path, struct io_stat *out)
{
    struct stuck *stuck = self;
    (void)path;
    (void)atomic_fetch_add(&stuck->entered, 1);
    while (!atomic_load(&stuck->released))
        (void)sched_yield();
    *out = (struct io_stat){ .size = 7 };
    return ST_OK;
}

static void submit_check(struct store_queue *queue, uint32_t files)
{
    struct store_task *task = store_task_new(FSM_TASK_CHECK);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), "j-1");
    (void)snprintf(task->store, sizeof(task->store), "/proc/hangs");
    (void)snprintf(task->dir, sizeof(task->dir), "/proc/hangs/j-1/step-000000000010.g1");
    task->reports = calloc(files, sizeof(*task->reports));
    assert_non_null(task->reports);
    task->report_count = files;
    for (uint32_t i = 0; i < files; i++) {
        task->reports[i] = (struct ckpt_report){ .rank = i, .size = 7 };
        ckpt_shard_name(i, files, task->reports[i].file);
    }
    struct store_port port = store_queue_port(queue);
    port.submit(port.self, task);
}

static void a_check_of_many_files_ends_when_it_is_given_up(void **state)
{
    static struct answers answers;
    static struct stuck stuck;
    slow_init(&stuck, 0, slow_nothing);
    stuck.io.stat = stuck_stat;
    struct store_queue_options options = {
        .io = &stuck.io, .deadline_ms = 50, .done = take_answer, .hung = note_hung, .arg = &answers
    };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    submit_check(queue, 10 * CKPT_AT_ONCE * CKPT_EACH_LEAST);
    await(&answers.timed_out, 1);
    atomic_store(&stuck.released, 1);
    int64_t end = clock_mono_ms(clock_system()) + 20000;
    while (atomic_load(&answers.hung) > 0)
        assert_true(clock_mono_ms(clock_system()) < end);
    assert_in_range(atomic_load(&stuck.entered), 1, CKPT_AT_ONCE); /* one of each thread */
    store_queue_free(queue);
}

/* A thread that was given up finds no store any more when it comes back. */
static void what_was_given_up_calls_nothing_any_more(void **state)
{
    struct store_watch watch = { 0 };
    struct io_stat info;
    int fd = -1;
    (void)state;
    store_watch_init(&watch, io_system(), false);
    assert_int_equal(watch.io.stat(watch.io.self, "/", &info), ST_OK);
    assert_int_equal(watch.io.open(watch.io.self, "/dev/null", IO_READ, &fd), ST_OK);
    assert_int_equal(atomic_load(&watch.calls), 2);
    store_watch_give_up(&watch);
    assert_int_equal(watch.io.unlink(watch.io.self, "/none/at/all"), ST_CLOSED);
    assert_int_equal(watch.io.stat(watch.io.self, "/", &info), ST_CLOSED);
    assert_int_equal(watch.io.close(watch.io.self, fd), ST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_are_answered_in_their_turn),
        cmocka_unit_test(a_task_that_hangs_is_answered_by_its_deadline_and_holds_up_nobody),
        cmocka_unit_test(a_store_that_hangs_costs_a_few_threads_and_no_other_store_anything),
        cmocka_unit_test(a_late_thread_makes_no_further_call),
        cmocka_unit_test(a_task_that_gets_on_may_take_as_long_as_it_is_large),
        cmocka_unit_test(a_removal_of_many_files_lets_others_go_first),
        cmocka_unit_test(a_check_of_many_files_ends_when_it_is_given_up),
        cmocka_unit_test(what_was_given_up_calls_nothing_any_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
