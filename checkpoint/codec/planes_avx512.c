#include "checkpoint/codec/planes_isa.h"

#ifdef __x86_64__
#include <immintrin.h>

#define PLANES_TARGET BW
#include "checkpoint/codec/planes_loops.h"

/*
 * Two tables: where VBMI is missing, bytes move within 16 first and then in fours, and packing and
 * nibbles, which live on VBMI, are those of AVX2.
 */
#define STRIDE 64u /* bytes of each plane at a time */

BW_INLINE __m512i load(const void *at)
{
    return _mm512_loadu_si512(at);
}

BW_INLINE void store(void *at, __m512i x)
{
    _mm512_storeu_si512(at, x);
}

/* 4 × 4 blocks of 16 bytes: block k of x[j] becomes block j of x[k]. */
BW_INLINE void transpose_blocks(__m512i x[4])
{
    __m512i a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
    __m512i c = _mm512_shuffle_i32x4(x[0], x[1], 0xee), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* Byte k of 16 words to block k. */
BW_INLINE __m512i gather_bytes(__m512i x)
{
    const __m512i within = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    const __m512i across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(across, _mm512_shuffle_epi8(x, within));
}

BW_INLINE __m512i scatter_bytes(__m512i x)
{
    const __m512i within = _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400);
    const __m512i across = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(across, x), within);
}

BW static bool split4_bw(const void *words, size_t count, unsigned turn, uint8_t *const plane[4])
{
    uint8_t *const p[4] = { plane[0], plane[1], plane[2], plane[3] };
    const char *in = words;
    const __m512i left = _mm512_set1_epi32((int)turn);
    __m512i all = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m512i x[4];
        for (size_t k = 0; k < 4; k++) {
            x[k] = load(in + 4 * i + STRIDE * k);
            will_read(in + 4 * i + STRIDE * k, WORDS_AHEAD);
            will_write(p[k] + i, PLANES_AHEAD);
            all = _mm512_or_si512(all, x[k]);
            x[k] = gather_bytes(_mm512_rolv_epi32(x[k], left));
        }
        transpose_blocks(x);
        for (size_t k = 0; k < 4; k++)
            store(p[k] + i, x[k]);
    }
    bool sign = _mm512_movepi32_mask(all) != 0;
    return loop_split4(words, i, count, turn, plane) || sign;
}

BW static void merge4_bw(const uint8_t *const plane[4], size_t count, unsigned turn, void *words)
{
    const uint8_t *const p[4] = { plane[0], plane[1], plane[2], plane[3] };
    char *out = words;
    const __m512i right = _mm512_set1_epi32((int)turn);
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m512i x[4];
        for (size_t k = 0; k < 4; k++) {
            x[k] = load(p[k] + i);
            will_read(p[k] + i, PLANES_AHEAD);
            will_write(out + 4 * i + STRIDE * k, WORDS_AHEAD);
        }
        transpose_blocks(x);
        for (size_t k = 0; k < 4; k++)
            store(out + 4 * i + STRIDE * k, _mm512_rorv_epi32(scatter_bytes(x[k]), right));
    }
    loop_merge4(plane, i, count, turn, words);
}

BW_INLINE __m512i turn2(__m512i word, __m128i left, __m128i right)
{
    return _mm512_or_si512(_mm512_sll_epi16(word, left), _mm512_srl_epi16(word, right));
}

BW static bool split2_bw(const void *words, size_t count, unsigned turn, uint8_t *const plane[2])
{
    uint8_t *const p[2] = { plane[0], plane[1] };
    const char *in = words;
    const __m128i left = _mm_cvtsi32_si128((int)turn), right = _mm_cvtsi32_si128(16 - (int)turn);
    __m512i all = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m512i a = load(in + 2 * i), b = load(in + 2 * i + STRIDE);
        for (size_t k = 0; k < 2; k++) {
            will_read(in + 2 * i + STRIDE * k, WORDS_AHEAD);
            will_write(p[k] + i, PLANES_AHEAD);
        }
        all = _mm512_or_si512(all, _mm512_or_si512(a, b));
        a = turn2(a, left, right);
        b = turn2(b, left, right);
        __m512i lower = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                                           _mm512_cvtepi16_epi8(b), 1);
        a = _mm512_srli_epi16(a, 8);
        b = _mm512_srli_epi16(b, 8);
        __m512i upper = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi16_epi8(a)),
                                           _mm512_cvtepi16_epi8(b), 1);
        store(p[0] + i, lower);
        store(p[1] + i, upper);
    }
    bool sign = _mm512_movepi16_mask(all) != 0;
    return loop_split2(words, i, count, turn, plane) || sign;
}

BW static void merge2_bw(const uint8_t *const plane[2], size_t count, unsigned turn, void *words)
{
    const uint8_t *const p[2] = { plane[0], plane[1] };
    char *out = words;
    const __m128i left = _mm_cvtsi32_si128(16 - (int)turn), right = _mm_cvtsi32_si128((int)turn);
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        for (size_t k = 0; k < 2; k++) {
            will_read(p[k] + i, PLANES_AHEAD);
            will_write(out + 2 * i + STRIDE * k, WORDS_AHEAD);
        }
        __m512i a = _mm512_permutexvar_epi64(order, load(p[0] + i));
        __m512i b = _mm512_permutexvar_epi64(order, load(p[1] + i));
        store(out + 2 * i, turn2(_mm512_unpacklo_epi8(a, b), left, right));
        store(out + 2 * i + STRIDE, turn2(_mm512_unpackhi_epi8(a, b), left, right));
    }
    loop_merge2(plane, i, count, turn, words);
}

VBMI_INLINE __m512i gather_order(void)
{
    uint8_t from[STRIDE];
    for (unsigned i = 0; i < STRIDE; i++)
        from[i] = (uint8_t)(4 * (i % 16) + i / 16);
    return load(from);
}

VBMI_INLINE __m512i scatter_order(void)
{
    uint8_t from[STRIDE];
    for (unsigned i = 0; i < STRIDE; i++)
        from[i] = (uint8_t)(16 * (i % 4) + i / 4);
    return load(from);
}

VBMI static bool split4_vbmi(const void *words, size_t count, unsigned turn,
                             uint8_t *const plane[4])
{
    uint8_t *const p[4] = { plane[0], plane[1], plane[2], plane[3] };
    const char *in = words;
    const __m512i left = _mm512_set1_epi32((int)turn), order = gather_order();
    __m512i all = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m512i x[4];
        for (size_t k = 0; k < 4; k++) {
            x[k] = load(in + 4 * i + STRIDE * k);
            will_read(in + 4 * i + STRIDE * k, WORDS_AHEAD);
            will_write(p[k] + i, PLANES_AHEAD);
            all = _mm512_or_si512(all, x[k]);
            x[k] = _mm512_permutexvar_epi8(order, _mm512_rolv_epi32(x[k], left));
        }
        transpose_blocks(x);
        for (size_t k = 0; k < 4; k++)
            store(p[k] + i, x[k]);
    }
    bool sign = _mm512_movepi32_mask(all) != 0;
    return loop_split4(words, i, count, turn, plane) || sign;
}

VBMI static void merge4_vbmi(const uint8_t *const plane[4], size_t count, unsigned turn,
                             void *words)
{
    const uint8_t *const p[4] = { plane[0], plane[1], plane[2], plane[3] };
    char *out = words;
    const __m512i right = _mm512_set1_epi32((int)turn), order = scatter_order();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m512i x[4];
        for (size_t k = 0; k < 4; k++) {
            x[k] = load(p[k] + i);
            will_read(p[k] + i, PLANES_AHEAD);
            will_write(out + 4 * i + STRIDE * k, WORDS_AHEAD);
        }
        transpose_blocks(x);
        for (size_t k = 0; k < 4; k++) {
            store(out + 4 * i + STRIDE * k,
                  _mm512_rorv_epi32(_mm512_permutexvar_epi8(order, x[k]), right));
        }
    }
    loop_merge4(plane, i, count, turn, words);
}

VBMI static bool split2_vbmi(const void *words, size_t count, unsigned turn,
                             uint8_t *const plane[2])
{
    uint8_t *const p[2] = { plane[0], plane[1] };
    const char *in = words;
    const __m128i left = _mm_cvtsi32_si128((int)turn), right = _mm_cvtsi32_si128(16 - (int)turn);
    uint8_t from[STRIDE];
    for (unsigned i = 0; i < STRIDE; i++)
        from[i] = (uint8_t)(2 * i);
    const __m512i even = load(from), odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    __m512i all = _mm512_setzero_si512();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m512i a = load(in + 2 * i), b = load(in + 2 * i + STRIDE);
        for (size_t k = 0; k < 2; k++) {
            will_read(in + 2 * i + STRIDE * k, WORDS_AHEAD);
            will_write(p[k] + i, PLANES_AHEAD);
        }
        all = _mm512_or_si512(all, _mm512_or_si512(a, b));
        a = turn2(a, left, right);
        b = turn2(b, left, right);
        store(p[0] + i, _mm512_permutex2var_epi8(a, even, b));
        store(p[1] + i, _mm512_permutex2var_epi8(a, odd, b));
    }
    bool sign = _mm512_movepi16_mask(all) != 0;
    return loop_split2(words, i, count, turn, plane) || sign;
}

/* 64 bytes become 56; 64 are written. */
VBMI static void pack7(const uint8_t *plane, size_t count, uint8_t *out)
{
    uint8_t from[STRIDE];
    for (unsigned i = 0; i < STRIDE; i++)
        from[i] = (uint8_t)((i + i / 7) % STRIDE);
    const __m512i order = load(from), low = _mm512_set1_epi64(0xffffffff);
    size_t i = 0;
    for (; i + STRIDE + 16 <= count; i += STRIDE) {
        __m512i x = _mm512_srli_epi16(load(plane + i), 1);
        x = _mm512_and_si512(x, _mm512_set1_epi8(0x7f));
        x = _mm512_maddubs_epi16(_mm512_set1_epi16((short)0x8001), x);
        x = _mm512_madd_epi16(x, _mm512_set1_epi32(0x40000001));
        __m512i high = _mm512_srli_epi64(_mm512_andnot_si512(low, x), 4);
        x = _mm512_or_si512(_mm512_and_si512(x, low), high);
        store(out + i / 8 * 7, _mm512_permutexvar_epi8(order, x));
    }
    loop_pack7(plane, i, count, out);
}

VBMI static void unpack7(const uint8_t *packed, size_t count, uint8_t *out)
{
    uint8_t from[STRIDE];
    for (unsigned i = 0; i < STRIDE; i++)
        from[i] = (uint8_t)(i - i / 8);
    const __m512i order = load(from);
    const __m512i places = _mm512_set1_epi64(0x3029221b140d063f); /* 7 j - 1 mod 64 */
    const __mmask64 seven = 0x7f7f7f7f7f7f7f7f;
    size_t i = 0;
    for (; i + STRIDE + 16 <= count; i += STRIDE) { /* reads 64 bytes for 56 */
        __m512i x = _mm512_maskz_permutexvar_epi8(seven, order, load(packed + i / 8 * 7));
        x = _mm512_multishift_epi64_epi8(places, x);
        store(out + i, _mm512_and_si512(x, _mm512_set1_epi8((char)0xfe)));
    }
    loop_unpack7(packed, i, count, out);
}

VBMI static size_t nibbles(const uint8_t *bytes, size_t count, uint8_t top, uint8_t *codes,
                           uint8_t *escapes)
{
    const __m512i tops = _mm512_set1_epi8((char)top), last = _mm512_set1_epi8(15);
    uint8_t *escape = escapes;
    size_t at = 0;
    for (; at + CKPT_NIBBLE_GROUP <= count; at += CKPT_NIBBLE_GROUP) {
        __m512i code[2];
        for (size_t k = 0; k < 2; k++) {
            __m512i byte = load(bytes + at + STRIDE * k);
            code[k] = _mm512_min_epu8(_mm512_sub_epi8(tops, byte), last);
            __mmask64 odd = _mm512_cmpeq_epi8_mask(code[k], last);
            store(escape, _mm512_maskz_compress_epi8(odd, byte));
            escape += __builtin_popcountll(odd);
        }
        store(codes + at / 2, _mm512_or_si512(code[0], _mm512_slli_epi16(code[1], 4)));
    }
    if (at < count)
        nibble_group(bytes + at, count - at, top, codes + at / 2, &escape);
    return (size_t)(escape - escapes);
}

/* Groups of bytes as long as escapes last for certain; *at and *escape move on. */
VBMI_INLINE void unnibble_groups(const uint8_t *codes, size_t count, uint8_t top, size_t *at,
                                 const uint8_t **escape, const uint8_t *stop, uint8_t *bytes)
{
    const __m512i tops = _mm512_set1_epi8((char)top), last = _mm512_set1_epi8(15);
    for (; *at + CKPT_NIBBLE_GROUP <= count && *escape <= stop; *at += CKPT_NIBBLE_GROUP) {
        __m512i both = load(codes + *at / 2);
        __m512i code[2] = { _mm512_and_si512(both, last),
                            _mm512_and_si512(_mm512_srli_epi16(both, 4), last) };
        for (size_t k = 0; k < 2; k++) {
            __mmask64 odd = _mm512_cmpeq_epi8_mask(code[k], last);
            __m512i byte = _mm512_sub_epi8(tops, code[k]);
            store(bytes + *at + STRIDE * k, _mm512_mask_expand_epi8(byte, odd, load(*escape)));
            *escape += __builtin_popcountll(odd);
        }
    }
}

VBMI static bool unnibbles(const uint8_t *codes, const uint8_t *escapes, size_t escape_count,
                           size_t count, uint8_t top, uint8_t *bytes)
{
    const uint8_t *escape = escapes, *end = escapes + escape_count;
    size_t at = 0;
    if (escape_count >= CKPT_NIBBLE_GROUP)
        unnibble_groups(codes, count, top, &at, &escape, end - CKPT_NIBBLE_GROUP, bytes);
    /* The last ones with room behind them, so that a group may ask for more than there are. */
    uint8_t rest[2 * CKPT_NIBBLE_GROUP + STRIDE] = { 0 };
    size_t left = (size_t)(end - escape);
    if (at + CKPT_NIBBLE_GROUP <= count) {
        memcpy(rest, escape, left);
        escape = rest;
        end = rest + left;
        unnibble_groups(codes, count, top, &at, &escape, end, bytes);
        if (escape > end)
            return false;
    }
    if (at < count && !unnibble_group(codes + at / 2, count - at, top, &escape, end, bytes + at))
        return false;
    return escape == end;
}

static const struct plane_loops loops_bw = {
    .name = "avx512bw",
    .split4 = split4_bw,
    .split2 = split2_bw,
    .merge4 = merge4_bw,
    .merge2 = merge2_bw,
    PLANES_COMPILED,
    .pack7 = ckpt_pack7_avx2,
    .unpack7 = ckpt_unpack7_avx2,
    .nibbles = ckpt_nibbles_avx2,
    .unnibbles = ckpt_unnibbles_avx2,
    .count = count_values,
    .put_codes = ckpt_put_codes_avx512,
};

static const struct plane_loops loops_vbmi = {
    .name = "avx512vbmi",
    .split4 = split4_vbmi,
    .split2 = split2_vbmi,
    .merge4 = merge4_vbmi,
    .merge2 = merge2_bw,
    PLANES_COMPILED,
    .pack7 = pack7,
    .unpack7 = unpack7,
    .nibbles = nibbles,
    .unnibbles = unnibbles,
    .count = ckpt_count_avx512,
    .put_codes = ckpt_put_codes_avx512,
};

const struct plane_loops *ckpt_loops_avx512bw(void)
{
    bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx2");
    return has ? &loops_bw : NULL;
}

const struct plane_loops *ckpt_loops_avx512vbmi(void)
{
    bool has = ckpt_loops_avx512bw() != NULL && __builtin_cpu_supports("avx512vbmi") &&
               __builtin_cpu_supports("avx512vbmi2");
    return has ? &loops_vbmi : NULL;
}
#endif
