/* Jobs with a command: what the core makes of their files, and what it tells of them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "jobspec/budget.h"
#include "server/coord/metrics.h"
#include "server/render/render.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

static const char text[] = "name: mine\n"
                           "command:\n"
                           "  run: [python3, train.py, --name, 'a b']\n"
                           "  folder: /out\n"
                           "  grace: 45 s\n"
                           "  restart: {budget: 3}\n"
                           "workers: {count: 4, min: 2}\n";

static struct coord_job *submit(struct coord_world *w, const char *job_text)
{
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    if (coord_submit_text(w, job_text, &job, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    return job;
}

/* The same from the journal. */
static void state_machine_knows_what_the_file_says(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = submit(w, text);
    struct jobspec spec = { 0 };
    memcpy(&spec, job->spec, jobspec_bytes(job->spec));
    for (int round = 0; round < 2; round++) {
        const struct fsm_config *config = &job->m.config;
        struct jobspec_layout layout;
        assert_int_equal(config->ranks, 4);
        assert_int_equal(config->min, 2);
        assert_int_equal(config->most, 4);
        assert_int_equal(config->spares, 0);
        assert_int_equal(config->stages, 0);
        assert_int_equal(config->lanes, 0); /* none moves */
        assert_true(config->saves_nothing);
        assert_int_equal(config->budget, jobspec_budget(&spec));
        assert_int_equal(config->grace_ms, spec.command.grace_ms);
        assert_int_equal(config->lanes_audited, 0);
        assert_int_equal(config->states_audited, 0);
        assert_false(config->on_device);
        assert_int_equal(coord_layout(job, &layout), ST_OK);
        assert_int_equal(layout.workers[0], 4);
        assert_memory_equal(job->spec, &spec, jobspec_bytes(&spec));
        char id[16];
        memcpy(id, job->id, sizeof(id));
        coord_restart(w);
        job = coord_loaded(w->coord, id);
        assert_non_null(job);
    }
}

static void refused(struct coord_world *w, struct coord_job *job, uint32_t count, const char *said)
{
    struct reason reason = { "" };
    assert_int_equal(coord_set_workers(w->coord, job, count, "a test", &reason), ST_REFUSED);
    assert_string_equal(reason.text, said);
}

static void workers_are_set_between_min_and_count(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = submit(w, text);
    struct reason reason = { "" };
    refused(w, job, 5, "5 workers are more than the workers.count that it began with: 4");
    refused(w, job, 1,
            "workers.count: 1 is less than workers.min: 2; a job that is submitted with a smaller "
            "workers.min can go on with fewer");
    assert_int_equal(coord_set_workers(w->coord, job, 2, "a test", &reason), ST_OK);
    assert_int_equal(coord_set_workers(w->coord, job, 4, "a test", &reason), ST_OK);
}

static void folder_is_one_job_s_until_it_is_over(void **state)
{
    struct coord_world *w = *state;
    static const char other[] = "name: other\ncommand: {run: [x], folder: /out/}\n";
    static const char elsewhere[] = "name: b\ncommand: {run: [x], folder: /out2}\n";
    static const char nowhere[] = "name: c\ncommand: {run: [x]}\n";
    struct coord_job *job = submit(w, text), *late = NULL;
    struct reason reason = { "" };
    assert_int_equal(coord_submit_text(w, other, &late, &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "command.folder: mine ("));
    assert_non_null(strstr(reason.text, job->id));
    assert_non_null(strstr(reason.text, "writes to /out and isn't over"));
    (void)submit(w, elsewhere);
    (void)submit(w, nowhere);
    (void)submit(w, nowhere);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, "a test"), ST_OK);
    coord_end_group(w);
    late = submit(w, other);
    assert_string_equal(late->spec->command.folder, "/out");
    /* The first one could not go on now. */
    assert_int_equal(coord_could_write(w->coord, late->spec, &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "command.folder: other ("));
}

static void job_is_told_without_a_model(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = submit(w, text);
    coord_pass(w, 1);
    Cairn__V1__Job *told = render_job(w->coord, job, 1);
    assert_non_null(told);
    assert_string_equal(told->model, "command");
    assert_string_equal(told->command, "python3 train.py --name 'a b'");
    assert_string_equal(told->store, "");
    assert_int_equal(told->workers_count, 4);
    assert_int_equal(told->workers_min, 2);
    assert_int_equal(told->total_steps, 0);
    assert_true(isnan(told->throughput));
    assert_true(isnan(told->eta_seconds));
    assert_int_equal(told->mfu__case, CAIRN__V1__JOB__MFU___NOT_SET);
    cairn__v1__job__free_unpacked(told, NULL);
    far_close_agent(w, &agent);
}

/* With a checkpoint people are told its folder, and its speed as the program says it. */
static void job_that_is_saved_is_told_with_its_store(void **state)
{
    struct coord_world *w = *state;
    char saved[1024];
    (void)snprintf(saved, sizeof(saved), "%scheckpoint: {every: 10 steps, store: /s}\n", text);
    struct coord_job *job = submit(w, saved);
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    row.step = 3;
    row.samples_per_s = 12.5;
    coord_show_row(job, row.step, &row);
    Cairn__V1__Job *told = render_job(w->coord, job, 1);
    char store[64];
    (void)snprintf(store, sizeof(store), "/s/%s", job->id);
    assert_non_null(told);
    assert_string_equal(told->model, "command");
    assert_string_equal(told->store, store);
    assert_true(told->throughput == 12.5);
    assert_string_equal(told->throughput_unit, "samples/s");
    assert_int_equal(told->mfu__case, CAIRN__V1__JOB__MFU___NOT_SET);
    cairn__v1__job__free_unpacked(told, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(state_machine_knows_what_the_file_says, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(workers_are_set_between_min_and_count, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(folder_is_one_job_s_until_it_is_over, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(job_is_told_without_a_model, coord_setup, coord_teardown),
        cmocka_unit_test_setup_teardown(job_that_is_saved_is_told_with_its_store, coord_setup,
                                        coord_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
