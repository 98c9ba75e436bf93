/*
 * Our own listener for Unix sockets. gRPC's would unlink a living server's socket, follow the umask
 * and know nothing of credentials; and its accept loop is that of rpc/accept.c.
 *
 * Each listener has a thread: poll, accept, check SO_PEERCRED, hand the connection to core.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/own/private.h"
#include "rpc/server/internal.h"

enum {
    BACKLOG = 128,
    LOCK_TRIES = 10,
    EXHAUSTED_WAIT_MS = 100, /* no descriptor left: look again */
};

/* Out of the cleanup's reach. */
static int keep_fd(int *fd)
{
    int kept = *fd;
    *fd = -1;
    return kept;
}

/* The lock beside the socket. Whoever ends removes it: one that is gone meanwhile is nobody's. */
static enum status take_lock(int folder, const char *name, int *out_fd)
{
    char lock[sizeof(((struct rpc_unix_listener *)0)->name) + 8];
    struct reason why;
    struct stat ours, there;
    (void)snprintf(lock, sizeof(lock), "%s.lock", name);
    for (int i = 0; i < LOCK_TRIES; i++) {
        auto_close int fd = -1;
        const enum status st =
            private_file(folder, lock, O_RDWR, PRIVATE_MAKE | PRIVATE_MEND, &fd, NULL, &why);
        if (st != ST_OK)
            return st;
        if (flock(fd, LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK ? ST_EXISTS : status_from_errno(errno);
        if (fstat(fd, &ours) == 0 && fstatat(folder, lock, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
            ours.st_ino == there.st_ino) {
            *out_fd = keep_fd(&fd);
            return ST_OK;
        }
    }
    return ST_AGAIN;
}

/* Binds a socket by way of the folder's descriptor: the path of a home may be longer than an
 * address takes. */
static enum status bind_socket(int folder, const char *name, int *out_fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int size =
        snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d/%s", folder, name);
    if (size < 0 || (size_t)size >= sizeof(address.sun_path))
        return ST_INVALID;
    auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return status_from_errno(errno);
    if (unlinkat(folder, name, 0) != 0 && errno != ENOENT) /* the lock is ours: nobody listens */
        return status_from_errno(errno);
    /* The mode of the name comes from the socket's (Linux), so there is no moment of another one.
     */
    if (fchmod(fd, 0600) != 0 || bind(fd, (const struct sockaddr *)&address, sizeof(address)) != 0)
        return status_from_errno(errno);
    if (listen(fd, BACKLOG) != 0)
        return status_from_errno(errno);
    *out_fd = keep_fd(&fd);
    return ST_OK;
}

/* Opens the socket's folder, in which nobody else may put a socket in our place. *out_name: the
 * socket's name, in path. */
static enum status open_folder(const char *path, const char **out_name, int *out_fd)
{
    char folder[LIMIT_PATH];
    struct reason why;
    const char *slash = strrchr(path, '/');
    *out_name = slash != NULL ? slash + 1 : path;
    const int size = snprintf(folder, sizeof(folder), "%.*s",
                              slash == NULL ? 1 : (int)(slash - path) + (slash == path),
                              slash == NULL ? "." : path);
    if (size < 0 || (size_t)size >= sizeof(folder) || (*out_name)[0] == '\0' ||
        strlen(*out_name) >= sizeof(((struct rpc_unix_listener *)0)->name))
        return ST_INVALID;
    return private_folder(AT_FDCWD, folder, PRIVATE_ROOTS | PRIVATE_READABLE | PRIVATE_LINKS,
                          out_fd, NULL, &why);
}

enum status rpc_server_listen_unix(struct rpc_server *server, const char *path)
{
    CHECK(!server->started);
    auto_close int folder = -1;
    auto_close int lock_fd = -1;
    auto_close int fd = -1;
    const char *name = NULL;
    enum status st = open_folder(path, &name, &folder);
    if (st == ST_OK)
        st = take_lock(folder, name, &lock_fd);
    if (st == ST_OK)
        st = bind_socket(folder, name, &fd);
    if (st != ST_OK)
        return st;
    int stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stop_fd < 0) {
        (void)unlinkat(folder, name, 0);
        return status_from_errno(errno);
    }
    struct rpc_unix_listener *listener = rpc_alloc(sizeof(*listener));
    listener->server = server;
    (void)snprintf(listener->name, sizeof(listener->name), "%s", name);
    listener->folder_fd = keep_fd(&folder);
    listener->fd = keep_fd(&fd);
    listener->lock_fd = keep_fd(&lock_fd);
    listener->stop_fd = stop_fd;
    listener->next = server->unix_listeners;
    server->unix_listeners = listener;
    return ST_OK;
}

static bool may_connect(int fd, struct ucred *out)
{
    socklen_t size = sizeof(*out);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &size) != 0)
        return false;
    return out->uid == geteuid() || out->uid == 0;
}

/* False: there is no descriptor left. */
static bool accept_waiting(struct rpc_unix_listener *listener)
{
    for (;;) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        if (fd < 0)
            return errno == EAGAIN;
        struct ucred cred;
        if (may_connect(fd, &cred)) {
            rpc_server_adopt(listener->server, fd, &cred);
        } else {
            (void)close(fd);
        }
    }
}

static void *listen_main(void *arg)
{
    struct rpc_unix_listener *listener = arg;
    struct pollfd polls[2] = { { .fd = listener->stop_fd, .events = POLLIN },
                               { .fd = listener->fd, .events = POLLIN } };
    bool exhausted = false;
    for (;;) {
        polls[1].events = exhausted ? 0 : POLLIN;
        (void)poll(polls, 2, exhausted ? EXHAUSTED_WAIT_MS : -1);
        if ((polls[0].revents & POLLIN) != 0)
            return NULL;
        exhausted = !accept_waiting(listener);
    }
}

void rpc_unix_listeners_start(struct rpc_server *server)
{
    for (struct rpc_unix_listener *l = server->unix_listeners; l != NULL; l = l->next) {
        if (pthread_create(&l->thread, NULL, listen_main, l) != 0)
            abort();
        l->running = true;
    }
}

void rpc_unix_listeners_stop(struct rpc_server *server)
{
    for (struct rpc_unix_listener *l = server->unix_listeners; l != NULL; l = l->next) {
        if (l->running) {
            uint64_t one = 1;
            CHECK(write(l->stop_fd, &one, sizeof(one)) == (ssize_t)sizeof(one));
            pthread_join(l->thread, NULL);
            l->running = false;
        }
        if (l->fd < 0)
            continue;
        char lock[sizeof(l->name) + 8];
        (void)snprintf(lock, sizeof(lock), "%s.lock", l->name);
        (void)unlinkat(l->folder_fd, l->name, 0); /* before the lock goes */
        (void)unlinkat(l->folder_fd, lock, 0);
        (void)close(l->fd);
        (void)close(l->stop_fd);
        l->fd = -1;
    }
}

void rpc_unix_listeners_free(struct rpc_server *server)
{
    while (server->unix_listeners != NULL) {
        struct rpc_unix_listener *listener = server->unix_listeners;
        server->unix_listeners = listener->next;
        (void)close(listener->lock_fd);
        (void)close(listener->folder_fd);
        free(listener);
    }
}
