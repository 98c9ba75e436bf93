#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "jobspec/graph/keys.h"

#define AT(member)   .offset = offsetof(struct jobspec_node, member)
#define FEATURES_MAX (1 << 24)
#define KEY(upper)   [GRAPH_KEY_##upper]
#define COMMON_KEYS  (GRAPH_HAS(NAME) | GRAPH_HAS(OP) | GRAPH_HAS(FROM))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* clang-format off: one row, one line */
static const struct graph_key_row keys[] = {
    KEY(NAME) = { "name", GRAPH_KIND_NAME, AT(name), .example = "name: conv1" },
    KEY(OP) = { "op", GRAPH_KIND_OP, AT(op), .example = "op: linear" },
    KEY(FROM) = { "from", GRAPH_KIND_NODE, AT(from) },
    KEY(OUT) = { "out", GRAPH_KIND_WHOLE, AT(out), 1, FEATURES_MAX, .example = "out: 64" },
    KEY(KERNEL) = { "kernel", GRAPH_KIND_WHOLE, AT(kernel), 1, 1024, .example = "kernel: 3" },
    KEY(STRIDE) = { "stride", GRAPH_KIND_WHOLE, AT(stride), 1, 1024 },
    KEY(PAD) = { "pad", GRAPH_KIND_WHOLE, AT(pad), 0, 1024 },
    KEY(BIAS) = { "bias", GRAPH_KIND_BOOL, AT(bias) },
    KEY(RELU) = { "relu", GRAPH_KIND_BOOL, AT(relu) },
    KEY(ACTIVATION) = { "activation", GRAPH_KIND_WORD, AT(activation) },
    KEY(RESIDUAL) = { "residual", GRAPH_KIND_NODE, AT(residual) },
    KEY(ROWS) = { "rows", GRAPH_KIND_WHOLE, AT(rows), 2, FEATURES_MAX, .example = "rows: 256" },
    KEY(POSITION) = { "position", GRAPH_KIND_NAME, AT(position) },
    KEY(STD) = { "std", GRAPH_KIND_REAL, AT(std), 0, 100, .open = true },
    KEY(TIED) = { "tied", GRAPH_KIND_NODE, AT(tied) },
    KEY(HEADS) = { "heads", GRAPH_KIND_WHOLE, AT(heads), 1, 1024, .example = "heads: 4" },
    KEY(EPS) = { "eps", GRAPH_KIND_REAL, AT(eps), 0, 1, .open = true },
    KEY(KV_HEADS) = { "kv_heads", GRAPH_KIND_WHOLE, AT(kv_heads), 1, 1024 },
    KEY(ROPE_THETA) = { "rope_theta", GRAPH_KIND_REAL, AT(rope_theta), 1, 1e9 },
    KEY(BIDIRECTIONAL) = { "bidirectional", GRAPH_KIND_BOOL, AT(bidirectional) },
    KEY(ROW) = { "row", GRAPH_KIND_WHOLE, AT(row), 0, FEATURES_MAX },
    KEY(P) = { "p", GRAPH_KIND_REAL, AT(p), 0, 1, .open = true, .example = "p: 0.1" },
};
/* clang-format on */

#define KEY_TEXT(upper, lower) #lower,
static const char *const key_names[] = { GRAPH_KEYS(KEY_TEXT) };
_Static_assert(COUNT(keys) == GRAPH_KEY_COUNT, "a row per key");

struct op_row {
    const char *name;
    unsigned needs, may;
};

#define OP_ROW(upper, lower, needs_, may_)                                                         \
    [GRAPH_OP_##upper] = { .name = #lower, .needs = (needs_), .may = (may_) },
static const struct op_row ops[] = { [GRAPH_OP_NONE] = { "", 0, 0 }, GRAPH_OPS(OP_ROW) };

static const char *const activations[] = { "none", "relu", "gelu", "gelu_erf", NULL };

const struct graph_key_row *graph_key_row(enum graph_key key)
{
    CHECK(key < GRAPH_KEY_COUNT);
    CHECK(strcmp(keys[key].name, key_names[key]) == 0);
    return &keys[key];
}

unsigned graph_keys_needed(enum graph_op op)
{
    CHECK(op < GRAPH_OP_COUNT);
    return ops[op].needs | GRAPH_HAS(OP);
}

unsigned graph_keys_allowed(enum graph_op op)
{
    CHECK(op < GRAPH_OP_COUNT);
    return ops[op].needs | ops[op].may | COMMON_KEYS;
}

const char *graph_op_name(enum graph_op op)
{
    return op < GRAPH_OP_COUNT ? ops[op].name : "";
}

enum graph_op graph_op_find(const char *name)
{
    for (unsigned op = GRAPH_OP_NONE + 1; op < GRAPH_OP_COUNT; op++) {
        if (strcmp(ops[op].name, name) == 0)
            return (enum graph_op)op;
    }
    return GRAPH_OP_NONE;
}

const char *graph_activation_word(unsigned activation)
{
    return activation < COUNT(activations) ? activations[activation] : NULL;
}

const char *graph_label(const struct jobspec_graph *graph, int64_t node, char out[64])
{
    const struct jobspec_node *at = &graph->nodes[node];
    if (at->name[0] != '\0') {
        (void)snprintf(out, 64, "%s", at->name);
    } else {
        (void)snprintf(out, 64, "%s (node %lld)", graph_op_name(at->op), (long long)node);
    }
    return out;
}

void graph_shape_text(const struct graph_shape *shape, char out[64])
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < shape->ndim; i++) {
        const int size = snprintf(out + used, 64 - used, "%s%lld", i > 0 ? ", " : "[",
                                  (long long)shape->dims[i]);
        used += size > 0 ? (size_t)size : 0;
    }
    (void)snprintf(out + used, 64 - used, "]%s", shape->is_tokens ? " tokens" : "");
}
