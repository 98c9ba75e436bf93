#include "server/throughput/throughput.h"

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
static void begin_attempt(struct throughput *throughput, uint32_t generation)
{
    if (throughput->count >= THROUGHPUT_LEAST)
        throughput->before_ms = throughput->plain_ms;
    throughput->generation = generation;
    throughput->rows = throughput->count = throughput->next = 0;
    throughput->plain_ms = 0;
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

static void add_plain(struct throughput *throughput, const struct throughput_row *row, double ms)
{
    if (throughput->count == THROUGHPUT_WINDOW) {
        sorted_remove(throughput->sorted_ms, throughput->count,
                      throughput->ring_ms[throughput->next]);
        throughput->count--;
    }
    sorted_insert(throughput->sorted_ms, throughput->count, ms);
    throughput->count++;
    throughput->ring_ms[throughput->next] = ms;
    memcpy(throughput->ring_part_ms[throughput->next], row->part_ms, sizeof(row->part_ms));
    throughput->next = (throughput->next + 1) % THROUGHPUT_WINDOW;
    throughput->plain_ms = middle_of(throughput->sorted_ms, throughput->count);
    if (throughput->count < THROUGHPUT_LEAST)
        return;
    const double most = THROUGHPUT_STALL * fmax(throughput->plain_ms, TICK_MS);
    fold(&throughput->else_ms, &throughput->elses, THROUGHPUT_FADE,
         fmin(ms - throughput->plain_ms, most));
}

void throughput_add(struct throughput *throughput, const struct throughput_row *row)
{
    const bool follows = throughput->generation == row->generation &&
                         row->step > throughput->step && row->wall_ms >= throughput->wall_ms &&
                         throughput->rows > 0;
    if (!follows)
        begin_attempt(throughput, row->generation);
    const double ms = follows ? (double)(row->wall_ms - throughput->wall_ms) : row->step_ms;
    const double steps = follows ? (double)(row->step - throughput->step) : 1;
    throughput->rows++;
    throughput->step = row->step;
    throughput->wall_ms = row->wall_ms;
    if (throughput->rows <= THROUGHPUT_SKIP || !isfinite(ms))
        return;
    if (!row->evaluated) {
        add_plain(throughput, row, ms / steps);
    } else if (throughput->count > 0) {
        fold(&throughput->eval_ms, &throughput->evals, THROUGHPUT_EVALS,
             fmax(ms - steps * throughput->plain_ms, 0));
    }
}

double throughput_step_ms(const struct throughput *throughput)
{
    if (throughput->count >= THROUGHPUT_LEAST ||
        (throughput->count > 0 && throughput->before_ms == 0))
        return throughput->plain_ms;
    return throughput->before_ms > 0 ? throughput->before_ms : (double)NAN;
}

double throughput_part_ms(const struct throughput *throughput, uint32_t part)
{
    double values[THROUGHPUT_WINDOW];
    if (throughput->count == 0 || part >= THROUGHPUT_PARTS)
        return (double)NAN;
    for (uint32_t i = 0; i < throughput->count; i++)
        values[i] = throughput->ring_part_ms[i][part];
    qsort(values, throughput->count, sizeof(*values), compare);
    return middle_of(values, throughput->count);
}

double throughput_average_ms(const struct throughput *throughput)
{
    const double ms = throughput_step_ms(throughput) + throughput->else_ms;
    return ms < 0 ? 0 : ms;
}

double throughput_left_ms(const struct throughput *throughput, uint64_t steps, uint64_t evals)
{
    if (isnan(throughput_step_ms(throughput)))
        return (double)NAN;
    return (double)steps * throughput_average_ms(throughput) + (double)evals * throughput->eval_ms;
}

double throughput_mfu(const struct throughput *throughput, uint32_t generation, double step_flops,
                      double peak_flops)
{
    const bool own = throughput->generation == generation && throughput->count >= THROUGHPUT_LEAST;
    if (!own || !(throughput->plain_ms > 0) || !(step_flops > 0) || !(peak_flops > 0))
        return (double)NAN;
    return step_flops / (throughput->plain_ms / 1e3 * peak_flops);
}

uint64_t throughput_evals_left(uint64_t step, uint64_t total, uint64_t every)
{
    if (step >= total)
        return 0;
    if (every == 0)
        return 1;
    return total / every - step / every + (total % every != 0);
}
