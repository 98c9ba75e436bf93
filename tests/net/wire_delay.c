/*
 * Holds what a machine receives for a while, as a long wire does: a relay for tests.
 *
 *   wire_delay MS JITTER_MS
 *
 * Packets come in netfilter's queue 0 of the network that this runs in (a rule of its raw table
 * sends them there) and go on MS later, and up to JITTER_MS more, in the order in which they came.
 * Says "ready" once the queue is its own. After SIGTERM all that it holds goes on, and it ends.
 *
 * It belongs at the receiver: packets that are held at the sender count as its socket's own, and
 * TCP then sends next to none.
 */
#include <endian.h>
#include <errno.h>
#include <libnetfilter_queue/libnetfilter_queue.h>
#include <linux/netfilter.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#define HELD_MAX  65536 /* packets; the kernel drops what is more */
#define MESSAGES  65536 /* bytes that are read of the queue at once */
#define IDLE_US   1000000
#define SOCKET_RX (8 << 20)

/* The packets that are held, oldest first: from `tail` to `head`. */
static struct {
    uint32_t id;
    int64_t at_us; /* never before that of an older one */
} held[HELD_MAX];
static unsigned head, tail;
static int64_t delay_us, jitter_us;
static volatile sig_atomic_t told_to_end;

static void end(int sig)
{
    (void)sig;
    told_to_end = 1;
}

static int64_t now_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

static int take(struct nfq_q_handle *queue, struct nfgenmsg *message, struct nfq_data *packet,
                void *arg)
{
    (void)message;
    (void)arg;
    uint32_t id = be32toh(nfq_get_msg_packet_hdr(packet)->packet_id);
    if (head - tail == HELD_MAX)
        return nfq_set_verdict(queue, id, NF_DROP, 0, NULL);
    int64_t at = now_us() + delay_us + (jitter_us > 0 ? random() % jitter_us : 0);
    if (head != tail && held[(head - 1) % HELD_MAX].at_us > at)
        at = held[(head - 1) % HELD_MAX].at_us;
    held[head % HELD_MAX].id = id;
    held[head++ % HELD_MAX].at_us = at;
    return 0;
}

/* One verdict counts for all packets up to the newest that has waited long enough. */
static void let_go(struct nfq_q_handle *queue)
{
    unsigned first = tail;
    int64_t now = told_to_end ? INT64_MAX : now_us();
    while (head != tail && held[tail % HELD_MAX].at_us <= now)
        tail++;
    if (tail != first)
        (void)nfq_set_verdict_batch(queue, held[(tail - 1) % HELD_MAX].id, NF_ACCEPT);
}

static int relay(struct nfq_handle *handle, struct nfq_q_handle *queue)
{
    static char messages[MESSAGES];
    struct pollfd wait = { .fd = nfq_fd(handle), .events = POLLIN };
    sigset_t none;
    (void)sigemptyset(&none);
    for (bool more = true; more || !told_to_end;) {
        int64_t left = head == tail ? IDLE_US : held[tail % HELD_MAX].at_us - now_us();
        left = left > 0 ? left : 0;
        struct timespec until = { .tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000 };
        if (ppoll(&wait, 1, &until, &none) < 0 && errno != EINTR)
            return 1;
        ssize_t size = recv(wait.fd, messages, sizeof(messages), MSG_DONTWAIT);
        if (size < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS)
            return 1;
        more = size > 0;
        if (more)
            (void)nfq_handle_packet(handle, messages, (int)size);
        let_go(queue);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        (void)fprintf(stderr, "usage: wire_delay MS JITTER_MS\n");
        return 2;
    }
    delay_us = 1000LL * strtol(argv[1], NULL, 10);
    jitter_us = 1000LL * strtol(argv[2], NULL, 10);
    struct nfq_handle *handle = nfq_open();
    struct nfq_q_handle *queue = handle == NULL ? NULL : nfq_create_queue(handle, 0, take, NULL);
    if (queue == NULL || nfq_set_mode(queue, NFQNL_COPY_META, 0) < 0 ||
        nfq_set_queue_maxlen(queue, HELD_MAX) < 0) {
        perror("wire_delay: the queue");
        return 1;
    }
    (void)nfnl_rcvbufsiz(nfq_nfnlh(handle), SOCKET_RX);
    sigset_t term; /* it comes in ppoll() only */
    (void)sigemptyset(&term);
    (void)sigaddset(&term, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &term, NULL);
    (void)signal(SIGTERM, end);
    (void)puts("ready");
    (void)fflush(stdout);
    return relay(handle, queue);
}
