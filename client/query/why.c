/* why: the coordinator explains a job in plain text. debug job: it shows all that it has of it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/call.h"
#include "client/print/moment.h"
#include "client/print/output.h"
#include "client/query/commands.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "proto/text/json.h"

enum exit_code cmd_why(struct client *client)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "ExplainJob", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__ExplainJobReply *why = (const Cairn__V1__ExplainJobReply *)reply;
    if (output_is_json(client)) {
        code = output_message(client, reply);
    } else if (client->args.output == OUTPUT_NAME) {
        code = printf("%s\n", why->job == NULL ? "" : why->job->id) < 0 ? EXIT_INTERNAL
                                                                        : output_text(NULL);
    } else {
        auto_free char *text =
            moment_rewrite(why->text, moment_form_of(client), clock_wall_ms(clock_system()));
        size_t size = text == NULL ? 0 : strlen(text);
        bool ended = size > 0 && text[size - 1] == '\n';
        code = text == NULL ? EXIT_INTERNAL : output_text(text);
        if (code == EXIT_DONE && !ended)
            code = output_text("\n");
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

enum exit_code cmd_debug_job(struct client *client)
{
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = (char *)client->args.operands[0];
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "DebugJob", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__DebugJobReply *debug = (const Cairn__V1__DebugJobReply *)reply;
    const bool lines = client->args.output == OUTPUT_JSONL;
    json_t *root = json_loads(debug->json, 0, NULL);
    char *text = root == NULL ? NULL : json_dumps(root, lines ? JSON_COMPACT : JSON_INDENT(2));
    if (client->args.output == OUTPUT_NAME) {
        code = printf("%s\n", debug->id) < 0 ? EXIT_INTERNAL : output_text(NULL);
    } else if (text == NULL) {
        client_error("the coordinator's answer is no JSON: is it of another version?");
        code = EXIT_INTERNAL;
    } else {
        code = output_text(text);
        if (code == EXIT_DONE)
            code = output_text("\n");
    }
    free(text);
    json_decref(root);
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}
