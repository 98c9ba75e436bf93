/*
 * 3×3 convolution, stride 1, padding 1, by Winograd's F(4×4, 3×3) in AVX-512, with the transformed
 * weights kept from call to call.
 *
 * oneDNN's transforms the weights in every call; with 512 channels and few tiles (small maps, or
 * the small batches that many lanes make) that is most of the time. One thread.
 *
 * The interpolation points are 0, ±a, ±b, ∞ with a = 5/8 and b = 3/2. For a tile d (6×6 inputs), a
 * kernel g and the matrices that follow from the points:
 *
 *   y = Aᵀ [ Σ over channels (G g Gᵀ) ⊙ (Bᵀ d B) ] A
 *
 * The Σ is 36 matrix products, one per place ξ of the 6×6:  m[ξ] [tiles, K] = v[ξ] [tiles, C] ·
 * u[ξ].
 *
 * Shapes: x  [N, C, H, W] blocked by 16; y [N, K, H, W] blocked by 16
 *         u  [36, K/32, C, 32]
 *         v  [36, C/16, T, 16], m [36, B/16, T, 16]: T tiles and B outputs at a time, in scratch
 * Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016; the
 * points are oneDNN's (jit_avx512_core_f32_wino_conv_4x3), for their small rounding error.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WINOGRAD_PLACES       INT64_C(36)
#define WINOGRAD_IN_MULTIPLE  INT64_C(16) /* of input channels */
#define WINOGRAD_OUT_MULTIPLE INT64_C(32) /* of output channels */
#define WINOGRAD_DW_MULTIPLE  INT64_C(64) /* of input channels, for the weights' gradient */

/* How maps of h × w are cut into tiles. */
struct winograd_map {
    int64_t h, w, tiles_h, tiles_w;
    int64_t tiles; /* of all samples */
};

struct winograd {
    struct winograd_map map;
    int64_t c, k;
    int64_t tile_block, out_block; /* T and B */
};

/* c and k must be multiples of WINOGRAD_IN_MULTIPLE and WINOGRAD_OUT_MULTIPLE. */
struct winograd winograd_plan(int64_t n, int64_t c, int64_t k, int64_t h, int64_t w);
size_t winograd_cache_bytes(const struct winograd *w);
size_t winograd_scratch_bytes(const struct winograd *w);

/*
 * Canonical weights [K', C', 3, 3] to u. Forward: K' = k, C' = c. `backward`: of the convolution
 * that gives dx from dy, so that c = K' and k = C', kernels turned by 180°.
 */
void winograd_weights(const struct winograd *w, const float *canonical, bool backward, float *u);

/* bias [k] or NULL. */
void winograd_run(const struct winograd *w, const float *x, const float *u, const float *bias,
                  float *y, void *scratch);

/*
 * The gradient of the weights: F(3×3, 4×4), the outputs' gradient in the place of the kernel.
 *
 *   dW (+)= A₃ᵀ [ Σ over tiles (G₄ dy G₄ᵀ) ⊙ (Bᵀ d B) ] A₃
 *
 * Shapes: x, dy blocked by 16; dw canonical [K, C, 3, 3]
 *         v [36, C/16, T, 16], q [36, K/16, T, 16], and in blocks of 64 inputs and 16 outputs
 *         m [36, 16, 64]: one, or all of them where the tiles need more than one pass
 */
struct winograd_dw {
    struct winograd_map map;
    int64_t c, k;
    int64_t tile_block;
};

/* c must be a multiple of WINOGRAD_DW_MULTIPLE, k of 16. */
struct winograd_dw winograd_dw_plan(int64_t n, int64_t c, int64_t k, int64_t h, int64_t w);
size_t winograd_dw_scratch_bytes(const struct winograd_dw *w);
void winograd_dw_run(const struct winograd_dw *w, const float *x, const float *dy, bool accumulate,
                     float *dw, void *scratch);
