/* Starting and ending gRPC in this process. */
#include <stdlib.h>

#include "rpc/core.h"

/* absl's OnDeadlockCycle::kIgnore. */
#define DEADLOCK_IGNORE 0

/*
 * absl::SetMutexDeadlockDetectionMode. Debian builds absl without NDEBUG: its mutexes then keep a
 * graph of lock orders and abort the process on a merely potential deadlock inside gRPC. Weak: an
 * absl without this symbol is fine.
 */
extern void absl_set_deadlock_mode(int mode) __asm__(
    "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE") __attribute__((weak));

void rpc_init(void)
{
    rpc_accept_init();
    if (absl_set_deadlock_mode)
        absl_set_deadlock_mode(DEADLOCK_IGNORE);
    /* Peers can provoke lines of gRPC's own log; what matters we log ourselves. */
    (void)setenv("GRPC_VERBOSITY", "NONE", 0);
    grpc_init();
}

void rpc_shutdown(void)
{
    grpc_shutdown();
}
