/*
 * Numbers with a unit: `100 steps`, `2 epochs`, `10 m`, `1 GiB`.
 */
#pragma once

#include "common/buf.h"
#include "job/schema.h"
#include "job/value.h"

/* What a unit of time may be where steps are possible, too: shorter would do nothing but save. */
#define AMOUNT_MS_MIN 100.0
#define AMOUNT_MS_MAX (366 * 86400e3)

/*
 * Reads a number with one of the field's units, or a word of its. `auto` is JOB_AUTO, other words
 * are 0 in the field's first unit.
 * Units: as job_duration has them; bytes where the field has UNIT_BYTES
 * Errors: ST_CONFIG  out_problem says why
 */
MUST_CHECK enum status amount_read(const struct field *field, const char *text,
                                   struct job_duration *out, struct value_problem *out_problem);

/* In the largest unit that says it in a whole number; a word of the field's where it stands for
 * the amount. */
MUST_CHECK enum status amount_print(const struct field *field, const struct job_duration *amount,
                                    struct buf *out);
