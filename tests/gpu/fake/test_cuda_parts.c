/* The CUDA backend's memory in parts, on the fake of the driver. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "tests/gpu/fake/fake.h"
#include "tests/test.h"

#define GRANULE  ((size_t)2 << 20)
#define BYTES    (((size_t)64 << 30) + 12345) /* addresses; there are 4 GiB of memory */
#define FAR_AWAY ((size_t)60 << 30)
#define ERROR    999 /* cudaErrorUnknown */

/* In three pieces: the first four parts' granules touch or are shared. */
static const struct memory_part parts[] = {
    { 100, 5000 },
    { GRANULE - 8, 16 },
    { GRANULE + 8, 0 },
    { 2 * GRANULE, 4 },
    { 5 * GRANULE + 1000, GRANULE },
    { FAR_AWAY, 3 * GRANULE },
};
#define PARTS (sizeof(parts) / sizeof(parts[0]))
#define TAKEN ((3 + 2 + 3) * GRANULE)

static const struct backend_table *cuda(void)
{
    return cairn_cuda_module()->backend;
}

static struct backend *open_cuda(const char *words, bool managed)
{
    struct backend *backend = NULL;
    const struct backend_options options = { .threads = 1, .managed = managed };
    fake_cuda_describe(words);
    assert_int_equal(cuda()->open(&options, &backend), ST_OK);
    return backend;
}

static void close_cuda(struct backend *backend)
{
    cuda()->close(backend);
    assert_int_equal(fake_cuda_memory_left(), 0);
    assert_int_equal(fake_cuda_objects_left(), 0);
}

static void parts_are_zeroed_usable_and_counted(void **state)
{
    (void)state;
    struct backend *b = open_cuda("", false);
    struct stream *stream = NULL;
    char *memory = NULL;
    float host[4];
    assert_int_equal(cuda()->stream_new(b, &stream), ST_OK);
    const size_t before = fake_cuda_memory_left();
    const int objects = fake_cuda_objects_left();
    for (int round = 0; round < 2; round++) {
        assert_int_equal(cuda()->alloc_parts(b, BYTES, parts, PARTS, (void **)&memory), ST_OK);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        assert_int_equal(fake_cuda_memory_left() - before, TAKEN);
        for (size_t i = 0; i < PARTS; i++) {
            for (size_t k = 0; k < parts[i].bytes; k++)
                assert_int_equal(memory[parts[i].first + k], 0);
        }
        float *near = (float *)(void *)(memory + GRANULE - 8),
              *far = (float *)(void *)(memory + FAR_AWAY);
        assert_int_equal(cuda()->vector.fill(b, near, 1.5f, 4, stream), ST_OK);
        assert_int_equal(cuda()->vector.fill(b, far, 2.0f, 3 * GRANULE / 4, stream), ST_OK);
        assert_int_equal(cuda()->vector.add(b, far, far, near, 4, stream), ST_OK);
        assert_int_equal(cuda()->vector.copy(b, host, far, sizeof(host), stream), ST_OK);
        assert_int_equal(cuda()->stream_sync(b, stream), ST_OK);
        for (int i = 0; i < 4; i++)
            assert_true(host[i] == 3.5f);
        assert_true(far[3 * GRANULE / 4 - 1] == 2.0f);
        cuda()->free_parts(b, memory, BYTES);
        assert_int_equal(fake_cuda_memory_left(), before);
        assert_int_equal(fake_cuda_objects_left(), objects);
    }
    cuda()->free_parts(b, NULL, BYTES);
    cuda()->stream_free(b, stream);
    close_cuda(b);
}

static void no_parts_take_no_memory(void **state)
{
    (void)state;
    struct backend *b = open_cuda("", false);
    void *memory = NULL, *empty = NULL;
    const size_t before = fake_cuda_memory_left();
    assert_int_equal(cuda()->alloc_parts(b, BYTES, NULL, 0, &memory), ST_OK);
    assert_int_equal(cuda()->alloc_parts(b, 0, NULL, 0, &empty), ST_OK);
    assert_int_equal(fake_cuda_memory_left(), before);
    assert_ptr_not_equal(memory, empty);
    assert_int_equal(cuda()->alloc_parts(b, SIZE_MAX, NULL, 0, &empty), ST_NO_MEMORY);
    cuda()->free_parts(b, memory, BYTES);
    close_cuda(b); /* takes the other with it */
}

/* A child that fills there must die of it. */
static void check_fault(struct backend *b, char *at)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would exit */
        (void)cuda()->vector.fill(b, (float *)(void *)at, 1.0f, 1, NULL);
        (void)cuda()->stream_sync(b, NULL);
        _exit(0);
    }
    int code = 0;
    assert_int_equal(waitpid(child, &code, 0), child);
    assert_true(WIFSIGNALED(code));
    assert_int_equal(WTERMSIG(code), SIGSEGV);
}

static void gaps_fault_and_so_does_what_was_freed(void **state)
{
    (void)state;
    struct backend *b = open_cuda("", false);
    char *memory = NULL;
    assert_int_equal(cuda()->alloc_parts(b, BYTES, parts, PARTS, (void **)&memory), ST_OK);
    const size_t outside[] = { 3 * GRANULE,  5 * GRANULE - 4,        7 * GRANULE,
                               FAR_AWAY - 4, FAR_AWAY + 3 * GRANULE, BYTES / 4 * 4 - 4 };
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++)
        check_fault(b, memory + outside[i]);
    cuda()->free_parts(b, memory, BYTES);
    check_fault(b, memory + FAR_AWAY);
    close_cuda(b);
}

static void freeing_waits_for_what_is_under_way(void **state)
{
    (void)state;
    struct backend *b = open_cuda("", false);
    struct stream *stream = NULL;
    char *memory = NULL;
    assert_int_equal(cuda()->stream_new(b, &stream), ST_OK);
    assert_int_equal(cuda()->alloc_parts(b, BYTES, parts, PARTS, (void **)&memory), ST_OK);
    assert_int_equal(
        cuda()->vector.fill(b, (float *)(void *)(memory + FAR_AWAY), 1.0f, 100, stream), ST_OK);
    cuda()->free_parts(b, memory, BYTES);
    assert_int_equal(cuda()->stream_sync(b, stream), ST_OK);
    cuda()->stream_free(b, stream);
    close_cuda(b);
}

/* The nth call of a function fails, for every nth that comes. Returns how many there are. */
static int fail_each(const char *function, int error, enum status want)
{
    for (int nth = 1; nth < 20; nth++) {
        char words[100];
        struct backend *b = open_cuda("", false);
        void *memory = NULL;
        const size_t before = fake_cuda_memory_left();
        const int objects = fake_cuda_objects_left();
        (void)snprintf(words, sizeof(words), "fail=%s:%d:%d", function, nth, error);
        fake_cuda_change(words);
        const enum status st = cuda()->alloc_parts(b, BYTES, parts, PARTS, &memory);
        if (st == ST_OK) {
            close_cuda(b);
            return nth - 1;
        }
        assert_int_equal(st, want);
        assert_null(memory);
        assert_int_equal(fake_cuda_memory_left(), before);
        assert_int_equal(fake_cuda_objects_left(), objects);
        close_cuda(b);
    }
    return -1;
}

static void what_fails_in_the_middle_leaves_nothing_behind(void **state)
{
    (void)state;
    assert_int_equal(fail_each("cuMemAddressReserve", 2, ST_NO_MEMORY), 1);
    assert_int_equal(fail_each("cuMemCreate", 2, ST_NO_MEMORY), 3);
    assert_int_equal(fail_each("cuMemMap", ERROR, ST_DEVICE), 3);
    assert_int_equal(fail_each("cuMemSetAccess", ERROR, ST_DEVICE), 3);
    assert_int_equal(fail_each("cudaMemset", ERROR, ST_DEVICE), 3);
    assert_int_equal(fail_each("cudaStreamSynchronize", ERROR, ST_DEVICE), 1);
}

static void a_full_device_is_no_lasting_error(void **state)
{
    (void)state;
    struct backend *b = open_cuda("memory=12000000", false); /* the first two pieces fit */
    const size_t before = fake_cuda_memory_left();
    void *memory = NULL;
    assert_int_equal(cuda()->alloc_parts(b, BYTES, parts, PARTS, &memory), ST_NO_MEMORY);
    assert_non_null(strstr(cuda()->why(b), "out of memory"));
    assert_int_equal(fake_cuda_memory_left(), before);
    assert_int_equal(cuda()->alloc_parts(b, BYTES, parts, PARTS - 1, &memory), ST_OK);
    assert_int_equal(fake_cuda_memory_left() - before, 5 * GRANULE);
    cuda()->free_parts(b, memory, BYTES);
    close_cuda(b);
}

/* All of it is memory, of which the parts alone were touched. */
static void check_whole(const char *words, bool managed)
{
    const struct memory_part two[] = { { 100, 50 }, { GRANULE, 7 } };
    struct backend *b = open_cuda(words, managed);
    unsigned char *memory = NULL;
    const size_t before = fake_cuda_memory_left(), bytes = 3 * GRANULE;
    assert_int_equal(cuda()->alloc_parts(b, bytes, two, 2, (void **)&memory), ST_OK);
    assert_in_range(fake_cuda_memory_left() - before, bytes, bytes + 4096);
    assert_int_equal(fake_cuda_calls("cuMemCreate"), 0);
    for (size_t i = 0; i < bytes; i++) {
        const bool is_zeroed = (i >= 100 && i < 150) || (i >= GRANULE && i < GRANULE + 7);
        assert_int_equal(memory[i], is_zeroed ? 0 : 0xa5);
    }
    cuda()->free_parts(b, memory, bytes);
    assert_int_equal(fake_cuda_memory_left(), before);
    close_cuda(b);
}

static void where_parts_can_not_be_mapped_all_is_memory(void **state)
{
    (void)state;
    check_whole("no-parts", false);
    for (int nth = 1; nth <= 10; nth++) {
        char words[100];
        (void)snprintf(words, sizeof(words), "fail=cudaGetDriverEntryPointByVersion:%d:1", nth);
        check_whole(words, false);
    }
    check_whole("fail=cuDeviceGet:1:101", false);
    check_whole("fail=cuDeviceGetAttribute:1:1", false);
    check_whole("fail=cuMemGetAllocationGranularity:1:1", false);
    check_whole("", true);
    assert_true(fake_cuda_calls("cudaMallocManaged") > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_are_zeroed_usable_and_counted),
        cmocka_unit_test(no_parts_take_no_memory),
        cmocka_unit_test(gaps_fault_and_so_does_what_was_freed),
        cmocka_unit_test(freeing_waits_for_what_is_under_way),
        cmocka_unit_test(what_fails_in_the_middle_leaves_nothing_behind),
        cmocka_unit_test(a_full_device_is_no_lasting_error),
        cmocka_unit_test(where_parts_can_not_be_mapped_all_is_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
