/*
 * The CUDA runtime, what it gives of the driver, cuBLASLt and cuDNN on host memory, so far as the
 * CUDA backend calls them: with the own kernels on the emulator, its whole host side runs where
 * there is no device.
 *
 * Streams are queues. Deferred (the default), what is enqueued runs when somebody waits for it, so
 * that a missing wait shows as old data; else it runs at once. Products and convolutions are loops
 * that honour layouts, types, epilogues and factors; they scribble over their workspace and refuse
 * what the libraries refuse: unaligned operands, calls that break a capture, unknown algorithms.
 *
 * A device is described by CAIRN_FAKE_CUDA, words separated by commas, read when first used:
 *
 *   no-driver | old-driver | no-device   cudaGetDeviceCount fails so
 *   devices=N  capability=80             what there is
 *   memory=BYTES                         cudaMalloc fails beyond it
 *   at-once                              nothing is deferred
 *   fail=FUNCTION:NTH:ERROR              the nth call of a function from now returns ERROR; an
 *                                        error that is sticky stays for all later calls
 *   favours=ID                           what cuBLASLt's heuristic names first: 7 or 11, which sum
 *                                        in different orders
 *   only-nchw                            cuDNN refuses channels innermost
 *   no-parts                             no virtual memory management
 *
 * Not seen: speed, races on a device, what the libraries' own arithmetic and limits are.
 * Thread: any; one lock around everything.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/module.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets up the fake as if the process had just begun with this description; no device may be
 * open. */
void fake_cuda_describe(const char *words);
/* Words like above, from now on. */
void fake_cuda_change(const char *words);
/* Calls of a function since fake_cuda_describe; its name as in the API. */
int fake_cuda_calls(const char *function);
/* Bytes of device and pinned memory that are not yet freed; streams, events, graphs, descriptors,
 * reserved addresses, handles of memory. */
size_t fake_cuda_memory_left(void);
int fake_cuda_objects_left(void);

/* The module over these fakes, linked into the test (cairn-cuda-fake.so exports the same). */
const struct module *cairn_cuda_module(void);

#ifdef __cplusplus
}
#endif
