/* How kernels are started on a device, before a runtime that starts nothing. */
#include <cuda_runtime.h>
#include <string.h>

#include "tests/gpu/launch/planted.h"
extern "C" {
#include "tests/test.h"
}

/* ---- the runtime ---- */

static struct {
    cudaError_t last;             /* what another library left, or a launch */
    cudaError_t refuses, bounded; /* the next launch; a bound of shared memory */
    int launches, count;
    const float *in;
    struct planted_extent extent;
    unsigned grid, block;
    size_t shared, allowed;
    void *stream;
} runtime;

extern "C" {

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream)
{
    assert_non_null(kernel);
    runtime.launches++;
    runtime.count = *static_cast<int *>(arguments[0]);
    runtime.in = *static_cast<const float **>(arguments[1]);
    runtime.extent = *static_cast<planted_extent *>(arguments[2]);
    assert_null(*static_cast<float **>(arguments[3]));
    runtime.grid = grid.x * grid.y * grid.z;
    runtime.block = block.x;
    runtime.shared = shared;
    runtime.stream = stream;
    if (runtime.refuses != cudaSuccess)
        runtime.last = runtime.refuses;
    return runtime.refuses;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value)
{
    assert_non_null(kernel);
    assert_int_equal(attribute, cudaFuncAttributeMaxDynamicSharedMemorySize);
    runtime.allowed = static_cast<size_t>(value);
    return runtime.bounded;
}

cudaError_t cudaPeekAtLastError(void)
{
    return runtime.last;
}

/* What the compiler's own code calls where a program with kernels starts and ends. */
void **__cudaRegisterFatBinary(void *)
{
    static void *handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *,
                            dim3 *, dim3 *, int *)
{
}
char __cudaInitModule(void **)
{
    return 1;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void *)
{
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *)
{
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(void **out, const void *function)
{
    *out = const_cast<void *>(function);
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
}

/* ---- the tests ---- */

static const float numbers[4] = { 1, 2, 3, 4 };
static const struct planted_extent extent = { 2, 3, 5 };

static enum status start(size_t shared)
{
    return planted_start(7, numbers, extent, shared, &runtime);
}

static void a_launch_carries_what_it_is_given(void **)
{
    runtime = {};
    assert_int_equal(start(1024), ST_OK);
    assert_int_equal(runtime.launches, 1);
    assert_int_equal(runtime.count, 7);
    assert_ptr_equal(runtime.in, numbers);
    assert_memory_equal(&runtime.extent, &extent, sizeof(extent));
    assert_int_equal(runtime.grid, 6);
    assert_int_equal(runtime.block, 64);
    assert_int_equal(runtime.shared, 1024);
    assert_ptr_equal(runtime.stream, &runtime);
    assert_int_equal(runtime.allowed, 0);
}

static void an_error_that_another_library_left_fails_no_launch(void **)
{
    runtime = {};
    runtime.last = cudaErrorInvalidValue;
    assert_int_equal(start(0), ST_OK);
    assert_int_equal(start(0), ST_OK);
    assert_int_equal(runtime.launches, 2);
}

static void a_launch_that_is_refused_is_told(void **)
{
    runtime = {};
    runtime.refuses = cudaErrorInvalidConfiguration;
    assert_int_equal(start(0), ST_DEVICE);
    assert_int_equal(runtime.last, cudaErrorInvalidConfiguration);
}

static void much_shared_memory_is_asked_for_first(void **)
{
    runtime = {};
    assert_int_equal(start(64 * 1024), ST_OK);
    assert_int_equal(runtime.allowed, 64 * 1024);
    runtime = {};
    runtime.bounded = cudaErrorInvalidValue;
    assert_int_equal(start(64 * 1024), ST_DEVICE);
    assert_int_equal(runtime.launches, 0);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_launch_carries_what_it_is_given),
        cmocka_unit_test(an_error_that_another_library_left_fails_no_launch),
        cmocka_unit_test(a_launch_that_is_refused_is_told),
        cmocka_unit_test(much_shared_memory_is_asked_for_first),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
