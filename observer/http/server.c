/* The server: connections, requests and their bodies; its end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/unconst.h"
#include "observer/http/internal.h"

#define STACK_BYTES ((size_t)512 * 1024) /* of a connection's thread */
#define TLS_OPTIONS 6
#define DROP_BYTES  ((size_t)1 << 20) /* of a body, until its connection is ended */

/* Lives from a request's head to its end. */
struct pending {
    struct buf body;
    size_t dropped; /* bytes of one that is too large */
};

static enum MHD_Result take_body(struct pending *pending, const char *data, size_t *size)
{
    if (pending->dropped > 0 || buf_append(&pending->body, data, *size) != ST_OK)
        pending->dropped += *size; /* read, so that he who sends it hears why */
    *size = 0;
    return pending->dropped <= DROP_BYTES ? MHD_YES : MHD_NO;
}

/* Called with the head, with each piece of the body, and once more: then it is answered. */
static enum MHD_Result take_request(void *arg, struct MHD_Connection *connection, const char *path,
                                    const char *method, const char *version, const char *data,
                                    size_t *size, void **slot)
{
    struct pending *pending = *slot;
    (void)version;
    if (pending == NULL) {
        pending = calloc(1, sizeof(*pending));
        if (pending == NULL)
            return MHD_NO;
        buf_init(&pending->body, HTTP_BODY_BYTES);
        *slot = pending;
        return MHD_YES;
    }
    if (*size > 0)
        return take_body(pending, data, size);
    struct http_request request = { .http = arg,
                                    .connection = connection,
                                    .name = "",
                                    .body = pending->body.data != NULL ? pending->body.data : "",
                                    .body_size = pending->body.size };
    if (pending->dropped > 0) {
        return reply_error(&request, MHD_HTTP_CONTENT_TOO_LARGE, "a request has %d bytes at most",
                           HTTP_BODY_BYTES);
    }
    return route_request(&request, method, path);
}

static void end_request(void *arg, struct MHD_Connection *connection, void **slot,
                        enum MHD_RequestTerminationCode code)
{
    struct pending *pending = *slot;
    (void)arg;
    (void)connection;
    (void)code;
    if (pending == NULL)
        return;
    buf_release(&pending->body);
    free(pending);
    *slot = NULL;
}

static void log_line(void *arg, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));
static void log_line(void *arg, const char *format, va_list args)
{
    const struct http *http = arg;
    char line[512];
    (void)vsnprintf(line, sizeof(line), format, args);
    line[strcspn(line, "\r\n")] = '\0';
    LOG_DEBUG(http->parts.log, "http: %s", line); /* of what strangers send */
}

/* A connection of TLS begins, before its handshake, or is over. */
static void on_connection(void *arg, struct MHD_Connection *connection, void **slot,
                          enum MHD_ConnectionNotificationCode code)
{
    const struct http *http = arg;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        tls_leave(http->tls, *slot);
        *slot = NULL;
        return;
    }
    const union MHD_ConnectionInfo *session =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (session != NULL && fd != NULL)
        *slot = tls_greet(http->tls, (gnutls_session_t)session->tls_session, fd->connect_fd);
}

/* Fills the options that only TLS needs; the library reads the files' texts before it starts. */
static void fill_tls_options(struct http *http, const struct identity_texts *texts,
                             struct MHD_OptionItem options[TLS_OPTIONS])
{
    const struct MHD_OptionItem list[TLS_OPTIONS] = {
        { MHD_OPTION_HTTPS_MEM_CERT, 0, texts->cert },
        { MHD_OPTION_HTTPS_MEM_KEY, 0, texts->key },
        { MHD_OPTION_HTTPS_PRIORITIES, 0, unconst(TLS_PRIORITIES) },
        { MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, http },
        { MHD_OPTION_PER_IP_CONNECTION_LIMIT, HTTP_PER_ADDRESS_MAX, NULL },
        { MHD_OPTION_END, 0, NULL },
    };
    memcpy(options, list, sizeof(list));
}

static enum status start_daemon(struct http *http, int listen_fd)
{
    struct identity_texts texts = { 0 };
    struct MHD_OptionItem more[TLS_OPTIONS] = { { MHD_OPTION_END, 0, NULL } };
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ERROR_LOG | MHD_USE_ITC;
    if (http->tls != NULL) {
        const enum status st = tls_texts(http->tls, &texts);
        if (st != ST_OK)
            return st;
        flags |= MHD_USE_TLS;
        fill_tls_options(http, &texts, more);
    }
    http->daemon = MHD_start_daemon(
        flags, http->port, NULL, NULL, take_request, http, MHD_OPTION_EXTERNAL_LOGGER, log_line,
        http, MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)HTTP_CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HTTP_IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_HEAD_BYTES, MHD_OPTION_THREAD_STACK_SIZE,
        STACK_BYTES, MHD_OPTION_NOTIFY_COMPLETED, end_request, NULL, MHD_OPTION_ARRAY, more,
        MHD_OPTION_END);
    identity_texts_release(&texts);
    return http->daemon == NULL ? ST_IO : ST_OK;
}

enum status http_start(const struct http_parts *parts, int listen_fd, uint16_t port,
                       struct http **out)
{
    struct http *http = calloc(1, sizeof(*http));
    enum status st = http == NULL ? ST_NO_MEMORY : ST_OK;
    if (st == ST_OK) {
        http->parts = *parts;
        http->port = port;
        http->started_ms = clock_mono_ms(clock_system());
    }
    if (st == ST_OK && parts->tls != NULL)
        st = tls_open(parts->tls, parts->log, &http->tls);
    if (st == ST_OK)
        st = start_daemon(http, listen_fd);
    if (st != ST_OK) {
        (void)close(listen_fd);
        if (http != NULL)
            tls_close(http->tls);
        free(http);
        return st;
    }
    *out = http;
    return ST_OK;
}

void http_stop(struct http *http)
{
    if (http == NULL)
        return;
    MHD_stop_daemon(http->daemon);
    tls_close(http->tls);
    free(http);
}
