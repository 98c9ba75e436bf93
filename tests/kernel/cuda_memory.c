/* Memory in parts. What touches a gap isn't tried: a device doesn't recover from it. */
#include "tests/kernel/cuda_cases.h"
#include "tests/test.h"

#define GRANULE  ((size_t)2 << 20)
#define BYTES    ((size_t)1 << 40) /* of addresses: more than a device has memory */
#define PARTS    3
#define TAKEN    ((3 + 2 + 64) * GRANULE)
#define SLACK    ((uint64_t)32 << 20) /* what else the driver takes meanwhile */
#define ELEMENTS ((size_t)1 << 20)

static const struct memory_part parts[PARTS] = {
    { 4096, ELEMENTS * sizeof(float) },
    { ((size_t)1 << 39) - 4, 8 },
    { BYTES - 64 * GRANULE, 64 * GRANULE },
};

static uint64_t free_bytes(const struct module *module)
{
    struct module_device device;
    struct reason reason;
    assert_int_equal(module->device(0, &device, &reason), ST_OK);
    return device.free_bytes;
}

/* The first elements of a part are zeros, and what is written comes back. */
static void use(const struct backend_table *table, struct backend *b, struct stream *stream,
                float *at, size_t count)
{
    float *host = NULL;
    assert_int_equal(table->alloc_host(b, count * sizeof(float), (void **)&host), ST_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(table->vector.copy(b, host, at, count * sizeof(float), stream), ST_OK);
        assert_int_equal(table->stream_sync(b, stream), ST_OK);
        for (size_t i = 0; i < count; i++)
            assert_true(host[i] == 3.0f * (float)round);
        assert_int_equal(table->vector.fill(b, at, 1.5f, count, stream), ST_OK);
        assert_int_equal(table->vector.add(b, at, at, at, count, stream), ST_OK);
    }
    table->free_host(b, host);
}

void cuda_memory_of_parts_is_that_of_their_granules(void **state)
{
    const struct module *module = *state;
    const struct backend_table *table = module->backend;
    struct backend *b = NULL;
    struct stream *stream = NULL;
    const struct backend_options options = { .threads = 1 };
    assert_int_equal(table->open(&options, &b), ST_OK);
    assert_int_equal(table->stream_new(b, &stream), ST_OK);
    for (int round = 0; round < 2; round++) {
        char *memory = NULL;
        const uint64_t before = free_bytes(module);
        assert_int_equal(table->alloc_parts(b, BYTES, parts, PARTS, (void **)&memory), ST_OK);
        const uint64_t taken = before - free_bytes(module);
        assert_in_range(taken, TAKEN - SLACK, TAKEN + SLACK);
        use(table, b, stream, (float *)(void *)(memory + parts[0].first), ELEMENTS);
        use(table, b, stream, (float *)(void *)(memory + parts[1].first), 2);
        use(table, b, stream, (float *)(void *)(memory + BYTES - 4000), 1000);
        table->free_parts(b, memory, BYTES);
        assert_in_range(free_bytes(module), before - SLACK, before + SLACK);
    }
    table->stream_free(b, stream);
    table->close(b);
}
