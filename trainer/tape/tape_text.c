#include <stdio.h>
#include <string.h>

#include "trainer/tape/tape_append.h"

static int64_t last_dim(const struct tape *tape, int value)
{
    const struct tensor *tensor = &tape->values[value].tensor;
    return tensor->dims[tensor->ndim - 1];
}

/* The newest node's output: x's dims but for the last. */
static int append_like(struct tape *tape, int x, int64_t last)
{
    int64_t dims[TENSOR_DIMS_MAX] = { 0 };
    int ndim = tape->values[x].tensor.ndim;
    memcpy(dims, tape_dims(tape, x), (size_t)ndim * sizeof(dims[0]));
    dims[ndim - 1] = last;
    return tape_append_value(tape, ndim, dims, true);
}

/* The newest node's weight is that of an earlier one. */
static void tie_weight(struct tape *tape, struct tape_node *node, const char *name, int64_t out,
                       int64_t in)
{
    const int index = tape_find_param(tape, name);
    const struct tape_tensor *tensor = &tape->params[index < 0 ? 0 : index];
    if (index < 0 || tensor->ndim != 2 || tensor->dims[0] != out || tensor->dims[1] != in ||
        tape->tie_count == TAPE_TIES_MAX) {
        (void)tape_refuse(tape, ST_INVALID);
        return;
    }
    node->param[0] = index;
    node->tie[0] = tape->tie_count++;
    tape->ties[node->tie[0]] = (struct tape_tie){ .param = index,
                                                  .node = tape->node_count - 1,
                                                  .offset = tape->tie_elements };
    tape->tie_elements += tensor->count;
}

/* Appends the parts of a weight, or of a bias. Returns the first; refused unless they are all of
 * its rows. */
static int append_parts(struct tape *tape, const char *name, const struct tape_linear *linear,
                        struct tape_tensor_spec *spec)
{
    int first = -1, more = -1;
    int64_t rows = 0;
    for (int i = 0; i < TAPE_PARTS_MAX && linear->parts[i].name != NULL; i++) {
        char part[LIMIT_NAME];
        const int length = snprintf(part, sizeof(part), "%s.%s", name, linear->parts[i].name);
        if (length < 0 || (size_t)length >= sizeof(part) || linear->parts[i].rows < 1)
            return tape_refuse(tape, ST_INVALID);
        spec->dims[0] = linear->parts[i].rows;
        const int param = tape_append_param(tape, part, spec);
        if (param < 0)
            return -1;
        first = i == 0 ? param : first;
        rows += linear->parts[i].rows;
        more++;
    }
    if (rows != linear->out || linear->tied != NULL)
        return tape_refuse(tape, ST_INVALID);
    tape->params[first].more_parts = more;
    return first;
}

static void linear_params(struct tape *tape, struct tape_node *node, const char *name,
                          const struct tape_linear *linear, int64_t in)
{
    bool normal = linear->std > 0;
    struct tape_tensor_spec weight = { .suffix = "weight",
                                       .kind = TAPE_WEIGHT,
                                       .init = normal ? TAPE_INIT_NORMAL : TAPE_INIT_UNIFORM,
                                       .fan_in = in,
                                       .std = linear->std,
                                       .ndim = 2,
                                       .dims = { linear->out, in } };
    struct tape_tensor_spec bias = { .suffix = "bias",
                                     .kind = TAPE_BIAS,
                                     .init = normal ? TAPE_INIT_ZERO : TAPE_INIT_UNIFORM,
                                     .fan_in = in,
                                     .ndim = 1,
                                     .dims = { linear->out } };
    if (linear->parts[0].name != NULL) {
        node->param[0] = append_parts(tape, name, linear, &weight);
    } else if (linear->tied != NULL) {
        tie_weight(tape, node, linear->tied, linear->out, in);
    } else {
        node->param[0] = tape_append_param(tape, name, &weight);
    }
    if (linear->bias && linear->parts[0].name != NULL) {
        node->param[1] = append_parts(tape, name, linear, &bias);
    } else if (linear->bias) {
        node->param[1] = tape_append_param(tape, name, &bias);
    }
}

int tape_linear(struct tape *tape, const char *name, int x, const struct tape_linear *linear)
{
    if (!tape_has_value(tape, x) || tape->values[x].tensor.ndim < 2 || linear->out < 1 ||
        !(linear->std >= 0))
        return tape_refuse(tape, ST_INVALID);
    bool residual = linear->residual != TAPE_NO_RESIDUAL;
    if (residual && linear->activation != ACTIVATION_NONE)
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_LINEAR, x, residual ? linear->residual : -1);
    if (node == NULL)
        return -1;
    node->attr.out = linear->out;
    node->attr.bias = linear->bias;
    node->attr.activation = linear->activation;
    node->attr.residual = residual;
    linear_params(tape, node, name, linear, last_dim(tape, x));
    int out = append_like(tape, x, linear->out);
    if (residual && out >= 0 && !tape_same_dims(tape, out, linear->residual))
        return tape_refuse(tape, ST_INVALID);
    return out;
}

int tape_layer_norm(struct tape *tape, const char *name, int x)
{
    return tape_layer_norm_eps(tape, name, x, TAPE_NORM_EPSILON);
}

int tape_layer_norm_eps(struct tape *tape, const char *name, int x, float eps)
{
    struct tape_node *node = tape_append_node(tape, OP_LAYER_NORM, x, -1);
    if (node == NULL)
        return -1;
    node->attr.eps = eps;
    struct tape_tensor_spec spec = { .suffix = "weight",
                                     .kind = TAPE_NORM,
                                     .init = TAPE_INIT_ONE,
                                     .ndim = 1,
                                     .dims = { last_dim(tape, x) } };
    node->param[0] = tape_append_param(tape, name, &spec);
    spec.suffix = "bias";
    spec.init = TAPE_INIT_ZERO;
    node->param[1] = tape_append_param(tape, name, &spec);
    return append_like(tape, x, last_dim(tape, x));
}

int tape_rms_norm(struct tape *tape, const char *name, int x, float eps)
{
    struct tape_node *node = tape_append_node(tape, OP_LAYER_NORM, x, -1);
    if (node == NULL)
        return -1;
    if (!(eps > 0))
        return tape_refuse(tape, ST_INVALID);
    node->attr.eps = eps;
    node->attr.rms = true;
    const struct tape_tensor_spec spec = { .suffix = "weight",
                                           .kind = TAPE_NORM,
                                           .init = TAPE_INIT_ONE,
                                           .ndim = 1,
                                           .dims = { last_dim(tape, x) } };
    node->param[0] = tape_append_param(tape, name, &spec);
    return append_like(tape, x, last_dim(tape, x));
}

int tape_gated(struct tape *tape, int x)
{
    if (!tape_has_value(tape, x) || last_dim(tape, x) % 2 != 0)
        return tape_refuse(tape, ST_INVALID);
    if (tape_append_node(tape, OP_GATED, x, -1) == NULL)
        return -1;
    return append_like(tape, x, last_dim(tape, x) / 2);
}

int tape_rotary(struct tape *tape, int qkv, int heads, int kv_heads, float theta)
{
    if (!tape_has_dims(tape, qkv, 3) || heads < 1 || kv_heads < 1 || heads % kv_heads != 0 ||
        !(theta > 0))
        return tape_refuse(tape, ST_INVALID);
    const int64_t all = heads + 2 * (int64_t)kv_heads, depth = last_dim(tape, qkv) / all;
    if (last_dim(tape, qkv) % (2 * all) != 0)
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_ROTARY, qkv, -1);
    if (node == NULL)
        return -1;
    node->attr.heads = heads;
    node->attr.kv_heads = kv_heads;
    node->attr.rope_theta = theta;
    return append_like(tape, qkv, 3 * (int64_t)heads * depth);
}

int tape_embedding(struct tape *tape, int tokens, const struct tape_embedding *embedding)
{
    if (!tape_has_dims(tape, tokens, 2) || tape->values[tokens].tensor.dtype != DTYPE_I32 ||
        embedding->vocab < 1 || embedding->out < 1 || !(embedding->std > 0))
        return tape_refuse(tape, ST_INVALID);
    const int64_t *in = tape_dims(tape, tokens);
    const bool adds = embedding->residual != TAPE_NO_RESIDUAL;
    if (embedding->position != NULL && (embedding->context < in[1] || adds))
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node =
        tape_append_node(tape, OP_EMBEDDING, tokens, adds ? embedding->residual : -1);
    if (node == NULL)
        return -1;
    node->attr.residual = adds;
    node->attr.out = embedding->out;
    node->attr.rows = embedding->vocab;
    struct tape_tensor_spec spec = { .suffix = "weight",
                                     .kind = TAPE_EMBEDDING,
                                     .init = TAPE_INIT_NORMAL,
                                     .std = embedding->std,
                                     .ndim = 2,
                                     .dims = { embedding->vocab, embedding->out } };
    node->param[0] = tape_append_param(tape, embedding->token, &spec);
    if (embedding->position != NULL) {
        node->attr.positions = embedding->context;
        spec.dims[0] = embedding->context;
        node->param[1] = tape_append_param(tape, embedding->position, &spec);
    }
    const int out = tape_append_value(tape, 3, (int64_t[]){ in[0], in[1], embedding->out }, true);
    if (adds && out >= 0 && !tape_same_dims(tape, out, embedding->residual))
        return tape_refuse(tape, ST_INVALID);
    return out;
}

/* tokens: a value, or TAPE_NO_TOKENS. */
static int append_attention(struct tape *tape, int qkv, int tokens, int heads, bool bidirectional)
{
    if (!tape_has_dims(tape, qkv, 3) || heads < 1 ||
        tape_dims(tape, qkv)[2] % (3 * (int64_t)heads) != 0)
        return tape_refuse(tape, ST_INVALID);
    if (tokens != TAPE_NO_TOKENS &&
        (!tape_has_dims(tape, tokens, 2) || tape->values[tokens].tensor.dtype != DTYPE_I32 ||
         tape_dims(tape, tokens)[1] != tape_dims(tape, qkv)[1]))
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_ATTENTION, qkv, tokens);
    if (node == NULL)
        return -1;
    node->attr.heads = heads;
    node->attr.bidirectional = bidirectional;
    return append_like(tape, qkv, last_dim(tape, qkv) / 3);
}

int tape_attention(struct tape *tape, int qkv, int heads)
{
    return append_attention(tape, qkv, TAPE_NO_TOKENS, heads, false);
}

int tape_attention_both(struct tape *tape, int qkv, int tokens, int heads)
{
    return append_attention(tape, qkv, tokens, heads, true);
}

int tape_dropout(struct tape *tape, int x, int residual, float p)
{
    if (!tape_has_value(tape, x) || !(p >= 0 && p < 1))
        return tape_refuse(tape, ST_INVALID);
    bool adds = residual != TAPE_NO_RESIDUAL;
    if (p == 0)
        return adds ? tape_refuse(tape, ST_INVALID) : x;
    if (adds && !tape_same_dims(tape, x, residual))
        return tape_refuse(tape, ST_INVALID);
    struct tape_node *node = tape_append_node(tape, OP_DROPOUT, x, adds ? residual : -1);
    if (node == NULL)
        return -1;
    node->attr.drop = p;
    node->attr.residual = adds;
    node->attr.layer = tape->dropout_count++;
    return append_like(tape, x, last_dim(tape, x));
}
