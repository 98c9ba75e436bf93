#include "trainer/state/host_state.h"

#include <stdlib.h>

#include "common/check.h"

static size_t buffer_bytes(const struct ckpt_buffer *buffer)
{
    return (size_t)buffer->count * ckpt_dtype_size(buffer->dtype);
}

void host_state_release(struct host_state *host)
{
    for (uint32_t i = 0; host->owned && i < host->count; i++)
        free(host->data[i]);
}

enum status host_state_make(struct worker *worker, struct ckpt_state *state, struct host_state *out)
{
    CHECK(state->buffer_count <= CKPT_BUFFERS_MAX);
    out->owned = !worker->device.table->host_memory;
    enum status st = ckpt_share_held(state, &out->held);
    if (st != ST_OK)
        return st;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        out->buffers[i] = state->buffers[i];
        out->buffers[i].packed = false;
        out->data[i] = optimizer_buffer(worker->optimizer, state->buffers[i].name);
        CHECK(out->data[i] != NULL);
        if (out->owned)
            out->data[i] = malloc(buffer_bytes(&state->buffers[i]));
        if (out->data[i] == NULL)
            return ST_NO_MEMORY;
        out->buffers[i].data = out->data[i];
        out->count = i + 1;
    }
    state->buffers = out->buffers;
    return ST_OK;
}

static enum status copy_extent(const struct worker *worker, const struct host_state *host,
                               const struct ckpt_extent *extent, bool up)
{
    const struct device *d = &worker->device;
    const struct ckpt_buffer *buffer = &host->buffers[extent->buffer];
    const size_t width = ckpt_dtype_size(buffer->dtype), at = (size_t)extent->first * width;
    char *live = (char *)optimizer_buffer(worker->optimizer, buffer->name) + at;
    char *here = (char *)host->data[extent->buffer] + at;
    return d->table->vector.copy(d->backend, up ? live : here, up ? here : live,
                                 (size_t)extent->count * width, d->compute);
}

static enum status copy_all(struct worker *worker, const struct host_state *host, bool up)
{
    const struct device *d = &worker->device;
    enum status st = ST_OK;
    for (uint32_t i = 0; host->owned && st == ST_OK && i < host->held.count; i++)
        st = copy_extent(worker, host, &host->held.extent[i], up);
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}

enum status host_state_fetch(struct worker *worker, const struct host_state *host)
{
    return copy_all(worker, host, false);
}

enum status host_state_upload(struct worker *worker, const struct host_state *host)
{
    return copy_all(worker, host, true);
}
