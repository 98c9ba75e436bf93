/*
 * struct core, and the functions that the files of the core share.
 *
 * The sections stand in the order of their layers, the lowest first: a file calls what stands above
 * its own section, never what stands below. core.h has what others may call: the files of entry/
 * are the ways in.
 */
#pragma once

#include "server/containers/ordered.h"
#include "server/containers/table.h"
#include "server/core/core.h"
#include "server/fleet/outage.h"
#include "server/fleet/paths.h"

#define CORE_JOBS_MAX        JOURNAL_JOBS_MAX
#define CORE_BEAT_MS         1000 /* of an agent */
#define CORE_LOST_MS         5000 /* without a beat: silent */
#define CORE_BEAT_NODES      1000 /* for each so many more nodes beats come that much later */
#define CORE_BEATS           5    /* without so many a node is silent, at the earliest */
#define CORE_SPREAD_MS       1000 /* streams that were lost are opened again within that time */
#define CORE_SPREAD_RATE     500  /* or streams a second, at most */
#define CORE_SPREAD_MAX_MS   60000
#define CORE_ALONE           3      /* times that, where no other node is heard */
#define CORE_REACH_MS        120000 /* unheard for so long: no job is kept waiting for it */
#define CORE_LOOK_MS         2000   /* jobs that wait for slots are looked at again */
#define CORE_LATE_MS         2000   /* a tick that comes so late: it was us who did not run */
#define CORE_LEFT_MS         50     /* between two jobs that ended and may have left something */
#define CORE_TIDY_MS         200    /* between two deletions of what is kept no longer */
#define CORE_ROOM_MS         5000   /* between two looks at the journal's disk */
#define CORE_GROWN_MS        60000  /* from rows that were journalled to the next of them */
#define CORE_GRACE_MS        10000  /* after the start: no node is called silent */
#define CORE_HELLO_MS        3000   /* none so soon after another hello, either, */
#define CORE_GRACE_MAX_MS    120000 /* for so long at most */
#define CORE_ROWS_MS         1000   /* metric rows of that time are journalled together */
#define CORE_ROWS_MAX        4096
#define CORE_LINGER_TURNS    256 /* with more a group lingers no longer */
#define CORE_LINGER_MS       20  /* how late a write that nobody waits for may be */
#define CORE_STRAYS_MAX      ((size_t)4 * LIMIT_SLOTS) /* of a node: what an agent answers for */
#define CORE_AWAY_MS         600000 /* unheard for so long, a node's entry may be another's */
#define CORE_UNDYING_MS      15000  /* killed so long ago, a process is called undying */
#define CORE_FORMERLY_MAX    8      /* names that an agent's hello may say it had */
#define CORE_DRAIN_AGAIN_MS  1000   /* a node's drain is overdue: what is there is ended again */
#define CORE_DRAIN_FORGET_MS 60000  /* a drain that nobody ends is forgotten */
#define CORE_DESCRIPTORS_OWN 128    /* of the journal, the store, agents and people */
#define CORE_TOO_MANY_NODES                                                                        \
    "there are " CORE_STRING(                                                                      \
        LIMIT_NODES) " nodes, and each is there, was so within 10 minutes, "                       \
                     "has workers or is drained: 'cairn node undrain' those that won't come back"
#define CORE_STRING_OF(x)    #x
#define CORE_STRING(x)       CORE_STRING_OF(x)
#define CORE_OUTBOX_BYTES    ((size_t)32 * 1024 * 1024) /* a group with more is committed at once */
#define CORE_STATE_BYTES_MAX ((size_t)4 * 1024 * 1024)  /* of a job's machine as JSON */
#define CORE_RECOVERY_BYTES  ((size_t)8 * 1024)         /* of a recovery */

/* The outbox: what is to leave when the group is committed (outbox.c). */
struct core_outbox {
    struct core_out *list; /* in order; owned, with what is in it */
    size_t count, capacity, bytes;
    size_t urgent; /* how many of them don't wait for more of the group */
};

/* Whether the receiver of a message waits for it, or only for the whole group (CORE_LINGER_MS). */
enum core_haste { CORE_AT_ONCE, CORE_WITH_GROUP };

/*
 * A group is all that happens between two calls of core_commit. Its events are applied one after
 * the other, its writes are one transaction.
 *
 * Invariants:
 */
struct core {
    struct core_options options;
    enum status failed;
    struct core_job **jobs; /* jobs in memory, ascending by seq; owned, as nodes */
    size_t job_count, job_capacity;
    size_t stored;      /* jobs in the journal: these, and others that ended */
    uint64_t uses;      /* the newest `used` of a job */
    uint64_t loads;     /* jobs that were read */
    bool retire_needed; /* there may be too many that ended in memory */
    int64_t left_at;    /* the next job that may have left something is read; INT64_MAX: no more */
    int64_t left_seq;   /* of the newest of these that was read */
    int64_t tidy_at;    /* journal_tidy; INT64_MAX: nothing is to be deleted */
    struct core_node **nodes;
    size_t node_count;
    struct table jobs_by_id, nodes_by_name;
    struct table withdrawn; /* withdrawals of certificates, by name of node; owned */
    struct ordered live;    /* jobs that are not over, by seq */
    struct ordered queue;   /* jobs that want slots, now or soon, by seq */
    struct ordered hungry;  /* jobs that want slots for more workers, by seq */
    struct timers job_timers, node_timers;
    int64_t seq_last;
    int64_t started_at;
    int64_t beat_ms, lost_ms; /* agents' beats; without one for so long a node is silent */
    int64_t spread_ms;        /* agents and trainers open lost streams so late; 0: within 1 s */
    int64_t grace_until;      /* nobody is judged before; 0: it is over */
    int64_t hello_at;         /* the newest first one of an agent, or of a trainer that is back */
    bool awaits_nodes;        /* after a start, not all are back that jobs ran on */
    int64_t expects_until;    /* nodes come back: after its start with jobs, or a standstill */
    int64_t draining_until;   /* 0: no */
    int64_t drain_wall;       /* the newest drain began */
    int64_t promised_at;      /* when core_tick was to be called; INT64_MAX: not at all */
    struct outage outage;     /* nodes are silent, and nobody is judged by it */
    struct paths paths;       /* between nodes, that may be broken */
    struct pairs pairs;       /* of nodes, that a person wants to be tried */
    int64_t looked_at;        /* jobs that wait for slots were looked at */
    struct board *board;      /* queue/board.h; owned */
    int64_t room_at;          /* the next look at the journal's disk */
    bool full;                /* the journal's disk has no room */
    bool schedule_needed;
    bool drained_untold; /* a node was drained, and no job was told */
    bool accused;        /* a node is to be drained */
    bool applying;
    bool begun;             /* the group's transaction */
    uint32_t turns;         /* of the group that wrote something */
    int64_t begun_at;       /* its first write, or its first job that is dirty; 0: there is none */
    struct core_job *dirty; /* jobs whose state the group changed */
    struct core_outbox outbox;
    struct machine_actions actions; /* of the turn */
};

static inline int64_t core_now(const struct core *core)
{
    return clock_mono_ms(core->options.clock);
}

/* True if the job can't be read, and waits for a version that can read it. */
static inline bool core_is_kept(const struct core_job *job)
{
    return job->unreadable[0] && !machine_state_final(job->m.state);
}

static inline struct core_job *core_job_of(struct timer *timer)
{
    return (struct core_job *)((char *)timer - offsetof(struct core_job, timer));
}

static inline struct core_node *core_node_of(struct timer *timer)
{
    return (struct core_node *)((char *)timer - offsetof(struct core_node, timer));
}

/* ---- base.c, fleet_tables.c, tables.c: giving up, nodes, jobs ---- */

/*
 * Gives up: nothing leaves any more, and the process ends. It is for what nobody can go on without
 * (memory, the journal), and for records of our own that contradict each other.
 *
 * A failure that concerns one job only (a path or a table that is too large) is for that job to
 * hear. A coordinator that starts again would meet it again, and end again, for all jobs.
 */
void core_fail(struct core *core, enum status st, const char *doing);
/* Writes random hex digits, capacity - 1 of them: an even number, 64 at most. */
void core_nonce(struct core *core, char *out, size_t capacity);
struct core_job *core_job_at(struct core *core, const char *id); /* NULL: there is none */
/*
 * Makes a job that is in no table yet: QUEUED. It takes spec over, whatever comes back.
 * row: all but state; borrowed.
 */
MUST_CHECK enum status core_job_new(struct core *core, const struct journal_job *row,
                                    struct job *spec, struct core_job **out);
void core_job_free(struct core_job *job);
MUST_CHECK enum status core_add_job(struct core *core, struct core_job *job);
void core_remove_job(struct core *core, struct core_job *job);
/*
 * Called after anything that may have changed when the job wants its next tick, whether it wants
 * slots or is over, and which slots its ranks hold. Its cost does not grow with jobs or nodes.
 */
void core_job_moved(struct core *core, struct core_job *job);
/* Called after a change of a node: when it is heard, silent, blamed. */
void core_node_moved(struct core *core, struct core_node *node);
/* Returns when the job wants a tick; core_job_queues: whether it wants slots, now or soon. */
int64_t core_job_deadline(const struct core_job *job);
bool core_job_queues(const struct core_job *job);
int64_t core_node_deadline(const struct core *core, const struct core_node *node);
/* Returns when a node that is not heard any more is called silent. */
int64_t core_node_due(const struct core *core, const struct core_node *node);
/* Notes that all jobs that wait have something else to say. */
void core_queue_moved(struct core *core);
/* Counts the slots of a node that are in use: node->used and the numbers beside it are right from
 * now on. false: no memory; the core failed. */
bool core_node_count(struct core *core, struct core_node *node);
/* Returns the ranks that hold slots on the node now: a copy of the list, by job and rank; free().
 * NULL: there are none, or no memory, and the core failed. */
struct core_rank **core_ranks_of(struct core *core, const struct core_node *node,
                                 size_t *out_count);
/* Applies an event to the job of every rank that holds a slot there, which may move ranks.
 * why_leaving is MACHINE_EV_LEAVING's. The queue is looked at again. */
void core_tell_ranks(struct core *core, struct core_node *node, enum machine_event_kind kind,
                     const char *why_leaving);
static inline uint32_t core_rank_number(const struct core_rank *rank)
{
    return (uint32_t)(rank - rank->job->ranks);
}
/* Called when a generation begins: sessions follow their workers to these workers' new ranks. */
void core_reseat(struct core *core, struct core_job *job);
/* Forgets the meetings of a generation. */
void core_forget_meetings(struct core_job *job);
/* Ends what the job knows of a session, if it still has this one. The stream may go on. */
void core_detach(struct core_conn *conn);
/* True if an agent or a trainer is of our major and minor version; "" is 0.1. */
bool core_version_fits(const char *theirs);
/* Returns the version that was said; for "" the one that it counts as. */
const char *core_version_said(const char *theirs);
struct core_node *core_node_make(struct core *core, const char *name); /* NULL: LIMIT_NODES */
/* Returns the node of that name, made if there is none. With LIMIT_NODES of them the entry of one
 * that has left, was forgotten or is unheard for long goes, if it holds nothing. Nobody may have a
 * pointer to such a node. NULL: none may go, or no memory. */
struct core_node *core_node_admit(struct core *core, const char *name);
void core_nodes_release(struct core *core);
/* Notes a withdrawal of certificates, in memory. ST_NO_MEMORY */
MUST_CHECK enum status core_put_withdrawn(struct core *core, const char *name, int64_t time_s);
/* Drops the withdrawals of before that time; returns how many these were. */
size_t core_drop_withdrawn(struct core *core, int64_t before_s);
void core_release_withdrawn(struct core *core);
/* Notes that a trainer that no job has, killed at `since`, holds that slot; core_stray_gone: it was
 * seen to be gone. Nothing is added twice. */
void core_stray_add(struct core *core, struct core_node *node, const Cairn__V1__TrainerRef *ref,
                    uint32_t slot, int64_t since);
void core_stray_gone(struct core *core, struct core_node *node, const Cairn__V1__TrainerRef *ref);
/* True if the GPU's compute capability is enough, or not known. */
bool core_gpu_serves(const struct core_gpu *gpu);
/* True if the node has slots of this device kind, of a capability that is enough. */
bool core_node_has(const struct core_node *node, const char *device);

/* ---- outbox.c: what waits for the commit ---- */

/* Packs a message. conn may close before it leaves. */
void core_post(struct core *core, struct core_conn *conn, enum core_haste haste,
               const ProtobufCMessage *message);
void core_hang_up(struct core *core, struct core_conn *conn, enum rpc_code code,
                  const char *detail);
void core_post_task(struct core *core, struct store_task *task); /* takes it over */
/* Posts a fault point between messages (tests), and its context. */
void core_post_point(struct core *core, const char *name, int64_t rank, int64_t generation,
                     int64_t step);
bool core_outbox_full(const struct core *core);
/* Forgets what was to leave over a connection that is gone. */
void core_outbox_forget(struct core *core, const struct core_conn *conn);
void core_outbox_empty(struct core *core); /* lets all of it leave */
void core_outbox_release(struct core *core);

/* ---- orders.c: what is told to agents and trainers ---- */

/* Orders the rank's agent to start it. A worker that was kept gets its new generation instead. */
void core_send_start(struct core *core, struct core_job *job, uint32_t rank);
/* Orders the rank to leave its generation and stay; nothing is sent to one that is gone or to be
 * ended. */
void core_send_park(struct core *core, struct core_job *job, uint32_t rank);
/* Tells a worker that was kept which generation forms and its rank there, over whatever stream it
 * has. */
void core_send_regroup(struct core *core, struct core_job *job, uint32_t rank,
                       struct core_conn *conn);
/* Holds the slot of a trainer that nobody saw go: no other one gets it until somebody did. If it
 * lives on, it is ended: by its agent's stream as soon as that is heard, or after its next
 * hello. */
void core_hold_slot(struct core *core, struct core_job *job, uint32_t rank);
/* Kills the trainer, if it isn't gone; core_send_end_of: kills one that should not run. */
void core_send_end(struct core *core, struct core_job *job, uint32_t rank);
void core_send_end_of(struct core *core, struct core_conn *conn, Cairn__V1__TrainerRef *ref);
/* Tells an agent how often to beat: in a welcome, or because that has changed. */
void core_send_pace(struct core *core, struct core_conn *conn, bool welcome);
/* Asks the agent of `who` whether it reaches that of `whom`. The order's id, and what it says of a
 * measurement, are in `probe`. */
void core_send_probe(struct core *core, const struct core_node *who, const struct core_node *whom,
                     Cairn__V1__Probe *probe);
/* Asks for a probe without a measurement. */
void core_ask_probe(struct core *core, const struct core_node *who, const struct core_node *whom,
                    uint64_t round);
/* Tells every agent that is there and needs no copies of the job to forget them; others tell of
 * their copies in a hello. */
void core_send_forget(struct core *core, const struct core_job *job);
/* Tells the agent which of the copies that its hello names nobody needs. */
void core_check_copies(struct core *core, struct core_node *node,
                       const Cairn__V1__AgentHello *hello);
/* Sends an order to a rank, if it has a session. message: of the type that the body names. */
void core_send_order(struct core *core, struct core_job *job, uint32_t rank, enum core_haste haste,
                     Cairn__V1__TrainerOrder__BodyCase body, void *message);
/* Says that the generation is over: to one connection, which ends; core_send_over: to a rank, or
 * all ranks, of the job. */
void core_send_over_to(struct core *core, struct core_conn *conn, const char *reason);
void core_send_over(struct core *core, struct core_job *job, uint32_t rank, const char *reason);
/* Sends a rank its assignment (message Plan). */
void core_send_assignment(struct core *core, struct core_job *job, uint32_t rank);
void core_send_save_at(struct core *core, struct core_job *job, uint32_t rank, uint64_t step,
                       bool exit);
void core_send_stay(struct core *core, struct core_job *job, uint32_t rank, uint64_t step);
void core_send_folder(struct core *core, struct core_job *job, uint32_t rank,
                      const struct machine_action *act);
void core_send_read_back(struct core *core, struct core_job *job, uint32_t rank,
                         const struct machine_action *act);
void core_send_done(struct core *core, struct core_job *job, uint32_t rank, uint64_t step,
                    bool committed);

/* ---- rendezvous.c: ranks find each other ---- */

/* Takes a rank's part of a meeting; with the last one all are answered. */
void core_meet(struct core *core, struct core_job *job, uint32_t rank, const Cairn__V1__Meet *meet);

/* ---- metrics.c: rows of metrics ---- */

/* Takes rows of rank 0, and keeps them until they are journalled. */
void core_take_rows(struct core *core, struct core_job *job, Cairn__V1__MetricRow *const *rows,
                    size_t count);
/* Notes the loss, pace and evaluation of a row, which people are shown. */
void core_show_row(struct core_job *job, uint64_t step, const Cairn__V1__MetricRow *row);
/* Keeps rows that can't be journalled now: of too many, every second one is dropped. */
void core_keep_rows(struct core *core, struct core_job *job);
/* Writes the kept rows with this group; then rank 0 may forget them. */
MUST_CHECK enum status core_record_rows(struct core *core, struct core_job *job);

/* ---- tasks.c: what the store is asked ---- */

void core_submit_store(struct core *core, struct core_job *job, const struct machine_action *act);

/* ---- entry/pins.c ---- */

/*
 * Compares the pins that a worker said with the job's: those of the formation with which it began
 * to run. A job that began before data were pinned takes those that are told first. ready: gets
 * what differs, its text in out.
 */
void core_compare_pins(struct core *core, struct core_job *job, const char *pins, const char *node,
                       struct machine_ready *ready, struct reason *out);

/* ---- usage.c: what workers and machines use ---- */

/* Takes what a rank of this generation, no spare, says of operations and traffic with its progress;
 * core_take_usage: takes what an agent's beat says of machine and workers. */
void core_take_told(struct core_job *job, uint32_t rank, const Cairn__V1__Progress *progress);
void core_take_usage(struct core_node *node, const Cairn__V1__AgentBeat *beat);

/* ---- verdicts.c: what is held against nodes ---- */

/* Take what an agent's hello or beat says of its GPUs, and of its clock. */
void core_take_gpus(struct core *core, struct core_node *node, Cairn__V1__Gpu *const *gpus,
                    size_t count);
void core_take_clock(struct core *core, struct core_node *node, uint64_t wall_ms);
/* Holds a failure of the job against the node of that rank, as it was the node's fault. */
void core_blame_node(struct core *core, struct core_job *job, uint32_t rank);
/* Notes that the node computes wrongly, if others could do its work; core_drain_accused drains such
 * nodes. */
void core_accuse_node(struct core *core, const struct core_job *job,
                      const struct machine_action *act);
void core_drain_accused(struct core *core);
/* Takes back what this job's failures hold against nodes, as it failed elsewhere, too. */
void core_clear_nodes(struct core *core, struct core_job *job);
void core_verdicts_tick(struct core *core, struct core_node *node); /* forgets what is old */
/* Excuses silence in the time for which this process didn't run, counted from what core_deadline
 * promised. */
void core_excuse(struct core *core);
/* True if the node was heard within CORE_REACH_MS: it may take jobs, now or soon. */
bool core_node_in_reach(const struct core *core, const struct core_node *node);

/* Suspects the paths between the nodes of the job's generation, which got stuck: they are tried. */
void core_paths_suspect(struct core *core, const struct core_job *job);
/* True while a path between nodes of the job's newest generation is being tried. */
bool core_paths_open(const struct core *core, const struct core_job *job);
/* Lets spares go that can't take a seat beside the others, since their nodes don't reach each
 * other. true: there were some. */
bool core_part_spares(struct core *core, struct core_job *job);
/* True if a rank of the job's newest generation is, or was, on that node. */
bool core_has_node(const struct core_job *job, const char *node);

/* Sets how often agents beat, and when they are silent, by how many there are. */
void core_pace_set(struct core *core);
/* Returns the time over which agents and trainers spread what they do when their streams were lost.
 * It is about to be told to one of them, and none is judged sooner. */
uint32_t core_tell_spread(struct core *core);
/* Returns how long a node is unheard when all but one of a few beats were missed. */
int64_t core_quiet_ms(const struct core *core);

/* ---- record.c: what the journal gets ---- */

/* Called when what is left to do for a job may have changed, though its state has not. */
void core_note_ended(struct core_job *job);
/* Journals the rows of core->actions; the state follows with the group. */
MUST_CHECK enum status core_record_turn(struct core *core, struct core_job *job,
                                        const struct machine_event *event);

/* ---- apply.c: event, journal, actions ---- */

struct machine_event core_event(const struct core *core, enum machine_event_kind kind);
/* Makes an event of a rank: its agent or its trainer says it. */
struct machine_event core_event_of(const struct core *core, enum machine_event_kind kind,
                                   uint32_t generation, uint32_t rank);
enum status core_apply(struct core *core, struct core_job *job, struct machine_event *event);
/* Adds an event to the job's history that its machine doesn't decide. */
void core_note(struct core *core, struct core_job *job, const char *what, const char *message);
/* Ends the group as it is: writes it, and lets go what is to leave. */
enum status core_write(struct core *core);
/* Called at the end of every entry: ends a group that has grown large. */
void core_settle(struct core *core);
/* Called before any write: begins the group's transaction, if it has not begun. A write that fails
 * makes the core fail: SQLite may have taken the whole transaction back. */
MUST_CHECK enum status core_begin(struct core *core);
/* Marks the job's state to be written when the group is committed; core_forget_dirty: it is not
 * written, as the job is gone. */
void core_mark_dirty(struct core *core, struct core_job *job);
void core_forget_dirty(struct core *core, struct core_job *job);
/* Writes the job's state as it is now, within a transaction. */
MUST_CHECK enum status core_record_state(struct core *core, struct core_job *job);
/* Resumes a job that was read from the journal. */
void core_resume(struct core *core, struct core_job *job);
/* Journals metric rows without an event. */
void core_flush_rows(struct core *core, struct core_job *job);

static inline bool core_node_takes(const struct core_node *node)
{
    return node->stay == CORE_STAYS && !node->drains;
}

/* ---- leaving.c, queue/: who gives slots back, and who gets them ---- */

/* Places jobs if slots changed. It is called at the end of what people ask, as they are told at
 * once what came of it. For all else in the group it is called once, when that is committed. */
void core_schedule(struct core *core);
/* Notes that a node leaves: it takes no more trainers; those that are there save and go on
 * elsewhere. */
void core_node_leaving(struct core *core, struct core_node *node,
                       const Cairn__V1__AgentLeaving *leaving);
/* Notes that a node's agent had other names: those nodes have left, or leave where workers are,
 * once they are silent. */
void core_node_renamed(struct core *core, const struct core_node *node,
                       const Cairn__V1__AgentHello *hello);
/* Notes that nothing of a node is left; its stream ends. */
void core_node_left(struct core *core, struct core_node *node);
/* Marks a node as drained, as the journal has it; until: mono ms, or 0. */
void core_node_drain(struct core *core, struct core_node *node, const char *reason, int64_t until);
/* Handles a node whose drain's time is over: workers that are still there are ended, once a second.
 * A silent node that has an heir leaves. */
void core_stay_tick(struct core *core, struct core_node *node);
/* True if the node is silent, and its machine is another node now. */
static inline bool core_node_inherited(const struct core_node *node)
{
    return node->heir[0] && node->silent && !core_node_cut_off(node);
}

/* Notes by the hello of a node's agent that the node stays. */
void core_node_stays(struct core_node *node);

/* ---- entry/answers.c: of agents, about paths between nodes (server/fleet/paths.h) ---- */

void core_paths_answer(struct core *core, const struct core_node *node,
                       const Cairn__V1__ProbeResult *result);
/* Called at the hello of a node's agent: it is another one, or the same anew. */
void core_paths_hello(struct core *core, struct core_node *node,
                      const Cairn__V1__AgentHello *hello);
void core_paths_tick(struct core *core); /* asks agents, and gives up late answers */
void core_pairs_tick(struct core *core); /* like that, of a check that a person asked for */

/* ---- entry/trainers.c ---- */

struct machine_fault core_fault(const Cairn__V1__Fault *in);
void core_take_report(struct core *core, struct core_job *job, uint32_t rank,
                      const Cairn__V1__SaveReport *report);

/* ---- entry/silence.c ---- */

void core_note_heard(struct core *core, struct core_node *node);
void core_pace_changed(struct core *core); /* by another agent that has come */
/* Takes what an agent says of a probe, for this file and for entry/answers.c. */
void core_take_probed(struct core *core, const struct core_node *from,
                      const Cairn__V1__ProbeResult *result);
void core_nodes_tick(struct core *core); /* looks at nodes whose time has come */
void core_grace_tick(struct core *core); /* ends or extends the time of grace */

/* ---- load.c ---- */

/* Reads the journal, and resumes what it holds. */
MUST_CHECK enum status core_load(struct core *core);
/* Drops a job from memory; its streams are told why. Nobody points at it after this. */
void core_drop_job(struct core *core, struct core_job *job, const char *why);
/* Brings a job that ended from the journal into memory. Errors: those of the journal */
MUST_CHECK enum status core_bring(struct core *core, const char *id, struct core_job **out);
/* Drops jobs from memory that ended, that nobody uses, and that were asked for longest ago, until
 * there are fewer than options.ended_max, less `room`. Returns whether there are. */
bool core_retire(struct core *core, size_t room);
/* Does a little of what is done bit by bit: jobs that may have left something, rows that are kept
 * no longer. */
void core_chores_tick(struct core *core);
