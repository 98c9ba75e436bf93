/* down: saves the jobs, then ends every process of the home. */
#include <stdlib.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/home/home.h"
#include "client/home/supervisor.h"
#include "common/cleanup.h"

#define PROBE_MS 1000

static void save_jobs(struct client *client, int64_t grace_ms)
{
    Cairn__V1__DrainRequest request = CAIRN__V1__DRAIN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    uint32_t agents = 0;
    request.timeout_ms = (uint32_t)grace_ms;
    if (home_supervisor(&client->paths) != 0) /* it may be just starting one */
        (void)client_probe(client, 2 * PROBE_MS, &agents);
    enum rpc_code code =
        client_try(client, "Drain", &request.base, (int32_t)grace_ms + PROBE_MS, &reply);
    if (code != RPC_OK) {
        client_note(client,
                    "the coordinator did not save the jobs (%s); they go on from their last "
                    "checkpoint\n",
                    rpc_code_name(code));
        return;
    }
    const Cairn__V1__DrainReply *drained = (const Cairn__V1__DrainReply *)reply;
    if (drained->saved > 0 || drained->ended > 0) {
        client_note(client, "saved %u job%s, ended %u worker%s\n", drained->saved,
                    drained->saved == 1 ? "" : "s", drained->ended, drained->ended == 1 ? "" : "s");
    }
    protobuf_c_message_free_unpacked(reply, NULL);
}

enum exit_code cmd_down(struct client *client)
{
    int64_t grace_ms = 0;
    enum exit_code code = client_needs_home(client);
    if (code == EXIT_DONE)
        code = supervisor_grace(&client->args, &grace_ms);
    if (code != EXIT_DONE)
        return code;
    unsigned all = HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER | HOME_TRAINER | HOME_SUPERVISOR;
    auto_free pid_t *pids = malloc(HOME_PIDS_MAX * sizeof(*pids));
    if (pids == NULL)
        return EXIT_INTERNAL;
    if (!home_is_ours(&client->paths, false))
        return EXIT_REFUSED;
    bool runs = home_processes(&client->paths, all, pids, HOME_PIDS_MAX) > 0;
    if (!runs && home_supervisor(&client->paths) == 0) {
        client_note(client, "nothing runs in %s\n", client->paths.home);
        return EXIT_DONE;
    }
    save_jobs(client, grace_ms);
    supervisor_end(&client->paths);
    if (!home_end(&client->paths, all, 1000)) {
        client_error("some processes of %s could not be ended", client->paths.home);
        return EXIT_INTERNAL;
    }
    client_note(client, "down\n");
    return EXIT_DONE;
}
