/*
 * Who answers which path, and who may ask.
 *
 * A request has to name this server as its Host, by a name of loopback: a page elsewhere whose
 * name was made to lead here (DNS rebinding) gets nothing. What acts needs, besides an operator's
 * session, a header that no form can send, and no other page's Origin.
 */
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "observer/http/internal.h"

#define NAME_BYTES 128

static const struct route {
    const char *method;
    const char *path; /* a star is one segment: the name */
    enum session_role role;
    http_handler handler;
} routes[] = {
    { "GET", "/", SESSION_NOBODY, look_page },
    { "GET", "/open", SESSION_NOBODY, look_open },
    { "GET", "/healthz", SESSION_NOBODY, look_alive },
    { "GET", "/metrics", SESSION_NOBODY, look_metrics },
    { "GET", "/api/v1/session", SESSION_VIEWER, look_session },
    { "GET", "/api/v1/jobs", SESSION_VIEWER, look_jobs },
    { "GET", "/api/v1/jobs/*", SESSION_VIEWER, look_job },
    { "GET", "/api/v1/jobs/*/why", SESSION_VIEWER, look_why },
    { "GET", "/api/v1/jobs/*/checkpoints", SESSION_VIEWER, look_checkpoints },
    { "GET", "/api/v1/jobs/*/curves", SESSION_VIEWER, look_curves },
    { "GET", "/api/v1/jobs/*/metrics.csv", SESSION_VIEWER, look_rows },
    { "GET", "/api/v1/jobs/*/live", SESSION_VIEWER, live_job },
    { "GET", "/api/v1/jobs/*/logs", SESSION_VIEWER, live_logs },
    { "GET", "/api/v1/nodes", SESSION_VIEWER, look_nodes },
    { "GET", "/api/v1/system", SESSION_VIEWER, look_system },
    { "GET", "/api/v1/live", SESSION_VIEWER, live_all },
    { "POST", "/api/v1/jobs/*/pause", SESSION_OPERATOR, act_pause },
    { "POST", "/api/v1/jobs/*/resume", SESSION_OPERATOR, act_resume },
    { "POST", "/api/v1/jobs/*/stop", SESSION_OPERATOR, act_stop },
    { "POST", "/api/v1/jobs/*/save", SESSION_OPERATOR, act_save },
    { "POST", "/api/v1/nodes/*/drain", SESSION_OPERATOR, act_drain },
    { "POST", "/api/v1/nodes/*/undrain", SESSION_OPERATOR, act_undrain },
};

/* Is it that path? The segment at a star goes to name. */
static bool matches(const char *pattern, const char *path, char name[NAME_BYTES])
{
    const char *star = strchr(pattern, '*');
    if (star == NULL)
        return strcmp(pattern, path) == 0;
    const size_t before = (size_t)(star - pattern);
    if (strncmp(pattern, path, before) != 0)
        return false;
    const size_t size = strcspn(path + before, "/");
    if (size == 0 || size >= NAME_BYTES || strcmp(star + 1, path + before + size) != 0)
        return false;
    (void)snprintf(name, NAME_BYTES, "%.*s", (int)size, path + before);
    return true;
}

static const struct route *find_route(const char *method, const char *path, char name[NAME_BYTES],
                                      bool *other_method)
{
    const char *as = strcmp(method, "HEAD") == 0 ? "GET" : method;
    *other_method = false;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (!matches(routes[i].path, path, name))
            continue;
        if (strcmp(routes[i].method, as) == 0)
            return &routes[i];
        *other_method = true;
    }
    return NULL;
}

static const char *header_of(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

static bool is_own_host(const struct http_request *request, const char *host)
{
    static const char *const names[] = { "127.0.0.1", "localhost", "[::1]" };
    char own[64];
    for (size_t i = 0; host != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(own, sizeof(own), "%s:%u", names[i], (unsigned)request->http->port);
        if (strcmp(host, own) == 0 || strcmp(host, names[i]) == 0)
            return true;
    }
    return false;
}

/* None, or this server's own. */
static bool is_own_origin(const struct http_request *request)
{
    const char *origin = header_of(request, "Origin");
    return origin == NULL ||
           (strncmp(origin, "http://", 7) == 0 && is_own_host(request, origin + 7));
}

static enum session_role role_of(const struct http_request *request)
{
    static const char scheme[] = "Bearer ";
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    const char *header = header_of(request, "Authorization");
    const char *token =
        MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, SESSION_COOKIE);
    if (header != NULL && strncmp(header, scheme, sizeof(scheme) - 1) == 0)
        token = header + sizeof(scheme) - 1;
    return session_role(request->http->parts.sessions, token, now_s);
}

static enum MHD_Result refuse(const struct http_request *request, const struct route *route)
{
    if (request->role == SESSION_NOBODY)
        return reply_error(request, MHD_HTTP_UNAUTHORIZED,
                           "sign in: 'cairn open' on the coordinator's machine; scripts send "
                           "'Authorization: Bearer' with what CAIRN_HOME/observer/token holds");
    if (request->role < route->role)
        return reply_error(request, MHD_HTTP_FORBIDDEN,
                           "a viewer may look only; 'cairn open' lets an operator in");
    return reply_error(request, MHD_HTTP_FORBIDDEN,
                       "to act, send the header 'X-Cairn: 1', from this page or no page");
}

enum MHD_Result route_request(struct http_request *request, const char *method, const char *path)
{
    char name[NAME_BYTES] = "";
    bool other_method = false;
    const struct route *route = find_route(method, path, name, &other_method);
    if (!is_own_host(request, header_of(request, "Host")))
        return reply_error(request, MHD_HTTP_MISDIRECTED_REQUEST,
                           "this page is at http://127.0.0.1:%u/; from another machine come by "
                           "'ssh -L %u:127.0.0.1:%u'",
                           (unsigned)request->http->port, (unsigned)request->http->port,
                           (unsigned)request->http->port);
    if (route == NULL && other_method)
        return reply_error(request, MHD_HTTP_METHOD_NOT_ALLOWED, "%s isn't done to %.200s", method,
                           path);
    if (route == NULL)
        return reply_error(request, MHD_HTTP_NOT_FOUND,
                           "there is no %.200s: docs/page.md has all "
                           "there is",
                           path);
    request->name = name;
    request->role = role_of(request);
    if (request->role < route->role)
        return refuse(request, route);
    const char *ours = header_of(request, "X-Cairn");
    if (route->role == SESSION_OPERATOR &&
        (ours == NULL || strcmp(ours, "1") != 0 || !is_own_origin(request)))
        return refuse(request, route);
    return route->handler(request);
}
