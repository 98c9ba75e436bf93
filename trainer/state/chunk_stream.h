/*
 * Memory that some ranks have, the same on each, streamed to the ranks that lack it.
 *
 * Its buffers are cut into chunks, numbered on. Chunk i comes from source i mod n, so that n
 * sources send at once, one chunk each to every rank that receives, in a *round*. A round's chunks
 * are hashed by their sources while they are sent, and by their receivers while the next round
 * comes; the two must agree. A chunk that differs is asked for once more when all have come, of the
 * source after the one that it came from.
 *
 *     round     0                1                2
 *     source    send 0 | hash 0  send 1 | hash 1  send 2 | hash 2
 *     receiver  receive 0        receive 1 | hash 0        ...
 *
 * The hashes of a round follow its chunks as a message of their own.
 *
 * Memory: in host memory the chunks go straight from and to where they lie. On a device they go
 *         through pinned memory of two rounds, CHUNK_STREAM_ROUND bytes each or 64 KiB per source.
 * Time:   a round costs two handoffs between all threads, so chunks are large; the round is bounded
 *         so that a tick comes every few seconds on a network of 100 Mbit.
 * Thread: one, on all ranks together; another hashes.
 * Errors: ST_CORRUPT  a chunk came damaged twice; the memory must not be used
 *         those of comm/comm.h and of the backend: likewise
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/reason.h"
#include "common/status.h"
#include "trainer/device/device.h"

#define CHUNK_STREAM_BYTES ((size_t)16 * 1024 * 1024) /* of a chunk, at most */
#define CHUNK_STREAM_ROUND ((size_t)32 * 1024 * 1024) /* what a rank sends, or gets, in a round */

struct chunk_buffer {
    void *data; /* the device's memory, or the host's */
    size_t bytes;
};

struct chunk_stream_options {
    const struct comm_table *table; /* of host memory */
    struct comm *comm;
    uint32_t rank, size;
    const uint32_t *sources; /* ranks, ascending, at least one; the others receive */
    size_t source_count;
    const struct chunk_buffer *buffers; /* of the same sizes on all ranks */
    uint32_t buffer_count;
    const struct device *device; /* where the buffers lie; NULL: host memory */
    void (*tick)(void *arg);     /* a round is done; NULL: nobody wants to know */
    void *tick_arg;
};

/* out_blamed: with ST_CORRUPT, the rank whose chunk was damaged last. */
MUST_CHECK enum status chunk_stream_run(const struct chunk_stream_options *options,
                                        uint32_t *out_blamed, struct reason *reason);
