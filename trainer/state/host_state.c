#include "trainer/state/host_state.h"

#include <stdlib.h>

#include "common/check.h"

static size_t buffer_bytes(const struct ckpt_buffer *buffer)
{
    return (size_t)buffer->count * ckpt_dtype_size(buffer->dtype);
}

void whole_release(struct whole *whole)
{
    for (int i = 0; whole->owned && i < CKPT_BUFFERS_MAX; i++)
        free(whole->data[i]);
}

enum status whole_make(struct worker *w, struct state_view *view, struct whole *out)
{
    struct ckpt_state *state = &view->state;
    out->owned = !w->device.table->host_memory;
    for (uint32_t i = 0; i < state->buffer_count; i++) {
        out->buffers[i] = state->buffers[i];
        out->buffers[i].data_first = 0;
        out->data[i] = optimizer_buffer(w->optimizer, state->buffers[i].name);
        CHECK(out->data[i] != NULL);
        if (out->owned)
            out->data[i] = malloc(buffer_bytes(&state->buffers[i]));
        if (out->data[i] == NULL)
            return ST_NO_MEMORY;
        out->buffers[i].data = out->data[i];
    }
    state->buffers = out->buffers;
    return ST_OK;
}

enum status whole_move(struct worker *w, const struct whole *whole, uint32_t count, bool up)
{
    const struct device *d = &w->device;
    enum status st = ST_OK;
    for (uint32_t i = 0; whole->owned && st == ST_OK && i < count; i++) {
        void *live = optimizer_buffer(w->optimizer, whole->buffers[i].name);
        st = d->table->vector.copy(d->backend, up ? live : whole->data[i],
                                   up ? whole->data[i] : live, buffer_bytes(&whole->buffers[i]),
                                   d->compute);
    }
    return st == ST_OK ? d->table->stream_sync(d->backend, d->compute) : st;
}
