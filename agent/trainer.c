#include "agent/trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/last_words.h"
#include "agent/messages.h"
#include "agent/spawn.h"
#include "common/check.h"
#include "common/fault.h"

enum {
    TRAINERS_MAX = 4 * LIMIT_SLOTS, /* running and not acknowledged */
    INTENT_TRIES = 500,             /* of INTENT_WAIT_MS, to find a process that is being made */
    INTENT_WAIT_MS = 10,
    REAP_MAX = 1024, /* at a time */
    LOOK_MS = 100,   /* where there are no pidfds */
};

struct trainer *trainer_find(const struct agent *agent, const struct ref *ref)
{
    struct trainer *trainer = agent->trainers;
    while (trainer != NULL && !ref_equal(&trainer->record.ref, ref))
        trainer = trainer->next;
    return trainer;
}

/* The agent's log, with this trainer's ids. */
static struct log log_of(const struct trainer *trainer)
{
    struct log log = trainer->agent->log;
    log.job = trainer->record.ref.job;
    log.rank = trainer->record.ref.rank;
    log.generation = trainer->record.ref.generation;
    return log;
}

static void write_record(struct trainer *trainer)
{
    struct log log = log_of(trainer);
    struct agent *agent = trainer->agent;
    enum status st = record_write(agent->io, &agent->paths, &trainer->record);
    if (st != ST_OK) /* only an agent's death would now be noticed */
        LOG_ERROR(&log, "record of the trainer: %s, ignoring", status_string(st));
}

/* Linked, with no handle open. NULL: no memory, or a path too long. */
static struct trainer *new_trainer(struct agent *agent, const struct record *record)
{
    struct trainer *trainer = calloc(1, sizeof(*trainer));
    if (trainer == NULL)
        return NULL;
    trainer->agent = agent;
    trainer->record = *record;
    trainer->pidfd = -1;
    if (ref_files(&record->ref, &agent->paths, &trainer->files) != ST_OK) {
        free(trainer);
        return NULL;
    }
    trainer->next = agent->trainers;
    agent->trainers = trainer;
    agent->trainer_count++;
    return trainer;
}

static void on_closed(uv_handle_t *handle)
{
    struct trainer *trainer = handle->data;
    trainer->handles--;
    if (trainer->handles == 0 && trainer->forgotten)
        free(trainer);
}

static void unwatch(struct trainer *trainer)
{
    if (trainer->watched) {
        trainer->watched = false;
        uv_close(trainer->pidfd >= 0 ? (uv_handle_t *)&trainer->poll
                                     : (uv_handle_t *)&trainer->looks,
                 on_closed);
        uv_close((uv_handle_t *)&trainer->grace, on_closed);
    }
    if (trainer->pidfd >= 0)
        (void)close(trainer->pidfd);
    trainer->pidfd = -1;
}

/* Out of the list; freed once libuv has closed its handles. */
static void trainer_forget(struct trainer *trainer)
{
    CHECK(!trainer->forgotten);
    unwatch(trainer);
    struct trainer **link = &trainer->agent->trainers;
    while (*link != trainer)
        link = &(*link)->next;
    *link = trainer->next;
    trainer->agent->trainer_count--;
    trainer->forgotten = true;
    if (trainer->handles == 0)
        free(trainer);
}

void trainer_let_go(struct trainer *trainer)
{
    trainer_forget(trainer);
}

void trainer_acknowledged(struct trainer *trainer)
{
    struct agent *agent = trainer->agent;
    struct log log = log_of(trainer);
    enum status st = record_remove(agent->io, &agent->paths, &trainer->record.ref);
    if (st != ST_OK)
        LOG_ERROR(&log, "removing the record of the trainer: %s, ignoring", status_string(st));
    trainer_forget(trainer);
}

static void set_exited(struct trainer *trainer, const struct exit_cause *cause)
{
    struct log log = log_of(trainer);
    CHECK(trainer->record.state != RECORD_EXITED);
    CHECK(!trainer->watched);
    fault_point("agent.exit_seen");
    trainer->record.state = RECORD_EXITED;
    trainer->record.exit = *cause;
    write_record(trainer);
    fault_point("agent.exit_recorded");
    char text[LIMIT_REASON + 64];
    exit_cause_text(cause, text, sizeof(text));
    LOG_INFO(&log, "trainer %" PRId64 " %s", trainer->record.pid, text);
    agent_send_exited(trainer->agent, trainer);
}

/*
 * The leader is dead. As our child it is still a zombie here, so its number is its own; of an
 * adopted one the group's number can't be a new process's while a member lives. Either way this
 * only hits what the trainer left behind.
 */
static void kill_rest(const struct trainer *trainer)
{
    (void)kill(-(pid_t)trainer->record.pid, SIGKILL);
}

/* Kills what a program of the job's own left behind: it makes groups and sessions of its own. */
static void kill_program(const struct trainer *trainer)
{
    char variable[sizeof(PATHS_WORKER_ENV) + LIMIT_PATH];
    if (access(trainer->files.program, F_OK) != 0)
        return;
    (void)snprintf(variable, sizeof(variable), PATHS_WORKER_ENV "=%s", trainer->files.words);
    if (proc_kill_all_with(variable) != ST_OK) {
        struct log log = log_of(trainer);
        LOG_WARN(&log, "processes that its program left behind live on, ignoring");
    }
}

/* The cause, by facts and by what the trainer left behind. */
static struct exit_cause find_cause(const struct trainer *trainer, struct exit_facts *facts)
{
    const struct io *io = trainer->agent->io;
    Cairn__V1__LastWords *words = last_words_read(io, trainer->files.words, &trainer->record.ref);
    facts->words = words;
    last_mark_read(io, trainer->files.flight, facts->last_mark, sizeof(facts->last_mark));
    struct exit_cause cause = exit_cause_decide(facts);
    last_words_free(words);
    return cause;
}

/* Handles the death of a trainer: finds its cause, and records its exit. */
static void trainer_died(struct trainer *trainer)
{
    struct agent *agent = trainer->agent;
    struct exit_facts facts = { .sent = trainer->sent };
    const idtype_t kind = trainer->pidfd >= 0 ? P_PIDFD : P_PID;
    const id_t id = (id_t)(trainer->pidfd >= 0 ? trainer->pidfd : trainer->record.pid);
    facts.waited =
        waitid(kind, id, &facts.info, WEXITED | WNOWAIT | WNOHANG) == 0 && facts.info.si_pid != 0;
    kill_rest(trainer);
    kill_program(trainer);
    if (facts.waited)
        (void)waitid(kind, id, &facts.info, WEXITED);
    if (facts.waited && facts.info.si_code != CLD_EXITED && facts.info.si_status == SIGKILL &&
        trainer->sent != SIGKILL)
        facts.oom_rose = oom_watch_claim(&agent->oom, proc_oom_kills());
    facts.why_sent = trainer->why_ended;
    struct exit_cause cause = find_cause(trainer, &facts);
    unwatch(trainer);
    set_exited(trainer, &cause);
}

static void on_pidfd(uv_poll_t *poll_handle, int status, int events)
{
    (void)status;
    (void)events;
    trainer_died(poll_handle->data);
}

/* True if the process of that number has the recorded start time, and is no zombie. */
static bool is_same_process(const struct record *record)
{
    struct proc_stat stat;
    return proc_stat_read((pid_t)record->pid, &stat) == ST_OK &&
           stat.start_time == record->start_time && stat.state != 'Z' && stat.state != 'X';
}

static bool lives(const struct trainer *trainer)
{
    siginfo_t info = { .si_pid = 0 };
    const id_t pid = (id_t)trainer->record.pid;
    if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0)
        return info.si_pid == 0;
    return is_same_process(&trainer->record); /* no child of ours */
}

static void on_look(uv_timer_t *timer)
{
    struct trainer *trainer = timer->data;
    if (!lives(trainer))
        trainer_died(trainer);
}

/* Watches the process; takes over the pidfd; -1: the system gives none. */
static void watch_process(struct trainer *trainer, int pidfd)
{
    uv_loop_t *loop = &trainer->agent->loop;
    CHECK(!trainer->watched);
    CHECK(trainer->record.state == RECORD_RUNNING);
    if (pidfd >= 0 && uv_poll_init(loop, &trainer->poll, pidfd) != 0) {
        (void)close(pidfd);
        pidfd = -1;
    }
    trainer->pidfd = pidfd;
    (void)uv_timer_init(loop, &trainer->grace); /* timers don't fail */
    trainer->poll.data = trainer;
    trainer->looks.data = trainer;
    trainer->grace.data = trainer;
    trainer->handles = 2;
    trainer->watched = true;
    if (pidfd < 0) {
        (void)uv_timer_init(loop, &trainer->looks);
        (void)uv_timer_start(&trainer->looks, on_look, LOOK_MS, LOOK_MS);
    } else {
        (void)uv_poll_start(&trainer->poll, UV_READABLE, on_pidfd);
    }
}

static bool is_trainer(const struct agent *agent, pid_t pid)
{
    const struct trainer *t = agent->trainers;
    while (t != NULL && (!t->watched || t->record.pid != pid))
        t = t->next;
    return t != NULL;
}

void trainer_reap_others(struct agent *agent)
{
    for (int i = 0; i < REAP_MAX; i++) {
        siginfo_t info = { .si_pid = 0 };
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 ||
            is_trainer(agent,
                       info.si_pid)) /* who watches it tells: what comes after it, next time */
            return;
        (void)waitid(P_PID, (id_t)info.si_pid, &info, WEXITED | WNOHANG);
    }
}

static bool signal_leader(const struct trainer *trainer, int number)
{
    if (trainer->pidfd >= 0 && pidfd_send_signal(trainer->pidfd, number, NULL, 0) == 0)
        return true;
    if (trainer->pidfd >= 0 && errno == ESRCH)
        return false;
    return lives(trainer) && kill((pid_t)trainer->record.pid, number) == 0;
}

static void send_signal(struct trainer *trainer, int number)
{
    CHECK(trainer->watched);
    trainer->sent = number;
    /* If the leader takes it, its number is still its own, and the group may have it as well. */
    if (signal_leader(trainer, number))
        (void)kill(-(pid_t)trainer->record.pid, number);
}

static void on_grace_over(uv_timer_t *timer)
{
    struct trainer *trainer = timer->data;
    struct log log = log_of(trainer);
    LOG_WARN(&log, "trainer %" PRId64 " didn't end in time, killing it", trainer->record.pid);
    send_signal(trainer, SIGKILL);
}

void trainer_end(struct trainer *trainer, int signal_number, uint32_t grace_ms)
{
    if (!trainer->watched) {
        agent_send_exited(trainer->agent, trainer);
        return;
    }
    struct log log = log_of(trainer);
    LOG_INFO(&log, "ending trainer %" PRId64 " with signal %d", trainer->record.pid, signal_number);
    send_signal(trainer, signal_number);
    if (signal_number != SIGKILL)
        (void)uv_timer_start(&trainer->grace, on_grace_over, grace_ms, 0);
}

static void fail_start(struct trainer *trainer, const struct reason *why)
{
    const struct exit_cause cause = { .cause = CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED,
                                      .message = *why };
    set_exited(trainer, &cause);
}

/* The UUID of the GPU behind a slot; "" for a CPU share. ST_NOT_FOUND: there is no such GPU. */
static enum status find_gpu(const struct agent *agent, uint32_t slot, char *out, size_t capacity)
{
    struct gpu_state gpus[LIMIT_GPUS];
    const uint32_t first = agent->options.slots;
    out[0] = '\0';
    if (slot < first)
        return ST_OK;
    if (slot - first >= gpu_read(agent->gpus, gpus, LIMIT_GPUS) || !gpus[slot - first].uuid[0])
        return ST_NOT_FOUND;
    (void)snprintf(out, capacity, "%s", gpus[slot - first].uuid);
    return ST_OK;
}

static enum status make_process(struct trainer *trainer, const Cairn__V1__StartTrainer *order,
                                pid_t *out_pid, struct reason *why)
{
    struct agent *agent = trainer->agent;
    enum status st = io_mkdir_all(agent->io, trainer->files.folder);
    if (st != ST_OK) {
        reason_set(why, "%.400s: %s", trainer->files.folder, status_string(st));
        return st;
    }
    char gpu[64];
    st = find_gpu(agent, order->slot, gpu, sizeof(gpu));
    if (st != ST_OK) {
        reason_set(why, "slot %" PRIu32 " is a GPU that this node doesn't have now", order->slot);
        return st;
    }
    char sums[LIMIT_PATH];
    st = paths_join(&agent->paths, sums, sizeof(sums), "sums/%s", agent->options.node);
    if (st != ST_OK) {
        LOG_WARN(&agent->log, "hashes of data are not kept: %s", status_string(st));
        sums[0] = '\0'; /* the trainer then keeps none */
    }
    char peaks[LIMIT_PATH];
    st = paths_join(&agent->paths, peaks, sizeof(peaks), "peaks/%s", agent->options.node);
    if (st != ST_OK)
        peaks[0] = '\0'; /* as long as that of sums */
    char copies[LIMIT_PATH];
    st = copies_folder(&agent->copies, trainer->record.ref.job, copies);
    if (st != ST_OK)
        LOG_WARN(&agent->log, "no copies in memory outlive the worker: %s", status_string(st));
    const struct spawn_request request = { .program = agent->options.program,
                                           .ref = &trainer->record.ref,
                                           .files = &trainer->files,
                                           .coordinator = agent->options.coordinator,
                                           .token = order->token,
                                           .tls_ca = agent->options.tls.ca != NULL
                                                         ? agent->options.tls.ca
                                                         : "",
                                           .sums = sums,
                                           .peaks = peaks,
                                           .ports = agent->options.ports,
                                           .copies = st == ST_OK ? copies : NULL,
                                           .threads = order->threads,
                                           .env = order->env,
                                           .env_count = order->n_env,
                                           .gpu = gpu,
                                           .host = agent->host };
    return spawn_trainer(&request, out_pid, why);
}

/* The process is there: records, watches and reports it. */
static void set_running(struct trainer *trainer, pid_t pid)
{
    struct log log = log_of(trainer);
    fault_point("agent.spawned");
    struct proc_stat stat = { .start_time = 0 };
    enum status st = proc_stat_read(pid, &stat); /* our unreaped child: it is there */
    if (st != ST_OK)
        LOG_WARN(&log, "start time of %ld: %s, ignoring", (long)pid, status_string(st));
    trainer->record.pid = pid;
    trainer->record.start_time = stat.start_time;
    trainer->record.state = RECORD_RUNNING;
    write_record(trainer);
    fault_point("agent.recorded");
    watch_process(trainer, pidfd_open(pid, 0));
    LOG_INFO(&log, "trainer started as %ld", (long)pid);
    agent_send_started(trainer->agent, trainer);
}

static void start_new(struct trainer *trainer, const Cairn__V1__StartTrainer *order)
{
    struct agent *agent = trainer->agent;
    struct reason why = { "" };
    enum status st = record_write(agent->io, &agent->paths, &trainer->record);
    if (st != ST_OK) {
        /* A process without a record could be lost: rather none. */
        reason_set(&why, "%.400s: %s", trainer->files.record, status_string(st));
        fail_start(trainer, &why);
        return;
    }
    fault_point("agent.intent");
    pid_t pid = 0;
    st = make_process(trainer, order, &pid, &why);
    if (st != ST_OK) {
        fail_start(trainer, &why);
    } else {
        set_running(trainer, pid);
    }
}

void trainer_start(struct agent *agent, const struct ref *ref, const Cairn__V1__StartTrainer *order)
{
    struct trainer *known = trainer_find(agent, ref);
    if (known != NULL && known->record.state == RECORD_EXITED) {
        agent_send_exited(agent, known);
    } else if (known != NULL) {
        agent_send_started(agent, known);
    }
    if (known != NULL)
        return;
    struct record record = { .ref = *ref, .slot = order->slot, .state = RECORD_INTENT };
    (void)snprintf(record.node, sizeof(record.node), "%s", agent->options.node);
    (void)snprintf(record.boot_id, sizeof(record.boot_id), "%s", agent->boot_id);
    (void)snprintf(record.pid_space, sizeof(record.pid_space), "%s", agent->pid_space);
    struct trainer *trainer =
        agent->trainer_count < TRAINERS_MAX ? new_trainer(agent, &record) : NULL;
    if (trainer == NULL) {
        agent_send_no_trainer(agent, &record.ref, CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED,
                              "this agent has too many trainers");
    } else {
        start_new(trainer, order);
    }
}

/* True if the record's process number means the same here: the boot and the space of processes are
 * the same. */
static bool counts_alike(const struct agent *agent, const struct record *record)
{
    return strcmp(record->boot_id, agent->boot_id) == 0 &&
           (record->pid_space[0] == '\0' || strcmp(record->pid_space, agent->pid_space) == 0);
}

/* True if exactly this process is there; opens a pidfd of it, or -1 where the system gives none. */
static bool open_same_process(const struct agent *agent, const struct record *record,
                              int *out_pidfd)
{
    if (record->pid <= 0 || !counts_alike(agent, record))
        return false;
    int pidfd = pidfd_open((pid_t)record->pid, 0);
    /* Compared after it is held: whoever has that number now has it for good. */
    const bool same = is_same_process(record);
    if (!same && pidfd >= 0)
        (void)close(pidfd);
    *out_pidfd = pidfd;
    return same;
}

/*
 * The process is not where the record says, or was not recorded yet. Whether it exists, the lock of
 * its log file tells; which it is, its arguments, if only after a moment: the agent may have died
 * between fork and exec. False: there is none.
 */
static bool find_unrecorded(struct trainer *trainer)
{
    struct record *record = &trainer->record;
    if (!counts_alike(trainer->agent, record))
        return false;
    for (int i = 0; i < INTENT_TRIES && spawn_is_alive(trainer->files.log); i++) {
        pid_t pid = 0;
        struct proc_stat stat;
        if (proc_find("--words", trainer->files.words, &pid) == ST_OK &&
            proc_stat_read(pid, &stat) == ST_OK) {
            record->pid = pid;
            record->start_time = stat.start_time;
            return true;
        }
        (void)poll(NULL, 0, INTENT_WAIT_MS);
    }
    return false;
}

static void adopt_gone(struct trainer *trainer)
{
    struct exit_facts facts = { .waited = false };
    kill_program(trainer);
    struct exit_cause cause = find_cause(trainer, &facts);
    set_exited(trainer, &cause);
}

void trainer_adopt(struct agent *agent, const char *path)
{
    struct record record;
    enum status st = record_read(agent->io, path, &record);
    if (st != ST_OK) {
        LOG_ERROR(&agent->log, "%s: %s, ignoring", path, status_string(st));
        return;
    }
    if (strcmp(record.node, agent->options.node) != 0)
        return; /* another agent's */
    struct trainer *trainer = new_trainer(agent, &record);
    if (trainer == NULL || record.state == RECORD_EXITED)
        return;
    struct log log = log_of(trainer);
    int pidfd = -1;
    bool runs = open_same_process(agent, &trainer->record, &pidfd);
    if (!runs && find_unrecorded(trainer))
        runs = open_same_process(agent, &trainer->record, &pidfd);
    if (!runs && record.state == RECORD_INTENT && access(trainer->files.log, F_OK) != 0) {
        trainer_acknowledged(trainer); /* it never was: nobody needs to hear of it */
        return;
    }
    if (!runs) {
        adopt_gone(trainer);
        return;
    }
    trainer->record.state = RECORD_RUNNING;
    write_record(trainer);
    watch_process(trainer, pidfd);
    LOG_INFO(&log, "trainer %" PRId64 " runs on, adopted", trainer->record.pid);
}
