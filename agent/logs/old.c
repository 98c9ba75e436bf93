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

struct job_files {
    char name[LIMIT_NAME];
    int64_t newest_s;
    int64_t quiet_s; /* what was written to after that is left alone */
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

/* ---- what a job has ---- */

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
static bool note_time(struct job_files *job, const char *path, bool *out_folder)
{
    struct stat about;
    if (lstat(path, &about) != 0)
        return false;
    if (about.st_mtim.tv_sec > job->newest_s)
        job->newest_s = about.st_mtim.tv_sec;
    job->bytes += (uint64_t)about.st_blocks * 512;
    *out_folder = S_ISDIR(about.st_mode);
    return true;
}

static void note_file(void *arg, const char *path, const char *name)
{
    struct job_files *job = arg;
    bool folder = false;
    if (note_time(job, path, &folder) && !folder && ends_with(name, ".log") &&
        job->newest_s <= job->quiet_s)
        job->alive = job->alive || is_locked(path);
}

static void note_generation(void *arg, const char *path, const char *name)
{
    bool folder = false;
    (void)name;
    if (note_time(arg, path, &folder) && folder)
        each_entry(path, O_NOFOLLOW, note_file, arg);
}

struct pass {
    struct old_logs *logs;
    struct job_files *jobs;
    size_t count, capacity;
};

static void note_job(void *arg, const char *path, const char *name)
{
    struct pass *pass = arg;
    struct job_files job = { .quiet_s = pass->logs->now_s - pass->logs->quiet_s };
    bool folder = false;
    if (atomic_load(&pass->logs->stop) || pass->count >= OLD_LOGS_JOBS ||
        strlen(name) >= LIMIT_NAME || !note_time(&job, path, &folder) || !folder)
        return;
    if (pass->count == pass->capacity) {
        const size_t capacity = pass->capacity ? 2 * pass->capacity : 64;
        struct job_files *more = realloc(pass->jobs, capacity * sizeof(*more));
        if (more == NULL)
            return;
        pass->jobs = more;
        pass->capacity = capacity;
    }
    (void)snprintf(job.name, sizeof(job.name), "%s", name);
    each_entry(path, O_NOFOLLOW, note_generation, &job);
    pass->jobs[pass->count++] = job;
    pass->logs->bytes += job.bytes;
    pass->logs->jobs++;
}

/* ---- removal ---- */

/* Only what an agent makes there, whatever else somebody put beside it. */
static void remove_file(void *arg, const char *path, const char *name)
{
    (void)arg;
    if (name[0] == 'r' &&
        (ends_with(name, ".log") || ends_with(name, ".words") || ends_with(name, ".flight")))
        (void)unlink(path);
}

/* A generation that is formed just now has a new folder, and the job's isn't empty then. */
static void remove_generation(void *arg, const char *path, const char *name)
{
    const struct old_logs *logs = arg;
    struct job_files files = { .quiet_s = logs->now_s - logs->quiet_s };
    note_generation(&files, path, name);
    if (name[0] != 'g' || files.alive || files.newest_s > files.quiet_s)
        return;
    each_entry(path, O_NOFOLLOW, remove_file, NULL);
    (void)rmdir(path);
}

static bool remove_job(struct old_logs *logs, const struct job_files *job)
{
    char path[LIMIT_PATH];
    const int size = snprintf(path, sizeof(path), "%s/%s", logs->folder, job->name);
    if (size < 0 || (size_t)size >= sizeof(path))
        return false;
    each_entry(path, O_NOFOLLOW, remove_generation, logs);
    return rmdir(path) == 0;
}

static int older(const void *a, const void *b)
{
    const int64_t left = ((const struct job_files *)a)->newest_s;
    const int64_t right = ((const struct job_files *)b)->newest_s;
    return left < right ? -1 : left > right;
}

void old_logs_trim(struct old_logs *logs)
{
    struct pass pass = { .logs = logs };
    logs->jobs = logs->removed = 0;
    logs->bytes = logs->removed_bytes = 0;
    each_entry(logs->folder, 0, note_job, &pass);
    if (pass.count > 0)
        qsort(pass.jobs, pass.count, sizeof(*pass.jobs), older);
    for (size_t i = 0; i < pass.count && !atomic_load(&logs->stop); i++) {
        const struct job_files *job = &pass.jobs[i];
        if (logs->bytes - logs->removed_bytes <= logs->bytes_max ||
            job->newest_s > logs->now_s - logs->quiet_s)
            break; /* those that follow are younger */
        if (job->alive || !remove_job(logs, job))
            continue;
        logs->removed++;
        logs->removed_bytes += job->bytes;
    }
    free(pass.jobs);
}
