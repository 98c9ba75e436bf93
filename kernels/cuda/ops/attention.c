/*
 * attention by our own kernels (kernels/cuda/attention/attention.h), or by cuDNN's where the module
 * was built with them and the table says so (kernels/cuda/library/sdpa_cudnn.h).
 *
 * Saved: lse. (Without training it is scratch.)
 * With tokens, scratch ends with the number of keys that are seen, of each sample.
 */
#include "kernels/cuda/attention/attention.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/library/sdpa_cudnn.h"

struct attention {
    struct kernel base;
    struct cuda_attention shape;
    struct sdpa_cudnn *sdpa; /* NULL: own kernels; owned */
    size_t keys_at;          /* in scratch */
};

static void attention_release(struct kernel *kernel)
{
    struct attention *self = (struct attention *)kernel;
    if (self->sdpa != NULL)
        sdpa_cudnn_free(self->sdpa);
}

/* ST_INVALID: cuDNN does not take the shape or the device, and our own kernels are used. */
static enum status sdpa_choose(struct backend *backend, struct attention *self)
{
    if (self->base.spec.in_count == 2 || sdpa_cudnn_chosen == NULL ||
        !sdpa_cudnn_chosen(&self->shape, backend->device.capability))
        return ST_OK;
    const enum status st =
        sdpa_cudnn_new(backend->cudnn, &self->shape, self->base.spec.training, &self->sdpa);
    return st == ST_INVALID ? ST_OK : st;
}

/* Our own kernels' blocks have to fit on the device. */
static enum status shape_fits(struct backend *backend, const struct op_spec *spec,
                              const struct cuda_attention *shape)
{
    const size_t needed = cuda_attention_shared_bytes(shape, spec->training);
    if (needed <= backend->shared_max)
        return ST_OK;
    char why[200];
    (void)snprintf(why, sizeof(why),
                   "attention with heads of %d in float32 needs %zu KiB of shared memory, of which "
                   "this GPU has %zu: set train.precision: bf16, or more heads",
                   shape->dim, needed / 1024, backend->shared_max / 1024);
    return cuda_refuse(backend, ST_INVALID, why);
}

static enum status attention_shape(struct backend *backend, const struct op_spec *spec,
                                   struct cuda_attention *out)
{
    const struct tensor *in = &spec->in[0], *tokens = &spec->in[1];
    const int64_t heads = spec->attr.heads;
    if (spec->in_count == 2 &&
        (tokens->dtype != DTYPE_I32 || tokens->format != FORMAT_PLAIN || tokens->ndim != 2 ||
         tokens->dims[0] != in->dims[0] || tokens->dims[1] != in->dims[1]))
        return cuda_refuse(backend, ST_INVALID, "attention: tokens");
    if (spec->in_count > 2 || !cuda_dtype_is_floating(in->dtype) || in->ndim != 3 ||
        in->format != FORMAT_PLAIN || heads < 1 || in->dims[2] % (3 * heads) != 0 ||
        tensor_elements(in) < 1 || spec->out_dtype != in->dtype)
        return cuda_refuse(backend, ST_INVALID, "attention");
    const int64_t dim = in->dims[2] / (3 * heads);
    *out = (struct cuda_attention){
        .samples = in->dims[0],
        .tokens = in->dims[1],
        .heads = (int)heads,
        .dim = dim > CUDA_ATTENTION_DIM_MAX ? 0 : (int)dim,
        .dtype = in->dtype,
        .bidirectional = spec->attr.bidirectional,
    };
    if (!cuda_attention_supported(out))
        return cuda_refuse(backend, ST_INVALID, "attention: shape of heads");
    return ST_OK;
}

enum status cuda_op_attention_prepare(struct backend *backend, const struct op_spec *spec,
                                      struct kernel **out_kernel, struct kernel_info *out_info)
{
    struct cuda_attention shape = { 0 };
    enum status st = attention_shape(backend, spec, &shape);
    if (st != ST_OK)
        return st;
    struct attention *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    self->base.spec = *spec;
    self->base.release = attention_release;
    self->shape = shape;
    st = sdpa_choose(backend, self);
    if (st != ST_OK)
        st = cuda_refuse(backend, st, "attention by cuDNN");
    if (st == ST_OK && self->sdpa == NULL)
        st = shape_fits(backend, spec, &shape);
    if (st != ST_OK) {
        free(self);
        return st;
    }
    const struct tensor *in = &spec->in[0];
    const int64_t dims[3] = { in->dims[0], in->dims[1], in->dims[2] / 3 };
    const size_t lse = cuda_attention_lse_bytes(&shape);
    self->keys_at = cuda_align(spec->training ? cuda_attention_scratch_bytes(&shape) : lse);
    const size_t keys = spec->in_count == 2 ? (size_t)shape.samples * sizeof(int32_t) : 0;
    const size_t own = self->keys_at + keys;
    const double pairs = (spec->attr.bidirectional ? 1.0 : 0.5) * (double)in->dims[1] *
                         (double)in->dims[1] * (double)in->dims[0];
    const double product = 2.0 * pairs * (double)dims[2];
    *out_info = (struct kernel_info){
        .out = tensor_plain(spec->out_dtype, 3, dims),
        .saved_bytes = spec->training ? lse : 0,
        .scratch_bytes =
            CUDA_ALIGN + (self->sdpa != NULL ? sdpa_cudnn_workspace_bytes(self->sdpa) : own),
        .backward_needs_in = { true, spec->in_count == 2 },
        .backward_needs_out = true,
        .din = { *in },
        .flops_forward = 2.0 * product,
        .flops_backward = 5.0 * product,
        .implementation = self->sdpa != NULL ? sdpa_cudnn_implementation(self->sdpa)
                                             : cuda_attention_implementation(&shape),
    };
    *out_kernel = &self->base;
    return ST_OK;
}

/* The shape, and which keys are seen, if there are tokens that say it. */
static enum status attention_with_keys(const struct attention *self,
                                       const struct op_buffers *buffers, void *scratch,
                                       cudaStream_t stream, struct cuda_attention *out)
{
    int32_t *keys = (int32_t *)(void *)((char *)scratch + self->keys_at);
    *out = self->shape;
    if (buffers->in[1] == NULL)
        return ST_OK;
    out->keys = keys;
    return cuda_attention_keys(&self->shape, buffers->in[1], keys, stream);
}

enum status cuda_op_attention_forward(struct backend *backend, struct kernel *kernel,
                                      const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct attention *self = (const struct attention *)kernel;
    void *scratch = cuda_scratch(buffers->scratch);
    enum status st;
    if (self->sdpa != NULL) {
        st = sdpa_cudnn_forward(self->sdpa, buffers->in[0], buffers->out, buffers->saved, scratch,
                                stream);
    } else {
        float *lse = kernel->spec.training ? buffers->saved : scratch;
        struct cuda_attention shape;
        st = attention_with_keys(self, buffers, scratch, stream, &shape);
        if (st == ST_OK)
            st = cuda_attention_forward(&shape, buffers->in[0], buffers->out, lse, stream);
    }
    return CUDA_LAUNCHED(backend, st, "attention");
}

enum status cuda_op_attention_backward(struct backend *backend, struct kernel *kernel,
                                       const struct op_buffers *buffers, cudaStream_t stream)
{
    const struct attention *self = (const struct attention *)kernel;
    void *scratch = cuda_scratch(buffers->scratch);
    enum status st;
    if (buffers->din[0] == NULL)
        return ST_OK;
    if (self->sdpa != NULL) {
        const struct sdpa_cudnn_grad args = {
            .qkv = buffers->in[0],
            .out = buffers->out,
            .dout = buffers->dout[0],
            .lse = buffers->saved,
            .dqkv = buffers->din[0],
        };
        st = sdpa_cudnn_backward(self->sdpa, &args, scratch, stream);
    } else {
        struct cuda_attention shape;
        st = attention_with_keys(self, buffers, scratch, stream, &shape);
        if (st == ST_OK) {
            st = cuda_attention_backward(&shape, buffers->in[0], buffers->out, buffers->saved,
                                         buffers->dout[0], buffers->din[0], scratch, stream);
        }
    }
    return CUDA_LAUNCHED(backend, st, "attention gradient");
}
