/* The agent's loop: orders of the coordinator, a beat every second, signals. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/lacks.h"
#include "agent/leave.h"
#include "agent/messages.h"
#include "agent/trainer.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/host/watchdog.h"
#include "common/log.h"
#include "common/port_range.h"

#define LOCK_TRIES    20
#define LOCK_PAUSE_MS 10
#define BEAT_MS       WATCHDOG_BEAT_MS
#define BEAT_MAX_MS   60000
#define END_MS        5000    /* what its end takes, where trainers run on */
#define LOGS_FIRST_MS 60000   /* after the start: what workers of old jobs wrote is looked at */
#define LOGS_EVERY_MS 3600000 /* and again */
#define LIVE_LOGS_MS  10000   /* from one look at the logs of workers to the next */
/* A beat comes a little early or late. */
#define USAGE_EVERY_NS ((USAGE_EVERY_MS - BEAT_MS / 10) * INT64_C(1000000))

static void repeat_exits(struct agent *agent)
{
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        if (t->record.state == RECORD_EXITED)
            agent_send_exited(agent, t);
    }
}

/* A worker on a GPU that failed computes nothing that can be trusted, or hangs in the driver. */
static void end_on_bad_gpus(struct agent *agent)
{
    struct gpu_state gpus[LIMIT_GPUS];
    size_t count = gpu_read(agent->gpus, gpus, LIMIT_GPUS);
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        uint32_t slot = t->record.slot;
        size_t gpu = slot < agent->options.slots ? count : slot - agent->options.slots;
        if (gpu < count && gpus[gpu].problem[0] != '\0' && t->watched && t->sent == 0) {
            (void)snprintf(t->why_ended, sizeof(t->why_ended), "GPU %zu: %s", gpu,
                           gpus[gpu].problem);
            trainer_end(t, SIGKILL, 0);
        }
    }
}

/* Interfaces and ways change: looked at for every stream. What isn't there now stays as it was. */
static void find_host(struct agent *agent)
{
    const struct agent_options *options = &agent->options;
    char peer[LINK_PEER], host[ADDRESS_TEXT];
    struct reason why = { "" };
    enum status st = ST_OK;
    if (options->host != NULL) {
        (void)snprintf(host, sizeof(host), "%s", options->host);
    } else if (options->interface != NULL) {
        st = address_of_interface(options->interface, host, &why);
    } else {
        st = link_peer(agent->link, agent->epoch, peer);
        if (st == ST_OK)
            st = address_towards(peer, host, &why);
    }
    if (st != ST_OK) {
        LOG_WARN(&agent->log, "this node's address for other nodes, %s as yet: %s", agent->host,
                 why.text[0] != '\0' ? why.text : status_string(st));
    } else if (strcmp(host, agent->host) != 0) {
        LOG_INFO(&agent->log, "workers of other nodes reach those of this one at %s", host);
        memcpy(agent->host, host, sizeof(host));
    }
}

static void send_probed(void *arg, const struct probe_result *result)
{
    agent_send_probed(arg, result);
}

/* Opens the listener for probes at the address that the hello is about to tell. It takes one of the
 * workers' ports, if there are several. */
static void listen_for_probes(struct agent *agent)
{
    struct port_range ports;
    if (agent->probes != NULL && strcmp(agent->probes_at, agent->host) == 0)
        return;
    probes_close(agent->probes);
    agent->probes = NULL;
    memcpy(agent->probes_at, agent->host, sizeof(agent->probes_at));
    enum status st = port_range_parse(agent->options.ports, &ports);
    if (st == ST_OK && port_range_count(ports) == 1)
        st = ST_REFUSED;
    if (st == ST_OK)
        st = probes_open(&agent->loop, agent->host, ports, send_probed, agent, &agent->probes);
    if (st != ST_OK) {
        LOG_WARN(&agent->log,
                 "no port at %s for probes: paths between this node and others can't be tried: %s",
                 agent->host, status_string(st));
    }
}

static void trim_logs(uv_work_t *work)
{
    struct agent *agent = work->data;
    old_logs_trim(&agent->logs);
}

static void logs_trimmed(uv_work_t *work, int status)
{
    struct agent *agent = work->data;
    const struct old_logs *logs = &agent->logs;
    (void)status;
    agent->logs_busy = false;
    agent->logs_at = clock_mono_ms(clock_system()) + LOGS_EVERY_MS;
    if (logs->removed > 0) {
        LOG_INFO(&agent->log,
                 "removed what workers of %" PRIu32 " generations wrote, %" PRIu64 " MiB; %" PRIu64
                 " MiB stay",
                 logs->removed, logs->removed_bytes >> 20,
                 (logs->bytes - logs->removed_bytes) >> 20);
    }
}

static void look_at_logs(struct agent *agent)
{
    struct old_logs *logs = &agent->logs;
    if (agent->logs_busy || clock_mono_ms(clock_system()) < agent->logs_at ||
        paths_join(&agent->paths, logs->folder, sizeof(logs->folder), "jobs") != ST_OK)
        return;
    logs->bytes_max = OLD_LOGS_BYTES;
    logs->quiet_s = OLD_LOGS_QUIET_S;
    logs->now_s = clock_wall_ms(clock_system()) / 1000;
    agent->logs_work.data = agent;
    agent->logs_busy = uv_queue_work(&agent->loop, &agent->logs_work, trim_logs, logs_trimmed) == 0;
}

static void turn_log(uv_work_t *work)
{
    static const char line[] =
        "[cairn: this log was too long; what was before this line is in the "
        "file beside it that ends in " LOG_TURN_SUFFIX ", and what was before that is gone]\n";
    struct log_over *over = &((struct agent *)work->data)->log_over;
    over->status = log_turn(over->path, log_turn_bytes(LOG_WORKER_BYTES), line, &over->turned);
}

static void log_turned(uv_work_t *work, int status)
{
    struct agent *agent = work->data;
    struct log_over *over = &agent->log_over;
    (void)status;
    over->busy = false;
    if (over->turned)
        LOG_INFO(&agent->log, "%s was too long, and begins anew", over->path);
    if (over->status != ST_OK) {
        LOG_WARN(&agent->log, "%s is too long: it can't be turned over: %s", over->path,
                 status_string(over->status));
    }
}

/* Turns over the log of one trainer at a time: the first one that is too long. */
static void look_at_live_logs(struct agent *agent)
{
    struct log_over *over = &agent->log_over;
    const int64_t now = clock_mono_ms(clock_system());
    const uint64_t max = log_turn_bytes(LOG_WORKER_BYTES);
    if (over->busy || now < over->at)
        return;
    over->at = now + LIVE_LOGS_MS;
    for (const struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        struct io_stat about;
        if (!t->watched || agent->io->stat(agent->io->self, t->files.log, &about) != ST_OK ||
            about.size <= max)
            continue;
        (void)snprintf(over->path, sizeof(over->path), "%s", t->files.log);
        over->work.data = agent;
        over->busy = uv_queue_work(&agent->loop, &over->work, turn_log, log_turned) == 0;
        over->at = now; /* the next one right after */
        return;
    }
}

/* Samples what the node and its trainers use. Nobody waits for that, and nothing depends on it. */
static void look_at_usage(struct agent *agent)
{
    const int64_t now_ns = clock_mono_ns();
    if (agent->usage.samples > 0 && now_ns - agent->usage.at_ns < USAGE_EVERY_NS)
        return;
    if (usage_machine_sample(&agent->usage, now_ns) != ST_OK)
        return;
    agent->usage_new = true;
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        if (!t->watched || usage_process_sample(&t->usage, (pid_t)t->record.pid,
                                                t->record.start_time, now_ns) != ST_OK)
            t->usage.samples = 0;
    }
}

static void tell_status(const struct agent *agent)
{
    const char *leaves = agent->leave.state == LEAVE_NOT    ? ""
                         : agent->leave.state == LEAVE_AWAY ? "; the node has left"
                                                            : "; leaving";
    watchdog_status(agent->options.watchdog, "node %s, %zu trainers, %s %s%s", agent->options.node,
                    agent->trainer_count, agent->epoch != 0 ? "connected to" : "no connection to",
                    agent->options.coordinator, leaves);
}

static void on_beat(uv_timer_t *timer)
{
    struct agent *agent = timer->data;
    watchdog_beat(agent->options.watchdog);
    tell_status(agent);
    oom_watch_sample(&agent->oom, proc_oom_kills());
    end_on_bad_gpus(agent);
    look_at_logs(agent);
    look_at_live_logs(agent);
    look_at_usage(agent);
    if (agent->first)
        trainer_reap_others(agent);
    const int64_t now = clock_mono_ms(clock_system());
    if (agent->epoch == 0 || now < agent->beat_at)
        return;
    agent->beat_at = now + agent->beat_ms - BEAT_MS / 2; /* the timer has steps of BEAT_MS */
    agent_send_beat(agent);
    repeat_exits(agent);
}

static void take_start(struct agent *agent, const Cairn__V1__StartTrainer *order)
{
    struct ref ref;
    if (ref_from_wire(order->ref, &ref) != ST_OK) {
        LOG_WARN(&agent->log, "order to start a trainer without a usable name, ignoring");
    } else if (agent->leave.state != LEAVE_NOT && trainer_find(agent, &ref) == NULL) {
        agent_send_no_trainer(agent, &ref, CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED,
                              "this agent leaves");
    } else {
        trainer_start(agent, &ref, order);
    }
}

static void take_end(struct agent *agent, const Cairn__V1__EndTrainer *order)
{
    struct ref ref;
    if (ref_from_wire(order->ref, &ref) != ST_OK) {
        LOG_WARN(&agent->log, "order to end a trainer without a usable name, ignoring");
        return;
    }
    struct trainer *trainer = trainer_find(agent, &ref);
    int number = order->signal > 0 && order->signal <= SIGRTMAX ? order->signal : SIGTERM;
    if (trainer != NULL) {
        trainer_end(trainer, number, order->grace_ms);
    } else {
        agent_send_no_trainer(agent, &ref, CAIRN__V1__TRAINER_EXITED__CAUSE__CAUSE_UNSPECIFIED,
                              "this agent knows no such trainer");
    }
}

static void take_ack(struct agent *agent, const Cairn__V1__ExitAck *order)
{
    struct ref ref;
    if (ref_from_wire(order->ref, &ref) != ST_OK)
        return;
    struct trainer *trainer = trainer_find(agent, &ref);
    if (trainer != NULL && trainer->record.state == RECORD_EXITED)
        trainer_acknowledged(trainer);
}

static void take_probe(struct agent *agent, const Cairn__V1__Probe *order)
{
    const bool has_token = order->token.len == MEASURE_TOKEN;
    const struct measure_ask ask = { .id = order->id,
                                     .host = order->host,
                                     .port = order->port,
                                     .token = order->token.data,
                                     .ms = order->measure_ms,
                                     .bytes_max = order->measure_bytes };
    if (order->measure_ms > 0 && has_token) {
        probes_measure(agent->probes, &ask);
        return;
    }
    if (has_token)
        probes_expect(agent->probes, order->token.data);
    probes_start(agent->probes, order->id, order->host, order->port);
}

/* NULL: of a coordinator that says nothing of it. */
static void take_beat_interval(struct agent *agent, const Cairn__V1__AgentIntervals *intervals)
{
    const uint32_t beat_ms = intervals != NULL ? intervals->beat_ms : 0;
    agent->beat_ms = beat_ms > BEAT_MAX_MS ? BEAT_MAX_MS : beat_ms;
    if (intervals != NULL)
        link_set_spread(agent->link, intervals->spread_ms);
}

static void take_order(struct agent *agent, const Cairn__V1__AgentOrder *order)
{
    switch (order->body_case) {
    case CAIRN__V1__AGENT_ORDER__BODY_WELCOME:
        LOG_INFO(&agent->log, "welcomed by a coordinator of version %s",
                 order->welcome->coordinator_version);
        agent->formerly_count = 0;
        take_beat_interval(agent, order->welcome->intervals);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_START:
        take_start(agent, order->start);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_END:
        take_end(agent, order->end);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK:
        take_ack(agent, order->exit_ack);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_FORGET:
        copies_forget(&agent->copies, order->forget->job);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_LOG:
        agent_send_log(agent, order->log);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_NOTICE:
        LOG_WARN(&agent->log, "the coordinator says: %.400s", order->notice->message);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_INTERVALS:
        take_beat_interval(agent, order->intervals);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_PROBE:
        take_probe(agent, order->probe);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY__NOT_SET:
    case _CAIRN__V1__AGENT_ORDER__BODY__CASE_IS_INT_SIZE:
        LOG_WARN(&agent->log, "an order that this version doesn't know, ignoring");
        break;
    }
}

static void on_wake(uv_async_t *async)
{
    struct agent *agent = async->data;
    while (agent->link != NULL) {
        struct link_event event = link_next(agent->link);
        switch (event.kind) {
        case LINK_NOTHING:
            return;
        case LINK_UP:
            if (agent->leave.state == LEAVE_SAID)
                break; /* that stream never has a hello */
            agent->epoch = event.epoch;
            find_host(agent);
            listen_for_probes(agent);
            agent_send_hello(agent);
            repeat_exits(agent);
            break;
        case LINK_DOWN:
            agent->epoch = 0;
            break;
        case LINK_ORDER:
            take_order(agent, event.order);
            protobuf_c_message_free_unpacked(&event.order->base, NULL);
            break;
        }
    }
}

static void on_signal(uv_poll_t *poll_handle, int status, int events)
{
    (void)status;
    (void)events;
    struct agent *agent = poll_handle->data;
    struct signalfd_siginfo info;
    if (read(agent->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGTERM && watchdog_watched(agent->options.watchdog)) {
        LOG_INFO(&agent->log, "SIGTERM: left to the supervisor, which has the jobs saved first");
        return;
    }
    if (info.ssi_signo == SIGUSR1 ||
        (info.ssi_signo == SIGTERM && (agent->options.leaves || agent->leave.state != LEAVE_NOT))) {
        leave_begin(agent, info.ssi_signo == SIGUSR1);
        return;
    }
    LOG_INFO(&agent->log, "ending on signal %u, trainers run on", info.ssi_signo);
    watchdog_stopping(agent->options.watchdog, END_MS);
    uv_stop(&agent->loop);
}

static enum status open_signals(struct agent *agent)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR1);
    agent->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return agent->signal_fd >= 0 ? ST_OK : status_from_errno(errno);
}

/* Locks this agent's name in this home: two agents of one name would adopt each other's
 * trainers. */
static enum status take_lock(struct agent *agent)
{
    char path[LIMIT_PATH];
    enum status st = paths_join(&agent->paths, path, sizeof(path), "agent");
    if (st == ST_OK)
        st = io_mkdir_all(agent->io, path);
    if (st == ST_OK)
        st = paths_join(&agent->paths, path, sizeof(path), "agent/%s.lock", agent->options.node);
    if (st != ST_OK)
        return st;
    agent->lock_fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    if (agent->lock_fd < 0)
        return status_from_errno(errno);
    for (int i = 0; flock(agent->lock_fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if (errno != EWOULDBLOCK)
            return status_from_errno(errno);
        if (i == LOCK_TRIES)
            return ST_EXISTS;
        (void)poll(NULL, 0, LOCK_PAUSE_MS); /* another agent's note_former has it for a moment */
    }
    return ST_OK;
}

/* A name whose agent runs no more: nobody has its lock. */
static bool note_former(void *arg, const char *name)
{
    struct agent *agent = arg;
    char path[LIMIT_PATH], node[LIMIT_NAME];
    const size_t size = strlen(name);
    if (size <= 5 || size - 5 >= sizeof(node) || strcmp(name + size - 5, ".lock") != 0 ||
        paths_join(&agent->paths, path, sizeof(path), "agent/%s", name) != ST_OK)
        return true;
    (void)snprintf(node, sizeof(node), "%.*s", (int)(size - 5), name);
    if (strcmp(node, agent->options.node) == 0)
        return true;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        (void)snprintf(agent->formerly[agent->formerly_count++], LIMIT_NAME, "%s", node);
        LOG_INFO(&agent->log, "an agent of this home was node %s before", node);
    }
    if (fd >= 0)
        (void)close(fd); /* and the lock with it */
    return agent->formerly_count < FORMERLY_MAX;
}

static enum status find_former_names(struct agent *agent)
{
    char folder[LIMIT_PATH];
    const enum status st = paths_join(&agent->paths, folder, sizeof(folder), "agent");
    return st == ST_OK ? agent->io->list(agent->io->self, folder, note_former, agent) : st;
}

static enum status open_agent(struct agent *agent, const struct agent_options *options)
{
    agent->options = *options;
    agent->io = io_system();
    agent->log = log_open("cairn-agent");
    agent->log.node = options->node;
    agent->signal_fd = -1;
    agent->lock_fd = -1;
    agent->started_ms = proc_since_boot_ms();
    enum status st = paths_open(&agent->paths);
    if (st == ST_OK)
        st = proc_boot_id(agent->boot_id, sizeof(agent->boot_id));
    if (st == ST_OK)
        st = proc_pid_space(agent->pid_space, sizeof(agent->pid_space));
    agent->first = getpid() == 1;
    if (st == ST_OK)
        st = take_lock(agent);
    if (st == ST_OK)
        copies_open(&agent->copies, &agent->paths, options->node, &agent->log);
    if (st == ST_OK)
        st = find_former_names(agent);
    if (st == ST_OK)
        st = open_signals(agent);
    if (st == ST_OK)
        st = gpu_watch_open(options->nvml, &agent->log, &agent->gpus);
    return st;
}

static void close_agent(struct agent *agent)
{
    gpu_watch_close(agent->gpus);
    if (agent->signal_fd >= 0)
        (void)close(agent->signal_fd);
    if (agent->lock_fd >= 0)
        (void)close(agent->lock_fd);
}

/* The system may refuse what a loop is made of: descriptors, epoll, eventfd. */
static enum status make_loop(struct agent *agent)
{
    int error = uv_loop_init(&agent->loop);
    if (error != 0)
        return status_from_errno(-error);
    error = uv_poll_init(&agent->loop, &agent->signals, agent->signal_fd);
    if (error == 0) {
        error = uv_async_init(&agent->loop, &agent->wake, on_wake);
        if (error != 0)
            uv_close((uv_handle_t *)&agent->signals, NULL);
    }
    if (error != 0) {
        (void)uv_run(&agent->loop, UV_RUN_DEFAULT);
        (void)uv_loop_close(&agent->loop);
    }
    return error == 0 ? ST_OK : status_from_errno(-error);
}

static enum status open_loop(struct agent *agent)
{
    enum status st = make_loop(agent);
    if (st != ST_OK)
        return st;
    CHECK(uv_timer_init(&agent->loop, &agent->beat) == 0);
    agent->wake.data = agent;
    agent->beat.data = agent;
    agent->signals.data = agent;
    const int every_ms = watchdog_every_ms(agent->options.watchdog);
    const uint64_t beat_ms = every_ms > 0 ? (uint64_t)every_ms : BEAT_MS;
    CHECK(uv_timer_start(&agent->beat, on_beat, beat_ms, beat_ms) == 0);
    CHECK(uv_poll_start(&agent->signals, UV_READABLE, on_signal) == 0);
    leave_open(agent);
    return ST_OK;
}

static void close_loop(struct agent *agent)
{
    atomic_store(&agent->logs.stop, true);
    while (agent->trainers != NULL)
        trainer_let_go(agent->trainers);
    probes_close(agent->probes);
    uv_close((uv_handle_t *)&agent->wake, NULL);
    uv_close((uv_handle_t *)&agent->beat, NULL);
    uv_close((uv_handle_t *)&agent->signals, NULL);
    leave_close(agent);
    (void)uv_run(&agent->loop, UV_RUN_DEFAULT); /* the closings */
    CHECK(uv_loop_close(&agent->loop) == 0);
}

static void adopt_record(void *arg, const char *path)
{
    trainer_adopt(arg, path);
}

enum status agent_run(const struct agent_options *options)
{
    struct agent agent = { .logs_at = clock_mono_ms(clock_system()) + LOGS_FIRST_MS,
                           .host = ADDRESS_LOOPBACK };
    enum status st = open_agent(&agent, options);
    if (st == ST_OK)
        st = open_loop(&agent);
    if (st != ST_OK) {
        LOG_ERROR(&agent.log, "can't work in %s: %s", agent.paths.home,
                  st == ST_EXISTS ? "another agent of this name does" : status_string(st));
        close_agent(&agent);
        return st;
    }
    lacks_warn(&agent.log);
    oom_watch_init(&agent.oom, proc_oom_kills());
    st = record_list(agent.io, &agent.paths, adopt_record, &agent);
    if (st != ST_OK)
        LOG_ERROR(&agent.log, "records of trainers: %s", status_string(st));
    if (st == ST_OK)
        st = agent_connect(&agent);
    if (st == ST_OK) {
        watchdog_ready(options->watchdog);
        (void)uv_run(&agent.loop, UV_RUN_DEFAULT);
    }
    agent_disconnect(&agent);
    close_loop(&agent);
    close_agent(&agent);
    return st;
}
