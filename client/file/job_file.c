#include "client/file/job_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/io.h"

#define FILE_BYTES_MAX ((size_t)LIMIT_JOB_FILE_BYTES)

static enum exit_code read_input(struct job_file *out)
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

enum exit_code job_file_read(const char *name, struct job_file *out)
{
    *out = (struct job_file){ .name = name };
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
                     st == ST_FULL ? "too large for a job file" : client_file_status(st));
        return EXIT_USAGE;
    }
    char *slash = strrchr(path, '/');
    *(slash == path ? slash + 1 : slash) = '\0';
    (void)snprintf(out->base_dir, sizeof(out->base_dir), "%s", path);
    return EXIT_DONE;
}
