/*
 * Places of everything of a plan: one arena, whose bytes are used again and again.
 *
 * First the regions, with the times of their lives. Forward, node by node: its output, what it
 * saves for backward, its scratch [forward_regions]. Then backward, from the last node on. The
 * gradients of a node's output are brought to the form that it takes [take_douts]. Those of its
 * inputs get a place [place_dins], where the nodes that made the inputs will find them.
 *
 * Where backward is split, what a node with parameters reads is kept until its second half
 * [last_read]. Of a node that runs forward again, what the first run wrote lives as long as forward
 * reads it; what the second one writes has regions of its own [again_regions].
 *
 * Then the places [place_regions]: the largest region first, each at the lowest offset that is free
 * for its whole life.
 *
 * For a stage this is done for its own nodes. Before, all later nodes go backward in the same way,
 * to see which gradients they will leave [find_arriving], and are forgotten again.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/plan/plan_internal.h"

static int add_region(struct plan *plan, size_t bytes, int begin, int end)
{
    if (bytes == 0)
        return NO_REGION;
    CHECK(plan->region_count < PLAN_REGIONS_MAX);
    CHECK(begin <= end);
    CHECK(end < 4 * plan->tape->node_count);
    struct plan_region *region = &plan->regions[plan->region_count];
    region->bytes = plan_round_up(bytes);
    region->begin = begin;
    region->end = end;
    return plan->region_count++;
}

/* Lengthens a life. */
static void keep_until(struct plan *plan, int region, int time)
{
    if (region != NO_REGION && plan->regions[region].end < time)
        plan->regions[region].end = time;
}

static bool has_second_half(const struct plan *plan, int n)
{
    return plan->options.split && plan->nodes[n].backward && plan->tape->nodes[n].param[0] >= 0;
}

/* Returns when a node reads its inputs, its output and what it has saved for the last time. */
static int last_read(const struct plan *plan, int n)
{
    if (has_second_half(plan, n))
        return plan->nodes[n].params_time;
    return plan->nodes[n].backward ? plan->nodes[n].backward_time : n;
}

static size_t stats_bytes(const struct plan *plan, int n)
{
    size_t bytes = 0;
    for (int i = 0; i < OP_STAT_MAX; i++) {
        const int stat = plan->tape->nodes[n].stat[i];
        if (stat >= 0)
            bytes += plan_round_up(plan->tape->stats[stat].count * sizeof(float));
    }
    return bytes;
}

/* The second run of a node: at its own time it reads what is there by then, and writes for
 * backward. */
static void again_regions(struct plan *plan, int n)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    struct plan_node *node = &plan->nodes[n];
    const int time = node->again_time;
    plan->values[at->out].again = add_region(plan, node->info.out.bytes, time, time);
    for (int i = 0; i < at->in_count; i++)
        keep_until(plan, plan->values[at->in[i]].again, time);
    node->dropped = add_region(plan, node->info.saved_bytes, n, n);
    node->saved = add_region(plan, node->info.saved_bytes, time, last_read(plan, n));
    node->scratch_again = add_region(plan, node->info.scratch_bytes, time, time);
    node->stats_again = add_region(plan, stats_bytes(plan, n), time, time);
}

static void forward_regions(struct plan *plan, int n)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    struct plan_node *node = &plan->nodes[n];
    const int last = last_read(plan, n);
    struct plan_value *out = &plan->values[at->out];
    out->region = out->again = add_region(plan, node->info.out.bytes, n, n);
    if (plan_runs_again(plan, n)) {
        again_regions(plan, n);
    } else {
        node->saved = add_region(plan, node->info.saved_bytes, n, last);
    }
    if (node->info.backward_needs_out)
        keep_until(plan, out->again, last);
    for (int i = 0; i < at->in_count; i++) {
        const struct plan_value *in = &plan->values[at->in[i]];
        keep_until(plan, in->region, n);
        if (node->info.backward_needs_in[i])
            keep_until(plan, in->again, last);
    }
    node->scratch_forward = add_region(plan, node->info.scratch_bytes, n, n);
}

static void add_adaptation(struct plan *plan, struct plan_node *node,
                           const struct plan_adaptation *adaptation)
{
    CHECK(plan->adaptation_count < PLAN_ADAPTATIONS_MAX);
    plan->adaptations[plan->adaptation_count++] = *adaptation;
    node->adaptation_count++;
}

static bool same_format(const struct tensor *a, const struct tensor *b)
{
    return a->format == b->format && a->dtype == b->dtype && a->bytes == b->bytes;
}

/* A gradient in the format of the node's output: itself, or a copy that is made right before. */
static int bring_to_format(struct plan *plan, struct plan_node *node,
                           const struct plan_gradient *from, int time)
{
    if (same_format(&from->tensor, &node->info.out))
        return from->region;
    const struct plan_adaptation copy = { .from = from->region,
                                          .other = NO_REGION,
                                          .to = add_region(plan, node->info.out.bytes, time, time),
                                          .from_tensor = from->tensor,
                                          .to_tensor = node->info.out };
    plan->sizes.reformats++;
    add_adaptation(plan, node, &copy);
    return copy.to;
}

/* The gradients of the node's output, in its format and as many as its backward takes. */
static void take_douts(struct plan *plan, int n)
{
    struct plan_node *node = &plan->nodes[n];
    struct plan_value *out = &plan->values[plan->tape->nodes[n].out];
    int time = node->backward_time;
    node->adaptation_begin = plan->adaptation_count;
    int sources[PLAN_GRADIENTS_MAX];
    int count = out->gradient_count;
    CHECK(count > 0 || plan->tape->nodes[n].out == plan->tape->loss);
    for (int i = 0; i < count; i++) {
        keep_until(plan, out->gradients[i].region, time);
        sources[i] = bring_to_format(plan, node, &out->gradients[i], time);
    }
    int taken = node->info.sums_douts ? 2 : 1;
    while (count > taken) { /* the first two become their sum */
        const struct plan_adaptation sum = { .from = sources[0],
                                             .other = sources[1],
                                             .to =
                                                 add_region(plan, node->info.out.bytes, time, time),
                                             .from_tensor = node->info.out,
                                             .to_tensor = node->info.out };
        add_adaptation(plan, node, &sum);
        sources[0] = sum.to;
        count--;
        for (int i = 1; i < count; i++)
            sources[i] = sources[i + 1];
    }
    for (int i = 0; i < 2; i++) {
        node->dout[i] = i < count ? sources[i] : NO_REGION;
        keep_until(plan, node->dout[i], last_read(plan, n));
    }
    out->gradient_count = 0; /* all taken */
}

static bool wants_din(const struct plan *plan, const struct tape_node *at, int i)
{
    return i < at->in_count && plan->values[at->in[i]].needs_gradient;
}

/* Counts the gradients in this region that nobody has taken yet. */
static int gradients_in(const struct plan *plan, int region)
{
    int count = 0;
    for (int v = 0; v < plan->tape->value_count; v++) {
        for (int i = 0; i < plan->values[v].gradient_count; i++)
            count += plan->values[v].gradients[i].region == region;
    }
    return count;
}

/* A gradient of input i from another reader, which this node's backward can add to its own; NULL:
 * none. */
static struct plan_gradient *find_addend(struct plan *plan, int n, int i)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct kernel_info *info = &plan->nodes[n].info;
    struct plan_value *value = &plan->values[at->in[i]];
    if (!info->din_adds[i] || !wants_din(plan, at, i))
        return NULL;
    for (int k = 0; k < OP_IN_MAX; k++) {
        if (info->din_aliases_dout[k] && info->din_alias[k] == i)
            return NULL; /* input k's gradient is the same bytes, without the sum */
    }
    for (int k = 0; k < value->gradient_count; k++) {
        if (same_format(&value->gradients[k].tensor, &info->din[i]))
            return &value->gradients[k];
    }
    return NULL;
}

/* True if nobody reads input i after this node's backward, so that its gradient can take its
 * place. */
static bool can_overwrite(const struct plan *plan, int n, int i)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct kernel_info *info = &plan->nodes[n].info;
    const struct plan_value *value = &plan->values[at->in[i]];
    if (!info->din_overwrites_in[i] || value->again == NO_REGION)
        return false;
    return same_format(&value->tensor, &info->din[i]) &&
           plan->regions[value->again].end <= plan->nodes[n].backward_time;
}

/* A gradient that lies there may be added to: it is nobody else's, and read by nobody later. */
static bool can_add_to(const struct plan *plan, int region, int time)
{
    return gradients_in(plan, region) == 1 && plan->regions[region].end <= time;
}

/* The region that this node's backward writes input i's gradient to. */
static void place_din(struct plan *plan, int n, int i)
{
    struct plan_node *node = &plan->nodes[n];
    int time = node->backward_time;
    struct plan_gradient *addend = find_addend(plan, n, i);
    if (addend != NULL) {
        node->din_add[i] = addend->region;
        keep_until(plan, addend->region, time);
        node->din[i] = can_add_to(plan, addend->region, time)
                           ? addend->region
                           : add_region(plan, node->info.din[i].bytes, time, time);
        addend->region = node->din[i];
        return;
    }
    int in = plan->tape->nodes[n].in[i];
    if (can_overwrite(plan, n, i)) {
        node->din[i] = plan->values[in].again;
        keep_until(plan, node->din[i], time);
    } else {
        node->din[i] = add_region(plan, node->info.din[i].bytes, time, time);
    }
}

/* Places the gradients of the node's inputs: first those that it writes, then those that are the
 * same bytes as another's (kernel_info.din_aliases_dout). */
static enum status place_dins(struct plan *plan, int n)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    struct plan_node *node = &plan->nodes[n];
    const struct kernel_info *info = &node->info;
    bool wanted[OP_IN_MAX];
    for (int i = 0; i < OP_IN_MAX; i++)
        wanted[i] = wants_din(plan, at, i);
    for (int i = 0; i < OP_IN_MAX; i++) {
        if (wanted[i] && info->din_aliases_dout[i] && info->din_alias[i] >= 0)
            wanted[info->din_alias[i]] = true;
    }
    for (int i = 0; i < OP_IN_MAX; i++) {
        if (wanted[i] && !info->din_aliases_dout[i])
            place_din(plan, n, i);
    }
    for (int i = 0; i < OP_IN_MAX; i++) {
        if (!wants_din(plan, at, i) || node->din_add[i] != NO_REGION)
            continue;
        struct plan_value *value = &plan->values[at->in[i]];
        if (value->gradient_count == PLAN_GRADIENTS_MAX)
            return ST_INVALID;
        struct plan_gradient *gradient = &value->gradients[value->gradient_count++];
        gradient->tensor = info->din[i];
        gradient->region = node->din[i];
        if (info->din_aliases_dout[i]) {
            CHECK(info->din_alias[i] >= 0 || !info->sums_douts);
            gradient->region =
                info->din_alias[i] >= 0 ? node->din[info->din_alias[i]] : node->dout[0];
        }
        CHECK(gradient->region != NO_REGION);
    }
    return ST_OK;
}

static enum status backward_regions(struct plan *plan, int n)
{
    struct plan_node *node = &plan->nodes[n];
    int time = node->backward_time;
    take_douts(plan, n);
    enum status st = place_dins(plan, n);
    if (st != ST_OK)
        return st;
    node->scratch_backward = add_region(plan, node->info.scratch_bytes, time, time);
    if (has_second_half(plan, n)) {
        time = node->params_time;
        node->scratch_params = add_region(plan, node->info.scratch_bytes, time, time);
    }
    return ST_OK;
}

struct region_size {
    size_t bytes;
    int region;
};

static int larger_first(const void *left, const void *right)
{
    const struct region_size *a = left;
    const struct region_size *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->region - b->region;
}

/* Keeps the placed regions in order of their offsets. */
static void insert_placed(struct plan_region *placed, int count, const struct plan_region *region)
{
    int at = count;
    while (at > 0 && placed[at - 1].offset > region->offset)
        at--;
    memmove(placed + at + 1, placed + at, (size_t)(count - at) * sizeof(*placed));
    placed[at] = *region;
}

static bool live_together(const struct plan_region *a, const struct plan_region *b)
{
    return a->begin <= b->end && b->begin <= a->end;
}

/* The lowest gap that fits between the placed regions that live at the same time. */
static size_t find_gap(const struct plan_region *region, const struct plan_region *placed,
                       int count)
{
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        const struct plan_region *other = &placed[i];
        if (!live_together(region, other))
            continue;
        if (other->offset >= at + region->bytes)
            break;
        if (other->offset + other->bytes > at)
            at = other->offset + other->bytes;
    }
    return at;
}

/* Invariant 1 of plan_internal.h. */
static bool stands_alone(const struct plan_region *region, const struct plan_region *placed,
                         int count)
{
    for (int i = 0; i < count; i++) {
        const struct plan_region *other = &placed[i];
        if (live_together(region, other) && region->offset < other->offset + other->bytes &&
            other->offset < region->offset + region->bytes)
            return false;
    }
    return true;
}

static enum status place_regions(struct plan *plan)
{
    size_t count = (size_t)plan->region_count;
    auto_free struct region_size *order = calloc(count + 1, sizeof(*order));
    auto_free struct plan_region *placed = calloc(count + 1, sizeof(*placed));
    if (order == NULL || placed == NULL)
        return ST_NO_MEMORY;
    for (int i = 0; i < plan->region_count; i++)
        order[i] = (struct region_size){ plan->regions[i].bytes, i };
    qsort(order, count, sizeof(*order), larger_first);
    for (int i = 0; i < plan->region_count; i++) {
        struct plan_region *region = &plan->regions[order[i].region];
        region->offset = find_gap(region, placed, i);
        CHECK(stands_alone(region, placed, i));
        insert_placed(placed, i, region);
        plan->sizes.unshared_bytes += region->bytes;
        if (region->offset + region->bytes > plan->sizes.arena_bytes)
            plan->sizes.arena_bytes = region->offset + region->bytes;
    }
    if (plan->sizes.arena_bytes < plan->options.stash_bytes)
        plan->sizes.arena_bytes = plan->options.stash_bytes;
    return ST_OK;
}

static void clear_places(struct plan *plan)
{
    for (int n = 0; n < plan->tape->node_count; n++) {
        struct plan_node *node = &plan->nodes[n];
        node->saved = node->scratch_forward = node->scratch_backward = NO_REGION;
        node->scratch_params = node->scratch_again = node->stats_again = NO_REGION;
        node->dropped = NO_REGION;
        for (int i = 0; i < OP_IN_MAX; i++)
            node->din[i] = node->din_add[i] = NO_REGION;
        node->dout[0] = node->dout[1] = NO_REGION;
        node->adaptation_begin = node->adaptation_count = 0;
    }
    for (int v = 0; v < plan->tape->value_count; v++) {
        plan->values[v].region = plan->values[v].again = NO_REGION;
        plan->values[v].gradient_count = 0;
    }
    plan->region_count = plan->adaptation_count = 0;
    plan->sizes.reformats = 0;
    plan->sizes.arena_bytes = plan->sizes.unshared_bytes = 0;
}

/* Nodes [begin, end), downwards. */
static enum status backward_of(struct plan *plan, int begin, int end)
{
    for (int n = end - 1; n >= begin; n--) {
        if (!plan->nodes[n].backward)
            continue;
        enum status st = backward_regions(plan, n);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* Gradients that come from later stages, in the order and formats in which the whole plan has them.
 * Which those are doesn't depend on where anything lies. */
static enum status find_arriving(struct plan *plan)
{
    const int crossing = plan_crossing_value(plan, plan->end);
    if (crossing < 0)
        return ST_OK;
    enum status st = backward_of(plan, plan->end, plan->tape->node_count);
    const struct plan_value *value = &plan->values[crossing];
    plan->arriving_count = value->gradient_count;
    for (int i = 0; i < value->gradient_count; i++)
        plan->arriving[i] = value->gradients[i];
    clear_places(plan);
    return st;
}

/* Places the value that enters the stage, which comes before the stage's first node runs. */
static void place_entering(struct plan *plan)
{
    const int crossing = plan_crossing_value(plan, plan->begin);
    if (crossing < 0)
        return;
    struct plan_value *value = &plan->values[crossing];
    value->region = value->again = add_region(plan, value->tensor.bytes, plan->begin, plan->begin);
}

/* Places the gradients that arrive from the next stage. The value that leaves lives on behind the
 * last forward node, and its gradients live from there on: they arrive while it may still be
 * sent. */
static void place_arriving(struct plan *plan)
{
    const int crossing = plan_crossing_value(plan, plan->end);
    if (crossing < 0)
        return;
    struct plan_value *value = &plan->values[crossing];
    CHECK((plan->arriving_count > 0) == plan->nodes[plan->end - 1].backward);
    keep_until(plan, value->region, plan->end);
    value->gradient_count = plan->arriving_count;
    for (int i = 0; i < plan->arriving_count; i++) {
        struct plan_gradient *gradient = &plan->arriving[i];
        gradient->region = add_region(plan, gradient->tensor.bytes, plan->end, plan->end);
        value->gradients[i] = *gradient;
    }
}

/* The gradients that leave the stage outlive its backward pass. */
static void keep_leaving(struct plan *plan)
{
    const int crossing = plan_crossing_value(plan, plan->begin);
    if (crossing < 0)
        return;
    const struct plan_value *value = &plan->values[crossing];
    for (int i = 0; i < value->gradient_count; i++)
        keep_until(plan, value->gradients[i].region, plan->nodes[plan->begin - 1].backward_time);
}

enum status plan_memory_lay_out(struct plan *plan)
{
    clear_places(plan);
    enum status st = find_arriving(plan);
    if (st != ST_OK)
        return st;
    place_entering(plan);
    for (int n = plan->begin; n < plan->end; n++)
        forward_regions(plan, n);
    place_arriving(plan);
    st = backward_of(plan, plan->begin, plan->end);
    if (st != ST_OK)
        return st;
    keep_leaving(plan);
    return place_regions(plan);
}
