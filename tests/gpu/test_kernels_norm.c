/* Layer norm and batch norm, forward and backward, against float64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/own/k.h"
#include "tests/gpu/kernel_run.h"
#include "tests/test.h"

#define NEAR 1e-5

struct norm_case {
    int64_t rows, c;
    enum dtype x, y;
    int variant;
};

/* mean and 1/√(variance + eps) over `count` elements, `step` apart. */
static void moments(const double *x, int64_t count, int64_t step, double eps, double *out_mean,
                    double *out_rstd)
{
    double mean = 0.0, variance = 0.0;
    for (int64_t i = 0; i < count; i++)
        mean += x[i * step] / (double)count;
    for (int64_t i = 0; i < count; i++)
        variance += (x[i * step] - mean) * (x[i * step] - mean) / (double)count;
    *out_mean = mean;
    *out_rstd = 1.0 / sqrt(variance + eps);
}

static void layer_norm_forward(struct run *run, const void *arg)
{
    const struct norm_case *c = arg;
    const int64_t n = c->rows * c->c;
    const double *x = run_random(run, c->x, n, -1.0, 3.0);
    const double *gamma = run_random(run, DTYPE_F32, c->c, 0.5, 1.5);
    const double *beta = run_random(run, DTYPE_F32, c->c, -1.0, 1.0);
    double *y = run_host(run, (size_t)n * sizeof(*y));
    double *mean = run_host(run, (size_t)c->rows * sizeof(*mean));
    double *rstd = run_host(run, (size_t)c->rows * sizeof(*rstd));
    for (int64_t r = 0; r < c->rows; r++) {
        moments(x + r * c->c, c->c, 1, 1e-5, &mean[r], &rstd[r]);
        for (int64_t i = 0; i < c->c; i++)
            y[r * c->c + i] = (x[r * c->c + i] - mean[r]) * rstd[r] * gamma[i] + beta[i];
    }
    const struct k_layer_norm args = {
        .rows = c->rows,
        .c = c->c,
        .x_dtype = c->x,
        .y_dtype = c->y,
        .eps = 1e-5f,
        .x = run_in(run, c->x, x, n),
        .gamma = run_in_flat(run, gamma, c->c),
        .beta = run_in_flat(run, beta, c->c),
        .y = run_out(run, c->y, n),
        .mean = c->variant == 1 ? NULL : run_out_flat(run, c->rows),
        .rstd = c->variant == 1 ? NULL : run_out_flat(run, c->rows),
    };
    assert_int_equal(k_layer_norm_forward(&args, NULL), ST_OK);
    run_expect(run, args.y, c->y, y, n, NEAR);
    if (args.mean != NULL) {
        run_expect(run, args.mean, DTYPE_F32, mean, c->rows, NEAR);
        run_expect(run, args.rstd, DTYPE_F32, rstd, c->rows, NEAR);
    }
}

struct layer_gradient {
    double *dx, *dgamma, *dbeta;
};

static struct layer_gradient layer_gradient(struct run *run, const struct norm_case *c,
                                            const double *x, const double *gamma, const double *dy,
                                            double *mean, double *rstd)
{
    const struct layer_gradient g = { run_host(run, (size_t)(c->rows * c->c) * sizeof(double)),
                                      run_host(run, (size_t)c->c * sizeof(double)),
                                      run_host(run, (size_t)c->c * sizeof(double)) };
    for (int64_t r = 0; r < c->rows; r++) {
        const double *row = x + r * c->c, *d = dy + r * c->c;
        double sum = 0.0, dot = 0.0;
        moments(row, c->c, 1, 1e-5, &mean[r], &rstd[r]);
        mean[r] = run_round(DTYPE_F32, mean[r]);
        rstd[r] = run_round(DTYPE_F32, rstd[r]);
        for (int64_t i = 0; i < c->c; i++) {
            const double xhat = (row[i] - mean[r]) * rstd[r];
            sum += d[i] * gamma[i] / (double)c->c;
            dot += d[i] * gamma[i] * xhat / (double)c->c;
            g.dgamma[i] += d[i] * xhat;
            g.dbeta[i] += d[i];
        }
        for (int64_t i = 0; i < c->c; i++) {
            const double xhat = (row[i] - mean[r]) * rstd[r];
            g.dx[r * c->c + i] = rstd[r] * (d[i] * gamma[i] - sum - xhat * dot);
        }
    }
    return g;
}

/* variant: 0 plain, 1 another gradient is added in place and sums accumulate, 2 dx over x, 3 no dx
 */
static void layer_norm_backward(struct run *run, const void *arg)
{
    const struct norm_case *c = arg;
    const int64_t n = c->rows * c->c;
    const double *x = run_random(run, c->x, n, -1.0, 3.0);
    const double *gamma = run_random(run, DTYPE_F32, c->c, 0.5, 1.5);
    const double *dy = run_random(run, c->y, n, -1.0, 1.0);
    const double *add = run_random(run, c->x, n, -1.0, 1.0);
    const double *before = run_random(run, DTYPE_F32, c->c, -1.0, 1.0);
    double *mean = run_host(run, (size_t)c->rows * sizeof(*mean));
    double *rstd = run_host(run, (size_t)c->rows * sizeof(*rstd));
    const struct layer_gradient g = layer_gradient(run, c, x, gamma, dy, mean, rstd);
    const bool adds = c->variant == 1;
    struct k_layer_norm_grad args = {
        .rows = c->rows,
        .c = c->c,
        .x_dtype = c->x,
        .y_dtype = c->y,
        .x = run_in(run, c->x, x, n),
        .gamma = run_in_flat(run, gamma, c->c),
        .mean = run_in_flat(run, mean, c->rows),
        .rstd = run_in_flat(run, rstd, c->rows),
        .dy = run_in(run, c->y, dy, n),
        .dgamma = adds ? run_in_flat(run, before, c->c) : run_out_flat(run, c->c),
        .dbeta = run_out_flat(run, c->c),
        .accumulate_gamma = adds,
        .scratch = run_scratch(run, k_layer_norm_scratch(c->rows, c->c)),
    };
    for (int64_t i = 0; i < n && adds; i++)
        g.dx[i] += add[i];
    for (int64_t i = 0; i < c->c && adds; i++)
        g.dgamma[i] += before[i];
    if (adds) {
        args.dx = run_in(run, c->x, add, n);
        args.dx_add = args.dx;
        run_changes(run, args.dx);
        run_changes(run, args.dgamma);
    } else if (c->variant == 0) {
        args.dx = run_out(run, c->x, n);
    } else if (c->variant == 2) {
        args.dx = (void *)(uintptr_t)args.x;
        run_changes(run, args.dx);
    }
    assert_int_equal(k_layer_norm_backward(&args, NULL), ST_OK);
    if (args.dx != NULL)
        run_expect(run, args.dx, c->x, g.dx, n, NEAR);
    run_expect(run, args.dgamma, DTYPE_F32, g.dgamma, c->c, NEAR);
    run_expect(run, args.dbeta, DTYPE_F32, g.dbeta, c->c, NEAR);
}

static const enum dtype pairs[][2] = {
    { DTYPE_F32, DTYPE_F32 },   { DTYPE_F32, DTYPE_BF16 }, { DTYPE_F32, DTYPE_F16 },
    { DTYPE_BF16, DTYPE_BF16 }, { DTYPE_F16, DTYPE_F16 },
};

/* Lengths on both sides of where the kernels change their ways. */
static const int64_t lengths[] = { 1,   3,    4,    8,    31,   32,   100,  256,  764,  768,
                                   776, 1024, 1032, 1600, 2048, 2056, 4096, 8192, 8200, 8193 };

static void layer_norm_is_its_definition_for_every_length_and_type(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            const struct norm_case c = { lengths[i] > 900 ? 2 : 17, lengths[i], pairs[p][0],
                                         pairs[p][1], (int)(i % 2) };
            if (lengths[i] < 900 || (i + p) % 2 == 0) /* long ones: every other type */
                run_seeds(layer_norm_forward, &c);
        }
    }
}

static void layer_norm_backward_is_the_derivative_for_every_length_and_type(void **state)
{
    (void)state;
    for (size_t p = 0; p < sizeof(pairs) / sizeof(pairs[0]); p++) {
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            const struct norm_case c = { lengths[i] > 900 ? 2 : 17, lengths[i], pairs[p][0],
                                         pairs[p][1], (int)((i + p / 2) % 4) };
            if (lengths[i] < 900 || (i + p) % 2 == 0)
                run_seeds(layer_norm_backward, &c);
        }
    }
    /* Many rows: several a group, blocks with a short slice. */
    const struct norm_case many[] = { { 4100, 8, DTYPE_F32, DTYPE_BF16, 0 },
                                      { 2051, 12, DTYPE_F32, DTYPE_F32, 1 },
                                      { 521, 1032, DTYPE_BF16, DTYPE_BF16, 0 },
                                      { 1100, 5, DTYPE_F16, DTYPE_F16, 1 } };
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++)
        run_seeds(layer_norm_backward, &many[i]);
}

struct batch_case {
    int64_t rows, c;
    enum dtype dtype;
    double offset; /* of the input */
    bool relu, residual, accumulate, inference, two, by_output, store, add;
};

static const struct batch_case batch_cases[] = {
    { .rows = 5, .c = 1, .dtype = DTYPE_F32 },
    { .rows = 33, .c = 3, .dtype = DTYPE_F32, .relu = true },
    { .rows = 100, .c = 8, .dtype = DTYPE_F32, .relu = true, .residual = true, .by_output = true },
    { .rows = 257, .c = 64, .dtype = DTYPE_BF16, .relu = true, .accumulate = true },
    { .rows = 131, .c = 24, .dtype = DTYPE_F16, .residual = true, .by_output = true, .add = true },
    { .rows = 4200, .c = 8, .dtype = DTYPE_F32, .offset = 1000.0, .relu = true },
    { .rows = 70,
      .c = 300,
      .dtype = DTYPE_BF16,
      .relu = true,
      .residual = true,
      .by_output = true,
      .store = true,
      .two = true },
    { .rows = 9,
      .c = 2048,
      .dtype = DTYPE_F32,
      .relu = true,
      .residual = true,
      .by_output = true,
      .store = true },
    { .rows = 40, .c = 7, .dtype = DTYPE_F16, .relu = true, .two = true, .accumulate = true },
    { .rows = 50, .c = 16, .dtype = DTYPE_F32, .relu = true, .inference = true },
    { .rows = 50, .c = 5, .dtype = DTYPE_BF16, .residual = true, .inference = true },
};

struct batch {
    double *x, *residual, *gamma, *beta, *mean, *rstd, *variance, *pre, *y;
};

/* Inputs and what forward gives of them. */
static struct batch batch_of(struct run *run, const struct batch_case *c)
{
    const int64_t n = c->rows * c->c;
    struct batch b = { .x = run_random(run, c->dtype, n, c->offset - 1.0, c->offset + 2.0),
                       .residual = run_random(run, c->dtype, n, -1.0, 1.0),
                       .gamma = run_random(run, DTYPE_F32, c->c, 0.5, 1.5),
                       .beta = run_random(run, DTYPE_F32, c->c, -0.5, 0.5),
                       .mean = run_random(run, DTYPE_F32, c->c, -1.0, 1.0),
                       .variance = run_random(run, DTYPE_F32, c->c, 0.5, 2.0) };
    b.rstd = run_host(run, (size_t)c->c * sizeof(double));
    b.pre = run_host(run, (size_t)n * sizeof(double));
    b.y = run_host(run, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < c->c; i++) {
        b.rstd[i] = 1.0 / sqrt(b.variance[i] + 1e-5);
        if (c->inference)
            continue;
        moments(b.x + i, c->rows, c->c, 1e-5, &b.mean[i], &b.rstd[i]);
        b.variance[i] =
            (1.0 / (b.rstd[i] * b.rstd[i]) - 1e-5) * (double)c->rows / ((double)c->rows - 1.0);
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = i % c->c;
        b.pre[i] = (b.x[i] - b.mean[k]) * b.rstd[k] * b.gamma[k] + b.beta[k];
        b.pre[i] += c->residual ? b.residual[i] : 0.0;
        b.y[i] = c->relu && b.pre[i] <= 0.0 ? 0.0 : b.pre[i];
    }
    return b;
}

static double nearness(const struct batch_case *c)
{
    return c->offset > 0.0 ? 2e-4 : NEAR; /* the input itself has 24 bits */
}

static void batch_norm_forward(struct run *run, const void *arg)
{
    const struct batch_case *c = arg;
    const int64_t n = c->rows * c->c;
    const struct batch b = batch_of(run, c);
    const double *before = run_random(run, DTYPE_F32, c->c, -1.0, 1.0);
    struct k_batch_norm args = {
        .rows = c->rows,
        .c = c->c,
        .dtype = c->dtype,
        .eps = 1e-5f,
        .relu = c->relu,
        .x = run_in(run, c->dtype, b.x, n),
        .residual = c->residual ? run_in(run, c->dtype, b.residual, n) : NULL,
        .gamma = run_in_flat(run, b.gamma, c->c),
        .beta = run_in_flat(run, b.beta, c->c),
        .y = run_out(run, c->dtype, n),
        .accumulate_stats = c->accumulate,
        .scratch = run_scratch(run, k_batch_norm_scratch(c->rows, c->c)),
    };
    if (c->inference) {
        args.running_mean = run_in_flat(run, b.mean, c->c);
        args.running_var = run_in_flat(run, b.variance, c->c);
        assert_int_equal(k_batch_norm_apply(&args, NULL), ST_OK);
        run_expect(run, args.y, c->dtype, b.y, n, NEAR);
        return;
    }
    args.mean = run_out_flat(run, c->c);
    args.rstd = run_out_flat(run, c->c);
    args.mean_sum = c->accumulate ? run_in_flat(run, before, c->c) : run_out_flat(run, c->c);
    args.var_sum = c->accumulate ? run_in_flat(run, before, c->c) : run_out_flat(run, c->c);
    run_changes(run, args.mean_sum);
    run_changes(run, args.var_sum);
    assert_int_equal(k_batch_norm_forward(&args, NULL), ST_OK);
    run_expect(run, args.y, c->dtype, b.y, n, nearness(c));
    run_expect(run, args.mean, DTYPE_F32, b.mean, c->c, NEAR);
    run_expect(run, args.rstd, DTYPE_F32, b.rstd, c->c, NEAR);
    for (int64_t i = 0; i < c->c && c->accumulate; i++) {
        b.mean[i] += before[i];
        b.variance[i] += before[i];
    }
    run_expect(run, args.mean_sum, DTYPE_F32, b.mean, c->c, NEAR);
    run_expect(run, args.var_sum, DTYPE_F32, b.variance, c->c, NEAR);
}

/* g, and from it dx, dgamma, dbeta. */
struct batch_gradient {
    double *g, *dx, *dgamma, *dbeta;
};

static struct batch_gradient batch_gradient(struct run *run, const struct batch_case *c,
                                            const struct batch *b, const double *dy,
                                            const double *dy2)
{
    const int64_t n = c->rows * c->c;
    const struct batch_gradient out = { run_host(run, (size_t)n * sizeof(double)),
                                        run_host(run, (size_t)n * sizeof(double)),
                                        run_host(run, (size_t)c->c * sizeof(double)),
                                        run_host(run, (size_t)c->c * sizeof(double)) };
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = i % c->c;
        out.g[i] = dy[i] + (c->two ? dy2[i] : 0.0);
        if (c->relu && b->y[i] <= 0.0)
            out.g[i] = 0.0;
        out.dbeta[k] += out.g[i];
        out.dgamma[k] += out.g[i] * (b->x[i] - b->mean[k]) * b->rstd[k];
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t k = i % c->c;
        const double xhat = (b->x[i] - b->mean[k]) * b->rstd[k], m = (double)c->rows;
        /* What is stored is what goes on. */
        const double g = c->store ? run_round(c->dtype, out.g[i]) : out.g[i];
        out.dx[i] = b->gamma[k] * b->rstd[k] * (g - out.dbeta[k] / m - xhat * out.dgamma[k] / m);
    }
    return out;
}

static void batch_norm_backward(struct run *run, const void *arg)
{
    const struct batch_case *c = arg;
    const int64_t n = c->rows * c->c;
    struct batch b = batch_of(run, c);
    const double *dy = run_random(run, c->dtype, n, -1.0, 1.0);
    const double *dy2 = run_random(run, c->dtype, n, -1.0, 1.0);
    const double *add = run_random(run, c->dtype, n, -1.0, 1.0);
    const double *before = run_random(run, DTYPE_F32, c->c, -1.0, 1.0);
    for (int64_t i = 0; i < c->c; i++) {
        b.mean[i] = run_round(DTYPE_F32, b.mean[i]);
        b.rstd[i] = run_round(DTYPE_F32, b.rstd[i]);
    }
    for (int64_t i = 0; i < n; i++) /* what rounds to nothing is masked */
        b.y[i] = run_round(c->dtype, b.y[i]);
    const struct batch_gradient g = batch_gradient(run, c, &b, dy, dy2);
    struct k_batch_norm_grad args = {
        .rows = c->rows,
        .c = c->c,
        .dtype = c->dtype,
        .relu = c->relu,
        .x = run_in(run, c->dtype, b.x, n),
        .dy = run_in(run, c->dtype, dy, n),
        .dy2 = c->two ? run_in(run, c->dtype, dy2, n) : NULL,
        .y = c->by_output ? run_in(run, c->dtype, b.y, n) : NULL,
        .gamma = run_in_flat(run, b.gamma, c->c),
        .beta = run_in_flat(run, b.beta, c->c),
        .mean = run_in_flat(run, b.mean, c->c),
        .rstd = run_in_flat(run, b.rstd, c->c),
        .dx = c->add ? run_in(run, c->dtype, add, n) : run_out(run, c->dtype, n),
        .dgamma = c->accumulate ? run_in_flat(run, before, c->c) : run_out_flat(run, c->c),
        .dbeta = c->accumulate ? run_in_flat(run, before, c->c) : run_out_flat(run, c->c),
        .accumulate_gamma = c->accumulate,
        .accumulate_beta = c->accumulate,
        .scratch = run_scratch(run, k_batch_norm_scratch(c->rows, c->c)),
    };
    args.dx_add = c->add ? args.dx : NULL;
    if (c->store) { /* over dy */
        args.dresidual = (void *)(uintptr_t)args.dy;
        run_changes(run, args.dy);
    }
    run_changes(run, args.dx);
    run_changes(run, args.dgamma);
    run_changes(run, args.dbeta);
    for (int64_t i = 0; i < n && c->add; i++)
        g.dx[i] += add[i];
    assert_int_equal(k_batch_norm_backward(&args, NULL), ST_OK);
    for (int64_t i = 0; i < c->c && c->accumulate; i++) {
        g.dgamma[i] += before[i];
        g.dbeta[i] += before[i];
    }
    run_expect(run, args.dx, c->dtype, g.dx, n, nearness(c));
    run_expect(run, args.dgamma, DTYPE_F32, g.dgamma, c->c, nearness(c));
    run_expect(run, args.dbeta, DTYPE_F32, g.dbeta, c->c, nearness(c));
    if (c->store)
        run_expect(run, args.dresidual, c->dtype, g.g, n, NEAR);
}

static void batch_norm_and_its_gradient_are_their_definitions(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(batch_cases) / sizeof(batch_cases[0]); i++) {
        run_seeds(batch_norm_forward, &batch_cases[i]);
        if (!batch_cases[i].inference)
            run_seeds(batch_norm_backward, &batch_cases[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layer_norm_is_its_definition_for_every_length_and_type),
        cmocka_unit_test(layer_norm_backward_is_the_derivative_for_every_length_and_type),
        cmocka_unit_test(batch_norm_and_its_gradient_are_their_definitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
