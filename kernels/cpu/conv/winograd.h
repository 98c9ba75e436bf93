/*
 * 3×3 convolution, stride 1, padding 1, by Winograd's F(4×4, 3×3) in AVX-512, with the transformed
 * weights kept from call to call. One thread.
 *
 * (oneDNN transforms the weights in every call. With 512 channels and few tiles, as small maps and
 * small batches have, that is most of its time.)
 *
 * A tile is 4×4 outputs y; d are the 6×6 inputs that they see, g a 3×3 kernel. With the points of
 * interpolation 0, ±a, ±b, ∞, where a = 5/8 and b = 3/2:
 *
 *   y = Aᵀ [ Σ over channels of (G g Gᵀ) ⊙ (Bᵀ d B) ] A
 *
 *        ⎡ a²b²   0   -(a²+b²)   0      1   0 ⎤         ⎡  1/(a²b²)                ⎤
 *        ⎢   0  -ab²    -b²      a      1   0 ⎥         ⎢  p        p·a      p·a²  ⎥
 *   Bᵀ = ⎢   0   ab²    -b²     -a      1   0 ⎥     G = ⎢  p       -p·a      p·a²  ⎥
 *        ⎢   0  -a²b    -a²      b      1   0 ⎥         ⎢  q        q·b      q·b²  ⎥
 *        ⎢   0   a²b    -a²     -b      1   0 ⎥         ⎢  q       -q·b      q·b²  ⎥
 *        ⎣   0  a²b²     0    -(a²+b²)  0   1 ⎦         ⎣                    1     ⎦
 *
 *        ⎡ 1    1    1    1    1    0 ⎤
 *   Aᵀ = ⎢ 0    a   -a    b   -b    0 ⎥                 p = 1 / (2a²(a² - b²))
 *        ⎢ 0    a²   a²   b²   b²   0 ⎥                 q = 1 / (2b²(b² - a²))
 *        ⎣ 0    a³  -a³   b³  -b³   1 ⎦
 *
 * The Σ is 36 matrix products, one per place ξ of the 6×6:
 *
 *   m[ξ] [tiles, K] = v[ξ] [tiles, C] · u[ξ] [C, K]        u = G g Gᵀ, v = Bᵀ d B, y = Aᵀ m A
 *
 * Shapes: x  [N, C, H, W] blocked by 16         y  [N, K, H, W] blocked by 16
 *         u  [36, K/32, C, 32]
 *         v  [36, C/16, T, 16]                  T tiles at a time, in scratch
 *         m  [36, B/16, T, 16]                  B outputs at a time, in scratch
 * Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016; the
 *         points are oneDNN's (jit_avx512_core_f32_wino_conv_4x3), for their small rounding error.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WINOGRAD_PLACES            INT64_C(36)
#define WINOGRAD_IN_MULTIPLE       INT64_C(16) /* of input channels */
#define WINOGRAD_OUT_MULTIPLE      INT64_C(32) /* of output channels */
#define WINOGRAD_DWEIGHTS_MULTIPLE INT64_C(64) /* of input channels, for the weights' gradient */

/* The tiles of maps of h × w; those at the right and lower edges may reach beyond. */
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
struct winograd winograd_geometry(int64_t n, int64_t c, int64_t k, int64_t h, int64_t w);
size_t winograd_cache_bytes(const struct winograd *w);
size_t winograd_scratch_bytes(const struct winograd *w);

/*
 * u, from the canonical weights.
 *
 *   forward    weights [k, c, 3, 3]
 *   backward   weights [c, k, 3, 3], each kernel turned by 180°: winograd_run then gives dx from
 *              dy. `w` has dy's channels as c and dx's as k.
 */
void winograd_weights(const struct winograd *w, const float *canonical, bool backward, float *u);

/* y = x * weights (+ bias). bias: [k] or NULL. */
void winograd_run(const struct winograd *w, const float *x, const float *u, const float *bias,
                  float *y, void *scratch);

/*
 * The weights' gradient, by F(3×3, 4×4): a tile of dy, 4×4, takes the kernel's place.
 *
 *   dW (+)= A₃ᵀ [ Σ over tiles of (G₄ dy G₄ᵀ) ⊙ (Bᵀ d B) ] A₃
 *
 *        ⎡  1/(a²b²)                        ⎤
 *        ⎢  p        p·a      p·a²     p·a³ ⎥            ⎡ 1    1    1    1    1    0 ⎤
 *   G₄ = ⎢  p       -p·a      p·a²    -p·a³ ⎥      A₃ᵀ = ⎢ 0    a   -a    b   -b    0 ⎥
 *        ⎢  q        q·b      q·b²     q·b³ ⎥            ⎣ 0    a²   a²   b²   b²   1 ⎦
 *        ⎢  q       -q·b      q·b²    -q·b³ ⎥
 *        ⎣                             1    ⎦
 *
 * Shapes: x   [N, C, H, W] blocked by 16    dy  [N, K, H, W] blocked by 16
 *         dw  [K, C, 3, 3]
 *         v   [36, C/16, T, 16]             Bᵀ d B, in scratch
 *         q   [36, K/16, T, 16]             G₄ dy G₄ᵀ, in scratch
 *         m   [36, 16, 64]                  the Σ of a block of 16 outputs and 64 inputs: one such
 *                                           block, or all where the tiles need several passes
 */
struct winograd_dweights {
    struct winograd_map map;
    int64_t c, k;
    int64_t tile_block;
};

/* c must be a multiple of WINOGRAD_DWEIGHTS_MULTIPLE, k of 16. */
struct winograd_dweights winograd_dweights_geometry(int64_t n, int64_t c, int64_t k, int64_t h,
                                                    int64_t w);
size_t winograd_dweights_scratch_bytes(const struct winograd_dweights *w);
void winograd_dweights_run(const struct winograd_dweights *w, const float *x, const float *dy,
                           bool accumulate, float *dw, void *scratch);
