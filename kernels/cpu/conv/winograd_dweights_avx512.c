#include "kernels/cpu/conv/winograd_simd.h"

#define K_BLOCK LANES
#define C_BLOCK WINOGRAD_DW_MULTIPLE
#define K_ROWS  INT64_C(8)                  /* of one call of the product's kernel … */
#define C_PAIR  (2 * LANES)                 /* … and its columns: 16 accumulators */
#define PLACE   (K_BLOCK * C_BLOCK + LANES) /* floats of m from place to place */
#define BLOCK   (WINOGRAD_PLACES * PLACE)   /* floats of m of a block */
#define TILES   INT64_C(160)                /* of one pass: v of 64 channels stays cached */

struct winograd_dw winograd_dw_plan(int64_t n, int64_t c, int64_t k, int64_t h, int64_t w)
{
    struct winograd_dw p = { .map = map_of(n, h, w), .c = c, .k = k };
    const int64_t passes = (p.map.tiles + TILES - 1) / TILES;
    p.tile_block = (p.map.tiles + passes - 1) / passes;
    return p;
}

static int64_t plane_floats(const struct winograd_dw *w, int64_t channels)
{
    return channels * w->tile_block + LANES;
}

static bool one_pass(const struct winograd_dw *w)
{
    return w->tile_block >= w->map.tiles;
}

size_t winograd_dw_scratch_bytes(const struct winograd_dw *w)
{
    const int64_t blocks = one_pass(w) ? 1 : (w->c / C_BLOCK) * (w->k / K_BLOCK);
    return sizeof(float) *
           (size_t)(WINOGRAD_PLACES * (plane_floats(w, w->c) + plane_floats(w, w->k)) +
                    blocks * BLOCK);
}

/* G₄: six values of four taps. */
INLINE void taps_transform(const vec g[TILE], vec out[PATCH])
{
    const float na = 1.0f / (2.0f * A2 * (A2 - B2)), nb = 1.0f / (2.0f * B2 * (B2 - A2));
    const vec even_a = madd(set(A2 * na), g[2], _mm512_mul_ps(set(na), g[0]));
    const vec odd_a = madd(set(A2 * POINT_A * na), g[3], _mm512_mul_ps(set(POINT_A * na), g[1]));
    const vec even_b = madd(set(B2 * nb), g[2], _mm512_mul_ps(set(nb), g[0]));
    const vec odd_b = madd(set(B2 * POINT_B * nb), g[3], _mm512_mul_ps(set(POINT_B * nb), g[1]));
    out[0] = _mm512_mul_ps(set(1.0f / (A2 * B2)), g[0]);
    out[1] = _mm512_add_ps(even_a, odd_a);
    out[2] = _mm512_sub_ps(even_a, odd_a);
    out[3] = _mm512_add_ps(even_b, odd_b);
    out[4] = _mm512_sub_ps(even_b, odd_b);
    out[5] = g[3];
}

/* dy: the plane of 16 channels that the tile is cut from. */
static void gradient_in(const struct winograd_map *map, const float *dy, struct place p, float *q,
                        int64_t plane)
{
    vec half[PATCH][TILE]; /* [row place][column] */
    for (int64_t j = 0; j < TILE; j++) {
        vec g[TILE], t[PATCH];
        for (int64_t i = 0; i < TILE; i++) {
            const bool inside = p.h + i < map->h && p.w + j < map->w;
            g[i] = inside ? _mm512_loadu_ps(dy + ((p.h + i) * map->w + p.w + j) * LANES)
                          : _mm512_setzero_ps();
        }
        taps_transform(g, t);
        for (int64_t i = 0; i < PATCH; i++)
            half[i][j] = t[i];
    }
    for (int64_t i = 0; i < PATCH; i++) {
        vec t[PATCH];
        taps_transform(half[i], t);
        for (int64_t j = 0; j < PATCH; j++)
            _mm512_storeu_ps(q + (i * PATCH + j) * plane, t[j]);
    }
}

static void inputs_in(const struct winograd_dw *w, const float *x, int64_t first, int64_t count,
                      float *v)
{
    const int64_t map = w->map.h * w->map.w * LANES, blocks = w->c / LANES;
    for (int64_t c = 0; c < blocks; c++) {
        for (int64_t t = 0; t < count; t++) {
            const struct place p = place_of(&w->map, first + t);
            tile_in(&w->map, x + (p.n * blocks + c) * map, p, v + (c * w->tile_block + t) * LANES,
                    plane_floats(w, w->c));
        }
    }
}

static void gradients_in(const struct winograd_dw *w, const float *dy, int64_t first, int64_t count,
                         float *q)
{
    const int64_t map = w->map.h * w->map.w * LANES, blocks = w->k / LANES;
    for (int64_t k = 0; k < blocks; k++) {
        for (int64_t t = 0; t < count; t++) {
            const struct place p = place_of(&w->map, first + t);
            gradient_in(&w->map, dy + (p.n * blocks + k) * map, p,
                        q + (k * w->tile_block + t) * LANES, plane_floats(w, w->k));
        }
    }
}

/* m [8, 2 × 16] (+)= Σ over tiles of q [tile, 8] ᵀ · v [tile, 2 × 16]; q and v step by 16 floats.
 */
static void product(const float *q, const float *v, int64_t v_stride, int64_t tiles, bool add,
                    float *m)
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
            const vec g = set(q[k]);
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

/* A block of 16 outputs and 64 inputs; q and v point to its first tile. */
static void block_products(const struct winograd_dw *w, const float *q, const float *v,
                           int64_t tiles, bool add, float *m)
{
    const int64_t v_stride = w->tile_block * LANES;
    for (int64_t place = 0; place < WINOGRAD_PLACES; place++) {
        const float *qp = q + place * plane_floats(w, w->k);
        const float *vp = v + place * plane_floats(w, w->c);
        float *mp = m + place * PLACE;
        for (int64_t c = 0; c < C_BLOCK; c += C_PAIR) {
            for (int64_t k = 0; k < K_BLOCK; k += K_ROWS) {
                product(qp + k, vp + c / LANES * v_stride, v_stride, tiles, add,
                        mp + k * C_BLOCK + c);
            }
        }
    }
}

/* A₃ᵀ: three taps of six values. */
INLINE void result_transform(const vec m[PATCH], vec y[3])
{
    const vec sum_a = _mm512_add_ps(m[1], m[2]), difference_a = _mm512_sub_ps(m[1], m[2]);
    const vec sum_b = _mm512_add_ps(m[3], m[4]), difference_b = _mm512_sub_ps(m[3], m[4]);
    y[0] = _mm512_add_ps(m[0], _mm512_add_ps(sum_a, sum_b));
    y[1] = madd(set(POINT_A), difference_a, _mm512_mul_ps(set(POINT_B), difference_b));
    y[2] = madd(set(A2), sum_a, madd(set(B2), sum_b, m[5]));
}

/* 16 kernels, which lie one after the other, 9 taps each. */
static void kernels_out(const float *m, bool accumulate, float *dw)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 9, 18, 27, 36, 45, 54, 63, 72, 81, 90, 99, 108, 117, 126, 135);
    vec half[3][PATCH]; /* [tap's row][column place] */
    for (int64_t j = 0; j < PATCH; j++) {
        vec t[PATCH], r[3];
        for (int64_t i = 0; i < PATCH; i++)
            t[i] = _mm512_loadu_ps(m + (i * PATCH + j) * PLACE);
        result_transform(t, r);
        for (int64_t i = 0; i < 3; i++)
            half[i][j] = r[i];
    }
    for (int64_t i = 0; i < 3; i++) {
        vec r[3];
        result_transform(half[i], r);
        for (int64_t j = 0; j < 3; j++) {
            float *to = dw + i * 3 + j;
            vec value = r[j];
            if (accumulate)
                value = _mm512_add_ps(_mm512_i32gather_ps(lane, to, sizeof(float)), value);
            _mm512_i32scatter_ps(to, lane, value, sizeof(float));
        }
    }
}

static void block_out(const struct winograd_dw *w, const float *m, int64_t k_first, int64_t c_first,
                      bool accumulate, float *dw)
{
    for (int64_t k = 0; k < K_BLOCK; k++) {
        for (int64_t c = 0; c < C_BLOCK; c += LANES) {
            kernels_out(m + k * C_BLOCK + c, accumulate,
                        dw + ((k_first + k) * w->c + c_first + c) * 9);
        }
    }
}

void winograd_dw_run(const struct winograd_dw *w, const float *x, const float *dy, bool accumulate,
                     float *dw, void *scratch)
{
    float *v = scratch, *q = v + WINOGRAD_PLACES * plane_floats(w, w->c);
    float *m = q + WINOGRAD_PLACES * plane_floats(w, w->k);
    const int64_t v_stride = w->tile_block * LANES, m_step = one_pass(w) ? 0 : BLOCK;
    for (int64_t first = 0; first < w->map.tiles; first += w->tile_block) {
        const int64_t left = w->map.tiles - first;
        const int64_t count = left < w->tile_block ? left : w->tile_block;
        float *block = m;
        inputs_in(w, x, first, count, v);
        gradients_in(w, dy, first, count, q);
        for (int64_t c = 0; c < w->c; c += C_BLOCK) {
            for (int64_t k = 0; k < w->k; k += K_BLOCK, block += m_step) {
                block_products(w, q + k / LANES * v_stride, v + c / LANES * v_stride, count,
                               first > 0, block);
                if (count == left)
                    block_out(w, block, k, c, accumulate, dw);
            }
        }
    }
}
