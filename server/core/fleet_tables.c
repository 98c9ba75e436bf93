/* The core's tables of nodes: how one is found, its times, and which of its slots are taken;
 * certificates that were withdrawn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/internal.h"

struct core_node *core_node_at(struct core *core, const char *name)
{
    return table_get(&core->nodes_by_name, name);
}

struct core_node *core_node_make(struct core *core, const char *name)
{
    if (core->node_count >= LIMIT_NODES ||
        timers_reserve(&core->node_timers, core->node_count + 1) != ST_OK)
        return NULL;
    struct core_node **more = realloc(core->nodes, (core->node_count + 1) * sizeof(void *));
    if (!more)
        return NULL;
    core->nodes = more;
    struct core_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    (void)snprintf(node->name, sizeof node->name, "%s", name);
    if (table_put(&core->nodes_by_name, node->name, node) != ST_OK) {
        free(node);
        return NULL;
    }
    core->nodes[core->node_count++] = node;
    core_node_moved(core, node);
    return node;
}

static void free_node(struct core_node *node)
{
    free(node->gpus);
    free(node->strays);
    free(node->used);
    free(node);
}

/* True if nothing depends on the node: no agent, worker or drain, and it is away for good as far as
 * is known. */
static bool may_go(const struct core *core, const struct core_node *node)
{
    if (node->conn || node->ranks || node->drains || node->accused[0])
        return false;
    return !node->known || node->stay == CORE_LEFT ||
           (node->silent && core_node_unheard_ms(core, node) >= CORE_AWAY_MS);
}

/* Drops the node that was heard longest ago, and rather one that no failure is held against. */
static bool drop_one(struct core *core)
{
    size_t best = core->node_count;
    for (size_t i = 0; i < core->node_count; i++) {
        const struct core_node *node = core->nodes[i];
        const struct core_node *other = best < core->node_count ? core->nodes[best] : NULL;
        if (!may_go(core, node))
            continue;
        const bool blamed = node->record.count > 0, other_blamed = other && other->record.count > 0;
        if (!other || (blamed == other_blamed ? node->heard_at < other->heard_at : other_blamed))
            best = i;
    }
    if (best == core->node_count)
        return false;
    struct core_node *node = core->nodes[best];
    LOG_INFO(core->options.log, "node %s is away, and its entry is another's now", node->name);
    timers_set(&core->node_timers, &node->timer, TIMERS_NEVER);
    table_remove(&core->nodes_by_name, node->name);
    core->node_count--;
    memmove(&core->nodes[best], &core->nodes[best + 1], (core->node_count - best) * sizeof(void *));
    free_node(node);
    core->schedule_needed = true;
    return true;
}

struct core_node *core_node_admit(struct core *core, const char *name)
{
    struct core_node *node = core_node_at(core, name);
    if (node || (core->node_count >= LIMIT_NODES && !drop_one(core)))
        return node;
    return core_node_make(core, name);
}

void core_nodes_release(struct core *core)
{
    for (size_t i = 0; i < core->node_count; i++)
        free_node(core->nodes[i]);
    free(core->nodes);
}

bool core_node_held(const struct core *core, const struct core_node *node)
{
    return core->outage.since != 0 && node->known && !node->local && !node->silent;
}

int64_t core_node_unheard_ms(const struct core *core, const struct core_node *node)
{
    return core_now(core) - node->heard_at;
}

bool core_node_cut_off(const struct core_node *node)
{
    return node->silent && node->doubt.reached;
}

/* Returns how much longer a node is waited for whose stream was closed: something lives there, and
 * opens another one in its turn. */
static int64_t node_spread_ms(const struct core *core, const struct core_node *node)
{
    return node->conn ? 0 : core->spread_ms;
}

int64_t core_node_due(const struct core *core, const struct core_node *node)
{
    const int64_t at = node->heard_at + (node->alone ? CORE_ALONE : 1) * core->lost_ms +
                       node_spread_ms(core, node);
    return at > core->grace_until ? at : core->grace_until;
}

int64_t core_node_deadline(const struct core *core, const struct core_node *node)
{
    int64_t at = TIMERS_NEVER;
    if (!node->silent && !core_node_held(core, node)) {
        at = doubt_deadline(&node->doubt);
        if (node->doubt.state == DOUBT_NONE) {
            at = node->heard_at + core->lost_ms + node_spread_ms(core, node) - DOUBT_LEAD_MS;
        } else if (node->doubt.state != DOUBT_ASKED) {
            at = core_node_due(core, node);
        }
    } else if (core_node_cut_off(node) && core->outage.since == 0) {
        at = doubt_deadline(&node->doubt);
    }
    if (node->record.count > 0 && node->record.faults[0].at + FLEET_FORGET_MS < at)
        at = node->record.faults[0].at + FLEET_FORGET_MS;
    if (node->drain_until != 0 && node->drain_until < at)
        at = node->drain_until;
    if (core_node_inherited(node))
        at = node->heard_at; /* at once */
    return at;
}

void core_node_moved(struct core *core, struct core_node *node)
{
    timers_set(&core->node_timers, &node->timer, core_node_deadline(core, node));
}

bool core_gpu_serves(const struct core_gpu *gpu)
{
    return gpu->capability == 0 || gpu->capability >= LIMIT_CUDA_CAPABILITY;
}

static struct core_stray *find_stray(const struct core_node *node, const Cairn__V1__TrainerRef *ref)
{
    for (size_t i = 0; i < node->stray_count; i++) {
        struct core_stray *stray = &node->strays[i];
        if (stray->generation == ref->generation && stray->rank == ref->rank &&
            strcmp(stray->job, ref->job) == 0)
            return stray;
    }
    return NULL;
}

void core_stray_add(struct core *core, struct core_node *node, const Cairn__V1__TrainerRef *ref,
                    uint32_t slot, int64_t since)
{
    if (find_stray(node, ref) || node->stray_count >= CORE_STRAYS_MAX)
        return;
    struct core_stray *more = realloc(node->strays, ((size_t)node->stray_count + 1) * sizeof *more);
    if (!more) {
        core_fail(core, ST_NO_MEMORY, "holding a slot");
        return;
    }
    node->strays = more;
    struct core_stray *stray = &node->strays[node->stray_count++];
    node->counted = false;
    *stray = (struct core_stray){
        .generation = ref->generation, .rank = ref->rank, .slot = slot, .since = since
    };
    (void)snprintf(stray->job, sizeof stray->job, "%.15s", ref->job);
}

void core_stray_gone(struct core *core, struct core_node *node, const Cairn__V1__TrainerRef *ref)
{
    struct core_stray *stray = find_stray(node, ref);
    if (!stray)
        return;
    LOG_INFO(core->options.log, "node %s: slot %u is free: %s generation %u rank %u is gone",
             node->name, stray->slot, stray->job, stray->generation, stray->rank);
    *stray = node->strays[--node->stray_count];
    node->counted = false;
    core->schedule_needed = true;
}

/* Nobody knows of the trainers of a node that is lost: they don't count. */
uint32_t core_node_undying(struct core *core, const struct core_node *node)
{
    uint32_t count = 0;
    for (size_t i = 0; i < node->stray_count; i++)
        count += core_now(core) - node->strays[i].since >= CORE_UNDYING_MS;
    return node->silent ? 0 : count;
}

bool core_node_has(const struct core_node *node, const char *device)
{
    bool found = strcmp(node->device, device) == 0;
    for (uint32_t i = 0; strcmp(device, CORE_GPU_DEVICE) == 0 && i < node->gpu_count; i++)
        found = found || core_gpu_serves(&node->gpus[i]);
    return found;
}

/* ---- nodes: what is kept of them ---- */

static void take_slot(struct core_node *node, uint32_t slot)
{
    if (slot >= node->slots + node->gpu_count || node->used[slot])
        return;
    node->used[slot] = true;
    node->slots_used += slot < node->slots;
    node->gpus_used += slot >= node->slots;
}

/* Counts the slots in use, for core_node_count. used: room for all slots, free. */
static void count_slots(struct core_node *node)
{
    node->slots_used = node->gpus_used = 0;
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next)
        take_slot(node, rank->slot);
    for (size_t i = 0; i < node->stray_count; i++)
        take_slot(node, node->strays[i].slot);
    for (uint32_t i = 0; i < node->gpu_count; i++) {
        bool *used = &node->used[node->slots + i];
        *used = *used || node->gpus[i].problem[0] || !core_gpu_serves(&node->gpus[i]);
    }
}

bool core_node_count(struct core *core, struct core_node *node)
{
    if (node->counted)
        return true;
    const size_t slots = (size_t)node->slots + node->gpu_count;
    free(node->used);
    node->used = calloc(slots ? slots : 1, sizeof *node->used);
    if (!node->used) {
        core_fail(core, ST_NO_MEMORY, "counting slots");
        return false;
    }
    count_slots(node);
    node->counted = true;
    return true;
}

uint32_t core_node_used(struct core *core, struct core_node *node)
{
    return core_node_count(core, node) ? node->slots_used : 0;
}

uint32_t core_node_gpus_used(struct core *core, struct core_node *node)
{
    return core_node_count(core, node) ? node->gpus_used : 0;
}

bool core_node_heard(const struct core_node *node)
{
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next) {
        if (rank->job->m.ranks[core_rank_number(rank)].session)
            return true;
    }
    return false;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct core_rank *x = *(struct core_rank *const *)a, *y = *(struct core_rank *const *)b;
    if (x->job != y->job)
        return x->job->seq < y->job->seq ? -1 : 1;
    return (x > y) - (x < y);
}

struct core_rank **core_ranks_of(struct core *core, const struct core_node *node, size_t *out_count)
{
    size_t count = 0;
    for (const struct core_rank *rank = node->ranks; rank; rank = rank->next)
        count++;
    *out_count = 0;
    struct core_rank **list = count > 0 ? calloc(count, sizeof(void *)) : NULL;
    if (!list) {
        if (count > 0)
            core_fail(core, ST_NO_MEMORY, "looking at a node");
        return NULL;
    }
    for (struct core_rank *rank = node->ranks; rank; rank = rank->next)
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

int64_t core_node_forgotten(struct core *core, const char *name)
{
    const struct withdrawal *of = table_get(&core->withdrawn, name);
    return of ? of->time_s : 0;
}

size_t core_drop_withdrawn(struct core *core, int64_t before_s)
{
    size_t count = 0;
    struct withdrawal **old = calloc(core->withdrawn.count + 1, sizeof(void *));
    for (size_t i = 0; old && i < core->withdrawn.capacity; i++) {
        struct withdrawal *one = core->withdrawn.entries[i].value;
        if (core->withdrawn.entries[i].key && one->time_s < before_s)
            old[count++] = one;
    }
    for (size_t i = 0; i < count; i++) {
        table_remove(&core->withdrawn, old[i]->node);
        free(old[i]);
    }
    free(old);
    return count;
}

enum status core_put_withdrawn(struct core *core, const char *name, int64_t time_s)
{
    struct withdrawal *one = table_get(&core->withdrawn, name);
    if (one) {
        one->time_s = time_s;
        return ST_OK;
    }
    one = calloc(1, sizeof *one);
    if (!one)
        return ST_NO_MEMORY;
    (void)snprintf(one->node, sizeof one->node, "%s", name);
    one->time_s = time_s;
    const enum status st = table_put(&core->withdrawn, one->node, one);
    if (st != ST_OK)
        free(one);
    return st;
}

void core_release_withdrawn(struct core *core)
{
    for (size_t i = 0; i < core->withdrawn.capacity; i++) {
        if (core->withdrawn.entries[i].key)
            free(core->withdrawn.entries[i].value);
    }
    table_release(&core->withdrawn);
}
