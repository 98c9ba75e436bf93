/* The journal read at the start; jobs brought into memory and dropped from it. */
#pragma once

#include "server/coord/state.h"

/* Reads the journal, and resumes what it holds. */
MUST_CHECK enum status coord_load(struct coord *coord);
/* Drops a job from memory; its streams are told why. Nobody points at it after this. */
void coord_drop_job(struct coord *coord, struct coord_job *job, const char *why);
/* Brings a job that ended from the journal into memory. Errors: those of the journal */
MUST_CHECK enum status coord_bring(struct coord *coord, const char *id, struct coord_job **out);
/* Drops jobs from memory that ended, that nobody uses, and that were asked for longest ago, until
 * there are fewer than options.ended_max, less `room`. Returns whether there are. */
bool coord_retire(struct coord *coord, size_t room);
/* Does a little of what is done bit by bit: jobs that may have left something, rows that are kept
 * no longer. */
void coord_chores_tick(struct coord *coord);
