/*
 * Declarations that the files of a rank's run share: the object.
 *
 *     rank_run.c       the generations of a process: run, park, go on
 *     rank_comm.c      communicators, which an order to park aborts
 *     rank_command.c   the job's own program, where it has one instead of a model
 *     rank_form.c      from hello to Ready, for one that is new and for one that goes on
 *     rank_state.c     the state: from other workers, from copies, a checkpoint or the seed
 *     rank_peak.c      the most that it could compute
 *     rank_rows.c      rows of metrics that rank 0 may not have told
 *     rank_failure.c   what a failure is to the coordinator and to the process
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "checkpoint/store/store.h"
#include "common/buf.h"
#include "common/flight.h"
#include "common/io.h"
#include "common/log.h"
#include "common/reason.h"
#include "jobspec/jobspec.h"
#include "session/session.h"
#include "trainer/command/command.h"
#include "trainer/loop/loop.h"
#include "trainer/peak/peak_cache.h"
#include "trainer/program/link.h"
#include "trainer/program/rank.h"
#include "trainer/program/rank_rows.h"
#include "trainer/program/signals.h"
#include "trainer/state/copy_exchange.h"

#define RANK_COMM_OPEN_MS INT64_C(60000) /* the others may still be preparing their model */

/* Uses of communicators: the worker's (struct worker_comms), and one for the state. */
enum rank_comm_use {
    RANK_COMM_WORLD,
    RANK_COMM_STATE,
    RANK_COMM_GROUP,
    RANK_COMM_PIPE,
    RANK_COMMS
};

/* A communicator that an order to park aborts. */
struct rank_comm {
    const struct comm_table *table;
    struct comm *comm; /* NULL: there is none */
};

/* Most operations a second that the rank could do. */
struct rank_peak {
    char key[PEAK_KEY_BYTES]; /* the key that flops were measured or found for; "": none yet */
    double flops;
};

/* Objects that a session borrows for its life, and the session itself once it was left: its saver
 * may still be at the store. */
#define RANK_SEATS 5 /* a session, and those that were left */
struct rank_seat {
    struct log log;
    struct session_retired *retired; /* NULL: the seat is free, or of the session that there is */
};

struct rank {
    /* Members of the process. */
    const struct rank_options *options;
    struct flight *flight;
    struct ckpt_store *store;
    struct io io; /* the store's, which waits for what other machines made */
    struct signals *signals;
    char *job_text; /* the text of `job`; owned */
    struct jobspec *job;
    struct progress progress;
    struct worker *worker;
    char nccl_text[JOBSPEC_ENV_MAX][JOBSPEC_ENV_NAME + JOBSPEC_ENV_VALUE];
    const char *nccl[JOBSPEC_ENV_MAX];
    struct session_parked kept;      /* the state that it has */
    struct loop_resume_point resume; /* of kept.step */
    struct rank_rows rows;
    struct session_copy_cost copy_cost; /* cost of copies and steps */
    struct rank_peak peak;
    bool goes_on;    /* the process was in a generation before */
    uint32_t number; /* of the worker; its rank is in the assignment */

    /* Members of the generation. */
    uint32_t generation;
    char token[SESSION_TOKEN];
    struct rank_seat seats[RANK_SEATS];
    struct rank_seat *seat; /* of this generation */
    struct log *log;        /* the seat's */
    struct trainer_link *link;
    struct session *session;
    struct session_assignment assignment;
    struct stage_plan stages; /* the assignment's */
    uint32_t *copy_peers;     /* trainer/state/copy_peers.h; NULL: no copies go to other nodes */
    size_t peer_copy_bytes;   /* with copy_peers: of the largest share of any rank */
    struct copy_exchange *exchange;
    struct buf pins;
    bool adapts_copy_interval; /* how often they are taken follows from what they cost */
    struct reason no_copies;   /* why there are none between saves */
    enum session_lack lack;    /* extras that there is no memory for */
    struct reason lacks;       /* ... in words */
    bool at_store;             /* a failure now is one of the checkpoint store */
    bool of_node;              /* the failure is one of this node's device, files or rights */
    uint32_t damaged;          /* 1 + the file of the checkpoint that read damaged; 0: none */
    uint32_t blamed; /* 1 + the rank whose state came damaged, or that computed wrongly; 0: none */
    uint64_t good_step; /* ... up to which nothing was wrong */
    struct reason reason;

    pthread_mutex_t comm_mutex;
    struct rank_comm comms[RANK_COMMS]; /* under comm_mutex */
    struct command_worker *command;     /* likewise; NULL: the job has a model */
    bool aborted;                       /* likewise: Park came */
};

/* True if the state comes from workers of this generation. */
static inline bool rank_is_live(const struct rank *r)
{
    return r->assignment.live_source_count > 0;
}

/* Returns the finished steps to begin with; 0: the seed. */
static inline uint64_t rank_first_step(const struct rank *r)
{
    return rank_is_live(r) ? r->assignment.live_step : r->assignment.restore_step;
}

/* Returns the generation's token; NULL: there is none. */
static inline const char *rank_token(const struct rank *r)
{
    return r->token[0] != '\0' ? r->token : NULL;
}

/* ---- rank_comm.c ---- */

/* Opens the worker's communicators and its reduction. */
MUST_CHECK enum status rank_connect(struct rank *r);
/* Lets go of the communicators, and of the worker's unfinished work. */
void rank_disconnect(struct rank *r);
/* Opens a communicator over host memory, for anything but steps; one at a time. */
MUST_CHECK enum status rank_open_host_comm(struct rank *r, const char *round_name,
                                           struct comm **out);
/* Closes that communicator, if there is one. st: how its use ended; after a failure it doesn't wait
 * for the others, and the rank that failed is blamed. */
void rank_close_host_comm(struct rank *r, enum status st);
/* Function `park` of the session's options. Thread: the link's. */
void rank_abort_communication(void *arg, const char *reason);

/* ---- rank_command.c ---- */

/* Runs the job's own program in this generation, as rank_run.c does with a model. The session has
 * the report of a failure when it returns. */
MUST_CHECK enum status rank_run_command(struct rank *r, int *out_code);

/* ---- rank_form.c ---- */

MUST_CHECK enum status rank_join(struct rank *r);
/* Parses the job again if its text has changed. It may differ where a running job's may; settings
 * that the worker was built with are not read again. */
MUST_CHECK enum status rank_parse_job(struct rank *r);
MUST_CHECK enum status rank_form(struct rank *r);
MUST_CHECK enum status rank_get_ready(struct rank *r);
/* Like rank_get_ready, for a spare; after rank_form. */
MUST_CHECK enum status rank_get_warm(struct rank *r);
/* Start and stop the exchange of copies with other nodes. */
void rank_start_exchange(struct rank *r);
void rank_stop_exchange(struct rank *r, bool waits);

/* ---- rank_state.c ---- */

MUST_CHECK enum status rank_fill_state(struct rank *r);
/* True if another generation can go on from this rank's state. */
bool rank_may_keep(const struct rank *r);

/* ---- rank_peak.c ---- */

/* Returns the most operations a second that this rank could do; 0: not known. They are measured
 * when a job begins (trainer/peak/measure.h); later the number is kept, so that no recovery waits
 * for it. */
double rank_peak_flops(struct rank *r);

/* ---- rank_failure.c ---- */

/* True if the failure is one that ranks see whose generation ends elsewhere: the process can go
 * on. */
bool rank_can_park(const struct rank *r, enum status st);
/* Tells the coordinator what went wrong; returns the exit code. */
int rank_report_failure(struct rank *r, enum status st);
