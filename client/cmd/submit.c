/* submit: reads and checks a job file, sends it, and with --watch or --wait follows the job. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ask/call.h"
#include "client/base/interrupt.h"
#include "client/cmd/commands.h"
#include "client/look/watch.h"
#include "client/print/job.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "job/job.h"

#define FILE_BYTES_MAX ((size_t)LIMIT_JOB_FILE_BYTES)
#define ERRORS_MAX     ((size_t)1024 << 10)

/* What is submitted. */
struct submission {
    const char *name; /* of the file, as given */
    char *text;
    size_t size;
    char base_dir[PATH_MAX]; /* where relative paths start: the file's folder */
};

static enum exit_code read_input(struct submission *out)
{
    auto_buf struct buf text;
    buf_init(&text, FILE_BYTES_MAX);
    char piece[4096];
    size_t size;
    while ((size = fread(piece, 1, sizeof(piece), stdin)) > 0) {
        if (buf_append(&text, piece, size) != ST_OK) {
            client_error("-: a job file has at most %d bytes", LIMIT_JOB_FILE_BYTES);
            return EXIT_USAGE;
        }
    }
    if (buf_append_text(&text, "") != ST_OK || getcwd(out->base_dir, sizeof(out->base_dir)) == NULL)
        return EXIT_INTERNAL;
    out->text = buf_take(&text, &out->size);
    return EXIT_DONE;
}

static enum exit_code read_job_file(const char *name, struct submission *out)
{
    *out = (struct submission){ .name = name };
    if (strcmp(name, "-") == 0)
        return read_input(out);
    char path[PATH_MAX];
    if (realpath(name, path) == NULL) {
        client_error("%s: %s", name, strerror(errno));
        return EXIT_USAGE;
    }
    enum status st = io_read_file(io_system(), path, FILE_BYTES_MAX, &out->text, &out->size);
    if (st != ST_OK) {
        client_error("%s: %s", name,
                     st == ST_FULL ? "too large for a job file" : status_string(st));
        return EXIT_USAGE;
    }
    char *slash = strrchr(path, '/');
    *(slash == path ? slash + 1 : slash) = '\0';
    (void)snprintf(out->base_dir, sizeof(out->base_dir), "%s", path);
    return EXIT_DONE;
}

/* Parses here first: mistakes are shown before anything is sent. */
static enum exit_code check_job(const struct client *client, const struct submission *submission)
{
    auto_buf struct buf errors;
    buf_init(&errors, ERRORS_MAX);
    auto_free struct job *job = malloc(sizeof(*job));
    if (job == NULL)
        return EXIT_INTERNAL;
    enum status st =
        job_parse(submission->text, submission->size, submission->name, submission->base_dir,
                  client->args.sets, client->args.set_count, job, &errors);
    if (st == ST_OK)
        return EXIT_DONE;
    if (errors.size > 0)
        (void)fputs(errors.data, stderr);
    client_error("%s: %s; nothing was submitted", submission->name,
                 st == ST_CONFIG ? "the job file has mistakes" : status_string(st));
    return st == ST_CONFIG ? EXIT_USAGE : exit_of_status(st);
}

static enum exit_code send_job(struct client *client, const struct submission *submission,
                               Cairn__V1__SubmitJobReply **out)
{
    char key[33];
    client_idempotency_key(key);
    Cairn__V1__SubmitJobRequest request = CAIRN__V1__SUBMIT_JOB_REQUEST__INIT;
    request.job_file = submission->text;
    request.base_dir = (char *)submission->base_dir;
    request.n_set = client->args.set_count;
    request.set = (char **)client->args.sets;
    request.idempotency_key = key;
    request.file_name = (char *)submission->name;
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

static enum exit_code submit_job(struct client *client, const struct submission *submission)
{
    Cairn__V1__SubmitJobReply *reply = NULL;
    enum exit_code code = check_job(client, submission);
    if (code == EXIT_DONE)
        code = send_job(client, submission, &reply);
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
    struct submission *submission = malloc(sizeof(*submission));
    if (submission == NULL)
        return EXIT_INTERNAL;
    enum exit_code code = read_job_file(client->args.operands[0], submission);
    if (code == EXIT_DONE)
        code = submit_job(client, submission);
    free(submission->text);
    free(submission);
    return code;
}
