/*
 * The real core, with the world as its ports. It may "crash" at any of its outputs: what it sends
 * from then on is dropped, what it would still journal is rolled back, and it is opened anew later.
 */
#include "tests/sim/sim_coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/sim/sim.h"

#define GROUP_MS 20 /* a group is committed after that time at most */

struct parcel {
    struct sim_conn *conn;
    size_t size;
    uint8_t data[];
};

bool sim_coordinator_up(const struct sim *sim)
{
    return sim->coordinator != NULL && sim->coordinator->coord != NULL &&
           !sim->coordinator->crashed;
}

bool sim_coordinator_runs(const struct sim *sim)
{
    const struct coordinator *c = sim->coordinator;
    return c->coord != NULL && sim->now >= c->frozen_until && sim->now >= c->unplugged_until;
}

/* ---- crash and restart ---- */

static void start_again(struct sim *sim, void *arg, uint64_t epoch)
{
    (void)arg;
    if (sim->coordinator->epoch == epoch && sim->coordinator->coord == NULL)
        sim_coordinator_start(sim);
}

/* After a call of the core in which it crashed. */
static void reap_core(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (!c->crashed || c->coord == NULL)
        return;
    sim_say(sim, "coordinator crashes");
    sim->crashes++;
    c->frozen_until = 0;
    coord_free(c->coord);
    journal_close(c->journal);
    c->coord = NULL;
    c->journal = NULL;
    c->crashed = false;
    c->ending = false;
    c->group_left = 0;
    c->epoch++;
    sim_at(sim, 50 + (int64_t)sim_below(sim, sim_chance(sim, 100) ? 20000 : 2000), start_again,
           NULL, c->epoch);
}

/* An output is about to leave; false: it doesn't, the process is dead. */
bool sim_may_leave(struct sim *sim)
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

/* Something for the core: true if it has to wait, and comes again when the process runs. */
bool sim_has_to_wait(struct sim *sim, sim_fn fn, void *arg, uint64_t number)
{
    struct coordinator *c = sim->coordinator;
    if (sim->now < c->frozen_until) {
        sim_at(sim, c->frozen_until - sim->now, fn, arg, number);
        return true;
    }
    if (c->coord != NULL)
        coord_wake(c->coord);
    return false;
}

static void on_tick(struct sim *sim, void *arg, uint64_t epoch)
{
    struct coordinator *c = sim->coordinator;
    if (c->coord == NULL || c->epoch != epoch || sim->now < c->tick_at ||
        sim_has_to_wait(sim, on_tick, arg, epoch))
        return;
    c->tick_at = INT64_MAX;
    coord_tick(c->coord);
    sim_poll_core(sim);
}

static void on_group_end(struct sim *sim, void *arg, uint64_t epoch)
{
    struct coordinator *c = sim->coordinator;
    if (c->coord == NULL || c->epoch != epoch || sim_has_to_wait(sim, on_group_end, arg, epoch))
        return;
    c->ending = false;
    sim_end_group(sim);
}

void sim_end_group(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    c->group_left = 0;
    if (c->coord != NULL && !c->crashed && sim->group_max > 1 && sim->chaos && sim_chance(sim, 2)) {
        c->crashed = true; /* with all of the group applied, and nothing of it journalled */
        journal_freeze(c->journal);
    }
    if (c->coord != NULL && !c->crashed)
        (void)coord_commit(c->coord);
    if (c->coord != NULL && !c->crashed && coord_failed(c->coord) != ST_OK)
        sim_fail(sim, "the core gave up: %s", journal_error(c->journal));
    reap_core(sim);
    if (c->coord == NULL)
        return;
    coord_check(c->coord);
    int64_t at = coord_deadline(c->coord);
    if (at == INT64_MAX || at >= c->tick_at)
        return;
    c->tick_at = at > sim->now ? at : sim->now + 1;
    sim_at(sim, c->tick_at - sim->now, on_tick, NULL, c->epoch);
}

/* After every call of the core: is it the last of its group? */
void sim_poll_core(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c->group_left == 0 && sim->group_max > 1)
        c->group_left = 1 + (uint32_t)sim_below(sim, sim->group_max);
    if (c->coord == NULL || c->crashed || coord_failed(c->coord) != ST_OK || c->group_left <= 1) {
        sim_end_group(sim);
        return;
    }
    c->group_left--;
    if (c->ending)
        return;
    c->ending = true;
    sim_at(sim, 1 + (int64_t)sim_below(sim, GROUP_MS), on_group_end, NULL, c->epoch);
}

/* ---- streams ---- */

int64_t sim_in_order(struct sim *sim, int64_t *last, int64_t delay_ms)
{
    int64_t at = sim->now + delay_ms;
    if (at < *last)
        at = *last;
    *last = at;
    return at - sim->now;
}

static int64_t network_ms(struct sim *sim, const struct sim_conn *conn, bool to_core)
{
    const int64_t plugged_at = sim->coordinator->unplugged_until;
    const int64_t cut_ms = sim_control_away_ms(sim, conn->node, to_core);
    int64_t away_ms = sim->now < plugged_at ? plugged_at - sim->now : 0;
    away_ms = cut_ms > away_ms ? cut_ms : away_ms;
    return away_ms + (int64_t)sim_below(sim, sim->chaos && sim_chance(sim, 20) ? 3000 : 10);
}

static struct parcel *make_parcel(struct sim_conn *conn, size_t size)
{
    struct parcel *parcel = malloc(sizeof(*parcel) + size);
    CHECK(parcel != NULL);
    parcel->conn = conn;
    parcel->size = size;
    return parcel;
}

static struct parcel *pack(struct sim_conn *conn, const ProtobufCMessage *message)
{
    struct parcel *parcel = make_parcel(conn, protobuf_c_message_get_packed_size(message));
    (void)protobuf_c_message_pack(message, parcel->data);
    return parcel;
}

static void to_far(struct sim *sim, void *arg, uint64_t number)
{
    struct parcel *parcel = arg;
    (void)number;
    if (parcel->conn->far_open)
        parcel->conn->ops->order(sim, parcel->conn->far, parcel->data, parcel->size);
    free(parcel);
}

static void far_closed(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_conn *conn = arg;
    (void)number;
    if (!conn->far_open)
        return;
    conn->far_open = false;
    conn->ops->closed(sim, conn->far);
}

/* True if a message over a connection has to wait; number: 1, once it waited. Messages of the very
 * moment in which the process runs again come behind those that waited. */
static bool stands_in_line(struct sim *sim, sim_fn fn, void *arg, uint64_t number)
{
    if (number == 0 && sim->now == sim->coordinator->frozen_until) {
        sim_at(sim, 0, fn, arg, 1);
        return true;
    }
    return sim_has_to_wait(sim, fn, arg, 1);
}

static void coord_closed(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_conn *conn = arg;
    struct coordinator *c = sim->coordinator;
    if (stands_in_line(sim, coord_closed, arg, number))
        return;
    if (!conn->coord_open || conn->epoch != c->epoch || c->coord == NULL)
        return;
    conn->coord_open = false;
    if (conn->agent)
        coord_agent_closed(c->coord, &conn->base);
    else
        coord_trainer_closed(c->coord, &conn->base);
    sim_poll_core(sim);
}

static bool says_that_it_leaves(const Cairn__V1__AgentMessage *message)
{
    return message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING ||
           (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_HELLO &&
            message->hello->leaving != NULL);
}

static void to_core(struct sim *sim, void *arg, uint64_t number)
{
    struct parcel *parcel = arg;
    struct sim_conn *conn = parcel->conn;
    struct coordinator *c = sim->coordinator;
    if (stands_in_line(sim, to_core, arg, number))
        return;
    if (c->coord != NULL && conn->epoch == c->epoch && conn->coord_open) {
        if (conn->agent) {
            Cairn__V1__AgentMessage *message =
                cairn__v1__agent_message__unpack(NULL, parcel->size, parcel->data);
            conn->leaves = conn->leaves || says_that_it_leaves(message);
            coord_agent_message(c->coord, &conn->base, message);
            cairn__v1__agent_message__free_unpacked(message, NULL);
        } else {
            Cairn__V1__TrainerMessage *message =
                cairn__v1__trainer_message__unpack(NULL, parcel->size, parcel->data);
            coord_trainer_message(c->coord, &conn->base, message);
            if (conn->base.job != NULL)
                (void)snprintf(conn->job, sizeof(conn->job), "%s", conn->base.job->id);
            if (conn->base.job != NULL &&
                message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS)
                sim_silence_hear(sim, conn->base.job, conn->base.generation,
                                 message->progress->step);
            cairn__v1__trainer_message__free_unpacked(message, NULL);
        }
        sim_poll_core(sim);
    }
    free(parcel);
}

/* What the promises say about an order that leaves. */
static void check_order(struct sim *sim, const Cairn__V1__TrainerOrder *order)
{
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_PLAN)
        return;
    const Cairn__V1__Plan *plan = order->plan;
    int job = sim_job_at(sim, plan->job);
    CHECK(job >= 0);
    sim_spare_check_plan(sim, sim->coordinator->coord, (uint32_t)job, plan);
    if (plan->spare) /* it restores nothing */
        return;
    sim_parked_check(sim, sim->coordinator->coord, (uint32_t)job, plan);
    sim_program_check_plan(sim, sim->coordinator->coord, (uint32_t)job, plan);
    /* A plan may be said again to who lost it, when its own generation has saved since. */
    if (plan->restore_step < sim->jobs[job].acked && plan->generation > sim->jobs[job].acked_by &&
        !sim_store_lost(sim, (uint32_t)job, sim->jobs[job].acked))
        sim_fail(sim, "%s: generation %u starts from step %llu, but step %llu was acknowledged",
                 plan->job, plan->generation, (unsigned long long)plan->restore_step,
                 (unsigned long long)sim->jobs[job].acked);
}

static void note_done(struct sim *sim, struct sim_conn *conn, const Cairn__V1__TrainerOrder *order)
{
    if (order->body_case != CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE ||
        !order->save_done->committed || !conn->job[0])
        return;
    int job = sim_job_at(sim, conn->job);
    struct sim_folder *folder =
        sim_folder_of(sim, (uint32_t)job, order->save_done->step, conn->base.generation);
    if (!folder->published)
        sim_fail(sim, "%s: step %llu is acknowledged without a manifest", conn->job,
                 (unsigned long long)order->save_done->step);
    if (folder->manifest && !sim_folder_damaged(sim, folder) &&
        folder->step > sim->jobs[job].acked) {
        sim->jobs[job].acked = folder->step;
        sim->jobs[job].acked_by = conn->base.generation;
    }
}

/* true: of a spare, which has no part in the generation that it is born in. */
static bool note_start(struct sim *sim, const Cairn__V1__StartTrainer *start)
{
    struct coord_job *of = coord_loaded(sim->coordinator->coord, start->ref->job);
    const int job = sim_job_at(sim, start->ref->job);
    if (job < 0)
        return false;
    char *token = sim->jobs[job].spares_token;
    if (of != NULL && of->m.spares.token[0])
        (void)snprintf(token, sizeof(sim->jobs[job].spares_token), "%s", of->m.spares.token);
    return strcmp(token, start->token) == 0;
}

/* In a group an order may wait that is older than what the agent said. */
static void check_agent_order(struct sim *sim, const struct sim_conn *conn,
                              const struct coord_message *message)
{
    Cairn__V1__AgentOrder *order =
        cairn__v1__agent_order__unpack(NULL, message->size, message->data);
    CHECK(order != NULL);
    if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_START && conn->leaves &&
        sim->group_max == 1)
        sim_fail(sim, "%s: generation %u is started on a node that leaves", order->start->ref->job,
                 order->start->ref->generation);
    if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_START && !note_start(sim, order->start))
        sim_netpaths_check_start(sim, sim->coordinator->coord, order->start->ref->job,
                                 order->start->ref->generation);
    if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_END) {
        sim_parked_check_end(sim, sim->coordinator->coord, order->end->ref);
        sim_plain_check_end(sim, sim->coordinator->coord, order->end->ref);
    }
    cairn__v1__agent_order__free_unpacked(order, NULL);
}

static void look_at(struct sim *sim, struct sim_conn *conn, const struct coord_message *message)
{
    if (message->type == &cairn__v1__agent_order__descriptor)
        check_agent_order(sim, conn, message);
    if (message->type != &cairn__v1__trainer_order__descriptor)
        return;
    Cairn__V1__TrainerOrder *order =
        cairn__v1__trainer_order__unpack(NULL, message->size, message->data);
    CHECK(order != NULL);
    check_order(sim, order);
    note_done(sim, conn, order);
    if (order->body_case == CAIRN__V1__TRAINER_ORDER__BODY_OVER && conn->far_open)
        sim_parked_check_over(sim, sim->coordinator->coord, sim_trainer_view(conn->far));
    cairn__v1__trainer_order__free_unpacked(order, NULL);
}

static void conn_send(struct coord_conn *base, const struct coord_message *message)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    struct sim *sim = conn->sim;
    if (!sim_may_leave(sim))
        return;
    look_at(sim, conn, message);
    if (!conn->far_open)
        return;
    struct parcel *parcel = make_parcel(conn, message->size);
    memcpy(parcel->data, message->data, message->size);
    sim_at(sim, sim_in_order(sim, &conn->to_far_at, network_ms(sim, conn, false)), to_far, parcel,
           0);
}

static void conn_finish(struct coord_conn *base, enum rpc_code code, const char *detail)
{
    struct sim_conn *conn = (struct sim_conn *)base;
    struct sim *sim = conn->sim;
    (void)code;
    (void)detail;
    if (!sim_may_leave(sim))
        return;
    sim_at(sim, sim_in_order(sim, &conn->to_far_at, network_ms(sim, conn, false)), far_closed, conn,
           0);
    sim_at(sim, sim_in_order(sim, &conn->to_core_at, network_ms(sim, conn, true)), coord_closed,
           conn, 0);
}

static const struct coord_conn_ops CONN_OPS = { .send = conn_send, .finish = conn_finish };

static struct sim_conn *make_conn(struct sim *sim, bool agent, uint32_t node, const char *token)
{
    struct sim_conn *conn = calloc(1, sizeof(*conn));
    CHECK(conn != NULL);
    conn->base.ops = &CONN_OPS;
    conn->base.local = false;
    (void)snprintf(conn->base.token, sizeof(conn->base.token), "%s", token);
    conn->sim = sim;
    conn->agent = agent;
    conn->node = node;
    conn->coord_open = true;
    conn->far_open = true;
    conn->epoch = sim->coordinator->epoch;
    conn->next = sim->coordinator->conns;
    sim->coordinator->conns = conn;
    return conn;
}

struct sim_conn *sim_connect(struct sim *sim, bool agent, uint32_t node, const char *token,
                             const struct sim_far_ops *ops, void *far)
{
    if (!sim_coordinator_up(sim) || sim->now < sim->coordinator->unplugged_until ||
        sim_control_away_ms(sim, node, true) > 0 || sim_control_away_ms(sim, node, false) > 0)
        return NULL;
    struct sim_conn *conn = make_conn(sim, agent, node, token);
    conn->ops = ops;
    conn->far = far;
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
        sim_at(sim, 1, far_closed, conn, 0);
        return;
    }
    sim_at(sim, sim_in_order(sim, &conn->to_core_at, network_ms(sim, conn, true)), to_core,
           pack(conn, message), 0);
    if (may_repeat(message) && sim_chance(sim, 20))
        sim_at(sim, sim_in_order(sim, &conn->to_core_at, network_ms(sim, conn, true)), to_core,
               pack(conn, message), 0);
}

void sim_vanish(struct sim_conn *conn)
{
    conn->far_open = false;
}

void sim_hang_up(struct sim *sim, struct sim_conn *conn)
{
    conn->far_open = false;
    sim_at(sim, sim_in_order(sim, &conn->to_core_at, network_ms(sim, conn, true)), coord_closed,
           conn, 0);
}

/* What is under way on it is lost, in both directions. */
void sim_cut(struct sim *sim, struct sim_conn *conn)
{
    if (!conn->far_open)
        return;
    sim_say(sim, "network cuts the stream of %s", conn->agent ? "an agent" : "a trainer");
    far_closed(sim, conn, 0);
    sim_at(sim, (int64_t)sim_below(sim, 3000), coord_closed, conn, 0);
}

/* ---- life ---- */

static void random_bytes(void *arg, void *out, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)out)[i] = (uint8_t)sim_random(arg);
}

void sim_coordinator_start(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c == NULL) {
        c = calloc(1, sizeof(*c));
        CHECK(c != NULL);
        c->log = (struct log){ .fd = sim->options.verbose ? 2 : -1,
                               .level = LOG_LEVEL_INFO,
                               .program = "cairnd",
                               .rank = -1,
                               .generation = -1 };
        sim->coordinator = c;
    }
    sim_say(sim, "coordinator starts");
    c->tick_at = INT64_MAX;
    c->started_at = sim->now;
    if (sim->options
            .calm) /* one that starts without a network knows of no nodes that it could hold */
        c->unplugged_until = 0;
    c->store_at = 0;
    c->outputs_left = sim->chaos && sim_chance(sim, 500) ? 1 + (int64_t)sim_below(sim, 300) : -1;
    CHECK(journal_open(sim->path, &c->journal) == ST_OK);
    struct coord_options options = { .clock = &sim->clock,
                                     .log = &c->log,
                                     .journal = c->journal,
                                     .store = { .self = sim, .submit = sim_task_submit },
                                     .random = random_bytes,
                                     .random_arg = sim,
                                     /* One job that ended has to make room for the next. */
                                     .ended_max = sim->options.seed % 3 == 0 ? 1 : 0,
                                     .restarts = sim->options.seed % 5 == 0,
                                     .hang_ms = 8000 };
    CHECK(coord_new(&options, &c->coord) == ST_OK);
    sim_poll_core(sim);
}

void sim_coordinator_unplug(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    bool ready = !sim->options.calm || (c->coord != NULL && sim->now >= c->frozen_until);
    for (uint32_t i = 0; sim->options.calm && i < sim->node_count; i++)
        ready = ready && sim_node_serves(sim, sim->nodes[i]);
    if (sim->now < c->unplugged_until || !ready)
        return;
    c->unplugged_until = sim->now + 1000 + (int64_t)sim_below(sim, 60000);
    sim->was_unplugged = true;
    sim_say(sim, "coordinator's network is away for %lld ms",
            (long long)(c->unplugged_until - sim->now));
}

void sim_coordinator_freeze(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c->coord == NULL || sim->now < c->frozen_until)
        return;
    c->frozen_until = sim->now + 1000 + (int64_t)sim_below(sim, 30000);
    sim_say(sim, "coordinator is stopped for %lld ms", (long long)(c->frozen_until - sim->now));
}

void sim_coordinator_crash(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c->coord == NULL)
        return;
    c->crashed = true;
    journal_freeze(c->journal);
    reap_core(sim);
}

void sim_coordinator_free(struct sim *sim)
{
    struct coordinator *c = sim->coordinator;
    if (c == NULL)
        return;
    coord_free(c->coord);
    journal_close(c->journal);
    while (c->conns != NULL) {
        struct sim_conn *conn = c->conns;
        c->conns = conn->next;
        free(conn);
    }
    free(c);
}

/* What an event that never happened would have freed. */
void sim_coordinator_drop(sim_fn fn, void *arg)
{
    if (fn == to_far || fn == to_core) {
        free(arg);
    } else {
        sim_task_drop(fn, arg);
    }
}
