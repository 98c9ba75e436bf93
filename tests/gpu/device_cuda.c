/* The first GPU. Where there is none the test is skipped: exit status 77. */
#include "tests/gpu/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK        0xa5
#define MARK_BYTES  256 /* on both sides; also cudaMalloc's alignment */
#define REGIONS_MAX 64
#define SKIPPED     77

/* What was allocated: the tests' only state, as the emulator's is. */
static struct region {
    unsigned char *base, *memory;
    size_t bytes;
} regions[REGIONS_MAX];
static uint64_t bytes_seed;

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

void device_seed(uint64_t seed)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)fprintf(stderr, "skipped: no GPU (%s)\n", cudaGetErrorString(error));
        exit(SKIPPED);
    }
    bytes_seed = seed;
}

static struct region *region_of(const void *memory)
{
    for (size_t i = 0; i < REGIONS_MAX; i++) {
        if (regions[i].memory == memory)
            return &regions[i];
    }
    (void)fprintf(stderr, "no such memory, or too much of it\n");
    exit(1);
}

static unsigned char *marked(const struct region *r)
{
    unsigned char *host = malloc(r->bytes + 3 * (size_t)MARK_BYTES);
    if (host == NULL)
        exit(1);
    memset(host, MARK, r->bytes + 3 * (size_t)MARK_BYTES);
    return host;
}

void *device_alloc(size_t bytes, size_t align)
{
    struct region *r = region_of(NULL);
    const size_t size = bytes + 3 * (size_t)MARK_BYTES;
    void *base = NULL;
    check(cudaMalloc(&base, size), "cudaMalloc");
    r->base = base;
    r->bytes = bytes;
    r->memory = r->base + MARK_BYTES + (align < MARK_BYTES ? align : 0);
    unsigned char *host = marked(r);
    for (size_t i = 0; i < bytes; i++)
        host[(size_t)(r->memory - r->base) + i] =
            (unsigned char)((i + bytes_seed) * 0x9e3779b9u >> 11);
    check(cudaMemcpy(base, host, size, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(host);
    return r->memory;
}

void device_free(void *memory)
{
    if (memory == NULL)
        return;
    struct region *r = region_of(memory);
    const size_t size = r->bytes + 3 * (size_t)MARK_BYTES;
    const size_t first = (size_t)(r->memory - r->base);
    unsigned char *host = marked(r);
    check(cudaMemcpy(host, r->base, size, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (size_t i = 0; i < size; i++) {
        if (host[i] != MARK && (i < first || i >= first + r->bytes)) {
            (void)fprintf(stderr, "something was written around an allocation\n");
            exit(1);
        }
    }
    free(host);
    check(cudaFree(r->base), "cudaFree");
    *r = (struct region){ NULL, NULL, 0 };
}

void device_put(void *to, const void *from, size_t bytes)
{
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}

void device_get(void *to, const void *from, size_t bytes)
{
    check(cudaDeviceSynchronize(), "a kernel");
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}
