/*
 * One job as a pure state machine: fsm_apply(machine, event) leads to the job's next state and
 * a bounded list of actions. No clock, socket, thread, file or random number is used in here; the
 * time comes with the event. Whoever calls it journals the state and the journal's actions before
 * it carries out any of the others (server/coord/apply.c).
 *
 * It doesn't know lanes, models or tensors: a job is `ranks` processes that report steps and phases
 * (open strings) and that may save.
 *
 * Invariants, checked by tests/sim after every event:
 *   1 `generation` rises only where one is formed; that is journalled before
 *     FSM_ACT_START leaves.
 *   2 Events of another generation than the current one change nothing.
 *   3 A save becomes a checkpoint only through SAVE_COMMITTING, which is journalled.
 *   4 A new generation starts only when every trainer of the old one is gone, or has parked and
 *     computes nothing (park.c), and no save of it can still commit.
 *   5 A job in a final state has no trainer.
 *   6 A worker has one place in `ranks`, and no two that live have one number.
 *
 * A trainer is gone if its process ended, or was lost with its node, or was killed and can't die
 * (it waits in the kernel). In the latter two cases the slot stays held until the trainer was seen
 * to be gone.
 *
 * Some jobs run people's own programs (fsm_config.program). Each generation starts the program
 * anew, also with workers that were kept: no worker is a source. A program that hands its state
 * over is saved and restored as a model is: from copies in memory if all of them lie on the one
 * node where the generation runs, else from a checkpoint. With another number of workers it saves
 * first. It may leave with an earlier save than the one that was announced. A rank whose program
 * ends before its last step, and was not asked to, has failed.
 *
 * Of other programs nothing is saved (fsm_config.saves_nothing): they save by themselves, if at
 * all. There are no checkpoints, copies or states, and the store is never asked. How such a
 * generation ends:
 *
 *   all ranks finished           SUCCEEDED. A rank that finished waits, or is gone; neither is a
 *                                failure, and who finished is journalled
 *   pause, stop, drain,          gently, at once: workers are told Over, and each gives its program
 *   a node that leaves           a signal and time (fsm_config.grace_ms). Who is left then is
 *                                ended. How a program ends that was told to go means nothing
 *   a failure, another number    as in park.c; workers end their program before they park
 *   of workers
 *
 * Such a job may fail fsm_config.budget times in a row without progress: steps beyond all before,
 * or in a job that never said one, a generation that has run for FSM_RAN_MS.
 *
 * Moves, made from FSM_STATE_MOVES by tests/tidy/moves.py:
 *
 *   QUEUED, RECOVERING -> PLACING [fsm_on_placed]: slots were found
 *   PLACING -> QUEUED [fsm_unplace]: the store takes no file, or a node leaves; it never ran
 *   PLACING -> RECOVERING [fsm_unplace]: the same, after a generation
 *   PLACING -> QUEUED [fsm_resume]: the coordinator is back; it never ran
 *   PLACING -> RECOVERING [fsm_resume]: the coordinator is back
 *   PLACING -> FORMING [form_generation]: the store took a file
 *   FORMING -> RUNNING [fsm_enter_running]: all ranks are ready
 *   RUNNING -> SAVING [fsm_enter_running]: it was to stop or pause, and hasn't saved yet
 *   RUNNING -> SAVING [find_or_open]: the last save begins
 *   RUNNING -> SAVING [ask_to_leave]: pause, stop, drain
 *   RUNNING -> SAVING [fsm_watch]: its time is over
 *   RUNNING -> SAVING [fsm_end_ranks]: all finished, kill, drain
 *   PLACING, FORMING, RUNNING, SAVING
 *       -> RECOVERING [fsm_end_ranks]: a failure: all workers are ended
 *   PLACING, FORMING, RUNNING, SAVING -> RECOVERING [park]: a failure, or a change: workers go on
 *   FORMING, SAVING -> RECOVERING [close_generation]: it left without the last step
 *   PLACING, FORMING, RUNNING, SAVING, QUEUED, RECOVERING, PAUSED -> QUEUED [fsm_enter_idle]: drain
 *   PLACING, FORMING, RUNNING, SAVING, QUEUED, RECOVERING, PAUSED -> PAUSED [fsm_enter_idle]: pause
 *   PLACING, FORMING, RUNNING, SAVING, QUEUED, RECOVERING, PAUSED
 *       -> SUCCEEDED [fsm_enter_idle]: the last step is saved
 *   PLACING, FORMING, RUNNING, SAVING, QUEUED, RECOVERING, PAUSED
 *       -> FAILED [fsm_enter_idle]: by its own fault
 *   PLACING, FORMING, RUNNING, SAVING, QUEUED, RECOVERING, PAUSED -> STOPPED [fsm_enter_idle]: stop
 *   PLACING, FORMING, RUNNING, SAVING, QUEUED, RECOVERING, PAUSED -> KILLED [fsm_enter_idle]: kill
 *   PAUSED, STOPPED -> QUEUED [ask_resume]: from its newest checkpoint
 *
 * Where a job is RECOVERING, and how far its generation is with ending, is what enum fsm_gen says.
 */
#pragma once

#include "server/fleet/exclusion.h"
#include "server/jobfsm/event.h"
#include "server/jobfsm/save_interval.h"
#include "server/recovery/recovery.h"

/*
 * Parts of a job's state, by subject. Members above a blank line are journalled; those below it
 * live as long as this process.
 */

/*
 * A generation that ends. Its trainers leave by themselves until hard_at; those that are left then
 * are ended. Normally a trainer leaves by exiting. If `parks` is set, ranks that are not to blame
 * leave by saying that they have parked, and stay alive: survivors_until is their time to find the
 * next generation.
 */
struct fsm_ending {
    enum fsm_state to; /* where the job goes when all have left; NONE: nothing ends */
    bool parks;

    int64_t hard_at;  /* trainers that are left then are ended; 0: they were */
    int64_t ended_at; /* FSM_ACT_END went out first */
    int64_t again_at;
    int64_t survivors_until; /* the generation has ended: workers kept from it go then */
};

/*
 * The state of a job's newest generation. It refines the job's state: RECOVERING is one of the last
 * four while the generation ends (`ending.to` is set), then GONE, SPARES or KEPT, as PLACING is.
 *
 * Moves, made from FSM_GEN_MOVES by tests/tidy/moves.py:
 *
 *   NONE -> GONE [fsm_on_placed]: its first one is to form
 *   GONE -> NONE [fsm_unplace]: its first one doesn't form yet
 *   GONE, SPARES, KEPT -> FORMING [form_generation]: the next one; its number rises
 *   FORMING -> TRAINING [fsm_enter_running]: all ranks are ready
 *   FORMING, TRAINING -> PARKING [park]: workers that aren't to blame go on
 *   PARKING -> PARKING_LATE [fsm_watch_ending]: some haven't parked in time: these are ended
 *   TRAINING -> LEAVING [fsm_end_ranks]: it has saved: workers leave by themselves
 *   LEAVING -> ENDING [fsm_watch_ending]: some haven't left in time: these are ended
 *   LEAVING, PARKING, PARKING_LATE, ENDING, SPARES, KEPT, FORMING, TRAINING
 *       -> ENDING [fsm_end_ranks]: all workers are ended
 *   LEAVING, PARKING, PARKING_LATE, ENDING
 *       -> KEPT [close_generation]: all have left; parked workers wait
 *   LEAVING, PARKING, PARKING_LATE, ENDING -> SPARES [close_generation]: all have left; spares wait
 *   LEAVING, PARKING, PARKING_LATE, ENDING
 *       -> GONE [close_generation]: all have left; another one is to form
 *   KEPT -> SPARES [fsm_rank_gone]: the last worker that waited went
 *   KEPT, SPARES -> GONE [fsm_rank_gone]: the last that waited went
 *   GONE -> SPARES [end_turn]: a spare was started
 *   LEAVING, PARKING, PARKING_LATE, ENDING, SPARES, KEPT, FORMING, TRAINING, GONE
 *       -> NONE [fsm_enter_idle]: no other one is to form
 */
enum fsm_gen {
    FSM_GEN_NONE,         /* QUEUED, PAUSED, or over: none is to form by itself, none is there */
    FSM_GEN_GONE,         /* it ended, or there was none; nobody waits for the next one */
    FSM_GEN_SPARES,       /* it ended; only spares wait for the next one */
    FSM_GEN_KEPT,         /* it ended; workers of it are parked, and wait for the next one */
    FSM_GEN_FORMING,      /* its workers start, join, and fill their state */
    FSM_GEN_TRAINING,     /* RUNNING, SAVING */
    FSM_GEN_LEAVING,      /* its workers leave by themselves, until ending.hard_at */
    FSM_GEN_PARKING,      /* workers that are not to blame park, until ending.hard_at */
    FSM_GEN_PARKING_LATE, /* some have not parked by then: these are ended, those stay */
    FSM_GEN_ENDING,       /* its workers are ended */
};

/* How often the job failed, and how often it may fail. */
struct fsm_budget {
    uint32_t failures;    /* failures since the last progress */
    uint32_t no_progress; /* generations in a row without progress */
    uint32_t own;         /* of those, that failed by what may be the job's own */
    uint32_t no_commit;   /* generations in a row without a commit */
    enum fsm_fault_kind kind;
    uint64_t step;
    char phase[FSM_PHASE_BYTES];
    uint32_t used; /* failures of that kind at that step or phase */
};

/* Steps that turned out not to be finite. */
struct fsm_numeric {
    bool seen; /* `step` is being computed once more */
    uint64_t step;
    char node[LIMIT_NAME];        /* the node whose lanes alone weren't finite; "": not known */
    uint64_t skip[FSM_SKIPS_MAX]; /* steps that are left out */
    uint32_t skip_count;
};

/* The state that this generation started from; generation 0: the seed. */
struct fsm_restore {
    uint64_t step;
    uint32_t generation;
    uint32_t memory_generation; /* not 0: `step` comes from copies in memory of that one */
    uint64_t memory_step;       /* the step of the copies; with `live` of those that are kept */
    uint32_t memory_size;       /* shares of those copies; 0, of an older version: as many as
                                 * ranks */
    uint32_t *holders;          /* [memory_size] ranks on whose nodes they lie; owned. NULL: there
                                   are as many as ranks, which have it (struct fsm_rank) */
    uint32_t memory_from;       /* copies of generations before it are not used any more */
    bool live;                  /* `step` is with ranks that are sources */
    bool decided;               /* this generation has chosen where it starts from */
};

/* Saves to come, and when one is due by time. */
struct fsm_due {
    struct fsm_announced announced[FSM_ANNOUNCED_MAX];
    uint64_t stay_step;        /* the newest exit that was taken back; 0: none, this generation */
    int64_t saved_wall;        /* the newest save began */
    int64_t cost_us, write_ms; /* of a checkpoint, moving averages; 0: none was measured */
    int64_t interval_ms;       /* every: auto; 0: not yet */

    bool moves;      /* a worker's node leaves: once it runs it saves, and goes elsewhere */
    uint32_t passes; /* announced steps in a row that a worker had passed */
    int64_t from;    /* the next save by time is counted from here */
    int64_t exit_at; /* the newest exit was announced; 0: none was, in this generation */
};

/* Saves that the store did not take. */
struct fsm_store_full {
    uint64_t refused;     /* saves for which the store had no room */
    uint32_t consecutive; /* of them in a row, up to now */
    char reason[LIMIT_REASON];

    bool unsaved;       /* the store fails saves; an event said so */
    bool late_reported; /* saves since the newest one came too early; an event said so */
};

/* Workers without a part in the generation (spares.c). */
struct fsm_spares {
    char token[72];  /* of their sessions: of no generation; "": there was none yet */
    uint32_t number; /* the next worker that isn't known by its rank gets it */

    uint32_t failures; /* in a row: that ended before they could take a seat */
    int64_t retry_at;  /* none is started before */
    int64_t again_at;  /* spares that are to go are ended again */
    int64_t ready_at;  /* the newest is ready since then */
    uint32_t moves;    /* rises when one takes a slot, or gives one back */
};

/* Errors found where two workers computed the same thing differently (handlers/divergence.c). */
struct fsm_audit {
    uint64_t good_step;  /* checkpoints of later steps, of generations up to this one, hold what was
                            computed wrongly */
    uint32_t generation; /* 0: there was none */
    uint32_t weight;     /* of disagreements in a row, up to FSM_WRONG_MAX */
    uint64_t found;      /* the last step where one of these was found */
    uint64_t sure;       /* an error in the state of that step would have been found */

    uint64_t passed; /* ranks computed the same up to that step */
    int64_t told_at; /* an event said so; 0: not yet */
};

/* How fast the workers are (handlers/load_balance.c). */
struct fsm_balance {
    bool by_speed; /* ranks have lanes of their own */

    bool due;             /* the generation parks for lanes to be dealt anew */
    int64_t window_at;    /* a window began; 0: none has */
    uint32_t worse;       /* windows in a row in which other shares would have been faster */
    uint64_t worse_from;  /* rank 0 had timed so many steps when the first of these began */
    int64_t moved_at;     /* lanes moved; 0: never */
    uint32_t slow;        /* windows in a row in which the same worker was slow */
    uint32_t slow_number; /* the number of that worker */
    bool held_up;         /* another worker in its place would gain enough */
    int64_t slow_at;      /* the first of its slow windows ended */
    uint64_t slow_from;   /* rank 0 had timed so many steps when that window began */
    uint64_t saved_from;  /* the worker goes after a checkpoint of that step; 0: not asked */
    int64_t replaced_at;  /* a slow worker was replaced; 0: never */
};

/* The accounts of a job's time. */
struct fsm_accounts {
    int64_t lost_ms[FSM_LOST_COUNT], train_ms;

    int64_t stall_us; /* below a millisecond, on its way to lost_ms */
    int64_t at;       /* up to when it is booked */
};

/* A generation whose program ended by itself before its last step, and the step with which it did.
 * Another generation may do otherwise. */
struct fsm_last {
    uint64_t step; /* 0: none did */
    uint32_t generation;
};

struct fsm {
    char id[16];
    struct fsm_config config;
    bool dirty; /* a journalled field changed since the caller cleared it */

    /* journalled */
    enum fsm_state state;
    struct fsm_ending ending;
    enum fsm_intent intent;
    uint32_t generation, restarts;
    uint32_t failures; /* failures that cost steps */
    uint64_t step_max; /* high-water mark of finished steps */
    uint64_t total_steps, steps_per_epoch;
    struct fsm_last last; /* of a program */
    uint64_t ran; /* bit i: generation - i was RUNNING: the pins of all its ranks were compared */
    struct fsm_restore restore;
    struct fsm_budget budget;
    struct fsm_fault cause;       /* of the generation's end, or of the wait */
    struct fsm_fault first_cause; /* since the last progress */
    bool progressed, committed;   /* by this generation */
    bool damage_suspected; /* the restored checkpoint is to be read before the next generation */
    bool uncounted;        /* the newest failure was the node's, and isn't counted */
    bool resizes;          /* another number of workers was asked for, and all start anew */
    uint32_t suspect_count;
    struct fsm_numeric numeric;
    struct exclusion_list exclusions;            /* nodes that it keeps away from, and why; owned */
    char suspects[FSM_SUSPECTS_MAX][LIMIT_NAME]; /* taken only where others have no room */
    uint32_t swept; /* leftovers of generations before this one were looked for in the store */
    /* The highest step for which this generation asked for a folder, and how many further tries
     * there were, of whatever step. Each has a number, and so a folder of its own. */
    uint32_t tried_again;
    uint64_t tried_step;
    struct fsm_due due;
    uint64_t state_bytes; /* of a checkpoint, raw; 0: not known yet */
    struct fsm_store_full store_full;
    struct fsm_accounts accounts;
    int64_t unstarted_ms;       /* of lost_ms: before it ran for the first time */
    struct recovery recovery;   /* the newest */
    uint32_t recoveries;        /* generations that were formed after another one */
    enum fsm_state since_state; /* journalled with what else changes; since_wall: since when */
    int64_t since_wall;
    int64_t submitted_wall, started_wall, ended_wall;
    char token[72];        /* of this generation */
    char token_before[72]; /* of the one before: its workers that are parked have it */
    char reason[LIMIT_REASON];
    char final_digest[33];
    char store_id[33]; /* the id of the store that has the checkpoints; "": not known yet */
    /*
     * [0, size): the ranks of the generation, or of the one that ended last; if the job never ran,
     * as many as it is to have. [size, count): spares, and places of some that are gone. There are
     * fsm_capacity at most; owned.
     */
    struct fsm_rank *ranks;
    uint32_t size, count; /* ranks; bytes are called `bytes` */
    struct fsm_spares spares;
    struct fsm_balance balance;
    struct fsm_audit audit;

    /* journalled in rows of their own */
    struct fsm_save saves[FSM_SAVES_MAX];
    struct fsm_ckpt *catalog; /* ascending by step, then generation; owned */
    size_t catalog_count, catalog_capacity;

    /* of this process's life */
    enum fsm_gen gen;          /* as the last move left it (moves.h) */
    struct recovery recovered; /* what FSM_ACT_RECOVERY journals */
    int64_t unbooked_ms;       /* nobody knows yet whether steps were repeated in that time */
    struct fsm_read_back read_back;
    struct fsm_copy *copies; /* offered to this generation; owned */
    size_t copy_count, copy_capacity;
    char token_next[72];  /* PLACING: of the generation that is to form */
    uint32_t sweep_asked; /* like swept, of a sweep that may be under way */
    bool sweep_failed;    /* the store is asked again after the next commit */
    bool probed;          /* the store took a file */
    bool probing;
    bool probe_failed;     /* the newest probe: retry_at is of the store */
    uint32_t damage_shard; /* damage_suspected: 1 + the only file that is disputed; 0: all are */
    uint32_t gone_count;   /* ranks below size that are gone */
    bool damage_waited;    /* the read that was asked for failed on the medium, here too */
    bool base_refused;     /* files of a save with a base didn't fit together: the next has none */
    bool mark_mismatch;    /* at the store's place is another store, or nothing */
    int64_t started_at;    /* of the generation's formation */
    int64_t ran_from;      /* the generation runs since then, as far as is known */
    int64_t awaits_saves_at; /* a planned change waits for them since then; 0: none does */
    int64_t awaits_asked_at; /* the caller asked last whether that change may begin */
    int64_t progress_at;
    int64_t stepped_at;         /* a rank of this generation finished a step; 0: none did */
    int64_t suspected_at;       /* FSM_ACT_SUSPECT; before progress_at: not in this standstill */
    int64_t probe_at;           /* of a rank stuck at the store: not before; 0: there is none */
    int64_t watched_at;         /* the rules of silence were looked at */
    int64_t grace_until;        /* nobody is judged lost before (restart of the coordinator) */
    int64_t retry_at;           /* RECOVERING, QUEUED: not before */
    int64_t window_until;       /* 0: no fault is being weighed */
    struct fsm_fault candidate; /* the best cause so far */
    uint64_t replay_until;      /* finished steps that are being repeated */
    int64_t step_at;            /* when step_max rose last */
    int64_t step_noted_at;      /* when it was looked at last for the time of steps; 0: never */
    uint64_t step_noted;        /* step_max at that time */
    double step_ms;             /* moving average; 0: unknown */
    double usual_step_ms;       /* like step_ms, but no single long stall counts in full */
    struct fsm_phase_times phase_times[FSM_PHASES_MAX];
};

/* ---- lifecycle ---- */

/*
 * A job that was just submitted: QUEUED. now, wall: as in an event.
 * Memory: ranks are allocated here.
 */
MUST_CHECK enum status fsm_init(struct fsm *m, const char *id, const struct fsm_config *config,
                                int64_t now, int64_t wall);
void fsm_release(struct fsm *m);

/*
 * Takes one event. Returns the verdict on what a user asked; ST_OK for everything else.
 * Errors: ST_REFUSED    not in this state; out is empty
 *         ST_NOT_FOUND  there is no such checkpoint; out is empty
 * After these nothing but the accounts of time has changed.
 */
MUST_CHECK enum status fsm_apply(struct fsm *m, const struct fsm_event *event,
                                 struct fsm_actions *out);
/* Excuses silence: the coordinator itself did not run for that long (stopped, starved), so nobody's
 * silence of that time counts. */
void fsm_excuse(struct fsm *m, int64_t ms);
/* Makes the time of grace after the coordinator's start longer by `ms`, as workers still come
 * back. */
void fsm_extend_grace(struct fsm *m, int64_t ms);
/* Returns when fsm_apply wants a tick at the latest; INT64_MAX: never. */
int64_t fsm_deadline(const struct fsm *m);

/*
 * Loads a job that the journal holds: fsm_init, fsm_decode (persist.h), its checkpoints and
 * its saves (state, step, generation, base), the reports of these. Then fsm_resume does again
 * what must be done again, and starts the time of grace.
 */
MUST_CHECK enum status fsm_add_ckpt(struct fsm *m, const struct fsm_ckpt *ckpt);
void fsm_load_save(struct fsm *m, const struct fsm_save *row);
void fsm_load_report(struct fsm *m, uint64_t step, uint32_t generation, uint32_t rank);
void fsm_resume(struct fsm *m, int64_t now, int64_t wall, struct fsm_actions *out);
/*
 * Called before fsm_resume where the journal is an older copy of what it was. There have been
 * generations that it doesn't know of, with trainers, copies and folders in the store. Their
 * numbers are left out: trainers of any of them are ended as of an old generation, and their
 * checkpoints not used.
 */
#define FSM_RESTORE_GAP 1000000 /* more generations than there were since any backup */
void fsm_restored(struct fsm *m);
/*
 * Kills a job that was not resumed, since nobody can tell what it is: it is KILLED at once, and its
 * trainers and saves are forgotten. An agent that still has one of them ends it, as of any job that
 * ended. by: as in struct fsm_event.
 */
void fsm_abandon(struct fsm *m, int64_t wall, const char *by, struct fsm_actions *out);

/* ---- questions ---- */

/* Returns the state of the job's newest generation: the one place that decides it. */
enum fsm_gen fsm_gen(const struct fsm *m);
const char *fsm_gen_name(enum fsm_gen gen);
/* True while the job's generation ends: LEAVING, PARKING, PARKING_LATE, ENDING. */
static inline bool fsm_ends(const struct fsm *m)
{
    return m->ending.to != FSM_NONE;
}
/* True if the worker is ended with its generation: it neither left nor parked in time. */
bool fsm_is_cut_short(const struct fsm *m, uint32_t rank);
/* True if the worker has nothing to do in its generation any more but to go: it may have no session
 * there. It is cut short, or is told to leave without a save. */
bool fsm_is_over(const struct fsm *m, uint32_t rank);
/* True if the generation has ended, and workers or spares wait for the next one: KEPT, SPARES. */
bool fsm_has_waiting(const struct fsm *m);
/* Returns the state of a worker: the one place that decides it. */
enum fsm_worker fsm_worker(const struct fsm_rank *rank);
/* Returns how many slots the job wants for the next generation: one for each worker that it lacks.
 * 0: the workers that are there go on, even if they are fewer than the job is to have. */
uint32_t fsm_vacant_ranks(const struct fsm *m);
/* Returns with how many of these slots a generation would form, too. */
uint32_t fsm_least(const struct fsm *m);
/* Returns how many stages the generation has; 1: no pipeline. */
static inline uint32_t fsm_stages(const struct fsm *m)
{
    return m->ranks[m->size - 1].stage + 1;
}
/* Returns the number of stages, too; out: the workers of each. */
uint32_t fsm_widths(const struct fsm *m, uint32_t out[LIMIT_STAGES]);
/* Returns how many workers the job has room for: ranks and spares. */
uint32_t fsm_capacity(const struct fsm *m);
/* True if the job wants a slot for one worker more, which has no part in the generation yet. */
bool fsm_wants_spare(const struct fsm *m, int64_t now);
/* True if the job wants such a slot, now or once its wait after a failed spare is over. */
bool fsm_wants_workers(const struct fsm *m);
/* True if ranks and spares together are fewer than the workers that the job is to have: such a slot
 * is not only for a spare. */
bool fsm_lacks_workers(const struct fsm *m);
/* Returns the worker below `end` that has that number and lives; FSM_ALL_RANKS: there is
 * none. */
uint32_t fsm_find_number(const struct fsm *m, uint32_t number, uint32_t end);
static inline bool fsm_is_spare(const struct fsm *m, uint32_t rank)
{
    return rank >= m->size && rank < m->count;
}
/* True if the job waits for slots: QUEUED, or RECOVERING and ready to go on. */
bool fsm_wants_slots(const struct fsm *m, int64_t now);
/* True if the rank holds its slot. */
bool fsm_holds_slot(const struct fsm *m, uint32_t rank);
/* True if the rank may have a process; FSM_ALL_RANKS: if any of them may. */
bool fsm_alive_rank(const struct fsm *m, uint32_t rank);
/* Returns the number of finished steps, as far as this process knows. */
uint64_t fsm_step_now(const struct fsm *m);
/* Returns what the generation's state comes from. */
enum recovery_kind fsm_restored_from(const struct fsm *m);
/* Returns how many shares the copies in memory have that the generation is restored from;
 * fsm_memory_holder: a rank on whose node one lies. */
uint32_t fsm_memory_size(const struct fsm *m);
uint32_t fsm_memory_holder(const struct fsm *m, uint32_t share);
/* Returns the part of the time since the job ran first, without pauses, in which steps were trained
 * that counted: 0..1, or NaN if it didn't run yet. docs/why.md */
double fsm_goodput(const struct fsm *m);
/* Returns "ok", "unsupervised", "degraded" or "recovering". */
const char *fsm_health(const struct fsm *m);

/* How much is still to be done for a job. */
enum fsm_work_left {
    FSM_BUSY, /* the job has not ended, or its saves may still commit */
    FSM_LEFT, /* the store was asked for something, or is to be after the next start */
    FSM_OVER, /* nothing, unless somebody asks */
};
enum fsm_work_left fsm_work_left_of(const struct fsm *m);

/* Returns the newest checkpoint that a generation may start from, or NULL. */
const struct fsm_ckpt *fsm_newest(const struct fsm *m);
/* Return the checkpoint, or the save, of that step and generation, or NULL. */
const struct fsm_ckpt *fsm_find_ckpt(const struct fsm *m, uint64_t step, uint32_t generation);
const struct fsm_save *fsm_find_save(const struct fsm *m, uint64_t step, uint32_t generation);
/* Returns the try of the save that the folder of a checkpoint, or of a save, is named after. */
uint32_t fsm_folder_try(const struct fsm *m, uint64_t step, uint32_t generation);
/* Returns how many bytes a save will take at most, as far as is known; 0: nothing is known. full:
 * a save without differences. */
uint64_t fsm_expected_bytes(const struct fsm *m, bool full);
/* A save that somebody waits for. */
struct fsm_awaited {
    uint64_t step;       /* a checkpoint of this step or a later one serves */
    uint32_t generation; /* the workers that are to save it; 0: whatever there is serves */
    uint64_t refused;    /* m->room.refused when it was asked for */
};
enum fsm_outcome {
    FSM_OUTCOME_OPEN,    /* asked again after the next turn */
    FSM_OUTCOME_SAVED,   /* fsm_saved is it */
    FSM_OUTCOME_REFUSED, /* the store had no room (m->room.reason); no other save comes */
    FSM_OUTCOME_ENDED,   /* the workers ended before (m->reason) */
};
/* Describes the save that is asked for now, before the FSM_EV_SAVE that starts it. If the job
 * is idle, any checkpoint serves. */
struct fsm_awaited fsm_await_save(const struct fsm *m);
enum fsm_outcome fsm_save_outcome(const struct fsm *m, const struct fsm_awaited *awaited);
/* Returns the first checkpoint that serves, or where any does, the newest; NULL: there is none. */
const struct fsm_ckpt *fsm_saved(const struct fsm *m, const struct fsm_awaited *awaited);

/* Returns the time between two saves; 0: saves are not taken by time. */
int64_t fsm_interval_ms(const struct fsm *m);
/* Returns the facts that `every: auto` goes by. */
struct interval_facts fsm_interval_facts(const struct fsm *m);

/* Returns the rank that reads a shard file back. */
uint32_t fsm_reader_of(const struct fsm *m, uint32_t shard);
/* Returns whether a read-back is under way (m->read_back); out: bytes that the ranks have read, and
 * bytes that the checkpoint has. */
bool fsm_reading(const struct fsm *m, uint64_t *out_read, uint64_t *out_bytes);
/* Returns how long the ranks are to take for reading a checkpoint back; 0: no longer than it
 * takes. */
int64_t fsm_spread_ms(const struct fsm *m, const struct fsm_ckpt *ckpt);

/* Books time that training steps waited for checkpoints or copies. */
void fsm_note_stall(struct fsm *m, int64_t us);
