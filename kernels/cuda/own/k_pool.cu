/*
 * Pools of NHWC tensors. In backward each thread has an input element and looks at all windows that
 * it lies in: so every element has one writer, which adds in a fixed order.
 */
#include "kernels/cuda/own/columns.cuh"
#include "kernels/cuda/own/k.h"

#define POOL_KERNEL_MAX 15 /* its square of places fits a byte */

/* Places of WIDTH channels. */
template <int WIDTH> DEVICE_INLINE void load_places(uint8_t *place, const uint8_t *from)
{
    if constexpr (WIDTH == 1) {
        place[0] = *from;
    } else {
        uint32_t words[WIDTH / 4];
        check_aligned(from, WIDTH);
        if constexpr (WIDTH == 4) {
            words[0] = *(const uint32_t *)from;
        } else {
            const uint2 two = *(const uint2 *)from;
            words[0] = two.x;
            words[1] = two.y;
        }
        memcpy(place, words, WIDTH);
    }
}

template <int WIDTH> DEVICE_INLINE void store_places(uint8_t *to, const uint8_t *place)
{
    if constexpr (WIDTH == 1) {
        *to = place[0];
    } else {
        uint32_t words[WIDTH / 4];
        memcpy(words, place, WIDTH);
        check_aligned(to, WIDTH);
        if constexpr (WIDTH == 4)
            *(uint32_t *)to = words[0];
        else
            *(uint2 *)to = make_uint2(words[0], words[1]);
    }
}

/* A row is (sample, output position): one window. */
template <typename T, int WIDTH> struct max_forward {
    struct k_max_pool a;

    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        const uint32_t at = (uint32_t)row, q = at % (uint32_t)a.q, pn = at / (uint32_t)a.q;
        const int p = (int)(pn % (uint32_t)a.p);
        const int64_t n = pn / (uint32_t)a.p;
        const int h0 = p * a.stride - a.pad, w0 = (int)q * a.stride - a.pad;
        float best[WIDTH] = {}, v[WIDTH];
        uint8_t place[WIDTH] = {};
        bool first = true;
        for (int i = 0; i < a.kernel * a.kernel; i++) {
            const int h = h0 + i / a.kernel, w = w0 + i % a.kernel;
            if (h < 0 || h >= a.h || w < 0 || w >= a.w)
                continue;
            load<WIDTH>(v, (const T *)a.x + ((n * a.h + h) * a.w + w) * a.c + column);
#pragma unroll
            for (int k = 0; k < WIDTH; k++) {
                /* NaN wins and stays, as on the CPU. */
                const bool wins = first || (!(v[k] <= best[k]) && best[k] == best[k]);
                best[k] = wins ? v[k] : best[k];
                place[k] = wins ? (uint8_t)i : place[k];
            }
            first = false;
        }
        store<WIDTH>((T *)a.y + row * a.c + column, best);
        if (a.index != nullptr)
            store_places<WIDTH>(a.index + row * a.c + column, place);
    }
};

/* A row is (sample, input position). */
template <typename T, int WIDTH> struct max_backward {
    struct k_max_pool a;

    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        const uint32_t at = (uint32_t)row, hn = at / (uint32_t)a.w;
        const int w = (int)(at % (uint32_t)a.w) + a.pad, h = (int)(hn % (uint32_t)a.h) + a.pad;
        const int64_t n = hn / (uint32_t)a.h;
        const int p0 = h < a.kernel ? 0 : (h - a.kernel) / a.stride + 1;
        const int q0 = w < a.kernel ? 0 : (w - a.kernel) / a.stride + 1;
        float sum[WIDTH] = {}, v[WIDTH];
        uint8_t place[WIDTH];
        for (int p = p0; p < a.p && p * a.stride <= h; p++) {
            for (int q = q0; q < a.q && q * a.stride <= w; q++) {
                const int64_t from = ((n * a.p + p) * a.q + q) * a.c + column;
                const int here = (h - p * a.stride) * a.kernel + w - q * a.stride;
                load_places<WIDTH>(place, a.index + from);
                load<WIDTH>(v, (const T *)a.dy + from);
#pragma unroll
                for (int k = 0; k < WIDTH; k++)
                    sum[k] += place[k] == here ? v[k] : 0.0f;
            }
        }
        if (a.dx_add != nullptr) {
            load<WIDTH>(v, (const T *)a.dx_add + row * a.c + column);
#pragma unroll
            for (int k = 0; k < WIDTH; k++)
                sum[k] += v[k];
        }
        store<WIDTH>((T *)a.dx + row * a.c + column, sum);
    }
};

static bool pool_is_valid(const struct k_max_pool *a)
{
    const int64_t limit = INT32_MAX;
    return a->n >= 1 && a->h >= 1 && a->w >= 1 && a->c >= 1 && a->p >= 1 && a->q >= 1 &&
           a->kernel >= 1 && a->kernel <= POOL_KERNEL_MAX && a->stride >= 1 && a->pad >= 0 &&
           a->pad < a->kernel && a->h <= limit / a->w && a->n <= limit / (a->h * a->w) &&
           a->p <= limit / a->q && a->n <= limit / (a->p * a->q) &&
           (a->p - 1) * a->stride - a->pad < a->h && (a->q - 1) * a->stride - a->pad < a->w &&
           is_aligned(a->index);
}

enum status k_max_pool_forward(const struct k_max_pool *args, void *stream)
{
    const struct k_max_pool *const a = args;
    if (!pool_is_valid(a) || !is_aligned(a->x) || !is_aligned(a->y))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        const bool wide = a->c % WIDTH == 0;
        const struct columns s = columns_of(a->n * a->p * a->q, a->c, wide ? WIDTH : 1);
        const struct max_forward<T, WIDTH> wide_f = {
            *a
        };
        const struct max_forward<T, 1> f = {
            *a
        };
        return wide ? launch_columns<WIDTH, 0>(&s, wide_f, nullptr, stream)
                    : launch_columns<1, 0>(&s, f, nullptr, stream);
    });
}

enum status k_max_pool_backward(const struct k_max_pool *args, void *stream)
{
    const struct k_max_pool *const a = args;
    if (!pool_is_valid(a) || a->index == nullptr || !is_aligned(a->dy) || !is_aligned(a->dx_add) ||
        !is_aligned(a->dx))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        const bool wide = a->c % WIDTH == 0;
        const struct columns s = columns_of(a->n * a->h * a->w, a->c, wide ? WIDTH : 1);
        const struct max_backward<T, WIDTH> wide_f = {
            *a
        };
        const struct max_backward<T, 1> f = {
            *a
        };
        return wide ? launch_columns<WIDTH, 0>(&s, wide_f, nullptr, stream)
                    : launch_columns<1, 0>(&s, f, nullptr, stream);
    });
}

/* A block per sample and 32 columns. Thread (x, y) adds the positions y, y + 8, … of column x; then
 * the 8 are added in order. */
template <typename T>
static __global__ void __launch_bounds__(256) pool_average_kernel(struct k_avg_pool a)
{
    SHARED_ARRAY(float, shared, 256);
    const int x = (int)threadIdx.x % 32, y = (int)threadIdx.x / 32;
    const int64_t column = (int64_t)blockIdx.y * 32 + x;
    const T *const from = (const T *)a.in + (int64_t)blockIdx.x * a.positions * a.c + column;
    float sum = 0.0f;
    if (column < a.c) {
        for (int64_t i = y; i < a.positions; i += 8)
            sum += to_float(from[i * a.c]);
    }
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (y != 0 || column >= a.c)
        return;
    for (int i = 1; i < 8; i++)
        sum += shared[i * 32 + x];
    ((T *)a.out)[(int64_t)blockIdx.x * a.c + column] = from_float<T>(sum / (float)a.positions);
}

template <typename T, int WIDTH> struct average_backward {
    struct k_avg_pool a;

    __device__ __forceinline__ void begin(int64_t, int64_t) {}
    template <typename Sums>
    __device__ __forceinline__ void row(int64_t row, int64_t column, Sums &)
    {
        const int64_t n = (uint32_t)row / (uint32_t)a.positions;
        float v[WIDTH], add[WIDTH] = {};
        load<WIDTH>(v, (const T *)a.in + n * a.c + column);
        if (a.add != nullptr)
            load<WIDTH>(add, (const T *)a.add + row * a.c + column);
#pragma unroll
        for (int k = 0; k < WIDTH; k++)
            v[k] = v[k] / (float)a.positions + add[k];
        store<WIDTH>((T *)a.out + row * a.c + column, v);
    }
};

static bool average_is_valid(const struct k_avg_pool *a)
{
    return a->n >= 1 && a->positions >= 1 && a->c >= 1 && a->n <= INT32_MAX / a->positions &&
           (a->c + 31) / 32 <= 65535 && is_aligned(a->in) && is_aligned(a->add) &&
           is_aligned(a->out);
}

enum status k_avg_pool_forward(const struct k_avg_pool *args, void *stream)
{
    const struct k_avg_pool *const a = args;
    if (!average_is_valid(a))
        return ST_INVALID;
    const dim3 grid((unsigned)a->n, (unsigned)((a->c + 31) / 32));
    return with_type(a->dtype, [&](auto t) {
        return launch(pool_average_kernel<typename decltype(t)::type>, grid, dim3(256), 0, stream,
                      *a);
    });
}

enum status k_avg_pool_backward(const struct k_avg_pool *args, void *stream)
{
    const struct k_avg_pool *const a = args;
    if (!average_is_valid(a))
        return ST_INVALID;
    return with_type(a->dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        constexpr int WIDTH = WIDTH_OF<T, T>;
        const bool wide = a->c % WIDTH == 0;
        const struct columns s = columns_of(a->n * a->positions, a->c, wide ? WIDTH : 1);
        const struct average_backward<T, WIDTH> wide_f = {
            *a
        };
        const struct average_backward<T, 1> f = {
            *a
        };
        return wide ? launch_columns<WIDTH, 0>(&s, wide_f, nullptr, stream)
                    : launch_columns<1, 0>(&s, f, nullptr, stream);
    });
}
