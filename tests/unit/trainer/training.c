#include "tests/unit/trainer/training.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/rng.h"

static void must(enum status st)
{
    CHECK(st == ST_OK);
}

static void *zeroed(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    CHECK(memory != NULL);
    return memory;
}

static size_t input_bytes(const struct training *t)
{
    const struct training_options *o = &t->options;
    if (t->tokens != NULL)
        return (size_t)t->rows * sizeof(int32_t);
    return (size_t)(o->micro * o->channels * o->side * o->side) * sizeof(float);
}

static size_t draw_bytes(const struct training *t)
{
    return (size_t)(OP_DRAW_SAMPLES + t->options.micro) * sizeof(uint32_t);
}

static void make_inputs(struct training *t)
{
    const struct training_options *o = &t->options;
    enum model_input input;
    must(model_input(o->arch, &input));
    t->rows = o->micro;
    if (input == MODEL_TOKENS) {
        t->rows *= o->context;
        t->tokens = zeroed((size_t)t->rows, sizeof(int32_t)); /* before input_bytes */
        t->x = t->tokens;
    } else {
        t->images = zeroed((size_t)(o->micro * o->channels * o->side * o->side), sizeof(float));
        t->x = t->images;
    }
    t->labels = zeroed((size_t)t->rows, sizeof(int32_t));
    t->kinds = zeroed((size_t)t->rows, sizeof(int32_t));
    for (int64_t i = 0; t->tokens != NULL && i < t->rows; i++)
        t->kinds[i] = i % o->context >= o->context / 2;
    t->draw = zeroed((size_t)(OP_DRAW_SAMPLES + o->micro), sizeof(uint32_t));
    if (t->table->host_memory)
        return;
    must(t->table->alloc(t->backend, input_bytes(t), &t->device_x));
    must(t->table->alloc(t->backend, (size_t)t->rows * sizeof(int32_t), &t->device_labels));
    must(t->table->alloc(t->backend, draw_bytes(t), &t->device_draw));
    must(t->table->alloc(t->backend, (size_t)t->rows * sizeof(int32_t), &t->device_kinds));
}

static void copy(struct training *t, void *to, const void *from, size_t bytes)
{
    must(t->table->vector.copy(t->backend, to, from, bytes, t->stream));
    must(t->table->stream_sync(t->backend, t->stream));
}

/* Through host memory of our own: the state may be a device's. */
static void init_state(struct training *t)
{
    float *params = zeroed(t->layout.param_count, sizeof(float));
    initial_values_params(t->tape, t->options.seed, params);
    for (int i = 0; i < t->tape->param_count; i++) {
        const struct tape_tensor *tensor = &t->tape->params[i];
        bool shift = tensor->kind == TAPE_NORM && tensor->init == TAPE_INIT_ZERO;
        for (size_t e = 0; shift && e < tensor->count; e++)
            params[tensor->offset + e] = t->options.norm_shift;
    }
    copy(t, optimizer_params(t->optimizer), params, t->layout.param_count * sizeof(float));
    free(params);
    if (t->layout.stat_count == 0)
        return;
    float *stats = zeroed(t->layout.stat_count, sizeof(float));
    initial_values_stats(t->tape, stats);
    copy(t, optimizer_stats(t->optimizer), stats, t->layout.stat_count * sizeof(float));
    free(stats);
}

static void cut_buckets(struct training *t)
{
    const struct training_options *o = &t->options;
    if (o->unit > 0) {
        struct lane_owned owned;
        must(lane_owned_buckets(t->tape, o->unit, o->bucket, t->bucket_begin, LANE_BUCKETS_MAX,
                                &owned));
        t->bucket_count = owned.count;
    } else {
        must(lane_buckets(&t->layout, o->bucket, t->bucket_begin, LANE_BUCKETS_MAX,
                          &t->bucket_count));
    }
}

void training_open(struct training *t, const struct training_options *options)
{
    memset(t, 0, sizeof(*t));
    t->options = *options;
    t->table = options->table != NULL ? options->table : backend_cpu();
    if (t->options.channels == 0)
        t->options.channels = 1;
    must(t->table->open(&(struct backend_options){ .threads = 1 }, &t->backend));
    must(t->table->stream_new(t->backend, &t->stream));
    must(model_build(&(struct model_options){ .arch = options->arch,
                                              .channels = t->options.channels,
                                              .height = options->side,
                                              .width = options->side,
                                              .classes = TRAINING_CLASSES,
                                              .hidden = options->hidden,
                                              .layers = options->layers,
                                              .kv_heads = options->kv_heads,
                                              .intermediate = options->intermediate,
                                              .tied = options->tied,
                                              .heads = options->heads,
                                              .embed = options->embed,
                                              .context = options->context,
                                              .vocab = options->vocab,
                                              .patch = options->patch,
                                              .dropout = options->dropout },
                     &t->tape));
    t->layout = lane_layout(t->tape);
    if (options->graphs)
        cut_buckets(t);
    struct plan_options plan = { .table = t->table,
                                 .backend = t->backend,
                                 .stream = t->stream,
                                 .batch = options->micro,
                                 .training = true,
                                 .math = options->math,
                                 .amp = options->amp,
                                 .recompute = options->recompute,
                                 .graphs = options->graphs,
                                 .bucket_begin = t->bucket_begin,
                                 .bucket_count = t->bucket_count,
                                 .poison = options->poison };
    must(plan_new(t->tape, &plan, &t->plan));
    plan.training = false;
    plan.share = t->plan;
    must(plan_new(t->tape, &plan, &t->eval_plan));
    must(optimizer_new(&options->optimizer, t->tape, NULL, t->table, t->backend, &t->optimizer));
    init_state(t);
    must(plan_refresh(t->plan, optimizer_params(t->optimizer)));
    must(t->table->alloc(t->backend, t->layout.count * sizeof(float), (void **)&t->lane));
    must(t->table->alloc(t->backend, t->layout.count * sizeof(float), (void **)&t->sum));
    make_inputs(t);
}

void training_close(struct training *t)
{
    plan_free(t->eval_plan);
    plan_free(t->plan);
    optimizer_free(t->optimizer);
    tape_free(t->tape);
    void *const owned[] = { t->lane,          t->sum,         t->device_x,
                            t->device_labels, t->device_draw, t->device_kinds };
    for (size_t i = 0; i < sizeof(owned) / sizeof(owned[0]); i++) {
        if (owned[i] != NULL)
            t->table->free(t->backend, owned[i]);
    }
    t->table->stream_free(t->backend, t->stream);
    t->table->close(t->backend);
    free(t->images);
    free(t->tokens);
    free(t->labels);
    free(t->kinds);
    free(t->draw);
}

static void fill_tokens(struct training *t, uint64_t key, uint32_t first)
{
    uint32_t context = (uint32_t)t->options.context;
    uint32_t vocab = (uint32_t)t->options.vocab;
    for (uint32_t i = 0; i < (uint32_t)t->options.micro; i++) {
        uint32_t before = 0;
        for (uint32_t p = 0; p <= context; p++) {
            struct rng_counter words = rng_words(key, p, first + i, 3, 0);
            uint32_t token = rng_below(words.word[0], vocab);
            if (p > 0 && rng_uniform(words.word[1]) < 0.5f)
                token = (before * 3 + 1) % vocab;
            if (p < context)
                t->tokens[i * context + p] = (int32_t)token;
            if (p > 0)
                t->labels[i * context + p - 1] = (int32_t)token;
            before = token;
        }
    }
}

void training_fill(struct training *t, uint32_t first)
{
    uint64_t key = rng_key(t->options.seed, RNG_SYNTHETIC);
    uint64_t draw = rng_key(t->options.seed, RNG_DROPOUT);
    t->draw[OP_DRAW_KEY] = (uint32_t)draw;
    t->draw[OP_DRAW_KEY + 1] = (uint32_t)(draw >> 32);
    for (uint32_t i = 0; i < (uint32_t)t->options.micro; i++)
        t->draw[OP_DRAW_SAMPLES + i] = first + i;
    if (t->tokens != NULL) {
        fill_tokens(t, key, first);
        return;
    }
    uint32_t pixels = (uint32_t)(t->options.channels * t->options.side * t->options.side);
    for (uint32_t i = 0; i < (uint32_t)t->options.micro; i++) {
        uint32_t sample = first + i;
        uint32_t label = rng_below(rng_words(key, 0, sample, 1, 0).word[0], TRAINING_CLASSES);
        t->labels[i] = (int32_t)label;
        for (uint32_t p = 0; p < pixels; p++) {
            float noise = rng_uniform(rng_words(key, p, sample, 0, 0).word[0]);
            float pattern = rng_uniform(rng_words(key, p, label, 2, 0).word[0]);
            t->images[i * pixels + p] = noise + pattern - 1.0f;
        }
    }
}

static struct plan_call call_of(struct training *t)
{
    if (!t->table->host_memory) {
        copy(t, t->device_x, t->x, input_bytes(t));
        copy(t, t->device_labels, t->labels, (size_t)t->rows * sizeof(int32_t));
        copy(t, t->device_draw, t->draw, draw_bytes(t));
        copy(t, t->device_kinds, t->kinds, (size_t)t->rows * sizeof(int32_t));
        return (struct plan_call){ .inputs = { t->device_x, t->device_labels, t->device_kinds },
                                   .draw = t->device_draw,
                                   .params = optimizer_params(t->optimizer),
                                   .stats = optimizer_stats(t->optimizer),
                                   .lane = t->lane };
    }
    return (struct plan_call){ .inputs = { t->x, t->labels, t->kinds },
                               .draw = t->draw,
                               .params = optimizer_params(t->optimizer),
                               .stats = optimizer_stats(t->optimizer),
                               .lane = t->lane };
}

void training_micro(struct training *t, bool accumulate)
{
    struct plan_call call = call_of(t);
    call.micro = accumulate ? 1 : 0;
    must(plan_forward(t->plan, &call));
    must(plan_backward(t->plan, &call, NULL, NULL));
}

struct optimizer_report training_step(struct training *t, uint32_t first, int lanes, int micros,
                                      double lr, uint64_t update)
{
    CHECK(lanes == 1 || lanes == 2);
    for (int lane = 0; lane < lanes; lane++) {
        for (int micro = 0; micro < micros; micro++) {
            training_fill(t, first);
            training_micro(t, micro > 0);
            first += (uint32_t)t->options.micro;
        }
        if (lane == 0) {
            copy(t, t->sum, t->lane, t->layout.count * sizeof(float));
        } else {
            must(t->table->vector.add(t->backend, t->sum, t->sum, t->lane, t->layout.count,
                                      t->stream));
        }
    }
    struct optimizer_report report;
    struct optimizer_step step = { .lr = lr, .update = update, .loss_scale = 1 };
    must(optimizer_update(t->optimizer, t->sum, &step, t->stream, &report));
    must(plan_refresh(t->plan, optimizer_params(t->optimizer)));
    return report;
}

double training_eval(struct training *t)
{
    must(plan_refresh(t->eval_plan, optimizer_params(t->optimizer)));
    struct plan_call call = call_of(t);
    double loss = 0;
    int64_t counted = 0, correct = 0;
    call.loss_sum = &loss;
    call.counted = &counted;
    call.correct = &correct;
    must(plan_forward(t->eval_plan, &call));
    CHECK(counted == t->rows);
    return loss / (double)counted;
}
