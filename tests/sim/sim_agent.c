/* Agents and their machines. A trainer outlives its agent, never its machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/v1/fleet.pb-c.h"
#include "common/check.h"
#include "tests/sim/sim.h"

#define LEAVE_KILL_MS 3000 /* from SIGKILL to the end */

struct sim_node {
    char name[16];
    uint32_t index;
    bool up;   /* the machine */
    bool gone; /* it never comes back */
    int64_t up_since, down_since;
    bool agent; /* its agent's process */
    struct sim_conn *conn;
    int64_t connect_at, connected_at;
    uint64_t life;     /* of the agent's process */
    int64_t leaves_by; /* its agent was told to end, and kills what runs then; 0: it wasn't */
};

uint32_t sim_node_data(const struct sim *sim, const struct sim_node *node)
{
    return sim->edited[node->index];
}

bool sim_node_leaves(const struct sim_node *node)
{
    return node->leaves_by != 0;
}

uint32_t sim_node_index(const struct sim_node *node)
{
    return node->index;
}

const char *sim_node_name(const struct sim_node *node)
{
    return node->name;
}

void sim_node_free(struct sim_node *node)
{
    free(node);
}

static Cairn__V1__TrainerRef ref_of(struct sim *sim, const struct sim_trainer_view *view)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = sim->jobs[view->start.job].id;
    ref.generation = view->birth;
    ref.rank = view->start.number;
    return ref;
}

enum sim_flaw sim_node_flaw(struct sim *sim, const struct sim_node *node)
{
    return node->index == sim->flawed ? sim->flaw : SIM_NO_FLAW;
}

bool sim_node_serves(struct sim *sim, const struct sim_node *node)
{
    return node->agent && node->conn != NULL && node->leaves_by == 0 &&
           !sim_audit_drained(sim, node->index) && sim->now - node->connected_at > 8000 &&
           sim_node_flaw(sim, node) == SIM_NO_FLAW;
}

/* ---- what it says ---- */

static void say_exit(struct sim *sim, struct sim_node *node, struct sim_trainer *trainer)
{
    struct sim_trainer_view *view = sim_trainer_view(trainer);
    if (node->conn == NULL)
        return;
    uint8_t *data;
    size_t size;
    sim_trainer_words(trainer, &data, &size);
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, data);
    CHECK(words != NULL);
    Cairn__V1__TrainerRef ref = ref_of(sim, view);
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = &ref;
    exited.pid = view->pid;
    exited.cause = view->exit == SIM_EXIT ? CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT
                                          : CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL;
    exited.code = view->exit == SIM_EXIT ? view->code : 0;
    exited.signal = view->exit == SIM_EXIT ? 0 : view->code;
    exited.words__case = CAIRN__V1__TRAINER_EXITED__WORDS__WORDS;
    exited.words = words;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = &exited;
    sim_send(sim, node->conn, &message.base);
    cairn__v1__last_words__free_unpacked(words, NULL);
    free(data);
}

static void say_none(struct sim *sim, struct sim_node *node, Cairn__V1__TrainerRef *ref)
{
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = ref;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = &exited;
    sim_send(sim, node->conn, &message.base);
}

static void say_failed_start(struct sim *sim, struct sim_node *node, Cairn__V1__TrainerRef *ref)
{
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = ref;
    exited.cause = CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED;
    exited.message = (char *)SIM_FLAW;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_EXITED;
    message.exited = &exited;
    sim_send(sim, node->conn, &message.base);
}

static void say_started(struct sim *sim, struct sim_node *node, struct sim_trainer *trainer)
{
    struct sim_trainer_view *view = sim_trainer_view(trainer);
    Cairn__V1__TrainerRef ref = ref_of(sim, view);
    Cairn__V1__TrainerStarted started = CAIRN__V1__TRAINER_STARTED__INIT;
    started.ref = &ref;
    started.pid = view->pid;
    started.slot = view->start.slot;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_STARTED;
    message.started = &started;
    sim_send(sim, node->conn, &message.base);
}

static Cairn__V1__AgentLeaving leaving_of(const struct sim *sim, const struct sim_node *node)
{
    Cairn__V1__AgentLeaving leaving = CAIRN__V1__AGENT_LEAVING__INIT;
    leaving.grace_ms = node->leaves_by > sim->now ? (uint32_t)(node->leaves_by - sim->now) : 0;
    leaving.reason = (char *)"SIGTERM";
    return leaving;
}

static void say_leaving(struct sim *sim, struct sim_node *node)
{
    Cairn__V1__AgentLeaving leaving = leaving_of(sim, node);
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING;
    message.leaving = &leaving;
    sim_send(sim, node->conn, &message.base);
}

static void say_left(struct sim *sim, struct sim_node *node)
{
    Cairn__V1__AgentLeft left = CAIRN__V1__AGENT_LEFT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEFT;
    message.left = &left;
    sim_send(sim, node->conn, &message.base);
}

static void say_hello(struct sim *sim, struct sim_node *node)
{
    Cairn__V1__RunningTrainer running[SIM_SLOTS * 4], *list[SIM_SLOTS * 4];
    Cairn__V1__TrainerRef refs[SIM_SLOTS * 4];
    Cairn__V1__AgentHello hello = CAIRN__V1__AGENT_HELLO__INIT;
    hello.node = node->name;
    hello.slots = sim->slots;
    hello.host = node->name;
    hello.probe_port = 1;
    hello.device = "cpu";
    hello.version = CAIRN_VERSION;
    hello.running = list;
    Cairn__V1__AgentLeaving leaving = leaving_of(sim, node);
    hello.leaving = node->leaves_by != 0 ? &leaving : NULL;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node != node || view->exit != SIM_RUNS || hello.n_running == SIM_SLOTS * 4)
            continue;
        size_t at = hello.n_running++;
        refs[at] = ref_of(sim, view);
        running[at] = (Cairn__V1__RunningTrainer)CAIRN__V1__RUNNING_TRAINER__INIT;
        running[at].ref = &refs[at];
        running[at].pid = view->pid;
        running[at].slot = view->start.slot;
        list[at] = &running[at];
    }
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_HELLO;
    message.hello = &hello;
    sim_send(sim, node->conn, &message.base);
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node == node && view->exit != SIM_RUNS && !view->acked)
            say_exit(sim, node, sim->trainers[i]);
    }
}

void sim_agent_exited(struct sim *sim, struct sim_trainer *trainer)
{
    struct sim_node *node = sim_trainer_view(trainer)->node;
    if (node->agent && node->conn != NULL)
        say_exit(sim, node, trainer);
}

/* ---- what it is told ---- */

static struct sim_trainer *find_trainer(struct sim *sim, const struct sim_node *node,
                                        const Cairn__V1__TrainerRef *ref)
{
    int job = sim_job_at(sim, ref->job);
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node == node && (int)view->start.job == job && view->birth == ref->generation &&
            view->start.number == ref->rank)
            return sim->trainers[i];
    }
    return NULL;
}

/* One process per slot, one generation at a time, and generations only rise: but what the network
 * kept back for long may reach a node that was given up meanwhile, and is ended there. */
static void check_start(struct sim *sim, const struct sim_node *node,
                        const Cairn__V1__StartTrainer *start)
{
    int job = sim_job_at(sim, start->ref->job);
    CHECK(job >= 0);
    struct sim_job *known = &sim->jobs[job];
    /* A spare is of none: the one that it was born in may be over by now. */
    const bool spare = strcmp(start->token, known->spares_token) == 0;
    if (start->ref->generation < known->generation && !sim->was_unplugged && !spare)
        sim_fail(sim, "%s: generation %u is started after %u", known->id, start->ref->generation,
                 known->generation);
    if (start->ref->generation > known->generation)
        known->generation = start->ref->generation;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node != node || view->start.slot != start->slot || view->exit != SIM_RUNS)
            continue;
        sim_fail(sim, "%s is started in slot %u of %s, which g%u w%u of %s holds", known->id,
                 start->slot, node->name, view->start.generation, view->start.number,
                 sim->jobs[view->start.job].id);
    }
}

static void take_start(struct sim *sim, struct sim_node *node, const Cairn__V1__StartTrainer *order)
{
    struct sim_trainer *trainer = find_trainer(sim, node, order->ref);
    if (trainer != NULL && sim_trainer_view(trainer)->exit == SIM_RUNS) {
        say_started(sim, node, trainer);
        return;
    }
    if (trainer != NULL) {
        say_exit(sim, node, trainer);
        return;
    }
    if (node->leaves_by != 0) {
        say_none(sim, node, order->ref);
        return;
    }
    check_start(sim, node, order);
    if (sim_node_flaw(sim, node) == SIM_STARTS_NOTHING) {
        say_failed_start(sim, node, order->ref);
        return;
    }
    struct sim_start start = { .job = (uint32_t)sim_job_at(sim, order->ref->job),
                               .generation = order->ref->generation,
                               .number = order->ref->rank,
                               .slot = order->slot };
    start.spare = strcmp(order->token, sim->jobs[start.job].spares_token) == 0;
    (void)snprintf(start.token, sizeof(start.token), "%s", order->token);
    trainer = sim_trainer_new(sim, node, &start);
    say_started(sim, node, trainer);
}

#define PROBE_MS 1000

/* number: id and node of an order to probe. */
static void say_probed(struct sim *sim, void *arg, uint64_t number)
{
    struct sim_node *node = arg;
    const uint32_t to = (uint32_t)(number % SIM_NODES);
    if (!node->agent || node->conn == NULL)
        return;
    Cairn__V1__ProbeResult result = CAIRN__V1__PROBE_RESULT__INIT;
    result.id = number / SIM_NODES;
    result.reached = sim->nodes[to]->agent && sim_path_works(sim, node->index, to);
    result.saw = result.reached ? "reached" : "no answer";
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_PROBED;
    message.probed = &result;
    sim_send(sim, node->conn, &message.base);
}

static void take_probe(struct sim *sim, struct sim_node *node, const Cairn__V1__Probe *order)
{
    uint32_t to = 0;
    while (to < sim->node_count && strcmp(sim->nodes[to]->name, order->host) != 0)
        to++;
    if (to == sim->node_count)
        sim_fail(sim, "%s is to probe %s", node->name, order->host);
    sim->probes++;
    const bool works = sim_path_works(sim, node->index, to);
    sim_at(sim, works ? 1 : PROBE_MS, say_probed, node, order->id * SIM_NODES + to);
}

static void on_order(struct sim *sim, void *far, const uint8_t *data, size_t size)
{
    struct sim_node *node = far;
    if (!node->agent || node->conn == NULL)
        return;
    Cairn__V1__AgentOrder *order = cairn__v1__agent_order__unpack(NULL, size, data);
    CHECK(order != NULL);
    if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_START) {
        take_start(sim, node, order->start);
    } else if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_END) {
        struct sim_trainer *trainer = find_trainer(sim, node, order->end->ref);
        if (trainer != NULL && sim_trainer_view(trainer)->exit == SIM_RUNS)
            sim_trainer_kill(sim, trainer, 9);
        else if (trainer != NULL)
            say_exit(sim, node, trainer);
        else
            say_none(sim, node, order->end->ref);
    } else if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK) {
        struct sim_trainer *trainer = find_trainer(sim, node, order->exit_ack->ref);
        if (trainer != NULL)
            sim_trainer_view(trainer)->acked = true;
    } else if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_FORGET) {
        sim_memory_forget(sim, node, sim_job_at(sim, order->forget->job));
    } else if (order->body_case == CAIRN__V1__AGENT_ORDER__BODY_PROBE) {
        take_probe(sim, node, order->probe);
    }
    cairn__v1__agent_order__free_unpacked(order, NULL);
}

static void on_closed(struct sim *sim, void *far)
{
    struct sim_node *node = far;
    node->conn = NULL;
    node->connect_at = sim->now + 100 + (int64_t)sim_below(sim, 900);
}

static const struct sim_far_ops OPS = { .order = on_order, .closed = on_closed };

/* ---- life ---- */

static void start_agent(struct sim *sim, void *arg, uint64_t life);

static void end_agent(struct sim *sim, struct sim_node *node)
{
    node->agent = false;
    node->leaves_by = 0;
    node->life++;
    if (node->conn != NULL)
        sim_hang_up(sim, node->conn);
    node->conn = NULL;
}

/* Trainers whose exit it still has to tell, or that run. */
static size_t count_trainers(struct sim *sim, const struct sim_node *node, bool kill)
{
    size_t count = 0;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node != node)
            continue;
        if (kill && view->exit == SIM_RUNS)
            sim_trainer_kill(sim, sim->trainers[i], 9);
        count += view->exit == SIM_RUNS || !view->acked;
    }
    return count;
}

/* Leaves as agent/leave.c does. The agent's end is the end of all that runs there, as in a
 * container. */
static void leave_tick(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_node *node = arg;
    if (!node->agent || life != node->life)
        return;
    const size_t left = count_trainers(sim, node, sim->now >= node->leaves_by);
    if ((left > 0 || node->conn == NULL) && sim->now < node->leaves_by + LEAVE_KILL_MS) {
        sim_at(sim, 50, leave_tick, node, life);
        return;
    }
    sim_say(sim, "agent of %s has left with %zu trainers", node->name, left);
    if (node->conn != NULL)
        say_left(sim, node);
    end_agent(sim, node);
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node == node && view->exit == SIM_RUNS)
            sim_trainer_perish(sim, sim->trainers[i]);
    }
    sim_at(sim, 1000 + (int64_t)sim_below(sim, 20000), start_agent, node, node->life);
}

void sim_agent_leave(struct sim *sim, struct sim_node *node)
{
    if (!node->agent || node->leaves_by != 0)
        return;
    node->leaves_by = sim->now + 500 + (int64_t)sim_below(sim, 20000);
    sim_say(sim, "agent of %s leaves until %lld", node->name, (long long)node->leaves_by);
    if (node->conn != NULL)
        say_leaving(sim, node);
    leave_tick(sim, node, node->life);
}

static void agent_tick(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_node *node = arg;
    if (!node->agent || life != node->life)
        return;
    sim_at(sim, node->conn != NULL ? 1000 : 100, agent_tick, node, life);
    if (node->conn == NULL && sim->now >= node->connect_at) {
        node->conn = sim_connect(sim, true, node->index, "", &OPS, node);
        node->connected_at = sim->now;
        if (node->conn != NULL)
            say_hello(sim, node);
        else
            node->connect_at = sim->now + 200;
        return;
    }
    if (node->conn == NULL)
        return;
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT;
    message.beat = &beat;
    sim_send(sim, node->conn, &message.base);
}

static void start_agent(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_node *node = arg;
    if (node->agent || !node->up || life != node->life)
        return;
    node->agent = true;
    agent_tick(sim, node, node->life);
}

static void start_node(struct sim *sim, void *arg, uint64_t life)
{
    struct sim_node *node = arg;
    if (life != node->life || node->gone)
        return;
    node->up = true;
    node->up_since = sim->now;
    start_agent(sim, node, life);
}

void sim_agent_crash(struct sim *sim, struct sim_node *node)
{
    if (!node->agent)
        return;
    sim_say(sim, "agent of %s crashes", node->name);
    end_agent(sim, node);
    sim_at(sim, (int64_t)sim_below(sim, sim_chance(sim, 100) ? 20000 : 2000), start_agent, node,
           node->life);
}

/* What its trainers did not tell is lost: their last words were on its disk, unread. */
void sim_node_crash(struct sim *sim, struct sim_node *node)
{
    if (!node->up)
        return;
    sim_say(sim, "machine %s dies", node->name);
    node->up = false;
    node->down_since = sim->now;
    sim_memory_forget(sim, node, -1);
    end_agent(sim, node);
    for (size_t i = 0; i < sim->trainer_count; i++) {
        struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->node != node)
            continue;
        if (view->exit == SIM_RUNS)
            sim_trainer_perish(sim, sim->trainers[i]);
        view->acked = true;
    }
    sim_at(sim, 2000 + (int64_t)sim_below(sim, 30000), start_node, node, node->life);
}

void sim_node_power_cut(struct sim *sim, struct sim_node *node)
{
    if (!node->up)
        return;
    sim->power_cuts++;
    if (node->conn != NULL)
        sim_vanish(node->conn);
    node->conn = NULL;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        if (sim_trainer_view(sim->trainers[i])->node == node)
            sim_trainer_vanish(sim->trainers[i]);
    }
    sim_node_crash(sim, node);
}

/* Heard of, or not. */
void sim_node_die(struct sim *sim, struct sim_node *node)
{
    node->gone = true;
    if (sim_chance(sim, 500)) {
        sim_node_crash(sim, node);
    } else {
        sim_node_power_cut(sim, node);
    }
    sim_say(sim, "%s never comes back", node->name);
}

bool sim_node_is_gone(const struct sim_node *node)
{
    return node->gone;
}

bool sim_node_up(const struct sim_node *node, int64_t *out_since)
{
    *out_since = node->up ? node->up_since : node->down_since;
    return node->up;
}

void sim_agent_cut(struct sim *sim, struct sim_node *node)
{
    if (node->conn != NULL)
        sim_cut(sim, node->conn);
}

struct sim_node *sim_node_new(struct sim *sim, uint32_t index)
{
    struct sim_node *node = calloc(1, sizeof(*node));
    CHECK(node != NULL);
    (void)snprintf(node->name, sizeof(node->name), "node%u", index);
    node->index = index;
    node->up = true;
    sim_at(sim, (int64_t)sim_below(sim, 500), start_agent, node, 0);
    return node;
}
