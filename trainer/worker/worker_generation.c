/* A worker from generation to generation: connected, started, let go of, put elsewhere. */
#include <stdlib.h>

#include "common/check.h"
#include "common/limits.h"
#include "trainer/worker/agree.h"
#include "trainer/worker/worker.h"
#include "trainer/worker/worker_internal.h"

/* ---- reduction ---- */

static enum status open_agreement(struct worker *w)
{
    size_t bytes[LIMIT_RANKS];
    for (uint32_t r = 0; r < w->options.size; r++)
        bytes[r] = sizeof(struct rank_words);
    return gather_open(&w->agreement, &w->device, bytes, w->options.size);
}

static struct reducer_options reducer_options_of(struct worker *w)
{
    struct comm *comm = w->group.size > 1 ? w->comms.group : NULL;
    return (struct reducer_options){
        .table = comm == NULL ? NULL : w->device.comm,
        .comm = comm,
        .rank = (int)w->group.rank,
        .size = (int)w->group.size,
        .shares = w->group.shares,
        .count = w->layout.count,
        .extents = w->stage != NULL ? w->stage->extents : NULL,
        .extent_count = w->stage != NULL ? w->stage->extent_count : 0,
        .bucket_begin = w->bucket_begin,
        .bucket_count = w->bucket_count,
        .borders = w->stage != NULL ? w->stage->borders : w->ownership.borders,
        .kept = w->stage != NULL ? w->stage->kept : w->ownership.buckets.kept,
        .timeout_ms = WORKER_COMM_TIMEOUT_MS,
        .watch = { progress_exchange, w->options.progress },
        .fast = worker_is_fast(w),
        .device = w->device.table,
        .backend = w->device.backend,
        .compute = w->device.compute,
        .communication = w->device.communication
    };
}

enum status worker_connect(struct worker *worker, const struct worker_comms *comms,
                           struct reason *reason)
{
    struct worker *w = worker;
    w->comms = comms != NULL ? *comms : (struct worker_comms){ NULL };
    w->comm = w->comms.world;
    const struct reducer_options options = reducer_options_of(w);
    enum status st = w->reducer != NULL ? reducer_reconnect(w->reducer, &options)
                                        : reducer_open(&options, &w->reducer);
    ownership_connect(&w->ownership, w->comm, w->reducer);
    if (w->stage != NULL) {
        stage_connect(w->stage, w->comm, w->comms.group, w->reducer);
        stage_run_connect(w->stage_run, w->comms.pipe);
    }
    if (st == ST_OK && w->comm != NULL)
        st = open_agreement(w);
    if (st == ST_NO_MEMORY)
        return worker_out_of_memory(w, "the gradient copies of the reduction", reason);
    return st == ST_OK ? ST_OK : worker_fail_device(w, st, "the reduction", reason);
}

bool worker_is_neighbour(const struct worker *worker, uint32_t rank)
{
    const struct stage *s = worker->stage;
    if (s == NULL)
        return false;
    const uint32_t other = layout_box(&s->layout, rank).stage, own = s->box.stage;
    const uint32_t last = s->layout.stage_count - 1;
    const bool around = stage_chunks(s) > 1; /* from the last stage a value goes to the first */
    return other + 1 == own || own + 1 == other ||
           (around && ((other == 0 && own == last) || (own == 0 && other == last)));
}

struct audit_rule worker_audits(const struct worker *worker)
{
    return (struct audit_rule){ .every = worker->settings.audit_every,
                                .size = worker->group.size,
                                .shares = worker->group.shares,
                                .order = worker->order };
}

static struct prefetch_share share_of(const struct worker *w)
{
    return (struct prefetch_share){ .lanes = w->lanes,
                                    .lane_count = w->lane_count,
                                    .rank = w->group.rank,
                                    .audit = worker_audits(w) };
}

/* ---- from one generation to the next ---- */

void worker_disconnect(struct worker *worker)
{
    struct worker *w = worker;
    if (w->device.comm != NULL)
        worker_each_comm(w, w->device.comm->abort); /* nobody waits for its farewell */
    if (w->reducer != NULL)
        reducer_disconnect(w->reducer);
    worker_close_comms(w);
    ownership_connect(&w->ownership, NULL, NULL);
    if (w->stage != NULL)
        stage_connect(w->stage, NULL, NULL, NULL);
    gather_close(&w->agreement, &w->device);
}

/* Derives the settings anew, except those that the model was built with. */
static enum status settings_anew(struct worker *w, struct reason *reason)
{
    struct settings settings;
    enum status st = settings_derive(w->options.job, w->train.dataset->samples, &settings, reason);
    if (st != ST_OK)
        return st;
    settings.micro_batch = w->settings.micro_batch;
    settings.accumulate = w->settings.accumulate;
    w->settings = settings;
    return ST_OK;
}

/* Moves the feeds to the new share of the lanes, and closes what depends on this rank's share. */
static void move_feeds(struct worker *w)
{
    staging_close(w->staging);
    w->staging = NULL;
    gather_close(&w->eval_results, &w->device);
    const struct prefetch_share all = share_of(w);
    if (w->batches != NULL)
        feed_move(w->batches, &all);
    if (w->eval_batches != NULL)
        feed_move(w->eval_batches, &all);
}

enum status worker_regroup(struct worker *worker, uint32_t rank, uint32_t size,
                           const uint32_t *shares, struct reason *reason)
{
    struct worker *w = worker;
    CHECK(w->comm == NULL && w->stage == NULL);
    w->options.rank = rank;
    w->options.size = size;
    w->options.shares = shares;
    enum status st = worker_cut_lanes(w, reason);
    if (st == ST_OK)
        st = settings_anew(w, reason);
    if (st == ST_OK)
        st = ownership_cut(&w->ownership, w->options.rank, w->options.size);
    if (st != ST_OK)
        return st;
    move_feeds(w);
    return ST_OK;
}

/* Takes the buckets of the stage before if its nodes are the same, since a device knows them. Opens
 * the plans anew if another number of micro-batches may be in flight. */
static enum status take_stage(struct worker *w, struct stage *before, bool *out_same)
{
    *out_same = stage_is_same(w->stage, before) && !before->options.owns;
    if (!*out_same)
        return ST_OK;
    size_t *begin = w->stage->bucket_begin;
    w->stage->bucket_begin = before->bucket_begin;
    before->bucket_begin = begin;
    w->bucket_begin = w->stage->bucket_begin;
    stage_run_close(w->stage_run);
    w->stage_run = NULL;
    if (w->stage->row->stashes != before->row->stashes) {
        worker_close_plans(w);
        enum status st = worker_open_plans(w);
        if (st != ST_OK)
            return st;
    }
    return worker_open_stage_run(w);
}

enum status worker_restage(struct worker *worker, const struct stage_plan *stages, uint32_t rank,
                           uint32_t size, const uint32_t *shares, struct reason *reason)
{
    struct worker *w = worker;
    struct stage *before = w->stage;
    bool same = false;
    CHECK(w->comm == NULL);
    w->options.rank = rank;
    w->options.size = size;
    w->options.shares = shares;
    w->options.stages = stages;
    if (before == NULL || !worker_is_staged(w))
        return ST_NOT_FOUND;
    enum status st = worker_cut_lanes(w, reason);
    if (st == ST_OK)
        st = settings_anew(w, reason);
    if (st != ST_OK)
        return st;
    w->stage = NULL;
    st = worker_open_stage(w, reason);
    if (st == ST_OK) {
        st = take_stage(w, before, &same);
        st = st == ST_OK ? st : worker_fail_device(w, st, "the stage", reason);
    }
    stage_close(before);
    if (st == ST_OK && !same)
        return ST_NOT_FOUND;
    if (st == ST_OK)
        move_feeds(w);
    return st;
}

enum status worker_hold(struct worker *worker, const struct optimizer_move *move)
{
    struct worker *w = worker;
    if (!w->ownership.options.owns)
        return ST_OK;
    enum status st = ownership_hold(&w->ownership, w->optimizer, move);
    w->held = ownership_held(&w->ownership);
    w->share = ownership_share(&w->ownership);
    return st;
}

bool worker_is_fast(const struct worker *worker)
{
    return worker->options.job->parallel.reduction == JOBSPEC_REDUCTION_FAST;
}

struct worker_group worker_last_group(const struct worker *worker)
{
    const struct stage *s = worker->stage;
    if (s == NULL)
        return worker->group;
    const uint32_t last = s->layout.stage_count - 1;
    return (struct worker_group){ .first = layout_first_rank(&s->layout, last),
                                  .size = s->stages[last].data_width,
                                  .shares = s->stages[last].shares };
}

const uint32_t *worker_last_order(const struct worker *worker)
{
    const struct stage *s = worker->stage;
    if (s == NULL)
        return worker->order;
    return s->orders + (size_t)(s->layout.stage_count - 1) * s->layout.lanes;
}

/* ---- start ---- */

static enum status start_evaluation(struct worker *w, const struct prefetch_options *base)
{
    struct prefetch_options options = *base;
    options.evaluation = true;
    options.source.dataset = w->eval.dataset;
    w->eval_count = batch_eval_count(&options.source);
    if (w->eval_losses == NULL)
        w->eval_losses = calloc(w->eval_count, sizeof(*w->eval_losses));
    if (w->eval_losses == NULL)
        return ST_NO_MEMORY;
    size_t bytes[LIMIT_RANKS];
    const uint32_t lanes = w->settings.lanes;
    const struct worker_group last = worker_last_group(w);
    const uint32_t *lane = worker_last_order(w);
    for (uint32_t r = 0; r < w->options.size; r++) {
        uint64_t count = 0; /* only the ranks that have the loss */
        const bool has = r >= last.first;
        for (uint32_t i = 0; has && i < last.shares[r - last.first]; i++, lane++)
            count += w->eval_count / lanes + (*lane < w->eval_count % lanes ? 1 : 0);
        bytes[r] = (size_t)count * sizeof(struct evaluation_batch);
    }
    enum status st = gather_open(&w->eval_results, &w->device, bytes, w->options.size);
    if (st != ST_OK || w->eval_batches != NULL)
        return st;
    return feed_open(&w->device, &options, &w->eval_batches);
}

enum status worker_warm(struct worker *worker, struct reason *reason)
{
    struct worker *w = worker;
    enum status st = worker_note_of_node(w, worker_join_loader(w, &w->train, reason));
    if (st == ST_OK)
        st = worker_note_of_node(w, worker_join_loader(w, &w->eval, reason));
    if (st != ST_OK)
        return st;
    struct prefetch_options options = {
        .source = { .dataset = w->train.dataset,
                    .seed = w->settings.seed,
                    .lanes = w->settings.lanes,
                    .micro_batch = w->settings.micro_batch,
                    .accumulate = w->settings.accumulate,
                    .crop = w->options.job->data.augment.crop,
                    .flip = w->options.job->data.augment.flip,
                    .mask_share = (float)w->options.job->model.mask_share },
        .share = share_of(w),
    };
    if (w->batches == NULL)
        st = feed_open(&w->device, &options, &w->batches);
    if (st == ST_OK && w->eval.dataset != NULL)
        st = start_evaluation(w, &options);
    if (st == ST_NO_MEMORY)
        return worker_out_of_memory(w, "the inputs", reason);
    return st == ST_OK ? ST_OK : worker_fail_device(w, st, "the inputs", reason);
}

enum status worker_start(struct worker *worker, uint64_t step, struct reason *reason)
{
    struct worker *w = worker;
    enum status st = worker_warm(w, reason);
    if (st != ST_OK)
        return st;
    st = worker_write_scale(w);
    if (st == ST_OK && w->stage != NULL)
        st = stage_spread(w->stage);
    if (st == ST_OK)
        st = worker_refresh(w, REFRESH_TRAINING);
    if (st != ST_OK)
        return worker_fail_device(w, st, "starting", reason);
    feed_start(w->batches, step);
    return ST_OK;
}
