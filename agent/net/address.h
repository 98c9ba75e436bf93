/*
 * This node's address for the data plane: what its workers bind, and what those of other nodes are
 * told. Always numeric, never from the host's name, which many systems map to 127.0.1.1.
 *
 * Link-local addresses of IPv6 are refused wherever they come from: they mean something on one link
 * only, and need a scope that others can't know.
 */
#pragma once

#include <net/if.h>
#include <netinet/in.h>

#include "common/reason.h"
#include "common/status.h"

#define ADDRESS_TEXT     INET6_ADDRSTRLEN
#define ADDRESS_LOOPBACK "127.0.0.1"

/* Errors: ST_REFUSED  not the numeric address of one machine, or link-local; out_why says so */
MUST_CHECK enum status address_check(const char *text, struct reason *out_why);
/*
 * spec: an interface's name, or a network ("10.1.0.0/16") that one of this machine's addresses is
 * in. Of several addresses IPv4 comes first, then the order of the system.
 * Errors: ST_NOT_FOUND  there is none, or none that is up; out_why says so
 *         ST_REFUSED    it has a link-local one only
 *         others        of asking the system
 */
MUST_CHECK enum status address_of_interface(const char *spec, char out[ADDRESS_TEXT],
                                            struct reason *out_why);
/*
 * The local address of a way to a peer, which is named as gRPC does: "ipv4:10.1.0.7:7000",
 * "ipv6:%5Bfd00::7%5D:7000"; for "unix:…": loopback. Sends nothing.
 * Errors: ST_INVALID    no such name
 *         ST_REFUSED    the way is link-local
 *         others        there is no way
 */
MUST_CHECK enum status address_towards(const char *peer, char out[ADDRESS_TEXT],
                                       struct reason *out_why);
/* Errors: ST_NOT_FOUND  no interface has this address */
MUST_CHECK enum status address_interface(const char *address, char out[IF_NAMESIZE]);
