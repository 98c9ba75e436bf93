/*
 * Connections: a name that nobody can guess, the account of who connects, requests as they come in.
 *
 *     accepted -> greeted   [serve_ready]  its HELLO was answered; one at a time
 *     any      -> closed    [drop]         it ended, broke the protocol, or said no HELLO in time
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/check.h"
#include "common/unconst.h"
#include "trainer/relay/internal.h"

#define HELLO_MS INT64_C(5000)
#define SEND_MS  INT64_C(2000) /* a program that doesn't read its answer */

void relay_choose_name(struct relay *relay)
{
    uint64_t random[2];
    CHECK(getrandom(random, sizeof(random), 0) == sizeof(random));
    (void)snprintf(relay->name, sizeof(relay->name), "@cairn-%016" PRIx64 "%016" PRIx64, random[0],
                   random[1]);
}

enum status relay_listen(struct relay_process *process)
{
    struct relay_process *p = process;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char name[sizeof(p->relay->name) + 12];
    (void)snprintf(name, sizeof(name), "%s.%" PRIu32, p->relay->name, p->local);
    const size_t size = strlen(name);
    memcpy(address.sun_path + 1, name + 1, size - 1); /* behind a NUL: of no file system */
    p->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->listen_fd < 0 ||
        bind(p->listen_fd, (const struct sockaddr *)&address,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)) != 0 ||
        listen(p->listen_fd, RELAY_PEERS) != 0)
        return status_from_errno(errno);
    return ST_OK;
}

/* ---- peers ---- */

static void drop(struct relay_process *p, struct relay_peer *peer)
{
    const bool was_greeted = peer->greeted;
    free(peer->body);
    (void)close(peer->fd);
    *peer = (struct relay_peer){ .fd = -1 };
    if (was_greeted && relay_fills(p))
        (void)relay_give_up(p->relay);
}

static bool is_of_this_account(int fd)
{
    struct ucred who;
    socklen_t size = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == geteuid();
}

static void take_peer(struct relay_process *p)
{
    const int fd = accept4(p->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    for (int i = 0; i < RELAY_PEERS && is_of_this_account(fd); i++) {
        if (p->peers[i].fd < 0) {
            p->peers[i] = (struct relay_peer){ .fd = fd, .since_ms = relay_now_ms() };
            return;
        }
    }
    (void)close(fd);
}

static bool is_any_greeted(const struct relay_process *p)
{
    bool found = false;
    for (int i = 0; i < RELAY_PEERS; i++)
        found = found || p->peers[i].greeted;
    return found;
}

/* ---- answers ---- */

/* Sends bytes, with a descriptor beside the first of them. Errors: ST_CLOSED, ST_TIMED_OUT */
static enum status send_all(int fd, const void *data, size_t size, int beside)
{
    const int64_t until = relay_now_ms() + SEND_MS;
    const uint8_t *at = data;
    while (size > 0) {
        union {
            struct cmsghdr head;
            char room[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec part = { .iov_base = unconst(at), .iov_len = size };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
        if (beside >= 0) {
            memset(&control, 0, sizeof(control));
            control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
                                             .cmsg_level = SOL_SOCKET,
                                             .cmsg_type = SCM_RIGHTS };
            memcpy(CMSG_DATA(&control.head), &beside, sizeof(beside));
            message.msg_control = &control;
            message.msg_controllen = sizeof(control);
        }
        const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            return ST_CLOSED;
        if (sent < 0) {
            const int64_t left = until - relay_now_ms();
            if (left <= 0 || poll(&(struct pollfd){ fd, POLLOUT, 0 }, 1, (int)left) == 0)
                return ST_TIMED_OUT;
            continue;
        }
        beside = -1;
        at += sent;
        size -= (size_t)sent;
    }
    return ST_OK;
}

static enum status send_answer(const struct relay_peer *peer, const struct relay_answer *answer)
{
    const bool failed = answer->status != ST_OK;
    const char *why =
        answer->why.text[0] != '\0' ? answer->why.text : status_string(answer->status);
    const size_t size = failed ? strlen(why) : answer->size;
    const struct wire_head head = { .size = (uint32_t)size,
                                    .kind = peer->head.kind,
                                    .status = (int32_t)answer->status,
                                    .number = peer->head.number };
    enum status st = send_all(peer->fd, &head, sizeof(head), failed ? -1 : answer->fd);
    return st == ST_OK ? send_all(peer->fd, failed ? why : answer->body, size, -1) : st;
}

/* ---- requests ---- */

/* Reads what there is, up to `size` bytes of them; false: the peer is gone. */
static bool read_some(int fd, void *to, size_t *filled, size_t size)
{
    const ssize_t n = recv(fd, (uint8_t *)to + *filled, size - *filled, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    *filled += (size_t)n;
    return n > 0;
}

static bool begin_body(struct relay *r, struct relay_peer *peer)
{
    const struct wire_head *head = &peer->head;
    const bool fits = head->zero == 0 && head->status == 0 && relay_fits(head->kind, head->size) &&
                      (peer->greeted || head->kind == WIRE_HELLO);
    if (!fits && peer->greeted) {
        relay_fail(r, "the program sent a request that there is not: kind %u, %u bytes", head->kind,
                   head->size);
    }
    if (!fits)
        return false;
    peer->body = malloc((size_t)head->size + 1);
    return peer->body != NULL;
}

/* Serves the request that is in. false: the connection is to end. */
static bool serve_ready(struct relay_process *p, struct relay_peer *peer)
{
    struct relay_answer answer = { .status = ST_OK, .fd = -1 };
    bool goes_on = true, greets = false;
    if (peer->head.kind == WIRE_HELLO && !peer->greeted && is_any_greeted(p)) {
        answer.status = ST_REFUSED;
        reason_set(&answer.why, "another process of this rank is connected");
        goes_on = false;
    } else {
        greets = peer->head.kind == WIRE_HELLO;
        goes_on = relay_serve(p, peer, &answer);
    }
    const bool breaks = !goes_on && answer.status == ST_OK; /* the protocol: there is no answer */
    const bool answered = !breaks && send_answer(peer, &answer) == ST_OK;
    peer->greeted = peer->greeted || (greets && goes_on && answer.status == ST_OK);
    free(peer->body);
    peer->body = NULL;
    peer->head_size = peer->body_size = 0;
    (void)atomic_fetch_add(&p->requests, 1);
    return goes_on && answered;
}

/* Reads a peer's bytes; a whole request is served. false: the connection is to end. */
static bool hear(struct relay_process *p, struct relay_peer *peer)
{
    if (peer->body == NULL) {
        if (!read_some(peer->fd, &peer->head, &peer->head_size, sizeof(peer->head)))
            return false;
        if (peer->head_size < sizeof(peer->head))
            return true;
        if (!begin_body(p->relay, peer))
            return false;
    }
    if (peer->body_size < peer->head.size &&
        !read_some(peer->fd, peer->body, &peer->body_size, peer->head.size))
        return false;
    return peer->body_size < peer->head.size || serve_ready(p, peer);
}

void *relay_run(void *process)
{
    struct relay_process *p = process;
    (void)pthread_setname_np(pthread_self(), "cairn-relay");
    while (!relay_is_closing(p->relay)) {
        struct pollfd fds[RELAY_PEERS + 2] = { { p->wake_fd, POLLIN, 0 },
                                               { p->listen_fd, POLLIN, 0 } };
        for (int i = 0; i < RELAY_PEERS; i++)
            fds[i + 2] = (struct pollfd){ p->peers[i].fd, POLLIN, 0 };
        (void)poll(fds, RELAY_PEERS + 2, 1000);
        for (int i = 0; i < RELAY_PEERS; i++) {
            struct relay_peer *peer = &p->peers[i];
            const bool silent = !peer->greeted && relay_now_ms() - peer->since_ms > HELLO_MS;
            if (peer->fd >= 0 && ((fds[i + 2].revents != 0 && !hear(p, peer)) || silent))
                drop(p, peer);
        }
        if (fds[1].revents != 0)
            take_peer(p);
    }
    for (int i = 0; i < RELAY_PEERS; i++) {
        if (p->peers[i].fd >= 0)
            drop(p, &p->peers[i]);
    }
    return NULL;
}
