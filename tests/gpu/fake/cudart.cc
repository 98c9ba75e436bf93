#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/fake/fake.h"
#include "tests/gpu/fake/fake_internal.h"
#include "tests/gpu/fake/launches.h"

typedef std::function<void()> work;
typedef std::lock_guard<std::recursive_mutex> held;

#define DEVICES_MAX 16

struct CUstream_st {
    std::deque<work> queue;
    bool capturing = false, spoilt = false;
    std::thread::id thread; /* that captures */
    std::vector<work> captured;
};

struct CUevent_st {
    CUstream_st *stream = nullptr;
    uint64_t issued = 0, done = 0;
};

struct CUgraph_st {
    std::vector<work> works;
};

struct CUgraphExec_st {
    std::vector<work> works;
};

struct region {
    void *base;
    size_t size;
    bool pinned;
};

/* Of the process, like the runtime's. */
static struct {
    std::recursive_mutex lock;
    bool read = false, deferred = true;
    int devices = 1, capability = 90, driver = 13000, favours = 7;
    cudaError_t count_error = cudaSuccess, sticky = cudaSuccess, last = cudaSuccess;
    size_t memory = (size_t)4 << 30, used = 0, pinned = 0;
    int objects = 0;
    std::map<std::string, int> calls;
    std::map<std::string, std::map<int, int>> faults; /* function, call, error */
    std::map<const char *, struct region> regions;
    CUstream_st legacy;
    std::set<CUstream_st *> streams{ &legacy };
} fake;

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
    fake.devices = 1;
    fake.capability = 90;
    fake.driver = 13000;
    fake.favours = 7;
    fake.count_error = fake.sticky = fake.last = cudaSuccess;
    fake.memory = (size_t)4 << 30;
    fake.calls.clear();
    fake.faults.clear();
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

static cudaError_t leave(cudaError_t error)
{
    if (error != cudaSuccess)
        fake.last = error;
    return error;
}

/* What each call of the runtime begins with. */
static cudaError_t enter(const char *function)
{
    const cudaError_t fault = (cudaError_t)fake_fault(function);
    if (fault == cudaErrorIllegalAddress || fault == cudaErrorLaunchFailure ||
        fault == cudaErrorECCUncorrectable)
        fake.sticky = fault;
    return leave(fake.sticky != cudaSuccess ? fake.sticky : fault);
}

/* --- streams -------------------------------------------------------------------------------- */

static CUstream_st *stream_of(cudaStream_t stream)
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

static void drain(CUstream_st *stream)
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
    return enter("launch") == cudaSuccess &&
           fake_enqueue(static_cast<CUstream_st *>(stream), std::move(run));
}

/* A call that a capture on this stream does not allow breaks it. */
static bool spoils(CUstream_st *stream)
{
    stream->spoilt = stream->spoilt || stream->capturing;
    return stream->capturing;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaStreamCreateWithFlags");
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
    return enter("cudaStreamDestroy");
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaStreamSynchronize");
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = stream_of(handle);
    if (spoils(stream))
        return leave(cudaErrorStreamCaptureUnsupported);
    drain(stream);
    return leave(fake.sticky);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaEventCreateWithFlags");
    if (error != cudaSuccess)
        return error;
    (void)flags;
    *out = new CUevent_st();
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
    return enter("cudaEventDestroy");
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaEventRecord");
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = stream_of(handle);
    if (spoils(stream)) /* allowed by CUDA; the backend never does it */
        return leave(cudaErrorStreamCaptureUnsupported);
    event->stream = stream;
    const uint64_t mine = ++event->issued;
    fake_enqueue(stream, [event, mine] { event->done = std::max(event->done, mine); });
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned flags)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaStreamWaitEvent");
    if (error != cudaSuccess)
        return error;
    (void)flags;
    CUstream_st *stream = stream_of(handle);
    if (spoils(stream))
        return leave(cudaErrorStreamCaptureIsolation);
    const uint64_t wanted = event->issued;
    fake_enqueue(stream, [event, wanted] {
        while (event->done < wanted && run_one(event->stream))
            continue;
    });
    return cudaSuccess;
}

/* Who asks again and again must see progress: one piece of work is done per question. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaEventQuery");
    if (error != cudaSuccess)
        return error;
    if (event->done >= event->issued)
        return cudaSuccess;
    (void)run_one(event->stream);
    return leave(cudaErrorNotReady);
}

/* --- graphs --------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaStreamBeginCapture");
    if (error != cudaSuccess)
        return error;
    if (stream == nullptr || stream->capturing || mode != cudaStreamCaptureModeThreadLocal)
        return leave(cudaErrorIllegalState);
    stream->capturing = true;
    stream->spoilt = false;
    stream->thread = std::this_thread::get_id();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaStreamEndCapture");
    const bool spoilt = stream->spoilt || !stream->capturing || error != cudaSuccess;
    std::vector<work> works;
    works.swap(stream->captured);
    stream->capturing = false;
    *out = nullptr;
    if (spoilt)
        return leave(error != cudaSuccess ? error : cudaErrorStreamCaptureInvalidated);
    *out = new CUgraph_st{ works };
    fake_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaGraphInstantiate");
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
    return enter("cudaGraphDestroy");
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    const held lock(fake.lock);
    delete exec;
    fake_object(-1);
    return enter("cudaGraphExecDestroy");
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaGraphLaunch");
    if (error != cudaSuccess)
        return error;
    for (const work &item : exec->works)
        fake_enqueue(stream, item);
    return cudaSuccess;
}

/* --- memory --------------------------------------------------------------------------------- */

/* Filled with a pattern: who needs zeros must write them. Aligned to 256 and to no more. */
static cudaError_t take(void **out, size_t size, bool pinned)
{
    if (size > fake.memory || (!pinned && fake.used > fake.memory - size))
        return leave(cudaErrorMemoryAllocation);
    char *base = static_cast<char *>(malloc(size + 1024));
    if (base == nullptr)
        return leave(cudaErrorMemoryAllocation);
    char *memory = base + 512 - (uintptr_t)base % 512 + 256;
    memset(memory, 0xa5, size);
    fake.regions[memory] = { base, size, pinned };
    (pinned ? fake.pinned : fake.used) += size;
    *out = memory;
    return cudaSuccess;
}

/* The region that an address lies in; NULL: memory of the host. */
static const struct region *region_of(const void *address)
{
    auto after = fake.regions.upper_bound(static_cast<const char *>(address));
    if (after == fake.regions.begin())
        return nullptr;
    --after;
    const size_t offset = (size_t)(static_cast<const char *>(address) - after->first);
    return offset < after->second.size ? &after->second : nullptr;
}

/* All work is done before memory goes. */
static cudaError_t give_back(void *memory, bool pinned)
{
    if (memory == nullptr)
        return cudaSuccess;
    const auto region = fake.regions.find(static_cast<char *>(memory));
    if (region == fake.regions.end() || region->second.pinned != pinned)
        return leave(cudaErrorInvalidValue);
    for (CUstream_st *stream : fake.streams)
        drain(stream);
    (pinned ? fake.pinned : fake.used) -= region->second.size;
    free(region->second.base);
    fake.regions.erase(region);
    return cudaSuccess;
}

/* In thread-local mode a capture forbids its thread to allocate; the step thread alone captures. */
static bool somebody_captures()
{
    for (CUstream_st *stream : fake.streams) {
        if (stream->capturing && stream->thread == std::this_thread::get_id())
            return spoils(stream);
    }
    return false;
}

static cudaError_t allocate(const char *function, void **out, size_t size, bool pinned)
{
    const held lock(fake.lock);
    const cudaError_t error = enter(function);
    if (error != cudaSuccess)
        return error;
    if (somebody_captures())
        return leave(cudaErrorStreamCaptureUnsupported);
    return take(out, size, pinned);
}

cudaError_t cudaMalloc(void **out, size_t size)
{
    return allocate("cudaMalloc", out, size, false);
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags)
{
    (void)flags;
    return allocate("cudaMallocManaged", out, size, false);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags)
{
    (void)flags;
    return allocate("cudaHostAlloc", out, size, true);
}

cudaError_t cudaFree(void *memory)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaFree");
    const cudaError_t freed = give_back(memory, false);
    return error != cudaSuccess ? error : freed;
}

cudaError_t cudaFreeHost(void *memory)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaFreeHost");
    const cudaError_t freed = give_back(memory, true);
    return error != cudaSuccess ? error : freed;
}

/* On the legacy stream, which waits for none of the others: all of them are non-blocking. */
cudaError_t cudaMemset(void *to, int value, size_t size)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaMemset");
    if (error != cudaSuccess)
        return error;
    const struct region *region = region_of(to);
    if (region == nullptr || region->pinned)
        return leave(cudaErrorInvalidValue);
    fake_enqueue(nullptr, [=] { memset(to, value, size); });
    return cudaSuccess;
}

/* Memory that is neither the device's nor pinned is read or written before the call returns. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t handle)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaMemcpyAsync");
    if (error != cudaSuccess)
        return error;
    CUstream_st *stream = stream_of(handle);
    const struct region *source = region_of(from), *target = region_of(to);
    if ((source == nullptr || target == nullptr) && spoils(stream))
        return leave(cudaErrorStreamCaptureUnsupported);
    if ((kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyHostToDevice) &&
        (target == nullptr || target->pinned))
        return leave(cudaErrorInvalidValue);
    if ((kind == cudaMemcpyDeviceToDevice || kind == cudaMemcpyDeviceToHost) &&
        (source == nullptr || source->pinned))
        return leave(cudaErrorInvalidValue);
    if (source == nullptr) {
        const char *bytes = static_cast<const char *>(from);
        const std::vector<char> staged(bytes, bytes + size);
        fake_enqueue(stream, [=] { memcpy(to, staged.data(), size); });
    } else {
        fake_enqueue(stream, [=] { memmove(to, from, size); });
    }
    if (target == nullptr)
        drain(stream);
    return cudaSuccess;
}

/* --- devices -------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *out)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaGetDeviceCount");
    if (error != cudaSuccess)
        return error;
    if (fake.count_error != cudaSuccess)
        return leave(fake.count_error);
    *out = fake.devices;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaGetDeviceProperties");
    if (error != cudaSuccess)
        return error;
    if (ordinal < 0 || ordinal >= fake.devices)
        return leave(cudaErrorInvalidDevice);
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "Fake \"GPU\"");
    out->major = fake.capability / 10;
    out->minor = fake.capability % 10;
    out->multiProcessorCount = 132;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaSetDevice");
    if (error != cudaSuccess)
        return error;
    return ordinal < 0 || ordinal >= fake.devices ? leave(cudaErrorInvalidDevice) : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *out_free, size_t *out_total)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaMemGetInfo");
    if (error != cudaSuccess)
        return error;
    *out_free = fake.memory - fake.used;
    *out_total = fake.memory;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *out)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaDriverGetVersion");
    *out = fake.driver;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int *out)
{
    const held lock(fake.lock);
    const cudaError_t error = enter("cudaRuntimeGetVersion");
    *out = CUDART_VERSION;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    const held lock(fake.lock);
    const cudaError_t error = fake.last;
    fake.last = fake.sticky;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    default:
        return "another error";
    }
}
