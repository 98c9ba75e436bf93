/* From hello to Ready. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fault.h"
#include "trainer/program/rank_parts.h"
#include "trainer/state/copy_restore.h"
#include "trainer/state/partners.h"
#include "trainer/state/state.h"

#define JOIN_MS    INT64_C(300000) /* every rank of the generation must have come */
#define ERRORS_MAX ((size_t)64 * 1024)
/* Ranks on one device wait for each other inside their collectives: those must leave room. */
#define SHARED_BLOCKS 4

/* NULL: there is none. */
static const char *token_of(const struct rank *r)
{
    return r->token[0] != '\0' ? r->token : NULL;
}

/* On the link's thread. Whatever this process still does is worth nothing now, and another thread
 * may be anywhere: so it doesn't unwind. */
static void leave_at_once(void *arg, const char *reason)
{
    const struct rank *r = arg;
    LOG_INFO(r->log, "leaving: %s", reason);
    _exit(RANK_OVER);
}

/* On the link's thread: the step thread unwinds, to park. */
static void abort_communication(void *arg, const char *reason)
{
    struct rank *r = arg;
    LOG_INFO(r->log, "generation %u ends: %s", r->generation, reason);
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->aborted = true;
    for (int i = 0; i < RANK_COMMS; i++) {
        if (r->comms[i].comm != NULL)
            r->comms[i].table->abort(r->comms[i].comm);
    }
    (void)pthread_mutex_unlock(&r->comm_mutex);
}

/* An order to park may have come before there was anything to abort. */
static void register_comm(struct rank *r, int which, const struct comm_table *table,
                          struct comm *comm)
{
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->comms[which] = (struct rank_comm){ table, comm };
    if (comm != NULL && r->aborted)
        table->abort(comm);
    (void)pthread_mutex_unlock(&r->comm_mutex);
}

void rank_disconnect(struct rank *r)
{
    register_comm(r, 0, NULL, NULL);
    if (r->worker != NULL)
        worker_disconnect(r->worker);
}

enum status rank_join(struct rank *r)
{
    const struct rank_options *o = r->options;
    const struct link_options link = { o->coordinator, token_of(r), o->tls_ca };
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->aborted = false;
    (void)pthread_mutex_unlock(&r->comm_mutex);
    enum status st = link_new(&link, &r->link);
    if (st != ST_OK)
        return st;
    struct session_options options = { .job = o->job,
                                       .generation = r->generation,
                                       .rank = r->rank,
                                       .link = link_table(r->link),
                                       .io = ckpt_store_io(r->store),
                                       .clock = clock_system(),
                                       .log = r->log,
                                       .last_words_path = o->words_path,
                                       .copies = o->copies,
                                       .over = leave_at_once,
                                       .over_arg = r,
                                       .park = abort_communication,
                                       .kept = r->goes_on ? &r->kept : NULL };
    st = session_open(&options, &r->session);
    if (st != ST_OK)
        return st;
    if (r->signals != NULL) {
        signals_tell(r->signals, r->session);
    } else {
        st = signals_open(r->session, r->log, &r->signals);
    }
    if (st != ST_OK)
        return st;
    progress_init(&r->progress, r->session, r->flight, r->rank, r->generation);
    if (!r->goes_on)
        fault_point("trainer.start");
    return session_join(r->session, "", JOIN_MS, &r->assignment);
}

/* Of a process that goes on the job may have changed where a running job's may; what the worker was
 * built with is not read again. */
static enum status parse_job(struct rank *r)
{
    const char *text = r->assignment.job_file;
    if (r->job_text != NULL && strcmp(r->job_text, text) == 0)
        return ST_OK;
    auto_buf struct buf errors;
    auto_free char *copy = strdup(text);
    auto_free struct job *fresh = calloc(1, sizeof(*fresh));
    buf_init(&errors, ERRORS_MAX);
    if (r->job == NULL)
        r->job = calloc(1, sizeof(*r->job));
    if (copy == NULL || fresh == NULL || r->job == NULL)
        return ST_NO_MEMORY;
    enum status st = job_parse(text, strlen(text), "job", "/", NULL, 0, fresh, &errors);
    if (st == ST_OK) {
        *r->job = *fresh;
        free(r->job_text);
        r->job_text = copy;
        copy = NULL;
        signals_set_grace(r->signals, r->job->checkpoint.grace_ms);
        return ST_OK;
    }
    char *line_end = errors.size > 0 ? strchr(errors.data, '\n') : NULL;
    if (line_end != NULL)
        *line_end = '\0';
    reason_set(&r->reason, "%s", errors.size > 0 ? errors.data : status_string(st));
    return st;
}

/* The environment of NCCL that the job gives, and where its work goes. */
static void comm_settings(struct rank *r, struct comm_device *out)
{
    const struct device *device = &r->worker->device;
    for (int i = 0; i < JOB_ENV_MAX && r->job->nccl[i].name[0] != '\0'; i++) {
        (void)snprintf(r->nccl_text[i], sizeof(r->nccl_text[i]), "%s=%s", r->job->nccl[i].name,
                       r->job->nccl[i].value);
        r->nccl[i] = r->nccl_text[i];
        out->setting_count = (size_t)i + 1;
    }
    out->table = device->table;
    out->backend = device->backend;
    out->stream = device->communication;
    out->settings = r->nccl;
    out->device_shared = getenv("CAIRN_SHARED_DEVICE") != NULL;
    out->blocks_max = out->device_shared ? SHARED_BLOCKS : 0;
}

static struct comm_options comm_options_of(const struct rank *r, const char *meeting)
{
    return (struct comm_options){ .rendezvous = session_rendezvous(r->session),
                                  .meeting = meeting,
                                  .rank = (int)r->assignment.rank,
                                  .size = (int)r->assignment.size,
                                  .host = r->assignment.host,
                                  .secret = token_of(r),
                                  .timeout_ms = RANK_COMM_OPEN_MS,
                                  .log = r->log };
}

static enum status connect_worker(struct rank *r)
{
    const struct device *device = &r->worker->device;
    struct comm *comm = NULL;
    if (r->assignment.size > 1 && device->comm == NULL) {
        reason_set(&r->reason, "device %s: the module was built without NCCL; set workers.count: 1",
                   device->table->name);
        return ST_CONFIG;
    }
    if (r->assignment.size > 1) {
        struct comm_options options = comm_options_of(r, "workers");
        comm_settings(r, &options.device);
        progress_collective_begin(&r->progress, "open");
        enum status st = device->comm->open(&options, &comm);
        if (st != ST_OK) {
            reason_set(&r->reason, "the workers did not find each other at %s: %s",
                       r->assignment.host,
                       st == ST_FULL ? "no port of --ports is free there" : status_string(st));
            return st == ST_FULL ? ST_PEER : st; /* again, later or elsewhere */
        }
        register_comm(r, 0, device->comm, comm);
        progress_collective_end(&r->progress, "open");
    }
    return worker_connect(r->worker, comm, &r->reason);
}

enum status rank_open_host_comm(struct rank *r, const char *meeting, struct comm **out)
{
    const struct comm_options options = comm_options_of(r, meeting);
    enum status st = comm_gloo()->open(&options, out);
    if (st == ST_OK)
        register_comm(r, 1, comm_gloo(), *out);
    return st;
}

void rank_close_host_comm(struct rank *r)
{
    struct comm *comm = r->comms[1].comm;
    register_comm(r, 1, NULL, NULL);
    comm_gloo()->close(comm);
}

/* What was chosen for a state on a device must be chosen again. What is damaged shows again, and is
 * reported, when the state is restored. */
static void read_choices(const struct rank *r, char **out)
{
    if (r->job->workers.device == JOB_DEVICE_CPU)
        return;
    if (r->assignment.memory.generation > 0) {
        (void)!copy_restore_pins(r->options->copies, &r->assignment, out);
    } else if (r->assignment.restore[0] != '\0') {
        ckpt_await(&r->io, r->assignment.restore);
        (void)!state_read_pins(&r->io, r->assignment.restore, out);
    }
}

static enum status open_worker(struct rank *r)
{
    auto_free char *choices = NULL;
    read_choices(r, &choices);
    struct worker_options options = { .job = r->job,
                                      .io = &r->io,
                                      .progress = &r->progress,
                                      .rank = r->assignment.rank,
                                      .size = r->assignment.size,
                                      .shares = r->assignment.shares,
                                      .data_known = r->assignment.data_known,
                                      .sums = r->options->sums,
                                      .choices = choices,
                                      .of_node = &r->of_node };
    return worker_open(&options, &r->worker, &r->reason);
}

enum status rank_form(struct rank *r)
{
    fault_point("trainer.forming");
    enum status st = parse_job(r);
    if (st != ST_OK)
        return st;
    if (r->worker == NULL) {
        st = open_worker(r);
    } else {
        r->worker->options.data_known = r->assignment.data_known;
        st = worker_regroup(r->worker, r->assignment.rank, r->assignment.size, r->assignment.shares,
                            &r->reason);
    }
    return st == ST_OK ? connect_worker(r) : st;
}

/* ---- ready ---- */

static enum ckpt_level level_of(enum job_level level)
{
    switch (level) {
    case JOB_LEVEL_FAST:
        return CKPT_FAST;
    case JOB_LEVEL_MAX:
        return CKPT_MAX;
    case JOB_LEVEL_NONE:
    case JOB_LEVEL_DEFAULT:
        break;
    }
    return CKPT_DEFAULT;
}

/* Who holds whose copies, if the job wants them at another node and there is one. */
static enum status choose_partners(struct rank *r)
{
    if (r->job->checkpoint.peers == 0 || r->assignment.nodes == NULL)
        return ST_OK;
    auto_free uint32_t *partners = calloc(r->assignment.size, sizeof(*partners));
    if (partners == NULL)
        return ST_NO_MEMORY;
    enum status st = partners_choose(r->assignment.nodes, r->assignment.size, partners);
    if (st == ST_NOT_FOUND) {
        if (r->assignment.rank == 0) {
            LOG_WARN(r->log, "checkpoint.peers: all workers are on node %s, no copy goes elsewhere",
                     r->assignment.nodes[0]);
        }
        return ST_OK;
    }
    if (st == ST_OK) {
        r->partners = partners;
        partners = NULL;
    }
    return st;
}

/* Where it fails there are no copies at other nodes; the job goes on. */
void rank_start_exchange(struct rank *r)
{
    const struct copy_exchange_options options = { .session = r->session,
                                                   .assignment = &r->assignment,
                                                   .partners = r->partners,
                                                   .copies = r->options->copies,
                                                   .secret = token_of(r),
                                                   .log = r->log };
    enum status st = ST_NOT_FOUND;
    if (r->partners == NULL)
        return;
    if (r->options->copies != NULL)
        st = copy_exchange_open(&options, &r->exchange);
    if (st != ST_OK) {
        LOG_WARN(r->log, "no copies at other nodes, going on: %s", status_string(st));
        session_peers_whole(r->session);
    }
}

void rank_stop_exchange(struct rank *r, bool waits)
{
    copy_exchange_close(r->exchange, waits);
    r->exchange = NULL;
}

enum status rank_get_ready(struct rank *r)
{
    const uint64_t step = rank_first_step(r);
    progress_step(&r->progress, step);
    enum status st = worker_start(r->worker, step, &r->reason);
    if (st == ST_OK)
        st = worker_pins(r->worker, &r->pins);
    if (st == ST_OK)
        st = state_allow_saves(r->worker);
    if (st == ST_OK)
        st = choose_partners(r);
    if (st != ST_OK)
        return st;
    const struct settings *s = &r->worker->settings;
    struct session_ready ready = { .total_steps = s->total_steps,
                                   .steps_per_epoch = s->steps_per_epoch,
                                   .parameters = r->worker->layout.param_count,
                                   .state_bytes = state_bytes(r->worker),
                                   .step = step,
                                   .save_every = s->save_every,
                                   .pins = r->pins.data,
                                   .level = level_of(r->job->checkpoint.level),
                                   .threads = (uint32_t)r->job->checkpoint.threads,
                                   .differs = r->job->checkpoint.delta,
                                   .object = ckpt_store_is_object(r->job->checkpoint.store),
                                   .memory_every = (uint64_t)r->job->checkpoint.memory_every,
                                   .peers = r->partners != NULL,
                                   .snapshot_bytes_max = state_share_bytes(r->worker),
                                   .memory_bytes_max = (size_t)r->job->checkpoint.memory_bytes };
    if (ready.peers)
        ready.wards = partners_wards(r->partners, r->assignment.size, r->assignment.rank);
    st = session_share_check(ready.snapshot_bytes_max, ready.state_bytes, &r->reason);
    if (st == ST_OK)
        st = session_set_ready(r->session, &ready);
    if (st == ST_FULL) {
        const struct session_wish wish = { .share_bytes = ready.snapshot_bytes_max,
                                           .threads = ready.threads,
                                           .every = ready.memory_every > 0,
                                           .differs = ready.differs,
                                           .state_bytes = (size_t)ready.state_bytes,
                                           .object = ready.object,
                                           .peers = ready.peers,
                                           .wards = ready.wards,
                                           .bytes_max = ready.memory_bytes_max };
        struct session_budget budget;
        (void)!session_budget(&wish, &budget); /* only for the least */
        reason_set(&r->reason, "checkpoint.memory: this worker needs %.1f MiB at least",
                   (double)budget.least / (1024.0 * 1024.0));
        return ST_CONFIG;
    }
    return st;
}
