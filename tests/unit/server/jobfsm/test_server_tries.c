/* Saves that are dropped and begun again: where each try writes. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* Begun and dropped; the ranks begin it again. */
static void drop_and_begin_again(struct bench *b, uint64_t step)
{
    bench_store(b, FSM_TASK_FOLDER, step, 1, ST_TIMED_OUT);
    bench_store(b, FSM_TASK_DROP, step, 1, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_begin(b, i, step);
    for (int t = 0; t < 50 && bench_task(b, FSM_TASK_FOLDER) == NULL; t++)
        bench_tick(b, 100);
    assert_non_null(bench_task(b, FSM_TASK_FOLDER));
}

static void every_try_of_a_save_has_a_folder_of_its_own(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_OPENING);
    assert_int_equal(fsm_folder_try(&b->m, 50, 1), 0);
    drop_and_begin_again(b, 50);
    assert_int_equal(fsm_folder_try(&b->m, 50, 1), 1);
    struct fsm_event late = { .kind = FSM_EV_STORE, /* the answer of the try before */
                              .answer = { .task = FSM_TASK_FOLDER,
                                          .step = 50,
                                          .generation = 1,
                                          .status = ST_OK,
                                          .message = "" } };
    assert_int_equal(bench_apply(b, late), ST_OK);
    assert_int_equal(fsm_find_save(&b->m, 50, 1)->state, FSM_SAVE_OPENING);
    bench_restart(b, 1000); /* what was opened is forgotten, but for the number */
    bench_attach(b, 0, 50);
    bench_attach(b, 1, 50);
    bench_save_until(b, 50, FSM_SAVE_COLLECTING);
    assert_int_equal(fsm_folder_try(&b->m, 50, 1), 2);
    bench_restart(b, 1000);
    assert_int_equal(fsm_folder_try(&b->m, 50, 1), 2);
    bench_attach(b, 0, 50);
    bench_attach(b, 1, 50);
    bench_save_until(b, 60, FSM_SAVE_OPENING);
    assert_int_equal(fsm_folder_try(&b->m, 60, 1), 0);
}

static void a_folder_that_holds_a_checkpoint_is_left_and_the_step_tried_elsewhere(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_OPENING);
    bench_store(b, FSM_TASK_FOLDER, 50, 1, ST_TIMED_OUT);
    assert_non_null(bench_task(b, FSM_TASK_DROP));
    assert_null(bench_task(b, FSM_TASK_REMOVE));
    bench_store(b, FSM_TASK_DROP, 50, 1, ST_EXISTS);
    assert_int_equal(fsm_find_save(&b->m, 50, 1)->state, FSM_SAVE_DROPPED);
}

/* A file server that is away, or has forgotten a handle, says nothing of the files. */
static void a_check_that_the_store_failed_is_made_again(void **state)
{
    struct bench *b = *state;
    static const enum status troubles[] = { ST_FORGOTTEN, ST_AWAY, ST_IO, ST_TIMED_OUT };
    for (size_t i = 0; i < sizeof(troubles) / sizeof(troubles[0]); i++) {
        uint64_t step = 50 + 10 * i;
        bench_save_until(b, step, FSM_SAVE_CHECKING);
        bench_store(b, FSM_TASK_CHECK, step, 1, troubles[i]);
        assert_int_equal(fsm_find_save(&b->m, step, 1)->state, FSM_SAVE_CHECKING);
        for (int t = 0; t < 100 && bench_task(b, FSM_TASK_CHECK) == NULL; t++)
            bench_tick(b, 100);
        assert_non_null(bench_task(b, FSM_TASK_CHECK));
        bench_store(b, FSM_TASK_CHECK, step, 1, ST_OK);
        bench_store(b, FSM_TASK_PUBLISH, step, 1, ST_OK);
        assert_int_equal(fsm_newest(&b->m)->step, step);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_try_of_a_save_has_a_folder_of_its_own),
        TEST(a_check_that_the_store_failed_is_made_again),
        TEST(a_folder_that_holds_a_checkpoint_is_left_and_the_step_tried_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
