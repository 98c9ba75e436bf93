/*
 * struct coord, and the functions that the files of the core share.
 *
 * The sections stand in the order of their layers, the lowest first: a file calls what stands above
 * its own section, never what stands below. coord.h has what others may call: the files of entry/
 * are the ways in.
 */
#pragma once

#include "server/containers/ordered.h"
#include "server/containers/table.h"
#include "server/coord/coord.h"
#include "server/fleet/isolation.h"
#include "server/fleet/netpaths.h"

#define COORD_JOBS_MAX        JOURNAL_JOBS_MAX
#define COORD_BEAT_MS         1000 /* of an agent */
#define COORD_LOST_MS         5000 /* without a beat: silent */
#define COORD_BEAT_NODES      1000 /* for each so many more nodes beats come that much later */
#define COORD_BEATS           5    /* without so many a node is silent, at the earliest */
#define COORD_SPREAD_MS       1000 /* streams that were lost are opened again within that time */
#define COORD_SPREAD_RATE     500  /* or streams a second, at most */
#define COORD_SPREAD_MAX_MS   60000
#define COORD_ALONE           3      /* times that, where no other node is heard */
#define COORD_REACH_MS        120000 /* unheard for so long: no job is kept waiting for it */
#define COORD_LOOK_MS         2000   /* jobs that wait for slots are looked at again */
#define COORD_LATE_MS         2000   /* a tick that comes so late: it was us who did not run */
#define COORD_LEFT_MS         50     /* between two jobs that ended and may have left something */
#define COORD_TIDY_MS         200    /* between two deletions of what is kept no longer */
#define COORD_ROOM_MS         5000   /* between two looks at the journal's disk */
#define COORD_GROWN_MS        60000  /* from rows that were journalled to the next of them */
#define COORD_GRACE_MS        10000  /* after the start: no node is called silent */
#define COORD_JUDGED_MS       15000  /* after it: whoever isn't back by then is gone */
#define COORD_HELLO_MS        3000   /* none so soon after another hello, either, */
#define COORD_GRACE_MAX_MS    120000 /* for so long at most */
#define COORD_ROWS_MS         1000   /* metric rows of that time are journalled together */
#define COORD_ROWS_MAX        4096
#define COORD_LINGER_TURNS    256 /* with more a group lingers no longer */
#define COORD_LINGER_MS       20  /* how late a write that nobody waits for may be */
#define COORD_ORPHANS_MAX     ((size_t)4 * LIMIT_SLOTS) /* of a node: what an agent answers for */
#define COORD_AWAY_MS         600000 /* unheard for so long, a node's entry may be another's */
#define COORD_UNDYING_MS      15000  /* killed so long ago, a process is called undying */
#define COORD_FORMERLY_MAX    8      /* names that an agent's hello may say it had */
#define COORD_DRAIN_AGAIN_MS  1000   /* a node's drain is overdue: what is there is ended again */
#define COORD_DRAIN_FORGET_MS 60000  /* a drain that nobody ends is forgotten */
#define COORD_DESCRIPTORS_OWN 128    /* of the journal, the store, agents and people */
#define COORD_TOO_MANY_NODES                                                                       \
    "there are " COORD_STRING(                                                                     \
        LIMIT_NODES) " nodes, and each is there, was so within 10 minutes, "                       \
                     "has workers or is drained: 'cairn node undrain' those that won't come back"
#define COORD_STRING_OF(x)    #x
#define COORD_STRING(x)       COORD_STRING_OF(x)
#define COORD_OUTBOX_BYTES    ((size_t)32 * 1024 * 1024) /* a larger group is committed at once */
#define COORD_STATE_BYTES_MAX ((size_t)4 * 1024 * 1024)  /* of a job's machine as JSON */
#define COORD_RECOVERY_BYTES  ((size_t)8 * 1024)         /* of a recovery */

/* The outbox: what is to leave when the group is committed (outbox.c). */
struct coord_outbox {
    struct coord_out *list; /* in order; owned, with what is in it */
    size_t count, capacity, bytes;
    size_t urgent; /* how many of them don't wait for more of the group */
};

/* Whether the receiver of a message waits for it, or only for the whole group (COORD_LINGER_MS). */
enum coord_urgency { COORD_AT_ONCE, COORD_WITH_GROUP };

/*
 * A group is all that happens between two calls of coord_commit. Its events are applied one after
 * the other, its writes are one transaction.
 *
 * Invariants:
 */
struct coord {
    struct coord_options options;
    enum status failed;
    struct coord_job **jobs; /* jobs in memory, ascending by seq; owned, as nodes */
    size_t job_count, job_capacity;
    size_t stored;      /* jobs in the journal: these, and others that ended */
    uint64_t uses;      /* the newest `used` of a job */
    uint64_t loads;     /* jobs that were read */
    bool retire_needed; /* there may be too many that ended in memory */
    int64_t left_at;    /* the next job that may have left something is read; INT64_MAX: no more */
    int64_t left_seq;   /* of the newest of these that was read */
    int64_t tidy_at;    /* journal_tidy; INT64_MAX: nothing is to be deleted */
    struct coord_node **nodes;
    size_t node_count;
    struct table jobs_by_id, nodes_by_name;
    struct table withdrawn; /* withdrawals of certificates, by name of node; owned */
    struct ordered live;    /* jobs that are not over, by seq */
    struct ordered queue;   /* jobs that want slots, now or soon, by seq */
    struct ordered hungry;  /* jobs that want slots for more workers, by seq */
    struct timers job_timers, node_timers;
    int64_t seq_last;
    int64_t started_at;
    int64_t beat_ms, lost_ms;   /* agents' beats; without one for so long a node is silent */
    int64_t spread_ms;          /* agents and trainers open lost streams so late; 0: within 1 s */
    int64_t grace_until;        /* nobody is judged before; 0: it is over */
    int64_t hello_at;           /* the newest first one of an agent, or of a trainer that is back */
    bool awaits_nodes;          /* after a start, not all are back that jobs ran on */
    int64_t expects_until;      /* nodes come back: after its start with jobs, or a standstill */
    int64_t draining_until;     /* 0: no */
    int64_t drain_wall;         /* the newest drain began */
    int64_t promised_at;        /* when coord_tick was to be called; INT64_MAX: not at all */
    struct isolation isolation; /* nodes are silent, and nobody is judged by it */
    struct netpaths netpaths;   /* between nodes, that may be broken */
    struct pairs pairs;         /* of nodes, that a person wants to be tried */
    int64_t looked_at;          /* jobs that wait for slots were looked at */
    struct board *board;        /* queue/board.h; owned */
    int64_t room_at;            /* the next look at the journal's disk */
    bool full;                  /* the journal's disk has no room */
    bool schedule_needed;
    bool drained_untold; /* a node was drained, and no job was told */
    bool accused;        /* a node is to be drained */
    bool applying;
    bool begun;              /* the group's transaction */
    uint32_t turns;          /* of the group that wrote something */
    int64_t begun_at;        /* its first write, or its first job that is dirty; 0: there is none */
    struct coord_job *dirty; /* jobs whose state the group changed */
    struct coord_outbox outbox;
    struct fsm_actions actions; /* of the turn */
};

static inline int64_t coord_now(const struct coord *coord)
{
    return clock_mono_ms(coord->options.clock);
}

/* True if the job can't be read, and waits for a version that can read it. */
static inline bool coord_is_kept(const struct coord_job *job)
{
    return job->unreadable[0] && !fsm_state_final(job->m.state);
}

static inline struct coord_job *coord_job_of(struct timer *timer)
{
    return (struct coord_job *)((char *)timer - offsetof(struct coord_job, timer));
}

static inline struct coord_node *coord_node_of(struct timer *timer)
{
    return (struct coord_node *)((char *)timer - offsetof(struct coord_node, timer));
}

/* ---- base.c, fleet_tables.c, index.c: giving up, nodes, jobs ---- */

/*
 * Gives up: nothing leaves any more, and the process ends. It is for what nobody can go on without
 * (memory, the journal), and for records of our own that contradict each other.
 *
 * A failure that concerns one job only (a path or a table that is too large) is for that job to
 * hear. A coordinator that starts again would meet it again, and end again, for all jobs.
 */
void coord_fail(struct coord *coord, enum status st, const char *doing);
/* Writes random hex digits, capacity - 1 of them: an even number, 64 at most. */
void coord_nonce(struct coord *coord, char *out, size_t capacity);
struct coord_job *coord_job_at(struct coord *coord, const char *id); /* NULL: there is none */
/*
 * Makes a job that is in no table yet: QUEUED. It takes spec over, whatever comes back.
 * row: all but state; borrowed.
 */
MUST_CHECK enum status coord_job_new(struct coord *coord, const struct journal_job *row,
                                     struct jobspec *spec, struct coord_job **out);
void coord_job_free(struct coord_job *job);
MUST_CHECK enum status coord_add_job(struct coord *coord, struct coord_job *job);
void coord_remove_job(struct coord *coord, struct coord_job *job);
/*
 * Called after anything that may have changed when the job wants its next tick, whether it wants
 * slots or is over, and which slots its ranks hold. Its cost does not grow with jobs or nodes.
 */
void coord_job_moved(struct coord *coord, struct coord_job *job);
/* Called after a change of a node: when it is heard, silent, blamed. */
void coord_node_moved(struct coord *coord, struct coord_node *node);
/* Returns when the job wants a tick; coord_job_queues: whether it wants slots, now or soon. */
int64_t coord_job_deadline(const struct coord_job *job);
bool coord_job_queues(const struct coord_job *job);
int64_t coord_node_deadline(const struct coord *coord, const struct coord_node *node);
/* Returns when a node that is not heard any more is called silent. */
int64_t coord_node_due(const struct coord *coord, const struct coord_node *node);
/* Notes that all jobs that wait have something else to say. */
void coord_queue_moved(struct coord *coord);
/* Counts the slots of a node that are in use: node->used and the numbers beside it are right from
 * now on. false: no memory; the core failed. */
bool coord_node_count(struct coord *coord, struct coord_node *node);
/* Returns the ranks that hold slots on the node now: a copy of the list, by job and rank; free().
 * NULL: there are none, or no memory, and the core failed. */
struct coord_rank **coord_ranks_of(struct coord *coord, const struct coord_node *node,
                                   size_t *out_count);
/* Applies an event to the job of every rank that holds a slot there, which may move ranks.
 * why_leaving is FSM_EV_LEAVING's. The queue is looked at again. */
void coord_tell_ranks(struct coord *coord, struct coord_node *node, enum fsm_event_kind kind,
                      const char *why_leaving);
static inline uint32_t coord_rank_number(const struct coord_rank *rank)
{
    return (uint32_t)(rank - rank->job->ranks);
}
/* Called when a generation begins: sessions follow their workers to these workers' new ranks. */
void coord_reseat(struct coord *coord, struct coord_job *job);
/* Forgets the meetings of a generation. */
void coord_forget_meetings(struct coord_job *job);
/* Ends what the job knows of a session, if it still has this one. The stream may go on. */
void coord_detach(struct coord_conn *conn);
/* True if an agent or a trainer is of our major and minor version; "" is 0.1. */
bool coord_version_fits(const char *theirs);
/* Returns the version that was said; for "" the one that it counts as. */
const char *coord_version_said(const char *theirs);
struct coord_node *coord_node_make(struct coord *coord, const char *name); /* NULL: LIMIT_NODES */
/* Returns the node of that name, made if there is none. With LIMIT_NODES of them the entry of one
 * that has left, was forgotten or is unheard for long goes, if it holds nothing. Nobody may have a
 * pointer to such a node. NULL: none may go, or no memory. */
struct coord_node *coord_node_admit(struct coord *coord, const char *name);
void coord_nodes_release(struct coord *coord);
/* Notes a withdrawal of certificates, in memory. ST_NO_MEMORY */
MUST_CHECK enum status coord_put_withdrawn(struct coord *coord, const char *name, int64_t time_s);
/* Drops the withdrawals of before that time; returns how many these were. */
size_t coord_drop_withdrawn(struct coord *coord, int64_t before_s);
void coord_release_withdrawn(struct coord *coord);
/* Notes that a trainer that no job has, killed at `since`, holds that slot; coord_orphan_gone: it
 * was seen to be gone. Nothing is added twice. */
void coord_orphan_add(struct coord *coord, struct coord_node *node,
                      const Cairn__V1__TrainerRef *ref, uint32_t slot, int64_t since);
void coord_orphan_gone(struct coord *coord, struct coord_node *node,
                       const Cairn__V1__TrainerRef *ref);
/* True if the GPU's compute capability is enough, or not known. */
bool coord_gpu_serves(const struct coord_gpu *gpu);
/* True if the node has slots of this device kind, of a capability that is enough. */
bool coord_node_has(const struct coord_node *node, const char *device);

/* ---- outbox.c: what waits for the commit ---- */

/* Packs a message. conn may close before it leaves. */
void coord_post(struct coord *coord, struct coord_conn *conn, enum coord_urgency haste,
                const ProtobufCMessage *message);
void coord_hang_up(struct coord *coord, struct coord_conn *conn, enum rpc_code code,
                   const char *detail);
void coord_post_task(struct coord *coord, struct store_task *task); /* takes it over */
/* Posts a fault point between messages (tests), and its context. */
void coord_post_point(struct coord *coord, const char *name, int64_t rank, int64_t generation,
                      int64_t step);
bool coord_outbox_full(const struct coord *coord);
/* Forgets what was to leave over a connection that is gone. */
void coord_outbox_forget(struct coord *coord, const struct coord_conn *conn);
void coord_outbox_empty(struct coord *coord); /* lets all of it leave */
void coord_outbox_release(struct coord *coord);

/* ---- orders.c: what is told to agents and trainers ---- */

/* Orders the rank's agent to start it. A worker that was kept gets its new generation instead. */
void coord_send_start(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Orders the rank to leave its generation and stay; nothing is sent to one that is gone or to be
 * ended. */
void coord_send_park(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Tells a worker that was kept which generation forms and its rank there, over whatever stream it
 * has. */
void coord_send_regroup(struct coord *coord, struct coord_job *job, uint32_t rank,
                        struct coord_conn *conn);
/* Holds the slot of a trainer that nobody saw go: no other one gets it until somebody did. If it
 * lives on, it is ended: by its agent's stream as soon as that is heard, or after its next
 * hello. */
void coord_hold_slot(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Kills the trainer, if it isn't gone; coord_send_end_of: kills one that should not run. */
void coord_send_end(struct coord *coord, struct coord_job *job, uint32_t rank);
void coord_send_end_of(struct coord *coord, struct coord_conn *conn, Cairn__V1__TrainerRef *ref);
/* Tells an agent how often to beat: in a welcome, or because that has changed. */
void coord_send_pace(struct coord *coord, struct coord_conn *conn, bool welcome);
/* Asks the agent of `who` whether it reaches that of `whom`. The order's id, and what it says of a
 * measurement, are in `probe`. */
void coord_send_probe(struct coord *coord, const struct coord_node *who,
                      const struct coord_node *whom, Cairn__V1__Probe *probe);
/* Asks for a probe without a measurement. */
void coord_ask_probe(struct coord *coord, const struct coord_node *who,
                     const struct coord_node *whom, uint64_t round);
/* Tells every agent that is there and needs no copies of the job to forget them; others tell of
 * their copies in a hello. */
void coord_send_forget(struct coord *coord, const struct coord_job *job);
/* Tells the agent which of the copies that its hello names nobody needs. */
void coord_check_copies(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentHello *hello);
/* Sends an order to a rank, if it has a session. message: of the type that the body names. */
void coord_send_order(struct coord *coord, struct coord_job *job, uint32_t rank,
                      enum coord_urgency haste, Cairn__V1__TrainerOrder__BodyCase body,
                      void *message);
/* Says that the generation is over: to one connection, which ends; coord_send_over: to a rank, or
 * all ranks, of the job. */
void coord_send_over_to(struct coord *coord, struct coord_conn *conn, const char *reason);
void coord_send_over(struct coord *coord, struct coord_job *job, uint32_t rank, const char *reason);
/* Sends a rank its assignment (message Plan). */
void coord_send_assignment(struct coord *coord, struct coord_job *job, uint32_t rank);
void coord_send_save_at(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step,
                        bool exit);
void coord_send_stay(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step);
void coord_send_folder(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const struct fsm_action *act);
void coord_send_read_back(struct coord *coord, struct coord_job *job, uint32_t rank,
                          const struct fsm_action *act);
void coord_send_done(struct coord *coord, struct coord_job *job, uint32_t rank, uint64_t step,
                     bool committed);

/* ---- rendezvous.c: ranks find each other ---- */

/* Takes a rank's part of a meeting; with the last one all are answered. */
void coord_meet(struct coord *coord, struct coord_job *job, uint32_t rank,
                const Cairn__V1__Meet *meet);

/* ---- metrics.c: rows of metrics ---- */

/* Takes rows of rank 0, and keeps them until they are journalled. */
void coord_take_rows(struct coord *coord, struct coord_job *job, Cairn__V1__MetricRow *const *rows,
                     size_t count);
/* Notes the loss, pace and evaluation of a row, which people are shown. */
void coord_show_row(struct coord_job *job, uint64_t step, const Cairn__V1__MetricRow *row);
/* Keeps rows that can't be journalled now: of too many, every second one is dropped. */
void coord_keep_rows(struct coord *coord, struct coord_job *job);
/* Writes the kept rows with this group; then rank 0 may forget them. */
MUST_CHECK enum status coord_record_rows(struct coord *coord, struct coord_job *job);

/* ---- tasks.c: what the store is asked ---- */

void coord_submit_store(struct coord *coord, struct coord_job *job, const struct fsm_action *act);

/* ---- inputs/pins.c ---- */

/*
 * Compares the pins that a worker said with the job's: those of the formation with which it began
 * to run. A job that began before data were pinned takes those that are told first. ready: gets
 * what differs, its text in out.
 */
void coord_compare_pins(struct coord *coord, struct coord_job *job, const char *pins,
                        const char *node, struct fsm_ready *ready, struct reason *out);

/* ---- usage.c: what workers and machines use ---- */

/* Takes what a rank of this generation, no spare, says of operations and traffic with its progress;
 * coord_take_usage: takes what an agent's beat says of machine and workers. */
void coord_take_told(struct coord_job *job, uint32_t rank, const Cairn__V1__Progress *progress);
void coord_take_usage(struct coord_node *node, const Cairn__V1__AgentBeat *beat);

/* ---- node_health.c: what is held against nodes ---- */

/* Take what an agent's hello or beat says of its GPUs, and of its clock. */
void coord_take_gpus(struct coord *coord, struct coord_node *node, Cairn__V1__Gpu *const *gpus,
                     size_t count);
void coord_take_clock(struct coord *coord, struct coord_node *node, uint64_t wall_ms);
/* Holds a failure of the job against the node of that rank, as it was the node's fault. */
void coord_blame_node(struct coord *coord, struct coord_job *job, uint32_t rank);
/* Notes that the node computes wrongly, if others could do its work; coord_drain_accused drains
 * such nodes. */
void coord_accuse_node(struct coord *coord, const struct coord_job *job,
                       const struct fsm_action *act);
void coord_drain_accused(struct coord *coord);
/* Takes back what this job's failures hold against nodes, as it failed elsewhere, too. */
void coord_clear_nodes(struct coord *coord, struct coord_job *job);
void coord_verdicts_tick(struct coord *coord, struct coord_node *node); /* forgets what is old */
/* Excuses silence in the time for which this process didn't run, counted from what coord_deadline
 * promised. */
void coord_excuse(struct coord *coord);
/* True if the node was heard within COORD_REACH_MS: it may take jobs, now or soon. */
bool coord_node_in_reach(const struct coord *coord, const struct coord_node *node);

/* Suspects the paths between the nodes of the job's generation, which got stuck: they are tried. */
void coord_netpaths_suspect(struct coord *coord, const struct coord_job *job);
/* True while a path between nodes of the job's newest generation is being tried. */
bool coord_netpaths_open(const struct coord *coord, const struct coord_job *job);
/* Lets spares go that can't take a seat beside the others, since their nodes don't reach each
 * other. true: there were some. */
bool coord_part_spares(struct coord *coord, struct coord_job *job);
/* True if a rank of the job's newest generation is, or was, on that node. */
bool coord_has_node(const struct coord_job *job, const char *node);

/* Sets how often agents beat, and when they are silent, by how many there are. */
void coord_pace_set(struct coord *coord);
/* Returns the time over which agents and trainers spread what they do when their streams were lost.
 * It is about to be told to one of them, and none is judged sooner. */
uint32_t coord_tell_spread(struct coord *coord);
/* Returns how long a node is unheard when all but one of a few beats were missed. */
int64_t coord_quiet_ms(const struct coord *coord);

/* ---- record.c: what the journal gets ---- */

/* Called when what is left to do for a job may have changed, though its state has not. */
void coord_note_ended(struct coord_job *job);
/* Journals the rows of core->actions; the state follows with the group. */
MUST_CHECK enum status coord_record_turn(struct coord *coord, struct coord_job *job,
                                         const struct fsm_event *event);

/* ---- apply.c: event, journal, actions ---- */

struct fsm_event coord_event(const struct coord *coord, enum fsm_event_kind kind);
/* Makes an event of a rank: its agent or its trainer says it. */
struct fsm_event coord_event_of(const struct coord *coord, enum fsm_event_kind kind,
                                uint32_t generation, uint32_t rank);
enum status coord_apply(struct coord *coord, struct coord_job *job, struct fsm_event *event);
/* Adds an event to the job's history that its machine doesn't decide. */
void coord_note(struct coord *coord, struct coord_job *job, const char *what, const char *message);
/* Ends the group as it is: writes it, and lets go what is to leave. */
enum status coord_write(struct coord *coord);
/* Called at the end of every entry: ends a group that has grown large. */
void coord_settle(struct coord *coord);
/* Called before any write: begins the group's transaction, if it has not begun. A write that fails
 * makes the core fail: SQLite may have taken the whole transaction back. */
MUST_CHECK enum status coord_begin(struct coord *coord);
/* Marks the job's state to be written when the group is committed; coord_forget_dirty: it is not
 * written, as the job is gone. */
void coord_mark_dirty(struct coord *coord, struct coord_job *job);
void coord_forget_dirty(struct coord *coord, struct coord_job *job);
/* Writes the job's state as it is now, within a transaction. */
MUST_CHECK enum status coord_record_state(struct coord *coord, struct coord_job *job);
/* Resumes a job that was read from the journal. */
void coord_resume(struct coord *coord, struct coord_job *job);
/* Journals metric rows without an event. */
void coord_flush_rows(struct coord *coord, struct coord_job *job);

static inline bool coord_node_takes(const struct coord_node *node)
{
    return node->stay == COORD_STAYS && !node->drains;
}

/* ---- leaving.c, queue/: who gives slots back, and who gets them ---- */

/* Places jobs if slots changed. It is called at the end of what people ask, as they are told at
 * once what came of it. For all else in the group it is called once, when that is committed. */
void coord_schedule(struct coord *coord);
/* Notes that a node leaves: it takes no more trainers; those that are there save and go on
 * elsewhere. */
void coord_node_leaving(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentLeaving *leaving);
/* Notes that a node's agent had other names: those nodes have left, or leave where workers are,
 * once they are silent. */
void coord_node_renamed(struct coord *coord, const struct coord_node *node,
                        const Cairn__V1__AgentHello *hello);
/* Notes that nothing of a node is left; its stream ends. */
void coord_node_left(struct coord *coord, struct coord_node *node);
/* Marks a node as drained, as the journal has it; until: mono ms, or 0. */
void coord_node_drain(struct coord *coord, struct coord_node *node, const char *reason,
                      int64_t until);
/* Handles a node whose drain's time is over: workers that are still there are ended, once a second.
 * A silent node that has an heir leaves. */
void coord_stay_tick(struct coord *coord, struct coord_node *node);
/* True if the node is silent, and its machine is another node now. */
static inline bool coord_node_inherited(const struct coord_node *node)
{
    return node->heir[0] && node->silent && !coord_node_cut_off(node);
}

/* Notes by the hello of a node's agent that the node stays. */
void coord_node_stays(struct coord_node *node);

/* ---- inputs/probe_results.c: what agents answer of paths (server/fleet/netpaths.h) ---- */

void coord_netpaths_answer(struct coord *coord, const struct coord_node *node,
                           const Cairn__V1__ProbeResult *result);
/* Called at the hello of a node's agent: it is another one, or the same anew. */
void coord_netpaths_hello(struct coord *coord, struct coord_node *node,
                          const Cairn__V1__AgentHello *hello);
void coord_netpaths_tick(struct coord *coord); /* asks agents, and gives up late answers */
void coord_pairs_tick(struct coord *coord);    /* like that, of a check that a person asked for */

/* ---- inputs/trainers.c ---- */

struct fsm_fault coord_fault(const Cairn__V1__Fault *in);
void coord_take_report(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const Cairn__V1__SaveReport *report);

/* ---- inputs/liveness.c ---- */

void coord_note_heard(struct coord *coord, struct coord_node *node);
void coord_pace_changed(struct coord *coord); /* by another agent that has come */
/* Takes what an agent says of a probe, for this file and for inputs/probe_results.c. */
void coord_take_probed(struct coord *coord, const struct coord_node *from,
                       const Cairn__V1__ProbeResult *result);
void coord_nodes_tick(struct coord *coord); /* looks at nodes whose time has come */
void coord_grace_tick(struct coord *coord); /* ends or extends the time of grace */

/* ---- load.c ---- */

/* Reads the journal, and resumes what it holds. */
MUST_CHECK enum status coord_load(struct coord *coord);
/* Drops a job from memory; its streams are told why. Nobody points at it after this. */
void coord_drop_job(struct coord *coord, struct coord_job *job, const char *why);
/* Brings a job that ended from the journal into memory. Errors: those of the journal */
MUST_CHECK enum status coord_bring(struct coord *coord, const char *id, struct coord_job **out);
/* Drops jobs from memory that ended, that nobody uses, and that were asked for longest ago, until
 * there are fewer than options.ended_max, less `room`. Returns whether there are. */
bool coord_retire(struct coord *coord, size_t room);
/* Does a little of what is done bit by bit: jobs that may have left something, rows that are kept
 * no longer. */
void coord_chores_tick(struct coord *coord);
