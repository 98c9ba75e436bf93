/* The order in which jobs get slots: running jobs keep theirs, and a job whose slots can't come
 * free holds back nobody. */
#include <stdio.h>
#include <string.h>

#include "server/coord/state.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define WORKERS_MAX 8

/* A job whose workers the test plays, and who they are. */
struct crew {
    struct coord_job *job;
    struct far_end workers[WORKERS_MAX];
    uint32_t count;
};

static void state_is(const struct coord_job *job, const char *wanted)
{
    assert_string_equal(fsm_state_name(job->m.state), wanted);
}

static void reason_has(struct coord_world *w, const struct coord_job *job, const char *wanted)
{
    struct reason reason;
    coord_reason(w->coord, job, &reason);
    if (strstr(reason.text, wanted) == NULL)
        fail_msg("'%s' is not in '%s'", wanted, reason.text);
}

static struct coord_job *submit(struct coord_world *w, const char *name, const char *workers)
{
    char text[512];
    struct reason reason;
    struct coord_job *job = NULL;
    (void)snprintf(text, sizeof(text),
                   "name: %s\nmodel: {arch: mlp}\ndata: {train: {format: synthetic}}\n"
                   "train: {duration: 50 steps, global_batch: 64, lanes: 8, "
                   "optimizer: {lr: 0.1}}\nworkers: {%s}\n"
                   "checkpoint: {every: 5 steps, store: /store}\n",
                   name, workers);
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_pass(w, 1);
    return job;
}

static void join(struct coord_world *w, struct far_end *agent, const char *name, const char *boot,
                 uint32_t slots)
{
    far_open(agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello(name, boot);
    hello.slots = slots;
    far_say_hello(w, agent, &hello);
    coord_pass(w, 1);
}

static void say(struct coord_world *w, struct far_end *far,
                Cairn__V1__TrainerMessage__BodyCase body, void *message)
{
    Cairn__V1__TrainerMessage out = CAIRN__V1__TRAINER_MESSAGE__INIT;
    out.body_case = body;
    out.hello = message; /* a union of pointers */
    coord_trainer_message(w->coord, &far->conn, &out);
    coord_end_group(w);
}

static void say_step(struct coord_world *w, struct crew *crew, uint64_t step)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    progress.step = step;
    progress.phase = (char *)"forward";
    for (uint32_t i = 0; i < crew->count; i++)
        say(w, &crew->workers[i], CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS, &progress);
}

/* From FORMING to RUNNING, past its first steps. */
static void run(struct coord_world *w, struct crew *crew, struct coord_job *job)
{
    Cairn__V1__Ready ready = CAIRN__V1__READY__INIT;
    ready.total_steps = 50;
    ready.steps_per_epoch = 10;
    ready.pins = (char *)"{\"cpu\":1}";
    crew->job = job;
    crew->count = job->m.size;
    state_is(job, "FORMING");
    for (uint32_t i = 0; i < crew->count; i++) {
        far_open(&crew->workers[i], job->m.token);
        far_attach(w, &crew->workers[i], job, i);
    }
    for (uint32_t i = 0; i < crew->count; i++)
        say(w, &crew->workers[i], CAIRN__V1__TRAINER_MESSAGE__BODY_READY, &ready);
    say_step(w, crew, 1);
    say_step(w, crew, 2);
    coord_pass(w, 1);
    state_is(job, "RUNNING");
}

static void say_parked(struct coord_world *w, struct crew *crew, uint32_t but)
{
    Cairn__V1__Parked parked = CAIRN__V1__PARKED__INIT;
    parked.step = 2;
    parked.complete = true;
    parked.computed_by = 1;
    for (uint32_t i = 0; i < crew->count; i++) {
        if (i != but)
            say(w, &crew->workers[i], CAIRN__V1__TRAINER_MESSAGE__BODY_PARKED, &parked);
    }
}

static void kill_worker(struct coord_world *w, struct far_end *agent, struct crew *crew,
                        uint32_t rank)
{
    const struct fsm_rank *of = &crew->job->m.ranks[rank];
    far_say_killed(w, agent, crew->job->id, of->birth, of->number);
    coord_end_group(w);
}

static void pass(struct coord_world *w, struct far_end *agent, int64_t ms)
{
    for (; ms > 0; ms -= 500) {
        far_beat(w, agent);
        coord_pass(w, 500);
    }
}

static void close_crew(struct coord_world *w, struct crew *crew)
{
    for (uint32_t i = 0; i < crew->count; i++) {
        if (!crew->workers[i].closed)
            far_close_trainer(w, &crew->workers[i]);
    }
}

/* ---- what can't come free ---- */

/* wide waits for all of two nodes, of which one is gone for good; narrow waits behind it. */
static void a_node_that_is_lost_holds_back_nobody(void **state)
{
    struct coord_world *w = *state;
    struct far_end vm, dies;
    join(w, &vm, "vm", "boot-1", 4);
    join(w, &dies, "dies", "boot-1", 4);
    state_is(submit(w, "small", "count: 1"), "FORMING");
    struct coord_job *wide = submit(w, "wide", "count: 8");
    struct coord_job *narrow = submit(w, "narrow", "count: 2");
    reason_has(w, narrow, "waits behind wide");
    far_close_agent(w, &dies);
    pass(w, &vm, 20000);
    reason_has(w, wide, "node dies, which has 4 of them, is lost");
    state_is(narrow, "QUEUED"); /* it may come back in a moment */
    pass(w, &vm, COORD_REACH_MS);
    state_is(narrow, "FORMING");
    state_is(wide, "QUEUED");
    far_close_agent(w, &vm);
}

static void say_gpus(struct coord_world *w, struct far_end *agent, const char *problem)
{
    Cairn__V1__Gpu gpus[2] = { CAIRN__V1__GPU__INIT, CAIRN__V1__GPU__INIT };
    Cairn__V1__Gpu *list[2] = { &gpus[0], &gpus[1] };
    gpus[0].problem = (char *)problem;
    far_open(agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    hello.gpus = list;
    hello.n_gpus = 2;
    far_say_hello(w, agent, &hello);
    coord_pass(w, 1);
}

static void a_broken_gpu_holds_back_nobody(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    say_gpus(w, &agent, "Xid 79");
    struct coord_job *both = submit(w, "both", "count: 2, device: cuda");
    struct coord_job *one = submit(w, "one", "count: 1, device: cuda");
    reason_has(w, both, "1 GPU is of no use");
    state_is(both, "QUEUED");
    state_is(one, "FORMING");
    far_close_agent(w, &agent);
}

static void who_waits_for_gpus_holds_back_nobody_who_needs_none(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    say_gpus(w, &agent, "");
    state_is(submit(w, "first", "count: 1, device: cuda"), "FORMING");
    state_is(submit(w, "both", "count: 2, device: cuda"), "QUEUED");
    struct coord_job *one = submit(w, "one", "count: 1, device: cuda");
    state_is(submit(w, "cpu", "count: 4"), "FORMING");
    reason_has(w, submit(w, "more", "count: 1"), "needs 1 slot, 0 of 4 are free");
    state_is(one, "QUEUED");
    reason_has(w, one, "waits behind both");
    far_close_agent(w, &agent);
}

/* The agent lists a process that belongs to no job any more, and that SIGKILL doesn't end. */
static void a_process_that_does_not_die_holds_back_nobody(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    Cairn__V1__RunningTrainer running = CAIRN__V1__RUNNING_TRAINER__INIT, *list = &running;
    ref.job = (char *)"gone";
    ref.generation = 1;
    running.ref = &ref;
    far_open(&agent, "");
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    hello.running = &list;
    hello.n_running = 1;
    far_say_hello(w, &agent, &hello);
    struct coord_job *all = submit(w, "all", "count: 4");
    struct coord_job *one = submit(w, "one", "count: 1");
    pass(w, &agent, COORD_UNDYING_MS - 1000);
    reason_has(w, one, "waits behind all"); /* it may die yet */
    pass(w, &agent, COORD_LOOK_MS + 1000);
    state_is(one, "FORMING");
    state_is(all, "QUEUED");
    far_close_agent(w, &agent);
}

/* c's workers reach no other node. */
static void what_is_of_no_use_to_who_waits_is_for_others(void **state)
{
    struct coord_world *w = *state;
    struct far_end a, b, c;
    join(w, &a, "a", "boot-1", 2);
    join(w, &b, "b", "boot-1", 2);
    state_is(submit(w, "first", "count: 1"), "FORMING");
    struct coord_job *wide = submit(w, "wide", "count: 4");
    join(w, &c, "c", "boot-2", 2);
    struct coord_job *two = submit(w, "two", "count: 2");
    struct coord_job *three = submit(w, "three", "count: 2");
    state_is(wide, "QUEUED");
    state_is(two, "FORMING");
    assert_string_equal(two->m.ranks[0].node, "c");
    assert_string_equal(two->m.ranks[1].node, "c");
    state_is(three, "QUEUED");
    reason_has(w, three, "waits behind wide"); /* on a or b there are two */
    far_close_agent(w, &c);
    far_close_agent(w, &b);
    far_close_agent(w, &a);
}

/* ---- running jobs keep their places ---- */

/* second runs with three of four workers; first, which was submitted before, waits for `wanted`. */
static struct coord_job *wait_beside(struct coord_world *w, struct far_end *agent,
                                     struct crew *second, const char *wanted)
{
    struct coord_job *first = submit(w, "first", wanted);
    assert_int_equal(coord_ask(w->coord, first, FSM_EV_PAUSE, NULL), ST_OK);
    struct coord_job *job = submit(w, "second", "count: 3");
    join(w, agent, "n", "boot-1", 4);
    run(w, second, job);
    assert_int_equal(coord_ask(w->coord, first, FSM_EV_RESUME, NULL), ST_OK);
    coord_pass(w, 1);
    state_is(first, "QUEUED");
    return first;
}

static void who_lost_a_worker_goes_on_before_who_waits(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct crew second;
    struct coord_job *first = wait_beside(w, &agent, &second, "count: 3");
    reason_has(w, first, "needs 3 slots, 1 of 4 is free");
    kill_worker(w, &agent, &second, 1);
    say_parked(w, &second, 1);
    coord_pass(w, 1);
    state_is(second.job, "FORMING");
    assert_int_equal(second.job->m.generation, 2);
    assert_int_equal(second.job->m.count, 3);
    state_is(first, "QUEUED");
    close_crew(w, &second);
    far_close_agent(w, &agent);
}

/* The slot is free at once; the others take a while to park. */
static void a_slot_is_kept_while_the_others_park(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct crew second;
    struct coord_job *first = wait_beside(w, &agent, &second, "count: 2");
    kill_worker(w, &agent, &second, 1);
    pass(w, &agent, COORD_LOOK_MS + 500);
    state_is(first, "QUEUED");
    reason_has(w, first, "waits behind second");
    say_parked(w, &second, 1);
    coord_pass(w, 1);
    state_is(second.job, "FORMING");
    assert_int_equal(second.job->m.generation, 2);
    close_crew(w, &second);
    far_close_agent(w, &agent);
}

static void who_lost_all_workers_goes_on_before_who_waits(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct crew second;
    struct coord_job *first = wait_beside(w, &agent, &second, "count: 4");
    for (uint32_t i = 0; i < 3; i++)
        kill_worker(w, &agent, &second, i);
    coord_pass(w, 1);
    state_is(first, "QUEUED");
    assert_int_equal(second.job->m.generation, 2);
    state_is(second.job, "FORMING");
    close_crew(w, &second);
    far_close_agent(w, &agent);
}

/* Fewer workers: nobody has to start, and no slot is needed. */
static void who_needs_no_slot_waits_for_nobody(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct crew second;
    struct reason reason;
    struct coord_job *first = wait_beside(w, &agent, &second, "count: 4");
    assert_int_equal(coord_set_workers(w->coord, second.job, 2, NULL, &reason), ST_OK);
    coord_end_group(w);
    for (uint64_t step = 3; step < 40 && second.job->m.generation == 1; step++) {
        say_step(w, &second, step);
        coord_pass(w, 50);
        say_parked(w, &second, WORKERS_MAX);
        coord_pass(w, 1);
    }
    state_is(second.job, "FORMING");
    assert_int_equal(second.job->m.generation, 2);
    assert_int_equal(second.job->m.size, 2);
    state_is(first, "QUEUED");
    close_crew(w, &second);
    far_close_agent(w, &agent);
}

/* ---- after a start ---- */

static void restart(struct coord_world *w, struct crew *crew, struct far_end *agents, size_t count)
{
    close_crew(w, crew);
    for (size_t i = 0; i < count; i++)
        far_close_agent(w, &agents[i]);
    coord_restart(w);
}

static struct coord_job *jobspec_named(struct coord_world *w, const char *name)
{
    struct coord_job *job = NULL;
    assert_int_equal(coord_find(w->coord, name, &job), ST_OK);
    return job;
}

/* Two nodes of two slots; weeks runs on both, later waits. */
static void run_weeks(struct coord_world *w, struct far_end agents[2], struct crew *weeks)
{
    join(w, &agents[0], "a", "boot-1", 2);
    join(w, &agents[1], "b", "boot-1", 2);
    run(w, weeks, submit(w, "weeks", "count: 4"));
    state_is(submit(w, "later", "count: 1"), "QUEUED");
}

static void pass_both(struct coord_world *w, struct far_end agents[2], int64_t ms)
{
    for (; ms > 0; ms -= 500) {
        far_beat(w, &agents[1]);
        pass(w, &agents[0], 500);
    }
}

static void say_all_killed(struct coord_world *w, struct far_end *agent, struct coord_job *job,
                           const char *node)
{
    for (uint32_t i = 0; i < job->m.size; i++) {
        const struct fsm_rank *rank = &job->m.ranks[i];
        if (strcmp(rank->node, node) == 0)
            far_say_killed(w, agent, job->id, rank->birth, rank->number);
    }
    coord_end_group(w);
}

/* Everything died at once; a is back sooner than b. */
static void after_a_power_cut_nobody_overtakes_who_ran(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[2];
    struct crew weeks;
    run_weeks(w, agents, &weeks);
    restart(w, &weeks, agents, 2);
    join(w, &agents[0], "a", "boot-1", 2);
    say_all_killed(w, &agents[0], jobspec_named(w, "weeks"), "a");
    pass(w, &agents[0], 3000);
    state_is(jobspec_named(w, "later"), "QUEUED");
    join(w, &agents[1], "b", "boot-1", 2);
    say_all_killed(w, &agents[1], jobspec_named(w, "weeks"), "b");
    pass_both(w, agents, 30000);
    state_is(jobspec_named(w, "later"), "QUEUED");
    state_is(jobspec_named(w, "weeks"), "FORMING");
    assert_int_equal(jobspec_named(w, "weeks")->m.generation, 2);
    far_close_agent(w, &agents[0]);
    far_close_agent(w, &agents[1]);
}

/* The coordinator went down in peace: all jobs are QUEUED when it is up again. */
static void after_a_start_nobody_overtakes_who_was_first(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[2];
    struct crew weeks;
    run_weeks(w, agents, &weeks);
    coord_drain(w->coord, true, 60000, NULL);
    say_all_killed(w, &agents[0], weeks.job, "a");
    say_all_killed(w, &agents[1], weeks.job, "b");
    coord_pass(w, 1);
    state_is(weeks.job, "QUEUED");
    restart(w, &weeks, agents, 2);
    join(w, &agents[0], "a", "boot-1", 2);
    pass(w, &agents[0], 5000);
    state_is(jobspec_named(w, "later"), "QUEUED");
    reason_has(w, jobspec_named(w, "later"), "waits behind weeks");
    join(w, &agents[1], "b", "boot-1", 2);
    state_is(jobspec_named(w, "weeks"), "FORMING");
    state_is(jobspec_named(w, "later"), "QUEUED");
    far_close_agent(w, &agents[0]);
    far_close_agent(w, &agents[1]);
}

/* b never comes: it is waited for as long as anybody's first word. */
static void what_does_not_come_back_is_not_waited_for(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[2];
    struct crew weeks;
    run_weeks(w, agents, &weeks);
    restart(w, &weeks, agents, 2);
    join(w, &agents[0], "a", "boot-2", 2);
    pass(w, &agents[0], 2 * COORD_GRACE_MS);
    state_is(jobspec_named(w, "later"), "FORMING");
    state_is(jobspec_named(w, "weeks"), "RECOVERING");
    reason_has(w, jobspec_named(w, "weeks"), "node b, where it ran, has not come back");
    far_close_agent(w, &agents[0]);
}

/* A worker that is about to take a seat started on b, which isn't back: b may bring it along. */
static void after_a_start_nobody_overtakes_whose_newcomer_is_not_back(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[2];
    struct crew weeks;
    struct reason reason;
    join(w, &agents[0], "a", "boot-1", 2);
    join(w, &agents[1], "b", "boot-1", 1);
    run(w, &weeks, submit(w, "weeks", "count: 2"));
    state_is(submit(w, "later", "count: 2"), "QUEUED");
    assert_int_equal(coord_set_workers(w->coord, weeks.job, 3, NULL, &reason), ST_OK);
    coord_end_group(w);
    for (uint64_t step = 3; step < 40 && weeks.job->m.count == 2; step++) {
        say_step(w, &weeks, step);
        pass_both(w, agents, 500);
    }
    assert_int_equal(weeks.job->m.count, 3);
    assert_string_equal(weeks.job->m.ranks[2].node, "b");
    restart(w, &weeks, agents, 2);
    join(w, &agents[0], "a", "boot-1", 2);
    say_all_killed(w, &agents[0], jobspec_named(w, "weeks"), "a");
    pass(w, &agents[0], COORD_GRACE_MS / 2);
    state_is(jobspec_named(w, "weeks"), "RECOVERING");
    state_is(jobspec_named(w, "later"), "QUEUED");
    pass(w, &agents[0], COORD_GRACE_MS + COORD_JUDGED_MS);
    state_is(jobspec_named(w, "later"), "FORMING");
    far_close_agent(w, &agents[0]);
}

/* ---- what it costs ---- */

/* Jobs are placed once for all that came together. */
static void a_group_is_one_look_at_the_queue(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[2];
    struct coord_job *job = submit(w, "j", "count: 3");
    w->open = true;
    for (size_t i = 0; i < 2; i++) {
        far_open(&agents[i], "");
        Cairn__V1__AgentHello hello = far_agent_hello(i == 0 ? "a" : "b", "boot-1");
        hello.slots = 3;
        far_say_hello(w, &agents[i], &hello);
        state_is(job, "QUEUED");
    }
    assert_int_equal(coord_commit_by(w->coord), 0);
    assert_int_equal(coord_commit(w->coord), ST_OK);
    state_is(job, "PLACING");
    w->open = false;
    far_close_agent(w, &agents[0]);
    far_close_agent(w, &agents[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
        TEST(a_node_that_is_lost_holds_back_nobody),
        TEST(a_broken_gpu_holds_back_nobody),
        TEST(who_waits_for_gpus_holds_back_nobody_who_needs_none),
        TEST(a_process_that_does_not_die_holds_back_nobody),
        TEST(what_is_of_no_use_to_who_waits_is_for_others),
        TEST(who_lost_a_worker_goes_on_before_who_waits),
        TEST(a_slot_is_kept_while_the_others_park),
        TEST(who_lost_all_workers_goes_on_before_who_waits),
        TEST(who_needs_no_slot_waits_for_nobody),
        TEST(after_a_power_cut_nobody_overtakes_who_ran),
        TEST(after_a_start_nobody_overtakes_who_was_first),
        TEST(what_does_not_come_back_is_not_waited_for),
        TEST(after_a_start_nobody_overtakes_whose_newcomer_is_not_back),
        TEST(a_group_is_one_look_at_the_queue),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
