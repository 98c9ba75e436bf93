/* submit: reads and checks a job file, sends it, and with --watch or --wait follows the job. */
#include <stdio.h>
#include <stdlib.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/preflight/capacity.h"
#include "client/preflight/files.h"
#include "client/preflight/inputs.h"
#include "client/preflight/job_file.h"
#include "client/print/job.h"
#include "client/query/watch.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "jobspec/jobspec.h"

#define ERRORS_MAX ((size_t)1024 << 10)

/* Parses here first: mistakes are shown before anything is sent. */
static enum exit_code check_job(struct client *client, const struct job_file *file)
{
    struct there there;
    auto_buf struct buf errors;
    buf_init(&errors, ERRORS_MAX);
    auto_free struct jobspec *job = malloc(sizeof(*job));
    if (job == NULL)
        return EXIT_INTERNAL;
    preflight_find(client, &there);
    const struct jobspec_look look = preflight_look(&there);
    const struct jobspec_origin origin = { .file_name = file->name,
                                           .base_dir = file->base_dir,
                                           .look = &look };
    enum status st = jobspec_parse_within(&origin, file->text, file->size, client->args.sets,
                                          client->args.set_count, job, &errors);
    char why[LIMIT_REASON] = "";
    if (st == ST_OK && there.data && !jobspec_is_command(job) && !inputs_fit(job, why)) {
        client_error("%s; nothing was submitted", why);
        return EXIT_USAGE;
    }
    if (st == ST_OK) {
        capacity_warn(client, job, there.store_free);
        return EXIT_DONE;
    }
    if (errors.size > 0)
        (void)fputs(errors.data, stderr);
    client_error("%s: %s; nothing was submitted", file->name,
                 st == ST_CONFIG ? "the job file has mistakes" : status_string(st));
    return st == ST_CONFIG ? EXIT_USAGE : exit_of_status(st);
}

static enum exit_code send_job(struct client *client, const struct job_file *file,
                               Cairn__V1__SubmitJobReply **out)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__SubmitJobRequest request = CAIRN__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_file = file->text;
    request.base_dir = (char *)file->base_dir;
    request.n_set = client->args.set_count;
    request.set = (char **)client->args.sets;
    request.idempotency_key = key;
    request.file_name = (char *)file->name;
    ProtobufCMessage *reply = NULL;
    enum exit_code code = client_call(client, "SubmitJob", &request.base, 0, &reply);
    if (code != EXIT_DONE)
        return code;
    *out = (Cairn__V1__SubmitJobReply *)reply;
    if ((*out)->job != NULL)
        return EXIT_DONE;
    client_error("the coordinator's answer names no job");
    protobuf_c_message_free_unpacked(reply, NULL);
    return EXIT_INTERNAL;
}

static enum exit_code announce(const struct client *client, const Cairn__V1__Job *job)
{
    if (client->args.output == OUTPUT_NAME || client->args.quiet)
        return printf("%s\n", job->id) < 0 ? EXIT_INTERNAL : output_text(NULL);
    if (output_is_json(client))
        return client->args.wait || client->args.watch ? EXIT_DONE : job_show(client, job);
    if (printf("%s %s\n", job->id, job->name) < 0)
        return EXIT_INTERNAL;
    if (job->state == CAIRN__V1__JOB_STATE__QUEUED && job->reason[0] != '\0')
        client_note(client, "queued: %s\n", job->reason);
    if (!client->args.wait && !client->args.watch) {
        client_note(client, "next:  cairn watch %s    cairn logs -f %s    cairn stop %s\n",
                    job->name, job->name, job->name);
    }
    return output_text(NULL);
}

static enum exit_code submit_job(struct client *client, const struct job_file *file)
{
    Cairn__V1__SubmitJobReply *reply = NULL;
    enum exit_code code = check_job(client, file);
    if (code == EXIT_DONE)
        code = send_job(client, file, &reply);
    if (code != EXIT_DONE)
        return code;
    code = announce(client, reply->job);
    if (code == EXIT_DONE && (client->args.wait || client->args.watch)) {
        Cairn__V1__Job *last = NULL;
        bool shown = client->args.watch && client->args.output != OUTPUT_NAME;
        code = watch_job(client, reply->job->id, shown ? WATCH_SHOWN : WATCH_SILENT, &last);
        if (last != NULL && output_is_json(client) && !shown && job_is_over(last->state)) {
            enum exit_code printed = job_show(client, last);
            code = printed == EXIT_DONE ? code : printed;
        }
        cairn__v1__job__free_unpacked(last, NULL);
    }
    cairn__v1__submit_job_reply__free_unpacked(reply, NULL);
    return code;
}

enum exit_code cmd_submit(struct client *client)
{
    if ((client->args.wait || client->args.watch) && !interrupt_catch(client))
        return EXIT_INTERNAL;
    struct job_file *file = malloc(sizeof(*file));
    if (file == NULL)
        return EXIT_INTERNAL;
    enum exit_code code = job_file_read(client->args.operands[0], file);
    if (code == EXIT_DONE)
        code = submit_job(client, file);
    free(file->text);
    free(file);
    return code;
}
