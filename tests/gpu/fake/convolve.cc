#include "tests/gpu/fake/convolve.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/gpu/fake/fake_internal.h"

enum fake_answer fake_convolution_check(const struct fake_convolution &c)
{
    for (int i = 0; i < 2; i++) {
        const int64_t room = c.x.dims[2 + i] + 2 * c.pad[i] - c.w.dims[2 + i];
        if (c.y.dims[2 + i] != room / c.stride[i] + 1)
            return FAKE_BAD;
    }
    if (c.x.dims[0] != c.y.dims[0] || c.x.dims[1] != c.w.dims[1] || c.y.dims[1] != c.w.dims[0])
        return FAKE_BAD;
    if (fake_only_planar() && c.x.dims[1] > 1 && c.x.strides[1] == 1)
        return FAKE_UNSUPPORTED;
    return c.x.type == c.y.type && c.x.type == c.w.type ? FAKE_TAKEN : FAKE_UNSUPPORTED;
}

static int64_t offset(const struct fake_tensor &t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return a * t.strides[0] + b * t.strides[1] + c * t.strides[2] + d * t.strides[3];
}

static float load(const struct fake_convolution &c, const struct fake_tensor &t, const void *array,
                  int64_t at)
{
    const float value = fake_load(t.type, array, at);
    if (c.nan)
        return NAN;
    return t.type == CUDA_R_32F && c.tf32 ? fake_tf32(value) : value;
}

/* Calls visit(x's place, w's place, y's place) for every product of an output. */
template <typename F>
static void each_window(const struct fake_convolution &c, const int64_t at[4], F visit)
{
    const int64_t n = at[0], k = at[1], p = at[2], q = at[3];
    for (int64_t ch = 0; ch < c.x.dims[1]; ch++) {
        for (int64_t r = 0; r < c.w.dims[2]; r++) {
            for (int64_t s = 0; s < c.w.dims[3]; s++) {
                const int64_t h = p * c.stride[0] - c.pad[0] + r;
                const int64_t w = q * c.stride[1] - c.pad[1] + s;
                if (h >= 0 && h < c.x.dims[2] && w >= 0 && w < c.x.dims[3])
                    visit(offset(c.x, n, ch, h, w), offset(c.w, k, ch, r, s),
                          offset(c.y, n, k, p, q));
            }
        }
    }
}

template <typename F> static void each_product(const struct fake_convolution &c, F visit)
{
    int64_t at[4];
    for (at[0] = 0; at[0] < c.y.dims[0]; at[0]++)
        for (at[1] = 0; at[1] < c.y.dims[1]; at[1]++)
            for (at[2] = 0; at[2] < c.y.dims[2]; at[2]++)
                for (at[3] = 0; at[3] < c.y.dims[3]; at[3]++)
                    each_window(c, at, visit);
}

struct product {
    int64_t to;
    float value;
};

/* The tensor that is written, and where. */
static const struct fake_tensor &written(const struct fake_convolution &c, void **out)
{
    const bool forward = c.direction == FAKE_FORWARD, data = c.direction == FAKE_DATA;
    *out = const_cast<void *>(forward ? c.y_at : (data ? c.x_at : c.w_at));
    return forward ? c.y : (data ? c.x : c.w);
}

static void convolve(const struct fake_convolution &c)
{
    void *array = nullptr;
    const struct fake_tensor &to = written(c, &array);
    const int64_t count = to.dims[0] * to.dims[1] * to.dims[2] * to.dims[3];
    std::vector<float> sums((size_t)count);
    std::vector<struct product> products;
    memset(c.workspace, 0x5a, FAKE_CONVOLUTION_WORKSPACE);
    each_product(c, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
        if (c.direction == FAKE_FORWARD) {
            products.push_back({ y_at, load(c, c.x, c.x_at, x_at) * load(c, c.w, c.w_at, w_at) });
        } else if (c.direction == FAKE_DATA) {
            products.push_back({ x_at, load(c, c.w, c.w_at, w_at) * load(c, c.y, c.y_at, y_at) });
        } else {
            products.push_back({ w_at, load(c, c.x, c.x_at, x_at) * load(c, c.y, c.y_at, y_at) });
        }
    });
    for (size_t i = 0; i < products.size(); i++) {
        const struct product &one = products[c.backwards ? products.size() - 1 - i : i];
        sums[(size_t)one.to] += one.value;
    }
    for (int64_t i = 0; i < count; i++) {
        float value = c.alpha * sums[(size_t)i];
        if (c.beta != 0.0f)
            value += c.beta * fake_load(to.type, array, i);
        fake_store(to.type, array, i, value);
    }
}

enum fake_answer fake_convolve(const struct fake_convolution &c, size_t workspace,
                               cudaStream_t stream)
{
    const enum fake_answer answer = fake_convolution_check(c);
    if (answer != FAKE_TAKEN)
        return answer;
    if (workspace < FAKE_CONVOLUTION_WORKSPACE || c.workspace == nullptr)
        return FAKE_BAD;
    return fake_enqueue(stream, [c] { convolve(c); }) ? FAKE_TAKEN : FAKE_FAILED;
}
