/* Files that hold secrets. */
#include "hook/private.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"

/* Nobody else may have put it there, or may see what is in it. */
static enum status check_rights(const char *path, const struct stat *info, struct reason *reason)
{
    if (!S_ISREG(info->st_mode)) {
        reason_set(reason, "%s is no regular file", path);
        return ST_INVALID;
    }
    if (info->st_uid != geteuid() && info->st_uid != 0) {
        reason_set(reason, "%s belongs to somebody else: chown it to whom Cairn runs as", path);
        return ST_REFUSED;
    }
    if ((info->st_mode & 077) != 0) {
        reason_set(reason, "others than its owner may read it (mode %04o): chmod 600 %s",
                   (unsigned)info->st_mode & 07777, path);
        return ST_REFUSED;
    }
    return ST_OK;
}

static enum status read_bytes(int fd, const char *path, size_t size_max, char **out,
                              size_t *out_size, struct reason *reason)
{
    auto_free char *text = calloc(1, size_max + 2);
    size_t size = 0;
    ssize_t got = 1;
    if (text == NULL)
        return ST_NO_MEMORY;
    while (size <= size_max && got != 0) {
        got = read(fd, text + size, size_max + 1 - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_from_errno(errno);
        size += (size_t)got;
    }
    if (size > size_max) {
        OPENSSL_cleanse(text, size);
        reason_set(reason, "%s is longer than %zu bytes", path, size_max);
        return ST_INVALID;
    }
    text[size] = '\0';
    *out = TAKE_PTR(text);
    *out_size = size;
    return ST_OK;
}

enum status hook_private_read(const char *path, size_t size_max, char **out, size_t *out_size,
                              struct reason *reason)
{
    struct stat info;
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        enum status st = status_from_errno(errno);
        reason_set(reason, "%s: %s", path, strerror(errno));
        return st;
    }
    if (fstat(fd, &info) != 0)
        return status_from_errno(errno);
    enum status st = check_rights(path, &info, reason);
    return st == ST_OK ? read_bytes(fd, path, size_max, out, out_size, reason) : st;
}

enum status hook_secret_read(const char *path, char **out, size_t *out_size, struct reason *reason)
{
    char *text = NULL;
    size_t size = 0;
    enum status st = hook_private_read(path, HOOK_SECRET_MAX, &text, &size, reason);
    if (st != ST_OK)
        return st;
    size_t from = 0;
    while (from < size && isspace((unsigned char)text[from]))
        from++;
    size_t end = size;
    while (end > from && isspace((unsigned char)text[end - 1]))
        end--;
    if (end - from < HOOK_SECRET_MIN) {
        hook_secret_free(text, size);
        reason_set(reason, "%s holds fewer than %d bytes: openssl rand -hex 32 > %s", path,
                   HOOK_SECRET_MIN, path);
        return ST_INVALID;
    }
    memmove(text, text + from, end - from);
    OPENSSL_cleanse(text + (end - from), size - (end - from));
    *out = text;
    *out_size = end - from;
    return ST_OK;
}

void hook_secret_free(char *secret, size_t size)
{
    if (secret != NULL)
        OPENSSL_cleanse(secret, size);
    free(secret);
}
