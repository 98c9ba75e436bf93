#include "client/ask/recorded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "client/archive/tar.h"
#include "common/cleanup.h"

#define ROOT        "cairn-bundle/"
#define REPLIES_MAX 256
#define ID_BYTES    64

struct reply {
    char method[64];
    char job[ID_BYTES]; /* "": of none */
    uint8_t *data;
    size_t size;
};

struct recorded {
    struct reply list[REPLIES_MAX];
    size_t count;
    bool ours; /* its names are those of a bundle */
};

static enum status keep(struct recorded *recorded, const char *job, size_t job_size,
                        const char *method, const char *data, size_t size)
{
    const size_t length = strlen(method);
    if (recorded->count == REPLIES_MAX || job_size >= ID_BYTES || length < 4 ||
        length >= sizeof(recorded->list[0].method) || strcmp(method + length - 3, ".pb") != 0)
        return ST_OK;
    struct reply *reply = &recorded->list[recorded->count];
    reply->data = malloc(size + 1);
    if (reply->data == NULL)
        return ST_NO_MEMORY;
    memcpy(reply->data, data, size);
    reply->size = size;
    (void)snprintf(reply->method, sizeof(reply->method), "%.*s", (int)length - 3, method);
    (void)snprintf(reply->job, sizeof(reply->job), "%.*s", (int)job_size, job);
    recorded->count++;
    return ST_OK;
}

/* replies/METHOD.pb, jobs/ID/METHOD.pb; all else is for people. */
static enum status take_member(void *arg, const char *name, const char *data, size_t size)
{
    struct recorded *recorded = arg;
    if (strncmp(name, ROOT, strlen(ROOT)) != 0)
        return ST_OK;
    recorded->ours = true;
    name += strlen(ROOT);
    if (strncmp(name, "replies/", 8) == 0 && strchr(name + 8, '/') == NULL)
        return keep(recorded, "", 0, name + 8, data, size);
    const char *job = name + 5, *slash = strncmp(name, "jobs/", 5) == 0 ? strchr(job, '/') : NULL;
    if (slash == NULL || strchr(slash + 1, '/') != NULL)
        return ST_OK;
    return keep(recorded, job, (size_t)(slash - job), slash + 1, data, size);
}

void recorded_free(struct recorded *recorded)
{
    for (size_t i = 0; recorded != NULL && i < recorded->count; i++)
        free(recorded->list[i].data);
    free(recorded);
}

enum status recorded_open(const char *path, struct recorded **out, struct reason *reason)
{
    struct recorded *recorded = calloc(1, sizeof(*recorded));
    if (recorded == NULL)
        return ST_NO_MEMORY;
    enum status st = tar_read(path, take_member, recorded, reason);
    if (st == ST_OK && !recorded->ours) {
        reason_set(reason, "%s is no bundle: 'cairn bundle' makes one", path);
        st = ST_CONFIG;
    }
    if (st != ST_OK) {
        recorded_free(recorded);
        return st;
    }
    *out = recorded;
    return ST_OK;
}

/* ---- which ---- */

/* A recorded job: cairn__v1__job__free_unpacked. NULL: it is none, or can't be read. */
static Cairn__V1__Job *job_of(const struct reply *reply)
{
    if (strcmp(reply->method, "GetJob") != 0)
        return NULL;
    return cairn__v1__job__unpack(NULL, reply->size, reply->data);
}

/* How well a word fits a job: 4 its id, 3 its name, 2 the start of its id, 1 nothing was said. */
static int fit_of(const char *word, const char *id, const char *name)
{
    if (word == NULL || word[0] == '\0')
        return 1;
    if (strcmp(id, word) == 0)
        return 4;
    if (strcmp(name, word) == 0)
        return 3;
    return strncmp(id, word, strlen(word)) == 0 ? 2 : 0;
}

/* The id of the job that is meant, of several with that name the newest; NULL: none, or more than
 * one. */
static const char *job_meant(const struct recorded *recorded, const char *word)
{
    const char *best = NULL;
    char newest[40] = ""; /* RFC 3339 in UTC: texts are in the order of their times */
    int best_fit = 0;
    size_t equal = 0;
    for (size_t i = 0; i < recorded->count; i++) {
        Cairn__V1__Job *job = job_of(&recorded->list[i]);
        const int fit = job == NULL ? 0 : fit_of(word, recorded->list[i].job, job->name);
        const bool newer = fit > best_fit || strcmp(newest, fit > 0 ? job->submitted_at : "") < 0;
        if (fit > 0 && fit >= best_fit) {
            equal = fit > best_fit ? 1 : equal + 1;
            if (newer) {
                best = recorded->list[i].job;
                (void)snprintf(newest, sizeof(newest), "%s", job->submitted_at);
            }
            best_fit = fit;
        }
        cairn__v1__job__free_unpacked(job, NULL);
    }
    return best_fit >= 3 || equal == 1 ? best : NULL;
}

static enum status refuse(struct rpc_result *result, enum rpc_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static enum status refuse(struct rpc_result *result, enum rpc_code code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    result->code = code;
    (void)vsnprintf(result->detail, sizeof(result->detail), format, list);
    va_end(list);
    return ST_NOT_FOUND;
}

/* Says which jobs there are. */
static enum status refuse_job(const struct recorded *recorded, const char *word,
                              struct rpc_result *result)
{
    char list[LIMIT_REASON] = "";
    size_t used = 0;
    for (size_t i = 0; i < recorded->count && used < sizeof(list) / 2; i++) {
        Cairn__V1__Job *job = job_of(&recorded->list[i]);
        if (job != NULL) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s (%.64s)",
                                     used > 0 ? ", " : "", recorded->list[i].job, job->name);
        }
        cairn__v1__job__free_unpacked(job, NULL);
    }
    if (list[0] == '\0')
        return refuse(result, RPC_NOT_FOUND, "the bundle has no job; its errors.txt says why");
    if (word == NULL || word[0] == '\0')
        return refuse(result, RPC_INVALID_ARGUMENT, "which job? The bundle has %s", list);
    return refuse(result, RPC_NOT_FOUND, "the bundle has no job '%.64s', it has %s", word, list);
}

enum status recorded_reply(const struct recorded *recorded, const char *method,
                           const ProtobufCMessage *request, ProtobufCMessage **out,
                           struct rpc_result *result)
{
    const bool of_job = request->descriptor == &cairn__v1__job_request__descriptor;
    const char *word = of_job ? ((const Cairn__V1__JobRequest *)request)->job : NULL;
    const char *job = of_job ? job_meant(recorded, word) : "";
    const ProtobufCMethodDescriptor *call =
        protobuf_c_service_descriptor_get_method_by_name(&cairn__v1__control__descriptor, method);
    *result = (struct rpc_result){ .code = RPC_OK };
    if (job == NULL)
        return refuse_job(recorded, word, result);
    for (size_t i = 0; call != NULL && i < recorded->count; i++) {
        const struct reply *reply = &recorded->list[i];
        if (strcmp(reply->method, method) != 0 || strcmp(reply->job, job) != 0)
            continue;
        *out = protobuf_c_message_unpack(call->output, NULL, reply->size, reply->data);
        return *out != NULL ? ST_OK
                            : refuse(result, RPC_DATA_LOSS,
                                     "the bundle is damaged: %s of it can't "
                                     "be read",
                                     method);
    }
    return refuse(result, RPC_NOT_FOUND, "the bundle doesn't have this; its errors.txt says why");
}
