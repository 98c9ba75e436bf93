#include "trainer/update/schedule.h"

#include "common/check.h"

#define PI 3.14159265358979323846

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

double schedule_lr(const struct schedule *schedule, uint64_t step)
{
    if (step < schedule->warmup)
        return schedule->lr * ((double)(step + 1) / (double)schedule->warmup);
    uint64_t after = step - schedule->warmup;
    switch (schedule->kind) {
    case SCHEDULE_CONSTANT:
        return schedule->lr;
    case SCHEDULE_COSINE: {
        uint64_t span = schedule->total > schedule->warmup ? schedule->total - schedule->warmup : 1;
        double part = after < span ? (double)after / (double)span : 1.0;
        double shape = 0.5 * (1.0 + half_period_cosine(part * PI));
        return schedule->lr * (schedule->min + (1.0 - schedule->min) * shape);
    }
    case SCHEDULE_STEP:
        CHECK(schedule->every >= 1);
        return schedule->lr * power(schedule->gamma, after / schedule->every);
    }
    check_failed("schedule->kind", __FILE__, __LINE__);
}
