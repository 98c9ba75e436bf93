/* Derives options of the training, and checks that they fit together. */
#include <stdio.h>

#include "jobspec/reader.h"

/* Fills in what optimizers have in common, but with other values. */
static void fill_optimizer(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const enum jobspec_optimizer name = job->train.optimizer.name;
    const bool adam = name == JOBSPEC_OPTIMIZER_ADAMW || name == JOBSPEC_OPTIMIZER_LAMB ||
                      name == JOBSPEC_OPTIMIZER_MUON;
    if (!reader_has(reader, "train.optimizer.momentum") && name == JOBSPEC_OPTIMIZER_MUON)
        job->train.optimizer.momentum = 0.95;
    if (!reader_has(reader, "train.optimizer.beta2") && (adam || name == JOBSPEC_OPTIMIZER_LION))
        job->train.optimizer.beta2 = adam ? 0.999 : 0.99;
    if (!reader_has(reader, "train.optimizer.eps") && adam)
        job->train.optimizer.eps = name == JOBSPEC_OPTIMIZER_LAMB ? 1e-6 : 1e-8;
}

/* Muon takes whole matrices, and owners of moments have chunks of a fixed size. */
static void check_muon(struct reader *reader)
{
    const struct jobspec *job = &reader->job;
    if (job->train.optimizer.name != JOBSPEC_OPTIMIZER_MUON || job->parallel.zero == 0 ||
        !reader_is_good(reader, "parallel.zero"))
        return;
    reader_mistake(reader, "parallel.zero", "remove this key, or use adamw, lamb or lion",
                   "parallel.zero: %lld is not for muon: it needs whole matrices, and owners of "
                   "moments have parts of them",
                   (long long)job->parallel.zero);
}

/* The average of the weights is whole where each worker has all moments. */
static void check_ema(struct reader *reader)
{
    const struct jobspec *job = &reader->job;
    if (!job->eval_ema || !reader_is_good(reader, "train.ema"))
        return;
    if (job->data.eval.format == JOBSPEC_FORMAT_NONE &&
        reader_is_good(reader, "data.eval.format")) {
        reader_mistake(reader, "train.eval_ema", "add data.eval, or remove this key",
                       "train.eval_ema needs data.eval: there is nothing to evaluate on");
    } else if (job->train.ema == 0) {
        reader_mistake(reader, "train.eval_ema", "add for example 'ema: 0.999'",
                       "train.eval_ema needs train.ema: no average of the weights is kept");
    } else if (job->parallel.zero != 0 || job->parallel.pipeline.stages > 1) {
        reader_mistake(
            reader, "train.eval_ema", "remove this key; train.ema itself goes with both",
            "train.eval_ema is not for parallel.zero: 1 and pipelines: no worker has the "
            "whole average");
    }
}

static void check_schedule(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const struct jobspec_duration *duration = &job->train.duration;
    const struct jobspec_duration *decay = &job->train.schedule.decay;
    const bool cycle = job->train.schedule.name == JOBSPEC_SCHEDULE_ONE_CYCLE;
    if (cycle && !reader_has(reader, "train.schedule.min_lr"))
        job->train.schedule.min_lr = 4e-6; /* OneCycleLR's: 1 / 25 / 10000 */
    if (cycle && job->train.schedule.warmup.value == 0 &&
        reader_is_good(reader, "train.schedule.warmup")) {
        reader_mistake(reader, "train.schedule.name", "add for example 'warmup: 1 epoch'",
                       "one_cycle needs a warm-up: its rising half");
    }
    if (reader_has(reader, "train.duration") && reader_has(reader, "train.schedule.decay") &&
        duration->unit == decay->unit && decay->value > duration->value) {
        reader_mistake(reader, "train.schedule.decay", "decay over a part of train.duration",
                       "the decay is longer than the training");
    }
}

void reader_check_training(struct reader *reader)
{
    fill_optimizer(reader);
    check_muon(reader);
    check_schedule(reader);
    check_ema(reader);
}
