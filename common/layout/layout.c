#include "common/layout/layout.h"

#include "common/check.h"
#include "common/limits.h"

static enum status refuse_shares(const char *what, uint32_t stage, const uint32_t *shares,
                                 uint32_t width, uint32_t all, struct reason *reason)
{
    uint64_t sum = 0;
    if (width == 0 || width > LIMIT_RANKS) {
        reason_set(reason, "stage %u is cut into %u shares of the %s: 1 to %u are possible", stage,
                   width, what, (unsigned)LIMIT_RANKS);
        return ST_INVALID;
    }
    for (uint32_t i = 0; i < width; i++) {
        if (shares[i] == 0) {
            reason_set(reason, "stage %u, share %u has none of the %s", stage, i, what);
            return ST_INVALID;
        }
        sum += shares[i];
    }
    if (sum != all) {
        reason_set(reason, "the shares of stage %u add up to %llu %s, not %u", stage,
                   (unsigned long long)sum, what, all);
        return ST_INVALID;
    }
    return ST_OK;
}

static enum status check_stage(const struct layout *layout, uint32_t stage, struct reason *reason)
{
    const struct layout_stage *s = &layout->stages[stage];
    if (stage == 0 && s->node_begin != 0) {
        reason_set(reason, "stage 0 begins at node %u: nodes before it are nobody's",
                   s->node_begin);
        return ST_INVALID;
    }
    if (stage > 0 && s->node_begin <= s[-1].node_begin) {
        reason_set(reason, "stage %u begins at node %u, but stage %u at %u: it has no nodes", stage,
                   s->node_begin, stage - 1, s[-1].node_begin);
        return ST_INVALID;
    }
    if (s->node_begin >= layout->nodes) {
        reason_set(reason, "stage %u begins at node %u of %u: it has no nodes", stage,
                   s->node_begin, layout->nodes);
        return ST_INVALID;
    }
    enum status st = refuse_shares("tensor lanes", stage, s->tensor_shares, s->tensor_width,
                                   layout->tensor_lanes, reason);
    if (st != ST_OK)
        return st;
    return refuse_shares("lanes", stage, s->shares, s->data_width, layout->lanes, reason);
}

enum status layout_check(const struct layout *layout, struct reason *reason)
{
    uint64_t ranks = 0;
    if (layout->stage_count == 0 || layout->stage_count > LIMIT_STAGES) {
        reason_set(reason, "%u stages: 1 to %u are possible", layout->stage_count,
                   (unsigned)LIMIT_STAGES);
        return ST_INVALID;
    }
    if (layout->lanes > LIMIT_LANES) {
        reason_set(reason, "%u lanes, more than %u", layout->lanes, (unsigned)LIMIT_LANES);
        return ST_INVALID;
    }
    for (uint32_t s = 0; s < layout->stage_count; s++) {
        enum status st = check_stage(layout, s, reason);
        if (st != ST_OK)
            return st;
        ranks += (uint64_t)layout->stages[s].tensor_width * layout->stages[s].data_width;
    }
    if (ranks > LIMIT_RANKS) {
        reason_set(reason, "%llu workers, more than %u", (unsigned long long)ranks,
                   (unsigned)LIMIT_RANKS);
        return ST_INVALID;
    }
    return ST_OK;
}

uint32_t layout_first_rank(const struct layout *layout, uint32_t stage)
{
    uint32_t rank = 0;
    CHECK(stage <= layout->stage_count);
    for (uint32_t s = 0; s < stage; s++)
        rank += layout->stages[s].tensor_width * layout->stages[s].data_width;
    return rank;
}

uint32_t layout_ranks(const struct layout *layout)
{
    return layout_first_rank(layout, layout->stage_count);
}

static uint32_t sum_of(const uint32_t *shares, uint32_t count)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += shares[i];
    return sum;
}

struct layout_box layout_box(const struct layout *layout, uint32_t rank)
{
    const struct layout_stage *stage = layout->stages;
    uint32_t number = 0, first = 0;
    while (rank - first >= stage->tensor_width * stage->data_width) {
        first += stage->tensor_width * stage->data_width;
        stage++;
        number++;
        CHECK(number < layout->stage_count);
    }
    struct layout_box box = { .stage = number, .node_begin = stage->node_begin };
    box.node_end = number + 1 < layout->stage_count ? stage[1].node_begin : layout->nodes;
    box.tensor = (rank - first) / stage->data_width;
    box.tensor_begin = sum_of(stage->tensor_shares, box.tensor);
    box.tensor_end = box.tensor_begin + stage->tensor_shares[box.tensor];
    box.data = (rank - first) % stage->data_width;
    box.order_begin = sum_of(stage->shares, box.data);
    box.order_end = box.order_begin + stage->shares[box.data];
    box.data_group_first = rank - box.data;
    box.data_group_size = stage->data_width;
    return box;
}

void layout_owners(const struct layout *layout, uint32_t stage, const uint32_t *order,
                   uint32_t *owner)
{
    CHECK(stage < layout->stage_count);
    const struct layout_stage *s = &layout->stages[stage];
    for (uint32_t data = 0, at = 0; data < s->data_width; data++) {
        for (const uint32_t end = at + s->shares[data]; at < end; at++) {
            CHECK(order[at] < layout->lanes);
            owner[order[at]] = data;
        }
    }
}
