#include "bench/train_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/exact.h"
#include "common/clock.h"
#include "common/rng.h"
#include "kernels/backend.h"
#include "trainer/init.h"
#include "trainer/models/models.h"
#include "trainer/optimizer.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/plan.h"

#define SIDE          28
#define SIDE_LARGE    224
#define CLASSES       10
#define CLASSES_LARGE 1000
#define PEAK_SIDE     2048
#define PEAK_TIMES    5
#define FILL          0x3c /* 0.0115 in float32 and in bfloat16 */
#define BUCKET_WANTED ((size_t)1 << 20)

struct train_model {
    struct train_model_options options;
    struct model_options shape;
    enum model_input input;
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    struct tape *tape;
    struct plan *plan;
    struct optimizer *optimizer;
    struct exact *exact;
    size_t bucket_begin[LANE_BUCKETS_MAX];
    size_t bucket_count, bucket_next;
    int64_t lane_size;
    size_t sample;  /* elements of the input */
    size_t targets; /* of a sample */
    float *images;
    int32_t *tokens, *labels;
    uint64_t update;
};

static void must(enum status st, const char *what)
{
    if (st == ST_OK)
        return;
    (void)fprintf(stderr, "train: %s: %s\n", what, status_string(st));
    exit(1);
}

static void *need(void *memory)
{
    if (memory == NULL)
        must(ST_NO_MEMORY, "batch");
    return memory;
}

static struct backend *open_backend(void)
{
    struct backend *backend = NULL;
    const struct backend_options one_thread = { .threads = 1 };
    must(backend_cpu()->open(&one_thread, &backend), "backend");
    return backend;
}

static void choose_shape(struct train_model *model)
{
    const char *arch = model->options.arch;
    const bool large = strcmp(arch, "resnet50") == 0 || strcmp(arch, "resnet152") == 0;
    must(model_input(arch, &model->input), arch);
    model->shape = (struct model_options){ .arch = arch,
                                           .channels = large ? 3 : 1,
                                           .height = large ? SIDE_LARGE : SIDE,
                                           .width = large ? SIDE_LARGE : SIDE,
                                           .classes = large ? CLASSES_LARGE : CLASSES,
                                           .hidden = 256 };
    if (model->input == MODEL_TOKENS) {
        model->shape = (struct model_options){ .arch = arch, .context = model->options.seq };
        must(model_size(&model->shape), arch);
    }
    model->sample =
        model->input == MODEL_TOKENS
            ? (size_t)model->options.seq
            : (size_t)(model->shape.channels * model->shape.height * model->shape.width);
    model->targets = model->input == MODEL_TOKENS ? (size_t)model->options.seq : 1;
}

static void open_model(struct train_model *model)
{
    must(model_build(&model->shape, &model->tape), model->options.arch);
    struct plan_options plan = { .table = model->table,
                                 .backend = model->backend,
                                 .stream = model->stream,
                                 .batch = model->lane_size,
                                 .training = true,
                                 .math = model->options.math };
    must(plan_new(model->tape, &plan, &model->plan), "plan");
    struct optimizer_options sgd = { .kind = OPTIMIZER_SGD,
                                     .momentum = 0.9f,
                                     .weight_decay = 5e-4f };
    struct optimizer_options adamw = {
        .kind = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.01f
    };
    must(optimizer_new(model->input == MODEL_TOKENS ? &adamw : &sgd, model->tape, model->table,
                       model->backend, &model->optimizer),
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
    uint32_t share = (uint32_t)model->options.lanes;
    struct exact_options options = { .size = 1,
                                     .shares = &share,
                                     .count = layout.count,
                                     .bucket_begin = model->bucket_begin,
                                     .bucket_count = model->bucket_count,
                                     .timeout_ms = 1000 };
    must(exact_open(&options, &model->exact), "reduction");
}

/* Word `stream` of element i. */
static uint32_t word_of(size_t i, uint32_t stream)
{
    return rng_words(rng_key(1, RNG_SYNTHETIC), (uint32_t)i, stream, 0, 0).word[0];
}

static void fill_batch(struct train_model *model)
{
    const size_t batch = (size_t)model->options.batch, inputs = batch * model->sample;
    const size_t labels = batch * model->targets;
    const bool text = model->input == MODEL_TOKENS;
    const uint32_t classes = (uint32_t)(text ? model->shape.vocab : model->shape.classes);
    model->labels = need(malloc(labels * sizeof *model->labels));
    for (size_t i = 0; i < labels; i++)
        model->labels[i] = (int32_t)rng_below(word_of(i, 1), classes);
    if (text) {
        model->tokens = need(malloc(inputs * sizeof *model->tokens));
        for (size_t i = 0; i < inputs; i++)
            model->tokens[i] = (int32_t)rng_below(word_of(i, 0), classes);
        return;
    }
    model->images = need(malloc(inputs * sizeof *model->images));
    for (size_t i = 0; i < inputs; i++)
        model->images[i] = rng_uniform(word_of(i, 0)) - 0.5f;
}

struct train_model *train_model_new(const struct train_model_options *options)
{
    struct train_model *model = need(calloc(1, sizeof *model));
    if (options->batch % options->lanes != 0)
        must(ST_INVALID, "lanes must divide the batch");
    model->options = *options;
    model->lane_size = options->batch / options->lanes;
    model->table = backend_cpu();
    model->backend = open_backend();
    must(model->table->stream_new(model->backend, &model->stream), "stream");
    choose_shape(model);
    open_model(model);
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
    free(model->tokens);
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
    for (int lane = 0; lane < model->options.lanes; lane++) {
        size_t first = (size_t)lane * (size_t)model->lane_size;
        const void *inputs = model->tokens == NULL
                                 ? (const void *)(model->images + first * model->sample)
                                 : (const void *)(model->tokens + first * model->sample);
        struct plan_call call = { .inputs = { inputs, model->labels + first * model->targets },
                                  .params = optimizer_params(model->optimizer),
                                  .lane = exact_lane(model->exact) };
        bool last = lane == model->options.lanes - 1;
        must(plan_forward(model->plan, &call), "forward");
        must(plan_backward(model->plan, &call, last ? on_ready : NULL, model), "backward");
        if (!last)
            must(exact_lane_done(model->exact), "sum");
    }
    int64_t exposed_ns;
    must(exact_wait(model->exact, &exposed_ns), "sum");
    struct optimizer_report report;
    struct optimizer_step of = { .lr = model->input == MODEL_TOKENS ? 1e-4 : 0.01,
                                 .update = ++model->update,
                                 .loss_scale = 1 };
    must(optimizer_update(model->optimizer, exact_sum(model->exact), &of, model->stream, &report),
         "update");
    must(plan_refresh(model->plan, optimizer_params(model->optimizer)), "refresh");
}

double train_model_flops(const struct train_model *model)
{
    const struct plan_sizes *sizes = plan_sizes(model->plan);
    return (double)model->options.lanes * (sizes->flops_forward + sizes->flops_backward);
}

size_t train_model_bytes(const struct train_model *model)
{
    const struct plan_sizes *sizes = plan_sizes(model->plan);
    return sizes->arena_bytes + sizes->cache_bytes;
}

static void *take(struct backend *backend, size_t bytes)
{
    void *memory = NULL;
    must(backend_cpu()->alloc(backend, bytes, &memory), "memory");
    return memory;
}

/* Seconds of the fastest of some runs of a product. */
static double run_product(struct backend *backend, struct kernel *kernel,
                          const struct op_buffers *buffers)
{
    double best = 0;
    for (int i = 0; i < PEAK_TIMES; i++) {
        const int64_t start = clock_mono_ns();
        must(backend_cpu()->op[OP_LINEAR].forward(backend, kernel, buffers, NULL), "product");
        const double seconds = 1e-9 * (double)(clock_mono_ns() - start);
        if (best == 0 || seconds < best)
            best = seconds;
    }
    return best;
}

double train_model_peak(enum math math)
{
    const struct backend_table *table = backend_cpu();
    const int64_t dims[2] = { PEAK_SIDE, PEAK_SIDE };
    const enum dtype dtype = math == MATH_BF16 ? DTYPE_BF16 : DTYPE_F32;
    const struct op_spec spec = { .op = OP_LINEAR,
                                  .in = { tensor_plain(dtype, 2, dims) },
                                  .in_count = 1,
                                  .out_dtype = dtype,
                                  .math = math,
                                  .attr = { .out = PEAK_SIDE } };
    struct backend *backend = open_backend();
    struct kernel *kernel = NULL;
    struct kernel_info info;
    must(table->op[OP_LINEAR].prepare(backend, &spec, &kernel, &info), "product");
    float *const weight = take(backend, sizeof(float) * PEAK_SIDE * PEAK_SIDE);
    void *const in = take(backend, spec.in[0].bytes), *const out = take(backend, info.out.bytes);
    void *const cache = take(backend, info.cache_bytes);
    void *const scratch = take(backend, info.scratch_bytes);
    const float *const param[OP_PARAM_MAX] = { weight };
    memset(weight, FILL, sizeof(float) * PEAK_SIDE * PEAK_SIDE);
    memset(in, FILL, spec.in[0].bytes);
    const struct op_buffers buffers = {
        .in = { in }, .out = out, .param = { weight }, .cache = cache, .scratch = scratch
    };
    must(table->refresh(backend, kernel, param, cache, NULL), "product");
    const double seconds = run_product(backend, kernel, &buffers);
    void *const all[] = { weight, in, out, cache, scratch };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        table->free(backend, all[i]);
    table->kernel_free(backend, kernel);
    table->close(backend);
    return info.flops_forward / seconds;
}
