/*
 * Weights from [K, C, R, S] in float32 to operand tiles in bfloat16, for both directions at once:
 * 32 × 32 (output × input channels) of one place of the window at a time.
 *
 *   forward        [K / 32][place][C / 32] × two tiles of 16 pairs of input × 16 output channels
 *   backward-data  [C / 32][place][K / 32] × two tiles of 16 pairs of output × 16 input channels
 */
#include "kernels/cpu/conv/amx.h"
#include "kernels/cpu/gemm/amx_simd.h"

/* W[k .. k + 32][c .. c + 32] of one place, a row per output channel. */
static void pack_fetch(const float *from, int64_t row, int64_t places, __m512i to[AMX_BLOCK])
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i index = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)places));
    for (int k = 0; k < AMX_BLOCK; k++, from += row) {
        __m512 low, high;
        if (places == 1) {
            low = _mm512_loadu_ps(from);
            high = _mm512_loadu_ps(from + AMX_SIDE);
        } else {
            low = _mm512_i32gather_ps(index, from, 4);
            high = _mm512_i32gather_ps(index, from + AMX_SIDE * places, 4);
        }
        to[k] = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    }
}

/* Two tiles: pairs of input channels × 16 output channels. */
static void put_forward(const __m512i rows[AMX_BLOCK], uint16_t *to)
{
    for (int half = 0; half < 2; half++) {
        __m512i r[16];
        for (int i = 0; i < AMX_SIDE; i++)
            r[i] = rows[half * AMX_SIDE + i];
        amx_turn(r);
        for (int i = 0; i < AMX_SIDE; i++)
            _mm512_store_si512(to + half * AMX_TILE + i * AMX_DEPTH, r[i]);
    }
}

/* Two tiles: pairs of output channels × 16 input channels. */
static void put_data(const __m512i rows[AMX_BLOCK], uint16_t *to)
{
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    for (int64_t i = 0; i < AMX_SIDE; i++) {
        const __m512i a = rows[2 * i], b = rows[2 * i + 1];
        _mm512_store_si512(to + i * AMX_DEPTH, _mm512_permutex2var_epi16(a, first, b));
        _mm512_store_si512(to + AMX_TILE + i * AMX_DEPTH, _mm512_permutex2var_epi16(a, second, b));
    }
}

/* Returns the offset of a place's two tiles, for channels [in, in + 32) and [out, out + 32) of a
 * pass. */
static int64_t pack_tile_at(const struct amx_pass *pass, int64_t in, int64_t out, int64_t place)
{
    return out * pass->places * pass->in.channels + place * pass->in.channels * AMX_BLOCK +
           in * AMX_BLOCK;
}

void conv_amx_weights(const struct amx_pass *forward, const float *canonical, uint16_t *cache,
                      const struct amx_pass *data, uint16_t *data_cache)
{
    const int64_t c = forward->in.channels, k = forward->out.channels, places = forward->places;
    for (int64_t out = 0; out < k; out += AMX_BLOCK) {
        for (int64_t in = 0; in < c; in += AMX_BLOCK) {
            const float *from = canonical + (out * c + in) * places;
            for (int64_t place = 0; place < places; place++) {
                __m512i rows[AMX_BLOCK];
                pack_fetch(from + place, c * places, places, rows);
                put_forward(rows, cache + pack_tile_at(forward, in, out, place));
                if (data != NULL)
                    put_data(rows, data_cache + pack_tile_at(data, out, in, place));
            }
        }
    }
}
