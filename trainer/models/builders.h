/*
 * The functions behind model_build, a file each: they append a model's nodes and return its logits,
 * [1, classes] of images, [1, T, vocab] of tokens.
 */
#pragma once

#include "trainer/models/models.h"

int model_mlp(struct tape *tape, int images, const struct model_options *options);
int model_lenet(struct tape *tape, int images, const struct model_options *options);
int model_resnet18(struct tape *tape, int images, const struct model_options *options);
int model_resnet50(struct tape *tape, int images, const struct model_options *options);
int model_resnet152(struct tape *tape, int images, const struct model_options *options);
int model_gpt2(struct tape *tape, int tokens, const struct model_options *options);
int model_vit(struct tape *tape, int images, const struct model_options *options);
int model_bert(struct tape *tape, int tokens, const struct model_options *options);
int model_llama(struct tape *tape, int tokens, const struct model_options *options);
