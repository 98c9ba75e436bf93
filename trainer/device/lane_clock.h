/*
 * Time of this rank's lanes in a step, without waiting for other ranks, by the clock of whatever
 * computes them. On a device it is the time between two events on the compute stream, since the
 * host only enqueues the work there.
 *
 * Times that go wrong fail no step: of that step no time is told.
 *
 * Memory: all of it from open to close. Thread: the step thread. Errors of open: the backend's
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "trainer/device/device.h"
#include "trainer/device/progress.h"

struct lane_clock {
    struct event *began, *ended; /* NULL: host memory */
    bool recorded;               /* both, of this step */
};

/* clock starts zeroed, and is closed whatever is returned. */
MUST_CHECK enum status lane_clock_open(struct lane_clock *clock, const struct device *device);
void lane_clock_close(struct lane_clock *clock, const struct device *device);
/* Record the times before the first lane's work, and after the last one's, is enqueued. */
void lane_clock_begin(struct lane_clock *clock, const struct device *device);
void lane_clock_end(struct lane_clock *clock, const struct device *device);
/* Returns ST_AGAIN while a device has not come to the end of the last lane. */
MUST_CHECK enum status lane_clock_passed(const struct lane_clock *clock,
                                         const struct device *device);
/* Returns the time in microseconds, after the update, which waits for the compute stream; 0: it
 * isn't known. progress: its phases are of this step. */
int64_t lane_clock_read(const struct lane_clock *clock, const struct device *device,
                        const struct progress *progress);
