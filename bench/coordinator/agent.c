/* Agents: what agent/messages.c and agent/loop.c of a real one say and do, without processes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench/coordinator/fleet.h"
#include "common/check.h"
#include "common/io.h"
#include "common/unconst.h"

#define BEAT_NS (1000 * INT64_C(1000000))

static struct agent *agent_of(struct peer *peer)
{
    return (struct agent *)peer; /* its first member */
}

static bool say(struct agent *agent, Cairn__V1__AgentMessage__BodyCase body, void *what)
{
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = body;
    message.hello = what; /* a union of pointers */
    return peer_send(&agent->peer, &message.base);
}

static Cairn__V1__TrainerRef ref_of(const struct trainer *trainer)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = unconst(trainer->job);
    ref.generation = trainer->generation;
    ref.rank = trainer->rank;
    return ref;
}

static struct trainer *find(const struct agent *agent, const Cairn__V1__TrainerRef *ref)
{
    struct trainer *t = agent->trainers;
    while (t != NULL && (t->generation != ref->generation || t->rank != ref->rank ||
                         strcmp(t->job, ref->job) != 0))
        t = t->next;
    return t;
}

static void say_hello(struct agent *agent)
{
    Cairn__V1__AgentHello hello = CAIRN__V1__AGENT_HELLO__INIT;
    hello.node = agent->name;
    hello.boot_id = unconst("00000000-0000-4000-8000-000000000000");
    hello.pid = (uint32_t)getpid();
    hello.started_ms = 1;
    hello.slots = agent->peer.fleet->options.slots;
    hello.device = unconst("cpu");
    hello.version = unconst(CAIRN_VERSION);
    hello.host = agent->host;
    hello.cores = hello.slots;
    hello.memory_bytes = UINT64_C(64) << 30;
    size_t count = 0;
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next)
        count++;
    Cairn__V1__RunningTrainer *rows = calloc(count + 1, sizeof(*rows));
    Cairn__V1__RunningTrainer **links =
        calloc(count + 1, sizeof(*links)); /* NOLINT(bugprone-sizeof-expression): of pointers */
    Cairn__V1__TrainerRef *refs = calloc(count + 1, sizeof(*refs));
    CHECK(rows != NULL && links != NULL && refs != NULL);
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        const size_t i = hello.n_running++;
        refs[i] = ref_of(t);
        cairn__v1__running_trainer__init(&rows[i]);
        rows[i].ref = &refs[i];
        rows[i].pid = t->pid;
        rows[i].slot = t->slot;
        links[i] = &rows[i];
    }
    hello.running = links;
    (void)say(agent, CAIRN__V1__AGENT_MESSAGE__BODY_HELLO, &hello);
    free(refs);
    free(links);
    free(rows);
}

void agent_send_exited(struct trainer *trainer)
{
    Cairn__V1__TrainerRef ref = ref_of(trainer);
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = &ref;
    exited.pid = trainer->pid;
    exited.cause = trainer->cause;
    exited.code = trainer->code;
    exited.signal = trainer->signal;
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    words.job = trainer->job;
    words.generation = trainer->generation;
    words.rank = trainer->rank;
    words.step = trainer->step;
    words.phase = unconst("step");
    words.finished = trainer->finished;
    exited.words__case = CAIRN__V1__TRAINER_EXITED__WORDS__WORDS;
    exited.words = &words;
    (void)say(trainer->agent, CAIRN__V1__AGENT_MESSAGE__BODY_EXITED, &exited);
}

static void on_opened(struct peer *peer)
{
    struct agent *agent = agent_of(peer);
    fleet_trace(peer->fleet, "agent", agent->name, 0, 0);
    say_hello(agent);
    for (struct trainer *t = agent->trainers; t != NULL; t = t->next) {
        if (t->stage == TRAINER_GONE)
            agent_send_exited(t);
    }
}

static void take_start(struct agent *agent, const Cairn__V1__StartTrainer *order)
{
    struct trainer *trainer = find(agent, order->ref);
    if (trainer == NULL) {
        trainer = trainer_new(agent, order);
        trainer->next = agent->trainers;
        agent->trainers = trainer;
    }
    Cairn__V1__TrainerRef ref = ref_of(trainer);
    Cairn__V1__TrainerStarted started = CAIRN__V1__TRAINER_STARTED__INIT;
    started.ref = &ref;
    started.pid = trainer->pid;
    started.slot = trainer->slot;
    (void)say(agent, CAIRN__V1__AGENT_MESSAGE__BODY_STARTED, &started);
}

static void take_end(struct agent *agent, const Cairn__V1__EndTrainer *order)
{
    struct trainer *trainer = find(agent, order->ref);
    if (trainer != NULL) {
        trainer->signal = order->signal;
        trainer_exit(trainer, CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL, 0);
        return;
    }
    Cairn__V1__TrainerExited exited = CAIRN__V1__TRAINER_EXITED__INIT;
    exited.ref = order->ref;
    exited.message = unconst("this agent knows no such trainer");
    (void)say(agent, CAIRN__V1__AGENT_MESSAGE__BODY_EXITED, &exited);
}

static void take_ack(struct agent *agent, const Cairn__V1__ExitAck *order)
{
    struct trainer *trainer = find(agent, order->ref);
    if (trainer == NULL || trainer->stage != TRAINER_GONE)
        return;
    struct trainer **at = &agent->trainers;
    while (*at != trainer)
        at = &(*at)->next;
    *at = trainer->next;
    peer_release(&trainer->peer);
}

static void on_heard(struct peer *peer, const ProtobufCMessage *message)
{
    struct agent *agent = agent_of(peer);
    const Cairn__V1__AgentOrder *order = (const Cairn__V1__AgentOrder *)(const void *)message;
    switch ((int)order->body_case) {
    case CAIRN__V1__AGENT_ORDER__BODY_START:
        take_start(agent, order->start);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_END:
        take_end(agent, order->end);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK:
        take_ack(agent, order->exit_ack);
        break;
    case CAIRN__V1__AGENT_ORDER__BODY_NOTICE:
        (void)fprintf(stderr, "%s: %s\n", agent->name, order->notice->message);
        break;
    }
}

static void on_lost(struct peer *peer, enum rpc_code code)
{
    (void)fprintf(stderr, "%s: lost the coordinator: %s\n", agent_of(peer)->name,
                  rpc_code_name(code));
}

static void on_tick(struct peer *peer, int64_t now_ns)
{
    struct agent *agent = agent_of(peer);
    if (now_ns < agent->beat_ns)
        return;
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    beat.load1 = 1;
    beat.memory_available_bytes = UINT64_C(32) << 30;
    (void)say(agent, CAIRN__V1__AGENT_MESSAGE__BODY_BEAT, &beat);
    agent->beat_ns = now_ns + BEAT_NS;
}

static void on_release(struct peer *peer)
{
    free(peer);
}

static const struct peer_ops agent_ops = {
    .opened = on_opened, .heard = on_heard, .lost = on_lost, .tick = on_tick, .release = on_release
};

/* Made by the fleet's authority. */
static void make_certificate(struct agent *agent, const struct fleet *fleet)
{
    struct identity_pem own;
    struct reason reason;
    const int64_t now_s = clock_wall_ms(clock_system()) / 1000;
    (void)snprintf(agent->cert, sizeof(agent->cert), "%s/%s.crt", fleet->options.tls, agent->name);
    (void)snprintf(agent->key, sizeof(agent->key), "%s/%s.key", fleet->options.tls, agent->name);
    CHECK(identity_make(&fleet->authority, IDENTITY_NODE, agent->name, NULL, now_s, &own,
                        &reason) == ST_OK);
    CHECK(io_replace(io_system(), agent->cert, own.cert, strlen(own.cert)) == ST_OK);
    CHECK(io_replace(io_system(), agent->key, own.key, strlen(own.key)) == ST_OK);
    identity_pem_release(&own);
    agent->tls = (struct identity_files){ agent->cert, agent->key, fleet->ca };
}

void agent_new(struct fleet *fleet, uint32_t number)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    CHECK(agent != NULL);
    agent->number = number;
    agent->beat_ns = clock_mono_ns() + number * INT64_C(7919) % 1000 * 1000000;
    (void)snprintf(agent->name, sizeof(agent->name), "n%05u", number);
    (void)snprintf(agent->host, sizeof(agent->host), "127.0.0.1");
    if (fleet->options.tls != NULL) { /* nodes of which jobs may span several */
        (void)snprintf(agent->host, sizeof(agent->host), "10.0.%u.%u", number >> 8, number & 255);
        make_certificate(agent, fleet);
    }
    peer_open(&agent->peer, fleet, &agent_ops, &cairn__v1__fleet__descriptor,
              fleet->options.tls != NULL ? &agent->tls : NULL, fleet->options.token);
}
