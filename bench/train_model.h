/*
 * One model with one worker's step around it, for benches: no data, no session, no checkpoint.
 * A failure ends the program with its reason.
 */
#pragma once

#include <stdint.h>

#include "kernels/op.h"

struct train_model;

struct train_model_options {
    const char *arch; /* "gpt2": 124M; "resnet50", "resnet152": 224×224×3; others: 28×28×1 */
    int64_t batch;    /* samples; lanes must divide it */
    int lanes;
    int64_t seq; /* tokens per sample of text models */
    enum math math;
};

/* Random images or tokens. SGD with momentum for image models, AdamW for the others. */
struct train_model *train_model_new(const struct train_model_options *options);
void train_model_free(struct train_model *model);
/* Lanes forward and backward, exact sum, update, refresh. */
void train_model_step(struct train_model *model);
/* Operations of all products in a step, as they are defined: what is saved by algorithms that need
 * fewer counts, too. */
double train_model_flops(const struct train_model *model);
/* Bytes of activations, and of the kernels' copies of the parameters. */
size_t train_model_bytes(const struct train_model *model);

/* Operations per second of a large product of this kind on this thread: the best of some. */
double train_model_peak(enum math math);
