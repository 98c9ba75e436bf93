/*
 * A prepared tape: gradients against finite differences, memory by lifetime, repeatable bits, the
 * order in which gradients become final, and no allocation in a step.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/counted_allocations.h"
#include "tests/unit/trainer/training.h"

/* ---- fixtures ---- */

struct model_case {
    const char *arch;
    int64_t side, micro; /* text models: side is the context */
    float dropout;
    enum math math;
    enum amp amp;
};

/* In float32, those small enough for differences first; then in half. */
static const struct model_case model_cases[] = {
    { .arch = "mlp", .side = 8, .micro = 4 },
    { .arch = "lenet", .side = 12, .micro = 5 },
    { .arch = "resnet18", .side = 8, .micro = 4 },
    { .arch = "gpt2", .side = 12, .micro = 3 },
    { .arch = "gpt2", .side = 12, .micro = 3, .dropout = 0.25f },
    { .arch = "resnet50", .side = 16, .micro = 2 },
    { .arch = "mlp", .side = 8, .micro = 4, .math = MATH_BF16 },
    { .arch = "resnet18", .side = 8, .micro = 4, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .micro = 3, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .micro = 3, .dropout = 0.25f, .math = MATH_BF16 },
    { .arch = "gpt2", .side = 12, .micro = 3, .math = MATH_BF16, .amp = AMP_O2 },
};
#define SMOOTH_CASES 5
#define MODEL_CASES  (sizeof(model_cases) / sizeof(model_cases[0]))

static void open_case(struct training *t, const struct model_case *model, bool poison)
{
    struct training_options options = {
        .arch = model->arch,
        .side = model->side,
        .hidden = 24,
        .layers = 2,
        .heads = 2,
        .embed = 32,
        .context = model->side,
        .vocab = 41,
        .dropout = model->dropout,
        .math = model->math,
        .amp = model->amp,
        .micro = model->micro,
        .seed = 11,
        .poison = poison,
        .optimizer = { .kind = JOBSPEC_OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 5e-4f },
    };
    training_open(t, &options);
}

/* ---- gradients ---- */

static double loss_of(struct training *t)
{
    assert_int_equal(plan_refresh(t->plan, optimizer_params(t->optimizer)), ST_OK);
    struct plan_call call = { .inputs = { t->x, t->labels },
                              .draw = t->draw,
                              .params = optimizer_params(t->optimizer),
                              .lane = t->sum };
    assert_int_equal(plan_forward(t->plan, &call), ST_OK);
    return (double)t->sum[t->layout.loss_at];
}

/* Slope of the loss along direction, by a fourth-order central difference. */
static double slope(struct training *t, const struct tape_tensor *tensor, const float *direction,
                    double step)
{
    float *param = optimizer_params(t->optimizer) + tensor->offset;
    float *keep = malloc(tensor->count * sizeof(*keep));
    assert_non_null(keep);
    memcpy(keep, param, tensor->count * sizeof(*keep));
    const double at[4] = { -2, -1, 1, 2 };
    const double weight[4] = { 1.0 / 12, -2.0 / 3, 2.0 / 3, -1.0 / 12 };
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < tensor->count; i++)
            param[i] = (float)((double)keep[i] + at[k] * step * (double)direction[i]);
        sum += weight[k] * loss_of(t);
    }
    memcpy(param, keep, tensor->count * sizeof(*keep));
    free(keep);
    return sum / step;
}

/* Along the gradient of each tensor, the slope is the gradient's length. Returns how many were
 * compared: a bias before a norm has no effect and no direction. */
static int check_gradients(struct training *t, double tolerance)
{
    int compared = 0;
    double most = t->tokens != NULL ? 0.03 : 2e-3; /* text models have no kinks */
    training_fill(t, 0);
    training_micro(t, false);
    assert_int_equal(lane_add_ties(t->tape, t->table, t->backend, t->lane, NULL, 0,
                                   t->tape->param_elements, t->stream),
                     ST_OK);
    for (int i = 0; i < t->tape->param_count; i++) {
        const struct tape_tensor *tensor = &t->tape->params[i];
        const float *gradient = t->lane + tensor->offset;
        double square = 0;
        for (size_t e = 0; e < tensor->count; e++)
            square += (double)gradient[e] * (double)gradient[e];
        double length = sqrt(square);
        if (length < 1e-3)
            continue;
        float *direction = malloc(tensor->count * sizeof(*direction));
        assert_non_null(direction);
        for (size_t e = 0; e < tensor->count; e++)
            direction[e] = (float)((double)gradient[e] / length);
        double found = slope(t, tensor, direction, fmin(most, 0.01 / length));
        if (fabs(found - length) > tolerance * length)
            fail_msg("%s: slope %.6g, gradient %.6g", tensor->name, found, length);
        free(direction);
        compared++;
    }
    return compared;
}

static void gradients_of_whole_models_agree_with_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < SMOOTH_CASES; i++) {
        struct training t;
        open_case(&t, &model_cases[i], false);
        assert_int_equal(check_gradients(&t, 0.03), t.tape->param_count);
        training_close(&t);
    }
}

/* A value that three nodes read: a convolution and two shortcuts. */
static struct tape *shared_value(void)
{
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    struct tape_conv2d conv = { .out = 5, .kernel = 3, .stride = 1, .pad = 1, .bias = true };
    int images = tape_input(tape, DTYPE_F32, 4, (int64_t[]){ 1, 1, 8, 8 });
    int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    int x = tape_conv2d(tape, "a", images, &conv);
    int y = tape_batch_norm(tape, "b", tape_conv2d(tape, "c", x, &conv), x, true);
    int z = tape_batch_norm(tape, "d", tape_conv2d(tape, "e", y, &conv), x, false);
    int pooled = tape_global_avg_pool(tape, tape_max_pool(tape, z, 3, 2, 1));
    (void)tape_loss(
        tape, tape_linear(tape, "f", pooled, &(struct tape_linear){ .out = 10, .bias = true }),
        labels, 0.1f);
    assert_int_equal(tape_finish(tape), ST_OK);
    return tape;
}

static void a_value_read_three_times_gets_the_sum_of_three_gradients(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &model_cases[0], false);
    struct tape *own = t.tape;
    struct plan *own_plan = t.plan;
    struct optimizer *own_optimizer = t.optimizer;
    t.tape = shared_value();
    struct plan_options options = { .table = t.table,
                                    .backend = t.backend,
                                    .stream = t.stream,
                                    .batch = t.options.micro,
                                    .training = true,
                                    .poison = true };
    assert_int_equal(plan_new(t.tape, &options, &t.plan), ST_OK);
    struct optimizer_options sgd = { .kind = JOBSPEC_OPTIMIZER_SGD };
    assert_int_equal(optimizer_new(&sgd, t.tape, NULL, t.table, t.backend, &t.optimizer), ST_OK);
    initial_values_params(t.tape, 5, optimizer_params(t.optimizer));
    assert_int_equal(plan_refresh(t.plan, optimizer_params(t.optimizer)), ST_OK);
    t.layout = lane_layout(t.tape);
    assert_true(t.layout.count < lane_layout(own).count); /* the buffers are large enough */
    assert_int_equal(check_gradients(&t, 0.03), t.tape->param_count - 2); /* c.bias, e.bias */
    plan_free(t.plan);
    optimizer_free(t.optimizer);
    tape_free(t.tape);
    t.tape = own;
    t.plan = own_plan;
    t.optimizer = own_optimizer;
    training_close(&t);
}

/* ---- bits ---- */

struct outcome {
    float *params, *lane;
    size_t param_bytes, lane_bytes;
    double eval;
};

static struct outcome three_steps(const struct model_case *model, bool poison)
{
    struct training t;
    open_case(&t, model, poison);
    for (uint32_t step = 0; step < 3; step++) {
        uint32_t first = step * 4 * (uint32_t)model->micro;
        (void)training_step(&t, first, 2, 2, 0.05, step + 1);
    }
    struct outcome out = { .param_bytes = t.layout.param_count * sizeof(float),
                           .lane_bytes = t.layout.count * sizeof(float),
                           .eval = training_eval(&t) };
    out.params = malloc(out.param_bytes);
    out.lane = malloc(out.lane_bytes);
    assert_non_null(out.params);
    assert_non_null(out.lane);
    memcpy(out.params, optimizer_params(t.optimizer), out.param_bytes);
    memcpy(out.lane, t.lane, out.lane_bytes);
    training_close(&t);
    return out;
}

static void same_bits(const struct model_case *model, bool poison_left, bool poison_right)
{
    struct outcome left = three_steps(model, poison_left);
    struct outcome right = three_steps(model, poison_right);
    assert_memory_equal(left.params, right.params, left.param_bytes);
    assert_memory_equal(left.lane, right.lane, left.lane_bytes);
    assert_true(left.eval == right.eval);
    for (size_t i = 0; i < left.lane_bytes / sizeof(float); i++)
        assert_true(isfinite(left.lane[i]));
    free(left.params);
    free(left.lane);
    free(right.params);
    free(right.lane);
}

static void two_runs_give_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++)
        same_bits(&model_cases[i], false, false);
}

static void memory_outside_its_lifetime_is_never_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++)
        same_bits(&model_cases[i], false, true);
}

static void accumulated_micro_batches_are_the_sum_of_single_ones(void **state)
{
    (void)state;
    for (size_t m = 0; m < MODEL_CASES; m++) {
        struct training t;
        open_case(&t, &model_cases[m], false);
        training_fill(&t, 0);
        training_micro(&t, false);
        training_micro(&t, true);
        memcpy(t.sum, t.lane, t.layout.count * sizeof(float));
        training_micro(&t, false);
        for (size_t i = 0; i < t.layout.count; i++) {
            /* Exact, so that the sum of equals is; but text ops add row by row. */
            float wanted = 2 * t.lane[i];
            float allowed = t.tokens != NULL ? 1e-5f * fabsf(wanted) + 1e-6f : 0;
            if (!(fabsf(t.sum[i] - wanted) <= allowed))
                fail_msg("%s: element %zu: %.9g, wanted %.9g", model_cases[m].arch, i,
                         (double)t.sum[i], (double)wanted);
        }
        training_close(&t);
    }
}

/* ---- order of readiness ---- */

struct final_log {
    const struct training *t;
    float *copy; /* what each range held when it was called final */
    size_t begin;
    int calls;
};

static void on_final(void *arg, size_t first, size_t count)
{
    struct final_log *log = arg;
    assert_int_equal(first + count, log->begin);
    memcpy(log->copy + first, log->t->lane + first, count * sizeof(float));
    log->begin = first;
    log->calls++;
}

static void ranges_called_final_cover_the_vector_from_its_end_and_keep_their_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        struct training t;
        open_case(&t, &model_cases[i], false);
        training_fill(&t, 0);
        struct final_log log = { .t = &t, .begin = t.layout.count };
        log.copy = calloc(t.layout.count, sizeof(float));
        assert_non_null(log.copy);
        struct plan_call call = { .inputs = { t.x, t.labels },
                                  .draw = t.draw,
                                  .params = optimizer_params(t.optimizer),
                                  .lane = t.lane };
        assert_int_equal(plan_forward(t.plan, &call), ST_OK);
        assert_int_equal(plan_backward(t.plan, &call, on_final, &log), ST_OK);
        assert_int_equal(log.begin, 0);
        assert_true(log.calls >= 3);
        assert_memory_equal(log.copy, t.lane, t.layout.count * sizeof(float));
        free(log.copy);
        training_close(&t);
    }
}

/* ---- scalars, labels, sizes, progress ---- */

static void ignored_labels_count_nothing(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &model_cases[1], false);
    training_fill(&t, 0);
    t.labels[1] = -1;
    t.labels[4] = -1;
    struct plan_call call = { .inputs = { t.x, t.labels },
                              .params = optimizer_params(t.optimizer),
                              .stats = optimizer_stats(t.optimizer),
                              .lane = t.lane };
    int64_t counted = 0, correct = 0;
    double loss = 0;
    call.counted = &counted;
    call.correct = &correct;
    call.loss_sum = &loss;
    assert_int_equal(plan_forward(t.plan, &call), ST_OK);
    assert_int_equal(counted, 3);
    assert_in_range(correct, 0, 3);
    assert_true(t.lane[t.layout.targets_at] == 3);
    assert_true(t.lane[t.layout.micro_at] == 1);
    assert_true((double)t.lane[t.layout.loss_at] == loss);
    call.lane = NULL;
    assert_int_equal(plan_refresh(t.eval_plan, call.params), ST_OK);
    assert_int_equal(plan_forward(t.eval_plan, &call), ST_OK);
    assert_int_equal(counted, 6);
    training_close(&t);
}

static double eval_loss(const struct model_case *model, double *out_training)
{
    struct training t;
    open_case(&t, model, false);
    training_fill(&t, 0);
    if (out_training != NULL) {
        training_micro(&t, false);
        *out_training = (double)t.lane[t.layout.loss_at] / (double)t.rows;
    }
    double loss = training_eval(&t);
    training_close(&t);
    return loss;
}

static void evaluation_drops_nothing(void **state)
{
    (void)state;
    const struct model_case plain = { .arch = "gpt2", .side = 12, .micro = 3 };
    struct model_case drops = plain;
    drops.dropout = 0.25f;
    double training = 0;
    double training_drops = 0;
    double loss = eval_loss(&plain, &training);
    assert_true(fabs(loss - training) < 1e-6 * loss);
    assert_true(fabs(loss - eval_loss(&drops, &training_drops)) < 1e-5 * loss);
    assert_true(fabs(training_drops - training) > 1e-4 * training);
}

static void another_step_drops_others(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &(struct model_case){ .arch = "gpt2", .side = 12, .micro = 3, .dropout = 0.25f },
              false);
    training_fill(&t, 0);
    training_micro(&t, false);
    float first = t.lane[t.layout.loss_at];
    t.draw[OP_DRAW_STEP] = 1;
    training_micro(&t, false);
    assert_true(t.lane[t.layout.loss_at] != first);
    t.draw[OP_DRAW_STEP] = 0;
    training_micro(&t, false);
    assert_true(t.lane[t.layout.loss_at] == first);
    training_close(&t);
}

static void the_loss_scale_is_a_factor_of_all_gradients_and_not_of_the_loss(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &model_cases[3], false);
    training_fill(&t, 0);
    training_micro(&t, false);
    const float scale = 1024;
    struct plan_call call = { .inputs = { t.x, t.labels },
                              .draw = t.draw,
                              .loss_scale = &scale,
                              .params = optimizer_params(t.optimizer),
                              .lane = t.sum };
    assert_int_equal(plan_forward(t.plan, &call), ST_OK);
    assert_int_equal(plan_backward(t.plan, &call, NULL, NULL), ST_OK);
    for (size_t i = 0; i < t.layout.param_count; i++)
        assert_true(t.sum[i] == 1024 * t.lane[i]); /* a power of two: exact */
    assert_true(t.sum[t.layout.loss_at] == t.lane[t.layout.loss_at]);
    training_close(&t);
}

static void regions_share_memory_and_sizes_are_known_before_start(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &model_cases[2], false);
    const struct plan_sizes *sizes = plan_sizes(t.plan);
    assert_true(sizes->arena_bytes > 0);
    assert_true(sizes->arena_bytes < sizes->unshared_bytes * 3 / 4);
    assert_true(sizes->flops_backward > sizes->flops_forward);
    struct plan_options options = {
        .table = t.table, .backend = t.backend, .batch = t.options.micro, .training = true
    };
    struct plan *dry = NULL;
    count_allocations(true);
    assert_int_equal(plan_new(t.tape, &options, &dry), ST_OK);
    assert_true(counted_allocations() > 0); /* they are counted */
    count_allocations(false);
    assert_int_equal(plan_sizes(dry)->arena_bytes, sizes->arena_bytes);
    struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(plan_print(dry, &text), ST_OK);
    assert_non_null(strstr(text.data, "arena"));
    buf_clear(&text);
    assert_int_equal(plan_pins(dry, &text), ST_OK);
    assert_int_equal(text.data[0], '[');
    assert_int_equal(text.data[text.size - 1], ']');
    buf_release(&text);
    plan_free(dry);
    training_close(&t);
}

static struct {
    int linears, may_pitch;
    int64_t last_out; /* features of the last that may */
} asked;

static enum status prepare_linear(struct backend *backend, const struct op_spec *spec,
                                  struct kernel **out_kernel, struct kernel_info *out_info)
{
    asked.linears++;
    if (spec->pitched_out) {
        asked.may_pitch++;
        asked.last_out = spec->attr.out;
    }
    return backend_cpu()->op[OP_LINEAR].prepare(backend, spec, out_kernel, out_info);
}

static void rows_of_logits_alone_may_be_pitched(void **state)
{
    (void)state;
    struct backend_table table = *backend_cpu();
    table.op[OP_LINEAR].prepare = prepare_linear;
    struct training t;
    open_case(&t, &model_cases[3], false);
    const struct plan_options options = {
        .table = &table, .backend = t.backend, .batch = t.options.micro, .training = true
    };
    struct plan *plan = NULL;
    assert_int_equal(plan_new(t.tape, &options, &plan), ST_OK);
    assert_int_equal(asked.linears, 9); /* four of each layer */
    assert_int_equal(asked.may_pitch, 1);
    assert_int_equal(asked.last_out, t.options.vocab);
    plan_free(plan);
    training_close(&t);
}

struct ticks {
    int of[2];   /* forward, backward */
    int ends_at; /* that tick of either; 0: none */
};

static bool count_tick(void *arg, int node, bool backward)
{
    struct ticks *ticks = arg;
    assert_true(node >= 0);
    return ++ticks->of[backward] != ticks->ends_at;
}

static void every_node_ticks_and_may_end_the_pass(void **state)
{
    (void)state;
    struct training t;
    open_case(&t, &model_cases[1], false);
    struct ticks ticks = { .ends_at = 0 };
    struct plan_options options = { .table = t.table,
                                    .backend = t.backend,
                                    .stream = t.stream,
                                    .batch = t.options.micro,
                                    .training = true,
                                    .progress = count_tick,
                                    .progress_arg = &ticks };
    plan_free(t.eval_plan);
    t.eval_plan = NULL;
    plan_free(t.plan);
    assert_int_equal(plan_new(t.tape, &options, &t.plan), ST_OK);
    assert_int_equal(plan_refresh(t.plan, optimizer_params(t.optimizer)), ST_OK);
    training_fill(&t, 0);
    training_micro(&t, false);
    assert_int_equal(ticks.of[0], t.tape->node_count);
    assert_int_equal(ticks.of[1], t.tape->node_count);

    struct plan_call call = { .inputs = { t.x, t.labels },
                              .params = optimizer_params(t.optimizer),
                              .stats = optimizer_stats(t.optimizer),
                              .lane = t.lane };
    ticks = (struct ticks){ .ends_at = t.tape->node_count - 1 };
    assert_int_equal(plan_forward(t.plan, &call), ST_STALE);
    assert_int_equal(ticks.of[0], ticks.ends_at);
    ticks.ends_at = 0;
    assert_int_equal(plan_forward(t.plan, &call), ST_OK);
    ticks = (struct ticks){ .ends_at = 2 };
    assert_int_equal(plan_backward(t.plan, &call, NULL, NULL), ST_STALE);
    assert_int_equal(ticks.of[1], 2);
    training_close(&t);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODEL_CASES; i++) {
        struct training t;
        open_case(&t, &model_cases[i], false);
        count_allocations(true);
        (void)training_step(&t, 0, 2, 2, 0.05, 1);
        (void)training_eval(&t);
        assert_int_equal(counted_allocations(), 0);
        count_allocations(false);
        training_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_whole_models_agree_with_finite_differences),
        cmocka_unit_test(a_value_read_three_times_gets_the_sum_of_three_gradients),
        cmocka_unit_test(two_runs_give_the_same_bits),
        cmocka_unit_test(memory_outside_its_lifetime_is_never_read),
        cmocka_unit_test(accumulated_micro_batches_are_the_sum_of_single_ones),
        cmocka_unit_test(ranges_called_final_cover_the_vector_from_its_end_and_keep_their_values),
        cmocka_unit_test(ignored_labels_count_nothing),
        cmocka_unit_test(evaluation_drops_nothing),
        cmocka_unit_test(another_step_drops_others),
        cmocka_unit_test(the_loss_scale_is_a_factor_of_all_gradients_and_not_of_the_loss),
        cmocka_unit_test(regions_share_memory_and_sizes_are_known_before_start),
        cmocka_unit_test(rows_of_logits_alone_may_be_pitched),
        cmocka_unit_test(every_node_ticks_and_may_end_the_pass),
        cmocka_unit_test(a_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
