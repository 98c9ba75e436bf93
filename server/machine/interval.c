#include "server/machine/interval.h"

#include <math.h>

double job_interval_best_ms(double cost_ms, double mtbf_ms)
{
    if (cost_ms >= 2 * mtbf_ms)
        return mtbf_ms;
    double ratio = cost_ms / (2 * mtbf_ms);
    return sqrt(2 * cost_ms * mtbf_ms) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_ms;
}

double job_interval_mtbf_ms(const struct job_interval_facts *facts)
{
    double nodes = facts->nodes > 0 ? facts->nodes : 1;
    return ((double)facts->trained_ms + JOB_INTERVAL_DAY_MS / nodes) / (facts->failures + 1.0);
}

int64_t job_interval_ms(const struct job_interval_facts *facts)
{
    if (facts->cost_us <= 0)
        return JOB_INTERVAL_FIRST_MS;
    double best = job_interval_best_ms((double)facts->cost_us / 1e3, job_interval_mtbf_ms(facts));
    double floor_ms = fmax(JOB_INTERVAL_MIN_MS, 2.0 * (double)facts->write_ms);
    best = fmax(fmin(best, JOB_INTERVAL_MAX_MS), floor_ms);
    double current = (double)facts->current_ms;
    bool close = current >= floor_ms && best < current * JOB_INTERVAL_STEP &&
                 best * JOB_INTERVAL_STEP > current;
    return close ? facts->current_ms : (int64_t)best;
}
