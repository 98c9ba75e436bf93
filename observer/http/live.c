/*
 * Server-sent events: what changes, as it changes. A stream has a thread, that of its connection,
 * which waits for news PING_MS at most; then it says ": ping", and so hears that nobody is there.
 * All who follow jobs look at the same moments, so that they share what the coordinator is asked
 * for, and who trains on this machine is disturbed for one short time instead of many.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/clock.h"
#include "common/unconst.h"
#include "observer/http/internal.h"
#include "proto/text/json.h"

#define PING_MS    5000
#define LOOK_MS    500  /* between two looks at a job's rows */
#define JOBSPEC_MS 1000 /* between two at the job itself */
#define NODES_MS   5000
#define LINES_MAX  500 /* lines of a log in one event */
#define READ_BYTES 65536

struct live {
    struct http *http;
    int64_t until_s; /* what shows who looks is good until then, Unix time */
    uint32_t keys;   /* and while there are so many (observer/http/session.h); 0: a certificate */
    struct buf out;  /* events that wait to be sent */
    size_t sent;     /* of out */
    bool over;       /* nothing comes after what waits */
    /* Appends events, waiting for them PING_MS at most. */
    void (*look)(struct live *live);
    char job[HTTP_NAME_BYTES]; /* known: its id, else as it was asked for */
    bool known;
    const struct snapshot *seen; /* live_all: the newest */
    struct cache_place place;
    struct rpc_stream *logs;
    uint64_t job_hash, nodes_hash;
    int64_t look_ms, job_ms; /* when its rows, and the job itself, are looked at next */
    int64_t nodes_ms;        /* when they were sent last */
    bool down;               /* that the coordinator doesn't answer was sent */
};

/* text: one line. */
static void put_event(struct live *live, const char *name, const char *text, size_t size)
{
    while (size > 0 && text[size - 1] == '\n')
        size--;
    if (buf_printf(&live->out, "event: %s\ndata: ", name) != ST_OK ||
        buf_append(&live->out, text, size) != ST_OK || buf_append_text(&live->out, "\n\n") != ST_OK)
        live->over = true; /* no memory: the browser comes again */
}

/* Sends an event with a value, which is taken over. */
static void put_value(struct live *live, const char *name, json_t *value)
{
    struct buf text;
    buf_init(&text, HTTP_JSON_BYTES);
    if (json_print(value, true, &text) == ST_OK) {
        put_event(live, name, text.data, text.size);
    } else {
        live->over = true;
    }
    json_decref(value);
    buf_release(&text);
}

static void put_down(struct live *live, const char *error)
{
    if (!live->down)
        put_value(live, "down", json_pack("{s:o}", "error", json_from_text(error)));
    live->down = true;
}

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* ---- the life of a stream ---- */

static void free_live(void *arg)
{
    struct live *live = arg;
    if (live->logs != NULL)
        rpc_stream_close(live->logs, NULL);
    snapshot_unref(live->seen);
    (void)atomic_fetch_sub(&live->http->streams, 1);
    buf_release(&live->out);
    free(live);
}

static bool is_expired(const struct live *live)
{
    return clock_wall_ms(clock_system()) / 1000 >= live->until_s ||
           (live->keys != 0 && live->keys != sessions_keys(live->http->parts.sessions));
}

/* Reads what is to be sent. It never returns 0: it waits by itself. */
static ssize_t read_live(void *arg, uint64_t position, char *out, size_t capacity)
{
    struct live *live = arg;
    (void)position;
    if (live->sent == live->out.size) {
        buf_clear(&live->out);
        live->sent = 0;
        live->over = live->over || is_expired(live);
        if (!live->over && !poll_stopped(live->http->parts.poll))
            live->look(live);
        if (live->out.size == 0 && !live->over && !poll_stopped(live->http->parts.poll) &&
            buf_append_text(&live->out, ": ping\n\n") != ST_OK)
            live->over = true;
    }
    const size_t left = live->out.size - live->sent;
    if (left == 0)
        return MHD_CONTENT_READER_END_OF_STREAM;
    const size_t size = left < capacity ? left : capacity;
    memcpy(out, live->out.data + live->sent, size);
    live->sent += size;
    return (ssize_t)size;
}

static enum MHD_Result start_live(struct http_request *request, void (*look)(struct live *),
                                  struct rpc_stream *logs)
{
    struct http *http = request->http;
    struct live *live =
        atomic_fetch_add(&http->streams, 1) < HTTP_STREAMS_MAX ? calloc(1, sizeof(*live)) : NULL;
    if (live == NULL) {
        (void)atomic_fetch_sub(&http->streams, 1);
        if (logs != NULL)
            rpc_stream_close(logs, NULL);
        return reply_error(request, MHD_HTTP_SERVICE_UNAVAILABLE,
                           "%d pages are open already: close one", HTTP_STREAMS_MAX);
    }
    live->http = http;
    live->until_s = request->who.until_s;
    live->keys = request->who.keys;
    live->look = look;
    live->logs = logs;
    live->place.next_step = request_number(request, "from", 0, UINT64_MAX);
    (void)snprintf(live->job, sizeof(live->job), "%s", request->name);
    buf_init(&live->out, 2 * HTTP_JSON_BYTES);
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, READ_BYTES, read_live, live, free_live);
    if (response == NULL) {
        free_live(live);
        return MHD_NO;
    }
    reply_headers(response, false);
    (void)MHD_add_response_header(response, "Content-Type", "text/event-stream");
    const enum MHD_Result queued = MHD_queue_response(request->connection, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return queued;
}

/* ---- all jobs and nodes ---- */

/* Sends an event with the text, unless it is the one that was sent last. */
static void put_if_new(struct live *live, const char *name, const struct buf *text, uint64_t *hash)
{
    const uint64_t now = text != NULL ? XXH3_64bits(text->data, text->size) : *hash;
    if (now == *hash)
        return;
    *hash = now;
    put_event(live, name, text->data, text->size);
}

/* told: what the page was told before; NULL: nothing. */
static void put_jobs(struct live *live, const struct snapshot *told)
{
    struct buf text;
    buf_init(&text, HTTP_JSON_BYTES);
    if (snapshot_put_changes(live->seen, told, &text) != ST_OK) {
        live->over = true; /* no memory: the browser comes again */
    } else if (text.size > 0) {
        put_event(live, "jobs", text.data, text.size);
    }
    buf_release(&text);
}

static void look_at_all(struct live *live)
{
    const int64_t until = now_ms() + PING_MS;
    while (live->out.size == 0 && now_ms() < until) {
        const struct snapshot *next =
            live->seen == NULL
                ? poll_latest(live->http->parts.poll)
                : poll_wait(live->http->parts.poll, live->seen, (int32_t)(until - now_ms()));
        if (next == NULL)
            return;
        const struct snapshot *before = live->seen;
        live->seen = next;
        if (next->up) { /* all, where the page is to be told that it is back */
            put_jobs(live, live->down ? NULL : before);
            live->nodes_hash = live->down ? 0 : live->nodes_hash;
            live->down = false;
        }
        snapshot_unref(before);
        if (!next->up) {
            put_down(live, next->error);
            continue;
        }
        if (live->nodes_ms == 0 || now_ms() - live->nodes_ms >= NODES_MS) {
            live->nodes_ms = now_ms();
            put_if_new(live, "nodes", snapshot_nodes_json(next), &live->nodes_hash);
        }
    }
}

enum MHD_Result live_all(struct http_request *request)
{
    return start_live(request, look_at_all, NULL);
}

/* ---- one job ---- */

/* Sends the job if it changed. true: it has ended. */
static bool put_job(struct live *live)
{
    struct http *http = live->http;
    struct rpc_result result = { .code = RPC_INTERNAL };
    struct buf text;
    bool over = false;
    enum status st = ST_OK;
    buf_init(&text, HTTP_JSON_BYTES);
    if (!live->known)
        st = look_job_id(http, live->job, live->job, &result);
    live->known = live->known || st == ST_OK;
    if (st == ST_OK)
        st = cache_job(http->parts.cache, live->job, &text, &over, &result);
    if (st == ST_OK) {
        live->down = false;
        put_if_new(live, "job", &text, &live->job_hash);
    } else if (st != ST_FULL) { /* else: others are looked at, for this moment */
        put_down(live, result.detail[0] != '\0' ? result.detail : rpc_code_name(result.code));
        over = result.code == RPC_NOT_FOUND;
    }
    buf_release(&text);
    return over;
}

static void put_rows(struct live *live)
{
    struct rpc_result result = { .code = RPC_INTERNAL };
    struct buf text;
    buf_init(&text, HTTP_JSON_BYTES);
    const enum status st =
        cache_new_rows(live->http->parts.cache, live->job, &live->place, &text, &result);
    if (st == ST_OK && text.size > 0)
        put_event(live, "rows", text.data, text.size);
    buf_release(&text);
}

/* The first moment of those after now that are every_ms apart. */
static int64_t next_moment(int64_t every_ms)
{
    return (now_ms() / every_ms + 1) * every_ms;
}

static void look_at_job(struct live *live)
{
    struct poll *poll = live->http->parts.poll;
    const int64_t until = now_ms() + PING_MS;
    while (live->out.size == 0 && now_ms() < until && !live->over) {
        poll_nap(poll, live->look_ms);
        if (poll_stopped(poll))
            return;
        bool ended = false;
        if (now_ms() >= live->job_ms) {
            live->job_ms = next_moment(JOBSPEC_MS);
            ended = put_job(live);
        }
        if (live->known)
            put_rows(live);
        live->look_ms = live->place.more ? 0 : next_moment(LOOK_MS);
        if (ended && !live->place.more) {
            put_event(live, "over", "{}", 2);
            live->over = true;
        }
    }
}

enum MHD_Result live_job(struct http_request *request)
{
    return start_live(request, look_at_job, NULL);
}

/* ---- logs ---- */

static json_t *line_value(const Cairn__V1__LogLine *line)
{
    return json_pack("{s:i, s:i, s:o}", "rank", (int)line->rank, "attempt", (int)line->attempt,
                     "line", json_from_text(line->line));
}

/* Waits until then at most, and no longer than poll_stop wants it. */
static enum status next_line(struct live *live, int64_t until_ms, ProtobufCMessage **out)
{
    enum status st = ST_TIMED_OUT;
    do {
        const int64_t left = until_ms - now_ms();
        st = rpc_stream_recv(live->logs,
                             (int32_t)(left < 0         ? 0
                                       : left < LOOK_MS ? left
                                                        : LOOK_MS),
                             out);
    } while (st == ST_TIMED_OUT && now_ms() < until_ms && !poll_stopped(live->http->parts.poll));
    return st;
}

static void look_at_logs(struct live *live)
{
    const int64_t until_ms = now_ms() + PING_MS;
    json_t *lines = json_array();
    enum status st = ST_OK;
    while (lines != NULL && st == ST_OK && json_array_size(lines) < LINES_MAX) {
        ProtobufCMessage *message = NULL;
        st = next_line(live, json_array_size(lines) == 0 ? until_ms : 0, &message);
        if (st != ST_OK)
            break;
        json_t *value = line_value((const Cairn__V1__LogLine *)message);
        protobuf_c_message_free_unpacked(message, NULL);
        if (json_array_append_new(lines, value) != 0)
            st = ST_NO_MEMORY;
    }
    if (json_array_size(lines) > 0) {
        put_value(live, "lines", lines);
    } else {
        json_decref(lines);
    }
    if (st != ST_OK && st != ST_TIMED_OUT) {
        put_event(live, "over", "{}", 2);
        live->over = true;
    }
}

enum MHD_Result live_logs(struct http_request *request)
{
    Cairn__V1__StreamLogsRequest message = CAIRN__V1__STREAM_LOGS_REQUEST__INIT;
    struct rpc_stream *stream = NULL;
    struct rpc_result result = { .code = RPC_INTERNAL };
    message.job = unconst(request->name);
    message.follow = request_number(request, "follow", 0, 1) == 1;
    if (request_parameter(request, "rank") != NULL) {
        message.rank__case = CAIRN__V1__STREAM_LOGS_REQUEST__RANK__RANK;
        message.rank = (uint32_t)request_number(request, "rank", 0, UINT32_MAX);
    }
    if (request_parameter(request, "attempt") != NULL) {
        message.attempt__case = CAIRN__V1__STREAM_LOGS_REQUEST__ATTEMPT__ATTEMPT;
        message.attempt = (uint32_t)request_number(request, "attempt", 0, UINT32_MAX);
    }
    if (coordinator_stream(request->http->parts.coordinator, "StreamLogs", &message.base, &stream,
                           &result) != ST_OK)
        return reply_result(request, &result);
    return start_live(request, look_at_logs, stream);
}
