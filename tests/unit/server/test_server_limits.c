/* Jobs and fleets as large as they may be, and what is larger. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/core/core_fixture.h"

/* A store whose path leaves no room, of before that was refused: that job fails, others train. */
static void a_job_with_too_long_a_store_fails_alone(void **state)
{
    struct core_world *w = *state;
    struct far_end agent;
    struct core_job *job;
    struct reason reason;
    char text[2048], store[LIMIT_PATH] = "/";
    memset(store + 1, 'x', sizeof store - 2);
    store[sizeof store - 1] = '\0';
    (void)snprintf(text, sizeof text,
                   "name: long\nmodel: {arch: mlp, classes: 10}\n"
                   "data: {train: {format: synthetic, samples: 100}}\n"
                   "train: {duration: 50 steps, global_batch: 8, optimizer: {lr: 0.1}}\n"
                   "checkpoint: {store: %s}\n",
                   store);
    assert_int_equal(core_submit_text(w, text, &job, &reason), ST_OK);
    core_restart(w);
    far_join(w, &agent, "n", "boot-1");
    core_pass(w, 1000);
    assert_int_equal(core_failed(w->core), ST_OK);
    assert_int_equal(core_find(w->core, "long", &job), ST_OK);
    assert_string_equal(machine_state_name(job->m.state), "FAILED");
    assert_non_null(strstr(job->m.reason, "checkpoint.store: its 1023 bytes leave no room"));
    job = core_submit_one(w, "other");
    core_pass(w, 1);
    assert_string_equal(machine_state_name(job->m.state), "FORMING");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, core_setup, core_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_job_with_too_long_a_store_fails_alone),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
