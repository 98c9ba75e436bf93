/* The learning rate as a pure function of the step. */
#include <jansson.h>
#include <math.h>
#include <string.h>

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

static double number(const json_t *row, const char *key, double missing)
{
    const json_t *value = json_object_get(row, key);
    return json_is_number(value) ? json_number_value(value) : missing;
}

static enum schedule_kind kind_of(const json_t *row)
{
    static const struct {
        const char *name;
        enum schedule_kind kind;
    } kinds[] = { { "cosine", SCHEDULE_COSINE },         { "linear", SCHEDULE_LINEAR },
                  { "polynomial", SCHEDULE_POLYNOMIAL }, { "inverse_sqrt", SCHEDULE_INVERSE_SQRT },
                  { "one_cycle", SCHEDULE_ONE_CYCLE },   { "wsd", SCHEDULE_WSD } };
    const char *name = json_string_value(json_object_get(row, "name"));
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].name, name) == 0)
            return kinds[i].kind;
    }
    fail_msg("no schedule %s", name);
    return SCHEDULE_CONSTANT;
}

static void rates_are_those_of_pytorch_and_transformers(void **state)
{
    (void)state;
    json_t *rows = json_load_file(SOURCE_DIR "/tests/golden/torch/schedules.json", 0, NULL);
    assert_true(json_array_size(rows) >= 6);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *rates = json_object_get(row, "rates");
        const struct schedule schedule = { .kind = kind_of(row),
                                           .lr = number(row, "lr", 0),
                                           .warmup = (uint64_t)number(row, "warmup", 0),
                                           .total = (uint64_t)number(row, "total", 0),
                                           .min = number(row, "min", 0),
                                           .power = number(row, "power", 0),
                                           .start = number(row, "start", 0),
                                           .decay = (uint64_t)number(row, "decay", 0) };
        const size_t first = (size_t)number(row, "first", 0), count = json_array_size(rates);
        assert_int_equal(first + count, schedule.total);
        for (size_t k = 0; k < count; k++) {
            const double wanted = json_number_value(json_array_get(rates, k));
            const double ours = schedule_lr(&schedule, first + k);
            if (fabs(ours - wanted) > 1e-14 * fabs(wanted) + 1e-16)
                fail_msg("row %zu, step %zu: %.17g, wanted %.17g", i, first + k, ours, wanted);
        }
    }
    json_decref(rows);
}

static void rates_stay_what_they_are_behind_the_end(void **state)
{
    (void)state;
    static const enum schedule_kind kinds[] = { SCHEDULE_LINEAR, SCHEDULE_POLYNOMIAL,
                                                SCHEDULE_ONE_CYCLE, SCHEDULE_WSD };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct schedule schedule = {
            .kind = kinds[i], .lr = 1, .total = 20, .min = 0.25, .power = 2, .decay = 5
        };
        near(schedule_lr(&schedule, 20), 0.25);
        near(schedule_lr(&schedule, UINT64_C(1) << 62), 0.25);
        schedule.warmup = 30; /* longer than the job */
        schedule.decay = 40;
        for (uint64_t step = 0; step < 64; step++)
            assert_true(schedule_lr(&schedule, step) >= 0 && schedule_lr(&schedule, step) <= 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_is_linear_and_ends_at_the_rate),
        cmocka_unit_test(cosine_follows_the_formula_from_the_rate_to_its_end),
        cmocka_unit_test(cosine_survives_a_warm_up_longer_than_the_job),
        cmocka_unit_test(step_decay_multiplies_once_per_interval),
        cmocka_unit_test(rates_are_those_of_pytorch_and_transformers),
        cmocka_unit_test(rates_stay_what_they_are_behind_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
