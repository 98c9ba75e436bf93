/*
 * Nodes that give their slots back. An agent that is told to end, where its end is the end of its
 * trainers (a pod, a job of Slurm), says so first. Nothing is placed there any more, jobs with
 * workers there save and go on elsewhere, and the node is not lost but has left.
 *
 * This is known in memory only, as nodes are: an agent that leaves says it in each hello. A node
 * that people keep free (`drains`) is emptied in the same way, and that is journalled.
 */
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/core/internal.h"

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

/* Trainers that were not seen to go there have gone with the node. */
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
 * Lets a node leave whose machine got another name: under the old one it would be lost for good,
 * and its slots be waited for. It is one machine if the home and the address are the same.
 *
 * The old name's agent may be back in a moment (both were stopped for an upgrade), or its stream
 * look open though its machine went down. So its silence decides, and a hello under that name ends
 * it. Workers of the old name's agent that run on are heard: they save and go elsewhere.
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

/* Ends workers that are there after the drain's deadline, again and again, as an order may be lost
 * with its stream; their jobs are told once. Returns how many are still there. */
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
    core_settle(core);
    return core->failed;
}

/* Called after the turn that found it out, not within it. */
void core_drain_accused(struct core *core)
{
    if (!core->accused)
        return;
    core->accused = false;
    for (size_t i = 0; i < core->node_count && core->failed == ST_OK; i++) {
        struct core_node *node = core->nodes[i];
        if (!node->accused[0])
            continue;
        (void)!core_drain_node(core, node->name, node->accused, 0, "an audit");
        node->accused[0] = '\0';
    }
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
    core_settle(core);
    return core->failed;
}
