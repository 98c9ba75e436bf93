/*
 * rotary: q and k of each head turned by the token's place, k and v repeated for the heads that
 * share them.
 *
 * The turn of place t + 1 is that of t, turned once more, in double: cosines and sines are asked of
 * the mathematics library once, and no table of T rows is held. The error grows by about 1e-16 a
 * place.
 *
 * Scratch: the turn in double, then in float32; of each first the cosines, then the sines.
 */
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/ops/rows.h"

struct rotary_kernel {
    struct kernel base;
    int64_t n, t, heads, kv_heads, depth;
    double step[]; /* the turn from a place to the next: cosines, then sines */
};

static bool rotary_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    const int64_t heads = spec->attr.heads, kv_heads = spec->attr.kv_heads;
    return spec->in_count == 1 && rows_is_valid(in, 3) && in->ndim == 3 &&
           spec->out_dtype == in->dtype && heads >= 1 && kv_heads >= 1 && heads % kv_heads == 0 &&
           in->dims[2] % (2 * (heads + 2 * kv_heads)) == 0 && spec->attr.rope_theta > 0.0f;
}

enum status cpu_rotary_prepare(struct backend *backend, const struct op_spec *spec,
                               struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    if (!rotary_is_valid(spec))
        return ST_INVALID;
    const struct tensor *in = &spec->in[0];
    const int64_t heads = spec->attr.heads, kv_heads = spec->attr.kv_heads;
    const int64_t depth = in->dims[2] / (heads + 2 * kv_heads), pairs = depth / 2;
    struct rotary_kernel *self = calloc(1, sizeof(*self) + (size_t)depth * sizeof(double));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->n = in->dims[0];
    self->t = in->dims[1];
    self->heads = heads;
    self->kv_heads = kv_heads;
    self->depth = depth;
    for (int64_t i = 0; i < pairs; i++) {
        const double angle = pow((double)spec->attr.rope_theta, -(double)i / (double)pairs);
        self->step[i] = cos(angle);
        self->step[pairs + i] = sin(angle);
    }
    const int64_t dims[3] = { self->n, self->t, 3 * heads * depth };
    *out_info = (struct kernel_info){
        .out = tensor_plain(in->dtype, 3, dims),
        .scratch_bytes = (size_t)depth * (sizeof(double) + sizeof(float)),
        .din = { *in },
        .flops_forward = 3.0 * (double)tensor_elements(in),
        .flops_backward = 4.0 * (double)tensor_elements(in),
        .implementation = "loop",
    };
    *out_kernel = &self->base;
    return ST_OK;
}

/* The turn of place 0: none. */
static void turn_start(const struct rotary_kernel *self, double *turn)
{
    const int64_t pairs = self->depth / 2;
    for (int64_t i = 0; i < pairs; i++) {
        turn[i] = 1.0;
        turn[pairs + i] = 0.0;
    }
}

/* Writes the turn of a place, or with `back` the one that undoes it; goes on to the next place. */
static void turn_next(const struct rotary_kernel *self, double *turn, bool back, float *out)
{
    const int64_t pairs = self->depth / 2;
    double *sines = turn + pairs;
    for (int64_t i = 0; i < pairs; i++) {
        const double c = turn[i], s = sines[i];
        out[i] = (float)c;
        out[pairs + i] = (float)(back ? -s : s);
        turn[i] = c * self->step[i] - s * self->step[pairs + i];
        sines[i] = s * self->step[i] + c * self->step[pairs + i];
    }
}

/* A token's heads, from [heads + 2·kv_heads] to [3·heads]. */
static void spread_token(const struct text_loops *loops, const struct rotary_kernel *self,
                         struct text_source in, struct text_target out, const float *turn)
{
    const int64_t depth = self->depth, group = self->heads / self->kv_heads;
    for (int64_t h = 0; h < self->heads; h++)
        loops->turn(rows_at_out(out, h, depth), rows_at(in, h, depth), 1, turn, (size_t)depth);
    for (int64_t h = self->heads; h < 3 * self->heads; h++) { /* of k, then of v */
        const struct text_source from = rows_at(in, self->heads + (h - self->heads) / group, depth);
        loops->turn(rows_at_out(out, h, depth), from, 1, h < 2 * self->heads ? turn : NULL,
                    (size_t)depth);
    }
}

/* The gradient: what went to several heads is the sum of theirs. */
static void gather_token(const struct text_loops *loops, const struct rotary_kernel *self,
                         struct text_source dout, struct text_target din, const float *turn)
{
    const int64_t depth = self->depth, group = self->heads / self->kv_heads;
    for (int64_t h = 0; h < self->heads; h++)
        loops->turn(rows_at_out(din, h, depth), rows_at(dout, h, depth), 1, turn, (size_t)depth);
    for (int64_t h = 0; h < 2 * self->kv_heads; h++) {
        loops->turn(rows_at_out(din, self->heads + h, depth),
                    rows_at(dout, self->heads + h * group, depth), (size_t)group,
                    h < self->kv_heads ? turn : NULL, (size_t)depth);
    }
}

static void walk(const struct backend *backend, const struct rotary_kernel *self,
                 struct text_source from, struct text_target to, bool back, double *turn)
{
    const int64_t narrow = (self->heads + 2 * self->kv_heads) * self->depth;
    const int64_t wide = 3 * self->heads * self->depth;
    float *now = (float *)(turn + self->depth);
    turn_start(self, turn);
    for (int64_t t = 0; t < self->t; t++) {
        turn_next(self, turn, back, now);
        for (int64_t n = 0; n < self->n; n++) {
            const int64_t row = n * self->t + t;
            if (back) {
                gather_token(backend->loops.text, self, rows_at(from, row, wide),
                             rows_at_out(to, row, narrow), now);
            } else {
                spread_token(backend->loops.text, self, rows_at(from, row, narrow),
                             rows_at_out(to, row, wide), now);
            }
        }
    }
}

enum status cpu_rotary_forward(struct backend *backend, struct kernel *kernel,
                               const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const enum dtype dtype = kernel->spec.in[0].dtype;
    cpu_enter(backend);
    walk(backend, (const struct rotary_kernel *)kernel, rows_source(buffers->in[0], dtype),
         rows_target(buffers->out, dtype), false, buffers->scratch);
    return ST_OK;
}

enum status cpu_rotary_backward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const enum dtype dtype = kernel->spec.in[0].dtype;
    if (buffers->din[0] == NULL)
        return ST_OK;
    cpu_enter(backend);
    walk(backend, (const struct rotary_kernel *)kernel, rows_source(buffers->dout[0], dtype),
         rows_target(buffers->din[0], dtype), true, buffers->scratch);
    return ST_OK;
}
