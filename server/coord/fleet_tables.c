/* The core's tables of nodes: how one is found, its times, and which of its slots are taken;
 * certificates that were withdrawn. */
#include "server/coord/fleet_tables.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/coord/base.h"

struct coord_node *coord_node_at(struct coord *coord, const char *name)
{
    return table_get(&coord->nodes_by_name, name);
}

struct coord_node *coord_node_make(struct coord *coord, const char *name)
{
    if (coord->node_count >= LIMIT_NODES ||
        timers_reserve(&coord->node_timers, coord->node_count + 1) != ST_OK)
        return NULL;
    struct coord_node **more = realloc(coord->nodes, (coord->node_count + 1) * sizeof(void *));
    if (more == NULL)
        return NULL;
    coord->nodes = more;
    struct coord_node *node = calloc(1, sizeof(*node));
    if (node == NULL)
        return NULL;
    (void)snprintf(node->name, sizeof(node->name), "%s", name);
    if (table_put(&coord->nodes_by_name, node->name, node) != ST_OK) {
        free(node);
        return NULL;
    }
    coord->nodes[coord->node_count++] = node;
    coord_node_moved(coord, node);
    return node;
}

static void free_node(struct coord_node *node)
{
    free(node->gpus);
    free(node->strays);
    free(node->used);
    free(node);
}

/* True if nothing depends on the node: no agent, worker or drain, and it is away for good as far as
 * is known. */
static bool may_go(const struct coord *coord, const struct coord_node *node)
{
    if (node->conn != NULL || node->ranks != NULL || node->drains || node->accused[0])
        return false;
    return !node->known || node->stay == COORD_LEFT ||
           (node->silent && coord_node_unheard_ms(coord, node) >= COORD_AWAY_MS);
}

/* Drops the node that was heard longest ago, and rather one that no failure is held against. */
static bool drop_one(struct coord *coord)
{
    size_t best = coord->node_count;
    for (size_t i = 0; i < coord->node_count; i++) {
        const struct coord_node *node = coord->nodes[i];
        const struct coord_node *other = best < coord->node_count ? coord->nodes[best] : NULL;
        if (!may_go(coord, node))
            continue;
        const bool blamed = node->record.count > 0,
                   other_blamed = other != NULL && other->record.count > 0;
        if (other == NULL ||
            (blamed == other_blamed ? node->heard_at < other->heard_at : other_blamed))
            best = i;
    }
    if (best == coord->node_count)
        return false;
    struct coord_node *node = coord->nodes[best];
    LOG_INFO(coord->options.log, "node %s is away, and its entry is another's now", node->name);
    timers_set(&coord->node_timers, &node->timer, TIMERS_NEVER);
    table_remove(&coord->nodes_by_name, node->name);
    coord->node_count--;
    memmove(&coord->nodes[best], &coord->nodes[best + 1],
            (coord->node_count - best) * sizeof(void *));
    free_node(node);
    coord->schedule_needed = true;
    return true;
}

struct coord_node *coord_node_admit(struct coord *coord, const char *name)
{
    struct coord_node *node = coord_node_at(coord, name);
    if (node != NULL || (coord->node_count >= LIMIT_NODES && !drop_one(coord)))
        return node;
    return coord_node_make(coord, name);
}

void coord_nodes_release(struct coord *coord)
{
    for (size_t i = 0; i < coord->node_count; i++)
        free_node(coord->nodes[i]);
    free(coord->nodes);
}

bool coord_node_held(const struct coord *coord, const struct coord_node *node)
{
    return coord->isolation.since != 0 && node->known && !node->local && !node->silent;
}

int64_t coord_node_unheard_ms(const struct coord *coord, const struct coord_node *node)
{
    return coord_now(coord) - node->heard_at;
}

bool coord_node_cut_off(const struct coord_node *node)
{
    return node->silent && node->suspicion.reached;
}

/* Returns how much longer a node is waited for whose stream was closed: something lives there, and
 * opens another one in its turn. */
static int64_t node_spread_ms(const struct coord *coord, const struct coord_node *node)
{
    return node->conn != NULL ? 0 : coord->spread_ms;
}

int64_t coord_node_due(const struct coord *coord, const struct coord_node *node)
{
    const int64_t at = node->heard_at + (node->alone ? COORD_ALONE : 1) * coord->lost_ms +
                       node_spread_ms(coord, node);
    return at > coord->grace_until ? at : coord->grace_until;
}

int64_t coord_node_deadline(const struct coord *coord, const struct coord_node *node)
{
    int64_t at = TIMERS_NEVER;
    if (!node->silent && !coord_node_held(coord, node)) {
        at = suspicion_deadline(&node->suspicion);
        if (node->suspicion.state == SUSPICION_NONE) {
            at = node->heard_at + coord->lost_ms + node_spread_ms(coord, node) - SUSPICION_LEAD_MS;
        } else if (node->suspicion.state != SUSPICION_ASKED) {
            at = coord_node_due(coord, node);
        }
    } else if (coord_node_cut_off(node) && coord->isolation.since == 0) {
        at = suspicion_deadline(&node->suspicion);
    }
    if (node->record.count > 0 && node->record.faults[0].at + FLEET_FORGET_MS < at)
        at = node->record.faults[0].at + FLEET_FORGET_MS;
    if (node->drain_until != 0 && node->drain_until < at)
        at = node->drain_until;
    if (coord_node_inherited(node))
        at = node->heard_at; /* at once */
    return at;
}

void coord_node_moved(struct coord *coord, struct coord_node *node)
{
    timers_set(&coord->node_timers, &node->timer, coord_node_deadline(coord, node));
}

bool coord_gpu_serves(const struct coord_gpu *gpu)
{
    return gpu->capability == 0 || gpu->capability >= LIMIT_CUDA_CAPABILITY;
}

static struct coord_orphan *find_stray(const struct coord_node *node,
                                       const Cairn__V1__TrainerRef *ref)
{
    for (size_t i = 0; i < node->stray_count; i++) {
        struct coord_orphan *stray = &node->strays[i];
        if (stray->generation == ref->generation && stray->rank == ref->rank &&
            strcmp(stray->job, ref->job) == 0)
            return stray;
    }
    return NULL;
}

void coord_orphan_add(struct coord *coord, struct coord_node *node,
                      const Cairn__V1__TrainerRef *ref, uint32_t slot, int64_t since)
{
    if (find_stray(node, ref) != NULL || node->stray_count >= COORD_ORPHANS_MAX)
        return;
    struct coord_orphan *more =
        realloc(node->strays, ((size_t)node->stray_count + 1) * sizeof(*more));
    if (more == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "holding a slot");
        return;
    }
    node->strays = more;
    struct coord_orphan *stray = &node->strays[node->stray_count++];
    node->counted = false;
    *stray = (struct coord_orphan){
        .generation = ref->generation, .rank = ref->rank, .slot = slot, .since = since
    };
    (void)snprintf(stray->job, sizeof(stray->job), "%.15s", ref->job);
}

void coord_orphan_gone(struct coord *coord, struct coord_node *node,
                       const Cairn__V1__TrainerRef *ref)
{
    struct coord_orphan *stray = find_stray(node, ref);
    if (stray == NULL)
        return;
    LOG_INFO(coord->options.log, "node %s: slot %u is free: %s generation %u rank %u is gone",
             node->name, stray->slot, stray->job, stray->generation, stray->rank);
    *stray = node->strays[--node->stray_count];
    node->counted = false;
    coord->schedule_needed = true;
}

/* Nobody knows of the trainers of a node that is lost: they don't count. */
uint32_t coord_node_unkillable(struct coord *coord, const struct coord_node *node)
{
    uint32_t count = 0;
    for (size_t i = 0; i < node->stray_count; i++)
        count += coord_now(coord) - node->strays[i].since >= COORD_UNDYING_MS;
    return node->silent ? 0 : count;
}

bool coord_node_has(const struct coord_node *node, const char *device)
{
    bool found = strcmp(node->device, device) == 0;
    for (uint32_t i = 0; strcmp(device, COORD_GPU_DEVICE) == 0 && i < node->gpu_count; i++)
        found = found || coord_gpu_serves(&node->gpus[i]);
    return found;
}

/* ---- nodes: what is kept of them ---- */

static void take_slot(struct coord_node *node, uint32_t slot)
{
    if (slot >= node->slots + node->gpu_count || node->used[slot])
        return;
    node->used[slot] = true;
    node->slots_used += slot < node->slots;
    node->gpus_used += slot >= node->slots;
}

/* Counts the slots in use, for coord_node_count. used: room for all slots, free. */
static void count_slots(struct coord_node *node)
{
    node->slots_used = node->gpus_used = 0;
    for (const struct coord_rank *rank = node->ranks; rank != NULL; rank = rank->next)
        take_slot(node, rank->slot);
    for (size_t i = 0; i < node->stray_count; i++)
        take_slot(node, node->strays[i].slot);
    for (uint32_t i = 0; i < node->gpu_count; i++) {
        bool *used = &node->used[node->slots + i];
        *used = *used || node->gpus[i].problem[0] || !coord_gpu_serves(&node->gpus[i]);
    }
}

bool coord_node_count(struct coord *coord, struct coord_node *node)
{
    if (node->counted)
        return true;
    const size_t slots = (size_t)node->slots + node->gpu_count;
    free(node->used);
    node->used = calloc(slots ? slots : 1, sizeof(*node->used));
    if (node->used == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "counting slots");
        return false;
    }
    count_slots(node);
    node->counted = true;
    return true;
}

uint32_t coord_node_used(struct coord *coord, struct coord_node *node)
{
    return coord_node_count(coord, node) ? node->slots_used : 0;
}

uint32_t coord_node_gpus_used(struct coord *coord, struct coord_node *node)
{
    return coord_node_count(coord, node) ? node->gpus_used : 0;
}

bool coord_node_heard(const struct coord_node *node)
{
    for (const struct coord_rank *rank = node->ranks; rank != NULL; rank = rank->next) {
        if (rank->job->m.ranks[coord_rank_number(rank)].session)
            return true;
    }
    return false;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct coord_rank *x = *(struct coord_rank *const *)a,
                            *y = *(struct coord_rank *const *)b;
    if (x->job != y->job)
        return x->job->seq < y->job->seq ? -1 : 1;
    return (x > y) - (x < y);
}

struct coord_rank **coord_ranks_of(struct coord *coord, const struct coord_node *node,
                                   size_t *out_count)
{
    size_t count = 0;
    for (const struct coord_rank *rank = node->ranks; rank != NULL; rank = rank->next)
        count++;
    *out_count = 0;
    struct coord_rank **list = count > 0 ? calloc(count, sizeof(void *)) : NULL;
    if (list == NULL) {
        if (count > 0)
            coord_fail(coord, ST_NO_MEMORY, "looking at a node");
        return NULL;
    }
    for (struct coord_rank *rank = node->ranks; rank != NULL; rank = rank->next)
        list[(*out_count)++] = rank;
    qsort(list, count, sizeof(void *), compare_ranks);
    return list;
}

/*
 * ---- certificates that were withdrawn ----
 *
 * By the names of their nodes: for each the time when the node was forgotten last. What was issued
 * until then counts no more, so that none of them goes to make room unless all that it withdraws
 * has expired.
 */

struct withdrawal {
    char node[LIMIT_NAME];
    int64_t time_s;
};

int64_t coord_node_forgotten(struct coord *coord, const char *name)
{
    const struct withdrawal *of = table_get(&coord->withdrawn, name);
    return of != NULL ? of->time_s : 0;
}

size_t coord_drop_withdrawn(struct coord *coord, int64_t before_s)
{
    size_t count = 0;
    struct withdrawal **old = calloc(coord->withdrawn.count + 1, sizeof(void *));
    for (size_t i = 0; old != NULL && i < coord->withdrawn.capacity; i++) {
        struct withdrawal *one = coord->withdrawn.entries[i].value;
        if (coord->withdrawn.entries[i].key != NULL && one->time_s < before_s)
            old[count++] = one;
    }
    for (size_t i = 0; i < count; i++) {
        table_remove(&coord->withdrawn, old[i]->node);
        free(old[i]);
    }
    free(old);
    return count;
}

enum status coord_put_withdrawn(struct coord *coord, const char *name, int64_t time_s)
{
    struct withdrawal *one = table_get(&coord->withdrawn, name);
    if (one != NULL) {
        one->time_s = time_s;
        return ST_OK;
    }
    one = calloc(1, sizeof(*one));
    if (one == NULL)
        return ST_NO_MEMORY;
    (void)snprintf(one->node, sizeof(one->node), "%s", name);
    one->time_s = time_s;
    const enum status st = table_put(&coord->withdrawn, one->node, one);
    if (st != ST_OK)
        free(one);
    return st;
}

void coord_release_withdrawn(struct coord *coord)
{
    for (size_t i = 0; i < coord->withdrawn.capacity; i++) {
        if (coord->withdrawn.entries[i].key != NULL)
            free(coord->withdrawn.entries[i].value);
    }
    table_release(&coord->withdrawn);
}
