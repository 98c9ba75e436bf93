/*
 * The state where the host can read and write it, to be digested or filled in: the live buffers
 * themselves where they lie in host memory, else arrays of its own, copied from the device or to
 * it. Of a state that says what is held, that only.
 *
 * Use: host_state_make → host_state_fetch, read → host_state_release
 *      host_state_make → write, host_state_upload → host_state_release
 *
 * Thread: the step thread.
 * Errors: ST_NO_MEMORY; ST_INVALID: what is held isn't sound; the backend's
 */
#pragma once

#include <stdbool.h>

#include "checkpoint/checkpoint.h"
#include "common/status.h"
#include "trainer/worker/worker.h"

struct host_state {
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    void *data[CKPT_BUFFERS_MAX]; /* of each buffer from element 0 on */
    uint32_t count;
    struct ckpt_share held; /* part of the state that is there */
    bool owned;             /* data are arrays of its own: the state lies on a device */
};

/* state describes the worker's buffers; its buffers point to out's afterwards. out starts zeroed
 * and is released whatever is returned. */
MUST_CHECK enum status host_state_make(struct worker *worker, struct ckpt_state *state,
                                       struct host_state *out);
/* Copies from the device; waits. Does nothing where the live buffers are the host's. */
MUST_CHECK enum status host_state_fetch(struct worker *worker, const struct host_state *host);
/* Copies to the device; waits. Does nothing on the host, either. */
MUST_CHECK enum status host_state_upload(struct worker *worker, const struct host_state *host);
void host_state_release(struct host_state *host);
