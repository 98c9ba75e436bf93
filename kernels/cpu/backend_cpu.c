/*
 * The CPU's backend table: which loops the processor gets, memory, and streams and events that are
 * trivial, since all work is done when a call returns.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/pages.h"
#include "kernels/cpu/device/cpu.h"
#include "kernels/cpu/gemm/dnn.h"
#include "kernels/cpu/loops/half.h"
#include "kernels/cpu/loops/text.h"

#define PAGE_SMALL         4096
#define PAGE_HUGE          (2u << 20)
#define REQUEST_PERMISSION 0x1023 /* arch_prctl's ARCH_REQ_XCOMP_PERM ... */
#define TILE_DATA          18     /* ... of XFEATURE_XTILEDATA */

struct stream {
    int unused;
};

struct event {
    int64_t at_ns; /* recorded then */
};

/* Our loops follow oneDNN's choice of instructions, so that its cap (ONEDNN_MAX_CPU_ISA) is also
 * ours. */
static void choose_loops(struct backend *backend)
{
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    const unsigned avx2 = (unsigned)dnnl_cpu_isa_avx2;
    const unsigned avx512 = (unsigned)dnnl_cpu_isa_avx512_core;
    struct loops *loops = &backend->loops;
    loops->norm_plain = &norm_loops_scalar;
    loops->pool_plain = &pool_loops_scalar;
    backend->block = 8;
    if ((isa & avx512) == avx512) {
        backend->block = 16;
        loops->norm_blocked = &norm_loops_avx512;
        loops->pool_blocked = &pool_loops_avx512;
        loops->flat = &flat_loops_avx512;
        loops->text = &text_loops_avx512;
        loops->half_norm = &half_norm_loops_avx512;
        loops->half = &half_loops_avx512;
        loops->name = "avx512";
    } else if ((isa & avx2) == avx2) {
        loops->norm_blocked = &norm_loops_avx2;
        loops->pool_blocked = &pool_loops_avx2;
        loops->flat = &flat_loops_avx2;
        loops->text = &text_loops_avx2;
        loops->half_norm = &half_norm_loops_avx2;
        loops->half = &half_loops_avx2;
        loops->name = "avx2";
    } else {
        loops->norm_blocked = &norm_loops_base;
        loops->pool_blocked = &pool_loops_base;
        loops->flat = &flat_loops_base;
        loops->text = &text_loops_base;
        loops->half_norm = &half_norm_loops_base;
        loops->half = &half_loops_base;
        loops->name = "base";
    }
}

/* Processors that round to bfloat16 in one instruction have loops of their own. AMX tiles are a
 * permission that the process asks of Linux. */
static void choose_half_loops(struct backend *backend)
{
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    const unsigned bf16 = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    const unsigned amx = (unsigned)dnnl_cpu_isa_avx512_core_amx;
    if ((isa & bf16) != bf16)
        return;
    backend->loops.half_norm = &half_norm_loops_avx512bf16;
    backend->loops.half = &half_loops_avx512bf16;
    backend->loops.text = &text_loops_avx512bf16;
    backend->amx =
        (isa & amx) == amx && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* Too few threads: see cpu_enter. */
static enum status count_threads(struct backend *backend, struct reason *why)
{
    const int wanted = backend->threads;
    const char *limit = getenv("OMP_THREAD_LIMIT");
    backend->threads = cpu_team(backend);
    if (backend->threads == wanted)
        return ST_OK;
    if (why != NULL) {
        reason_set(why,
                   "%d of %d threads came, and what the others have would not be computed; "
                   "%s%.32s%s or set workers.threads: %d",
                   backend->threads, wanted,
                   limit != NULL ? "unset OMP_THREAD_LIMIT (" : "see to it that OpenMP gives all",
                   limit != NULL ? limit : "", limit != NULL ? ")" : "", backend->threads);
    }
    return ST_CONFIG;
}

static enum status cpu_open(const struct backend_options *options, struct backend **out)
{
    if (options->threads < 1)
        return ST_INVALID;
    struct backend *backend = calloc(1, sizeof(*backend));
    if (backend == NULL)
        return ST_NO_MEMORY;
    backend->threads = options->threads;
    enum status st = count_threads(backend, options->why);
    if (st == ST_OK)
        st = dnn_new(&backend->dnn);
    if (st != ST_OK) {
        free(backend);
        return st;
    }
    choose_loops(backend);
    choose_half_loops(backend);
    *out = backend;
    return ST_OK;
}

static void cpu_close(struct backend *backend)
{
    if (backend == NULL)
        return;
    dnn_free(backend->dnn);
    free(backend);
}

static enum status cpu_alloc(struct backend *backend, size_t bytes, void **out)
{
    (void)backend;
    const size_t page = bytes >= PAGE_HUGE ? PAGE_HUGE : PAGE_SMALL;
    if (bytes > SIZE_MAX - page)
        return ST_NO_MEMORY;
    const size_t size = bytes == 0 ? page : (bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, size);
    if (memory == NULL)
        return ST_NO_MEMORY;
    if (page == PAGE_HUGE)
        (void)madvise(memory, size, MADV_HUGEPAGE); /* only faster */
    memset(memory, 0, size);
    *out = memory;
    return ST_OK;
}

static void cpu_free(struct backend *backend, void *memory)
{
    (void)backend;
    free(memory);
}

static void cpu_free_parts(struct backend *backend, void *memory, size_t bytes)
{
    (void)backend;
    pages_free(memory, bytes);
}

/* Addresses that can't be read cost nothing, and an access outside of the parts is found out. */
static enum status cpu_alloc_parts(struct backend *backend, size_t bytes,
                                   const struct memory_part *parts, size_t count, void **out)
{
    void *memory = NULL;
    enum status st = pages_reserve(bytes, &memory);
    for (size_t i = 0; st == ST_OK && i < count; i++) {
        CHECK(parts[i].first <= bytes && parts[i].bytes <= bytes - parts[i].first);
        st = pages_back(memory, parts[i].first, parts[i].bytes);
    }
    if (st != ST_OK) {
        cpu_free_parts(backend, memory, bytes);
        return ST_NO_MEMORY;
    }
    *out = memory;
    return ST_OK;
}

static enum status cpu_stream_new(struct backend *backend, struct stream **out)
{
    struct stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL)
        return ST_NO_MEMORY;
    cpu_enter(backend);
    *out = stream;
    return ST_OK;
}

static void cpu_stream_free(struct backend *backend, struct stream *stream)
{
    (void)backend;
    free(stream);
}

static enum status cpu_event_new(struct backend *backend, bool timed, struct event **out)
{
    (void)backend;
    (void)timed;
    struct event *event = calloc(1, sizeof(*event));
    if (event == NULL)
        return ST_NO_MEMORY;
    *out = event;
    return ST_OK;
}

static void cpu_event_free(struct backend *backend, struct event *event)
{
    (void)backend;
    free(event);
}

static enum status cpu_event_record(struct backend *backend, struct event *e, struct stream *stream)
{
    (void)backend;
    (void)stream;
    e->at_ns = clock_mono_ns();
    return ST_OK;
}

/* Work that was issued before the record is done already; so is an event never recorded. */
static enum status cpu_event_wait(struct backend *backend, struct event *e, struct stream *stream)
{
    (void)backend;
    (void)e;
    (void)stream;
    return ST_OK;
}

static enum status cpu_event_query(struct backend *backend, struct event *e)
{
    (void)backend;
    (void)e;
    return ST_OK;
}

static enum status cpu_event_elapsed(struct backend *backend, struct event *begin,
                                     struct event *end, int64_t *out_us)
{
    (void)backend;
    *out_us = (end->at_ns - begin->at_ns) / 1000;
    return ST_OK;
}

static enum status cpu_stream_sync(struct backend *backend, struct stream *stream)
{
    (void)backend;
    (void)stream;
    return ST_OK;
}

static enum status cpu_capture_begin(struct backend *backend, struct stream *stream)
{
    (void)backend;
    (void)stream;
    return ST_INVALID;
}

/* NOLINTNEXTLINE(readability-non-const-parameter): the table's signature */
static enum status cpu_capture_end(struct backend *backend, struct stream *stream, int *out_graph)
{
    (void)backend;
    (void)stream;
    (void)out_graph;
    return ST_INVALID;
}

static enum status cpu_replay(struct backend *backend, int graph, struct stream *stream)
{
    (void)backend;
    (void)graph;
    (void)stream;
    return ST_INVALID;
}

static enum status cpu_refresh(struct backend *backend, struct kernel *kernel,
                               const float *const param[OP_PARAM_MAX], void *cache,
                               struct stream *stream)
{
    (void)stream;
    if (kernel->refresh == NULL)
        return ST_OK;
    cpu_enter(backend);
    return kernel->refresh(backend, kernel, param, cache);
}

static enum status cpu_reformat_checked(struct backend *backend, const struct tensor *from,
                                        const void *in, const struct tensor *to, void *out,
                                        struct stream *stream)
{
    (void)stream;
    if (!cpu_is_float(from->dtype) || !cpu_is_float(to->dtype) || from->ndim != to->ndim)
        return ST_INVALID;
    for (int i = 0; i < from->ndim; i++) {
        if (from->dims[i] != to->dims[i])
            return ST_INVALID;
    }
    if (from->ndim != 4 && (from->format != FORMAT_PLAIN || to->format != FORMAT_PLAIN))
        return ST_INVALID;
    cpu_enter(backend);
    cpu_reformat(backend, from, in, to, out);
    return ST_OK;
}

static enum status cpu_sum(struct backend *backend, const struct tensor *tensor, const void *x,
                           const void *y, void *out, struct stream *stream)
{
    (void)stream;
    if (!cpu_is_float(tensor->dtype))
        return ST_INVALID;
    cpu_enter(backend);
    if (tensor->dtype == DTYPE_BF16) {
        backend->loops.half->add(out, x, y, tensor->bytes / sizeof(uint16_t));
    } else {
        backend->loops.flat->add(out, x, y, tensor->bytes / sizeof(float));
    }
    return ST_OK;
}

static void cpu_kernel_free(struct backend *backend, struct kernel *kernel)
{
    (void)backend;
    if (kernel == NULL)
        return;
    if (kernel->release != NULL)
        kernel->release(kernel);
    free(kernel);
}

static enum status cpu_add(struct backend *b, float *out, const float *x, const float *y, size_t n,
                           struct stream *s)
{
    (void)s;
    cpu_enter(b);
    b->loops.flat->add(out, x, y, n);
    return ST_OK;
}

static enum status cpu_copy(struct backend *b, void *to, const void *from, size_t bytes,
                            struct stream *s)
{
    (void)b;
    (void)s;
    memcpy(to, from, bytes);
    return ST_OK;
}

static enum status cpu_fill(struct backend *b, float *out, float value, size_t n, struct stream *s)
{
    (void)s;
    b->loops.flat->fill(out, value, n);
    return ST_OK;
}

static enum status cpu_square_sums(struct backend *b, double *out, const float *x,
                                   const uint64_t *begin, size_t n, struct stream *s)
{
    (void)s;
    cpu_enter(b);
    for (size_t i = 0; i < n; i++)
        out[i] = b->loops.flat->square_sum(x + begin[i], begin[i + 1] - begin[i]);
    return ST_OK;
}

static enum status cpu_checksums(struct backend *b, uint64_t *out, const float *x, size_t n,
                                 struct stream *s)
{
    (void)s;
    const size_t piece = (size_t)PIECE_ELEMENTS;
    for (size_t at = 0, i = 0; at < n; at += piece, i++)
        out[i] = b->loops.flat->checksum(x + at, n - at < piece ? n - at : piece);
    return ST_OK;
}

static enum status cpu_sgd(struct backend *b, float *param, float *momentum, const float *grad,
                           size_t n, const struct sgd_args *args, struct stream *s)
{
    (void)s;
    cpu_enter(b);
    CHECK(args->copies == NULL); /* no kernel here keeps any */
    b->loops.flat->sgd(param, momentum, grad, n, args);
    return ST_OK;
}

static enum status cpu_adamw(struct backend *b, float *param, float *m, float *v, const float *grad,
                             size_t n, const struct adamw_args *args, struct stream *s)
{
    (void)s;
    cpu_enter(b);
    CHECK(args->copies == NULL);
    b->loops.flat->adamw(param, m, v, grad, n, args);
    return ST_OK;
}

static enum status cpu_lion(struct backend *b, float *param, float *m, const float *grad, size_t n,
                            const struct lion_args *args, struct stream *s)
{
    (void)s;
    cpu_enter(b);
    CHECK(args->copies == NULL);
    b->loops.flat->lion(param, m, grad, n, args);
    return ST_OK;
}

static enum status cpu_lamb(struct backend *b, const float *param, float *m, float *v, float *grad,
                            size_t n, const struct adamw_args *args, struct stream *s)
{
    (void)s;
    cpu_enter(b);
    b->loops.flat->lamb(param, m, v, grad, n, args);
    return ST_OK;
}

#define CPU_OP(upper, lower, in, params, stats)                                                    \
    [OP_##upper] = { cpu_##lower##_prepare, cpu_##lower##_forward, cpu_##lower##_backward },

const struct backend_table *backend_cpu(void)
{
    static const struct backend_table table = {
        .name = "cpu",
        .host_memory = true,
        .open = cpu_open,
        .close = cpu_close,
        .alloc = cpu_alloc,
        .alloc_parts = cpu_alloc_parts,
        .free = cpu_free,
        .free_parts = cpu_free_parts,
        .alloc_host = cpu_alloc,
        .free_host = cpu_free,
        .stream_new = cpu_stream_new,
        .stream_free = cpu_stream_free,
        .event_new = cpu_event_new,
        .event_free = cpu_event_free,
        .event_record = cpu_event_record,
        .event_wait = cpu_event_wait,
        .event_query = cpu_event_query,
        .event_elapsed = cpu_event_elapsed,
        .stream_sync = cpu_stream_sync,
        .capture_begin = cpu_capture_begin,
        .capture_end = cpu_capture_end,
        .replay = cpu_replay,
        .op = { OP_LIST(CPU_OP) },
        .refresh = cpu_refresh,
        .reformat = cpu_reformat_checked,
        .sum = cpu_sum,
        .kernel_free = cpu_kernel_free,
        .vector = {
            .add = cpu_add,
            .copy = cpu_copy,
            .fill = cpu_fill,
            .square_sums = cpu_square_sums,
            .checksums = cpu_checksums,
            .sgd = cpu_sgd,
            .adamw = cpu_adamw,
            .lion = cpu_lion,
            .lamb = cpu_lamb,
        },
        .pins = cpu_pins,
    };
    return &table;
}
