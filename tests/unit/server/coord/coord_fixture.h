/*
 * The core on the bench: a journal of its own, a clock that stands still unless a test moves it, a
 * store that takes files and nothing more, and streams whose other end is looked at.
 */
#pragma once

#include "server/coord/coord.h"

/* The other end of a stream. */
struct far_end {
    struct coord_conn conn; /* first */
    bool finished;          /* by the core, with this code and detail */
    enum rpc_code code;
    char detail[LIMIT_REASON];
    bool closed;             /* the core was told: it must not touch it any more */
    uint32_t sent[64];       /* messages, by the number of their body */
    char text[LIMIT_REASON]; /* the newest notice, or why it is Over */
    uint64_t probe;          /* id of the newest order to probe */
    char ended[64];          /* the newest order to end a trainer: "JOB gG rR" */
};

struct coord_world {
    char dir[64];
    char path[128]; /* of the journal */
    struct journal *journal;
    struct coord *coord;
    struct clock clock;
    int64_t now;       /* monotonic; the wall clock is a fixed time later */
    int64_t wall_step; /* by which somebody set the wall clock */
    struct log log;
    bool open;                /* the group isn't committed with each event: coord_end_group's caller
                               * does that */
    struct store_task *probe; /* not answered yet */
    uint32_t tasks;           /* that the store was given */
    uint64_t descriptors;     /* that the core may have, from its next start on; 0: any number */
    int64_t hang_ms;          /* from its next start on; 0: 30 s */
    uint32_t ended_max; /* the same of jobs that ended and are in memory; 0: the usual bound */
    enum status (*summary)(void *arg, struct coord_job *job,
                           struct buf *out); /* the same; or NULL */
    const char *by;                          /* who submits; NULL: nobody knows */
    uint32_t beats;                          /* while the core loaded */
    int64_t load_ms;                         /* by which the clock goes on with each of them */
};

/* For cmocka: an empty core in *state. */
int coord_setup(void **state);
int coord_teardown(void **state);
void coord_start(struct coord_world *w);
void coord_stop(struct coord_world *w);
/* The core ends, and another one reads the journal. */
void coord_restart(struct coord_world *w);
/* Commits, unless the world's groups are left open. All functions below do it at their end. */
void coord_end_group(struct coord_world *w);
/* Time passes, with the ticks that the core asks for. */
void coord_pass(struct coord_world *w, int64_t ms);

/* ---- agents ---- */

/* A stream that is open, without a hello. */
void far_open(struct far_end *far, const char *token);
Cairn__V1__AgentHello far_agent_hello(const char *node, const char *boot); /* 4 slots */
void far_say_hello(struct coord_world *w, struct far_end *far, Cairn__V1__AgentHello *hello);
void far_join(struct coord_world *w, struct far_end *far, const char *node, const char *boot);
/* A worker's process has ended there; exited: how, its ref is set. */
void far_say_exited(struct coord_world *w, struct far_end *far, const char *job,
                    uint32_t generation, uint32_t number, Cairn__V1__TrainerExited *exited);
/* By SIGKILL. */
void far_say_killed(struct coord_world *w, struct far_end *far, const char *job,
                    uint32_t generation, uint32_t number);
void far_beat(struct coord_world *w, struct far_end *far);
/* To the probe that it was asked for last; the id is set. */
void far_say_probed(struct coord_world *w, struct far_end *far, Cairn__V1__ProbeResult *result);
void far_probed(struct coord_world *w, struct far_end *far, bool reached);
/* The stream is over: the core is told, for the last time. */
void far_close_agent(struct coord_world *w, struct far_end *far);

/* ---- trainers ---- */

void far_trainer_hello(struct coord_world *w, struct far_end *far, Cairn__V1__TrainerHello *hello);
/* The hello of a rank of the job's generation. */
void far_attach(struct coord_world *w, struct far_end *far, const struct coord_job *job,
                uint32_t rank);
void far_close_trainer(struct coord_world *w, struct far_end *far);

/* ---- jobs ---- */

enum status coord_submit_text(struct coord_world *w, const char *text, struct coord_job **out,
                              struct reason *reason);
/* Submits a job of two workers: FORMING if an agent is there, else QUEUED. */
struct coord_job *coord_submit_one(struct coord_world *w, const char *name);
/* Asserts what blocks the job now, and a part of the text. */
void coord_is_blocked(struct coord_world *w, const struct coord_job *job, enum fsm_block by,
                      const char *part);
