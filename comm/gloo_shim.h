/*
 * The part of Gloo that is used, behind a C border: a full mesh of TCP pairs and one operation, a
 * list of transfers that are posted together and waited for together. No exception crosses it.
 * Connections come from outside: Gloo is on stage (sockets.h) when it believes that it listens.
 *
 * What this adds to Gloo 0.5.0, whose closing of connections doesn't free a waiting thread:
 *  - gloo_mesh_abort frees the thread that waits, from any thread, by aborting every buffer that is
 *    in flight;
 *  - a watcher thread notices a dead peer at once, whatever this rank is waiting for: a pair that
 *    fails is noticed only by operations that it has not begun yet, so each pair holds one that
 *    never begins;
 *  - a failed exchange closes all pairs itself before it returns: then nothing writes into its
 *    buffers any more.
 *
 * Thread: one thread opens, connects, exchanges and closes; gloo_mesh_abort from any.
 * Errors: ST_PEER (blamed is set), ST_STALE (aborted), ST_INVALID, ST_NO_MEMORY, ST_IO. After an
 *         error of connect, start or exchange only close is left.
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

/* host: of an interface of this machine. */
MUST_CHECK enum status gloo_mesh_new(int rank, int size, const char *host, int64_t pair_timeout_ms,
                                     struct gloo_mesh **out);
/* Gives the pair with peer its connection, which stays the caller's to close. */
MUST_CHECK enum status gloo_mesh_connect(struct gloo_mesh *mesh, int peer, int connection);
/* All peers are connected: starts the watcher. */
MUST_CHECK enum status gloo_mesh_start(struct gloo_mesh *mesh);

struct gloo_transfer {
    void *data;
    size_t size; /* >= 1 */
    int peer;
    bool is_send;
};

/*
 * Posts all transfers under tag and waits until each is through. Both sides of a transfer name the
 * same tag (Gloo calls it a slot); one is used once per pair and direction.
 * Memory: Gloo's handle for (data, size, peer, direction) is kept for the next time.
 */
MUST_CHECK enum status gloo_mesh_exchange(struct gloo_mesh *mesh,
                                          const struct gloo_transfer *transfers, size_t count,
                                          uint64_t tag, int64_t timeout_ms);

/* After an error: the peer that is to blame, or -1; one line that says what happened. */
int gloo_mesh_blamed(const struct gloo_mesh *mesh);
const char *gloo_mesh_why(const struct gloo_mesh *mesh);

void gloo_mesh_abort(struct gloo_mesh *mesh);
/* What was sent is still delivered, unless an error came before. */
void gloo_mesh_close(struct gloo_mesh *mesh);

#ifdef __cplusplus
}
#endif
