/*
 * The metrics there are: a family has a name, a type, a help text, and one or several lines for
 * each of its subjects.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "observer/prometheus/text.h"
#include "observer/prometheus/view.h"

/* The kinds of subjects that a family can describe. */
enum prometheus_of {
    PROMETHEUS_OF_OBSERVER, /* and the coordinator */
    PROMETHEUS_OF_JOB,
    PROMETHEUS_OF_WORKER,
    PROMETHEUS_OF_NODE,
    PROMETHEUS_OF_GPU,
    PROMETHEUS_OF_COUNT
};

/* Counts what has no series, by reason. */
struct prometheus_left_out {
    uint64_t jobs_ended;   /* too long ago, or more than PROMETHEUS_ENDED_MAX later */
    uint64_t jobs_twice;   /* another one has the same id */
    uint64_t jobs_size;    /* no room, as the next ones */
    uint64_t jobs_unseen;  /* the view hasn't them */
    uint64_t workers_size; /* of jobs that hold some */
    uint64_t nodes_twice;
    uint64_t nodes_size;
    uint64_t gpus_size;
};

/* One subject of a family. Members that don't concern it are NULL. All is borrowed. */
struct prometheus_subject {
    const struct prometheus_view *view;
    const struct prometheus_left_out *left_out; /* OBSERVER */
    const Cairn__V1__Job *job;                  /* JOB, WORKER */
    const Cairn__V1__Worker *worker;
    const Cairn__V1__Node *node; /* NODE, GPU */
    const Cairn__V1__Gpu *gpu;
    const char *labels; /* labels of all of its lines */
    uint64_t step_max;  /* WORKER: of those of its job that run */
};

enum prometheus_field_kind {
    PROMETHEUS_NO_FIELD,
    PROMETHEUS_U32,
    PROMETHEUS_U64,
    PROMETHEUS_BOOL,
    PROMETHEUS_REAL
};

struct prometheus_field {
    enum prometheus_field_kind kind;
    size_t at; /* in the view, the job, the worker, ... */
};

/* Exactly one of the last three is there. */
struct prometheus_family {
    const char *name;
    const char *type;   /* gauge, counter */
    const char *labels; /* beside those of the subject, for docs; "": none */
    const char *help;   /* without a newline or a backslash */
    /* For one line: the value is a member of the message. */
    struct prometheus_field field;
    double (*value)(const struct prometheus_subject *of);
    void (*put)(const struct prometheus_subject *of, struct prometheus_lines *lines);
};

struct prometheus_table {
    const struct prometheus_family *list;
    size_t count;
};

struct prometheus_table prometheus_observer_families(void);
struct prometheus_table prometheus_job_families(void);
struct prometheus_table prometheus_worker_families(void);
struct prometheus_table prometheus_node_families(void);
struct prometheus_table prometheus_gpu_families(void);
