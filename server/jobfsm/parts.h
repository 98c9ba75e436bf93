/*
 * The parts of a job's state machine (jobfsm.h): the states of jobs, saves and checkpoints, the
 * kinds of failures, what is known of a rank.
 *
 * The numbers of most enums are journalled and, where a comment says so, sent: none changes its
 * meaning. New ones go to the end; all states of a job from FSM_SUCCEEDED on are final.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/status.h"
#include "server/jobfsm/hang/hang.h"

#define FSM_ALL_RANKS         UINT32_MAX /* every rank; as a blamed rank: unknown */
#define FSM_SAVES_MAX         8 /* of one generation at a time; one more is refused, not queued */
#define FSM_ANNOUNCED_MAX     4
#define FSM_SKIPS_MAX         16 /* steps left out for not being finite; one more: FAILED */
#define FSM_SKIPS_CONSECUTIVE 3  /* in a row, the last of them not left out: the job diverged */
#define FSM_SUSPECTS_MAX      8  /* nodes that read damage where there is none */
#define FSM_PHASE_BYTES       32 /* of a phase's name, with the NUL */
#define FSM_PHASES_MAX        16 /* phases with a statistic */
#define FSM_GAPS              9  /* observations of a phase's times */
#define FSM_CATALOG_MAX       65536

/* ---- the job ---- */

/* The states of a job. Their numbers are those of JobState in common.proto. */
enum fsm_state {
    FSM_NONE = 0,
    FSM_QUEUED = 1, /* waits for slots */
    FSM_PLACING,    /* has slots; the store is asked whether it takes a file */
    FSM_FORMING,    /* trainers start, find each other, restore */
    FSM_RUNNING,
    FSM_SAVING,     /* the last save of the generation, or of the job */
    FSM_RECOVERING, /* a generation ends, after a failure or by a change; or the next one waits */
    FSM_PAUSED,
    FSM_SUCCEEDED, /* this one and those below are final */
    FSM_FAILED,
    FSM_STOPPED,
    FSM_KILLED,
};
const char *fsm_state_name(enum fsm_state state);
/* True of SUCCEEDED, FAILED, STOPPED and KILLED: nothing happens by itself. Only a STOPPED job can
 * be resumed. */
bool fsm_state_final(enum fsm_state state);

/* Why a generation is to end with a save. */
enum fsm_intent {
    FSM_INTENT_NONE,
    FSM_INTENT_PAUSE,
    FSM_INTENT_STOP,
    FSM_INTENT_DRAIN,  /* the coordinator goes down; the job goes on afterwards */
    FSM_INTENT_FINISH, /* the job's time is over */
};

enum fsm_metric {
    FSM_METRIC_NONE,
    FSM_METRIC_LOSS,
    FSM_METRIC_EVAL_LOSS,
    FSM_METRIC_EVAL_ACCURACY,
};

/* How lanes are dealt to the workers. */
enum fsm_shares {
    FSM_SHARES_EVEN, /* each has as many, but for one that has become slow */
    FSM_SHARES_FILE, /* as the job file says, always */
    FSM_SHARES_AUTO, /* by speed */
};

/* A job's configuration, fixed at submission. */
struct fsm_config {
    uint32_t ranks; /* that the job is to have; people may change this alone */
    uint32_t most;  /* ranks at most: the lanes; 0: as many as ranks */
    uint32_t min;   /* with fewer no generation forms; 0: with fewer than ranks, however many */
    uint32_t spares;
    uint32_t lanes; /* of a step; 0: not said, and none ever move */
    /* The number of stages of a pipeline, into which the model is cut, and how many workers each is
     * to have (common/layout/widths.h). 0, 1: the model isn't cut. */
    uint32_t stages;
    uint32_t widths[LIMIT_STAGES];
    bool owns;      /* a worker has parts of the state that no other has (parallel.zero) */
    bool on_device; /* the state is in a device's memory */
    enum fsm_shares shares;
    uint64_t audited;        /* an error shows within so many steps; 0: nobody looks */
    uint64_t lanes_audited;  /* steps from what a lane fault calls good to the fault */
    uint64_t states_audited; /* the same for faults of states; 0: nobody compares them */
    uint64_t keep_last;      /* 0: all */
    enum fsm_metric best_metric;
    uint64_t keep_best, keep_every; /* 0: off; every: steps */
    bool delta;                     /* checkpoints may hold differences to one before */
    bool every_auto;
    int64_t every_ms; /* saves by time; 0, and not auto: workers know the steps */
    bool relaxed;     /* pins that differ are accepted */
    bool skip_nan;
    bool ends_early;       /* its workers may end it before its last step (train.stop) */
    int64_t time_limit_ms; /* 0: none; of training, then the job ends with a save */
    int64_t hang_ms;       /* floor of the hang rule */
    int64_t silent_ms;     /* an agent or a trainer without a sign for so long is silent; 0: 5 s */
    int64_t spread_ms;     /* a session that is lost may be opened again so late; 0: at once */
    bool restarts;         /* after a failure no worker goes on: all are started anew */
    bool min_follows;      /* min is what ranks are, whatever is asked for (fsm_init) */
    /* The job runs a program of people's own: each generation starts it anew, so a worker that
     * stays has nothing of its state. Copies in memory count only if all lie on one node. */
    bool program;
    /* Cairn saves nothing of the program: the job has no checkpoints, and its store is never asked.
     * A generation begins from the beginning, and ends without a save. It implies `program`. */
    bool saves_nothing;
    uint32_t budget;       /* failures in a row without progress, then FAILED; 0: FSM_BUDGET and
                       * FSM_NO_PROGRESS_MAX */
    uint32_t budget_first; /* likewise, before the first step; 0: as budget */
    int64_t grace_ms;      /* for workers that are told to leave, beyond FSM_LEAVE_MS */
    int64_t come_ms;       /* for a program to come to the step that it is to leave after, beyond
                       * FSM_LEAVE_MS; 0: however long that takes */
};

/* Kinds of time that was no training. */
enum fsm_lost {
    FSM_LOST_DETECT,  /* until a failure was noticed */
    FSM_LOST_FORM,    /* ending the old workers, starting the new */
    FSM_LOST_RESTORE, /* preparing, reading the checkpoint */
    FSM_LOST_REPLAY,  /* steps that had been trained before */
    FSM_LOST_STALL,   /* steps waited for snapshots */
    FSM_LOST_WAIT,    /* for slots, or before trying again */
    FSM_LOST_COUNT
};
const char *fsm_lost_name(enum fsm_lost lost);

/* ---- failures ---- */

/* The kinds of failures. Their numbers are those of FaultKind in common.proto. */
enum fsm_fault_kind {
    FSM_FAULT_NONE = 0,
    FSM_FAULT_PROCESS,
    FSM_FAULT_MEMORY,
    FSM_FAULT_COMMUNICATION,
    FSM_FAULT_HANG,
    FSM_FAULT_NODE,
    FSM_FAULT_SESSION,
    FSM_FAULT_DAMAGE,
    FSM_FAULT_STORE,
    FSM_FAULT_NUMERIC,
    FSM_FAULT_USER,
    FSM_FAULT_PINS,
    FSM_FAULT_FORMATION,
    FSM_FAULT_DATA,
    FSM_FAULT_PATH,  /* two of its nodes can't reach each other */
    FSM_FAULT_WRONG, /* two ranks computed different bits */
};
const char *fsm_fault_name(enum fsm_fault_kind kind);

struct fsm_fault {
    enum fsm_fault_kind kind;
    uint32_t rank; /* blamed, or FSM_ALL_RANKS */
    uint64_t step;
    /* The cause is outside the job: a kill from outside or for an unknown cause, a network, or a
     * store that can't be read. The job backs off, and no budget is used. Workers may say so. */
    bool outside;
    bool waits;     /* the job waits for people (FORMATION: programs of two versions): it backs off,
                     * and no generation counts as one without progress */
    bool of_node;   /* the fault is the node's, as far as one can tell from there */
    bool stays;     /* the blamed worker is as good as the others: its program failed */
    uint32_t shard; /* DAMAGE: 1 + the file that a rank can't read; 0: not said */
    uint64_t good_step; /* WRONG: the state after it was good */
    char phase[FSM_PHASE_BYTES];
    char message[LIMIT_REASON];
};

/* How a trainer's process ended. */
enum fsm_exit {
    FSM_EXIT_UNKNOWN,
    FSM_EXIT_CODE,
    FSM_EXIT_SIGNAL,
    FSM_EXIT_OOM,
    FSM_EXIT_SPAWN_FAILED,
    FSM_EXIT_FINISHED,
};

/* ---- ranks ---- */

/* How far a rank is with a save: bits of fsm_rank.save_flags. */
enum fsm_rank_save {
    FSM_RANK_BEGUN = 1,
    FSM_RANK_REPORTED = 2,   /* its file is durable, with size and hashes */
    FSM_RANK_KNOWS_DROP = 4, /* the rank was told that the save is dropped */
    FSM_RANK_REMOVED = 8,    /* the rank has no file there any more */
    FSM_RANK_ASSUMED = 16,   /* begun for all we know: the coordinator restarted */
};

/* The state of the agent of a rank's node. */
enum fsm_agent {
    FSM_AGENT_HEARD,
    FSM_AGENT_DOUBTED, /* not for a while; others are asked, and it is not judged yet */
    FSM_AGENT_SILENT,  /* not heard, and nobody else reaches it, as far as is known */
    FSM_AGENT_CUT_OFF, /* not heard here, but other nodes reach it */
};

/* A rank as the journal has it, in a row of its own: there may be a thousand. */
struct fsm_rank_row {
    char node[LIMIT_NAME];
    uint32_t slot, holder, birth, number, lanes, lane_us, stage;
    bool gone, parked, source;
};

/* The time that a rank computed in its steps of this generation, up to the newest that it
 * reported. */
struct fsm_timed {
    uint64_t steps, us; /* us: of its own, without waiting for others */
};

/*
 * The state of a worker, as the members of struct fsm_rank have it together (fsm_worker).
 *
 * Moves, made from FSM_WORKER_MOVES by tests/tidy/moves.py:
 *
 *   GONE -> ORDERED: its agent is told to start it
 *   GONE, ORDERED -> STARTED: it has a process, or is known to have one
 *   GONE, ORDERED, STARTED -> JOINED: its hello
 *   GONE, ORDERED, STARTED, JOINED -> ASSIGNED: all have joined: it is told its part
 *   GONE, ORDERED, STARTED, JOINED, ASSIGNED -> READY: it has the state; or the coordinator is new
 *   GONE, ORDERED, STARTED, JOINED, ASSIGNED, READY -> FINISHED: it ends by itself
 *   ORDERED, STARTED, JOINED, ASSIGNED, READY, FINISHED, PARKED, GONE
 *       -> PARKED: it left its generation; a spare: it is ready
 *   ORDERED, STARTED, JOINED, ASSIGNED, READY, FINISHED, PARKED, GONE
 *       -> LEAVING: it alone is being ended
 *   PARKED -> JOINED: a spare has lost its session
 *   PARKED -> READY: no generation followed in time: it ends with the others
 *   ORDERED, STARTED, JOINED, ASSIGNED, READY, FINISHED, PARKED, LEAVING
 *       -> GONE: its process ended, or counts as gone
 */
enum fsm_worker {
    FSM_WORKER_GONE,     /* there is no process; a vacant place */
    FSM_WORKER_ORDERED,  /* its agent was told to start it, and has said nothing yet */
    FSM_WORKER_STARTED,  /* it has a process */
    FSM_WORKER_JOINED,   /* it said hello */
    FSM_WORKER_ASSIGNED, /* it was told its part, and prepares */
    FSM_WORKER_READY,    /* it can train, or trains */
    FSM_WORKER_FINISHED, /* it ends by itself */
    FSM_WORKER_PARKED,   /* it waits for the next generation; a spare: for a seat */
    FSM_WORKER_LEAVING,  /* it is being ended, while others of its generation stay */
};
const char *fsm_worker_name(enum fsm_worker state);

struct fsm_rank {
    /* journalled */
    char node[LIMIT_NAME];
    uint32_t slot;
    uint32_t birth;  /* the generation that its process was started in: it may outlive that */
    uint32_t number; /* with birth, the name of its process for its life */
    bool gone;       /* the rank has no process: it ended, or none was started yet */
    bool parked;     /* its process has left the generation, and waits for the next one; of a spare:
                     * it is ready to take a seat */
    bool source;     /* with restore.live: it has the state, and gives it to the others */
    uint32_t
        holder; /* of a restore from memory: the rank on whose node the share of this one lies */
    uint32_t lanes;   /* with balance.by_speed: that it carries */
    uint32_t lane_us; /* the time for a lane that this is based on; 0: not known */
    uint32_t stage;   /* of a pipeline; ranks go stage by stage */
    /* known while the coordinator lives; learnt again after its restart */
    uint32_t pid;
    bool started, session, joined, assigned, ready, finished;
    bool ended;               /* of a generation that parks, or of a spare: this one is to go */
    int64_t ended_at;         /* of a spare */
    struct fsm_parked_state { /* the state it has: said when it parks, and with its hello */
        bool complete;        /* the rank has all of the state after `step` */
        uint64_t step;
        uint32_t computed_by; /* the generation that computed that step */
        /* The rank has part `part` of `parts` of what ranks own of that state; 0, 0: all of it. In
         * a pipeline: its stage, and how many there were. */
        uint32_t part, parts;
    } parked_state;
    bool differs;     /* the rank said its pins, and they are not the job's */
    bool at_store;    /* its saver has begun something and isn't through with it */
    bool save_failed; /* the newest file that it wrote, or began */
    enum fsm_agent agent;
    int64_t heard_at;   /* last message of the trainer */
    int64_t lost_at;    /* its session closed; 0: the session is open or never was */
    int64_t missing_at; /* its agent does not list it; 0: it does */
    uint64_t step, counter;
    int64_t counter_at; /* the counter rose */
    uint64_t saving;    /* like counter, of its saver */
    int64_t saving_at;  /* `saving` rose, or the saver began something */
    char phase[FSM_PHASE_BYTES];
    struct hang_place place;           /* among the collectives of its generation */
    uint32_t carries;                  /* lanes, as it says; 0: it doesn't */
    struct fsm_timed timed;            /* as the rank said last */
    struct fsm_timed window, since;    /* `timed` when the windows of m->balance began */
    uint32_t step_us;                  /* of computing for a step, in the newest window; 0: - */
    uint64_t read_bytes;               /* of m->read_back: read and checked */
    bool read_done;                    /* the rank said what it found */
    uint8_t save_flags[FSM_SAVES_MAX]; /* of m->saves[i] */
    enum fsm_worker worker;            /* at the end of the last event about it (moves.h) */
};

/* The times of a phase: those between two rises of a counter in it. */
struct fsm_phase_times {
    char phase[FSM_PHASE_BYTES];
    int64_t gap_ms[FSM_GAPS]; /* a ring */
    uint32_t count, next;
    int64_t noted_at; /* the newest ended */
};

/* One rank's share of a training state, in a copy file on the node of `holder`. */
struct fsm_copy {
    uint64_t step;
    uint32_t generation, rank, size; /* of the rank that took it; size: ranks of that generation */
    uint32_t holder;
};

/* ---- what the store is asked ---- */

/*
 * The one list of tasks for the checkpoint store: the machine asks for them (FSM_ACT_STORE),
 * server/store runs them, and the answer is an event (FSM_EV_STORE).
 * X(name, after how long without a sign of the store it counts as hung, what it does, for messages)
 */
#define FSM_TASK_MS 120000
#define FSM_TASKS(X)                                                                               \
    X(PROBE, FSM_TASK_MS, "writing to it") /* is it the job's, does it take a file? */             \
    X(FOLDER, FSM_TASK_MS, "making the folder")                                                    \
    X(CHECK, FSM_TASK_MS, "checking the files") /* against reports; makes the manifest */          \
    X(PUBLISH, FSM_TASK_MS, "publishing the manifest")                                             \
    X(DROP, FSM_TASK_MS, "removing the folder of a dropped save")                                  \
    X(REMOVE, FSM_TASK_MS, "removing the checkpoint")                                              \
    X(VERIFY, FSM_TASK_MS, "reading it")                                                           \
    X(QUARANTINE, FSM_TASK_MS, "setting it aside")                                                 \
    X(SWEEP, FSM_TASK_MS, "sweeping it") /* of what generations before this one left */

enum fsm_task {
#define FSM_TASK_NAME(name, ms, doing) FSM_TASK_##name,
    FSM_TASKS(FSM_TASK_NAME)
#undef FSM_TASK_NAME
};
#define FSM_TASK_COUNT (FSM_TASK_SWEEP + 1)

/* ---- saves ---- */

/*
 * The state of a save. A save may become the checkpoint of one step, by one of its tries.
 *
 * Moves, made from FSM_SAVE_MOVES by tests/tidy/moves.py:
 *
 *   FREE -> OPENING [find_or_open]: a rank begins; the folder is being made
 *   DROPPED -> OPENING [open_save]: ranks, or people, still want it
 *   OPENING -> COLLECTING [fsm_on_folder_done]: ranks are told where, write and report
 *   COLLECTING -> CHECKING [check_save]: the last report is journalled
 *   CHECKING -> COMMITTING [fsm_on_check_done]: journalled with the manifest: it decides
 *   COMMITTING -> COMMITTED [fsm_on_publish_done]: repeated until it succeeds
 *   OPENING, COLLECTING, CHECKING -> DROPPING [fsm_save_drop]: it can't be completed
 *   COMMITTING -> DROPPING [fsm_save_drop]: the folder was removed, and stays gone
 *   DROPPING -> DROPPED [fsm_on_drop_done]: the folder is gone, or in nobody's way
 *   DROPPING -> DROPPED [give_up_on]: a rank doesn't say that its file is gone
 *   FREE -> DROPPED [drop_before_begin]: a rank will not save it
 *   FREE -> DROPPED [drop_passed]: a rank has trained past it
 *
 * The journal has COLLECTING (with the reports that are in), COMMITTING and DROPPING. A save that
 * is OPENING when the coordinator dies is begun again by its ranks. One that is COMMITTED or
 * DROPPED keeps its place as long as nobody needs it, so that late ranks hear what became of it.
 * docs/crash.md has a table of what a restart makes of each.
 */
enum fsm_save_state {
    FSM_SAVE_FREE,
    FSM_SAVE_OPENING,    /* the folder is being made */
    FSM_SAVE_COLLECTING, /* ranks write and report */
    FSM_SAVE_CHECKING,   /* all reports are in; the store is asked */
    FSM_SAVE_COMMITTING, /* journalled: decided; the manifest is being published */
    FSM_SAVE_COMMITTED,
    FSM_SAVE_DROPPING, /* ranks unlink their files, then the folder goes */
    FSM_SAVE_DROPPED,
};
const char *fsm_save_state_name(enum fsm_save_state state);

/* The times that a checkpoint took: the highest of the ranks, but the sum of their processor time.
 * Units: us */
struct fsm_save_times {
    int64_t stall_us;  /* a step waited */
    int64_t encode_us; /* processor time; 0: nothing of all this is known */
    int64_t io_us, sync_us;
    int64_t save_us;   /* from the folder to the end of the fsync */
    int64_t commit_us; /* from the last report to the published manifest */
};

struct fsm_save {
    enum fsm_save_state state;
    uint64_t step;
    uint32_t generation;
    uint32_t try_number; /* number of it, in the folder's name; 0: the first */
    uint32_t failures;   /* calls on the store that failed, in a row */
    int64_t since;       /* of this state */
    int64_t retry_at;    /* 0: nothing to try again */
    bool removing;       /* the store was asked to remove the folder */
    bool wanted;         /* a rank began it again after it was dropped */
    uint64_t base_step;  /* ranks may write differences to this checkpoint; generation 0: to none */
    uint32_t base_generation;
    int64_t cost_us, write_ms; /* the highest that a rank reported */
    struct fsm_save_times times;
    int64_t reported_at; /* by the last rank; 0: the times are not known */
    char message[LIMIT_REASON];
};

/* A save that is to come: all ranks save after this step. */
struct fsm_announced {
    uint64_t step; /* 0: free */
    bool exit;     /* workers leave then */
};

/* ---- checkpoints ---- */

enum fsm_ckpt_state {
    FSM_CKPT_GOOD = 1,
    FSM_CKPT_REMOVING,
    FSM_CKPT_QUARANTINING, /* damaged; the store is asked to set it aside */
    FSM_CKPT_BAD,          /* set aside */
};

/*
 * A checkpoint that the ranks read back while they train: each reads what another has written
 * (fsm_reader_of). The checkpoint is `verified` once every rank has said that its part is good.
 * A file that a rank finds damaged is disputed: the coordinator reads that file alone, and its word
 * counts.
 */
struct fsm_read_back {
    uint64_t step;
    uint32_t generation;     /* 0: none is under way */
    uint32_t disputed;       /* files that the coordinator was asked to read */
    int64_t since, moved_at; /* a rank got on */
    uint32_t in_vain;        /* in a row, of this generation of workers */
    bool due;                /* retention wants one; it begins when workers train, or when idle */
};

/* A committed checkpoint. */
struct fsm_ckpt {
    uint64_t step;
    uint32_t generation;
    uint32_t try_number; /* of its folder's name */
    uint32_t shards;
    enum fsm_ckpt_state state;
    bool verified;           /* all of it was read back */
    bool verifying;          /* the coordinator reads all of it: asked, not answered */
    bool suspected;          /* with damage_suspected: nobody has read it well since */
    uint32_t reading;        /* 1 + the one file of it that is read on a suspicion; 0: none */
    uint32_t reads;          /* answered, in this process's life */
    enum status read_status; /* of the last of them */
    bool removing;           /* the store was asked to remove it, or to set it aside */
    bool best, retained;     /* as retention saw it last */
    uint64_t bytes, raw_bytes;
    int64_t wall_ms;
    uint64_t parent_step; /* of what it holds differences to; generation 0: of none */
    uint32_t parent_generation;
    double loss, eval_loss, eval_accuracy; /* at its step; NaN: not known */
    struct fsm_save_times times;
    char digest[33];
};
