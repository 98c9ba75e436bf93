#include "trainer/pipeline/schedule_time.h"

#include <stdbool.h>
#include <stdlib.h>

#include "common/cleanup.h"

/* A row is at a call and then at the action behind it; calls are 0 to count. */
struct clock_row {
    uint32_t at; /* the action behind the call */
    bool has_ended;
    double now;  /* when it came to the call */
    double busy; /* computing */
};

/* [parts * micros] of each part and micro-batch; < 0: not yet. */
struct part_times {
    double *forth, *back;
};

struct run {
    const struct pipeline_table *table;
    const struct pipeline_cost *cost;
    enum pipeline_sends sends;
    struct part_times ready; /* when F, and B or I, was computed */
    struct part_times asked; /* when its worker came to the call before F, and before B or I */
    struct clock_row *rows;
};

static double *time_of(const struct run *run, const struct part_times *times, bool forth,
                       uint32_t part, uint32_t micro)
{
    return (forth ? times->forth : times->back) + (size_t)part * run->table->micros + micro;
}

/* Returns since when the inputs of an action, of its own row and of another one, are there; < 0:
 * they aren't. */
static double inputs_since(const struct run *run, uint32_t stage,
                           const struct pipeline_action *action)
{
    const uint32_t part = pipeline_part(run->table, stage, action->chunk);
    const uint32_t from = pipeline_input(run->table, stage, action);
    const bool forth = action->kind == PIPELINE_F;
    double own = 0, other = 0;
    if (!forth)
        own = *time_of(run, &run->ready, action->kind != PIPELINE_W, part, action->micro);
    if (from != PIPELINE_NOWHERE)
        other = *time_of(run, &run->ready, forth, from, action->micro);
    if (own < 0 || other < 0)
        return -1;
    return own > other ? own : other;
}

/* Returns since when the worker that receives the action's result is there; < 0: it isn't. */
static double receiver_since(const struct run *run, uint32_t row,
                             const struct pipeline_action *action)
{
    const struct pipeline_table *table = run->table;
    const uint32_t to = pipeline_output(table, table->rows[row].stage, action);
    if (to == PIPELINE_NOWHERE || pipeline_owner(table, to, action->micro) == row)
        return 0;
    return *time_of(run, &run->asked, action->kind == PIPELINE_F, to, action->micro);
}

/* Returns when the call that the row is at ends; < 0: that isn't known yet. */
static double call_end(const struct run *run, uint32_t row)
{
    const struct pipeline_row *r = &run->table->rows[row];
    const struct clock_row *c = &run->rows[row];
    double received = 0, sent = 0;
    if (c->at < r->count)
        received = inputs_since(run, r->stage, &r->actions[c->at]);
    if (run->sends == PIPELINE_SENDS_ARE_MET && c->at > 0)
        sent = receiver_since(run, row, &r->actions[c->at - 1]);
    if (received < 0 || sent < 0)
        return -1;
    const double last = received > sent ? received : sent;
    return last > c->now ? last : c->now;
}

static void come_to_call(const struct run *run, uint32_t row)
{
    const struct pipeline_row *r = &run->table->rows[row];
    const struct clock_row *c = &run->rows[row];
    if (c->at == r->count || r->actions[c->at].kind == PIPELINE_W)
        return;
    const struct pipeline_action *next = &r->actions[c->at];
    const uint32_t part = pipeline_part(run->table, r->stage, next->chunk);
    *time_of(run, &run->asked, next->kind == PIPELINE_F, part, next->micro) = c->now;
}

/* The call ends, and what stands behind it is computed. */
static void advance(struct run *run, uint32_t row, double end)
{
    const struct pipeline_row *r = &run->table->rows[row];
    struct clock_row *c = &run->rows[row];
    c->now = end;
    c->has_ended = c->at == r->count;
    if (c->has_ended)
        return;
    const struct pipeline_action *action = &r->actions[c->at++];
    const uint32_t part = pipeline_part(run->table, r->stage, action->chunk);
    c->now += run->cost[r->stage].of[action->kind];
    c->busy += run->cost[r->stage].of[action->kind];
    if (action->kind != PIPELINE_W)
        *time_of(run, &run->ready, action->kind == PIPELINE_F, part, action->micro) = c->now;
    come_to_call(run, row);
}

/* Row by row as far as each comes, again and again until none gets on. */
static bool run_all(struct run *run)
{
    uint32_t ended = 0;
    for (uint32_t r = 0; r < run->table->row_count; r++)
        come_to_call(run, r);
    for (bool moved = true; moved;) {
        moved = false;
        ended = 0;
        for (uint32_t r = 0; r < run->table->row_count; r++) {
            double end = 0;
            while (!run->rows[r].has_ended && (end = call_end(run, r)) >= 0) {
                advance(run, r, end);
                moved = true;
            }
            ended += run->rows[r].has_ended;
        }
    }
    return ended == run->table->row_count;
}

static void read_clock(const struct run *run, struct pipeline_time *out, double *idle)
{
    const uint32_t rows = run->table->row_count;
    double whole = 0, busiest = 0;
    for (uint32_t r = 0; r < rows; r++) {
        whole = run->rows[r].now > whole ? run->rows[r].now : whole;
        busiest = run->rows[r].busy > busiest ? run->rows[r].busy : busiest;
    }
    for (uint32_t r = 0; idle != NULL && r < rows; r++)
        idle[r] = whole - run->rows[r].busy;
    out->whole = whole;
    out->bubble = busiest > 0 ? (whole - busiest) / busiest : 0;
}

enum status pipeline_clock(const struct pipeline_table *table, const struct pipeline_cost *cost,
                           enum pipeline_sends sends, struct pipeline_time *out, double *idle)
{
    const size_t all = (size_t)table->stages * table->chunks * table->micros;
    auto_free double *times = calloc(4 * all, sizeof(*times));
    auto_free struct clock_row *rows = calloc(table->row_count, sizeof(*rows));
    if (times == NULL || rows == NULL)
        return ST_NO_MEMORY;
    for (size_t i = 0; i < 4 * all; i++)
        times[i] = -1;
    struct run run = {
        table, cost, sends, { times, times + all }, { times + 2 * all, times + 3 * all }, rows
    };
    if (!run_all(&run))
        return ST_INVALID;
    read_clock(&run, out, idle);
    return ST_OK;
}
