#include "session/memory/pace.h"

#define WEIGHT      0.125 /* of the newest value in an average */
#define BUSY_SHARE  0.5
#define FIRST_STEPS 16 /* what was new to the memory and the caches is over */
#define NEXT_STEPS  64

void session_pace_note(double *average, double value_ms)
{
    *average = *average > 0 ? *average + WEIGHT * (value_ms - *average) : value_ms;
}

uint32_t session_pace_every(const struct session_pace *pace)
{
    const double cost_ms = pace->stall_ms + (pace->core_free ? 0 : pace->cpu_ms);
    uint32_t every = 1;
    if (!(pace->step_ms > 0))
        return every;
    while (every < SESSION_EVERY_MAX && (cost_ms > SESSION_PACE_SHARE * every * pace->step_ms ||
                                         pace->busy_ms > BUSY_SHARE * every * pace->step_ms))
        every *= 2;
    return every;
}

bool session_pace_revises(uint64_t first, uint64_t step)
{
    return step == first + FIRST_STEPS || step == first + NEXT_STEPS ||
           (step > first && step % SESSION_EVERY_MAX == 0);
}

uint32_t session_pace_agree(const uint32_t *wanted, size_t ranks)
{
    uint32_t most = 0;
    for (size_t i = 0; i < ranks; i++) {
        if (wanted[i] == 0)
            return 0;
        most = wanted[i] > most ? wanted[i] : most;
    }
    return most;
}
