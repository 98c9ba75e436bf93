#include <string.h>

#include "common/check.h"
#include "trainer/tape/plan_internal.h"

static void *region_at(const struct plan *plan, int region)
{
    return region == NO_REGION ? NULL : (char *)plan->arena + plan->regions[region].offset;
}

static const void *value_at(const struct plan *plan, const struct plan_call *call, int value)
{
    int producer = plan->tape->values[value].producer;
    if (producer < 0)
        return call->inputs[-1 - producer];
    return region_at(plan, plan->values[value].region);
}

/* What forward and backward of a node have in common. */
static void fill_buffers(const struct plan *plan, const struct plan_call *call, int n,
                         struct op_buffers *buffers)
{
    const struct tape *tape = plan->tape;
    const struct tape_node *at = &tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    for (int i = 0; i < at->in_count; i++)
        buffers->in[i] = value_at(plan, call, at->in[i]);
    buffers->out = region_at(plan, plan->values[at->out].region);
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        if (at->param[i] >= 0)
            buffers->param[i] = call->params + tape->params[at->param[i]].offset;
    }
    buffers->saved = region_at(plan, node->saved);
    buffers->cache = node->cache;
    buffers->draw = call->draw;
    buffers->loss_scale = call->loss_scale;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        buffers->accumulate[i] = call->micro > 0 || node->adds[i];
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
    memcpy(&nan, &bits, sizeof nan);
    return plan->options.table->vector.fill(plan->options.backend, data, nan, bytes / sizeof(float),
                                            plan->options.stream);
}

/* Tests: what ended at `time` must not be read again. */
static enum status poison_ended(const struct plan *plan, int time)
{
    for (int i = 0; plan->options.poison && i < plan->region_count; i++) {
        if (plan->regions[i].end != time)
            continue;
        enum status st = poison(plan, region_at(plan, i), plan->regions[i].bytes);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static void tick(const struct plan *plan, int node, bool backward)
{
    if (plan->options.progress != NULL)
        plan->options.progress(plan->options.progress_arg, node, backward);
}

/* Loss and targets of a micro-batch into the lane's vector, on the device. */
static enum status add_scalars(const struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    const struct vector_table *vector = &options->table->vector;
    const struct lane_layout *layout = &plan->layout;
    const float *scalars = value_at(plan, call, plan->tape->loss);
    float *lane = call->lane + layout->loss_at;
    enum status st =
        call->micro > 0
            ? vector->add(options->backend, lane, lane, scalars, 2, options->stream)
            : vector->copy(options->backend, lane, scalars, 2 * sizeof(float), options->stream);
    return st;
}

/* Not recorded: it differs from micro-batch to micro-batch. */
static enum status count_micro(const struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    return options->table->vector.fill(options->backend, call->lane + plan->layout.micro_at,
                                       (float)call->micro + 1, 1, options->stream);
}

/* Loss, targets and right guesses to the caller. */
static enum status tell_scalars(const struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    float *told = plan->told;
    enum status st =
        options->table->vector.copy(options->backend, told, value_at(plan, call, plan->tape->loss),
                                    SCALARS * sizeof(float), options->stream);
    if (st == ST_OK)
        st = options->table->stream_sync(options->backend, options->stream);
    if (st != ST_OK)
        return st;
    *call->loss_sum += (double)told[0];
    *call->counted += (int64_t)told[1];
    *call->correct += (int64_t)told[2];
    return ST_OK;
}

static enum status forward_node(const struct plan *plan, const struct plan_call *call, int n)
{
    const struct plan_options *options = &plan->options;
    enum op op = plan->tape->nodes[n].op;
    struct op_buffers buffers = { 0 };
    fill_buffers(plan, call, n, &buffers);
    fill_stats(plan, call, n, &buffers);
    buffers.scratch = region_at(plan, plan->nodes[n].scratch_forward);
    enum status st = options->table->op[op].forward(options->backend, plan->nodes[n].kernel,
                                                    &buffers, options->stream);
    if (st != ST_OK)
        return st;
    tick(plan, n, false);
    return ST_OK;
}

static enum status run_fixes(const struct plan *plan, const struct plan_node *node)
{
    const struct plan_options *options = &plan->options;
    for (int i = 0; i < node->fix_count; i++) {
        const struct fix *fix = &plan->fixes[node->fix_begin + i];
        const void *from = region_at(plan, fix->from);
        void *to = region_at(plan, fix->to);
        enum status st;
        if (fix->other == NO_REGION) {
            st = options->table->reformat(options->backend, &fix->from_tensor, from,
                                          &fix->to_tensor, to, options->stream);
        } else {
            st = options->table->sum(options->backend, &fix->to_tensor, from,
                                     region_at(plan, fix->other), to, options->stream);
        }
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}

static enum status backward_node(const struct plan *plan, const struct plan_call *call, int n)
{
    const struct plan_options *options = &plan->options;
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    enum status st = run_fixes(plan, node);
    if (st != ST_OK)
        return st;
    struct op_buffers buffers = { 0 };
    fill_buffers(plan, call, n, &buffers);
    buffers.scratch = region_at(plan, node->scratch_backward);
    for (int i = 0; i < 2; i++)
        buffers.dout[i] = region_at(plan, node->dout[i]);
    for (int i = 0; i < OP_IN_MAX; i++) {
        buffers.din[i] = region_at(plan, node->din[i]);
        buffers.din_add[i] = region_at(plan, node->din_add[i]);
    }
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        if (at->param[i] >= 0)
            buffers.dparam[i] = call->lane + plan->tape->params[at->param[i]].offset;
    }
    return options->table->op[at->op].backward(options->backend, node->kernel, &buffers,
                                               options->stream);
}

static enum status run_forward(const struct plan *plan, const struct plan_call *call,
                               struct piece piece)
{
    int last = plan->tape->node_count - 1;
    enum status st = ST_OK;
    if (plan->options.poison)
        st = poison(plan, plan->arena, plan->sizes.arena_bytes);
    for (int n = piece.begin; st == ST_OK && n < piece.end; n++) {
        st = forward_node(plan, call, n);
        if (st == ST_OK && n < last)
            st = poison_ended(plan, n);
    }
    return st == ST_OK && plan->options.training ? add_scalars(plan, call) : st;
}

enum status plan_run_piece(const struct plan *plan, const struct plan_call *call,
                           struct piece piece)
{
    if (!piece.backward)
        return run_forward(plan, call, piece);
    for (int n = piece.end - 1; n >= piece.begin; n--) {
        if (!plan->nodes[n].backward)
            continue;
        enum status st = backward_node(plan, call, n);
        if (st == ST_OK)
            st = poison_ended(plan, 2 * plan->tape->node_count - 1 - n);
        if (st != ST_OK)
            return st;
        tick(plan, n, true);
    }
    return ST_OK;
}

enum status plan_forward(struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    CHECK(options->stream != NULL);
    int last = plan->tape->node_count - 1;
    enum status st = plan_piece(plan, call, (struct piece){ .end = last + 1 });
    if (st == ST_OK && options->training)
        st = count_micro(plan, call);
    if (st == ST_OK && call->loss_sum != NULL)
        st = tell_scalars(plan, call);
    return st == ST_OK ? poison_ended(plan, last) : st;
}

enum status plan_backward(struct plan *plan, const struct plan_call *call, plan_ready_fn ready,
                          void *arg)
{
    CHECK(plan->options.training);
    size_t final = plan->layout.param_count; /* all from here on is final */
    if (ready != NULL)
        ready(arg, final, plan->layout.count - final);
    int end = plan->tape->node_count;
    for (int n = end - 1; n >= 0; n--) {
        const struct plan_node *node = &plan->nodes[n];
        if (!node->ends_piece)
            continue;
        struct piece piece = { .begin = n, .end = end, .backward = true };
        enum status st = plan_piece(plan, call, piece);
        if (st != ST_OK)
            return st;
        if (ready != NULL && node->final < final)
            ready(arg, node->final, final - node->final);
        final = node->final;
        end = n;
    }
    CHECK(final == 0);
    return ST_OK;
}

enum status plan_refresh(struct plan *plan, const float *params)
{
    const struct plan_options *options = &plan->options;
    for (int n = 0; n < plan->tape->node_count; n++) {
        const struct tape_node *at = &plan->tape->nodes[n];
        if (plan->nodes[n].cache == NULL)
            continue;
        const float *of[OP_PARAM_MAX] = { NULL };
        for (int i = 0; i < OP_PARAM_MAX; i++) {
            if (at->param[i] >= 0)
                of[i] = params + plan->tape->params[at->param[i]].offset;
        }
        enum status st = options->table->refresh(options->backend, plan->nodes[n].kernel, of,
                                                 plan->nodes[n].cache, options->stream);
        if (st != ST_OK)
            return st;
    }
    return ST_OK;
}
