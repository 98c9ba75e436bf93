#include <string.h>

#include "common/check.h"
#include "trainer/plan/plan_internal.h"

/* Runs of a node: forward, forward again in the backward pass, backward. */
enum run { RUN_FORWARD, RUN_AGAIN, RUN_BACKWARD };

static const void *value_at(const struct plan *plan, const struct plan_call *call, int value,
                            enum run run)
{
    const struct plan_value *at = &plan->values[value];
    int producer = plan->tape->values[value].producer;
    if (producer < 0)
        return call->inputs[-1 - producer];
    return plan_region_at(plan, call->stash, run == RUN_FORWARD ? at->region : at->again);
}

const void *plan_nodes_value(const struct plan *plan, const struct plan_call *call, int value)
{
    return value_at(plan, call, value, RUN_FORWARD);
}

/* The buffers that all runs of a node have in common. */
static void fill_buffers(const struct plan *plan, const struct plan_call *call, int n, enum run run,
                         struct op_buffers *buffers)
{
    const bool drops = run == RUN_FORWARD && plan_runs_again(plan, n);
    const struct tape *tape = plan->tape;
    const struct tape_node *at = &tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    for (int i = 0; i < at->in_count; i++)
        buffers->in[i] = value_at(plan, call, at->in[i], run);
    const struct plan_value *out = &plan->values[at->out];
    buffers->out = plan_region_at(plan, call->stash, run == RUN_FORWARD ? out->region : out->again);
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        if (at->param[i] >= 0)
            buffers->param[i] = call->params + tape->params[at->param[i]].offset;
    }
    buffers->saved = plan_region_at(plan, call->stash, drops ? node->dropped : node->saved);
    buffers->cache = node->cache;
    buffers->draw = call->draw;
    buffers->loss_scale = call->loss_scale;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        buffers->accumulate[i] = call->micro > 0;
    buffers->accumulate_stats = call->micro > 0;
}

static void fill_stats(const struct plan *plan, const struct plan_call *call, int n,
                       struct op_buffers *buffers)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    for (int i = 0; i < OP_STAT_MAX; i++) {
        if (at->stat[i] < 0)
            continue;
        size_t offset = plan->tape->stats[at->stat[i]].offset;
        if (plan->options.training) {
            buffers->stat_sum[i] = call->lane + plan->layout.stat_at + offset;
        } else {
            buffers->stat[i] = call->stats + offset;
        }
    }
}

/* NaN in float32, bfloat16 and float16. */
static enum status poison(const struct plan *plan, void *data, size_t bytes)
{
    const uint32_t bits = 0x7FC07FC0;
    float nan;
    memcpy(&nan, &bits, sizeof(nan));
    return plan->options.table->vector.fill(plan->options.backend, data, nan, bytes / sizeof(float),
                                            plan->options.stream);
}

enum status plan_nodes_poison(const struct plan *plan, int stash, int time)
{
    for (int i = 0; plan->options.poison && i < plan->region_count; i++) {
        if (plan->regions[i].end != time)
            continue;
        enum status st = poison(plan, plan_region_at(plan, stash, i), plan->regions[i].bytes);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* Poisons all of a stash except the value that has entered the stage. */
static enum status poison_stash(const struct plan *plan, int stash)
{
    char *arena = (char *)plan->arena + (size_t)stash * plan->sizes.arena_bytes;
    const int crossing = plan_crossing_value(plan, plan->begin);
    size_t begin = 0, end = 0;
    if (crossing >= 0) {
        const struct plan_region *entered = &plan->regions[plan->values[crossing].region];
        begin = entered->offset;
        end = entered->offset + entered->bytes;
    }
    enum status st = poison(plan, arena, begin);
    return st == ST_OK ? poison(plan, arena + end, plan->sizes.arena_bytes - end) : st;
}

enum status plan_nodes_report(const struct plan *plan, int node, bool backward)
{
    const struct plan_options *options = &plan->options;
    const bool goes_on =
        options->progress == NULL || options->progress(options->progress_arg, node, backward);
    return goes_on ? ST_OK : ST_STALE;
}

/* Loss and targets of a micro-batch into the lane's vector, where they lie side by side, too. */
static enum status add_lane_scalars(const struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    const struct vector_table *vector = &options->table->vector;
    const struct lane_layout *layout = &plan->layout;
    const float *scalars = plan_nodes_value(plan, call, plan->tape->loss);
    float *lane = call->lane + layout->loss_at;
    CHECK(layout->targets_at == layout->loss_at + 1);
    if (call->micro > 0)
        return vector->add(options->backend, lane, lane, scalars, 2, options->stream);
    return vector->copy(options->backend, lane, scalars, 2 * sizeof(float), options->stream);
}

static enum status forward_node(const struct plan *plan, const struct plan_call *call, int n)
{
    const struct plan_options *options = &plan->options;
    enum op op = plan->tape->nodes[n].op;
    struct op_buffers buffers = { 0 };
    fill_buffers(plan, call, n, RUN_FORWARD, &buffers);
    fill_stats(plan, call, n, &buffers);
    buffers.scratch = plan_region_at(plan, call->stash, plan->nodes[n].scratch_forward);
    if (plan->nodes[n].info.din_in_forward)
        buffers.din[0] = plan_region_at(plan, call->stash, plan->nodes[n].din[0]);
    enum status st = options->table->op[op].forward(options->backend, plan->nodes[n].kernel,
                                                    &buffers, options->stream);
    return st == ST_OK ? plan_nodes_report(plan, n, false) : st;
}

/* Statistics were counted by the first run: these are written where nobody reads them. */
static void fill_unread_stats(const struct plan *plan, const struct plan_call *call, int n,
                              struct op_buffers *buffers)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    char *stats = plan_region_at(plan, call->stash, plan->nodes[n].stats_again);
    buffers->accumulate_stats = false;
    for (int i = 0; i < OP_STAT_MAX; i++) {
        if (at->stat[i] < 0)
            continue;
        buffers->stat_sum[i] = (float *)stats;
        if (stats != NULL)
            stats += plan_round_up(plan->tape->stats[at->stat[i]].count * sizeof(float));
    }
}

static enum status forward_again(const struct plan *plan, const struct plan_call *call, int n)
{
    const struct plan_options *options = &plan->options;
    const struct plan_node *node = &plan->nodes[n];
    struct op_buffers buffers = { 0 };
    fill_buffers(plan, call, n, RUN_AGAIN, &buffers);
    fill_unread_stats(plan, call, n, &buffers);
    buffers.scratch = plan_region_at(plan, call->stash, node->scratch_again);
    const enum op op = plan->tape->nodes[n].op;
    enum status st =
        options->table->op[op].forward(options->backend, node->kernel, &buffers, options->stream);
    if (st == ST_OK)
        st = plan_nodes_poison(plan, call->stash, node->again_time);
    return st == ST_OK ? plan_nodes_report(plan, n, true) : st;
}

/* Runs the nodes forward again that the backward of node n is the first to need. */
static enum status run_again(const struct plan *plan, const struct plan_call *call, int n)
{
    const int first = plan->nodes[n].again_begin;
    enum status st = ST_OK;
    for (int k = first; st == ST_OK && first != NO_NODE && k <= n; k++) {
        if (plan->nodes[k].again_for == n)
            st = forward_again(plan, call, k);
    }
    return st;
}

static enum status run_adaptations(const struct plan *plan, int stash, const struct plan_node *node)
{
    const struct plan_options *options = &plan->options;
    for (int i = 0; i < node->adaptation_count; i++) {
        const struct plan_adaptation *adaptation = &plan->adaptations[node->adaptation_begin + i];
        const void *from = plan_region_at(plan, stash, adaptation->from);
        void *to = plan_region_at(plan, stash, adaptation->to);
        enum status st;
        if (adaptation->other == NO_REGION) {
            st = options->table->reformat(options->backend, &adaptation->from_tensor, from,
                                          &adaptation->to_tensor, to, options->stream);
        } else {
            st = options->table->sum(options->backend, &adaptation->to_tensor, from,
                                     plan_region_at(plan, stash, adaptation->other), to,
                                     options->stream);
        }
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

/* Fills in the buffers of a kernel's backward. inputs, params: the gradients that it is to give. */
static void fill_gradients(const struct plan *plan, const struct plan_call *call, int n,
                           bool inputs, bool params, struct op_buffers *buffers)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    const int scratch = inputs ? node->scratch_backward : node->scratch_params;
    fill_buffers(plan, call, n, RUN_BACKWARD, buffers);
    buffers->scratch = plan_region_at(plan, call->stash, scratch);
    for (int i = 0; i < 2; i++)
        buffers->dout[i] = plan_region_at(plan, call->stash, node->dout[i]);
    for (int i = 0; inputs && i < OP_IN_MAX; i++) {
        buffers->din[i] = plan_region_at(plan, call->stash, node->din[i]);
        buffers->din_add[i] = plan_region_at(plan, call->stash, node->din_add[i]);
    }
    for (int i = 0; params && i < OP_PARAM_MAX; i++) {
        if (at->param[i] >= 0)
            buffers->dparam[i] = call->lane + lane_gradient_at(plan->tape, n, i);
    }
}

static enum status backward_node(const struct plan *plan, const struct plan_call *call, int n,
                                 enum plan_pass pass)
{
    const struct plan_options *options = &plan->options;
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    const bool inputs = pass != PLAN_PASS_PARAMS, params = pass != PLAN_PASS_INPUTS;
    enum status st = inputs ? run_adaptations(plan, call->stash, node) : ST_OK;
    if (st != ST_OK)
        return st;
    if (pass == PLAN_PASS_INPUTS && node->din[0] == NO_REGION && node->din[1] == NO_REGION)
        return ST_OK; /* nobody before it has parameters */
    struct op_buffers buffers = { 0 };
    fill_gradients(plan, call, n, inputs, params, &buffers);
    return options->table->op[at->op].backward(options->backend, node->kernel, &buffers,
                                               options->stream);
}

static enum status run_forward(const struct plan *plan, const struct plan_call *call,
                               struct plan_section section)
{
    const int last = plan->end - 1; /* its memory is poisoned when the loss was fetched */
    enum status st = ST_OK;
    if (plan->options.poison)
        st = poison_stash(plan, call->stash);
    for (int n = section.begin; st == ST_OK && n < section.end; n++) {
        st = forward_node(plan, call, n);
        if (st == ST_OK && n < last)
            st = plan_nodes_poison(plan, call->stash, n);
    }
    const bool has_scalars = plan->options.training && plan->end == plan->tape->node_count;
    return st == ST_OK && has_scalars ? add_lane_scalars(plan, call) : st;
}

static enum status run_backward(const struct plan *plan, const struct plan_call *call,
                                struct plan_section section)
{
    const bool second = section.pass == PLAN_PASS_PARAMS;
    enum status st = ST_OK;
    for (int n = section.end - 1; st == ST_OK && n >= section.begin; n--) {
        const struct plan_node *node = &plan->nodes[n];
        const int time = second ? node->params_time : node->backward_time;
        if (!node->backward || (second && plan->tape->nodes[n].param[0] < 0))
            continue;
        st = second ? ST_OK : run_again(plan, call, n);
        if (st == ST_OK)
            st = backward_node(plan, call, n, section.pass);
        if (st == ST_OK)
            st = plan_nodes_poison(plan, call->stash, time);
        if (st == ST_OK)
            st = plan_nodes_report(plan, n, true);
    }
    return st;
}

static enum status run_refresh(const struct plan *plan, const float *params,
                               struct plan_section section)
{
    const struct plan_options *options = &plan->options;
    enum status st = ST_OK;
    for (int n = section.begin; st == ST_OK && n < section.end; n++) {
        const struct plan_node *node = &plan->nodes[n];
        const struct tape_node *at = &plan->tape->nodes[n];
        const float *param[OP_PARAM_MAX] = { NULL };
        if (!plan_is_refreshed(node, section.pass))
            continue;
        for (int i = 0; i < OP_PARAM_MAX; i++) {
            if (at->param[i] >= 0)
                param[i] = params + plan->tape->params[at->param[i]].offset;
        }
        st = options->table->refresh(options->backend, node->kernel, param, node->cache,
                                     options->stream);
    }
    return st;
}

enum status plan_nodes_run(const struct plan *plan, const struct plan_call *call,
                           struct plan_section section)
{
    enum status st = ST_OK;
    switch (section.pass) {
    case PLAN_PASS_FORWARD:
        return run_forward(plan, call, section);
    case PLAN_PASS_BACKWARD:
    case PLAN_PASS_INPUTS:
        /* The gradients have come: what left the stage is not needed any more. */
        if (section.end == plan->end && plan->end < plan->tape->node_count)
            st = plan_nodes_poison(plan, call->stash, plan->end);
        break;
    case PLAN_PASS_PARAMS:
        break;
    case PLAN_PASS_REFRESH:
    case PLAN_PASS_REST:
        return run_refresh(plan, call->params, section);
    }
    return st == ST_OK ? run_backward(plan, call, section) : st;
}
