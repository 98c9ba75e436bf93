#include "trainer/tape/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/check.h"
#include "trainer/tape/plan_internal.h"

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

/* A gradient is wanted where a parameter lies before. */
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

/* Parameters become final in the order of their first readers, from the last on. */
static void find_finals(struct plan *plan)
{
    const struct tape *tape = plan->tape;
    size_t final = tape->param_elements;
    for (int n = tape->node_count - 1; n >= 0; n--) {
        for (int i = 0; i < OP_PARAM_MAX; i++) {
            int index = tape->nodes[n].param[i];
            if (index < 0)
                continue;
            const struct tape_tensor *param = &tape->params[index];
            plan->nodes[n].adds[i] = param->last_node != n;
            if (param->first_node == n && param->offset < final)
                final = param->offset;
        }
        plan->nodes[n].final = final;
    }
    CHECK(final == 0);
}

/* A piece of the backward pass ends where it has completed another segment. */
static void find_pieces(struct plan *plan)
{
    const struct plan_options *options = &plan->options;
    size_t left = options->segment_count;
    while (left > 0 && options->segments[left - 1] >= plan->layout.param_count)
        left--; /* complete before the backward pass starts */
    int last = -1;
    for (int n = plan->tape->node_count - 1; n >= 0; n--) {
        struct plan_node *node = &plan->nodes[n];
        if (!node->backward)
            continue;
        node->ends_piece = !options->graphs;
        while (left > 0 && options->segments[left - 1] >= node->final) {
            left--;
            node->ends_piece = true;
        }
        last = n;
    }
    if (last >= 0)
        plan->nodes[last].ends_piece = true;
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
    plan->sizes.cache_bytes += (node->info.cache_bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    return ST_OK;
}

static enum status allocate(struct plan *plan)
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
        st = table->alloc_host(backend, SCALARS * sizeof(float), (void **)&plan->told);
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
        at += (node->info.cache_bytes + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
    }
    return ST_OK;
}

static enum status prepare(struct plan *plan)
{
    set_batch(plan);
    find_gradients(plan);
    find_finals(plan);
    find_pieces(plan);
    for (int n = 0; n < plan->tape->node_count; n++) {
        enum status st = prepare_node(plan, n);
        if (st != ST_OK)
            return st;
    }
    enum status st = plan_memory(plan);
    if (st != ST_OK || plan->options.stream == NULL)
        return st;
    return allocate(plan);
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
    plan->fixes = calloc(PLAN_FIXES_MAX, sizeof *plan->fixes);
    if (plan->nodes == NULL || plan->values == NULL || plan->regions == NULL ||
        plan->fixes == NULL) {
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
        plan->records = calloc(PLAN_RECORDS_MAX, sizeof *plan->records);
        if (plan->records == NULL) {
            plan_free(plan);
            return ST_NO_MEMORY;
        }
    }
    enum status st = prepare(plan);
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
    if (plan->told != NULL)
        table->free_host(plan->options.backend, plan->told);
    if (plan->caches != NULL)
        table->free(plan->options.backend, plan->caches);
    free(plan->nodes);
    free(plan->values);
    free(plan->regions);
    free(plan->fixes);
    free(plan->records);
    free(plan);
}

const struct plan_sizes *plan_sizes(const struct plan *plan)
{
    return &plan->sizes;
}

static size_t node_params(const struct tape *tape, const struct tape_node *node)
{
    size_t count = 0;
    for (int i = 0; i < OP_PARAM_MAX; i++) {
        if (node->param[i] >= 0)
            count += tape->params[node->param[i]].count;
    }
    return count;
}

static enum status print_node(const struct plan *plan, int n, struct buf *out)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    const struct tensor *tensor = &node->info.out;
    char shape[64] = "";
    int used = 0;
    for (int i = 0; i < tensor->ndim && used < (int)sizeof shape; i++) {
        used += snprintf(shape + used, sizeof shape - (size_t)used,
                         i > 0 ? "x%" PRId64 : "%" PRId64, tensor->dims[i]);
    }
    return buf_printf(out, "%4d  %-21s  %-18s  %-26s %10zu  %9.1f  %8.2f\n", n, op_name(at->op),
                      shape, node->info.implementation, node_params(plan->tape, at),
                      (double)(tensor->bytes + node->info.saved_bytes) / (1024.0 * 1024.0),
                      (node->info.flops_forward + node->info.flops_backward) / 1e9);
}

enum status plan_print(const struct plan *plan, struct buf *out)
{
    enum status st = buf_printf(out, "%4s  %-21s  %-18s  %-26s %10s  %9s  %8s\n", "node", "op",
                                "output", "implementation", "parameters", "MiB kept", "GFLOP");
    for (int n = 0; st == ST_OK && n < plan->tape->node_count; n++)
        st = print_node(plan, n, out);
    if (st != ST_OK)
        return st;
    const struct plan_sizes *sizes = &plan->sizes;
    return buf_printf(out,
                      "arena %.1f MiB (%.1f without reuse), kernel caches %.1f MiB, "
                      "%.2f GFLOP forward, %.2f backward, %d gradient copies between formats\n",
                      (double)sizes->arena_bytes / (1024.0 * 1024.0),
                      (double)sizes->unshared_bytes / (1024.0 * 1024.0),
                      (double)sizes->cache_bytes / (1024.0 * 1024.0), sizes->flops_forward / 1e9,
                      sizes->flops_backward / 1e9, sizes->reformats);
}

enum status plan_pins(const struct plan *plan, struct buf *out)
{
    for (int n = 0; n < plan->tape->node_count; n++) {
        enum status st =
            buf_printf(out, n == 0 ? "[\"%s\"" : ",\"%s\"", plan->nodes[n].info.implementation);
        if (st != ST_OK)
            return st;
    }
    return buf_append_text(out, "]");
}
