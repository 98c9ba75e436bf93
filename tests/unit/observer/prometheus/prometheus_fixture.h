/*
 * Made-up views of what an observer knows, and a reader of Prometheus text that shares no code with
 * the writer.
 */
#pragma once

#include <stddef.h>

#include "common/buf.h"
#include "observer/prometheus/prometheus.h"

#define FIXTURE_NOW 1790000000.0 /* 2026-09-21T14:13:20Z */

/* One job of each kind of number that there is, with two workers. Static parts: one call's jobs
 * are good until the next call. */
void fixture_fill_job(Cairn__V1__Job *job, const char *id, const char *name);
/* A node with two GPUs. As above. */
void fixture_fill_node(Cairn__V1__Node *node, const char *name);
/* One job, one node, a coordinator: every family has a line. */
const struct prometheus_view *fixture_full_view(void);

/* Asserts that the text is well-formed: families together, each with one HELP and one TYPE before
 * its lines; labels escaped and UTF-8; values numbers; no two lines of one name and labels. Returns
 * how many lines have values. */
size_t fixture_check(const struct buf *text);

/* How many lines begin so. */
size_t fixture_count(const struct buf *text, const char *start);
/* The value of the one line of that name and labels; NaN: there is none. */
double fixture_value(const struct buf *text, const char *series);
