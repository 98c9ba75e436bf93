#include "trainer/loop/evaluation.h"

#include "common/check.h"
#include "common/fault.h"
#include "common/limits.h"
#include "common/tree_sum.h"

/* Own batches, in ascending order, into this rank's segment. */
struct own_results {
    struct evaluation_batch *results;
    size_t count, done;
};

static struct evaluation_batch *result_of(struct own_results *own, const struct feed_item *item)
{
    if (item->micro == 0) {
        CHECK(own->done < own->count);
        own->results[own->done++] = (struct evaluation_batch){ 0 };
    }
    return &own->results[own->done - 1];
}

static struct stage_result stage_result_of(void *arg, const struct feed_item *item)
{
    struct evaluation_batch *batch = result_of(arg, item);
    return (struct stage_result){ &batch->loss, &batch->correct, &batch->counted };
}

static enum status evaluate_all(struct worker *w, struct own_results *own)
{
    const struct feed_item *item = NULL;
    enum status st = feed_take(w->eval_batches, &item);
    while (st == ST_OK && item != NULL) {
        if (progress_stopped(w->options.progress))
            return ST_STALE;
        struct evaluation_batch *batch = result_of(own, item);
        struct plan_call call = { .params = worker_evaluated(w),
                                  .stats = optimizer_stats(w->optimizer),
                                  .loss_sum = &batch->loss,
                                  .correct = &batch->correct,
                                  .counted = &batch->counted };
        for (int i = 0; i < TAPE_INPUTS_MAX; i++)
            call.inputs[i] = item->inputs[i];
        st = plan_forward(w->eval_plans[0], &call);
        if (st == ST_OK)
            st = feed_done(w->eval_batches);
        if (st == ST_OK)
            st = feed_take(w->eval_batches, &item);
    }
    return st;
}

static enum status evaluate_own(struct worker *w)
{
    const struct comm_segment *segment = &w->eval_results.segments[w->options.rank];
    struct own_results own = { .results = segment->data,
                               .count = segment->size / sizeof(*own.results) };
    const struct stage_evaluation staged = {
        .plans = w->eval_plans, .feed = w->eval_batches, .result = stage_result_of, .arg = &own
    };
    feed_start(w->eval_batches, 0);
    enum status st =
        w->stage == NULL ? evaluate_all(w, &own) : stage_run_evaluate(w->stage_run, &staged);
    CHECK(st != ST_OK || own.done == own.count);
    return st;
}

/* Puts the results of all ranks in the order of the batches and sums them up. */
static void sum_batches(struct worker *w, struct evaluation *out)
{
    const uint32_t lanes = w->settings.lanes;
    const struct evaluation_batch *next[LIMIT_RANKS];
    uint32_t owner[LIMIT_LANES] = { 0 };
    const struct worker_group last = worker_last_group(w);
    const uint32_t *order = worker_last_order(w), *lane = order;
    uint64_t correct = 0;
    uint64_t counted = 0;
    CHECK(last.size >= 1);
    for (uint32_t r = 0; r < last.size; r++) {
        next[r] = w->eval_results.segments[last.first + r].data;
        for (uint32_t i = 0; i < last.shares[r]; i++)
            owner[*lane++] = r;
    }
    CHECK(lane == order + lanes);
    for (uint64_t i = 0; i < w->eval_count; i++) {
        const struct evaluation_batch *batch = next[owner[i % lanes]]++;
        w->eval_losses[i] = batch->loss;
        correct += (uint64_t)batch->correct;
        counted += (uint64_t)batch->counted;
    }
    double loss = tree_sum(w->eval_losses, w->eval_count);
    *out = (struct evaluation){ .loss = loss / (double)counted,
                                .accuracy = (double)correct / (double)counted,
                                .correct = correct,
                                .counted = counted };
}

enum status evaluation_run(struct worker *worker, struct evaluation *out)
{
    struct worker *w = worker;
    CHECK(w->eval_plans[0] != NULL);
    progress_phase(w->options.progress, PHASE_EVALUATION);
    enum status st = worker_refresh(w, REFRESH_EVALUATION);
    if (st == ST_OK)
        st = evaluate_own(w);
    if (st != ST_OK)
        return st;
    fault_point("trainer.eval");
    if (w->options.size > 1) {
        progress_collective_begin(w->options.progress, "evaluation");
        st = gather_exchange(&w->eval_results, &w->device, w->comm, w->options.rank,
                             WORKER_COMM_TIMEOUT_MS);
        if (st != ST_OK)
            return st;
        progress_collective_end(w->options.progress, "evaluation");
    }
    sum_batches(w, out);
    return ST_OK;
}
