/*
 * Where a pair of Gloo listens, in the form in which it goes over the network. In Gloo's own form
 * it is a sockaddr_storage and a number, 136 bytes for each pair. All pairs of a rank listen at the
 * same host, each at a port of its own: so a rank says its host once, and per peer a port.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GLOO_ADDRESS_BYTES 136 /* in Gloo's form */
#define GLOO_HOST_MAX      20  /* IPv6 and its scope; IPv4: 4 bytes, with which it is known */
#define GLOO_PORT_BYTES    2   /* in the network's order */

struct gloo_address {
    size_t host_size;
    uint8_t host[GLOO_HOST_MAX];
    uint8_t port[GLOO_PORT_BYTES];
};

/* ST_INVALID: no address of IPv4 or IPv6, or something of Gloo's that the short form has no room
 * for. */
MUST_CHECK enum status gloo_address_shorten(const uint8_t address[GLOO_ADDRESS_BYTES],
                                            struct gloo_address *out);
/* ST_INVALID: no host has such a size. */
MUST_CHECK enum status gloo_address_expand(const struct gloo_address *address,
                                           uint8_t out[GLOO_ADDRESS_BYTES]);

#ifdef __cplusplus
}
#endif
