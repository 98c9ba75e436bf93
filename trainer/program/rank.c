#include "trainer/program/rank.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/store/store.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fault.h"
#include "common/flight.h"
#include "common/io.h"
#include "common/log.h"
#include "job/job.h"
#include "rpc/rpc.h"
#include "trainer/loop/loop.h"
#include "trainer/program/link.h"
#include "trainer/program/signals.h"
#include "trainer/state/memory_restore.h"
#include "trainer/state/peers.h"

#define JOIN_MS      INT64_C(300000) /* every rank of the generation must have come */
#define COMM_OPEN_MS INT64_C(60000)  /* the others may still be preparing their model */
#define OVER_MS      INT64_C(10000)
#define PINS_MAX     ((size_t)256 * 1024)
#define ERRORS_MAX   ((size_t)64 * 1024)
/* Ranks on one device wait for each other inside their collectives: those must leave room. */
#define SHARED_BLOCKS 4

struct rank {
    const struct rank_options *options;
    struct log log;
    struct flight *flight;
    struct link *link;
    struct ckpt_store *store;
    struct session *session;
    struct notice *notice;
    struct session_assignment plan;
    uint32_t *partners; /* of copies at other nodes; NULL: there are none */
    struct peers *peers;
    struct job *job;
    struct marks marks;
    struct worker *worker;
    struct comm *comm; /* the worker's from worker_connect on */
    bool at_store;     /* what fails now fails at the checkpoint store */
    struct buf pins;
    char nccl_text[JOB_ENV_MAX][JOB_ENV_NAME + JOB_ENV_VALUE];
    const char *nccl[JOB_ENV_MAX];
    char message[LIMIT_REASON];
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

struct failure {
    Cairn__V1__FaultKind kind;
    int code;
    bool wait; /* to be told that it is over */
};

static struct failure failure_of(enum status st, enum phase phase, bool at_store)
{
    const bool forming = phase == PHASE_FORMING;
    const struct failure store = { CAIRN__V1__FAULT_KIND__STORE, RANK_CHECKPOINT, true };
    switch ((int)st) {
    case ST_UNREACHABLE:
    case ST_CLOSED:
        return at_store ? store
                        : (struct failure){ CAIRN__V1__FAULT_KIND__FAULT_KIND_UNSPECIFIED,
                                            RANK_FAILED, true };
    case ST_CONFIG:
        if (at_store) /* its credentials, its bucket: it was good when it was written to */
            return store;
        return (struct failure){ CAIRN__V1__FAULT_KIND__USER, RANK_USER, false };
    case ST_NUMERIC:
        return (struct failure){ CAIRN__V1__FAULT_KIND__NUMERIC, RANK_NUMERIC, true };
    case ST_TIMED_OUT:
        if (at_store)
            return store;
        /* fall through */
    case ST_PEER:
    case ST_STALE:
        return (struct failure){ forming ? CAIRN__V1__FAULT_KIND__FORMATION
                                         : CAIRN__V1__FAULT_KIND__COMMUNICATION,
                                 RANK_COMMUNICATION, true };
    case ST_CORRUPT:
    case ST_INCOMPLETE:
    case ST_VERSION:
        return (struct failure){ CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT, RANK_CHECKPOINT, true };
    case ST_IO:
    case ST_FULL:
    case ST_NOT_FOUND:
    case ST_REFUSED:
    case ST_EXISTS:
        return store;
    case ST_NO_MEMORY:
        return (struct failure){ CAIRN__V1__FAULT_KIND__OUT_OF_MEMORY, RANK_FAILED, true };
    default:
        return (struct failure){ CAIRN__V1__FAULT_KIND__FAULT_KIND_UNSPECIFIED, RANK_FAILED, true };
    }
}

/* Tells what went wrong and returns the exit code. */
static int report(struct rank *r, enum status st)
{
    struct failure f = failure_of(st, r->marks.phase, r->at_store);
    const char *message = r->message[0] != '\0' ? r->message : status_string(st);
    uint32_t blamed = 0;
    size_t count = 0;
    if (st == ST_PEER && r->comm != NULL) {
        int peer = r->worker->device.comm->blamed(r->comm);
        blamed = peer >= 0 ? (uint32_t)peer : 0;
        count = peer >= 0 ? 1 : 0;
    }
    LOG_ERROR(&r->log, "%s", message);
    session_fault(r->session, f.kind, message, &blamed, count);
    int64_t end = clock_mono_ms(clock_system()) + OVER_MS;
    while (f.wait && !session_is_over(r->session) && clock_mono_ms(clock_system()) < end)
        (void)poll(NULL, 0, 20);
    return f.code;
}

static enum status __attribute__((format(printf, 3, 4)))
fail(struct rank *r, enum status st, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(r->message, sizeof(r->message), format, args);
    va_end(args);
    return st;
}

/* ---- forming ---- */

static enum status join(struct rank *r)
{
    const struct rank_options *o = r->options;
    enum status st = link_new(o->coordinator, o->token, &r->link);
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
    st = notice_open(r->session, &r->log, &r->notice);
    if (st != ST_OK)
        return st;
    marks_init(&r->marks, r->session, r->flight, o->rank, o->generation);
    fault_point("trainer.start");
    return session_join(r->session, "", JOIN_MS, &r->plan);
}

static enum status parse_job(struct rank *r)
{
    auto_buf struct buf errors;
    buf_init(&errors, ERRORS_MAX);
    r->job = calloc(1, sizeof(*r->job));
    if (r->job == NULL)
        return ST_NO_MEMORY;
    enum status st =
        job_parse(r->plan.job_file, strlen(r->plan.job_file), "job", "/", NULL, 0, r->job, &errors);
    if (st == ST_OK) {
        notice_set_grace(r->notice, r->job->checkpoint.grace_ms);
        return ST_OK;
    }
    char *line_end = errors.size > 0 ? strchr(errors.data, '\n') : NULL;
    if (line_end != NULL)
        *line_end = '\0';
    return fail(r, st, "%s", errors.size > 0 ? errors.data : status_string(st));
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

static enum status connect(struct rank *r)
{
    const struct device *device = &r->worker->device;
    if (r->plan.size > 1 && device->comm == NULL) {
        return fail(r, ST_CONFIG,
                    "device %s: the module was built without NCCL; set workers.count: 1",
                    device->table->name);
    }
    if (r->plan.size > 1) {
        struct comm_options options = { .kv = session_kv(r->session),
                                        .generation = r->plan.generation,
                                        .rank = (int)r->plan.rank,
                                        .size = (int)r->plan.size,
                                        .host = r->plan.host,
                                        .timeout_ms = COMM_OPEN_MS };
        comm_settings(r, &options.device);
        marks_collective_begin(&r->marks, "open");
        enum status st = device->comm->open(&options, &r->comm);
        if (st != ST_OK) {
            return fail(r, st, "the workers did not find each other at %s: %s", r->plan.host,
                        status_string(st));
        }
        marks_collective_end(&r->marks, "open");
    }
    return worker_connect(r->worker, r->comm, r->message, sizeof(r->message));
}

static enum status form(struct rank *r)
{
    fault_point("trainer.forming");
    enum status st = parse_job(r);
    if (st != ST_OK)
        return st;
    auto_free char *choices = NULL;
    /* Damage shows again, and is told, when the state is restored. */
    const bool chooses = r->job->workers.device != JOB_DEVICE_CPU;
    if (chooses && r->plan.memory.generation > 0) {
        (void)!state_memory_pins(r->options->copies, &r->plan, &choices);
    } else if (chooses && r->plan.restore[0] != '\0') {
        (void)!state_read_pins(ckpt_store_io(r->store), r->plan.restore, &choices);
    }
    struct worker_options options = { .job = r->job,
                                      .io = ckpt_store_io(r->store),
                                      .marks = &r->marks,
                                      .rank = r->plan.rank,
                                      .size = r->plan.size,
                                      .shares = r->plan.shares,
                                      .choices = choices };
    st = worker_open(&options, &r->worker, r->message, sizeof(r->message));
    if (st == ST_OK)
        st = connect(r);
    return st;
}

/* Shares of other nodes come by a communicator of host memory: the data plane's, if it is that. */
static enum status restore_memory(struct rank *r)
{
    struct state_memory from = { .dir = r->options->copies,
                                 .plan = &r->plan,
                                 .table = r->worker->device.comm,
                                 .comm = r->comm };
    const bool own = state_memory_travels(&r->plan) && from.table->on_stream;
    enum status st = ST_OK;
    if (own) {
        const struct comm_options options = { .kv = session_kv(r->session),
                                              .generation = r->plan.generation,
                                              .rank = (int)r->plan.rank,
                                              .size = (int)r->plan.size,
                                              .host = r->plan.host,
                                              .timeout_ms = COMM_OPEN_MS };
        from.table = comm_gloo();
        st = from.table->open(&options, &from.comm);
        if (st != ST_OK)
            return fail(r, st, "copies in memory: %s", status_string(st));
    }
    st = state_restore_memory(r->worker, &from, r->message, sizeof(r->message));
    if (own)
        from.table->close(from.comm);
    return st;
}

/* What this node sees at the store's place is what the coordinator sees there. */
static enum status check_store(struct rank *r)
{
    const struct io *io = ckpt_store_io(r->store);
    const char *store = r->job->checkpoint.store;
    const char *node = r->plan.nodes != NULL ? r->plan.nodes[r->plan.rank] : "?";
    char mark[CKPT_MARK];
    struct reason why;
    if (r->plan.store_mark[0] == '\0')
        return ST_OK;
    enum status st = ckpt_mark_read(io, store, r->plan.job, mark);
    if (st == ST_OK && strcmp(mark, r->plan.store_mark) == 0)
        return ST_OK;
    if (st == ST_OK || st == ST_NOT_FOUND || st == ST_CORRUPT) {
        return fail(r, ST_UNREACHABLE,
                    "node %s sees at %.240s/%s another store than the coordinator, or none: its %s "
                    "is missing, or another's",
                    node, store, r->plan.job, CKPT_MARK_NAME);
    }
    io_explain(io, st, &why);
    return fail(r, st, "node %s cannot read the checkpoint store %.160s: %.255s", node, store,
                why.text);
}

/* The state: from memory or the checkpoint that the plan names, or from the seed. Copies in memory
 * are there for when the store isn't. */
static enum status fill_state(struct rank *r)
{
    marks_phase(&r->marks, PHASE_RESTORE);
    enum status st = worker_skip(r->worker, r->plan.skip, r->plan.skip_count);
    if (st != ST_OK)
        return st;
    if (r->plan.memory.generation > 0) {
        fault_point("trainer.restore");
        return restore_memory(r);
    }
    const bool stored = r->plan.restore[0] != '\0';
    if (stored)
        fault_point("trainer.restore");
    r->at_store = true;
    st = check_store(r);
    if (st == ST_OK && stored) {
        st = state_restore(r->worker, r->plan.restore, r->plan.restore_step, r->message,
                           sizeof(r->message));
    }
    if (st != ST_OK)
        return st;
    r->at_store = false;
    if (stored)
        return ST_OK;
    marks_phase(&r->marks, PHASE_FORMING); /* imported weights are not the store's */
    return state_seed(r->worker, r->message, sizeof(r->message));
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
static enum status pair(struct rank *r)
{
    if (r->job->checkpoint.peers == 0 || r->plan.nodes == NULL)
        return ST_OK;
    auto_free uint32_t *partners = calloc(r->plan.size, sizeof(*partners));
    if (partners == NULL)
        return ST_NO_MEMORY;
    enum status st = peers_pair(r->plan.nodes, r->plan.size, partners);
    if (st == ST_NOT_FOUND) {
        if (r->plan.rank == 0) {
            LOG_WARN(&r->log,
                     "checkpoint.peers: all workers are on node %s, no copy goes elsewhere",
                     r->plan.nodes[0]);
        }
        return ST_OK;
    }
    if (st == ST_OK) {
        r->partners = partners;
        partners = NULL;
    }
    return st;
}

/* A failure of it costs copies, never the job. */
static void start_peers(struct rank *r)
{
    const struct peers_options options = { .session = r->session,
                                           .plan = &r->plan,
                                           .partners = r->partners,
                                           .copies = r->options->copies,
                                           .log = &r->log };
    enum status st = ST_NOT_FOUND;
    if (r->partners == NULL)
        return;
    if (r->options->copies != NULL)
        st = peers_open(&options, &r->peers);
    if (st != ST_OK) {
        LOG_WARN(&r->log, "no copies at other nodes, going on: %s", status_string(st));
        session_peers_whole(r->session);
    }
}

static void stop_peers(struct rank *r, bool waits)
{
    peers_close(r->peers, waits);
    r->peers = NULL;
}

static enum status get_ready(struct rank *r)
{
    uint64_t step = r->plan.restore_step; /* 0: from the seed */
    marks_step(&r->marks, step);
    enum status st = worker_start(r->worker, step, r->message, sizeof(r->message));
    if (st == ST_OK)
        st = worker_pins(r->worker, &r->pins);
    if (st == ST_OK)
        st = state_allow_saves(r->worker);
    if (st == ST_OK)
        st = pair(r);
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
        ready.wards = peers_wards(r->partners, r->plan.size, r->plan.rank);
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
        return fail(r, ST_CONFIG, "checkpoint.memory: this worker needs %.1f MiB at least",
                    (double)budget.least / (1024.0 * 1024.0));
    }
    return st;
}

/* Own ones, and those of others that this rank received. */
static void forget_copies(const struct rank *r)
{
    const char *dir = r->options->copies;
    copy_folder_forget(dir, r->plan.generation, r->plan.rank);
    for (uint32_t w = 0; r->partners != NULL && w < r->plan.size; w++) {
        if (r->partners[w] == r->plan.rank)
            copy_folder_forget(dir, r->plan.generation, w);
    }
}

static enum status run(struct rank *r, int *out_code)
{
    enum status st = join(r);
    if (st == ST_OK)
        st = form(r);
    if (st == ST_OK)
        st = fill_state(r);
    if (st == ST_OK)
        st = get_ready(r);
    if (st != ST_OK)
        return st;
    LOG_INFO(&r->log, "training from step %llu of %llu, lanes %u to %u of %u, %u workers",
             (unsigned long long)r->marks.step, (unsigned long long)r->worker->settings.total_steps,
             r->worker->lane_first, r->worker->lane_first + r->worker->lane_count - 1,
             r->worker->settings.lanes, r->plan.size);
    if (worker_is_fast(r->worker)) {
        LOG_WARN(&r->log, "parallel.reduction: fast: the state depends on the number of workers "
                          "and how they share the lanes");
    }
    struct state_beside beside = { .job = r->plan.job,
                                   .generation = r->plan.generation,
                                   .job_file = r->plan.job_file,
                                   .pins = r->pins.data };
    struct loop_options loop = {
        .worker = r->worker, .session = r->session, .beside = &beside, .step = r->marks.step
    };
    enum loop_end end = LOOP_DONE;
    start_peers(r);
    st = loop_run(&loop, &end, r->message, sizeof(r->message));
    if (st == ST_OK) { /* else the fault is told first, before anything is waited for */
        stop_peers(r, end != LOOP_OVER);
        *out_code = end == LOOP_OVER ? RANK_OVER : RANK_DONE;
        if (end != LOOP_OVER) /* what was finished is committed */
            forget_copies(r);
        LOG_INFO(&r->log, "%s at step %llu",
                 end == LOOP_DONE   ? "done"
                 : end == LOOP_LEFT ? "saved and leaving"
                                    : "over",
                 (unsigned long long)r->marks.step);
    }
    return st;
}

/* The session first: its saver may still be writing of what the worker owns. */
static void release(struct rank *r)
{
    notice_close(r->notice);
    stop_peers(r, false);
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
    notice_block();
    rpc_init();
    int code = RANK_FAILED;
    enum status st = run(&r, &code);
    if (st != ST_OK && r.session == NULL) {
        LOG_ERROR(&r.log, "no session with %s: %s", options->coordinator, status_string(st));
        code = st == ST_STALE ? RANK_OVER : RANK_COMMUNICATION;
    } else if (st != ST_OK) {
        code = report(&r, st);
    }
    release(&r);
    rpc_shutdown();
    return code;
}
