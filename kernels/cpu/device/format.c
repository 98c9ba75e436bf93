/*
 * Formats (kernels/tensor.h has their index functions): sizes, blocks, and copies between them.
 *
 * All formats of [N, C, H, W] are one scheme: channels lie in runs of `per_block` neighbours,
 *
 *                     per_block   from position to position   from block to block
 *   FORMAT_PLAIN      1           1                           H·W
 *   FORMAT_BLOCKED    8 or 16     per_block                   per_block·H·W
 *   FORMAT_NHWC       C           C                           (there is one)
 *
 * so a copy moves runs of the smaller of both sides' per_block.
 */
#include <string.h>

#include "common/check.h"
#include "common/halves.h"
#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/loops/half.h"

int cpu_block(const struct backend *backend, const struct tensor *tensor)
{
    return tensor->format == FORMAT_BLOCKED ? backend->block : 1;
}

struct tensor cpu_nhwc(const int64_t dims[4])
{
    struct tensor tensor = tensor_plain(DTYPE_BF16, 4, dims);
    tensor.format = FORMAT_NHWC;
    return tensor;
}

struct tensor cpu_tensor(const struct backend *backend, enum format format, const int64_t dims[4])
{
    struct tensor tensor = tensor_plain(DTYPE_F32, 4, dims);
    tensor.format = format;
    if (format == FORMAT_BLOCKED) {
        const int64_t block = backend->block;
        const int64_t padded = (dims[1] + block - 1) / block * block;
        tensor.bytes = sizeof(float) * (size_t)(dims[0] * padded * dims[2] * dims[3]);
    }
    return tensor;
}

bool cpu_input_is_valid(const struct op_spec *spec, int ndim)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count < 1 || in->dtype != DTYPE_F32 || in->ndim != ndim)
        return false;
    for (int i = 0; i < ndim; i++) {
        if (in->dims[i] < 1)
            return false;
    }
    return in->format == FORMAT_PLAIN || (in->format == FORMAT_BLOCKED && ndim == 4);
}

bool cpu_is_nhwc(const struct tensor *tensor)
{
    return tensor->format == FORMAT_NHWC && tensor->dtype == DTYPE_BF16 && tensor->ndim == 4;
}

bool cpu_image_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    if (!cpu_is_nhwc(in))
        return cpu_input_is_valid(spec, 4);
    for (int i = 0; i < 4; i++) {
        if (in->dims[i] < 1)
            return false;
    }
    return spec->in_count >= 1;
}

const struct norm_loops *cpu_norm_loops(const struct backend *backend, const struct tensor *tensor)
{
    return tensor->format == FORMAT_BLOCKED ? backend->loops.norm_blocked
                                            : backend->loops.norm_plain;
}

const struct pool_loops *cpu_pool_loops(const struct backend *backend, const struct tensor *tensor)
{
    return tensor->format == FORMAT_BLOCKED ? backend->loops.pool_blocked
                                            : backend->loops.pool_plain;
}

/* Element (n, c, position) is number n·s.n + c / per_block·s.block + position·s.position +
 * c % per_block. */
struct strides {
    int64_t n, block, position;
    int64_t per_block; /* channels that lie together */
};

static struct strides strides_of(const struct backend *backend, const struct tensor *t)
{
    const int64_t c = t->dims[1], hw = t->dims[2] * t->dims[3];
    if (t->format == FORMAT_NHWC)
        return (struct strides){ .n = c * hw, .block = c, .position = c, .per_block = c };
    const int64_t per_block = cpu_block(backend, t);
    const int64_t blocks = (c + per_block - 1) / per_block;
    return (struct strides){ .n = blocks * per_block * hw,
                             .block = per_block * hw,
                             .position = per_block,
                             .per_block = per_block };
}

static int64_t channel_at(const struct strides *s, int64_t c)
{
    return c / s->per_block * s->block + c % s->per_block;
}

/* Source or target of a copy. */
struct format_side {
    struct strides at;
    bool half;
    char *data;
};

static struct format_side side_of(const struct backend *backend, const struct tensor *t,
                                  const void *data)
{
    return (struct format_side){ .at = t->ndim == 4 ? strides_of(backend, t)
                                                    : (struct strides){ .per_block = 1 },
                                 .half = t->dtype == DTYPE_BF16,
                                 .data = (char *)data };
}

static void *side_at(const struct format_side *side, int64_t element)
{
    return side->data + (side->half ? sizeof(uint16_t) : sizeof(float)) * (size_t)element;
}

/* n neighbouring elements. */
static void copy_run(const struct half_loops *loops, const struct format_side *from,
                     int64_t from_at, const struct format_side *to, int64_t to_at, int64_t n)
{
    const void *x = side_at(from, from_at);
    void *y = side_at(to, to_at);
    if (from->half == to->half) {
        memcpy(y, x, (from->half ? sizeof(uint16_t) : sizeof(float)) * (size_t)n);
    } else if (to->half) {
        loops->narrow(y, x, (size_t)n);
    } else {
        loops->widen(y, x, (size_t)n);
    }
}

/* Copies one channel of a sample, position by position. */
static void copy_plane(const struct format_side *from, int64_t from_at,
                       const struct format_side *to, int64_t to_at, int64_t hw)
{
    for (int64_t i = 0; i < hw; i++) {
        const void *x = side_at(from, from_at + i * from->at.position);
        void *y = side_at(to, to_at + i * to->at.position);
        const float value = from->half ? bf16_widen(*(const uint16_t *)x) : *(const float *)x;
        if (to->half) {
            *(uint16_t *)y = bf16_narrow(value);
        } else {
            *(float *)y = value;
        }
    }
}

/* shape: channels, positions, and how many channels lie together on both sides. */
static void copy_sample(const struct half_loops *loops, const struct format_side *from,
                        int64_t from_at, const struct format_side *to, int64_t to_at,
                        const int64_t shape[3])
{
    const int64_t channels = shape[0], hw = shape[1], run = shape[2];
    for (int64_t c = 0; c < channels; c += run) {
        const int64_t x = from_at + channel_at(&from->at, c), y = to_at + channel_at(&to->at, c);
        const int64_t n = channels - c < run ? channels - c : run;
        if (run == 1) {
            copy_plane(from, x, to, y, hw);
            continue;
        }
        for (int64_t i = 0; i < hw; i++)
            copy_run(loops, from, x + i * from->at.position, to, y + i * to->at.position, n);
    }
}

void cpu_reformat(const struct backend *backend, const struct tensor *from, const void *in,
                  const struct tensor *to, void *out)
{
    CHECK(from->ndim == to->ndim);
    const struct format_side x = side_of(backend, from, in), y = side_of(backend, to, out);
    const struct half_loops *loops = backend->loops.half;
    if (from->format == to->format) {
        const size_t size = x.half ? sizeof(uint16_t) : sizeof(float);
        copy_run(loops, &x, 0, &y, 0, (int64_t)(from->bytes / size));
        return;
    }
    CHECK(from->ndim == 4);
    if (to->format == FORMAT_BLOCKED && to->dims[1] % y.at.per_block != 0)
        memset(out, 0, to->bytes); /* the padding is zero */
    const int64_t run = x.at.per_block < y.at.per_block ? x.at.per_block : y.at.per_block;
    const int64_t shape[3] = { from->dims[1], from->dims[2] * from->dims[3], run };
    for (int64_t n = 0; n < from->dims[0]; n++)
        copy_sample(loops, &x, n * x.at.n, &y, n * y.at.n, shape);
}
