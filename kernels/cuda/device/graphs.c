/*
 * Captured graphs: what was enqueued on one stream, to be launched again in one call. There are at
 * most CUDA_GRAPHS_MAX; they live until the backend is closed.
 *
 * Capture is thread-local: other threads may allocate and copy meanwhile. With CAIRN_CUDA_EAGER, or
 * CAIRN_CUDA_SYNC, which waits after each launch, nothing is captured.
 */
#include "common/check.h"
#include "kernels/cuda/device/cuda.h"

enum status cuda_capture_begin(struct backend *backend, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (stream == NULL || backend->eager)
        return ST_INVALID;
    if (backend->graph_count == CUDA_GRAPHS_MAX)
        return cuda_refuse(backend, ST_FULL, "too many captured graphs");
    st = CUDA_STATUS(backend,
                     cudaStreamBeginCapture(stream->handle, cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture");
    backend->capturing = st == ST_OK;
    return st;
}

enum status cuda_capture_end(struct backend *backend, struct stream *stream, int *out_graph)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (stream == NULL)
        return ST_INVALID;
    cudaGraph_t graph = NULL;
    backend->capturing = false;
    st = CUDA_STATUS(backend, cudaStreamEndCapture(stream->handle, &graph), "cudaStreamEndCapture");
    if (st != ST_OK)
        return st;
    if (graph == NULL)
        return cuda_refuse(backend, ST_INVALID, "a capture was broken off");
    cudaGraphExec_t exec = NULL;
    st = CUDA_STATUS(backend, cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    (void)cudaGraphDestroy(graph);
    if (st != ST_OK)
        return st;
    CHECK(backend->graph_count < CUDA_GRAPHS_MAX); /* or cuda_capture_begin had refused */
    backend->graphs[backend->graph_count] = exec;
    *out_graph = backend->graph_count++;
    return ST_OK;
}

enum status cuda_replay(struct backend *backend, int graph, struct stream *stream)
{
    enum status st = cuda_enter(backend);
    if (st != ST_OK)
        return st;
    if (graph < 0 || graph >= backend->graph_count || stream == NULL)
        return ST_INVALID;
    cuda_range_push("replay");
    st = CUDA_STATUS(backend, cudaGraphLaunch(backend->graphs[graph], stream->handle),
                     "cudaGraphLaunch");
    cuda_range_pop();
    return st;
}

void cuda_graphs_release(struct backend *backend)
{
    while (backend->graph_count > 0)
        (void)cudaGraphExecDestroy(backend->graphs[--backend->graph_count]);
}
