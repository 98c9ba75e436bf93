#include "trainer/loop/step.h"

#include <math.h>
#include <poll.h>

#include "common/check.h"
#include "common/fault.h"
#include "trainer/loop/flips.h"
#include "trainer/state/state.h"

#define COMPUTED_POLL_NS 50000 /* no device's step is so short that this is much of it */

/* Gives the buckets of this rank's last lane to the reduction, as the backward pass completes them.
 * Not complete yet: [0, left). */
struct bucket_handover {
    struct worker *worker;
    size_t left;
    struct step_gate *gate;
    bool audits;    /* this lane is computed by another rank, too */
    enum status st; /* of that */
};

/* Notes whether the loss of this lane isn't finite. The loss lies in the last bucket, which is
 * complete. */
static void note_loss(struct worker *w, float *lane)
{
    flip_gradient(w, lane);
    flip_loss(w, lane);
    if (w->device.table->host_memory)
        w->lost = w->lost || !isfinite(lane[w->layout.loss_at]);
}

/* A plan_final_fn: all elements from `first` on are final now. */
static void hand_over(void *arg, size_t first, size_t count)
{
    (void)count;
    struct bucket_handover *h = arg;
    while (h->left > 0 && h->worker->bucket_begin[h->left - 1] >= first) {
        h->left--;
        float *lane = reducer_lane(h->worker->reducer, 0);
        if (h->left + 1 == h->worker->bucket_count)
            note_loss(h->worker, lane);
        if (h->audits && h->st == ST_OK)
            h->st = lane_sums_bucket(h->worker->sums, LANE_SUM_OWN, lane, h->left);
        if (h->left == 0)
            lane_clock_end(&h->worker->clock, &h->worker->device);
        if (h->left == 0)
            h->gate->st = h->gate->before_last_bucket(h->gate->arg);
        /* The bucket leaves even after an error of the gate: the others' reduction ends, and this
         * rank fails. */
        reducer_bucket_done(h->worker->reducer, h->left);
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
    call.lane = reducer_lane(w->reducer, 0);
    return call;
}

/* A device alone has nobody to give a bucket to while it computes the next: its pass isn't cut. */
static enum status run_backward(struct worker *w, const struct plan_call *call,
                                struct bucket_handover *handover)
{
    const bool cut = handover != NULL && (w->device.table->host_memory || w->group.size > 1);
    if (cut)
        return plan_backward(w->plans[0], call, hand_over, handover);
    enum status st = plan_backward(w->plans[0], call, NULL, NULL);
    if (st == ST_OK && handover != NULL)
        hand_over(handover, 0, 0);
    return st;
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
    enum status st = plan_forward(w->plans[0], &call);
    backend_range_pop(table);
    if (st != ST_OK)
        return st;
    progress_phase(progress, PHASE_BACKWARD);
    fault_point("trainer.backward");
    backend_range_push(table, "backward");
    st = run_backward(w, &call, handover);
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
    fault_point("trainer.data");
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

static void tell_nobody(void *arg, size_t first, size_t count)
{
    (void)arg;
    (void)first;
    (void)count;
}

/* last: of the last lane, whose pass a device with peers cuts. */
static enum status rehearse_micro(struct worker *w, bool last)
{
    const struct feed_item *item = NULL;
    enum status st = feed_take(w->batches, &item);
    if (st != ST_OK)
        return st;
    CHECK(item != NULL);
    const struct plan_call call = call_of(w, item);
    const plan_final_fn on_final = last && w->group.size > 1 ? tell_nobody : NULL;
    st = plan_forward(w->plans[0], &call);
    if (st == ST_OK)
        st = plan_backward(w->plans[0], &call, on_final, NULL);
    if (st != ST_OK || w->device.table->host_memory)
        return st;
    return feed_done(w->batches);
}

enum status step_rehearse(struct worker *worker)
{
    struct worker *w = worker;
    if (w->stage != NULL)
        return ST_OK; /* whose inputs come from others */
    enum status st = state_clear(w);
    if (st == ST_OK)
        st = worker_refresh(w, REFRESH_TRAINING);
    feed_start(w->batches, 0);
    reducer_begin(w->reducer);
    for (uint32_t left = w->lane_count; st == ST_OK && left > 0; left--) {
        for (uint32_t micro = 0; st == ST_OK && micro < w->settings.accumulate; micro++)
            st = rehearse_micro(w, left == 1 && micro + 1 == w->settings.accumulate);
        if (st == ST_OK && left > 1)
            st = reducer_lane_done(w->reducer, 0);
    }
    return st;
}

/* Computes all micro-batches of a lane, into the next buffer. */
static enum status compute_lane(struct worker *w, uint64_t step, uint32_t lane,
                                struct bucket_handover *handover)
{
    const uint32_t accumulate = w->settings.accumulate;
    enum status st = ST_OK;
    for (uint32_t micro = 0; st == ST_OK && micro < accumulate; micro++)
        st = compute_micro(w, step, lane, micro, micro + 1 == accumulate ? handover : NULL);
    return st;
}

/* Into the first lane's buffer, which that overwrites. */
static enum status compute_foreign(struct worker *w, uint64_t step, uint32_t lane)
{
    enum status st = compute_lane(w, step, lane, NULL);
    if (st != ST_OK)
        return st;
    float *foreign = reducer_lane(w->reducer, 0);
    flip_gradient(w, foreign);
    return lane_sums_all(w->sums, LANE_SUM_FOREIGN, foreign);
}

/* A lane but the last is complete. */
static void lane_complete(void *arg, float *lane)
{
    struct worker *w = arg;
    note_loss(w, lane);
}

static enum status compute_own(struct worker *w, uint64_t step, uint32_t audited,
                               struct bucket_handover *handover)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < w->lane_count; i++) {
        const uint32_t lane = w->lanes[i];
        const bool last = i + 1 == w->lane_count;
        handover->audits = last && lane == audited;
        st = compute_lane(w, step, lane, last ? handover : NULL);
        if (st == ST_OK && !last)
            lane_complete(w, reducer_lane(w->reducer, 0));
        if (st == ST_OK && !last && lane == audited)
            st = lane_sums_all(w->sums, LANE_SUM_OWN, reducer_lane(w->reducer, 0));
        if (st == ST_OK && !last)
            st = reducer_lane_done(w->reducer, 0);
    }
    return st;
}

/* Computes this stage's part of all lanes, with the other stages. */
static enum status compute_stage(struct worker *w, uint64_t step, struct bucket_handover *handover)
{
    const struct stage_step options = { .step = step,
                                        .feed = w->batches,
                                        .reducer = w->reducer,
                                        .on_final = hand_over,
                                        .final_arg = handover,
                                        .on_lane = lane_complete,
                                        .lane_arg = w };
    enum status st = stage_run_step(w->stage_run, &options);
    if (st == ST_OK) /* also what no node of the stage completes: scalars of the last one's */
        hand_over(handover, 0, 0);
    return st;
}

/*
 * Waits for the local device before entering the collective. Otherwise a hung device looks as if
 * its rank had reached the collective, and the wrong rank is blamed. Doesn't wait in a pipeline,
 * where a device may wait for other stages' devices.
 */
static enum status wait_computed(struct worker *w)
{
    const struct timespec pause = { .tv_nsec = COMPUTED_POLL_NS };
    struct progress *progress = w->options.progress;
    if (w->group.size == 1 || w->stage != NULL || w->device.table->host_memory)
        return ST_OK;
    progress_phase(progress, PHASE_BACKWARD);
    enum status st = lane_clock_passed(&w->clock, &w->device);
    while (st == ST_AGAIN && !progress_stopped(progress)) {
        (void)ppoll(NULL, 0, &pause, NULL);
        st = lane_clock_passed(&w->clock, &w->device);
    }
    return st == ST_AGAIN ? ST_STALE : st;
}

static enum status wait_reduced(struct worker *w)
{
    struct progress *progress = w->options.progress;
    enum status computed = wait_computed(w);
    if (computed != ST_OK)
        return computed;
    progress_phase(progress, PHASE_REDUCE);
    progress_collective_begin(progress, "reduce");
    fault_point("trainer.reduce");
    int64_t exposed_ns = 0;
    backend_range_push(w->device.table, "reduce");
    enum status st = reducer_wait(w->reducer, &exposed_ns);
    backend_range_pop(w->device.table);
    if (st == ST_OK)
        progress_collective_end(progress, "reduce");
    return st;
}

static enum status read_sums(struct worker *w, struct step_audit *out)
{
    uint64_t sums[LANE_SUM_COUNT];
    if (out->own_lane == AUDIT_NO_LANE)
        return ST_OK;
    progress_phase(w->options.progress, PHASE_AUDIT);
    enum status st = lane_sums_read(w->sums, sums);
    out->own = sums[LANE_SUM_OWN];
    out->foreign = sums[LANE_SUM_FOREIGN];
    return st;
}

enum status step_compute(struct worker *worker, uint64_t step, struct step_gate *gate,
                         struct step_audit *out_audit)
{
    struct worker *w = worker;
    const struct audit_rule rule = worker_audits(w);
    const uint32_t rank = w->group.rank;
    struct bucket_handover handover = { .worker = w, .left = w->bucket_count, .gate = gate };
    enum status st = ST_OK;
    gate->st = ST_OK;
    w->lost = false;
    *out_audit = (struct step_audit){ .own_lane = audit_rule_own(&rule, step, rank, NULL),
                                      .foreign_lane = audit_rule_foreign(&rule, step, rank, NULL) };
    reducer_begin(w->reducer);
    lane_clock_begin(&w->clock, &w->device);
    if (out_audit->foreign_lane != AUDIT_NO_LANE)
        st = compute_foreign(w, step, out_audit->foreign_lane);
    if (st == ST_OK && w->stage != NULL) {
        st = compute_stage(w, step, &handover);
    } else if (st == ST_OK) {
        st = compute_own(w, step, out_audit->own_lane, &handover);
    }
    if (st != ST_OK)
        return st;
    CHECK(handover.left == 0); /* so the gate was asked */
    if (gate->st != ST_OK)
        return gate->st;
    st = wait_reduced(w);
    if (st == ST_OK)
        st = handover.st;
    return st == ST_OK ? read_sums(w, out_audit) : st;
}

enum status step_recompute(struct worker *worker, uint64_t step, uint32_t lane, uint64_t *out_sum)
{
    struct worker *w = worker;
    uint64_t sums[LANE_SUM_COUNT] = { 0 };
    const struct prefetch_share only = { .lanes = &lane, .lane_count = 1 };
    feed_move(w->batches, &only);
    feed_start(w->batches, step);
    reducer_begin(w->reducer);
    enum status st = compute_foreign(w, step, lane);
    if (st == ST_OK)
        st = lane_sums_read(w->sums, sums);
    *out_sum = sums[LANE_SUM_FOREIGN];
    return st;
}

/* Nothing was written: this step's batch is not trained on. All ranks decide the same, since all
 * saw the same sum; a checkpoint has such steps in its skip list. */
static enum status leave_out(struct worker *w, uint64_t step, bool overflow)
{
    enum status st = overflow ? worker_scale(w, true) : ST_OK;
    return st == ST_OK ? worker_skip_add(w, &step, 1) : st;
}

/* Labels of a step; of training none is ignored. */
static uint64_t targets_of(const struct worker *w)
{
    const int64_t context = w->train.dataset->context;
    return (uint64_t)(w->options.job->train.global_batch * (context > 0 ? context : 1));
}

static const struct optimizer_peers *peers_of(const struct worker *w)
{
    return w->stage != NULL ? stage_peers(w->stage) : ownership_peers(&w->ownership);
}

enum status step_update(struct worker *worker, uint64_t step, double lr,
                        struct optimizer_report *out)
{
    struct worker *w = worker;
    progress_phase(w->options.progress, PHASE_UPDATE);
    fault_point("trainer.reduced");
    float *const *ties = NULL;
    float *sum = reducer_sum(w->reducer);
    out->began = false;
    if (w->stage != NULL) {
        enum status gathered = stage_gather_ties(w->stage, sum, &ties);
        if (gathered != ST_OK)
            return gathered;
    }
    const struct optimizer_step options = { .lr = lr,
                                            .update = step - worker_skip_before(w, step) + 1,
                                            .loss_scale = w->scaler.scale,
                                            .may_overflow = w->settings.scaler.dynamic,
                                            .peers = peers_of(w),
                                            .ties = ties,
                                            .targets = targets_of(w),
                                            .loss_most = history_loss_most(&w->settings.history,
                                                                           &w->history) };
    backend_range_push(w->device.table, "update");
    enum status st = optimizer_update(w->optimizer, sum, &options, w->device.compute, out);
    backend_range_pop(w->device.table);
    if (st != ST_OK)
        return st;
    if (out->spike && w->settings.history.on_spike == JOBSPEC_ON_SPIKE_FAIL)
        return ST_CONFIG;
    if (out->overflow || out->spike)
        return leave_out(w, step, out->overflow);
    fault_point("trainer.refresh");
    flip_state(w);
    st = worker_refresh(w, out->copied ? REFRESH_REST : REFRESH_TRAINING);
    return st == ST_OK ? worker_scale(w, false) : st;
}
