#include <math.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "common/tree_sum.h"
#include "kernels/mix.h"
#include "trainer/update/optimizer.h"
#include "trainer/update/optimizer_internal.h"

#define STATISTICS_MOMENTUM 0.1f   /* PyTorch's default of BatchNorm2d */
#define EXACT_COUNT         0x1p24 /* float32 has all whole numbers up to there */
#define CLIP_EPSILON        1e-6   /* clip_grad_norm_'s */

/* ---- what all have ---- */

/* Appends the sums of an extent's pieces. */
static enum status sum_extent(struct optimizer *optimizer, const float *data, size_t first,
                              size_t count, size_t *at, struct stream *stream)
{
    if (count == 0)
        return ST_OK;
    CHECK(*at + optimizer_pieces(count) <= optimizer->sums_max);
    enum status st = optimizer->table->vector.checksums(optimizer->backend, optimizer->sums + *at,
                                                        data + first, count, stream);
    *at += optimizer_pieces(count);
    return st;
}

static enum status sum_moments(struct optimizer *optimizer, size_t *at, struct stream *stream)
{
    enum status st = ST_OK;
    for (int m = 0; m < optimizer->moment_count; m++) {
        for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
            const struct optimizer_part *part = &optimizer->parts[i];
            st = sum_extent(optimizer, optimizer->moments[m], part->first, part->count, at, stream);
        }
    }
    return st;
}

enum status optimizer_checksum(struct optimizer *optimizer, struct stream *stream, uint64_t *out)
{
    struct backend *backend = optimizer->backend;
    enum status st = ST_OK;
    size_t at = 0;
    for (size_t i = 0; st == ST_OK && i < optimizer->param_extents; i++) {
        const struct lane_extent *extent = &optimizer->param_extent[i];
        st = sum_extent(optimizer, optimizer->params, extent->first, extent->end - extent->first,
                        &at, stream);
    }
    if (st == ST_OK && (!optimizer->has_peers || optimizer->replicas))
        st = sum_moments(optimizer, &at, stream);
    for (size_t i = 0; st == ST_OK && i < optimizer->stat_extents; i++) {
        const struct lane_extent *extent = &optimizer->stat_extent[i];
        st = sum_extent(optimizer, optimizer->stats, extent->first, extent->end - extent->first,
                        &at, stream);
    }
    if (st == ST_OK) {
        st = optimizer->table->vector.copy(backend, optimizer->sums_read, optimizer->sums,
                                           at * sizeof(uint64_t), stream);
    }
    if (st == ST_OK)
        st = optimizer->table->stream_sync(backend, stream);
    if (st == ST_OK)
        *out = mix_sums(optimizer->sums_read, at);
    return st;
}

/* ---- what decides ---- */

static enum status add_ties(struct optimizer *optimizer, float *sum, float *const *ties,
                            struct stream *stream)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        st = lane_add_ties(optimizer->tape, optimizer->table, optimizer->backend, sum, ties,
                           part->first, part->count, stream);
    }
    return st;
}

/* Computes the sums of squares of this rank's blocks, packed. */
static enum status square_parts(struct optimizer *optimizer, const float *sum,
                                struct stream *stream, size_t *out_count)
{
    const struct vector_table *vector = &optimizer->table->vector;
    enum status st = ST_OK;
    size_t at = 0;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        const size_t blocks = part->block_end - part->block_begin;
        st = vector->square_sums(optimizer->backend, optimizer->squares + at, sum,
                                 optimizer->norm_begin + part->block_begin, blocks, stream);
        at += blocks;
    }
    *out_count = at;
    return st;
}

/* Waits for the device. */
static enum status fetch_facts(struct optimizer *optimizer, const float *sum, struct stream *stream)
{
    const struct vector_table *vector = &optimizer->table->vector;
    struct backend *backend = optimizer->backend;
    size_t count = 0;
    enum status st = vector->copy(backend, optimizer->scalars, sum + optimizer->layout.loss_at,
                                  SUM_SCALARS * sizeof(float), stream);
    if (st == ST_OK)
        st = square_parts(optimizer, sum, stream, &count);
    if (st == ST_OK && count > 0) {
        st = vector->copy(backend, optimizer->squares_read + optimizer->own_packed,
                          optimizer->squares, count * sizeof(double), stream);
    }
    return st == ST_OK ? optimizer->table->stream_sync(backend, stream) : st;
}

/* The squared norm: all ranks' sums in the order of the blocks, by the tree. */
static double norm_squared(const struct optimizer *optimizer)
{
    for (size_t i = 0; i < optimizer->norm_count; i++)
        optimizer->in_order[optimizer->norm_packed[i]] = optimizer->squares_read[i];
    return tree_sum(optimizer->in_order, optimizer->norm_count);
}

/* Reads everything that decides about the update; writes no state. */
static enum status examine_sum(struct optimizer *optimizer, const float *sum,
                               const struct optimizer_step *step, struct stream *stream,
                               struct optimizer_report *out_report)
{
    const float *scalars = optimizer->scalars;
    enum status st = fetch_facts(optimizer, sum, stream);
    if (st == ST_OK && step->peers != NULL) {
        st = step->peers->exchange_squares(step->peers->arg, optimizer->squares_read,
                                           optimizer->scalars);
    }
    if (st != ST_OK)
        return st;
    double targets = (double)scalars[SUM_TARGETS];
    if (targets >= EXACT_COUNT && step->targets > 0)
        targets = (double)step->targets;
    if (!(targets >= 1) || !(scalars[SUM_MICRO] >= 1))
        return ST_INVALID;
    double square = norm_squared(optimizer);
    struct optimizer_report report = { .loss = (double)scalars[SUM_LOSS] / targets,
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

/* ---- the update ---- */

/* Returns the kernels' copies that an update writes. With shared moments it writes none, as it has
 * only some of the elements. */
static const struct copy_map *copies_of(const struct optimizer *optimizer)
{
    if (optimizer->has_peers || optimizer->copies.count == 0)
        return NULL;
    CHECK(optimizer->part_count == 1 && optimizer->parts[0].first == 0); /* as copies count */
    return &optimizer->copies;
}

struct update_call {
    const struct optimizer_step *step;
    const struct decay_map *decay; /* NULL: all decay */
    const float *sum;              /* of the whole step */
    float scale;                   /* of the gradient */
};

static enum status update_by_sgd(struct optimizer *optimizer, const struct optimizer_part *part,
                                 const struct update_call *call, float *const *moments,
                                 struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    struct sgd_args args = { .lr = (float)call->step->lr,
                             .momentum = options->momentum,
                             .weight_decay = options->weight_decay,
                             .grad_scale = call->scale,
                             .nesterov = options->nesterov,
                             .decay = call->decay,
                             .copies = copies_of(optimizer),
                             .first = call->step->update == 1 };
    return optimizer->table->vector.sgd(optimizer->backend, optimizer->params + part->first,
                                        moments[0], call->sum + part->first, part->count, &args,
                                        stream);
}

static enum status update_by_adamw(struct optimizer *optimizer, const struct optimizer_part *part,
                                   const struct update_call *call, float *const *moments,
                                   struct stream *stream)
{
    const struct optimizer_options *options = &optimizer->options;
    struct adamw_args args = { .lr = (float)call->step->lr,
                               .beta1 = options->beta1,
                               .beta2 = options->beta2,
                               .eps = options->eps,
                               .weight_decay = options->weight_decay,
                               .grad_scale = call->scale,
                               .decay = call->decay,
                               .copies = copies_of(optimizer),
                               .t = call->step->update };
    return optimizer->table->vector.adamw(optimizer->backend, optimizer->params + part->first,
                                          moments[0], moments[1], call->sum + part->first,
                                          part->count, &args, stream);
}

static enum status update_part(struct optimizer *optimizer, const struct optimizer_part *part,
                               const float *sum, const struct optimizer_step *step, float scale,
                               struct stream *stream)
{
    const struct update_call call = {
        .step = step,
        .decay = optimizer->decay_borders != NULL ? &part->decay : NULL,
        .sum = sum,
        .scale = scale,
    };
    float *moments[OPTIMIZER_MOMENTS_MAX] = { NULL };
    for (int i = 0; i < optimizer->moment_count; i++)
        moments[i] = optimizer->moments[i] + part->first;
    switch (optimizer->options.kind) {
    case JOBSPEC_OPTIMIZER_SGD:
        return update_by_sgd(optimizer, part, &call, moments, stream);
    case JOBSPEC_OPTIMIZER_ADAMW:
        return update_by_adamw(optimizer, part, &call, moments, stream);
    case JOBSPEC_OPTIMIZER_NONE:
        break;
    }
    CHECK("an optimizer" == NULL);
    return ST_INVALID;
}

static enum status update_params(struct optimizer *optimizer, const float *sum,
                                 const struct optimizer_step *step, float scale,
                                 struct stream *stream)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++)
        st = update_part(optimizer, &optimizer->parts[i], sum, step, scale, stream);
    fault_point("trainer.update"); /* parameters are new, statistics old */
    return st;
}

/* running += 0.1·(mean over micro-batches - running), as plain gradient descent with decay 1:
 * param - lr·(grad·grad_scale + param), the gradient being the sum. */
static enum status update_stats(struct optimizer *optimizer, const float *sum, double micro,
                                struct stream *stream)
{
    struct sgd_args args = { .lr = STATISTICS_MOMENTUM,
                             .weight_decay = 1,
                             .grad_scale = (float)(-1.0 / micro) };
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < optimizer->stat_extents; i++) {
        const struct lane_extent *extent = &optimizer->stat_extent[i];
        if (extent->first == extent->end)
            continue;
        st = optimizer->table->vector.sgd(optimizer->backend, optimizer->stats + extent->first,
                                          NULL, sum + optimizer->layout.stat_at + extent->first,
                                          extent->end - extent->first, &args, stream);
    }
    return st;
}

enum status optimizer_update(struct optimizer *optimizer, float *sum,
                             const struct optimizer_step *step, struct stream *stream,
                             struct optimizer_report *out_report)
{
    CHECK(step->update >= 1);
    CHECK(step->loss_scale > 0);
    CHECK((step->peers != NULL) == optimizer->has_peers);
    struct optimizer_report report = { .began = false };
    out_report->began = false;
    enum status st = add_ties(optimizer, sum, step->ties, stream);
    if (st == ST_OK)
        st = examine_sum(optimizer, sum, step, stream, &report);
    if (st == ST_OK || st == ST_NUMERIC)
        *out_report = report;
    if (st != ST_OK || report.overflow)
        return st;
    out_report->began = true;
    out_report->copied = copies_of(optimizer) != NULL;
    st = update_params(optimizer, sum, step, grad_scale(optimizer, step, &report), stream);
    if (st == ST_OK)
        st = update_stats(optimizer, sum, (double)optimizer->scalars[SUM_MICRO], stream);
    if (st != ST_OK || step->peers == NULL)
        return st;
    st = step->peers->gather_params(step->peers->arg, optimizer->params);
    return st == ST_OK ? optimizer->table->stream_sync(optimizer->backend, stream) : st;
}
