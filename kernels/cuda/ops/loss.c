/*
 * softmax_cross_entropy by own kernels.
 */
#include "kernels/cuda/ops/rows.h"

/* Returns the offset of the rows' results in scratch: behind lse, unless that is saved
 * (training). */
static size_t loss_results_at(const struct op_spec *spec)
{
    return spec->training ? 0 : cuda_align((size_t)rows_count(&spec->in[0]) * sizeof(float));
}

enum status cuda_op_softmax_cross_entropy_prepare(struct backend *backend,
                                                  const struct op_spec *spec,
                                                  struct kernel **out_kernel,
                                                  struct kernel_info *out_info)
{
    const struct tensor *in = &spec->in[0], *labels = &spec->in[1];
    if (spec->in_count != 2 || !cuda_dtype_is_floating(in->dtype) || in->ndim < 2 ||
        (in->format != FORMAT_PLAIN && in->format != FORMAT_PITCHED) || tensor_elements(in) < 1 ||
        !rows_is_plain(labels, DTYPE_I32, 1) || tensor_elements(labels) != rows_count(in) ||
        !(spec->attr.label_smoothing >= 0.0f) || !(spec->attr.label_smoothing < 1.0f))
        return cuda_refuse(backend, ST_INVALID, "softmax_cross_entropy");
    struct kernel *kernel = cuda_kernel_new(spec);
    if (kernel == NULL)
        return ST_NO_MEMORY;
    const int64_t dims[1] = { 3 };
    const size_t lse = (size_t)rows_count(in) * sizeof(float);
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 1, dims),
        .saved_bytes = spec->training ? lse : 0,
        .scratch_bytes = loss_results_at(spec) + k_loss_scratch(rows_count(in)) + CUDA_ALIGN,
        .backward_needs_in = { true, true },
        .din_overwrites_in = { true },
        .din_in_forward = spec->training && spec->dying_in0,
        .din = { *in },
        .implementation = "own",
    };
    *out_kernel = kernel;
    return ST_OK;
}

static struct k_loss_grad loss_gradient(const struct kernel *kernel,
                                        const struct op_buffers *buffers)
{
    const struct tensor *in = &kernel->spec.in[0];
    return (struct k_loss_grad){
        .rows = rows_count(in),
        .vocab = rows_columns(in),
        .stride = tensor_pitch(in),
        .dtype = in->dtype,
        .smoothing = kernel->spec.attr.label_smoothing,
        .logits = buffers->in[0],
        .labels = buffers->in[1],
        .lse = buffers->saved,
        .scale = buffers->loss_scale,
        .dlogits = buffers->din[0],
    };
}

/* Whether forward writes the gradient. */
static bool writes_both(const struct op_spec *spec, const struct op_buffers *buffers)
{
    return spec->training && spec->dying_in0 && buffers->din[0] == buffers->in[0];
}

enum status cuda_op_softmax_cross_entropy_forward(struct backend *backend, struct kernel *kernel,
                                                  const struct op_buffers *buffers,
                                                  cudaStream_t stream)
{
    const struct tensor *in = &kernel->spec.in[0];
    char *scratch = cuda_scratch(buffers->scratch);
    const struct k_loss args = {
        .rows = rows_count(in),
        .vocab = rows_columns(in),
        .stride = tensor_pitch(in),
        .dtype = kernel->spec.in[0].dtype,
        .smoothing = kernel->spec.attr.label_smoothing,
        .logits = buffers->in[0],
        .labels = buffers->in[1],
        .lse = kernel->spec.training ? buffers->saved : (float *)(void *)scratch,
        .out = buffers->out,
        .scratch = scratch + loss_results_at(&kernel->spec),
        .fault = backend->fault,
    };
    const struct k_loss_grad grad = loss_gradient(kernel, buffers);
    enum status st = writes_both(&kernel->spec, buffers)
                         ? k_loss_both(&args, &grad, backend->shared_max, stream)
                         : k_loss_forward(&args, stream);
    st = CUDA_LAUNCHED(backend, st, "loss");
    return st == ST_OK ? cuda_faults_fetch(backend, stream) : st;
}

enum status cuda_op_softmax_cross_entropy_backward(struct backend *backend, struct kernel *kernel,
                                                   const struct op_buffers *buffers,
                                                   cudaStream_t stream)
{
    if (buffers->din[0] == NULL || writes_both(&kernel->spec, buffers))
        return ST_OK;
    const struct k_loss_grad args = loss_gradient(kernel, buffers);
    return CUDA_LAUNCHED(backend, k_loss_backward(&args, stream), "loss gradient");
}
