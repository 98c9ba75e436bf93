/* Jobs that end early and steps that are left out for their loss: the same on any number of
 * workers, and after a restore from any step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"

/* Nothing is better by so much: the job ends after its third evaluation. */
static const struct ranks_job stops = {
    tiny_mlp,
    { "train.duration=20 steps", "eval.every=2 steps", "train.lanes=8",
      "train.stop={metric: eval_loss, patience: 2, min_delta: 100}", NULL }
};
static const struct ranks_job spikes = {
    tiny_mlp,
    { "train.duration=24 steps", "train.lanes=8", "train.optimizer={lr: 0.2}",
      "recovery={on_spike: skip, spike: 1.03, spike_window: 4}", NULL }
};

static struct ranks_options spread_of(const struct ranks_job *job, uint32_t size)
{
    static const uint32_t shares[3][3] = { { 8 }, { 5, 3 }, { 2, 5, 1 } };
    struct ranks_options options = { .job = job, .size = size };
    memcpy(options.shares, shares[size - 1], size * sizeof(uint32_t));
    return options;
}

/* Stops a job after each step in turn, and lets other workers go on. */
static struct ranks_result *check_restores(const struct ranks_job *job, const char *folder)
{
    struct ranks_options alone = spread_of(job, 1);
    struct ranks_result *quiet = ranks_new_well(&alone);
    for (uint64_t step = 1; step <= quiet->step; step++) {
        char dir[256];
        (void)snprintf(dir, sizeof(dir), "%s/step-%d", folder, (int)step);
        struct ranks_options before = spread_of(job, 2);
        before.stop_at = step;
        before.save = dir;
        free(ranks_new_well(&before));
        struct ranks_options after = spread_of(job, 1 + (uint32_t)(step % 3));
        after.restore = dir;
        after.restore_step = step;
        struct ranks_result *end = ranks_new_well(&after);
        assert_int_equal(end->step, quiet->step);
        assert_string_equal(end->digest, quiet->digest);
        assert_int_equal(end->row_count, quiet->step - step);
        for (size_t i = 0; i < end->row_count; i++) {
            const struct session_row *x = &end->rows[i], *y = &quiet->rows[step + i];
            assert_memory_equal(&x->loss, &y->loss, sizeof(x->loss));
            assert_memory_equal(&x->eval_loss, &y->eval_loss, sizeof(x->eval_loss));
        }
        free(end);
    }
    return quiet;
}

static void a_job_that_gets_no_better_ends_early_from_wherever_it_goes_on(void **state)
{
    struct ranks_result *quiet = check_restores(&stops, *state);
    assert_int_equal(quiet->step, 6);
    assert_int_equal(quiet->end, LOOP_DONE);
    free(quiet);
}

static void patience_by_steps_ends_a_job_too(void **state)
{
    (void)state;
    const char *const sets[] = { "train.stop={metric: loss, patience: 3, min_delta: 100}", NULL };
    struct ranks_options options = spread_of(&stops, 2);
    options.sets = sets;
    struct ranks_result *result = ranks_new_well(&options);
    assert_int_equal(result->step, 4);
    free(result);
}

static void spikes_are_left_out_from_wherever_it_goes_on(void **state)
{
    struct ranks_result *quiet = check_restores(&spikes, *state);
    const char *const sets[] = { "recovery={on_spike: skip, spike: 1000}", NULL };
    struct ranks_options options = spread_of(&spikes, 1);
    options.sets = sets;
    struct ranks_result *trained = ranks_new_well(&options); /* all steps */
    assert_int_equal(quiet->step, 24);
    assert_string_not_equal(trained->digest, quiet->digest);
    free(trained);
    free(quiet);
}

static void a_spike_may_end_the_job(void **state)
{
    (void)state;
    const char *const sets[] = { "recovery={on_spike: fail, spike: 1.03, spike_window: 4}", NULL };
    struct ranks_options options = spread_of(&spikes, 2);
    options.sets = sets;
    struct ranks_result *result = ranks_new(&options);
    assert_int_equal(result->st, ST_CONFIG);
    assert_non_null(strstr(result->reason.text, "1.03 times the median of the last 4"));
    assert_non_null(strstr(result->reason.text, "recovery.on_spike is fail"));
    free(result);
}

#define IN_FOLDER(test)                                                                            \
    cmocka_unit_test_setup_teardown(test, ranks_make_folder, ranks_remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_job_that_gets_no_better_ends_early_from_wherever_it_goes_on),
        cmocka_unit_test(patience_by_steps_ends_a_job_too),
        IN_FOLDER(spikes_are_left_out_from_wherever_it_goes_on),
        cmocka_unit_test(a_spike_may_end_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
