/* SetJob: another value for a job that was submitted. The one that can change is the number of its
 * workers. RemoveJob: one that has ended is forgotten. */
#include <stdio.h>
#include <string.h>

#include "server/api/api.h"
#include "server/render/render.h"

void api_set_job(Cairn__V1__Control_Service *service, const Cairn__V1__SetJobRequest *in,
                 Cairn__V1__Job_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    struct coord_job *job = api_job_to_change(api, call, in->job);
    if (job == NULL)
        return;
    auto_buf struct buf errors;
    buf_init(&errors, (size_t)LIMIT_JOB_FILE_BYTES);
    struct jobspec_change change;
    struct reason reason = { "" };
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    enum status st =
        jobspec_parse_change((const char *const *)in->set, in->n_set, &change, &errors);
    if (st == ST_OK && !api_is_repeated(api, in->idempotency_key, job->id))
        st = coord_set_workers(api->coord, job, (uint32_t)change.workers, actor, &reason);
    if (st == ST_CONFIG) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "%s", errors.size ? errors.data : "no setting");
    } else if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s (%s): %s", job->name, job->id, reason.text);
    } else if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st), "%s", status_string(st));
    } else {
        coord_remember(api->coord, in->idempotency_key, job->id);
        api_reply_job(api, job, reply, call);
    }
}

#define REMOVED "removed "

/* A call with that key removed a job: its id. */
static bool was_removed(struct api *api, const char *key, char id[16])
{
    char what[sizeof(REMOVED) + 16];
    struct journal *journal = coord_options(api->coord)->journal;
    if (!key[0] || journal_get_key(journal, key, what, sizeof(what)) != ST_OK ||
        strncmp(what, REMOVED, strlen(REMOVED)) != 0)
        return false;
    (void)snprintf(id, 16, "%.15s", what + strlen(REMOVED));
    return true;
}

void api_remove_job(Cairn__V1__Control_Service *service, const Cairn__V1__JobRequest *in,
                    Cairn__V1__Job_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    char id[16], what[sizeof(REMOVED) + 16], actor[ACCESS_ACTOR];
    if (was_removed(api, in->idempotency_key, id)) {
        Cairn__V1__Job gone = CAIRN__V1__JOB__INIT;
        gone.id = id;
        reply(&gone, call);
        return;
    }
    struct coord_job *job = api_job(api, call, in->job);
    if (job == NULL)
        return;
    struct reason reason = { "" };
    Cairn__V1__Job *out = render_job(api->coord, job, RENDER_CKPTS);
    (void)snprintf(what, sizeof(what), REMOVED "%s", job->id);
    access_actor(call, false, actor);
    const enum status st =
        out != NULL ? coord_remove_ended(api->coord, job, actor, &reason) : ST_NO_MEMORY;
    if (st == ST_OK) {
        coord_remember(api->coord, in->idempotency_key, what);
        reply(out, call);
    } else if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s (%s): %s", out->name, out->id, reason.text);
    } else {
        api_refuse(call, rpc_code_from_status(st), "%s", status_string(st));
    }
    cairn__v1__job__free_unpacked(out, NULL);
}
