/*
 * Why a text is no value of a field: the cause, and what to write instead.
 */
#pragma once

#include "common/limits.h"
#include "common/status.h"
#include "jobspec/schema.h"

struct refusal {
    char cause[LIMIT_REASON];
    char way_out[LIMIT_REASON];
};

/* All return ST_CONFIG. */
enum status refuse_value(struct refusal *out, const char *way_out, const char *cause_format, ...)
    __attribute__((format(printf, 3, 4)));

/* "No such word", with the nearest one or all of them. */
enum status refuse_word(const struct field *field, const char *text, struct refusal *out);

/* "Not supported in this version", with what is. */
enum status refuse_unbuilt(const struct field *field, const char *text, struct refusal *out);
