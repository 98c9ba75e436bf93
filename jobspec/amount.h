/*
 * Numbers with a unit: `100 steps`, `2 epochs`, `10 m`, `1 GiB`.
 */
#pragma once

#include "common/buf.h"
#include "jobspec/refuse.h"
#include "jobspec/schema.h"

/* The range of an amount of time where steps are possible, too: with a shorter one a job would do
 * nothing but save. */
#define AMOUNT_MS_MIN 100.0
#define AMOUNT_MS_MAX (366 * 86400e3)

/*
 * Reads a number with one of the field's units, or one of the field's words: `auto` of a duration
 * is JOBSPEC_AUTO, other words are 0.
 * Units: as jobspec_duration has them; bytes where the field has UNIT_BYTES
 * Errors: ST_CONFIG  out_refusal says why
 */
MUST_CHECK enum status amount_parse(const struct field *field, const char *text,
                                    struct jobspec_duration *out, struct refusal *out_refusal);

/* Writes an amount in the largest unit in which it is a whole number; or the field's word, if one
 * stands for this amount. */
MUST_CHECK enum status amount_print(const struct field *field,
                                    const struct jobspec_duration *amount, struct buf *out);
