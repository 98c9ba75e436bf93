/* A path between two nodes breaks under a job: agents are asked, and the job goes elsewhere. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define ORDER_PROBE CAIRN__V1__AGENT_ORDER__BODY_PROBE

struct fleet {
    struct coord_world *w;
    struct far_end agent[3];
    size_t count;
    struct coord_job *job;
};

static const char *const names[] = { "a", "b", "c" };

/* Nodes of one slot, and a job of two workers. */
static void join(struct fleet *f)
{
    for (size_t i = 0; i < f->count; i++) {
        far_open(&f->agent[i], "");
        Cairn__V1__AgentHello hello = far_agent_hello(names[i], "boot-1");
        hello.slots = 1;
        hello.probe_port = 4000 + (uint32_t)i;
        far_say_hello(f->w, &f->agent[i], &hello);
    }
    f->job = coord_submit_one(f->w, "j");
    assert_string_equal(fsm_state_name(f->job->m.state), "FORMING");
}

static void leave(struct fleet *f)
{
    assert_int_equal(coord_ask(f->w->coord, f->job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(f->w);
    for (size_t i = 0; i < f->count; i++)
        far_close_agent(f->w, &f->agent[i]);
}

static void pass(struct fleet *f, int64_t ms)
{
    for (; ms > 0; ms -= 500) {
        for (size_t i = 0; i < f->count; i++)
            far_beat(f->w, &f->agent[i]);
        coord_pass(f->w, 500);
    }
}

static void answer(struct fleet *f, size_t from, bool reached)
{
    far_probed(f->w, &f->agent[from], reached);
}

static void answer_both(struct fleet *f, bool reached)
{
    answer(f, 0, reached);
    answer(f, 1, reached);
}

static bool runs_on(const struct fleet *f, const char *one, const char *other)
{
    const struct fsm_rank *ranks = f->job->m.ranks;
    return (strcmp(ranks[0].node, one) == 0 && strcmp(ranks[1].node, other) == 0) ||
           (strcmp(ranks[0].node, other) == 0 && strcmp(ranks[1].node, one) == 0);
}

static void cut_path(struct fleet *f)
{
    assert_true(runs_on(f, "a", "b"));
    pass(f, 3500);
    for (int round = 1; round <= 3; round++) {
        assert_int_equal(f->agent[0].sent[ORDER_PROBE], round);
        assert_int_equal(f->agent[1].sent[ORDER_PROBE], round);
        assert_int_equal(f->agent[0].probe, f->agent[1].probe);
        answer_both(f, false);
        pass(f, 1000);
    }
    assert_true(coord_nodes_apart(f->w->coord, "a", "b"));
    assert_false(coord_nodes_apart(f->w->coord, "a", "c"));
}

static void a_job_goes_elsewhere_and_says_why(void **state)
{
    struct fleet f = { .w = *state, .count = 3 };
    join(&f);
    cut_path(&f);
    assert_int_equal(f.job->m.cause.kind, FSM_FAULT_PATH);
    assert_non_null(strstr(f.job->m.cause.message, "a and b can't reach each other"));
    assert_non_null(strstr(f.job->m.cause.message, "seen from a: no answer"));
    pass(&f, 6000); /* trainers that never showed up count as gone */
    assert_string_equal(fsm_state_name(f.job->m.state), "FORMING");
    assert_int_equal(f.job->m.generation, 2);
    assert_false(runs_on(&f, "a", "b"));
    assert_int_equal(f.job->m.budget.no_progress, 0); /* it isn't counted */
    assert_int_equal(f.agent[2].sent[ORDER_PROBE], 0);
    leave(&f);
}

static void without_another_node_it_waits_until_the_path_works(void **state)
{
    struct fleet f = { .w = *state, .count = 2 };
    struct reason reason;
    join(&f);
    cut_path(&f);
    pass(&f, 6000);
    assert_int_equal(f.job->m.generation, 1);
    coord_reason(f.w->coord, f.job, &reason);
    assert_non_null(strstr(reason.text, "a and b can't reach each other"));
    const uint32_t asked = f.agent[0].sent[ORDER_PROBE];
    answer_both(&f, false);
    pass(&f, 2500);
    assert_int_equal(f.agent[0].sent[ORDER_PROBE], asked + 1);
    answer_both(&f, true);
    assert_false(coord_nodes_apart(f.w->coord, "a", "b"));
    pass(&f, 500);
    assert_int_equal(f.job->m.generation, 2);
    assert_true(runs_on(&f, "a", "b"));
    leave(&f);
}

static struct coord_job *submit_small(struct fleet *f, const char *name, const char *workers)
{
    char text[512];
    struct reason reason;
    struct coord_job *job = NULL;
    (void)snprintf(text, sizeof(text),
                   "name: %s\nmodel: {arch: mlp, classes: 10}\n"
                   "data: {train: {format: synthetic, samples: 1000}}\n"
                   "train: {duration: 100 steps, global_batch: 64, lanes: 8, "
                   "optimizer: {name: sgd, lr: 0.1}, seed: 1}\n"
                   "workers: {%s}\ncheckpoint: {every: 10 steps, store: /store}\n",
                   name, workers);
    assert_int_equal(coord_submit_text(f->w, text, &job, &reason), ST_OK);
    coord_pass(f->w, 1);
    return job;
}

/* There are slots for both of its workers, but on nodes that don't reach each other. */
static void a_job_that_may_have_fewer_workers_has_those_that_reach_each_other(void **state)
{
    struct fleet f = { .w = *state, .count = 2 };
    join(&f);
    cut_path(&f);
    assert_int_equal(coord_ask(f.w->coord, f.job, FSM_EV_KILL, NULL), ST_OK);
    pass(&f, 6000);
    assert_string_equal(fsm_state_name(f.job->m.state), "KILLED");
    f.job = submit_small(&f, "elastic", "count: 2, min: 1");
    assert_string_equal(fsm_state_name(f.job->m.state), "FORMING");
    assert_int_equal(f.job->m.size, 1);
    leave(&f);
}

/* Were all slots free it could not run either. */
static void a_job_that_waits_for_a_path_holds_nobody_back(void **state)
{
    struct fleet f = { .w = *state, .count = 2 };
    join(&f);
    cut_path(&f);
    pass(&f, 6000);
    struct coord_job *one = submit_small(&f, "one", "count: 1");
    struct coord_job *other = submit_small(&f, "other", "count: 1");
    pass(&f, 1000);
    assert_string_equal(fsm_state_name(one->m.state), "FORMING");
    assert_string_equal(fsm_state_name(other->m.state), "FORMING");
    assert_int_equal(coord_ask(f.w->coord, one, FSM_EV_KILL, NULL), ST_OK);
    assert_int_equal(coord_ask(f.w->coord, other, FSM_EV_KILL, NULL), ST_OK);
    leave(&f);
}

/* A job whose workers die while their path is under test gets no slots until that is decided. */
static void a_job_that_ended_waits_for_the_word_about_its_path(void **state)
{
    struct fleet f = { .w = *state, .count = 2 };
    join(&f);
    pass(&f, 3500);
    assert_int_equal(f.agent[0].sent[ORDER_PROBE], 1);
    const size_t first = strcmp(f.job->m.ranks[0].node, "a") == 0 ? 0 : 1;
    far_say_killed(f.w, &f.agent[first], f.job->id, 1, 0);
    far_say_killed(f.w, &f.agent[1 - first], f.job->id, 1, 1);
    coord_is_blocked(f.w, f.job, FSM_BLOCK_PATH, "the network path between node a and node b");
    answer_both(&f, true);
    pass(&f, 500);
    assert_int_equal(f.job->m.generation, 2);
    coord_is_blocked(f.w, f.job, FSM_BLOCK_FORMING, "0 of 2 workers are ready");
    leave(&f);
}

static void paths_that_work_change_nothing(void **state)
{
    struct fleet f = { .w = *state, .count = 3 };
    join(&f);
    pass(&f, 3500);
    answer_both(&f, true);
    pass(&f, 10000);
    assert_string_equal(fsm_state_name(f.job->m.state), "FORMING");
    assert_int_equal(f.job->m.generation, 1);
    assert_int_equal(f.agent[0].sent[ORDER_PROBE], 1); /* once in a standstill */
    leave(&f);
}

static void an_agent_that_gives_no_answer_proves_nothing(void **state)
{
    struct fleet f = { .w = *state, .count = 3 };
    join(&f);
    pass(&f, 3500);
    answer(&f, 0, false);
    pass(&f, 10000);
    assert_int_equal(f.job->m.generation, 1);
    assert_false(coord_nodes_apart(f.w->coord, "a", "b"));
    leave(&f);
}

/* ---- a check that a person asked for ---- */

static void say_measured(struct fleet *f, size_t from)
{
    Cairn__V1__ProbeResult result = CAIRN__V1__PROBE_RESULT__INIT;
    result.reached = true;
    result.reach_us = 500;
    result.bytes = 1000000;
    result.took_us = 1000;
    result.saw = "fine";
    far_say_probed(f->w, &f->agent[from], &result);
}

static void a_check_asks_the_agents_of_each_pair(void **state)
{
    struct fleet f = { .w = *state, .count = 2 };
    struct reason reason;
    struct pairs_try done;
    join(&f);
    assert_int_equal(coord_pairs_begin(f.w->coord, NULL, 0, false, &reason), ST_OK);
    coord_end_group(f.w);
    assert_int_equal(f.agent[0].sent[ORDER_PROBE], 1); /* reach */
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], 1);
    assert_int_equal(coord_pairs_begin(f.w->coord, NULL, 0, false, &reason), ST_AGAIN);
    say_measured(&f, 0);
    say_measured(&f, 1);
    assert_int_equal(f.agent[0].sent[ORDER_PROBE], 2); /* it sends */
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], 1);
    say_measured(&f, 0);
    assert_int_equal(f.agent[1].sent[ORDER_PROBE], 2);
    assert_false(coord_pairs_fetch(f.w->coord, &done));
    say_measured(&f, 1);
    assert_true(coord_pairs_fetch(f.w->coord, &done));
    assert_true(pairs_side_ok(&done.side[0]) && pairs_side_ok(&done.side[1]));
    assert_int_equal(done.side[1].bytes, 1000000);
    assert_true(pairs_over(coord_pairs(f.w->coord)));
    coord_pairs_end(f.w->coord);
    leave(&f);
}

static void a_node_that_goes_while_it_is_checked_gives_no_answer(void **state)
{
    struct fleet f = { .w = *state, .count = 3 };
    static const char *const some[] = { "a", "b", "a" };
    static const char *const other[] = { "a", "nobody" };
    struct reason reason;
    struct pairs_try done;
    join(&f);
    assert_int_equal(coord_pairs_begin(f.w->coord, other, 2, false, &reason), ST_NOT_FOUND);
    assert_non_null(strstr(reason.text, "nobody"));
    assert_int_equal(coord_pairs_begin(f.w->coord, some, 1, false, &reason), ST_REFUSED);
    assert_int_equal(coord_pairs_begin(f.w->coord, some, 3, false, &reason), ST_OK);
    assert_int_equal(coord_pairs(f.w->coord)->total, 1); /* each once */
    coord_end_group(f.w);
    say_measured(&f, 0);
    far_close_agent(f.w, &f.agent[1]);
    for (int i = 0; i < 20 && !coord_pairs_fetch(f.w->coord, &done); i++)
        coord_pass(f.w, 500);
    assert_true(done.side[0].reached && !done.side[0].measured);
    assert_false(done.side[1].reached);
    assert_non_null(strstr(done.side[1].saw, "no answer"));
    coord_pairs_end(f.w->coord);
    assert_int_equal(coord_pairs_begin(f.w->coord, some, 2, false, &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "b can't be tried"));
    f.count = 1;
    assert_int_equal(coord_ask(f.w->coord, f.job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(f.w);
    far_close_agent(f.w, &f.agent[0]);
    far_close_agent(f.w, &f.agent[2]);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_job_goes_elsewhere_and_says_why),
        CASE(without_another_node_it_waits_until_the_path_works),
        CASE(a_job_that_waits_for_a_path_holds_nobody_back),
        CASE(a_job_that_may_have_fewer_workers_has_those_that_reach_each_other),
        CASE(a_job_that_ended_waits_for_the_word_about_its_path),
        CASE(paths_that_work_change_nothing),
        CASE(an_agent_that_gives_no_answer_proves_nothing),
        CASE(a_check_asks_the_agents_of_each_pair),
        CASE(a_node_that_goes_while_it_is_checked_gives_no_answer),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
