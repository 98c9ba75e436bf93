/*
 * cairnd: the coordinator. One thread runs the core (gRPC's handlers come to it by mailbox), those
 * of server/store ask checkpoint stores; gRPC has its own. A signal ends it: training goes on.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/fault.h"
#include "common/host/watchdog.h"
#include "common/io.h"
#include "common/paths.h"
#include "identity/check.h"
#include "proto/descriptors.h"
#include "rpc/services.h"
#include "server/api/access.h"
#include "server/api/api.h"
#include "server/auditlog/auditlog.h"
#include "server/offline.h"
#include "server/options.h"
#include "server/place.h"
#include "server/rebuild/rebuild.h"
#include "server/store/queue.h"

#define SEND_QUEUE    4096 /* a formation of LIMIT_RANKS answers that many GETs at once */
#define STOP_GRACE_MS 300
#define GROUP_MAX     256 /* messages that are taken at a time */
#define LOOK_MS       2

struct daemon {
    struct log log;
    struct paths paths;
    struct options options;
    char address[256]; /* of TCP, as bound */
    struct access access;
    int signal_fd;
    struct journal *journal;
    struct rpc_mailbox *mailbox;
    struct rpc_descdb *descdb;
    struct rpc_server *server;
    struct rpc_health *health;
    struct rpc_reflection *reflection;
    struct ckpt_store *checkpoints;
    struct store_queue *store;
    struct coord *coord;
    struct api api;
    struct auditlog *auditlog;
    bool refused; /* to start, until a person has done something */
    struct watchdog watchdog;
};

/* ---- small things of the system ---- */

static void random_bytes(void *arg, void *out, size_t size)
{
    (void)arg;
    for (size_t done = 0; done < size;) {
        ssize_t got = getrandom((char *)out + done, size - done, 0);
        CHECK(got > 0 || errno == EINTR);
        done += got > 0 ? (size_t)got : 0;
    }
}

static enum status take_signals(struct daemon *d)
{
    sigset_t set;
    CHECK(sigemptyset(&set) == 0);
    CHECK(sigaddset(&set, SIGTERM) == 0);
    CHECK(sigaddset(&set, SIGINT) == 0);
    CHECK(sigaddset(&set, SIGHUP) == 0);
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    CHECK(signal(SIGCHLD, SIG_IGN) != SIG_ERR); /* process 1 gets children: the kernel reaps them */
    CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
    d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return d->signal_fd < 0 ? status_from_errno(errno) : ST_OK;
}

/* Takes the cluster whose certificates count from the coordinator's own certificate. */
static enum status take_identity(struct daemon *d)
{
    struct identity_cert own;
    struct reason reason = { "" };
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    if (identity_key_exposed(d->options.tls.key, &reason))
        LOG_WARN(&d->log, "%s", reason.text);
    api_renew_own(&d->options.tls, &d->log);
    enum status st = identity_check(&d->options.tls, IDENTITY_COORDINATOR, now_s, &own, &reason);
    if (st != ST_OK) {
        LOG_ERROR(&d->log, "%s", reason.text);
        return st;
    }
    d->access.tls = true;
    d->api.tls = &d->options.tls;
    d->api.address = d->address;
    d->api.advertise = d->options.advertise;
    d->api.paths = d->options.paths;
    d->api.commands = d->options.commands;
    if (d->options.paths == NULL) {
        LOG_INFO(&d->log, "job files of everybody with an operator's certificate may name any path "
                          "that agents can read or write, and run any command as their account: "
                          "--paths narrows that");
    }
    (void)snprintf(d->access.cluster, sizeof(d->access.cluster), "%s", own.who.cluster);
    return ST_OK;
}

/* Opens the audit log; from here on lines of it are written. */
static enum status open_auditlog(struct daemon *d)
{
    char path[LIMIT_PATH], refused[LIMIT_PATH];
    const struct auditlog_options options = { .path = path, .refused = refused, .log = &d->log };
    enum status st = paths_join(&d->paths, path, sizeof(path), "state/audit.log");
    if (st == ST_OK)
        st = paths_join(&d->paths, refused, sizeof(refused), "state/refused.log");
    if (st == ST_OK)
        st = auditlog_open(&options, &d->auditlog);
    d->access.auditlog = d->auditlog;
    d->api.auditlog = d->auditlog;
    return st;
}

/* Takes what callers over TCP have to show. Tokens of generations outlive this process, and may be
 * shown to one that listens. */
static enum status take_access(struct daemon *d)
{
    d->access.invites = &d->api.invites;
    const enum status st = place_seal(&d->paths, &d->log, d->access.seal);
    d->refused = st == ST_REFUSED;
    if (st != ST_OK || d->options.listen == NULL)
        return st;
    return d->options.tls.cert != NULL ? take_identity(d)
                                       : place_token(&d->paths, &d->log, d->access.token);
}

/* Workers of before an update, or whose coordinator lost its key, have tokens that don't show who
 * made them: the journal knows those. */
static enum status take_tokens(struct daemon *d)
{
    const size_t count = coord_jobs(d->coord, NULL, 0);
    auto_free struct coord_job **jobs = calloc(count ? count : 1, sizeof(struct coord_job *));
    d->access.known = calloc(count ? count : 1, sizeof(d->access.known[0]));
    if (jobs == NULL || d->access.known == NULL)
        return ST_NO_MEMORY;
    (void)coord_jobs(d->coord, jobs, count);
    for (size_t i = 0; i < count; i++) {
        const char *token = jobs[i]->m.token;
        if (strlen(token) != IDENTITY_TOKEN - 1 || fsm_state_final(jobs[i]->m.state) ||
            identity_sealed(d->access.seal, token))
            continue;
        (void)snprintf(d->access.known[d->access.known_count++], IDENTITY_TOKEN, "%s", token);
    }
    if (d->access.known_count > 0) {
        LOG_INFO(&d->log, "%zu jobs run with tokens that state/seal didn't make: they count",
                 d->access.known_count);
    }
    return ST_OK;
}

static void seal_token(void *arg, char *token)
{
    const struct daemon *d = arg;
    identity_seal(d->access.seal, token);
}

/* ---- the store's answers come by mailbox ---- */

struct store_answer {
    struct rpc_task task; /* first */
    struct daemon *daemon;
    struct store_task *done;
};

static void take_answer(struct rpc_task *task)
{
    struct store_answer *answer = (struct store_answer *)task;
    coord_store_done(answer->daemon->coord, answer->done);
    free(answer);
}

static void store_done(void *arg, struct store_task *done)
{
    struct daemon *d = arg;
    struct store_answer *answer = calloc(1, sizeof(*answer));
    CHECK(answer != NULL);
    answer->task.run = take_answer;
    answer->daemon = d;
    answer->done = done;
    rpc_mailbox_post(d->mailbox, &answer->task);
}

static void store_hangs(void *arg, const char *store, uint32_t count)
{
    const struct daemon *d = arg;
    LOG_WARN(&d->log, "%u calls hang in the checkpoint store %s", count, store);
}

static void log_chunk(void *arg, const Cairn__V1__LogChunk *chunk)
{
    api_logs_chunk(arg, chunk);
}

/* ---- start ---- */

/* This process gets on. */
static void beat(void *arg)
{
    struct daemon *d = arg;
    watchdog_beat(&d->watchdog);
}

/* Two coordinators are kept apart by locks, and SQLite by memory that all who open it share: NFS
 * has neither for sure; what is like it must at least lock. */
static enum status check_home(const struct daemon *d, const char *state)
{
    const bool nfs = fault_status("home.nfs") != ST_OK;
    const enum io_mount kind = nfs ? IO_MOUNT_NFS : io_mount_of(state);
    if (kind == IO_MOUNT_LOCAL || (kind == IO_MOUNT_OTHER && io_locks(state)))
        return ST_OK;
    LOG_ERROR(&d->log,
              "%s %s: no place for the journal. Set CAIRN_HOME to a folder on a disk of this "
              "machine; checkpoints may stay where they are (checkpoint.store)",
              state, kind == IO_MOUNT_NFS ? "is on NFS" : "is on a file system without locks");
    return ST_CONFIG;
}

/* A journal that isn't there any more, or can't be read, is nobody's to guess: a person decides. */
static void refuse_journal(struct daemon *d, enum status why, const char *text)
{
    d->refused = true;
    LOG_ERROR(&d->log,
              "%s/state/cairnd.db, the journal: %s. Nothing was changed. %s put a backup in its "
              "place (made by 'cairnd --backup'), or make it anew from the jobs' checkpoints: "
              "cairnd --recover --state %s/state STORE..., with every store that they are in%s",
              d->paths.home, text, why == ST_VERSION ? "Start that version, or" : "Either",
              d->paths.home,
              why == ST_NOT_FOUND ? "; or begin with an empty home: another CAIRN_HOME" : "");
}

static enum status look_at_journal(struct daemon *d, const char *state)
{
    struct reason why = { "" };
    const enum status st = rebuild_look(state, &(struct journal_watch){ beat, d }, &why);
    if (st == ST_NOT_FOUND || st == ST_CORRUPT || st == ST_VERSION) {
        refuse_journal(d, st, why.text);
    } else if (st != ST_OK) {
        LOG_ERROR(&d->log, "%s/%s: %s", state, REBUILD_JOURNAL,
                  why.text[0] ? why.text : status_string(st));
    }
    return st;
}

static enum status open_journal(struct daemon *d)
{
    char path[LIMIT_PATH];
    enum status st = paths_join(&d->paths, path, sizeof(path), "state");
    if (st == ST_OK)
        st = io_mkdir_all(io_system(), path);
    if (st == ST_OK) {
        st = check_home(d, path);
        if (st == ST_OK)
            st = look_at_journal(d, path);
        if (st != ST_OK)
            return st;
    }
    if (st == ST_OK)
        st = paths_join(&d->paths, path, sizeof(path), "state/cairnd.db");
    if (st == ST_OK)
        st = journal_open_watched(path, &(struct journal_watch){ beat, d }, &d->journal);
    if (st == ST_EXISTS) {
        LOG_ERROR(&d->log, "%s: another cairnd serves this home", path);
    } else if (st != ST_OK) {
        LOG_ERROR(&d->log, "%s: %s", path, status_string(st));
    } else if (journal_is_exposed(d->journal)) {
        LOG_WARN(&d->log,
                 "%s holds secrets, belongs to another user, and others may read it: give it to "
                 "cairnd's user (chown), or take their rights away (chmod 600)",
                 path);
    }
    return st;
}

static enum status open_core(struct daemon *d)
{
    enum status st = ckpt_store_new(&d->checkpoints);
    if (st != ST_OK)
        return st;
    struct store_queue_options store = {
        .io = ckpt_store_io(d->checkpoints), .done = store_done, .hung = store_hangs, .arg = d
    };
    st = rpc_mailbox_new(&d->mailbox);
    if (st == ST_OK)
        st = store_queue_new(&store, &d->store);
    if (st != ST_OK)
        return st;
    struct coord_options options = { .clock = clock_system(),
                                     .log = &d->log,
                                     .journal = d->journal,
                                     .store = store_queue_port(d->store),
                                     .random = random_bytes,
                                     .seal = seal_token,
                                     .seal_arg = d,
                                     .hang_ms = d->options.times.hang_ms,
                                     .restarts = d->options.restarts,
                                     .beat_ms = d->options.times.beat_ms,
                                     .lost_ms = d->options.times.lost_ms,
                                     .descriptors = io_descriptors_raise(),
                                     .loading = beat,
                                     .loading_arg = d,
                                     .summary = api_summary,
                                     .log_chunk = log_chunk,
                                     .space = journal_reserve,
                                     .log_arg = &d->api };
    st = coord_new(&options, &d->coord);
    d->api.coord = d->coord;
    d->api.log = &d->log;
    return st;
}

static enum status make_server(struct daemon *d)
{
    size_t size;
    const uint8_t *descriptors = proto_descriptors(&size);
    d->descdb = rpc_descdb_new();
    enum status st = rpc_descdb_add(d->descdb, descriptors, size);
    struct rpc_server_options options = { .descdb = d->descdb,
                                          .executor = rpc_mailbox_executor(d->mailbox),
                                          .authorize = access_authorize,
                                          .authorize_ctx = &d->access,
                                          .first_size_max = LIMIT_HELLO_BYTES,
                                          .send_queue_max = SEND_QUEUE };
    d->server = rpc_server_new(&options);
    if (st == ST_OK)
        st = api_open(&d->api, d->server);
    if (st == ST_OK)
        st = rpc_health_new(d->server, &d->health);
    if (st == ST_OK)
        st = rpc_reflection_new(d->server, &d->reflection);
    static const char *const services[] = { "", "cairn.v1.Control", "cairn.v1.Fleet",
                                            "cairn.v1.Training" };
    for (size_t i = 0; st == ST_OK && i < sizeof(services) / sizeof(services[0]); i++)
        st = rpc_health_set(d->health, services[i], true);
    return st;
}

static enum status listen_unix(struct daemon *d)
{
    char address[LIMIT_PATH];
    enum status st = paths_socket(&d->paths, address, sizeof(address));
    if (st != ST_OK)
        return st;
    const char *path = address + strlen("unix:");
    st = rpc_server_listen_unix(d->server, path);
    if (st != ST_OK) {
        LOG_ERROR(&d->log, "%s: %s", path, status_string(st));
        return st;
    }
    LOG_INFO(&d->log, "serving on %s", path);
    return ST_OK;
}

/* Refuses to listen there: trying again mends nothing. But a coordinator that served there, and was
 * killed, tries on: another program that took its port meanwhile may leave it. */
static enum status refuse_listen(struct daemon *d, const char *served, enum status st)
{
    const char *why = st == ST_EXISTS      ? "the address is in use by another program"
                      : st == ST_NOT_FOUND ? "this machine has no such address"
                      : st == ST_REFUSED   ? "permission denied: ports below 1024 are root's"
                                           : status_string(st);
    d->refused = st != ST_EXISTS || access(served, F_OK) != 0;
    LOG_ERROR(&d->log, "--listen %s: %s", d->options.listen, why);
    return st;
}

static enum status listen_tcp(struct daemon *d)
{
    char path[LIMIT_PATH], *address = d->address;
    int port;
    enum status st = paths_join(&d->paths, path, sizeof(path), "cairnd.addr");
    if (st != ST_OK)
        return st;
    if (d->options.listen == NULL) {
        (void)unlink(path); /* the file of a coordinator that listened before */
        return ST_OK;
    }
    st = rpc_server_listen(d->server, d->options.listen,
                           d->options.tls.cert != NULL ? &d->options.tls : NULL, &port);
    if (st != ST_OK)
        return refuse_listen(d, path, st);
    const char *colon = strrchr(d->options.listen, ':');
    (void)snprintf(address, sizeof(d->address), "%.*s:%d", (int)(colon - d->options.listen),
                   d->options.listen, port);
    LOG_INFO(&d->log, "serving on %s", address);
    return io_replace(io_system(), path, address, strlen(address));
}

static enum status daemon_start(struct daemon *d)
{
    watchdog_open(&d->watchdog);
    beat(d); /* nothing before this depends on how much there is */
    enum status st = place_home(&d->paths, &d->log);
    d->refused = st == ST_REFUSED;
    if (st == ST_OK)
        st = take_signals(d);
    if (st == ST_OK)
        st = open_journal(d);
    if (st == ST_OK)
        st = take_access(d);
    if (st == ST_OK)
        st = open_auditlog(d);
    if (st != ST_OK)
        return st;
    rpc_log_to(&d->log);
    rpc_init();
    st = open_core(d);
    if (st == ST_OK)
        st = take_tokens(d);
    if (st == ST_OK)
        st = make_server(d);
    if (st == ST_OK)
        st = listen_unix(d);
    if (st == ST_OK)
        st = listen_tcp(d);
    if (st != ST_OK && !d->refused) /* or it has been said */
        LOG_ERROR(&d->log, "can't start: %s", status_string(st));
    if (st != ST_OK)
        return st;
    rpc_server_start(d->server);
    watchdog_ready(&d->watchdog);
    watchdog_status(&d->watchdog, "serves %s/cairnd.sock%s%s", d->paths.home,
                    d->address[0] ? " and " : "", d->address);
    return ST_OK;
}

/* ---- the loop ---- */

static int wait_ms(struct daemon *d, int64_t of_core)
{
    int64_t at = api_deadline(&d->api), by = coord_commit_by(d->coord);
    if (of_core < at)
        at = of_core;
    if (by != 0 && by < at)
        at = by;
    const int every_ms = watchdog_every_ms(&d->watchdog);
    const int64_t wait_max = every_ms >= 0 ? every_ms : 60000;
    if (at == INT64_MAX)
        return (int)wait_max;
    int64_t ms = at - clock_mono_ms(clock_system());
    if (ms < 0)
        return 0;
    return (int)(ms < wait_max ? ms : wait_max);
}

static bool asked_to_end(struct daemon *d)
{
    struct signalfd_siginfo info;
    if (read(d->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return false;
    if (info.ssi_signo == SIGTERM && watchdog_watched(&d->watchdog)) {
        LOG_INFO(&d->log, "SIGTERM: left to the supervisor, which has the jobs saved first");
        return false;
    }
    LOG_INFO(&d->log, "signal %u: ending; training goes on", info.ssi_signo);
    watchdog_stopping(&d->watchdog, STOP_GRACE_MS);
    watchdog_status(&d->watchdog, "ends; training goes on");
    return true;
}

/* Ends the group: what was applied is journalled, and only then told to anybody. */
static void end_group(struct daemon *d)
{
    if (coord_commit(d->coord) == ST_OK)
        api_release(&d->api);
}

/* Ends the group as soon as anybody waits for it. Until then people are told nothing of what it
 * did, either. */
static void end_group_in_time(struct daemon *d)
{
    if (coord_commit_by(d->coord) > clock_mono_ms(clock_system()) && !api_waits(&d->api))
        return;
    end_group(d);
    api_pump(&d->api);
    (void)coord_commit(d->coord); /* what the pump asked agents for */
}

/* While a group lingers, what comes is taken every LOOK_MS, not message by message: whoever waits
 * for an answer in a time so busy waits that much longer. */
static int wait_for_news(struct daemon *d, int64_t of_core, struct pollfd fds[2])
{
    const bool lingers = coord_commit_by(d->coord) != 0;
    const int ms = wait_ms(d, of_core);
    fds[1].revents = 0;
    return poll(fds, lingers ? 1 : 2, lingers && ms > LOOK_MS ? LOOK_MS : ms);
}

static enum status daemon_run(struct daemon *d)
{
    struct pollfd fds[] = { { .fd = d->signal_fd, .events = POLLIN },
                            { .fd = rpc_mailbox_fd(d->mailbox), .events = POLLIN } };
    while (coord_failed(d->coord) == ST_OK) {
        int64_t deadline = coord_deadline(d->coord);
        int ready = wait_for_news(d, deadline, fds);
        if (ready < 0 && errno != EINTR)
            return status_from_errno(errno);
        coord_wake(d->coord);
        (void)rpc_mailbox_drain(d->mailbox, GROUP_MAX);
        if (deadline <= clock_mono_ms(clock_system()))
            coord_tick(d->coord);
        end_group_in_time(d);
        beat(d);
        if ((fds[0].revents & POLLIN) && asked_to_end(d))
            return ST_OK;
    }
    return coord_failed(d->coord);
}

/*
 * Nothing needs to be saved here: the journal holds everything. The server is given a moment to end
 * its streams, so that callers hear of it at once.
 */
static void daemon_stop(struct daemon *d)
{
    char path[LIMIT_PATH];
    if (paths_join(&d->paths, path, sizeof(path), "cairnd.addr") == ST_OK)
        (void)unlink(path);
    end_group(d); /* a group may linger */
    rpc_health_drain(d->health);
    api_close(&d->api);
    rpc_server_stop_begin(d->server, STOP_GRACE_MS);
    struct pollfd fd = { .fd = rpc_mailbox_fd(d->mailbox), .events = POLLIN };
    while (!rpc_server_stopped(d->server)) {
        (void)poll(&fd, 1, 20);
        (void)rpc_mailbox_drain(d->mailbox, GROUP_MAX);
        end_group(d);
    }
    ckpt_store_close(d->checkpoints); /* what is cut off is done again by the next cairnd */
    store_queue_free(d->store);
    ckpt_store_free(d->checkpoints);
    (void)rpc_mailbox_drain(d->mailbox, UINT32_MAX);
    rpc_server_free(d->server);
    rpc_health_free(d->health);
    rpc_reflection_free(d->reflection);
    rpc_descdb_free(d->descdb);
    api_pump(&d->api);
    api_free(&d->api);
    coord_free(d->coord);
    rpc_mailbox_free(d->mailbox);
    journal_close(d->journal);
    auditlog_close(d->auditlog);
    free(d->access.known);
    rpc_shutdown();
}

/* A journal that is large isn't read through at the start; any may be damaged later. */
static int fail(struct daemon *d, enum status st)
{
    if (st == ST_CORRUPT && !d->refused && d->journal != NULL && journal_error(d->journal)[0])
        refuse_journal(d, st, "it is damaged");
    return d->refused ? WATCHDOG_REFUSED : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    struct daemon d = { .log = log_open("cairnd"), .signal_fd = -1 };
    int code = options_take(&d.options, argc, argv);
    if (code >= 0)
        return code;
    if (d.options.backup != NULL)
        return offline_back_up(&d.options);
    if (d.options.recover)
        return offline_recover(&d.options);
    enum status st = daemon_start(&d);
    if (st != ST_OK)
        return fail(&d, st); /* the process's end cleans up what was opened */
    st = daemon_run(&d);
    if (st != ST_OK)
        return fail(&d, st);
    daemon_stop(&d);
    return EXIT_SUCCESS;
}
