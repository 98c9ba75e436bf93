#include "tests/unit/trainer/pipeline/pipeline_fixture.h"

#include <string.h>

#include "comm/reducer_order.h"
#include "common/rng.h"
#include "tests/test.h"

static const uint32_t one_range[] = { 1 };

uint32_t chance_below(struct chance *chance, uint32_t below)
{
    return rng_below(rng_words(chance->key, chance->drawn++, 0, 0, 0).word[0], below);
}

/* A node each, and the lanes of its shares. */
static void lay_out(struct fixture *f, uint32_t stages, uint32_t lanes)
{
    f->layout = (struct layout){ stages, 1, lanes, stages, f->stages };
    for (uint32_t s = 0; s < stages; s++) {
        f->stages[s].node_begin = s;
        f->stages[s].tensor_width = 1;
        f->stages[s].tensor_shares = one_range;
        f->stages[s].shares = f->shares[s];
        reducer_spread(f->shares[s], f->stages[s].data_width, f->order[s]);
        f->orders[s] = f->order[s];
    }
    struct reason reason = { "" };
    assert_int_equal(layout_check(&f->layout, &reason), ST_OK);
}

void fixture_even(struct fixture *f, uint32_t stages, uint32_t lanes, const uint32_t *widths)
{
    memset(f, 0, sizeof(*f));
    for (uint32_t s = 0; s < stages; s++) {
        f->stages[s].data_width = widths[s];
        for (uint32_t lane = 0; lane < lanes; lane++)
            f->shares[s][lane % widths[s]]++;
    }
    lay_out(f, stages, lanes);
}

void fixture_random(struct fixture *f, struct chance *chance, uint32_t stages, uint32_t lanes)
{
    memset(f, 0, sizeof(*f));
    for (uint32_t s = 0; s < stages; s++) {
        const uint32_t width = 1 + chance_below(chance, lanes);
        f->stages[s].data_width = width;
        for (uint32_t i = 0; i < lanes; i++)
            f->shares[s][i < width ? i : chance_below(chance, width)]++;
    }
    lay_out(f, stages, lanes);
}

void fixture_table_for(struct fixture *f, enum pipeline_schedule schedule, uint32_t chunks,
                       uint32_t accumulate, enum pipeline_sends sends)
{
    struct reason reason = { "" };
    f->options = (struct pipeline_options){ .schedule = schedule,
                                            .chunks = chunks,
                                            .accumulate = accumulate,
                                            .layout = &f->layout,
                                            .orders = f->orders,
                                            .sends = sends };
    assert_int_equal(pipeline_table_init(&f->table, &f->options, &reason), ST_OK);
}

void fixture_table(struct fixture *f, enum pipeline_schedule schedule, uint32_t chunks,
                   uint32_t accumulate)
{
    fixture_table_for(f, schedule, chunks, accumulate, PIPELINE_SENDS_ARE_STARTED);
}

void fixture_meets(struct fixture *f, enum pipeline_schedule schedule, uint32_t stages,
                   uint32_t chunks, uint32_t micros)
{
    fixture_plain(f, schedule, stages, chunks, micros);
    fixture_release(f);
    fixture_table_for(f, schedule, chunks, 1, PIPELINE_SENDS_ARE_MET);
}

void fixture_plain(struct fixture *f, enum pipeline_schedule schedule, uint32_t stages,
                   uint32_t chunks, uint32_t micros)
{
    static const uint32_t single[FIXTURE_STAGES_MAX] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    fixture_even(f, stages, micros, single);
    fixture_table(f, schedule, chunks, 1);
}

void fixture_release(struct fixture *f)
{
    pipeline_table_release(&f->table);
}
