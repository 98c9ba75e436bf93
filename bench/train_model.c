#include "bench/train_model.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/exact.h"
#include "common/rng.h"
#include "kernels/backend.h"
#include "trainer/init.h"
#include "trainer/models/models.h"
#include "trainer/optimizer.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/plan.h"

#define SIDE          28
#define CLASSES       10
#define BUCKET_WANTED ((size_t)1 << 20)

struct train_model {
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    struct tape *tape;
    struct plan *plan;
    struct optimizer *optimizer;
    struct exact *exact;
    size_t bucket_begin[LANE_BUCKETS_MAX];
    size_t bucket_count, bucket_next;
    int lanes;
    int64_t lane_size;
    float *images;
    int32_t *labels;
    uint64_t update;
};

static void must(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    (void)fprintf(stderr, "train: %s: %s\n", what, status_string(st));
    exit(1);
}

static void open_backend(struct train_model *model)
{
    model->table = backend_cpu();
    struct backend_options one_thread = { .threads = 1 };
    must(model->table->open(&one_thread, &model->backend), "backend");
    must(model->table->stream_new(model->backend, &model->stream), "stream");
}

static void open_model(struct train_model *model, const char *arch)
{
    struct model_options options = { .arch = arch,
                                     .channels = 1,
                                     .height = SIDE,
                                     .width = SIDE,
                                     .classes = CLASSES,
                                     .hidden = 256 };
    must(model_build(&options, &model->tape), arch);
    struct plan_options plan = { .table = model->table,
                                 .backend = model->backend,
                                 .stream = model->stream,
                                 .batch = model->lane_size,
                                 .training = true };
    must(plan_new(model->tape, &plan, &model->plan), "plan");
    struct optimizer_options sgd = { .kind = OPTIMIZER_SGD,
                                     .momentum = 0.9f,
                                     .weight_decay = 5e-4f };
    must(optimizer_new(&sgd, model->tape, model->table, model->backend, &model->optimizer),
         "optimizer");
    init_params(model->tape, 1, optimizer_params(model->optimizer));
    init_stats(model->tape, optimizer_stats(model->optimizer));
    must(plan_refresh(model->plan, optimizer_params(model->optimizer)), "refresh");
}

static void open_exact(struct train_model *model)
{
    struct lane_layout layout = lane_layout(model->tape);
    must(lane_buckets(&layout, BUCKET_WANTED, model->bucket_begin, LANE_BUCKETS_MAX,
                      &model->bucket_count),
         "buckets");
    uint32_t share = (uint32_t)model->lanes;
    struct exact_options options = { .size = 1,
                                     .shares = &share,
                                     .count = layout.count,
                                     .bucket_begin = model->bucket_begin,
                                     .bucket_count = model->bucket_count,
                                     .timeout_ms = 1000 };
    must(exact_open(&options, &model->exact), "reduction");
}

static void fill_batch(struct train_model *model)
{
    size_t batch = (size_t)model->lane_size * (size_t)model->lanes;
    model->images = malloc(batch * SIDE * SIDE * sizeof *model->images);
    model->labels = malloc(batch * sizeof *model->labels);
    if (model->images == NULL || model->labels == NULL)
        must(ST_NO_MEMORY, "batch");
    uint64_t key = rng_key(1, RNG_SYNTHETIC);
    for (size_t i = 0; i < batch * SIDE * SIDE; i++)
        model->images[i] = rng_uniform(rng_words(key, (uint32_t)i, 0, 0, 0).word[0]) - 0.5f;
    for (size_t i = 0; i < batch; i++) {
        model->labels[i] =
            (int32_t)rng_below(rng_words(key, (uint32_t)i, 1, 0, 0).word[0], CLASSES);
    }
}

struct train_model *train_model_new(const char *arch, int64_t batch, int lanes)
{
    struct train_model *model = calloc(1, sizeof *model);
    if (model == NULL)
        must(ST_NO_MEMORY, arch);
    if (batch % lanes != 0)
        must(ST_INVALID, "lanes must divide the batch");
    model->lanes = lanes;
    model->lane_size = batch / lanes;
    open_backend(model);
    open_model(model, arch);
    open_exact(model);
    fill_batch(model);
    return model;
}

void train_model_free(struct train_model *model)
{
    exact_close(model->exact);
    plan_free(model->plan);
    optimizer_free(model->optimizer);
    tape_free(model->tape);
    model->table->stream_free(model->backend, model->stream);
    model->table->close(model->backend);
    free(model->images);
    free(model->labels);
    free(model);
}

static void on_ready(void *arg, size_t first, size_t count)
{
    struct train_model *model = arg;
    (void)count;
    while (model->bucket_next > 0 && model->bucket_begin[model->bucket_next - 1] >= first)
        exact_ready(model->exact, --model->bucket_next);
}

void train_model_step(struct train_model *model)
{
    exact_begin(model->exact);
    model->bucket_next = model->bucket_count;
    for (int lane = 0; lane < model->lanes; lane++) {
        size_t first = (size_t)lane * (size_t)model->lane_size;
        struct plan_call call = { .inputs = { model->images + first * SIDE * SIDE,
                                              model->labels + first },
                                  .params = optimizer_params(model->optimizer),
                                  .lane = exact_lane(model->exact) };
        bool last = lane == model->lanes - 1;
        must(plan_forward(model->plan, &call), "forward");
        must(plan_backward(model->plan, &call, last ? on_ready : NULL, model), "backward");
        if (!last)
            must(exact_lane_done(model->exact), "sum");
    }
    int64_t exposed_ns;
    must(exact_wait(model->exact, &exposed_ns), "sum");
    struct optimizer_report report;
    struct optimizer_step of = { .lr = 0.01, .update = ++model->update, .loss_scale = 1 };
    must(optimizer_update(model->optimizer, exact_sum(model->exact), &of, model->stream, &report),
         "update");
    must(plan_refresh(model->plan, optimizer_params(model->optimizer)), "refresh");
}
