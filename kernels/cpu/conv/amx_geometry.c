/*
 * Lays out what amx.h describes: grids, images, taps, and how much is copied or transposed at once.
 * Nothing here depends on the processor.
 */
#include <string.h>

#include "common/check.h"
#include "kernels/cpu/conv/amx.h"

#define STRIDE_MAX    2
#define COPY_BYTES    ((int64_t)1 << 20) /* of a padded copy: half of what the caches hold */
#define TURNED_BYTES  ((int64_t)1 << 20) /* of transposed channels */
#define CHUNK_MAX     2048
#define CHUNK_MAX_BIG 4096 /* where adding to the sums costs more than the caches give */
#define BIG_BYTES     ((int64_t)2 << 20)
#define LINE          32 /* elements of a cache line */
#define STEM_CHANNELS 4

static int64_t geometry_most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t geometry_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t geometry_up(int64_t value, int64_t to)
{
    return (value + to - 1) / to * to;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((-a + b - 1) / b);
}

bool conv_amx_takes(const struct op_spec *spec)
{
    const struct op_attr *attr = &spec->attr;
    const struct tensor *in = &spec->in[0];
    return in->dtype == DTYPE_BF16 && in->format == FORMAT_NHWC && !attr->bias &&
           attr->kernel <= AMX_SIDE_MAX && attr->stride <= STRIDE_MAX &&
           in->dims[1] % AMX_BLOCK == 0 && attr->out % AMX_BLOCK == 0;
}

/* Along one dimension: how far taps reach beyond a position, in units of the stride. */
struct reach {
    int64_t before, after;
};

static int64_t tap_offset(const struct op_attr *attr, int r)
{
    return floor_div(r - attr->pad, attr->stride);
}

static int tap_phase(const struct op_attr *attr, int r)
{
    return (int)(r - attr->pad - tap_offset(attr, r) * attr->stride);
}

static struct reach reach_of(const struct op_attr *attr, bool data)
{
    const int64_t first = tap_offset(attr, 0), last = tap_offset(attr, attr->kernel - 1);
    if (data) {
        return (struct reach){ .before = geometry_most(0, last),
                               .after = geometry_most(0, -first) };
    }
    return (struct reach){ .before = geometry_most(0, -first), .after = geometry_most(0, last) };
}

static void images_init(struct amx_images *images, const int64_t dims[4], int stride)
{
    images->h = dims[2];
    images->w = dims[3];
    images->channels = dims[1];
    images->stride = stride;
    images->count = stride * stride;
    CHECK(images->count <= AMX_IMAGES_MAX);
    for (int i = 0; i < images->count; i++) {
        const int row = i / stride, column = i % stride;
        images->image[i] = (struct amx_image){ .row = row,
                                               .column = column,
                                               .h = (dims[2] - row + stride - 1) / stride,
                                               .w = (dims[3] - column + stride - 1) / stride };
    }
}

/* Clips the images: input that no tap reaches counts as beyond the image. */
static void images_clip(struct amx_images *images, int64_t h, int64_t w)
{
    for (int i = 0; i < images->count; i++) {
        images->image[i].h = geometry_least(images->image[i].h, h);
        images->image[i].w = geometry_least(images->image[i].w, w);
    }
}

static void grid_init(struct amx_pass *pass, struct reach reach)
{
    const struct amx_image *out = &pass->out.image[0]; /* no other is larger */
    images_clip(&pass->in, out->h + reach.after, out->w + reach.after);
    const struct amx_image *in = &pass->in.image[0];
    pass->rows = geometry_most(in->h + reach.before, out->h + reach.after);
    pass->pitch = geometry_most(in->w + reach.before, out->w + reach.after);
}

static void taps_init(struct amx_pass *pass, const struct op_attr *attr, bool data)
{
    for (int place = 0; place < (int)pass->places; place++) {
        const int r = place / attr->kernel, s = place % attr->kernel;
        const int image = tap_phase(attr, r) * attr->stride + tap_phase(attr, s);
        const int64_t shift = tap_offset(attr, r) * pass->pitch + tap_offset(attr, s);
        struct amx_tap tap = { .image = data ? 0 : image,
                               .place = place,
                               .shift = data ? -shift : shift };
        const int out = data ? image : 0;
        pass->taps[out][pass->tap_count[out]++] = tap;
        pass->in.image[tap.image].used = true;
        pass->low = geometry_most(pass->low, -tap.shift);
        pass->high = geometry_most(pass->high, tap.shift);
    }
}

static int64_t positions(const struct amx_pass *pass)
{
    return pass->n * pass->rows * pass->pitch;
}

static void span_init(struct amx_pass *pass)
{
    const struct amx_images *in = &pass->in;
    const int64_t all = geometry_up(positions(pass), AMX_BLOCK);
    const int64_t row = in->count * in->channels * (int64_t)sizeof(uint16_t);
    const int64_t fit = COPY_BYTES / row - pass->low - pass->high;
    pass->dense = in->stride == 1 && pass->pitch == in->w && pass->rows == in->h &&
                  pass->low == 0 && pass->high == 0 && positions(pass) >= AMX_BLOCK;
    pass->span = geometry_least(all, geometry_most(AMX_BLOCK, fit / AMX_BLOCK * AMX_BLOCK));
}

void conv_amx_geometry(const struct op_spec *spec, bool data, struct amx_pass *pass)
{
    const struct op_attr *attr = &spec->attr;
    const int64_t *in = spec->in[0].dims;
    const int64_t out[4] = { in[0], attr->out, op_windows(in[2], attr), op_windows(in[3], attr) };
    CHECK(conv_amx_takes(spec));
    memset(pass, 0, sizeof(*pass));
    pass->n = in[0];
    pass->places = (int64_t)attr->kernel * attr->kernel;
    images_init(&pass->in, data ? out : in, data ? 1 : attr->stride);
    images_init(&pass->out, data ? in : out, data ? attr->stride : 1);
    grid_init(pass, reach_of(attr, data));
    taps_init(pass, attr, data);
    span_init(pass);
}

size_t conv_amx_cache_bytes(const struct amx_pass *pass)
{
    return sizeof(uint16_t) * (size_t)(pass->places * pass->in.channels * pass->out.channels);
}

size_t conv_amx_scratch_bytes(const struct amx_pass *pass)
{
    if (pass->dense)
        return 0;
    const int64_t rows = pass->span + pass->low + pass->high;
    return sizeof(uint16_t) * (size_t)(pass->in.count * rows * pass->in.channels);
}

void conv_amx_dweights_geometry(const struct amx_pass *forward, struct amx_dweights *dweights)
{
    const int64_t c = forward->in.channels, k = forward->out.channels;
    const int64_t sums = forward->places * c * k * (int64_t)sizeof(float);
    const int64_t cap = sums > BIG_BYTES ? CHUNK_MAX_BIG : CHUNK_MAX;
    const int64_t chunks = (positions(forward) + cap - 1) / cap;
    memset(dweights, 0, sizeof(*dweights));
    dweights->chunk = geometry_up((positions(forward) + chunks - 1) / chunks, AMX_BLOCK);
    dweights->single = chunks == 1;
    dweights->line = geometry_up(forward->low + dweights->chunk + forward->high, LINE);
    if (dweights->line / LINE % 2 == 0) /* odd: so rows of a tile are in different sets */
        dweights->line += LINE;
    const int64_t row = forward->in.count * dweights->line * (int64_t)sizeof(uint16_t);
    dweights->channels =
        geometry_least(c, geometry_most(AMX_BLOCK, TURNED_BYTES / row / AMX_BLOCK * AMX_BLOCK));
    dweights->columns = c * forward->places;
    dweights->padded = c;
}

int64_t conv_amx_dweights_sums(const struct amx_pass *forward, const struct amx_dweights *dweights)
{
    const int64_t block = (int64_t)AMX_BLOCK * AMX_BLOCK;
    return forward->places * (dweights->single ? block : dweights->padded * forward->out.channels);
}

size_t conv_amx_dweights_scratch_bytes(const struct amx_pass *forward,
                                       const struct amx_dweights *dweights)
{
    const int64_t k = forward->out.channels;
    const int64_t halves = forward->in.count * dweights->channels * dweights->line +
                           dweights->chunk * k + geometry_most(dweights->padded, k);
    return sizeof(uint16_t) * (size_t)halves +
           sizeof(float) * (size_t)conv_amx_dweights_sums(forward, dweights) +
           sizeof(void *) * (size_t)dweights->line + (size_t)8 * 64;
}

bool conv_amx_stem_takes(const struct op_spec *spec)
{
    const struct op_attr *attr = &spec->attr;
    const struct tensor *in = &spec->in[0];
    return in->dtype == DTYPE_F32 && in->format == FORMAT_PLAIN && in->dims[1] <= STEM_CHANNELS &&
           !spec->need_din0 && !attr->bias && attr->kernel <= AMX_SIDE_MAX &&
           attr->stride <= STRIDE_MAX && attr->out % AMX_BLOCK == 0;
}

void conv_amx_stem_geometry(const struct op_spec *spec, struct amx_stem *stem,
                            struct amx_pass *gradient, struct amx_dweights *dweights)
{
    const struct op_attr *attr = &spec->attr;
    const int64_t *in = spec->in[0].dims;
    const int64_t pads = 2 * (int64_t)attr->pad;
    CHECK(conv_amx_stem_takes(spec));
    const int64_t group = in[1] == 1 ? 1 : in[1] == 2 ? 2 : STEM_CHANNELS;
    *stem = (struct amx_stem){ .n = in[0],
                               .channels = in[1],
                               .h = in[2],
                               .w = in[3],
                               .k = attr->out,
                               .p = op_windows(in[2], attr),
                               .q = op_windows(in[3], attr),
                               .side = attr->kernel,
                               .stride = attr->stride,
                               .pad = attr->pad,
                               .group = group,
                               .pitch = (in[3] + pads) * group };
    stem->blocks = (stem->side * group + AMX_BLOCK - 1) / AMX_BLOCK;
    /* The last block of a row reads on into the next, and behind the last. */
    const int64_t beyond = AMX_BLOCK * (stem->stride * group + stem->blocks + 1);
    stem->copy_bytes = sizeof(uint16_t) * (size_t)((in[2] + pads) * stem->pitch + beyond);
    const int64_t columns = in[1] * stem->side * stem->side;
    const int64_t padded[4] = { in[0], geometry_up(columns, AMX_BLOCK), stem->p, stem->q };
    const int64_t out[4] = { in[0], attr->out, stem->p, stem->q };
    memset(gradient, 0, sizeof(*gradient));
    gradient->n = in[0];
    gradient->places = 1;
    images_init(&gradient->in, padded, 1);
    images_init(&gradient->out, out, 1);
    grid_init(gradient, (struct reach){ 0 });
    gradient->tap_count[0] = 1;
    conv_amx_dweights_geometry(gradient, dweights);
    dweights->channels = padded[1];
    dweights->columns = columns;
}

size_t conv_amx_stem_cache_bytes(const struct amx_stem *stem)
{
    return sizeof(uint16_t) * (size_t)(stem->k * stem->side * stem->blocks * AMX_BLOCK);
}
