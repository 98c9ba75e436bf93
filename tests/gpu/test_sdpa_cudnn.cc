/*
 * What can be seen of cuDNN's attention without a device: what it refuses, and when it is chosen.
 */
extern "C" {
#include "tests/test.h"
}

#include "kernels/cuda/library/sdpa_cudnn.h"

#if defined(CAIRN_SDPA_CUDNN)
static const bool asked_for = true;
#else
static const bool asked_for = false;
#endif

static const struct cuda_attention good = { 2, 128, 4, 64, DTYPE_BF16, false, nullptr };

static void it_is_chosen_only_where_the_build_asks_for_it(void **state)
{
    (void)state;
    assert_int_equal(sdpa_cudnn_chosen(&good, 80), asked_for);
    assert_int_equal(sdpa_cudnn_chosen(&good, 90), asked_for);
    struct cuda_attention other = good;
    other.dtype = DTYPE_F16;
    assert_int_equal(sdpa_cudnn_chosen(&other, 90), asked_for);
}

static void it_is_never_chosen_beyond_what_it_computes(void **state)
{
    (void)state;
    assert_false(sdpa_cudnn_chosen(&good, 75));
    struct cuda_attention other = good;
    other.dtype = DTYPE_F32;
    assert_false(sdpa_cudnn_chosen(&other, 90));
    other = good;
    other.dim = 60;
    assert_false(sdpa_cudnn_chosen(&other, 90));
    other.dim = 256;
    assert_false(sdpa_cudnn_chosen(&other, 90));
}

static void without_a_handle_nothing_is_built(void **state)
{
    (void)state;
    struct sdpa_cudnn *const untouched = (struct sdpa_cudnn *)state;
    struct sdpa_cudnn *out = untouched;
    assert_int_equal(sdpa_cudnn_new(nullptr, &good, true, &out), ST_INVALID);
    assert_ptr_equal(out, untouched);
}

static void wrong_shapes_are_refused_before_the_handle_is_used(void **state)
{
    (void)state;
    int no_handle = 0;
    struct sdpa_cudnn *out = nullptr;
    struct cuda_attention other = good;
    other.dtype = DTYPE_F32;
    assert_int_equal(sdpa_cudnn_new(&no_handle, &other, true, &out), ST_INVALID);
    other = good;
    other.heads = 0;
    assert_int_equal(sdpa_cudnn_new(&no_handle, &other, true, &out), ST_INVALID);
    assert_null(out);
    sdpa_cudnn_free(nullptr);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_chosen_only_where_the_build_asks_for_it),
        cmocka_unit_test(it_is_never_chosen_beyond_what_it_computes),
        cmocka_unit_test(without_a_handle_nothing_is_built),
        cmocka_unit_test(wrong_shapes_are_refused_before_the_handle_is_used),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
