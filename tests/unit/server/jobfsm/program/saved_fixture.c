#include "tests/unit/server/jobfsm/program/saved_fixture.h"

#include "tests/test.h"

struct fsm_config saved_config(void)
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
void saved_form_on(struct bench *b, const char *const *nodes)
{
    if (b->m.retry_at > b->now)
        bench_tick(b, b->m.retry_at - b->now);
    bench_place_on(b, nodes);
    if (b->m.state == FSM_PLACING)
        bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
}

void saved_form(struct bench *b)
{
    static const char *const nodes[] = { "node", "node", "node", "node" };
    saved_form_on(b, nodes);
}

void saved_go_on(struct bench *b)
{
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_hello(b, i);
    for (uint32_t i = 0; i < b->m.size; i++)
        bench_ready(b, i, STEPS);
    bench_is_state(b, "RUNNING");
}

struct bench *saved_run_with(void **state, struct fsm_config config)
{
    struct bench *b = *state;
    bench_reopen(b, &config);
    saved_form(b);
    saved_go_on(b);
    return b;
}

struct bench *saved_run(void **state)
{
    return saved_run_with(state, saved_config());
}

void saved_finish(struct bench *b, uint32_t rank, uint64_t step)
{
    struct fsm_event event = { .kind = FSM_EV_FINISHED,
                               .generation = b->m.generation,
                               .rank = rank,
                               .finished = { .step = step } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* The program of a rank failed, and its worker stays. */
void saved_fail(struct bench *b, uint32_t rank)
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

/* The program fails, and all workers park; those who say so bring a whole state, which none of
 * them has. */
void saved_fail_and_park(struct bench *b)
{
    saved_fail(b, 1);
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
void saved_offer(struct bench *b, uint32_t rank, uint64_t step, uint32_t generation)
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
uint64_t saved_announced(const struct bench *b)
{
    const struct fsm_action *save = bench_act(b, FSM_ACT_SAVE_AT, 0);
    assert_non_null(save);
    assert_true(save->exit);
    return save->step;
}

/* All come to the step, save it and leave. */
void saved_leave(struct bench *b, uint64_t step)
{
    const uint32_t size = b->m.size;
    bench_commit(b, step);
    for (uint32_t i = 0; i < size; i++) {
        saved_finish(b, i, step);
        bench_exit(b, i, FSM_EXIT_CODE, 0);
    }
}
