/*
 * An open communicator of NCCL: its errors, how it waits, how it ends. Inside of comm/nccl.h.
 */
#pragma once

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/comm.h"
#include "comm/posts.h"
#include "common/reason.h"

struct nccl_message {
    void *data;
    size_t size;
    int peer;
    bool is_send;
};

struct nccl_bundle {
    struct event *through;    /* recorded behind it; made when first used, NULL without compute */
    uint32_t left;            /* posts that aren't waited for */
    bool ordered;             /* later work on compute waits for the bundle */
    struct nccl_bundle *next; /* free ones */
};

struct comm {
    int rank, size; /* among the members */
    struct comm_device device;
    cudaStream_t stream;
    struct event *done;
    ncclComm_t nccl; /* NULL: size 1, or aborted */
    pthread_mutex_t inside;
    atomic_int ending;    /* the status to end as, set by any thread; ST_OK: not asked for */
    enum status failed;   /* the first error; returned by every later call */
    struct reason why;    /* of failed */
    struct comm *next;    /* of the living */
    struct comm *entered; /* the next of those that are being ended along with another */

    struct event *computed; /* recorded before a bundle; NULL without compute */
    struct posts posts;     /* of: its struct nccl_bundle */
    struct nccl_bundle bundles[COMM_POSTS_MAX + 1], *bundle_free, *open_bundle;
    size_t bundle_used;
    struct nccl_message messages[COMM_POSTS_MAX]; /* [message_count] of the open bundle */
    size_t message_count;
};

/* Begin and end a call; enter fails as the communicator has. */
enum status nccl_enter(struct comm *comm, int64_t timeout_ms);
enum status nccl_leave(struct comm *comm, enum status st);

/* All functions below are called inside. A failure ends the communicator; its first error is
 * returned. */
enum status nccl_fail(struct comm *comm, enum status st, const char *why);
enum status nccl_fail_of(struct comm *comm, ncclResult_t result);
/* Checks once for all that can end a wait; ST_AGAIN: NCCL is in progress. */
enum status nccl_look(struct comm *comm, int64_t deadline_ns);
/* Waits until what was asked of NCCL is enqueued. */
enum status nccl_settle(struct comm *comm, ncclResult_t result, int64_t timeout_ms);
/* Waits for the stream. */
enum status nccl_wait_inside(struct comm *comm, int64_t timeout_ms);
/* Ends the communicator, which failed as st, and the others of the backend. */
void nccl_end(struct comm *comm, enum status st);
/* Whether any thread has told it to end; it has, then. */
bool nccl_ends_as_told(struct comm *comm);

/* Sleeps between two looks of a wait that began at since_ns. */
void nccl_nap(int64_t since_ns);

/* Lists the communicator: from now on it is ended along with another one of its backend. */
void nccl_be_living(struct comm *comm);
/* Takes the communicator off the list; a thread that is inside already may still end it. */
void nccl_be_gone(const struct comm *comm);
