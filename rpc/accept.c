/*
 * A listener that survives running out of descriptors (CVE-2023-4785), and leaves some to others.
 *
 * When accept4() fails with EMFILE and its like, gRPC before 1.53.2 (Debian 12 has 1.51.1) drops
 * its listener for good while the process looks healthy. libgrpc calls accept4 through the PLT, so
 * this definition in the executable wins: it closes the connections that nobody can hold, tells
 * core that there is nothing to accept, and the listener stays.
 *
 * It needn't come to that by strangers: connections from the network get none of the last
 * KEPT descriptors, which are for files and for the sockets of this machine. (The
 * lowest free number is given out, so that a connection's own number says how many there are.)
 *
 * The state is static because an interposed C function has no context to find it in.
 */
#include <errno.h>
#include <fcntl.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "rpc/core.h"

#define KEPT    256 /* or a quarter of what there may be, where that is less */
#define TELL_MS 60000

static pthread_mutex_t accept_mutex = PTHREAD_MUTEX_INITIALIZER;
static int accept_reserve = -1; /* a descriptor to give up when there are no others */

static int open_reserve(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void rpc_accept_init(void)
{
    pthread_mutex_lock(&accept_mutex);
    if (accept_reserve < 0)
        accept_reserve = open_reserve();
    pthread_mutex_unlock(&accept_mutex);
}

/* Now and then: who is kept out learns nothing. */
static void tell_full(void)
{
    static atomic_llong told_ms;
    const long long now = clock_mono_ms(clock_system()) + TELL_MS; /* of a young machine, too */
    long long told = atomic_load(&told_ms);
    if (now - told >= TELL_MS && atomic_compare_exchange_strong(&told_ms, &told, now)) {
        gpr_log(GPR_ERROR, "connections were closed, as there are too many: raise the number of "
                           "descriptors that this process may have (LimitNOFILE, ulimit -n)");
    }
}

/* Core's polling is edge-triggered, so everything that waits must go. */
static void shed_waiting(int fd)
{
    pthread_mutex_lock(&accept_mutex);
    for (;;) {
        if (accept_reserve >= 0)
            (void)close(accept_reserve);
        accept_reserve = -1;
        int waiting = (int)syscall(SYS_accept4, fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (waiting < 0)
            break;
        (void)close(waiting);
    }
    accept_reserve = open_reserve();
    pthread_mutex_unlock(&accept_mutex);
}

/* True if a connection with that number would be one too many. */
static bool is_kept(int fd, const struct sockaddr *from)
{
    struct rlimit limit;
    if (from == NULL || (from->sa_family != AF_INET && from->sa_family != AF_INET6) ||
        getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return false;
    const rlim_t kept = limit.rlim_cur / 4 < KEPT ? limit.rlim_cur / 4 : KEPT;
    return (rlim_t)fd >= limit.rlim_cur - kept;
}

int accept4(int fd, __SOCKADDR_ARG addr, socklen_t *__restrict addr_len, int flags)
{
    const socklen_t room = addr_len != NULL ? *addr_len : 0;
    int accepted = (int)syscall(SYS_accept4, fd, addr.__sockaddr__, addr_len, flags);
    while (accepted >= 0 && is_kept(accepted, addr.__sockaddr__)) {
        (void)close(accepted);
        tell_full();
        if (addr_len != NULL)
            *addr_len = room;
        accepted = (int)syscall(SYS_accept4, fd, addr.__sockaddr__, addr_len, flags);
    }
    if (accepted >= 0)
        return accepted;
    switch (errno) {
    case EINTR: /* core copes with these */
    case EAGAIN:
    case ECONNABORTED:
    case EBADF: /* and these are real */
    case EINVAL:
    case ENOTSOCK:
    case EFAULT:
        return -1;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        tell_full();
        shed_waiting(fd);
        errno = EAGAIN;
        return -1;
    default: /* a network error of this one peer, handed over early (accept(2)) */
        errno = ECONNABORTED;
        return -1;
    }
}
