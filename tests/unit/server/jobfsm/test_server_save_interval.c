/* checkpoint.every: auto, against worked examples. */
#include "server/jobfsm/save_interval.h"
#include "tests/test.h"

#define MINUTE 60000.0
#define HOUR   (60 * MINUTE)

static void is_near(double value, double want, double part)
{
    assert_true(value > want * (1 - part) && value < want * (1 + part));
}

/* Daly's figures 3 to 5: a dump of 5 minutes; 117, 57 and 9.1 minutes are best. */
static void the_figures_of_the_paper_come_out(void **state)
{
    (void)state;
    is_near(interval_best_ms(5 * MINUTE, 24 * HOUR), 117 * MINUTE, 0.005);
    is_near(interval_best_ms(5 * MINUTE, 6 * HOUR), 57 * MINUTE, 0.006);
    is_near(interval_best_ms(5 * MINUTE, 15 * MINUTE), 9.1 * MINUTE, 0.01);
}

static void a_cheap_checkpoint_has_the_first_order_optimum(void **state)
{
    (void)state;
    is_near(interval_best_ms(50, 24 * HOUR), 92952, 0.001); /* sqrt(2 x 50 x 86.4e6) */
    assert_true(interval_best_ms(3 * HOUR, HOUR) == HOUR);
}

static void failures_are_counted_upon_one_a_day_and_node(void **state)
{
    (void)state;
    struct interval_facts facts = { .nodes = 1 };
    is_near(interval_mtbf_ms(&facts), 24 * HOUR, 1e-9);
    facts.nodes = 24;
    is_near(interval_mtbf_ms(&facts), HOUR, 1e-9);
    facts.failures = 1;
    is_near(interval_mtbf_ms(&facts), HOUR / 2, 1e-9);
    facts.trained_ms = (int64_t)(9 * HOUR);
    facts.failures = 4;
    is_near(interval_mtbf_ms(&facts), 2 * HOUR, 1e-9);
}

static void what_is_not_measured_has_a_fixed_interval(void **state)
{
    (void)state;
    struct interval_facts facts = { .nodes = 1, .current_ms = 5000 };
    assert_int_equal(interval_choose_ms(&facts), INTERVAL_FIRST_MS);
}

static void it_is_bounded_and_saves_do_not_overlap(void **state)
{
    (void)state;
    struct interval_facts facts = { .cost_us = 1, .nodes = 1 };
    assert_int_equal(interval_choose_ms(&facts), INTERVAL_MIN_MS);
    facts.write_ms = 20000;
    assert_int_equal(interval_choose_ms(&facts), 40000);
    facts.cost_us = (int64_t)(10 * MINUTE * 1000);
    assert_int_equal(interval_choose_ms(&facts), INTERVAL_MAX_MS);
    facts.write_ms = (int64_t)HOUR;
    assert_int_equal(interval_choose_ms(&facts), 2 * (int64_t)HOUR);
}

static void small_changes_are_none(void **state)
{
    (void)state;
    struct interval_facts facts = { .cost_us = 50000, .nodes = 1 };
    facts.current_ms = interval_choose_ms(&facts);
    int64_t first = facts.current_ms;
    facts.cost_us = 60000; /* 9.5 % */
    assert_int_equal(interval_choose_ms(&facts), first);
    facts.cost_us = 100000; /* 41 % */
    assert_true(interval_choose_ms(&facts) > first * 5 / 4);
    facts.cost_us = 50000;
    facts.failures = 3; /* half */
    assert_true(interval_choose_ms(&facts) < first * 4 / 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_figures_of_the_paper_come_out),
        cmocka_unit_test(a_cheap_checkpoint_has_the_first_order_optimum),
        cmocka_unit_test(failures_are_counted_upon_one_a_day_and_node),
        cmocka_unit_test(what_is_not_measured_has_a_fixed_interval),
        cmocka_unit_test(it_is_bounded_and_saves_do_not_overlap),
        cmocka_unit_test(small_changes_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
