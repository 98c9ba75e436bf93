/*
 * The backend table: everything that computes on tensors goes through it. `cpu` (oneDNN and C
 * loops) is linked in; `cuda` fills the same table from a module (kernels/module.h).
 *
 * Use:     open
 *          → prepare, for each op of the tape in order
 *          → the caller lays out memory from each kernel_info
 *          → per step: refresh (after each update that didn't do it), forward, backward
 * Streams: every call that computes takes a stream and is asynchronous in the interface: its
 *          buffers belong to the stream until an event recorded after it was waited for. The CPU's
 *          streams are trivial: everything is done on return.
 * Bits:    a kernel's output depends on its spec, its inputs and the pins only: not on threads,
 *          rank or time. One writer per output, reductions in fixed order, no float atomics.
 * Memory:  nothing is allocated after prepare. All pointers are borrowed for the call (until the
 *          event). What alloc gives is aligned to 4096 bytes.
 * Thread:  one thread per stream.
 * Errors:  ST_INVALID    prepare: the spec is outside what the op takes;
 *                        forward: a label or token is out of range (a device that computes later
 *                        says so to whoever waits for the stream)
 *          ST_CONFIG     open: this process can't have that many threads
 *          ST_NO_MEMORY  of the host or the device; nothing is lost
 *          ST_DEVICE     the device must be considered lost
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/limits.h"
#include "common/reason.h"
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
    /* pins() of an earlier run, or NULL. Algorithms that it names are taken where they still are
     * possible, instead of what the library would choose today. Borrowed until all is prepared. */
    const char *choices;
    struct reason *why; /* of an open that fails, where there is more to say; or NULL */
};

/* Decisions of prepare. Sizes in bytes; the caller aligns each region to 64. */
struct kernel_info {
    struct tensor out;    /* format and bytes filled in */
    size_t saved_bytes;   /* lives from forward to backward */
    size_t scratch_bytes; /* lives for one call; what forward or backward needs, the greater */
    size_t cache_bytes;   /* parameters in the kernel's own format; see refresh */
    /* refresh writes copies of parameters and nothing else that changes, so that an update may
     * write them itself (struct copy_map): those of param[i] where .is, at .at of the cache. */
    bool caches_copies;
    struct {
        bool is;
        enum dtype dtype;
        size_t at;
    } cached[OP_PARAM_MAX];
    bool backward_needs_in[OP_IN_MAX]; /* in[i] must live until backward */
    bool backward_needs_out;           /* out must */
    /* Backward writes no din[i]: the gradient is in the bytes of din[din_alias[i]], or of dout[0]
     * where din_alias[i] is -1. */
    bool din_aliases_dout[OP_IN_MAX];
    int din_alias[OP_IN_MAX];
    /* Backward takes two gradients of out and adds them itself. Never with an alias of dout[0]. */
    bool sums_douts;
    /* Backward can write din[i] + din_add[i]: another gradient of in[i], like din[i]. */
    bool din_adds[OP_IN_MAX];
    /* Backward can write din[i] where in[i] lies, if nobody else reads that any more. */
    bool din_overwrites_in[OP_IN_MAX];
    /* Forward writes din[0], too, if it is told to put it where in[0] lies; backward, told the
     * same, has nothing left to do. Only with spec.dying_in0. */
    bool din_in_forward;
    struct tensor din[OP_IN_MAX]; /* the gradients of the inputs: format and bytes filled in */
    double flops_forward, flops_backward;
    const char *implementation; /* for pins; lives as long as the kernel */
    const char *slow;           /* why it is slower here than elsewhere, a constant; or NULL */
};

/* Buffers of one call. Unused pointers are NULL. */
struct op_buffers {
    const void *in[OP_IN_MAX];
    void *out;
    const float *param[OP_PARAM_MAX]; /* flat, canonical */
    const float *stat[OP_STAT_MAX];   /* running statistics: read when not training */
    float *stat_sum[OP_STAT_MAX];     /* training forward: this micro-batch's mean and unbiased
                                         variance are written, or added (accumulate_stats) */
    void *saved, *scratch, *cache;
    const void *dout[2];            /* backward: the gradient, and a second one to add, or NULL */
    void *din[OP_IN_MAX];           /* NULL: not wanted; forward: as din_in_forward says */
    const void *din_add[OP_IN_MAX]; /* NULL: nothing to add; may be din[i] itself */
    float *dparam[OP_PARAM_MAX];    /* flat, canonical; NULL: not wanted */
    bool accumulate[OP_PARAM_MAX];  /* dparam[i]: add instead of write */
    bool accumulate_stats;          /* stat_sum: the same */
    const uint32_t *draw;           /* dropout: words as enum op_draw says */
    const float *loss_scale;        /* softmax_cross_entropy: one factor of the gradient, or NULL */
};

/*
 * Inputs of the random numbers of a micro-batch, as words of 32 bits:
 *
 *   0, 1      the key: low, high
 *   2         the step
 *   3 .. N+2  the sample of each of the N rows
 *
 * Element e (within its sample) of a dropout is kept iff rng_uniform(w) >= p, where w is word e % 4
 * of Philox(key, (e / 4, layer, sample, step)): common/rng.h.
 * The words lie in device memory, so that a captured graph reads what is there when it runs.
 */
enum op_draw { OP_DRAW_KEY, OP_DRAW_STEP = 2, OP_DRAW_SAMPLES = 3 };

/*
 * The three functions of an op.
 *
 * A backward gives all gradients that are wanted, or all of din without dparam, or all of dparam
 * without din (NULL: not wanted): two calls give the bits of one.
 *
 * softmax_cross_entropy sums the losses of labels >= 0, in row order in double or by a fixed tree;
 * its backward gives the gradient of that sum and doesn't read dout. The division by the global
 * number of targets happens once, after the tree sum (docs/invariants.md, "The exact step").
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
 * Which elements of a flat buffer decay; NULL: all do. Element i decays iff the number of borders
 * <= i is even: the first elements decay, and at each border that changes.
 */
struct decay_map {
    const uint64_t *borders; /* ascending; in device memory */
    size_t count;
};

/* The copies of parameters that an update writes as well: out[i - first] = element i, rounded, for
 * each run of elements that a kernel keeps a copy of. Only for kernels that allow it
 * (caches_copies). */
struct param_copy {
    uint64_t first, count; /* elements, from param[0] */
    void *out;
    enum dtype dtype;
};
struct copy_map {
    const struct param_copy *copies; /* ascending and apart; in device memory */
    size_t count;
};

struct sgd_args {
    float lr, momentum, weight_decay;
    float grad_scale; /* gradient = grad · grad_scale, before decay */
    bool nesterov;
    const struct decay_map *decay; /* may be NULL; borders count from param[0] */
    const struct copy_map *copies; /* may be NULL */
    bool first; /* the momentum buffer is set instead of added to, as PyTorch's first step does */
};

struct adamw_args {
    float lr, beta1, beta2, eps, weight_decay;
    float grad_scale;
    const struct decay_map *decay; /* may be NULL; borders count from param[0] */
    const struct copy_map *copies; /* may be NULL */
    uint64_t t;                    /* 1 at the first update */
};

struct lion_args {
    float lr, beta1, beta2, weight_decay;
    float grad_scale;
    const struct decay_map *decay; /* may be NULL; borders count from param[0] */
    const struct copy_map *copies; /* may be NULL */
};

/* Loops over flat float32 buffers of n elements: each for itself, but for the sums. */
struct vector_table {
    enum status (*add)(struct backend *b, float *out, const float *x, const float *y, size_t n,
                       struct stream *s); /* out may be x or y */
    /* Copies between any two of device memory, alloc_host memory and other memory; asynchronous
     * where neither is other memory. */
    enum status (*copy)(struct backend *b, void *to, const void *from, size_t bytes,
                        struct stream *s);
    enum status (*fill)(struct backend *b, float *out, float value, size_t n, struct stream *s);
    /* out[i] = the sum of the squares of x[begin[i]] to x[begin[i + 1] - 1], in double and in a
     * fixed order, whatever lies around them. begin: [n + 1] ascending, in device memory. */
    enum status (*square_sums)(struct backend *b, double *out, const float *x,
                               const uint64_t *begin, size_t n, struct stream *s);
    /* out[i] = the checksum of piece i: the sum of its words' bits, each mixed with its place in
     * the piece (kernels/mix.h). The same on every device; one word that changes changes it. */
    enum status (*checksums)(struct backend *b, uint64_t *out, const float *x, size_t n,
                             struct stream *s);
    enum status (*sgd)(struct backend *b, float *param, float *momentum, const float *grad,
                       size_t n, const struct sgd_args *args, struct stream *s);
    enum status (*adamw)(struct backend *b, float *param, float *m, float *v, const float *grad,
                         size_t n, const struct adamw_args *args, struct stream *s);
    enum status (*lion)(struct backend *b, float *param, float *m, const float *grad, size_t n,
                        const struct lion_args *args, struct stream *s);
    /* The first half of LAMB's update: moments as adamw's, and grad[i] = m̂ / (√v̂ + eps) +
     * weight_decay·param[i]. lr and copies are not used. */
    enum status (*lamb)(struct backend *b, const float *param, float *m, float *v, float *grad,
                        size_t n, const struct adamw_args *args, struct stream *s);
};

/* Bytes [first, first + bytes) of a region. */
struct memory_part {
    size_t first, bytes;
};

struct backend_table {
    const char *name; /* "cpu", "cuda" */
    bool host_memory; /* the host may read and write what alloc gives */
    enum status (*open)(const struct backend_options *options, struct backend **out);
    void (*close)(struct backend *backend);
    enum status (*alloc)(struct backend *backend, size_t bytes, void **out); /* zeroed */
    /* Addresses for `bytes`, of which only the parts (ascending, count may be 0) need to have
     * memory, zeroed: what lies elsewhere is not to be touched. free_parts frees it. */
    enum status (*alloc_parts)(struct backend *backend, size_t bytes,
                               const struct memory_part *parts, size_t count, void **out);
    void (*free)(struct backend *backend, void *memory);
    void (*free_parts)(struct backend *backend, void *memory, size_t bytes);
    /* Allocates host memory whose copies to and from the device run beside computing; zeroed. */
    enum status (*alloc_host)(struct backend *backend, size_t bytes, void **out);
    void (*free_host)(struct backend *backend, void *memory);
    enum status (*stream_new)(struct backend *backend, struct stream **out);
    void (*stream_free)(struct backend *backend, struct stream *stream);
    /* timed: event_elapsed may be asked of it; others cost less. */
    enum status (*event_new)(struct backend *backend, bool timed, struct event **out);
    void (*event_free)(struct backend *backend, struct event *event);
    enum status (*event_record)(struct backend *backend, struct event *e, struct stream *stream);
    enum status (*event_wait)(struct backend *backend, struct event *e, struct stream *stream);
    /* ST_AGAIN: not yet. */
    enum status (*event_query)(struct backend *backend, struct event *e);
    /* Time of the stream between two timed events, both recorded on it. ST_AGAIN: the stream hasn't
     * reached them. */
    enum status (*event_elapsed)(struct backend *backend, struct event *begin, struct event *end,
                                 int64_t *out_us);
    enum status (*stream_sync)(struct backend *backend, struct stream *stream);
    /* The stream as the device's other libraries take it (cudaStream_t); NULL: no such thing. */
    void *(*stream_native)(struct stream *stream);
    /* Records the following work of the stream as a graph, and plays it again. A backend that can't
     * returns ST_INVALID. */
    enum status (*capture_begin)(struct backend *backend, struct stream *stream);
    enum status (*capture_end)(struct backend *backend, struct stream *stream, int *out_graph);
    enum status (*replay)(struct backend *backend, int graph, struct stream *stream);
    struct op_table op[OP_COUNT];
    /* Rewrites a kernel's cache from its flat parameters. Called after every update that didn't
     * write it, and after a restore. */
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
    /* Describes the last error in one line, never NULL. The member is NULL where a status says it
     * all. */
    const char *(*why)(const struct backend *backend);
    /* Named ranges for profilers around what this thread issues; they nest. NULL: none. */
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

/* The table of the CPU, static. A thread that computes with it flushes denormals to zero from then
 * on. */
const struct backend_table *backend_cpu(void);
