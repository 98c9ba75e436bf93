#include "kernels/cpu/conv_table.h"

#define SIMD       16  /* Winograd there takes whole blocks only */
#define WIDE       512 /* from here on the weights outweigh the pixels … */
#define WIDE_SIDE  7   /* … of maps up to this side */
#define WIDE_WORTH 4   /* but dW of maps up to this side gains still */

bool conv_table_winograd(const struct op_spec *spec, enum conv_direction direction)
{
    const struct op_attr *attr = &spec->attr;
    const int64_t c = spec->in[0].dims[1], k = attr->out, side = spec->in[0].dims[2];
    if (attr->kernel != 3 || attr->stride != 1 || attr->pad != 1)
        return false;
    if (c < SIMD || k < SIMD || c % SIMD != 0 || k % SIMD != 0)
        return false;
    if (c < WIDE || k < WIDE || side > WIDE_SIDE)
        return true;
    return direction == CONV_BACKWARD_WEIGHTS && side <= WIDE_WORTH;
}
