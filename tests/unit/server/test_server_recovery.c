/* The record of a recovery: what ended, what followed, where the seconds went. */
#include "server/jobfsm/persist.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static const struct recovery *record(const struct bench *b)
{
    return &b->m.recovery;
}

static void is_parts(const struct recovery *r, const int64_t parts[RECOVERY_PARTS])
{
    for (int i = 0; i < RECOVERY_PARTS; i++)
        if (r->ms[i] != parts[i])
            fail_msg("%s: %lld ms, not %lld", recovery_part_name((enum recovery_part)i),
                     (long long)r->ms[i], (long long)parts[i]);
}

/* Rank 1 dies 200 ms after step `step`; its peer is gone 300 ms later. */
static void fail_at(struct bench *b, uint64_t step)
{
    bench_progress(b, 0, step, "forward");
    bench_progress(b, 1, step, "backward");
    b->now += 200;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    b->now += 300;
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
}

/* Slots after 50 ms, hellos after 400, ready after 600. */
static void form(struct bench *b)
{
    b->now += 50;
    bench_place(b);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    b->now += 400;
    bench_hello(b, 0);
    bench_hello(b, 1);
    b->now += 600;
    bench_ready(b, 0, BENCH_STEPS);
    bench_ready(b, 1, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
}

static void a_recovery_from_a_checkpoint_has_its_parts(void **state)
{
    struct bench *b = *state; /* checkpoints of steps 10 and 20 */
    assert_int_equal(record(b)->state, RECOVERY_NONE);
    fail_at(b, 27);
    const int64_t failed = record(b)->wall_ms;
    assert_int_equal(record(b)->state, RECOVERY_ENDING);
    assert_int_equal(recovery_steps_lost(record(b)), 0); /* not known yet */
    form(b);
    assert_int_equal(record(b)->state, RECOVERY_FORMING);
    b->now += 700;
    bench_progress(b, 0, 26, "forward");
    assert_null(bench_act(b, FSM_ACT_RECOVERY, 0));
    b->now += 100;
    bench_progress(b, 1, 27, "forward");
    assert_non_null(bench_act(b, FSM_ACT_RECOVERY, 0));
    b->now += 5000; /* that is training */
    bench_progress(b, 0, 40, "forward");
    const struct recovery *r = &b->m.recovered;
    assert_memory_equal(r, record(b), sizeof(*r));
    assert_int_equal(r->state, RECOVERY_DONE);
    assert_int_equal(r->kind, RECOVERY_CHECKPOINT);
    assert_int_equal(r->ended, 1);
    assert_int_equal(r->generation, 2);
    assert_int_equal(r->fault, FSM_FAULT_PROCESS);
    assert_int_equal(r->rank, 1);
    assert_string_equal(r->node, "node");
    assert_string_equal(r->phase, "backward");
    assert_int_equal(r->step, 20);
    assert_int_equal(recovery_steps_lost(r), 7);
    is_parts(r, (const int64_t[]){ 200, 300, 50, 400, 600, 800 });
    assert_int_equal(recovery_total_ms(r), 2350);
    assert_int_equal(r->booked_ms - failed, 2350 - 200);
    assert_int_equal(b->m.recoveries, 1);
}

static void without_a_checkpoint_it_is_from_the_seed(void **state)
{
    struct bench *b = *state;
    bench_run(b, BENCH_STEPS);
    fail_at(b, 3);
    form(b);
    assert_int_equal(record(b)->kind, RECOVERY_SEED);
    assert_int_equal(recovery_steps_lost(record(b)), 3);
}

static void hello_with_copies(struct bench *b, uint32_t rank, uint64_t step)
{
    const struct fsm_copy copies[] = {
        { .step = step, .generation = 1, .rank = rank, .size = 2 },
    };
    struct fsm_event hello = { .kind = FSM_EV_HELLO,
                               .rank = rank,
                               .generation = b->m.generation,
                               .hello = { .pid = 7, .copies = copies, .copy_count = 1 } };
    assert_int_equal(bench_apply(b, hello), ST_OK);
}

static void copies_in_memory_cost_no_step(void **state)
{
    struct bench *b = *state;
    fail_at(b, 27);
    bench_place(b);
    hello_with_copies(b, 0, 28); /* whose ranks died before they could report it */
    hello_with_copies(b, 1, 28);
    bench_ready(b, 0, BENCH_STEPS);
    bench_ready(b, 1, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
    assert_int_equal(record(b)->state, RECOVERY_DONE);
    assert_int_equal(record(b)->kind, RECOVERY_MEMORY);
    assert_int_equal(record(b)->step, 28);
    assert_int_equal(recovery_steps_lost(record(b)), 0);
    assert_int_equal(record(b)->ms[RECOVERY_REPLAY], 0);
}

static void a_failure_while_it_replays_cuts_it(void **state)
{
    struct bench *b = *state;
    fail_at(b, 27);
    form(b);
    b->now += 300;
    fail_at(b, 24); /* 200 ms of these are the next one's */
    assert_int_equal(b->m.recovered.state, RECOVERY_CUT);
    assert_int_equal(b->m.recovered.generation, 2);
    is_parts(&b->m.recovered, (const int64_t[]){ 200, 300, 50, 400, 600, 300 });
    assert_int_equal(record(b)->ended, 2);
    assert_int_equal(record(b)->generation, 0);
    is_parts(record(b), (const int64_t[]){ 200, 300, 0, 0, 0, 0 });
    bench_tick(b, 20000);
    form(b);
    assert_int_equal(recovery_steps_lost(record(b)), 7); /* as before: 21 to 27 */
    assert_int_equal(b->m.recoveries, 2);
    int64_t lost = 0;
    for (int i = 0; i < FSM_LOST_COUNT; i++)
        lost += b->m.accounts.lost_ms[i];
    assert_int_equal(recovery_total_ms(&b->m.recovered) + recovery_total_ms(record(b)), lost);
}

static void a_coordinator_that_restarts_loses_no_second(void **state)
{
    struct bench *b = *state;
    fail_at(b, 27);
    const int64_t failed = b->now - 300;
    bench_restart(b, 4000); /* waits for slots: both are gone */
    form(b);
    bench_progress(b, 0, 22, "forward");
    b->now += 100;
    bench_tick(b, 0);
    bench_restart(b, 2000); /* it replays */
    assert_int_equal(record(b)->state, RECOVERY_FORMING);
    bench_tick(b, 500);
    bench_attach(b, 0, 25);
    bench_attach(b, 1, 25);
    b->now += 250;
    bench_progress(b, 0, 27, "forward");
    assert_int_equal(record(b)->state, RECOVERY_DONE);
    assert_int_equal(recovery_steps_lost(record(b)), 7);
    is_parts(record(b), (const int64_t[]){ 200, 300, 4050, 400, 600, 2850 });
    assert_int_equal(recovery_total_ms(record(b)), b->now - failed + 200);
}

/* A worker may have had the steps for long: nobody knows. */
static void steps_repeated_without_a_coordinator_are_not_guessed(void **state)
{
    struct bench *b = *state;
    fail_at(b, 27);
    form(b);
    bench_restart(b, 60000);
    bench_attach(b, 0, 40);
    assert_int_equal(record(b)->state, RECOVERY_DONE);
    assert_int_equal(record(b)->ms[RECOVERY_REPLAY], 0);
}

static void a_pause_is_no_failure_and_its_time_is_not_lost(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_commit(b, bench_act(b, FSM_ACT_SAVE_AT, 0)->step);
    bench_exit(b, 0, FSM_EXIT_FINISHED, 0);
    bench_exit(b, 1, FSM_EXIT_FINISHED, 0);
    bench_is_state(b, "PAUSED");
    bench_tick(b, 100000);
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    form(b);
    assert_int_equal(record(b)->fault, FSM_FAULT_NONE);
    assert_int_equal(record(b)->rank, RECOVERY_ALL_RANKS);
    assert_int_equal(record(b)->state, RECOVERY_DONE);
    is_parts(record(b), (const int64_t[]){ 0, 0, 50, 400, 600, 0 });
}

static void exit_with_words(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event exited = {
        .kind = FSM_EV_EXITED,
        .rank = rank,
        .generation = b->m.generation,
        .exited = { .how = FSM_EXIT_SIGNAL, .code = 9, .message = "killed", .step = step }
    };
    assert_int_equal(bench_apply(b, exited), ST_OK);
}

/* Workers say where they are a few times in a second only. */
static void steps_that_only_last_words_tell_are_counted(void **state)
{
    struct bench *b = *state;
    bench_run(b, BENCH_STEPS);
    exit_with_words(b, 1, 7);
    exit_with_words(b, 0, 8);
    assert_int_equal(b->m.step_max, 8);
    form(b);
    assert_int_equal(recovery_steps_lost(record(b)), 8);
    b->now += 500;
    bench_progress(b, 0, 8, "forward");
    assert_int_equal(record(b)->ms[RECOVERY_REPLAY], 500);
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_REPLAY], 500);
}

/* The agent of the one that died comes back later than who misses it. */
static void who_comes_back_after_a_start_may_know_the_cause(void **state)
{
    struct bench *b = *state;
    bench_run(b, BENCH_STEPS);
    bench_restart(b, 100);
    bench_fault(b, 0, FSM_FAULT_COMMUNICATION, 3);
    bench_tick(b, 1000);
    bench_is_state(b, "RUNNING");
    exit_with_words(b, 1, 3);
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_PROCESS);
}

static void a_job_that_fails_has_no_generation_after_the_last(void **state)
{
    struct bench *b = *state;
    bench_fault(b, 1, FSM_FAULT_USER, 0);
    b->now += 150;
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_int_equal(record(b)->state, RECOVERY_ENDING);
    assert_int_equal(record(b)->fault, FSM_FAULT_USER);
    assert_int_equal(record(b)->ms[RECOVERY_END], 150);
    assert_int_equal(b->m.recoveries, 0);
}

static void goodput_is_training_of_the_time_since_it_ran_first(void **state)
{
    struct bench *b = *state;
    bench_tick(b, 90000);                                  /* queued: before it ran */
    assert_true(fsm_goodput(&b->m) != fsm_goodput(&b->m)); /* NaN */
    bench_run(b, BENCH_STEPS);
    for (uint64_t step = 1; step <= 10; step++) {
        b->now += 1000;
        bench_progress(b, 0, step, "forward");
    }
    assert_true(fsm_goodput(&b->m) == 1);
    b->now += 500;
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    b->now += 500;
    bench_all_exit(b);
    bench_run(b, BENCH_STEPS);
    b->now += 9000; /* steps 1 to 10 again */
    bench_tick(b, 0);
    assert_true(fsm_goodput(&b->m) == 0.5);
    fsm_note_stall(&b->m, 2000000);
    assert_true(fsm_goodput(&b->m) == 0.4);
}

static void the_record_survives_the_journal(void **state)
{
    struct bench *b = *state;
    fail_at(b, 27);
    form(b);
    auto_buf struct buf text;
    struct recovery back;
    buf_init(&text, 1 << 14);
    assert_int_equal(fsm_encode_recovery(record(b), &text), ST_OK);
    assert_int_equal(fsm_decode_recovery(&back, text.data), ST_OK);
    assert_memory_equal(&back, record(b), sizeof(back));
    assert_int_equal(fsm_decode_recovery(&back, "{\"kind\":9}"), ST_CORRUPT);
    assert_int_equal(fsm_decode_recovery(&back, "[]"), ST_CORRUPT);
    assert_int_equal(fsm_decode_recovery(&back, "{}"), ST_OK);
}

#define SAVED(name) cmocka_unit_test_setup_teardown(name, bench_setup_saved, bench_teardown)
#define TEST(name)  cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAVED(a_recovery_from_a_checkpoint_has_its_parts),
        TEST(without_a_checkpoint_it_is_from_the_seed),
        SAVED(copies_in_memory_cost_no_step),
        SAVED(a_failure_while_it_replays_cuts_it),
        SAVED(a_coordinator_that_restarts_loses_no_second),
        SAVED(steps_repeated_without_a_coordinator_are_not_guessed),
        SAVED(a_pause_is_no_failure_and_its_time_is_not_lost),
        TEST(steps_that_only_last_words_tell_are_counted),
        SAVED(who_comes_back_after_a_start_may_know_the_cause),
        SAVED(a_job_that_fails_has_no_generation_after_the_last),
        TEST(goodput_is_training_of_the_time_since_it_ran_first),
        SAVED(the_record_survives_the_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
