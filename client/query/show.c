/* show: a job with its workers, checkpoints and events. */
#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/print/job.h"
#include "client/query/commands.h"

static enum exit_code show_once(struct client *client)
{
    Cairn__V1__Job *job = NULL;
    enum exit_code code = client_get_job(client, client->args.operands[0], &job);
    if (code != EXIT_DONE)
        return code;
    code = job_show(client, job);
    cairn__v1__job__free_unpacked(job, NULL);
    return code;
}

enum exit_code cmd_show(struct client *client)
{
    return interrupt_repeat(client, show_once);
}
