/* The library's thread: it copies, and says what other threads and SIGTERM leave to it. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "library/client/internal.h"

#define LOOK_MS 20 /* after SIGTERM: how often the thread looks whether all is over */

/* Handlers that use a connection now: it isn't freed before they have ended. */
static atomic_int inside;

/* ---- what waits to be said ---- */

static void say_want(struct cairn *c)
{
    struct wire_want want;
    (void)pthread_mutex_lock(&c->lock);
    const bool wants = c->wants;
    want = c->want;
    c->wants = false;
    (void)pthread_mutex_unlock(&c->lock);
    if (wants)
        library_tell(c, WIRE_WANT, &want, sizeof(want));
}

static void say_term(struct cairn *c)
{
    if (!atomic_exchange(&c->term, false))
        return;
    struct wire_want want = { .leaves = 1 };
    memcpy(want.reason, "SIGTERM", sizeof("SIGTERM"));
    library_tell(c, WIRE_WANT, &want, sizeof(want));
    atomic_store(&c->leaves, true);
}

static void say_rows(struct cairn *c)
{
    for (;;) {
        (void)pthread_mutex_lock(&c->lock);
        const bool some = c->row_count > 0;
        const struct wire_row row = c->rows[c->row_first];
        (void)pthread_mutex_unlock(&c->lock);
        if (!some)
            return;
        library_tell(c, WIRE_ROW, &row, sizeof(row));
        (void)pthread_mutex_lock(&c->lock);
        c->row_first = (c->row_first + 1) % LIBRARY_ROWS;
        c->row_count--;
        (void)pthread_cond_broadcast(&c->changed);
        (void)pthread_mutex_unlock(&c->lock);
    }
}

/* Between two pieces of a copy: only what can't wait. */
static void say_urgent(struct cairn *c)
{
    if (atomic_load_explicit(&c->term, memory_order_relaxed))
        say_term(c);
}

void library_flush(struct cairn *c)
{
    library_wake(c);
    (void)pthread_mutex_lock(&c->lock);
    while (c->row_count > 0 || c->wants)
        (void)pthread_cond_wait(&c->changed, &c->lock);
    (void)pthread_mutex_unlock(&c->lock);
}

/* ---- the copy ---- */

static void copy(struct cairn *c)
{
    struct library_save *save = &c->save;
    (void)pthread_mutex_lock(&c->lock);
    const bool copies = save->phase == SAVE_COPYING;
    (void)pthread_mutex_unlock(&c->lock);
    if (!copies)
        return;
    library_fill(c, say_urgent);
    (void)pthread_mutex_lock(&c->lock);
    if (save->waiting_from != 0)
        save->stall_ns += clock_mono_ns() - save->waiting_from;
    save->waiting_from = 0;
    save->phase = SAVE_COPIED;
    const struct wire_copied said = { .step = save->step,
                                      .stall_us = (uint64_t)save->stall_ns / 1000 };
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
    const int status = library_ask(c, WIRE_COPIED, &said, sizeof(said), NULL);
    (void)pthread_mutex_lock(&c->lock);
    save->status = status;
    if (status != CAIRN_OK)
        reason_set(&save->reason, "%s", library_why());
    save->phase = SAVE_NONE;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

/* ---- the thread ---- */

/* Whether nobody will come to save what SIGTERM would end. A program that has finished is left to
 * end with its own code. */
static bool is_in_vain(const struct cairn *c)
{
    return !atomic_load(&c->finished) &&
           (atomic_load(&c->broken) || atomic_load(&c->page->over) != 0);
}

/* Waits for something to do. After SIGTERM it also looks whether all is over meanwhile: a program
 * that waits for a rank that died would never ask. */
static void await_wake(struct cairn *c)
{
    if (!atomic_load(&c->leaves)) {
        (void)sem_wait(&c->wake); /* a signal is like a wake: there is nothing to do then */
        return;
    }
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)sem_clockwait(&c->wake, CLOCK_MONOTONIC, &until);
    if (is_in_vain(c) && library_release_signal())
        (void)raise(SIGTERM);
}

static void *run(void *arg)
{
    struct cairn *c = arg;
    for (bool stops = false; !stops;) {
        await_wake(c);
        (void)pthread_mutex_lock(&c->lock);
        stops = c->stops;
        (void)pthread_mutex_unlock(&c->lock);
        say_term(c);
        say_want(c);
        copy(c);
        say_rows(c);
        (void)pthread_mutex_lock(&c->lock);
        (void)pthread_cond_broadcast(&c->changed); /* library_flush waits for wants, too */
        (void)pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

/* Signals are the program's. A SIGTERM that is ours this thread can take whatever others block. */
int library_thread_start(struct cairn *c)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    if (c->catches)
        (void)sigdelset(&all, SIGTERM);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&c->thread, NULL, run, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return library_say(CAIRN_NO_MEMORY, "no thread: %s", strerror(error));
    (void)pthread_setname_np(c->thread, "cairn");
    return CAIRN_OK;
}

void library_thread_end(struct cairn *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->stops = true;
    (void)pthread_mutex_unlock(&c->lock);
    library_wake(c);
    (void)pthread_join(c->thread, NULL);
    while (atomic_load(&inside) > 0) /* a handler, on another thread */
        (void)sched_yield();
}

void library_wake(struct cairn *c)
{
    (void)sem_post(&c->wake);
}

/* ---- SIGTERM ---- */

static void on_term(int number)
{
    const int kept = errno;
    (void)atomic_fetch_add(&inside, 1);
    struct cairn *c = atomic_load(&library_open_one);
    const bool heard = c != NULL && !is_in_vain(c);
    if (heard) {
        atomic_store(&c->page->leaves, 1);
        atomic_store(&c->term, true);
        library_wake(c);
    }
    (void)atomic_fetch_sub(&inside, 1);
    if (!heard) { /* nobody would come to save: it ends as without a library */
        (void)signal(number, SIG_DFL);
        (void)raise(number);
    }
    errno = kept;
}

void library_catch(struct cairn *c)
{
    struct sigaction before, ours = { .sa_handler = on_term, .sa_flags = SA_RESTART };
    (void)sigemptyset(&ours.sa_mask);
    if (sigaction(SIGTERM, NULL, &before) != 0 || (before.sa_flags & SA_SIGINFO) != 0 ||
        before.sa_handler != SIG_DFL)
        return;
    c->catches = sigaction(SIGTERM, &ours, NULL) == 0;
}

bool library_release_signal(void)
{
    struct sigaction now, usual = { .sa_handler = SIG_DFL };
    const bool ours = sigaction(SIGTERM, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
                      now.sa_handler == on_term;
    return ours && sigaction(SIGTERM, &usual, NULL) == 0;
}
