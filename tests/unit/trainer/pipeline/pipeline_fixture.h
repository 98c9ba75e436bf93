/*
 * Tables for tests: of one worker a stage, and of random layouts.
 */
#pragma once

#include <stdint.h>

#include "trainer/pipeline/schedule.h"

#define FIXTURE_STAGES_MAX 8
#define FIXTURE_LANES_MAX  64

/* A table, with the layout that it was made from. */
struct fixture {
    struct pipeline_table table;
    struct pipeline_options options;
    struct layout layout;
    struct layout_stage stages[FIXTURE_STAGES_MAX];
    uint32_t shares[FIXTURE_STAGES_MAX][FIXTURE_LANES_MAX];
    uint32_t order[FIXTURE_STAGES_MAX][FIXTURE_LANES_MAX];
    const uint32_t *orders[FIXTURE_STAGES_MAX];
};

/* Random numbers of a test. */
struct chance {
    uint64_t key;
    uint32_t drawn;
};
uint32_t chance_below(struct chance *chance, uint32_t below);

/* Layouts only, for fixture_table: `widths` workers a stage with shares as equal as can be, or
 * random ones. */
void fixture_even(struct fixture *f, uint32_t stages, uint32_t lanes, const uint32_t *widths);
void fixture_random(struct fixture *f, struct chance *chance, uint32_t stages, uint32_t lanes);

/* Fails the test where the table can't be made. */
void fixture_table(struct fixture *f, enum pipeline_schedule schedule, uint32_t chunks,
                   uint32_t accumulate);
void fixture_table_for(struct fixture *f, enum pipeline_schedule schedule, uint32_t chunks,
                       uint32_t accumulate, enum pipeline_sends sends);
/* One worker a stage, one micro-batch a lane. */
void fixture_plain(struct fixture *f, enum pipeline_schedule schedule, uint32_t stages,
                   uint32_t chunks, uint32_t micros);
/* Like fixture_plain, for sends that are met. */
void fixture_meets(struct fixture *f, enum pipeline_schedule schedule, uint32_t stages,
                   uint32_t chunks, uint32_t micros);
void fixture_release(struct fixture *f);
