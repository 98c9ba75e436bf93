/*
 * One job as a pure state machine: job_step(job, event) -> the job's next state and a bounded list
 * of actions (design 9). No clock, socket, thread, file or random number is used in here; times
 * come with the event. Whoever calls it journals the state and the journal's actions before it
 * carries out any of the others.
 *
 * Nothing in it knows lanes, models or tensors: a job is `ranks` processes that report steps and
 * phases (open strings) and that may save.
 *
 * Invariants, checked by tests/sim after every event:
 *   1 generation rises only in jm_form, which sets `dirty`, and ACT_START of it comes after.
 *   2 events of another generation than the current one change nothing.
 *   3 a save becomes a checkpoint only through SAVE_COMMITTING, which is journalled.
 *   4 a new generation starts only when every trainer of the old one is gone and no save of it can
 *     still commit.
 *   5 a job that reached a final state has no trainer.
 *
 * States, and the function that makes each transition:
 *   QUEUED, RECOVERING -> PLACING            [on_placed]
 *   PLACING            -> FORMING(g + 1)     [jm_form]
 *   FORMING            -> RUNNING            [jm_running]
 *   RUNNING            -> SAVING             [on_save_begin of the last step, announce_exit]
 *   FORMING, RUNNING, SAVING -> RECOVERING   [jm_fail, jm_end_generation]
 *   any, with end_to set -> end_to           [settle], once the generation's trainers are gone
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/limits.h"
#include "common/status.h"
#include "server/machine/interval.h"

#define JM_ALL           UINT32_MAX /* every rank; as a blamed rank: unknown */
#define JM_ACTIONS_MAX   96
#define JM_SAVES_MAX     8 /* of one generation at a time; one more is refused, not queued */
#define JM_ANNOUNCED_MAX 4
#define JM_SKIPS_MAX     16 /* steps left out for not being finite; one more: FAILED */
#define JM_EXCLUDED_MAX  8  /* nodes whose pins differ */
#define JM_SUSPECTS_MAX  8  /* nodes that read damage where there is none */
#define JM_PHASE         32 /* bytes of a phase's name */
#define JM_PHASES_MAX    12 /* phases with a statistic */
#define JM_GAPS          9  /* observations of a phase's pace */
#define JM_CATALOG_MAX   65536

/* The numbers are those of JobState in common.proto. */
enum job_state {
    JOB_NONE = 0,
    JOB_QUEUED = 1,
    JOB_PLACING,
    JOB_FORMING,
    JOB_RUNNING,
    JOB_SAVING,
    JOB_RECOVERING,
    JOB_PAUSED,
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_STOPPED,
    JOB_KILLED,
};
const char *job_state_name(enum job_state state);
bool job_state_final(enum job_state state); /* SUCCEEDED, FAILED, STOPPED, KILLED */

/* The numbers are those of FaultKind in common.proto. */
enum jm_fault_kind {
    FAULT_NONE = 0,
    FAULT_PROCESS,
    FAULT_MEMORY,
    FAULT_COMMUNICATION,
    FAULT_HANG,
    FAULT_NODE,
    FAULT_SESSION,
    FAULT_DAMAGE,
    FAULT_STORE,
    FAULT_NUMERIC,
    FAULT_USER,
    FAULT_PINS,
    FAULT_FORMATION,
};
const char *jm_fault_name(enum jm_fault_kind kind);

struct jm_fault {
    enum jm_fault_kind kind;
    uint32_t rank; /* blamed, or JM_ALL */
    uint64_t step;
    bool outside; /* a kill from outside or of unknown cause, a store that can't be read: backs off,
                     uses no budget */
    char phase[JM_PHASE];
    char message[LIMIT_REASON];
};

enum jm_exit { EXIT_UNKNOWN, EXIT_CODE, EXIT_SIGNAL, EXIT_OOM, EXIT_SPAWN_FAILED, EXIT_FINISHED };

enum jm_intent { INTENT_NONE, INTENT_PAUSE, INTENT_STOP, INTENT_DRAIN, INTENT_FINISH };

/* Where a second went that was no training; names in jm_lost_name. */
enum jm_lost {
    LOST_DETECT,
    LOST_FORM,
    LOST_RESTORE,
    LOST_REPLAY,
    LOST_STALL,
    LOST_WAIT,
    LOST_COUNT
};
const char *jm_lost_name(enum jm_lost lost);

enum jm_save_state {
    SAVE_FREE,
    SAVE_OPENING,    /* the folder is being made */
    SAVE_COLLECTING, /* ranks write and report */
    SAVE_CHECKING,   /* all reports are in; the store is asked */
    SAVE_COMMITTING, /* journalled: decided; the manifest is being published */
    SAVE_COMMITTED,
    SAVE_DROPPING, /* ranks unlink their files, then the folder goes */
    SAVE_DROPPED,
};

/* What a checkpoint took: the highest of the ranks, of processor time their sum. Units: us */
struct jm_save_times {
    int64_t stall_us;  /* a step waited */
    int64_t encode_us; /* processor time; 0: nothing of all this is known */
    int64_t io_us, sync_us;
    int64_t save_us;   /* from the folder to the end of the fsync */
    int64_t commit_us; /* from the last report to the published manifest */
};

struct jm_save {
    enum jm_save_state state;
    uint64_t step;
    uint32_t generation;
    uint32_t tries;
    int64_t since;      /* of this state */
    int64_t retry_at;   /* 0: nothing to try again */
    bool removing;      /* the store was asked to remove the folder */
    bool wanted;        /* a rank began it again after it was dropped */
    uint64_t base_step; /* ranks may write differences to this checkpoint; generation 0: to none */
    uint32_t base_generation;
    int64_t cost_us, write_ms; /* the highest that a rank reported */
    struct jm_save_times times;
    int64_t reported_at; /* by the last rank; 0: the times are not known */
    char message[LIMIT_REASON];
};

enum jm_metric { METRIC_NONE, METRIC_LOSS, METRIC_EVAL_LOSS, METRIC_EVAL_ACCURACY };

enum jm_ckpt_state { CKPT_GOOD = 1, CKPT_REMOVING, CKPT_QUARANTINING, CKPT_BAD };

/* A committed checkpoint. */
struct jm_ckpt {
    uint64_t step;
    uint32_t generation;
    uint32_t shards;
    enum jm_ckpt_state state;
    bool verified;           /* the coordinator read it back */
    bool verifying;          /* asked, not answered */
    uint32_t reads;          /* answered, in this process's life */
    enum status read_status; /* of the last of them */
    bool removing;           /* as above */
    bool best, kept;         /* as retention saw it last */
    uint64_t bytes, raw_bytes;
    int64_t wall_ms;
    uint64_t parent_step; /* it holds differences to this one; generation 0: to none */
    uint32_t parent_generation;
    double loss, eval_loss, eval_accuracy; /* at its step; NaN: not known */
    struct jm_save_times times;
    char digest[33];
};

enum jm_rank_save {
    RANK_BEGUN = 1,
    RANK_REPORTED = 2,
    RANK_TOLD = 4, /* that it was dropped */
    RANK_REMOVED = 8,
    RANK_ASSUMED = 16, /* begun for all we know: the coordinator restarted */
};

struct jm_rank {
    /* journalled */
    char node[LIMIT_NAME];
    uint32_t slot;
    bool gone;
    uint32_t holder; /* with memory_generation: the rank on whose node the share of this one lies */
    /* known while the coordinator lives; learnt again after its restart */
    uint32_t pid;
    bool started, session, joined, planned, ready, finished;
    bool agent_silent;  /* its agent missed its beats */
    int64_t heard_at;   /* last message of the trainer */
    int64_t lost_at;    /* its session closed; 0: it is open or never was */
    int64_t missing_at; /* its agent does not list it; 0: it does */
    uint64_t step, counter;
    int64_t counter_at; /* the counter rose */
    char phase[JM_PHASE];
    uint8_t save_flags[JM_SAVES_MAX];
};

/* Pace of a phase: times between two rises of a counter in it. */
struct jm_pace {
    char phase[JM_PHASE];
    int64_t gap_ms[JM_GAPS];
    uint32_t count, next;
};

/* One share of a snapshot in the memory of holder's node. */
struct jm_copy {
    uint64_t step;
    uint32_t generation, rank, size; /* of whom took it */
    uint32_t holder;
};

struct jm_announced {
    uint64_t step; /* 0: free */
    bool exit;
};

/* Fixed at submission. */
struct jm_config {
    uint32_t ranks;
    uint64_t keep_last; /* 0: all */
    enum jm_metric best_metric;
    uint64_t keep_best, keep_every; /* 0: off; every: steps */
    bool delta;
    bool every_auto;
    int64_t every_ms; /* saves by time; 0, and not auto: workers know the steps */
    bool relaxed;     /* pins that differ are accepted */
    bool skip_nan;
    int64_t time_limit_ms; /* 0: none; of training, then the job ends with a save */
    int64_t hang_ms;       /* floor of the hang rule */
};

struct job_machine {
    char id[16];
    struct jm_config config;
    bool dirty; /* a journalled field changed since the caller cleared it */

    /* journalled */
    enum job_state state;
    enum job_state end_to; /* where to go when the generation is gone; JOB_NONE: it is not ending */
    enum jm_intent intent;
    uint32_t generation, restarts;
    uint64_t step_max; /* high-water mark of finished steps */
    uint64_t total_steps, steps_per_epoch;
    uint64_t restore_step; /* what this generation started from; generation 0: from the seed */
    uint32_t restore_generation;
    uint32_t memory_generation; /* not 0: restore_step comes from copies in memory of that one */
    uint32_t memory_from;       /* copies of generations before it are not used any more */
    bool memory_decided;        /* by this generation */
    bool progressed, committed; /* by this generation */
    uint32_t streak;            /* failures since the last progress */
    uint32_t barren;            /* generations in a row without progress */
    uint32_t commitless;        /* generations in a row without a commit */
    enum jm_fault_kind budget_kind;
    uint64_t budget_step;
    char budget_phase[JM_PHASE];
    uint32_t budget_used;
    struct jm_fault cause;       /* of the generation's end, or of the wait */
    struct jm_fault first_cause; /* since the last progress */
    bool damage_suspected; /* the restored checkpoint is to be read before the next generation */
    bool numeric_seen;     /* numeric_step is being recomputed */
    uint64_t numeric_step;
    uint64_t skip[JM_SKIPS_MAX];
    uint32_t skip_count;
    char excluded[JM_EXCLUDED_MAX][LIMIT_NAME];
    uint32_t excluded_count;
    char suspects[JM_SUSPECTS_MAX][LIMIT_NAME]; /* taken only where others have no room */
    uint32_t suspect_count;
    uint32_t swept; /* what generations before it left in the store was looked for */
    struct jm_announced announced[JM_ANNOUNCED_MAX];
    int64_t saved_wall;        /* the newest save began */
    int64_t cost_us, write_ms; /* of a checkpoint, moving averages; 0: none was measured */
    int64_t interval_ms;       /* every: auto; 0: not yet */
    uint64_t state_bytes;      /* of a checkpoint, raw; 0: not known yet */
    uint64_t refused;          /* saves for which the store had no room */
    uint32_t failures;         /* that cost steps */
    uint32_t refused_row;      /* of them in a row, up to now */
    char refused_reason[LIMIT_REASON];
    int64_t lost_ms[LOST_COUNT], train_ms;
    int64_t stall_us; /* below a millisecond, on its way to lost_ms; not kept by a restart */
    int64_t submitted_wall, started_wall, ended_wall;
    char token[72]; /* of this generation */
    char reason[LIMIT_REASON];
    char final_digest[33];
    char store_mark[33];   /* what the store that the checkpoints are in is known by; "": not yet */
    struct jm_rank *ranks; /* config.ranks of them; owned */

    /* journalled in rows of their own */
    struct jm_save saves[JM_SAVES_MAX];
    struct jm_ckpt *catalog; /* in order of commit; owned */
    size_t catalog_count, catalog_capacity;

    /* of this process's life */
    struct jm_copy *copies; /* offered to this generation; owned */
    size_t copy_count;
    uint32_t sweep_asked; /* as swept, or under way */
    bool sweep_failed;    /* it is asked again after the next commit */
    bool probed;          /* the store took a file */
    bool probing;
    bool damage_waited; /* the read that was asked for failed on the medium, here too */
    bool unsaved;       /* the store fails saves; it was told */
    bool late_told;     /* saves since the newest one came too early for the store; it was told */
    bool base_refused;  /* the files of a save with a base didn't fit together: the next has none */
    bool store_away;    /* what is at its place is not the job's store, or not mounted */
    int64_t accounted_at;
    int64_t started_at; /* of the generation's formation */
    int64_t running_since, progress_at;
    int64_t held_at;           /* the store, or a refused save, last held workers up */
    int64_t watched_at;        /* the rules of silence were looked at */
    int64_t grace_until;       /* nobody is judged lost before (restart of the coordinator) */
    int64_t retry_at;          /* RECOVERING, PLACING: not before */
    int64_t window_until;      /* 0: no fault is being weighed */
    struct jm_fault candidate; /* the best cause so far */
    int64_t end_hard_at;       /* ending: trainers that are left then are ended */
    int64_t ended_at;          /* ACT_END went out first */
    int64_t end_again_at;
    uint64_t replay_until; /* finished steps that are being repeated */
    int64_t step_at;       /* when step_max rose last, for the pace of steps */
    double step_ms;        /* moving average; 0: unknown */
    uint32_t passes;       /* announced steps in a row that a worker had passed */
    int64_t save_from;     /* the next save by time is counted from here */
    struct jm_pace pace[JM_PHASES_MAX];
};

enum job_event_kind {
    EV_TICK,
    EV_PLACED,  /* nodes, slots, token */
    EV_WAITING, /* message: why there are no slots */
    EV_PROBED,  /* status, message, flag: the store is away, or mark */
    EV_STARTED, /* rank, pid */
    EV_MISSING, /* rank: its agent's hello does not list it */
    EV_EXITED,  /* rank, exit, code, fault (or NULL), finished, message, step, phase (or NULL) */
    EV_AGENT,   /* rank, flag: silent */
    EV_HELLO,   /* rank, pid, flag: attached, step, copies */
    EV_SESSION_LOST, /* rank */
    EV_READY, /* rank, total_steps, steps_per_epoch, step, bytes; message: how its pins differ, or
                 NULL */
    EV_PROGRESS,    /* rank, step, phase, counter */
    EV_FAULT,       /* rank, fault */
    EV_FINISHED,    /* rank, step */
    EV_SAVE_BEGIN,  /* rank, step */
    EV_SAVE_REPORT, /* rank, step, cost_us, write_ms, times */
    EV_SAVE_FAILED, /* rank, step, message, full, flag: removed */
    EV_SAVE_PASSED, /* rank, step, at */
    EV_SAVE_WANTED, /* rank, flag: it leaves, at: within so many ms; message: why */
    EV_FOLDER_DONE, /* step, of_generation, status, message */
    EV_CHECK_DONE,
    EV_PUBLISH_DONE, /* and ckpt */
    EV_REMOVE_DONE,  /* and flag, as EV_PROBED */
    EV_VERIFY_DONE,  /* likewise */
    EV_QUARANTINE_DONE,
    EV_SWEEP_DONE, /* of_generation, status, counter: folders */
    EV_PAUSE,
    EV_RESUME,
    EV_STOP,
    EV_KILL,
    EV_SAVE,
    EV_DRAIN,
    EV_DRAIN_NOW,   /* no more time: end the trainers */
    EV_REMOVE_CKPT, /* step */
    EV_CHECK_CKPT,  /* step, of_generation: reads it, sets it aside if it is damaged */
};

/* Fields beyond kind and times are set as listed above; pointers are borrowed for the call. */
struct job_event {
    enum job_event_kind kind;
    int64_t now;         /* monotonic ms */
    int64_t wall;        /* Unix ms */
    uint32_t generation; /* of the sender: trainers and agents */
    uint32_t rank;
    uint32_t pid;
    bool flag, full, finished;
    uint64_t step, at, counter, total_steps, steps_per_epoch, bytes;
    int64_t cost_us, write_ms;
    struct jm_save_times times;
    uint32_t of_generation;
    enum status status;
    const char *message, *phase, *token, *mark;
    const char *const *nodes;
    const uint32_t *slots;
    enum jm_exit exit;
    int32_t code; /* exit code or signal */
    const struct jm_fault *fault;
    const struct jm_ckpt *ckpt;
    const struct jm_copy *copies;
    size_t copy_count;
};

enum jm_action_kind {
    /* written to the journal, with the state */
    ACT_EVENT, /* text: kind, message */
    ACT_GEN_BEGIN,
    ACT_GEN_END,    /* of the current generation, with m->cause */
    ACT_SAVE_ROW,   /* step, generation, value: enum jm_save_state; SAVE_FREE deletes */
    ACT_CKPT_ROW,   /* step, generation: as the catalog has it; not there: deletes */
    ACT_REPORT_ROW, /* the report that the event brought */
    /* carried out afterwards, in order */
    ACT_SCHEDULE, /* slots were freed or are wanted */
    ACT_PROBE,
    ACT_START,   /* rank or JM_ALL */
    ACT_END,     /* those that are not gone */
    ACT_OVER,    /* message; their sessions are closed */
    ACT_PLAN,    /* rank */
    ACT_FORGET,  /* its copies in memory, on nodes that need none of them */
    ACT_SAVE_AT, /* step, flag: exit; rank or JM_ALL */
    ACT_FOLDER,  /* step, generation, as all below */
    ACT_CHECK,
    ACT_PUBLISH,
    ACT_REMOVE,
    ACT_VERIFY,
    ACT_QUARANTINE,
    ACT_SWEEP,       /* generation: those before it */
    ACT_SEND_FOLDER, /* rank; flag: there is one, else it was dropped */
    ACT_SEND_ACK,    /* rank */
    ACT_SEND_DONE,   /* rank or JM_ALL; flag: committed */
};
#define JM_ACTION_FIRST_OUTSIDE ACT_SCHEDULE

struct jm_action {
    enum jm_action_kind kind;
    uint32_t rank, generation;
    uint64_t step;
    bool flag;
    int value;
    char text[24];
    char message[LIMIT_REASON];
};

struct jm_actions {
    size_t count;
    struct jm_action list[JM_ACTIONS_MAX];
};

/* A job that was just submitted: QUEUED. Memory: ranks are allocated here. */
MUST_CHECK enum status jm_init(struct job_machine *m, const char *id,
                               const struct jm_config *config, const struct job_event *at);
void jm_release(struct job_machine *m);

/*
 * One event. The verdict on what a user asked; ST_OK for everything else.
 * Errors: ST_REFUSED  not in this state; m is unchanged and out is empty
 */
MUST_CHECK enum status job_step(struct job_machine *m, const struct job_event *event,
                                struct jm_actions *out);
/* After the journal was read: what must be done again. Starts the time of grace. */
void jm_resume(struct job_machine *m, const struct job_event *at, struct jm_actions *out);

/* The coordinator itself did not run for so long (stopped, starved): nobody's silence of that time
 * counts. */
void jm_excuse(struct job_machine *m, int64_t ms);

/* When job_step wants an EV_TICK at the latest; INT64_MAX: never. */
int64_t jm_deadline(const struct job_machine *m);
/* It waits for slots (QUEUED, or RECOVERING and ready to go on). */
bool jm_wants_slots(const struct job_machine *m, int64_t now);
/* Rank's slot is taken. */
bool jm_alive_rank(const struct job_machine *m, uint32_t rank); /* may run; JM_ALL: any of them */
bool jm_holds_slot(const struct job_machine *m, uint32_t rank);
/* Finished steps as far as this process knows. */
uint64_t jm_step_now(const struct job_machine *m);
/* The newest checkpoint that a generation may start from, or NULL. */
const struct jm_ckpt *jm_newest(const struct job_machine *m);
/* What a save will take, at most, as far as is known; 0: nothing is. whole: without differences. */
uint64_t jm_expected_bytes(const struct job_machine *m, bool whole);
/* Time that training steps waited for checkpoints or copies. */
void jm_note_stall(struct job_machine *m, int64_t us);
/* The save of that step and generation, or NULL. */
const struct jm_save *jm_find_open(const struct job_machine *m, uint64_t step, uint32_t generation);
/* Between two saves; 0: they are not taken by time. */
int64_t jm_interval_ms(const struct job_machine *m);
/* What `every: auto` goes by. */
struct job_interval_facts jm_interval_facts(const struct job_machine *m);
const struct jm_ckpt *jm_find_ckpt(const struct job_machine *m, uint64_t step, uint32_t generation);
/* "ok", "unsupervised", "degraded", "recovering". */
const char *jm_health(const struct job_machine *m);
/* Adds a checkpoint that the journal holds. */
MUST_CHECK enum status jm_catalog_add(struct job_machine *m, const struct jm_ckpt *ckpt);
