/* A step on a stage. */
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "trainer/stage/stage_run.h"
#include "trainer/stage/stage_run_internal.h"

enum status stage_run_keep(struct stage_run *run, struct kept *kept, const struct feed_item *item)
{
    struct stage_run *r = run;
    enum status st = ST_OK;
    kept->micro = item->lane * r->options.stage->table.accumulate + item->micro;
    for (int i = 0; st == ST_OK && i < TAPE_INPUTS_MAX; i++) {
        if (kept->inputs[i] != NULL)
            st = stage_run_copy(r, kept->inputs[i], item->inputs[i], r->input_bytes[i]);
    }
    kept->draws = item->draw != NULL;
    if (st == ST_OK && kept->draws)
        st = stage_run_copy(r, kept->draw, item->draw, r->draw_bytes);
    return st;
}

struct plan_call stage_run_call(const struct stage_run *run, const struct pipeline_action *action)
{
    const struct stage_run *r = run;
    const struct kept *kept = r->flights[action->stash].kept;
    struct plan_call call = { .params = r->options.params,
                              .stats = r->options.stats,
                              .draw = kept->draws ? kept->draw : NULL,
                              .loss_scale = r->options.loss_scale,
                              .stash = (int)action->stash };
    for (int i = 0; i < TAPE_INPUTS_MAX; i++)
        call.inputs[i] = kept->inputs[i];
    return call;
}

/* ---- actions ---- */

static enum status take_item(struct stage_run *r, const struct stage_step *step, struct kept *kept)
{
    const struct feed_item *item = NULL;
    progress_phase(r->options.stage->options.progress, PHASE_DATA);
    fault_point("trainer.data");
    enum status st = feed_take(step->feed, &item);
    if (st != ST_OK)
        return st;
    CHECK(item != NULL && item->step == step->step);
    st = stage_run_keep(r, kept, item);
    if (st != ST_OK || r->device->table->host_memory)
        return st;
    return feed_done(step->feed);
}

/* Notes what the feed gave for the action's micro-batch; its first forward takes it. */
static enum status find_item(struct stage_run *r, const struct stage_step *step,
                             const struct pipeline_action *action)
{
    enum status st = ST_OK;
    struct kept *kept = r->kept;
    if (action->chunk == 0) {
        /* A recording is for one pair of inputs and stash: with one chunk the inputs go with the
         * stash, so that there are fewer pairs. */
        const bool alone = stage_chunks(r->options.stage) == 1;
        kept += alone ? action->stash : r->taken++ % r->kept_count;
        st = take_item(r, step, kept);
    } else {
        while (kept < r->kept + r->kept_count && kept->micro != action->micro)
            kept++;
        CHECK(kept < r->kept + r->kept_count);
    }
    CHECK(st != ST_OK || kept->micro == action->micro);
    r->flights[action->stash].kept = kept;
    return st;
}

static enum status forward(struct stage_run *r, const struct stage_step *step,
                           const struct pipeline_action *action)
{
    struct progress *progress = r->options.stage->options.progress;
    enum status st = find_item(r, step, action);
    if (st == ST_OK) {
        progress_phase(progress, PHASE_REDUCE);
        fault_point("trainer.pipe");
        st = stage_run_wait(r, &r->flights[action->stash].value_in);
    }
    if (st != ST_OK)
        return st;
    progress_phase(progress, PHASE_FORWARD);
    fault_point("trainer.forward");
    struct plan_call call = stage_run_call(r, action);
    call.lane = r->flights[action->stash].lane;
    return plan_forward(r->plans[action->chunk], &call);
}

/* Statistics of a micro-batch into its lane; scalars, too, of the last chunk. */
static enum status add_sums(struct stage_run *r, const struct pipeline_action *action, float *lane,
                            uint32_t micro)
{
    const struct device *d = r->device;
    const struct stage *s = r->options.stage;
    const struct stage_flight *flight = &r->flights[action->stash];
    const struct lane_slice *slice = &s->slice[stage_part(s, action->chunk)];
    const bool counts = action->chunk + 1 == stage_chunks(s);
    const struct lane_extent extents[] = { slice->part[LANE_STATS], slice->part[LANE_SCALARS] };
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < (counts ? 2 : 1); i++) {
        const size_t first = extents[i].first, count = extents[i].end - first;
        if (count == 0)
            continue;
        if (micro == 0) {
            st = stage_run_copy(r, lane + first, flight->lane + first, count * sizeof(float));
        } else {
            st = d->table->vector.add(d->backend, lane + first, lane + first, flight->lane + first,
                                      count, d->compute);
        }
    }
    return st;
}

/* Waits for the gradients of the output that the action's micro-batch sent. */
static enum status take_gradients(struct stage_run *r, const struct pipeline_action *action)
{
    struct stage_flight *flight = &r->flights[action->stash];
    progress_phase(r->options.stage->options.progress, PHASE_REDUCE);
    fault_point("trainer.pipe");
    r->asked -= (uint32_t)flight->gradients_in.count;
    enum status st = stage_run_wait(r, &flight->gradients_in);
    /* The value that was sent has arrived, since its gradients have. */
    return st == ST_OK ? stage_run_wait(r, &flight->value_out) : st;
}

static void begin_backward(const struct stage_run *r)
{
    progress_phase(r->options.stage->options.progress, PHASE_BACKWARD);
    fault_point("trainer.backward");
}

static enum status backward_inputs(struct stage_run *r, const struct pipeline_action *action)
{
    const struct plan_call call = stage_run_call(r, action);
    begin_backward(r);
    return plan_backward_inputs(r->plans[action->chunk], &call);
}

/* A chunk's part of a lane is complete. Of the last lane it is handed over with the buckets, once
 * all chunks have come to its end. */
static enum status end_lane(struct stage_run *r, const struct stage_step *step, uint32_t chunk)
{
    const struct stage *s = r->options.stage;
    if (++r->lanes_done[chunk] == s->box.order_end - s->box.order_begin)
        return ST_OK;
    if (chunk + 1 == stage_chunks(s))
        step->on_lane(step->lane_arg, reducer_lane(step->reducer, chunk));
    return reducer_lane_done(step->reducer, chunk);
}

/* Into the lane, by a whole backward or its second half. The row's last one completes the step's
 * gradients: with several chunks what others have completed before waits for it. */
static enum status backward_lane(struct stage_run *r, const struct stage_step *step,
                                 const struct pipeline_action *action, bool last)
{
    const uint32_t accumulate = r->options.stage->table.accumulate;
    const uint32_t micro = action->micro % accumulate;
    const plan_final_fn on_final = last ? step->on_final : NULL;
    struct plan_call call = stage_run_call(r, action);
    begin_backward(r);
    struct plan *plan = r->plans[action->chunk];
    call.lane = reducer_lane(step->reducer, action->chunk);
    call.micro = micro;
    enum status st = add_sums(r, action, call.lane, micro);
    if (st != ST_OK)
        return st;
    st = action->kind == PIPELINE_W ? plan_backward_params(plan, &call, on_final, step->final_arg)
                                    : plan_backward(plan, &call, on_final, step->final_arg);
    return st != ST_OK || micro + 1 < accumulate ? st : end_lane(r, step, action->chunk);
}

static enum status run_action(struct stage_run *r, const struct stage_step *step,
                              const struct pipeline_action *action, bool last)
{
    enum status st = ST_OK;
    switch (action->kind) {
    case PIPELINE_F:
        return forward(r, step, action);
    case PIPELINE_B:
        st = take_gradients(r, action);
        return st == ST_OK ? backward_lane(r, step, action, last) : st;
    case PIPELINE_I:
        st = take_gradients(r, action);
        return st == ST_OK ? backward_inputs(r, action) : st;
    case PIPELINE_W:
        return backward_lane(r, step, action, last);
    }
    return ST_INVALID;
}

/* A micro-batch has the same number in each step. */
static void start_over(struct stage_run *r)
{
    for (uint32_t i = 0; i < r->kept_count; i++)
        r->kept[i].micro = PIPELINE_NOWHERE;
    r->taken = 0;
    memset(r->lanes_done, 0, sizeof(r->lanes_done));
}

enum status stage_run_step(struct stage_run *run, const struct stage_step *step)
{
    struct stage_run *r = run;
    const struct pipeline_row *row = r->options.stage->row;
    const struct pipeline_action *before = NULL;
    enum status st = ST_OK;
    start_over(r);
    for (uint32_t k = 0; st == ST_OK && k < row->count; k++) {
        const struct pipeline_action *action = &row->actions[k];
        if (progress_stopped(r->options.stage->options.progress))
            return ST_STALE;
        st = stage_run_bundle(r, before, action);
        if (st != ST_OK)
            return st;
        st = run_action(r, step, action, k + 1 == row->count);
        before = action;
    }
    if (st == ST_OK)
        st = stage_run_bundle(r, before, NULL);
    return st == ST_OK ? stage_run_wait_all(r) : st;
}
