/* An evaluation on a stage. */
#include <string.h>

#include "trainer/stage/stage_run_internal.h"

/* Returns how many batches go through one chunk before they go through the next. It is as many as
 * in a step where all stages are cut into the same shares, so that a column of workers has the same
 * batches. Otherwise, or where sends are met, it is one: groups that overlap could wait for each
 * other. */
static uint32_t group_of(const struct stage_run *r)
{
    const struct stage *s = r->options.stage;
    const struct layout_stage *first = &s->stages[0];
    bool even = stage_chunks(s) > 1 && !r->device->comm->on_stream;
    for (uint32_t i = 1; i < s->layout.stage_count; i++) {
        even = even && s->stages[i].data_width == first->data_width &&
               memcmp(s->stages[i].shares, first->shares,
                      first->data_width * sizeof(*first->shares)) == 0;
    }
    uint32_t most = even ? s->layout.stage_count : 1;
    most = most < r->stashes ? most : r->stashes;
    return most < r->kept_count ? most : r->kept_count;
}

static enum status take_batches(struct stage_run *r, const struct stage_evaluation *e,
                                uint32_t most, uint32_t *out_count)
{
    const struct stage *s = r->options.stage;
    const struct feed_item *item = NULL;
    enum status st = ST_OK;
    for (*out_count = 0; st == ST_OK && *out_count < most; ++*out_count) {
        struct kept *kept = &r->kept[*out_count];
        st = feed_take(e->feed, &item);
        if (st != ST_OK || item == NULL)
            return st;
        kept->sums = (struct stage_result){ .loss = NULL };
        if (s->box.stage + 1 == s->layout.stage_count)
            kept->sums = e->result(e->arg, item);
        st = stage_run_keep(r, kept, item);
        kept->micro = item->lane * s->table.accumulate;
        if (st == ST_OK)
            st = feed_done(e->feed);
    }
    return st;
}

static enum status evaluate_one(struct stage_run *r, const struct pipeline_action *action,
                                const struct kept *kept)
{
    const struct stage *s = r->options.stage;
    struct stage_flight *flight = &r->flights[action->stash];
    flight->kept = kept;
    enum status st = stage_run_bundle(r, NULL, action);
    if (st == ST_OK)
        st = stage_run_wait(r, &flight->value_in);
    if (st != ST_OK)
        return st;
    struct plan_call call = stage_run_call(r, action);
    call.loss_scale = NULL;
    if (stage_part(s, action->chunk) + 1 == s->parts) {
        call.loss_sum = kept->sums.loss;
        call.correct = kept->sums.correct;
        call.counted = kept->sums.counted;
    }
    st = plan_forward(r->plans[action->chunk], &call);
    return st == ST_OK ? stage_run_bundle(r, action, NULL) : st;
}

/* Runs a group of micro-batches as actions of a step, with the stashes in turn. */
static enum status evaluate_group(struct stage_run *r, uint32_t count, uint32_t stash)
{
    enum status st = ST_OK;
    for (uint32_t c = 0; c < stage_chunks(r->options.stage); c++) {
        for (uint32_t i = 0; st == ST_OK && i < count; i++) {
            const struct pipeline_action action = { .kind = PIPELINE_F,
                                                    .chunk = c,
                                                    .micro = r->kept[i].micro,
                                                    .stash = (stash + i) % r->stashes };
            st = evaluate_one(r, &action, &r->kept[i]);
        }
    }
    return st;
}

enum status stage_run_evaluate(struct stage_run *run, const struct stage_evaluation *evaluation)
{
    struct stage_run *r = run;
    const uint32_t group = group_of(r);
    uint32_t stash = 0, count = 0;
    r->plans = evaluation->plans; /* whose borders are meant */
    enum status st = take_batches(r, evaluation, group, &count);
    while (st == ST_OK && count > 0) {
        if (progress_stopped(r->options.stage->options.progress))
            st = ST_STALE;
        if (st == ST_OK)
            st = evaluate_group(r, count, stash);
        stash = (stash + count) % r->stashes;
        if (st == ST_OK)
            st = take_batches(r, evaluation, group, &count);
    }
    if (st == ST_OK)
        st = stage_run_wait_all(r);
    r->plans = r->options.plans;
    return st;
}
