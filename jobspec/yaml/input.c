#include "jobspec/yaml/input.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/limits.h"

#define PIECE_BYTES 4096

static enum status refuse(const char *name, const char *what, struct reason *why)
{
    reason_set(why, "%s: %s", name, what);
    return ST_CONFIG;
}

static const char *said(int error)
{
    return error == ENOENT   ? "no such file"
           : error == EACCES ? "permission denied"
                             : strerror(error);
}

static enum status read_all(int fd, const char *name, struct jobspec_input *out, struct reason *why)
{
    char piece[PIECE_BYTES];
    auto_buf struct buf text;
    buf_init(&text, (size_t)LIMIT_JOB_FILE_BYTES);
    enum status st = buf_append_text(&text, "");
    ssize_t size = 1;
    while (st == ST_OK && size != 0) {
        size = read(fd, piece, sizeof(piece));
        if (size < 0 && errno != EINTR)
            return refuse(name, strerror(errno), why);
        if (size > 0)
            st = buf_append(&text, piece, (size_t)size);
    }
    if (st == ST_FULL)
        return refuse(name, "too large for a job file", why);
    if (st == ST_OK && text.size == 0)
        st = buf_append(&text, "\n", 1); /* no bytes at all: what an empty file says */
    if (st != ST_OK) {
        reason_set(why, "%s: %s", name, status_string(st));
        return st;
    }
    out->text = buf_take(&text, &out->size);
    return ST_OK;
}

/* The folder that a file lies in; of what is no regular file the current one. */
static bool find_base(const char *name, bool regular, char out[PATH_MAX])
{
    if (!regular)
        return getcwd(out, PATH_MAX) != NULL;
    if (realpath(name, out) == NULL)
        return false;
    char *slash = strrchr(out, '/');
    *(slash == out ? slash + 1 : slash) = '\0';
    return true;
}

enum status jobspec_input_read(const char *name, struct jobspec_input *out, struct reason *why)
{
    const bool input = strcmp(name, "-") == 0;
    struct stat info;
    *out = (struct jobspec_input){ .text = NULL };
    auto_close int file = input ? -1 : open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    const int fd = input ? STDIN_FILENO : file;
    if (fd < 0 || fstat(fd, &info) != 0)
        return refuse(name, said(errno), why);
    if (S_ISDIR(info.st_mode))
        return refuse(name, "is a folder; name the job file in it", why);
    if (!find_base(name, !input && S_ISREG(info.st_mode), out->base_dir))
        return refuse(name, strerror(errno), why);
    return read_all(fd, name, out, why);
}
