/*
 * Who answers which path, and who may ask.
 *
 * A request has to name this server as its Host, by a name of loopback: a page elsewhere whose
 * name was made to lead here (DNS rebinding) gets nothing. What acts needs, besides an operator's
 * session, a header that no form can send, and no other page's Origin.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/clock.h"
#include "observer/http/internal.h"

static const struct route {
    const char *method;
    const char *path; /* a star is one segment: the name */
    http_handler handler;
    enum session_role role;
    bool get_only; /* its HEAD would use up a link, or be of a stream, which has no end */
} routes[] = {
    { "GET", "/", look_page, SESSION_NOBODY, false },
    { "GET", "/open", look_open, SESSION_NOBODY, true },
    { "GET", "/healthz", look_alive, SESSION_NOBODY, false },
    { "GET", "/metrics", look_metrics, SESSION_NOBODY, false },
    { "GET", "/api/v1/session", look_session, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs", look_jobs, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs/*", look_job, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs/*/why", look_why, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs/*/checkpoints", look_checkpoints, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs/*/curves", look_curves, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs/*/metrics.csv", look_rows, SESSION_VIEWER, false },
    { "GET", "/api/v1/jobs/*/live", live_job, SESSION_VIEWER, true },
    { "GET", "/api/v1/jobs/*/logs", live_logs, SESSION_VIEWER, true },
    { "GET", "/api/v1/nodes", look_nodes, SESSION_VIEWER, false },
    { "GET", "/api/v1/system", look_system, SESSION_VIEWER, false },
    { "GET", "/api/v1/live", live_all, SESSION_VIEWER, true },
    { "POST", "/api/v1/jobs/*/pause", act_pause, SESSION_OPERATOR, false },
    { "POST", "/api/v1/jobs/*/resume", act_resume, SESSION_OPERATOR, false },
    { "POST", "/api/v1/jobs/*/stop", act_stop, SESSION_OPERATOR, false },
    { "POST", "/api/v1/jobs/*/save", act_save, SESSION_OPERATOR, false },
    { "POST", "/api/v1/nodes/*/drain", act_drain, SESSION_OPERATOR, false },
    { "POST", "/api/v1/nodes/*/undrain", act_undrain, SESSION_OPERATOR, false },
};

/* Is it that path? The segment at a star goes to name. */
static bool matches(const char *pattern, const char *path, char name[HTTP_NAME_BYTES])
{
    const char *star = strchr(pattern, '*');
    if (star == NULL)
        return strcmp(pattern, path) == 0;
    const size_t before = (size_t)(star - pattern);
    if (strncmp(pattern, path, before) != 0)
        return false;
    const size_t size = strcspn(path + before, "/");
    if (size == 0 || size >= HTTP_NAME_BYTES || strcmp(star + 1, path + before + size) != 0)
        return false;
    (void)snprintf(name, HTTP_NAME_BYTES, "%.*s", (int)size, path + before);
    return true;
}

static const struct route *find_route(const char *method, const char *path,
                                      char name[HTTP_NAME_BYTES], bool *other_method)
{
    const bool head = strcmp(method, "HEAD") == 0;
    *other_method = false;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (!matches(routes[i].path, path, name))
            continue;
        if (strcmp(routes[i].method, head ? "GET" : method) == 0 && !(head && routes[i].get_only))
            return &routes[i];
        *other_method = true;
    }
    return NULL;
}

static const char *header_of(const struct http_request *request, const char *name)
{
    return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

/* A name of loopback and this server's port. with_port: it has to be there, as in an Origin; a page
 * at another port, be it 80, is another one's. */
static bool is_own(const struct http *http, const char *host, bool with_port)
{
    static const char *const names[] = { "127.0.0.1", "localhost", "[::1]" };
    char own[64];
    for (size_t i = 0; host != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
        (void)snprintf(own, sizeof(own), "%s:%u", names[i], (unsigned)http->port);
        const bool bare = !with_port || http->port == 80;
        if (strcmp(host, own) == 0 || (bare && strcmp(host, names[i]) == 0))
            return true;
    }
    return false;
}

/* Whom a request is for, and whose page sent it. */
struct origin {
    const struct http *http;
    size_t hosts;
    bool host_own, page_own; /* each Host, each Origin is */
};

static enum MHD_Result take_header(void *arg, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    struct origin *origin = arg;
    (void)kind;
    if (strcasecmp(name, "Host") == 0) {
        origin->hosts++;
        origin->host_own = origin->host_own && is_own(origin->http, value, false);
    } else if (strcasecmp(name, "Origin") == 0) {
        origin->page_own = origin->page_own && value != NULL && strncmp(value, "http://", 7) == 0 &&
                           is_own(origin->http, value + 7, true);
    }
    return MHD_YES;
}

static struct origin origin_of(const struct http_request *request)
{
    struct origin out = { .http = request->http, .host_own = true, .page_own = true };
    (void)MHD_get_connection_values(request->connection, MHD_HEADER_KIND, take_header, &out);
    out.host_own = out.host_own && out.hosts == 1;
    return out;
}

static enum session_role role_of(const struct http_request *request)
{
    static const char scheme[] = "Bearer ";
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    const char *header = header_of(request, "Authorization");
    char cookie[sizeof(HTTP_COOKIE_FORMAT) + 8];
    (void)snprintf(cookie, sizeof(cookie), HTTP_COOKIE_FORMAT, (unsigned)request->http->port);
    cookie[strlen(cookie) - 1] = '\0'; /* its name: without the '=' */
    const char *token = MHD_lookup_connection_value(request->connection, MHD_COOKIE_KIND, cookie);
    if (header != NULL && strncmp(header, scheme, sizeof(scheme) - 1) == 0)
        token = header + sizeof(scheme) - 1;
    return session_role(request->http->parts.sessions, token, now_s);
}

static enum MHD_Result refuse(const struct http_request *request, const struct route *route)
{
    if (request->role == SESSION_NOBODY) {
        return reply_error(request, MHD_HTTP_UNAUTHORIZED,
                           "sign in: 'cairn open' on the coordinator's machine; scripts send "
                           "'Authorization: Bearer' with what CAIRN_HOME/observer/token holds");
    }
    if (request->role < route->role) {
        return reply_error(request, MHD_HTTP_FORBIDDEN,
                           "a viewer may look only; 'cairn open' lets an operator in");
    }
    return reply_error(request, MHD_HTTP_FORBIDDEN,
                       "to act, send the header 'X-Cairn: 1', from this page or no page");
}

enum MHD_Result route_request(struct http_request *request, const char *method, const char *path)
{
    char name[HTTP_NAME_BYTES] = "";
    bool other_method = false;
    const struct route *route = find_route(method, path, name, &other_method);
    const struct origin origin = origin_of(request);
    if (!origin.host_own) {
        return reply_error(request, MHD_HTTP_MISDIRECTED_REQUEST,
                           "this page is at http://127.0.0.1:%u/; from another machine come by "
                           "'ssh -L %u:127.0.0.1:%u'",
                           (unsigned)request->http->port, (unsigned)request->http->port,
                           (unsigned)request->http->port);
    }
    if (route == NULL && other_method) {
        return reply_error(request, MHD_HTTP_METHOD_NOT_ALLOWED, "%s isn't done to %.200s", method,
                           path);
    }
    if (route == NULL) {
        return reply_error(request, MHD_HTTP_NOT_FOUND,
                           "there is no %.200s: docs/page.md has all "
                           "there is",
                           path);
    }
    request->name = name;
    request->role = role_of(request);
    if (request->role < route->role)
        return refuse(request, route);
    const char *ours = header_of(request, "X-Cairn");
    if (route->role == SESSION_OPERATOR &&
        (ours == NULL || strcmp(ours, "1") != 0 || !origin.page_own))
        return refuse(request, route);
    return route->handler(request);
}
