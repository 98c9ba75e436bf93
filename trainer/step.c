#include "trainer/step.h"

#include "common/check.h"
#include "common/fault.h"

/* The buckets of the last lane that the backward pass hasn't completed yet: [0, left). */
struct handover {
    struct worker *worker;
    size_t left;
};

/* Elements [first, end of what was final before) are final now. */
static void range_ready(void *arg, size_t first, size_t count)
{
    (void)count;
    struct handover *h = arg;
    while (h->left > 0 && h->worker->bucket_begin[h->left - 1] >= first) {
        h->left--;
        exact_ready(h->worker->exact, h->left);
    }
}

static enum status compute_micro(struct worker *w, uint64_t step, uint32_t lane, uint32_t micro,
                                 float *vector, struct handover *handover)
{
    struct marks *marks = w->options.marks;
    marks_phase(marks, PHASE_DATA);
    const struct prefetch_item *item = NULL;
    enum status st = prefetch_take(w->batches, &item);
    if (st != ST_OK)
        return st;
    CHECK(item != NULL);
    CHECK(item->step == step);
    CHECK(item->lane == lane);
    CHECK(item->micro == micro);
    struct plan_call call = { .inputs = { item->x, item->labels },
                              .params = optimizer_params(w->optimizer),
                              .stats = optimizer_stats(w->optimizer),
                              .draw = item->draw,
                              .micro = micro };
    call.lane = vector;
    marks_phase(marks, PHASE_FORWARD);
    fault_point("trainer.forward");
    st = plan_forward(w->plan, &call);
    if (st != ST_OK)
        return st;
    marks_phase(marks, PHASE_BACKWARD);
    fault_point("trainer.backward");
    return plan_backward(w->plan, &call, handover != NULL ? range_ready : NULL, handover);
}

enum status step_compute(struct worker *worker, uint64_t step)
{
    struct worker *w = worker;
    struct marks *marks = w->options.marks;
    uint32_t end = w->lane_first + w->lane_count;
    uint32_t accumulate = w->settings.accumulate;
    struct handover handover = { .worker = w, .left = w->bucket_count };
    exact_begin(w->exact);
    for (uint32_t lane = w->lane_first; lane < end; lane++) {
        float *vector = exact_lane(w->exact);
        for (uint32_t micro = 0; micro < accumulate; micro++) {
            bool last = lane + 1 == end && micro + 1 == accumulate;
            enum status st = compute_micro(w, step, lane, micro, vector, last ? &handover : NULL);
            if (st != ST_OK)
                return st;
        }
        if (lane + 1 == end)
            break;
        enum status st = exact_lane_done(w->exact);
        if (st != ST_OK)
            return st;
    }
    CHECK(handover.left == 0);
    marks_phase(marks, PHASE_REDUCE);
    marks_collective_begin(marks, "reduce");
    fault_point("trainer.reduce");
    int64_t exposed_ns = 0;
    enum status st = exact_wait(w->exact, &exposed_ns);
    if (st == ST_OK)
        marks_collective_end(marks, "reduce");
    return st;
}

enum status step_update(struct worker *worker, uint64_t step, double lr,
                        struct optimizer_report *out)
{
    struct worker *w = worker;
    marks_phase(w->options.marks, PHASE_UPDATE);
    fault_point("trainer.reduced");
    uint64_t update = step - worker_skipped(w, step) + 1;
    struct optimizer_step of = { .lr = lr, .update = update, .loss_scale = 1 };
    enum status st = optimizer_update(w->optimizer, exact_sum(w->exact), &of, w->stream, out);
    if (st != ST_OK)
        return st;
    fault_point("trainer.refresh");
    return plan_refresh(w->plan, optimizer_params(w->optimizer));
}
