/* Failures by the fault of a node: other pins, missing data, processes that can't be started. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static void place_all_on(struct bench *b, const char *node)
{
    const char *nodes[LIMIT_RANKS];
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        nodes[i] = node;
    for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
    bench_place_on(b, nodes);
    if (!b->m.probed)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

static void find_nowhere(struct bench *b)
{
    assert_int_equal(bench_ask(b, FSM_EV_NOWHERE), ST_OK);
}

/* ---- pins ---- */

static void say_pins(struct bench *b, uint32_t rank, bool differ)
{
    struct fsm_event ready = {
        .kind = FSM_EV_READY,
        .generation = b->m.generation,
        .rank = rank,
        .ready = { .total_steps = 10, .pins_differ = differ ? "another CPU" : NULL },
    };
    assert_int_equal(bench_apply(b, ready), ST_OK);
}

static void form_on(struct bench *b, const char *const *nodes)
{
    for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
    bench_place_on(b, nodes);
    if (!b->m.probed)
        bench_probe(b, ST_OK);
    for (uint32_t i = 0; i < b->m.config.ranks; i++)
        bench_hello(b, i);
}

static void all_nodes_with_other_pins_are_left_out_at_once(void **state)
{
    static const char *const nodes[] = { "a", "b", "c", "b" };
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = 4;
    bench_reopen(b, &config);
    form_on(b, nodes);
    say_pins(b, 1, true);
    bench_is_state(b, "FORMING"); /* until the others have said theirs */
    say_pins(b, 2, true);
    say_pins(b, 0, false);
    bench_is_state(b, "FORMING");
    say_pins(b, 3, true);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PINS);
    assert_string_equal(bench_told(b, "pins"), "left out: b, c");
    assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_PINS), 2);
    assert_int_equal(b->m.budget.no_progress, 0);
}

static void ranks_that_do_not_say_their_pins_are_not_waited_for(void **state)
{
    static const char *const nodes[] = { "a", "b" };
    struct bench *b = *state;
    form_on(b, nodes);
    say_pins(b, 1, true);
    bench_tick(b, 4900);
    bench_is_state(b, "FORMING");
    bench_tick(b, 100);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PINS);
}

/* 10 of them used to be the end, and the ninth node was not left out. */
static void pins_use_no_generations_and_any_number_of_nodes_is_left_out(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = 1;
    bench_reopen(b, &config);
    for (int i = 0; i < 40; i++) {
        char name[16];
        const char *const nodes[] = { name };
        (void)snprintf(name, sizeof(name), "n%d", i);
        form_on(b, nodes);
        say_pins(b, 0, true);
        bench_all_exit(b);
        bench_is_state(b, "RECOVERING");
    }
    assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_PINS), 40);
    bench_restart(b, 1000);
    assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_PINS), 40);
    struct fsm_event renewed = { .kind = FSM_EV_NODE, .node = { "n7" } };
    assert_int_equal(bench_apply(b, renewed), ST_OK);
    assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_PINS), 39);
    assert_non_null(bench_act(b, FSM_ACT_SCHEDULE, 0));
}

/* `every: auto` goes by how many there are, wherever its ranks are on them. */
static void a_node_counts_once(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    const char *const nodes[] = { "b", "a", "b", "c", "a" };
    config.ranks = 5;
    bench_reopen(b, &config);
    bench_place_on(b, nodes);
    assert_int_equal(fsm_interval_facts(&b->m).nodes, 3);
    assert_string_equal(b->m.ranks[1].node, "a"); /* they stay where they are */
}

/* ---- what a node does not have ---- */

static void data_that_one_node_does_not_have_costs_the_job_nothing(void **state)
{
    struct bench *b = *state;
    place_all_on(b, "a");
    bench_hello(b, 0);
    bench_fault_of_node(b, 0, FSM_FAULT_USER);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(bench_act(b, FSM_ACT_BLAME, 0)->rank, 0);
    assert_true(bench_avoids(b, "a"));
    assert_int_equal(b->m.budget.no_progress, 0);
    bench_all_exit(b);
    assert_true(fsm_wants_slots(&b->m, b->now)); /* at once */
    place_all_on(b, "b");
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, 100);
    bench_ready(b, 1, 100);
    bench_is_state(b, "RUNNING");
}

static void data_that_a_second_node_does_not_have_either_may_be_on_a_third(void **state)
{
    struct bench *b = *state;
    place_all_on(b, "a");
    bench_fault_of_node(b, 0, FSM_FAULT_USER);
    bench_all_exit(b);
    bench_restart(b, 1000); /* it is journalled */
    place_all_on(b, "b");
    bench_fault_of_node(b, 1, FSM_FAULT_USER);
    assert_non_null(bench_act(b, FSM_ACT_CLEAR, 0)); /* neither node is to blame */
    assert_null(bench_act(b, FSM_ACT_BLAME, 0));
    bench_all_exit(b);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.budget.no_progress, 0);
    bench_run(b, 100);
}

/* The data may be on another node, but a mistake in the job file has to be told in finite time. */
static void data_that_no_node_has_are_a_user_error(void **state)
{
    struct bench *b = *state;
    char name[16];
    for (int i = 0; i < 16; i++) {
        bench_is_state(b, i == 0 ? "QUEUED" : "RECOVERING");
        (void)snprintf(name, sizeof(name), "node%d", i);
        place_all_on(b, name);
        bench_fault_of_node(b, 0, FSM_FAULT_USER);
        bench_all_exit(b);
    }
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "no such file"));
    assert_non_null(strstr(b->m.reason, "on 16 nodes: node0, node1"));
}

static void all_nodes_of_a_generation_that_lack_data_are_kept_away_from(void **state)
{
    static const char *const nodes[] = { "a", "b" };
    struct bench *b = *state;
    bench_place_on(b, nodes);
    bench_probe(b, ST_OK);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_fault_of_node(b, 0, FSM_FAULT_USER);
    bench_fault_of_node(b, 1, FSM_FAULT_USER); /* the generation ends already */
    assert_true(bench_avoids(b, "a"));
    assert_true(bench_avoids(b, "b"));
    bench_all_exit(b);
    bench_is_state(b, "RECOVERING");
    find_nowhere(b);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "/data: no such file; it failed on 2 nodes: a, b");
}

static void where_no_other_node_could_take_it_a_user_error_is_one_at_once(void **state)
{
    struct bench *b = *state;
    place_all_on(b, "a");
    bench_fault_of_node(b, 0, FSM_FAULT_USER);
    bench_all_exit(b);
    find_nowhere(b);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "/data: no such file");
    assert_int_equal(b->m.restarts, 0);
}

/* The job ran on that node, so nothing is lacking there. */
static void where_the_store_failed_it_is_tried_again_before_that(void **state)
{
    struct bench *b = *state;
    place_all_on(b, "a");
    bench_fault_of_node(b, 0, FSM_FAULT_STORE);
    bench_all_exit(b);
    place_all_on(b, "b");
    bench_fault_of_node(b, 0, FSM_FAULT_USER);
    bench_all_exit(b);
    find_nowhere(b);
    bench_is_state(b, "RECOVERING");
    assert_false(bench_avoids(b, "a"));
    assert_true(bench_avoids(b, "b"));
    place_all_on(b, "a");
    bench_fault_of_node(b, 0, FSM_FAULT_USER);
    bench_all_exit(b);
    find_nowhere(b);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "/data: no such file; it failed on 2 nodes: b, a");
}

static void fail_to_start(struct bench *b, const char *node)
{
    place_all_on(b, node);
    bench_exit(b, 0, FSM_EXIT_SPAWN_FAILED, 0);
    bench_all_exit(b);
}

/* Three failures on the same node in a row used to be the end. */
static void a_node_that_starts_nothing_uses_no_budget(void **state)
{
    struct bench *b = *state;
    fail_to_start(b, "a");
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.budget.used, 0);
    assert_int_equal(b->m.budget.no_progress, 0);
    assert_true(bench_avoids(b, "a"));
    bench_run(b, 100);
    bench_progress(b, 0, 5, "forward");
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    assert_false(bench_avoids(b, "a")); /* it got on meanwhile */
}

static void a_job_that_starts_nowhere_fails_with_the_cause(void **state)
{
    static const char *const nodes[] = { "a", "b", "c", "d", "e" };
    struct bench *b = *state;
    for (int i = 0; i < 4; i++) { /* the first node's counts for the node */
        bench_is_state(b, i == 0 ? "QUEUED" : "RECOVERING");
        fail_to_start(b, nodes[i]);
    }
    bench_is_state(b, "FAILED");
    assert_non_null(strstr(b->m.reason, "it went"));
    assert_non_null(strstr(b->m.reason, "three times at the same place"));
}

static void on_the_only_node_three_are_enough(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 3; i++) {
        fail_to_start(b, "a");
        find_nowhere(b);
        bench_is_state(b, i < 2 ? "RECOVERING" : "FAILED");
    }
    assert_non_null(strstr(b->m.reason, "it went"));
    assert_int_equal(b->m.restarts, 2);
}

static void no_hello_is_the_nodes_fault_until_it_is_repeated(void **state)
{
    struct bench *b = *state;
    place_all_on(b, "a");
    bench_tick(b, 60000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_FORMATION);
    assert_int_equal(b->m.budget.no_progress, 0);
    assert_non_null(bench_act(b, FSM_ACT_BLAME, 0));
    bench_all_exit(b);
    place_all_on(b, "b");
    bench_tick(b, 60000);
    assert_int_equal(b->m.budget.no_progress, 1);
}

static void resume_tries_all_nodes_again(void **state)
{
    struct bench *b = *state;
    fail_to_start(b, "a");
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_FAILED), 0);
}

/* ---- paths between nodes ---- */

#define CUT "a and b can't reach each other"

static void form_across(struct bench *b, const char *one, const char *other)
{
    const char *const nodes[] = { one, other };
    form_on(b, nodes);
    bench_is_state(b, "FORMING");
}

static void run_on(struct bench *b, const char *one, const char *other)
{
    form_across(b, one, other);
    bench_ready(b, 0, 1000);
    bench_ready(b, 1, 1000);
    bench_is_state(b, "RUNNING");
}

static void tell_path(struct bench *b)
{
    struct fsm_event event = { .kind = FSM_EV_PATH, .path = { CUT } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static bool suspects(const struct bench *b)
{
    return bench_count(b, FSM_ACT_SUSPECT) > 0;
}

static void a_job_that_stands_still_asks_once(void **state)
{
    struct bench *b = *state;
    run_on(b, "a", "b");
    bench_progress(b, 0, 1, "forward");
    bench_tick(b, 2900);
    assert_false(suspects(b));
    bench_tick(b, 200);
    assert_true(suspects(b));
    bench_tick(b, 500);
    assert_false(suspects(b));
    bench_progress(b, 0, 2, "forward");
    bench_progress(b, 1, 2, "forward");
    bench_tick(b, 3100);
    assert_true(suspects(b)); /* it got on meanwhile */
}

static void on_one_node_there_are_no_paths(void **state)
{
    struct bench *b = *state;
    run_on(b, "a", "a");
    bench_tick(b, 4000);
    assert_false(suspects(b));
}

static void who_is_about_to_start_across_it_is_placed_again(void **state)
{
    struct bench *b = *state;
    const char *const nodes[] = { "a", "b" };
    bench_place_on(b, nodes);
    bench_is_state(b, "PLACING");
    tell_path(b);
    bench_is_state(b, "QUEUED");
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_probe(b, ST_OK); /* the answer to what it was asked before */
    bench_is_state(b, "QUEUED");
}

static void what_stands_still_across_it_is_ended_and_nothing_is_counted(void **state)
{
    struct bench *b = *state;
    for (int i = 0; i < 15; i++) { /* of other failures without progress 10 are the end */
        form_across(b, "a", "b");
        bench_tick(b, 3100);
        assert_true(suspects(b));
        tell_path(b);
        bench_is_state(b, "RECOVERING");
        assert_int_equal(b->m.cause.kind, FSM_FAULT_PATH);
        assert_string_equal(bench_told(b, "fault"), "path: " CUT);
        assert_string_equal(b->m.reason, "path: " CUT);
        bench_all_exit(b);
        assert_true(fsm_wants_slots(&b->m, b->now)); /* at once */
    }
    assert_int_equal(b->m.budget.no_progress, 0);
    assert_int_equal(b->m.budget.used, 0);
}

static void a_job_that_gets_on_is_left_alone(void **state)
{
    struct bench *b = *state;
    run_on(b, "a", "b");
    bench_progress(b, 0, 1, "forward");
    bench_tick(b, 1000);
    tell_path(b);
    bench_is_state(b, "RUNNING");
    assert_false(bench_event(b, "fault"));
}

static void it_is_the_cause_of_what_failed_before(void **state)
{
    struct bench *b = *state;
    run_on(b, "a", "b");
    bench_fault(b, 1, FSM_FAULT_HANG, 0);
    bench_tick(b, 300);
    bench_is_state(b, "RECOVERING");
    assert_true(suspects(b));
    assert_int_equal(b->m.budget.used, 1);
    assert_int_equal(b->m.budget.no_progress, 1);
    tell_path(b);
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PATH);
    assert_string_equal(bench_told(b, "fault"), "path: " CUT "; seen first as hang");
    assert_int_equal(b->m.first_cause.kind, FSM_FAULT_PATH);
    assert_int_equal(b->m.budget.used, 0);
    assert_int_equal(b->m.budget.no_progress, 0);
    assert_int_equal(b->m.budget.failures, 0);
    tell_path(b); /* another one of them: one is enough */
    assert_false(bench_event(b, "fault"));
}

static void a_formation_that_failed_is_explained_by_it(void **state)
{
    struct bench *b = *state;
    form_across(b, "a", "b");
    bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 0);
    bench_tick(b, 300);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_FORMATION);
    assert_true(suspects(b));
    bench_all_exit(b);
    tell_path(b); /* all of it is gone by then */
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PATH);
    assert_int_equal(b->m.budget.no_progress, 0);
}

static void a_crash_is_not_explained_by_it(void **state)
{
    struct bench *b = *state;
    run_on(b, "a", "b");
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 11);
    assert_false(suspects(b));
    tell_path(b);
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PROCESS);
}

/* More of them than one turn has room for. */
static void many_trainers_that_do_not_die_count_as_gone(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    size_t unseen = 0;
    config.ranks = 300;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 11);
    bench_tick(b, 15000);
    for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++) {
        unseen += bench_count(b, FSM_ACT_UNSEEN);
        assert_true(fsm_deadline(&b->m) <= b->now); /* it goes on at once */
        bench_tick(b, 0);
    }
    assert_int_equal(unseen + bench_count(b, FSM_ACT_UNSEEN), 299);
    bench_is_state(b, "RECOVERING");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_node_counts_once),
        TEST(many_trainers_that_do_not_die_count_as_gone),
        TEST(all_nodes_with_other_pins_are_left_out_at_once),
        TEST(ranks_that_do_not_say_their_pins_are_not_waited_for),
        TEST(pins_use_no_generations_and_any_number_of_nodes_is_left_out),
        TEST(data_that_one_node_does_not_have_costs_the_job_nothing),
        TEST(data_that_a_second_node_does_not_have_either_may_be_on_a_third),
        TEST(data_that_no_node_has_are_a_user_error),
        TEST(all_nodes_of_a_generation_that_lack_data_are_kept_away_from),
        TEST(where_the_store_failed_it_is_tried_again_before_that),
        TEST(where_no_other_node_could_take_it_a_user_error_is_one_at_once),
        TEST(a_node_that_starts_nothing_uses_no_budget),
        TEST(a_job_that_starts_nowhere_fails_with_the_cause),
        TEST(on_the_only_node_three_are_enough),
        TEST(no_hello_is_the_nodes_fault_until_it_is_repeated),
        TEST(resume_tries_all_nodes_again),
        TEST(a_job_that_stands_still_asks_once),
        TEST(on_one_node_there_are_no_paths),
        TEST(who_is_about_to_start_across_it_is_placed_again),
        TEST(what_stands_still_across_it_is_ended_and_nothing_is_counted),
        TEST(a_job_that_gets_on_is_left_alone),
        TEST(it_is_the_cause_of_what_failed_before),
        TEST(a_formation_that_failed_is_explained_by_it),
        TEST(a_crash_is_not_explained_by_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
