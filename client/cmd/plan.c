/*
 * plan, node check, ckpt import: what only the trainer knows, since it alone links the mathematics.
 * This process becomes `cairn-trainer`, the one beside this program's file.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/base/options.h"
#include "client/print/job.h"

#define ARGV_MAX (2 * ARGUMENTS_MAX + 8)

/* argv has no const, and nobody writes to it. */
static char *argument(const char *text)
{
    union {
        const char *in;
        char *out;
    } same = { .in = text };
    return same.out;
}

static enum status find_trainer(char *out, size_t capacity)
{
    char own[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", own, sizeof(own) - 1);
    if (size <= 0)
        return ST_NOT_FOUND;
    own[size] = '\0';
    char *slash = strrchr(own, '/');
    if (slash == NULL)
        return ST_NOT_FOUND;
    slash[1] = '\0';
    int written = snprintf(out, capacity, "%scairn-trainer", own);
    return written > 0 && (size_t)written < capacity ? ST_OK : ST_FULL;
}

/* argv[0] is filled in here. Comes back only with an error. */
static enum exit_code become_trainer(char **argv)
{
    char path[PATH_MAX + 16];
    enum status st = find_trainer(path, sizeof(path));
    if (st == ST_OK) {
        argv[0] = argument("cairn-trainer");
        (void)fflush(NULL);
        (void)execv(path, argv);
        st = status_from_errno(errno);
    }
    client_error("cairn-trainer: %s; it belongs beside this program", status_string(st));
    return EXIT_INTERNAL;
}

enum exit_code cmd_node_check(struct client *client)
{
    char ranks[24];
    char *argv[8] = { NULL, argument("--check"), argument("cpu") };
    size_t argc = 3;
    if (client->args.device != NULL)
        argv[2] = argument(client->args.device);
    if (client->args.ranks >= 0) {
        (void)snprintf(ranks, sizeof(ranks), "%lld", (long long)client->args.ranks);
        argv[argc++] = argument("--ranks");
        argv[argc++] = ranks;
    }
    if (output_is_json(client))
        argv[argc++] = argument("--json");
    argv[argc] = NULL;
    return become_trainer(argv);
}

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
    if (args->to == NULL && default_folder(args->words[0], folder, sizeof(folder)) != EXIT_DONE)
        return EXIT_USAGE;
    char *argv[ARGV_MAX + 8] = {
        NULL,
        argument("--import"),
        argument(args->words[0]),
        argument("--job-file"),
        argument(args->job_file),
        argument("--to"),
        argument(args->to == NULL ? folder : args->to),
    };
    size_t argc = 7;
    for (size_t i = 0; i < args->set_count; i++) {
        argv[argc++] = argument("--set");
        argv[argc++] = argument(args->sets[i]);
    }
    if (output_is_json(client))
        argv[argc++] = argument("--json");
    if (args->quiet)
        argv[argc++] = argument("--quiet");
    argv[argc] = NULL;
    return become_trainer(argv);
}

enum exit_code cmd_plan(struct client *client)
{
    char *argv[ARGV_MAX] = { NULL, argument("--plan"), argument(client->args.words[0]) };
    size_t argc = 3;
    for (size_t i = 0; i < client->args.set_count; i++) {
        argv[argc++] = argument("--set");
        argv[argc++] = argument(client->args.sets[i]);
    }
    argv[argc] = NULL;
    return become_trainer(argv);
}
