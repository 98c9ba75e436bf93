/*
 * Which nodes run forward again in the backward pass, and the times of everything that runs.
 *
 * First the candidates. Selective: what computes little, and reads only what backward needs anyway
 * [choose_selective]. Full: the nodes of each segment between two cuts but its last, whose output
 * is what later nodes read [choose_segments]. The number of segments is the one whose arena is the
 * smallest [lay_out_full]. The segment before the loss is kept: its backward follows at once.
 *
 * Then, from the last node to the first, when a candidate has to have run again: before the first
 * backward that reads its output or what it saved, and with every later node that runs again and
 * reads it [find_uses]. Where nothing does, it isn't run again.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/plan/plan_internal.h"
#include "trainer/tape/tape_cuts.h"

static bool costs_little(enum op op)
{
    switch (op) {
    case OP_BATCH_NORM:
    case OP_RELU:
    case OP_MAX_POOL:
    case OP_GLOBAL_AVG_POOL:
    case OP_FLATTEN:
    case OP_GELU:
    case OP_DROPOUT:
    case OP_LAYER_NORM:
    case OP_EMBEDDING:
    case OP_GATED:
    case OP_ROTARY:
    case OP_SEQUENCE:
    case OP_SELECT:
        return true;
    case OP_CONV2D:
    case OP_LINEAR:
    case OP_ATTENTION:
    case OP_SOFTMAX_CROSS_ENTROPY:
    case OP_COUNT:
        return false;
    }
    return false;
}

/* Marks values that some backward reads: needed[value_count]. */
static void find_needed(const struct plan *plan, bool *needed)
{
    for (int n = plan->begin; n < plan->end; n++) {
        const struct tape_node *at = &plan->tape->nodes[n];
        const struct plan_node *node = &plan->nodes[n];
        if (!node->backward)
            continue;
        needed[at->out] = needed[at->out] || node->info.backward_needs_out;
        for (int i = 0; i < at->in_count; i++)
            needed[at->in[i]] = needed[at->in[i]] || node->info.backward_needs_in[i];
    }
}

/* Returns true if a value lies there until the backward pass anyway; inputs of the tape do. */
static bool is_kept(const struct plan *plan, const bool *needed, const bool *candidates, int value)
{
    const int producer = plan->tape->values[value].producer;
    if (producer < plan->begin)
        return true;
    return needed[value] && !candidates[producer];
}

/* A candidate that reads another would keep that one from being dropped: so none does. */
static enum status choose_selective(const struct plan *plan, bool *candidates)
{
    auto_free bool *needed = calloc((size_t)plan->tape->value_count, sizeof(*needed));
    if (needed == NULL)
        return ST_NO_MEMORY;
    find_needed(plan, needed);
    for (int n = plan->begin; n < plan->end; n++) {
        const struct tape_node *at = &plan->tape->nodes[n];
        candidates[n] = costs_little(at->op);
        for (int i = 0; i < at->in_count; i++)
            candidates[n] = candidates[n] && is_kept(plan, needed, candidates, at->in[i]);
    }
    return ST_OK;
}

static size_t kept_bytes(const struct plan *plan, int n)
{
    return plan->nodes[n].info.out.bytes + plan->nodes[n].info.saved_bytes;
}

/* Marks the nodes [begin, end) of a segment but the last. */
static void mark_segment(bool *candidates, int begin, int end)
{
    for (int n = begin; n < end - 1; n++)
        candidates[n] = true;
}

/* Cuts the nodes into about that many segments of like size. cuts: [nodes] a stage may begin. */
static void choose_segments(const struct plan *plan, const bool *cuts, int segments,
                            bool *candidates)
{
    size_t total = 0, gathered = 0;
    int begin = plan->begin;
    for (int n = plan->begin; n < plan->end; n++)
        total += kept_bytes(plan, n);
    memset(candidates, 0, (size_t)plan->tape->node_count * sizeof(*candidates));
    for (int n = plan->begin; n < plan->end - 1; n++) {
        gathered += kept_bytes(plan, n);
        if (!cuts[n + 1] || gathered < total / (size_t)segments)
            continue;
        mark_segment(candidates, begin, n + 1);
        begin = n + 1;
        gathered = 0;
    }
    if (plan->end < plan->tape->node_count)
        mark_segment(candidates, begin, plan->end);
}

static int later(int a, int b)
{
    return a > b ? a : b;
}

/* Returns the node before whose backward node n has to have run again, from what its readers say.
 * NO_NODE: none. */
static int find_use(const struct plan *plan, int n)
{
    const struct plan_node *node = &plan->nodes[n];
    const int out = plan->tape->nodes[n].out;
    int use = NO_NODE;
    if (node->backward && (node->info.saved_bytes > 0 || node->info.backward_needs_out))
        use = n;
    for (int r = n + 1; r < plan->end; r++) {
        const struct tape_node *reader = &plan->tape->nodes[r];
        for (int i = 0; i < reader->in_count; i++) {
            if (reader->in[i] != out)
                continue;
            use = later(use, plan->nodes[r].again_for);
            if (plan->nodes[r].backward && plan->nodes[r].info.backward_needs_in[i])
                use = later(use, r);
        }
    }
    return use;
}

static void find_uses(struct plan *plan, const bool *candidates)
{
    plan->sizes.flops_again = 0;
    for (int n = plan->tape->node_count - 1; n >= 0; n--) {
        struct plan_node *node = &plan->nodes[n];
        node->again_for = node->again_begin = NO_NODE;
        if (n < plan->begin || n >= plan->end || !candidates[n])
            continue;
        CHECK(!node->info.din_in_forward);
        node->again_for = find_use(plan, n);
        if (node->again_for == NO_NODE)
            continue;
        plan->nodes[node->again_for].again_begin = n;
        plan->sizes.flops_again += node->info.flops_forward;
    }
}

static void set_times(struct plan *plan)
{
    int time = plan->tape->node_count;
    for (int n = plan->tape->node_count - 1; n >= 0; n--) {
        const int first = plan->nodes[n].again_begin;
        for (int k = first; first != NO_NODE && k <= n; k++) {
            if (plan->nodes[k].again_for == n)
                plan->nodes[k].again_time = time++;
        }
        plan->nodes[n].backward_time = time++;
    }
    for (int n = plan->tape->node_count - 1; n >= 0; n--)
        plan->nodes[n].params_time = time++;
}

static enum status lay_out(struct plan *plan, const bool *candidates)
{
    find_uses(plan, candidates);
    set_times(plan);
    return plan_memory_lay_out(plan);
}

/* Tries numbers of segments, and takes the one with the smallest arena; of two such the smaller. */
static enum status lay_out_full(struct plan *plan, bool *candidates)
{
    static const int numbers[] = { 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64 };
    const int count = (int)(sizeof(numbers) / sizeof(numbers[0]));
    auto_free bool *cuts = calloc((size_t)plan->tape->node_count, sizeof(*cuts));
    if (cuts == NULL)
        return ST_NO_MEMORY;
    for (int n = plan->begin + 1; n < plan->end; n++)
        cuts[n] = tape_is_cut(plan->tape, n);
    int best = 0;
    size_t least = SIZE_MAX;
    for (int i = 0; i < count; i++) {
        choose_segments(plan, cuts, numbers[i], candidates);
        enum status st = lay_out(plan, candidates);
        if (st != ST_OK)
            return st;
        if (plan->sizes.arena_bytes < least) {
            least = plan->sizes.arena_bytes;
            best = i;
        }
    }
    choose_segments(plan, cuts, numbers[best], candidates);
    return lay_out(plan, candidates);
}

enum status plan_recompute_lay_out(struct plan *plan)
{
    auto_free bool *candidates = calloc((size_t)plan->tape->node_count, sizeof(*candidates));
    enum status st = ST_OK;
    if (candidates == NULL)
        return ST_NO_MEMORY;
    if (!plan->options.training)
        return lay_out(plan, candidates);
    switch (plan->options.recompute) {
    case PLAN_RECOMPUTE_NONE:
        break;
    case PLAN_RECOMPUTE_SELECTIVE:
        st = choose_selective(plan, candidates);
        break;
    case PLAN_RECOMPUTE_FULL:
        return lay_out_full(plan, candidates);
    }
    return st == ST_OK ? lay_out(plan, candidates) : st;
}
