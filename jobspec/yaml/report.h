/*
 * The mistakes of one job file: collected, put in the order of the file, printed with the line,
 * a caret and the way out.
 *
 * Memory: sources are borrowed until release; text of errors is copied.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/limits.h"
#include "common/reason.h"

#define JOBSPEC_ERRORS_MAX 64 /* a file with more is no job file; the rest is counted */

/* The texts that errors point into: source 0 is the file, each further one a --set. */
struct jobspec_source {
    const char *name; /* "job.yaml", "--set" */
    const char *text;
    size_t size;
    size_t line; /* number of its first line */
};

struct jobspec_place {
    uint32_t source;
    uint32_t at;   /* byte in the source */
    uint32_t size; /* bytes under the caret; 0 counts as 1 */
};

struct jobspec_error {
    struct jobspec_place place;
    uint32_t number; /* in order of discovery */
    char cause[LIMIT_REASON];
    char way_out[LIMIT_REASON]; /* or "" */
};

struct jobspec_report {
    const struct jobspec_source *sources;
    size_t source_count;
    struct jobspec_error *errors; /* JOBSPEC_ERRORS_MAX of them; NULL when memory ran out */
    size_t count;
    size_t dropped;
};

enum status jobspec_report_init(struct jobspec_report *report, const struct jobspec_source *sources,
                                size_t source_count) MUST_CHECK;
void jobspec_report_release(struct jobspec_report *report);

/* way_out may be NULL. The same cause at the same place is kept once. */
void jobspec_report_add(struct jobspec_report *report, struct jobspec_place place,
                        const char *way_out, const char *cause_format, ...)
    __attribute__((format(printf, 4, 5)));

bool jobspec_report_empty(const struct jobspec_report *report);

/* Errors: ST_FULL  out holds what fitted */
enum status jobspec_report_print(struct jobspec_report *report, struct buf *out) MUST_CHECK;
