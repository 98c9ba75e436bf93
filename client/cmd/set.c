/* set: another value for a job that was submitted. */
#include <stdio.h>

#include "client/ask/call.h"
#include "client/cmd/commands.h"
#include "client/print/job.h"

enum exit_code cmd_set(struct client *client)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__SetJobRequest request = CAIRN__V1__SET_JOB_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.set = (char **)&client->args.operands[1];
    request.n_set = client->args.operand_count - 1;
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "SetJob", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__Job *job = (const Cairn__V1__Job *)reply;
    if (client->args.output == OUTPUT_TABLE) {
        client_note(client, "%s is to have %u worker%s: %s%s%s\n", job->name, job->workers_count,
                    job->workers_count == 1 ? "" : "s", job_state_name(job->state),
                    job->reason[0] == '\0' ? "" : ", ", job->reason);
    } else {
        code = job_show(client, job);
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}
