#include "tests/unit/training.h"

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

void training_open(struct training *t, const struct training_options *options)
{
    memset(t, 0, sizeof *t);
    t->options = *options;
    t->table = backend_cpu();
    must(t->table->open(&(struct backend_options){ .threads = 1 }, &t->backend));
    must(t->table->stream_new(t->backend, &t->stream));
    must(model_build(&(struct model_options){ .arch = options->arch,
                                              .channels = 1,
                                              .height = options->side,
                                              .width = options->side,
                                              .classes = TRAINING_CLASSES,
                                              .hidden = options->hidden },
                     &t->tape));
    struct plan_options plan = { .table = t->table,
                                 .backend = t->backend,
                                 .stream = t->stream,
                                 .batch = options->micro,
                                 .training = true,
                                 .poison = options->poison };
    must(plan_new(t->tape, &plan, &t->plan));
    plan.training = false;
    plan.share = t->plan;
    must(plan_new(t->tape, &plan, &t->eval_plan));
    must(optimizer_new(&options->optimizer, t->tape, t->table, t->backend, &t->optimizer));
    init_params(t->tape, options->seed, optimizer_params(t->optimizer));
    init_stats(t->tape, optimizer_stats(t->optimizer));
    must(plan_refresh(t->plan, optimizer_params(t->optimizer)));
    t->layout = lane_layout(t->tape);
    t->lane = zeroed(t->layout.count, sizeof(float));
    t->sum = zeroed(t->layout.count, sizeof(float));
    t->images = zeroed((size_t)(options->micro * options->side * options->side), sizeof(float));
    t->labels = zeroed((size_t)options->micro, sizeof(int32_t));
}

void training_close(struct training *t)
{
    plan_free(t->eval_plan);
    plan_free(t->plan);
    optimizer_free(t->optimizer);
    tape_free(t->tape);
    t->table->stream_free(t->backend, t->stream);
    t->table->close(t->backend);
    free(t->lane);
    free(t->sum);
    free(t->images);
    free(t->labels);
}

void training_fill(struct training *t, uint32_t first)
{
    uint64_t key = rng_key(t->options.seed, RNG_SYNTHETIC);
    uint32_t pixels = (uint32_t)(t->options.side * t->options.side);
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
    return (struct plan_call){ .inputs = { t->images, t->labels },
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
            memcpy(t->sum, t->lane, t->layout.count * sizeof(float));
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
    CHECK(counted == t->options.micro);
    return loss / (double)counted;
}
