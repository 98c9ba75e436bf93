/*
 * Between the fakes: the lock, injected faults, the queue of a stream, and numbers of any type.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <library_types.h>
#include <mutex>

struct CUstream_st;

/* Held during every call of the fakes; work runs under it. */
std::recursive_mutex &fake_lock();

/* The error that this call must return; 0: none. Counts the call. */
int fake_fault(const char *function);

/* What the heuristic of cuBLASLt names first. */
int fake_favours();

/* cuDNN refuses tensors whose channels are innermost. */
bool fake_only_planar();

/* Counts descriptors and the like. */
void fake_object(int by);

/* Runs later, in the stream's order; or at once. False: the capture does not allow it. */
bool fake_enqueue(CUstream_st *stream, std::function<void()> work);

/* Elements of float32, bfloat16 or float16 arrays. */
size_t fake_size(cudaDataType_t type);
float fake_load(cudaDataType_t type, const void *array, int64_t at);
void fake_store(cudaDataType_t type, void *array, int64_t at, float value);
/* To 10 bits of mantissa, nearest even. */
float fake_tf32(float x);
