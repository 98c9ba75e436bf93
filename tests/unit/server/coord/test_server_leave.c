/* Nodes that leave: nothing is placed there, what runs there goes elsewhere, none is lost. */
#include <stdio.h>
#include <string.h>

#include "server/coord/index.h"
#include "server/coord/state.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define ORDER_START CAIRN__V1__AGENT_ORDER__BODY_START

static void say(struct coord_world *w, struct far_end *agent, Cairn__V1__AgentMessage *message)
{
    coord_agent_message(w->coord, &agent->conn, message);
    coord_end_group(w);
}

static void say_leaving(struct coord_world *w, struct far_end *agent)
{
    Cairn__V1__AgentLeaving leaving = CAIRN__V1__AGENT_LEAVING__INIT;
    leaving.grace_ms = 25000;
    leaving.reason = (char *)"SIGTERM";
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING;
    message.leaving = &leaving;
    say(w, agent, &message);
}

static void say_left(struct coord_world *w, struct far_end *agent)
{
    Cairn__V1__AgentLeft left = CAIRN__V1__AGENT_LEFT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEFT;
    message.left = &left;
    say(w, agent, &message);
}

static void say_gone(struct coord_world *w, struct far_end *agent, const struct coord_job *job,
                     uint32_t generation, uint32_t rank)
{
    far_say_killed(w, agent, job->id, generation, rank);
    coord_end_group(w);
}

static const struct coord_node *node_of(struct coord_world *w, const char *name)
{
    struct coord_node *nodes[8];
    size_t count = coord_nodes(w->coord, nodes, 8);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(nodes[i]->name, name) == 0)
            return nodes[i];
    }
    fail_msg("there is no node %s", name);
    return NULL;
}

static void what_forms_on_a_node_that_leaves_forms_elsewhere(void **state)
{
    struct coord_world *w = *state;
    struct far_end first, second;
    far_join(w, &first, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "one");
    assert_string_equal(job->m.ranks[0].node, "a");
    far_join(w, &second, "b", "boot-2");
    say_leaving(w, &first);
    assert_int_equal(node_of(w, "a")->stay, COORD_LEAVES);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
    say_leaving(w, &first); /* said again */
    for (uint32_t i = 0; i < 2; i++)
        say_gone(w, &first, job, 1, i);
    coord_pass(w, 1);
    assert_int_equal(job->m.generation, 2);
    assert_string_equal(job->m.ranks[0].node, "b");
    assert_int_equal(job->m.budget.used + job->m.budget.failures + job->m.failures, 0);
    assert_int_equal(second.sent[ORDER_START], 2);
    say_left(w, &first);
    assert_true(first.finished);
    assert_int_equal(first.code, RPC_OK);
    far_close_agent(w, &first);
    assert_int_equal(node_of(w, "a")->stay, COORD_LEFT);
    coord_pass(w, 60000);
    assert_int_equal(node_of(w, "a")->stay, COORD_LEFT); /* not lost by time */
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &second);
}

static void who_leaves_takes_nothing_and_who_comes_back_does(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, again;
    far_join(w, &agent, "a", "boot-1");
    say_leaving(w, &agent);
    struct coord_job *job = coord_submit_one(w, "one");
    assert_string_equal(fsm_state_name(job->m.state), "QUEUED");
    assert_non_null(strstr(job->m.reason, "1 node is drained or has left"));
    say_left(w, &agent);
    far_close_agent(w, &agent);
    coord_pass(w, 10);
    assert_string_equal(fsm_state_name(job->m.state), "QUEUED");
    far_join(w, &again, "a", "boot-2"); /* of another machine, and at once */
    assert_false(again.finished);
    coord_pass(w, 10);
    assert_int_equal(node_of(w, "a")->stay, COORD_STAYS);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &again);
}

/* The next coordinator hears of it by the hello, before anything is placed. */
static void a_restart_forgets_nobody_who_leaves(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, again;
    far_join(w, &agent, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "one");
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    say_leaving(w, &agent);
    far_close_agent(w, &agent);
    coord_restart(w);
    Cairn__V1__AgentHello hello = far_agent_hello("a", "boot-1");
    Cairn__V1__AgentLeaving leaving = CAIRN__V1__AGENT_LEAVING__INIT;
    leaving.grace_ms = 20000;
    leaving.reason = (char *)"SIGTERM";
    hello.leaving = &leaving;
    far_open(&again, "");
    far_say_hello(w, &again, &hello);
    coord_pass(w, 30000);
    assert_int_equal(again.sent[ORDER_START], 0);
    job = coord_loaded(w->coord, id);
    assert_non_null(job);
    assert_int_equal(job->m.generation, 1);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
    far_close_agent(w, &again);
}

static void a_drained_node_stays_so_until_people_take_it_back(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, again;
    assert_int_equal(coord_drain_node(w->coord, "a", "", 0, NULL), ST_NOT_FOUND);
    far_join(w, &agent, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "one");
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    assert_int_equal(coord_undrain_node(w->coord, "a", NULL), ST_NOT_FOUND);
    assert_int_equal(coord_drain_node(w->coord, "a", "new disks", 0, NULL), ST_OK);
    coord_end_group(w);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
    for (uint32_t i = 0; i < 2; i++)
        say_gone(w, &agent, job, 1, i);
    far_close_agent(w, &agent);
    coord_restart(w);
    far_join(w, &again, "a", "boot-2"); /* of a machine that was started anew, too */
    coord_pass(w, 4000);
    job = coord_loaded(w->coord, id);
    assert_non_null(job);
    assert_true(node_of(w, "a")->drains);
    assert_string_equal(node_of(w, "a")->why_drains, "new disks");
    assert_int_equal(again.sent[ORDER_START], 0);
    assert_non_null(strstr(job->m.reason, "1 node is drained or has left"));
    far_beat(w, &again);
    assert_int_equal(coord_undrain_node(w->coord, "a", NULL), ST_OK);
    coord_end_group(w);
    coord_pass(w, 1);
    assert_int_equal(again.sent[ORDER_START], 2);
    far_close_agent(w, &again);
    coord_restart(w);
    far_join(w, &again, "a", "boot-2");
    assert_false(node_of(w, "a")->drains);
    far_close_agent(w, &again);
}

static void say_renamed(struct coord_world *w, struct far_end *agent, const char *name,
                        const char *before, const char *host)
{
    char *formerly[] = { (char *)"nobody", (char *)name, (char *)before };
    far_open(agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello(name, "boot-1");
    hello.formerly = formerly;
    hello.n_formerly = 3;
    hello.host = (char *)host;
    far_say_hello(w, agent, &hello);
}

/* Time passes, and only this one is heard. */
static void pass_with(struct coord_world *w, struct far_end *agent, int64_t ms)
{
    for (int64_t at = 0; at < ms; at += 500) {
        far_beat(w, agent);
        coord_pass(w, 500);
    }
    far_beat(w, agent);
}

#define LOST_MS 40000 /* by then a node that is heard no more is called silent */

/* Else it would be a lost node, whose slots are waited for. */
static void a_machine_with_another_name_is_no_ghost(void **state)
{
    struct coord_world *w = *state;
    struct far_end old, new, other;
    far_join(w, &old, "a", "boot-1");
    far_close_agent(w, &old);
    say_renamed(w, &other, "c", "a", "192.0.2.7");
    pass_with(w, &other, LOST_MS);
    assert_true(node_of(w, "a")->silent);
    assert_int_equal(node_of(w, "a")->stay, COORD_STAYS); /* another machine's */
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    coord_pass(w, 1);
    assert_int_equal(node_of(w, "a")->stay, COORD_LEFT);
    assert_non_null(strstr(node_of(w, "a")->why_leaves, "node b now"));
    far_close_agent(w, &new);
    far_join(w, &old, "a", "boot-1"); /* so it is again */
    assert_int_equal(node_of(w, "a")->stay, COORD_STAYS);
    assert_string_equal(node_of(w, "a")->why_leaves, "");
    far_close_agent(w, &old);
    far_close_agent(w, &other);
}

/* The node went down without a word, and was back under another name before its old stream was
 * over. */
static void a_stream_that_looks_open_keeps_no_ghost(void **state)
{
    struct coord_world *w = *state;
    struct far_end old, new;
    far_join(w, &old, "a", "boot-1");
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    pass_with(w, &new, 1000);
    assert_int_equal(node_of(w, "a")->stay, COORD_STAYS); /* for all that is known it lives */
    assert_false(old.finished);
    pass_with(w, &new, LOST_MS);
    assert_int_equal(node_of(w, "a")->stay, COORD_LEFT);
    assert_true(old.finished);
    assert_int_equal(node_of(w, "a")->suspicion.state, SUSPICION_NONE);
    assert_false(node_of(w, "a")->suspected || node_of(w, "a")->alone);
    far_close_agent(w, &old);
    far_close_agent(w, &new);
}

/* Both agents of a home were stopped, and the other one came first. */
static void an_agent_that_is_back_in_a_moment_was_not_renamed(void **state)
{
    struct coord_world *w = *state;
    struct far_end old, new, again;
    far_join(w, &old, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "one");
    far_close_agent(w, &old);
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    pass_with(w, &new, 1000);
    assert_int_equal(node_of(w, "a")->stay, COORD_STAYS);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    far_join(w, &again, "a", "boot-1");
    pass_with(w, &new, LOST_MS);
    assert_true(node_of(w, "a")->silent);
    assert_int_equal(node_of(w, "a")->stay, COORD_STAYS); /* it is lost, as any other */
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &again);
    far_close_agent(w, &new);
}

static void say_alive(struct coord_world *w, struct far_end *worker)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    progress.phase = (char *)"forming";
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS;
    message.progress = &progress;
    coord_trainer_message(w->coord, &worker->conn, &message);
    coord_end_group(w);
}

static void workers_of_a_machine_with_another_name_save_and_go(void **state)
{
    struct coord_world *w = *state;
    struct far_end old, new, worker[2];
    far_join(w, &old, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "one");
    far_close_agent(w, &old);
    for (uint32_t i = 0; i < 2; i++) {
        far_open(&worker[i], job->m.token);
        far_attach(w, &worker[i], job, i);
    }
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    for (int i = 0; i < 1000 && node_of(w, "a")->stay == COORD_STAYS; i++) {
        for (uint32_t j = 0; j < 2; j++)
            say_alive(w, &worker[j]);
        pass_with(w, &new, 500);
    }
    assert_int_equal(node_of(w, "a")->stay, COORD_LEAVES);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING"); /* it had nothing to save */
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    for (uint32_t i = 0; i < 2; i++)
        far_close_trainer(w, &worker[i]);
    far_close_agent(w, &new);
}

#define ORDER_END CAIRN__V1__AGENT_ORDER__BODY_END

static void a_drains_deadline_ends_who_is_still_there(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, again;
    far_join(w, &agent, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "one");
    job->m.state = FSM_RUNNING; /* as if it would train, and never come to save */
    assert_int_equal(coord_drain_node(w->coord, "a", "new disks", 3000, NULL), ST_OK);
    coord_end_group(w);
    coord_pass(w, 2900);
    const uint32_t ended = agent.sent[ORDER_END];
    assert_int_equal(node_of(w, "a")->drain_until, w->now + 100);
    coord_pass(w, 150);
    assert_int_equal(agent.sent[ORDER_END], ended + 2);
    assert_in_range(node_of(w, "a")->drain_until, w->now, w->now + 1000); /* and once more */
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    for (uint32_t i = 0; i < 2; i++)
        say_gone(w, &agent, job, 1, i);
    coord_pass(w, 2000);
    assert_true(node_of(w, "a")->drain_until == 0); /* nobody is left there */
    assert_int_equal(coord_drain_node(w->coord, "a", "new disks", 60000, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &agent);
    coord_restart(w);
    far_join(w, &again, "a", "boot-1");
    assert_in_range(node_of(w, "a")->drain_until - w->now, 1, 60000); /* it is journalled */
    assert_int_equal(coord_undrain_node(w->coord, "a", NULL), ST_OK);
    assert_true(node_of(w, "a")->drain_until == 0);
    coord_end_group(w);
    far_close_agent(w, &again);
}

/* The agent of node "a" comes back, and both workers of the job run there. */
static void join_with_workers(struct coord_world *w, struct far_end *agent,
                              const struct coord_job *job)
{
    Cairn__V1__TrainerRef ref[2];
    Cairn__V1__RunningTrainer one[2], *running[2] = { &one[0], &one[1] };
    for (uint32_t i = 0; i < 2; i++) {
        cairn__v1__trainer_ref__init(&ref[i]);
        cairn__v1__running_trainer__init(&one[i]);
        ref[i].job = (char *)job->id;
        ref[i].generation = job->m.generation;
        ref[i].rank = i;
        one[i].ref = &ref[i];
        one[i].slot = job->m.ranks[i].slot;
    }
    Cairn__V1__AgentHello hello = far_agent_hello("a", "boot-1");
    hello.running = running;
    hello.n_running = 2;
    far_open(agent, "");
    far_say_hello(w, agent, &hello);
}

struct drain_events {
    uint32_t over;
};

static bool count_over(void *arg, const struct journal_event *event)
{
    struct drain_events *events = arg;
    events->over += strstr(event->message, "drain is over") != NULL;
    return true;
}

static uint32_t times_over(struct coord_world *w, const struct coord_job *job)
{
    struct drain_events events = { 0 };
    assert_int_equal(journal_each_event(w->journal, job->id, 1000, count_over, &events), ST_OK);
    return events.over;
}

/* An event per worker and second used to be journalled, though nobody could be ended. */
static void a_drains_deadline_is_said_once_and_when_there_is_who_ends_them(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, other;
    far_join(w, &agent, "a", "boot-1");
    far_join(w, &other, "b", "boot-2");
    struct coord_job *job = coord_submit_one(w, "one");
    assert_string_equal(job->m.ranks[0].node, "a");
    job->m.state = FSM_RUNNING;
    assert_int_equal(coord_drain_node(w->coord, "a", "", 1000, NULL), ST_OK);
    coord_end_group(w);
    (void)snprintf(job->unreadable, sizeof(job->unreadable), "of a later version");
    coord_job_moved(w->coord, job);
    const uint32_t ended = agent.sent[ORDER_END];
    coord_pass(w, 1500);
    assert_int_equal(agent.sent[ORDER_END], ended); /* nothing is done with such a job */
    assert_int_equal(times_over(w, job), 0);
    job->unreadable[0] = '\0';
    coord_job_moved(w->coord, job);
    assert_int_equal(coord_drain_node(w->coord, "a", "", 1000, NULL), ST_OK);
    far_close_agent(w, &agent);
    pass_with(w, &other, 3000);
    assert_int_equal(times_over(w, job), 0); /* nobody is there to be told */
    assert_true(node_of(w, "a")->drain_until != 0);
    join_with_workers(w, &agent, job);
    pass_with(w, &other, 3500);
    assert_in_range(agent.sent[ORDER_END], 6, 16); /* both of them, each second */
    assert_int_equal(times_over(w, job), 1);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &agent);
    far_close_agent(w, &other);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_forms_on_a_node_that_leaves_forms_elsewhere),
        CASE(who_leaves_takes_nothing_and_who_comes_back_does),
        CASE(a_restart_forgets_nobody_who_leaves),
        CASE(a_drained_node_stays_so_until_people_take_it_back),
        CASE(a_drains_deadline_ends_who_is_still_there),
        CASE(a_drains_deadline_is_said_once_and_when_there_is_who_ends_them),
        CASE(a_stream_that_looks_open_keeps_no_ghost),
        CASE(an_agent_that_is_back_in_a_moment_was_not_renamed),
        CASE(a_machine_with_another_name_is_no_ghost),
        CASE(workers_of_a_machine_with_another_name_save_and_go),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
