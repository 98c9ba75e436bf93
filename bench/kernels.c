/*
 * Where the time of a training step goes, node by node, on one thread of this machine.
 *
 *   kernels [--model NAME] [--batch N] [--context N] [--precision fp32|bf16] [--steps N] [--nodes]
 *
 * Runs whole steps (forward, backward, update) of a model on random data and times each node of the
 * tape in both directions: medians over the steps. The yardstick of a convolution or product is the
 * machine's speed in a large product of the same precision, that of norms, losses and the update
 * its memory bandwidth, both measured in the same run; the last line has the samples, or tokens,
 * per second.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "trainer/models/models.h"
#include "trainer/plan/plan.h"
#include "trainer/tape/initial_values.h"
#include "trainer/update/optimizer.h"

#define NODES_MAX 1024
#define STEPS_MAX 200
#define WARM_UP   2

struct options {
    const char *model;
    int64_t batch, context;
    int steps;
    bool nodes, half;
};

/* Seconds of every node and direction, per step. */
struct bench {
    struct options options;
    struct tape *tape;
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    struct plan *plan;
    struct optimizer *optimizer;
    bool text;
    void *inputs[3]; /* images or tokens, labels, kinds of tokens */
    float *lane;
    double bytes, flops; /* the machine's, per second */
    double mark;
    int step;
    double *seconds[2][NODES_MAX];
    double update[STEPS_MAX], refresh[STEPS_MAX], whole[STEPS_MAX];
};

/* Returns the processor time of this thread: all that it waits for is the memory. */
static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what, enum status st)
{
    (void)fprintf(stderr, "kernels: %s: %s\n", what, status_string(st));
    exit(1);
}

static void must(enum status st, const char *what)
{
    if (st != ST_OK)
        fail(what, st);
}

static bool on_node(void *arg, int node, bool backward)
{
    struct bench *b = arg;
    const double t = now();
    if (b->step >= 0)
        b->seconds[backward ? 1 : 0][node][b->step] += t - b->mark;
    b->mark = t;
    return true;
}

static void *take(struct bench *b, size_t bytes)
{
    void *memory = NULL;
    must(b->table->alloc(b->backend, bytes, &memory), "memory");
    return memory;
}

static int64_t image_side(const struct bench *b)
{
    const char *model = b->options.model;
    return strcmp(model, "resnet50") == 0 || strcmp(model, "resnet152") == 0 ||
                   strcmp(model, "vit") == 0
               ? 224
               : 28;
}

/* Images and their labels, or tokens and the next ones. */
static void fill_inputs(struct bench *b)
{
    const int64_t n = b->options.batch, side = image_side(b), vocab = 50257;
    const int64_t pixels = side * side * (side > 28 ? 3 : 1);
    const int64_t count = b->text ? n * b->options.context : n;
    int32_t *labels = b->inputs[1] = take(b, (size_t)count * sizeof(int32_t));
    b->inputs[2] = take(b, (size_t)count * sizeof(int32_t)); /* zeroed */
    for (int64_t i = 0; i < count; i++)
        labels[i] = (int32_t)(b->text ? (i + 1) * 7919 % vocab : i % 10);
    if (b->text) {
        int32_t *tokens = b->inputs[0] = take(b, (size_t)count * sizeof(int32_t));
        for (int64_t i = 0; i < count; i++)
            tokens[i] = (int32_t)(i * 7919 % vocab);
        return;
    }
    float *images = b->inputs[0] = take(b, (size_t)(n * pixels) * sizeof(float));
    for (int64_t i = 0; i < n * pixels; i++)
        images[i] = (float)((uint32_t)(i * 2654435761) % 1000u) * 0.002f - 1.0f;
}

static void open_bench(struct bench *b)
{
    const struct backend_options threads = { .threads = 1 };
    const int64_t side = image_side(b), channels = side > 28 ? 3 : 1;
    struct model_options model = { .arch = b->options.model,
                                   .channels = channels,
                                   .height = side,
                                   .width = side,
                                   .classes = side > 28 ? 1000 : 10,
                                   .hidden = 256,
                                   .context = b->options.context };
    const struct optimizer_options sgd = { .kind = JOBSPEC_OPTIMIZER_SGD,
                                           .momentum = 0.9f,
                                           .weight_decay = 5e-4f };
    const struct optimizer_options adamw = { .kind = JOBSPEC_OPTIMIZER_ADAMW,
                                             .beta1 = 0.9f,
                                             .beta2 = 0.95f,
                                             .eps = 1e-8f,
                                             .weight_decay = 0.1f };
    enum model_input input = MODEL_IMAGES;
    b->table = backend_cpu();
    must(model_input(model.arch, &input), "model");
    b->text = input == MODEL_TOKENS;
    if (b->text)
        model_text_defaults(&model);
    must(model_build(&model, &b->tape), "model");
    must(b->table->open(&threads, &b->backend), "backend");
    must(b->table->stream_new(b->backend, &b->stream), "stream");
    const struct plan_options plan = { .table = b->table,
                                       .backend = b->backend,
                                       .stream = b->stream,
                                       .batch = b->options.batch,
                                       .training = true,
                                       .math = b->options.half ? MATH_BF16 : MATH_F32,
                                       .progress = on_node,
                                       .progress_arg = b };
    must(plan_new(b->tape, &plan, &b->plan), "plan");
    must(optimizer_new(b->text ? &adamw : &sgd, b->tape, NULL, b->table, b->backend, &b->optimizer),
         "optimizer");
    initial_values_params(b->tape, 1, optimizer_params(b->optimizer));
    initial_values_stats(b->tape, optimizer_stats(b->optimizer));
    fill_inputs(b);
    b->lane = take(b, lane_layout(b->tape).count * sizeof(float));
    for (int d = 0; d < 2; d++) {
        for (int n = 0; n < b->tape->node_count; n++)
            b->seconds[d][n] = take(b, STEPS_MAX * sizeof(double));
    }
}

static void run_step(struct bench *b, int step)
{
    struct optimizer_report report;
    const struct plan_call call = { .inputs = { b->inputs[0], b->inputs[1], b->inputs[2] },
                                    .params = optimizer_params(b->optimizer),
                                    .stats = optimizer_stats(b->optimizer),
                                    .lane = b->lane };
    const double begin = now();
    b->step = step;
    must(plan_refresh(b->plan, call.params), "refresh");
    b->mark = now();
    const double refreshed = b->mark;
    must(plan_forward(b->plan, &call), "forward");
    must(plan_backward(b->plan, &call, NULL, NULL), "backward");
    const double computed = now();
    const struct optimizer_step of = { .lr = b->text ? 1e-4 : 0.01,
                                       .update = (uint64_t)step + WARM_UP + 1,
                                       .loss_scale = 1 };
    must(optimizer_update(b->optimizer, b->lane, &of, b->stream, &report), "update");
    if (step < 0)
        return;
    b->refresh[step] = refreshed - begin;
    b->update[step] = now() - computed;
    b->whole[step] = now() - begin;
}

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 2];
}

/* GB/s of reading and writing far more than the caches hold. */
static double bandwidth(struct bench *b)
{
    const size_t bytes = (size_t)256 << 20;
    char *from = take(b, bytes), *to = take(b, bytes);
    double best = 0.0;
    for (int i = 0; i < 5; i++) {
        const double begin = now();
        must(b->table->vector.copy(b->backend, to, from, bytes, b->stream), "copy");
        const double rate = 2.0 * (double)bytes / (now() - begin) / 1e9;
        best = rate > best ? rate : best;
    }
    b->table->free(b->backend, from);
    b->table->free(b->backend, to);
    return best;
}

/* GFLOP/s of a product of two square matrices. */
static double arithmetic(struct bench *b)
{
    const int64_t side = 1536;
    const enum dtype dtype = b->options.half ? DTYPE_BF16 : DTYPE_F32;
    const struct op_spec spec = {
        .op = OP_LINEAR,
        .in = { tensor_plain(dtype, 2, (const int64_t[]){ side, side }) },
        .in_count = 1,
        .attr = { .out = side },
        .out_dtype = dtype,
        .math = b->options.half ? MATH_BF16 : MATH_F32,
    };
    const struct op_table *op = &b->table->op[OP_LINEAR];
    const size_t bytes = (size_t)(side * side) * sizeof(float);
    struct kernel *kernel = NULL;
    struct kernel_info info;
    must(op->prepare(b->backend, &spec, &kernel, &info), "product");
    const struct op_buffers buffers = { .in = { take(b, bytes) },
                                        .param = { take(b, bytes) },
                                        .out = take(b, bytes),
                                        .scratch = take(b, info.scratch_bytes),
                                        .cache = take(b, info.cache_bytes) };
    double best = 0.0;
    for (int i = 0; i < 5; i++) {
        const double begin = now();
        must(op->forward(b->backend, kernel, &buffers, b->stream), "product");
        const double rate = info.flops_forward / (now() - begin) / 1e9;
        best = rate > best ? rate : best;
    }
    b->table->kernel_free(b->backend, kernel);
    return best;
}

/* yardstick NULL: none. The ratio is above 1 where we are better. */
static void print_line(const struct bench *b, const char *what, double value, const char *unit,
                       const char *yardstick, double bound)
{
    (void)printf("{\"bench\": \"kernels\", \"case\": \"%s/%lld %s\", \"value\": %.4f, "
                 "\"unit\": \"%s\", ",
                 b->options.model, (long long)b->options.batch, what, value, unit);
    if (yardstick != NULL) {
        (void)printf("\"yardstick\": \"%s\", \"yardstick_value\": %.4f, \"ratio\": %.3f}\n",
                     yardstick, bound, bound / value);
        (void)fprintf(stderr, "  %-34s %10.3f %-9s %10.3f %s (%.2f)\n", what, value, unit, bound,
                      yardstick, bound / value);
    } else {
        (void)printf("\"yardstick\": null, \"yardstick_value\": null, \"ratio\": null}\n");
        (void)fprintf(stderr, "  %-34s %10.3f %s\n", what, value, unit);
    }
}

/* Elements of a value for the whole batch. */
static double elements(const struct bench *b, int value)
{
    const struct tape_value *v = &b->tape->values[value];
    return (double)tensor_elements(&v->tensor) * (v->batched ? (double)b->options.batch : 1.0);
}

/* Bytes that a pass over memory must move at least, as tensors in and out of the op; 0: unknown. */
static double node_bytes(const struct bench *b, const struct tape_node *node, int direction)
{
    const double size = b->options.half ? 2.0 : 4.0;
    const double in = elements(b, node->in[0]) * size, out = elements(b, node->out) * size;
    const double more = node->attr.residual ? out : 0.0;
    switch (node->op) {
    case OP_BATCH_NORM:
    case OP_LAYER_NORM: /* x, y; dy, x, dx */
        return direction == 0 ? in + out + more : 2.0 * in + out + 2.0 * more;
    case OP_SOFTMAX_CROSS_ENTROPY: /* x; x, dx */
        return direction == 0 ? in : 2.0 * in;
    case OP_GELU:
    case OP_DROPOUT:
    case OP_ROTARY:
    case OP_SEQUENCE:
        return direction == 0 ? in + out + more : in + out;
    case OP_GATED: /* x, y; dy, x, dx */
        return direction == 0 ? in + out : 2.0 * in + out;
    case OP_CONV2D:
    case OP_RELU:
    case OP_MAX_POOL:
    case OP_GLOBAL_AVG_POOL:
    case OP_FLATTEN:
    case OP_LINEAR:
    case OP_EMBEDDING:
    case OP_ATTENTION:
    case OP_SELECT:
    case OP_COUNT:
        break;
    }
    return 0.0;
}

/* Seconds that a node would take at the machine's limit; 0: unknown. */
static double node_bound(const struct bench *b, const struct tape_node *node, int direction)
{
    const double out = elements(b, node->out);
    if (node->op == OP_CONV2D || node->op == OP_LINEAR) {
        const double weight = (double)tape_param_elements(b->tape, node->param[0]);
        const double flops = 2.0 * out * weight / (double)node->attr.out;
        const bool data = b->tape->values[node->in[0]].producer >= 0;
        return flops * (direction == 0 ? 1.0 : data ? 2.0 : 1.0) / b->flops;
    }
    return node_bytes(b, node, direction) / b->bytes;
}

static void print_kind(struct bench *b, enum op op, int direction, const double *medians)
{
    char what[96];
    double sum = 0.0, bound = 0.0;
    bool any = false;
    for (int n = 0; n < b->tape->node_count; n++) {
        const struct tape_node *node = &b->tape->nodes[n];
        if (node->op != op)
            continue;
        any = true;
        sum += medians[n];
        bound += node_bound(b, node, direction);
        if (b->options.nodes) {
            const int64_t *d = b->tape->values[node->out].tensor.dims;
            (void)fprintf(stderr, "      %3d %-12s [%lld, %lld, %lld] %8.3f ms (%.2f)\n", n,
                          op_name(op), (long long)d[1], (long long)d[2], (long long)d[3],
                          1e3 * medians[n], node_bound(b, node, direction) / medians[n]);
        }
    }
    if (!any)
        return;
    const char *yardstick = NULL;
    if (op == OP_CONV2D || op == OP_LINEAR) {
        yardstick = "ms direct at the speed of a product";
    } else if (bound > 0.0) {
        yardstick = "ms once at the speed of memcpy";
    }
    (void)snprintf(what, sizeof(what), "%s %s", op_name(op), direction ? "backward" : "forward");
    print_line(b, what, 1e3 * sum, "ms", yardstick, 1e3 * bound);
}

static void report(struct bench *b)
{
    const int steps = b->options.steps;
    double medians[NODES_MAX];
    b->bytes = 1e9 * bandwidth(b);
    b->flops = 1e9 * arithmetic(b);
    (void)fprintf(stderr, "memcpy %.1f GB/s, product %.0f GFLOP/s\n", b->bytes / 1e9,
                  b->flops / 1e9);
    for (int d = 0; d < 2; d++) {
        for (int n = 0; n < b->tape->node_count; n++)
            medians[n] = median(b->seconds[d][n], steps);
        for (int op = 0; op < OP_COUNT; op++)
            print_kind(b, (enum op)op, d, medians);
    }
    const double params = (double)lane_layout(b->tape).param_count;
    print_line(b, "refresh of weight copies", 1e3 * median(b->refresh, steps), "ms", NULL, 0.0);
    /* the gradient's norm; p, m (and v) in and out, the gradient in */
    const double passes = b->text ? 8.0 : 6.0;
    print_line(b, "update", 1e3 * median(b->update, steps), "ms", "ms at the speed of memcpy",
               1e3 * passes * sizeof(float) * params / b->bytes);
    const double step = median(b->whole, steps);
    print_line(b, "step", 1e3 * step, "ms", NULL, 0.0);
    if (b->text) {
        print_line(b, "tokens", (double)(b->options.batch * b->options.context) / step, "tokens/s",
                   NULL, 0.0);
    } else {
        print_line(b, "images", (double)b->options.batch / step, "images/s", NULL, 0.0);
    }
}

static struct options parse(int argc, char **argv)
{
    struct options o = { .model = "resnet18", .batch = 128, .context = 64, .steps = 5 };
    const struct option known[] = { { "model", required_argument, NULL, 'm' },
                                    { "batch", required_argument, NULL, 'b' },
                                    { "context", required_argument, NULL, 'c' },
                                    { "precision", required_argument, NULL, 'p' },
                                    { "steps", required_argument, NULL, 's' },
                                    { "nodes", no_argument, NULL, 'n' },
                                    { 0 } };
    for (int c = 0; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (c == 'm') {
            o.model = optarg;
        } else if (c == 'b') {
            o.batch = strtol(optarg, NULL, 10);
        } else if (c == 'c') {
            o.context = strtol(optarg, NULL, 10);
        } else if (c == 'p') {
            o.half = strcmp(optarg, "bf16") == 0;
        } else if (c == 's') {
            o.steps = (int)strtol(optarg, NULL, 10);
        } else if (c == 'n') {
            o.nodes = true;
        } else {
            fail("usage: kernels [--model NAME] [--batch N] [--context N] "
                 "[--precision fp32|bf16] [--steps N] [--nodes]",
                 ST_INVALID);
        }
    }
    if (o.batch < 1 || o.context < 1 || o.steps < 1 || o.steps > STEPS_MAX)
        fail("batch or steps", ST_INVALID);
    return o;
}

int main(int argc, char **argv)
{
    static struct bench b;
    b.options = parse(argc, argv);
    open_bench(&b);
    (void)fprintf(stderr, "%s, batch %lld, %s, one thread, medians of %d steps\n", b.options.model,
                  (long long)b.options.batch, b.options.half ? "bf16" : "fp32", b.options.steps);
    for (int step = -WARM_UP; step < b.options.steps; step++)
        run_step(&b, step);
    report(&b);
    return 0;
}
