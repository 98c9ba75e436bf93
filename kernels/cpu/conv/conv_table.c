#include "kernels/cpu/conv/conv_table.h"

#include "kernels/cpu/conv/winograd.h"

#define SIMD              16 /* oneDNN's Winograd takes whole blocks only */
#define TILE              4  /* F(4×4, 3×3) */
#define TILES_MIN         64 /* oneDNN's: with fewer, transforming the weights costs too much */
#define TILES_MIN_FORWARD 16 /* our own: with fewer, reading the transformed weights does */
#define TILES_MIN_WEIGHTS 8

/*
 * Milliseconds of a call, one thread (backward-data is like forward):
 *                                     forward                  weights' gradient
 *                                     direct  oneDNN   own     direct  oneDNN   own
 *   64 channels, 28×28   batch 128     47       23     20.5     49      24.5    23.4
 *                        batch 32      11.4      5.8    5.1     12.5     6.4     5.0
 *   128 channels, 14×14  batch 128     45       24.8   20.2     44      25      24
 *                        batch 32      11.1      6.6    5.1     11.1     7.5     5.5
 *   256 channels, 7×7    batch 128     41       30     20.3     49      28      22.2
 *                        batch 32      10.2      8.6    5.7     11.7     7.0     5.1
 *   512 channels, 4×4    batch 128     54       32     21.5     85      33      21.7
 *                        batch 32      13.6     14.2    5.8     20      17.8     6.1
 *                        batch 16       7.1     10.7    5.1     11.1    16.2     3.6
 *                        batch 8        4.0      9.6             4.9    14.8     2.5
 */

/* Tiles of all samples; 0: F(4×4, 3×3) does not fit. */
static int64_t conv_tiles(const struct op_spec *spec)
{
    const struct op_attr *attr = &spec->attr;
    const int64_t *in = spec->in[0].dims;
    if (attr->kernel != 3 || attr->stride != 1 || attr->pad != 1)
        return 0;
    return in[0] * ((in[2] + TILE - 1) / TILE) * ((in[3] + TILE - 1) / TILE);
}

static enum conv_method of_onednn(const struct op_spec *spec)
{
    if (spec->in[0].dims[1] % SIMD != 0 || spec->attr.out % SIMD != 0)
        return CONV_DIRECT;
    return conv_tiles(spec) >= TILES_MIN ? CONV_WINOGRAD : CONV_DIRECT;
}

enum conv_method conv_table_forward(const struct op_spec *spec, bool own_works)
{
    const bool fits = spec->in[0].dims[1] % WINOGRAD_OUT_MULTIPLE == 0 &&
                      spec->attr.out % WINOGRAD_OUT_MULTIPLE == 0; /* both, for both directions */
    if (own_works && fits && conv_tiles(spec) >= TILES_MIN_FORWARD)
        return CONV_WINOGRAD_OWN;
    return of_onednn(spec);
}

enum conv_method conv_table_weights(const struct op_spec *spec, bool own_works)
{
    const bool fits = spec->in[0].dims[1] % WINOGRAD_DWEIGHTS_MULTIPLE == 0 &&
                      spec->attr.out % SIMD == 0 && !spec->attr.bias;
    if (own_works && fits && conv_tiles(spec) >= TILES_MIN_WEIGHTS)
        return CONV_WINOGRAD_OWN;
    return of_onednn(spec);
}
