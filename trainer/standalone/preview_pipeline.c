#include "trainer/standalone/preview_pipeline.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/reducer_order.h"
#include "common/check.h"
#include "common/cleanup.h"
#include "common/layout/layout.h"
#include "common/limits.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/pipeline/schedule_check.h"
#include "trainer/pipeline/schedule_time.h"
#include "trainer/stage/stage.h"
#include "trainer/tape/tape_cuts.h"

#define BUBBLE_MAX  0.3  /* more is told */
#define LESS_MIN    0.05 /* of a bubble that is worth other memory */
#define WAITING_MAX (BUBBLE_MAX / (1 + BUBBLE_MAX))
#define TRIES_MAX   12 /* of other numbers, each */
#define NAMED_MAX   16 /* stages that are told one by one */

static const uint32_t one_lane[] = { 1 }; /* of tensors */

/* A pipeline with so many lanes and micro-batches. */
struct variant {
    uint32_t lanes, accumulate;
    uint32_t shares[LIMIT_RANKS];
};

struct cut {
    const struct preview_pipeline *of;
    struct jobspec_layout job; /* for all its workers */
    enum pipeline_schedule schedule;
    uint32_t chunks, parts; /* of a stage, of the model */
    int first[STAGE_PARTS_MAX];
    double cost[LIMIT_STAGES], whole; /* of all chunks of a stage */
};

struct bubble {
    double bubble;        /* of the worker that computes longest */
    double waiting;       /* of all workers' time */
    uint32_t least, most; /* micro-batches of a worker */
};

/* ---- where it is cut ---- */

/* Refuses a node that is no cut, and names the cuts before and after it. */
static enum status refuse_cut(const struct tape *tape, uint32_t node, struct reason *reason)
{
    const uint32_t nodes = (uint32_t)tape->node_count;
    uint32_t before = node < nodes ? node : nodes - 1, after = node;
    char places[64] = "";
    while (before > 0 && !tape_is_cut(tape, (int)before))
        before--;
    while (after < nodes && !tape_is_cut(tape, (int)after))
        after++;
    if (after >= nodes && before == 0) {
        (void)snprintf(places, sizeof(places), ", nor anywhere else");
    } else if (after >= nodes) {
        (void)snprintf(places, sizeof(places), "; the last place is before %u", before);
    } else if (before > 0) {
        (void)snprintf(places, sizeof(places), "; it can before %u and %u", before, after);
    } else {
        (void)snprintf(places, sizeof(places), "; it can before %u", after);
    }
    reason_set(reason, "parallel.pipeline: the model can't be cut before node %u%s", node, places);
    return ST_CONFIG;
}

static enum status check_cuts(const struct cut *c, struct reason *reason)
{
    const struct tape *tape = c->of->tape;
    for (uint32_t s = 1; s < c->job.stage_count; s++) {
        const uint32_t node = c->job.first_node[s];
        if (node >= (uint32_t)tape->node_count || !tape_is_cut(tape, (int)node))
            return refuse_cut(tape, node, reason);
    }
    return ST_OK;
}

/* Cuts the model so that stages cost alike; where the costs aren't known, all nodes count the
 * same. */
static enum status choose_cuts(struct cut *c, struct reason *reason)
{
    const struct tape *tape = c->of->tape;
    const int parts = (int)c->parts;
    int possible = 0;
    auto_free double *alike = calloc((size_t)tape->node_count, sizeof(*alike));
    if (alike == NULL)
        return ST_NO_MEMORY;
    for (int n = 0; n < tape->node_count; n++)
        alike[n] = 1;
    const enum status st =
        tape_balance(tape, c->of->cost != NULL ? c->of->cost : alike, parts, c->first, &possible);
    if (st != ST_INVALID)
        return st;
    if (c->chunks > 1) {
        reason_set(reason,
                   "parallel.schedule: interleaved cuts %u stages into %d parts, but the model can "
                   "be cut into %d at most: use %d stages or fewer, or 1f1b",
                   c->job.stage_count, parts, possible, possible / (int)c->chunks);
        return ST_CONFIG;
    }
    reason_set(reason,
               "parallel.pipeline: the model can't be cut into %d stages; into %d or fewer it can",
               parts, possible);
    return ST_CONFIG;
}

static enum status cut_model(struct cut *c, struct reason *reason)
{
    const bool given = c->job.first_node[1] > 0;
    const enum status st = given ? check_cuts(c, reason) : choose_cuts(c, reason);
    if (st != ST_OK)
        return st;
    for (uint32_t s = 0; s < c->job.stage_count; s++) {
        if (given)
            c->first[s] = (int)c->job.first_node[s];
    }
    CHECK(c->job.stage_count > 0);
    for (uint32_t part = 0; part < c->parts; part++) {
        const uint32_t s = part % c->job.stage_count;
        const int end = part + 1 < c->parts ? c->first[part + 1] : c->of->tape->node_count;
        for (int n = c->first[part]; n < end && c->of->cost != NULL; n++)
            c->cost[s] += c->of->cost[n];
    }
    for (uint32_t s = 0; s < c->job.stage_count; s++) {
        c->cost[s] = c->of->cost != NULL ? c->cost[s] : 1;
        c->whole += c->cost[s];
    }
    return ST_OK;
}

/* ---- how long workers wait ---- */

static void note_rows(const struct pipeline_table *table, const double *idle, double whole,
                      struct bubble *out)
{
    double waited = 0;
    out->least = UINT32_MAX;
    out->most = 0;
    for (uint32_t r = 0; r < table->row_count; r++) {
        waited += idle[r];
        const struct pipeline_row *row = &table->rows[r];
        const uint32_t micros = row->count / (pipeline_row_splits(row) ? 3 : 2) / table->chunks;
        out->least = micros < out->least ? micros : out->least;
        out->most = micros > out->most ? micros : out->most;
    }
    out->waiting = whole > 0 ? waited / whole / table->row_count : 0;
}

static enum pipeline_sends sends_of(const struct cut *c)
{
    const bool device = c->of->job->workers.device == JOBSPEC_DEVICE_CUDA;
    return device ? PIPELINE_SENDS_ARE_MET : PIPELINE_SENDS_ARE_STARTED;
}

/* The table as workers will have it. */
static enum status clock_table(const struct cut *c, const struct pipeline_table *table,
                               struct bubble *out, struct reason *reason)
{
    struct pipeline_cost cost[LIMIT_STAGES] = { 0 };
    struct pipeline_verdict verdict;
    struct pipeline_time time;
    double idle[LIMIT_RANKS];
    enum status st = pipeline_check(table, &verdict);
    if (st != ST_OK) {
        if (st == ST_INVALID)
            *reason = verdict.reason;
        return st;
    }
    for (uint32_t s = 0; s < c->job.stage_count; s++) {
        const double third =
            c->cost[s] / table->chunks / 3; /* a backward is two products for one */
        cost[s].of[PIPELINE_F] = cost[s].of[PIPELINE_I] = cost[s].of[PIPELINE_W] = third;
        cost[s].of[PIPELINE_B] = 2 * third;
    }
    st = pipeline_clock(table, cost, sends_of(c), &time, idle);
    if (st != ST_OK)
        return st;
    out->bubble = time.bubble;
    note_rows(table, idle, time.whole, out);
    return ST_OK;
}

static enum status measure(const struct cut *c, const struct variant *v, struct bubble *out,
                           struct reason *reason)
{
    const uint32_t stages = c->job.stage_count;
    struct layout_stage list[LIMIT_STAGES];
    const uint32_t *orders[LIMIT_STAGES], *shares = v->shares;
    const int end = c->chunks > 1 ? c->first[stages] : c->of->tape->node_count;
    const struct layout layout = { .nodes = (uint32_t)end,
                                   .tensor_lanes = 1,
                                   .lanes = v->lanes,
                                   .stage_count = stages,
                                   .stages = list };
    CHECK(stages > 0 && v->lanes > 0);
    auto_free uint32_t *order = calloc((size_t)stages * v->lanes, sizeof(*order));
    if (order == NULL)
        return ST_NO_MEMORY;
    for (uint32_t s = 0; s < stages; s++) {
        list[s] = (struct layout_stage){ .node_begin = (uint32_t)c->first[s],
                                         .tensor_width = 1,
                                         .data_width = c->job.workers[s],
                                         .tensor_shares = one_lane,
                                         .shares = shares };
        reducer_spread(shares, c->job.workers[s], order + (size_t)s * v->lanes);
        orders[s] = order + (size_t)s * v->lanes;
        shares += c->job.workers[s];
    }
    enum status st = layout_check(&layout, reason);
    if (st != ST_OK)
        return st;
    const struct pipeline_options options = { .schedule = c->schedule,
                                              .chunks = c->chunks,
                                              .accumulate = v->accumulate,
                                              .layout = &layout,
                                              .orders = orders,
                                              .sends = sends_of(c) };
    struct pipeline_table table;
    st = pipeline_table_init(&table, &options, reason);
    if (st != ST_OK)
        return st;
    st = clock_table(c, &table, out, reason);
    pipeline_table_release(&table);
    return st;
}

/* ---- what would do ---- */

/* Returns the lowest number of micro-batches of a lane with which workers wait little enough; 0:
 * none. */
static uint32_t more_micros(const struct cut *c, const struct variant *now, struct bubble *out)
{
    struct variant other = *now;
    struct reason reason;
    const int64_t lane = c->of->job->train.global_batch / now->lanes;
    int tries = 0;
    for (int64_t a = now->accumulate + 1; a <= lane && tries < TRIES_MAX; a++) {
        if (lane % a != 0)
            continue;
        tries++;
        other.accumulate = (uint32_t)a;
        if (measure(c, &other, out, &reason) == ST_OK && out->bubble <= BUBBLE_MAX)
            return other.accumulate;
    }
    return 0;
}

/* Like more_micros, for the number of lanes, spread evenly. */
static uint32_t more_lanes(const struct cut *c, const struct variant *now, struct bubble *out)
{
    struct variant other = { .accumulate = now->accumulate };
    struct reason reason;
    const int64_t batch = c->of->job->train.global_batch;
    int tries = 0;
    for (int64_t lanes = now->lanes + 1;
         lanes <= batch && lanes <= LIMIT_LANES && tries < TRIES_MAX; lanes++) {
        if (batch % lanes != 0 || batch / lanes % now->accumulate != 0)
            continue;
        uint32_t used = 0;
        bool fits = true;
        for (uint32_t s = 0; s < c->job.stage_count; used += c->job.workers[s++])
            fits = fits && jobspec_shares(lanes, c->job.workers[s], other.shares + used) == ST_OK;
        tries++;
        other.lanes = (uint32_t)lanes;
        if (fits && measure(c, &other, out, &reason) == ST_OK && out->bubble <= BUBBLE_MAX)
            return other.lanes;
    }
    return 0;
}

/* True if workers wait less with another schedule. */
static bool less_by(const struct cut *c, enum pipeline_schedule schedule, const struct variant *now,
                    double bubble, struct bubble *out)
{
    struct cut other = *c;
    struct reason reason;
    other.schedule = schedule;
    other.chunks = 1;
    return c->schedule != schedule && measure(&other, now, out, &reason) == ST_OK &&
           out->bubble < bubble - LESS_MIN;
}

/* Even the worker that computes longest waits. */
static enum status warn_of_bubble(const struct cut *c, const struct variant *now, double bubble,
                                  struct buf *out)
{
    struct bubble micros, lanes, halves, plain;
    const uint32_t accumulate = more_micros(c, now, &micros);
    const uint32_t more = more_lanes(c, now, &lanes);
    enum status st = buf_printf(
        out, "warning    a bubble of %.2f: who computes longest waits %.0f %% of the time; ",
        bubble, 100 * bubble / (1 + bubble));
    if (st == ST_OK && accumulate == 0 && more == 0)
        st = buf_append_text(out, "use fewer stages, or a larger train.global_batch");
    if (st == ST_OK && accumulate > 0) {
        st = buf_printf(out, "with train.accumulate: %u the bubble is %.2f", accumulate,
                        micros.bubble);
    }
    if (st == ST_OK && more > 0) {
        st = buf_printf(out, "%swith train.lanes: %u%s %.2f", accumulate > 0 ? ", " : "", more,
                        accumulate > 0 ? "" : " the bubble is", lanes.bubble);
    }
    if (st == ST_OK && less_by(c, PIPELINE_1F1B, now, bubble, &plain))
        st = buf_printf(out, "; with parallel.schedule: 1f1b %.2f", plain.bubble);
    if (st == ST_OK && less_by(c, PIPELINE_ZB_H1, now, bubble, &halves)) {
        st = buf_printf(out, "; with parallel.schedule: zb-h1, for more memory, %.2f",
                        halves.bubble);
    }
    return st == ST_OK ? buf_append_text(out, "\n") : st;
}

/* The others wait for that one. */
static enum status warn_of_stages(const struct cut *c, double waiting, struct buf *out)
{
    const bool given = c->job.first_node[1] > 0;
    return buf_printf(
        out,
        "warning    workers wait %.0f %% of the time, as a stage takes longer than the "
        "others; %s\n",
        100 * waiting,
        given ? "parallel.pipeline with a number of stages cuts where they take alike"
              : "use fewer stages, or more workers in that one (parallel.stages)");
}

/* ---- lines ---- */

/* "4 stages x 2 workers", "3 stages of 2, 1, 1 workers" */
static enum status print_widths(const struct cut *c, struct buf *out)
{
    const uint32_t stages = c->job.stage_count, *workers = c->job.workers;
    bool even = true;
    for (uint32_t s = 1; s < stages; s++)
        even = even && workers[s] == workers[0];
    if (even) {
        return buf_printf(out, "pipeline   %u stages x %u worker%s", stages, workers[0],
                          workers[0] == 1 ? "" : "s");
    }
    enum status st = buf_printf(out, "pipeline   %u stages of ", stages);
    for (uint32_t s = 0; s < stages && s < NAMED_MAX && st == ST_OK; s++)
        st = buf_printf(out, "%s%u", s > 0 ? ", " : "", workers[s]);
    return st == ST_OK ? buf_append_text(out, stages > NAMED_MAX ? ", ... workers" : " workers")
                       : st;
}

/* "stages begin at nodes 0, 12, 30 and take 31, 35, 34 % of a step" */
static enum status print_cuts(const struct cut *c, struct buf *out)
{
    const uint32_t stages = c->job.stage_count;
    const uint32_t named = stages < NAMED_MAX ? stages : NAMED_MAX;
    const char *rest = stages > NAMED_MAX ? ", ..." : "";
    enum status st = buf_append_text(out, "stages     begin at nodes ");
    for (uint32_t s = 0; s < named && st == ST_OK; s++) {
        st = buf_printf(out, "%s%d", s > 0 ? ", " : "", c->first[s]);
        for (uint32_t part = s + stages; part < c->parts && st == ST_OK; part += stages)
            st = buf_printf(out, " and %d", c->first[part]);
    }
    if (st == ST_OK && c->of->cost == NULL) {
        return buf_printf(out, "%s, if nodes take alike, which isn't known without the device\n",
                          rest);
    }
    if (st == ST_OK)
        st = buf_printf(out, "%s and take ", rest);
    for (uint32_t s = 0; s < named && st == ST_OK; s++) {
        st = buf_printf(out, "%s%.0f", s > 0 ? ", " : "",
                        c->whole > 0 ? 100 * c->cost[s] / c->whole : 0);
    }
    return st == ST_OK ? buf_printf(out, "%s %% of a step\n", rest) : st;
}

static enum status print_time(const struct cut *c, struct buf *out, struct reason *reason)
{
    struct variant now = { .lanes = (uint32_t)c->of->job->train.lanes,
                           .accumulate = c->of->accumulate };
    struct bubble bubble;
    if (c->of->accumulate == 0)
        return buf_append_text(out, ": how many micro-batches isn't known without the device\n");
    for (uint32_t r = 0; r < LIMIT_RANKS; r++)
        now.shares[r] = c->job.shares[r];
    enum status st = measure(c, &now, &bubble, reason);
    if (st != ST_OK)
        return st;
    st = buf_append_text(out, ", ");
    if (st == ST_OK && bubble.least < bubble.most)
        st = buf_printf(out, "%u to ", bubble.least);
    if (st == ST_OK) {
        st = buf_printf(
            out, "%u micro-batch%s each: bubble %.2f; workers wait %.0f %% of the time\n",
            bubble.most, bubble.most == 1 ? "" : "es", bubble.bubble, 100 * bubble.waiting);
    }
    if (st == ST_OK)
        st = print_cuts(c, out);
    if (st == ST_OK && bubble.bubble > BUBBLE_MAX)
        return warn_of_bubble(c, &now, bubble.bubble, out);
    return st == ST_OK && bubble.waiting > WAITING_MAX ? warn_of_stages(c, bubble.waiting, out)
                                                       : st;
}

static enum status print_pipeline(struct cut *c, struct buf *out, struct reason *reason)
{
    const struct jobspec *job = c->of->job;
    const char *word = jobspec_pipeline_word(job->parallel.schedule);
    enum status st = jobspec_layout_of(job, job->workers.count, &c->job);
    if (st != ST_OK)
        return st;
    const bool known = pipeline_schedule_parse(word, &c->schedule);
    CHECK(known);
    c->chunks = c->schedule == PIPELINE_INTERLEAVED ? STAGE_CHUNKS_MAX : 1;
    c->parts = c->chunks * c->job.stage_count;
    st = cut_model(c, reason);
    if (st == ST_OK)
        st = print_widths(c, out);
    if (st == ST_OK)
        st = buf_printf(out, ", %s", word);
    return st == ST_OK ? print_time(c, out, reason) : st;
}

enum status preview_pipeline_print(const struct preview_pipeline *preview, struct buf *out,
                                   struct reason *reason)
{
    if (preview->job->parallel.pipeline.stages <= 1)
        return ST_OK;
    auto_free struct cut *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return ST_NO_MEMORY;
    c->of = preview;
    return print_pipeline(c, out, reason);
}
