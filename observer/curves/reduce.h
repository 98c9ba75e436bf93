/*
 * Rows as the JSON of curves: whole, or some consecutive ones as a point (docs/page.md).
 *
 * Of a point `step`, `generation`, `unix_seconds` and `epoch` are the last row's, values the mean
 * of those that are known, *_min and *_max the extremes: no spike gets lost. Evaluations are never
 * joined.
 */
#pragma once

#include "common/buf.h"
#include "observer/curves/history.h"

#define REDUCE_POINTS_MAX 4000

/* The rows from index `from` up to `to` in `points` points at most; all: how many rows the job has.
 * job is an id. Appends. */
MUST_CHECK enum status reduce_json(const struct history *history, const char *job, size_t from,
                                   size_t to, size_t points, struct buf *out);
