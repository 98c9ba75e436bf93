#include "trainer/worker/settings.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

/* Steps that a duration means; 0 stays 0, anything else is at least one step. */
static enum status steps_of(const struct job_duration *duration, uint64_t steps_per_epoch,
                            uint64_t *out)
{
    double value = duration->value;
    switch (duration->unit) {
    case JOB_STEPS:
        break;
    case JOB_EPOCHS:
        value *= (double)steps_per_epoch;
        break;
    case JOB_MS:
    case JOB_AUTO:
        return ST_CONFIG;
    }
    if (!(value >= 0 && value <= 1e15))
        return ST_CONFIG;
    uint64_t steps = (uint64_t)value;
    *out = steps == 0 && value > 0 ? 1 : steps;
    return ST_OK;
}

struct durations {
    const char *key;
    const struct job_duration *from;
    uint64_t *to;
};

static enum status derive_durations(const struct job *job, struct settings *s, char *message,
                                    size_t capacity)
{
    const struct durations table[] = {
        { "train.duration", &job->train.duration, &s->total_steps },
        { "train.schedule.warmup", &job->train.schedule.warmup, &s->schedule.warmup },
        { "train.schedule.every", &job->train.schedule.every, &s->schedule.every },
        { "eval.every", &job->eval_every, &s->eval_every },
        { "checkpoint.every", &job->checkpoint.every, &s->save_every },
    };
    const enum job_unit save_unit = job->checkpoint.every.unit;
    const bool by_time = save_unit == JOB_MS || save_unit == JOB_AUTO; /* announced then */
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].to == &s->save_every && by_time) {
            s->save_every = 0;
            continue;
        }
        if (steps_of(table[i].from, s->steps_per_epoch, table[i].to) == ST_OK)
            continue;
        (void)snprintf(message, capacity,
                       "%s: a time is not supported in this version; give steps or epochs",
                       table[i].key);
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum status derive_schedule(const struct job *job, struct settings *s, char *message,
                                   size_t capacity)
{
    const char *name = job->train.schedule.name;
    s->schedule.lr = job->train.optimizer.lr;
    s->schedule.total = s->total_steps;
    s->schedule.min = job->train.schedule.min_lr;
    s->schedule.gamma = job->train.schedule.gamma;
    if (s->schedule.every == 0)
        s->schedule.every = 1;
    if (strcmp(name, "constant") == 0) {
        s->schedule.kind = SCHEDULE_CONSTANT;
    } else if (strcmp(name, "cosine") == 0) {
        s->schedule.kind = SCHEDULE_COSINE;
    } else if (strcmp(name, "step") == 0) {
        s->schedule.kind = SCHEDULE_STEP;
    } else {
        (void)snprintf(message, capacity, "train.schedule.name: no schedule \"%s\"", name);
        return ST_CONFIG;
    }
    return ST_OK;
}

static unsigned no_decay(const struct job *job)
{
    unsigned kinds = 0;
    if (job->train.optimizer.no_decay.bias)
        kinds |= TAPE_BIAS;
    if (job->train.optimizer.no_decay.norm)
        kinds |= TAPE_NORM;
    if (job->train.optimizer.no_decay.embedding)
        kinds |= TAPE_EMBEDDING;
    return kinds;
}

static enum status derive_precision(const struct job *job, struct settings *s, char *message,
                                    size_t capacity)
{
    static const struct {
        const char *word;
        enum math math;
    } words[] = {
        { "fp32", MATH_F32 }, { "tf32", MATH_TF32 }, { "bf16", MATH_BF16 }, { "fp16", MATH_F16 }
    };
    size_t i = 0;
    while (i < sizeof(words) / sizeof(words[0]) && strcmp(words[i].word, job->train.precision) != 0)
        i++;
    if (i == sizeof(words) / sizeof(words[0])) {
        (void)snprintf(message, capacity, "train.precision: no precision \"%s\"",
                       job->train.precision);
        return ST_CONFIG;
    }
    bool half = words[i].math == MATH_BF16 || words[i].math == MATH_F16;
    s->math = words[i].math;
    s->amp = strcmp(job->train.amp, "O2") == 0 ? AMP_O2 : AMP_O1;
    s->scaler = scaler_static(half && job->train.loss_scale > 0 ? job->train.loss_scale : 1);
    if (half && job->train.loss_scale == 0)
        s->scaler = scaler_dynamic();
    return ST_OK;
}

static enum status derive_optimizer(const struct job *job, struct settings *s, char *message,
                                    size_t capacity)
{
    const char *name = job->train.optimizer.name;
    bool adamw = strcmp(name, "adamw") == 0;
    if (!adamw && strcmp(name, "sgd") != 0) {
        (void)snprintf(message, capacity, "train.optimizer.name: no optimizer \"%s\"", name);
        return ST_CONFIG;
    }
    s->optimizer = (struct optimizer_options){
        .kind = adamw ? OPTIMIZER_ADAMW : OPTIMIZER_SGD,
        .momentum = (float)job->train.optimizer.momentum,
        .nesterov = job->train.optimizer.nesterov,
        .beta1 = (float)job->train.optimizer.beta1,
        .beta2 = (float)job->train.optimizer.beta2,
        .eps = (float)job->train.optimizer.eps,
        .weight_decay = (float)job->train.optimizer.weight_decay,
        .clip_norm = (float)job->train.clip_norm,
        .no_decay = no_decay(job),
    };
    return ST_OK;
}

enum status settings_derive(const struct job *job, uint64_t samples, struct settings *out,
                            char *message, size_t capacity)
{
    CHECK(job->train.lanes > 0);
    CHECK(job->train.micro_batch == 0 ||
          job->train.lanes * job->train.micro_batch * job->train.accumulate ==
              job->train.global_batch);
    uint64_t batch = (uint64_t)job->train.global_batch;
    if (samples < batch) {
        (void)snprintf(message, capacity,
                       "data.train: holds %llu samples, fewer than train.global_batch (%llu); make "
                       "the batch smaller",
                       (unsigned long long)samples, (unsigned long long)batch);
        return ST_CONFIG;
    }
    struct settings s = {
        .lanes = (uint32_t)job->train.lanes,
        .micro_batch = (uint32_t)job->train.micro_batch,
        .accumulate = (uint32_t)job->train.accumulate,
        .lane_size = (uint32_t)(job->train.global_batch / job->train.lanes),
        .seed = (uint64_t)job->train.seed,
        .steps_per_epoch = samples / batch,
    };
    enum status st = derive_durations(job, &s, message, capacity);
    if (st == ST_OK)
        st = derive_schedule(job, &s, message, capacity);
    if (st == ST_OK)
        st = derive_optimizer(job, &s, message, capacity);
    if (st == ST_OK)
        st = derive_precision(job, &s, message, capacity);
    if (st != ST_OK)
        return st;
    CHECK(s.total_steps > 0);
    *out = s;
    return ST_OK;
}
