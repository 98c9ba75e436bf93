/* Inside of async_device.h: async_device.c (memory, streams, events), async_ops.c (what computes).
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "tests/gpu/async_device.h"

#define PINNED_MAX 256

struct backend {
    struct backend *cpu;
    uint8_t *address; /* [ADDRESS_BYTES] no access */
    uint8_t *memory;  /* [ADDRESS_BYTES] what is behind it */
    pthread_mutex_t mutex;
    size_t used, taken; /* bytes of addresses, and of memory */
    struct {
        uint8_t *data;
        size_t bytes;
    } pinned[PINNED_MAX];
};

struct kernel {
    struct kernel *cpu;
    enum op op;
};

struct work {
    async_run *run;
    _Alignas(16) uint8_t arg[ASYNC_ARG_MAX];
};

struct stream {
    struct backend *backend;
    struct stream *cpu;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct work *queue; /* [QUEUE_MAX] */
    uint64_t begin, end;
    bool quit;
    enum status status;
    atomic_int held;
};

bool async_is_device(const struct backend *b, const void *p);
/* The memory behind a device address; other pointers as they are. */
void *async_memory_of(const struct backend *b, const void *p);
/* Memory that a copy may still use after the call. */
bool async_is_stable(struct backend *b, const void *p);
enum status async_stream_sync(struct backend *b, struct stream *s);

/* The ops of each kind have the same functions. */
extern const struct op_table async_ops;
extern const struct vector_table async_vector;
enum status async_refresh(struct backend *b, struct kernel *kernel,
                          const float *const param[OP_PARAM_MAX], void *cache,
                          struct stream *stream);
enum status async_reformat(struct backend *b, const struct tensor *from, const void *in,
                           const struct tensor *to, void *out, struct stream *stream);
enum status async_sum(struct backend *b, const struct tensor *tensor, const void *x, const void *y,
                      void *out, struct stream *stream);
void async_kernel_free(struct backend *b, struct kernel *kernel);
