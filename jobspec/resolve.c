/* Derives values of a job from its other values, and checks that values fit together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/reader.h"

/* The job's lanes; false: they can't be said. */
static bool resolve_lanes(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    if (!reader_has(reader, "train.global_batch") || !reader_is_good(reader, "train.lanes"))
        return false;
    int64_t batch = job->train.global_batch;
    if (!reader_has(reader, "train.lanes")) {
        job->train.lanes = 8;
        while (batch % job->train.lanes != 0)
            job->train.lanes /= 2;
        return true;
    }
    if (batch % job->train.lanes == 0)
        return true;
    char divisors[160];
    char way_out[LIMIT_REASON];
    reader_divisors(batch, 1, LIMIT_LANES, divisors, sizeof(divisors));
    (void)snprintf(way_out, sizeof(way_out), "lanes that do: %s", divisors);
    reader_mistake(reader, "train.lanes", way_out,
                   "%lld lanes don't divide a global batch of %lld evenly",
                   (long long)job->train.lanes, (long long)batch);
    return false;
}

/* `micro_batch: auto`: on CPU the largest part of a lane that is not above a bound, as its caches
 * want no more at once and its memory is not what counts. Other devices are asked at formation. */
static void resolve_auto_micro_batch(struct reader *reader, int64_t lane)
{
    struct jobspec *job = &reader->job;
    bool text = jobspec_is_text(&job->model);
    if (reader_has(reader, "train.accumulate")) {
        reader_mistake(reader, "train.accumulate", "remove one of the two",
                       "train.accumulate follows from train.micro_batch: auto");
        return;
    }
    if (job->workers.device != JOBSPEC_DEVICE_CPU)
        return;
    int64_t most = text ? JOBSPEC_AUTO_TOKENS / job->model.context : JOBSPEC_AUTO_IMAGES;
    int64_t micro = most < 1 ? 1 : most < lane ? most : lane;
    while (lane % micro != 0)
        micro--;
    job->train.micro_batch = micro;
    job->train.accumulate = lane / micro;
}

/* micro_batch x accumulate = samples of a lane */
static void resolve_micro_batch(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    int64_t lane = job->train.global_batch / job->train.lanes;
    bool has_micro = reader_has(reader, "train.micro_batch");
    bool has_accumulate = reader_has(reader, "train.accumulate");
    if (!reader_is_good(reader, "train.micro_batch") || !reader_is_good(reader, "train.accumulate"))
        return;
    if (has_micro && job->train.micro_batch == 0) {
        resolve_auto_micro_batch(reader, lane);
        return;
    }
    if (!has_accumulate && !has_micro)
        job->train.accumulate = 1;
    if (!has_micro && lane % job->train.accumulate == 0)
        job->train.micro_batch = lane / job->train.accumulate;
    if (!has_accumulate && has_micro && lane % job->train.micro_batch == 0)
        job->train.accumulate = lane / job->train.micro_batch;
    if (job->train.micro_batch * job->train.accumulate == lane)
        return;
    char way_out[LIMIT_REASON];
    char divisors[160];
    reader_divisors(lane, 1, lane, divisors, sizeof(divisors));
    (void)snprintf(way_out, sizeof(way_out), "a lane has %lld samples; take one of: %s",
                   (long long)lane, divisors);
    if (has_micro && has_accumulate) {
        int64_t samples = job->train.micro_batch * job->train.accumulate;
        reader_mistake(reader, "train.micro_batch", way_out,
                       "micro_batch x accumulate = %lld, but a lane has %lld samples",
                       (long long)samples, (long long)lane);
    } else if (has_micro) {
        reader_mistake(reader, "train.micro_batch", way_out,
                       "a micro-batch of %lld doesn't divide a lane evenly",
                       (long long)job->train.micro_batch);
    } else {
        reader_mistake(reader, "train.accumulate", way_out,
                       "a lane can't be cut into %lld micro-batches",
                       (long long)job->train.accumulate);
    }
}

/* The shares that the file gives; the sum must be the lanes, the count the workers. */
static void check_shares(struct reader *reader, bool lanes_known)
{
    struct jobspec *job = &reader->job;
    int64_t sum = 0;
    for (size_t i = 0; i < reader->share_count; i++)
        sum += job->workers.shares[i];
    if (!reader_has(reader, "workers.count"))
        job->workers.count = (int64_t)reader->share_count;
    if (job->workers.count != (int64_t)reader->share_count) {
        reader_mistake(reader, "workers.shares", "write one number per worker",
                       "%zu shares for %lld workers", reader->share_count,
                       (long long)job->workers.count);
    }
    if (lanes_known && sum != job->train.lanes) {
        reader_mistake(reader, "workers.shares", "the shares of all workers together are the lanes",
                       "the shares sum to %lld, but there are %lld lanes", (long long)sum,
                       (long long)job->train.lanes);
    }
}

/* Resolves workers.min. With fewer workers than `count` a job trains only if the file says so; then
 * its state must not depend on who dies. */
static void resolve_min(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const long long count = job->workers.count;
    if (!reader_has(reader, "workers.min"))
        job->workers.min = count;
    const long long min = job->workers.min;
    char way_out[LIMIT_REASON];
    if (min > count) {
        (void)snprintf(way_out, sizeof(way_out),
                       "set workers.min to %lld or less, or workers.count to %lld or more", count,
                       min);
        reader_mistake(reader, "workers.min", way_out,
                       "workers.min: %lld is more than workers.count: %lld", min, count);
    } else if (min < count && job->parallel.reduction == JOBSPEC_REDUCTION_FAST &&
               job->workers.device == JOBSPEC_DEVICE_CUDA) {
        reader_mistake(
            reader, "workers.min", "remove this key, or set parallel.reduction to exact",
            "workers.min: %lld is less than workers.count: %lld, but with parallel.reduction: "
            "fast the state would depend on which workers die",
            min, count);
    }
}

static void check_spares(struct reader *reader)
{
    const struct jobspec *job = &reader->job;
    const long long most = LIMIT_RANKS - job->workers.count;
    if (!reader_has(reader, "workers.spares") || job->workers.spares <= most)
        return;
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "set workers.spares to %lld or less", most);
    reader_mistake(
        reader, "workers.spares", way_out,
        "%lld workers and %lld spares are more than the %d processes that a job may have",
        (long long)job->workers.count, (long long)job->workers.spares, LIMIT_RANKS);
}

static void resolve_workers(struct reader *reader, bool lanes_known)
{
    struct jobspec *job = &reader->job;
    reader_begin_pipeline(reader);
    if (!reader_is_good(reader, "workers.count") || !reader_is_good(reader, "workers.shares") ||
        !reader_is_good(reader, "parallel.pipeline") || !reader_is_good(reader, "parallel.stages"))
        return;
    if (job->parallel.pipeline.stages > 1) {
        if (reader_cut(reader)) {
            resolve_min(reader);
            check_spares(reader);
            reader_share_stages(reader, lanes_known);
        }
        return;
    }
    if (job->workers.count == 0)
        job->workers.count = 1;
    bool has_shares = reader_has(reader, "workers.shares") && !job->workers.by_speed;
    if (has_shares)
        check_shares(reader, lanes_known);
    resolve_min(reader);
    check_spares(reader);
    if (!lanes_known || has_shares)
        return;
    if (job->workers.count > job->train.lanes) {
        char way_out[LIMIT_REASON];
        reader_lanes_for(reader, job->workers.count, way_out);
        const size_t used = strlen(way_out);
        (void)snprintf(way_out + used, sizeof(way_out) - used, "workers.count to %lld or less",
                       (long long)job->train.lanes);
        reader_mistake(reader, "workers.count", way_out,
                       "%lld workers can't share %lld lanes: each carries at least one",
                       (long long)job->workers.count, (long long)job->train.lanes);
        return;
    }
    if (jobspec_shares(job->train.lanes, job->workers.count, job->workers.shares) != ST_OK)
        reader_mistake(reader, "workers.count", "use fewer workers", "the lanes can't be shared");
}

/* Returns the weight decay by default: PyTorch's, of LAMB and Lion their papers' code. */
static double default_decay(enum jobspec_optimizer name)
{
    switch (name) {
    case JOBSPEC_OPTIMIZER_ADAMW:
    case JOBSPEC_OPTIMIZER_LAMB:
        return 0.01;
    case JOBSPEC_OPTIMIZER_MUON:
        return 0.1;
    case JOBSPEC_OPTIMIZER_LION:
    case JOBSPEC_OPTIMIZER_SGD:
    case JOBSPEC_OPTIMIZER_NONE:
        break;
    }
    return 0;
}

/* Returns whether biases and norms of a text model don't decay by default, as GPT-2's trainers do
 * it. */
static bool exempts_biases(enum jobspec_optimizer name)
{
    switch (name) {
    case JOBSPEC_OPTIMIZER_ADAMW:
    case JOBSPEC_OPTIMIZER_LION:
    case JOBSPEC_OPTIMIZER_LAMB:
    case JOBSPEC_OPTIMIZER_MUON:
        return true;
    case JOBSPEC_OPTIMIZER_SGD:
    case JOBSPEC_OPTIMIZER_NONE:
        break;
    }
    return false;
}

static void check_optimizer(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const enum jobspec_optimizer name = job->train.optimizer.name;
    if (!reader_has(reader, "train.optimizer.weight_decay"))
        job->train.optimizer.weight_decay = default_decay(name);
    if (!reader_has(reader, "train.optimizer.no_decay") && exempts_biases(name) &&
        jobspec_is_text(&job->model)) {
        job->train.optimizer.no_decay.bias = true;
        job->train.optimizer.no_decay.norm = true;
    }
    if (job->train.optimizer.nesterov && job->train.optimizer.momentum == 0 &&
        reader_is_good(reader, "train.optimizer.momentum")) {
        reader_mistake(reader, "train.optimizer.nesterov", "add for example 'momentum: 0.9'",
                       "nesterov needs a momentum above 0");
    }
}

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

static void check_training(struct reader *reader)
{
    fill_optimizer(reader);
    check_muon(reader);
    check_schedule(reader);
    check_ema(reader);
}

static void check_times(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const struct jobspec_duration *duration = &job->train.duration;
    const struct jobspec_duration *warmup = &job->train.schedule.warmup;
    if (reader_has(reader, "train.duration") && reader_has(reader, "train.schedule.warmup") &&
        duration->unit == warmup->unit && warmup->value > duration->value) {
        reader_mistake(reader, "train.schedule.warmup", "warm up for a part of train.duration",
                       "the warm-up is longer than the training");
    }
    if (reader_has(reader, "eval.every") && job->data.eval.format == JOBSPEC_FORMAT_NONE &&
        reader_is_good(reader, "data.eval.format")) {
        reader_mistake(reader, "eval.every", "add data.eval, or remove eval",
                       "eval.every needs data.eval: there is nothing to evaluate on");
    }
    if (job->data.train.format == JOBSPEC_FORMAT_SYNTHETIC &&
        reader_has(reader, "train.global_batch") && reader_is_good(reader, "data.train.samples") &&
        job->data.train.samples < job->train.global_batch) {
        reader_mistake(reader, "data.train.samples", "an epoch has at least one step",
                       "%lld samples are fewer than a global batch of %lld",
                       (long long)job->data.train.samples, (long long)job->train.global_batch);
    }
}

/* ---- models ---- */

/* A graph or a library. */
static bool job_is_own(const struct jobspec *job)
{
    return job->model.arch == JOBSPEC_ARCH_GRAPH || job->model.arch == JOBSPEC_ARCH_LIBRARY;
}

/* Text models read tokens, the others images. */
static void check_data(struct reader *reader, const char *path, enum jobspec_format format)
{
    const struct jobspec_model *model = &reader->job.model;
    bool text = jobspec_is_text(model);
    bool tokens = false;
    switch (format) {
    case JOBSPEC_FORMAT_NONE:
    case JOBSPEC_FORMAT_SYNTHETIC:
        return;
    case JOBSPEC_FORMAT_TEXT:
    case JOBSPEC_FORMAT_TOKENS:
        tokens = true;
        break;
    case JOBSPEC_FORMAT_IDX:
        break;
    }
    if (text == tokens)
        return;
    if (job_is_own(&reader->job)) {
        reader_mistake(reader, path,
                       text ? "add for example 'input: [1, 28, 28]' to model"
                            : "use idx or synthetic, or remove model.input",
                       "format %s holds %s, but the model reads %s: it has %s model.input",
                       jobspec_format_word(format), tokens ? "tokens" : "images",
                       text ? "tokens" : "images", text ? "no" : "a");
        return;
    }
    reader_mistake(
        reader, path,
        text ? "use text, tokens or synthetic" : "use idx or synthetic, or model.arch: gpt2",
        "format %s holds %s, but model.arch %s reads %s", jobspec_format_word(format),
        tokens ? "tokens" : "images", jobspec_arch_word(model->arch), text ? "tokens" : "images");
}

static void check_model(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    if (job->model.arch == JOBSPEC_ARCH_NONE)
        return;
    check_data(reader, "data.train.format", job->data.train.format);
    check_data(reader, "data.eval.format", job->data.eval.format);
    if (job_is_own(job)) {
        reader_resolve_own(reader);
    } else if (jobspec_is_text(&job->model) || job->model.arch == JOBSPEC_ARCH_VIT) {
        reader_resolve_transformer(reader);
    }
    if (!jobspec_is_text(&job->model))
        return;
    if (reader_has(reader, "data.augment") && (job->data.augment.crop || job->data.augment.flip)) {
        reader_mistake(reader, "data.augment", "remove this key",
                       "data.augment is for images, but model.arch %s reads tokens",
                       jobspec_arch_word(job->model.arch));
    }
}

/* ---- devices ---- */

bool jobspec_scale_is_dynamic(const struct jobspec *job)
{
    const bool half = job->train.precision == JOBSPEC_PRECISION_BF16 ||
                      job->train.precision == JOBSPEC_PRECISION_FP16;
    return half && job->train.loss_scale == 0;
}

static void check_device_use(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    if (!reader_has(reader, "train.loss_scale"))
        job->train.loss_scale = job->train.precision == JOBSPEC_PRECISION_BF16 ? 1 : 0;
    if (!reader_is_good(reader, "workers.device") || job->workers.device == JOBSPEC_DEVICE_CUDA)
        return;
    const struct {
        const char *path;
        unsigned refused; /* a value of the path's enum */
        const char *way_out;
    } rows[] = {
        { "train.precision", JOBSPEC_PRECISION_FP16, "use bf16, or set workers.device to cuda" },
        { "train.precision", JOBSPEC_PRECISION_TF32, "use fp32, or set workers.device to cuda" },
        { "workers.memory", JOBSPEC_MEMORY_MANAGED,
          "remove this key, or set workers.device to cuda" },
        { "parallel.reduction", JOBSPEC_REDUCTION_FAST,
          "remove this key, or set workers.device to cuda" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (schema_value(rows[i].path, job) != rows[i].refused)
            continue;
        char word[FIELD_WORD_BYTES];
        schema_value_text(rows[i].path, job, word, sizeof(word));
        reader_mistake(reader, rows[i].path, rows[i].way_out,
                       "%s: %s is not for workers.device: %s", rows[i].path, word,
                       jobspec_device_word(job->workers.device));
    }
}

/* ---- checkpoints ---- */

/* Checks the size of a worker's share of the training state, which must fit into a save. For image
 * models the worker does so. */
static void check_state(struct reader *reader)
{
    const struct jobspec *job = &reader->job;
    static const char *const used[] = {
        "model.arch",  "model.layers",   "model.width",        "model.context",       "model.vocab",
        "model.heads", "model.kv_heads", "model.intermediate", "train.optimizer.name"
    };
    for (size_t i = 0; i < sizeof(used) / sizeof(used[0]); i++) {
        if (!reader_is_good(reader, used[i]))
            return;
    }
    if (!jobspec_is_text(&job->model) && job->model.arch != JOBSPEC_ARCH_GRAPH)
        return; /* what an image model has depends on its images */
    const uint64_t workers = (uint64_t)job->workers.min; /* shares are largest then */
    const uint64_t state = jobspec_state_bytes(job), most = LIMIT_SHARE_BYTES;
    const unsigned long long least = state / most + 1;
    if (!reader_is_good(reader, "workers.count") || !reader_is_good(reader, "workers.min") ||
        workers == 0 || state / workers <= most)
        return;
    const char *at = reader_has(reader, "workers.min")     ? "workers.min"
                     : reader_has(reader, "workers.count") ? "workers.count"
                                                           : "model.arch";
    const double gib = 1024.0 * 1024.0 * 1024.0;
    char way_out[LIMIT_REASON];
    (void)snprintf(way_out, sizeof(way_out), "use at least %llu workers, or a smaller model",
                   least);
    reader_mistake(
        reader, at, way_out,
        "a worker's share of the training state is %.2f GiB of %.2f GiB, but one of more than "
        "%.2f GiB can't be saved",
        (double)state / (double)workers / gib, (double)state / gib, (double)most / gib);
}

/* path: of a key that names a metric */
static void check_metric(struct reader *reader, const char *path, enum jobspec_metric metric)
{
    const struct jobspec *job = &reader->job;
    bool needs_eval = metric == JOBSPEC_METRIC_EVAL_LOSS || metric == JOBSPEC_METRIC_EVAL_ACCURACY;
    if (needs_eval && job->data.eval.format == JOBSPEC_FORMAT_NONE &&
        reader_is_good(reader, "data.eval.format")) {
        reader_mistake(reader, path, "add data.eval, or use loss",
                       "%s needs data.eval: there is nothing to evaluate on",
                       jobspec_metric_word(metric));
    }
}

void reader_resolve(struct reader *reader)
{
    check_model(reader);
    check_device_use(reader);
    bool lanes_known = resolve_lanes(reader);
    if (lanes_known)
        resolve_micro_batch(reader);
    resolve_workers(reader, lanes_known);
    check_optimizer(reader);
    check_training(reader);
    check_times(reader);
    check_metric(reader, "checkpoint.keep.best.metric", reader->job.checkpoint.keep_best.metric);
    check_metric(reader, "train.stop.metric", reader->job.train.stop.metric);
    check_state(reader);
}

/* Checks what Cairn doesn't do of the state of a program, and fills in how often it is copied. */
static void resolve_saves(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    const char *store = job->checkpoint.store;
    if (job->checkpoint.memory_every == JOBSPEC_EVERY_AUTO)
        job->checkpoint.memory_every = 1;
    if (job->checkpoint.peers > 0 && reader_is_good(reader, "checkpoint.peers")) {
        reader_mistake(
            reader, "checkpoint.peers", "remove this key",
            "checkpoint.peers: %lld is not for a job with a command: copies of its state "
            "stay on their node",
            (long long)job->checkpoint.peers);
    }
    if (reader_is_good(reader, "checkpoint.store") && strncmp(store, "s3://", 5) == 0) {
        reader_mistake(reader, "checkpoint.store",
                       "write a folder, which may be on a network file system",
                       "the checkpoints of a job with a command can't be in S3");
    }
    if (job->command.processes * job->workers.count > LIMIT_RANKS &&
        reader_has(reader, "command.processes")) {
        char way_out[LIMIT_REASON];
        (void)snprintf(way_out, sizeof(way_out), "set command.processes to %lld or less",
                       (long long)(LIMIT_RANKS / job->workers.count));
        reader_mistake(reader, "command.processes", way_out,
                       "%lld processes are more than the %d whose state Cairn can save",
                       (long long)job->command.processes * (long long)job->workers.count,
                       LIMIT_RANKS);
    }
}

void reader_resolve_command(struct reader *reader)
{
    struct jobspec *job = &reader->job;
    if (!reader_is_good(reader, "workers.count"))
        return;
    if (job->workers.count == 0)
        job->workers.count = 1;
    if (reader_is_good(reader, "workers.min"))
        resolve_min(reader);
    reader_check_preload(reader);
    if (job->command.saves)
        resolve_saves(reader);
}
