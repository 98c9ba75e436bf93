/*
 * One value of a job file: text to its member of struct jobspec and back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "jobspec/jobspec.h"
#include "jobspec/refuse.h"
#include "jobspec/schema.h"

/*
 * Reads a single value into job: of every kind but those that reader_list and reader_texts read, of
 * FIELD_CUTS a number.
 * Fields that are not kept are checked all the same; FIELD_UNBUILT is the caller's to look at.
 * Errors: ST_CONFIG  out_refusal says why; job is unchanged
 */
MUST_CHECK enum status value_read(const struct field *field, const char *text, const char *base_dir,
                                  struct jobspec *job, struct refusal *out_refusal);

/*
 * Reads one pattern of a field into out, JOBSPEC_PATTERN_BYTES; out may be NULL. That of a
 * FIELD_PATTERN must have a group.
 * Errors: ST_CONFIG  out_refusal says why
 */
MUST_CHECK enum status value_read_pattern(const struct field *field, const char *text, char *out,
                                          struct refusal *out_refusal);

/* True if the job has a value of the field: there is something to print. */
bool value_is_set(const struct field *field, const struct jobspec *job);

/* Writes the value as YAML in one line; a graph in a line per node. */
MUST_CHECK enum status value_print(const struct field *field, const struct jobspec *job,
                                   struct buf *out);
