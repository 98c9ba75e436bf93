/*
 * Inside of comm/nccl.h: nccl.c (errors, waiting, open, close, abort; the invariants), nccl_calls.c
 * (what is enqueued).
 */
#pragma once

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "comm/comm.h"
#include "comm/group.h"
#include "comm/nccl.h"
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
    bool ordered;             /* what comes on compute comes after it */
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

    struct event *computed; /* what a bundle comes after; NULL without compute */
    struct posts posts;     /* of: its struct nccl_bundle */
    struct nccl_bundle bundles[COMM_POSTS_MAX + 1], *bundle_free, *open_bundle;
    size_t bundle_used;
    struct nccl_message messages[COMM_POSTS_MAX]; /* [message_count] of the open bundle */
    size_t message_count;
};

/* A call is between these; enter fails as the communicator has. */
enum status nccl_enter(struct comm *comm, int64_t timeout_ms);
enum status nccl_leave(struct comm *comm, enum status st);

/* All below: inside. A failure ends the communicator; returned is what it failed with first. */
enum status nccl_fail(struct comm *comm, enum status st, const char *why);
enum status nccl_fail_of(struct comm *comm, ncclResult_t result);
/* One look at all that can end a wait; ST_AGAIN: NCCL is in progress. */
enum status nccl_look(struct comm *comm, int64_t deadline_ns);
/* Waits until what was asked of NCCL is enqueued. */
enum status nccl_settle(struct comm *comm, ncclResult_t result, int64_t timeout_ms);
/* Waits for the stream. */
enum status nccl_wait_inside(struct comm *comm, int64_t timeout_ms);

/* Of comm_table. */
enum status nccl_all_to_all_v(struct comm *comm, const struct comm_segment *send,
                              const struct comm_segment *recv, int64_t timeout_ms);
enum status nccl_all_gather_v(struct comm *comm, const struct comm_segment *segments,
                              int64_t timeout_ms);
enum status nccl_send_to(struct comm *comm, int peer, const void *data, size_t size,
                         int64_t timeout_ms);
enum status nccl_recv_from(struct comm *comm, int peer, void *data, size_t size,
                           int64_t timeout_ms);
enum status nccl_all_reduce_f32(struct comm *comm, float *data, size_t count, int64_t timeout_ms);
enum status nccl_wait(struct comm *comm, int64_t timeout_ms);
enum status nccl_post_begin(struct comm *comm);
enum status nccl_post_send(struct comm *comm, int peer, const void *data, size_t size,
                           struct comm_post *out);
enum status nccl_post_recv(struct comm *comm, int peer, void *data, size_t size,
                           struct comm_post *out);
enum status nccl_post_end(struct comm *comm, int64_t timeout_ms);
enum status nccl_wait_one(struct comm *comm, const struct comm_post *post, int64_t timeout_ms);
