#include "trainer/update/schedule.h"

#include <math.h>

#include "common/check.h"

#define PI                 3.14159265358979323846
#define INVERSE_SQRT_STEPS 10000 /* without warm-up; get_inverse_sqrt_schedule's */

/* Cosine on [0, π]: Taylor's series on [0, π/2], below 1e-16 after the x^22 term. */
static double half_period_cosine(double x)
{
    double sign = 1;
    if (x > PI / 2) {
        x = PI - x;
        sign = -1;
    }
    double term = 1;
    double sum = 1;
    for (int k = 1; k <= 11; k++) {
        term *= -(x * x) / (double)((2 * k - 1) * (2 * k));
        sum += term;
    }
    return sign * sum;
}

/* base^n by squaring: the same bits everywhere. */
static double power(double base, uint64_t n)
{
    double out = 1;
    for (; n > 0; n >>= 1) {
        if ((n & 1) != 0)
            out *= base;
        base *= base;
    }
    return out;
}

/* x^exponent for x in [0, 1] and an exponent > 0: whole powers by squaring, the binary digits of
 * the rest by roots, which IEEE 754 rounds correctly. */
static double real_power(double x, double exponent)
{
    const double whole = floor(exponent);
    double out = power(x, (uint64_t)whole), root = x;
    for (double rest = exponent - whole; rest > 0;) {
        root = sqrt(root);
        rest *= 2;
        if (rest >= 1) {
            out *= root;
            rest -= 1;
        }
    }
    return out;
}

/* The part of `span` steps that is done. */
static double part_of(uint64_t done, uint64_t span)
{
    return done < span ? (double)done / (double)span : 1.0;
}

/* From 1 to 0: half a period. */
static double cosine_shape(double part)
{
    return 0.5 * (1.0 + half_period_cosine(part * PI));
}

static double one_cycle(const struct schedule *s, uint64_t step)
{
    const uint64_t top = s->warmup > 0 ? s->warmup - 1 : 0;
    if (step < top)
        return s->lr * (1.0 + (s->start - 1.0) * cosine_shape(part_of(step, top)));
    const uint64_t span = s->total > top + 1 ? s->total - 1 - top : 1;
    return s->lr * (s->min + (1.0 - s->min) * cosine_shape(part_of(step - top, span)));
}

static double inverse_sqrt(const struct schedule *s, uint64_t step)
{
    const uint64_t scale = s->warmup > 0 ? s->warmup : INVERSE_SQRT_STEPS;
    return s->lr / sqrt((double)(step + scale - s->warmup) / (double)scale);
}

/* The steps behind those that have the whole rate: all after warm-up, or wsd's. */
static double decay_part(const struct schedule *s, uint64_t step)
{
    uint64_t first = s->warmup;
    if (s->kind == SCHEDULE_WSD && s->total > s->decay && s->total - s->decay > first)
        first = s->total - s->decay;
    return step < first ? 0.0 : part_of(step - first, s->total > first ? s->total - first : 1);
}

double schedule_lr(const struct schedule *schedule, uint64_t step)
{
    const struct schedule *s = schedule;
    double shape = 1; /* of a decay: from 1 to 0 */
    if (s->kind == SCHEDULE_ONE_CYCLE)
        return one_cycle(s, step);
    if (step < s->warmup)
        return s->lr * ((double)(step + 1) / (double)s->warmup);
    switch (s->kind) {
    case SCHEDULE_CONSTANT:
    case SCHEDULE_ONE_CYCLE:
        return s->lr;
    case SCHEDULE_INVERSE_SQRT:
        return inverse_sqrt(s, step);
    case SCHEDULE_STEP:
        CHECK(s->every >= 1);
        return s->lr * power(s->gamma, (step - s->warmup) / s->every);
    case SCHEDULE_COSINE:
        shape = cosine_shape(decay_part(s, step));
        break;
    case SCHEDULE_POLYNOMIAL:
        shape = real_power(1.0 - decay_part(s, step), s->power);
        break;
    case SCHEDULE_LINEAR:
    case SCHEDULE_WSD:
        shape = 1.0 - decay_part(s, step);
        break;
    }
    return s->lr * (s->min + (1.0 - s->min) * shape);
}
