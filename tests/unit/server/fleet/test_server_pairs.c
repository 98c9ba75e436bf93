/* A check of pairs: which, how many at once, what comes of each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fleet/pairs.h"
#include "tests/test.h"

static struct pairs p; /* too large for a stack */
static char names[LIMIT_NODES][16];
static const char *list[LIMIT_NODES];

static void open_check(uint32_t count, bool all)
{
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%u", i);
        list[i] = names[i];
    }
    assert_int_equal(pairs_open(&p, list, count, all), ST_OK);
}

static void say(const struct pairs_try *try, int at, bool reached, uint64_t bytes)
{
    const struct pairs_answer answer = { .id = try->id,
                                         .reached = reached,
                                         .reach_us = 300,
                                         .bytes = bytes,
                                         .took_us = bytes ? 1000 : 0,
                                         .saw = reached ? "fine" : "nothing" };
    pairs_answered(&p, names[try->node[at]], &answer);
}

static void no_node_is_twice_under_way(void)
{
    for (uint32_t i = 0; i < p.try_count; i++) {
        for (uint32_t j = i + 1; j < p.try_count; j++) {
            for (int k = 0; k < 4; k++)
                assert_int_not_equal(p.tries[i].node[k & 1], p.tries[j].node[k >> 1]);
        }
    }
}

/* All that is due is answered well, until nothing is; the most that were under way at once. */
static uint32_t answer_all(void)
{
    uint32_t most = 0;
    struct pairs_try due[PAIRS_AT_ONCE];
    for (;;) {
        uint32_t count = 0;
        for (const struct pairs_try *try = pairs_due(&p, 0); try != NULL; try = pairs_due(&p, 0))
            due[count++] = *try;
        if (count == 0)
            return most;
        no_node_is_twice_under_way();
        most = p.try_count > most ? p.try_count : most;
        for (uint32_t i = 0; i < count; i++) {
            for (int at = 0; at < 2; at++) {
                if (!due[i].answered[at])
                    say(&due[i], at, true, due[i].phase == PAIRS_REACH ? 0 : 5000);
            }
        }
    }
}

/* So many nodes, so many pairs; each pair once, and all end well. */
static void walk(uint32_t nodes, bool all, uint32_t pairs)
{
    bool *seen = calloc((size_t)nodes * nodes, sizeof(*seen));
    struct pairs_try done;
    uint32_t count = 0;
    assert_non_null(seen);
    open_check(nodes, all);
    assert_int_equal(p.total, pairs);
    while (!pairs_over(&p)) {
        assert_true(answer_all() <= PAIRS_AT_ONCE);
        assert_true(p.done_count <= PAIRS_DONE_MAX);
        while (pairs_fetch(&p, &done)) {
            const uint32_t low = done.node[0] < done.node[1] ? done.node[0] : done.node[1];
            const uint32_t high = done.node[0] + done.node[1] - low;
            assert_true(low < high && high < nodes);
            assert_false(seen[low * nodes + high]);
            seen[low * nodes + high] = true;
            assert_true(pairs_side_ok(&done.side[0]) && pairs_side_ok(&done.side[1]));
            count++;
        }
    }
    assert_int_equal(count, pairs);
    assert_true(pairs_deadline(&p) == INT64_MAX);
    pairs_close(&p);
    free(seen);
}

static void every_pair_is_tried_once(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= PAIRS_ALL_NODES; n++)
        walk(n, false, n * (n - 1) / 2);
    walk(PAIRS_NODES_MAX, true, PAIRS_NODES_MAX * (PAIRS_NODES_MAX - 1) / 2);
}

static void of_many_nodes_each_is_tried_with_the_next(void **state)
{
    (void)state;
    walk(PAIRS_ALL_NODES + 1, false, PAIRS_ALL_NODES + 1);
    walk(LIMIT_NODES, false, LIMIT_NODES);
    assert_int_equal(pairs_open(&p, list, PAIRS_NODES_MAX + 1, true), ST_FULL);
    open_check(2, false);
    assert_int_equal(pairs_open(&p, list, 2, false), ST_AGAIN);
    pairs_close(&p);
}

static void who_fetches_nothing_holds_it_up(void **state)
{
    struct pairs_try done;
    (void)state;
    open_check(PAIRS_ALL_NODES, false);
    (void)answer_all();
    assert_int_equal(p.done_count, PAIRS_DONE_MAX);
    assert_null(pairs_due(&p, 0));
    assert_true(pairs_deadline(&p) == INT64_MAX);
    assert_true(pairs_fetch(&p, &done));
    assert_true(pairs_deadline(&p) == 0);
    pairs_close(&p);
}

/* One answers that it reaches the other, the other says nothing, or that it doesn't. */
static void what_each_side_saw_is_kept(void **state)
{
    struct pairs_try done;
    struct reason out;
    (void)state;
    open_check(2, false);
    struct pairs_try try = *pairs_due(&p, 1000);
    assert_null(pairs_due(&p, 1000));
    say(&try, 0, true, 0);
    say(&try, 0, false, 0); /* said twice: the first counts */
    assert_true(pairs_deadline(&p) == 1000 + PAIRS_ANSWER_MS);
    pairs_tick(&p, 1000 + PAIRS_ANSWER_MS - 1);
    assert_null(pairs_due(&p, 1000));
    pairs_tick(&p, 1000 + PAIRS_ANSWER_MS);
    const struct pairs_try old = try;
    try = *pairs_due(&p, 6000);
    assert_int_equal(try.phase, PAIRS_FORTH);
    say(&old, 1, true, 0); /* too late */
    say(&try, 1, true, 9); /* it wasn't asked */
    say(&try, 0, true, 77000);
    assert_true(pairs_fetch(&p, &done));
    assert_true(pairs_side_ok(&done.side[0]));
    assert_int_equal(done.side[0].bytes, 77000);
    assert_false(done.side[1].reached);
    assert_string_equal(done.side[0].saw, "fine");
    assert_string_equal(done.side[1].saw, "its agent gave no answer");
    pairs_way_out(&p, &done, 0, &out);
    assert_string_equal(out.text, "");
    pairs_way_out(&p, &done, 1, &out);
    assert_non_null(strstr(out.text, "n0 reaches n1"));
    assert_true(pairs_over(&p));
    pairs_close(&p);
}

static void data_that_get_stuck_are_told_from_a_closed_way(void **state)
{
    struct pairs_try done;
    struct reason out;
    (void)state;
    open_check(2, false);
    struct pairs_try try = *pairs_due(&p, 0);
    say(&try, 0, true, 0);
    say(&try, 1, false, 0);
    try = *pairs_due(&p, 0);
    say(&try, 0, false, 0); /* nothing arrived */
    assert_true(pairs_fetch(&p, &done));
    assert_true(done.side[0].reached);
    pairs_way_out(&p, &done, 0, &out);
    assert_non_null(strstr(out.text, "MTU"));
    pairs_close(&p);

    open_check(2, false);
    try = *pairs_due(&p, 0);
    say(&try, 0, false, 0);
    say(&try, 1, false, 0);
    assert_true(pairs_fetch(&p, &done)); /* nothing to measure */
    pairs_way_out(&p, &done, 0, &out);
    assert_non_null(strstr(out.text, "--interface"));
    pairs_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_is_tried_once),
        cmocka_unit_test(of_many_nodes_each_is_tried_with_the_next),
        cmocka_unit_test(who_fetches_nothing_holds_it_up),
        cmocka_unit_test(what_each_side_saw_is_kept),
        cmocka_unit_test(data_that_get_stuck_are_told_from_a_closed_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
