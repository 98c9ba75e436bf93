/*
 * The state is static because an interposed C function has no context to find it in. accept4, which
 * neither Gloo nor NCCL calls, is rpc's (rpc/accept.c).
 *
 * Two sockets with SO_REUSEADDR, which Gloo and NCCL set, may be bound to one port as long as
 * neither listens, and then the second listen() fails for good. So a port is taken under a lock
 * that all processes of this machine see: its UDP port; and the socket listens before that is let
 * go.
 */
#include "comm/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KEEPALIVE_S = 1, KEEPALIVE_PROBES = 3, BACKLOG = 128 };

static atomic_uint range_first, range_last; /* range_last 0: any port */
static atomic_bool range_taken;
static _Thread_local bool on_stage;
static _Thread_local int stage_end; /* -1: none */

/* An address of IPv4 or IPv6: the port lies at the same place in both. */
union name {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

void sockets_use_ports(struct port_range range)
{
    atomic_store(&range_first, range.first);
    atomic_store(&range_last, range.last);
}

bool sockets_were_taken(void)
{
    return atomic_exchange(&range_taken, false);
}

static int plain_bind(int fd, const struct sockaddr *name, socklen_t size)
{
    return (int)syscall(SYS_bind, fd, name, size);
}

/* A socket of another kind refuses, which is as good. */
void sockets_set_patience(int fd)
{
    const int saved = errno;
    const int on = 1, silence = SOCKETS_SILENCE_MS;
    const int every = KEEPALIVE_S, probes = KEEPALIVE_PROBES;
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &every, sizeof(every));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence, sizeof(silence));
    errno = saved;
}

/* ---- ports ---- */

static bool is_loopback(const union name *name)
{
    if (name->any.sa_family == AF_INET)
        return ntohl(name->in.sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&name->in6.sin6_addr);
}

/* Whether fd is a TCP socket that leaves the choice of its port to the system; out: its name. */
static bool wants_a_port(int fd, const struct sockaddr *name, socklen_t size, union name *out)
{
    int type = 0;
    socklen_t type_size = sizeof(type);
    if (atomic_load(&range_last) == 0 || name == NULL || size < sizeof(struct sockaddr_in) ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_STREAM)
        return false;
    memset(out, 0, sizeof(*out));
    memcpy(out, name, size < sizeof(*out) ? size : sizeof(*out));
    if (out->any.sa_family != AF_INET &&
        (out->any.sa_family != AF_INET6 || size < sizeof(struct sockaddr_in6)))
        return false;
    return out->in.sin_port == 0 && !is_loopback(out);
}

/* Replaces a bound socket that can't listen, since it can't be unbound. The new one gets its flags
 * and the option that a port needs; other options, which a library may have set, are lost. */
static int renew_socket(int fd, int family)
{
    const int flags = fcntl(fd, F_GETFL), close_flags = fcntl(fd, F_GETFD);
    const int fresh = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    int error = 0;
    if (fresh < 0 || flags < 0 || close_flags < 0 || fcntl(fresh, F_SETFL, flags) != 0 ||
        setsockopt(fresh, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        dup3(fresh, fd, (close_flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0)
        error = errno;
    if (fresh >= 0)
        (void)close(fresh);
    return error;
}

/* 0, or an errno value; EADDRINUSE: another port may do. */
static int bind_at(int fd, const union name *name, socklen_t size)
{
    const int lock = socket(name->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (lock < 0)
        return errno;
    int error = 0;
    if (plain_bind(lock, &name->any, size) != 0 || plain_bind(fd, &name->any, size) != 0) {
        error = errno;
    } else if (listen(fd, BACKLOG) != 0) { /* another's, who doesn't know of the lock */
        error = errno;
        const int lost = error == EADDRINUSE ? renew_socket(fd, name->any.sa_family) : 0;
        error = lost != 0 ? lost : error;
    }
    (void)close(lock);
    return error;
}

static int bind_in_range(int fd, union name *name, socklen_t size)
{
    const unsigned first = atomic_load(&range_first);
    const unsigned count = atomic_load(&range_last) - first + 1;
    const int on = 1; /* else a port that a rank left lately is taken; the lock keeps others off */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    unsigned at = 0; /* random, so that ranks that start together don't try the same ones */
    if (getrandom(&at, sizeof(at), 0) != (ssize_t)sizeof(at))
        at = 0;
    for (unsigned i = 0; i < count; i++) {
        name->in.sin_port = htons((uint16_t)(first + (at % count + i) % count));
        errno = bind_at(fd, name, size);
        if (errno != EADDRINUSE)
            return errno == 0 ? 0 : -1;
    }
    atomic_store(&range_taken, true);
    return -1;
}

int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
    union name copy;
    if (on_stage)
        return 0;
    if (!wants_a_port(fd, addr.__sockaddr__, len, &copy))
        return plain_bind(fd, addr.__sockaddr__, len);
    return bind_in_range(fd, &copy, len < sizeof(copy) ? len : (socklen_t)sizeof(copy));
}

/* ---- listeners that are no listeners ---- */

void sockets_stage_begin(void)
{
    on_stage = true;
    stage_end = -1;
}

int sockets_stage_end(void)
{
    on_stage = false;
    return stage_end;
}

/* Replaces the listener by one end of a socket pair, under the listener's number. */
static int listen_on_stage(int fd)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return -1;
    const int put = dup3(ends[0], fd, O_CLOEXEC);
    const int error = errno;
    (void)close(ends[0]);
    if (put < 0) {
        (void)close(ends[1]);
        errno = error;
        return -1;
    }
    if (stage_end >= 0)
        (void)close(stage_end);
    stage_end = ends[1];
    return 0;
}

int listen(int fd, int n)
{
    return on_stage ? listen_on_stage(fd) : (int)syscall(SYS_listen, fd, n);
}

/* A descriptor travels in a message of one byte. */
union carrier {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr header;
};

enum status sockets_hand_in(int end, int connection)
{
    char byte = 0;
    struct iovec what = { &byte, 1 };
    union carrier carrier;
    memset(&carrier, 0, sizeof(carrier));
    const struct msghdr message = { .msg_iov = &what,
                                    .msg_iovlen = 1,
                                    .msg_control = carrier.bytes,
                                    .msg_controllen = sizeof(carrier.bytes) };
    carrier.header.cmsg_level = SOL_SOCKET;
    carrier.header.cmsg_type = SCM_RIGHTS;
    carrier.header.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&carrier.header), &connection, sizeof(int));
    return sendmsg(end, &message, MSG_NOSIGNAL) == 1 ? ST_OK : status_from_errno(errno);
}

static bool is_on_stage(int fd)
{
    int domain = 0, type = 0;
    socklen_t domain_size = sizeof(domain), type_size = sizeof(type);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_size) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) == 0 && domain == AF_UNIX &&
           type == SOCK_SEQPACKET;
}

/* -1: errno; ECONNABORTED: the other end is closed. */
static int take_handed_in(int fd)
{
    char byte;
    struct iovec what = { &byte, 1 };
    union carrier carrier;
    memset(&carrier, 0, sizeof(carrier));
    struct msghdr message = { .msg_iov = &what,
                              .msg_iovlen = 1,
                              .msg_control = carrier.bytes,
                              .msg_controllen = sizeof(carrier.bytes) };
    const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    if (got < 0)
        return -1;
    int connection = -1;
    if (got == 1 && carrier.header.cmsg_type == SCM_RIGHTS &&
        carrier.header.cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&connection, CMSG_DATA(&carrier.header), sizeof(int));
    if (connection < 0)
        errno = ECONNABORTED;
    return connection;
}

/* ---- connections that are gone ---- */

/* True if the socket has a port, so it was bound or connected. */
static bool had_a_peer(int fd, union name *out)
{
    socklen_t size = sizeof(*out);
    return getsockname(fd, &out->any, &size) == 0 &&
           (out->any.sa_family == AF_INET || out->any.sa_family == AF_INET6) &&
           out->in.sin_port != 0;
}

int getpeername(int fd, __SOCKADDR_ARG addr, socklen_t *__restrict len)
{
    union name name;
    memset(&name, 0, sizeof(name));
    const int got = (int)syscall(SYS_getpeername, fd, addr.__sockaddr__, len);
    if (got == 0 || errno != ENOTCONN || !had_a_peer(fd, &name))
        return got;
    const sa_family_t family = name.any.sa_family;
    const size_t size = family == AF_INET ? sizeof(name.in) : sizeof(name.in6);
    memset(&name, 0, sizeof(name));
    name.any.sa_family = family;
    memcpy(addr.__sockaddr__, &name, *len < size ? *len : size);
    *len = (socklen_t)size;
    return 0;
}

/* The program's only other listeners are the data plane's. */
int accept(int fd, __SOCKADDR_ARG addr, socklen_t *__restrict addr_len)
{
    int accepted = (int)syscall(SYS_accept4, fd, addr.__sockaddr__, addr_len, 0);
    if (accepted >= 0)
        sockets_set_patience(accepted);
    if (accepted >= 0 || errno != EINVAL || !is_on_stage(fd))
        return accepted;
    accepted = take_handed_in(fd);
    if (accepted >= 0 && addr_len != NULL)
        (void)getpeername(accepted, addr.__sockaddr__, addr_len);
    return accepted;
}
