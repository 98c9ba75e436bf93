/* logs: what the workers of a job wrote, one line each, and with -f what comes. */
#include <stdio.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/cmd/commands.h"
#include "client/print/job.h"
#include "client/print/json.h"

#define RECEIVE_MS 100

static enum exit_code print_line(const struct client *client, const Cairn__V1__LogLine *line)
{
    if (output_is_json(client))
        return json_write_message(&line->base) == ST_OK ? EXIT_DONE : EXIT_INTERNAL;
    size_t size = strlen(line->line);
    const char *end = size > 0 && line->line[size - 1] == '\n' ? "" : "\n";
    int printed = client->args.rank >= 0 ? printf("%s%s", line->line, end)
                                         : printf("r%u  %s%s", line->rank, line->line, end);
    return printed < 0 ? EXIT_INTERNAL : EXIT_DONE;
}

static enum exit_code print_stream(struct client *client, struct rpc_stream *stream)
{
    enum exit_code code = EXIT_DONE;
    enum status st = ST_OK;
    struct rpc_result result = { .code = RPC_OK };
    while (code == EXIT_DONE && st != ST_CLOSED) {
        ProtobufCMessage *message = NULL;
        st = rpc_stream_recv(stream, RECEIVE_MS, &message);
        if (st == ST_OK) {
            code = print_line(client, (const Cairn__V1__LogLine *)message);
        } else if (fflush(stdout) != 0) {
            code = EXIT_INTERNAL;
        }
        if (message != NULL)
            protobuf_c_message_free_unpacked(message, NULL);
        if (code == EXIT_DONE && interrupt_came(client))
            code = EXIT_DETACHED;
    }
    rpc_stream_close(stream, &result);
    (void)fflush(stdout);
    if (code == EXIT_DONE && result.code != RPC_OK)
        return client_report(client, &result);
    return code;
}

enum exit_code cmd_logs(struct client *client)
{
    if (!interrupt_catch(client))
        return EXIT_INTERNAL;
    Cairn__V1__StreamLogsRequest request = CAIRN__V1__STREAM_LOGS_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    request.follow = client->args.follow;
    if (client->args.rank >= 0) {
        request.rank__case = CAIRN__V1__STREAM_LOGS_REQUEST__RANK__RANK;
        request.rank = (uint32_t)client->args.rank;
    }
    if (client->args.attempt >= 0) {
        request.attempt__case = CAIRN__V1__STREAM_LOGS_REQUEST__ATTEMPT__ATTEMPT;
        request.attempt = (uint32_t)client->args.attempt;
    }
    struct rpc_stream *stream = NULL;
    struct rpc_result result;
    if (client_stream(client, "StreamLogs", &request.base, 0, &stream, &result) != RPC_OK)
        return client_report(client, &result);
    return print_stream(client, stream);
}
