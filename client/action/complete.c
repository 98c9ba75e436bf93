/*
 * complete: what a word on the command line may become, one candidate a line; the scripts of
 * `cairn completion` ask for it when TAB is pressed. Whatever goes wrong is no candidate, and said
 * nowhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/context/contexts.h"
#include "client/print/output.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "webhook/config.h"

#define ASK_MS    1000 /* a finger waits */
#define JOBS_MAX  500  /* the newest */
#define CKPTS_MAX 200
#define TEXT_MAX  ((size_t)1 << 20)

static bool was_named(const Cairn__V1__ListJobsReply *list, size_t end)
{
    for (size_t i = 0; i < end; i++) {
        if (strcmp(list->jobs[i]->name, list->jobs[end]->name) == 0)
            return true;
    }
    return false;
}

/* Names, each once, then ids. */
static enum status put_jobs(struct client *client, struct buf *out)
{
    Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.page_size = JOBS_MAX;
    if (client_try(client, "ListJobs", &request.base, ASK_MS, &reply) != RPC_OK)
        return ST_OK;
    const Cairn__V1__ListJobsReply *list = (const Cairn__V1__ListJobsReply *)reply;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < list->n_jobs; i++) {
        if (!was_named(list, i))
            st = buf_printf(out, "%s\n", list->jobs[i]->name);
    }
    for (size_t i = 0; st == ST_OK && i < list->n_jobs; i++)
        st = buf_printf(out, "%s\n", list->jobs[i]->id);
    protobuf_c_message_free_unpacked(reply, NULL);
    return st;
}

static enum status put_nodes(struct client *client, struct buf *out)
{
    Cairn__V1__ListNodesRequest request = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    if (client_try(client, "ListNodes", &request.base, ASK_MS, &reply) != RPC_OK)
        return ST_OK;
    const Cairn__V1__ListNodesReply *list = (const Cairn__V1__ListNodesReply *)reply;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < list->n_nodes; i++)
        st = buf_printf(out, "%s\n", list->nodes[i]->name);
    protobuf_c_message_free_unpacked(reply, NULL);
    return st;
}

static enum status put_contexts(struct buf *out)
{
    char path[LIMIT_PATH];
    struct contexts *contexts = NULL;
    struct reason reason;
    enum status st = contexts_path(path);
    if (st == ST_OK)
        st = contexts_read(path, &contexts, &reason);
    for (size_t i = 0; st == ST_OK && i < contexts_count(contexts); i++) {
        struct context context = { .name = "" };
        contexts_at(contexts, i, &context);
        st = buf_printf(out, "%s\n", context.name);
    }
    contexts_free(contexts);
    return st;
}

static enum status put_webhooks(const struct client *client, struct buf *out)
{
    char path[LIMIT_PATH];
    auto_buf struct buf mistakes;
    auto_free struct webhook_config *config = NULL;
    buf_init(&mistakes, TEXT_MAX);
    enum status st = paths_join(&client->paths, path, sizeof(path), WEBHOOK_FILE);
    if (st == ST_OK)
        st = webhook_config_read(path, &config, &mistakes);
    for (size_t i = 0; st == ST_OK && i < config->count; i++)
        st = buf_printf(out, "%s\n", config->hooks[i].name);
    return st;
}

/* Puts the checkpoints of a job that is written out: JOB@STEP, the newest first. */
static enum status put_steps(struct client *client, const char *job, struct buf *out)
{
    Cairn__V1__ListCheckpointsRequest request = CAIRN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    request.job = (char *)job;
    request.page_size = CKPTS_MAX;
    if (client_try(client, "ListCheckpoints", &request.base, ASK_MS, &reply) != RPC_OK)
        return ST_OK;
    const Cairn__V1__ListCheckpointsReply *list = (const Cairn__V1__ListCheckpointsReply *)reply;
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < list->n_checkpoints; i++) {
        st = buf_printf(out, "%s@%llu\n", job, (unsigned long long)list->checkpoints[i]->step);
    }
    if (st == ST_OK && list->n_checkpoints > 0)
        st = buf_printf(out, "%s@all\n", job);
    protobuf_c_message_free_unpacked(reply, NULL);
    return st;
}

static enum status put_checkpoints(struct client *client, const char *word, struct buf *out)
{
    char job[LIMIT_NAME + 64];
    const size_t size = strcspn(word, "@");
    if (word[size] == '\0')
        return put_jobs(client, out);
    if (size >= sizeof(job) || memchr(word, '/', size) != NULL)
        return ST_OK;
    memcpy(job, word, size);
    job[size] = '\0';
    return put_steps(client, job, out);
}

/* Names come from elsewhere, and a shell gets them: only what a name may be, and JOB@STEP. */
static void drop_odd_lines(struct buf *out)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-";
    char *to = out->data;
    for (const char *from = out->data; *from != '\0';) {
        const size_t size = strcspn(from, "\n") + 1; /* each line has its end */
        if (from[0] != '-' && strspn(from, plain) + 1 == size) {
            memmove(to, from, size);
            to += size;
        }
        from += size;
    }
    *to = '\0';
    out->size = (size_t)(to - out->data);
}

enum exit_code cmd_complete(struct client *client)
{
    const char *kind = client->args.operands[0];
    const char *word = client->args.operand_count > 1 ? client->args.operands[1] : "";
    auto_buf struct buf out;
    buf_init(&out, TEXT_MAX);
    enum status st = ST_NOT_FOUND;
    if (strcmp(kind, "jobs") == 0)
        st = put_jobs(client, &out);
    if (strcmp(kind, "nodes") == 0)
        st = put_nodes(client, &out);
    if (strcmp(kind, "webhooks") == 0)
        st = put_webhooks(client, &out);
    if (strcmp(kind, "contexts") == 0)
        st = put_contexts(&out);
    if (strcmp(kind, "checkpoints") == 0)
        st = put_checkpoints(client, word, &out);
    if (st == ST_OK && out.size > 0)
        drop_odd_lines(&out);
    return st == ST_OK && out.size > 0 ? output_text(out.data) : EXIT_DONE;
}
