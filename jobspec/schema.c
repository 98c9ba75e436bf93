#include "jobspec/schema.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/text/suggest.h"
#include "jobspec/text/synonym.h"
#include "jobspec/text/texts.h"

#define AT(member)                                                                                 \
    .offset = offsetof(struct jobspec, member), .size = sizeof(((struct jobspec *)NULL)->member)
#define NOWHERE .offset = FIELD_NOWHERE, .size = 0

#define FORMATS JOBSPEC_WORDS(JOBSPEC_FORMATS) "| cifar"

#define TEXT_MODELS                                                                                \
    (FIELD_BIT(JOBSPEC_ARCH_GPT2) | FIELD_BIT(JOBSPEC_ARCH_LLAMA) | FIELD_BIT(JOBSPEC_ARCH_BERT))
#define IMAGE_MODELS                                                                               \
    (FIELD_BIT(JOBSPEC_ARCH_MLP) | FIELD_BIT(JOBSPEC_ARCH_LENET) |                                 \
     FIELD_BIT(JOBSPEC_ARCH_RESNET18) | FIELD_BIT(JOBSPEC_ARCH_RESNET50) |                         \
     FIELD_BIT(JOBSPEC_ARCH_RESNET152) | FIELD_BIT(JOBSPEC_ARCH_VIT))
#define OWN_MODELS (FIELD_BIT(JOBSPEC_ARCH_GRAPH) | FIELD_BIT(JOBSPEC_ARCH_LIBRARY))
#define IDX        FIELD_BIT(JOBSPEC_FORMAT_IDX)
#define TEXT       FIELD_BIT(JOBSPEC_FORMAT_TEXT)
#define TOKENS     FIELD_BIT(JOBSPEC_FORMAT_TOKENS)
#define SYNTHETIC  FIELD_BIT(JOBSPEC_FORMAT_SYNTHETIC)
#define SGDS       FIELD_BIT(JOBSPEC_OPTIMIZER_SGD)
#define LIONS      FIELD_BIT(JOBSPEC_OPTIMIZER_LION)
#define MUONS      FIELD_BIT(JOBSPEC_OPTIMIZER_MUON)
#define ADAMS      (FIELD_BIT(JOBSPEC_OPTIMIZER_ADAMW) | FIELD_BIT(JOBSPEC_OPTIMIZER_LAMB) | MUONS)
#define CYCLES     FIELD_BIT(JOBSPEC_SCHEDULE_ONE_CYCLE)
#define POWERS     FIELD_BIT(JOBSPEC_SCHEDULE_POLYNOMIAL)
#define STABLES    FIELD_BIT(JOBSPEC_SCHEDULE_WSD)
#define ENDINGS                                                                                    \
    (FIELD_BIT(JOBSPEC_SCHEDULE_COSINE) | FIELD_BIT(JOBSPEC_SCHEDULE_LINEAR) | POWERS | CYCLES |   \
     STABLES)
#define EPS_LEAST 1.2e-38 /* the least float32 that is not flushed to zero */
#define HALVES    (FIELD_BIT(JOBSPEC_PRECISION_BF16) | FIELD_BIT(JOBSPEC_PRECISION_FP16))

/* The conditions under which a key is used. */
#define WHEN(path_, values_) .when_path = (path_), .when_values = (values_)
#define OPTIMIZED(values_)   WHEN("train.optimizer.name", values_)
#define SCHEDULED(values_)   WHEN("train.schedule.name", values_)
#define TEXTUAL              WHEN("model.arch", TEXT_MODELS)
#define GPT2                 WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_GPT2))
#define LLAMA                WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_LLAMA))
#define CLASSIFYING          WHEN("model.arch", IMAGE_MODELS | OWN_MODELS)
#define READING              WHEN("model.arch", TEXT_MODELS | OWN_MODELS)
#define OWN                  WHEN("model.arch", OWN_MODELS)
#define GRAPH                WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_GRAPH))
#define LIBRARY              WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_LIBRARY))
#define TRANSFORMER          WHEN("model.arch", TEXT_MODELS | FIELD_BIT(JOBSPEC_ARCH_VIT))
#define VIT                  WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_VIT))
#define BERT                 WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_BERT))
#define MLP                  WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_MLP))
#define HALF                 WHEN("train.precision", HALVES)
#define CUDA                 WHEN("workers.device", FIELD_BIT(JOBSPEC_DEVICE_CUDA))
#define STEPWISE             WHEN("train.schedule.name", FIELD_BIT(JOBSPEC_SCHEDULE_STEP))
#define TRAIN_IS(values_)    WHEN("data.train.format", values_)
#define EVAL_IS(values_)     WHEN("data.eval.format", values_)
#define STOPS                WHEN("train.stop.metric", ~FIELD_BIT(JOBSPEC_METRIC_NONE))
#define SPIKES               WHEN("recovery.on_spike", ~FIELD_BIT(JOBSPEC_ON_SPIKE_NONE))
#define BEST                 WHEN("checkpoint.keep.best.metric", ~FIELD_BIT(JOBSPEC_METRIC_NONE))

#define WITH_DROPOUT                                                                               \
    WHEN("model.arch", FIELD_BIT(JOBSPEC_ARCH_GPT2) | FIELD_BIT(JOBSPEC_ARCH_VIT) |                \
                           FIELD_BIT(JOBSPEC_ARCH_BERT))

#define ARCH_BIT(name, word) | FIELD_BIT(name)
_Static_assert((TEXT_MODELS | IMAGE_MODELS | OWN_MODELS) == (0 JOBSPEC_ARCHS(ARCH_BIT)) &&
                   (TEXT_MODELS & IMAGE_MODELS) == 0,
               "a model reads either tokens or images, or says which");

#define STEP_UNITS (UNIT_STEPS | UNIT_EPOCHS)

/* clang-format off: one row, one line or two */
static const struct field fields[] = {
    { "name", FIELD_NAME, FIELD_REQUIRED, AT(name), .example = "name: my-job" },

    { "model.arch", FIELD_WORD, FIELD_REQUIRED, AT(model.arch), .example = "arch: resnet18",
      .words = JOBSPEC_WORDS(JOBSPEC_ARCHS) },
    { "model.size", FIELD_WORD, 0, AT(model.size), .words = JOBSPEC_WORDS(JOBSPEC_SIZES), GPT2 },
    { "model.classes", FIELD_INT, 0, AT(model.classes), 2, 1e6, .fallback = "10", CLASSIFYING },
    { "model.hidden", FIELD_INT, 0, AT(model.hidden), 1, 65536, .fallback = "256", MLP },
    { "model.layers", FIELD_INT, 0, AT(model.layers), 1, 100, TRANSFORMER },
    { "model.heads", FIELD_INT, 0, AT(model.heads), 1, 1024, TRANSFORMER },
    { "model.width", FIELD_INT, 0, AT(model.width), 1, 65536, TRANSFORMER },
    { "model.context", FIELD_INT, 0, AT(model.context), 1, 1 << 20, .fallback = "1024", READING },
    { "model.vocab", FIELD_INT, 0, AT(model.vocab), 2, 1 << 20, READING },
    { "model.dropout", FIELD_REAL, FIELD_HIGH_OPEN, AT(model.dropout), 0, 1, .fallback = "0",
      WITH_DROPOUT },
    { "model.kv_heads", FIELD_INT, 0, AT(model.kv_heads), 1, 1024, LLAMA },
    { "model.intermediate", FIELD_INT, 0, AT(model.intermediate), 1, 1 << 20, LLAMA },
    { "model.rope_theta", FIELD_REAL, 0, AT(model.rope_theta), 1, 1e9, .fallback = "10000", LLAMA },
    { "model.norm_eps", FIELD_REAL, 0, AT(model.norm_eps), EPS_LEAST, 1, .fallback = "1e-5",
      LLAMA },
    { "model.tied", FIELD_BOOL, 0, AT(model.tied), .fallback = "false", LLAMA },
    { "model.patch", FIELD_INT, 0, AT(model.patch), 1, 1024, .fallback = "16", VIT },
    { "model.mask", FIELD_INT, 0, AT(model.mask), 1, (1 << 20) - 2, BERT },
    { "model.mask_share", FIELD_REAL, FIELD_LOW_OPEN, AT(model.mask_share), 0, 1,
      .fallback = "0.15", BERT },
    { "model.weights", FIELD_PATH, 0, AT(model.weights), .example = "weights: gpt2.safetensors" },
    { "model.input", FIELD_SIZES, 0, AT(model.input), 1, 16384, OWN, .example = "[3, 32, 32]" },
    { "model.library", FIELD_PATH, FIELD_WITH_SECTION, AT(model.library), LIBRARY,
      .example = "library: model.so" },
    { "model.graph", FIELD_GRAPH, FIELD_WITH_SECTION, AT(graph), GRAPH,
      .example = "graph: [{name: fc1, op: linear, out: 10}]" },

    { "data.train.format", FIELD_WORD, FIELD_REQUIRED, AT(data.train.format), .words = FORMATS,
      .example = "format: idx" },
    { "data.train.images", FIELD_PATH, FIELD_WITH_SECTION, AT(data.train.images), TRAIN_IS(IDX),
      .example = "images: train-images-idx3-ubyte.gz" },
    { "data.train.labels", FIELD_PATH, FIELD_WITH_SECTION, AT(data.train.labels), TRAIN_IS(IDX),
      .example = "labels: train-labels-idx1-ubyte.gz" },
    { "data.train.path", FIELD_PATH, FIELD_WITH_SECTION, AT(data.train.path),
      TRAIN_IS(TEXT | TOKENS), .example = "path: train.txt" },
    { "data.train.tokenizer", FIELD_WORD, 0, AT(data.train.tokenizer),
      .words = JOBSPEC_WORDS(JOBSPEC_TOKENIZERS) "| gpt2", .fallback = "bytes", TRAIN_IS(TEXT) },
    { "data.train.samples", FIELD_INT, 0, AT(data.train.samples), 1, 1e9, .fallback = "8192",
      TRAIN_IS(SYNTHETIC) },
    { "data.eval.format", FIELD_WORD, FIELD_WITH_SECTION, AT(data.eval.format), .words = FORMATS,
      .example = "format: idx" },
    { "data.eval.images", FIELD_PATH, FIELD_WITH_SECTION, AT(data.eval.images), EVAL_IS(IDX),
      .example = "images: t10k-images-idx3-ubyte.gz" },
    { "data.eval.labels", FIELD_PATH, FIELD_WITH_SECTION, AT(data.eval.labels), EVAL_IS(IDX),
      .example = "labels: t10k-labels-idx1-ubyte.gz" },
    { "data.eval.path", FIELD_PATH, FIELD_WITH_SECTION, AT(data.eval.path), EVAL_IS(TEXT | TOKENS),
      .example = "path: eval.txt" },
    { "data.eval.tokenizer", FIELD_WORD, 0, AT(data.eval.tokenizer),
      .words = JOBSPEC_WORDS(JOBSPEC_TOKENIZERS) "| gpt2", .fallback = "bytes", EVAL_IS(TEXT) },
    { "data.eval.samples", FIELD_INT, 0, AT(data.eval.samples), 1, 1e9, .fallback = "1024",
      EVAL_IS(SYNTHETIC) },
    { "data.augment", FIELD_WORDS, 0, AT(data.augment), .words = "crop flip",
      .example = "[crop, flip]" },

    { "train.duration", FIELD_DURATION, FIELD_REQUIRED, AT(train.duration), 1, 1e9,
      .units = STEP_UNITS, .example = "duration: 10 epochs" },
    { "train.global_batch", FIELD_INT, FIELD_REQUIRED, AT(train.global_batch), 1, 1 << 24,
      .example = "global_batch: 256" },
    { "train.lanes", FIELD_INT, 0, AT(train.lanes), 1, LIMIT_LANES },
    { "train.accumulate", FIELD_INT, 0, AT(train.accumulate), 1, 1 << 24 },
    { "train.micro_batch", FIELD_INT, 0, AT(train.micro_batch), 1, 1 << 24, .words = "auto" },
    { "train.optimizer.name", FIELD_WORD, 0, AT(train.optimizer.name),
      .words = JOBSPEC_WORDS(JOBSPEC_OPTIMIZERS), .fallback = "sgd" },
    { "train.optimizer.lr", FIELD_REAL, FIELD_REQUIRED, AT(train.optimizer.lr), 0, 1000,
      .example = "lr: 0.1" },
    { "train.optimizer.momentum", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.optimizer.momentum), 0, 1,
      OPTIMIZED(SGDS | MUONS) },
    { "train.optimizer.nesterov", FIELD_BOOL, 0, AT(train.optimizer.nesterov), .fallback = "false",
      OPTIMIZED(SGDS) },
    { "train.optimizer.beta1", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.optimizer.beta1), 0, 1,
      .fallback = "0.9", OPTIMIZED(ADAMS | LIONS) },
    { "train.optimizer.beta2", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.optimizer.beta2), 0, 1,
      OPTIMIZED(ADAMS | LIONS) },
    { "train.optimizer.eps", FIELD_REAL, 0, AT(train.optimizer.eps), EPS_LEAST, 1,
      OPTIMIZED(ADAMS) },
    { "train.optimizer.weight_decay", FIELD_REAL, 0, AT(train.optimizer.weight_decay), 0, 10 },
    { "train.optimizer.no_decay", FIELD_WORDS, 0, AT(train.optimizer.no_decay),
      .words = "bias norm embedding", .example = "[bias, norm]" },
    { "train.schedule.name", FIELD_WORD, 0, AT(train.schedule.name),
      .words = JOBSPEC_WORDS(JOBSPEC_SCHEDULES), .fallback = "constant" },
    { "train.schedule.warmup", FIELD_DURATION, 0, AT(train.schedule.warmup), 0, 1e9,
      .units = STEP_UNITS, .fallback = "0 steps" },
    { "train.schedule.min_lr", FIELD_REAL, 0, AT(train.schedule.min_lr), 0, 1, SCHEDULED(ENDINGS) },
    { "train.schedule.gamma", FIELD_REAL, FIELD_LOW_OPEN, AT(train.schedule.gamma), 0, 1,
      .fallback = "0.1", STEPWISE },
    { "train.schedule.every", FIELD_DURATION, FIELD_WITH_SECTION, AT(train.schedule.every), 1, 1e9,
      .units = STEP_UNITS, STEPWISE, .example = "every: 30 epochs" },
    { "train.schedule.power", FIELD_REAL, FIELD_LOW_OPEN, AT(train.schedule.power), 0, 1000,
      .fallback = "1", SCHEDULED(POWERS) },
    { "train.schedule.start_lr", FIELD_REAL, 0, AT(train.schedule.start_lr), 0, 1,
      .fallback = "0.04", SCHEDULED(CYCLES) },
    { "train.schedule.decay", FIELD_DURATION, FIELD_WITH_SECTION, AT(train.schedule.decay), 1, 1e9,
      .units = STEP_UNITS, SCHEDULED(STABLES), .example = "decay: 1 epoch" },
    { "train.precision", FIELD_WORD, 0, AT(train.precision),
      .words = JOBSPEC_WORDS(JOBSPEC_PRECISIONS), .fallback = "fp32" },
    { "train.amp", FIELD_WORD, 0, AT(train.amp), .words = JOBSPEC_WORDS(JOBSPEC_AMPS),
      .fallback = "O1", HALF },
    { "train.recompute", FIELD_WORD, 0, AT(train.recompute),
      .words = JOBSPEC_WORDS(JOBSPEC_RECOMPUTES), .fallback = "none" },
    { "train.loss_scale", FIELD_REAL, FIELD_LOW_OPEN, AT(train.loss_scale), 0, 1 << 30,
      .words = "dynamic", HALF },
    { "train.clip_norm", FIELD_REAL, 0, AT(train.clip_norm), 0, 1e9, .fallback = "0" },
    { "train.label_smoothing", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.label_smoothing), 0, 1,
      .fallback = "0" },
    { "train.stop.metric", FIELD_WORD, FIELD_WITH_SECTION, AT(train.stop.metric),
      .words = JOBSPEC_WORDS(JOBSPEC_METRICS), .example = "metric: eval_loss" },
    { "train.stop.patience", FIELD_INT, FIELD_WITH_SECTION, AT(train.stop.patience), 1, 1e9, STOPS,
      .example = "patience: 5" },
    { "train.stop.min_delta", FIELD_REAL, 0, AT(train.stop.min_delta), 0, 1e9, .fallback = "0",
      STOPS },
    { "train.ema", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.ema), 0, 1, .fallback = "0" },
    { "train.eval_ema", FIELD_BOOL, 0, AT(eval_ema), .fallback = "false" },
    { "train.seed", FIELD_INT, 0, AT(train.seed), 0, 9223372036854775807.0, .fallback = "0" },

    { "eval.every", FIELD_DURATION, FIELD_WITH_SECTION, AT(eval_every), 1, 1e9, .units = STEP_UNITS,
      .example = "every: 1 epoch" },

    { "workers.count", FIELD_INT, 0, AT(workers.count), 1, LIMIT_RANKS },
    { "workers.min", FIELD_INT, 0, AT(workers.min), 1, LIMIT_RANKS },
    { "workers.spares", FIELD_INT, 0, AT(workers.spares), 0, LIMIT_RANKS - 1, .fallback = "0" },
    { "workers.shares", FIELD_COUNTS, 0, AT(workers.shares), 1, LIMIT_LANES, .words = "auto",
      .example = "[3, 1]" },
    { "workers.device", FIELD_WORD, 0, AT(workers.device), .words = JOBSPEC_WORDS(JOBSPEC_DEVICES),
      .fallback = "cpu" },
    { "workers.threads", FIELD_INT, 0, AT(workers.threads), 1, 256, .fallback = "1" },
    { "workers.memory", FIELD_WORD, 0, AT(workers.memory), .words = JOBSPEC_WORDS(JOBSPEC_MEMORIES),
      .fallback = "device" },

    { "nccl", FIELD_ENV, 0, AT(nccl), .words = "NCCL_", CUDA,
      .example = "{NCCL_SOCKET_IFNAME: eth0}" },

    { "parallel.tensor", FIELD_INT, FIELD_UNBUILT, NOWHERE, 1, LIMIT_RANKS, .fallback = "1" },
    { "parallel.pipeline", FIELD_CUTS, 0, AT(parallel.pipeline), 1, LIMIT_STAGES, .fallback = "1",
      .example = "4, or [12, 24]" },
    { "parallel.schedule", FIELD_WORD, 0, AT(parallel.schedule),
      .words = JOBSPEC_WORDS(JOBSPEC_PIPELINES), .fallback = "1f1b" },
    { "parallel.stages", FIELD_STAGES, 0, AT(parallel.stages), 1, LIMIT_LANES,
      .example = "[{workers: 2, shares: [5, 3]}, {workers: 1}]" },
    { "parallel.zero", FIELD_INT, 0, AT(parallel.zero), 0, 1, .fallback = "0" },
    { "parallel.reduction", FIELD_WORD, 0, AT(parallel.reduction),
      .words = JOBSPEC_WORDS(JOBSPEC_REDUCTIONS), .fallback = "exact" },

    { "checkpoint.every", FIELD_DURATION, 0, AT(checkpoint.every), 1, 1e9,
      .units = STEP_UNITS | UNIT_TIME, .words = "auto", .fallback = "100 steps" },
    { "checkpoint.keep.last", FIELD_INT, 0, AT(checkpoint.keep_last), 1, 1e4, .fallback = "3" },
    { "checkpoint.keep.best.metric", FIELD_WORD, FIELD_WITH_SECTION,
      AT(checkpoint.keep_best.metric), .words = JOBSPEC_WORDS(JOBSPEC_METRICS),
      .example = "metric: eval_loss" },
    { "checkpoint.keep.best.n", FIELD_INT, 0, AT(checkpoint.keep_best.n), 1, 1000, .fallback = "1",
      BEST },
    { "checkpoint.keep.every", FIELD_AMOUNT, 0, AT(checkpoint.keep_every), 0, 1e9,
      .units = UNIT_STEPS, .words = "none", .fallback = "none" },
    { "checkpoint.store", FIELD_STORE, 0, AT(checkpoint.store), .fallback = "checkpoints" },
    { "checkpoint.level", FIELD_WORD, 0, AT(checkpoint.level),
      .words = JOBSPEC_WORDS(JOBSPEC_LEVELS), .fallback = "default" },
    { "checkpoint.delta", FIELD_BOOL, 0, AT(checkpoint.delta), .fallback = "false" },
    { "checkpoint.threads", FIELD_INT, 0, AT(checkpoint.threads), 1, 64, .fallback = "1" },
    { "checkpoint.memory", FIELD_AMOUNT, 0, AT(checkpoint.memory_bytes), 0x1p24, 0x1p50,
      .units = UNIT_BYTES, .words = "auto", .fallback = "auto" },
    { "checkpoint.memory_every", FIELD_AMOUNT, 0, AT(checkpoint.memory_every), 0, 1e9,
      .units = UNIT_STEPS, .words = "none auto", .fallback = "auto" },
    { "checkpoint.peers", FIELD_INT, 0, AT(checkpoint.peers), 0, 1, .fallback = "0" },
    { "checkpoint.grace", FIELD_AMOUNT, 0, AT(checkpoint.grace_ms), 0, 3600e3, .units = UNIT_TIME,
      .fallback = "30 s" },

    { "audit.every", FIELD_AMOUNT, 0, AT(audit.every), 0, 1e9, .units = UNIT_STEPS, .words = "none",
      .fallback = "200 steps" },
    { "audit.checksum", FIELD_AMOUNT, 0, AT(audit.checksum), 0, 1e9, .units = UNIT_STEPS,
      .words = "none", .fallback = "100 steps" },

    { "recovery.exactness", FIELD_WORD, 0, AT(recovery.exactness),
      .words = JOBSPEC_WORDS(JOBSPEC_EXACTNESSES), .fallback = "strict" },
    { "recovery.on_nan", FIELD_WORD, 0, AT(recovery.on_nan),
      .words = JOBSPEC_WORDS(JOBSPEC_ON_NANS), .fallback = "skip" },
    { "recovery.on_spike", FIELD_WORD, 0, AT(recovery.on_spike),
      .words = JOBSPEC_WORDS(JOBSPEC_ON_SPIKES), .example = "on_spike: skip" },
    { "recovery.spike", FIELD_REAL, FIELD_LOW_OPEN, AT(recovery.spike), 1, 1e9, .fallback = "2",
      SPIKES },
    { "recovery.spike_window", FIELD_INT, 0, AT(recovery.spike_window), 1, JOBSPEC_SPIKE_WINDOW_MAX,
      .fallback = "32", SPIKES },

    { "command.run", FIELD_RUN, FIELD_WITH_SECTION, AT(command.run),
      .example = "run: [python3, train.py]" },
    { "command.workdir", FIELD_PATH, 0, AT(command.workdir), .fallback = "." },
    { "command.env", FIELD_NAMES, 0, AT(command.env), .example = "{LR: 0.1}" },
    { "command.preload", FIELD_MODULES, 0, AT(command.preload), .example = "[torch]" },
    { "command.folder", FIELD_PATH, 0, AT(command.folder) },
    { "command.processes", FIELD_INT, 0, AT(command.processes), 1, 64, .fallback = "1" },
    { "command.progress", FIELD_PATTERN, 0, AT(command.progress) },
    { "command.grace", FIELD_AMOUNT, 0, AT(command.grace_ms), 0, 3600e3, .units = UNIT_TIME,
      .fallback = "30 s" },
    { "command.hang", FIELD_AMOUNT, 0, AT(command.hang_ms), 1e3, 30 * 86400e3, .units = UNIT_TIME,
      .words = "none", .fallback = "none" },
    { "command.restart.on_exit_codes", FIELD_CODES, 0, AT(command.restart.codes), 1, 255,
      .example = "[1, 75]" },
    { "command.restart.on_output", FIELD_PATTERNS, 0, AT(command.restart.on_output),
      .example = "['CUDA error']" },
    { "command.restart.budget", FIELD_INT, 0, AT(command.restart.budget), 1,
      10000 }, /* 0, unwritten: jobspec/budget.h */
};

/* The keys of every job. Those below "command" are for jobs with a command, those below
 * "checkpoint" for jobs of which Cairn saves something, all others for jobs with a model. */
static const char *const of_all_jobs[] = { "name", "workers.count", "workers.min", "workers.device",
                                           "workers.threads" };

static const struct {
    const char *section, *example;
} sections[] = {
    { "model", "model: {arch: resnet18, classes: 10}" },
    { "data", "data: {train: {format: idx, images: FILE, labels: FILE}}" },
    { "data.train", "train: {format: idx, images: FILE, labels: FILE}" },
    { "train", "train: {duration: 10 epochs, global_batch: 256, optimizer: {lr: 0.1}}" },
    { "train.optimizer", "optimizer: {name: sgd, lr: 0.1}" },
    { "command", "command: {run: [python3, train.py]}" },
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(COUNT(fields) <= FIELDS_MAX, "the reader has an entry per row");

const struct field *schema_fields(size_t *out_count)
{
    *out_count = COUNT(fields);
    return fields;
}

const struct field *schema_find(const char *path, size_t *out_index)
{
    for (size_t i = 0; i < COUNT(fields); i++) {
        if (strcmp(fields[i].path, path) == 0) {
            *out_index = i;
            return &fields[i];
        }
    }
    return NULL;
}

/* Returns the part of path behind "section."; NULL: path is not below section. */
static const char *below(const char *path, const char *section)
{
    size_t size = strlen(section);
    if (size == 0)
        return path;
    return strncmp(path, section, size) == 0 && path[size] == '.' ? path + size + 1 : NULL;
}

bool schema_is_section(const char *path)
{
    for (size_t i = 0; i < COUNT(fields); i++) {
        if (below(fields[i].path, path) != NULL)
            return true;
    }
    return false;
}

const char *schema_section_example(const char *path)
{
    for (size_t i = 0; i < COUNT(sections); i++) {
        if (strcmp(sections[i].section, path) == 0)
            return sections[i].example;
    }
    return NULL;
}

/* The i-th row's key directly below section; false: it has none. */
static bool child_key(size_t i, const char *section, char *out, size_t capacity)
{
    const char *rest = below(fields[i].path, section);
    if (rest == NULL)
        return false;
    size_t size = strcspn(rest, ".");
    CHECK(size < capacity);
    memcpy(out, rest, size);
    out[size] = '\0';
    return true;
}

/* True if a field is built, and a job keeps its value. */
static bool is_built(const struct field *field)
{
    return (field->flags & FIELD_UNBUILT) == 0 && field->offset != FIELD_NOWHERE;
}

void schema_keys(const char *section, char *out, size_t capacity)
{
    size_t used = 0;
    char last[FIELD_WORD_BYTES] = "";
    out[0] = '\0';
    for (size_t i = 0; i < COUNT(fields); i++) {
        char key[FIELD_WORD_BYTES];
        if (!is_built(&fields[i]) || !child_key(i, section, key, sizeof(key)) ||
            strcmp(key, last) == 0)
            continue;
        memcpy(last, key, sizeof(last));
        int size = snprintf(out + used, capacity - used, "%s%s", used > 0 ? ", " : "", key);
        if (size < 0 || (size_t)size >= capacity - used)
            return;
        used += (size_t)size;
    }
}

/* A full path, as it is written in section. */
static void write_in(const char *path, const char *section, char *out, size_t capacity)
{
    const char *rest = section[0] == '\0' ? NULL : below(path, section);
    (void)snprintf(out, capacity, "%s", rest != NULL ? rest : path);
}

bool schema_suggest(const char *section, const char *key, char *out, size_t capacity)
{
    size_t best = suggest_limit(key) + 1;
    for (size_t i = 0; i < COUNT(fields); i++) {
        char child[FIELD_WORD_BYTES];
        if (!is_built(&fields[i]) || !child_key(i, section, child, sizeof(child)))
            continue;
        size_t distance = suggest_distance(key, child);
        if (distance < best) {
            best = distance;
            (void)snprintf(out, capacity, "%s", child);
        }
    }
    if (best <= suggest_limit(key))
        return true;
    const char *known = synonym_find(key);
    if (known != NULL) {
        write_in(known, section, out, capacity);
        return true;
    }
    for (size_t i = 0; i < COUNT(fields); i++) {
        const char *dot = strrchr(fields[i].path, '.');
        if (dot != NULL && is_built(&fields[i]) && strcmp(dot + 1, key) == 0) {
            write_in(fields[i].path, section, out, capacity);
            return true;
        }
    }
    return false;
}

bool schema_next_word(const char **at, bool *built, char *out, size_t capacity)
{
    if (*at == NULL)
        return false;
    const char *text = *at + strspn(*at, " ");
    if (text[0] == '|') {
        *built = false;
        text++;
        text += strspn(text, " ");
    }
    size_t size = strcspn(text, " ");
    *at = NULL;
    if (size == 0)
        return false;
    CHECK(size < capacity);
    memcpy(out, text, size);
    out[size] = '\0';
    *at = text + size;
    return true;
}

unsigned schema_word(const struct field *field, const char *text, bool *out_built)
{
    const char *at = field->words;
    bool built = true;
    char word[FIELD_WORD_BYTES];
    for (unsigned number = 1; schema_next_word(&at, &built, word, sizeof(word)); number++) {
        if (strcmp(word, text) == 0) {
            *out_built = built;
            return number;
        }
    }
    return 0;
}

bool schema_has_word(const struct field *field, const char *text)
{
    bool built = false;
    return schema_word(field, text, &built) != 0 && built;
}

void schema_words(const struct field *field, char *out, size_t capacity)
{
    const char *at = field->words;
    bool built = true;
    char word[FIELD_WORD_BYTES];
    size_t used = 0;
    out[0] = '\0';
    while (schema_next_word(&at, &built, word, sizeof(word))) {
        if (!built)
            continue;
        int size = snprintf(out + used, capacity - used, "%s%s", used > 0 ? ", " : "", word);
        if (size < 0 || (size_t)size >= capacity - used)
            return;
        used += (size_t)size;
    }
}

static const struct field *find_word(const char *path)
{
    size_t index = 0;
    const struct field *field = schema_find(path, &index);
    CHECK(field != NULL);
    CHECK(field->kind == FIELD_WORD);
    CHECK(field->size == sizeof(unsigned));
    return field;
}

unsigned schema_value(const char *path, const struct jobspec *job)
{
    return *(const unsigned *)(const void *)((const char *)job + find_word(path)->offset);
}

void schema_value_text(const char *path, const struct jobspec *job, char *out, size_t capacity)
{
    const char *at = find_word(path)->words;
    bool built = true;
    out[0] = '\0';
    for (unsigned left = schema_value(path, job); left > 0; left--) {
        bool found = schema_next_word(&at, &built, out, capacity);
        CHECK(found);
    }
}

enum schema_kind schema_kind_of(const struct jobspec *job)
{
    if (!jobspec_is_command(job))
        return SCHEMA_MODEL;
    return job->command.saves ? SCHEMA_SAVED : SCHEMA_COMMAND;
}

bool schema_is_for(const struct field *field, enum schema_kind kind)
{
    for (size_t i = 0; i < COUNT(of_all_jobs); i++) {
        if (strcmp(field->path, of_all_jobs[i]) == 0)
            return true;
    }
    if (kind == SCHEMA_SAVED && below(field->path, "checkpoint") != NULL)
        return true;
    return (below(field->path, "command") != NULL) == (kind != SCHEMA_MODEL);
}

/* True if some key below a section is for jobs of that kind. */
static bool section_is_for(const char *section, enum schema_kind kind)
{
    for (size_t i = 0; i < COUNT(fields); i++) {
        if (below(fields[i].path, section) != NULL && schema_is_for(&fields[i], kind))
            return true;
    }
    return false;
}

size_t schema_not_for(const struct field *field, enum schema_kind kind)
{
    for (const char *dot = strchr(field->path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        char section[FIELD_WORD_BYTES];
        const size_t size = (size_t)(dot - field->path);
        CHECK(size < sizeof(section));
        memcpy(section, field->path, size);
        section[size] = '\0';
        if (!section_is_for(section, kind))
            return size;
    }
    return strlen(field->path);
}

bool schema_applies(const struct field *field, const struct jobspec *job)
{
    if (!schema_is_for(field, schema_kind_of(job)))
        return false;
    if (field->when_path == NULL)
        return true;
    return (field->when_values & FIELD_BIT(schema_value(field->when_path, job))) != 0;
}

bool jobspec_is_command(const struct jobspec *job)
{
    return job->command.run[0] != '\0';
}

const char *jobspec_next_text(const char *texts, const char *before)
{
    return texts_next(texts, before);
}

size_t jobspec_bytes(const struct jobspec *job)
{
    return offsetof(struct jobspec, graph.nodes) +
           (size_t)job->graph.count * sizeof(job->graph.nodes[0]);
}

bool jobspec_is_text(const struct jobspec_model *model)
{
    if ((OWN_MODELS & FIELD_BIT(model->arch)) != 0)
        return model->input[0] == 0;
    return (TEXT_MODELS & FIELD_BIT(model->arch)) != 0;
}
