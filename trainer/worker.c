#include "trainer/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "trainer/build.h"

/* A bucket is large enough that its latency hides, small enough that several overlap the backward
 * pass of a model of some million parameters. */
#define BUCKET_ELEMENTS ((size_t)4 * 1024 * 1024)
#define SKIP_MAX        4096

static enum status fail(enum status st, const char *cause, char *message, size_t capacity)
{
    (void)snprintf(message, capacity, "%s: %s", cause, status_string(st));
    return st;
}

/* ---- data ---- */

static void *load(void *arg)
{
    struct worker_loader *loader = arg;
    loader->st = dataset_load(loader->dataset, loader->message, sizeof(loader->message));
    return NULL;
}

static enum status open_data(struct worker *w, enum dataset_split split, char *message,
                             size_t capacity)
{
    const struct job *job = w->options.job;
    bool train = split == DATASET_TRAIN;
    struct worker_loader *loader = train ? &w->train : &w->eval;
    const struct job_dataset *source = train ? &job->data.train : &job->data.eval;
    if (source->format[0] == '\0')
        return ST_OK;
    struct build_options options = { .job = job,
                                     .io = w->options.io,
                                     .split = split,
                                     .progress = marks_tick,
                                     .progress_arg = w->options.marks };
    enum status st = build_dataset(&options, &loader->dataset, message, capacity);
    if (st != ST_OK)
        return st;
    if (pthread_create(&loader->thread, NULL, load, loader) != 0)
        return fail(ST_NO_MEMORY, "thread for loading data", message, capacity);
    loader->running = true;
    return ST_OK;
}

static enum status join_data(struct worker_loader *loader, char *message, size_t capacity)
{
    if (!loader->running)
        return ST_OK;
    (void)pthread_join(loader->thread, NULL);
    loader->running = false;
    if (loader->st != ST_OK)
        (void)snprintf(message, capacity, "%s", loader->message);
    return loader->st;
}

static enum status check_eval_shape(const struct worker *w, char *message, size_t capacity)
{
    if (w->eval.dataset == NULL)
        return ST_OK;
    const struct dataset_shape *a = &w->train.dataset->shape;
    const struct dataset_shape *b = &w->eval.dataset->shape;
    if (a->channels == b->channels && a->height == b->height && a->width == b->width)
        return ST_OK;
    (void)snprintf(message, capacity,
                   "data.eval: images of %lldx%lldx%lld, but those of data.train are "
                   "%lldx%lldx%lld; both must have one size",
                   (long long)b->channels, (long long)b->height, (long long)b->width,
                   (long long)a->channels, (long long)a->height, (long long)a->width);
    return ST_CONFIG;
}

/* ---- model ---- */

static void node_done(void *arg, int node, bool backward)
{
    (void)node;
    (void)backward;
    marks_tick(arg);
}

static enum status prepare_model(struct worker *w, char *message, size_t capacity)
{
    const struct backend_table *table = w->table;
    struct backend_options backend = { .threads = (int)w->options.job->workers.threads };
    enum status st = table->open(&backend, &w->backend);
    if (st == ST_OK)
        st = table->stream_new(w->backend, &w->stream);
    if (st != ST_OK)
        return fail(st, "device", message, capacity);
    struct plan_options options = { .table = table,
                                    .backend = w->backend,
                                    .stream = w->stream,
                                    .batch = w->settings.micro_batch,
                                    .training = true,
                                    .math = w->settings.math,
                                    .amp = w->settings.amp,
                                    .progress = node_done,
                                    .progress_arg = w->options.marks };
    st = plan_new(w->tape, &options, &w->plan);
    if (st == ST_OK && w->eval.dataset != NULL) {
        options.training = false;
        options.share = w->plan;
        st = plan_new(w->tape, &options, &w->eval_plan);
    }
    if (st == ST_OK)
        st = optimizer_new(&w->settings.optimizer, w->tape, table, w->backend, &w->optimizer);
    return st == ST_OK ? ST_OK : fail(st, "preparing the model", message, capacity);
}

static enum status cut_lanes(struct worker *w, char *message, size_t capacity)
{
    const struct worker_options *o = &w->options;
    uint64_t lanes = 0;
    CHECK(o->size > 0);
    CHECK(o->rank < o->size);
    for (uint32_t r = 0; r < o->size; r++) {
        if (r == o->rank) {
            w->lane_first = (uint32_t)lanes;
            w->lane_count = o->shares[r];
        }
        if (o->shares[r] == 0)
            return fail(ST_INVALID, "the plan gives a rank no lane", message, capacity);
        lanes += o->shares[r];
    }
    if (lanes != (uint64_t)o->job->train.lanes)
        return fail(ST_INVALID, "the plan's shares are not the job's lanes", message, capacity);
    return ST_OK;
}

enum status worker_open(const struct worker_options *options, struct worker **out, char *message,
                        size_t capacity)
{
    struct worker *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return fail(ST_NO_MEMORY, "worker", message, capacity);
    w->options = *options;
    w->table = backend_cpu();
    enum status st = cut_lanes(w, message, capacity);
    if (st == ST_OK)
        st = open_data(w, DATASET_TRAIN, message, capacity);
    if (st == ST_OK)
        st = open_data(w, DATASET_EVAL, message, capacity);
    if (st == ST_OK)
        st = check_eval_shape(w, message, capacity);
    if (st == ST_OK) {
        st = settings_derive(options->job, w->train.dataset->samples, &w->settings, message,
                             capacity);
    }
    if (st == ST_OK)
        st = build_tape(options->job, w->train.dataset, &w->tape, message, capacity);
    if (st == ST_OK)
        st = prepare_model(w, message, capacity);
    if (st != ST_OK) {
        worker_close(w);
        return st;
    }
    w->layout = lane_layout(w->tape);
    *out = w;
    return ST_OK;
}

static void close_data(struct worker_loader *loader)
{
    char ignored[LIMIT_REASON];
    (void)join_data(loader, ignored, sizeof(ignored));
    dataset_close(loader->dataset);
}

void worker_close(struct worker *worker)
{
    struct worker *w = worker;
    if (w == NULL)
        return;
    prefetch_close(w->batches);
    prefetch_close(w->eval_batches);
    close_data(&w->train);
    close_data(&w->eval);
    if (w->exact != NULL)
        exact_close(w->exact);
    optimizer_free(w->optimizer);
    plan_free(w->eval_plan);
    plan_free(w->plan);
    tape_free(w->tape);
    if (w->stream != NULL)
        w->table->stream_free(w->backend, w->stream);
    if (w->backend != NULL)
        w->table->close(w->backend);
    free(w->bucket_begin);
    free(w->gathered);
    free(w->segments);
    free(w->eval_losses);
    free(w->skip);
    free(w);
}

/* ---- reduction ---- */

static enum status cut_buckets(struct worker *w)
{
    w->bucket_begin = calloc(LANE_BUCKETS_MAX, sizeof(*w->bucket_begin));
    if (w->bucket_begin == NULL)
        return ST_NO_MEMORY;
    return lane_buckets(&w->layout, BUCKET_ELEMENTS, w->bucket_begin, LANE_BUCKETS_MAX,
                        &w->bucket_count);
}

enum status worker_connect(struct worker *worker, const struct comm_table *table, struct comm *comm,
                           char *message, size_t capacity)
{
    struct worker *w = worker;
    CHECK(comm != NULL || w->options.size == 1);
    w->comm_table = table;
    w->comm = comm;
    enum status st = cut_buckets(w);
    struct exact_options options = { .table = comm == NULL ? NULL : table,
                                     .comm = comm,
                                     .rank = (int)w->options.rank,
                                     .size = (int)w->options.size,
                                     .shares = w->options.shares,
                                     .count = w->layout.count,
                                     .bucket_begin = w->bucket_begin,
                                     .bucket_count = w->bucket_count,
                                     .timeout_ms = WORKER_COMM_TIMEOUT_MS };
    if (st == ST_OK)
        st = exact_open(&options, &w->exact);
    return st == ST_OK ? ST_OK : fail(st, "the reduction", message, capacity);
}

/* ---- start ---- */

/* Room for the results of all batches, rank by rank in one array, so that one gather fills it. */
static enum status start_evaluation(struct worker *w, const struct prefetch_options *base)
{
    struct prefetch_options options = *base;
    options.evaluation = true;
    options.source.dataset = w->eval.dataset;
    w->eval_count = batch_eval_count(&options.source);
    uint32_t lanes = w->settings.lanes;
    w->gathered = calloc(w->eval_count, sizeof(*w->gathered));
    w->eval_losses = calloc(w->eval_count, sizeof(*w->eval_losses));
    w->segments = calloc(w->options.size, sizeof(*w->segments));
    if (w->gathered == NULL || w->eval_losses == NULL || w->segments == NULL)
        return ST_NO_MEMORY;
    uint64_t at = 0;
    uint64_t lane = 0;
    for (uint32_t r = 0; r < w->options.size; r++) {
        uint64_t count = 0;
        for (uint32_t i = 0; i < w->options.shares[r]; i++, lane++)
            count += w->eval_count / lanes + (lane < w->eval_count % lanes ? 1 : 0);
        w->segments[r].data = w->gathered + at;
        w->segments[r].size = count * sizeof(*w->gathered);
        at += count;
    }
    CHECK(at == w->eval_count);
    return prefetch_open(&options, &w->eval_batches);
}

enum status worker_start(struct worker *worker, uint64_t step, char *message, size_t capacity)
{
    struct worker *w = worker;
    enum status st = join_data(&w->train, message, capacity);
    if (st == ST_OK)
        st = join_data(&w->eval, message, capacity);
    if (st != ST_OK)
        return st;
    struct prefetch_options options = {
        .source = { .dataset = w->train.dataset,
                    .seed = w->settings.seed,
                    .lanes = w->settings.lanes,
                    .micro_batch = w->settings.micro_batch,
                    .accumulate = w->settings.accumulate,
                    .crop = w->options.job->data.crop,
                    .flip = w->options.job->data.flip },
        .lane_first = w->lane_first,
        .lane_count = w->lane_count,
    };
    st = prefetch_open(&options, &w->batches);
    if (st == ST_OK && w->eval.dataset != NULL)
        st = start_evaluation(w, &options);
    if (st == ST_OK)
        st = plan_refresh(w->plan, optimizer_params(w->optimizer));
    if (st != ST_OK)
        return fail(st, "starting", message, capacity);
    prefetch_start(w->batches, step);
    return ST_OK;
}

/* ---- skip list ---- */

enum status worker_skip(struct worker *worker, const uint64_t *steps, size_t count)
{
    struct worker *w = worker;
    for (size_t i = 0; i < count; i++) {
        if (worker_skips(w, steps[i]))
            continue;
        if (w->skip_count == SKIP_MAX)
            return ST_FULL;
        uint64_t *more = realloc(w->skip, (w->skip_count + 1) * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        w->skip = more;
        size_t at = worker_skipped(w, steps[i]);
        memmove(more + at + 1, more + at, (w->skip_count - at) * sizeof(*more));
        more[at] = steps[i];
        w->skip_count++;
    }
    return ST_OK;
}

bool worker_skips(const struct worker *worker, uint64_t step)
{
    size_t at = worker_skipped(worker, step);
    return at < worker->skip_count && worker->skip[at] == step;
}

size_t worker_skipped(const struct worker *worker, uint64_t step)
{
    size_t n = 0;
    while (n < worker->skip_count && worker->skip[n] < step)
        n++;
    return n;
}

enum status worker_pins(const struct worker *worker, struct buf *out)
{
    enum status st = buf_printf(out, "{");
    if (st == ST_OK)
        st = worker->table->pins(worker->backend, out);
    if (st == ST_OK)
        st = buf_append_text(out, ",\"implementations\":");
    if (st == ST_OK)
        st = plan_pins(worker->plan, out);
    if (st == ST_OK)
        st = buf_append_text(out, "}");
    return st;
}
