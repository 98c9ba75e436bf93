/* Another number of workers: what a job's file rules out is refused before its machine is asked. */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

static const char text[] = "name: elastic\n"
                           "model: {arch: mlp}\n"
                           "data: {train: {format: synthetic}}\n"
                           "train: {duration: 10 steps, global_batch: 1024, lanes: 512, "
                           "optimizer: {lr: 0.1}}\n"
                           "workers: {count: 4, min: 2, spares: 600, device: cuda}\n"
                           "checkpoint: {every: 5 steps, store: /store}\n";

static struct coord_job *submit(struct coord_world *w, const char *job_text)
{
    struct coord_job *job = NULL;
    struct reason reason = { "" };
    if (coord_submit_text(w, job_text, &job, &reason) != ST_OK)
        fail_msg("%s", reason.text);
    return job;
}

static void refused(struct coord_world *w, struct coord_job *job, uint32_t count, const char *said)
{
    struct reason reason = { "" };
    assert_int_equal(coord_set_workers(w->coord, job, count, "a test", &reason), ST_REFUSED);
    assert_string_equal(reason.text, said);
}

static void what_the_file_rules_out_is_refused(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = submit(w, text);
    refused(w, job, 513, "513 workers can't share 512 lanes: each carries at least one");
    refused(w, job, 1,
            "workers.count: 1 is less than workers.min: 2; a job that is submitted with a smaller "
            "workers.min can go on with fewer");
    refused(w, job, 500, "500 workers and 600 spares are more than the 1024 processes of a job");
}

static void the_state_of_a_fast_job_depends_on_its_workers(void **state)
{
    struct coord_world *w = *state;
    static const char fast[] = "name: fast\n"
                               "model: {arch: mlp}\n"
                               "data: {train: {format: synthetic}}\n"
                               "train: {duration: 10 steps, global_batch: 64, lanes: 8, "
                               "optimizer: {lr: 0.1}}\n"
                               "workers: {count: 2, device: cuda}\n"
                               "parallel: {reduction: fast}\n"
                               "checkpoint: {every: 5 steps, store: /store}\n";
    refused(w, submit(w, fast), 4,
            "with parallel.reduction: fast the job's state depends on the number of workers, so "
            "that it stays");
}

/* Each of its stages may have as many workers as there are lanes; the journal has who sits in
 * which. */
static void a_pipeline_has_a_layout_from_the_start(void **state)
{
    struct coord_world *w = *state;
    static const char stages[] =
        "name: cut\n"
        "model: {arch: mlp}\n"
        "data: {train: {format: synthetic}}\n"
        "train: {duration: 10 steps, global_batch: 64, lanes: 8, "
        "optimizer: {lr: 0.1}}\n"
        "parallel: {pipeline: [3, 5], stages: [{workers: 1}, {workers: 3}, "
        "{shares: [7, 1]}]}\n"
        "checkpoint: {every: 5 steps, store: /store}\n";
    static const uint32_t shares[] = { 8, 3, 3, 2, 7, 1 };
    struct coord_job *job = submit(w, stages);
    struct reason reason = { "" };
    for (int round = 0; round < 2; round++) {
        struct jobspec_layout layout;
        assert_int_equal(coord_layout(job, &layout), ST_OK);
        assert_int_equal(layout.stage_count, 3);
        assert_int_equal(layout.workers[1], 3);
        assert_int_equal(layout.first_node[2], 5);
        assert_memory_equal(layout.shares, shares, sizeof(shares));
        assert_int_equal(job->m.config.shares, FSM_SHARES_FILE);
        assert_int_equal(job->m.config.most, 24);
        char id[16];
        memcpy(id, job->id, sizeof(id));
        coord_restart(w);
        job = coord_loaded(w->coord, id);
        assert_non_null(job);
    }
    refused(w, job, 25,
            "25 workers in 3 stages can't share 8 lanes: each carries at least one of its stage's");
    assert_int_equal(coord_set_workers(w->coord, job, 24, "a test", &reason), ST_OK);
}

static void who_could_not_connect_is_not_asked_for(void **state)
{
    struct coord_world *w = *state;
    w->descriptors = 1000; /* 128 of its own, 604 of this job */
    coord_restart(w);
    struct coord_job *job = submit(w, text);
    struct reason reason = { "" };
    assert_int_equal(coord_set_workers(w->coord, job, 300, "a test", &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "900 workers and spares"));
    assert_non_null(strstr(reason.text, "1028 open files"));
    assert_non_null(strstr(reason.text, "ask for fewer workers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_the_file_rules_out_is_refused, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(the_state_of_a_fast_job_depends_on_its_workers, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(a_pipeline_has_a_layout_from_the_start, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(who_could_not_connect_is_not_asked_for, coord_setup,
                                        coord_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
