#include "kernels/cpu/ops/batch_norm_half.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/loops/half.h"

/* Scratch: arrays of HALF_PADDED(channels) floats, or as many doubles. */
enum array {
    ARRAY_MEAN,
    ARRAY_SCALE,
    ARRAY_SHIFT,
    ARRAY_BY_X,
    ARRAY_CONSTANT,
    ARRAY_WORK, /* 3 of them */
    ARRAY_DOUBLES = ARRAY_WORK + 3,
    ARRAYS = ARRAY_DOUBLES + 4 /* 2 arrays of doubles */
};

struct half_arrays {
    float *mean, *scale, *shift, *by_x, *constant, *work;
    double *sums[2];
};

static struct half_shape half_shape_of(const struct op_spec *spec)
{
    const int64_t *dims = spec->in[0].dims;
    return (struct half_shape){ .rows = dims[0] * dims[2] * dims[3], .channels = dims[1] };
}

static struct half_arrays half_arrays_in(void *scratch, int64_t channels)
{
    float *at = scratch;
    const int64_t padded = HALF_PADDED(channels);
    double *doubles = (double *)(void *)(at + ARRAY_DOUBLES * padded);
    return (struct half_arrays){ .mean = at + ARRAY_MEAN * padded,
                                 .scale = at + ARRAY_SCALE * padded,
                                 .shift = at + ARRAY_SHIFT * padded,
                                 .by_x = at + ARRAY_BY_X * padded,
                                 .constant = at + ARRAY_CONSTANT * padded,
                                 .work = at + ARRAY_WORK * padded,
                                 .sums = { doubles, doubles + padded } };
}

void batch_norm_half_info(const struct op_spec *spec, struct kernel_info *info)
{
    const struct half_shape shape = half_shape_of(spec);
    const size_t array = sizeof(float) * (size_t)HALF_PADDED(shape.channels);
    info->saved_bytes = spec->training ? 2 * sizeof(float) * (size_t)shape.channels : 0;
    info->scratch_bytes = ARRAYS * array;
    info->implementation = "loop_nhwc";
}

/* Mean and r go to saved; mean and unbiased variance to what the running ones are made of. */
static void half_statistics(const struct backend *backend, const struct op_spec *spec,
                            const struct op_buffers *buffers, const struct half_arrays *a)
{
    const struct half_shape shape = half_shape_of(spec);
    const double count = (double)shape.rows;
    const double *mean = a->sums[0], *variance = a->sums[1];
    float *saved = buffers->saved;
    backend->loops.half_norm->stats(&shape, buffers->in[0], a->work, a->sums[0], a->sums[1]);
    for (int64_t c = 0; c < shape.channels; c++) {
        saved[c] = (float)mean[c];
        saved[shape.channels + c] = (float)(1.0 / sqrt(variance[c] + (double)spec->attr.eps));
        if (buffers->stat_sum[0] != NULL)
            cpu_put_sum(&buffers->stat_sum[0][c], mean[c], buffers->accumulate_stats);
        if (buffers->stat_sum[1] != NULL) {
            cpu_put_sum(&buffers->stat_sum[1][c], variance[c] * (count / (count - 1.0)),
                        buffers->accumulate_stats);
        }
    }
}

/* mean, scale = γ·r and shift = β per channel, 0 beyond the last. */
static struct norm_affine half_affine(const struct op_buffers *buffers, const struct half_arrays *a,
                                      const float *mean, const float *r, int64_t channels)
{
    const size_t array = sizeof(float) * (size_t)HALF_PADDED(channels);
    memset(a->mean, 0, array);
    memset(a->scale, 0, array);
    memset(a->shift, 0, array);
    for (int64_t c = 0; c < channels; c++) {
        a->mean[c] = mean[c];
        a->scale[c] = buffers->param[0][c] * r[c];
        a->shift[c] = buffers->param[1][c];
    }
    return (struct norm_affine){ .mean = a->mean, .scale = a->scale, .shift = a->shift };
}

void batch_norm_half_forward(const struct backend *backend, const struct op_spec *spec,
                             const struct op_buffers *buffers)
{
    const struct half_shape shape = half_shape_of(spec);
    const struct half_arrays a = half_arrays_in(buffers->scratch, shape.channels);
    const float *mean = buffers->saved, *r = mean + shape.channels;
    if (spec->training) {
        half_statistics(backend, spec, buffers, &a);
    } else {
        for (int64_t c = 0; c < shape.channels; c++)
            a.work[c] = (float)(1.0 / sqrt((double)buffers->stat[1][c] + (double)spec->attr.eps));
        mean = buffers->stat[0];
        r = a.work;
    }
    const struct norm_affine affine = half_affine(buffers, &a, mean, r, shape.channels);
    backend->loops.half_norm->apply(&shape, buffers->in[0],
                                    spec->attr.residual ? buffers->in[1] : NULL, buffers->out,
                                    &affine, spec->attr.relu);
}

static struct half_gradient half_gradient_of(const struct op_attr *attr,
                                             const struct op_buffers *buffers)
{
    /* The residual's gradient is the rounded g: so are the sums, wanted or not. */
    struct half_gradient g = { .x = buffers->in[0],
                               .dout = { buffers->dout[0], buffers->dout[1] },
                               .rounded = attr->residual };
    if (attr->relu && attr->residual) {
        g.mask = NORM_MASK_OUTPUT;
        g.out = buffers->out;
    } else if (attr->relu) {
        g.mask = NORM_MASK_INPUT;
    }
    return g;
}

void batch_norm_half_backward(const struct backend *backend, const struct op_spec *spec,
                              const struct op_buffers *buffers)
{
    const struct half_norm_loops *loops = backend->loops.half_norm;
    const struct half_shape shape = half_shape_of(spec);
    const struct half_arrays a = half_arrays_in(buffers->scratch, shape.channels);
    const float *mean = buffers->saved, *r = mean + shape.channels;
    const double *sum = a.sums[0], *dot = a.sums[1], count = (double)shape.rows;
    struct half_gradient g = half_gradient_of(&spec->attr, buffers);
    uint16_t *store = spec->attr.residual ? buffers->din[1] : NULL;
    g.affine = half_affine(buffers, &a, mean, r, shape.channels);
    loops->gradient_sums(&shape, &g, store, a.work, a.sums);
    memset(a.by_x, 0, sizeof(float) * (size_t)HALF_PADDED(shape.channels));
    memset(a.constant, 0, sizeof(float) * (size_t)HALF_PADDED(shape.channels));
    for (int64_t c = 0; c < shape.channels; c++) {
        const double rr = (double)r[c], scale = (double)a.scale[c];
        if (buffers->dparam[0] != NULL)
            cpu_put_sum(&buffers->dparam[0][c], dot[c] * rr, buffers->accumulate[0]);
        if (buffers->dparam[1] != NULL)
            cpu_put_sum(&buffers->dparam[1][c], sum[c], buffers->accumulate[1]);
        a.by_x[c] = (float)(scale * rr * rr * dot[c] / count);
        a.constant[c] = (float)(scale * sum[c] / count);
    }
    if (buffers->din[0] == NULL)
        return;
    if (store != NULL) /* the masked sum is there already */
        g = (struct half_gradient){ .x = g.x, .dout = { store }, .affine = g.affine };
    const float *const by[3] = { a.scale, a.by_x, a.constant };
    loops->gradient_apply(&shape, &g, by, buffers->din[0]);
}
