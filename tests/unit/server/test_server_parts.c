/* Workers that own parts of the state go on from them where all parts are there. */
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS BENCH_PARK_RANKS

/* A worker that owns part `part` of `parts` of its state. */
static void come_with_part(struct bench *b, uint32_t rank, uint64_t step, uint32_t part,
                           uint32_t parts)
{
    struct fsm_event event = { .kind = FSM_EV_HELLO,
                               .rank = rank,
                               .generation = b->m.generation,
                               .hello = { .pid = 100 + rank,
                                          .parked = true,
                                          .parked_state = { .complete = true,
                                                            .step = step,
                                                            .computed_by = 1,
                                                            .part = part,
                                                            .parts = parts } } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* All park for other lanes, or fewer of them: nobody's part is lost. */
static void parts_of_a_state_are_gone_on_from_where_all_are_there(void **state)
{
    struct bench *b = *state;
    static const uint32_t part[RANKS] = { 3, 1, 0, 2 };
    bench_lose_one(b);
    bench_form_again(b);
    for (uint32_t i = 0; i < RANKS; i++)
        come_with_part(b, i, 57, part[i], RANKS);
    assert_true(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 57);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_true(b->m.ranks[i].source);
}

/* One part is missing, is twice there, is of another step, or of another number of them. */
static void a_state_that_lacks_a_part_is_not_gone_on_from(void **state)
{
    static const uint32_t bad[][3] = {
        { 56, 1, 4 }, { 57, 2, 4 }, { 57, 1, 3 }, { 57, 4, 4 }, { 57, 1, 4000000000 }
    };
    struct bench *b = *state;
    for (size_t n = 0; n < sizeof(bad) / sizeof(bad[0]); n++) {
        bench_lose_one(b);
        bench_form_again(b);
        come_with_part(b, 0, 57, 0, RANKS);
        come_with_part(b, 2, 57, 2, RANKS);
        come_with_part(b, 3, 57, 3, RANKS);
        come_with_part(b, 1, bad[n][0], bad[n][1], bad[n][2]);
        assert_false(b->m.restore.live);
        assert_int_equal(b->m.restore.step, 0);
        assert_int_equal(bench_teardown(state), 0);
        assert_int_equal(bench_setup_park(state), 0);
        b = *state;
    }
}

/* ---- other numbers of workers ---- */

static void open_owned(struct bench *b)
{
    struct fsm_config config = bench_config();
    config.ranks = RANKS;
    config.most = 16;
    config.restarts = false;
    config.owns = true;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint32_t i = 0; i < RANKS; i++)
        bench_progress(b, i, 57, "forward");
}

static void set_workers(struct bench *b, uint32_t workers)
{
    struct fsm_event event = { .kind = FSM_EV_SET, .set = { .workers = workers } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* The parts of those who leave would be lost with them. */
static void fewer_owners_begin_with_a_save(void **state)
{
    struct bench *b = *state;
    open_owned(b);
    set_workers(b, RANKS - 1);
    const uint64_t step = bench_save_before_leaving(b, RANKS);
    assert_int_equal(b->m.size, RANKS - 1);
    assert_int_equal(b->m.restore.step, step);
    assert_int_equal(b->m.failures, 0);
}

/* All parts stay, and newcomers get theirs from who has them. */
static void more_owners_save_nothing(void **state)
{
    struct bench *b = *state;
    open_owned(b);
    set_workers(b, RANKS + 1);
    const char *node = "extra";
    uint32_t slot = 7;
    struct fsm_event spare = { .kind = FSM_EV_SPARE,
                               .placed = { &node, &slot, 1, "token of spares" } };
    assert_int_equal(bench_apply(b, spare), ST_OK);
    const uint32_t at = bench_act(b, FSM_ACT_START, 0)->rank;
    bench_hello(b, at);
    bench_ready(b, at, BENCH_STEPS);
    bench_say_parked(b, at);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0));
}

#define LIVE(test) cmocka_unit_test_setup_teardown(test, bench_setup_park, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LIVE(parts_of_a_state_are_gone_on_from_where_all_are_there),
        LIVE(a_state_that_lacks_a_part_is_not_gone_on_from),
        LIVE(fewer_owners_begin_with_a_save),
        LIVE(more_owners_save_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
