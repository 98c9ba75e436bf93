/* version: of this program, and of the coordinator if one answers. */
#include <stdio.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/print/output.h"
#include "proto/text/json.h"

#define VERSION_MS 1000

enum exit_code cmd_version(struct client *client)
{
    Cairn__V1__GetVersionRequest request = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    enum rpc_code code = client_try(client, "GetVersion", &request.base, VERSION_MS, &reply);
    const Cairn__V1__GetVersionReply *version =
        code == RPC_OK ? (const Cairn__V1__GetVersionReply *)reply : NULL;
    enum exit_code exit_code = EXIT_DONE;
    if (output_is_json(client)) {
        exit_code = output_json(
            client, json_pack("{s:s, s:o}", "version", CAIRN_VERSION, "coordinator",
                              version == NULL ? json_null() : json_from_message(reply)));
    } else {
        (void)printf("cairn %s\n", CAIRN_VERSION);
        if (version != NULL) {
            (void)printf("coordinator %s (pid %u, %u agent%s) at %s\n", version->version,
                         version->pid, version->agents, version->agents == 1 ? "" : "s",
                         client->address);
        }
        exit_code = output_text(NULL);
    }
    if (reply != NULL)
        protobuf_c_message_free_unpacked(reply, NULL);
    return exit_code;
}
