/*
 * Rotary positions, and the repetition of heads of k and v that several heads of q share.
 *
 * A block has one token. Its threads first compute the turn of each pair, then share the heads:
 * thread i has pairs i, i + ROTARY_THREADS, … of the narrow row, and moves each between there and
 * its places in the wide row: one of q, `group` of k and v.
 *
 * The angle is computed in double and brought into ±π, so that its error doesn't grow with the
 * place.
 *
 * Source: Su et al., arXiv 2104.09864, equation 34; Ainslie et al., arXiv 2305.13245.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"

#define ROTARY_THREADS 256
#define TWO_PI         6.283185307179586

/* turn[i]: the cosine and sine of pair i at place t. */
DEVICE_INLINE void rotary_turns(const struct k_rotary &a, int64_t t, float2 *turn)
{
    const int pairs = a.dim / 2;
    for (int i = (int)threadIdx.x; i < pairs; i += ROTARY_THREADS) {
        const double angle = (double)t * exp2(-(double)i / (double)pairs * log2((double)a.theta));
        const double rest = angle - TWO_PI * rint(angle / TWO_PI);
        float s, c;
        sincosf((float)rest, &s, &c);
        turn[i] = make_float2(c, s);
    }
    __syncthreads();
}

template <typename T, bool BACK>
static __global__ void __launch_bounds__(ROTARY_THREADS) rotary_kernel(struct k_rotary a)
{
    SHARED_ARRAY(float2, turn, K_ROTARY_DIM_MAX / 2);
    const int pairs = a.dim / 2, group = a.heads / a.kv_heads, heads = a.heads + 2 * a.kv_heads;
    const int64_t row = blockIdx.x;
    rotary_turns(a, row % a.t, turn);
    const T *const in = (const T *)a.in + row * (BACK ? 3 * a.heads : heads) * a.dim;
    T *const out = (T *)a.out + row * (BACK ? heads : 3 * a.heads) * a.dim;
    for (int item = (int)threadIdx.x; item < heads * pairs; item += ROTARY_THREADS) {
        const int head = item / pairs, i = item % pairs;
        const bool query = head < a.heads, value = head >= a.heads + a.kv_heads;
        const int count = query ? 1 : group;
        const int narrow = head * a.dim + i;
        const int wide = (query ? head : a.heads + (head - a.heads) * group) * a.dim + i;
        const float c = turn[i].x, s = BACK ? -turn[i].y : turn[i].y;
        float x[1], y[1], first = 0.0f, second = 0.0f;
        for (int h = 0; h < (BACK ? count : 1); h++) {
            const int at = BACK ? wide + h * a.dim : narrow;
            load<1>(x, in + at);
            load<1>(y, in + at + pairs);
            first += x[0];
            second += y[0];
        }
        x[0] = value ? first : first * c - second * s;
        y[0] = value ? second : second * c + first * s;
        for (int h = 0; h < (BACK ? 1 : count); h++) {
            const int at = BACK ? narrow : wide + h * a.dim;
            store<1>(out + at, x);
            store<1>(out + at + pairs, y);
        }
    }
}

template <bool BACK> static enum status rotary_run(const struct k_rotary *args, void *stream)
{
    const struct k_rotary *const a = args;
    if (a->n < 1 || a->t < 1 || a->n > INT32_MAX / a->t || a->dim < 2 || a->dim % 2 != 0 ||
        a->dim > K_ROTARY_DIM_MAX || a->kv_heads < 1 || a->heads < 1 ||
        a->heads % a->kv_heads != 0 || a->heads > (1 << 24) / a->dim || !(a->theta > 0.0f) ||
        !is_aligned(a->in) || !is_aligned(a->out))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        return launch(rotary_kernel<typename decltype(t)::type, BACK>,
                      dim3((unsigned)(a->n * a->t)), dim3(ROTARY_THREADS), 0, stream, *a);
    });
}

enum status k_rotary_forward(const struct k_rotary *args, void *stream)
{
    return rotary_run<false>(args, stream);
}

enum status k_rotary_backward(const struct k_rotary *args, void *stream)
{
    return rotary_run<true>(args, stream);
}
