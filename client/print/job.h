/*
 * A job as people see it: its state, tables of jobs, checkpoints and workers, and all of one job.
 */
#pragma once

#include "cairn/v1/control.pb-c.h"
#include "client/base/client.h"
#include "client/print/output.h"
#include "proto/text/job_state.h"

/* Returns the exit code for the state of a job that was waited for. */
enum exit_code job_exit(Cairn__V1__JobState state);

extern const struct column checkpoint_columns[];        /* of Checkpoint */
extern const struct column stored_checkpoint_columns[]; /* likewise, of several jobs */
extern const struct column worker_columns[];            /* of Worker */
extern const struct column spare_columns[];             /* of Spare */

/* "3 of 4 (min 2), 1 spare (warm)": workers that are there, of those asked for, and spares; ""
 * where the coordinator doesn't say. */
void job_workers(const Cairn__V1__Job *job, char *out, size_t capacity);

/* "12.3 ms = data 0.1 + forward 4.2 + …": the median step and its parts behind `before`, in lines
 * of at most `width` cells (SIZE_MAX: one line); nothing where no step is known. */
MUST_CHECK enum status job_step_parts(const Cairn__V1__Job *job, const char *before, size_t width,
                                      struct buf *out);

/* Prints a job in the format asked for. */
enum exit_code job_show(const struct client *client, const Cairn__V1__Job *job);
