/*
 * attention: in tiles of `side` queries × `side` keys, all heads of a sample at a time; so memory
 * is linear in T. The names are FlashAttention's, with side = Br = Bc:
 *
 *   forward                                    backward
 *     for tile i of queries:                     D = Σ dout·out, of each query
 *       m = -∞, l = 0, O = 0                     dq = 0
 *       for tile j <= i of keys:                 for tile j of keys:
 *         S  = q·kᵀ / √depth                       dk = dv = 0
 *         m' = max(m, greatest of S)               for tile i >= j of queries:
 *         P  = exp(S - m')                           P   = exp(S - L)
 *         l  = l·exp(m - m') + Σ P                   dP  = dout·vᵀ
 *         O  = O·exp(m - m') + P·v                   dS  = P ∘ (dP - D) / √depth
 *         m  = m'                                    dv += Pᵀ·dout
 *       out = O / l                                  dk += dSᵀ·q
 *       L   = m + log l                              dq += dS·k
 *
 * m, l, L and D are per query, Σ and greatest along its keys. In the tile i = j a query sees the
 * keys up to its own: the other scores are -∞. That is causal attention; where it is bidirectional,
 * both loops go over all tiles. Behind the last key that anybody sees no tile is computed, and dk
 * and dv are 0.
 *
 * A tile of q, k, v or dout is packed as [heads][side][depth], with zeros for the rows beyond T. No
 * query sees a padded key; what a padded query gives is dropped.
 * dq, dk and dv are summed in float32, in the order above.
 *
 * Saved: L of each (sample, head, query).
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
    bool half; /* the products' operands are bfloat16, else float32 */
    float scale;
    struct dnn_op scores; /* [side, side] = a [side, depth] · b [side, depth]ᵀ */
    struct dnn_op values; /* [side, depth] (+)= a [side, side] · b [side, depth] */
    struct dnn_op keys;   /* [side, depth] += a [side, side]ᵀ · b [side, depth] */
    size_t library_bytes;
};

/*
 * Offsets in scratch. The two directions share some places: out and dk, most and lse, sum and
 * delta.
 */
struct attention_scratch {
    char *q, *k, *v, *dout;       /* packed tiles, as operands */
    char *probability, *dscores;  /* P, dS: [heads][side][side], as operands */
    float *scores, *dprobability; /* S, dP: [heads][side][side] */
    float *out, *dk, *dv;         /* [heads][side][depth] */
    float *most, *sum;            /* m, l: [heads][side] */
    float *lse, *delta;           /* L, D: [tiles][heads][side] */
    float *dq;                    /* [tiles][heads][side][depth] */
    void *library;
    size_t bytes;
};

static char *attention_take(char *base, size_t *bytes, size_t count, size_t size)
{
    char *place = base == NULL ? NULL : base + *bytes;
    *bytes += cpu_align(count * size);
    return place;
}

static struct attention_scratch attention_lay_out(const struct attention_kernel *self,
                                                  void *scratch)
{
    struct attention_scratch l = { 0 };
    const size_t operand = self->half ? sizeof(uint16_t) : sizeof(float);
    const size_t rows = (size_t)(self->heads * self->side);
    const size_t square = rows * (size_t)self->side, slab = rows * (size_t)self->depth;
    size_t all = 0;
    char *base = scratch;
    l.q = attention_take(base, &all, slab, operand);
    l.k = attention_take(base, &all, slab, operand);
    l.v = attention_take(base, &all, slab, operand);
    l.probability = attention_take(base, &all, square, operand);
    l.scores = (float *)(void *)attention_take(base, &all, square, sizeof(float));
    if (!self->base.spec.training) {
        l.out = (float *)(void *)attention_take(base, &all, slab, sizeof(float));
        l.most = (float *)(void *)attention_take(base, &all, rows, sizeof(float));
        l.sum = (float *)(void *)attention_take(base, &all, rows, sizeof(float));
    } else {
        const size_t tiles = (size_t)self->tiles;
        l.dout = attention_take(base, &all, slab, operand);
        l.dscores = attention_take(base, &all, square, operand);
        l.dprobability = (float *)(void *)attention_take(base, &all, square, sizeof(float));
        l.out = l.dk = (float *)(void *)attention_take(base, &all, slab, sizeof(float));
        l.dv = (float *)(void *)attention_take(base, &all, slab, sizeof(float));
        l.most = l.lse = (float *)(void *)attention_take(base, &all, tiles * rows, sizeof(float));
        l.sum = l.delta = (float *)(void *)attention_take(base, &all, tiles * rows, sizeof(float));
        l.dq = (float *)(void *)attention_take(base, &all, tiles * slab, sizeof(float));
    }
    l.library = attention_take(base, &all, self->library_bytes, 1);
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

static enum status attention_products_init(struct backend *backend, struct attention_kernel *self)
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

static bool attention_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0], *tokens = &spec->in[1];
    if (spec->in_count == 2 &&
        (tokens->dtype != DTYPE_I32 || tokens->format != FORMAT_PLAIN || tokens->ndim != 2 ||
         tokens->dims[0] != in->dims[0] || tokens->dims[1] != in->dims[1]))
        return false;
    return spec->in_count <= 2 && rows_is_valid(in, 3) && in->ndim == 3 &&
           spec->out_dtype == in->dtype && spec->attr.heads >= 1 &&
           in->dims[2] % (3 * (int64_t)spec->attr.heads) == 0 &&
           (spec->math == MATH_F32 || spec->math == MATH_BF16);
}

static void attention_describe(const struct attention_kernel *self, struct kernel_info *out_info)
{
    const struct op_spec *spec = &self->base.spec;
    const int64_t channels = self->heads * self->depth;
    const int64_t dims[3] = { self->n, self->t, channels };
    /* Forward has two products, causal of a lower triangle, 2·depth per pair; backward has five. */
    const double seen =
        spec->attr.bidirectional ? (double)self->t : 0.5 * (double)(self->t + 1); /* on average */
    const double pairs = seen * (double)self->t * (double)self->n;
    const double product = 2.0 * pairs * (double)channels;
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .saved_bytes =
            spec->training ? (size_t)(self->n * self->heads * self->t) * sizeof(float) : 0,
        .scratch_bytes = attention_lay_out(self, NULL).bytes,
        .backward_needs_in = { true, spec->in_count == 2 },
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
    if (!attention_is_valid(spec))
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
    CHECK(self->side % LOOPS_LANES == 0); /* what the loops over tiles ask */
    self->half = spec->math == MATH_BF16 && product_has_half();
    self->scale = (float)(1.0 / sqrt((double)self->depth));
    cpu_enter(backend);
    enum status st = attention_products_init(backend, self);
    if (st != ST_OK) {
        attention_release(&self->base);
        free(self);
        return st;
    }
    attention_describe(self, out_info);
    *out_kernel = &self->base;
    return ST_OK;
}

/* Counts the keys that anybody sees in sample n: those up to the last token that isn't 0. */
static int64_t keys_of(const struct attention_kernel *self, const int32_t *tokens, int64_t n)
{
    int64_t keys = self->t;
    while (tokens != NULL && keys > 1 && tokens[n * self->t + keys - 1] == 0)
        keys--;
    return keys;
}

/* Counts the keys of tile j among them. */
static int64_t tile_keys(const struct attention_kernel *self, int64_t keys, int64_t j)
{
    const int64_t left = keys - j * self->side;
    return left < self->side ? left : self->side;
}

/* Rows of tile i that exist. */
static int64_t tile_rows(const struct attention_kernel *self, int64_t i)
{
    const int64_t left = self->t - i * self->side;
    return left < self->side ? left : self->side;
}

/* Tile i of q, k, v or dout, whose rows lie `columns` apart, packed: [heads][side][depth]. */
static void pack_tile(const struct backend *backend, const struct attention_kernel *self, int64_t i,
                      struct text_source from, int64_t columns, char *to)
{
    const int64_t rows = tile_rows(self, i), depth = self->depth;
    const size_t row_bytes = (size_t)depth * (self->half ? sizeof(uint16_t) : sizeof(float));
    for (int64_t h = 0; h < self->heads; h++) {
        char *head = to + (size_t)(h * self->side) * row_bytes;
        for (int64_t r = 0; r < rows; r++) {
            const struct text_target out = { .data = head + (size_t)r * row_bytes,
                                             .half = self->half };
            const struct text_source in =
                rows_at(from, (i * self->side + r) * columns + h * depth, 1);
            backend->loops.text->convert(out, in, (size_t)depth);
        }
        memset(head + (size_t)rows * row_bytes, 0, (size_t)(self->side - rows) * row_bytes);
    }
}

/* The reverse, from float32. */
static void unpack_tile(const struct backend *backend, const struct attention_kernel *self,
                        int64_t i, const float *from, struct text_target to, int64_t columns)
{
    const int64_t rows = tile_rows(self, i), depth = self->depth;
    for (int64_t h = 0; h < self->heads; h++) {
        for (int64_t r = 0; r < rows; r++) {
            const struct text_source in = { .data = from + (h * self->side + r) * depth };
            backend->loops.text->convert(
                rows_at_out(to, (i * self->side + r) * columns + h * depth, 1), in, (size_t)depth);
        }
    }
}

static size_t operand_offset(const struct attention_kernel *self, int64_t elements)
{
    return (size_t)elements * (self->half ? sizeof(uint16_t) : sizeof(float));
}

static void attention_forward_tile(const struct backend *backend,
                                   const struct attention_kernel *self,
                                   const struct attention_scratch *l, bool diagonal, int64_t keys)
{
    const int64_t side = self->side;
    for (int64_t h = 0; h < self->heads; h++) {
        const struct attention_tile tile = {
            .side = side,
            .depth = self->depth,
            .scale = self->scale,
            .diagonal = diagonal,
            .keys = keys,
            .scores = l->scores + h * side * side,
            .probability = { l->probability + operand_offset(self, h * side * side), self->half },
            .most = l->most + h * side,
            .sum = l->sum + h * side,
            .out = l->out + h * side * self->depth,
        };
        backend->loops.text->attention(&tile);
    }
}

/* out = O / l; L goes to saved, unless that is NULL. */
static void attention_finish(const struct attention_kernel *self, const struct attention_scratch *l,
                             int64_t n, int64_t i, float *saved)
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
                                   const struct attention_scratch *l, struct text_source qkv,
                                   int64_t keys, int64_t i)
{
    const bool causal = !self->base.spec.attr.bidirectional;
    const int64_t channels = self->heads * self->depth, columns = 3 * channels;
    const int64_t rows = self->heads * self->side;
    pack_tile(backend, self, i, qkv, columns, l->q);
    memset(l->out, 0, (size_t)(rows * self->depth) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
        l->most[r] = -INFINITY;
        l->sum[r] = 0.0f;
    }
    enum status st = ST_OK;
    for (int64_t j = 0; st == ST_OK && tile_keys(self, keys, j) > 0 && !(causal && j > i); j++) {
        pack_tile(backend, self, j, rows_at(qkv, channels, 1), columns, l->k);
        pack_tile(backend, self, j, rows_at(qkv, 2 * channels, 1), columns, l->v);
        st = product_run(backend->dnn, &self->scores, l->q, l->k, NULL, l->scores, l->library);
        if (st != ST_OK)
            return st;
        attention_forward_tile(backend, self, l, causal && j == i, tile_keys(self, keys, j));
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
    const struct attention_scratch l = attention_lay_out(self, buffers->scratch);
    const int64_t channels = self->heads * self->depth;
    cpu_enter(backend);
    enum status st = ST_OK;
    for (int64_t n = 0; n < self->n; n++) {
        const struct text_source qkv =
            rows_at(rows_source(buffers->in[0], dtype), n * self->t, 3 * channels);
        const struct text_target out =
            rows_at_out(rows_target(buffers->out, dtype), n * self->t, channels);
        const int64_t keys = keys_of(self, buffers->in[1], n);
        for (int64_t i = 0; st == ST_OK && i < self->tiles; i++) {
            st = forward_queries(backend, self, &l, qkv, keys, i);
            attention_finish(self, &l, n, i, kernel->spec.training ? buffers->saved : NULL);
            unpack_tile(backend, self, i, l.out, out, channels);
        }
    }
    return st;
}

/* L and D of all queries of a sample, in tiles; 0 for rows beyond T. */
static void backward_rows(const struct backend *backend, const struct attention_kernel *self,
                          const struct attention_scratch *l, const float *saved,
                          struct text_source dout, struct text_source out)
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
            backend->loops.text->dot(rows_at(dout, t * channels + h * depth, 1),
                                     rows_at(out, t * channels + h * depth, 1), (size_t)depth);
    }
}

static void attention_backward_tile(const struct backend *backend,
                                    const struct attention_kernel *self,
                                    const struct attention_scratch *l, int64_t i, bool diagonal,
                                    int64_t keys)
{
    const int64_t side = self->side;
    for (int64_t h = 0; h < self->heads; h++) {
        const int64_t square = h * side * side, row = (i * self->heads + h) * side;
        const struct attention_tile tile = {
            .side = side,
            .depth = self->depth,
            .scale = self->scale,
            .diagonal = diagonal,
            .keys = keys,
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

/* The innermost loop: the queries of tile i with the keys in l->k. */
static enum status backward_queries(struct backend *backend, struct attention_kernel *self,
                                    const struct attention_scratch *l, int64_t i, bool diagonal,
                                    int64_t keys)
{
    struct dnn *dnn = backend->dnn;
    float *dq = l->dq + i * self->heads * self->side * self->depth;
    enum status st = product_run(dnn, &self->scores, l->q, l->k, NULL, l->scores, l->library);
    if (st == ST_OK)
        st = product_run(dnn, &self->scores, l->dout, l->v, NULL, l->dprobability, l->library);
    if (st != ST_OK)
        return st;
    attention_backward_tile(backend, self, l, i, diagonal, keys);
    st = product_run(dnn, &self->keys, l->probability, l->dout, NULL, l->dv, l->library);
    if (st == ST_OK)
        st = product_run(dnn, &self->keys, l->dscores, l->q, NULL, l->dk, l->library);
    if (st == ST_OK)
        st = product_run(dnn, &self->values, l->dscores, l->k, NULL, dq, l->library);
    return st;
}

static enum status backward_sample(struct backend *backend, struct attention_kernel *self,
                                   const struct attention_scratch *l, struct text_source qkv,
                                   struct text_source dout, struct text_target din, int64_t keys)
{
    const bool causal = !self->base.spec.attr.bidirectional;
    const int64_t channels = self->heads * self->depth, columns = 3 * channels;
    const size_t slab = (size_t)(self->heads * self->side * self->depth) * sizeof(float);
    memset(l->dq, 0, (size_t)self->tiles * slab);
    for (int64_t j = 0; j < self->tiles; j++) {
        pack_tile(backend, self, j, rows_at(qkv, channels, 1), columns, l->k);
        pack_tile(backend, self, j, rows_at(qkv, 2 * channels, 1), columns, l->v);
        memset(l->dk, 0, slab);
        memset(l->dv, 0, slab);
        const int64_t seen = tile_keys(self, keys, j);
        for (int64_t i = causal ? j : 0; seen > 0 && i < self->tiles; i++) {
            pack_tile(backend, self, i, qkv, columns, l->q);
            pack_tile(backend, self, i, dout, channels, l->dout);
            enum status st = backward_queries(backend, self, l, i, causal && i == j, seen);
            if (st != ST_OK)
                return st;
        }
        unpack_tile(backend, self, j, l->dk, rows_at_out(din, channels, 1), columns);
        unpack_tile(backend, self, j, l->dv, rows_at_out(din, 2 * channels, 1), columns);
    }
    for (int64_t i = 0; i < self->tiles; i++) {
        const float *dq = l->dq + i * self->heads * self->side * self->depth;
        unpack_tile(backend, self, i, dq, din, columns);
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
    const struct attention_scratch l = attention_lay_out(self, buffers->scratch);
    const int64_t channels = self->heads * self->depth;
    if (buffers->din[0] == NULL)
        return ST_OK;
    cpu_enter(backend);
    for (int64_t n = 0; n < self->n; n++) {
        const int64_t first = n * self->t;
        const struct text_source dout =
            rows_at(rows_source(buffers->dout[0], dtype), first, channels);
        const struct text_source out = rows_at(rows_source(buffers->out, dtype), first, channels);
        const float *saved = (const float *)buffers->saved + n * self->heads * self->t;
        backward_rows(backend, self, &l, saved, dout, out);
        enum status st = backward_sample(
            backend, self, &l, rows_at(rows_source(buffers->in[0], dtype), first, 3 * channels),
            dout, rows_at_out(rows_target(buffers->din[0], dtype), first, 3 * channels),
            keys_of(self, buffers->in[1], n));
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}
