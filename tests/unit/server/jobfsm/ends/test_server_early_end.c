/* A job whose workers end it before its last step (train.stop). */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static void finish(struct bench *b, uint32_t rank, uint64_t step)
{
    const struct fsm_event event = { .kind = FSM_EV_FINISHED,
                                     .generation = b->m.generation,
                                     .rank = rank,
                                     .finished = { .step = step } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void run_to(struct bench *b, bool ends_early, uint64_t step)
{
    struct fsm_config config = bench_config();
    config.ends_early = ends_early;
    bench_reopen(b, &config);
    bench_run(b, 1000);
    bench_progress(b, 0, step, "saving");
    bench_progress(b, 1, step, "saving");
}

static void it_ends_once_the_step_is_saved_and_all_say_so(void **state)
{
    struct bench *b = *state;
    run_to(b, true, 40);
    bench_commit(b, 40);
    finish(b, 0, 40);
    bench_is_state(b, "RUNNING");
    finish(b, 1, 40);
    assert_int_equal(b->m.total_steps, 40);
    assert_true(bench_event(b, "early-stop"));
    bench_all_exit(b);
    bench_is_state(b, "SUCCEEDED");
}

static void it_goes_on_where_the_step_is_not_saved(void **state)
{
    struct bench *b = *state;
    run_to(b, true, 40);
    bench_commit(b, 30);
    finish(b, 0, 40);
    finish(b, 1, 40);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.total_steps, 1000);
}

static void a_job_without_the_key_has_its_last_step(void **state)
{
    struct bench *b = *state;
    run_to(b, false, 40);
    bench_commit(b, 40);
    finish(b, 0, 40);
    finish(b, 1, 40);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.total_steps, 1000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_ends_once_the_step_is_saved_and_all_say_so),
        TEST(it_goes_on_where_the_step_is_not_saved),
        TEST(a_job_without_the_key_has_its_last_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
