#include "common/check.h"
#include "trainer/plan/plan_internal.h"

/* Into the lane's vector. Not recorded: it differs from micro-batch to micro-batch. */
static enum status write_micro_count(const struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    return options->table->vector.fill(options->backend, call->lane + plan->layout.micro_at,
                                       (float)call->micro + 1, 1, options->stream);
}

/* Adds the scalars of this micro-batch to the caller's sums; waits for the device. */
static enum status fetch_scalars(const struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    const void *from = plan_nodes_value(plan, call, plan->tape->loss);
    enum status st = options->table->vector.copy(
        options->backend, plan->scalars, from, TAPE_LOSS_SCALARS * sizeof(float), options->stream);
    if (st == ST_OK)
        st = options->table->stream_sync(options->backend, options->stream);
    if (st != ST_OK)
        return st;
    *call->loss_sum += (double)plan->scalars[TAPE_LOSS_SUM];
    *call->counted += (int64_t)plan->scalars[TAPE_LOSS_TARGETS];
    *call->correct += (int64_t)plan->scalars[TAPE_LOSS_CORRECT];
    return ST_OK;
}

enum status plan_forward(struct plan *plan, const struct plan_call *call)
{
    const struct plan_options *options = &plan->options;
    CHECK(options->stream != NULL);
    CHECK(call->stash >= 0 && call->stash < plan->stashes);
    CHECK(call->loss_sum == NULL || plan->end == plan->tape->node_count);
    enum status st = plan_section_run(
        plan, call,
        (struct plan_section){ .begin = plan->begin, .end = plan->end, .pass = PLAN_PASS_FORWARD });
    if (st == ST_OK && options->training)
        st = write_micro_count(plan, call);
    if (st == ST_OK && call->loss_sum != NULL)
        st = fetch_scalars(plan, call);
    return st == ST_OK ? plan_nodes_poison(plan, call->stash, plan->end - 1) : st;
}

/* A pass that completes gradients: section by section, or as one where nobody is told. */
static enum status run_gradients(struct plan *plan, const struct plan_call *call,
                                 enum plan_pass pass, plan_final_fn on_final, void *arg)
{
    CHECK(plan->options.training);
    CHECK(call->stash >= 0 && call->stash < plan->stashes);
    if (plan->options.graphs && on_final == NULL) {
        const struct plan_section all = { .begin = plan->begin, .end = plan->end, .pass = pass };
        return plan_section_run(plan, call, all);
    }
    size_t final = plan->layout.stat_at; /* elements from here on are final */
    plan_stage_notify_final(plan, final, plan->layout.count, on_final, arg);
    int end = plan->end;
    for (int n = end - 1; n >= plan->begin; n--) {
        const struct plan_node *node = &plan->nodes[n];
        if (!node->ends_section)
            continue;
        struct plan_section section = { .begin = n, .end = end, .pass = pass };
        enum status st = plan_section_run(plan, call, section);
        if (st != ST_OK)
            return st;
        CHECK(node->final <= final);
        plan_stage_notify_final(plan, node->final, final, on_final, arg);
        final = node->final;
        end = n;
    }
    CHECK(final == plan_stage_last_final(plan));
    return ST_OK;
}

enum status plan_backward(struct plan *plan, const struct plan_call *call, plan_final_fn on_final,
                          void *arg)
{
    return run_gradients(plan, call, PLAN_PASS_BACKWARD, on_final, arg);
}

enum status plan_backward_inputs(struct plan *plan, const struct plan_call *call)
{
    CHECK(plan->options.training && plan->options.split);
    CHECK(call->stash >= 0 && call->stash < plan->stashes);
    struct plan_call inputs = *call;
    inputs.lane = NULL; /* so that a recording serves all lanes */
    inputs.micro = 0;
    const struct plan_section all = { .begin = plan->begin,
                                      .end = plan->end,
                                      .pass = PLAN_PASS_INPUTS };
    return plan_section_run(plan, &inputs, all);
}

enum status plan_backward_params(struct plan *plan, const struct plan_call *call,
                                 plan_final_fn on_final, void *arg)
{
    CHECK(plan->options.split);
    return run_gradients(plan, call, PLAN_PASS_PARAMS, on_final, arg);
}

static enum status refresh(struct plan *plan, const float *params, enum plan_pass pass)
{
    const struct plan_call call = { .params = params };
    const struct plan_section all = { .begin = plan->begin, .end = plan->end, .pass = pass };
    return plan_section_run(plan, &call, all);
}

enum status plan_refresh(struct plan *plan, const float *params)
{
    return refresh(plan, params, PLAN_PASS_REFRESH);
}

enum status plan_refresh_rest(struct plan *plan, const float *params)
{
    return refresh(plan, params, PLAN_PASS_REST);
}
