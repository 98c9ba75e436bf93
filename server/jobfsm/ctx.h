/*
 * What the files of the state machine share: its times and bounds, and the context of one event.
 * The functions of each file are declared in a header of the same name.
 *
 * The files in the order of their layers, from floor to roof. A file calls functions of those
 * before it in this list, never of those after it:
 *
 *   catalog          checkpoints and saves of the job; lists and questions
 *   failure_kinds    what the kinds of failures mean, and waits after them
 *   state            actions, the reason, what a state means, accounts, endings
 *   spares           workers without a part in the generation
 *   park             workers that outlive their generation
 *   save_schedule    saves to come
 *   elastic          another number of workers
 *   retention        which checkpoints stay
 *   corruption       checkpoints read back; another store at its place
 *   memory_copies    copies in memory
 *   failure_policy   failures
 *   save_abort       saves that do not become checkpoints
 *   save             saves on their way to checkpoints
 *   handlers/divergence, load_balance, last_step, generation_start, generation_end, progress,
 *       liveness, spare_orders, requests, dispatch
 *
 * The machine changes only within a turn: one event taken, with the actions that it leads to.
 */
#pragma once

#include "server/jobfsm/jobfsm.h"

#define FSM_HELLO_MS        60000 /* from the start of a trainer to its hello */
#define FSM_WINDOW_MS       250   /* for the first cause to arrive */
#define FSM_WINDOW_NEW_MS   2000  /* soon after the coordinator's start: agents come back */
#define FSM_SESSION_MS      10000 /* for a lost session to come back, at least */
#define FSM_SILENT_MS       5000  /* config.silent_ms, unless said otherwise */
#define FSM_STORE_AGAIN_MS  5000  /* before a store that failed is asked again, to start from */
#define FSM_LATE_FILE_MS    5000  /* without a byte of a rank's file: the reason says who is late */
#define FSM_CUT_OFF_MS      300000 /* a node is waited for that others reach, or train with */
#define FSM_STANDSTILL_MS   3000   /* no progress, on several nodes: are paths broken? */
#define FSM_PINS_MS         5000   /* for the others to say theirs, once some pins differ */
#define FSM_GRACE_MS        10000  /* after the coordinator's start: nobody is judged lost */
#define FSM_MISSING_MS      1000   /* for the exit of a trainer that its agent doesn't list */
#define FSM_LEAVE_MS        10000  /* for trainers to leave after the last commit */
#define FSM_RAN_MS          300000 /* of a job without steps: that long is progress */
#define FSM_END_AGAIN_MS    2000   /* between two FSM_ACT_END */
#define FSM_PARK_MS         5000   /* for workers to say that they have parked, at least */
#define FSM_PARK_STEPS      3      /* or so many steps, if these take longer */
#define FSM_PARK_MAX_MS     60000  /* but no longer than this */
#define FSM_AWAIT_SAVES_MS  10000  /* at most, for what workers write, if the end is planned */
#define FSM_KEEP_MS         30000  /* for kept workers to find the next generation */
#define FSM_REPLACE_MS      60000  /* slow for so long, a worker is replaced */
#define FSM_USELESS_MS      20000  /* not worth a lane for so long, a worker is left out */
#define FSM_REPLACED_MS     600000 /* between two of these */
#define FSM_NEVER_MS        5000   /* a trainer that never showed up counts as gone */
#define FSM_UNKILLABLE_MS   15000  /* a trainer that SIGKILL doesn't end counts as gone */
#define FSM_ASSUMED_MS      10000  /* for ranks that may have nothing to unlink */
#define FSM_REMOVE_MS       60000  /* for ranks to unlink their files of a dropped save */
#define FSM_PROBE_MS        60000  /* between two questions whether the store answers us */
#define FSM_STUCK_TIMES     4      /* times the wait before a save is dropped, a rank is ended */
#define FSM_SLOW_BYTES_MS   10000  /* a store that takes less in a ms, in an fsync, is stuck */
#define FSM_WATCH_MS        500    /* how often the rules of silence are looked at */
#define FSM_LOOK_MS         20     /* so often after messages of trainers, at most */
#define FSM_NO_PROGRESS_MAX 10     /* without progress; all by the job's own fault: FAILED */
#define FSM_LACKING_MAX     16     /* nodes that lack what it needs; then it is the job's fault */
#define FSM_LIVE_TRIES      3      /* generations in a row without progress; then none is kept */
/* How much a disagreement of workers counts while what is computed again isn't right, either. One
 * more try follows where nobody can tell who is wrong, three more where that is known: the node may
 * be the only one, and so stay in use. */
#define FSM_WRONG_KNOWN    1
#define FSM_WRONG_UNKNOWN  2
#define FSM_WRONG_MAX      4 /* FAILED */
#define FSM_BUDGET         3 /* failures at the same place; then FAILED */
#define FSM_BACKOFF_MAX_MS 60000
/* The wait after FSM_NO_PROGRESS_MAX generations without progress: each failure costs a row of the
 * journal, and there is no end. */
#define FSM_BACKOFF_NO_PROGRESS_MS 300000
#define FSM_DATA_MS                15000 /* until data that differed are looked at again */
#define FSM_STORE_TRIES            5
#define FSM_LEAD_MS                500 /* for workers to hear of an announced save */
#define FSM_PASSES_MAX             16  /* doublings of that */
#define FSM_CHAIN_MAX              7 /* checkpoints that one is read through; the eighth is full */
#define FSM_READ_MS                300000 /* a rank that reads back says something every second */
#define FSM_READ_TRIES             2      /* in vain in a row; then the coordinator reads */
#define FSM_READ_BYTES_PER_MS      1000   /* bytes a rank and ms: it is never spread thinner */

/* The context of one event, which its handlers get. */
struct fsm_ctx {
    struct fsm *m;
    const struct fsm_event *ev; /* NULL: the job is resumed */
    struct fsm_actions *out;
    int64_t now, wall;
};
