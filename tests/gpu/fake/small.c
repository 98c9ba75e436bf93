/*
 * A small linear on the CUDA backend over the fakes.
 */
#include "tests/gpu/fake/small.h"

#include <string.h>

#include "tests/gpu/fake/fake.h"

const struct backend_table *cuda(void)
{
    return cairn_cuda_module()->backend;
}

struct backend *open_cuda(const char *stored)
{
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = 1, .choices = stored };
    assert_int_equal(cuda()->open(&options, &backend), ST_OK);
    return backend;
}

void nothing_is_left(void)
{
    assert_int_equal(fake_cuda_memory_left(), 0);
    assert_int_equal(fake_cuda_objects_left(), 0);
}

struct op_spec small_spec(void)
{
    const int64_t dims[2] = { ROWS, IN };
    return (struct op_spec){ .op = OP_LINEAR,
                             .attr = { .out = OUT, .bias = true },
                             .in = { tensor_plain(DTYPE_F32, 2, dims) },
                             .in_count = 1,
                             .training = true,
                             .need_din0 = true };
}

void *small_memory(struct small *s, size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(cuda()->alloc(s->b, bytes, &memory), ST_OK);
    return memory;
}

/* Numbers whose sum depends on its order. */
void small_upload(struct small *s, float *to, size_t count, float from)
{
    float x[OUT * IN + OUT];
    for (size_t i = 0; i < count; i++)
        x[i] = from / (float)(1 + i % 17) * (i % 3 == 0 ? -1.01f : 1.0f);
    assert_int_equal(cuda()->vector.copy(s->b, to, x, count * sizeof(float), s->stream), ST_OK);
}

void small_open(struct small *s, const char *stored)
{
    *s = (struct small){ .b = open_cuda(stored) };
    const struct op_spec spec = small_spec();
    assert_int_equal(cuda()->stream_new(s->b, &s->stream), ST_OK);
    assert_int_equal(cuda()->op[OP_LINEAR].prepare(s->b, &spec, &s->kernel, &s->info), ST_OK);
    s->in = small_memory(s, ROWS * IN * sizeof(float));
    s->out = small_memory(s, ROWS * OUT * sizeof(float));
    s->param = small_memory(s, (OUT * IN + OUT) * sizeof(float));
    s->scratch = small_memory(s, s->info.scratch_bytes);
    s->cache = small_memory(s, s->info.cache_bytes);
    small_upload(s, s->in, ROWS * IN, 1.0f);
    small_upload(s, s->param, OUT * IN + OUT, 3.0f);
    const float *const param[OP_PARAM_MAX] = { s->param, s->param + OUT * IN };
    assert_int_equal(cuda()->refresh(s->b, s->kernel, param, s->cache, s->stream), ST_OK);
    s->buffers = (struct op_buffers){ .in = { s->in },
                                      .out = s->out,
                                      .param = { param[0], param[1] },
                                      .scratch = s->scratch,
                                      .cache = s->cache };
}

void small_close(struct small *s)
{
    cuda()->kernel_free(s->b, s->kernel);
    cuda()->stream_free(s->b, s->stream);
    cuda()->close(s->b);
    nothing_is_left();
}

enum status small_forward(struct small *s)
{
    return cuda()->op[OP_LINEAR].forward(s->b, s->kernel, &s->buffers, s->stream);
}

void small_download(struct small *s, float out[ROWS * OUT])
{
    assert_int_equal(cuda()->vector.copy(s->b, out, s->out, ROWS * OUT * sizeof(float), s->stream),
                     ST_OK);
    assert_int_equal(cuda()->stream_sync(s->b, s->stream), ST_OK);
}

enum status small_step(struct small *s)
{
    enum status st = cuda()->vector.fill(s->b, s->out, 1.0f, ROWS * OUT, s->stream);
    return st == ST_OK ? small_forward(s) : st;
}
