/* The records of a job for the journal. */
#pragma once

#include "server/coord/state.h"

/* Called when what is left to do for a job may have changed, though its state has not. */
void coord_note_ended(struct coord_job *job);
/* Journals the rows of coord->actions; the state follows with the group. */
MUST_CHECK enum status coord_record_turn(struct coord *coord, struct coord_job *job,
                                         const struct fsm_event *event);
/* Writes the job's state as it is now, within a transaction. */
MUST_CHECK enum status coord_record_state(struct coord *coord, struct coord_job *job);
