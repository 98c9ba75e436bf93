/*
 * The first convolution: see struct amx_stem. Weights in the cache:
 *
 *   [K / 32][row of the window][block of 32 elements] × two tiles of 16 pairs of elements × 16
 *   output channels
 */
#include "kernels/cpu/conv/amx.h"
#include "kernels/cpu/gemm/amx_simd.h"

#define LANES 16

static uint16_t narrowed(float value)
{
    return (uint16_t)_mm_extract_epi16((__m128i)_mm512_castsi512_si128(_mm512_castsi256_si512(
                                           (__m256i)_mm512_cvtneps_pbh(_mm512_set1_ps(value)))),
                                       0);
}

/* Element j of the window's row r, the channels innermost: column j / group, channel j % group. */
static float stem_weight(const struct amx_stem *stem, const float *canonical, int64_t k, int64_t r,
                         int64_t j)
{
    const int64_t column = j / stem->group, channel = j % stem->group;
    if (column >= stem->side || channel >= stem->channels)
        return 0.0f;
    return canonical[((k * stem->channels + channel) * stem->side + r) * stem->side + column];
}

void conv_amx_stem_weights(const struct amx_stem *stem, const float *canonical, uint16_t *cache)
{
    const int64_t panel = stem->side * stem->blocks * AMX_DEPTH; /* elements of an output channel */
    for (int64_t k = 0; k < stem->k; k++) {
        uint16_t *to = cache + k / AMX_BLOCK * AMX_BLOCK * panel +
                       k % AMX_BLOCK / AMX_SIDE * AMX_TILE + k % AMX_SIDE * 2;
        for (int64_t i = 0; i < panel; i++) {
            const int64_t r = i / (stem->blocks * AMX_DEPTH), j = i % (stem->blocks * AMX_DEPTH);
            const int64_t tile = i / AMX_DEPTH * 2 * AMX_TILE;
            to[tile + i % AMX_DEPTH / 2 * AMX_DEPTH + i % 2] =
                narrowed(stem_weight(stem, canonical, k, r, j));
        }
    }
}

AMX_INLINE __mmask16 stem_lanes(int64_t from, int64_t to)
{
    const int64_t low = from < 0 ? 0 : from, high = to > LANES ? LANES : to;
    if (high <= low)
        return 0;
    return (__mmask16)((0xffffu >> (LANES - (high - low))) << low);
}

/* 16 pixels of one channel, each in the low half of 32 bits. */
AMX_INLINE __m512i pixels(const float *plane, __mmask16 there)
{
    return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, plane)));
}

/* Copies one row of an image, its channels side by side. */
static void copy_row(const struct amx_stem *stem, const float *image, int64_t row, uint16_t *to)
{
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const int64_t plane = stem->h * stem->w;
    const float *from = image + row * stem->w;
    for (int64_t w = 0; w < stem->w; w += LANES) {
        const __mmask16 there = stem_lanes(0, stem->w - w);
        __m512i value[4] = { pixels(from + w, there) };
        for (int64_t c = 1; c < 4; c++) {
            value[c] =
                c < stem->channels ? pixels(from + c * plane + w, there) : _mm512_setzero_si512();
        }
        uint16_t *at = to + w * stem->group;
        const __m512i low = _mm512_or_si512(value[0], _mm512_slli_epi32(value[1], 16));
        const __m512i high = _mm512_or_si512(value[2], _mm512_slli_epi32(value[3], 16));
        if (stem->group == 1) {
            _mm256_mask_storeu_epi16(at, there, _mm512_cvtepi32_epi16(low));
        } else if (stem->group == 2) {
            _mm512_mask_storeu_epi32(at, there, low);
        } else {
            const __m512i next = _mm512_add_epi32(order, _mm512_set1_epi32(8));
            const int64_t left = 2 * (stem->w - w);
            _mm512_mask_storeu_epi32(at, stem_lanes(0, left),
                                     _mm512_permutex2var_epi32(low, order, high));
            _mm512_mask_storeu_epi32(at + AMX_DEPTH, stem_lanes(0, left - LANES),
                                     _mm512_permutex2var_epi32(low, next, high));
        }
    }
}

/* Rounds and writes 32 channels of `count` positions. */
static void stem_put_rows(const float *sums, int64_t count, uint16_t *to, int64_t line)
{
    for (int64_t i = 0; i < count; i++) {
        const __m512 low = _mm512_load_ps(sums + i * AMX_BLOCK);
        const __m512 high = _mm512_load_ps(sums + i * AMX_BLOCK + AMX_SIDE);
        _mm512_storeu_si512(to + i * line, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}

/* 32 channels of up to 32 neighbours in an output row. */
static void stem_block(const struct amx_stem *stem, const uint16_t *copy, const uint16_t *panel,
                       int64_t count, uint16_t *out)
{
    _Alignas(64) float sums[AMX_BLOCK * AMX_BLOCK];
    const int64_t line = stem->stride * stem->group * (int64_t)sizeof(*copy);
    amx_zero();
    for (int64_t r = 0; r < stem->side; r++) {
        amx_multiply(copy + r * stem->pitch, line, AMX_DEPTH,
                     panel + r * stem->blocks * 2 * AMX_TILE, AMX_TILE, 2 * AMX_TILE, stem->blocks,
                     0);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + AMX_SIDE, 128);
    _tile_stored(2, sums + AMX_SIDE * AMX_BLOCK, 128);
    _tile_stored(3, sums + AMX_SIDE * AMX_BLOCK + AMX_SIDE, 128);
    stem_put_rows(sums, count, out, stem->k);
}

void conv_amx_stem_run(const struct amx_stem *stem, const float *images, const uint16_t *weights,
                       uint16_t *out, void *scratch)
{
    uint16_t *copy = scratch;
    const int64_t panel = stem->side * stem->blocks * AMX_DEPTH * AMX_BLOCK;
    const int64_t blocks = (stem->q + AMX_BLOCK - 1) / AMX_BLOCK;
    memset(copy, 0, stem->copy_bytes);
    amx_begin();
    for (int64_t n = 0; n < stem->n; n++) {
        const float *image = images + n * stem->channels * stem->h * stem->w;
        for (int64_t h = 0; h < stem->h; h++) {
            copy_row(stem, image, h,
                     copy + (h + stem->pad) * stem->pitch + stem->pad * stem->group);
        }
        amx_fence();
        for (int64_t i = 0; i < stem->p * blocks; i++) {
            const int64_t p = i / blocks, q = i % blocks * AMX_BLOCK;
            const uint16_t *from =
                copy + p * stem->stride * stem->pitch + q * stem->stride * stem->group;
            uint16_t *to = out + ((n * stem->p + p) * stem->q + q) * stem->k;
            const int64_t count = stem->q - q < AMX_BLOCK ? stem->q - q : AMX_BLOCK;
            for (int64_t k = 0; k < stem->k; k += AMX_BLOCK)
                stem_block(stem, from, weights + k / AMX_BLOCK * panel, count, to + k);
        }
    }
    amx_end();
}

/* `count` elements of a row of w: column, column + stride, …; zero beyond the row. */
static void turn_row(const float *row, int64_t w, int64_t column, int64_t stride, int64_t count,
                     uint16_t *to)
{
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (int64_t i = 0; i < count; i += LANES, column += LANES * stride) {
        __m512 v = _mm512_maskz_loadu_ps(stem_lanes(-column, w - column), row + column);
        if (stride == 2) {
            const int64_t next = column + LANES;
            const __m512 more = _mm512_maskz_loadu_ps(stem_lanes(-next, w - next), row + next);
            v = _mm512_permutex2var_ps(v, even, more);
        }
        _mm256_mask_storeu_epi16(to + i, stem_lanes(0, count - i), (__m256i)_mm512_cvtneps_pbh(v));
    }
}

/* Fills one column of the matrix of columns, for `count` neighbours of output row p from q on. */
static void turn_column(const struct amx_stem *stem, const float *image, int64_t column, int64_t p,
                        int64_t q, int64_t count, uint16_t *to)
{
    const int64_t window = (int64_t)stem->side * stem->side;
    const int64_t r = column % window / stem->side, s = column % stem->side;
    const int64_t h = p * stem->stride + r - stem->pad;
    if (h < 0 || h >= stem->h) {
        memset(to, 0, sizeof(*to) * (size_t)count);
        return;
    }
    turn_row(image + (column / window * stem->h + h) * stem->w, stem->w,
             q * stem->stride + s - stem->pad, stem->stride, count, to);
}

void conv_amx_stem_turn(const struct amx_stem *stem, const float *images, int64_t first,
                        int64_t count, uint16_t *to, int64_t line)
{
    const int64_t all = stem->n * stem->p * stem->q;
    const int64_t columns = stem->channels * stem->side * stem->side;
    const int64_t padded = (columns + AMX_BLOCK - 1) / AMX_BLOCK * AMX_BLOCK;
    const int64_t there = all - first < count ? all - first : count;
    for (int64_t column = 0; column < padded; column++) {
        const int64_t zeros = column < columns ? there : 0;
        memset(to + column * line + zeros, 0, sizeof(*to) * (size_t)(line - zeros));
    }
    for (int64_t i = 0; i < there;) {
        const int64_t row = (first + i) / stem->q, q = (first + i) % stem->q;
        const int64_t run = stem->q - q < there - i ? stem->q - q : there - i;
        const float *image = images + row / stem->p * stem->channels * stem->h * stem->w;
        for (int64_t column = 0; column < columns; column++)
            turn_column(stem, image, column, row % stem->p, q, run, to + column * line + i);
        i += run;
    }
}
