/*
 * conv2d, the channels innermost. A 1×1 window at stride 1 is a product of matrices, which linear
 * does. All others are cuDNN's (kernels/cuda/library/conv.h). Where it refuses NHWC for a type, x,
 * y and W are turned into NCHW in scratch, and back.
 *
 *   cache     W [K, R, S, C'] in the products' type. C' is C; for the data of a model in half
 *             precision the next multiple of 8, filled up with zeros
 *   scratch   x [N, H, W, C'], where it comes in another form
 *             dy + second dy · dW [K, R, S, C'] in the products' type · dx, where x came in another
 *             type · cuDNN's workspace
 */
#include "kernels/cuda/library/conv.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/device/cuda.h"
#include "kernels/cuda/own/k.h"

struct conv {
    struct kernel base;
    struct kernel *linear; /* owned: does everything; NULL: cuDNN does */
    int64_t n, c, h, w, k, p, q;
    int64_t padded;       /* C' */
    int64_t window;       /* R·S */
    enum dtype type;      /* of the products' operands */
    bool planar;          /* cuDNN gets NCHW */
    bool make_x, make_dx; /* x as cuDNN takes it, dx as it gives it: in scratch */
    struct cuda_conv by[CUDA_CONV_DIRECTIONS]; /* those that are needed */
    char implementation[32];
    /* Places in scratch, from its first byte that is aligned to CUDA_ALIGN. */
    size_t g_at, y_at, sums_at, dw_at, dx_at, workspace_at, scratch_bytes;
};

static void directions_release(struct conv *self)
{
    for (int d = 0; d < CUDA_CONV_DIRECTIONS; d++)
        cuda_conv_release(&self->by[d]);
}

static void conv_release(struct kernel *kernel)
{
    struct conv *self = (struct conv *)kernel;
    if (self->linear != NULL) {
        if (self->linear->release != NULL)
            self->linear->release(self->linear);
        free(self->linear);
    }
    directions_release(self);
}

static bool conv_is_valid(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    const struct op_attr *attr = &spec->attr;
    const enum dtype type = cuda_math_dtype(spec->math);
    return spec->in_count == 1 && in->ndim == 4 && in->format != FORMAT_BLOCKED &&
           (in->dtype == type || in->dtype == DTYPE_F32) && spec->out_dtype == type &&
           tensor_elements(in) >= 1 && attr->out >= 1 && attr->kernel >= 1 && attr->stride >= 1 &&
           attr->pad >= 0 && op_windows(in->dims[2], attr) >= 1 &&
           op_windows(in->dims[3], attr) >= 1;
}

/* --- a product ------------------------------------------------------------------------------ */

static bool is_product(const struct op_spec *spec)
{
    const struct tensor *in = &spec->in[0];
    return spec->attr.kernel == 1 && spec->attr.stride == 1 && spec->attr.pad == 0 &&
           (in->format == FORMAT_NHWC || in->dims[2] * in->dims[3] == 1);
}

static enum status conv_product_refresh(struct backend *backend, struct kernel *kernel,
                                        const float *const param[OP_PARAM_MAX], void *cache,
                                        cudaStream_t stream)
{
    const struct conv *self = (const struct conv *)kernel;
    return self->linear->refresh(backend, self->linear, param, cache, stream);
}

static enum status conv_product_prepare(struct backend *backend, struct conv *self,
                                        struct kernel_info *out_info)
{
    const struct op_spec *spec = &self->base.spec;
    const int64_t dims[4] = { self->n, self->h, self->w, self->c };
    const int64_t out[4] = { self->n, self->k, self->p, self->q };
    struct op_spec linear = *spec;
    linear.op = OP_LINEAR;
    linear.in[0] = tensor_plain(spec->in[0].dtype, 4, dims);
    enum status st = cuda_op_linear_prepare(backend, &linear, &self->linear, out_info);
    if (st != ST_OK)
        return st;
    self->base.refresh = self->linear->refresh == NULL ? NULL : conv_product_refresh;
    out_info->out = cuda_nhwc(spec->out_dtype, out);
    out_info->din[0] = cuda_nhwc(spec->in[0].dtype, spec->in[0].dims);
    return ST_OK;
}

/* --- cuDNN ---------------------------------------------------------------------------------- */

/* ST_NOT_FOUND: cuDNN does not take this format. */
static enum status conv_choose(struct backend *backend, struct conv *self)
{
    const struct op_spec *spec = &self->base.spec;
    const bool wanted[CUDA_CONV_DIRECTIONS] = { [CUDA_CONV_FORWARD] = true,
                                                [CUDA_CONV_DATA] =
                                                    spec->training && spec->need_din0,
                                                [CUDA_CONV_WEIGHTS] = spec->training };
    struct cuda_conv_spec of = {
        .n = self->n,
        .c = self->padded,
        .h = self->h,
        .w = self->w,
        .k = self->k,
        .p = self->p,
        .q = self->q,
        .kernel = spec->attr.kernel,
        .stride = spec->attr.stride,
        .pad = spec->attr.pad,
        .math = spec->math,
        .planar = self->planar,
    };
    enum status st = ST_OK;
    for (int d = 0; d < CUDA_CONV_DIRECTIONS && st == ST_OK; d++) {
        of.direction = (enum cuda_conv_direction)d;
        if (wanted[d])
            st = cuda_conv_init(backend, &of, &self->by[d]);
    }
    return st;
}

/* True if x's gradient may be added to another one, in cuDNN's own form. */
static bool adds_data(const struct conv *self)
{
    return !self->make_dx && cuda_conv_adds(&self->by[CUDA_CONV_DATA]);
}

static size_t filter_bytes(const struct conv *self)
{
    return (size_t)(self->k * self->window * self->padded) * dtype_size(self->type);
}

static void conv_lay_out(struct conv *self)
{
    const struct op_spec *spec = &self->base.spec;
    const size_t type = dtype_size(self->type);
    const size_t x = (size_t)(self->n * self->padded * self->h * self->w) * type;
    const size_t y = (size_t)(self->n * self->k * self->p * self->q) * type;
    const int64_t rows = self->n * self->p * self->q;
    size_t workspace = 0;
    for (int d = 0; d < CUDA_CONV_DIRECTIONS; d++) {
        const size_t bytes = cuda_conv_workspace(&self->by[d]);
        workspace = bytes > workspace ? bytes : workspace;
    }
    self->g_at = self->make_x ? cuda_align(x) : 0;
    self->y_at = self->g_at + (spec->training ? cuda_align(y) : 0);
    self->sums_at = self->y_at + (self->planar ? cuda_align(y) : 0);
    self->dw_at = self->sums_at;
    if (spec->training && spec->attr.bias)
        self->dw_at += cuda_align(k_activation_scratch(rows, self->k));
    self->dx_at = self->dw_at + (spec->training ? cuda_align(filter_bytes(self)) : 0);
    self->workspace_at = self->dx_at + (self->make_dx ? cuda_align(x) : 0);
    self->scratch_bytes = self->workspace_at + workspace + CUDA_ALIGN;
}

static enum status conv_refresh(struct backend *backend, struct kernel *kernel,
                                const float *const param[OP_PARAM_MAX], void *cache,
                                cudaStream_t stream)
{
    const struct conv *self = (const struct conv *)kernel;
    const struct k_pad args = {
        .batch = self->k,
        .a = self->c,
        .padded = self->padded,
        .b = self->window,
        .from = DTYPE_F32,
        .to = self->type,
        .in = param[0],
        .out = cache,
    };
    if (self->planar) {
        return CUDA_LAUNCHED(backend,
                             k_cast(DTYPE_F32, param[0], self->type, cache,
                                    self->k * self->c * self->window, stream),
                             "conv2d refresh");
    }
    return CUDA_LAUNCHED(backend, k_pad_transpose(&args, stream), "conv2d refresh");
}

/* "cudnn nhwc 1.1.1, padded": by direction, forward first; a legacy algorithm, or g. */
static const char *conv_implementation(struct conv *self)
{
    const bool training = self->base.spec.training, back = training && self->base.spec.need_din0;
    (void)snprintf(self->implementation, sizeof(self->implementation), "cudnn %s %s.%s.%s%s",
                   self->planar ? "nchw" : "nhwc", cuda_conv_name(&self->by[CUDA_CONV_FORWARD]),
                   back ? cuda_conv_name(&self->by[CUDA_CONV_DATA]) : "-",
                   training ? cuda_conv_name(&self->by[CUDA_CONV_WEIGHTS]) : "-",
                   self->padded == self->c ? "" : ", padded");
    return self->implementation;
}

static struct kernel_info conv_info(struct conv *self)
{
    const struct op_spec *spec = &self->base.spec;
    const int64_t out[4] = { self->n, self->k, self->p, self->q };
    const double product = 2.0 * (double)self->n * (double)self->k * (double)self->p *
                           (double)self->q * (double)self->c * (double)self->window;
    conv_lay_out(self);
    return (struct kernel_info){
        .out = cuda_nhwc(spec->out_dtype, out),
        .scratch_bytes = self->scratch_bytes,
        .cache_bytes = filter_bytes(self),
        .backward_needs_in = { true },
        .sums_douts = true,
        .din_adds = { self->planar || adds_data(self) },
        .din = { cuda_nhwc(spec->in[0].dtype, spec->in[0].dims) },
        .flops_forward = product,
        .flops_backward = spec->need_din0 ? 2.0 * product : product,
        .implementation = conv_implementation(self),
        .slow = self->planar ? "cuDNN refuses channels innermost for this type and shape: NCHW and "
                               "copies between, at about half the speed"
                             : NULL,
    };
}

/* Decides what is made in scratch, and who computes. ST_NOT_FOUND: cuDNN does not take this
 * format. */
static enum status try_format(struct backend *backend, struct conv *self, bool planar)
{
    const struct op_spec *spec = &self->base.spec;
    const struct tensor *in = &spec->in[0];
    const bool alike = self->c == 1 || self->h * self->w == 1; /* both formats are the same bytes */
    const bool back = spec->training && spec->need_din0;
    self->planar = planar;
    self->make_x = in->dtype != self->type || (!alike && (in->format == FORMAT_PLAIN) != planar);
    self->padded = self->c;
    if (self->make_x && !back && !planar && self->type != DTYPE_F32)
        self->padded = (self->c + 7) / 8 * 8;
    self->make_dx = back && (planar || in->dtype != self->type);
    enum status st = conv_choose(backend, self);
    if (st != ST_OK)
        directions_release(self);
    return st;
}

static enum status dnn_prepare(struct backend *backend, struct conv *self,
                               struct kernel_info *out_info)
{
    enum status st = try_format(backend, self, false);
    if (st == ST_NOT_FOUND)
        st = try_format(backend, self, true);
    if (st != ST_OK)
        return st == ST_NOT_FOUND ? cuda_refuse(backend, ST_INVALID, "conv2d: cuDNN refuses") : st;
    self->base.refresh = conv_refresh;
    *out_info = conv_info(self);
    return ST_OK;
}

enum status cuda_op_conv2d_prepare(struct backend *backend, const struct op_spec *spec,
                                   struct kernel **out_kernel, struct kernel_info *out_info)
{
    if (!conv_is_valid(spec))
        return cuda_refuse(backend, ST_INVALID, "conv2d");
    struct conv *self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ST_NO_MEMORY;
    const struct op_attr *attr = &spec->attr;
    self->base.spec = *spec;
    self->base.release = conv_release;
    self->n = spec->in[0].dims[0];
    self->c = spec->in[0].dims[1];
    self->h = spec->in[0].dims[2];
    self->w = spec->in[0].dims[3];
    self->k = attr->out;
    self->p = op_windows(self->h, attr);
    self->q = op_windows(self->w, attr);
    self->window = (int64_t)attr->kernel * attr->kernel;
    self->type = cuda_math_dtype(spec->math);
    enum status st = is_product(spec) ? conv_product_prepare(backend, self, out_info)
                                      : dnn_prepare(backend, self, out_info);
    if (st != ST_OK) {
        conv_release(&self->base);
        free(self);
        return st;
    }
    *out_kernel = &self->base;
    return ST_OK;
}

/* [batch, a, b] → [batch, b, a] (+)=. */
static enum status conv_transpose(struct backend *backend, const struct k_transpose *args,
                                  cudaStream_t stream)
{
    return CUDA_LAUNCHED(backend, k_transpose(args, stream), "conv2d, between formats");
}

static enum status conv_planar_input(struct backend *backend, const struct conv *self,
                                     const void *x, char *scratch, cudaStream_t stream)
{
    const struct tensor *in = &self->base.spec.in[0];
    const struct k_transpose args = { .batch = self->n,
                                      .a = self->h * self->w,
                                      .b = self->c,
                                      .from = in->dtype,
                                      .to = self->type,
                                      .in = x,
                                      .out = scratch };
    if (in->format == FORMAT_NHWC)
        return conv_transpose(backend, &args, stream);
    return CUDA_LAUNCHED(backend,
                         k_cast(in->dtype, x, self->type, scratch, tensor_elements(in), stream),
                         "conv2d input");
}

/* x as cuDNN takes it. */
static enum status conv_input(struct backend *backend, const struct conv *self, const void *x,
                              char *scratch, const void **out, cudaStream_t stream)
{
    const struct tensor *in = &self->base.spec.in[0];
    *out = x;
    if (!self->make_x)
        return ST_OK;
    *out = scratch;
    if (self->planar)
        return conv_planar_input(backend, self, x, scratch, stream);
    const bool plain = in->format == FORMAT_PLAIN;
    struct k_pad args = {
        .batch = plain ? self->n : self->n * self->h * self->w,
        .a = self->c,
        .padded = self->padded,
        .b = plain ? self->h * self->w : 1,
        .from = in->dtype,
        .to = self->type,
        .in = x,
    };
    args.out = scratch;
    return CUDA_LAUNCHED(backend, k_pad_transpose(&args, stream), "conv2d input");
}

enum status cuda_op_conv2d_forward(struct backend *backend, struct kernel *kernel,
                                   const struct op_buffers *buffers, cudaStream_t stream)
{
    struct conv *self = (struct conv *)kernel;
    if (self->linear != NULL)
        return cuda_op_linear_forward(backend, self->linear, buffers, stream);
    char *scratch = cuda_scratch(buffers->scratch);
    const void *x = NULL;
    void *y = self->planar ? scratch + self->y_at : buffers->out;
    enum status st = conv_input(backend, self, buffers->in[0], scratch, &x, stream);
    const struct cuda_conv_operands operands = {
        .x = x, .weights = buffers->cache, .y = y, .workspace = scratch + self->workspace_at
    };
    if (st == ST_OK)
        st = cuda_conv_run(backend, &self->by[CUDA_CONV_FORWARD], &operands, stream);
    if (st == ST_OK && self->planar) {
        const struct k_transpose args = { .batch = self->n,
                                          .a = self->k,
                                          .b = self->p * self->q,
                                          .from = self->type,
                                          .to = self->type,
                                          .in = y,
                                          .out = buffers->out };
        st = conv_transpose(backend, &args, stream);
    }
    if (st != ST_OK || !kernel->spec.attr.bias)
        return st;
    const struct k_activation bias = {
        .rows = self->n * self->p * self->q,
        .c = self->k,
        .activation = ACTIVATION_NONE,
        .x_dtype = self->type,
        .y_dtype = self->type,
        .x = buffers->out,
        .bias = buffers->param[1],
        .y = buffers->out,
    };
    return CUDA_LAUNCHED(backend, k_activation_forward(&bias, stream), "conv2d bias");
}

/* dy + second dy, and db. */
static enum status conv_gradient(struct backend *backend, const struct conv *self,
                                 const struct op_buffers *buffers, char *scratch, const void **out,
                                 cudaStream_t stream)
{
    float *dbias = self->base.spec.attr.bias ? buffers->dparam[1] : NULL;
    void *g = buffers->dout[1] == NULL ? NULL : scratch + self->g_at;
    *out = g == NULL ? buffers->dout[0] : g;
    if (g == NULL && dbias == NULL)
        return ST_OK;
    const struct k_activation_grad args = {
        .rows = self->n * self->p * self->q,
        .c = self->k,
        .activation = ACTIVATION_NONE,
        .x_dtype = self->type,
        .y_dtype = self->type,
        .dy = buffers->dout[0],
        .dy2 = buffers->dout[1],
        .dx = g,
        .dbias = dbias,
        .accumulate = buffers->accumulate[1],
        .scratch = scratch + self->sums_at,
    };
    return CUDA_LAUNCHED(backend, k_activation_backward(&args, stream), "conv2d gradient");
}

static enum status conv_weights_gradient(struct backend *backend, struct conv *self,
                                         const struct op_buffers *buffers, const void *g,
                                         cudaStream_t stream)
{
    char *scratch = cuda_scratch(buffers->scratch);
    const void *x = NULL;
    void *dw = scratch + self->dw_at;
    enum status st = conv_input(backend, self, buffers->in[0], scratch, &x, stream);
    const struct cuda_conv_operands operands = {
        .x = x, .weights = dw, .y = g, .workspace = scratch + self->workspace_at
    };
    if (st == ST_OK)
        st = cuda_conv_run(backend, &self->by[CUDA_CONV_WEIGHTS], &operands, stream);
    if (st != ST_OK)
        return st;
    const bool planar = self->planar; /* then dW has the canonical order already */
    const struct k_pad args = {
        .batch = planar ? 1 : self->k,
        .a = planar ? 1 : self->c,
        .padded = planar ? 1 : self->padded,
        .b = planar ? self->k * self->c * self->window : self->window,
        .from = self->type,
        .to = DTYPE_F32,
        .in = dw,
        .out = buffers->dparam[0],
        .accumulate = buffers->accumulate[0],
    };
    return CUDA_LAUNCHED(backend, k_unpad_transpose(&args, stream), "conv2d gradient of weights");
}

/* dx, from what cuDNN left in scratch. */
static enum status conv_finish_data_gradient(struct backend *backend, const struct conv *self,
                                             const struct op_buffers *buffers, const void *dx,
                                             cudaStream_t stream)
{
    const struct tensor *in = &self->base.spec.in[0];
    const struct k_transpose args = { .batch = self->n,
                                      .a = self->c,
                                      .b = self->h * self->w,
                                      .from = self->type,
                                      .to = in->dtype,
                                      .in = dx,
                                      .out = buffers->din[0],
                                      .accumulate = buffers->din_add[0] != NULL };
    if (self->planar)
        return conv_transpose(backend, &args, stream);
    return CUDA_LAUNCHED(
        backend, k_cast(self->type, dx, in->dtype, buffers->din[0], tensor_elements(in), stream),
        "conv2d gradient of the input");
}

static enum status conv_data_gradient(struct backend *backend, struct conv *self,
                                      const struct op_buffers *buffers, const void *g,
                                      cudaStream_t stream)
{
    const bool adds = buffers->din_add[0] != NULL;
    char *scratch = cuda_scratch(buffers->scratch);
    const struct tensor *in = &self->base.spec.in[0];
    void *dx = self->make_dx ? scratch + self->dx_at : buffers->din[0];
    enum status st = ST_OK;
    if (adds && buffers->din_add[0] != buffers->din[0]) {
        st = CUDA_STATUS(backend,
                         cudaMemcpyAsync(buffers->din[0], buffers->din_add[0],
                                         (size_t)tensor_elements(in) * dtype_size(in->dtype),
                                         cudaMemcpyDeviceToDevice, stream),
                         "cudaMemcpyAsync");
    }
    const struct cuda_conv_operands operands = { .x = dx,
                                                 .weights = buffers->cache,
                                                 .y = g,
                                                 .workspace = scratch + self->workspace_at,
                                                 .adds = adds && !self->make_dx };
    if (st == ST_OK)
        st = cuda_conv_run(backend, &self->by[CUDA_CONV_DATA], &operands, stream);
    if (st != ST_OK || !self->make_dx)
        return st;
    return conv_finish_data_gradient(backend, self, buffers, dx, stream);
}

enum status cuda_op_conv2d_backward(struct backend *backend, struct kernel *kernel,
                                    const struct op_buffers *buffers, cudaStream_t stream)
{
    struct conv *self = (struct conv *)kernel;
    if (self->linear != NULL)
        return cuda_op_linear_backward(backend, self->linear, buffers, stream);
    const void *g = NULL;
    char *scratch = cuda_scratch(buffers->scratch);
    enum status st = conv_gradient(backend, self, buffers, scratch, &g, stream);
    if (st == ST_OK && self->planar) {
        const struct k_transpose args = { .batch = self->n,
                                          .a = self->p * self->q,
                                          .b = self->k,
                                          .from = self->type,
                                          .to = self->type,
                                          .in = g,
                                          .out = scratch + self->y_at };
        st = conv_transpose(backend, &args, stream);
        g = args.out;
    }
    if (st == ST_OK && buffers->dparam[0] != NULL)
        st = conv_weights_gradient(backend, self, buffers, g, stream);
    if (st == ST_OK && buffers->din[0] != NULL)
        st = conv_data_gradient(backend, self, buffers, g, stream);
    return st;
}
