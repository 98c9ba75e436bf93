#include "agent/telemetry/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/host/cgroups.h"

enum {
    STAT_BYTES = 4096,
    COMMAND_BYTES = 32 * 1024,
    ENVIRONMENT_BYTES = 256 * 1024, /* of a process; what is longer isn't looked through */
    LAST_FIELD = 24,
    KILL_ROUNDS = 100,
    KILL_PAUSE_MS = 5
};

enum status proc_read_text(const char *path, char *out, size_t capacity, size_t *out_size)
{
    auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return status_from_errno(errno);
    size_t size = 0;
    while (size < capacity - 1) {
        ssize_t got = read(fd, out + size, capacity - 1 - size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_from_errno(errno == ESRCH ? ENOENT : errno);
        if (got == 0)
            break;
        size += (size_t)got;
    }
    out[size] = '\0';
    if (out_size != NULL)
        *out_size = size;
    return ST_OK;
}

enum status proc_boot_id(char *out, size_t capacity)
{
    char text[64];
    enum status st = proc_read_text("/proc/sys/kernel/random/boot_id", text, sizeof(text), NULL);
    if (st != ST_OK)
        return st;
    text[strcspn(text, "\n")] = '\0';
    if (strlen(text) >= capacity)
        return ST_FULL;
    (void)snprintf(out, capacity, "%s", text);
    return ST_OK;
}

enum status proc_pid_space(char *out, size_t capacity)
{
    struct stat space;
    struct proc_stat first = { .start_time = 0 };
    if (stat("/proc/self/ns/pid", &space) != 0)
        return status_from_errno(errno);
    if (proc_stat_read(1, &first) != ST_OK)
        first.start_time = 0; /* others' processes are hidden from us */
    int size = snprintf(out, capacity, "%llu.%llu", (unsigned long long)space.st_ino,
                        (unsigned long long)first.start_time);
    return size > 0 && (size_t)size < capacity ? ST_OK : ST_FULL;
}

uint64_t proc_since_boot_ms(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_BOOTTIME, &now) != 0) /* some sandboxes don't know it */
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

enum status proc_stat_parse(const char *text, struct proc_stat *out)
{
    /* The second field is the name in parentheses, which may hold anything, even ") ". */
    const char *at = strrchr(text, ')');
    if (at == NULL || at[1] != ' ' || at[2] == '\0')
        return ST_INVALID;
    struct proc_stat stat = { .state = at[2] };
    uint64_t values[LAST_FIELD + 1] = { 0 };
    at = strchr(at + 2, ' ');
    for (int field = 4; field <= LAST_FIELD; field++) { /* counted from 1, as in proc(5) */
        if (at == NULL || at[1] == '\0')
            return ST_INVALID;
        char *end = NULL;
        errno = 0;
        values[field] = strtoull(at + 1, &end, 10); /* of one below 0 nothing is wanted */
        if (errno != 0 || end == at + 1)
            return ST_INVALID;
        at = strchr(end, ' ');
    }
    stat.cpu_ticks = values[14] + values[15];
    stat.threads = values[20] <= UINT32_MAX ? (uint32_t)values[20] : 0;
    stat.start_time = values[22];
    stat.resident_pages = values[24];
    *out = stat;
    return ST_OK;
}

enum status proc_stat_read(pid_t pid, struct proc_stat *out)
{
    char path[64];
    char text[STAT_BYTES] = "";
    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    enum status st = proc_read_text(path, text, sizeof(text), NULL);
    return st != ST_OK ? st : proc_stat_parse(text, out);
}

static bool has_arguments(const char *command, size_t size, const char *option, const char *value)
{
    bool after_option = false;
    for (size_t at = 0; at < size; at += strlen(command + at) + 1) {
        if (after_option && strcmp(command + at, value) == 0)
            return true;
        after_option = strcmp(command + at, option) == 0;
    }
    return false;
}

enum status proc_find(const char *option, const char *value, pid_t *out)
{
    auto_free char *command = malloc(COMMAND_BYTES);
    DIR *folder = opendir("/proc");
    if (command == NULL || folder == NULL) {
        if (folder != NULL)
            (void)closedir(folder);
        return ST_NO_MEMORY;
    }
    enum status st = ST_NOT_FOUND;
    const struct dirent *entry = NULL;
    while (st == ST_NOT_FOUND && (entry = readdir(folder)) != NULL) {
        char *end = NULL;
        long pid = strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || *end != '\0' || pid <= 0)
            continue;
        char path[64];
        size_t size = 0;
        (void)snprintf(path, sizeof(path), "/proc/%ld/cmdline", pid);
        if (proc_read_text(path, command, COMMAND_BYTES, &size) == ST_OK &&
            has_arguments(command, size, option, value)) {
            *out = (pid_t)pid;
            st = ST_OK;
        }
    }
    (void)closedir(folder);
    return st;
}

static bool has_variable(const char *environment, size_t size, const char *variable)
{
    for (size_t at = 0; at < size; at += strlen(environment + at) + 1) {
        if (strcmp(environment + at, variable) == 0)
            return true;
    }
    return false;
}

/* Kills what has the variable. out_found: there was something. */
static enum status kill_once(const char *variable, char *text, bool *out_found)
{
    DIR *folder = opendir("/proc");
    if (folder == NULL)
        return status_from_errno(errno);
    const struct dirent *entry = NULL;
    while ((entry = readdir(folder)) != NULL) {
        char path[64];
        char *end = NULL;
        size_t size = 0;
        struct proc_stat stat;
        const long pid = strtol(entry->d_name, &end, 10);
        if (end == entry->d_name || *end != '\0' || pid <= 1 || pid == (long)getpid())
            continue;
        (void)snprintf(path, sizeof(path), "/proc/%ld/environ", pid);
        if (proc_read_text(path, text, ENVIRONMENT_BYTES, &size) != ST_OK ||
            !has_variable(text, size, variable) || proc_stat_read((pid_t)pid, &stat) != ST_OK ||
            stat.state == 'Z' || stat.state == 'X')
            continue;
        *out_found = true;
        (void)kill((pid_t)pid, SIGKILL);
    }
    (void)closedir(folder);
    return ST_OK;
}

enum status proc_kill_all_with(const char *variable)
{
    auto_free char *text = malloc(ENVIRONMENT_BYTES);
    if (text == NULL)
        return ST_NO_MEMORY;
    for (int i = 0; i < KILL_ROUNDS; i++) {
        bool found = false;
        const enum status st = kill_once(variable, text, &found);
        if (st != ST_OK || !found)
            return st;
        (void)poll(NULL, 0, KILL_PAUSE_MS);
    }
    return ST_TIMED_OUT;
}

double proc_load1(void)
{
    double load[1] = { 0.0 };
    return getloadavg(load, 1) == 1 ? load[0] : 0.0;
}

bool proc_field(const char *text, const char *name, uint64_t *out)
{
    size_t size = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, size) == 0 && (line[size] == ' ' || line[size] == '\t')) {
            char *end = NULL;
            errno = 0;
            unsigned long long value = strtoull(line + size, &end, 10);
            if (errno != 0 || end == line + size)
                return false;
            *out = value;
            return true;
        }
        line = strchr(line, '\n');
        if (line != NULL)
            line++;
    }
    return false;
}

static uint64_t meminfo(const char *name)
{
    char text[STAT_BYTES] = "";
    uint64_t kib = 0;
    if (proc_read_text("/proc/meminfo", text, sizeof(text), NULL) != ST_OK ||
        !proc_field(text, name, &kib))
        return 0;
    return kib * 1024;
}

uint64_t proc_memory_total(void)
{
    return meminfo("MemTotal:");
}

uint64_t proc_memory_available(void)
{
    return meminfo("MemAvailable:");
}

uint32_t proc_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

uint64_t proc_oom_kills(void)
{
    uint64_t kills = 0;
    if (cgroup_oom_kills("", &kills))
        return kills;
    char text[32 * 1024] = "";
    if (proc_read_text("/proc/vmstat", text, sizeof(text), NULL) == ST_OK)
        (void)proc_field(text, "oom_kill", &kills);
    return kills;
}

void oom_watch_init(struct oom_watch *watch, uint64_t now)
{
    for (unsigned i = 0; i < OOM_SAMPLES; i++)
        watch->samples[i] = now;
    watch->next = 0;
    watch->claimed = now;
}

void oom_watch_sample(struct oom_watch *watch, uint64_t now)
{
    watch->samples[watch->next] = now;
    watch->next = (watch->next + 1) % OOM_SAMPLES;
}

bool oom_watch_claim(struct oom_watch *watch, uint64_t now)
{
    uint64_t oldest = watch->samples[watch->next];
    if (watch->claimed < oldest)
        watch->claimed = oldest; /* long ago, of nobody that we watch */
    if (now <= watch->claimed)
        return false;
    watch->claimed++;
    return true;
}
