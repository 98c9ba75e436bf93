/* Spares as the core has them: whose session is whose; and what is told of a process that ended. */
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define WITH_WORKERS(workers)                                                                      \
    "name: elastic\n"                                                                              \
    "model: {arch: mlp}\n"                                                                         \
    "data: {train: {format: synthetic}}\n"                                                         \
    "train: {duration: 50 steps, global_batch: 64, lanes: 8, "                                     \
    "optimizer: {lr: 0.1}}\n"                                                                      \
    "workers: " workers "\n"                                                                       \
    "checkpoint: {every: 5 steps, store: /store}\n"

static const char text[] = WITH_WORKERS("{count: 1, spares: 1}");
static const char fewer[] = WITH_WORKERS("{count: 2, min: 1}");

static void say(struct coord_world *w, struct far_end *far,
                Cairn__V1__TrainerMessage__BodyCase body, void *message)
{
    Cairn__V1__TrainerMessage out = CAIRN__V1__TRAINER_MESSAGE__INIT;
    out.body_case = body;
    out.hello = message; /* a union of pointers */
    coord_trainer_message(w->coord, &far->conn, &out);
    coord_end_group(w);
}

static void attach_ready(struct coord_world *w, struct far_end *worker, const struct coord_job *job,
                         uint32_t rank, const char *pins)
{
    Cairn__V1__Ready ready = CAIRN__V1__READY__INIT;
    ready.total_steps = 50;
    ready.steps_per_epoch = 10;
    ready.pins = (char *)pins;
    far_open(worker, job->m.token);
    far_attach(w, worker, job, rank);
    say(w, worker, CAIRN__V1__TRAINER_MESSAGE__BODY_READY, &ready);
}

/* RUNNING with one worker. */
static struct coord_job *run_one(struct coord_world *w, const char *file, struct far_end *worker)
{
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    assert_int_equal(coord_submit_text(w, file, &job, &reason), ST_OK);
    coord_pass(w, 1);
    attach_ready(w, worker, job, 0, "{\"cpu\":1}");
    coord_pass(w, 1);
    assert_string_equal(fsm_state_name(job->m.state), "RUNNING");
    assert_int_equal(job->m.count, 1);
    return job;
}

/* Spares are started from its first step on. */
static void say_stepped(struct coord_world *w, struct far_end *worker)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    progress.step = 1;
    progress.phase = (char *)"forward";
    say(w, worker, CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS, &progress);
    coord_pass(w, 1);
}

/* RUNNING with one worker on "n", and a spare that starts there. */
static struct coord_job *begin(struct coord_world *w, struct far_end *agent, struct far_end *worker)
{
    far_join(w, agent, "n", "boot-1");
    struct coord_job *job = run_one(w, text, worker);
    say_stepped(w, worker);
    assert_int_equal(job->m.count, 2);
    assert_false(job->m.ranks[1].gone);
    return job;
}

static void attach_spare(struct coord_world *w, struct far_end *far, const struct coord_job *job)
{
    far_open(far, job->m.spares.token);
    far_attach(w, far, job, job->m.ranks[1].number);
    assert_false(far->finished);
    assert_ptr_equal(job->ranks[1].conn, &far->conn);
}

static void say_exited(struct coord_world *w, struct far_end *agent, const struct coord_job *job)
{
    far_say_killed(w, agent, job->id, job->m.ranks[1].birth, job->m.ranks[1].number);
    coord_end_group(w);
}

/* What is still on its way from a spare that is gone is not said by the one in its place. */
static void a_spare_that_is_gone_does_not_speak_for_the_next(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker, old, next;
    Cairn__V1__Parked parked = CAIRN__V1__PARKED__INIT;
    struct coord_job *job = begin(w, &agent, &worker);
    attach_spare(w, &old, job);
    const uint32_t number = job->m.ranks[1].number;
    say_exited(w, &agent, job);
    coord_pass(w, 1000);
    assert_false(job->m.ranks[1].gone); /* another one starts in its place */
    assert_int_not_equal(job->m.ranks[1].number, number);
    say(w, &old, CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED, &parked);
    assert_false(job->m.ranks[1].parked);
    assert_true(old.finished);
    far_close_trainer(w, &old);
    attach_spare(w, &next, job);
    say(w, &next, CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED, &parked);
    assert_true(job->m.ranks[1].parked);
    assert_false(next.finished);
    far_close_trainer(w, &next);
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
}

/* The end of the spare's session doesn't end the session of the next one. */
static void a_spare_that_is_gone_ends_no_session_of_the_next(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker, old, next;
    struct coord_job *job = begin(w, &agent, &worker);
    attach_spare(w, &old, job);
    say_exited(w, &agent, job);
    coord_pass(w, 1000);
    attach_spare(w, &next, job);
    far_close_trainer(w, &old);
    assert_true(job->m.ranks[1].session);
    assert_ptr_equal(job->ranks[1].conn, &next.conn);
    far_close_trainer(w, &next);
    assert_false(job->m.ranks[1].session);
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
}

/* The spare's agent came back without any trainer a while ago, and the job is killed in that
 * instant. */
static void who_counts_as_gone_while_it_is_ended_has_no_place_any_more(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker, spare, next;
    struct coord_job *job = begin(w, &agent, &worker);
    attach_spare(w, &spare, job);
    far_close_agent(w, &agent);
    far_join(w, &next, "n", "boot-1");
    while (w->now < job->m.ranks[1].missing_at + 900) {
        far_beat(w, &next);
        coord_pass(w, 100);
    }
    assert_int_not_equal(job->m.ranks[1].missing_at, 0);
    assert_string_equal(fsm_state_name(job->m.state), "RUNNING");
    w->now += 10000; /* nothing else happens before */
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    far_close_trainer(w, &spare);
    far_close_trainer(w, &worker);
    far_close_agent(w, &next);
}

/* Lanes were dealt by speed, and the seat is given to somebody else: until the next generation
 * forms it has none, and a spare that comes meanwhile is told of a whole batch. */
static void seats_that_are_given_anew_have_even_lanes_for_spares(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, worker, spare;
    struct coord_job *job = begin(w, &agent, &worker);
    struct jobspec_layout layout;
    attach_spare(w, &spare, job);
    job->m.balance.by_speed = true;
    job->m.ranks[0].lanes = 8;
    assert_int_equal(coord_layout(job, &layout), ST_OK);
    assert_int_equal(layout.shares[0], 8);
    job->m.ranks[0].lanes = 0;
    assert_int_equal(coord_layout(job, &layout), ST_OK);
    assert_int_equal(layout.shares[0], 8);
    far_close_trainer(w, &spare);
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
}

/* Checks the node of the second worker; expected NULL: there is none. other: a third node, or
 * NULL. */
static void spare_is_on(struct coord_world *w, const char *other, const char *expected,
                        int64_t slow_since)
{
    struct far_end agent, slow, worker, third = { .finished = false };
    Cairn__V1__AgentHello small = far_agent_hello("n", "boot-1");
    small.slots = 1;
    far_open(&agent, "");
    far_say_hello(w, &agent, &small);
    struct coord_job *job = run_one(w, fewer, &worker);
    far_join(w, &slow, "slow", "boot-1");
    if (other != NULL)
        far_join(w, &third, other, "boot-1");
    (void)exclusion_add(&job->m.exclusions, "slow", EXCLUSION_SLOW, 0,
                        clock_wall_ms(&w->clock) - slow_since);
    say_stepped(w, &worker);
    assert_int_equal(job->m.count, expected != NULL ? 2 : 1);
    if (expected != NULL)
        assert_string_equal(job->m.ranks[1].node, expected);
    far_close_trainer(w, &worker);
    far_close_agent(w, &agent);
    far_close_agent(w, &slow);
    if (other != NULL)
        far_close_agent(w, &third);
}

/* The job went on without a worker that was slow on that node: another one would be slow there,
 * too. */
static void what_was_left_out_is_not_started_again_where_it_was_slow(void **state)
{
    spare_is_on(*state, NULL, NULL, 0);
}

static void but_elsewhere(void **state)
{
    spare_is_on(*state, "zz", "zz", 0);
}

static void and_there_after_a_while(void **state)
{
    spare_is_on(*state, NULL, "slow", EXCLUSION_SLOW_MS);
}

/* ---- fewer of them, rather than where it failed ---- */

static struct coord_job *submit_waiting(struct coord_world *w, const char *file)
{
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    assert_int_equal(coord_submit_text(w, file, &job, &reason), ST_OK);
    coord_pass(w, 1);
    assert_string_equal(fsm_state_name(job->m.state), "QUEUED");
    return job;
}

/* Says hello, and nothing more. */
static void join_with(struct coord_world *w, struct far_end *agent, const char *node,
                      uint32_t slots)
{
    Cairn__V1__AgentHello hello = far_agent_hello(node, "boot-1");
    hello.slots = slots;
    far_open(agent, "");
    far_say_hello(w, agent, &hello);
}

/* The agent that a node will have: an entry about another one ends with its hello. */
static uint64_t agent_to_come(struct coord_world *w, const char *node)
{
    struct far_end agent;
    join_with(w, &agent, node, 0);
    far_close_agent(w, &agent);
    return coord_node_at(w->coord, node)->agent;
}

/* There are two nodes of one slot, and a job of one or two workers has failed on "bad", which is
 * remembered for three more seconds. */
static struct coord_job *submit_shunning(struct coord_world *w, const char *before,
                                         struct far_end nodes[2])
{
    static const char *const names[] = { "good", "bad" };
    if (before != NULL)
        assert_non_null(submit_waiting(w, before));
    struct coord_job *job = submit_waiting(w, fewer);
    const uint64_t agent = agent_to_come(w, "bad");
    (void)exclusion_add(&job->m.exclusions, "bad", EXCLUSION_FAILED, FSM_FAULT_PROCESS,
                        clock_wall_ms(&w->clock) - EXCLUSION_FAILED_MS + 3000);
    job->m.exclusions.list[0].agent = agent;
    for (int i = 0; i < 2; i++) {
        const int next = before != NULL ? i : 1 - i; /* the one before takes the good one */
        join_with(w, &nodes[next], names[next], 1);
        coord_pass(w, 1);
    }
    return job;
}

static void close_both(struct coord_world *w, struct far_end nodes[2])
{
    far_close_agent(w, &nodes[0]);
    far_close_agent(w, &nodes[1]);
}

static void a_job_has_fewer_workers_rather_than_one_where_it_failed(void **state)
{
    struct coord_world *w = *state;
    struct far_end nodes[2];
    struct coord_job *job = submit_shunning(w, NULL, nodes);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(job->m.size, 1);
    assert_string_equal(job->m.ranks[0].node, "good");
    close_both(w, nodes);
}

/* Somebody else has the other node: it is waited for, as long as the failure is remembered. */
static void and_waits_for_them_before_it_goes_there(void **state)
{
    struct coord_world *w = *state;
    struct far_end nodes[2];
    struct coord_job *job = submit_shunning(w, text, nodes);
    assert_string_equal(fsm_state_name(job->m.state), "QUEUED");
    for (int i = 0; i < 4; i++) {
        far_beat(w, &nodes[0]);
        far_beat(w, &nodes[1]);
        coord_pass(w, 1000);
    }
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_string_equal(job->m.ranks[0].node, "bad");
    close_both(w, nodes);
}

/* While one is kept it doesn't wait: its own slot on the good node is none for another. */
static void but_goes_there_where_one_is_kept(void **state)
{
    struct coord_world *w = *state;
    static const char *const names[] = { "good", "bad" };
    struct far_end nodes[2], workers[3];
    struct coord_job *job = submit_waiting(w, WITH_WORKERS("{count: 3, min: 2}"));
    for (uint32_t i = 0; i < 2; i++) {
        Cairn__V1__AgentHello hello = far_agent_hello(names[i], "boot-1");
        hello.slots = 1 + i;
        far_open(&nodes[i], "");
        far_say_hello(w, &nodes[i], &hello);
    }
    coord_pass(w, 1);
    for (uint32_t i = 0; i < 3; i++)
        attach_ready(w, &workers[i], job, i, "{\"cpu\":1}");
    coord_pass(w, 1);
    assert_string_equal(fsm_state_name(job->m.state), "RUNNING");
    (void)exclusion_add(&job->m.exclusions, "bad", EXCLUSION_FAILED, FSM_FAULT_PROCESS,
                        clock_wall_ms(&w->clock));
    for (uint32_t i = 0; i < 3; i++) {
        Cairn__V1__Parked parked = CAIRN__V1__PARKED__INIT;
        if (strcmp(job->m.ranks[i].node, "bad") == 0) {
            far_say_killed(w, &nodes[1], job->id, 1, i);
        } else {
            say(w, &workers[i], CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED, &parked);
        }
        coord_end_group(w);
    }
    for (int i = 0; i < 5 && job->m.state != FSM_FORMING; i++) {
        far_beat(w, &nodes[0]);
        far_beat(w, &nodes[1]);
        coord_pass(w, 1000);
    }
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(job->m.size, 3);
    for (int i = 0; i < 3; i++)
        far_close_trainer(w, &workers[i]);
    close_both(w, nodes);
}

/* ---- workers that differ ---- */

/* FORMING: both workers are ready, on unlike machines. */
static void unlike_workers_train(struct coord_world *w, const char *file, bool train)
{
    static const char *const pins[] = { "{\"cpu\":1}", "{\"cpu\":2}" };
    struct far_end agent, workers[2];
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    far_join(w, &agent, "n", "boot-1");
    assert_int_equal(coord_submit_text(w, file, &job, &reason), ST_OK);
    coord_pass(w, 1);
    for (uint32_t i = 0; i < 2; i++) {
        attach_ready(w, &workers[i], job, i, pins[i]);
    }
    coord_pass(w, 1);
    assert_int_equal(job->m.state == FSM_RUNNING, train);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    for (int i = 0; i < 2; i++)
        far_close_trainer(w, &workers[i]);
    far_close_agent(w, &agent);
}

static void unlike_workers_are_accepted_where_bits_may_differ(void **state)
{
    unlike_workers_train(*state, WITH_WORKERS("{count: 2}") "recovery: {exactness: relaxed}\n",
                         true);
}

/* What one stage gives the next is laid out as each machine likes it. */
static void but_not_in_a_pipeline(void **state)
{
    unlike_workers_train(*state,
                         WITH_WORKERS("{count: 2}") "recovery: {exactness: relaxed}\n"
                                                    "parallel: {pipeline: 2}\n",
                         false);
}

/* ---- what is told of an exit ---- */

/* The process of each of both workers exits with code 7, and that line was its last. */
static void exit_both(struct coord_world *w, struct far_end *agent, const struct coord_job *job,
                      char *line)
{
    const uint32_t generation = job->m.generation;
    for (uint32_t rank = 0; rank < 2; rank++) {
        Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
        exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT;
        exited.code = 7;
        exited.last_lines = &line;
        exited.n_last_lines = 1;
        far_say_exited(w, agent, job->id, generation, rank, &exited);
        coord_end_group(w);
    }
}

/* A line of a log is JSON; others are told as they are. */
static void what_a_worker_said_last_is_told_in_words(void **state)
{
    static const struct {
        const char *line, *said;
    } rows[] = {
        { "{\"ts\":\"2026-01-02T03:04:05.678Z\",\"level\":\"error\",\"msg\":\"no \\\"file\\\" x\"}",
          "exited with code 7: no \"file\" x" },
        { "free(): invalid pointer", "exited with code 7: free(): invalid pointer" },
        { "{\"msg\":", "exited with code 7: {\"msg\":" },
        { "[1]", "exited with code 7: [1]" },
    };
    static const char *const nodes[] = { "a", "b", "c", "d" };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct coord_world *w = *state;
        struct far_end agent;
        auto_free char *line = strdup(rows[i].line);
        assert_non_null(line);
        far_join(w, &agent, nodes[i], "boot-1");
        struct coord_job *job = coord_submit_one(w, "a");
        assert_string_equal(fsm_state_name(job->m.state), "FORMING");
        exit_both(w, &agent, job, line);
        assert_non_null(strstr(job->m.first_cause.message, rows[i].said));
        assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
        coord_end_group(w);
        far_close_agent(w, &agent);
    }
}

/* A worker that runs a program of its own knows whether somebody outside killed that. */
static void a_cause_outside_the_job_is_heard_in_last_words(void **state)
{
    for (int outside = 0; outside < 2; outside++) {
        struct coord_world *w = *state;
        struct far_end agent;
        far_join(w, &agent, outside ? "a" : "b", "boot-1");
        struct coord_job *job = coord_submit_one(w, "a");
        Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
        Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
        Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
        fault.kind = CAIRN__V1__FAULT_KIND__PROCESS_GONE;
        fault.outside = outside == 1;
        words.generation = job->m.generation;
        words.fault__case = CAIRN__V1__LAST_WORDS__FAULT__FAULT;
        words.fault = &fault;
        exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT;
        exited.code = 1;
        exited.words__case = CAIRN__V1__TRAINER_EXITED__WORDS__WORDS;
        exited.words = &words;
        far_say_exited(w, &agent, job->id, job->m.generation, 0, &exited);
        coord_end_group(w);
        assert_int_equal(job->m.cause.kind, FSM_FAULT_PROCESS);
        assert_int_equal(job->m.cause.outside, outside == 1);
        assert_int_equal(job->m.budget.own, outside == 0);
        assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
        coord_end_group(w);
        far_close_agent(w, &agent);
    }
}

/* ---- a node that has other pins, for a while ---- */

/* The agent of "n", as its start makes it. */
static void join_n(struct coord_world *w, struct far_end *agent, uint64_t started_ms)
{
    far_open(agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    hello.started_ms = started_ms;
    far_say_hello(w, agent, &hello);
    coord_pass(w, 100);
}

/* The job of run_one is formed anew, and its worker says that it has other pins. */
static void differ(struct coord_world *w, struct far_end *agent, const struct coord_job *job)
{
    struct far_end worker;
    attach_ready(w, &worker, job, 0, "{\"cpu\":{\"isa\":\"sse41\",\"threads\":1},\"v\":2}");
    far_say_killed(w, agent, job->id, job->m.generation, 0);
    coord_end_group(w);
    far_close_trainer(w, &worker);
    coord_pass(w, 6000);
    assert_string_equal(fsm_state_name(job->m.state), "RECOVERING");
}

static struct coord_job *find_it(struct coord_world *w)
{
    struct coord_job *job;
    assert_int_equal(coord_find(w->coord, "elastic", &job), ST_OK);
    return job;
}

static bool waits_for_n(struct coord_world *w)
{
    const struct coord_job *job = find_it(w);
    struct reason told;
    coord_reason(w->coord, job, &told);
    return job->m.state == FSM_RECOVERING &&
           strstr(told.text, "keeps away from n for 60 min (its pins differ)") != NULL;
}

static void a_node_with_other_pins_is_tried_again_with_its_next_agent(void **state)
{
    static const char file[] = WITH_WORKERS("{count: 1}");
    struct coord_world *w = *state;
    struct far_end agent, worker;
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    join_n(w, &agent, 1);
    assert_int_equal(coord_submit_text(w, file, &job, &reason), ST_OK);
    coord_pass(w, 1);
    attach_ready(w, &worker, job, 0, "{\"cpu\":{\"isa\":\"avx2\",\"threads\":1},\"v\":2}");
    say_stepped(w, &worker);
    far_say_killed(w, &agent, job->id, 1, 0);
    coord_end_group(w);
    far_close_trainer(w, &worker);
    coord_pass(w, 100);
    differ(w, &agent, job);
    assert_non_null(strstr(job->m.cause.message, "cpu.isa is \"sse41\", was \"avx2\""));
    assert_true(waits_for_n(w));
    far_close_agent(w, &agent);
    join_n(w, &agent, 1); /* the same agent has reached us again */
    assert_true(waits_for_n(w));
    coord_restart(w);
    join_n(w, &agent, 1);
    assert_true(waits_for_n(w));
    coord_restart(w); /* cairn down, cairn up */
    join_n(w, &agent, 2);
    job = find_it(w);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    differ(w, &agent, job);
    assert_true(waits_for_n(w));
    far_beat(w, &agent);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_PAUSE, NULL), ST_OK);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_RESUME, NULL), ST_OK);
    coord_end_group(w);
    coord_pass(w, 100);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &agent);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_spare_that_is_gone_does_not_speak_for_the_next),
        CASE(a_spare_that_is_gone_ends_no_session_of_the_next),
        CASE(who_counts_as_gone_while_it_is_ended_has_no_place_any_more),
        CASE(seats_that_are_given_anew_have_even_lanes_for_spares),
        CASE(what_was_left_out_is_not_started_again_where_it_was_slow),
        CASE(but_elsewhere),
        CASE(and_there_after_a_while),
        CASE(a_job_has_fewer_workers_rather_than_one_where_it_failed),
        CASE(and_waits_for_them_before_it_goes_there),
        CASE(but_goes_there_where_one_is_kept),
        CASE(unlike_workers_are_accepted_where_bits_may_differ),
        CASE(but_not_in_a_pipeline),
        CASE(what_a_worker_said_last_is_told_in_words),
        CASE(a_cause_outside_the_job_is_heard_in_last_words),
        CASE(a_node_with_other_pins_is_tried_again_with_its_next_agent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
