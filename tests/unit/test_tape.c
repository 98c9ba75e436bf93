/* The tape's builders, the flat buffers' order, the lane vector and its buckets. */
#include <string.h>

#include "tests/test.h"
#include "trainer/models/models.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/tape.h"

static struct tape *build(const char *arch, int64_t side)
{
    struct model_options options = {
        .arch = arch, .channels = 1, .height = side, .width = side, .classes = 10, .hidden = 256
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

static const struct tape_tensor *find(const struct tape_tensor *tensors, int count,
                                      const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    }
    return NULL;
}

static void resnet18_has_the_names_and_counts_of_pytorch(void **state)
{
    (void)state;
    struct tape *tape = build("resnet18", 28);
    assert_int_equal(tape->param_elements, 11172810);
    assert_int_equal(tape->stat_elements, 9600);
    assert_int_equal(tape->param_count, 62);
    assert_int_equal(tape->stat_count, 40);
    const struct tape_tensor *down =
        find(tape->params, tape->param_count, "layer2.0.downsample.0.weight");
    assert_non_null(down);
    assert_int_equal(down->dims[0], 128);
    assert_int_equal(down->dims[1], 64);
    assert_int_equal(down->dims[3], 1);
    assert_non_null(find(tape->params, tape->param_count, "layer4.1.bn2.bias"));
    assert_non_null(find(tape->params, tape->param_count, "fc.bias"));
    assert_non_null(find(tape->stats, tape->stat_count, "layer1.0.bn1.running_var"));
    assert_null(find(tape->params, tape->param_count, "layer1.0.downsample.0.weight"));
    tape_free(tape);
}

static void parameters_lie_in_tape_order_without_gaps(void **state)
{
    (void)state;
    const char *const models[] = { "mlp", "lenet", "resnet18" };
    for (size_t m = 0; m < 3; m++) {
        struct tape *tape = build(models[m], 28);
        size_t at = 0;
        for (int i = 0; i < tape->param_count; i++) {
            assert_int_equal(tape->params[i].offset, at);
            at += tape->params[i].count;
        }
        assert_int_equal(at, tape->param_elements);
        int last = -1;
        for (int n = 0; n < tape->node_count; n++) {
            for (int i = 0; i < OP_PARAM_MAX && tape->nodes[n].param[i] >= 0; i++) {
                assert_int_equal(tape->nodes[n].param[i], last + 1);
                last++;
            }
        }
        tape_free(tape);
    }
}

static void an_image_too_small_for_the_model_is_refused(void **state)
{
    (void)state;
    struct model_options options = {
        .arch = "lenet", .channels = 1, .height = 11, .width = 11, .classes = 10
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_INVALID);
    assert_null(tape);
    options.height = options.width = 12;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    tape_free(tape);
}

static void an_unknown_model_is_not_found(void **state)
{
    (void)state;
    struct model_options options = { .arch = "resnet19" };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_NOT_FOUND);
    assert_null(tape);
}

static void the_first_mistake_of_a_builder_is_kept(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 4, (int64_t[]){ 1, 3, 8, 8 });
    assert_int_equal(tape_max_pool(tape, x, 9, 1, 0), -1);
    assert_int_equal(tape_flatten(tape, x), -1);
    assert_int_equal(tape_finish(tape), ST_INVALID);
    tape_free(tape);
}

static void a_tape_with_a_value_that_nobody_reads_is_refused(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 4, (int64_t[]){ 1, 1, 8, 8 });
    int labels = tape_input(tape, DTYPE_I32, 1, (int64_t[]){ 1 });
    int flat = tape_flatten(tape, x);
    int logits = tape_linear(tape, "fc", flat, &(struct tape_linear){ .out = 10, .bias = true });
    (void)tape_linear(tape, "dead", flat, &(struct tape_linear){ .out = 10, .bias = true });
    assert_true(tape_loss(tape, logits, labels, 0) >= 0);
    assert_int_equal(tape_finish(tape), ST_INVALID);
    tape_free(tape);
}

static void a_name_that_is_too_long_is_refused(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 2, (int64_t[]){ 1, 4 });
    char name[LIMIT_NAME];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    (void)tape_linear(tape, name, x, &(struct tape_linear){ .out = 4, .bias = true });
    assert_int_equal(tape->error, ST_INVALID);
    tape_free(tape);
}

static void more_nodes_than_the_bound_are_refused(void **state)
{
    (void)state;
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int x = tape_input(tape, DTYPE_F32, 2, (int64_t[]){ 1, 4 });
    for (int i = 0; i < TAPE_NODES_MAX; i++)
        x = tape_relu(tape, x);
    assert_true(x >= 0);
    assert_int_equal(tape_relu(tape, x), -1);
    assert_int_equal(tape->error, ST_INVALID);
    tape_free(tape);
}

static void the_lane_vector_holds_gradients_statistics_and_scalars(void **state)
{
    (void)state;
    struct tape *tape = build("resnet18", 28);
    struct lane_layout layout = lane_layout(tape);
    assert_int_equal(layout.param_count, tape->param_elements);
    assert_int_equal(layout.stat_at, tape->param_elements);
    assert_int_equal(layout.loss_at, tape->param_elements + 9600);
    assert_int_equal(layout.count, layout.micro_at + 1);
    tape_free(tape);
}

static void check_buckets(size_t count, size_t wanted)
{
    struct lane_layout layout = { .count = count };
    static size_t begin[LANE_BUCKETS_MAX + 1];
    size_t buckets = 0;
    assert_int_equal(lane_buckets(&layout, wanted, begin, LANE_BUCKETS_MAX, &buckets), ST_OK);
    assert_true(buckets >= 1);
    assert_int_equal(begin[0], 0);
    begin[buckets] = count;
    for (size_t i = 0; i < buckets; i++) {
        assert_true(begin[i] < begin[i + 1]);
        assert_int_equal(begin[i] % PIECE_ELEMENTS, 0);
        size_t size = begin[i + 1] - begin[i];
        assert_true(size <= wanted + 2 * PIECE_ELEMENTS);
    }
}

static void bucket_borders_are_multiples_of_a_piece(void **state)
{
    (void)state;
    const size_t counts[] = { 1,
                              PIECE_ELEMENTS - 1,
                              PIECE_ELEMENTS,
                              PIECE_ELEMENTS + 1,
                              2 * PIECE_ELEMENTS + 1,
                              11182413,
                              50000000 };
    const size_t wanted[] = { 0, 1, PIECE_ELEMENTS, 100000, 1 << 20 };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (size_t j = 0; j < sizeof wanted / sizeof wanted[0]; j++)
            check_buckets(counts[i], wanted[j]);
    }
}

static void too_many_buckets_are_refused(void **state)
{
    (void)state;
    struct lane_layout layout = { .count = 10 * PIECE_ELEMENTS };
    size_t begin[4];
    size_t buckets = 77;
    assert_int_equal(lane_buckets(&layout, PIECE_ELEMENTS, begin, 4, &buckets), ST_FULL);
    assert_int_equal(buckets, 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resnet18_has_the_names_and_counts_of_pytorch),
        cmocka_unit_test(parameters_lie_in_tape_order_without_gaps),
        cmocka_unit_test(an_image_too_small_for_the_model_is_refused),
        cmocka_unit_test(an_unknown_model_is_not_found),
        cmocka_unit_test(the_first_mistake_of_a_builder_is_kept),
        cmocka_unit_test(a_tape_with_a_value_that_nobody_reads_is_refused),
        cmocka_unit_test(a_name_that_is_too_long_is_refused),
        cmocka_unit_test(more_nodes_than_the_bound_are_refused),
        cmocka_unit_test(the_lane_vector_holds_gradients_statistics_and_scalars),
        cmocka_unit_test(bucket_borders_are_multiples_of_a_piece),
        cmocka_unit_test(too_many_buckets_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
