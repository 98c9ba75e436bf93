/*
 * The asker of a request is known by the certificate of his connection, by a session of `cairn
 * open`, by a token.
 *
 * What is shown with a request counts before what a connection has: a token before a cookie, a
 * cookie that is somebody's before a certificate. A token that is nobody's makes him nobody, and a
 * certificate that won't do is refused whatever else he shows, as the coordinator refuses it.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "observer/http/internal.h"

static void read_address(const struct http_request *request, char out[IDENTITY_BEHALF_ADDRESS])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *from = info != NULL ? info->client_addr : NULL;
    const void *bytes = NULL;
    if (from != NULL && from->sa_family == AF_INET)
        bytes = &((const struct sockaddr_in *)(const void *)from)->sin_addr;
    if (from != NULL && from->sa_family == AF_INET6)
        bytes = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    if (bytes == NULL || inet_ntop(from->sa_family, bytes, out, IDENTITY_BEHALF_ADDRESS) == NULL)
        (void)snprintf(out, IDENTITY_BEHALF_ADDRESS, "0.0.0.0");
}

static void take_certificate(const struct http_request *request, int64_t now_s,
                             struct http_who *who)
{
    struct identity_cert cert;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    if (request->http->tls == NULL || info == NULL)
        return;
    const enum status st = tls_peer(request->http->tls, (gnutls_session_t)info->tls_session, now_s,
                                    &cert, &who->refusal);
    if (st == ST_NOT_FOUND)
        return;
    if (st != ST_OK) {
        if (who->refusal.text[0] == '\0')
            reason_set(&who->refusal, "this certificate can't be checked: %s", status_string(st));
        return;
    }
    who->is.role = cert.who.role;
    (void)snprintf(who->is.who, sizeof(who->is.who), "%s", cert.who.name);
    (void)snprintf(who->cluster, sizeof(who->cluster), "%s", cert.who.cluster);
    who->until_s = cert.not_after_s;
}

static void take_token(const struct http_request *request, const char *token, int64_t now_s,
                       struct http_who *who)
{
    struct sessions *sessions = request->http->parts.sessions;
    who->keys = sessions_keys(sessions); /* before: another key meanwhile ends what it opens */
    const enum identity_role role = session_role(sessions, token, now_s);
    who->is.role = role;
    who->is.who[0] = '\0';
    if (role == IDENTITY_NOBODY)
        return;
    session_who(token, who->is.who);
    who->until_s = session_until_s(token);
}

static const char *cookie_of(const struct http_request *request)
{
    char name[sizeof(HTTP_COOKIE_FORMAT) + 8];
    (void)snprintf(name, sizeof(name), HTTP_COOKIE_FORMAT, (unsigned)request->http->port);
    name[strlen(name) - 1] = '\0'; /* without the '=' */
    return MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, name);
}

void who_asks(struct http_request *request)
{
    static const char scheme[] = "Bearer ";
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    struct http_who *who = &request->who;
    const char *header =
        MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, "Authorization");
    const char *cookie = cookie_of(request);
    *who = (struct http_who){ .is.role = IDENTITY_NOBODY };
    take_certificate(request, now_s, who);
    read_address(request, who->is.address);
    if (who->refusal.text[0] != '\0')
        return;
    if (header != NULL && strncmp(header, scheme, sizeof(scheme) - 1) == 0) {
        take_token(request, header + sizeof(scheme) - 1, now_s, who);
    } else if (session_role(request->http->parts.sessions, cookie, now_s) != IDENTITY_NOBODY) {
        take_token(request, cookie, now_s, who);
    }
}
