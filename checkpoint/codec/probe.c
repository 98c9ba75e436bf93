#include "checkpoint/codec/probe.h"

struct sample_plan sample_plan(size_t count, size_t words)
{
    struct sample_plan plan = { .runs = 1, .run = count, .step = 0 };
    if (count > words) {
        plan.run = SAMPLE_RUN;
        plan.runs = words / SAMPLE_RUN;
        plan.step = (count - SAMPLE_RUN) / (plan.runs - 1);
    }
    return plan;
}

/* log2(n) to 16 binary places, n >= 1: by squaring, so that every machine decides alike. */
static float log2_of(unsigned n)
{
    int whole = 31 - __builtin_clz(n);
    double x = (double)n / (double)(1u << whole), result = whole;
    double bit = 0.5;
    for (int place = 0; place < 16; place++, bit /= 2) {
        x *= x;
        if (x >= 2) {
            x /= 2;
            result += bit;
        }
    }
    return (float)result;
}

void probe_weights(struct probe_weights *out)
{
    out->of[0] = 0;
    for (unsigned n = 1; n <= SAMPLE_MAX; n++)
        out->of[n] = (float)n * log2_of(n);
}

void probe_entropy(const struct probe_weights *weights, const uint32_t *words, size_t count,
                   size_t width, float entropy[4])
{
    uint16_t seen[4][256] = { { 0 } };
    for (size_t i = 0; i < count; i++) {
        for (size_t p = 0; p < width; p++)
            seen[p][words[i] >> (8 * p) & 255]++;
    }
    for (size_t p = 0; p < width; p++) {
        float sum = 0;
        for (size_t i = 0; i < 256; i++)
            sum += weights->of[seen[p][i]];
        entropy[p] = (weights->of[count] - sum) / (float)count;
    }
}
