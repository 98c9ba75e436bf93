#include "client/preflight/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "client/ask/call.h"
#include "client/home/home.h"
#include "client/preflight/answer.h"
#include "common/cleanup.h"
#include "common/own/private.h"

extern char **environ;

#define ASK_MS   1000
#define REACH_MS 6000 /* a machine's role may have to be asked for */

/* ---- who sees what this process sees ---- */

static bool same_link(int64_t pid, const char *name)
{
    char path[64], theirs[PATH_MAX], ours[PATH_MAX];
    (void)snprintf(path, sizeof(path), "/proc/%lld/%s", (long long)pid, name);
    ssize_t size = readlink(path, theirs, sizeof(theirs));
    (void)snprintf(path, sizeof(path), "/proc/self/%s", name);
    return size > 0 && readlink(path, ours, sizeof(ours)) == size &&
           memcmp(theirs, ours, (size_t)size) == 0;
}

/* True if that process has the same mounts, root and user. */
static bool sees_the_same(int64_t pid)
{
    char path[64];
    struct stat info;
    (void)snprintf(path, sizeof(path), "/proc/%lld", (long long)pid);
    return stat(path, &info) == 0 && info.st_uid == geteuid() && same_link(pid, "ns/mnt") &&
           same_link(pid, "root");
}

static void read_boot_id(char out[64])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL || fgets(out, 64, file) == NULL)
        out[0] = '\0';
    if (file != NULL)
        (void)fclose(file);
    out[strcspn(out, "\n")] = '\0';
}

/* Is the coordinator's one node this machine, by an agent of this home? */
static bool is_only_node(struct client *client)
{
    Cairn__V1__ListNodesRequest request = CAIRN__V1__LIST_NODES_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    char boot_id[64];
    pid_t agents[2];
    size_t here = 0, there = 0;
    const char *addr = getenv("CAIRN_ADDR");
    if (client->args.addr != NULL || (addr != NULL && addr[0] != '\0') ||
        home_processes(&client->paths, HOME_AGENT, agents, 2) != 1 || !sees_the_same(agents[0]) ||
        client_try(client, "ListNodes", &request.base, ASK_MS, &reply) != RPC_OK)
        return false;
    const Cairn__V1__ListNodesReply *list = (const Cairn__V1__ListNodesReply *)reply;
    read_boot_id(boot_id);
    for (size_t i = 0; i < list->n_nodes; i++) {
        const Cairn__V1__Node *node = list->nodes[i];
        if (strcmp(node->state, "left") == 0 || strcmp(node->state, "forgotten") == 0)
            continue;
        there++;
        here += boot_id[0] != '\0' && strcmp(node->boot_id, boot_id) == 0;
    }
    protobuf_c_message_free_unpacked(reply, NULL);
    return there == 1 && here == 1;
}

void preflight_find(struct client *client, struct there *out)
{
    Cairn__V1__GetVersionRequest request = CAIRN__V1__GET_VERSION_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    *out = (struct there){ .client = client, .store_free = UINT64_MAX };
    if (client_try(client, "GetVersion", &request.base, ASK_MS, &reply) != RPC_OK)
        return;
    const int64_t pid = ((const Cairn__V1__GetVersionReply *)reply)->pid;
    protobuf_c_message_free_unpacked(reply, NULL);
    if (strncmp(client->address, "unix:", 5) != 0 || !sees_the_same(pid))
        return;
    out->coordinator = pid;
    out->data = is_only_node(client);
}

/* ---- files ---- */

/* "user alice" */
static const char *who(char out[80])
{
    char name[64];
    (void)snprintf(out, 80, "user %s", private_user(geteuid(), name));
    return out;
}

static bool refuse_file(const struct jobspec_named *named, int error, char cause[LIMIT_REASON],
                        char way_out[LIMIT_REASON])
{
    char user[80], owner[64];
    struct stat info;
    if (error == EACCES && stat(named->path, &info) == 0) {
        (void)snprintf(cause, LIMIT_REASON, "%s: %s may not read %.300s (mode %04o, of %s)",
                       named->key, who(user), named->path, (unsigned)info.st_mode & 07777,
                       private_user(info.st_uid, owner));
        (void)snprintf(way_out, LIMIT_REASON, "chmod a+r, or name a copy of your own");
    } else if (error == EACCES) {
        (void)snprintf(cause, LIMIT_REASON, "%s: %s may not enter a folder on the way to %.300s",
                       named->key, who(user), named->path);
        (void)snprintf(way_out, LIMIT_REASON, "chmod a+x on it, or name a copy of your own");
    } else if (error == EISDIR) {
        (void)snprintf(cause, LIMIT_REASON, "%s: %.300s is a folder", named->key, named->path);
        (void)snprintf(way_out, LIMIT_REASON, "name a file in it");
    } else {
        (void)snprintf(cause, LIMIT_REASON, "%s: %.300s: %s", named->key, named->path,
                       error == ENOENT || error == ENOTDIR ? "there is no such file"
                                                           : strerror(error));
        (void)snprintf(way_out, LIMIT_REASON,
                       "correct the path; a relative one starts at the job file's folder");
    }
    return false;
}

static bool file_usable(const struct jobspec_named *named, char cause[LIMIT_REASON],
                        char way_out[LIMIT_REASON])
{
    struct stat info;
    const char *name = strrchr(named->path, '/');
    if (named->kind == JOBSPEC_NAMED_FILES && strpbrk(name == NULL ? "" : name, "*?[") != NULL)
        return true; /* what fits is the trainer's to say */
    if (stat(named->path, &info) != 0)
        return refuse_file(named, errno, cause, way_out);
    if (S_ISDIR(info.st_mode))
        return refuse_file(named, EISDIR, cause, way_out);
    return access(named->path, R_OK) == 0 || refuse_file(named, errno, cause, way_out);
}

/* ---- a program of the user's ---- */

static bool folder_usable(const struct jobspec_named *named, char cause[LIMIT_REASON],
                          char way_out[LIMIT_REASON])
{
    struct stat info;
    char user[80];
    const int error = stat(named->path, &info) != 0 ? errno : 0;
    if (error == 0 && S_ISDIR(info.st_mode) && access(named->path, X_OK) == 0)
        return true;
    (void)snprintf(way_out, LIMIT_REASON,
                   "correct the path; a relative one starts at the job file's folder");
    if (error == 0 && !S_ISDIR(info.st_mode)) {
        (void)snprintf(cause, LIMIT_REASON, "%s: %.300s is no folder", named->key, named->path);
    } else if (error == 0 || error == EACCES) {
        (void)snprintf(cause, LIMIT_REASON, "%s: %s may not enter %.300s", named->key, who(user),
                       named->path);
        (void)snprintf(way_out, LIMIT_REASON, "chmod a+x on it, or name another one");
    } else {
        (void)snprintf(cause, LIMIT_REASON, "%s: %.300s: %s", named->key, named->path,
                       error == ENOENT ? "there is no such folder" : strerror(error));
    }
    return false;
}

static bool program_usable(const struct jobspec_named *named, char cause[LIMIT_REASON],
                           char way_out[LIMIT_REASON])
{
    struct stat info;
    char user[80];
    if (stat(named->path, &info) != 0)
        return refuse_file(named, errno, cause, way_out);
    if (S_ISDIR(info.st_mode))
        return refuse_file(named, EISDIR, cause, way_out);
    if (access(named->path, X_OK) == 0)
        return true;
    (void)snprintf(cause, LIMIT_REASON, "%s: %s may not run %.300s (mode %04o)", named->key,
                   who(user), named->path, (unsigned)info.st_mode & 07777);
    (void)snprintf(way_out, LIMIT_REASON,
                   "chmod +x, or write what runs it before it, as in [python3, FILE]");
    return false;
}

/* ---- a folder for checkpoints ---- */

/* Whether it will be the same tomorrow; a store that is full or away may be back. */
static bool is_final(int error)
{
    return error == EACCES || error == EPERM || error == EROFS || error == ENOENT ||
           error == ENOTDIR || error == EOPNOTSUPP;
}

/* What is there of the way to a store that has to be made. */
static void find_existing(const char *path, char out[LIMIT_PATH])
{
    struct stat info;
    (void)snprintf(out, LIMIT_PATH, "%s", path);
    while (strcmp(out, "/") != 0 && stat(out, &info) != 0 && errno == ENOENT) {
        char *slash = strrchr(out, '/');
        *(slash == out ? slash + 1 : slash) = '\0';
    }
}

/* 0, or why nothing can be made there: a folder comes and goes. */
static int try_folder(const char *folder)
{
    char probe[LIMIT_PATH + 32];
    struct stat info;
    if (stat(folder, &info) != 0)
        return errno;
    if (!S_ISDIR(info.st_mode))
        return ENOTDIR;
    (void)snprintf(probe, sizeof(probe), "%s/.cairn-XXXXXX", folder);
    if (mkdtemp(probe) == NULL)
        return errno;
    (void)rmdir(probe);
    return 0;
}

uint64_t preflight_free_bytes(const char *store)
{
    char folder[LIMIT_PATH];
    struct statvfs info;
    if (store[0] != '/')
        return UINT64_MAX;
    find_existing(store, folder);
    return statvfs(folder, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : UINT64_MAX;
}

/* EXIT_REFUSED: nothing can be made there, and it was said why. */
static enum exit_code reach_folder(const char *store)
{
    char folder[LIMIT_PATH], user[80];
    find_existing(store, folder);
    const int error = try_folder(folder);
    if (error == 0 || !is_final(error)) {
        return printf("%llu\n", (unsigned long long)preflight_free_bytes(folder)) < 0
                   ? EXIT_INTERNAL
                   : EXIT_DONE;
    }
    return printf("%s can make nothing in %.300s: %s\n", who(user), folder,
                  error == ENOTDIR ? "it is a file" : strerror(error)) < 0
               ? EXIT_INTERNAL
               : EXIT_REFUSED;
}

static enum exit_code reach_object(const struct client *client)
{
    struct reason why;
    const enum status st = ckpt_store_ready(client->store);
    if (st != ST_CONFIG)
        return EXIT_DONE;
    io_explain(ckpt_store_io(client->store), st, &why);
    const char *cause = strstr(why.text, ": "); /* behind the status's own words */
    return printf("%s\n", cause == NULL ? why.text : cause + 2) < 0 ? EXIT_INTERNAL : EXIT_REFUSED;
}

enum exit_code cmd_reach(struct client *client)
{
    const char *store = client->args.operands[0];
    const enum exit_code code = store[0] == '/' ? reach_folder(store) : reach_object(client);
    return fflush(stdout) == 0 ? code : EXIT_INTERNAL;
}

/* ---- a process of its own for a store, which may hang ---- */

/* The variables of a process, as exec wants them, in text; NULL: they can't be read. */
static char **read_environment(int64_t pid, char **out_text)
{
    size_t size = 0, count = 0;
    *out_text = home_environment((pid_t)pid, &size);
    char **list = *out_text == NULL ? NULL : calloc(size / 2 + 2, sizeof(char *));
    for (size_t at = 0; list != NULL && at < size; at += strlen(*out_text + at) + 1)
        list[count++] = *out_text + at;
    return list;
}

/* `cairn reach STORE` with somebody's variables; -1: it can't be started. */
static pid_t start_reach(const char *store, char **environment, int out)
{
    char *argv[] = { "cairn", "reach", "--", (char *)store, NULL };
    posix_spawn_file_actions_t files;
    pid_t pid = -1;
    if (posix_spawn_file_actions_init(&files) != 0)
        return -1;
    int error = posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
    if (error == 0)
        error = posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    if (error == 0)
        error = posix_spawn(&pid, "/proc/self/exe", &files, NULL, argv, environment);
    (void)posix_spawn_file_actions_destroy(&files);
    return error == 0 ? pid : -1;
}

/* What `cairn reach` says of a store; "": nothing, or not in time. False: against it. */
static bool ask_reach(const char *store, char **environment, char *out, size_t capacity)
{
    int ends[2], status = 0;
    out[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return true;
    const pid_t pid = start_reach(store, environment, ends[1]);
    (void)close(ends[1]);
    if (pid > 0)
        answer_read(ends[0], REACH_MS, out, capacity);
    (void)close(ends[0]);
    if (pid <= 0)
        return true;
    if (out[0] == '\0') { /* it is done, or takes too long: nobody waits for one that can't die */
        (void)kill(pid, SIGKILL);
        return true;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_REFUSED;
}

/* Everybody who uses an S3 store was started with the coordinator's environment, or with one that
 * is said to be the same (docs/s3.md): what can be known of it is tried with that. */
static bool store_usable(struct there *there, const struct jobspec_named *named,
                         char cause[LIMIT_REASON], char way_out[LIMIT_REASON])
{
    char said[LIMIT_REASON - 64] = "";
    const bool folder = named->path[0] == '/';
    auto_free char *text = NULL;
    auto_free char **theirs = folder ? NULL : read_environment(there->coordinator, &text);
    if ((!folder && theirs == NULL) ||
        ask_reach(named->path, folder ? environ : theirs, said, sizeof(said))) {
        if (folder && said[0] >= '0' && said[0] <= '9')
            there->store_free = strtoull(said, NULL, 10);
        return true;
    }
    (void)snprintf(cause, LIMIT_REASON, "%.40s: %s", named->key, said);
    (void)snprintf(way_out, LIMIT_REASON, "%s",
                   folder ? "name a folder that may be written to; what belongs there may have to "
                            "be mounted first"
                          : "set that where the coordinator is started: cairn down, then cairn up");
    return false;
}

/* ---- all of it ---- */

static bool usable(void *arg, const struct jobspec_named *named, char cause[LIMIT_REASON],
                   char way_out[LIMIT_REASON])
{
    struct there *there = arg;
    switch (named->kind) {
    case JOBSPEC_NAMED_FILE:
    case JOBSPEC_NAMED_FILES:
        return !there->data || file_usable(named, cause, way_out);
    case JOBSPEC_NAMED_FOLDER:
        return !there->data || folder_usable(named, cause, way_out);
    case JOBSPEC_NAMED_PROGRAM:
        return !there->data || program_usable(named, cause, way_out);
    case JOBSPEC_NAMED_MADE: /* by workers */
        return !there->data || store_usable(there, named, cause, way_out);
    case JOBSPEC_NAMED_STORE:
        break;
    }
    return there->coordinator == 0 || store_usable(there, named, cause, way_out);
}

struct jobspec_look preflight_look(struct there *there)
{
    return (struct jobspec_look){ .usable = usable, .arg = there };
}
