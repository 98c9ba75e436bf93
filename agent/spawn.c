#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "agent/net/address.h"
#include "common/cleanup.h"
#include "common/host/environment.h"
#include "common/unconst.h"

enum { TOKEN_FD = 3, OWN_ENV = 4, NUMBER_TEXT = 16 };

struct nccl_env {
    char interface[64], family[64];
};

extern char **environ;

/* Jobs set variables of libraries, not what is loaded into the process nor what is ours. */
static bool may_set(const char *variable)
{
    size_t name = strcspn(variable, "=");
    if (variable[name] != '=' || name == 0)
        return false;
    return strncmp(variable, "LD_", 3) != 0 && strncmp(variable, "CAIRN_", 6) != 0 &&
           strncmp(variable, "GCONV_PATH", 10) != 0;
}

static bool same_name(const char *a, const char *b)
{
    size_t size = strcspn(a, "=") + 1; /* with the '=' */
    return strncmp(a, b, size) == 0;
}

/* Makes the environment of a trainer: the variables of ours that pass, and `set`, which replaces
 * variables of the same name. */
static enum status make_environment(char *const *set, size_t count, char ***out)
{
    size_t own = 0;
    while (environ[own] != NULL)
        own++;
    char **list = calloc(own + count + 1, sizeof(*list));
    if (list == NULL)
        return ST_NO_MEMORY;
    size_t at = 0;
    for (size_t i = 0; i < own; i++) {
        bool leaves = environment_passes(environ[i]);
        for (size_t j = 0; j < count && leaves; j++)
            leaves = !same_name(set[j], environ[i]);
        if (leaves)
            list[at++] = environ[i];
    }
    for (size_t j = 0; j < count; j++)
        list[at++] = set[j];
    *out = list;
    return ST_OK;
}

static bool is_set(const char *variable, char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (same_name(variable, list[i]))
            return true;
    }
    return false;
}

/* NCCL's own choice is the first interface that isn't docker's. Returns the new count of `set`. */
static size_t add_nccl(const struct spawn_request *r, struct nccl_env *nccl, char **set,
                       size_t count)
{
    char name[IF_NAMESIZE];
    char *const wanted[] = { nccl->interface, nccl->family };
    size_t own = 0;
    if (r->gpu[0] == '\0' || address_interface(r->host, name) != ST_OK)
        return count;
    while (environ[own] != NULL)
        own++;
    /* the second '=': this very name, not all that begin so */
    (void)snprintf(nccl->interface, sizeof(nccl->interface), "NCCL_SOCKET_IFNAME==%s", name);
    (void)snprintf(nccl->family, sizeof(nccl->family), "NCCL_SOCKET_FAMILY=%s",
                   strchr(r->host, ':') != NULL ? "AF_INET6" : "AF_INET");
    if (is_set(wanted[0], environ, own) || is_set(wanted[0], set, count))
        return count; /* theirs may be another, of another family */
    for (size_t i = 0; i < 2; i++) {
        if (!is_set(wanted[i], environ, own) && !is_set(wanted[i], set, count))
            set[count++] = wanted[i];
    }
    return count;
}

/* A pipe's read end with the token in it: nobody has to be there to write it later. */
static enum status make_token_pipe(const char *token, int *out_fd)
{
    size_t size = strlen(token);
    if (size > PIPE_BUF)
        return ST_INVALID;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return status_from_errno(errno);
    ssize_t written = size > 0 ? write(ends[1], token, size) : 0;
    (void)close(ends[1]);
    if (written != (ssize_t)size) {
        (void)close(ends[0]);
        return ST_IO;
    }
    *out_fd = ends[0];
    return ST_OK;
}

static enum status open_log(const char *path, int flags, int *out_fd)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flags, 0600);
    if (fd < 0)
        return status_from_errno(errno);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        enum status st = errno == EWOULDBLOCK ? ST_EXISTS : status_from_errno(errno);
        (void)close(fd);
        return st;
    }
    *out_fd = fd;
    return ST_OK;
}

bool spawn_is_alive(const char *log_path)
{
    int fd = -1;
    enum status st = open_log(log_path, 0, &fd);
    if (st == ST_OK)
        (void)close(fd);
    return st == ST_EXISTS;
}

static int set_attributes(posix_spawnattr_t *attr)
{
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    int error = posix_spawnattr_setflags(attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
                                                   POSIX_SPAWN_SETSIGDEF);
    if (error == 0)
        error = posix_spawnattr_setpgroup(attr, 0);
    if (error == 0)
        error = posix_spawnattr_setsigmask(attr, &none);
    if (error == 0)
        error = posix_spawnattr_setsigdefault(attr, &all);
    return error;
}

static int set_files(posix_spawn_file_actions_t *actions, int log_fd, int token_fd)
{
    int error = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(actions, log_fd, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(actions, log_fd, STDERR_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(actions, token_fd, TOKEN_FD);
    if (error == 0)
        error = posix_spawn_file_actions_addclosefrom_np(actions, TOKEN_FD + 1);
    return error;
}

/* Returns an errno value. */
static int spawn_process(const char *program, char *const argv[], char *const env[],
                         const int fds[2], pid_t *out_pid)
{
    posix_spawnattr_t attr;
    posix_spawn_file_actions_t actions;
    int error = posix_spawnattr_init(&attr);
    if (error != 0)
        return error;
    error = posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        error = set_attributes(&attr);
        if (error == 0)
            error = set_files(&actions, fds[0], fds[1]);
        if (error == 0)
            error = posix_spawn(out_pid, program, &actions, &attr, argv, env);
        posix_spawn_file_actions_destroy(&actions);
    }
    posix_spawnattr_destroy(&attr);
    return error;
}

static int spawn_arguments(const struct spawn_request *r, char *const env[], const int fds[2],
                           pid_t *out_pid)
{
    char generation[NUMBER_TEXT];
    char rank[NUMBER_TEXT];
    char token_fd[NUMBER_TEXT];
    (void)snprintf(generation, sizeof(generation), "%" PRIu32, r->ref->generation);
    (void)snprintf(rank, sizeof(rank), "%" PRIu32, r->ref->rank);
    (void)snprintf(token_fd, sizeof(token_fd), "%d", TOKEN_FD);
    char *const argv[] = {
        unconst(r->program),
        unconst("--job"),
        unconst(r->ref->job),
        unconst("--generation"),
        generation,
        unconst("--rank"),
        rank,
        unconst("--coordinator"),
        unconst(r->coordinator),
        unconst("--words"),
        unconst(r->files->words),
        unconst("--flight"),
        unconst(r->files->flight),
        unconst("--token-fd"),
        token_fd,
        unconst("--tls-ca"),
        unconst(r->tls_ca),
        unconst("--sums"),
        unconst(r->sums),
        unconst("--peaks"),
        unconst(r->peaks),
        unconst("--ports"),
        unconst(r->ports),
        unconst(r->copies != NULL ? "--copies" : NULL),
        unconst(r->copies),
        NULL,
    };
    return spawn_process(r->program, argv, env, fds, out_pid);
}

enum status spawn_trainer(const struct spawn_request *request, pid_t *out_pid,
                          struct reason *out_why)
{
    char threads[64];
    char gpu[128];
    char *set[SPAWN_ENV_MAX + OWN_ENV];
    size_t count = 0;
    for (size_t i = 0; i < request->env_count; i++) {
        if (count == SPAWN_ENV_MAX || !may_set(request->env[i])) {
            reason_set(out_why, "a job may not set the variable %.*s",
                       (int)strcspn(request->env[i], "="), request->env[i]);
            return ST_INVALID;
        }
        set[count++] = request->env[i];
    }
    (void)snprintf(threads, sizeof(threads), "OMP_NUM_THREADS=%" PRIu32,
                   request->threads > 0 ? request->threads : 1);
    set[count++] = threads;

    /* An empty list: a worker on a CPU share must not touch a GPU that is another's. */
    (void)snprintf(gpu, sizeof(gpu), "CUDA_VISIBLE_DEVICES=%.64s", request->gpu);
    set[count++] = gpu;
    struct nccl_env nccl;
    count = add_nccl(request, &nccl, set, count);

    const char *part = "environment";
    errno = 0;
    auto_close int log_fd = -1;
    auto_close int token_fd = -1;
    auto_free char **env = NULL;
    enum status st = make_environment(set, count, &env);
    if (st == ST_OK) {
        part = request->files->log;
        st = open_log(request->files->log, O_CREAT, &log_fd);
    }
    if (st == ST_OK) {
        part = "token";
        st = make_token_pipe(request->token, &token_fd);
    }
    if (st != ST_OK) {
        const bool few = errno == EMFILE || errno == ENFILE;
        reason_set(out_why, "%s: %s", part,
                   few ? "no descriptors left; raise their limit (ulimit -n, or LimitNOFILE=)"
                       : status_string(st));
        return st;
    }
    pid_t pid = 0;
    const int fds[2] = { log_fd, token_fd };
    int error = spawn_arguments(request, env, fds, &pid);
    if (error != 0) {
        const char *text = strerrordesc_np(error);
        reason_set(out_why, "%s: %s", request->program, text != NULL ? text : "unknown error");
        return status_from_errno(error);
    }
    *out_pid = pid;
    return ST_OK;
}
