/* Agents: who is there, what runs where, and reconciliation after either side's restart. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "identity/identity.h"
#include "server/coord/apply.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/inputs/liveness.h"
#include "server/coord/inputs/probe_results.h"
#include "server/coord/inputs/trainers.h"
#include "server/coord/leaving.h"
#include "server/coord/metrics.h"
#include "server/coord/node_health.h"
#include "server/coord/orders.h"
#include "server/coord/outbox.h"
#include "server/coord/state.h"
#include "server/coord/usage.h"

/* ---- reconciliation ---- */

/* Returns the job if the trainer is one of its current workers on that node, with its place there;
 * else NULL. */
static struct coord_job *job_of_trainer(struct coord *coord, const struct coord_node *node,
                                        const Cairn__V1__TrainerRef *ref, uint32_t *out_rank)
{
    struct coord_job *job = ref != NULL ? coord_job_at(coord, ref->job) : NULL;
    bool found = false;
    for (uint32_t i = 0; job != NULL && i < job->m.count && ref->generation > 0 && !found; i++) {
        const struct fsm_rank *rank = &job->m.ranks[i];
        found = rank->birth == ref->generation && rank->number == ref->rank &&
                strcmp(rank->node, node->name) == 0;
        *out_rank = i;
    }
    return found ? job : NULL;
}

/* Takes a trainer that the agent says runs there. One that no job has any more is ended, and holds
 * its slot until it is gone. */
static void take_running(struct coord *coord, struct coord_node *node, Cairn__V1__TrainerRef *ref,
                         uint32_t pid, uint32_t slot)
{
    const struct coord_job *named = ref != NULL ? coord_job_at(coord, ref->job) : NULL;
    if (named != NULL && coord_is_unreadable(named))
        return; /* the trainer may be one of this generation */
    uint32_t at = 0;
    struct coord_job *job = job_of_trainer(coord, node, ref, &at);
    if (job == NULL || !fsm_alive_rank(&job->m, at)) {
        if (ref != NULL)
            coord_orphan_add(coord, node, ref, slot, coord_now(coord));
        if (ref != NULL && node->conn != NULL)
            coord_send_end_of(coord, node->conn, ref);
        return;
    }
    struct fsm_event event = coord_event_of(coord, FSM_EV_STARTED, job->m.generation, at);
    event.started.pid = pid;
    (void)coord_apply(coord, job, &event);
    const struct fsm_rank *rank = &job->m.ranks[at];
    const bool ends = fsm_is_cut_short(&job->m, at) && !fsm_is_spare(&job->m, at);
    if ((ends || (rank->ended && !rank->parked)) && node->conn != NULL)
        coord_send_end_of(coord, node->conn, ref);
}

static bool is_listed(const Cairn__V1__AgentHello *hello, const char *job, uint32_t generation,
                      uint32_t rank)
{
    for (size_t i = 0; i < hello->n_running; i++) {
        const Cairn__V1__TrainerRef *ref = hello->running[i]->ref;
        if (ref != NULL && ref->generation == generation && ref->rank == rank &&
            strcmp(ref->job, job) == 0)
            return true;
    }
    return false;
}

/* Handles trainers that should run there and aren't listed: they never started (again), or are
 * gone. */
static void take_absent(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentHello *hello)
{
    size_t count;
    auto_free struct coord_rank **ranks = coord_ranks_of(coord, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct coord_job *job = ranks[i]->job;
        const uint32_t r = coord_rank_number(ranks[i]);
        if (job->unreadable[0] || ranks[i]->node != node || !fsm_alive_rank(&job->m, r) ||
            is_listed(hello, job->id, job->m.ranks[r].birth, job->m.ranks[r].number))
            continue;
        const bool is_new = job->m.ranks[r].birth == job->m.generation; /* else it was there */
        const bool forms = job->m.state == FSM_FORMING || fsm_is_spare(&job->m, r);
        if (forms && !job->m.ranks[r].started && is_new && !job->m.ranks[r].ended &&
            node->stay == COORD_STAYS) { /* a node that leaves starts nothing more */
            coord_send_start(coord, job, r);
            continue;
        }
        struct fsm_event event = coord_event_of(coord, FSM_EV_MISSING, job->m.generation, r);
        (void)coord_apply(coord, job, &event);
    }
}

/* Forgives a node: what is held against it is held against the agent that was there, with its
 * settings. renewed: its machine was started anew, or its agent is another one. */
static void forgive_node(struct coord *coord, struct coord_node *node, bool renewed)
{
    if (renewed) {
        fleet_forgive(&node->record);
        coord_node_moved(coord, node);
    }
    for (size_t j = coord->live.count; j > 0; j--) { /* whoever is over by this leaves the list */
        struct coord_job *job = coord->live.list[j - 1].value;
        if (!exclusion_knows(&job->m.exclusions, node->name) && job->m.suspect_count == 0)
            continue;
        struct fsm_event event = coord_event(coord, FSM_EV_NODE);
        event.node.name = node->name;
        event.node.agent = node->agent;
        event.node.renewed = renewed;
        (void)coord_apply(coord, job, &event);
    }
}

/* True if the agent that has the name lives: on another machine, or as a younger process of this
 * one. */
static bool is_taken(const struct coord *coord, const struct coord_node *node,
                     const Cairn__V1__AgentHello *hello)
{
    if (!node->known || node->stay == COORD_LEFT || !node->boot_id[0] ||
        coord_now(coord) >= node->heard_at + coord->lost_ms)
        return false;
    return strcmp(node->boot_id, hello->boot_id) != 0 || hello->started_ms < node->started_ms;
}

/* Refuses a second agent of that name, and says so to both, to the one that is there once per
 * rival. */
static void refuse_duplicate(struct coord *coord, struct coord_conn *conn, struct coord_node *node,
                             const Cairn__V1__AgentHello *hello)
{
    char duplicate[sizeof(node->duplicate)];
    struct reason reason;
    (void)snprintf(duplicate, sizeof(duplicate), "%.40s %llu", hello->boot_id,
                   (unsigned long long)hello->started_ms);
    if (strcmp(duplicate, node->duplicate) != 0) {
        (void)snprintf(node->duplicate, sizeof(node->duplicate), "%s", duplicate);
        reason_set(
            &reason,
            "another agent, of host %.100s, calls itself %s, too; it waits until this one is "
            "lost: start one of them with another --name",
            hello->host, node->name);
        LOG_WARN(coord->options.log, "node %s: %s", node->name, reason.text);
        Cairn__V1__AgentNotice notice = CAIRN__V1__AGENT_NOTICE__INIT;
        notice.message = reason.text;
        Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
        order.body_case = CAIRN__V1__AGENT_ORDER__BODY_NOTICE;
        order.notice = &notice;
        if (node->conn != NULL)
            coord_post(coord, node->conn, COORD_COMMIT_SOON, &order.base);
    }
    reason_set(&reason,
               "another agent, of host %.100s, is node %s; this one waits until that one is lost: "
               "or start it with another --name",
               node->host, node->name);
    coord_hang_up(coord, conn, RPC_ALREADY_EXISTS, reason.text);
}

/* Returns the node that this hello speaks of, with room for its agent; NULL, and the stream
 * ended. */
static struct coord_node *admit_agent(struct coord *coord, struct coord_conn *conn,
                                      const Cairn__V1__AgentHello *hello)
{
    if (!identity_name_valid(hello->node) || strlen(hello->host) >= LIMIT_NAME ||
        strlen(hello->device) >= 32 || hello->slots > LIMIT_SLOTS) {
        coord_hang_up(coord, conn, RPC_INVALID_ARGUMENT,
                      "this hello has no usable name, host or size");
        return NULL;
    }
    if (!coord_version_fits(hello->version)) {
        struct reason reason;
        reason_set(&reason,
                   "this coordinator is of version %s, the agent of node %s of version %.31s: "
                   "install the same on both",
                   CAIRN_VERSION, hello->node, coord_version_text(hello->version));
        coord_hang_up(coord, conn, RPC_FAILED_PRECONDITION, reason.text);
        return NULL;
    }
    struct coord_node *node = coord_node_admit(coord, hello->node);
    if (node == NULL) {
        coord_hang_up(coord, conn, RPC_RESOURCE_EXHAUSTED, COORD_TOO_MANY_NODES);
        return NULL;
    }
    if (is_taken(coord, node, hello)) {
        refuse_duplicate(coord, conn, node, hello);
        return NULL;
    }
    return node;
}

/* Returns the agent's number: FNV-1a; never 0. */
static uint64_t number_agent(const struct coord_node *node)
{
    char text[sizeof(node->boot_id) + sizeof(node->version) + 32];
    uint64_t hash = 1469598103934665603u;
    (void)snprintf(text, sizeof(text), "%s %llu %s", node->boot_id,
                   (unsigned long long)node->started_ms, node->version);
    for (const char *p = text; *p; p++)
        hash = (hash ^ (uint8_t)*p) * 1099511628211u;
    return hash | 1;
}

/* Takes what an agent says of its machine; it is logged when it changes. */
static void take_trouble(const struct coord *coord, struct coord_node *node, const char *trouble)
{
    struct reason now;
    reason_set(&now, "%s", trouble);
    if (strcmp(now.text, node->trouble) == 0)
        return;
    memcpy(node->trouble, now.text, sizeof(node->trouble));
    if (now.text[0])
        LOG_WARN(coord->options.log, "node %s: %s", node->name, now.text);
}

/* Gives the name to the agent of this hello; an older agent loses its stream. true: it is another
 * agent than was known, or of a machine that was started anew. */
static bool take_seat(struct coord *coord, struct coord_conn *conn, struct coord_node *node,
                      const Cairn__V1__AgentHello *hello)
{
    struct coord_conn *old = node->conn;
    if (old != NULL) {
        old->node = NULL;
        coord_hang_up(coord, old, RPC_ABORTED,
                      "a newer agent of this machine took this node's name");
        if (hello->started_ms != node->started_ms) {
            LOG_WARN(coord->options.log, "node %s: a newer agent takes the place of an older one",
                     node->name);
        }
    }
    bool renewed = node->known && (hello->started_ms != node->started_ms ||
                                   strcmp(node->boot_id, hello->boot_id) != 0 ||
                                   strcmp(node->version, hello->version) != 0);
    conn->node = node;
    node->conn = conn;
    node->known = true;
    coord_node_stays(node);
    node->local = conn->local;
    node->slots = hello->slots;
    node->counted = false;
    node->started_ms = hello->started_ms;
    node->duplicate[0] = '\0';
    (void)snprintf(node->device, sizeof(node->device), "%s",
                   hello->device[0] ? hello->device : "cpu");
    (void)snprintf(node->version, sizeof(node->version), "%.31s", hello->version);
    (void)snprintf(node->host, sizeof(node->host), "%s",
                   hello->host[0] ? hello->host : "127.0.0.1");
    (void)snprintf(node->boot_id, sizeof(node->boot_id), "%.63s", hello->boot_id);
    node->agent = number_agent(node);
    place_net(node->host, node->boot_id, node->net);
    node->ports = hello->ports;
    node->usage_known = false;
    return renewed;
}

static void agent_hello(struct coord *coord, struct coord_conn *conn,
                        const Cairn__V1__AgentHello *hello)
{
    if (conn->greeted) {
        coord_hang_up(coord, conn, RPC_FAILED_PRECONDITION, "a stream has one hello");
        return;
    }
    conn->greeted = true;
    struct coord_node *node = admit_agent(coord, conn, hello);
    if (node == NULL)
        return;
    if (!node->known) /* its first one since the start */
        coord->hello_at = coord_now(coord);
    const bool renewed = take_seat(coord, conn, node, hello);
    coord_beat_interval_changed(coord);
    coord_send_beat_interval(coord, conn, true);
    coord_netpaths_hello(coord, node, hello);
    coord_take_clock(coord, node, hello->wall_ms);
    take_trouble(coord, node, hello->trouble);
    coord_take_gpus(coord, node, hello->gpus, hello->n_gpus);
    LOG_INFO(coord->options.log, "node %s joined: %u slots of %s, %u GPUs, %zu trainers run there",
             node->name, node->slots, node->device, node->gpu_count, hello->n_running);
    coord_note_heard(coord, node);
    forgive_node(coord, node, renewed);
    if (hello->leaving != NULL)
        coord_node_leaving(coord, node, hello->leaving);
    coord_node_renamed(coord, node, hello);
    node->stray_count = 0; /* the hello lists those that are there */
    node->counted = false;
    for (size_t i = 0; i < hello->n_running; i++) {
        const Cairn__V1__RunningTrainer *one = hello->running[i];
        take_running(coord, node, one->ref, one->pid, one->slot);
    }
    take_absent(coord, node, hello);
    coord_check_copies(coord, node, hello);
    coord->schedule_needed = true;
}

/* ---- exits ---- */

/* Writes the last line of the trainer's log, which is JSON (common/log.h), in words; other lines as
 * they are. */
static void last_log_line(const Cairn__V1__TrainerExited *exited, struct reason *out)
{
    const char *line = exited->n_last_lines > 0 ? exited->last_lines[exited->n_last_lines - 1] : "";
    json_t *entry = json_loads(line, 0, NULL);
    const char *words = json_string_value(json_object_get(entry, "msg"));
    reason_set(out, "%s", words != NULL ? words : line);
    json_decref(entry);
}

static void explain_exit(const Cairn__V1__TrainerExited *exited, struct reason *out)
{
    struct reason words;
    last_log_line(exited, &words);
    const char *last = words.text;
    char how[96] = "is gone, nobody knows why";
    switch ((int)exited->cause) {
    case CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT:
        (void)snprintf(how, sizeof(how), "exited with code %d", exited->code);
        break;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL:
        (void)snprintf(how, sizeof(how), "killed by signal %d (%s)", exited->signal,
                       strsignal(exited->signal));
        break;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL:
        (void)snprintf(how, sizeof(how), "killed by the kernel: out of memory");
        break;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED:
        (void)snprintf(how, sizeof(how), "could not be started");
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

static enum fsm_exit exit_of(const Cairn__V1__TrainerExited *exited)
{
    switch ((int)exited->cause) {
    case CAIRN__V1__TRAINER_EXITED__CAUSE__EXIT:
        return FSM_EXIT_CODE;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SIGNAL:
        return FSM_EXIT_SIGNAL;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__OOM_KILL:
        return FSM_EXIT_OOM;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__SPAWN_FAILED:
        return FSM_EXIT_SPAWN_FAILED;
    case CAIRN__V1__TRAINER_EXITED__CAUSE__FINISHED:
        return FSM_EXIT_FINISHED;
    }
    return FSM_EXIT_UNKNOWN;
}

static void apply_exit(struct coord *coord, struct coord_job *job, uint32_t rank,
                       const Cairn__V1__TrainerExited *exited)
{
    const Cairn__V1__LastWords *words =
        exited->words__case == CAIRN__V1__TRAINER_EXITED__WORDS__WORDS ? exited->words : NULL;
    if (words != NULL && words->generation != job->m.generation)
        words = NULL; /* they are of a generation that the worker has outlived */
    if (words != NULL && fsm_is_spare(&job->m, rank))
        words = NULL;
    if (words != NULL && rank == 0)
        coord_take_rows(coord, job, words->rows, words->n_rows);
    for (size_t i = 0; words != NULL && i < words->n_saves;
         i++) /* what it had written still counts */
        coord_take_report(coord, job, rank, words->saves[i]);
    const uint64_t marked = fsm_is_spare(&job->m, rank) ? 0 : exited->marked_step;
    struct reason message;
    explain_exit(exited, &message);
    struct fsm_event event = coord_event_of(coord, FSM_EV_EXITED, job->m.generation, rank);
    enum fsm_exit how = exit_of(exited);
    event.exited = (struct fsm_exited){
        .how = how,
        .code = how == FSM_EXIT_SIGNAL ? exited->signal : exited->code,
        .message = message.text,
        .finished = words != NULL && words->finished,
        .step = words != NULL && words->step > marked ? words->step : marked,
        .phase = words != NULL && words->phase[0] ? words->phase : NULL,
    };
    struct fsm_fault fault;
    if (words != NULL && words->fault__case == CAIRN__V1__LAST_WORDS__FAULT__FAULT) {
        fault = coord_fault(words->fault);
        event.exited.fault = &fault;
    }
    (void)coord_apply(coord, job, &event);
}

static void take_exit(struct coord *coord, struct coord_node *node,
                      const Cairn__V1__TrainerExited *exited)
{
    const struct coord_job *named =
        exited->ref != NULL ? coord_job_at(coord, exited->ref->job) : NULL;
    if (exited->ref == NULL || (named != NULL && coord_is_unreadable(named)))
        return; /* not acknowledged: it is said again to who can read the job */
    uint32_t rank = 0;
    struct coord_job *job = job_of_trainer(coord, node, exited->ref, &rank);
    if (job != NULL)
        apply_exit(coord, job, rank, exited);
    coord_orphan_gone(coord, node, exited->ref);
    if (coord->failed != ST_OK || node->conn == NULL)
        return;
    Cairn__V1__ExitAck ack = CAIRN__V1__EXIT_ACK__INIT;
    ack.ref = exited->ref;
    Cairn__V1__AgentOrder order = CAIRN__V1__AGENT_ORDER__INIT;
    order.body_case = CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK;
    order.exit_ack = &ack;
    coord_post(coord, node->conn, COORD_COMMIT_SOON, &order.base);
}

/* ---- the stream ---- */

void coord_agent_message(struct coord *coord, struct coord_conn *conn,
                         const Cairn__V1__AgentMessage *message)
{
    if (coord->failed != ST_OK)
        return;
    if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_HELLO) {
        agent_hello(coord, conn, message->hello);
        coord_bound_group(coord);
        return;
    }
    struct coord_node *node = conn->node;
    if (node == NULL) {
        coord_hang_up(coord, conn, RPC_FAILED_PRECONDITION, "the first message is a hello");
        return;
    }
    coord_note_heard(coord, node);
    if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_STARTED &&
        message->started->ref != NULL) {
        take_running(coord, node, message->started->ref, message->started->pid,
                     message->started->slot);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_BEAT) {
        coord_take_gpus(coord, node, message->beat->gpus, message->beat->n_gpus);
        coord_take_clock(coord, node, message->beat->wall_ms);
        take_trouble(coord, node, message->beat->trouble);
        coord_take_usage(node, message->beat);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_EXITED) {
        take_exit(coord, node, message->exited);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LEAVING) {
        coord_node_leaving(coord, node, message->leaving);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LEFT) {
        coord_node_left(coord, node);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_PROBED) {
        coord_take_probed(coord, node, message->probed);
    } else if (message->body_case == CAIRN__V1__AGENT_MESSAGE__BODY_LOG &&
               coord->options.log_chunk != NULL) {
        coord->options.log_chunk(coord->options.log_arg, message->log);
    }
    coord_bound_group(coord);
}

void coord_agent_closed(struct coord *coord, struct coord_conn *conn)
{
    coord_outbox_forget(coord, conn);
    if (conn->node != NULL && conn->node->conn == conn) {
        conn->node->conn = NULL;
        coord_node_moved(coord, conn->node);
        LOG_INFO(coord->options.log, "the agent of node %s hung up", conn->node->name);
    }
    conn->node = NULL;
}
