/* Paths between nodes: suspected, tried, cut, healed. */
#include <stdio.h>
#include <string.h>

#include "server/fleet/paths.h"
#include "tests/test.h"

struct
try {
    struct paths p;
    struct path was;
    int64_t now;
};

/* A round as it is due; both answer. */
static enum paths_news round_of(struct try *t, bool a_reaches, bool b_reaches)
{
    const int64_t at = paths_deadline(&t->p);
    assert_true(at < INT64_MAX);
    t->now = at > t->now ? at : t->now;
    struct path *path = paths_due(&t->p, t->now);
    assert_non_null(path);
    const uint64_t round = paths_begin(&t->p, path, t->now);
    assert_null(paths_due(&t->p, t->now));
    const enum paths_news first =
        paths_answer(&t->p, "a", round, a_reaches, a_reaches ? "fine" : "silence", t->now, &t->was);
    assert_int_equal(first, PATHS_NOTHING);
    return paths_answer(&t->p, "b", round, b_reaches, b_reaches ? "fine" : "silence", t->now,
                        &t->was);
}

static struct try tried(void)
{
    struct try t = { .now = 1000000 };
    paths_suspect(&t.p, "a", "b");
    paths_suspect(&t.p, "b", "a"); /* the same */
    assert_int_equal(t.p.count, 1);
    return t;
}

static struct try cut(void)
{
    struct try t = tried();
    assert_int_equal(round_of(&t, false, true), PATHS_NOTHING);
    assert_int_equal(round_of(&t, false, true), PATHS_NOTHING);
    assert_false(paths_is_cut(&t.p, "a", "b"));
    assert_int_equal(round_of(&t, false, true), PATHS_CUT);
    assert_true(paths_is_cut(&t.p, "b", "a"));
    return t;
}

static void a_path_that_works_is_not_suspected_any_more(void **state)
{
    struct try t = tried();
    (void)state;
    assert_int_equal(round_of(&t, true, true), PATHS_WORKS);
    assert_int_equal(t.p.count, 0);
    assert_int_equal(paths_deadline(&t.p), INT64_MAX);
}

static void one_direction_is_enough_and_the_rounds_are_apart(void **state)
{
    const int64_t begun = 1000000;
    struct try t = cut();
    struct reason text;
    (void)state;
    assert_int_equal(t.now, begun + 2 * PATHS_GAP_MS);
    paths_describe(&t.was, &text);
    assert_string_equal(text.text,
                        "a and b can't reach each other; seen from a: silence; from b: fine");
}

static void what_gets_through_once_in_each_direction_is_not_cut(void **state)
{
    struct try t = tried();
    (void)state;
    assert_int_equal(round_of(&t, false, true), PATHS_NOTHING);
    assert_int_equal(round_of(&t, true, false), PATHS_WORKS);
    assert_false(paths_is_cut(&t.p, "a", "b"));
}

static void without_both_answers_nothing_is_known(void **state)
{
    struct try t = tried();
    (void)state;
    struct path *path = paths_due(&t.p, t.now);
    const uint64_t round = paths_begin(&t.p, path, t.now);
    assert_int_equal(paths_answer(&t.p, "a", round, false, "silence", t.now, &t.was),
                     PATHS_NOTHING);
    assert_int_equal(paths_answer(&t.p, "c", round, false, "?", t.now, &t.was), PATHS_NOTHING);
    assert_int_equal(paths_tick(&t.p, t.now + PATHS_ROUND_MS - 1, &t.was), PATHS_NOTHING);
    assert_int_equal(paths_tick(&t.p, t.now + PATHS_ROUND_MS, &t.was), PATHS_UNKNOWN);
    assert_int_equal(t.p.count, 0);
    assert_int_equal(paths_answer(&t.p, "b", round, false, "late", t.now, &t.was), PATHS_NOTHING);
}

static void answers_of_an_older_round_count_for_nothing(void **state)
{
    struct try t = tried();
    (void)state;
    const uint64_t round = paths_begin(&t.p, paths_due(&t.p, t.now), t.now);
    paths_forget_rounds(&t.p, "b"); /* its agent is another one */
    assert_int_equal(paths_answer(&t.p, "a", round, false, "", t.now, &t.was), PATHS_NOTHING);
    assert_int_equal(paths_answer(&t.p, "b", round, false, "", t.now, &t.was), PATHS_NOTHING);
    assert_int_equal(round_of(&t, true, true), PATHS_WORKS);
}

static void a_cut_path_is_tried_again_later_and_later(void **state)
{
    struct try t = cut();
    int64_t since = t.now;
    (void)state;
    for (int64_t ms = PATHS_AVOID_MS; ms <= 2 * PATHS_AVOID_MAX_MS; ms *= 2) {
        const int64_t expected = ms < PATHS_AVOID_MAX_MS ? ms : PATHS_AVOID_MAX_MS;
        assert_int_equal(round_of(&t, false, false), PATHS_NOTHING);
        assert_int_equal(t.now - since, expected);
        assert_true(paths_is_cut(&t.p, "a", "b"));
        since = t.now;
    }
    assert_int_equal(round_of(&t, true, false), PATHS_NOTHING);
    assert_int_equal(round_of(&t, true, true), PATHS_HEALED);
    assert_int_equal(t.p.count, 0);
}

static void while_a_job_waits_it_is_tried_every_other_second(void **state)
{
    struct try t = cut();
    const int64_t since = t.now;
    (void)state;
    paths_want(&t.p, t.now);
    assert_int_equal(round_of(&t, false, false), PATHS_NOTHING);
    assert_int_equal(t.now - since, PATHS_AGAIN_MS);
    assert_int_equal(round_of(&t, true, true), PATHS_HEALED);
    assert_int_equal(t.now - since, 2 * PATHS_AGAIN_MS);
}

/* A job that was placed there before it was known. */
static void who_got_stuck_across_a_cut_path_is_told_after_one_round(void **state)
{
    struct try t = cut();
    const int64_t since = t.now;
    (void)state;
    paths_suspect(&t.p, "b", "a");
    assert_int_equal(round_of(&t, true, false), PATHS_CUT);
    assert_int_equal(t.now - since, PATHS_GAP_MS);
    assert_int_equal(round_of(&t, true, false), PATHS_NOTHING);
    assert_int_equal(t.now - since, PATHS_AVOID_MS); /* as it was */
    paths_suspect(&t.p, "a", "b");
    assert_int_equal(round_of(&t, true, true), PATHS_HEALED);
}

static void of_a_node_that_is_gone_it_is_forgotten_in_the_end(void **state)
{
    struct try t = cut();
    (void)state;
    paths_want(&t.p, t.now);
    t.now += PATHS_AGAIN_MS;
    struct path *path = paths_due(&t.p, t.now);
    assert_non_null(path);
    assert_int_equal(paths_give_up(&t.p, path, t.now), PATHS_NOTHING);
    assert_true(paths_is_cut(&t.p, "a", "b"));
    t.now += PATHS_AVOID_MS;
    path = paths_due(&t.p, t.now);
    assert_non_null(path);
    assert_int_equal(paths_give_up(&t.p, path, t.now), PATHS_UNKNOWN);
    assert_int_equal(t.p.count, 0);
}

static void there_are_never_too_many(void **state)
{
    struct paths p = { .count = 0 };
    (void)state;
    for (int i = 0; i < 2 * PATHS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "n%d", i);
        paths_suspect(&p, "a", name);
    }
    paths_suspect(&p, "a", "a"); /* none at all */
    assert_int_equal(p.count, PATHS_MAX);
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
