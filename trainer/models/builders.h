/*
 * The functions behind model_build: each appends its nodes and returns the logits [1, classes].
 */
#pragma once

#include "trainer/models/models.h"

int model_mlp(struct tape *tape, int images, const struct model_options *options);
int model_lenet(struct tape *tape, int images, const struct model_options *options);
int model_resnet18(struct tape *tape, int images, const struct model_options *options);
