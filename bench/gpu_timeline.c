/*
 * What a process runs on a GPU and when: a library that the driver loads into it.
 *
 *   CUDA_INJECTION64_PATH=libgpu_timeline.so GPU_TIMELINE=FILE PROGRAM…
 *
 * A line per kernel, copy and fill, as the device did them; those of graphs, too (gpu_timeline.py
 * adds them up per step):
 *
 *   K start_ns duration_ns stream grid.x,y,z block.x registers shared_bytes name
 *   M start_ns duration_ns stream bytes kind
 *   S start_ns duration_ns stream bytes
 *
 * Source: CUPTI's manual, "Asynchronous Buffering"; the driver calls InitializeInjection.
 */
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define BUFFER_BYTES ((size_t)8 << 20)

static FILE *out;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void CUPTIAPI on_requested(uint8_t **buffer, size_t *size, size_t *records_max)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer == NULL ? 0 : BUFFER_BYTES;
    *records_max = 0; /* as many as fit */
}

static void print_kernel(const CUpti_ActivityKernel10 *k)
{
    (void)fprintf(out, "K %llu %llu %u %d,%d,%d %d %u %d %s\n", (unsigned long long)k->start,
                  (unsigned long long)(k->end - k->start), k->streamId, k->gridX, k->gridY,
                  k->gridZ, k->blockX, k->registersPerThread,
                  k->staticSharedMemory + k->dynamicSharedMemory, k->name == NULL ? "?" : k->name);
}

static void print_copy(const CUpti_ActivityMemcpy6 *m)
{
    (void)fprintf(out, "M %llu %llu %u %llu %d\n", (unsigned long long)m->start,
                  (unsigned long long)(m->end - m->start), m->streamId,
                  (unsigned long long)m->bytes, m->copyKind);
}

static void print_fill(const CUpti_ActivityMemset4 *s)
{
    (void)fprintf(out, "S %llu %llu %u %llu\n", (unsigned long long)s->start,
                  (unsigned long long)(s->end - s->start), s->streamId,
                  (unsigned long long)s->bytes);
}

static void CUPTIAPI on_completed(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                  size_t valid)
{
    CUpti_Activity *record = NULL;
    (void)context;
    (void)stream;
    (void)size;
    (void)pthread_mutex_lock(&mutex);
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            print_kernel((const void *)record);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            print_copy((const void *)record);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            print_fill((const void *)record);
        }
    }
    (void)fflush(out);
    (void)pthread_mutex_unlock(&mutex);
    free(buffer);
}

static void flush_all(void)
{
    (void)cuptiActivityFlushAll(1);
}

/* The driver looks for this name. */
int InitializeInjection(void); /* NOLINT(readability-identifier-naming) */

int InitializeInjection(void) /* NOLINT(readability-identifier-naming) */
{
    const char *path = getenv("GPU_TIMELINE");
    out = fopen(path == NULL ? "gpu_timeline.txt" : path, "w");
    if (out == NULL)
        return 0;
    if (cuptiActivityRegisterCallbacks(on_requested, on_completed) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET) != CUPTI_SUCCESS)
        (void)fprintf(out, "# refused by CUPTI\n");
    return atexit(flush_all) == 0;
}
