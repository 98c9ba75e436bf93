/* The learning rate as a pure function of the step. */
#include <math.h>

#include "tests/test.h"
#include "trainer/update/schedule.h"

static void near(double ours, double wanted)
{
    assert_true(fabs(ours - wanted) <= 1e-15 * fabs(wanted) + 1e-18);
}

static void warm_up_is_linear_and_ends_at_the_rate(void **state)
{
    (void)state;
    struct schedule schedule = { .kind = SCHEDULE_CONSTANT, .lr = 0.4, .warmup = 4 };
    near(schedule_lr(&schedule, 0), 0.1);
    near(schedule_lr(&schedule, 1), 0.2);
    near(schedule_lr(&schedule, 3), 0.4);
    near(schedule_lr(&schedule, 4), 0.4);
    near(schedule_lr(&schedule, 1000000), 0.4);
}

static void cosine_follows_the_formula_from_the_rate_to_its_end(void **state)
{
    (void)state;
    struct schedule schedule = {
        .kind = SCHEDULE_COSINE, .lr = 0.1, .warmup = 10, .total = 110, .min = 0.02
    };
    for (uint64_t step = 10; step < 110; step++) {
        double shape = 0.5 * (1 + cos(3.14159265358979323846 * (double)(step - 10) / 100));
        double wanted = 0.1 * (0.02 + 0.98 * shape);
        assert_true(fabs(schedule_lr(&schedule, step) - wanted) < 1e-16);
    }
    near(schedule_lr(&schedule, 110), 0.002);
    near(schedule_lr(&schedule, 5000), 0.002);
}

static void cosine_survives_a_warm_up_longer_than_the_job(void **state)
{
    (void)state;
    struct schedule schedule = { .kind = SCHEDULE_COSINE, .lr = 1, .warmup = 10, .total = 5 };
    near(schedule_lr(&schedule, 4), 0.5);
    assert_true(isfinite(schedule_lr(&schedule, 10)));
    assert_true(isfinite(schedule_lr(&schedule, 11)));
}

static void step_decay_multiplies_once_per_interval(void **state)
{
    (void)state;
    struct schedule schedule = {
        .kind = SCHEDULE_STEP, .lr = 1, .warmup = 2, .gamma = 0.5, .every = 10
    };
    near(schedule_lr(&schedule, 2), 1);
    near(schedule_lr(&schedule, 11), 1);
    near(schedule_lr(&schedule, 12), 0.5);
    near(schedule_lr(&schedule, 42), 0.0625);
    assert_true(schedule_lr(&schedule, UINT64_C(1) << 62) >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_is_linear_and_ends_at_the_rate),
        cmocka_unit_test(cosine_follows_the_formula_from_the_rate_to_its_end),
        cmocka_unit_test(cosine_survives_a_warm_up_longer_than_the_job),
        cmocka_unit_test(step_decay_multiplies_once_per_interval),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
