/* Pipelines: who sits in which stage, and whose state is gone on from. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define RANKS 4
#define STEP  57

/* Two stages of so many workers train, of 16 at most. */
static struct bench *open_wide(void **state, uint32_t first, uint32_t second, uint32_t min,
                               uint32_t spares)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.ranks = first + second;
    config.most = 16;
    config.min = min;
    config.spares = spares;
    config.lanes = 8;
    config.shares = FSM_SHARES_FILE;
    config.stages = 2;
    config.widths[0] = first;
    config.widths[1] = second;
    config.restarts = false;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint32_t i = 0; i < first + second; i++)
        bench_progress(b, i, STEP, "forward");
    return b;
}

static struct bench *open_job(void **state, uint32_t min, uint32_t spares)
{
    return open_wide(state, 2, 2, min, spares);
}

static void has_stages(const struct bench *b, const char *stages)
{
    char found[LIMIT_RANKS + 1] = "";
    for (uint32_t i = 0; i < b->m.size; i++)
        found[i] = (char)('0' + b->m.ranks[i].stage);
    assert_string_equal(found, stages);
}

static void has_numbers(const struct bench *b, const uint32_t *numbers)
{
    for (uint32_t i = 0; i < b->m.size; i++)
        assert_int_equal(b->m.ranks[i].number, numbers[i]);
}

static struct fsm_parked_state part_of(uint32_t part, uint32_t parts, uint64_t step)
{
    return (struct fsm_parked_state){
        .complete = true, .step = step, .computed_by = 1, .part = part, .parts = parts
    };
}

static void park_with(struct bench *b, uint32_t rank, struct fsm_parked_state kept)
{
    struct fsm_event event = {
        .kind = FSM_EV_PARKED, .rank = rank, .generation = b->m.generation, .parked = kept
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* All that live, with the state of their stage. */
static void park_all(struct bench *b)
{
    const uint32_t stages = fsm_stages(&b->m);
    for (uint32_t i = 0; i < b->m.size && b->m.ending.parks; i++) {
        if (!b->m.ranks[i].gone)
            park_with(b, i, part_of(b->m.ranks[i].stage, stages, STEP));
    }
}

static void die(struct bench *b, uint32_t rank)
{
    bench_exit(b, rank, FSM_EXIT_SIGNAL, 9);
}

/* A worker says again what it parked with; a new one has nothing. */
static void come(struct bench *b, uint32_t rank, struct fsm_parked_state kept)
{
    struct fsm_event event = {
        .kind = FSM_EV_HELLO,
        .rank = rank,
        .generation = b->m.generation,
        .hello = { .pid = 100 + rank, .parked = kept.complete, .parked_state = kept }
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static const struct fsm_parked_state nothing;

static uint32_t ready_spare(struct bench *b)
{
    const char *node = "extra";
    uint32_t slot = 7;
    struct fsm_event event = { .kind = FSM_EV_SPARE,
                               .placed = { &node, &slot, 1, "token of spares" } };
    assert_int_equal(bench_apply(b, event), ST_OK);
    const uint32_t at = bench_act(b, FSM_ACT_START, 0)->rank;
    bench_hello(b, at);
    bench_ready(b, at, BENCH_STEPS);
    park_with(b, at, nothing);
    return at;
}

static enum status set(struct bench *b, uint32_t workers)
{
    struct fsm_event event = { .kind = FSM_EV_SET, .set = { .workers = workers } };
    return bench_apply(b, event);
}

/* ---- seats ---- */

static void ranks_go_stage_by_stage(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    uint32_t widths[LIMIT_STAGES];
    has_stages(b, "0011");
    assert_int_equal(fsm_stages(&b->m), 2);
    assert_int_equal(fsm_widths(&b->m, widths), 2);
    assert_int_equal(widths[0], 2);
    assert_int_equal(widths[1], 2);
}

static void who_is_new_takes_the_seat_of_the_stage_that_lost_one(void **state)
{
    for (uint32_t dead = 0; dead < RANKS; dead++) {
        struct bench *b = open_job(state, 0, 1);
        (void)ready_spare(b);
        die(b, dead);
        park_all(b);
        bench_form_again(b);
        has_stages(b, "0011");
        const uint32_t own[RANKS] = { 0, 1, 2, 3 };
        uint32_t numbers[RANKS], vacant = dead / 2 * 2 + 1; /* who stays moves up */
        memcpy(numbers, own, sizeof(numbers));
        numbers[dead] = own[vacant];
        numbers[vacant] = 16; /* the spare's */
        has_numbers(b, numbers);
        for (uint32_t i = 0; i < RANKS; i++)
            come(b, i, i == vacant ? nothing : part_of(i / 2, 2, STEP));
        assert_true(b->m.restore.live);
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(b->m.ranks[i].source, i != vacant);
    }
}

/* The stage that lost one is narrower, whichever it is. */
static void with_fewer_nobody_changes_its_stage(void **state)
{
    static const struct {
        uint32_t dead;
        const char *stages;
        uint32_t numbers[RANKS - 1];
    } cases[] = {
        { 0, "011", { 1, 2, 3 } },
        { 1, "011", { 0, 2, 3 } },
        { 2, "001", { 0, 1, 3 } },
        { 3, "001", { 0, 1, 2 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench *b = open_job(state, 1, 0);
        die(b, cases[i].dead);
        park_all(b);
        bench_form_again(b);
        has_stages(b, cases[i].stages);
        has_numbers(b, cases[i].numbers);
        for (uint32_t r = 0; r < RANKS - 1; r++)
            come(b, r, part_of(b->m.ranks[r].stage, 2, STEP));
        assert_true(b->m.restore.live);
        assert_int_equal(b->m.restore.step, STEP);
        assert_non_null(bench_told(b, "live"));
        for (uint32_t r = 0; r < RANKS - 1; r++)
            assert_true(b->m.ranks[r].source);
    }
}

/* One of the other stage has to, and its state is nobody's there. */
static void a_stage_that_lost_all_gets_somebody_and_its_state_from_elsewhere(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    die(b, 0);
    die(b, 1);
    park_all(b);
    bench_form_again(b);
    has_stages(b, "01");
    const uint32_t numbers[] = { 3, 2 };
    has_numbers(b, numbers);
    come(b, 0, part_of(1, 2, STEP));
    come(b, 1, part_of(1, 2, STEP));
    assert_false(b->m.restore.live);
    assert_int_equal(b->m.restore.step, 0);
}

/* The request wants more in the other stage: who moves there gets its state, and gives nobody
 * any. */
static void who_changes_its_stage_is_no_source(void **state)
{
    struct bench *b = open_wide(state, 6, 2, 1, 0);
    for (uint32_t i = 0; i < 5; i++)
        die(b, i);
    park_all(b);
    bench_form_again(b);
    has_stages(b, "001");
    const uint32_t numbers[] = { 5, 7, 6 };
    has_numbers(b, numbers);
    come(b, 0, part_of(0, 2, STEP));
    come(b, 1, part_of(1, 2, STEP));
    come(b, 2, part_of(1, 2, STEP));
    assert_true(b->m.restore.live);
    assert_true(b->m.ranks[0].source);
    assert_false(b->m.ranks[1].source);
    assert_true(b->m.ranks[2].source);
}

/* With as many stages as there are workers what the one has is no complete state. */
static void fewer_workers_than_stages_are_as_many_stages(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    die(b, 0);
    die(b, 1);
    die(b, 3);
    park_all(b);
    bench_form_again(b);
    has_stages(b, "0");
    come(b, 0, part_of(1, 2, STEP));
    assert_false(b->m.restore.live);
}

/* What is complete of one stage is, of a model that isn't cut. */
static void one_worker_goes_on_from_a_whole_model(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    for (uint32_t i = 0; i < RANKS - 1; i++)
        die(b, i);
    park_all(b);
    bench_form_again(b);
    come(b, 0, part_of(0, 0, STEP));
    assert_true(b->m.restore.live);
}

/* What somebody has is of other cuts, or not what it sits in. */
static void a_state_of_other_stages_is_not_gone_on_from(void **state)
{
    static const struct fsm_parked_state bad[] = {
        { .complete = true, .step = STEP, .computed_by = 1, .part = 1, .parts = 3 },
        { .complete = true, .step = STEP, .computed_by = 1, .part = 0, .parts = 0 },
        { .complete = true, .step = STEP, .computed_by = 1, .part = 0, .parts = 2 },
        { .complete = true, .step = STEP - 1, .computed_by = 1, .part = 1, .parts = 2 },
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct bench *b = open_job(state, 1, 0);
        die(b, 3);
        park_all(b);
        bench_form_again(b);
        come(b, 0, part_of(0, 2, STEP));
        come(b, 1, part_of(0, 2, STEP));
        come(b, 2, bad[i]);
        assert_false(b->m.restore.live);
    }
}

/* ---- other numbers ---- */

static void of_fewer_workers_each_stage_keeps_who_has_the_step_that_all_have(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    assert_int_equal(set(b, 2), ST_OK);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    park_with(b, 0, part_of(0, 2, STEP + 1)); /* of no use without stage 1 of that step */
    park_with(b, 1, part_of(0, 2, STEP));
    park_with(b, 2, part_of(1, 2, STEP - 1));
    park_with(b, 3, part_of(1, 2, STEP));
    bench_form_again(b);
    has_stages(b, "01");
    const uint32_t numbers[] = { 1, 3 };
    has_numbers(b, numbers);
    for (uint32_t i = 2; i < RANKS; i++) {
        assert_true(fsm_is_spare(&b->m, i));
        assert_true(b->m.ranks[i].ended);
    }
    come(b, 0, part_of(0, 2, STEP));
    come(b, 1, part_of(1, 2, STEP));
    assert_true(b->m.restore.live);
}

static void more_workers_make_stages_wider(void **state)
{
    struct bench *b = open_job(state, 0, 0);
    assert_int_equal(set(b, RANKS + 1), ST_OK);
    (void)ready_spare(b);
    assert_non_null(bench_act(b, FSM_ACT_PARK, 0));
    park_all(b);
    bench_form_again(b);
    has_stages(b, "00011");
    const uint32_t numbers[] = { 0, 1, 16, 2, 3 };
    has_numbers(b, numbers);
    assert_int_equal(set(b, 17), ST_REFUSED); /* more than the lanes of both stages */
}

/* Another number of stages is another state for everybody: it is saved first. */
static void other_stages_begin_with_a_save(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    assert_int_equal(set(b, 1), ST_OK);
    const uint64_t step = bench_save_before_leaving(b, RANKS);
    has_stages(b, "0");
    assert_int_equal(b->m.restore.step, step);
    assert_int_equal(b->m.failures, 0);
}

/* The number of stages stays, and they get narrower or wider: but nobody goes on with what it has
 * of its stage. */
static void stages_whose_state_does_not_move_begin_with_a_save(void **state)
{
    for (int kind = 0; kind < 4; kind++) {
        struct bench *b = open_job(state, 1, 0);
        b->m.config.owns = (kind & 1) == 0;
        b->m.config.on_device = (kind & 1) != 0;
        assert_int_equal(set(b, kind < 2 ? RANKS - 1 : RANKS + 1), ST_OK);
        if (kind >= 2)
            (void)ready_spare(b);
        assert_null(bench_act(b, FSM_ACT_PARK, 0));
        const struct fsm_action *save = bench_act(b, FSM_ACT_SAVE_AT, 0);
        assert_non_null(save);
        assert_true(save->exit);
        bench_tick(b, 1000);
        assert_null(bench_act(b, FSM_ACT_PARK, 0));
        assert_null(bench_act(b, FSM_ACT_SAVE_AT, 0)); /* it is announced */
    }
}

/* ---- what the journal has ---- */

static void stages_outlive_the_coordinator(void **state)
{
    struct bench *b = open_job(state, 1, 0);
    die(b, 1);
    park_all(b);
    bench_form_again(b);
    has_stages(b, "011");
    bench_restart(b, 100);
    has_stages(b, "011");
    /* A worker that parks meanwhile says again what it has before any rank is assigned. */
    for (uint32_t r = 0; r < 3; r++)
        come(b, r, part_of(b->m.ranks[r].stage, 2, STEP));
    for (uint32_t r = 0; r < 3; r++)
        bench_ready(b, r, BENCH_STEPS);
    bench_is_state(b, "RUNNING");
    die(b, 0);
    park_all(b);
    bench_restart(b, 100);
    assert_false(fsm_wants_slots(&b->m, b->now));
    for (uint32_t r = 1; r < 3; r++) {
        struct fsm_event event = {
            .kind = FSM_EV_HELLO,
            .rank = r,
            .generation = b->m.generation,
            .hello = { .attached = true, .parked = true, .parked_state = part_of(1, 2, STEP) }
        };
        assert_int_equal(bench_apply(b, event), ST_OK);
    }
    assert_true(fsm_wants_slots(&b->m, b->now));
}

static void a_pipeline_that_can_not_be_is_refused(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    struct fsm m;
    config.ranks = config.most = 4;
    config.lanes = 2;
    config.stages = 2;
    config.widths[0] = 3;
    config.widths[1] = 1;
    assert_int_equal(fsm_init(&m, "j-1", &config, b->now, 0), ST_INVALID);
    config.widths[0] = config.widths[1] = 2;
    config.most = 5;
    assert_int_equal(fsm_init(&m, "j-1", &config, b->now, 0), ST_INVALID);
    config.most = 4;
    config.stages = LIMIT_STAGES + 1;
    assert_int_equal(fsm_init(&m, "j-1", &config, b->now, 0), ST_INVALID);
    config.stages = 2;
    assert_int_equal(fsm_init(&m, "j-1", &config, b->now, 0), ST_OK);
    fsm_release(&m);
}

/* A spare that comes before the next generation gets a plan of as many. */
static void seats_keep_their_stages_while_the_store_is_asked(void **state)
{
    struct bench *b = open_job(state, 1, 1);
    for (uint32_t i = 0; i < RANKS; i++)
        die(b, i);
    bench_restart(b, 100);
    bench_place(b);
    bench_is_state(b, "PLACING");
    has_stages(b, "0011");
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(ranks_go_stage_by_stage),
        TEST(who_is_new_takes_the_seat_of_the_stage_that_lost_one),
        TEST(with_fewer_nobody_changes_its_stage),
        TEST(a_stage_that_lost_all_gets_somebody_and_its_state_from_elsewhere),
        TEST(who_changes_its_stage_is_no_source),
        TEST(fewer_workers_than_stages_are_as_many_stages),
        TEST(one_worker_goes_on_from_a_whole_model),
        TEST(a_state_of_other_stages_is_not_gone_on_from),
        TEST(of_fewer_workers_each_stage_keeps_who_has_the_step_that_all_have),
        TEST(more_workers_make_stages_wider),
        TEST(other_stages_begin_with_a_save),
        TEST(stages_whose_state_does_not_move_begin_with_a_save),
        TEST(stages_outlive_the_coordinator),
        TEST(seats_keep_their_stages_while_the_store_is_asked),
        TEST(a_pipeline_that_can_not_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
