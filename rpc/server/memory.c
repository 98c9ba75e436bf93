/* How much of the memory that this process may use its peers may make it hold. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rpc/server/internal.h"

#define LEAST ((uint64_t)1 << 30)

/* The number in a file; UINT64_MAX: there is no such file, or it says "max". */
static uint64_t number_in(const char *path)
{
    char text[32];
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return UINT64_MAX;
    const bool got = fgets(text, sizeof(text), file) != NULL;
    (void)fclose(file);
    char *end = text;
    errno = 0;
    const unsigned long long number = got ? strtoull(text, &end, 10) : 0;
    return got && end != text && errno == 0 ? number : UINT64_MAX;
}

/* The lowest bound of this process's control groups (version 2). */
static uint64_t bound_of_groups(void)
{
    char line[512] = "", path[640];
    uint64_t least = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL && strncmp(line, "0::", 3) != 0)
        line[0] = '\0';
    if (file != NULL)
        (void)fclose(file);
    char *group = line[0] == '0' ? line + 3 : line;
    group[strcspn(group, "\n")] = '\0';
    for (;;) {
        (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
        const uint64_t bound = number_in(path);
        least = bound < least ? bound : least;
        char *last = strrchr(group, '/');
        if (last == NULL)
            return least;
        *last = '\0';
    }
}

uint64_t rpc_memory_usual(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    const uint64_t machine = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : LEAST;
    const uint64_t groups = bound_of_groups();
    const uint64_t half = (groups < machine ? groups : machine) / 2;
    return half > LEAST ? half : LEAST;
}
