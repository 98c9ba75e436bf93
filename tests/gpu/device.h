/*
 * A device as the kernels' tests see it: the emulator (emulator/device.cc) or a GPU
 * (device_cuda.c). Any failure ends the process with a message.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the initial bytes of memory, and the order of an emulated device, are drawn from. */
void device_seed(uint64_t seed);
/* Memory that is aligned to `align` (a power of two from 4 to 16) and to no more. */
void *device_alloc(size_t bytes, size_t align);
void device_free(void *memory); /* fails if something was written around it */
void device_put(void *to, const void *from, size_t bytes);
void device_get(void *to, const void *from, size_t bytes); /* after all launches so far */

#ifdef __cplusplus
}
#endif
