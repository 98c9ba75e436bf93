/* Rows of metrics: rank 0 sends them, they are kept until they are journalled, then
 * acknowledged. */
#include "server/coord/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "server/coord/base.h"
#include "server/coord/index.h"
#include "server/coord/orders.h"

/* Books what a step of rank 0 waited for a copy in memory. (What it waited for a checkpoint
 * stands in the reports of the save, of all ranks.) */
static void note_copy_stall(struct coord_job *job, const Cairn__V1__MetricRow *row)
{
    struct fsm *m = &job->m;
    if (row->step == 0 || fsm_find_save(m, row->step - 1, m->generation) != NULL)
        return;
    for (size_t i = 0; i < row->n_phases; i++) {
        double ms = row->phases[i]->ms;
        if (strcmp(row->phases[i]->name, "snapshot") == 0 && ms > 0 && ms < 86400000.0)
            fsm_note_stall(m, (int64_t)(ms * 1000)); /* from outside: not more than a day */
    }
}

/* The parts of a step, as rows name them. */
static const char *const parts[COORD_PARTS] = { "data",          "forward",   "backward",
                                                "communication", "optimizer", "snapshot" };

const char *coord_part_name(uint32_t part)
{
    CHECK(part < COORD_PARTS);
    return parts[part];
}

double coord_part_ms(const struct coord_job *job, uint32_t part)
{
    return throughput_part_ms(&job->throughput, part);
}

double coord_step_ms(const struct coord_job *job)
{
    return throughput_step_ms(&job->throughput);
}

static void note_throughput(struct coord_job *job, const Cairn__V1__MetricRow *row)
{
    struct throughput_row said = { .generation = row->generation,
                                   .step = row->step,
                                   .wall_ms = row->wall_ms,
                                   .step_ms = row->step_ms,
                                   .evaluated =
                                       row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL };
    for (size_t i = 0; i < row->n_phases; i++) {
        for (uint32_t p = 0; p < COORD_PARTS; p++) {
            if (strcmp(row->phases[i]->name, parts[p]) == 0)
                said.part_ms[p] = row->phases[i]->ms;
        }
    }
    throughput_add(&job->throughput, &said);
}

bool coord_is_text(const struct coord_job *job)
{
    return !job->unreadable[0] && jobspec_is_text(&job->spec->model);
}

double coord_throughput(const struct coord_job *job)
{
    const double ms = throughput_average_ms(&job->throughput);
    if (job->unreadable[0]) /* what its file would say */
        return (double)NAN;
    if (jobspec_is_command(job->spec)) /* what a step is, its program alone knows */
        return job->samples_per_s > 0 ? job->samples_per_s : (double)NAN;
    if (!(ms > 0))
        return (double)NAN;
    const double samples = (double)job->spec->train.global_batch;
    return samples * (coord_is_text(job) ? (double)job->spec->model.context : 1) / (ms / 1e3);
}

double coord_eta_s(const struct coord_job *job, uint64_t step)
{
    const struct fsm *m = &job->m;
    const bool runs = m->state == FSM_RUNNING || m->state == FSM_SAVING;
    uint64_t every = 0, evals = 0;
    if (!runs || job->unreadable[0] || m->total_steps == 0 || step > m->total_steps)
        return (double)NAN;
    if (job->spec->data.eval.format != JOBSPEC_FORMAT_NONE &&
        jobspec_duration_steps(&job->spec->eval_every, m->steps_per_epoch, &every) == ST_OK)
        evals = throughput_evals_left(step, m->total_steps, every);
    return throughput_left_ms(&job->throughput, m->total_steps - step, evals) / 1e3;
}

void coord_show_row(struct coord_job *job, uint64_t step, const Cairn__V1__MetricRow *row)
{
    note_throughput(job, row);
    job->metric_step = step;
    job->loss = (double)row->loss;
    job->samples_per_s = row->samples_per_s;
    if (row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL) {
        job->accuracy = row->eval->accuracy;
        job->eval_loss = row->eval->loss;
    }
}

static void note_row(struct coord_job *job, const Cairn__V1__MetricRow *row)
{
    if (row->step <= job->metric_step && row->generation == job->metric_generation)
        return; /* sent again after a lost session */
    note_copy_stall(job, row);
    job->metric_generation = row->generation;
    coord_show_row(job, row->step, row);
}

static enum status keep_row(struct coord_job *job, const Cairn__V1__MetricRow *row)
{
    struct coord_rows *rows = &job->rows;
    if (rows->count == rows->capacity) {
        size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
        struct coord_row *more = realloc(rows->list, capacity * sizeof(*more));
        if (more == NULL)
            return ST_NO_MEMORY;
        rows->list = more;
        rows->capacity = capacity;
    }
    size_t size = cairn__v1__metric_row__get_packed_size(row);
    void *data = malloc(size ? size : 1);
    if (data == NULL)
        return ST_NO_MEMORY;
    (void)cairn__v1__metric_row__pack(row, data);
    CHECK(rows->count < rows->capacity);
    rows->list[rows->count++] =
        (struct coord_row){ .step = row->step,
                            .eval = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL,
                            .data = data,
                            .size = size };
    return ST_OK;
}

void coord_take_rows(struct coord *coord, struct coord_job *job, Cairn__V1__MetricRow *const *rows,
                     size_t count)
{
    for (size_t i = 0; i < count; i++) {
        Cairn__V1__MetricRow *row = rows[i];
        row->generation = job->m.generation;
        if (row->wall_ms == 0)
            row->wall_ms = clock_wall_ms(coord->options.clock);
        if (job->rows.count == 0)
            job->rows.since = coord_now(coord);
        if (keep_row(job, row) != ST_OK) {
            coord_fail(coord, ST_NO_MEMORY, "keeping metrics");
            return;
        }
        note_row(job, row);
    }
    coord_job_moved(coord, job);
}

/* Tells rank 0, once the group is journalled, that it may forget these rows. */
static void acknowledge(struct coord *coord, struct coord_job *job, uint64_t through)
{
    if (job->metrics_from == NULL || job->ranks[0].conn != job->metrics_from)
        return;
    Cairn__V1__MetricAck ack = CAIRN__V1__METRIC_ACK__INIT;
    ack.through_step = through;
    coord_send_order(coord, job, 0, COORD_WITH_GROUP, CAIRN__V1__TRAINER_ORDER__BODY_METRIC_ACK,
                     &ack);
}

void coord_keep_rows(struct coord *coord, struct coord_job *job)
{
    struct coord_rows *rows = &job->rows;
    size_t kept = 0;
    const bool many = rows->count >= COORD_ROWS_MAX;
    for (size_t i = 0; many && i < rows->count; i++) {
        if (i % 2 == 0 && i + 1 < rows->count) {
            free(rows->list[i].data);
        } else {
            rows->list[kept++] = rows->list[i];
        }
    }
    if (many)
        rows->count = kept;
    rows->since = coord_now(coord);
    coord_job_moved(coord, job);
}

enum status coord_record_rows(struct coord *coord, struct coord_job *job)
{
    uint64_t through = 0;
    if (job->rows.count == 0)
        return ST_OK;
    if (coord->full) {
        coord_keep_rows(coord, job);
        return ST_OK;
    }
    auto_free struct journal_metric *rows = calloc(job->rows.count, sizeof(*rows));
    if (rows == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < job->rows.count; i++) {
        const struct coord_row *row = &job->rows.list[i];
        rows[i] = (struct journal_metric){ row->step, row->eval, row->data, row->size };
        through = row->step > through ? row->step : through;
    }
    enum status st = journal_put_metrics(coord->options.journal, job->id, rows, job->rows.count);
    for (size_t i = 0; i < job->rows.count; i++)
        free(job->rows.list[i].data);
    job->rows.count = 0;
    job->rows_version++;
    if (coord->tidy_at == INT64_MAX) /* the journal may have grown too large by them */
        coord->tidy_at = coord_now(coord) + COORD_GROWN_MS;
    coord_job_moved(coord, job);
    acknowledge(coord, job, through);
    if (st != ST_FULL)
        return st;
    LOG_ERROR(coord->options.log, "%s: its metrics have no room; rows up to step %llu are not kept",
              job->id, (unsigned long long)through);
    return ST_OK; /* the job trains on, and so do others */
}
