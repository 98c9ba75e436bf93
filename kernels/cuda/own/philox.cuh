/* Philox4x32-10 on the device: the words of common/rng.h, bit for bit. */
#pragma once

#include "kernels/cuda/own/vector.cuh"

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

/* Uniform in [0, 1), 24 bits: exact. */
DEVICE_INLINE float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}
