/*
 * Which subjects have series, so that the text stays within its bound. This is decided before the
 * first line, as the lines of one family stand together and those of one job don't.
 *
 * The bytes of one subject are measured by writing its lines to a buffer that is thrown away: the
 * count is exact.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/status.h"
#include "observer/prometheus/families.h"

struct prometheus_listed {
    const void *thing;  /* Cairn__V1__Job, Cairn__V1__Node; borrowed from the view */
    const char *labels; /* in the plan's texts */
    size_t key_bytes;   /* bytes of the labels that identify the subject */
    bool parts;         /* its workers or GPUs have series, too */
};

struct prometheus_list {
    struct prometheus_listed *list;
    size_t count;
};

struct prometheus_plan {
    struct prometheus_list jobs, nodes;
    struct buf texts;
    struct prometheus_left_out left_out;
};

/*
 * Chooses the subjects whose lines have `bytes` together at most, heads of families apart.
 *
 * Memory: release the plan, also after an error.
 * Errors: ST_NO_MEMORY
 */
MUST_CHECK enum status prometheus_plan_make(const struct prometheus_view *view, size_t bytes,
                                            struct prometheus_plan *plan);
void prometheus_plan_release(struct prometheus_plan *plan);

/* The subject of a job, or a node, of the plan, as families want it. */
struct prometheus_subject prometheus_job_subject(const struct prometheus_listed *job);
struct prometheus_subject prometheus_node_subject(const struct prometheus_listed *node);
