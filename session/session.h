/*
 * A worker's end of the Training protocol: it joins a generation, finds its peers, reports progress
 * and metrics, saves, and says why it ended.
 *
 *     step thread ──calls below──▶ session ──link thread──▶ struct session_link ──▶ coordinator
 *                                     ├─────copier──▶ copy files (copies/copy_file.h)
 *                                     └─────saver───▶ shard files in the store (checkpoint)
 *
 * The step thread calls; three threads of the session talk, copy states and write shards. No call
 * below waits for the network, except where it says so. Nothing here knows kernels, collectives or
 * gRPC: what carries the messages is a link that the caller makes.
 *
 * A process outlives its generation where an order Park comes instead of Over: `park` is called by
 * the link thread, and from then on every call below behaves as if all were over. The step thread
 * unwinds, calls session_park and session_retire, and opens a session of the next generation.
 *
 * A spare (assignment.spare) is as one that parks from the start: after session_join it calls
 * session_set_warm and session_park, and nothing else of a generation.
 *
 * Losing the link ends nothing: the session opens it again every 0.1 to 1 s, says hello with
 * attached = true and repeats what was not answered. An Over order, or a refusal as stale,
 * calls `over` from the link thread: the generation is dead; abort communication and leave.
 *
 * Last words: a file (training.proto, LastWords), rewritten whenever what doesn't change with every
 * step changes: a fault, a save that is written and not yet committed, finished.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/v1/training.pb-c.h"
#include "checkpoint/checkpoint.h"
#include "common/clock.h"
#include "common/io.h"
#include "common/log.h"
#include "common/rendezvous.h"
#include "common/status.h"
#include "session/copies/copy_folder.h"
#include "session/memory/budget.h"
#include "session/memory/copy_interval.h"

struct session;

#define SESSION_TOKEN 128 /* bytes of a generation's token, with the NUL */

/* The state that a process keeps of a generation that it has left (message Parked). */
struct session_parked {
    uint64_t step;        /* finished */
    bool complete;        /* the process has its part of the state after that step: */
    uint32_t computed_by; /* complete: the generation that computed that step, or restored it */
    /* The part of the state that this process has: that of the ranks that own part `part` of
     * `parts`. 0, 0: the complete state. In a pipeline: the process's stage, and the number of
     * stages. */
    uint32_t part, parts;
};

/* The link that carries messages. All functions but interrupt are called by the link thread
 * only. */
struct session_link {
    void *self;
    enum status (*open)(void *self, int64_t timeout_ms); /* a new stream; ends the old one */
    /* Never waits. ST_FULL, ST_AGAIN: not taken, the same message comes again; other errors: the
     * link is lost. */
    enum status (*send)(void *self, const Cairn__V1__TrainerMessage *message);
    /* ST_TIMED_OUT: nothing came; ST_CLOSED: lost, open again; ST_STALE: refused for good. */
    enum status (*recv)(void *self, int64_t timeout_ms, Cairn__V1__TrainerOrder **out);
    /* Any thread: makes recv return soon, with ST_AGAIN or ST_TIMED_OUT. An interrupt that comes
     * while nothing is received makes the next recv return at once. */
    void (*interrupt)(void *self);
    /* Waits patience_ms at most until the coordinator has all that was sent. */
    void (*close)(void *self, int64_t patience_ms);
};

/* All pointers are borrowed for the session's life. */
struct session_options {
    const char *job;
    uint32_t generation;
    uint32_t number; /* of the worker: its process's, for life; its rank says the assignment */
    const struct session_link *link;
    const struct io *io;
    const struct clock *clock;
    const struct log *log;
    const char *last_words_path; /* NULL: none are written */
    const char
        *copies; /* folder of this job's copies on this node (copies/copy_folder.h); NULL: none */
    int64_t orphan_ms; /* after this time without a link the generation is over; 0: 10 minutes */
    void (*over)(void *arg, const char *reason); /* link thread; must not call the session */
    void *over_arg;
    /* Called by the link thread when an order Park comes, with over_arg: aborts communication.
     * NULL: Park is treated as Over. */
    void (*park)(void *arg, const char *reason);
    /* Counter of finished work of threads that outlive a generation; may be NULL. A change of it
     * counts as progress, as session_tick does. */
    const _Atomic uint64_t *ticks;
    /* The state that this process kept of an earlier generation; NULL: the process is new. Borrowed
     * until session_open returns. */
    const struct session_parked *kept;
};

/* One stage of a pipeline. */
struct session_stage {
    uint32_t workers;    /* ranks, those after the stage before */
    uint32_t first_node; /* 0, but of the first stage: cut where stages cost alike; so all are, or
                          * none */
};

/* The assignment of a rank in a generation (on the wire: message Plan). All pointers are borrowed
 * until session_close. */
struct session_assignment {
    char job[LIMIT_NAME];
    uint32_t generation, size;
    uint32_t rank;          /* of this worker in the generation; not its number */
    const uint32_t *shares; /* per rank: how many lanes it carries; of each stage they are all */
    uint32_t stage_count;   /* 0: there is one stage, the whole model; else 2 or more */
    struct session_stage stages[LIMIT_STAGES];
    const char *job_file; /* normalised YAML */
    const char *restore;  /* folder of the checkpoint to begin with, or "" */
    uint64_t restore_step;
    struct session_copy memory; /* the copies to begin with: generation, size, step; 0: none */
    const uint32_t *holders;    /* per share of memory: a rank on whose node it lies */
    /* Ascending ranks of this generation that have the state after live_step. The other ranks get
     * the state from them and load nothing. Count 0: none. */
    uint64_t live_step;
    const uint32_t *live_sources;
    size_t live_source_count;
    uint64_t metric_step; /* rows up to it are known to the coordinator; 0: not said */
    char *const *nodes;   /* per rank: where it runs; NULL (not with memory): unknown */
    const uint64_t *skip; /* steps not to train on */
    size_t skip_count;
    const char *host; /* address to bind for talking to the other ranks */
    bool data_known;  /* the job trained on its data before */
    /* This worker is a spare and has no part in this generation: rank, size, shares and nodes are
     * those of a rank that it may become in a later generation. */
    bool spare;
    const char *store_id; /* of the checkpoint store, as the coordinator sees it; "": unknown */
};

MUST_CHECK enum status session_open(const struct session_options *options, struct session **out);
/* Waits for a shard that is being written. NULL is fine. */
void session_close(struct session *session);

/* ---- from one generation to the next ---- */

struct session_regroup {
    uint32_t generation, number; /* the worker's, as before */
    char token[SESSION_TOKEN];
};

/* True if Park came or this process is a spare: the step thread must call session_park. */
bool session_parks(const struct session *session);
/* True if Park came, as somebody hangs: who knows where its own work stands says so by
 * session_fault. */
bool session_parks_by_hang(const struct session *session);
/*
 * For a step thread whose failure the other ranks will hear of, too: waits until the generation has
 * ended here, by Park or Over. Only time with a link counts for timeout_ms.
 * Errors: ST_TIMED_OUT
 */
MUST_CHECK enum status session_await_end(struct session *session, int64_t timeout_ms);
/*
 * Reports the state that was kept, and waits without a limit for the order to go on. Returns once
 * no thread of the session reads the state any more.
 * Errors: ST_STALE  over
 */
MUST_CHECK enum status session_park(struct session *session, const struct session_parked *kept,
                                    struct session_regroup *out);
/*
 * Ends a session that was parked, without waiting for the store: a thread waits for the shard that
 * is being written and frees the session, which says and leaves nothing any more. Its link may be
 * freed at once; its io, clock and log are borrowed until session_retired_join.
 */
struct session_retired;
MUST_CHECK enum status session_retire(struct session *session, struct session_retired **out);
/* True if that thread has ended, so that session_retired_join doesn't wait; true for NULL. */
bool session_retired_done(const struct session_retired *retired);
/* Waits for that thread, for as long as its store takes. NULL is fine. */
void session_retired_join(struct session_retired *retired);

/* Says hello and waits for the assignment; called once.
 * Errors: ST_STALE, ST_TIMED_OUT, ST_UNREACHABLE; ST_INVALID  the assignment makes no sense */
MUST_CHECK enum status session_join(struct session *session, const char *pins, int64_t timeout_ms,
                                    struct session_assignment *out);

/* Returns the generation's rendezvous, for comm; after session_join. Borrowed until close. */
const struct rendezvous *session_rendezvous(struct session *session);

/* Facts that are known once the state is loaded: for the coordinator, and for saving. */
struct session_ready {
    uint64_t total_steps, steps_per_epoch, parameters, state_bytes;
    uint64_t step;         /* the restored one */
    uint64_t save_every;   /* saves at multiples of it, and at total_steps; 0: only at the end */
    uint64_t memory_every; /* copies in memory at multiples of it; 0: only those of saves */
    const char *memory_reason; /* why there are none, or fewer; NULL: as the job says; copied */
    struct session_copy_cost copy_cost; /* measurements of the generation before */
    const char *pins;                   /* complete; copied */
    enum ckpt_level level;              /* of what is saved */
    uint32_t threads;                   /* encoder threads beside the saver */
    bool differs;                       /* saves may be differences to an earlier one */
    bool object;                        /* the store is S3 */
    bool peers; /* copies go to another node, by a thread that calls session_keep_newest */
    uint32_t peer_copies;       /* number of ranks whose copies come from other nodes */
    size_t peer_copy_bytes_max; /* as snapshot_bytes_max, of that rank of the job that has most */
    size_t snapshot_bytes_max;  /* most bytes that a snapshot of this rank copies */
    double step_flops;          /* operations of a step of the job; 0: not said */
    double peak_flops;       /* operations a second that this rank could do at most; 0: not known */
    size_t memory_bytes_max; /* for snapshots and encoders together (session_budget); 0: no bound */
    /* Copy files are filled by another process (session_snapshot, fill). Ranks may be in different
     * steps then, so what this generation was restored from stays until session_peers_complete. */
    bool shared;
};
/* Returns what `ready` asks of host memory. */
struct session_demand session_demand_of(const struct session_ready *ready);
/* ST_FULL: memory_bytes_max is below the least that session_budget says. */
MUST_CHECK enum status session_set_ready(struct session *session,
                                         const struct session_ready *ready);

/* Notes that the job ends with this step, before total_steps: it is the last one from now on, and
 * the coordinator hears of it. All ranks say so, once. ST_STALE: the generation is over. */
MUST_CHECK enum status session_last(struct session *session, uint64_t step, const char *reason);

/* Like session_set_ready, for a spare, which saves nothing: only totals, sizes and pins are used.
 * ST_STALE: over. */
MUST_CHECK enum status session_set_warm(struct session *session, const struct session_ready *ready);

/* Notes the step and phase of the step thread: stores into atomics, a few nanoseconds. phase is
 * static text. */
void session_mark(struct session *session, uint64_t step, const char *phase);
/* Notes the duration of a step, including the cost of its snapshot. */
void session_note_step(struct session *session, double step_ms);
/* Notes how many lanes this rank computed in a step, and the time that took without waiting for
 * other ranks. Step thread only. */
void session_note_lanes(struct session *session, uint32_t lanes, int64_t us);
/* Notes the bytes sent to and received from other ranks in this generation. Step thread only. */
void session_note_traffic(struct session *session, uint64_t sent_bytes, uint64_t received_bytes);
/* Notes the newest step up to which audits found that all ranks computed the same. Step thread
 * only. */
void session_note_audited(struct session *session, uint64_t step);
/* Returns the measured cost of copies and steps, which begins with that given to
 * session_set_ready. */
struct session_copy_cost session_copy_cost(struct session *session);
/* Sets the interval of copies in memory, which must be the same on all ranks. Only where there are
 * copies; `every` must not be 0. */
void session_set_memory_every(struct session *session, uint64_t every);
/* Notes that a collective of all ranks begins or has ended; a session begins outside of any. The
 * coordinator finds from it which rank keeps the others waiting. All ranks begin the same
 * collectives in the same order. Step thread only; stores into atomics. name is static text. */
void session_mark_collective(struct session *session, const char *name, bool inside);
/* Like session_mark_collective, for an exchange of the reduction; a single thread calls it. */
void session_mark_exchange(struct session *session, bool inside);
/* Counts one more unit of work (tape node, chunk, MiB). */
void session_tick(struct session *session);

struct session_row {
    uint64_t step;
    double epoch;
    float loss, lr, grad_norm;
    double samples_per_s, step_ms;
    struct {
        const char *name; /* static */
        double ms;
    } phase[8];
    int phase_count;
    int64_t wall_ms; /* when it was made; 0: now */
    bool has_eval;   /* an evaluation follows */
    double eval_loss, eval_accuracy;
    uint64_t eval_correct, eval_count;
};
/* Adds a row of metrics, on rank 0; the last LIMIT_METRIC_ROWS are kept until acknowledged. */
void session_add_row(struct session *session, const struct session_row *row);
/* Returns the step up to which the coordinator has acknowledged rows of this session; 0: none. */
uint64_t session_rows_known(struct session *session);

/* Where another process does the steps, or several do: what it and this one know of each other. */
struct session_followed {
    const struct session_followed *more; /* of the next process, borrowed likewise; NULL: none */
    const _Atomic uint64_t *reached;     /* its finished steps */
    /* A step that others were told is due, and this one hasn't asked about: next_due is no later.
     * NULL: there are no others. */
    const _Atomic uint64_t *owed;
    /* The first step after which something may be due; 0 once the generation has ended. Stored
     * before `reached` is loaded: who stores `reached` and then loads this sees what is due, or it
     * was too late for it, and the next step's session_due_at says so. */
    _Atomic uint64_t *next_due;
};
/* Keeps followed->next_due up to date from now on, and takes it that session_due_at would have been
 * called for every step up to *followed->reached, the highest of all. Borrowed until the next call;
 * NULL: ends it. */
void session_follow(struct session *session, const struct session_followed *followed);

enum session_due {
    SESSION_DUE_NOTHING,
    SESSION_DUE_COPY, /* a snapshot that is not saved */
    SESSION_DUE_SAVE,
    SESSION_DUE_SAVE_AND_EXIT,
};
/* Returns what is due after the finished step `step`. Also tells the coordinator of an announced
 * save for which this rank is too late. */
enum session_due session_due_at(struct session *session, uint64_t step);

/*
 * A snapshot of this rank's share of a state. A thread of the session copies it into a copy file,
 * beside what the step thread does next, with the hashes of its pieces. Copy files lie in the
 * folder `copies` and outlive this process (copies/copy_file.h).
 */
struct session_snapshot {
    /* The data of its buffers must live, and not change, before session_snapshot_wait has returned.
     * All else is copied at once. */
    const struct ckpt_state *state;
    bool saves; /* also the checkpoint of its step: the saver writes it to the store */
    bool last;  /* and the last of this process: it waits for the store */
    /* For a state on a device, else NULL: start is called at once, wait by the copier; after it the
     * buffers are the host's copies, and the device's may change. */
    enum status (*start)(void *arg);
    enum status (*wait)(void *arg);
    /* For a state in another process, else NULL: the copier calls it, and it waits until the file
     * has the data and the hashes of its pieces. It returns soon after the session has ended, or is
     * to be closed. out_stall_us: how long that process's steps waited for it. */
    enum status (*fill)(void *arg, uint64_t *out_stall_us);
    void *arg;
    int64_t patience_ms; /* begin waits so long, for whatever it is; 0: as long as it takes */
};
/*
 * Waits while the snapshot before is being copied. For the store it waits only if it is the last,
 * or is due within SESSION_RUSH_MS of the one before.
 * Two saves may be under way; with memory_every, one. One more is late: it is given up, and the
 * coordinator hears of it. It then is a copy in memory (with memory_every) or is refused. If one of
 * those before waits in vain for its folder (there is no coordinator), that one is given up.
 * Errors: ST_STALE    the generation is over
 *         ST_EXISTS   the save of this step is written already
 *         ST_REFUSED  it is late, or this process is not to end after it; nothing was begun
 *         ST_FULL     more than session_set_ready announced
 *         ST_TIMED_OUT  patience_ms have passed: nothing was begun. Unless it is the last, it is
 *                     late, and the coordinator hears of it
 */
MUST_CHECK enum status session_snapshot_begin(struct session *session,
                                              const struct session_snapshot *snapshot);
/* Returns the file of the snapshot that was begun, which `fill` waits for, and its number. Borrowed
 * until session_snapshot_wait has returned. */
const struct copy_file *session_snapshot_file(struct session *session, uint32_t *out_number);
/* Waits until the snapshot that was begun is copied; of a state on a device, until its memory was
 * read. Returns at once if there is nothing to wait for. Errors: those of the copy. */
MUST_CHECK enum status session_snapshot_wait(struct session *session);

/*
 * Copies for another node. One thread reads complete copy files that it keeps meanwhile (two at
 * most); snapshots go to the other files.
 */
/* Waits for a complete copy of a step after `after` and keeps it. ST_STALE: over, or ended by
 * session_keep_end. */
MUST_CHECK enum status session_keep_newest(struct session *session, uint64_t after,
                                           const struct copy_file **out);
/* Keeps the complete copy of that step. ST_INCOMPLETE: there is none, or none any more. */
MUST_CHECK enum status session_keep(struct session *session, uint64_t step,
                                    const struct copy_file **out);
/* An exit that was announced, as session_due_at says SESSION_DUE_SAVE_AND_EXIT. */
struct session_exit {
    uint64_t step;
    int64_t waited_ms; /* since one was first announced in this generation */
};
/* Returns the exit that is announced; false: there is none. */
bool session_exit(struct session *session, struct session_exit *out);
/* Returns the newest step whose save was committed in this generation; 0: none. */
uint64_t session_committed(struct session *session);
/* Returns the steps of complete copies, in no order: out, [SESSION_FILES_MAX]. */
size_t session_complete_steps(struct session *session, uint64_t *out);
/*
 * Saves the complete copy of that step, where those that follow can't be finished in time; it is
 * committed once session_committed says so.
 * Errors: ST_EXISTS  it is saved, or is being saved; ST_INCOMPLETE  there is none any more
 *         ST_AGAIN   a copy is just being made; ST_STALE
 */
MUST_CHECK enum status session_save_copy(struct session *session, uint64_t step);
/* NULL is fine. */
void session_unkeep(struct session *session, const struct copy_file *file);
/* Makes session_keep_newest return ST_STALE from now on, also a call that waits already. Thread:
 * any. */
void session_keep_end(struct session *session);
/* Notes that every rank's copy of some step is at another node, or will never be. The state that
 * this generation was restored from is no longer needed. */
void session_peers_complete(struct session *session);

/*
 * Waits until every save is committed or dropped; out_committed: the newest committed step. A save
 * that was dropped may be made again then.
 * Errors: ST_TIMED_OUT
 *         ST_STALE
 *         ST_REFUSED    this process is not to end after that step, as SESSION_DUE_SAVE_AND_EXIT
 *                       said: another rank has passed it and waits in the next; train on
 */
MUST_CHECK enum status session_settle(struct session *session, int64_t timeout_ms,
                                      uint64_t *out_committed);

/* Tells the coordinator that a save is wanted. leaves: because this process was asked to end within
 * grace_ms. Thread: any. Returns at once. */
void session_wanted(struct session *session, bool leaves, uint64_t grace_ms, const char *reason);

struct session_fault {
    Cairn__V1__FaultKind kind;
    bool of_node;       /* the node's fault (its device, its files): another node may do */
    bool outside;       /* a kill by somebody else, or its like: no budget is used */
    bool stays;         /* it is one of a program that this process runs, which can go on itself */
    uint32_t shard;     /* a damaged checkpoint: 1 + the file of it that is; 0: not known */
    uint64_t good_step; /* of WRONG */
    const char *message;
    const uint32_t *ranks; /* blamed */
    size_t rank_count;
};
/* Tells the coordinator, and the last words, what went wrong. Waits 200 ms at most for it to leave.
 */
void session_fault(struct session *session, const struct session_fault *said);
/* Reports that the job is done on this rank, or that a save was due that ends this process. Waits
 * until the message was sent, 1 s at most. */
void session_finished(struct session *session, uint64_t step);
/* True if nothing of the generation is left to do: it is over, or the process is to be parked. */
bool session_is_over(const struct session *session);
