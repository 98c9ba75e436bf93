/* The simulated clock: bubbles as the formulas have them, and where they don't hold. */
#include <math.h>

#include "tests/test.h"
#include "tests/unit/trainer/pipeline/pipeline_fixture.h"
#include "trainer/pipeline/schedule_time.h"

static const struct pipeline_cost usual = { { 1, 2, 1, 1 } };

/* The bubble of one worker a stage, all stages alike. */
static struct pipeline_time time_of(enum pipeline_schedule schedule, uint32_t p, uint32_t v,
                                    uint32_t m, const struct pipeline_cost *cost,
                                    enum pipeline_sends sends)
{
    struct fixture f;
    struct pipeline_cost costs[FIXTURE_STAGES_MAX];
    struct pipeline_time time = { 0 };
    double idle[FIXTURE_STAGES_MAX];
    if (sends == PIPELINE_SENDS_ARE_MET) {
        fixture_meets(&f, schedule, p, v, m);
    } else {
        fixture_plain(&f, schedule, p, v, m);
    }
    for (uint32_t s = 0; s < p; s++)
        costs[s] = *cost;
    assert_int_equal(pipeline_clock(&f.table, costs, sends, &time, idle), ST_OK);
    const double whole_backward = schedule == PIPELINE_ZB_H1
                                      ? cost->of[PIPELINE_I] + cost->of[PIPELINE_W]
                                      : cost->of[PIPELINE_B];
    const double busy = m * v * (cost->of[PIPELINE_F] + whole_backward);
    for (uint32_t s = 0; s < p; s++)
        assert_true(fabs(idle[s] + busy - time.whole) < 1e-9);
    assert_true(fabs(time.bubble - (time.whole - busy) / busy) < 1e-9);
    fixture_release(&f);
    return time;
}

/*
 * The bubble by formula, where all stages take the same and are one worker each: p stages, m
 * micro-batches, v chunks,
 *
 *     gpipe, 1f1b   (p - 1) / m
 *     interleaved   (p - 1) / (v m)
 *     zb-h1         (p - 1) (F + I - W) / (m (F + I + W))
 *
 * cost: of a chunk. zb-h1's wants F + I >= W and m >= p: with fewer micro-batches there are too few
 * weight gradients to fill with.
 */
static double bubble_by_formula(enum pipeline_schedule schedule, uint32_t stages, uint32_t chunks,
                                uint32_t micros, const struct pipeline_cost *cost)
{
    const double f = cost->of[PIPELINE_F], i = cost->of[PIPELINE_I], w = cost->of[PIPELINE_W];
    const double others = (double)stages - 1;
    switch (schedule) {
    case PIPELINE_GPIPE:
    case PIPELINE_1F1B:
        return others / micros;
    case PIPELINE_INTERLEAVED:
        return others / ((double)chunks * micros);
    case PIPELINE_ZB_H1:
        return others * (f + i - w) / (micros * (f + i + w));
    }
    return 0;
}

static void as_formula(enum pipeline_schedule schedule, uint32_t p, uint32_t v, uint32_t m,
                       const struct pipeline_cost *cost)
{
    const struct pipeline_time time = time_of(schedule, p, v, m, cost, PIPELINE_SENDS_ARE_STARTED);
    assert_true(fabs(time.bubble - bubble_by_formula(schedule, p, v, m, cost)) < 0.03);
}

/* gpipe and 1f1b for all sizes, interleaved for multiples of p, zb-h1 from m = p on. */
static void bubbles_are_as_the_formulas_have_them(void **state)
{
    (void)state;
    const struct pipeline_cost other = { { 1.5, 2.5, 1.5, 1 } };
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t m = 1; m <= 32; m++) {
            as_formula(PIPELINE_GPIPE, p, 1, m, &usual);
            as_formula(PIPELINE_1F1B, p, 1, m, &usual);
            as_formula(PIPELINE_1F1B, p, 1, m, &other);
            for (uint32_t v = 2; v <= 4 && m % p == 0; v++)
                as_formula(PIPELINE_INTERLEAVED, p, v, m, &usual);
            if (m >= p) {
                as_formula(PIPELINE_ZB_H1, p, 1, m, &usual);
                as_formula(PIPELINE_ZB_H1, p, 1, m, &other);
            }
        }
    }
}

/* The slowest stage sets the speed, and waits only for its first micro-batch; at the end stage 0
 * has its last gradient to compute. What stage 2 does meanwhile is hidden. */
static void stages_of_other_costs_wait_for_the_slowest(void **state)
{
    (void)state;
    struct fixture f;
    struct pipeline_time time;
    double idle[3];
    const struct pipeline_cost costs[] = { { { 1, 2, 0, 0 } },
                                           { { 3, 6, 0, 0 } },
                                           { { 1, 2, 0, 0 } } };
    fixture_plain(&f, PIPELINE_1F1B, 3, 1, 8);
    assert_int_equal(pipeline_clock(&f.table, costs, PIPELINE_SENDS_ARE_STARTED, &time, idle),
                     ST_OK);
    assert_true(fabs(time.whole - (1 + 8 * 9 + 2)) < 1e-9);
    assert_true(fabs(time.bubble - 3.0 / 72) < 1e-9);
    assert_true(fabs(idle[1] - 3) < 1e-9);
    assert_true(fabs(idle[0] - (75 - 24)) < 1e-9);
    assert_true(fabs(idle[2] - (75 - 24)) < 1e-9);
    fixture_release(&f);
}

/* zb-h1 gains by not waiting; where sends are met it takes as long as 1f1b or longer, unless there
 * are few micro-batches. 1f1b loses nothing. */
static void met_sends_cost_zb_h1_its_gain(void **state)
{
    (void)state;
    for (uint32_t p = 2; p <= 8; p++) {
        for (uint32_t m = 2 * p; m <= 32; m += p) {
            const double plain =
                time_of(PIPELINE_1F1B, p, 1, m, &usual, PIPELINE_SENDS_ARE_STARTED).whole;
            const double met =
                time_of(PIPELINE_1F1B, p, 1, m, &usual, PIPELINE_SENDS_ARE_MET).whole;
            const double zero =
                time_of(PIPELINE_ZB_H1, p, 1, m, &usual, PIPELINE_SENDS_ARE_STARTED).whole;
            const double zero_met =
                time_of(PIPELINE_ZB_H1, p, 1, m, &usual, PIPELINE_SENDS_ARE_MET).whole;
            assert_true(fabs(met - plain) < 1e-9);
            assert_true(zero < plain);
            assert_true(zero_met >= plain);
        }
    }
}

/* A stage with two workers behind one with one, each twice as slow: lanes come in ascending order,
 * so with 1f1b the second waits until the first is nearly through: almost as if there were one. */
static void a_wider_stage_gains_little_with_1f1b(void **state)
{
    (void)state;
    static const uint32_t widths[] = { 1, 2 };
    const struct pipeline_cost costs[] = { { { 1, 2, 1, 1 } }, { { 2, 4, 2, 2 } } };
    struct fixture f;
    struct pipeline_time time[2];
    const enum pipeline_schedule schedules[] = { PIPELINE_GPIPE, PIPELINE_1F1B };
    for (int i = 0; i < 2; i++) {
        fixture_even(&f, 2, 16, widths);
        fixture_table(&f, schedules[i], 1, 1);
        assert_int_equal(
            pipeline_clock(&f.table, costs, PIPELINE_SENDS_ARE_STARTED, &time[i], NULL), ST_OK);
        fixture_release(&f);
    }
    /* each worker computes for 48 */
    assert_true(fabs(time[0].whole - 67) < 1e-9);
    assert_true(fabs(time[1].whole - 90) < 1e-9);
    assert_true(fabs(time[1].bubble - 0.875) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bubbles_are_as_the_formulas_have_them),
        cmocka_unit_test(stages_of_other_costs_wait_for_the_slowest),
        cmocka_unit_test(met_sends_cost_zb_h1_its_gain),
        cmocka_unit_test(a_wider_stage_gains_little_with_1f1b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
