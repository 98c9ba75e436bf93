/* Activations, embedding, dropout and the loss, against float64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "kernels/backend.h"
#include "kernels/cuda/own/k.h"
#include "tests/gpu/kernel_run.h"
#include "tests/test.h"

#define NEAR 1e-5

static double activate(enum activation kind, double x)
{
    switch (kind) {
    case ACTIVATION_RELU:
        return x <= 0.0 ? 0.0 : x;
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case ACTIVATION_NONE:
        break;
    }
    return x;
}

/* By central differences, which know nothing of the formula. */
static double slope(enum activation kind, double x)
{
    const double h = 1e-5;
    if (kind == ACTIVATION_RELU)
        return x <= 0.0 ? 0.0 : 1.0;
    return (activate(kind, x + h) - activate(kind, x - h)) / (2.0 * h);
}

struct activation_case {
    int64_t rows, c;
    enum activation kind;
    enum dtype x, y;
    int variant;
};

/* variant & 1: bias, & 2: residual (written over), & 4: x + bias is kept, over x */
static void activation_forward(struct run *run, const void *arg)
{
    const struct activation_case *c = arg;
    const int64_t n = c->rows * c->c;
    const bool bias = (c->variant & 1) != 0, add = (c->variant & 2) != 0;
    const double *x = run_random(run, c->x, n, -4.0, 4.0);
    const double *b = run_random(run, DTYPE_F32, c->c, -1.0, 1.0);
    const double *residual = run_random(run, c->y, n, -1.0, 1.0);
    double *pre = run_host(run, (size_t)n * sizeof(*pre));
    double *y = run_host(run, (size_t)n * sizeof(*y));
    for (int64_t i = 0; i < n; i++) {
        pre[i] = x[i] + (bias ? b[i % c->c] : 0.0);
        y[i] = activate(c->kind, pre[i]) + (add ? residual[i] : 0.0);
    }
    struct k_activation args = {
        .rows = c->rows,
        .c = c->c,
        .activation = c->kind,
        .x_dtype = c->x,
        .y_dtype = c->y,
        .x = run_in(run, c->x, x, n),
        .bias = bias ? run_in_flat(run, b, c->c) : NULL,
        .residual = add ? run_in(run, c->y, residual, n) : NULL,
    };
    args.y = add ? (void *)(uintptr_t)args.residual : run_out(run, c->y, n);
    run_changes(run, args.y);
    if ((c->variant & 4) != 0) {
        args.pre = (void *)(uintptr_t)args.x;
        run_changes(run, args.x);
    }
    assert_int_equal(k_activation_forward(&args, NULL), ST_OK);
    run_expect(run, args.y, c->y, y, n, NEAR);
    if (args.pre != NULL)
        run_expect(run, args.pre, c->x, pre, n, NEAR);
}

/* variant & 1: bias gradient, accumulating with & 2; & 4: a second gradient; & 8: dx is added to,
 * in place; & 16: no dx */
static void activation_backward(struct run *run, const void *arg)
{
    const struct activation_case *c = arg;
    const int64_t n = c->rows * c->c;
    const bool sums = (c->variant & 1) != 0, accumulate = (c->variant & 2) != 0;
    const bool two = (c->variant & 4) != 0, add = (c->variant & 8) != 0;
    const enum dtype from = activation_reads(c->kind) == ACTIVATION_READS_OUTPUT ? c->y : c->x;
    const double *x = run_random(run, from, n, -4.0, 4.0);
    const double *dy = run_random(run, c->y, n, -1.0, 1.0);
    const double *dy2 = run_random(run, c->y, n, -1.0, 1.0);
    const double *dx_add = run_random(run, c->x, n, -1.0, 1.0);
    const double *before = run_random(run, DTYPE_F32, c->c, -1.0, 1.0);
    double *dx = run_host(run, (size_t)n * sizeof(*dx));
    double *dbias = run_host(run, (size_t)c->c * sizeof(*dbias));
    for (int64_t i = 0; i < c->c && accumulate; i++)
        dbias[i] = before[i];
    for (int64_t i = 0; i < n; i++) {
        dx[i] = (dy[i] + (two ? dy2[i] : 0.0)) * slope(c->kind, x[i]);
        dbias[i % c->c] += dx[i];
        dx[i] += add ? dx_add[i] : 0.0;
    }
    struct k_activation_grad args = {
        .rows = c->rows,
        .c = c->c,
        .activation = c->kind,
        .x_dtype = c->x,
        .y_dtype = c->y,
        .dy = run_in(run, c->y, dy, n),
        .dy2 = two ? run_in(run, c->y, dy2, n) : NULL,
        .from = c->kind == ACTIVATION_NONE ? NULL : run_in(run, from, x, n),
        .accumulate = accumulate,
        .scratch = run_scratch(run, k_activation_scratch(c->rows, c->c)),
    };
    if ((c->variant & 16) == 0)
        args.dx = add ? run_in(run, c->x, dx_add, n) : run_out(run, c->x, n);
    if (sums)
        args.dbias = accumulate ? run_in_flat(run, before, c->c) : run_out_flat(run, c->c);
    if (args.dx != NULL)
        run_changes(run, args.dx);
    if (args.dbias != NULL)
        run_changes(run, args.dbias);
    args.dx_add = add ? args.dx : NULL;
    assert_int_equal(k_activation_backward(&args, NULL), ST_OK);
    if (args.dx != NULL)
        run_expect(run, args.dx, c->x, dx, n, NEAR);
    if (args.dbias != NULL)
        run_expect(run, args.dbias, DTYPE_F32, dbias, c->c, NEAR);
}

static const enum dtype pairs[][2] = {
    { DTYPE_F32, DTYPE_F32 },   { DTYPE_F32, DTYPE_BF16 }, { DTYPE_BF16, DTYPE_F32 },
    { DTYPE_BF16, DTYPE_BF16 }, { DTYPE_F16, DTYPE_F16 },  { DTYPE_F16, DTYPE_F32 },
};
#define PAIRS (sizeof(pairs) / sizeof(pairs[0]))

static const int64_t shapes[][2] = { { 1, 1 },   { 3, 5 },    { 7, 8 },    { 33, 12 },
                                     { 9, 260 }, { 500, 24 }, { 2, 3080 }, { 1300, 3 } };
#define SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static void activations_and_what_goes_along_are_their_definitions(void **state)
{
    (void)state;
    int variant = 0;
    for (size_t p = 0; p < PAIRS; p++) {
        for (size_t s = 0; s < SHAPES; s++) {
            for (int kind = ACTIVATION_NONE; kind <= ACTIVATION_GELU_ERF; kind++, variant += 3) {
                const struct activation_case c = { shapes[s][0],          shapes[s][1],
                                                   (enum activation)kind, pairs[p][0],
                                                   pairs[p][1],           variant % 8 };
                run_seeds(activation_forward, &c);
            }
        }
    }
}

static void activation_gradients_are_differences_of_the_activations(void **state)
{
    (void)state;
    int variant = 0;
    for (size_t p = 0; p < PAIRS; p++) {
        for (size_t s = 0; s < SHAPES; s++) {
            for (int kind = ACTIVATION_NONE; kind <= ACTIVATION_GELU_ERF; kind++, variant += 5) {
                const struct activation_case c = { shapes[s][0],          shapes[s][1],
                                                   (enum activation)kind, pairs[p][0],
                                                   pairs[p][1],           variant % 32 };
                run_seeds(activation_backward, &c);
            }
        }
    }
}

struct embedding_case {
    int64_t n, t, c, vocab, positions;
    enum dtype dtype;
    bool accumulate, skewed, wrong;
};

static int32_t *tokens_of(struct run *run, const struct embedding_case *c)
{
    const int64_t count = c->n * c->t;
    int32_t *tokens = run_integers(run, count, (int32_t)c->vocab);
    const int32_t *chance = run_integers(run, count, 3);
    for (int64_t i = 0; i < count && c->skewed; i++)
        tokens[i] = chance[i] == 0 ? tokens[i] : (int32_t)(c->vocab / 2); /* most are one token */
    if (c->wrong) {
        tokens[0] = (int32_t)c->vocab;
        tokens[count / 2] = -1;
        tokens[count - 1] = INT32_MAX;
    }
    return tokens;
}

static void embedding_forward(struct run *run, const void *arg)
{
    const struct embedding_case *c = arg;
    const int64_t count = c->n * c->t, size = c->vocab * c->c;
    const int32_t *tokens = tokens_of(run, c);
    const double *weight = run_random(run, DTYPE_F32, size, -1.0, 1.0);
    const double *position = run_random(run, DTYPE_F32, c->positions * c->c, -1.0, 1.0);
    double *out = run_host(run, (size_t)(count * c->c) * sizeof(*out));
    uint32_t fault = 0;
    for (int64_t i = 0; i < count * c->c; i++) {
        const int64_t row = i / c->c, k = i % c->c;
        if (tokens[row] < 0 || tokens[row] >= c->vocab)
            continue;
        out[i] = weight[tokens[row] * c->c + k];
        out[i] += c->positions > 0 ? position[row % c->t * c->c + k] : 0.0;
    }
    const struct k_embedding args = {
        .n = c->n,
        .t = c->t,
        .c = c->c,
        .vocab = c->vocab,
        .dtype = c->dtype,
        .tokens = run_in_bytes(run, tokens, (size_t)count * sizeof(*tokens)),
        .weight = run_in_flat(run, weight, size),
        .position = c->positions > 0 ? run_in_flat(run, position, c->positions * c->c) : NULL,
        .out = run_out(run, c->dtype, count * c->c),
        .fault = run_in_bytes(run, &fault, sizeof(fault)),
    };
    run_changes(run, args.fault);
    assert_int_equal(k_embedding_forward(&args, NULL), ST_OK);
    run_expect(run, args.out, c->dtype, out, count * c->c, NEAR);
    run_get(run, args.fault, &fault, sizeof(fault));
    assert_int_equal(fault, c->wrong ? K_FAULT_TOKEN : 0);
}

static void embedding_backward(struct run *run, const void *arg)
{
    const struct embedding_case *c = arg;
    const int64_t count = c->n * c->t, size = c->vocab * c->c, wide = c->positions * c->c;
    const int32_t *tokens = tokens_of(run, c);
    const double *dout = run_random(run, c->dtype, count * c->c, -1.0, 1.0);
    double *dweight = run_random(run, DTYPE_F32, size, -1.0, 1.0);
    double *dposition = run_random(run, DTYPE_F32, wide, -1.0, 1.0);
    struct k_embedding_grad args = {
        .n = c->n,
        .t = c->t,
        .c = c->c,
        .vocab = c->vocab,
        .positions = c->positions,
        .dtype = c->dtype,
        .tokens = run_in_bytes(run, tokens, (size_t)count * sizeof(*tokens)),
        .dout = run_in(run, c->dtype, dout, count * c->c),
        .dweight = run_in_flat(run, dweight, size),
        .dposition = c->positions > 0 ? run_in_flat(run, dposition, wide) : NULL,
        .accumulate_weight = c->accumulate,
        .accumulate_position = c->accumulate,
        .scratch = run_scratch(run, k_embedding_scratch(count, c->c, c->vocab)),
    };
    run_changes(run, args.dweight);
    for (int64_t i = 0; i < size && !c->accumulate; i++)
        dweight[i] = 0.0;
    for (int64_t i = 0; i < wide && !c->accumulate; i++)
        dposition[i] = 0.0;
    for (int64_t i = 0; i < count * c->c; i++) {
        const int32_t token = tokens[i / c->c];
        if (token >= 0 && token < c->vocab)
            dweight[token * c->c + i % c->c] += dout[i];
        if (c->positions > 0)
            dposition[i % (c->t * c->c)] += dout[i];
    }
    if (args.dposition != NULL)
        run_changes(run, args.dposition);
    assert_int_equal(k_embedding_backward(&args, NULL), ST_OK);
    run_expect(run, args.dweight, DTYPE_F32, dweight, size, NEAR);
    if (args.dposition != NULL)
        run_expect(run, args.dposition, DTYPE_F32, dposition, wide, NEAR);
}

static void embedding_rows_and_their_gradients_are_sums_over_tokens(void **state)
{
    (void)state;
    const struct embedding_case cases[] = {
        { .n = 1, .t = 1, .c = 1, .vocab = 1, .dtype = DTYPE_F32 },
        { .n = 2, .t = 5, .c = 3, .vocab = 7, .positions = 5, .dtype = DTYPE_F32, .wrong = true },
        { .n = 4,
          .t = 33,
          .c = 8,
          .vocab = 255,
          .positions = 40,
          .dtype = DTYPE_BF16,
          .accumulate = true },
        { .n = 3,
          .t = 100,
          .c = 12,
          .vocab = 256,
          .dtype = DTYPE_F16,
          .skewed = true,
          .wrong = true },
        { .n = 5,
          .t = 1000,
          .c = 4,
          .vocab = 300,
          .positions = 1000,
          .dtype = DTYPE_F32,
          .skewed = true,
          .accumulate = true },
        { .n = 2, .t = 64, .c = 516, .vocab = 20, .dtype = DTYPE_F32, .skewed = true },
        { .n = 1, .t = 3000, .c = 1, .vocab = 70000, .dtype = DTYPE_BF16, .wrong = true },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        run_seeds(embedding_forward, &cases[i]);
        run_seeds(embedding_backward, &cases[i]);
    }
}

struct dropout_case {
    int64_t samples, elements;
    enum dtype x, y;
    float p;
    bool add;
};

static void dropout(struct run *run, const void *arg)
{
    const struct dropout_case *c = arg;
    const int64_t n = c->samples * c->elements;
    const uint64_t key = rng_key(99, RNG_DROPOUT);
    const double *x = run_random(run, c->x, n, -1.0, 1.0);
    const double *add = run_random(run, c->y, n, -1.0, 1.0);
    double *y = run_host(run, (size_t)n * sizeof(*y));
    uint32_t *draw = run_host(run, (size_t)(OP_DRAW_SAMPLES + c->samples) * sizeof(*draw));
    draw[OP_DRAW_KEY] = (uint32_t)key;
    draw[OP_DRAW_KEY + 1] = (uint32_t)(key >> 32);
    draw[OP_DRAW_STEP] = 12345;
    for (int64_t s = 0; s < c->samples; s++) {
        draw[OP_DRAW_SAMPLES + s] = (uint32_t)(1000 + 7 * s);
        for (int64_t e = 0; e < c->elements; e++) {
            const struct rng_counter w =
                rng_words(key, (uint32_t)(e / 4), 6, (uint32_t)(1000 + 7 * s), 12345);
            const bool keep = rng_uniform(w.word[e % 4]) >= c->p;
            const int64_t i = s * c->elements + e;
            y[i] = (keep ? x[i] / (1.0 - (double)c->p) : 0.0) + (c->add ? add[i] : 0.0);
        }
    }
    struct k_dropout args = {
        .samples = c->samples,
        .elements = c->elements,
        .x_dtype = c->x,
        .y_dtype = c->y,
        .p = c->p,
        .layer = 6,
        .draw = run_in_bytes(run, draw, (size_t)(OP_DRAW_SAMPLES + c->samples) * sizeof(*draw)),
        .x = run_in(run, c->x, x, n),
        .add = c->add ? run_in(run, c->y, add, n) : NULL,
    };
    args.y = c->add ? (void *)(uintptr_t)args.add : run_out(run, c->y, n);
    run_changes(run, args.y);
    assert_int_equal(k_dropout(&args, NULL), ST_OK);
    run_expect(run, args.y, c->y, y, n, NEAR);
}

static void dropout_keeps_what_the_random_words_say(void **state)
{
    (void)state;
    const int64_t samples_elements[][2] = {
        { 1, 1 }, { 3, 6 }, { 2, 4 }, { 5, 1000 }, { 2, 4104 }
    };
    for (size_t p = 0; p < PAIRS; p++) {
        for (size_t s = 0; s < sizeof(samples_elements) / sizeof(samples_elements[0]); s++) {
            const struct dropout_case c = {
                samples_elements[s][0], samples_elements[s][1], pairs[p][0], pairs[p][1],
                s == 2 ? 0.0f : 0.3f,   (s + p) % 2 == 0
            };
            run_seeds(dropout, &c);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_and_what_goes_along_are_their_definitions),
        cmocka_unit_test(activation_gradients_are_differences_of_the_activations),
        cmocka_unit_test(embedding_rows_and_their_gradients_are_sums_over_tokens),
        cmocka_unit_test(dropout_keeps_what_the_random_words_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
