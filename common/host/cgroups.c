#include "common/host/cgroups.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/limits.h"

#define DEPTH_MAX  64
#define LINE_BYTES 4096
#define NO_BOUND   (UINT64_C(1) << 60) /* version 1 says "none" by the largest number of pages */

struct version {
    const char *type; /* of its file system */
    const char *limit, *taken;
    const char *files, *in_memory; /* lines of memory.stat: of files, and of those without a disk */
    const char *usual;             /* where it is, if that isn't said */
};

static const struct version versions[] = {
    { "cgroup2", "memory.max", "memory.current", "file ", "shmem ", "/sys/fs/cgroup" },
    { "cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ", "total_shmem ",
      "/sys/fs/cgroup/memory" },
};

/* A group's folder, and how much of its path is the mount. */
struct group {
    char path[LINE_BYTES];
    size_t mount;
};

static bool is_old(const struct version *version)
{
    return version == &versions[1];
}

/* The number behind `name` at the beginning of a line; name "": the file's first. UINT64_MAX: there
 * is none, or "max". */
static uint64_t number_in(const struct group *group, const char *file, const char *name)
{
    char path[LINE_BYTES + 64], line[256];
    uint64_t found = UINT64_MAX;
    (void)snprintf(path, sizeof(path), "%s/%s", group->path, file);
    FILE *stream = fopen(path, "re");
    while (stream != NULL && found == UINT64_MAX && fgets(line, sizeof(line), stream) != NULL) {
        const size_t size = strlen(name);
        char *end = NULL;
        if (strncmp(line, name, size) != 0)
            continue;
        errno = 0;
        const unsigned long long number = strtoull(line + size, &end, 10);
        if (end != line + size && errno == 0 && line[size] != '-')
            found = number;
    }
    if (stream != NULL)
        (void)fclose(stream);
    return found;
}

/* "…,memory,…" */
static bool lists_memory(const char *list, size_t size)
{
    for (size_t at = 0; at < size; at += strcspn(list + at, ",: \n") + 1) {
        if (strncmp(list + at, "memory", 6) == 0 && strchr(",: \n", list[at + 6]) != NULL)
            return true;
    }
    return false;
}

/* A line of /proc/PID/cgroup, "N:CONTROLLERS:PATH": the path, where it is of that version. */
static const char *path_of(const struct version *version, char *line)
{
    char *list = strchr(line, ':');
    char *path = list != NULL ? strchr(list + 1, ':') : NULL;
    if (path == NULL || path[1] != '/')
        return NULL;
    path[1 + strcspn(path + 1, "\n")] = '\0';
    if (!is_old(version))
        return strncmp(line, "0::", 3) == 0 ? path + 1 : NULL;
    return lists_memory(list + 1, (size_t)(path - list - 1)) ? path + 1 : NULL;
}

static bool find_path(const struct version *version, const char *root, pid_t pid,
                      char out[LINE_BYTES])
{
    char file[LIMIT_PATH], line[LINE_BYTES];
    const char *path = NULL;
    if (pid == 0) {
        (void)snprintf(file, sizeof(file), "%s/proc/self/cgroup", root);
    } else {
        (void)snprintf(file, sizeof(file), "%s/proc/%ld/cgroup", root, (long)pid);
    }
    FILE *stream = fopen(file, "re");
    while (stream != NULL && path == NULL && fgets(line, sizeof(line), stream) != NULL)
        path = path_of(version, line);
    if (stream != NULL)
        (void)fclose(stream);
    (void)snprintf(out, LINE_BYTES, "%s", path != NULL ? path : "");
    return path != NULL;
}

/* A line of mountinfo, "ID PARENT DEVICE ROOT POINT … - TYPE SOURCE OPTIONS": which part of the
 * hierarchy is to be seen, and where. */
static bool is_mount_of(const struct version *version, const char *line, char root[LINE_BYTES],
                        char point[LINE_BYTES])
{
    char type[32] = "", options[LINE_BYTES] = "";
    const char *behind = strstr(line, " - ");
    if (behind == NULL || sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) != 2 ||
        sscanf(behind, " - %31s %*s %4095s", type, options) != 2 ||
        strcmp(type, version->type) != 0)
        return false;
    return !is_old(version) || lists_memory(options, strlen(options));
}

/* false: it can't be told. */
static bool find_mount(const struct version *version, const char *root, char shown[LINE_BYTES],
                       char point[LINE_BYTES])
{
    char file[LIMIT_PATH], line[LINE_BYTES];
    bool found = false;
    (void)snprintf(file, sizeof(file), "%s/proc/self/mountinfo", root);
    FILE *stream = fopen(file, "re");
    while (stream != NULL && !found && fgets(line, sizeof(line), stream) != NULL)
        found = is_mount_of(version, line, shown, point);
    if (stream != NULL)
        (void)fclose(stream);
    return found;
}

static bool find_group(const struct version *version, const char *root, pid_t pid,
                       struct group *out)
{
    char path[LINE_BYTES], shown[LINE_BYTES], point[LINE_BYTES];
    if (!find_path(version, root, pid, path))
        return false;
    if (!find_mount(version, root, shown, point)) {
        (void)snprintf(shown, sizeof(shown), "/");
        (void)snprintf(point, sizeof(point), "%s", version->usual);
    }
    /* A container shows a part of the hierarchy, as its root; the path may be of the whole. */
    size_t cut = strcmp(shown, "/") == 0 ? 0 : strlen(shown);
    if (strncmp(path, shown, cut) != 0 || (path[cut] != '/' && path[cut] != '\0'))
        cut = strlen(path);
    const char *below = strcmp(path + cut, "/") == 0 ? "" : path + cut;
    out->mount = strlen(root) + strlen(point);
    const int size = snprintf(out->path, sizeof(out->path), "%s%s%s", root, point, below);
    return size > 0 && (size_t)size < sizeof(out->path);
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void take_group(const struct version *version, const struct group *group,
                       struct cgroup_memory *memory)
{
    const uint64_t limit = number_in(group, version->limit, "");
    const uint64_t taken = number_in(group, version->taken, "");
    const uint64_t files = number_in(group, "memory.stat", version->files);
    const uint64_t in_memory = number_in(group, "memory.stat", version->in_memory);
    if (limit >= NO_BOUND)
        return;
    memory->limit = least(memory->limit, limit);
    if (taken == UINT64_MAX)
        return;
    uint64_t held = taken;
    if (files != UINT64_MAX && in_memory != UINT64_MAX && files > in_memory) {
        const uint64_t clean = files - in_memory;
        held = clean < taken ? taken - clean : 0;
    }
    memory->left = least(memory->left, held < limit ? limit - held : 0);
}

/* True if what a group uses counts for the groups above it: groups of version 1 can be set not
 * to. */
static bool counts_above(const struct version *version, const struct group *above)
{
    return !is_old(version) || number_in(above, "memory.use_hierarchy", "") != 0;
}

static void take_groups(const struct version *version, const char *root, pid_t pid,
                        struct cgroup_memory *memory)
{
    struct group group;
    if (!find_group(version, root, pid, &group))
        return;
    if (is_old(version)) {
        const uint64_t all = number_in(&group, "memory.stat", "hierarchical_memory_limit ");
        if (all < NO_BOUND)
            memory->limit = least(memory->limit, all);
    }
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        take_group(version, &group, memory);
        char *last = strrchr(group.path, '/');
        if (last == NULL || (size_t)(last - group.path) < group.mount)
            return;
        *last = '\0';
        if (!counts_above(version, &group))
            return;
    }
}

bool cgroup_oom_kills(const char *root, uint64_t *out)
{
    struct group group;
    if (!find_group(&versions[0], root, 0, &group))
        return false;
    const uint64_t kills = number_in(&group, "memory.events", "oom_kill ");
    if (kills != UINT64_MAX)
        *out = kills;
    return kills != UINT64_MAX;
}

struct cgroup_memory cgroup_memory_of(const char *root, pid_t pid)
{
    struct cgroup_memory memory = { .limit = UINT64_MAX, .left = UINT64_MAX };
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++)
        take_groups(&versions[i], root, pid, &memory);
    memory.left = least(memory.left, memory.limit); /* one that is above what can be seen */
    return memory;
}
