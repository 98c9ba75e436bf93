/* Paths between nodes: suspected, tried, cut, healed. */
#include <stdio.h>
#include <string.h>

#include "server/fleet/netpaths.h"
#include "tests/test.h"

struct
try {
    struct netpaths p;
    struct netpath was;
    int64_t now;
};

/* A round as it is due; both answer. */
static enum netpaths_news round_of(struct try *t, bool a_reaches, bool b_reaches)
{
    const int64_t at = netpaths_deadline(&t->p);
    assert_true(at < INT64_MAX);
    t->now = at > t->now ? at : t->now;
    struct netpath *path = netpaths_due(&t->p, t->now);
    assert_non_null(path);
    const uint64_t round = netpaths_begin(&t->p, path, t->now);
    assert_null(netpaths_due(&t->p, t->now));
    const enum netpaths_news first = netpaths_answer(
        &t->p, "a", round, a_reaches, a_reaches ? "fine" : "silence", t->now, &t->was);
    assert_int_equal(first, NETPATHS_NOTHING);
    return netpaths_answer(&t->p, "b", round, b_reaches, b_reaches ? "fine" : "silence", t->now,
                           &t->was);
}

static struct try tried(void)
{
    struct try t = { .now = 1000000 };
    netpaths_suspect(&t.p, "a", "b");
    netpaths_suspect(&t.p, "b", "a"); /* the same */
    assert_int_equal(t.p.count, 1);
    return t;
}

static struct try cut(void)
{
    struct try t = tried();
    assert_int_equal(round_of(&t, false, true), NETPATHS_NOTHING);
    assert_int_equal(round_of(&t, false, true), NETPATHS_NOTHING);
    assert_false(netpaths_is_cut(&t.p, "a", "b"));
    assert_int_equal(round_of(&t, false, true), NETPATHS_CUT);
    assert_true(netpaths_is_cut(&t.p, "b", "a"));
    return t;
}

static void a_path_that_works_is_not_suspected_any_more(void **state)
{
    struct try t = tried();
    (void)state;
    assert_int_equal(round_of(&t, true, true), NETPATHS_WORKS);
    assert_int_equal(t.p.count, 0);
    assert_int_equal(netpaths_deadline(&t.p), INT64_MAX);
}

static void one_direction_is_enough_and_the_rounds_are_apart(void **state)
{
    const int64_t begun = 1000000;
    struct try t = cut();
    struct reason text;
    (void)state;
    assert_int_equal(t.now, begun + 2 * NETPATHS_GAP_MS);
    netpaths_describe(&t.was, &text);
    assert_string_equal(text.text,
                        "a and b can't reach each other; seen from a: silence; from b: fine");
}

static void what_gets_through_once_in_each_direction_is_not_cut(void **state)
{
    struct try t = tried();
    (void)state;
    assert_int_equal(round_of(&t, false, true), NETPATHS_NOTHING);
    assert_int_equal(round_of(&t, true, false), NETPATHS_WORKS);
    assert_false(netpaths_is_cut(&t.p, "a", "b"));
}

static void without_both_answers_nothing_is_known(void **state)
{
    struct try t = tried();
    (void)state;
    struct netpath *path = netpaths_due(&t.p, t.now);
    const uint64_t round = netpaths_begin(&t.p, path, t.now);
    assert_int_equal(netpaths_answer(&t.p, "a", round, false, "silence", t.now, &t.was),
                     NETPATHS_NOTHING);
    assert_int_equal(netpaths_answer(&t.p, "c", round, false, "?", t.now, &t.was),
                     NETPATHS_NOTHING);
    assert_int_equal(netpaths_tick(&t.p, t.now + NETPATHS_ROUND_MS - 1, &t.was), NETPATHS_NOTHING);
    assert_int_equal(netpaths_tick(&t.p, t.now + NETPATHS_ROUND_MS, &t.was), NETPATHS_UNKNOWN);
    assert_int_equal(t.p.count, 0);
    assert_int_equal(netpaths_answer(&t.p, "b", round, false, "late", t.now, &t.was),
                     NETPATHS_NOTHING);
}

static void answers_of_an_older_round_count_for_nothing(void **state)
{
    struct try t = tried();
    (void)state;
    const uint64_t round = netpaths_begin(&t.p, netpaths_due(&t.p, t.now), t.now);
    netpaths_forget_rounds(&t.p, "b"); /* its agent is another one */
    assert_int_equal(netpaths_answer(&t.p, "a", round, false, "", t.now, &t.was), NETPATHS_NOTHING);
    assert_int_equal(netpaths_answer(&t.p, "b", round, false, "", t.now, &t.was), NETPATHS_NOTHING);
    assert_int_equal(round_of(&t, true, true), NETPATHS_WORKS);
}

static void a_cut_path_is_tried_again_later_and_later(void **state)
{
    struct try t = cut();
    int64_t since = t.now;
    (void)state;
    for (int64_t ms = NETPATHS_AVOID_MS; ms <= 2 * NETPATHS_AVOID_MAX_MS; ms *= 2) {
        const int64_t expected = ms < NETPATHS_AVOID_MAX_MS ? ms : NETPATHS_AVOID_MAX_MS;
        assert_int_equal(round_of(&t, false, false), NETPATHS_NOTHING);
        assert_int_equal(t.now - since, expected);
        assert_true(netpaths_is_cut(&t.p, "a", "b"));
        since = t.now;
    }
    assert_int_equal(round_of(&t, true, false), NETPATHS_NOTHING);
    assert_int_equal(round_of(&t, true, true), NETPATHS_HEALED);
    assert_int_equal(t.p.count, 0);
}

static void while_a_job_waits_it_is_tried_every_other_second(void **state)
{
    struct try t = cut();
    const int64_t since = t.now;
    (void)state;
    netpaths_want(&t.p, t.now);
    assert_int_equal(round_of(&t, false, false), NETPATHS_NOTHING);
    assert_int_equal(t.now - since, NETPATHS_AGAIN_MS);
    assert_int_equal(round_of(&t, true, true), NETPATHS_HEALED);
    assert_int_equal(t.now - since, 2 * NETPATHS_AGAIN_MS);
}

/* A job that was placed there before it was known. */
static void who_got_stuck_across_a_cut_path_is_told_after_one_round(void **state)
{
    struct try t = cut();
    const int64_t since = t.now;
    (void)state;
    netpaths_suspect(&t.p, "b", "a");
    assert_int_equal(round_of(&t, true, false), NETPATHS_CUT);
    assert_int_equal(t.now - since, NETPATHS_GAP_MS);
    assert_int_equal(round_of(&t, true, false), NETPATHS_NOTHING);
    assert_int_equal(t.now - since, NETPATHS_AVOID_MS); /* as it was */
    netpaths_suspect(&t.p, "a", "b");
    assert_int_equal(round_of(&t, true, true), NETPATHS_HEALED);
}

static void of_a_node_that_is_gone_it_is_forgotten_in_the_end(void **state)
{
    struct try t = cut();
    (void)state;
    netpaths_want(&t.p, t.now);
    t.now += NETPATHS_AGAIN_MS;
    struct netpath *path = netpaths_due(&t.p, t.now);
    assert_non_null(path);
    assert_int_equal(netpaths_give_up(&t.p, path, t.now), NETPATHS_NOTHING);
    assert_true(netpaths_is_cut(&t.p, "a", "b"));
    t.now += NETPATHS_AVOID_MS;
    path = netpaths_due(&t.p, t.now);
    assert_non_null(path);
    assert_int_equal(netpaths_give_up(&t.p, path, t.now), NETPATHS_UNKNOWN);
    assert_int_equal(t.p.count, 0);
}

static void there_are_never_too_many(void **state)
{
    struct netpaths p = { .count = 0 };
    (void)state;
    for (int i = 0; i < 2 * NETPATHS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        netpaths_suspect(&p, "a", name);
    }
    netpaths_suspect(&p, "a", "a"); /* none at all */
    assert_int_equal(p.count, NETPATHS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_path_that_works_is_not_suspected_any_more),
        cmocka_unit_test(one_direction_is_enough_and_the_rounds_are_apart),
        cmocka_unit_test(what_gets_through_once_in_each_direction_is_not_cut),
        cmocka_unit_test(without_both_answers_nothing_is_known),
        cmocka_unit_test(answers_of_an_older_round_count_for_nothing),
        cmocka_unit_test(a_cut_path_is_tried_again_later_and_later),
        cmocka_unit_test(while_a_job_waits_it_is_tried_every_other_second),
        cmocka_unit_test(who_got_stuck_across_a_cut_path_is_told_after_one_round),
        cmocka_unit_test(of_a_node_that_is_gone_it_is_forgotten_in_the_end),
        cmocka_unit_test(there_are_never_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
