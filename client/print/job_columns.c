/* The columns of jobs. One more column is one more row of the table below: parsing, help,
 * completion and `cairn top` have it from here. */
#include "client/print/job_columns.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/print/cell.h"
#include "client/print/format.h"
#include "common/clock.h"
#include "proto/text/job_state.h"

#define JOB(member) .offset = offsetof(Cairn__V1__Job, member)

#define STEP_DIGITS 3 /* of a step below a millisecond: microseconds count then */

/* ---- state and progress ---- */

static void cell_state(const void *state, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", job_state_name(*(const Cairn__V1__JobState *)state));
}

/* The way of a job from QUEUED to its end. */
static double value_state(const void *state)
{
    return (double)*(const Cairn__V1__JobState *)state;
}

void job_cell_step(const void *job, char *out, size_t capacity)
{
    const Cairn__V1__Job *row = job;
    if (row->total_steps > 0) {
        (void)snprintf(out, capacity, "%llu/%llu", (unsigned long long)row->step,
                       (unsigned long long)row->total_steps);
    } else {
        (void)snprintf(out, capacity, "%llu", (unsigned long long)row->step);
    }
}

static double value_step(const void *job)
{
    return (double)((const Cairn__V1__Job *)job)->step;
}

static double value_progress(const void *job)
{
    const Cairn__V1__Job *row = job;
    return row->total_steps == 0 ? (double)NAN : (double)row->step / (double)row->total_steps;
}

static void print_percent(double fraction, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, isfinite(fraction) ? "%.1f %%" : "-", 100 * fraction);
}

static void cell_progress(const void *job, char *out, size_t capacity)
{
    print_percent(value_progress(job), out, capacity);
}

static void cell_fraction(const void *fraction, char *out, size_t capacity)
{
    print_percent(*(const double *)fraction, out, capacity);
}

static double value_mfu(const void *job)
{
    const Cairn__V1__Job *row = job;
    return row->mfu__case == CAIRN__V1__JOB__MFU__MFU ? row->mfu : (double)NAN;
}

static void cell_mfu(const void *job, char *out, size_t capacity)
{
    print_percent(value_mfu(job), out, capacity);
}

/* ---- times ---- */

static double value_eta(const void *job)
{
    const Cairn__V1__Job *row = job;
    return row->state == CAIRN__V1__JOB_STATE__RUNNING ? row->eta_seconds : (double)NAN;
}

void job_cell_eta(const void *job, char *out, size_t capacity)
{
    (void)format_seconds(value_eta(job), out, capacity);
}

/* Since its first worker, until its end or now. */
static double value_elapsed(const void *job)
{
    const Cairn__V1__Job *row = job;
    int64_t from = 0, to = clock_wall_ms(clock_system());
    if (!format_read_time(row->started_at, &from))
        return (double)NAN;
    (void)format_read_time(row->ended_at, &to);
    return to < from ? 0 : (double)(to - from) / 1e3;
}

static void cell_elapsed(const void *job, char *out, size_t capacity)
{
    (void)format_seconds(value_elapsed(job), out, capacity);
}

static double value_lost(const void *job)
{
    const Cairn__V1__Job *row = job;
    double total = 0;
    for (size_t i = 0; i < row->n_lost_seconds; i++)
        total += row->lost_seconds[i]->seconds;
    return total;
}

static void cell_lost(const void *job, char *out, size_t capacity)
{
    (void)format_seconds(value_lost(job), out, capacity);
}

/* Adds up the parts of a step, each as it shows with so many digits behind the point. */
static double sum_of_parts(const Cairn__V1__Job *job, int digits)
{
    const double scale = pow(10, digits);
    double sum = 0;
    for (size_t i = 0; i < job->n_phases; i++)
        sum += isfinite(job->phases[i]->ms) ? round(job->phases[i]->ms * scale) : 0;
    return sum / scale;
}

double job_step_ms(const Cairn__V1__Job *job, int *out_digits)
{
    double ms = fmax(job->step_ms, sum_of_parts(job, STEP_DIGITS));
    *out_digits = STEP_DIGITS;
    if (!isfinite(job->step_ms))
        return (double)NAN;
    if (ms >= 1) {
        *out_digits = 1;
        ms = fmax(job->step_ms, sum_of_parts(job, 1));
    }
    return ms;
}

static void cell_step_time(const void *job, char *out, size_t capacity)
{
    int digits = 0;
    const double ms = job_step_ms(job, &digits);
    if (isfinite(ms)) {
        (void)snprintf(out, capacity, "%.*f ms", digits, ms);
    } else {
        (void)snprintf(out, capacity, "-");
    }
}

static double value_step_time(const void *job)
{
    int digits = 0;
    return job_step_ms(job, &digits);
}

static void cell_speed(const void *job, char *out, size_t capacity)
{
    const Cairn__V1__Job *row = job;
    const double value = row->throughput;
    if (isfinite(value)) {
        (void)snprintf(out, capacity, "%.*f %s", value < 10 ? 2 : 0, value, row->throughput_unit);
    } else {
        (void)snprintf(out, capacity, "-");
    }
}

static double value_speed(const void *job)
{
    return ((const Cairn__V1__Job *)job)->throughput;
}

/* ---- where, and what is saved ---- */

static bool is_named_before(const Cairn__V1__Job *job, size_t end)
{
    for (size_t i = 0; i < end; i++) {
        if (strcmp(job->workers[i]->node, job->workers[end]->node) == 0)
            return true;
    }
    return false;
}

/* Writes each node once, as far as they fit. */
static void cell_nodes(const void *job, char *out, size_t capacity)
{
    const Cairn__V1__Job *row = job;
    size_t used = 0;
    (void)snprintf(out, capacity, "-");
    for (size_t i = 0; i < row->n_workers && used < capacity; i++) {
        const Cairn__V1__Worker *worker = row->workers[i];
        if (worker->node[0] == '\0' || is_named_before(row, i))
            continue;
        used += (size_t)snprintf(out + used, capacity - used, "%s%s", used == 0 ? "" : ",",
                                 worker->node);
    }
}

static double value_checkpoint(const void *job)
{
    const Cairn__V1__Job *row = job;
    return row->n_checkpoints == 0 ? (double)NAN : (double)row->checkpoints[0]->step;
}

static void cell_checkpoint(const void *job, char *out, size_t capacity)
{
    const Cairn__V1__Job *row = job;
    if (row->n_checkpoints == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        (void)snprintf(out, capacity, "%llu", (unsigned long long)row->checkpoints[0]->step);
    }
}

static void cell_saved(const void *job, char *out, size_t capacity)
{
    const Cairn__V1__Job *row = job;
    if (row->n_checkpoints == 0) {
        (void)snprintf(out, capacity, "-");
    } else {
        cell_age(&row->checkpoints[0]->committed_at, out, capacity);
    }
}

static double value_saved(const void *job)
{
    const Cairn__V1__Job *row = job;
    return row->n_checkpoints == 0 ? (double)NAN
                                   : cell_value_age(&row->checkpoints[0]->committed_at);
}

/* ---- the table ---- */

const struct column job_columns[] = {
    { "ID", JOB(id), .cell = cell_text, .about = "stays, whatever the name" },
    { "NAME", JOB(name), .cell = cell_text, .most = 28, .about = "as its file says" },
    { "STATE", JOB(state), .cell = cell_state, .value = value_state, .state = true,
      .about = "in the order of a job's life: QUEUED, ..., RUNNING, ..., SUCCEEDED, FAILED" },
    { "HEALTH", JOB(health), .cell = cell_optional_text, .wide = true, .less = 6,
      .about = "ok, unsupervised, degraded, recovering" },
    { "STEP", .cell = job_cell_step, .value = value_step, .right = true, .less = 1,
      .about = "steps that are finished, of all" },
    { "PROGRESS", .cell = cell_progress, .value = value_progress, .right = true, .asked = true,
      .less = 1, .about = "the same in percent" },
    { "LOSS", JOB(loss), .cell = cell_number, .value = cell_value_number, .right = true, .less = 3,
      .about = "of the last step" },
    { "ACCURACY", JOB(accuracy), .cell = cell_number, .value = cell_value_number, .right = true,
      .wide = true, .less = 6, .about = "of the last evaluation" },
    { "EVAL LOSS", JOB(eval_loss), .cell = cell_number, .value = cell_value_number, .right = true,
      .asked = true, .less = 6, .about = "of the last evaluation" },
    { "SPEED", .cell = cell_speed, .value = value_speed, .right = true, .asked = true, .less = 5,
      .about = "samples or tokens a second, of this attempt" },
    { "MFU", .cell = cell_mfu, .value = value_mfu, .right = true, .asked = true, .less = 6,
      .about = "of what its workers can compute at most, as they measured it" },
    { "STEP TIME", .cell = cell_step_time, .value = value_step_time, .right = true, .asked = true,
      .less = 6, .about = "the median step of this attempt" },
    { "ETA", .cell = job_cell_eta, .value = value_eta, .right = true, .less = 2,
      .about = "time that is left" },
    { "WORKERS", JOB(n_workers), .cell = cell_size, .value = cell_value_size, .right = true,
      .less = 4, .about = "in its last generation" },
    { "SPARES", JOB(n_spares), .cell = cell_size, .value = cell_value_size, .right = true,
      .asked = true, .less = 6, .about = "processes that could take a seat, or start" },
    { "RECOVERIES", JOB(recovery_count), .cell = cell_u32, .value = cell_value_u32, .right = true,
      .less = 6, .about = "ways from one generation to the next; 'cairn why' has them" },
    { "RESTARTS", JOB(restarts), .cell = cell_u32, .value = cell_value_u32, .right = true,
      .asked = true, .less = 6,
      .about = "how often a failure, or a node that leaves, made its workers form anew" },
    { "LOST", .cell = cell_lost, .value = value_lost, .right = true, .asked = true, .less = 6,
      .about = "time that was no training, all of it" },
    { "GOODPUT", JOB(goodput), .cell = cell_fraction, .value = cell_value_number, .right = true,
      .asked = true, .less = 6, .about = "training that counted, of the time since it ran first" },
    { "ATTEMPT", JOB(generation), .cell = cell_u32, .value = cell_value_u32, .right = true,
      .asked = true, .less = 6, .about = "its generation" },
    { "CHECKPOINT", .cell = cell_checkpoint, .value = value_checkpoint, .right = true,
      .asked = true, .less = 6, .about = "the step of the newest" },
    { "SAVED", .cell = cell_saved, .value = value_saved, .right = true, .asked = true, .less = 6,
      .about = "how long that is ago" },
    { "AGE", JOB(submitted_at), .cell = cell_age, .value = cell_value_age, .right = true, .less = 6,
      .about = "since it was submitted" },
    { "ELAPSED", .cell = cell_elapsed, .value = value_elapsed, .right = true, .asked = true,
      .less = 6, .about = "since it ran first, until its end" },
    { "SUBMITTED", JOB(submitted_at), .cell = cell_optional_text, .value = cell_value_time,
      .asked = true, .less = 6, .about = "when, in UTC" },
    { "STARTED", JOB(started_at), .cell = cell_optional_text, .value = cell_value_time,
      .asked = true, .less = 6, .about = "when it ran first" },
    { "ENDED", JOB(ended_at), .cell = cell_optional_text, .value = cell_value_time, .asked = true,
      .less = 6, .about = "when" },
    { "MODEL", JOB(model), .cell = cell_optional_text, .wide = true, .less = 6,
      .about = "its architecture, or \"command\"" },
    { "COMMAND", JOB(command), .cell = cell_optional_text, .asked = true, .most = 40, .less = 6,
      .about = "the program of a job with a command" },
    { "NODES", .cell = cell_nodes, .asked = true, .most = 40, .less = 6,
      .about = "where its workers are" },
    { "STORE", JOB(store), .cell = cell_optional_text, .asked = true, .less = 6,
      .about = "the folder of its checkpoints" },
    { "DIGEST", JOB(final_digest), .cell = cell_optional_text, .asked = true, .less = 6,
      .about = "of the state that it came to" },
    { "REASON", JOB(reason), .cell = cell_text,
      .about = "why it waits, failed or is being recovered" },
    { 0 },
};
