#include "trainer/update/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/fault.h"
#include "common/tree_sum.h"
#include "kernels/mix.h"

#define STATISTICS_MOMENTUM 0.1f /* PyTorch's default of BatchNorm2d */
#define CLIP_EPSILON        1e-6 /* clip_grad_norm_'s */

/* The scalars at the end of a lane vector, in the order of struct lane_layout. */
enum sum_scalar { SUM_LOSS, SUM_TARGETS, SUM_MICRO, SUM_SCALARS };

/* What an update is decided by, brought to the host. */
struct sum_facts {
    float scalars[SUM_SCALARS];
    float unused;
    double squares[]; /* per norm block: the sum of the gradient's squares */
};

struct optimizer {
    struct optimizer_options options;
    const struct backend_table *table;
    struct backend *backend;
    const struct tape *tape;
    struct lane_layout layout;
    float *params, *stats, *moments[OPTIMIZER_MOMENTS_MAX];
    int moment_count;
    double *squares;         /* one per norm block; device memory */
    struct sum_facts *facts; /* host memory */
    uint64_t *norm_begin;    /* [norm_count + 1] device memory */
    size_t norm_count;
    uint64_t *sums;          /* one per piece of a buffer; device memory */
    uint64_t *sums_read;     /* ... of all buffers; host memory */
    uint64_t *decay_borders; /* device memory; NULL: all decay */
    struct decay_map decay;
    struct ckpt_buffer buffers[OPTIMIZER_BUFFERS_MAX];
    struct ckpt_tensor *tensors;
    uint32_t buffer_count, tensor_count;
};

static const char *moment_name(const struct optimizer *optimizer, int moment)
{
    if (optimizer->options.kind == OPTIMIZER_SGD)
        return "momentum";
    return moment == 0 ? "adam.m" : "adam.v";
}

static size_t pieces_of(size_t count)
{
    return (count + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
}

static size_t all_pieces(const struct optimizer *optimizer)
{
    return pieces_of(optimizer->layout.param_count) * (size_t)(1 + optimizer->moment_count) +
           pieces_of(optimizer->layout.stat_count);
}

static enum status allocate_sums(struct optimizer *optimizer)
{
    const size_t bytes = all_pieces(optimizer) * sizeof(*optimizer->sums);
    enum status st = optimizer->table->alloc(optimizer->backend, bytes, (void **)&optimizer->sums);
    if (st != ST_OK)
        return st;
    return optimizer->table->alloc_host(optimizer->backend, bytes, (void **)&optimizer->sums_read);
}

static enum status allocate_buffers(struct optimizer *optimizer)
{
    struct {
        float **buffer;
        size_t count;
    } wanted[OPTIMIZER_BUFFERS_MAX] = { { &optimizer->params, optimizer->layout.param_count },
                                        { &optimizer->stats, optimizer->layout.stat_count } };
    for (int i = 0; i < optimizer->moment_count; i++) {
        wanted[2 + i].buffer = &optimizer->moments[i];
        wanted[2 + i].count = optimizer->layout.param_count;
    }
    for (int i = 0; i < 2 + optimizer->moment_count; i++) {
        if (wanted[i].count == 0)
            continue;
        void *memory;
        enum status st =
            optimizer->table->alloc(optimizer->backend, wanted[i].count * sizeof(float), &memory);
        if (st != ST_OK)
            return st;
        *wanted[i].buffer = memory;
    }
    return allocate_sums(optimizer);
}

/* The elements at which decay starts or stops (struct decay_map). out: room for one of each
 * parameter. */
static size_t decay_borders(const struct tape *tape, unsigned no_decay, uint64_t *out)
{
    size_t count = 0;
    bool decays = true;
    for (int i = 0; i < tape->param_count; i++) {
        bool wanted = ((unsigned)tape->params[i].kind & no_decay) == 0;
        if (wanted != decays)
            out[count++] = tape->params[i].offset;
        decays = wanted;
    }
    return count;
}

static enum status copy_to_device(struct optimizer *optimizer, void *to, const void *from,
                                  size_t bytes)
{
    const struct backend_table *table = optimizer->table;
    struct stream *stream = NULL;
    enum status st = table->stream_new(optimizer->backend, &stream);
    if (st != ST_OK)
        return st;
    st = table->vector.copy(optimizer->backend, to, from, bytes, stream);
    if (st == ST_OK)
        st = table->stream_sync(optimizer->backend, stream);
    table->stream_free(optimizer->backend, stream);
    return st;
}

/* A norm block begins at each parameter and at each piece of the buffer: no cut between nodes, and
 * none between owners of pieces, splits one. out: NULL, or [blocks + 1]. Returns the blocks. */
static size_t norm_blocks(const struct tape *tape, uint64_t *out)
{
    size_t count = 0;
    for (int i = 0; i < tape->param_count; i++) {
        const size_t end = tape->params[i].offset + tape->params[i].count;
        for (size_t at = tape->params[i].offset; at < end; count++) {
            if (out != NULL)
                out[count] = at;
            const size_t next = (at / PIECE_ELEMENTS + 1) * PIECE_ELEMENTS;
            at = next < end ? next : end;
        }
    }
    if (out != NULL)
        out[count] = tape->param_elements;
    return count;
}

static enum status map_norm(struct optimizer *optimizer)
{
    const struct backend_table *table = optimizer->table;
    struct backend *backend = optimizer->backend;
    const size_t count = norm_blocks(optimizer->tape, NULL);
    const size_t bytes = (count + 1) * sizeof(uint64_t), sums = (count + 1) * sizeof(double);
    auto_free uint64_t *begin = malloc(bytes);
    if (begin == NULL)
        return ST_NO_MEMORY;
    optimizer->norm_count = norm_blocks(optimizer->tape, begin);
    enum status st = table->alloc(backend, bytes, (void **)&optimizer->norm_begin);
    if (st == ST_OK)
        st = copy_to_device(optimizer, optimizer->norm_begin, begin, bytes);
    if (st == ST_OK)
        st = table->alloc(backend, sums, (void **)&optimizer->squares);
    if (st != ST_OK)
        return st;
    return table->alloc_host(backend, sizeof(struct sum_facts) + sums, (void **)&optimizer->facts);
}

static enum status map_decay(struct optimizer *optimizer)
{
    const struct tape *tape = optimizer->tape;
    auto_free uint64_t *borders = calloc((size_t)tape->param_count + 1, sizeof *borders);
    if (borders == NULL)
        return ST_NO_MEMORY;
    size_t count = decay_borders(tape, optimizer->options.no_decay, borders);
    if (count == 0)
        return ST_OK;
    size_t bytes = count * sizeof *borders;
    enum status st =
        optimizer->table->alloc(optimizer->backend, bytes, (void **)&optimizer->decay_borders);
    if (st != ST_OK)
        return st;
    optimizer->decay.borders = optimizer->decay_borders;
    optimizer->decay.count = count;
    return copy_to_device(optimizer, optimizer->decay_borders, borders, bytes);
}

/* One buffer and its tensors, each named PREFIX + the tape's name. */
static enum status describe_buffer(struct optimizer *optimizer, const char *name, const float *data,
                                   const char *prefix, bool statistics)
{
    const struct tape *tape = optimizer->tape;
    const struct tape_tensor *from = statistics ? tape->stats : tape->params;
    int count = statistics ? tape->stat_count : tape->param_count;
    if (count == 0)
        return ST_OK;
    struct ckpt_buffer *buffer = &optimizer->buffers[optimizer->buffer_count];
    (void)snprintf(buffer->name, sizeof buffer->name, "%s", name);
    buffer->dtype = CKPT_F32;
    buffer->count = statistics ? tape->stat_elements : tape->param_elements;
    buffer->data = data;
    for (int i = 0; i < count; i++) {
        struct ckpt_tensor *tensor = &optimizer->tensors[optimizer->tensor_count++];
        int length = snprintf(tensor->name, sizeof tensor->name, "%s%s", prefix, from[i].name);
        if (length < 0 || (size_t)length >= sizeof tensor->name)
            return ST_INVALID;
        tensor->buffer = optimizer->buffer_count;
        tensor->offset = from[i].offset;
        tensor->ndim = from[i].ndim;
        for (int d = 0; d < from[i].ndim; d++)
            tensor->dims[d] = (uint64_t)from[i].dims[d];
    }
    optimizer->buffer_count++;
    return ST_OK;
}

static enum status describe_buffers(struct optimizer *optimizer)
{
    size_t count = (size_t)optimizer->tape->param_count * (size_t)(1 + optimizer->moment_count) +
                   (size_t)optimizer->tape->stat_count;
    optimizer->tensors = calloc(count + 1, sizeof *optimizer->tensors);
    if (optimizer->tensors == NULL)
        return ST_NO_MEMORY;
    enum status st = describe_buffer(optimizer, "parameters", optimizer->params, "", false);
    for (int i = 0; st == ST_OK && i < optimizer->moment_count; i++) {
        char prefix[32];
        (void)snprintf(prefix, sizeof prefix, "%s/", moment_name(optimizer, i));
        st = describe_buffer(optimizer, moment_name(optimizer, i), optimizer->moments[i], prefix,
                             false);
    }
    if (st != ST_OK)
        return st;
    return describe_buffer(optimizer, "statistics", optimizer->stats, "", true);
}

enum status optimizer_new(const struct optimizer_options *options, const struct tape *tape,
                          const struct backend_table *table, struct backend *backend,
                          struct optimizer **out)
{
    struct optimizer *optimizer = calloc(1, sizeof *optimizer);
    if (optimizer == NULL)
        return ST_NO_MEMORY;
    optimizer->options = *options;
    optimizer->table = table;
    optimizer->backend = backend;
    optimizer->tape = tape;
    optimizer->layout = lane_layout(tape);
    optimizer->moment_count = options->kind == OPTIMIZER_ADAMW ? 2 : options->momentum != 0;
    enum status st = allocate_buffers(optimizer);
    if (st == ST_OK)
        st = map_norm(optimizer);
    if (st == ST_OK)
        st = map_decay(optimizer);
    if (st == ST_OK)
        st = describe_buffers(optimizer);
    if (st != ST_OK) {
        optimizer_free(optimizer);
        return st;
    }
    *out = optimizer;
    return ST_OK;
}

void optimizer_free(struct optimizer *optimizer)
{
    if (optimizer == NULL)
        return;
    void *const owned[] = { optimizer->params,     optimizer->stats,   optimizer->moments[0],
                            optimizer->moments[1], optimizer->squares, optimizer->decay_borders,
                            optimizer->norm_begin, optimizer->sums };
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        if (owned[i] != NULL)
            optimizer->table->free(optimizer->backend, owned[i]);
    }
    if (optimizer->facts != NULL)
        optimizer->table->free_host(optimizer->backend, optimizer->facts);
    if (optimizer->sums_read != NULL)
        optimizer->table->free_host(optimizer->backend, optimizer->sums_read);
    free(optimizer->tensors);
    free(optimizer);
}

float *optimizer_params(struct optimizer *optimizer)
{
    return optimizer->params;
}

float *optimizer_stats(struct optimizer *optimizer)
{
    return optimizer->stats;
}

enum status optimizer_checksum(struct optimizer *optimizer, struct stream *stream, uint64_t *out)
{
    const struct vector_table *vector = &optimizer->table->vector;
    struct backend *backend = optimizer->backend;
    enum status st = ST_OK;
    size_t at = 0;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->buffer_count; i++) {
        const struct ckpt_buffer *buffer = &optimizer->buffers[i];
        st = vector->checksums(backend, optimizer->sums + at, buffer->data, buffer->count, stream);
        at += pieces_of(buffer->count);
    }
    CHECK(at <= all_pieces(optimizer));
    if (st == ST_OK) {
        st = vector->copy(backend, optimizer->sums_read, optimizer->sums, at * sizeof(uint64_t),
                          stream);
    }
    if (st == ST_OK)
        st = optimizer->table->stream_sync(backend, stream);
    if (st == ST_OK)
        *out = mix_sums(optimizer->sums_read, at);
    return st;
}

/* Waits for the device. */
static enum status fetch_facts(struct optimizer *optimizer, const float *sum, struct stream *stream)
{
    const struct vector_table *vector = &optimizer->table->vector;
    struct backend *backend = optimizer->backend;
    struct sum_facts *facts = optimizer->facts;
    enum status st = vector->copy(backend, facts->scalars, sum + optimizer->layout.loss_at,
                                  sizeof facts->scalars, stream);
    if (st == ST_OK) {
        st = vector->square_sums(backend, optimizer->squares, sum, optimizer->norm_begin,
                                 optimizer->norm_count, stream);
    }
    if (st == ST_OK) {
        st = vector->copy(backend, facts->squares, optimizer->squares,
                          optimizer->norm_count * sizeof(double), stream);
    }
    return st == ST_OK ? optimizer->table->stream_sync(backend, stream) : st;
}

/* Reads everything that decides about the update; writes no state. */
static enum status examine_sum(struct optimizer *optimizer, const float *sum,
                               const struct optimizer_step *step, struct stream *stream,
                               struct optimizer_report *out_report)
{
    enum status st = fetch_facts(optimizer, sum, stream);
    if (st != ST_OK)
        return st;
    struct sum_facts *facts = optimizer->facts;
    double targets = (double)facts->scalars[SUM_TARGETS];
    if (!(targets >= 1) || !(facts->scalars[SUM_MICRO] >= 1))
        return ST_INVALID;
    double square = tree_sum(facts->squares, optimizer->norm_count);
    struct optimizer_report report = { .loss = (double)facts->scalars[SUM_LOSS] / targets,
                                       .grad_norm = sqrt(square) / targets / step->loss_scale,
                                       .targets = targets };
    report.overflow = step->may_overflow && isfinite(report.loss) && !isfinite(square);
    *out_report = report;
    bool finite = isfinite(report.loss) && isfinite(square);
    return finite || report.overflow ? ST_OK : ST_NUMERIC;
}

static float grad_scale(const struct optimizer *optimizer, const struct optimizer_step *step,
                        const struct optimizer_report *report)
{
    double scale = 1.0 / report->targets / step->loss_scale;
    if (optimizer->options.clip_norm > 0) {
        double clip = (double)optimizer->options.clip_norm / (report->grad_norm + CLIP_EPSILON);
        if (clip < 1)
            scale *= clip;
    }
    return (float)scale;
}

static enum status update_params(struct optimizer *optimizer, const float *sum,
                                 const struct optimizer_step *step, float scale,
                                 struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    const struct vector_table *vector = &optimizer->table->vector;
    const struct decay_map *decay = optimizer->decay_borders != NULL ? &optimizer->decay : NULL;
    size_t count = optimizer->layout.param_count;
    if (options->kind == OPTIMIZER_SGD) {
        struct sgd_args args = { .lr = (float)step->lr,
                                 .momentum = options->momentum,
                                 .weight_decay = options->weight_decay,
                                 .grad_scale = scale,
                                 .nesterov = options->nesterov,
                                 .decay = decay,
                                 .first = step->update == 1 };
        return vector->sgd(optimizer->backend, optimizer->params, optimizer->moments[0], sum, count,
                           &args, stream);
    }
    struct adamw_args args = { .lr = (float)step->lr,
                               .beta1 = options->beta1,
                               .beta2 = options->beta2,
                               .eps = options->eps,
                               .weight_decay = options->weight_decay,
                               .grad_scale = scale,
                               .decay = decay,
                               .t = step->update };
    return vector->adamw(optimizer->backend, optimizer->params, optimizer->moments[0],
                         optimizer->moments[1], sum, count, &args, stream);
}

/* running += 0.1·(mean over micro-batches - running), as plain gradient descent with decay 1:
 * param - lr·(grad·grad_scale + param), the gradient being the sum. */
static enum status update_stats(struct optimizer *optimizer, const float *sum, double micro,
                                struct stream *stream)
{
    if (optimizer->layout.stat_count == 0)
        return ST_OK;
    struct sgd_args args = { .lr = STATISTICS_MOMENTUM,
                             .weight_decay = 1,
                             .grad_scale = (float)(-1.0 / micro) };
    return optimizer->table->vector.sgd(optimizer->backend, optimizer->stats, NULL,
                                        sum + optimizer->layout.stat_at,
                                        optimizer->layout.stat_count, &args, stream);
}

enum status optimizer_update(struct optimizer *optimizer, float *sum,
                             const struct optimizer_step *step, struct stream *stream,
                             struct optimizer_report *out_report)
{
    CHECK(step->update >= 1);
    CHECK(step->loss_scale > 0);
    struct optimizer_report report;
    enum status st =
        lane_add_ties(optimizer->tape, optimizer->table, optimizer->backend, sum, stream);
    if (st == ST_OK)
        st = examine_sum(optimizer, sum, step, stream, &report);
    if (st == ST_OK || st == ST_NUMERIC)
        *out_report = report;
    if (st != ST_OK || report.overflow)
        return st;
    st = update_params(optimizer, sum, step, grad_scale(optimizer, step, &report), stream);
    fault_point("trainer.update"); /* parameters are new, statistics old */
    if (st == ST_OK)
        st = update_stats(optimizer, sum, (double)optimizer->facts->scalars[SUM_MICRO], stream);
    if (st != ST_OK)
        return st;
    return optimizer->table->stream_sync(optimizer->backend, stream);
}

void optimizer_describe(struct optimizer *optimizer, const struct ckpt_buffer **out_buffers,
                        uint32_t *out_buffer_count, const struct ckpt_tensor **out_tensors,
                        uint32_t *out_tensor_count)
{
    *out_buffers = optimizer->buffers;
    *out_buffer_count = optimizer->buffer_count;
    *out_tensors = optimizer->tensors;
    *out_tensor_count = optimizer->tensor_count;
}

void *optimizer_buffer(struct optimizer *optimizer, const char *name)
{
    struct {
        const char *name;
        float *data;
    } rows[OPTIMIZER_BUFFERS_MAX] = { { "parameters", optimizer->params },
                                      { "statistics", optimizer->stats } };
    for (int i = 0; i < optimizer->moment_count; i++) {
        rows[2 + i].name = moment_name(optimizer, i);
        rows[2 + i].data = optimizer->moments[i];
    }
    for (int i = 0; i < 2 + optimizer->moment_count; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].data;
    }
    return NULL;
}
