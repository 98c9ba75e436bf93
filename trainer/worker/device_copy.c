#include "trainer/worker/device_copy.h"

#include <stdlib.h>

struct snapshot {
    const struct device *device;
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX]; /* data: the copy of the share */
    const void *from[CKPT_BUFFERS_MAX];           /* on the device */
    void *to[CKPT_BUFFERS_MAX];                   /* host memory */
    size_t bytes[CKPT_BUFFERS_MAX];
    uint32_t count;
    struct event *computed, *copied;
    bool running;
};

static enum status add_buffer(struct snapshot *s, const struct ckpt_state *state, uint32_t rank,
                              uint32_t size, uint32_t i)
{
    const struct ckpt_buffer *from = &state->buffers[i];
    const size_t width = ckpt_dtype_size(from->dtype);
    uint64_t first = 0, count = 0;
    ckpt_share_elements(state, i, rank, size, &first, &count);
    s->buffers[i] = *from;
    s->buffers[i].data_first = first;
    s->buffers[i].data = NULL;
    s->from[i] = (const char *)from->data + first * width;
    s->bytes[i] = (size_t)count * width;
    s->count = i + 1;
    enum status st = s->device->table->alloc_host(s->device->backend,
                                                  count > 0 ? s->bytes[i] : width, &s->to[i]);
    s->buffers[i].data = s->to[i];
    return st;
}

enum status snapshot_open(const struct device *device, const struct ckpt_state *state,
                          uint32_t rank, uint32_t size, struct snapshot **out)
{
    struct snapshot *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    s->device = device;
    enum status st = device->table->event_new(device->backend, &s->computed);
    if (st == ST_OK)
        st = device->table->event_new(device->backend, &s->copied);
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++)
        st = add_buffer(s, state, rank, size, i);
    if (st != ST_OK) {
        snapshot_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void snapshot_close(struct snapshot *snapshot)
{
    struct snapshot *s = snapshot;
    if (s == NULL)
        return;
    (void)!snapshot_wait(s);
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->to[i] != NULL)
            s->device->table->free_host(s->device->backend, s->to[i]);
    }
    if (s->computed != NULL)
        s->device->table->event_free(s->device->backend, s->computed);
    if (s->copied != NULL)
        s->device->table->event_free(s->device->backend, s->copied);
    free(s);
}

enum status snapshot_begin(struct snapshot *snapshot)
{
    struct snapshot *s = snapshot;
    const struct device *d = s->device;
    enum status st = d->table->event_record(d->backend, s->computed, d->compute);
    if (st == ST_OK)
        st = d->table->event_wait(d->backend, s->computed, d->snapshot);
    for (uint32_t i = 0; st == ST_OK && i < s->count; i++) {
        if (s->bytes[i] > 0)
            st = d->table->vector.copy(d->backend, s->to[i], s->from[i], s->bytes[i], d->snapshot);
    }
    if (st == ST_OK)
        st = d->table->event_record(d->backend, s->copied, d->snapshot);
    s->running = st == ST_OK;
    return st;
}

enum status snapshot_wait(struct snapshot *snapshot)
{
    if (!snapshot->running)
        return ST_OK;
    snapshot->running = false;
    return device_wait(snapshot->device, snapshot->copied);
}

const struct ckpt_buffer *snapshot_buffers(const struct snapshot *snapshot)
{
    return snapshot->buffers;
}
