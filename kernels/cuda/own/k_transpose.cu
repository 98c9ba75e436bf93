/*
 * Changes of layout and type: transposes of [batch, a, b], casts, sums.
 *
 * A block of a transpose moves a tile of `rows` × `columns` elements through shared memory, so that
 * reading and writing both run along the rows of memory. A tile is 32 × 32, or flatter where a or b
 * is small (3 channels, a 3×3 kernel). Its long side is a multiple of 32, so that it begins where a
 * sector of memory does.
 */
#include "kernels/cuda/own/k.h"
#include "kernels/cuda/own/vector.cuh"

#define TILE_SIDE     32
#define TILE_ELEMENTS (TILE_SIDE * TILE_SIDE)
#define TILE_SHARED   (2 * TILE_ELEMENTS) /* room for any tile with its rows padded */

struct tiles {
    int64_t a, b;
    int rows, columns, pitch; /* of a tile; pitch is odd, against bank conflicts */
    unsigned across;          /* tiles along b */
    bool accumulate;
};

/* The long side of a tile whose other one is `side`, below TILE_SIDE. */
static int long_side(int side)
{
    return TILE_ELEMENTS / side / TILE_SIDE * TILE_SIDE;
}

static struct tiles transpose_tiles_of(const struct k_transpose *args)
{
    struct tiles t = { args->a, args->b, TILE_SIDE, TILE_SIDE, 0, 0, args->accumulate };
    if (args->a < TILE_SIDE) {
        t.rows = (int)args->a;
        t.columns = long_side(t.rows);
    } else if (args->b < TILE_SIDE) {
        t.columns = (int)args->b;
        t.rows = long_side(t.columns);
    }
    t.columns = t.columns < args->b ? t.columns : (int)args->b;
    t.rows = t.rows < args->a ? t.rows : (int)args->a;
    t.pitch = t.columns | 1;
    t.across = (unsigned)((args->b + t.columns - 1) / t.columns);
    return t;
}

template <typename X, typename Y>
static __global__ void __launch_bounds__(VECTOR_THREADS)
    transpose_kernel(struct tiles t, const X *in, Y *out)
{
    SHARED_ARRAY(float, tile, TILE_SHARED);
    const int64_t a0 = (int64_t)(blockIdx.x / t.across) * t.rows;
    const int64_t b0 = (int64_t)(blockIdx.x % t.across) * t.columns;
    const int64_t base = (int64_t)blockIdx.y * t.a * t.b;
    const int count = t.rows * t.columns;
    for (int i = (int)threadIdx.x; i < count; i += VECTOR_THREADS) {
        const int row = i / t.columns, column = i % t.columns;
        if (a0 + row < t.a && b0 + column < t.b)
            load<1>(&tile[row * t.pitch + column], in + base + (a0 + row) * t.b + b0 + column);
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < count; i += VECTOR_THREADS) {
        const int column = i / t.rows, row = i % t.rows;
        if (a0 + row >= t.a || b0 + column >= t.b)
            continue;
        Y *const to = out + base + (b0 + column) * t.a + a0 + row;
        float before = 0.0f, v = tile[row * t.pitch + column];
        if (t.accumulate) {
            load<1>(&before, to);
            v += before;
        }
        store<1>(to, &v);
    }
}

enum status k_transpose(const struct k_transpose *args, void *stream)
{
    const struct k_transpose *const a = args;
    if (a->batch < 1 || a->a < 1 || a->b < 1)
        return ST_INVALID;
    const struct tiles t = transpose_tiles_of(a);
    const int64_t down = (a->a + t.rows - 1) / t.rows;
    if (down > INT32_MAX / (int64_t)t.across)
        return ST_INVALID;
    return with_both(a->from, a->to, [&](auto x, auto y) {
        using X = typename decltype(x)::type;
        using Y = typename decltype(y)::type;
        enum status st = ST_OK;
        for (int64_t first = 0; first < a->batch && st == ST_OK; first += 65535) {
            const int64_t rest = a->batch - first, offset = first * a->a * a->b;
            const dim3 grid((unsigned)down * t.across, (unsigned)(rest < 65535 ? rest : 65535));
            st = launch(transpose_kernel<X, Y>, grid, dim3(VECTOR_THREADS), 0, stream, t,
                        (const X *)a->in + offset, (Y *)a->out + offset);
        }
        return st;
    });
}

template <typename X, typename Y> struct cast_each {
    const X *in;
    Y *out;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float v[N];
        load<N>(v, in + i);
        store<N>(out + i, v);
    }
};

enum status k_cast(enum dtype from, const void *in, enum dtype to, void *out, int64_t n,
                   void *stream)
{
    return with_both(from, to, [&](auto x, auto y) {
        using X = typename decltype(x)::type;
        using Y = typename decltype(y)::type;
        const struct cast_each<X, Y> f = {
            (const X *)in, (Y *)out
        };
        if (is_aligned(in) && is_aligned(out))
            return launch_each<WIDTH_OF<X, Y>>(n, stream, f);
        return launch_each<1>(n, stream, f);
    });
}

template <typename T> struct sum_each {
    const T *x, *y;
    T *out;

    template <int N> __device__ __forceinline__ void at(int64_t i)
    {
        float v[N], w[N];
        load<N>(v, x + i);
        load<N>(w, y + i);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] += w[k];
        store<N>(out + i, v);
    }
};

enum status k_sum(enum dtype dtype, const void *x, const void *y, void *out, int64_t n,
                  void *stream)
{
    return with_type(dtype, [&](auto t) {
        using T = typename decltype(t)::type;
        const struct sum_each<T> f = {
            (const T *)x, (const T *)y, (T *)out
        };
        if (is_aligned(x) && is_aligned(y) && is_aligned(out))
            return launch_each<WIDTH_OF<T, T>>(n, stream, f);
        return launch_each<1>(n, stream, f);
    });
}

enum status k_vector_add(float *out, const float *x, const float *y, size_t n, void *stream)
{
    return k_sum(DTYPE_F32, x, y, out, (int64_t)n, stream);
}
