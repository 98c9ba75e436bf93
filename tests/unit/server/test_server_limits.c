/* Jobs and fleets as large as they may be, and what is larger. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

/* A store whose path leaves no room, of before that was refused: that job fails, others train. */
static void a_job_with_too_long_a_store_fails_alone(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *job;
    struct reason reason;
    char text[2048], store[LIMIT_PATH] = "/";
    memset(store + 1, 'x', sizeof(store) - 2);
    store[sizeof(store) - 1] = '\0';
    (void)snprintf(text, sizeof(text),
                   "name: long\nmodel: {arch: mlp, classes: 10}\n"
                   "data: {train: {format: synthetic, samples: 100}}\n"
                   "train: {duration: 50 steps, global_batch: 8, optimizer: {lr: 0.1}}\n"
                   "checkpoint: {store: %s}\n",
                   store);
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_restart(w);
    far_join(w, &agent, "n", "boot-1");
    coord_pass(w, 1000);
    assert_int_equal(coord_failed(w->coord), ST_OK);
    assert_int_equal(coord_find(w->coord, "long", &job), ST_OK);
    assert_string_equal(fsm_state_name(job->m.state), "FAILED");
    assert_non_null(strstr(job->m.reason, "checkpoint.store: its 1023 bytes leave no room"));
    job = coord_submit_one(w, "other");
    coord_pass(w, 1);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
}

/* ---- a fleet and a job as large as they may be ---- */

/* One slot each, and a name of as many bytes as it may have. */
static void join_fleet(struct coord_world *w, struct far_end *agents)
{
    char name[LIMIT_NAME];
    w->open = true; /* one group for all */
    for (int i = 0; i < LIMIT_NODES; i++) {
        (void)snprintf(name, sizeof(name), "%0127d", i);
        Cairn__V1__AgentHello hello = far_agent_hello(name, "boot-1");
        hello.slots = 1;
        far_open(&agents[i], "");
        far_say_hello(w, &agents[i], &hello);
    }
    w->open = false;
    coord_end_group(w);
}

static void check_ranks(const struct coord_job *job)
{
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(job->m.generation, 1);
    assert_int_equal(job->m.size, LIMIT_RANKS);
    for (uint32_t i = 0; i < LIMIT_RANKS; i++)
        assert_int_equal(strlen(job->m.ranks[i].node), LIMIT_NAME - 1);
}

static void a_job_of_1024_workers_on_1024_nodes_forms_and_is_read_again(void **state)
{
    static const char text[] =
        "name: large\n"
        "model: {arch: mlp, classes: 10}\n"
        "data: {train: {format: synthetic, samples: 100000}}\n"
        "train: {duration: 50 steps, global_batch: 4096, lanes: 4096, optimizer: {lr: 0.1}}\n"
        "workers: {count: 1024}\n"
        "checkpoint: {every: 5 steps, store: /store}\n";
    struct coord_world *w = *state;
    struct far_end *agents = calloc(LIMIT_NODES + 1, sizeof(*agents));
    struct far_end *workers = calloc(LIMIT_RANKS, sizeof(*workers));
    struct coord_job *job;
    struct reason reason;
    assert_true(agents != NULL && workers != NULL);
    join_fleet(w, agents);
    assert_int_equal(coord_nodes(w->coord, NULL, 0), LIMIT_NODES);
    far_join(w, &agents[LIMIT_NODES], "one-more", "boot-1");
    assert_true(agents[LIMIT_NODES].finished);
    assert_int_equal(agents[LIMIT_NODES].code, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(coord_submit_text(w, text, &job, &reason), ST_OK);
    coord_pass(w, 1);
    check_ranks(job);
    w->open = true;
    for (uint32_t i = 0; i < LIMIT_RANKS; i++) {
        far_open(&workers[i], job->m.token);
        far_attach(w, &workers[i], job, i);
    }
    w->open = false;
    coord_end_group(w);
    for (uint32_t i = 0; i < LIMIT_RANKS; i++) /* each plan fits a message, as far_send sees to */
        assert_int_equal(workers[i].sent[CAIRN__V1__TRAINER_ORDER__BODY_PLAN], 1);
    coord_restart(w);
    assert_int_equal(coord_failed(w->coord), ST_OK);
    assert_int_equal(coord_find(w->coord, "large", &job), ST_OK);
    check_ranks(job);
    free(agents);
    free(workers);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_job_with_too_long_a_store_fails_alone),
        CASE(a_job_of_1024_workers_on_1024_nodes_forms_and_is_read_again),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
