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
static enum status make_page(struct relay_process *p)
{
    p->page_fd = memfd_create("cairn-page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (p->page_fd < 0 || ftruncate(p->page_fd, WIRE_PAGE_BYTES) != 0 ||
        fcntl(p->page_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return status_from_errno(errno);
    void *memory = mmap(NULL, WIRE_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p->page_fd, 0);
    if (memory == MAP_FAILED)
        return ST_NO_MEMORY;
    p->page = memory;
    atomic_store(&p->page->next_due, UINT64_MAX);
    p->followed.reached = &p->page->step;
    p->followed.next_due = &p->page->next_due;
    return ST_OK;
}

static enum status make_process(struct relay_process *p)
{
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status st = p->wake_fd < 0 ? status_from_errno(errno) : ST_OK;
    if (st == ST_OK)
        st = make_page(p);
    return st == ST_OK ? relay_listen(p) : st;
}

static enum status start(struct relay *r, struct reason *out_why)
{
    enum status st = relay_find_source(r, out_why);
    relay_choose_name(r);
    for (uint32_t i = 0; i < r->count && st == ST_OK; i++)
        st = make_process(&r->processes[i]);
    for (uint32_t i = 0; i < r->count && st == ST_OK; i++) {
        struct relay_process *p = &r->processes[i];
        p->has_thread = pthread_create(&p->thread, NULL, relay_run, p) == 0;
        st = p->has_thread ? ST_OK : ST_NO_MEMORY;
    }
    return st;
}

static void init_process(struct relay *r, uint32_t i)
{
    struct relay_process *p = &r->processes[i];
    p->relay = r;
    p->local = i;
    p->listen_fd = p->wake_fd = p->page_fd = -1;
    p->followed.owed = r->count > 1 ? &p->owed : NULL;
    atomic_store(&p->owed, UINT64_MAX);
    p->followed.more = i + 1 < r->count ? &p[1].followed : NULL;
    for (int peer = 0; peer < RELAY_PEERS; peer++)
        p->peers[peer].fd = -1;
}

enum status relay_open(const struct relay_options *options, struct relay **out,
                       struct reason *out_why)
{
    struct relay *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ST_NO_MEMORY;
    r->options = *options;
    r->count = (uint32_t)options->job->command.processes;
    r->processes = calloc(r->count, sizeof(*r->processes));
    if (r->processes == NULL) {
        free(r);
        return ST_NO_MEMORY;
    }
    for (uint32_t i = 0; i < r->count; i++)
        init_process(r, i);
    r->saved = &r->processes[0].saved;
    (void)pthread_mutex_init(&r->turn, NULL);
    r->shrunk = copy_guard_shrunk();
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

static void release_process(struct relay_process *p)
{
    if (p->page != NULL) {
        atomic_store(&p->page->over, 1);
        (void)munmap(p->page, WIRE_PAGE_BYTES);
    }
    close_fd(p->listen_fd);
    close_fd(p->wake_fd);
    close_fd(p->page_fd);
    saved_release(&p->saved);
    free(p->welcome);
}

/* Ends the threads; each process's first, the last of which starts the forming one. */
static void end_threads(struct relay *r)
{
    const uint64_t one = 1;
    (void)pthread_mutex_lock(&r->mutex);
    r->closing = true;
    (void)pthread_cond_broadcast(&r->changed);
    (void)pthread_mutex_unlock(&r->mutex);
    for (uint32_t i = 0; i < r->count; i++) {
        struct relay_process *p = &r->processes[i];
        if (p->has_thread)
            (void)!write(p->wake_fd, &one, sizeof(one));
    }
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->processes[i].has_thread)
            (void)pthread_join(r->processes[i].thread, NULL);
    }
    if (r->has_former) {
        session_keep_end(r->options.session);
        (void)pthread_join(r->former, NULL);
    }
}

void relay_close(struct relay *relay)
{
    struct relay *r = relay;
    if (r == NULL)
        return;
    end_threads(r);
    relay_tell_row(r);
    session_follow(r->options.session, NULL);
    for (uint32_t i = 0; i < r->count; i++)
        release_process(&r->processes[i]);
    free(r->processes);
    free(r->source.paths);
    (void)pthread_cond_destroy(&r->changed);
    (void)pthread_mutex_destroy(&r->mutex);
    (void)pthread_mutex_destroy(&r->turn);
    free(r);
}

const char *relay_name(const struct relay *relay)
{
    return relay->name;
}

/* ---- the worker's turn ---- */

/* Looks at what the processes store in their pages; returns the step that all have finished. */
static uint64_t look_at_pages(struct relay *r, struct relay_news *out, bool *out_leaves)
{
    const bool over = session_is_over(r->options.session);
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < r->count; i++) {
        struct relay_process *p = &r->processes[i];
        const uint64_t step = atomic_load(&p->page->step);
        least = step < least ? step : least;
        out->of[i].counter = atomic_load(&p->requests) + step + atomic_load(&p->page->beats);
        *out_leaves = *out_leaves || atomic_load(&p->page->leaves) != 0;
        if (over)
            atomic_store(&p->page->over, 1);
    }
    return least;
}

void relay_look(struct relay *relay, struct relay_news *out)
{
    struct relay *r = relay;
    struct session *session = r->options.session;
    *out = (struct relay_news){ .done = true };
    (void)pthread_mutex_lock(&r->mutex);
    out->ready = r->formed;
    for (uint32_t i = 0; i < r->count; i++) {
        out->of[i].done = r->processes[i].done;
        out->done = out->done && r->processes[i].done;
    }
    out->ends = r->fallen_back > 0;
    out->failed = r->failed;
    out->why = r->why;
    out->words = r->words;
    out->words_ms = r->words_ms;
    const uint64_t saved = r->fallen_back;
    const uint64_t total = r->formed ? r->processes[0].began.total_steps : 0;
    const bool waits = r->has_row && relay_now_ms() - r->row_ms >= ROW_MS;
    (void)pthread_mutex_unlock(&r->mutex);
    bool leaves = false;
    uint64_t reached = look_at_pages(r, out, &leaves);
    reached = reached < total ? reached : total;
    out->step = out->ends ? saved : reached;
    if (waits)
        relay_tell_row(r);
    relay_give_up_passed(r);
    if (copy_guard_shrunk() != r->shrunk) {
        relay_fail(r,
                   "the program has shrunk a file that it shares with its worker, in %s: no "
                   "copy of it can be used",
                   r->options.copies);
    }
    if (!r->told_to_leave && leaves) {
        r->told_to_leave = true;
        session_wanted(session, true, (uint64_t)r->options.job->checkpoint.grace_ms,
                       "SIGTERM: the program was told to go");
    }
}
