#include "common/own/private.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"

#define OTHERS       (S_IRWXG | S_IRWXO)
#define OTHERS_WRITE (S_IWGRP | S_IWOTH)

const char *private_user(uid_t uid, char out[PRIVATE_USER])
{
    char room[4096];
    struct passwd one, *user = NULL;
    if (getpwuid_r(uid, &one, room, sizeof(room), &user) == 0 && user != NULL) {
        (void)snprintf(out, PRIVATE_USER, "%s", user->pw_name);
    } else {
        (void)snprintf(out, PRIVATE_USER, "%lld", (long long)uid);
    }
    return out;
}

static bool may_own(uid_t uid, unsigned flags)
{
    return uid == geteuid() || (uid == 0 && (flags & PRIVATE_ROOTS) != 0);
}

enum status private_judge(const char *path, const struct stat *info, unsigned flags,
                          struct reason *reason)
{
    char owner[PRIVATE_USER], us[PRIVATE_USER];
    const bool folder = S_ISDIR(info->st_mode);
    const mode_t denied = (flags & PRIVATE_READABLE) != 0 ? OTHERS_WRITE : OTHERS;
    const mode_t open = info->st_mode & denied;
    if (!may_own(info->st_uid, flags)) {
        reason_set(reason, "%s belongs to %s (mode %04o), not to %s, whom this runs as", path,
                   private_user(info->st_uid, owner), (unsigned)info->st_mode & 07777,
                   private_user(geteuid(), us));
        return ST_REFUSED;
    }
    if (open != 0) {
        reason_set(reason, "others than its owner, %s, may %s %s (mode %04o): chmod %s %s",
                   private_user(info->st_uid, owner),
                   (open & OTHERS_WRITE) != 0 ? "write to" : "read", path,
                   (unsigned)info->st_mode & 07777, folder ? "700" : "600", path);
        return ST_REFUSED;
    }
    return ST_OK;
}

/* Opens without following links; a link that may be followed is looked at first. */
static int open_unlinked(int at, const char *path, int how, unsigned flags)
{
    struct stat link;
    how |= O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    const int fd = openat(at, path, how | O_NOFOLLOW, 0600);
    if (fd >= 0 || (errno != ELOOP && errno != ENOTDIR) || (flags & PRIVATE_LINKS) == 0)
        return fd;
    const int error = errno;
    if (fstatat(at, path, &link, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(link.st_mode) ||
        !may_own(link.st_uid, flags | PRIVATE_ROOTS)) {
        errno = error;
        return -1;
    }
    return openat(at, path, how, 0600);
}

/* Says what the thing is that couldn't be opened. */
static enum status explain_open(int at, const char *path, bool folder, struct reason *reason)
{
    const int error = errno;
    char owner[PRIVATE_USER];
    struct stat info;
    const bool strange = error == ELOOP || error == ENOTDIR || error == EISDIR || error == ENXIO;
    if (!strange || fstatat(at, path, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        reason_set(reason, "%s: %s", path, strerrordesc_np(error));
        return status_from_errno(error);
    }
    reason_set(reason, "%s is %s, of %s", path,
               S_ISLNK(info.st_mode) ? "a link"
               : folder              ? "no folder"
                                     : "no regular file",
               private_user(info.st_uid, owner));
    return ST_REFUSED;
}

/* Judges an open file or folder. fd stays the caller's. */
static enum status look_at(int fd, const char *path, unsigned flags, struct private_found *found,
                           struct reason *reason)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return status_from_errno(errno);
    struct private_found here = { .owner = info.st_uid, .mode = info.st_mode & 07777 };
    const mode_t rest = info.st_mode & 07777 & ~(mode_t)OTHERS;
    if ((flags & PRIVATE_MEND) != 0 && info.st_uid == geteuid() && rest != here.mode &&
        (info.st_mode & OTHERS_WRITE) == 0) {
        /* On a file system without rights the mode stays as it is, for the owner to know. */
        here.mended = fchmod(fd, rest) == 0;
        flags |= PRIVATE_READABLE;
    }
    if (found != NULL)
        *found = here;
    return private_judge(path, &info, flags, reason);
}

enum status private_folder(int at, const char *path, unsigned flags, int *out_fd,
                           struct private_found *found, struct reason *reason)
{
    if ((flags & PRIVATE_MAKE) != 0 && mkdirat(at, path, 0700) != 0 && errno != EEXIST) {
        const int error = errno;
        reason_set(reason, "%s: %s", path, strerrordesc_np(error));
        return status_from_errno(error);
    }
    auto_close int fd = open_unlinked(at, path, O_RDONLY | O_DIRECTORY, flags);
    if (fd < 0)
        return explain_open(at, path, true, reason);
    const enum status st = look_at(fd, path, flags, found, reason);
    if (st == ST_OK) {
        *out_fd = fd;
        fd = -1; /* NOLINT(clang-analyzer-deadcode.DeadStores): its end looks at it */
    }
    return st;
}

enum status private_file(int at, const char *path, int how, unsigned flags, int *out_fd,
                         struct private_found *found, struct reason *reason)
{
    struct stat info;
    if ((flags & PRIVATE_MAKE) != 0)
        how |= O_CREAT;
    auto_close int fd = open_unlinked(at, path, how, flags);
    if (fd < 0 || fstat(fd, &info) != 0)
        return explain_open(at, path, false, reason);
    if (!S_ISREG(info.st_mode)) {
        reason_set(reason, "%s is no regular file", path);
        return ST_INVALID;
    }
    const enum status st = look_at(fd, path, flags, found, reason);
    if (st == ST_OK) {
        *out_fd = fd;
        fd = -1; /* NOLINT(clang-analyzer-deadcode.DeadStores): its end looks at it */
    }
    return st;
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
        explicit_bzero(text, size);
        reason_set(reason, "%s is longer than %zu bytes", path, size_max);
        return ST_INVALID;
    }
    text[size] = '\0';
    *out = TAKE_PTR(text);
    *out_size = size;
    return ST_OK;
}

enum status private_read(const char *path, size_t size_max, char **out, size_t *out_size,
                         struct reason *reason)
{
    struct stat info;
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &info) != 0) {
        const int error = errno;
        reason_set(reason, "%s: %s", path, strerrordesc_np(error));
        return status_from_errno(error);
    }
    if (!S_ISREG(info.st_mode)) {
        reason_set(reason, "%s is no regular file", path);
        return ST_INVALID;
    }
    const enum status st = private_judge(path, &info, PRIVATE_ROOTS, reason);
    return st == ST_OK ? read_bytes(fd, path, size_max, out, out_size, reason) : st;
}
