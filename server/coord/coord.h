/*
 * The coordinator without its sockets, threads and clock: jobs, nodes, sessions. Anything happens
 * in one way: events go through jobs' state machines, the outcome of as many as came together is
 * journalled, then their actions leave.
 *
 * What the core needs from outside are ports (struct coord_options): a clock, random bytes, a
 * journal, a runner of store tasks, and connections with two functions. cairnd gives it gRPC and
 * threads, tests/sim a simulated world; both run this very code.
 *
 * Thread: all of it on one.
 * Errors: a journal that can't be written makes the core fail for good (coord_failed): the process
 *         ends, is started again, and goes on from what was committed.
 */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "cairn/v1/common.pb-c.h"
#include "cairn/v1/fleet.pb-c.h"
#include "cairn/v1/training.pb-c.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/reason.h"
#include "common/rendezvous.h"
#include "jobspec/jobspec.h"
#include "rpc/rpc.h"
#include "server/containers/timers.h"
#include "server/fleet/pairs.h"
#include "server/fleet/place.h"
#include "server/fleet/record.h"
#include "server/fleet/suspicion.h"
#include "server/jobfsm/inspect/blocked.h"
#include "server/jobfsm/jobfsm.h"
#include "server/journal/journal.h"
#include "server/store/task.h"
#include "server/throughput/throughput.h"

struct coord;
struct coord_job;
struct coord_node;

/* A connection of an agent or a trainer. Its carrier owns it, and says when it is over. */
struct coord_conn {
    const struct coord_conn_ops *ops;
    char token[72]; /* bearer token of the call, "" if none */
    bool local;     /* over the Unix socket */
    /* the core's */
    bool greeted;  /* its hello came: the only one */
    bool regroups; /* of a worker that was told its new generation: it comes again */
    struct coord_node *node;
    struct coord_job *job;
    bool spare; /* of a worker without a part in the generation, or not told of its part yet */
    uint32_t generation, rank, number; /* rank: its place in the machine's ranks */
};

/* A message as it was packed. */
struct coord_message {
    const ProtobufCMessageDescriptor *type;
    uint8_t *data;
    size_t size;
};

/* Called by coord_commit alone; must not call the core back. */
struct coord_conn_ops {
    void (*send)(struct coord_conn *conn, const struct coord_message *message);
    void (*finish)(struct coord_conn *conn, enum rpc_code code, const char *detail);
};

struct coord_options {
    const struct clock *clock;
    const struct log *log;
    struct journal *journal;
    struct store_port store;
    void (*random)(void *arg, void *out, size_t size);
    void *random_arg;
    /* Turns a generation's new token, 64 hexadecimal digits, into one that is known at the door
     * (identity/seal.h). NULL: it stays as it is. */
    void (*seal)(void *arg, char *token);
    void *seal_arg;
    int64_t hang_ms; /* floor of the hang rule; 0: 30 s */
    bool restarts;   /* no worker outlives a failure of its generation */
    /* Times of agents, if there are not thousands of them; 0: 1 s, 5 s. */
    int64_t beat_ms, lost_ms;
    uint64_t descriptors; /* files that this process may have open; 0: nobody counts them */
    /* Called by coord_new, after each job at the latest: reading thousands takes a while, and a
     * supervisor of this process must not take that for a hang. NULL: nobody watches. */
    void (*loading)(void *arg);
    void *loading_arg;
    /* Writes what lists show of a job, once, when it has ended; NULL: lists read all of it. */
    enum status (*summary)(void *arg, struct coord_job *job, struct buf *out);
    void *summary_arg;
    /* Returns whether the journal has space (journal_reserve); ST_FULL: what can wait isn't
     * journalled. NULL: it always has. */
    enum status (*space)(struct journal *journal);
    uint32_t ended_max; /* jobs that ended and are in memory; 0: COORD_ENDED_MAX */
    /* Takes a piece of a log (coord_log_request), on the core's thread; must not call the core
     * back. NULL: nobody does. */
    void (*log_chunk)(void *arg, const Cairn__V1__LogChunk *chunk);
    void *log_arg;
};

#define COORD_ENDED_MAX 64

/* The newest report of a rank on what it can do, and on its traffic; generation: in which it
 * came. */
struct coord_rank_report {
    uint32_t generation; /* 0: nothing */
    double peak_flops;   /* operations a second at most; 0: it doesn't know */
    bool counts;         /* the bytes that went to other ranks, and came from them: */
    uint64_t sent_bytes, received_bytes;
};

/* The resources that a worker's process used when its agent looked last. */
struct coord_usage {
    uint32_t birth, number; /* the process, as of struct fsm_rank; birth 0: of none */
    Cairn__V1__WorkerUsage message;
};

struct coord_rank {
    struct coord_conn *conn; /* its session, or NULL */
    struct coord_rank_report report;
    struct coord_usage usage;
    char version[32]; /* of its program, as its hello said in generation version_of */
    uint32_t version_of;
    /* where it holds a slot; NULL: it holds none, and the rest means nothing */
    struct coord_node *node;
    uint32_t slot;
    struct coord_job *job;
    struct coord_rank *next, **link; /* of the ranks on that node */
};

/* The part that a rank brought to a round: its common part, then its items. */
struct coord_part {
    size_t common_size;
    uint8_t data[];
};

/*
 * A round of the generation's ranks (common/rendezvous.h). It stays until the generation ends: a
 * rank whose session was lost may not have heard the answer, and asks again.
 */
struct coord_rendezvous_round {
    struct coord_rendezvous_round *next;
    char name[RENDEZVOUS_NAME];
    uint32_t size;    /* ranks of the generation */
    uint32_t came;    /* parts that are here */
    size_t item_size; /* of every rank's items */
    struct coord_rendezvous_rank {
        struct coord_part *part; /* owned; NULL: the rank did not come yet */
        bool answered;           /* the rank needs no answer */
    } ranks[];
};

/* Metric rows that rank 0 sent and that are not journalled yet. */
struct coord_rows {
    size_t count, capacity;
    int64_t since;
    struct coord_row {
        uint64_t step;
        bool eval;
        void *data; /* packed MetricRow; owned */
        size_t size;
    } * list;
};

struct coord_job {
    struct fsm m;
    char id[16];
    char name[LIMIT_NAME];
    int64_t seq; /* order of submission */
    struct jobspec *spec;
    char *job_file; /* normalised */
    char *pins;     /* of its first formation; "" before */
    struct coord_rank *ranks;
    struct jobspec_layout *layout;         /* of that generation; owned */
    uint32_t layout_of;                    /* 0: it wasn't asked for yet, or goes by speed */
    struct coord_rendezvous_round *rounds; /* of this generation; owned */
    struct coord_rows rows;
    struct coord_conn *metrics_from; /* the session that hears that rows are journalled */
    /* Why this version can't read the job's file, or its state; "": it can. Nothing is done with
     * such a job, and nothing of it is ended or removed, until a version comes that can, or
     * somebody kills it. */
    char unreadable[LIMIT_REASON];
    enum journal_ended ended; /* as the journal has it; not LIVE: it need not be in memory */
    uint64_t used;            /* rises: somebody asked for it */
    uint32_t tasks;           /* of this job that the store has */
    uint32_t held;            /* coord_hold */
    bool drained;             /* the job was under way when the newest drain began */
    uint64_t version;         /* rises with every change, and when it is read again */
    uint64_t rows_version;    /* rises when rows are journalled */
    bool dirty, deciding;     /* this group changed its state; it decided on a save */
    struct coord_job *dirty_next;
    char *recorded; /* the state as the journal has it; owned; NULL: not known */
    struct fsm_rank_row *recorded_ranks; /* of each rank, as the journal has it; owned */
    struct coord_began {
        uint32_t generation;          /* 0: none since the start */
        int64_t wall, at;             /* Unix ms, monotonic ms */
    } began;                          /* the newest generation */
    double loss, accuracy, eval_loss; /* newest; NaN: none */
    double samples_per_s;             /* as the newest row says; 0: it doesn't */
    uint64_t metric_step;
    uint32_t metric_generation; /* of the row of metric_step; 0: not known */
    struct throughput throughput;
    double step_flops; /* operations of a step, as workers say it; 0: not known */
    /* Copies in memory, as the workers of that generation report them; 0: nothing was said yet. */
    struct coord_copies {
        uint32_t generation;
        uint64_t every, bytes; /* steps between two, 0: none between saves; of each worker */
        struct reason reason;  /* why there are none, or fewer than the job asks for */
        bool told;             /* it is in the job's history already */
    } copies;
    /* kept by index.c, of what the machine is in */
    struct timer timer;  /* the next tick */
    int64_t ticked_at;   /* the last one */
    int64_t recovers_at; /* since then it is RECOVERING, or PLACING after that; 0: it isn't */
    int64_t behind;      /* seq of the job in the queue that it waits for, not for slots; 0: none */
    struct coord_places_seen {
        enum fsm_state state, end_to;
        uint32_t generation, gone_count, spare_moves;
    } places_seen; /* as they were when the ranks' places were looked at */
};

#define COORD_GPU_DEVICE "cuda"

/* A GPU, as the newest hello or beat describes it. */
struct coord_gpu {
    char name[64], uuid[64], driver[32], problem[LIMIT_NAME];
    uint32_t capability, temperature;
    uint64_t memory_bytes, memory_used_bytes, ecc_errors;
    bool throttled;
    double utilization, power_watts; /* NaN: not told */
};

/*
 * A trainer that should not run, or that nobody saw go: its slot is held until its agent says that
 * it is gone. The agent's hello lists them all, so they outlive a coordinator.
 */
struct coord_orphan {
    char job[16];
    uint32_t generation, rank, slot;
    int64_t since;
};

/*
 * Whether a node is there for good.
 *
 *   STAYS  -> LEAVES  [coord_node_leaving]  its agent says so; what runs there saves and goes on
 *                                          elsewhere
 *   LEAVES -> LEFT    [coord_node_left]     its agent says that nothing is left there
 *   any    -> STAYS   [coord_node_stays]    an agent of that name says hello
 */
enum coord_stay { COORD_STAYS, COORD_LEAVES, COORD_LEFT };

struct coord_node {
    char name[LIMIT_NAME];
    char device[32], version[32], host[LIMIT_NAME], boot_id[64];
    char net[PLACE_NET]; /* of host */
    uint32_t ports;      /* where its workers may listen; 0: any */
    uint32_t probe_port; /* at host: where the path to it is tried; 0: nowhere */
    uint64_t started_ms; /* of its agent, since boot; 0: not said */
    uint64_t agent;      /* a number of that agent, by boot, start and version; 0: none was here */
    char duplicate[96];  /* another agent that wants this name, and was told to wait; or "" */
    struct coord_gpu *gpus; /* slots + i is the number of GPU i, of device "cuda"; owned */
    uint32_t slots;         /* of `device`, numbers 0 and up */
    uint32_t gpu_count;
    Cairn__V1__NodeUsage usage; /* as its newest beat has it */
    bool usage_known;
    struct coord_orphan *strays; /* COORD_ORPHANS_MAX at most; owned */
    size_t stray_count;
    struct coord_conn *conn; /* or NULL */
    int64_t heard_at;
    struct suspicion suspicion; /* whether others reach it, when it is unheard */
    bool silent;
    bool local;                 /* its agent is heard over this machine's socket */
    bool suspected;             /* jobs there were told that it is not heard */
    bool alone;                 /* no other node is heard */
    bool known;                 /* an agent said hello; else only a job's journal speaks of it */
    bool drains;                /* people keep it free; journalled, and so for whatever agent */
    bool drain_told;            /* the last job that failed there was told so */
    char accused[LIMIT_REASON]; /* why it is about to be drained: it computes wrongly; "": it
                                 * isn't */
    bool drain_over;            /* jobs there were told that its drain's time is over */
    bool counted; /* slots_used, gpus_used and used are as ranks, strays and GPUs are */
    enum coord_stay stay;
    char why_leaves[LIMIT_NAME]; /* LEAVES, LEFT */
    char why_drains[LIMIT_NAME];
    char trouble[LIMIT_REASON]; /* of the machine, as its agent reports it; "": none */
    char successor[LIMIT_NAME]; /* STAYS: its machine's agent came as this node; or "" */
    int64_t drain_until;        /* mono ms: workers that are there then are killed; 0: never */
    int64_t clock_off_ms;       /* how far its machine's clock is ahead of ours, if that is much */
    struct fleet_record record; /* of jobs that failed there by its fault */
    /* kept by index.c */
    struct timer timer;       /* for when it is silent, or a failure there is forgotten */
    struct coord_rank *ranks; /* ranks that hold slots there */
    bool *used;               /* slots + gpu_count: taken, or of no use; owned */
    uint32_t slots_used, gpus_used;
};

/*
 * Reads the journal, resumes what it holds, and commits that: a job that can't be read is kept as
 * it is.
 *
 * Jobs that ended are read when somebody asks for one (coord_find), or, if something may be left to
 * do, one by one after the start. Some of them stay in memory, the others go again.
 */
MUST_CHECK enum status coord_new(const struct coord_options *options, struct coord **out);
/* Makes a core without jobs, nodes and store, for coord_look alone: on a thread of its own, beside
 * the one that has the journal. options: clock, log, and a journal of journal_open_beside. */
MUST_CHECK enum status coord_reader_new(const struct coord_options *options, struct coord **out);
void coord_free(struct coord *coord);
/* True if the journal's disk has no room, but for what is kept for decisions. */
bool coord_journal_full(const struct coord *coord);
#define COORD_JOURNAL_FULL                                                                         \
    "the disk of the coordinator's journal is full: jobs go on, rows of metrics wait in memory, "  \
    "and "                                                                                         \
    "no job is taken; make room there, or 'cairn rm' jobs that ended"
/* Returns why the core failed; ST_OK: it did not. */
enum status coord_failed(const struct coord *coord);

/*
 * Time. The caller asks for the deadline, and waits until then or until something comes. Then it
 * calls coord_wake first of all, passes on what came, calls coord_tick if that deadline has passed,
 * and then coord_commit.
 *
 * coord_deadline: mono ms; INT64_MAX: never. coord_wake notices that this process did not run for a
 * while, so that nobody else's silence of that time counts.
 */
int64_t coord_deadline(struct coord *coord);
void coord_wake(struct coord *coord);
void coord_tick(struct coord *coord);

/*
 * Ends a group: jobs that wait are placed if slots changed, and all that the functions below did
 * since the last call is journalled in one transaction. Then what they had to say leaves, in order.
 * The caller passes on what came, as much as it likes, then commits; what it tells people itself
 * waits for that, too. If the commit fails nothing leaves, and coord_failed says why. If there is
 * nothing to do, it costs nothing.
 *
 * coord_commit_by: returns when that is due, mono ms: 0 is at once. If the group holds only what
 * nobody waits for (a report of a save, rows of metrics), it is a while after its first write. A
 * thousand ranks that say such things one by one are not worth an fsync each.
 */
enum status coord_commit(struct coord *coord);
int64_t coord_commit_by(const struct coord *coord);

/* ---- streams ---- */
void coord_agent_message(struct coord *coord, struct coord_conn *conn,
                         const Cairn__V1__AgentMessage *message);
void coord_agent_closed(struct coord *coord, struct coord_conn *conn);
void coord_trainer_message(struct coord *coord, struct coord_conn *conn,
                           const Cairn__V1__TrainerMessage *message);
void coord_trainer_closed(struct coord *coord, struct coord_conn *conn);
/* Called when the other side says no more: the stream ends after what is on its way there. */
void coord_half_closed(struct coord *coord, struct coord_conn *conn);
/* Takes the task over. */
void coord_store_done(struct coord *coord, struct store_task *task);

/*
 * ---- what people ask ----
 *
 * by: who asks, for the history of the jobs that it is about, which is journalled ("asked by
 * operator/alice"); a role and a name, at most LIMIT_NAME bytes. NULL: nobody knows.
 */

/*
 * job_file: normalised text of spec. key: idempotency key, or "".
 * Errors: ST_REFUSED  no registered node could ever run it, or the journal's disk is full; reason
 *                     says so
 *         ST_FULL     LIMIT_JOBS jobs are live
 */
MUST_CHECK enum status coord_submit(struct coord *coord, const struct jobspec *spec,
                                    const char *job_file, const char *key, const char *by,
                                    struct coord_job **out, struct reason *reason);
/* Applies what people ask. kind: FSM_EV_PAUSE to FSM_EV_SAVE. ST_REFUSED: not in this
 * state. A job that can't be read takes FSM_EV_KILL only. */
MUST_CHECK enum status coord_ask(struct coord *coord, struct coord_job *job,
                                 enum fsm_event_kind kind, const char *by);
/*
 * Whether a job that is new, or goes on again, may write to its command's folder.
 * Errors: ST_REFUSED  another job that isn't over has the same: reason names it
 */
MUST_CHECK enum status coord_could_write(const struct coord *coord, const struct jobspec *spec,
                                         struct reason *reason);
/*
 * Changes how many workers the job has (`cairn set JOB workers.count=N`); those that are there go
 * on, with other shares, as soon as the new ones are ready.
 * Errors: ST_REFUSED  it has ended; or more workers than lanes, fewer than workers.min, or another
 *                     reason of its file: reason
 */
MUST_CHECK enum status coord_set_workers(struct coord *coord, struct coord_job *job, uint32_t count,
                                         const char *by, struct reason *reason);
/*
 * Has the job saved, if it trains; out: what to wait for (fsm_save_outcome). key: idempotency
 * key, or "": a repeated call waits for the save of the first, unless that one came to nothing.
 * Errors: ST_REFUSED  there is nothing to save, nor a checkpoint of a job that rests; or Cairn
 *                     saves nothing of the job
 */
MUST_CHECK enum status coord_save(struct coord *coord, struct coord_job *job, const char *key,
                                  const char *by, struct fsm_awaited *out);
/* Journals what a call with that key was about. */
void coord_remember(struct coord *coord, const char *key, const char *what);
/*
 * Forgets a job that has ended, and frees it: its rows go from the journal some at a time.
 * Errors: ST_REFUSED  it goes on, or the store is still to do something for it: reason
 */
MUST_CHECK enum status coord_remove_ended(struct coord *coord, struct coord_job *job,
                                          const char *by, struct reason *reason);
/*
 * Removes a checkpoint.
 * Errors: ST_NOT_FOUND
 *         ST_REFUSED    the job goes on from it, or others are read through it
 */
MUST_CHECK enum status coord_remove_ckpt(struct coord *coord, struct coord_job *job, uint64_t step,
                                         const char *by);
/*
 * Has a checkpoint read here, and set aside if it is damaged. What came of it: fsm_find_ckpt:
 * it is FSM_CKPT_BAD, or its `reads` rose, or it is gone.
 * Errors: ST_NOT_FOUND
 */
MUST_CHECK enum status coord_check_ckpt(struct coord *coord, struct coord_job *job, uint64_t step,
                                        uint32_t generation);
/*
 * Finds a job by an id, a unique prefix of one, or a name (the newest of it). *out is valid until
 * this is called COORD_ENDED_MAX times more, or coord_wake, unless the job is held.
 * Errors: ST_NOT_FOUND; ST_INVALID: not unique; those of the journal
 */
MUST_CHECK enum status coord_find(struct coord *coord, const char *name, struct coord_job **out);
/* Like coord_find, but a job that isn't in memory stays in the journal, as it has ended: then *out
 * is NULL. */
MUST_CHECK enum status coord_seek(struct coord *coord, const char *name, char id[16],
                                  struct coord_job **out);
/*
 * Calls fn, unless it fails, with a job that coord_seek found; one that isn't in memory is read for
 * this call alone.
 * Errors: ST_NOT_FOUND  it was forgotten meanwhile; those of the journal
 */
typedef void coord_look_fn(void *arg, struct coord_job *job);
MUST_CHECK enum status coord_look(struct coord *coord, const char *id, coord_look_fn *fn,
                                  void *arg);
/* Returns the job of that id if it is in memory, else NULL. */
struct coord_job *coord_loaded(struct coord *coord, const char *id);
/*
 * Writes, and returns, what lists show of a job that ended and is not in memory. It has no summary
 * yet, as in an older journal. "": the job is too large for one. The job is not resumed for that:
 * lists have the store do nothing.
 */
MUST_CHECK enum status coord_summarise(struct coord *coord, const char *id, struct buf *out);
/* Keeps the job in memory until it was released as often as held. If it isn't in memory, nothing
 * happens. */
void coord_hold(struct coord *coord, const char *id);
void coord_release(struct coord *coord, const char *id);
/* Lists the jobs in memory, so all that have not ended, newest first; coord_nodes: the nodes. out:
 * at most capacity. Returns how many there are. */
size_t coord_jobs(struct coord *coord, struct coord_job **out, size_t capacity);
size_t coord_nodes(struct coord *coord, struct coord_node **out, size_t capacity);
#define COORD_CLOCK_OFF_MS 5000 /* more is told: it breaks certificates and S3's signatures */
/* Writes "its clock is 12 s ahead of the coordinator's: ..."; "" if its clock is right. */
void coord_node_clock(const struct coord_node *node, struct reason *out);
/* Returns the node of that name; NULL: there is none. */
struct coord_node *coord_node_at(struct coord *coord, const char *name);
uint32_t coord_node_used(struct coord *coord, struct coord_node *node);
/* Returns how many of the node's GPUs are taken, or of no use. */
uint32_t coord_node_gpus_used(struct coord *coord, struct coord_node *node);
/* True if jobs keep away from the node, as too many different ones failed there. It is false of the
 * last node of its kind. */
bool coord_node_drained(struct coord *coord, const struct coord_node *node);
/*
 * Keeps a node free (`cairn node drain`) until coord_undrain_node: nothing is placed there, and
 * jobs with workers there save and go on elsewhere. Of one that is drained already: another reason.
 * deadline_ms: workers that are still there after that time are killed; 0: none is.
 * Errors: ST_NOT_FOUND  no agent of that name was here
 */
MUST_CHECK enum status coord_drain_node(struct coord *coord, const char *name, const char *reason,
                                        int64_t deadline_ms, const char *by);
/* Lets a drained node take jobs again. Errors: ST_NOT_FOUND  no such node, or it isn't drained */
MUST_CHECK enum status coord_undrain_node(struct coord *coord, const char *name, const char *by);
/*
 * Withdraws the certificates of this node that were issued until now (`cairn node forget`), for
 * good: it is journalled. Its agent's session ends, what ran there counts as gone, and the name is
 * nobody's until an agent of that name says hello. The node need not have been here.
 * out: NULL if so many other nodes are there that this one has no entry.
 * Errors: ST_FULL  COORD_WITHDRAWN_MAX nodes were forgotten within COORD_WITHDRAWN_DAYS
 */
MUST_CHECK enum status coord_forget_node(struct coord *coord, const char *name, const char *by,
                                         struct coord_node **out);
#define COORD_WITHDRAWN_MAX  100000
#define COORD_WITHDRAWN_DAYS 31 /* a certificate lasts a day less */
#define COORD_FORGOTTEN                                                                            \
    "this node was forgotten, and certificates that were issued for it until then count no "       \
    "more: a later 'cairn cert node' or 'cairn node invite' lets it in again"
/* Returns when the node was forgotten; Unix time, 0: never. */
int64_t coord_node_forgotten(struct coord *coord, const char *name);
/* True if an agent of that name has a session, or had one so lately that it isn't lost. */
bool coord_node_is_taken(struct coord *coord, const char *name);
/* Counts slots held by trainers that were killed and don't die. */
uint32_t coord_node_unkillable(struct coord *coord, const struct coord_node *node);
/* True if the node is not heard, but others reach it: node->doubt.said has the evidence. */
bool coord_node_cut_off(const struct coord_node *node);
/* Returns the time since the node's agent said something. */
int64_t coord_node_unheard_ms(const struct coord *coord, const struct coord_node *node);
/* True if all nodes are silent, so that none is judged, and this one is among them. */
bool coord_node_held(const struct coord *coord, const struct coord_node *node);
/* True if trainers of the node have a live session. */
bool coord_node_heard(const struct coord_node *node);

/* Begins `cairn down`: nothing is placed, running jobs save and leave. now: without saving. If
 * nobody ends it, it is over some time after the hold_ms that its caller waits. */
void coord_drain(struct coord *coord, bool now, int64_t hold_ms, const char *by);
void coord_drain_end(struct coord *coord);
/* Says for people why the job waits, or what became of it; also that it waits behind others. core:
 * may be NULL for a job that ended. */
void coord_reason(const struct coord *coord, const struct coord_job *job, struct reason *out);
/* Computes what the job waits for now: in the queue, or by its own state. core: as of
 * coord_reason. */
void coord_blocked(const struct coord *coord, const struct coord_job *job, struct fsm_blocked *out);
/* Counts jobs that still have trainers. */
size_t coord_draining(struct coord *coord);
/* Counts jobs that were under way when the drain began and lose nothing by it. They have saved
 * since then, or their own workers, told to leave, saved before, up to the last step that was
 * trained. */
uint32_t coord_drain_saved(const struct coord *coord);

/* Asks the node's agent for a piece of a log; the answer goes to coord_options.log_chunk.
 * ST_NOT_FOUND: no such node now. */
MUST_CHECK enum status coord_log_request(struct coord *coord, const char *node,
                                         const Cairn__V1__LogRequest *request);

/*
 * Has the paths between nodes tried, pair by pair (server/fleet/pairs.h): among these, or among all
 * that can be asked (count 0). What comes of it: coord_pairs_fetch.
 * Errors: ST_AGAIN      another check is under way
 *         ST_NOT_FOUND  reason names who isn't known
 *         ST_REFUSED    reason says: fewer than two can be asked, or all pairs are too many
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status coord_pairs_begin(struct coord *coord, const char *const *names,
                                         size_t count, bool all, struct reason *reason);
/* Returns why the path to and from that node can't be tried now, or NULL. */
const char *coord_pairs_hinder(const struct coord *coord, const struct coord_node *node);
const struct pairs *coord_pairs(const struct coord *coord);
/* Takes the next pair that is done; false: none now. */
bool coord_pairs_fetch(struct coord *coord, struct pairs_try *out);
void coord_pairs_end(struct coord *coord);

/* True if two nodes can't reach each other, as far as is known: no job gets both. */
bool coord_nodes_apart(const struct coord *coord, const char *a, const char *b);

/* Checks, for tests, that times, the queue and slots in use are what a look at everything finds. */
void coord_check(struct coord *coord);

const struct coord_options *coord_options(const struct coord *coord);
/* Return what a job's throughput says (server/throughput); NaN: it isn't known. coord_step_ms: a
 * plain step; coord_part_ms: a part of one. */
#define COORD_PARTS 6 /* of THROUGHPUT_PARTS */
const char *coord_part_name(uint32_t part);
double coord_part_ms(const struct coord_job *job, uint32_t part);
double coord_step_ms(const struct coord_job *job);
/* Returns the operations of a step as a part of what the workers could do meanwhile; NaN unless the
 * job trains. */
double coord_mfu(const struct coord_job *job);
/* Returns what that rank said in this generation; NULL: nothing. */
const struct coord_rank_report *coord_rank_report(const struct coord_job *job, uint32_t rank);
/* Return what a rank's process, and a node's machine, use; NULL: not known now. */
const Cairn__V1__WorkerUsage *coord_usage(const struct coord_job *job, uint32_t rank);
const Cairn__V1__NodeUsage *coord_node_usage(const struct coord_node *node);
/* coord_throughput: returns samples a second, or tokens if coord_is_text. */
bool coord_is_text(const struct coord_job *job);
double coord_throughput(const struct coord_job *job);
/* Returns the seconds from that step to the last one; NaN unless the job runs. */
double coord_eta_s(const struct coord_job *job, uint64_t step);
/* Finds which rank computes what in the job's generation. Errors: those of jobspec_layout_of. */
MUST_CHECK enum status coord_layout(const struct coord_job *job, struct jobspec_layout *out);
/* Writes the folder's path of a checkpoint of the job, or of a save. */
MUST_CHECK enum status coord_ckpt_dir(const struct coord_job *job, uint64_t step,
                                      uint32_t generation, char *out, size_t capacity);
