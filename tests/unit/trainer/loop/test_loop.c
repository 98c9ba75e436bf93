/* The step loop: the same bits for every spread of lanes, over restores, skips and bad numbers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/unit/trainer/ranks_fixture.h"
#include "tests/unit/trainer/tiny_jobs.h"

static const struct ranks_job mlp = { tiny_mlp, { NULL } };
static const struct ranks_job resnet = { tiny_resnet, { NULL } };
static const struct ranks_job gpt2 = { tiny_gpt2, { NULL } };

/* Same bits in what was logged from row `from` of a on. */
static void same_rows(const struct ranks_result *a, size_t from, const struct ranks_result *b)
{
    assert_int_equal(a->row_count, from + b->row_count);
    for (size_t i = 0; i < b->row_count; i++) {
        const struct session_row *x = &a->rows[from + i];
        const struct session_row *y = &b->rows[i];
        assert_int_equal(x->step, y->step);
        assert_memory_equal(&x->loss, &y->loss, sizeof(x->loss));
        assert_memory_equal(&x->grad_norm, &y->grad_norm, sizeof(x->grad_norm));
        assert_memory_equal(&x->lr, &y->lr, sizeof(x->lr));
        assert_int_equal(x->has_eval, y->has_eval);
        assert_memory_equal(&x->eval_loss, &y->eval_loss, sizeof(x->eval_loss));
        assert_int_equal(x->eval_correct, y->eval_correct);
        assert_int_equal(x->eval_count, y->eval_count);
    }
}

struct spread {
    const char *lanes;
    uint32_t size;
    uint32_t shares[RANKS_MAX];
};

/* The first of a group of equal `lanes` is what the others are compared with. */
static void check_spreads(const struct ranks_job *job, const struct spread *spreads, size_t count,
                          const char *extra)
{
    struct ranks_result *reference = NULL;
    const char *lanes = "";
    for (size_t i = 0; i < count; i++) {
        const struct spread *s = &spreads[i];
        char set[64];
        (void)snprintf(set, sizeof(set), "train.lanes=%s", s->lanes);
        const char *sets[] = { set, extra, NULL };
        struct ranks_options options = { .job = job, .sets = sets, .size = s->size };
        memcpy(options.shares, s->shares, sizeof(options.shares));
        struct ranks_result *result = ranks_new_well(&options);
        if (strcmp(lanes, s->lanes) == 0) {
            assert_string_equal(result->digest, reference->digest);
            same_rows(reference, 0, result);
            free(result);
            continue;
        }
        if (reference != NULL)
            assert_string_not_equal(result->digest, reference->digest);
        free(reference);
        reference = result;
        lanes = s->lanes;
    }
    free(reference);
}

static void every_spread_of_lanes_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct spread spreads[] = {
        { "1", 1, { 1 } },       { "2", 1, { 2 } },          { "2", 2, { 1, 1 } },
        { "3", 1, { 3 } },       { "3", 2, { 2, 1 } },       { "3", 2, { 1, 2 } },
        { "3", 3, { 1, 1, 1 } }, { "4", 1, { 4 } },          { "4", 2, { 2, 2 } },
        { "4", 2, { 3, 1 } },    { "4", 3, { 1, 2, 1 } },    { "4", 4, { 1, 1, 1, 1 } },
        { "6", 1, { 6 } },       { "6", 4, { 1, 2, 2, 1 } }, { "6", 3, { 4, 1, 1 } },
        { "8", 1, { 8 } },       { "8", 4, { 3, 2, 1, 2 } }, { "8", 2, { 5, 3 } },
    };
    check_spreads(&mlp, spreads, sizeof(spreads) / sizeof(spreads[0]), "train.accumulate=1");
}

static void accumulation_within_a_lane_is_spread_alike(void **state)
{
    (void)state;
    static const struct spread spreads[] = {
        { "3", 1, { 3 } },
        { "3", 2, { 1, 2 } },
        { "3", 3, { 1, 1, 1 } },
    };
    check_spreads(&mlp, spreads, 3, "train.accumulate=4");
}

static void batch_statistics_of_a_resnet_are_spread_alike(void **state)
{
    (void)state;
    static const struct spread spreads[] = {
        { "3", 1, { 3 } },
        { "3", 2, { 2, 1 } },
        { "3", 3, { 1, 1, 1 } },
    };
    check_spreads(&resnet, spreads, 3, "train.accumulate=1");
}

static const struct spread few_spreads[] = {
    { "3", 1, { 3 } }, { "3", 2, { 2, 1 } }, { "3", 3, { 1, 1, 1 } },
    { "4", 1, { 4 } }, { "4", 2, { 1, 3 } }, { "4", 4, { 1, 1, 1, 1 } },
};

static void a_gpt2_is_spread_alike(void **state)
{
    (void)state;
    check_spreads(&gpt2, few_spreads, 6, "train.accumulate=1");
    check_spreads(&gpt2, few_spreads, 3, "train.accumulate=2");
}

static void half_precision_is_spread_alike(void **state)
{
    (void)state;
    check_spreads(&gpt2, few_spreads, 6, "train.precision=bf16");
    check_spreads(&resnet, few_spreads, 3, "train.precision=bf16");
}

static void the_loss_scale_and_where_halves_are_used_are_spread_alike(void **state)
{
    (void)state;
    static const char *const extras[] = { "train.amp=O2", "train.loss_scale=1024",
                                          "train.loss_scale=dynamic" };
    for (size_t i = 0; i < 3; i++) {
        const char *const sets[] = { "train.lanes=3", "train.precision=bf16", extras[i], NULL };
        struct ranks_options options = { .job = &gpt2, .sets = sets, .size = 1, .shares = { 3 } };
        struct ranks_result *one = ranks_new_well(&options);
        options.size = 2;
        options.shares[0] = 2;
        options.shares[1] = 1;
        struct ranks_result *two = ranks_new_well(&options);
        assert_string_equal(one->digest, two->digest);
        same_rows(one, 0, two);
        free(one);
        free(two);
    }
}

/* Steps whose gradient overflowed are left out, the scale is halved until none does; all of it is
 * the same for every spread and after a restore. */
static void a_gradient_that_overflows_is_left_out(void **state)
{
    const char *const sets[] = { "train.lanes=3", "train.precision=bf16",
                                 "train.loss_scale=dynamic", "train.duration=12 steps", NULL };
    struct ranks_options options = { .job = &gpt2, .sets = sets, .size = 1, .shares = { 3 } };
    options.loss_scale = 0x1p126;
    struct ranks_result *one = ranks_new_well(&options);
    size_t overflows = 0;
    for (size_t i = 0; i < one->row_count; i++) {
        assert_true(isfinite(one->rows[i].loss) != 0);
        overflows += isfinite(one->rows[i].grad_norm) ? 0 : 1;
    }
    assert_in_range(overflows, 1, 11);
    assert_true(isfinite(one->rows[0].grad_norm) == 0);
    assert_true(isfinite(one->rows[11].grad_norm) != 0);
    options.size = 2;
    options.shares[0] = 1;
    options.shares[1] = 2;
    options.stop_at = 1;
    char dir[256];
    (void)snprintf(dir, sizeof(dir), "%s/step", (char *)*state);
    options.save = dir;
    free(ranks_new_well(&options));
    options.stop_at = 0;
    options.save = NULL;
    options.restore = dir;
    options.restore_step = 1;
    options.loss_scale = 0; /* the checkpoint's */
    struct ranks_result *two = ranks_new_well(&options);
    assert_string_equal(one->digest, two->digest);
    same_rows(one, 1, two);
    free(one);
    free(two);
}

static void evaluation_and_interval_leave_the_state_alone(void **state)
{
    (void)state;
    const char *const rarely[] = { "eval.every=1000 steps", NULL };
    const char *const often[] = { "eval.every=1 steps", NULL };
    struct ranks_options options = { .job = &mlp, .sets = rarely, .size = 1, .shares = { 8 } };
    struct ranks_result *a = ranks_new_well(&options);
    options.sets = often;
    struct ranks_result *b = ranks_new_well(&options);
    assert_string_equal(a->digest, b->digest);
    int evaluations = 0;
    for (size_t i = 0; i < b->row_count; i++)
        evaluations += b->rows[i].has_eval;
    assert_int_equal(evaluations, 9);
    assert_true(a->rows[8].has_eval);
    assert_false(a->rows[3].has_eval);
    assert_int_equal(a->rows[8].eval_count, 61);
    free(a);
    free(b);
}

static void a_restored_job_ends_as_if_nothing_had_happened(void **state)
{
    static const struct spread first = { "8", 2, { 5, 3 } };
    static const struct spread second[] = { { "8", 1, { 8 } }, { "8", 3, { 2, 5, 1 } } };
    struct ranks_options options = { .job = &mlp, .size = 1, .shares = { 8 } };
    struct ranks_result *quiet = ranks_new_well(&options);
    for (uint64_t step = 1; step < 9; step += 3) {
        char dir[256];
        (void)snprintf(dir, sizeof(dir), "%s/step-%d", (char *)*state, (int)step);
        struct ranks_options before = {
            .job = &mlp, .size = first.size, .stop_at = step, .save = dir
        };
        memcpy(before.shares, first.shares, sizeof(before.shares));
        free(ranks_new_well(&before));
        for (size_t i = 0; i < 2; i++) {
            struct ranks_options after = {
                .job = &mlp, .size = second[i].size, .restore = dir, .restore_step = step
            };
            memcpy(after.shares, second[i].shares, sizeof(after.shares));
            struct ranks_result *end = ranks_new_well(&after);
            assert_string_equal(end->digest, quiet->digest);
            same_rows(quiet, step, end);
            free(end);
        }
    }
    free(quiet);
}

static void a_checkpoint_of_another_step_or_job_is_refused(void **state)
{
    char dir[256];
    (void)snprintf(dir, sizeof(dir), "%s/step", (char *)*state);
    struct ranks_options before = {
        .job = &mlp, .size = 1, .shares = { 8 }, .stop_at = 2, .save = dir
    };
    free(ranks_new_well(&before));
    static const char *const sets[][2] = { { "train.seed=6", NULL },
                                           { "model.hidden=41", NULL },
                                           { "train.optimizer.momentum=0", NULL } };
    for (size_t i = 0; i < 4; i++) {
        struct ranks_options after = { .job = &mlp,
                                       .sets = i < 3 ? sets[i] : NULL,
                                       .size = 1,
                                       .shares = { 8 },
                                       .restore = dir,
                                       .restore_step = i < 3 ? 2 : 3 };
        struct ranks_result *result = ranks_new(&after);
        assert_int_equal(result->st, ST_CORRUPT);
        assert_non_null(strstr(result->reason.text, dir));
        free(result);
    }
}

static void a_changed_byte_of_a_checkpoint_is_noticed(void **state)
{
    char dir[256];
    (void)snprintf(dir, sizeof(dir), "%s/step", (char *)*state);
    struct ranks_options before = {
        .job = &mlp, .size = 2, .shares = { 4, 4 }, .stop_at = 2, .save = dir
    };
    free(ranks_new_well(&before));
    char path[320];
    (void)snprintf(path, sizeof(path), "%s/shard-00001-of-00002.cairn", dir);
    FILE *file = fopen(path, "r+be");
    assert_non_null(file);
    assert_int_equal(fseek(file, 9000, SEEK_SET), 0);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, 9000, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 4, file), byte ^ 4);
    assert_int_equal(fclose(file), 0);
    struct ranks_options after = {
        .job = &mlp, .size = 1, .shares = { 8 }, .restore = dir, .restore_step = 2
    };
    struct ranks_result *result = ranks_new(&after);
    assert_int_equal(status_scope(result->st), SCOPE_CHECKPOINT);
    free(result);
}

static void a_skipped_step_advances_the_count_and_nothing_else(void **state)
{
    (void)state;
    static const uint64_t skip[] = { 3, 7 };
    struct ranks_options options = { .job = &mlp, .size = 1, .shares = { 8 }, .stop_at = 3 };
    struct ranks_result *before = ranks_new_well(&options);
    options.skip = skip;
    options.skip_count = 2;
    struct ranks_result *same = ranks_new_well(&options);
    assert_string_equal(before->digest, same->digest); /* skips to come are no state */
    options.stop_at = 0;
    struct ranks_result *one = ranks_new_well(&options);
    assert_int_equal(one->row_count, 9);
    for (size_t i = 0; i < 9; i++)
        assert_int_equal(isnan(one->rows[i].loss) != 0, i == 3 || i == 7);
    assert_memory_equal(&one->rows[2].loss, &before->rows[2].loss, sizeof(float));
    options.size = 3;
    memcpy(options.shares, (uint32_t[]){ 3, 1, 4 }, 3 * sizeof(uint32_t));
    struct ranks_result *three = ranks_new_well(&options);
    assert_string_equal(one->digest, three->digest);
    free(before);
    free(same);
    free(one);
    free(three);
}

static void a_loss_that_is_not_finite_stops_before_the_update(void **state)
{
    (void)state;
    const char *const wild[] = { "train.optimizer.lr=1000", "train.optimizer.weight_decay=10",
                                 "train.duration=60 steps", NULL };
    struct ranks_options options = { .job = &mlp, .sets = wild, .size = 2, .shares = { 4, 4 } };
    struct ranks_result *result = ranks_new(&options);
    assert_int_equal(result->st, ST_NUMERIC);
    assert_non_null(strstr(result->reason.text, "not finite; lower the learning rate"));
    assert_in_range(result->step, 1, 59);
    options.stop_at = result->step; /* the state is that of the step before */
    struct ranks_result *before = ranks_new_well(&options);
    assert_string_equal(before->digest, result->digest);
    free(before);
    free(result);
}

/* Alone, so that no peer's end is noticed in its place. */
static void a_generation_that_is_over_ends_between_micro_batches(void **state)
{
    (void)state;
    const char *const often[] = { "eval.every=1 steps", NULL };
    const struct ranks_options until = {
        .job = &mlp, .sets = often, .size = 1, .shares = { 8 }, .stop_at = 3
    };
    struct ranks_options over = until;
    over.stop_at = 0;
    over.over_at = 3;
    struct ranks_result *a = ranks_new_well(&until);
    struct ranks_result *b = ranks_new_well(&over);
    assert_int_equal(a->end, LOOP_DONE);
    assert_int_equal(b->end, LOOP_OVER);
    assert_int_equal(b->step, 3);
    assert_int_equal(b->evaluation_st, ST_STALE);
    assert_string_equal(a->digest, b->digest);
    free(a);
    free(b);
}

static void a_batch_larger_than_the_data_is_the_users_mistake(void **state)
{
    (void)state;
    struct jobspec job = { 0 };
    job.train.global_batch = 24;
    job.train.lanes = 8;
    job.train.micro_batch = 3;
    job.train.accumulate = 1;
    struct settings settings;
    struct reason reason;
    assert_int_equal(settings_derive(&job, 23, &settings, &reason), ST_CONFIG);
    assert_string_equal(reason.text, "data.train: holds 23 samples, fewer than train.global_batch "
                                     "(24); make the batch smaller");
}

static void durations_become_steps_of_the_data_at_hand(void **state)
{
    (void)state;
    struct jobspec job = { .eval_every = { JOBSPEC_EPOCHS, 0.01 } };
    job.train.global_batch = 24;
    job.train.lanes = 8;
    job.train.micro_batch = 3;
    job.train.accumulate = 1;
    job.train.duration = (struct jobspec_duration){ JOBSPEC_EPOCHS, 2.5 };
    job.checkpoint.every = (struct jobspec_duration){ JOBSPEC_STEPS, 7 };
    job.train.optimizer.name = JOBSPEC_OPTIMIZER_SGD;
    job.train.schedule.name = JOBSPEC_SCHEDULE_CONSTANT;
    job.train.precision = JOBSPEC_PRECISION_FP32;
    struct settings settings;
    struct reason reason;
    assert_int_equal(settings_derive(&job, 24 * 10 + 23, &settings, &reason), ST_OK);
    assert_int_equal(settings.steps_per_epoch, 10);
    assert_int_equal(settings.total_steps, 25);
    assert_int_equal(settings.eval_every, 1);
    assert_int_equal(settings.save_every, 7);
    assert_int_equal(settings.schedule.warmup, 0);
    job.checkpoint.every = (struct jobspec_duration){ JOBSPEC_MS, 1000 }; /* announced then */
    assert_int_equal(settings_derive(&job, 240, &settings, &reason), ST_OK);
    assert_int_equal(settings.save_every, 0);
    job.eval_every = (struct jobspec_duration){ JOBSPEC_MS, 1000 };
    assert_int_equal(settings_derive(&job, 240, &settings, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, "eval.every"));
}

#define IN_FOLDER(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, ranks_make_folder, ranks_remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spread_of_lanes_gives_the_same_bits),
        cmocka_unit_test(accumulation_within_a_lane_is_spread_alike),
        cmocka_unit_test(batch_statistics_of_a_resnet_are_spread_alike),
        cmocka_unit_test(a_gpt2_is_spread_alike),
        cmocka_unit_test(half_precision_is_spread_alike),
        cmocka_unit_test(the_loss_scale_and_where_halves_are_used_are_spread_alike),
        IN_FOLDER(a_gradient_that_overflows_is_left_out),
        cmocka_unit_test(evaluation_and_interval_leave_the_state_alone),
        IN_FOLDER(a_restored_job_ends_as_if_nothing_had_happened),
        IN_FOLDER(a_checkpoint_of_another_step_or_job_is_refused),
        IN_FOLDER(a_changed_byte_of_a_checkpoint_is_noticed),
        cmocka_unit_test(a_skipped_step_advances_the_count_and_nothing_else),
        cmocka_unit_test(a_loss_that_is_not_finite_stops_before_the_update),
        cmocka_unit_test(a_generation_that_is_over_ends_between_micro_batches),
        cmocka_unit_test(a_batch_larger_than_the_data_is_the_users_mistake),
        cmocka_unit_test(durations_become_steps_of_the_data_at_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
