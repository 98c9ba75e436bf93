/*
 * TLS of the page, where it is served beyond this machine: 1.2 or 1.3, by GnuTLS, which is what
 * libmicrohttpd speaks.
 *
 * Certificate, key and authorities are those of the coordinator's listener. They are looked at when
 * somebody connects, once a second at most: who connects gets what is in them; connections that
 * stand stay. While they don't do (one is missing or is garbage, the key doesn't fit), what was
 * read before stays.
 *
 * A handshake has TLS_HANDSHAKE_MS in all while bytes come, and where none do the time that any
 * connection may be idle (HTTP_IDLE_S). Callers may come without a certificate. Of one that
 * they show the handshake checks only that they have its key: whether it makes them somebody,
 * tls_peer says for each request, by the authorities of now, so that who is refused hears why.
 * Who speaks HTTP without TLS is told so in it.
 *
 * Thread: any.
 */
#pragma once

#include <gnutls/gnutls.h>
#include <stdint.h>

#include "common/log.h"
#include "identity/files.h"
#include "identity/peer.h"

#define TLS_HANDSHAKE_MS 10000
/* GnuTLS's words: no older version, nothing without forward secrecy or authenticated encryption. */
#define TLS_PRIORITIES                                                                             \
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-DHE-RSA:-CIPHER-ALL:+AES-256-GCM:"           \
    "+CHACHA20-POLY1305:+AES-128-GCM"

struct tls;
struct tls_guest;

/*
 * Reads the files, whose paths are copied; log is borrowed.
 * Errors: ST_CONFIG  they don't do: identity/check.h says why
 *         ST_NO_MEMORY
 */
MUST_CHECK enum status tls_open(const struct identity_files *files, const struct log *log,
                                struct tls **out);
/* After the last guest has left. NULL is fine. */
void tls_close(struct tls *tls);

/* The files as they are now, for the library's start: identity_texts_release. */
MUST_CHECK enum status tls_texts(const struct tls *tls, struct identity_texts *out);

/* Names and addresses in the newest certificate, separated by commas. */
void tls_hosts(struct tls *tls, char out[IDENTITY_HOSTS_MAX]);

/* A connection, before its handshake: gives the session what it shows, and its limits. NULL: no
 * memory; it has the library's own certificate then. */
struct tls_guest *tls_greet(struct tls *tls, gnutls_session_t session, int fd);
/* To be called when a connection is over. NULL is fine. */
void tls_leave(struct tls *tls, struct tls_guest *guest);

/*
 * Reads who is at the other end, after the handshake. reason: what he is told.
 * Errors: ST_NOT_FOUND  no certificate was shown
 *         others        of identity_peer_check
 */
MUST_CHECK enum status tls_peer(struct tls *tls, gnutls_session_t session, int64_t now_s,
                                struct identity_cert *out, struct reason *reason);
