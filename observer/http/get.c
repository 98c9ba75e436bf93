/* Handlers that only read: the page, and JSON of what the coordinator says. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/unconst.h"
#include "observer/http/internal.h"
#include "observer/page/page.h"
#include "observer/prometheus/prometheus.h"
#include "proto/text/json.h"
#include "proto/text/metrics.h"

#define POINTS         1000 /* of a curve, where nobody says how many */
#define POINTS_MAX     4000
#define ROWS_BYTES     ((size_t)16 << 20) /* of CSV of a page of rows */
#define ROWS_BLOCK     ((size_t)64 << 10) /* that is sent at once */
#define ROWS_PAGES_MAX 1024               /* several times as many as LIMIT_METRIC_ROWS come in */

/* The page's shell, which tells nothing of anybody: packed; nothing where the browser has it. */
static enum MHD_Result reply_page(const struct http_request *request, unsigned code)
{
    size_t size = 0;
    const char *accepts = request_header(request, "Accept-Encoding");
    const char *has = request_header(request, "If-None-Match");
    const bool packed = accepts != NULL && strstr(accepts, "gzip") != NULL;
    const char *bytes = packed ? page_gzip(&size) : page_html(&size);
    char tag[32];
    (void)snprintf(tag, sizeof(tag), "\"%s%s\"", page_tag(), packed ? "-gz" : "");
    const bool same = code == MHD_HTTP_OK && has != NULL && strstr(has, tag) != NULL;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(same ? 0 : size, unconst(bytes), MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    reply_headers(response, code == MHD_HTTP_OK);
    (void)MHD_add_response_header(response, "Content-Type", "text/html; charset=utf-8");
    (void)MHD_add_response_header(response, "Vary", "Accept-Encoding");
    (void)MHD_add_response_header(response, "ETag", tag);
    if (packed && !same)
        (void)MHD_add_response_header(response, "Content-Encoding", "gzip");
    const enum MHD_Result queued =
        MHD_queue_response(request->connection, same ? MHD_HTTP_NOT_MODIFIED : code, response);
    MHD_destroy_response(response);
    return queued;
}

enum MHD_Result look_page(struct http_request *request)
{
    return reply_page(request, MHD_HTTP_OK);
}

/* People see the page, which says the same (observer/page/main.js). */
static enum MHD_Result refuse_link(const struct http_request *request)
{
    const char *accepts = request_header(request, "Accept");
    if (accepts != NULL && strstr(accepts, "text/html") != NULL)
        return reply_page(request, MHD_HTTP_FORBIDDEN);
    return reply_error(request, MHD_HTTP_FORBIDDEN,
                       "this link was used, or is older than a minute: 'cairn open' makes another");
}

/* A session for who has a link, and on to the page. */
enum MHD_Result look_open(struct http_request *request)
{
    char token[IDENTITY_TOKEN], cookie[HTTP_COOKIE];
    struct sessions *sessions = request->http->parts.sessions;
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    const enum identity_role role =
        session_link(sessions, request_parameter(request, "code"), now_s);
    if (role == IDENTITY_NOBODY)
        return refuse_link(request);
    session_make(sessions, role, now_s + SESSION_S, token);
    reply_cookie(request, token, SESSION_S, cookie);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(0, unconst(""), MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    reply_headers(response, false);
    (void)MHD_add_response_header(response, "Set-Cookie", cookie);
    (void)MHD_add_response_header(response, "Location", "/");
    const enum MHD_Result queued =
        MHD_queue_response(request->connection, MHD_HTTP_SEE_OTHER, response);
    MHD_destroy_response(response);
    return queued;
}

enum MHD_Result look_alive(struct http_request *request)
{
    auto_buf struct buf out;
    buf_init(&out, 16);
    if (buf_append_text(&out, "ok\n") != ST_OK)
        return MHD_NO;
    return reply_buf(request, MHD_HTTP_OK, "text/plain", &out);
}

enum MHD_Result look_session(struct http_request *request)
{
    const struct http_who *who = &request->who;
    char actor[2 * LIMIT_NAME];
    (void)snprintf(actor, sizeof(actor), "%s/%s", identity_role_name(who->is.role), who->is.who);
    return reply_json(request,
                      json_pack("{s:s, s:s, s:s}", "role", identity_role_name(who->is.role),
                                "actor", actor, "cluster", who->cluster));
}

/* ---- from the snapshot ---- */

static enum MHD_Result reply_shared(const struct http_request *request,
                                    const struct snapshot *snapshot, const struct buf *text)
{
    auto_buf struct buf out;
    buf_init(&out, HTTP_JSON_BYTES);
    enum MHD_Result queued = MHD_NO;
    if (text == NULL) {
        queued = reply_error(request, MHD_HTTP_SERVICE_UNAVAILABLE,
                             "the coordinator didn't answer yet: %s", snapshot->error);
    } else if (buf_append(&out, text->data, text->size) == ST_OK) {
        queued = reply_buf(request, MHD_HTTP_OK, "application/json", &out);
    }
    snapshot_unref(snapshot);
    return queued;
}

enum MHD_Result look_jobs(struct http_request *request)
{
    const struct snapshot *snapshot = poll_latest(request->http->parts.poll);
    return reply_shared(request, snapshot, snapshot_jobs_json(snapshot));
}

enum MHD_Result look_nodes(struct http_request *request)
{
    const struct snapshot *snapshot = poll_latest(request->http->parts.poll);
    return reply_shared(request, snapshot, snapshot_nodes_json(snapshot));
}

/* Asked of the connection: http->daemon isn't set yet for who comes at once. */
static unsigned count_connections(const struct http_request *request)
{
    const union MHD_ConnectionInfo *own =
        MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_DAEMON);
    const union MHD_DaemonInfo *info =
        own != NULL ? MHD_get_daemon_info(own->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS) : NULL;
    return info != NULL ? info->num_connections : 0;
}

enum MHD_Result look_system(struct http_request *request)
{
    const struct http *http = request->http;
    const struct snapshot *snapshot = poll_latest(http->parts.poll);
    const double up_s = (double)(clock_mono_ms(clock_system()) - http->started_ms) / 1e3;
    json_t *coordinator =
        snapshot->version != NULL ? json_from_message(&snapshot->version->base) : json_null();
    json_t *observer =
        json_pack("{s:s, s:f, s:i, s:i}", "version", CAIRN_VERSION, "uptime_s", up_s, "connections",
                  (int)count_connections(request), "streams", (int)atomic_load(&http->streams));
    json_t *value =
        json_pack("{s:o, s:b, s:s, s:o}", "coordinator", coordinator, "up", snapshot->up, "error",
                  snapshot->up ? "" : snapshot->error, "observer", observer);
    snapshot_unref(snapshot);
    return reply_json(request, value);
}

/* Answers with the metrics for Prometheus. */
enum MHD_Result look_metrics(struct http_request *request)
{
    const struct http *http = request->http;
    const struct snapshot *snapshot = poll_latest(http->parts.poll);
    const double now = (double)clock_wall_ms(clock_system()) / 1e3;
    const double up_s = (double)(clock_mono_ms(clock_system()) - http->started_ms) / 1e3;
    const struct prometheus_view view = {
        .jobs = (const Cairn__V1__Job *const *)snapshot->jobs,
        .job_count = snapshot->job_count,
        .jobs_left_out = snapshot->truncated,
        .nodes = snapshot->nodes,
        .version = snapshot->version,
        .up = snapshot->up,
        .seen_unix_s = snapshot->seen_unix_s,
        .now_unix_s = now,
        .observer_version = CAIRN_VERSION,
        .started_unix_s = now - up_s,
        .connections = count_connections(request),
        .streams = atomic_load(&http->streams),
    };
    auto_buf struct buf out;
    buf_init(&out, PROMETHEUS_BYTES_MAX);
    const enum status st = prometheus_write(&view, &out);
    snapshot_unref(snapshot);
    return st == ST_OK ? reply_buf(request, MHD_HTTP_OK, PROMETHEUS_CONTENT_TYPE, &out) : MHD_NO;
}

/* ---- of one job ---- */

static Cairn__V1__JobRequest job_request(const struct http_request *request)
{
    Cairn__V1__JobRequest out = CAIRN__V1__JOB_REQUEST__INIT;
    out.job = unconst(request->name);
    return out;
}

enum MHD_Result look_job(struct http_request *request)
{
    const Cairn__V1__JobRequest message = job_request(request);
    return reply_call(request, "GetJob", &message.base);
}

enum MHD_Result look_why(struct http_request *request)
{
    const Cairn__V1__JobRequest message = job_request(request);
    return reply_call(request, "ExplainJob", &message.base);
}

enum MHD_Result look_checkpoints(struct http_request *request)
{
    Cairn__V1__ListCheckpointsRequest message = CAIRN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    message.job = unconst(request->name);
    return reply_call(request, "ListCheckpoints", &message.base);
}

enum status look_job_id(struct http *http, const char *name, char id[HTTP_NAME_BYTES],
                        struct rpc_result *result)
{
    const struct snapshot *snapshot = poll_latest(http->parts.poll);
    const bool listed = snapshot_job(snapshot, name) != NULL;
    Cairn__V1__JobRequest message = CAIRN__V1__JOB_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    snapshot_unref(snapshot);
    if (id != name)
        (void)snprintf(id, HTTP_NAME_BYTES, "%s", name);
    if (listed)
        return ST_OK;
    message.job = id;
    const enum status st =
        coordinator_call(http->parts.coordinator, "GetJob", &message.base, &reply, result);
    if (st != ST_OK)
        return st;
    (void)snprintf(id, HTTP_NAME_BYTES, "%s", ((const Cairn__V1__Job *)reply)->id);
    protobuf_c_message_free_unpacked(reply, NULL);
    return ST_OK;
}

enum MHD_Result look_curves(struct http_request *request)
{
    auto_buf struct buf out;
    buf_init(&out, HTTP_JSON_BYTES);
    struct rpc_result result = { .code = RPC_INTERNAL };
    char id[HTTP_NAME_BYTES];
    const size_t points = request_number(request, "points", POINTS, POINTS_MAX);
    enum status st = look_job_id(request->http, request->name, id, &result);
    if (st == ST_OK)
        st = cache_curves(request->http->parts.cache, id, points, &out, &result);
    if (st == ST_FULL) {
        return reply_error(request, MHD_HTTP_SERVICE_UNAVAILABLE,
                           "curves of too many jobs are looked at: try again in a minute");
    }
    if (st != ST_OK)
        return reply_result(request, &result);
    return reply_buf(request, MHD_HTTP_OK, "application/json", &out);
}

/* ---- rows as CSV ---- */

/* A page at a time: the next one is asked for when the one before was sent. */
struct rows_reply {
    struct coordinator *coordinator;
    char job[HTTP_NAME_BYTES]; /* id */
    uint64_t next_step;
    size_t pages; /* that were asked for */
    bool more;
    struct buf out;
    size_t sent; /* of out */
};

static void free_rows(void *arg)
{
    struct rows_reply *rows = arg;
    buf_release(&rows->out);
    free(rows);
}

/* Appends it. */
static enum status read_rows(struct rows_reply *rows, struct rpc_result *result)
{
    Cairn__V1__ReadMetricsRequest message = CAIRN__V1__READ_METRICS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    message.job = rows->job;
    message.from_step = rows->next_step;
    enum status st =
        coordinator_call(rows->coordinator, "ReadMetrics", &message.base, &reply, result);
    if (st != ST_OK)
        return st;
    const Cairn__V1__ReadMetricsReply *page = (const Cairn__V1__ReadMetricsReply *)reply;
    for (size_t i = 0; st == ST_OK && i < page->n_rows; i++)
        st = metrics_csv(page->rows[i], &rows->out);
    rows->next_step = page->next_step;
    rows->more = page->more && ++rows->pages < ROWS_PAGES_MAX;
    protobuf_c_message_free_unpacked(reply, NULL);
    return st;
}

/* A file that is cut off ends with an error: whoever reads it hears that it isn't whole. */
static ssize_t send_rows(void *arg, uint64_t position, char *out, size_t capacity)
{
    struct rows_reply *rows = arg;
    (void)position;
    if (rows->sent == rows->out.size && rows->more) {
        struct rpc_result result = { .code = RPC_INTERNAL };
        buf_clear(&rows->out);
        rows->sent = 0;
        if (read_rows(rows, &result) != ST_OK)
            return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    const size_t left = rows->out.size - rows->sent;
    if (left == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    const size_t size = left < capacity ? left : capacity;
    memcpy(out, rows->out.data + rows->sent, size);
    rows->sent += size;
    return (ssize_t)size;
}

static enum MHD_Result reply_rows(const struct http_request *request, struct rows_reply *rows)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, ROWS_BLOCK, send_rows, rows, free_rows);
    if (response == NULL) {
        free_rows(rows);
        return MHD_NO;
    }
    reply_headers(response, false);
    (void)MHD_add_response_header(response, "Content-Type", "text/csv");
    const enum MHD_Result queued = MHD_queue_response(request->connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return queued;
}

enum MHD_Result look_rows(struct http_request *request)
{
    struct rpc_result result = { .code = RPC_INTERNAL };
    struct rows_reply *rows = calloc(1, sizeof(*rows));
    if (rows == NULL)
        return MHD_NO;
    rows->coordinator = request->http->parts.coordinator;
    buf_init(&rows->out, ROWS_BYTES);
    enum status st = look_job_id(request->http, request->name, rows->job, &result);
    if (st == ST_OK)
        st = metrics_csv_head(&rows->out);
    if (st == ST_OK)
        st = read_rows(rows, &result);
    if (st == ST_OK)
        return reply_rows(request, rows);
    free_rows(rows);
    return reply_result(request, &result);
}
