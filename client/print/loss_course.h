/*
 * What `cairn watch` knows of a job's course: losses for the sparkline. Speed and time left are the
 * coordinator's (server/throughput).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define LOSS_COURSE_MAX 4096 /* kept; older ones go */

struct loss_course {
    float losses[LOSS_COURSE_MAX];
    uint64_t loss_steps[LOSS_COURSE_MAX];
    size_t loss_count;
    uint32_t generation;
};

void loss_course_init(struct loss_course *course);

/* Adds a row of metrics. A step that was there before (a replay) takes the place of the old course;
 * a late row of an attempt that is over changes nothing. */
void loss_course_add(struct loss_course *course, uint32_t generation, uint64_t step, float loss);
