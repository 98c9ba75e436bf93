/* The object that the files of the reducer share. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/reducer.h"
#include "comm/reducer_order.h"

struct reducer {
    const struct comm_table *table;
    struct comm *comm;
    uint32_t rank, size, lanes;
    bool fast;
    size_t count, bucket_count;
    size_t *bucket_begin, *bucket_end; /* [bucket_count] */
    size_t *borders;                   /* [bucket_count][size + 1] of each bucket its chunks */
    size_t kept;                       /* buckets that aren't gathered */
    int64_t timeout_ms;
    struct reducer_watch watch;

    const struct backend_table *device; /* NULL: host memory */
    struct backend *backend;
    struct stream *compute, *communication;
    struct event **event; /* [event_count] the bucket is complete on the compute stream */
    size_t event_count;   /* bucket_count at least */
    struct event *turn;   /* reducer_gather: the one stream is through, the other may go on */
    struct event *drained;

    struct reducer_local local;
    float **buffer;                 /* [buffer_count][count]; local.buffers of them are in use */
    struct reducer_extent *extents; /* [extent_count] what of each buffer is memory */
    size_t extent_count;
    uint32_t *partial_count; /* [size] partial sums of each rank */
    uint32_t buffer_count;
    bool stuck;               /* the device didn't let go of the buffers */
    uint32_t rounds;          /* the largest of partial_count */
    uint32_t operand_count;   /* of the owner's tree: all partial sums of all ranks, rank by rank */
    uint32_t *operand_of;     /* [size] first operand of each rank */
    struct reducer_add *tree; /* [operand_count - 1] what an owner adds */
    float **operand;          /* [operand_count] where each lies, of the bucket in work */
    float *staging;           /* [operands of others, chunk_max] where they are received */
    size_t staging_count;     /* floats that there is room for */
    size_t chunk_max;         /* elements of this rank's chunk of the largest bucket */
    struct comm_segment *send, *recv; /* [size] */

    /* Own lanes done in this step, per section, and the sections that exist; step thread only. */
    uint32_t lane[REDUCER_SECTIONS_MAX];
    bool has_section[REDUCER_SECTIONS_MAX];

    bool has_thread;
    pthread_t thread;
    pthread_mutex_t mutex; /* of all below */
    pthread_cond_t changed;
    size_t *order;        /* [bucket_count] buckets as they were handed over */
    bool *is_handed_over; /* [bucket_count] in this step */
    size_t ready;         /* how many were handed over */
    size_t done;          /* how many of those are reduced */
    enum status status;
    bool quit;
};

/* The communication thread; size > 1. */
void *reducer_communication_run(void *arg);
