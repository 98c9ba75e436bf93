/*
 * Nodes that fall silent: if all of them do, rather the coordinator is cut off
 * (server/fleet/outage.h); if some do, the others are asked whether they reach them
 * (server/fleet/doubt.h).
 *
 * What that leads to for a job with workers there is its machine's to decide
 * (server/machine/turn/watch.c): it knows what the workers say.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/core/internal.h"

/* ---- nodes ---- */

/* Tells every job with a worker on the node about its agent. */
static void tell_agent(struct core *core, struct core_node *node, enum machine_agent state)
{
    size_t count;
    auto_free struct core_rank **ranks = core_ranks_of(core, node, &count);
    for (size_t i = 0; i < count; i++) {
        struct core_job *job = ranks[i]->job;
        if (ranks[i]->node != node)
            continue; /* by what another rank's event led to */
        struct machine_event event =
            core_event_of(core, MACHINE_EV_AGENT, job->m.generation, core_rank_number(ranks[i]));
        event.agent.state = state;
        event.agent.saw = node->doubt.said;
        (void)core_apply(core, job, &event);
    }
    core->schedule_needed = true;
}

static void end_doubt(struct core *core, struct core_node *node)
{
    const bool told = node->doubted;
    core->schedule_needed = core->schedule_needed || node->doubt.state != DOUBT_NONE;
    node->doubted = node->alone = false;
    doubt_end(&node->doubt);
    if (told)
        tell_agent(core, node, MACHINE_AGENT_HEARD);
}

void core_note_heard(struct core *core, struct core_node *node)
{
    node->heard_at = core_now(core);
    if (!node->local)
        outage_heard(&core->outage);
    if (node->silent)
        LOG_INFO(core->options.log, "node %s is heard", node->name);
    node->doubted = node->doubted || node->silent;
    node->silent = false;
    end_doubt(core, node);
    core_node_moved(core, node);
}

static void set_silent(struct core *core, struct core_node *node)
{
    const bool reached = node->doubt.reached;
    const char *said = node->doubt.said;
    node->silent = true;
    LOG_INFO(core->options.log, "node %s is silent%s%s%s", node->name,
             reached ? ", but others reach it" : "", said[0] ? "; " : "", said);
    core_node_moved(core, node);
    tell_agent(core, node, reached ? MACHINE_AGENT_CUT_OFF : MACHINE_AGENT_SILENT);
}

/* ---- beats ---- */

/* Called when an agent has come: there may be so many now that they are to beat less often. */
void core_pace_changed(struct core *core)
{
    const int64_t was = core->beat_ms;
    core_pace_set(core);
    if (core->beat_ms == was)
        return;
    LOG_INFO(core->options.log, "agents beat every %.1f s now, and are silent after %.1f s",
             (double)core->beat_ms / 1000.0, (double)core->lost_ms / 1000.0);
    for (size_t i = 0; i < core->node_count; i++) {
        if (core->nodes[i]->conn)
            core_send_pace(core, core->nodes[i]->conn, false);
        core_node_moved(core, core->nodes[i]);
    }
    for (size_t i = 0; i < core->live.count; i++) {
        struct core_job *job = core->live.list[i].value;
        job->m.config.silent_ms = core->lost_ms;
    }
}

/* ---- after the start ---- */

/* Sets the times of all nodes anew: none is judged any more, or all are again. */
static void move_nodes(struct core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        core_node_moved(core, core->nodes[i]);
}

/* Makes the time of grace longer. A node or rank that has not been heard yet counts as heard at its
 * end. */
static void extend_grace(struct core *core, int64_t until)
{
    const int64_t by = until - core->grace_until, was = core->grace_until;
    core->grace_until = until;
    core->expects_until += core->expects_until != 0 ? by : 0;
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        if (!node->silent && node->heard_at >= was)
            node->heard_at += by;
        core_node_moved(core, node);
    }
    for (size_t i = 0; i < core->live.count; i++) {
        struct core_job *job = core->live.list[i].value;
        machine_extend_grace(&job->m, by);
        core_job_moved(core, job);
    }
}

/* Thousands of agents and trainers take a while to come back: as long as they do, nobody is
 * judged. */
void core_grace_tick(struct core *core)
{
    const int64_t now = core_now(core), last = core->started_at + CORE_GRACE_MAX_MS;
    if (core->grace_until == 0 || now < core->grace_until)
        return;
    int64_t until = core->hello_at + CORE_HELLO_MS;
    until = until < last ? until : last;
    if (until > now) {
        extend_grace(core, until);
    } else {
        core->grace_until = 0;
        move_nodes(core);
    }
}

/* ---- some of them silent ---- */

/* True if the node may say whether it reaches `of`. Its own silence is not long yet: if all fell
 * silent, not all notice at once. */
static bool can_tell(const struct core *core, const struct core_node *node,
                     const struct core_node *of)
{
    return node != of && node->known && node->conn && !node->silent && !node->local &&
           node->probe_port != 0 && core_now(core) - node->heard_at < core->lost_ms &&
           strcmp(node->net, of->net) == 0 && !paths_is_cut(&core->paths, node->name, of->name);
}

/* Picks witnesses, those that were heard lately first. Each round begins at another node, anywhere:
 * else the neighbours of a silent rack would be asked about all of it. Returns how many. */
static size_t choose_witnesses(const struct core *core, const struct core_node *of, uint64_t round,
                               const struct core_node *out[DOUBT_WITNESSES])
{
    const int64_t lately = core_now(core) - 5 * core->beat_ms / 2;
    const uint64_t part = (uint32_t)(round * UINT32_C(0x9e3779b9)); /* the golden one, of 2^32 */
    const size_t begin = (size_t)((part * core->node_count) >> 32);
    size_t count = 0;
    if (of->probe_port == 0 || of->local)
        return 0;
    for (int late = 0; late < 2; late++) {
        for (size_t i = 0; i < core->node_count && count < DOUBT_WITNESSES; i++) {
            const struct core_node *node = core->nodes[(begin + i) % core->node_count];
            if (can_tell(core, node, of) && (node->heard_at < lately) == (late == 1))
                out[count++] = node;
        }
    }
    return count;
}

/* True if no other node is heard: nobody else is left to run anything, so there is no hurry. */
static bool is_alone(const struct core *core, const struct core_node *node)
{
    bool alone = !node->local;
    for (size_t i = 0; i < core->node_count && alone; i++) {
        const struct core_node *other = core->nodes[i];
        alone = other == node || !other->known || other->silent;
    }
    return alone;
}

static void ask_others(struct core *core, struct core_node *node)
{
    const struct core_node *witness[DOUBT_WITNESSES];
    const char *names[DOUBT_WITNESSES];
    const uint64_t round = ++core->paths.rounds;
    const size_t count = choose_witnesses(core, node, round, witness);
    for (size_t i = 0; i < count; i++) {
        names[i] = witness[i]->name;
        core_ask_probe(core, witness[i], node, round);
    }
    doubt_begin(&node->doubt, names, count, round, core_now(core));
}

static void begin_doubt(struct core *core, struct core_node *node)
{
    node->alone = is_alone(core, node);
    ask_others(core, node);
    if (node->doubted || node->local)
        return;
    node->doubted = true;
    tell_agent(core, node, MACHINE_AGENT_DOUBTED);
}

/* Watches a node that was heard until lately. */
static void watch_heard(struct core *core, struct core_node *node, int64_t now)
{
    struct doubt *doubt = &node->doubt;
    if (now < core_node_deadline(core, node))
        return;
    (void)doubt_tick(doubt, now);
    if (doubt->state == DOUBT_NONE)
        begin_doubt(core, node);
    if (doubt->state != DOUBT_ASKED && now >= core_node_due(core, node))
        set_silent(core, node);
}

/* Watches a node that others reach, and asks them again. */
static void watch_cut_off(struct core *core, struct core_node *node, int64_t now)
{
    struct doubt *doubt = &node->doubt;
    (void)doubt_tick(doubt, now);
    const bool asks = doubt->state == DOUBT_NONE || doubt->state == DOUBT_REACHED;
    if (doubt->reached && asks && now >= doubt->asked_at + DOUBT_AGAIN_MS)
        ask_others(core, node);
    if (now - node->heard_at >= DOUBT_MAX_MS)
        doubt->reached = false;
    if (!doubt->reached)
        set_silent(core, node);
}

void core_take_probed(struct core *core, const struct core_node *from,
                      const Cairn__V1__ProbeResult *result)
{
    const int64_t now = core_now(core);
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        if (node->doubt.state != DOUBT_ASKED || node->doubt.round != result->id)
            continue;
        const bool was_cut_off = core_node_cut_off(node);
        if (doubt_answer(&node->doubt, from->name, result->id, result->reached, result->saw)) {
            if (was_cut_off && !node->doubt.reached) {
                set_silent(core, node);
            } else if (!node->silent) {
                watch_heard(core, node, now);
            }
            core_node_moved(core, node);
        }
        return;
    }
    core_paths_answer(core, from, result);
}

/* ---- all of them silent at once ---- */

/* Returns when the node's agent, or a worker there, was heard last. */
static int64_t node_heard_at(const struct core_node *node)
{
    int64_t at = node->heard_at;
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next) {
        const struct machine_rank *of = &rank->job->m.ranks[core_rank_number(rank)];
        if (machine_alive_rank(&rank->job->m, core_rank_number(rank)) && of->joined &&
            of->heard_at > at)
            at = of->heard_at;
    }
    return at;
}

/* Counts the nodes that can be heard. If a node's agent is gone already, the workers tell whether
 * it can be. */
static struct outage_sight see_nodes(struct core *core, int64_t now)
{
    struct outage_sight sight = { .nodes = 0 };
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        if (!node->known || node->local || (node->silent && !core_node_heard(node)))
            continue;
        /* In a hold, times of workers are moved. */
        int64_t at = core->outage.since == 0 ? node_heard_at(node) : node->heard_at;
        sight.nodes++;
        sight.quiet += now - at >= core_quiet_ms(core);
        sight.due = sight.due || now - node->heard_at >= core->lost_ms; /* core_nodes_tick */
    }
    return sight;
}

/* True if a worker of the job is on a node that is heard over the network. */
static bool is_remote(const struct core_job *job)
{
    bool found = false;
    for (uint32_t r = 0; r < job->m.count && !found; r++) {
        const struct core_node *on = job->ranks[r].node;
        found = on && on->known && !on->local;
    }
    return found;
}

/* Excuses these ms of silence to jobs with workers on nodes that are heard over the network, and
 * tells them the message, if there is one. */
static void excuse_remote(struct core *core, int64_t ms, const char *message)
{
    const int64_t latest = core_now(core) + core->lost_ms;
    for (size_t j = core->live.count; j > 0; j--) { /* whoever is over by this leaves the list */
        struct core_job *job = core->live.list[j - 1].value;
        if (!is_remote(job))
            continue;
        machine_excuse(&job->m, ms);
        for (uint32_t r = 0; r < job->m.count; r++) {
            /* Ranks that were heard nevertheless are not ahead of the time. */
            struct machine_rank *rank = &job->m.ranks[r];
            rank->heard_at = rank->heard_at < latest ? rank->heard_at : latest;
            rank->counter_at = rank->counter_at < latest ? rank->counter_at : latest;
        }
        core_job_moved(core, job);
        if (message)
            core_note(core, job, "network", message);
    }
}

static void end_outage(struct core *core, int64_t ms, const struct outage_sight *sight,
                       int64_t excused_ms)
{
    struct reason text;
    if (sight->quiet < sight->nodes) {
        reason_set(&text, "%u of %u nodes are heard again after %.0f s; the others have %d s",
                   sight->nodes - sight->quiet, sight->nodes, (double)ms / 1000.0,
                   (int)(core->lost_ms / 1000));
    } else {
        reason_set(&text, "none of %u nodes was heard for %.0f s: they are judged again",
                   sight->nodes, (double)ms / 1000.0);
    }
    LOG_WARN(core->options.log, "%s", text.text);
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        if (core_node_cut_off(node))
            doubt_again(&node->doubt, core_now(core));
        if (!node->known || node->local || node->silent)
            continue;
        node->heard_at = core_now(core);
        end_doubt(core, node);
    }
    move_nodes(core);
    excuse_remote(core, excused_ms, text.text);
    core->schedule_needed = true;
}

static void watch_outage(struct core *core, int64_t now)
{
    struct outage *outage = &core->outage;
    const struct outage_sight sight = see_nodes(core, now);
    const int64_t looked_at = outage->looked_at, since = outage->since;
    struct reason text;
    switch (outage_look(outage, &sight, now)) {
    case OUTAGE_NONE:
        return;
    case OUTAGE_BEGINS:
        reason_set(&text,
                   "all %u nodes fell silent at once: the coordinator's own network? Nobody is "
                   "judged until one is heard, for %d minutes at most",
                   sight.nodes, OUTAGE_MAX_MS / 60000);
        LOG_WARN(core->options.log, "%s", text.text);
        move_nodes(core);
        excuse_remote(core, core->lost_ms, text.text);
        return;
    case OUTAGE_HOLDS:
        excuse_remote(core, now - looked_at, NULL);
        return;
    case OUTAGE_ENDS:
        end_outage(core, now - since, &sight, now - looked_at);
    }
}

static void tick_node(struct core *core, struct core_node *node, int64_t now)
{
    core_verdicts_tick(core, node);
    core_stay_tick(core, node);
    if (!node->silent && !core_node_held(core, node)) {
        watch_heard(core, node, now);
    } else if (core_node_cut_off(node) && core->outage.since == 0) {
        watch_cut_off(core, node, now);
    }
    core_node_moved(core, node); /* its next time is later than now */
}

/* An outage begins only where a node is due, which then waits for its end. */
void core_nodes_tick(struct core *core)
{
    const int64_t now = core_now(core);
    const bool looks = core->outage.since != 0 && now >= core->outage.looked_at + OUTAGE_LOOK_MS;
    if (looks || timers_at(&core->node_timers) <= now)
        watch_outage(core, now);
    while (timers_at(&core->node_timers) <= now && core->failed == ST_OK) {
        struct core_node *node = core_node_of(timers_first(&core->node_timers));
        tick_node(core, node, now);
    }
}
