#include "trainer/worker/lane_clock.h"

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
    *clock = (struct lane_clock){ NULL };
}

static enum status record(const struct device *device, struct event *event)
{
    return event == NULL ? ST_OK
                         : device->table->event_record(device->backend, event, device->compute);
}

enum status lane_clock_begin(struct lane_clock *clock, const struct device *device)
{
    return record(device, clock->began);
}

enum status lane_clock_end(struct lane_clock *clock, const struct device *device)
{
    return record(device, clock->ended);
}

enum status lane_clock_read(const struct lane_clock *clock, const struct device *device,
                            const struct progress *progress, int64_t *out_us)
{
    if (clock->began != NULL)
        return device->table->event_elapsed(device->backend, clock->began, clock->ended, out_us);
    *out_us = progress_lanes_us(progress);
    return ST_OK;
}
