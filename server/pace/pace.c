#include "server/pace/pace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The unit of a row's wall time: most steps that are shorter take none of it, and some a whole
 * one. */
#define TICK_MS 1.0

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

static double middle_of(const double *sorted, uint32_t count)
{
    return count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

/* mean of the newest `most` */
static void fold(double *mean, uint32_t *count, uint32_t most, double value)
{
    if (*count < most)
        ++*count;
    *mean += (value - *mean) / *count;
}

/* Begins an attempt, whose steps may be faster or slower: other workers, other lanes. */
static void begin_attempt(struct pace *pace, uint32_t generation)
{
    if (pace->count >= PACE_LEAST)
        pace->before_ms = pace->plain_ms;
    pace->generation = generation;
    pace->rows = pace->count = pace->next = 0;
    pace->plain_ms = 0;
}

static void sorted_remove(double *sorted, uint32_t count, double value)
{
    uint32_t at = 0;
    while (at + 1 < count && sorted[at] != value)
        at++;
    memmove(sorted + at, sorted + at + 1, (count - at - 1) * sizeof(*sorted));
}

static void sorted_insert(double *sorted, uint32_t count, double value)
{
    uint32_t at = count;
    for (; at > 0 && sorted[at - 1] > value; at--)
        sorted[at] = sorted[at - 1];
    sorted[at] = value;
}

static void add_plain(struct pace *pace, const struct pace_row *row, double ms)
{
    if (pace->count == PACE_WINDOW) {
        sorted_remove(pace->sorted_ms, pace->count, pace->ring_ms[pace->next]);
        pace->count--;
    }
    sorted_insert(pace->sorted_ms, pace->count, ms);
    pace->count++;
    pace->ring_ms[pace->next] = ms;
    memcpy(pace->ring_part_ms[pace->next], row->part_ms, sizeof(row->part_ms));
    pace->next = (pace->next + 1) % PACE_WINDOW;
    pace->plain_ms = middle_of(pace->sorted_ms, pace->count);
    if (pace->count < PACE_LEAST)
        return;
    const double most = PACE_STALL * fmax(pace->plain_ms, TICK_MS);
    fold(&pace->else_ms, &pace->elses, PACE_FADE, fmin(ms - pace->plain_ms, most));
}

void pace_add(struct pace *pace, const struct pace_row *row)
{
    const bool follows = pace->generation == row->generation && row->step > pace->step &&
                         row->wall_ms >= pace->wall_ms && pace->rows > 0;
    if (!follows)
        begin_attempt(pace, row->generation);
    const double ms = follows ? (double)(row->wall_ms - pace->wall_ms) : row->step_ms;
    const double steps = follows ? (double)(row->step - pace->step) : 1;
    pace->rows++;
    pace->step = row->step;
    pace->wall_ms = row->wall_ms;
    if (pace->rows <= PACE_SKIP || !isfinite(ms))
        return;
    if (!row->evaluated) {
        add_plain(pace, row, ms / steps);
    } else if (pace->count > 0) {
        fold(&pace->eval_ms, &pace->evals, PACE_EVALS, fmax(ms - steps * pace->plain_ms, 0));
    }
}

double pace_step_ms(const struct pace *pace)
{
    if (pace->count >= PACE_LEAST || (pace->count > 0 && pace->before_ms == 0))
        return pace->plain_ms;
    return pace->before_ms > 0 ? pace->before_ms : (double)NAN;
}

double pace_part_ms(const struct pace *pace, uint32_t part)
{
    double values[PACE_WINDOW];
    if (pace->count == 0 || part >= PACE_PARTS)
        return (double)NAN;
    for (uint32_t i = 0; i < pace->count; i++)
        values[i] = pace->ring_part_ms[i][part];
    qsort(values, pace->count, sizeof(*values), compare);
    return middle_of(values, pace->count);
}

double pace_average_ms(const struct pace *pace)
{
    const double ms = pace_step_ms(pace) + pace->else_ms;
    return ms < 0 ? 0 : ms;
}

double pace_left_ms(const struct pace *pace, uint64_t steps, uint64_t evals)
{
    if (isnan(pace_step_ms(pace)))
        return (double)NAN;
    return (double)steps * pace_average_ms(pace) + (double)evals * pace->eval_ms;
}

double pace_mfu(const struct pace *pace, uint32_t generation, double step_flops, double peak_flops)
{
    const bool own = pace->generation == generation && pace->count >= PACE_LEAST;
    if (!own || !(pace->plain_ms > 0) || !(step_flops > 0) || !(peak_flops > 0))
        return (double)NAN;
    return step_flops / (pace->plain_ms / 1e3 * peak_flops);
}

uint64_t pace_evals_left(uint64_t step, uint64_t total, uint64_t every)
{
    if (step >= total)
        return 0;
    if (every == 0)
        return 1;
    return total / every - step / every + (total % every != 0);
}
