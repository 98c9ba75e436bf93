#include "kernels/cpu/conv_table.h"

#define SIMD      16 /* Winograd there takes whole blocks only */
#define TILE      4  /* F(4×4, 3×3) */
#define TILES_MIN 64 /* with fewer, transforming the weights outweighs what is saved */

/*
 * Milliseconds, direct → Winograd (forward; the other directions are alike), one thread:
 *   64 channels, 28×28   batch 1, 49 tiles  0.34 → 0.25    batch 128  47 → 23
 *   128 channels, 14×14  batch 2, 32 tiles  0.65 → 0.87    batch 4, 64 tiles   1.31 → 1.22
 *   256 channels, 7×7    batch 6, 24 tiles  1.92 → 2.44    batch 32, 128 tiles 10.2 → 8.6
 *   512 channels, 4×4    batch 32, 32 tiles 13.6 → 14.2    batch 64, 64 tiles  27.1 → 19.6
 *   512 channels, 7×7    batch 8, 32 tiles  11.0 → 13.7    batch 16, 64 tiles  21.4 → 19.5
 */
bool conv_table_winograd(const struct op_spec *spec)
{
    const struct op_attr *attr = &spec->attr;
    const int64_t *in = spec->in[0].dims;
    if (attr->kernel != 3 || attr->stride != 1 || attr->pad != 1)
        return false;
    if (in[1] % SIMD != 0 || attr->out % SIMD != 0)
        return false;
    const int64_t tiles = in[0] * ((in[2] + TILE - 1) / TILE) * ((in[3] + TILE - 1) / TILE);
    return tiles >= TILES_MIN;
}
