/* Agents: who is there, what runs where, and reconciliation after either side's restart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/internal.h"

#define SIGNAL_KILL 9

/* ---- nodes ---- */

struct core_node *core_node_at(struct core *core, const char *name)
{
    for (size_t i = 0; i < core->node_count; i++) {
        if (strcmp(core->nodes[i]->name, name) == 0)
            return core->nodes[i];
    }
    return NULL;
}

struct core_node *core_node_make(struct core *core, const char *name)
{
    if (core->node_count >= LIMIT_NODES)
        return NULL;
    struct core_node **more = realloc(core->nodes, (core->node_count + 1) * sizeof(void *));
    if (!more)
        return NULL;
    core->nodes = more;
    struct core_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    core->nodes[core->node_count++] = node;
    return node;
}

/* Tells every job with a worker there. */
static void set_silent(struct core *core, struct core_node *node, bool silent)
{
    node->silent = silent;
    LOG_INFO(core->options.log, "node %s %s", node->name, silent ? "is silent" : "is heard");
    for (size_t j = 0; j < core->job_count; j++) {
        struct core_job *job = core->jobs[j];
        for (uint32_t r = 0; r < job->m.config.ranks; r++) {
            if (!jm_holds_slot(&job->m, r) || strcmp(job->m.ranks[r].node, node->name) != 0)
                continue;
            struct job_event event = core_event(core, EV_AGENT);
            event.generation = job->m.generation;
            event.rank = r;
            event.flag = silent;
            (void)core_apply(core, job, &event);
        }
    }
    core->schedule_needed = true;
}

static void heard(struct core *core, struct core_node *node)
{
    node->heard_at = core_now(core);
    if (node->silent)
        set_silent(core, node, false);
}

void core_nodes_tick(struct core *core)
{
    int64_t now = core_now(core);
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        if (!node->silent && now >= node->heard_at + CORE_NODE_MS &&
            now >= core->started_at + CORE_GRACE_MS) {
            set_silent(core, node, true);
        } else if (!node->silent && now >= node->heard_at + CORE_NODE_MS) {
            node->heard_at = now; /* the time of grace */
        }
    }
}

/* Slots first to end - 1 that are taken. */
static uint32_t count_used(struct core *core, const struct core_node *node, uint32_t first,
                           uint32_t end)
{
    uint32_t used = 0;
    for (size_t j = 0; j < core->job_count; j++) {
        const struct job_machine *m = &core->jobs[j]->m;
        for (uint32_t r = 0; r < m->config.ranks; r++) {
            uint32_t slot = m->ranks[r].slot;
            used += jm_holds_slot(m, r) && slot >= first && slot < end &&
                    strcmp(m->ranks[r].node, node->name) == 0;
        }
    }
    return used;
}

uint32_t core_node_used(struct core *core, const struct core_node *node)
{
    return count_used(core, node, 0, node->slots);
}

uint32_t core_node_gpus_used(struct core *core, const struct core_node *node)
{
    return count_used(core, node, node->slots, node->slots + node->gpu_count);
}

bool core_node_heard(struct core *core, const struct core_node *node)
{
    for (size_t j = 0; j < core->job_count; j++) {
        const struct job_machine *m = &core->jobs[j]->m;
        for (uint32_t r = 0; r < m->config.ranks; r++) {
            if (jm_holds_slot(m, r) && m->ranks[r].session &&
                strcmp(m->ranks[r].node, node->name) == 0)
                return true;
        }
    }
    return false;
}

/* ---- orders ---- */

static struct core_conn *conn_of(struct core *core, const char *node_name)
{
    struct core_node *node = core_node_at(core, node_name);
    return node ? node->conn : NULL;
}

static Cairn__V1__TrainerRef ref_of(struct core_job *job, uint32_t generation, uint32_t rank)
{
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    ref.job = job->id;
    ref.generation = generation;
    ref.rank = rank;
    return ref;
}

/* An agent that isn't there now gets it when it says hello. */
void core_send_start(struct core *core, struct core_job *job, uint32_t rank)
{
    struct core_conn *conn = conn_of(core, job->m.ranks[rank].node);
    if (!conn)
        return;
    Cairn__V1__TrainerRef ref = ref_of(job, job->m.generation, rank);
    Cairn__V1__StartTrainer start = CAIRN__V1__START_TRAINER__INIT;
    start.ref = &ref;
    start.slot = job->m.ranks[rank].slot;
    start.token = job->m.token;
    start.threads = (uint32_t)job->spec->workers.threads;
    start.device = (char *)job_device_word(job->spec->workers.device);
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_START;
    order.start = &start;
    conn->ops->send(conn, &order.base);
}

static void send_end(struct core_conn *conn, Cairn__V1__TrainerRef *ref)
{
    Cairn__V1__EndTrainer end = CAIRN__V1__END_TRAINER__INIT;
    end.ref = ref;
    end.signal = SIGNAL_KILL;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_END;
    order.end = &end;
    conn->ops->send(conn, &order.base);
}

void core_send_end(struct core *core, struct core_job *job, uint32_t rank)
{
    struct core_conn *conn = conn_of(core, job->m.ranks[rank].node);
    if (!conn)
        return;
    Cairn__V1__TrainerRef ref = ref_of(job, job->m.generation, rank);
    send_end(conn, &ref);
}

enum status core_log_request(struct core *core, const char *node_name,
                             const Cairn__V1__LogRequest *request)
{
    struct core_conn *conn = conn_of(core, node_name);
    if (!conn)
        return ST_NOT_FOUND;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_LOG;
    order.log = (Cairn__V1__LogRequest *)request;
    conn->ops->send(conn, &order.base);
    return ST_OK;
}

/* ---- reconciliation ---- */

/* The job, if the trainer is one of its current generation on that node. */
static struct core_job *current(struct core *core, const struct core_node *node,
                                const Cairn__V1__TrainerRef *ref)
{
    struct core_job *job = ref ? core_job_at(core, ref->job) : NULL;
    if (!job || ref->generation != job->m.generation || ref->rank >= job->m.config.ranks ||
        strcmp(job->m.ranks[ref->rank].node, node->name) != 0)
        return NULL;
    return job;
}

static void on_running(struct core *core, struct core_node *node, Cairn__V1__TrainerRef *ref,
                       uint32_t pid)
{
    struct core_job *job = current(core, node, ref);
    if (!job || !jm_holds_slot(&job->m, ref->rank)) {
        if (ref && node->conn)
            send_end(node->conn, ref); /* it should not run */
        return;
    }
    struct job_event event = core_event(core, EV_STARTED);
    event.generation = ref->generation;
    event.rank = ref->rank;
    event.pid = pid;
    (void)core_apply(core, job, &event);
    if (job->m.end_to != JOB_NONE && job->m.end_hard_at == 0 && node->conn)
        send_end(node->conn, ref);
}

static bool listed(const Cairn__V1__AgentHello *hello, const char *job, uint32_t generation,
                   uint32_t rank)
{
    for (size_t i = 0; i < hello->n_running; i++) {
        const Cairn__V1__TrainerRef *ref = hello->running[i]->ref;
        if (ref && ref->generation == generation && ref->rank == rank && strcmp(ref->job, job) == 0)
            return true;
    }
    return false;
}

/* What should run there and isn't listed: never started (again), or gone. */
static void on_absent(struct core *core, struct core_node *node, const Cairn__V1__AgentHello *hello)
{
    for (size_t j = 0; j < core->job_count; j++) {
        struct core_job *job = core->jobs[j];
        for (uint32_t r = 0; r < job->m.config.ranks; r++) {
            const struct jm_rank *rank = &job->m.ranks[r];
            if (!jm_alive_rank(&job->m, r) || strcmp(rank->node, node->name) != 0 ||
                listed(hello, job->id, job->m.generation, r))
                continue;
            if (job->m.state == JOB_FORMING && !rank->started) {
                core_send_start(core, job, r);
                continue;
            }
            struct job_event event = core_event(core, EV_MISSING);
            event.generation = job->m.generation;
            event.rank = r;
            (void)core_apply(core, job, &event);
        }
    }
}

static bool fits(const char *text, size_t capacity)
{
    return strlen(text) < capacity;
}

static void on_hello(struct core *core, struct core_conn *conn, const Cairn__V1__AgentHello *hello)
{
    if (!hello->node[0] || !fits(hello->node, LIMIT_NAME) || !fits(hello->host, LIMIT_NAME) ||
        !fits(hello->device, 32) || hello->slots > LIMIT_SLOTS || strchr(hello->node, ',')) {
        conn->ops->finish(conn, RPC_INVALID_ARGUMENT,
                          "this hello has no usable name, host or size");
        return;
    }
    struct core_node *node = core_node_at(core, hello->node);
    if (!node)
        node = core_node_make(core, hello->node);
    if (!node) {
        conn->ops->finish(conn, RPC_RESOURCE_EXHAUSTED, "too many nodes");
        return;
    }
    if (node->conn && node->conn != conn) {
        struct core_conn *old = node->conn;
        old->node = NULL;
        old->ops->finish(old, RPC_ABORTED, "another agent took this node's name");
    }
    conn->node = node;
    node->conn = conn;
    node->known = true;
    node->local = conn->local;
    node->slots = hello->slots;
    node->cores = hello->cores;
    (void)snprintf(node->device, sizeof node->device, "%s",
                   hello->device[0] ? hello->device : "cpu");
    (void)snprintf(node->version, sizeof node->version, "%.31s", hello->version);
    (void)snprintf(node->host, sizeof node->host, "%s",
                   conn->local || !hello->host[0] ? "127.0.0.1" : hello->host);
    (void)snprintf(node->boot_id, sizeof node->boot_id, "%.63s", hello->boot_id);
    Cairn__V1__AgentWelcome welcome = CAIRN__V1__AGENT_WELCOME__INIT;
    welcome.coordinator_version = CAIRN_VERSION;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_WELCOME;
    order.welcome = &welcome;
    conn->ops->send(conn, &order.base);
    core_take_gpus(core, node, hello->gpus, hello->n_gpus);
    LOG_INFO(core->options.log, "node %s joined: %u slots of %s, %u GPUs, %zu trainers run there",
             node->name, node->slots, node->device, node->gpu_count, hello->n_running);
    heard(core, node);
    for (size_t i = 0; i < hello->n_running; i++)
        on_running(core, node, hello->running[i]->ref, hello->running[i]->pid);
    on_absent(core, node, hello);
    core_check_copies(core, node, hello);
    core->schedule_needed = true;
}

/* ---- exits ---- */

static void explain_exit(const Cairn__V1__TrainerExited *exited, char out[LIMIT_REASON])
{
    const char *last = exited->n_last_lines > 0 ? exited->last_lines[exited->n_last_lines - 1] : "";
    char how[96];
    switch ((int)exited->cause) {
    case CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT:
        (void)snprintf(how, sizeof how, "exited with code %d", exited->code);
        break;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL:
        (void)snprintf(how, sizeof how, "killed by signal %d (%s)", exited->signal,
                       strsignal(exited->signal));
        break;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL:
        (void)snprintf(how, sizeof how, "killed by the kernel: out of memory");
        break;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED:
        (void)snprintf(how, sizeof how, "could not be started");
        break;
    default:
        (void)snprintf(how, sizeof how, "is gone, nobody knows why");
        break;
    }
    const char *more = exited->message[0] ? exited->message : last;
    (void)snprintf(out, LIMIT_REASON, "%s%s%.380s", how, more[0] ? ": " : "", more);
}

static enum jm_exit exit_of(const Cairn__V1__TrainerExited *exited)
{
    switch ((int)exited->cause) {
    case CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT:
        return EXIT_CODE;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL:
        return EXIT_SIGNAL;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL:
        return EXIT_OOM;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED:
        return EXIT_SPAWN_FAILED;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED:
        return EXIT_FINISHED;
    default:
        return EXIT_UNKNOWN;
    }
}

static void apply_exit(struct core *core, struct core_job *job,
                       const Cairn__V1__TrainerExited *exited)
{
    const Cairn__V1__TrainerRef *ref = exited->ref;
    const Cairn__V1__LastWords *words =
        exited->words__case == CAIRN__V1__TRAINER_EXITED__WORDS__WORDS ? exited->words : NULL;
    for (size_t i = 0; words && i < words->n_saves; i++)
        core_take_report(core, job, ref->rank, words->saves[i]);
    char message[LIMIT_REASON];
    explain_exit(exited, message);
    struct job_event event = core_event(core, EV_EXITED);
    event.generation = ref->generation;
    event.rank = ref->rank;
    event.exit = exit_of(exited);
    event.code = event.exit == EXIT_SIGNAL ? exited->signal : exited->code;
    event.message = message;
    event.finished = words && words->finished;
    event.step = words ? words->step : 0;
    event.phase = words && words->phase[0] ? words->phase : NULL;
    struct jm_fault fault;
    if (words && words->fault__case == CAIRN__V1__LAST_WORDS__FAULT__FAULT) {
        fault = core_fault(words->fault);
        event.fault = &fault;
    }
    (void)core_apply(core, job, &event);
}

static void on_exited(struct core *core, struct core_node *node,
                      const Cairn__V1__TrainerExited *exited)
{
    if (!exited->ref)
        return;
    struct core_job *job = current(core, node, exited->ref);
    if (job)
        apply_exit(core, job, exited);
    if (core->failed != ST_OK || !node->conn)
        return;
    Cairn__V1__ExitAck ack = CAIRN__V1__EXIT_ACK__INIT;
    ack.ref = exited->ref;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK;
    order.exit_ack = &ack;
    node->conn->ops->send(node->conn, &order.base);
}

/* ---- the stream ---- */

void core_agent_message(struct core *core, struct core_conn *conn,
                        const Cairn__V1__AgentMessage *message)
{
    if (core->failed != ST_OK)
        return;
    if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_HELLO) {
        on_hello(core, conn, message->hello);
        core_settle(core);
        return;
    }
    struct core_node *node = conn->node;
    if (!node) {
        conn->ops->finish(conn, RPC_FAILED_PRECONDITION, "the first message is a hello");
        return;
    }
    heard(core, node);
    if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_STARTED && message->started->ref) {
        on_running(core, node, message->started->ref, message->started->pid);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_BEAT) {
        core_take_gpus(core, node, message->beat->gpus, message->beat->n_gpus);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_EXITED) {
        on_exited(core, node, message->exited);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LOG &&
               core->options.hooks.log_chunk) {
        core->options.hooks.log_chunk(core->options.hooks.arg, message->log);
    }
    core_settle(core);
}

void core_agent_closed(struct core *core, struct core_conn *conn)
{
    if (conn->node && conn->node->conn == conn) {
        conn->node->conn = NULL;
        LOG_INFO(core->options.log, "the agent of node %s hung up", conn->node->name);
    }
    conn->node = NULL;
}
