/*
 * How fast a job goes, and how long it will take: from its rows of metrics. One place for all who
 * tell it.
 *
 * A row's time is the wall time since the row before, so that nothing between two steps is left
 * out. It is taken apart:
 *
 *     plain step     median of the newest THROUGHPUT_WINDOW rows of this attempt without an
 *                    evaluation; the first THROUGHPUT_SKIP of an attempt don't count (kernels
 *                    are chosen, files read)
 *     evaluation     what a row with one takes longer than a plain step: mean of the newest
 *                    THROUGHPUT_EVALS
 *     everything else  saves, copies, stalls: what plain rows take longer than their median, a
 *                    step; mean of the newest THROUGHPUT_FADE. A standstill counts as
 *                    THROUGHPUT_STALL steps at most: it isn't what is to come
 *
 *     left = steps * (plain + else) + evaluations * evaluation
 *
 *     MFU = operations of a step / (plain step * operations a second that its workers could do),
 *     of this attempt alone, as another one has other workers
 *
 * An attempt is a generation. Its first THROUGHPUT_LEAST rows tell less than the attempt before,
 * whose plain step holds until then; what evaluations and saves take is the job's.
 *
 * Units: milliseconds. Pure. Thread: any, one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define THROUGHPUT_WINDOW 64
#define THROUGHPUT_SKIP   2
#define THROUGHPUT_LEAST  5
#define THROUGHPUT_EVALS  8
#define THROUGHPUT_FADE   256
#define THROUGHPUT_STALL  100
#define THROUGHPUT_PARTS  8 /* of a step */

struct throughput_row {
    uint32_t generation;
    uint64_t step;
    int64_t wall_ms; /* when the row was made */
    double step_ms;  /* of this step alone */
    double part_ms[THROUGHPUT_PARTS];
    bool evaluated;
};

struct throughput {
    uint32_t generation; /* of the newest row; 0: there was none */
    uint32_t rows;       /* of that generation */
    uint64_t step;       /* of the newest row */
    int64_t wall_ms;
    double ring_ms[THROUGHPUT_WINDOW], ring_part_ms[THROUGHPUT_WINDOW][THROUGHPUT_PARTS];
    double sorted_ms[THROUGHPUT_WINDOW]; /* the ring's, ascending: a row costs no sort */
    uint32_t count, next;                /* of the ring */
    double plain_ms;                     /* median of the ring; 0: it is empty */
    double before_ms;                    /* of the attempts before; 0: not known */
    double eval_ms;                      /* beyond a plain step */
    double else_ms;                      /* beyond a plain step, each */
    uint32_t evals, elses; /* rows in these means, at most THROUGHPUT_EVALS, THROUGHPUT_FADE */
};

/* throughput starts zeroed. A row that doesn't come after the newest one begins a new attempt,
 * too. */
void throughput_add(struct throughput *throughput, const struct throughput_row *row);

/* Return the time of a plain step, and of a part of one; NaN: not known. */
double throughput_step_ms(const struct throughput *throughput);
double throughput_part_ms(const struct throughput *throughput, uint32_t part);
/* Returns the time of a step with all that is between steps, evaluations apart; NaN: not known. */
double throughput_average_ms(const struct throughput *throughput);
/* Returns how long so many steps and evaluations will take; NaN: not known. */
double throughput_left_ms(const struct throughput *throughput, uint64_t steps, uint64_t evals);
/* Returns the MFU. step_flops, peak_flops: operations of a step, and a second at most, of that
 * generation's workers together; 0: not known. NaN: one of them, or the generation's plain step,
 * isn't known. It is above 1 if a step needs fewer operations than are counted (docs/metrics.md),
 * or a peak was measured too low: nothing is cut off. */
double throughput_mfu(const struct throughput *throughput, uint32_t generation, double step_flops,
                      double peak_flops);
/* Counts the evaluations after `step`, up to and with `total`: every so many steps (0: none
 * between), and at the end. */
uint64_t throughput_evals_left(uint64_t step, uint64_t total, uint64_t every);
