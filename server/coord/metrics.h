/* Rows of metrics, from rank 0 to the journal. */
#pragma once

#include "server/coord/state.h"

/* Takes rows of rank 0, and keeps them until they are journalled. */
void coord_take_rows(struct coord *coord, struct coord_job *job, Cairn__V1__MetricRow *const *rows,
                     size_t count);
/* Notes the loss, throughput and evaluation of a row, which people are shown. */
void coord_show_row(struct coord_job *job, uint64_t step, const Cairn__V1__MetricRow *row);
/* Keeps rows that can't be journalled now: of too many, every second one is dropped. */
void coord_keep_rows(struct coord *coord, struct coord_job *job);
/* Writes the kept rows with this group; then rank 0 may forget them. */
MUST_CHECK enum status coord_record_rows(struct coord *coord, struct coord_job *job);
