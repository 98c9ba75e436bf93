#include "trainer/program/signals.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "common/clock.h"
#include "session/session.h"

struct notice {
    struct session *session;
    const struct log *log;
    int signals, stop; /* descriptors */
    _Atomic int64_t grace_ms;
    pthread_t thread;
};

static sigset_t taken(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGUSR1);
    return set;
}

void notice_block(void)
{
    const sigset_t set = taken();
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* As if nobody had taken it: whoever sent it sees what it did. */
static void die(void)
{
    const sigset_t set = taken();
    (void)signal(SIGTERM, SIG_DFL);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(SIGTERM);
}

/* *leave_at: 0 until it is to go. */
static void take(struct notice *n, int64_t *leave_at)
{
    struct signalfd_siginfo info;
    if (read(n->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    const int64_t grace_ms = atomic_load(&n->grace_ms);
    if (info.ssi_signo == SIGUSR1) {
        LOG_INFO(n->log, "SIGUSR1: a checkpoint is wanted");
        session_wanted(n->session, false, 0, "SIGUSR1: a checkpoint is wanted");
    } else if (*leave_at == 0) {
        LOG_INFO(n->log, "SIGTERM: leaving with a checkpoint, within %.1f s",
                 (double)grace_ms / 1e3);
        session_wanted(n->session, true, (uint64_t)grace_ms, "SIGTERM: told to go");
        *leave_at = clock_mono_ms(clock_system()) + grace_ms;
    }
}

static void *run(void *arg)
{
    struct notice *n = arg;
    int64_t leave_at = 0;
    for (;;) {
        struct pollfd fds[] = { { n->signals, POLLIN, 0 }, { n->stop, POLLIN, 0 } };
        int64_t left_ms = -1;
        if (leave_at != 0) {
            left_ms = leave_at - clock_mono_ms(clock_system());
            left_ms = left_ms > 0 ? left_ms : 0;
        }
        const int ready = poll(fds, 2, (int)left_ms);
        if (ready < 0 && errno != EINTR)
            return NULL;
        if (ready == 0) {
            LOG_WARN(n->log, "no checkpoint within the time of grace: leaving without it");
            die();
        }
        if (ready > 0 && fds[1].revents != 0)
            return NULL;
        if (ready > 0 && fds[0].revents != 0)
            take(n, &leave_at);
    }
}

/* What the environment says wins over the job. */
static bool environment_grace(int64_t *out)
{
    const char *text = getenv(NOTICE_GRACE_ENV);
    char *end = NULL;
    errno = 0;
    const long value = text == NULL ? -1 : strtol(text, &end, 10);
    if (value < 0 || value > INT32_MAX || errno != 0 || end == text || *end != '\0')
        return false;
    *out = value;
    return true;
}

void notice_set_grace(struct notice *notice, int64_t grace_ms)
{
    (void)environment_grace(&grace_ms);
    atomic_store(&notice->grace_ms, grace_ms);
}

enum status notice_open(struct session *session, const struct log *log, struct notice **out)
{
    struct notice *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return ST_NO_MEMORY;
    const sigset_t set = taken();
    n->session = session;
    n->log = log;
    notice_set_grace(n, NOTICE_GRACE_MS);
    n->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    n->stop = eventfd(0, EFD_CLOEXEC);
    enum status st = n->signals < 0 || n->stop < 0 ? status_from_errno(errno) : ST_OK;
    if (st == ST_OK && pthread_create(&n->thread, NULL, run, n) != 0)
        st = ST_NO_MEMORY;
    if (st != ST_OK) {
        if (n->signals >= 0)
            (void)close(n->signals);
        if (n->stop >= 0)
            (void)close(n->stop);
        free(n);
        return st;
    }
    *out = n;
    return ST_OK;
}

void notice_close(struct notice *notice)
{
    if (notice == NULL)
        return;
    const uint64_t one = 1;
    (void)!write(notice->stop, &one, sizeof(one));
    (void)pthread_join(notice->thread, NULL);
    (void)close(notice->signals);
    (void)close(notice->stop);
    free(notice);
}
