/* The difference of two checkpoints is that of their values, wherever chunks end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/weights/compare.h"
#include "checkpoint/weights/values.h"
#include "common/check.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/crash/memory_io.h"
#include "tests/test.h"

#define LONG      600000 /* elements: three chunks */
#define CHUNK     262144
#define COUNTS    10
#define TENSORS   6
#define TOLERANCE 1e-12

/* One side: its state points to it. */
struct side {
    struct sample sample;
    float *parameters; /* LONG + 12 */
    int64_t counts[COUNTS];
    char dir[LIMIT_PATH];
    struct ckpt_reader *reader;
};

static struct ckpt_tensor tensor(const char *name, uint32_t buffer, uint64_t offset, uint64_t rows,
                                 uint64_t columns)
{
    struct ckpt_tensor out = {
        .buffer = buffer, .offset = offset, .ndim = columns > 0 ? 2 : 1, .dims = { rows, columns }
    };
    (void)snprintf(out.name, sizeof(out.name), "%s", name);
    return out;
}

static void side_init(struct side *side, uint64_t step)
{
    *side = (struct side){ .reader = NULL };
    side->parameters = calloc(LONG + 12, sizeof(float));
    CHECK(side->parameters != NULL);
    for (size_t i = 0; i < LONG + 12; i++)
        side->parameters[i] = (float)(i % 7) + 1;
    for (int i = 0; i < COUNTS; i++)
        side->counts[i] = 100 + i;
    struct sample *s = &side->sample;
    s->buffers[0] = (struct ckpt_buffer){
        .name = "parameters", .dtype = CKPT_F32, .count = LONG + 12, .data = side->parameters
    };
    s->buffers[1] = (struct ckpt_buffer){
        .name = "counts", .dtype = CKPT_I64, .count = COUNTS, .data = side->counts
    };
    s->tensors[0] = tensor("small", 0, 0, 6, 0);
    s->tensors[1] = tensor("long", 0, 6, LONG, 0);
    s->tensors[2] = tensor("matrix", 0, LONG + 6, 2, 3);
    s->tensors[3] = tensor("counts", 1, 0, COUNTS, 0);
    s->state = (struct ckpt_state){ .job = SAMPLE_JOB,
                                    .generation = 1,
                                    .buffers = s->buffers,
                                    .buffer_count = 2,
                                    .tensors = s->tensors,
                                    .tensor_count = 4,
                                    .scalars = { .step = step, .loss_scale = 1 } };
}

static void side_release(struct side *side)
{
    ckpt_close(side->reader);
    free(side->parameters);
}

static void side_save(const struct io *io, struct side *side)
{
    assert_int_equal(sample_save(io, &side->sample, 2, NULL, side->dir), ST_OK);
    assert_int_equal(ckpt_open(io, side->dir, NULL, NULL, &side->reader), ST_OK);
}

/* ---- comparisons ---- */

struct world {
    struct memory_io *memory;
    struct side a, b;
    struct compare_tensor *list;
    uint32_t count;
};

static int begin(void **state)
{
    static struct world world;
    world = (struct world){ .memory = memory_io_new() };
    side_init(&world.a, 10);
    side_init(&world.b, 20);
    *state = &world;
    return 0;
}

static int end(void **state)
{
    struct world *w = *state;
    side_release(&w->a);
    side_release(&w->b);
    free(w->list);
    memory_io_free(w->memory);
    return 0;
}

static void compare(struct world *w)
{
    const struct io *io = memory_io_table(w->memory);
    side_save(io, &w->a);
    side_save(io, &w->b);
    assert_int_equal(compare_tensors(w->a.reader, w->b.reader, NULL, NULL, &w->list, &w->count),
                     ST_OK);
}

static const struct compare_tensor *result(const struct world *w, const char *name)
{
    for (uint32_t i = 0; i < w->count; i++) {
        if (strcmp(w->list[i].name, name) == 0)
            return &w->list[i];
    }
    fail_msg("no result for %s", name);
    return NULL;
}

static void equal_states_are_equal_in_every_tensor(void **state)
{
    struct world *w = *state;
    compare(w);
    assert_int_equal(w->count, 4);
    for (uint32_t i = 0; i < w->count; i++) {
        assert_int_equal(w->list[i].kind, COMPARE_EQUAL);
        assert_int_equal(w->list[i].differing + w->list[i].bits, 0);
        assert_true(compare_relative(&w->list[i]) == 0);
    }
}

static void what_no_tensor_has_is_compared_too(void **state)
{
    struct world *w = *state;
    w->a.sample.tensors[1] = w->a.sample.tensors[2]; /* "long" and "counts" aren't in the tables */
    w->b.sample.tensors[1] = w->b.sample.tensors[2];
    w->a.sample.state.tensor_count = w->b.sample.state.tensor_count = 2;
    w->b.parameters[6 + CHUNK] += 1;
    w->b.counts[COUNTS - 1]++;
    compare(w);
    assert_int_equal(w->count, 4);
    assert_int_equal(result(w, "small")->kind, COMPARE_EQUAL);
    assert_int_equal(result(w, "matrix")->kind, COMPARE_EQUAL);
    const struct compare_tensor *rest = result(w, "(parameters from 6)");
    assert_int_equal(rest->elements, LONG);
    assert_int_equal(rest->differing, 1);
    assert_int_equal(result(w, "(counts)")->differing, 1);
}

/* A part ends where a chunk does, so that none is decoded twice. */
static void a_chunk_of_any_float_is_one_part(void **state)
{
    (void)state;
    static const enum ckpt_dtype dtypes[] = { CKPT_F32, CKPT_BF16, CKPT_F16 };
    for (size_t i = 0; i < 3; i++) {
        const uint64_t chunk = ckpt_chunk_elements(dtypes[i]);
        const struct ckpt_buffer buffer = { .dtype = dtypes[i], .count = 3 * chunk };
        const struct ckpt_tensor all = { .ndim = 1, .dims = { 3 * chunk } };
        const struct ckpt_values values = { .buffers = &buffer };
        struct ckpt_values_part part = { 0, 0 };
        for (int k = 0; k < 3; k++) {
            assert_true(ckpt_values_next(&values, &all, &part));
            assert_int_equal(part.count, chunk);
        }
        assert_false(ckpt_values_next(&values, &all, &part));
    }
}

static void differences_are_found_on_both_sides_of_every_chunk_s_border(void **state)
{
    struct world *w = *state;
    static const size_t places[] = { 6, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, LONG + 5 };
    double square = 0, norm = 0;
    for (size_t i = 0; i < 6; i++) {
        w->b.parameters[places[i]] += (float)(i + 1);
        square += (double)((i + 1) * (i + 1));
    }
    for (size_t i = 6; i < LONG + 6; i++)
        norm += (double)w->a.parameters[i] * (double)w->a.parameters[i];
    compare(w);
    const struct compare_tensor *longest = result(w, "long");
    assert_int_equal(longest->kind, COMPARE_DIFFERS);
    assert_int_equal(longest->elements, LONG);
    assert_int_equal(longest->differing, 6);
    assert_true(longest->bits >= 6);
    assert_true(longest->max_abs == 6);
    assert_true(fabs(compare_relative(longest) - sqrt(square / norm)) < TOLERANCE);
    assert_int_equal(result(w, "small")->kind, COMPARE_EQUAL);
    assert_int_equal(result(w, "matrix")->kind, COMPARE_EQUAL);
}

static void values_that_are_no_numbers_are_counted_apart(void **state)
{
    struct world *w = *state;
    w->a.parameters[0] = NAN;
    w->b.parameters[0] = NAN; /* the same bits: equal */
    w->b.parameters[1] = NAN;
    w->b.parameters[2] = INFINITY;
    w->a.parameters[3] = 0.0f;
    w->b.parameters[3] = -0.0f; /* another bit, the same value */
    w->b.parameters[4] += 0.5f;
    compare(w);
    const struct compare_tensor *small = result(w, "small");
    assert_int_equal(small->differing, 4);
    assert_int_equal(small->not_finite, 2);
    assert_true(small->max_abs == 0.5);
    assert_true(isfinite(compare_relative(small)));
}

static void whole_numbers_are_compared_as_such(void **state)
{
    struct world *w = *state;
    w->b.counts[9] += 1000;
    compare(w);
    assert_int_equal(result(w, "counts")->differing, 1);
    assert_true(result(w, "counts")->max_abs == 1000);
}

static void other_shapes_types_and_names_are_named(void **state)
{
    struct world *w = *state;
    uint16_t halves[6];
    for (int i = 0; i < 6; i++) { /* as bfloat16, exactly */
        uint32_t bits;
        memcpy(&bits, &w->a.parameters[i], sizeof(bits));
        halves[i] = (uint16_t)(bits >> 16);
    }
    struct sample *s = &w->b.sample;
    s->tensors[2] = tensor("matrix", 0, LONG + 6, 3, 2);
    s->tensors[3] = tensor("other", 1, 0, COUNTS, 0);
    s->buffers[2] =
        (struct ckpt_buffer){ .name = "half", .dtype = CKPT_BF16, .count = 6, .data = halves };
    s->tensors[0] = tensor("rest", 0, 0, 6, 0);
    s->tensors[4] = tensor("small", 2, 0, 6, 0);
    s->state.buffer_count = 3;
    s->state.tensor_count = 5;
    compare(w);
    assert_int_equal(w->count, TENSORS);
    assert_int_equal(result(w, "matrix")->kind, COMPARE_SHAPE);
    assert_int_equal(result(w, "counts")->kind, COMPARE_ONLY_A);
    assert_int_equal(result(w, "other")->kind, COMPARE_ONLY_B);
    assert_int_equal(result(w, "rest")->kind, COMPARE_ONLY_B);
    assert_int_equal(result(w, "small")->kind, COMPARE_DIFFERS); /* the type does, no value */
    assert_int_equal(result(w, "small")->differing, 0);
}

int main(void)
{
#define COMPARISON(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chunk_of_any_float_is_one_part),
        COMPARISON(what_no_tensor_has_is_compared_too),
        COMPARISON(equal_states_are_equal_in_every_tensor),
        COMPARISON(differences_are_found_on_both_sides_of_every_chunk_s_border),
        COMPARISON(values_that_are_no_numbers_are_counted_apart),
        COMPARISON(whole_numbers_are_compared_as_such),
        COMPARISON(other_shapes_types_and_names_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
