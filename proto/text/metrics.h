/*
 * A row of metrics as named columns: those of `cairn metrics -o csv`, in that order.
 *
 * Scripts rely on names and order: new ones come last. Seconds are of this step, rounded to
 * nanoseconds; a value that isn't known is NaN.
 */
#pragma once

#include <jansson.h>

#include "cairn/v1/common.pb-c.h"
#include "common/buf.h"

enum metric {
    METRIC_STEP,
    METRIC_GENERATION,
    METRIC_LOSS,
    METRIC_LR,
    METRIC_GRAD_NORM,
    METRIC_EVAL_LOSS,
    METRIC_EVAL_ACCURACY,
    METRIC_SAMPLES_PER_SECOND,
    METRIC_SECONDS,
    METRIC_EPOCH,
    METRIC_UNIX_SECONDS,
    METRIC_DATA,
    METRIC_FORWARD,
    METRIC_BACKWARD,
    METRIC_COMMUNICATION,
    METRIC_OPTIMIZER,
    METRIC_SNAPSHOT,
    METRICS
};

/* "eval_loss". */
const char *metric_name(enum metric metric);

double metric_value(const Cairn__V1__MetricRow *row, enum metric metric);

/* A number; whole where it counts; null where it isn't finite. NULL: no memory. */
json_t *metric_json(const Cairn__V1__MetricRow *row, enum metric metric);

/* The names as a line of CSV. */
MUST_CHECK enum status metrics_csv_head(struct buf *out);
/* A row as one; what isn't known is empty. */
MUST_CHECK enum status metrics_csv(const Cairn__V1__MetricRow *row, struct buf *out);
