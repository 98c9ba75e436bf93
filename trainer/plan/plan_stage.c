#include <string.h>

#include "common/check.h"
#include "trainer/plan/plan_internal.h"

/* Return the number of the tape's parameters or ties that belong to nodes before this one: all lie
 * in tape order. */
static int params_before(const struct tape *tape, int node)
{
    int count = 0;
    while (count < tape->param_count && tape->params[count].first_node < node)
        count++;
    return count;
}

static int ties_before(const struct tape *tape, int node)
{
    int count = 0;
    while (count < tape->tie_count && tape->ties[count].node < node)
        count++;
    return count;
}

/* Return where a parameter or tie begins in the lane's vector; for an index behind the last: where
 * they end. */
static size_t param_at(const struct plan *plan, int param)
{
    const struct tape *tape = plan->tape;
    return param < tape->param_count ? tape->params[param].offset : plan->layout.param_count;
}

static size_t tie_at(const struct plan *plan, int tie)
{
    const struct tape *tape = plan->tape;
    return plan->layout.tie_at +
           (tie < tape->tie_count ? tape->ties[tie].offset : plan->layout.tie_count);
}

static bool is_empty(const struct lane_extent *part)
{
    return part->first == part->end;
}

/* Parameters and ties lie in tape order, and the backward pass comes to them from the end: so
 * gradients become final from the last tie to the first parameter. Those of the first `params` and
 * `ties` aren't yet. */
static void find_finals(struct plan *plan)
{
    const struct tape *tape = plan->tape;
    const int first_param = params_before(tape, plan->begin);
    const int first_tie = ties_before(tape, plan->begin);
    const int end_param = params_before(tape, plan->end);
    const int end_tie = ties_before(tape, plan->end);
    int params = end_param, ties = end_tie;
    for (int n = plan->end - 1; n >= plan->begin; n--) {
        while (ties > first_tie && tape->ties[ties - 1].node >= n)
            ties--;
        while (ties == first_tie && params > first_param &&
               tape->params[params - 1].first_node >= n)
            params--;
        size_t final = plan->layout.stat_at;
        if (params < end_param) {
            final = param_at(plan, params);
        } else if (ties < end_tie) {
            final = tie_at(plan, ties);
        }
        plan->nodes[n].final = final;
    }
    CHECK(params == first_param);
    CHECK(ties == first_tie);
}

void plan_stage_find_parts(struct plan *plan)
{
    const struct tape *tape = plan->tape;
    const struct lane_layout *layout = &plan->layout;
    const struct lane_slice slice = lane_slice(tape, plan->begin, plan->end);
    memcpy(plan->parts, slice.part, sizeof(plan->parts));
    /* The number of micro-batches is everybody's; the two before it are the loss node's. */
    const bool has_loss = plan->end == tape->node_count;
    if (!has_loss)
        plan->parts[LANE_SCALARS].first = layout->micro_at;
    CHECK(layout->micro_at == layout->loss_at + 2 && layout->count == layout->micro_at + 1);
    find_finals(plan);
}

size_t plan_stage_gradients_end(const struct plan *plan)
{
    const struct lane_extent *ties = &plan->parts[LANE_TIES];
    return is_empty(ties) ? plan->parts[LANE_PARAMS].end : ties->end;
}

size_t plan_stage_last_final(const struct plan *plan)
{
    const struct lane_extent *params = &plan->parts[LANE_PARAMS];
    const struct lane_extent *ties = &plan->parts[LANE_TIES];
    if (!is_empty(params))
        return params->first;
    return is_empty(ties) ? plan->layout.stat_at : ties->first;
}

void plan_stage_notify_final(const struct plan *plan, size_t first, size_t end,
                             plan_final_fn on_final, void *arg)
{
    if (on_final == NULL)
        return;
    struct lane_extent whole = { 0 }; /* parts that touch are one call */
    for (int i = LANE_PARTS - 1; i >= 0; i--) {
        struct lane_extent part = plan->parts[i];
        part.first = part.first < first ? first : part.first;
        part.end = part.end < end ? part.end : end;
        if (part.first >= part.end)
            continue;
        if (part.end == whole.first) {
            whole.first = part.first;
            continue;
        }
        if (!is_empty(&whole))
            on_final(arg, whole.first, whole.end - whole.first);
        whole = part;
    }
    if (!is_empty(&whole))
        on_final(arg, whole.first, whole.end - whole.first);
}

static void add_tensor(struct plan_border *border, void *data, size_t bytes)
{
    CHECK(border->count < PLAN_GRADIENTS_MAX);
    border->tensor[border->count].data = data;
    border->tensor[border->count++].bytes = bytes;
}

void plan_border(const struct plan *plan, enum plan_side side, enum plan_direction direction,
                 int stash, struct plan_border *out)
{
    CHECK(stash >= 0 && stash < plan->stashes);
    out->count = 0;
    const int crossing = plan_crossing_value(plan, side == PLAN_BEFORE ? plan->begin : plan->end);
    if (crossing < 0)
        return;
    const struct plan_value *value = &plan->values[crossing];
    if (direction == PLAN_FORWARD) {
        add_tensor(out, plan_region_at(plan, stash, value->region), value->tensor.bytes);
        return;
    }
    const bool before = side == PLAN_BEFORE;
    const struct plan_gradient *gradients = before ? value->gradients : plan->arriving;
    const int count = before ? value->gradient_count : plan->arriving_count;
    for (int i = 0; i < count; i++) {
        add_tensor(out, plan_region_at(plan, stash, gradients[i].region),
                   gradients[i].tensor.bytes);
    }
}
