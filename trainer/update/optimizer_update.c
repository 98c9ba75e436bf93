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

/* Waits for the device. */
static enum status fetch_facts(struct optimizer *optimizer, const float *sum, struct stream *stream)
{
    const struct vector_table *vector = &optimizer->table->vector;
    enum status st =
        vector->copy(optimizer->backend, optimizer->scalars, sum + optimizer->layout.loss_at,
                     SUM_SCALARS * sizeof(float), stream);
    return st == ST_OK ? optimizer_fetch_squares(optimizer, sum, stream) : st;
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
    optimizer_order_squares(optimizer);
    double square = tree_sum(optimizer->in_order, optimizer->norm_count);
    struct optimizer_report report = { .loss = (double)scalars[SUM_LOSS] / targets,
                                       .grad_norm = sqrt(square) / targets / step->loss_scale,
                                       .targets = targets };
    report.overflow = step->may_overflow && isfinite(report.loss) && !isfinite(square);
    report.spike = !report.overflow && step->loss_most > 0 && report.loss > step->loss_most;
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

typedef enum status (*update_fn)(struct optimizer *optimizer, const struct optimizer_part *part,
                                 const struct optimizer_call *call, struct stream *stream);

static enum status update_each(struct optimizer *optimizer, const struct optimizer_call *call,
                               struct stream *stream, update_fn update)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < optimizer->part_count; i++)
        st = update(optimizer, &optimizer->parts[i], call, stream);
    return st;
}

static enum status update_by_kind(struct optimizer *optimizer, const struct optimizer_call *call,
                                  struct stream *stream)
{
    switch (optimizer->options.kind) {
    case JOBSPEC_OPTIMIZER_SGD:
        return update_each(optimizer, call, stream, optimizer_sgd);
    case JOBSPEC_OPTIMIZER_ADAMW:
        return update_each(optimizer, call, stream, optimizer_adamw);
    case JOBSPEC_OPTIMIZER_LION:
        return update_each(optimizer, call, stream, optimizer_lion);
    case JOBSPEC_OPTIMIZER_LAMB:
        return optimizer_lamb(optimizer, call, stream);
    case JOBSPEC_OPTIMIZER_MUON:
        return optimizer_muon(optimizer, call, stream);
    case JOBSPEC_OPTIMIZER_NONE:
        break;
    }
    CHECK("an optimizer" == NULL);
    return ST_INVALID;
}

/* ema += (1 - decay)·(param - ema), as plain gradient descent with decay 1: see update_stats. */
static enum status update_ema(struct optimizer *optimizer, struct stream *stream)
{
    const struct sgd_args args = { .lr = (float)(1.0 - optimizer->options.ema),
                                   .weight_decay = 1,
                                   .grad_scale = -1 };
    float *ema = optimizer_ema(optimizer);
    enum status st = ST_OK;
    for (uint32_t i = 0; ema != NULL && st == ST_OK && i < optimizer->part_count; i++) {
        const struct optimizer_part *part = &optimizer->parts[i];
        st = optimizer->table->vector.sgd(optimizer->backend, ema + part->first, NULL,
                                          optimizer->params + part->first, part->count, &args,
                                          stream);
    }
    return st;
}

static enum status update_params(struct optimizer *optimizer, const struct optimizer_call *call,
                                 struct stream *stream)
{
    enum status st = update_by_kind(optimizer, call, stream);
    if (st == ST_OK)
        st = update_ema(optimizer, stream);
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
    if (st != ST_OK || report.overflow || report.spike)
        return st;
    out_report->began = true;
    out_report->copied = optimizer_copies(optimizer) != NULL;
    const struct optimizer_call call = { step, sum, grad_scale(optimizer, step, &report) };
    st = update_params(optimizer, &call, stream);
    if (st == ST_OK)
        st = update_stats(optimizer, sum, (double)optimizer->scalars[SUM_MICRO], stream);
    if (st != ST_OK || step->peers == NULL)
        return st;
    st = step->peers->gather_params(step->peers->arg, optimizer->params);
    return st == ST_OK ? optimizer->table->stream_sync(optimizer->backend, stream) : st;
}
