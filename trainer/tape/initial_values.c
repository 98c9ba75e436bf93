#include "trainer/tape/initial_values.h"

#include <math.h>

#include "common/check.h"
#include "common/rng.h"

#define PI         3.14159265358979323846
#define LN2        0.69314718055994530942
#define SQRT_HALF  0.70710678118654752440
#define LOG_TERMS  13 /* of the series in s², s² < 0.03 */
#define TRIG_TERMS 8  /* on [-π/4, π/4] */

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

/* log x of x > 0: x = m·2^e with m in [√½, √2), log m = 2·artanh((m - 1)/(m + 1)). */
static double natural_log(double x)
{
    int exponent;
    double m = frexp(x, &exponent);
    if (m < SQRT_HALF) {
        m *= 2;
        exponent--;
    }
    double s = (m - 1) / (m + 1);
    double square = s * s;
    double sum = 0;
    for (int k = LOG_TERMS; k >= 0; k--)
        sum = sum * square + 1.0 / (double)(2 * k + 1);
    return 2 * s * sum + (double)exponent * LN2;
}

/* Taylor's series of the cosine (first 1, n 0) or the sine (first x, n 1): each term is the one
 * before times -x²/((n + 1)·(n + 2)). */
static double series(double first, int n, double x)
{
    double term = first;
    double sum = first;
    for (int k = 0; k < TRIG_TERMS; k++) {
        term *= -(x * x) / (double)((n + 1) * (n + 2));
        sum += term;
        n += 2;
    }
    return sum;
}

/* cos 2πu and sin 2πu of u in [0, 1): within ±π/4 by series, then turned by quarters. */
static void circle(double u, double *out_cos, double *out_sin)
{
    int quarter = (int)(4 * u + 0.5);
    double x = 2 * PI * (u - 0.25 * quarter);
    double c = series(1, 0, x);
    double s = series(x, 1, x);
    for (int i = 0; i < (quarter & 3); i++) { /* on by a quarter: exact */
        double old = c;
        c = -s;
        s = old;
    }
    *out_cos = c;
    *out_sin = s;
}

void initial_values_normal(const uint32_t word[4], double out[4])
{
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * natural_log(((double)word[i] + 1) * 0x1p-32));
        double c;
        double s;
        circle((double)word[i + 1] * 0x1p-32, &c, &s);
        out[i] = radius * c;
        out[i + 1] = radius * s;
    }
}

static void draw_normal(const struct tape_tensor *tensor, uint64_t key, uint32_t index, float *out)
{
    CHECK(tensor->count <= UINT32_MAX);
    for (size_t i = 0; i < tensor->count; i += 4) {
        struct rng_counter words = rng_words(key, (uint32_t)(i / 4), index, 0, 0);
        double normal[4];
        initial_values_normal(words.word, normal);
        for (size_t k = 0; k < 4 && i + k < tensor->count; k++)
            out[i + k] = (float)((double)tensor->std * normal[k]);
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
