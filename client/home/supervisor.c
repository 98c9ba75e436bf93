#include "client/home/supervisor.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/base/client.h"
#include "client/home/home.h"
#include "client/home/process.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/host/watchdog.h"
#include "common/io.h"
#include "common/limits.h"
#include "common/log.h"

#define BACKOFF_MIN_MS 100
#define BACKOFF_MAX_MS 5000
#define HEALTHY_MS     10000
#define STOP_GRACE_MS  3000
#define LEFT_GRACE_MS  1000
#define GRACE_MS       10000
#define GRACE_MS_MAX   3600000
#define END_MS         12000 /* for a supervisor to stop */
#define END_POLL_MS    25
#define DOWN_MS        15000 /* beside the grace: what `cairn down` takes for all the rest */
#define HANG_MS        15000 /* without a beat; a slow disk stalls a journal for seconds only */
#define WATCHDOG_FD    4     /* in the child */

extern char **environ;

struct child {
    const char *program;  /* beside this program's file */
    const char *log_name; /* under HOME/log */
    char *argv[16];
    bool unwanted; /* it isn't started at all */
    pid_t pid;     /* 0: not running */
    int64_t started_ms;
    int64_t backoff_ms;
    int64_t start_at_ms;
    int beat_fd; /* our end of its watchdog pipe; -1: none */
    int64_t beat_ms;
};

/* Programs are started in this order, and stopped the other way round: an agent would start
 * trainers again for a coordinator that still asks. */
enum { COORDINATOR, AGENT, OBSERVER, CHILDREN };

struct supervisor {
    const struct supervisor_options *options;
    struct log log;
    char folder[PATH_MAX]; /* of the programs */
    char host[INET6_ADDRSTRLEN];
    struct child children[CHILDREN];
    pid_t down_pid;        /* `cairn down` of a SIGTERM or Ctrl-C */
    int64_t down_until_ms; /* when it is late */
    int64_t hang_ms;
    bool stopping;
    bool refused;             /* a program ended with WATCHDOG_REFUSED */
    struct watchdog watchdog; /* of this process itself */
};

int64_t supervisor_backoff_ms(int64_t last_ms, int64_t lived_ms)
{
    if (lived_ms >= HEALTHY_MS || last_ms < BACKOFF_MIN_MS)
        return BACKOFF_MIN_MS;
    return last_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : last_ms * 2;
}

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* Children start with no signal blocked, in their own process group, in HOME/log's file. */
static int spawn_child(const char *path, char *const argv[], const char *log_path, int beat_fd,
                       pid_t *out)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none;
    (void)sigemptyset(&none);
    int error = posix_spawn_file_actions_init(&files);
    if (error != 0)
        return error;
    error = posix_spawnattr_init(&attributes);
    if (error != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return error;
    }
    (void)posix_spawnattr_setsigmask(&attributes, &none);
    (void)posix_spawnattr_setpgroup(&attributes, 0);
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0 && log_path != NULL) {
        error = posix_spawn_file_actions_addopen(&files, 1, log_path,
                                                 O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    }
    if (error == 0 && log_path != NULL)
        error = posix_spawn_file_actions_adddup2(&files, 1, 2);
    if (error == 0 && beat_fd >= 0)
        error = posix_spawn_file_actions_adddup2(&files, beat_fd, WATCHDOG_FD);
    if (error == 0)
        error = posix_spawn(out, path, &files, &attributes, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attributes);
    return error;
}

static void close_beat(struct child *child)
{
    if (child->beat_fd >= 0)
        (void)close(child->beat_fd);
    child->beat_fd = -1;
}

static void start_child(struct supervisor *supervisor, struct child *child)
{
    char path[PATH_MAX + 64];
    char log_path[LIMIT_PATH];
    CHECK(child->pid == 0);
    CHECK(child->beat_fd < 0);
    (void)snprintf(path, sizeof(path), "%s/%s", supervisor->folder, child->program);
    enum status st = paths_join(supervisor->options->paths, log_path, sizeof(log_path), "log/%s",
                                child->log_name);
    int ends[2] = { -1, -1 };
    int error = st == ST_OK ? 0 : ENAMETOOLONG;
    if (error == 0 && pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
        error = errno;
    if (error == 0)
        error = spawn_child(path, child->argv, log_path, ends[1], &child->pid);
    if (ends[1] >= 0)
        (void)close(ends[1]);
    child->beat_fd = ends[0];
    child->started_ms = child->beat_ms = now_ms();
    if (error == 0) {
        LOG_INFO(&supervisor->log, "started %s, pid %lld", child->program, (long long)child->pid);
        return;
    }
    child->pid = 0;
    close_beat(child);
    child->backoff_ms = supervisor_backoff_ms(child->backoff_ms, 0);
    child->start_at_ms = now_ms() + child->backoff_ms;
    LOG_ERROR(&supervisor->log, "can't start %s: %s", path, strerror(error));
}

static void describe_end(int status, char *out, size_t capacity)
{
    if (WIFSIGNALED(status)) {
        (void)snprintf(out, capacity, "signal %d", WTERMSIG(status));
    } else {
        (void)snprintf(out, capacity, "exit code %d", WEXITSTATUS(status));
    }
}

static void on_end(struct supervisor *supervisor, struct child *child, int status)
{
    char how[64];
    int64_t now = now_ms();
    describe_end(status, how, sizeof(how));
    const bool refused = WIFEXITED(status) && WEXITSTATUS(status) == WATCHDOG_REFUSED;
    child->pid = 0;
    close_beat(child);
    child->backoff_ms = supervisor_backoff_ms(child->backoff_ms, now - child->started_ms);
    child->start_at_ms = now + child->backoff_ms;
    if (refused) {
        LOG_ERROR(&supervisor->log, "%s waits for a person, and is not started again: see log/%s",
                  child->program, child->log_name);
        supervisor->refused = supervisor->stopping = true;
    } else if (supervisor->stopping) {
        LOG_INFO(&supervisor->log, "%s ended: %s", child->program, how);
    } else {
        LOG_WARN(&supervisor->log, "%s died: %s; it starts again in %lld ms", child->program, how,
                 (long long)child->backoff_ms);
    }
}

/* Reaps children, and trainers whose agent died: a subreaper gets them. */
static void reap(struct supervisor *supervisor)
{
    int status = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (size_t i = 0; i < CHILDREN; i++) {
            if (supervisor->children[i].pid == pid)
                on_end(supervisor, &supervisor->children[i], status);
        }
        if (pid == supervisor->down_pid)
            supervisor->stopping = true; /* it asked for that, or could not even do so */
    }
}

/* Starts what is due; how long to sleep until the next one (-1: nothing is waited for). */
static int start_due(struct supervisor *supervisor)
{
    int64_t wait = -1;
    for (size_t i = 0; i < CHILDREN; i++) {
        struct child *child = &supervisor->children[i];
        if (child->unwanted)
            continue;
        if (child->pid == 0 && now_ms() >= child->start_at_ms)
            start_child(supervisor, child);
        if (child->pid != 0)
            continue;
        int64_t left = child->start_at_ms - now_ms();
        left = left < 1 ? 1 : left;
        wait = wait < 0 || left < wait ? left : wait;
    }
    return (int)wait;
}

/* Begins to end everything by `cairn down`, which has the jobs saved first. */
static void begin_down(struct supervisor *supervisor)
{
    char path[PATH_MAX + 64];
    char grace[32];
    char *argv[] = { "cairn", "down", "--grace", grace, NULL };
    int64_t grace_ms = supervisor->options->grace_ms;
    if (supervisor->down_pid != 0)
        return;
    watchdog_stopping(&supervisor->watchdog, (uint32_t)grace_ms + DOWN_MS + END_MS);
    (void)snprintf(grace, sizeof(grace), "%lldms", (long long)grace_ms);
    (void)snprintf(path, sizeof(path), "%s/cairn", supervisor->folder);
    supervisor->down_until_ms = now_ms() + grace_ms + DOWN_MS;
    int error = spawn_child(path, argv, NULL, -1, &supervisor->down_pid);
    if (error == 0)
        return;
    LOG_ERROR(&supervisor->log, "can't start %s: %s; the jobs go on from their last checkpoint",
              path, strerror(error));
    supervisor->stopping = true;
}

/* SIGTERM twice changes nothing: who sends it doesn't look at what the first one did. */
static void take_signal(struct supervisor *supervisor, uint32_t number)
{
    bool again = supervisor->down_pid != 0;
    if (number == SUPERVISOR_STOP || (number == SIGINT && again)) {
        supervisor->stopping = true;
    } else if (number == SIGTERM || number == SIGINT) {
        begin_down(supervisor);
    }
}

/* Takes what a child has written into its pipe. */
static void take_beats(struct supervisor *supervisor, struct child *child)
{
    char bytes[64];
    ssize_t size;
    while ((size = read(child->beat_fd, bytes, sizeof(bytes))) > 0) {
        child->beat_ms = now_ms();
        if (child == &supervisor->children[COORDINATOR] && !supervisor->watchdog.serves &&
            memchr(bytes, WATCHDOG_READY, (size_t)size) != NULL)
            watchdog_ready(&supervisor->watchdog);
    }
}

/* A child whose loop doesn't turn is ended like one that died. */
static void end_hung(struct supervisor *supervisor)
{
    for (size_t i = 0; i < CHILDREN; i++) {
        struct child *child = &supervisor->children[i];
        if (child->pid == 0 || child->beat_fd < 0)
            continue;
        take_beats(supervisor, child);
        if (now_ms() - child->beat_ms < supervisor->hang_ms)
            continue;
        LOG_ERROR(&supervisor->log, "%s, pid %lld, hangs: no beat for %lld ms; ending it",
                  child->program, (long long)child->pid, (long long)supervisor->hang_ms);
        (void)kill(child->pid, SIGKILL);
        child->beat_ms = now_ms();
    }
}

/* Turns over the logs of this home's programs and of this one: nobody else bounds them. */
static void turn_logs(const struct supervisor *supervisor)
{
    static const char *const names[] = { "cairnd.log", "agent.log", "observer.log",
                                         "supervisor.log" };
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[LIMIT_PATH];
        bool turned = false;
        enum status st =
            paths_join(supervisor->options->paths, path, sizeof(path), "log/%s", names[i]);
        if (st == ST_OK)
            st = log_turn(path, log_turn_bytes(LOG_TURN_BYTES), NULL, &turned);
        if (turned && st != ST_OK) {
            LOG_WARN(&supervisor->log, "%s is emptied, but what it had could not be kept: %s", path,
                     status_string(st));
        }
    }
}

static void watch_children(struct supervisor *supervisor, int signal_fd)
{
    int wait_ms = watchdog_every_ms(&supervisor->watchdog);
    wait_ms = wait_ms >= 0 ? wait_ms : WATCHDOG_BEAT_MS;
    while (!supervisor->stopping) {
        struct pollfd wait = { .fd = signal_fd, .events = POLLIN };
        int due = start_due(supervisor);
        (void)poll(&wait, 1, due >= 0 && due < wait_ms ? due : wait_ms);
        watchdog_beat(&supervisor->watchdog);
        struct signalfd_siginfo info;
        while (read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
            take_signal(supervisor, info.ssi_signo);
        reap(supervisor);
        end_hung(supervisor);
        turn_logs(supervisor);
        if (supervisor->down_pid != 0 && now_ms() >= supervisor->down_until_ms)
            supervisor->stopping = true;
    }
}

static bool any_runs(const struct supervisor *supervisor, size_t from, size_t end)
{
    for (size_t i = from; i < end; i++) {
        if (supervisor->children[i].pid != 0)
            return true;
    }
    return false;
}

/* Children from one on, before another. */
static void stop_some(struct supervisor *supervisor, int signal_fd, size_t from, size_t end)
{
    int64_t until = now_ms() + STOP_GRACE_MS;
    bool killed = false;
    for (size_t i = end; i-- > from;) {
        if (supervisor->children[i].pid != 0)
            (void)kill(supervisor->children[i].pid, SIGINT); /* SIGTERM they leave to this one */
    }
    while (any_runs(supervisor, from, end)) {
        struct pollfd wait = { .fd = signal_fd, .events = POLLIN };
        struct signalfd_siginfo info;
        (void)poll(&wait, 1, 50);
        while (read(signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
            ;
        reap(supervisor);
        if (!killed && now_ms() >= until) {
            for (size_t i = from; i < end; i++) {
                if (supervisor->children[i].pid != 0)
                    (void)kill(-supervisor->children[i].pid, SIGKILL);
            }
            killed = true;
        }
    }
}

/* The observer first: it asks the coordinator for what it has not written yet. */
static void stop_all(struct supervisor *supervisor, int signal_fd)
{
    stop_some(supervisor, signal_fd, OBSERVER, CHILDREN);
    stop_some(supervisor, signal_fd, COORDINATOR, OBSERVER);
    unsigned rest = HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER | HOME_TRAINER;
    if (supervisor->refused)
        rest &= ~(unsigned)HOME_TRAINER; /* they wait some minutes for a coordinator */
    if (!home_end(supervisor->options->paths, rest, LEFT_GRACE_MS)) {
        LOG_ERROR(&supervisor->log, "some processes of %s could not be ended",
                  supervisor->options->paths->home);
    }
}

static enum status find_programs(struct supervisor *supervisor)
{
    ssize_t size = readlink("/proc/self/exe", supervisor->folder, sizeof(supervisor->folder) - 1);
    if (size <= 0)
        return status_from_errno(errno);
    supervisor->folder[size] = '\0';
    char *slash = strrchr(supervisor->folder, '/');
    if (slash == NULL)
        return ST_NOT_FOUND;
    *slash = '\0';
    return ST_OK;
}

/* The numeric address of "10.1.0.7:7000" or "[fd00::7]:7000"; false: it is another, or of all. */
static bool host_of(const char *listen, char out[INET6_ADDRSTRLEN])
{
    uint8_t any[16] = { 0 }, bytes[16] = { 0 };
    const char *colon = strrchr(listen, ':');
    if (colon == NULL)
        return false;
    const bool six = listen[0] == '[' && colon[-1] == ']';
    const int size = (int)(colon - listen) - 2 * six;
    if (size <= 0 || size >= INET6_ADDRSTRLEN)
        return false;
    (void)snprintf(out, INET6_ADDRSTRLEN, "%.*s", size, listen + six);
    return inet_pton(six ? AF_INET6 : AF_INET, out, bytes) == 1 &&
           memcmp(bytes, any, sizeof(bytes)) != 0;
}

static size_t argument_count(const struct child *child)
{
    size_t end = 1;
    while (child->argv[end] != NULL)
        end++;
    return end;
}

static void add_option(struct child *child, const char *name, const char *value)
{
    const size_t end = argument_count(child);
    if (value != NULL) {
        child->argv[end] = (char *)name;
        child->argv[end + 1] = (char *)value;
    }
}

static void describe_children(struct supervisor *supervisor, char slots[24])
{
    const struct supervisor_options *options = supervisor->options;
    struct child *coordinator = &supervisor->children[COORDINATOR];
    struct child *agent = &supervisor->children[AGENT];
    struct child *observer = &supervisor->children[OBSERVER];
    *coordinator = (struct child){ .program = "cairnd", .log_name = "cairnd.log", .beat_fd = -1 };
    *agent = (struct child){ .program = "cairn-agent", .log_name = "agent.log", .beat_fd = -1 };
    *observer = (struct child){ .program = "cairn-observer",
                                .log_name = "observer.log",
                                .beat_fd = -1,
                                .unwanted = options->page_none };
    observer->argv[0] = "cairn-observer";
    add_option(observer, "--listen", options->page);
    add_option(observer, "--tls-cert", options->page_tls.cert);
    add_option(observer, "--tls-key", options->page_tls.key);
    add_option(observer, "--tls-ca", options->page_tls.ca);
    coordinator->argv[0] = "cairnd";
    agent->argv[0] = "cairn-agent";
    add_option(coordinator, "--listen", options->listen);
    add_option(coordinator, "--tls-cert", options->tls.cert);
    add_option(coordinator, "--tls-key", options->tls.key);
    add_option(coordinator, "--tls-ca", options->tls.ca);
    add_option(coordinator, "--advertise", options->advertise);
    add_option(coordinator, "--paths", options->job_paths);
    if (options->job_commands)
        coordinator->argv[argument_count(coordinator)] = "--commands";
    size_t argc = 1;
    if (options->slots >= 0) {
        (void)snprintf(slots, 24, "%lld", (long long)options->slots);
        agent->argv[argc++] = "--slots";
        agent->argv[argc++] = slots;
    }
    /* Workers of other machines come to its own where the coordinator is reached. */
    if (options->listen != NULL && options->tls.cert != NULL &&
        host_of(options->listen, supervisor->host)) {
        agent->argv[argc++] = "--host";
        agent->argv[argc++] = supervisor->host;
    }
}

static int catch_signals(void)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SUPERVISOR_STOP);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0)
        return -1;
    (void)signal(SIGHUP, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* CAIRN_WATCHDOG_MS, for tests; at least three beats. */
static int64_t hang_limit_ms(void)
{
    const char *text = getenv("CAIRN_WATCHDOG_MS");
    int64_t ms = text == NULL ? 0 : strtoll(text, NULL, 10);
    return ms >= 3 * (int64_t)WATCHDOG_BEAT_MS && ms < 3600000 ? ms : HANG_MS;
}

enum exit_code supervisor_grace(const struct arguments *args, int64_t *out_ms)
{
    *out_ms = args->grace_ms < 0 ? GRACE_MS : args->grace_ms;
    if (*out_ms <= GRACE_MS_MAX)
        return EXIT_DONE;
    client_error("--grace is an hour at most");
    return EXIT_USAGE;
}

/* True if this process holds the lock of the home. */
static bool still_supervises(pid_t pid, const void *arg)
{
    return home_supervisor(arg) == pid;
}

void supervisor_end(const struct paths *paths)
{
    const int64_t pid = home_supervisor(paths);
    if (pid <= 0)
        return;
    process_signal((pid_t)pid, SUPERVISOR_STOP, false, still_supervises, paths);
    int64_t until = now_ms() + END_MS;
    while (home_supervisor(paths) == pid && now_ms() < until)
        (void)poll(NULL, 0, END_POLL_MS);
    process_signal((pid_t)pid, SIGKILL, false, still_supervises, paths);
}

enum exit_code supervisor_run(const struct supervisor_options *options)
{
    struct supervisor supervisor = { .options = options, .log = log_open("supervisor") };
    watchdog_open(&supervisor.watchdog);
    char slots[24];
    int lock = -1;
    enum status st = home_lock(options->paths, &lock);
    if (st == ST_EXISTS)
        return EXIT_REFUSED;
    auto_close int lock_fd = lock;
    if (st == ST_OK)
        st = find_programs(&supervisor);
    auto_close int signal_fd = catch_signals();
    if (st != ST_OK || signal_fd < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        LOG_ERROR(&supervisor.log, "can't supervise %s: %s", options->paths->home,
                  status_string(st));
        return EXIT_INTERNAL;
    }
    supervisor.hang_ms = hang_limit_ms();
    char number[8];
    (void)snprintf(number, sizeof(number), "%d", WATCHDOG_FD);
    if (setenv(WATCHDOG_ENV, number, 1) != 0)
        return EXIT_INTERNAL;
    describe_children(&supervisor, slots);
    /* Ends the programs of a supervisor that was killed, which would be in the way; trainers train
     * on. */
    (void)home_end(options->paths, HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER, STOP_GRACE_MS);
    turn_logs(
        &supervisor); /* what a program says as it ends at once stays where it is looked for */
    watch_children(&supervisor, signal_fd);
    stop_all(&supervisor, signal_fd);
    home_unlock(lock_fd);
    LOG_INFO(&supervisor.log, "stopped");
    return supervisor.refused ? EXIT_REFUSED : EXIT_DONE;
}
