#include "server/fleet/place.h"

#include <stdio.h>
#include <string.h>

#include "common/check.h"

static bool node_fits(const struct place_node *node, const struct place_ask *ask)
{
    return strcmp(node->device, ask->device) == 0 && !node->excluded && !node->avoided;
}

/* Counts the free slots that are kept for nobody else. */
static uint32_t free_slots(const struct place_node *node)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < node->slots; i++)
        count += !node->used[i];
    return count > node->kept ? count - node->kept : 0;
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

void place_net(const char *host, const char *machine, char out[PLACE_NET])
{
    (void)snprintf(out, PLACE_NET, "%.50s",
                   is_loopback(host)           ? machine
                   : strchr(host, ':') != NULL ? "ipv6"
                                               : "ipv4");
}

/* The slots, of those that count, where a job may go. */
struct capacity {
    uint32_t alone[PLACE_NODES_MAX];  /* slots of each node: enough for all of the job, or none */
    uint32_t shared[PLACE_NODES_MAX]; /* as one of several nodes */
    bool any;
};

/* Returns at how many ports a worker listens for the others: with Gloo at one, for all. NCCL says
 * nothing of it: a port for each of the others was enough so far. */
static uint32_t ports_of_worker(const struct place_ask *ask)
{
    return strcmp(ask->device, "cpu") == 0 ? 1 : ask->count - 1;
}

/* Returns how many workers this node's ports allow of a job in which other nodes have a share,
 * `slots` at most. */
static uint32_t limit_by_ports(const struct place_node *node, const struct place_ask *ask,
                               uint32_t slots)
{
    const uint32_t most =
        node->ports == 0 || ask->count < 2 ? slots : node->ports / ports_of_worker(ask);
    return most < slots ? most : slots;
}

/* Takes away the shares of nodes whose net has too few in all. */
static void join_nets(const struct place_node *nodes, size_t node_count, uint32_t wanted,
                      uint32_t *shared)
{
    uint32_t first[PLACE_NODES_MAX], sum[PLACE_NODES_MAX], of[PLACE_NODES_MAX];
    uint32_t nets = 0;
    for (size_t i = 0; i < node_count; i++) {
        uint32_t net = 0;
        while (net < nets && strcmp(nodes[first[net]].net, nodes[i].net) != 0)
            net++;
        if (net == nets) {
            first[net] = (uint32_t)i;
            sum[net] = 0;
            nets++;
        }
        of[i] = net;
        sum[net] += shared[i];
    }
    for (size_t i = 0; i < node_count; i++) {
        if (sum[of[i]] < wanted)
            shared[i] = 0;
    }
}

static void find_room(const struct place_node *nodes, size_t node_count,
                      const struct place_ask *ask, const uint32_t *slots, bool any_port,
                      struct capacity *out)
{
    out->any = false;
    for (size_t i = 0; i < node_count; i++) {
        out->alone[i] = slots[i] >= ask->count ? slots[i] : 0;
        out->shared[i] = any_port ? slots[i] : limit_by_ports(&nodes[i], ask, slots[i]);
    }
    join_nets(nodes, node_count, ask->count, out->shared);
    for (size_t i = 0; i < node_count; i++)
        out->any = out->any || out->alone[i] > 0 || out->shared[i] > 0;
}

/* Takes slots of a node; without free_only also those that are in use. */
static uint32_t take_slots(const struct place_node *node, uint32_t index, uint32_t count,
                           bool free_only, struct place_slot *out)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < node->slots && taken < count; i++) {
        if (!free_only || !node->used[i])
            out[taken++] = (struct place_slot){ .node = index, .slot = node->first + i };
    }
    return taken;
}

/* Chooses the node to fill next, of those with the least penalty. It is one that takes all that is
 * left, as tightly as possible; else the emptiest of those not taken from yet. */
static size_t choose_node(const struct place_node *nodes, size_t node_count,
                          const uint32_t *capacity, uint32_t left)
{
    size_t best = node_count;
    uint32_t best_free = 0;
    for (size_t i = 0; i < node_count; i++) {
        uint32_t n = capacity[i];
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

/* Fills so many slots of each node, the best node first; false: there is no room. */
static bool fill_slots(const struct place_node *nodes, size_t node_count,
                       const struct place_ask *ask, const uint32_t *slots, bool free_only,
                       struct place_slot *out)
{
    struct capacity capacity;
    uint32_t most[PLACE_NODES_MAX];
    find_room(nodes, node_count, ask, slots, false, &capacity);
    if (!capacity.any)
        return false;
    for (size_t i = 0; i < node_count; i++)
        most[i] = capacity.alone[i] > 0 ? capacity.alone[i] : capacity.shared[i];
    const size_t first = choose_node(nodes, node_count, most, ask->count);
    CHECK(first < node_count);
    uint32_t placed =
        take_slots(&nodes[first], (uint32_t)first,
                   most[first] < ask->count ? most[first] : ask->count, free_only, out);
    capacity.shared[first] = 0;
    for (size_t i = 0; i < node_count; i++) {
        if (strcmp(nodes[i].net, nodes[first].net) != 0)
            capacity.shared[i] = 0;
    }
    while (placed < ask->count) {
        const uint32_t left = ask->count - placed;
        const size_t node = choose_node(nodes, node_count, capacity.shared, left);
        CHECK(node < node_count);
        placed += take_slots(&nodes[node], (uint32_t)node,
                             capacity.shared[node] < left ? capacity.shared[node] : left, free_only,
                             out + placed);
        capacity.shared[node] = 0;
    }
    return true;
}

/* Slots and nodes of a fleet, as one job sees them. */
struct tally {
    uint32_t capacity, available; /* slots */
    uint32_t others;              /* nodes with another device */
    uint32_t excluded, avoided, leaving;
};

/* Counts slots and nodes. room: free slots of nodes that may be taken from. */
static struct tally count_capacity(const struct place_node *nodes, size_t node_count,
                                   const struct place_ask *ask, uint32_t *capacity)
{
    struct tally tally = { 0 };
    for (size_t i = 0; i < node_count; i++) {
        const bool takes = node_fits(&nodes[i], ask) && nodes[i].ready && !nodes[i].leaving;
        capacity[i] = takes ? free_slots(&nodes[i]) : 0;
        if (strcmp(nodes[i].device, ask->device) != 0) {
            tally.others++;
        } else if (nodes[i].excluded) {
            tally.excluded++;
        } else if (nodes[i].avoided) {
            tally.avoided++;
        } else if (nodes[i].leaving) {
            tally.leaving++;
        } else {
            tally.capacity += nodes[i].slots;
            tally.available += capacity[i];
        }
    }
    return tally;
}

/* Explains why a job waits for which no node counts. */
static enum status explain_none(const struct tally *tally, size_t node_count,
                                const struct place_ask *ask, struct reason *reason)
{
    const char *many = ask->count == 1 ? "" : "s";
    if (node_count == 0) {
        reason_set(reason, "needs %u slot%s, no node is registered yet", ask->count, many);
    } else if (tally->avoided > 0) {
        reason_set(reason, "needs %u slot%s, but is kept away from the %u node(s) that have some",
                   ask->count, many, tally->avoided);
    } else if (tally->leaving > 0) {
        reason_set(reason, "needs %u slot%s, and no node that has some takes jobs", ask->count,
                   many);
    } else if (tally->excluded > 0) {
        reason_set(reason,
                   "needs %u slot%s on a node with the pins of its first formation: those of "
                   "%u node(s) differ",
                   ask->count, many, tally->excluded);
    } else {
        reason_set(reason, "needs device '%s': none of the %u registered node(s) has it",
                   ask->device, tally->others);
        return ST_REFUSED;
    }
    return ST_AGAIN;
}

/* ---- nodes that are apart ---- */

#define DROPS_MAX 32  /* nodes that are left out at a time */
#define TRIES_MAX 256 /* fillings of one call: a job waits where none of so many will do */

/* A choice between the two nodes of a pair: node[0] is left out first; if that leaves too few
 * slots, node[1]. */
struct drop {
    uint32_t node[2];
    uint32_t capacity; /* of the one that is left out */
    bool second;
};

/* Finds two nodes that are apart among those that were taken, or NULL. */
static const struct place_pair *find_apart(const struct place_ask *ask,
                                           const struct place_slot *out)
{
    bool taken[PLACE_NODES_MAX] = { false };
    for (uint32_t i = 0; i < ask->count; i++)
        taken[out[i].node] = true;
    for (size_t i = 0; i < ask->apart_count; i++) {
        const struct place_pair *pair = &ask->apart[i];
        if (taken[pair->a] && taken[pair->b])
            return pair;
    }
    return NULL;
}

/* Counts the nodes with room that this one is apart from. */
static uint32_t count_apart(const struct place_ask *ask, const uint32_t *capacity, uint32_t node)
{
    uint32_t count = 0;
    for (size_t i = 0; i < ask->apart_count; i++) {
        const struct place_pair *pair = &ask->apart[i];
        const bool has = pair->a == node || pair->b == node;
        count += has && capacity[pair->a == node ? pair->b : pair->a] > 0;
    }
    return count;
}

static struct drop choose_drop(const struct place_ask *ask, const uint32_t *capacity,
                               const struct place_pair *pair)
{
    const uint32_t a = count_apart(ask, capacity, pair->a), b = count_apart(ask, capacity, pair->b);
    const bool keeps_a = a != b ? a < b : capacity[pair->a] >= capacity[pair->b];
    return (struct drop){ .node = { keeps_a ? pair->b : pair->a, keeps_a ? pair->a : pair->b } };
}

static void leave_out(struct drop *drop, uint32_t *capacity)
{
    const uint32_t node = drop->node[drop->second];
    drop->capacity = capacity[node];
    capacity[node] = 0;
}

static void take_back(struct drop *drop, uint32_t *capacity)
{
    capacity[drop->node[drop->second]] = drop->capacity;
}

/* Fills slots without taking both nodes of any pair. false: there is no such choice; out_pair: the
 * first that stood against it, or NULL. */
static bool fill_apart(const struct place_node *nodes, size_t node_count,
                       const struct place_ask *ask, uint32_t *capacity, bool free_only,
                       struct place_slot *out, const struct place_pair **out_pair)
{
    struct drop drops[DROPS_MAX];
    size_t depth = 0;
    *out_pair = NULL;
    for (int i = 0; i < TRIES_MAX; i++) {
        const bool fits = fill_slots(nodes, node_count, ask, capacity, free_only, out);
        const struct place_pair *pair = fits ? find_apart(ask, out) : NULL;
        if (fits && pair == NULL)
            return true;
        if (pair != NULL && *out_pair == NULL)
            *out_pair = pair;
        if (pair != NULL && depth < DROPS_MAX) {
            drops[depth] = choose_drop(ask, capacity, pair);
            leave_out(&drops[depth++], capacity);
            continue;
        }
        while (depth > 0 && drops[depth - 1].second)
            take_back(&drops[--depth], capacity);
        if (depth == 0)
            return false;
        take_back(&drops[depth - 1], capacity);
        drops[depth - 1].second = true;
        leave_out(&drops[depth - 1], capacity);
    }
    return false;
}

/* ---- whether a job fits at all ---- */

/* The slots that count: those of all nodes that don't leave; of those in reach; those that may come
 * free. */
enum counts { COUNTS_REGISTERED, COUNTS_IN_REACH, COUNTS_SOON };

static uint32_t count_slots(const struct place_node *node, const struct place_ask *ask,
                            enum counts counts)
{
    bool there = counts == COUNTS_IN_REACH || !node->leaving;
    there = there && (counts == COUNTS_REGISTERED || node->reachable);
    if (!there || !node_fits(node, ask))
        return 0;
    return counts == COUNTS_REGISTERED ? node->slots : node->slots - node->stuck;
}

/* Returns whether there is room if all slots of these nodes are free. any_way: whatever ports and
 * paths there are. */
static bool fits(const struct place_node *nodes, size_t node_count, const struct place_ask *ask,
                 enum counts counts, bool any_way, struct capacity *capacity)
{
    uint32_t slots[PLACE_NODES_MAX];
    struct place_slot taken[LIMIT_RANKS];
    const struct place_pair *pair;
    for (size_t i = 0; i < node_count; i++)
        slots[i] = count_slots(&nodes[i], ask, counts);
    find_room(nodes, node_count, ask, slots, any_way, capacity);
    if (!capacity->any || any_way || ask->apart_count == 0)
        return capacity->any;
    return fill_apart(nodes, node_count, ask, slots, false, taken, &pair);
}

bool place_fits(const struct place_node *nodes, size_t node_count, const struct place_ask *ask,
                uint32_t *out_kept)
{
    struct capacity capacity;
    if (!fits(nodes, node_count, ask, COUNTS_SOON, false, &capacity))
        return false;
    for (size_t i = 0; out_kept != NULL && i < node_count; i++) {
        if (capacity.alone[i] > 0 || capacity.shared[i] > 0)
            out_kept[i] = PLACE_ALL;
    }
    return true;
}

bool place_fits_in_reach(const struct place_node *nodes, size_t node_count,
                         const struct place_ask *ask)
{
    struct capacity capacity;
    return fits(nodes, node_count, ask, COUNTS_IN_REACH, false, &capacity);
}

/* Explains why nodes that have slots enough between them can't share the job. */
static void explain_apart(const struct place_node *nodes, size_t node_count,
                          const struct place_ask *ask, struct reason *reason)
{
    const uint32_t each = ports_of_worker(ask);
    struct capacity capacity;
    const bool ports = fits(nodes, node_count, ask, COUNTS_REGISTERED, true, &capacity);
    for (size_t i = 0; ports && i < node_count; i++) {
        const uint32_t slots = node_fits(&nodes[i], ask) ? nodes[i].slots : 0;
        const uint32_t wanted = slots < ask->count - 1 ? slots : ask->count - 1;
        if (limit_by_ports(&nodes[i], ask, wanted) == wanted)
            continue;
        reason_set(reason,
                   "needs %u slots on more than one node, and there %u port%s for each of its "
                   "workers: for %u of them node %s needs %u and has %u, give its agent so many "
                   "with --ports",
                   ask->count, each, each == 1 ? "" : "s", wanted, nodes[i].name, wanted * each,
                   nodes[i].ports);
        return;
    }
    for (size_t i = 0; i < node_count; i++) {
        if (!node_fits(&nodes[i], ask) || !is_loopback(nodes[i].host))
            continue;
        reason_set(reason,
                   "needs %u slots on more than one machine, but node %s is at %s, where no other "
                   "machine reaches its workers: start its agent with --interface or --host",
                   ask->count, nodes[i].name, nodes[i].host);
        return;
    }
    reason_set(reason,
               "needs %u slots on more than one node, but some have an address of IPv4 and others "
               "of IPv6: start their agents with --interface or --host, all of one kind",
               ask->count);
}

enum status place_workers(const struct place_node *nodes, size_t node_count,
                          const struct place_ask *ask, struct place_slot *out,
                          struct reason *reason)
{
    uint32_t capacity[PLACE_NODES_MAX];
    const struct tally tally = count_capacity(nodes, node_count, ask, capacity);
    const char *many = ask->count == 1 ? "" : "s";
    if (tally.capacity == 0)
        return explain_none(&tally, node_count, ask, reason);
    if (tally.capacity < ask->count) {
        reason_set(reason,
                   "needs %u slot%s, but all that is registered has %u of device '%s': the job "
                   "waits for more nodes, or make workers.count smaller",
                   ask->count, many, tally.capacity, ask->device);
        return ST_AGAIN;
    }
    if (tally.available < ask->count) {
        reason_set(reason, "needs %u slot%s, %u of %u %s free", ask->count, many, tally.available,
                   tally.capacity, tally.available == 1 ? "is" : "are");
        return ST_AGAIN;
    }
    const struct place_pair *pair = NULL;
    if (fill_apart(nodes, node_count, ask, capacity, true, out, &pair))
        return ST_OK;
    if (pair != NULL) {
        reason_set(reason,
                   "%.128s and %.128s can't reach each other: needs %u slots on nodes that do",
                   nodes[pair->a].name, nodes[pair->b].name, ask->count);
        return ST_UNREACHABLE;
    }
    struct capacity any;
    if (fits(nodes, node_count, ask, COUNTS_REGISTERED, false, &any)) {
        reason_set(reason,
                   "needs %u slots on nodes whose workers reach each other: %u of %u are free, but "
                   "not there",
                   ask->count, tally.available, tally.capacity);
    } else {
        explain_apart(nodes, node_count, ask, reason);
    }
    return ST_AGAIN;
}
