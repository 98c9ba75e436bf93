/* node ls, version, completion. */
#include <stdio.h>
#include <string.h>

#include "client/base/interrupt.h"
#include "client/base/options.h"
#include "client/print/job.h"
#include "client/print/json.h"
#include "common/buf.h"

#define VERSION_MS     1000
#define COMPLETION_MAX ((size_t)256 << 10)

static const Cairn__V1__Node *as_node(const ProtobufCMessage *row)
{
    return (const Cairn__V1__Node *)row;
}

static void node_name(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_node(row)->name);
}

static void node_state(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_node(row)->state);
}

static void node_device(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_node(row)->device);
}

static void node_slots(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%u/%u", as_node(row)->used, as_node(row)->slots);
}

static void node_gpus(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Node *node = as_node(row);
    size_t bad = 0;
    for (size_t i = 0; i < node->n_gpus; i++)
        bad += node->gpus[i]->problem[0] != '\0';
    if (node->n_gpus == 0) {
        (void)snprintf(out, capacity, "-");
    } else if (bad == 0) {
        (void)snprintf(out, capacity, "%u/%zu", node->gpus_used, node->n_gpus);
    } else {
        (void)snprintf(out, capacity, "%u/%zu (%zu bad)", node->gpus_used, node->n_gpus, bad);
    }
}

static void node_gpu_name(const ProtobufCMessage *row, char *out, size_t capacity)
{
    const Cairn__V1__Node *node = as_node(row);
    (void)snprintf(out, capacity, "%s", node->n_gpus > 0 ? node->gpus[0]->name : "-");
}

static void node_host(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_node(row)->host);
}

static void node_version(const ProtobufCMessage *row, char *out, size_t capacity)
{
    (void)snprintf(out, capacity, "%s", as_node(row)->version);
}

static const struct listing node_listing = {
    .columns =
        (const struct column[]){
            { "NAME", .cell = node_name },
            { "STATE", .cell = node_state },
            { "DEVICE", .cell = node_device },
            { "USED", .cell = node_slots, .right = true },
            { "GPUS", .cell = node_gpus, .right = true },
            { "GPU", .cell = node_gpu_name, .wide = true },
            { "HOST", .cell = node_host, .wide = true },
            { "VERSION", .cell = node_version },
            { 0 },
        },
    .name = node_name,
};

static enum exit_code node_ls_once(struct client *client)
{
    Cairn__V1__ListNodesRequest request = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "ListNodes", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__ListNodesReply *list = (const Cairn__V1__ListNodesReply *)reply;
    code =
        output_list(client, &node_listing, (ProtobufCMessage *const *)list->nodes, list->n_nodes);
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

enum exit_code cmd_node_ls(struct client *client)
{
    return repeat(client, node_ls_once);
}

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
            (void)printf("coordinator %s (pid %u, %u agents) at %s\n", version->version,
                         version->pid, version->agents, client->target);
        }
        exit_code = output_text(NULL);
    }
    if (reply != NULL)
        protobuf_c_message_free_unpacked(reply, NULL);
    return exit_code;
}

enum exit_code cmd_completion(struct client *client)
{
    auto_buf struct buf script;
    buf_init(&script, COMPLETION_MAX);
    enum status st = completion_script(client->args.words[0], &script);
    if (st == ST_OK)
        return output_text(script.data);
    client_error("completion is for bash, zsh or fish, not '%s'", client->args.words[0]);
    return EXIT_USAGE;
}
