#include "trainer/worker/evaluation_results.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

static enum status open_host(struct gather *g, const struct device *device)
{
    void *results = NULL;
    const size_t bytes = (g->count > 0 ? g->count : 1) * sizeof(*g->results);
    enum status st = device->table->alloc_host(device->backend, bytes, &results);
    g->results = results;
    return st;
}

enum status gather_open(struct gather *gather, const struct device *device, const uint64_t *counts,
                        uint32_t size)
{
    struct gather *g = gather;
    CHECK(size > 0);
    g->size = size;
    for (uint32_t r = 0; r < size; r++)
        g->count += counts[r];
    g->segments = calloc(size, sizeof(*g->segments));
    g->device_segments = calloc(size, sizeof(*g->device_segments));
    enum status st =
        g->segments == NULL || g->device_segments == NULL ? ST_NO_MEMORY : open_host(g, device);
    if (st == ST_OK && !device->table->host_memory && g->count > 0)
        st = device->table->alloc(device->backend, g->count * sizeof(*g->results), &g->on_device);
    if (st != ST_OK)
        return st; /* gather_close frees */
    uint64_t at = 0;
    for (uint32_t r = 0; r < size; at += counts[r], r++) {
        const size_t bytes = (size_t)counts[r] * sizeof(*g->results);
        g->segments[r] = (struct comm_segment){ g->results + at, bytes };
        g->device_segments[r] = (struct comm_segment){ g->on_device, bytes };
        if (g->on_device != NULL)
            g->device_segments[r].data = (struct gather_batch *)g->on_device + at;
    }
    return ST_OK;
}

void gather_close(struct gather *gather, const struct device *device)
{
    struct gather *g = gather;
    if (g->results != NULL)
        device->table->free_host(device->backend, g->results);
    if (g->on_device != NULL)
        device->table->free(device->backend, g->on_device);
    free(g->segments);
    free(g->device_segments);
    memset(g, 0, sizeof(*g));
}

enum status gather_run(struct gather *gather, const struct device *device, struct comm *comm,
                       uint32_t rank, int64_t timeout_ms)
{
    const struct comm_table *table = device->comm;
    if (gather->on_device == NULL)
        return table->all_gather_v(comm, gather->segments, timeout_ms);
    const struct vector_table *vector = &device->table->vector;
    struct stream *stream = device->communication;
    const struct comm_segment *own = &gather->segments[rank];
    enum status st = vector->copy(device->backend, gather->device_segments[rank].data, own->data,
                                  own->size, stream);
    if (st == ST_OK)
        st = table->all_gather_v(comm, gather->device_segments, timeout_ms);
    if (st == ST_OK) {
        st = vector->copy(device->backend, gather->results, gather->on_device,
                          gather->count * sizeof(*gather->results), stream);
    }
    return st == ST_OK ? table->wait(comm, timeout_ms) : st;
}
