/*
 * Lines of Prometheus text: labels, values, times.
 *
 *     family{LABELS,label="value"} 1.5
 *
 * Thread: any, one at a time for each `struct prometheus_lines`.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "common/status.h"
#include "observer/prometheus/view.h"

/* A value's bytes, quotes apart, and the NUL. */
#define PROMETHEUS_VALUE_BYTES (PROMETHEUS_LABEL_BYTES + 1)
/* Bytes of all labels of a job and one of its workers, or of a node and one of its GPUs. */
#define PROMETHEUS_LABELS_BYTES (2 * PROMETHEUS_VALUE_BYTES + 64)

struct prometheus_lines {
    struct buf *out;
    const char *family;
    const char *labels; /* of all lines: `job="a",name="b"`; "": none */
    enum status st; /* the first failure; nothing is written after it: the last line may be cut */
};

/* Writes the text as the value of a label. Bytes that aren't UTF-8 are replaced; quotes,
 * backslashes and newlines are escaped; a text that is too long is cut between two characters. NULL
 * is "". */
void prometheus_label_value(const char *text, char out[PROMETHEUS_VALUE_BYTES]);

/* Writes one line; none if the value is NaN. */
void prometheus_put(struct prometheus_lines *lines, double value);
/* Like prometheus_put, with one more label, whose value is a word that needs no escape. */
void prometheus_put_word(struct prometheus_lines *lines, const char *label, const char *word,
                         double value);
/* Like prometheus_put, with more labels. `labels` as in the struct; "": none. */
void prometheus_put_labels(struct prometheus_lines *lines, const char *labels, double value);

/* Writes a line for each word: 1 for the one that is `now`, 0 for the others. If `now` is none of
 * the words, "other" is 1. */
void prometheus_put_states(struct prometheus_lines *lines, const char *label,
                           const char *const *words, size_t count, const char *now);

/* 1 to 32 of a-z, 0-9 and _. */
bool prometheus_is_word(const char *text);

/* RFC 3339, UTC, to Unix seconds. NaN: it is no such text. */
double prometheus_time(const char *text);
