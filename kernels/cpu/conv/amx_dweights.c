/*
 * The weights' gradient: for each tap, dW[c][k] = Σ x[i + shift][c]·dy[i][k] over positions i.
 *
 * Per chunk of positions
 *
 *   dy becomes right operands      [K / 16][positions / 2][16][2]
 *   x  is transposed, `channels`   [image][channel][position]
 *      channels at a time          so that a tap's shift is an offset within each line
 *   sums (+)= x·dy for each tap    [place][C / 16][K / 16][16][16] float32
 *
 * and the last chunk writes the sums in canonical order. Where there is one chunk only, 32 × 32
 * channels of all places are kept at a time: no other chunk comes back to them.
 *
 * Scratch: sums · right operands · transposed input · a row of zeros · pointers to rows
 */
#include "kernels/cpu/conv/amx.h"
#include "kernels/cpu/conv/amx_grid.h"
#include "kernels/cpu/gemm/amx_simd.h"

#define SUMS_TILE INT64_C(256)

struct dweights_work {
    const struct amx_pass *pass;
    const struct amx_dweights *dweights;
    float *sums;
    uint16_t *right, *turned, *zeros;
    const uint16_t **rows;
    int64_t first; /* position of the chunk */
    bool last;     /* this chunk is the last one */
    bool add;      /* to the canonical gradient */
    float *canonical;
};

static void *dweights_take(char **at, size_t bytes)
{
    void *here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static struct dweights_work dweights_work_in(const struct amx_pass *pass,
                                             const struct amx_dweights *dweights, void *scratch)
{
    char *at = scratch;
    const int64_t k = pass->out.channels;
    const int64_t row = dweights->padded > k ? dweights->padded : k;
    struct dweights_work w = { .pass = pass, .dweights = dweights };
    w.sums = dweights_take(&at, sizeof(float) * (size_t)conv_amx_dweights_sums(pass, dweights));
    w.right = dweights_take(&at, sizeof(uint16_t) * (size_t)(dweights->chunk * k));
    w.turned = dweights_take(
        &at, sizeof(uint16_t) * (size_t)(pass->in.count * dweights->channels * dweights->line));
    w.zeros = dweights_take(&at, sizeof(uint16_t) * (size_t)row);
    w.rows = dweights_take(&at, sizeof(void *) * (size_t)dweights->line);
    memset(w.zeros, 0, sizeof(uint16_t) * (size_t)row);
    return w;
}

/* Finds where the channels of positions [first, first + count) lie. */
static void find_rows(struct dweights_work *w, const struct amx_images *images, int image,
                      const uint16_t *data, int64_t first, int64_t count)
{
    struct amx_cursor at = amx_cursor_at(w->pass, first);
    for (int64_t i = 0; i < count; i++, amx_cursor_next(w->pass, &at)) {
        const int64_t element = amx_element(w->pass, images, image, &at);
        w->rows[i] = element < 0 ? w->zeros : data + element;
    }
}

/* The chunk of dy as right operands. */
static void pack_right(struct dweights_work *w, const uint16_t *dy)
{
    const __m512i first =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const int64_t panel = w->dweights->chunk * AMX_SIDE;
    find_rows(w, &w->pass->out, 0, dy, w->first, w->dweights->chunk);
    for (int64_t i = 0; i < w->dweights->chunk; i += 2) {
        uint16_t *to = w->right + i * AMX_SIDE;
        for (int64_t k = 0; k < w->pass->out.channels; k += AMX_BLOCK, to += 2 * panel) {
            const __m512i a = _mm512_loadu_si512(w->rows[i] + k);
            const __m512i b = _mm512_loadu_si512(w->rows[i + 1] + k);
            _mm512_store_si512(to, _mm512_permutex2var_epi16(a, first, b));
            _mm512_store_si512(to + panel, _mm512_permutex2var_epi16(a, second, b));
        }
    }
}

/* Transposes 32 positions × 32 channels: first pairs of positions are put side by side, then the
 * pairs are transposed as elements of 32 bits. */
static void turn_block(const uint16_t *const rows[AMX_BLOCK], int64_t channel, uint16_t *to,
                       int64_t line)
{
    __m512i even[16], odd[16]; /* of every 8 channels the first four, and the others */
    for (int64_t i = 0; i < AMX_SIDE; i++) {
        const __m512i a = _mm512_loadu_si512(rows[2 * i] + channel);
        const __m512i b = _mm512_loadu_si512(rows[2 * i + 1] + channel);
        even[i] = _mm512_unpacklo_epi16(a, b);
        odd[i] = _mm512_unpackhi_epi16(a, b);
    }
    amx_turn(even);
    amx_turn(odd);
    for (int64_t i = 0; i < AMX_SIDE; i++) {
        uint16_t *row = to + (i / 4 * 8 + i % 4) * line;
        _mm512_store_si512(row, even[i]);
        _mm512_store_si512(row + 4 * line, odd[i]);
    }
}

static void turn_images(struct dweights_work *w, const uint16_t *x, int64_t channel,
                        int64_t channels)
{
    const struct amx_pass *pass = w->pass;
    const int64_t all = pass->low + w->dweights->chunk + pass->high;
    const int64_t count = (all + AMX_BLOCK - 1) / AMX_BLOCK * AMX_BLOCK;
    for (int image = 0; image < pass->in.count; image++) {
        if (!pass->in.image[image].used)
            continue;
        uint16_t *to = w->turned + image * w->dweights->channels * w->dweights->line;
        find_rows(w, &pass->in, image, x, w->first - pass->low, count);
        for (int64_t i = 0; i < count; i += AMX_BLOCK) {
            for (int64_t c = 0; c < channels; c += AMX_BLOCK) {
                turn_block(w->rows + i, channel + c, to + c * w->dweights->line + i,
                           w->dweights->line);
            }
        }
    }
}

/* Address of the sums of 32 input × 32 output channels, and the distances to the next place and to
 * the next 16 input channels. */
struct dweights_sums {
    float *at;
    int64_t place, below;
};

static struct dweights_sums dweights_sums_of(const struct dweights_work *w, int64_t c, int64_t k)
{
    const int64_t columns = w->pass->out.channels;
    if (w->dweights->single) {
        return (
            struct dweights_sums){ .at = w->sums, .place = 4 * SUMS_TILE, .below = 2 * SUMS_TILE };
    }
    return (struct dweights_sums){ .at = w->sums + c * columns + k * AMX_SIDE,
                                   .place = w->dweights->padded * columns,
                                   .below = columns / AMX_SIDE * SUMS_TILE };
}

/* Adds a chunk to 32 × 32 sums of one tap. */
static void add_block(const struct dweights_work *w, const uint16_t *turned, int64_t k, float *sums,
                      int64_t below)
{
    const int64_t panel = w->dweights->chunk * AMX_SIDE;
    float *low = sums + below;
    if (w->first == 0) {
        amx_zero();
    } else {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + SUMS_TILE, 64);
        _tile_loadd(2, low, 64);
        _tile_loadd(3, low + SUMS_TILE, 64);
    }
    amx_multiply(turned, w->dweights->line * (int64_t)sizeof(uint16_t), AMX_DEPTH,
                 w->right + k / AMX_SIDE * panel, panel, AMX_TILE, w->dweights->chunk / AMX_DEPTH,
                 0);
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + SUMS_TILE, 64);
    _tile_stored(2, low, 64);
    _tile_stored(3, low + SUMS_TILE, 64);
}

/* Transposes one tile of sums from [c][k] to [k][c]. */
static void turn_sums(const float *sums, float *to, int64_t line)
{
    __m512i r[16];
    for (int i = 0; i < AMX_SIDE; i++)
        r[i] = _mm512_load_si512(sums + i * AMX_SIDE);
    amx_turn(r);
    for (int i = 0; i < AMX_SIDE; i++)
        _mm512_storeu_si512(to + i * line, r[i]);
}

/* dW[k .. k + 16][c .. c + 16][all places], from turned [k][place][c]. */
static void dweights_put_rows(const struct amx_pass *pass, const float *turned, int64_t c, bool add,
                              float *to, int64_t columns)
{
    const int64_t places = pass->places, count = AMX_SIDE * places;
    int32_t index[AMX_SIDE * AMX_TAPS_MAX];
    for (int64_t i = 0; i < count; i++)
        index[i] = (int32_t)(i % places * AMX_SIDE + i / places);
    for (int64_t k = 0; k < AMX_SIDE; k++) {
        float *row = to + k * columns + c * places;
        for (int64_t i = 0; i < count; i += AMX_SIDE) {
            const int64_t left = columns - c * places - i;
            const __mmask16 there = (__mmask16)(left >= AMX_SIDE ? 0xffffu : (1u << left) - 1u);
            const __m512i from = _mm512_loadu_si512(index + i);
            __m512 v = _mm512_i32gather_ps(from, turned + k * count, 4);
            if (add)
                v = _mm512_add_ps(_mm512_maskz_loadu_ps(there, row + i), v);
            _mm512_mask_storeu_ps(row + i, there, v);
        }
    }
}

/* The sums of 32 × 32 channels, of all places, to the gradient. */
static void dweights_put_block(const struct dweights_work *w, const struct dweights_sums *sums,
                               int64_t c, int64_t k)
{
    _Alignas(64) float turned[AMX_SIDE * AMX_SIDE * AMX_TAPS_MAX];
    const int64_t places = w->pass->places;
    for (int64_t i = 0; i < 4; i++) {
        const int64_t down = i / 2, right = i % 2;
        const int64_t channel = c + down * AMX_SIDE;
        if (channel * places >= w->dweights->columns)
            continue;
        for (int64_t place = 0; place < places; place++) {
            turn_sums(sums->at + place * sums->place + down * sums->below + right * SUMS_TILE,
                      turned + place * AMX_SIDE, places * AMX_SIDE);
        }
        dweights_put_rows(w->pass, turned, channel, w->add,
                          w->canonical + (k + right * AMX_SIDE) * w->dweights->columns,
                          w->dweights->columns);
    }
}

static void add_channels(const struct dweights_work *w, int64_t channel, int64_t channels)
{
    const struct amx_pass *pass = w->pass;
    for (int64_t k = 0; k < pass->out.channels; k += AMX_BLOCK) {
        for (int64_t c = 0; c < channels; c += AMX_BLOCK) {
            const struct dweights_sums sums = dweights_sums_of(w, channel + c, k);
            for (int64_t t = 0; t < pass->places; t++) {
                const struct amx_tap *tap = &pass->taps[0][t];
                const uint16_t *turned = w->turned +
                                         tap->image * w->dweights->channels * w->dweights->line +
                                         c * w->dweights->line + pass->low + tap->shift;
                add_block(w, turned, k, sums.at + tap->place * sums.place, sums.below);
            }
            if (w->last)
                dweights_put_block(w, &sums, channel + c, k);
        }
    }
}

void conv_amx_dweights_run(const struct amx_pass *forward, const struct amx_dweights *dweights,
                           const struct amx_source *source, const uint16_t *dy, bool add,
                           float *canonical, void *scratch)
{
    struct dweights_work w = dweights_work_in(forward, dweights, scratch);
    w.add = add;
    w.canonical = canonical;
    const int64_t all = forward->n * forward->rows * forward->pitch;
    const int64_t channels = forward->in.channels;
    amx_begin();
    for (w.first = 0; w.first < all; w.first += dweights->chunk) {
        w.last = w.first + dweights->chunk >= all;
        pack_right(&w, dy);
        for (int64_t c = 0; c < channels; c += dweights->channels) {
            const int64_t count =
                channels - c < dweights->channels ? channels - c : dweights->channels;
            if (source->stem == NULL) {
                turn_images(&w, source->x, c, count);
            } else {
                conv_amx_stem_turn(source->stem, source->images, w.first, dweights->chunk, w.turned,
                                   dweights->line);
            }
            amx_fence();
            add_channels(&w, c, count);
        }
    }
    amx_end();
}
