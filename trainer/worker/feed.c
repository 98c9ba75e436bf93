/*
 * Invariants of a device's slots
 *  1. Slot `current` is what feed_take gives; the other is empty, or staged by feed_done.
 *  2. A slot is copied into only after `consumed`: what read its last item is past on the compute
 *     stream. The compute stream reads it only after `copied`.
 *  3. The ring's item is given back (by the next prefetch_take or a start) only after `copied` of
 *     the slot it went to.
 */
#include "trainer/worker/feed.h"

#include <stdlib.h>

#include "common/check.h"

#define SLOTS 2

struct slot {
    struct feed_item item;
    void *x, *labels;
    uint32_t *draw;
    struct event *copied, *consumed;
    bool staged, end;
};

struct feed {
    const struct device *device;
    struct prefetch *ring;
    struct prefetch_memory memory;
    struct batch_sizes sizes;
    struct feed_item item; /* host memory */
    bool on_device;
    struct slot slot[SLOTS];
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

static enum status open_slot(const struct feed *feed, struct slot *slot, bool draws)
{
    const struct backend_table *table = feed->device->table;
    struct backend *backend = feed->device->backend;
    void *draw = NULL;
    enum status st = table->alloc(backend, feed->sizes.x, &slot->x);
    if (st == ST_OK)
        st = table->alloc(backend, feed->sizes.labels, &slot->labels);
    if (st == ST_OK && draws)
        st = table->alloc(backend, feed->sizes.draw, &draw);
    slot->draw = draw;
    if (st == ST_OK)
        st = table->event_new(backend, &slot->copied);
    if (st == ST_OK)
        st = table->event_new(backend, &slot->consumed);
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
    for (int i = 0; st == ST_OK && feed->on_device && i < SLOTS; i++)
        st = open_slot(feed, &feed->slot[i], !options->evaluation);
    if (st != ST_OK) {
        feed_close(feed);
        return st;
    }
    *out = feed;
    return ST_OK;
}

static void close_slot(const struct feed *feed, struct slot *slot)
{
    const struct backend_table *table = feed->device->table;
    struct backend *backend = feed->device->backend;
    void *memory[] = { slot->x, slot->labels, slot->draw };
    for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++) {
        if (memory[i] != NULL)
            table->free(backend, memory[i]);
    }
    if (slot->copied != NULL)
        table->event_free(backend, slot->copied);
    if (slot->consumed != NULL)
        table->event_free(backend, slot->consumed);
}

void feed_close(struct feed *feed)
{
    if (feed == NULL)
        return;
    if (feed->copying != NULL)
        (void)!device_wait(feed->device, feed->copying);
    prefetch_close(feed->ring);
    for (int i = 0; i < SLOTS; i++)
        close_slot(feed, &feed->slot[i]);
    free(feed);
}

void feed_start(struct feed *feed, uint64_t step)
{
    if (feed->copying != NULL)
        (void)!device_wait(feed->device, feed->copying); /* an error shows at the next call */
    for (int i = 0; i < SLOTS; i++)
        feed->slot[i].staged = feed->slot[i].end = false;
    prefetch_start(feed->ring, step);
}

static enum status copy_in(struct feed *feed, void *to, const void *from, size_t bytes)
{
    const struct device *d = feed->device;
    return d->table->vector.copy(d->backend, to, from, bytes, d->input);
}

static enum status stage(struct feed *feed, struct slot *slot)
{
    const struct device *d = feed->device;
    const struct prefetch_item *item = NULL;
    enum status st = feed->copying != NULL ? device_wait(d, feed->copying) : ST_OK;
    if (st == ST_OK)
        st = prefetch_take(feed->ring, &item);
    if (st != ST_OK)
        return st;
    slot->staged = true;
    slot->end = item == NULL;
    if (item == NULL)
        return ST_OK;
    slot->item = (struct feed_item){ .step = item->step,
                                     .lane = item->lane,
                                     .micro = item->micro,
                                     .inputs = { slot->x, slot->labels },
                                     .draw = item->draw != NULL ? slot->draw : NULL };
    st = d->table->event_wait(d->backend, slot->consumed, d->input);
    if (st == ST_OK)
        st = copy_in(feed, slot->x, item->x, feed->sizes.x);
    if (st == ST_OK)
        st = copy_in(feed, slot->labels, item->labels, feed->sizes.labels);
    if (st == ST_OK && item->draw != NULL)
        st = copy_in(feed, slot->draw, item->draw, feed->sizes.draw);
    if (st == ST_OK)
        st = d->table->event_record(d->backend, slot->copied, d->input);
    feed->copying = slot->copied;
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
                                     .inputs = { item->x, item->labels },
                                     .draw = item->draw };
    *out = &feed->item;
    return ST_OK;
}

enum status feed_take(struct feed *feed, const struct feed_item **out)
{
    if (!feed->on_device)
        return take_host(feed, out);
    const struct device *d = feed->device;
    struct slot *slot = &feed->slot[feed->current];
    enum status st = slot->staged ? ST_OK : stage(feed, slot);
    if (st == ST_OK && !slot->end)
        st = d->table->event_wait(d->backend, slot->copied, d->compute);
    if (st == ST_OK)
        *out = slot->end ? NULL : &slot->item;
    return st;
}

enum status feed_done(struct feed *feed)
{
    if (!feed->on_device)
        return ST_OK;
    const struct device *d = feed->device;
    struct slot *slot = &feed->slot[feed->current];
    CHECK(slot->staged);
    CHECK(!slot->end);
    enum status st = d->table->event_record(d->backend, slot->consumed, d->compute);
    if (st != ST_OK)
        return st;
    slot->staged = false;
    feed->current = (feed->current + 1) % SLOTS;
    return stage(feed, &feed->slot[feed->current]);
}

const char *feed_problem(const struct feed *feed)
{
    return prefetch_problem(feed->ring);
}
