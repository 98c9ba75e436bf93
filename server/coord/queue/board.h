/*
 * The board: slots that are free, and the jobs that they are kept for, as one look at the queue
 * sees it. place.c fills it and finds slots of a job, queue.c chooses which job is looked at.
 *
 * A job that has to wait keeps the nodes that it may come to be on; one that goes on soon keeps
 * some free slots. The jobs behind get none of these. What a job keeps holds until the look is
 * over.
 */
#pragma once

#include "server/coord/state.h"

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
