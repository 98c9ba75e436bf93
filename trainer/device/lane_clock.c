#include "trainer/device/lane_clock.h"

#include <stddef.h>

enum status lane_clock_open(struct lane_clock *clock, const struct device *device)
{
    if (device->table->host_memory)
        return ST_OK;
    enum status st = device->table->event_new(device->backend, true, &clock->began);
    return st == ST_OK ? device->table->event_new(device->backend, true, &clock->ended) : st;
}

void lane_clock_close(struct lane_clock *clock, const struct device *device)
{
    if (clock->began != NULL)
        device->table->event_free(device->backend, clock->began);
    if (clock->ended != NULL)
        device->table->event_free(device->backend, clock->ended);
    *clock = (struct lane_clock){ .began = NULL };
}

static bool record(const struct device *device, struct event *event)
{
    return event != NULL &&
           device->table->event_record(device->backend, event, device->compute) == ST_OK;
}

void lane_clock_begin(struct lane_clock *clock, const struct device *device)
{
    clock->recorded = record(device, clock->began);
}

void lane_clock_end(struct lane_clock *clock, const struct device *device)
{
    clock->recorded = clock->recorded && record(device, clock->ended);
}

enum status lane_clock_passed(const struct lane_clock *clock, const struct device *device)
{
    return clock->recorded ? device->table->event_query(device->backend, clock->ended) : ST_OK;
}

int64_t lane_clock_read(const struct lane_clock *clock, const struct device *device,
                        const struct progress *progress)
{
    const struct backend_table *table = device->table;
    int64_t us = 0;
    if (clock->began == NULL)
        return progress_lanes_us(progress);
    if (!clock->recorded ||
        table->event_elapsed(device->backend, clock->began, clock->ended, &us) != ST_OK)
        return 0;
    return us > 0 ? us : 1;
}
