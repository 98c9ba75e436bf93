/*
 * An array with a part of each rank, and the exchange that gives all ranks all of it. On a device
 * it goes through the device's memory, since NCCL moves nothing else.
 *
 * Memory: all of it from open to close. Thread: the step thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "common/status.h"
#include "trainer/device/device.h"

struct gather {
    size_t bytes;                  /* of all ranks; 0: none, or not open */
    uint8_t *data;                 /* [bytes] host */
    struct comm_segment *segments; /* [size] of data */
    void *on_device;               /* [bytes]; NULL: host memory */
    struct comm_segment *device_segments;
};

/* bytes: of each rank. gather starts zeroed and is closed whatever is returned. */
MUST_CHECK enum status gather_open(struct gather *gather, const struct device *device,
                                   const size_t *bytes, uint32_t size);
void gather_close(struct gather *gather, const struct device *device);

/* Sends what this rank has in its segment to all ranks and receives theirs. */
MUST_CHECK enum status gather_exchange(struct gather *gather, const struct device *device,
                                       struct comm *comm, uint32_t rank, int64_t timeout_ms);
