/* How much of the memory that this process may use its peers may make it hold. */
#include <unistd.h>

#include "common/host/cgroups.h"
#include "rpc/server/internal.h"

#define LEAST ((uint64_t)1 << 30)

uint64_t rpc_memory_usual(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    const uint64_t machine = pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : LEAST;
    const uint64_t groups = cgroup_memory_of("", 0).limit;
    const uint64_t half = (groups < machine ? groups : machine) / 2;
    return half > LEAST ? half : LEAST;
}
