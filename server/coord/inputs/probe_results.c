/* What agents answer of network paths between nodes. */
#include "server/coord/inputs/probe_results.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/index.h"
#include "server/coord/node_health.h"
#include "server/coord/orders.h"
#include "server/coord/queue/place.h"

/*
 * ---- paths between nodes ----
 *
 * A path is suspected if a generation of two or more nodes got stuck or failed without another
 * cause (FSM_ACT_SUSPECT). Until that is decided its job gets no slots. Then either the path is
 * known to be cut, and no job gets both nodes, or the failure is judged as ever.
 */

const char *coord_pairs_hinder(const struct coord *coord, const struct coord_node *node)
{
    if (!node->known)
        return "no agent of that name is here";
    if (node->conn == NULL || node->silent || coord_node_held(coord, node))
        return "its agent isn't heard now";
    return node->probe_port == 0 ? "its agent found no port to listen at" : NULL;
}

static bool can_probe(const struct coord *coord, const struct coord_node *node)
{
    return node != NULL && coord_pairs_hinder(coord, node) == NULL;
}

/* Tells jobs what became of a path: those that run across it, or failed across it; jobs that wait
 * are looked at again. */
static void take_news(struct coord *coord, enum netpaths_news news, const struct netpath *path)
{
    struct reason text;
    if (news == NETPATHS_NOTHING)
        return;
    coord->schedule_needed = true;
    if (news == NETPATHS_HEALED) {
        LOG_INFO(coord->options.log, "%s and %s reach each other again", path->node[0],
                 path->node[1]);
    }
    if (news != NETPATHS_CUT)
        return;
    netpaths_describe(path, &text);
    LOG_WARN(coord->options.log, "%s", text.text);
    for (size_t j = coord->live.count; j > 0; j--) { /* whoever is over by this leaves the list */
        struct coord_job *job = coord->live.list[j - 1].value;
        if (job->m.state == FSM_PLACING && coord_part_spares(coord, job))
            continue; /* it is placed again */
        if (!coord_has_node(job, path->node[0]) || !coord_has_node(job, path->node[1]))
            continue;
        struct fsm_event event = coord_event(coord, FSM_EV_PATH);
        event.path.message = text.text;
        (void)coord_apply(coord, job, &event);
    }
}

void coord_netpaths_tick(struct coord *coord)
{
    const int64_t now = coord_now(coord);
    enum netpaths_news news = NETPATHS_NOTHING;
    struct netpath was;
    do {
        news = netpaths_tick(&coord->netpaths, now, &was);
        take_news(coord, news, &was);
    } while (news != NETPATHS_NOTHING);
    for (struct netpath *path = netpaths_due(&coord->netpaths, now); path != NULL;
         path = netpaths_due(&coord->netpaths, now)) {
        const struct coord_node *one = coord_node_at(coord, path->node[0]);
        const struct coord_node *other = coord_node_at(coord, path->node[1]);
        if (!can_probe(coord, one) || !can_probe(coord, other)) {
            was = *path;
            take_news(coord, netpaths_give_up(&coord->netpaths, path, now), &was);
            continue;
        }
        const uint64_t round = netpaths_begin(&coord->netpaths, path, now);
        coord_ask_probe(coord, one, other, round);
        coord_ask_probe(coord, other, one, round);
    }
}

static void take_answer(struct coord *coord, const struct coord_node *node,
                        const Cairn__V1__ProbeResult *result)
{
    const struct pairs_answer answer = { .id = result->id,
                                         .reached = result->reached,
                                         .reach_us = result->reach_us,
                                         .bytes = result->bytes,
                                         .took_us = result->took_us,
                                         .saw = result->saw };
    pairs_answered(&coord->pairs, node->name, &answer);
    coord_pairs_tick(coord);
}

void coord_netpaths_answer(struct coord *coord, const struct coord_node *node,
                           const Cairn__V1__ProbeResult *result)
{
    struct netpath was;
    if (result->id > PAIRS_IDS) {
        take_answer(coord, node, result);
        return;
    }
    const enum netpaths_news news =
        netpaths_answer(&coord->netpaths, node->name, result->id, result->reached, result->saw,
                        coord_now(coord), &was);
    take_news(coord, news, &was);
}

void coord_netpaths_hello(struct coord *coord, struct coord_node *node,
                          const Cairn__V1__AgentHello *hello)
{
    node->probe_port = hello->probe_port <= UINT16_MAX ? hello->probe_port : 0;
    netpaths_forget_rounds(&coord->netpaths, node->name);
}

/* ---- a check of pairs that a person asked for ---- */

/* Picks the nodes, in the order of the list. Errors: reason says what is wrong with them. */
static enum status pick_nodes(struct coord *coord, const char *const *names, size_t count,
                              const char **out, uint32_t *out_count, struct reason *reason)
{
    *out_count = 0;
    for (size_t i = 0; i < (count ? count : coord->node_count); i++) {
        const struct coord_node *node = count ? coord_node_at(coord, names[i]) : coord->nodes[i];
        if (node == NULL) {
            reason_set(reason, "there is no node '%.100s'", names[i]);
            return ST_NOT_FOUND;
        }
        bool twice = false;
        for (uint32_t j = 0; j < *out_count && !twice; j++)
            twice = strcmp(out[j], node->name) == 0;
        const char *hinder = coord_pairs_hinder(coord, node);
        if (hinder != NULL && count) {
            reason_set(reason, "%.100s can't be tried: %s", node->name, hinder);
            return ST_REFUSED;
        }
        if (hinder == NULL && !twice)
            out[(*out_count)++] = node->name;
    }
    if (*out_count >= 2)
        return ST_OK;
    reason_set(reason, "a path has two ends, and %u node%s can be asked now", *out_count,
               *out_count == 1 ? "" : "s");
    return ST_REFUSED;
}

enum status coord_pairs_begin(struct coord *coord, const char *const *names, size_t count, bool all,
                              struct reason *reason)
{
    auto_free const char **picked = calloc(LIMIT_NODES, sizeof(*picked));
    uint32_t picked_count;
    if (picked == NULL)
        return ST_NO_MEMORY;
    enum status st = pick_nodes(coord, names, count, picked, &picked_count, reason);
    if (st == ST_OK)
        st = pairs_open(&coord->pairs, picked, picked_count, all);
    if (st == ST_FULL) {
        reason_set(reason, "all pairs of %u nodes take too long: name %u nodes or fewer",
                   picked_count, PAIRS_NODES_MAX);
        return ST_REFUSED;
    }
    if (st == ST_OK) {
        coord->options.random(coord->options.random_arg, coord->pairs.token,
                              sizeof(coord->pairs.token));
        coord_pairs_tick(coord);
    }
    return st;
}

/* Orders the pair's agents to probe. An agent that is gone meanwhile gives no answer. */
static void order_pair(struct coord *coord, const struct pairs_try *due)
{
    const struct coord_node *node[2] = { coord_node_at(coord, coord->pairs.names[due->node[0]]),
                                         coord_node_at(coord, coord->pairs.names[due->node[1]]) };
    for (int i = 0; i < 2; i++) {
        Cairn__V1__Probe probe = CAIRN__V1__PROBE__INIT;
        if (due->answered[i] || !can_probe(coord, node[i]) || !can_probe(coord, node[!i]))
            continue;
        probe.id = due->id;
        probe.token =
            (ProtobufCBinaryData){ .len = PAIRS_TOKEN, .data = (uint8_t *)coord->pairs.token };
        if (due->phase != PAIRS_REACH) {
            probe.measure_ms = PAIRS_MEASURE_MS;
            probe.measure_bytes = PAIRS_MEASURE_BYTES;
        }
        coord_send_probe(coord, node[i], node[!i], &probe);
    }
}

void coord_pairs_tick(struct coord *coord)
{
    const int64_t now = coord_now(coord);
    pairs_tick(&coord->pairs, now);
    for (const struct pairs_try *due = pairs_due(&coord->pairs, now); due != NULL;
         due = pairs_due(&coord->pairs, now))
        order_pair(coord, due);
}

const struct pairs *coord_pairs(const struct coord *coord)
{
    return &coord->pairs;
}

bool coord_pairs_fetch(struct coord *coord, struct pairs_try *out)
{
    return pairs_fetch(&coord->pairs, out);
}

void coord_pairs_end(struct coord *coord)
{
    pairs_close(&coord->pairs);
}
