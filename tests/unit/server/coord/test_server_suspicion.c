/* A node falls silent while others are heard: these are asked whether they reach it. And the time
 * after a start, in which nobody is judged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/fleet/isolation.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define ORDER_PROBE     CAIRN__V1__AGENT_ORDER__BODY_PROBE
#define ORDER_INTERVALS CAIRN__V1__AGENT_ORDER__BODY_INTERVALS

struct fleet {
    struct coord_world *w;
    struct far_end agent[5];
    size_t count;
};

static const char *const names[] = { "a", "b", "c", "d", "e" };

/* Over the network. */
static void come(struct fleet *f, size_t i, bool probes)
{
    far_open(&f->agent[i], "");
    f->agent[i].conn.local = false;
    Cairn__V1__AgentHello hello = far_agent_hello(names[i], "boot-1");
    hello.probe_port = probes ? 4000 + (uint32_t)i : 0;
    far_say_hello(f->w, &f->agent[i], &hello);
}

static void join(struct fleet *f, size_t count, bool probes)
{
    f->count = count;
    for (size_t i = 0; i < count; i++)
        come(f, i, probes);
    for (int i = 0; i < 12; i++) { /* the time of grace is over */
        coord_pass(f->w, 1000);
        for (size_t j = 0; j < count; j++)
            far_beat(f->w, &f->agent[j]);
    }
}

static void leave(struct fleet *f)
{
    for (size_t i = 0; i < f->count; i++)
        far_close_agent(f->w, &f->agent[i]);
}

/* All but the first beat. */
static void pass(struct fleet *f, int64_t ms)
{
    for (; ms > 0; ms -= 500) {
        for (size_t i = 1; i < f->count; i++)
            far_beat(f->w, &f->agent[i]);
        coord_pass(f->w, 500);
    }
}

static void answer(struct fleet *f, size_t from, bool reached)
{
    far_probed(f->w, &f->agent[from], reached);
}

static const struct coord_node *first(struct fleet *f)
{
    struct coord_node *nodes[8];
    const size_t count = coord_nodes(f->w->coord, nodes, 8);
    for (size_t i = 0; i < count && i < 8; i++) {
        if (strcmp(nodes[i]->name, names[0]) == 0)
            return nodes[i];
    }
    fail();
    return NULL;
}

static void who_is_reached_by_nobody_is_lost_as_ever(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 5, true);
    pass(&f, 4000);
    size_t asked = 0;
    for (size_t i = 1; i <= 4; i++) {
        if (f.agent[i].sent[ORDER_PROBE] == 0)
            continue;
        asked++;
        answer(&f, i, false);
    }
    assert_int_equal(asked, 3); /* of the four */
    assert_false(first(&f)->silent);
    pass(&f, 1000);
    assert_true(first(&f)->silent);
    assert_false(coord_node_cut_off(first(&f)));
    assert_non_null(strstr(first(&f)->suspicion.said, "seen from "));
    assert_non_null(strstr(first(&f)->suspicion.said, ": no answer"));
    leave(&f);
}

/* A rack loses its power: not all of it is asked of the same three. */
static void neighbours_are_asked_of_different_witnesses(void **state)
{
    enum { MANY = 40, RACK = 10 };
    struct coord_world *w = *state;
    struct far_end node[MANY];
    for (int i = 0; i < MANY; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        far_open(&node[i], "");
        node[i].conn.local = false;
        Cairn__V1__AgentHello hello = far_agent_hello(name, "boot-1");
        hello.probe_port = 4000;
        far_say_hello(w, &node[i], &hello);
    }
    for (int s = 0; s < 32; s++) {
        coord_pass(w, 500);
        for (int i = s < 24 ? 0 : RACK; i < MANY; i++)
            far_beat(w, &node[i]);
    }
    size_t asked = 0, most = 0;
    for (int i = RACK; i < MANY; i++) {
        const size_t times = node[i].sent[ORDER_PROBE];
        asked += times > 0;
        most = times > most ? times : most;
    }
    assert_true(asked > 12); /* 30 questions */
    assert_true(most <= 5);
    for (int i = 0; i < MANY; i++)
        far_close_agent(w, &node[i]);
}

static void what_is_forgotten_is_in_doubt_no_more(void **state)
{
    struct fleet f = { .w = *state };
    struct coord_node *node;
    join(&f, 3, true);
    pass(&f, 4000);
    answer(&f, 2, true);
    pass(&f, 1000);
    assert_true(coord_node_cut_off(first(&f)));
    const uint32_t asked = f.agent[1].sent[ORDER_PROBE];
    assert_int_equal(coord_forget_node(f.w->coord, "a", NULL, &node), ST_OK);
    coord_end_group(f.w);
    assert_false(coord_node_cut_off(node));
    pass(&f, 10000);
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], asked);
    leave(&f);
}

static void who_is_reached_by_one_is_cut_off_until_nobody_reaches_it(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 3, true);
    pass(&f, 4000);
    answer(&f, 1, false);
    answer(&f, 2, true);
    pass(&f, 1000);
    assert_true(coord_node_cut_off(first(&f)));
    pass(&f, 2000); /* asked again */
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], 2);
    answer(&f, 2, true);
    assert_true(coord_node_cut_off(first(&f)));
    pass(&f, 2000);
    answer(&f, 1, false);
    answer(&f, 2, false);
    assert_true(first(&f)->silent);
    assert_false(coord_node_cut_off(first(&f)));
    far_beat(f.w, &f.agent[0]);
    assert_false(first(&f)->silent);
    leave(&f);
}

static void without_a_witness_it_is_as_ever(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 3, false);
    const struct coord_job *job = coord_submit_one(f.w, "j");
    assert_string_equal(job->m.ranks[0].node, "a");
    pass(&f, 3000);
    assert_int_equal(job->m.ranks[0].agent, FSM_AGENT_HEARD);
    pass(&f, 1500);
    assert_false(first(&f)->silent);
    assert_int_equal(job->m.ranks[0].agent, FSM_AGENT_DOUBTED); /* its workers' silence waits */
    pass(&f, 1000);
    assert_true(first(&f)->silent);
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], 0);
    leave(&f);
}

static void witnesses_that_say_nothing_are_replaced_once(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 3, true);
    pass(&f, 8500);
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], 2);
    assert_false(first(&f)->silent);
    pass(&f, 1500);
    assert_true(first(&f)->silent);
    leave(&f);
}

static void the_only_node_has_three_times_as_long(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 1, true);
    pass(&f, 14500);
    assert_false(first(&f)->silent);
    pass(&f, 1000);
    assert_true(first(&f)->silent);
    leave(&f);
}

/* Agents come one after the other: as long as they do, those that are not there yet are waited
 * for. */
static void after_a_start_nobody_is_judged_while_others_come(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 2, false);
    struct coord_job *job = coord_submit_one(f.w, "j"); /* on one of the two: `a` */
    assert_string_equal(job->m.ranks[0].node, "a");
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    leave(&f);
    coord_restart(f.w);
    struct far_end more[20];
    for (int i = 0; i < 20; i++) { /* 40 s, a hello every 2 s */
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        far_join(f.w, &more[i], name, "boot-1");
        coord_pass(f.w, 2000);
    }
    job = coord_loaded(f.w->coord, id);
    assert_int_equal(job->m.generation, 1);
    assert_int_equal(job->m.cause.kind, FSM_FAULT_NONE);
    come(&f, 1, false);
    pass(&f, 10000);
    assert_int_equal(job->m.generation, 2); /* on another one */
    far_close_agent(f.w, &f.agent[1]);
    for (int i = 0; i < 20; i++)
        far_close_agent(f.w, &more[i]);
}

/* One agent whose stream breaks again and again is no such coming back. */
static void after_a_start_an_agent_that_comes_and_goes_keeps_nobody_from_being_judged(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 2, false);
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", coord_submit_one(f.w, "j")->id);
    leave(&f);
    coord_restart(f.w);
    for (int i = 0; i < 14; i++) { /* 28 s */
        come(&f, 1, false);
        coord_pass(f.w, 2000);
        if (i < 13)
            far_close_agent(f.w, &f.agent[1]);
    }
    struct coord_job *job = coord_loaded(f.w->coord, id);
    assert_int_equal(job->m.generation, 2);
    assert_string_equal(job->m.ranks[0].node, "b");
    far_close_agent(f.w, &f.agent[1]);
}

static void greet(struct fleet *f, struct far_end *worker, const struct coord_job *job,
                  bool attached)
{
    far_open(worker, job->m.token);
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.job = (char *)job->id;
    hello.generation = job->m.generation;
    hello.version = CAIRN_VERSION;
    hello.attached = attached;
    far_trainer_hello(f->w, worker, &hello);
}

/* A worker that had a session before the start does come back; others begin, or come and go. */
static void after_a_start_workers_that_come_back_are_waited_for(void **state)
{
    struct fleet f = { .w = *state };
    struct far_end worker;
    join(&f, 2, false);
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", coord_submit_one(f.w, "j")->id);
    leave(&f);
    coord_restart(f.w);
    struct coord_job *job = coord_loaded(f.w->coord, id);
    const int64_t until = job->m.grace_until;
    coord_pass(f.w, 9000);
    greet(&f, &worker, job, false);
    coord_pass(f.w, 1500);
    assert_int_equal(job->m.grace_until, until);
    far_close_trainer(f.w, &worker);
    coord_restart(f.w);
    job = coord_loaded(f.w->coord, id);
    const int64_t again = job->m.grace_until;
    coord_pass(f.w, 9000);
    greet(&f, &worker, job, true);
    coord_pass(f.w, 1500);
    assert_int_equal(job->m.grace_until, again + 2000);
    far_close_trainer(f.w, &worker);
    greet(&f, &worker, job, true);
    coord_pass(f.w, 2000);
    assert_int_equal(job->m.grace_until, again + 2000);
    far_close_trainer(f.w, &worker);
}

/* However many there are: a node is lost before its workers are said to hang. */
static void beats_thin_out_within_the_time_of_a_hang(void **state)
{
    enum { MANY = 1001 };
    struct coord_world *w = *state;
    struct far_end *node = calloc(MANY, sizeof(*node));
    assert_non_null(node);
    w->hang_ms = 8000;
    coord_restart(w);
    for (int i = 0; i < MANY; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        far_join(w, &node[i], name, "boot-1");
    }
    struct coord_job *job = coord_submit_one(w, "j");
    assert_int_equal(job->m.config.hang_ms, 8000);
    assert_true(job->m.config.silent_ms > 5000);
    assert_true(job->m.config.silent_ms < 8000);
    for (int i = 0; i < MANY; i++)
        far_close_agent(w, &node[i]);
    free(node);
}

/* More than a thousand: they are told to beat every two seconds, and have ten. */
static void beats_thin_out_where_there_are_many_nodes(void **state)
{
    enum { MANY = 1001 };
    struct fleet f = { .w = *state };
    struct far_end *more = calloc(MANY, sizeof(*more));
    assert_non_null(more);
    join(&f, 1, false);
    for (int i = 1; i < MANY; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        far_join(f.w, &more[i], name, "boot-1");
    }
    assert_int_equal(f.agent[0].sent[ORDER_INTERVALS], 1);
    for (int i = 0; i < 18; i++) {
        coord_pass(f.w, 500);
        for (int j = 1; j < MANY; j++)
            far_beat(f.w, &more[j]);
    }
    assert_false(first(&f)->silent);
    coord_pass(f.w, 1500);
    assert_true(first(&f)->silent);
    for (int i = 1; i < MANY; i++)
        far_close_agent(f.w, &more[i]);
    free(more);
    leave(&f);
}

/* Both machines lost their power, and the coordinator's own has room. */
static void nodes_that_are_silent_for_good_are_lost_after_one_hold(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 2, true);
    struct coord_job *job = coord_submit_one(f.w, "j");
    assert_string_equal(job->m.ranks[0].node, "a");
    struct far_end own;
    far_join(f.w, &own, "own", "boot-1");
    for (int64_t ms = 0; ms < ISOLATION_MAX_MS + 30000; ms += 500) {
        far_beat(f.w, &own);
        coord_pass(f.w, 500);
        if (ms == ISOLATION_MAX_MS - 10000)
            assert_int_equal(job->m.generation, 1);
    }
    assert_int_equal(job->m.generation, 2);
    assert_string_equal(job->m.ranks[0].node, "own");
    far_beat(f.w, &f.agent[0]); /* they count again */
    far_beat(f.w, &f.agent[1]);
    for (int i = 0; i < 60; i++) {
        far_beat(f.w, &own);
        coord_pass(f.w, 500);
    }
    assert_false(first(&f)->silent);
    far_close_agent(f.w, &own);
    leave(&f);
}

/* So many open lost streams one after the other: whose stream was closed is waited for. */
static void where_many_come_back_one_by_one_each_has_its_turn(void **state)
{
    enum { MANY = 600 }; /* 1.2 s; nobody is judged by less than whole seconds */
    struct fleet f = { .w = *state };
    struct far_end *more = calloc(MANY, sizeof(*more));
    assert_non_null(more);
    join(&f, 1, false);
    struct coord_job *early = coord_submit_one(f.w, "early");
    assert_int_equal(early->m.config.spread_ms, 0);
    for (int i = 1; i < MANY; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "n%d", i);
        far_join(f.w, &more[i], name, "boot-1");
    }
    far_beat(f.w, &f.agent[0]);
    far_close_agent(f.w, &f.agent[0]);
    assert_int_equal(early->m.config.spread_ms, 2000);
    assert_int_equal(coord_submit_one(f.w, "late")->m.config.spread_ms, 2000);
    for (int i = 0; i < 13; i++) {
        coord_pass(f.w, 500);
        for (int j = 1; j < MANY; j++)
            far_beat(f.w, &more[j]);
    }
    assert_false(first(&f)->silent); /* after 6.5 s */
    coord_pass(f.w, 1000);
    assert_true(first(&f)->silent);
    for (int i = 1; i < MANY; i++)
        far_close_agent(f.w, &more[i]);
    free(more);
}

/* In a hold, too, no time counts twice. */
static void where_all_are_silent_standing_still_is_excused_once(void **state)
{
    struct fleet f = { .w = *state };
    join(&f, 3, false);
    const struct coord_job *job = coord_submit_one(f.w, "j");
    const int64_t began = f.w->now, started = job->m.started_at;
    coord_pass(f.w, 20000);
    f.w->now += 60000;
    coord_wake(f.w->coord);
    coord_pass(f.w, 5000);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_in_range(job->m.started_at - started, 80000, f.w->now - began);
    leave(&f);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(who_is_reached_by_nobody_is_lost_as_ever),
        CASE(who_is_reached_by_one_is_cut_off_until_nobody_reaches_it),
        CASE(without_a_witness_it_is_as_ever),
        CASE(witnesses_that_say_nothing_are_replaced_once),
        CASE(the_only_node_has_three_times_as_long),
        CASE(after_a_start_nobody_is_judged_while_others_come),
        CASE(after_a_start_an_agent_that_comes_and_goes_keeps_nobody_from_being_judged),
        CASE(after_a_start_workers_that_come_back_are_waited_for),
        CASE(beats_thin_out_where_there_are_many_nodes),
        CASE(beats_thin_out_within_the_time_of_a_hang),
        CASE(neighbours_are_asked_of_different_witnesses),
        CASE(where_all_are_silent_standing_still_is_excused_once),
        CASE(what_is_forgotten_is_in_doubt_no_more),
        CASE(nodes_that_are_silent_for_good_are_lost_after_one_hold),
        CASE(where_many_come_back_one_by_one_each_has_its_turn),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
