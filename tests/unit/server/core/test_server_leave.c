/* Nodes that leave: nothing is placed there, what runs there goes elsewhere, none is lost. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/core/core_fixture.h"

#define ORDER_START CAIRN__V1__AGENT_ORDER__BODY_START

static void say(struct core_world *w, struct far_end *agent, Cairn__V1__AgentMessage *message)
{
    core_agent_message(w->core, &agent->conn, message);
    core_end_group(w);
}

static void say_leaving(struct core_world *w, struct far_end *agent)
{
    Cairn__V1__AgentLeaving leaving = CAIRN__V1__AGENT_LEAVING__INIT;
    leaving.grace_ms = 25000;
    leaving.reason = (char *)"SIGTERM";
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING;
    message.leaving = &leaving;
    say(w, agent, &message);
}

static void say_left(struct core_world *w, struct far_end *agent)
{
    Cairn__V1__AgentLeft left = CAIRN__V1__AGENT_LEFT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEFT;
    message.left = &left;
    say(w, agent, &message);
}

static void say_gone(struct core_world *w, struct far_end *agent, const struct core_job *job,
                     uint32_t generation, uint32_t rank)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = (char *)job->id;
    ref.generation = generation;
    ref.rank = rank;
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = &ref;
    exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL;
    exited.signal = 9;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = &exited;
    say(w, agent, &message);
}

static const struct core_node *node_of(struct core_world *w, const char *name)
{
    struct core_node *nodes[8];
    size_t count = core_nodes(w->core, nodes, 8);
    for (size_t i = 0; i < count; i++)
        if (strcmp(nodes[i]->name, name) == 0)
            return nodes[i];
    fail_msg("there is no node %s", name);
    return NULL;
}

static void what_forms_on_a_node_that_leaves_forms_elsewhere(void **state)
{
    struct core_world *w = *state;
    struct far_end first, second;
    far_join(w, &first, "a", "boot-1");
    struct core_job *job = core_submit_one(w, "one");
    assert_string_equal(job->m.ranks[0].node, "a");
    far_join(w, &second, "b", "boot-2");
    say_leaving(w, &first);
    assert_int_equal(node_of(w, "a")->stay, CORE_LEAVES);
    assert_string_equal(machine_state_name(job->m.state), "RECOVERING");
    say_leaving(w, &first); /* said again */
    for (uint32_t i = 0; i < 2; i++)
        say_gone(w, &first, job, 1, i);
    core_pass(w, 1);
    assert_int_equal(job->m.generation, 2);
    assert_string_equal(job->m.ranks[0].node, "b");
    assert_int_equal(job->m.budget_used + job->m.streak + job->m.failures, 0);
    assert_int_equal(second.sent[ORDER_START], 2);
    say_left(w, &first);
    assert_true(first.finished);
    assert_int_equal(first.code, RPC_OK);
    far_close_agent(w, &first);
    assert_int_equal(node_of(w, "a")->stay, CORE_LEFT);
    core_pass(w, 60000);
    assert_int_equal(node_of(w, "a")->stay, CORE_LEFT); /* not lost by time */
    assert_int_equal(core_ask(w->core, job, MACHINE_EV_KILL, NULL), ST_OK);
    core_end_group(w);
    far_close_agent(w, &second);
}

static void who_leaves_takes_nothing_and_who_comes_back_does(void **state)
{
    struct core_world *w = *state;
    struct far_end agent, again;
    far_join(w, &agent, "a", "boot-1");
    say_leaving(w, &agent);
    struct core_job *job = core_submit_one(w, "one");
    assert_string_equal(machine_state_name(job->m.state), "QUEUED");
    assert_non_null(strstr(job->m.reason, "1 node is drained or has left"));
    say_left(w, &agent);
    far_close_agent(w, &agent);
    core_pass(w, 10);
    assert_string_equal(machine_state_name(job->m.state), "QUEUED");
    far_join(w, &again, "a", "boot-2"); /* of another machine, and at once */
    assert_false(again.finished);
    core_pass(w, 10);
    assert_int_equal(node_of(w, "a")->stay, CORE_STAYS);
    assert_string_equal(machine_state_name(job->m.state), "FORMING");
    assert_int_equal(core_ask(w->core, job, MACHINE_EV_KILL, NULL), ST_OK);
    core_end_group(w);
    far_close_agent(w, &again);
}

/* The next coordinator hears of it by the hello, before anything is placed. */
static void a_restart_forgets_nobody_who_leaves(void **state)
{
    struct core_world *w = *state;
    struct far_end agent, again;
    far_join(w, &agent, "a", "boot-1");
    struct core_job *job = core_submit_one(w, "one");
    char id[16];
    (void)snprintf(id, sizeof id, "%s", job->id);
    say_leaving(w, &agent);
    far_close_agent(w, &agent);
    core_restart(w);
    Cairn__V1__AgentHello hello = far_agent_hello("a", "boot-1");
    Cairn__V1__AgentLeaving leaving = CAIRN__V1__AGENT_LEAVING__INIT;
    leaving.grace_ms = 20000;
    leaving.reason = (char *)"SIGTERM";
    hello.leaving = &leaving;
    far_open(&again, "");
    far_say_hello(w, &again, &hello);
    core_pass(w, 30000);
    assert_int_equal(again.sent[ORDER_START], 0);
    job = core_loaded(w->core, id);
    assert_non_null(job);
    assert_int_equal(job->m.generation, 1);
    assert_string_equal(machine_state_name(job->m.state), "RECOVERING");
    far_close_agent(w, &again);
}

static void a_drained_node_stays_so_until_people_take_it_back(void **state)
{
    struct core_world *w = *state;
    struct far_end agent, again;
    assert_int_equal(core_drain_node(w->core, "a", "", 0, NULL), ST_NOT_FOUND);
    far_join(w, &agent, "a", "boot-1");
    struct core_job *job = core_submit_one(w, "one");
    char id[16];
    (void)snprintf(id, sizeof id, "%s", job->id);
    assert_int_equal(core_undrain_node(w->core, "a", NULL), ST_NOT_FOUND);
    assert_int_equal(core_drain_node(w->core, "a", "new disks", 0, NULL), ST_OK);
    core_end_group(w);
    assert_string_equal(machine_state_name(job->m.state), "RECOVERING");
    for (uint32_t i = 0; i < 2; i++)
        say_gone(w, &agent, job, 1, i);
    far_close_agent(w, &agent);
    core_restart(w);
    far_join(w, &again, "a", "boot-2"); /* of a machine that was started anew, too */
    core_pass(w, 4000);
    job = core_loaded(w->core, id);
    assert_non_null(job);
    assert_true(node_of(w, "a")->drains);
    assert_string_equal(node_of(w, "a")->why_drains, "new disks");
    assert_int_equal(again.sent[ORDER_START], 0);
    assert_non_null(strstr(job->m.reason, "1 node is drained or has left"));
    far_beat(w, &again);
    assert_int_equal(core_undrain_node(w->core, "a", NULL), ST_OK);
    core_end_group(w);
    core_pass(w, 1);
    assert_int_equal(again.sent[ORDER_START], 2);
    far_close_agent(w, &again);
    core_restart(w);
    far_join(w, &again, "a", "boot-2");
    assert_false(node_of(w, "a")->drains);
    far_close_agent(w, &again);
}

static void say_renamed(struct core_world *w, struct far_end *agent, const char *name,
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

/* Else it would be a lost node, whose slots are waited for. */
static void a_machine_with_another_name_is_no_ghost(void **state)
{
    struct core_world *w = *state;
    struct far_end old, new, other;
    far_join(w, &old, "a", "boot-1");
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    assert_int_equal(node_of(w, "a")->stay, CORE_STAYS); /* its agent lives */
    far_close_agent(w, &new);
    far_close_agent(w, &old);
    say_renamed(w, &other, "c", "a", "192.0.2.7");
    assert_int_equal(node_of(w, "a")->stay, CORE_STAYS); /* another machine's */
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    assert_int_equal(node_of(w, "a")->stay, CORE_LEFT);
    assert_non_null(strstr(node_of(w, "a")->why_leaves, "node b now"));
    far_close_agent(w, &new);
    far_join(w, &old, "a", "boot-1"); /* so it is again */
    assert_int_equal(node_of(w, "a")->stay, CORE_STAYS);
    assert_string_equal(node_of(w, "a")->why_leaves, "");
    far_close_agent(w, &old);
    far_close_agent(w, &other);
}

static void workers_of_a_machine_with_another_name_save_and_go(void **state)
{
    struct core_world *w = *state;
    struct far_end old, new;
    far_join(w, &old, "a", "boot-1");
    struct core_job *job = core_submit_one(w, "one");
    far_close_agent(w, &old);
    say_renamed(w, &new, "b", "a", node_of(w, "a")->host);
    assert_int_equal(node_of(w, "a")->stay, CORE_LEAVES);
    assert_string_equal(machine_state_name(job->m.state),
                        "RECOVERING"); /* it had nothing to save */
    assert_int_equal(core_ask(w->core, job, MACHINE_EV_KILL, NULL), ST_OK);
    core_end_group(w);
    far_close_agent(w, &new);
}

#define ORDER_END CAIRN__V1__AGENT_ORDER__BODY_END

static void a_drains_deadline_ends_who_is_still_there(void **state)
{
    struct core_world *w = *state;
    struct far_end agent, again;
    far_join(w, &agent, "a", "boot-1");
    struct core_job *job = core_submit_one(w, "one");
    job->m.state = MACHINE_RUNNING; /* as if it would train, and never come to save */
    assert_int_equal(core_drain_node(w->core, "a", "new disks", 3000, NULL), ST_OK);
    core_end_group(w);
    core_pass(w, 2900);
    const uint32_t ended = agent.sent[ORDER_END];
    assert_int_equal(node_of(w, "a")->drain_until, w->now + 100);
    core_pass(w, 150);
    assert_int_equal(agent.sent[ORDER_END], ended + 2);
    assert_in_range(node_of(w, "a")->drain_until, w->now, w->now + 1000); /* and once more */
    assert_int_equal(core_ask(w->core, job, MACHINE_EV_KILL, NULL), ST_OK);
    core_end_group(w);
    for (uint32_t i = 0; i < 2; i++)
        say_gone(w, &agent, job, 1, i);
    core_pass(w, 2000);
    assert_true(node_of(w, "a")->drain_until == 0); /* nobody is left there */
    assert_int_equal(core_drain_node(w->core, "a", "new disks", 60000, NULL), ST_OK);
    core_end_group(w);
    far_close_agent(w, &agent);
    core_restart(w);
    far_join(w, &again, "a", "boot-1");
    assert_in_range(node_of(w, "a")->drain_until - w->now, 1, 60000); /* it is journalled */
    assert_int_equal(core_undrain_node(w->core, "a", NULL), ST_OK);
    assert_true(node_of(w, "a")->drain_until == 0);
    core_end_group(w);
    far_close_agent(w, &again);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, core_setup, core_teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_forms_on_a_node_that_leaves_forms_elsewhere),
        CASE(who_leaves_takes_nothing_and_who_comes_back_does),
        CASE(a_restart_forgets_nobody_who_leaves),
        CASE(a_drained_node_stays_so_until_people_take_it_back),
        CASE(a_drains_deadline_ends_who_is_still_there),
        CASE(a_machine_with_another_name_is_no_ghost),
        CASE(workers_of_a_machine_with_another_name_save_and_go),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
