/* node ls: the machines. node forget: one's certificates count no more. node check: this one's
 * devices, which the trainer measures. */
#include <stdio.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/base/trainer.h"
#include "client/cmd/commands.h"
#include "client/print/cell.h"
#include "client/print/output.h"

#define NODE(member) .offset = offsetof(Cairn__V1__Node, member)

static void node_slots(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Node *node = row;
    if (node->undying == 0) {
        (void)snprintf(out, capacity, "%u/%u", node->used, node->slots);
    } else {
        (void)snprintf(out, capacity, "%u/%u (%u undying)", node->used, node->slots, node->undying);
    }
}

static void node_gpus(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Node *node = row;
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

static void node_gpu_name(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__Node *node = row;
    (void)snprintf(out, capacity, "%s", node->n_gpus > 0 ? node->gpus[0]->name : "-");
}

static const struct column node_columns[] = {
    { "NAME", NODE(name), .cell = cell_text },
    { "STATE", NODE(state), .cell = cell_text },
    { "DEVICE", NODE(device), .cell = cell_text },
    { "USED", .cell = node_slots, .right = true },
    { "GPUS", .cell = node_gpus, .right = true },
    { "GPU", .cell = node_gpu_name, .wide = true },
    { "HOST", NODE(host), .cell = cell_text, .wide = true },
    { "VERSION", NODE(version), .cell = cell_text },
    { "REASON", NODE(reason), .cell = cell_text, .wide = true },
    { 0 },
};

static enum exit_code node_ls_once(struct client *client)
{
    Cairn__V1__ListNodesRequest request = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "ListNodes", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__ListNodesReply *list = (const Cairn__V1__ListNodesReply *)reply;
    code = output_list(client, node_columns, (ProtobufCMessage *const *)list->nodes, list->n_nodes);
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

enum exit_code cmd_node_ls(struct client *client)
{
    return interrupt_repeat(client, node_ls_once);
}

static enum exit_code change(struct client *client, const char *method,
                             const ProtobufCMessage *request)
{
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, method, request, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    code = output_list(client, node_columns, &reply, 1);
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

enum exit_code cmd_node_drain(struct client *client)
{
    Cairn__V1__DrainNodeRequest request = CAIRN__V1__DRAIN_NODE_REQUEST__INIT;
    request.node = (char *)client->args.operands[0];
    if (client->args.reason != NULL)
        request.reason = (char *)client->args.reason;
    return change(client, "DrainNode", &request.base);
}

enum exit_code cmd_node_undrain(struct client *client)
{
    Cairn__V1__UndrainNodeRequest request = CAIRN__V1__UNDRAIN_NODE_REQUEST__INIT;
    request.node = (char *)client->args.operands[0];
    return change(client, "UndrainNode", &request.base);
}

enum exit_code cmd_node_forget(struct client *client)
{
    Cairn__V1__ForgetNodeRequest request = CAIRN__V1__FORGET_NODE_REQUEST__INIT;
    request.node = (char *)client->args.operands[0];
    return change(client, "ForgetNode", &request.base);
}

enum exit_code cmd_node_check(struct client *client)
{
    char ranks[24];
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--check");
    trainer_add(&call, client->args.device == NULL ? "cpu" : client->args.device);
    if (client->args.ranks >= 0) {
        (void)snprintf(ranks, sizeof(ranks), "%lld", (long long)client->args.ranks);
        trainer_add(&call, "--ranks");
        trainer_add(&call, ranks);
    }
    if (output_is_json(client))
        trainer_add(&call, "--json");
    return trainer_become(&call);
}
