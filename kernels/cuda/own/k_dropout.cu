/*
 * Dropout. The mask is never stored: both directions draw it from (key, element, layer, sample,
 * step). Four neighbours share one draw of four words. Where the elements of a sample don't divide
 * by four, each element draws for itself, and takes its one word.
 *
 * Source: the words: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
 */
#include "kernels/backend.h"
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"

#define SAMPLES_AT_ONCE 65535 /* of one launch: the most rows that a grid has */

/* Philox4x32-10: the words of common/rng.h, bit for bit. */
struct philox_words {
    uint32_t word[4];
};

DEVICE_INLINE struct philox_words philox(uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                                         uint32_t key0, uint32_t key1)
{
    struct philox_words w = { { a, b, c, d } };
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint32_t high0 = __umulhi(0xD2511F53u, w.word[0]), low0 = 0xD2511F53u * w.word[0];
        const uint32_t high1 = __umulhi(0xCD9E8D57u, w.word[2]), low1 = 0xCD9E8D57u * w.word[2];
        w.word[0] = high1 ^ w.word[1] ^ key0;
        w.word[1] = low1;
        w.word[2] = high0 ^ w.word[3] ^ key1;
        w.word[3] = low0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return w;
}

/* Uniform in [0, 1), of 24 bits: exact. */
DEVICE_INLINE float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

template <typename X, typename Y, int WIDTH>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    dropout_kernel(struct k_dropout a, float scale, int64_t first)
{
    const int64_t sample = first + blockIdx.y;
    const int64_t e = ((int64_t)blockIdx.x * VECTOR_THREADS + threadIdx.x) * WIDTH;
    const int64_t at = sample * a.elements + e;
    float v[WIDTH], add[WIDTH] = {};
    if (e >= a.elements)
        return;
    const uint32_t key0 = a.draw[OP_DRAW_KEY], key1 = a.draw[OP_DRAW_KEY + 1];
    const uint32_t step = a.draw[OP_DRAW_STEP], row = a.draw[OP_DRAW_SAMPLES + sample];
    load<WIDTH>(v, (const X *)a.x + at);
    if (a.add != nullptr)
        load<WIDTH>(add, (const Y *)a.add + at);
#pragma unroll
    for (int k = 0; k < WIDTH; k += 4) {
        const struct philox_words w =
            philox((uint32_t)((e + k) / 4), (uint32_t)a.layer, row, step, key0, key1);
#pragma unroll
        for (int i = 0; i < (WIDTH < 4 ? WIDTH : 4); i++) {
            uint32_t word = w.word[i];
            if constexpr (WIDTH == 1) {
                const uint32_t low = (e & 1) != 0 ? w.word[1] : w.word[0];
                const uint32_t high = (e & 1) != 0 ? w.word[3] : w.word[2];
                word = (e & 2) != 0 ? high : low;
            }
            v[k + i] = philox_uniform(word) >= a.p ? v[k + i] * scale : 0.0f;
            if (a.add != nullptr)
                v[k + i] += add[k + i];
        }
    }
    store<WIDTH>((Y *)a.y + at, v);
}

template <typename X, typename Y, int WIDTH>
static enum status dropout_launch(const struct k_dropout *a, void *stream)
{
    const int64_t span = (int64_t)VECTOR_THREADS * WIDTH;
    const unsigned blocks = (unsigned)((a->elements + span - 1) / span);
    const float scale = 1.0f / (1.0f - a->p);
    enum status st = ST_OK;
    for (int64_t first = 0; first < a->samples && st == ST_OK; first += SAMPLES_AT_ONCE) {
        const int64_t rest = a->samples - first;
        const unsigned count = (unsigned)(rest < SAMPLES_AT_ONCE ? rest : SAMPLES_AT_ONCE);
        st = launch(dropout_kernel<X, Y, WIDTH>, dim3(blocks, count), dim3(VECTOR_THREADS), 0,
                    stream, *a, scale, first);
    }
    return st;
}

enum status k_dropout(const struct k_dropout *args, void *stream)
{
    const struct k_dropout *const a = args;
    if (a->samples < 1 || a->elements < 1 || a->elements > (int64_t)1 << 34 ||
        !(a->p >= 0.0f && a->p < 1.0f) || !is_aligned(a->x) || !is_aligned(a->add) ||
        !is_aligned(a->y))
        return ST_INVALID;
    return with_any_types(a->x_dtype, a->y_dtype, [&](auto x, auto y) {
        using X = typename decltype(x)::type;
        using Y = typename decltype(y)::type;
        constexpr int WIDTH = WIDTH_OF<X, Y>;
        if (a->elements % WIDTH == 0)
            return dropout_launch<X, Y, WIDTH>(a, stream);
        return dropout_launch<X, Y, 1>(a, stream);
    });
}
