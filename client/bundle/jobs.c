#include "client/bundle/jobs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "client/ask/call.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "proto/text/job_state.h"
#include "proto/text/json.h"
#include "proto/text/metrics.h"

#define CALL_MS      5000  /* for one answer */
#define LOGS_MS      15000 /* for the logs of one attempt */
#define RECEIVE_MS   250
#define RANKS_MAX    64 /* workers of an attempt whose logs are taken */
#define ATTEMPTS_MAX 3  /* of which logs are taken, the newest */
#define WORKER_BYTES ((size_t)64 << 10)
#define KEPT_BYTES   (WORKER_BYTES + PARCEL_HEAD_BYTES)
#define ROWS_BEFORE  2000 /* steps before the last one whose metrics are taken */
#define ROWS_PAGES   8
#define CSV_BYTES    ((size_t)2 << 20)

#define PATH_BYTES (TAR_NAME + 1)

/* ---- calls ---- */

/* Asks; what can't be had is noted as `name`. NULL then; else for
 * protobuf_c_message_free_unpacked. */
static ProtobufCMessage *ask(struct client *client, struct parcel *parcel, const char *method,
                             const ProtobufCMessage *request, const char *name, enum rpc_code *out)
{
    ProtobufCMessage *reply = NULL;
    *out = RPC_DEADLINE_EXCEEDED;
    if (parcel_is_late(parcel, name))
        return NULL;
    *out = client_try(client, method, request, CALL_MS, &reply);
    if (*out == RPC_OK)
        return reply;
    parcel_missing(parcel, "%s: the coordinator at %s: %s", name, client->address,
                   rpc_code_name(*out));
    return NULL;
}

/* The reply for --bundle, and as people read it. */
static void put_reply(struct parcel *parcel, const char *folder, const char *method,
                      const char *text_name, ProtobufCMessage *reply)
{
    char name[PATH_BYTES];
    (void)snprintf(name, sizeof(name), "%s/%s", folder, method);
    parcel_reply(parcel, name, reply);
    json_t *value = json_from_message(reply);
    parcel_json(parcel, text_name, value);
    json_decref(value);
}

/* ---- the cluster ---- */

static void put_versions(struct parcel *parcel, ProtobufCMessage *reply)
{
    json_t *coordinator = reply == NULL ? json_null() : json_from_message(reply);
    json_t *value = json_pack("{s:s, s:o}", "version", CAIRN_VERSION, "coordinator", coordinator);
    parcel_json(parcel, "versions.json", value);
    json_decref(value);
}

/* over: those that are, else those that aren't. */
static size_t choose_jobs(const Cairn__V1__ListJobsReply *list, bool over,
                          char *ids[JOBS_OF_BUNDLE], size_t count)
{
    for (size_t i = 0; i < list->n_jobs && count < JOBS_OF_BUNDLE; i++) {
        if (job_is_over(list->jobs[i]->state) != over)
            continue;
        ids[count] = strdup(list->jobs[i]->id);
        count += ids[count] != NULL;
    }
    return count;
}

enum rpc_code jobs_cluster(struct client *client, struct parcel *parcel, char *ids[JOBS_OF_BUNDLE],
                           size_t *out_count)
{
    Cairn__V1__GetVersionRequest version = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    Cairn__V1__ListNodesRequest nodes = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    Cairn__V1__ListJobsRequest jobs = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
    enum rpc_code code, second;
    *out_count = 0;
    ProtobufCMessage *reply =
        ask(client, parcel, "GetVersion", &version.base, "coordinator", &code);
    put_versions(parcel, reply);
    if (reply == NULL)
        return code;
    protobuf_c_message_free_unpacked(reply, NULL);
    reply = ask(client, parcel, "ListNodes", &nodes.base, "nodes.json", &second);
    if (reply != NULL) {
        put_reply(parcel, "replies", "ListNodes", "nodes.json", reply);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    reply = ask(client, parcel, "ListJobs", &jobs.base, "jobs.json", &second);
    if (reply != NULL) {
        Cairn__V1__ListJobsReply *list = (Cairn__V1__ListJobsReply *)reply;
        if (list->next_page_token[0] != '\0') {
            parcel_missing(parcel, "jobs.json: of many jobs the newest %zu only", list->n_jobs);
            free(list->next_page_token); /* there is no next page in a bundle */
            list->next_page_token = (char *)protobuf_c_empty_string;
        }
        *out_count = choose_jobs(list, false, ids, 0);
        *out_count = choose_jobs(list, true, ids, *out_count);
        put_reply(parcel, "replies", "ListJobs", "jobs.json", reply);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return code;
}

/* ---- a job's logs ---- */

/* The newest bytes of one worker's log. */
struct tail {
    uint32_t rank;
    size_t size, dropped;
    char text[2 * KEPT_BYTES];
};

static void tail_add(struct tail *tail, const char *line)
{
    size_t size = strlen(line);
    const bool ended = size > 0 && line[size - 1] == '\n';
    if (size + 1 > WORKER_BYTES) {
        line += size + 1 - WORKER_BYTES;
        size = WORKER_BYTES - 1;
    }
    if (tail->size + size + 1 > sizeof(tail->text)) {
        size_t gone = tail->size - KEPT_BYTES;
        const char *next = memchr(tail->text + gone, '\n', KEPT_BYTES);
        gone = next != NULL ? (size_t)(next + 1 - tail->text) : gone;
        tail->size -= gone;
        memmove(tail->text, tail->text + gone, tail->size);
        tail->dropped += gone;
    }
    memcpy(tail->text + tail->size, line, size);
    tail->size += size;
    if (!ended)
        tail->text[tail->size++] = '\n';
}

static struct tail *tail_of(struct tail *tails[RANKS_MAX], size_t *count, uint32_t rank)
{
    for (size_t i = 0; i < *count; i++) {
        if (tails[i]->rank == rank)
            return tails[i];
    }
    struct tail *tail = *count < RANKS_MAX ? calloc(1, sizeof(*tail)) : NULL;
    if (tail == NULL)
        return NULL;
    tail->rank = rank;
    tails[(*count)++] = tail;
    return tail;
}

/* Reads the lines of all ranks of an attempt. False: they ended before their end. */
static bool read_logs(struct client *client, const char *id, uint32_t attempt,
                      struct tail *tails[RANKS_MAX], size_t *count, struct rpc_result *result)
{
    Cairn__V1__StreamLogsRequest request = CAIRN__V1__STREAM_LOGS_REQUEST__INIT;
    struct rpc_stream *stream = NULL;
    const int64_t until = clock_mono_ms(clock_system()) + LOGS_MS;
    enum status st = ST_OK;
    request.job = (char *)id;
    request.attempt__case = CAIRN__V1__STREAM_LOGS_REQUEST__ATTEMPT__ATTEMPT;
    request.attempt = attempt;
    if (client_stream(client, "StreamLogs", &request.base, 0, &stream, result) != RPC_OK)
        return false;
    while (st != ST_CLOSED && clock_mono_ms(clock_system()) < until) {
        ProtobufCMessage *message = NULL;
        st = client_recv(client, stream, RECEIVE_MS, &message);
        if (message == NULL)
            continue;
        const Cairn__V1__LogLine *line = (const Cairn__V1__LogLine *)message;
        struct tail *tail = tail_of(tails, count, line->rank);
        if (tail != NULL)
            tail_add(tail, line->line);
        protobuf_c_message_free_unpacked(message, NULL);
    }
    const bool whole = st == ST_CLOSED;
    rpc_stream_close(stream, result);
    return whole && result->code == RPC_OK;
}

static void put_attempt(struct client *client, struct parcel *parcel, const char *id,
                        uint32_t attempt)
{
    struct tail *tails[RANKS_MAX];
    struct rpc_result result = { .code = RPC_DEADLINE_EXCEEDED };
    char name[PATH_BYTES];
    size_t count = 0;
    (void)snprintf(name, sizeof(name), "jobs/%s/logs of attempt %u", id, attempt);
    if (parcel_is_late(parcel, name))
        return;
    if (!read_logs(client, id, attempt, tails, &count, &result)) {
        parcel_missing(parcel, "%s: %s", name,
                       result.detail[0] != '\0' ? result.detail : "not all came within their time");
    }
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(name, sizeof(name), "jobs/%s/logs/g%u-r%u.log", id, attempt, tails[i]->rank);
        parcel_text(parcel, name, tails[i]->text, tails[i]->size, WORKER_BYTES, tails[i]->dropped);
        explicit_bzero(tails[i]->text, tails[i]->size);
        free(tails[i]);
    }
    if (count == RANKS_MAX)
        parcel_missing(parcel, "jobs/%s/logs: of %d workers at most", id, RANKS_MAX);
}

/* ---- a job ---- */

static void put_text(struct parcel *parcel, const char *id, const char *file, const char *text)
{
    char name[PATH_BYTES];
    (void)snprintf(name, sizeof(name), "jobs/%s/%s", id, file);
    parcel_text(parcel, name, text, strlen(text), PARCEL_FILE_BYTES, 0);
}

/* The newest rows, as CSV. */
static void put_metrics(struct client *client, struct parcel *parcel, const Cairn__V1__Job *job)
{
    Cairn__V1__ReadMetricsRequest request = CAIRN__V1__READ_METRICS_REQUEST__INIT;
    char name[PATH_BYTES];
    auto_buf struct buf out;
    bool more = true;
    buf_init(&out, CSV_BYTES);
    enum status st = metrics_csv_head(&out);
    (void)snprintf(name, sizeof(name), "jobs/%s/metrics.csv", job->id);
    request.job = job->id;
    request.from_step = job->step > ROWS_BEFORE ? job->step - ROWS_BEFORE : 0;
    for (int page = 0; st == ST_OK && more && page < ROWS_PAGES; page++) {
        enum rpc_code code;
        ProtobufCMessage *reply = ask(client, parcel, "ReadMetrics", &request.base, name, &code);
        if (reply == NULL)
            break;
        const Cairn__V1__ReadMetricsReply *rows = (const Cairn__V1__ReadMetricsReply *)reply;
        for (size_t i = 0; st == ST_OK && i < rows->n_rows; i++)
            st = metrics_csv(rows->rows[i], &out);
        more = rows->more;
        request.from_step = rows->next_step;
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    if (st == ST_OK || st == ST_FULL) {
        parcel_text(parcel, name, out.data, out.size, CSV_BYTES, 0);
    } else {
        parcel_missing(parcel, "%s: %s", name, status_string(st));
    }
}

static void put_checkpoints(struct client *client, struct parcel *parcel, const char *id)
{
    Cairn__V1__ListCheckpointsRequest request = CAIRN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    char folder[PATH_BYTES], name[PATH_BYTES];
    enum rpc_code code;
    request.job = (char *)id;
    (void)snprintf(folder, sizeof(folder), "jobs/%s", id);
    (void)snprintf(name, sizeof(name), "jobs/%s/checkpoints.json", id);
    ProtobufCMessage *reply = ask(client, parcel, "ListCheckpoints", &request.base, name, &code);
    if (reply == NULL)
        return;
    if (((const Cairn__V1__ListCheckpointsReply *)reply)->next_page_token[0] != '\0')
        parcel_missing(parcel, "%s: of many checkpoints the newest 1000 only", name);
    put_reply(parcel, folder, "ListCheckpoints", name, reply);
    protobuf_c_message_free_unpacked(reply, NULL);
}

/* Asks a call that takes a job alone; name: of the file that the reply is for, made from `file`.
 * NULL: it isn't there, as errors.txt says. */
static ProtobufCMessage *ask_about(struct client *client, struct parcel *parcel, const char *id,
                                   const char *method, const char *file, char name[PATH_BYTES])
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    enum rpc_code code;
    request.job = (char *)id;
    (void)snprintf(name, PATH_BYTES, "jobs/%s/%s", id, file);
    return ask(client, parcel, method, &request.base, name, &code);
}

/* Puts the explanation of a job, in all forms. */
static void put_why(struct client *client, struct parcel *parcel, const char *id)
{
    char folder[PATH_BYTES], name[PATH_BYTES];
    ProtobufCMessage *reply = ask_about(client, parcel, id, "ExplainJob", "why.json", name);
    if (reply == NULL)
        return;
    (void)snprintf(folder, sizeof(folder), "jobs/%s", id);
    put_reply(parcel, folder, "ExplainJob", name, reply);
    put_text(parcel, id, "why.txt", ((const Cairn__V1__ExplainJobReply *)reply)->text);
    protobuf_c_message_free_unpacked(reply, NULL);
}

/* Puts all that the coordinator has of a job. The reply's text is JSON, and filtered as such. */
static void put_debug(struct client *client, struct parcel *parcel, const char *id)
{
    char folder[PATH_BYTES], name[PATH_BYTES];
    ProtobufCMessage *reply = ask_about(client, parcel, id, "DebugJob", "debug.json", name);
    if (reply == NULL)
        return;
    (void)snprintf(folder, sizeof(folder), "jobs/%s/DebugJob", id);
    Cairn__V1__DebugJobReply *debug = (Cairn__V1__DebugJobReply *)reply;
    json_t *value = json_loads(debug->json, 0, NULL);
    parcel_json(parcel, name, value);
    char *text = value == NULL ? NULL : json_dumps(value, JSON_COMPACT);
    if (text != NULL) {
        free(debug->json);
        debug->json = text;
        parcel_reply(parcel, folder, reply);
    }
    json_decref(value);
    protobuf_c_message_free_unpacked(reply, NULL);
}

void jobs_one(struct client *client, struct parcel *parcel, const char *name)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    char folder[PATH_BYTES], file[PATH_BYTES];
    enum rpc_code code;
    request.job = (char *)name;
    ProtobufCMessage *reply = ask(client, parcel, "GetJob", &request.base, name, &code);
    if (reply == NULL)
        return;
    const Cairn__V1__Job *job = (const Cairn__V1__Job *)reply;
    if (strlen(job->id) > 40 || strchr(job->id, '/') != NULL) {
        parcel_missing(parcel, "%s: the coordinator gives it a strange id", name);
        protobuf_c_message_free_unpacked(reply, NULL);
        return;
    }
    (void)snprintf(folder, sizeof(folder), "jobs/%s", job->id);
    (void)snprintf(file, sizeof(file), "jobs/%s/show.json", job->id);
    put_reply(parcel, folder, "GetJob", file, reply);
    put_text(parcel, job->id, "job.yaml", job->job_file);
    put_why(client, parcel, job->id);
    put_debug(client, parcel, job->id);
    put_checkpoints(client, parcel, job->id);
    put_metrics(client, parcel, job);
    for (uint32_t i = 0; i < ATTEMPTS_MAX && i < job->generation; i++)
        put_attempt(client, parcel, job->id, job->generation - i);
    protobuf_c_message_free_unpacked(reply, NULL);
}
