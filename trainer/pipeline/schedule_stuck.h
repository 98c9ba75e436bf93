/*
 * Reach of a table, without time: for the checker. Linear in its actions.
 */
#pragma once

#include "trainer/pipeline/schedule.h"

/* The end of a row, or the action where it is stuck. */
struct pipeline_reach {
    uint32_t at;    /* the action that it doesn't get to; `count`: none, it ends */
    uint32_t waits; /* for which row; PIPELINE_NOWHERE: it ends */
};

/*
 * reach: [row_count]. The table's numbers are in range and each action is there once at most.
 * Memory: some while it runs. Errors: ST_NO_MEMORY.
 */
MUST_CHECK enum status pipeline_reach(const struct pipeline_table *table, enum pipeline_sends sends,
                                      struct pipeline_reach *reach);
