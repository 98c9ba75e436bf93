/*
 * What kind of file system holds a path.
 *
 * Thread: any; asks the kernel, which may ask a server.
 */
#pragma once

#include <stdbool.h>

enum mount_kind {
    MOUNT_LOCAL, /* of this machine, or one that all machines see alike */
    MOUNT_NFS, /* remembers for up to a minute what it has seen; locks may be this machine's own */
    MOUNT_OTHER, /* FUSE, SMB and their like: may do as NFS does */
};

/* Of path; where there is nothing, of the nearest folder above it that is there. MOUNT_LOCAL, too,
 * where that can't be told. */
enum mount_kind mount_kind_of(const char *path);

/* Whether a file in dir, a folder that may be written to, can be locked: fcntl and flock, as
 * SQLite and we do. A file comes and goes. */
bool mount_locks(const char *dir);
