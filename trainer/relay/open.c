#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "session/copies/copy_guard.h"
/* The relay from its begin to its end, and the looks that the worker takes. */
#include "trainer/relay/internal.h"

#define ROW_MS INT64_C(500) /* a row waits so long for more numbers of its step */

/* ---- open and close ---- */

/* Makes the page: nobody can shrink it, so no look at it is a SIGBUS. */
static enum status make_page(struct relay *r)
{
    r->page_fd = memfd_create("cairn-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (r->page_fd < 0 || ftruncate(r->page_fd, WIRE_PAGE_BYTES) != 0 ||
        fcntl(r->page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return status_from_errno(errno);
    void *memory = mmap(NULL, WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r->page_fd, 0);
    if (memory == MAP_FAILED)
        return ST_NO_MEMORY;
    r->page = memory;
    atomic_store(&r->page->next_due, UINT64_MAX);
    return ST_OK;
}

static enum status start(struct relay *r, struct reason *out_why)
{
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status st = r->wake_fd < 0 ? status_from_errno(errno) : ST_OK;
    if (st == ST_OK)
        st = relay_find_source(r, out_why);
    if (st == ST_OK)
        st = make_page(r);
    if (st == ST_OK)
        st = relay_listen(r);
    if (st != ST_OK)
        return st;
    r->has_thread = pthread_create(&r->thread, NULL, relay_run, r) == 0;
    return r->has_thread ? ST_OK : ST_NO_MEMORY;
}

enum status relay_open(const struct relay_options *options, struct relay **out,
                       struct reason *out_why)
{
    struct relay *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ST_NO_MEMORY;
    r->options = *options;
    r->shrunk = copy_guard_shrunk();
    r->listen_fd = r->wake_fd = r->page_fd = -1;
    for (int i = 0; i < RELAY_PEERS; i++)
        r->peers[i].fd = -1;
    (void)pthread_mutex_init(&r->mutex, NULL);
    clock_cond_init(&r->changed);
    const enum status st = start(r, out_why);
    if (st != ST_OK) {
        relay_close(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        (void)close(fd);
}

void relay_close(struct relay *relay)
{
    struct relay *r = relay;
    const uint64_t one = 1;
    if (r == NULL)
        return;
    (void)pthread_mutex_lock(&r->mutex);
    r->closing = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
    if (r->has_thread) {
        (void)!write(r->wake_fd, &one, sizeof(one));
        (void)pthread_join(r->thread, NULL); /* which alone starts the other */
    }
    if (r->has_former) {
        session_keep_end(r->options.session);
        (void)pthread_join(r->former, NULL);
    }
    relay_tell_row(r);
    session_follow(r->options.session, NULL);
    if (r->page != NULL) {
        atomic_store(&r->page->over, 1);
        (void)munmap(r->page, WIRE_PAGE_BYTES);
    }
    close_fd(r->listen_fd);
    close_fd(r->wake_fd);
    close_fd(r->page_fd);
    saved_release(&r->saved);
    free(r->source.paths);
    free(r->welcome);
    (void)pthread_cond_destroy(&r->changed);
    (void)pthread_mutex_destroy(&r->mutex);
    free(r);
}

const char *relay_name(const struct relay *relay)
{
    return relay->name;
}

/* ---- the worker's turn ---- */

void relay_look(struct relay *relay, struct relay_news *out)
{
    struct relay *r = relay;
    struct session *session = r->options.session;
    *out = (struct relay_news){ .counter = atomic_load(&r->requests) };
    (void)pthread_mutex_lock(&r->mutex);
    out->ready = r->formed;
    out->done = r->done;
    out->ends = r->fallen_back > 0;
    out->failed = r->failed;
    out->why = r->why;
    out->words = r->words;
    out->words_ms = r->words_ms;
    const uint64_t saved = r->fallen_back;
    const uint64_t total = r->formed ? r->began.total_steps : 0;
    const bool waits = r->has_row && relay_now_ms() - r->row_ms >= ROW_MS;
    (void)pthread_mutex_unlock(&r->mutex);
    const uint64_t reached = atomic_load(&r->page->step);
    out->step = out->ends ? saved : reached < total ? reached : total;
    out->counter += reached + atomic_load(&r->page->beats);
    if (waits)
        relay_tell_row(r);
    if (copy_guard_shrunk() != r->shrunk) {
        relay_fail(r,
                   "the program has shrunk a file that it shares with its worker, in %s: no "
                   "copy of it can be used",
                   r->options.copies);
    }
    if (session_is_over(session))
        atomic_store(&r->page->over, 1);
    if (!r->told_to_leave && atomic_load(&r->page->leaves) != 0) {
        r->told_to_leave = true;
        session_wanted(session, true, (uint64_t)r->options.job->checkpoint.grace_ms,
                       "SIGTERM: the program was told to go");
    }
}
