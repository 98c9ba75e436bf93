/*
 * What `cairn watch` knows of a job's course: losses for the sparkline, the speed of this attempt.
 *
 * The speed comes from steps of the present attempt only, so that the time left is right after a
 * restart; its first steps (compiling, filling caches) don't count.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRESS_LOSSES 4096 /* kept; older ones go */
#define PROGRESS_WINDOW 64   /* steps that the speed is taken from */
#define PROGRESS_SKIP   2    /* first steps of an attempt */
#define PROGRESS_LEAST  3    /* steps before a time left is said */

struct progress {
    float losses[PROGRESS_LOSSES];
    uint64_t loss_steps[PROGRESS_LOSSES];
    size_t loss_count;
    uint32_t generation;
    uint64_t attempt_steps; /* rows of this attempt */
    struct {
        uint64_t step;
        int64_t wall_ms;
    } window[PROGRESS_WINDOW]; /* a ring */
    size_t window_count, window_next;
};

void progress_init(struct progress *progress);

/* One row of metrics. A step that was there before (a replay) takes the place of the old course. */
void progress_add(struct progress *progress, uint32_t generation, uint64_t step, float loss,
                  int64_t wall_ms);

/* Seconds until total_steps; NaN: can't be said. */
double progress_eta(const struct progress *progress, uint64_t total_steps);
