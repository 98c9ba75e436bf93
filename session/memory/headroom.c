#include "session/memory/headroom.h"

#include <errno.h>
#include <math.h>
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

/* Looks at the folder's file system, or that of its nearest existing parent. false: it can't be
 * written to. */
static bool look_at_folder(const char *folder, struct statvfs *out)
{
    char path[LIMIT_PATH];
    const int size = snprintf(path, sizeof(path), "%s", folder);
    if (size <= 0 || (size_t)size >= sizeof(path))
        return false;
    while (access(path, F_OK) != 0) {
        char *last = strrchr(path, '/');
        if (errno != ENOENT || last == NULL || last == path)
            return false;
        *last = '\0';
    }
    return access(path, W_OK | X_OK) == 0 && statvfs(path, out) == 0;
}

struct session_headroom session_headroom_measure(const char *folder)
{
    const char *bound = getenv(SESSION_HEADROOM_ENV);
    const uint64_t available = number_in("/proc/meminfo", "MemAvailable:");
    struct statvfs about = { .f_blocks = 0 };
    const bool usable = folder != NULL && look_at_folder(folder, &about);
    return (struct session_headroom){
        .folder = usable ? (uint64_t)about.f_bavail * about.f_frsize : 0,
        .whole = usable ? (uint64_t)about.f_blocks * about.f_frsize : 0,
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

/* False, and why, where there is no folder for copies. */
static bool has_folder(const struct session_headroom *headroom, struct reason *why)
{
    if (headroom->folder == 0 && headroom->whole == 0)
        reason_set(why, "the folder of copies can't be written to");
    return headroom->folder > 0 || headroom->whole > 0;
}

/* Says what to do about a file system that is too small for `all` bytes in one of `parts` parts of
 * what is free. */
static void say_way_out(const struct session_headroom *headroom, uint64_t all, uint64_t parts,
                        struct reason *why)
{
    const uint64_t left = plus(headroom->folder, headroom->held);
    const uint64_t taken = headroom->whole > left ? headroom->whole - left : 0;
    struct reason what = *why;
    reason_set(why,
               "%s: make that file system larger (a container's: --shm-size=%.0fm), or name "
               "another folder with CAIRN_COPIES",
               what.text, ceil((double)(all * parts + taken) / MIB));
}

bool session_headroom_fits(const struct session_headroom *headroom,
                           const struct session_budget *budget, uint32_t workers,
                           struct reason *why)
{
    const uint64_t left = plus(headroom->folder, headroom->held);
    const uint64_t all = session_budget_copies(budget) * workers;
    if (!has_folder(headroom, why))
        return false;
    if (all <= left)
        return true;
    reason_set(why, "copies of %u worker%s take %.1f MiB, and %.1f MiB are free where copies lie",
               workers, workers == 1 ? "" : "s", (double)all / MIB, (double)left / MIB);
    say_way_out(headroom, all, 1, why);
    return false;
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
    if (!has_folder(headroom, why))
        return false;
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
        if (least == 0)
            say_way_out(headroom, all, SESSION_HEADROOM_PART, why);
        return false;
    }
    *out = budget;
    return true;
}
