/*
 * A folder behind FUSE that misbehaves as told: a shared store for tests.
 *
 *   faulty_fs BACKING MOUNTPOINT RULES [FUSE's options]
 *
 * What is below MOUNTPOINT is what is below BACKING. RULES is a file that is read at every call; of
 * its lines "OP PART ACTION NUMBER" the first counts whose OP is the call's ("*": any) and whose
 * PART is in its path ("-": in any):
 *
 *   hang S    answered when the line is gone, or after S seconds. Who waits can't be killed
 *   delay MS  answered so much later
 *   errno E   fails, and does nothing
 *   once E    the first such call fails
 *   lost 0    done, but answered EEXIST: the repetition of a request whose answer was lost
 *
 * Each call that a line changed is a line of the file RULES.hits: "OP PATH ACTION".
 *
 * Invariant: nothing is held here while a call hangs, so that others go on. Open files know their
 * paths themselves, or FUSE's library would let nobody remove one meanwhile.
 */
#define FUSE_USE_VERSION 31

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define ONCE_MAX   64 /* lines with `once` that one mount sees */
#define LOOK_US    20000
#define ARGS_MAX   32

static const char *backing, *rules;
static pthread_mutex_t once_mutex = PTHREAD_MUTEX_INITIALIZER;
static char once_done[ONCE_MAX][PATH_BYTES]; /* under the mutex */
static int once_count;

struct rule {
    char op[32], part[256], action[32];
    int number;
    char line[PATH_BYTES];
};

/* What becomes of a call. */
struct fate {
    int error; /* negative: it isn't made */
    bool lost;
};

struct place {
    char path[PATH_BYTES];
};

struct open_file {
    int fd;
    char path[PATH_BYTES];
};

static struct open_file *file_of(const struct fuse_file_info *info)
{
    struct open_file *file;
    memcpy(&file, &info->fh, sizeof(file));
    return file;
}

static struct place below(const char *path)
{
    struct place place;
    if (snprintf(place.path, sizeof(place.path), "%s%s", backing, path) >= PATH_BYTES)
        abort();
    return place;
}

static bool find_rule(const char *op, const char *path, struct rule *out)
{
    bool found = false;
    FILE *file = fopen(rules, "re");
    while (file != NULL && !found && fgets(out->line, sizeof(out->line), file) != NULL) {
        found = sscanf(out->line, "%31s %255s %31s %d", out->op, out->part, out->action,
                       &out->number) == 4 &&
                (strcmp(out->op, "*") == 0 || strcmp(out->op, op) == 0) &&
                (strcmp(out->part, "-") == 0 || strstr(path, out->part) != NULL);
    }
    if (file != NULL)
        (void)fclose(file);
    return found;
}

/* Whether no call met this line before. */
static bool take_once(const char *line)
{
    bool first = true;
    (void)pthread_mutex_lock(&once_mutex);
    for (int i = 0; i < once_count && first; i++)
        first = strcmp(once_done[i], line) != 0;
    if (first && once_count < ONCE_MAX)
        (void)snprintf(once_done[once_count++], PATH_BYTES, "%s", line);
    (void)pthread_mutex_unlock(&once_mutex);
    return first;
}

static void note_hit(const char *op, const char *path, const char *action)
{
    char name[PATH_BYTES], line[2 * PATH_BYTES];
    (void)snprintf(name, sizeof(name), "%s.hits", rules);
    int size = snprintf(line, sizeof(line), "%s %s %s\n", op, path, action);
    int fd = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)size) != size)
        abort();
    (void)close(fd);
}

static void hang(const char *op, const char *path, const struct rule *rule)
{
    struct rule now;
    for (long left_us = rule->number * 1000000L; left_us > 0; left_us -= LOOK_US) {
        if (!find_rule(op, path, &now) || strcmp(now.line, rule->line) != 0)
            return;
        (void)usleep(LOOK_US);
    }
}

static struct fate fate_of(const char *op, const char *path)
{
    struct rule rule;
    struct fate fate = { .error = 0 };
    if (!find_rule(op, path, &rule))
        return fate;
    bool once = strcmp(rule.action, "once") == 0;
    if (once && !take_once(rule.line))
        return fate;
    note_hit(op, path, rule.action);
    if (once || strcmp(rule.action, "errno") == 0) {
        fate.error = -rule.number;
    } else if (strcmp(rule.action, "lost") == 0) {
        fate.lost = true;
    } else if (strcmp(rule.action, "delay") == 0) {
        (void)usleep((useconds_t)rule.number * 1000);
    } else if (strcmp(rule.action, "hang") == 0) {
        hang(op, path, &rule);
    }
    return fate;
}

/* The answer to a call that came to rc. */
static int answer(struct fate fate, long rc)
{
    if (rc < 0)
        return -errno;
    return fate.lost ? -EEXIST : (int)rc;
}

static int fs_getattr(const char *path, struct stat *out, struct fuse_file_info *info)
{
    const struct open_file *file = info == NULL ? NULL : file_of(info);
    struct fate fate = fate_of("stat", file == NULL ? path : file->path);
    if (fate.error < 0)
        return fate.error;
    return answer(fate, file == NULL ? lstat(below(path).path, out) : fstat(file->fd, out));
}

static int fs_mkdir(const char *path, mode_t mode)
{
    struct fate fate = fate_of("mkdir", path);
    return fate.error < 0 ? fate.error : answer(fate, mkdir(below(path).path, mode));
}

static int fs_unlink(const char *path)
{
    struct fate fate = fate_of("unlink", path);
    return fate.error < 0 ? fate.error : answer(fate, unlink(below(path).path));
}

static int fs_rmdir(const char *path)
{
    struct fate fate = fate_of("rmdir", path);
    return fate.error < 0 ? fate.error : answer(fate, rmdir(below(path).path));
}

static int fs_rename(const char *from, const char *to, unsigned flags)
{
    struct fate fate = fate_of("rename", to);
    if (flags != 0)
        return -EINVAL;
    return fate.error < 0 ? fate.error : answer(fate, rename(below(from).path, below(to).path));
}

static int fs_link(const char *from, const char *to)
{
    struct fate fate = fate_of("link", to);
    return fate.error < 0 ? fate.error : answer(fate, link(below(from).path, below(to).path));
}

static int fs_truncate(const char *path, off_t size, struct fuse_file_info *info)
{
    const struct open_file *file = info == NULL ? NULL : file_of(info);
    struct fate fate = fate_of("truncate", file == NULL ? path : file->path);
    if (fate.error < 0)
        return fate.error;
    return answer(fate,
                  file == NULL ? truncate(below(path).path, size) : ftruncate(file->fd, size));
}

static int open_below(const char *op, const char *path, int flags, mode_t mode,
                      struct fuse_file_info *info)
{
    struct fate fate = fate_of(op, path);
    if (fate.error < 0)
        return fate.error;
    struct open_file *file = calloc(1, sizeof(*file));
    if (file == NULL)
        return -ENOMEM;
    (void)snprintf(file->path, sizeof(file->path), "%s", path);
    file->fd = open(below(path).path, flags | O_CLOEXEC, mode);
    if (file->fd < 0) {
        int error = errno;
        free(file);
        return -error;
    }
    memcpy(&info->fh, &file, sizeof(file));
    return 0;
}

static int fs_open(const char *path, struct fuse_file_info *info)
{
    return open_below("open", path, info->flags & ~(O_DIRECT | O_CREAT | O_EXCL), 0, info);
}

static int fs_create(const char *path, mode_t mode, struct fuse_file_info *info)
{
    return open_below("create", path, (info->flags & ~O_DIRECT) | O_CREAT, mode, info);
}

static int fs_read(const char *path, char *data, size_t size, off_t at, struct fuse_file_info *info)
{
    (void)path;
    struct fate fate = fate_of("read", file_of(info)->path);
    return fate.error < 0 ? fate.error : answer(fate, pread(file_of(info)->fd, data, size, at));
}

static int fs_write(const char *path, const char *data, size_t size, off_t at,
                    struct fuse_file_info *info)
{
    (void)path;
    struct fate fate = fate_of("write", file_of(info)->path);
    return fate.error < 0 ? fate.error : answer(fate, pwrite(file_of(info)->fd, data, size, at));
}

static int fs_fsync(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path;
    (void)data_only;
    struct fate fate = fate_of("fsync", file_of(info)->path);
    return fate.error < 0 ? fate.error : answer(fate, fsync(file_of(info)->fd));
}

static int fs_flush(const char *path, struct fuse_file_info *info)
{
    (void)path;
    return fate_of("close", file_of(info)->path).error;
}

static int fs_release(const char *path, struct fuse_file_info *info)
{
    (void)path;
    struct open_file *file = file_of(info);
    int rc = close(file->fd) < 0 ? -errno : 0;
    free(file);
    return rc;
}

static int fs_opendir(const char *path, struct fuse_file_info *info)
{
    return open_below("opendir", path, O_RDONLY | O_DIRECTORY, 0, info);
}

static int fs_fsyncdir(const char *path, int data_only, struct fuse_file_info *info)
{
    (void)path;
    (void)data_only;
    struct fate fate = fate_of("fsyncdir", file_of(info)->path);
    return fate.error < 0 ? fate.error : answer(fate, fsync(file_of(info)->fd));
}

static int fs_statfs(const char *path, struct statvfs *out)
{
    struct fate fate = fate_of("statfs", path);
    return fate.error < 0 ? fate.error : answer(fate, statvfs(below(path).path, out));
}

static void *fs_init(struct fuse_conn_info *connection, struct fuse_config *config)
{
    (void)connection;
    config->nullpath_ok = 1;
    config->hard_remove = 1;
    return NULL;
}

static int fs_readdir(const char *path, void *out, fuse_fill_dir_t add, off_t at,
                      struct fuse_file_info *info, enum fuse_readdir_flags flags)
{
    (void)path;
    (void)at;
    (void)flags;
    const struct open_file *file = file_of(info);
    struct fate fate = fate_of("readdir", file->path);
    if (fate.error < 0)
        return fate.error;
    DIR *folder = opendir(below(file->path).path);
    if (folder == NULL)
        return -errno;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;)
        (void)add(out, entry->d_name, NULL, 0, 0);
    (void)closedir(folder);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct fuse_operations operations = {
        .getattr = fs_getattr,
        .mkdir = fs_mkdir,
        .unlink = fs_unlink,
        .rmdir = fs_rmdir,
        .rename = fs_rename,
        .link = fs_link,
        .truncate = fs_truncate,
        .open = fs_open,
        .create = fs_create,
        .read = fs_read,
        .write = fs_write,
        .fsync = fs_fsync,
        .flush = fs_flush,
        .release = fs_release,
        .opendir = fs_opendir,
        .releasedir = fs_release,
        .fsyncdir = fs_fsyncdir,
        .statfs = fs_statfs,
        .init = fs_init,
        .readdir = fs_readdir,
    };
    if (argc < 4 || argc >= ARGS_MAX) {
        (void)fprintf(stderr, "usage: faulty_fs BACKING MOUNTPOINT RULES [OPTION...]\n");
        return 2;
    }
    backing = argv[1];
    rules = argv[3];
    char *fuse_argv[ARGS_MAX] = { argv[0], argv[2], "-f" };
    int count = 3;
    for (int i = 4; i < argc; i++)
        fuse_argv[count++] = argv[i];
    return fuse_main(count, fuse_argv, &operations, NULL);
}
