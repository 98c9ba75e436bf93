#include <stdlib.h>

#include "common/check.h"
#include "trainer/tape/plan_internal.h"
#include "trainer/tape/tape_cuts.h"

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

/* Finds the sections of a backward pass that tells what is final. With graphs, a section ends where
 * it has completed another bucket; without, each node is one. */
static void find_sections(struct plan *plan)
{
    const struct plan_options *options = &plan->options;
    size_t left = options->bucket_count;
    while (left > 0 && options->bucket_begin[left - 1] >= plan_stage_gradients_end(plan))
        left--; /* complete before the backward pass starts, or another stage's */
    int last = -1;
    for (int n = plan->end - 1; n >= plan->begin; n--) {
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
    const size_t last_final = plan_stage_last_final(plan);
    CHECK(left == 0 || options->bucket_begin[left - 1] < last_final);
    CHECK(plan->nodes[last].final == last_final);
    plan->nodes[last].ends_section = true;
}

/* Rows of logits may be pitched: nothing but the loss looks at them. */
static bool is_read_by_the_loss_alone(const struct tape *tape, int value)
{
    int readers = 0;
    for (int n = 0; n < tape->node_count; n++) {
        for (int i = 0; i < tape->nodes[n].in_count; i++)
            readers += tape->nodes[n].in[i] == value;
    }
    const struct tape_node *last = &tape->nodes[tape->node_count - 1];
    return readers == 1 && last->op == OP_SOFTMAX_CROSS_ENTROPY && last->in[0] == value;
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
                            .need_din0 = plan->values[at->in[0]].needs_gradient,
                            .dying_in0 = plan->options.training &&
                                         at->op == OP_SOFTMAX_CROSS_ENTROPY &&
                                         is_read_by_the_loss_alone(plan->tape, at->in[0]),
                            .pitched_out = is_read_by_the_loss_alone(plan->tape, at->out) };
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
    if (n < plan->begin || n >= plan->end)
        return ST_OK;
    plan->sizes.flops_forward += node->info.flops_forward;
    if (node->backward)
        plan->sizes.flops_backward += node->info.flops_backward;
    plan->sizes.cache_bytes += plan_round_up(node->info.cache_bytes);
    return ST_OK;
}

/* Returns the bytes of all stashes. ST_NO_MEMORY: the number overflows. */
static enum status arena_bytes(const struct plan *plan, size_t *out)
{
    return __builtin_mul_overflow(plan->sizes.arena_bytes, (size_t)plan->stashes, out)
               ? ST_NO_MEMORY
               : ST_OK;
}

static enum status allocate_plan(struct plan *plan)
{
    const struct backend_table *table = plan->options.table;
    struct backend *backend = plan->options.backend;
    const struct plan *share = plan->options.share;
    size_t bytes = 0, shared = 0;
    enum status st = arena_bytes(plan, &bytes);
    if (st == ST_OK && share != NULL)
        st = arena_bytes(share, &shared);
    if (st != ST_OK)
        return st;
    if (share != NULL && shared >= bytes) {
        plan->arena = share->arena;
    } else if (bytes > 0) {
        st = table->alloc(backend, bytes, &plan->own_arena);
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
    for (int n = plan->begin; n < plan->end; n++) {
        struct plan_node *node = &plan->nodes[n];
        if (node->info.cache_bytes == 0)
            continue;
        node->cache = (char *)plan->caches + at;
        at += plan_round_up(node->info.cache_bytes);
    }
    CHECK(at == plan->sizes.cache_bytes);
    return ST_OK;
}

/* The copy of a parameter that a node's kernel keeps, which an update may write. */
static bool has_copy(const struct plan *plan, int n, int param, struct param_copy *out)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    for (int i = 0; i < OP_PARAM_MAX && node->cache != NULL && node->info.caches_copies; i++) {
        if (at->param[i] != param || !node->info.cached[i].is)
            continue;
        *out = (struct param_copy){ .first = plan->tape->params[param].offset,
                                    .count = tape_param_elements(plan->tape, param),
                                    .out = (char *)node->cache + node->info.cached[i].at,
                                    .dtype = node->info.cached[i].dtype };
        return true;
    }
    return false;
}

/* An update writes one copy of an element: of a parameter that two kernels keep copies of, none. */
static int copies_of(const struct plan *plan, int param, struct param_copy *out)
{
    int count = 0;
    for (int n = plan->begin; n < plan->end; n++)
        count += has_copy(plan, n, param, out);
    return count;
}

static void note_copied(struct plan *plan)
{
    struct param_copy copy;
    for (int n = plan->begin; n < plan->end; n++) {
        struct plan_node *node = &plan->nodes[n];
        node->copied = node->cache != NULL && node->info.caches_copies;
        for (int i = 0; i < OP_PARAM_MAX && node->copied; i++) {
            node->copied = !node->info.cached[i].is ||
                           copies_of(plan, plan->tape->nodes[n].param[i], &copy) == 1;
        }
    }
}

size_t plan_copies(const struct plan *plan, struct param_copy *out)
{
    size_t count = 0;
    for (int p = 0; p < plan->tape->param_count; p++)
        count += copies_of(plan, p, &out[count]) == 1;
    return count;
}

static enum status prepare_plan(struct plan *plan)
{
    set_batch(plan);
    find_gradients(plan);
    plan_stage_find_parts(plan);
    find_sections(plan);
    for (int n = 0; n < plan->tape->node_count; n++) {
        enum status st = prepare_node(plan, n);
        if (st != ST_OK)
            return st;
    }
    enum status st = plan_memory_lay_out(plan);
    if (st != ST_OK || plan->options.stream == NULL)
        return st;
    st = allocate_plan(plan);
    if (st == ST_OK)
        note_copied(plan);
    return st;
}

static struct plan *plan_alloc(const struct tape *tape)
{
    struct plan *plan = calloc(1, sizeof(*plan));
    if (plan == NULL)
        return NULL;
    plan->tape = tape;
    plan->end = tape->node_count;
    plan->stashes = 1;
    plan->layout = lane_layout(tape);
    plan->nodes = calloc((size_t)tape->node_count, sizeof(*plan->nodes));
    plan->values = calloc((size_t)tape->value_count, sizeof(*plan->values));
    plan->regions = calloc(PLAN_REGIONS_MAX, sizeof(*plan->regions));
    plan->adaptations = calloc(PLAN_ADAPTATIONS_MAX, sizeof(*plan->adaptations));
    if (plan->nodes == NULL || plan->values == NULL || plan->regions == NULL ||
        plan->adaptations == NULL) {
        plan_free(plan);
        return NULL;
    }
    return plan;
}

static bool is_border(const struct tape *tape, int node)
{
    return node == 0 || node == tape->node_count || tape_is_cut(tape, node);
}

/* ST_INVALID: there is no such stage. */
static enum status check_options(const struct tape *tape, const struct plan_options *options)
{
    if (tape_finish(tape) != ST_OK || options->batch < 1)
        return ST_INVALID;
    const int end = options->end == 0 ? tape->node_count : options->end;
    if (!is_border(tape, options->begin) || !is_border(tape, end) || options->begin >= end)
        return ST_INVALID;
    return options->stashes >= 0 && options->stashes <= PLAN_STASHES_MAX ? ST_OK : ST_INVALID;
}

enum status plan_new(const struct tape *tape, const struct plan_options *options, struct plan **out)
{
    enum status st = check_options(tape, options);
    if (st != ST_OK)
        return st;
    struct plan *plan = plan_alloc(tape);
    if (plan == NULL)
        return ST_NO_MEMORY;
    plan->options = *options;
    plan->begin = options->begin;
    if (options->end > 0)
        plan->end = options->end;
    if (options->stashes > 0)
        plan->stashes = options->stashes;
    if (options->graphs) {
        plan->recordings = calloc(PLAN_RECORDINGS_MAX, sizeof(*plan->recordings));
        if (plan->recordings == NULL) {
            plan_free(plan);
            return ST_NO_MEMORY;
        }
    }
    st = prepare_plan(plan);
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

#define OPS_OF_A_WORD 16 /* operations that a core does while it fetches four bytes */

double plan_cost(const struct plan *plan, int node)
{
    const struct tape_node *at = &plan->tape->nodes[node];
    const struct kernel_info *info = &plan->nodes[node].info;
    double words = (double)info->out.bytes / sizeof(float);
    for (int i = 0; i < at->in_count; i++)
        words += (double)plan->values[at->in[i]].tensor.bytes / sizeof(float);
    for (int i = 0; i < OP_PARAM_MAX; i++)
        words += (double)tape_param_elements(plan->tape, at->param[i]);
    const double passes = plan->nodes[node].backward ? 3 : 1; /* backward touches all twice */
    return info->flops_forward + (plan->nodes[node].backward ? info->flops_backward : 0) +
           passes * words * OPS_OF_A_WORD;
}

const struct plan_sizes *plan_sizes(const struct plan *plan)
{
    return &plan->sizes;
}
