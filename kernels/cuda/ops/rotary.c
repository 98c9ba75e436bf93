/*
 * rotary by own kernels.
 */
#include "kernels/cuda/ops/rows.h"

static struct k_rotary rotary_args(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    const int heads = spec->attr.heads, kv_heads = spec->attr.kv_heads;
    return (struct k_rotary){
        .n = in->dims[0],
        .t = in->dims[1],
        .heads = heads,
        .kv_heads = kv_heads,
        .dim = (int)(in->dims[2] / (heads + 2 * (int64_t)kv_heads)),
        .theta = spec->attr.rope_theta,
        .dtype = in->dtype,
    };
}

enum status cuda_op_rotary_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    const int64_t heads = spec->attr.heads, kv_heads = spec->attr.kv_heads;
    if (spec->in_count != 1 || !cuda_dtype_is_floating(in->dtype) ||
        !rows_is_plain(in, spec->out_dtype, 3) || in->ndim != 3 || heads < 1 || kv_heads < 1 ||
        heads % kv_heads != 0 || in->dims[2] % (2 * (heads + 2 * kv_heads)) != 0 ||
        in->dims[2] / (heads + 2 * kv_heads) > K_ROTARY_DIM_MAX || !(spec->attr.rope_theta > 0))
        return cuda_refuse(backend, ST_INVALID, "rotary: shape of heads");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    const int64_t dims[3] = { in->dims[0], in->dims[1],
                              in->dims[2] / (heads + 2 * kv_heads) * 3 * heads };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cuda_op_rotary_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, cudaStream_t stream)
{
    struct k_rotary args = rotary_args(&kernel->spec);
    args.in = buffers->in[0];
    args.out = buffers->out;
    return CUDA_LAUNCHED(backend, k_rotary_forward(&args, stream), "rotary");
}

enum status cuda_op_rotary_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, cudaStream_t stream)
{
    struct k_rotary args = rotary_args(&kernel->spec);
    if (buffers->din[0] == NULL)
        return ST_OK;
    args.in = buffers->dout[0];
    args.out = buffers->din[0];
    return CUDA_LAUNCHED(backend, k_rotary_backward(&args, stream), "rotary gradient");
}
