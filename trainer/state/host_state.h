/*
 * The whole state on the host, to be digested or filled in: the live buffers where they lie there,
 * else arrays of its own that the device's are copied through.
 */
#pragma once

#include <stdbool.h>

#include "trainer/state/state.h"
#include "trainer/worker/worker.h"

struct whole {
    struct ckpt_buffer buffers[CKPT_BUFFERS_MAX];
    void *data[CKPT_BUFFERS_MAX]; /* one array per buffer */
    bool owned;
};

/* view describes the worker's buffers; it points to these afterwards. out starts zeroed and is
 * released whatever is returned. ST_NO_MEMORY */
MUST_CHECK enum status whole_make(struct worker *w, struct state_view *view, struct whole *out);
/* Of a device: all of it there, or back. Waits. */
MUST_CHECK enum status whole_move(struct worker *w, const struct whole *whole, uint32_t count,
                                  bool up);
void whole_release(struct whole *whole);
