/*
 * Host copies of this rank's share of a state that lies on a device, on their way into snapshots.
 *
 * They are made on a stream of their own, beside the next forward and backward; the state must not
 * change between staging_begin and staging_wait. From here the session copies on
 * (session_snapshot_begin), so the next staging_begin comes only after that is through.
 *
 * Thread: begin: the step thread; wait: the session's copier, or close. Errors: the backend's
 */
#pragma once

#include <stdint.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"
#include "trainer/device/device.h"

struct staging;

/* Makes copies for the share of ckpt_share_of. state describes the device's buffers; elements
 * outside of the share aren't touched. state is borrowed for the call, device for life. Errors
 * besides: as ckpt_share_of */
MUST_CHECK enum status staging_open(const struct device *device, const struct ckpt_state *state,
                                    uint32_t rank, uint32_t size, struct staging **out);
/* NULL is fine. Waits for copies under way. */
void staging_close(struct staging *staging);

/* Starts to copy the state as the work that is on the compute stream now will leave it. */
MUST_CHECK enum status staging_begin(struct staging *staging);
/* Waits for the copies; where none are under way, returns at once. */
MUST_CHECK enum status staging_wait(struct staging *staging);
/* Returns the buffers as described at open, with the copies as data, packed by that share. Valid
 * until close. */
const struct ckpt_buffer *staging_buffers(const struct staging *staging);
const struct ckpt_share *staging_share(const struct staging *staging);
