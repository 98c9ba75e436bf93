/*
 * Slots for one job: which are free, from which nodes it keeps away, and what becomes of it if
 * there are none. queue.c says which job comes first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "server/core/queue/board.h"

/* Returns how many failures weigh, as a whole number: old ones make no difference between nodes. */
static uint32_t level_of(const struct core *core, const struct core_node *node)
{
    return (uint32_t)(fleet_penalty(&node->record, core_now(core)) + 0.5);
}

/* Counts the slots from first to end - 1 that nobody gives back: of broken GPUs, or held by a
 * process that doesn't die. */
static uint32_t count_stuck(const struct core *core, const struct core_node *node, uint32_t first,
                            uint32_t end)
{
    uint32_t count = 0;
    for (size_t i = 0; i < node->stray_count; i++) {
        const struct core_stray *stray = &node->strays[i];
        count += stray->slot >= first && stray->slot < end &&
                 core_now(core) - stray->since >= CORE_UNDYING_MS;
    }
    for (uint32_t i = node->slots; i < end; i++) {
        const struct core_gpu *gpu = &node->gpus[i - node->slots];
        count += gpu->problem[0] || !core_gpu_serves(gpu);
    }
    return count < end - first ? count : end - first; /* both of one slot, it may be */
}

/* Adds the node's CPU shares and its GPUs. */
static void add_pools(const struct core *core, struct board *board, struct core_node *node)
{
    struct place_node pool = { .name = node->name,
                               .device = node->device,
                               .slots = node->slots,
                               .used = node->used,
                               .stuck = count_stuck(core, node, 0, node->slots),
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
    pool.stuck = count_stuck(core, node, node->slots, node->slots + node->gpu_count);
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
}

/* Adds the pairs of two nodes' pools, CPU shares with CPU shares and GPUs with GPUs: a job has
 * slots of one kind. */
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

/* Slots in use are kept node by node, and counted anew only where something changed. */
bool core_board_fill(struct core *core)
{
    if (core->board->filled)
        return true;
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
    core->board->filled = true;
    return true;
}

void core_place(struct core *core, struct core_job *job, enum machine_event_kind kind,
                const struct place_slot *slots, uint32_t count)
{
    struct board *board = core->board;
    auto_free const char **names = calloc((size_t)count + 1, sizeof *names);
    auto_free uint32_t *numbers = calloc((size_t)count + 1, sizeof *numbers);
    if (!names || !numbers) {
        core_fail(core, ST_NO_MEMORY, "placing");
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        names[i] = board->of[slots[i].node]->name;
        numbers[i] = slots[i].slot;
    }
    char token[65];
    core_nonce(core, token, sizeof token);
    if (core->options.seal)
        core->options.seal(core->options.seal_arg, token);
    struct machine_event event = core_event(core, kind);
    event.placed = (struct machine_placed){ names, numbers, count, token };
    board->filled = false;
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

/* The kinds of nodes that a job is kept away from. */
enum avoid {
    AVOID_FAILED = 1,  /* the job failed there */
    AVOID_DRAINED = 2, /* other jobs failed there */
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

/* True if the worker has a slot, or is to start there: the others join it. */
static bool is_there(const struct machine *m, uint32_t rank)
{
    return machine_holds_slot(m, rank) && !(machine_is_spare(m, rank) && m->ranks[rank].ended);
}

/* Returns a node where a worker is that the spare can't reach; NULL: there is none. */
static const char *far_from(const struct core *core, const struct machine *m, uint32_t spare)
{
    const char *found = NULL;
    CHECK(spare == 0 || m->ranks != NULL);
    for (uint32_t i = 0; i < spare && !found; i++) {
        if (is_there(m, i) && core_nodes_apart(core, m->ranks[i].node, m->ranks[spare].node))
            found = m->ranks[i].node;
    }
    return found;
}

bool core_part_spares(struct core *core, struct core_job *job)
{
    bool any = false;
    for (uint32_t i = job->m.size; core->paths.count > 0 && i < job->m.count; i++) {
        const char *other = is_there(&job->m, i) ? far_from(core, &job->m, i) : NULL;
        if (!other)
            continue;
        struct reason why;
        struct machine_event event = core_event_of(core, MACHINE_EV_LEAVING, job->m.generation, i);
        reason_set(&why, "its node and %.100s can't reach each other", other);
        event.leaving.why = why.text;
        (void)core_apply(core, job, &event);
        any = true;
    }
    return any;
}

static bool keeps_on(const struct machine *m, const char *node)
{
    bool keeps = false;
    for (uint32_t i = 0; i < m->size && !keeps; i++)
        keeps = !m->ranks[i].gone && strcmp(m->ranks[i].node, node) == 0;
    return keeps;
}

/* Parts kept workers across a broken path. It broke while they got on, or was mended since: nobody
 * knows. In another generation they would meet it again. */
static bool part_kept(struct core *core, struct core_job *job)
{
    struct reason why;
    for (size_t i = 0; machine_holds(&job->m) && i < core->paths.count; i++) {
        const struct path *path = &core->paths.list[i];
        if (!path->cut || !keeps_on(&job->m, path->node[0]) || !keeps_on(&job->m, path->node[1]))
            continue;
        paths_describe(path, &why);
        struct machine_event event = core_event(core, MACHINE_EV_PATH);
        event.path.message = why.text;
        (void)core_apply(core, job, &event);
        return true;
    }
    return false;
}

/* True if workers on that node and those that were kept reach each other, as far as is known. */
static bool joins_kept(struct core *core, const struct core_job *job, const struct board *board,
                       const struct core_node *node)
{
    const struct core_node *before = NULL; /* ranks side by side share nodes */
    bool joins = true;
    CHECK(node);
    const bool there =
        machine_alive_rank(&job->m, MACHINE_ALL_RANKS); /* workers that it would join */
    for (uint32_t i = 0; there && joins && i < job->m.count; i++) {
        const struct core_node *kept =
            is_there(&job->m, i) ? core_node_at(core, job->m.ranks[i].node) : node;
        if (!kept || !kept->known || kept == node || kept == before)
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
    /* A worker that was slow there was left out: another one would be, too. */
    const bool goes_on_without = m->state == MACHINE_RUNNING && machine_is_short(m);
    for (size_t i = 0; i < board->count; i++) {
        struct place_node *node = &board->nodes[i];
        node->kept = board->heeds ? board->kept[i] : 0;
        node->excluded = shun_holds(&m->shunned, node->name, SHUN_PINS, wall) ||
                         (goes_on_without && shun_holds(&m->shunned, node->name, SHUN_SLOW, wall));
        node->avoided =
            ((avoid & AVOID_FAILED) && shun_holds(&m->shunned, node->name, SHUN_FAILED, wall)) ||
            ((avoid & AVOID_DRAINED) && core_node_drained(core, board->of[i])) ||
            ((avoid & AVOID_SUSPECT) &&
             (is_suspect(m, node->name) || shun_holds(&m->shunned, node->name, SHUN_DATA, wall))) ||
            !joins_kept(core, job, board, board->of[i]);
    }
}

static struct place_ask ask_of(const struct core *core, const struct core_job *job, uint32_t count)
{
    return (struct place_ask){ .count = count,
                               .device = job_device_word(job->spec->workers.device),
                               .apart = core->board->apart,
                               .apart_count = core->board->apart_count };
}

/* True if nodes in reach could take the job, if they reached each other. */
static bool fits_but_for_paths(const struct board *board, const struct place_ask *ask)
{
    struct place_ask any = *ask;
    any.apart_count = 0;
    return ask->apart_count > 0 && place_fits_in_reach(board->nodes, board->count, &any);
}

enum status core_find_slots(struct core *core, struct core_job *job, uint32_t count,
                            struct place_slot *slots, struct reason *reason)
{
    struct board *board = core->board;
    static const unsigned avoids[] = { AVOID_FAILED | AVOID_DRAINED | AVOID_SUSPECT,
                                       AVOID_FAILED | AVOID_DRAINED, AVOID_FAILED };
    const struct place_ask ask = ask_of(core, job, count);
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
    /* If a failure there would end the job, it waits for the path that keeps it from other
     * nodes. */
    if (job->m.cause.kind == MACHINE_FAULT_USER && fits_but_for_paths(board, &ask))
        there = false;
    return there ? ST_NOT_FOUND : st;
}

/* Returns for how many slots the job waits if there are none: rather few than some on nodes where
 * it failed. While workers are kept, which isn't long, it waits for all, as their own slots seem to
 * be free for it. */
static uint32_t count_awaited(const struct machine *m)
{
    const uint32_t need = machine_least(m);
    if (machine_holds(m))
        return machine_vacant(m);
    return need > 1 ? need : 1;
}

/* Finds slots for all workers that the job is to have, or for those with which it would go on:
 * rather fewer than on nodes where it failed. */
static enum status find_enough(struct core *core, struct core_job *job, struct place_slot *slots,
                               uint32_t *out_count, struct reason *reason)
{
    const uint32_t vacant = machine_vacant(&job->m), need = machine_least(&job->m);
    const uint32_t least = need > 1 ? need : 1;
    *out_count = vacant;
    if (vacant == 0) /* all go on where they are */
        return ST_OK;
    const enum status st = core_find_slots(core, job, vacant, slots, reason);
    if (st != ST_AGAIN && st != ST_UNREACHABLE && st != ST_NOT_FOUND)
        return st;
    /* The most that fit: bisected, as there may be a thousand. */
    struct reason unsaid;
    uint32_t fit = 0, low = least, high = vacant - 1;
    while (low <= high) {
        const uint32_t count = low + (high - low) / 2;
        if (core_find_slots(core, job, count, slots, &unsaid) == ST_OK) {
            fit = count;
            low = count + 1;
        } else {
            high = count - 1;
        }
    }
    *out_count = fit;
    if (fit > 0)
        return core_find_slots(core, job, fit, slots, &unsaid);
    const uint32_t awaited = count_awaited(&job->m); /* these may fit elsewhere later */
    return st == ST_NOT_FOUND && awaited < vacant
               ? core_find_slots(core, job, awaited, slots, reason)
               : st;
}

/* Keeps the nodes for the job that it may be on, once slots are free there. false: for now there
 * are none that it could wait for. */
static bool keep_nodes(struct core *core, const struct core_job *job, uint32_t count)
{
    struct board *board = core->board;
    const struct place_ask ask = ask_of(core, job, count);
    if (!core->awaits_nodes)
        return place_fits(board->nodes, board->count, &ask, board->kept);
    for (size_t i = 0; i < board->count; i++) { /* the job may fit with nodes that aren't back */
        if (strcmp(board->nodes[i].device, ask.device) == 0)
            board->kept[i] = PLACE_ALL;
    }
    return true;
}

/* Counts the workers of the job's next generation that hold no slot. */
static uint32_t count_lacking(const struct machine *m)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < m->count; i++)
        alive += machine_holds_slot(m, i);
    return alive < m->config.ranks ? m->config.ranks - alive : 0;
}

bool core_keep_place(struct core *core, struct core_job *job)
{
    struct board *board = core->board;
    const uint32_t count = count_lacking(&job->m);
    auto_free struct place_slot *slots = calloc((size_t)count + 1, sizeof *slots);
    struct reason unsaid;
    if (!slots)
        core_fail(core, ST_NO_MEMORY, "placing");
    if (!slots || count == 0 || !core_board_fill(core))
        return false;
    board->heeds = true;
    mark_board(core, job, board, AVOID_FAILED);
    const struct place_ask ask = ask_of(core, job, count);
    if (place_workers(board->nodes, board->count, &ask, slots, &unsaid) != ST_OK)
        return keep_nodes(core, job, count_awaited(&job->m));
    for (uint32_t i = 0; i < count; i++)
        board->kept[slots[i].node] += board->kept[slots[i].node] != PLACE_ALL;
    return true;
}

/* True if slots are free, but kept for others: that is what the job waits for. */
static bool is_behind(struct core *core, struct core_job *job, struct place_slot *slots,
                      enum status *st, struct reason *reason)
{
    uint32_t count;
    if (!core->board->heeds || !core->board->keeps[job->spec->workers.device])
        return false;
    core->board->heeds = false;
    *st = find_enough(core, job, slots, &count, reason);
    return *st == ST_OK;
}

/* Lets the job wait for slots that aren't free; jobs that come later wait for this one. */
static enum core_tried wait_for_slots(struct core *core, struct core_job *job,
                                      struct reason *reason)
{
    const bool kept = keep_nodes(core, job, count_awaited(&job->m));
    const struct place_ask ask = ask_of(core, job, count_awaited(&job->m));
    if (!kept && fits_but_for_paths(core->board, &ask))
        paths_want(&core->paths, core_now(core));
    core_explain_wait(core, job, reason);
    keep_waiting(core, job, reason->text);
    return kept ? CORE_TRIED_KEEPS : CORE_TRIED_WAITS;
}

enum core_tried core_try_place(struct core *core, struct core_job *job)
{
    auto_free struct place_slot *slots = calloc(job->m.config.ranks, sizeof *slots);
    struct reason reason = { "" };
    uint32_t count = 0;
    if (!slots)
        core_fail(core, ST_NO_MEMORY, "placing");
    if (!slots || !core_board_fill(core))
        return CORE_TRIED_CHANGED;
    if (core_paths_open(core,
                        job)) /* it is known within seconds whether its nodes reach each other */
        return core_keep_place(core, job) ? CORE_TRIED_KEEPS : CORE_TRIED_WAITS;
    if (part_kept(core, job) || core_part_spares(core, job)) {
        core->schedule_needed = true;
        return CORE_TRIED_CHANGED;
    }
    enum status st = find_enough(core, job, slots, &count, &reason);
    if (st == ST_OK) {
        core_place(core, job, MACHINE_EV_PLACED, slots, count);
        return CORE_TRIED_PLACED;
    }
    if (st == ST_NOT_FOUND) {
        struct machine_event event = core_event(core, MACHINE_EV_NOWHERE);
        (void)core_apply(core, job, &event);
        return CORE_TRIED_CHANGED;
    }
    if (is_behind(core, job, slots, &st, &reason)) {
        (void)keep_nodes(core, job, count_awaited(&job->m));
        return CORE_TRIED_BEHIND;
    }
    if (st == ST_UNREACHABLE) { /* slots are free, and may be of use to others */
        paths_want(&core->paths, core_now(core));
        keep_waiting(core, job, reason.text);
        return CORE_TRIED_WAITS;
    }
    return wait_for_slots(core, job, &reason);
}
