/* save: a checkpoint now. */
#include <stdio.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/print/output.h"

#define SAVE_MS 600000 /* a save waits for a step, then for the store */

enum exit_code cmd_save(struct client *client)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__SaveCheckpointRequest request = CAIRN__V1__SAVE_CHECKPOINT_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    int64_t timeout = client->args.timeout_ms >= 0 ? client->args.timeout_ms : SAVE_MS;
    enum exit_code code = client_call(client, "SaveCheckpoint", &request.base,
                                      timeout > INT32_MAX ? INT32_MAX : (int32_t)timeout, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__SaveCheckpointReply *saved = (const Cairn__V1__SaveCheckpointReply *)reply;
    if (output_is_json(client)) {
        code = output_message(client, reply);
    } else if (printf("%llu\n", (unsigned long long)saved->step) < 0) {
        code = EXIT_INTERNAL;
    } else {
        client_note(client, "saved step %llu%s%s\n", (unsigned long long)saved->step,
                    saved->checkpoint == NULL ? "" : ": ",
                    saved->checkpoint == NULL ? "" : saved->checkpoint->path);
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}
