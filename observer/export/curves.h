/*
 * Event files of the jobs, for TensorBoard, in HOME/tensorboard/NAME-ID: written as rows come, and
 * for jobs that ended while nobody watched, up to CURVES_LATE_S later.
 *
 * Thread: one at a time.
 */
#pragma once

#include "common/log.h"
#include "common/paths.h"
#include "observer/coordinator/coordinator.h"
#include "observer/snapshot/snapshot.h"

#define CURVES_JOBS_MAX 256   /* that are written at a time: each has a file open */
#define CURVES_EVERY_MS 5000  /* between two looks at a job: TensorBoard reads as often */
#define CURVES_LATE_S   86400 /* a day */

struct curves;

/* All arguments are borrowed. */
MUST_CHECK enum status curves_new(struct coordinator *coordinator, const struct paths *paths,
                                  const struct log *log, struct curves **out);
/* Writes the rows that are due, of the jobs in the snapshot; `all`: without waiting
 * CURVES_EVERY_MS. Failures are logged and tried again. Returns true if there is more to write
 * already. */
bool curves_look(struct curves *curves, const struct snapshot *snapshot, bool all);
void curves_free(struct curves *curves);
