#include "server/fleet/place.h"

#include <string.h>

static bool node_fits(const struct place_node *node, const struct place_ask *ask)
{
    return strcmp(node->device, ask->device) == 0 && !node->excluded && !node->avoided;
}

static uint32_t free_slots(const struct place_node *node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->slots; i++)
        count += !node->used[i];
    return count;
}

uint32_t place_capacity(const struct place_node *nodes, size_t node_count,
                        const struct place_ask *ask)
{
    uint32_t all = 0;
    for (size_t i = 0; i < node_count; i++) {
        if (node_fits(&nodes[i], ask) && !nodes[i].leaving)
            all += nodes[i].slots;
    }
    return all;
}

uint32_t place_reach(const struct place_node *nodes, size_t node_count, const struct place_ask *ask)
{
    uint32_t all = 0;
    for (size_t i = 0; i < node_count; i++) {
        if (node_fits(&nodes[i], ask) && nodes[i].reachable)
            all += nodes[i].slots;
    }
    return all;
}

static uint32_t take_slots(const struct place_node *node, uint32_t index, uint32_t count,
                           struct place_slot *out)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < node->slots && taken < count; i++) {
        if (!node->used[i])
            out[taken++] = (struct place_slot){ .node = index, .slot = node->first + i };
    }
    return taken;
}

/* The node to fill next, of those with the least penalty: one that takes all that is left, as
 * tightly as possible; else the emptiest of those not taken from yet. */
static size_t choose_node(const struct place_node *nodes, size_t node_count, const uint32_t *room,
                          uint32_t left)
{
    size_t best = node_count;
    uint32_t best_free = 0;
    for (size_t i = 0; i < node_count; i++) {
        uint32_t n = room[i];
        if (n == 0)
            continue;
        bool better;
        if (best == node_count || nodes[i].penalty != nodes[best].penalty) {
            better = best == node_count || nodes[i].penalty < nodes[best].penalty;
        } else if (n >= left) {
            better = best_free < left || n < best_free;
        } else {
            better = best_free < left && n > best_free;
        }
        if (better) {
            best = i;
            best_free = n;
        }
    }
    return best;
}

enum status place_workers(const struct place_node *nodes, size_t node_count,
                          const struct place_ask *ask, struct place_slot *out,
                          struct reason *reason)
{
    uint32_t capacity = 0, available = 0, others = 0, excluded = 0, avoided = 0, leaving = 0;
    uint32_t room[PLACE_NODES_MAX]; /* free slots of those that may be taken from */
    for (size_t i = 0; i < node_count; i++) {
        bool same = strcmp(nodes[i].device, ask->device) == 0;
        bool takes = node_fits(&nodes[i], ask) && nodes[i].ready && !nodes[i].leaving;
        room[i] = takes ? free_slots(&nodes[i]) : 0;
        if (!same) {
            others++;
        } else if (nodes[i].excluded) {
            excluded++;
        } else if (nodes[i].avoided) {
            avoided++;
        } else if (nodes[i].leaving) {
            leaving++;
        } else {
            capacity += nodes[i].slots;
            available += room[i];
        }
    }
    const char *many = ask->count == 1 ? "" : "s";
    if (capacity == 0 && node_count == 0) {
        reason_set(reason, "needs %u slot%s, no node is registered yet", ask->count, many);
        return ST_AGAIN;
    }
    if (capacity == 0 && avoided > 0) {
        reason_set(reason, "needs %u slot%s, but is kept away from the %u node(s) that have some",
                   ask->count, many, avoided);
        return ST_AGAIN;
    }
    if (capacity == 0 && leaving > 0) {
        reason_set(reason, "needs %u slot%s, and no node that has some takes jobs", ask->count,
                   many);
        return ST_AGAIN;
    }
    if (capacity == 0 && excluded > 0) {
        reason_set(reason,
                   "needs %u slot%s on a node with the pins of its first formation: those of "
                   "%u node(s) differ",
                   ask->count, many, excluded);
        return ST_AGAIN;
    }
    if (capacity == 0) {
        reason_set(reason, "needs device '%s': none of the %u registered node(s) has it",
                   ask->device, others);
        return ST_REFUSED;
    }
    if (capacity < ask->count) {
        reason_set(reason,
                   "needs %u slot%s, but all that is registered has %u of device '%s': the job "
                   "waits for more nodes, or make workers.count smaller",
                   ask->count, many, capacity, ask->device);
        return ST_AGAIN;
    }
    if (available < ask->count) {
        reason_set(reason, "needs %u slot%s, %u of %u %s free", ask->count, many, available,
                   capacity, available == 1 ? "is" : "are");
        return ST_AGAIN;
    }
    uint32_t placed = 0;
    while (placed < ask->count) {
        size_t node = choose_node(nodes, node_count, room, ask->count - placed);
        if (node == node_count)
            return ST_AGAIN;
        placed += take_slots(&nodes[node], (uint32_t)node, ask->count - placed, out + placed);
        room[node] = 0;
    }
    return ST_OK;
}
