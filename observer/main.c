/*
 * cairn-observer: shows browsers and other programs what the coordinator of this home knows. It is
 * a client of it and keeps nothing that anybody else needs: when it dies, nothing of training is
 * touched, and the next one goes on.
 *
 * Threads: this one, which only waits; one that asks the coordinator (observer/snapshot/poll.h);
 * one that writes what goes out by itself (observer/export/export.h); one for each connection
 * (observer/http/http.h).
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/host/watchdog.h"
#include "common/io.h"
#include "common/own/home.h"
#include "identity/check.h"
#include "identity/serving_cert.h"
#include "observer/export/export.h"
#include "observer/http/http.h"
#include "observer/listen.h"
#include "rpc/rpc.h"

enum { EXIT_DONE = 0, EXIT_INTERNAL = 1, EXIT_USAGE = 2 };

#define ADDRESS_FILE  "page"
#define ADDRESS_BYTES 512     /* of it */
#define RENEW_MS      3600000 /* between two looks at the certificate */
#define LOOK_MS       1000    /* between two looks at the key */
#define STOP_MS       10000   /* the last calls and webhooks */
#define LOOPBACK      "127.0.0.1"

static const char usage[] =
    "usage: cairn-observer [--listen HOST:PORT] [--tls-cert FILE --tls-key FILE --tls-ca FILE]\n"
    "\n"
    "Shows what the coordinator under CAIRN_HOME knows: a page for browsers, JSON, metrics for\n"
    "Prometheus. `cairn up` starts it; `cairn open` lets a browser in.\n"
    "\n"
    "  --listen ADDRESS  127.0.0.1:PORT or [::1]:PORT: of this machine only, without TLS; any\n"
    "                    other: with TLS (docs/page.md). Default: 127.0.0.1 and the port of last\n"
    "                    time, else any. The address is written to CAIRN_HOME/page\n"
    "  --tls-cert FILE, --tls-key FILE, --tls-ca FILE\n"
    "                    the coordinator's certificate and key, and the authorities of those who\n"
    "                    may come, as made by `cairn cert init`; default: CAIRN_TLS_CERT,\n"
    "                    CAIRN_TLS_KEY and CAIRN_TLS_CA\n";

struct observer {
    struct log log;
    struct paths paths;
    const char *listen; /* NULL: the default */
    struct identity_files tls;
    bool tls_asked, speaks_tls;
    int64_t renew_at_ms;                              /* when its certificate is looked at again */
    char host[LISTEN_HOST], public_host[LISTEN_HOST]; /* where it listens, where people find it */
    char url[LISTEN_URL];
    int signal_fd, listen_fd;
    struct watchdog watchdog;
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
                                             { "tls-cert", required_argument, NULL, 'c' },
                                             { "tls-key", required_argument, NULL, 'k' },
                                             { "tls-ca", required_argument, NULL, 'a' },
                                             { "help", no_argument, NULL, 'h' },
                                             { "version", no_argument, NULL, 'v' },
                                             { NULL, 0, NULL, 0 } };
    int option;
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        switch (option) {
        case 'l':
            o->listen = optarg;
            break;
        case 'c':
            o->tls.cert = optarg;
            break;
        case 'k':
            o->tls.key = optarg;
            break;
        case 'a':
            o->tls.ca = optarg;
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
    o->tls_asked = o->tls.cert != NULL || o->tls.key != NULL || o->tls.ca != NULL;
    return -1;
}

/* ---- where it listens ---- */

/* Returns the port where the observer listened last time, so that browsers and bookmarks find it
 * again. 0: not known. */
static uint16_t last_port(const char *path)
{
    auto_free char *text = NULL;
    size_t size = 0;
    if (io_read_file(io_system(), path, ADDRESS_BYTES, &text, &size) != ST_OK || size == 0)
        return 0;
    const char *colon = strrchr(text, ':');
    const unsigned long port = colon != NULL ? strtoul(colon + 1, NULL, 10) : 0;
    return port <= UINT16_MAX ? (uint16_t)port : 0;
}

static enum status listen_default(const char *path, int *out_fd)
{
    const uint16_t port = last_port(path);
    const enum status st = listen_at(LOOPBACK, port, out_fd);
    return st == ST_OK || port == 0 ? st
                                    : listen_at(LOOPBACK, 0, out_fd); /* somebody else has it */
}

/* Writes where it serves. That it can't, on a full disk, is no reason to serve nobody: but a file
 * that names another place, where others may listen by now, has to go. */
static void write_address(const struct observer *o, const char *path)
{
    auto_free char *there = NULL;
    size_t size = 0;
    enum status st = io_read_file(io_system(), path, ADDRESS_BYTES, &there, &size);
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

/* The certificate that it serves with, where it is old, as the coordinator does with its own. */
static void renew_certificate(struct observer *o)
{
    bool renewed = false;
    o->renew_at_ms = clock_mono_ms(clock_system()) + RENEW_MS;
    const enum status st =
        identity_renew_own(&o->tls, clock_wall_ms(clock_system()) / 1000, &renewed);
    if (renewed)
        LOG_INFO(&o->log, "%s is renewed", o->tls.cert);
    if (st != ST_OK) {
        LOG_WARN(&o->log,
                 "%s expires soon and couldn't be renewed (%s): 'cairn cert renew' does it",
                 o->tls.cert, status_string(st));
    }
}

/* Whether the files of TLS that are named, if any are, will do. */
static enum status check_tls(struct observer *o, struct identity_cert *out)
{
    struct reason reason = { "" };
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    if (!identity_files_named(&o->tls)) {
        LOG_ERROR(&o->log,
                  "--listen %s: beyond this machine the page speaks TLS, with the coordinator's "
                  "certificate: --tls-cert, --tls-key and --tls-ca, as made by 'cairn cert init'; "
                  "or listen at 127.0.0.1:PORT, and come by ssh -L",
                  o->listen);
        return ST_CONFIG;
    }
    if (o->tls.cert == NULL || o->tls.key == NULL || o->tls.ca == NULL) {
        LOG_ERROR(&o->log,
                  "--tls-cert, --tls-key and --tls-ca go together: one of them is missing");
        return ST_CONFIG;
    }
    if (identity_key_exposed(o->tls.key, &reason))
        LOG_WARN(&o->log, "%s", reason.text);
    renew_certificate(o); /* also one that has expired while nothing ran */
    const enum status st = identity_check(&o->tls, IDENTITY_COORDINATOR, now_s, out, &reason);
    if (st != ST_OK)
        LOG_ERROR(&o->log, "%s", reason.text[0] != '\0' ? reason.text : status_string(st));
    return st == ST_OK ? ST_OK : ST_CONFIG;
}

/* Chooses TLS if it is asked for, or if others may connect. */
static enum status choose_tls(struct observer *o, bool local)
{
    struct identity_cert cert;
    char host[LISTEN_HOST];
    if (local && !o->tls_asked)
        return ST_OK; /* CAIRN_TLS_* are of those who dial the coordinator, too */
    const enum status st = check_tls(o, &cert);
    if (st != ST_OK)
        return st;
    o->speaks_tls = true;
    if (!listen_public(o->host, cert.hosts, host)) {
        LOG_WARN(&o->log,
                 "%s doesn't name %s: browsers won't be content with it; for one that does remove "
                 "it and its key, then 'cairn cert init --hosts %s'",
                 o->tls.cert, o->host, host);
    }
    (void)snprintf(o->public_host, sizeof(o->public_host), "%s", host);
    return ST_OK;
}

/* Takes the address that --listen gives; without it, only this machine can connect. */
static enum status take_address(struct observer *o, uint16_t *out_port)
{
    bool local = true;
    (void)snprintf(o->host, sizeof(o->host), LOOPBACK);
    if (o->listen != NULL && !listen_parse(o->listen, o->host, out_port, &local)) {
        LOG_ERROR(&o->log,
                  "--listen %s: 127.0.0.1:PORT, and from another machine come by ssh -L; or "
                  "HOST:PORT beyond this machine, with TLS (docs/page.md)",
                  o->listen);
        return ST_CONFIG;
    }
    (void)snprintf(o->public_host, sizeof(o->public_host), "%s", o->host);
    return choose_tls(o, local);
}

/* Starts listening before there are threads: an address that can't be had is the most probable
 * end. */
static enum status start_listening(struct observer *o)
{
    char path[LIMIT_PATH];
    uint16_t port = 0;
    enum status st = paths_join(&o->paths, path, sizeof(path), ADDRESS_FILE);
    if (st == ST_OK)
        st = take_address(o, &port);
    if (st != ST_OK)
        return st;
    st = o->listen != NULL ? listen_at(o->host, port, &o->listen_fd)
                           : listen_default(path, &o->listen_fd);
    if (st != ST_OK) {
        LOG_ERROR(&o->log, "can't listen at %s: %s", o->listen != NULL ? o->listen : LOOPBACK,
                  st == ST_NOT_FOUND ? "no such host" : strerror(errno));
        return st;
    }
    o->port = listen_port(o->listen_fd);
    listen_url(o->speaks_tls, o->public_host, o->port, o->url);
    return ST_OK;
}

static enum status start_http(struct observer *o)
{
    char path[LIMIT_PATH];
    const struct http_parts parts = { .coordinator = o->coordinator,
                                      .poll = o->poll,
                                      .cache = o->cache,
                                      .sessions = &o->sessions,
                                      .log = &o->log,
                                      .tls = o->speaks_tls ? &o->tls : NULL,
                                      .host = listen_is_any(o->host) ? NULL : o->host,
                                      .url = o->url };
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
    CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR); /* process 1 gets children: the kernel reaps them */
    CHECK(signal(SIGHUP, SIG_IGN) != SIG_ERR);
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    o->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return o->signal_fd < 0 ? status_from_errno(errno) : ST_OK;
}

static enum status start(struct observer *o)
{
    watchdog_open(&o->watchdog);
    struct reason done = { "" }, why = { "" };
    enum status st = paths_open(&o->paths);
    if (st == ST_OK)
        st = private_home_claim(&o->paths, &done, &why);
    if (st == ST_OK)
        st = take_signals(o);
    if (st == ST_OK)
        st = sessions_open(&o->sessions, &o->paths);
    if (st != ST_OK) {
        LOG_ERROR(&o->log, "no usable home: %s; set CAIRN_HOME",
                  why.text[0] != '\0' ? why.text : status_string(st));
        return st;
    }
    if (done.text[0] != '\0')
        LOG_WARN(&o->log, "%s", done.text);
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
    if (st == ST_OK) {
        watchdog_ready(&o->watchdog);
        watchdog_status(&o->watchdog, "the page is at %s", o->url);
    }
    return st;
}

/* Left to the supervisor, as the other programs of `cairn up` do (common/host/watchdog.h). */
static bool is_left(const struct observer *o, uint32_t signal)
{
    return signal == SIGTERM && watchdog_watched(&o->watchdog);
}

static void renew_if_due(struct observer *o)
{
    if (o->speaks_tls && clock_mono_ms(clock_system()) >= o->renew_at_ms)
        renew_certificate(o);
}

/* Looks whether the key was replaced or removed, which ends all sessions and tokens. */
static void look_at_key(struct observer *o)
{
    bool changed = false;
    const enum status st = sessions_look(&o->sessions, &o->paths, &changed);
    if (st != ST_OK && changed) {
        LOG_WARN(&o->log, "observer/key can't be made anew: %s; sessions and tokens are worthless",
                 status_string(st));
    }
    if (st == ST_OK && changed)
        LOG_INFO(&o->log, "observer/key is another one: earlier sessions and tokens are worthless");
}

static void wait_for_end(struct observer *o)
{
    struct pollfd wait = { .fd = o->signal_fd, .events = POLLIN };
    const int every_ms = watchdog_every_ms(&o->watchdog);
    for (;;) {
        struct signalfd_siginfo info;
        (void)poll(&wait, 1, every_ms >= 0 ? every_ms : LOOK_MS);
        watchdog_beat(&o->watchdog);
        renew_if_due(o);
        look_at_key(o);
        while (read(o->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
            if (is_left(o, info.ssi_signo))
                continue;
            watchdog_stopping(&o->watchdog, STOP_MS);
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
    struct observer o = { .log = log_open("cairn-observer"), .signal_fd = -1 };
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
