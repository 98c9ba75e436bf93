/*
 * Members of the session's state machine (fsm.h), and what its files share.
 *
 * A save, from the step thread's call to the coordinator's decision. FREE is a record without one.
 *
 *     FREE      -> COPYING    [session_fsm_save_begin]
 *     COPYING   -> BEGUN      [session_fsm_save_copied]   the copy is complete; SaveBegin is said
 *     COPYING   -> FREE       [session_fsm_save_copied]   the copy failed
 *     FREE      -> BEGUN      [session_fsm_save_again]     of a copy that is complete
 *     BEGUN     -> WRITING    [session_order_folder]       the saver writes the shard file there
 *     WRITING   -> REPORTING  [session_fsm_save_written]  SaveReport is said, until SaveDone
 *     REPORTING -> FREE       [session_order_done]         committed; so from any state in which
 *                                                          nobody copies or writes
 *
 * What came to nothing:
 *
 *     BEGUN     -> FREE       [session_order_folder]       an empty path: not wanted
 *     BEGUN     -> FAILED     [session_fsm_save_begin]    a newer save takes the copy file, for no
 *                                                          folder can come (invariant 5); FREE if
 *                                                          SaveBegin was never said
 *     WRITING   -> FAILED     [session_fsm_save_begin]    the last save takes the copy file of one
 *                                                          that only waits for the saver
 *     FREE      -> FAILED     [session_fsm_save_late]     there was no copy file for it
 *     WRITING   -> FAILED     [session_fsm_save_failed]   SaveFailed is said, with the reason
 *     FAILED    -> FREE       [session_fsm_tick]          no answer within SESSION_FORGET_MS; or
 *                                                          [save_forget, save_vacant] for another
 *
 * Dropped, that is SaveDone without "committed". The shard file goes, and that is said:
 *
 *     BEGUN     -> FREE       [session_order_done]
 *     WRITING   -> REMOVED    [session_order_done]         if the saver has not taken it; else when
 *                                                          the saver is through with it:
 *     WRITING   -> REMOVING   [session_fsm_save_written]
 *     WRITING   -> REMOVED    [session_fsm_save_failed]   REMOVING if the file may be left
 *     REPORTING -> REMOVING   [session_order_done]
 *     FAILED    -> REMOVING   [session_order_done]         REMOVED or FREE if the file is gone
 *     FREE      -> REMOVED    [session_order_folder]       of a save that nobody here knows
 *     REMOVING  -> REMOVED    [session_fsm_save_removed]  SaveFailed is said: "removed"
 *     REMOVED   -> FREE       [session_sent_save]
 *
 * Parking gives up all, and nothing is said of it: any state -> FREE [session_saves_give_up]; what
 * is COPYING or taken by the saver, once that is through: [session_fsm_save_copied],
 * [session_fsm_save_written], [session_fsm_save_failed], [session_fsm_save_removed].
 *
 * Invariants
 *  1. At most one save is COPYING. A save holds the copy file with its snapshot from then until it
 *     is written or given up; no more than saves_max hold one.
 *  2. Whatever a message in session_out borrows (a report, pins, the job, a round) is changed or
 *     freed only by session_fsm_order and session_fsm_release, that is by the thread that sends.
 *  3. A save is begun at the coordinator only once no earlier one is BEGUN, WRITING or REMOVING:
 *     the coordinator takes it that a rank speaks of one save after the other.
 *  4. SaveFailed is said once per connection, and never after the same step was begun anew: that
 *     would end the new try.
 *  5. What was begun is not given up for a newer save while it can still be written: ranks whose
 *     stores are slow in different ways would never agree on a step. Instead the newer one is late,
 *     unless it is the last.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/training.pb-c.h"
#include "checkpoint/checkpoint.h"
#include "common/limits.h"
#include "common/reason.h"
#include "common/rendezvous.h"
#include "common/status.h"
#include "session/readback/readback.h"
#include "session/session.h"

#define SESSION_SAVES_MAX     8
#define SESSION_ANNOUNCED_MAX 8
#define SESSION_ROWS_PER_SEND 64
#define SESSION_PHASES_MAX    8
#define SESSION_BLAMED_MAX    16

/* Longest time between two progress reports, unless the plan sets it. Reports of changes are at
 * least half of it apart. */
#define SESSION_HEARTBEAT_MS     1000
#define SESSION_HEARTBEAT_MAX_MS 60000

#define SESSION_ROWS_MS     250   /* metric rows wait so long to be sent together */
#define SESSION_READ_MS     1000  /* between two reports of how far reading back is */
#define SESSION_REPEAT_MS   5000  /* SaveBegin and SaveReport are said again without an answer */
#define SESSION_FORGET_MS   10000 /* SaveFailed needs no answer any more */
#define SESSION_PATIENCE_MS 1000  /* the last save waits for a copy file, then another gives way */
#define SESSION_RUSH_MS     100   /* saves due within it wait for each other: no store is slow */
#define SESSION_FOLDER_MS   5000  /* a coordinator that is there has made a folder by then */

struct session_progress {
    uint64_t step;
    const char *phase; /* static text */
    uint64_t counter;
    uint64_t saving; /* rises with what the saver gets done at the store */
    /* begun and ended together: odd within one */
    uint64_t collectives, exchanges;
    const char *collective; /* name of the newest, static text; NULL: these aren't told */
};

/* Time that this rank needed for its share of the lanes, over all steps of this session. */
struct session_timed {
    uint32_t lanes; /* of each of these steps; 0: it isn't told */
    uint64_t steps, us;
};

/* Bytes exchanged with other ranks in this generation. */
struct session_traffic {
    bool known;
    uint64_t sent_bytes, received_bytes;
};

/* ---- what is remembered ---- */

/* Transitions stand at the top. */
enum session_save_state {
    SESSION_SAVE_FREE,
    SESSION_SAVE_COPYING,
    SESSION_SAVE_BEGUN,
    SESSION_SAVE_WRITING,
    SESSION_SAVE_REPORTING,
    SESSION_SAVE_FAILED,
    SESSION_SAVE_REMOVING,
    SESSION_SAVE_REMOVED,
};

struct session_save_record {
    enum session_save_state state;
    uint64_t step;
    uint64_t order;        /* in which saves were begun: the newest is highest */
    bool said;             /* this state's message was sent on this connection */
    bool said_begin;       /* some message of it was ever said: the coordinator may know of it */
    bool cancelled;        /* WRITING: SaveDone false came */
    bool taken;            /* WRITING, REMOVING: the saver works on it */
    bool full;             /* FAILED: the store has no room */
    bool removed;          /* FAILED: no shard file is left */
    int64_t repeat_ms;     /* when to say it again */
    int64_t said_begin_ms; /* when SaveBegin was first said: a folder is expected from then on */
    int file;              /* COPYING, BEGUN, WRITING: the copy file with its snapshot */
    uint64_t stall_us;     /* the step thread waited for it */
    char dir[LIMIT_PATH];
    char base_dir[LIMIT_PATH];     /* of the checkpoint to write differences to; "": none */
    struct reason why;             /* FAILED */
    Cairn__V1__SaveReport *report; /* owned */
};

/* One copy file and its contents. */
struct session_file_record {
    uint64_t step;
    bool complete; /* the copy of that step can be read */
    bool busy;     /* the file is being written */
    int kept;      /* how many readers want it to stay (session_keep) */
};

/*
 * A save that the coordinator announced for a step (order SaveAt), beside the regular ones.
 *
 *     NONE   -> AHEAD   [order_save_at]
 *     AHEAD  -> TAKEN   [session_fsm_due]      the step came: its save is due
 *     AHEAD  -> PASSED  [session_fsm_due]      this rank is beyond the step already, and says so;
 *                       [session_fsm_ready]    the same of a step up to the restored one
 *     TAKEN  -> PASSED  [order_save_at]         announced again, now to exit after it: too late
 *     TAKEN  -> NONE    [session_order_done]    the save is decided; PASSED -> NONE, too, once said
 *     any    -> NONE    [order_stay]            taken back, for another rank had passed it
 *
 * A rank that took one to exit after it waits for the commit (session_settle). Where another rank
 * has passed the step, there is none: the coordinator takes the exit back, for all ranks, and
 * announces a later one; until then this rank trains on.
 */
enum session_announced_state {
    SESSION_ANNOUNCED_NONE,
    SESSION_ANNOUNCED_AHEAD,
    SESSION_ANNOUNCED_TAKEN,
    SESSION_ANNOUNCED_PASSED,
};

struct session_announced {
    enum session_announced_state state;
    uint64_t step;
    uint64_t at; /* PASSED: the step that this rank had reached */
    bool exits;  /* the process is to end after that save */
    bool said;
};

/*
 * A round of the generation's ranks (common/rendezvous.h). What this rank brings is said on every
 * new connection, for as long as the generation lives: the coordinator keeps it in memory only, and
 * one that was restarted needs it for the ranks that have no answer yet.
 */
struct session_rendezvous_round {
    char name[RENDEZVOUS_NAME]; /* "": this record is free */
    bool said;                  /* on this connection */
    bool answered;
    uint32_t ranks;
    size_t common_size, item_size;
    uint8_t common[RENDEZVOUS_COMMON_MAX];
    uint8_t *items;                  /* owned; ranks · item_size bytes */
    Cairn__V1__TrainerOrder *answer; /* owned; its body is RendezvousResult */
};

struct session_fault_record {
    bool known, said, said_ever;
    bool of_node; /* what failed is this node's, not the job's */
    bool outside; /* the cause is outside the job */
    bool stays;   /* this process can go on */
    Cairn__V1__FaultKind kind;
    uint32_t shard; /* of a damaged checkpoint: 1 + its file; 0: not known */
    uint64_t good_step;
    struct reason why;
    uint32_t ranks[SESSION_BLAMED_MAX];
    size_t rank_count;
    uint64_t step;
    char phase[32];
};

/* SaveWanted is said once per connection: until a save was committed, or, of a process that is to
 * leave, until it ends. */
struct session_wanted_record {
    bool known, said, leaves;
    uint64_t grace_ms;
    char reason[128];
};

/* A checkpoint that this rank reads back: what was asked, and what there is to say about it. */
struct session_read_record {
    bool fresh; /* the order was not yet handed to the reading thread */
    bool known, said;
    int64_t said_ms;
    struct readback_order order;
    struct readback_news news;
};

/*
 * Leaving the generation with the process, its model and, if complete, its state. Saves, rounds
 * and reads of the generation are given up, and nothing of them is said any more; rows that were
 * not acknowledged are, before Parked.
 *
 *     NONE      -> ASKED      [session_order_park]     as over for the step thread, but for what
 *                                                      follows; a fault is still said
 *     NONE      -> ASKED      [order_assignment]       of a spare: it has no part in a generation,
 *                                                      nobody asks it; Ready is still said
 *     ASKED     -> PARKED     [session_fsm_parked]    Parked is said, by the hello of each later
 *                                                      connection, too; the fault is forgotten
 *     PARKED    -> REGROUPED  [session_order_regroup]  handed out by session_fsm_regrouped
 *
 * Park again: Parked is said again, nothing else changes. Regroup again: the higher generation
 * counts. Regroup before Parked, and Plan after Park, change nothing. Over wins over all.
 */
enum session_park_state {
    SESSION_PARK_NONE,
    SESSION_PARK_ASKED,
    SESSION_PARK_PARKED,
    SESSION_PARK_REGROUPED,
};

struct session_park_record {
    enum session_park_state state;
    struct reason reason;         /* of the order */
    bool of_hang;                 /* the generation ends as somebody hangs */
    struct session_parked parked; /* from PARKED on */
    bool said;                    /* Parked, on this connection */
    uint32_t generation, number;  /* REGROUPED: to go on as */
    char token[SESSION_TOKEN];
};

struct session_row_record {
    struct session_row row;
    int64_t wall_ms;
};

struct session_fsm {
    const char *job;                  /* borrowed */
    uint32_t generation, number, pid; /* number: the worker's, of its process for life */
    uint32_t rank;                    /* in the generation; once it is assigned */

    bool up, ever_up, hello_said;
    bool over;
    int64_t down_since_ms;
    char *pins;                    /* for hello; owned; NULL: hello is not yet to be said */
    Cairn__V1__MemoryCopy *copies; /* for hello; owned, as is the list of pointers to them */
    Cairn__V1__MemoryCopy **copy_list;
    size_t copy_count;
    struct reason over_reason;
    struct session_park_record park;
    struct session_parked offered; /* state that this process kept of an earlier generation */

    Cairn__V1__TrainerOrder *assigned; /* the order Plan; owned; NULL until it came */

    bool offers_state; /* hello says what is `offered` */
    bool ready_known, ready_said;
    struct session_ready ready; /* its pins are ready_pins, its reason is memory_reason */
    uint64_t planned_steps;     /* the total that was said; ready.total_steps is last_step then */
    uint64_t last_step;         /* the program ends with it, before that; 0: not said */
    struct reason last_reason;
    char *ready_pins; /* owned */
    struct reason memory_reason;
    bool copies_alone; /* a copy file could not be made on the node: memory_reason has it by now */
    uint64_t memory_bytes; /* bytes that copy files take */

    struct session_traffic traffic; /* said with progress, as are the two that follow: */
    struct session_timed timed;     /* and the newest step that was audited: */
    uint64_t audited;
    struct session_progress progress_said;
    int64_t progress_ms;

    /* A ring of LIMIT_METRIC_ROWS, by number modulo its size; NULL unless rank 0, which is ready.
     * Rows from row_first on are not acknowledged, from row_said on not said; row_end is the next
     * free. */
    struct session_row_record *rows;
    uint64_t row_first, row_said, row_end;
    uint64_t row_known; /* the highest step that was acknowledged; 0: none */
    int64_t rows_ms;    /* when rows were last said */

    struct session_save_record saves[SESSION_SAVES_MAX];
    uint64_t save_order;
    struct session_file_record files[SESSION_FILES_MAX];
    int file_count, saves_max; /* one of each until session_fsm_files */
    int64_t begun_ms;          /* of the newest save; 0: none was begun */
    int64_t blocked_ms; /* since when the last save finds no copy file; 0: it does not wait */
    int64_t now_ms;     /* when the core last heard of the time */
    uint64_t committed_step;
    uint64_t due_step;   /* the step that session_due_at was last asked for, or that was reached */
    uint64_t asked_step; /* the former alone */
    struct session_announced announced[SESSION_ANNOUNCED_MAX];
    int64_t exits_ms; /* when an exit was first announced; 0: never */
    bool leaves;      /* an exit was due at due_step */
    bool stays;       /* that exit was taken back */

    struct session_rendezvous_round rounds[RENDEZVOUS_ROUNDS];

    struct session_wanted_record wanted;
    struct session_read_record read;
    struct session_fault_record fault;
    bool finished, finished_said, finished_said_ever;
    uint64_t finished_step;

    uint64_t last_words_version; /* rises with every change of what they would say */
};

/* True if the step thread has nothing left to do in the generation: it is over, or this rank is to
 * park or is a spare. Calls that begin something then return ST_STALE, and nothing is due. */
static inline bool session_fsm_ended(const struct session_fsm *fsm)
{
    return fsm->over || fsm->park.state != SESSION_PARK_NONE;
}

/* True if the plan is that of a spare. */
static inline bool session_fsm_is_spare(const struct session_fsm *fsm)
{
    return fsm->assigned != NULL && fsm->assigned->plan->spare;
}

/* True if Park was ordered or this rank is a spare, and the generation isn't over. */
static inline bool session_fsm_parks(const struct session_fsm *fsm)
{
    return !fsm->over && fsm->park.state != SESSION_PARK_NONE;
}

/* ---- a message, with room for what it points to ---- */

enum session_out_kind {
    SESSION_OUT_HELLO,
    SESSION_OUT_FAULT,
    SESSION_OUT_PARKED,
    SESSION_OUT_MEET,
    SESSION_OUT_READY,
    SESSION_OUT_ROWS,
    SESSION_OUT_SAVE,
    SESSION_OUT_PASSED,
    SESSION_OUT_WANTED,
    SESSION_OUT_READ,
    SESSION_OUT_FINISHED,
    SESSION_OUT_PROGRESS,
};

struct session_out {
    Cairn__V1__TrainerMessage message; /* valid until the next session_fsm_next */
    enum session_out_kind kind;
    int index;                        /* SAVE, PASSED, JOIN: of the record that it is about */
    uint64_t id;                      /* SAVE: its order; PASSED: its step */
    int state;                        /* SAVE: the save's */
    uint64_t through;                 /* ROWS: all rows before this one are in it */
    struct session_progress progress; /* PROGRESS: what it says */

    Cairn__V1__TrainerHello hello;
    Cairn__V1__Parked parked; /* of hello, or alone */
    Cairn__V1__Ready ready;
    Cairn__V1__Progress progress_message;
    Cairn__V1__Traffic traffic; /* of it */
    Cairn__V1__MetricRows rows;
    Cairn__V1__RendezvousJoin join;
    Cairn__V1__SaveBegin save_begin;
    Cairn__V1__SaveFailed save_failed;
    Cairn__V1__Fault fault;
    Cairn__V1__SavePassed passed;
    Cairn__V1__SaveWanted wanted;
    Cairn__V1__Finished finished;
    Cairn__V1__ReadBackState read;

    struct reason text;
    char phase_text[32];
    uint32_t ranks[SESSION_BLAMED_MAX];
    Cairn__V1__MetricRow row[SESSION_ROWS_PER_SEND];
    Cairn__V1__MetricRow *row_list[SESSION_ROWS_PER_SEND];
    Cairn__V1__Phase phase[SESSION_ROWS_PER_SEND][SESSION_PHASES_MAX];
    Cairn__V1__Phase *phase_list[SESSION_ROWS_PER_SEND][SESSION_PHASES_MAX];
    Cairn__V1__Eval eval[SESSION_ROWS_PER_SEND];
};

/* ---- between the files of the core ---- */

/* Whether the save holds a copy file. */
bool session_save_holds(const struct session_save_record *save);
bool session_out_save(const struct session_fsm *fsm, int64_t now_ms, struct session_out *out);
void session_sent_save(struct session_fsm *fsm, const struct session_out *out, int64_t now_ms);
void session_order_folder(struct session_fsm *fsm, const Cairn__V1__SaveFolder *folder);
void session_order_done(struct session_fsm *fsm, const Cairn__V1__SaveDone *done);
void session_saves_link_up(struct session_fsm *fsm);
/* Gives up all saves; a copy or write that a thread has begun ends its save when it ends. */
void session_saves_give_up(struct session_fsm *fsm);
void session_order_park(struct session_fsm *fsm, const Cairn__V1__Park *park);
void session_order_regroup(struct session_fsm *fsm, const Cairn__V1__Regroup *regroup);
bool session_out_parked(const struct session_fsm *fsm, struct session_out *out);
/* Fills in the state that this process has, for hello or Parked; false: there is nothing to say. */
bool session_fill_parked(const struct session_fsm *fsm, Cairn__V1__Parked *out);
