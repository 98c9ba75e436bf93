#include "trainer/loop/step.h"

#include "common/check.h"
#include "common/fault.h"
#include "trainer/state/state.h"

/* Gives the buckets of this rank's last lane to the reduction, as the backward pass completes them.
 * Not complete yet: [0, left). */
struct bucket_handover {
    struct worker *worker;
    size_t left;
    struct step_gate *gate;
};

/* A plan_final_fn: all elements from `first` on are final now. */
static void hand_over(void *arg, size_t first, size_t count)
{
    (void)count;
    struct bucket_handover *h = arg;
    while (h->left > 0 && h->worker->bucket_begin[h->left - 1] >= first) {
        h->left--;
        if (h->left == 0)
            h->gate->st = h->gate->before_last_bucket(h->gate->arg);
        /* Also after an error of the gate: the others' reduction ends, and this rank fails. */
        exact_bucket_done(h->worker->exact, h->left);
    }
}

static struct plan_call call_of(const struct worker *w, const struct feed_item *item)
{
    struct plan_call call = { .params = optimizer_params(w->optimizer),
                              .stats = optimizer_stats(w->optimizer),
                              .draw = item->draw,
                              .loss_scale = w->loss_scale,
                              .micro = item->micro };
    for (int i = 0; i < TAPE_INPUTS_MAX; i++)
        call.inputs[i] = item->inputs[i];
    call.lane = exact_lane(w->exact);
    return call;
}

static enum status run_micro(struct worker *w, const struct feed_item *item,
                             struct bucket_handover *handover)
{
    struct progress *progress = w->options.progress;
    const struct backend_table *table = w->device.table;
    const struct plan_call call = call_of(w, item);
    progress_phase(progress, PHASE_FORWARD);
    fault_point("trainer.forward");
    backend_range_push(table, "forward");
    enum status st = plan_forward(w->plan, &call);
    backend_range_pop(table);
    if (st != ST_OK)
        return st;
    progress_phase(progress, PHASE_BACKWARD);
    fault_point("trainer.backward");
    backend_range_push(table, "backward");
    st = plan_backward(w->plan, &call, handover != NULL ? hand_over : NULL, handover);
    backend_range_pop(table);
    return st;
}

static enum status compute_micro(struct worker *w, uint64_t step, uint32_t lane, uint32_t micro,
                                 struct bucket_handover *handover)
{
    struct progress *progress = w->options.progress;
    if (progress_stopped(progress))
        return ST_STALE;
    progress_phase(progress, PHASE_DATA);
    const struct feed_item *item = NULL;
    enum status st = feed_take(w->batches, &item);
    if (st != ST_OK)
        return st;
    CHECK(item != NULL);
    CHECK(item->step == step);
    CHECK(item->lane == lane);
    CHECK(item->micro == micro);
    st = run_micro(w, item, handover);
    if (st != ST_OK || w->device.table->host_memory)
        return st;
    progress_phase(progress, PHASE_DATA);
    return feed_done(w->batches); /* the device computes meanwhile */
}

static enum status rehearse_micro(struct worker *w)
{
    const struct feed_item *item = NULL;
    enum status st = feed_take(w->batches, &item);
    if (st != ST_OK)
        return st;
    CHECK(item != NULL);
    const struct plan_call call = call_of(w, item);
    st = plan_forward(w->plan, &call);
    if (st == ST_OK)
        st = plan_backward(w->plan, &call, NULL, NULL);
    if (st != ST_OK || w->device.table->host_memory)
        return st;
    return feed_done(w->batches);
}

enum status step_rehearse(struct worker *worker)
{
    struct worker *w = worker;
    enum status st = state_clear(w);
    if (st == ST_OK)
        st = plan_refresh(w->plan, optimizer_params(w->optimizer));
    feed_start(w->batches, 0);
    exact_begin(w->exact);
    for (uint32_t left = w->lane_count; st == ST_OK && left > 0; left--) {
        for (uint32_t micro = 0; st == ST_OK && micro < w->settings.accumulate; micro++)
            st = rehearse_micro(w);
        if (st == ST_OK && left > 1)
            st = exact_lane_done(w->exact);
    }
    return st;
}

enum status step_compute(struct worker *worker, uint64_t step, struct step_gate *gate)
{
    struct worker *w = worker;
    struct progress *progress = w->options.progress;
    uint32_t end = w->lane_first + w->lane_count;
    uint32_t accumulate = w->settings.accumulate;
    struct bucket_handover handover = { .worker = w, .left = w->bucket_count, .gate = gate };
    gate->st = ST_OK;
    exact_begin(w->exact);
    for (uint32_t lane = w->lane_first; lane < end; lane++) {
        for (uint32_t micro = 0; micro < accumulate; micro++) {
            bool last = lane + 1 == end && micro + 1 == accumulate;
            enum status st = compute_micro(w, step, lane, micro, last ? &handover : NULL);
            if (st != ST_OK)
                return st;
        }
        if (lane + 1 == end)
            break;
        enum status st = exact_lane_done(w->exact);
        if (st != ST_OK)
            return st;
    }
    CHECK(handover.left == 0); /* so the gate was asked */
    if (gate->st != ST_OK)
        return gate->st;
    progress_phase(progress, PHASE_REDUCE);
    progress_collective_begin(progress, "reduce");
    fault_point("trainer.reduce");
    int64_t exposed_ns = 0;
    backend_range_push(w->device.table, "reduce");
    enum status st = exact_wait(w->exact, &exposed_ns);
    backend_range_pop(w->device.table);
    if (st == ST_OK)
        progress_collective_end(progress, "reduce");
    return st;
}

/* Nothing was written: this step's batch is not trained on. All ranks decide the same, since all
 * saw the same sum; a checkpoint has such steps in its skip list. */
static enum status leave_out(struct worker *w, uint64_t step)
{
    enum status st = worker_scale(w, true);
    return st == ST_OK ? worker_skip_add(w, &step, 1) : st;
}

enum status step_update(struct worker *worker, uint64_t step, double lr,
                        struct optimizer_report *out)
{
    struct worker *w = worker;
    progress_phase(w->options.progress, PHASE_UPDATE);
    fault_point("trainer.reduced");
    const struct optimizer_step options = { .lr = lr,
                                            .update = step - worker_skip_before(w, step) + 1,
                                            .loss_scale = w->scaler.scale,
                                            .may_overflow = w->settings.scaler.dynamic };
    backend_range_push(w->device.table, "update");
    enum status st =
        optimizer_update(w->optimizer, exact_sum(w->exact), &options, w->device.compute, out);
    backend_range_pop(w->device.table);
    if (st != ST_OK)
        return st;
    if (out->overflow)
        return leave_out(w, step);
    fault_point("trainer.refresh");
    st = plan_refresh(w->plan, optimizer_params(w->optimizer));
    return st == ST_OK ? worker_scale(w, false) : st;
}
