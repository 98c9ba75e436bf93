/* plan: a preview of a job, which the trainer makes; and whether its checkpoints will have room. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/action/command.h"
#include "client/action/commands.h"
#include "client/base/client.h"
#include "client/base/trainer.h"
#include "client/preflight/capacity.h"
#include "client/preflight/files.h"
#include "client/preflight/job_file.h"
#include "client/print/output.h"
#include "common/cleanup.h"

#define PLAN_BYTES ((size_t)64 << 10)

/* Has the next reader of standard input find this text there. */
static bool give_back(const struct job_file *file)
{
    auto_close const int fd = memfd_create("job", MFD_CLOEXEC);
    return fd >= 0 && write(fd, file->text, file->size) == (ssize_t)file->size &&
           lseek(fd, 0, SEEK_SET) == 0 && dup2(fd, STDIN_FILENO) == STDIN_FILENO;
}

/* Reads the job file a first time. *out: it is owned by the caller; NULL: it has mistakes, which
 * are the trainer's to tell. */
static enum exit_code read_job(const struct client *client, const char *name, struct jobspec **out)
{
    auto_free struct job_file *file = calloc(1, sizeof(*file));
    struct jobspec *job = malloc(sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, (size_t)1 << 20);
    enum exit_code code = file != NULL && job != NULL ? job_file_read(name, file) : EXIT_INTERNAL;
    if (code == EXIT_DONE && strcmp(name, "-") == 0 && !give_back(file))
        code = EXIT_INTERNAL;
    if (code == EXIT_DONE &&
        jobspec_parse(file->text, file->size, file->name, file->base_dir, client->args.sets,
                      client->args.set_count, job, &errors) == ST_OK) {
        *out = job;
        job = NULL;
    }
    if (file != NULL)
        free(file->text);
    free(job);
    return code;
}

static enum exit_code print_command(const struct jobspec *job)
{
    auto_buf struct buf text;
    buf_init(&text, PLAN_BYTES);
    return command_plan(job, &text) == ST_OK ? output_text(text.data) : EXIT_INTERNAL;
}

enum exit_code cmd_plan(struct client *client)
{
    if (client->args.output != OUTPUT_TABLE && client->args.output != OUTPUT_WIDE) {
        client_error("plan prints a text for people only: leave -o away");
        return EXIT_USAGE;
    }
    struct stat info;
    auto_free struct jobspec *job = NULL;
    const char *name = client->args.operands[0];
    const bool again = strcmp(name, "-") == 0 ||
                       (stat(name, &info) == 0 && S_ISREG(info.st_mode) && access(name, R_OK) == 0);
    const enum exit_code code = again ? read_job(client, name, &job) : EXIT_DONE;
    if (code != EXIT_DONE)
        return code;
    if (job != NULL && jobspec_is_command(job))
        return print_command(job);
    if (job != NULL)
        capacity_warn(client, job, preflight_free_bytes(job->checkpoint.store));
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--plan");
    trainer_add(&call, name);
    trainer_add_sets(&call, &client->args);
    return trainer_become(&call);
}
