#include "tests/kernel/reference.h"

#include <math.h>

#include "common/check.h"

static double at4(const double *x, const int64_t *dims, const int64_t place[4])
{
    return x[((place[0] * dims[1] + place[1]) * dims[2] + place[2]) * dims[3] + place[3]];
}

struct tensor reference_out(const struct op_spec *spec)
{
    const int64_t *in = spec->in[0].dims;
    const struct op_attr *attr = &spec->attr;
    const int64_t three[1] = { 3 };
    const int64_t p = attr->stride < 1 ? 0 : op_windows(in[2], attr);
    const int64_t q = attr->stride < 1 ? 0 : op_windows(in[3], attr);
    switch (spec->op) {
    case OP_CONV2D:
        return tensor_plain(DTYPE_F32, 4, (const int64_t[]){ in[0], attr->out, p, q });
    case OP_MAX_POOL:
        return tensor_plain(DTYPE_F32, 4, (const int64_t[]){ in[0], in[1], p, q });
    case OP_BATCH_NORM:
    case OP_RELU:
        return tensor_plain(DTYPE_F32, spec->in[0].ndim, in);
    case OP_GLOBAL_AVG_POOL:
        return tensor_plain(DTYPE_F32, 2, in);
    case OP_FLATTEN:
        return tensor_plain(DTYPE_F32, 2, (const int64_t[]){ in[0], in[1] * in[2] * in[3] });
    case OP_LINEAR: {
        struct tensor out = spec->in[0];
        out.dims[out.ndim - 1] = attr->out;
        return tensor_plain(DTYPE_F32, out.ndim, out.dims);
    }
    case OP_GELU:
    case OP_DROPOUT:
    case OP_LAYER_NORM:
        return tensor_plain(DTYPE_F32, spec->in[0].ndim, in);
    case OP_EMBEDDING:
        return tensor_plain(DTYPE_F32, 3, (const int64_t[]){ in[0], in[1], attr->out });
    case OP_ATTENTION:
        return tensor_plain(DTYPE_F32, 3, (const int64_t[]){ in[0], in[1], in[2] / 3 });
    case OP_GATED: {
        struct tensor out = spec->in[0];
        out.dims[out.ndim - 1] /= 2;
        return tensor_plain(DTYPE_F32, out.ndim, out.dims);
    }
    case OP_ROTARY: {
        const int64_t depth = in[2] / (attr->heads + 2 * attr->kv_heads);
        return tensor_plain(DTYPE_F32, 3,
                            (const int64_t[]){ in[0], in[1], 3 * attr->heads * depth });
    }
    case OP_SOFTMAX_CROSS_ENTROPY:
        return tensor_plain(DTYPE_F32, 1, three);
    case OP_SEQUENCE:
        return tensor_plain(DTYPE_F32, 3, (const int64_t[]){ in[0], 1 + in[2] * in[3], in[1] });
    case OP_SELECT:
        return tensor_plain(DTYPE_F32, 2, (const int64_t[]){ in[0], in[2] });
    case OP_COUNT:
        break;
    }
    CHECK("an op" == NULL);
    return tensor_plain(DTYPE_F32, 1, three);
}

void reference_params(const struct op_spec *spec, int64_t out[OP_PARAM_MAX])
{
    const struct op_attr *attr = &spec->attr;
    const int64_t *in = spec->in[0].dims;
    const int64_t columns = in[spec->in[0].ndim - 1];
    out[0] = out[1] = 0;
    if (spec->op == OP_CONV2D)
        out[0] = attr->out * in[1] * attr->kernel * attr->kernel;
    if (spec->op == OP_LINEAR)
        out[0] = attr->out * columns;
    if (attr->bias)
        out[1] = attr->out;
    if (spec->op == OP_LAYER_NORM)
        out[0] = out[attr->rms ? 0 : 1] = columns;
    if (spec->op == OP_BATCH_NORM)
        out[0] = out[1] = in[1];
    if (spec->op == OP_EMBEDDING) {
        out[0] = attr->rows * attr->out;
        out[1] = attr->positions * attr->out;
    }
    if (spec->op == OP_SEQUENCE) {
        out[0] = in[1];
        out[1] = (1 + in[2] * in[3]) * in[1];
    }
}

static double conv_at(const struct reference *r, const int64_t place[4])
{
    const int64_t *in = r->spec.in[0].dims;
    const struct op_attr *attr = &r->spec.attr;
    const int64_t k = attr->kernel;
    double sum = attr->bias ? r->param[1][place[1]] : 0.0;
    for (int64_t c = 0; c < in[1]; c++) {
        for (int64_t w = 0; w < k * k; w++) {
            const int64_t h = place[2] * attr->stride - attr->pad + w / k;
            const int64_t v = place[3] * attr->stride - attr->pad + w % k;
            if (h < 0 || h >= in[2] || v < 0 || v >= in[3])
                continue;
            sum += at4(r->in[0], in, (const int64_t[]){ place[0], c, h, v }) *
                   r->param[0][(place[1] * in[1] + c) * k * k + w];
        }
    }
    return sum;
}

static double max_at(const struct reference *r, const int64_t place[4])
{
    const int64_t *in = r->spec.in[0].dims;
    const struct op_attr *attr = &r->spec.attr;
    double best = -INFINITY;
    for (int64_t w = 0; w < attr->kernel * attr->kernel; w++) {
        const int64_t h = place[2] * attr->stride - attr->pad + w / attr->kernel;
        const int64_t v = place[3] * attr->stride - attr->pad + w % attr->kernel;
        if (h < 0 || h >= in[2] || v < 0 || v >= in[3])
            continue;
        best = fmax(best, at4(r->in[0], in, (const int64_t[]){ place[0], place[1], h, v }));
    }
    return best;
}

static void windows(const struct reference *r, double *out,
                    double (*at)(const struct reference *, const int64_t[4]))
{
    const struct tensor t = reference_out(&r->spec);
    int64_t i = 0;
    for (int64_t n = 0; n < t.dims[0]; n++)
        for (int64_t c = 0; c < t.dims[1]; c++)
            for (int64_t pq = 0; pq < t.dims[2] * t.dims[3]; pq++, i++)
                out[i] = at(r, (const int64_t[]){ n, c, pq / t.dims[3], pq % t.dims[3] });
}

void reference_statistics(const struct reference *r, double *mean, double *variance)
{
    const int64_t *in = r->spec.in[0].dims;
    const int64_t hw = in[2] * in[3];
    const double count = (double)(in[0] * hw);
    for (int64_t c = 0; c < in[1]; c++) {
        double sum = 0.0, square = 0.0;
        for (int64_t i = 0; i < in[0] * hw; i++)
            sum += r->in[0][(i / hw * in[1] + c) * hw + i % hw];
        mean[c] = sum / count;
        for (int64_t i = 0; i < in[0] * hw; i++) {
            double d = r->in[0][(i / hw * in[1] + c) * hw + i % hw] - mean[c];
            square += d * d;
        }
        variance[c] = square / (count - 1.0);
    }
}

static void batch_norm(const struct reference *r, double *out)
{
    enum { CHANNELS_MAX = 64 };
    const int64_t *in = r->spec.in[0].dims;
    const int64_t hw = in[2] * in[3];
    const double count = (double)(in[0] * hw);
    double mean[CHANNELS_MAX], variance[CHANNELS_MAX];
    CHECK(in[1] <= CHANNELS_MAX);
    if (r->spec.training)
        reference_statistics(r, mean, variance);
    for (int64_t i = 0; i < in[0] * in[1] * hw; i++) {
        const int64_t c = i / hw % in[1];
        const double m = r->spec.training ? mean[c] : r->stat[0][c];
        const double v = r->spec.training ? variance[c] * (count - 1.0) / count : r->stat[1][c];
        double y = (r->in[0][i] - m) / sqrt(v + (double)r->spec.attr.eps) * r->param[0][c] +
                   r->param[1][c];
        if (r->spec.attr.residual)
            y += r->in[1][i];
        out[i] = r->spec.attr.relu ? fmax(y, 0.0) : y;
    }
}

static void global_avg_pool(const struct reference *r, double *out)
{
    const int64_t *in = r->spec.in[0].dims;
    const int64_t hw = in[2] * in[3];
    for (int64_t i = 0; i < in[0] * in[1]; i++) {
        out[i] = 0.0;
        for (int64_t j = 0; j < hw; j++)
            out[i] += r->in[0][i * hw + j] / (double)hw;
    }
}

static void linear(const struct reference *r, double *out)
{
    const int64_t o = r->spec.attr.out, columns = r->spec.in[0].dims[r->spec.in[0].ndim - 1];
    for (int64_t i = 0; i < tensor_elements(&r->spec.in[0]) / columns * o; i++) {
        double y = r->spec.attr.bias ? r->param[1][i % o] : 0.0;
        for (int64_t k = 0; k < columns; k++)
            y += r->in[0][i / o * columns + k] * r->param[0][i % o * columns + k];
        y = reference_activation(r->spec.attr.activation, y);
        out[i] = r->spec.attr.residual ? y + r->in[1][i] : y;
    }
}

static void softmax_cross_entropy(const struct reference *r, double *out)
{
    const int64_t n = r->spec.in[0].dims[r->spec.in[0].ndim - 1];
    const double smoothing = (double)r->spec.attr.label_smoothing;
    out[0] = out[1] = out[2] = 0.0;
    for (int64_t row = 0; row < tensor_elements(&r->spec.in[0]) / n; row++) {
        const double *x = r->in[0] + row * n;
        double sum = 0.0;
        if (r->labels[row] < 0)
            continue;
        int64_t best = 0;
        for (int64_t i = 0; i < n; i++) {
            sum += exp(x[i]);
            best = x[i] > x[best] ? i : best;
        }
        out[1] += 1.0;
        out[2] += best == r->labels[row] ? 1.0 : 0.0;
        for (int64_t i = 0; i < n; i++) {
            const double target =
                (i == r->labels[row] ? 1.0 - smoothing : 0.0) + smoothing / (double)n;
            out[0] -= target * (x[i] - log(sum));
        }
    }
}

static void sequence(const struct reference *r, double *out)
{
    const int64_t *in = r->spec.in[0].dims, pixels = in[2] * in[3], tokens = 1 + pixels;
    for (int64_t i = 0; i < in[0] * tokens * in[1]; i++) {
        const int64_t c = i % in[1], t = i / in[1] % tokens, n = i / in[1] / tokens;
        out[i] = r->param[1][t * in[1] + c] +
                 (t == 0 ? r->param[0][c] : r->in[0][(n * in[1] + c) * pixels + t - 1]);
    }
}

void reference_forward(const struct reference *r, double *out)
{
    const int64_t elements = tensor_elements(&r->spec.in[0]);
    switch (r->spec.op) {
    case OP_CONV2D:
        windows(r, out, conv_at);
        return;
    case OP_MAX_POOL:
        windows(r, out, max_at);
        return;
    case OP_BATCH_NORM:
        batch_norm(r, out);
        return;
    case OP_RELU:
        for (int64_t i = 0; i < elements; i++)
            out[i] = fmax(r->in[0][i], 0.0);
        return;
    case OP_FLATTEN:
        for (int64_t i = 0; i < elements; i++)
            out[i] = r->in[0][i];
        return;
    case OP_GLOBAL_AVG_POOL:
        global_avg_pool(r, out);
        return;
    case OP_LINEAR:
        linear(r, out);
        return;
    case OP_SOFTMAX_CROSS_ENTROPY:
        softmax_cross_entropy(r, out);
        return;
    case OP_GELU:
    case OP_DROPOUT:
    case OP_LAYER_NORM:
    case OP_EMBEDDING:
    case OP_ATTENTION:
    case OP_GATED:
    case OP_ROTARY:
        reference_text(r, out);
        return;
    case OP_SEQUENCE:
        sequence(r, out);
        return;
    case OP_SELECT:
        for (int64_t i = 0; i < tensor_elements(&r->spec.in[0]) / r->spec.in[0].dims[1]; i++) {
            const int64_t t = r->spec.in[0].dims[1], c = r->spec.in[0].dims[2];
            out[i] = r->in[0][(i / c * t + r->spec.attr.row) * c + i % c];
        }
        return;
    case OP_COUNT:
        break;
    }
    CHECK("an op" == NULL);
}
