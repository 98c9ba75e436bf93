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

/* The median step in milliseconds, as people are told of it, and the digits behind the point that
 * it and its parts show. The sum of the parts stands for a median below it: the times of day from
 * which the coordinator has that one are whole milliseconds. NaN: no step is known. */
double job_step_ms(const Cairn__V1__Job *job, int *out_digits);
