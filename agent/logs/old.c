#include "agent/logs/old.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

/* The files of one generation of a job. */
struct files {
    char name[LIMIT_NAME + 16]; /* JOB/gN */
    int64_t newest_s;
    int64_t quiet_s; /* files that were written to after that are left alone */
    uint64_t bytes;
    bool alive;
};

/* ---- a folder's entries ---- */

/* Calls fn with the path of each, of a folder; of a link to one (O_NOFOLLOW in flags) none. */
static void each_entry(const char *folder, int flags,
                       void (*fn)(void *arg, const char *path, const char *name), void *arg)
{
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags);
    DIR *stream = fd >= 0 ? fdopendir(fd) : NULL;
    if (stream == NULL) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    const struct dirent *found = NULL;
    while ((found = readdir(stream)) != NULL) {
        char path[LIMIT_PATH];
        const int size = snprintf(path, sizeof(path), "%s/%s", folder, found->d_name);
        if (found->d_name[0] != '.' && size > 0 && (size_t)size < sizeof(path))
            fn(arg, path, found->d_name);
    }
    (void)closedir(stream);
}

/* ---- what a generation has ---- */

/* A worker holds it from before it exists until it is gone. Only of files that are old: looking
 * takes the lock for a moment, and a worker that starts then would be refused its own. */
static bool is_locked(const char *path)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0;
}

static bool ends_with(const char *name, const char *end)
{
    const size_t size = strlen(name), end_size = strlen(end);
    return size >= end_size && strcmp(name + size - end_size, end) == 0;
}

/* The folder's own time counts, too: one that is just made is empty. */
static bool note_time(struct files *files, const char *path, bool *out_folder)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        return false;
    if (about.st_mtim.tv_sec > files->newest_s)
        files->newest_s = about.st_mtim.tv_sec;
    files->bytes += (uint64_t)about.st_blocks * 512;
    *out_folder = S_ISDIR(about.st_mode);
    return true;
}

static void note_file(void *arg, const char *path, const char *name)
{
    struct files *files = arg;
    bool folder = false;
    if (note_time(files, path, &folder) && !folder && ends_with(name, ".log") &&
        files->newest_s <= files->quiet_s)
        files->alive = files->alive || is_locked(path);
}

struct pass {
    struct old_logs *logs;
    const char *job;
    struct files *list;
    size_t count, capacity;
};

static void note_generation(void *arg, const char *path, const char *name)
{
    struct pass *pass = arg;
    struct files files = { .quiet_s = pass->logs->now_s - pass->logs->quiet_s };
    bool folder = false;
    const int size = snprintf(files.name, sizeof(files.name), "%s/%s", pass->job, name);
    if (atomic_load(&pass->logs->stop) || pass->count >= OLD_LOGS_MAX || name[0] != 'g' ||
        size < 0 || (size_t)size >= sizeof(files.name) || !note_time(&files, path, &folder) ||
        !folder)
        return;
    if (pass->count == pass->capacity) {
        const size_t capacity = pass->capacity ? 2 * pass->capacity : 64;
        struct files *more = realloc(pass->list, capacity * sizeof(*more));
        if (more == NULL)
            return;
        pass->list = more;
        pass->capacity = capacity;
    }
    each_entry(path, O_NOFOLLOW, note_file, &files);
    pass->list[pass->count++] = files;
    pass->logs->bytes += files.bytes;
    pass->logs->generations++;
}

static void note_job(void *arg, const char *path, const char *name)
{
    struct pass *pass = arg;
    pass->job = name;
    each_entry(path, O_NOFOLLOW, note_generation, pass);
}

/* ---- removal ---- */

/* Removes a file, if it is one that an agent makes there; leaves alone whatever else somebody put
 * beside it. */
static void remove_file(void *arg, const char *path, const char *name)
{
    (void)arg;
    if (name[0] == 'r' && (ends_with(name, ".log") || ends_with(name, ".log" LOG_TURN_SUFFIX) ||
                           ends_with(name, ".words") || ends_with(name, ".flight")))
        (void)unlink(path);
}

/* Removes a generation's files, and its job's folder if nothing else is in it. */
static bool remove_generation(struct old_logs *logs, const struct files *files)
{
    char path[LIMIT_PATH];
    const int size = snprintf(path, sizeof(path), "%s/%s", logs->folder, files->name);
    if (size < 0 || (size_t)size >= sizeof(path))
        return false;
    each_entry(path, O_NOFOLLOW, remove_file, NULL);
    if (rmdir(path) != 0)
        return false;
    *strrchr(path, '/') = '\0';
    (void)rmdir(path);
    return true;
}

static int older(const void *a, const void *b)
{
    const int64_t left = ((const struct files *)a)->newest_s;
    const int64_t right = ((const struct files *)b)->newest_s;
    return left < right ? -1 : left > right;
}

void old_logs_trim(struct old_logs *logs)
{
    struct pass pass = { .logs = logs };
    logs->generations = logs->removed = 0;
    logs->bytes = logs->removed_bytes = 0;
    each_entry(logs->folder, 0, note_job, &pass);
    if (pass.count > 0)
        qsort(pass.list, pass.count, sizeof(*pass.list), older);
    for (size_t i = 0; i < pass.count && !atomic_load(&logs->stop); i++) {
        const struct files *files = &pass.list[i];
        if (logs->bytes - logs->removed_bytes <= logs->bytes_max ||
            files->newest_s > files->quiet_s)
            break; /* those that follow are younger */
        if (files->alive || !remove_generation(logs, files))
            continue;
        logs->removed++;
        logs->removed_bytes += files->bytes;
    }
    free(pass.list);
}
