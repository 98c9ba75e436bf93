/*
 * Slots for one job: which are free, from which nodes it keeps away, and what becomes of it if
 * there are none. queue.c says which job comes first.
 */
#include "server/coord/queue/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "server/coord/apply.h"
#include "server/coord/base.h"
#include "server/coord/fleet_tables.h"
#include "server/coord/node_health.h"
#include "server/coord/queue/waiting.h"

/* Returns how many failures weigh, as a whole number: old ones make no difference between nodes. */
static uint32_t level_of(const struct coord *coord, const struct coord_node *node)
{
    return (uint32_t)(fleet_penalty(&node->record, coord_now(coord)) + 0.5);
}

/* Counts the slots from first to end - 1 that nobody gives back: of broken GPUs, or held by a
 * process that doesn't die. */
static uint32_t count_stuck(const struct coord *coord, const struct coord_node *node,
                            uint32_t first, uint32_t end)
{
    uint32_t count = 0;
    for (size_t i = 0; i < node->stray_count; i++) {
        const struct coord_orphan *stray = &node->strays[i];
        count += stray->slot >= first && stray->slot < end &&
                 coord_now(coord) - stray->since >= COORD_UNDYING_MS;
    }
    for (uint32_t i = node->slots; i < end; i++) {
        const struct coord_gpu *gpu = &node->gpus[i - node->slots];
        count += gpu->problem[0] || !coord_gpu_serves(gpu);
    }
    return count < end - first ? count : end - first; /* both of one slot, it may be */
}

/* Adds the node's CPU shares and its GPUs. */
static void add_pools(const struct coord *coord, struct board *board, struct coord_node *node)
{
    struct place_node pool = { .name = node->name,
                               .device = node->device,
                               .slots = node->slots,
                               .used = node->used,
                               .stuck = count_stuck(coord, node, 0, node->slots),
                               .host = node->host,
                               .net = node->net,
                               .ports = node->ports,
                               .ready = node->conn != NULL && !node->silent &&
                                        !coord_node_held(coord, node) &&
                                        node->suspicion.state == SUSPICION_NONE,
                               .leaving = !coord_node_takes(node),
                               .reachable = coord_node_in_reach(coord, node) && !node->drains &&
                                            node->stay != COORD_LEFT,
                               .penalty = level_of(coord, node) };
    CHECK(board->count + 2 <= PLACE_NODES_MAX);
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
    if (node->gpu_count == 0)
        return;
    pool.device = COORD_GPU_DEVICE;
    pool.first = node->slots;
    pool.slots = node->gpu_count;
    pool.used = node->used + node->slots;
    pool.stuck = count_stuck(coord, node, node->slots, node->slots + node->gpu_count);
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
}

/* Adds the pairs of two nodes' pools, CPU shares with CPU shares and GPUs with GPUs: a job has
 * slots of one kind. */
static void add_apart(struct board *board, const struct netpath *path)
{
    for (uint32_t i = 0; path->cut && i < board->count; i++) {
        const struct place_node *a = &board->nodes[i];
        for (uint32_t j = 0; strcmp(a->name, path->node[0]) == 0 && j < board->count; j++) {
            const struct place_node *b = &board->nodes[j];
            if (strcmp(b->name, path->node[1]) != 0 || strcmp(a->device, b->device) != 0)
                continue;
            CHECK(board->apart_count < sizeof(board->apart) / sizeof(board->apart[0]));
            board->apart[board->apart_count++] = (struct place_pair){ i, j };
        }
    }
}

/* Slots in use are kept node by node, and counted anew only where something changed. */
bool coord_board_fill(struct coord *coord)
{
    if (coord->board->filled)
        return true;
    coord->board->count = 0;
    for (size_t i = 0; i < coord->node_count; i++) {
        struct coord_node *node = coord->nodes[i];
        if (!node->known)
            continue;
        if (!coord_node_count(coord, node))
            return false;
        add_pools(coord, coord->board, node);
    }
    coord->board->apart_count = 0;
    for (size_t i = 0; i < coord->netpaths.count; i++)
        add_apart(coord->board, &coord->netpaths.list[i]);
    coord->board->filled = true;
    return true;
}

void coord_place(struct coord *coord, struct coord_job *job, enum fsm_event_kind kind,
                 const struct place_slot *slots, uint32_t count)
{
    struct board *board = coord->board;
    auto_free const char **names = calloc((size_t)count + 1, sizeof(*names));
    auto_free uint32_t *numbers = calloc((size_t)count + 1, sizeof(*numbers));
    if (names == NULL || numbers == NULL) {
        coord_fail(coord, ST_NO_MEMORY, "placing");
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        names[i] = board->of[slots[i].node]->name;
        numbers[i] = slots[i].slot;
    }
    char token[65];
    coord_nonce(coord, token, sizeof(token));
    if (coord->options.seal != NULL)
        coord->options.seal(coord->options.seal_arg, token);
    struct fsm_event event = coord_event(coord, kind);
    event.placed = (struct fsm_placed){ names, numbers, count, token };
    board->filled = false;
    (void)coord_apply(coord, job, &event);
}

static void keep_waiting(struct coord *coord, struct coord_job *job, const char *reason)
{
    if (strcmp(job->m.reason, reason) == 0)
        return;
    struct fsm_event event = coord_event(coord, FSM_EV_WAITING);
    event.waiting.reason = reason;
    (void)coord_apply(coord, job, &event);
}

/* The kinds of nodes that a job is kept away from. */
enum avoid {
    AVOID_FAILED = 1,  /* the job failed there */
    AVOID_DRAINED = 2, /* other jobs failed there */
    AVOID_SUSPECT = 4, /* reads damage where there is none, or other data than the job began with */
};

static bool is_suspect(const struct fsm *m, const char *node)
{
    bool found = false;
    for (uint32_t i = 0; i < m->suspect_count; i++)
        found = found || strcmp(m->suspects[i], node) == 0;
    return found;
}

static bool are_apart(const struct board *board, const struct coord_node *a,
                      const struct coord_node *b)
{
    bool apart = false;
    for (size_t i = 0; i < board->apart_count && !apart; i++) {
        const struct coord_node *one = board->of[board->apart[i].a];
        const struct coord_node *other = board->of[board->apart[i].b];
        apart = (one == a && other == b) || (one == b && other == a);
    }
    return apart;
}

/* True if the worker has a slot, or is to start there: the others join it. */
static bool is_there(const struct fsm *m, uint32_t rank)
{
    return fsm_holds_slot(m, rank) && !(fsm_is_spare(m, rank) && m->ranks[rank].ended);
}

/* Returns a node where a worker is that the spare can't reach; NULL: there is none. */
static const char *far_from(const struct coord *coord, const struct fsm *m, uint32_t spare)
{
    const char *found = NULL;
    CHECK(spare == 0 || m->ranks != NULL);
    for (uint32_t i = 0; i < spare && found == NULL; i++) {
        if (is_there(m, i) && coord_nodes_apart(coord, m->ranks[i].node, m->ranks[spare].node))
            found = m->ranks[i].node;
    }
    return found;
}

bool coord_part_spares(struct coord *coord, struct coord_job *job)
{
    bool any = false;
    for (uint32_t i = job->m.size; coord->netpaths.count > 0 && i < job->m.count; i++) {
        const char *other = is_there(&job->m, i) ? far_from(coord, &job->m, i) : NULL;
        if (other == NULL)
            continue;
        struct reason why;
        struct fsm_event event = coord_event_of(coord, FSM_EV_LEAVING, job->m.generation, i);
        reason_set(&why, "its node and %.100s can't reach each other", other);
        event.leaving.why = why.text;
        (void)coord_apply(coord, job, &event);
        any = true;
    }
    return any;
}

static bool keeps_on(const struct fsm *m, const char *node)
{
    bool keeps = false;
    for (uint32_t i = 0; i < m->size && !keeps; i++)
        keeps = !m->ranks[i].gone && strcmp(m->ranks[i].node, node) == 0;
    return keeps;
}

/* Parts kept workers across a broken path. It broke while they got on, or was mended since: nobody
 * knows. In another generation they would meet it again. */
static bool part_kept(struct coord *coord, struct coord_job *job)
{
    struct reason why;
    for (size_t i = 0; fsm_has_waiting(&job->m) && i < coord->netpaths.count; i++) {
        const struct netpath *path = &coord->netpaths.list[i];
        if (!path->cut || !keeps_on(&job->m, path->node[0]) || !keeps_on(&job->m, path->node[1]))
            continue;
        netpaths_describe(path, &why);
        struct fsm_event event = coord_event(coord, FSM_EV_PATH);
        event.path.message = why.text;
        (void)coord_apply(coord, job, &event);
        return true;
    }
    return false;
}

/* True if workers on that node and those that were kept reach each other, as far as is known. */
static bool joins_kept(struct coord *coord, const struct coord_job *job, const struct board *board,
                       const struct coord_node *node)
{
    const struct coord_node *before = NULL; /* ranks side by side share nodes */
    bool joins = true;
    CHECK(node != NULL);
    const bool there = fsm_alive_rank(&job->m, FSM_ALL_RANKS); /* workers that it would join */
    for (uint32_t i = 0; there && joins && i < job->m.count; i++) {
        const struct coord_node *kept =
            is_there(&job->m, i) ? coord_node_at(coord, job->m.ranks[i].node) : node;
        if (kept == NULL || !kept->known || kept == node || kept == before)
            continue;
        before = kept;
        joins = strcmp(kept->net, node->net) == 0 && !are_apart(board, kept, node);
    }
    return joins;
}

static void mark_board(struct coord *coord, const struct coord_job *job, struct board *board,
                       unsigned avoid)
{
    const struct fsm *m = &job->m;
    int64_t wall = clock_wall_ms(coord->options.clock);
    /* A worker that was slow there was left out: another one would be, too. */
    const bool goes_on_without = m->state == FSM_RUNNING && fsm_lacks_workers(m);
    for (size_t i = 0; i < board->count; i++) {
        struct place_node *node = &board->nodes[i];
        node->kept = board->heeds ? board->kept[i] : 0;
        node->excluded =
            exclusion_holds(&m->exclusions, node->name, EXCLUSION_PINS, wall) ||
            (goes_on_without && exclusion_holds(&m->exclusions, node->name, EXCLUSION_SLOW, wall));
        node->avoided = ((avoid & AVOID_FAILED) &&
                         exclusion_holds(&m->exclusions, node->name, EXCLUSION_FAILED, wall)) ||
                        ((avoid & AVOID_DRAINED) && coord_node_drained(coord, board->of[i])) ||
                        ((avoid & AVOID_SUSPECT) &&
                         (is_suspect(m, node->name) ||
                          exclusion_holds(&m->exclusions, node->name, EXCLUSION_DATA, wall))) ||
                        !joins_kept(coord, job, board, board->of[i]);
    }
}

static struct place_ask ask_of(const struct coord *coord, const struct coord_job *job,
                               uint32_t count)
{
    return (struct place_ask){ .count = count,
                               .device = jobspec_device_word(job->spec->workers.device),
                               .apart = coord->board->apart,
                               .apart_count = coord->board->apart_count };
}

/* True if nodes in reach could take the job, if they reached each other. */
static bool fits_but_for_paths(const struct board *board, const struct place_ask *ask)
{
    struct place_ask any = *ask;
    any.apart_count = 0;
    return ask->apart_count > 0 && place_fits_in_reach(board->nodes, board->count, &any);
}

enum status coord_find_slots(struct coord *coord, struct coord_job *job, uint32_t count,
                             struct place_slot *slots, struct reason *reason)
{
    struct board *board = coord->board;
    static const unsigned avoids[] = { AVOID_FAILED | AVOID_DRAINED | AVOID_SUSPECT,
                                       AVOID_FAILED | AVOID_DRAINED, AVOID_FAILED };
    const struct place_ask ask = ask_of(coord, job, count);
    enum status st = ST_AGAIN;
    for (size_t i = 0; i < sizeof(avoids) / sizeof(avoids[0]); i++) {
        mark_board(coord, job, board, avoids[i]);
        st = place_workers(board->nodes, board->count, &ask, slots, reason);
        bool could = place_fits_in_reach(board->nodes, board->count, &ask);
        if (st == ST_OK || (could && !(avoids[i] & AVOID_SUSPECT)))
            return st;
    }
    if (exclusion_count(&job->m.exclusions, EXCLUSION_FAILED) == 0 ||
        coord_now(coord) < coord->expects_until)
        return st;
    mark_board(coord, job, board, 0);
    bool there = place_fits_in_reach(board->nodes, board->count, &ask);
    mark_board(coord, job, board, AVOID_FAILED);
    /* If a failure there would end the job, it waits for the path that keeps it from other
     * nodes. */
    if (job->m.cause.kind == FSM_FAULT_USER && fits_but_for_paths(board, &ask))
        there = false;
    return there ? ST_NOT_FOUND : st;
}

/* Returns for how many slots the job waits if there are none: rather few than some on nodes where
 * it failed. While workers are kept, which isn't long, it waits for all, as their own slots seem to
 * be free for it. */
static uint32_t count_awaited(const struct fsm *m)
{
    const uint32_t need = fsm_least(m);
    if (fsm_has_waiting(m))
        return fsm_vacant_ranks(m);
    return need > 1 ? need : 1;
}

/* Finds slots for all workers that the job is to have, or for those with which it would go on:
 * rather fewer than on nodes where it failed. */
static enum status find_enough(struct coord *coord, struct coord_job *job, struct place_slot *slots,
                               uint32_t *out_count, struct reason *reason)
{
    const uint32_t vacant = fsm_vacant_ranks(&job->m), need = fsm_least(&job->m);
    const uint32_t least = need > 1 ? need : 1;
    *out_count = vacant;
    if (vacant == 0) /* all go on where they are */
        return ST_OK;
    const enum status st = coord_find_slots(coord, job, vacant, slots, reason);
    if (st != ST_AGAIN && st != ST_UNREACHABLE && st != ST_NOT_FOUND)
        return st;
    /* The most that fit: bisected, as there may be a thousand. */
    struct reason unsaid;
    uint32_t fit = 0, low = least, high = vacant - 1;
    while (low <= high) {
        const uint32_t count = low + (high - low) / 2;
        if (coord_find_slots(coord, job, count, slots, &unsaid) == ST_OK) {
            fit = count;
            low = count + 1;
        } else {
            high = count - 1;
        }
    }
    *out_count = fit;
    if (fit > 0)
        return coord_find_slots(coord, job, fit, slots, &unsaid);
    const uint32_t awaited = count_awaited(&job->m); /* these may fit elsewhere later */
    return st == ST_NOT_FOUND && awaited < vacant
               ? coord_find_slots(coord, job, awaited, slots, reason)
               : st;
}

/* Keeps the nodes for the job that it may be on, once slots are free there. false: for now there
 * are none that it could wait for. */
static bool keep_nodes(struct coord *coord, const struct coord_job *job, uint32_t count)
{
    struct board *board = coord->board;
    const struct place_ask ask = ask_of(coord, job, count);
    if (!coord->awaits_nodes)
        return place_fits(board->nodes, board->count, &ask, board->kept);
    for (size_t i = 0; i < board->count; i++) { /* the job may fit with nodes that aren't back */
        if (strcmp(board->nodes[i].device, ask.device) == 0)
            board->kept[i] = PLACE_ALL;
    }
    return true;
}

/* Counts the workers of the job's next generation that hold no slot. */
static uint32_t count_lacking(const struct fsm *m)
{
    uint32_t alive = 0;
    for (uint32_t i = 0; i < m->count; i++)
        alive += fsm_holds_slot(m, i);
    return alive < m->config.ranks ? m->config.ranks - alive : 0;
}

bool coord_keep_place(struct coord *coord, struct coord_job *job)
{
    struct board *board = coord->board;
    const uint32_t count = count_lacking(&job->m);
    auto_free struct place_slot *slots = calloc((size_t)count + 1, sizeof(*slots));
    struct reason unsaid;
    if (slots == NULL)
        coord_fail(coord, ST_NO_MEMORY, "placing");
    if (slots == NULL || count == 0 || !coord_board_fill(coord))
        return false;
    board->heeds = true;
    mark_board(coord, job, board, AVOID_FAILED);
    const struct place_ask ask = ask_of(coord, job, count);
    if (place_workers(board->nodes, board->count, &ask, slots, &unsaid) != ST_OK)
        return keep_nodes(coord, job, count_awaited(&job->m));
    for (uint32_t i = 0; i < count; i++)
        board->kept[slots[i].node] += board->kept[slots[i].node] != PLACE_ALL;
    return true;
}

/* True if slots are free, but kept for others: that is what the job waits for. */
static bool is_behind(struct coord *coord, struct coord_job *job, struct place_slot *slots,
                      enum status *st, struct reason *reason)
{
    uint32_t count;
    if (!coord->board->heeds || coord->board->keeps[job->spec->workers.device] == NULL)
        return false;
    coord->board->heeds = false;
    *st = find_enough(coord, job, slots, &count, reason);
    return *st == ST_OK;
}

/* Lets the job wait for slots that aren't free; jobs that come later wait for this one. */
static enum coord_tried wait_for_slots(struct coord *coord, struct coord_job *job,
                                       struct reason *reason)
{
    const bool kept = keep_nodes(coord, job, count_awaited(&job->m));
    const struct place_ask ask = ask_of(coord, job, count_awaited(&job->m));
    if (!kept && fits_but_for_paths(coord->board, &ask))
        netpaths_want(&coord->netpaths, coord_now(coord));
    coord_explain_wait(coord, job, reason);
    keep_waiting(coord, job, reason->text);
    return kept ? COORD_TRIED_KEEPS : COORD_TRIED_WAITS;
}

enum coord_tried coord_try_place(struct coord *coord, struct coord_job *job)
{
    auto_free struct place_slot *slots = calloc(job->m.config.ranks, sizeof(*slots));
    struct reason reason = { "" };
    uint32_t count = 0;
    if (slots == NULL)
        coord_fail(coord, ST_NO_MEMORY, "placing");
    if (slots == NULL || !coord_board_fill(coord))
        return COORD_TRIED_CHANGED;
    if (coord_netpaths_open(
            coord, job)) /* it is known within seconds whether its nodes reach each other */
        return coord_keep_place(coord, job) ? COORD_TRIED_KEEPS : COORD_TRIED_WAITS;
    if (part_kept(coord, job) || coord_part_spares(coord, job)) {
        coord->schedule_needed = true;
        return COORD_TRIED_CHANGED;
    }
    enum status st = find_enough(coord, job, slots, &count, &reason);
    if (st == ST_OK) {
        coord_place(coord, job, FSM_EV_PLACED, slots, count);
        return COORD_TRIED_PLACED;
    }
    if (st == ST_NOT_FOUND) {
        struct fsm_event event = coord_event(coord, FSM_EV_NOWHERE);
        (void)coord_apply(coord, job, &event);
        return COORD_TRIED_CHANGED;
    }
    if (is_behind(coord, job, slots, &st, &reason)) {
        (void)keep_nodes(coord, job, count_awaited(&job->m));
        return COORD_TRIED_BEHIND;
    }
    if (st == ST_UNREACHABLE) { /* slots are free, and may be of use to others */
        netpaths_want(&coord->netpaths, coord_now(coord));
        keep_waiting(coord, job, reason.text);
        return COORD_TRIED_WAITS;
    }
    return wait_for_slots(coord, job, &reason);
}
