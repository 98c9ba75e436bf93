/*
 * Invariants of the entries on a device
 *  1. Entry `current` is what feed_take gives. The other is never staged: feed_done changes to it
 *     first.
 *  2. An entry is copied into only after `consumed`: the compute stream is past what read its last
 *     item. The compute stream reads it only after `copied`.
 *  3. The ring's item is given back (by the next prefetch_take or prefetch_start) only after
 *     `copied` of the entry that it went to: `copying`.
 */
#include "trainer/device/feed.h"

#include <stdlib.h>

#include "common/check.h"

#define ENTRIES 2

struct feed_entry {
    struct feed_item item;
    void *x, *labels;
    uint32_t *draw;
    struct event *copied, *consumed;
    bool staged; /* its item, or the end of an evaluation, was taken from the ring */
    bool end;
};

struct feed {
    const struct device *device;
    struct prefetch *ring;
    struct prefetch_memory memory;
    struct batch_sizes sizes;
    struct feed_item item; /* host memory */
    bool on_device;
    struct feed_entry entry[ENTRIES]; /* on the device */
    int current;
    struct event *copying; /* the last copy out of the ring; NULL: none */
};

static enum status ring_alloc(void *self, size_t bytes, void **out)
{
    const struct device *device = self;
    return device->table->alloc_host(device->backend, bytes, out);
}

static void ring_free(void *self, void *memory)
{
    const struct device *device = self;
    device->table->free_host(device->backend, memory);
}

static enum status open_entry(const struct feed *feed, struct feed_entry *entry, bool draws)
{
    const struct backend_table *table = feed->device->table;
    struct backend *backend = feed->device->backend;
    void *draw = NULL;
    enum status st = table->alloc(backend, feed->sizes.x, &entry->x);
    if (st == ST_OK)
        st = table->alloc(backend, feed->sizes.labels, &entry->labels);
    if (st == ST_OK && draws)
        st = table->alloc(backend, feed->sizes.draw, &draw);
    entry->draw = draw;
    if (st == ST_OK)
        st = table->event_new(backend, false, &entry->copied);
    if (st == ST_OK)
        st = table->event_new(backend, false, &entry->consumed);
    return st;
}

enum status feed_open(const struct device *device, const struct prefetch_options *options,
                      struct feed **out)
{
    struct feed *feed = calloc(1, sizeof(*feed));
    if (feed == NULL)
        return ST_NO_MEMORY;
    feed->device = device;
    feed->on_device = !device->table->host_memory;
    feed->sizes = batch_sizes(&options->source);
    /* prefetch calls with the device itself; it only reads it. */
    feed->memory = (struct prefetch_memory){ ring_alloc, ring_free, (void *)device };
    struct prefetch_options ring = *options;
    ring.memory = feed->on_device ? &feed->memory : NULL;
    enum status st = prefetch_open(&ring, &feed->ring);
    for (int i = 0; st == ST_OK && feed->on_device && i < ENTRIES; i++)
        st = open_entry(feed, &feed->entry[i], !options->evaluation);
    if (st != ST_OK) {
        feed_close(feed);
        return st;
    }
    *out = feed;
    return ST_OK;
}

static void close_entry(const struct feed *feed, struct feed_entry *entry)
{
    const struct backend_table *table = feed->device->table;
    struct backend *backend = feed->device->backend;
    void *memory[] = { entry->x, entry->labels, entry->draw };
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        if (memory[i] != NULL)
            table->free(backend, memory[i]);
    }
    if (entry->copied != NULL)
        table->event_free(backend, entry->copied);
    if (entry->consumed != NULL)
        table->event_free(backend, entry->consumed);
}

void feed_close(struct feed *feed)
{
    if (feed == NULL)
        return;
    if (feed->copying != NULL)
        (void)!device_wait(feed->device, feed->copying);
    prefetch_close(feed->ring);
    for (int i = 0; i < ENTRIES; i++)
        close_entry(feed, &feed->entry[i]);
    free(feed);
}

void feed_start(struct feed *feed, uint64_t step)
{
    if (feed->copying != NULL)
        (void)!device_wait(feed->device, feed->copying); /* an error shows at the next call */
    for (int i = 0; i < ENTRIES; i++)
        feed->entry[i].staged = feed->entry[i].end = false;
    prefetch_start(feed->ring, step);
}

void feed_move(struct feed *feed, const struct prefetch_share *share)
{
    if (feed->copying != NULL)
        (void)!device_wait(feed->device, feed->copying); /* an error shows at the next call */
    prefetch_move(feed->ring, share);
}

static const void *kinds_of(const struct feed *feed, const void *x)
{
    return feed->sizes.kinds == 0 ? NULL : (const char *)x + feed->sizes.kinds;
}

static enum status copy_in(struct feed *feed, void *to, const void *from, size_t bytes)
{
    const struct device *d = feed->device;
    return d->table->vector.copy(d->backend, to, from, bytes, d->input);
}

/* Takes the next item from the ring and starts to copy it into the entry. */
static enum status stage_next(struct feed *feed, struct feed_entry *entry)
{
    const struct device *d = feed->device;
    const struct prefetch_item *item = NULL;
    CHECK(!entry->staged);
    enum status st = feed->copying != NULL ? device_wait(d, feed->copying) : ST_OK;
    if (st == ST_OK)
        st = prefetch_take(feed->ring, &item);
    if (st != ST_OK)
        return st;
    entry->staged = true;
    entry->end = item == NULL;
    if (item == NULL)
        return ST_OK;
    entry->item =
        (struct feed_item){ .step = item->step,
                            .lane = item->lane,
                            .micro = item->micro,
                            .inputs = { entry->x, entry->labels, kinds_of(feed, entry->x) },
                            .draw = item->draw != NULL ? entry->draw : NULL };
    st = d->table->event_wait(d->backend, entry->consumed, d->input);
    if (st == ST_OK)
        st = copy_in(feed, entry->x, item->x, feed->sizes.x);
    if (st == ST_OK)
        st = copy_in(feed, entry->labels, item->labels, feed->sizes.labels);
    if (st == ST_OK && item->draw != NULL)
        st = copy_in(feed, entry->draw, item->draw, feed->sizes.draw);
    if (st == ST_OK)
        st = d->table->event_record(d->backend, entry->copied, d->input);
    feed->copying = entry->copied;
    return st;
}

static enum status take_host(struct feed *feed, const struct feed_item **out)
{
    const struct prefetch_item *item = NULL;
    enum status st = prefetch_take(feed->ring, &item);
    if (st != ST_OK)
        return st;
    *out = NULL;
    if (item == NULL)
        return ST_OK;
    feed->item = (struct feed_item){ .step = item->step,
                                     .lane = item->lane,
                                     .micro = item->micro,
                                     .inputs = { item->x, item->labels, kinds_of(feed, item->x) },
                                     .draw = item->draw };
    *out = &feed->item;
    return ST_OK;
}

enum status feed_take(struct feed *feed, const struct feed_item **out)
{
    if (!feed->on_device)
        return take_host(feed, out);
    const struct device *d = feed->device;
    struct feed_entry *entry = &feed->entry[feed->current];
    enum status st = entry->staged ? ST_OK : stage_next(feed, entry);
    if (st == ST_OK && !entry->end)
        st = d->table->event_wait(d->backend, entry->copied, d->compute);
    if (st == ST_OK)
        *out = entry->end ? NULL : &entry->item;
    return st;
}

enum status feed_done(struct feed *feed)
{
    if (!feed->on_device)
        return ST_OK;
    const struct device *d = feed->device;
    struct feed_entry *entry = &feed->entry[feed->current];
    CHECK(entry->staged);
    CHECK(!entry->end);
    enum status st = d->table->event_record(d->backend, entry->consumed, d->compute);
    if (st != ST_OK)
        return st;
    entry->staged = false;
    feed->current = (feed->current + 1) % ENTRIES;
    return stage_next(feed, &feed->entry[feed->current]);
}

const struct reason *feed_reason(const struct feed *feed)
{
    return prefetch_reason(feed->ring);
}
