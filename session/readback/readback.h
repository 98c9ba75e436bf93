/*
 * A rank's share in reading a committed checkpoint back, beside training: a thread of low priority
 * that reads and checks the shard files which another rank has written.
 *
 * Of n ranks, rank r reads the files s with (s + 1) mod n == r: nobody reads its own, where there
 * is another; together they read all.
 *
 * One at a time: a later order takes the place of what is under way.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/io.h"
#include "common/limits.h"
#include "common/reason.h"
#include "common/status.h"

struct readback_order {
    uint64_t step;
    uint32_t generation, shards;
    uint32_t rank, ranks; /* this rank, and the number of ranks that read */
    uint64_t bytes;       /* of all files */
    uint64_t spread_ms;   /* take about so long; 0: as fast as it goes */
    char dir[LIMIT_PATH];
};

/* Progress of reading back. */
struct readback_news {
    uint64_t step;
    uint32_t generation;
    uint32_t shard; /* done, not ST_OK: the file that was read */
    uint64_t bytes; /* read and checked */
    bool done;
    enum status status; /* the rest with done */
    struct reason why;  /* one line */
};

struct readback;

struct readback_options {
    const struct io *io;
    /* Once a second while it gets on, and when it is done; by its thread. */
    void (*news)(void *arg, const struct readback_news *news);
    /* A save is being written: what is read waits a little. NULL: never. By its thread. */
    bool (*busy)(void *arg);
    void *arg;
};

MUST_CHECK enum status readback_new(const struct readback_options *options, struct readback **out);
/* Ends what is under way, without news. NULL is fine. */
void readback_free(struct readback *readback);
/* Thread: any. Returns at once. */
void readback_start(struct readback *readback, const struct readback_order *order);
