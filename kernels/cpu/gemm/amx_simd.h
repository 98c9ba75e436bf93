/*
 * AMX tiles and what feeds them, for the files that are compiled with them.
 *
 * The eight tile registers, 16 rows of 64 bytes each, hold one product of 32 × 32 × 32:
 *
 *                       6 b, left     7 b, right      b: 16 pairs of k × 16 columns
 *   4 a, upper rows     0 sums        1 sums          a: 16 rows × 32 k
 *   5 a, lower rows     2 sums        3 sums          sums: 16 × 16 float32
 *
 * A pair of b is its rows 2i and 2i + 1 of one column, side by side. One instruction adds
 *
 *   sums[r][j] += Σ_i a[r][2i]·b[2i][j] + a[r][2i + 1]·b[2i + 1][j]
 *
 * The compiler doesn't know that tile loads read memory: amx_fence stands between plain stores and
 * tile loads of the same bytes.
 */
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define AMX_INLINE static inline __attribute__((always_inline))
#define AMX_SIDE   INT64_C(16)  /* rows of a tile */
#define AMX_DEPTH  INT64_C(32)  /* elements of a row of the left operand */
#define AMX_TILE   INT64_C(512) /* elements of an operand's tile */

AMX_INLINE void amx_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

AMX_INLINE void amx_begin(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        config.bytes[i] = 64;
        config.rows[i] = AMX_SIDE;
    }
    amx_fence();
    _tile_loadconfig(&config);
}

AMX_INLINE void amx_end(void)
{
    _tile_release();
}

AMX_INLINE void amx_zero(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/*
 * Adds `count` products of 32 × 32 × 32 to the sums.
 *
 *   a      32 rows, a_line bytes apart; a_next elements on for the next product
 *   b      two tiles, b_right elements apart; b_next elements on for the next product
 *   ahead  what lies so many bytes behind a's rows is fetched; 0: nothing is
 */
AMX_INLINE void amx_multiply(const uint16_t *a, int64_t a_line, int64_t a_next, const uint16_t *b,
                             int64_t b_right, int64_t b_next, int64_t count, int64_t ahead)
{
    const uint16_t *low = a + AMX_SIDE * a_line / (int64_t)sizeof(*a);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t row = 0; ahead > 0 && row < 2 * AMX_SIDE; row++)
            _mm_prefetch((const char *)a + ahead + row * a_line, _MM_HINT_T0);
        _tile_loadd(4, a, a_line);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + b_right, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, low, a_line);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a += a_next;
        low += a_next;
        b += b_next;
    }
}

/* Transposes 16 × 16 elements of 32 bits, in place. */
AMX_INLINE void amx_turn(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}
