/*
 * Where the handlers of a server run.
 *
 * A zero executor runs them inline, on the thread of the completion queue. With a mailbox they run
 * on the one thread that drains it, so that a state machine needs no lock: that thread polls
 * rpc_mailbox_fd beside its other descriptors and calls rpc_mailbox_drain when it is readable.
 */
#pragma once

#include <stdatomic.h>

#include "rpc/rpc.h"

/* A task is embedded in the object that it is about: posting allocates nothing. */
struct rpc_task {
    struct rpc_task *_Atomic next;
    void (*run)(struct rpc_task *task);
};

struct rpc_executor {
    void *self;
    /* Posts a task, from any thread; tasks of one producer run in the order in which it posted
     * them. */
    void (*post)(void *self, struct rpc_task *task);
};

struct rpc_mailbox;

/* Errors: ST_FULL  no descriptor for the doorbell */
MUST_CHECK enum status rpc_mailbox_new(struct rpc_mailbox **out);
void rpc_mailbox_free(struct rpc_mailbox *mailbox);

/* Readable when work is waiting. */
int rpc_mailbox_fd(const struct rpc_mailbox *mailbox);

/* Runs at most count_max waiting tasks and returns how many. Thread: the consumer only. */
unsigned rpc_mailbox_drain(struct rpc_mailbox *mailbox, unsigned count_max);

/* Thread: any; a task may be posted again from its own run(). */
void rpc_mailbox_post(struct rpc_mailbox *mailbox, struct rpc_task *task);

struct rpc_executor rpc_mailbox_executor(struct rpc_mailbox *mailbox);
