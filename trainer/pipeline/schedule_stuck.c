#include "trainer/pipeline/schedule_stuck.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/cleanup.h"

/*
 * Rows that may get on wait in a ring. A row runs until something is missing; whoever could bring
 * it puts the row into the ring again. Every action puts at most two rows there: it is linear.
 */
struct run {
    const struct pipeline_table *table;
    enum pipeline_sends sends;
    uint32_t *forth, *back; /* [parts * micros] where F, and where B or I, stands in its row */
    uint32_t *at;           /* [row_count] started: the next action; met: the call before it */
    uint32_t *ring;         /* [row_count] */
    bool *is_waiting;       /* [row_count] in the ring */
    uint32_t head, waiting;
};

static uint32_t ring_place(const struct run *run, uint32_t after_head)
{
    const uint32_t at = run->head + after_head, size = run->table->row_count;
    return at < size ? at : at - size;
}

static void wake(struct run *run, uint32_t row)
{
    if (run->is_waiting[row])
        return;
    run->is_waiting[row] = true;
    run->ring[ring_place(run, run->waiting++)] = row;
}

static uint32_t next_waiting(struct run *run)
{
    const uint32_t row = run->ring[run->head];
    run->head = ring_place(run, 1);
    run->waiting--;
    run->is_waiting[row] = false;
    return row;
}

static uint32_t *place_of(const struct run *run, bool forth, uint32_t part, uint32_t micro)
{
    return (forth ? run->forth : run->back) + (size_t)part * run->table->micros + micro;
}

static void find_places(struct run *run)
{
    const struct pipeline_table *table = run->table;
    const size_t all = (size_t)table->stages * table->chunks * table->micros;
    memset(run->forth, 0xff, all * sizeof(*run->forth)); /* PIPELINE_NOWHERE */
    memset(run->back, 0xff, all * sizeof(*run->back));
    for (uint32_t r = 0; r < table->row_count; r++) {
        const struct pipeline_row *row = &table->rows[r];
        for (uint32_t i = 0; i < row->count; i++) {
            const struct pipeline_action *action = &row->actions[i];
            const uint32_t part = pipeline_part(table, row->stage, action->chunk);
            if (action->kind != PIPELINE_W)
                *place_of(run, action->kind == PIPELINE_F, part, action->micro) = i;
        }
    }
}

/* The row of `part` that `action` of row r has to do with, if it has come less far than `calls`
 * beyond the place of the matching action; PIPELINE_NOWHERE: it has, or there is no such part. */
static uint32_t behind(const struct run *run, const struct pipeline_action *action, uint32_t part,
                       uint32_t calls)
{
    if (part == PIPELINE_NOWHERE)
        return PIPELINE_NOWHERE;
    const uint32_t row = pipeline_owner(run->table, part, action->micro);
    const uint32_t place = *place_of(run, action->kind == PIPELINE_F, part, action->micro);
    const bool is_there = place != PIPELINE_NOWHERE && run->at[row] >= place + calls;
    return is_there ? PIPELINE_NOWHERE : row;
}

/* Returns the row for which row r waits; PIPELINE_NOWHERE: it can get on. */
static uint32_t waits_for(const struct run *run, uint32_t r)
{
    const struct pipeline_table *table = run->table;
    const struct pipeline_row *row = &table->rows[r];
    const uint32_t at = run->at[r];
    uint32_t who = PIPELINE_NOWHERE;
    if (at < row->count) {
        const struct pipeline_action *next = &row->actions[at];
        who = behind(run, next, pipeline_input(table, row->stage, next), 1);
    }
    if (run->sends == PIPELINE_SENDS_ARE_MET && at > 0 && who == PIPELINE_NOWHERE) {
        const struct pipeline_action *last = &row->actions[at - 1];
        const uint32_t part = pipeline_output(table, row->stage, last);
        if (part == PIPELINE_NOWHERE || pipeline_owner(table, part, last->micro) != r)
            who = behind(run, last, part, 0);
    }
    return who;
}

static void wake_owner(struct run *run, const struct pipeline_action *action, uint32_t part)
{
    if (part != PIPELINE_NOWHERE)
        wake(run, pipeline_owner(run->table, part, action->micro));
}

/* Wakes all rows that may have waited for that row to come to where it is now. */
static void wake_partners(struct run *run, uint32_t r)
{
    const struct pipeline_table *table = run->table;
    const struct pipeline_row *row = &table->rows[r];
    const struct pipeline_action *last = &row->actions[run->at[r] - 1];
    wake_owner(run, last, pipeline_output(table, row->stage, last));
    if (run->sends == PIPELINE_SENDS_ARE_MET && run->at[r] < row->count) {
        const struct pipeline_action *next = last + 1;
        wake_owner(run, next, pipeline_input(table, row->stage, next));
    }
}

/* Started: a row is at its next action. Met: it has come to the call before that; after its last
 * action one more call is left, and a row is through with it at count + 1. */
static void run_all(struct run *run)
{
    const uint32_t calls = run->sends == PIPELINE_SENDS_ARE_MET ? 1 : 0;
    for (uint32_t r = 0; r < run->table->row_count; r++)
        wake(run, r);
    while (run->waiting > 0) {
        const uint32_t r = next_waiting(run);
        const uint32_t end = run->table->rows[r].count + calls;
        while (run->at[r] < end && waits_for(run, r) == PIPELINE_NOWHERE) {
            run->at[r]++;
            if (run->at[r] <= run->table->rows[r].count)
                wake_partners(run, r);
        }
    }
}

enum status pipeline_reach(const struct pipeline_table *table, enum pipeline_sends sends,
                           struct pipeline_reach *reach)
{
    const size_t all = (size_t)table->stages * table->chunks * table->micros;
    const size_t rows = table->row_count;
    CHECK(rows > 0);
    CHECK(all > 0);
    auto_free uint32_t *forth = calloc(all, sizeof(*forth));
    auto_free uint32_t *back = calloc(all, sizeof(*back));
    auto_free uint32_t *at = calloc(rows, sizeof(*at));
    auto_free uint32_t *ring = calloc(rows, sizeof(*ring));
    auto_free bool *is_waiting = calloc(rows, sizeof(*is_waiting));
    if (forth == NULL || back == NULL || at == NULL || ring == NULL || is_waiting == NULL)
        return ST_NO_MEMORY;
    struct run run = { table, sends, forth, back, at, ring, is_waiting, 0, 0 };
    find_places(&run);
    run_all(&run);
    const uint32_t calls = sends == PIPELINE_SENDS_ARE_MET ? 1 : 0;
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t count = table->rows[r].count;
        const bool ends = at[r] == count + calls;
        CHECK(ends || waits_for(&run, r) != PIPELINE_NOWHERE);
        reach[r].at = at[r] < count ? at[r] : count;
        reach[r].waits = ends ? PIPELINE_NOWHERE : waits_for(&run, r);
    }
    return ST_OK;
}
