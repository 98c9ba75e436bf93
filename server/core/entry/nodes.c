/* Agents: who is there, what runs where, and reconciliation after either side's restart. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "identity/identity.h"
#include "server/core/internal.h"

/* ---- reconciliation ---- */

/* Returns the job if the trainer is one of its current workers on that node, with its place there;
 * else NULL. */
static struct core_job *job_of_trainer(struct core *core, const struct core_node *node,
                                       const Cairn__V1__TrainerRef *ref, uint32_t *out_rank)
{
    struct core_job *job = ref ? core_job_at(core, ref->job) : NULL;
    bool found = false;
    for (uint32_t i = 0; job && i < job->m.count && ref->generation > 0 && !found; i++) {
        const struct machine_rank *rank = &job->m.ranks[i];
        found = rank->birth == ref->generation && rank->number == ref->rank &&
                strcmp(rank->node, node->name) == 0;
        *out_rank = i;
    }
    return found ? job : NULL;
}

/* Takes a trainer that the agent says runs there. One that no job has any more is ended, and holds
 * its slot until it is gone. */
static void take_running(struct core *core, struct core_node *node, Cairn__V1__TrainerRef *ref,
                         uint32_t pid, uint32_t slot)
{
    const struct core_job *named = ref ? core_job_at(core, ref->job) : NULL;
    if (named && core_is_kept(named))
        return; /* the trainer may be one of this generation */
    uint32_t at = 0;
    struct core_job *job = job_of_trainer(core, node, ref, &at);
    if (!job || !machine_alive_rank(&job->m, at)) {
        if (ref)
            core_stray_add(core, node, ref, slot, core_now(core));
        if (ref && node->conn)
            core_send_end_of(core, node->conn, ref);
        return;
    }
    struct machine_event event = core_event_of(core, MACHINE_EV_STARTED, job->m.generation, at);
    event.started.pid = pid;
    (void)core_apply(core, job, &event);
    const struct machine_rank *rank = &job->m.ranks[at];
    const bool ends = machine_ends_hard(&job->m) && !machine_is_spare(&job->m, at);
    if ((ends || rank->ended) && !rank->parked && node->conn)
        core_send_end_of(core, node->conn, ref);
}

static bool is_listed(const Cairn__V1__AgentHello *hello, const char *job, uint32_t generation,
                      uint32_t rank)
{
    for (size_t i = 0; i < hello->n_running; i++) {
        const Cairn__V1__TrainerRef *ref = hello->running[i]->ref;
        if (ref && ref->generation == generation && ref->rank == rank && strcmp(ref->job, job) == 0)
            return true;
    }
    return false;
}

/* Handles trainers that should run there and aren't listed: they never started (again), or are
 * gone. */
static void take_absent(struct core *core, struct core_node *node,
                        const Cairn__V1__AgentHello *hello)
{
    size_t count;
    auto_free struct core_rank **ranks = core_ranks_of(core, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct core_job *job = ranks[i]->job;
        const uint32_t r = core_rank_number(ranks[i]);
        if (job->unreadable[0] || ranks[i]->node != node || !machine_alive_rank(&job->m, r) ||
            is_listed(hello, job->id, job->m.ranks[r].birth, job->m.ranks[r].number))
            continue;
        const bool born = job->m.ranks[r].birth == job->m.generation; /* else it was there */
        const bool forms = job->m.state == MACHINE_FORMING || machine_is_spare(&job->m, r);
        if (forms && !job->m.ranks[r].started && born && !job->m.ranks[r].ended &&
            node->stay == CORE_STAYS) { /* a node that leaves starts nothing more */
            core_send_start(core, job, r);
            continue;
        }
        struct machine_event event = core_event_of(core, MACHINE_EV_MISSING, job->m.generation, r);
        (void)core_apply(core, job, &event);
    }
}

/* Forgives a node: what is held against it is held against the agent that was there, with its
 * settings. renewed: its machine was started anew, or its agent is another one. */
static void forgive_node(struct core *core, struct core_node *node, bool renewed)
{
    if (renewed) {
        fleet_forgive(&node->record);
        core_node_moved(core, node);
    }
    for (size_t j = core->live.count; j > 0; j--) { /* whoever is over by this leaves the list */
        struct core_job *job = core->live.list[j - 1].value;
        if (!shun_knows(&job->m.shunned, node->name) && job->m.suspect_count == 0)
            continue;
        struct machine_event event = core_event(core, MACHINE_EV_NODE);
        event.node.name = node->name;
        event.node.agent = node->agent;
        event.node.renewed = renewed;
        (void)core_apply(core, job, &event);
    }
}

/* True if the agent that has the name lives: on another machine, or as a younger process of this
 * one. */
static bool is_taken(const struct core *core, const struct core_node *node,
                     const Cairn__V1__AgentHello *hello)
{
    if (!node->known || node->stay == CORE_LEFT || !node->boot_id[0] ||
        core_now(core) >= node->heard_at + core->lost_ms)
        return false;
    return strcmp(node->boot_id, hello->boot_id) != 0 || hello->started_ms < node->started_ms;
}

/* Refuses a second agent of that name, and says so to both, to the one that is there once per
 * rival. */
static void refuse_rival(struct core *core, struct core_conn *conn, struct core_node *node,
                         const Cairn__V1__AgentHello *hello)
{
    char rival[sizeof node->rival];
    struct reason reason;
    (void)snprintf(rival, sizeof rival, "%.40s %llu", hello->boot_id,
                   (unsigned long long)hello->started_ms);
    if (strcmp(rival, node->rival) != 0) {
        (void)snprintf(node->rival, sizeof node->rival, "%s", rival);
        reason_set(
            &reason,
            "another agent, of host %.100s, calls itself %s, too; it waits until this one is "
            "lost: start one of them with another --name",
            hello->host, node->name);
        LOG_WARN(core->options.log, "node %s: %s", node->name, reason.text);
        Cairn__V1__AgentNotice notice = CAIRN__V1__AGENT_NOTICE__INIT;
        notice.message = reason.text;
        Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
        order.body_case = CAIRN__V1__AGENT_ORDER__BODY_NOTICE;
        order.notice = &notice;
        if (node->conn)
            core_post(core, node->conn, CORE_AT_ONCE, &order.base);
    }
    reason_set(&reason,
               "another agent, of host %.100s, is node %s; this one waits until that one is lost: "
               "or start it with another --name",
               node->host, node->name);
    core_hang_up(core, conn, RPC_ALREADY_EXISTS, reason.text);
}

/* Returns the node that this hello speaks of, with room for its agent; NULL, and the stream
 * ended. */
static struct core_node *admit_agent(struct core *core, struct core_conn *conn,
                                     const Cairn__V1__AgentHello *hello)
{
    if (!identity_name_valid(hello->node) || strlen(hello->host) >= LIMIT_NAME ||
        strlen(hello->device) >= 32 || hello->slots > LIMIT_SLOTS) {
        core_hang_up(core, conn, RPC_INVALID_ARGUMENT,
                     "this hello has no usable name, host or size");
        return NULL;
    }
    if (!core_version_fits(hello->version)) {
        struct reason reason;
        reason_set(&reason,
                   "this coordinator is of version %s, the agent of node %s of version %.31s: "
                   "install the same on both",
                   CAIRN_VERSION, hello->node, core_version_said(hello->version));
        core_hang_up(core, conn, RPC_FAILED_PRECONDITION, reason.text);
        return NULL;
    }
    struct core_node *node = core_node_admit(core, hello->node);
    if (!node) {
        core_hang_up(core, conn, RPC_RESOURCE_EXHAUSTED, CORE_TOO_MANY_NODES);
        return NULL;
    }
    if (is_taken(core, node, hello)) {
        refuse_rival(core, conn, node, hello);
        return NULL;
    }
    return node;
}

/* Returns the agent's number: FNV-1a; never 0. */
static uint64_t number_agent(const struct core_node *node)
{
    char text[sizeof node->boot_id + sizeof node->version + 32];
    uint64_t hash = 1469598103934665603u;
    (void)snprintf(text, sizeof text, "%s %llu %s", node->boot_id,
                   (unsigned long long)node->started_ms, node->version);
    for (const char *p = text; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    return hash | 1;
}

/* Takes what an agent says of its machine; it is logged when it changes. */
static void take_trouble(const struct core *core, struct core_node *node, const char *trouble)
{
    struct reason now;
    reason_set(&now, "%s", trouble);
    if (strcmp(now.text, node->trouble) == 0)
        return;
    memcpy(node->trouble, now.text, sizeof node->trouble);
    if (now.text[0])
        LOG_WARN(core->options.log, "node %s: %s", node->name, now.text);
}

/* Gives the name to the agent of this hello; an older agent loses its stream. true: it is another
 * agent than was known, or of a machine that was started anew. */
static bool take_seat(struct core *core, struct core_conn *conn, struct core_node *node,
                      const Cairn__V1__AgentHello *hello)
{
    struct core_conn *old = node->conn;
    if (old) {
        old->node = NULL;
        core_hang_up(core, old, RPC_ABORTED, "a newer agent of this machine took this node's name");
        if (hello->started_ms != node->started_ms) {
            LOG_WARN(core->options.log, "node %s: a newer agent takes the place of an older one",
                     node->name);
        }
    }
    bool renewed = node->known && (hello->started_ms != node->started_ms ||
                                   strcmp(node->boot_id, hello->boot_id) != 0 ||
                                   strcmp(node->version, hello->version) != 0);
    conn->node = node;
    node->conn = conn;
    node->known = true;
    core_node_stays(node);
    node->local = conn->local;
    node->slots = hello->slots;
    node->counted = false;
    node->started_ms = hello->started_ms;
    node->rival[0] = '\0';
    (void)snprintf(node->device, sizeof node->device, "%s",
                   hello->device[0] ? hello->device : "cpu");
    (void)snprintf(node->version, sizeof node->version, "%.31s", hello->version);
    (void)snprintf(node->host, sizeof node->host, "%s", hello->host[0] ? hello->host : "127.0.0.1");
    (void)snprintf(node->boot_id, sizeof node->boot_id, "%.63s", hello->boot_id);
    node->agent = number_agent(node);
    place_net(node->host, node->boot_id, node->net);
    node->ports = hello->ports;
    node->usage_known = false;
    return renewed;
}

static void agent_hello(struct core *core, struct core_conn *conn,
                        const Cairn__V1__AgentHello *hello)
{
    if (conn->greeted) {
        core_hang_up(core, conn, RPC_FAILED_PRECONDITION, "a stream has one hello");
        return;
    }
    conn->greeted = true;
    struct core_node *node = admit_agent(core, conn, hello);
    if (!node)
        return;
    if (!node->known) /* its first one since the start */
        core->hello_at = core_now(core);
    const bool renewed = take_seat(core, conn, node, hello);
    core_pace_changed(core);
    core_send_pace(core, conn, true);
    core_paths_hello(core, node, hello);
    core_take_clock(core, node, hello->wall_ms);
    take_trouble(core, node, hello->trouble);
    core_take_gpus(core, node, hello->gpus, hello->n_gpus);
    LOG_INFO(core->options.log, "node %s joined: %u slots of %s, %u GPUs, %zu trainers run there",
             node->name, node->slots, node->device, node->gpu_count, hello->n_running);
    core_note_heard(core, node);
    forgive_node(core, node, renewed);
    if (hello->leaving)
        core_node_leaving(core, node, hello->leaving);
    core_node_renamed(core, node, hello);
    node->stray_count = 0; /* the hello lists those that are there */
    node->counted = false;
    for (size_t i = 0; i < hello->n_running; i++) {
        const Cairn__V1__RunningTrainer *one = hello->running[i];
        take_running(core, node, one->ref, one->pid, one->slot);
    }
    take_absent(core, node, hello);
    core_check_copies(core, node, hello);
    core->schedule_needed = true;
}

/* ---- exits ---- */

/* Writes the last line of the trainer's log, which is JSON (common/log.h), in words; other lines as
 * they are. */
static void last_words(const Cairn__V1__TrainerExited *exited, struct reason *out)
{
    const char *line = exited->n_last_lines > 0 ? exited->last_lines[exited->n_last_lines - 1] : "";
    json_t *entry = json_loads(line, 0, NULL);
    const char *words = json_string_value(json_object_get(entry, "msg"));
    reason_set(out, "%s", words ? words : line);
    json_decref(entry);
}

static void explain_exit(const Cairn__V1__TrainerExited *exited, struct reason *out)
{
    struct reason words;
    last_words(exited, &words);
    const char *last = words.text;
    char how[96] = "is gone, nobody knows why";
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
    }
    const bool by_itself = exited->cause == CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT;
    if (by_itself && last[0] && exited->message[0]) {
        reason_set(out, "%s: %.220s; %.180s", how, last, exited->message);
        return;
    }
    const char *more = exited->message[0] ? exited->message : last;
    reason_set(out, "%s%s%.380s", how, more[0] ? ": " : "", more);
}

static enum machine_exit exit_of(const Cairn__V1__TrainerExited *exited)
{
    switch ((int)exited->cause) {
    case CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT:
        return MACHINE_EXIT_CODE;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL:
        return MACHINE_EXIT_SIGNAL;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL:
        return MACHINE_EXIT_OOM;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED:
        return MACHINE_EXIT_SPAWN_FAILED;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED:
        return MACHINE_EXIT_FINISHED;
    }
    return MACHINE_EXIT_UNKNOWN;
}

static void apply_exit(struct core *core, struct core_job *job, uint32_t rank,
                       const Cairn__V1__TrainerExited *exited)
{
    const Cairn__V1__LastWords *words =
        exited->words__case == CAIRN__V1__TRAINER_EXITED__WORDS__WORDS ? exited->words : NULL;
    if (words && words->generation != job->m.generation)
        words = NULL; /* they are of a generation that the worker has outlived */
    if (words && machine_is_spare(&job->m, rank))
        words = NULL;
    if (words && rank == 0)
        core_take_rows(core, job, words->rows, words->n_rows);
    for (size_t i = 0; words && i < words->n_saves; i++) /* what it had written still counts */
        core_take_report(core, job, rank, words->saves[i]);
    const uint64_t marked = machine_is_spare(&job->m, rank) ? 0 : exited->marked_step;
    struct reason message;
    explain_exit(exited, &message);
    struct machine_event event = core_event_of(core, MACHINE_EV_EXITED, job->m.generation, rank);
    enum machine_exit how = exit_of(exited);
    event.exited = (struct machine_exited){
        .how = how,
        .code = how == MACHINE_EXIT_SIGNAL ? exited->signal : exited->code,
        .message = message.text,
        .finished = words && words->finished,
        .step = words && words->step > marked ? words->step : marked,
        .phase = words && words->phase[0] ? words->phase : NULL,
    };
    struct machine_fault fault;
    if (words && words->fault__case == CAIRN__V1__LAST_WORDS__FAULT__FAULT) {
        fault = core_fault(words->fault);
        event.exited.fault = &fault;
    }
    (void)core_apply(core, job, &event);
}

static void take_exit(struct core *core, struct core_node *node,
                      const Cairn__V1__TrainerExited *exited)
{
    const struct core_job *named = exited->ref ? core_job_at(core, exited->ref->job) : NULL;
    if (!exited->ref || (named && core_is_kept(named)))
        return; /* not acknowledged: it is said again to who can read the job */
    uint32_t rank = 0;
    struct core_job *job = job_of_trainer(core, node, exited->ref, &rank);
    if (job)
        apply_exit(core, job, rank, exited);
    core_stray_gone(core, node, exited->ref);
    if (core->failed != ST_OK || !node->conn)
        return;
    Cairn__V1__ExitAck ack = CAIRN__V1__EXIT_ACK__INIT;
    ack.ref = exited->ref;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK;
    order.exit_ack = &ack;
    core_post(core, node->conn, CORE_AT_ONCE, &order.base);
}

/* ---- the stream ---- */

void core_agent_message(struct core *core, struct core_conn *conn,
                        const Cairn__V1__AgentMessage *message)
{
    if (core->failed != ST_OK)
        return;
    if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_HELLO) {
        agent_hello(core, conn, message->hello);
        core_settle(core);
        return;
    }
    struct core_node *node = conn->node;
    if (!node) {
        core_hang_up(core, conn, RPC_FAILED_PRECONDITION, "the first message is a hello");
        return;
    }
    core_note_heard(core, node);
    if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_STARTED && message->started->ref) {
        take_running(core, node, message->started->ref, message->started->pid,
                     message->started->slot);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_BEAT) {
        core_take_gpus(core, node, message->beat->gpus, message->beat->n_gpus);
        core_take_clock(core, node, message->beat->wall_ms);
        take_trouble(core, node, message->beat->trouble);
        core_take_usage(node, message->beat);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_EXITED) {
        take_exit(core, node, message->exited);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING) {
        core_node_leaving(core, node, message->leaving);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LEFT) {
        core_node_left(core, node);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_PROBED) {
        core_take_probed(core, node, message->probed);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LOG &&
               core->options.log_chunk) {
        core->options.log_chunk(core->options.log_arg, message->log);
    }
    core_settle(core);
}

void core_agent_closed(struct core *core, struct core_conn *conn)
{
    core_outbox_forget(core, conn);
    if (conn->node && conn->node->conn == conn) {
        conn->node->conn = NULL;
        core_node_moved(core, conn->node);
        LOG_INFO(core->options.log, "the agent of node %s hung up", conn->node->name);
    }
    conn->node = NULL;
}
