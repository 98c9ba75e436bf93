/*
 * The part of Gloo that is used, behind a C border: a mesh of TCP pairs and two operations, to post
 * a transfer and to wait for one. No exception crosses it. Connections come from outside: Gloo is
 * on stage (sockets.h) when it believes that it listens.
 *
 * What this adds to Gloo 0.5.0, whose closing of connections doesn't free a waiting thread:
 *  - gloo_mesh_abort frees the thread that waits, from any thread, by aborting every transfer that
 *    is in flight;
 *  - a watcher thread notices a dead peer at once, whatever this rank is waiting for: a pair that
 *    fails is noticed only by operations that it has not begun yet, so each pair holds one that
 *    never begins;
 *  - a call that fails closes all pairs itself before it returns: then nothing writes into the
 *    buffers of any transfer any more.
 *
 * Thread: one thread opens, connects, posts, waits and closes; gloo_mesh_abort from any.
 * Errors: ST_PEER (blamed is set), ST_STALE (aborted), ST_INVALID, ST_NO_MEMORY, ST_IO. After an
 *         error only close is left, and every post and wait returns the same again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct gloo_mesh;

/* names: [size] what blamed and why call the peers. host: of an interface of this machine. */
MUST_CHECK enum status gloo_mesh_new(int rank, int size, const int *names, const char *host,
                                     int64_t pair_timeout_ms, struct gloo_mesh **out);
/* Gives the pair with peer its connection, which the caller still closes. */
MUST_CHECK enum status gloo_mesh_connect(struct gloo_mesh *mesh, int peer, int connection);
/* Starts the watcher, once all peers that are wanted are connected. */
MUST_CHECK enum status gloo_mesh_start(struct gloo_mesh *mesh);

struct gloo_transfer {
    void *data;
    size_t size; /* >= 1 */
    int peer;    /* connected */
    bool is_send;
};

struct gloo_flight; /* a transfer that was posted */

/*
 * Starts a transfer; the buffer belongs to it until its wait. Both sides name the same tag (Gloo
 * calls it a slot); one is used once per pair and direction.
 * Memory: the flight is Gloo's handle for (data, size, peer, direction), the mesh's, and kept for
 *         the next time.
 * Errors: ST_INVALID also where that is in flight already.
 */
MUST_CHECK enum status gloo_mesh_post(struct gloo_mesh *mesh, const struct gloo_transfer *transfer,
                                      uint64_t tag, struct gloo_flight **out);
/* Waits until the transfer is complete; flights may be waited for in any order, each once. */
MUST_CHECK enum status gloo_mesh_wait(struct gloo_mesh *mesh, struct gloo_flight *flight,
                                      int64_t timeout_ms);

/* Returns ST_OK, or the error with which a call would fail by now. */
MUST_CHECK enum status gloo_mesh_look(struct gloo_mesh *mesh);

/* Return the peer that is to blame for an error, or -1, and a line that says what happened. */
int gloo_mesh_blamed(const struct gloo_mesh *mesh);
const char *gloo_mesh_why(const struct gloo_mesh *mesh);

void gloo_mesh_abort(struct gloo_mesh *mesh);
/* Closes the mesh. Data that was sent is still delivered, unless an error came before. */
void gloo_mesh_close(struct gloo_mesh *mesh);

#ifdef __cplusplus
}
#endif
