#include "common/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/limits.h"

static enum mount_kind kind_of_type(unsigned long type)
{
    switch (type) {
    case NFS_SUPER_MAGIC:
        return MOUNT_NFS;
    case FUSE_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case V9FS_MAGIC:
    case AFS_SUPER_MAGIC:
    case AFS_FS_MAGIC:
        return MOUNT_OTHER;
    default:
        return MOUNT_LOCAL;
    }
}

/* false: nothing is above it. */
static bool cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash == NULL || slash[1] == '\0')
        return false;
    slash[slash == path ? 1 : 0] = '\0';
    return true;
}

enum mount_kind mount_kind_of(const char *path)
{
    char at[LIMIT_PATH];
    struct statfs info;
    int size = snprintf(at, sizeof(at), "%s", path);
    if (size <= 0 || (size_t)size >= sizeof(at))
        return MOUNT_LOCAL;
    while (statfs(at, &info) != 0) {
        if (errno != ENOENT)
            return MOUNT_LOCAL;
        if (!cut_last(at)) /* a name in the working directory */
            return statfs(".", &info) == 0 ? kind_of_type((unsigned long)info.f_type) : MOUNT_LOCAL;
    }
    return kind_of_type((unsigned long)info.f_type);
}

bool mount_locks(const char *dir)
{
    char path[LIMIT_PATH];
    int size = snprintf(path, sizeof(path), "%s/.lock-XXXXXX", dir);
    if (size < 0 || (size_t)size >= sizeof(path))
        return false;
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return false;
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    bool locks = fcntl(fd, F_SETLK, &whole) == 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    (void)unlink(path);
    (void)close(fd);
    return locks;
}
