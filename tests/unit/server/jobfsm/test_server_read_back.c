/* Checkpoints that the ranks read back beside training. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* Two ranks; the store keeps one; steps 10 and 20 are committed, 20 is being read. */
static int set_up(void **state)
{
    struct bench *b = NULL;
    int failed = bench_setup(state);
    if (failed != 0)
        return failed;
    b = *state;
    struct fsm_config config = bench_config();
    config.keep_last = 1;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    bench_commit(b, 10);
    bench_commit(b, 20);
    return 0;
}

static const struct fsm_ckpt *the_20(const struct bench *b)
{
    return fsm_find_ckpt(&b->m, 20, 1);
}

static void it_is_good_once_every_rank_has_said_so(void **state)
{
    struct bench *b = *state;
    const struct fsm_action *read = bench_act(b, FSM_ACT_READ_BACK, 0);
    assert_non_null(read);
    assert_int_equal(read->step, 20);
    assert_int_equal(read->rank, FSM_ALL_RANKS);
    assert_null(bench_task(b, FSM_TASK_VERIFY)); /* the coordinator reads nothing */
    bench_read(b, 1, 20, 1, ST_OK);
    bench_read(b, 1, 20, 1, ST_OK); /* said twice, it counts once */
    bench_read(b, 0, 10, 1, ST_OK); /* of another */
    bench_read(b, 0, 20, 2, ST_OK);
    assert_false(the_20(b)->verified);
    bench_read(b, 0, 20, 1, ST_OK);
    assert_true(the_20(b)->verified);
    assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, 10);
}

static void progress_is_summed_for_people(void **state)
{
    struct bench *b = *state;
    uint64_t read = 1, bytes = 0;
    assert_true(fsm_reading(&b->m, &read, &bytes));
    assert_int_equal(read, 0);
    assert_int_equal(bytes, 1000);
    struct fsm_event half = { .kind = FSM_EV_READ_BACK,
                              .generation = 1,
                              .rank = 1,
                              .read_back = { .step = 20, .generation = 1, .bytes = 250 } };
    assert_int_equal(bench_apply(b, half), ST_OK);
    assert_true(fsm_reading(&b->m, &read, &bytes));
    assert_int_equal(read, 250);
    bench_read_all(b, 20);
    assert_false(fsm_reading(&b->m, &read, &bytes));
}

static void only_the_disputed_file_is_read_here_and_damage_is_set_aside(void **state)
{
    struct bench *b = *state;
    bench_read(b, 0, 20, 1, ST_OK);
    bench_read(b, 1, 20, 1, ST_CORRUPT); /* the file of rank 0 */
    assert_int_equal(bench_tasks(b, FSM_TASK_VERIFY), 1);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->shard, 1);
    assert_null(bench_task(b, FSM_TASK_QUARANTINE)); /* a rank's word is not enough */
    bench_reread(b, 20, 0, ST_CORRUPT);
    assert_int_equal(bench_task(b, FSM_TASK_QUARANTINE)->step, 20);
    assert_int_equal(fsm_newest(&b->m)->step, 10);
    assert_null(bench_task(b, FSM_TASK_REMOVE));
    assert_int_equal(b->m.read_back.generation, 0);
}

static void where_the_coordinator_reads_well_the_reader_is_suspected(void **state)
{
    struct bench *b = *state;
    bench_read(b, 1, 20, 1, ST_CORRUPT);
    bench_read(b, 0, 20, 1, ST_OK);
    assert_false(the_20(b)->verified); /* while it is disputed */
    bench_reread(b, 20, 0, ST_OK);
    assert_int_equal(b->m.suspect_count, 1);
    assert_true(bench_event(b, "verified"));
    assert_true(the_20(b)->verified); /* every file was read well by somebody */
    assert_int_equal(the_20(b)->reads, 0);
}

static void what_cannot_be_read_is_no_damage_and_after_two_the_coordinator_reads(void **state)
{
    struct bench *b = *state;
    bench_read(b, 1, 20, 1, ST_IO);
    assert_true(bench_event(b, "read-back"));
    assert_int_equal(b->m.read_back.generation, 0);
    assert_null(bench_task(b, FSM_TASK_VERIFY));
    bench_commit(b, 30); /* asked again with the next commit */
    assert_int_equal(bench_act(b, FSM_ACT_READ_BACK, 0)->step, 30);
    bench_read(b, 0, 30, 1, ST_TIMED_OUT);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->step, 30);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->shard, 0);
    bench_store(b, FSM_TASK_VERIFY, 30, 1, ST_OK);
    assert_int_equal(bench_tasks(b, FSM_TASK_REMOVE), 2);
}

/* Workers of an earlier version never answer: a limit by progress, not by time. */
static void who_gets_on_has_all_the_time_and_who_does_not_is_given_up(void **state)
{
    struct bench *b = *state;
    struct fsm_event on = { .kind = FSM_EV_READ_BACK,
                            .generation = 1,
                            .read_back = { .step = 20, .generation = 1 } };
    for (uint64_t i = 1; i <= 4 * 3600; i++) {
        bench_tick(b, 1000);
        bench_counter(b, 0, 20, "forward", i);
        bench_counter(b, 1, 20, "forward", i);
        on.read_back.bytes = i;
        if (i % 100 == 0)
            assert_int_equal(bench_apply(b, on), ST_OK);
    }
    assert_int_equal(b->m.read_back.step, 20); /* after four hours */
    for (uint64_t i = 1; b->m.read_back.generation != 0; i++) {
        assert_true(i < 400);
        bench_tick(b, 1000);
        bench_counter(b, 0, 20, "forward", 20000 + i);
        bench_counter(b, 1, 20, "forward", 20000 + i);
    }
}

static void with_its_readers_it_ends_and_the_next_generation_reads(void **state)
{
    struct bench *b = *state;
    bench_read(b, 0, 20, 1, ST_OK);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_tick(b, 5000);
    assert_int_equal(b->m.read_back.generation, 0);
    assert_null(bench_task(b, FSM_TASK_VERIFY)); /* the workers come back */
    bench_run(b, BENCH_STEPS);
    assert_int_equal(b->m.read_back.step, 20);
    assert_false(b->m.ranks[0].read_done); /* from the beginning */
}

static void at_rest_the_coordinator_reads(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "KILLED");
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->step, 20);
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_OK);
    assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, 10);
}

static void a_rank_that_comes_back_is_asked_again(void **state)
{
    struct bench *b = *state;
    bench_read(b, 0, 20, 1, ST_OK);
    bench_session_lost(b, 1);
    bench_attach(b, 1, 20);
    const struct fsm_action *read = bench_act(b, FSM_ACT_READ_BACK, 0);
    assert_non_null(read);
    assert_int_equal(read->rank, 1);
    bench_session_lost(b, 0);
    bench_attach(b, 0, 20);
    assert_null(bench_act(b, FSM_ACT_READ_BACK, 0)); /* it said what it found */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(it_is_good_once_every_rank_has_said_so),
        TEST(progress_is_summed_for_people),
        TEST(only_the_disputed_file_is_read_here_and_damage_is_set_aside),
        TEST(where_the_coordinator_reads_well_the_reader_is_suspected),
        TEST(what_cannot_be_read_is_no_damage_and_after_two_the_coordinator_reads),
        TEST(who_gets_on_has_all_the_time_and_who_does_not_is_given_up),
        TEST(with_its_readers_it_ends_and_the_next_generation_reads),
        TEST(at_rest_the_coordinator_reads),
        TEST(a_rank_that_comes_back_is_asked_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
