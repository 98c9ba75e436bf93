/*
 * Facts that a safetensors file's tensors don't show: the config.json that Hugging Face's libraries
 * write beside it says how many heads there were, and other numbers of a transformer that no shape
 * tells.
 *
 * Thread: any.
 */
#pragma once

#include "common/io.h"
#include "common/reason.h"
#include "common/status.h"
#include "jobspec/jobspec.h"

/*
 * Whether the file beside model.weights, if there is one and it is of this model, is of what the
 * job would train. Without it, or where it is another model's, nothing is compared.
 * Errors: ST_CONFIG  reason is one line "model.weights: …/config.json: cause; way out"
 */
MUST_CHECK enum status weights_config_check(const struct jobspec *job, const struct io *io,
                                            struct reason *reason);
