/*
 * Ranks over comm/nccl.c: threads with a fake device each (tests/gpu), and a rendezvous that they
 * share.
 */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "comm/comm.h"
#include "kernels/backend.h"
#include "tests/unit/comm/comm_fixture.h"

#define NCCL_RANKS_MAX 4
#define NCCL_LONG_MS   60000

struct nccl_rank {
    struct rendezvous rendezvous;
    int rank, size;
    int64_t timeout_ms;
    enum status (*body)(struct nccl_rank *rank);
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream, *compute;
    struct comm *comm;
    enum status opened, st;
    pthread_t thread;
    void *arg;
};

/* A second communicator of the rank: calls are enqueued on `stream`, posts come after and before
 * what is on rank->compute. */
enum status nccl_open_some(struct nccl_rank *rank, const struct comm_some *some,
                           struct stream *stream, struct comm **out);
void nccl_open_device(struct nccl_rank *rank);
void nccl_close_device(struct nccl_rank *rank);
/* A thread's body: device, communicator, rank->body, and all closed again. */
void *nccl_run_rank(void *rank);
/* Ranks [0, present) of size come. */
void nccl_run_some(struct nccl_rank *ranks, int present, int size, int64_t timeout_ms,
                   enum status (*body)(struct nccl_rank *rank), void *arg);
/* All come, all succeed, and nothing is left. */
void nccl_run_well(int size, enum status (*body)(struct nccl_rank *rank), void *arg);
