#include "server/jobfsm/save_interval.h"

#include <math.h>

double interval_best_ms(double cost_ms, double mtbf_ms)
{
    if (cost_ms >= 2 * mtbf_ms)
        return mtbf_ms;
    double ratio = cost_ms / (2 * mtbf_ms);
    return sqrt(2 * cost_ms * mtbf_ms) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_ms;
}

double interval_mtbf_ms(const struct interval_facts *facts)
{
    double nodes = facts->nodes > 0 ? facts->nodes : 1;
    return ((double)facts->trained_ms + INTERVAL_DAY_MS / nodes) / (facts->failures + 1.0);
}

int64_t interval_choose_ms(const struct interval_facts *facts)
{
    if (facts->cost_us <= 0)
        return INTERVAL_FIRST_MS;
    double best = interval_best_ms((double)facts->cost_us / 1e3, interval_mtbf_ms(facts));
    double floor_ms = fmax(INTERVAL_MIN_MS, 2.0 * (double)facts->write_ms);
    best = fmax(fmin(best, INTERVAL_MAX_MS), floor_ms);
    double current = (double)facts->current_ms;
    bool close =
        current >= floor_ms && best < current * INTERVAL_CHANGE && best * INTERVAL_CHANGE > current;
    return close ? facts->current_ms : (int64_t)best;
}
