/* Layouts against brute force: every piece of work is one rank's, and its sender is one rank. */
#include <stdbool.h>
#include <string.h>

#include "comm/reducer_order.h"
#include "common/layout/layout.h"
#include "common/limits.h"
#include "common/rng.h"
#include "tests/test.h"

#define NODES_MAX  12
#define TENSOR_MAX 6
#define LANES_MAX  24
#define STAGES_MAX 4

/* A random layout, with what it points to. */
struct sample {
    struct layout layout;
    struct layout_stage stages[STAGES_MAX];
    uint32_t shares[STAGES_MAX][LANES_MAX], tensor_shares[STAGES_MAX][TENSOR_MAX];
    uint32_t order[STAGES_MAX][LANES_MAX];
    uint64_t key;
    uint32_t drawn;
};

static uint32_t draw(struct sample *s, uint32_t below)
{
    return rng_below(rng_words(s->key, s->drawn++, 0, 0, 0).word[0], below);
}

/* `all` cut into 1 to `all` random parts. */
static uint32_t draw_shares(struct sample *s, uint32_t all, uint32_t *shares)
{
    uint32_t width = 1 + draw(s, all);
    for (uint32_t i = 0; i < width; i++)
        shares[i] = 1;
    for (uint32_t left = all - width; left > 0; left--)
        shares[draw(s, width)]++;
    return width;
}

static void draw_layout(struct sample *s, uint64_t number)
{
    memset(s, 0, sizeof(*s));
    s->key = rng_key(number, RNG_SYNTHETIC);
    s->layout.tensor_lanes = 1 + draw(s, TENSOR_MAX);
    s->layout.lanes = 1 + draw(s, LANES_MAX);
    s->layout.stage_count = 1 + draw(s, STAGES_MAX);
    s->layout.stages = s->stages;
    uint32_t node = 0;
    for (uint32_t i = 0; i < s->layout.stage_count; i++) {
        struct layout_stage *stage = &s->stages[i];
        stage->node_begin = node;
        node += 1 + draw(s, NODES_MAX / STAGES_MAX);
        stage->shares = s->shares[i];
        stage->tensor_shares = s->tensor_shares[i];
        stage->data_width = draw_shares(s, s->layout.lanes, s->shares[i]);
        stage->tensor_width = draw_shares(s, s->layout.tensor_lanes, s->tensor_shares[i]);
        reducer_spread(s->shares[i], stage->data_width, s->order[i]);
    }
    s->layout.nodes = node;
}

/* [node][tensor lane][lane] how many ranks have it; whose it is. */
struct cells {
    uint8_t owners[NODES_MAX][TENSOR_MAX][LANES_MAX];
    uint32_t rank[NODES_MAX][TENSOR_MAX][LANES_MAX];
};

static void mark_box(const struct sample *s, uint32_t rank, struct cells *cells)
{
    const struct layout_box box = layout_box(&s->layout, rank);
    for (uint32_t node = box.node_begin; node < box.node_end; node++) {
        for (uint32_t t = box.tensor_begin; t < box.tensor_end; t++) {
            for (uint32_t at = box.order_begin; at < box.order_end; at++) {
                cells->owners[node][t][s->order[box.stage][at]]++;
                cells->rank[node][t][s->order[box.stage][at]] = rank;
            }
        }
    }
}

static void every_piece_of_work_is_in_one_box(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < 2000; number++) {
        struct sample s;
        struct cells cells = { 0 };
        struct reason reason = { "" };
        draw_layout(&s, number);
        assert_int_equal(layout_check(&s.layout, &reason), ST_OK);
        for (uint32_t r = 0; r < layout_ranks(&s.layout); r++)
            mark_box(&s, r, &cells);
        for (uint32_t node = 0; node < NODES_MAX; node++) {
            for (uint32_t i = 0; i < TENSOR_MAX * LANES_MAX; i++) {
                const uint32_t t = i / LANES_MAX, lane = i % LANES_MAX;
                const bool inside =
                    node < s.layout.nodes && t < s.layout.tensor_lanes && lane < s.layout.lanes;
                assert_int_equal(cells.owners[node][t][lane], inside);
            }
        }
    }
}

/* Ranks go through stages, then tensor ranges, then shares, and a data group lies side by side. */
static void ranks_are_numbered_by_stage_tensor_data(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < 500; number++) {
        struct sample s;
        uint32_t rank = 0;
        draw_layout(&s, number);
        for (uint32_t i = 0; i < s.layout.stage_count; i++) {
            const uint32_t width = s.stages[i].data_width;
            assert_int_equal(layout_first_rank(&s.layout, i), rank);
            for (uint32_t at = 0; at < s.stages[i].tensor_width * width; at++, rank++) {
                const struct layout_box box = layout_box(&s.layout, rank);
                assert_int_equal(box.stage, i);
                assert_int_equal(box.tensor, at / width);
                assert_int_equal(box.data, at % width);
                assert_int_equal(box.data_group_first, rank - at % width);
                assert_int_equal(box.data_group_size, width);
            }
        }
        assert_int_equal(layout_ranks(&s.layout), rank);
    }
}

static void refused(const struct layout *layout, const char *why)
{
    struct reason reason = { "" };
    assert_int_equal(layout_check(layout, &reason), ST_INVALID);
    assert_string_equal(reason.text, why);
}

static void what_is_no_tiling_is_refused(void **state)
{
    (void)state;
    static uint32_t ones[LIMIT_RANKS + 1];
    for (uint32_t i = 0; i <= LIMIT_RANKS; i++)
        ones[i] = 1;
    const uint32_t one[] = { 1 }, all[] = { 8 }, two[] = { 5, 3 }, none[] = { 8, 0 };
    const uint32_t huge[] = { UINT32_MAX, 9 };
    struct layout_stage stages[] = { { 0, 1, 1, one, all }, { 4, 1, 2, one, two } };
    struct layout layout = { 9, 1, 8, 2, stages };
    struct reason reason = { "" };
    assert_int_equal(layout_check(&layout, &reason), ST_OK);
    layout.nodes = 4;
    refused(&layout, "stage 1 begins at node 4 of 4: it has no nodes");
    layout.nodes = 9;
    stages[1].node_begin = 0;
    refused(&layout, "stage 1 begins at node 0, but stage 0 at 0: it has no nodes");
    stages[0].node_begin = 1;
    refused(&layout, "stage 0 begins at node 1: nodes before it are nobody's");
    stages[0].node_begin = 0;
    stages[1].node_begin = 4;
    stages[1].shares = none;
    refused(&layout, "stage 1, share 1 has none of the lanes");
    stages[1].shares = huge; /* 8, if it wrapped around */
    refused(&layout, "the shares of stage 1 add up to 4294967304 lanes, not 8");
    stages[1].shares = two;
    layout.tensor_lanes = 2;
    refused(&layout, "the shares of stage 0 add up to 1 tensor lanes, not 2");
    layout.tensor_lanes = 1;
    stages[1].data_width = 0;
    refused(&layout, "stage 1 is cut into 0 shares of the lanes: 1 to 1024 are possible");
    stages[1].data_width = LIMIT_RANKS;
    stages[1].shares = ones;
    layout.lanes = LIMIT_RANKS;
    stages[0].shares = &layout.lanes;
    refused(&layout, "1025 workers, more than 1024");
    layout.lanes = LIMIT_LANES + 1;
    refused(&layout, "4097 lanes, more than 4096");
    layout.stage_count = LIMIT_STAGES + 1;
    refused(&layout, "65 stages: 1 to 64 are possible");
    layout.stage_count = 0;
    refused(&layout, "0 stages: 1 to 64 are possible");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_piece_of_work_is_in_one_box),
        cmocka_unit_test(ranks_are_numbered_by_stage_tensor_data),
        cmocka_unit_test(what_is_no_tiling_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
