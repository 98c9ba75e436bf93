/*
 * Starting and ending gRPC in this process, and what its core has to say.
 *
 * The state is static because core's log has no context to find it in.
 */
#include <grpc/support/log.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "rpc/core.h"

/* absl's OnDeadlockCycle::kIgnore. */
#define DEADLOCK_IGNORE 0

/* Peers can provoke lines. */
enum { LINES_MAX = 10, LINES_MS = 10000 };

/*
 * absl::SetMutexDeadlockDetectionMode. Debian builds absl without NDEBUG: its mutexes then keep a
 * graph of lock orders and abort the process on a merely potential deadlock inside gRPC. Weak: an
 * absl without this symbol is fine.
 */
extern void absl_set_deadlock_mode(int mode) __asm__(
    "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE") __attribute__((weak));

static pthread_mutex_t lines_mutex = PTHREAD_MUTEX_INITIALIZER;
static const struct log *lines_log;
static int64_t lines_since_ms; /* LINES_MS are counted from here */
static uint32_t lines_count;

static bool may_write(void)
{
    const int64_t now_ms = clock_mono_ms(clock_system());
    pthread_mutex_lock(&lines_mutex);
    uint32_t dropped = 0;
    if (lines_count == 0 || now_ms - lines_since_ms >= LINES_MS) {
        dropped = lines_count > LINES_MAX ? lines_count - LINES_MAX : 0;
        lines_since_ms = now_ms;
        lines_count = 0;
    }
    const bool may = ++lines_count <= LINES_MAX;
    pthread_mutex_unlock(&lines_mutex);
    if (dropped > 0)
        LOG_WARN(lines_log, "gRPC: %u more lines, ignoring", dropped);
    return may;
}

static void write_line(gpr_log_func_args *line)
{
    if (!may_write())
        return;
    if (strstr(line->message, "wrong version number") != NULL) {
        LOG_WARN(lines_log, "a connection was refused, ignoring: its other end speaks no TLS; "
                            "callers need --tls-cert, --tls-key and --tls-ca, as made by 'cairn "
                            "cert'");
    } else if (strstr(line->message, "Handshake failed") != NULL) {
        LOG_WARN(
            lines_log,
            "a connection was refused, ignoring; 'cairn cert check' at its other end says what "
            "is wrong with its certificate: %s",
            line->message);
    } else if (strstr(line->message, "Failed fetching new server credentials") != NULL) {
        LOG_WARN(lines_log, "the new certificate, its key or its CA won't do, ignoring; "
                            "'cairn cert check' says why. Until then the old ones are shown");
    } else {
        LOG_WARN(lines_log, "gRPC: %s", line->message);
    }
}

void rpc_log_to(const struct log *log)
{
    lines_log = log;
    gpr_set_log_function(write_line);
    if (getenv("GRPC_VERBOSITY") == NULL)
        gpr_set_log_verbosity(GPR_LOG_SEVERITY_ERROR);
}

void rpc_init(void)
{
    rpc_accept_init();
    if (absl_set_deadlock_mode != NULL)
        absl_set_deadlock_mode(DEADLOCK_IGNORE);
    /* gRPC's own log on standard error would be neither bounded nor of our form: rpc_log_to is for
     * that. */
    (void)setenv("GRPC_VERBOSITY", "NONE", 0);
    grpc_init();
}

void rpc_shutdown(void)
{
    grpc_shutdown();
}
