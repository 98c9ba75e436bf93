/* Loops over flat buffers against float64, and what the launch functions refuse. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"
#include "kernels/backend.h"
#include "kernels/cuda/own/k.h"
#include "kernels/mix.h"
#include "tests/gpu/device.h"
#include "tests/gpu/kernel_run.h"
#include "tests/test.h"

#define NEAR 1e-6

static const int64_t sizes[] = { 1, 3, 4, 1023, 1024, 1025, 5000 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void add_and_fill(struct run *run, const void *arg)
{
    const int64_t n = *(const int64_t *)arg;
    const double *x = run_random(run, DTYPE_F32, n, -2.0, 2.0);
    const double *y = run_random(run, DTYPE_F32, n, -2.0, 2.0);
    double *sum = run_host(run, (size_t)n * sizeof(*sum));
    double *half = run_host(run, (size_t)n * sizeof(*half));
    float *to = run_in_flat(run, x, n), *filled = run_out_flat(run, n);
    for (int64_t i = 0; i < n; i++) {
        sum[i] = x[i] + y[i];
        half[i] = 0.5;
    }
    run_changes(run, to);
    assert_int_equal(k_vector_add(to, to, run_in_flat(run, y, n), (size_t)n, NULL), ST_OK);
    assert_int_equal(k_vector_fill(filled, 0.5f, (size_t)n, NULL), ST_OK);
    float *words = run_out_flat(run, n);
    assert_int_equal(k_vector_words(words, run_in_flat(run, x, n), (size_t)n, NULL), ST_OK);
    run_expect(run, to, DTYPE_F32, sum, n, NEAR);
    run_expect(run, filled, DTYPE_F32, half, n, 0.0);
    run_expect(run, words, DTYPE_F32, x, n, 0.0);
}

static void sums_and_fills_touch_every_element(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++)
        run_seeds(add_and_fill, &sizes[i]);
}

/* Some short ranges, and one of `longest` that begins where no vector would. */
static void square_sums(struct run *run, const void *arg)
{
    const int64_t longest = *(const int64_t *)arg;
    const uint64_t begin[] = { 0, 1, 3, 6, 10, 17, 17 + (uint64_t)longest };
    const size_t ranges = sizeof(begin) / sizeof(begin[0]) - 1;
    const int64_t n = (int64_t)begin[ranges];
    const double *x = run_random(run, DTYPE_F32, n, -2.0, 2.0);
    double *want = run_host(run, ranges * sizeof(*want));
    double *got = run_host(run, ranges * sizeof(*got));
    double *out = run_in_bytes(run, want, ranges * sizeof(*want));
    const uint64_t *borders = run_in_bytes(run, begin, sizeof(begin));
    for (size_t r = 0; r < ranges; r++) {
        for (uint64_t i = begin[r]; i < begin[r + 1]; i++)
            want[r] += x[i] * x[i];
    }
    run_changes(run, out);
    assert_int_equal(k_vector_square_sums(out, run_in_flat(run, x, n), borders, ranges, NULL),
                     ST_OK);
    run_get(run, out, got, ranges * sizeof(*got));
    for (size_t r = 0; r < ranges; r++)
        assert_true(fabs(got[r] - want[r]) <= 1e-11 * want[r]);
}

/* The words that kernels/mix.h makes of them, added up. */
static void checksums(struct run *run, const void *arg)
{
    const int64_t n = *(const int64_t *)arg;
    const int64_t pieces = (n + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    const double *x = run_random(run, DTYPE_F32, n, -2.0, 2.0);
    uint64_t *want = run_host(run, (size_t)pieces * sizeof(*want));
    uint64_t *got = run_host(run, (size_t)pieces * sizeof(*got));
    uint64_t *out = run_in_bytes(run, want, (size_t)pieces * sizeof(*want));
    for (int64_t i = 0; i < n; i++)
        want[i / PIECE_ELEMENTS] += mix_word((float)x[i], (uint32_t)(i % PIECE_ELEMENTS));
    run_changes(run, out);
    assert_int_equal(k_vector_checksums(out, run_in_flat(run, x, n), (size_t)n, NULL), ST_OK);
    run_get(run, out, got, (size_t)pieces * sizeof(*got));
    assert_memory_equal(got, want, (size_t)pieces * sizeof(*got));
}

static void checksums_are_of_pieces(void **state)
{
    (void)state;
    const int64_t lengths[] = { 1, 6, PIECE_ELEMENTS - 1, 3 * PIECE_ELEMENTS + 77 };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        run_seeds(checksums, &lengths[i]);
}

static void square_sums_are_of_ranges(void **state)
{
    (void)state;
    const int64_t lengths[] = { 1, 6, PIECE_ELEMENTS - 1, PIECE_ELEMENTS + 2,
                                3 * PIECE_ELEMENTS + 77 };
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
        run_seeds(square_sums, &lengths[i]);
}

struct update_case {
    int64_t n;
    int variant;
    size_t borders;
    uint64_t border[6];
};

static bool decays(const struct update_case *c, int64_t i)
{
    size_t before = 0;
    while (before < c->borders && c->border[before] <= (uint64_t)i)
        before++;
    return before % 2 == 0;
}

static struct decay_map map_of(struct run *run, const struct update_case *c)
{
    if (c->borders == 0)
        return (struct decay_map){ NULL, 0 };
    return (struct decay_map){ run_in_bytes(run, c->border, c->borders * sizeof(uint64_t)),
                               c->borders };
}

/* Copies of parts of the parameters, in all types: one that begins and ends within vectors, one
 * that spans blocks, one that begins within a block. */
#define COPIES 3

struct kept {
    struct copy_map map;
    struct param_copy copy[COPIES];
};

static struct kept keep(struct run *run, uint64_t n)
{
    static const enum dtype types[COPIES] = { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    const uint64_t first[COPIES] = { n / 20, n / 7, n - n / 3 };
    const uint64_t end[COPIES] = { n / 11, n / 2 + 1, n };
    struct kept kept = { .map = { NULL, 0 } };
    for (int i = 0; i < COPIES; i++) {
        if (first[i] < end[i] && (i == 0 || first[i] >= end[i - 1])) {
            struct param_copy *c = &kept.copy[kept.map.count++];
            *c = (struct param_copy){ first[i], end[i] - first[i], NULL, types[i] };
            c->out = run_out(run, c->dtype, (int64_t)c->count);
        }
    }
    void *copies = run_scratch(run, sizeof(kept.copy)); /* addresses: others under each seed */
    device_put(copies, kept.copy, sizeof(kept.copy));
    kept.map.copies = copies;
    return kept;
}

/* Each is what the parameter is now, rounded. */
static void expect_kept(struct run *run, const struct kept *kept, const float *param, int64_t n)
{
    double *all = run_host(run, (size_t)n * sizeof(*all));
    double *got = run_host(run, (size_t)n * sizeof(*got));
    run_values(run, param, DTYPE_F32, all, n);
    for (size_t i = 0; i < kept->map.count; i++) {
        const struct param_copy *c = &kept->copy[i];
        run_values(run, c->out, c->dtype, got, (int64_t)c->count);
        for (uint64_t k = 0; k < c->count; k++)
            assert_true(got[k] == run_round(c->dtype, all[c->first + k]));
    }
}

/* variant & 1: momentum, & 2: the first step, & 4: Nesterov's, & 8: no decay map */
static void sgd(struct run *run, const void *arg)
{
    const struct update_case *c = arg;
    double *param = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    double *momentum = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    const double *grad = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    const struct decay_map map = map_of(run, c);
    struct sgd_args args = { .lr = 0.1f,
                             .momentum = (c->variant & 1) != 0 ? 0.9f : 0.0f,
                             .weight_decay = 0.01f,
                             .grad_scale = 0.25f,
                             .nesterov = (c->variant & 4) != 0,
                             .decay = (c->variant & 8) != 0 ? NULL : &map,
                             .first = (c->variant & 2) != 0 };
    const struct kept kept = keep(run, (uint64_t)c->n);
    args.copies = &kept.map;
    float *p = run_in_flat(run, param, c->n), *m = run_in_flat(run, momentum, c->n);
    const double keep = args.first ? 0.0 : (double)args.momentum;
    for (int64_t i = 0; i < c->n; i++) {
        const double decay = args.decay == NULL || decays(c, i) ? 0.01 : 0.0;
        const double g = grad[i] * 0.25 + decay * param[i];
        double step = g;
        if (args.momentum != 0.0f) {
            momentum[i] = keep * momentum[i] + g;
            step = args.nesterov ? g + (double)args.momentum * momentum[i] : momentum[i];
        }
        param[i] -= 0.1 * step;
    }
    run_changes(run, p);
    run_changes(run, m);
    assert_int_equal(k_vector_sgd(p, m, run_in_flat(run, grad, c->n), (size_t)c->n, &args, NULL),
                     ST_OK);
    run_expect(run, p, DTYPE_F32, param, c->n, NEAR);
    run_expect(run, m, DTYPE_F32, momentum, c->n, NEAR);
    expect_kept(run, &kept, p, c->n);
}

static void adamw(struct run *run, const void *arg)
{
    const struct update_case *c = arg;
    double *param = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    double *m = run_random(run, DTYPE_F32, c->n, -0.1, 0.1);
    double *v = run_random(run, DTYPE_F32, c->n, 0.0, 0.1);
    const double *grad = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    const struct decay_map map = map_of(run, c);
    const double t = 1.0 + (double)c->variant;
    const struct kept none = { .map = { NULL, 0 } };
    const struct kept kept = (c->variant & 2) != 0 ? none : keep(run, (uint64_t)c->n);
    const struct adamw_args args = { .lr = 0.01f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .grad_scale = 0.5f,
                                     .decay = (c->variant & 8) != 0 ? NULL : &map,
                                     .copies = kept.map.count == 0 ? NULL : &kept.map,
                                     .t = (uint64_t)c->variant + 1 };
    const struct k_adamw_buffers b = { run_in_flat(run, param, c->n), run_in_flat(run, m, c->n),
                                       run_in_flat(run, v, c->n), run_in_flat(run, grad, c->n) };
    for (int64_t i = 0; i < c->n; i++) {
        const double g = grad[i] * 0.5;
        const bool decayed = args.decay == NULL || decays(c, i);
        m[i] += 0.1 * (g - m[i]);
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        const double first = m[i] / (1.0 - pow(0.9, t)), second = v[i] / (1.0 - pow(0.95, t));
        param[i] *= decayed ? 1.0 - 0.01 * 0.1 : 1.0;
        param[i] -= 0.01 * first / (sqrt(second) + 1e-8);
    }
    run_changes(run, b.param);
    run_changes(run, b.m);
    run_changes(run, b.v);
    assert_int_equal(k_vector_adamw(&b, (size_t)c->n, &args, NULL), ST_OK);
    run_expect(run, b.param, DTYPE_F32, param, c->n, 2 * NEAR);
    run_expect(run, b.m, DTYPE_F32, m, c->n, NEAR);
    run_expect(run, b.v, DTYPE_F32, v, c->n, 2 * NEAR);
    expect_kept(run, &kept, b.param, c->n);
}

static void lion(struct run *run, const void *arg)
{
    const struct update_case *c = arg;
    double *param = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    double *m = run_random(run, DTYPE_F32, c->n, -0.1, 0.1);
    const double *grad = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    const struct decay_map map = map_of(run, c);
    const struct kept none = { .map = { NULL, 0 } };
    const struct kept kept = (c->variant & 2) != 0 ? none : keep(run, (uint64_t)c->n);
    const struct lion_args args = { .lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.99f,
                                    .weight_decay = 0.1f,
                                    .grad_scale = 0.5f,
                                    .decay = (c->variant & 8) != 0 ? NULL : &map,
                                    .copies = kept.map.count == 0 ? NULL : &kept.map };
    float *p = run_in_flat(run, param, c->n), *moment = run_in_flat(run, m, c->n);
    for (int64_t i = 0; i < c->n; i++) {
        const double g = grad[i] * 0.5, along = 0.9 * m[i] + 0.1 * g;
        const bool decayed = args.decay == NULL || decays(c, i);
        m[i] = 0.99 * m[i] + 0.01 * g;
        param[i] *= decayed ? 1.0 - 0.01 * 0.1 : 1.0;
        param[i] -= 0.01 * (double)((along > 0) - (along < 0));
    }
    run_changes(run, p);
    run_changes(run, moment);
    assert_int_equal(
        k_vector_lion(p, moment, run_in_flat(run, grad, c->n), (size_t)c->n, &args, NULL), ST_OK);
    run_expect(run, p, DTYPE_F32, param, c->n, NEAR);
    run_expect(run, moment, DTYPE_F32, m, c->n, NEAR);
    expect_kept(run, &kept, p, c->n);
}

static void lamb(struct run *run, const void *arg)
{
    const struct update_case *c = arg;
    const double *param = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    double *m = run_random(run, DTYPE_F32, c->n, -0.1, 0.1);
    double *v = run_random(run, DTYPE_F32, c->n, 0.0, 0.1);
    double *grad = run_random(run, DTYPE_F32, c->n, -1.0, 1.0);
    const struct decay_map map = map_of(run, c);
    const double t = 1.0 + (double)c->variant;
    const struct adamw_args args = { .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .eps = 1e-6f,
                                     .weight_decay = 0.1f,
                                     .grad_scale = 0.5f,
                                     .decay = (c->variant & 8) != 0 ? NULL : &map,
                                     .t = (uint64_t)c->variant + 1 };
    const struct k_lamb_buffers b = { run_in_flat(run, param, c->n), run_in_flat(run, m, c->n),
                                      run_in_flat(run, v, c->n), run_in_flat(run, grad, c->n) };
    for (int64_t i = 0; i < c->n; i++) {
        const double g = grad[i] * 0.5;
        const bool decayed = args.decay == NULL || decays(c, i);
        m[i] += 0.1 * (g - m[i]);
        v[i] = 0.95 * v[i] + 0.05 * g * g;
        const double first = m[i] / (1.0 - pow(0.9, t)), second = v[i] / (1.0 - pow(0.95, t));
        grad[i] = first / (sqrt(second) + 1e-6) + (decayed ? 0.1 * param[i] : 0);
    }
    run_changes(run, b.m);
    run_changes(run, b.v);
    run_changes(run, b.grad);
    assert_int_equal(k_vector_lamb(&b, (size_t)c->n, &args, NULL), ST_OK);
    run_expect(run, b.m, DTYPE_F32, m, c->n, NEAR);
    run_expect(run, b.v, DTYPE_F32, v, c->n, 2 * NEAR);
    run_expect(run, b.grad, DTYPE_F32, grad, c->n, 4 * NEAR);
}

static void updates_are_those_of_the_definition_and_decay_where_the_map_says(void **state)
{
    (void)state;
    for (int variant = 0; variant < 16; variant++) {
        for (size_t i = 0; i < SIZES; i++) {
            const uint64_t n = (uint64_t)sizes[i];
            const struct update_case c = {
                sizes[i], variant, i % 2 == 0 ? 6 : (i % 3), { 1, 2, 700, 1024, 1027, n }
            };
            const struct update_case ends = { sizes[i], variant, 2, { 0, 2048, 0, 0, 0, 0 } };
            const bool plain = (variant & 1) == 0 && (variant & 6) != 0;
            if (plain) /* no momentum: nothing that these bits change */
                continue;
            run_seeds(sgd, &c);
            run_seeds(adamw, i % 2 == 0 ? &c : &ends);
            run_seeds(lion, i % 2 == 0 ? &c : &ends);
            run_seeds(lamb, i % 2 == 0 ? &c : &ends);
        }
    }
}

static void what_is_out_of_range_is_refused(void **state)
{
    (void)state;
    char *const odd = (char *)64 + 2; /* never read: refused before */
    const struct k_layer_norm norm = { .rows = 1, .c = 4, .x = odd, .y_dtype = DTYPE_F32 };
    const struct k_layer_norm backwards = { .rows = 1, .c = 4, .x_dtype = DTYPE_BF16 };
    const struct k_layer_norm integers = {
        .rows = 1, .c = 4, .x_dtype = DTYPE_I32, .y_dtype = DTYPE_I32
    };
    const struct k_loss narrow = { .rows = 1, .vocab = 8, .stride = 4 };
    const struct k_dropout certain = { .samples = 1, .elements = 4, .p = 1.0f };
    const struct k_max_pool beyond = {
        .n = 1, .h = 4, .w = 4, .c = 1, .p = 4, .q = 4, .kernel = 2, .stride = 2
    };
    const struct k_activation_grad blind = { .rows = 1, .c = 1, .activation = ACTIVATION_GELU_ERF };
    const struct k_embedding_grad few = {
        .n = 1, .t = 9, .c = 4, .vocab = 5, .positions = 8, .dposition = (float *)64
    };
    assert_int_equal(k_layer_norm_forward(&norm, NULL), ST_INVALID);
    assert_int_equal(k_layer_norm_forward(&backwards, NULL), ST_INVALID);
    assert_int_equal(k_layer_norm_forward(&integers, NULL), ST_INVALID);
    assert_int_equal(k_loss_forward(&narrow, NULL), ST_INVALID);
    assert_int_equal(k_dropout(&certain, NULL), ST_INVALID);
    assert_int_equal(k_max_pool_forward(&beyond, NULL), ST_INVALID);
    assert_int_equal(k_activation_backward(&blind, NULL), ST_INVALID);
    assert_int_equal(k_embedding_backward(&few, NULL), ST_INVALID);
    assert_int_equal(k_cast(DTYPE_U8, odd, DTYPE_F32, odd, 1, NULL), ST_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_and_fills_touch_every_element),
        cmocka_unit_test(square_sums_are_of_ranges),
        cmocka_unit_test(checksums_are_of_pieces),
        cmocka_unit_test(updates_are_those_of_the_definition_and_decay_where_the_map_says),
        cmocka_unit_test(what_is_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
