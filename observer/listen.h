/*
 * Where the page is served: an address as people give it, and its socket.
 *
 * Thread: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

#define LISTEN_HOST 256                /* bytes of a host, with the NUL */
#define LISTEN_URL  (LISTEN_HOST + 32) /* of "https://HOST:PORT/" */

/*
 * "127.0.0.1:7080", "[fd00::7]:7080", "cairn.example.org:7080": its host, without brackets, and
 * whether that is this machine only by its look; false: it is no such address. On loopback a host
 * is a number: what a name there leads to is for others to say.
 */
bool listen_parse(const char *address, char host[LISTEN_HOST], uint16_t *out_port, bool *out_local);

/* A socket that listens there; port 0: any. Errors: by errno, and ST_NOT_FOUND: no such host */
MUST_CHECK enum status listen_at(const char *host, uint16_t port, int *out_fd);

/* The port that a socket got. */
uint16_t listen_port(int fd);

/* True if a host stands for all addresses of this machine. */
bool listen_is_any(const char *host);

/*
 * The host of the page's address for people: that of --listen, unless the certificate names others
 * but not that one (host is of all addresses, or behind a router), then the first of those. hosts
 * is the certificate's list. False: nobody who checks the certificate will be content with it.
 */
bool listen_public(const char *host, const char *hosts, char out[LISTEN_HOST]);

/* "https://[fd00::7]:7080/" */
void listen_url(bool tls, const char *host, uint16_t port, char out[LISTEN_URL]);
