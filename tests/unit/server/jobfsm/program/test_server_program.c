/* Jobs with programs that Cairn saves: saved as models are, and started anew with each
 * generation. */
#include <stdio.h>
#include <string.h>

#include "server/jobfsm/ctx.h"
#include "server/jobfsm/inspect/blocked.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS    2
#define GRACE_MS 30000
#define BUDGET   4
#define STEPS    1000

static struct fsm_config config_of_program(void)
{
    /* What is for models counts for nothing. */
    return (struct fsm_config){ .ranks = RANKS,
                                .most = 4,
                                .lanes = 8,
                                .owns = true,
                                .audited = 10,
                                .keep_last = 3,
                                .hang_ms = 30000,
                                .program = true,
                                .budget = BUDGET,
                                .grace_ms = GRACE_MS };
}

/* From RECOVERING, or QUEUED, to FORMING; nodes: by rank. */
static void form_on(struct bench *b, const char *const *nodes)
{
    if (b->m.retry_at > b->now)
        bench_tick(b, b->m.retry_at - b->now);
    bench_place_on(b, nodes);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

static void form(struct bench *b)
{
    static const char *const nodes[] = { "node", "node", "node", "node" };
    form_on(b, nodes);
}

static void go_on(struct bench *b)
{
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_ready(b, i, STEPS);
    bench_is_state(b, "RUNNING");
}

static struct bench *run_with(void **state, struct fsm_config config)
{
    struct bench *b = *state;
    bench_reopen(b, &config);
    form(b);
    go_on(b);
    return b;
}

static struct bench *run(void **state)
{
    return run_with(state, config_of_program());
}

static void finish(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = { .kind = FSM_EV_FINISHED,
                               .generation = b->m.generation,
                               .rank = rank,
                               .finished = { .step = step } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* The program of a rank failed, and its worker stays. */
static void fail_one(struct bench *b, uint32_t rank)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_PROCESS,
                               .rank = FSM_ALL_RANKS,
                               .stays = true,
                               .message = "the program exited with code 1" };
    struct fsm_event event = {
        .kind = FSM_EV_FAULT, .generation = b->m.generation, .rank = rank, .fault = &fault
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* It does, and all workers park; those who say so bring a whole state, which none of them has. */
static void fail_and_park(struct bench *b)
{
    fail_one(b, 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    for (uint32_t i = 0; i < b->m.size; i++) {
        struct fsm_event event = { .kind = FSM_EV_PARKED,
                                   .rank = i,
                                   .generation = b->m.generation };
        event.parked = (struct fsm_parked_state){ .complete = true,
                                                  .step = b->m.ranks[i].step,
                                                  .computed_by = b->m.generation };
        assert_int_equal(bench_apply(b, event), ST_OK);
    }
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_KEPT);
}

/* A hello with the share of `share` of a state of RANKS. */
static void offer(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation)
{
    struct fsm_copy copies[RANKS];
    for (uint32_t i = 0; i < RANKS; i++) {
        copies[i] =
            (struct fsm_copy){ .step = step, .generation = generation, .rank = i, .size = RANKS };
    }
    struct fsm_event hello = { .kind = FSM_EV_HELLO,
                               .rank = rank,
                               .generation = b->m.generation,
                               .hello = {
                                   .pid = 100 + rank, .copies = copies, .copy_count = RANKS } };
    assert_int_equal(bench_apply(b, hello), ST_OK);
}

/* The save that the last event announced, which workers leave with. */
static uint64_t announced(const struct bench *b)
{
    const struct fsm_action *save = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(save);
    assert_true(save->exit);
    return save->step;
}

/* All come to the step, save it and leave. */
static void save_and_leave(struct bench *b, uint64_t step)
{
    const uint32_t size = b->m.size;
    bench_commit(b, step);
    for (uint32_t i = 0; i < size; i++) {
        finish(b, i, step);
        bench_exit(b, i, FSM_EXIT_CODE, 0);
    }
}

/* ---- as models ---- */

static void what_is_for_models_alone_counts_for_nothing(void **state)
{
    struct bench *b = run(state);
    assert_int_equal(b->m.config.lanes, 0);
    assert_false(b->m.config.owns);
    assert_int_equal(b->m.config.audited, 0);
    assert_int_equal(b->m.config.keep_last, 3);
    struct fsm_config config = config_of_program();
    config.program = false;
    config.saves_nothing = true;
    bench_reopen(b, &config);
    assert_true(b->m.config.program);
    assert_int_equal(b->m.config.keep_last, 0);
}

static void its_store_is_asked_and_its_last_save_is_its_success(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = config_of_program();
    bench_reopen(b, &config);
    bench_place(b);
    bench_is_state(b, "PLACING");
    bench_probe(b, ST_OK);
    go_on(b);
    bench_commit(b, 500);
    bench_is_state(b, "RUNNING");
    assert_non_null(fsm_newest(&b->m));
    bench_commit(b, STEPS);
    assert_int_equal(b->m.ending.to, FSM_SUCCEEDED);
    for (uint32_t i = 0; i < RANKS; i++) {
        finish(b, i, STEPS);
        bench_exit(b, i, FSM_EXIT_CODE, 0);
    }
    bench_is_state(b, "SUCCEEDED");
    assert_int_equal(fsm_newest(&b->m)->step, STEPS);
    assert_string_not_equal(b->m.final_digest, "");
}

static void saves_come_by_time_and_by_request(void **state)
{
    struct fsm_config config = config_of_program();
    config.every_ms = 60000;
    struct bench *b = run_with(state, config);
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
        struct bench *b = run(state);
        assert_int_equal(bench_ask(b, rows[i].ask), ST_OK);
        bench_is_state(b, "SAVING");
        assert_null(bench_act(b, FSM_ACT_CLOSE, 0)); /* nobody is told to end before that */
        const uint64_t step = announced(b);
        save_and_leave(b, step);
        bench_is_state(b, rows[i].state);
        assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
        form(b);
        for (uint32_t r = 0; r < RANKS; r++)
            bench_hello(b, r);
        assert_int_equal(b->m.restore.step, step);
        assert_int_equal(b->m.restore.generation, 1);
    }
}

static void a_node_that_leaves_has_all_save_first(void **state)
{
    struct bench *b = run(state);
    struct fsm_event told = {
        .kind = FSM_EV_LEAVING, .generation = 1, .rank = 1, .leaving = { "node n leaves" }
    };
    assert_int_equal(bench_apply(b, told), ST_OK);
    save_and_leave(b, announced(b));
    bench_is_state(b, "RECOVERING");
    form(b);
    assert_int_equal(b->m.budget.failures, 0);
}

static void a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(void **state)
{
    struct bench *b = run(state);
    bench_commit(b, 10);
    bench_commit(b, 20);
    fail_and_park(b);
    form(b);
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
    form(b);
    for (uint32_t r = 0; r < RANKS; r++)
        bench_hello(b, r);
    assert_int_equal(b->m.restore.step, 10);
}

/* ---- workers that stay have no state ---- */

static void nobody_is_a_source_whatever_it_says(void **state)
{
    struct bench *b = run(state);
    bench_commit(b, 10);
    bench_progress(b, 0, 17, "running");
    fail_and_park(b);
    form(b);
    assert_non_null(strstr(bench_told(b, "forming"), "2 of them stay; their programs start anew"));
    go_on(b);
    assert_false(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 10);
    assert_int_equal(b->m.replay_until, 17); /* what is repeated counts */
    assert_int_equal(fsm_restored_from(&b->m), RECOVERY_CHECKPOINT);
}

static void copies_on_its_node_are_restored(void **state)
{
    struct bench *b = run(state);
    bench_commit(b, 10);
    bench_progress(b, 0, 17, "running");
    fail_and_park(b);
    form(b);
    offer(b, 0, 16, 1);
    offer(b, 1, 16, 1);
    assert_int_equal(b->m.restore.memory_generation, 1);
    assert_int_equal(b->m.restore.step, 16);
    assert_int_equal(fsm_restored_from(&b->m), RECOVERY_MEMORY);
}

static void copies_on_several_nodes_are_not(void **state)
{
    static const char *const nodes[] = { "a", "b" };
    struct bench *b = *state;
    struct fsm_config config = config_of_program();
    bench_reopen(b, &config);
    form_on(b, nodes);
    go_on(b);
    bench_commit(b, 10);
    bench_progress(b, 0, 17, "running");
    fail_and_park(b);
    form_on(b, nodes);
    offer(b, 0, 16, 1);
    offer(b, 1, 16, 1);
    assert_non_null(strstr(bench_told(b, "memory"), "step 16 in memory are not used"));
    assert_int_equal(b->m.restore.memory_generation, 0);
    assert_int_equal(b->m.restore.step, 10);
    assert_int_equal(fsm_restored_from(&b->m), RECOVERY_CHECKPOINT);
}

static void workers_have_their_grace_to_park(void **state)
{
    struct bench *b = run(state);
    fail_one(b, 1);
    bench_tick(b, GRACE_MS + FSM_PARK_MS - 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING);
    bench_tick(b, 1);
    assert_int_equal(fsm_gen(&b->m), FSM_GEN_PARKING_LATE);
}

static void after_as_many_failures_as_its_budget_it_has_failed(void **state)
{
    struct bench *b = run(state);
    for (uint32_t i = 1; i < BUDGET; i++) {
        fail_one(b, 1);
        bench_is_state(b, "RECOVERING");
        for (uint32_t r = 0; r < RANKS; r++) {
            bench_say_parked(b, r);
            if (!b->m.ranks[r].parked && !b->m.ranks[r].gone)
                bench_exit(b, r, FSM_EXIT_CODE, 4);
        }
        form(b);
        go_on(b);
    }
    fail_one(b, 1);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
    assert_non_null(strstr(b->m.reason, "the budget is 4"));
}

/* Workers that stay don't have it, and another number of them may not find all copies. */
static void with_another_number_of_workers_it_saves_first(void **state)
{
    for (int restarts = 0; restarts < 2; restarts++) {
        struct fsm_config config = config_of_program();
        config.restarts = restarts == 1;
        struct bench *b = run_with(state, config);
        bench_progress(b, 0, 5, "running");
        struct fsm_event set = { .kind = FSM_EV_SET, .set = { .workers = 1 } };
        assert_int_equal(bench_apply(b, set), ST_OK);
        assert_null(bench_act(b, FSM_ACT_PARK, 0));
        const uint64_t step = announced(b);
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
            finish(b, i, step);
            bench_exit(b, i, FSM_EXIT_CODE, 0);
        }
        form(b);
        assert_int_equal(b->m.size, 1);
        go_on(b);
        assert_int_equal(b->m.restore.step, step);
        assert_int_equal(b->m.budget.failures, 0);
    }
}

/* A newcomer starts no program before it has a seat: how many steps it has, it doesn't know. */
static void with_more_workers_it_saves_first_too(void **state)
{
    struct bench *b = run(state);
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
    (void)announced(b);
}

/* ---- how programs end ---- */

static void a_program_that_ends_before_its_last_step_has_failed(void **state)
{
    for (int said = 0; said < 2; said++) {
        struct bench *b = run(state);
        bench_progress(b, 1, 57, "running");
        if (said) {
            finish(b, 1, 57);
        } else {
            bench_exit(b, 1, FSM_EXIT_FINISHED, 0);
        }
        bench_is_state(b, "RECOVERING");
        assert_int_equal(b->m.cause.kind, FSM_FAULT_PROCESS);
        assert_int_equal(b->m.cause.rank, 1);
        assert_non_null(strstr(b->m.cause.message, "after step 57, before its last step: 1000"));
    }
}

static void a_program_that_ends_before_it_is_ready_too(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = config_of_program();
    bench_reopen(b, &config);
    form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    finish(b, 0, 0);
    assert_int_equal(b->m.cause.rank, 0);
    assert_non_null(strstr(b->m.cause.message, "before it was ready"));
}

static void it_may_leave_with_an_earlier_save_than_was_announced(void **state)
{
    for (int moves = 0; moves < 2; moves++) {
        struct bench *b = run(state);
        struct fsm_event told = { .kind = FSM_EV_SAVE_WANTED,
                                  .generation = 1,
                                  .rank = 1,
                                  .save_wanted = { true, 5000, "SIGTERM" } };
        for (uint32_t i = 0; i < RANKS; i++)
            bench_progress(b, i, 40, "running");
        if (moves) {
            assert_int_equal(bench_apply(b, told), ST_OK);
        } else {
            assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
        }
        assert_true(announced(b) > 40);
        bench_save_until(b, 40, FSM_SAVE_COMMITTED); /* of copies of step 40 */
        bench_is_state(b, moves ? "RUNNING" : "SAVING");
        finish(b, 0, 40);
        assert_false(fsm_ends(&b->m)); /* the other one follows */
        bench_exit(b, 0, FSM_EXIT_CODE, 0);
        finish(b, 1, 40);
        assert_int_equal(b->m.ending.to, moves ? FSM_RECOVERING : FSM_PAUSED);
        bench_exit(b, 1, FSM_EXIT_CODE, 0);
        bench_is_state(b, moves ? "RECOVERING" : "PAUSED");
        assert_int_equal(b->m.budget.failures, 0);
    }
}

/* ---- forming ---- */

static void another_number_of_steps_is_accepted_from_all(void **state)
{
    struct bench *b = run(state);
    fail_and_park(b);
    form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, 2 * STEPS);
    assert_non_null(strstr(bench_told(b, "steps"), "has 2000 steps now, and had 1000 before"));
    bench_ready(b, 1, 2 * STEPS);
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.total_steps, 2 * STEPS);
    assert_false(bench_event(b, "steps"));
}

static void ranks_that_say_different_numbers_of_steps_are_refused(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = config_of_program();
    bench_reopen(b, &config);
    form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, STEPS);
    bench_ready(b, 1, STEPS + 1);
    assert_int_equal(b->m.ending.to, FSM_FAILED);
    assert_non_null(strstr(b->m.reason, "all ranks have to say the same"));
}

static void who_waits_for_a_program_to_be_ready_is_told(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = config_of_program();
    struct fsm_blocked blocked;
    bench_reopen(b, &config);
    form(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, STEPS);
    for (int i = 0; i < 600; i++) { /* its worker lives, and what it does counts up */
        b->now += 1000;
        bench_counter(b, 0, 0, "running", (uint64_t)b->now);
        bench_counter(b, 1, 0, "starting", (uint64_t)b->now);
    }
    bench_is_state(b, "FORMING");
    fsm_blocked(&b->m, b->now, &blocked);
    assert_int_equal(blocked.by, FSM_BLOCK_FORMING);
    assert_non_null(strstr(blocked.text, "1 of 2 workers are ready; rank 1 on node node"));
    assert_non_null(strstr(blocked.text, "600 s ago, its program has not called cairn_ready"));
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_CODE, 4);
    bench_is_state(b, "PAUSED");
}

static void asked_once_more_while_it_starts_anew_it_goes_at_once(void **state)
{
    struct bench *b = run(state);
    bench_commit(b, 10);
    fail_and_park(b);
    form(b);
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_is_state(b, "FORMING"); /* what is in memory is to be saved first */
    assert_false(fsm_ends(&b->m));
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    assert_true(fsm_ends(&b->m));
    for (uint32_t i = 0; i < RANKS; i++)
        bench_exit(b, i, FSM_EXIT_CODE, 4);
    bench_is_state(b, "PAUSED");
    assert_int_equal(fsm_newest(&b->m)->step, 10);
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
        TEST(with_another_number_of_workers_it_saves_first),
        TEST(with_more_workers_it_saves_first_too),
        TEST(a_program_that_ends_before_its_last_step_has_failed),
        TEST(a_program_that_ends_before_it_is_ready_too),
        TEST(it_may_leave_with_an_earlier_save_than_was_announced),
        TEST(another_number_of_steps_is_accepted_from_all),
        TEST(ranks_that_say_different_numbers_of_steps_are_refused),
        TEST(who_waits_for_a_program_to_be_ready_is_told),
        TEST(asked_once_more_while_it_starts_anew_it_goes_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
