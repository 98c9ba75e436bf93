/* node invite: a file with which machines join. */
#include <string.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "common/io.h"

/* An option's number; absent is 0, which means the usual. */
static uint32_t at_most(int64_t value)
{
    if (value < 0)
        return 0;
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static bool is_format(const char *word)
{
    static const char *const formats[] = { "table", "wide", "json", "jsonl", "name", "csv" };
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        if (strcmp(formats[i], word) == 0)
            return true;
    }
    return false;
}

enum exit_code cmd_node_invite(struct client *client)
{
    const struct arguments *args = &client->args;
    if (args->to == NULL) {
        client_error("where the invite goes has to be said: --to FILE");
        return EXIT_USAGE;
    }
    if (is_format(args->to)) { /* what -o is of all other commands */
        client_error("an invite is a file, in one format; --to ./%s writes one of that name",
                     args->to);
        return EXIT_USAGE;
    }
    if (args->uses == 0 || (args->valid_ms >= 0 && args->valid_ms < 1000)) {
        client_error("an invite is for one machine and one second at least");
        return EXIT_USAGE;
    }
    Cairn__V1__InviteNodesRequest request = CAIRN__V1__INVITE_NODES_REQUEST__INIT;
    request.uses = at_most(args->uses);
    request.valid_s = at_most(args->valid_ms < 0 ? -1 : args->valid_ms / 1000);
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "InviteNodes", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__InviteNodesReply *invite = (const Cairn__V1__InviteNodesReply *)reply;
    enum status st = io_publish_private(io_system(), args->to, invite->file, strlen(invite->file));
    if (st != ST_OK) {
        client_error("%s: %s", args->to, client_file_status(st));
        code = exit_of_status(st);
    } else {
        client_note(client, "%s lets %lld in until %s; take it there over a safe way\n", args->to,
                    args->uses < 0 ? 1LL : (long long)args->uses, invite->until);
    }
    explicit_bzero(invite->file, strlen(invite->file));
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}
