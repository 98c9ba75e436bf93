/*
 * The calls of NCCL that comm/nccl.c uses, between ranks that are threads of one process, on the
 * streams of async_device.h. Keeps NCCL's rules, and checks that the caller does: a communicator
 * that is aborted is neither finalized nor destroyed, nothing is enqueued while it is in progress.
 *
 * An abort waits until nothing of NCCL runs on the device any more, of other communicators either;
 * several in one group wait together.
 *
 * A peer that never comes leaves the others' work hanging on their streams, until they abort.
 *
 * Thread: any.
 */
#pragma once

#include <nccl.h>
#include <stdint.h>

/* How many polls each new communicator, and each group, stays in progress. */
void fake_nccl_progress(int polls);
/* What ncclCommInitRankConfig answers from now on; ncclSuccess: as usual. */
void fake_nccl_refuse(ncclResult_t result);
/* What the asynchronous state of all communicators becomes that `rank` isn't: it died. Those that
 * are formed later know nothing of it. */
void fake_nccl_lose(int rank);

struct fake_nccl_counts {
    int formed, aborted, finalized, destroyed;
    int live;        /* formed and neither aborted nor destroyed */
    int all_gathers; /* ncclAllGather, by its own name */
    int all_reduces;
    int max_ctas; /* of the last configuration */
    int blocking;
};
struct fake_nccl_counts fake_nccl_counts(void);
