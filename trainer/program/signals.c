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

struct signals {
    pthread_mutex_t mutex;
    struct session *session; /* under mutex, as are the next three; NULL: nobody can be told now */
    bool wanted;             /* a checkpoint, and nobody was told */
    bool at_once;            /* there is nothing to save */
    int64_t leave_at;        /* when the process must be gone (monotonic, ms); 0: nobody wants it */
    const struct log *log;
    int signal_fd, stop_fd;
    _Atomic int64_t grace_ms;
    pthread_t thread;
};

static sigset_t signal_set(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGUSR1);
    return set;
}

void signals_block(void)
{
    const sigset_t set = signal_set();
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* Dies of SIGTERM as if it had not been caught, so that its sender sees that. */
static void die(void)
{
    const sigset_t set = signal_set();
    (void)signal(SIGTERM, SIG_DFL);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    (void)raise(SIGTERM);
}

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* Tells the session that this process is to leave. Under mutex. */
static void tell_to_leave(const struct signals *s)
{
    const int64_t left_ms = s->leave_at - now_ms();
    session_wanted(s->session, true, left_ms > 0 ? (uint64_t)left_ms : 0, "SIGTERM: told to go");
}

/* Tells the session that a checkpoint is wanted. Under mutex. */
static void tell_wanted(struct signals *s)
{
    s->wanted = s->session == NULL;
    if (s->session != NULL)
        session_wanted(s->session, false, 0, "SIGUSR1: a checkpoint is wanted");
}

static void take_signal(struct signals *s)
{
    struct signalfd_siginfo info;
    if (read(s->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    const int64_t grace_ms = atomic_load(&s->grace_ms);
    (void)pthread_mutex_lock(&s->mutex);
    if (info.ssi_signo == SIGUSR1) {
        LOG_INFO(s->log, "SIGUSR1: a checkpoint is wanted");
        tell_wanted(s);
    } else if (s->at_once) {
        LOG_INFO(s->log, "SIGTERM: leaving, there is nothing to save");
        die();
    } else if (s->leave_at == 0) {
        LOG_INFO(s->log, "SIGTERM: leaving with a checkpoint, within %.1f s",
                 (double)grace_ms / 1e3);
        s->leave_at = now_ms() + grace_ms;
        if (s->session != NULL)
            tell_to_leave(s);
    }
    (void)pthread_mutex_unlock(&s->mutex);
}

void signals_set_session(struct signals *signals, struct session *session)
{
    struct signals *s = signals;
    (void)pthread_mutex_lock(&s->mutex);
    s->session = session;
    if (session != NULL && s->leave_at != 0)
        tell_to_leave(s);
    if (session != NULL && s->wanted)
        tell_wanted(s);
    (void)pthread_mutex_unlock(&s->mutex);
}

void signals_leave_at_once(struct signals *signals, bool at_once)
{
    (void)pthread_mutex_lock(&signals->mutex);
    signals->at_once = at_once;
    (void)pthread_mutex_unlock(&signals->mutex);
}

static void *signals_main(void *arg)
{
    struct signals *s = arg;
    for (;;) {
        struct pollfd fds[] = { { s->signal_fd, POLLIN, 0 }, { s->stop_fd, POLLIN, 0 } };
        int64_t left_ms = -1;
        (void)pthread_mutex_lock(&s->mutex);
        if (s->leave_at != 0) {
            left_ms = s->leave_at - now_ms();
            left_ms = left_ms > 0 ? left_ms : 0;
        }
        (void)pthread_mutex_unlock(&s->mutex);
        const int ready = poll(fds, 2, (int)left_ms);
        if (ready < 0 && errno != EINTR)
            return NULL;
        if (ready == 0) {
            LOG_WARN(s->log, "no checkpoint within the time of grace: leaving without it");
            die();
        }
        if (ready > 0 && fds[1].revents != 0)
            return NULL;
        if (ready > 0 && fds[0].revents != 0)
            take_signal(s);
    }
}

/* The environment wins over the job. */
static bool environment_grace(int64_t *out)
{
    const char *text = getenv(SIGNALS_GRACE_ENV);
    char *end = NULL;
    errno = 0;
    const long value = text == NULL ? -1 : strtol(text, &end, 10);
    if (value < 0 || value > INT32_MAX || errno != 0 || end == text || *end != '\0')
        return false;
    *out = value;
    return true;
}

void signals_set_grace(struct signals *signals, int64_t grace_ms)
{
    (void)environment_grace(&grace_ms);
    atomic_store(&signals->grace_ms, grace_ms);
}

enum status signals_open(struct session *session, const struct log *log, struct signals **out)
{
    struct signals *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    const sigset_t set = signal_set();
    (void)pthread_mutex_init(&s->mutex, NULL);
    s->session = session;
    s->log = log;
    signals_set_grace(s, SIGNALS_GRACE_MS);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->stop_fd = eventfd(0, EFD_CLOEXEC);
    enum status st = s->signal_fd < 0 || s->stop_fd < 0 ? status_from_errno(errno) : ST_OK;
    if (st == ST_OK && pthread_create(&s->thread, NULL, signals_main, s) != 0)
        st = ST_NO_MEMORY;
    if (st != ST_OK) {
        if (s->signal_fd >= 0)
            (void)close(s->signal_fd);
        if (s->stop_fd >= 0)
            (void)close(s->stop_fd);
        (void)pthread_mutex_destroy(&s->mutex);
        free(s);
        return st;
    }
    *out = s;
    return ST_OK;
}

void signals_close(struct signals *signals)
{
    if (signals == NULL)
        return;
    const uint64_t one = 1;
    (void)!write(signals->stop_fd, &one, sizeof(one));
    (void)pthread_join(signals->thread, NULL);
    (void)close(signals->signal_fd);
    (void)close(signals->stop_fd);
    (void)pthread_mutex_destroy(&signals->mutex);
    free(signals);
}
