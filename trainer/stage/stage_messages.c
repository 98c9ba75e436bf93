/* Messages between two actions of a pipeline. */
#include "common/check.h"
#include "trainer/stage/stage_run_internal.h"

/* Direction, peer and channel of messages between two parts. */
struct passage {
    bool sends;
    uint32_t peer, channel;
};

/* part: the other part. */
static struct passage passage_of(const struct stage *s, const struct pipeline_action *action,
                                 bool sends, uint32_t part)
{
    const uint32_t own = stage_part(s, action->chunk), first = part < own ? part : own;
    const bool backward = action->kind != PIPELINE_F;
    return (struct passage){ .sends = sends,
                             .peer = pipeline_owner(&s->table, part, action->micro),
                             .channel = 2 * first + backward };
}

/* Starts to send, or to receive, all tensors of a border. */
static enum status post(struct stage_run *r, const struct passage *passage,
                        const struct plan_border *border, struct message *message)
{
    const struct comm_table *comm = r->device->comm;
    enum status st = ST_OK;
    CHECK(message->count == 0);
    for (int i = 0; st == ST_OK && i < border->count; i++) {
        void *data = border->tensor[i].data;
        const size_t bytes = border->tensor[i].bytes;
        struct comm_post *one = &message->post[i];
        const int peer = (int)passage->peer;
        st = passage->sends ? comm->post_send(r->pipe, peer, passage->channel, data, bytes, one)
                            : comm->post_recv(r->pipe, peer, passage->channel, data, bytes, one);
    }
    message->count = border->count;
    return st;
}

enum status stage_run_wait(struct stage_run *run, struct message *message)
{
    struct stage_run *r = run;
    const struct stage_options *o = &r->options.stage->options;
    enum status st = ST_OK;
    if (message->count == 0)
        return ST_OK;
    progress_pipe(o->progress, true);
    for (int i = 0; st == ST_OK && i < message->count; i++)
        st = r->device->comm->wait_one(r->pipe, &message->post[i], o->timeout_ms);
    progress_pipe(o->progress, false);
    message->count = 0;
    return st;
}

/* Borders at which an action's input comes in and its output goes out. */
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
    struct stage_flight *flight = &r->flights[action->stash];
    struct message *in = action->kind == PIPELINE_F ? &flight->value_in : &flight->gradients_in;
    struct plan_border border;
    if (part == PIPELINE_NOWHERE || in->count > 0)
        return ST_OK;
    const struct side side = side_of(action);
    const struct passage passage = passage_of(s, action, false, part);
    plan_border(r->plans[action->chunk], side.from, side.direction, (int)action->stash, &border);
    if (action->kind != PIPELINE_F)
        r->asked += (uint32_t)border.count;
    return post(r, &passage, &border, in);
}

/* Copies what goes back, in which the next bundle may not wait: so before post_begin. */
static enum status fill_outbox(struct stage_run *r, const struct pipeline_action *done)
{
    struct outbox *box = &r->outboxes[r->turn];
    struct plan_border border;
    size_t at = 0;
    if (done->kind == PIPELINE_F || done->kind == PIPELINE_W)
        return ST_OK;
    enum status st = stage_run_wait(r, &box->message);
    plan_border(r->plans[done->chunk], PLAN_BEFORE, PLAN_BACKWARD, (int)done->stash, &border);
    for (int i = 0; st == ST_OK && i < border.count; i++) {
        st = stage_run_copy(r, (uint8_t *)box->memory + at, border.tensor[i].data,
                            border.tensor[i].bytes);
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
    const struct passage passage = passage_of(s, done, true, part);
    plan_border(r->plans[done->chunk], side.to, side.direction, (int)done->stash, &border);
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
    return post(r, &passage, &border, out);
}

/* True if gradients for the action come from another rank. */
static bool waits_for_gradients(const struct stage_run *r, const struct pipeline_action *action)
{
    struct plan_border border;
    if (action->kind != PIPELINE_B && action->kind != PIPELINE_I)
        return false;
    plan_border(r->plans[action->chunk], PLAN_AFTER, PLAN_BACKWARD, (int)action->stash, &border);
    return border.count > 0;
}

/* Asks for a micro-batch's gradients once it went forward, if hosts send. Peers send gradients in
 * the order of the micro-batches: if one can't be asked for yet, neither can those after it. */
static enum status ask_early(struct stage_run *r, const struct pipeline_action *done)
{
    struct pipeline_action backward = *done;
    backward.kind = pipeline_row_splits(r->options.stage->row) ? PIPELINE_I : PIPELINE_B;
    if (done->kind != PIPELINE_F || r->device->comm->on_stream ||
        !waits_for_gradients(r, &backward))
        return ST_OK;
    if (r->unasked > 0 || r->asked + PLAN_GRADIENTS_MAX > ASKED_MAX) {
        r->unasked++;
        return ST_OK;
    }
    return post_input(r, &backward);
}

/* Asks for what the next action needs. */
static enum status ask(struct stage_run *r, const struct pipeline_action *after)
{
    if (waits_for_gradients(r, after) && r->unasked > 0 &&
        r->flights[after->stash].gradients_in.count == 0)
        r->unasked--;
    return post_input(r, after);
}

enum status stage_run_bundle(struct stage_run *run, const struct pipeline_action *before,
                             const struct pipeline_action *after)
{
    struct stage_run *r = run;
    const struct comm_table *comm = r->device->comm;
    enum status st = ST_OK;
    if (after != NULL && after->kind == PIPELINE_F) /* where no gradients came back */
        st = stage_run_wait(r, &r->flights[after->stash].value_out);
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

enum status stage_run_wait_all(struct stage_run *run)
{
    struct stage_run *r = run;
    enum status st = ST_OK;
    for (uint32_t i = 0; st == ST_OK && i < r->stashes; i++)
        st = stage_run_wait(r, &r->flights[i].value_out);
    for (int i = 0; st == ST_OK && i < OUTBOXES; i++)
        st = stage_run_wait(r, &r->outboxes[i].message);
    return st;
}
