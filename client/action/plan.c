/* plan: a preview of a job, which the trainer makes; and whether its checkpoints will have room. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/action/commands.h"
#include "client/base/client.h"
#include "client/base/trainer.h"
#include "client/preflight/capacity.h"
#include "client/preflight/files.h"
#include "client/preflight/job_file.h"
#include "common/cleanup.h"

/* Mistakes of the file are the trainer's to tell, which reads it again. */
static void warn_of_capacity(const struct client *client, const char *name)
{
    struct job_file *file = malloc(sizeof(*file));
    auto_free struct jobspec *job = malloc(sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, (size_t)1 << 20);
    bool read = file != NULL && job != NULL && job_file_read(name, file) == EXIT_DONE;
    if (read && jobspec_parse(file->text, file->size, file->name, file->base_dir, client->args.sets,
                              client->args.set_count, job, &errors) == ST_OK)
        capacity_warn(client, job, preflight_free_bytes(job->checkpoint.store));
    if (read)
        free(file->text);
    free(file);
}

enum exit_code cmd_plan(struct client *client)
{
    if (client->args.output != OUTPUT_TABLE && client->args.output != OUTPUT_WIDE) {
        client_error("plan prints a text for people only: leave -o away");
        return EXIT_USAGE;
    }
    struct stat info;
    if (stat(client->args.operands[0], &info) == 0 && S_ISREG(info.st_mode) &&
        access(client->args.operands[0], R_OK) == 0)
        warn_of_capacity(client, client->args.operands[0]);
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--plan");
    trainer_add(&call, client->args.operands[0]);
    trainer_add_sets(&call, &client->args);
    return trainer_become(&call);
}
