/*
 * A pass of amx.h: for each block of 32 positions and 32 output channels the products of all taps
 * stay in tiles; then they are rounded, and written where the position is one of the tensor's.
 * amx_pack.c has the layout of the weights.
 */
#include "kernels/cpu/conv/amx.h"
#include "kernels/cpu/conv/amx_grid.h"
#include "kernels/cpu/gemm/amx_simd.h"

#define PANELS_INNER_BYTES ((int64_t)768 << 10) /* weights that stay in the cache as a whole */

/* Positions [first, first + count) of a pass. */
struct amx_run {
    const struct amx_pass *pass;
    const uint16_t *in[AMX_IMAGES_MAX]; /* where position `first` lies */
    int64_t first, count;
    const uint16_t *weights;
    uint16_t *out;
};

static void copy_image(const struct amx_pass *pass, int image, int64_t first, int64_t count,
                       const uint16_t *in, uint16_t *to)
{
    const int64_t channels = pass->in.channels;
    struct amx_cursor at = amx_cursor_at(pass, first);
    for (int64_t i = 0; i < count; i++, to += channels, amx_cursor_next(pass, &at)) {
        const int64_t from = amx_element(pass, &pass->in, image, &at);
        if (from < 0) {
            memset(to, 0, sizeof(*to) * (size_t)channels);
        } else {
            memcpy(to, in + from, sizeof(*to) * (size_t)channels);
        }
    }
}

/* Rounds 32 × 32 sums and writes those rows that are in the image. */
static void run_put_block(const struct amx_run *r, int image, int64_t first, int64_t channel,
                          const float *sums)
{
    struct amx_cursor at = amx_cursor_at(r->pass, first);
    for (int i = 0; i < AMX_BLOCK; i++, amx_cursor_next(r->pass, &at)) {
        const int64_t to = amx_element(r->pass, &r->pass->out, image, &at);
        if (to < 0)
            continue;
        const __m512 low = _mm512_load_ps(sums + i * AMX_BLOCK);
        const __m512 high = _mm512_load_ps(sums + i * AMX_BLOCK + AMX_SIDE);
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
        _mm512_storeu_si512(r->out + to + channel, both);
    }
}

/* Positions [at, at + 32) of the run. */
static void run_block(const struct amx_run *r, int image, int64_t at, int64_t channel)
{
    _Alignas(64) float sums[AMX_BLOCK * AMX_BLOCK];
    const struct amx_pass *pass = r->pass;
    const int64_t depth = pass->in.channels, count = depth / AMX_DEPTH;
    const uint16_t *panel = r->weights + channel * pass->places * depth;
    const int64_t ahead =
        pass->dense && channel == 0 ? AMX_BLOCK * depth * (int64_t)sizeof(uint16_t) : 0;
    amx_zero();
    for (int t = 0; t < pass->tap_count[image]; t++) {
        const struct amx_tap *tap = &pass->taps[image][t];
        amx_multiply(r->in[tap->image] + (at + tap->shift) * depth,
                     depth * (int64_t)sizeof(uint16_t), AMX_DEPTH,
                     panel + tap->place * depth * AMX_BLOCK, AMX_TILE, 2 * AMX_TILE, count, ahead);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + AMX_SIDE, 128);
    _tile_stored(2, sums + AMX_SIDE * AMX_BLOCK, 128);
    _tile_stored(3, sums + AMX_SIDE * AMX_BLOCK + AMX_SIDE, 128);
    run_put_block(r, image, r->first + at, channel, sums);
}

static void run_blocks(const struct amx_run *r, int image)
{
    const int64_t channels = r->pass->out.channels;
    const bool inner =
        (int64_t)sizeof(uint16_t) * r->pass->tap_count[image] * r->pass->in.channels * channels <=
        PANELS_INNER_BYTES;
    const int64_t last = r->count - AMX_BLOCK; /* the last block may overlap the one before */
    const int64_t count = (r->count + AMX_BLOCK - 1) / AMX_BLOCK;
    const int64_t panels = channels / AMX_BLOCK;
    for (int64_t i = 0; i < count * panels; i++) {
        const int64_t at = (inner ? i / panels : i % count) * AMX_BLOCK;
        const int64_t panel = inner ? i % panels : i / count;
        run_block(r, image, at < last ? at : last, panel * AMX_BLOCK);
    }
}

static void clear_image(const struct amx_pass *pass, int image, uint16_t *out)
{
    const struct amx_images *to = &pass->out;
    const struct amx_image *from = &to->image[image];
    for (int64_t i = 0; i < pass->n * from->h * from->w; i++) {
        const struct amx_cursor at = { .n = i / (from->h * from->w),
                                       .row = i / from->w % from->h,
                                       .column = i % from->w };
        memset(out + amx_element(pass, to, image, &at), 0, sizeof(*out) * (size_t)to->channels);
    }
}

static void run_span(struct amx_run *r, const uint16_t *in, uint16_t *scratch)
{
    const struct amx_pass *pass = r->pass;
    const int64_t rows = pass->low + r->count + pass->high;
    for (int i = 0; i < pass->in.count; i++) {
        if (pass->dense) {
            r->in[i] = in + r->first * pass->in.channels;
        } else if (pass->in.image[i].used) {
            uint16_t *copy = scratch + i * rows * pass->in.channels;
            copy_image(pass, i, r->first - pass->low, rows, in, copy);
            r->in[i] = copy + pass->low * pass->in.channels;
        }
    }
    amx_fence();
    for (int i = 0; i < pass->out.count; i++) {
        if (pass->tap_count[i] > 0)
            run_blocks(r, i);
    }
}

void conv_amx_run(const struct amx_pass *pass, const uint16_t *in, const uint16_t *weights,
                  uint16_t *out, void *scratch)
{
    const int64_t all = pass->n * pass->rows * pass->pitch;
    for (int i = 0; i < pass->out.count; i++) {
        if (pass->tap_count[i] == 0)
            clear_image(pass, i, out);
    }
    amx_begin();
    for (int64_t first = 0; first < all; first += pass->span) {
        struct amx_run r = { .pass = pass, .first = first, .weights = weights, .out = out };
        r.count = all - first < pass->span ? all - first : pass->span;
        if (!pass->dense)
            r.count = (r.count + AMX_BLOCK - 1) / AMX_BLOCK * AMX_BLOCK;
        run_span(&r, in, scratch);
    }
    amx_end();
}
