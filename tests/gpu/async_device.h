/*
 * A device for tests: the CPU backend behind the interface of an asynchronous one with memory of
 * its own. Computes the CPU's bits.
 *
 * Every stream is a thread with a queue, so that a missing event or wait shows as a data race or as
 * wrong numbers. Device memory has addresses that the host can't touch: a host access is a fault.
 *
 * Thread: as kernels/backend.h. Errors inside a stream show at its sync and at queries.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

/* Static. */
const struct backend_table *async_device(void);

/* Bytes that one open device has from now on; 0: 16 GiB. */
void async_device_limit(size_t bytes);

#define ASYNC_ARG_MAX 1024

/* What a stream runs; arg is its own copy. Blocks while the queue is full. */
typedef enum status async_run(struct stream *stream, void *arg);
void async_device_enqueue(struct stream *stream, async_run *run, const void *arg, size_t size);

/* The memory behind a device address; other pointers are returned as they are. */
void *async_device_memory(struct stream *stream, const void *address);

/* While held, nobody may enqueue on the stream: a rule of NCCL. */
void async_device_hold(struct stream *stream, int by);

/* Calls of alloc since the process began. */
uint64_t async_device_allocations(void);
