/*
 * checkpoint.every: auto. How long to train between two checkpoints, from what one costs and how
 * often the job fails.
 *
 * A checkpoint that is taken often costs training time, one that is taken rarely costs the steps
 * since the last one when something fails. For failures that come as a Poisson process the sum is
 * least at about sqrt(2 C M). C is the time that a checkpoint takes from training, M the mean time
 * between failures. With the next terms of the series, if C is no longer small against M, it is
 * least at
 *     T = sqrt(2 C M) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C        for C < 2 M, else M
 * M is estimated as with one failure seen in advance in a node's day of training. So a job without
 * failures has an estimate, too, and few of them don't decide everything:
 *     M = (time trained + 24 h / nodes) / (failures + 1)
 *
 * Source: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
 *         1974; J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart
 *         dumps, Future Generation Computer Systems 22(3), 2006 (the perturbation solution; its
 *         figures 3 to 5 are the worked examples of the test).
 * Units: milliseconds, but for costs, which are far below one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define INTERVAL_FIRST_MS 30000   /* until a checkpoint was measured */
#define INTERVAL_MIN_MS   10000   /* nobody wants to lose less */
#define INTERVAL_MAX_MS   3600000 /* nobody wants to lose more, however rarely */
#define INTERVAL_CHANGE   1.25    /* a change by less is none */
#define INTERVAL_DAY_MS   86400000.0

struct interval_facts {
    int64_t cost_us;    /* time that a checkpoint takes from training; 0: none was measured */
    int64_t write_ms;   /* from its begin until it is stored: they don't overlap */
    int64_t trained_ms; /* by this job, in all */
    uint32_t failures;  /* failures that cost steps */
    uint32_t nodes;     /* at least 1 */
    int64_t current_ms; /* the interval so far; 0: none */
};

/* Returns T of the formula above, unbounded. */
double interval_best_ms(double cost_ms, double mtbf_ms);
double interval_mtbf_ms(const struct interval_facts *facts);
/* Returns the interval from now on, within the bounds: the current one unless the facts ask for one
 * that differs from it by INTERVAL_CHANGE or more. */
int64_t interval_choose_ms(const struct interval_facts *facts);
