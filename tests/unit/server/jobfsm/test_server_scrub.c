/* Checkpoints that somebody wants read: what is damaged is set aside, nothing else is touched. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static enum status check(struct bench *b, uint64_t step)
{
    struct fsm_event ask = { .kind = FSM_EV_CHECK_CKPT, .check_ckpt = { step, 1 } };
    return bench_apply(b, ask);
}

static void damage_of_a_running_job_is_set_aside_and_a_good_one_taken(void **state)
{
    struct bench *b = *state;
    assert_int_equal(check(b, 20), ST_OK);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->step, 20);
    assert_int_equal(check(b, 20), ST_OK); /* one read answers both */
    assert_null(bench_task(b, FSM_TASK_VERIFY));
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_CORRUPT);
    assert_int_equal(bench_task(b, FSM_TASK_QUARANTINE)->step, 20);
    assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    assert_int_equal(fsm_newest(&b->m)->step, 10);
    bench_store(b, FSM_TASK_QUARANTINE, 20, 1, ST_OK);
    assert_int_equal(fsm_find_ckpt(&b->m, 20, 1)->state, FSM_CKPT_BAD);
    assert_int_equal(check(b, 20), ST_OK); /* nothing is left to do */
    assert_null(bench_task(b, FSM_TASK_VERIFY));
    bench_all_exit(b);
    bench_tick(b, 1000);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 10);
}

static void what_reads_well_stays(void **state)
{
    struct bench *b = *state;
    const struct fsm_ckpt *ckpt = fsm_find_ckpt(&b->m, 10, 1);
    assert_int_equal(check(b, 10), ST_OK);
    assert_int_equal(ckpt->reads, 0);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_OK);
    assert_int_equal(ckpt->reads, 1);
    assert_int_equal(ckpt->read_status, ST_OK);
    assert_true(ckpt->verified);
    assert_int_equal(bench_tasks(b, FSM_TASK_QUARANTINE) + bench_tasks(b, FSM_TASK_REMOVE), 0);
}

static void a_failing_medium_changes_nothing(void **state)
{
    struct bench *b = *state;
    static const enum status failures[] = { ST_IO, ST_TIMED_OUT };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(check(b, 20), ST_OK);
        bench_store(b, FSM_TASK_VERIFY, 20, 1, failures[i]);
        assert_int_equal(fsm_find_ckpt(&b->m, 20, 1)->reads, i + 1);
        assert_int_equal(fsm_find_ckpt(&b->m, 20, 1)->read_status, failures[i]);
        assert_int_equal(fsm_find_ckpt(&b->m, 20, 1)->state, FSM_CKPT_GOOD);
        assert_string_equal(b->m.reason, ""); /* nobody waits */
    }
}

static void of_a_job_that_ended_likewise(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "KILLED");
    assert_int_equal(check(b, 10), ST_OK);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_OK);
    assert_int_equal(check(b, 20), ST_OK);
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_NOT_FOUND); /* it lost its manifest */
    bench_store(b, FSM_TASK_QUARANTINE, 20, 1, ST_OK);
    assert_int_equal(fsm_newest(&b->m)->step, 10);
    assert_int_equal(check(b, 10), ST_OK);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_INCOMPLETE);
    assert_string_equal(bench_told(b, "restart"), "no good checkpoint is left");
    bench_is_state(b, "KILLED");
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
}

static void a_running_job_without_a_good_one_takes_one(void **state)
{
    struct bench *b = *state;
    for (uint64_t step = 10; step <= 20; step += 10) {
        assert_int_equal(check(b, step), ST_OK);
        bench_progress(b, 0, 10 * step, "forward"); /* beyond what was announced: none is to come */
        bench_store(b, FSM_TASK_VERIFY, step, 1, ST_CORRUPT);
        assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    }
    assert_string_equal(bench_told(b, "restart"), "no good checkpoint is left; one is taken soon");
}

static void what_is_gone_or_going_is_not_read(void **state)
{
    struct bench *b = *state;
    assert_int_equal(check(b, 15), ST_NOT_FOUND);
    assert_int_equal(b->out.count, 0);
    assert_int_equal(check(b, 10), ST_OK);
    assert_int_equal(bench_remove(b, 10), ST_OK);
    assert_int_equal(check(b, 10), ST_NOT_FOUND);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_NOT_FOUND); /* asked before */
    assert_null(bench_task(b, FSM_TASK_QUARANTINE));
    bench_store(b, FSM_TASK_REMOVE, 10, 1, ST_OK);
    assert_null(fsm_find_ckpt(&b->m, 10, 1));
}

/* A read fails where the damage may lie in what the checkpoint is read through. */
static void with_a_difference_its_parent_is_read_too_and_is_no_base_until_then(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.delta = true;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    bench_commit(b, 10);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_OK);
    bench_save_until(b, 20, FSM_SAVE_COMMITTING);
    struct fsm_ckpt ckpt = { .step = 20,
                             .generation = 1,
                             .shards = 2,
                             .state = FSM_CKPT_GOOD,
                             .parent_step = 10,
                             .parent_generation = 1 };
    bench_publish(b, &ckpt);
    assert_int_equal(check(b, 20), ST_OK);
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_CORRUPT);
    assert_int_equal(bench_tasks(b, FSM_TASK_VERIFY), 1);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->step, 10);
    bench_save_until(b, 30, FSM_SAVE_OPENING);
    assert_int_equal(fsm_find_save(&b->m, 30, 1)->base_generation, 0);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_CORRUPT);
    assert_int_equal(bench_task(b, FSM_TASK_QUARANTINE)->step, 10);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_saved, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(damage_of_a_running_job_is_set_aside_and_a_good_one_taken),
        TEST(what_reads_well_stays),
        TEST(a_failing_medium_changes_nothing),
        TEST(of_a_job_that_ended_likewise),
        TEST(a_running_job_without_a_good_one_takes_one),
        TEST(what_is_gone_or_going_is_not_read),
        TEST(with_a_difference_its_parent_is_read_too_and_is_no_base_until_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
