#include "agent/lacks.h"

#include <errno.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "common/host/environment.h"
#include "common/io.h"
#include "common/limits.h"

#define DESCRIPTORS_OWN 128 /* of a trainer, without its peers: data, shard files, its session */

/* Raises the limit of descriptors, which trainers inherit. */
static void raise_descriptors(const struct log *log)
{
    const unsigned long long count = io_descriptors_raise();
    if (count >= LIMIT_RANKS + DESCRIPTORS_OWN)
        return;
    LOG_WARN(log,
             "a worker may have %llu files open here, and needs one for each of its job's others: "
             "raise the limit for large jobs (ulimit -n, or LimitNOFILE= of the service)",
             count);
}

static void tell_left_out(const struct log *log)
{
    char names[LIMIT_REASON];
    environment_name_left_out(names, sizeof(names));
    if (names[0] != '\0') {
        LOG_WARN(log, "these variables could change results, and don't reach workers: %s", names);
    }
}

/* Filters of containers refuse them, and kernels before 5.3. */
static void tell_pidfds(const struct log *log)
{
    const int fd = pidfd_open(getpid(), 0);
    if (fd >= 0) {
        (void)close(fd);
        return;
    }
    const char *text = strerrordesc_np(errno);
    LOG_WARN(log,
             "the system refuses pidfd_open (%s): workers are looked at ten times a second; let a "
             "container's filter of system calls allow it",
             text != NULL ? text : "unknown error");
}

void lacks_warn(const struct log *log)
{
    raise_descriptors(log);
    tell_left_out(log);
    tell_pidfds(log);
}
