/*
 * Transposes with a padded inner dimension, for convolutions whose channels must be a multiple.
 *
 * Conventions of k.h; `in` and `out` are aligned to their elements only.
 */
#pragma once

#include "kernels/cuda/own/k.h"

#ifdef __cplusplus
extern "C" {
#endif

struct k_pad {
    int64_t batch, a, padded, b; /* padded >= a */
    enum dtype from, to;
    const void *in;
    void *out;
    bool accumulate; /* k_unpad_transpose: add instead of write */
};

/* in [batch, a, b] → out [batch, b, padded], zeros beyond a. */
MUST_CHECK enum status k_pad_transpose(const struct k_pad *args, void *stream);
/* in [batch, b, padded] → out [batch, a, b] (+)=, what is beyond a is dropped. */
MUST_CHECK enum status k_unpad_transpose(const struct k_pad *args, void *stream);

#ifdef __cplusplus
}
#endif
