/*
 * Checks whether the certificates that a caller showed make him somebody of this cluster. The
 * handshake before has checked only that he has their key. gRPC's core and server/api/access.c come
 * to the same result.
 *
 * Thread: any.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/reason.h"
#include "common/status.h"
#include "identity/cert.h"

#define IDENTITY_CHAIN_MAX 8 /* certificates that a caller may show */

/* One certificate of a chain, as it was sent: DER. */
struct identity_der {
    const unsigned char *data;
    size_t size;
};

/*
 * Checks a chain. chain: the shown certificates, the caller's own first; ca: PEM text of the
 * authorities that count; cluster: whose certificates count. out is what the caller's own one says;
 * reason, one line for him.
 * Errors: ST_CONFIG  it doesn't do: not one of these authorities', too old or too young, for
 *                    serving, nobody's of this cluster
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status identity_peer_check(const char *ca, const char *cluster,
                                           const struct identity_der *chain, size_t count,
                                           int64_t now_s, struct identity_cert *out,
                                           struct reason *reason);
