#include "observer/prometheus/put.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/limits.h"

struct prometheus_table prometheus_families(enum prometheus_of of)
{
    switch (of) {
    case PROMETHEUS_OF_OBSERVER:
        return prometheus_observer_families();
    case PROMETHEUS_OF_JOB:
        return prometheus_job_families();
    case PROMETHEUS_OF_WORKER:
        return prometheus_worker_families();
    case PROMETHEUS_OF_NODE:
        return prometheus_node_families();
    case PROMETHEUS_OF_GPU:
        return prometheus_gpu_families();
    case PROMETHEUS_OF_COUNT:
        break;
    }
    return (struct prometheus_table){ 0 };
}

/* The message that fields of the family lie in. */
static const char *message_of(enum prometheus_of of, const struct prometheus_subject *subject)
{
    switch (of) {
    case PROMETHEUS_OF_OBSERVER:
        return (const char *)subject->view;
    case PROMETHEUS_OF_JOB:
        return (const char *)subject->job;
    case PROMETHEUS_OF_WORKER:
        return (const char *)subject->worker;
    case PROMETHEUS_OF_NODE:
        return (const char *)subject->node;
    case PROMETHEUS_OF_GPU:
        return (const char *)subject->gpu;
    case PROMETHEUS_OF_COUNT:
        break;
    }
    return NULL;
}

static double read_field(const struct prometheus_field *field, const char *message)
{
    const void *at = message + field->at;
    switch (field->kind) {
    case PROMETHEUS_U32:
        return (double)*(const uint32_t *)at;
    case PROMETHEUS_U64:
        return (double)*(const uint64_t *)at;
    case PROMETHEUS_BOOL:
        return *(const protobuf_c_boolean *)at ? 1 : 0;
    case PROMETHEUS_REAL:
        return *(const double *)at;
    case PROMETHEUS_NO_FIELD:
        break;
    }
    return (double)NAN;
}

enum status prometheus_put_family(const struct prometheus_family *family, enum prometheus_of of,
                                  const struct prometheus_subject *subject, struct buf *out)
{
    struct prometheus_lines lines = { .out = out,
                                      .family = family->name,
                                      .labels = subject->labels };
    if (family->put != NULL) {
        family->put(subject, &lines);
    } else if (family->value != NULL) {
        prometheus_put(&lines, family->value(subject));
    } else {
        prometheus_put(&lines, read_field(&family->field, message_of(of, subject)));
    }
    return lines.st;
}

static bool runs(const Cairn__V1__Worker *worker)
{
    return worker->state != NULL && strcmp(worker->state, "running") == 0;
}

static enum status put_workers(const struct prometheus_family *family,
                               const struct prometheus_subject *whole, struct buf *out)
{
    const Cairn__V1__Job *job = whole->job;
    char labels[PROMETHEUS_LABELS_BYTES];
    bool seen[LIMIT_RANKS] = { false };
    struct prometheus_subject of = *whole;
    enum status st = ST_OK;
    of.labels = labels;
    for (size_t i = 0; i < job->n_workers; i++) {
        if (runs(job->workers[i]) && job->workers[i]->step > of.step_max)
            of.step_max = job->workers[i]->step;
    }
    for (size_t i = 0; st == ST_OK && i < job->n_workers; i++) {
        of.worker = job->workers[i];
        const uint32_t rank = of.worker->rank;
        if (rank >= LIMIT_RANKS || seen[rank])
            continue;
        seen[rank] = true;
        (void)snprintf(labels, sizeof(labels), "%s,rank=\"%u\"", whole->labels, rank);
        st = prometheus_put_family(family, PROMETHEUS_OF_WORKER, &of, out);
    }
    return st;
}

static enum status put_gpus(const struct prometheus_family *family,
                            const struct prometheus_subject *whole, struct buf *out)
{
    char labels[PROMETHEUS_LABELS_BYTES];
    struct prometheus_subject of = *whole;
    enum status st = ST_OK;
    of.labels = labels;
    for (size_t i = 0; st == ST_OK && i < whole->node->n_gpus; i++) {
        of.gpu = whole->node->gpus[i];
        (void)snprintf(labels, sizeof(labels), "%s,gpu=\"%zu\"", whole->labels, i);
        st = prometheus_put_family(family, PROMETHEUS_OF_GPU, &of, out);
    }
    return st;
}

enum status prometheus_put_parts(const struct prometheus_family *family, enum prometheus_of of,
                                 const struct prometheus_subject *whole, struct buf *out)
{
    if (of == PROMETHEUS_OF_WORKER)
        return put_workers(family, whole, out);
    return put_gpus(family, whole, out);
}
