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

static double peak_flops(subject of)
{
    const bool known = of->worker->peak_flops__case == CAIRN__V1__WORKER__PEAK_FLOPS__PEAK_FLOPS;
    return known ? of->worker->peak_flops : (double)NAN;
}

static double sent(subject of)
{
    const bool known = of->worker->sent__case == CAIRN__V1__WORKER__SENT__SENT_BYTES;
    return known ? (double)of->worker->sent_bytes : (double)NAN;
}

static double received(subject of)
{
    const bool known = of->worker->received__case == CAIRN__V1__WORKER__RECEIVED__RECEIVED_BYTES;
    return known ? (double)of->worker->received_bytes : (double)NAN;
}

static double cpu_seconds(subject of)
{
    return of->worker->usage == NULL ? (double)NAN : of->worker->usage->cpu_seconds;
}

static double resident(subject of)
{
    const Cairn__V1__WorkerUsage *usage = of->worker->usage;
    return usage == NULL ? (double)NAN : (double)usage->memory_bytes;
}

static double memory_limit(subject of)
{
    const Cairn__V1__WorkerUsage *usage = of->worker->usage;
    const bool known =
        usage != NULL &&
        usage->memory_limit__case == CAIRN__V1__WORKER_USAGE__MEMORY_LIMIT__MEMORY_LIMIT_BYTES;
    return known ? (double)usage->memory_limit_bytes : (double)NAN;
}

static double threads(subject of)
{
    return of->worker->usage == NULL ? (double)NAN : of->worker->usage->threads;
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
    { "cairn_job_worker_peak_flops_per_second", "gauge", "",
      "Operations a second that it could do at most, as measured.", .value = peak_flops },
    { "cairn_job_worker_cpu_seconds_total", "counter", "",
      "Processor time of its process, all threads. Begins anew with another process.",
      .value = cpu_seconds },
    { "cairn_job_worker_resident_memory_bytes", "gauge", "", "Resident memory of its process.",
      .value = resident },
    { "cairn_job_worker_memory_limit_bytes", "gauge", "",
      "Memory that its control group, or one above, allows; no line if none is set.",
      .value = memory_limit },
    { "cairn_job_worker_threads", "gauge", "", "Threads of its process.", .value = threads },
    { "cairn_job_worker_sent_bytes_total", "counter", "",
      "What it sent to other ranks in collectives. Begins anew with each generation.",
      .value = sent },
    { "cairn_job_worker_received_bytes_total", "counter", "", "What it received from them.",
      .value = received },
};

struct prometheus_table prometheus_worker_families(void)
{
    return (struct prometheus_table){ families, sizeof(families) / sizeof(families[0]) };
}
