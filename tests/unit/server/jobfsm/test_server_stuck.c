/* The job's state machine: what hangs, and what would be waited for without end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* Both ranks talk, neither gets on. */
static void stand_still(struct bench *b, uint64_t step, int64_t ms)
{
    for (int64_t t = 0; t < ms; t += 1000) {
        b->now += 1000;
        for (uint32_t i = 0; i < 2; i++)
            bench_counter(b, i, step, "reduce", 77);
    }
}

static void come_to(struct bench *b, uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, step, "reduce");
}

static void recover(struct bench *b)
{
    bench_all_exit(b);
    for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
}

/* ---- a process that can't die ---- */

/* Waits while the agent and the process of the worker are there. */
static void wait_unkillable(struct bench *b)
{
    for (int i = 0; i < 14; i++)
        bench_tick(b, 1000);
    assert_int_equal(bench_count(b, FSM_ACT_UNSEEN), 0);
    bench_tick(b, 1000);
}

static void a_trainer_that_does_not_die_counts_as_gone_and_keeps_its_slot(void **state)
{
    struct bench *b = *state;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 11);
    assert_non_null(bench_act(b, FSM_ACT_END, 0));
    wait_unkillable(b);
    assert_int_equal(bench_act(b, FSM_ACT_UNSEEN, 0)->rank, 1);
    assert_non_null(strstr(bench_told(b, "undying"), "rank 1 on node node, slot 1"));
    assert_non_null(bench_act(b, FSM_ACT_CLOSE, 0)); /* should its stream be open */
    bench_is_state(b, "RECOVERING");
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_run(b, BENCH_STEPS);
    assert_int_equal(b->m.generation, 2);
    struct fsm_event late = { .kind = FSM_EV_EXITED, .generation = 1, .rank = 1 };
    assert_int_equal(bench_apply(b, late), ST_OK);
    bench_is_state(b, "RUNNING"); /* that it died at last is nothing to the job */
}

static void kill_ends_though_a_trainer_does_not_die(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    wait_unkillable(b);
    bench_is_state(b, "KILLED");
}

static void after_a_restart_the_time_counts_anew(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_restart(b, 20000);
    for (uint32_t i = 0; i < 2; i++) { /* their agent lists them */
        struct fsm_event started = { .kind = FSM_EV_STARTED, .generation = 1, .rank = i };
        assert_int_equal(bench_apply(b, started), ST_OK);
    }
    wait_unkillable(b);
    assert_int_equal(bench_count(b, FSM_ACT_UNSEEN), 2);
    bench_is_state(b, "KILLED");
}

/* Nobody saw it go: who takes its slot, once the node is back, must not meet it there. */
static void a_trainer_lost_with_its_node_keeps_its_slot(void **state)
{
    struct bench *b = *state;
    struct fsm_event silent = { .kind = FSM_EV_AGENT, .generation = 1, .rank = 1 };
    silent.agent.state = FSM_AGENT_SILENT;
    silent.agent.saw = "";
    assert_int_equal(bench_apply(b, silent), ST_OK);
    b->now += 6000;
    bench_counter(b, 0, 0, "forward", 5);
    assert_int_equal(b->m.cause.kind, FSM_FAULT_NODE);
    assert_int_equal(bench_act(b, FSM_ACT_UNSEEN, 0)->rank, 1);
}

/* ---- a hang while the store is slow ---- */

/* The store fails, and is asked again and again. */
static void publish_fails(struct bench *b, uint64_t step)
{
    bench_store(b, FSM_TASK_PUBLISH, step, b->m.generation, ST_IO);
}

static void a_hang_is_seen_while_a_publish_is_repeated(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, FSM_SAVE_COMMITTING);
    publish_fails(b, 10);
    stand_still(b, 10, 29000);
    bench_is_state(b, "RUNNING");
    publish_fails(b, 10);
    stand_still(b, 10, 3000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
}

static void a_hang_is_seen_while_a_removal_is_repeated(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, FSM_SAVE_COLLECTING);
    for (uint32_t i = 0; i < 2; i++)
        bench_save_fails(b, i, 10);
    bench_store(b, FSM_TASK_DROP, 10, 1, ST_IO);
    stand_still(b, 10, 32000);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
}

/* A job that only waits for its last save waits for the store, however long. */
static void who_waits_for_the_last_save_does_not_hang(void **state)
{
    struct bench *b = *state;
    come_to(b, BENCH_STEPS);
    bench_save_until(b, BENCH_STEPS, FSM_SAVE_COMMITTING);
    publish_fails(b, BENCH_STEPS);
    stand_still(b, BENCH_STEPS, 200000);
    bench_is_state(b, "SAVING");
    bench_store(b, FSM_TASK_PUBLISH, BENCH_STEPS, 1, ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "SUCCEEDED");
}

static void nor_does_who_waits_for_the_save_that_it_leaves_after(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    come_to(b, step);
    bench_save_until(b, step, FSM_SAVE_OPENING);
    stand_still(b, step, 100000);
    bench_is_state(b, "SAVING");
}

/* ---- a saver that hangs ---- */

/* Both train, or wait with a counter that rises; only the savers of those in `writes` get on. */
static void savers_for(struct bench *b, uint64_t step, int64_t ms, uint32_t writes)
{
    const uint32_t generation = b->m.generation;
    for (int64_t t = 0; t < ms && b->m.generation == generation; t += 1000) {
        b->now += 1000;
        for (uint32_t i = 0; i < 2; i++) {
            struct fsm_event event = { .kind = FSM_EV_PROGRESS,
                                       .generation = generation,
                                       .rank = i };
            const bool hangs = !(writes & 1u << i);
            event.progress = (struct fsm_progress){ .step = step,
                                                    .phase = "forward",
                                                    .counter = (uint64_t)b->now,
                                                    .saving = hangs ? 0 : (uint64_t)b->now,
                                                    .at_store = hangs };
            assert_int_equal(bench_apply(b, event), ST_OK);
        }
    }
}

/* Reports that a rank has removed its file of a save. A rank that has such a file, or may have one,
 * hears of the drop only when its saver is through. */
static void removed(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = { .kind = FSM_EV_SAVE_FAILED,
                               .generation = b->m.generation,
                               .rank = rank };
    event.save_failed.step = step;
    event.save_failed.removed = true;
    event.save_failed.message = "removed";
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void a_save_whose_rank_writes_nothing_any_more_is_dropped(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 10);
    savers_for(b, 10, 119000, 0);
    assert_int_equal(fsm_find_save(&b->m, 10, 1)->state, FSM_SAVE_COLLECTING);
    assert_string_equal(fsm_health(&b->m), "ok");
    savers_for(b, 11, 2000, 0);
    assert_int_equal(fsm_find_save(&b->m, 10, 1)->state, FSM_SAVE_DROPPING);
    bench_is_state(b, "RUNNING"); /* nothing but a checkpoint is lost */
    assert_string_equal(fsm_health(&b->m), "degraded");
    assert_non_null(strstr(b->m.reason, "rank 1 on node node wrote nothing"));
    removed(b, 0, 10);
    removed(b, 1, 10);
    bench_store(b, FSM_TASK_DROP, 10, 1, ST_OK);
    bench_commit(b, 20);
    assert_true(bench_event(b, "store-works"));
    assert_string_equal(fsm_health(&b->m), "ok");
    assert_string_equal(b->m.reason, "");
}

static void a_slow_save_takes_as_long_as_it_takes(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, FSM_SAVE_COLLECTING);
    savers_for(b, 11, 1000000, 3);
    assert_int_equal(fsm_find_save(&b->m, 10, 1)->state, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 10);
    bench_report(b, 1, 10);
    assert_int_equal(fsm_find_save(&b->m, 10, 1)->state, FSM_SAVE_CHECKING);
}

/* The rank's next save is not even begun there, as the one before is still written. */
static void so_is_one_that_a_rank_can_not_begin(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_begin(b, 0, 10);
    bench_store(b, FSM_TASK_FOLDER, 10, 1, ST_OK);
    savers_for(b, 10, 122000, 0);
    assert_int_equal(fsm_find_save(&b->m, 10, 1)->state, FSM_SAVE_DROPPING);
    assert_non_null(strstr(b->m.reason, "rank 0"));
}

static uint64_t pause(struct bench *b)
{
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    come_to(b, step);
    bench_save_until(b, step, FSM_SAVE_COLLECTING);
    return step;
}

static void a_pause_says_what_it_waits_for(void **state)
{
    struct bench *b = *state;
    uint64_t step = pause(b);
    bench_report(b, 0, step);
    savers_for(b, step, 6000, 0);
    assert_non_null(strstr(b->m.reason, "waits for rank 1 on node node to write its file"));
    bench_report(b, 1, step);
    bench_store(b, FSM_TASK_CHECK, step, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, step, 1, ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "PAUSED");
    assert_string_equal(b->m.reason, "");
}

/* The store hangs for all: no other generation would do better. It is told, and tried again. */
static void a_pause_waits_for_a_store_that_hangs_for_all(void **state)
{
    struct bench *b = *state;
    uint64_t step = pause(b);
    savers_for(b, step, 1000000, 0);
    bench_is_state(b, "SAVING");
    assert_int_equal(b->m.generation, 1);
    assert_int_equal(b->m.ending.to, FSM_NONE);
    assert_string_equal(fsm_health(&b->m), "degraded");
    assert_non_null(strstr(b->m.reason, "wrote nothing to the store"));
    for (uint32_t i = 0; i < 2; i++) /* it is back: the savers are through with what was dropped */
        removed(b, i, step);
    bench_store(b, FSM_TASK_DROP, step, 1, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_begin(b, i, step);
    bench_tick(b, 40000);
    bench_store(b, FSM_TASK_FOLDER, step, 1, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_report(b, i, step);
    bench_store(b, FSM_TASK_CHECK, step, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, step, 1, ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "PAUSED");
}

/* The others wrote theirs: it is that rank's node that doesn't reach the store. */
static void the_last_save_goes_elsewhere_if_one_rank_hangs(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    come_to(b, BENCH_STEPS);
    bench_save_until(b, BENCH_STEPS, FSM_SAVE_COLLECTING);
    bench_report(b, 0, BENCH_STEPS);
    savers_for(b, BENCH_STEPS, 122000, 0);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_STORE);
    assert_int_equal(b->m.cause.rank, 1);
    assert_int_equal(b->m.budget.used, 0);
}

static void answer_probe(struct bench *b, enum status status)
{
    assert_true(b->m.probing);
    bench_store(b, FSM_TASK_PROBE, 0, b->m.generation, status);
}

/* The rank would save nothing any more, and lose all that it trains from now on. */
static void a_rank_whose_saver_hangs_for_good_is_ended(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    savers_for(b, 20, 500000, 1);
    bench_is_state(b, "RUNNING");
    answer_probe(b, ST_OK);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_STORE);
    assert_int_equal(b->m.cause.rank, 1);
    assert_int_equal(b->m.budget.used, 0);
    assert_true(bench_avoids(b, "node"));
    assert_non_null(strstr(b->m.reason, "rank 1 on node node wrote nothing to the store for"));
}

/* If all savers hang, the store may be the cause: training is all that can be done meanwhile. */
static void while_all_savers_hang_training_goes_on(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    savers_for(b, 20, 5000000, 0);
    bench_is_state(b, "RUNNING");
    assert_false(b->m.probing);
}

/* A saver that failed doesn't show that the store is there: the store may hang for data alone. */
static void so_it_does_while_the_others_fail(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    bench_save_until(b, 20, FSM_SAVE_COLLECTING);
    struct fsm_event failed = { .kind = FSM_EV_SAVE_FAILED, .generation = 1, .rank = 0 };
    failed.save_failed.step = 20;
    failed.save_failed.removed = true;
    failed.save_failed.message = "input/output error";
    assert_int_equal(bench_apply(b, failed), ST_OK);
    savers_for(b, 20, 1000000, 1);
    bench_is_state(b, "RUNNING");
    assert_false(b->m.probing);
    removed(b, 1, 20); /* it got on, and so did the store */
    bench_commit(b, 30);
    savers_for(b, 40, 500000, 1);
    assert_true(b->m.probing);
}

/* All that is left is to wait for them: the next workers may be luckier, if the store is there. */
static void after_the_last_step_they_are_not_waited_for_without_end(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    savers_for(b, 20, 500000, 0);
    savers_for(b, BENCH_STEPS, 1000, 0); /* and can't even begin the last save */
    answer_probe(b, ST_IO);
    savers_for(b, BENCH_STEPS, 59000, 0);
    bench_is_state(b, "RUNNING");
    assert_false(b->m.probing);
    savers_for(b, BENCH_STEPS, 2000, 0);
    answer_probe(b, ST_OK);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_STORE);
}

static void a_saver_that_goes_on_before_the_answer_is_left_alone(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    savers_for(b, BENCH_STEPS, 500000, 0);
    savers_for(b, BENCH_STEPS, 1000, 3);
    answer_probe(b, ST_OK);
    savers_for(b, BENCH_STEPS, 100000, 0);
    bench_is_state(b, "RUNNING");
    assert_false(b->m.probing);
}

/* Rank 1 of a job that ends with the step hangs in its file; rank 0 wrote. */
static void last_save_hangs_on(struct bench *b, const char *first, const char *second)
{
    const char *const nodes[] = { first, second };
    bench_place_on(b, nodes);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < 2; i++)
        bench_ready(b, i, 100);
    bench_is_state(b, "RUNNING");
    come_to(b, 100);
    bench_save_until(b, 100, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 100);
    savers_for(b, 100, 122000, 0);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_STORE);
    assert_int_equal(b->m.budget.used, 0);
    bench_all_exit(b);
    bench_store(b, FSM_TASK_DROP, 100, b->m.generation, ST_OK);
}

/* Nothing kept the next workers away from it: they could hang there again, for ever. */
static void a_node_that_does_not_reach_the_store_is_left(void **state)
{
    struct bench *b = *state;
    const struct fsm_config config = bench_config();
    bench_reopen(b, &config);
    last_save_hangs_on(b, "a", "b");
    assert_true(b->m.cause.of_node);
    assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_FAILED), 1);
    assert_true(bench_avoids(b, "b"));
    assert_true(fsm_wants_slots(&b->m, b->now)); /* elsewhere, at once */
    /* No other node could take it: that one again, with growing delays, and it isn't given up. */
    for (int i = 0; i < 12; i++) {
        struct fsm_event nowhere = { .kind = FSM_EV_NOWHERE };
        assert_int_equal(bench_apply(b, nowhere), ST_OK);
        bench_is_state(b, "RECOVERING");
        assert_int_equal(exclusion_count(&b->m.exclusions, EXCLUSION_FAILED), 0);
        bench_tick(b, 80000);
        last_save_hangs_on(b, "a", "b");
    }
}

static void time_of_a_coordinator_that_did_not_run_is_no_savers(void **state)
{
    struct bench *b = *state;
    come_to(b, 10);
    bench_save_until(b, 10, FSM_SAVE_COLLECTING);
    savers_for(b, 10, 60000, 0);
    b->now += 200000;
    fsm_excuse(&b->m, 200000);
    savers_for(b, 10, 50000, 0);
    assert_int_equal(fsm_find_save(&b->m, 10, 1)->state, FSM_SAVE_COLLECTING);
}

/* A rank has let its save go while the coordinator was away, and begins it again. */
static void who_begins_after_a_restart_has_no_file_of_a_dropped_save(void **state)
{
    struct bench *b = *state;
    uint64_t step = pause(b);
    bench_save_fails(b, 0, step);
    assert_int_equal(fsm_find_save(&b->m, step, 1)->state, FSM_SAVE_DROPPING);
    bench_restart(b, 100);
    for (uint32_t i = 0; i < 2; i++)
        bench_attach(b, i, step);
    bench_begin(b, 0, step);
    assert_null(bench_task(b, FSM_TASK_DROP));
    bench_begin(b, 1, step);
    assert_non_null(bench_task(b, FSM_TASK_DROP));
}

/* ---- a stop, and a failure before its save ---- */

static void saves_and_stops(struct bench *b)
{
    bench_restart(b, 100); /* the coordinator knows it after that, too */
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_ready(b, 0, BENCH_STEPS);
    bench_ready(b, 1, BENCH_STEPS);
    bench_is_state(b, "SAVING");
    const struct fsm_action *at = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(at);
    assert_true(at->exit);
    assert_true(at->step >= 80); /* what was trained is trained again */
    uint64_t step = at->step;
    bench_commit(b, step);
    bench_all_exit(b);
    bench_is_state(b, "STOPPED");
    assert_true(fsm_newest(&b->m)->step >= 80);
}

static void a_stop_whose_workers_die_before_they_saved_saves_first(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    come_to(b, 80);
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    assert_non_null(strstr(bench_told(b, "recovering"), "then the job stops"));
    recover(b);
    saves_and_stops(b);
}

static void a_second_stop_while_it_recovers_ends_it_at_once(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "STOPPED");
}

/* The coordinator goes down while such a job recovers: the stop holds. */
static void a_drain_does_not_undo_a_stop_that_recovers(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_int_equal(bench_ask(b, FSM_EV_DRAIN), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.intent, FSM_INTENT_STOP);
}

/* The job used to be STOPPED there, at the checkpoint of step 50. */
static void a_drain_without_time_does_not_end_a_stop_that_saves(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    come_to(b, 80);
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    assert_int_equal(bench_ask(b, FSM_EV_DRAIN), ST_OK);
    assert_int_equal(bench_ask(b, FSM_EV_DRAIN_NOW), ST_OK);
    assert_int_equal(bench_count(b, FSM_ACT_END), 1);
    assert_non_null(strstr(bench_told(b, "recovering"), "then it stops"));
    bench_all_exit(b);
    bench_is_state(b, "RECOVERING");
    saves_and_stops(b);
}

static void a_save_that_commits_while_its_workers_are_ended_completes_the_stop(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_STOP), ST_OK);
    uint64_t step = bench_act(b, FSM_ACT_SAVE_AT, 0)->step;
    come_to(b, step);
    bench_save_until(b, step, FSM_SAVE_COMMITTING);
    assert_int_equal(bench_ask(b, FSM_EV_DRAIN_NOW), ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, step, 1, ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "STOPPED");
    assert_int_equal(fsm_newest(&b->m)->step, step);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_trainer_that_does_not_die_counts_as_gone_and_keeps_its_slot),
        TEST(kill_ends_though_a_trainer_does_not_die),
        TEST(after_a_restart_the_time_counts_anew),
        TEST(a_trainer_lost_with_its_node_keeps_its_slot),
        TEST(a_hang_is_seen_while_a_publish_is_repeated),
        TEST(a_hang_is_seen_while_a_removal_is_repeated),
        TEST(who_waits_for_the_last_save_does_not_hang),
        TEST(nor_does_who_waits_for_the_save_that_it_leaves_after),
        TEST(a_save_whose_rank_writes_nothing_any_more_is_dropped),
        TEST(a_slow_save_takes_as_long_as_it_takes),
        TEST(so_is_one_that_a_rank_can_not_begin),
        TEST(a_pause_says_what_it_waits_for),
        TEST(a_pause_waits_for_a_store_that_hangs_for_all),
        TEST(the_last_save_goes_elsewhere_if_one_rank_hangs),
        TEST(a_rank_whose_saver_hangs_for_good_is_ended),
        TEST(while_all_savers_hang_training_goes_on),
        TEST(so_it_does_while_the_others_fail),
        TEST(after_the_last_step_they_are_not_waited_for_without_end),
        TEST(a_saver_that_goes_on_before_the_answer_is_left_alone),
        TEST(time_of_a_coordinator_that_did_not_run_is_no_savers),
        TEST(who_begins_after_a_restart_has_no_file_of_a_dropped_save),
        TEST(a_stop_whose_workers_die_before_they_saved_saves_first),
        TEST(a_second_stop_while_it_recovers_ends_it_at_once),
        TEST(a_node_that_does_not_reach_the_store_is_left),
        TEST(a_drain_does_not_undo_a_stop_that_recovers),
        TEST(a_drain_without_time_does_not_end_a_stop_that_saves),
        TEST(a_save_that_commits_while_its_workers_are_ended_completes_the_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
