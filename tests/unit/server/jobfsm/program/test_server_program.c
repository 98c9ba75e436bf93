/* Jobs with programs that Cairn saves: saved as models are, and started anew with each
 * generation. */
#include <string.h>

#include "server/jobfsm/ctx.h"
#include "tests/test.h"
#include "tests/unit/server/jobfsm/program/saved_fixture.h"

/* ---- as models ---- */

static void what_is_for_models_alone_counts_for_nothing(void **state)
{
    struct bench *b = saved_run(state);
    assert_int_equal(b->m.config.lanes, 0);
    assert_false(b->m.config.owns);
    assert_int_equal(b->m.config.audited, 0);
    assert_int_equal(b->m.config.keep_last, 3);
    struct fsm_config config = saved_config();
    config.program = false;
    config.saves_nothing = true;
    bench_reopen(b, &config);
    assert_true(b->m.config.program);
    assert_int_equal(b->m.config.keep_last, 0);
}

static void its_store_is_asked_and_its_last_save_is_its_success(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = saved_config();
    bench_reopen(b, &config);
    bench_place(b);
    bench_is_state(b, "PLACING");
    bench_probe(b, ST_OK);
    saved_go_on(b);
    bench_commit(b, 500);
    bench_is_state(b, "RUNNING");
    assert_non_null(fsm_newest(&b->m));
    bench_commit(b, STEPS);
    assert_int_equal(b->m.ending.to, FSM_SUCCEEDED);
    for (uint32_t i = 0; i < RANKS; i++) {
        saved_finish(b, i, STEPS);
        bench_exit(b, i, FSM_EXIT_CODE, 0);
    }
    bench_is_state(b, "SUCCEEDED");
    assert_int_equal(fsm_newest(&b->m)->step, STEPS);
    assert_string_not_equal(b->m.final_digest, "");
}

static void saves_come_by_time_and_by_request(void **state)
{
    struct fsm_config config = saved_config();
    config.every_ms = 60000;
    struct bench *b = saved_run_with(state, config);
    assert_int_equal(bench_ask(b, FSM_EV_SAVE), ST_OK);
    assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
    assert_false(bench_act(b, FSM_ACT_SAVE_AT, 0)->exit);
    bench_commit(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step);
    bool came = false;
    for (int i = 0; i < 70 && !came; i++) {
        bench_tick(b, 1000);
        came = bench_act(b, FSM_ACT_SAVE_AT, 0) != NULL;
        for (uint32_t r = 0; r < RANKS && !came; r++) {
            bench_progress(b, r, 10 + (uint64_t)i, "running");
            came = bench_act(b, FSM_ACT_SAVE_AT, 0) != NULL;
        }
    }
    assert_true(came);
}

static void asked_to_go_it_saves_first_and_goes_on_from_there(void **state)
{
    static const struct {
        enum fsm_event_kind ask;
        const char *state;
    } rows[] = { { FSM_EV_PAUSE, "PAUSED" }, { FSM_EV_STOP, "STOPPED" } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct bench *b = saved_run(state);
        assert_int_equal(bench_ask(b, rows[i].ask), ST_OK);
        bench_is_state(b, "SAVING");
        assert_null(bench_act(b, FSM_ACT_CLOSE, 0)); /* nobody is told to end before that */
        const uint64_t step = saved_announced(b);
        saved_leave(b, step);
        bench_is_state(b, rows[i].state);
        assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
        saved_form(b);
        for (uint32_t r = 0; r < RANKS; r++)
            bench_hello(b, r);
        assert_int_equal(b->m.restore.step, step);
        assert_int_equal(b->m.restore.generation, 1);
    }
}

static void a_node_that_leaves_has_all_save_first(void **state)
{
    struct bench *b = saved_run(state);
    struct fsm_event told = {
        .kind = FSM_EV_LEAVING, .generation = 1, .rank = 1, .leaving = { "node n leaves" }
    };
    assert_int_equal(bench_apply(b, told), ST_OK);
    saved_leave(b, saved_announced(b));
    bench_is_state(b, "RECOVERING");
    saved_form(b);
    assert_int_equal(b->m.budget.failures, 0);
}

static void a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(void **state)
{
    struct bench *b = saved_run(state);
    bench_commit(b, 10);
    bench_commit(b, 20);
    saved_fail_and_park(b);
    saved_form(b);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_hello(b, r);
    assert_int_equal(b->m.restore.step, 20);
    struct fsm_fault fault = { .kind = FSM_FAULT_DAMAGE, .rank = 1, .message = "a shard" };
    struct fsm_event damage = { .kind = FSM_EV_FAULT, .generation = 2, .rank = 1, .fault = &fault };
    assert_int_equal(bench_apply(b, damage), ST_OK);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_exit(b, r, FSM_EXIT_CODE, 1);
    bench_tick(b, 400000);
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_CORRUPT);
    assert_non_null(bench_task(b, FSM_TASK_QUARANTINE));
    bench_store(b, FSM_TASK_QUARANTINE, 20, 1, ST_OK);
    saved_form(b);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_hello(b, r);
    assert_int_equal(b->m.restore.step, 10);
}

/* ---- workers that stay have no state ---- */

static void nobody_is_a_source_whatever_it_says(void **state)
{
    struct bench *b = saved_run(state);
    bench_commit(b, 10);
    bench_progress(b, 0, 17, "running");
    saved_fail_and_park(b);
    saved_form(b);
    assert_non_null(strstr(bench_told(b, "forming"), "2 of them stay; their programs start anew"));
    saved_go_on(b);
    assert_false(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 10);
    assert_int_equal(b->m.replay_until, 17); /* what is repeated counts */
    assert_int_equal(fsm_restored_from(&b->m), RECOVERY_CHECKPOINT);
}

static void copies_on_its_node_are_restored(void **state)
{
    struct bench *b = saved_run(state);
    bench_commit(b, 10);
    bench_progress(b, 0, 17, "running");
    saved_fail_and_park(b);
    saved_form(b);
    saved_offer(b, 0, 16, 1);
    saved_offer(b, 1, 16, 1);
    assert_int_equal(b->m.restore.memory_generation, 1);
    assert_int_equal(b->m.restore.step, 16);
    assert_int_equal(fsm_restored_from(&b->m), RECOVERY_MEMORY);
}

static void copies_on_several_nodes_are_not(void **state)
{
    static const char *const nodes[] = { "a", "b" };
    struct bench *b = *state;
    struct fsm_config config = saved_config();
    bench_reopen(b, &config);
    saved_form_on(b, nodes);
    saved_go_on(b);
    bench_commit(b, 10);
    bench_progress(b, 0, 17, "running");
    saved_fail_and_park(b);
    saved_form_on(b, nodes);
    saved_offer(b, 0, 16, 1);
    saved_offer(b, 1, 16, 1);
    assert_non_null(strstr(bench_told(b, "memory"), "step 16 in memory are not used"));
    assert_int_equal(b->m.restore.memory_generation, 0);
    assert_int_equal(b->m.restore.step, 10);
    assert_int_equal(fsm_restored_from(&b->m), RECOVERY_CHECKPOINT);
}

static void workers_have_their_grace_to_park(void **state)
{
    struct bench *b = saved_run(state);
    saved_fail(b, 1);
    bench_tick(b, GRACE_MS + FSM_PARK_MS - 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    bench_tick(b, 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING_LATE);
}

static void after_as_many_failures_as_its_budget_it_has_failed(void **state)
{
    struct bench *b = saved_run(state);
    for (uint32_t i = 1; i < BUDGET; i++) {
        saved_fail(b, 1);
        bench_is_state(b, "RECOVERING");
        for (uint32_t r = 0; r < RANKS; r++) {
            bench_say_parked(b, r);
            if (!b->m.ranks[r].parked && !b->m.ranks[r].gone)
                bench_exit(b, r, FSM_EXIT_CODE, 4);
        }
        saved_form(b);
        saved_go_on(b);
    }
    saved_fail(b, 1);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
    assert_non_null(strstr(b->m.reason, "the budget is 4"));
}

static void before_its_first_step_it_has_less(void **state)
{
    for (int step = 0; step < 2; step++) {
        struct fsm_config config = saved_config();
        config.budget_first = 1;
        struct bench *b = saved_run_with(state, config);
        if (step)
            bench_progress(b, 0, 1, "running");
        saved_fail(b, 1);
        assert_int_equal(b->m.ending.to, step ? FSM_RECOVERING : FSM_FAILED);
        assert_true(step || strstr(b->m.reason, "before the first step") != NULL);
    }
}

/* Workers that stay don't have it, and another number of them may not find all copies. */
static void with_another_number_of_workers_it_saves_first(void **state)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        struct fsm_config config = saved_config();
        config.restarts = restarts == 1;
        struct bench *b = saved_run_with(state, config);
        bench_progress(b, 0, 5, "running");
        struct fsm_event set = { .kind = FSM_EV_SET, .set = { .workers = 1 } };
        assert_int_equal(bench_apply(b, set), ST_OK);
        assert_null(bench_act(b, FSM_ACT_PARK, 0));
        const uint64_t step = saved_announced(b);
        for (uint32_t i = 0; i < RANKS; i++)
            bench_progress(b, i, step, "running");
        for (uint32_t i = 0; i < RANKS; i++)
            bench_begin(b, i, step);
        bench_store(b, FSM_TASK_FOLDER, step, 1, ST_OK);
        for (uint32_t i = 0; i < RANKS; i++)
            bench_report(b, i, step);
        bench_store(b, FSM_TASK_CHECK, step, 1, ST_OK);
        bench_store(b, FSM_TASK_PUBLISH, step, 1, ST_OK);
        for (uint32_t i = 0; i < RANKS; i++) {
            saved_finish(b, i, step);
            bench_exit(b, i, FSM_EXIT_CODE, 0);
        }
        saved_form(b);
        assert_int_equal(b->m.size, 1);
        saved_go_on(b);
        assert_int_equal(b->m.restore.step, step);
        assert_int_equal(b->m.budget.failures, 0);
    }
}

/* A newcomer starts no program before it has a seat: how many steps it has, it doesn't know. */
static void with_more_workers_it_saves_first_too(void **state)
{
    struct bench *b = saved_run(state);
    const char *node = "node";
    uint32_t slot = 7;
    for (uint32_t i = 0; i < RANKS; i++)
        bench_progress(b, i, 5, "running");
    struct fsm_event set = { .kind = FSM_EV_SET, .set = { .workers = RANKS + 1 } };
    assert_int_equal(bench_apply(b, set), ST_OK);
    struct fsm_event spare = { .kind = FSM_EV_SPARE, .placed = { &node, &slot, 1, "spares" } };
    assert_int_equal(bench_apply(b, spare), ST_OK);
    const uint32_t at = bench_act(b, FSM_ACT_START, 0)->rank;
    bench_hello(b, at);
    bench_ready(b, at, 0);
    assert_false(b->m.ranks[at].ended);
    bench_say_parked(b, at);
    assert_non_null(strstr(bench_told(b, "resizing"), "from 2 workers to 3, whose programs"));
    (void)saved_announced(b);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_for_models_alone_counts_for_nothing),
        TEST(its_store_is_asked_and_its_last_save_is_its_success),
        TEST(saves_come_by_time_and_by_request),
        TEST(asked_to_go_it_saves_first_and_goes_on_from_there),
        TEST(a_node_that_leaves_has_all_save_first),
        TEST(a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used),
        TEST(nobody_is_a_source_whatever_it_says),
        TEST(copies_on_its_node_are_restored),
        TEST(copies_on_several_nodes_are_not),
        TEST(workers_have_their_grace_to_park),
        TEST(after_as_many_failures_as_its_budget_it_has_failed),
        TEST(before_its_first_step_it_has_less),
        TEST(with_another_number_of_workers_it_saves_first),
        TEST(with_more_workers_it_saves_first_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
