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
#define JOB_ARCHS(X)                                                                               \
    X(JOB_ARCH_MLP, "mlp")                                                                         \
    X(JOB_ARCH_LENET, "lenet")                                                                     \
    X(JOB_ARCH_RESNET18, "resnet18")                                                               \
    X(JOB_ARCH_RESNET50, "resnet50")                                                               \
    X(JOB_ARCH_RESNET152, "resnet152")                                                             \
    X(JOB_ARCH_GPT2, "gpt2")

/* `model.size`: of GPT-2, the parameters of its published weights */
#define JOB_SIZES(X)                                                                               \
    X(JOB_SIZE_124M, "124M")                                                                       \
    X(JOB_SIZE_355M, "355M")                                                                       \
    X(JOB_SIZE_774M, "774M")                                                                       \
    X(JOB_SIZE_1558M, "1558M")

/* `data.train.format`, `data.eval.format` */
#define JOB_FORMATS(X)                                                                             \
    X(JOB_FORMAT_IDX, "idx")                                                                       \
    X(JOB_FORMAT_TEXT, "text")                                                                     \
    X(JOB_FORMAT_TOKENS, "tokens")                                                                 \
    X(JOB_FORMAT_SYNTHETIC, "synthetic")

/* `data.train.tokenizer`, `data.eval.tokenizer` */
#define JOB_TOKENIZERS(X) X(JOB_TOKENIZER_BYTES, "bytes")

/* `train.optimizer.name` */
#define JOB_OPTIMIZERS(X)                                                                          \
    X(JOB_OPTIMIZER_SGD, "sgd")                                                                    \
    X(JOB_OPTIMIZER_ADAMW, "adamw")

/* `train.schedule.name` */
#define JOB_SCHEDULES(X)                                                                           \
    X(JOB_SCHEDULE_CONSTANT, "constant")                                                           \
    X(JOB_SCHEDULE_COSINE, "cosine")                                                               \
    X(JOB_SCHEDULE_STEP, "step")

/* `train.precision` */
#define JOB_PRECISIONS(X)                                                                          \
    X(JOB_PRECISION_FP32, "fp32")                                                                  \
    X(JOB_PRECISION_BF16, "bf16")                                                                  \
    X(JOB_PRECISION_FP16, "fp16")                                                                  \
    X(JOB_PRECISION_TF32, "tf32")

/* `train.amp` */
#define JOB_AMPS(X)                                                                                \
    X(JOB_AMP_O1, "O1")                                                                            \
    X(JOB_AMP_O2, "O2")

/* `workers.device` */
#define JOB_DEVICES(X)                                                                             \
    X(JOB_DEVICE_CPU, "cpu")                                                                       \
    X(JOB_DEVICE_CUDA, "cuda")

/* `workers.memory` */
#define JOB_MEMORIES(X)                                                                            \
    X(JOB_MEMORY_DEVICE, "device")                                                                 \
    X(JOB_MEMORY_MANAGED, "managed")

/* `parallel.reduction` */
#define JOB_REDUCTIONS(X)                                                                          \
    X(JOB_REDUCTION_EXACT, "exact")                                                                \
    X(JOB_REDUCTION_FAST, "fast")

/* `parallel.schedule`; the words are those of trainer/pipeline/schedule.h */
#define JOB_PIPELINES(X)                                                                           \
    X(JOB_PIPELINE_1F1B, "1f1b")                                                                   \
    X(JOB_PIPELINE_GPIPE, "gpipe")                                                                 \
    X(JOB_PIPELINE_INTERLEAVED, "interleaved")                                                     \
    X(JOB_PIPELINE_ZB_H1, "zb-h1")

/* `checkpoint.keep.best.metric` */
#define JOB_METRICS(X)                                                                             \
    X(JOB_METRIC_LOSS, "loss")                                                                     \
    X(JOB_METRIC_EVAL_LOSS, "eval_loss")                                                           \
    X(JOB_METRIC_EVAL_ACCURACY, "eval_accuracy")

/* `checkpoint.level` */
#define JOB_LEVELS(X)                                                                              \
    X(JOB_LEVEL_DEFAULT, "default")                                                                \
    X(JOB_LEVEL_FAST, "fast")                                                                      \
    X(JOB_LEVEL_MAX, "max")

/* `recovery.exactness` */
#define JOB_EXACTNESSES(X)                                                                         \
    X(JOB_EXACTNESS_STRICT, "strict")                                                              \
    X(JOB_EXACTNESS_RELAXED, "relaxed")

/* `recovery.on_nan` */
#define JOB_ON_NANS(X)                                                                             \
    X(JOB_ON_NAN_SKIP, "skip")                                                                     \
    X(JOB_ON_NAN_FAIL, "fail")

#define JOB_WORD_NAME(name, word) name,
#define JOB_WORD_TEXT(name, word) word " "

/* A list as one text, as the schema has it: "mlp lenet … gpt2 ". The n-th word, counted from 1,
 * is the enum's n. */
#define JOB_WORDS(list) list(JOB_WORD_TEXT)

enum job_arch { JOB_ARCH_NONE, JOB_ARCHS(JOB_WORD_NAME) };
enum job_size { JOB_SIZE_NONE, JOB_SIZES(JOB_WORD_NAME) };
enum job_format { JOB_FORMAT_NONE, JOB_FORMATS(JOB_WORD_NAME) };
enum job_tokenizer { JOB_TOKENIZER_NONE, JOB_TOKENIZERS(JOB_WORD_NAME) };
enum job_optimizer { JOB_OPTIMIZER_NONE, JOB_OPTIMIZERS(JOB_WORD_NAME) };
enum job_schedule { JOB_SCHEDULE_NONE, JOB_SCHEDULES(JOB_WORD_NAME) };
enum job_precision { JOB_PRECISION_NONE, JOB_PRECISIONS(JOB_WORD_NAME) };
enum job_amp { JOB_AMP_NONE, JOB_AMPS(JOB_WORD_NAME) };
enum job_device { JOB_DEVICE_NONE, JOB_DEVICES(JOB_WORD_NAME) };
enum job_memory { JOB_MEMORY_NONE, JOB_MEMORIES(JOB_WORD_NAME) };
enum job_reduction { JOB_REDUCTION_NONE, JOB_REDUCTIONS(JOB_WORD_NAME) };
enum job_pipeline { JOB_PIPELINE_NONE, JOB_PIPELINES(JOB_WORD_NAME) };
enum job_metric { JOB_METRIC_NONE, JOB_METRICS(JOB_WORD_NAME) };
enum job_level { JOB_LEVEL_NONE, JOB_LEVELS(JOB_WORD_NAME) };
enum job_exactness { JOB_EXACTNESS_NONE, JOB_EXACTNESSES(JOB_WORD_NAME) };
enum job_on_nan { JOB_ON_NAN_NONE, JOB_ON_NANS(JOB_WORD_NAME) };

/* The words of these values in a job file; "" for none. */
const char *job_arch_word(enum job_arch arch);
const char *job_size_word(enum job_size size);
const char *job_format_word(enum job_format format);
const char *job_precision_word(enum job_precision precision);
const char *job_amp_word(enum job_amp amp);
const char *job_device_word(enum job_device device);
const char *job_pipeline_word(enum job_pipeline schedule);
const char *job_metric_word(enum job_metric metric);
