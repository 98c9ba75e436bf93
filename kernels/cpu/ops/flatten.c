/*
 * flatten: to [N, C·H·W] in PyTorch's order and out_dtype. From a plain tensor that is a copy, from
 * the other formats a reordering.
 */
#include <stdlib.h>

#include "kernels/cpu/device/cpu.h"

static bool flatten_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    if (spec->in_count < 1 || in->ndim < 2 ||
        (spec->out_dtype != DTYPE_F32 && spec->out_dtype != DTYPE_BF16))
        return false;
    if (cpu_is_nhwc(in))
        return cpu_image_is_valid(spec);
    if (in->dtype == DTYPE_BF16)
        return in->format == FORMAT_PLAIN && tensor_elements(in) > 0;
    return cpu_input_is_valid(spec, in->ndim);
}

enum status cpu_flatten_prepare(struct backend *backend, const struct op_spec *spec,
                                struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (!flatten_is_valid(spec))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const int64_t dims[2] = { in->dims[0], tensor_elements(in) / in->dims[0] };
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 2, dims),
        .din = { *in },
        .implementation = "loop",
    };
    if (in->format == FORMAT_PLAIN && in->dtype == spec->out_dtype) {
        out_info->din_aliases_dout[0] = true;
        out_info->din_alias[0] = -1;
    }
    *out_kernel = kernel;
    return ST_OK;
}

/* The output, seen with the dims of the input. */
static struct tensor plain_like(const struct op_spec *spec)
{
    return tensor_plain(spec->out_dtype, spec->in[0].ndim, spec->in[0].dims);
}

enum status cpu_flatten_forward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor plain = plain_like(&kernel->spec);
    cpu_enter(backend);
    cpu_reformat(backend, &kernel->spec.in[0], buffers->in[0], &plain, buffers->out);
    return ST_OK;
}

enum status cpu_flatten_backward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor plain = plain_like(&kernel->spec);
    if (buffers->din[0] == NULL || buffers->din[0] == buffers->dout[0])
        return ST_OK;
    cpu_enter(backend);
    cpu_reformat(backend, &plain, buffers->dout[0], &kernel->spec.in[0], buffers->din[0]);
    return ST_OK;
}
