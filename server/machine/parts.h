/*
 * The parts of a job's state machine (machine.h): the states of jobs, saves and checkpoints, the
 * kinds of failures, what is known of a rank.
 *
 * The numbers of most enums are journalled and, where a comment says so, sent: none changes its
 * meaning. New ones go to the end; all states of a job from MACHINE_SUCCEEDED on are final.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/status.h"
#include "server/machine/hang/hang.h"

#define MACHINE_ALL_RANKS     UINT32_MAX /* every rank; as a blamed rank: unknown */
#define MACHINE_SAVES_MAX     8 /* of one generation at a time; one more is refused, not queued */
#define MACHINE_ANNOUNCED_MAX 4
#define MACHINE_SKIPS_MAX     16 /* steps left out for not being finite; one more: FAILED */
#define MACHINE_SKIPS_ROW     3  /* in a row, the last of them not left out: the job diverged */
#define MACHINE_SUSPECTS_MAX  8  /* nodes that read damage where there is none */
#define MACHINE_PHASE_BYTES   32 /* of a phase's name, with the NUL */
#define MACHINE_PHASES_MAX    16 /* phases with a statistic */
#define MACHINE_GAPS          9  /* observations of a phase's pace */
#define MACHINE_CATALOG_MAX   65536

/* ---- the job ---- */

/* The states of a job. Their numbers are those of JobState in common.proto. */
enum machine_state {
    MACHINE_NONE = 0,
    MACHINE_QUEUED = 1, /* waits for slots */
    MACHINE_PLACING,    /* has slots; the store is asked whether it takes a file */
    MACHINE_FORMING,    /* trainers start, find each other, restore */
    MACHINE_RUNNING,
    MACHINE_SAVING,     /* the last save of the generation, or of the job */
    MACHINE_RECOVERING, /* a generation failed: its trainers end, or the next one waits */
    MACHINE_PAUSED,
    MACHINE_SUCCEEDED, /* this one and those below are final */
    MACHINE_FAILED,
    MACHINE_STOPPED,
    MACHINE_KILLED,
};
const char *machine_state_name(enum machine_state state);
/* True of SUCCEEDED, FAILED, STOPPED and KILLED: nothing happens by itself. Only a STOPPED job can
 * be resumed. */
bool machine_state_final(enum machine_state state);

/* Why a generation is to end with a save. */
enum machine_intent {
    MACHINE_INTENT_NONE,
    MACHINE_INTENT_PAUSE,
    MACHINE_INTENT_STOP,
    MACHINE_INTENT_DRAIN,  /* the coordinator goes down; the job goes on afterwards */
    MACHINE_INTENT_FINISH, /* the job's time is over */
};

enum machine_metric {
    MACHINE_METRIC_NONE,
    MACHINE_METRIC_LOSS,
    MACHINE_METRIC_EVAL_LOSS,
    MACHINE_METRIC_EVAL_ACCURACY,
};

/* How lanes are dealt to the workers. */
enum machine_shares {
    MACHINE_SHARES_EVEN, /* each has as many, but for one that has become slow */
    MACHINE_SHARES_FILE, /* as the job file says, always */
    MACHINE_SHARES_AUTO, /* by speed */
};

/* A job's configuration, fixed at submission. */
struct machine_config {
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
    enum machine_shares shares;
    uint64_t audited;        /* an error shows within so many steps; 0: nobody looks */
    uint64_t lanes_audited;  /* steps from what a lane fault calls good to the fault */
    uint64_t states_audited; /* the same for faults of states; 0: nobody compares them */
    uint64_t keep_last;      /* 0: all */
    enum machine_metric best_metric;
    uint64_t keep_best, keep_every; /* 0: off; every: steps */
    bool delta;                     /* checkpoints may hold differences to one before */
    bool every_auto;
    int64_t every_ms; /* saves by time; 0, and not auto: workers know the steps */
    bool relaxed;     /* pins that differ are accepted */
    bool skip_nan;
    int64_t time_limit_ms; /* 0: none; of training, then the job ends with a save */
    int64_t hang_ms;       /* floor of the hang rule */
    int64_t silent_ms;     /* an agent or a trainer without a sign for so long is silent; 0: 5 s */
    int64_t spread_ms;     /* a session that is lost may be opened again so late; 0: at once */
    bool restarts;         /* after a failure no worker goes on: all are started anew */
    bool min_follows;      /* min is what ranks are, whatever is asked for (machine_init) */
};

/* Kinds of time that was no training. */
enum machine_lost {
    MACHINE_LOST_DETECT,  /* until a failure was noticed */
    MACHINE_LOST_FORM,    /* ending the old workers, starting the new */
    MACHINE_LOST_RESTORE, /* preparing, reading the checkpoint */
    MACHINE_LOST_REPLAY,  /* steps that had been trained before */
    MACHINE_LOST_STALL,   /* steps waited for snapshots */
    MACHINE_LOST_WAIT,    /* for slots, or before trying again */
    MACHINE_LOST_COUNT
};
const char *machine_lost_name(enum machine_lost lost);

/* ---- failures ---- */

/* The kinds of failures. Their numbers are those of FaultKind in common.proto. */
enum machine_fault_kind {
    MACHINE_FAULT_NONE = 0,
    MACHINE_FAULT_PROCESS,
    MACHINE_FAULT_MEMORY,
    MACHINE_FAULT_COMMUNICATION,
    MACHINE_FAULT_HANG,
    MACHINE_FAULT_NODE,
    MACHINE_FAULT_SESSION,
    MACHINE_FAULT_DAMAGE,
    MACHINE_FAULT_STORE,
    MACHINE_FAULT_NUMERIC,
    MACHINE_FAULT_USER,
    MACHINE_FAULT_PINS,
    MACHINE_FAULT_FORMATION,
    MACHINE_FAULT_DATA,
    MACHINE_FAULT_PATH,  /* two of its nodes can't reach each other */
    MACHINE_FAULT_WRONG, /* two ranks computed different bits */
};
const char *machine_fault_name(enum machine_fault_kind kind);

struct machine_fault {
    enum machine_fault_kind kind;
    uint32_t rank; /* blamed, or MACHINE_ALL_RANKS */
    uint64_t step;
    /* The cause is outside the job: a kill from outside or for an unknown cause, a network, or a
     * store that can't be read. The job backs off, and no budget is used. */
    bool outside;
    bool waits;     /* the job waits for people (FORMATION: programs of two versions): it backs off,
                     * and no generation counts as one without progress */
    bool of_node;   /* the fault is the node's, as far as one can tell from there */
    uint32_t shard; /* DAMAGE: 1 + the file that a rank can't read; 0: not said */
    uint64_t good_step; /* WRONG: the state after it was good */
    char phase[MACHINE_PHASE_BYTES];
    char message[LIMIT_REASON];
};

/* How a trainer's process ended. */
enum machine_exit {
    MACHINE_EXIT_UNKNOWN,
    MACHINE_EXIT_CODE,
    MACHINE_EXIT_SIGNAL,
    MACHINE_EXIT_OOM,
    MACHINE_EXIT_SPAWN_FAILED,
    MACHINE_EXIT_FINISHED,
};

/* ---- ranks ---- */

/* How far a rank is with a save: bits of machine_rank.save_flags. */
enum machine_rank_save {
    MACHINE_RANK_BEGUN = 1,
    MACHINE_RANK_REPORTED = 2,   /* its file is durable, with size and hashes */
    MACHINE_RANK_KNOWS_DROP = 4, /* the rank was told that the save is dropped */
    MACHINE_RANK_REMOVED = 8,    /* the rank has no file there any more */
    MACHINE_RANK_ASSUMED = 16,   /* begun for all we know: the coordinator restarted */
};

/* The state of the agent of a rank's node. */
enum machine_agent {
    MACHINE_AGENT_HEARD,
    MACHINE_AGENT_DOUBTED, /* not for a while; others are asked, and it is not judged yet */
    MACHINE_AGENT_SILENT,  /* not heard, and nobody else reaches it, as far as is known */
    MACHINE_AGENT_CUT_OFF, /* not heard here, but other nodes reach it */
};

/* A rank as the journal has it, in a row of its own: there may be a thousand. */
struct machine_rank_row {
    char node[LIMIT_NAME];
    uint32_t slot, holder, birth, number, lanes, lane_us, stage;
    bool gone, parked, source;
};

/* The time that a rank computed in its steps of this generation, up to the newest that it
 * reported. */
struct machine_timed {
    uint64_t steps, us; /* us: of its own, without waiting for others */
};

struct machine_rank {
    /* journalled */
    char node[LIMIT_NAME];
    uint32_t slot;
    uint32_t birth;  /* the generation that its process was started in: it may outlive that */
    uint32_t number; /* with birth, the name of its process for its life */
    bool gone;       /* the rank has no process any more */
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
    bool ended;           /* of a generation that parks, or of a spare: this one is to go */
    int64_t ended_at;     /* of a spare */
    struct machine_kept { /* the state it has: said when it parks, and with its hello */
        bool whole;       /* the rank has all of the state after `step` */
        uint64_t step;
        uint32_t computed_by; /* the generation that computed that step */
        /* The rank has part `part` of `parts` of what ranks own of that state; 0, 0: all of it. In
         * a pipeline: its stage, and how many there were. */
        uint32_t part, parts;
    } kept;
    bool differs;     /* the rank said its pins, and they are not the job's */
    bool at_store;    /* its saver has begun something and isn't through with it */
    bool save_failed; /* the newest file that it wrote, or began */
    enum machine_agent agent;
    int64_t heard_at;   /* last message of the trainer */
    int64_t lost_at;    /* its session closed; 0: the session is open or never was */
    int64_t missing_at; /* its agent does not list it; 0: it does */
    uint64_t step, counter;
    int64_t counter_at; /* the counter rose */
    uint64_t saving;    /* like counter, of its saver */
    int64_t saving_at;  /* `saving` rose, or the saver began something */
    char phase[MACHINE_PHASE_BYTES];
    struct hang_place place;               /* among the collectives of its generation */
    uint32_t carries;                      /* lanes, as it says; 0: it doesn't */
    struct machine_timed timed;            /* as the rank said last */
    struct machine_timed window, since;    /* `timed` when the windows of m->balance began */
    uint32_t step_us;                      /* of computing for a step, in the newest window; 0: - */
    uint64_t read_bytes;                   /* of m->read_back: read and checked */
    bool read_done;                        /* the rank said what it found */
    uint8_t save_flags[MACHINE_SAVES_MAX]; /* of m->saves[i] */
};

/* The pace of a phase: times between two rises of a counter in it. */
struct machine_pace {
    char phase[MACHINE_PHASE_BYTES];
    int64_t gap_ms[MACHINE_GAPS]; /* a ring */
    uint32_t count, next;
    int64_t noted_at; /* the newest ended */
};

/* One rank's share of a training state, in a copy file on the node of `holder`. */
struct machine_copy {
    uint64_t step;
    uint32_t generation, rank, size; /* of the rank that took it; size: ranks of that generation */
    uint32_t holder;
};

/* ---- what the store is asked ---- */

/*
 * The one list of tasks for the checkpoint store: the machine asks for them (MACHINE_ACT_STORE),
 * server/store runs them, and the answer is an event (MACHINE_EV_STORE).
 * X(name, after how long without a sign of the store it counts as hung, what it does, for messages)
 */
#define MACHINE_TASK_MS 120000
#define MACHINE_TASKS(X)                                                                           \
    X(PROBE, MACHINE_TASK_MS, "writing to it") /* is it the job's, does it take a file? */         \
    X(FOLDER, MACHINE_TASK_MS, "making the folder")                                                \
    X(CHECK, MACHINE_TASK_MS, "checking the files") /* against reports; makes the manifest */      \
    X(PUBLISH, MACHINE_TASK_MS, "publishing the manifest")                                         \
    X(DROP, MACHINE_TASK_MS, "removing the folder of a dropped save")                              \
    X(REMOVE, MACHINE_TASK_MS, "removing the checkpoint")                                          \
    X(VERIFY, MACHINE_TASK_MS, "reading it")                                                       \
    X(QUARANTINE, MACHINE_TASK_MS, "setting it aside")                                             \
    X(SWEEP, MACHINE_TASK_MS, "sweeping it") /* of what generations before this one left */

enum machine_task {
#define MACHINE_TASK_NAME(name, ms, doing) MACHINE_TASK_##name,
    MACHINE_TASKS(MACHINE_TASK_NAME)
#undef MACHINE_TASK_NAME
};
#define MACHINE_TASK_COUNT (MACHINE_TASK_SWEEP + 1)

/* ---- saves ---- */

enum machine_save_state {
    MACHINE_SAVE_FREE,
    MACHINE_SAVE_OPENING,    /* the folder is being made */
    MACHINE_SAVE_COLLECTING, /* ranks write and report */
    MACHINE_SAVE_CHECKING,   /* all reports are in; the store is asked */
    MACHINE_SAVE_COMMITTING, /* journalled: decided; the manifest is being published */
    MACHINE_SAVE_COMMITTED,
    MACHINE_SAVE_DROPPING, /* ranks unlink their files, then the folder goes */
    MACHINE_SAVE_DROPPED,
};

/* The times that a checkpoint took: the highest of the ranks, but the sum of their processor time.
 * Units: us */
struct machine_save_times {
    int64_t stall_us;  /* a step waited */
    int64_t encode_us; /* processor time; 0: nothing of all this is known */
    int64_t io_us, sync_us;
    int64_t save_us;   /* from the folder to the end of the fsync */
    int64_t commit_us; /* from the last report to the published manifest */
};

struct machine_save {
    enum machine_save_state state;
    uint64_t step;
    uint32_t generation;
    uint32_t retry;     /* of its folder's name; 0: it is the first try of this save */
    uint32_t tries;     /* calls on the store that failed */
    int64_t since;      /* of this state */
    int64_t retry_at;   /* 0: nothing to try again */
    bool removing;      /* the store was asked to remove the folder */
    bool wanted;        /* a rank began it again after it was dropped */
    uint64_t base_step; /* ranks may write differences to this checkpoint; generation 0: to none */
    uint32_t base_generation;
    int64_t cost_us, write_ms; /* the highest that a rank reported */
    struct machine_save_times times;
    int64_t reported_at; /* by the last rank; 0: the times are not known */
    char message[LIMIT_REASON];
};

/* A save that is to come: all ranks save after this step. */
struct machine_announced {
    uint64_t step; /* 0: free */
    bool exit;     /* workers leave then */
};

/* ---- checkpoints ---- */

enum machine_ckpt_state {
    MACHINE_CKPT_GOOD = 1,
    MACHINE_CKPT_REMOVING,
    MACHINE_CKPT_QUARANTINING, /* damaged; the store is asked to set it aside */
    MACHINE_CKPT_BAD,          /* set aside */
};

/*
 * A checkpoint that the ranks read back while they train: each reads what another has written
 * (machine_reader_of). The checkpoint is `verified` once every rank has said that its part is good.
 * A file that a rank finds damaged is disputed: the coordinator reads that file alone, and its word
 * counts.
 */
struct machine_read_back {
    uint64_t step;
    uint32_t generation;     /* 0: none is under way */
    uint32_t disputed;       /* files that the coordinator was asked to read */
    int64_t since, moved_at; /* a rank got on */
    uint32_t in_vain;        /* in a row, of this generation of workers */
    bool due;                /* retention wants one; it begins when workers train, or at rest */
};

/* A committed checkpoint. */
struct machine_ckpt {
    uint64_t step;
    uint32_t generation;
    uint32_t retry; /* of its folder's name */
    uint32_t shards;
    enum machine_ckpt_state state;
    bool verified;           /* all of it was read back */
    bool verifying;          /* the coordinator reads all of it: asked, not answered */
    bool suspected;          /* with damage_suspected: nobody has read it well since */
    uint32_t reading;        /* 1 + the one file of it that is read on a suspicion; 0: none */
    uint32_t reads;          /* answered, in this process's life */
    enum status read_status; /* of the last of them */
    bool removing;           /* the store was asked to remove it, or to set it aside */
    bool best, kept;         /* as retention saw it last */
    uint64_t bytes, raw_bytes;
    int64_t wall_ms;
    uint64_t parent_step; /* of what it holds differences to; generation 0: of none */
    uint32_t parent_generation;
    double loss, eval_loss, eval_accuracy; /* at its step; NaN: not known */
    struct machine_save_times times;
    char digest[33];
};
