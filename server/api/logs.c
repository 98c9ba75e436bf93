/*
 * StreamLogs: pieces of the workers' files, asked of their agents one at a time, cut into lines.
 *
 * One round reads every rank from where it stopped to the end of its file. Following: rounds go on,
 * and over to the next generation when there is one. A line is sent when its end is there; what is
 * left without one is sent when nothing more can come.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/api.h"

#define PIECE_BYTES   ((size_t)64 * 1024)
#define ANSWER_MS     5000 /* of an agent */
#define FOLLOW_MS     200
#define AGENT_LOST_MS 10000

struct api_cursor {
    uint64_t offset;
    uint32_t number; /* of the worker whose log it is in */
    bool missing;
    struct buf rest; /* without a line's end yet */
};

struct api_logs {
    uint32_t first, count; /* ranks */
    uint32_t generation;
    bool follow;
    bool fixed;       /* this attempt only */
    bool any;         /* a file was there */
    uint32_t at;      /* the rank of this round */
    uint64_t request; /* id; 0: none under way */
    int64_t asked_at, lost_since;
    struct buf piece;           /* what came, not sent yet */
    size_t sent;                /* bytes of the piece that went */
    struct api_cursor *cursors; /* by rank */
};

void api_logs_free(struct api_logs *logs)
{
    if (logs == NULL)
        return;
    for (uint32_t i = 0; i < logs->count; i++)
        buf_release(&logs->cursors[i].rest);
    buf_release(&logs->piece);
    free(logs->cursors);
    free(logs);
}

static void rewind_to(struct api_logs *logs, uint32_t generation)
{
    logs->generation = generation;
    logs->at = 0;
    logs->request = 0;
    logs->any = false;
    logs->sent = 0;
    buf_clear(&logs->piece);
    for (uint32_t i = 0; i < logs->count; i++) {
        buf_clear(&logs->cursors[i].rest);
        logs->cursors[i].offset = 0;
        logs->cursors[i].missing = false;
    }
}

void api_logs_begin(struct api *api, struct rpc_call *call, struct coord_job *job,
                    const Cairn__V1__StreamLogsRequest *request)
{
    bool one = request->rank__case == CAIRN__V1__STREAM_LOGS_REQUEST__RANK__RANK;
    bool fixed = request->attempt__case == CAIRN__V1__STREAM_LOGS_REQUEST__ATTEMPT__ATTEMPT;
    uint32_t ranks = job->m.config.most;
    if ((one && request->rank >= ranks) ||
        (fixed && (request->attempt < 1 || request->attempt > job->m.generation))) {
        api_refuse(call, RPC_NOT_FOUND, "%s has ranks 0 to %u and had %u attempts", job->id,
                   ranks - 1, job->m.generation);
        return;
    }
    struct api_stream *stream = api_stream_new(api, call, API_LOGS, job->id);
    if (stream == NULL)
        return;
    struct api_logs *logs = calloc(1, sizeof(*logs));
    struct api_cursor *cursors = calloc(one ? 1 : ranks, sizeof(*cursors));
    if (logs == NULL || cursors == NULL) {
        free(logs);
        free(cursors);
        api_refuse(call, RPC_INTERNAL, "no memory");
        stream->at = INT64_MAX;
        return;
    }
    *logs = (struct api_logs){ .first = one ? request->rank : 0,
                               .count = one ? 1 : ranks,
                               .follow = request->follow,
                               .fixed = fixed,
                               .cursors = cursors };
    for (uint32_t i = 0; i < logs->count; i++)
        buf_init(&cursors[i].rest, LIMIT_LOG_LINE);
    buf_init(&logs->piece, 4 * PIECE_BYTES);
    rewind_to(logs, fixed ? request->attempt : job->m.generation);
    stream->logs = logs;
}

/* ---- where a rank of a generation ran ---- */

struct find_node {
    uint32_t rank;
    bool known;            /* the generation's row is there */
    char name[LIMIT_NAME]; /* "": it has no such rank */
    uint32_t number;       /* of the worker */
};

/* The n-th of a list with commas; "": there are fewer. */
static void nth_of(const char *list, uint32_t n, char *out, size_t capacity)
{
    const char *at = list;
    for (uint32_t i = 0; i < n && at != NULL; i++) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    (void)snprintf(out, capacity, "%.*s", at != NULL ? (int)strcspn(at, ",") : 0,
                   at != NULL ? at : "");
}

static bool find_node(void *arg, const struct journal_generation *row)
{
    struct find_node *find = arg;
    char number[16];
    find->known = true;
    nth_of(row->nodes, find->rank, find->name, sizeof(find->name));
    nth_of(row->numbers, find->rank, number, sizeof(number));
    find->number = number[0] ? (uint32_t)strtoul(number, NULL, 10) : find->rank;
    return false;
}

/* ---- lines ---- */

static void send_line(struct api_stream *stream, uint32_t rank, const char *text, size_t size)
{
    char line[LIMIT_LOG_LINE];
    if (size >= sizeof(line))
        size = sizeof(line) - 1;
    for (size_t i = 0; i < size; i++) /* protobuf wants UTF-8; a broken one would end the call */
        line[i] = (char)(text[i] == '\0' ? '?' : text[i]);
    line[size] = '\0';
    Cairn__V1__LogLine out = CAIRN__V1__LOG_LINE__INIT;
    out.rank = rank;
    out.attempt = stream->logs->generation;
    out.line = line;
    (void)rpc_call_send(stream->call, &out.base);
}

/* Sends the piece. true: all of it went; false: the reader lags. */
static bool send_piece(struct api_stream *stream)
{
    struct api_logs *logs = stream->logs;
    struct api_cursor *cursor = &logs->cursors[logs->at];
    uint32_t rank = logs->first + logs->at;
    while (logs->sent < logs->piece.size) {
        if (rpc_call_queued(stream->call) >= API_QUEUE_MAX)
            return false;
        const char *from = logs->piece.data + logs->sent;
        size_t left = logs->piece.size - logs->sent;
        const char *end = memchr(from, '\n', left);
        size_t size = end != NULL ? (size_t)(end - from) : left;
        logs->sent += size + (end != NULL ? 1 : 0);
        bool whole = cursor->rest.size == 0 && end != NULL;
        if (!whole && buf_append(&cursor->rest, from, size) != ST_OK) {
            send_line(stream, rank, cursor->rest.data, cursor->rest.size); /* a very long one */
            buf_clear(&cursor->rest);
            whole = end != NULL;
        }
        if (end == NULL)
            continue;
        if (whole) {
            send_line(stream, rank, from, size);
        } else {
            send_line(stream, rank, cursor->rest.data, cursor->rest.size);
        }
        buf_clear(&cursor->rest);
    }
    logs->sent = 0;
    buf_clear(&logs->piece);
    return true;
}

static void send_rest(struct api_stream *stream, uint32_t i)
{
    struct api_logs *logs = stream->logs;
    if (logs->cursors[i].rest.size > 0) {
        send_line(stream, logs->first + i, logs->cursors[i].rest.data, logs->cursors[i].rest.size);
    }
    buf_clear(&logs->cursors[i].rest);
}

static void send_rests(struct api_stream *stream)
{
    for (uint32_t i = 0; i < stream->logs->count; i++)
        send_rest(stream, i);
}

void api_logs_chunk(struct api *api, const Cairn__V1__LogChunk *chunk)
{
    for (struct api_stream *stream = api->streams; stream != NULL; stream = stream->next) {
        struct api_logs *logs = stream->kind == API_LOGS ? stream->logs : NULL;
        if (stream->over || logs == NULL || logs->request != chunk->id || chunk->id == 0)
            continue;
        struct api_cursor *cursor = &logs->cursors[logs->at];
        logs->request = 0;
        stream->at = 0;
        cursor->missing = chunk->missing;
        logs->any = logs->any || !chunk->missing;
        if (chunk->offset < cursor->offset && chunk->data.len > 0) { /* the log began anew */
            send_rest(stream, logs->at);
            cursor->offset = chunk->offset;
        }
        if (chunk->missing || chunk->data.len == 0 || chunk->offset != cursor->offset ||
            buf_append(&logs->piece, chunk->data.data, chunk->data.len) != ST_OK) {
            logs->at++; /* the end of this file, for now */
            return;
        }
        cursor->offset += chunk->data.len;
        return;
    }
}

/* ---- rounds ---- */

/* Goes to the next attempt. A worker that goes on in it has one log: that is read on. */
static void follow_on(struct api_stream *stream, const struct fsm *m)
{
    struct api_logs *logs = stream->logs;
    const uint32_t before = logs->generation++;
    logs->any = false;
    for (uint32_t i = 0; i < logs->count; i++) {
        const uint32_t r = logs->first + i;
        const bool same = r >= m->size || (m->ranks[r].birth <= before &&
                                           m->ranks[r].number == logs->cursors[i].number);
        if (same) /* the worker goes on in its log, or there is no such rank now */
            continue;
        send_rest(stream, i);
        logs->cursors[i].offset = 0;
        logs->cursors[i].missing = false;
    }
}

static void end_of_round(struct api_stream *stream, const struct coord_job *job, int64_t now)
{
    struct api_logs *logs = stream->logs;
    logs->at = 0;
    if (!logs->any && !logs->fixed && logs->generation > 1 &&
        (!logs->follow || logs->generation < job->m.generation)) {
        rewind_to(logs, logs->generation - 1); /* the newest that has a log */
        return;
    }
    bool newer = !logs->fixed && logs->follow && logs->generation < job->m.generation;
    if (newer) {
        follow_on(stream, &job->m);
        return;
    }
    bool live =
        !fsm_state_final(job->m.state) && (!logs->fixed || logs->generation == job->m.generation);
    if (logs->follow && live) {
        stream->at = now + FOLLOW_MS;
        return;
    }
    send_rests(stream);
    rpc_call_finish(stream->call, RPC_OK, NULL);
    stream->at = INT64_MAX;
}

static void ask_piece(struct api *api, struct api_stream *stream, struct coord_job *job,
                      int64_t now)
{
    struct api_logs *logs = stream->logs;
    uint32_t rank = logs->first + logs->at;
    struct find_node find = { .rank = rank };
    if (journal_get_generation(coord_options(api->coord)->journal, job->id, logs->generation,
                               find_node, &find) != ST_OK)
        find.known = false;
    if (find.known && !find.name[0]) { /* that attempt had fewer workers than another one */
        logs->at = logs->count;
        stream->at = now;
        return;
    }
    if (!find.known) {
        api_refuse(stream->call, RPC_NOT_FOUND,
                   "where attempt %u of %s ran is not known any more: the newest %d attempts are, "
                   "of jobs that ended long ago the newest %d",
                   logs->generation, job->id, LIMIT_GENERATIONS, JOURNAL_THIN_ROWS);
        stream->at = INT64_MAX;
        return;
    }
    logs->cursors[logs->at].number = find.number;
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = job->id;
    ref.generation = logs->generation;
    ref.rank = find.number;
    Cairn__V1__LogRequest request = CAIRN__V1__LOG_REQUEST__INIT;
    request.id = ++api->log_id;
    request.ref = &ref;
    request.offset = logs->cursors[logs->at].offset;
    request.size_max = PIECE_BYTES;
    if (coord_log_request(api->coord, find.name, &request) == ST_OK) {
        logs->request = request.id;
        logs->asked_at = now;
        logs->lost_since = 0;
        stream->at = now + ANSWER_MS;
        return;
    }
    if (logs->lost_since == 0)
        logs->lost_since = now;
    stream->at = now + FOLLOW_MS;
    if (now - logs->lost_since >= AGENT_LOST_MS) {
        api_refuse(stream->call, RPC_UNAVAILABLE,
                   "the agent of node '%s' is not there; 'cairn node ls' shows it", find.name);
        stream->at = INT64_MAX;
    }
}

bool api_logs_go_on(const struct api_stream *stream, int64_t now)
{
    return stream->logs != NULL && stream->logs->request == 0 && stream->at <= now;
}

void api_logs_pump(struct api *api, struct api_stream *stream, int64_t now)
{
    struct api_logs *logs = stream->logs;
    struct coord_job *job = logs != NULL ? api_stream_job(api, stream) : NULL;
    if (job == NULL)
        return;
    if (logs->generation == 0 && job->m.generation > 0)
        rewind_to(logs, 1);
    if (logs->generation == 0) { /* nothing ever ran */
        stream->at = now + FOLLOW_MS;
        if (!logs->follow || fsm_state_final(job->m.state)) {
            rpc_call_finish(stream->call, RPC_OK, NULL);
            stream->at = INT64_MAX;
        }
        return;
    }
    if (logs->request != 0) {
        if (now - logs->asked_at < ANSWER_MS)
            return;
        logs->request = 0; /* the agent is gone: asked again */
    }
    if (!send_piece(stream)) {
        stream->at = now + API_BACKLOG_MS;
        return;
    }
    if (logs->at >= logs->count) {
        end_of_round(stream, job, now);
    } else {
        ask_piece(api, stream, job, now);
    }
    if (stream->at <= now)
        stream->at = now + 1; /* the next step of it in the next round of the loop */
}
