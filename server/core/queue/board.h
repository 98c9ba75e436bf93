/*
 * The board: what is free and whom it is kept for, as one look at the queue sees it. place.c
 * fills it and finds slots of a job, queue.c says who is looked at.
 *
 * A job that has to wait keeps the nodes that it may come to be on, one that goes on soon some free
 * slots: those behind get none of them. What a job keeps holds until the look is over.
 */
#pragma once

#include "server/core/internal.h"

#define BOARD_KINDS (JOB_DEVICE_CUDA + 1) /* of slots: enum job_device */

/* Two entries for a node with CPU shares and GPUs, as server/fleet/place.h wants it. */
struct board {
    struct place_node nodes[PLACE_NODES_MAX];
    struct core_node *of[PLACE_NODES_MAX];
    uint32_t kept[PLACE_NODES_MAX]; /* free slots, or PLACE_ALL */
    size_t count;
    struct place_pair
        apart[4 * PATHS_MAX]; /* that can't reach each other; two pools of a node at most */
    size_t apart_count;
    bool filled; /* as slots are now */
    bool heeds;  /* what is kept for others isn't for the job that is looked at */
    const struct core_job *keeps[BOARD_KINDS]; /* the first that keeps some of that kind, or NULL */
    bool closed[BOARD_KINDS];                  /* all that is in reach is kept */
};

/* What came of it. */
enum core_tried {
    CORE_TRIED_PLACED,
    CORE_TRIED_WAITS,   /* for what others need not wait for */
    CORE_TRIED_KEEPS,   /* ... and keeps slots */
    CORE_TRIED_BEHIND,  /* there are slots, but kept for another one */
    CORE_TRIED_CHANGED, /* something else happened to it: all is to be looked at anew */
};

/* Slots in use are kept node by node: only where something changed they are counted anew. false:
 * the core failed. */
bool core_board_fill(struct core *core);
/* Gives it slots, or says what it waits for. */
enum core_tried core_try_place(struct core *core, struct core_job *job);
/* It wants no slots yet, and goes on soon: those with which it would are kept for it. false: there
 * are none that it could wait for. */
bool core_keep_place(struct core *core, struct core_job *job);
/*
 * Slots of a job, or why there are none. A suspected node is taken where others have no room now; a
 * drained one, or one where this very job failed, only where no other could ever take the job.
 * Errors: ST_AGAIN, ST_UNREACHABLE, ST_REFUSED: of place_workers
 *         ST_NOT_FOUND  it could run nowhere but where it failed
 */
MUST_CHECK enum status core_find_slots(struct core *core, struct core_job *job, uint32_t count,
                                       struct place_slot *slots, struct reason *reason);
/* kind: MACHINE_EV_PLACED, MACHINE_EV_SPARE */
void core_place(struct core *core, struct core_job *job, enum machine_event_kind kind,
                const struct place_slot *slots, uint32_t count);

/* ---- waiting.c ---- */

/* Adds to what place_workers said what else keeps slots from the job. */
void core_explain_wait(struct core *core, const struct core_job *job, struct reason *reason);
