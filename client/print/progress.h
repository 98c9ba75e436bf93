/*
 * What `cairn watch` knows of a job's course: losses for the sparkline. Speed and time left are the
 * coordinator's (server/pace).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PROGRESS_LOSSES 4096 /* kept; older ones go */

struct progress {
    float losses[PROGRESS_LOSSES];
    uint64_t loss_steps[PROGRESS_LOSSES];
    size_t loss_count;
    uint32_t generation;
};

void progress_init(struct progress *progress);

/* Adds a row of metrics. A step that was there before (a replay) takes the place of the old course;
 * a late row of an attempt that is over changes nothing. */
void progress_add(struct progress *progress, uint32_t generation, uint64_t step, float loss);
