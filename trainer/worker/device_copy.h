/*
 * Host copies of the state on a device: this rank's share, for saves.
 *
 * A copy runs on a stream of its own, beside the next forward and backward; the state must not
 * change between snapshot_begin and snapshot_wait. What was copied is the session's to copy on
 * (session_snapshot_begin), so a new copy begins only when that is through.
 *
 * Thread: begin, the step thread; wait, the session's copier, or close. Errors: the backend's
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"
#include "trainer/worker/device.h"

struct snapshot;

/* state describes the device's buffers; it and device are borrowed for the call and for life. */
MUST_CHECK enum status snapshot_open(const struct device *device, const struct ckpt_state *state,
                                     uint32_t rank, uint32_t size, struct snapshot **out);
/* NULL is fine. Waits for a copy that runs. */
void snapshot_close(struct snapshot *snapshot);

/* Starts to copy what the compute stream will have written by now. */
MUST_CHECK enum status snapshot_begin(struct snapshot *snapshot);
/* Waits for the copy. */
MUST_CHECK enum status snapshot_wait(struct snapshot *snapshot);
/* The buffers as described at open, with the copies as data. Valid until close. */
const struct ckpt_buffer *snapshot_buffers(const struct snapshot *snapshot);
