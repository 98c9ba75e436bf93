/* Names of nodes: many more come and go than there may be at a time; withdrawals stay. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"
#include "tests/unit/server/journal/journal_fixture.h"

static const char *name_of(int n)
{
    static char name[32];
    (void)snprintf(name, sizeof(name), "pod-%05d", n);
    return name;
}

static void say_left(struct coord_world *w, struct far_end *far)
{
    Cairn__V1__AgentLeft left = CAIRN__V1__AGENT_LEFT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEFT;
    message.left = &left;
    coord_agent_message(w->coord, &far->conn, &message);
    coord_end_group(w);
}

/* A node that comes, and leaves again. */
static void come_and_leave(struct coord_world *w, int n)
{
    struct far_end agent;
    far_join(w, &agent, name_of(n), "boot-1");
    assert_false(agent.finished);
    say_left(w, &agent);
    far_close_agent(w, &agent);
}

/* ---- entries ---- */

static void nodes_that_left_make_room_for_others(void **state)
{
    struct coord_world *w = *state;
    for (int n = 0; n < 3 * LIMIT_NODES; n++)
        come_and_leave(w, n);
    assert_int_equal(coord_nodes(w->coord, NULL, 0), LIMIT_NODES);
    assert_null(coord_node_at(w->coord, name_of(0))); /* the one that was heard longest ago */
    assert_non_null(coord_node_at(w->coord, name_of(3 * LIMIT_NODES - 1)));
    coord_pass(w, 60000);
}

static void nodes_that_are_lost_for_long_make_room_for_others(void **state)
{
    struct coord_world *w = *state;
    struct far_end *agents = calloc(LIMIT_NODES, sizeof(*agents)), late;
    assert_non_null(agents);
    for (int n = 0; n < LIMIT_NODES; n++)
        far_join(w, &agents[n], name_of(n), "boot-1");
    for (int n = 1; n < LIMIT_NODES; n++)
        far_close_agent(w, &agents[n]);
    far_join(w, &late, "late", "boot-1");
    assert_int_equal(late.code, RPC_RESOURCE_EXHAUSTED); /* they may be back in a moment */
    assert_non_null(strstr(late.detail, "undrain"));
    far_close_agent(w, &late);
    for (int minute = 0; minute < 20; minute++) {
        coord_pass(w, 60000);
        far_beat(w, &agents[0]);
    }
    far_join(w, &late, "late", "boot-1");
    assert_false(late.finished);
    assert_non_null(coord_node_at(w->coord, name_of(0))); /* which is heard */
    coord_check(w->coord);
    far_close_agent(w, &late);
    far_close_agent(w, &agents[0]);
    free(agents);
}

static void who_holds_something_keeps_its_entry(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[2];
    far_join(w, &agents[0], "works", "boot-1");
    struct coord_job *job = coord_submit_one(w, "a");
    assert_string_equal(job->m.ranks[0].node, "works");
    far_join(w, &agents[1], "drained", "boot-1");
    assert_int_equal(coord_drain_node(w->coord, "drained", "disks", 0, NULL), ST_OK);
    coord_end_group(w);
    say_left(w, &agents[1]);
    far_close_agent(w, &agents[1]);
    far_close_agent(w, &agents[0]);
    for (int n = 0; n < 2 * LIMIT_NODES; n++)
        come_and_leave(w, n);
    assert_non_null(coord_node_at(w->coord, "works"));
    assert_true(coord_node_at(w->coord, "drained")->drains);
    coord_check(w->coord);
}

/* ---- certificates that were withdrawn ---- */

#define FORGOTTEN 3000

static void every_withdrawal_counts_whatever_the_number_of_names(void **state)
{
    struct coord_world *w = *state;
    struct coord_node *node;
    struct far_end agent;
    for (int n = 0; n < FORGOTTEN; n++)
        assert_int_equal(coord_forget_node(w->coord, name_of(n), NULL, &node), ST_OK);
    coord_end_group(w);
    for (int again = 0; again < 2; again++) {
        for (int n = 0; n < FORGOTTEN; n++)
            assert_true(coord_node_forgotten(w->coord, name_of(n)) > 0);
        assert_int_equal(coord_node_forgotten(w->coord, "other"), 0);
        far_join(w, &agent, "other", "boot-1"); /* and others are let in */
        assert_false(agent.finished);
        far_close_agent(w, &agent);
        coord_restart(w);
    }
}

static void a_node_is_forgotten_though_there_is_no_entry_for_it(void **state)
{
    struct coord_world *w = *state;
    struct coord_node *node;
    struct far_end *agents = calloc(LIMIT_NODES, sizeof(*agents));
    assert_non_null(agents);
    for (int n = 0; n < LIMIT_NODES; n++)
        far_join(w, &agents[n], name_of(n), "boot-1");
    assert_int_equal(coord_forget_node(w->coord, "stolen", NULL, &node), ST_OK);
    coord_end_group(w);
    assert_null(node);
    assert_true(coord_node_forgotten(w->coord, "stolen") > 0);
    for (int n = 0; n < LIMIT_NODES; n++)
        far_close_agent(w, &agents[n]);
    free(agents);
}

/* Rows of a version that didn't count them, all at once. */
static void put_forgotten(struct coord_world *w, int count, int64_t time_s)
{
    char sql[512];
    coord_stop(w);
    (void)snprintf(sql, sizeof(sql),
                   "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i+1 FROM n WHERE i+1<%d) "
                   "INSERT OR REPLACE INTO forgotten_nodes SELECT printf('pod-%%05d',i),%lld "
                   "FROM n",
                   count, (long long)time_s);
    journal_edit(w->path, sql);
    coord_start(w);
}

static void withdrawals_are_bounded_by_what_may_not_have_expired(void **state)
{
    struct coord_world *w = *state;
    struct coord_node *node;
    const int64_t now_s = clock_wall_ms(&w->clock) / 1000, month_s = INT64_C(86400) * 31;
    put_forgotten(w, COORD_WITHDRAWN_MAX, now_s - month_s + 100);
    for (int n = 0; n < COORD_WITHDRAWN_MAX; n += 999)
        assert_int_equal(coord_node_forgotten(w->coord, name_of(n)), now_s - month_s + 100);
    assert_int_equal(coord_forget_node(w->coord, "one-more", NULL, &node), ST_FULL);
    assert_int_equal(coord_node_forgotten(w->coord, "one-more"), 0);
    assert_int_equal(coord_forget_node(w->coord, name_of(7), NULL, &node),
                     ST_OK); /* it has a row */
    coord_end_group(w);
    coord_pass(w, 200000); /* the others' certificates have expired */
    assert_int_equal(coord_forget_node(w->coord, "one-more", NULL, &node), ST_OK);
    coord_end_group(w);
    for (int again = 0; again < 2; again++) {
        assert_true(coord_node_forgotten(w->coord, "one-more") > 0);
        assert_true(coord_node_forgotten(w->coord, name_of(7)) > 0);
        assert_int_equal(coord_node_forgotten(w->coord, name_of(8)), 0);
        coord_restart(w);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(nodes_that_left_make_room_for_others),
        CASE(nodes_that_are_lost_for_long_make_room_for_others),
        CASE(who_holds_something_keeps_its_entry),
        CASE(every_withdrawal_counts_whatever_the_number_of_names),
        CASE(a_node_is_forgotten_though_there_is_no_entry_for_it),
        CASE(withdrawals_are_bounded_by_what_may_not_have_expired),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
