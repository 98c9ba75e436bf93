/*
 * The trainer's side of the Training protocol as a pure state machine: orders, local calls and the
 * time go in, messages come out. No thread, clock, socket or file in it; the caller holds a lock.
 *
 * Messages are pulled: session_core_next fills in the one to send now, session_core_sent says that
 * it was taken. What was not is offered again; what needs an answer is offered again after every
 * reconnection until the answer came.
 *
 * A save (one of SESSION_SAVES_MAX that are remembered):
 *
 *   FREE ─begin─▶ COPYING ─copied─▶ BEGUN ─SaveFolder─▶ WRITING ─written─▶ REPORTING
 *   REPORTING ─SaveAck─▶ ACKED
 *   COPYING ─copy failed─▶ FREE
 *   BEGUN ─SaveFolder ""─▶ FREE
 *   BEGUN ─a newer begin, while the link is down or no folder came for SESSION_FOLDER_MS─▶ FAILED
 *       (superseded; FREE if it was never said); else, without a copy file, the newer one is late:
 *   FREE ─session_core_save_late─▶ FAILED
 *   WRITING ─failed─▶ FAILED ─SaveDone─▶ FREE
 *   REPORTING, ACKED ─SaveDone true─▶ FREE
 *   WRITING (when the writer is done), REPORTING, ACKED ─SaveDone false─▶ REMOVING
 *   REMOVING ─unlinked─▶ REMOVED ─said─▶ FREE
 *
 * Invariants
 *  1. At most one save is COPYING. A save holds the copy file with its snapshot from then until it
 *     is written or given up; no more than saves_max hold one.
 *  2. Whatever a message in session_out borrows (a report, pins, the job) is changed or freed only
 *     by session_core_order and session_core_release, that is by the thread that sends.
 *  3. A save is begun at the coordinator, who takes it that a rank speaks of one after the other,
 *     once no earlier one is BEGUN, WRITING or REMOVING.
 *  4. SaveFailed is said once per connection and never after the same step was begun anew: it would
 *     end the new try.
 *  5. What was begun is not given up for a newer save while it can still be written: ranks whose
 *     stores are slow in different ways would never agree on a step. The newer one is late, but
 *     for the last.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/training.pb-c.h"
#include "checkpoint/checkpoint.h"
#include "common/limits.h"
#include "common/status.h"
#include "session/session.h"

#define SESSION_SAVES_MAX     8
#define SESSION_ANNOUNCED_MAX 8
#define SESSION_KV_MAX        32
#define SESSION_ROWS_PER_SEND 64
#define SESSION_PHASES_MAX    8
#define SESSION_BLAMED_MAX    16

/* Units: milliseconds. */
#define SESSION_PROGRESS_MS  500   /* at least between two reports of progress */
#define SESSION_HEARTBEAT_MS 1000  /* at most */
#define SESSION_ROWS_MS      250   /* rows wait for company */
#define SESSION_REPEAT_MS    5000  /* SaveBegin, SaveReport without an answer */
#define SESSION_FORGET_MS    10000 /* SaveFailed without an answer */
#define SESSION_PATIENCE_MS  1000  /* the last save waits for a copy file, then one gives way */
#define SESSION_RUSH_MS      100 /* saves due within it wait for each other: the store isn't slow */
#define SESSION_FOLDER_MS    5000 /* a coordinator that is there makes a folder */

struct session_progress {
    uint64_t step;
    const char *phase; /* static text */
    uint64_t counter;
};

/* ---- what is remembered ---- */

enum session_save_state {
    SESSION_SAVE_FREE,
    SESSION_SAVE_COPYING,
    SESSION_SAVE_BEGUN,
    SESSION_SAVE_WRITING,
    SESSION_SAVE_REPORTING,
    SESSION_SAVE_ACKED,
    SESSION_SAVE_FAILED,
    SESSION_SAVE_REMOVING,
    SESSION_SAVE_REMOVED,
};

struct session_save_record {
    enum session_save_state state;
    uint64_t step;
    uint64_t order;  /* of begin: the newest is highest */
    bool said;       /* on this connection, in this state */
    bool said_begin; /* ever: the coordinator may know of it */
    bool cancelled;  /* WRITING: SaveDone false came */
    bool taken;      /* WRITING, REMOVING: the saver works on it */
    bool full, removed;
    int64_t repeat_ms; /* when to say it again */
    int64_t since_ms;  /* of begin, then of saying so */
    int file;          /* COPYING, BEGUN, WRITING: the copy file with its snapshot */
    uint64_t stall_us; /* the step thread waited for it */
    char dir[LIMIT_PATH];
    char base_dir[LIMIT_PATH]; /* of the checkpoint to write differences to; "": none */
    char message[LIMIT_REASON];
    Cairn__V1__SaveReport *report; /* owned */
};

/* One copy file, and what is in it. */
struct session_file_record {
    uint64_t step;
    bool whole, busy; /* busy: being copied into */
    int kept;         /* by so many who read it */
};

enum session_announced_state {
    SESSION_ANNOUNCED_NONE,
    SESSION_ANNOUNCED_AHEAD,
    SESSION_ANNOUNCED_TAKEN,
    SESSION_ANNOUNCED_PASSED
};

struct session_announced {
    enum session_announced_state state;
    uint64_t step, at;
    bool exits, said;
};

enum session_kv_state { SESSION_KV_FREE, SESSION_KV_QUEUED, SESSION_KV_SENT, SESSION_KV_DONE };

/* One call of the map; the memory that it points to is the caller's until session_core_kv_end. */
struct session_kv_call {
    enum session_kv_state state;
    uint64_t id;
    Cairn__V1__KvRequest__Op op;
    char key[LIMIT_KV_KEY];
    const void *value;
    size_t value_size;
    int64_t delta, timeout_ms;
    void *out;
    size_t capacity;
    enum status status; /* from here: the answer */
    size_t out_size;
    int64_t sum;
};

struct session_fault_record {
    bool known, said, said_ever;
    Cairn__V1__FaultKind kind;
    char message[LIMIT_REASON];
    uint32_t ranks[SESSION_BLAMED_MAX];
    size_t rank_count;
    uint64_t step;
    char phase[32];
};

/* Said once per connection until a save was committed; of one that leaves, until the end. */
struct session_wanted_record {
    bool known, said, leaves;
    uint64_t grace_ms;
    char reason[128];
};

struct session_row_record {
    struct session_row row;
    int64_t wall_ms;
};

struct session_core {
    const char *job; /* borrowed */
    uint32_t generation, rank, pid;

    bool up, hello_said;
    bool ever_up;
    int64_t down_since_ms;
    char *pins;                    /* of hello; owned; NULL: not yet to be said */
    Cairn__V1__MemoryCopy *copies; /* of hello; owned, as the list of pointers to them */
    Cairn__V1__MemoryCopy **copy_list;
    size_t copy_count;
    bool over;
    char over_reason[LIMIT_REASON];

    Cairn__V1__TrainerOrder *plan; /* the order with the assignment; owned; NULL until it came */

    bool ready_known, ready_said;
    struct session_ready ready; /* its pins are ready_pins */
    char *ready_pins;           /* owned */

    struct session_progress progress_said;
    int64_t progress_ms;

    struct session_row_record *rows;       /* ring of LIMIT_METRIC_ROWS; NULL unless rank 0 */
    uint64_t row_first, row_said, row_end; /* unacknowledged, next to say, next free */
    int64_t rows_ms;

    struct session_save_record saves[SESSION_SAVES_MAX];
    uint64_t save_order;
    struct session_file_record files[SESSION_FILES_MAX];
    int file_count, saves_max; /* one of each until session_core_files */
    int64_t begun_ms;          /* of the newest save; 0: none was begun */
    int64_t blocked_ms; /* since when the last save finds no copy file; 0: it does not wait */
    int64_t now_ms;     /* when the core last heard of the time */
    uint64_t committed_step;
    uint64_t due_step; /* the step that session_due_at was last asked for */
    struct session_announced announced[SESSION_ANNOUNCED_MAX];

    struct session_kv_call kv[SESSION_KV_MAX];
    uint64_t kv_id;

    struct session_wanted_record wanted;
    struct session_fault_record fault;
    bool finished, finished_said, finished_said_ever;
    uint64_t finished_step;

    uint64_t words_version; /* rises with every change of what last words say */
};

/* ---- a message, with room for what it points to ---- */

enum session_out_kind {
    SESSION_OUT_HELLO,
    SESSION_OUT_FAULT,
    SESSION_OUT_KV,
    SESSION_OUT_READY,
    SESSION_OUT_ROWS,
    SESSION_OUT_SAVE,
    SESSION_OUT_PASSED,
    SESSION_OUT_WANTED,
    SESSION_OUT_FINISHED,
    SESSION_OUT_PROGRESS,
};

struct session_out {
    Cairn__V1__TrainerMessage message; /* valid until the next session_core_next */
    enum session_out_kind kind;
    int index;        /* of the save, announced save or kv call that it is of */
    uint64_t id;      /* of the kv call; of a save: its order */
    int state;        /* of the save */
    uint64_t through; /* rows */
    struct session_progress progress;

    Cairn__V1__TrainerHello hello;
    Cairn__V1__Ready ready;
    Cairn__V1__Progress progress_message;
    Cairn__V1__MetricRows rows;
    Cairn__V1__KvRequest kv;
    Cairn__V1__SaveBegin save_begin;
    Cairn__V1__SaveFailed save_failed;
    Cairn__V1__Fault fault;
    Cairn__V1__SavePassed passed;
    Cairn__V1__SaveWanted wanted;
    Cairn__V1__Finished finished;

    char text[LIMIT_REASON];
    char phase_text[32];
    char key[LIMIT_KV_KEY];
    uint8_t value[LIMIT_KV_VALUE];
    uint32_t ranks[SESSION_BLAMED_MAX];
    Cairn__V1__MetricRow row[SESSION_ROWS_PER_SEND];
    Cairn__V1__MetricRow *row_list[SESSION_ROWS_PER_SEND];
    Cairn__V1__Phase phase[SESSION_ROWS_PER_SEND][SESSION_PHASES_MAX];
    Cairn__V1__Phase *phase_list[SESSION_ROWS_PER_SEND][SESSION_PHASES_MAX];
    Cairn__V1__Eval eval[SESSION_ROWS_PER_SEND];
};

/* ---- lifecycle, link ---- */

MUST_CHECK enum status session_core_init(struct session_core *core, const char *job,
                                         uint32_t generation, uint32_t rank, uint32_t pid,
                                         int64_t now_ms);
void session_core_release(struct session_core *core);

void session_core_link_up(struct session_core *core);
void session_core_link_down(struct session_core *core, int64_t now_ms);
/* The generation is over for this rank, for a reason that no order gave. */
void session_core_end(struct session_core *core, const char *reason);

/* The message to send now; false: none. The link is up. */
bool session_core_next(const struct session_core *core, const struct session_progress *progress,
                       int64_t now_ms, struct session_out *out);
void session_core_sent(struct session_core *core, const struct session_out *out, int64_t now_ms);
/* Takes ownership of order. */
void session_core_order(struct session_core *core, Cairn__V1__TrainerOrder *order, int64_t now_ms);

/* ---- local calls ---- */

/* What the hello offers; before session_core_hello. */
MUST_CHECK enum status session_core_offer(struct session_core *core,
                                          const struct session_copy *copies, size_t count);
MUST_CHECK enum status session_core_hello(struct session_core *core, const char *pins);
/* What the plan says, once it came. ST_INVALID: it makes no sense. */
MUST_CHECK enum status session_core_assignment(const struct session_core *core,
                                               struct session_assignment *out);
MUST_CHECK enum status session_core_ready(struct session_core *core,
                                          const struct session_ready *ready);
void session_core_row(struct session_core *core, const struct session_row *row, int64_t wall_ms);
void session_core_fault(struct session_core *core, const struct session_fault_record *fault);
void session_core_wanted(struct session_core *core, bool leaves, uint64_t grace_ms,
                         const char *reason);
void session_core_finished(struct session_core *core, uint64_t step);

MUST_CHECK enum status session_core_kv_begin(struct session_core *core,
                                             const struct session_kv_call *call, int *out_index);
void session_core_kv_end(struct session_core *core, int index);

/* ---- saves ---- */

enum session_due session_core_due(struct session_core *core, uint64_t step);
/* There are file_count copy files, of which saves may hold saves_max. Before the first save. */
void session_core_files(struct session_core *core, int file_count, int saves_max);
/* A copy file that no save needs, for a copy of that step: the one with the oldest copy.
 * ST_AGAIN: all are needed. */
MUST_CHECK enum status session_core_copy_begin(struct session_core *core, uint64_t step,
                                               int *out_file);
void session_core_copied(struct session_core *core, int file, bool ok);
/* The newest whole copy; -1: there is none. */
int session_core_newest(const struct session_core *core);
/* The whole copy of that step, or -1. */
int session_core_whole(const struct session_core *core, uint64_t step);
/*
 * last: nothing comes after it, so that it waits for a copy file as long as it takes.
 * Errors: ST_AGAIN    later
 *         ST_REFUSED  late: those before are under way (never of the last)
 *         ST_EXISTS   that step is written already
 */
MUST_CHECK enum status session_core_save_begin(struct session_core *core, uint64_t step, bool last,
                                               int *out_index);
/* That step's save is given up, and the coordinator is told. */
void session_core_save_late(struct session_core *core, uint64_t step);
/* ok false: the copy failed, there is no such save. */
void session_core_save_copied(struct session_core *core, int index, bool ok);
/* Something for the saver: WRITING (write the snapshot into dir) or REMOVING (unlink the file in
 * dir); -1: nothing. */
int session_core_saver_work(struct session_core *core);
/* Takes ownership of report. */
void session_core_save_written(struct session_core *core, int index, Cairn__V1__SaveReport *report);
/* why: for people; cut to LIMIT_REASON. */
void session_core_save_failed(struct session_core *core, int index, enum status st, const char *why,
                              bool removed);
void session_core_save_removed(struct session_core *core, int index);
/* A shard is being written or removed: whoever waits for that waits for the store. */
bool session_core_at_store(const struct session_core *core);
/* No save is under way; of one that gave way to a newer one no answer is waited for. */
bool session_core_settled(const struct session_core *core);

/* ---- messages (core_messages.c) ---- */

/* What the writer says of a shard, as a message; NULL: no memory. Freed as an unpacked one is. */
Cairn__V1__SaveReport *session_report_new(const struct ckpt_report *report, int64_t write_ms);
/* The last words, packed; *out: free(). */
MUST_CHECK enum status session_core_words(const struct session_core *core,
                                          const struct session_progress *progress, uint8_t **out,
                                          size_t *out_size);

/* ---- between the files of the core ---- */

/* Whether the save holds a copy file. */
bool session_save_holds(const struct session_save_record *save);
bool session_out_save(const struct session_core *core, int64_t now_ms, struct session_out *out);
void session_sent_save(struct session_core *core, const struct session_out *out, int64_t now_ms);
void session_order_folder(struct session_core *core, const Cairn__V1__SaveFolder *folder);
void session_order_ack(struct session_core *core, const Cairn__V1__SaveAck *ack, int64_t now_ms);
void session_order_done(struct session_core *core, const Cairn__V1__SaveDone *done);
void session_order_save_at(struct session_core *core, const Cairn__V1__SaveAt *save_at);
void session_saves_link_up(struct session_core *core);
void session_saves_tick(struct session_core *core, int64_t now_ms);
