#include "proto/text/metrics.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "proto/text/json.h"

static const char *const names[METRICS] = {
    [METRIC_STEP] = "step",
    [METRIC_GENERATION] = "generation",
    [METRIC_LOSS] = "loss",
    [METRIC_LR] = "lr",
    [METRIC_GRAD_NORM] = "grad_norm",
    [METRIC_EVAL_LOSS] = "eval_loss",
    [METRIC_EVAL_ACCURACY] = "eval_accuracy",
    [METRIC_SAMPLES_PER_SECOND] = "samples_per_second",
    [METRIC_SECONDS] = "seconds",
    [METRIC_EPOCH] = "epoch",
    [METRIC_UNIX_SECONDS] = "unix_seconds",
    [METRIC_DATA] = "data_seconds",
    [METRIC_FORWARD] = "forward_seconds",
    [METRIC_BACKWARD] = "backward_seconds",
    [METRIC_COMMUNICATION] = "communication_seconds",
    [METRIC_OPTIMIZER] = "optimizer_seconds",
    [METRIC_SNAPSHOT] = "snapshot_seconds",
};

const char *metric_name(enum metric metric)
{
    return names[metric];
}

/* In whole nanoseconds. */
static double seconds_of(double ms)
{
    return round(ms * 1e6) / 1e9;
}

static double phase_seconds(const Cairn__V1__MetricRow *row, const char *name)
{
    for (size_t i = 0; i < row->n_phases; i++) {
        const char *phase = row->phases[i]->name;
        const size_t size = strlen(phase);
        if (strncmp(name, phase, size) == 0 && strcmp(name + size, "_seconds") == 0)
            return seconds_of(row->phases[i]->ms);
    }
    return (double)NAN;
}

double metric_value(const Cairn__V1__MetricRow *row, enum metric metric)
{
    const bool evaluated = row->eval__case == CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    switch (metric) {
    case METRIC_STEP:
        return (double)row->step;
    case METRIC_GENERATION:
        return (double)row->generation;
    case METRIC_LOSS:
        return json_shortest(row->loss);
    case METRIC_LR:
        return json_shortest(row->lr);
    case METRIC_GRAD_NORM:
        return json_shortest(row->grad_norm);
    case METRIC_EVAL_LOSS:
        return evaluated ? row->eval->loss : (double)NAN;
    case METRIC_EVAL_ACCURACY:
        return evaluated ? row->eval->accuracy : (double)NAN;
    case METRIC_SAMPLES_PER_SECOND:
        return json_shortest((float)row->samples_per_s);
    case METRIC_SECONDS:
        return seconds_of(row->step_ms);
    case METRIC_EPOCH:
        return row->epoch;
    case METRIC_UNIX_SECONDS:
        return (double)row->wall_ms / 1e3;
    case METRIC_DATA:
    case METRIC_FORWARD:
    case METRIC_BACKWARD:
    case METRIC_COMMUNICATION:
    case METRIC_OPTIMIZER:
    case METRIC_SNAPSHOT:
        return phase_seconds(row, names[metric]);
    case METRICS:
        break;
    }
    return (double)NAN;
}

json_t *metric_json(const Cairn__V1__MetricRow *row, enum metric metric)
{
    const double value = metric_value(row, metric);
    if (metric == METRIC_STEP || metric == METRIC_GENERATION)
        return json_integer((json_int_t)value);
    return isfinite(value) ? json_real(value) : json_null();
}

enum status metrics_csv_head(struct buf *out)
{
    enum status st = ST_OK;
    for (enum metric i = METRIC_STEP; st == ST_OK && i < METRICS; i++)
        st = buf_printf(out, "%s%s", names[i], i + 1 < METRICS ? "," : "\n");
    return st;
}

enum status metrics_csv(const Cairn__V1__MetricRow *row, struct buf *out)
{
    enum status st = ST_OK;
    for (enum metric i = METRIC_STEP; st == ST_OK && i < METRICS; i++) {
        json_t *value = metric_json(row, i);
        if (i > METRIC_STEP)
            st = buf_append_text(out, ",");
        if (st == ST_OK && !json_is_null(value)) {
            st = json_print(value, true, out);
            if (st == ST_OK)
                out->size--; /* its newline */
        }
        json_decref(value);
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}
