#include "trainer/worker/settings.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

struct duration_row {
    const char *key;
    const struct jobspec_duration *from;
    uint64_t *to;
};

static enum status derive_durations(const struct jobspec *job, struct settings *s,
                                    struct reason *reason)
{
    const struct duration_row table[] = {
        { "train.duration", &job->train.duration, &s->total_steps },
        { "train.schedule.warmup", &job->train.schedule.warmup, &s->schedule.warmup },
        { "train.schedule.every", &job->train.schedule.every, &s->schedule.every },
        { "train.schedule.decay", &job->train.schedule.decay, &s->schedule.decay },
        { "eval.every", &job->eval_every, &s->eval_every },
        { "checkpoint.every", &job->checkpoint.every, &s->save_every },
    };
    const enum jobspec_unit save_unit = job->checkpoint.every.unit;
    /* Saves that are due by time are announced by the coordinator. */
    const bool by_time = save_unit == JOBSPEC_MS || save_unit == JOBSPEC_AUTO;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].to == &s->save_every && by_time) {
            s->save_every = 0;
            continue;
        }
        if (jobspec_duration_steps(table[i].from, s->steps_per_epoch, table[i].to) == ST_OK)
            continue;
        reason_set(reason, "%s: a time is not supported in this version; give steps or epochs",
                   table[i].key);
        return ST_CONFIG;
    }
    return ST_OK;
}

static enum schedule_kind schedule_of(enum jobspec_schedule name)
{
    switch (name) {
    case JOBSPEC_SCHEDULE_CONSTANT:
        return SCHEDULE_CONSTANT;
    case JOBSPEC_SCHEDULE_COSINE:
        return SCHEDULE_COSINE;
    case JOBSPEC_SCHEDULE_STEP:
        return SCHEDULE_STEP;
    case JOBSPEC_SCHEDULE_LINEAR:
        return SCHEDULE_LINEAR;
    case JOBSPEC_SCHEDULE_POLYNOMIAL:
        return SCHEDULE_POLYNOMIAL;
    case JOBSPEC_SCHEDULE_INVERSE_SQRT:
        return SCHEDULE_INVERSE_SQRT;
    case JOBSPEC_SCHEDULE_ONE_CYCLE:
        return SCHEDULE_ONE_CYCLE;
    case JOBSPEC_SCHEDULE_WSD:
        return SCHEDULE_WSD;
    case JOBSPEC_SCHEDULE_NONE:
        break;
    }
    CHECK(false); /* every job has a schedule */
    return SCHEDULE_CONSTANT;
}

static void derive_schedule(const struct jobspec *job, struct settings *s)
{
    s->schedule.lr = job->train.optimizer.lr;
    s->schedule.total = s->total_steps;
    s->schedule.min = job->train.schedule.min_lr;
    s->schedule.gamma = job->train.schedule.gamma;
    s->schedule.power = job->train.schedule.power;
    s->schedule.start = job->train.schedule.start_lr;
    if (s->schedule.every == 0)
        s->schedule.every = 1;
    s->schedule.kind = schedule_of(job->train.schedule.name);
}

static unsigned no_decay(const struct jobspec *job)
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

static enum math math_of(enum jobspec_precision precision)
{
    switch (precision) {
    case JOBSPEC_PRECISION_FP32:
        return MATH_F32;
    case JOBSPEC_PRECISION_TF32:
        return MATH_TF32;
    case JOBSPEC_PRECISION_BF16:
        return MATH_BF16;
    case JOBSPEC_PRECISION_FP16:
        return MATH_F16;
    case JOBSPEC_PRECISION_NONE:
        break;
    }
    CHECK(false); /* every job has a precision */
    return MATH_F32;
}

static enum plan_recompute recompute_of(enum jobspec_recompute recompute)
{
    switch (recompute) {
    case JOBSPEC_RECOMPUTE_SELECTIVE:
        return PLAN_RECOMPUTE_SELECTIVE;
    case JOBSPEC_RECOMPUTE_FULL:
        return PLAN_RECOMPUTE_FULL;
    case JOBSPEC_RECOMPUTE_NOTHING:
    case JOBSPEC_RECOMPUTE_NONE:
        break;
    }
    return PLAN_RECOMPUTE_NONE;
}

static void derive_precision(const struct jobspec *job, struct settings *s)
{
    s->math = math_of(job->train.precision);
    s->amp = job->train.amp == JOBSPEC_AMP_O2 ? AMP_O2 : AMP_O1;
    s->recompute = recompute_of(job->train.recompute);
    const bool half = s->math == MATH_BF16 || s->math == MATH_F16;
    s->scaler = jobspec_scale_is_dynamic(job)
                    ? scaler_dynamic(s->math == MATH_F16 ? SCALER_MOST_FP16 : SCALER_MOST)
                    : scaler_static(half ? job->train.loss_scale : 1);
}

static void derive_optimizer(const struct jobspec *job, struct settings *s)
{
    CHECK(job->train.optimizer.name != JOBSPEC_OPTIMIZER_NONE);
    s->optimizer = (struct optimizer_options){
        .kind = job->train.optimizer.name,
        .momentum = (float)job->train.optimizer.momentum,
        .nesterov = job->train.optimizer.nesterov,
        .beta1 = (float)job->train.optimizer.beta1,
        .beta2 = (float)job->train.optimizer.beta2,
        .eps = (float)job->train.optimizer.eps,
        .weight_decay = (float)job->train.optimizer.weight_decay,
        .clip_norm = (float)job->train.clip_norm,
        .no_decay = no_decay(job),
        .ema = job->train.ema,
    };
}

static void derive_history(const struct jobspec *job, struct settings *s)
{
    s->history = (struct history_options){ .metric = job->train.stop.metric,
                                           .patience = (uint32_t)job->train.stop.patience,
                                           .min_delta = (float)job->train.stop.min_delta,
                                           .on_spike = job->recovery.on_spike,
                                           .spike = job->recovery.spike,
                                           .window = (uint32_t)job->recovery.spike_window };
}

enum status settings_derive(const struct jobspec *job, uint64_t samples, struct settings *out,
                            struct reason *reason)
{
    CHECK(job->train.lanes > 0);
    CHECK(job->train.micro_batch == 0 ||
          job->train.lanes * job->train.micro_batch * job->train.accumulate ==
              job->train.global_batch);
    uint64_t batch = (uint64_t)job->train.global_batch;
    if (samples < batch) {
        reason_set(reason,
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
    if (job->recovery.exactness != JOBSPEC_EXACTNESS_RELAXED) { /* else bits may differ */
        s.audit_every = (uint64_t)job->audit.every;
        s.checksum_every = (uint64_t)job->audit.checksum;
    }
    enum status st = derive_durations(job, &s, reason);
    if (st != ST_OK)
        return st;
    derive_schedule(job, &s);
    derive_optimizer(job, &s);
    derive_precision(job, &s);
    derive_history(job, &s);
    CHECK(s.total_steps > 0);
    *out = s;
    return ST_OK;
}
