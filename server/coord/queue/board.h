/*
 * The board: slots that are free, and the jobs that they are kept for, as one look at the queue
 * sees it. place.c fills it and finds slots of a job, queue.c chooses which job is looked at.
 *
 * A job that has to wait keeps the nodes that it may come to be on; one that goes on soon keeps
 * some free slots. The jobs behind get none of these. What a job keeps holds until the look is
 * over.
 */
#pragma once

#include "server/coord/internal.h"

#define BOARD_KINDS (JOBSPEC_DEVICE_CUDA + 1) /* of slots: enum jobspec_device */

/* The nodes, with two entries for one with CPU shares and GPUs, as server/fleet/place.h wants
 * it. */
struct board {
    struct place_node nodes[PLACE_NODES_MAX];
    struct coord_node *of[PLACE_NODES_MAX];
    uint32_t kept[PLACE_NODES_MAX]; /* free slots, or PLACE_ALL */
    size_t count;
    struct place_pair
        apart[4 *
              NETPATHS_MAX]; /* nodes that can't reach each other; two pools of a node at most */
    size_t apart_count;
    bool filled; /* as slots are now */
    bool heeds;  /* slots kept for others are not for the job that is looked at */
    const struct coord_job
        *keeps[BOARD_KINDS];  /* the first that keeps some of that kind, or NULL */
    bool closed[BOARD_KINDS]; /* all that is in reach is kept */
};

/* The outcome of a try to place a job. */
enum coord_tried {
    COORD_TRIED_PLACED,
    COORD_TRIED_WAITS,   /* for what others need not wait for */
    COORD_TRIED_KEEPS,   /* like WAITS, and it keeps slots */
    COORD_TRIED_BEHIND,  /* there are slots, but kept for another one */
    COORD_TRIED_CHANGED, /* something else happened to the job: all is to be looked at anew */
};

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

/* ---- waiting.c ---- */

/* Adds to what place_workers said what else keeps slots from the job. */
void coord_explain_wait(struct coord *coord, const struct coord_job *job, struct reason *reason);
