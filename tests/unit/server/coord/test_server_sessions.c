/* Streams of agents and trainers: who may have a session, and what becomes of it. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define ORDER_NOTICE  CAIRN__V1__AGENT_ORDER__BODY_NOTICE
#define ORDER_SAVE_AT CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT

/* A job of two workers on node "n", FORMING. */
static struct coord_job *form(struct coord_world *w, struct far_end *agent)
{
    far_join(w, agent, "n", "boot-1");
    struct coord_job *job = coord_submit_one(w, "a");
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    return job;
}

/* ---- one hello a stream ---- */

static void a_stream_is_one_rank_for_its_life(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainer, next;
    struct coord_job *job = form(w, &agent);
    far_open(&trainer, job->m.token);
    far_attach(w, &trainer, job, 0);
    assert_false(trainer.finished);
    far_attach(w, &trainer, job, 1);
    assert_true(trainer.finished);
    assert_int_equal(trainer.code, RPC_FAILED_PRECONDITION);
    assert_null(job->ranks[1].conn);
    far_close_trainer(w, &trainer);
    assert_null(job->ranks[0].conn);
    far_open(&next, job->m.token); /* what closed is not spoken to: far_finish would see it */
    far_attach(w, &next, job, 0);
    assert_ptr_equal(job->ranks[0].conn, &next.conn);
    far_close_trainer(w, &next);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &agent);
}

static void a_stream_is_one_agent_for_its_life(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    far_join(w, &agent, "a", "boot-1");
    Cairn__V1__AgentHello hello = far_agent_hello("b", "boot-1");
    far_say_hello(w, &agent, &hello);
    assert_true(agent.finished);
    assert_int_equal(agent.code, RPC_FAILED_PRECONDITION);
    far_close_agent(w, &agent);
    struct far_end next[2];
    far_join(w, &next[0], "a", "boot-1");
    far_join(w, &next[1], "b", "boot-1");
    assert_false(next[0].finished || next[1].finished);
    far_close_agent(w, &next[0]);
    far_close_agent(w, &next[1]);
}

static Cairn__V1__TrainerMessage rows_message(Cairn__V1__MetricRows *rows)
{
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
    message.metrics = rows;
    return message;
}

static void who_sent_rows_and_lost_its_session_hears_no_more(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, first, second;
    struct coord_job *job = form(w, &agent);
    far_open(&first, job->m.token);
    far_attach(w, &first, job, 0);
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT, *list[] = { &row };
    Cairn__V1__MetricRows rows = CAIRN__V1__METRIC_ROWS__INIT;
    rows.n_rows = 1;
    rows.rows = list;
    row.step = 1;
    Cairn__V1__TrainerMessage message = rows_message(&rows);
    coord_trainer_message(w->coord, &first.conn, &message);
    coord_end_group(w);
    far_open(&second, job->m.token);
    far_attach(w, &second, job, 0);
    assert_true(first.finished);
    far_close_trainer(w, &first);
    coord_pass(w, 1000); /* the rows are journalled, and acknowledged to nobody */
    assert_int_equal(second.sent[CAIRN__V1__TRAINER_ORDER__BODY_METRIC_ACK], 0);
    far_close_trainer(w, &second);
    far_close_agent(w, &agent);
}

/* ---- two agents of one name ---- */

static void a_newer_agent_of_the_machine_takes_over_at_once(void **state)
{
    struct coord_world *w = *state;
    struct far_end older, newer, again;
    far_open(&older, "");
    far_open(&newer, "");
    far_open(&again, "");
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    hello.started_ms = 1000;
    far_say_hello(w, &older, &hello);
    hello.started_ms = 2000;
    far_say_hello(w, &newer, &hello);
    assert_true(older.finished);
    assert_int_equal(older.code, RPC_ABORTED);
    assert_false(newer.finished);
    far_close_agent(w, &older);
    hello.started_ms = 1000; /* the older one lives, and comes back: it doesn't win by that */
    far_say_hello(w, &again, &hello);
    assert_true(again.finished);
    assert_int_equal(again.code, RPC_ALREADY_EXISTS);
    assert_false(newer.finished);
    assert_int_equal(newer.sent[ORDER_NOTICE], 1);
    far_close_agent(w, &again);
    far_close_agent(w, &newer);
}

static void the_same_agent_may_come_back_before_its_stream_is_seen_to_be_gone(void **state)
{
    struct coord_world *w = *state;
    struct far_end before, after;
    far_join(w, &before, "n", "boot-1");
    far_join(w, &after, "n", "boot-1");
    assert_true(before.finished);
    assert_false(after.finished);
    far_close_agent(w, &before);
    far_close_agent(w, &after);
}

static void an_agent_of_another_machine_waits_until_the_first_is_lost(void **state)
{
    struct coord_world *w = *state;
    struct far_end first, second[3];
    struct coord_job *job = form(w, &first);
    far_join(w, &second[0], "n", "boot-2");
    assert_true(second[0].finished);
    assert_int_equal(second[0].code, RPC_ALREADY_EXISTS);
    assert_non_null(strstr(second[0].detail, "--name"));
    assert_false(first.finished);
    assert_non_null(strstr(first.text, "another agent"));
    assert_int_equal(first.sent[CAIRN__V1__AGENT_ORDER__BODY_END], 0);
    coord_pass(w, 4000);
    far_beat(w, &first);
    coord_pass(w, 4000);
    far_join(w, &second[1], "n", "boot-2");
    assert_true(second[1].finished);
    assert_int_equal(first.sent[ORDER_NOTICE], 1); /* told once */
    far_close_agent(w, &first);
    coord_pass(w, 10000); /* lost: five seconds without a beat */
    far_join(w, &second[2], "n", "boot-2");
    assert_false(second[2].finished);
    coord_pass(w, 30000); /* its trainers aren't there: the job forms anew */
    assert_true(job->m.generation > 1);
    for (int i = 0; i < 3; i++)
        far_close_agent(w, &second[i]);
}

/* ---- clocks ---- */

static void say_beat_at(struct coord_world *w, struct far_end *agent, int64_t wall_ms)
{
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    beat.wall_ms = (uint64_t)wall_ms;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT;
    message.beat = &beat;
    coord_agent_message(w->coord, &agent->conn, &message);
    coord_end_group(w);
}

static void a_node_whose_clock_is_wrong_is_told_and_works(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct reason text;
    const int64_t now = clock_wall_ms(&w->clock);
    far_open(&agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    hello.wall_ms = (uint64_t)(now - 12000);
    far_say_hello(w, &agent, &hello);
    const struct coord_node *node = coord_node_at(w->coord, "n");
    coord_node_clock(node, &text);
    assert_non_null(strstr(text.text, "12 s behind the coordinator's"));
    say_beat_at(w, &agent, now + 3600000);
    coord_node_clock(node, &text);
    assert_non_null(strstr(text.text, "3600 s ahead of the coordinator's"));
    say_beat_at(w, &agent, 0); /* an older agent doesn't say it */
    assert_int_not_equal(node->clock_off_ms, 0);
    say_beat_at(w, &agent, now + 4900);
    coord_node_clock(node, &text);
    assert_string_equal(text.text, "");
    assert_string_equal(fsm_state_name(coord_submit_one(w, "a")->m.state), "FORMING");
    far_close_agent(w, &agent);
}

/* ---- versions ---- */

static void an_agent_of_another_version_is_refused(void **state)
{
    struct coord_world *w = *state;
    static const struct {
        const char *version;
        bool fits;
    } cases[] = { { "", false },      { "0.4", true },  { "0.4.0", true }, { "0.4.77-dev", true },
                  { "0.3.1", false }, { "1.4", false }, { "0.40", false }, { "00.4", false },
                  { "0", false },     { "dev", false } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct far_end agent;
        far_open(&agent, "");
        Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
        hello.version = (char *)cases[i].version;
        far_say_hello(w, &agent, &hello);
        assert_int_equal(agent.finished, !cases[i].fits);
        if (!cases[i].fits) {
            assert_int_equal(agent.code, RPC_FAILED_PRECONDITION);
            assert_non_null(strstr(agent.detail, CAIRN_VERSION));
            assert_non_null(strstr(agent.detail, cases[i].version));
        }
        far_close_agent(w, &agent);
    }
}

static void a_trainer_of_another_version_ends_its_generation_with_that_reason(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainer;
    struct coord_job *job = form(w, &agent);
    uint32_t generation = job->m.generation;
    far_open(&trainer, job->m.token);
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.job = job->id;
    hello.generation = generation;
    hello.version = "0.1.0";
    far_trainer_hello(w, &trainer, &hello);
    assert_true(trainer.finished);
    assert_null(job->ranks[0].conn);
    assert_non_null(strstr(trainer.text, "0.1.0"));
    coord_pass(w, 1000);
    assert_non_null(strstr(job->m.cause.message, "0.1.0"));
    assert_non_null(strstr(job->m.cause.message, CAIRN_VERSION));
    assert_int_equal(job->m.cause.kind, FSM_FAULT_FORMATION);
    far_close_trainer(w, &trainer);
    far_close_agent(w, &agent);
}

/* Trainers of two versions would understand each other, but may compute other bits. */
static void trainers_of_two_versions_are_no_generation(void **state)
{
    struct coord_world *w = *state;
    static const char *const versions[] = { CAIRN_VERSION, "0.4.77" };
    for (int first = 0; first < 2; first++) {
        struct far_end agent, trainer[2];
        struct coord_job *job = form(w, &agent);
        for (uint32_t i = 0; i < 2; i++) {
            Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
            far_open(&trainer[i], job->m.token);
            hello.job = job->id;
            hello.generation = job->m.generation;
            hello.rank = i;
            hello.version = (char *)versions[first ^ (int)i];
            far_trainer_hello(w, &trainer[i], &hello);
        }
        coord_pass(w, 1000);
        assert_int_equal(job->m.cause.kind, FSM_FAULT_FORMATION);
        assert_int_equal(job->m.cause.rank, 1 - first); /* whoever isn't of the coordinator's */
        assert_true(job->m.cause.of_node);
        assert_non_null(strstr(job->m.cause.message, "0.4.77 on node n"));
        assert_non_null(strstr(job->m.cause.message, CAIRN_VERSION " on node n"));
        assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
        coord_end_group(w);
        for (int i = 0; i < 2; i++)
            far_close_trainer(w, &trainer[i]);
        far_close_agent(w, &agent);
    }
}

static void join_small(struct coord_world *w, struct far_end *agent, const char *name)
{
    Cairn__V1__AgentHello hello = far_agent_hello(name, "boot-1");
    far_open(agent, "");
    hello.slots = 1;
    far_say_hello(w, agent, &hello);
}

/* A trainer's process ends, as the agent of its node says. */
static void say_ended(struct coord_world *w, struct far_end *agent, const struct coord_job *job,
                      uint32_t rank)
{
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED;
    far_say_exited(w, agent, job->id, job->m.generation, rank, &exited);
    coord_end_group(w);
}

/* The hellos of both workers; the one on node "m" is of that version. */
static void hello_of_both(struct coord_world *w, const struct coord_job *job,
                          struct far_end trainer[2], const char *version)
{
    for (uint32_t i = 0; i < 2; i++) {
        Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
        const bool on_m = strcmp(job->m.ranks[i].node, "m") == 0;
        far_open(&trainer[i], job->m.token);
        hello.job = (char *)job->id;
        hello.generation = job->m.generation;
        hello.rank = i;
        hello.version = (char *)(on_m ? version : CAIRN_VERSION);
        far_trainer_hello(w, &trainer[i], &hello);
    }
}

static void pass_heard(struct coord_world *w, struct far_end agent[2], const struct coord_job *job,
                       enum fsm_state until)
{
    for (int i = 0; i < 100 && job->m.state != until && job->m.state != FSM_FAILED; i++) {
        far_beat(w, &agent[0]);
        far_beat(w, &agent[1]);
        coord_pass(w, 1000);
    }
}

/* Half of a fleet is upgraded, and the job needs all of it. 10 generations used to be its end. */
static void a_job_waits_for_the_end_of_a_rolling_upgrade(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent[2], trainer[2];
    join_small(w, &agent[0], "n");
    join_small(w, &agent[1], "m");
    struct coord_job *job = coord_submit_one(w, "a");
    for (uint32_t generation = 1; generation <= 25; generation++) {
        pass_heard(w, agent, job, FSM_FORMING);
        assert_string_equal(fsm_state_name(job->m.state), "FORMING");
        assert_int_equal(job->m.generation, generation);
        hello_of_both(w, job, trainer, "0.4.77");
        pass_heard(w, agent, job, FSM_RECOVERING);
        assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
        assert_non_null(strstr(job->m.reason, "0.4.77 on node m"));
        for (uint32_t i = 0; i < 2; i++) {
            say_ended(w, &agent[strcmp(job->m.ranks[i].node, "m") == 0], job, i);
            far_close_trainer(w, &trainer[i]);
        }
    }
    assert_int_equal(job->m.budget.no_progress, 0);
    assert_in_range(job->m.budget.failures, 10, 25); /* it comes back less and less often */
    pass_heard(w, agent, job, FSM_FORMING);
    hello_of_both(w, job, trainer, CAIRN_VERSION);
    coord_pass(w, 1000);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_true(job->m.ranks[0].joined && job->m.ranks[1].joined);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    for (uint32_t i = 0; i < 2; i++) {
        far_close_trainer(w, &trainer[i]);
        far_close_agent(w, &agent[i]);
    }
}

/* ---- a node that was lost, and is heard again ---- */

/* A job of one worker on node "n", FORMING. */
static struct coord_job *form_one(struct coord_world *w, struct far_end *agent)
{
    static const char text[] = "name: a\n"
                               "model: {arch: mlp, classes: 10}\n"
                               "data: {train: {format: synthetic, samples: 1000}}\n"
                               "train: {duration: 100 steps, global_batch: 64, lanes: 8, seed: 1,\n"
                               "  optimizer: {name: sgd, lr: 0.1}}\n"
                               "workers: {count: 1}\n"
                               "checkpoint: {store: /store}\n";
    struct coord_job *job = NULL;
    struct reason reason;
    far_join(w, agent, "n", "boot-1");
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_pass(w, 1);
    assert_int_equal(job->m.generation, 1);
    return job;
}

/* The agent's stream never broke: no hello will list its worker, which was not among those to be
 * ended, as it counted as gone. */
static void a_worker_that_was_lost_with_its_node_is_ended_there(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, other;
    const struct coord_job *job = form_one(w, &agent);
    far_join(w, &other, "other", "boot-2");
    for (int i = 0; i < 600 && job->m.generation == 1; i++) {
        coord_pass(w, 100);
        far_beat(w, &other);
    }
    assert_int_equal(job->m.generation, 2);
    assert_string_equal(job->m.ranks[0].node, "other");
    assert_int_equal(agent.sent[CAIRN__V1__AGENT_ORDER__BODY_END], 1);
    assert_non_null(strstr(agent.ended, "g1 r0"));
    far_close_agent(w, &other);
    far_close_agent(w, &agent);
}

static void join_remote(struct coord_world *w, struct far_end *agent, const char *node)
{
    Cairn__V1__AgentHello hello = far_agent_hello(node, "boot-1");
    far_open(agent, "");
    agent->conn.local = false;
    far_say_hello(w, agent, &hello);
}

/* A worker was heard a little later than its agent, by whose silence alone the node would be called
 * silent. */
static void workers_that_were_heard_last_do_not_hide_that_all_are_silent(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, other, trainers[2];
    join_remote(w, &agent, "n");
    struct coord_job *job = coord_submit_one(w, "a"); /* both workers there */
    join_remote(w, &other, "other");
    far_open(&trainers[0], job->m.token);
    far_attach(w, &trainers[0], job, 0);
    coord_pass(w, 500);
    far_beat(w, &agent);
    coord_pass(w, 400);
    far_beat(w, &other);
    far_open(&trainers[1], job->m.token);
    far_attach(w, &trainers[1], job, 1);
    coord_pass(w, 20000);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(job->m.generation, 1);
    for (uint32_t i = 0; i < 2; i++)
        far_close_trainer(w, &trainers[i]);
    far_close_agent(w, &other);
    far_close_agent(w, &agent);
}

/* Stops the coordinator so long after it began. */
static void stop_while_nodes_come_back(struct coord_world *w, int64_t ms)
{
    struct far_end agent, trainer, other;
    struct coord_job *job = form_one(w, &agent);
    far_open(&trainer, job->m.token);
    far_attach(w, &trainer, job, 0);
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    fault.kind = CAIRN__V1__FAULT_KIND__USER;
    fault.message = "no data here";
    fault.of_node = true;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT;
    message.fault = &fault;
    coord_trainer_message(w->coord, &trainer.conn, &message);
    coord_end_group(w);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
    far_close_trainer(w, &trainer);
    far_close_agent(w, &agent);
    char id[sizeof(job->id)];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    coord_restart(w);
    assert_int_equal(coord_find(w->coord, id, &job), ST_OK);
    far_join(w, &agent, "n", "boot-1"); /* the worker isn't there any more */
    for (int64_t passed = 0; passed < ms; passed += 500) {
        coord_pass(w, 500);
        far_beat(w, &agent);
    }
    w->now += 15000;
    coord_wake(w->coord);
    coord_pass(w, 1000);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
    far_join(w, &other, "other", "boot-2");
    coord_pass(w, 1000);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_string_equal(job->m.ranks[0].node, "other");
    far_close_agent(w, &other);
    far_close_agent(w, &agent);
}

/* The coordinator was stopped at the time at which the other nodes would have come back to it. */
static void a_coordinator_that_was_stopped_waits_for_nodes_before_it_gives_up(void **state)
{
    stop_while_nodes_come_back(*state, 3000);
}

static void also_for_those_that_came_when_it_had_all_but_waited_enough(void **state)
{
    stop_while_nodes_come_back(*state, 9500);
}

/* ---- saves that people ask for ---- */

static void all_come_to(struct coord_job *job, uint64_t step)
{
    for (uint32_t i = 0; i < 2; i++)
        job->m.ranks[i].step = step;
}

static void commit(struct coord_job *job, uint64_t step)
{
    const struct fsm_ckpt ckpt = {
        .step = step, .generation = 1, .shards = 2, .state = FSM_CKPT_GOOD
    };
    memset(job->m.due.announced, 0, sizeof(job->m.due.announced));
    assert_int_equal(fsm_add_ckpt(&job->m, &ckpt), ST_OK);
}

static void a_repeated_save_is_answered_with_the_first(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainers[2];
    struct fsm_awaited first, again;
    struct coord_job *job = form(w, &agent);
    assert_int_equal(coord_save(w->coord, job, "key", NULL, &first),
                     ST_REFUSED); /* nothing trains */
    coord_end_group(w);
    for (uint32_t i = 0; i < 2; i++) {
        far_open(&trainers[i], job->m.token);
        far_attach(w, &trainers[i], job, i);
    }
    const uint32_t *saves = &trainers[1].sent[ORDER_SAVE_AT];
    job->m.state = FSM_RUNNING;
    job->m.gen = FSM_GEN_TRAINING;
    job->m.total_steps = 1000;
    all_come_to(job, 30);
    assert_int_equal(coord_save(w->coord, job, "key", NULL, &first), ST_OK);
    coord_end_group(w);
    assert_int_equal(*saves, 1);
    assert_int_equal(fsm_save_outcome(&job->m, &first), FSM_OUTCOME_OPEN);
    commit(job, 40); /* and the answer is lost */
    all_come_to(job, 60);
    commit(job, 55);
    assert_int_equal(coord_save(w->coord, job, "key", NULL, &again), ST_OK);
    coord_end_group(w);
    assert_int_equal(*saves, 1);
    assert_int_equal(fsm_save_outcome(&job->m, &again), FSM_OUTCOME_SAVED);
    assert_int_equal(fsm_saved(&job->m, &again)->step, 40);
    assert_int_equal(coord_save(w->coord, job, "other", NULL, &again), ST_OK);
    coord_end_group(w);
    assert_int_equal(*saves, 2);
    assert_int_equal(fsm_save_outcome(&job->m, &again), FSM_OUTCOME_OPEN);
    job->m.generation++; /* its workers ended before, and others train */
    memset(job->m.due.announced, 0, sizeof(job->m.due.announced));
    assert_int_equal(fsm_save_outcome(&job->m, &again), FSM_OUTCOME_ENDED);
    assert_int_equal(coord_save(w->coord, job, "other", NULL, &again), ST_OK);
    coord_end_group(w);
    assert_int_equal(*saves, 3);
    assert_int_equal(again.generation, job->m.generation);
    for (uint32_t i = 0; i < 2; i++)
        far_close_trainer(w, &trainers[i]);
    far_close_agent(w, &agent);
}

static void an_agent_has_a_name_that_any_shell_may_see(void **state)
{
    struct coord_world *w = *state;
    static const char *const names[] = {
        "", "$(id)", "a b", "a,b", "-n", "\033[2J", "n;id", "a/b"
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct far_end agent;
        join_remote(w, &agent, names[i]);
        assert_true(agent.finished && agent.code == RPC_INVALID_ARGUMENT);
        assert_null(coord_node_at(w->coord, names[i]));
        far_close_agent(w, &agent);
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_stream_is_one_rank_for_its_life),
        CASE(a_stream_is_one_agent_for_its_life),
        CASE(who_sent_rows_and_lost_its_session_hears_no_more),
        CASE(a_newer_agent_of_the_machine_takes_over_at_once),
        CASE(the_same_agent_may_come_back_before_its_stream_is_seen_to_be_gone),
        CASE(an_agent_of_another_machine_waits_until_the_first_is_lost),
        CASE(a_node_whose_clock_is_wrong_is_told_and_works),
        CASE(an_agent_of_another_version_is_refused),
        CASE(an_agent_has_a_name_that_any_shell_may_see),
        CASE(a_repeated_save_is_answered_with_the_first),
        CASE(a_trainer_of_another_version_ends_its_generation_with_that_reason),
        CASE(trainers_of_two_versions_are_no_generation),
        CASE(a_job_waits_for_the_end_of_a_rolling_upgrade),
        CASE(a_worker_that_was_lost_with_its_node_is_ended_there),
        CASE(workers_that_were_heard_last_do_not_hide_that_all_are_silent),
        CASE(a_coordinator_that_was_stopped_waits_for_nodes_before_it_gives_up),
        CASE(also_for_those_that_came_when_it_had_all_but_waited_enough),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
