#include <math.h>

#include "common/check.h"
#include "common/rng.h"
#include "kernels/backend.h"
#include "tests/kernel/reference.h"

double reference_activation(enum activation kind, double x)
{
    switch (kind) {
    case ACTIVATION_NONE:
        return x;
    case ACTIVATION_RELU:
        return fmax(x, 0.0);
    case ACTIVATION_GELU_TANH:
        return x / 2.0 * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case ACTIVATION_GELU_ERF:
        return x / 2.0 * (1.0 + erf(x / sqrt(2.0)));
    }
    return x;
}

static void dropout(const struct reference *r, double *out)
{
    const struct tensor *in = &r->spec.in[0];
    const int64_t count = tensor_elements(in) / in->dims[0];
    const double p = (double)r->spec.attr.drop;
    const uint64_t key = (uint64_t)r->draw[OP_DRAW_KEY + 1] << 32 | r->draw[OP_DRAW_KEY];
    for (int64_t i = 0; i < tensor_elements(in); i++) {
        const uint32_t e = (uint32_t)(i % count);
        const struct rng_counter w =
            rng_words(key, e / 4, (uint32_t)r->spec.attr.layer,
                      r->draw[OP_DRAW_SAMPLES + i / count], r->draw[OP_DRAW_STEP]);
        const bool keep = rng_uniform(w.word[e % 4]) >= r->spec.attr.drop;
        out[i] = !r->spec.training ? r->in[0][i] : keep ? r->in[0][i] / (1.0 - p) : 0.0;
        if (r->spec.attr.residual)
            out[i] += r->in[1][i];
    }
}

static void layer_norm(const struct reference *r, double *out)
{
    const struct tensor *in = &r->spec.in[0];
    const int64_t n = in->dims[in->ndim - 1];
    for (int64_t row = 0; row < tensor_elements(in) / n; row++) {
        const double *x = r->in[0] + row * n;
        double mean = 0.0, variance = 0.0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        const double root = sqrt(variance + (double)r->spec.attr.eps);
        for (int64_t i = 0; i < n; i++)
            out[row * n + i] = (x[i] - mean) / root * r->param[0][i] + r->param[1][i];
    }
}

static void rms_norm(const struct reference *r, double *out)
{
    const struct tensor *in = &r->spec.in[0];
    const int64_t n = in->dims[in->ndim - 1];
    for (int64_t row = 0; row < tensor_elements(in) / n; row++) {
        const double *x = r->in[0] + row * n;
        double square = 0.0;
        for (int64_t i = 0; i < n; i++)
            square += x[i] * x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            out[row * n + i] = x[i] / sqrt(square + (double)r->spec.attr.eps) * r->param[0][i];
    }
}

static void embedding(const struct reference *r, double *out)
{
    const int64_t t = r->spec.in[0].dims[1], n = r->spec.attr.out;
    for (int64_t i = 0; i < tensor_elements(&r->spec.in[0]) * n; i++) {
        out[i] = r->param[0][r->labels[i / n] * n + i % n];
        if (r->spec.attr.positions > 0)
            out[i] += r->param[1][i / n % t * n + i % n];
        if (r->spec.attr.residual)
            out[i] += r->in[1][i];
    }
}

/* Whether a query sees a key of sample n. */
static bool is_seen(const struct reference *r, int64_t n, int64_t query, int64_t key)
{
    const int64_t t = r->spec.in[0].dims[1];
    int64_t last = t - 1;
    while (r->spec.in_count == 2 && last > 0 && r->labels[n * t + last] == 0)
        last--;
    return key <= last && (r->spec.attr.bidirectional || key <= query);
}

/* One head's output for one query of sample n; q, k and v are columns of qkv. */
static void attend(const struct reference *r, const double *qkv, const int64_t place[2],
                   int64_t head, double *out)
{
    const int64_t n = place[0], query = place[1];
    const int64_t columns = r->spec.in[0].dims[2], c = columns / 3;
    const int64_t depth = c / r->spec.attr.heads;
    const double *q = qkv + query * columns + head * depth;
    double sum = 0.0;
    for (int64_t d = 0; d < depth; d++)
        out[d] = 0.0;
    for (int64_t t = 0; t < r->spec.in[0].dims[1]; t++) {
        if (!is_seen(r, n, query, t))
            continue;
        const double *k = qkv + t * columns + c + head * depth;
        double score = 0.0;
        for (int64_t d = 0; d < depth; d++)
            score += q[d] * k[d];
        const double p = exp(score / sqrt((double)depth));
        sum += p;
        for (int64_t d = 0; d < depth; d++)
            out[d] += p * k[c + d];
    }
    for (int64_t d = 0; d < depth; d++)
        out[d] /= sum;
}

static void attention(const struct reference *r, double *out)
{
    const int64_t *in = r->spec.in[0].dims;
    const int64_t c = in[2] / 3, heads = r->spec.attr.heads;
    for (int64_t i = 0; i < in[0] * in[1] * heads; i++) {
        const int64_t row = i / heads;
        const int64_t place[2] = { row / in[1], row % in[1] };
        attend(r, r->in[0] + place[0] * in[1] * in[2], place, i % heads,
               out + row * c + i % heads * (c / heads));
    }
}

static void gated(const struct reference *r, double *out)
{
    const struct tensor *in = &r->spec.in[0];
    const int64_t n = in->dims[in->ndim - 1] / 2;
    for (int64_t i = 0; i < tensor_elements(in) / 2; i++) {
        const double a = r->in[0][i / n * 2 * n + i % n], b = r->in[0][i / n * 2 * n + n + i % n];
        out[i] = a / (1.0 + exp(-a)) * b;
    }
}

/* Element d of a head, turned for place t: as the product with a complex number. */
static double turned(const double *head, int64_t depth, int64_t d, int64_t t, double theta)
{
    const int64_t pairs = depth / 2, i = d % pairs;
    const double angle = (double)t * pow(theta, -2.0 * (double)i / (double)depth);
    const double real = head[i], imaginary = head[pairs + i];
    return d < pairs ? real * cos(angle) - imaginary * sin(angle)
                     : real * sin(angle) + imaginary * cos(angle);
}

static void rotary(const struct reference *r, double *out)
{
    const int64_t *in = r->spec.in[0].dims;
    const int64_t heads = r->spec.attr.heads, kv_heads = r->spec.attr.kv_heads;
    const int64_t depth = in[2] / (heads + 2 * kv_heads), wide = 3 * heads;
    for (int64_t i = 0; i < in[0] * in[1] * wide * depth; i++) {
        const int64_t row = i / (wide * depth), h = i / depth % wide, d = i % depth;
        const int64_t shared = h % heads * kv_heads / heads; /* which head of k or v */
        const int64_t from = h < heads       ? h
                             : h < 2 * heads ? heads + shared
                                             : heads + kv_heads + shared;
        const double *head = r->in[0] + row * in[2] + from * depth;
        out[i] = h < 2 * heads
                     ? turned(head, depth, d, row % in[1], (double)r->spec.attr.rope_theta)
                     : head[d];
    }
}

void reference_text(const struct reference *r, double *out)
{
    if (r->spec.op == OP_DROPOUT) {
        dropout(r, out);
    } else if (r->spec.op == OP_LAYER_NORM) {
        r->spec.attr.rms ? rms_norm(r, out) : layer_norm(r, out);
    } else if (r->spec.op == OP_EMBEDDING) {
        embedding(r, out);
    } else if (r->spec.op == OP_ATTENTION) {
        attention(r, out);
    } else if (r->spec.op == OP_GATED) {
        gated(r, out);
    } else if (r->spec.op == OP_ROTARY) {
        rotary(r, out);
    } else {
        CHECK(r->spec.op == OP_GELU);
        for (int64_t i = 0; i < tensor_elements(&r->spec.in[0]); i++)
            out[i] = reference_activation(r->spec.attr.activation, r->in[0][i]);
    }
}
