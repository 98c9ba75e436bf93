#include "session/memory/headroom.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/host/cgroups.h"
#include "common/limits.h"
#include "session/copies/copy_folder.h"

#define MIB (1024.0 * 1024.0)

/* ---- measuring ---- */

static uint64_t number_of(const char *text)
{
    char *end = NULL;
    errno = 0;
    const unsigned long long number = strtoull(text, &end, 10);
    return end != text && errno == 0 ? number : UINT64_MAX;
}

/* The number behind `name` at the beginning of a line; UINT64_MAX: there is none. name "": the
 * file's first. */
static uint64_t number_in(const char *path, const char *name)
{
    char line[256];
    uint64_t found = UINT64_MAX;
    FILE *file = fopen(path, "re");
    while (file != NULL && found == UINT64_MAX && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0)
            found = number_of(line + strlen(name));
    }
    if (file != NULL)
        (void)fclose(file);
    return found;
}

/* Returns the free bytes of the folder's file system, or that of its nearest existing parent; 0: it
 * can't be written to. */
static uint64_t free_in_folder(const char *folder)
{
    char path[LIMIT_PATH];
    struct statvfs about;
    const int size = snprintf(path, sizeof(path), "%s", folder);
    if (size <= 0 || (size_t)size >= sizeof(path))
        return 0;
    while (access(path, F_OK) != 0) {
        char *last = strrchr(path, '/');
        if (errno != ENOENT || last == NULL || last == path)
            return 0;
        *last = '\0';
    }
    if (access(path, W_OK | X_OK) != 0 || statvfs(path, &about) != 0)
        return 0;
    return (uint64_t)about.f_bavail * about.f_frsize;
}

struct session_headroom session_headroom_measure(const char *folder)
{
    const char *bound = getenv(SESSION_HEADROOM_ENV);
    const uint64_t available = number_in("/proc/meminfo", "MemAvailable:");
    return (struct session_headroom){
        .folder = folder != NULL ? free_in_folder(folder) : 0,
        .memory = available < UINT64_MAX / 1024 ? available * 1024 : UINT64_MAX,
        .groups = cgroup_memory_of("", 0).left,
        .bound = bound != NULL ? number_of(bound) : UINT64_MAX,
        .held = copy_folder_bytes(folder),
    };
}

/* ---- choosing ---- */

static uint64_t plus(uint64_t left, uint64_t held)
{
    return left < UINT64_MAX - held ? left + held : UINT64_MAX;
}

bool session_headroom_holds(const struct session_headroom *headroom,
                            const struct session_demand *demand, uint32_t workers,
                            struct session_budget *out, struct reason *why)
{
    const struct {
        uint64_t left;
        const char *where;
    } places[] = {
        { plus(headroom->folder, headroom->held), "free where copies lie" },
        { plus(headroom->memory, headroom->held), "of memory available" },
        { plus(headroom->groups, headroom->held), "left to the control group" },
        { headroom->bound, "of " SESSION_HEADROOM_ENV },
    };
    struct session_demand every = *demand;
    struct session_budget budget = { .least = 0 };
    every.every = true;
    if (headroom->folder == 0) {
        reason_set(why, "the folder of copies can't be written to");
        return false;
    }
    if (session_budget(&every, &budget) != ST_OK) {
        reason_set(why, "with them a worker needs %.1f MiB of checkpoint.memory at least",
                   (double)budget.least / MIB);
        return false;
    }
    size_t least = 0;
    for (size_t i = 1; i < sizeof(places) / sizeof(places[0]); i++)
        least = places[i].left < places[least].left ? i : least;
    const uint64_t all = session_budget_copies(&budget) * workers;
    if (all > places[least].left / SESSION_HEADROOM_PART) {
        reason_set(why,
                   "copies of %u worker%s would take %.1f MiB, more than a quarter of the %.1f MiB "
                   "%s",
                   workers, workers == 1 ? "" : "s", (double)all / MIB,
                   (double)places[least].left / MIB, places[least].where);
        return false;
    }
    *out = budget;
    return true;
}
