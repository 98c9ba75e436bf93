/*
 * Positions of a pass's grid (amx.h), one after the other.
 */
#pragma once

#include "kernels/cpu/conv/amx.h"

struct amx_cursor {
    int64_t n, row, column;
};

/* Position i; may be before the first, or after the last. */
static inline struct amx_cursor amx_cursor_at(const struct amx_pass *pass, int64_t i)
{
    const int64_t sample = pass->rows * pass->pitch;
    int64_t n = i / sample, rest = i % sample;
    if (rest < 0) {
        n--;
        rest += sample;
    }
    return (struct amx_cursor){ .n = n, .row = rest / pass->pitch, .column = rest % pass->pitch };
}

static inline void amx_cursor_next(const struct amx_pass *pass, struct amx_cursor *at)
{
    if (++at->column < pass->pitch)
        return;
    at->column = 0;
    if (++at->row < pass->rows)
        return;
    at->row = 0;
    at->n++;
}

/* The first element of a position in the tensor, or -1 where the image has no such position. */
static inline int64_t amx_element(const struct amx_pass *pass, const struct amx_images *images,
                                  int image, const struct amx_cursor *at)
{
    const struct amx_image *one = &images->image[image];
    if (at->row >= one->h || at->column >= one->w || at->n < 0 || at->n >= pass->n)
        return -1;
    const int64_t row = one->row + at->row * images->stride;
    const int64_t column = one->column + at->column * images->stride;
    return ((at->n * images->h + row) * images->w + column) * images->channels;
}
