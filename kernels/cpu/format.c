/*
 * Formats: sizes, blocks, and copies between them.
 */
#include <string.h>

#include "common/check.h"
#include "kernels/cpu/cpu.h"

int cpu_block(const struct backend *backend, const struct tensor *tensor)
{
    return tensor->format == FORMAT_BLOCKED ? backend->block : 1;
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

/* Where element (n, c, position) lies. */
struct strides {
    int64_t n, c, block, position;
    int64_t per_block;
};

static struct strides strides_of(const struct backend *backend, const struct tensor *t)
{
    const int64_t c = t->dims[1], hw = t->dims[2] * t->dims[3];
    if (t->format == FORMAT_NHWC)
        return (struct strides){ .n = c * hw, .c = 1, .block = c, .position = c, .per_block = c };
    const int64_t per_block = cpu_block(backend, t);
    const int64_t blocks = (c + per_block - 1) / per_block;
    return (struct strides){ .n = blocks * per_block * hw,
                             .c = 1,
                             .block = per_block * hw,
                             .position = per_block,
                             .per_block = per_block };
}

static int64_t channel_at(const struct strides *s, int64_t c)
{
    return c / s->per_block * s->block + c % s->per_block * s->c;
}

void cpu_reformat(const struct backend *backend, const struct tensor *from, const float *in,
                  const struct tensor *to, float *out)
{
    const struct strides a = strides_of(backend, from), b = strides_of(backend, to);
    const int64_t hw = from->dims[2] * from->dims[3];
    if (to->format == FORMAT_BLOCKED && to->dims[1] % b.per_block != 0)
        memset(out, 0, to->bytes); /* the padding is zero */
    for (int64_t n = 0; n < from->dims[0]; n++) {
        for (int64_t c = 0; c < from->dims[1]; c++) {
            const float *x = in + n * a.n + channel_at(&a, c);
            float *y = out + n * b.n + channel_at(&b, c);
            for (int64_t i = 0; i < hw; i++)
                y[i * b.position] = x[i * a.position];
        }
    }
}
