/*
 * One value of a job file: text to its member of struct job and back.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "common/buf.h"
#include "job/job.h"
#include "job/schema.h"

/* Why a text is no value of a field. */
struct value_problem {
    char cause[LIMIT_REASON];
    char way_out[LIMIT_REASON];
};

/*
 * Reads a single value (every kind but FIELD_WORDS, FIELD_COUNTS, FIELD_ENV) into job.
 * Fields that are not kept are checked all the same; FIELD_UNBUILT is the caller's to look at.
 * Errors: ST_CONFIG  out_problem says why; job is unchanged
 */
MUST_CHECK enum status value_read(const struct field *field, const char *text, const char *base_dir,
                                  struct job *job, struct value_problem *out_problem);

/* Writes why a text is no value. Returns ST_CONFIG. */
enum status value_refuse(struct value_problem *problem, const char *way_out, const char *format,
                         ...) __attribute__((format(printf, 3, 4)));

/* Digits, point, exponent at the start of text; false: none. */
bool value_real(const char *text, char **out_end, double *out);

/* Is text one of the field's words that are built? */
bool value_is_word(const struct field *field, const char *text);

/* A whole number in [low, high]; false: it isn't one. */
bool value_whole(const char *text, double low, double high, int64_t *out);

/* The words of a field: "a, b, c"; built ones only, or all. */
void value_words(const struct field *field, bool all, char *out, size_t capacity);

/* "No such word", with the nearest one or all of them. */
void value_refuse_word(const struct field *field, const char *text,
                       struct value_problem *out_problem);

/* "Not supported in this version". Returns ST_CONFIG. */
enum status value_refuse_unbuilt(const struct field *field, const char *text,
                                 struct value_problem *out_problem);

/* Does the job have a value of the field: is there something to print? */
bool value_is_set(const struct field *field, const struct job *job);

/* As YAML in one line. */
MUST_CHECK enum status value_print(const struct field *field, const struct job *job,
                                   struct buf *out);
