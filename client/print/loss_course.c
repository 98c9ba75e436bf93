#include "client/print/loss_course.h"

#include <string.h>

void loss_course_init(struct loss_course *course)
{
    memset(course, 0, sizeof(*course));
}

static void add_loss(struct loss_course *course, uint64_t step, float loss)
{
    while (course->loss_count > 0 && course->loss_steps[course->loss_count - 1] >= step)
        course->loss_count--;
    if (course->loss_count == LOSS_COURSE_MAX) {
        size_t half = LOSS_COURSE_MAX / 2;
        memmove(course->losses, course->losses + half, half * sizeof(course->losses[0]));
        memmove(course->loss_steps, course->loss_steps + half,
                half * sizeof(course->loss_steps[0]));
        course->loss_count = half;
    }
    course->losses[course->loss_count] = loss;
    course->loss_steps[course->loss_count++] = step;
}

void loss_course_add(struct loss_course *course, uint32_t generation, uint64_t step, float loss)
{
    if (generation < course->generation)
        return;
    course->generation = generation;
    add_loss(course, step, loss);
}
