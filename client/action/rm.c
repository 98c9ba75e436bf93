/* rm: jobs that have ended are forgotten, with --checkpoints after what is in their stores. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/print/format.h"
#include "client/print/job.h"
#include "common/clock.h"

#define POLL_MS 200
#define PAGE    1000

/* ---- checkpoints ---- */

static enum exit_code list_ckpts(struct client *client, const char *job,
                                 Cairn__V1__ListCheckpointsReply **out)
{
    Cairn__V1__ListCheckpointsRequest request = CAIRN__V1__LIST_CHECKPOINTS_REQUEST__INIT;
    request.job = (char *)job;
    request.page_size = PAGE;
    ProtobufCMessage *reply = NULL;
    const enum exit_code code = client_call(client, "ListCheckpoints", &request.base, 0, &reply);
    *out = (Cairn__V1__ListCheckpointsReply *)reply;
    return code;
}

static enum exit_code remove_ckpt(struct client *client, const char *job, uint64_t step)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__RemoveCheckpointRequest request = CAIRN__V1__REMOVE_CHECKPOINT_REQUEST__INIT;
    request.job = (char *)job;
    request.step = step;
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    const enum exit_code code = client_call(client, "RemoveCheckpoint", &request.base, 0, &reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    return code;
}

/* The newest first, as it may hold differences to an older one; the store is waited for. */
static enum exit_code remove_ckpts(struct client *client, const char *job)
{
    const struct clock *clock = clock_system();
    const int64_t until = clock_mono_ms(clock) + client->args.timeout_ms;
    for (;;) {
        Cairn__V1__ListCheckpointsReply *left = NULL;
        enum exit_code code = list_ckpts(client, job, &left);
        const size_t count = code == EXIT_DONE ? left->n_checkpoints : 0;
        for (size_t i = 0; code == EXIT_DONE && i < count; i++) {
            if (strcmp(left->checkpoints[i]->status, "removing") != 0)
                code = remove_ckpt(client, job, left->checkpoints[i]->step);
        }
        cairn__v1__list_checkpoints_reply__free_unpacked(left, NULL);
        if (code != EXIT_DONE || count == 0)
            return code;
        if (client->args.timeout_ms >= 0 && clock_mono_ms(clock) >= until) {
            client_error("%zu checkpoints of %s are still being removed", count, job);
            return EXIT_TIMED_OUT;
        }
        if (!interrupt_wait(client, POLL_MS))
            return EXIT_DETACHED;
    }
}

/* ---- jobs ---- */

static enum exit_code say_removed(const struct client *client, const Cairn__V1__Job *job)
{
    if (client->args.output != OUTPUT_TABLE)
        return job_show(client, job);
    const bool stay = !client->args.checkpoints && job->n_checkpoints > 0;
    client_note(client, "removed %s (%s)%s%s\n", job->name, job->id,
                stay ? ": its checkpoints stay in " : "", stay ? job->store : "");
    return EXIT_DONE;
}

static enum exit_code remove_one(struct client *client, const char *name)
{
    Cairn__V1__Job *job = NULL;
    enum exit_code code = EXIT_DONE;
    if (client->args.checkpoints) {
        code = client_get_job(client, name, &job);
        if (code == EXIT_DONE && !job_is_over(job->state)) {
            client_error("%s (%s) is %s: 'cairn kill' ends it", job->name, job->id,
                         job_state_name(job->state));
            code = EXIT_REFUSED;
        }
        if (code == EXIT_DONE)
            code = remove_ckpts(client, job->id);
    }
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__JobRequest request = CAIRN__V1__JOB_REQUEST__INIT;
    request.job = job != NULL ? job->id : (char *)name;
    request.idempotency_key = key;
    ProtobufCMessage *reply = NULL;
    if (code == EXIT_DONE)
        code = client_call(client, "RemoveJob", &request.base, 0, &reply);
    if (code == EXIT_DONE)
        code = say_removed(client, (const Cairn__V1__Job *)reply);
    protobuf_c_message_free_unpacked(reply, NULL);
    cairn__v1__job__free_unpacked(job, NULL);
    return code;
}

/* ---- those that ended ---- */

struct ids {
    char (*list)[32];
    size_t count;
};

static bool is_wanted(const struct client *client, const Cairn__V1__Job *job, int64_t now_ms)
{
    int64_t ended_ms = 0;
    if (!job_is_over(job->state) || strlen(job->id) >= 32)
        return false;
    if (client->args.older_ms < 0)
        return true;
    return format_read_time(job->ended_at, &ended_ms) && now_ms - ended_ms >= client->args.older_ms;
}

static bool add_page(const struct client *client, struct ids *ids,
                     const Cairn__V1__ListJobsReply *page, int64_t now_ms)
{
    char(*more)[32] = realloc(ids->list, (ids->count + page->n_jobs + 1) * sizeof(*more));
    if (more == NULL)
        return false;
    ids->list = more;
    for (size_t i = 0; i < page->n_jobs; i++) {
        if (is_wanted(client, page->jobs[i], now_ms))
            (void)snprintf(ids->list[ids->count++], sizeof(*more), "%s", page->jobs[i]->id);
    }
    return true;
}

static enum exit_code list_ended(struct client *client, struct ids *ids)
{
    char token[LIMIT_NAME] = "";
    const int64_t now_ms = clock_wall_ms(clock_system());
    do {
        Cairn__V1__ListJobsRequest request = CAIRN__V1__LIST_JOBS_REQUEST__INIT;
        request.page_size = PAGE;
        request.page_token = token;
        ProtobufCMessage *reply = NULL;
        const enum exit_code code = client_call(client, "ListJobs", &request.base, 0, &reply);
        if (code != EXIT_DONE)
            return code;
        const Cairn__V1__ListJobsReply *page = (const Cairn__V1__ListJobsReply *)reply;
        const bool added = add_page(client, ids, page, now_ms);
        (void)snprintf(token, sizeof(token), "%s", page->next_page_token);
        protobuf_c_message_free_unpacked(reply, NULL);
        if (!added) {
            client_error("out of memory");
            return EXIT_INTERNAL;
        }
    } while (token[0] != '\0');
    return EXIT_DONE;
}

enum exit_code cmd_rm(struct client *client)
{
    const struct arguments *args = &client->args;
    const bool many = args->all_ended || args->older_ms >= 0;
    if (many == (args->operand_count > 0)) {
        client_error("name jobs, or say --all-ended or --older-than TIME");
        return EXIT_USAGE;
    }
    if (args->checkpoints && !interrupt_catch(client))
        return EXIT_INTERNAL;
    enum exit_code code = EXIT_DONE;
    for (size_t i = 0; code == EXIT_DONE && i < args->operand_count; i++)
        code = remove_one(client, args->operands[i]);
    struct ids ids = { NULL, 0 };
    if (many)
        code = list_ended(client, &ids);
    for (size_t i = 0; code == EXIT_DONE && i < ids.count; i++)
        code = remove_one(client, ids.list[i]);
    free(ids.list);
    return code;
}
