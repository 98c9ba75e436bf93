/* A stage's cuts and tables. */
#include <stdlib.h>
#include <string.h>

#include "comm/exact_order.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "trainer/pipeline/schedule_check.h"
#include "trainer/stage/stage_internal.h"
#include "trainer/tape/plan.h"
#include "trainer/tape/tape_cuts.h"

static const uint32_t one_lane[] = { 1 }; /* of tensors */

/* ---- the layout ---- */

/* The stages' first nodes, where the job doesn't give them. */
static enum status cut_nodes(const struct stage *s, int *out_first, struct reason *reason)
{
    const struct stage_options *o = &s->options;
    const uint32_t count = o->plan->count;
    int possible = 0;
    bool given = count > 1 && o->plan->of[1].first_node > 0;
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
               "parallel.pipeline: the model can be cut into %d stages at most, not %u; use fewer",
               possible, count);
    return ST_CONFIG;
}

static enum status lay_out(struct stage *s, struct reason *reason)
{
    const struct stage_options *o = &s->options;
    const uint32_t *shares = o->shares;
    int first[LIMIT_STAGES] = { 0 };
    if (o->plan->count < 1 || o->plan->count > LIMIT_STAGES) {
        reason_set(reason, "the plan has %u stages", o->plan->count);
        return ST_INVALID;
    }
    enum status st = cut_nodes(s, first, reason);
    if (st != ST_OK)
        return st;
    for (uint32_t i = 0; i < o->plan->count; i++) {
        s->stages[i] = (struct layout_stage){ .node_begin = (uint32_t)first[i],
                                              .tensor_width = 1,
                                              .data_width = o->plan->of[i].workers,
                                              .tensor_shares = one_lane,
                                              .shares = shares };
        shares += o->plan->of[i].workers;
    }
    s->layout = (struct layout){ .nodes = (uint32_t)o->tape->node_count,
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

/* Of any rank: all refuse it. */
static enum status check_stashes(const struct stage *s, struct reason *reason)
{
    uint32_t most = 0;
    for (uint32_t r = 0; r < s->table.row_count; r++)
        most = s->table.rows[r].stashes > most ? s->table.rows[r].stashes : most;
    if (most <= PLAN_STASHES_MAX)
        return ST_OK;
    reason_set(reason,
               "parallel.schedule: with %s a worker has %u micro-batches under way, and may have "
               "%u; set parallel.schedule: 1f1b, or make train.micro_batch larger",
               pipeline_schedule_word(s->options.schedule), most, (uint32_t)PLAN_STASHES_MAX);
    return ST_CONFIG;
}

static enum status make_table(struct stage *s, struct reason *reason)
{
    const struct stage_options *o = &s->options;
    const uint32_t *orders[LIMIT_STAGES];
    s->orders = calloc((size_t)s->layout.stage_count * o->lanes, sizeof(*s->orders));
    if (s->orders == NULL)
        return ST_NO_MEMORY;
    for (uint32_t i = 0; i < s->layout.stage_count; i++) {
        uint32_t *order = s->orders + (size_t)i * o->lanes;
        exact_spread(s->stages[i].shares, s->stages[i].data_width, order);
        orders[i] = order;
    }
    const struct pipeline_options options = { .schedule = o->schedule,
                                              .chunks = 1,
                                              .accumulate = o->accumulate,
                                              .layout = &s->layout,
                                              .orders = orders };
    struct pipeline_verdict verdict;
    enum status st = pipeline_table_init(&s->table, &options, reason);
    if (st != ST_OK)
        return st;
    s->row = &s->table.rows[o->rank];
    CHECK(s->row->stage == s->box.stage && s->row->data == s->box.data);
    st = pipeline_check(&s->table, &verdict);
    if (st != ST_OK) {
        *reason = verdict.reason;
        return st;
    }
    return check_stashes(s, reason);
}

/* ---- what a stage has ---- */

/* Its own parameters, and those of others that its nodes read: ascending. */
static void note_params(struct stage *s)
{
    const struct tape *tape = s->options.tape;
    const struct lane_run *own = &s->extent[s->box.stage].part[LANE_PARAMS];
    for (int t = 0; t < tape->tie_count; t++) {
        const struct tape_tensor *param = &tape->params[tape->ties[t].param];
        const bool reads = tape->ties[t].node >= (int)s->box.node_begin &&
                           tape->ties[t].node < (int)s->box.node_end;
        const bool known = s->param_runs > 0 && s->params[s->param_runs - 1].first == param->offset;
        if (reads && !known && param->first_node < (int)s->box.node_begin) {
            s->params[s->param_runs++] =
                (struct lane_run){ param->offset, param->offset + param->count };
        }
    }
    if (own->first < own->end)
        s->params[s->param_runs++] = *own; /* what it reads of others lies before */
}

static void note_runs(struct stage *s)
{
    const struct lane_extent *own = &s->extent[s->box.stage];
    const size_t stat_at = lane_layout(s->options.tape).stat_at;
    for (int i = 0; i < LANE_PARTS; i++) {
        const struct lane_run *run = &own->part[i];
        if (run->first < run->end)
            s->runs[s->run_count++] = (struct exact_run){ run->first, run->end - run->first };
    }
    s->stats = (struct lane_run){ own->part[LANE_STATS].first - stat_at,
                                  own->part[LANE_STATS].end - stat_at };
}

static enum status note_extents(struct stage *s)
{
    for (uint32_t i = 0; i < s->layout.stage_count; i++) {
        const bool last = i + 1 == s->layout.stage_count;
        const uint32_t end = last ? s->layout.nodes : s->stages[i + 1].node_begin;
        s->extent[i] = lane_extent(s->options.tape, (int)s->stages[i].node_begin, (int)end);
    }
    note_params(s);
    note_runs(s);
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
    enum status st = lay_out(s, reason);
    if (st == ST_OK)
        st = make_table(s, reason);
    if (st == ST_OK)
        st = note_extents(s);
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
    pipeline_table_release(&s->table);
    free(s->bucket_begin);
    free(s->borders);
    free(s->orders);
    free(s->send);
    free(s->recv);
    free(s);
}

struct optimizer_holding stage_holding(const struct stage *stage)
{
    return (struct optimizer_holding){ .owners = &stage->owners,
                                       .replicas = !stage->options.owns,
                                       .params = stage->params,
                                       .param_runs = stage->param_runs,
                                       .stats = &stage->stats };
}
