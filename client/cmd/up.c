/* up, down, and the supervisor's command. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/home/home.h"
#include "client/home/supervisor.h"
#include "client/print/job.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"

#define UP_MS    10000
#define DRAIN_MS 10000
#define STOP_MS  8000
#define POLL_MS  50
#define PROBE_MS 1000

extern char **environ;

static int64_t now_ms(void)
{
    return clock_mono_ms(clock_system());
}

/* Folders, and CAIRN_HOME for everything that is started from here. */
static enum exit_code prepare_home(const struct client *client)
{
    static const char *const folders[] = { "log", "state", "jobs", "agent" };
    enum status st = ST_OK;
    char path[LIMIT_PATH];
    for (size_t i = 0; st == ST_OK && i < sizeof(folders) / sizeof(folders[0]); i++) {
        st = paths_join(&client->paths, path, sizeof(path), "%s", folders[i]);
        if (st == ST_OK)
            st = io_mkdir_all(io_system(), path);
    }
    if (st == ST_OK && setenv("CAIRN_HOME", client->paths.home, 1) != 0)
        st = status_from_errno(errno);
    if (st == ST_OK)
        return EXIT_DONE;
    client_error("%s: %s", client->paths.home, status_string(st));
    return exit_of_status(st) == EXIT_NOT_FOUND ? EXIT_INTERNAL : exit_of_status(st);
}

/* Agents that the coordinator has; -1: it doesn't answer. */
static int64_t count_agents(struct client *client)
{
    uint32_t agents = 0;
    return client_probe(client, PROBE_MS, &agents) == RPC_OK ? (int64_t)agents : -1;
}

/* A process that outlives this one and its terminal: `cairn supervise`. */
static enum status start_supervisor(const struct client *client)
{
    char log_path[LIMIT_PATH];
    char slots[24];
    char *argv[8] = { "cairn", "supervise" };
    size_t argc = 2;
    if (client->args.slots >= 0) {
        (void)snprintf(slots, sizeof(slots), "%lld", (long long)client->args.slots);
        argv[argc++] = "--slots";
        argv[argc++] = slots;
    }
    if (client->args.listen != NULL) {
        argv[argc++] = "--listen";
        argv[argc++] = (char *)client->args.listen;
    }
    enum status st = paths_join(&client->paths, log_path, sizeof(log_path), "log/supervisor.log");
    if (st != ST_OK)
        return st;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&files) != 0)
        return ST_NO_MEMORY;
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&files);
        return ST_NO_MEMORY;
    }
    (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    int error = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (error == 0) {
        error = posix_spawn_file_actions_addopen(&files, 1, log_path, O_WRONLY | O_CREAT | O_APPEND,
                                                 0644);
    }
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid = 0;
    if (error == 0)
        error = posix_spawn(&pid, "/proc/self/exe", &files, &attributes, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attributes);
    return error == 0 ? ST_OK : status_from_errno(error);
}

/* The end of a log, when something did not come up. */
static void show_tail(const struct client *client, const char *name)
{
    char path[LIMIT_PATH];
    auto_free char *text = NULL;
    size_t size = 0;
    if (paths_join(&client->paths, path, sizeof(path), "log/%s", name) != ST_OK ||
        io_read_file(io_system(), path, 64 << 20, &text, &size) != ST_OK || size == 0)
        return;
    const char *from = text + size;
    for (int lines = 0; from > text && lines < 6; from--)
        lines += from[-1] == '\n';
    from += *from == '\n';
    (void)fprintf(stderr, "%s:\n%s", path, from);
}

static enum exit_code wait_healthy(struct client *client, int64_t until)
{
    int64_t agents = -1;
    for (;;) {
        agents = count_agents(client);
        if (agents >= 1)
            return EXIT_DONE;
        if (now_ms() >= until)
            break;
        (void)poll(NULL, 0, POLL_MS);
    }
    client_error("%s did not answer in time", agents < 0 ? "the coordinator" : "the agent");
    show_tail(client, agents < 0 ? "cairnd.log" : "agent.log");
    show_tail(client, "supervisor.log");
    return EXIT_UNREACHABLE;
}

enum exit_code cmd_supervise(struct client *client)
{
    enum exit_code code = prepare_home(client);
    if (code != EXIT_DONE)
        return code;
    struct supervisor_options options = { .paths = &client->paths,
                                          .slots = client->args.slots,
                                          .listen = client->args.listen };
    return supervisor_run(&options);
}

enum exit_code cmd_up(struct client *client)
{
    int64_t until = now_ms() + UP_MS;
    if (client->args.slots == 0) {
        client_error("--slots needs at least 1");
        return EXIT_USAGE;
    }
    enum exit_code code = prepare_home(client);
    if (code != EXIT_DONE)
        return code;
    bool lives = home_supervisor(&client->paths) != 0;
    if (client->args.foreground && !lives) {
        client_note(client, "coordinator and agent of %s; Ctrl-C saves the jobs and ends them\n",
                    client->paths.home);
        return cmd_supervise(client);
    }
    if (client->args.foreground) {
        client_error("already up");
        return EXIT_REFUSED;
    }
    /* A killed supervisor's children would answer now and be replaced in a moment. */
    if (!lives && !home_end(&client->paths, HOME_COORDINATOR | HOME_AGENT, STOP_MS / 4)) {
        client_error("processes of %s are in the way and could not be ended", client->paths.home);
        return EXIT_INTERNAL;
    }
    enum status st = lives ? ST_OK : start_supervisor(client);
    if (st != ST_OK) {
        client_error("can't start the supervisor: %s", status_string(st));
        return EXIT_INTERNAL;
    }
    code = wait_healthy(client, until);
    if (code == EXIT_DONE)
        client_note(client, "%s: %s\n", lives ? "already up" : "up", client->target);
    return code;
}

/* ---- down ---- */

static void drain(struct client *client)
{
    Cairn__V1__DrainRequest request = CAIRN__V1__DRAIN_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    uint32_t agents = 0;
    request.timeout_ms = DRAIN_MS;
    if (home_supervisor(&client->paths) != 0) /* it may be just starting one */
        (void)client_probe(client, 2 * PROBE_MS, &agents);
    enum rpc_code code = client_try(client, "Drain", &request.base, DRAIN_MS + PROBE_MS, &reply);
    if (code != RPC_OK) {
        client_note(client,
                    "the coordinator did not save the jobs (%s); they go on from their last "
                    "checkpoint\n",
                    rpc_code_name(code));
        return;
    }
    const Cairn__V1__DrainReply *drained = (const Cairn__V1__DrainReply *)reply;
    if (drained->ended > 0)
        client_note(client, "saved %u jobs, ended %u workers\n", drained->saved, drained->ended);
    protobuf_c_message_free_unpacked(reply, NULL);
}

static void stop_supervisor(const struct client *client)
{
    int64_t pid = home_supervisor(&client->paths);
    if (pid <= 1)
        return;
    (void)kill((pid_t)pid, SIGTERM);
    (void)kill((pid_t)pid, SIGCONT);
    int64_t until = now_ms() + STOP_MS;
    while (home_supervisor(&client->paths) == pid && now_ms() < until)
        (void)poll(NULL, 0, POLL_MS / 2);
    if (home_supervisor(&client->paths) == pid)
        (void)kill((pid_t)pid, SIGKILL);
}

enum exit_code cmd_down(struct client *client)
{
    unsigned all = HOME_COORDINATOR | HOME_AGENT | HOME_TRAINER | HOME_SUPERVISOR;
    auto_free pid_t *pids = malloc(HOME_PIDS_MAX * sizeof(*pids));
    if (pids == NULL)
        return EXIT_INTERNAL;
    bool runs = home_processes(&client->paths, all, pids, HOME_PIDS_MAX) > 0;
    if (!runs && home_supervisor(&client->paths) == 0) {
        client_note(client, "nothing runs in %s\n", client->paths.home);
        return EXIT_DONE;
    }
    drain(client);
    stop_supervisor(client);
    if (!home_end(&client->paths, all, 1000)) {
        client_error("some processes of %s could not be ended", client->paths.home);
        return EXIT_INTERNAL;
    }
    client_note(client, "down\n");
    return EXIT_DONE;
}
