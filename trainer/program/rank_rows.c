#include "trainer/program/rank_rows.h"

#include <string.h>

void rank_rows_keep(struct rank_rows *rows, const struct session_row *row, int64_t wall_ms)
{
    struct session_row *kept = &rows->rows[rows->count++ % LIMIT_METRIC_ROWS];
    if (rows->count - rows->first > LIMIT_METRIC_ROWS)
        rows->first++; /* the oldest goes */
    *kept = *row;
    kept->wall_ms = wall_ms;
    memset(kept->phase, 0, sizeof(kept->phase));
    kept->phase_count = 0;
}

void rank_rows_known(struct rank_rows *rows, uint64_t step)
{
    if (step > rows->known)
        rows->known = step;
}

void rank_rows_begin(struct rank_rows *rows, uint64_t step)
{
    while (rows->count > rows->first &&
           rows->rows[(rows->count - 1) % LIMIT_METRIC_ROWS].step > step)
        rows->count--;
    if (rows->known > step)
        rows->known = step;
}

void rank_rows_each_lacking(const struct rank_rows *rows, uint64_t metric_step, bool live,
                            void (*tell)(void *arg, const struct session_row *row), void *arg)
{
    const uint64_t known = metric_step > rows->known ? metric_step : rows->known;
    for (uint64_t n = rows->first; (live || known > 0) && n < rows->count; n++) {
        const struct session_row *row = &rows->rows[n % LIMIT_METRIC_ROWS];
        if (row->step > known)
            tell(arg, row);
    }
}
