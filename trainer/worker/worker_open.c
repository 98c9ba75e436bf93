/* A worker opened: its data, its model, the memory that it takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/limits.h"
#include "trainer/worker/build.h"
#include "trainer/worker/memory_need.h"
#include "trainer/worker/worker.h"
#include "trainer/worker/worker_internal.h"

/* ---- data ---- */

static void *load_main(void *arg)
{
    struct worker_loader *loader = arg;
    loader->st = dataset_load(loader->dataset, &loader->reason);
    return NULL;
}

static enum status open_split(struct worker *w, enum dataset_split split, struct reason *reason)
{
    const struct jobspec *job = w->options.job;
    bool train = split == DATASET_TRAIN;
    struct worker_loader *loader = train ? &w->train : &w->eval;
    const struct jobspec_dataset *source = train ? &job->data.train : &job->data.eval;
    if (source->format == JOBSPEC_FORMAT_NONE)
        return ST_OK;
    struct build_options options = { .job = job,
                                     .io = w->options.io,
                                     .split = split,
                                     .sums = w->options.sums,
                                     .progress = progress_tick,
                                     .progress_arg = w->options.progress };
    enum status st = build_dataset(&options, &loader->dataset, reason);
    if (st != ST_OK)
        return worker_data_status(w, st);
    if (pthread_create(&loader->thread, NULL, load_main, loader) != 0)
        return worker_fail(ST_NO_MEMORY, "thread for loading data", reason);
    loader->running = true;
    return ST_OK;
}

static enum status check_eval_shape(const struct worker *w, struct reason *reason)
{
    if (w->eval.dataset == NULL)
        return ST_OK;
    const struct dataset_shape *a = &w->train.dataset->shape;
    const struct dataset_shape *b = &w->eval.dataset->shape;
    if (a->channels == b->channels && a->height == b->height && a->width == b->width)
        return ST_OK;
    reason_set(reason,
               "data.eval: images of %lldx%lldx%lld, but those of data.train are "
               "%lldx%lldx%lld; both must have one size",
               (long long)b->channels, (long long)b->height, (long long)b->width,
               (long long)a->channels, (long long)a->height, (long long)a->width);
    return ST_CONFIG;
}

/* ---- the loss scale ---- */

/* Allocates the loss scale. Without scaling nothing is allocated, and kernels multiply by no
 * factor. */
static enum status scaling_open(struct worker *w)
{
    const struct scaler_options *options = &w->settings.scaler;
    w->scaler = scaler_start(options);
    if (!options->dynamic && options->scale == 1)
        return ST_OK;
    void *scale = NULL, *staged = NULL;
    enum status st = w->device.table->alloc(w->device.backend, sizeof(float), &scale);
    w->loss_scale = scale;
    if (st == ST_OK)
        st = w->device.table->alloc_host(w->device.backend, sizeof(float), &staged);
    w->loss_scale_staged = staged;
    return st;
}

static void scaling_close(struct worker *w)
{
    if (w->loss_scale != NULL)
        w->device.table->free(w->device.backend, w->loss_scale);
    if (w->loss_scale_staged != NULL)
        w->device.table->free_host(w->device.backend, w->loss_scale_staged);
}

enum status worker_scale(struct worker *worker, bool overflow)
{
    struct worker *w = worker;
    struct scaler next = w->scaler;
    enum status st = scaler_next(&w->settings.scaler, w->scaler, overflow, &next);
    if (st != ST_OK)
        return st;
    const bool changed = next.scale != w->scaler.scale;
    w->scaler = next;
    return changed ? worker_write_scale(w) : ST_OK;
}

/* ---- memory ---- */

static bool node_computed(void *arg, int node, bool backward)
{
    (void)node;
    (void)backward;
    progress_tick(arg);
    return !progress_stopped(arg);
}

/* Counts an enqueued node. It never ends the pass, since later nodes may be about to be
 * recorded. */
static bool node_enqueued(void *arg, int node, bool backward)
{
    (void)node;
    (void)backward;
    progress_tick(arg);
    return true;
}

static struct plan_options plan_options_of(struct worker *w, uint32_t chunk)
{
    const bool host = w->device.table->host_memory;
    const struct stage *s = w->stage;
    const uint32_t part = s != NULL ? stage_part(s, chunk) : 0;
    return (struct plan_options){ .begin = s != NULL ? (int)s->node_begin[part] : 0,
                                  .end = s != NULL ? (int)s->node_begin[part + 1] : 0,
                                  .stashes = s != NULL ? (int)s->row->stashes : 0,
                                  .table = w->device.table,
                                  .backend = w->device.backend,
                                  .stream = w->device.compute,
                                  .batch = w->settings.micro_batch,
                                  .training = true,
                                  .split = s != NULL && pipeline_row_splits(s->row),
                                  .math = w->settings.math,
                                  .amp = w->settings.amp,
                                  .recompute = w->settings.recompute,
                                  .graphs = !host,
                                  .bucket_begin = w->bucket_begin,
                                  .bucket_count = w->bucket_count,
                                  .progress = host ? node_computed : node_enqueued,
                                  .progress_arg = w->options.progress };
}

/* Managed memory may be more than the card has, but then it is slow, and the card's other jobs
 * suffer. */
static enum status check_managed(struct worker *w, struct reason *reason)
{
    const struct memory_need_options options = worker_memory_options(w);
    struct memory_need need;
    uint64_t available = 0;
    if (w->options.job->workers.memory != JOBSPEC_MEMORY_MANAGED ||
        device_free_bytes(&w->device, &available) != ST_OK)
        return ST_OK;
    enum status st = memory_need_measure(&options, w->settings.micro_batch, &need);
    if (st != ST_OK)
        return worker_fail_device(w, st, "preparing the model", reason);
    if (memory_need_total(&need) <= available)
        return ST_OK;
    char parts[256];
    memory_need_print(&need, parts, sizeof(parts));
    reason_set(reason,
               "workers.memory: managed memory is held to the %.0f MiB that the device has "
               "free, and this job needs more (%s); make train.micro_batch smaller",
               (double)available / (1024.0 * 1024.0), parts);
    return ST_CONFIG;
}

/* `micro_batch: auto`. What was found is a pin: the job keeps it. */
static enum status fit_micro_batch(struct worker *w, struct reason *reason)
{
    if (w->settings.micro_batch > 0)
        return ST_OK;
    const struct memory_need_options options = worker_memory_options(w);
    struct memory_need need;
    uint64_t total = 0;
    enum status st = device_total_bytes(&w->device, &total);
    if (st != ST_OK)
        return worker_fail(st, "train.micro_batch: auto: the device's memory", reason);
    const uint32_t lane = w->settings.lane_size;
    st = memory_need_fit(&options, lane, total, &w->settings.micro_batch, &need);
    if (st == ST_NO_MEMORY) {
        char parts[256];
        memory_need_print(&need, parts, sizeof(parts));
        reason_set(reason,
                   "train.micro_batch: auto: not even one sample fits into the device's %.0f "
                   "MiB (%s); make the model smaller",
                   (double)total / (1024.0 * 1024.0), parts);
        return ST_CONFIG;
    }
    if (st != ST_OK)
        return worker_fail_device(w, st, "preparing the model", reason);
    w->settings.accumulate = lane / w->settings.micro_batch;
    return ST_OK;
}

/* ---- model ---- */

static enum status cut_buckets(struct worker *w, struct reason *reason)
{
    const struct ownership_options options = { .tape = w->tape,
                                               .device = &w->device,
                                               .progress = w->options.progress,
                                               .owns = w->options.job->parallel.zero > 0 &&
                                                       !worker_is_staged(w),
                                               .timeout_ms = WORKER_COMM_TIMEOUT_MS };
    enum status st = ownership_open(&options, &w->ownership);
    if (st == ST_OK)
        st = ownership_cut(&w->ownership, w->options.rank, w->options.size);
    w->layout = lane_layout(w->tape);
    w->bucket_begin = w->ownership.bucket_begin;
    w->bucket_count = w->ownership.buckets.count;
    return st == ST_OK ? ST_OK : worker_fail(st, "buckets", reason);
}

static enum pipeline_schedule schedule_of(const struct jobspec *job)
{
    switch (job->parallel.schedule) {
    case JOBSPEC_PIPELINE_GPIPE:
        return PIPELINE_GPIPE;
    case JOBSPEC_PIPELINE_INTERLEAVED:
        return PIPELINE_INTERLEAVED;
    case JOBSPEC_PIPELINE_ZB_H1:
        return PIPELINE_ZB_H1;
    case JOBSPEC_PIPELINE_1F1B:
    case JOBSPEC_PIPELINE_NONE:
        break;
    }
    return PIPELINE_1F1B;
}

static void note_flops(struct worker *w, const struct plan *whole)
{
    const struct plan_sizes *sizes = plan_sizes(whole);
    w->micro_flops = sizes->flops_forward + sizes->flops_backward;
}

/* Measures the nodes' costs with a plan without memory. cost: [nodes] */
static enum status measure_costs(struct worker *w, double *cost)
{
    struct plan_options options = plan_options_of(w, 0);
    struct plan *plan = NULL;
    options.stream = NULL;
    options.graphs = false;
    enum status st = plan_new(w->tape, &options, &plan);
    for (int n = 0; st == ST_OK && n < w->tape->node_count; n++)
        cost[n] = plan_cost(plan, n);
    if (st == ST_OK)
        note_flops(w, plan);
    plan_free(plan);
    return st;
}

enum status worker_open_stage(struct worker *w, struct reason *reason)
{
    if (!worker_is_staged(w))
        return ST_OK;
    auto_free double *cost = calloc((size_t)w->tape->node_count, sizeof(*cost));
    const struct stage_options options = { .tape = w->tape,
                                           .device = &w->device,
                                           .progress = w->options.progress,
                                           .cost = cost,
                                           .schedule = schedule_of(w->options.job),
                                           .accumulate = w->settings.accumulate,
                                           .lanes = w->settings.lanes,
                                           .owns = w->options.job->parallel.zero > 0,
                                           .timeout_ms = WORKER_COMM_TIMEOUT_MS,
                                           .plan = w->options.stages,
                                           .rank = w->options.rank,
                                           .shares = w->options.shares };
    if (cost == NULL)
        return worker_fail(ST_NO_MEMORY, "the stage", reason);
    enum status st = measure_costs(w, cost);
    if (st != ST_OK)
        return worker_fail_device(w, st, "preparing the model", reason);
    st = stage_open(&options, &w->stage, reason);
    if (st != ST_OK)
        return st == ST_NO_MEMORY ? worker_fail(st, "the stage", reason) : st;
    w->bucket_begin = w->stage->bucket_begin;
    w->bucket_count = w->stage->bucket_count;
    return ST_OK;
}

enum status worker_open_stage_run(struct worker *w)
{
    if (w->stage == NULL)
        return ST_OK;
    const struct stage_run_options options = { .stage = w->stage,
                                               .plans = w->plans,
                                               .params = optimizer_params(w->optimizer),
                                               .stats = optimizer_stats(w->optimizer),
                                               .loss_scale = w->loss_scale,
                                               .batch = w->settings.micro_batch };
    enum status st = stage_hold(w->stage, w->optimizer);
    w->held = &w->stage->held;
    w->share = &w->stage->share;
    return st == ST_OK ? stage_run_open(&options, &w->stage_run) : st;
}

static struct optimizer_holding holding_of(const struct worker *w)
{
    if (w->stage != NULL)
        return stage_holding(w->stage);
    return (struct optimizer_holding){ .owners = ownership_owners(&w->ownership) };
}

static enum status arena_of(struct worker *w, const struct plan_options *options, size_t *most)
{
    struct plan_options looks = *options;
    struct plan *plan = NULL;
    looks.stream = NULL;
    looks.graphs = false;
    enum status st = plan_new(w->tape, &looks, &plan);
    if (st == ST_OK && plan_sizes(plan)->arena_bytes > *most)
        *most = plan_sizes(plan)->arena_bytes;
    plan_free(plan);
    return st;
}

/* Returns the bytes of a stash that each chunk's plans may use. */
static enum status measure_stash(struct worker *w, size_t *out)
{
    enum status st = ST_OK;
    *out = 0;
    for (uint32_t c = 0; st == ST_OK && w->plan_count > 1 && c < w->plan_count; c++) {
        struct plan_options options = plan_options_of(w, c);
        st = arena_of(w, &options, out);
        options.training = false;
        if (st == ST_OK && w->eval.dataset != NULL)
            st = arena_of(w, &options, out);
    }
    return st;
}

enum status worker_open_plans(struct worker *w)
{
    size_t stash_bytes = 0;
    w->plan_count = w->stage != NULL ? stage_chunks(w->stage) : 1;
    enum status st = measure_stash(w, &stash_bytes);
    for (uint32_t c = 0; st == ST_OK && c < w->plan_count; c++) {
        struct plan_options options = plan_options_of(w, c);
        options.stash_bytes = stash_bytes;
        options.share = c > 0 ? w->plans[0] : NULL;
        st = plan_new(w->tape, &options, &w->plans[c]);
        options.training = false;
        options.share = w->plans[0];
        if (st == ST_OK && w->eval.dataset != NULL)
            st = plan_new(w->tape, &options, &w->eval_plans[c]);
    }
    if (st == ST_OK && w->stage == NULL)
        note_flops(w, w->plans[0]);
    return st;
}

/* Frees the plans; those whose arena others share come last. */
void worker_close_plans(struct worker *w)
{
    for (uint32_t c = STAGE_CHUNKS_MAX; c-- > 0;) {
        plan_free(w->eval_plans[c]);
        plan_free(w->plans[c]);
        w->plans[c] = w->eval_plans[c] = NULL;
    }
}

float *worker_evaluated(const struct worker *worker)
{
    return worker->options.job->eval_ema ? optimizer_ema(worker->optimizer)
                                         : optimizer_params(worker->optimizer);
}

enum status worker_refresh(struct worker *worker, enum worker_refreshed what)
{
    const bool evaluates = what == REFRESH_EVALUATION;
    const float *params =
        evaluates ? worker_evaluated(worker) : optimizer_params(worker->optimizer);
    struct plan *const *plans = evaluates ? worker->eval_plans : worker->plans;
    enum status st = ST_OK;
    for (uint32_t c = 0; st == ST_OK && c < worker->plan_count; c++) {
        st = what == REFRESH_REST ? plan_refresh_rest(plans[c], params)
                                  : plan_refresh(plans[c], params);
    }
    return st;
}

static enum status prepare_model(struct worker *w, struct reason *reason)
{
    enum status st = worker_open_plans(w);
    if (st == ST_OK) {
        const struct optimizer_holding holding = holding_of(w);
        st = optimizer_new(&w->settings.optimizer, w->tape, &holding, w->device.table,
                           w->device.backend, &w->optimizer);
        ownership_note_held(&w->ownership);
    }
    /* The plans of a pipeline's stages may be made anew, and others own parts of what they read. */
    if (st == ST_OK && w->stage == NULL)
        st = optimizer_keep_copies(w->optimizer, w->plans[0]);
    if (st == ST_OK)
        st = scaling_open(w);
    if (st == ST_OK)
        st = worker_open_stage_run(w);
    if (st == ST_OK && w->settings.audit_every > 0) {
        st =
            lane_sums_open(&w->device, w->bucket_begin, w->bucket_count, w->layout.count, &w->sums);
    }
    if (st == ST_OK)
        st = lane_clock_open(&w->clock, &w->device);
    if (st == ST_NO_MEMORY)
        return worker_out_of_memory(w, "the model", reason);
    return st == ST_OK ? ST_OK : worker_fail_device(w, st, "preparing the model", reason);
}

static enum status open_worker_device(struct worker *w, struct reason *reason)
{
    const struct device_options options = { .job = w->options.job,
                                            .table = w->options.table,
                                            .comm = w->options.comm,
                                            .choices = w->options.choices };
    return device_open(&options, &w->device, reason);
}

/* True if the state to start from is of the same model, or nobody knows of which. */
static bool is_known_model(const struct worker *w)
{
    static const char key[] = "\"model\":{\"library\":"; /* a processor has a model, too */
    const char *known = w->options.known != NULL ? strstr(w->options.known, key) : NULL;
    if (w->model_pins[0] == '\0' || known == NULL)
        return true;
    return strncmp(strchr(known, '{'), w->model_pins, strlen(w->model_pins)) == 0;
}

static enum status open_model(struct worker *w, struct reason *reason)
{
    const struct build_options options = { .job = w->options.job,
                                           .progress = progress_tick,
                                           .progress_arg = w->options.progress };
    const char *library = w->options.job->model.library;
    struct built_model model;
    const enum status st = build_model(&options, w->train.dataset, &model, reason);
    free(model.graph);
    w->tape = model.tape;
    memcpy(w->model_pins, model.pins, sizeof(w->model_pins));
    if (st == ST_OK && !is_known_model(w)) {
        reason_set(reason, "model.library: %s: it is not the library that the job began with",
                   library);
        return ST_CHANGED;
    }
    if (st != ST_OK && library[0] != '\0' && access(library, R_OK) != 0)
        return worker_note_of_node(w, worker_data_status(w, st)); /* another node may have it */
    return library[0] != '\0' ? worker_data_status(w, st) : st;
}

enum status worker_open(const struct worker_options *options, struct worker **out,
                        struct reason *reason)
{
    struct worker *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return worker_fail(ST_NO_MEMORY, "worker", reason);
    w->options = *options;
    enum status st = worker_cut_lanes(w, reason);
    if (st == ST_OK)
        st = worker_note_of_node(w, open_worker_device(w, reason)); /* first: it takes no time */
    if (st == ST_OK)
        st = worker_note_of_node(w, open_split(w, DATASET_TRAIN, reason));
    if (st == ST_OK)
        st = worker_note_of_node(w, open_split(w, DATASET_EVAL, reason));
    if (st == ST_OK)
        st = check_eval_shape(w, reason);
    if (st == ST_OK) {
        st = settings_derive(options->job, w->train.dataset->samples, &w->settings, reason);
    }
    if (st == ST_OK && history_is_kept(&w->settings.history)) {
        w->noted = calloc(CKPT_SKIPS_MAX, sizeof(*w->noted));
        st = w->noted != NULL ? ST_OK : ST_NO_MEMORY;
    }
    if (st == ST_OK)
        st = open_model(w, reason);
    if (st == ST_OK)
        st = cut_buckets(w, reason);
    if (st == ST_OK)
        st = fit_micro_batch(w, reason);
    if (st == ST_OK)
        st = worker_open_stage(w, reason);
    if (st == ST_OK)
        st = check_managed(w, reason); /* of its stage, in a pipeline */
    if (st == ST_OK)
        st = prepare_model(w, reason);
    if (st != ST_OK) {
        worker_close(w);
        return st;
    }
    w->options.choices = w->options.known = NULL;
    *out = w;
    return ST_OK;
}

static void close_loader(const struct worker *w, struct worker_loader *loader)
{
    struct reason ignored;
    (void)!worker_join_loader(w, loader, &ignored);
    dataset_close(loader->dataset);
}

void worker_close(struct worker *worker)
{
    struct worker *w = worker;
    if (w == NULL)
        return;
    feed_close(w->batches);
    feed_close(w->eval_batches);
    close_loader(w, &w->train);
    close_loader(w, &w->eval);
    if (w->reducer != NULL)
        reducer_close(w->reducer);
    worker_close_comms(w);
    stage_run_close(w->stage_run);
    staging_close(w->staging);
    lane_sums_close(w->sums);
    lane_clock_close(&w->clock, &w->device);
    scaling_close(w);
    gather_close(&w->eval_results, &w->device);
    gather_close(&w->agreement, &w->device);
    ownership_close(&w->ownership);
    stage_close(w->stage);
    optimizer_free(w->optimizer);
    worker_close_plans(w);
    tape_free(w->tape);
    device_close(&w->device);
    free(w->eval_losses);
    free(w->skip);
    free(w->noted);
    free(w);
}
