/* A stage's cuts and tables. */
#include <stdlib.h>
#include <string.h>

#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/pipeline/schedule_check.h"
#include "trainer/plan/plan.h"
#include "trainer/stage/stage_internal.h"
#include "trainer/tape/tape_cuts.h"

static const uint32_t one_lane[] = { 1 }; /* of tensors */

/* ---- the layout ---- */

/* The parts' first nodes, where the job doesn't give them. */
static enum status cut_nodes(const struct stage *s, int *out_first, struct reason *reason)
{
    const struct stage_options *o = &s->options;
    const uint32_t count = s->parts;
    int possible = 0;
    bool given = count == o->plan->count && count > 1 && o->plan->of[1].first_node > 0;
    for (uint32_t i = 0; given && i < count; i++) {
        out_first[i] = (int)o->plan->of[i].first_node;
        if (i > 0 && !tape_is_cut(o->tape, out_first[i])) {
            reason_set(reason,
                       "parallel.pipeline: the model can't be cut before node %d; see the nodes "
                       "with `cairn plan`",
                       out_first[i]);
            return ST_CONFIG;
        }
    }
    if (given)
        return ST_OK;
    enum status st = tape_balance(o->tape, o->cost, (int)count, out_first, &possible);
    if (st != ST_INVALID)
        return st;
    reason_set(reason,
               "parallel.pipeline: the model can be cut into %d %s at most, not %u; use fewer "
               "stages",
               possible, count > o->plan->count ? "parts" : "stages", count);
    return ST_CONFIG;
}

static enum status lay_out(struct stage *s, uint32_t chunks, struct reason *reason)
{
    const struct stage_options *o = &s->options;
    const uint32_t *shares = o->shares;
    int first[STAGE_PARTS_MAX] = { 0 };
    if (o->plan->count < 1 || o->plan->count > LIMIT_STAGES) {
        reason_set(reason, "the plan has %u stages", o->plan->count);
        return ST_INVALID;
    }
    s->parts = o->plan->count * chunks;
    enum status st = cut_nodes(s, first, reason);
    if (st != ST_OK)
        return st;
    for (uint32_t i = 0; i < s->parts; i++)
        s->node_begin[i] = (uint32_t)first[i];
    s->node_begin[s->parts] = (uint32_t)o->tape->node_count;
    for (uint32_t i = 0; i < o->plan->count; i++) {
        s->stages[i] = (struct layout_stage){ .node_begin = (uint32_t)first[i],
                                              .tensor_width = 1,
                                              .data_width = o->plan->of[i].workers,
                                              .tensor_shares = one_lane,
                                              .shares = shares };
        shares += o->plan->of[i].workers;
    }
    s->layout = (struct layout){ .nodes = s->node_begin[o->plan->count],
                                 .tensor_lanes = 1,
                                 .lanes = o->lanes,
                                 .stage_count = o->plan->count,
                                 .stages = s->stages };
    st = layout_check(&s->layout, reason);
    if (st != ST_OK)
        return st;
    s->size = layout_ranks(&s->layout);
    s->box = layout_box(&s->layout, o->rank);
    return ST_OK;
}

/* ---- the table ---- */

/* Returns the most stashes of any rank: all ranks see the same. */
static uint32_t most_stashes(const struct stage *s)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < s->table.row_count; r++)
        most = s->table.rows[r].stashes > most ? s->table.rows[r].stashes : most;
    return most;
}

static enum status check_stashes(const struct stage *s, struct reason *reason)
{
    const uint32_t most = most_stashes(s);
    if (most <= PLAN_STASHES_MAX)
        return ST_OK;
    reason_set(reason,
               "parallel.schedule: with %s a worker has %u micro-batches under way, and may have "
               "%u; make train.micro_batch larger",
               pipeline_schedule_word(s->schedule), most, (uint32_t)PLAN_STASHES_MAX);
    return ST_CONFIG;
}

static enum status make_table(struct stage *s, uint32_t chunks, struct reason *reason)
{
    const struct stage_options *o = &s->options;
    const uint32_t *orders[LIMIT_STAGES];
    s->orders = calloc((size_t)s->layout.stage_count * o->lanes, sizeof(*s->orders));
    if (s->orders == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < s->layout.stage_count; i++) {
        uint32_t *order = s->orders + (size_t)i * o->lanes;
        reducer_spread(s->stages[i].shares, s->stages[i].data_width, order);
        orders[i] = order;
    }
    const struct pipeline_options options = { .schedule = s->schedule,
                                              .chunks = chunks,
                                              .accumulate = o->accumulate,
                                              .layout = &s->layout,
                                              .orders = orders,
                                              .sends = o->device->table->host_memory
                                                           ? PIPELINE_SENDS_ARE_STARTED
                                                           : PIPELINE_SENDS_ARE_MET };
    struct pipeline_verdict verdict;
    enum status st = pipeline_table_init(&s->table, &options, reason);
    if (st == ST_FULL) {
        const struct reason why = *reason;
        reason_set(reason, "parallel.schedule: %.400s; make train.micro_batch larger", why.text);
        return ST_CONFIG;
    }
    if (st != ST_OK)
        return st;
    s->row = &s->table.rows[o->rank];
    CHECK(s->row->stage == s->box.stage && s->row->data == s->box.data);
    st = pipeline_check(&s->table, &verdict);
    if (st != ST_OK)
        *reason = verdict.reason;
    return st;
}

static void drop_table(struct stage *s)
{
    pipeline_table_release(&s->table);
    free(s->orders);
    s->orders = NULL;
}

static void take_instead(struct stage *s, enum pipeline_schedule schedule, const char *why)
{
    s->schedule = schedule;
    reason_set(&s->instead, "parallel.schedule: %s instead of %s: %s",
               pipeline_schedule_word(schedule), pipeline_schedule_word(s->options.schedule), why);
}

/* Makes the table for so many workers: with fewer each has more. No schedule changes a bit. Only
 * interleaved changes which nodes a stage has. */
static enum status tabulate(struct stage *s, uint32_t chunks, struct reason *reason)
{
    enum status st = make_table(s, chunks, reason);
    if (st == ST_OK && s->schedule == PIPELINE_GPIPE && most_stashes(s) > PLAN_STASHES_MAX) {
        struct reason why;
        reason_set(&why, "a worker would have %u micro-batches under way, and may have %u",
                   most_stashes(s), (uint32_t)PLAN_STASHES_MAX);
        drop_table(s);
        take_instead(s, PIPELINE_1F1B, why.text);
        st = make_table(s, chunks, reason);
    }
    return st == ST_OK ? check_stashes(s, reason) : st;
}

/* Chooses the schedule from the model and the number of stages alone. So in all generations of a
 * job with that number of stages each stage has the same nodes. */
static enum status arrange(struct stage *s, struct reason *reason)
{
    struct reason why = { "" };
    uint32_t chunks = s->options.schedule == PIPELINE_INTERLEAVED ? STAGE_CHUNKS_MAX : 1;
    s->schedule = s->options.schedule;
    enum status st = lay_out(s, chunks, chunks > 1 ? &why : reason);
    if (st == ST_CONFIG && chunks > 1) { /* too few places to cut at */
        take_instead(s, PIPELINE_1F1B, why.text);
        chunks = 1;
        st = lay_out(s, chunks, reason);
    } else if (st != ST_OK && chunks > 1) {
        *reason = why;
    }
    return st == ST_OK ? tabulate(s, chunks, reason) : st;
}

/* ---- what a stage has ---- */

bool stage_has_node(const struct stage *stage, int node)
{
    for (uint32_t c = 0; c < stage_chunks(stage); c++) {
        const uint32_t *begin = &stage->node_begin[stage_part(stage, c)];
        if (node >= (int)begin[0] && node < (int)begin[1])
            return true;
    }
    return false;
}

bool stage_reads(const struct stage *stage, int value)
{
    const struct tape *tape = stage->options.tape;
    for (int n = 0; n < tape->node_count; n++) {
        for (int i = 0; i < tape->nodes[n].in_count && stage_has_node(stage, n); i++) {
            if (tape->nodes[n].in[i] == value)
                return true;
        }
    }
    return false;
}

bool stage_is_same(const struct stage *stage, const struct stage *before)
{
    bool same = stage->box.stage == before->box.stage && stage->parts == before->parts &&
                stage->layout.stage_count == before->layout.stage_count;
    for (uint32_t i = 0; same && i <= stage->parts; i++)
        same = stage->node_begin[i] == before->node_begin[i];
    return same;
}

/* An extent in its place among those that are known; once. */
static void note_param(struct stage *s, struct lane_extent extent)
{
    size_t at = s->param_extents;
    for (size_t i = 0; i < s->param_extents; i++) {
        if (s->params[i].first == extent.first)
            return;
    }
    for (; at > 0 && s->params[at - 1].first > extent.first; at--)
        s->params[at] = s->params[at - 1];
    s->params[at] = extent;
    s->param_extents++;
}

/* Notes the stage's own parameters, and those of others that its nodes read, in ascending order. */
static void note_params(struct stage *s)
{
    const struct tape *tape = s->options.tape;
    for (uint32_t c = 0; c < stage_chunks(s); c++) {
        const struct lane_extent *own = &s->slice[stage_part(s, c)].part[LANE_PARAMS];
        if (own->first < own->end)
            note_param(s, *own);
    }
    for (int t = 0; t < tape->tie_count; t++) {
        const struct tape_tensor *param = &tape->params[tape->ties[t].param];
        if (stage_has_node(s, tape->ties[t].node) && !stage_has_node(s, param->first_node))
            note_param(s, (struct lane_extent){ param->offset, param->offset + param->count });
    }
}

/* Notes the extents in the vector's order. Scalars are the last chunk's. */
static void note_extents(struct stage *s)
{
    const uint32_t chunks = stage_chunks(s);
    const size_t stat_at = lane_layout(s->options.tape).stat_at;
    for (int i = 0; i < LANE_PARTS; i++) {
        for (uint32_t c = i == LANE_SCALARS ? chunks - 1 : 0; c < chunks; c++) {
            const struct lane_extent *extent = &s->slice[stage_part(s, c)].part[i];
            if (extent->first < extent->end) {
                s->extents[s->extent_count++] =
                    (struct reducer_extent){ extent->first, extent->end - extent->first, c };
            }
        }
    }
    for (uint32_t c = 0; c < chunks; c++) {
        const struct lane_extent *stats = &s->slice[stage_part(s, c)].part[LANE_STATS];
        s->stats[c] = (struct lane_extent){ stats->first - stat_at, stats->end - stat_at };
    }
}

static enum status note_slices(struct stage *s)
{
    for (uint32_t i = 0; i < s->parts; i++) {
        s->slice[i] = lane_slice(s->options.tape, (int)s->node_begin[i], (int)s->node_begin[i + 1]);
    }
    note_params(s);
    note_extents(s);
    enum status st = stage_note_owners(s);
    return st == ST_OK ? stage_cut_buckets(s) : st;
}

/* ---- open and close ---- */

enum status stage_open(const struct stage_options *options, struct stage **out,
                       struct reason *reason)
{
    struct stage *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return ST_NO_MEMORY;
    s->options = *options;
    enum status st = arrange(s, reason);
    if (st == ST_OK)
        st = note_slices(s);
    if (st == ST_OK) {
        s->send = calloc(s->size, sizeof(*s->send));
        s->recv = calloc(s->size, sizeof(*s->recv));
        st = s->send == NULL || s->recv == NULL ? ST_NO_MEMORY : ST_OK;
    }
    if (st != ST_OK) {
        stage_close(s);
        return st;
    }
    s->options.cost = NULL;
    *out = s;
    return ST_OK;
}

void stage_close(struct stage *stage)
{
    struct stage *s = stage;
    if (s == NULL)
        return;
    const struct device *d = s->options.device;
    for (int t = 0; t < TAPE_TIES_MAX; t++) {
        if (s->arriving[t] != NULL)
            d->table->free(d->backend, s->arriving[t]);
    }
    gather_close(&s->squares, d);
    owners_release(&s->owners);
    drop_table(s);
    free(s->bucket_begin);
    free(s->borders);
    free(s->send);
    free(s->recv);
    free(s);
}

struct optimizer_holding stage_holding(const struct stage *stage)
{
    return (struct optimizer_holding){ .owners = &stage->owners,
                                       .replicas = !stage->options.owns,
                                       .params = stage->params,
                                       .param_extents = stage->param_extents,
                                       .stats = stage->stats,
                                       .stat_extents = stage_chunks(stage) };
}
