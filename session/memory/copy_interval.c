#include "session/memory/copy_interval.h"

#define WEIGHT      0.125 /* of the newest value in an average */
#define BUSY_SHARE  0.5
#define FIRST_STEPS 16 /* what was new to the memory and the caches is over */
#define NEXT_STEPS  64

void session_copy_cost_note(double *average, double value_ms)
{
    *average = *average > 0 ? *average + WEIGHT * (value_ms - *average) : value_ms;
}

uint32_t session_copy_interval(const struct session_copy_cost *copy_cost)
{
    const double cost_ms = copy_cost->stall_ms + (copy_cost->core_free ? 0 : copy_cost->cpu_ms);
    uint32_t every = 1;
    if (!(copy_cost->step_ms > 0))
        return every;
    while (every < SESSION_EVERY_MAX &&
           (cost_ms > SESSION_COPY_COST_SHARE * every * copy_cost->step_ms ||
            copy_cost->busy_ms > BUSY_SHARE * every * copy_cost->step_ms))
        every *= 2;
    return every;
}

bool session_copy_interval_revises(uint64_t first, uint64_t step)
{
    return step == first + FIRST_STEPS || step == first + NEXT_STEPS ||
           (step > first && step % SESSION_EVERY_MAX == 0);
}

uint32_t session_copy_interval_agree(const uint32_t *wanted, size_t ranks)
{
    uint32_t most = 0;
    for (size_t i = 0; i < ranks; i++) {
        if (wanted[i] == 0)
            return 0;
        most = wanted[i] > most ? wanted[i] : most;
    }
    return most;
}
