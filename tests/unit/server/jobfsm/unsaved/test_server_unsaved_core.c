/* Jobs that run a command, in the coordinator's core: what it takes from their files, and who may
 * have a session. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

static const char command[] = "name: program\n"
                              "command: {run: [python3, train.py], grace: 7 s, restart: "
                              "{budget: 5}}\n"
                              "workers: {count: 3}\n";

static struct coord_job *submit(struct coord_world *w)
{
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    if (coord_submit_text(w, command, &job, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    return job;
}

static enum status set(struct coord_world *w, struct coord_job *job, uint32_t count,
                       struct reason *reason)
{
    const enum status st = coord_set_workers(w->coord, job, count, "a test", reason);
    coord_end_group(w);
    return st;
}

static void is_of_file(const struct coord_job *job)
{
    assert_true(job->m.config.program);
    assert_true(job->m.config.saves_nothing);
    assert_int_equal(job->m.config.budget, 5);
    assert_int_equal(job->m.config.grace_ms, 7000);
    assert_int_equal(job->m.config.lanes, 0);
    assert_false(job->m.config.every_auto);
    assert_int_equal(job->m.config.every_ms, 0);
}

static void what_it_is_comes_from_its_file_also_after_a_restart(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = submit(w);
    char id[sizeof(job->id)];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    is_of_file(job);
    coord_restart(w);
    assert_int_equal(coord_find(w->coord, id, &job), ST_OK);
    is_of_file(job);
}

/* With a checkpoint it is another kind of job. */
static void with_a_checkpoint_it_is_saved(void **state)
{
    struct coord_world *w = *state;
    char text[512];
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    (void)snprintf(text, sizeof(text), "%scheckpoint: {every: auto, keep: {last: 2}, store: /s}\n",
                   command);
    if (coord_submit_text(w, text, &job, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    assert_true(job->m.config.program);
    assert_false(job->m.config.saves_nothing);
    assert_int_equal(job->m.config.budget, 5);
    assert_int_equal(job->m.config.grace_ms, 7000);
    assert_int_equal(job->m.config.keep_last, 2);
    assert_true(job->m.config.every_auto);
}

static void it_may_have_fewer_workers_and_as_many_again(void **state)
{
    struct coord_world *w = *state;
    struct reason reason = { "" };
    struct coord_job *job = submit(w);
    assert_int_equal(set(w, job, 4, &reason), ST_REFUSED);
    assert_string_equal(reason.text,
                        "4 workers are more than the workers.count that it began with: 3");
    assert_int_equal(set(w, job, 1, &reason), ST_OK);
    assert_int_equal(job->m.config.ranks, 1);
    assert_int_equal(set(w, job, 3, &reason), ST_OK);
    assert_int_equal(job->m.config.ranks, 3);
}

/* The store has nothing to do from its submission to its end. */
static void its_store_is_never_asked(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct fsm_awaited awaited;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = submit(w);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(coord_save(w->coord, job, "key", NULL, &awaited), ST_REFUSED);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    for (uint32_t i = 0; i < 3; i++)
        far_say_killed(w, &agent, job->id, 1, i);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_int_equal(coord_save(w->coord, job, "key", NULL, &awaited), ST_REFUSED);
    assert_int_equal(w->tasks, 0);
    far_close_agent(w, &agent);
}

/* From FORMING to RUNNING. */
static void run(struct coord_world *w, struct coord_job *job, struct far_end trainers[3])
{
    for (uint32_t i = 0; i < 3; i++) {
        far_open(&trainers[i], job->m.token);
        Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
        hello.job = job->id;
        hello.generation = job->m.generation;
        hello.rank = i;
        hello.version = CAIRN_VERSION;
        far_trainer_hello(w, &trainers[i], &hello);
    }
    for (uint32_t i = 0; i < 3; i++) {
        Cairn__V1__Ready ready = CAIRN__V1__READY__INIT;
        Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
        message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_READY;
        message.ready = &ready;
        coord_trainer_message(w->coord, &trainers[i].conn, &message);
        coord_end_group(w);
    }
    assert_string_equal(fsm_state_name(job->m.state), "RUNNING");
}

/* All are told Over with a pause, and nobody is ended; who comes back meanwhile is told again, and
 * an agent that comes back doesn't end it, either. */
static void told_to_go_a_worker_has_its_time_and_no_session(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, again, trainers[3], late;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = submit(w);
    run(w, job, trainers);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_PAUSE, NULL), ST_OK);
    coord_end_group(w);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(trainers[i].sent[CAIRN__V1__TRAINER_ORDER__BODY_OVER], 1);
        far_close_trainer(w, &trainers[i]);
    }
    far_open(&late, job->m.token);
    far_attach(w, &late, job, 1);
    assert_int_equal(late.sent[CAIRN__V1__TRAINER_ORDER__BODY_OVER], 1);
    assert_true(late.finished);
    far_close_trainer(w, &late);
    assert_string_equal(agent.ended, "");
    far_close_agent(w, &agent);
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    Cairn__V1__RunningTrainer running = CAIRN__V1__RUNNING_TRAINER__INIT;
    Cairn__V1__RunningTrainer *list = &running;
    ref.job = job->id;
    ref.generation = 1;
    running.ref = &ref;
    hello.running = &list;
    hello.n_running = 1;
    far_open(&again, "");
    far_say_hello(w, &again, &hello);
    assert_string_equal(again.ended, "");
    for (uint32_t i = 0; i < 3; i++)
        far_say_killed(w, &again, job->id, 1, i);
    assert_string_equal(fsm_state_name(job->m.state), "PAUSED");
    far_close_agent(w, &again);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_it_is_comes_from_its_file_also_after_a_restart),
        CASE(with_a_checkpoint_it_is_saved),
        CASE(it_may_have_fewer_workers_and_as_many_again),
        CASE(its_store_is_never_asked),
        CASE(told_to_go_a_worker_has_its_time_and_no_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
