/* A request and its answer. What the worker says is bounded, and anything else than an answer ends
 * the connection. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "library/client/internal.h"

#define TEXT_MAX 4096 /* of an answer that says what failed */
#define FDS_MAX  4    /* that are taken from a message, to be closed but for one */

int library_check(const struct cairn *c)
{
    if (atomic_load(&c->forked)) {
        return library_say(CAIRN_CLOSED,
                           "this process was forked from the one that is connected to Cairn");
    }
    if (atomic_load(&c->broken))
        return library_say(CAIRN_CLOSED, "the connection to the worker is gone");
    return CAIRN_OK;
}

/* A lock that is held: the connection can't be used by anybody else. */
static int broke(struct cairn *c, int status, const char *what)
{
    atomic_store(&c->broken, true);
    return library_say(status, "%s", what);
}

static int await(struct cairn *c, short events, int64_t until)
{
    for (;;) {
        const int64_t left = until - clock_mono_ms(clock_system());
        struct pollfd it = { .fd = c->fd, .events = events };
        const int got = poll(&it, 1, left > 0 ? (int)left : 0);
        if (got > 0)
            return CAIRN_OK; /* an error, too: the call that follows has it */
        if (got == 0)
            return broke(c, CAIRN_TIMED_OUT, "the worker does not answer");
        if (errno != EINTR)
            return broke(c, CAIRN_CLOSED, "the connection to the worker failed");
    }
}

static int send_all(struct cairn *c, struct iovec *parts, size_t count, int64_t until)
{
    while (count > 0) {
        struct msghdr message = { .msg_iov = parts, .msg_iovlen = count };
        const ssize_t sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            const int status = await(c, POLLOUT, until);
            if (status != CAIRN_OK)
                return status;
            continue;
        }
        if (sent < 0 && errno != EINTR)
            return broke(c, CAIRN_CLOSED, "the worker has closed the connection");
        size_t done = sent > 0 ? (size_t)sent : 0;
        while (count > 0 && done >= parts->iov_len) {
            done -= parts->iov_len;
            parts++;
            count--;
        }
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + done;
            parts->iov_len -= done;
        }
    }
    return CAIRN_OK;
}

/* Keeps the first descriptor of a message, in *fd if that is none yet, and closes all others. */
static void take_fds(struct msghdr *message, int *fd)
{
    for (struct cmsghdr *it = CMSG_FIRSTHDR(message); it != NULL; it = CMSG_NXTHDR(message, it)) {
        if (it->cmsg_level != SOL_SOCKET || it->cmsg_type != SCM_RIGHTS)
            continue;
        const size_t count = (it->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int one = -1;
            memcpy(&one, CMSG_DATA(it) + i * sizeof(one), sizeof(one));
            if (*fd < 0) {
                *fd = one;
            } else {
                (void)close(one);
            }
        }
    }
}

static int receive_all(struct cairn *c, void *bytes, size_t size, int *fd, int64_t until)
{
    for (size_t at = 0; at < size;) {
        union {
            struct cmsghdr head;
            char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
        } control;
        struct iovec part = { (char *)bytes + at, size - at };
        struct msghdr message = { .msg_iov = &part,
                                  .msg_iovlen = 1,
                                  .msg_control = &control,
                                  .msg_controllen = sizeof(control) };
        const ssize_t got = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got > 0) {
            take_fds(&message, fd);
            at += (size_t)got;
            continue;
        }
        if (got == 0 || (errno != EAGAIN && errno != EINTR))
            return broke(c, CAIRN_CLOSED, "the worker has closed the connection");
        const int status = await(c, POLLIN, until);
        if (status != CAIRN_OK)
            return status;
    }
    return CAIRN_OK;
}

/* Whether a worker may say so. */
static bool is_status(int32_t status)
{
    switch (status) {
    case CAIRN_AGAIN:
    case CAIRN_TIMED_OUT:
    case CAIRN_INVALID:
    case CAIRN_NO_MEMORY:
    case CAIRN_IO:
    case CAIRN_FULL:
    case CAIRN_NOT_FOUND:
    case CAIRN_REFUSED:
    case CAIRN_CLOSED:
    case CAIRN_CORRUPT:
    case CAIRN_STALE:
    case CAIRN_CHANGED:
    case CAIRN_OTHER_VERSION:
        return true;
    default:
        return false;
    }
}

static int receive_text(struct cairn *c, const struct wire_head *head, int *fd, int64_t until)
{
    char text[TEXT_MAX + 1];
    if (head->size > TEXT_MAX || !is_status(head->status))
        return broke(c, CAIRN_CLOSED, "the worker's answer makes no sense");
    const int status = receive_all(c, text, head->size, fd, until);
    if (status != CAIRN_OK)
        return status;
    text[head->size] = '\0';
    return library_say(head->status, "%s", head->size > 0 ? text : "the worker refuses it");
}

/* The bytes of an answer that succeeded. */
static int receive_body(struct cairn *c, const struct wire_head *head,
                        struct library_answer *answer, int *fd, int64_t until)
{
    const size_t size = answer != NULL ? answer->size : 0;
    const bool any = answer != NULL && answer->any;
    if (any ? head->size > size : head->size != size)
        return broke(c, CAIRN_CLOSED, "the worker's answer has a size that makes no sense");
    void *bytes = any ? malloc(head->size + (size_t)1) : answer != NULL ? answer->bytes : NULL;
    if (any && bytes == NULL)
        return broke(c, CAIRN_NO_MEMORY, "no memory for the worker's answer");
    const int status = receive_all(c, bytes, head->size, fd, until);
    if (any && status == CAIRN_OK) {
        answer->bytes = bytes;
        answer->size = head->size;
    } else if (any) {
        free(bytes);
    }
    return status;
}

static int receive(struct cairn *c, enum wire_kind kind, struct library_answer *answer)
{
    const int64_t until = clock_mono_ms(clock_system()) + WIRE_ANSWER_MS;
    struct wire_head head;
    int fd = -1;
    int status = receive_all(c, &head, sizeof(head), &fd, until);
    if (status == CAIRN_OK && (head.kind != kind || head.number != c->number || head.zero != 0)) {
        status = broke(c, CAIRN_CLOSED, "the worker's answer is not to what was asked");
    } else if (status == CAIRN_OK && head.status != CAIRN_OK) {
        status = receive_text(c, &head, &fd, until);
    } else if (status == CAIRN_OK) {
        status = receive_body(c, &head, answer, &fd, until);
    }
    if (status == CAIRN_OK && answer != NULL && answer->fd != NULL) {
        *answer->fd = fd;
        if (fd < 0) {
            if (answer->any)
                free(answer->bytes);
            status = broke(c, CAIRN_CLOSED, "the worker's answer lacks a descriptor");
        }
    } else if (fd >= 0) {
        (void)close(fd);
    }
    return status;
}

int library_request(struct cairn *c, enum wire_kind kind, const struct iovec *parts, int count,
                    struct library_answer *answer)
{
    struct wire_head head = { .kind = (uint16_t)kind };
    struct iovec all[3] = { { &head, sizeof(head) } };
    size_t used = 1, bytes = 0;
    for (int i = 0; i < count; i++) {
        bytes += parts[i].iov_len;
        if (parts[i].iov_len > 0)
            all[used++] = parts[i];
    }
    if (bytes > (size_t)WIRE_BYTES_MAX)
        return library_say(CAIRN_FULL, "more than a request has room for");
    head.size = (uint32_t)bytes;
    int status = library_check(c); /* a child's must not be locked */
    if (status != CAIRN_OK)
        return status;
    (void)pthread_mutex_lock(&c->wire);
    status = library_check(c);
    if (status == CAIRN_OK) {
        head.number = ++c->number;
        status = send_all(c, all, used, clock_mono_ms(clock_system()) + WIRE_ANSWER_MS);
    }
    if (status == CAIRN_OK)
        status = receive(c, kind, answer);
    (void)pthread_mutex_unlock(&c->wire);
    return status;
}

int library_ask(struct cairn *c, enum wire_kind kind, const void *bytes, size_t size,
                struct library_answer *answer)
{
    struct iovec part;
    memcpy(&part.iov_base, &bytes, sizeof(bytes)); /* sendmsg doesn't write */
    part.iov_len = size;
    return library_request(c, kind, &part, 1, answer);
}

void library_tell(struct cairn *c, enum wire_kind kind, const void *bytes, size_t size)
{
    const int status = library_ask(c, kind, bytes, size, NULL);
    (void)status;
}
