#include "checkpoint/codec/planes_isa.h"

#ifdef __x86_64__
#include <immintrin.h>

#define PLANES_TARGET VBMI
#include "checkpoint/codec/planes_loops.h"

#define STRIDE 64u /* bytes at a time */
#define LANES  8u  /* groups of eight codes that they make */
#define MAX    56u /* bits that a group may have in all to be put at once */

/* Most bytes lie close together: each of 16 values in a row is compared with 64 bytes at a time,
 * the few others are gathered and counted one by one. */
VBMI void ckpt_count_avx512(const uint8_t *bytes, size_t count, uint32_t seen[256])
{
    uint8_t others[HUFFMAN_BLOCK + STRIDE];
    uint32_t sample[256];
    uint64_t near[16] = { 0 };
    size_t found = 0, at = 0, whole = count & ~(size_t)(STRIDE - 1);
    count_values(bytes, count < 512 ? count : 512, sample);
    uint32_t within = 0, most = 0, low = 0;
    for (uint32_t v = 0; v < 256; v++) {
        within += sample[v] - (v >= 16 ? sample[v - 16] : 0);
        if (v >= 15 && within > most) {
            most = within;
            low = v - 15;
        }
    }
    const __m512i lowest = _mm512_set1_epi8((char)low);
    for (; at < whole; at += STRIDE) {
        __m512i x = _mm512_loadu_si512(bytes + at), y = _mm512_sub_epi8(x, lowest);
        for (int v = 0; v < 16; v++) {
            __mmask64 here = _mm512_cmpeq_epi8_mask(y, _mm512_set1_epi8((char)v));
            near[v] += (uint64_t)__builtin_popcountll(here);
        }
        __mmask64 far = _mm512_cmpgt_epu8_mask(y, _mm512_set1_epi8(15));
        _mm512_storeu_si512(others + found, _mm512_maskz_compress_epi8(far, x));
        found += (size_t)__builtin_popcountll(far);
    }
    count_values(others, found, seen);
    for (size_t v = 0; v < 16; v++)
        seen[low + v] += (uint32_t)near[v];
    for (; at < count; at++)
        seen[bytes[at]]++;
}

/* The entries of HUFFMAN_SPAN values. */
struct entries {
    __m512i part[4], first;
};

BW_INLINE __m512i entries_of(const struct entries *entries, const uint8_t *bytes)
{
    __m512i value = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i_u *)bytes));
    value = _mm512_sub_epi16(value, entries->first);
    __m512i low = _mm512_permutex2var_epi16(entries->part[0], value, entries->part[1]);
    __m512i high = _mm512_permutex2var_epi16(entries->part[2], value, entries->part[3]);
    __mmask32 upper = _mm512_test_epi16_mask(value, _mm512_set1_epi16(64));
    return _mm512_mask_blend_epi16(upper, low, high);
}

/* Codes and their lengths in lanes of 64 bits. */
struct lanes {
    __m512i code, length;
};

/* Four codes in each lane: the later of two begins at the lowest bit, twice. */
BW_INLINE struct lanes join_fours(__m512i entry)
{
    const __m512i low16 = _mm512_set1_epi32(0xffff), low32 = _mm512_set1_epi64(0xffffffff);
    __m512i length = _mm512_srli_epi16(entry, HUFFMAN_LENGTH_SHIFT);
    __m512i code = _mm512_and_si512(entry, _mm512_set1_epi16((1 << HUFFMAN_LENGTH_SHIFT) - 1));
    __m512i later = _mm512_srli_epi32(length, 16);
    code = _mm512_or_si512(_mm512_srli_epi32(code, 16),
                           _mm512_sllv_epi32(_mm512_and_si512(code, low16), later));
    length = _mm512_add_epi32(_mm512_and_si512(length, low16), later);
    later = _mm512_srli_epi64(length, 32);
    code = _mm512_or_si512(_mm512_srli_epi64(code, 32),
                           _mm512_sllv_epi64(_mm512_and_si512(code, low32), later));
    length = _mm512_add_epi64(_mm512_and_si512(length, low32), later);
    return (struct lanes){ code, length };
}

/* 64 bytes to eight groups of eight codes; in the lanes the groups lie 0, 4, 1, 5, 2, 6, 3, 7. */
BW_INLINE bool join_eights(const struct entries *entries, const uint8_t *bytes,
                           uint64_t code[LANES], uint64_t length[LANES])
{
    struct lanes a = join_fours(entries_of(entries, bytes));
    struct lanes b = join_fours(entries_of(entries, bytes + STRIDE / 2));
    __m512i later = _mm512_unpackhi_epi64(a.length, b.length);
    __m512i codes =
        _mm512_or_si512(_mm512_unpackhi_epi64(a.code, b.code),
                        _mm512_sllv_epi64(_mm512_unpacklo_epi64(a.code, b.code), later));
    __m512i lengths = _mm512_add_epi64(later, _mm512_unpacklo_epi64(a.length, b.length));
    _mm512_storeu_si512(code, codes);
    _mm512_storeu_si512(length, lengths);
    return _mm512_cmpgt_epu64_mask(lengths, _mm512_set1_epi64(MAX)) == 0;
}

BW void ckpt_put_codes_avx512(const struct huffman_code *code, const uint8_t *bytes, size_t count,
                              uint8_t *out, size_t size[4])
{
    size_t quarter = (count + 3) / 4, last = count > 3 * quarter ? count - 3 * quarter : 0;
    struct entries entries = { .first = _mm512_set1_epi16(code->first) };
    for (size_t i = 0; i < 4; i++)
        entries.part[i] = _mm512_loadu_si512(code->entry + 32 * i);
    struct code_stream stream[4];
    size_t whole = last / STRIDE * STRIDE;
    for (size_t k = 0; k < 4; k++) { /* the ends that not all four have */
        stream[k] = (struct code_stream){ .at = out + k * HUFFMAN_STREAM_ROOM };
        put_codes_of(&stream[k], code, bytes + k * quarter, whole, k < 3 ? quarter : last);
    }
    uint64_t codes[4][LANES], lengths[4][LANES];
    struct code_stream s0 = stream[0], s1 = stream[1], s2 = stream[2], s3 = stream[3];
    for (size_t at = whole; at > 0;) {
        static const uint8_t order[LANES] = { 7, 5, 3, 1, 6, 4, 2, 0 };
        at -= STRIDE;
        bool fits = true;
        for (size_t k = 0; k < 4; k++)
            fits &= join_eights(&entries, bytes + k * quarter + at, codes[k], lengths[k]);
        if (!fits) {
            put_codes_of(&s0, code, bytes, at, at + STRIDE);
            put_codes_of(&s1, code, bytes + quarter, at, at + STRIDE);
            put_codes_of(&s2, code, bytes + 2 * quarter, at, at + STRIDE);
            put_codes_of(&s3, code, bytes + 3 * quarter, at, at + STRIDE);
            continue;
        }
        for (size_t j = 0; j < LANES; j++) {
            size_t lane = order[j];
            put_code(&s0, codes[0][lane], (unsigned)lengths[0][lane]);
            put_code(&s1, codes[1][lane], (unsigned)lengths[1][lane]);
            put_code(&s2, codes[2][lane], (unsigned)lengths[2][lane]);
            put_code(&s3, codes[3][lane], (unsigned)lengths[3][lane]);
        }
    }
    size[0] = end_codes(&s0, out);
    size[1] = end_codes(&s1, out + HUFFMAN_STREAM_ROOM);
    size[2] = end_codes(&s2, out + 2 * HUFFMAN_STREAM_ROOM);
    size[3] = end_codes(&s3, out + 3 * HUFFMAN_STREAM_ROOM);
}
#endif
