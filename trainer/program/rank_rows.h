/*
 * The newest rows of metrics, on every rank. Rows that rank 0 had not told when its generation
 * ended are told by the next rank 0, since no step is computed again that would bring them back.
 * They keep the time at which they were made; times of phases are left out.
 *
 * Thread: the step thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/limits.h"
#include "session/session.h"

/* Entries [first, count) are kept, n at n modulo the size. All zero: none. Large: memory that is
 * zero costs nothing until rows lie there. */
struct rank_rows {
    uint64_t first, count;
    uint64_t known; /* rows up to this step were acknowledged to this process; 0: none */
    struct session_row rows[LIMIT_METRIC_ROWS];
};

/* Steps ascend, but for one that comes twice. */
void rank_rows_keep(struct rank_rows *rows, const struct session_row *row, int64_t wall_ms);
/* Rows up to that step were acknowledged. */
void rank_rows_known(struct rank_rows *rows, uint64_t step);
/* A generation begins after that step: rows of later steps are forgotten, for those are computed
 * again. */
void rank_rows_begin(struct rank_rows *rows, uint64_t step);
/*
 * Calls tell with each row, ascending, that the coordinator may lack: all beyond
 * what is known to it, by metric_step (0: that is not said) or by this process. Where nothing is
 * said at all: every row if `live`, else none.
 */
void rank_rows_each_lacking(const struct rank_rows *rows, uint64_t metric_step, bool live,
                            void (*tell)(void *arg, const struct session_row *row), void *arg);
