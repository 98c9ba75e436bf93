/*
 * Whether a job's data and weights are what it says, looked at before it is submitted: formats,
 * labels, tokens, names and shapes. `cairn-trainer --inputs` looks, as `cairn plan` does; what it
 * takes longer than some seconds for is left to the job.
 */
#pragma once

#include <stdbool.h>

#include "client/base/client.h"
#include "jobspec/jobspec.h"

/* Checks files that are the same here as where the job will run. false: they don't fit, and why. */
bool inputs_fit(const struct jobspec *job, char why[LIMIT_REASON]);
