/*
 * The observer's HTTP server (docs/page.md has its interface): the page, JSON of the coordinator's
 * messages under /api/v1, server-sent events, /metrics.
 *
 *     served                who                                       may see and do
 *     on loopback           anybody on this machine                   the page's shell, /metrics
 *     with TLS, beyond it   anybody                                   the page's shell
 *     both                  a session of `cairn open`, or a token     as an operator or a viewer
 *     with TLS              a certificate of the cluster              as identity/rights.h has it
 *
 * Each connection has a thread. Nothing here is unbounded: HTTP_CONNECTIONS_MAX connections, idle
 * ones for HTTP_IDLE_S, HTTP_STREAMS_MAX of them that stay open for events; requests of
 * HTTP_HEAD_BYTES and HTTP_BODY_BYTES.
 */
#pragma once

#include "common/log.h"
#include "identity/files.h"
#include "observer/coordinator/coordinator.h"
#include "observer/curves/cache.h"
#include "observer/http/session.h"
#include "observer/snapshot/poll.h"

#define HTTP_CONNECTIONS_MAX 128
#define HTTP_PER_ADDRESS_MAX 64 /* of them from one address, with TLS: nobody alone takes all */
#define HTTP_STREAMS_MAX     64
#define HTTP_IDLE_S          20
#define HTTP_HEAD_BYTES      16384
#define HTTP_BODY_BYTES      4096

/* The cookie of a session has the server's port in its name: browsers send cookies to every port of
 * a host, so two homes on one machine would sign each other's browsers out. */
#define HTTP_COOKIE_FORMAT "cairn_session_%u="

struct http;

/* The parts of the server; all borrowed. */
struct http_parts {
    struct coordinator *coordinator;
    struct poll *poll;
    struct cache *cache;
    struct sessions *sessions;
    const struct log *log;
    const struct identity_files *tls; /* NULL: plain HTTP, for this machine only */
    const char *host; /* served there, beside names that go by themselves; or NULL */
    const char *url;  /* where people find it */
};

/* Serves what comes at listen_fd, which is this one's from now on; port is its port, by which the
 * Host of requests is known. Errors: ST_CONFIG  the files of TLS don't do */
MUST_CHECK enum status http_start(const struct http_parts *parts, int listen_fd, uint16_t port,
                                  struct http **out);
/* After poll_stop, which ends the streams. */
void http_stop(struct http *http);
