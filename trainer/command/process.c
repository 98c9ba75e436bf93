#include "trainer/command/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"

enum { KILL_PAUSE_MS = 2, ENDS = 2 };

extern char **environ;

/* What failed in a new process before it became the program. */
struct failed {
    int error;
    bool at_workdir;
};

/* ---- the new process, before it is the program: async-signal-safe calls only ---- */

static _Noreturn void give_up(int fd, bool at_workdir)
{
    const struct failed failed = { errno, at_workdir };
    (void)!write(fd, &failed, sizeof(failed));
    _exit(127);
}

static void reset_signals(void)
{
    struct sigaction action = { .sa_handler = SIG_DFL };
    sigset_t none;
    (void)sigemptyset(&none);
    for (int i = 1; i < NSIG; i++)
        (void)sigaction(i, &action, NULL); /* fails for SIGKILL, SIGSTOP and libc's own */
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void become_program(const struct process_start *how, pid_t parent, int said_fd,
                                     int failed_fd)
{
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127); /* it died before that signal was asked for */
    reset_signals();
    const int input = how->input_fd > 0 ? how->input_fd : open("/dev/null", O_RDONLY);
    if (input < 0 || dup2(input, STDIN_FILENO) < 0)
        give_up(failed_fd, false);
    if (said_fd >= 0 && (dup2(said_fd, STDOUT_FILENO) < 0 || dup2(said_fd, STDERR_FILENO) < 0))
        give_up(failed_fd, false);
    (void)close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    if (chdir(how->workdir) != 0)
        give_up(failed_fd, true);
    environ = (char **)how->env; /* execvp looks into its PATH */
    (void)execvp(how->argv[0], how->argv);
    give_up(failed_fd, false);
}

/* ---- in the worker ---- */

/* Waits until the process is the program; else says why it isn't. */
static enum status await_program(const struct process_start *how, int failed_fd,
                                 struct reason *out_why)
{
    struct failed failed;
    ssize_t size = 0;
    do {
        size = read(failed_fd, &failed, sizeof(failed));
    } while (size < 0 && errno == EINTR);
    if (size != (ssize_t)sizeof(failed))
        return ST_OK; /* closed by its exec */
    const char *text = strerrordesc_np(failed.error);
    reason_set(out_why, "%s%.300s: %s", failed.at_workdir ? "workdir " : "",
               failed.at_workdir ? how->workdir : how->argv[0], text != NULL ? text : "unknown");
    return status_from_errno(failed.error);
}

static void close_both(const int ends[ENDS])
{
    for (int i = 0; i < ENDS; i++) {
        if (ends[i] >= 0)
            (void)close(ends[i]);
    }
}

enum status process_pipe(int out[ENDS])
{
    if (pipe2(out, O_CLOEXEC | O_NONBLOCK) != 0)
        return status_from_errno(errno);
    /* the process's end blocks: it waits until what it writes is read */
    (void)fcntl(out[1], F_SETFL, O_WRONLY);
    return ST_OK;
}

enum status process_start(const struct process_start *how, struct process *out,
                          struct reason *out_why)
{
    int said[ENDS] = { -1, -1 };
    int failed[ENDS];
    *out = (struct process){ .said_fd = -1, .end_fd = -1 };
    enum status st = how->keeps_output ? ST_OK : process_pipe(said);
    if (st == ST_OK && pipe2(failed, O_CLOEXEC) != 0) {
        st = status_from_errno(errno);
        close_both(said);
    }
    if (st != ST_OK)
        return st;
    const pid_t parent = getpid();
    const pid_t pid = _Fork(); /* runs no handlers of libraries */
    if (pid == 0)
        become_program(how, parent, said[1], failed[1]);
    st = pid < 0 ? status_from_errno(errno) : ST_OK;
    (void)close(failed[1]);
    if (st == ST_OK)
        st = await_program(how, failed[0], out_why);
    (void)close(failed[0]);
    if (st != ST_OK) {
        if (pid > 0)
            (void)waitpid(pid, NULL, 0);
        close_both(said);
        return st;
    }
    if (said[1] >= 0)
        (void)close(said[1]);
    process_adopt(out, pid, said[0]);
    return ST_OK;
}

void process_adopt(struct process *out, pid_t pid, int said_fd)
{
    *out = (struct process){ .pid = pid, .said_fd = said_fd, .end_fd = pidfd_open(pid, 0) };
}

static void note_reaped(struct process *process, pid_t pid, int status)
{
    if (process == NULL || process->pid != pid || process->ended)
        return;
    process->ended = true;
    process->status = status;
    if (process->end_fd >= 0)
        (void)close(process->end_fd);
    process->end_fd = -1;
}

void process_signal(const struct process *process, int number)
{
    if (process->pid > 0 && !process->ended) /* not reaped: its number is its own */
        (void)kill(process->pid, number);
}

bool process_check(struct process *process)
{
    int status = 0;
    if (process->pid > 0 && !process->ended && waitpid(process->pid, &status, WNOHANG) > 0)
        note_reaped(process, process->pid, status);
    return process->ended;
}

bool process_is_stopped(const struct process *process)
{
    char path[32];
    char text[512];
    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)process->pid);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        (void)close(fd);
    if (size <= 0)
        return false;
    text[size] = '\0';
    const char *name_end = strrchr(text, ')'); /* proc(5): pid (name) state */
    return name_end != NULL && (strncmp(name_end, ") T", 3) == 0);
}

/* ---- all that comes of them ---- */

enum status processes_adopt_orphans(void)
{
    return prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 ? ST_OK : status_from_errno(errno);
}

/* Kills the children of one of this process's threads, as /proc/self/task/TID/children lists them,
 * but for one. True: there are some. */
static bool kill_children_of(const char *thread, pid_t but)
{
    char path[64];
    char text[4096];
    bool found = false;
    (void)snprintf(path, sizeof(path), "/proc/self/task/%.20s/children", thread);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        (void)close(fd);
    if (size <= 0)
        return false;
    text[size] = '\0'; /* a blank is behind each number: one that is cut has none */
    for (char *at = text, *end = strchr(at, ' '); end != NULL;
         at = end + 1, end = strchr(at, ' ')) {
        const long pid = strtol(at, NULL, 10);
        if (pid <= 1 || pid == but)
            continue;
        found = true;
        (void)kill((pid_t)pid, SIGKILL);
    }
    return found;
}

static bool kill_children(pid_t but)
{
    bool found = false;
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL)
        return false;
    for (const struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
        if (entry->d_name[0] != '.' && kill_children_of(entry->d_name, but))
            found = true;
    }
    (void)closedir(threads);
    return found;
}

static void reap(struct process *list, size_t count, struct process *keep)
{
    for (;;) {
        int status = 0;
        const pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return;
        note_reaped(keep, pid, status);
        for (size_t i = 0; i < count; i++)
            note_reaped(&list[i], pid, status);
    }
}

static bool have_ended(const struct process *list, size_t count)
{
    bool ended = true;
    for (size_t i = 0; i < count; i++)
        ended = ended && (list[i].pid == 0 || list[i].ended);
    return ended;
}

enum status processes_kill_all(struct process *list, size_t count, struct process *keep,
                               int timeout_ms)
{
    const int64_t until = clock_mono_ms(clock_system()) + timeout_ms;
    for (size_t i = 0; i < count; i++) {
        if (list[i].pid > 0 && !list[i].ended)
            (void)kill(-list[i].pid, SIGKILL);
    }
    for (;;) {
        const bool found = kill_children(keep != NULL ? keep->pid : 0);
        reap(list, count, keep);
        if (!found && have_ended(list, count))
            return ST_OK;
        if (clock_mono_ms(clock_system()) >= until)
            return ST_TIMED_OUT;
        (void)poll(NULL, 0, KILL_PAUSE_MS); /* orphans come when their parents are gone */
    }
}
