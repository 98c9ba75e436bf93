/*
 * What a job chooses from a few words: per key one list, and of each list an enum.
 *
 * A list names its enumerators and how a job file writes them; the enum, the row of the schema and
 * the text of a value are all made of it, so that they can't drift apart. 0 of an enum is "none":
 * the key is absent, or the job has no use for it. Words that are known but not built stand in
 * the schema's rows only: no job holds them.
 *
 * A new word: a line in its list; the compiler then names each switch that must know it.
 */
#pragma once

/* `model.arch` */
#define JOBSPEC_ARCHS(X)                                                                           \
    X(JOBSPEC_ARCH_MLP, "mlp")                                                                     \
    X(JOBSPEC_ARCH_LENET, "lenet")                                                                 \
    X(JOBSPEC_ARCH_RESNET18, "resnet18")                                                           \
    X(JOBSPEC_ARCH_RESNET50, "resnet50")                                                           \
    X(JOBSPEC_ARCH_RESNET152, "resnet152")                                                         \
    X(JOBSPEC_ARCH_GPT2, "gpt2")                                                                   \
    X(JOBSPEC_ARCH_LLAMA, "llama")                                                                 \
    X(JOBSPEC_ARCH_VIT, "vit")                                                                     \
    X(JOBSPEC_ARCH_BERT, "bert")                                                                   \
    X(JOBSPEC_ARCH_GRAPH, "graph")                                                                 \
    X(JOBSPEC_ARCH_LIBRARY, "library")

/* `model.size`: of GPT-2, the parameters of its published weights */
#define JOBSPEC_SIZES(X)                                                                           \
    X(JOBSPEC_SIZE_124M, "124M")                                                                   \
    X(JOBSPEC_SIZE_355M, "355M")                                                                   \
    X(JOBSPEC_SIZE_774M, "774M")                                                                   \
    X(JOBSPEC_SIZE_1558M, "1558M")

/* `data.train.format`, `data.eval.format` */
#define JOBSPEC_FORMATS(X)                                                                         \
    X(JOBSPEC_FORMAT_IDX, "idx")                                                                   \
    X(JOBSPEC_FORMAT_TEXT, "text")                                                                 \
    X(JOBSPEC_FORMAT_TOKENS, "tokens")                                                             \
    X(JOBSPEC_FORMAT_SYNTHETIC, "synthetic")

/* `data.train.tokenizer`, `data.eval.tokenizer` */
#define JOBSPEC_TOKENIZERS(X) X(JOBSPEC_TOKENIZER_BYTES, "bytes")

/* `train.optimizer.name` */
#define JOBSPEC_OPTIMIZERS(X)                                                                      \
    X(JOBSPEC_OPTIMIZER_SGD, "sgd")                                                                \
    X(JOBSPEC_OPTIMIZER_ADAMW, "adamw")                                                            \
    X(JOBSPEC_OPTIMIZER_LION, "lion")                                                              \
    X(JOBSPEC_OPTIMIZER_LAMB, "lamb")                                                              \
    X(JOBSPEC_OPTIMIZER_MUON, "muon")

/* `train.schedule.name` */
#define JOBSPEC_SCHEDULES(X)                                                                       \
    X(JOBSPEC_SCHEDULE_CONSTANT, "constant")                                                       \
    X(JOBSPEC_SCHEDULE_COSINE, "cosine")                                                           \
    X(JOBSPEC_SCHEDULE_STEP, "step")                                                               \
    X(JOBSPEC_SCHEDULE_LINEAR, "linear")                                                           \
    X(JOBSPEC_SCHEDULE_POLYNOMIAL, "polynomial")                                                   \
    X(JOBSPEC_SCHEDULE_INVERSE_SQRT, "inverse_sqrt")                                               \
    X(JOBSPEC_SCHEDULE_ONE_CYCLE, "one_cycle")                                                     \
    X(JOBSPEC_SCHEDULE_WSD, "wsd")

/* `train.precision` */
#define JOBSPEC_PRECISIONS(X)                                                                      \
    X(JOBSPEC_PRECISION_FP32, "fp32")                                                              \
    X(JOBSPEC_PRECISION_BF16, "bf16")                                                              \
    X(JOBSPEC_PRECISION_FP16, "fp16")                                                              \
    X(JOBSPEC_PRECISION_TF32, "tf32")

/* `train.amp` */
#define JOBSPEC_AMPS(X)                                                                            \
    X(JOBSPEC_AMP_O1, "O1")                                                                        \
    X(JOBSPEC_AMP_O2, "O2")

/* `train.recompute` */
#define JOBSPEC_RECOMPUTES(X)                                                                      \
    X(JOBSPEC_RECOMPUTE_NOTHING, "none")                                                           \
    X(JOBSPEC_RECOMPUTE_SELECTIVE, "selective")                                                    \
    X(JOBSPEC_RECOMPUTE_FULL, "full")

/* `workers.device` */
#define JOBSPEC_DEVICES(X)                                                                         \
    X(JOBSPEC_DEVICE_CPU, "cpu")                                                                   \
    X(JOBSPEC_DEVICE_CUDA, "cuda")

/* `workers.memory` */
#define JOBSPEC_MEMORIES(X)                                                                        \
    X(JOBSPEC_MEMORY_DEVICE, "device")                                                             \
    X(JOBSPEC_MEMORY_MANAGED, "managed")

/* `parallel.reduction` */
#define JOBSPEC_REDUCTIONS(X)                                                                      \
    X(JOBSPEC_REDUCTION_EXACT, "exact")                                                            \
    X(JOBSPEC_REDUCTION_FAST, "fast")

/* `parallel.schedule`; the words are those of trainer/pipeline/schedule.h */
#define JOBSPEC_PIPELINES(X)                                                                       \
    X(JOBSPEC_PIPELINE_1F1B, "1f1b")                                                               \
    X(JOBSPEC_PIPELINE_GPIPE, "gpipe")                                                             \
    X(JOBSPEC_PIPELINE_INTERLEAVED, "interleaved")                                                 \
    X(JOBSPEC_PIPELINE_ZB_H1, "zb-h1")

/* `checkpoint.keep.best.metric`, `train.stop.metric` */
#define JOBSPEC_METRICS(X)                                                                         \
    X(JOBSPEC_METRIC_LOSS, "loss")                                                                 \
    X(JOBSPEC_METRIC_EVAL_LOSS, "eval_loss")                                                       \
    X(JOBSPEC_METRIC_EVAL_ACCURACY, "eval_accuracy")

/* `checkpoint.level` */
#define JOBSPEC_LEVELS(X)                                                                          \
    X(JOBSPEC_LEVEL_DEFAULT, "default")                                                            \
    X(JOBSPEC_LEVEL_FAST, "fast")                                                                  \
    X(JOBSPEC_LEVEL_MAX, "max")

/* `recovery.exactness` */
#define JOBSPEC_EXACTNESSES(X)                                                                     \
    X(JOBSPEC_EXACTNESS_STRICT, "strict")                                                          \
    X(JOBSPEC_EXACTNESS_RELAXED, "relaxed")

/* `recovery.on_nan` */
#define JOBSPEC_ON_NANS(X)                                                                         \
    X(JOBSPEC_ON_NAN_SKIP, "skip")                                                                 \
    X(JOBSPEC_ON_NAN_FAIL, "fail")

/* `recovery.on_spike` */
#define JOBSPEC_ON_SPIKES(X)                                                                       \
    X(JOBSPEC_ON_SPIKE_SKIP, "skip")                                                               \
    X(JOBSPEC_ON_SPIKE_FAIL, "fail")

#define JOBSPEC_WORD_NAME(name, word) name,
#define JOBSPEC_WORD_TEXT(name, word) word " "

/* A list as one text, as the schema has it: "mlp lenet … gpt2 ". The n-th word, counted from 1,
 * is the enum's n. */
#define JOBSPEC_WORDS(list) list(JOBSPEC_WORD_TEXT)

enum jobspec_arch { JOBSPEC_ARCH_NONE, JOBSPEC_ARCHS(JOBSPEC_WORD_NAME) };
enum jobspec_size { JOBSPEC_SIZE_NONE, JOBSPEC_SIZES(JOBSPEC_WORD_NAME) };
enum jobspec_format { JOBSPEC_FORMAT_NONE, JOBSPEC_FORMATS(JOBSPEC_WORD_NAME) };
enum jobspec_tokenizer { JOBSPEC_TOKENIZER_NONE, JOBSPEC_TOKENIZERS(JOBSPEC_WORD_NAME) };
enum jobspec_optimizer { JOBSPEC_OPTIMIZER_NONE, JOBSPEC_OPTIMIZERS(JOBSPEC_WORD_NAME) };
enum jobspec_schedule { JOBSPEC_SCHEDULE_NONE, JOBSPEC_SCHEDULES(JOBSPEC_WORD_NAME) };
enum jobspec_precision { JOBSPEC_PRECISION_NONE, JOBSPEC_PRECISIONS(JOBSPEC_WORD_NAME) };
enum jobspec_amp { JOBSPEC_AMP_NONE, JOBSPEC_AMPS(JOBSPEC_WORD_NAME) };
enum jobspec_recompute { JOBSPEC_RECOMPUTE_NONE, JOBSPEC_RECOMPUTES(JOBSPEC_WORD_NAME) };
enum jobspec_device { JOBSPEC_DEVICE_NONE, JOBSPEC_DEVICES(JOBSPEC_WORD_NAME) };
enum jobspec_memory { JOBSPEC_MEMORY_NONE, JOBSPEC_MEMORIES(JOBSPEC_WORD_NAME) };
enum jobspec_reduction { JOBSPEC_REDUCTION_NONE, JOBSPEC_REDUCTIONS(JOBSPEC_WORD_NAME) };
enum jobspec_pipeline { JOBSPEC_PIPELINE_NONE, JOBSPEC_PIPELINES(JOBSPEC_WORD_NAME) };
enum jobspec_metric { JOBSPEC_METRIC_NONE, JOBSPEC_METRICS(JOBSPEC_WORD_NAME) };
enum jobspec_level { JOBSPEC_LEVEL_NONE, JOBSPEC_LEVELS(JOBSPEC_WORD_NAME) };
enum jobspec_exactness { JOBSPEC_EXACTNESS_NONE, JOBSPEC_EXACTNESSES(JOBSPEC_WORD_NAME) };
enum jobspec_on_nan { JOBSPEC_ON_NAN_NONE, JOBSPEC_ON_NANS(JOBSPEC_WORD_NAME) };
enum jobspec_on_spike { JOBSPEC_ON_SPIKE_NONE, JOBSPEC_ON_SPIKES(JOBSPEC_WORD_NAME) };

/* The words of these values in a job file; "" for none. */
const char *jobspec_arch_word(enum jobspec_arch arch);
const char *jobspec_size_word(enum jobspec_size size);
const char *jobspec_format_word(enum jobspec_format format);
const char *jobspec_precision_word(enum jobspec_precision precision);
const char *jobspec_amp_word(enum jobspec_amp amp);
const char *jobspec_device_word(enum jobspec_device device);
const char *jobspec_pipeline_word(enum jobspec_pipeline schedule);
const char *jobspec_metric_word(enum jobspec_metric metric);
const char *jobspec_optimizer_word(enum jobspec_optimizer name);
const char *jobspec_schedule_word(enum jobspec_schedule name);
