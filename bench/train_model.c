#include "bench/train_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/reducer.h"
#include "common/clock.h"
#include "common/rng.h"
#include "kernels/backend.h"
#include "trainer/models/models.h"
#include "trainer/plan/plan.h"
#include "trainer/tape/initial_values.h"
#include "trainer/tape/lane.h"
#include "trainer/update/optimizer.h"

#define SIDE          28
#define SIDE_LARGE    224
#define VOCAB_LLAMA   32000
#define VOCAB_BERT    30522
#define CLASSES       10
#define CLASSES_LARGE 1000
#define PEAK_SIDE     2048
#define PEAK_TIMES    5
#define FILL          0x3c /* 0.0115 in float32 and in bfloat16 */
#define BUCKET_WANTED ((size_t)1 << 20)
#define RANKS_MAX     8
#define EXCHANGE_MS   INT64_C(60000)

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
    struct reducer *reducer;
    size_t bucket_begin[LANE_BUCKETS_MAX];
    size_t bucket_count, bucket_next;
    int64_t lane_size;
    size_t sample;   /* elements of the input */
    size_t targets;  /* of a sample */
    void *inputs;    /* images or tokens of the batch, in the device's memory */
    void *kinds;     /* of tokens: all of the first */
    int32_t *labels; /* there, too */
    struct stream *communication, *copies;
    struct comm *comm;
    void *snapshot; /* pinned; made by the first one */
    struct event *copied, *computed;
    uint64_t update;
    struct optimizer_report report; /* of the last step */
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

static struct backend *open_backend(const struct backend_table *table, int ordinal)
{
    struct backend *backend = NULL;
    const struct backend_options one_thread = { .threads = 1, .ordinal = ordinal };
    must(table->open(&one_thread, &backend), "backend");
    return backend;
}

static void *take(const struct backend_table *table, struct backend *backend, size_t bytes)
{
    void *memory = NULL;
    must(table->alloc(backend, bytes, &memory), "memory");
    return memory;
}

/* Copies from host memory to the device's, done on return. */
static void upload(const struct train_model *model, void *to, const void *from, size_t bytes)
{
    must(model->table->vector.copy(model->backend, to, from, bytes, model->stream), "copy");
    must(model->table->stream_sync(model->backend, model->stream), "copy");
}

static void choose_shape(struct train_model *model)
{
    const char *arch = model->options.arch;
    const bool large =
        strcmp(arch, "resnet50") == 0 || strcmp(arch, "resnet152") == 0 || strcmp(arch, "vit") == 0;
    must(model_input(arch, &model->input), arch);
    model->shape = (struct model_options){ .arch = arch,
                                           .channels = large ? 3 : 1,
                                           .height = large ? SIDE_LARGE : SIDE,
                                           .width = large ? SIDE_LARGE : SIDE,
                                           .classes = large ? CLASSES_LARGE : CLASSES,
                                           .hidden = 256 };
    if (model->input == MODEL_TOKENS) {
        const bool llama = strcmp(arch, "llama") == 0, bert = strcmp(arch, "bert") == 0;
        model->shape = (struct model_options){ .arch = arch,
                                               .context = model->options.seq,
                                               .vocab = llama  ? VOCAB_LLAMA
                                                        : bert ? VOCAB_BERT
                                                               : 0,
                                               .tied = llama };
        model_text_defaults(&model->shape);
    }
    model->sample =
        model->input == MODEL_TOKENS
            ? (size_t)model->options.seq
            : (size_t)(model->shape.channels * model->shape.height * model->shape.width);
    model->targets = model->input == MODEL_TOKENS ? (size_t)model->options.seq : 1;
}

static void fill_state(struct train_model *model)
{
    const size_t params = model->tape->param_elements, stats = model->tape->stat_elements;
    float *host = need(calloc(params + stats + 1, sizeof(*host)));
    initial_values_params(model->tape, 1, host);
    upload(model, optimizer_params(model->optimizer), host, params * sizeof(*host));
    initial_values_stats(model->tape, host);
    if (stats > 0)
        upload(model, optimizer_stats(model->optimizer), host, stats * sizeof(*host));
    free(host);
}

static void open_model(struct train_model *model)
{
    must(model_build(&model->shape, &model->tape), model->options.arch);
    struct lane_layout layout = lane_layout(model->tape);
    must(lane_buckets(&layout, BUCKET_WANTED, model->bucket_begin, LANE_BUCKETS_MAX,
                      &model->bucket_count),
         "buckets");
    struct plan_options plan = { .table = model->table,
                                 .backend = model->backend,
                                 .stream = model->stream,
                                 .batch = model->lane_size,
                                 .training = true,
                                 .math = model->options.math,
                                 .graphs = model->options.graphs,
                                 .bucket_begin = model->bucket_begin,
                                 .bucket_count = model->bucket_count };
    must(plan_new(model->tape, &plan, &model->plan), "plan");
    struct optimizer_options sgd = { .kind = JOBSPEC_OPTIMIZER_SGD,
                                     .momentum = 0.9f,
                                     .weight_decay = 5e-4f };
    struct optimizer_options adamw = { .kind = JOBSPEC_OPTIMIZER_ADAMW,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.999f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.01f };
    must(optimizer_new(model->input == MODEL_TOKENS ? &adamw : &sgd, model->tape, NULL,
                       model->table, model->backend, &model->optimizer),
         "optimizer");
    must(optimizer_keep_copies(model->optimizer, model->plan), "copies of parameters");
    fill_state(model);
    must(plan_refresh(model->plan, optimizer_params(model->optimizer)), "refresh");
}

static void open_reducer(struct train_model *model)
{
    const struct train_model_options *o = &model->options;
    uint32_t shares[RANKS_MAX];
    for (int r = 0; r < RANKS_MAX; r++)
        shares[r] = (uint32_t)o->lanes;
    if (!model->table->host_memory)
        must(model->table->stream_new(model->backend, &model->communication), "stream");
    if (o->comm != NULL) {
        struct comm_options comm = { .rendezvous = o->rendezvous,
                                     .round_name = "bench",
                                     .rank = o->rank,
                                     .size = o->size,
                                     .host = "127.0.0.1",
                                     .secret = "of a bench",
                                     .timeout_ms = EXCHANGE_MS };
        comm.device = (struct comm_device){ .table = model->table,
                                            .backend = model->backend,
                                            .stream = model->communication,
                                            .device_shared = true };
        must(o->comm->open(&comm, &model->comm), "communicator");
    }
    struct reducer_options options = { .table = o->comm,
                                       .comm = model->comm,
                                       .rank = o->rank,
                                       .size = o->comm != NULL ? o->size : 1,
                                       .shares = shares,
                                       .count = lane_layout(model->tape).count,
                                       .bucket_begin = model->bucket_begin,
                                       .bucket_count = model->bucket_count,
                                       .timeout_ms = EXCHANGE_MS,
                                       .fast = o->fast,
                                       .device = model->table,
                                       .backend = model->backend,
                                       .compute = model->stream,
                                       .communication = model->communication };
    must(reducer_open(&options, &model->reducer), "reduction");
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
    const size_t bytes = 4 * (inputs > labels ? inputs : labels); /* all are of 4 bytes */
    float *images = need(malloc(bytes));
    int32_t *numbers = (int32_t *)(void *)images;
    model->labels = take(model->table, model->backend, 4 * labels);
    for (size_t i = 0; i < labels; i++)
        numbers[i] = (int32_t)rng_below(word_of(i, 1), classes);
    upload(model, model->labels, numbers, 4 * labels);
    model->inputs = take(model->table, model->backend, 4 * inputs);
    model->kinds = take(model->table, model->backend, 4 * labels); /* zeroed */
    for (size_t i = 0; text && i < inputs; i++)
        numbers[i] = (int32_t)rng_below(word_of(i, 0), classes);
    for (size_t i = 0; !text && i < inputs; i++)
        images[i] = rng_uniform(word_of(i, 0)) - 0.5f;
    upload(model, model->inputs, images, 4 * inputs);
    free(images);
}

struct train_model *train_model_new(const struct train_model_options *options)
{
    struct train_model *model = need(calloc(1, sizeof(*model)));
    if (options->batch % options->lanes != 0)
        must(ST_INVALID, "lanes must divide the batch");
    model->options = *options;
    model->lane_size = options->batch / options->lanes;
    model->table = options->table != NULL ? options->table : backend_cpu();
    model->backend = open_backend(model->table, options->ordinal);
    must(model->table->stream_new(model->backend, &model->stream), "stream");
    choose_shape(model);
    open_model(model);
    open_reducer(model);
    fill_batch(model);
    return model;
}

void train_model_wait(struct train_model *model)
{
    must(model->table->stream_sync(model->backend, model->stream), "wait");
}

size_t train_model_params(const struct train_model *model)
{
    return model->tape->param_elements;
}

static size_t state_bytes(const struct train_model *model)
{
    const struct ckpt_buffer *buffers;
    const struct ckpt_tensor *tensors;
    uint32_t count, tensor_count;
    size_t bytes = 0;
    optimizer_describe(model->optimizer, &buffers, &count, &tensors, &tensor_count);
    for (uint32_t i = 0; i < count; i++)
        bytes += buffers[i].count * ckpt_dtype_size(buffers[i].dtype);
    return bytes;
}

static void open_snapshot(struct train_model *model)
{
    const struct backend_table *table = model->table;
    must(table->alloc_host(model->backend, state_bytes(model), &model->snapshot), "pinned memory");
    must(table->stream_new(model->backend, &model->copies), "stream");
    must(table->event_new(model->backend, false, &model->copied), "event");
    must(table->event_new(model->backend, false, &model->computed), "event");
}

static void close_snapshot(struct train_model *model)
{
    const struct backend_table *table = model->table;
    must(table->stream_sync(model->backend, model->copies), "snapshot");
    table->event_free(model->backend, model->copied);
    table->event_free(model->backend, model->computed);
    table->stream_free(model->backend, model->copies);
    table->free_host(model->backend, model->snapshot);
}

/* Takes a snapshot after the update that is on the compute stream, and before the next update,
 * which waits for it. */
void train_model_snapshot(struct train_model *model)
{
    const struct backend_table *table = model->table;
    const struct ckpt_buffer *buffers;
    const struct ckpt_tensor *tensors;
    uint32_t count, tensor_count;
    size_t at = 0;
    if (model->snapshot == NULL)
        open_snapshot(model);
    must(table->event_record(model->backend, model->computed, model->stream), "snapshot");
    must(table->event_wait(model->backend, model->computed, model->copies), "snapshot");
    optimizer_describe(model->optimizer, &buffers, &count, &tensors, &tensor_count);
    for (uint32_t i = 0; i < count; i++) {
        const size_t bytes = buffers[i].count * ckpt_dtype_size(buffers[i].dtype);
        must(table->vector.copy(model->backend, (char *)model->snapshot + at, buffers[i].data,
                                bytes, model->copies),
             "snapshot");
        at += bytes;
    }
    must(table->event_record(model->backend, model->copied, model->copies), "snapshot");
}

void train_model_free(struct train_model *model)
{
    train_model_wait(model);
    reducer_close(model->reducer);
    if (model->comm != NULL)
        model->options.comm->close(model->comm);
    plan_free(model->plan);
    optimizer_free(model->optimizer);
    tape_free(model->tape);
    if (model->snapshot != NULL)
        close_snapshot(model);
    model->table->free(model->backend, model->inputs);
    model->table->free(model->backend, model->kinds);
    model->table->free(model->backend, model->labels);
    if (model->communication != NULL)
        model->table->stream_free(model->backend, model->communication);
    model->table->stream_free(model->backend, model->stream);
    model->table->close(model->backend);
    free(model);
}

static void on_final(void *arg, size_t first, size_t count)
{
    struct train_model *model = arg;
    (void)count;
    while (model->bucket_next > 0 && model->bucket_begin[model->bucket_next - 1] >= first)
        reducer_bucket_done(model->reducer, --model->bucket_next);
}

/* Runs the backward pass as the trainer does: a device alone doesn't cut its passes. */
static enum status backward(struct train_model *model, const struct plan_call *call, bool last)
{
    if (last && (model->table->host_memory || model->comm != NULL))
        return plan_backward(model->plan, call, on_final, model);
    enum status st = plan_backward(model->plan, call, NULL, NULL);
    if (st == ST_OK && last)
        on_final(model, 0, 0);
    return st;
}

void train_model_step(struct train_model *model)
{
    reducer_begin(model->reducer);
    model->bucket_next = model->bucket_count;
    for (int lane = 0; lane < model->options.lanes; lane++) {
        size_t first = (size_t)lane * (size_t)model->lane_size;
        const void *inputs = (const char *)model->inputs + 4 * first * model->sample;
        struct plan_call call = { .inputs = { inputs, model->labels + first * model->targets,
                                              model->kinds },
                                  .params = optimizer_params(model->optimizer),
                                  .lane = reducer_lane(model->reducer, 0) };
        bool last = lane == model->options.lanes - 1;
        must(plan_forward(model->plan, &call), "forward");
        must(backward(model, &call, last), "backward");
        if (!last)
            must(reducer_lane_done(model->reducer, 0), "sum");
    }
    int64_t exposed_ns;
    must(reducer_wait(model->reducer, &exposed_ns), "sum");
    if (model->snapshot != NULL)
        must(model->table->event_wait(model->backend, model->copied, model->stream), "snapshot");
    struct optimizer_step of = { .lr = model->input == MODEL_TOKENS ? 1e-4 : 0.01,
                                 .update = ++model->update,
                                 .loss_scale = 1 };
    must(optimizer_update(model->optimizer, reducer_sum(model->reducer), &of, model->stream,
                          &model->report),
         "update");
    const float *params = optimizer_params(model->optimizer);
    must(model->report.copied ? plan_refresh_rest(model->plan, params)
                              : plan_refresh(model->plan, params),
         "refresh");
}

double train_model_loss(const struct train_model *model)
{
    return model->report.loss;
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
    struct backend *backend = open_backend(table, 0);
    struct kernel *kernel = NULL;
    struct kernel_info info;
    must(table->op[OP_LINEAR].prepare(backend, &spec, &kernel, &info), "product");
    float *const weight = take(table, backend, sizeof(float) * PEAK_SIDE * PEAK_SIDE);
    void *const in = take(table, backend, spec.in[0].bytes), *const out = take(table, backend,
                                                                               info.out.bytes);
    void *const cache = take(table, backend, info.cache_bytes);
    void *const scratch = take(table, backend, info.scratch_bytes);
    const float *const param[OP_PARAM_MAX] = { weight };
    memset(weight, FILL, sizeof(float) * PEAK_SIDE * PEAK_SIDE);
    memset(in, FILL, spec.in[0].bytes);
    const struct op_buffers buffers = {
        .in = { in }, .out = out, .param = { weight }, .cache = cache, .scratch = scratch
    };
    must(table->refresh(backend, kernel, param, cache, NULL), "product");
    const double seconds = run_product(backend, kernel, &buffers);
    void *const all[] = { weight, in, out, cache, scratch };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        table->free(backend, all[i]);
    table->kernel_free(backend, kernel);
    table->close(backend);
    return info.flops_forward / seconds;
}
