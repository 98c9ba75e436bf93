#include "client/home/home.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/base/client.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"

#define ENVIRON_BYTES (1 << 20)
#define POLL_MS       20

static int open_lock(const struct paths *paths, int flags)
{
    char path[LIMIT_PATH];
    if (paths_join(paths, path, sizeof(path), "supervisor.lock") != ST_OK)
        return -1;
    return open(path, flags | O_CLOEXEC, 0644);
}

char *home_user_name(uid_t uid, char *out, size_t capacity)
{
    const struct passwd *user = getpwuid(uid);
    if (user != NULL) {
        (void)snprintf(out, capacity, "%s", user->pw_name);
    } else {
        (void)snprintf(out, capacity, "%lld", (long long)uid);
    }
    return out;
}

bool home_is_ours(const struct paths *paths)
{
    char folder[sizeof(paths->home)];
    char user[64];
    struct stat info;
    (void)snprintf(folder, sizeof(folder), "%s", paths->home);
    for (char *slash = strrchr(folder, '/'); stat(folder, &info) != 0 && errno == ENOENT;
         slash = strrchr(folder, '/')) {
        if (slash == NULL || slash == folder)
            return true;
        *slash = '\0'; /* what is there of the way to it */
    }
    if (access(folder, W_OK | X_OK) == 0)
        return true;
    int error = errno;
    if (stat(folder, &info) == 0 && error == EACCES) {
        client_error("%s: %s; it belongs to %s. Set CAIRN_HOME to a folder of your own", folder,
                     strerror(error), home_user_name(info.st_uid, user, sizeof(user)));
    } else {
        client_error("%s: %s. Set CAIRN_HOME to a folder of your own", folder, strerror(error));
    }
    return false;
}

int64_t home_supervisor(const struct paths *paths)
{
    auto_close int fd = open_lock(paths, O_RDONLY);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    char text[32] = "";
    ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
    long long pid = size > 0 ? strtoll(text, NULL, 10) : 0;
    return pid > 0 ? pid : 1; /* held, its pid not written yet */
}

/* Out of the cleanup's reach. */
static int keep_fd(int *fd)
{
    int kept = *fd;
    *fd = -1;
    return kept;
}

enum status home_lock(const struct paths *paths, int *out_fd)
{
    auto_close int fd = open_lock(paths, O_RDWR | O_CREAT);
    if (fd < 0)
        return status_from_errno(errno);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? ST_EXISTS : status_from_errno(errno);
    char text[32];
    int size = snprintf(text, sizeof(text), "%lld\n", (long long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)size, 0) != size)
        return status_from_errno(errno);
    *out_fd = keep_fd(&fd);
    return ST_OK;
}

/* Which of our programs the file behind /proc/PID/exe is; 0: none. */
static unsigned program_of(pid_t pid)
{
    static const struct {
        const char *name;
        unsigned program;
    } programs[] = { { "cairnd", HOME_COORDINATOR },
                     { "cairn-agent", HOME_AGENT },
                     { "cairn-observer", HOME_OBSERVER },
                     { "cairn-trainer", HOME_TRAINER },
                     { "cairn", HOME_SUPERVISOR } };
    char exe[64];
    char target[PATH_MAX];
    (void)snprintf(exe, sizeof(exe), "/proc/%lld/exe", (long long)pid);
    ssize_t size = readlink(exe, target, sizeof(target) - 1);
    if (size <= 0)
        return 0;
    target[size] = '\0';
    char *deleted = strstr(target, " (deleted)"); /* the file was replaced by a newer build */
    if (deleted != NULL)
        *deleted = '\0';
    const char *slash = strrchr(target, '/');
    for (size_t i = 0; slash != NULL && i < sizeof(programs) / sizeof(programs[0]); i++) {
        if (strcmp(slash + 1, programs[i].name) == 0)
            return programs[i].program;
    }
    return 0;
}

/* All of a small /proc file; NULL: it can't be read. *out_size without the NUL that is added. */
static char *read_proc(pid_t pid, const char *name, size_t *out_size)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%lld/%s", (long long)pid, name);
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = malloc(ENVIRON_BYTES + 1);
    size_t used = 0;
    ssize_t size = 1;
    while (text != NULL && size > 0 && used < ENVIRON_BYTES) {
        size = read(fd, text + used, ENVIRON_BYTES - used);
        used += size > 0 ? (size_t)size : 0;
    }
    if (text == NULL || size < 0) {
        free(text);
        return NULL;
    }
    text[used] = '\0';
    *out_size = used;
    return text;
}

char *home_supervisor_words(const struct paths *paths, size_t *out_size)
{
    int64_t pid = home_supervisor(paths);
    return pid <= 1 ? NULL : read_proc((pid_t)pid, "cmdline", out_size);
}

char *home_environment(pid_t pid, size_t *out_size)
{
    return read_proc(pid, "environ", out_size);
}

/* Does CAIRN_HOME of the process name this folder? */
static bool has_home(pid_t pid, const struct stat *home)
{
    size_t size = 0;
    auto_free char *text = home_environment(pid, &size);
    for (size_t at = 0; text != NULL && at < size; at += strlen(text + at) + 1) {
        struct stat st;
        if (strncmp(text + at, "CAIRN_HOME=", 11) == 0) {
            return stat(text + at + 11, &st) == 0 && st.st_dev == home->st_dev &&
                   st.st_ino == home->st_ino;
        }
    }
    return false;
}

/* `cairn supervise`, not another command of the client. */
static bool is_supervisor(pid_t pid)
{
    size_t size = 0;
    auto_free char *text = read_proc(pid, "cmdline", &size);
    if (text == NULL)
        return false;
    size_t first = strlen(text) + 1;
    return first < size && strcmp(text + first, "supervise") == 0;
}

static bool is_zombie(pid_t pid)
{
    size_t size = 0;
    auto_free char *text = read_proc(pid, "stat", &size);
    const char *paren = text == NULL ? NULL : strrchr(text, ')');
    return paren != NULL && paren[1] == ' ' && (paren[2] == 'Z' || paren[2] == 'X');
}

static bool belongs(pid_t pid, unsigned programs, const struct stat *home)
{
    unsigned program = program_of(pid);
    if ((program & programs) == 0 || is_zombie(pid) || !has_home(pid, home))
        return false;
    return program != HOME_SUPERVISOR || is_supervisor(pid);
}

size_t home_processes(const struct paths *paths, unsigned programs, pid_t *out, size_t capacity)
{
    struct stat home;
    size_t count = 0;
    if (stat(paths->home, &home) != 0)
        return 0;
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    while (proc != NULL && count < capacity && (entry = readdir(proc)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid != getpid() && belongs(pid, programs, &home))
            out[count++] = pid;
    }
    if (proc != NULL)
        (void)closedir(proc);
    return count;
}

static void signal_all(const pid_t *pids, size_t count, int number)
{
    for (size_t i = 0; i < count; i++) {
        if (getpgid(pids[i]) == pids[i])
            (void)kill(-pids[i], number);
        (void)kill(pids[i], number);
        (void)kill(pids[i], SIGCONT); /* a stopped one gets its signal, too */
    }
}

bool home_end(const struct paths *paths, unsigned programs, int grace_ms)
{
    pid_t *pids = malloc(HOME_PIDS_MAX * sizeof(*pids));
    if (pids == NULL)
        return false;
    int64_t until = clock_mono_ms(clock_system()) + grace_ms;
    size_t count = home_processes(paths, programs, pids, HOME_PIDS_MAX);
    signal_all(pids, count, SIGTERM);
    while (count > 0 && clock_mono_ms(clock_system()) < until) {
        (void)poll(NULL, 0, POLL_MS);
        count = home_processes(paths, programs, pids, HOME_PIDS_MAX);
    }
    for (int i = 0; i < 100 && count > 0; i++) {
        signal_all(pids, count, SIGKILL);
        (void)poll(NULL, 0, POLL_MS);
        count = home_processes(paths, programs, pids, HOME_PIDS_MAX);
    }
    free(pids);
    return count == 0;
}
