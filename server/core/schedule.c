/*
 * Which job is placed next: in order of submission. A job that has to wait for slots holds back the
 * later ones, so that large jobs don't starve; one that could not run even on empty nodes doesn't.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "server/core/internal.h"
#include "server/fleet/place.h"

/* What is free, as server/fleet/place.h wants it: two entries for a node with CPU shares and GPUs.
 */
struct board {
    struct place_node nodes[PLACE_NODES_MAX];
    struct core_node *of[PLACE_NODES_MAX];
    size_t count;
    struct place_pair
        apart[4 * PATHS_MAX]; /* that can't reach each other; two pools of a node at most */
    size_t apart_count;
};

/* Whole failures that weigh: old ones make no difference between nodes. */
static uint32_t level_of(const struct core *core, const struct core_node *node)
{
    return (uint32_t)(fleet_penalty(&node->record, core_now(core)) + 0.5);
}

/* The node's CPU shares and its GPUs. */
static void add_pools(const struct core *core, struct board *board, struct core_node *node)
{
    struct place_node pool = { .name = node->name,
                               .device = node->device,
                               .slots = node->slots,
                               .used = node->used,
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
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
}

/* CPU shares of the one with those of the other, GPUs with GPUs: a job has slots of one kind. */
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

/* Slots in use are kept node by node: only where something changed they are counted anew. */
static bool fill_board(struct core *core)
{
    if (!core->board)
        core->board = malloc(sizeof *core->board);
    if (!core->board) {
        core_fail(core, ST_NO_MEMORY, "placing");
        return false;
    }
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
    return true;
}

/* kind: MACHINE_EV_PLACED, MACHINE_EV_SPARE */
static void place_job(struct core *core, struct core_job *job, enum machine_event_kind kind,
                      const struct place_slot *slots, uint32_t count)
{
    const struct board *board = core->board;
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

/* From which nodes a job is kept away. */
enum avoid {
    AVOID_FAILED = 1,  /* it failed there */
    AVOID_DRAINED = 2, /* others did */
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

/* It has a slot, or is to start there: the others join it. */
static bool is_there(const struct machine *m, uint32_t rank)
{
    return machine_holds_slot(m, rank) && !(machine_is_spare(m, rank) && m->ranks[rank].ended);
}

/* That is there, and that the spare can't reach; NULL: there is none. */
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

/* The path broke while they got on, or was mended since: nobody knows. In another generation they
 * would meet it again. */
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

/* Workers there and those that were kept reach each other, as far as is known. */
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
        if (!kept || kept == node || kept == before)
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

/* Nodes in reach could take it, if they reached each other. */
static bool fits_but_for_paths(const struct board *board, const struct place_ask *ask)
{
    struct place_ask any = *ask;
    any.apart_count = 0;
    return ask->apart_count > 0 && place_fits_in_reach(board->nodes, board->count, &any);
}

/*
 * Slots of a job, or why there are none. A suspected node is taken where others have no room now; a
 * drained one, or one where this very job failed, only where no other could ever take the job.
 * ST_NOT_FOUND: it could run nowhere but where it failed.
 */
static enum status find_slots(struct core *core, struct core_job *job, uint32_t count,
                              struct place_slot *slots, struct reason *reason)
{
    struct board *board = core->board;
    static const unsigned avoids[] = { AVOID_FAILED | AVOID_DRAINED | AVOID_SUSPECT,
                                       AVOID_FAILED | AVOID_DRAINED, AVOID_FAILED };
    const struct place_ask ask = { .count = count,
                                   .device = job_device_word(job->spec->workers.device),
                                   .apart = board->apart,
                                   .apart_count = board->apart_count };
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
    /* What would end the job there waits for the path that keeps it from other nodes. */
    if (job->m.cause.kind == MACHINE_FAULT_USER && fits_but_for_paths(board, &ask))
        there = false;
    return there ? ST_NOT_FOUND : st;
}

/* What keep_waiting is told of nodes that could take the job, but for what happened there. */
static void add_failed(const struct core_job *job, struct reason *reason)
{
    const struct machine_fault *cause = &job->m.cause;
    const bool told = cause->kind == MACHINE_FAULT_USER && cause->of_node;
    struct reason before = *reason, where;
    if (shun_count(&job->m.shunned, SHUN_FAILED) == 0)
        return;
    shun_name(&job->m.shunned, SHUN_FAILED, &where);
    reason_set(reason, "%.200s; it keeps away from where it failed, %.150s%s%.150s", before.text,
               where.text, told ? ": " : "", told ? cause->message : "");
}

/* What there is not enough of: some may be held by processes that were killed and don't die. */
static void note_strays(struct core *core, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < core->node_count; i++)
        count += core->nodes[i]->silent ? 0 : core->nodes[i]->stray_count;
    if (count == 0)
        return;
    struct reason all;
    reason_set(&all, "%.400s; %zu slot%s held by a process that was killed and is not gone",
               reason->text, count, count == 1 ? " is" : "s are each");
    *reason = all;
}

/* Nor do nodes count that leave, have just left, or are kept free. */
static void note_leaving(const struct core *core, struct reason *reason)
{
    size_t count = 0;
    for (size_t i = 0; i < core->node_count; i++)
        count += !core_node_takes(core->nodes[i]) && core_node_in_reach(core, core->nodes[i]);
    if (count == 0)
        return;
    struct reason before = *reason;
    reason_set(reason, "%.400s; %zu %s drained or %s left", before.text, count,
               count == 1 ? "node is" : "nodes are", count == 1 ? "has" : "have");
}

/* For how many slots it waits where there are none: rather for few than for some where it failed.
 * While workers are kept, which isn't long, for all: their own slots seem to be free for it. */
static uint32_t count_awaited(const struct machine *m)
{
    const uint32_t need = machine_least(m);
    if (machine_holds(m))
        return machine_vacant(m);
    return need > 1 ? need : 1;
}

/* For all that it is to have, or with which it would go on: rather fewer than where it failed. */
static enum status find_enough(struct core *core, struct core_job *job, struct place_slot *slots,
                               uint32_t *out_count, struct reason *reason)
{
    const uint32_t vacant = machine_vacant(&job->m), need = machine_least(&job->m);
    const uint32_t least = need > 1 ? need : 1;
    *out_count = vacant;
    if (vacant == 0) /* all go on where they are */
        return ST_OK;
    const enum status st = find_slots(core, job, vacant, slots, reason);
    if (st != ST_AGAIN && st != ST_UNREACHABLE && st != ST_NOT_FOUND)
        return st;
    /* The most that fit: bisected, as there may be a thousand. */
    struct reason unsaid;
    uint32_t fit = 0, low = least, high = vacant - 1;
    while (low <= high) {
        const uint32_t count = low + (high - low) / 2;
        if (find_slots(core, job, count, slots, &unsaid) == ST_OK) {
            fit = count;
            low = count + 1;
        } else {
            high = count - 1;
        }
    }
    *out_count = fit;
    if (fit > 0)
        return find_slots(core, job, fit, slots, &unsaid);
    const uint32_t awaited = count_awaited(&job->m); /* they may fit elsewhere later */
    return st == ST_NOT_FOUND && awaited < vacant ? find_slots(core, job, awaited, slots, reason)
                                                  : st;
}

/* true: later jobs have to wait for this one. */
static bool try_place(struct core *core, struct core_job *job)
{
    auto_free struct place_slot *slots = calloc(job->m.config.ranks, sizeof *slots);
    struct reason reason = { "" };
    uint32_t count = 0;
    if (!slots)
        core_fail(core, ST_NO_MEMORY, "placing");
    if (!slots || !fill_board(core))
        return true;
    if (core_paths_open(core, job))
        return false; /* it is known within seconds whether its nodes reach each other */
    if (part_kept(core, job) || core_part_spares(core, job)) {
        core->schedule_needed = true;
        return false;
    }
    enum status st = find_enough(core, job, slots, &count, &reason);
    if (st == ST_OK) {
        place_job(core, job, MACHINE_EV_PLACED, slots, count);
        return false;
    }
    if (st == ST_NOT_FOUND) {
        struct machine_event event = core_event(core, MACHINE_EV_NOWHERE);
        (void)core_apply(core, job, &event);
        return false;
    }
    if (st == ST_UNREACHABLE) { /* slots are free, and may be of use to others */
        paths_want(&core->paths, core_now(core));
        keep_waiting(core, job, reason.text);
        return false;
    }
    const struct place_ask ask = { .count = count_awaited(&job->m),
                                   .device = job_device_word(job->spec->workers.device),
                                   .apart = core->board->apart,
                                   .apart_count = core->board->apart_count };
    const bool holds_back = place_fits(core->board->nodes, core->board->count, &ask);
    if (!holds_back && fits_but_for_paths(core->board, &ask))
        paths_want(&core->paths, core_now(core));
    add_failed(job, &reason);
    note_strays(core, &reason);
    note_leaving(core, &reason);
    keep_waiting(core, job, reason.text);
    return holds_back;
}

/*
 * One worker more for each job that wants some, where a slot is left: what a job is short of before
 * the jobs that were submitted later, spares after all that wait.
 */
static void place_spares(struct core *core)
{
    for (size_t i = 0; i < core->hungry.count && core->failed == ST_OK;) {
        struct core_job *job = core->hungry.list[i].value;
        const struct core_job *first = core->holds_back;
        const bool waits = first && !(machine_is_short(&job->m) && job->seq < first->seq);
        struct place_slot slot;
        struct reason unsaid;
        if (waits || !machine_wants_spare(&job->m, core_now(core)) || core_paths_open(core, job)) {
            i++;
            continue;
        }
        if (!fill_board(core))
            return;
        if (find_slots(core, job, 1, &slot, &unsaid) == ST_OK) {
            place_job(core, job, MACHINE_EV_SPARE, &slot, 1);
            core->schedule_needed = true; /* it may want another one */
        }
        i += i < core->hungry.count && core->hungry.list[i].value == job;
    }
}

/* Those behind the one that holds them back are not looked at: core_reason says why they wait. */
static void schedule_jobs(struct core *core)
{
    const struct core_job *holds_back = NULL;
    const int64_t now = core_now(core);
    core->looked_at = now;
    if (core->draining_until != 0)
        return;
    for (size_t i = 0; i < core->queue.count && !holds_back && core->failed == ST_OK;) {
        struct core_job *job = core->queue.list[i].value;
        /* That it waits may have been the end of its waiting. */
        if (machine_wants_slots(&job->m, now) && try_place(core, job) && core_job_queues(job))
            holds_back = job;
        i += i < core->queue.count && core->queue.list[i].value == job; /* else it is placed */
    }
    if (holds_back != core->holds_back)
        core_queue_moved(core, holds_back);
    place_spares(core);
}

/* The job that was the last to fail there; not within the turn that found it out. */
static void tell_drained(struct core *core)
{
    if (!core->drained_untold)
        return;
    core->drained_untold = false;
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        const struct fleet_record *record = &node->record;
        if (!record->drained || node->drain_told)
            continue;
        node->drain_told = true;
        struct core_job *job = core_job_at(core, record->faults[record->count - 1].job);
        struct reason text;
        reason_set(&text,
                   "node %s is drained: this is one of %u jobs that failed there; it takes jobs "
                   "again when that is %d minutes ago, or its machine was started anew",
                   node->name, record->count, (int)(FLEET_FORGET_MS / 60000));
        if (job)
            core_note(core, job, "node", text.text);
    }
}

void core_schedule(struct core *core)
{
    tell_drained(core);
    for (int i = 0; i < 8 && core->schedule_needed && core->failed == ST_OK; i++) {
        core->schedule_needed = false;
        schedule_jobs(core);
    }
    if (core_outbox_full(core))
        (void)core_commit(core); /* that it failed, core_failed says */
}
