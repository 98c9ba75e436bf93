/*
 * The columns of jobs: those of `cairn ps`, and what else can be asked for by name
 * (client/print/columns.h).
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/print/output.h"

extern const struct column job_columns[]; /* of Job */

/* Cells, each made of a Job: "12345/100000", and the time that is left. */
void job_cell_step(const void *job, char *out, size_t capacity);
void job_cell_eta(const void *job, char *out, size_t capacity);
