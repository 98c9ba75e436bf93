/* Pools, layouts and types, against plain loops. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/own/k.h"
#include "tests/gpu/kernel_run.h"
#include "tests/test.h"

#define NEAR 1e-5

struct pool_case {
    int64_t n, h, w, c;
    int kernel, stride, pad;
    enum dtype dtype;
    bool ties, add;
};

static int64_t pooled(int64_t size, const struct pool_case *c)
{
    return (size + 2 * c->pad - c->kernel) / c->stride + 1;
}

/* What wins in window (p, q) of channel k: its place in the window, and in x. */
static int winner(const struct pool_case *c, const double *x, int64_t n, int64_t p, int64_t q,
                  int64_t k, int64_t *out_at)
{
    int place = -1;
    for (int i = 0; i < c->kernel * c->kernel; i++) {
        const int64_t h = p * c->stride - c->pad + i / c->kernel;
        const int64_t w = q * c->stride - c->pad + i % c->kernel;
        if (h < 0 || h >= c->h || w < 0 || w >= c->w)
            continue;
        const int64_t at = ((n * c->h + h) * c->w + w) * c->c + k;
        if (place < 0 || x[at] > x[*out_at]) {
            place = i;
            *out_at = at;
        }
    }
    return place;
}

static void max_pool(struct run *run, const void *arg)
{
    const struct pool_case *c = arg;
    const int64_t p = pooled(c->h, c), q = pooled(c->w, c);
    const int64_t in = c->n * c->h * c->w * c->c, out = c->n * p * q * c->c;
    double *x = run_random(run, c->dtype, in, -3.0, 3.0);
    const double *dy = run_random(run, c->dtype, out, -1.0, 1.0);
    const double *add = run_random(run, c->dtype, in, -1.0, 1.0);
    double *y = run_host(run, (size_t)out * sizeof(*y));
    double *dx = run_host(run, (size_t)in * sizeof(*dx));
    uint8_t *index = run_host(run, (size_t)out), *got = run_host(run, (size_t)out);
    for (int64_t i = 0; i < in; i++) {
        x[i] = c->ties ? floor(x[i]) : x[i];
        dx[i] = c->add ? add[i] : 0.0;
    }
    for (int64_t i = 0; i < out; i++) {
        const int64_t k = i % c->c, pq = i / c->c;
        int64_t at = 0;
        index[i] = (uint8_t)winner(c, x, pq / (p * q), pq / q % p, pq % q, k, &at);
        y[i] = x[at];
        dx[at] += dy[i];
    }
    struct k_max_pool args = {
        .n = c->n,
        .h = c->h,
        .w = c->w,
        .c = c->c,
        .p = p,
        .q = q,
        .kernel = c->kernel,
        .stride = c->stride,
        .pad = c->pad,
        .dtype = c->dtype,
        .x = run_in(run, c->dtype, x, in),
        .y = run_out(run, c->dtype, out),
        .index = run_scratch(run, (size_t)out),
        .dy = run_in(run, c->dtype, dy, out),
        .dx = c->add ? run_in(run, c->dtype, add, in) : run_out(run, c->dtype, in),
    };
    args.dx_add = c->add ? args.dx : NULL;
    run_changes(run, args.dx);
    assert_int_equal(k_max_pool_forward(&args, NULL), ST_OK);
    run_expect(run, args.y, c->dtype, y, out, 0.0);
    run_get(run, args.index, got, (size_t)out);
    assert_memory_equal(got, index, (size_t)out);
    assert_int_equal(k_max_pool_backward(&args, NULL), ST_OK);
    run_expect(run, args.dx, c->dtype, dx, in, NEAR);
}

static void max_pool_keeps_the_first_greatest_and_sends_the_gradient_there(void **state)
{
    (void)state;
    const struct pool_case cases[] = {
        { 1, 1, 1, 1, 1, 1, 0, DTYPE_F32, false, false },
        { 2, 7, 5, 3, 3, 2, 1, DTYPE_F32, true, false },
        { 2, 8, 9, 8, 3, 2, 1, DTYPE_BF16, true, true },
        { 3, 6, 6, 4, 2, 2, 0, DTYPE_F32, false, true },
        { 1, 12, 11, 16, 3, 1, 1, DTYPE_F16, true, false },
        { 1, 9, 9, 260, 5, 3, 2, DTYPE_F32, false, false },
        { 2, 5, 5, 5, 3, 4, 0, DTYPE_BF16, false, false }, /* some inputs are in no window */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_seeds(max_pool, &cases[i]);
}

static void pool_of_nothing(struct run *run, const void *arg)
{
    (void)arg;
    const double x[4] = { 1.0, NAN, 3.0, 2.0 };
    const struct k_max_pool args = {
        .n = 1,
        .h = 2,
        .w = 2,
        .c = 1,
        .p = 1,
        .q = 1,
        .kernel = 2,
        .stride = 2,
        .dtype = DTYPE_F32,
        .x = run_in(run, DTYPE_F32, x, 4),
        .y = run_out(run, DTYPE_F32, 1),
    };
    float y = 0.0f;
    assert_int_equal(k_max_pool_forward(&args, NULL), ST_OK);
    run_get(run, args.y, &y, sizeof(y));
    assert_true(isnan(y));
}

static void max_pool_of_not_a_number_is_not_a_number(void **state)
{
    (void)state;
    run_seeds(pool_of_nothing, NULL);
}

static void average_pool(struct run *run, const void *arg)
{
    const struct pool_case *c = arg;
    const int64_t positions = c->h * c->w, in = c->n * positions * c->c, out = c->n * c->c;
    const double *x = run_random(run, c->dtype, in, -3.0, 3.0);
    const double *dy = run_random(run, c->dtype, out, -1.0, 1.0);
    const double *add = run_random(run, c->dtype, in, -1.0, 1.0);
    double *y = run_host(run, (size_t)out * sizeof(*y));
    double *dx = run_host(run, (size_t)in * sizeof(*dx));
    for (int64_t i = 0; i < in; i++) {
        const int64_t to = i / c->c / positions * c->c + i % c->c;
        y[to] += x[i] / (double)positions;
        dx[i] = dy[to] / (double)positions + (c->add ? add[i] : 0.0);
    }
    const struct k_avg_pool forward = {
        .n = c->n,
        .positions = positions,
        .c = c->c,
        .dtype = c->dtype,
        .in = run_in(run, c->dtype, x, in),
        .out = run_out(run, c->dtype, out),
    };
    struct k_avg_pool backward = {
        .n = c->n,
        .positions = positions,
        .c = c->c,
        .dtype = c->dtype,
        .in = run_in(run, c->dtype, dy, out),
        .out = c->add ? run_in(run, c->dtype, add, in) : run_out(run, c->dtype, in),
    };
    backward.add = c->add ? backward.out : NULL;
    run_changes(run, backward.out);
    assert_int_equal(k_avg_pool_forward(&forward, NULL), ST_OK);
    assert_int_equal(k_avg_pool_backward(&backward, NULL), ST_OK);
    run_expect(run, forward.out, c->dtype, y, out, NEAR);
    run_expect(run, backward.out, c->dtype, dx, in, NEAR);
}

static void average_pool_is_the_mean_and_spreads_the_gradient(void **state)
{
    (void)state;
    const struct pool_case cases[] = {
        { .n = 1, .h = 1, .w = 1, .c = 1, .dtype = DTYPE_F32 },
        { .n = 3, .h = 7, .w = 7, .c = 40, .dtype = DTYPE_BF16, .add = true },
        { .n = 2, .h = 3, .w = 5, .c = 33, .dtype = DTYPE_F16 },
        { .n = 70, .h = 4, .w = 1, .c = 4, .dtype = DTYPE_F32, .add = true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        run_seeds(average_pool, &cases[i]);
}

struct layout_case {
    int64_t batch, a, b;
    enum dtype from, to;
    bool accumulate;
};

static void transpose(struct run *run, const void *arg)
{
    const struct layout_case *c = arg;
    const int64_t n = c->batch * c->a * c->b;
    const double *in = run_random(run, c->from, n, -2.0, 2.0);
    double *out = run_random(run, c->to, n, -2.0, 2.0);
    const struct k_transpose args = {
        .batch = c->batch,
        .a = c->a,
        .b = c->b,
        .from = c->from,
        .to = c->to,
        .in = run_in(run, c->from, in, n),
        .out = c->accumulate ? run_in(run, c->to, out, n) : run_out(run, c->to, n),
        .accumulate = c->accumulate,
    };
    run_changes(run, args.out);
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = i / c->b, at = row / c->a * c->a * c->b + i % c->b * c->a + row % c->a;
        out[at] = in[i] + (c->accumulate ? out[at] : 0.0);
    }
    assert_int_equal(k_transpose(&args, NULL), ST_OK);
    run_expect(run, args.out, c->to, out, n, 1e-7);
}

static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };

static void transposes_move_every_element_once(void **state)
{
    (void)state;
    const int64_t shapes[][3] = { { 1, 1, 1 },    { 2, 3, 1000 }, { 5, 64, 9 }, { 3, 32, 32 },
                                  { 2, 33, 65 },  { 4, 1, 50 },   { 2, 49, 1 }, { 1, 100, 31 },
                                  { 1, 2, 2500 }, { 3, 70, 49 } };
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        for (size_t t = 0; t < 9; t++) {
            const struct layout_case c = { shapes[s][0], shapes[s][1], shapes[s][2],
                                           types[t / 3], types[t % 3], (s + t) % 2 == 0 };
            run_seeds(transpose, &c);
        }
    }
}

struct flat_case {
    int64_t n, skip; /* elements by which the arrays are off */
    enum dtype from, to;
};

static void cast_and_sum(struct run *run, const void *arg)
{
    const struct flat_case *c = arg;
    const int64_t n = c->n + c->skip;
    const double *x = run_random(run, c->from, n, -2.0, 2.0);
    const double *y = run_random(run, c->from, n, -2.0, 2.0);
    double *sum = run_host(run, (size_t)n * sizeof(*sum));
    const char *in = run_in(run, c->from, x, n);
    char *cast = run_in(run, c->to, x, n), *to = run_in(run, c->from, y, n);
    const size_t skip_from = (size_t)c->skip * dtype_size(c->from);
    const size_t skip_to = (size_t)c->skip * dtype_size(c->to);
    for (int64_t i = 0; i < n; i++)
        sum[i] = y[i] + (i < c->skip ? 0.0 : x[i]);
    run_changes(run, cast);
    run_changes(run, to);
    assert_int_equal(k_cast(c->from, in + skip_from, c->to, cast + skip_to, c->n, NULL), ST_OK);
    assert_int_equal(k_sum(c->from, in + skip_from, to + skip_from, to + skip_from, c->n, NULL),
                     ST_OK);
    run_expect(run, cast, c->to, x, n, 1e-7);
    run_expect(run, to, c->from, sum, n, 1e-7);
}

static void casts_and_sums_work_wherever_the_arrays_begin(void **state)
{
    (void)state;
    const int64_t sizes[] = { 1, 7, 8, 1023, 2049 };
    for (size_t t = 0; t < 9; t++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            const struct flat_case c = { sizes[s], (int64_t)(s + t) % 3, types[t / 3],
                                         types[t % 3] };
            run_seeds(cast_and_sum, &c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(max_pool_keeps_the_first_greatest_and_sends_the_gradient_there),
        cmocka_unit_test(max_pool_of_not_a_number_is_not_a_number),
        cmocka_unit_test(average_pool_is_the_mean_and_spreads_the_gradient),
        cmocka_unit_test(transposes_move_every_element_once),
        cmocka_unit_test(casts_and_sums_work_wherever_the_arrays_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
