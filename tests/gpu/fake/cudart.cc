#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/launches.h"
#include "tests/gpu/fake/runtime.h"

struct fake_state fake;

static void change_word(const std::string &word)
{
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (name == "no-driver") {
        fake.driver = 0;
        fake.count_error = cudaErrorInsufficientDriver;
    } else if (name == "old-driver") {
        fake.driver = 11040;
        fake.count_error = cudaErrorInsufficientDriver;
    } else if (name == "no-device") {
        fake.count_error = cudaErrorNoDevice;
    } else if (name == "devices") {
        fake.devices = (int)strtol(value.c_str(), nullptr, 10);
    } else if (name == "capability") {
        fake.capability = (int)strtol(value.c_str(), nullptr, 10);
    } else if (name == "memory") {
        fake.memory = strtoull(value.c_str(), nullptr, 10);
    } else if (name == "at-once") {
        fake.deferred = false;
    } else if (name == "no-parts") {
        fake.parts = false;
    } else if (name == "only-nchw") {
        fake.only_planar = true;
    } else if (name == "favours") {
        fake.favours = (int)strtol(value.c_str(), nullptr, 10);
    } else if (name == "fail") {
        const size_t first = value.find(':'), second = value.find(':', first + 1);
        const std::string function = value.substr(0, first);
        const long nth = strtol(value.c_str() + first + 1, nullptr, 10);
        fake.faults[function][fake.calls[function] + (int)nth] =
            (int)strtol(value.c_str() + second + 1, nullptr, 10);
    } else if (!name.empty()) {
        abort(); /* a test's mistake */
    }
}

void fake_cuda_change(const char *words)
{
    const held lock(fake.lock);
    fake.read = true;
    fake_take_launches();
    const std::string all(words);
    for (size_t at = 0; at <= all.size();) {
        const size_t comma = std::min(all.find(',', at), all.size());
        change_word(all.substr(at, comma - at));
        at = comma + 1;
    }
}

void fake_cuda_describe(const char *words)
{
    const held lock(fake.lock);
    fake.deferred = true;
    fake.only_planar = false;
    fake.parts = true;
    fake.devices = 1;
    fake.capability = 90;
    fake.driver = 13000;
    fake.favours = 7;
    fake.count_error = fake.sticky = fake.last = cudaSuccess;
    fake.memory = (size_t)4 << 30;
    fake.calls.clear();
    fake.faults.clear();
    forget_memory();
    fake_cuda_change(words);
}

int fake_cuda_calls(const char *function)
{
    const held lock(fake.lock);
    return fake.calls[function];
}

size_t fake_cuda_memory_left(void)
{
    const held lock(fake.lock);
    return fake.used + fake.pinned;
}

int fake_cuda_objects_left(void)
{
    const held lock(fake.lock);
    return fake.objects;
}

std::recursive_mutex &fake_lock()
{
    return fake.lock;
}

int fake_favours()
{
    return fake.favours;
}

bool fake_only_planar()
{
    return fake.only_planar;
}

void fake_object(int by)
{
    fake.objects += by;
}

int fake_fault(const char *function)
{
    if (!fake.read) {
        const char *words = getenv("CAIRN_FAKE_CUDA");
        fake_cuda_change(words == nullptr ? "" : words);
    }
    const int call = ++fake.calls[function];
    const auto &faults = fake.faults[function];
    const auto fault = faults.find(call);
    return fault == faults.end() ? 0 : fault->second;
}

cudaError_t runtime_leave(cudaError_t error)
{
    if (error != cudaSuccess)
        fake.last = error;
    return error;
}

cudaError_t runtime_enter(const char *function)
{
    const cudaError_t fault = (cudaError_t)fake_fault(function);
    if (fault == cudaErrorIllegalAddress || fault == cudaErrorLaunchFailure ||
        fault == cudaErrorECCUncorrectable)
        fake.sticky = fault;
    return runtime_leave(fake.sticky != cudaSuccess ? fake.sticky : fault);
}

/* --- streams -------------------------------------------------------------------------------- */

CUstream_st *stream_of(cudaStream_t stream)
{
    return stream == nullptr ? &fake.legacy : stream;
}

static bool run_one(CUstream_st *stream)
{
    if (stream->queue.empty())
        return false;
    const work next = std::move(stream->queue.front());
    stream->queue.pop_front();
    next();
    return true;
}

void drain(CUstream_st *stream)
{
    while (run_one(stream))
        continue;
}

bool fake_enqueue(CUstream_st *handle, work item)
{
    CUstream_st *stream = stream_of(handle);
    if (stream->capturing) {
        stream->captured.push_back(std::move(item));
        return !stream->spoilt;
    }
    stream->queue.push_back(std::move(item));
    if (!fake.deferred)
        drain(stream);
    return true;
}

bool fake_launch(void *stream, work run)
{
    const held lock(fake.lock);
    if (runtime_enter("launch") != cudaSuccess)
        return false;
    if (fake_enqueue(static_cast<CUstream_st *>(stream), std::move(run)))
        return true;
    (void)runtime_leave(cudaErrorStreamCaptureInvalidated);
    return false;
}

bool spoils(CUstream_st *stream)
{
    stream->spoilt = stream->spoilt || stream->capturing;
    return stream->capturing;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaStreamCreateWithFlags");
    if (error != cudaSuccess)
        return error;
    (void)flags;
    *out = new CUstream_st();
    fake.streams.insert(*out);
    fake_object(1);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const held lock(fake.lock);
    drain(stream);
    fake.streams.erase(stream);
    delete stream;
    fake_object(-1);
    return runtime_enter("cudaStreamDestroy");
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaStreamSynchronize");
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = stream_of(handle);
    if (spoils(stream))
        return runtime_leave(cudaErrorStreamCaptureUnsupported);
    drain(stream);
    return runtime_leave(fake.sticky);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaEventCreateWithFlags");
    if (error != cudaSuccess)
        return error;
    *out = new CUevent_st();
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    fake_object(1);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    const held lock(fake.lock);
    while (event->done < event->issued && run_one(event->stream))
        continue;
    delete event;
    fake_object(-1);
    return runtime_enter("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaEventRecord");
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = stream_of(handle);
    if (spoils(stream)) /* allowed by CUDA; the backend never does it */
        return runtime_leave(cudaErrorStreamCaptureUnsupported);
    event->stream = stream;
    const uint64_t mine = ++event->issued;
    fake_enqueue(stream, [event, mine] {
        event->done = std::max(event->done, mine);
        event->at_ns = std::chrono::steady_clock::now().time_since_epoch().count();
    });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaStreamWaitEvent");
    if (error != cudaSuccess)
        return error;
    (void)flags;
    CUstream_st *stream = stream_of(handle);
    if (spoils(stream))
        return runtime_leave(cudaErrorStreamCaptureIsolation);
    const uint64_t wanted = event->issued;
    CUstream_st *recorded = event->stream; /* now: it may be recorded elsewhere before this runs */
    fake_enqueue(stream, [event, recorded, wanted] {
        while (event->done < wanted && run_one(recorded))
            continue;
    });
    return cudaSuccess;
}

/* A caller that asks again and again must see progress: one piece of work is done per question. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaEventQuery");
    if (error != cudaSuccess)
        return error;
    if (event->done >= event->issued)
        return cudaSuccess;
    (void)run_one(event->stream);
    return runtime_leave(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t begin, cudaEvent_t end)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaEventElapsedTime");
    if (error != cudaSuccess)
        return error;
    if (!begin->timed || !end->timed || begin->issued == 0 || end->issued == 0)
        return runtime_leave(cudaErrorInvalidResourceHandle);
    if (begin->done < begin->issued || end->done < end->issued)
        return runtime_leave(cudaErrorNotReady);
    *out = (float)(end->at_ns - begin->at_ns) / 1e6f;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaDeviceSynchronize");
    if (error != cudaSuccess)
        return error;
    for (CUstream_st *stream : fake.streams)
        drain(stream);
    return runtime_leave(fake.sticky);
}

/* --- graphs --------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaStreamBeginCapture");
    if (error != cudaSuccess)
        return error;
    if (stream == nullptr || stream->capturing || mode != cudaStreamCaptureModeThreadLocal)
        return runtime_leave(cudaErrorIllegalState);
    stream->capturing = true;
    stream->spoilt = false;
    stream->thread = std::this_thread::get_id();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaStreamEndCapture");
    const bool spoilt = stream->spoilt || !stream->capturing || error != cudaSuccess;
    std::vector<work> works;
    works.swap(stream->captured);
    stream->capturing = false;
    *out = nullptr;
    if (spoilt)
        return runtime_leave(error != cudaSuccess ? error : cudaErrorStreamCaptureInvalidated);
    *out = new CUgraph_st{ works };
    fake_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaGraphInstantiate");
    if (error != cudaSuccess)
        return error;
    (void)flags;
    *out = new CUgraphExec_st{ graph->works };
    fake_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    const held lock(fake.lock);
    delete graph;
    fake_object(-1);
    return runtime_enter("cudaGraphDestroy");
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    const held lock(fake.lock);
    delete exec;
    fake_object(-1);
    return runtime_enter("cudaGraphExecDestroy");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const held lock(fake.lock);
    const cudaError_t error = runtime_enter("cudaGraphLaunch");
    if (error != cudaSuccess)
        return error;
    for (const work &item : exec->works)
        fake_enqueue(stream, item);
    return cudaSuccess;
}
