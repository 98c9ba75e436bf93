#include "client/home/home.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "client/base/client.h"
#include "client/home/process.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/limits.h"
#include "common/own/home.h"
#include "common/own/private.h"

#define POLL_MS    20
#define LOCK_TRIES 10

/* MAKE or 0. -1: there is none, or it is nobody's to trust. */
static int open_lock(const struct paths *paths, unsigned flags)
{
    char path[LIMIT_PATH];
    struct reason why;
    int fd = -1;
    if (paths_join(paths, path, sizeof(path), "supervisor.lock") != ST_OK ||
        private_file(AT_FDCWD, path, O_RDWR, flags | PRIVATE_MEND, &fd, NULL, &why) != ST_OK)
        return -1;
    return fd;
}

/* Claims the home as ours, closed to others; makes it if it is missing. Without `make` a missing
 * home is fine. */
static bool claim(const struct paths *paths, bool make)
{
    struct reason done, why = { "" };
    if (!make && access(paths->home, F_OK) != 0)
        return true;
    const enum status st = private_home_claim(paths, &done, &why);
    if (st == ST_OK && done.text[0] != '\0')
        client_error("%s", done.text);
    if (st == ST_OK)
        return true;
    client_error("%s. Set CAIRN_HOME to a folder of your own",
                 why.text[0] != '\0' ? why.text : status_string(st));
    return false;
}

bool home_is_ours(const struct paths *paths, bool make)
{
    char folder[sizeof(paths->home)];
    char user[PRIVATE_USER];
    struct stat info;
    (void)snprintf(folder, sizeof(folder), "%s", paths->home);
    for (char *slash = strrchr(folder, '/'); stat(folder, &info) != 0 && errno == ENOENT;
         slash = strrchr(folder, '/')) {
        if (slash == NULL || slash == folder)
            return true;
        *slash = '\0'; /* what is there of the way to it */
    }
    if (access(folder, W_OK | X_OK) == 0)
        return claim(paths, make);
    int error = errno;
    if (stat(folder, &info) == 0 && error == EACCES) {
        client_error("%s: %s; it belongs to %s. Set CAIRN_HOME to a folder of your own", folder,
                     strerror(error), private_user(info.st_uid, user));
    } else {
        client_error("%s: %s. Set CAIRN_HOME to a folder of your own", folder, strerror(error));
    }
    return false;
}

static int64_t read_number(int fd)
{
    char text[32] = "";
    const ssize_t size = pread(fd, text, sizeof(text) - 1, 0);
    const long long pid = size > 0 ? strtoll(text, NULL, 10) : 0;
    return pid > 0 && pid <= INT32_MAX ? pid : 0;
}

/* Returns the process that holds a lock by flock on that file, if this line of /proc/locks says so.
 * Such a line is "1: FLOCK  ADVISORY  WRITE 4711 08:02:131 0 EOF" (proc_locks(5)). 0: it is about
 * another file. */
static int64_t holder_in(char *line, const struct stat *info)
{
    char *words[6], *rest = NULL;
    char *word = strtok_r(line, " \n", &rest);
    size_t count = 0;
    for (; word != NULL && count < 6; word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    if (count < 6 || strcmp(words[1], "FLOCK") != 0)
        return 0;
    char *end = words[5];
    const unsigned long major_number = strtoul(end, &end, 16);
    const unsigned long minor_number = *end == ':' ? strtoul(end + 1, &end, 16) : ULONG_MAX;
    const unsigned long inode = *end == ':' ? strtoul(end + 1, &end, 10) : 0;
    const long long pid = strtoll(words[4], NULL, 10);
    const bool same = major_number == major(info->st_dev) && minor_number == minor(info->st_dev) &&
                      inode == info->st_ino && *end == '\0';
    return same && pid > 0 ? pid : 0;
}

/* Returns the process that holds a lock on the file, as the system knows it; 0: nobody, or nobody
 * who can be seen. */
static int64_t holder_of(int fd)
{
    char line[256];
    struct stat info;
    int64_t holder = 0;
    FILE *rows = fstat(fd, &info) == 0 ? fopen("/proc/locks", "re") : NULL;
    while (rows != NULL && holder == 0 && fgets(line, sizeof(line), rows) != NULL)
        holder = holder_in(line, &info);
    if (rows != NULL)
        (void)fclose(rows);
    return holder;
}

/* True if a process is neither a supervisor nor another command of ours, which holds the lock for a
 * moment. */
static bool is_stranger(int64_t pid)
{
    uid_t owner = 0;
    if (pid <= 0 || !process_owner((pid_t)pid, &owner))
        return false;
    return owner != geteuid() || process_program((pid_t)pid) != HOME_SUPERVISOR;
}

int64_t home_supervisor(const struct paths *paths)
{
    auto_close int fd = open_lock(paths, 0);
    if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
        return 0;
    const int64_t number = read_number(fd);
    if (number > 0 && process_supervises((pid_t)number))
        return number;
    const int64_t holder = holder_of(fd); /* the number may be of another space of processes */
    if (holder > 0 && process_supervises((pid_t)holder))
        return holder;
    return is_stranger(holder) ? 0 : HOME_UNSEEN;
}

bool home_lock_is_taken(const struct paths *paths, struct reason *out)
{
    char user[PRIVATE_USER], name[64] = "";
    uid_t owner = 0;
    size_t size = 0;
    auto_close int fd = open_lock(paths, 0);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return false;
    const int64_t holder = holder_of(fd);
    if (!is_stranger(holder) || !process_owner((pid_t)holder, &owner))
        return false;
    auto_free char *text = process_read((pid_t)holder, "comm", &size);
    (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(text != NULL ? text : "", "\n"),
                   text != NULL ? text : "");
    reason_set(
        out,
        "%s/supervisor.lock is held by process %lld (%s) of user %s, which is no supervisor: "
        "end it, or set CAIRN_HOME to another folder",
        paths->home, (long long)holder, name, private_user(owner, user));
    return true;
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
    auto_close int fd = open_lock(paths, PRIVATE_MAKE);
    if (fd < 0)
        return ST_REFUSED;
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return status_from_errno(errno);
        if (i == LOCK_TRIES)
            return ST_EXISTS;
        (void)poll(NULL, 0, POLL_MS); /* a command that looks holds it for a moment */
    }
    char text[32];
    int size = snprintf(text, sizeof(text), "%lld\n", (long long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)size, 0) != size)
        return status_from_errno(errno);
    *out_fd = keep_fd(&fd);
    return ST_OK;
}

void home_unlock(int fd)
{
    if (fd >= 0 && ftruncate(fd, 0) != 0)
        return; /* then its number stays: it is never taken for more than a hint */
}

char *home_supervisor_words(const struct paths *paths, size_t *out_size)
{
    int64_t pid = home_supervisor(paths);
    return pid <= 0 ? NULL : process_read((pid_t)pid, "cmdline", out_size);
}

char *home_environment(pid_t pid, size_t *out_size)
{
    return process_read(pid, "environ", out_size);
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
        if (pid != getpid() && process_belongs(pid, programs, &home))
            out[count++] = pid;
    }
    if (proc != NULL)
        (void)closedir(proc);
    return count;
}

/* Identifies the processes that are meant. */
struct meant {
    struct stat home;
    unsigned programs;
};

static bool is_meant(pid_t pid, const void *arg)
{
    const struct meant *meant = arg;
    return process_belongs(pid, meant->programs, &meant->home);
}

static void signal_all(const struct paths *paths, unsigned programs, const pid_t *pids,
                       size_t count, int number)
{
    struct meant meant = { .programs = programs };
    if (stat(paths->home, &meant.home) != 0)
        return;
    for (size_t i = 0; i < count; i++)
        process_signal(pids[i], number, true, is_meant, &meant);
}

bool home_end(const struct paths *paths, unsigned programs, int grace_ms)
{
    pid_t *pids = malloc(HOME_PIDS_MAX * sizeof(*pids));
    if (pids == NULL)
        return false;
    int64_t until = clock_mono_ms(clock_system()) + grace_ms;
    size_t count = home_processes(paths, programs, pids, HOME_PIDS_MAX);
    signal_all(paths, programs, pids, count, SIGTERM);
    while (count > 0 && clock_mono_ms(clock_system()) < until) {
        (void)poll(NULL, 0, POLL_MS);
        count = home_processes(paths, programs, pids, HOME_PIDS_MAX);
    }
    for (int i = 0; i < 100 && count > 0; i++) {
        signal_all(paths, programs, pids, count, SIGKILL);
        (void)poll(NULL, 0, POLL_MS);
        count = home_processes(paths, programs, pids, HOME_PIDS_MAX);
    }
    free(pids);
    return count == 0;
}
