#include "trainer/loop/loop.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "trainer/loop/evaluation.h"
#include "trainer/loop/step.h"
#include "trainer/update/schedule.h"

/* Between two tries of a final save that found the store full. */
#define SAVE_RETRY_MS 1000
/* How long one wait for a commit lasts before it is looked whether the generation is over. */
#define SETTLE_MS 60000

struct loop {
    struct loop_options options;
    struct worker *worker;
    struct marks *marks;
    uint64_t step; /* finished */
    uint64_t end;
    bool leave;   /* the save that was due last ends this process */
    bool copying; /* a snapshot was begun beside the step; read before the next update */
    char *message;
    size_t capacity;
};

static enum status fail(const struct loop *l, enum status st, const char *what)
{
    (void)snprintf(l->message, l->capacity, "step %llu: %s: %s", (unsigned long long)l->step, what,
                   status_string(st));
    return st;
}

/* What is wrong with the data is told by who read them. */
static enum status fail_data(const struct loop *l, const struct feed *batches)
{
    (void)snprintf(l->message, l->capacity, "%s", feed_problem(batches));
    return ST_CONFIG;
}

/* ---- snapshots ---- */

static enum status start_copy(void *snapshot)
{
    return snapshot_begin(snapshot);
}

static enum status wait_copy(void *snapshot)
{
    return snapshot_wait(snapshot);
}

/* Copied beside the next forward and backward, which leave the state alone. */
static enum status begin_copy(struct loop *l, bool saves, bool last)
{
    struct state_view view;
    struct session_snapshot snapshot = { .state = &view.state, .saves = saves, .last = last };
    if (l->worker->snapshot != NULL) {
        snapshot.start = start_copy;
        snapshot.wait = wait_copy;
        snapshot.arg = l->worker->snapshot;
    }
    marks_phase(l->marks, PHASE_SAVE);
    state_describe(l->worker, l->step, l->options.beside, &view);
    enum status st = session_snapshot_begin(l->options.session, &snapshot);
    if (st == ST_EXISTS || st == ST_REFUSED)
        return ST_OK; /* this step is saved already, or its save is late */
    l->copying = st == ST_OK;
    if (st != ST_OK && st != ST_STALE)
        return fail(l, st, "snapshot");
    return st;
}

/*
 * Before the last bucket of the next step leaves: until then no rank can finish that step, so each
 * finished step has its copies when the step after it is finished anywhere.
 */
static enum status finish_copy(void *arg)
{
    struct loop *l = arg;
    if (!l->copying)
        return ST_OK;
    l->copying = false;
    const enum phase phase = l->marks->phase;
    marks_phase(l->marks, PHASE_SAVE);
    enum status st = session_snapshot_wait(l->options.session);
    marks_phase(l->marks, phase);
    if (st != ST_OK && st != ST_STALE)
        return fail(l, st, "snapshot");
    return st;
}

/* ---- a step ---- */

static enum status not_finite(const struct loop *l, const struct optimizer_report *report)
{
    (void)snprintf(l->message, l->capacity,
                   "step %llu: loss %g, gradient norm %g: not finite; lower the learning rate or "
                   "clip the gradient (train.clip_norm)",
                   (unsigned long long)l->step, report->loss, report->grad_norm);
    return ST_NUMERIC;
}

static enum status train(struct loop *l, struct session_row *row)
{
    struct worker *w = l->worker;
    double lr = schedule_lr(&w->settings.schedule, l->step);
    const struct step_gate gate = { .pass = finish_copy, .arg = l };
    l->message[0] = '\0';
    enum status st = step_compute(w, l->step, &gate);
    if (st == ST_CONFIG)
        return fail_data(l, w->batches);
    if (st != ST_OK && l->message[0] != '\0')
        return st; /* the gate's */
    if (st != ST_OK)
        return fail(l, st, "forward, backward and reduction");
    struct optimizer_report report;
    st = step_update(w, l->step, lr, &report);
    if (st == ST_NUMERIC)
        return not_finite(l, &report);
    if (st != ST_OK)
        return fail(l, st, "update");
    row->lr = (float)lr;
    row->loss = (float)report.loss;
    row->grad_norm = (float)report.grad_norm;
    return ST_OK;
}

/* A step of the skip list: its batch is not trained on. */
static void skip(struct loop *l, struct session_row *row)
{
    row->lr = (float)schedule_lr(&l->worker->settings.schedule, l->step);
    row->loss = NAN;
    row->grad_norm = NAN;
    feed_start(l->worker->batches, l->step + 1);
}

static bool evaluation_due(const struct loop *l)
{
    if (l->worker->eval.dataset == NULL)
        return false;
    uint64_t every = l->worker->settings.eval_every;
    return l->step == l->worker->settings.total_steps || (every > 0 && l->step % every == 0);
}

static enum status evaluate(struct loop *l, struct session_row *row)
{
    struct evaluation result;
    enum status st = evaluation_run(l->worker, &result);
    if (st == ST_CONFIG)
        return fail_data(l, l->worker->eval_batches);
    if (st != ST_OK)
        return fail(l, st, "evaluation");
    row->has_eval = true;
    row->eval_loss = result.loss;
    row->eval_accuracy = result.accuracy;
    row->eval_correct = result.correct;
    row->eval_count = result.counted;
    return ST_OK;
}

static void add_phases(const struct loop *l, struct session_row *row)
{
    static const enum phase phases[] = { PHASE_DATA,   PHASE_FORWARD, PHASE_BACKWARD,
                                         PHASE_REDUCE, PHASE_UPDATE,  PHASE_SAVE };
    static const char *const names[] = { "data",          "forward",   "backward",
                                         "communication", "optimizer", "snapshot" };
    row->phase_count = (int)(sizeof(phases) / sizeof(phases[0]));
    for (int i = 0; i < row->phase_count; i++) {
        row->phase[i].name = names[i];
        row->phase[i].ms = marks_ms(l->marks, phases[i]);
    }
}

/* ---- saving ---- */

static enum status save_if_due(struct loop *l)
{
    if (l->options.session == NULL)
        return ST_OK;
    enum session_due due = session_due_at(l->options.session, l->step);
    if (due == SESSION_DUE_NOTHING)
        return ST_OK;
    l->leave = due == SESSION_DUE_SAVE_AND_EXIT;
    return begin_copy(l, due != SESSION_DUE_COPY, l->leave || l->step >= l->end);
}

/* The last save must be committed; where it was dropped (a full store) it is made again. */
static enum status settle(struct loop *l)
{
    struct session *session = l->options.session;
    uint64_t committed = 0;
    while (!session_is_over(session)) {
        enum status st = finish_copy(l);
        if (st != ST_OK)
            return st;
        st = session_settle(session, SETTLE_MS, &committed);
        if (st == ST_OK && committed >= l->step)
            return ST_OK;
        if (st == ST_TIMED_OUT || st == ST_AGAIN)
            continue;
        if (st != ST_OK)
            return fail(l, st, "waiting for the last save");
        (void)poll(NULL, 0, SAVE_RETRY_MS);
        st = begin_copy(l, true, true);
        if (st != ST_OK)
            return st;
    }
    return ST_STALE;
}

/* ---- the loop ---- */

/* The phases of this row are the step's; what the save before it waited counts here, too. */
static enum status one_step(struct loop *l)
{
    struct worker *w = l->worker;
    struct session_row row = { .step = l->step + 1 };
    int64_t begin = clock_mono_ns();
    enum status st = ST_OK;
    if (worker_skips(w, l->step)) {
        skip(l, &row);
    } else {
        st = train(l, &row);
    }
    if (st != ST_OK)
        return st;
    l->step++;
    marks_step(l->marks, l->step);
    row.step_ms = (double)(clock_mono_ns() - begin) / 1e6;
    row.epoch = (double)l->step / (double)w->settings.steps_per_epoch;
    row.samples_per_s = (double)w->options.job->train.global_batch / (row.step_ms / 1e3);
    if (evaluation_due(l)) {
        st = evaluate(l, &row);
        if (st != ST_OK)
            return st;
    }
    marks_phase(l->marks, PHASE_SAVE);
    add_phases(l, &row);
    marks_clear(l->marks);
    if (l->options.row != NULL)
        l->options.row(l->options.row_arg, &row);
    if (l->options.session != NULL && w->options.rank == 0)
        session_add_row(l->options.session, &row);
    return save_if_due(l);
}

enum status loop_run(const struct loop_options *options, enum loop_end *out, char *message,
                     size_t capacity)
{
    struct loop l = { .options = *options,
                      .worker = options->worker,
                      .marks = options->worker->options.marks,
                      .step = options->step,
                      .end = options->worker->settings.total_steps,
                      .capacity = capacity };
    l.message = message;
    if (options->stop_at > 0 && options->stop_at < l.end)
        l.end = options->stop_at;
    marks_step(l.marks, l.step);
    marks_clear(l.marks);
    enum status st = ST_OK;
    while (st == ST_OK && l.step < l.end && !l.leave) {
        if (options->session != NULL && session_is_over(options->session)) {
            st = ST_STALE;
        } else {
            st = one_step(&l);
        }
    }
    if (st == ST_OK && options->session != NULL) {
        marks_phase(l.marks, PHASE_FINISHING);
        fault_point("trainer.finishing");
        if (l.step > options->step) /* else the checkpoint that was restored is the last */
            st = settle(&l);
        if (st == ST_OK)
            session_finished(options->session, l.step);
    }
    if (st == ST_STALE) {
        *out = LOOP_OVER;
        return ST_OK;
    }
    if (st == ST_OK)
        *out = l.leave ? LOOP_LEFT : LOOP_DONE;
    return st;
}
