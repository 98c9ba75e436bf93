#include "trainer/device/staging.h"

#include <stdlib.h>

#include "common/check.h"

struct staging {
    const struct device *device;
    struct ckpt_share share;
    struct ckpt_state state;                      /* of buffers */
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX]; /* data: the copies of their extents */
    const void *from[CKPT_BUFFERS_MAX];           /* on the device, from element 0 */
    void *to[CKPT_BUFFERS_MAX];                   /* host memory */
    struct event *computed, *copied;
    bool running; /* between begin and wait */
};

static enum status stage_buffer(struct staging *s, const struct ckpt_state *state, uint32_t i)
{
    const size_t width = ckpt_dtype_size(state->buffers[i].dtype);
    uint64_t count = 0;
    for (uint32_t r = ckpt_share_find(&s->share, i, 0);
         r < s->share.count && s->share.extent[r].buffer == i; r++)
        count += s->share.extent[r].count;
    s->buffers[i] = state->buffers[i];
    s->buffers[i].packed = true;
    s->from[i] = state->buffers[i].data;
    enum status st = s->device->table->alloc_host(
        s->device->backend, count > 0 ? (size_t)count * width : width, &s->to[i]);
    s->buffers[i].data = s->to[i];
    return st;
}

enum status staging_open(const struct device *device, const struct ckpt_state *state, uint32_t rank,
                         uint32_t size, struct staging **out)
{
    CHECK(state->buffer_count <= CKPT_BUFFERS_MAX);
    struct staging *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    s->device = device;
    s->state = (struct ckpt_state){ .buffers = s->buffers, .buffer_count = state->buffer_count };
    enum status st = ckpt_share_of(state, rank, size, &s->share);
    if (st == ST_OK)
        st = device->table->event_new(device->backend, false, &s->computed);
    if (st == ST_OK)
        st = device->table->event_new(device->backend, false, &s->copied);
    for (uint32_t i = 0; st == ST_OK && i < state->buffer_count; i++)
        st = stage_buffer(s, state, i);
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
    for (uint32_t i = 0; i < s->state.buffer_count; i++) {
        if (s->to[i] != NULL)
            s->device->table->free_host(s->device->backend, s->to[i]);
    }
    if (s->computed != NULL)
        s->device->table->event_free(s->device->backend, s->computed);
    if (s->copied != NULL)
        s->device->table->event_free(s->device->backend, s->copied);
    free(s);
}

static enum status copy_run(const struct staging *s, uint32_t i)
{
    const struct device *d = s->device;
    const struct ckpt_extent *extent = &s->share.extent[i];
    const size_t width = ckpt_dtype_size(s->buffers[extent->buffer].dtype);
    return d->table->vector.copy(d->backend,
                                 (uint8_t *)s->to[extent->buffer] +
                                     ckpt_share_offset(&s->state, &s->share, i) * width,
                                 (const uint8_t *)s->from[extent->buffer] + extent->first * width,
                                 (size_t)extent->count * width, d->staging);
}

enum status staging_begin(struct staging *staging)
{
    struct staging *s = staging;
    const struct device *d = s->device;
    enum status st = d->table->event_record(d->backend, s->computed, d->compute);
    if (st == ST_OK)
        st = d->table->event_wait(d->backend, s->computed, d->staging);
    CHECK(!s->running);
    for (uint32_t i = 0; st == ST_OK && i < s->share.count; i++)
        st = copy_run(s, i);
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

const struct ckpt_share *staging_share(const struct staging *staging)
{
    return &staging->share;
}
