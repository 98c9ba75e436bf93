/* What the state of a job means here. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "cairn/v1/control.pb-c.h"

/* All there are, as labels have them: "queued", "running", ... */
const char *const *prometheus_job_states(size_t *out_count);
/* One of them, or NULL: it is of a later version. */
const char *prometheus_job_state(Cairn__V1__JobState state);
bool prometheus_job_is_over(Cairn__V1__JobState state);
/* It has workers, and they have series. */
bool prometheus_job_holds_workers(Cairn__V1__JobState state);
