/* The arguments of cairnd. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "identity/files.h"
#include "server/times.h"

struct options {
    const char *listen; /* NULL: no TCP */
    const char *backup; /* NULL: serve */
    bool recover;       /* make the journal anew, of what is in the stores */
    const char *state;  /* with it: the state folder; NULL: the home's */
    const char *const *stores;
    size_t store_count;
    const char *advertise; /* HOST:PORT of the listener as others call it; NULL: as it is bound */
    struct identity_files tls; /* all NULL: plaintext */
    struct times times;        /* of silence */
    bool restarts;             /* CAIRN_RECOVERY=restart: after a failure all workers start anew */
    const char *paths;         /* paths that job files of remote people may name; NULL: any */
    bool commands;             /* with them: these job files may have commands */
};

/* Texts are those of argv. -1, or the exit code of a program that has said all it has to. */
int options_take(struct options *options, int argc, char **argv);
