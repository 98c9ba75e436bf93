/*
 * Forward and backward-data. For T tiles at a time (block_in), B outputs at a time: 36 products
 * (place_products), then the tiles' outputs (block_out).
 *
 *   v fits the second-level cache    B = 32: v is read from there for each 32 outputs
 *   it does not                      B = K: a place of v, [C, T], is used for all outputs at once
 */
#include "common/check.h"
#include "kernels/cpu/conv/winograd_simd.h"

#define ROWS   INT64_C(14) /* tiles that one call of the product's kernel does: 28 accumulators */
#define AHEAD  (16 * WINOGRAD_OUT_MULTIPLE) /* floats of u that are asked for early */
#define V_GOAL (INT64_C(1) << 20)           /* bytes of v that stay in the second-level cache */

struct winograd winograd_geometry(int64_t n, int64_t c, int64_t k, int64_t h, int64_t w)
{
    CHECK(c % WINOGRAD_IN_MULTIPLE == 0);
    CHECK(k % WINOGRAD_OUT_MULTIPLE == 0);
    struct winograd p = { .map = tiles_map(n, h, w), .c = c, .k = k };
    const int64_t bytes = WINOGRAD_PLACES * c * (int64_t)sizeof(float);
    p.tile_block = V_GOAL / bytes / ROWS * ROWS;
    p.out_block = WINOGRAD_OUT_MULTIPLE;
    if (p.tile_block < 4 * ROWS) {
        /* v does not fit: then place after place, each with all outputs. */
        p.tile_block = 9 * ROWS;
        p.out_block = k;
    }
    if (p.tile_block > p.map.tiles)
        p.tile_block = p.map.tiles;
    return p;
}

size_t winograd_cache_bytes(const struct winograd *w)
{
    return sizeof(float) * (size_t)(WINOGRAD_PLACES * w->c * w->k);
}

size_t winograd_scratch_bytes(const struct winograd *w)
{
    return sizeof(float) * WINOGRAD_PLACES *
           (size_t)(plane_floats(w->tile_block, w->c) + plane_floats(w->tile_block, w->out_block));
}

/* --- weights ------------------------------------------------------------------------------- */

/* out = G g. */
INLINE void taps_transform(const vec g[3], vec out[PATCH])
{
    const float na = 1.0f / (2.0f * A2 * (A2 - B2)), nb = 1.0f / (2.0f * B2 * (B2 - A2));
    const vec even_a = madd(splat(A2 * na), g[2], _mm512_mul_ps(splat(na), g[0]));
    const vec odd_a = _mm512_mul_ps(splat(POINT_A * na), g[1]);
    const vec even_b = madd(splat(B2 * nb), g[2], _mm512_mul_ps(splat(nb), g[0]));
    const vec odd_b = _mm512_mul_ps(splat(POINT_B * nb), g[1]);
    out[0] = _mm512_mul_ps(splat(1.0f / (A2 * B2)), g[0]);
    out[1] = _mm512_add_ps(even_a, odd_a);
    out[2] = _mm512_sub_ps(even_a, odd_a);
    out[3] = _mm512_add_ps(even_b, odd_b);
    out[4] = _mm512_sub_ps(even_b, odd_b);
    out[5] = g[2];
}

/* G g Gᵀ of 16 kernels, `offsets` floats from `from`; place ξ to out + ξ·plane. */
static void kernels_transform(const float *from, __m512i offsets, bool turned, float *out,
                              int64_t plane)
{
    vec half[3][PATCH]; /* [column of the kernel][row place] */
    for (int s = 0; s < 3; s++) {
        vec g[3];
        for (int r = 0; r < 3; r++) {
            const int at = turned ? 8 - (r * 3 + s) : r * 3 + s;
            g[r] = _mm512_i32gather_ps(offsets, from + at, sizeof(float));
        }
        taps_transform(g, half[s]);
    }
    for (int i = 0; i < PATCH; i++) {
        const vec g[3] = { half[0][i], half[1][i], half[2][i] };
        vec u[PATCH];
        taps_transform(g, u);
        for (int j = 0; j < PATCH; j++)
            _mm512_stream_ps(out + (i * PATCH + j) * plane, u[j]);
    }
}

void winograd_weights(const struct winograd *w, const float *canonical, bool backward, float *u)
{
    const int64_t taps = 9, plane = w->c * w->k;
    /* Distances in canonical weights from one output channel, and from one input channel, to the
     * next. */
    const int64_t by_k = backward ? taps : w->c * taps;
    const int64_t by_c = backward ? w->k * taps : taps;
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i offsets = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)by_k));
    for (int64_t k = 0; k < w->k; k += LANES) {
        float *to = u + k / WINOGRAD_OUT_MULTIPLE * WINOGRAD_OUT_MULTIPLE * w->c +
                    k % WINOGRAD_OUT_MULTIPLE;
        for (int64_t c = 0; c < w->c; c++) {
            kernels_transform(canonical + k * by_k + c * by_c, offsets, backward,
                              to + c * WINOGRAD_OUT_MULTIPLE, plane);
        }
    }
    _mm_sfence();
}

/* --- inputs -------------------------------------------------------------------------------- */

static void block_in(const struct winograd *w, const float *x, int64_t first, int64_t count,
                     float *v)
{
    const int64_t plane = plane_floats(w->tile_block, w->c), map = w->map.h * w->map.w * LANES;
    for (int64_t c = 0; c < w->c / LANES; c++) {
        for (int64_t t = 0; t < count; t++) {
            const struct tile_place p = tile_place_of(&w->map, first + t);
            tile_in(&w->map, x + (p.n * (w->c / LANES) + c) * map, p,
                    v + (c * w->tile_block + t) * LANES, plane);
        }
    }
}

/* --- products ------------------------------------------------------------------------------ */

/* m [rows, 32] = v [rows, C] · u [C, 32]. v and m lie in blocks of 16 columns, `stride` floats
 * apart. The prefetches may reach past the ends: they don't fault. */
INLINE void tiles_product(int rows, const float *v, const float *u, int64_t c_blocks,
                          int64_t stride, float *m)
{
    vec low[ROWS], high[ROWS];
    UNROLL
    for (int r = 0; r < rows; r++)
        low[r] = high[r] = _mm512_setzero_ps();
    for (int64_t block = 0; block < c_blocks; block++, v += stride) {
        for (int c = 0; c < LANES; c++, u += WINOGRAD_OUT_MULTIPLE) {
            const vec u_low = _mm512_loadu_ps(u), u_high = _mm512_loadu_ps(u + LANES);
            _mm_prefetch((const char *)(v + stride + c * LANES), _MM_HINT_T0);
            _mm_prefetch((const char *)(u + AHEAD), _MM_HINT_T0);
            _mm_prefetch((const char *)(u + AHEAD + LANES), _MM_HINT_T0);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const vec x = splat(v[r * LANES + c]);
                low[r] = madd(x, u_low, low[r]);
                high[r] = madd(x, u_high, high[r]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_ps(m + r * LANES, low[r]);
        _mm512_storeu_ps(m + stride + r * LANES, high[r]);
    }
}

static void product_rows(int64_t rows, const float *v, const float *u, int64_t c_blocks,
                         int64_t stride, float *m)
{
#define PRODUCT_CASE(n)                                                                            \
    case n:                                                                                        \
        tiles_product(n, v, u, c_blocks, stride, m);                                               \
        break
    switch (rows) {
        PRODUCT_CASE(1);
        PRODUCT_CASE(2);
        PRODUCT_CASE(3);
        PRODUCT_CASE(4);
        PRODUCT_CASE(5);
        PRODUCT_CASE(6);
        PRODUCT_CASE(7);
        PRODUCT_CASE(8);
        PRODUCT_CASE(9);
        PRODUCT_CASE(10);
        PRODUCT_CASE(11);
        PRODUCT_CASE(12);
        PRODUCT_CASE(13);
        PRODUCT_CASE(14);
    default:
        break;
    }
#undef PRODUCT_CASE
}

/* Computes one place's products for all tiles of a block, in groups of at most ROWS, as equal as
 * they can be. */
static void place_products(const struct winograd *w, const float *v, const float *u, int64_t count,
                           float *m)
{
    const int64_t stride = w->tile_block * LANES;
    const int64_t groups = (count + ROWS - 1) / ROWS;
    for (int64_t k = 0; k < w->out_block; k += WINOGRAD_OUT_MULTIPLE) {
        for (int64_t g = 0; g < groups; g++) {
            const int64_t begin = g * count / groups, end = (g + 1) * count / groups;
            product_rows(end - begin, v + begin * LANES, u + k * w->c, w->c / LANES, stride,
                         m + k / LANES * stride + begin * LANES);
        }
    }
}

/* --- outputs ------------------------------------------------------------------------------- */

/* y = Aᵀ m. */
INLINE void result_transform(const vec m[PATCH], vec y[TILE])
{
    const vec sum_a = _mm512_add_ps(m[1], m[2]), difference_a = _mm512_sub_ps(m[1], m[2]);
    const vec sum_b = _mm512_add_ps(m[3], m[4]), difference_b = _mm512_sub_ps(m[3], m[4]);
    y[0] = _mm512_add_ps(m[0], _mm512_add_ps(sum_a, sum_b));
    y[1] = madd(splat(POINT_A), difference_a, _mm512_mul_ps(splat(POINT_B), difference_b));
    y[2] = madd(splat(A2), sum_a, _mm512_mul_ps(splat(B2), sum_b));
    y[3] = madd(splat(A2 * POINT_A), difference_a, madd(splat(B2 * POINT_B), difference_b, m[5]));
}

static void tile_out(const struct winograd *w, const float *m, int64_t plane, struct tile_place p,
                     vec bias, float *y)
{
    vec half[TILE][PATCH]; /* [output row][column place] */
    for (int j = 0; j < PATCH; j++) {
        vec t[PATCH], r[TILE];
        for (int i = 0; i < PATCH; i++)
            t[i] = _mm512_loadu_ps(m + (i * PATCH + j) * plane);
        result_transform(t, r);
        for (int i = 0; i < TILE; i++)
            half[i][j] = r[i];
    }
    const int64_t rows = w->map.h - p.h < TILE ? w->map.h - p.h : TILE;
    const int64_t columns = w->map.w - p.w < TILE ? w->map.w - p.w : TILE;
    for (int64_t i = 0; i < rows; i++) {
        vec r[TILE];
        result_transform(half[i], r);
        float *to = y + ((p.h + i) * w->map.w + p.w) * LANES;
        for (int64_t j = 0; j < columns; j++)
            _mm512_storeu_ps(to + j * LANES, _mm512_add_ps(r[j], bias));
    }
}

static void block_out(const struct winograd *w, const float *m, int64_t first, int64_t count,
                      int64_t k_first, const float *bias, float *y)
{
    const int64_t plane = plane_floats(w->tile_block, w->out_block),
                  map = w->map.h * w->map.w * LANES;
    for (int64_t k = 0; k < w->out_block / LANES; k++) {
        const int64_t block = k_first / LANES + k;
        const vec add = bias == NULL ? _mm512_setzero_ps() : _mm512_loadu_ps(bias + block * LANES);
        for (int64_t t = 0; t < count; t++) {
            const struct tile_place p = tile_place_of(&w->map, first + t);
            tile_out(w, m + (k * w->tile_block + t) * LANES, plane, p, add,
                     y + (p.n * (w->k / LANES) + block) * map);
        }
    }
}

void winograd_run(const struct winograd *w, const float *x, const float *u, const float *bias,
                  float *y, void *scratch)
{
    float *v = scratch, *m = v + WINOGRAD_PLACES * plane_floats(w->tile_block, w->c);
    for (int64_t first = 0; first < w->map.tiles; first += w->tile_block) {
        const int64_t left = w->map.tiles - first;
        const int64_t count = left < w->tile_block ? left : w->tile_block;
        block_in(w, x, first, count, v);
        for (int64_t k = 0; k < w->k; k += w->out_block) {
            for (int64_t place = 0; place < WINOGRAD_PLACES; place++) {
                place_products(w, v + place * plane_floats(w->tile_block, w->c),
                               u + place * w->c * w->k + k * w->c, count,
                               m + place * plane_floats(w->tile_block, w->out_block));
            }
            block_out(w, m, first, count, k, bias, y);
        }
    }
}
