/* The machine's files: each call is one system call. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common/check.h"
#include "common/io.h"

static enum status result(int rc)
{
    return rc < 0 ? status_from_errno(errno) : ST_OK;
}

static enum status system_open(void *self, const char *path, int flags, int *out_fd)
{
    (void)self;
    int how = O_CLOEXEC | O_NONBLOCK; /* of a FIFO: empty, not a wait for whoever writes it */
    how |= (flags & IO_CREATE_NEW) != 0 ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY;
    int fd = open(path, how, (flags & IO_PRIVATE) != 0 ? 0600 : 0644);
    if (fd < 0)
        return status_from_errno(errno);
    /* The flag is not given to open: where it is refused, open would leave the new file behind. */
    if ((flags & IO_DIRECT) != 0)
        (void)fcntl(fd, F_SETFL, O_DIRECT);
    *out_fd = fd;
    return ST_OK;
}

static enum status system_close(void *self, int fd)
{
    (void)self;
    return result(close(fd));
}

static enum status system_pread(void *self, int fd, void *data, size_t size, uint64_t at,
                                size_t *out_size)
{
    (void)self;
    ssize_t done = pread(fd, data, size, (off_t)at);
    if (done < 0)
        return status_from_errno(errno);
    *out_size = (size_t)done;
    return ST_OK;
}

/* A device may want more than IO_DIRECT_ALIGN, which shows with the first write. */
static bool leave_direct(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    const bool direct = flags >= 0 && (flags & O_DIRECT) != 0;
    return direct && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

static enum status system_pwrite(void *self, int fd, const void *data, size_t size, uint64_t at,
                                 size_t *out_size)
{
    (void)self;
    ssize_t done = pwrite(fd, data, size, (off_t)at);
    if (done < 0 && errno == EINVAL && leave_direct(fd))
        done = pwrite(fd, data, size, (off_t)at);
    if (done < 0)
        return status_from_errno(errno);
    *out_size = (size_t)done;
    return ST_OK;
}

static enum status system_fsync(void *self, int fd)
{
    (void)self;
    return result(fsync(fd));
}

static enum status system_fsync_dir(void *self, const char *path)
{
    (void)self;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return status_from_errno(errno);
    enum status st = result(fsync(fd));
    (void)close(fd);
    return st;
}

static enum status system_mkdir(void *self, const char *path)
{
    (void)self;
    return result(mkdir(path, 0755));
}

static enum status system_link(void *self, const char *from, const char *to)
{
    (void)self;
    return result(link(from, to));
}

static enum status system_rename(void *self, const char *from, const char *to)
{
    (void)self;
    return result(rename(from, to));
}

static enum status system_unlink(void *self, const char *path)
{
    (void)self;
    return result(unlink(path));
}

static enum status system_rmdir(void *self, const char *path)
{
    (void)self;
    return result(rmdir(path));
}

static enum status system_stat(void *self, const char *path, struct io_stat *out)
{
    (void)self;
    struct stat info;
    if (stat(path, &info) < 0)
        return status_from_errno(errno);
    *out = (struct io_stat){
        .size = (uint64_t)info.st_size,
        .inode = (uint64_t)info.st_ino,
        .changed_ns = (int64_t)info.st_ctim.tv_sec * 1000000000 + info.st_ctim.tv_nsec,
        .mtime_ms = (int64_t)info.st_mtim.tv_sec * 1000 + info.st_mtim.tv_nsec / 1000000,
        .is_dir = S_ISDIR(info.st_mode),
        .is_special = !S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode),
    };
    return ST_OK;
}

static enum status system_list(void *self, const char *path, io_name_fn fn, void *arg)
{
    (void)self;
    DIR *dir = opendir(path);
    if (dir == NULL)
        return status_from_errno(errno);
    enum status st = ST_OK;
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            st = status_from_errno(errno);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (!fn(arg, entry->d_name))
            break;
    }
    (void)closedir(dir);
    return st;
}

static bool system_seen_late(void *self, const char *path)
{
    (void)self;
    return io_mount_of(path) != IO_MOUNT_LOCAL;
}

static enum status system_space(void *self, const char *path, uint64_t *out_bytes)
{
    (void)self;
    struct statvfs info;
    if (statvfs(path, &info) != 0)
        return status_from_errno(errno);
    *out_bytes = (uint64_t)info.f_bavail * info.f_frsize; /* what root alone may take is not ours */
    return ST_OK;
}

static enum status system_map(void *self, int fd, void **out_data, size_t *out_size)
{
    (void)self;
    struct stat info;
    if (fstat(fd, &info) < 0)
        return status_from_errno(errno);
    void *data = NULL;
    if (info.st_size > 0) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            return status_from_errno(errno);
    }
    *out_data = data;
    *out_size = (size_t)info.st_size;
    return ST_OK;
}

static enum status system_unmap(void *self, void *data, size_t size)
{
    (void)self;
    return size == 0 ? ST_OK : result(munmap(data, size));
}

const struct io *io_system(void)
{
    static const struct io io = {
        .open = system_open,
        .close = system_close,
        .pread = system_pread,
        .pwrite = system_pwrite,
        .fsync = system_fsync,
        .fsync_dir = system_fsync_dir,
        .mkdir = system_mkdir,
        .link = system_link,
        .rename = system_rename,
        .unlink = system_unlink,
        .rmdir = system_rmdir,
        .stat = system_stat,
        .list = system_list,
        .seen_late = system_seen_late,
        .space = system_space,
        .map = system_map,
        .unmap = system_unmap,
    };
    return &io;
}

/* ---- what holds a path ---- */

static enum io_mount kind_of_type(unsigned long type)
{
    switch (type) {
    case NFS_SUPER_MAGIC:
        return IO_MOUNT_NFS;
    case FUSE_SUPER_MAGIC:
    case SMB_SUPER_MAGIC:
    case CIFS_SUPER_MAGIC:
    case SMB2_SUPER_MAGIC:
    case V9FS_MAGIC:
    case AFS_SUPER_MAGIC:
    case AFS_FS_MAGIC:
        return IO_MOUNT_OTHER;
    default:
        return IO_MOUNT_LOCAL;
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

enum io_mount io_mount_of(const char *path)
{
    char at[LIMIT_PATH];
    struct statfs info;
    int size = snprintf(at, sizeof(at), "%s", path);
    if (size <= 0 || (size_t)size >= sizeof(at))
        return IO_MOUNT_LOCAL;
    int rc = statfs(at, &info);
    while (rc != 0 && errno == ENOENT && cut_last(at))
        rc = statfs(at, &info);
    if (rc != 0 && errno == ENOENT) /* a name in the working directory */
        rc = statfs(".", &info);
    return rc == 0 ? kind_of_type((unsigned long)info.f_type) : IO_MOUNT_LOCAL;
}

bool io_locks(const char *dir)
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

/* ---- descriptors ---- */

#define DESCRIPTORS_MAX                                                                            \
    ((rlim_t)1 << 20) /* "unlimited" is a billion in places: tables grow by it */

uint64_t io_descriptors_raise(void)
{
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const rlim_t wanted = limit.rlim_max < DESCRIPTORS_MAX ? limit.rlim_max : DESCRIPTORS_MAX;
    if (limit.rlim_cur >= wanted)
        return limit.rlim_cur;
    const struct rlimit raised = { .rlim_cur = wanted, .rlim_max = limit.rlim_max };
    return setrlimit(RLIMIT_NOFILE, &raised) == 0 ? wanted : limit.rlim_cur;
}
