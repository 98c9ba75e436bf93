/*
 * conv2d in bfloat16 by AMX tiles, channels innermost: a sum of products with one matrix of weights
 * per tap, the input being read in place or from a padded copy; no matrix of columns is made.
 *
 * Positions of a pass are numbered along a grid of `rows` × `pitch` per sample, which is that of
 * the output with room for what lies beyond the edges: tap t of position i reads position i + shift
 * of an input image, everywhere with the same shift. Positions beyond an image are zero; outputs
 * beyond the tensor are computed and dropped. One zero column serves as the right edge of a row and
 * the left edge of the next, one zero row likewise. A stride of 2 splits a tensor into the images
 * of its even and odd rows and columns.
 *
 * Shapes: input and output channels in whole blocks of AMX_BLOCK; strides 1 and 2; no bias.
 * Source: the way to lay padded images out in one row follows "indirect" convolution (Dukhan,
 * arXiv:1907.02129) without its table of pointers.
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

/* The positions row + i·step, column + j·step of a tensor; h, w: how many there are. */
struct amx_image {
    int row, column;
    int64_t h, w;
    bool used; /* input: some tap reads it */
};

struct amx_tap {
    int image, place; /* place: r·S + s of the weights */
    int64_t shift;
};

/* The images of a tensor. */
struct amx_images {
    int64_t h, w, channels;
    int step, count;
    struct amx_image image[AMX_IMAGES_MAX];
};

/* One direction: out image o is the sum over taps[o]. */
struct amx_pass {
    int64_t n, rows, pitch;
    int64_t low, high; /* positions before the first, and after the last, that taps read */
    struct amx_images in, out;
    int tap_count[AMX_IMAGES_MAX];
    struct amx_tap taps[AMX_IMAGES_MAX][AMX_TAPS_MAX];
    int64_t places; /* R·S */
    bool dense;     /* the input is read in place */
    int64_t span;   /* positions that are copied at once */
};

/* The weights' gradient, chunk by chunk of positions. */
struct amx_dw {
    int64_t chunk;    /* positions; a multiple of AMX_BLOCK */
    bool single;      /* all of them are one chunk */
    int64_t line;     /* elements from one transposed channel to the next */
    int64_t channels; /* transposed at once */
    int64_t columns;  /* canonical: C·R·S */
    int64_t padded;   /* channels of the input, in whole blocks */
};

/*
 * The first convolution, from plain float32 images of few channels: each sample becomes a padded
 * bfloat16 copy, its channels innermost and rounded up to `group` of them, of which 32 neighbours
 * from a window's row on are one operand, so that a tap is a row of the window.
 */
struct amx_stem {
    int64_t n, channels, h, w, k, p, q;
    int64_t side, stride, pad;
    int64_t group; /* 1, 2 or 4 */
    int64_t pitch; /* elements of a row of the copy */
    int64_t steps; /* of 32 elements, for a row of the window */
    size_t copy_bytes;
};

bool conv_amx_takes(const struct op_spec *spec);
/* Forward (data: false) or backward-data of a convolution that conv_amx_takes. */
void conv_amx_plan(const struct op_spec *spec, bool data, struct amx_pass *pass);
size_t conv_amx_cache_bytes(const struct amx_pass *pass);
size_t conv_amx_scratch_bytes(const struct amx_pass *pass);
/* data may be NULL, and its cache. */
void conv_amx_weights(const struct amx_pass *forward, const float *canonical, uint16_t *cache,
                      const struct amx_pass *data, uint16_t *data_cache);
/* Out images without taps are set to zero. */
void conv_amx_run(const struct amx_pass *pass, const uint16_t *in, const uint16_t *weights,
                  uint16_t *out, void *scratch);

/* What a gradient is of: an input of the pass, or the images of a stem. */
struct amx_source {
    const uint16_t *x;
    const struct amx_stem *stem; /* or NULL */
    const float *images;         /* of a stem */
};

void conv_amx_dw_plan(const struct amx_pass *forward, struct amx_dw *dw);
/* Floats that are summed into. */
int64_t conv_amx_dw_sums(const struct amx_pass *forward, const struct amx_dw *dw);
size_t conv_amx_dw_scratch_bytes(const struct amx_pass *forward, const struct amx_dw *dw);
void conv_amx_dw_run(const struct amx_pass *forward, const struct amx_dw *dw,
                     const struct amx_source *source, const uint16_t *dy, bool add,
                     float *canonical, void *scratch);

bool conv_amx_stem_takes(const struct op_spec *spec);
/* gradient, dw: for conv_amx_dw_run, the columns of all windows being its input. */
void conv_amx_stem_plan(const struct op_spec *spec, struct amx_stem *stem,
                        struct amx_pass *gradient, struct amx_dw *dw);
size_t conv_amx_stem_cache_bytes(const struct amx_stem *stem);
void conv_amx_stem_weights(const struct amx_stem *stem, const float *canonical, uint16_t *cache);
/* scratch: copy_bytes */
void conv_amx_stem_run(const struct amx_stem *stem, const float *images, const uint16_t *weights,
                       uint16_t *out, void *scratch);
/* Elements of positions [first, first + count) of all windows, one line for each column. */
void conv_amx_stem_turn(const struct amx_stem *stem, const float *images, int64_t first,
                        int64_t count, uint16_t *to, int64_t line);
