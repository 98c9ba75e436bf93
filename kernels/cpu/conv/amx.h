/*
 * conv2d in bfloat16 by AMX tiles, the channels innermost: one product with a matrix of weights per
 * tap of the window, added up. No matrix of columns (im2col) is made: the input is read in place,
 * or from a padded copy.
 *
 * Input and output lie along one grid of `rows` × `pitch` positions per sample, with room for what
 * the window reaches beyond the edges. Positions are numbered row by row and sample after sample.
 * So a tap reads, for every output position i, input position i + shift, with the same shift:
 *
 *   a 3×3 window with pad 1 on 3 × 4 pixels: rows 4, pitch 5
 *
 *     x x x x .      tap (r, s) has shift (r - 1)·pitch + (s - 1)
 *     x x x x .      . is beyond the image: read as zero; what is computed there is dropped
 *     x x x x .      the column of zeros is the right edge of a row and the left edge of the next,
 *     . . . . .      the row of zeros the lower edge of a sample and the upper edge of the next
 *
 * A stride of 2 splits the larger tensor into 4 images: those of its even and odd rows and columns;
 * a tap reads (backward-data: writes) one of them at stride 1.
 *
 * Shapes: input and output channels are multiples of AMX_BLOCK; strides 1 and 2; no bias.
 * Source: laying padded images out in one row follows "indirect" convolution (Dukhan,
 *         arXiv:1907.02129), without its table of pointers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

#define AMX_BLOCK      INT64_C(32)
#define AMX_IMAGES_MAX 4
#define AMX_SIDE_MAX   INT64_C(7)
#define AMX_TAPS_MAX   (AMX_SIDE_MAX * AMX_SIDE_MAX)

/* The pixels (row + i·stride, column + j·stride) of a tensor, i < h, j < w. */
struct amx_image {
    int row, column;
    int64_t h, w;
    bool used; /* of an input: some tap reads it */
};

struct amx_tap {
    int image; /* of the input */
    int place; /* in the window: r·S + s */
    int64_t shift;
};

/* The images of a tensor. */
struct amx_images {
    int64_t h, w, channels;
    int stride, count;
    struct amx_image image[AMX_IMAGES_MAX];
};

/*
 * One direction, forward or backward-data. For each image o of its output, position i, channel k:
 *
 *   out[o][i][k] = Σ over taps t of o, channels c of in[t.image][i + t.shift][c]·W[t.place][c][k]
 */
struct amx_pass {
    int64_t n, rows, pitch;
    int64_t low, high; /* how far taps read before the first position, and behind the last */
    struct amx_images in, out;
    int tap_count[AMX_IMAGES_MAX];
    struct amx_tap taps[AMX_IMAGES_MAX][AMX_TAPS_MAX];
    int64_t places; /* R·S */
    bool dense;     /* the input is read in place */
    int64_t span;   /* positions that are copied at once */
};

/*
 * The weights' gradient: of a tap, dW[c][k] = Σ over positions i of x[i + shift][c]·dy[i][k]. The
 * positions are taken in chunks, whose sums are added in order.
 */
struct amx_dweights {
    int64_t chunk;    /* positions of one; a multiple of AMX_BLOCK */
    bool single;      /* there is one chunk only */
    int64_t line;     /* elements from one channel of the transposed x to the next */
    int64_t channels; /* that are transposed at once */
    int64_t columns;  /* of the canonical gradient [K, columns]: C·R·S */
    int64_t padded;   /* input channels, in whole blocks */
};

/*
 * The first convolution, from plain float32 images of few channels. Each sample becomes a padded
 * bfloat16 copy, its channels innermost and rounded up to `group`:
 *
 *   copy [h + 2·pad][w + 2·pad][group], pitch = (w + 2·pad)·group elements per row
 *
 * A row of the window at output (p, q) is the `blocks`·32 neighbours from element
 * (p·stride + r)·pitch + q·stride·group on. So a tap is a whole row of the window, and the weights
 * are zero where those neighbours are beyond it.
 */
struct amx_stem {
    int64_t n, channels, h, w, k, p, q;
    int64_t side, stride, pad;
    int64_t group;  /* 1, 2 or 4 */
    int64_t pitch;  /* elements of a row of the copy */
    int64_t blocks; /* of 32 elements, for a row of the window */
    size_t copy_bytes;
};

bool conv_amx_takes(const struct op_spec *spec);
/* Lays out forward (data: false) or backward-data of a convolution that conv_amx_takes. */
void conv_amx_geometry(const struct op_spec *spec, bool data, struct amx_pass *pass);
size_t conv_amx_cache_bytes(const struct amx_pass *pass);
size_t conv_amx_scratch_bytes(const struct amx_pass *pass);
/* Weights from [K, C, R, S] to the operands of one direction, or of both: data may be NULL. */
void conv_amx_weights(const struct amx_pass *forward, const float *canonical, uint16_t *cache,
                      const struct amx_pass *data, uint16_t *data_cache);
/* Computes a pass. Out images without taps are set to zero. */
void conv_amx_run(const struct amx_pass *pass, const uint16_t *in, const uint16_t *weights,
                  uint16_t *out, void *scratch);

/* The input whose weights' gradient is wanted. */
struct amx_source {
    const uint16_t *x;           /* of a pass */
    const struct amx_stem *stem; /* or, if not NULL, … */
    const float *images;         /* … the images of a stem */
};

void conv_amx_dweights_geometry(const struct amx_pass *forward, struct amx_dweights *dweights);
/* Floats that hold sums in scratch. */
int64_t conv_amx_dweights_sums(const struct amx_pass *forward, const struct amx_dweights *dweights);
size_t conv_amx_dweights_scratch_bytes(const struct amx_pass *forward,
                                       const struct amx_dweights *dweights);
void conv_amx_dweights_run(const struct amx_pass *forward, const struct amx_dweights *dweights,
                           const struct amx_source *source, const uint16_t *dy, bool add,
                           float *canonical, void *scratch);

bool conv_amx_stem_takes(const struct op_spec *spec);
/* gradient and dweights are for conv_amx_dweights_run, as of a 1×1 convolution whose input is the
 * matrix of columns: a channel for each element of the window (conv_amx_stem_turn makes it). */
void conv_amx_stem_geometry(const struct op_spec *spec, struct amx_stem *stem,
                            struct amx_pass *gradient, struct amx_dweights *dweights);
size_t conv_amx_stem_cache_bytes(const struct amx_stem *stem);
void conv_amx_stem_weights(const struct amx_stem *stem, const float *canonical, uint16_t *cache);
/* scratch: copy_bytes, for one sample's copy */
void conv_amx_stem_run(const struct amx_stem *stem, const float *images, const uint16_t *weights,
                       uint16_t *out, void *scratch);
/* The matrix of columns, transposed: to[column·line + i] of output positions first + i, i < count,
 * of all samples. */
void conv_amx_stem_turn(const struct amx_stem *stem, const float *images, int64_t first,
                        int64_t count, uint16_t *to, int64_t line);
