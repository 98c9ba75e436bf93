/*
 * An intrusive queue of many producers and one consumer, with an eventfd as doorbell.
 *
 * 1. tail is the youngest task (or the stub); producers exchange it, then link the one before.
 * 2. Between these two steps the chain has a gap; the consumer then sees neither end nor next.
 * 3. The bell is rung only by the producer that turns asleep from 1 to 0, so a busy consumer costs
 *    producers no system call.
 *
 * Source: D. Vyukov, "Intrusive MPSC node-based queue" (1024cores.net).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rpc/core.h"
#include "rpc/executor.h"

struct rpc_mailbox {
    struct rpc_task *_Atomic tail; /* producers */
    char pad[64 - sizeof(void *)];
    struct rpc_task *head; /* consumer only */
    struct rpc_task stub;
    _Atomic int asleep; /* 1: the next push rings the bell */
    int fd;
};

enum status rpc_mailbox_new(struct rpc_mailbox **out)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0)
        return ST_FULL;
    struct rpc_mailbox *mailbox = rpc_alloc(sizeof(*mailbox));
    mailbox->fd = fd;
    mailbox->head = &mailbox->stub;
    atomic_init(&mailbox->tail, &mailbox->stub);
    atomic_init(&mailbox->asleep, 1);
    *out = mailbox;
    return ST_OK;
}

void rpc_mailbox_free(struct rpc_mailbox *mailbox)
{
    if (mailbox == NULL)
        return;
    (void)close(mailbox->fd);
    free(mailbox);
}

int rpc_mailbox_fd(const struct rpc_mailbox *mailbox)
{
    return mailbox->fd;
}

static void push(struct rpc_mailbox *mailbox, struct rpc_task *task)
{
    atomic_store_explicit(&task->next, NULL, memory_order_relaxed);
    struct rpc_task *before = atomic_exchange_explicit(&mailbox->tail, task, memory_order_acq_rel);
    atomic_store_explicit(&before->next, task, memory_order_release);
}

static void ring(const struct rpc_mailbox *mailbox)
{
    uint64_t one = 1;
    ssize_t written;
    do {
        written = write(mailbox->fd, &one, sizeof(one));
    } while (written < 0 && errno == EINTR);
}

void rpc_mailbox_post(struct rpc_mailbox *mailbox, struct rpc_task *task)
{
    push(mailbox, task);
    if (atomic_exchange(&mailbox->asleep, 0) == 1)
        ring(mailbox);
}

/* NULL: nothing there, or a gap. */
static struct rpc_task *pop(struct rpc_mailbox *mailbox)
{
    struct rpc_task *head = mailbox->head;
    struct rpc_task *next = atomic_load_explicit(&head->next, memory_order_acquire);
    if (head == &mailbox->stub) {
        if (next == NULL)
            return NULL;
        mailbox->head = next;
        head = next;
        next = atomic_load_explicit(&head->next, memory_order_acquire);
    }
    if (next != NULL) {
        mailbox->head = next;
        return head;
    }
    if (head != atomic_load_explicit(&mailbox->tail, memory_order_acquire))
        return NULL;
    push(mailbox, &mailbox->stub); /* head is the last one: give it a successor */
    next = atomic_load_explicit(&head->next, memory_order_acquire);
    if (next == NULL)
        return NULL;
    mailbox->head = next;
    return head;
}

static bool is_empty(struct rpc_mailbox *mailbox)
{
    return mailbox->head == &mailbox->stub &&
           atomic_load_explicit(&mailbox->tail, memory_order_acquire) == &mailbox->stub;
}

unsigned rpc_mailbox_drain(struct rpc_mailbox *mailbox, unsigned count_max)
{
    uint64_t rings;
    ssize_t taken = read(mailbox->fd, &rings, sizeof(rings)); /* EAGAIN: nobody rang */
    (void)taken;
    unsigned count = 0;
    for (;;) {
        struct rpc_task *task = NULL;
        while (count < count_max && (task = pop(mailbox)) != NULL) {
            count++;
            task->run(task);
        }
        if (count == count_max) { /* come back soon */
            ring(mailbox);
            return count;
        }
        atomic_store(&mailbox->asleep, 1);
        if (is_empty(mailbox))
            return count;
        /* Something slipped in. Who saw asleep == 1 has rung: then the descriptor is readable. */
        if (atomic_exchange(&mailbox->asleep, 0) == 0)
            return count;
    }
}

static void post_task(void *self, struct rpc_task *task)
{
    rpc_mailbox_post(self, task);
}

struct rpc_executor rpc_mailbox_executor(struct rpc_mailbox *mailbox)
{
    return (struct rpc_executor){ .post = post_task, .self = mailbox };
}
