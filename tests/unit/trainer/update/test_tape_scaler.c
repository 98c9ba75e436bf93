/* The loss scale: a pure function of its options and of which steps overflowed. */
#include "tests/test.h"
#include "trainer/update/scaler.h"

static struct scaler after(const struct scaler_options *options, struct scaler scaler,
                           bool overflow)
{
    struct scaler next = { 0 };
    assert_int_equal(scaler_next(options, scaler, overflow, &next), ST_OK);
    return next;
}

static void a_static_scale_stays(void **state)
{
    (void)state;
    struct scaler_options options = scaler_static(128);
    struct scaler scaler = scaler_start(&options);
    for (int i = 0; i < 5000; i++)
        scaler = after(&options, scaler, false);
    assert_true(scaler.scale == 128);
    assert_int_equal(scaler.good_steps, 0);
}

static void a_static_scale_that_overflows_is_an_error(void **state)
{
    (void)state;
    struct scaler_options options = scaler_static(128);
    struct scaler out = { .scale = 77, .good_steps = 5 };
    assert_int_equal(scaler_next(&options, scaler_start(&options), true, &out), ST_NUMERIC);
    assert_true(out.scale == 77 && out.good_steps == 5); /* nothing is written */
}

static void it_grows_after_2000_good_steps_in_a_row(void **state)
{
    (void)state;
    struct scaler_options options = scaler_dynamic(SCALER_MOST);
    struct scaler scaler = scaler_start(&options);
    assert_true(scaler.scale == 65536);
    for (int i = 0; i < 1999; i++)
        scaler = after(&options, scaler, false);
    assert_true(scaler.scale == 65536);
    assert_int_equal(scaler.good_steps, 1999);
    scaler = after(&options, scaler, false);
    assert_true(scaler.scale == 131072);
    assert_int_equal(scaler.good_steps, 0);
}

static void an_overflow_halves_it_and_starts_the_count_again(void **state)
{
    (void)state;
    struct scaler_options options = scaler_dynamic(SCALER_MOST);
    struct scaler scaler = scaler_start(&options);
    for (int i = 0; i < 1500; i++)
        scaler = after(&options, scaler, false);
    scaler = after(&options, scaler, true);
    assert_true(scaler.scale == 32768);
    assert_int_equal(scaler.good_steps, 0);
    for (int i = 0; i < 1999; i++)
        scaler = after(&options, scaler, false);
    assert_true(scaler.scale == 32768);
    scaler = after(&options, scaler, false);
    assert_true(scaler.scale == 65536);
}

static void it_halves_down_to_its_floor_and_is_an_error_there(void **state)
{
    (void)state;
    struct scaler_options options = scaler_dynamic(SCALER_MOST);
    struct scaler scaler = scaler_start(&options);
    for (int i = 0; i < 16; i++)
        scaler = after(&options, scaler, true);
    assert_true(scaler.scale == 1);
    struct scaler out = { 0 };
    assert_int_equal(scaler_next(&options, scaler, true, &out), ST_NUMERIC);
    options.floor = 0.75;
    scaler = after(&options, scaler, true);
    assert_true(scaler.scale == 0.75); /* not below it */
}

static void it_never_grows_beyond_its_most(void **state)
{
    (void)state;
    struct scaler_options options = scaler_dynamic(SCALER_MOST);
    options.interval = 1;
    struct scaler scaler = scaler_start(&options);
    for (int i = 0; i < 100; i++)
        scaler = after(&options, scaler, false);
    assert_true(scaler.scale == SCALER_MOST);
}

/* What a logit's gradient is at most, in half precision: (0 - 1) times the scale. */
static void the_scale_of_fp16_is_one_that_half_precision_holds(void **state)
{
    (void)state;
    struct scaler_options options = scaler_dynamic(SCALER_MOST_FP16);
    struct scaler scaler = scaler_start(&options);
    for (int i = 0; i < 5000; i++) {
        assert_true(scaler.scale == 32768 && scaler.scale <= 65504);
        scaler = after(&options, scaler, false);
    }
    scaler = after(&options, scaler, true);
    assert_true(scaler.scale == 16384);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_static_scale_stays),
        cmocka_unit_test(a_static_scale_that_overflows_is_an_error),
        cmocka_unit_test(it_grows_after_2000_good_steps_in_a_row),
        cmocka_unit_test(an_overflow_halves_it_and_starts_the_count_again),
        cmocka_unit_test(it_halves_down_to_its_floor_and_is_an_error_there),
        cmocka_unit_test(it_never_grows_beyond_its_most),
        cmocka_unit_test(the_scale_of_fp16_is_one_that_half_precision_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
