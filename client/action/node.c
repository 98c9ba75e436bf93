/* node ls: the machines. node forget: one's certificates count no more. node check: this one's
 * devices, which the trainer measures; or the paths between all, which their agents try. */
#include "client/print/node.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/base/trainer.h"
#include "client/print/cell.h"
#include "client/print/columns.h"
#include "client/print/output.h"
#include "client/print/usage.h"

static enum exit_code node_ls_once(struct client *client)
{
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    const struct column *columns = node_columns;
    struct order order;
    enum exit_code said = columns_of_call(client, &columns, chosen, &order);
    if (said != EXIT_DONE)
        return said;
    Cairn__V1__ListNodesRequest request = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "ListNodes", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    const Cairn__V1__ListNodesReply *list = (const Cairn__V1__ListNodesReply *)reply;
    ProtobufCMessage **rows = (ProtobufCMessage **)list->nodes;
    if (columns_sort(&order, rows, list->n_nodes) == ST_OK) {
        code = output_list(client, columns, rows, list->n_nodes);
    } else {
        client_error("%s", status_string(ST_NO_MEMORY));
        code = EXIT_INTERNAL;
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

enum exit_code cmd_node_ls(struct client *client)
{
    return columns_asked(client) ? columns_help(node_columns)
                                 : interrupt_repeat(client, node_ls_once);
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
    if (client->args.deadline_ms == 0) {
        client_error("--deadline needs a time above 0");
        return EXIT_USAGE;
    }
    if (client->args.deadline_ms > 0)
        request.deadline_ms = (uint64_t)client->args.deadline_ms;
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

/* ---- node check --pairs ---- */

#define RECEIVE_MS 100
#define NODES_MAX  128 /* that can be named in one call */

#define PATH(member) .offset = offsetof(Cairn__V1__PathCheck, member)

static void path_result(const void *row, char *out, size_t capacity)
{
    const Cairn__V1__PathCheck *path = row;
    (void)snprintf(out, capacity, "%s", path->ok ? "ok" : "FAILED");
}

static void path_reach(const void *ms, char *out, size_t capacity)
{
    const double value = *(const double *)ms;
    (void)snprintf(out, capacity, isnan(value) ? "-" : "%.2f ms", value);
}

static void path_rate(const void *rate, char *out, size_t capacity)
{
    const double value = *(const double *)rate;
    (void)snprintf(out, capacity, isnan(value) ? "-" : "%.1f MB/s", value);
}

static const struct column path_columns[] = {
    { "FROM", PATH(from), .cell = cell_text },
    { "TO", PATH(to), .cell = cell_text },
    { "RESULT", .cell = path_result },
    { "REACH", PATH(reach_ms), .cell = path_reach, .right = true },
    { "BANDWIDTH", PATH(megabytes_per_s), .cell = path_rate, .right = true },
    { "SAW", PATH(saw), .cell = cell_text, .wide = true },
    { 0 },
};

/* The updates, with what they hold. */
struct path_list {
    ProtobufCMessage **updates, **rows;
    size_t update_count, row_count, capacity; /* capacity: of both */
};

static void path_list_free(struct path_list *list)
{
    for (size_t i = 0; i < list->update_count; i++)
        protobuf_c_message_free_unpacked(list->updates[i], NULL);
    free(list->updates);
    free(list->rows);
}

static bool path_list_grow(struct path_list *list, size_t capacity)
{
    ProtobufCMessage **updates = realloc(list->updates, capacity * sizeof(void *));
    if (updates == NULL)
        return false;
    list->updates = updates;
    ProtobufCMessage **rows = realloc(list->rows, capacity * sizeof(void *));
    if (rows == NULL)
        return false;
    list->rows = rows;
    list->capacity = capacity;
    return true;
}

/* Takes the message over. false: no memory. */
static bool path_list_add(struct path_list *list, ProtobufCMessage *message)
{
    const Cairn__V1__CheckPathsUpdate *update = (const Cairn__V1__CheckPathsUpdate *)message;
    const size_t needed = list->row_count + list->update_count + update->n_paths + 1;
    const bool full = list->updates == NULL || list->rows == NULL || needed > list->capacity;
    if (full && !path_list_grow(list, 2 * needed)) {
        protobuf_c_message_free_unpacked(message, NULL);
        return false;
    }
    list->updates[list->update_count++] = message;
    for (size_t i = 0; i < update->n_paths; i++)
        list->rows[list->row_count++] = &update->paths[i]->base;
    return true;
}

static void note_summary(const struct client *client, const Cairn__V1__CheckPathsUpdate *update)
{
    client_note(client, "%u pair%s of %u nodes%s\n", update->pairs, update->pairs == 1 ? "" : "s",
                update->nodes,
                update->ring ? ", each with the next one only (--all: every pair)" : "");
    for (size_t i = 0; i < update->n_left_out; i++)
        client_note(client, "not tried: %s\n", update->left_out[i]);
}

static enum exit_code read_paths(struct client *client, struct rpc_stream *stream,
                                 struct path_list *list)
{
    enum exit_code code = EXIT_DONE;
    enum status st = ST_OK;
    struct rpc_result result = { .code = RPC_OK };
    while (code == EXIT_DONE && st != ST_CLOSED) {
        ProtobufCMessage *message = NULL;
        st = client_recv(client, stream, RECEIVE_MS, &message);
        if (message != NULL && list->update_count == 0)
            note_summary(client, (const Cairn__V1__CheckPathsUpdate *)message);
        if (message != NULL && !path_list_add(list, message))
            code = EXIT_INTERNAL;
        if (code == EXIT_DONE && interrupt_came(client))
            code = EXIT_DETACHED;
    }
    rpc_stream_close(stream, &result);
    return code == EXIT_DONE && result.code != RPC_OK ? client_report(client, &result) : code;
}

static enum exit_code print_paths(const struct client *client, const struct path_list *list)
{
    size_t failed = 0;
    const enum exit_code code = output_list(client, path_columns, list->rows, list->row_count);
    for (size_t i = 0; i < list->row_count; i++) {
        const Cairn__V1__PathCheck *path = (const Cairn__V1__PathCheck *)list->rows[i];
        failed += !path->ok;
        if (!path->ok)
            client_error("%s to %s: %s; %s", path->from, path->to, path->saw, path->way_out);
    }
    return code == EXIT_DONE && failed > 0 ? EXIT_REFUSED : code;
}

/* The operands, which may be lists themselves; cuts them up. false: too many. */
static bool list_operands(const struct client *client, char **names, size_t *count)
{
    for (size_t i = 0; i < client->args.operand_count; i++) {
        char *rest = NULL;
        for (char *name = strtok_r((char *)client->args.operands[i], ",", &rest); name != NULL;
             name = strtok_r(NULL, ",", &rest)) {
            if (*count == NODES_MAX)
                return false;
            names[(*count)++] = name;
        }
    }
    return true;
}

static enum exit_code check_pairs(struct client *client)
{
    char *names[NODES_MAX];
    struct path_list list = { .update_count = 0 };
    Cairn__V1__CheckPathsRequest request = CAIRN__V1__CHECK_PATHS_REQUEST__INIT;
    request.nodes = names;
    request.all = client->args.all;
    if (!list_operands(client, names, &request.n_nodes)) {
        client_error("%d nodes can be named at most", NODES_MAX);
        return EXIT_USAGE;
    }
    if (!interrupt_catch(client))
        return EXIT_INTERNAL;
    struct rpc_stream *stream = NULL;
    struct rpc_result result;
    if (client_stream(client, "CheckPaths", &request.base, 0, &stream, &result) != RPC_OK)
        return client_report(client, &result);
    enum exit_code code = read_paths(client, stream, &list);
    if (code == EXIT_DONE)
        code = print_paths(client, &list);
    path_list_free(&list);
    return code;
}

enum exit_code cmd_node_check(struct client *client)
{
    if (client->args.pairs)
        return check_pairs(client);
    if (client->args.operand_count > 0 || client->args.all) {
        client_error("nodes and --all belong to --pairs: cairn node check --pairs [NODE...]");
        return EXIT_USAGE;
    }
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
