#include "checkpoint/planes.h"

#include <string.h>

/* Words of any alignment, in memory of any type. */
typedef uint32_t word32 __attribute__((may_alias, aligned(1)));
typedef uint16_t word16 __attribute__((may_alias, aligned(1)));

/*
 * Each loop is written once, inlined into a version for every machine and one for AVX2; the one
 * that fits is chosen at the call, which handles a whole chunk. The operations are on integers, so
 * all versions give the same bits.
 */
#define LOOP static inline __attribute__((always_inline))
#ifdef __x86_64__
#define HAVE_AVX2 1
#define AVX2      __attribute__((target("avx2")))
#else
#define HAVE_AVX2 0
#define AVX2
#endif

static bool use_avx2(void)
{
#if HAVE_AVX2
    return __builtin_cpu_supports("avx2") != 0;
#else
    return false;
#endif
}

LOOP void split4(const void *words, size_t count, uint8_t *const plane[4])
{
    const word32 *restrict in = words;
    uint8_t *restrict a = plane[0];
    uint8_t *restrict b = plane[1];
    uint8_t *restrict c = plane[2];
    uint8_t *restrict d = plane[3];
    for (size_t i = 0; i < count; i++) {
        uint32_t word = in[i] << 1 | in[i] >> 31;
        a[i] = (uint8_t)word;
        b[i] = (uint8_t)(word >> 8);
        c[i] = (uint8_t)(word >> 16);
        d[i] = (uint8_t)(word >> 24);
    }
}

LOOP void merge4(const uint8_t *const plane[4], size_t count, void *words)
{
    const uint8_t *restrict a = plane[0];
    const uint8_t *restrict b = plane[1];
    const uint8_t *restrict c = plane[2];
    const uint8_t *restrict d = plane[3];
    word32 *restrict out = words;
    for (size_t i = 0; i < count; i++) {
        uint32_t word =
            (uint32_t)a[i] | (uint32_t)b[i] << 8 | (uint32_t)c[i] << 16 | (uint32_t)d[i] << 24;
        out[i] = word >> 1 | word << 31;
    }
}

LOOP void split2(const void *words, size_t count, uint8_t *const plane[2])
{
    const word16 *restrict in = words;
    uint8_t *restrict a = plane[0];
    uint8_t *restrict b = plane[1];
    for (size_t i = 0; i < count; i++) {
        uint16_t word = (uint16_t)((uint32_t)in[i] << 1 | (uint32_t)in[i] >> 15);
        a[i] = (uint8_t)word;
        b[i] = (uint8_t)(word >> 8);
    }
}

LOOP void merge2(const uint8_t *const plane[2], size_t count, void *words)
{
    const uint8_t *restrict a = plane[0];
    const uint8_t *restrict b = plane[1];
    word16 *restrict out = words;
    for (size_t i = 0; i < count; i++) {
        uint32_t word = (uint32_t)a[i] | (uint32_t)b[i] << 8;
        out[i] = (uint16_t)(word >> 1 | word << 15);
    }
}

LOOP bool any_sign4(const void *words, size_t count)
{
    const word32 *in = words;
    uint32_t all = 0;
    for (size_t i = 0; i < count; i++)
        all |= in[i];
    return all >> 31 != 0;
}

LOOP bool any_sign2(const void *words, size_t count)
{
    const word16 *in = words;
    uint16_t all = 0;
    for (size_t i = 0; i < count; i++)
        all |= in[i];
    return all >> 15 != 0;
}

AVX2 static void split4_avx2(const void *words, size_t count, uint8_t *const plane[4])
{
    split4(words, count, plane);
}

AVX2 static void merge4_avx2(const uint8_t *const plane[4], size_t count, void *words)
{
    merge4(plane, count, words);
}

AVX2 static void split2_avx2(const void *words, size_t count, uint8_t *const plane[2])
{
    split2(words, count, plane);
}

AVX2 static void merge2_avx2(const uint8_t *const plane[2], size_t count, void *words)
{
    merge2(plane, count, words);
}

AVX2 static bool any_sign4_avx2(const void *words, size_t count)
{
    return any_sign4(words, count);
}

AVX2 static bool any_sign2_avx2(const void *words, size_t count)
{
    return any_sign2(words, count);
}

void ckpt_split4(const void *words, size_t count, uint8_t *const plane[4])
{
    if (use_avx2()) {
        split4_avx2(words, count, plane);
    } else {
        split4(words, count, plane);
    }
}

void ckpt_merge4(const uint8_t *const plane[4], size_t count, void *words)
{
    if (use_avx2()) {
        merge4_avx2(plane, count, words);
    } else {
        merge4(plane, count, words);
    }
}

void ckpt_split2(const void *words, size_t count, uint8_t *const plane[2])
{
    if (use_avx2()) {
        split2_avx2(words, count, plane);
    } else {
        split2(words, count, plane);
    }
}

void ckpt_merge2(const uint8_t *const plane[2], size_t count, void *words)
{
    if (use_avx2()) {
        merge2_avx2(plane, count, words);
    } else {
        merge2(plane, count, words);
    }
}

bool ckpt_any_sign4(const void *words, size_t count)
{
    return use_avx2() ? any_sign4_avx2(words, count) : any_sign4(words, count);
}

bool ckpt_any_sign2(const void *words, size_t count)
{
    return use_avx2() ? any_sign2_avx2(words, count) : any_sign2(words, count);
}

size_t ckpt_packed_size(size_t count)
{
    return count / 8 * 7 + count % 8;
}

/* Seven bits of each of the eight bytes of x, side by side in 56. */
static uint64_t squeeze(uint64_t x)
{
    x = (x >> 1) & 0x7f7f7f7f7f7f7f7fu;
    x = (x & 0x007f007f007f007fu) | (x & 0x7f007f007f007f00u) >> 1;
    x = (x & 0x00003fff00003fffu) | (x & 0x3fff00003fff0000u) >> 2;
    return (x & 0x000000000fffffffu) | (x & 0x0fffffff00000000u) >> 4;
}

static uint64_t stretch(uint64_t x)
{
    x = (x & 0x000000000fffffffu) | (x & 0x00fffffff0000000u) << 4;
    x = (x & 0x00003fff00003fffu) | (x & 0x0fffc0000fffc000u) << 2;
    x = (x & 0x007f007f007f007fu) | (x & 0x3f803f803f803f80u) << 1;
    return x << 1;
}

/* All groups but the last move 8 bytes at once: the eighth is the next group's, and written again.
 */
void ckpt_pack(const uint8_t *plane, size_t count, uint8_t *out)
{
    size_t groups = count / 8;
    for (size_t i = 0; i < groups; i++) {
        uint64_t word;
        memcpy(&word, plane + 8 * i, 8);
        word = squeeze(word);
        memcpy(out + 7 * i, &word, i + 1 < groups ? 8 : 7);
    }
    if (count % 8 != 0)
        memcpy(out + 7 * groups, plane + 8 * groups, count % 8);
}

void ckpt_unpack(const uint8_t *packed, size_t count, uint8_t *out)
{
    size_t groups = count / 8;
    for (size_t i = 0; i < groups; i++) {
        uint64_t word = 0;
        memcpy(&word, packed + 7 * i, i + 1 < groups ? 8 : 7);
        word = stretch(word);
        memcpy(out + 8 * i, &word, 8);
    }
    if (count % 8 != 0)
        memcpy(out + 8 * groups, packed + 7 * groups, count % 8);
}
