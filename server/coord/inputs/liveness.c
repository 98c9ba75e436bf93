/*
 * Nodes that fall silent: if all of them do, rather the coordinator is cut off
 * (server/fleet/isolation.h); if some do, the others are asked whether they reach them
 * (server/fleet/suspicion.h).
 *
 * What that leads to for a job with workers there is its machine's to decide
 * (server/jobfsm/handlers/liveness.c): it knows what the workers say.
 */
#include "server/coord/inputs/liveness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/coord/apply.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/index.h"
#include "server/coord/inputs/probe_results.h"
#include "server/coord/leaving.h"
#include "server/coord/node_health.h"
#include "server/coord/orders.h"

/* ---- nodes ---- */

/* Tells every job with a worker on the node about its agent. */
static void tell_agent(struct coord *coord, struct coord_node *node, enum fsm_agent state)
{
    size_t count;
    auto_free struct coord_rank **ranks = coord_ranks_of(coord, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct coord_job *job = ranks[i]->job;
        if (ranks[i]->node != node)
            continue; /* by what another rank's event led to */
        struct fsm_event event =
            coord_event_of(coord, FSM_EV_AGENT, job->m.generation, coord_rank_number(ranks[i]));
        event.agent.state = state;
        event.agent.saw = node->suspicion.said;
        (void)coord_apply(coord, job, &event);
    }
    coord->schedule_needed = true;
}

static void end_doubt(struct coord *coord, struct coord_node *node)
{
    const bool told = node->suspected;
    coord->schedule_needed = coord->schedule_needed || node->suspicion.state != SUSPICION_NONE;
    node->suspected = node->alone = false;
    suspicion_end(&node->suspicion);
    if (told)
        tell_agent(coord, node, FSM_AGENT_HEARD);
}

void coord_note_heard(struct coord *coord, struct coord_node *node)
{
    node->heard_at = coord_now(coord);
    if (!node->local)
        isolation_heard(&coord->isolation);
    if (node->silent)
        LOG_INFO(coord->options.log, "node %s is heard", node->name);
    node->suspected = node->suspected || node->silent;
    node->silent = false;
    end_doubt(coord, node);
    coord_node_moved(coord, node);
}

static void set_silent(struct coord *coord, struct coord_node *node)
{
    const bool reached = node->suspicion.reached;
    const char *said = node->suspicion.said;
    node->silent = true;
    LOG_INFO(coord->options.log, "node %s is silent%s%s%s", node->name,
             reached ? ", but others reach it" : "", said[0] ? "; " : "", said);
    coord_node_moved(coord, node);
    tell_agent(coord, node, reached ? FSM_AGENT_CUT_OFF : FSM_AGENT_SILENT);
}

/* ---- beats ---- */

/* Called when an agent has come: there may be so many now that they are to beat less often. */
void coord_beat_interval_changed(struct coord *coord)
{
    const int64_t was = coord->beat_ms;
    coord_beat_interval_set(coord);
    if (coord->beat_ms == was)
        return;
    LOG_INFO(coord->options.log, "agents beat every %.1f s now, and are silent after %.1f s",
             (double)coord->beat_ms / 1000.0, (double)coord->lost_ms / 1000.0);
    for (size_t i = 0; i < coord->node_count; i++) {
        if (coord->nodes[i]->conn != NULL)
            coord_send_beat_interval(coord, coord->nodes[i]->conn, false);
        coord_node_moved(coord, coord->nodes[i]);
    }
    for (size_t i = 0; i < coord->live.count; i++) {
        struct coord_job *job = coord->live.list[i].value;
        job->m.config.silent_ms = coord->lost_ms;
    }
}

/* ---- after the start ---- */

/* Sets the times of all nodes anew: none is judged any more, or all are again. */
static void move_nodes(struct coord *coord)
{
    for (size_t i = 0; i < coord->node_count; i++)
        coord_node_moved(coord, coord->nodes[i]);
}

/* Makes the time of grace longer. A node or rank that has not been heard yet counts as heard at its
 * end. */
static void extend_grace(struct coord *coord, int64_t until)
{
    const int64_t by = until - coord->grace_until, was = coord->grace_until;
    coord->grace_until = until;
    coord->expects_until += coord->expects_until != 0 ? by : 0;
    for (size_t i = 0; i < coord->node_count; i++) {
        struct coord_node *node = coord->nodes[i];
        if (!node->silent && node->heard_at >= was)
            node->heard_at += by;
        coord_node_moved(coord, node);
    }
    for (size_t i = 0; i < coord->live.count; i++) {
        struct coord_job *job = coord->live.list[i].value;
        fsm_extend_grace(&job->m, by);
        coord_job_moved(coord, job);
    }
}

/* Thousands of agents and trainers take a while to come back: as long as they do, nobody is
 * judged. */
void coord_grace_tick(struct coord *coord)
{
    const int64_t now = coord_now(coord), last = coord->started_at + COORD_GRACE_MAX_MS;
    if (coord->grace_until == 0 || now < coord->grace_until)
        return;
    int64_t until = coord->hello_at + COORD_HELLO_MS;
    until = until < last ? until : last;
    if (until > now) {
        extend_grace(coord, until);
    } else {
        coord->grace_until = 0;
        move_nodes(coord);
    }
}

/* ---- some of them silent ---- */

/* True if the node may say whether it reaches `of`. Its own silence is not long yet: if all fell
 * silent, not all notice at once. */
static bool can_tell(const struct coord *coord, const struct coord_node *node,
                     const struct coord_node *of)
{
    return node != of && node->known && node->conn != NULL && !node->silent && !node->local &&
           node->probe_port != 0 && coord_now(coord) - node->heard_at < coord->lost_ms &&
           strcmp(node->net, of->net) == 0 &&
           !netpaths_is_cut(&coord->netpaths, node->name, of->name);
}

/* Picks witnesses, those that were heard lately first. Each round begins at another node, anywhere:
 * else the neighbours of a silent rack would be asked about all of it. Returns how many. */
static size_t choose_witnesses(const struct coord *coord, const struct coord_node *of,
                               uint64_t round, const struct coord_node *out[SUSPICION_WITNESSES])
{
    const int64_t lately = coord_now(coord) - 5 * coord->beat_ms / 2;
    const uint64_t part = (uint32_t)(round * UINT32_C(0x9e3779b9)); /* the golden one, of 2^32 */
    const size_t begin = (size_t)((part * coord->node_count) >> 32);
    size_t count = 0;
    if (of->probe_port == 0 || of->local)
        return 0;
    for (int late = 0; late < 2; late++) {
        for (size_t i = 0; i < coord->node_count && count < SUSPICION_WITNESSES; i++) {
            const struct coord_node *node = coord->nodes[(begin + i) % coord->node_count];
            if (can_tell(coord, node, of) && (node->heard_at < lately) == (late == 1))
                out[count++] = node;
        }
    }
    return count;
}

/* True if no other node is heard: nobody else is left to run anything, so there is no hurry. */
static bool is_alone(const struct coord *coord, const struct coord_node *node)
{
    bool alone = !node->local;
    for (size_t i = 0; i < coord->node_count && alone; i++) {
        const struct coord_node *other = coord->nodes[i];
        alone = other == node || !other->known || other->silent;
    }
    return alone;
}

static void ask_others(struct coord *coord, struct coord_node *node)
{
    const struct coord_node *witness[SUSPICION_WITNESSES];
    const char *names[SUSPICION_WITNESSES];
    const uint64_t round = ++coord->netpaths.rounds;
    const size_t count = choose_witnesses(coord, node, round, witness);
    for (size_t i = 0; i < count; i++) {
        names[i] = witness[i]->name;
        coord_ask_probe(coord, witness[i], node, round);
    }
    suspicion_begin(&node->suspicion, names, count, round, coord_now(coord));
}

static void begin_doubt(struct coord *coord, struct coord_node *node)
{
    node->alone = is_alone(coord, node);
    ask_others(coord, node);
    if (node->suspected || node->local)
        return;
    node->suspected = true;
    tell_agent(coord, node, FSM_AGENT_DOUBTED);
}

/* Watches a node that was heard until lately. */
static void watch_heard(struct coord *coord, struct coord_node *node, int64_t now)
{
    struct suspicion *suspicion = &node->suspicion;
    if (now < coord_node_deadline(coord, node))
        return;
    (void)suspicion_tick(suspicion, now);
    if (suspicion->state == SUSPICION_NONE)
        begin_doubt(coord, node);
    if (suspicion->state != SUSPICION_ASKED && now >= coord_node_due(coord, node))
        set_silent(coord, node);
}

/* Watches a node that others reach, and asks them again. */
static void watch_cut_off(struct coord *coord, struct coord_node *node, int64_t now)
{
    struct suspicion *suspicion = &node->suspicion;
    (void)suspicion_tick(suspicion, now);
    const bool asks = suspicion->state == SUSPICION_NONE || suspicion->state == SUSPICION_REACHED;
    if (suspicion->reached && asks && now >= suspicion->asked_at + SUSPICION_AGAIN_MS)
        ask_others(coord, node);
    if (now - node->heard_at >= SUSPICION_MAX_MS)
        suspicion->reached = false;
    if (!suspicion->reached)
        set_silent(coord, node);
}

void coord_take_probed(struct coord *coord, const struct coord_node *from,
                       const Cairn__V1__ProbeResult *result)
{
    const int64_t now = coord_now(coord);
    for (size_t i = 0; i < coord->node_count; i++) {
        struct coord_node *node = coord->nodes[i];
        if (node->suspicion.state != SUSPICION_ASKED || node->suspicion.round != result->id)
            continue;
        const bool was_cut_off = coord_node_cut_off(node);
        if (suspicion_answer(&node->suspicion, from->name, result->id, result->reached,
                             result->saw)) {
            if (was_cut_off && !node->suspicion.reached) {
                set_silent(coord, node);
            } else if (!node->silent) {
                watch_heard(coord, node, now);
            }
            coord_node_moved(coord, node);
        }
        return;
    }
    coord_netpaths_answer(coord, from, result);
}

/* ---- all of them silent at once ---- */

/* Returns when the node's agent, or a worker there, was heard last. */
static int64_t node_heard_at(const struct coord_node *node)
{
    int64_t at = node->heard_at;
    for (const struct coord_rank *rank = node->ranks; rank != NULL; rank = rank->next) {
        const struct fsm_rank *of = &rank->job->m.ranks[coord_rank_number(rank)];
        if (fsm_alive_rank(&rank->job->m, coord_rank_number(rank)) && of->joined &&
            of->heard_at > at)
            at = of->heard_at;
    }
    return at;
}

/* Counts the nodes that can be heard. If a node's agent is gone already, the workers tell whether
 * it can be. */
static struct isolation_sight see_nodes(struct coord *coord, int64_t now)
{
    struct isolation_sight sight = { .nodes = 0 };
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *node = coord->nodes[i];
        if (!node->known || node->local || (node->silent && !coord_node_heard(node)))
            continue;
        /* In a hold, times of workers are moved. */
        int64_t at = coord->isolation.since == 0 ? node_heard_at(node) : node->heard_at;
        sight.nodes++;
        sight.quiet += now - at >= coord_quiet_ms(coord);
        sight.due = sight.due || now - node->heard_at >= coord->lost_ms; /* coord_nodes_tick */
    }
    return sight;
}

/* True if a worker of the job is on a node that is heard over the network. */
static bool is_remote(const struct coord_job *job)
{
    bool found = false;
    for (uint32_t r = 0; r < job->m.count && !found; r++) {
        const struct coord_node *on = job->ranks[r].node;
        found = on != NULL && on->known && !on->local;
    }
    return found;
}

/* Excuses these ms of silence to jobs with workers on nodes that are heard over the network, and
 * tells them the message, if there is one. */
static void excuse_remote(struct coord *coord, int64_t ms, const char *message)
{
    const int64_t latest = coord_now(coord) + coord->lost_ms;
    for (size_t j = coord->live.count; j > 0; j--) { /* whoever is over by this leaves the list */
        struct coord_job *job = coord->live.list[j - 1].value;
        if (!is_remote(job))
            continue;
        fsm_excuse(&job->m, ms);
        for (uint32_t r = 0; r < job->m.count; r++) {
            /* Ranks that were heard nevertheless are not ahead of the time. */
            struct fsm_rank *rank = &job->m.ranks[r];
            rank->heard_at = rank->heard_at < latest ? rank->heard_at : latest;
            rank->counter_at = rank->counter_at < latest ? rank->counter_at : latest;
        }
        coord_job_moved(coord, job);
        if (message != NULL)
            coord_note(coord, job, "network", message);
    }
}

static void end_outage(struct coord *coord, int64_t ms, const struct isolation_sight *sight,
                       int64_t excused_ms)
{
    struct reason text;
    if (sight->quiet < sight->nodes) {
        reason_set(&text, "%u of %u nodes are heard again after %.0f s; the others have %d s",
                   sight->nodes - sight->quiet, sight->nodes, (double)ms / 1000.0,
                   (int)(coord->lost_ms / 1000));
    } else {
        reason_set(&text, "none of %u nodes was heard for %.0f s: they are judged again",
                   sight->nodes, (double)ms / 1000.0);
    }
    LOG_WARN(coord->options.log, "%s", text.text);
    for (size_t i = 0; i < coord->node_count; i++) {
        struct coord_node *node = coord->nodes[i];
        if (coord_node_cut_off(node))
            suspicion_again(&node->suspicion, coord_now(coord));
        if (!node->known || node->local || node->silent)
            continue;
        node->heard_at = coord_now(coord);
        end_doubt(coord, node);
    }
    move_nodes(coord);
    excuse_remote(coord, excused_ms, text.text);
    coord->schedule_needed = true;
}

static void watch_outage(struct coord *coord, int64_t now)
{
    struct isolation *isolation = &coord->isolation;
    const struct isolation_sight sight = see_nodes(coord, now);
    const int64_t looked_at = isolation->looked_at, since = isolation->since;
    struct reason text;
    switch (isolation_look(isolation, &sight, now)) {
    case ISOLATION_NONE:
        return;
    case ISOLATION_BEGINS:
        reason_set(&text,
                   "all %u nodes fell silent at once: the coordinator's own network? Nobody is "
                   "judged until one is heard, for %d minutes at most",
                   sight.nodes, ISOLATION_MAX_MS / 60000);
        LOG_WARN(coord->options.log, "%s", text.text);
        move_nodes(coord);
        excuse_remote(coord, coord->lost_ms, text.text);
        return;
    case ISOLATION_HOLDS:
        excuse_remote(coord, now - looked_at, NULL);
        return;
    case ISOLATION_ENDS:
        end_outage(coord, now - since, &sight, now - looked_at);
    }
}

static void tick_node(struct coord *coord, struct coord_node *node, int64_t now)
{
    coord_verdicts_tick(coord, node);
    coord_stay_tick(coord, node);
    if (!node->silent && !coord_node_held(coord, node)) {
        watch_heard(coord, node, now);
    } else if (coord_node_cut_off(node) && coord->isolation.since == 0) {
        watch_cut_off(coord, node, now);
    }
    coord_node_moved(coord, node); /* its next time is later than now */
}

/* An outage begins only where a node is due, which then waits for its end. */
void coord_nodes_tick(struct coord *coord)
{
    const int64_t now = coord_now(coord);
    const bool looks =
        coord->isolation.since != 0 && now >= coord->isolation.looked_at + ISOLATION_LOOK_MS;
    if (looks || timers_at(&coord->node_timers) <= now)
        watch_outage(coord, now);
    while (timers_at(&coord->node_timers) <= now && coord->failed == ST_OK) {
        struct coord_node *node = coord_node_of(timers_first(&coord->node_timers));
        tick_node(coord, node, now);
    }
}
