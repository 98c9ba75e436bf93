/*
 * Whether what a caller showed in a handshake that checked no more than that he has the key makes
 * him somebody of this cluster: the same that gRPC's core and server/api/access.c find.
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

/* One of them, as it came: DER. */
struct identity_der {
    const unsigned char *data;
    size_t size;
};

/*
 * chain: what was shown, the caller's own first; ca: PEM text of the authorities that count;
 * cluster: whose certificates count. out is what the caller's own says; reason, one line for him.
 * Errors: ST_CONFIG  it doesn't do: not one of these authorities', too old or too young, for
 *                    serving, nobody's of this cluster
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status identity_peer_check(const char *ca, const char *cluster,
                                           const struct identity_der *chain, size_t count,
                                           int64_t now_s, struct identity_cert *out,
                                           struct reason *reason);
