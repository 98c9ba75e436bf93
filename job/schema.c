#include "job/schema.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "job/suggest.h"

#define AT(member) .offset = offsetof(struct job, member)
#define NOWHERE    .offset = FIELD_NOWHERE

#define SGD              .when_path = "train.optimizer.name", .when_words = "sgd"
#define ADAMW            .when_path = "train.optimizer.name", .when_words = "adamw"
#define TEXTUAL          .when_path = "model.arch", .when_words = "gpt2 bert"
#define IMAGE_MODELS     "mlp lenet resnet18 resnet50 resnet152"
#define IMAGES           .when_path = "model.arch", .when_words = IMAGE_MODELS
#define MLP              .when_path = "model.arch", .when_words = "mlp"
#define HALF             .when_path = "train.precision", .when_words = "bf16 fp16"
#define CUDA             .when_path = "workers.device", .when_words = "cuda"
#define COSINE           .when_path = "train.schedule.name", .when_words = "cosine"
#define STEPWISE         .when_path = "train.schedule.name", .when_words = "step"
#define FORMATS          "idx text tokens synthetic | cifar"
#define TRAIN_IS(words_) .when_path = "data.train.format", .when_words = words_
#define EVAL_IS(words_)  .when_path = "data.eval.format", .when_words = words_
#define BEST                                                                                       \
    .when_path = "checkpoint.keep.best.metric", .when_words = "loss eval_loss eval_accuracy"
#define STEP_UNITS (UNIT_STEPS | UNIT_EPOCHS)

/* clang-format off: one row, one line or two */
static const struct field fields[] = {
    { "name", FIELD_NAME, FIELD_REQUIRED, AT(name), .example = "name: my-job" },

    { "model.arch", FIELD_WORD, FIELD_REQUIRED, AT(model.arch), .example = "arch: resnet18",
      .words = IMAGE_MODELS " gpt2 | bert" },
    { "model.size", FIELD_WORD, 0, AT(model.size), .words = "124M 355M 774M 1558M", TEXTUAL },
    { "model.classes", FIELD_INT, 0, AT(model.classes), 2, 1e6, .fallback = "10", IMAGES },
    { "model.hidden", FIELD_INT, 0, AT(model.hidden), 1, 65536, .fallback = "256", MLP },
    { "model.layers", FIELD_INT, 0, AT(model.layers), 1, 100, TEXTUAL },
    { "model.heads", FIELD_INT, 0, AT(model.heads), 1, 1024, TEXTUAL },
    { "model.width", FIELD_INT, 0, AT(model.width), 1, 65536, TEXTUAL },
    { "model.context", FIELD_INT, 0, AT(model.context), 1, 1 << 20, .fallback = "1024", TEXTUAL },
    { "model.vocab", FIELD_INT, 0, AT(model.vocab), 2, 1 << 20, TEXTUAL },
    { "model.dropout", FIELD_REAL, FIELD_HIGH_OPEN, AT(model.dropout), 0, 1, .fallback = "0",
      TEXTUAL },
    { "model.weights", FIELD_PATH, 0, AT(model.weights), .example = "weights: gpt2.safetensors" },

    { "data.train.format", FIELD_WORD, FIELD_REQUIRED, AT(data.train.format), .words = FORMATS,
      .example = "format: idx" },
    { "data.train.images", FIELD_PATH, FIELD_WITH_SECTION, AT(data.train.images), TRAIN_IS("idx"),
      .example = "images: train-images-idx3-ubyte.gz" },
    { "data.train.labels", FIELD_PATH, FIELD_WITH_SECTION, AT(data.train.labels), TRAIN_IS("idx"),
      .example = "labels: train-labels-idx1-ubyte.gz" },
    { "data.train.path", FIELD_PATH, FIELD_WITH_SECTION, AT(data.train.path),
      TRAIN_IS("text tokens cifar"), .example = "path: train.txt" },
    { "data.train.tokenizer", FIELD_WORD, 0, AT(data.train.tokenizer), .words = "bytes | gpt2",
      .fallback = "bytes", TRAIN_IS("text") },
    { "data.train.samples", FIELD_INT, 0, AT(data.train.samples), 1, 1e9, .fallback = "8192",
      TRAIN_IS("synthetic") },
    { "data.eval.format", FIELD_WORD, FIELD_WITH_SECTION, AT(data.eval.format), .words = FORMATS,
      .example = "format: idx" },
    { "data.eval.images", FIELD_PATH, FIELD_WITH_SECTION, AT(data.eval.images), EVAL_IS("idx"),
      .example = "images: t10k-images-idx3-ubyte.gz" },
    { "data.eval.labels", FIELD_PATH, FIELD_WITH_SECTION, AT(data.eval.labels), EVAL_IS("idx"),
      .example = "labels: t10k-labels-idx1-ubyte.gz" },
    { "data.eval.path", FIELD_PATH, FIELD_WITH_SECTION, AT(data.eval.path),
      EVAL_IS("text tokens cifar"), .example = "path: eval.txt" },
    { "data.eval.tokenizer", FIELD_WORD, 0, AT(data.eval.tokenizer), .words = "bytes | gpt2",
      .fallback = "bytes", EVAL_IS("text") },
    { "data.eval.samples", FIELD_INT, 0, AT(data.eval.samples), 1, 1e9, .fallback = "1024",
      EVAL_IS("synthetic") },
    { "data.augment", FIELD_WORDS, 0, AT(data.crop), .words = "crop flip",
      .example = "[crop, flip]" },

    { "train.duration", FIELD_DURATION, FIELD_REQUIRED, AT(train.duration), 1, 1e9,
      .units = STEP_UNITS, .example = "duration: 10 epochs" },
    { "train.global_batch", FIELD_INT, FIELD_REQUIRED, AT(train.global_batch), 1, 1 << 24,
      .example = "global_batch: 256" },
    { "train.lanes", FIELD_INT, 0, AT(train.lanes), 1, LIMIT_LANES },
    { "train.accumulate", FIELD_INT, 0, AT(train.accumulate), 1, 1 << 24 },
    { "train.micro_batch", FIELD_INT, 0, AT(train.micro_batch), 1, 1 << 24, .words = "auto" },
    { "train.optimizer.name", FIELD_WORD, 0, AT(train.optimizer.name), .words = "sgd adamw",
      .fallback = "sgd" },
    { "train.optimizer.lr", FIELD_REAL, FIELD_REQUIRED, AT(train.optimizer.lr), 0, 1000,
      .example = "lr: 0.1" },
    { "train.optimizer.momentum", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.optimizer.momentum), 0, 1,
      .fallback = "0", SGD },
    { "train.optimizer.nesterov", FIELD_BOOL, 0, AT(train.optimizer.nesterov), .fallback = "false",
      SGD },
    { "train.optimizer.beta1", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.optimizer.beta1), 0, 1,
      .fallback = "0.9", ADAMW },
    { "train.optimizer.beta2", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.optimizer.beta2), 0, 1,
      .fallback = "0.999", ADAMW },
    { "train.optimizer.eps", FIELD_REAL, FIELD_LOW_OPEN, AT(train.optimizer.eps), 0, 1,
      .fallback = "1e-8", ADAMW },
    { "train.optimizer.weight_decay", FIELD_REAL, 0, AT(train.optimizer.weight_decay), 0, 10 },
    { "train.optimizer.no_decay", FIELD_WORDS, 0, AT(train.optimizer.no_decay),
      .words = "bias norm embedding", .example = "[bias, norm]" },
    { "train.schedule.name", FIELD_WORD, 0, AT(train.schedule.name),
      .words = "constant cosine step", .fallback = "constant" },
    { "train.schedule.warmup", FIELD_DURATION, 0, AT(train.schedule.warmup), 0, 1e9,
      .units = STEP_UNITS, .fallback = "0 steps" },
    { "train.schedule.min_lr", FIELD_REAL, 0, AT(train.schedule.min_lr), 0, 1, .fallback = "0",
      COSINE },
    { "train.schedule.gamma", FIELD_REAL, FIELD_LOW_OPEN, AT(train.schedule.gamma), 0, 1,
      .fallback = "0.1", STEPWISE },
    { "train.schedule.every", FIELD_DURATION, FIELD_WITH_SECTION, AT(train.schedule.every), 1, 1e9,
      .units = STEP_UNITS, STEPWISE, .example = "every: 30 epochs" },
    { "train.precision", FIELD_WORD, 0, AT(train.precision), .words = "fp32 bf16 fp16 tf32",
      .fallback = "fp32" },
    { "train.amp", FIELD_WORD, 0, AT(train.amp), .words = "O1 O2", .fallback = "O1", HALF },
    { "train.loss_scale", FIELD_REAL, FIELD_LOW_OPEN, AT(train.loss_scale), 0, 1 << 30,
      .words = "dynamic", HALF },
    { "train.recompute", FIELD_WORD, 0, NOWHERE, .words = "none | selective full",
      .fallback = "none" },
    { "train.clip_norm", FIELD_REAL, 0, AT(train.clip_norm), 0, 1e9, .fallback = "0" },
    { "train.label_smoothing", FIELD_REAL, FIELD_HIGH_OPEN, AT(train.label_smoothing), 0, 1,
      .fallback = "0" },
    { "train.seed", FIELD_INT, 0, AT(train.seed), 0, 9223372036854775807.0, .fallback = "0" },

    { "eval.every", FIELD_DURATION, FIELD_WITH_SECTION, AT(eval_every), 1, 1e9, .units = STEP_UNITS,
      .example = "every: 1 epoch" },

    { "workers.count", FIELD_INT, 0, AT(workers.count), 1, LIMIT_RANKS },
    { "workers.min", FIELD_INT, 0, AT(workers.min), 1, LIMIT_RANKS, .fallback = "1" },
    { "workers.spares", FIELD_INT, FIELD_UNBUILT, AT(workers.spares), 0, LIMIT_RANKS,
      .fallback = "0" },
    { "workers.shares", FIELD_COUNTS, 0, AT(workers.shares), 1, LIMIT_LANES, .example = "[3, 1]" },
    { "workers.device", FIELD_WORD, 0, AT(workers.device), .words = "cpu cuda", .fallback = "cpu" },
    { "workers.threads", FIELD_INT, 0, AT(workers.threads), 1, 256, .fallback = "1" },
    { "workers.memory", FIELD_WORD, 0, AT(workers.memory), .words = "device managed",
      .fallback = "device" },

    { "nccl", FIELD_ENV, 0, AT(nccl), .words = "NCCL_", CUDA,
      .example = "{NCCL_SOCKET_IFNAME: eth0}" },

    { "parallel.tensor", FIELD_INT, FIELD_UNBUILT, NOWHERE, 1, LIMIT_RANKS, .fallback = "1" },
    { "parallel.pipeline", FIELD_INT, FIELD_UNBUILT, NOWHERE, 1, LIMIT_RANKS, .fallback = "1" },
    { "parallel.zero", FIELD_INT, FIELD_UNBUILT, NOWHERE, 0, 3, .fallback = "0" },
    { "parallel.reduction", FIELD_WORD, 0, AT(parallel.reduction), .words = "exact fast",
      .fallback = "exact" },

    { "checkpoint.every", FIELD_DURATION, 0, AT(checkpoint.every), 1, 1e9,
      .units = STEP_UNITS | UNIT_TIME, .words = "auto", .fallback = "100 steps" },
    { "checkpoint.keep.last", FIELD_INT, 0, AT(checkpoint.keep_last), 1, 1e4, .fallback = "3" },
    { "checkpoint.keep.best.metric", FIELD_WORD, FIELD_WITH_SECTION,
      AT(checkpoint.keep_best.metric), .words = "loss eval_loss eval_accuracy",
      .example = "metric: eval_loss" },
    { "checkpoint.keep.best.n", FIELD_INT, 0, AT(checkpoint.keep_best.n), 1, 1000, .fallback = "1",
      BEST },
    { "checkpoint.keep.every", FIELD_AMOUNT, 0, AT(checkpoint.keep_every), 0, 1e9,
      .units = UNIT_STEPS, .words = "none", .fallback = "none" },
    { "checkpoint.store", FIELD_STORE, 0, AT(checkpoint.store), .fallback = "checkpoints" },
    { "checkpoint.level", FIELD_WORD, 0, AT(checkpoint.level), .words = "default fast max",
      .fallback = "default" },
    { "checkpoint.delta", FIELD_BOOL, 0, AT(checkpoint.delta), .fallback = "false" },
    { "checkpoint.threads", FIELD_INT, 0, AT(checkpoint.threads), 1, 64, .fallback = "1" },
    { "checkpoint.memory", FIELD_AMOUNT, 0, AT(checkpoint.memory_bytes), 0x1p24, 0x1p50,
      .units = UNIT_BYTES, .words = "auto", .fallback = "auto" },
    { "checkpoint.memory_every", FIELD_AMOUNT, 0, AT(checkpoint.memory_every), 0, 1e9,
      .units = UNIT_STEPS, .words = "none", .fallback = "none" },
    { "checkpoint.peers", FIELD_INT, 0, AT(checkpoint.peers), 0, 1, .fallback = "0" },
    { "checkpoint.grace", FIELD_AMOUNT, 0, AT(checkpoint.grace_ms), 0, 3600e3, .units = UNIT_TIME,
      .fallback = "30 s" },

    { "recovery.exactness", FIELD_WORD, 0, AT(recovery.exactness), .words = "strict relaxed",
      .fallback = "strict" },
    { "recovery.on_nan", FIELD_WORD, 0, AT(recovery.on_nan), .words = "skip fail",
      .fallback = "skip" },
};

static const struct {
    const char *section, *example;
} sections[] = {
    { "model", "model: {arch: resnet18, classes: 10}" },
    { "data", "data: {train: {format: idx, images: FILE, labels: FILE}}" },
    { "data.train", "train: {format: idx, images: FILE, labels: FILE}" },
    { "train", "train: {duration: 10 epochs, global_batch: 256, optimizer: {lr: 0.1}}" },
    { "train.optimizer", "optimizer: {name: sgd, lr: 0.1}" },
};

/* What people who come from elsewhere write. */
static const struct {
    const char *key, *path;
} synonyms[] = {
    { "batch", "train.global_batch" },
    { "batch_size", "train.global_batch" },
    { "learning_rate", "train.optimizer.lr" },
    { "epochs", "train.duration" },
    { "steps", "train.duration" },
    { "max_steps", "train.duration" },
    { "max_epochs", "train.duration" },
    { "warmup_steps", "train.schedule.warmup" },
    { "num_workers", "workers.count" },
    { "nproc", "workers.count" },
    { "world_size", "workers.count" },
    { "val", "data.eval" },
    { "test", "data.eval" },
    { "grad_clip", "train.clip_norm" },
    { "max_grad_norm", "train.clip_norm" },
    { "dtype", "train.precision" },
    { "betas", "train.optimizer.beta1" },
    { "interval", "checkpoint.every" },
    { "save_total_limit", "checkpoint.keep.last" },
    { "n_layer", "model.layers" },
    { "n_head", "model.heads" },
    { "n_embd", "model.width" },
    { "block_size", "model.context" },
    { "seq_len", "model.context" },
    { "vocab_size", "model.vocab" },
    { "gradient_accumulation_steps", "train.accumulate" },
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(COUNT(fields) <= FIELDS_MAX, "one slot per row in the reader");

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

/* What follows "section." in path; NULL: path is not below section. */
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

/* The i-th row's key directly below section, each key once; false: it has none or had it before. */
static bool child_key(size_t i, const char *section, char *out, size_t capacity)
{
    const char *rest = below(fields[i].path, section);
    if (rest == NULL)
        return false;
    size_t size = strcspn(rest, ".");
    CHECK(size < capacity);
    const char *before = i == 0 ? NULL : below(fields[i - 1].path, section);
    if (before != NULL && strncmp(before, rest, size) == 0 && strcspn(before, ".") == size)
        return false;
    memcpy(out, rest, size);
    out[size] = '\0';
    return true;
}

void schema_keys(const char *section, char *out, size_t capacity)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < COUNT(fields); i++) {
        char key[JOB_TEXT];
        if (!child_key(i, section, key, sizeof(key)))
            continue;
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
        char child[JOB_TEXT];
        if (!child_key(i, section, child, sizeof(child)))
            continue;
        size_t distance = suggest_distance(key, child);
        if (distance < best) {
            best = distance;
            (void)snprintf(out, capacity, "%s", child);
        }
    }
    if (best <= suggest_limit(key))
        return true;
    for (size_t i = 0; i < COUNT(synonyms); i++) {
        if (suggest_distance(synonyms[i].key, key) <= 1 && strlen(key) > 3) {
            write_in(synonyms[i].path, section, out, capacity);
            return true;
        }
    }
    for (size_t i = 0; i < COUNT(fields); i++) {
        const char *dot = strrchr(fields[i].path, '.');
        if (dot != NULL && strcmp(dot + 1, key) == 0) {
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

bool schema_applies(const struct field *field, const struct job *job)
{
    if (field->when_path == NULL)
        return true;
    size_t index = 0;
    const struct field *selector = schema_find(field->when_path, &index);
    CHECK(selector != NULL);
    const char *value = (const char *)job + selector->offset;
    const char *at = field->when_words;
    bool built = true;
    char word[JOB_TEXT];
    while (schema_next_word(&at, &built, word, sizeof(word))) {
        if (strcmp(word, value) == 0)
            return true;
    }
    return false;
}

bool job_is_text(const struct job_model *model)
{
    return strcmp(model->arch, "gpt2") == 0;
}
