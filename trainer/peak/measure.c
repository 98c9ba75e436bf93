#include "trainer/peak/measure.h"

#include <stddef.h>

#include "common/clock.h"

#define NS_PER_MS  INT64_C(1000000)
#define REGIONS    5
#define LOST_SHARE 8 /* of a part's time, that waiting for the stream may leave unmeasured */

/* The options, and what is open. */
struct peak {
    const struct backend_table *table;
    enum math math;
    struct backend *backend;
    struct stream *stream;
};

/* One product, prepared: out [side, side] = in [side, side] · weightᵀ. */
struct product {
    int64_t side;
    struct kernel *kernel;
    struct kernel_info info;
    struct op_buffers buffers;
    void *memory[REGIONS];
    int64_t ns; /* that one takes, about */
};

static void free_product(const struct peak *peak, struct product *p)
{
    for (int i = 0; i < REGIONS; i++) {
        if (p->memory[i] != NULL)
            peak->table->free(peak->backend, p->memory[i]);
    }
    if (p->kernel != NULL)
        peak->table->kernel_free(peak->backend, p->kernel);
    *p = (struct product){ 0 };
}

/* Of what the job's linear nodes read and write. */
static enum dtype dtype_of(enum math math)
{
    switch (math) {
    case MATH_BF16:
        return DTYPE_BF16;
    case MATH_F16:
        return DTYPE_F16;
    case MATH_F32:
    case MATH_TF32:
        break;
    }
    return DTYPE_F32;
}

/* Zero bytes: none. The caller frees what there is, whatever is returned. */
static enum status allocate(const struct peak *peak, struct product *p, const struct tensor *in)
{
    const size_t weight_bytes = (size_t)(p->side * p->side) * sizeof(float);
    const size_t bytes[REGIONS] = { in->bytes, weight_bytes, p->info.out.bytes,
                                    p->info.scratch_bytes, p->info.cache_bytes };
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < REGIONS; i++) {
        if (bytes[i] > 0)
            st = peak->table->alloc(peak->backend, bytes[i], &p->memory[i]);
    }
    /* Not zeros: a device that multiplies those needs less power, and is faster than in a step.
     * Two halves of these bits are numbers as well. */
    if (st == ST_OK)
        st = peak->table->vector.fill(peak->backend, p->memory[0], 1.0F, in->bytes / sizeof(float),
                                      peak->stream);
    if (st == ST_OK)
        st = peak->table->vector.fill(peak->backend, p->memory[1], 1.0F,
                                      weight_bytes / sizeof(float), peak->stream);
    p->buffers = (struct op_buffers){ .in = { p->memory[0] },
                                      .param = { p->memory[1] },
                                      .out = p->memory[2],
                                      .scratch = p->memory[3],
                                      .cache = p->memory[4] };
    return st;
}

/* product starts zeroed, and is to be freed whatever is returned. */
static enum status make_product(const struct peak *peak, int64_t side, struct product *p)
{
    const int64_t dims[2] = { side, side };
    const enum dtype dtype = dtype_of(peak->math);
    const struct op_spec spec = { .op = OP_LINEAR,
                                  .attr = { .out = side },
                                  .in = { tensor_plain(dtype, 2, dims) },
                                  .in_count = 1,
                                  .out_dtype = dtype,
                                  .math = peak->math };
    p->side = side;
    enum status st = peak->table->op[OP_LINEAR].prepare(peak->backend, &spec, &p->kernel, &p->info);
    if (st == ST_OK)
        st = allocate(peak, p, &spec.in[0]);
    if (st == ST_OK && p->info.cache_bytes > 0) {
        const float *const params[OP_PARAM_MAX] = { p->memory[1] };
        st = peak->table->refresh(peak->backend, p->kernel, params, p->memory[4], peak->stream);
    }
    return st;
}

/* So many, from a stream that has nothing to do to one that has nothing left. */
static enum status run(const struct peak *peak, const struct product *p, int64_t count,
                       int64_t *out_ns)
{
    const int64_t begin_ns = clock_mono_ns();
    enum status st = ST_OK;
    for (int64_t i = 0; st == ST_OK && i < count; i++)
        st =
            peak->table->op[OP_LINEAR].forward(peak->backend, p->kernel, &p->buffers, peak->stream);
    if (st == ST_OK)
        st = peak->table->stream_sync(peak->backend, peak->stream);
    *out_ns = clock_mono_ns() - begin_ns;
    return st;
}

/* Twice: the first one finds code and caches cold. */
static enum status try_product(const struct peak *peak, int64_t side, struct product *p)
{
    int64_t ns = 0;
    enum status st = make_product(peak, side, p);
    if (st == ST_OK)
        st = peak->table->stream_sync(peak->backend, peak->stream);
    if (st == ST_OK)
        st = run(peak, p, 1, &ns);
    if (st == ST_OK)
        st = run(peak, p, 1, &ns);
    p->ns = ns > 0 ? ns : 1;
    return st;
}

/* The largest that is quick enough. Where one more has no room, the one before does. */
static enum status grow(const struct peak *peak, struct product *p)
{
    enum status st = try_product(peak, PEAK_SIDE_MIN, p);
    while (st == ST_OK && p->ns < PEAK_PRODUCT_MS * NS_PER_MS && p->side < PEAK_SIDE_MAX) {
        struct product larger = { 0 };
        st = try_product(peak, 2 * p->side, &larger);
        if (st == ST_NO_MEMORY) {
            free_product(peak, &larger);
            return ST_OK;
        }
        free_product(peak, p);
        *p = larger;
    }
    return st;
}

/* Products until ns have passed; out_rate: of a second. */
static enum status run_for(const struct peak *peak, const struct product *p, int64_t ns,
                           double *out_rate)
{
    const int64_t most = ns / LOST_SHARE / p->ns;
    const int64_t at_once = most > 1 ? most : 1;
    int64_t count = 0, spent_ns = 0, took_ns = 0;
    enum status st = ST_OK;
    while (st == ST_OK && spent_ns < ns) {
        st = run(peak, p, at_once, &took_ns);
        count += at_once;
        spent_ns += took_ns > 0 ? took_ns : 1;
    }
    *out_rate = st == ST_OK ? (double)count / ((double)spent_ns / 1e9) : 0;
    return st;
}

static enum status measure(const struct peak *peak, int parts, double *out_flops)
{
    const int64_t begin_ns = clock_mono_ns();
    struct product product = { 0 };
    double best = 0;
    enum status st = grow(peak, &product);
    const int64_t left_ns = PEAK_MS * NS_PER_MS - (clock_mono_ns() - begin_ns);
    for (int i = 0; st == ST_OK && i < parts && (i == 0 || left_ns > 0); i++) {
        double rate = 0;
        st = run_for(peak, &product, left_ns > 0 ? left_ns / parts : 1, &rate);
        best = rate > best ? rate : best;
    }
    if (st == ST_OK)
        *out_flops = best * product.info.flops_forward;
    free_product(peak, &product);
    return st;
}

enum status peak_measure(const struct peak_options *options, double *out_flops)
{
    const struct backend_options backend = { .ordinal = options->ordinal,
                                             .threads = options->threads };
    struct peak peak = { .table = options->table, .math = options->math };
    enum status st = peak.table->open(&backend, &peak.backend);
    if (st != ST_OK)
        return st;
    st = peak.table->stream_new(peak.backend, &peak.stream);
    if (st == ST_OK)
        st = measure(&peak, options->crowded ? 1 : PEAK_PARTS, out_flops);
    if (peak.stream != NULL)
        peak.table->stream_free(peak.backend, peak.stream);
    peak.table->close(peak.backend);
    return st;
}
