/* ckpt import: weights of a safetensors file as a checkpoint; the trainer does it. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "client/base/trainer.h"
#include "client/ckpt/commands.h"
#include "client/print/output.h"

/* FILE without its ending, and in it the name of step 0. */
static enum exit_code default_folder(const char *file, char *out, size_t capacity)
{
    static const char ending[] = ".safetensors";
    size_t size = strlen(file), cut = sizeof(ending) - 1;
    if (size > cut && strcmp(file + size - cut, ending) == 0) {
        int written = snprintf(out, capacity, "%.*s/step-000000000000.g1", (int)(size - cut), file);
        if (written > 0 && (size_t)written < capacity)
            return EXIT_DONE;
    }
    client_error("%s: say where to: --to DIR", file);
    return EXIT_USAGE;
}

enum exit_code cmd_ckpt_import(struct client *client)
{
    const struct arguments *args = &client->args;
    char folder[PATH_MAX];
    if (args->job_file == NULL) {
        client_error("say whose model these weights are of: --job JOBFILE");
        return EXIT_USAGE;
    }
    if (args->to == NULL && default_folder(args->operands[0], folder, sizeof(folder)) != EXIT_DONE)
        return EXIT_USAGE;
    struct trainer_call call = { .count = 0 };
    trainer_add(&call, "--import");
    trainer_add(&call, args->operands[0]);
    trainer_add(&call, "--job-file");
    trainer_add(&call, args->job_file);
    trainer_add(&call, "--to");
    trainer_add(&call, args->to == NULL ? folder : args->to);
    trainer_add_sets(&call, args);
    if (output_is_json(client))
        trainer_add(&call, "--json");
    if (args->quiet)
        trainer_add(&call, "--quiet");
    return trainer_become(&call);
}
