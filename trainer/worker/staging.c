#include "trainer/worker/staging.h"

#include <stdlib.h>

#include "common/check.h"

struct staging {
    const struct device *device;
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX]; /* data: the copy of the share */
    const void *from[CKPT_BUFFERS_MAX];           /* on the device */
    void *to[CKPT_BUFFERS_MAX];                   /* host memory */
    size_t bytes[CKPT_BUFFERS_MAX];
    uint32_t count;
    struct event *computed, *copied;
    bool running; /* between begin and wait */
};

static enum status stage_buffer(struct staging *s, const struct ckpt_state *state, uint32_t rank,
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

enum status staging_open(const struct device *device, const struct ckpt_state *state, uint32_t rank,
                         uint32_t size, struct staging **out)
{
    struct staging *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    s->device = device;
    enum status st = device->table->event_new(device->backend, false, &s->computed);
    if (st == ST_OK)
        st = device->table->event_new(device->backend, false, &s->copied);
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++)
        st = stage_buffer(s, state, rank, size, i);
    if (st != ST_OK) {
        staging_close(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void staging_close(struct staging *staging)
{
    struct staging *s = staging;
    if (s == NULL)
        return;
    (void)!staging_wait(s);
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

enum status staging_begin(struct staging *staging)
{
    struct staging *s = staging;
    const struct device *d = s->device;
    enum status st = d->table->event_record(d->backend, s->computed, d->compute);
    if (st == ST_OK)
        st = d->table->event_wait(d->backend, s->computed, d->staging);
    CHECK(!s->running);
    for (uint32_t i = 0; st == ST_OK && i < s->count; i++) {
        if (s->bytes[i] > 0)
            st = d->table->vector.copy(d->backend, s->to[i], s->from[i], s->bytes[i], d->staging);
    }
    if (st == ST_OK)
        st = d->table->event_record(d->backend, s->copied, d->staging);
    s->running = st == ST_OK;
    return st;
}

enum status staging_wait(struct staging *staging)
{
    if (!staging->running)
        return ST_OK;
    staging->running = false;
    return device_wait(staging->device, staging->copied);
}

const struct ckpt_buffer *staging_buffers(const struct staging *staging)
{
    return staging->buffers;
}
