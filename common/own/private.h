/*
 * Folders and files in places where other accounts may put something: opened by one function, which
 * looks at what was opened, never at a name. Nothing is listed, removed, locked, signalled, dialled
 * or read there before.
 *
 * Ours is what belongs to the effective user. What others may write is nobody's to trust and always
 * refused; what they may read only, unless PRIVATE_READABLE or PRIVATE_MEND is given.
 *
 * Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "common/reason.h"
#include "common/status.h"

enum private_flags {
    PRIVATE_MAKE = 1 << 0,     /* where there is none, it is made: 0700, a file 0600 */
    PRIVATE_MEND = 1 << 1,     /* rights of others to read what is ours are taken away */
    PRIVATE_READABLE = 1 << 2, /* others may read it */
    PRIVATE_ROOTS = 1 << 3,    /* root's does as well as ours */
    PRIVATE_LINKS = 1 << 4,    /* a link to it, ours or root's, is followed */
};

/* The file or folder that was found; as it was before PRIVATE_MEND. */
struct private_found {
    uid_t owner;
    mode_t mode; /* 07777 */
    bool mended;
};

#define PRIVATE_USER 64
/* Returns the name of a user, or the number. */
const char *private_user(uid_t uid, char out[PRIVATE_USER]);

/* Judges whether a file or folder of that kind is safe to use; reason names it, its owner and its
 * mode.
 * Errors: ST_REFUSED */
MUST_CHECK enum status private_judge(const char *path, const struct stat *info, unsigned flags,
                                     struct reason *reason);

/*
 * Opens a folder, relative to the folder at (or AT_FDCWD); the descriptor is the caller's. Of what
 * PRIVATE_MAKE makes only the last name is made. found may be NULL.
 * Errors: ST_REFUSED  somebody else's, open to others, a link, no folder: reason says which
 *         ST_NOT_FOUND, ST_IO, ...
 */
MUST_CHECK enum status private_folder(int at, const char *path, unsigned flags, int *out_fd,
                                      struct private_found *found, struct reason *reason);

/* Like private_folder, for a regular file; how: flags of open(2). */
MUST_CHECK enum status private_file(int at, const char *path, int how, unsigned flags, int *out_fd,
                                    struct private_found *found, struct reason *reason);

/*
 * A whole file of size_max bytes at most that only its owner, who is us or root, may read; links to
 * it are followed. *out is owned by the caller and NUL-terminated.
 * Errors: ST_NOT_FOUND
 *         ST_REFUSED   it isn't ours, or others may read it: reason says what to do
 *         ST_INVALID   no regular file, or a longer one
 *         ST_IO, ST_NO_MEMORY
 */
MUST_CHECK enum status private_read(const char *path, size_t size_max, char **out, size_t *out_size,
                                    struct reason *reason);
