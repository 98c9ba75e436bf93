/*
 * An NFS mount without the kernel's client: FUSE over libnfs. For tests of stores.
 *
 *   nfs_fuse URL MOUNTPOINT [FUSE's options]     nfs://10.77.0.4/export?version=4
 *
 * As the kernel's client does, it remembers attributes, names and missing names for as long as
 * FUSE's options say (attr_timeout, entry_timeout, negative_timeout), asks anew when a file is
 * opened, and commits what was written when one is closed. Unlike it, it doesn't rename files that
 * are removed while they are open: reading on fails, as after a removal by another machine.
 *
 * One thread, as libnfs wants it. A lease of NFSv4 isn't renewed while nothing is open or read: a
 * mount that rests for longer than the server's lease ends with an error.
 */
#define FUSE_USE_VERSION 31

#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <nfsc/libnfs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define OPTIONS_MAX   32
#define PATH_BYTES    4096
#define HOST_BYTES    65
#define NFS4_VERIFIER 8
#define PIECE_V3      65536
#define PIECE_V4      2048 /* libnfs 4 has room for 4 KiB in one request */

static struct nfs_context *nfs;
static size_t piece_max; /* bytes that one call may write */

/* A file that is open for reading is opened once, whoever reads it: of two opens by one client the
 * server counts on one state, and libnfs knows only the first as it was then. */
struct open_file {
    struct open_file *next;
    struct nfsfh *handle;
    unsigned users;
    bool shared;
    char path[PATH_BYTES]; /* "" once it was removed or renamed */
};

static struct open_file *open_files;

static struct open_file *entry_of(const struct fuse_file_info *info)
{
    struct open_file *file;
    memcpy(&file, &info->fh, sizeof(file));
    return file;
}

static struct nfsfh *file_of(const struct fuse_file_info *info)
{
    return entry_of(info)->handle;
}

static int keep(struct nfsfh *handle, const char *path, bool shared, struct fuse_file_info *info)
{
    struct open_file *file = calloc(1, sizeof(*file));
    if (file == NULL || strlen(path) >= PATH_BYTES)
        abort();
    *file =
        (struct open_file){ .next = open_files, .handle = handle, .users = 1, .shared = shared };
    memcpy(file->path, path, strlen(path));
    open_files = file;
    memcpy(&info->fh, &file, sizeof(file));
    return 0;
}

static bool share(const char *path, struct fuse_file_info *info)
{
    struct open_file *file = open_files;
    while (file != NULL && (!file->shared || strcmp(file->path, path) != 0))
        file = file->next;
    if (file == NULL)
        return false;
    file->users++;
    memcpy(&info->fh, &file, sizeof(file));
    return true;
}

static void forget(const char *path)
{
    for (struct open_file *file = open_files; file != NULL; file = file->next) {
        if (strcmp(file->path, path) == 0)
            file->path[0] = '\0';
    }
}

/* libnfs says EIO of a handle that the server doesn't know any more. */
static int answer(int rc)
{
    return rc < 0 && strstr(nfs_get_error(nfs), "STALE") != NULL ? -ESTALE : rc;
}

static int fs_getattr(const char *path, struct stat *out, struct fuse_file_info *info)
{
    struct nfs_stat_64 found;
    int rc =
        info == NULL ? nfs_lstat64(nfs, path, &found) : nfs_fstat64(nfs, file_of(info), &found);
    if (rc < 0)
        return answer(rc);
    *out = (struct stat){ .st_ino = found.nfs_ino,
                          .st_mode = (mode_t)found.nfs_mode,
                          .st_nlink = found.nfs_nlink,
                          .st_uid = (uid_t)found.nfs_uid,
                          .st_gid = (gid_t)found.nfs_gid,
                          .st_size = (off_t)found.nfs_size,
                          .st_blksize = 4096,
                          .st_blocks = (blkcnt_t)((found.nfs_size + 511) / 512) };
    out->st_mtim = (struct timespec){ (time_t)found.nfs_mtime, (long)found.nfs_mtime_nsec };
    out->st_ctim = (struct timespec){ (time_t)found.nfs_ctime, (long)found.nfs_ctime_nsec };
    out->st_atim = out->st_mtim;
    return 0;
}

static struct nfsdir *folder_of(const struct fuse_file_info *info)
{
    struct nfsdir *folder;
    memcpy(&folder, &info->fh, sizeof(folder));
    return folder;
}

static int fs_opendir(const char *path, struct fuse_file_info *info)
{
    struct nfsdir *folder = NULL;
    int rc = nfs_opendir(nfs, path, &folder);
    memcpy(&info->fh, &folder, sizeof(folder));
    return answer(rc);
}

static int fs_readdir(const char *path, void *out, fuse_fill_dir_t add, off_t at,
                      struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
    (void)path;
    (void)at;
    (void)flags;
    nfs_rewinddir(nfs, folder_of(info));
    for (struct nfsdirent *entry; (entry = nfs_readdir(nfs, folder_of(info))) != NULL;)
        (void)add(out, entry->name, NULL, 0, 0);
    return 0;
}

static int fs_releasedir(const char *path, struct fuse_file_info *info)
{
    (void)path;
    nfs_closedir(nfs, folder_of(info));
    return 0;
}

static int fs_mkdir(const char *path, mode_t mode)
{
    return answer(nfs_mkdir2(nfs, path, (int)mode));
}

static int fs_unlink(const char *path)
{
    forget(path);
    return answer(nfs_unlink(nfs, path));
}

static int fs_rmdir(const char *path)
{
    return answer(nfs_rmdir(nfs, path));
}

static int fs_rename(const char *from, const char *to, unsigned flags)
{
    forget(from);
    forget(to);
    return flags != 0 ? -EINVAL : answer(nfs_rename(nfs, from, to));
}

static int fs_link(const char *from, const char *to)
{
    return answer(nfs_link(nfs, from, to));
}

static int fs_chmod(const char *path, mode_t mode, struct fuse_file_info *info)
{
    int rc =
        info == NULL ? nfs_chmod(nfs, path, (int)mode) : nfs_fchmod(nfs, file_of(info), (int)mode);
    return answer(rc);
}

static int fs_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
    int rc = info == NULL ? nfs_truncate(nfs, path, (uint64_t)size)
                          : nfs_ftruncate(nfs, file_of(info), (uint64_t)size);
    return answer(rc);
}

static int fs_open(const char *path, struct fuse_file_info *info)
{
    bool reads = (info->flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY;
    if (reads && share(path, info))
        return 0;
    struct nfsfh *handle = NULL;
    int rc = nfs_open(nfs, path, info->flags & (O_ACCMODE | O_TRUNC | O_SYNC), &handle);
    return rc < 0 ? answer(rc) : keep(handle, path, reads, info);
}

static int fs_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
    struct nfsfh *handle = NULL;
    int flags = O_CREAT | (info->flags & (O_ACCMODE | O_EXCL | O_TRUNC));
    int rc = nfs_open2(nfs, path, flags, (int)mode, &handle);
    return rc < 0 ? answer(rc) : keep(handle, path, false, info);
}

static int fs_read(const char *path, char *data, size_t size, off_t at, struct fuse_file_info *info)
{
    (void)path;
    return answer(nfs_pread(nfs, file_of(info), (uint64_t)at, size, data));
}

static int fs_write(const char *path, const char *data, size_t size, off_t at,
                    struct fuse_file_info *info)
{
    (void)path;
    size_t done = 0;
    while (done < size) {
        size_t piece = size - done < piece_max ? size - done : piece_max;
        int rc = nfs_pwrite(nfs, file_of(info), (uint64_t)at + done, piece, data + done);
        if (rc <= 0)
            return rc < 0 ? answer(rc) : -EIO;
        done += (size_t)rc;
    }
    return (int)done;
}

static int fs_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path;
    (void)data_only;
    return answer(nfs_fsync(nfs, file_of(info)));
}

static int fs_flush(const char *path, struct fuse_file_info *info)
{
    bool wrote = (info->flags & O_ACCMODE) != O_RDONLY;
    return wrote ? fs_fsync(path, 0, info) : 0;
}

static int fs_release(const char *path, struct fuse_file_info *info)
{
    (void)path;
    struct open_file *file = entry_of(info);
    if (--file->users > 0)
        return 0;
    struct open_file **link = &open_files;
    while (*link != file)
        link = &(*link)->next;
    *link = file->next;
    int rc = nfs_close(nfs, file->handle);
    free(file);
    return answer(rc);
}

/* Names are safe at the server when it has answered. */
static int fs_fsyncdir(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path;
    (void)data_only;
    (void)info;
    return 0;
}

static int fs_statfs(const char *path, struct statvfs *out)
{
    return answer(nfs_statvfs(nfs, path, out));
}

static int fs_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *info)
{
    (void)path;
    (void)times;
    (void)info;
    return 0;
}

static void *fs_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    config->nullpath_ok = 1;
    config->hard_remove = 1;
    return NULL;
}

/* libnfs takes the process's number and the time: on two machines those may be the same. */
static void name_client(void)
{
    char host[HOST_BYTES] = "";
    if (nfs == NULL || gethostname(host, sizeof(host) - 1) < 0)
        return;
    uint64_t verifier = (uint64_t)time(NULL) << 32 | (uint32_t)getpid();
    char bytes[NFS4_VERIFIER + 1] = "";
    memcpy(bytes, &verifier, NFS4_VERIFIER);
    nfs4_set_client_name(nfs, host);
    nfs4_set_verifier(nfs, bytes);
}

int main(int argc, char **argv)
{
    static const struct fuse_operations operations = {
        .getattr = fs_getattr,
        .opendir = fs_opendir,
        .readdir = fs_readdir,
        .releasedir = fs_releasedir,
        .mkdir = fs_mkdir,
        .unlink = fs_unlink,
        .rmdir = fs_rmdir,
        .rename = fs_rename,
        .link = fs_link,
        .chmod = fs_chmod,
        .truncate = fs_truncate,
        .open = fs_open,
        .create = fs_create,
        .read = fs_read,
        .write = fs_write,
        .fsync = fs_fsync,
        .flush = fs_flush,
        .release = fs_release,
        .fsyncdir = fs_fsyncdir,
        .statfs = fs_statfs,
        .utimens = fs_utimens,
        .init = fs_init,
    };
    if (argc < 3 || argc >= OPTIONS_MAX - 2) {
        (void)fprintf(stderr, "usage: nfs_fuse URL MOUNTPOINT [OPTION...]\n");
        return 2;
    }
    nfs = nfs_init_context();
    piece_max = strstr(argv[1], "version=4") != NULL ? PIECE_V4 : PIECE_V3;
    name_client();
    struct nfs_url *url = nfs == NULL ? NULL : nfs_parse_url_dir(nfs, argv[1]);
    if (url == NULL || nfs_mount(nfs, url->server, url->path) != 0) {
        (void)fprintf(stderr, "nfs_fuse: %s\n", nfs == NULL ? "no memory" : nfs_get_error(nfs));
        return 1;
    }
    char *fuse_argv[OPTIONS_MAX] = { argv[0], argv[2], "-f", "-s" };
    int count = 4;
    for (int i = 3; i < argc; i++)
        fuse_argv[count++] = argv[i];
    return fuse_main(count, fuse_argv, &operations, NULL);
}
