/* What a job waits for now: computed from its state at the moment of asking, never remembered. */
#pragma once

#include "server/jobfsm/jobfsm.h"

enum fsm_block {
    FSM_BLOCK_NONE,       /* the job trains, rests, or is over */
    FSM_BLOCK_WORKERS,    /* workers of the old generation have not left, or parked */
    FSM_BLOCK_SAVE,       /* a save may still commit, or its files are to be removed */
    FSM_BLOCK_BACKOFF,    /* a time, until it tries again */
    FSM_BLOCK_ROOM,       /* workers that end, or start, hold the places that it needs */
    FSM_BLOCK_STATE,      /* a parked worker has not said again which state it has */
    FSM_BLOCK_CHECKPOINT, /* a checkpoint is read, or set aside, before one is restored */
    FSM_BLOCK_STORE,      /* the store is asked whether it takes a file */
    FSM_BLOCK_SLOTS,      /* slots, which the queue gives (server/coord) */
    FSM_BLOCK_FORMING,    /* a worker of the new generation starts, joins, or prepares */
    FSM_BLOCK_PATH,       /* nobody knows yet whether two of its nodes reach each other; queue */
    FSM_BLOCK_QUEUE,      /* another job comes first; queue */
    FSM_BLOCK_DRAINING,   /* the coordinator goes down; queue */
    FSM_BLOCK_UNREADABLE, /* the coordinator can't read the job's file or records; queue */
};

struct fsm_blocked {
    enum fsm_block by;
    int64_t for_ms;          /* the wait ends by itself then; 0: nobody knows when */
    char text[LIMIT_REASON]; /* one line for people; "" for NONE and SLOTS */
};

/* Returns "save", "slots", ...: what scripts compare. */
const char *fsm_block_name(enum fsm_block by);
/* Computes what the job waits for at `now` (as in an event). */
void fsm_blocked(const struct fsm *m, int64_t now, struct fsm_blocked *out);
