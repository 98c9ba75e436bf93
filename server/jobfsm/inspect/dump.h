/* All that a job's state machine is, journalled or not, for `cairn debug job`. */
#pragma once

#include <jansson.h>

#include "server/jobfsm/jobfsm.h"

/*
 * Returns an object of all members of struct fsm, but for tokens, which let a worker in: those that
 * the journal has under "journalled", by its names, the others under "now". Times of the
 * coordinator's clock are in milliseconds from now; what is to come is positive. Of checkpoints and
 * copies in memory the newest FSM_DUMP_LIST are listed.
 * Memory: owned by the caller; NULL: none was left
 */
#define FSM_DUMP_LIST 64
json_t *fsm_dump(const struct fsm *m, int64_t now);
