#include "tests/unit/server/jobfsm/unsaved/program_fixture.h"

#include <stdio.h>
#include <string.h>

#include "tests/test.h"

struct fsm_config program_config(void)
{
    /* What a job file leaves at its defaults, too: none of it may count. */
    return (struct fsm_config){ .ranks = RANKS,
                                .most = 8,
                                .lanes = 8,
                                .keep_last = 3,
                                .every_auto = true,
                                .every_ms = 1000,
                                .audited = 10,
                                .hang_ms = 30000,
                                .saves_nothing = true,
                                .budget = BUDGET,
                                .grace_ms = GRACE_MS };
}

/* Nothing of a save left the machine with the last event. */
void program_saves_nothing(const struct bench *b)
{
    assert_int_equal(bench_count(b, FSM_ACT_STORE), 0);
    assert_int_equal(bench_count(b, FSM_ACT_SAVE_AT), 0);
    assert_int_equal(bench_count(b, FSM_ACT_SAVE_ROW), 0);
    assert_int_equal(bench_count(b, FSM_ACT_READ_BACK), 0);
}

/* From FORMING to RUNNING. */
void program_go_on(struct bench *b)
{
    bench_is_state(b, "FORMING");
    for (uint32_t i = 0; i < b->m.size; i++) {
        bench_hello(b, i);
        program_saves_nothing(b);
    }
    for (uint32_t i = 0; i < b->m.size; i++) {
        bench_ready(b, i, 0);
        program_saves_nothing(b);
    }
    bench_is_state(b, "RUNNING");
    assert_int_equal(b->m.restore.step, 0);
    assert_false(b->m.restore.live);
    for (uint32_t i = 0; i < b->m.size; i++)
        assert_false(b->m.ranks[i].source);
}

/* The job gets slots: FORMING without a word to the store. */
void program_form(struct bench *b)
{
    bench_place(b);
    program_saves_nothing(b);
    bench_is_state(b, "FORMING");
}

struct bench *program_run_with(void **state, struct fsm_config config)
{
    struct bench *b = *state;
    bench_reopen(b, &config);
    program_form(b);
    assert_non_null(strstr(bench_told(b, "forming"), "from the beginning"));
    program_go_on(b);
    return b;
}

struct bench *program_run(void **state)
{
    return program_run_with(state, program_config());
}

void program_finish(struct bench *b, uint32_t rank)
{
    struct fsm_event event = { .kind = FSM_EV_FINISHED,
                               .generation = b->m.generation,
                               .rank = rank };
    assert_int_equal(bench_apply(b, event), ST_OK);
    program_saves_nothing(b);
}

/* Living workers say that they have parked, if their generation parks. */
void program_park_all(struct bench *b)
{
    for (uint32_t i = 0; i < b->m.size && b->m.ending.parks; i++) {
        if (!b->m.ranks[i].gone)
            bench_say_parked(b, i);
    }
}

void program_exit_all(struct bench *b, int code)
{
    for (uint32_t i = 0; i < b->m.size; i++) {
        if (!b->m.ranks[i].gone)
            bench_exit(b, i, FSM_EXIT_CODE, code);
    }
}

/* A rank's program failed so: its worker reports it, and exits. */
void program_fail(struct bench *b, uint32_t rank, enum fsm_fault_kind kind, bool outside)
{
    struct fsm_fault fault = { .kind = kind, .rank = FSM_ALL_RANKS, .outside = outside };
    (void)snprintf(fault.phase, sizeof(fault.phase), "running");
    (void)snprintf(fault.message, sizeof(fault.message), "the program of rank %u failed", rank);
    struct fsm_event event = {
        .kind = FSM_EV_FAULT, .generation = b->m.generation, .rank = rank, .fault = &fault
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
    program_saves_nothing(b);
}

/* The failed rank exits, the others park, and the next generation runs. */
void program_start_anew(struct bench *b, uint32_t failed)
{
    bench_exit(b, failed, FSM_EXIT_CODE, 1);
    program_park_all(b);
    program_exit_all(b, 4);
    bench_tick(b, 400000); /* whatever the back-off is */
    program_saves_nothing(b);
    program_form(b);
    program_go_on(b);
}

/* All live, and what they do counts up, for so long. */
void program_live_for(struct bench *b, int64_t ms)
{
    for (int64_t passed = 0; passed < ms; passed += 1000) {
        b->now += 1000;
        for (uint32_t i = 0; i < b->m.size; i++) {
            if (!b->m.ranks[i].gone)
                bench_counter(b, i, 0, "running", (uint64_t)b->now);
            program_saves_nothing(b);
        }
    }
    bench_tick(b, 500);
}
