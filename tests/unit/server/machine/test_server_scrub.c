/* Checkpoints that somebody wants read: what is damaged is set aside, nothing else is touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static enum status check(struct bench *b, uint64_t step)
{
    struct job_event ask = { .kind = EV_CHECK_CKPT, .step = step, .of_generation = 1 };
    return bench_step(b, ask);
}

/* A running job with checkpoints of steps 10 and 20. */
static int open_saved(void **state)
{
    int rc = bench_setup(state);
    bench_run(*state, 100000);
    bench_commit(*state, 10);
    bench_commit(*state, 20);
    return rc;
}

static const char *told(const struct bench *b, const char *kind)
{
    for (size_t i = 0; i < b->out.count; i++)
        if (b->out.list[i].kind == ACT_EVENT && strcmp(b->out.list[i].text, kind) == 0)
            return b->out.list[i].message;
    return "";
}

static void damage_of_a_running_job_is_set_aside_and_a_good_one_taken(void **state)
{
    struct bench *b = *state;
    assert_int_equal(check(b, 20), ST_OK);
    assert_int_equal(bench_act(b, ACT_VERIFY, 0)->step, 20);
    assert_int_equal(check(b, 20), ST_OK); /* one read answers both */
    assert_null(bench_act(b, ACT_VERIFY, 0));
    bench_store(b, EV_VERIFY_DONE, 20, 1, ST_CORRUPT);
    assert_int_equal(bench_act(b, ACT_QUARANTINE, 0)->step, 20);
    assert_non_null(bench_act(b, ACT_SAVE_AT, 0));
    assert_int_equal(jm_newest(&b->m)->step, 10);
    bench_store(b, EV_QUARANTINE_DONE, 20, 1, ST_OK);
    assert_int_equal(jm_find_ckpt(&b->m, 20, 1)->state, CKPT_BAD);
    assert_int_equal(check(b, 20), ST_OK); /* nothing is left to do */
    assert_null(bench_act(b, ACT_VERIFY, 0));
    bench_all_exit(b);
    bench_tick(b, 1000);
    bench_place(b);
    assert_int_equal(b->m.restore_step, 10);
}

static void what_reads_well_stays(void **state)
{
    struct bench *b = *state;
    const struct jm_ckpt *ckpt = jm_find_ckpt(&b->m, 10, 1);
    assert_int_equal(check(b, 10), ST_OK);
    assert_int_equal(ckpt->reads, 0);
    bench_store(b, EV_VERIFY_DONE, 10, 1, ST_OK);
    assert_int_equal(ckpt->reads, 1);
    assert_int_equal(ckpt->read_status, ST_OK);
    assert_true(ckpt->verified);
    assert_int_equal(bench_count(b, ACT_QUARANTINE) + bench_count(b, ACT_REMOVE), 0);
}

static void a_failing_medium_changes_nothing(void **state)
{
    struct bench *b = *state;
    static const enum status failures[] = { ST_IO, ST_TIMED_OUT };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(check(b, 20), ST_OK);
        bench_store(b, EV_VERIFY_DONE, 20, 1, failures[i]);
        assert_int_equal(jm_find_ckpt(&b->m, 20, 1)->reads, i + 1);
        assert_int_equal(jm_find_ckpt(&b->m, 20, 1)->read_status, failures[i]);
        assert_int_equal(jm_find_ckpt(&b->m, 20, 1)->state, CKPT_GOOD);
        assert_string_equal(b->m.reason, ""); /* nobody waits */
    }
}

static void of_a_job_that_ended_likewise(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, EV_KILL), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "KILLED");
    assert_int_equal(check(b, 10), ST_OK);
    bench_store(b, EV_VERIFY_DONE, 10, 1, ST_OK);
    assert_int_equal(check(b, 20), ST_OK);
    bench_store(b, EV_VERIFY_DONE, 20, 1, ST_NOT_FOUND); /* it lost its manifest */
    bench_store(b, EV_QUARANTINE_DONE, 20, 1, ST_OK);
    assert_int_equal(jm_newest(&b->m)->step, 10);
    assert_int_equal(check(b, 10), ST_OK);
    bench_store(b, EV_VERIFY_DONE, 10, 1, ST_INCOMPLETE);
    assert_string_equal(told(b, "restart"), "no good checkpoint is left");
    bench_is_state(b, "KILLED");
    assert_null(bench_act(b, ACT_SAVE_AT, 0));
}

static void a_running_job_without_a_good_one_takes_one(void **state)
{
    struct bench *b = *state;
    for (uint64_t step = 10; step <= 20; step += 10) {
        assert_int_equal(check(b, step), ST_OK);
        memset(b->m.announced, 0, sizeof b->m.announced); /* none is to come */
        bench_store(b, EV_VERIFY_DONE, step, 1, ST_CORRUPT);
        assert_non_null(bench_act(b, ACT_SAVE_AT, 0));
    }
    assert_string_equal(told(b, "restart"), "no good checkpoint is left; one is taken soon");
}

static void what_is_gone_or_going_is_not_read(void **state)
{
    struct bench *b = *state;
    assert_int_equal(check(b, 15), ST_NOT_FOUND);
    assert_int_equal(b->out.count, 0);
    struct job_event ask = { .kind = EV_REMOVE_CKPT, .step = 10 };
    assert_int_equal(check(b, 10), ST_OK);
    assert_int_equal(bench_step(b, ask), ST_OK);
    assert_int_equal(check(b, 10), ST_NOT_FOUND);
    bench_store(b, EV_VERIFY_DONE, 10, 1, ST_NOT_FOUND); /* asked before */
    assert_null(bench_act(b, ACT_QUARANTINE, 0));
    bench_store(b, EV_REMOVE_DONE, 10, 1, ST_OK);
    assert_null(jm_find_ckpt(&b->m, 10, 1));
}

/* A read fails where the damage may lie in what the checkpoint is read through. */
static void with_a_difference_its_parent_is_read_too_and_is_no_base_until_then(void **state)
{
    struct bench *b = *state;
    b->m.config.delta = true;
    b->m.catalog[0].verified = true;
    b->m.catalog[1].parent_step = 10;
    b->m.catalog[1].parent_generation = 1;
    assert_int_equal(check(b, 20), ST_OK);
    bench_store(b, EV_VERIFY_DONE, 20, 1, ST_CORRUPT);
    assert_int_equal(bench_count(b, ACT_VERIFY), 1);
    assert_int_equal(bench_act(b, ACT_VERIFY, 0)->step, 10);
    for (uint32_t i = 0; i < 2; i++)
        bench_save(b, EV_SAVE_BEGIN, i, 30);
    assert_int_equal(jm_find_open(&b->m, 30, 1)->base_generation, 0);
    bench_store(b, EV_VERIFY_DONE, 10, 1, ST_CORRUPT);
    assert_int_equal(bench_act(b, ACT_QUARANTINE, 0)->step, 10);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_saved, bench_teardown)

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
