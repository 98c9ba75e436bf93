/* The update phase: rules, clipping, running statistics, refusals, and what a checkpoint sees. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/weights.h"
#include "common/rng.h"
#include "tests/test.h"
#include "tests/unit/trainer/training.h"

static void open_model(struct training *t, const char *arch, const struct optimizer_options *opt)
{
    struct training_options options = {
        .arch = arch, .side = 8, .hidden = 16, .micro = 4, .seed = 3, .optimizer = *opt
    };
    training_open(t, &options);
}

/* A summed vector of plausible numbers with the given targets and micro-batches. */
static void fill_sum(struct training *t, float targets, float micro)
{
    for (size_t i = 0; i < t->layout.count; i++)
        t->sum[i] = rng_uniform(rng_words(1, (uint32_t)i, 0, 0, 0).word[0]) - 0.3f;
    t->sum[t->layout.loss_at] = 3 * targets;
    t->sum[t->layout.targets_at] = targets;
    t->sum[t->layout.micro_at] = micro;
}

static double norm_of(const struct training *t, double targets)
{
    double square = 0;
    for (size_t i = 0; i < t->layout.param_count; i++)
        square += (double)t->sum[i] * (double)t->sum[i];
    return sqrt(square) / targets;
}

static void near(float ours, double wanted)
{
    if (fabs((double)ours - wanted) > 2e-6 * (fabs(wanted) + 0.01))
        fail_msg("%.9g, wanted %.9g", (double)ours, wanted);
}

static enum status update_of(struct training *t, double lr, uint64_t number,
                             struct optimizer_report *out)
{
    struct optimizer_step step = { .lr = lr, .update = number, .loss_scale = 1 };
    return optimizer_update(t->optimizer, t->sum, &step, t->stream, out);
}

static void sgd_case(const struct optimizer_options *options, uint64_t update)
{
    struct training t;
    open_model(&t, "mlp", options);
    fill_sum(&t, 8, 2);
    size_t count = t.layout.param_count;
    float *params = optimizer_params(t.optimizer);
    float *moment = optimizer_buffer(t.optimizer, "momentum");
    double *wanted = malloc(count * sizeof(*wanted));
    assert_non_null(wanted);
    assert_int_equal(moment != NULL, options->momentum != 0);
    double scale = 1.0 / 8;
    if (options->clip_norm > 0)
        scale *= (double)options->clip_norm / (norm_of(&t, 8) + 1e-6);
    for (size_t i = 0; i < count; i++) {
        if (moment != NULL)
            moment[i] = update == 1 ? 0 : 0.25f * (float)(i % 3);
        double g = (double)t.sum[i] * scale + (double)options->weight_decay * (double)params[i];
        double m = moment != NULL ? (double)moment[i] : 0;
        m = (double)options->momentum * m + g;
        g = options->nesterov ? g + (double)options->momentum * m : m;
        wanted[i] = (double)params[i] - 0.1 * g;
    }
    struct optimizer_report report;
    assert_int_equal(update_of(&t, 0.1, update, &report), ST_OK);
    for (size_t i = 0; i < count; i++)
        near(params[i], wanted[i]);
    assert_true(fabs(report.loss - 3) < 1e-6);
    assert_true(fabs(report.grad_norm / norm_of(&t, 8) - 1) < 1e-9);
    assert_true(report.targets == 8);
    free(wanted);
    training_close(&t);
}

static void sgd_follows_pytorch_in_all_its_forms(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_SGD };
    sgd_case(&options, 1);
    options.weight_decay = 5e-4f;
    sgd_case(&options, 2);
    options.momentum = 0.9f;
    sgd_case(&options, 1);
    sgd_case(&options, 7);
    options.nesterov = true;
    sgd_case(&options, 7);
    options.clip_norm = 0.5f;
    sgd_case(&options, 7);
}

static void adamw_follows_pytorch(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_ADAMW,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.999f,
                                         .eps = 1e-8f,
                                         .weight_decay = 0.01f };
    struct training t;
    open_model(&t, "mlp", &options);
    fill_sum(&t, 8, 1);
    size_t count = t.layout.param_count;
    double *wanted = malloc(count * sizeof(*wanted));
    assert_non_null(wanted);
    float *params = optimizer_params(t.optimizer);
    for (size_t i = 0; i < count; i++)
        wanted[i] = (double)params[i];
    for (int step = 1; step <= 3; step++) { /* the same gradient: both averages are constant */
        struct optimizer_report report;
        assert_int_equal(update_of(&t, 0.01, (uint64_t)step, &report), ST_OK);
        for (size_t i = 0; i < count; i++) {
            double g = (double)t.sum[i] / 8;
            wanted[i] = wanted[i] * (1 - 0.01 * 0.01) - 0.01 * g / (fabs(g) + 1e-8);
            near(params[i], wanted[i]);
        }
    }
    free(wanted);
    training_close(&t);
}

static void running_statistics_move_by_a_tenth_to_the_mean_of_micro_batches(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_SGD };
    struct training t;
    open_model(&t, "resnet18", &options);
    fill_sum(&t, 12, 3);
    const float *stats = optimizer_stats(t.optimizer);
    assert_true(stats[0] == 0 && stats[64] == 1); /* bn1's first mean and variance */
    struct optimizer_report report;
    assert_int_equal(update_of(&t, 0.1, 1, &report), ST_OK);
    const float *sums = t.sum + t.layout.stat_at;
    for (size_t i = 0; i < 128; i++)
        near(stats[i], 0.9 * (i >= 64) + 0.1 * (double)sums[i] / 3);
    training_close(&t);
}

static void refuse(struct training *t, enum status wanted)
{
    size_t bytes = t->layout.param_count * sizeof(float);
    float *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, optimizer_params(t->optimizer), bytes);
    struct optimizer_report report = { 0 };
    assert_int_equal(update_of(t, 0.1, 1, &report), wanted);
    assert_memory_equal(before, optimizer_params(t->optimizer), bytes);
    const float *moment = optimizer_buffer(t->optimizer, "momentum");
    for (size_t i = 0; i < t->layout.param_count; i++)
        assert_true(moment[i] == 0);
    free(before);
}

static void a_step_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_SGD, .momentum = 0.9f };
    struct training t;
    open_model(&t, "mlp", &options);
    const float bad[] = { NAN, INFINITY, -INFINITY };
    for (size_t i = 0; i < 3; i++) {
        fill_sum(&t, 8, 2);
        t.sum[t.layout.loss_at] = bad[i];
        refuse(&t, ST_NUMERIC);
        fill_sum(&t, 8, 2);
        t.sum[t.layout.param_count - 1] = bad[i];
        refuse(&t, ST_NUMERIC);
    }
    fill_sum(&t, 0, 2);
    t.sum[t.layout.loss_at] = 0;
    refuse(&t, ST_INVALID);
    fill_sum(&t, 8, 2);
    t.sum[t.layout.targets_at] = NAN;
    refuse(&t, ST_INVALID);
    training_close(&t);
}

static void what_does_not_decay_is_named_by_kind(void **state)
{
    (void)state;
    static const enum jobspec_optimizer kinds[] = { JOBSPEC_OPTIMIZERS(JOBSPEC_WORD_NAME) };
    const unsigned count = sizeof(kinds) / sizeof(kinds[0]);
    for (unsigned at = 0; at < 8 * count; at++) {
        const unsigned no_decay = at / count;
        struct optimizer_options options = { .kind = kinds[at % count],
                                             .beta1 = 0.9f,
                                             .beta2 = 0.99f,
                                             .eps = 1e-8f,
                                             .weight_decay = 0.5f,
                                             .no_decay = no_decay };
        struct training t;
        struct training_options gpt2 = { .arch = "gpt2",
                                         .layers = 1,
                                         .heads = 2,
                                         .embed = 16,
                                         .context = 4,
                                         .vocab = 13,
                                         .micro = 2,
                                         .seed = 3,
                                         .optimizer = options };
        training_open(&t, &gpt2);
        memset(t.sum, 0, t.layout.count * sizeof(float)); /* no gradient: only decay moves */
        t.sum[t.layout.targets_at] = t.sum[t.layout.micro_at] = 1;
        float *params = optimizer_params(t.optimizer);
        for (size_t i = 0; i < t.layout.param_count; i++)
            params[i] = 1;
        struct optimizer_report report;
        assert_int_equal(update_of(&t, 0.1, 1, &report), ST_OK);
        for (int p = 0; p < t.tape->param_count; p++) {
            const struct tape_tensor *tensor = &t.tape->params[p];
            const bool lamb = options.kind == JOBSPEC_OPTIMIZER_LAMB; /* its ratio is 1 / 0.5 */
            float wanted = 1.0f;
            if (((unsigned)tensor->kind & no_decay) == 0)
                wanted = 1 - 0.1f * (lamb ? 1.0f : 0.5f);
            for (size_t i = 0; i < tensor->count; i++)
                near(params[tensor->offset + i], (double)wanted);
        }
        training_close(&t);
    }
}

static void the_average_begins_with_the_weights_and_follows_them(void **state)
{
    (void)state;
    static const enum jobspec_optimizer kinds[] = { JOBSPEC_OPTIMIZERS(JOBSPEC_WORD_NAME) };
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        const struct optimizer_options options = {
            .kind = kinds[k], .beta1 = 0.9f, .beta2 = 0.99f, .eps = 1e-8f, .ema = 0.75
        };
        struct training t;
        open_model(&t, "mlp", &options);
        const size_t count = t.layout.param_count;
        const float *params = optimizer_params(t.optimizer), *ema = optimizer_ema(t.optimizer);
        double *wanted = malloc(count * sizeof(*wanted));
        assert_non_null(wanted);
        assert_ptr_equal(ema, optimizer_buffer(t.optimizer, "ema"));
        assert_int_equal(optimizer_begin(t.optimizer, t.stream), ST_OK);
        assert_memory_equal(ema, params, count * sizeof(*ema));
        for (size_t i = 0; i < count; i++)
            wanted[i] = (double)ema[i];
        for (uint64_t step = 1; step <= 3; step++) {
            struct optimizer_report report;
            fill_sum(&t, 8, 2);
            assert_int_equal(update_of(&t, 0.1, step, &report), ST_OK);
            for (size_t i = 0; i < count; i++) {
                wanted[i] += 0.25 * ((double)params[i] - wanted[i]);
                near(ema[i], wanted[i]);
            }
        }
        free(wanted);
        training_close(&t);
    }
}

static void the_loss_scale_divides_the_gradient(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_SGD, .clip_norm = 0.5f };
    struct training plain;
    struct training scaled;
    open_model(&plain, "mlp", &options);
    open_model(&scaled, "mlp", &options);
    fill_sum(&plain, 8, 2);
    fill_sum(&scaled, 8, 2);
    for (size_t i = 0; i < scaled.layout.param_count; i++)
        scaled.sum[i] *= 4096;
    struct optimizer_report report;
    struct optimizer_report scaled_report;
    struct optimizer_step step = { .lr = 0.1, .update = 1, .loss_scale = 4096 };
    assert_int_equal(update_of(&plain, 0.1, 1, &report), ST_OK);
    assert_int_equal(
        optimizer_update(scaled.optimizer, scaled.sum, &step, scaled.stream, &scaled_report),
        ST_OK);
    assert_true(report.loss == scaled_report.loss);
    assert_true(report.grad_norm == scaled_report.grad_norm);
    assert_memory_equal(optimizer_params(plain.optimizer), optimizer_params(scaled.optimizer),
                        plain.layout.param_count * sizeof(float));
    training_close(&plain);
    training_close(&scaled);
}

/* Beyond 2^24 a float32 has every second number only, or fewer. */
static void more_targets_than_float32_counts_are_counted_exactly(void **state)
{
    (void)state;
    static const struct {
        float summed;
        uint64_t known;
        double wanted;
    } cases[] = { { 100, 101, 100 },
                  { 16777215, 5, 16777215 },
                  { 16777216, 16777217, 16777217 },
                  { 33554432, 33554433, 33554433 },
                  { 33554432, 0, 33554432 } };
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_SGD };
    struct training t;
    open_model(&t, "mlp", &options);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct optimizer_step step = {
            .lr = 0.1, .update = 1, .loss_scale = 1, .targets = cases[i].known
        };
        struct optimizer_report report = { 0 };
        fill_sum(&t, 8, 2);
        t.sum[t.layout.targets_at] = cases[i].summed;
        t.sum[t.layout.loss_at] = 1000;
        assert_int_equal(optimizer_update(t.optimizer, t.sum, &step, t.stream, &report), ST_OK);
        assert_true(report.targets == cases[i].wanted);
        assert_true(report.loss == 1000 / cases[i].wanted);
    }
    training_close(&t);
}

static void an_overflow_is_told_and_changes_nothing(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_SGD, .momentum = 0.9f };
    struct training t;
    open_model(&t, "mlp", &options);
    size_t bytes = t.layout.param_count * sizeof(float);
    float *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, optimizer_params(t.optimizer), bytes);
    struct optimizer_step step = {
        .lr = 0.1, .update = 1, .loss_scale = 65536, .may_overflow = true
    };
    struct optimizer_report report = { 0 };
    fill_sum(&t, 8, 2);
    t.sum[5] = INFINITY;
    assert_int_equal(optimizer_update(t.optimizer, t.sum, &step, t.stream, &report), ST_OK);
    assert_true(report.overflow);
    assert_memory_equal(before, optimizer_params(t.optimizer), bytes);
    t.sum[t.layout.loss_at] = NAN; /* not the scale's fault */
    assert_int_equal(optimizer_update(t.optimizer, t.sum, &step, t.stream, &report), ST_NUMERIC);
    assert_memory_equal(before, optimizer_params(t.optimizer), bytes);
    fill_sum(&t, 8, 2);
    assert_int_equal(optimizer_update(t.optimizer, t.sum, &step, t.stream, &report), ST_OK);
    assert_false(report.overflow);
    free(before);
    training_close(&t);
}

static void a_checkpoint_sees_every_element_once_and_by_name(void **state)
{
    (void)state;
    struct optimizer_options options = { .kind = JOBSPEC_OPTIMIZER_ADAMW,
                                         .beta1 = 0.9f,
                                         .beta2 = 0.99f };
    struct training t;
    open_model(&t, "resnet18", &options);
    const struct ckpt_buffer *buffers;
    const struct ckpt_tensor *tensors;
    uint32_t buffer_count, tensor_count;
    optimizer_describe(t.optimizer, &buffers, &buffer_count, &tensors, &tensor_count);
    const char *const names[] = { "parameters", "adam.m", "adam.v", "statistics" };
    assert_int_equal(buffer_count, 4);
    assert_int_equal(tensor_count, 3 * 62 + 40);
    uint64_t covered[4] = { 0 };
    for (uint32_t i = 0; i < tensor_count; i++) {
        uint64_t count = 1;
        for (int32_t d = 0; d < tensors[i].ndim; d++)
            count *= tensors[i].dims[d];
        assert_int_equal(tensors[i].offset, covered[tensors[i].buffer]);
        covered[tensors[i].buffer] += count;
    }
    for (uint32_t b = 0; b < 4; b++) {
        assert_string_equal(buffers[b].name, names[b]);
        assert_int_equal(covered[b], buffers[b].count);
        assert_ptr_equal(buffers[b].data, optimizer_buffer(t.optimizer, names[b]));
    }
    assert_string_equal(tensors[62].name, "adam.m/conv1.weight");
    assert_null(optimizer_buffer(t.optimizer, "momentum"));
    training_close(&t);
}

/* The moments are as many as the job file's layer says, and have names of their own that an import
 * of weights passes over. */
static void moments_of_every_optimizer_are_known_by_name(void **state)
{
    (void)state;
    static const enum jobspec_optimizer kinds[] = { JOBSPEC_OPTIMIZERS(JOBSPEC_WORD_NAME) };
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        struct optimizer_options options = { .kind = kinds[k], .momentum = 0.9f };
        struct training t;
        open_model(&t, "mlp", &options);
        const struct ckpt_buffer *buffers;
        const struct ckpt_tensor *tensors;
        uint32_t buffer_count, tensor_count, moments = 0;
        optimizer_describe(t.optimizer, &buffers, &buffer_count, &tensors, &tensor_count);
        for (uint32_t b = 0; b < buffer_count; b++) {
            const bool moment = optimizer_buffer_kind(t.optimizer, b) == OPTIMIZER_MOMENT;
            moments += moment;
            for (uint32_t other = 0; other < b; other++)
                assert_string_not_equal(buffers[b].name, buffers[other].name);
            for (uint32_t i = 0; i < tensor_count; i++) {
                if (tensors[i].buffer == b)
                    assert_int_equal(weights_pass_over("mlp", tensors[i].name), moment);
            }
        }
        assert_int_equal(moments, jobspec_moments(kinds[k], 0.9));
        assert_true(moments <= JOBSPEC_MOMENTS_MAX);
        training_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_follows_pytorch_in_all_its_forms),
        cmocka_unit_test(adamw_follows_pytorch),
        cmocka_unit_test(running_statistics_move_by_a_tenth_to_the_mean_of_micro_batches),
        cmocka_unit_test(a_step_that_is_not_finite_changes_nothing),
        cmocka_unit_test(what_does_not_decay_is_named_by_kind),
        cmocka_unit_test(the_average_begins_with_the_weights_and_follows_them),
        cmocka_unit_test(the_loss_scale_divides_the_gradient),
        cmocka_unit_test(more_targets_than_float32_counts_are_counted_exactly),
        cmocka_unit_test(an_overflow_is_told_and_changes_nothing),
        cmocka_unit_test(a_checkpoint_sees_every_element_once_and_by_name),
        cmocka_unit_test(moments_of_every_optimizer_are_known_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
