/* Durations in steps. */
#include "job/job.h"

enum status job_duration_steps(const struct job_duration *duration, uint64_t steps_per_epoch,
                               uint64_t *out)
{
    double value = duration->value;
    switch (duration->unit) {
    case JOB_STEPS:
        break;
    case JOB_EPOCHS:
        value *= (double)steps_per_epoch;
        break;
    case JOB_MS:
    case JOB_AUTO:
        return ST_CONFIG;
    }
    if (!(value >= 0 && value <= 1e15))
        return ST_CONFIG;
    const uint64_t steps = (uint64_t)value;
    *out = steps == 0 && value > 0 ? 1 : steps;
    return ST_OK;
}
