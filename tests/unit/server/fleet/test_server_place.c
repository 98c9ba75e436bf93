/* Which slots a job's workers get, and what is said where there are none. */
#include <string.h>

#include "server/fleet/place.h"
#include "tests/test.h"

static const bool none_used[8];

static struct place_node node(const char *name, uint32_t slots, const bool *used)
{
    return (struct place_node){ .name = name,
                                .device = "cpu",
                                .slots = slots,
                                .used = used,
                                .host = "10.0.0.1",
                                .net = "ipv4",
                                .ready = true,
                                .reachable = true };
}

static void workers_share_the_fullest_node_that_fits(void **state)
{
    const bool half[4] = { true, false, true, false };
    struct place_node nodes[] = { node("a", 8, none_used), node("b", 4, half) };
    struct place_ask ask = { .count = 2, .device = "cpu" };
    struct place_slot out[2];
    struct reason reason;
    (void)state;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(out[0].slot, 1);
    assert_int_equal(out[1].node, 1);
    assert_int_equal(out[1].slot, 3);
}

static void workers_spread_over_few_nodes_when_none_has_room(void **state)
{
    struct place_node nodes[] = { node("a", 2, none_used), node("b", 4, none_used),
                                  node("c", 1, none_used) };
    struct place_ask ask = { .count = 5, .device = "cpu" };
    struct place_slot out[5];
    struct reason reason;
    (void)state;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(out[i].node, 1);
    assert_int_equal(out[4].node, 2);
}

static void waiting_says_what_is_missing(void **state)
{
    const bool used[4] = { true, true, true, false };
    struct place_node nodes[] = { node("a", 4, used) };
    struct place_ask ask = { .count = 2, .device = "cpu" };
    struct place_slot out[2];
    struct reason reason;
    (void)state;
    assert_int_equal(place_workers(nodes, 1, &ask, out, &reason), ST_AGAIN);
    assert_string_equal(reason.text, "needs 2 slots, 1 of 4 is free");
    assert_int_equal(place_workers(nodes, 0, &ask, out, &reason), ST_AGAIN);
    assert_string_equal(reason.text, "needs 2 slots, no node is registered yet");
    nodes[0].ready = false;
    assert_int_equal(place_workers(nodes, 1, &ask, out, &reason), ST_AGAIN);
    ask.device = "cuda";
    assert_int_equal(place_workers(nodes, 1, &ask, out, &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "cuda"));
}

static void a_job_wider_than_all_nodes_is_told_so(void **state)
{
    struct place_node nodes[] = { node("a", 2, none_used), node("b", 2, none_used) };
    struct place_ask ask = { .count = 8, .device = "cpu" };
    struct place_slot out[8];
    struct reason reason;
    (void)state;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "needs 8 slots, but all that is registered has 4"));
}

static void who_leaves_takes_nobody_and_is_waited_for(void **state)
{
    struct place_node nodes[] = { node("a", 4, none_used), node("b", 2, none_used) };
    struct place_ask ask = { .count = 1, .device = "cpu" };
    struct place_slot out[4];
    struct reason reason;
    (void)state;
    nodes[0].leaving = true;
    nodes[0].reachable = true;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(place_workers(nodes, 1, &ask, out, &reason), ST_AGAIN);
    assert_string_equal(reason.text, "needs 1 slot, and no node that has some takes jobs");
    ask.count = 4;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "all that is registered has 2"));
    assert_false(place_fits(nodes, 2, &ask, NULL)); /* so it holds back no other job */
    assert_true(place_fits_in_reach(nodes, 2, &ask));
}

static void gpus_are_slots_after_the_cpu_shares(void **state)
{
    const bool one_used[2] = { true, false };
    struct place_node nodes[] = { node("a", 4, none_used), node("a", 2, one_used) };
    struct place_ask ask = { .count = 1, .device = "cuda" };
    struct place_slot out[2];
    struct reason reason;
    (void)state;
    nodes[1].device = "cuda";
    nodes[1].first = 4;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(out[0].slot, 5);
    ask.count = 2;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_string_equal(reason.text, "needs 2 slots, 1 of 2 is free");
    ask.device = "cpu";
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
    assert_int_equal(out[1].slot, 1);
}

static void excluded_and_avoided_nodes_take_nobody(void **state)
{
    struct place_node nodes[] = { node("a", 4, none_used), node("b", 4, none_used) };
    struct place_ask ask = { .count = 1, .device = "cpu" };
    struct place_slot out[1];
    struct reason reason;
    (void)state;
    nodes[0].excluded = true;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(place_workers(nodes, 1, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "pins"));
    nodes[0].excluded = false;
    nodes[0].avoided = true;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 1);
}

static void nodes_with_a_penalty_come_last(void **state)
{
    const bool used[4] = { true, true, true, false };
    struct place_node nodes[] = { node("a", 4, used), node("b", 2, none_used),
                                  node("c", 2, none_used) };
    struct place_ask ask = { .count = 1, .device = "cpu" };
    struct place_slot out[5];
    struct reason reason;
    (void)state;
    nodes[0].penalty = 1;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    ask.count = 5;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    assert_int_equal(out[4].node, 0);
}

static void at(struct place_node *node, const char *host, const char *machine)
{
    static char nets[4][PLACE_NET];
    static size_t next;
    node->host = host;
    place_net(host, machine, nets[next]);
    node->net = nets[next];
    next = (next + 1) % 4;
}

static void a_job_spans_only_nodes_that_reach_each_other(void **state)
{
    struct place_node nodes[] = { node("a", 2, none_used), node("b", 2, none_used) };
    struct place_ask ask = { .count = 3, .device = "cpu" };
    struct place_slot out[3];
    struct reason reason;
    (void)state;
    at(&nodes[0], "127.0.0.1", "boot-1");
    at(&nodes[1], "127.0.0.1", "boot-1");
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK); /* one machine */
    at(&nodes[1], "127.0.0.1", "boot-2");
    assert_false(place_fits(nodes, 2, &ask, NULL));
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "node a is at 127.0.0.1"));
    assert_non_null(strstr(reason.text, "--interface"));
    at(&nodes[0], "10.0.0.1", "boot-1");
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "node b is at 127.0.0.1"));
    at(&nodes[1], "fd00::1", "boot-2");
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "IPv6"));
    at(&nodes[1], "::1", "boot-2");
    assert_false(place_fits(nodes, 2, &ask, NULL));
    nodes[0].ports = 1; /* more would be of no use */
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "node b is at ::1"));
    nodes[0].ports = 0;
    ask.count = 2;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK); /* on one of them */
    assert_int_equal(out[0].node, out[1].node);
    ask.count = 3;
    at(&nodes[0], "fd00::2", "boot-1");
    at(&nodes[1], "fd00::1", "boot-2");
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
}

/* The best of all stands alone in its net, and the job needs more. */
static void a_net_with_too_few_slots_is_passed_over(void **state)
{
    const bool used[2] = { true, false };
    struct place_node nodes[] = { node("a", 3, none_used), node("b", 2, none_used),
                                  node("c", 2, none_used) };
    struct place_ask ask = { .count = 4, .device = "cpu" };
    struct place_slot out[4];
    struct reason reason;
    (void)state;
    at(&nodes[0], "fd00::1", "");
    nodes[1].penalty = nodes[2].penalty = 1;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    for (int i = 0; i < 4; i++)
        assert_int_not_equal(out[i].node, 0);
    nodes[2].used = used;
    assert_true(place_fits(nodes, 3, &ask, NULL));
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "reach each other: 6 of 7 are free"));
    nodes[2].reachable = false;
    assert_false(place_fits_in_reach(nodes, 3, &ask));
}

static void ports_limit_workers_of_jobs_on_several_nodes(void **state)
{
    struct place_node nodes[] = { node("a", 8, none_used), node("b", 4, none_used),
                                  node("c", 4, none_used) };
    struct place_ask ask = { .count = 8, .device = "cuda" };
    struct place_slot out[8];
    struct reason reason;
    (void)state;
    for (int i = 0; i < 3; i++)
        nodes[i].device = "cuda";
    for (int i = 0; i < 3; i++)
        nodes[i].ports = 20; /* two workers of eight: 14; three would need 21 */
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK); /* on one node */
    for (int i = 0; i < 8; i++)
        assert_int_equal(out[i].node, 0);
    nodes[0].slots = 4;
    assert_false(place_fits(nodes, 3, &ask, NULL));
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "node a needs 28 and has 20"));
    assert_non_null(strstr(reason.text, "--ports"));
    nodes[1].ports = nodes[2].ports = 21;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    int on[3] = { 0 };
    for (int i = 0; i < 8; i++)
        on[out[i].node]++;
    assert_int_equal(on[0], 2);
    assert_int_equal(on[1], 3);
    assert_int_equal(on[2], 3);
    nodes[0].penalty = 1; /* b first, but the rest can't go there */
    nodes[0].slots = 8;
    nodes[2].slots = 0;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    for (int i = 0; i < 8; i++)
        assert_int_equal(out[i].node, 0);
}

/* So it holds back no other job. */
static void what_never_comes_free_is_not_waited_for(void **state)
{
    const bool used[4] = { true, true, true, true };
    struct place_node nodes[] = { node("a", 4, used), node("b", 4, used) };
    struct place_ask ask = { .count = 8, .device = "cpu" };
    (void)state;
    assert_true(place_fits(nodes, 2, &ask, NULL));
    nodes[1].stuck = 1;
    assert_false(place_fits(nodes, 2, &ask, NULL));
    assert_false(place_fits_in_reach(nodes, 2, &ask));
    ask.count = 7;
    assert_true(place_fits(nodes, 2, &ask, NULL));
    nodes[0].reachable = false;
    assert_false(place_fits(nodes, 2, &ask, NULL));
    ask.count = 3;
    assert_true(place_fits(nodes, 2, &ask, NULL));
}

/* Jobs behind a waiting one get the nodes that it has no use for. */
static void who_waits_keeps_the_nodes_that_it_may_be_on(void **state)
{
    struct place_node nodes[] = { node("a", 2, none_used), node("b", 2, none_used),
                                  node("c", 2, none_used), node("d", 2, none_used) };
    struct place_ask ask = { .count = 4, .device = "cpu" };
    struct place_slot out[2];
    struct reason reason;
    uint32_t kept[4] = { 0 };
    (void)state;
    nodes[2].net = "ipv6";
    nodes[3].avoided = true;
    assert_true(place_fits(nodes, 4, &ask, kept));
    const uint32_t wanted[4] = { PLACE_ALL, PLACE_ALL, 0, 0 };
    assert_memory_equal(kept, wanted, sizeof(kept));
    for (int i = 0; i < 4; i++)
        nodes[i].kept = kept[i];
    nodes[3].avoided = false;
    nodes[3].kept = 1; /* of two free ones */
    ask.count = 2;
    assert_int_equal(place_workers(nodes, 4, &ask, out, &reason), ST_OK);
    assert_int_equal(out[0].node, 2);
    assert_int_equal(out[1].node, 2);
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    ask.count = 1;
    assert_int_equal(place_workers(&nodes[3], 1, &ask, out, &reason), ST_OK);
    ask.count = 4;
    assert_true(place_fits(nodes, 4, &ask, NULL)); /* for whom they are kept doesn't matter */
}

/* Gloo listens at one port, however many the others are. */
static void a_worker_on_the_cpu_needs_one_port(void **state)
{
    struct place_node nodes[] = { node("a", 4, none_used), node("b", 4, none_used) };
    struct place_ask ask = { .count = 8, .device = "cpu" };
    struct place_slot out[8];
    struct reason reason;
    (void)state;
    nodes[0].ports = 3;
    nodes[1].ports = 4;
    assert_false(place_fits(nodes, 2, &ask, NULL));
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_AGAIN);
    assert_non_null(strstr(reason.text, "1 port for each"));
    assert_non_null(strstr(reason.text, "node a needs 4 and has 3"));
    nodes[0].ports = 4;
    assert_int_equal(place_workers(nodes, 2, &ask, out, &reason), ST_OK);
}

/* ---- nodes that can't reach each other ---- */

static enum status place_apart(size_t count, uint32_t slots, const struct place_pair *apart,
                               size_t apart_count, struct place_slot *out, struct reason *reason)
{
    static const char *const names[] = { "a", "b", "c", "d", "e" };
    struct place_node nodes[5];
    for (size_t i = 0; i < count; i++)
        nodes[i] = node(names[i], 1, none_used);
    struct place_ask ask = {
        .count = slots, .device = "cpu", .apart = apart, .apart_count = apart_count
    };
    return place_workers(nodes, count, &ask, out, reason);
}

static void of_two_that_are_apart_one_is_taken(void **state)
{
    const struct place_pair apart[] = { { 0, 1 } };
    struct place_slot out[2];
    struct reason reason;
    (void)state;
    assert_int_equal(place_apart(3, 2, apart, 1, out, &reason), ST_OK);
    assert_true(out[0].node == 2 || out[1].node == 2);
    assert_int_equal(place_apart(2, 1, apart, 1, out, &reason), ST_OK); /* alone it is as good */
    assert_int_equal(place_apart(2, 2, apart, 1, out, &reason), ST_UNREACHABLE);
    assert_non_null(strstr(reason.text, "a and b can't reach each other"));
}

static void the_one_that_is_apart_from_most_is_left_out(void **state)
{
    const struct place_pair apart[] = { { 0, 1 }, { 0, 2 }, { 0, 3 } };
    struct place_slot out[3];
    struct reason reason;
    (void)state;
    assert_int_equal(place_apart(4, 3, apart, 3, out, &reason), ST_OK);
    for (int i = 0; i < 3; i++)
        assert_int_not_equal(out[i].node, 0);
}

/* a-b-c-d-e-a: to leave out the first of each pair only would find none. */
static void another_choice_is_tried_where_the_first_leaves_too_few(void **state)
{
    const bool used[] = { false, true, true };
    const bool more[] = { false, false, true };
    struct place_node nodes[] = { node("a", 3, none_used), node("b", 3, more), node("c", 3, used) };
    const struct place_pair apart[] = { { 0, 1 }, { 0, 2 } };
    struct place_ask ask = { .count = 3, .device = "cpu", .apart = apart, .apart_count = 2 };
    struct place_slot out[4];
    struct reason reason;
    (void)state;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    ask.count = 4; /* a has 3, b 2 and c 1: no four without a pair */
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_UNREACHABLE);
    nodes[0].penalty = 1; /* b and c come first now */
    ask.count = 3;
    assert_int_equal(place_workers(nodes, 3, &ask, out, &reason), ST_OK);
    const struct place_pair ring[] = { { 0, 1 }, { 1, 2 }, { 2, 3 }, { 3, 4 }, { 4, 0 } };
    assert_int_equal(place_apart(5, 2, ring, 5, out, &reason), ST_OK);
    assert_int_equal(place_apart(5, 3, ring, 5, out, &reason), ST_UNREACHABLE);
}

/* Slots in use don't count, pairs do. */
static void a_job_fits_only_where_nodes_reach_each_other(void **state)
{
    const bool used[] = { true, true };
    struct place_node nodes[] = { node("a", 2, used), node("b", 2, used), node("c", 1, used) };
    const struct place_pair apart[] = { { 0, 1 } };
    struct place_ask ask = { .count = 3, .device = "cpu", .apart = apart, .apart_count = 1 };
    (void)state;
    assert_true(place_fits(nodes, 3, &ask, NULL));
    assert_false(place_fits(nodes, 2, &ask, NULL));
    ask.count = 4;
    assert_false(place_fits(nodes, 3, &ask, NULL));
    ask.apart_count = 0;
    assert_true(place_fits(nodes, 3, &ask, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_share_the_fullest_node_that_fits),
        cmocka_unit_test(workers_spread_over_few_nodes_when_none_has_room),
        cmocka_unit_test(waiting_says_what_is_missing),
        cmocka_unit_test(a_job_wider_than_all_nodes_is_told_so),
        cmocka_unit_test(who_leaves_takes_nobody_and_is_waited_for),
        cmocka_unit_test(gpus_are_slots_after_the_cpu_shares),
        cmocka_unit_test(excluded_and_avoided_nodes_take_nobody),
        cmocka_unit_test(nodes_with_a_penalty_come_last),
        cmocka_unit_test(a_job_spans_only_nodes_that_reach_each_other),
        cmocka_unit_test(a_net_with_too_few_slots_is_passed_over),
        cmocka_unit_test(what_never_comes_free_is_not_waited_for),
        cmocka_unit_test(who_waits_keeps_the_nodes_that_it_may_be_on),
        cmocka_unit_test(ports_limit_workers_of_jobs_on_several_nodes),
        cmocka_unit_test(a_worker_on_the_cpu_needs_one_port),
        cmocka_unit_test(of_two_that_are_apart_one_is_taken),
        cmocka_unit_test(the_one_that_is_apart_from_most_is_left_out),
        cmocka_unit_test(a_job_fits_only_where_nodes_reach_each_other),
        cmocka_unit_test(another_choice_is_tried_where_the_first_leaves_too_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
