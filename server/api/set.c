/* SetJob: another value for a job that was submitted. The one that can change is the number of its
 * workers. */
#include "server/api/api.h"

void api_set_job(Cairn__V1__Control_Service *service, const Cairn__V1__SetJobRequest *in,
                 Cairn__V1__Job_Closure reply, void *call)
{
    struct api *api = ((struct api_service_control *)service)->api;
    struct core_job *job = api_job_to_change(api, call, in->job);
    if (!job)
        return;
    auto_buf struct buf errors;
    buf_init(&errors, (size_t)LIMIT_JOB_FILE_BYTES);
    struct job_change change;
    struct reason reason = { "" };
    char actor[ACCESS_ACTOR];
    access_actor(call, false, actor);
    enum status st = job_parse_change((const char *const *)in->set, in->n_set, &change, &errors);
    if (st == ST_OK && !api_is_repeated(api, in->idempotency_key, job->id))
        st = core_set_workers(api->core, job, (uint32_t)change.workers, actor, &reason);
    if (st == ST_CONFIG) {
        api_refuse(call, RPC_INVALID_ARGUMENT, "%s", errors.size ? errors.data : "no setting");
    } else if (st == ST_REFUSED) {
        api_refuse(call, RPC_FAILED_PRECONDITION, "%s (%s): %s", job->name, job->id, reason.text);
    } else if (st != ST_OK) {
        api_refuse(call, rpc_code_from_status(st), "%s", status_string(st));
    } else {
        core_remember(api->core, in->idempotency_key, job->id);
        api_reply_job(api, job, reply, call);
    }
}
