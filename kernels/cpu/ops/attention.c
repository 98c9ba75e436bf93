/*
 * attention: causal, by tiles of `side` queries and keys, all heads of a sample at a time; memory
 * is linear in T.
 *
 *   forward   per tile of queries, over the tiles of keys up to it: S = q·kᵀ; running maximum m,
 * sum l and output o, rescaled when the maximum grows; at the end out = o / l backward  D = Σ
 * dout·out per row; per tile of keys, over the tiles of queries from it on: P = exp(S - lse), dv +=
 * Pᵀ·dout, dP = dout·vᵀ, dS = P∘(dP - D)/√depth, dk += dSᵀ·q, dq += dS·k
 *
 * Tiles are packed [heads][side][depth], padded with zeros where T ends; a padded key is never seen
 * (it is above the diagonal), a padded query's results are dropped. dq, dk and dv are summed in
 * float32 in a fixed order.
 *
 * Saved: lse = m + log l of each (sample, head, query).
 * Source: Dao et al., "FlashAttention: fast and memory-efficient exact attention with
 *         IO-awareness", 2022, algorithms 1 and 4.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "kernels/cpu/gemm/product.h"
#include "kernels/cpu/ops/rows.h"

#define SIDE_MAX 64

struct attention_kernel {
    struct kernel base;
    int64_t n, t, heads, depth;
    int64_t side, tiles;
    bool half; /* the operands of the products */
    float scale;
    struct dnn_op scores; /* [side, side] = a [side, depth] · b [side, depth]ᵀ */
    struct dnn_op values; /* [side, depth] (+)= a [side, side] · b [side, depth] */
    struct dnn_op keys;   /* [side, depth] += a [side, side]ᵀ · b [side, depth] */
    size_t library_bytes;
};

/* Where things lie in scratch. */
struct layout {
    char *q, *k, *v, *dout;       /* packed tiles */
    char *probability, *dscores;  /* [heads][side][side], as operands */
    float *scores, *dprobability; /* [heads][side][side] */
    float *out, *dk, *dv;         /* [heads][side][depth] */
    float *most, *sum;            /* [heads][side] */
    float *lse, *delta;           /* backward: [tiles][heads][side] */
    float *dq;                    /* backward: [tiles][heads][side][depth] */
    void *library;
    size_t bytes;
};

static char *take(char *base, size_t *bytes, size_t count, size_t size)
{
    char *place = base == NULL ? NULL : base + *bytes;
    *bytes += cpu_align(count * size);
    return place;
}

static struct layout lay_out(const struct attention_kernel *self, void *scratch)
{
    struct layout l = { 0 };
    const size_t operand = self->half ? sizeof(uint16_t) : sizeof(float);
    const size_t rows = (size_t)(self->heads * self->side);
    const size_t square = rows * (size_t)self->side, slab = rows * (size_t)self->depth;
    size_t all = 0;
    char *base = scratch;
    l.q = take(base, &all, slab, operand);
    l.k = take(base, &all, slab, operand);
    l.v = take(base, &all, slab, operand);
    l.probability = take(base, &all, square, operand);
    l.scores = (float *)(void *)take(base, &all, square, sizeof(float));
    if (!self->base.spec.training) {
        l.out = (float *)(void *)take(base, &all, slab, sizeof(float));
        l.most = (float *)(void *)take(base, &all, rows, sizeof(float));
        l.sum = (float *)(void *)take(base, &all, rows, sizeof(float));
    } else {
        const size_t tiles = (size_t)self->tiles;
        l.dout = take(base, &all, slab, operand);
        l.dscores = take(base, &all, square, operand);
        l.dprobability = (float *)(void *)take(base, &all, square, sizeof(float));
        l.out = l.dk = (float *)(void *)take(base, &all, slab, sizeof(float));
        l.dv = (float *)(void *)take(base, &all, slab, sizeof(float));
        l.most = l.lse = (float *)(void *)take(base, &all, tiles * rows, sizeof(float));
        l.sum = l.delta = (float *)(void *)take(base, &all, tiles * rows, sizeof(float));
        l.dq = (float *)(void *)take(base, &all, tiles * slab, sizeof(float));
    }
    l.library = take(base, &all, self->library_bytes, 1);
    l.bytes = all;
    return l;
}

static void attention_release(struct kernel *kernel)
{
    struct attention_kernel *self = (struct attention_kernel *)kernel;
    dnn_op_release(&self->scores);
    dnn_op_release(&self->values);
    dnn_op_release(&self->keys);
}

static enum status products_init(struct backend *backend, struct attention_kernel *self)
{
    const int64_t side = self->side, depth = self->depth;
    const struct product scores = { .batch = self->heads,
                                    .m = side,
                                    .n = side,
                                    .k = depth,
                                    .b_transposed = true,
                                    .half = self->half };
    const struct product values = {
        .batch = self->heads, .m = side, .n = depth, .k = side, .half = self->half, .sum = true
    };
    struct product keys = values;
    keys.a_transposed = true;
    enum status st = product_init(backend->dnn, &self->scores, &scores);
    if (st == ST_OK)
        st = product_init(backend->dnn, &self->values, &values);
    if (st == ST_OK)
        st = product_init(backend->dnn, &self->keys, &keys);
    const struct dnn_op *ops[] = { &self->scores, &self->values, &self->keys };
    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (ops[i]->scratch_bytes > self->library_bytes)
            self->library_bytes = ops[i]->scratch_bytes;
    }
    return st;
}

static bool spec_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    return spec->in_count == 1 && text_tensor_is_valid(in, 3) && in->ndim == 3 &&
           spec->out_dtype == in->dtype && spec->attr.heads >= 1 &&
           in->dims[2] % (3 * (int64_t)spec->attr.heads) == 0 &&
           (spec->math == MATH_F32 || spec->math == MATH_BF16);
}

static void describe(const struct attention_kernel *self, struct kernel_info *out_info)
{
    const struct op_spec *spec = &self->base.spec;
    const int64_t channels = self->heads * self->depth;
    const int64_t dims[3] = { self->n, self->t, channels };
    /* Two products of a lower triangle, each 2·depth per pair; backward has five. */
    const double pairs = 0.5 * (double)self->t * (double)(self->t + 1) * (double)self->n;
    const double product = 2.0 * pairs * (double)channels;
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .saved_bytes =
            spec->training ? (size_t)(self->n * self->heads * self->t) * sizeof(float) : 0,
        .scratch_bytes = lay_out(self, NULL).bytes,
        .backward_needs_in = { true },
        .backward_needs_out = true,
        .din = { spec->in[0] },
        .flops_forward = 2.0 * product,
        .flops_backward = 5.0 * product,
        .implementation = self->scores.implementation,
    };
}

enum status cpu_attention_prepare(struct backend *backend, const struct op_spec *spec,
                                  struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!spec_is_valid(spec))
        return ST_INVALID;
    struct attention_kernel *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.release = attention_release;
    self->n = spec->in[0].dims[0];
    self->t = spec->in[0].dims[1];
    self->heads = spec->attr.heads;
    self->depth = spec->in[0].dims[2] / (3 * self->heads);
    const int64_t padded = (self->t + LOOPS_LANES - 1) / LOOPS_LANES * LOOPS_LANES;
    self->side = padded < SIDE_MAX ? padded : SIDE_MAX;
    self->tiles = (self->t + self->side - 1) / self->side;
    self->half = spec->math == MATH_BF16 && product_has_half();
    self->scale = (float)(1.0 / sqrt((double)self->depth));
    cpu_enter(backend);
    enum status st = products_init(backend, self);
    if (st != ST_OK) {
        attention_release(&self->base);
        free(self);
        return st;
    }
    describe(self, out_info);
    *out_kernel = &self->base;
    return ST_OK;
}

/* Rows of tile i that exist. */
static int64_t tile_rows(const struct attention_kernel *self, int64_t i)
{
    const int64_t left = self->t - i * self->side;
    return left < self->side ? left : self->side;
}

/* All heads of tile i from columns at `first` of rows of `columns`: [heads][side][depth]. */
static void pack(const struct backend *backend, const struct attention_kernel *self, int64_t i,
                 struct source from, int64_t columns, char *to)
{
    const int64_t rows = tile_rows(self, i), depth = self->depth;
    const size_t row_bytes = (size_t)depth * (self->half ? sizeof(uint16_t) : sizeof(float));
    for (int64_t h = 0; h < self->heads; h++) {
        char *head = to + (size_t)(h * self->side) * row_bytes;
        for (int64_t r = 0; r < rows; r++) {
            const struct target out = { .data = head + (size_t)r * row_bytes, .half = self->half };
            const struct source in = text_row(from, (i * self->side + r) * columns + h * depth, 1);
            backend->loops.text->convert(out, in, (size_t)depth);
        }
        memset(head + (size_t)rows * row_bytes, 0, (size_t)(self->side - rows) * row_bytes);
    }
}

/* The reverse, from float32. */
static void unpack(const struct backend *backend, const struct attention_kernel *self, int64_t i,
                   const float *from, struct target to, int64_t columns)
{
    const int64_t rows = tile_rows(self, i), depth = self->depth;
    for (int64_t h = 0; h < self->heads; h++) {
        for (int64_t r = 0; r < rows; r++) {
            const struct source in = { .data = from + (h * self->side + r) * depth };
            backend->loops.text->convert(
                text_row_out(to, (i * self->side + r) * columns + h * depth, 1), in, (size_t)depth);
        }
    }
}

static size_t operand_offset(const struct attention_kernel *self, int64_t elements)
{
    return (size_t)elements * (self->half ? sizeof(uint16_t) : sizeof(float));
}

static void forward_tile(const struct backend *backend, const struct attention_kernel *self,
                         const struct layout *l, bool diagonal)
{
    const int64_t side = self->side;
    for (int64_t h = 0; h < self->heads; h++) {
        const struct attention_tile tile = {
            .side = side,
            .depth = self->depth,
            .scale = self->scale,
            .diagonal = diagonal,
            .scores = l->scores + h * side * side,
            .probability = { l->probability + operand_offset(self, h * side * side), self->half },
            .most = l->most + h * side,
            .sum = l->sum + h * side,
            .out = l->out + h * side * self->depth,
        };
        backend->loops.text->attention(&tile);
    }
}

/* out = o / l, and lse. */
static void finish(const struct attention_kernel *self, const struct layout *l, int64_t n,
                   int64_t i, float *saved)
{
    for (int64_t h = 0; h < self->heads; h++) {
        for (int64_t r = 0; r < tile_rows(self, i); r++) {
            const int64_t row = h * self->side + r;
            const float by = 1.0f / l->sum[row];
            for (int64_t d = 0; d < self->depth; d++)
                l->out[row * self->depth + d] *= by;
            if (saved == NULL)
                continue;
            saved[(n * self->heads + h) * self->t + i * self->side + r] =
                l->most[row] + logf(l->sum[row]);
        }
    }
}

static enum status forward_queries(struct backend *backend, struct attention_kernel *self,
                                   const struct layout *l, struct source qkv, int64_t i)
{
    const int64_t channels = self->heads * self->depth, columns = 3 * channels;
    const int64_t rows = self->heads * self->side;
    pack(backend, self, i, qkv, columns, l->q);
    memset(l->out, 0, (size_t)(rows * self->depth) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        l->most[r] = -INFINITY;
        l->sum[r] = 0.0f;
    }
    enum status st = ST_OK;
    for (int64_t j = 0; st == ST_OK && j <= i; j++) {
        pack(backend, self, j, text_row(qkv, channels, 1), columns, l->k);
        pack(backend, self, j, text_row(qkv, 2 * channels, 1), columns, l->v);
        st = product_run(backend->dnn, &self->scores, l->q, l->k, NULL, l->scores, l->library);
        if (st != ST_OK)
            return st;
        forward_tile(backend, self, l, j == i);
        st = product_run(backend->dnn, &self->values, l->probability, l->v, NULL, l->out,
                         l->library);
    }
    return st;
}

enum status cpu_attention_forward(struct backend *backend, struct kernel *kernel,
                                  const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct attention_kernel *self = (struct attention_kernel *)kernel;
    const enum dtype dtype = kernel->spec.in[0].dtype;
    const struct layout l = lay_out(self, buffers->scratch);
    const int64_t channels = self->heads * self->depth;
    cpu_enter(backend);
    enum status st = ST_OK;
    for (int64_t n = 0; n < self->n; n++) {
        const struct source qkv =
            text_row(text_source(buffers->in[0], dtype), n * self->t, 3 * channels);
        const struct target out =
            text_row_out(text_target(buffers->out, dtype), n * self->t, channels);
        for (int64_t i = 0; st == ST_OK && i < self->tiles; i++) {
            st = forward_queries(backend, self, &l, qkv, i);
            finish(self, &l, n, i, kernel->spec.training ? buffers->saved : NULL);
            unpack(backend, self, i, l.out, out, channels);
        }
    }
    return st;
}

/* lse and delta of all rows of a sample, in tiles; 0 for rows beyond the end. */
static void backward_rows(const struct backend *backend, const struct attention_kernel *self,
                          const struct layout *l, const float *saved, struct source dout,
                          struct source out)
{
    const int64_t depth = self->depth, channels = self->heads * depth;
    for (int64_t row = 0; row < self->tiles * self->heads * self->side; row++) {
        const int64_t r = row % self->side, h = row / self->side % self->heads;
        const int64_t t = row / (self->side * self->heads) * self->side + r;
        l->lse[row] = l->delta[row] = 0.0f;
        if (t >= self->t)
            continue;
        l->lse[row] = saved[h * self->t + t];
        l->delta[row] =
            backend->loops.text->dot(text_row(dout, t * channels + h * depth, 1),
                                     text_row(out, t * channels + h * depth, 1), (size_t)depth);
    }
}

static void backward_tile(const struct backend *backend, const struct attention_kernel *self,
                          const struct layout *l, int64_t i, bool diagonal)
{
    const int64_t side = self->side;
    for (int64_t h = 0; h < self->heads; h++) {
        const int64_t square = h * side * side, row = (i * self->heads + h) * side;
        const struct attention_tile tile = {
            .side = side,
            .depth = self->depth,
            .scale = self->scale,
            .diagonal = diagonal,
            .scores = l->scores + square,
            .probability = { l->probability + operand_offset(self, square), self->half },
            .lse = l->lse + row,
            .delta = l->delta + row,
            .dprobability = l->dprobability + square,
            .dscores = { l->dscores + operand_offset(self, square), self->half },
        };
        backend->loops.text->attention_backward(&tile);
    }
}

/* What the queries of tile i add to the gradients of the keys in l->k and to their own. */
static enum status backward_queries(struct backend *backend, struct attention_kernel *self,
                                    const struct layout *l, int64_t i, bool diagonal)
{
    struct dnn *dnn = backend->dnn;
    float *dq = l->dq + i * self->heads * self->side * self->depth;
    enum status st = product_run(dnn, &self->scores, l->q, l->k, NULL, l->scores, l->library);
    if (st == ST_OK)
        st = product_run(dnn, &self->scores, l->dout, l->v, NULL, l->dprobability, l->library);
    if (st != ST_OK)
        return st;
    backward_tile(backend, self, l, i, diagonal);
    st = product_run(dnn, &self->keys, l->probability, l->dout, NULL, l->dv, l->library);
    if (st == ST_OK)
        st = product_run(dnn, &self->keys, l->dscores, l->q, NULL, l->dk, l->library);
    if (st == ST_OK)
        st = product_run(dnn, &self->values, l->dscores, l->k, NULL, dq, l->library);
    return st;
}

static enum status backward_sample(struct backend *backend, struct attention_kernel *self,
                                   const struct layout *l, struct source qkv, struct source dout,
                                   struct target din)
{
    const int64_t channels = self->heads * self->depth, columns = 3 * channels;
    const size_t slab = (size_t)(self->heads * self->side * self->depth) * sizeof(float);
    memset(l->dq, 0, (size_t)self->tiles * slab);
    for (int64_t j = 0; j < self->tiles; j++) {
        pack(backend, self, j, text_row(qkv, channels, 1), columns, l->k);
        pack(backend, self, j, text_row(qkv, 2 * channels, 1), columns, l->v);
        memset(l->dk, 0, slab);
        memset(l->dv, 0, slab);
        for (int64_t i = j; i < self->tiles; i++) {
            pack(backend, self, i, qkv, columns, l->q);
            pack(backend, self, i, dout, channels, l->dout);
            enum status st = backward_queries(backend, self, l, i, i == j);
            if (st != ST_OK)
                return st;
        }
        unpack(backend, self, j, l->dk, text_row_out(din, channels, 1), columns);
        unpack(backend, self, j, l->dv, text_row_out(din, 2 * channels, 1), columns);
    }
    for (int64_t i = 0; i < self->tiles; i++) {
        const float *dq = l->dq + i * self->heads * self->side * self->depth;
        unpack(backend, self, i, dq, din, columns);
    }
    return ST_OK;
}

enum status cpu_attention_backward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    struct attention_kernel *self = (struct attention_kernel *)kernel;
    const enum dtype dtype = kernel->spec.in[0].dtype;
    CHECK(self->base.spec.training);
    CHECK(buffers->scratch != NULL);
    const struct layout l = lay_out(self, buffers->scratch);
    const int64_t channels = self->heads * self->depth;
    if (buffers->din[0] == NULL)
        return ST_OK;
    cpu_enter(backend);
    for (int64_t n = 0; n < self->n; n++) {
        const int64_t first = n * self->t;
        const struct source dout = text_row(text_source(buffers->dout[0], dtype), first, channels);
        const struct source out = text_row(text_source(buffers->out, dtype), first, channels);
        const float *saved = (const float *)buffers->saved + n * self->heads * self->t;
        backward_rows(backend, self, &l, saved, dout, out);
        enum status st = backward_sample(
            backend, self, &l, text_row(text_source(buffers->in[0], dtype), first, 3 * channels),
            dout, text_row_out(text_target(buffers->din[0], dtype), first, 3 * channels));
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}
