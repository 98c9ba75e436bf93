#include <stdlib.h>

#include "common/check.h"
#include "trainer/tape/plan_internal.h"

/* Shapes with the batch. */
static void set_batch(struct plan *plan)
{
    for (int v = 0; v < plan->tape->value_count; v++) {
        const struct tape_value *from = &plan->tape->values[v];
        int64_t dims[TENSOR_DIMS_MAX] = { 0 };
        for (int i = 0; i < from->tensor.ndim; i++)
            dims[i] = from->tensor.dims[i];
        if (from->batched)
            dims[0] *= plan->options.batch;
        plan->values[v].tensor = tensor_plain(from->tensor.dtype, from->tensor.ndim, dims);
        plan->values[v].region = NO_REGION;
    }
}

/* A value needs a gradient where a parameter was read on the way to it. */
static void find_gradients(struct plan *plan)
{
    for (int n = 0; n < plan->tape->node_count; n++) {
        const struct tape_node *at = &plan->tape->nodes[n];
        bool needs = at->param[0] >= 0;
        for (int i = 0; i < at->in_count; i++)
            needs = needs || plan->values[at->in[i]].needs_gradient;
        plan->values[at->out].needs_gradient = needs;
        plan->nodes[n].backward = needs && plan->options.training;
    }
}

/* Parameters and ties lie in tape order, and the backward pass comes to them from the end: so
 * gradients become final from the last tie to the first parameter. Those of the first `params` and
 * `ties` aren't yet. */
static void find_finals(struct plan *plan)
{
    const struct tape *tape = plan->tape;
    int params = tape->param_count, ties = tape->tie_count;
    for (int n = tape->node_count - 1; n >= 0; n--) {
        while (ties > 0 && tape->ties[ties - 1].node >= n)
            ties--;
        while (ties == 0 && params > 0 && tape->params[params - 1].first_node >= n)
            params--;
        const bool all = params == tape->param_count;
        const size_t ties_left =
            ties == tape->tie_count ? tape->tie_elements : tape->ties[ties].offset;
        plan->nodes[n].final = all ? tape->param_elements + ties_left : tape->params[params].offset;
    }
    CHECK(params == 0);
    CHECK(ties == 0);
}

/* With graphs, a section of the backward pass ends where it has completed another bucket; without,
 * each node is one. */
static void find_sections(struct plan *plan)
{
    const struct plan_options *options = &plan->options;
    size_t left = options->bucket_count;
    while (left > 0 && options->bucket_begin[left - 1] >= plan->layout.stat_at)
        left--; /* complete before the backward pass starts */
    int last = -1;
    for (int n = plan->tape->node_count - 1; n >= 0; n--) {
        struct plan_node *node = &plan->nodes[n];
        if (!node->backward)
            continue;
        node->ends_section = !options->graphs;
        while (left > 0 && options->bucket_begin[left - 1] >= node->final) {
            left--;
            node->ends_section = true;
        }
        last = n;
    }
    if (last < 0)
        return;
    CHECK(left == 0);
    CHECK(plan->nodes[last].final == 0);
    plan->nodes[last].ends_section = true;
}

static enum status prepare_node(struct plan *plan, int n)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    struct plan_node *node = &plan->nodes[n];
    struct op_spec spec = { .op = at->op,
                            .attr = at->attr,
                            .in_count = at->in_count,
                            .math = precision_math(plan->tape, n, plan->options.math),
                            .training = plan->options.training,
                            .need_din0 = plan->values[at->in[0]].needs_gradient };
    for (int i = 0; i < at->in_count; i++)
        spec.in[i] = plan->values[at->in[i]].tensor;
    spec.out_dtype =
        precision_out(plan->tape, n, spec.in[0].dtype, plan->options.math, plan->options.amp);
    const struct backend_table *table = plan->options.table;
    enum status st =
        table->op[at->op].prepare(plan->options.backend, &spec, &node->kernel, &node->info);
    if (st != ST_OK)
        return st;
    struct tensor *out = &plan->values[at->out].tensor;
    CHECK(tensor_elements(&node->info.out) == tensor_elements(out));
    CHECK(node->info.out.dtype == spec.out_dtype);
    *out = node->info.out;
    plan->sizes.flops_forward += node->info.flops_forward;
    if (node->backward)
        plan->sizes.flops_backward += node->info.flops_backward;
    plan->sizes.cache_bytes += plan_round_up(node->info.cache_bytes);
    return ST_OK;
}

static enum status allocate_plan(struct plan *plan)
{
    const struct backend_table *table = plan->options.table;
    struct backend *backend = plan->options.backend;
    const struct plan *share = plan->options.share;
    enum status st = ST_OK;
    if (share != NULL && share->sizes.arena_bytes >= plan->sizes.arena_bytes) {
        plan->arena = share->arena;
    } else if (plan->sizes.arena_bytes > 0) {
        st = table->alloc(backend, plan->sizes.arena_bytes, &plan->own_arena);
    }
    if (st == ST_OK)
        st = table->alloc_host(backend, TAPE_LOSS_SCALARS * sizeof(float), (void **)&plan->scalars);
    if (st == ST_OK && plan->sizes.cache_bytes > 0)
        st = table->alloc(backend, plan->sizes.cache_bytes, &plan->caches);
    if (st != ST_OK)
        return st;
    if (plan->own_arena != NULL)
        plan->arena = plan->own_arena;
    size_t at = 0;
    for (int n = 0; n < plan->tape->node_count; n++) {
        struct plan_node *node = &plan->nodes[n];
        if (node->info.cache_bytes == 0)
            continue;
        node->cache = (char *)plan->caches + at;
        at += plan_round_up(node->info.cache_bytes);
    }
    CHECK(at == plan->sizes.cache_bytes);
    return ST_OK;
}

static enum status prepare_plan(struct plan *plan)
{
    set_batch(plan);
    find_gradients(plan);
    find_finals(plan);
    find_sections(plan);
    for (int n = 0; n < plan->tape->node_count; n++) {
        enum status st = prepare_node(plan, n);
        if (st != ST_OK)
            return st;
    }
    enum status st = plan_memory_lay_out(plan);
    if (st != ST_OK || plan->options.stream == NULL)
        return st;
    return allocate_plan(plan);
}

static struct plan *plan_alloc(const struct tape *tape)
{
    struct plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL)
        return NULL;
    plan->tape = tape;
    plan->layout = lane_layout(tape);
    plan->nodes = calloc((size_t)tape->node_count, sizeof *plan->nodes);
    plan->values = calloc((size_t)tape->value_count, sizeof *plan->values);
    plan->regions = calloc(PLAN_REGIONS_MAX, sizeof *plan->regions);
    plan->adaptations = calloc(PLAN_ADAPTATIONS_MAX, sizeof *plan->adaptations);
    if (plan->nodes == NULL || plan->values == NULL || plan->regions == NULL ||
        plan->adaptations == NULL) {
        plan_free(plan);
        return NULL;
    }
    for (int n = 0; n < tape->node_count; n++) {
        struct plan_node *node = &plan->nodes[n];
        node->saved = node->scratch_forward = node->scratch_backward = NO_REGION;
        for (int i = 0; i < OP_IN_MAX; i++)
            node->din[i] = node->din_add[i] = NO_REGION;
        node->dout[0] = node->dout[1] = NO_REGION;
    }
    return plan;
}

enum status plan_new(const struct tape *tape, const struct plan_options *options, struct plan **out)
{
    if (tape_finish(tape) != ST_OK || options->batch < 1)
        return ST_INVALID;
    struct plan *plan = plan_alloc(tape);
    if (plan == NULL)
        return ST_NO_MEMORY;
    plan->options = *options;
    if (options->graphs) {
        plan->recordings = calloc(PLAN_RECORDINGS_MAX, sizeof *plan->recordings);
        if (plan->recordings == NULL) {
            plan_free(plan);
            return ST_NO_MEMORY;
        }
    }
    enum status st = prepare_plan(plan);
    if (st != ST_OK) {
        plan_free(plan);
        return st;
    }
    *out = plan;
    return ST_OK;
}

void plan_free(struct plan *plan)
{
    if (plan == NULL)
        return;
    const struct backend_table *table = plan->options.table;
    for (int n = 0; plan->nodes != NULL && n < plan->tape->node_count; n++) {
        if (plan->nodes[n].kernel != NULL)
            table->kernel_free(plan->options.backend, plan->nodes[n].kernel);
    }
    if (plan->own_arena != NULL)
        table->free(plan->options.backend, plan->own_arena);
    if (plan->scalars != NULL)
        table->free_host(plan->options.backend, plan->scalars);
    if (plan->caches != NULL)
        table->free(plan->options.backend, plan->caches);
    free(plan->nodes);
    free(plan->values);
    free(plan->regions);
    free(plan->adaptations);
    free(plan->recordings);
    free(plan);
}

const struct plan_sizes *plan_sizes(const struct plan *plan)
{
    return &plan->sizes;
}
