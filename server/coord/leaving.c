/*
 * Nodes that give their slots back. An agent that is told to end, where its end is the end of its
 * trainers (a pod, a job of Slurm), says so first. Nothing is placed there any more, jobs with
 * workers there save and go on elsewhere, and the node is not lost but has left.
 *
 * This is known in memory only, as nodes are: an agent that leaves says it in each hello. A node
 * that people keep free (`drains`) is emptied in the same way, and that is journalled.
 */
#include "server/coord/leaving.h"

#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/orders.h"
#include "server/coord/outbox.h"

void coord_node_stays(struct coord_node *node)
{
    node->stay = COORD_STAYS;
    node->why_leaves[0] = '\0';
    node->successor[0] = '\0';
}

void coord_apply_to_ranks(struct coord *coord, struct coord_node *node, enum fsm_event_kind kind,
                          const char *why_leaving)
{
    size_t count;
    auto_free struct coord_rank **ranks = coord_ranks_of(coord, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct coord_job *job = ranks[i]->job;
        if (ranks[i]->node != node || job->unreadable[0])
            continue; /* by what another rank's event led to; nothing is done with that one */
        struct fsm_event event =
            coord_event_of(coord, kind, job->m.generation, coord_rank_number(ranks[i]));
        if (kind == FSM_EV_LEAVING)
            event.leaving.why = why_leaving;
        (void)coord_apply(coord, job, &event);
    }
    coord->schedule_needed = true;
}

void coord_node_leaving(struct coord *coord, struct coord_node *node,
                        const Cairn__V1__AgentLeaving *leaving)
{
    struct reason why;
    reason_set(&why, "node %s leaves within %.1f s: %.100s", node->name,
               (double)leaving->grace_ms / 1000.0, leaving->reason);
    if (node->stay == COORD_STAYS)
        LOG_INFO(coord->options.log, "%s", why.text);
    node->stay = COORD_LEAVES;
    (void)snprintf(node->why_leaves, sizeof(node->why_leaves), "%.100s", leaving->reason);
    coord_apply_to_ranks(coord, node, FSM_EV_LEAVING, why.text);
}

/* Trainers that were not seen to go there have gone with the node. */
void coord_node_left(struct coord *coord, struct coord_node *node)
{
    struct coord_conn *conn = node->conn;
    LOG_INFO(coord->options.log, "node %s has left", node->name);
    node->stay = COORD_LEFT;
    node->silent = true;
    node->suspected = node->alone = false;
    suspicion_end(&node->suspicion);
    node->conn = NULL;
    coord_node_moved(coord, node);
    size_t count;
    auto_free struct coord_rank **ranks = coord_ranks_of(coord, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct coord_job *job = ranks[i]->job;
        if (ranks[i]->node != node || job->unreadable[0])
            continue;
        struct fsm_event event =
            coord_event_of(coord, FSM_EV_MISSING, job->m.generation, coord_rank_number(ranks[i]));
        (void)coord_apply(coord, job, &event);
    }
    if (conn != NULL) {
        conn->node = NULL;
        coord_hang_up(coord, conn, RPC_OK, "");
    }
    coord->schedule_needed = true;
}

/*
 * Lets a node leave whose machine got another name: under the old one it would be lost for good,
 * and its slots be waited for. It is one machine if the home and the address are the same.
 *
 * The old name's agent may be back in a moment (both were stopped for an upgrade), or its stream
 * look open though its machine went down. So its silence decides, and a hello under that name ends
 * it. Workers of the old name's agent that run on are heard: they save and go elsewhere.
 */
static void give_to_successor(struct coord *coord, struct coord_node *old)
{
    struct reason why;
    reason_set(&why, "its machine is node %.100s now", old->successor);
    old->successor[0] = '\0';
    LOG_INFO(coord->options.log, "node %s: %s", old->name, why.text);
    (void)snprintf(old->why_leaves, sizeof(old->why_leaves), "%.120s", why.text);
    if (old->ranks == NULL) {
        coord_node_left(coord, old);
        return;
    }
    old->stay = COORD_LEAVES;
    struct reason note;
    reason_set(&note, "node %.100s leaves: %s", old->name, why.text);
    coord_apply_to_ranks(coord, old, FSM_EV_LEAVING, note.text);
}

void coord_node_renamed(struct coord *coord, const struct coord_node *node,
                        const Cairn__V1__AgentHello *hello)
{
    for (size_t i = 0; i < hello->n_formerly && i < COORD_FORMERLY_MAX; i++) {
        struct coord_node *old = coord_node_at(coord, hello->formerly[i]);
        if (old == NULL || old == node || !old->known || old->stay != COORD_STAYS ||
            strcmp(old->host, node->host) != 0)
            continue;
        (void)snprintf(old->successor, sizeof(old->successor), "%s", node->name);
        coord_node_moved(coord, old);
    }
}

void coord_node_drain(struct coord *coord, struct coord_node *node, const char *reason,
                      int64_t until)
{
    node->drains = true;
    node->drain_over = false;
    node->drain_until = until;
    (void)snprintf(node->why_drains, sizeof(node->why_drains), "%s", reason);
    coord_node_moved(coord, node);
}

/* Ends workers that are there after the drain's deadline, again and again, as an order may be lost
 * with its stream; their jobs are told once. Returns how many are still there. */
static size_t end_overdue(struct coord *coord, struct coord_node *node)
{
    const struct coord_job *told = NULL;
    const bool first = !node->drain_over;
    size_t count, left = 0;
    auto_free struct coord_rank **ranks = coord_ranks_of(coord, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct coord_job *job = ranks[i]->job;
        if (ranks[i]->node != node || job->unreadable[0])
            continue; /* by what was said before; nothing is done with what can't be read */
        left++;
        if (node->conn == NULL)
            continue;
        coord_send_end(coord, job, coord_rank_number(ranks[i]));
        node->drain_over = true;
        if (!first || job == told)
            continue;
        told = job;
        struct reason text;
        reason_set(&text, "the deadline of node %s's drain is over: its workers there are killed",
                   node->name);
        coord_note(coord, job, "node", text.text);
    }
    return left;
}

void coord_stay_tick(struct coord *coord, struct coord_node *node)
{
    if (coord_node_inherited(node))
        give_to_successor(coord, node);
    if (node->drain_until == 0 || coord_now(coord) < node->drain_until)
        return;
    const size_t left = end_overdue(coord, node);
    node->drain_until = left > 0 ? coord_now(coord) + COORD_DRAIN_AGAIN_MS : 0;
}

enum status coord_drain_node(struct coord *coord, const char *name, const char *reason,
                             int64_t deadline_ms, const char *by)
{
    struct coord_node *node = coord_node_at(coord, name);
    const int64_t wall = clock_wall_ms(coord->options.clock);
    const int64_t until_ms = deadline_ms == 0 ? 0 : wall + deadline_ms;
    if (node == NULL || !node->known)
        return ST_NOT_FOUND;
    coord_node_drain(coord, node, reason, deadline_ms == 0 ? 0 : coord_now(coord) + deadline_ms);
    enum status st = coord_begin(coord);
    if (st == ST_OK)
        st = journal_put_drain(coord->options.journal, name, node->why_drains, until_ms);
    if (st != ST_OK) {
        coord_fail(coord, st, "draining a node");
        return st;
    }
    struct reason why;
    reason_set(&why, "node %s is drained, asked by %s%s%.100s", name, by != NULL ? by : "the user",
               reason[0] ? ": " : "", reason);
    LOG_INFO(coord->options.log, "%s", why.text);
    coord_apply_to_ranks(coord, node, FSM_EV_LEAVING, why.text);
    coord_bound_group(coord);
    return coord->failed;
}

/* Called after the turn that found it out, not within it. */
void coord_drain_accused(struct coord *coord)
{
    if (!coord->accused)
        return;
    coord->accused = false;
    for (size_t i = 0; i < coord->node_count && coord->failed == ST_OK; i++) {
        struct coord_node *node = coord->nodes[i];
        if (!node->accused[0])
            continue;
        (void)!coord_drain_node(coord, node->name, node->accused, 0, "an audit");
        node->accused[0] = '\0';
    }
}

enum status coord_undrain_node(struct coord *coord, const char *name, const char *by)
{
    struct coord_node *node = coord_node_at(coord, name);
    if (node == NULL || !node->drains)
        return ST_NOT_FOUND;
    node->drains = false;
    node->drain_until = 0;
    coord_node_moved(coord, node);
    node->why_drains[0] = '\0';
    enum status st = coord_begin(coord);
    if (st == ST_OK)
        st = journal_drop_drain(coord->options.journal, name);
    if (st != ST_OK) {
        coord_fail(coord, st, "taking a node back");
        return st;
    }
    LOG_INFO(coord->options.log, "node %s is drained no more, asked by %s", name,
             by != NULL ? by : "the user");
    coord->schedule_needed = true;
    coord_bound_group(coord);
    return coord->failed;
}
