/*
 * Muon, matrix by matrix (Jordan, 2024); what is no matrix goes by AdamW.
 *
 *   m = μ·m + g,  u = g + μ·m                                 Nesterov's momentum
 *   X = u / (‖u‖ + ε), then five times                        Newton-Schulz: nearly the orthogonal
 *     X = a·X + (b·A + c·A²)·X, A = X·Xᵀ                      matrix next to u
 *   θ = θ - lr·(0.2·√max(rows, columns)·X + weight_decay·θ)
 *
 * Of a matrix with more rows than columns A is Xᵀ·X and stands behind X. All products are those of
 * the op linear, in float32: forward is x·Wᵀ, the gradient of the weights goutᵀ·x, and A is
 * symmetric.
 *
 * A matrix is a part of its own (struct optimizer_part). Its momentum lies in the first moment;
 * the second is zero there.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/update/optimizer_internal.h"

#define STEPS      5
#define EPSILON    1e-7
#define RMS_FACTOR 0.2 /* of AdamW's updates */
static const float quintic[3] = { 3.4445f, -4.7750f, 2.0315f };

/* The products for matrices of one shape. */
struct muon_shape {
    int64_t rows, columns, side;  /* side: the lesser of the two, A's */
    struct kernel *outer, *inner; /* x [rows, columns] → [rows, side]; [side, side] of squares */
};

struct muon {
    struct muon_shape *shapes; /* [shape_count] */
    size_t shape_count;
    float *x, *y, *gram, *square; /* device memory; room for the largest matrix */
    void *scratch;
};

/* ---- which are matrices ---- */

static int last_node(const struct tape *tape)
{
    int last = -1;
    for (int i = 0; i < tape->param_count; i++)
        last = tape->params[i].first_node > last ? tape->params[i].first_node : last;
    return last;
}

static bool is_matrix(const struct tape *tape, const struct tape_tensor *param)
{
    return param->kind == TAPE_WEIGHT && param->ndim == 2 && param->first_node != last_node(tape);
}

static int64_t least_side(const struct tape_tensor *matrix)
{
    return matrix->dims[0] < matrix->dims[1] ? matrix->dims[0] : matrix->dims[1];
}

/* Elements of the largest matrix, and of the largest square of a least side. */
static void largest(const struct tape *tape, size_t *out_matrix, size_t *out_square)
{
    *out_matrix = *out_square = 0;
    for (int i = 0; i < tape->param_count; i++) {
        const struct tape_tensor *param = &tape->params[i];
        if (!is_matrix(tape, param))
            continue;
        const size_t square = (size_t)(least_side(param) * least_side(param));
        *out_matrix = param->count > *out_matrix ? param->count : *out_matrix;
        *out_square = square > *out_square ? square : *out_square;
    }
}

size_t optimizer_muon_bytes(const struct tape *tape)
{
    size_t matrix = 0, square = 0;
    largest(tape, &matrix, &square);
    return 2 * (matrix + square) * sizeof(float);
}

/* Appends the part, or pieces of it: each matrix, and what lies between them. out: room for two
 * per parameter and one more. */
static enum status cut_part(const struct optimizer *optimizer, const struct optimizer_part *part,
                            struct optimizer_part *out, uint32_t *count)
{
    const struct tape *tape = optimizer->tape;
    const size_t end = part->first + part->count;
    size_t at = part->first, block = part->block_begin, blocks = 0;
    for (int i = 0; i < tape->param_count; i++) {
        const struct tape_tensor *param = &tape->params[i];
        if (!is_matrix(tape, param) || param->offset + param->count <= at || param->offset >= end)
            continue;
        if (param->offset < at || param->offset + param->count > end)
            return ST_INVALID;
        blocks = 0;
        for (int j = 0; j < i; j++)
            blocks += optimizer_blocks(&tape->params[j]);
        if (at < param->offset) {
            out[(*count)++] = (struct optimizer_part){
                .first = at, .count = param->offset - at, .block_begin = block, .block_end = blocks
            };
        }
        at = param->offset + param->count;
        block = blocks + optimizer_blocks(param);
        out[(*count)++] = (struct optimizer_part){ .first = param->offset,
                                                   .count = param->count,
                                                   .block_begin = blocks,
                                                   .block_end = block,
                                                   .matrix = param };
    }
    if (at < end) {
        out[(*count)++] = (struct optimizer_part){
            .first = at, .count = end - at, .block_begin = block, .block_end = part->block_end
        };
    }
    return ST_OK;
}

enum status optimizer_muon_cut(struct optimizer *optimizer)
{
    const size_t room = (size_t)optimizer->part_count + 2 * (size_t)optimizer->tape->param_count;
    struct optimizer_part *parts = calloc(room + 1, sizeof(*parts));
    uint32_t count = 0;
    enum status st = parts != NULL ? ST_OK : ST_NO_MEMORY;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++)
        st = cut_part(optimizer, &optimizer->parts[i], parts, &count);
    if (st != ST_OK) {
        free(parts);
        return st;
    }
    free(optimizer->parts);
    optimizer->parts = parts;
    optimizer->part_count = count;
    return ST_OK;
}

/* ---- open and close ---- */

/* Prepares x [rows, columns] → [rows, out]; *scratch grows to what it needs. */
static enum status prepare(struct optimizer *optimizer, int64_t rows, int64_t columns, int64_t out,
                           struct kernel **out_kernel, size_t *scratch)
{
    const int64_t dims[] = { rows, columns };
    const struct op_spec spec = { .op = OP_LINEAR,
                                  .attr = { .out = out },
                                  .in = { tensor_plain(DTYPE_F32, 2, dims) },
                                  .in_count = 1,
                                  .out_dtype = DTYPE_F32,
                                  .math = MATH_F32,
                                  .training = true };
    struct kernel_info info;
    enum status st =
        optimizer->table->op[OP_LINEAR].prepare(optimizer->backend, &spec, out_kernel, &info);
    if (st != ST_OK)
        return st;
    CHECK(info.cache_bytes == 0 && info.saved_bytes == 0); /* in float32, without activation */
    *scratch = info.scratch_bytes > *scratch ? info.scratch_bytes : *scratch;
    return ST_OK;
}

static const struct muon_shape *find_shape(const struct muon *muon, const struct tape_tensor *m)
{
    for (size_t i = 0; i < muon->shape_count; i++) {
        const struct muon_shape *shape = &muon->shapes[i];
        if (shape->rows == m->dims[0] && shape->columns == m->dims[1])
            return shape;
    }
    return NULL;
}

static enum status add_shape(struct optimizer *optimizer, const struct tape_tensor *matrix,
                             size_t *scratch)
{
    struct muon *muon = optimizer->muon;
    if (find_shape(muon, matrix) != NULL)
        return ST_OK;
    struct muon_shape *shape = &muon->shapes[muon->shape_count++];
    shape->rows = matrix->dims[0];
    shape->columns = matrix->dims[1];
    shape->side = least_side(matrix);
    enum status st =
        prepare(optimizer, shape->rows, shape->columns, shape->side, &shape->outer, scratch);
    return st == ST_OK
               ? prepare(optimizer, shape->side, shape->side, shape->side, &shape->inner, scratch)
               : st;
}

static enum status allocate(struct optimizer *optimizer, size_t scratch)
{
    const struct backend_table *table = optimizer->table;
    struct muon *muon = optimizer->muon;
    size_t matrix = 0, square = 0;
    largest(optimizer->tape, &matrix, &square);
    const struct {
        void **to;
        size_t bytes;
    } rows[] = { { (void **)&muon->x, matrix * sizeof(float) },
                 { (void **)&muon->y, matrix * sizeof(float) },
                 { (void **)&muon->gram, square * sizeof(float) },
                 { (void **)&muon->square, square * sizeof(float) },
                 { &muon->scratch, scratch } };
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].bytes > 0)
            st = table->alloc(optimizer->backend, rows[i].bytes, rows[i].to);
    }
    return st;
}

enum status optimizer_muon_open(struct optimizer *optimizer)
{
    const struct tape *tape = optimizer->tape;
    if (optimizer->options.kind != JOBSPEC_OPTIMIZER_MUON)
        return ST_OK;
    struct muon *muon = calloc(1, sizeof(*muon));
    optimizer->muon = muon;
    if (muon == NULL)
        return ST_NO_MEMORY;
    muon->shapes = calloc((size_t)tape->param_count + 1, sizeof(*muon->shapes));
    enum status st = muon->shapes != NULL ? ST_OK : ST_NO_MEMORY;
    size_t scratch = 0;
    for (int i = 0; st == ST_OK && i < tape->param_count; i++) {
        if (is_matrix(tape, &tape->params[i]))
            st = add_shape(optimizer, &tape->params[i], &scratch);
    }
    return st == ST_OK ? allocate(optimizer, scratch) : st;
}

void optimizer_muon_close(struct optimizer *optimizer)
{
    struct muon *muon = optimizer->muon;
    if (muon == NULL)
        return;
    void *const memory[] = { muon->x, muon->y, muon->gram, muon->square, muon->scratch };
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        if (memory[i] != NULL)
            optimizer->table->free(optimizer->backend, memory[i]);
    }
    for (size_t i = 0; i < muon->shape_count; i++) {
        struct kernel *const kernels[] = { muon->shapes[i].outer, muon->shapes[i].inner };
        for (int k = 0; k < 2; k++) {
            if (kernels[k] != NULL)
                optimizer->table->kernel_free(optimizer->backend, kernels[k]);
        }
    }
    free(muon->shapes);
    free(muon);
    optimizer->muon = NULL;
}

/* ---- an update ---- */

/* out = out·keep + x·factor */
static enum status mix(struct optimizer *optimizer, float *out, float keep, const float *x,
                       float factor, size_t count, struct stream *stream)
{
    const struct sgd_args args = { .lr = 1, .weight_decay = 1 - keep, .grad_scale = -factor };
    return optimizer->table->vector.sgd(optimizer->backend, out, NULL, x, count, &args, stream);
}

/* out = x·wᵀ */
/* NOLINTNEXTLINE(readability-non-const-parameter): the op writes it */
static enum status multiply(struct optimizer *optimizer, float *out, struct kernel *kernel,
                            const float *x, const float *w, struct stream *stream)
{
    const struct op_buffers buffers = {
        .in = { x }, .out = out, .param = { w }, .scratch = optimizer->muon->scratch
    };
    return optimizer->table->op[OP_LINEAR].forward(optimizer->backend, kernel, &buffers, stream);
}

/* out = gᵀ·x */
/* NOLINTNEXTLINE(readability-non-const-parameter): the op writes it */
static enum status multiply_transposed(struct optimizer *optimizer, float *out,
                                       struct kernel *kernel, const float *g, const float *x,
                                       struct stream *stream)
{
    const struct op_buffers buffers = {
        .in = { x }, .dout = { g }, .dparam = { out }, .scratch = optimizer->muon->scratch
    };
    return optimizer->table->op[OP_LINEAR].backward(optimizer->backend, kernel, &buffers, stream);
}

/* muon->y = a·x + (b·A + c·A²)·x, or with it behind x; then x and y change places. */
static enum status newton_schulz(struct optimizer *optimizer, const struct muon_shape *shape,
                                 struct stream *stream)
{
    struct muon *muon = optimizer->muon;
    const size_t count = (size_t)(shape->rows * shape->columns);
    const size_t square = (size_t)(shape->side * shape->side);
    const bool wide = shape->rows <= shape->columns;
    float *x = muon->x, *y = muon->y;
    enum status st = wide ? multiply(optimizer, muon->gram, shape->outer, x, x, stream)
                          : multiply_transposed(optimizer, muon->gram, shape->outer, x, x, stream);
    if (st == ST_OK)
        st = multiply(optimizer, muon->square, shape->inner, muon->gram, muon->gram, stream);
    if (st == ST_OK)
        st = mix(optimizer, muon->square, quintic[2], muon->gram, quintic[1], square, stream);
    if (st == ST_OK) {
        st = wide ? multiply_transposed(optimizer, y, shape->outer, muon->square, x, stream)
                  : multiply(optimizer, y, shape->outer, x, muon->square, stream);
    }
    if (st == ST_OK)
        st = mix(optimizer, y, 1, x, quintic[0], count, stream);
    muon->x = y;
    muon->y = x;
    return st;
}

/* Overwrites a matrix's gradient with u. */
static enum status add_momentum(struct optimizer *optimizer, const struct optimizer_part *part,
                                const struct optimizer_call *call, struct stream *stream)
{
    const struct vector_table *vector = &optimizer->table->vector;
    struct backend *backend = optimizer->backend;
    float *const direction = optimizer->muon->x;
    const struct sgd_args args = { .lr = -1,
                                   .momentum = optimizer->options.momentum,
                                   .grad_scale = call->scale,
                                   .nesterov = true,
                                   .first = call->step->update == 1 };
    enum status st = vector->fill(backend, direction, 0, part->count, stream);
    if (st == ST_OK) {
        st = vector->sgd(backend, direction, optimizer_moment(optimizer, 0, part),
                         call->sum + part->first, part->count, &args, stream);
    }
    return st == ST_OK ? vector->copy(backend, call->sum + part->first, direction,
                                      part->count * sizeof(float), stream)
                       : st;
}

static enum status move_matrix(struct optimizer *optimizer, const struct optimizer_part *part,
                               const struct optimizer_call *call, double norm,
                               struct stream *stream)
{
    struct muon *muon = optimizer->muon;
    const struct muon_shape *shape = find_shape(muon, part->matrix);
    const struct optimizer_options *options = &optimizer->options;
    const double most = (double)(shape->rows > shape->columns ? shape->rows : shape->columns);
    const bool decays = ((unsigned)part->matrix->kind & options->no_decay) == 0;
    const struct sgd_args args = { .lr = (float)call->step->lr,
                                   .weight_decay = decays ? options->weight_decay : 0,
                                   .grad_scale = (float)(RMS_FACTOR * sqrt(most)) };
    const struct vector_table *vector = &optimizer->table->vector;
    enum status st = vector->fill(optimizer->backend, muon->x, 0, part->count, stream);
    if (st == ST_OK) {
        st = mix(optimizer, muon->x, 1, call->sum + part->first, (float)(1 / (norm + EPSILON)),
                 part->count, stream);
    }
    for (int i = 0; st == ST_OK && i < STEPS; i++)
        st = newton_schulz(optimizer, shape, stream);
    return st == ST_OK ? vector->sgd(optimizer->backend, optimizer->params + part->first, NULL,
                                     muon->x, part->count, &args, stream)
                       : st;
}

enum status optimizer_muon(struct optimizer *optimizer, const struct optimizer_call *call,
                           struct stream *stream)
{
    const double *norms = optimizer->tensor_norms;
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        st = part->matrix != NULL ? add_momentum(optimizer, part, call, stream)
                                  : optimizer_adamw(optimizer, part, call, stream);
    }
    if (st == ST_OK) {
        st = optimizer_tensor_norms(optimizer, call->sum, call->step->peers, stream,
                                    optimizer->tensor_norms);
    }
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        if (part->matrix != NULL) {
            st = move_matrix(optimizer, part, call, norms[part->matrix - optimizer->tape->params],
                             stream);
        }
    }
    return st;
}
