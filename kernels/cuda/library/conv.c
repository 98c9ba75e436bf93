#include "kernels/cuda/library/conv.h"

#include "kernels/cuda/device/cuda.h"

enum status cuda_conv_init(struct backend *backend, const struct cuda_conv_spec *spec,
                           struct cuda_conv *out)
{
    struct cuda_conv conv = { .graph = { .plan = NULL } };
    enum status st = ST_NOT_FOUND;
    if (!backend->legacy)
        st = conv_graph_init(backend, spec, &conv.graph);
    if (st == ST_NOT_FOUND)
        st = conv_legacy_init(backend, spec, &conv.legacy);
    if (st == ST_OK)
        *out = conv;
    return st;
}

void cuda_conv_release(struct cuda_conv *conv)
{
    conv_graph_release(&conv->graph);
    conv_legacy_release(&conv->legacy);
}

size_t cuda_conv_workspace(const struct cuda_conv *conv)
{
    return conv->graph.plan != NULL ? conv->graph.workspace_bytes : conv->legacy.workspace_bytes;
}

bool cuda_conv_adds(const struct cuda_conv *conv)
{
    return conv->graph.plan == NULL;
}

const char *cuda_conv_name(const struct cuda_conv *conv)
{
    if (conv->graph.plan != NULL)
        return "g";
    return conv->legacy.algorithm == 0 ? "0" : "1";
}

enum status cuda_conv_run(struct backend *backend, struct cuda_conv *conv,
                          const struct cuda_conv_operands *operands, cudaStream_t stream)
{
    enum status st =
        CUDA_DNN_STATUS(backend, cudnnSetStream(backend->cudnn, stream), "cudnnSetStream");
    if (st != ST_OK)
        return st;
    const cudnnStatus_t ran = conv->graph.plan != NULL
                                  ? conv_graph_run(backend, &conv->graph, operands)
                                  : conv_legacy_run(backend, &conv->legacy, operands);
    return CUDA_LAUNCHED(backend, CUDA_DNN_STATUS(backend, ran, "convolution"), "convolution");
}
