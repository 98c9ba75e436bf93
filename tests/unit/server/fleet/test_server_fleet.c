/* What is held against nodes, and the nodes that a job keeps away from. */
#include <stdio.h>
#include <string.h>

#include "server/fleet/exclusion.h"
#include "server/fleet/isolation.h"
#include "server/fleet/record.h"
#include "tests/test.h"

static void a_penalty_is_halved_every_5_minutes(void **state)
{
    struct fleet_record r = { .count = 0 };
    (void)state;
    assert_true(fleet_penalty(&r, 0) == 0);
    assert_false(fleet_blame(&r, "j-1", 1000));
    assert_true(fleet_penalty(&r, 1000) == 1.0);
    assert_true(fleet_penalty(&r, 1000 + FLEET_HALF_LIFE_MS) == 0.5);
    assert_false(fleet_blame(&r, "j-1", 1000)); /* the same job counts once */
    assert_true(fleet_penalty(&r, 1000) == 1.0);
    assert_false(fleet_age(&r, 1000 + FLEET_FORGET_MS));
    assert_int_equal(r.count, 0);
}

static void the_third_different_job_drains(void **state)
{
    struct fleet_record r = { .count = 0 };
    (void)state;
    assert_false(fleet_blame(&r, "j-1", 0));
    assert_false(fleet_blame(&r, "j-2", 0));
    assert_false(fleet_blame(&r, "j-1", 0));
    assert_true(fleet_blame(&r, "j-3", 0));
    r.drained = true;
    assert_false(fleet_blame(&r, "j-3", 5)); /* it is already */
    assert_true(r.drained);
    fleet_clear(&r, "j-2"); /* that one failed elsewhere, too */
    assert_false(r.drained);
    assert_true(fleet_blame(&r, "j-4", 10));
    r.drained = true;
    assert_true(fleet_age(&r, FLEET_FORGET_MS));
    assert_false(r.drained);
}

static void of_too_many_failures_the_oldest_is_forgotten(void **state)
{
    struct fleet_record r = { .count = 0 };
    (void)state;
    for (int i = 0; i < 3 * FLEET_FAULTS_MAX; i++) {
        char job[16];
        (void)snprintf(job, sizeof(job), "j-%d", i);
        r.drained = fleet_blame(&r, job, i) || r.drained;
    }
    assert_int_equal(r.count, FLEET_FAULTS_MAX);
    assert_true(r.drained);
    fleet_forgive(&r);
    assert_int_equal(r.count, 0);
    assert_false(r.drained);
}

static void a_shunned_node_is_tried_again_after_a_time_and_stays_known(void **state)
{
    struct exclusion_list l = { .count = 0 };
    (void)state;
    assert_true(exclusion_add(&l, "a", EXCLUSION_FAILED, 1, 0));
    assert_true(exclusion_add(&l, "a", EXCLUSION_PINS, 1, 0));
    assert_true(exclusion_holds(&l, "a", EXCLUSION_FAILED, EXCLUSION_FAILED_MS - 1));
    assert_false(exclusion_holds(&l, "a", EXCLUSION_FAILED, EXCLUSION_FAILED_MS));
    assert_true(exclusion_holds(&l, "a", EXCLUSION_PINS, EXCLUSION_FAILED_MS));
    assert_false(exclusion_holds(&l, "b", EXCLUSION_PINS, 0));
    assert_false(exclusion_add(&l, "a", EXCLUSION_FAILED, 1, EXCLUSION_FAILED_MS)); /* again */
    assert_true(exclusion_holds(&l, "a", EXCLUSION_FAILED, EXCLUSION_FAILED_MS));
    assert_true(exclusion_elsewhere(&l, "b", 1));
    assert_false(exclusion_elsewhere(&l, "b", 2));
    assert_false(exclusion_elsewhere(&l, "a", 1));
    exclusion_drop(&l, EXCLUSION_FAILED);
    assert_int_equal(exclusion_count(&l, EXCLUSION_FAILED), 0);
    assert_int_equal(exclusion_count(&l, EXCLUSION_PINS), 1);
    assert_true(exclusion_renew(&l, "a", 1));
    assert_false(exclusion_renew(&l, "a", 1));
    exclusion_release(&l);
}

static uint64_t is_seven(void *arg, const char *node)
{
    (void)arg;
    return strcmp(node, "a") == 0 ? 7 : 0;
}

static void an_entry_ends_with_the_agent_that_it_is_about(void **state)
{
    struct exclusion_list l = { .count = 0 };
    (void)state;
    assert_true(exclusion_add(&l, "a", EXCLUSION_PINS, 0, 0));
    assert_true(exclusion_add(&l, "b", EXCLUSION_PINS, 0, 0));
    exclusion_identify(&l, is_seven, NULL);
    assert_false(exclusion_renew(&l, "a", 7)); /* it says hello again */
    assert_true(exclusion_holds(&l, "a", EXCLUSION_PINS, 1));
    assert_true(exclusion_renew(&l, "a", 8));
    assert_false(exclusion_holds(&l, "a", EXCLUSION_PINS, 1));
    assert_true(exclusion_holds(&l, "b", EXCLUSION_PINS, 1));
    assert_true(exclusion_renew(&l, "b", 9)); /* nobody knows whom it was about */
    assert_true(exclusion_add(&l, "a", EXCLUSION_FAILED, 1, 0));
    exclusion_identify(&l, is_seven, NULL);
    assert_false(exclusion_add(&l, "a", EXCLUSION_FAILED, 1, 0)); /* by another agent, once more */
    assert_true(exclusion_renew(&l, "a", 7));
    exclusion_release(&l);
}

static void a_clock_that_was_ahead_holds_nothing_for_long(void **state)
{
    const int64_t year = INT64_C(365) * 86400 * 1000;
    struct exclusion_list l = { .count = 0 };
    (void)state;
    assert_true(exclusion_add(&l, "a", EXCLUSION_PINS, 0, year));
    assert_true(exclusion_add(&l, "b", EXCLUSION_PINS, 0, EXCLUSION_PINS_MS / 2));
    assert_false(exclusion_holds(&l, "a", EXCLUSION_PINS, 0));
    assert_true(exclusion_holds(&l, "b", EXCLUSION_PINS, 0)); /* a small step back */
    exclusion_resume(&l, 0);
    assert_true(exclusion_holds(&l, "b", EXCLUSION_PINS, EXCLUSION_PINS_MS - 1));
    assert_false(exclusion_holds(&l, "b", EXCLUSION_PINS, EXCLUSION_PINS_MS));
    exclusion_release(&l);
}

static void who_is_left_out_is_told_with_the_time_that_is_left(void **state)
{
    struct exclusion_list l = { .count = 0 };
    struct reason told;
    (void)state;
    exclusion_describe(&l, 0, &told);
    assert_string_equal(told.text, "");
    assert_true(exclusion_add(&l, "a", EXCLUSION_PINS, 0, 0));
    assert_true(exclusion_add(&l, "b", EXCLUSION_FAILED, 0, 0));
    exclusion_describe(&l, 90000, &told);
    assert_string_equal(told.text, "a for 59 min (its pins differ), b for 9 min (it failed there)");
    exclusion_describe(&l, EXCLUSION_FAILED_MS, &told);
    assert_string_equal(told.text, "a for 50 min (its pins differ)");
    for (int i = 0; i < 100; i++) {
        char name[LIMIT_NAME];
        (void)snprintf(name, sizeof(name), "%0100d", i);
        assert_true(exclusion_add(&l, name, EXCLUSION_SLOW, 0, 0));
    }
    exclusion_describe(&l, 1, &told);
    assert_non_null(strstr(told.text, ", and 99 more"));
    exclusion_release(&l);
}

static void all_nodes_that_there_may_be_fit(void **state)
{
    struct exclusion_list l = { .count = 0 };
    (void)state;
    for (int i = 0; i < LIMIT_NODES; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        assert_true(exclusion_add(&l, name, EXCLUSION_PINS, 1, 0));
        assert_true(exclusion_add(&l, name, EXCLUSION_FAILED, 1, 0));
        assert_true(exclusion_add(&l, name, EXCLUSION_DATA, 0, 0));
        assert_true(exclusion_add(&l, name, EXCLUSION_SLOW, 0, 0));
    }
    assert_false(exclusion_add(&l, "one more", EXCLUSION_PINS, 1, 0));
    assert_true(exclusion_holds(&l, "n1023", EXCLUSION_PINS, 0));
    assert_true(exclusion_holds(&l, "n1023", EXCLUSION_DATA, EXCLUSION_DATA_MS - 1));
    assert_false(exclusion_holds(&l, "n1023", EXCLUSION_DATA, EXCLUSION_DATA_MS));
    assert_true(exclusion_holds(&l, "n1023", EXCLUSION_SLOW, EXCLUSION_SLOW_MS - 1));
    assert_false(exclusion_holds(&l, "n1023", EXCLUSION_SLOW, EXCLUSION_SLOW_MS));
    exclusion_release(&l);
}

/* ---- all silent at once ---- */

static enum isolation_turn look(struct isolation *o, uint32_t nodes, uint32_t quiet, bool due,
                                int64_t now)
{
    const struct isolation_sight sight = { nodes, quiet, due };
    return isolation_look(o, &sight, now);
}

static void nobody_is_judged_while_all_are_silent(void **state)
{
    struct isolation o = { .since = 0 };
    (void)state;
    assert_int_equal(look(&o, 3, 3, false, 4000), ISOLATION_NONE);
    assert_int_equal(look(&o, 3, 3, true, 5000), ISOLATION_BEGINS);
    assert_int_equal(look(&o, 3, 3, true, 6000), ISOLATION_HOLDS);
    assert_int_equal(look(&o, 3, 2, true, 60000), ISOLATION_ENDS); /* one is heard */
    assert_int_equal(look(&o, 3, 2, true, 65000), ISOLATION_NONE); /* the others are judged */
}

static void one_node_or_some_that_are_silent_are_judged(void **state)
{
    struct isolation o = { .since = 0 };
    (void)state;
    assert_int_equal(look(&o, 1, 1, true, 5000), ISOLATION_NONE);
    assert_int_equal(look(&o, 3, 2, true, 5000), ISOLATION_NONE);
    assert_int_equal(look(&o, 0, 0, false, 5000), ISOLATION_NONE);
}

static void nodes_that_never_come_back_do_not_hold_for_ever(void **state)
{
    struct isolation o = { .since = 0 };
    (void)state;
    assert_int_equal(look(&o, 2, 2, true, 5000), ISOLATION_BEGINS);
    assert_int_equal(look(&o, 2, 2, true, 5000 + ISOLATION_MAX_MS - 1), ISOLATION_HOLDS);
    const int64_t ended = 5000 + ISOLATION_MAX_MS;
    assert_int_equal(look(&o, 2, 2, true, ended), ISOLATION_ENDS);
    assert_int_equal(look(&o, 2, 2, true, ended + 6500), ISOLATION_NONE); /* they are judged */
    isolation_heard(&o);
    assert_int_equal(look(&o, 2, 2, true, ended + 60000), ISOLATION_BEGINS);
    assert_int_equal(look(&o, 2, 1, true, ended + 61000), ISOLATION_ENDS); /* one is heard */
    assert_int_equal(look(&o, 2, 2, true, ended + 70000), ISOLATION_BEGINS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_penalty_is_halved_every_5_minutes),
        cmocka_unit_test(the_third_different_job_drains),
        cmocka_unit_test(of_too_many_failures_the_oldest_is_forgotten),
        cmocka_unit_test(a_shunned_node_is_tried_again_after_a_time_and_stays_known),
        cmocka_unit_test(an_entry_ends_with_the_agent_that_it_is_about),
        cmocka_unit_test(a_clock_that_was_ahead_holds_nothing_for_long),
        cmocka_unit_test(who_is_left_out_is_told_with_the_time_that_is_left),
        cmocka_unit_test(all_nodes_that_there_may_be_fit),
        cmocka_unit_test(nobody_is_judged_while_all_are_silent),
        cmocka_unit_test(one_node_or_some_that_are_silent_are_judged),
        cmocka_unit_test(nodes_that_never_come_back_do_not_hold_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
