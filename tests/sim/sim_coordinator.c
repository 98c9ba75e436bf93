/*
 * The real core, with the world as its ports. It may "crash" at any of its outputs: what it sends
 * from then on is dropped, what it would still journal is rolled back, and it is opened anew later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "server/core.h"
#include "tests/sim/sim.h"

struct sim_conn {
    struct core_conn base; /* first */
    struct sim_conn *next; /* of all that ever were: parcels under way point at them */
    struct sim *sim;
    bool agent, core_open, peer_open;
    uint64_t epoch;
    const struct sim_peer_ops *ops;
    void *peer;
    int64_t to_peer_at, to_core_at; /* messages stay in order */
};

struct parcel {
    struct sim_conn *conn;
    size_t size;
    uint8_t data[];
};

struct coordinator {
    struct core *core; /* NULL: it is down */
    struct journal *journal;
    struct log log;
    uint64_t epoch;
    bool crashed;         /* within a call of the core */
    int64_t outputs_left; /* until it crashes; negative: it doesn't */
    int64_t tick_at;
    int64_t store_at; /* when its store thread is free */
    struct sim_conn *conns;
};

bool sim_coordinator_up(const struct sim *sim)
{
    return sim->coordinator && sim->coordinator->core && !sim->coordinator->crashed;
}

/* ---- crash and restart ---- */

static void restart(struct sim *sim, void *arg, uint64_t epoch)
{
    (void)arg;
    if (sim->coordinator->epoch == epoch && !sim->coordinator->core)
        sim_coordinator_start(sim);
}

/* After a call of the core in which it crashed. */
static void reap(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c->crashed || !c->core)
        return;
    sim_say(sim, "coordinator crashes");
    sim->crashes++;
    core_free(c->core);
    journal_close(c->journal);
    c->core = NULL;
    c->journal = NULL;
    c->crashed = false;
    c->epoch++;
    sim_at(sim, 50 + (int64_t)sim_below(sim, sim_chance(sim, 100) ? 20000 : 2000), restart, NULL,
           c->epoch);
}

/* An output is about to leave; false: it doesn't, the process is dead. */
static bool may_leave(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c->crashed)
        return false;
    if (c->outputs_left > 0 && --c->outputs_left == 0) {
        c->crashed = true;
        journal_freeze(c->journal);
        return false;
    }
    return true;
}

static void poll_core(struct sim *sim);

static void on_tick(struct sim *sim, void *arg, uint64_t epoch)
{
    struct coordinator *c = sim->coordinator;
    (void)arg;
    if (!c->core || c->epoch != epoch || sim->now < c->tick_at)
        return;
    c->tick_at = INT64_MAX;
    core_tick(c->core);
    poll_core(sim);
}

/* After every call of the core. */
static void poll_core(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c->crashed && core_failed(c->core) != ST_OK)
        sim_fail(sim, "the core gave up: %s", journal_error(c->journal));
    reap(sim);
    if (!c->core)
        return;
    int64_t at = core_deadline(c->core);
    if (at == INT64_MAX || at >= c->tick_at)
        return;
    c->tick_at = at > sim->now ? at : sim->now + 1;
    sim_at(sim, c->tick_at - sim->now, on_tick, NULL, c->epoch);
}

/* ---- streams ---- */

static int64_t in_order(struct sim *sim, int64_t *last, int64_t delay_ms)
{
    int64_t at = sim->now + delay_ms;
    if (at < *last)
        at = *last;
    *last = at;
    return at - sim->now;
}

static int64_t network_ms(struct sim *sim)
{
    return (int64_t)sim_below(sim, sim->chaos && sim_chance(sim, 20) ? 3000 : 10);
}

static struct parcel *pack(struct sim_conn *conn, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    struct parcel *parcel = malloc(sizeof *parcel + size);
    CHECK(parcel);
    parcel->conn = conn;
    parcel->size = size;
    (void)protobuf_c_message_pack(message, parcel->data);
    return parcel;
}

static void to_peer(struct sim *sim, void *arg, uint64_t number)
{
    struct parcel *parcel = arg;
    (void)number;
    if (parcel->conn->peer_open)
        parcel->conn->ops->order(sim, parcel->conn->peer, parcel->data, parcel->size);
    free(parcel);
}

static void peer_closed(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_conn *conn = arg;
    (void)number;
    if (!conn->peer_open)
        return;
    conn->peer_open = false;
    conn->ops->closed(sim, conn->peer);
}

static void core_closed(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_conn *conn = arg;
    struct coordinator *c = sim->coordinator;
    (void)number;
    if (!conn->core_open || conn->epoch != c->epoch || !c->core)
        return;
    conn->core_open = false;
    if (conn->agent)
        core_agent_closed(c->core, &conn->base);
    else
        core_trainer_closed(c->core, &conn->base);
    poll_core(sim);
}

static void to_core(struct sim *sim, void *arg, uint64_t number)
{
    struct parcel *parcel = arg;
    struct sim_conn *conn = parcel->conn;
    struct coordinator *c = sim->coordinator;
    (void)number;
    if (c->core && conn->epoch == c->epoch && conn->core_open) {
        if (conn->agent) {
            Cairn__V1__AgentMessage *message =
                cairn__v1__agent_message__unpack(NULL, parcel->size, parcel->data);
            core_agent_message(c->core, &conn->base, message);
            cairn__v1__agent_message__free_unpacked(message, NULL);
        } else {
            Cairn__V1__TrainerMessage *message =
                cairn__v1__trainer_message__unpack(NULL, parcel->size, parcel->data);
            core_trainer_message(c->core, &conn->base, message);
            cairn__v1__trainer_message__free_unpacked(message, NULL);
        }
        poll_core(sim);
    }
    free(parcel);
}

/* What the promises say about an order that leaves. */
static void check_order(struct sim *sim, const ProtobufCMessage *message)
{
    if (message->descriptor != &cairn__v1__trainer_order__descriptor)
        return;
    const Cairn__V1__TrainerOrder *order = (const Cairn__V1__TrainerOrder *)message;
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_PLAN)
        return;
    const Cairn__V1__Plan *plan = order->plan;
    int job = sim_job_at(sim, plan->job);
    CHECK(job >= 0);
    if (plan->restore_step < sim->jobs[job].acked)
        sim_fail(sim, "%s: generation %u starts from step %llu, but step %llu was acknowledged",
                 plan->job, plan->generation, (unsigned long long)plan->restore_step,
                 (unsigned long long)sim->jobs[job].acked);
}

static void note_done(struct sim *sim, struct sim_conn *conn, const ProtobufCMessage *message)
{
    if (message->descriptor != &cairn__v1__trainer_order__descriptor || !conn->base.job)
        return;
    const Cairn__V1__TrainerOrder *order = (const Cairn__V1__TrainerOrder *)message;
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE ||
        !order->save_done->committed)
        return;
    int job = sim_job_at(sim, conn->base.job->id);
    struct sim_folder *folder =
        sim_folder_of(sim, (uint32_t)job, order->save_done->step, conn->base.generation);
    if (!folder->published)
        sim_fail(sim, "%s: step %llu is acknowledged without a manifest", conn->base.job->id,
                 (unsigned long long)order->save_done->step);
    if (folder->manifest && !folder->damaged && folder->step > sim->jobs[job].acked)
        sim->jobs[job].acked = folder->step;
}

static void conn_send(struct core_conn *base, const ProtobufCMessage *message)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    struct sim *sim = conn->sim;
    if (!may_leave(sim))
        return;
    check_order(sim, message);
    note_done(sim, conn, message);
    if (conn->peer_open)
        sim_at(sim, in_order(sim, &conn->to_peer_at, network_ms(sim)), to_peer, pack(conn, message),
               0);
}

static void conn_finish(struct core_conn *base, enum rpc_code code, const char *detail)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    struct sim *sim = conn->sim;
    (void)code;
    (void)detail;
    if (!may_leave(sim))
        return;
    sim_at(sim, in_order(sim, &conn->to_peer_at, network_ms(sim)), peer_closed, conn, 0);
    sim_at(sim, in_order(sim, &conn->to_core_at, network_ms(sim)), core_closed, conn, 0);
}

static const struct core_conn_ops CONN_OPS = { .send = conn_send, .finish = conn_finish };

static struct sim_conn *make_conn(struct sim *sim, bool agent, const char *token)
{
    struct sim_conn *conn = calloc(1, sizeof *conn);
    CHECK(conn);
    conn->base.ops = &CONN_OPS;
    conn->base.local = true;
    (void)snprintf(conn->base.token, sizeof conn->base.token, "%s", token);
    conn->sim = sim;
    conn->agent = agent;
    conn->core_open = true;
    conn->peer_open = true;
    conn->epoch = sim->coordinator->epoch;
    conn->next = sim->coordinator->conns;
    sim->coordinator->conns = conn;
    return conn;
}

struct sim_conn *sim_connect(struct sim *sim, bool agent, const char *token,
                             const struct sim_peer_ops *ops, void *peer)
{
    if (!sim_coordinator_up(sim))
        return NULL;
    struct sim_conn *conn = make_conn(sim, agent, token);
    conn->ops = ops;
    conn->peer = peer;
    return conn;
}

/* A hello opens a session; all else may come twice. */
static bool may_repeat(const ProtobufCMessage *message)
{
    if (message->descriptor == &cairn__v1__agent_message__descriptor)
        return ((const Cairn__V1__AgentMessage *)message)->body_case !=
               CAIRN__V1__AGENT_MESSAGE__BODY_HELLO;
    return ((const Cairn__V1__TrainerMessage *)message)->body_case !=
           CAIRN__V1__TRAINER_MESSAGE__BODY_HELLO;
}

void sim_send(struct sim *sim, struct sim_conn *conn, const ProtobufCMessage *message)
{
    if (conn->epoch != sim->coordinator->epoch) { /* the coordinator died meanwhile */
        sim_at(sim, 1, peer_closed, conn, 0);
        return;
    }
    sim_at(sim, in_order(sim, &conn->to_core_at, network_ms(sim)), to_core, pack(conn, message), 0);
    if (may_repeat(message) && sim_chance(sim, 20))
        sim_at(sim, in_order(sim, &conn->to_core_at, network_ms(sim)), to_core, pack(conn, message),
               0);
}

void sim_hang_up(struct sim *sim, struct sim_conn *conn)
{
    conn->peer_open = false;
    sim_at(sim, in_order(sim, &conn->to_core_at, network_ms(sim)), core_closed, conn, 0);
}

/* What is under way on it is lost, in both directions. */
void sim_cut(struct sim *sim, struct sim_conn *conn)
{
    if (!conn->peer_open)
        return;
    sim_say(sim, "network cuts the stream of %s", conn->agent ? "an agent" : "a trainer");
    peer_closed(sim, conn, 0);
    sim_at(sim, (int64_t)sim_below(sim, 3000), core_closed, conn, 0);
}

/* ---- the other ports ---- */

struct store_run {
    struct store_task *task;
    uint64_t epoch;
};

static void store_runs(struct sim *sim, void *arg, uint64_t number)
{
    struct store_run *run = arg;
    struct coordinator *c = sim->coordinator;
    (void)number;
    bool lives = c->core && c->epoch == run->epoch;
    if (!lives && sim_chance(sim, 500)) { /* its thread died with the process before it began */
        store_task_free(run->task);
        free(run);
        return;
    }
    /* A late effect of a dead coordinator happens no later than its successor starts. */
    if (lives || !c->core)
        sim_store_run(sim, run->task);
    if (lives) {
        core_store_done(c->core, run->task);
        poll_core(sim);
    } else {
        store_task_free(run->task);
    }
    free(run);
}

static void submit(void *self, struct store_task *task)
{
    struct sim *sim = self;
    if (!may_leave(sim)) {
        store_task_free(task);
        return;
    }
    struct store_run *run = malloc(sizeof *run);
    CHECK(run);
    *run = (struct store_run){ task, sim->coordinator->epoch };
    int64_t *last = &sim->coordinator->store_at; /* its tasks come one after the other */
    int64_t delay = (int64_t)sim_below(sim, sim_chance(sim, 30) ? 3000 : 30);
    sim_at(sim, in_order(sim, last, delay), store_runs, run, 0);
}

static void random_bytes(void *arg, void *out, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)out)[i] = (uint8_t)sim_random(arg);
}

/* ---- life ---- */

void sim_coordinator_start(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c) {
        c = calloc(1, sizeof *c);
        CHECK(c);
        c->log = (struct log){ .fd = sim->options.verbose ? 2 : -1,
                               .level = LOG_LEVEL_INFO,
                               .program = "cairnd",
                               .rank = -1,
                               .generation = -1 };
        sim->coordinator = c;
    }
    sim_say(sim, "coordinator starts");
    c->tick_at = INT64_MAX;
    c->store_at = 0;
    c->outputs_left = sim->chaos && sim_chance(sim, 500) ? 1 + (int64_t)sim_below(sim, 300) : -1;
    CHECK(journal_open(sim->path, &c->journal) == ST_OK);
    struct core_options options = { .clock = &sim->clock,
                                    .log = &c->log,
                                    .journal = c->journal,
                                    .store = { .self = sim, .submit = submit },
                                    .random = random_bytes,
                                    .random_arg = sim,
                                    .hang_ms = 8000 };
    CHECK(core_new(&options, &c->core) == ST_OK);
    poll_core(sim);
}

void sim_coordinator_crash(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c->core)
        return;
    c->crashed = true;
    journal_freeze(c->journal);
    reap(sim);
}

void sim_coordinator_free(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c)
        return;
    core_free(c->core);
    journal_close(c->journal);
    while (c->conns) {
        struct sim_conn *conn = c->conns;
        c->conns = conn->next;
        free(conn);
    }
    free(c);
}

/* What an event that never happened would have freed. */
void sim_coordinator_drop(sim_fn fn, void *arg)
{
    if (fn == to_peer || fn == to_core) {
        free(arg);
    } else if (fn == store_runs) {
        store_task_free(((struct store_run *)arg)->task);
        free(arg);
    }
}

/* ---- users ---- */

void sim_coordinator_submit(struct sim *sim, uint32_t index)
{
    struct coordinator *c = sim->coordinator;
    struct sim_job *job = &sim->jobs[index];
    char text[512], key[32], reason[LIMIT_REASON] = "";
    if (!c->core || job->submitted)
        return;
    (void)snprintf(text, sizeof text,
                   "name: job%u\nmodel: {arch: mlp, classes: 10}\n"
                   "data: {train: {format: synthetic, samples: 1000}}\n"
                   "train: {duration: %llu steps, global_batch: 64, lanes: 8, optimizer: {name: "
                   "sgd, lr: 0.1}, seed: 1}\n"
                   "workers: {count: %u}\n"
                   "checkpoint: {every: %llu steps, keep: {last: 2}, store: /store}\n",
                   index, (unsigned long long)job->total, job->ranks,
                   (unsigned long long)job->every);
    static struct job spec;
    struct buf errors;
    buf_init(&errors, 65536);
    if (job_parse(text, strlen(text), "sim", "/", NULL, 0, &spec, &errors) != ST_OK)
        sim_fail(sim, "the simulated job file: %s", errors.data);
    buf_release(&errors);
    (void)snprintf(key, sizeof key, "key%u", index);
    struct core_job *made;
    enum status st = core_submit(c->core, &spec, text, key, &made, reason);
    if (st == ST_OK && !c->crashed) {
        job->submitted = true;
        (void)snprintf(job->id, sizeof job->id, "%s", made->id);
    } else if (st == ST_OK) { /* it may be in the journal: the same key finds it again */
        (void)snprintf(job->id, sizeof job->id, "%s", made->id);
    }
    poll_core(sim);
}

static struct core_job *job_of(struct sim *sim, uint32_t index)
{
    struct core_job *job;
    struct coordinator *c = sim->coordinator;
    if (!c->core || !sim->jobs[index].submitted)
        return NULL;
    if (core_find(c->core, sim->jobs[index].id, &job) != ST_OK)
        sim_fail(sim, "job %s was acknowledged and is forgotten", sim->jobs[index].id);
    return job;
}

static void ask(struct sim *sim, uint32_t index, enum job_event_kind kind)
{
    struct core_job *job = job_of(sim, index);
    if (!job)
        return;
    enum status st = core_ask(sim->coordinator->core, job, kind);
    bool crashed = sim->coordinator->crashed;
    if (st == ST_OK)
        sim_say(sim, "%s is asked: %d", sim->jobs[index].id, (int)kind);
    if (st == ST_OK && kind == EV_KILL)
        sim->jobs[index].killed = true;
    if (st == ST_OK && kind == EV_STOP)
        sim->jobs[index].stopped = true;
    (void)crashed;
    poll_core(sim);
}

void sim_coordinator_chaos(struct sim *sim)
{
    uint32_t index = (uint32_t)sim_below(sim, sim->job_count);
    uint64_t what = sim_below(sim, 100);
    if (what < 30)
        ask(sim, index, EV_SAVE);
    else if (what < 50)
        ask(sim, index, EV_PAUSE);
    else if (what < 90)
        ask(sim, index, EV_RESUME);
    else if (what < 93)
        ask(sim, index, EV_KILL);
    else if (what < 96)
        ask(sim, index, EV_STOP);
    else if (sim->coordinator->core && sim_chance(sim, 300)) {
        core_drain(sim->coordinator->core, sim_chance(sim, 300));
        poll_core(sim);
    }
    if (sim->coordinator->core && sim->coordinator->outputs_left < 0 && sim_chance(sim, 100))
        sim->coordinator->outputs_left = 1 + (int64_t)sim_below(sim, 50);
}

bool sim_coordinator_done(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c->core)
        return false;
    c->outputs_left = -1;
    core_drain_end(c->core);
    poll_core(sim);
    for (uint32_t i = 0; i < sim->job_count; i++) {
        sim_coordinator_submit(sim, i);
        struct core_job *job = job_of(sim, i);
        if (!job)
            return false;
        if (job->m.state == JOB_PAUSED)
            ask(sim, i, EV_RESUME);
        if (!job_state_final(job->m.state))
            return false;
    }
    return true;
}

/* ---- promises ---- */

static void check_job(struct sim *sim, uint32_t index, struct core_job *job)
{
    const struct sim_job *known = &sim->jobs[index];
    const struct job_machine *m = &job->m;
    if (m->generation < known->generation)
        sim_fail(sim, "%s: generation %u is known to agents, the coordinator knows %u", known->id,
                 known->generation, m->generation);
    for (size_t i = 0; i < m->catalog_count; i++) {
        const struct jm_ckpt *ckpt = &m->catalog[i];
        if (ckpt->state != CKPT_GOOD)
            continue;
        const struct sim_folder *folder = sim_folder_of(sim, index, ckpt->step, ckpt->generation);
        if (!folder->manifest)
            sim_fail(sim, "%s: the catalog has step %llu g%u, the store does not", known->id,
                     (unsigned long long)ckpt->step, ckpt->generation);
    }
}

void sim_coordinator_check(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count; i++) {
        struct core_job *job = job_of(sim, i);
        if (job)
            check_job(sim, i, job);
    }
}

void sim_coordinator_stuck(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count; i++) {
        struct core_job *job = job_of(sim, i);
        if (!job || job_state_final(job->m.state))
            continue;
        const struct job_machine *m = &job->m;
        sim_fail(sim, "%s does not end: %s to %d, g%u step %llu/%llu intent %d reason '%s'",
                 job->id, job_state_name(m->state), (int)m->end_to, m->generation,
                 (unsigned long long)jm_step_now(m), (unsigned long long)m->total_steps,
                 (int)m->intent, m->reason);
    }
    sim_fail(sim, "trainers are left though all jobs ended");
}

void sim_coordinator_end(struct sim *sim)
{
    for (uint32_t i = 0; i < sim->job_count; i++) {
        const struct sim_job *known = &sim->jobs[i];
        struct core_job *job = job_of(sim, i);
        const struct job_machine *m = &job->m;
        char digest[33];
        (void)snprintf(digest, sizeof digest, "%032llx",
                       (unsigned long long)sim_state(i, known->total));
        bool worn_out =
            m->state == JOB_FAILED && (m->barren >= 10 || m->budget_used >= 3 || known->user_error);
        bool as_asked = (m->state == JOB_KILLED && known->killed) ||
                        (m->state == JOB_STOPPED && known->stopped);
        if (m->state == JOB_SUCCEEDED && strcmp(m->final_digest, digest) != 0)
            sim_fail(sim, "%s: final digest %s, should be %s", known->id, m->final_digest, digest);
        if (m->state != JOB_SUCCEEDED && !worn_out && !as_asked)
            sim_fail(sim, "%s ends %s: %s", known->id, job_state_name(m->state), m->reason);
        if (known->user_error && m->state == JOB_SUCCEEDED)
            sim_fail(sim, "%s succeeded with a user error", known->id);
        sim_say(sim, "%s: %s after %u generations, %s", known->id, job_state_name(m->state),
                m->generation, m->reason);
    }
}
