/*
 * cairn-observer: shows browsers and other programs what the coordinator of this home knows. It is
 * a client of it and keeps nothing that anybody else needs: when it dies, nothing of training is
 * touched, and the next one goes on.
 *
 * Threads: this one, which only waits; one that asks the coordinator (observer/snapshot/poll.h);
 * one that writes what goes out by itself (observer/export/export.h); one for each connection
 * (observer/http/http.h).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/watchdog.h"
#include "observer/export/export.h"
#include "observer/http/http.h"
#include "rpc/rpc.h"

enum { EXIT_DONE = 0, EXIT_INTERNAL = 1, EXIT_USAGE = 2 };

#define BACKLOG      64
#define ADDRESS_FILE "page"

static const char usage[] =
    "usage: cairn-observer [--listen 127.0.0.1:PORT]\n"
    "\n"
    "Shows what the coordinator under CAIRN_HOME knows: a page for browsers, JSON, metrics for\n"
    "Prometheus. `cairn up` starts it; `cairn open` lets a browser in.\n"
    "\n"
    "  --listen ADDRESS  of this machine only (docs/page.md says how to come from another); "
    "default:\n"
    "                    127.0.0.1 and the port of last time, else any. The address is written to\n"
    "                    CAIRN_HOME/page\n";

struct observer {
    struct log log;
    struct paths paths;
    const char *listen; /* NULL: the default */
    char url[64];
    int signal_fd, watchdog_fd, listen_fd;
    uint16_t port;
    struct coordinator *coordinator;
    struct poll *poll;
    struct cache *cache;
    struct sessions sessions;
    struct http *http;
    struct export *export;
};

/* -1, or the exit code of a program that has said all it has to. */
static int take_options(struct observer *o, int argc, char **argv)
{
    static const struct option options[] = { { "listen", required_argument, NULL, 'l' },
                                             { "help", no_argument, NULL, 'h' },
                                             { "version", no_argument, NULL, 'v' },
                                             { NULL, 0, NULL, 0 } };
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            o->listen = optarg;
            break;
        case 'h':
            (void)fputs(usage, stdout);
            return EXIT_DONE;
        case 'v':
            (void)puts("cairn-observer " CAIRN_VERSION);
            return EXIT_DONE;
        default:
            (void)fputs(usage, stderr);
            return EXIT_USAGE;
        }
    }
    if (optind < argc) {
        (void)fputs(usage, stderr);
        return EXIT_USAGE;
    }
    return -1;
}

/* ---- where it listens ---- */

/* "127.0.0.1:7080" or "[::1]:7080". */
static bool parse_address(const char *text, struct sockaddr_storage *out, socklen_t *size)
{
    const char *colon = strrchr(text, ':');
    char *end = NULL, host[64];
    if (colon == NULL || colon[1] < '0' || colon[1] > '9')
        return false;
    const unsigned long port = strtoul(colon + 1, &end, 10);
    const bool six = text[0] == '[' && colon > text && colon[-1] == ']';
    (void)snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - 2 * six, text + six);
    *out = (struct sockaddr_storage){ 0 };
    if (six) {
        struct sockaddr_in6 *to = (struct sockaddr_in6 *)out;
        to->sin6_family = AF_INET6;
        to->sin6_port = htons((uint16_t)port);
        *size = sizeof(*to);
        return *end == '\0' && port <= UINT16_MAX && inet_pton(AF_INET6, host, &to->sin6_addr) == 1;
    }
    struct sockaddr_in *to = (struct sockaddr_in *)out;
    to->sin_family = AF_INET;
    to->sin_port = htons((uint16_t)port);
    *size = sizeof(*to);
    return *end == '\0' && port <= UINT16_MAX && inet_pton(AF_INET, host, &to->sin_addr) == 1;
}

/* -1: errno says why. */
static int listen_at(const struct sockaddr_storage *address, socklen_t size)
{
    const int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd, (const struct sockaddr *)address, size) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int error = errno;
    if (fd >= 0)
        (void)close(fd);
    errno = error;
    return -1;
}

/* Where it listened last time: browsers and bookmarks find it again. 0: not known. */
static uint16_t last_port(const char *path)
{
    auto_free char *text = NULL;
    size_t size = 0;
    if (io_read_file(io_system(), path, 256, &text, &size) != ST_OK || size == 0)
        return 0;
    const char *colon = strrchr(text, ':');
    const unsigned long port = colon != NULL ? strtoul(colon + 1, NULL, 10) : 0;
    return port <= UINT16_MAX ? (uint16_t)port : 0;
}

static int listen_default(const char *path)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_port = htons(last_port(path)),
                                   .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = listen_at((const struct sockaddr_storage *)(const void *)&address, sizeof(address));
    if (fd >= 0 || address.sin_port == 0)
        return fd;
    address.sin_port = 0; /* somebody else has it */
    return listen_at((const struct sockaddr_storage *)(const void *)&address, sizeof(address));
}

/* The port that it got. */
static uint16_t describe(struct observer *o, int fd)
{
    struct sockaddr_storage address = { 0 };
    socklen_t size = sizeof(address);
    char host[INET6_ADDRSTRLEN] = "", port[8] = "";
    CHECK(getsockname(fd, (struct sockaddr *)&address, &size) == 0);
    CHECK(getnameinfo((const struct sockaddr *)&address, size, host, sizeof(host), port,
                      sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) == 0);
    const bool six = address.ss_family == AF_INET6;
    (void)snprintf(o->url, sizeof(o->url), "http://%s%s%s:%s/", six ? "[" : "", host,
                   six ? "]" : "", port);
    return (uint16_t)strtoul(port, NULL, 10);
}

/* Writes where it serves. That it can't, on a full disk, is no reason to serve nobody: but a file
 * that names another place, where others may listen by now, has to go. */
static void write_address(const struct observer *o, const char *path)
{
    auto_free char *there = NULL;
    size_t size = 0;
    enum status st = io_read_file(io_system(), path, 256, &there, &size);
    const bool same =
        st == ST_OK && size == strlen(o->url) && memcmp(there, o->url, strlen(o->url)) == 0;
    if (same && utimensat(AT_FDCWD, path, NULL, 0) == 0) /* `cairn up` looks when it was said */
        return;
    st = io_replace(io_system(), path, o->url, strlen(o->url));
    if (st == ST_OK)
        return;
    (void)unlink(path);
    LOG_WARN(&o->log, "can't write %s: %s; 'cairn open' won't find %s", path, status_string(st),
             o->url);
}

/* Before there are threads: an address that can't be had is the most probable end. */
static enum status start_listening(struct observer *o)
{
    char path[LIMIT_PATH];
    struct sockaddr_storage address;
    socklen_t size = 0;
    enum status st = paths_join(&o->paths, path, sizeof(path), ADDRESS_FILE);
    if (st != ST_OK)
        return st;
    if (o->listen != NULL &&
        (!rpc_address_is_loopback(o->listen) || !parse_address(o->listen, &address, &size))) {
        LOG_ERROR(&o->log,
                  "--listen %s: 127.0.0.1:PORT or [::1]:PORT; from another machine come by "
                  "ssh -L",
                  o->listen);
        return ST_CONFIG;
    }
    o->listen_fd = o->listen != NULL ? listen_at(&address, size) : listen_default(path);
    if (o->listen_fd < 0) {
        st = status_from_errno(errno);
        LOG_ERROR(&o->log, "can't listen at %s: %s", o->listen != NULL ? o->listen : "127.0.0.1",
                  strerror(errno));
        return st;
    }
    o->port = describe(o, o->listen_fd);
    return ST_OK;
}

static enum status start_http(struct observer *o)
{
    char path[LIMIT_PATH];
    const struct http_parts parts = { .coordinator = o->coordinator,
                                      .poll = o->poll,
                                      .cache = o->cache,
                                      .sessions = &o->sessions,
                                      .log = &o->log };
    enum status st = http_start(&parts, o->listen_fd, o->port, &o->http);
    if (st == ST_OK)
        st = paths_join(&o->paths, path, sizeof(path), ADDRESS_FILE);
    if (st == ST_OK)
        write_address(o, path);
    return st;
}

/* ---- life ---- */

static enum status take_signals(struct observer *o)
{
    sigset_t set;
    CHECK(sigemptyset(&set) == 0);
    CHECK(sigaddset(&set, SIGTERM) == 0);
    CHECK(sigaddset(&set, SIGINT) == 0);
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    CHECK(signal(SIGHUP, SIG_IGN) != SIG_ERR);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    o->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return o->signal_fd < 0 ? status_from_errno(errno) : ST_OK;
}

static enum status start(struct observer *o)
{
    o->watchdog_fd = watchdog_open();
    enum status st = paths_open(&o->paths);
    if (st == ST_OK)
        st = io_mkdir_all(io_system(), o->paths.home);
    if (st == ST_OK)
        st = take_signals(o);
    if (st == ST_OK)
        st = sessions_open(&o->sessions, &o->paths);
    if (st != ST_OK) {
        LOG_ERROR(&o->log, "no usable home: %s; set CAIRN_HOME", status_string(st));
        return st;
    }
    st = start_listening(o);
    if (st != ST_OK)
        return st;
    rpc_log_to(&o->log);
    rpc_init();
    st = coordinator_open(&o->paths, &o->coordinator);
    if (st == ST_OK)
        st = cache_new(o->coordinator, &o->cache);
    if (st == ST_OK)
        st = poll_start(o->coordinator, &o->log, &o->poll);
    if (st == ST_OK)
        st = start_http(o);
    const struct export_parts parts = {
        .coordinator = o->coordinator, .poll = o->poll, .paths = &o->paths, .log = &o->log
    };
    if (st == ST_OK)
        st = export_start(&parts, &o->export);
    if (st == ST_OK)
        LOG_INFO(&o->log, "the page is at %s", o->url);
    return st;
}

/* Left to the supervisor, as the other programs of `cairn up` do (common/watchdog.h). */
static bool is_left(const struct observer *o, uint32_t signal)
{
    return signal == SIGTERM && watchdog_watched(o->watchdog_fd);
}

static void wait_for_end(struct observer *o)
{
    struct pollfd wait = { .fd = o->signal_fd, .events = POLLIN };
    for (;;) {
        struct signalfd_siginfo info;
        (void)poll(&wait, 1, WATCHDOG_BEAT_MS);
        watchdog_beat(o->watchdog_fd);
        while (read(o->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
            if (!is_left(o, info.ssi_signo))
                return;
        }
    }
}

static void stop(struct observer *o)
{
    if (o->poll != NULL)
        poll_stop(o->poll);
    http_stop(o->http);
    export_stop(o->export);
    if (o->poll != NULL)
        poll_free(o->poll);
    cache_free(o->cache);
    coordinator_close(o->coordinator);
    rpc_shutdown();
}

int main(int argc, char **argv)
{
    struct observer o = { .log = log_open("cairn-observer"), .signal_fd = -1, .watchdog_fd = -1 };
    const int code = take_options(&o, argc, argv);
    if (code >= 0)
        return code;
    const enum status st = start(&o);
    if (st != ST_OK)
        return st == ST_CONFIG ? EXIT_USAGE : EXIT_INTERNAL; /* its end cleans up what was opened */
    wait_for_end(&o);
    stop(&o);
    return EXIT_DONE;
}
