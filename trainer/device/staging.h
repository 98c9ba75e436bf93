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

/* Of the share that ckpt_share_of says. state describes the device's buffers, whose elements
 * outside of it aren't touched; it and device are borrowed for the call and for life. Errors
 * besides: as ckpt_share_of */
MUST_CHECK enum status staging_open(const struct device *device, const struct ckpt_state *state,
                                    uint32_t rank, uint32_t size, struct staging **out);
/* NULL is fine. Waits for copies under way. */
void staging_close(struct staging *staging);

/* Starts to copy what the compute stream will have written by now. */
MUST_CHECK enum status staging_begin(struct staging *staging);
/* Waits for the copies; where none are under way, returns at once. */
MUST_CHECK enum status staging_wait(struct staging *staging);
/* The buffers as described at open, with the copies as data, packed by that share. Valid until
 * close. */
const struct ckpt_buffer *staging_buffers(const struct staging *staging);
const struct ckpt_share *staging_share(const struct staging *staging);
