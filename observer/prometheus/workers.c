/* Metrics of a worker, with the labels job, name and rank. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "observer/prometheus/families.h"

typedef const struct prometheus_subject *subject;

static bool runs(subject of)
{
    return of->worker->state != NULL && strcmp(of->worker->state, "running") == 0;
}

static void put_info(subject of, struct prometheus_lines *lines)
{
    char node[PROMETHEUS_VALUE_BYTES], labels[PROMETHEUS_VALUE_BYTES + 16];
    prometheus_label_value(of->worker->node, node);
    (void)snprintf(labels, sizeof(labels), "node=\"%s\"", node);
    prometheus_put_labels(lines, labels, 1);
}

static double up(subject of)
{
    return runs(of) ? 1 : 0;
}

static double step(subject of)
{
    return runs(of) ? (double)of->worker->step : (double)NAN;
}

static double lag(subject of)
{
    return runs(of) ? (double)(of->step_max - of->worker->step) : (double)NAN;
}

static double seconds(subject of)
{
    const double value = of->worker->seconds_per_step;
    return runs(of) && value > 0 ? value : (double)NAN;
}

static const struct prometheus_family families[] = {
    { "cairn_job_worker_info", "gauge", "node", "Always 1; where the worker is.", .put = put_info },
    { "cairn_job_worker_up", "gauge", "", "1 if it runs; 0 if it starts, forms or is gone.",
      .value = up },
    { "cairn_job_worker_step", "gauge", "", "Steps it has finished.", .value = step },
    { "cairn_job_worker_lag_steps", "gauge", "",
      "Steps it is behind the one that is furthest of its job.", .value = lag },
    { "cairn_job_worker_step_seconds", "gauge", "",
      "Time it computes for its share of a step, without waiting for others.", .value = seconds },
    { "cairn_job_worker_lanes", "gauge", "", "Its share of a step: lanes of the global batch.",
      .field = { PROMETHEUS_U32, offsetof(Cairn__V1__Worker, share) } },
};

struct prometheus_table prometheus_worker_families(void)
{
    return (struct prometheus_table){ families, sizeof(families) / sizeof(families[0]) };
}
