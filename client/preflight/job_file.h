/* A job file as it is given on the command line: read, with what its relative paths start from. */
#pragma once

#include <limits.h>

#include "client/base/client.h"

struct job_file {
    const char *name; /* as given; "-": standard input */
    char *text;       /* owned */
    size_t size;
    char base_dir[PATH_MAX]; /* where relative paths start (jobspec/yaml/input.h) */
};

/* Reports what goes wrong. out->text: free(), whatever comes back. */
enum exit_code job_file_read(const char *name, struct job_file *out);
