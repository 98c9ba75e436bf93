/*
 * The table's functions over flat buffers, between formats, and sums of tensors.
 */
#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

enum status cuda_vector_add(struct backend *b, float *out, const float *x, const float *y, size_t n,
                            struct stream *s)
{
    enum status st = cuda_enter(b);
    return st == ST_OK ? CUDA_LAUNCHED(b, k_vector_add(out, x, y, n, cuda_stream(s)), "add") : st;
}

enum status cuda_vector_copy(struct backend *b, void *to, const void *from, size_t bytes,
                             struct stream *s)
{
    enum status st = cuda_enter(b);
    if (st != ST_OK || bytes == 0)
        return st;
    return cuda_copy(b, to, from, bytes, cuda_stream(s));
}

enum status cuda_vector_fill(struct backend *b, float *out, float value, size_t n, struct stream *s)
{
    enum status st = cuda_enter(b);
    return st == ST_OK ? CUDA_LAUNCHED(b, k_vector_fill(out, value, n, cuda_stream(s)), "fill")
                       : st;
}

enum status cuda_vector_square_sums(struct backend *b, double *out, const float *x,
                                    const uint64_t *begin, size_t n, struct stream *s)
{
    enum status st = cuda_enter(b);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(b, k_vector_square_sums(out, x, begin, n, cuda_stream(s)), "square sums");
}

enum status cuda_vector_checksums(struct backend *b, uint64_t *out, const float *x, size_t n,
                                  struct stream *s)
{
    enum status st = cuda_enter(b);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(b, k_vector_checksums(out, x, n, cuda_stream(s)), "checksums");
}

enum status cuda_vector_sgd(struct backend *b, float *param, float *momentum, const float *grad,
                            size_t n, const struct sgd_args *args, struct stream *s)
{
    enum status st = cuda_enter(b);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(b, k_vector_sgd(param, momentum, grad, n, args, cuda_stream(s)), "sgd");
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the table's signature */
enum status cuda_vector_adamw(struct backend *b, float *param, float *m, float *v,
                              const float *grad, size_t n, const struct adamw_args *args,
                              struct stream *s)
{
    const struct k_adamw_buffers buffers = { .param = param, .m = m, .v = v, .grad = grad };
    enum status st = cuda_enter(b);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(b, k_vector_adamw(&buffers, n, args, cuda_stream(s)), "adamw");
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the table's signature */
enum status cuda_vector_lion(struct backend *b, float *param, float *m, const float *grad, size_t n,
                             const struct lion_args *args, struct stream *s)
{
    enum status st = cuda_enter(b);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(b, k_vector_lion(param, m, grad, n, args, cuda_stream(s)), "lion");
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the table's signature */
enum status cuda_vector_lamb(struct backend *b, const float *param, float *m, float *v, float *grad,
                             size_t n, const struct adamw_args *args, struct stream *s)
{
    const struct k_lamb_buffers buffers = { .param = param, .m = m, .v = v, .grad = grad };
    enum status st = cuda_enter(b);
    if (st != ST_OK)
        return st;
    return CUDA_LAUNCHED(b, k_vector_lamb(&buffers, n, args, cuda_stream(s)), "lamb");
}

/* Whether this backend has tensors of that format and dtype. */
static bool is_known(const struct tensor *t)
{
    return cuda_dtype_is_floating(t->dtype) &&
           (t->format == FORMAT_PLAIN || (t->format == FORMAT_NHWC && t->ndim == 4));
}

enum status cuda_reformat(struct backend *backend, const struct tensor *from, const void *in,
                          const struct tensor *to, void *out, struct stream *stream)
{
    if (!is_known(from) || !is_known(to) || from->ndim != to->ndim)
        return ST_INVALID;
    for (int i = 0; i < from->ndim; i++) {
        if (from->dims[i] != to->dims[i])
            return ST_INVALID;
    }
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    const int64_t n = tensor_elements(from);
    if (from->format == to->format && from->dtype == to->dtype)
        return cuda_vector_copy(backend, out, in, (size_t)n * dtype_size(from->dtype), stream);
    if (from->format == to->format) {
        return CUDA_LAUNCHED(
            backend, k_cast(from->dtype, in, to->dtype, out, n, cuda_stream(stream)), "cast");
    }
    const int64_t c = from->dims[1], plane = from->dims[2] * from->dims[3];
    const bool to_nhwc = to->format == FORMAT_NHWC;
    const struct k_transpose args = {
        .batch = from->dims[0],
        .a = to_nhwc ? c : plane,
        .b = to_nhwc ? plane : c,
        .from = from->dtype,
        .to = to->dtype,
        .in = in,
        .out = out,
    };
    return CUDA_LAUNCHED(backend, k_transpose(&args, cuda_stream(stream)), "reformat");
}

enum status cuda_sum(struct backend *backend, const struct tensor *tensor, const void *x,
                     const void *y, void *out, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (!is_known(tensor))
        return ST_INVALID;
    return CUDA_LAUNCHED(
        backend, k_sum(tensor->dtype, x, y, out, tensor_elements(tensor), cuda_stream(stream)),
        "sum");
}
