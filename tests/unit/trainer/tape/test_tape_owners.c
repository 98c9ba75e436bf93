/* The owners of the lane vector: a parameter and its ties have the same owner, and all own alike
 * much. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"
#include "trainer/models/models.h"
#include "trainer/tape/lane.h"
#include "trainer/tape/lane_owners.h"
#include "trainer/update/owners.h"

#define CHUNK     ((size_t)262144) /* float32 in a chunk of a checkpoint */
#define RANKS_MAX 8

/* A tape cut for a number of ranks. */
struct cut {
    struct tape *tape;
    struct lane_layout layout;
    size_t unit;
    uint32_t size;
    size_t begin[LANE_BUCKETS_MAX + 1]; /* the vector's end follows the last */
    struct lane_owned buckets;
    size_t *borders; /* [buckets.count][size + 1] */
};

static struct cut *cut_new(struct tape *tape, size_t unit, size_t wanted, uint32_t size)
{
    struct cut *cut = calloc(1, sizeof(*cut));
    assert_non_null(cut);
    cut->tape = tape;
    cut->layout = lane_layout(tape);
    cut->unit = unit;
    cut->size = size;
    assert_int_equal(
        lane_owned_buckets(tape, unit, wanted, cut->begin, LANE_BUCKETS_MAX, &cut->buckets), ST_OK);
    cut->begin[cut->buckets.count] = cut->layout.count;
    cut->borders = calloc(cut->buckets.count * (size + 1), sizeof(*cut->borders));
    assert_non_null(cut->borders);
    lane_owners(tape, unit, cut->begin, &cut->buckets, size, cut->borders);
    return cut;
}

static void cut_free(struct cut *cut)
{
    free(cut->borders);
    free(cut);
}

static struct tape *gpt2(int64_t layers, int64_t embed, int64_t vocab)
{
    struct model_options options = { .arch = "gpt2",
                                     .layers = layers,
                                     .heads = embed == 0 ? 0 : 4,
                                     .embed = embed,
                                     .vocab = vocab };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

static struct tape *untied(const char *arch)
{
    struct model_options options = {
        .arch = arch, .channels = 1, .height = 28, .width = 28, .classes = 10, .hidden = 256
    };
    struct tape *tape = NULL;
    assert_int_equal(model_build(&options, &tape), ST_OK);
    return tape;
}

/* A parameter in the middle with two further readers, and one at the start with one. */
static struct tape *tied_thrice(void)
{
    struct tape *tape = NULL;
    assert_int_equal(tape_new(&tape), ST_OK);
    int tokens = tape_input(tape, DTYPE_I32, 2, (int64_t[]){ 1, 8 });
    int labels = tape_input(tape, DTYPE_I32, 2, (int64_t[]){ 1, 8 });
    const struct tape_embedding embedding = {
        .token = "wte", .position = "wpe", .vocab = 31, .context = 8, .out = 24, .std = 0.02f
    };
    int x = tape_embedding(tape, tokens, &embedding);
    struct tape_linear linear = { .out = 24, .bias = true };
    x = tape_linear(tape, "mid", x, &linear);
    linear.tied = "mid.weight";
    x = tape_linear(tape, "again", x, &linear);
    x = tape_linear(tape, "and_again", x, &linear);
    linear = (struct tape_linear){ .out = 31, .tied = "wte.weight" };
    x = tape_linear(tape, "head", x, &linear);
    assert_true(tape_loss(tape, x, labels, 0) >= 0);
    assert_int_equal(tape_finish(tape), ST_OK);
    assert_int_equal(tape->tie_count, 3);
    return tape;
}

static bool is_begin_of_params(const struct cut *cut, size_t element)
{
    for (size_t b = 0; b < cut->buckets.params; b++) {
        if (cut->begin[b] == element)
            return true;
    }
    return false;
}

/* Parameters at multiples of the unit; each tie as its parameter, no cut left out; the rest. */
static void check_buckets(const struct cut *cut)
{
    const struct tape *tape = cut->tape;
    size_t b = 0;
    assert_int_equal(cut->begin[0], 0);
    for (size_t i = 0; i < cut->buckets.count; i++)
        assert_true(cut->begin[i] < cut->begin[i + 1]);
    for (; b < cut->buckets.params; b++)
        assert_int_equal(cut->begin[b] % cut->unit, 0);
    assert_int_equal(cut->begin[b], tape->param_elements);
    for (int t = 0; t < tape->tie_count; t++) {
        const struct tape_tensor *param = &tape->params[tape->ties[t].param];
        const size_t at = cut->layout.tie_at + tape->ties[t].offset;
        for (size_t e = 0; e < param->count; e++) {
            const bool begins = b < cut->buckets.kept && cut->begin[b] == at + e;
            assert_true(begins == (e == 0 || is_begin_of_params(cut, param->offset + e)));
            b += begins;
        }
    }
    assert_int_equal(b, cut->buckets.kept);
    assert_int_equal(cut->begin[b], cut->layout.stat_at);
    assert_int_equal(cut->buckets.count, b + 1);
}

/* owner: [layout.count] of each element; every bucket is covered by its chunks, rank after rank. */
static void mark_owners(const struct cut *cut, uint8_t *owner)
{
    memset(owner, 0xff, cut->layout.count);
    for (size_t b = 0; b < cut->buckets.count; b++) {
        const size_t *row = cut->borders + b * (cut->size + 1);
        assert_int_equal(row[0], cut->begin[b]);
        assert_int_equal(row[cut->size], cut->begin[b + 1]);
        for (uint32_t r = 0; r < cut->size; r++) {
            assert_true(row[r] <= row[r + 1]);
            memset(owner + row[r], (int)r, row[r + 1] - row[r]);
            const bool inner = b < cut->buckets.params && row[r + 1] < cut->begin[b + 1];
            assert_true(!inner || row[r + 1] % cut->unit == 0);
        }
    }
}

static void check_owners(struct tape *tape, size_t unit, size_t wanted, uint32_t size)
{
    struct cut *cut = cut_new(tape, unit, wanted, size);
    uint8_t *owner = malloc(cut->layout.count);
    assert_non_null(owner);
    check_buckets(cut);
    mark_owners(cut, owner);
    for (int t = 0; t < tape->tie_count; t++) {
        const struct tape_tensor *param = &tape->params[tape->ties[t].param];
        const uint8_t *tie = owner + cut->layout.tie_at + tape->ties[t].offset;
        assert_memory_equal(tie, owner + param->offset, param->count);
    }
    free(owner);
    cut_free(cut);
}

static void who_owns_elements_of_a_parameter_owns_those_of_its_ties(void **state)
{
    (void)state;
    struct tape *tapes[] = { gpt2(2, 32, 31), gpt2(1, 64, 997), tied_thrice(),
                             untied("mlp"),   untied("lenet"),  untied("resnet18") };
    const size_t units[] = { 16, 100, 1000, PIECE_ELEMENTS };
    for (size_t i = 0; i < sizeof(tapes) / sizeof(tapes[0]); i++) {
        for (size_t u = 0; u < 4; u++) {
            if (tapes[i]->param_elements / units[u] / 16 >= LANE_BUCKETS_MAX / 2)
                continue;
            for (uint32_t size = 1; size <= RANKS_MAX; size++) {
                check_owners(tapes[i], units[u], 16 * units[u], size);
                check_owners(tapes[i], units[u], tapes[i]->param_elements, size);
            }
        }
        tape_free(tapes[i]);
    }
}

/* Returns a rank's share of the parameters, in elements. */
static size_t share_of(const struct cut *cut, uint32_t rank)
{
    size_t share = 0;
    for (size_t b = 0; b < cut->buckets.params; b++) {
        const size_t *row = cut->borders + b * (cut->size + 1);
        share += row[rank + 1] - row[rank];
    }
    return share;
}

static void check_shares(struct tape *tape, size_t unit, size_t wanted, uint32_t size)
{
    struct cut *cut = cut_new(tape, unit, wanted, size);
    const double even = (double)tape->param_elements / size;
    const double off = (double)unit > 0.01 * even ? (double)unit : 0.01 * even;
    size_t least = SIZE_MAX, most = 0;
    for (uint32_t r = 0; r < size; r++) {
        const size_t share = share_of(cut, r);
        assert_true((double)share >= even - off && (double)share <= even + off);
        least = share < least ? share : least;
        most = share > most ? share : most;
    }
    assert_true(most - least <= unit);
    cut_free(cut);
}

static void shares_are_even(void **state)
{
    (void)state;
    struct tape *large = gpt2(0, 0, 0), *small = gpt2(2, 32, 31);
    assert_int_equal(large->param_elements, 124439808);
    for (uint32_t size = 2; size <= RANKS_MAX; size++) {
        check_shares(large, CHUNK, 16 * CHUNK, size);
        check_shares(small, 100, 1600, size);
        for (size_t unit = 16; unit < small->param_elements; unit = unit * 3 / 2)
            check_shares(small, unit, 4 * unit, size);
    }
    tape_free(large);
    tape_free(small);
}

static void buckets_of_gpt2_grow_from_one_chunk_to_sixteen(void **state)
{
    (void)state;
    struct tape *tape = gpt2(0, 0, 0);
    struct cut *cut = cut_new(tape, CHUNK, 16 * CHUNK, 3);
    for (size_t b = 0; b + 1 < cut->buckets.params; b++) {
        const size_t chunks = b < 4 ? (size_t)1 << b : 16;
        assert_int_equal(cut->begin[b + 1] - cut->begin[b], chunks * CHUNK);
    }
    /* The embedding begins at 0, so its tie has the same sizes. */
    const size_t params = cut->buckets.params;
    for (size_t b = params; b + 1 < cut->buckets.kept; b++) {
        assert_int_equal(cut->begin[b + 1] - cut->begin[b],
                         cut->begin[b - params + 1] - cut->begin[b - params]);
    }
    assert_true(cut->buckets.kept > params + 8);
    cut_free(cut);
    tape_free(tape);
}

static void more_buckets_than_there_is_room_for_are_refused(void **state)
{
    (void)state;
    struct tape *tape = tied_thrice();
    size_t begin[64];
    struct lane_owned buckets;
    assert_int_equal(lane_owned_buckets(tape, 100, 400, begin, 64, &buckets), ST_OK);
    const size_t count = buckets.count;
    assert_true(buckets.params < buckets.kept && buckets.kept < count && count <= 64);
    for (size_t room = 0; room < count; room++)
        assert_int_equal(lane_owned_buckets(tape, 100, 400, begin, room, &buckets), ST_FULL);
    assert_int_equal(lane_owned_buckets(tape, 100, 400, begin, count, &buckets), ST_OK);
    tape_free(tape);
}

/* The sizes go up to models whose buckets are what they were, and beyond. */
static void a_rank_of_however_large_a_model_has_runs_that_a_share_has_room_for(void **state)
{
    (void)state;
    static const size_t sizes[] = { 1,
                                    124000000,
                                    774000000,
                                    (LANE_OWNED_BUCKETS_MAX - 20) * LANE_BUCKET_ELEMENTS - 1,
                                    (LANE_OWNED_BUCKETS_MAX - 20) * LANE_BUCKET_ELEMENTS,
                                    7000000000,
                                    70000000000,
                                    1000000000000 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct tape tape = { .param_elements = sizes[i] };
        const size_t wanted = lane_wanted(sizes[i], LANE_OWNED_BUCKETS_MAX);
        assert_true(wanted == LANE_BUCKET_ELEMENTS || i >= 4);
        assert_true(wanted > LANE_BUCKET_ELEMENTS || i < 4);
        for (size_t unit = CHUNK; unit <= 2 * CHUNK; unit += CHUNK) {
            for (uint32_t size = 2; size <= RANKS_MAX; size *= 2) {
                struct cut *cut = cut_new(&tape, unit, wanted, size);
                struct owners owners = { .size = 0 };
                assert_true(cut->buckets.params <= LANE_OWNED_BUCKETS_MAX);
                assert_int_equal(
                    owners_make(cut->borders, cut->buckets.params, sizes[i], 0, size, &owners),
                    ST_OK);
                for (uint32_t r = 0; r < size; r++)
                    assert_true(JOBSPEC_MOMENTS_MAX * (owners.begin[r + 1] - owners.begin[r]) + 2 <=
                                CKPT_EXTENTS_MAX);
                owners_release(&owners);
                cut_free(cut);
            }
        }
    }
}

/* Whether a rank's share of AdamW's state, with moments that it owns, has a report that fits a
 * message. */
static enum status share_fits(const struct owners *owners, const struct ckpt_state *state,
                              uint32_t rank, uint32_t size)
{
    static struct ckpt_share share, out;
    struct ckpt_state shared = *state;
    share.count = 0;
    enum status st = ckpt_share_even(state, 3, rank, size, &share);
    for (uint32_t moment = 2; st == ST_OK && moment < 4; moment++) {
        for (uint32_t i = owners->begin[rank]; st == ST_OK && i < owners->begin[rank + 1]; i++) {
            const struct owned_extent *extent = &owners->extent[i];
            st = ckpt_share_add(state, moment, extent->first, extent->count, &share);
        }
    }
    shared.share = &share;
    return st == ST_OK ? ckpt_share_of(&shared, rank, size, &out) : st;
}

static void check_reports(size_t params, size_t unit, uint32_t size)
{
    struct tape tape = { .param_elements = params };
    struct cut *cut = cut_new(&tape, unit, lane_wanted(params, LANE_OWNED_BUCKETS_MAX), size);
    const struct ckpt_buffer buffers[] = {
        { .name = "params", .dtype = CKPT_F32, .count = params },
        { .name = "stats", .dtype = CKPT_F32, .count = 1000000 },
        { .name = "first", .dtype = CKPT_F32, .count = params },
        { .name = "second", .dtype = CKPT_F32, .count = params },
    };
    const struct ckpt_state state = { .buffers = buffers, .buffer_count = 4 };
    struct owners owners = { .size = 0 };
    assert_int_equal(owners_make(cut->borders, cut->buckets.params, params, 0, size, &owners),
                     ST_OK);
    size_t least = SIZE_MAX, largest = 0;
    for (uint32_t r = 0; r < size; r++) {
        if (share_fits(&owners, &state, r, size) != ST_OK)
            fail_msg("rank %u of %u with %zu parameters in units of %zu", r, size, params, unit);
        const size_t share = share_of(cut, r);
        least = share < least ? share : least;
        largest = share > largest ? share : largest;
    }
    assert_true(largest - least <= unit + LANE_OWNED_BRANCH);
    owners_release(&owners);
    cut_free(cut);
}

/* Up to shares of LIMIT_SHARE_BYTES: 12 bytes for each parameter, dealt out. */
static void a_share_of_any_size_has_a_report_that_fits_a_message(void **state)
{
    (void)state;
    for (uint32_t size = 2; size <= 16; size++) {
        const size_t most = (size_t)(LIMIT_SHARE_BYTES / 12) * size - size * (2 * CHUNK + 1000000);
        for (size_t unit = CHUNK; unit <= 2 * CHUNK; unit += CHUNK) {
            for (size_t params = 500000000; params < most; params = params / 100 * 109 + 12345)
                check_reports(params, unit, size);
            check_reports(most, unit, size);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_owns_elements_of_a_parameter_owns_those_of_its_ties),
        cmocka_unit_test(shares_are_even),
        cmocka_unit_test(buckets_of_gpt2_grow_from_one_chunk_to_sixteen),
        cmocka_unit_test(more_buckets_than_there_is_room_for_are_refused),
        cmocka_unit_test(a_rank_of_however_large_a_model_has_runs_that_a_share_has_room_for),
        cmocka_unit_test(a_share_of_any_size_has_a_report_that_fits_a_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
