/* logs: what the workers of a job wrote, one line each, and with -f what comes. */
#include <stdio.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/look/commands.h"
#include "client/print/job.h"
#include "client/print/json.h"

#define RECEIVE_MS 100

/* The line as the workers' own JSON object (common/log.h); NULL: it is something else. */
static json_t *read_entry(const Cairn__V1__LogLine *line)
{
    json_t *entry = line->line[0] == '{' ? json_loads(line->line, 0, NULL) : NULL;
    if (json_is_string(json_object_get(entry, "msg")) &&
        json_is_string(json_object_get(entry, "ts")))
        return entry;
    json_decref(entry);
    return NULL;
}

/* One line of JSON; `entry` is what `line` says, if that is an object. Takes the entry over. */
static enum exit_code print_json(const Cairn__V1__LogLine *line, json_t *entry)
{
    json_t *object = json_from_message(&line->base);
    if (entry != NULL)
        (void)json_object_set_new(object, "entry", entry);
    enum status st = json_write(object, true);
    json_decref(object);
    return st == ST_OK ? EXIT_DONE : EXIT_INTERNAL;
}

/* "17:40:55.065  training from step 0"; what is no news of everyday has its level before it. */
static int print_entry(const json_t *entry)
{
    const char *time = json_string_value(json_object_get(entry, "ts"));
    const char *level = json_string_value(json_object_get(entry, "level"));
    const char *hours = strchr(time, 'T');
    bool shown = level != NULL && strcmp(level, "info") != 0;
    return printf("%.12s  %s%s%s\n", hours == NULL ? time : hours + 1, shown ? level : "",
                  shown ? ": " : "", json_string_value(json_object_get(entry, "msg")));
}

static enum exit_code print_line(const struct client *client, const Cairn__V1__LogLine *line)
{
    json_t *entry = read_entry(line);
    if (output_is_json(client))
        return print_json(line, entry);
    if (entry != NULL) {
        bool failed = client->args.rank < 0 && printf("r%u  ", line->rank) < 0;
        failed |= print_entry(entry) < 0;
        json_decref(entry);
        return failed ? EXIT_INTERNAL : EXIT_DONE;
    }
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
