/* The things that a job waits for, beside slots. */
#pragma once

#include "server/coord/state.h"

/* Adds to what place_workers said what else keeps slots from the job. */
void coord_explain_wait(struct coord *coord, const struct coord_job *job, struct reason *reason);
