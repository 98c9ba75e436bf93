#include "trainer/tape/initial_values.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/check.h"
#include "common/rng.h"

#define PI         3.14159265358979323846
#define LN2        0.69314718055994530942
#define SQRT_HALF  0.70710678118654752440
#define LOG_TERMS  13            /* of the series in s², s² < 0.03 */
#define TRIG_TERMS 8             /* on [-π/4, π/4] */
#define NORMALS    ((size_t)128) /* numbers at a time */

static void set_all(float *out, size_t count, float value)
{
    for (size_t i = 0; i < count; i++)
        out[i] = value;
}

static void draw_uniform(const struct tape_tensor *tensor, uint64_t key, uint32_t index, float *out)
{
    CHECK(tensor->fan_in >= 1);
    CHECK(tensor->count <= UINT32_MAX);
    float bound = (float)(1.0 / sqrt((double)tensor->fan_in));
    for (size_t i = 0; i < tensor->count; i++) {
        struct rng_counter words = rng_words(key, (uint32_t)i, index, 0, 0);
        out[i] = (2.0f * rng_uniform(words.word[0]) - 1.0f) * bound;
    }
}

/* log x of x > 0, no subnormal: x = m·2^e with m in [√½, √2), log m = 2·artanh((m - 1)/(m + 1)). */
static inline double natural_log(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int32_t exponent = (int32_t)(bits >> 52) - 1022;
    bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3fe0000000000000); /* [½, 1) */
    double m;
    memcpy(&m, &bits, sizeof(m));
    const bool is_low = m < SQRT_HALF;
    m = is_low ? m * 2 : m;
    exponent = is_low ? exponent - 1 : exponent;
    double s = (m - 1) / (m + 1);
    double square = s * s;
    double sum = 0;
#pragma GCC unroll 16
    for (int k = LOG_TERMS; k >= 0; k--)
        sum = sum * square + 1.0 / (double)(2 * k + 1);
    return 2 * s * sum + (double)exponent * LN2;
}

/* Taylor's series of the cosine (first 1, n 0) or the sine (first x, n 1): each term is the one
 * before times -x²/((n + 1)·(n + 2)). */
static inline double series(double first, int n, double x)
{
    double term = first;
    double sum = first;
#pragma GCC unroll 16
    for (int k = 0; k < TRIG_TERMS; k++) {
        term *= -(x * x) / (double)((n + 1) * (n + 2));
        sum += term;
        n += 2;
    }
    return sum;
}

/* Two normal numbers of two words: cos and sin 2πu of u in [0, 1) within ±π/4 by series, then
 * turned by quarters, which is exact. */
static inline void normal_pair(uint32_t first, uint32_t second, double *out)
{
    const double radius = sqrt(-2 * natural_log(((double)first + 1) * 0x1p-32));
    const double u = (double)second * 0x1p-32;
    const int32_t quarter = (int32_t)(4 * u + 0.5);
    const double x = 2 * PI * (u - 0.25 * quarter);
    const double c = series(1, 0, x), s = series(x, 1, x);
    const bool odd = (quarter & 1) != 0, back = (quarter & 2) != 0;
    const double turned_c = odd ? -s : c, turned_s = odd ? c : s;
    out[0] = radius * (back ? -turned_c : turned_c);
    out[1] = radius * (back ? -turned_s : turned_s);
}

void initial_values_normal(const uint32_t word[4], double out[4])
{
    normal_pair(word[0], word[1], out);
    normal_pair(word[2], word[3], out + 2);
}

/* A loop without branches and calls, so that the compiler makes vectors of it, per instruction set;
 * each operation is IEEE's, so that all have the same bits. */
struct normals {
    uint32_t word[NORMALS];
    double out[NORMALS];
};

static inline __attribute__((always_inline)) void normals_compute(struct normals *n)
{
    for (size_t i = 0; i < NORMALS; i += 2)
        normal_pair(n->word[i], n->word[i + 1], n->out + i);
}

static void normals_plain(struct normals *n)
{
    normals_compute(n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void normals_avx2(struct normals *n)
{
    normals_compute(n);
}

__attribute__((target("avx512f,avx512dq"))) static void normals_avx512(struct normals *n)
{
    normals_compute(n);
}
#endif

static void (*normals_chosen(void))(struct normals *n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return normals_avx512;
    if (__builtin_cpu_supports("avx2"))
        return normals_avx2;
#endif
    return normals_plain;
}

static void draw_normal(const struct tape_tensor *tensor, uint64_t key, uint32_t index, float *out)
{
    void (*const compute)(struct normals * n) = normals_chosen();
    const double std = (double)tensor->std;
    struct normals normals;
    CHECK(tensor->count <= UINT32_MAX);
    for (size_t at = 0; at < tensor->count; at += NORMALS) {
        for (size_t i = 0; i < NORMALS; i += 4) {
            const struct rng_counter words = rng_words(key, (uint32_t)((at + i) / 4), index, 0, 0);
            memcpy(normals.word + i, words.word, sizeof(words.word));
        }
        compute(&normals);
        const size_t left = tensor->count - at, count = left < NORMALS ? left : NORMALS;
        for (size_t i = 0; i < count; i++)
            out[at + i] = (float)(std * normals.out[i]);
    }
}

static void draw_tensor(const struct tape_tensor *tensor, uint64_t key, uint32_t index, float *flat)
{
    float *out = flat + tensor->offset;
    switch (tensor->init) {
    case TAPE_INIT_UNIFORM:
        draw_uniform(tensor, key, index, out);
        break;
    case TAPE_INIT_ZERO:
        set_all(out, tensor->count, 0);
        break;
    case TAPE_INIT_ONE:
        set_all(out, tensor->count, 1);
        break;
    case TAPE_INIT_NORMAL:
        draw_normal(tensor, key, index, out);
        break;
    }
}

void initial_values_param(const struct tape *tape, uint64_t seed, int param, float *params)
{
    draw_tensor(&tape->params[param], rng_key(seed, RNG_INIT), (uint32_t)param, params);
}

void initial_values_stat(const struct tape *tape, int stat, float *stats)
{
    draw_tensor(&tape->stats[stat], 0, (uint32_t)stat, stats);
}

void initial_values_params(const struct tape *tape, uint64_t seed, float *params)
{
    for (int i = 0; i < tape->param_count; i++)
        initial_values_param(tape, seed, i, params);
}

void initial_values_stats(const struct tape *tape, float *stats)
{
    for (int i = 0; i < tape->stat_count; i++)
        initial_values_stat(tape, i, stats);
}
