/*
 * Control: the calls that are answered at once, the beginning of those that wait (streams.c, logs.c
 * go on with them), and the dispatch of both.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "server/api/api.h"
#include "server/render/render.h"

#ifndef CAIRN_GIT
#define CAIRN_GIT ""
#endif

#define DRAIN_REASON_MAX      100
#define DRAIN_DEADLINE_MAX_MS (UINT64_C(1000) * 3600 * 24 * 365)

static struct api *api_of(Cairn__V1__Control_Service *service)
{
    return ((struct api_service_control *)service)->api;
}

/* ---- one job ---- */

static void submit_job(Cairn__V1__Control_Service *service, const Cairn__V1__SubmitJobRequest *in,
                       Cairn__V1__SubmitJobReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    size_t size = strlen(in->job_file);
    if (size > (size_t)LIMIT_JOB_FILE_BYTES || in->n_set > JOBSPEC_SETS_MAX ||
        in->base_dir[0] != '/' || strlen(in->idempotency_key) > 200) {
        api_refuse(call, RPC_INVALID_ARGUMENT,
                   "a job file of at most %d bytes, an absolute base_dir, at most %d settings",
                   LIMIT_JOB_FILE_BYTES, JOBSPEC_SETS_MAX);
        return;
    }
    struct jobspec *spec = malloc(sizeof(*spec));
    auto_buf struct buf errors, text;
    buf_init(&errors, (size_t)LIMIT_JOB_FILE_BYTES);
    buf_init(&text, (size_t)LIMIT_JOB_FILE_BYTES);
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    const struct jobspec_origin origin = {
        .file_name = in->file_name[0] ? in->file_name : "job.yaml",
        .base_dir = in->base_dir,
        .allowed = strcmp(actor, ACCESS_LOCAL) == 0 ? NULL : api->paths,
        .commands = api->commands,
    };
    enum status st = ST_NO_MEMORY;
    if (spec != NULL) {
        st = jobspec_parse_within(&origin, in->job_file, size, (const char *const *)in->set,
                                  in->n_set, spec, &errors);
    }
    if (st == ST_OK)
        st = jobspec_print(spec, &text);
    struct reason reason = { "" };
    struct coord_job *job = NULL;
    if (st == ST_OK)
        st = coord_submit(api->coord, spec, text.data, in->idempotency_key, actor, &job, &reason);
    free(spec);
    if (st == ST_CONFIG) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "%s", errors.size ? errors.data : "not a job file");
    } else if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s", reason.text);
    } else if (st == ST_FULL) {
        api_refuse(call, RPC_RESOURCE_EXHAUSTED,
                   "%d jobs are live already: wait until one is over, or 'cairn stop' one",
                   LIMIT_JOBS);
    } else if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st), "submitting: %s", status_string(st));
    }
    if (st != ST_OK)
        return;
    api_about(api, job->id);
    Cairn__V1__SubmitJobReply out = CAIRN__V1__SUBMIT_JOB_REPLY__INIT;
    out.job = render_job(api->coord, job, RENDER_CKPTS);
    if (out.job != NULL) {
        reply(&out, call);
    } else {
        api_refuse(call, RPC_INTERNAL, "no memory");
    }
    cairn__v1__job__free_unpacked(out.job, NULL);
}

static void get_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                    Cairn__V1__Job_Closure reply, void *call)
{
    struct api *api = api_of(service);
    struct later_of of;
    (void)reply;
    if (api_seek(api, call, in->job, &of))
        api_later(api, call, later_job(&of));
}

/* Returns what to do with a job that can't be asked this in its state. */
static const char *way_out(const struct coord_job *job, char out[96])
{
    if (job->m.state == FSM_STOPPED) {
        (void)snprintf(out, 96, ": it is over; 'cairn resume %s' goes on", job->id);
    } else if (fsm_state_final(job->m.state)) {
        (void)snprintf(out, 96, ": it is over; 'cairn submit' trains anew");
    } else if (job->m.state == FSM_PAUSED) {
        (void)snprintf(out, 96, " already; 'cairn resume %s' goes on", job->id);
    } else {
        (void)snprintf(out, 96, "; 'cairn why %s' says more", job->id);
    }
    return out;
}

static void ask_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                    Cairn__V1__Job_Closure reply, void *call, enum fsm_event_kind kind)
{
    struct api *api = api_of(service);
    char hint[96];
    struct coord_job *job =
        kind == FSM_EV_KILL ? api_job(api, call, in->job) : api_job_to_change(api, call, in->job);
    if (job == NULL)
        return;
    enum status st = ST_OK;
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    if (!api_is_repeated(api, in->idempotency_key, job->id)) {
        if (kind == FSM_EV_RESUME && !api_can_resume(api, call, job))
            return;
        st = coord_ask(api->coord, job, kind, actor);
    }
    if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s (%s) is %s%s", job->name, job->id,
                   fsm_state_name(job->m.state), way_out(job, hint));
        return;
    }
    if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st), "%s", status_string(st));
        return;
    }
    coord_remember(api->coord, in->idempotency_key, job->id);
    api_reply_job(api, job, reply, call);
}

static void pause_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                      Cairn__V1__Job_Closure reply, void *call)
{
    ask_job(service, in, reply, call, FSM_EV_PAUSE);
}

static void resume_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                       Cairn__V1__Job_Closure reply, void *call)
{
    ask_job(service, in, reply, call, FSM_EV_RESUME);
}

static void stop_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                     Cairn__V1__Job_Closure reply, void *call)
{
    ask_job(service, in, reply, call, FSM_EV_STOP);
}

static void kill_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                     Cairn__V1__Job_Closure reply, void *call)
{
    ask_job(service, in, reply, call, FSM_EV_KILL);
}

static void explain(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                    Cairn__V1__ExplainJobReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    struct later_of of;
    (void)reply;
    if (api_seek(api, call, in->job, &of))
        api_later(api, call, later_explain(&of));
}

/* ---- lists ---- */

static void list_jobs(Cairn__V1__Control_Service *service, const Cairn__V1__ListJobsRequest *in,
                      Cairn__V1__ListJobsReply_Closure reply, void *call)
{
    Cairn__V1__ListJobsReply *page = api_list(api_of(service), in->page_size, in->page_token);
    if (page != NULL) {
        reply(page, call);
    } else {
        api_refuse(call, RPC_INTERNAL, "no memory, or the journal can't be read");
    }
    cairn__v1__list_jobs_reply__free_unpacked(page, NULL);
}

static void read_metrics(Cairn__V1__Control_Service *service,
                         const Cairn__V1__ReadMetricsRequest *in,
                         Cairn__V1__ReadMetricsReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    struct later_of of;
    (void)reply;
    if (api_seek(api, call, in->job, &of))
        api_later(api, call, later_rows(&of, in->from_step));
}

static void list_nodes(Cairn__V1__Control_Service *service, const Cairn__V1__ListNodesRequest *in,
                       Cairn__V1__ListNodesReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)in;
    struct coord_node *nodes[LIMIT_NODES];
    Cairn__V1__Node *list[LIMIT_NODES];
    size_t count = coord_nodes(api->coord, nodes, LIMIT_NODES);
    Cairn__V1__ListNodesReply out = CAIRN__V1__LIST_NODES_REPLY__INIT;
    out.nodes = list;
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++) {
        list[i] = render_node(api->coord, nodes[i]);
        ok = list[i] != NULL;
        out.n_nodes += ok;
    }
    if (ok) {
        reply(&out, call);
    } else {
        api_refuse(call, RPC_INTERNAL, "no memory");
    }
    for (size_t i = 0; i < out.n_nodes; i++)
        cairn__v1__node__free_unpacked(list[i], NULL);
}

static void reply_node(struct api *api, const char *name, Cairn__V1__Node_Closure reply, void *call)
{
    struct coord_node *node = coord_node_at(api->coord, name);
    Cairn__V1__Node *out = node != NULL ? render_node(api->coord, node) : NULL;
    if (out == NULL) {
        api_refuse(call, RPC_INTERNAL, "no memory");
        return;
    }
    reply(out, call);
    cairn__v1__node__free_unpacked(out, NULL);
}

static void drain_node(Cairn__V1__Control_Service *service, const Cairn__V1__DrainNodeRequest *in,
                       Cairn__V1__Node_Closure reply, void *call)
{
    struct api *api = api_of(service);
    if (strlen(in->reason) > DRAIN_REASON_MAX) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "a reason has %d bytes at most", DRAIN_REASON_MAX);
        return;
    }
    if (in->deadline_ms > DRAIN_DEADLINE_MAX_MS) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "a deadline is a year ahead at most");
        return;
    }
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    enum status st =
        coord_drain_node(api->coord, in->node, in->reason, (int64_t)in->deadline_ms, actor);
    if (st == ST_OK) {
        reply_node(api, in->node, reply, call);
    } else {
        api_refuse(call, rpc_code_from_status(st),
                   "there is no node '%.100s'; 'cairn node ls' lists them", in->node);
    }
}

static void undrain_node(Cairn__V1__Control_Service *service,
                         const Cairn__V1__UndrainNodeRequest *in, Cairn__V1__Node_Closure reply,
                         void *call)
{
    struct api *api = api_of(service);
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    enum status st = coord_undrain_node(api->coord, in->node, actor);
    if (st == ST_OK) {
        reply_node(api, in->node, reply, call);
    } else {
        api_refuse(call, rpc_code_from_status(st),
                   "no node '%.100s' is drained; 'cairn node ls' lists them", in->node);
    }
}

static void list_checkpoints(Cairn__V1__Control_Service *service,
                             const Cairn__V1__ListCheckpointsRequest *in,
                             Cairn__V1__ListCheckpointsReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    struct later_of of;
    (void)reply;
    if (api_seek(api, call, in->job, &of))
        api_later(api, call, later_ckpts(&of, in->page_size, in->page_token));
}

static void remove_checkpoint(Cairn__V1__Control_Service *service,
                              const Cairn__V1__RemoveCheckpointRequest *in,
                              Cairn__V1__RemoveCheckpointReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    struct coord_job *job = api_job_to_change(api, call, in->job);
    if (job == NULL)
        return;
    enum status st = ST_OK;
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    if (!api_is_repeated(api, in->idempotency_key, job->id))
        st = coord_remove_ckpt(api->coord, job, in->step, actor);
    if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION,
                   "%s goes on from the checkpoint of step %llu; 'cairn save %s' makes a newer one",
                   job->id, (unsigned long long)in->step, job->id);
        return;
    }
    if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st),
                   "%s has no checkpoint of step %llu; 'cairn ckpt ls %s' lists them", job->id,
                   (unsigned long long)in->step, job->id);
        return;
    }
    coord_remember(api->coord, in->idempotency_key, job->id);
    Cairn__V1__RemoveCheckpointReply out = CAIRN__V1__REMOVE_CHECKPOINT_REPLY__INIT;
    char dir[LIMIT_PATH];
    for (size_t i = 0; i < job->m.catalog_count; i++) {
        const struct fsm_ckpt *ckpt = &job->m.catalog[i];
        if (ckpt->step == in->step && ckpt->state == FSM_CKPT_REMOVING &&
            coord_ckpt_dir(job, ckpt->step, ckpt->generation, dir, sizeof(dir)) == ST_OK) {
            out.path__case = CAIRN__V1__REMOVE_CHECKPOINT_REPLY__PATH__PATH;
            out.path = dir;
        }
    }
    reply(&out, call);
}

static void get_version(Cairn__V1__Control_Service *service, const Cairn__V1__GetVersionRequest *in,
                        Cairn__V1__GetVersionReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)in;
    struct coord_node *nodes[LIMIT_NODES];
    size_t count = coord_nodes(api->coord, nodes, LIMIT_NODES);
    Cairn__V1__GetVersionReply out = CAIRN__V1__GET_VERSION_REPLY__INIT;
    out.version = CAIRN_VERSION;
    out.git = CAIRN_GIT;
    out.pid = (uint32_t)getpid();
    for (size_t i = 0; i < count; i++)
        out.agents += nodes[i]->conn != NULL;
    reply(&out, call);
}

/* ---- calls that are answered later ---- */

static void watch_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                      Cairn__V1__JobUpdate_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)reply;
    struct coord_job *job = api_job(api, call, in->job);
    if (job != NULL)
        (void)api_stream_new(api, call, API_WATCH, job->id);
}

static void stream_metrics(Cairn__V1__Control_Service *service,
                           const Cairn__V1__StreamMetricsRequest *in,
                           Cairn__V1__MetricRow_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)reply;
    struct coord_job *job = api_job(api, call, in->job);
    struct api_stream *stream =
        job != NULL ? api_stream_new(api, call, API_METRICS, job->id) : NULL;
    if (stream == NULL)
        return;
    stream->metrics.follow = in->follow;
    stream->metrics.next_step = in->from_step;
}

static void save_checkpoint(Cairn__V1__Control_Service *service,
                            const Cairn__V1__SaveCheckpointRequest *in,
                            Cairn__V1__SaveCheckpointReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)reply;
    struct coord_job *job = api_job_to_change(api, call, in->job);
    if (job == NULL)
        return;
    struct fsm_awaited awaited;
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    enum status st = coord_save(api->coord, job, in->idempotency_key, actor, &awaited);
    if (st != ST_OK && st != ST_REFUSED) {
        api_refuse(call, rpc_code_from_status(st), "%s", status_string(st));
        return;
    }
    if (st == ST_REFUSED && job->m.config.saves_nothing) {
        api_refuse(call, RPC_FAILED_PRECONDITION,
                   "%s: Cairn saves nothing of this job: its program saves by itself", job->id);
    } else if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION,
                   "%s is %s: there is nothing to save; 'cairn ckpt ls %s' lists what it has",
                   job->id, fsm_state_name(job->m.state), job->id);
    } else {
        struct api_stream *stream = api_stream_new(api, call, API_SAVE, job->id);
        if (stream != NULL)
            stream->save = awaited;
    }
}

static void check_checkpoint(Cairn__V1__Control_Service *service,
                             const Cairn__V1__CheckCheckpointRequest *in,
                             Cairn__V1__CheckCheckpointReply_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)reply;
    struct coord_job *job = api_job_to_change(api, call, in->job);
    if (job == NULL)
        return;
    const struct fsm_ckpt *ckpt = fsm_find_ckpt(&job->m, in->step, in->generation);
    uint32_t reads = ckpt != NULL ? ckpt->reads : 0;
    enum status st = coord_check_ckpt(api->coord, job, in->step, in->generation);
    if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st),
                   "%s has no checkpoint of step %llu, attempt %u; 'cairn ckpt ls %s' lists them",
                   job->id, (unsigned long long)in->step, in->generation, job->id);
        return;
    }
    struct api_stream *stream = api_stream_new(api, call, API_CHECK, job->id);
    if (stream == NULL)
        return;
    stream->check.step = in->step;
    stream->check.generation = in->generation;
    stream->check.reads = reads;
}

static void stream_logs(Cairn__V1__Control_Service *service, const Cairn__V1__StreamLogsRequest *in,
                        Cairn__V1__LogLine_Closure reply, void *call)
{
    struct api *api = api_of(service);
    (void)reply;
    struct coord_job *job = api_job(api, call, in->job);
    if (job != NULL)
        api_logs_begin(api, call, job, in);
}

static void drain_all(Cairn__V1__Control_Service *service, const Cairn__V1__DrainRequest *in,
                      Cairn__V1__DrainReply_Closure reply, void *call)
{
    (void)reply;
    api_drain_begin(api_of(service), call, in->timeout_ms);
}

/* ---- dispatch ---- */

static void free_over(struct api *api)
{
    for (struct api_stream **at = &api->streams; *at != NULL;) {
        struct api_stream *stream = *at;
        if (!stream->over) {
            at = &stream->next;
            continue;
        }
        *at = stream->next;
        api->stream_count--;
        coord_release(api->coord, stream->job);
        if (stream->kind == API_LOGS)
            api_logs_free(stream->logs);
        if (stream->kind == API_PAIRS)
            api_pairs_over(api, stream);
        free(stream);
    }
}

void api_pump(struct api *api)
{
    int64_t now = clock_mono_ms(coord_options(api->coord)->clock);
    const int64_t wall_ms = clock_wall_ms(clock_system());
    free_over(api);
    if (api->tls != NULL && now >= api->renew_at) {
        api_renew_own(api->tls, api->log);
        api->renew_at = now + API_RENEW_MS;
    }
    for (struct api_stream *stream = api->streams; stream != NULL; stream = stream->next) {
        if (coord_failed(api->coord) != ST_OK)
            return;
        if (stream->over || now < stream->at)
            continue;
        if (stream->until_ms <= wall_ms) {
            api_refuse(stream->call, RPC_UNAUTHENTICATED, ACCESS_EXPIRED);
            stream->at = INT64_MAX;
            continue;
        }
        switch (stream->kind) {
        case API_WATCH:
            api_watch_pump(api, stream, now);
            break;
        case API_METRICS:
            api_metrics_pump(api, stream, now);
            break;
        case API_SAVE:
            api_save_pump(api, stream);
            break;
        case API_CHECK:
            api_check_pump(api, stream);
            break;
        case API_DRAIN:
            api_drain_pump(api, stream, now);
            break;
        case API_LOGS:
            api_logs_pump(api, stream, now);
            break;
        case API_PAIRS:
            api_pairs_pump(api, stream);
            break;
        }
    }
}

int64_t api_deadline(const struct api *api)
{
    int64_t at = INT64_MAX;
    int64_t now = clock_mono_ms(coord_options(api->coord)->clock);
    for (const struct api_stream *stream = api->streams; stream != NULL; stream = stream->next) {
        if (stream->over)
            return now;
        if (stream->at > now && stream->at < at)
            at = stream->at;
        if (stream->kind == API_DRAIN && stream->drain.until < at)
            at = stream->drain.until;
    }
    return at;
}

bool api_waits(const struct api *api)
{
    const int64_t now = clock_mono_ms(coord_options(api->coord)->clock);
    for (const struct api_stream *stream = api->streams; stream != NULL; stream = stream->next) {
        if (stream->kind == API_LOGS && api_logs_go_on(stream, now))
            return true;
    }
    return api->corked_count > 0 || api_deadline(api) <= now;
}

void api_close(struct api *api)
{
    api->closing = true;
    for (struct api_stream *stream = api->streams; stream != NULL; stream = stream->next) {
        if (!stream->over)
            api_refuse(stream->call, RPC_UNAVAILABLE, "the coordinator ends");
    }
    later_queue_free(api->later);
    api->later = NULL;
}

void api_free(struct api *api)
{
    for (size_t i = 0; i < api->corked_count; i++) {
        rpc_call_unref(api->corked[i].call);
        if (api->corked[i].later != NULL)
            later_fail(api->corked[i].later, ST_CLOSED);
    }
    free(api->corked);
}

enum status api_open(struct api *api, struct rpc_server *server)
{
    api->control = (struct api_service_control){
        .service = { .base = CAIRN__V1__CONTROL__BASE_INIT,
                     .submit_job = submit_job,
                     .list_jobs = list_jobs,
                     .get_job = get_job,
                     .watch_job = watch_job,
                     .pause_job = pause_job,
                     .resume_job = resume_job,
                     .stop_job = stop_job,
                     .kill_job = kill_job,
                     .set_job = api_set_job,
                     .remove_job = api_remove_job,
                     .save_checkpoint = save_checkpoint,
                     .list_checkpoints = list_checkpoints,
                     .remove_checkpoint = remove_checkpoint,
                     .check_checkpoint = check_checkpoint,
                     .stream_logs = stream_logs,
                     .stream_metrics = stream_metrics,
                     .read_metrics = read_metrics,
                     .list_nodes = list_nodes,
                     .drain_node = drain_node,
                     .undrain_node = undrain_node,
                     .forget_node = api_forget_node,
                     .invite_nodes = api_invite_nodes,
                     .explain_job = explain,
                     .debug_job = api_debug_job,
                     .get_version = get_version,
                     .drain = drain_all,
                     .check_paths = api_check_paths },
        .api = api,
    };
    api->control.invoke = api->control.service.base.invoke;
    api->control.service.base.invoke = api_invoke_corked;
    enum status st = rpc_server_add_service(server, &api->control.service.base, NULL);
    if (st == ST_OK)
        st = api_connections_open(api, server);
    if (st == ST_OK)
        st = later_queue_new(coord_options(api->coord), &api->later);
    return st;
}
