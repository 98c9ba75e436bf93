/*
 * The memory that control groups leave a process: of version 2, of version 1, or both at a time;
 * and whom they killed for it.
 *
 * A process may take what its own group and all above it allow, so the least counts. What is above
 * the root that a container shows can't be seen but by version 1's hierarchical_memory_limit, which
 * is asked.
 *
 * Thread: any. A call reads some small files of /proc and /sys.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes; UINT64_MAX: there is no bound. */
struct cgroup_memory {
    uint64_t limit;
    uint64_t left; /* of the limit; pages of files that are not in memory alone count as free */
};

/* pid: 0 for this process. root: "", or the folder that a test's /proc and /sys lie in. */
struct cgroup_memory cgroup_memory_of(const char *root, pid_t pid);
/* Counts the processes of this one's group, and of those below, that the kernel killed for memory.
 * false: the group doesn't tell; version 1 never does. */
bool cgroup_oom_kills(const char *root, uint64_t *out);
