/* Slots for one job: the board filled, and slots found on it. */
#pragma once

#include "server/coord/queue/board.h"

/* Lets spares go that can't take a seat beside the others, since their nodes don't reach each
 * other. true: there were some. */
bool coord_part_spares(struct coord *coord, struct coord_job *job);
/* Fills the board. Slots in use are kept node by node, and counted anew only where something
 * changed. false: the core failed. */
bool coord_board_fill(struct coord *coord);
/* Gives the job slots, or says what it waits for. */
enum coord_tried coord_try_place(struct coord *coord, struct coord_job *job);
/* Keeps the slots for a job that wants none yet, and goes on soon, with which it would. false:
 * there are none that it could wait for. */
bool coord_keep_place(struct coord *coord, struct coord_job *job);
/*
 * Finds slots of a job, or says why there are none. A suspected node is taken if others have no
 * room now. A drained one, or one where this very job failed, is taken only if no other could ever
 * take the job.
 * Errors: ST_AGAIN, ST_UNREACHABLE, ST_REFUSED: of place_workers
 *         ST_NOT_FOUND  it could run nowhere but where it failed
 */
MUST_CHECK enum status coord_find_slots(struct coord *coord, struct coord_job *job, uint32_t count,
                                        struct place_slot *slots, struct reason *reason);
/* Gives the job these slots. kind: FSM_EV_PLACED, FSM_EV_SPARE */
void coord_place(struct coord *coord, struct coord_job *job, enum fsm_event_kind kind,
                 const struct place_slot *slots, uint32_t count);
