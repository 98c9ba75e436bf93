/*
 * One model with one worker's step around it, for benches: no data, no session, no checkpoint.
 * A failure ends the program with its reason.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "kernels/backend.h"

struct train_model;

struct train_model_options {
    const char *arch; /* "gpt2": 124M; "llama", "bert": 110M; "resnet50", "resnet152", "vit":
                         224×224×3; others: 28×28×1 */
    int64_t batch;    /* samples; lanes must divide it */
    int lanes;
    int64_t seq; /* tokens per sample of text models */
    enum math math;
    const struct backend_table *table; /* NULL: the CPU's */
    int ordinal;
    bool graphs; /* the passes are recorded once and played again, where the device can */
    /* With more ranks than this one: `lanes` of each, over rendezvous. NULL: this one alone. */
    const struct comm_table *comm;
    const struct rendezvous *rendezvous;
    int rank, size;
    bool fast; /* reduction */
};

/* Random images or tokens. SGD with momentum for image models, AdamW for the others. */
struct train_model *train_model_new(const struct train_model_options *options);
void train_model_free(struct train_model *model);
/* Lanes forward and backward, exact sum, update, refresh. A device may still be at it. */
void train_model_step(struct train_model *model);
/* The last step's loss, before its update. */
double train_model_loss(const struct train_model *model);
/* Waits for the device. */
void train_model_wait(struct train_model *model);
/* Starts to copy all of the state into pinned memory, beside what comes next. */
void train_model_snapshot(struct train_model *model);
/* Elements of all parameters. */
size_t train_model_params(const struct train_model *model);
/* Operations of all products in a step, as they are defined: what is saved by algorithms that need
 * fewer counts, too. */
double train_model_flops(const struct train_model *model);
/* Bytes of activations, and of the kernels' copies of the parameters. */
size_t train_model_bytes(const struct train_model *model);

/* Operations per second of a large product of this kind on this thread: the best of some. */
double train_model_peak(enum math math);
