/* The stages of a generation's plan: what makes sense of them is taken, all else refused. */
#include <string.h>

#include "tests/unit/session/session_bench.h"

struct stage {
    uint32_t workers, first_node;
};

static enum status staged_plan(const struct stage *stages, size_t count, uint32_t *shares,
                               uint32_t size, Cairn__V1__LiveRestore *live,
                               struct session_assignment *out)
{
    Cairn__V1__Stage list[LIMIT_STAGES + 1], *pointers[LIMIT_STAGES + 1];
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    for (size_t s = 0; s < count; s++) {
        cairn__v1__stage__init(&list[s]);
        list[s].workers = stages[s].workers;
        list[s].first_node = stages[s].first_node;
        pointers[s] = &list[s];
    }
    plan.stages = pointers;
    plan.n_stages = count;
    plan.live = live;
    struct bench *b = bench_new(1);
    hear(b, plan_order(&plan, 7, 0, shares, size));
    const enum status st = session_fsm_assignment(&b->fsm, out);
    bench_free(b);
    return st;
}

static void a_plan_of_stages_says_who_is_in_which(void **state)
{
    (void)state;
    static const struct stage cut[] = { { 2, 0 }, { 1, 12 }, { 3, 40 } };
    static const struct stage by_cost[] = { { 2, 0 }, { 1, 0 }, { 3, 0 } };
    static const struct stage one[] = { { 6, 0 } };
    uint32_t shares[] = { 5, 3, 8, 2, 2, 4 }, all[] = { 1, 1, 1, 1, 2, 2 };
    struct session_assignment plan;
    assert_int_equal(staged_plan(cut, 3, shares, 6, NULL, &plan), ST_OK);
    assert_int_equal(plan.stage_count, 3);
    assert_int_equal(plan.stages[2].workers, 3);
    assert_int_equal(plan.stages[2].first_node, 40);
    assert_int_equal(staged_plan(by_cost, 3, shares, 6, NULL, &plan), ST_OK);
    assert_int_equal(plan.stages[1].first_node, 0);
    assert_int_equal(staged_plan(one, 1, all, 6, NULL, &plan), ST_OK);
    assert_int_equal(plan.stage_count, 0);
    assert_int_equal(staged_plan(NULL, 0, all, 6, NULL, &plan), ST_OK);
    assert_int_equal(plan.stage_count, 0);
}

static void a_plan_of_stages_that_make_no_sense_is_refused(void **state)
{
    (void)state;
    static const struct {
        struct stage stages[3];
        size_t count;
        uint32_t shares[6], size;
    } cases[] = {
        { { { 2, 0 }, { 2, 9 } }, 2, { 5, 3, 4, 3 }, 4 },          /* other lanes */
        { { { 2, 0 }, { 2, 9 } }, 2, { 5, 3, 8, 0 }, 4 },          /* a rank without */
        { { { 2, 0 }, { 1, 9 } }, 2, { 5, 3, 8, 8 }, 4 },          /* a rank of no stage */
        { { { 2, 0 }, { 3, 9 } }, 2, { 5, 3, 4, 4 }, 4 },          /* more than there are */
        { { { 2, 0 }, { UINT32_MAX, 9 } }, 2, { 5, 3, 4, 4 }, 4 }, /* far more */
        { { { 4, 0 }, { 0, 9 } }, 2, { 2, 2, 2, 2 }, 4 },          /* nobody in a stage */
        { { { 2, 1 }, { 2, 9 } }, 2, { 5, 3, 4, 4 }, 4 },        /* nodes before it are nobody's */
        { { { 1, 0 }, { 1, 9 }, { 1, 9 } }, 3, { 8, 8, 8 }, 3 }, /* one without nodes */
        { { { 1, 0 }, { 1, 0 }, { 1, 9 } }, 3, { 8, 8, 8 }, 3 }, /* said of one only */
        { { { 1, 0 }, { 1, 9 }, { 1, 0 } }, 3, { 8, 8, 8 }, 3 },
        { { { 3, 0 } }, 1, { 5, 3, 4, 4 }, 4 },
        { { { 4, 7 } }, 1, { 5, 3, 4, 4 }, 4 },
        { { { 1, 0 }, { 1, 9 } }, 2, { LIMIT_LANES + 1, LIMIT_LANES + 1 }, 2 },
        { { { 0 } }, 0, { LIMIT_LANES, 1 }, 2 },
        { { { 0 } }, 0, { 2, 0 }, 2 },
    };
    struct session_assignment plan;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t shares[6];
        memcpy(shares, cases[i].shares, sizeof(shares));
        assert_int_equal(
            staged_plan(cases[i].stages, cases[i].count, shares, cases[i].size, NULL, &plan),
            ST_INVALID);
    }
}

static void there_are_so_many_stages_at_most(void **state)
{
    (void)state;
    struct session_assignment plan;
    struct stage many[LIMIT_STAGES + 1];
    uint32_t shares[LIMIT_STAGES + 1];
    for (uint32_t s = 0; s <= LIMIT_STAGES; s++) {
        many[s] = (struct stage){ 1, s };
        shares[s] = 1;
    }
    assert_int_equal(staged_plan(many, LIMIT_STAGES, shares, LIMIT_STAGES, NULL, &plan), ST_OK);
    assert_int_equal(staged_plan(many, LIMIT_STAGES + 1, shares, LIMIT_STAGES + 1, NULL, &plan),
                     ST_INVALID);
}

/* A worker that is new in a stage gets the stage's state from a worker in it. */
static void each_stage_has_a_source(void **state)
{
    (void)state;
    static const struct stage stages[] = { { 2, 0 }, { 1, 9 }, { 1, 20 } };
    static const struct {
        uint32_t sources[4];
        size_t count;
        enum status st;
    } cases[] = {
        { { 0, 1, 2, 3 }, 4, ST_OK },   { { 0, 2, 3 }, 3, ST_OK },   { { 1, 2, 3 }, 3, ST_OK },
        { { 0, 1, 2 }, 3, ST_INVALID }, { { 2, 3 }, 2, ST_INVALID }, { { 0, 1, 3 }, 3, ST_INVALID },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct session_assignment plan;
        Cairn__V1__LiveRestore live = CAIRN__V1__LIVE_RESTORE__INIT;
        uint32_t shares[] = { 5, 3, 8, 8 }, sources[4];
        memcpy(sources, cases[i].sources, sizeof(sources));
        live.sources = sources;
        live.n_sources = cases[i].count;
        assert_int_equal(staged_plan(stages, 3, shares, 4, &live, &plan), cases[i].st);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_of_stages_says_who_is_in_which),
        cmocka_unit_test(a_plan_of_stages_that_make_no_sense_is_refused),
        cmocka_unit_test(there_are_so_many_stages_at_most),
        cmocka_unit_test(each_stage_has_a_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
