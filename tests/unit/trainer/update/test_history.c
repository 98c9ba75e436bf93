/* What a job remembers of its losses and evaluations, and how checkpoints have it. */
#include <string.h>

#include "checkpoint/notes.h"
#include "tests/test.h"
#include "trainer/update/history.h"

/* The number of the first value after which the job ends; 0: none. */
static size_t ends_after(const struct history_options *options, const float *values, size_t count)
{
    struct loss_history h = { .losses = 0 };
    for (size_t i = 0; i < count; i++) {
        h.has_pending = true;
        h.pending = values[i];
        const bool ends = history_ends(options, &h);
        history_step(options, &h, NULL);
        assert_false(h.has_pending);
        assert_int_equal(history_ends(options, &h), ends); /* taken over, it says the same */
        if (ends)
            return i + 1;
    }
    return 0;
}

static void a_job_ends_after_its_patience_without_a_better_value(void **state)
{
    (void)state;
    static const float falls[] = { 5, 4, 4.5f, 3, 3.5f, 3.25f, 3, 2 };
    static const float rises[] = { 0.1f, 0.5f, 0.4f, 0.6f, 0.6f, 0.55f };
    struct history_options options = { .metric = JOBSPEC_METRIC_EVAL_LOSS, .patience = 2 };
    assert_int_equal(ends_after(&options, falls, 8), 6);
    options.patience = 3;
    assert_int_equal(ends_after(&options, falls, 8), 7); /* equal isn't better */
    options.patience = 4;
    assert_int_equal(ends_after(&options, falls, 8), 0);
    options.patience = 2;
    options.min_delta = 1.5f;
    assert_int_equal(ends_after(&options, falls, 8), 3);
    options = (struct history_options){ .metric = JOBSPEC_METRIC_EVAL_ACCURACY, .patience = 2 };
    assert_int_equal(ends_after(&options, rises, 6), 6);
    options.metric = JOBSPEC_METRIC_NONE;
    assert_int_equal(ends_after(&options, rises, 6), 0);
}

static void losses_count_by_steps(void **state)
{
    (void)state;
    const struct history_options options = { .metric = JOBSPEC_METRIC_LOSS, .patience = 2 };
    const float losses[] = { 3, 2, 2.5f };
    struct loss_history h = { .losses = 0 };
    for (size_t i = 0; i < 3; i++)
        history_step(&options, &h, &losses[i]);
    assert_false(history_ends(&options, &h));
    history_step(&options, &h, NULL); /* left out */
    assert_false(history_ends(&options, &h));
    history_step(&options, &h, &losses[2]);
    assert_true(history_ends(&options, &h));
}

static void a_spike_is_measured_by_the_median_of_the_newest_losses(void **state)
{
    (void)state;
    struct history_options options = { .on_spike = JOBSPEC_ON_SPIKE_SKIP, .spike = 2, .window = 3 };
    const float losses[] = { 9, 1, 4, 2, 100 };
    struct loss_history h = { .losses = 0 };
    for (size_t i = 0; i < 2; i++)
        history_step(&options, &h, &losses[i]);
    assert_true(history_loss_most(&options, &h) == 0); /* not so many yet */
    history_step(&options, &h, &losses[2]);
    assert_true(history_loss_most(&options, &h) == 8); /* 9 1 4 */
    history_step(&options, &h, &losses[3]);
    assert_true(history_loss_most(&options, &h) == 4); /* 2 1 4 */
    history_step(&options, &h, NULL);
    history_step(&options, &h, &losses[4]);
    assert_true(history_loss_most(&options, &h) == 8); /* 2 100 4 */
    options.window = 2;
    h = (struct loss_history){ .losses = 0 };
    history_step(&options, &h, &losses[1]);
    history_step(&options, &h, &losses[2]);
    assert_true(history_loss_most(&options, &h) == 5); /* between the two */
    options.on_spike = JOBSPEC_ON_SPIKE_NONE;
    assert_true(history_loss_most(&options, &h) == 0);
}

static void notes_are_the_whole_history(void **state)
{
    (void)state;
    const struct history_options options = { .metric = JOBSPEC_METRIC_LOSS,
                                             .patience = 100,
                                             .on_spike = JOBSPEC_ON_SPIKE_SKIP,
                                             .spike = 2,
                                             .window = JOBSPEC_SPIKE_WINDOW_MAX };
    uint64_t notes[HISTORY_NOTES_MAX], again[HISTORY_NOTES_MAX];
    struct loss_history h = { .losses = 0 };
    assert_true(history_is_kept(&options));
    assert_int_equal(history_notes(&options, &h, notes), 0);
    for (int i = 0; i < 150; i++) {
        const float loss = 3.0f + (float)(i * 7 % 11);
        history_step(&options, &h, &loss);
        const size_t count = history_notes(&options, &h, notes);
        assert_int_equal(count, 3 + (i < 63 ? i + 1 : 64));
        struct loss_history other = { .losses = 0 };
        for (size_t k = 0; k < count; k++) {
            assert_true(ckpt_is_note(notes[k]));
            assert_true(k == 0 || notes[k] > notes[k - 1]); /* as lists are: ascending */
            history_take(&other, notes[k]);
        }
        assert_int_equal(history_notes(&options, &other, again), count);
        assert_memory_equal(notes, again, count * sizeof(*notes));
        assert_int_equal(other.since, h.since);
        assert_true(other.best == h.best && other.losses == h.losses);
        assert_memory_equal(other.loss, h.loss, sizeof(h.loss));
    }
    const struct history_options none = { .metric = JOBSPEC_METRIC_NONE };
    assert_false(history_is_kept(&none));
    assert_int_equal(history_notes(&none, &h, notes), 0);
}

/* A reader of a list of skipped steps sees the steps alone. */
static void notes_are_no_steps(void **state)
{
    (void)state;
    static const uint64_t list[] = { CKPT_SKIPS_OLDER | 7, 100, 200, CKPT_SKIPS_NOTE | 5,
                                     CKPT_SKIPS_NOTE | UINT64_C(1) << 32 };
    const struct ckpt_scalars all = { .skip = list, .skip_count = 5 };
    const struct ckpt_scalars notes = { .skip = list + 3, .skip_count = 2 };
    const uint64_t *steps;
    uint64_t count;
    assert_int_equal(ckpt_skips_older(&all, &steps, &count), 7);
    assert_int_equal(count, 2);
    assert_ptr_equal(steps, list + 1);
    assert_int_equal(ckpt_skips_older(&notes, &steps, &count), 0);
    assert_int_equal(count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_ends_after_its_patience_without_a_better_value),
        cmocka_unit_test(losses_count_by_steps),
        cmocka_unit_test(a_spike_is_measured_by_the_median_of_the_newest_losses),
        cmocka_unit_test(notes_are_the_whole_history),
        cmocka_unit_test(notes_are_no_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
