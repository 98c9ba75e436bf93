/*
 * Routes: who answers which path, and who may ask.
 *
 * A path needs a method of the coordinator's Control, by which it shows or does what it does: who
 * may call that there (identity/rights.h) may ask for it here.
 *
 * A request has to name this server as its Host, by a name of loopback or of its certificate: a
 * page elsewhere whose name was made to lead here (DNS rebinding) gets nothing. What acts needs a
 * header that no form can send, and no other page's Origin: browsers send cookies and certificates
 * by themselves.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "identity/rights.h"
#include "observer/http/internal.h"

enum flag {
    GET_ONLY = 1,  /* its HEAD would use up a link, or be of a stream: the library sends its end */
    OPEN_HERE = 2, /* on loopback to whoever is on this machine */
    ACTS = 4,      /* though its method looks only */
};

static const struct route {
    const char *method;
    const char *path; /* a star is one segment: the name */
    http_handler handler;
    const char *needs; /* NULL: it says nothing of the cluster, and is open */
    unsigned flags;
} routes[] = {
    { "GET", "/", look_page, NULL, 0 },
    { "GET", "/open", look_open, NULL, GET_ONLY },
    { "GET", "/healthz", look_alive, NULL, 0 },
    { "GET", "/metrics", look_metrics, "ListJobs", OPEN_HERE },
    { "GET", "/api/v1/session", look_session, "GetVersion", 0 },
    { "GET", "/api/v1/jobs", look_jobs, "ListJobs", 0 },
    { "GET", "/api/v1/jobs/*", look_job, "GetJob", 0 },
    { "GET", "/api/v1/jobs/*/why", look_why, "ExplainJob", 0 },
    { "GET", "/api/v1/jobs/*/checkpoints", look_checkpoints, "ListCheckpoints", 0 },
    { "GET", "/api/v1/jobs/*/curves", look_curves, "ReadMetrics", 0 },
    { "GET", "/api/v1/jobs/*/metrics.csv", look_rows, "ReadMetrics", GET_ONLY },
    { "GET", "/api/v1/jobs/*/live", live_job, "WatchJob", GET_ONLY },
    { "GET", "/api/v1/jobs/*/logs", live_logs, "StreamLogs", GET_ONLY },
    { "GET", "/api/v1/nodes", look_nodes, "ListNodes", 0 },
    { "GET", "/api/v1/system", look_system, "GetVersion", 0 },
    { "GET", "/api/v1/live", live_all, "ListJobs", GET_ONLY },
    { "POST", "/api/v1/sign-out", act_sign_out, "GetVersion", ACTS },
    { "POST", "/api/v1/jobs/*/pause", act_pause, "PauseJob", 0 },
    { "POST", "/api/v1/jobs/*/resume", act_resume, "ResumeJob", 0 },
    { "POST", "/api/v1/jobs/*/stop", act_stop, "StopJob", 0 },
    { "POST", "/api/v1/jobs/*/save", act_save, "SaveCheckpoint", 0 },
    { "POST", "/api/v1/nodes/*/drain", act_drain, "DrainNode", 0 },
    { "POST", "/api/v1/nodes/*/undrain", act_undrain, "UndrainNode", 0 },
};

/* True if the path matches the pattern. The segment at a star goes to name. */
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
        if (strcmp(routes[i].method, head ? "GET" : method) == 0 &&
            !(head && (routes[i].flags & GET_ONLY) != 0))
            return &routes[i];
        *other_method = true;
    }
    return NULL;
}

/* "HOST:PORT", or "HOST" where bare: an address of IPv6 in brackets. */
static bool is_named(const char *text, const char *host, size_t size, uint16_t port, bool bare)
{
    const bool six = memchr(host, ':', size) != NULL;
    char own[IDENTITY_HOSTS_MAX + 16];
    (void)snprintf(own, sizeof(own), "%s%.*s%s:%u", six ? "[" : "", (int)size, host, six ? "]" : "",
                   (unsigned)port);
    if (strcasecmp(text, own) == 0)
        return true;
    *strrchr(own, ':') = '\0';
    return bare && strcasecmp(text, own) == 0;
}

/* True if the text names one of these hosts, which are separated by commas. */
static bool is_one_of(const char *text, const char *hosts, uint16_t port, bool bare)
{
    for (size_t size = 0; hosts[0] != '\0'; hosts += size + (hosts[size] == ',')) {
        size = strcspn(hosts, ",");
        if (size > 0 && is_named(text, hosts, size, port, bare))
            return true;
    }
    return false;
}

/* A name of this server and its port. with_port: it has to be there, as in an Origin; a page at
 * another port, be it the usual one, is another one's. */
static bool is_own(const struct http *http, const char *host, bool with_port)
{
    char hosts[IDENTITY_HOSTS_MAX] = "127.0.0.1,localhost,::1";
    const bool bare = !with_port || http->port == (http->tls != NULL ? 443 : 80);
    if (http->tls != NULL)
        tls_hosts(http->tls, hosts);
    return host != NULL &&
           (is_one_of(host, hosts, http->port, bare) ||
            (http->parts.host != NULL && is_one_of(host, http->parts.host, http->port, bare)));
}

/* "https://HOST:PORT" */
static bool is_own_page(const struct http *http, const char *origin)
{
    const char *scheme = http->tls != NULL ? "https://" : "http://";
    const size_t size = strlen(scheme);
    return origin != NULL && strncmp(origin, scheme, size) == 0 &&
           is_own(http, origin + size, true);
}

/* What the headers of a request say: the host that it is for, and the site whose page sent it. */
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
        origin->page_own = origin->page_own && is_own_page(origin->http, value);
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

/* Refuses a caller who lacks the right, with the advice that fits him. */
static enum MHD_Result refuse_role(const struct http_request *request, const char *why)
{
    const bool tls = request->http->tls != NULL;
    if (request->who.refusal.text[0] != '\0')
        return reply_error(request, MHD_HTTP_UNAUTHORIZED, "%s", request->who.refusal.text);
    if (request->who.is.role == IDENTITY_NOBODY) {
        return reply_error(request, MHD_HTTP_UNAUTHORIZED,
                           "sign in: 'cairn open' on the coordinator's machine%s; scripts send "
                           "'Authorization: Bearer' with what CAIRN_HOME/observer/token holds",
                           tls ? ", or a certificate as made by 'cairn cert'" : "");
    }
    if (request->who.cluster[0] != '\0')
        return reply_error(request, MHD_HTTP_FORBIDDEN, "%s", why);
    return reply_error(request, MHD_HTTP_FORBIDDEN,
                       "a viewer may look only; 'cairn open' lets an operator in");
}

static enum MHD_Result refuse_host(const struct http_request *request)
{
    const struct http *http = request->http;
    if (http->tls != NULL) {
        return reply_error(request, MHD_HTTP_MISDIRECTED_REQUEST,
                           "this page is at %s: other names have to be in its certificate ('cairn "
                           "cert init --hosts')",
                           http->parts.url);
    }
    return reply_error(request, MHD_HTTP_MISDIRECTED_REQUEST,
                       "this page is at http://127.0.0.1:%u/; from another machine come by "
                       "'ssh -L %u:127.0.0.1:%u HOST'",
                       (unsigned)http->port, (unsigned)http->port, (unsigned)http->port);
}

/* True if the request was sent by this page, or by no page. */
static bool is_ours(const struct http_request *request, const struct origin *origin)
{
    const char *ours = request_header(request, "X-Cairn");
    return ours != NULL && strcmp(ours, "1") == 0 && origin->page_own;
}

static enum MHD_Result answer(struct http_request *request, const struct route *route,
                              const struct origin *origin)
{
    const bool open =
        route->needs == NULL || ((route->flags & OPEN_HERE) != 0 && request->http->tls == NULL);
    who_asks(request);
    const char *why =
        open ? NULL : identity_refusal(request->who.is.role, IDENTITY_CONTROL, route->needs);
    if (why != NULL || request->who.refusal.text[0] != '\0')
        return refuse_role(request, why);
    const bool acts = !open && ((route->flags & ACTS) != 0 || !identity_method_looks(route->needs));
    if (acts && !is_ours(request, origin)) {
        return reply_error(request, MHD_HTTP_FORBIDDEN,
                           "to act, send the header 'X-Cairn: 1', from this page or no page");
    }
    return route->handler(request);
}

enum MHD_Result route_request(struct http_request *request, const char *method, const char *path)
{
    char name[HTTP_NAME_BYTES] = "";
    bool other_method = false;
    const struct route *route = find_route(method, path, name, &other_method);
    const struct origin origin = origin_of(request);
    if (!origin.host_own)
        return refuse_host(request);
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
    return answer(request, route, &origin);
}
