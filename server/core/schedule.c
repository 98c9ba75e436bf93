/*
 * Which job is placed next: in order of submission. A job that has to wait for slots holds back the
 * later ones, so that large jobs don't starve; one that could not run even on empty nodes doesn't.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "server/core/internal.h"
#include "server/core/place.h"

/* What is free, as place.h wants it: two entries for a node with CPU shares and GPUs. */
struct board {
    struct place_node nodes[PLACE_NODES_MAX];
    struct core_node *of[PLACE_NODES_MAX];
    size_t count;
    bool *used; /* all slots, node after node; owned */
};

/* The node's CPU shares and its GPUs; `used` is of all its slots. */
static void add_pools(struct board *board, struct core_node *node, const bool *used)
{
    struct place_node pool = { .name = node->name,
                               .device = node->device,
                               .slots = node->slots,
                               .used = used,
                               .ready = node->conn && !node->silent };
    CHECK(board->count + 2 <= PLACE_NODES_MAX);
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
    if (node->gpu_count == 0)
        return;
    pool.device = CORE_GPU_DEVICE;
    pool.first = node->slots;
    pool.slots = node->gpu_count;
    pool.used = used + node->slots;
    board->of[board->count] = node;
    board->nodes[board->count++] = pool;
}

static enum status make_board(struct core *core, struct board *board)
{
    size_t all = 0;
    for (size_t i = 0; i < core->node_count; i++)
        all += core->nodes[i]->slots + core->nodes[i]->gpu_count;
    board->count = 0;
    board->used = calloc(all ? all : 1, sizeof *board->used);
    if (!board->used)
        return ST_NO_MEMORY;
    bool *used = board->used;
    for (size_t i = 0; i < core->node_count; i++) {
        struct core_node *node = core->nodes[i];
        if (!node->known)
            continue;
        uint32_t slots = node->slots + node->gpu_count;
        add_pools(board, node, used);
        for (size_t j = 0; j < core->job_count; j++) {
            const struct machine *m = &core->jobs[j]->m;
            for (uint32_t r = 0; r < m->config.ranks; r++) {
                if (machine_holds_slot(m, r) && m->ranks[r].slot < slots &&
                    strcmp(m->ranks[r].node, node->name) == 0)
                    used[m->ranks[r].slot] = true;
            }
        }
        for (uint32_t g = 0; g < node->gpu_count; g++)
            used[node->slots + g] = used[node->slots + g] || node->gpus[g].problem[0] ||
                                    !core_gpu_serves(&node->gpus[g]);
        used += slots;
    }
    return ST_OK;
}

static void place_job(struct core *core, struct core_job *job, const struct board *board,
                      const struct place_slot *slots)
{
    uint32_t ranks = job->m.config.ranks;
    auto_free const char **names = calloc(ranks, sizeof *names);
    auto_free uint32_t *numbers = calloc(ranks, sizeof *numbers);
    if (!names || !numbers) {
        core_fail(core, ST_NO_MEMORY, "placing");
        return;
    }
    for (uint32_t i = 0; i < ranks; i++) {
        names[i] = board->of[slots[i].node]->name;
        numbers[i] = slots[i].slot;
    }
    char token[65];
    core_nonce(core, token, sizeof token);
    struct machine_event event = core_event(core, MACHINE_EV_PLACED);
    event.placed = (struct machine_placed){ names, numbers, token };
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

/* true: later jobs have to wait for this one. */
static bool try_place(struct core *core, struct core_job *job)
{
    struct board *board = malloc(sizeof *board);
    struct place_slot *slots = calloc(job->m.config.ranks, sizeof *slots);
    bool holds_back = false;
    struct reason reason = { "" };
    if (!board || !slots || make_board(core, board) != ST_OK) {
        core_fail(core, ST_NO_MEMORY, "placing");
        free(board);
        free(slots);
        return true;
    }
    struct place_ask ask = { .count = job->m.config.ranks,
                             .device = job_device_word(job->spec->workers.device),
                             .excluded = (const char(*)[LIMIT_NAME])job->m.excluded,
                             .excluded_count = job->m.excluded_count,
                             .avoided = (const char(*)[LIMIT_NAME])job->m.suspects,
                             .avoided_count = job->m.suspect_count };
    enum status st = place_workers(board->nodes, board->count, &ask, slots, &reason);
    if (st != ST_OK && ask.avoided_count > 0) {
        ask.avoided_count = 0;
        st = place_workers(board->nodes, board->count, &ask, slots, &reason);
    }
    if (st == ST_OK) {
        place_job(core, job, board, slots);
    } else {
        holds_back = place_capacity(board->nodes, board->count, &ask) >= ask.count;
        keep_waiting(core, job, reason.text);
    }
    free(board->used);
    free(board);
    free(slots);
    return holds_back;
}

static void schedule_jobs(struct core *core)
{
    const struct core_job *before = NULL;
    int64_t now = core_now(core);
    for (size_t i = 0; i < core->job_count && core->failed == ST_OK; i++) {
        struct core_job *job = core->jobs[i];
        if (!machine_wants_slots(&job->m, now))
            continue;
        if (core->draining_until != 0) {
            keep_waiting(core, job,
                         "the coordinator is going down; the job goes on when it is up again");
        } else if (before) {
            struct reason reason;
            reason_set(&reason, "waits behind %s (%s), which was submitted before", before->name,
                       before->id);
            keep_waiting(core, job, reason.text);
        } else if (try_place(core, job)) {
            before = job;
        }
    }
}

void core_schedule(struct core *core)
{
    for (int i = 0; i < 8 && core->schedule_needed && core->failed == ST_OK; i++) {
        core->schedule_needed = false;
        schedule_jobs(core);
    }
}
