/* Tasks for the checkpoint store, made from actions. */
#pragma once

#include "server/coord/state.h"

void coord_submit_store(struct coord *coord, struct coord_job *job, const struct fsm_action *act);
