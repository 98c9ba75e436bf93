/*
 * The only C++ of the CUDA host side. No exception leaves it.
 */
#include "kernels/cuda/library/sdpa_cudnn.h"

#include <algorithm>
#include <cmath>
#include <cudnn_frontend.h>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

namespace fe = cudnn_frontend;

using tensor_attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

enum uid : int64_t { UID_Q = 1, UID_K, UID_V, UID_OUT, UID_LSE, UID_DOUT, UID_DQ, UID_DK, UID_DV };

struct sdpa_cudnn {
    cudnnHandle_t handle;
    struct cuda_attention shape;
    std::unique_ptr<fe::graph::Graph> forward, backward; /* backward: NULL unless training */
    size_t workspace_bytes;
    std::string implementation;
};

bool sdpa_cudnn_chosen(const struct cuda_attention *shape, int capability)
{
#if defined(CAIRN_SDPA_CUDNN)
    const bool is_half = shape->dtype == DTYPE_BF16 || shape->dtype == DTYPE_F16;
    return is_half && capability >= 80 && shape->dim % 8 == 0 && shape->dim <= 128;
#else
    (void)shape;
    (void)capability;
    return false;
#endif
}

const char *sdpa_cudnn_implementation(const struct sdpa_cudnn *sdpa)
{
    return sdpa->implementation.c_str();
}

/* [N, H, T, D] of a matrix whose rows are `row` elements apart. */
static fe::graph::Tensor_attributes sdpa_matrix(const struct cuda_attention *shape,
                                                const char *name, int64_t uid, int64_t row)
{
    fe::graph::Tensor_attributes tensor;
    tensor.set_name(name)
        .set_uid(uid)
        .set_dim({ shape->samples, shape->heads, shape->tokens, shape->dim })
        .set_stride({ shape->tokens * row, shape->dim, row, 1 });
    return tensor;
}

static void sdpa_describe(const tensor_attributes &tensor, const fe::graph::Tensor_attributes &like)
{
    tensor->set_output(true)
        .set_name(like.get_name())
        .set_uid(like.get_uid())
        .set_dim(like.get_dim())
        .set_stride(like.get_stride());
}

static fe::graph::Tensor_attributes statistics(const struct cuda_attention *shape)
{
    fe::graph::Tensor_attributes tensor;
    tensor.set_name("lse")
        .set_uid(UID_LSE)
        .set_dim({ shape->samples, shape->heads, shape->tokens, 1 })
        .set_stride({ shape->heads * shape->tokens, shape->tokens, 1, 1 })
        .set_data_type(fe::DataType_t::FLOAT);
    return tensor;
}

static std::unique_ptr<fe::graph::Graph> graph_new(const struct cuda_attention *shape)
{
    auto graph = std::make_unique<fe::graph::Graph>();
    graph
        ->set_io_data_type(shape->dtype == DTYPE_BF16 ? fe::DataType_t::BFLOAT16
                                                      : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
}

static float scale_of(const struct cuda_attention *shape)
{
    return (float)(1.0 / std::sqrt((double)shape->dim));
}

static std::unique_ptr<fe::graph::Graph> forward_graph(const struct cuda_attention *shape,
                                                       bool training)
{
    auto graph = graph_new(shape);
    const int64_t narrow = (int64_t)shape->heads * shape->dim, wide = 3 * narrow;
    auto q = graph->tensor(sdpa_matrix(shape, "q", UID_Q, wide));
    auto k = graph->tensor(sdpa_matrix(shape, "k", UID_K, wide));
    auto v = graph->tensor(sdpa_matrix(shape, "v", UID_V, wide));
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(training)
                       .set_causal_mask(!shape->bidirectional)
                       .set_attn_scale(scale_of(shape));
    const auto outputs = graph->sdpa(q, k, v, options);
    sdpa_describe(outputs[0], sdpa_matrix(shape, "out", UID_OUT, narrow));
    if (training) {
        sdpa_describe(outputs[1], statistics(shape));
        outputs[1]->set_data_type(fe::DataType_t::FLOAT);
    }
    return graph;
}

static std::unique_ptr<fe::graph::Graph> backward_graph(const struct cuda_attention *shape)
{
    auto graph = graph_new(shape);
    const int64_t narrow = (int64_t)shape->heads * shape->dim, wide = 3 * narrow;
    auto q = graph->tensor(sdpa_matrix(shape, "q", UID_Q, wide));
    auto k = graph->tensor(sdpa_matrix(shape, "k", UID_K, wide));
    auto v = graph->tensor(sdpa_matrix(shape, "v", UID_V, wide));
    auto out = graph->tensor(sdpa_matrix(shape, "out", UID_OUT, narrow));
    auto dout = graph->tensor(sdpa_matrix(shape, "dout", UID_DOUT, narrow));
    auto lse = graph->tensor(statistics(shape));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention gradient")
                       .set_causal_mask(!shape->bidirectional)
                       .set_deterministic_algorithm(true)
                       .set_attn_scale(scale_of(shape));
    const auto outputs = graph->sdpa_backward(q, k, v, out, dout, lse, options);
    sdpa_describe(outputs[0], sdpa_matrix(shape, "dq", UID_DQ, wide));
    sdpa_describe(outputs[1], sdpa_matrix(shape, "dk", UID_DK, wide));
    sdpa_describe(outputs[2], sdpa_matrix(shape, "dv", UID_DV, wide));
    return graph;
}

/* Whatever a graph can't be built for, cuDNN does not take the shape on this device. */
static enum status graph_build(fe::graph::Graph *graph, cudnnHandle_t handle, size_t *workspace)
{
    int64_t bytes = 0;
    if (graph->validate().is_bad() || graph->build_operation_graph(handle).is_bad() ||
        graph->create_execution_plans({ fe::HeurMode_t::A }).is_bad() ||
        graph->check_support(handle).is_bad() || graph->build_plans(handle).is_bad() ||
        graph->get_workspace_size(bytes).is_bad())
        return ST_INVALID;
    *workspace = std::max(*workspace, (size_t)bytes);
    return ST_OK;
}

/* A plan's name has its engine and the engine's knobs. */
static std::string plan_name(const fe::graph::Graph *graph)
{
    std::string name = "?";
    if (graph != nullptr && graph->get_plan_name(name).is_bad())
        name = "?";
    return name;
}

static std::string implementation_of(const struct sdpa_cudnn *sdpa)
{
    std::string name = "cudnn-sdpa " + std::to_string(CUDNN_FRONTEND_VERSION) + " " +
                       plan_name(sdpa->forward.get());
    return sdpa->backward == nullptr ? name : name + " " + plan_name(sdpa->backward.get());
}

enum status sdpa_cudnn_new(void *handle, const struct cuda_attention *shape, bool training,
                           struct sdpa_cudnn **out)
{
    if (handle == nullptr || !cuda_attention_supported(shape) || shape->dtype == DTYPE_F32)
        return ST_INVALID;
    try {
        auto sdpa = std::make_unique<struct sdpa_cudnn>();
        sdpa->handle = (cudnnHandle_t)handle;
        sdpa->shape = *shape;
        sdpa->forward = forward_graph(shape, training);
        enum status st = graph_build(sdpa->forward.get(), sdpa->handle, &sdpa->workspace_bytes);
        if (st != ST_OK)
            return st;
        if (training) {
            sdpa->backward = backward_graph(shape);
            st = graph_build(sdpa->backward.get(), sdpa->handle, &sdpa->workspace_bytes);
            if (st != ST_OK)
                return st;
        }
        sdpa->implementation = implementation_of(sdpa.get());
        *out = sdpa.release();
        return ST_OK;
    } catch (const std::bad_alloc &) {
        return ST_NO_MEMORY;
    } catch (...) {
        return ST_INVALID;
    }
}

void sdpa_cudnn_free(struct sdpa_cudnn *sdpa)
{
    delete sdpa;
}

size_t sdpa_cudnn_workspace_bytes(const struct sdpa_cudnn *sdpa)
{
    return sdpa->workspace_bytes;
}

typedef std::unordered_map<int64_t, void *> pointers;

/* q, k and v side by side in rows of 3·H·D. */
static void pointers_put(pointers &to, const struct sdpa_cudnn *sdpa, int64_t first_uid,
                         const void *qkv)
{
    const size_t width = (size_t)sdpa->shape.heads * (size_t)sdpa->shape.dim * 2;
    for (size_t i = 0; i < 3; i++)
        to[first_uid + (int64_t)i] = (char *)const_cast<void *>(qkv) + i * width;
}

static enum status graph_run(const fe::graph::Graph *graph, cudnnHandle_t handle, pointers &all,
                             void *workspace, void *stream)
{
    if (cudnnSetStream(handle, (cudaStream_t)stream) != CUDNN_STATUS_SUCCESS)
        return ST_DEVICE;
    return graph->execute(handle, all, workspace).is_good() ? ST_OK : ST_DEVICE;
}

enum status sdpa_cudnn_forward(struct sdpa_cudnn *sdpa, const void *qkv, void *out, float *lse,
                               void *workspace, void *stream)
{
    try {
        pointers all;
        pointers_put(all, sdpa, UID_Q, qkv);
        all[UID_OUT] = out;
        if (sdpa->backward != nullptr)
            all[UID_LSE] = lse;
        return graph_run(sdpa->forward.get(), sdpa->handle, all, workspace, stream);
    } catch (...) {
        return ST_DEVICE;
    }
}

enum status sdpa_cudnn_backward(struct sdpa_cudnn *sdpa, const struct sdpa_cudnn_grad *args,
                                void *workspace, void *stream)
{
    if (sdpa->backward == nullptr)
        return ST_INVALID;
    try {
        pointers all;
        pointers_put(all, sdpa, UID_Q, args->qkv);
        pointers_put(all, sdpa, UID_DQ, args->dqkv);
        all[UID_OUT] = const_cast<void *>(args->out);
        all[UID_DOUT] = const_cast<void *>(args->dout);
        all[UID_LSE] = const_cast<float *>(args->lse);
        return graph_run(sdpa->backward.get(), sdpa->handle, all, workspace, stream);
    } catch (...) {
        return ST_DEVICE;
    }
}
