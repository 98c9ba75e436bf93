/*
 * Micro-batches where the device reads them, in the order of a prefetch ring.
 *
 * In host memory an item is the ring's own. Else the ring lies in memory that the device copies
 * from, and two entries on the device take turns: while one is computed with, the next micro-batch
 * is copied into the other, on the input stream.
 *
 * Use: feed_start → feed_take → … enqueue what reads it … → feed_done → feed_take …
 *
 * Memory: allocated at open. Items on a device lie at the same two addresses for the feed's life.
 * Thread: one. Errors: those of prefetch_take and of the backend
 */
#pragma once

#include <stdint.h>

#include "common/status.h"
#include "trainer/data/prefetch.h"
#include "trainer/device/device.h"
#include "trainer/tape/tape.h"

struct feed;

struct feed_item {
    uint64_t step; /* evaluation: the batch */
    uint32_t lane, micro;
    const void *inputs[TAPE_INPUTS_MAX]; /* x, labels, kinds of masked tokens */
    const uint32_t *draw;                /* NULL in evaluation */
};

/* device and options->source.dataset are borrowed for life; options->memory is not read. */
MUST_CHECK enum status feed_open(const struct device *device,
                                 const struct prefetch_options *options, struct feed **out);
void feed_close(struct feed *feed);

/* Drops the items that are there and goes on from this step (evaluation: from the first batch). */
void feed_start(struct feed *feed, uint64_t step);
/* Sets other lanes, from the next feed_start on. The compute stream has read the last item. */
void feed_move(struct feed *feed, const struct prefetch_share *share);
/* Takes the next item; the compute stream waits for its copy. *out: NULL at the end of an
 * evaluation. */
MUST_CHECK enum status feed_take(struct feed *feed, const struct feed_item **out);
/* Starts to copy the next item, once everything that reads this one is enqueued. */
MUST_CHECK enum status feed_done(struct feed *feed);
/* Returns what is wrong with the data, after ST_CONFIG or ST_CHANGED of feed_take or feed_done. */
const struct reason *feed_reason(const struct feed *feed);
