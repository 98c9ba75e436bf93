/*
 * Inside the runtime's fake: its state, which is the process's, like the runtime's own.
 */
#pragma once

#include <cuda_runtime_api.h>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/fake/fake_internal.h"

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
    bool timed = false;
    int64_t at_ns = 0; /* when the stream came to it last */
};

struct CUgraph_st {
    std::vector<work> works;
};

struct CUgraphExec_st {
    std::vector<work> works;
};

struct region {
    void *base; /* NULL: mapped by the driver (driver.cc) */
    size_t size;
    bool pinned;
};

/* Addresses, memory, and memory at addresses. */
struct reservation {
    void *base;
    size_t size;
};

struct handle {
    size_t size;
    bool held, mapped;
};

struct mapping {
    size_t size;
    unsigned long long handle;
};

struct fake_state {
    std::recursive_mutex lock;
    bool read = false, deferred = true, only_planar = false, parts = true;
    int devices = 1, capability = 90, driver = 13000, favours = 7;
    cudaError_t count_error = cudaSuccess, sticky = cudaSuccess, last = cudaSuccess;
    size_t memory = (size_t)4 << 30, used = 0, pinned = 0;
    int objects = 0;
    std::map<std::string, int> calls;
    std::map<std::string, std::map<int, int>> faults; /* function, call, error */
    std::map<const char *, struct region> regions;
    std::map<char *, struct reservation> reservations;
    std::map<char *, struct mapping> mappings;
    std::map<unsigned long long, struct handle> handles;
    unsigned long long last_handle = 0;
    CUstream_st legacy;
    std::set<CUstream_st *> streams{ &legacy };
};

extern struct fake_state fake;

/* What each call of the runtime begins and ends with. */
cudaError_t runtime_enter(const char *function);
cudaError_t runtime_leave(cudaError_t error);
CUstream_st *stream_of(cudaStream_t stream);
void drain(CUstream_st *stream);
/* A dead device takes its memory with it. */
void forget_memory();
void forget_parts();
/* A call that a capture on this stream does not allow breaks it. */
bool spoils(CUstream_st *stream);
