#include "kernels/cpu/conv_table.h"

#define SIMD          16 /* oneDNN's Winograd takes whole blocks only … */
#define PAIR          32 /* … and ours pairs of them */
#define TILE          4  /* F(4×4, 3×3) */
#define TILES_MIN     64 /* with fewer, transforming the weights in each call is too much */
#define TILES_MIN_OWN 16

/*
 * Milliseconds of one forward call (backward-data is alike), one thread:
 *                                        direct   oneDNN   own
 *   64 channels, 28×28   batch 128         47       23     20.5
 *                        batch 32          11.4      5.8    5.1
 *   128 channels, 14×14  batch 128         45       24.8   20.2
 *                        batch 2            0.65     0.87
 *   256 channels, 7×7    batch 128         41       30     20.3
 *                        batch 32          10.2      8.6    5.7
 *                        batch 6            1.9      2.4
 *   512 channels, 4×4    batch 128         54       32     21.5
 *                        batch 32          13.6     14.2    5.8
 *                        batch 16           7.1     10.7    5.1
 */
static int64_t tiles_of(const struct op_spec *spec)
{
    const struct op_attr *attr = &spec->attr;
    const int64_t *in = spec->in[0].dims;
    if (attr->kernel != 3 || attr->stride != 1 || attr->pad != 1)
        return 0;
    return in[0] * ((in[2] + TILE - 1) / TILE) * ((in[3] + TILE - 1) / TILE);
}

enum conv_method conv_table_weights(const struct op_spec *spec)
{
    if (spec->in[0].dims[1] % SIMD != 0 || spec->attr.out % SIMD != 0)
        return CONV_DIRECT;
    return tiles_of(spec) >= TILES_MIN ? CONV_WINOGRAD : CONV_DIRECT;
}

enum conv_method conv_table_forward(const struct op_spec *spec, bool own_works)
{
    const bool pairs = spec->in[0].dims[1] % PAIR == 0 && spec->attr.out % PAIR == 0;
    if (own_works && pairs && tiles_of(spec) >= TILES_MIN_OWN)
        return CONV_WINOGRAD_OWN;
    return conv_table_weights(spec);
}
