/*
 * The simulated coordinator, as its own files see it.
 */
#pragma once

#include "server/coord/coord.h"
#include "tests/sim/sim.h"

struct sim_conn {
    struct coord_conn base; /* first */
    char job[16];           /* of a trainer, as the core knew it last */
    struct sim_conn *next;  /* of all that ever were: parcels under way point at them */
    struct sim *sim;
    bool agent, coord_open, far_open;
    uint32_t node;
    bool leaves; /* its agent, and the core has heard of it */
    uint64_t epoch;
    const struct sim_far_ops *ops;
    void *far;
    int64_t to_far_at, to_core_at; /* messages stay in order */
};

struct coordinator {
    struct coord *coord; /* NULL: it is down */
    struct journal *journal;
    struct log log;
    uint64_t epoch;
    bool crashed;         /* within a call of the core */
    int64_t outputs_left; /* until it crashes; negative: it doesn't */
    uint32_t group_left;  /* calls of the core until it commits; 0: a group begins with the next */
    bool ending;          /* or at a time that is set */
    int64_t tick_at;
    int64_t store_at;        /* when its store thread is free */
    int64_t frozen_until;    /* stopped: what comes waits */
    int64_t unplugged_until; /* its network is away */
    int64_t started_at;
    struct sim_conn *conns;
};

/* After a call of the core: commits, if this was the last of its group, and wakes it when the next
 * thing is due. */
void sim_poll_core(struct sim *sim);
/* Commits now. */
void sim_end_group(struct sim *sim);
/* An output is about to leave; false: it doesn't, the process is dead. */
bool sim_may_leave(struct sim *sim);
/* Something for the core: true if it has to wait, and comes again when the process runs. */
bool sim_has_to_wait(struct sim *sim, sim_fn fn, void *arg, uint64_t number);
/* The delay with which it comes no sooner than what was sent before it. */
int64_t sim_in_order(struct sim *sim, int64_t *last, int64_t delay_ms);

/* ---- sim_tasks.c ---- */

/* A store_port's submit; self: struct sim. */
void sim_task_submit(void *self, struct store_task *task);
void sim_task_drop(sim_fn fn, void *arg);
