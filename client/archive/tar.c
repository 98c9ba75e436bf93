#include "client/archive/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/limits.h"

#define BLOCK 512

/* The header of a member. Numbers are octal digits, and a NUL or a blank. */
struct header {
    char name[TAR_NAME];
    char mode[8], uid[8], gid[8];
    char size[12], mtime[12];
    char checksum[8];
    char type; /* '0' or NUL: a regular file */
    char link[100];
    char magic[6], version[2]; /* "ustar", "00" */
    char user[32], group[32];
    char major[8], minor[8];
    char prefix[155];
    char rest[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is a block");
_Static_assert(offsetof(struct header, checksum) == 148, "as ustar has it");
_Static_assert(offsetof(struct header, magic) == 257, "as ustar has it");

struct tar_writer {
    char path[LIMIT_PATH], temporary[LIMIT_PATH];
    int64_t now_s;
    gzFile file;
    int fd; /* another one of the same file, to sync it */
};

/* The sum of all bytes, with blanks where it stands itself. */
static unsigned checksum_of(const struct header *header)
{
    const unsigned char *bytes = (const unsigned char *)header;
    unsigned sum = 0;
    for (size_t i = 0; i < BLOCK; i++) {
        const bool own = i >= offsetof(struct header, checksum) && i < 156;
        sum += own ? ' ' : bytes[i];
    }
    return sum;
}

/* ---- writing ---- */

static enum status fail(struct reason *reason, const char *path, int error)
{
    reason_set(reason, "%s: %s", path, error != 0 ? strerrordesc_np(error) : "it can't be written");
    return error != 0 ? status_from_errno(error) : ST_IO;
}

enum status tar_create(const char *path, int64_t now_s, struct tar_writer **out,
                       struct reason *reason)
{
    struct tar_writer *writer = calloc(1, sizeof(*writer));
    if (writer == NULL)
        return ST_NO_MEMORY;
    writer->now_s = now_s;
    writer->fd = -1;
    const int size = snprintf(writer->temporary, LIMIT_PATH, "%s.tmp", path);
    if (size < 0 || size >= LIMIT_PATH || access(path, F_OK) == 0) {
        reason_set(reason, "%.200s: %s", path,
                   size >= LIMIT_PATH ? "the path is too long" : "there is such a file already");
        free(writer);
        return size >= LIMIT_PATH ? ST_TOO_LONG : ST_EXISTS;
    }
    (void)snprintf(writer->path, LIMIT_PATH, "%s", path);
    (void)unlink(writer->temporary); /* of a call that was killed */
    const int fd =
        open(writer->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        const enum status st = fail(reason, writer->temporary, errno);
        free(writer);
        return st;
    }
    writer->fd = dup(fd);
    writer->file = writer->fd < 0 ? NULL : gzdopen(fd, "wb6");
    if (writer->file == NULL) {
        (void)close(fd);
        tar_drop(writer);
        return ST_NO_MEMORY;
    }
    *out = writer;
    return ST_OK;
}

static enum status put(struct tar_writer *writer, const void *data, size_t size)
{
    errno = 0; /* zlib leaves it as the system set it */
    if (size == 0 || gzwrite(writer->file, data, (unsigned)size) == (int)size)
        return ST_OK;
    return errno != 0 ? status_from_errno(errno) : ST_IO;
}

enum status tar_add(struct tar_writer *writer, const char *name, const void *data, size_t size)
{
    static const char zeros[BLOCK];
    struct header header = { .type = '0', .magic = "ustar", .version = { '0', '0' } };
    const size_t length = strlen(name);
    if (length == 0 || length > TAR_NAME)
        return ST_TOO_LONG;
    if (size > TAR_MEMBER_BYTES)
        return ST_FULL;
    memcpy(header.name, name, length);
    (void)snprintf(header.mode, sizeof(header.mode), "%07o", 0600U);
    (void)snprintf(header.uid, sizeof(header.uid), "%07o", 0U);
    (void)snprintf(header.gid, sizeof(header.gid), "%07o", 0U);
    (void)snprintf(header.size, sizeof(header.size), "%011llo", (unsigned long long)size);
    (void)snprintf(header.mtime, sizeof(header.mtime), "%011llo",
                   (unsigned long long)writer->now_s & 077777777777U);
    (void)snprintf(header.checksum, sizeof(header.checksum), "%06o", checksum_of(&header));
    header.checksum[7] = ' ';
    enum status st = put(writer, &header, sizeof(header));
    if (st == ST_OK)
        st = put(writer, data, size);
    return st == ST_OK ? put(writer, zeros, (BLOCK - size % BLOCK) % BLOCK) : st;
}

void tar_drop(struct tar_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->file != NULL)
        (void)gzclose(writer->file);
    if (writer->fd >= 0)
        (void)close(writer->fd);
    (void)unlink(writer->temporary);
    free(writer);
}

/* The folder of a path. */
static void folder_of(const char *path, char out[LIMIT_PATH])
{
    (void)snprintf(out, LIMIT_PATH, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash == NULL) {
        (void)snprintf(out, LIMIT_PATH, ".");
    } else {
        slash[slash == out] = '\0';
    }
}

enum status tar_publish(struct tar_writer *writer, struct reason *reason)
{
    static const char end[2 * BLOCK];
    const struct io *io = io_system();
    char folder[LIMIT_PATH];
    enum status st = put(writer, end, sizeof(end));
    const int closed = gzclose(writer->file);
    writer->file = NULL;
    if (st == ST_OK && (closed != Z_OK || fsync(writer->fd) != 0))
        st = ST_IO;
    if (st != ST_OK) {
        st = fail(reason, writer->temporary, errno);
    } else {
        st = io->link(io->self, writer->temporary, writer->path);
        folder_of(writer->path, folder);
        if (st == ST_OK)
            st = io->fsync_dir(io->self, folder);
        if (st != ST_OK)
            reason_set(reason, "%s: %s", writer->path, status_string(st));
    }
    tar_drop(writer);
    return st;
}

/* ---- reading ---- */

/* The file's bytes as they come, and where a mistake is. */
struct reading {
    gzFile file;
    const char *path;
    uint64_t at;
    size_t total, members;
    struct reason *reason;
};

static enum status damaged(const struct reading *r, const char *what)
{
    reason_set(r->reason, "%s: %s, at byte %llu of what is packed in it", r->path, what,
               (unsigned long long)r->at);
    return ST_CORRUPT;
}

/* Exactly so many bytes. */
static enum status get(struct reading *r, void *data, size_t size)
{
    if (size > 0 && gzread(r->file, data, (unsigned)size) != (int)size)
        return damaged(r, "it is cut off, damaged, or no .tar.gz");
    r->at += size;
    return ST_OK;
}

/* "00000001234" and a NUL or blanks; false: it is something else. */
static bool parse_octal(const char *text, size_t size, uint64_t *out)
{
    uint64_t value = 0;
    size_t at = 0;
    while (at < size && text[at] >= '0' && text[at] <= '7')
        value = value * 8 + (uint64_t)(text[at++] - '0');
    const bool digits = at > 0;
    while (at < size && (text[at] == ' ' || text[at] == '\0'))
        at++;
    *out = value;
    return digits && at == size;
}

static enum status read_member(struct reading *r, const struct header *header, tar_member_fn fn,
                               void *arg)
{
    char name[TAR_NAME + 1], padding[BLOCK];
    uint64_t size = 0, sum = 0;
    if (!parse_octal(header->checksum, sizeof(header->checksum), &sum) ||
        sum != checksum_of(header) || memcmp(header->magic, "ustar", 5) != 0)
        return damaged(r, "a header is damaged");
    if (!parse_octal(header->size, sizeof(header->size), &size))
        return damaged(r, "a header has no size");
    if (size > TAR_MEMBER_BYTES || r->total + size > TAR_TOTAL_BYTES ||
        ++r->members > TAR_MEMBERS_MAX) {
        reason_set(r->reason, "%s: it is larger than a bundle gets", r->path);
        return ST_FULL;
    }
    r->total += size;
    (void)snprintf(name, sizeof(name), "%.*s", TAR_NAME, header->name);
    auto_free char *data = malloc(size + 1);
    if (data == NULL)
        return ST_NO_MEMORY;
    enum status st = get(r, data, size);
    if (st == ST_OK)
        st = get(r, padding, (BLOCK - size % BLOCK) % BLOCK);
    data[size] = '\0';
    const bool file = header->type == '0' || header->type == '\0';
    return st == ST_OK && file ? fn(arg, name, data, size) : st;
}

static enum status read_all(struct reading *r, tar_member_fn fn, void *arg)
{
    static const struct header end;
    struct header header;
    for (;;) {
        enum status st = get(r, &header, sizeof(header));
        if (st == ST_OK && memcmp(&header, &end, sizeof(end)) == 0)
            return ST_OK;
        if (st == ST_OK)
            st = read_member(r, &header, fn, arg);
        if (st != ST_OK)
            return st;
    }
}

enum status tar_read(const char *path, tar_member_fn fn, void *arg, struct reason *reason)
{
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        const int error = fd < 0 ? errno : EINVAL;
        reason_set(reason, "%s: %s", path, fd < 0 ? strerrordesc_np(error) : "no file");
        if (fd >= 0)
            (void)close(fd);
        return status_from_errno(error);
    }
    struct reading r = { .file = gzdopen(fd, "rb"), .path = path, .reason = reason };
    if (r.file == NULL) {
        (void)close(fd);
        return ST_NO_MEMORY;
    }
    const enum status st = read_all(&r, fn, arg);
    (void)gzclose(r.file);
    return st;
}
