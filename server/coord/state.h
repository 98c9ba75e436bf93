/*
 * The state of the coordinator: struct coord, which its files share, with their times and bounds.
 * The functions of each file are declared in a header of the same name; coord.h has what others may
 * call.
 *
 * The files in the order of their layers, from floor to roof. A file calls functions of those
 * before it in this list, never of those after it:
 *
 *   base             giving up, random names
 *   fleet_tables     nodes, and which of their slots are taken
 *   index            jobs, and which worker has which rank
 *   outbox           what waits for the commit
 *   node_health      what is held against nodes
 *   orders           what is told to agents and trainers
 *   rendezvous       ranks find each other
 *   metrics          rows of metrics
 *   tasks            what the store is asked
 *   usage            what workers and machines use
 *   record           what the journal gets
 *   apply            event, journal, actions
 *   leaving          who gives slots back
 *   load             the journal, read
 *   queue/board.h    slots that are free, and the jobs that they are kept for
 *   queue/waiting, place, queue     who gets slots
 *   inputs/          the ways in: agents, trainers, the store's answers, people, time
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
#define COORD_SPACE_MS        5000   /* between two looks at the journal's disk */
#define COORD_GROWN_MS        60000  /* from rows that were journalled to the next of them */
#define COORD_GRACE_MS        10000  /* after the start: no node is called silent */
#define COORD_JUDGED_MS       15000  /* after it: whoever isn't back by then is gone */
#define COORD_HELLO_MS        3000   /* none so soon after another hello, either, */
#define COORD_GRACE_MAX_MS    120000 /* for so long at most */
#define COORD_ROWS_MS         1000   /* metric rows of that time are journalled together */
#define COORD_ROWS_MAX        4096
#define COORD_LINGER_TURNS    256 /* with more a group lingers no longer */
#define COORD_COMMIT_DELAY_MS 20  /* how late a write that nobody waits for may be */
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

/* Whether the receiver of a message waits for it, or only for the whole group
 * (COORD_COMMIT_DELAY_MS). */
enum coord_urgency { COORD_COMMIT_SOON, COORD_WITH_GROUP };

/*
 * A group is all that happens between two calls of coord_commit. Its events are applied one after
 * the other, its writes are one transaction.
 *
 * Invariants:
 *   1 Nothing leaves but out of coord_write, and that after the group's transaction: messages, ends
 *     of streams and store tasks wait in the outbox. If the commit fails, `failed` is set and
 *     nothing leaves any more.
 *   2 A job whose state differs from the journal's is in `dirty`, or its machine's turn is on.
 *   3 No turn begins within a turn (`applying`): actions don't call back.
 *   4 What is kept of jobs and nodes, so that nobody has to look at all of them, is right between
 *     two entries: whatever moves one calls coord_job_moved, coord_node_moved (see coord_check).
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
    struct ordered lacking; /* jobs that want slots for more workers, by seq */
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
    int64_t space_at;           /* the next look at the journal's disk */
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
static inline bool coord_is_unreadable(const struct coord_job *job)
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

static inline uint32_t coord_rank_number(const struct coord_rank *rank)
{
    return (uint32_t)(rank - rank->job->ranks);
}

static inline bool coord_node_takes(const struct coord_node *node)
{
    return node->stay == COORD_STAYS && !node->drains;
}

/* True if the node is silent, and its machine is another node now. */
static inline bool coord_node_inherited(const struct coord_node *node)
{
    return node->successor[0] && node->silent && !coord_node_cut_off(node);
}
