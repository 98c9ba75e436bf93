#include "trainer/init.h"

#include <math.h>

#include "common/check.h"
#include "common/rng.h"

static void fill(float *out, size_t count, float value)
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

static void init_tensor(const struct tape_tensor *tensor, uint64_t key, uint32_t index, float *flat)
{
    float *out = flat + tensor->offset;
    switch (tensor->init) {
    case TAPE_INIT_UNIFORM:
        draw_uniform(tensor, key, index, out);
        break;
    case TAPE_INIT_ZERO:
        fill(out, tensor->count, 0);
        break;
    case TAPE_INIT_ONE:
        fill(out, tensor->count, 1);
        break;
    }
}

void init_params(const struct tape *tape, uint64_t seed, float *params)
{
    uint64_t key = rng_key(seed, RNG_INIT);
    for (int i = 0; i < tape->param_count; i++)
        init_tensor(&tape->params[i], key, (uint32_t)i, params);
}

void init_stats(const struct tape *tape, float *stats)
{
    for (int i = 0; i < tape->stat_count; i++)
        init_tensor(&tape->stats[i], 0, (uint32_t)i, stats);
}
