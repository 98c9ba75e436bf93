/*
 * Which job is placed next: in order of submission. A job that has to wait for slots holds back the
 * later ones, so that large jobs don't starve; one that could not run even on empty nodes doesn't.
 *
 * And nodes that give their slots back: an agent that is told to end where its end is the end of
 * its trainers (a pod, a job of Slurm) says so first. Nothing is placed there any more, jobs with
 * workers there save and go on elsewhere, and the node is not lost but has left. Known in memory
 * only, as nodes are: an agent that leaves says it in each hello. What people keep free (`drains`)
 * is emptied in the same way, and journalled.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "server/core/internal.h"
#include "server/fleet/place.h"

/* What is free, as server/fleet/place.h wants it: two entries for a node with CPU shares and GPUs.
 */
struct board {
    struct place_node nodes[PLACE_NODES_MAX];
    struct core_node *of[PLACE_NODES_MAX];
    size_t count;
    struct place_pair
        apart[4 * PATHS_MAX]; /* that can't reach each other; two pools of a node at most */
    size_t apart_count;
};

/* Whole failures that weigh: old ones make no difference between nodes. */
static uint32_t level_of(const struct core *core, const struct core_node *node)
{
    return (uint32_t)(fleet_penalty(&node->record, core_now(core)) + 0.5);
}

/* The node's CPU shares and its GPUs. */
static void add_pools(const struct core *core, struct board *board, struct core_node *node)
{
    struct place_node pool = { .name = node->name,
                               .device = node->device,
                               .slots = node->slots,
                               .used = node->used,
                               .host = node->host,
                               .net = node->net,
                               .ports = node->ports,
                               .ready = node->conn && !node->silent &&
                                        !core_node_held(core, node) &&
                                        node->doubt.state == DOUBT_NONE,
                               .leaving = !core_node_takes(node),
                               .reachable = core_node_in_reach(core, node) && !node->drains &&
                                            node->stay != CORE_LEFT,
                               .penalty = level_of(core, node) };
    CHECK(board->count + 2 <= PLACE_NODES_MAX);
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
    if (node->gpu_count == 0)
        return;
    pool.device = CORE_GPU_DEVICE;
    pool.first = node->slots;
    pool.slots = node->gpu_count;
    pool.used = node->used + node->slots;
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
}

/* CPU shares of the one with those of the other, GPUs with GPUs: a job has slots of one kind. */
static void add_apart(struct board *board, const struct path *path)
{
    for (uint32_t i = 0; path->cut && i < board->count; i++) {
        const struct place_node *a = &board->nodes[i];
        for (uint32_t j = 0; strcmp(a->name, path->node[0]) == 0 && j < board->count; j++) {
            const struct place_node *b = &board->nodes[j];
            if (strcmp(b->name, path->node[1]) != 0 || strcmp(a->device, b->device) != 0)
                continue;
            CHECK(board->apart_count < sizeof board->apart / sizeof board->apart[0]);
            board->apart[board->apart_count++] = (struct place_pair){ i, j };
        }
    }
}

/* Slots in use are kept node by node: only where something changed they are counted anew. */
static bool fill_board(struct core *core)
{
    if (!core->board)
        core->board = malloc(sizeof *core->board);
    if (!core->board) {
        core_fail(core, ST_NO_MEMORY, "placing");
        return false;
    }
    core->board->count = 0;
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        if (!node->known)
            continue;
        if (!core_node_count(core, node))
            return false;
        add_pools(core, core->board, node);
    }
    core->board->apart_count = 0;
    for (size_t i = 0; i < core->paths.count; i++)
        add_apart(core->board, &core->paths.list[i]);
    return true;
}

static void place_job(struct core *core, struct core_job *job, const struct board *board,
                      const struct place_slot *slots)
{
    uint32_t ranks = job->m.config.ranks;
    auto_free const char **names = calloc(ranks, sizeof *names);
    auto_free uint32_t *numbers = calloc(ranks, sizeof *numbers);
    if (!names || !numbers) {
        core_fail(core, ST_NO_MEMORY, "placing");
        return;
    }
    const bool keeps = machine_vacant(&job->m) < ranks;
    for (uint32_t i = 0, next = 0; i < ranks; i++) {
        if (keeps && !job->m.ranks[i].gone)
            continue;
        names[i] = board->of[slots[next].node]->name;
        numbers[i] = slots[next++].slot;
    }
    char token[65];
    core_nonce(core, token, sizeof token);
    if (core->options.seal)
        core->options.seal(core->options.seal_arg, token);
    struct machine_event event = core_event(core, MACHINE_EV_PLACED);
    event.placed = (struct machine_placed){ names, numbers, token };
    (void)core_apply(core, job, &event);
}

static void keep_waiting(struct core *core, struct core_job *job, const char *reason)
{
    if (strcmp(job->m.reason, reason) == 0)
        return;
    struct machine_event event = core_event(core, MACHINE_EV_WAITING);
    event.waiting.reason = reason;
    (void)core_apply(core, job, &event);
}

/* From which nodes a job is kept away. */
enum avoid {
    AVOID_FAILED = 1,  /* it failed there */
    AVOID_DRAINED = 2, /* others did */
    AVOID_SUSPECT = 4, /* reads damage where there is none, or other data than the job began with */
};

static bool is_suspect(const struct machine *m, const char *node)
{
    bool found = false;
    for (uint32_t i = 0; i < m->suspect_count; i++)
        found = found || strcmp(m->suspects[i], node) == 0;
    return found;
}

static bool are_apart(const struct board *board, const struct core_node *a,
                      const struct core_node *b)
{
    bool apart = false;
    for (size_t i = 0; i < board->apart_count && !apart; i++) {
        const struct core_node *one = board->of[board->apart[i].a];
        const struct core_node *other = board->of[board->apart[i].b];
        apart = (one == a && other == b) || (one == b && other == a);
    }
    return apart;
}

/* Workers there and those that were kept reach each other, as far as is known. */
static bool joins_kept(struct core *core, const struct core_job *job, const struct board *board,
                       const struct core_node *node)
{
    const struct core_node *before = NULL; /* ranks side by side share nodes */
    bool joins = true;
    CHECK(node);
    for (uint32_t i = 0; machine_keeps(&job->m) && joins && i < job->m.config.ranks; i++) {
        const struct core_node *kept =
            job->m.ranks[i].gone ? node : core_node_at(core, job->m.ranks[i].node);
        if (!kept || kept == node || kept == before)
            continue;
        before = kept;
        joins = strcmp(kept->net, node->net) == 0 && !are_apart(board, kept, node);
    }
    return joins;
}

static void mark_board(struct core *core, const struct core_job *job, struct board *board,
                       unsigned avoid)
{
    const struct machine *m = &job->m;
    int64_t wall = clock_wall_ms(core->options.clock);
    for (size_t i = 0; i < board->count; i++) {
        struct place_node *node = &board->nodes[i];
        node->excluded = shun_holds(&m->shunned, node->name, SHUN_PINS, wall);
        node->avoided =
            ((avoid & AVOID_FAILED) && shun_holds(&m->shunned, node->name, SHUN_FAILED, wall)) ||
            ((avoid & AVOID_DRAINED) && core_node_drained(core, board->of[i])) ||
            ((avoid & AVOID_SUSPECT) &&
             (is_suspect(m, node->name) || shun_holds(&m->shunned, node->name, SHUN_DATA, wall))) ||
            !joins_kept(core, job, board, board->of[i]);
    }
}

/* Nodes in reach could take it, if they reached each other. */
static bool fits_but_for_paths(const struct board *board, const struct place_ask *ask)
{
    struct place_ask any = *ask;
    any.apart_count = 0;
    return ask->apart_count > 0 && place_fits_in_reach(board->nodes, board->count, &any);
}

/*
 * Slots of a job, or why there are none. A suspected node is taken where others have no room now; a
 * drained one, or one where this very job failed, only where no other could ever take the job.
 * ST_NOT_FOUND: it could run nowhere but where it failed.
 */
static enum status find_slots(struct core *core, struct core_job *job, struct board *board,
                              struct place_slot *slots, struct reason *reason)
{
    static const unsigned avoids[] = { AVOID_FAILED | AVOID_DRAINED | AVOID_SUSPECT,
                                       AVOID_FAILED | AVOID_DRAINED, AVOID_FAILED };
    const struct place_ask ask = { .count = machine_vacant(&job->m),
                                   .device = job_device_word(job->spec->workers.device),
                                   .apart = board->apart,
                                   .apart_count = board->apart_count };
    enum status st = ST_AGAIN;
    for (size_t i = 0; i < sizeof avoids / sizeof avoids[0]; i++) {
        mark_board(core, job, board, avoids[i]);
        st = place_workers(board->nodes, board->count, &ask, slots, reason);
        bool could = place_fits_in_reach(board->nodes, board->count, &ask);
        if (st == ST_OK || (could && !(avoids[i] & AVOID_SUSPECT)))
            return st;
    }
    if (shun_count(&job->m.shunned, SHUN_FAILED) == 0 || core_now(core) < core->expects_until)
        return st;
    mark_board(core, job, board, 0);
    bool there = place_fits_in_reach(board->nodes, board->count, &ask);
    mark_board(core, job, board, AVOID_FAILED);
    /* What would end the job there waits for the path that keeps it from other nodes. */
    if (job->m.cause.kind == MACHINE_FAULT_USER && fits_but_for_paths(board, &ask))
        there = false;
    return there ? ST_NOT_FOUND : st;
}

/* What keep_waiting is told of nodes that could take the job, but for what happened there. */
static void add_failed(const struct core_job *job, struct reason *reason)
{
    const struct machine_fault *cause = &job->m.cause;
    const bool told = cause->kind == MACHINE_FAULT_USER && cause->of_node;
    struct reason before = *reason, where;
    if (shun_count(&job->m.shunned, SHUN_FAILED) == 0)
        return;
    shun_name(&job->m.shunned, SHUN_FAILED, &where);
    reason_set(reason, "%.200s; it keeps away from where it failed, %.150s%s%.150s", before.text,
               where.text, told ? ": " : "", told ? cause->message : "");
}

/* What there is not enough of: some may be held by processes that were killed and don't die. */
static void note_strays(struct core *core, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < core->node_count; i++)
        count += core->nodes[i]->silent ? 0 : core->nodes[i]->stray_count;
    if (count == 0)
        return;
    struct reason all;
    reason_set(&all, "%.400s; %zu slot%s held by a process that was killed and is not gone",
               reason->text, count, count == 1 ? " is" : "s are each");
    *reason = all;
}

/* Nor do nodes count that leave, have just left, or are kept free. */
static void note_leaving(const struct core *core, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < core->node_count; i++)
        count += !core_node_takes(core->nodes[i]) && core_node_in_reach(core, core->nodes[i]);
    if (count == 0)
        return;
    struct reason before = *reason;
    reason_set(reason, "%.400s; %zu %s drained or %s left", before.text, count,
               count == 1 ? "node is" : "nodes are", count == 1 ? "has" : "have");
}

/* true: later jobs have to wait for this one. */
static bool try_place(struct core *core, struct core_job *job)
{
    auto_free struct place_slot *slots = calloc(job->m.config.ranks, sizeof *slots);
    struct reason reason = { "" };
    if (!slots)
        core_fail(core, ST_NO_MEMORY, "placing");
    if (!slots || !fill_board(core))
        return true;
    if (core_paths_open(core, job))
        return false; /* it is known within seconds whether its nodes reach each other */
    enum status st = machine_vacant(&job->m) == 0 /* all go on where they are */
                         ? ST_OK
                         : find_slots(core, job, core->board, slots, &reason);
    if (st == ST_OK) {
        place_job(core, job, core->board, slots);
        return false;
    }
    if (st == ST_NOT_FOUND) {
        struct machine_event event = core_event(core, MACHINE_EV_NOWHERE);
        (void)core_apply(core, job, &event);
        return false;
    }
    if (st == ST_UNREACHABLE) { /* slots are free, and may be of use to others */
        paths_want(&core->paths, core_now(core));
        keep_waiting(core, job, reason.text);
        return false;
    }
    const struct place_ask ask = { .count = machine_vacant(&job->m),
                                   .device = job_device_word(job->spec->workers.device),
                                   .apart = core->board->apart,
                                   .apart_count = core->board->apart_count };
    const bool holds_back = place_fits(core->board->nodes, core->board->count, &ask);
    if (!holds_back && fits_but_for_paths(core->board, &ask))
        paths_want(&core->paths, core_now(core));
    add_failed(job, &reason);
    note_strays(core, &reason);
    note_leaving(core, &reason);
    keep_waiting(core, job, reason.text);
    return holds_back;
}

/* Those behind the one that holds them back are not looked at: core_reason says why they wait. */
static void schedule_jobs(struct core *core)
{
    const struct core_job *holds_back = NULL;
    const int64_t now = core_now(core);
    core->looked_at = now;
    if (core->draining_until != 0)
        return;
    for (size_t i = 0; i < core->queue.count && !holds_back && core->failed == ST_OK;) {
        struct core_job *job = core->queue.list[i].value;
        if (machine_wants_slots(&job->m, now) && try_place(core, job))
            holds_back = job;
        i += i < core->queue.count && core->queue.list[i].value == job; /* else it is placed */
    }
    if (holds_back != core->holds_back)
        core_queue_moved(core, holds_back);
}

/* The job that was the last to fail there; not within the turn that found it out. */
static void tell_drained(struct core *core)
{
    if (!core->drained_untold)
        return;
    core->drained_untold = false;
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        const struct fleet_record *record = &node->record;
        if (!record->drained || node->drain_told)
            continue;
        node->drain_told = true;
        struct core_job *job = core_job_at(core, record->faults[record->count - 1].job);
        struct reason text;
        reason_set(&text,
                   "node %s is drained: this is one of %u jobs that failed there; it takes jobs "
                   "again when that is %d minutes ago, or its machine was started anew",
                   node->name, record->count, (int)(FLEET_FORGET_MS / 60000));
        if (job)
            core_note(core, job, "node", text.text);
    }
}

/* ---- nodes that leave ---- */

void core_node_stays(struct core_node *node)
{
    node->stay = CORE_STAYS;
    node->why_leaves[0] = '\0';
    node->heir[0] = '\0';
}

void core_tell_ranks(struct core *core, struct core_node *node, enum machine_event_kind kind,
                     const char *why_leaving)
{
    size_t count;
    auto_free struct core_rank **ranks = core_ranks_of(core, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct core_job *job = ranks[i]->job;
        if (ranks[i]->node != node || job->unreadable[0])
            continue; /* by what another rank's event led to; nothing is done with that one */
        struct machine_event event =
            core_event_of(core, kind, job->m.generation, core_rank_number(ranks[i]));
        if (kind == MACHINE_EV_LEAVING)
            event.leaving.why = why_leaving;
        (void)core_apply(core, job, &event);
    }
    core->schedule_needed = true;
}

void core_node_leaving(struct core *core, struct core_node *node,
                       const Cairn__V1__AgentLeaving *leaving)
{
    struct reason why;
    reason_set(&why, "node %s leaves within %.1f s: %.100s", node->name,
               (double)leaving->grace_ms / 1000.0, leaving->reason);
    if (node->stay == CORE_STAYS)
        LOG_INFO(core->options.log, "%s", why.text);
    node->stay = CORE_LEAVES;
    (void)snprintf(node->why_leaves, sizeof node->why_leaves, "%.100s", leaving->reason);
    core_tell_ranks(core, node, MACHINE_EV_LEAVING, why.text);
}

/* What was not seen to go there has gone with it. */
void core_node_left(struct core *core, struct core_node *node)
{
    struct core_conn *conn = node->conn;
    LOG_INFO(core->options.log, "node %s has left", node->name);
    node->stay = CORE_LEFT;
    node->silent = true;
    node->doubted = node->alone = false;
    doubt_end(&node->doubt);
    node->conn = NULL;
    core_node_moved(core, node);
    size_t count;
    auto_free struct core_rank **ranks = core_ranks_of(core, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct core_job *job = ranks[i]->job;
        if (ranks[i]->node != node || job->unreadable[0])
            continue;
        struct machine_event event =
            core_event_of(core, MACHINE_EV_MISSING, job->m.generation, core_rank_number(ranks[i]));
        (void)core_apply(core, job, &event);
    }
    if (conn) {
        conn->node = NULL;
        core_hang_up(core, conn, RPC_OK, "");
    }
    core->schedule_needed = true;
}

/*
 * A machine that got another name: under the old one it would be lost for good, and its slots be
 * waited for. It is one machine if the home and the address are the same. The old name's agent may
 * be back in a moment (both were stopped for an upgrade), or its stream look open though its
 * machine went down: so its silence decides, and a hello under that name ends it. Workers of the
 * old name's agent that run on are heard: they save and go elsewhere.
 */
static void give_to_heir(struct core *core, struct core_node *old)
{
    struct reason why;
    reason_set(&why, "its machine is node %.100s now", old->heir);
    old->heir[0] = '\0';
    LOG_INFO(core->options.log, "node %s: %s", old->name, why.text);
    (void)snprintf(old->why_leaves, sizeof old->why_leaves, "%.120s", why.text);
    if (!old->ranks) {
        core_node_left(core, old);
        return;
    }
    old->stay = CORE_LEAVES;
    struct reason told;
    reason_set(&told, "node %.100s leaves: %s", old->name, why.text);
    core_tell_ranks(core, old, MACHINE_EV_LEAVING, told.text);
}

void core_node_renamed(struct core *core, const struct core_node *node,
                       const Cairn__V1__AgentHello *hello)
{
    for (size_t i = 0; i < hello->n_formerly && i < CORE_FORMERLY_MAX; i++) {
        struct core_node *old = core_node_at(core, hello->formerly[i]);
        if (!old || old == node || !old->known || old->stay != CORE_STAYS ||
            strcmp(old->host, node->host) != 0)
            continue;
        (void)snprintf(old->heir, sizeof old->heir, "%s", node->name);
        core_node_moved(core, old);
    }
}

void core_node_drain(struct core *core, struct core_node *node, const char *reason, int64_t until)
{
    node->drains = true;
    node->drain_over = false;
    node->drain_until = until;
    (void)snprintf(node->why_drains, sizeof node->why_drains, "%s", reason);
    core_node_moved(core, node);
}

/* Said once; ended again and again, as an order may be lost with its stream. The number of those
 * who are still there. */
static size_t end_overdue(struct core *core, struct core_node *node)
{
    const struct core_job *told = NULL;
    const bool first = !node->drain_over;
    size_t count, left = 0;
    auto_free struct core_rank **ranks = core_ranks_of(core, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct core_job *job = ranks[i]->job;
        if (ranks[i]->node != node || job->unreadable[0])
            continue; /* by what was said before; nothing is done with what can't be read */
        left++;
        if (!node->conn)
            continue;
        core_send_end(core, job, core_rank_number(ranks[i]));
        node->drain_over = true;
        if (!first || job == told)
            continue;
        told = job;
        struct reason text;
        reason_set(&text, "the deadline of node %s's drain is over: its workers there are killed",
                   node->name);
        core_note(core, job, "node", text.text);
    }
    return left;
}

void core_stay_tick(struct core *core, struct core_node *node)
{
    if (core_node_inherited(node))
        give_to_heir(core, node);
    if (node->drain_until == 0 || core_now(core) < node->drain_until)
        return;
    const size_t left = end_overdue(core, node);
    node->drain_until = left > 0 ? core_now(core) + CORE_DRAIN_AGAIN_MS : 0;
}

enum status core_drain_node(struct core *core, const char *name, const char *reason,
                            int64_t deadline_ms, const char *by)
{
    struct core_node *node = core_node_at(core, name);
    const int64_t wall = clock_wall_ms(core->options.clock);
    const int64_t until_ms = deadline_ms == 0 ? 0 : wall + deadline_ms;
    if (!node || !node->known)
        return ST_NOT_FOUND;
    core_node_drain(core, node, reason, deadline_ms == 0 ? 0 : core_now(core) + deadline_ms);
    enum status st = core_begin(core);
    if (st == ST_OK)
        st = journal_put_drain(core->options.journal, name, node->why_drains, until_ms);
    if (st != ST_OK) {
        core_fail(core, st, "draining a node");
        return st;
    }
    struct reason why;
    reason_set(&why, "node %s is drained, asked by %s%s%.100s", name, by ? by : "the user",
               reason[0] ? ": " : "", reason);
    LOG_INFO(core->options.log, "%s", why.text);
    core_tell_ranks(core, node, MACHINE_EV_LEAVING, why.text);
    core_schedule(core);
    return core->failed;
}

enum status core_undrain_node(struct core *core, const char *name, const char *by)
{
    struct core_node *node = core_node_at(core, name);
    if (!node || !node->drains)
        return ST_NOT_FOUND;
    node->drains = false;
    node->drain_until = 0;
    core_node_moved(core, node);
    node->why_drains[0] = '\0';
    enum status st = core_begin(core);
    if (st == ST_OK)
        st = journal_drop_drain(core->options.journal, name);
    if (st != ST_OK) {
        core_fail(core, st, "taking a node back");
        return st;
    }
    LOG_INFO(core->options.log, "node %s is drained no more, asked by %s", name,
             by ? by : "the user");
    core->schedule_needed = true;
    core_schedule(core);
    return core->failed;
}

void core_schedule(struct core *core)
{
    tell_drained(core);
    for (int i = 0; i < 8 && core->schedule_needed && core->failed == ST_OK; i++) {
        core->schedule_needed = false;
        schedule_jobs(core);
    }
    if (core_outbox_full(core))
        (void)core_commit(core); /* that it failed, core_failed says */
}
