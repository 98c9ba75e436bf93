/* Functions that all handlers use: refusing a call, the job that it names, a job as the answer,
 * calls that are answered later. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobspec/text/suggest.h"
#include "server/api/api.h"
#include "server/render/render.h"

#define NEAR_MAX 200 /* names that a mistyped one is held against: the newest */

void api_refuse(struct rpc_call *call, enum rpc_code code, const char *format, ...)
{
    char detail[API_DETAIL_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof(detail), format, args);
    va_end(args);
    reason_mend(detail);
    rpc_call_finish(call, code, detail);
}

void api_about(struct api *api, const char *about)
{
    struct api_corked *corked = &api->corked[api->corked_count - 1];
    (void)snprintf(corked->about, sizeof(corked->about), "%s", about);
}

/* There is no such job; perhaps one of those that are here is meant. */
static void refuse_name(struct api *api, struct rpc_call *call, const char *name)
{
    const char *best = NULL;
    size_t nearest = suggest_limit(name) + 1;
    struct coord_job *jobs[NEAR_MAX];
    const size_t all = coord_jobs(api->coord, jobs, NEAR_MAX);
    for (size_t i = 0; i < all && i < NEAR_MAX; i++) {
        const size_t distance = suggest_distance(jobs[i]->name, name);
        if (distance < nearest) {
            nearest = distance;
            best = jobs[i]->name;
        }
    }
    if (best != NULL) {
        api_refuse(call, RPC_NOT_FOUND, "no job '%.100s'; did you mean '%s'? 'cairn ps' lists them",
                   name, best);
    } else {
        api_refuse(call, RPC_NOT_FOUND, "no job '%.100s'; 'cairn ps' lists them", name);
    }
}

/* Why there is none. */
static void refuse_job(struct api *api, struct rpc_call *call, const char *name, enum status st)
{
    if (st == ST_INVALID) {
        api_refuse(
            call, RPC_INVALID_ARGUMENT,
            "'%.100s' is the beginning of several job ids: write more of it ('cairn ps' lists "
            "them)",
            name);
    } else if (st != ST_NOT_FOUND) {
        api_refuse(call, RPC_INTERNAL, "job '%.100s' can't be read from the journal: %s", name,
                   status_string(st));
    } else {
        refuse_name(api, call, name);
    }
}

struct coord_job *api_job(struct api *api, struct rpc_call *call, const char *name)
{
    struct coord_job *job;
    const enum status st = coord_find(api->coord, name, &job);
    if (st == ST_OK) {
        api_about(api, job->id);
        return job;
    }
    refuse_job(api, call, name, st);
    return NULL;
}

bool api_seek(struct api *api, struct rpc_call *call, const char *name, struct later_of *out)
{
    char id[16];
    *out = (struct later_of){ .call = call, .coord = api->coord };
    const enum status st = coord_seek(api->coord, name, id, &out->job);
    if (st != ST_OK) {
        refuse_job(api, call, name, st);
        return false;
    }
    api_about(api, id);
    out->id = api->corked[api->corked_count - 1].about;
    return true;
}

struct coord_job *api_job_to_change(struct api *api, struct rpc_call *call, const char *name)
{
    struct coord_job *job = api_job(api, call, name);
    if (job == NULL || !job->unreadable[0])
        return job;
    api_refuse(call, RPC_FAILED_PRECONDITION, "%s (%s): %s", job->name, job->id, job->unreadable);
    return NULL;
}

void api_reply_job(struct api *api, struct coord_job *job, Cairn__V1__Job_Closure reply, void *call)
{
    Cairn__V1__Job *out = render_job(api->coord, job, RENDER_CKPTS);
    if (out != NULL) {
        reply(out, call);
    } else {
        api_refuse(call, RPC_INTERNAL, "no memory");
    }
    cairn__v1__job__free_unpacked(out, NULL);
}

bool api_is_repeated(struct api *api, const char *key, const char *job)
{
    char what[32];
    return key[0] &&
           journal_get_key(coord_options(api->coord)->journal, key, what, sizeof(what)) == ST_OK &&
           strcmp(what, job) == 0;
}

bool api_can_resume(struct api *api, void *call, const struct coord_job *job)
{
    struct reason reason = { "" };
    if (!fsm_state_final(job->m.state) ||
        coord_could_write(api->coord, job->spec, &reason) == ST_OK)
        return true;
    api_refuse(call, RPC_FAILED_PRECONDITION, "%s", reason.text);
    return false;
}

/* ---- calls that are answered later ---- */

static void stream_done(struct rpc_call *call, void *data, bool cancelled)
{
    struct api_stream *stream = data;
    (void)call;
    (void)cancelled;
    stream->over = true;
    stream->call = NULL;
}

struct api_stream *api_stream_new(struct api *api, struct rpc_call *call, enum api_stream_kind kind,
                                  const char *job)
{
    struct api_stream *stream =
        api->stream_count < API_STREAMS_MAX && !api->closing ? calloc(1, sizeof(*stream)) : NULL;
    if (stream == NULL) {
        api_refuse(call, RPC_RESOURCE_EXHAUSTED,
                   "too many calls wait for answers: end a watch, or logs that are followed");
        return NULL;
    }
    stream->kind = kind;
    stream->call = call;
    stream->until_ms = access_until_ms(call);
    (void)snprintf(stream->job, sizeof(stream->job), "%s", job);
    coord_hold(api->coord, job);
    stream->next = api->streams;
    api->streams = stream;
    api->stream_count++;
    rpc_call_set_data(call, stream, stream_done);
    return stream;
}

struct coord_job *api_stream_job(struct api *api, struct api_stream *stream)
{
    struct coord_job *job;
    const enum status st = coord_find(api->coord, stream->job, &job);
    if (st == ST_OK)
        return job;
    stream->at = INT64_MAX;
    if (st == ST_NOT_FOUND) {
        rpc_call_finish(stream->call, RPC_NOT_FOUND, "the job was forgotten");
    } else {
        api_refuse(stream->call, RPC_INTERNAL, "job '%s' can't be read from the journal: %s",
                   stream->job, status_string(st));
    }
    return NULL;
}
