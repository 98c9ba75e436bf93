/* Softmax cross-entropy against float64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/own/k.h"
#include "tests/gpu/kernel_run.h"
#include "tests/test.h"

#define NEAR 2e-5

struct loss_case {
    int64_t rows, vocab, stride;
    enum dtype dtype;
    double smoothing, range;
    bool wrong, ties;
};

struct batch {
    double *logits, *lse;
    int32_t *labels;
    double out[3];
};

/* Logits with gaps that nobody may read a number from, labels, and what comes of them. */
static struct batch batch_of(struct run *run, const struct loss_case *c)
{
    const int64_t n = c->rows * c->stride;
    struct batch b = { .logits = run_random(run, c->dtype, n, -c->range, c->range),
                       .lse = run_host(run, (size_t)c->rows * sizeof(double)),
                       .labels = run_integers(run, c->rows, (int32_t)c->vocab + 1) };
    for (int64_t r = 0; r < c->rows; r++) {
        double *x = b.logits + r * c->stride, sum = 0.0, even = 0.0;
        int64_t best = 0;
        b.labels[r]--; /* from -1 on */
        for (int64_t i = 0; i < c->vocab && c->ties; i++)
            x[i] = floor(x[i]);
        for (int64_t i = c->vocab; i < c->stride; i++)
            x[i] = NAN;
        for (int64_t i = 0; i < c->vocab; i++) {
            best = x[i] > x[best] ? i : best;
            sum += exp(x[i]);
        }
        if (c->ties && r % 2 == 0 && b.labels[r] >= 0)
            b.labels[r] = (int32_t)best;
        b.lse[r] = log(sum);
        if (c->wrong && r % 3 == 1)
            b.labels[r] = r % 2 == 0 ? (int32_t)c->vocab : -2;
        const int32_t label = b.labels[r];
        if (label < 0 || label >= c->vocab)
            continue;
        for (int64_t i = 0; i < c->vocab; i++)
            even += (b.lse[r] - x[i]) / (double)c->vocab;
        b.out[0] += (1.0 - c->smoothing) * (b.lse[r] - x[label]) + c->smoothing * even;
        b.out[1] += 1.0;
        b.out[2] += best == label ? 1.0 : 0.0;
    }
    return b;
}

/* For the forward pass, on logits that it may write. */
static struct k_loss forward_args(struct run *run, const struct loss_case *c, const struct batch *b)
{
    const uint32_t none = 0;
    const struct k_loss args = {
        .rows = c->rows,
        .vocab = c->vocab,
        .stride = c->stride,
        .dtype = c->dtype,
        .smoothing = (float)c->smoothing,
        .logits = run_in(run, c->dtype, b->logits, c->rows * c->stride),
        .labels = run_in_bytes(run, b->labels, (size_t)c->rows * sizeof(int32_t)),
        .lse = run_out_flat(run, c->rows),
        .out = run_out_flat(run, 3),
        .scratch = run_scratch(run, k_loss_scratch(c->rows)),
        .fault = run_in_bytes(run, &none, sizeof(none)),
    };
    run_changes(run, args.fault);
    return args;
}

/* The gradient goes where the logits lie. */
static struct k_loss_grad backward_args(const struct loss_case *c, const void *logits,
                                        const int32_t *labels, const float *lse, const float *scale)
{
    return (struct k_loss_grad){
        .rows = c->rows,
        .vocab = c->vocab,
        .stride = c->stride,
        .dtype = c->dtype,
        .smoothing = (float)c->smoothing,
        .logits = logits,
        .labels = labels,
        .lse = lse,
        .scale = scale,
        .dlogits = (void *)(uintptr_t)logits,
    };
}

static void loss_forward(struct run *run, const void *arg)
{
    const struct loss_case *c = arg;
    const struct batch b = batch_of(run, c);
    const struct k_loss args = forward_args(run, c, &b);
    uint32_t fault = 0;
    float out[3];
    assert_int_equal(k_loss_forward(&args, NULL), ST_OK);
    run_expect(run, args.lse, DTYPE_F32, b.lse, c->rows, NEAR);
    run_get(run, args.out, out, sizeof(out));
    assert_true(fabs((double)out[0] - b.out[0]) <= NEAR * (1.0 + fabs(b.out[0])));
    assert_true((double)out[1] == b.out[1]);
    assert_true((double)out[2] == b.out[2]);
    run_get(run, args.fault, &fault, sizeof(fault));
    assert_int_equal(fault, c->wrong ? K_FAULT_LABEL : 0);
}

static void loss_backward(struct run *run, const void *arg)
{
    const struct loss_case *c = arg;
    const int64_t n = c->rows * c->stride;
    const struct batch b = batch_of(run, c);
    const double scale = 128.0;
    const bool scaled = c->rows % 2 == 1;
    double *dx = run_host(run, (size_t)n * sizeof(*dx));
    for (int64_t r = 0; r < c->rows; r++) {
        const int32_t label = b.labels[r];
        b.lse[r] = run_round(DTYPE_F32, b.lse[r]);
        for (int64_t i = 0; i < c->vocab; i++) {
            double d = exp(b.logits[r * c->stride + i] - b.lse[r]);
            d -= c->smoothing / (double)c->vocab + (i == label ? 1.0 - c->smoothing : 0.0);
            d *= scaled ? scale : 1.0;
            dx[r * c->stride + i] = label < 0 || label >= c->vocab ? 0.0 : d;
        }
    }
    const void *logits = run_in(run, c->dtype, b.logits, n);
    const int32_t *labels = run_in_bytes(run, b.labels, (size_t)c->rows * sizeof(int32_t));
    const float *lse = run_in_flat(run, b.lse, c->rows);
    const float *factor = scaled ? run_in_flat(run, &scale, 1) : NULL;
    const struct k_loss_grad args = backward_args(c, logits, labels, lse, factor);
    run_changes(run, args.dlogits);
    assert_int_equal(k_loss_backward(&args, NULL), ST_OK);
    /* Zeros in the gaps. */
    double *got = run_host(run, (size_t)n * sizeof(*got));
    run_values(run, args.dlogits, c->dtype, got, n);
    for (int64_t i = 0; i < n; i++) {
        if (i % c->stride >= c->vocab)
            dx[i] = 0.0;
    }
    run_expect_values(run, c->dtype, got, dx, n, NEAR);
}

/* Forward and backward at once, on logits of its own; what they leave is as one after the other. */
static void both_at_once(struct run *run, const struct loss_case *c, const struct batch *b,
                         struct k_loss args, struct k_loss_grad grad, size_t shared_max,
                         const struct k_loss *apart)
{
    const size_t bytes = (size_t)(c->rows * c->stride) * dtype_size(c->dtype);
    const size_t lse = (size_t)c->rows * sizeof(float);
    unsigned char *got = run_host(run, bytes + lse), *want = run_host(run, bytes + lse);
    args.logits = run_in(run, c->dtype, b->logits, c->rows * c->stride);
    args.lse = run_out_flat(run, c->rows);
    args.out = run_out_flat(run, 3);
    grad.logits = args.logits;
    grad.dlogits = (void *)(uintptr_t)args.logits;
    run_changes(run, args.logits);
    assert_int_equal(k_loss_both(&args, &grad, shared_max, NULL), ST_OK);
    run_get(run, args.logits, got, bytes);
    run_get(run, apart->logits, want, bytes);
    assert_memory_equal(got, want, bytes);
    run_get(run, args.lse, got, lse);
    run_get(run, apart->lse, want, lse);
    assert_memory_equal(got, want, lse);
    float sums[3], sums_apart[3];
    run_get(run, args.out, sums, sizeof(sums));
    run_get(run, apart->out, sums_apart, sizeof(sums));
    assert_memory_equal(sums, sums_apart, sizeof(sums));
}

static void loss_both(struct run *run, const void *arg)
{
    const struct loss_case *c = arg;
    const struct batch b = batch_of(run, c);
    const double scale = 128.0;
    const struct k_loss args = forward_args(run, c, &b);
    const float *factor = c->rows % 2 == 1 ? run_in_flat(run, &scale, 1) : NULL;
    const struct k_loss_grad grad = backward_args(c, args.logits, args.labels, args.lse, factor);
    run_changes(run, args.logits);
    assert_int_equal(k_loss_forward(&args, NULL), ST_OK);
    assert_int_equal(k_loss_backward(&grad, NULL), ST_OK);
    both_at_once(run, c, &b, args, grad, 227 * 1024, &args);
    both_at_once(run, c, &b, args, grad, 0, &args); /* read twice */
}

static const struct loss_case cases[] = {
    { .rows = 1, .vocab = 1, .stride = 1, .dtype = DTYPE_F32, .range = 1.0 },
    { .rows = 5, .vocab = 10, .stride = 10, .dtype = DTYPE_F32, .range = 4.0 },
    { .rows = 9, .vocab = 257, .stride = 257, .dtype = DTYPE_BF16, .range = 8.0, .ties = true },
    { .rows = 8,
      .vocab = 1000,
      .stride = 1008,
      .dtype = DTYPE_F16,
      .range = 8.0,
      .smoothing = 0.1 },
    { .rows = 7,
      .vocab = 50257 / 4,
      .stride = 50257 / 4,
      .dtype = DTYPE_BF16,
      .range = 20.0,
      .smoothing = 0.1,
      .wrong = true },
    { .rows = 4, .vocab = 4099, .stride = 4099, .dtype = DTYPE_F32, .range = 80.0, .ties = true },
    { .rows = 1100, .vocab = 3, .stride = 3, .dtype = DTYPE_F16, .range = 2.0 },
    { .rows = 2, .vocab = 24500, .stride = 24500, .dtype = DTYPE_BF16, .range = 4.0 },
    { .rows = 1, .vocab = 50257, .stride = 50304, .dtype = DTYPE_BF16, .range = 4.0 },
    { .rows = 12, .vocab = 5, .stride = 8, .dtype = DTYPE_BF16, .range = 2.0, .wrong = true },
};

static void losses_and_counts_are_those_of_the_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_seeds(loss_forward, &cases[i]);
}

static void loss_gradient_is_softmax_less_the_targets(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_seeds(loss_backward, &cases[i]);
}

static void loss_and_gradient_at_once_are_those_one_after_the_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_seeds(loss_both, &cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradient_at_once_are_those_one_after_the_other),
        cmocka_unit_test(losses_and_counts_are_those_of_the_rows),
        cmocka_unit_test(loss_gradient_is_softmax_less_the_targets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
