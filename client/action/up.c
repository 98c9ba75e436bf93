/* up: a supervisor, which starts coordinator and agent; supervise: what that process runs. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/action/commands.h"
#include "client/ask/call.h"
#include "client/cert/commands.h"
#include "client/cert/folder.h"
#include "client/home/home.h"
#include "client/home/supervisor.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/io.h"
#include "jobspec/jobspec.h"

#define UP_MS      10000
#define SLOW_MS    60000 /* instead, for a coordinator that lives and reads a long journal */
#define STEADY_MS  4000  /* so long it has lived then */
#define END_MS     2000  /* for what a killed supervisor left */
#define POLL_MS    50
#define PAGE_MS    5000 /* for the observer to say where it listens */
#define PAGE_BYTES 512  /* of the file with its address */
#define PROBE_MS   1000
#define TAIL_BYTES ((size_t)64 << 10) /* of a log; a line has LIMIT_LOG_LINE at most */
#define WORDS_MAX  20                 /* of a supervisor's command */

extern char **environ;

/* Folders, and CAIRN_HOME for everything that is started from here. */
static enum exit_code prepare_home(const struct client *client)
{
    static const char *const folders[] = { "log", "state", "jobs", "agent" };
    enum status st = ST_OK;
    char path[LIMIT_PATH];
    if (!home_is_ours(&client->paths, true))
        return EXIT_REFUSED;
    for (size_t i = 0; st == ST_OK && i < sizeof(folders) / sizeof(folders[0]); i++) {
        st = paths_join(&client->paths, path, sizeof(path), "%s", folders[i]);
        if (st == ST_OK)
            st = io_mkdir_all(io_system(), path);
    }
    if (st == ST_OK && setenv("CAIRN_HOME", client->paths.home, 1) != 0)
        st = status_from_errno(errno);
    if (st == ST_OK)
        return EXIT_DONE;
    client_error("%s: %s. Set CAIRN_HOME to a folder of your own", client->paths.home,
                 st == ST_NOT_FOUND ? "it can't be made" : client_file_status(st));
    return exit_of_status(st) == EXIT_NOT_FOUND ? EXIT_INTERNAL : exit_of_status(st);
}

/* Agents that the coordinator has; -1: it doesn't answer. */
static int64_t count_agents(struct client *client)
{
    uint32_t agents = 0;
    return client_probe(client, PROBE_MS, &agents) == RPC_OK ? (int64_t)agents : -1;
}

/* A process that outlives this one and its terminal: `cairn supervise`. */
static enum status start_supervisor(const struct client *client, pid_t *out)
{
    char log_path[LIMIT_PATH];
    char slots[24];
    char grace[32];
    char *argv[18] = { "cairn", "supervise" };
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
    if (client->args.advertise != NULL) {
        argv[argc++] = "--advertise";
        argv[argc++] = (char *)client->args.advertise;
    }
    if (client->args.paths != NULL) {
        argv[argc++] = "--paths";
        argv[argc++] = (char *)client->args.paths;
    }
    if (client->args.commands)
        argv[argc++] = "--commands";
    if (client->args.page != NULL) {
        argv[argc++] = "--page";
        argv[argc++] = (char *)client->args.page;
    }
    if (client->args.grace_ms >= 0) {
        (void)snprintf(grace, sizeof(grace), "%lldms", (long long)client->args.grace_ms);
        argv[argc++] = "--grace";
        argv[argc++] = grace;
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
        error = posix_spawn_file_actions_addopen(&files, 1, log_path,
                                                 O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0600);
    }
    if (error == 0)
        error = posix_spawn_file_actions_adddup2(&files, 1, 2);
    pid_t pid = 0;
    if (error == 0)
        error = posix_spawn(&pid, "/proc/self/exe", &files, &attributes, argv, environ);
    (void)posix_spawn_file_actions_destroy(&files);
    (void)posix_spawnattr_destroy(&attributes);
    *out = pid;
    return error == 0 ? ST_OK : status_from_errno(error);
}

/* The end of a log, with a NUL, for free(); NULL: there is none, or nothing in it. */
static char *read_tail(const struct client *client, const char *name, char path[LIMIT_PATH],
                       size_t *out_size)
{
    const struct io *io = io_system();
    struct io_stat about;
    int fd = -1;
    if (paths_join(&client->paths, path, LIMIT_PATH, "log/%s", name) != ST_OK ||
        io->stat(io->self, path, &about) != ST_OK || about.size == 0 ||
        io->open(io->self, path, IO_READ, &fd) != ST_OK)
        return NULL;
    const size_t size = about.size < TAIL_BYTES ? (size_t)about.size : TAIL_BYTES;
    auto_free char *text = calloc(1, size + 1);
    const enum status st =
        text != NULL ? io_read_all(io, fd, text, size, about.size - size) : ST_NO_MEMORY;
    (void)io->close(io->self, fd);
    *out_size = size;
    return st == ST_OK ? TAKE_PTR(text) : NULL;
}

/* When something did not come up. */
static void show_tail(const struct client *client, const char *name)
{
    char path[LIMIT_PATH];
    size_t size = 0;
    auto_free char *text = read_tail(client, name, path, &size);
    if (text == NULL)
        return;
    const char *from = text + size;
    for (int lines = 0; from > text && lines < 6; from--)
        lines += from[-1] == '\n';
    from += *from == '\n';
    client_error("%s:\n%.*s", path, (int)strlen(from) - (text[size - 1] == '\n'), from);
}

/* What a coordinator said last that waits for a person: the message of its log's last line. */
static void say_refusal(const struct client *client)
{
    char path[LIMIT_PATH];
    size_t size = 0;
    json_t *line = NULL;
    auto_free char *text = read_tail(client, "cairnd.log", path, &size);
    if (text != NULL) {
        size -= text[size - 1] == '\n';
        text[size] = '\0';
        const char *last = strrchr(text, '\n');
        line = json_loads(last != NULL ? last + 1 : text, 0, NULL);
    }
    const char *said = json_string_value(json_object_get(line, "msg"));
    client_error("%s", said != NULL ? said : "the coordinator can't start: see log/cairnd.log");
    json_decref(line);
}

/* Has the supervisor that was started from here ended, since the coordinator waits for a person? */
static bool is_refused(pid_t supervisor)
{
    int status = 0;
    return supervisor > 0 && waitpid(supervisor, &status, WNOHANG) == supervisor &&
           WIFEXITED(status) && WEXITSTATUS(status) == EXIT_REFUSED;
}

/* The coordinator as it starts: since when the process of now is there. */
struct starting {
    pid_t pid; /* 0: there is none */
    int64_t since;
};

/* Does the same process live for some time, rather than die again and again? */
static bool is_steady(const struct client *client, struct starting *starting, int64_t now)
{
    pid_t pid = 0;
    (void)home_processes(&client->paths, HOME_COORDINATOR, &pid, 1);
    if (pid != starting->pid)
        *starting = (struct starting){ .pid = pid, .since = now };
    return pid != 0 && now - starting->since >= STEADY_MS;
}

/* supervisor: that was started for it; 0: none. */
static enum exit_code wait_healthy(struct client *client, int64_t begun, pid_t supervisor)
{
    int64_t agents = -1;
    bool answered = false;
    struct starting starting = { 0 };
    for (;;) {
        agents = count_agents(client);
        if (agents >= 1)
            return EXIT_DONE;
        if (agents == 0 && !answered) { /* from now on it is the agent's time */
            answered = true;
            begun = clock_mono_ms(clock_system());
        }
        if (is_refused(supervisor) && home_supervisor(&client->paths) == 0) {
            say_refusal(client);
            return EXIT_REFUSED;
        }
        int64_t now = clock_mono_ms(clock_system());
        bool slow = agents < 0 && is_steady(client, &starting, now);
        if (now - begun >= (slow ? SLOW_MS : UP_MS))
            break;
        (void)poll(NULL, 0, POLL_MS);
    }
    client_error("%s did not answer in time", agents < 0 ? "the coordinator" : "the agent");
    show_tail(client, agents < 0 ? "cairnd.log" : "agent.log");
    show_tail(client, "supervisor.log");
    return EXIT_UNREACHABLE;
}

/* What was started is ended: a supervisor would start it again for ever. */
static void give_up(const struct client *client)
{
    unsigned all = HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER | HOME_TRAINER | HOME_SUPERVISOR;
    supervisor_end(&client->paths);
    if (home_end(&client->paths, all, END_MS)) {
        client_error("nothing was left running");
    } else {
        client_error("some processes of %s could not be ended", client->paths.home);
    }
}

/* What the supervisor that runs was called with. */
static bool read_running(const struct client *client, char *words, size_t size,
                         struct arguments *out)
{
    char *argv[WORDS_MAX];
    int argc = 0;
    const struct command *command = NULL;
    struct reason reason;
    for (size_t at = 0; at < size && argc < WORDS_MAX; at += strlen(words + at) + 1)
        argv[argc++] = words + at;
    return argc > 1 &&
           arguments_parse(client->table, argc - 1, argv + 1, out, &command, &reason) == ST_OK;
}

/* Returns a number with its unit as a text; NULL for a negative one. */
static const char *number_text(int64_t value, const char *unit, char out[40])
{
    (void)snprintf(out, 40, "%lld%s", (long long)value, unit);
    return value < 0 ? NULL : out;
}

/* Is this flag asked for (not NULL), and another than what runs (NULL: without it)? Said then. */
static bool flag_differs(const char *flag, const char *asked, const char *runs)
{
    if (asked == NULL || (runs != NULL && strcmp(asked, runs) == 0))
        return false;
    if (runs == NULL) {
        client_error("already up, but without %s %s", flag, asked);
    } else {
        client_error("already up, but with %s %s, not %s", flag, runs, asked);
    }
    return true;
}

/* Flags of this call that the running supervisor was not started with are told, not ignored. */
static enum exit_code check_flags(const struct client *client)
{
    const struct arguments *args = &client->args;
    struct arguments runs;
    char asked[40];
    char other[40];
    size_t size = 0;
    auto_free char *words = home_supervisor_words(&client->paths, &size);
    if (words == NULL || !read_running(client, words, size, &runs))
        return EXIT_DONE;
    bool differs = flag_differs("--slots", number_text(args->slots, "", asked),
                                number_text(runs.slots, "", other));
    differs |= flag_differs("--listen", args->listen, runs.listen);
    differs |= flag_differs("--advertise", args->advertise, runs.advertise);
    differs |= flag_differs("--paths", args->paths, runs.paths);
    if (args->commands && !runs.commands) {
        client_error("already up, but without --commands");
        differs = true;
    }
    differs |= flag_differs("--page", args->page, runs.page);
    differs |= flag_differs("--grace", number_text(args->grace_ms, "ms", asked),
                            number_text(runs.grace_ms, "ms", other));
    if (!differs)
        return EXIT_DONE;
    client_error("to change that: cairn down, then cairn up again");
    return EXIT_REFUSED;
}

/* NULL: nowhere. */
static bool is_beyond(const char *listen)
{
    return listen != NULL && !rpc_address_is_loopback(listen);
}

struct tls_paths {
    char cert[LIMIT_PATH], key[LIMIT_PATH], ca[LIMIT_PATH];
};

/* Where the coordinator's certificate of this home's authority lies. */
static enum exit_code find_tls(const struct client *client, struct tls_paths *out,
                               struct identity_files *files)
{
    enum exit_code code = folder_path(client, "coordinator", ".crt", out->cert);
    if (code == EXIT_DONE)
        code = folder_path(client, "coordinator", ".key", out->key);
    if (code == EXIT_DONE)
        code = folder_path(client, "ca", ".crt", out->ca);
    *files = (struct identity_files){ out->cert, out->key, out->ca };
    return code;
}

static bool has_no_page(const struct client *client)
{
    return client->args.page != NULL && strcmp(client->args.page, "none") == 0;
}

static const char *page_of(const struct client *client)
{
    return has_no_page(client) ? NULL : client->args.page;
}

/* 127.0.0.1:PORT and [::1]:PORT: what needs no certificate. */
static bool is_page_here(const char *page)
{
    return rpc_address_is_loopback(page) &&
           (strncmp(page, "127.", 4) == 0 || strncmp(page, "[::1]:", 6) == 0);
}

/* The host of HOST:PORT, which may be port 0; false: it is anything else, or loopback by a name. */
static bool page_host(const char *page, char out[LIMIT_PATH])
{
    const char *colon = strrchr(page, ':');
    if (colon == NULL || colon == page || colon[1] == '\0' || strlen(colon) > 6 ||
        colon[1 + strspn(colon + 1, "0123456789")] != '\0' || rpc_address_is_loopback(page))
        return false;
    const bool six = page[0] == '[' && colon[-1] == ']';
    (void)snprintf(out, LIMIT_PATH, "%.*s", (int)(colon - page) - 2 * six, page + six);
    return out[0] != '\0' && strpbrk(out, "[],/ ") == NULL && six == (strchr(out, ':') != NULL);
}

static bool is_page_beyond(const struct client *client)
{
    return page_of(client) != NULL && !is_page_here(page_of(client));
}

/* Makes what may be made of certificates, and looks whether what there is will do. */
static enum exit_code prepare_tls(const struct client *client)
{
    enum exit_code code = EXIT_DONE;
    char host[LIMIT_PATH];
    if (is_beyond(client->args.listen))
        code = cert_prepare(client);
    if (code == EXIT_DONE && is_page_beyond(client) && page_host(page_of(client), host))
        code = cert_check_page(client, page_of(client), host);
    return code;
}

enum exit_code cmd_supervise(struct client *client)
{
    enum exit_code code = prepare_home(client);
    int64_t grace_ms = 0;
    if (code == EXIT_DONE)
        code = supervisor_grace(&client->args, &grace_ms);
    if (code != EXIT_DONE)
        return code;
    struct supervisor_options options = { .paths = &client->paths,
                                          .slots = client->args.slots,
                                          .listen = client->args.listen,
                                          .advertise = client->args.advertise,
                                          .job_paths = client->args.paths,
                                          .job_commands = client->args.commands,
                                          .page = page_of(client),
                                          .page_none = has_no_page(client),
                                          .grace_ms = grace_ms };
    struct tls_paths tls;
    struct identity_files files;
    if (is_beyond(options.listen))
        code = cert_prepare(client);
    if (code == EXIT_DONE)
        code = find_tls(client, &tls, &files);
    if (code != EXIT_DONE)
        return code;
    if (is_beyond(options.listen))
        options.tls = files;
    if (is_page_beyond(client))
        options.page_tls = files;
    return supervisor_run(&options);
}

/* Says where the page is, once an observer that started since then (Unix time, ms) has said it. */
static void say_page(const struct client *client, int64_t since)
{
    char path[LIMIT_PATH];
    struct stat info;
    const int64_t until = clock_mono_ms(clock_system()) + PAGE_MS;
    if (has_no_page(client) || paths_join(&client->paths, path, sizeof(path), "page") != ST_OK)
        return;
    while (stat(path, &info) != 0 ||
           (int64_t)info.st_mtim.tv_sec * 1000 + info.st_mtim.tv_nsec / 1000000 < since) {
        if (clock_mono_ms(clock_system()) >= until) {
            client_note(client, "no page: log/observer.log of %s says why\n", client->paths.home);
            return;
        }
        (void)poll(NULL, 0, POLL_MS);
    }
    auto_free char *url = NULL;
    size_t size = 0;
    if (io_read_file(io_system(), path, PAGE_BYTES, &url, &size) == ST_OK && !client->args.quiet)
        (void)printf("page: %.*s\n", (int)size, url);
}

/* Starts it, unless it lives; waits until both answer. */
static enum exit_code bring_up(struct client *client, bool lives)
{
    int64_t begun = clock_mono_ms(clock_system());
    const int64_t since = lives ? 0 : clock_wall_ms(clock_system());
    /* A killed supervisor's children would answer now and be replaced in a moment. */
    if (!lives &&
        !home_end(&client->paths, HOME_COORDINATOR | HOME_AGENT | HOME_OBSERVER, END_MS)) {
        client_error("processes of %s are in the way and could not be ended", client->paths.home);
        return EXIT_INTERNAL;
    }
    if (!lives && client->args.paths != NULL && !is_beyond(client->args.listen)) {
        client_error("--paths is for people with certificates: with a --listen beyond loopback");
        return EXIT_USAGE;
    }
    pid_t supervisor = 0;
    enum status st = lives ? ST_OK : start_supervisor(client, &supervisor);
    if (st != ST_OK) {
        client_error("can't start the supervisor: %s", status_string(st));
        return EXIT_INTERNAL;
    }
    enum exit_code code = wait_healthy(client, begun, supervisor);
    if (code == EXIT_DONE) {
        client_note(client, "%s: %s\n", lives ? "already up" : "up", client->address);
        if (!lives && geteuid() == 0) {
            client_note(client, "as root: so do workers and the page's server; any user can have "
                                "a home of their own\n");
        }
        say_page(client, since);
    } else if (!lives && code != EXIT_REFUSED) { /* then it has ended by itself */
        give_up(client);
    }
    return code;
}

/* Checks what job files of people with certificates may name. */
static enum exit_code check_paths(const struct client *client)
{
    if (client->args.paths != NULL && !jobspec_allowed_valid(client->args.paths)) {
        client_error("--paths %s: folders with their whole path, or s3://BUCKET/PREFIX, separated "
                     "by ':'",
                     client->args.paths);
        return EXIT_USAGE;
    }
    if (client->args.commands && client->args.paths == NULL) {
        client_error("--commands goes with --paths: without that, everybody's job files may have "
                     "commands");
        return EXIT_USAGE;
    }
    return EXIT_DONE;
}

enum exit_code cmd_up(struct client *client)
{
    int64_t grace_ms = 0;
    if (client_needs_home(client) != EXIT_DONE)
        return EXIT_REFUSED;
    if (client->args.slots == 0) {
        client_error("--slots needs at least 1");
        return EXIT_USAGE;
    }
    if (client->args.advertise != NULL &&
        (!rpc_address_is_dialled(client->args.advertise) || !is_beyond(client->args.listen))) {
        client_error("--advertise %s: HOST:PORT, with a --listen beyond loopback",
                     client->args.advertise);
        return EXIT_USAGE;
    }
    if (client->args.listen != NULL && !rpc_address_is_served(client->args.listen)) {
        client_error("--listen %s: ADDRESS:PORT, as 127.0.0.1:7000 or [::1]:7000; port 0 is any",
                     client->args.listen);
        return EXIT_USAGE;
    }
    char host[LIMIT_PATH];
    if (is_page_beyond(client) && !page_host(client->args.page, host)) {
        client_error("--page %s: 127.0.0.1:PORT or [::1]:PORT, and from another machine come by "
                     "ssh -L; HOST:PORT beyond this machine, with certificates; or none "
                     "(docs/page.md)",
                     client->args.page);
        return EXIT_USAGE;
    }
    enum exit_code code = check_paths(client);
    if (code == EXIT_DONE)
        code = supervisor_grace(&client->args, &grace_ms);
    if (code == EXIT_DONE)
        code = prepare_home(client);
    if (code != EXIT_DONE)
        return code;
    struct reason taken = { "" };
    bool lives = home_supervisor(&client->paths) != 0;
    if (!lives && home_lock_is_taken(&client->paths, &taken)) {
        client_error("%s", taken.text);
        return EXIT_REFUSED;
    }
    if (!lives)
        code = prepare_tls(client);
    if (code != EXIT_DONE)
        return code;
    if (client->args.foreground && !lives) {
        client_note(client,
                    "coordinator and agent of %s; Ctrl-C and SIGTERM save the jobs and end them\n",
                    client->paths.home);
        code = cmd_supervise(client);
        if (code == EXIT_REFUSED)
            say_refusal(client);
        return code;
    }
    if (getpid() == 1 && !lives) {
        client_error("as process 1 of a container this would end all with it when it returns: "
                     "cairn up --foreground");
        return EXIT_USAGE;
    }
    if (client->args.foreground) {
        client_error("already up: cairn down first, or leave --foreground away");
        return EXIT_REFUSED;
    }
    code = lives ? check_flags(client) : EXIT_DONE;
    return code == EXIT_DONE ? bring_up(client, lives) : code;
}
