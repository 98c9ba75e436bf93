/*
 * The weights' gradient. For T tiles at a time: v and q (input_tiles_in, gradient_tiles_in), then
 * per block of 64 inputs and 16 outputs 36 products over the tiles (block_products). With the last
 * tiles the block is transformed and written (dweights_block_out).
 */
#include "common/check.h"
#include "kernels/cpu/conv/winograd_simd.h"

#define K_BLOCK LANES
#define C_BLOCK WINOGRAD_DWEIGHTS_MULTIPLE
#define K_ROWS  INT64_C(8)                  /* rows of one call of dweights_product … */
#define C_PAIR  (2 * LANES)                 /* … and its columns: 16 accumulators */
#define PLACE   (K_BLOCK * C_BLOCK + LANES) /* floats of m from place to place */
#define BLOCK   (WINOGRAD_PLACES * PLACE)   /* floats of m from block to block */
#define TILES   INT64_C(160)                /* of one pass at most: v of 64 inputs stays cached */

struct winograd_dweights winograd_dweights_geometry(int64_t n, int64_t c, int64_t k, int64_t h,
                                                    int64_t w)
{
    CHECK(c % WINOGRAD_DWEIGHTS_MULTIPLE == 0);
    CHECK(k % K_BLOCK == 0);
    struct winograd_dweights p = { .map = tiles_map(n, h, w), .c = c, .k = k };
    const int64_t passes = (p.map.tiles + TILES - 1) / TILES;
    p.tile_block = (p.map.tiles + passes - 1) / passes;
    return p;
}

static bool one_pass(const struct winograd_dweights *w)
{
    return w->tile_block >= w->map.tiles;
}

size_t winograd_dweights_scratch_bytes(const struct winograd_dweights *w)
{
    const int64_t blocks = one_pass(w) ? 1 : (w->c / C_BLOCK) * (w->k / K_BLOCK);
    return sizeof(float) * (size_t)(WINOGRAD_PLACES * (plane_floats(w->tile_block, w->c) +
                                                       plane_floats(w->tile_block, w->k)) +
                                    blocks * BLOCK);
}

/* out = G₄ g. */
INLINE void gradient_transform(const vec g[TILE], vec out[PATCH])
{
    const float na = 1.0f / (2.0f * A2 * (A2 - B2)), nb = 1.0f / (2.0f * B2 * (B2 - A2));
    const vec even_a = madd(splat(A2 * na), g[2], _mm512_mul_ps(splat(na), g[0]));
    const vec odd_a =
        madd(splat(A2 * POINT_A * na), g[3], _mm512_mul_ps(splat(POINT_A * na), g[1]));
    const vec even_b = madd(splat(B2 * nb), g[2], _mm512_mul_ps(splat(nb), g[0]));
    const vec odd_b =
        madd(splat(B2 * POINT_B * nb), g[3], _mm512_mul_ps(splat(POINT_B * nb), g[1]));
    out[0] = _mm512_mul_ps(splat(1.0f / (A2 * B2)), g[0]);
    out[1] = _mm512_add_ps(even_a, odd_a);
    out[2] = _mm512_sub_ps(even_a, odd_a);
    out[3] = _mm512_add_ps(even_b, odd_b);
    out[4] = _mm512_sub_ps(even_b, odd_b);
    out[5] = g[3];
}

/* G₄ dy G₄ᵀ of a tile, place ξ to q + ξ·plane. dy: the plane of 16 channels that it is cut from. */
static void gradient_in(const struct winograd_map *map, const float *dy, struct tile_place p,
                        float *q, int64_t plane)
{
    vec half[PATCH][TILE]; /* [row place][column] */
    for (int64_t j = 0; j < TILE; j++) {
        vec g[TILE], t[PATCH];
        for (int64_t i = 0; i < TILE; i++) {
            const bool inside = p.h + i < map->h && p.w + j < map->w;
            g[i] = inside ? _mm512_loadu_ps(dy + ((p.h + i) * map->w + p.w + j) * LANES)
                          : _mm512_setzero_ps();
        }
        gradient_transform(g, t);
        for (int64_t i = 0; i < PATCH; i++)
            half[i][j] = t[i];
    }
    for (int64_t i = 0; i < PATCH; i++) {
        vec t[PATCH];
        gradient_transform(half[i], t);
        for (int64_t j = 0; j < PATCH; j++)
            _mm512_storeu_ps(q + (i * PATCH + j) * plane, t[j]);
    }
}

static void input_tiles_in(const struct winograd_dweights *w, const float *x, int64_t first,
                           int64_t count, float *v)
{
    const int64_t map = w->map.h * w->map.w * LANES, blocks = w->c / LANES;
    for (int64_t c = 0; c < blocks; c++) {
        for (int64_t t = 0; t < count; t++) {
            const struct tile_place p = tile_place_of(&w->map, first + t);
            tile_in(&w->map, x + (p.n * blocks + c) * map, p, v + (c * w->tile_block + t) * LANES,
                    plane_floats(w->tile_block, w->c));
        }
    }
}

static void gradient_tiles_in(const struct winograd_dweights *w, const float *dy, int64_t first,
                              int64_t count, float *q)
{
    const int64_t map = w->map.h * w->map.w * LANES, blocks = w->k / LANES;
    for (int64_t k = 0; k < blocks; k++) {
        for (int64_t t = 0; t < count; t++) {
            const struct tile_place p = tile_place_of(&w->map, first + t);
            gradient_in(&w->map, dy + (p.n * blocks + k) * map, p,
                        q + (k * w->tile_block + t) * LANES, plane_floats(w->tile_block, w->k));
        }
    }
}

/* m [8, 32] (+)= q [tiles, 8]ᵀ · v [tiles, 32]. A tile is 16 floats after the one before it; v lies
 * in two blocks of 16 columns, v_stride floats apart. */
static void dweights_product(const float *q, const float *v, int64_t v_stride, int64_t tiles,
                             bool add, float *m)
{
    vec low[K_ROWS], high[K_ROWS];
    UNROLL
    for (int64_t k = 0; k < K_ROWS; k++) {
        low[k] = add ? _mm512_loadu_ps(m + k * C_BLOCK) : _mm512_setzero_ps();
        high[k] = add ? _mm512_loadu_ps(m + k * C_BLOCK + LANES) : _mm512_setzero_ps();
    }
    for (int64_t t = 0; t < tiles; t++, q += LANES, v += LANES) {
        const vec v_low = _mm512_loadu_ps(v), v_high = _mm512_loadu_ps(v + v_stride);
        UNROLL
        for (int64_t k = 0; k < K_ROWS; k++) {
            const vec g = splat(q[k]);
            low[k] = madd(g, v_low, low[k]);
            high[k] = madd(g, v_high, high[k]);
        }
    }
    UNROLL
    for (int64_t k = 0; k < K_ROWS; k++) {
        _mm512_storeu_ps(m + k * C_BLOCK, low[k]);
        _mm512_storeu_ps(m + k * C_BLOCK + LANES, high[k]);
    }
}

/* A block, all places. q and v: its first tile at place 0. */
static void block_products(const struct winograd_dweights *w, const float *q, const float *v,
                           int64_t tiles, bool add, float *m)
{
    const int64_t v_stride = w->tile_block * LANES;
    for (int64_t place = 0; place < WINOGRAD_PLACES; place++) {
        const float *qp = q + place * plane_floats(w->tile_block, w->k);
        const float *vp = v + place * plane_floats(w->tile_block, w->c);
        float *mp = m + place * PLACE;
        for (int64_t c = 0; c < C_BLOCK; c += C_PAIR) {
            for (int64_t k = 0; k < K_BLOCK; k += K_ROWS) {
                dweights_product(qp + k, vp + c / LANES * v_stride, v_stride, tiles, add,
                                 mp + k * C_BLOCK + c);
            }
        }
    }
}

/* y = A₃ᵀ m. */
INLINE void kernel_transform(const vec m[PATCH], vec y[3])
{
    const vec sum_a = _mm512_add_ps(m[1], m[2]), difference_a = _mm512_sub_ps(m[1], m[2]);
    const vec sum_b = _mm512_add_ps(m[3], m[4]), difference_b = _mm512_sub_ps(m[3], m[4]);
    y[0] = _mm512_add_ps(m[0], _mm512_add_ps(sum_a, sum_b));
    y[1] = madd(splat(POINT_A), difference_a, _mm512_mul_ps(splat(POINT_B), difference_b));
    y[2] = madd(splat(A2), sum_a, madd(splat(B2), sum_b, m[5]));
}

/* A₃ᵀ m A₃ of 16 kernels, which lie one after the other in dw, 9 taps each. */
static void kernels_out(const float *m, bool accumulate, float *dw)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99, 108, 117, 126, 135);
    vec half[3][PATCH]; /* [tap's row][column place] */
    for (int64_t j = 0; j < PATCH; j++) {
        vec t[PATCH], r[3];
        for (int64_t i = 0; i < PATCH; i++)
            t[i] = _mm512_loadu_ps(m + (i * PATCH + j) * PLACE);
        kernel_transform(t, r);
        for (int64_t i = 0; i < 3; i++)
            half[i][j] = r[i];
    }
    for (int64_t i = 0; i < 3; i++) {
        vec r[3];
        kernel_transform(half[i], r);
        for (int64_t j = 0; j < 3; j++) {
            float *to = dw + i * 3 + j;
            vec value = r[j];
            if (accumulate)
                value = _mm512_add_ps(_mm512_i32gather_ps(lane, to, sizeof(float)), value);
            _mm512_i32scatter_ps(to, lane, value, sizeof(float));
        }
    }
}

static void dweights_block_out(const struct winograd_dweights *w, const float *m, int64_t k_first,
                               int64_t c_first, bool accumulate, float *dw)
{
    for (int64_t k = 0; k < K_BLOCK; k++) {
        for (int64_t c = 0; c < C_BLOCK; c += LANES) {
            kernels_out(m + k * C_BLOCK + c, accumulate,
                        dw + ((k_first + k) * w->c + c_first + c) * 9);
        }
    }
}

void winograd_dweights_run(const struct winograd_dweights *w, const float *x, const float *dy,
                           bool accumulate, float *dw, void *scratch)
{
    float *v = scratch, *q = v + WINOGRAD_PLACES * plane_floats(w->tile_block, w->c);
    float *m = q + WINOGRAD_PLACES * plane_floats(w->tile_block, w->k);
    const int64_t v_stride = w->tile_block * LANES, m_step = one_pass(w) ? 0 : BLOCK;
    for (int64_t first = 0; first < w->map.tiles; first += w->tile_block) {
        const int64_t left = w->map.tiles - first;
        const int64_t count = left < w->tile_block ? left : w->tile_block;
        float *block = m;
        input_tiles_in(w, x, first, count, v);
        gradient_tiles_in(w, dy, first, count, q);
        for (int64_t c = 0; c < w->c; c += C_BLOCK) {
            for (int64_t k = 0; k < w->k; k += K_BLOCK, block += m_step) {
                block_products(w, q + k / LANES * v_stride, v + c / LANES * v_stride, count,
                               first > 0, block);
                if (count == left)
                    dweights_block_out(w, block, k, c, accumulate, dw);
            }
        }
    }
}
