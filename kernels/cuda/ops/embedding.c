/*
 * embedding by own kernels.
 */
#include "kernels/cuda/ops/rows.h"

enum status cuda_op_embedding_prepare(struct backend *backend, const struct op_spec *spec,
                                      struct kernel **out_kernel, struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0];
    const struct op_attr *attr = &spec->attr;
    const int64_t dims[3] = { in->dims[0], in->dims[1], attr->out };
    const struct tensor out = tensor_plain(spec->out_dtype, 3, dims);
    if (spec->in_count != (attr->residual ? 2 : 1) || !rows_is_plain(in, DTYPE_I32, 2) ||
        in->ndim != 2 || attr->out < 1 || attr->rows < 1 ||
        !cuda_dtype_is_floating(spec->out_dtype) ||
        (attr->positions > 0 && attr->positions < in->dims[1]))
        return cuda_refuse(backend, ST_INVALID, "embedding");
    if (attr->residual && (attr->positions > 0 || !rows_is_plain(&spec->in[1], out.dtype, 3) ||
                           spec->in[1].bytes != out.bytes))
        return cuda_refuse(backend, ST_INVALID, "embedding: the residual differs from the output");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    const int64_t tokens = tensor_elements(in);
    *out_info = (struct kernel_info){
        .out = out,
        .scratch_bytes =
            spec->training ? k_embedding_scratch(tokens, attr->out, attr->rows) + CUDA_ALIGN : 0,
        .backward_needs_in = { true },
        .din_aliases_dout = { false, attr->residual },
        .din_alias = { 0, -1 },
        .din = { { 0 }, out },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

enum status cuda_op_embedding_forward(struct backend *backend, struct kernel *kernel,
                                      const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct op_spec *spec = &kernel->spec;
    const struct k_embedding args = {
        .n = spec->in[0].dims[0],
        .t = spec->in[0].dims[1],
        .c = spec->attr.out,
        .vocab = spec->attr.rows,
        .dtype = spec->out_dtype,
        .tokens = buffers->in[0],
        .weight = buffers->param[0],
        .position = spec->attr.positions > 0 ? buffers->param[1] : NULL,
        .residual = spec->attr.residual ? buffers->in[1] : NULL,
        .out = buffers->out,
        .fault = backend->fault,
    };
    enum status st = CUDA_LAUNCHED(backend, k_embedding_forward(&args, stream), "embedding");
    return st == ST_OK ? cuda_faults_fetch(backend, stream) : st;
}

enum status cuda_op_embedding_backward(struct backend *backend, struct kernel *kernel,
                                       const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct op_spec *spec = &kernel->spec;
    const struct k_embedding_grad args = {
        .n = spec->in[0].dims[0],
        .t = spec->in[0].dims[1],
        .c = spec->attr.out,
        .vocab = spec->attr.rows,
        .positions = spec->attr.positions,
        .dtype = spec->out_dtype,
        .tokens = buffers->in[0],
        .dout = buffers->dout[0],
        .dweight = buffers->dparam[0],
        .dposition = spec->attr.positions > 0 ? buffers->dparam[1] : NULL,
        .accumulate_weight = buffers->accumulate[0],
        .accumulate_position = buffers->accumulate[1],
        .scratch = cuda_scratch(buffers->scratch),
    };
    return CUDA_LAUNCHED(backend, k_embedding_backward(&args, stream), "embedding gradient");
}
