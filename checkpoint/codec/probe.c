#include "checkpoint/codec/probe.h"

#define NARROW_COVER 0.9f /* of the sample that 15 values in a row must have */

struct probe_places probe_places(size_t count, size_t words)
{
    struct probe_places places = { .runs = 1, .run = count, .stride = 0 };
    if (count > words) {
        places.run = PROBE_RUN;
        places.runs = words / PROBE_RUN;
        places.stride = (count - PROBE_RUN) / (places.runs - 1);
    }
    return places;
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
    for (unsigned n = 1; n <= PROBE_WORDS_MAX; n++)
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

float probe_bits(const float entropy[4], size_t width)
{
    float bits = 0;
    for (size_t p = 0; p < width; p++)
        bits += entropy[p] > INCOMPRESSIBLE ? 8 : entropy[p];
    return bits;
}

bool probe_any_lowest_bit(const uint32_t *words, size_t count)
{
    uint32_t all = 0;
    for (size_t i = 0; i < count; i++)
        all |= words[i];
    return (all & 1) != 0;
}

bool probe_is_narrow(const uint32_t *words, size_t count, size_t p)
{
    uint16_t seen[256] = { 0 };
    for (size_t i = 0; i < count; i++)
        seen[words[i] >> (8 * p) & 255]++;
    unsigned within = 0, most = 0;
    for (size_t i = 0; i < 256; i++) {
        within += seen[i];
        if (i >= 15)
            within -= seen[i - 15];
        most = within > most ? within : most;
    }
    return (float)most >= NARROW_COVER * (float)count;
}
