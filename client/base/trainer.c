#include "client/base/trainer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/base/client.h"
#include "common/check.h"

void trainer_add(struct trainer_call *call, const char *argument)
{
    CHECK(call->count < TRAINER_ARGUMENTS_MAX);
    call->arguments[call->count++] = argument;
}

void trainer_add_sets(struct trainer_call *call, const struct arguments *args)
{
    for (size_t i = 0; i < args->set_count; i++) {
        trainer_add(call, "--set");
        trainer_add(call, args->sets[i]);
    }
}

/* argv has no const, and nobody writes to it. */
static char *as_argument(const char *text)
{
    union {
        const char *in;
        char *out;
    } same = { .in = text };
    return same.out;
}

enum status trainer_find(char *out, size_t capacity)
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

enum exit_code trainer_become(const struct trainer_call *call)
{
    char path[PATH_MAX + 16];
    char *argv[TRAINER_ARGUMENTS_MAX + 2] = { as_argument("cairn-trainer") };
    for (size_t i = 0; i < call->count; i++)
        argv[i + 1] = as_argument(call->arguments[i]);
    enum status st = trainer_find(path, sizeof(path));
    if (st == ST_OK) {
        (void)fflush(NULL);
        (void)execv(path, argv);
        st = status_from_errno(errno);
    }
    client_error("cairn-trainer: %s; it belongs beside this program", status_string(st));
    return EXIT_INTERNAL;
}
