/*
 * One model with one worker's step around it, for benches: no data, no session, no checkpoint.
 * A failure ends the program with its reason.
 */
#pragma once

#include <stdint.h>

struct train_model;

/* batch samples of random 28×28 images in `lanes` equal lanes, which must divide it. */
struct train_model *train_model_new(const char *arch, int64_t batch, int lanes);
void train_model_free(struct train_model *model);
/* Lanes forward and backward, exact sum, update, refresh. */
void train_model_step(struct train_model *model);
