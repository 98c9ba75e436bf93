#include "checkpoint/codec/planes_isa.h"

#ifdef __x86_64__
#include <immintrin.h>

#define PLANES_TARGET AVX2
#include "checkpoint/codec/planes_loops.h"

#define STRIDE 32u /* bytes of each plane at a time */

AVX2 static inline __m256i load(const void *at)
{
    return _mm256_loadu_si256((const __m256i_u *)at);
}

AVX2 static inline void store(void *at, __m256i x)
{
    _mm256_storeu_si256((__m256i_u *)at, x);
}

/* Bytes k, 4 + k, 8 + k, 12 + k of each half side by side; it is its own inverse. */
AVX2 static inline __m256i transpose_bytes(__m256i x)
{
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0,
                                           4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm256_shuffle_epi8(x, order);
}

AVX2 static bool split4(const void *words, size_t count, unsigned turn, uint8_t *const plane[4])
{
    uint8_t *const p[4] = { plane[0], plane[1], plane[2], plane[3] };
    const char *in = words;
    const __m256i left = _mm256_set1_epi32((int)turn), right = _mm256_set1_epi32(32 - (int)turn);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i all = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m256i x[4];
        for (size_t k = 0; k < 4; k++) {
            __m256i word = load(in + 4 * i + STRIDE * k);
            all = _mm256_or_si256(all, word);
            will_read(in + 4 * i + STRIDE * k, WORDS_AHEAD);
            will_write(p[k] + i, PLANES_AHEAD);
            word = _mm256_or_si256(_mm256_sllv_epi32(word, left), _mm256_srlv_epi32(word, right));
            x[k] = _mm256_permutevar8x32_epi32(transpose_bytes(word), order);
        }
        /* each x: 8 bytes of plane 0, of 1, of 2, of 3 */
        __m256i even01 = _mm256_unpacklo_epi64(x[0], x[1]),
                odd01 = _mm256_unpackhi_epi64(x[0], x[1]);
        __m256i even23 = _mm256_unpacklo_epi64(x[2], x[3]),
                odd23 = _mm256_unpackhi_epi64(x[2], x[3]);
        store(p[0] + i, _mm256_permute2x128_si256(even01, even23, 0x20));
        store(p[1] + i, _mm256_permute2x128_si256(odd01, odd23, 0x20));
        store(p[2] + i, _mm256_permute2x128_si256(even01, even23, 0x31));
        store(p[3] + i, _mm256_permute2x128_si256(odd01, odd23, 0x31));
    }
    bool sign = _mm256_movemask_ps(_mm256_castsi256_ps(all)) != 0;
    return loop_split4(words, i, count, turn, plane) || sign;
}

AVX2 static void merge4(const uint8_t *const plane[4], size_t count, unsigned turn, void *words)
{
    const uint8_t *const p[4] = { plane[0], plane[1], plane[2], plane[3] };
    char *out = words;
    const __m256i left = _mm256_set1_epi32(32 - (int)turn), right = _mm256_set1_epi32((int)turn);
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m256i a = load(p[0] + i), b = load(p[1] + i);
        __m256i c = load(p[2] + i), d = load(p[3] + i);
        __m256i ab_low = _mm256_unpacklo_epi8(a, b), ab_high = _mm256_unpackhi_epi8(a, b);
        __m256i cd_low = _mm256_unpacklo_epi8(c, d), cd_high = _mm256_unpackhi_epi8(c, d);
        const __m256i word[4] = {
            /* 0-3 and 16-19, 4-7 and 20-23, … */
            _mm256_unpacklo_epi16(ab_low, cd_low), _mm256_unpackhi_epi16(ab_low, cd_low),
            _mm256_unpacklo_epi16(ab_high, cd_high), _mm256_unpackhi_epi16(ab_high, cd_high)
        };
        __m256i turned[4];
        for (size_t k = 0; k < 4; k++) {
            will_read(p[k] + i, PLANES_AHEAD);
            will_write(out + 4 * i + STRIDE * k, WORDS_AHEAD);
            turned[k] = _mm256_or_si256(_mm256_sllv_epi32(word[k], left),
                                        _mm256_srlv_epi32(word[k], right));
        }
        store(out + 4 * i, _mm256_permute2x128_si256(turned[0], turned[1], 0x20));
        store(out + 4 * i + 32, _mm256_permute2x128_si256(turned[2], turned[3], 0x20));
        store(out + 4 * i + 64, _mm256_permute2x128_si256(turned[0], turned[1], 0x31));
        store(out + 4 * i + 96, _mm256_permute2x128_si256(turned[2], turned[3], 0x31));
    }
    loop_merge4(plane, i, count, turn, words);
}

AVX2 static inline __m256i turn2(__m256i word, __m128i left, __m128i right)
{
    return _mm256_or_si256(_mm256_sll_epi16(word, left), _mm256_srl_epi16(word, right));
}

AVX2 static bool split2(const void *words, size_t count, unsigned turn, uint8_t *const plane[2])
{
    uint8_t *const p[2] = { plane[0], plane[1] };
    const char *in = words;
    const __m128i left = _mm_cvtsi32_si128((int)turn), right = _mm_cvtsi32_si128(16 - (int)turn);
    const __m256i low = _mm256_set1_epi16(0xff);
    __m256i all = _mm256_setzero_si256();
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m256i a = load(in + 2 * i), b = load(in + 2 * i + STRIDE);
        all = _mm256_or_si256(all, _mm256_or_si256(a, b));
        a = turn2(a, left, right);
        b = turn2(b, left, right);
        __m256i lower = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
        __m256i upper = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
        store(p[0] + i, _mm256_permute4x64_epi64(lower, 0xd8));
        store(p[1] + i, _mm256_permute4x64_epi64(upper, 0xd8));
    }
    bool sign = ((uint32_t)_mm256_movemask_epi8(all) & 0xaaaaaaaau) != 0;
    return loop_split2(words, i, count, turn, plane) || sign;
}

AVX2 static void merge2(const uint8_t *const plane[2], size_t count, unsigned turn, void *words)
{
    const uint8_t *const p[2] = { plane[0], plane[1] };
    char *out = words;
    const __m128i left = _mm_cvtsi32_si128(16 - (int)turn), right = _mm_cvtsi32_si128((int)turn);
    size_t i = 0;
    for (; i + STRIDE <= count; i += STRIDE) {
        __m256i a = _mm256_permute4x64_epi64(load(p[0] + i), 0xd8);
        __m256i b = _mm256_permute4x64_epi64(load(p[1] + i), 0xd8);
        store(out + 2 * i, turn2(_mm256_unpacklo_epi8(a, b), left, right));
        store(out + 2 * i + STRIDE, turn2(_mm256_unpackhi_epi8(a, b), left, right));
    }
    loop_merge2(plane, i, count, turn, words);
}

/* 32 bytes become 28; 30 are written. */
AVX2 static inline void pack_stride(const uint8_t *plane, uint8_t *out)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, -1, -1, 0,
                                           1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, -1, -1);
    __m256i x = _mm256_and_si256(_mm256_srli_epi16(load(plane), 1), _mm256_set1_epi8(0x7f));
    x = _mm256_maddubs_epi16(_mm256_set1_epi16((short)0x8001), x); /* 14 bits of 16 */
    x = _mm256_madd_epi16(x, _mm256_set1_epi32(0x40000001));       /* 28 of 32 */
    __m256i low = _mm256_set1_epi64x(0xffffffff);
    x = _mm256_or_si256(_mm256_and_si256(x, low),
                        _mm256_srli_epi64(_mm256_andnot_si256(low, x), 4));
    x = _mm256_shuffle_epi8(x, order);
    _mm_storeu_si128((__m128i_u *)out, _mm256_castsi256_si128(x));
    _mm_storeu_si128((__m128i_u *)(out + 14), _mm256_extracti128_si256(x, 1));
}

AVX2 void ckpt_pack7_avx2(const uint8_t *plane, size_t count, uint8_t *out)
{
    size_t i = 0;
    for (; i + STRIDE + 8 <= count; i += STRIDE)
        pack_stride(plane + i, out + i / 8 * 7);
    loop_pack7(plane, i, count, out);
}

AVX2 void ckpt_unpack7_avx2(const uint8_t *packed, size_t count, uint8_t *out)
{
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, -1, 7, 8, 9, 10, 11, 12, 13, -1, 0,
                                           1, 2, 3, 4, 5, 6, -1, 7, 8, 9, 10, 11, 12, 13, -1);
    const __m256i low28 = _mm256_set1_epi64x(0x0fffffff);
    const __m256i low14 = _mm256_set1_epi32(0x3fff), low7 = _mm256_set1_epi16(0x7f);
    size_t i = 0;
    for (; i + STRIDE + 8 <= count; i += STRIDE) { /* reads 30 bytes for 28 */
        const uint8_t *in = packed + i / 8 * 7;
        __m256i x = _mm256_set_m128i(_mm_loadu_si128((const __m128i_u *)(in + 14)),
                                     _mm_loadu_si128((const __m128i_u *)in));
        x = _mm256_shuffle_epi8(x, order);
        x = _mm256_or_si256(_mm256_and_si256(x, low28),
                            _mm256_slli_epi64(_mm256_andnot_si256(low28, x), 4));
        x = _mm256_or_si256(_mm256_and_si256(x, low14),
                            _mm256_slli_epi32(_mm256_andnot_si256(low14, x), 2));
        x = _mm256_or_si256(_mm256_and_si256(x, low7),
                            _mm256_slli_epi16(_mm256_andnot_si256(low7, x), 1));
        store(out + i, _mm256_slli_epi16(x, 1));
    }
    loop_unpack7(packed, i, count, out);
}

AVX2 size_t ckpt_nibbles_avx2(const uint8_t *bytes, size_t count, uint8_t top, uint8_t *codes,
                              uint8_t *escapes)
{
    const __m256i tops = _mm256_set1_epi8((char)top), last = _mm256_set1_epi8(15);
    uint8_t *escape = escapes;
    size_t at = 0;
    for (; at + CKPT_NIBBLE_GROUP <= count; at += CKPT_NIBBLE_GROUP) {
        __m256i code[4];
        for (size_t k = 0; k < 4; k++) {
            code[k] = _mm256_sub_epi8(tops, load(bytes + at + STRIDE * k));
            code[k] = _mm256_min_epu8(code[k], last);
            uint32_t odd = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(code[k], last));
            for (; odd != 0; odd &= odd - 1)
                *escape++ = bytes[at + STRIDE * k + (size_t)__builtin_ctz(odd)];
        }
        for (size_t k = 0; k < 2; k++) {
            store(codes + at / 2 + STRIDE * k,
                  _mm256_or_si256(code[k], _mm256_slli_epi16(code[k + 2], 4)));
        }
    }
    if (at < count)
        nibble_group(bytes + at, count - at, top, codes + at / 2, &escape);
    return (size_t)(escape - escapes);
}

AVX2 bool ckpt_unnibbles_avx2(const uint8_t *codes, const uint8_t *escapes, size_t escape_count,
                              size_t count, uint8_t top, uint8_t *bytes)
{
    const __m256i tops = _mm256_set1_epi8((char)top), last = _mm256_set1_epi8(15);
    const uint8_t *escape = escapes, *end = escapes + escape_count;
    size_t at = 0;
    for (; at + CKPT_NIBBLE_GROUP <= count; at += CKPT_NIBBLE_GROUP) {
        for (size_t k = 0; k < 4; k++) {
            __m256i code = load(codes + at / 2 + STRIDE * (k & 1));
            code = _mm256_and_si256(k < 2 ? code : _mm256_srli_epi16(code, 4), last);
            store(bytes + at + STRIDE * k, _mm256_sub_epi8(tops, code));
            uint32_t odd = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(code, last));
            if (__builtin_popcount(odd) > end - escape)
                return false;
            for (; odd != 0; odd &= odd - 1)
                bytes[at + STRIDE * k + (size_t)__builtin_ctz(odd)] = *escape++;
        }
    }
    if (at < count && !unnibble_group(codes + at / 2, count - at, top, &escape, end, bytes + at))
        return false;
    return escape == end;
}

static const struct plane_loops loops = {
    .name = "avx2",
    .split4 = split4,
    .split2 = split2,
    .merge4 = merge4,
    .merge2 = merge2,
    PLANES_COMPILED,
    .pack7 = ckpt_pack7_avx2,
    .unpack7 = ckpt_unpack7_avx2,
    .nibbles = ckpt_nibbles_avx2,
    .unnibbles = ckpt_unnibbles_avx2,
    .count = count_values,
    .put_codes = put_codes,
};

const struct plane_loops *ckpt_loops_avx2(void)
{
    return __builtin_cpu_supports("avx2") ? &loops : NULL;
}
#endif
