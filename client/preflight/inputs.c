#include "client/preflight/inputs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/base/trainer.h"
#include "client/preflight/answer.h"
#include "common/cleanup.h"

extern char **environ;

#define LOOK_MS       6000
#define EXIT_FITS_NOT 3 /* of cairn-trainer --inputs; 2 is that of a wrong command line */

/* The job file as it was understood, in memory; -1: there is none. */
static int write_job(const struct jobspec *job)
{
    auto_buf struct buf text;
    buf_init(&text, (size_t)LIMIT_JOB_FILE_BYTES);
    if (jobspec_print(job, &text) != ST_OK)
        return -1;
    const int fd = memfd_create("job", MFD_CLOEXEC);
    if (fd >= 0 &&
        (write(fd, text.data, text.size) != (ssize_t)text.size || lseek(fd, 0, SEEK_SET) != 0)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* -1: it can't be started. */
static pid_t start_trainer(int in, int err)
{
    char path[PATH_MAX + 16];
    char *argv[] = { "cairn-trainer", "--inputs", "-", NULL };
    posix_spawn_file_actions_t files;
    pid_t pid = -1;
    if (trainer_find(path, sizeof(path)) != ST_OK || posix_spawn_file_actions_init(&files) != 0)
        return -1;
    int error = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn(&pid, path, &files, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    return error == 0 ? pid : -1;
}

bool inputs_fit(const struct jobspec *job, char why[LIMIT_REASON])
{
    int ends[2], status = 0;
    auto_close const int in = write_job(job);
    why[0] = '\0';
    if (in < 0 || pipe2(ends, O_CLOEXEC) != 0)
        return true;
    const pid_t pid = start_trainer(in, ends[1]);
    (void)close(ends[1]);
    if (pid > 0)
        answer_read(ends[0], LOOK_MS, why, LIMIT_REASON);
    (void)close(ends[0]);
    if (pid <= 0)
        return true;
    if (why[0] == '\0') { /* it is done, or takes too long: nobody waits for one that can't die */
        (void)kill(pid, SIGKILL);
        return true;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_FITS_NOT;
}
