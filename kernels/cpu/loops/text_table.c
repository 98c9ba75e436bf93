/*
 * The table of all loops of the text ops, for one instruction set.
 */
#include "kernels/cpu/loops/text_parts.h"

const struct text_loops LOOPS_TABLE(text_loops) = {
    .convert = TEXT(convert),
    .add = TEXT(add),
    .activate = TEXT(activate),
    .activate_backward = TEXT(activate_backward),
    .column_sums = TEXT(column_sums),
    .dropout = TEXT(dropout),
    .layer_norm = TEXT(layer_norm),
    .layer_norm_backward = TEXT(layer_norm_backward),
    .softmax = TEXT(softmax),
    .softmax_backward = TEXT(softmax_backward),
    .attention = TEXT(attention),
    .attention_backward = TEXT(attention_backward),
    .dot = TEXT(dot),
    .gated = TEXT(gated),
    .gated_backward = TEXT(gated_backward),
    .turn = TEXT(turn),
};
