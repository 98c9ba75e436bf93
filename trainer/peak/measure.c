#include "trainer/peak/measure.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "common/clock.h"

#define NS_PER_MS     INT64_C(1000000)
#define REGIONS       5
#define WORK_OF_TWICE 8 /* the side */
#define LOST_SHARE    8 /* of a part's time, that waiting for the stream may leave unmeasured */

/* State of one thread: its open device, and its result. */
struct peak {
    const struct peak_options *options;
    const struct backend_table *table;
    struct backend *backend;
    struct stream *stream;
    double flops; /* measured operations a second */
    enum status st;
};

/* A prepared product: out [side, side] = in [side, side] · weightᵀ. */
struct peak_product {
    int64_t side;
    struct kernel *kernel;
    struct kernel_info info;
    struct op_buffers buffers;
    void *memory[REGIONS];
    int64_t ns; /* wall time of one product, about */
};

static void free_product(const struct peak *peak, struct peak_product *p)
{
    for (int i = 0; i < REGIONS; i++) {
        if (p->memory[i] != NULL)
            peak->table->free(peak->backend, p->memory[i]);
    }
    if (p->kernel != NULL)
        peak->table->kernel_free(peak->backend, p->kernel);
    *p = (struct peak_product){ 0 };
}

/* Returns the dtype that the job's linear nodes read and write. */
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
static enum status allocate(const struct peak *peak, struct peak_product *p,
                            const struct tensor *in)
{
    const size_t weight_bytes = (size_t)(p->side * p->side) * sizeof(float);
    const size_t bytes[REGIONS] = { in->bytes, weight_bytes, p->info.out.bytes,
                                    p->info.scratch_bytes, p->info.cache_bytes };
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < REGIONS; i++) {
        if (bytes[i] > 0)
            st = peak->table->alloc(peak->backend, bytes[i], &p->memory[i]);
    }
    /* The operands aren't zeros: a device that multiplies zeros needs less power, and is faster
     * than in a step. Two halves of these bits are numbers as well. */
    const size_t floats[2] = { in->bytes / sizeof(float), weight_bytes / sizeof(float) };
    const struct vector_table *vector = &peak->table->vector;
    for (int i = 0; st == ST_OK && i < 2; i++)
        st = vector->fill(peak->backend, p->memory[i], 1.0F, floats[i], peak->stream);
    p->buffers = (struct op_buffers){ .in = { p->memory[0] },
                                      .param = { p->memory[1] },
                                      .out = p->memory[2],
                                      .scratch = p->memory[3],
                                      .cache = p->memory[4] };
    return st;
}

/* product starts zeroed, and is to be freed whatever is returned. */
static enum status make_product(const struct peak *peak, int64_t side, struct peak_product *p)
{
    const int64_t dims[2] = { side, side };
    const enum dtype dtype = dtype_of(peak->options->math);
    const struct op_spec spec = { .op = OP_LINEAR,
                                  .attr = { .out = side },
                                  .in = { tensor_plain(dtype, 2, dims) },
                                  .in_count = 1,
                                  .out_dtype = dtype,
                                  .math = peak->options->math };
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

/* wall: as it passed; own: of what computes. */
struct spent {
    int64_t wall_ns, own_ns;
};

static struct spent now(const struct peak *peak)
{
    struct timespec own = { .tv_sec = 0 };
    struct spent out = { .wall_ns = clock_mono_ns() };
    out.own_ns = out.wall_ns;
    if (peak->table->host_memory && clock_gettime(CLOCK_THREAD_CPUTIME_ID, &own) == 0)
        out.own_ns = (int64_t)own.tv_sec * INT64_C(1000000000) + own.tv_nsec;
    return out;
}

/* Runs the product `count` times, from an idle stream to an idle stream. */
static enum status run(const struct peak *peak, const struct peak_product *p, int64_t count,
                       struct spent *out)
{
    const struct op_table *linear = &peak->table->op[OP_LINEAR];
    const struct spent begin = now(peak);
    enum status st = ST_OK;
    for (int64_t i = 0; st == ST_OK && i < count; i++)
        st = linear->forward(peak->backend, p->kernel, &p->buffers, peak->stream);
    if (st == ST_OK)
        st = peak->table->stream_sync(peak->backend, peak->stream);
    const struct spent end = now(peak);
    *out = (struct spent){ end.wall_ns - begin.wall_ns, end.own_ns - begin.own_ns };
    return st;
}

/* Prepares a product and times it; runs it twice, since the first run finds code and caches
 * cold. */
static enum status try_product(const struct peak *peak, int64_t side, struct peak_product *p)
{
    struct spent spent = { 0 };
    enum status st = make_product(peak, side, p);
    if (st == ST_OK)
        st = peak->table->stream_sync(peak->backend, peak->stream);
    if (st == ST_OK)
        st = run(peak, p, 1, &spent);
    if (st == ST_OK)
        st = run(peak, p, 1, &spent);
    p->ns = spent.wall_ns > 0 ? spent.wall_ns : 1;
    return st;
}

/* The largest that is quick enough, as long as there is time for more. Where one more has no room,
 * the one before does. */
static enum status grow(const struct peak *peak, int64_t begin_ns, struct peak_product *p)
{
    enum status st = try_product(peak, PEAK_SIDE_MIN, p);
    while (st == ST_OK && WORK_OF_TWICE * p->ns <= PEAK_PRODUCT_MS * NS_PER_MS &&
           p->side < PEAK_SIDE_MAX && 2 * (clock_mono_ns() - begin_ns) < PEAK_MS * NS_PER_MS) {
        struct peak_product larger = { 0 };
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
static enum status run_for(const struct peak *peak, const struct peak_product *p, int64_t ns,
                           double *out_rate)
{
    const int64_t most = ns / LOST_SHARE / p->ns;
    const int64_t at_once = most > 1 ? most : 1;
    int64_t count = 0;
    struct spent spent = { 0 }, took = { 0 };
    enum status st = ST_OK;
    while (st == ST_OK && spent.wall_ns < ns) {
        st = run(peak, p, at_once, &took);
        count += at_once;
        spent.wall_ns += took.wall_ns > 0 ? took.wall_ns : 1;
        spent.own_ns += took.own_ns > 0 ? took.own_ns : 1;
    }
    *out_rate = st == ST_OK ? (double)count / ((double)spent.own_ns / 1e9) : 0;
    return st;
}

static enum status measure(struct peak *peak)
{
    const int64_t begin_ns = clock_mono_ns();
    struct peak_product product = { 0 };
    double best = 0;
    enum status st = grow(peak, begin_ns, &product);
    for (int i = 0; st == ST_OK && i < PEAK_PARTS; i++) {
        double rate = 0;
        if (i > 0 && clock_mono_ns() - begin_ns > PEAK_MS * NS_PER_MS)
            break;
        st = run_for(peak, &product, PEAK_MS * NS_PER_MS / PEAK_PARTS, &rate);
        best = rate > best ? rate : best;
    }
    peak->flops = best * product.info.flops_forward;
    free_product(peak, &product);
    return st;
}

static void *measure_main(void *arg)
{
    struct peak *peak = arg;
    const struct backend_options backend = { .ordinal = peak->options->ordinal, .threads = 1 };
    peak->st = peak->table->open(&backend, &peak->backend);
    if (peak->st != ST_OK)
        return NULL;
    peak->st = peak->table->stream_new(peak->backend, &peak->stream);
    if (peak->st == ST_OK)
        peak->st = measure(peak);
    if (peak->stream != NULL)
        peak->table->stream_free(peak->backend, peak->stream);
    peak->table->close(peak->backend);
    return NULL;
}

enum status peak_measure(const struct peak_options *options, double *out_flops)
{
    const int wanted = options->table->host_memory && options->threads > 1 ? options->threads : 1;
    const int most = wanted < PEAK_THREADS_MAX ? wanted : PEAK_THREADS_MAX;
    struct peak peaks[PEAK_THREADS_MAX] = { { .options = options, .table = options->table } };
    pthread_t threads[PEAK_THREADS_MAX];
    int count = 1;
    for (; count < most; count++) {
        peaks[count] = (struct peak){ .options = options, .table = options->table };
        if (pthread_create(&threads[count], NULL, measure_main, &peaks[count]) != 0)
            break;
    }
    (void)measure_main(&peaks[0]);
    double sum = peaks[0].flops;
    enum status st = peaks[0].st;
    for (int i = 1; i < count; i++) {
        (void)pthread_join(threads[i], NULL);
        sum += peaks[i].flops;
        if (st == ST_OK)
            st = peaks[i].st;
    }
    if (st == ST_OK)
        *out_flops = sum * wanted / count;
    return st;
}
