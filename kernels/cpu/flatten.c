/*
 * flatten: to [N, C·H·W] in PyTorch's order; a copy from plain, a reformat from blocked.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

enum status cpu_flatten_prepare(struct backend *backend, const struct op_spec *spec,
                                struct kernel **out_kernel, struct kernel_info *out_info)
{
    (void)backend;
    const struct tensor *in = &spec->in[0];
    if (in->ndim < 2 || !cpu_input_is_valid(spec, in->ndim))
        return ST_INVALID;
    struct kernel *kernel = calloc(1, sizeof(*kernel));
    if (kernel == NULL)
        return ST_NO_MEMORY;
    kernel->spec = *spec;
    const int64_t dims[2] = { in->dims[0], tensor_elements(in) / in->dims[0] };
    *out_info = (struct kernel_info){
        .out = tensor_plain(DTYPE_F32, 2, dims),
        .din = { *in },
        .implementation = "loop",
    };
    if (in->format == FORMAT_PLAIN) {
        out_info->din_aliases_dout[0] = true;
        out_info->din_alias[0] = -1;
    }
    *out_kernel = kernel;
    return ST_OK;
}

static struct tensor plain_like(const struct tensor *in)
{
    return tensor_plain(DTYPE_F32, in->ndim, in->dims);
}

enum status cpu_flatten_forward(struct backend *backend, struct kernel *kernel,
                                const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const struct tensor plain = plain_like(in);
    if (in->format == FORMAT_PLAIN) {
        memcpy(buffers->out, buffers->in[0], plain.bytes);
    } else {
        cpu_reformat(backend, in, buffers->in[0], &plain, buffers->out);
    }
    return ST_OK;
}

enum status cpu_flatten_backward(struct backend *backend, struct kernel *kernel,
                                 const struct op_buffers *buffers, struct stream *stream)
{
    (void)stream;
    const struct tensor *in = &kernel->spec.in[0];
    const struct tensor plain = plain_like(in);
    if (buffers->din[0] == NULL || buffers->din[0] == buffers->dout[0])
        return ST_OK;
    if (in->format == FORMAT_PLAIN) {
        memcpy(buffers->din[0], buffers->dout[0], plain.bytes);
    } else {
        cpu_reformat(backend, &plain, buffers->dout[0], in, buffers->din[0]);
    }
    return ST_OK;
}
