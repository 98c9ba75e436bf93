/* Workers that are kept for the next generation, as the core has them: their token, their net. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

struct kept {
    struct coord_world *w;
    struct far_end agent[3], worker[2];
    struct coord_job *job;
    uint32_t probe_port; /* of the agents; 0: their paths are not tried */
};

static void say_hello(struct kept *f, size_t node)
{
    static const char *const names[] = { "a", "b", "c" };
    static const char *const hosts[] = { "10.0.0.1", "10.0.0.2", "fd00::3" };
    far_open(&f->agent[node], "");
    Cairn__V1__AgentHello hello = far_agent_hello(names[node], "boot-1");
    hello.slots = 1;
    hello.host = (char *)hosts[node];
    hello.probe_port = f->probe_port;
    far_say_hello(f->w, &f->agent[node], &hello);
}

static void say(struct kept *f, uint32_t rank, const Cairn__V1__TrainerMessage *message)
{
    coord_trainer_message(f->w->coord, &f->worker[rank].conn, message);
    coord_end_group(f->w);
}

static void pass(struct kept *f, const bool beats[3], int64_t ms)
{
    for (; ms > 0; ms -= 500) {
        for (size_t i = 0; i < 3; i++) {
            if (beats[i])
                far_beat(f->w, &f->agent[i]);
        }
        coord_pass(f->w, 500);
    }
}

static void get_ready(struct kept *f, uint32_t rank)
{
    Cairn__V1__Ready ready = CAIRN__V1__READY__INIT;
    ready.total_steps = 50;
    ready.steps_per_epoch = 10;
    ready.pins = (char *)"{\"cpu\":1}";
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_READY;
    message.ready = &ready;
    say(f, rank, &message);
}

static uint32_t rank_on(const struct kept *f, const char *node)
{
    return strcmp(f->job->m.ranks[0].node, node) == 0 ? 0 : 1;
}

/* Two workers, on a and on b, train. */
static void begin(struct kept *f)
{
    say_hello(f, 0);
    say_hello(f, 1);
    f->job = coord_submit_one(f->w, "j");
    assert_string_equal(fsm_state_name(f->job->m.state), "FORMING");
    for (uint32_t r = 0; r < 2; r++) {
        far_open(&f->worker[r], f->job->m.token);
        far_attach(f->w, &f->worker[r], f->job, r);
    }
    get_ready(f, 0);
    get_ready(f, 1);
    assert_string_equal(fsm_state_name(f->job->m.state), "RUNNING");
}

static void park(struct kept *f, uint32_t rank)
{
    Cairn__V1__Parked parked = CAIRN__V1__PARKED__INIT;
    parked.step = 3;
    parked.complete = true;
    parked.computed_by = f->job->m.generation;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED;
    message.parked = &parked;
    say(f, rank, &message);
}

/* The worker opens a stream with the token of its generation, and says that it has parked. */
static void come_back(struct kept *f, uint32_t rank, const char *token)
{
    far_close_trainer(f->w, &f->worker[rank]);
    far_open(&f->worker[rank], token);
    Cairn__V1__Parked parked = CAIRN__V1__PARKED__INIT;
    parked.step = 3;
    parked.complete = true;
    parked.computed_by = 1;
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.job = f->job->id;
    hello.generation = 1;
    hello.rank = rank;
    hello.version = CAIRN_VERSION;
    hello.attached = true;
    hello.parked = &parked;
    far_trainer_hello(f->w, &f->worker[rank], &hello);
}

/* marked_step: of its flight recorder */
static void lose_at(struct kept *f, uint32_t rank, uint64_t marked_step)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = f->job->id;
    ref.generation = f->job->m.ranks[rank].birth;
    ref.rank = rank;
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = &ref;
    exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL;
    exited.signal = 9;
    exited.marked_step = marked_step;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = &exited;
    const size_t agent = strcmp(f->job->m.ranks[rank].node, "a") == 0 ? 0 : 1;
    coord_agent_message(f->w->coord, &f->agent[agent].conn, &message);
    coord_end_group(f->w);
}

static void lose(struct kept *f, uint32_t rank)
{
    lose_at(f, rank, 0);
}

static void leave(struct kept *f, size_t nodes)
{
    assert_int_equal(coord_ask(f->w->coord, f->job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(f->w);
    for (size_t i = 0; i < 2; i++)
        far_close_trainer(f->w, &f->worker[i]);
    for (size_t i = 0; i < nodes; i++)
        far_close_agent(f->w, &f->agent[i]);
}

/* The next generation has slots and a token, and waits for the store. */
static void a_kept_worker_comes_back_with_the_token_it_has(void **state)
{
    struct kept f = { .w = *state };
    char token[72];
    begin(&f);
    const uint32_t kept = rank_on(&f, "a");
    (void)snprintf(token, sizeof(token), "%s", f.job->m.token);
    f.job->m.probed = false;
    lose(&f, 1 - kept);
    park(&f, kept);
    assert_string_equal(fsm_state_name(f.job->m.state), "PLACING");
    assert_string_equal(f.job->m.token, token); /* until the next one forms */
    come_back(&f, kept, token);
    assert_false(f.worker[kept].finished);
    come_back(&f, kept, "another");
    assert_true(f.worker[kept].finished);
    assert_int_equal(f.worker[kept].code, RPC_UNAUTHENTICATED);
    leave(&f, 2);
}

static void report(struct kept *f, uint32_t rank, Cairn__V1__Fault *fault)
{
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_FAULT;
    message.fault = fault;
    say(f, rank, &message);
}

static void accuse(struct kept *f, uint32_t rank)
{
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    fault.kind = CAIRN__V1__FAULT_KIND__COMMUNICATION;
    fault.message = (char *)"a peer is gone";
    report(f, rank, &fault);
}

/* The agent of a hangs up, and is back: its worker runs on. */
static void reconnect(struct kept *f, uint32_t rank)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = f->job->id;
    ref.generation = 1;
    ref.rank = rank;
    Cairn__V1__RunningTrainer running = CAIRN__V1__RUNNING_TRAINER__INIT, *list = &running;
    running.ref = &ref;
    running.slot = f->job->m.ranks[rank].slot;
    far_close_agent(f->w, &f->agent[0]);
    far_open(&f->agent[0], "");
    Cairn__V1__AgentHello hello = far_agent_hello("a", "boot-1");
    hello.slots = 1;
    hello.host = (char *)"10.0.0.1";
    hello.running = &list;
    hello.n_running = 1;
    far_say_hello(f->w, &f->agent[0], &hello);
}

/* The other worker doesn't park in time, and is ended; it is not gone yet. */
static void who_has_parked_is_not_ended_with_those_that_did_not(void **state)
{
    static const bool beats[] = { true, true, false };
    struct kept f = { .w = *state };
    begin(&f);
    const uint32_t kept = rank_on(&f, "a");
    accuse(&f, 0);
    accuse(&f, 1);
    for (int i = 0; i < 100 && f.job->m.state == FSM_RUNNING; i++)
        pass(&f, beats, 500);
    park(&f, kept);
    for (int i = 0; i < 20 && !f.agent[1].ended[0]; i++)
        pass(&f, beats, 500);
    assert_string_not_equal(f.agent[1].ended, "");
    assert_true(f.job->m.ending.parks);
    reconnect(&f, kept);
    assert_string_equal(f.agent[0].ended, "");
    come_back(&f, kept, f.job->m.token);
    assert_false(f.worker[kept].finished);
    assert_true(f.job->m.ranks[kept].parked);
    leave(&f, 2);
}

/* Node b is lost, and c would have room, in another net. */
static void a_newcomer_is_started_where_it_reaches_those_that_are_kept(void **state)
{
    static const bool beats[] = { true, false, true };
    struct kept f = { .w = *state };
    begin(&f);
    say_hello(&f, 2);
    const uint32_t kept = rank_on(&f, "a");
    for (int i = 0; i < 100 && f.job->m.state == FSM_RUNNING; i++)
        pass(&f, beats, 500);
    assert_string_equal(fsm_state_name(f.job->m.state), "RECOVERING");
    park(&f, kept);
    pass(&f, beats, 3000);
    assert_int_equal(fsm_vacant_ranks(&f.job->m), 1);
    assert_int_equal(f.job->m.generation, 1);
    assert_string_equal(fsm_state_name(f.job->m.state), "RECOVERING");
    leave(&f, 3);
}

static void get_on(struct kept *f, uint64_t step)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    progress.step = step;
    progress.phase = (char *)"forward";
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS;
    message.progress = &progress;
    say(f, 0, &message);
    say(f, 1, &message);
}

/* The path is found broken while the job gets on, so that the job is left alone; then the job
 * fails. */
static void who_is_kept_across_a_broken_path_starts_anew(void **state)
{
    static const bool beats[] = { true, true, false };
    struct kept f = { .w = *state, .probe_port = 4000 };
    begin(&f);
    pass(&f, beats, 3500);
    for (uint64_t round = 1; round <= 3; round++) {
        get_on(&f, round);
        far_probed(f.w, &f.agent[0], false);
        far_probed(f.w, &f.agent[1], false);
        pass(&f, beats, 1000);
    }
    assert_true(coord_nodes_apart(f.w->coord, "a", "b"));
    assert_string_equal(fsm_state_name(f.job->m.state), "RUNNING");
    get_on(&f, 4);
    accuse(&f, 0);
    accuse(&f, 1);
    for (int i = 0; i < 10 && f.job->m.state == FSM_RUNNING; i++)
        pass(&f, beats, 500);
    park(&f, 0);
    park(&f, 1);
    pass(&f, beats, 500);
    assert_string_equal(fsm_state_name(f.job->m.state), "RECOVERING");
    assert_int_equal(f.job->m.generation, 1);
    assert_string_not_equal(f.agent[0].ended, "");
    assert_string_not_equal(f.agent[1].ended, "");
    leave(&f, 2);
}

/* The other rank says so. */
static void find_wrong(struct kept *f, uint32_t wrong)
{
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    fault.kind = CAIRN__V1__FAULT_KIND__WRONG;
    fault.message = (char *)"lane 3 differs";
    fault.ranks = &wrong;
    fault.n_ranks = 1;
    fault.step = 4;
    report(f, 1 - wrong, &fault);
}

static void the_node_of_who_computed_wrongly_is_drained(void **state)
{
    static const bool beats[] = { true, true, false };
    struct kept f = { .w = *state };
    begin(&f);
    get_on(&f, 4);
    find_wrong(&f, rank_on(&f, "b"));
    pass(&f, beats, 3000);
    assert_int_equal(f.job->m.cause.kind, FSM_FAULT_WRONG);
    assert_false(coord_node_at(f.w->coord, "a")->drains);
    assert_true(coord_node_at(f.w->coord, "b")->drains);
    assert_non_null(strstr(coord_node_at(f.w->coord, "b")->why_drains, "lane 3 differs"));
    leave(&f, 2);
}

/* The job needs the node, which no other node could replace. */
static void the_only_node_that_takes_jobs_is_not_drained(void **state)
{
    static const bool beats[] = { true, true, false };
    struct kept f = { .w = *state };
    begin(&f);
    get_on(&f, 4);
    assert_int_equal(coord_drain_node(f.w->coord, "a", "", 60000, "user"), ST_OK);
    coord_end_group(f.w);
    find_wrong(&f, rank_on(&f, "b"));
    pass(&f, beats, 3000);
    assert_false(coord_node_at(f.w->coord, "b")->drains);
    leave(&f, 2);
}

/* A worker was killed before its session wrote last words. Steps beyond the job's 50 don't
 * count. */
static void steps_that_only_a_flight_recorder_tells_are_counted(void **state)
{
    struct kept f = { .w = *state };
    begin(&f);
    get_on(&f, 3);
    lose_at(&f, rank_on(&f, "a"), 51);
    assert_int_equal(f.job->m.step_max, 3);
    lose_at(&f, rank_on(&f, "b"), 7);
    assert_int_equal(f.job->m.step_max, 7);
    leave(&f, 2);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_kept_worker_comes_back_with_the_token_it_has),
        CASE(who_has_parked_is_not_ended_with_those_that_did_not),
        CASE(a_newcomer_is_started_where_it_reaches_those_that_are_kept),
        CASE(who_is_kept_across_a_broken_path_starts_anew),
        CASE(the_node_of_who_computed_wrongly_is_drained),
        CASE(the_only_node_that_takes_jobs_is_not_drained),
        CASE(steps_that_only_a_flight_recorder_tells_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
