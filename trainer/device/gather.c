#include "trainer/device/gather.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

static enum status alloc_data(struct gather *g, const struct device *device)
{
    void *data = NULL;
    enum status st = device->table->alloc_host(device->backend, g->bytes > 0 ? g->bytes : 1, &data);
    g->data = data;
    if (st == ST_OK && !device->table->host_memory && g->bytes > 0)
        st = device->table->alloc(device->backend, g->bytes, &g->on_device);
    return st;
}

enum status gather_open(struct gather *gather, const struct device *device, const size_t *bytes,
                        uint32_t size)
{
    struct gather *g = gather;
    CHECK(size > 0);
    for (uint32_t r = 0; r < size; r++)
        g->bytes += bytes[r];
    g->segments = calloc(size, sizeof(*g->segments));
    g->device_segments = calloc(size, sizeof(*g->device_segments));
    enum status st =
        g->segments == NULL || g->device_segments == NULL ? ST_NO_MEMORY : alloc_data(g, device);
    if (st != ST_OK)
        return st; /* gather_close frees */
    size_t at = 0;
    for (uint32_t r = 0; r < size; at += bytes[r], r++) {
        g->segments[r] = (struct comm_segment){ g->data + at, bytes[r] };
        g->device_segments[r] = (struct comm_segment){ g->on_device, bytes[r] };
        if (g->on_device != NULL)
            g->device_segments[r].data = (uint8_t *)g->on_device + at;
    }
    return ST_OK;
}

void gather_close(struct gather *gather, const struct device *device)
{
    struct gather *g = gather;
    if (g->data != NULL)
        device->table->free_host(device->backend, g->data);
    if (g->on_device != NULL)
        device->table->free(device->backend, g->on_device);
    free(g->segments);
    free(g->device_segments);
    memset(g, 0, sizeof(*g));
}

enum status gather_exchange(struct gather *gather, const struct device *device, struct comm *comm,
                            uint32_t rank, int64_t timeout_ms)
{
    const struct gather *g = gather;
    const struct comm_table *table = device->comm;
    if (g->on_device == NULL)
        return table->all_gather_v(comm, g->segments, timeout_ms);
    const struct vector_table *vector = &device->table->vector;
    struct stream *stream = device->communication;
    const struct comm_segment *own = &g->segments[rank];
    enum status st =
        vector->copy(device->backend, g->device_segments[rank].data, own->data, own->size, stream);
    if (st == ST_OK)
        st = table->all_gather_v(comm, g->device_segments, timeout_ms);
    if (st == ST_OK)
        st = vector->copy(device->backend, g->data, g->on_device, g->bytes, stream);
    return st == ST_OK ? table->wait(comm, timeout_ms) : st;
}
