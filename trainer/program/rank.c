#include "trainer/program/rank.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fault.h"
#include "common/flight.h"
#include "common/io.h"
#include "common/log.h"
#include "common/reason.h"
#include "job/job.h"
#include "rpc/rpc.h"
#include "trainer/loop/loop.h"
#include "trainer/program/link.h"
#include "trainer/program/signals.h"
#include "trainer/program/store_check.h"
#include "trainer/state/copy_exchange.h"
#include "trainer/state/copy_restore.h"
#include "trainer/state/partners.h"

#define JOIN_MS      INT64_C(300000)      /* every rank of the generation must have come */
#define COMM_OPEN_MS INT64_C(60000)       /* the others may still be preparing their model */
#define OVER_MS      INT64_C(10000)       /* until the coordinator has said that all is over */
#define LOOK_MS      20                   /* between two looks whether it has */
#define PINS_MAX     ((size_t)512 * 1024) /* implementations of all ops, and 512 files */
#define ERRORS_MAX   ((size_t)64 * 1024)
/* Ranks on one device wait for each other inside their collectives: those must leave room. */
#define SHARED_BLOCKS 4

struct rank {
    const struct rank_options *options;
    struct log log;
    struct flight *flight;
    struct link *link;
    struct ckpt_store *store;
    struct io io; /* the store's, which waits for what other machines made */
    struct session *session;
    struct signals *signals;
    struct session_assignment assignment;
    uint32_t *partners; /* trainer/state/partners.h; NULL: no copies go to other nodes */
    struct copy_exchange *exchange;
    struct job *job;
    struct progress progress;
    struct worker *worker;
    struct comm *comm; /* the worker's from worker_connect on */
    bool at_store;     /* what fails now fails at the checkpoint store */
    bool of_node;      /* what failed is this node's device, its files, its rights */
    uint32_t damaged;  /* 1 + the file of the checkpoint that read damaged; 0: none */
    struct buf pins;
    char nccl_text[JOB_ENV_MAX][JOB_ENV_NAME + JOB_ENV_VALUE];
    const char *nccl[JOB_ENV_MAX];
    struct reason reason;
};

/* On the link's thread. Whatever this process still does is worth nothing now, and another thread
 * may be anywhere: so it doesn't unwind. */
static void leave_at_once(void *arg, const char *reason)
{
    const struct rank *r = arg;
    LOG_INFO(&r->log, "leaving: %s", reason);
    _exit(RANK_OVER);
}

/* ---- failures ---- */

/* What a failure is to the coordinator and to this process. */
struct failure {
    Cairn__V1__FaultKind kind;
    enum rank_exit code;
    bool wait; /* to be told that the generation is over */
};

static struct failure failure_of(enum status st, enum phase phase, bool at_store)
{
    const struct failure store = { CAIRN__V1__FAULT_KIND__STORE, RANK_CHECKPOINT, true };
    const struct failure unknown = { CAIRN__V1__FAULT_KIND__FAULT_KIND_UNSPECIFIED, RANK_FAILED,
                                     true };
    const struct failure communication = { phase == PHASE_FORMING
                                               ? CAIRN__V1__FAULT_KIND__FORMATION
                                               : CAIRN__V1__FAULT_KIND__COMMUNICATION,
                                           RANK_COMMUNICATION, true };
    switch (st) {
    case ST_UNREACHABLE:
    case ST_CLOSED:
        return at_store ? store : unknown;
    case ST_CONFIG:
        if (at_store) /* its credentials, its bucket: it was good when it was written to */
            return store;
        return (struct failure){ CAIRN__V1__FAULT_KIND__USER, RANK_USER, false };
    case ST_CHANGED:
        return (struct failure){ CAIRN__V1__FAULT_KIND__DATA_CHANGED, RANK_FAILED, true };
    case ST_NUMERIC:
        return (struct failure){ CAIRN__V1__FAULT_KIND__NUMERIC, RANK_NUMERIC, true };
    case ST_TIMED_OUT:
        return at_store ? store : communication;
    case ST_PEER:
    case ST_STALE:
        return communication;
    case ST_VERSION: /* nothing is known to be bad */
        return at_store ? store : unknown;
    case ST_CORRUPT:
    case ST_INCOMPLETE:
        return (struct failure){ CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT, RANK_CHECKPOINT, true };
    case ST_IO:
    case ST_AWAY:
    case ST_FORGOTTEN:
    case ST_FULL:
    case ST_NOT_FOUND:
    case ST_REFUSED:
    case ST_EXISTS:
        return store;
    case ST_NO_MEMORY:
        return (struct failure){ CAIRN__V1__FAULT_KIND__OUT_OF_MEMORY, RANK_FAILED, true };
    case ST_OK:
    case ST_AGAIN:
    case ST_INVALID:
    case ST_DEVICE:
        break;
    }
    return unknown;
}

/* Tells the coordinator what went wrong; returns the exit code. */
static int report_failure(struct rank *r, enum status st)
{
    struct failure f = failure_of(st, r->progress.phase, r->at_store);
    const char *message = r->reason.text[0] != '\0' ? r->reason.text : status_string(st);
    struct session_fault fault = {
        .kind = f.kind,
        .of_node = st == ST_DEVICE || ((st == ST_CONFIG || st == ST_REFUSED) && r->of_node),
        .shard = r->damaged,
    };
    uint32_t blamed = 0;
    struct reason named;
    if (st == ST_PEER && r->comm != NULL) {
        int peer = r->worker->device.comm->blamed(r->comm);
        blamed = peer >= 0 ? (uint32_t)peer : 0;
        fault.ranks = &blamed;
        fault.rank_count = peer >= 0 ? 1 : 0;
        reason_set(&named, "%.200s: %.280s", message, r->worker->device.comm->why(r->comm));
        message = named.text;
    }
    if ((st == ST_CHANGED || (st == ST_CONFIG && fault.of_node)) && r->assignment.nodes != NULL) {
        reason_set(&named, "node %s: %.380s", r->assignment.nodes[r->assignment.rank], message);
        message = named.text;
    }
    LOG_ERROR(&r->log, "%s", message);
    fault.message = message;
    session_fault(r->session, &fault);
    int64_t end = clock_mono_ms(clock_system()) + OVER_MS;
    while (f.wait && !session_is_over(r->session) && clock_mono_ms(clock_system()) < end)
        (void)poll(NULL, 0, LOOK_MS);
    return f.code;
}

/* ---- forming ---- */

/* Of struct io: to look for a file for a minute is no hang. */
static bool still_waits(void *progress)
{
    progress_tick(progress);
    return true;
}

static enum status join_generation(struct rank *r)
{
    const struct rank_options *o = r->options;
    const struct link_options link = { o->coordinator, o->token, o->tls_ca };
    enum status st = link_new(&link, &r->link);
    if (st == ST_OK)
        st = ckpt_store_new(&r->store);
    if (st != ST_OK)
        return st;
    struct session_options options = { .job = o->job,
                                       .generation = o->generation,
                                       .rank = o->rank,
                                       .link = link_table(r->link),
                                       .io = ckpt_store_io(r->store),
                                       .clock = clock_system(),
                                       .log = &r->log,
                                       .last_words_path = o->words_path,
                                       .copies = o->copies,
                                       .over = leave_at_once,
                                       .over_arg = r };
    st = session_open(&options, &r->session);
    if (st != ST_OK)
        return st;
    st = signals_open(r->session, &r->log, &r->signals);
    if (st != ST_OK)
        return st;
    progress_init(&r->progress, r->session, r->flight, o->rank, o->generation);
    r->io = *ckpt_store_io(r->store);
    r->io.waiting = still_waits;
    r->io.waiting_arg = &r->progress;
    fault_point("trainer.start");
    return session_join(r->session, "", JOIN_MS, &r->assignment);
}

static enum status parse_job(struct rank *r)
{
    auto_buf struct buf errors;
    buf_init(&errors, ERRORS_MAX);
    r->job = calloc(1, sizeof(*r->job));
    if (r->job == NULL)
        return ST_NO_MEMORY;
    enum status st = job_parse(r->assignment.job_file, strlen(r->assignment.job_file), "job", "/",
                               NULL, 0, r->job, &errors);
    if (st == ST_OK) {
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

static enum status connect_worker(struct rank *r)
{
    const struct device *device = &r->worker->device;
    if (r->assignment.size > 1 && device->comm == NULL) {
        reason_set(&r->reason, "device %s: the module was built without NCCL; set workers.count: 1",
                   device->table->name);
        return ST_CONFIG;
    }
    if (r->assignment.size > 1) {
        struct comm_options options = { .rendezvous = session_rendezvous(r->session),
                                        .meeting = "workers",
                                        .rank = (int)r->assignment.rank,
                                        .size = (int)r->assignment.size,
                                        .host = r->assignment.host,
                                        .secret = r->options->token,
                                        .timeout_ms = COMM_OPEN_MS,
                                        .log = &r->log };
        comm_settings(r, &options.device);
        progress_collective_begin(&r->progress, "open");
        enum status st = device->comm->open(&options, &r->comm);
        if (st != ST_OK) {
            reason_set(&r->reason, "the workers did not find each other at %s: %s",
                       r->assignment.host,
                       st == ST_FULL ? "no port of --ports is free there" : status_string(st));
            return st == ST_FULL ? ST_PEER : st; /* again, later or elsewhere */
        }
        progress_collective_end(&r->progress, "open");
    }
    return worker_connect(r->worker, r->comm, &r->reason);
}

static enum status form_worker(struct rank *r)
{
    fault_point("trainer.forming");
    enum status st = parse_job(r);
    if (st != ST_OK)
        return st;
    auto_free char *choices = NULL;
    /* What is damaged shows again, and is reported, when the state is restored. */
    const bool chooses = r->job->workers.device != JOB_DEVICE_CPU;
    if (chooses && r->assignment.memory.generation > 0) {
        (void)!copy_restore_pins(r->options->copies, &r->assignment, &choices);
    } else if (chooses && r->assignment.restore[0] != '\0') {
        ckpt_await(&r->io, r->assignment.restore);
        (void)!state_read_pins(&r->io, r->assignment.restore, &choices);
    }
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
    st = worker_open(&options, &r->worker, &r->reason);
    if (st == ST_OK)
        st = connect_worker(r);
    return st;
}

/* Shares of other nodes come over a communicator of host memory: the worker's, if it is one. */
static enum status restore_copies(struct rank *r)
{
    struct copy_source from = { .dir = r->options->copies,
                                .assignment = &r->assignment,
                                .table = r->worker->device.comm,
                                .comm = r->comm };
    const bool own = copy_restore_travels(&r->assignment) && from.table->on_stream;
    enum status st = ST_OK;
    if (own) {
        const struct comm_options options = { .rendezvous = session_rendezvous(r->session),
                                              .meeting = "restore",
                                              .rank = (int)r->assignment.rank,
                                              .size = (int)r->assignment.size,
                                              .host = r->assignment.host,
                                              .secret = r->options->token,
                                              .timeout_ms = COMM_OPEN_MS,
                                              .log = &r->log };
        from.table = comm_gloo();
        st = from.table->open(&options, &from.comm);
        if (st != ST_OK) {
            reason_set(&r->reason, "copies in memory: %s", status_string(st));
            return st;
        }
    }
    st = copy_restore(r->worker, &from, &r->reason);
    if (own)
        from.table->close(from.comm);
    return st;
}

/* From the copies or the checkpoint that the assignment names, or from the seed. Where there are
 * copies, the store isn't needed. */
static enum status fill_worker_state(struct rank *r)
{
    progress_phase(&r->progress, PHASE_RESTORE);
    enum status st = worker_skip_add(r->worker, r->assignment.skip, r->assignment.skip_count);
    if (st != ST_OK)
        return st;
    if (r->assignment.memory.generation > 0) {
        fault_point("trainer.restore");
        return restore_copies(r);
    }
    const bool stored = r->assignment.restore[0] != '\0';
    if (stored)
        fault_point("trainer.restore");
    r->at_store = true;
    st = store_check(r->worker->options.io, r->job->checkpoint.store, &r->assignment, &r->of_node,
                     &r->reason);
    if (st == ST_OK && stored) {
        st = state_restore(r->worker, r->assignment.restore, r->assignment.restore_step,
                           &r->damaged, &r->reason);
    }
    if (st != ST_OK)
        return st;
    r->at_store = false;
    if (stored)
        return ST_OK;
    progress_phase(&r->progress, PHASE_FORMING); /* imported weights are not the store's */
    st = state_seed(r->worker, &r->reason);
    const char *weights = r->job->model.weights;
    r->of_node = st != ST_OK && weights[0] != '\0' && access(weights, R_OK) != 0;
    return st;
}

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
            LOG_WARN(&r->log,
                     "checkpoint.peers: all workers are on node %s, no copy goes elsewhere",
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
static void start_exchange(struct rank *r)
{
    const struct copy_exchange_options options = { .session = r->session,
                                                   .assignment = &r->assignment,
                                                   .partners = r->partners,
                                                   .copies = r->options->copies,
                                                   .secret = r->options->token,
                                                   .log = &r->log };
    enum status st = ST_NOT_FOUND;
    if (r->partners == NULL)
        return;
    if (r->options->copies != NULL)
        st = copy_exchange_open(&options, &r->exchange);
    if (st != ST_OK) {
        LOG_WARN(&r->log, "no copies at other nodes, going on: %s", status_string(st));
        session_peers_whole(r->session);
    }
}

static void stop_exchange(struct rank *r, bool waits)
{
    copy_exchange_close(r->exchange, waits);
    r->exchange = NULL;
}

static enum status get_ready(struct rank *r)
{
    uint64_t step = r->assignment.restore_step; /* 0: from the seed */
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

/* This rank's own copies, and those of others that it received. */
static void forget_copies(const struct rank *r)
{
    const char *dir = r->options->copies;
    copy_folder_forget(dir, r->assignment.generation, r->assignment.rank);
    for (uint32_t w = 0; r->partners != NULL && w < r->assignment.size; w++) {
        if (r->partners[w] == r->assignment.rank)
            copy_folder_forget(dir, r->assignment.generation, w);
    }
}

static const char *loop_end_text(enum loop_end end)
{
    switch (end) {
    case LOOP_DONE:
        return "done";
    case LOOP_LEFT:
        return "saved and leaving";
    case LOOP_OVER:
        return "over";
    }
    check_failed("end", __FILE__, __LINE__);
}

static enum status run_rank(struct rank *r, int *out_code)
{
    enum status st = join_generation(r);
    if (st == ST_OK)
        st = form_worker(r);
    if (st == ST_OK)
        st = fill_worker_state(r);
    if (st == ST_OK)
        st = get_ready(r);
    if (st != ST_OK)
        return st;
    LOG_INFO(&r->log, "training from step %llu of %llu, lanes %u to %u of %u, %u workers",
             (unsigned long long)r->progress.step,
             (unsigned long long)r->worker->settings.total_steps, r->worker->lane_first,
             r->worker->lane_first + r->worker->lane_count - 1, r->worker->settings.lanes,
             r->assignment.size);
    if (worker_is_fast(r->worker)) {
        LOG_WARN(&r->log, "parallel.reduction: fast: the state depends on the number of workers "
                          "and how they share the lanes");
    }
    struct state_beside beside = { .job = r->assignment.job,
                                   .generation = r->assignment.generation,
                                   .job_file = r->assignment.job_file,
                                   .pins = r->pins.data };
    struct loop_options loop = {
        .worker = r->worker, .session = r->session, .beside = &beside, .step = r->progress.step
    };
    enum loop_end end = LOOP_DONE;
    start_exchange(r);
    st = loop_run(&loop, &end, &r->reason);
    if (st == ST_OK) { /* else the failure is reported first, before anything is waited for */
        stop_exchange(r, end != LOOP_OVER);
        *out_code = end == LOOP_OVER ? RANK_OVER : RANK_DONE;
        if (end != LOOP_OVER) /* what was finished is committed */
            forget_copies(r);
        LOG_INFO(&r->log, "%s at step %llu", loop_end_text(end),
                 (unsigned long long)r->progress.step);
    }
    return st;
}

/* The session before the worker: its saver may still be writing what the worker owns. */
static void release_rank(struct rank *r)
{
    signals_close(r->signals);
    stop_exchange(r, false);
    if (r->session != NULL)
        session_close(r->session);
    link_free(r->link);
    worker_close(r->worker);
    ckpt_store_free(r->store);
    buf_release(&r->pins);
    free(r->partners);
    free(r->job);
    flight_close(r->flight);
}

int rank_run(const struct rank_options *options)
{
    struct rank r = { .options = options, .log = log_open("cairn-trainer") };
    r.log.job = options->job;
    r.log.rank = (int64_t)options->rank;
    r.log.generation = (int64_t)options->generation;
    buf_init(&r.pins, PINS_MAX);
    fault_context((int64_t)options->rank, (int64_t)options->generation, 0);
    if (options->flight_path != NULL) {
        enum status st = flight_open(options->flight_path, options->job, options->generation,
                                     options->rank, &r.flight);
        if (st != ST_OK) {
            LOG_WARN(&r.log, "%s: no flight recorder, ignoring: %s", options->flight_path,
                     status_string(st));
        }
    }
    signals_block();
    rpc_init();
    int code = RANK_FAILED;
    enum status st = run_rank(&r, &code);
    if (st != ST_OK && r.session == NULL) {
        LOG_ERROR(&r.log, "no session with %s: %s", options->coordinator, status_string(st));
        code = st == ST_STALE ? RANK_OVER : RANK_COMMUNICATION;
    } else if (st != ST_OK) {
        code = report_failure(&r, st);
    }
    release_rank(&r);
    rpc_shutdown();
    return code;
}
