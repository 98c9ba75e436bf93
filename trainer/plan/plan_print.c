#include <inttypes.h>
#include <stdio.h>

#include "trainer/plan/plan_internal.h"

static size_t node_params(const struct tape *tape, const struct tape_node *node)
{
    size_t count = 0;
    for (int i = 0; i < OP_PARAM_MAX; i++)
        count += tape_param_elements(tape, node->param[i]);
    return count;
}

static enum status print_node(const struct plan *plan, int n, struct buf *out)
{
    const struct tape_node *at = &plan->tape->nodes[n];
    const struct plan_node *node = &plan->nodes[n];
    const struct tensor *tensor = &node->info.out;
    char shape[64] = "";
    int used = 0;
    for (int i = 0; i < tensor->ndim && used < (int)sizeof(shape); i++) {
        used += snprintf(shape + used, sizeof(shape) - (size_t)used,
                         i > 0 ? "x%" PRId64 : "%" PRId64, tensor->dims[i]);
    }
    return buf_printf(out, "%4d  %-21s  %-18s  %-26s %10zu  %9.1f  %8.2f\n", n, op_name(at->op),
                      shape, node->info.implementation, node_params(plan->tape, at),
                      (double)(tensor->bytes + node->info.saved_bytes) / (1024.0 * 1024.0),
                      (node->info.flops_forward + node->info.flops_backward) / 1e9);
}

/* A line for each reason why something is slower here than elsewhere. */
static enum status print_slow(const struct plan *plan, struct buf *out)
{
    enum status st = ST_OK;
    for (int n = plan->begin; st == ST_OK && n < plan->end; n++) {
        const char *slow = plan->nodes[n].info.slow;
        int alike = 0;
        bool told = slow == NULL;
        for (int other = plan->begin; !told && other < plan->end; other++) {
            const bool same = plan->nodes[other].info.slow == slow;
            told = same && other < n;
            alike += same;
        }
        if (!told) {
            st = buf_printf(out, "warning    node %d (%s), %d in all: %s\n", n,
                            op_name(plan->tape->nodes[n].op), alike, slow);
        }
    }
    return st;
}

enum status plan_print(const struct plan *plan, struct buf *out)
{
    enum status st = buf_printf(out, "%4s  %-21s  %-18s  %-26s %10s  %9s  %8s\n", "node", "op",
                                "output", "implementation", "parameters", "MiB kept", "GFLOP");
    for (int n = plan->begin; st == ST_OK && n < plan->end; n++)
        st = print_node(plan, n, out);
    if (st == ST_OK)
        st = print_slow(plan, out);
    if (st != ST_OK)
        return st;
    const struct plan_sizes *sizes = &plan->sizes;
    return buf_printf(out,
                      "arena %.1f MiB (%.1f without reuse), kernel caches %.1f MiB, "
                      "%.2f GFLOP forward, %.2f again, %.2f backward, "
                      "%d gradient copies between formats\n",
                      (double)sizes->arena_bytes / (1024.0 * 1024.0),
                      (double)sizes->unshared_bytes / (1024.0 * 1024.0),
                      (double)sizes->cache_bytes / (1024.0 * 1024.0), sizes->flops_forward / 1e9,
                      sizes->flops_again / 1e9, sizes->flops_backward / 1e9, sizes->reformats);
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
