/* The thread that runs store tasks, and a store that never answers. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "server/store/queue.h"
#include "tests/test.h"

struct answers {
    atomic_int count;
    atomic_int timed_out;
};

static void take_answer(void *arg, struct store_task *task)
{
    struct answers *answers = arg;
    if (task->status == ST_TIMED_OUT)
        atomic_fetch_add(&answers->timed_out, 1);
    store_task_free(task);
    atomic_fetch_add(&answers->count, 1);
}

/* A store whose first stat never comes back in time. */
struct stuck {
    struct io io;
    const struct io *real;
    atomic_int entered, released;
};

static enum status stuck_mkdir(void *self, const char *path)
{
    struct stuck *stuck = self;
    if (atomic_fetch_add(&stuck->entered, 1) == 0)
        while (!atomic_load(&stuck->released))
            (void)sched_yield();
    return stuck->real->mkdir(stuck->real->self, path);
}

static void submit_probe(struct store_queue *queue)
{
    struct store_task *task = store_task_new(MACHINE_TASK_PROBE);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof task->job, "j-1");
    (void)snprintf(task->store, sizeof task->store, "/proc/none/store");
    (void)snprintf(task->nonce, sizeof task->nonce, "%032d", 1);
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
        submit_probe(queue);
    await(&answers.count, 10);
    assert_int_equal(atomic_load(&answers.timed_out), 0);
    store_queue_free(queue);
}

static void a_task_that_hangs_is_answered_by_its_deadline_and_holds_up_nobody(void **state)
{
    static struct answers answers; /* the late thread may outlive this function */
    static struct stuck stuck;
    stuck.io = *io_system();
    stuck.real = io_system();
    stuck.io.self = &stuck;
    stuck.io.mkdir = stuck_mkdir;
    struct store_queue_options options = {
        .io = &stuck.io, .deadline_ms = 50, .done = take_answer, .arg = &answers
    };
    struct store_queue *queue;
    (void)state;
    assert_int_equal(store_queue_new(&options, &queue), ST_OK);
    submit_probe(queue);
    submit_probe(queue);
    await(&answers.count, 2);
    assert_int_equal(atomic_load(&answers.timed_out), 1);
    atomic_store(&stuck.released, 1);
    store_queue_free(queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_are_answered_in_their_turn),
        cmocka_unit_test(a_task_that_hangs_is_answered_by_its_deadline_and_holds_up_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
