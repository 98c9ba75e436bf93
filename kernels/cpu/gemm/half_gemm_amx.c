/*
 * c = a · b in tiles of 1 KiB (amx_simd.h): of a 16 rows × 32 k, of b 16 pairs of k × 16 columns,
 * of sums 16 × 16 float32. The loops, and what is packed in them:
 *
 *   for row in blocks of BLOCK
 *     for depth in blocks of DEPTH                 a's block, BLOCK × DEPTH: level 2
 *       for column in panels of PAIR
 *         for k in pieces of PIECE                 b's piece, PIECE × PAIR: level 1, while the
 *                                                  next one is fetched from memory
 *           for each two tiles of rows
 *             for each tile of k
 *               sums (+)= two tiles of a · two tiles of b
 *
 * Between pieces the sums stay in a panel of tiles in scratch. They stay in c itself where c is
 * float32, has no bias, and has all 32 × 32 of them. Each element of b is read from memory once per
 * block of rows. What lies beyond the edges of a matrix counts as 0.
 */
#include "common/check.h"
#include "kernels/cpu/gemm/amx_simd.h"
#include "kernels/cpu/gemm/half_gemm.h"

#define LANES  AMX_SIDE
#define TILE   1024 /* bytes */
#define DEEP   AMX_DEPTH
#define PAIR   32 /* rows, and columns, of two tiles */
#define BLOCK  256
#define DEPTH  3072
#define PIECE  512
#define LINE   64 /* bytes of a cache line */
#define READS  4  /* lines that are fetched to be read, per tile of k */
#define WRITES 8  /* and to be written */

/* Position in the loops above: the first index of each loop, and its count. */
struct gemm_place {
    int64_t row, rows;
    int64_t depth, deep;
    int64_t column; /* PAIR of them */
    int64_t k, count;
};

/* Regions of scratch. */
struct gemm_scratch {
    char *piece, *block;
    float *sums; /* [panel][row tile][column tile][16][16]; one panel if k has one block */
};

/* Cache lines that will be used soon: rows of 2^shift lines, `stride` bytes apart. */
struct gemm_fetch {
    const char *from;
    int64_t stride, count; /* count: of lines */
    int shift;
};

static int64_t gemm_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t gemm_up(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

static int64_t panels_kept(int64_t n, int64_t k)
{
    return k > DEPTH ? gemm_up(n, PAIR) / PAIR : 1;
}

size_t half_gemm_scratch_bytes(int64_t m, int64_t n, int64_t k)
{
    const int64_t rows = gemm_up(gemm_least(m, BLOCK), PAIR),
                  deep = gemm_up(gemm_least(k, DEPTH), DEEP);
    return sizeof(uint16_t) * (size_t)(rows * deep + INT64_C(1) * PIECE * PAIR) +
           sizeof(float) * (size_t)(panels_kept(n, k) * rows * PAIR);
}

static struct gemm_scratch gemm_regions(const struct half_gemm *g, void *scratch)
{
    const int64_t rows = gemm_up(gemm_least(g->m, BLOCK), PAIR),
                  deep = gemm_up(gemm_least(g->k, DEPTH), DEEP);
    struct gemm_scratch r = { .piece = scratch };
    r.block = r.piece + (int64_t)sizeof(uint16_t) * PIECE * PAIR;
    r.sums = (float *)(void *)(r.block + rows * deep * (int64_t)sizeof(uint16_t));
    return r;
}

AMX_INLINE uint32_t first_bits(int64_t count, int64_t most)
{
    return count >= most ? (uint32_t)((1ull << most) - 1) : count <= 0 ? 0 : (1u << count) - 1;
}

/* A tile of `rows` rows of `count` elements, `stride` apart: [16][32], the rest zero. */
AMX_INLINE void gemm_load_rows(__m512i r[LANES], const uint16_t *from, int64_t stride, int64_t rows,
                               int64_t count)
{
    const __mmask32 mask = first_bits(count, DEEP);
    for (int i = 0; i < LANES; i++) {
        r[i] =
            i < rows ? _mm512_maskz_loadu_epi16(mask, from + i * stride) : _mm512_setzero_si512();
    }
}

/* A tile of `count` rows of `columns` elements, in pairs of rows: [16 pairs][16 columns], the rest
 * zero. */
AMX_INLINE void gemm_load_pairs(__m512i r[LANES], const uint16_t *from, int64_t stride,
                                int64_t count, int64_t columns)
{
    const __mmask16 mask = (__mmask16)first_bits(columns, LANES);
    for (int64_t i = 0; i < LANES; i++) {
        __m512i low = _mm512_setzero_si512(), high = low;
        const uint16_t *row = from + 2 * i * stride;
        if (2 * i < count)
            low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row));
        if (2 * i + 1 < count)
            high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, row + stride));
        r[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
}

AMX_INLINE void store_tile(char *to, const __m512i r[LANES])
{
    for (int i = 0; i < LANES; i++)
        _mm512_store_si512(to + (ptrdiff_t)i * LINE, r[i]);
}

/* a's block as tiles: [row tile][tile of k]. */
static void pack_a(const struct half_gemm *g, const struct gemm_place *p, char *to)
{
    for (int64_t row = 0; row < gemm_up(p->rows, PAIR); row += LANES) {
        const int64_t rows = p->rows - row;
        for (int64_t k = 0; k < p->deep; k += DEEP, to += TILE) {
            __m512i r[LANES];
            const int64_t first = p->row + row, deep = p->depth + k, count = p->deep - k;
            if (g->a_transposed) {
                gemm_load_pairs(r, g->a + deep * g->m + first, g->m, count, rows);
                amx_turn(r);
            } else {
                gemm_load_rows(r, g->a + first * g->k + deep, g->k, rows, count);
            }
            store_tile(to, r);
        }
    }
}

/* b's piece as tiles: [tile of k][column tile]. */
static void pack_b(const struct half_gemm *g, const struct gemm_place *p, char *to)
{
    for (int64_t k = 0; k < p->count; k += DEEP) {
        for (int64_t c = 0; c < PAIR; c += LANES, to += TILE) {
            __m512i r[LANES];
            const int64_t column = p->column + c, deep = p->k + k;
            const int64_t columns = g->n - column, count = p->count - k;
            if (g->b_transposed) {
                gemm_load_rows(r, g->b + column * g->k + deep, g->k, columns, count);
                amx_turn(r);
            } else {
                gemm_load_pairs(r, g->b + deep * g->n + column, g->n, count, columns);
            }
            store_tile(to, r);
        }
    }
}

/* The piece after this one within the same block of a; false: there is none. */
static bool next_piece(const struct half_gemm *g, const struct gemm_place *now,
                       struct gemm_place *out)
{
    *out = *now;
    out->k += PIECE;
    if (out->k >= now->depth + now->deep) {
        out->k = now->depth;
        out->column += PAIR;
    }
    out->count = gemm_least(now->depth + now->deep - out->k, PIECE);
    return out->column < g->n;
}

static struct gemm_fetch fetch_of(const struct half_gemm *g, const struct gemm_place *p)
{
    struct gemm_fetch f = { 0 };
    if (g->b_transposed) {
        f.from = (const char *)(g->b + p->column * g->k + p->k);
        f.stride = g->k * (int64_t)sizeof(uint16_t);
        f.shift = 4; /* PIECE elements are 16 lines */
        f.count = gemm_least(g->n - p->column, PAIR) << f.shift;
    } else {
        f.from = (const char *)(g->b + p->k * g->n + p->column);
        f.stride = g->n * (int64_t)sizeof(uint16_t);
        f.count = p->count;
    }
    return f;
}

AMX_INLINE const char *line_at(const struct gemm_fetch *f, int64_t line)
{
    return f->from + (line >> f->shift) * f->stride + (line & ((1 << f->shift) - 1)) * LINE;
}

AMX_INLINE void fetch_lines(const struct gemm_fetch *f, int64_t first, int64_t count)
{
    for (int64_t l = first; l < first + count && l < f->count; l++)
        _mm_prefetch(line_at(f, l), _MM_HINT_T1);
}

AMX_INLINE void fetch_to_write(const struct gemm_fetch *f, int64_t first, int64_t count)
{
    for (int64_t l = first; l < first + count && l < f->count; l++)
        __builtin_prefetch(line_at(f, l), 1, 2);
}

/* Four tiles of sums. */
struct gemm_sums {
    float *at[4];
    int64_t stride;         /* bytes from row to row */
    bool adds;              /* to what is there; else they start at 0 */
    struct gemm_fetch next; /* the lines of the four after them */
};

static void gemm_multiply(const char *a, int64_t a_next, const char *b, int64_t tiles,
                          const struct gemm_sums *s, const struct gemm_fetch *f, int64_t line)
{
    const size_t stride = (size_t)s->stride;
    if (s->adds) {
        _tile_loadd(0, s->at[0], stride);
        _tile_loadd(1, s->at[1], stride);
        _tile_loadd(2, s->at[2], stride);
        _tile_loadd(3, s->at[3], stride);
    } else {
        amx_zero();
    }
    for (int64_t k = 0; k < tiles; k++, a += TILE, b += (ptrdiff_t)2 * TILE) {
        fetch_lines(f, line + k * READS, READS);
        fetch_to_write(&s->next, k * WRITES, WRITES);
        _tile_loadd(6, b, LINE);
        _tile_loadd(4, a, LINE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE, LINE);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + a_next, LINE);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, s->at[0], stride);
    _tile_stored(1, s->at[1], stride);
    _tile_stored(2, s->at[2], stride);
    _tile_stored(3, s->at[3], stride);
}

/* Whether sums of these rows and columns can be kept in c. */
static bool is_direct(const struct half_gemm *g, int64_t row, int64_t column)
{
    return !g->c_half && g->bias == NULL && row + PAIR <= g->m && column + PAIR <= g->n;
}

static float *panel_of(const struct half_gemm *g, const struct gemm_scratch *r,
                       const struct gemm_place *p)
{
    const int64_t panel = g->k > DEPTH ? p->column / PAIR : 0;
    return r->sums + panel * gemm_up(gemm_least(g->m, BLOCK), PAIR) * PAIR;
}

/* 32 × 32 sums from the panel into c. */
static void gemm_emit(const struct half_gemm *g, int64_t row, int64_t column, const float *sums)
{
    for (int64_t i = 0; i < gemm_least(g->m - row, PAIR); i++) {
        for (int64_t c = 0; c < PAIR; c += LANES) {
            const __mmask16 mask = (__mmask16)first_bits(g->n - column - c, LANES);
            const int64_t at = (row + i) * g->n + column + c;
            const float *from = sums + ((i / LANES * 2 + c / LANES) * LANES + i % LANES) * LANES;
            __m512 v = _mm512_load_ps(from);
            if (g->bias != NULL)
                v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, g->bias + column + c));
            if (g->c_half) {
                _mm256_mask_storeu_epi16((uint16_t *)g->c + at, mask,
                                         (__m256i)_mm512_cvtneps_pbh(v));
                continue;
            }
            float *to = (float *)g->c + at;
            if (g->accumulate)
                v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, to));
            _mm512_mask_storeu_ps(to, mask, v);
        }
    }
}

/* The sums of the block's rows from i on. */
static struct gemm_sums sums_at(const struct half_gemm *g, const struct gemm_place *p, int64_t i,
                                float *panel)
{
    const bool direct = is_direct(g, p->row + i, p->column);
    float *at = direct ? (float *)g->c + (p->row + i) * g->n + p->column : panel + i * PAIR;
    const int64_t down = direct ? LANES * g->n : 2 * LANES * LANES;
    const int64_t right = direct ? LANES : LANES * LANES;
    const struct gemm_sums s = { .at = { at, at + right, at + down, at + down + right },
                                 .stride = (direct ? g->n : LANES) * (int64_t)sizeof(float),
                                 .adds = p->k > 0 || (direct && g->accumulate) };
    return s;
}

/* The lines of c whose sums come after those of rows i of the panel: the rows below, or the first
 * ones of the next panel. */
static struct gemm_fetch next_of(const struct half_gemm *g, const struct gemm_place *p, int64_t i)
{
    const bool below = i + PAIR < p->rows;
    const int64_t row = p->row + (below ? i + PAIR : 0), column = p->column + (below ? 0 : PAIR);
    if (!is_direct(g, row, column))
        return (struct gemm_fetch){ 0 };
    return (struct gemm_fetch){ .from = (const char *)((const float *)g->c + row * g->n + column),
                                .stride = g->n * (int64_t)sizeof(float),
                                .count = INT64_C(2) * PAIR,
                                .shift = 1 };
}

/* Multiplies all rows of the block by one piece of b. */
static void multiply_piece(const struct half_gemm *g, const struct gemm_place *p,
                           const struct gemm_scratch *r)
{
    const int64_t tiles = gemm_up(p->count, DEEP) / DEEP,
                  a_next = gemm_up(p->deep, DEEP) / DEEP * TILE;
    const bool last = p->k + p->count == g->k;
    const char *a = r->block + (p->k - p->depth) / DEEP * TILE;
    float *panel = panel_of(g, r, p);
    struct gemm_place next;
    const bool more = next_piece(g, p, &next);
    const struct gemm_fetch f = more ? fetch_of(g, &next) : (struct gemm_fetch){ 0 };
    const int64_t lines = gemm_up(p->rows, PAIR) / PAIR * tiles * READS;
    const int64_t skip = f.count > lines ? f.count - lines : 0;
    for (int64_t i = 0, line = skip; i < p->rows; i += PAIR, line += tiles * READS) {
        struct gemm_sums sums = sums_at(g, p, i, panel);
        sums.next = next_of(g, p, i);
        gemm_multiply(a + i / LANES * a_next, a_next, r->piece, tiles, &sums, &f, line);
        amx_fence();
        if (last && !is_direct(g, p->row + i, p->column))
            gemm_emit(g, p->row + i, p->column, sums.at[0]);
    }
}

void half_gemm_amx(const struct half_gemm *g, void *scratch)
{
    CHECK(!g->accumulate || !g->c_half);
    CHECK((uintptr_t)scratch % LINE == 0);
    const struct gemm_scratch r = gemm_regions(g, scratch);
    amx_begin();
    for (int64_t row = 0; row < g->m; row += BLOCK) {
        for (int64_t depth = 0; depth < g->k; depth += DEPTH) {
            struct gemm_place p = { .row = row,
                                    .rows = gemm_least(g->m - row, BLOCK),
                                    .depth = depth,
                                    .deep = gemm_least(g->k - depth, DEPTH),
                                    .k = depth,
                                    .count = gemm_least(g->k - depth, PIECE) };
            pack_a(g, &p, r.block);
            for (bool more = true; more;) {
                struct gemm_place next;
                pack_b(g, &p, r.piece);
                amx_fence();
                multiply_piece(g, &p, &r);
                more = next_piece(g, &p, &next);
                p = next;
            }
        }
    }
    amx_end();
}
