#include "trainer/tape/precision.h"

#include "common/check.h"

/* Returns the dtype of products in `math`. */
static enum dtype dtype_of(enum math math)
{
    switch (math) {
    case MATH_F32:
    case MATH_TF32:
        return DTYPE_F32;
    case MATH_BF16:
        return DTYPE_BF16;
    case MATH_F16:
        return DTYPE_F16;
    }
    check_failed("math", __FILE__, __LINE__);
}

/* True if a later node adds the value, or what a dropout leaves of it, to what it computes: the
 * stream of a model whose norms come behind the addition, as BERT's, is what the norms write. */
static bool is_residual(const struct tape *tape, int value)
{
    for (int n = tape->values[value].producer + 1; n < tape->node_count; n++) {
        const struct tape_node *node = &tape->nodes[n];
        if (node->attr.residual && node->in[1] == value)
            return true;
        if (node->op == OP_DROPOUT && node->in[0] == value && !node->attr.residual &&
            is_residual(tape, node->out))
            return true;
    }
    return false;
}

/* True if the node starts the residual stream, adds to it, or drops some of it. */
static bool writes_residual_stream(const struct tape *tape, const struct tape_node *node,
                                   enum dtype in0)
{
    if (node->op == OP_EMBEDDING || node->op == OP_SEQUENCE)
        return true;
    if (node->op == OP_LAYER_NORM)
        return is_residual(tape, node->out);
    if (node->op == OP_LINEAR)
        return node->attr.residual;
    return node->op == OP_DROPOUT && (node->attr.residual || in0 == DTYPE_F32);
}

enum dtype precision_out(const struct tape *tape, int node, enum dtype in0, enum math math,
                         enum amp amp)
{
    const struct tape_node *at = &tape->nodes[node];
    if (at->op == OP_SOFTMAX_CROSS_ENTROPY)
        return DTYPE_F32;
    if (at->op == OP_SELECT)
        return in0;
    if (amp == AMP_O1 && writes_residual_stream(tape, at, in0))
        return DTYPE_F32;
    return dtype_of(math);
}

enum math precision_math(const struct tape *tape, int node, enum math math)
{
    enum op op = tape->nodes[node].op;
    return op == OP_CONV2D || op == OP_LINEAR || op == OP_ATTENTION ? math : MATH_F32;
}
