#include "trainer/worker/evaluation_results.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

static enum status alloc_results(struct evaluation_results *e, const struct device *device)
{
    void *results = NULL;
    const size_t bytes = (e->count > 0 ? e->count : 1) * sizeof(*e->results);
    enum status st = device->table->alloc_host(device->backend, bytes, &results);
    e->results = results;
    return st;
}

enum status evaluation_results_open(struct evaluation_results *results, const struct device *device,
                                    const uint64_t *counts, uint32_t size)
{
    struct evaluation_results *e = results;
    CHECK(size > 0);
    e->size = size;
    for (uint32_t r = 0; r < size; r++)
        e->count += counts[r];
    e->segments = calloc(size, sizeof(*e->segments));
    e->device_segments = calloc(size, sizeof(*e->device_segments));
    enum status st =
        e->segments == NULL || e->device_segments == NULL ? ST_NO_MEMORY : alloc_results(e, device);
    if (st == ST_OK && !device->table->host_memory && e->count > 0)
        st = device->table->alloc(device->backend, e->count * sizeof(*e->results), &e->on_device);
    if (st != ST_OK)
        return st; /* evaluation_results_close frees */
    uint64_t at = 0;
    for (uint32_t r = 0; r < size; at += counts[r], r++) {
        const size_t bytes = (size_t)counts[r] * sizeof(*e->results);
        e->segments[r] = (struct comm_segment){ e->results + at, bytes };
        e->device_segments[r] = (struct comm_segment){ e->on_device, bytes };
        if (e->on_device != NULL)
            e->device_segments[r].data = (struct evaluation_batch *)e->on_device + at;
    }
    return ST_OK;
}

void evaluation_results_close(struct evaluation_results *results, const struct device *device)
{
    struct evaluation_results *e = results;
    if (e->results != NULL)
        device->table->free_host(device->backend, e->results);
    if (e->on_device != NULL)
        device->table->free(device->backend, e->on_device);
    free(e->segments);
    free(e->device_segments);
    memset(e, 0, sizeof(*e));
}

enum status evaluation_results_exchange(struct evaluation_results *results,
                                        const struct device *device, struct comm *comm,
                                        uint32_t rank, int64_t timeout_ms)
{
    const struct comm_table *table = device->comm;
    if (results->on_device == NULL)
        return table->all_gather_v(comm, results->segments, timeout_ms);
    const struct vector_table *vector = &device->table->vector;
    struct stream *stream = device->communication;
    const struct comm_segment *own = &results->segments[rank];
    enum status st = vector->copy(device->backend, results->device_segments[rank].data, own->data,
                                  own->size, stream);
    if (st == ST_OK)
        st = table->all_gather_v(comm, results->device_segments, timeout_ms);
    if (st == ST_OK) {
        st = vector->copy(device->backend, results->results, results->on_device,
                          results->count * sizeof(*results->results), stream);
    }
    return st == ST_OK ? table->wait(comm, timeout_ms) : st;
}
