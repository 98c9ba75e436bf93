#include "trainer/stage/stage_run.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/fault.h"
#include "kernels/op.h"

/* Messages of one border and direction, and their tensors' posts. */
struct message {
    struct comm_post post[PLAN_GRADIENTS_MAX];
    int count; /* under way; 0: none */
};

/* What a micro-batch in flight has beside the plan's stash. */
struct flight {
    void *inputs[TAPE_INPUTS_MAX]; /* copies, device memory; NULL: the stage reads none */
    uint32_t *draw;
    bool draws;  /* the micro-batch has random numbers */
    float *lane; /* addresses of a lane vector, memory for statistics and scalars */
    struct message value_in, value_out, gradients_in;
};

/* Gradients on their way: a copy, so that the next micro-batch may have the stash at once. */
struct outbox {
    void *memory;
    struct message message;
};
#define OUTBOXES 2

/* Gradients that are asked for at a time: tensors. A schedule that goes far ahead asks later. */
#define ASKED_MAX 192
/* Of each stash a value that was sent; the gradients above; what came before is being sent from an
 * outbox and what comes next was asked for. */
_Static_assert(PLAN_STASHES_MAX + ASKED_MAX + (OUTBOXES + 1) * PLAN_GRADIENTS_MAX + 1 <=
                   COMM_POSTS_MAX,
               "posts of a pipeline");

struct stage_run {
    struct stage_run_options options;
    const struct device *device;
    struct comm *pipe;
    struct flight *flights; /* [stashes] */
    uint32_t stashes;
    struct outbox outboxes[OUTBOXES]; /* in turn */
    uint32_t turn;
    uint32_t asked;   /* tensors of gradients that are asked for and were not waited for */
    uint32_t unasked; /* micro-batches that went forward since, with theirs still to be asked for */
    size_t input_bytes[TAPE_INPUTS_MAX];
    size_t draw_bytes;
    struct lane_layout layout;
    struct lane_run sums; /* of the lane vector: what F makes */
};

/* ---- memory ---- */

static bool reads(const struct stage *s, int value)
{
    const struct tape *tape = s->options.tape;
    for (uint32_t n = s->box.node_begin; n < s->box.node_end; n++) {
        for (int i = 0; i < tape->nodes[n].in_count; i++) {
            if (tape->nodes[n].in[i] == value)
                return true;
        }
    }
    return false;
}

static enum status open_flight(struct stage_run *r, struct flight *flight)
{
    const struct device *d = r->device;
    const struct tape *tape = r->options.stage->options.tape;
    const struct lane_run *stats =
        &r->options.stage->extent[r->options.stage->box.stage].part[LANE_STATS];
    struct memory_part parts[2];
    size_t count = 0;
    void *memory = NULL;
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < tape->input_count; i++) {
        if (reads(r->options.stage, tape->inputs[i]))
            st = d->table->alloc(d->backend, r->input_bytes[i], &flight->inputs[i]);
    }
    if (st == ST_OK)
        st = d->table->alloc(d->backend, r->draw_bytes, &memory);
    flight->draw = memory;
    if (stats->first < stats->end) {
        parts[count++] = (struct memory_part){ stats->first * sizeof(float),
                                               (stats->end - stats->first) * sizeof(float) };
    }
    parts[count++] = (struct memory_part){ r->layout.loss_at * sizeof(float),
                                           OPTIMIZER_SCALARS * sizeof(float) };
    memory = NULL;
    if (st == ST_OK) {
        st = d->table->alloc_parts(d->backend, r->layout.count * sizeof(float), parts, count,
                                   &memory);
    }
    flight->lane = memory;
    return st;
}

/* Room for the gradients that go to the stage before. */
static enum status open_outboxes(struct stage_run *r)
{
    const struct device *d = r->device;
    struct plan_border border;
    size_t bytes = 0;
    enum status st = ST_OK;
    plan_border(r->options.plan, PLAN_BEFORE, PLAN_BACKWARD, 0, &border);
    for (int i = 0; i < border.count; i++)
        bytes += border.tensor[i].bytes;
    for (int i = 0; st == ST_OK && bytes > 0 && i < OUTBOXES; i++)
        st = d->table->alloc(d->backend, bytes, &r->outboxes[i].memory);
    return st;
}

enum status stage_run_open(const struct stage_run_options *options, struct stage_run **out)
{
    struct stage_run *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return ST_NO_MEMORY;
    const struct stage *s = options->stage;
    const struct tape *tape = s->options.tape;
    r->options = *options;
    r->device = s->options.device;
    r->layout = lane_layout(tape);
    r->stashes = s->row->stashes;
    r->draw_bytes = (OP_DRAW_SAMPLES + (size_t)options->batch) * sizeof(uint32_t);
    for (int i = 0; i < tape->input_count; i++) {
        r->input_bytes[i] = tape->values[tape->inputs[i]].tensor.bytes * (size_t)options->batch;
    }
    r->flights = calloc(r->stashes, sizeof(*r->flights));
    enum status st = r->flights == NULL ? ST_NO_MEMORY : ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < r->stashes; i++)
        st = open_flight(r, &r->flights[i]);
    if (st == ST_OK)
        st = open_outboxes(r);
    if (st != ST_OK) {
        stage_run_close(r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void stage_run_close(struct stage_run *run)
{
    struct stage_run *r = run;
    if (r == NULL)
        return;
    const struct device *d = r->device;
    for (uint32_t i = 0; r->flights != NULL && i < r->stashes; i++) {
        struct flight *flight = &r->flights[i];
        for (int k = 0; k < TAPE_INPUTS_MAX; k++) {
            if (flight->inputs[k] != NULL)
                d->table->free(d->backend, flight->inputs[k]);
        }
        if (flight->draw != NULL)
            d->table->free(d->backend, flight->draw);
        if (flight->lane != NULL) {
            d->table->free_parts(d->backend, flight->lane, r->layout.count * sizeof(float));
        }
    }
    for (int i = 0; i < OUTBOXES; i++) {
        if (r->outboxes[i].memory != NULL)
            d->table->free(d->backend, r->outboxes[i].memory);
    }
    free(r->flights);
    free(r);
}

void stage_run_connect(struct stage_run *run, struct comm *pipe)
{
    run->pipe = pipe;
    run->asked = run->unasked = 0;
    for (uint32_t i = 0; i < run->stashes; i++) {
        struct flight *flight = &run->flights[i];
        flight->value_in.count = flight->value_out.count = 0;
        flight->gradients_in.count = 0;
    }
    for (int i = 0; i < OUTBOXES; i++)
        run->outboxes[i].message.count = 0;
}

/* ---- messages ---- */

/* Starts to send, or to receive, all tensors of a border. */
static enum status post(struct stage_run *r, bool sends, uint32_t peer,
                        const struct plan_border *border, struct message *message)
{
    const struct comm_table *comm = r->device->comm;
    enum status st = ST_OK;
    CHECK(message->count == 0);
    for (int i = 0; st == ST_OK && i < border->count; i++) {
        void *data = border->tensor[i].data;
        const size_t bytes = border->tensor[i].bytes;
        struct comm_post *one = &message->post[i];
        st = sends ? comm->post_send(r->pipe, (int)peer, data, bytes, one)
                   : comm->post_recv(r->pipe, (int)peer, data, bytes, one);
    }
    message->count = border->count;
    return st;
}

static enum status wait_for(struct stage_run *r, struct message *message)
{
    const struct stage_options *o = &r->options.stage->options;
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < message->count; i++)
        st = r->device->comm->wait_one(r->pipe, &message->post[i], o->timeout_ms);
    message->count = 0;
    return st;
}

/* One action's side of the borders. */
struct side {
    enum plan_side from, to; /* where its input comes in, where its output goes out */
    enum plan_direction direction;
};

static struct side side_of(const struct pipeline_action *action)
{
    if (action->kind == PIPELINE_F)
        return (struct side){ PLAN_BEFORE, PLAN_AFTER, PLAN_FORWARD };
    return (struct side){ PLAN_AFTER, PLAN_BEFORE, PLAN_BACKWARD };
}

/* Asks for what the action needs, if it hasn't been asked for; the stash must be free for it. */
static enum status post_input(struct stage_run *r, const struct pipeline_action *action)
{
    const struct stage *s = r->options.stage;
    const uint32_t part = pipeline_input(&s->table, s->box.stage, action);
    struct flight *flight = &r->flights[action->stash];
    struct message *in = action->kind == PIPELINE_F ? &flight->value_in : &flight->gradients_in;
    struct plan_border border;
    if (part == PIPELINE_NOWHERE || in->count > 0)
        return ST_OK;
    const struct side side = side_of(action);
    plan_border(r->options.plan, side.from, side.direction, (int)action->stash, &border);
    if (action->kind != PIPELINE_F)
        r->asked += (uint32_t)border.count;
    return post(r, false, pipeline_owner(&s->table, part, action->micro), &border, in);
}

static enum status copy(struct stage_run *r, void *to, const void *from, size_t bytes)
{
    const struct device *d = r->device;
    return d->table->vector.copy(d->backend, to, from, bytes, d->compute);
}

/* Copies what goes back, in which the next bundle may not wait: so before post_begin. */
static enum status fill_outbox(struct stage_run *r, const struct pipeline_action *done)
{
    struct outbox *box = &r->outboxes[r->turn];
    struct plan_border border;
    size_t at = 0;
    if (done->kind == PIPELINE_F || done->kind == PIPELINE_W)
        return ST_OK;
    enum status st = wait_for(r, &box->message);
    plan_border(r->options.plan, PLAN_BEFORE, PLAN_BACKWARD, (int)done->stash, &border);
    for (int i = 0; st == ST_OK && i < border.count; i++) {
        st = copy(r, (uint8_t *)box->memory + at, border.tensor[i].data, border.tensor[i].bytes);
        at += border.tensor[i].bytes;
    }
    return st;
}

static enum status post_output(struct stage_run *r, const struct pipeline_action *done)
{
    const struct stage *s = r->options.stage;
    const uint32_t part = pipeline_output(&s->table, s->box.stage, done);
    const struct side side = side_of(done);
    struct message *out = &r->flights[done->stash].value_out;
    struct plan_border border;
    if (part == PIPELINE_NOWHERE)
        return ST_OK;
    plan_border(r->options.plan, side.to, side.direction, (int)done->stash, &border);
    if (done->kind != PIPELINE_F) {
        struct outbox *box = &r->outboxes[r->turn];
        size_t at = 0;
        for (int i = 0; i < border.count; i++) {
            border.tensor[i].data = (uint8_t *)box->memory + at;
            at += border.tensor[i].bytes;
        }
        out = &box->message;
        r->turn = (r->turn + 1) % OUTBOXES;
    }
    return post(r, true, pipeline_owner(&s->table, part, done->micro), &border, out);
}

/* Where hosts send, gradients can be asked for once their micro-batch went forward. Peers send them
 * in the order of the micro-batches: after one that has to wait all others wait, too. */
static enum status ask_early(struct stage_run *r, const struct pipeline_action *done)
{
    struct pipeline_action backward = *done;
    if (done->kind != PIPELINE_F || r->device->comm->on_stream)
        return ST_OK;
    if (r->unasked > 0 || r->asked + PLAN_GRADIENTS_MAX > ASKED_MAX) {
        r->unasked++;
        return ST_OK;
    }
    backward.kind = pipeline_row_splits(r->options.stage->row) ? PIPELINE_I : PIPELINE_B;
    return post_input(r, &backward);
}

/* Asks for what the next action needs. */
static enum status ask(struct stage_run *r, const struct pipeline_action *after)
{
    const bool takes_gradients = after->kind == PIPELINE_B || after->kind == PIPELINE_I;
    if (takes_gradients && r->unasked > 0 && r->flights[after->stash].gradients_in.count == 0)
        r->unasked--;
    return post_input(r, after);
}

/* Between two actions; before, after: or NULL. */
static enum status bundle(struct stage_run *r, const struct pipeline_action *before,
                          const struct pipeline_action *after)
{
    const struct comm_table *comm = r->device->comm;
    enum status st = ST_OK;
    if (after != NULL && after->kind == PIPELINE_F) /* where no gradients came back */
        st = wait_for(r, &r->flights[after->stash].value_out);
    if (st == ST_OK && before != NULL)
        st = fill_outbox(r, before);
    if (st == ST_OK)
        st = comm->post_begin(r->pipe);
    if (st == ST_OK && before != NULL)
        st = post_output(r, before);
    if (st == ST_OK && before != NULL)
        st = ask_early(r, before);
    if (st == ST_OK && after != NULL)
        st = ask(r, after);
    return st == ST_OK ? comm->post_end(r->pipe, r->options.stage->options.timeout_ms) : st;
}

/* ---- actions ---- */

/* The item's inputs stay where they are for the next item only. */
static enum status keep_inputs(struct stage_run *r, struct flight *flight,
                               const struct feed_item *item)
{
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < TAPE_INPUTS_MAX; i++) {
        if (flight->inputs[i] != NULL)
            st = copy(r, flight->inputs[i], item->inputs[i], r->input_bytes[i]);
    }
    flight->draws = item->draw != NULL;
    if (st == ST_OK && flight->draws)
        st = copy(r, flight->draw, item->draw, r->draw_bytes);
    return st;
}

static enum status take_item(struct stage_run *r, const struct stage_step *step,
                             const struct pipeline_action *action)
{
    const struct stage *s = r->options.stage;
    struct progress *progress = s->options.progress;
    const struct feed_item *item = NULL;
    progress_phase(progress, PHASE_DATA);
    fault_point("trainer.data");
    enum status st = feed_take(step->feed, &item);
    if (st != ST_OK)
        return st;
    CHECK(item != NULL && item->step == step->step);
    CHECK(item->lane * s->table.accumulate + item->micro == action->micro);
    st = keep_inputs(r, &r->flights[action->stash], item);
    if (st != ST_OK || r->device->table->host_memory)
        return st;
    return feed_done(step->feed);
}

static struct plan_call call_of(const struct stage_run *r, const struct pipeline_action *action)
{
    const struct flight *flight = &r->flights[action->stash];
    struct plan_call call = { .params = r->options.params,
                              .stats = r->options.stats,
                              .draw = flight->draws ? flight->draw : NULL,
                              .loss_scale = r->options.loss_scale,
                              .stash = (int)action->stash };
    for (int i = 0; i < TAPE_INPUTS_MAX; i++)
        call.inputs[i] = flight->inputs[i];
    return call;
}

static enum status forward(struct stage_run *r, const struct stage_step *step,
                           const struct pipeline_action *action)
{
    struct progress *progress = r->options.stage->options.progress;
    enum status st = take_item(r, step, action);
    if (st == ST_OK) {
        progress_phase(progress, PHASE_REDUCE);
        fault_point("trainer.pipe");
        st = wait_for(r, &r->flights[action->stash].value_in);
    }
    if (st != ST_OK)
        return st;
    progress_phase(progress, PHASE_FORWARD);
    fault_point("trainer.forward");
    struct plan_call call = call_of(r, action);
    call.lane = r->flights[action->stash].lane;
    return plan_forward(r->options.plan, &call);
}

/* Statistics and scalars of a micro-batch into its lane. */
static enum status add_sums(struct stage_run *r, const struct flight *flight, float *lane,
                            uint32_t micro)
{
    const struct device *d = r->device;
    const struct stage *s = r->options.stage;
    const struct lane_run runs[] = { s->extent[s->box.stage].part[LANE_STATS],
                                     s->extent[s->box.stage].part[LANE_SCALARS] };
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < sizeof(runs) / sizeof(runs[0]); i++) {
        const size_t first = runs[i].first, count = runs[i].end - first;
        if (count == 0)
            continue;
        if (micro == 0) {
            st = copy(r, lane + first, flight->lane + first, count * sizeof(float));
        } else {
            st = d->table->vector.add(d->backend, lane + first, lane + first, flight->lane + first,
                                      count, d->compute);
        }
    }
    return st;
}

/* Those of what the action's micro-batch sent on. */
static enum status take_gradients(struct stage_run *r, const struct pipeline_action *action)
{
    struct flight *flight = &r->flights[action->stash];
    progress_phase(r->options.stage->options.progress, PHASE_REDUCE);
    fault_point("trainer.pipe");
    r->asked -= (uint32_t)flight->gradients_in.count;
    enum status st = wait_for(r, &flight->gradients_in);
    /* What was sent on has come, since its gradients have. */
    return st == ST_OK ? wait_for(r, &flight->value_out) : st;
}

static void begin_backward(const struct stage_run *r)
{
    progress_phase(r->options.stage->options.progress, PHASE_BACKWARD);
    fault_point("trainer.backward");
}

static enum status backward_inputs(struct stage_run *r, const struct pipeline_action *action)
{
    const struct plan_call call = call_of(r, action);
    begin_backward(r);
    return plan_backward_inputs(r->options.plan, &call);
}

/* Into the lane, by a whole backward or its second half. The last own lane's last micro-batch
 * completes the step's gradients. */
static enum status backward_lane(struct stage_run *r, const struct stage_step *step,
                                 const struct pipeline_action *action, bool last)
{
    const uint32_t accumulate = r->options.stage->table.accumulate;
    const uint32_t micro = action->micro % accumulate;
    const plan_final_fn on_final = last ? step->on_final : NULL;
    struct plan_call call = call_of(r, action);
    begin_backward(r);
    call.lane = exact_lane(step->exact);
    call.micro = micro;
    enum status st = add_sums(r, &r->flights[action->stash], call.lane, micro);
    if (st != ST_OK)
        return st;
    st = action->kind == PIPELINE_W
             ? plan_backward_params(r->options.plan, &call, on_final, step->final_arg)
             : plan_backward(r->options.plan, &call, on_final, step->final_arg);
    if (st != ST_OK || last || micro + 1 < accumulate)
        return st;
    step->on_lane(step->lane_arg, call.lane);
    return exact_lane_done(step->exact);
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

static enum status wait_for_all(struct stage_run *r)
{
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < r->stashes; i++)
        st = wait_for(r, &r->flights[i].value_out);
    for (int i = 0; st == ST_OK && i < OUTBOXES; i++)
        st = wait_for(r, &r->outboxes[i].message);
    return st;
}

enum status stage_run_step(struct stage_run *run, const struct stage_step *step)
{
    struct stage_run *r = run;
    const struct pipeline_row *row = r->options.stage->row;
    const struct pipeline_action *before = NULL;
    enum status st = ST_OK;
    for (uint32_t k = 0; st == ST_OK && k < row->count; k++) {
        const struct pipeline_action *action = &row->actions[k];
        if (progress_stopped(r->options.stage->options.progress))
            return ST_STALE;
        st = bundle(r, before, action);
        if (st != ST_OK)
            return st;
        st = run_action(r, step, action, k + 1 == row->count);
        before = action;
    }
    if (st == ST_OK)
        st = bundle(r, before, NULL);
    return st == ST_OK ? wait_for_all(r) : st;
}

/* ---- evaluation ---- */

/* As an action of a step with the plan's stashes in turn. */
static enum status evaluate_one(struct stage_run *r, struct plan *plan,
                                const struct feed_item *item, struct pipeline_action *action,
                                const struct stage_result *result)
{
    const struct stage *s = r->options.stage;
    struct flight *flight = &r->flights[action->stash];
    action->micro = item->lane * s->table.accumulate;
    enum status st = bundle(r, NULL, action);
    if (st == ST_OK)
        st = keep_inputs(r, flight, item);
    if (st == ST_OK)
        st = wait_for(r, &flight->value_in);
    if (st != ST_OK)
        return st;
    struct plan_call call = call_of(r, action);
    call.loss_scale = NULL;
    if (s->box.stage + 1 == s->layout.stage_count) {
        call.loss_sum = result->loss;
        call.correct = result->correct;
        call.counted = result->counted;
    }
    st = plan_forward(plan, &call);
    return st == ST_OK ? bundle(r, action, NULL) : st;
}

enum status stage_run_evaluate(struct stage_run *run, struct plan *plan, struct feed *feed,
                               struct stage_result (*result)(void *arg, const struct feed_item *),
                               void *arg)
{
    struct stage_run *r = run;
    struct plan *trains = r->options.plan;
    struct pipeline_action action = { .kind = PIPELINE_F };
    const struct feed_item *item = NULL;
    r->options.plan = plan; /* whose borders are meant */
    enum status st = feed_take(feed, &item);
    while (st == ST_OK && item != NULL) {
        struct stage_result sums = { .loss = NULL };
        if (progress_stopped(r->options.stage->options.progress)) {
            st = ST_STALE;
            break;
        }
        if (r->options.stage->box.stage + 1 == r->options.stage->layout.stage_count)
            sums = result(arg, item);
        st = evaluate_one(r, plan, item, &action, &sums);
        action.stash = (action.stash + 1) % r->stashes;
        if (st == ST_OK)
            st = feed_done(feed);
        if (st == ST_OK)
            st = feed_take(feed, &item);
    }
    if (st == ST_OK)
        st = wait_for_all(r);
    r->options.plan = trains;
    return st;
}
