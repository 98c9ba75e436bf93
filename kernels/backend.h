/*
 * The backend table: everything that computes on tensors goes through it. `cpu` (oneDNN and C
 * loops) is here; `cuda` fills the same table from a module.
 *
 * Use: open → for each op of the tape, in order: prepare → the caller lays out memory from
 * kernel_info → per step: refresh (after each update), forward, backward.
 *
 * Streams: every call that computes takes a stream and is asynchronous in the interface: its
 * buffers belong to the stream until an event recorded after it was waited for. The CPU's streams
 *          are trivial: everything is done on return.
 * Bits:    a kernel's output depends on its spec, its inputs and the pins only: not on threads,
 * rank or time. One writer per output, reductions in fixed order, no float atomics. Memory: nothing
 * is allocated after prepare. All pointers are borrowed for the call (until the event). Device
 * pointers of alloc are aligned to 4096 bytes. Thread:  one thread per stream. Errors:  ST_INVALID
 * the spec is outside what the op takes (prepare only) ST_NO_MEMORY, ST_DEVICE
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/limits.h"
#include "common/status.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

struct backend; /* the open device; each implementation's own */
struct kernel;  /* one prepared op; each implementation's own */
struct stream;
struct event;

struct backend_options {
    int ordinal;  /* device number; 0 on CPU */
    int threads;  /* of the mathematics library: a pin. 1 unless the job says otherwise */
    bool managed; /* alloc gives unified memory; ignored on CPU */
    /* pins() of an earlier run, or NULL: algorithms that it names are taken where they still are
     * possible, instead of what the library would choose today. Borrowed until prepare is done. */
    const char *choices;
};

/* What prepare decided. Sizes in bytes; each region aligned to 64 by the caller. */
struct kernel_info {
    struct tensor out;                 /* format and bytes filled in */
    size_t saved_bytes;                /* lives from forward to backward */
    size_t scratch_bytes;              /* of forward or backward, whichever is more */
    size_t cache_bytes;                /* parameters in the kernel's own format; see refresh */
    bool backward_needs_in[OP_IN_MAX]; /* the input must live until backward */
    bool backward_needs_out;
    bool din_aliases_dout[OP_IN_MAX]; /* backward writes no din[i]: the gradient is … */
    int din_alias[OP_IN_MAX];         /* … the same bytes as din[j] (j >= 0), or dout[0] (-1) */
    bool sums_douts;                  /* backward takes two gradients and adds them itself (never
                                         together with din_aliases_dout -1) */
    bool din_adds[OP_IN_MAX];         /* backward can write din[i] + din_add[i]: another gradient of
                                         the same input, same format and dtype as din[i] */
    bool din_overwrites_in[OP_IN_MAX]; /* backward can write din[i] over in[i], where nobody reads
                                          that any more: the same bytes then */
    struct tensor din[OP_IN_MAX];      /* format and bytes of the gradients of the inputs */
    double flops_forward, flops_backward;
    const char *implementation; /* for pins; static */
};

/* Buffers of one call. Unused pointers are NULL. */
struct op_buffers {
    const void *in[OP_IN_MAX];
    void *out;
    const float *param[OP_PARAM_MAX]; /* flat, canonical */
    const float *stat[OP_STAT_MAX];   /* running statistics: read when not training */
    float *stat_sum[OP_STAT_MAX];     /* training forward adds this micro-batch's mean and unbiased
                                         variance (or writes: accumulate) */
    void *saved, *scratch, *cache;
    const void *dout[2];            /* backward: the gradient, and a second one to add, or NULL */
    void *din[OP_IN_MAX];           /* NULL: not wanted */
    const void *din_add[OP_IN_MAX]; /* NULL: nothing to add; may be din[i] itself */
    float *dparam[OP_PARAM_MAX];    /* flat, canonical */
    bool accumulate[OP_PARAM_MAX];  /* dparam[i]: add instead of write */
    bool accumulate_stats;          /* stat_sum: the same */
    const uint32_t *draw;           /* dropout: see struct op_draw */
    const float *loss_scale;        /* softmax_cross_entropy: one factor of the gradient, or NULL */
};

/*
 * What random numbers of a micro-batch depend on, as words: the key (low, high), the step, then the
 * sample of each row (N of them). Element e (within its sample) of a dropout is kept iff
 * rng_uniform(w) >= p, with w word e % 4 of Philox(key, (e / 4, layer, sample, step)).
 * In device memory, so that a captured graph reads what is there when it runs.
 */
enum op_draw { OP_DRAW_KEY, OP_DRAW_STEP = 2, OP_DRAW_SAMPLES = 3 };

/*
 * softmax_cross_entropy: the losses of labels >= 0 are summed in row order, in double (or a fixed
 * tree of float32); its backward gives the gradient of that sum (dout is not read). The division by
 * the global number of targets happens once, after the tree sum.
 */
struct op_table {
    enum status (*prepare)(struct backend *backend, const struct op_spec *spec,
                           struct kernel **out_kernel, struct kernel_info *out_info);
    enum status (*forward)(struct backend *backend, struct kernel *kernel,
                           const struct op_buffers *buffers, struct stream *stream);
    enum status (*backward)(struct backend *backend, struct kernel *kernel,
                            const struct op_buffers *buffers, struct stream *stream);
};

/*
 * Which elements of a flat buffer decay: ascending borders at which it changes, the first elements
 * do. NULL: all do. Element i decays iff an even number of borders is <= i. In device memory.
 */
struct decay_map {
    const uint64_t *borders;
    size_t count;
};

struct sgd_args {
    float lr, momentum, weight_decay;
    float grad_scale; /* gradient = grad · grad_scale, before decay */
    bool nesterov;
    const struct decay_map *decay; /* may be NULL; borders count from param[0] */
    bool first; /* the momentum buffer is set, not averaged (PyTorch's first step) */
};

struct adamw_args {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;
    const struct decay_map *decay; /* as above */
    uint64_t t;                    /* 1 at the first update */
};

/* Loops over flat float32 buffers of n elements; element i of the output depends on element i only.
 */
struct vector_table {
    enum status (*add)(struct backend *b, float *out, const float *x, const float *y, size_t n,
                       struct stream *s); /* out may be x or y */
    /* Between any two of device memory, alloc_host memory and other memory; asynchronous where
     * neither is other memory. */
    enum status (*copy)(struct backend *b, void *to, const void *from, size_t bytes,
                        struct stream *s);
    enum status (*fill)(struct backend *b, float *out, float value, size_t n, struct stream *s);
    /* out[i] = sum of squares of piece i (PIECE_ELEMENTS, the last short), in double, fixed order.
     */
    enum status (*square_sums)(struct backend *b, double *out, const float *x, size_t n,
                               struct stream *s);
    enum status (*sgd)(struct backend *b, float *param, float *momentum, const float *grad,
                       size_t n, const struct sgd_args *args, struct stream *s);
    enum status (*adamw)(struct backend *b, float *param, float *m, float *v, const float *grad,
                         size_t n, const struct adamw_args *args, struct stream *s);
};

struct backend_table {
    const char *name; /* "cpu", "cuda" */
    bool host_memory; /* the host may read and write what alloc gives */
    enum status (*open)(const struct backend_options *options, struct backend **out);
    void (*close)(struct backend *backend);
    enum status (*alloc)(struct backend *backend, size_t bytes, void **out); /* zeroed, touched */
    void (*free)(struct backend *backend, void *memory);
    /* Host memory that copies to and from the device run beside computing from; zeroed. */
    enum status (*alloc_host)(struct backend *backend, size_t bytes, void **out);
    void (*free_host)(struct backend *backend, void *memory);
    enum status (*stream_new)(struct backend *backend, struct stream **out);
    void (*stream_free)(struct backend *backend, struct stream *stream);
    enum status (*event_new)(struct backend *backend, struct event **out);
    void (*event_free)(struct backend *backend, struct event *event);
    enum status (*event_record)(struct backend *backend, struct event *e, struct stream *stream);
    enum status (*event_wait)(struct backend *backend, struct event *e, struct stream *stream);
    /* ST_AGAIN: not yet. */
    enum status (*event_query)(struct backend *backend, struct event *e);
    enum status (*stream_sync)(struct backend *backend, struct stream *stream);
    /* The stream as the device's other libraries take it (cudaStream_t); NULL: no such thing. */
    void *(*stream_native)(struct stream *stream);
    /* Record what follows on the stream, and play it again; a backend without it returns
     * ST_INVALID. */
    enum status (*capture_begin)(struct backend *backend, struct stream *stream);
    enum status (*capture_end)(struct backend *backend, struct stream *stream, int *out_graph);
    enum status (*replay)(struct backend *backend, int graph, struct stream *stream);
    struct op_table op[OP_COUNT];
    /* Rewrites a kernel's cache from its flat parameters; after every update and after a restore.
     */
    enum status (*refresh)(struct backend *backend, struct kernel *kernel,
                           const float *const param[OP_PARAM_MAX], void *cache,
                           struct stream *stream);
    /* Copies between formats (and dtypes) of the same dims. */
    enum status (*reformat)(struct backend *backend, const struct tensor *from, const void *in,
                            const struct tensor *to, void *out, struct stream *stream);
    /* out = x + y of one description, any floating dtype; out may be x or y. */
    enum status (*sum)(struct backend *backend, const struct tensor *tensor, const void *x,
                       const void *y, void *out, struct stream *stream);
    void (*kernel_free)(struct backend *backend, struct kernel *kernel);
    struct vector_table vector;
    /* Appends what bits depend on as members of a JSON object: "cpu":…, no braces. */
    enum status (*pins)(struct backend *backend, struct buf *out);
    /* One line about the last error, never NULL. The member is NULL where a status says it all. */
    const char *(*why)(const struct backend *backend);
    /* Named ranges for profilers around what this thread issues; they nest. NULL: there are none.
     */
    void (*range_push)(const char *name);
    void (*range_pop)(void);
};

static inline void backend_range_push(const struct backend_table *table, const char *name)
{
    if (table->range_push != NULL)
        table->range_push(name);
}

static inline void backend_range_pop(const struct backend_table *table)
{
    if (table->range_pop != NULL)
        table->range_pop();
}

/* The CPU backend; static. Sets flush-to-zero and denormals-are-zero on each thread that calls it.
 */
const struct backend_table *backend_cpu(void);
