/* The states of jobs, as metrics have them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "cairn/v1/control.pb-c.h"

/* All states, as labels have them: "queued", "running", ... */
const char *const *prometheus_job_states(size_t *out_count);
/* Returns the label of a state; NULL: the state is of a later version. */
const char *prometheus_job_state(Cairn__V1__JobState state);
/* True if a job in this state has workers, which have series then. */
bool prometheus_job_holds_workers(Cairn__V1__JobState state);
