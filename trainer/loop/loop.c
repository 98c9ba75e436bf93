#include "trainer/loop/loop.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "trainer/loop/audit.h"
#include "trainer/loop/evaluation.h"
#include "trainer/loop/flips.h"
#include "trainer/loop/step.h"
#include "trainer/state/copy_interval.h"
#include "trainer/update/schedule.h"

#define SAVE_RETRY_MS 1000  /* between two tries of a last save that found the store full */
#define SETTLE_MS     60000 /* one wait for a commit, before another look whether all is over */

struct loop {
    struct loop_options options;
    struct worker *worker;
    struct progress *progress;
    uint64_t step; /* finished */
    uint64_t end;
    bool early;   /* train.stop: `end` lies before the job's last step */
    bool leave;   /* the coordinator wants this process to end after the save that was due last */
    bool copying; /* a snapshot was begun and not waited for: the state must not change yet */
    bool unsaved; /* the last finished step may have a save that is not committed */
    struct loop_resume_point resume;
    struct reason *reason;
};

static enum status loop_fail(const struct loop *l, enum status st, const char *what)
{
    reason_set(l->reason, "step %llu: %s: %s", (unsigned long long)l->step, what,
               status_string(st));
    return st;
}

static bool is_of_data(enum status st)
{
    return st == ST_CONFIG || st == ST_CHANGED;
}

/* Fails with the reason of the feed, which has read the data. */
static enum status loop_fail_data(const struct loop *l, enum status st, const struct feed *batches)
{
    *l->reason = *feed_reason(batches);
    return st;
}

/* ---- snapshots ---- */

static enum status start_staging(void *staging)
{
    return staging_begin(staging);
}

static enum status wait_staging(void *staging)
{
    return staging_wait(staging);
}

/* Copies the state beside the next forward and backward, which leave it alone. */
static enum status begin_snapshot(struct loop *l, bool saves, bool last)
{
    struct state_view view;
    struct session_snapshot snapshot = { .state = &view.state, .saves = saves, .last = last };
    if (l->worker->staging != NULL) {
        snapshot.start = start_staging;
        snapshot.wait = wait_staging;
        snapshot.arg = l->worker->staging;
    }
    progress_phase(l->progress, PHASE_SAVE);
    flip_snapshot(l->worker);
    state_describe(l->worker, l->step, l->options.beside, &view);
    enum status st = session_snapshot_begin(l->options.session, &snapshot);
    if (st == ST_EXISTS || st == ST_REFUSED)
        return ST_OK; /* this step is saved already, or its save is late */
    l->copying = st == ST_OK;
    if (st != ST_OK && st != ST_STALE)
        return loop_fail(l, st, "snapshot");
    return st;
}

/*
 * Called before this rank's last bucket of the next step leaves (struct step_gate): until then no
 * rank can finish that step. So when a step is finished anywhere, the copies of the step before it
 * are complete everywhere, but for one that failed: its rank ends with an error.
 */
static enum status finish_snapshot(void *arg)
{
    struct loop *l = arg;
    if (!l->copying)
        return ST_OK;
    l->copying = false;
    const enum phase phase = l->progress->phase;
    progress_phase(l->progress, PHASE_SAVE);
    enum status st = session_snapshot_wait(l->options.session);
    progress_phase(l->progress, phase);
    if (st != ST_OK && st != ST_STALE)
        return loop_fail(l, st, "snapshot");
    return st;
}

/* ---- a step ---- */

/* The rank whose lanes alone weren't finite: its own doing, perhaps. Where the weights are to blame
 * all are, and on a device nobody looks. In a pipeline only the last stage has the loss, and a lane
 * came to it through workers of all: that names nobody. */
static enum status find_lost(struct loop *l)
{
    struct worker *w = l->worker;
    const struct rank_words mine = { { w->lost } }, *all = NULL;
    uint32_t lost = 0, last = 0;
    enum status st = agree_exchange(w, "finite", &mine, &all);
    for (uint32_t r = 0; st == ST_OK && r < w->options.size; r++) {
        lost += all[r].word[0] != 0;
        last = all[r].word[0] != 0 ? r : last;
    }
    if (l->options.wrong != NULL && lost == 1 && w->options.size > 1 && w->stage == NULL)
        *l->options.wrong = 1 + last;
    return st;
}

static enum status not_finite(struct loop *l, const struct optimizer_report *report)
{
    const enum status st = find_lost(l);
    if (st != ST_OK)
        return loop_fail(l, st, "a loss that isn't finite");
    reason_set(l->reason,
               "step %llu: loss %g, gradient norm %g: not finite; lower the learning rate or "
               "clip the gradient (train.clip_norm)",
               (unsigned long long)l->step, report->loss, report->grad_norm);
    return ST_NUMERIC;
}

/* Fails with ST_WRONG. Within two rounds of audits each lane was computed twice, and was right
 * then. */
static enum status differ(struct loop *l, const struct audit_verdict *verdict, uint64_t within)
{
    *l->reason = verdict->reason;
    if (l->options.wrong != NULL) {
        *l->options.wrong = verdict->wrong == AUDIT_NOBODY ? 0 : 1 + verdict->wrong;
        *l->options.good = l->step > within ? l->step - within : 0;
    }
    return ST_WRONG;
}

static enum status audit_step(struct loop *l, const struct step_audit *audit)
{
    struct audit_verdict verdict;
    progress_phase(l->progress, PHASE_AUDIT);
    enum status st = audit_lanes(l->worker, l->step, audit, &verdict);
    if (is_of_data(st))
        return loop_fail_data(l, st, l->worker->batches);
    if (st != ST_OK)
        return loop_fail(l, st, "comparing what ranks computed");
    if (!verdict.differ && l->options.session != NULL)
        session_note_audited(l->options.session, l->step + 1);
    return verdict.differ ? differ(l, &verdict, 2 * l->worker->settings.audit_every) : ST_OK;
}

/* Compares the states after a step where it is due, after the last step, and before the first one
 * of a generation. Then a comparison may have been cut off, and a state from several ranks has
 * parts of each. */
static enum status compare_replicas(struct loop *l, bool first)
{
    const uint64_t every = l->worker->settings.checksum_every;
    struct audit_verdict verdict;
    const bool due = every > 0 && (first || l->step % every == 0 || l->step == l->end);
    if (!due || l->worker->options.size < 2)
        return ST_OK;
    progress_phase(l->progress, PHASE_AUDIT);
    fault_point("trainer.audit");
    enum status st = audit_replicas(l->worker, l->step, &verdict);
    if (st != ST_OK)
        return loop_fail(l, st, "comparing the ranks' states");
    if (!verdict.differ && verdict.compared && l->options.session != NULL)
        session_note_audited(l->options.session, l->step);
    /* The states were equal at the last comparison; that step's own snapshot came after it. */
    return verdict.differ ? differ(l, &verdict, every + 1) : ST_OK;
}

/* audits: a lane of another rank was among them. */
static void note_lanes(const struct loop *l, bool audits)
{
    struct worker *w = l->worker;
    const int64_t lanes = w->lane_count;
    w->lanes_us = lane_clock_read(&w->clock, &w->device, l->progress);
    if (w->lanes_us > 0 && l->options.session != NULL) {
        session_note_lanes(l->options.session, w->lane_count,
                           w->lanes_us * lanes / (lanes + audits));
    }
}

static void note_traffic(const struct loop *l)
{
    const struct worker *w = l->worker;
    const struct worker_comms *c = &w->comms;
    struct comm *const all[] = { c->world, c->group != c->world ? c->group : NULL, c->pipe };
    uint64_t sent = 0, received = 0;
    if (l->options.session == NULL || (w->comm != NULL && w->device.comm->traffic == NULL))
        return;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct comm_traffic traffic = { 0 };
        if (all[i] != NULL)
            w->device.comm->traffic(all[i], &traffic);
        sent += traffic.sent_bytes;
        received += traffic.received_bytes;
    }
    session_note_traffic(l->options.session, sent, received);
}

/* A loss far above the usual. The third step in a row that is left out ends the job: the model is
 * where it doesn't come back from. */
static enum status handle_spike(const struct loop *l, const struct optimizer_report *report)
{
    struct worker *w = l->worker;
    const bool fails = w->settings.history.on_spike == JOBSPEC_ON_SPIKE_FAIL;
    const double most = history_loss_most(&w->settings.history, &w->history);
    if (!fails &&
        !(l->step >= 2 && worker_skip_has(w, l->step - 1) && worker_skip_has(w, l->step - 2)))
        return ST_OK;
    reason_set(l->reason, "step %llu: loss %g is above %g, %g times the median of the last %u: %s",
               (unsigned long long)l->step, report->loss, most, w->settings.history.spike,
               w->settings.history.window,
               fails ? "recovery.on_spike is fail"
                     : "the third step in a row that is left out; lower the learning rate");
    return ST_CONFIG;
}

static enum status train_step(struct loop *l, struct session_row *row)
{
    struct worker *w = l->worker;
    double lr = schedule_lr(&w->settings.schedule, l->step);
    struct step_gate gate = { .before_last_bucket = finish_snapshot, .arg = l };
    struct step_audit audit;
    enum status st = step_compute(w, l->step, &gate, &audit);
    if (gate.st != ST_OK)
        return gate.st;
    if (is_of_data(st))
        return loop_fail_data(l, st, w->batches);
    if (st != ST_OK)
        return loop_fail(l, st, "forward, backward and reduction");
    if (audit.own_lane != AUDIT_NO_LANE)
        st = audit_step(l, &audit);
    if (st != ST_OK)
        return st;
    struct optimizer_report report;
    l->resume.complete = false;
    st = step_update(w, l->step, lr, &report);
    l->resume.complete = st == ST_OK || !report.began;
    if (st == ST_NUMERIC)
        return not_finite(l, &report);
    if (report.spike)
        st = handle_spike(l, &report);
    if (report.spike && st != ST_OK)
        return st;
    if (st != ST_OK)
        return loop_fail(l, st, "update");
    note_lanes(l, audit.foreign_lane != AUDIT_NO_LANE);
    note_traffic(l);
    row->lr = (float)lr;
    row->loss = (float)report.loss;
    row->grad_norm = (float)report.grad_norm;
    return ST_OK;
}

/* A step of the skip list: its batch is not trained on. */
static void skip_step(struct loop *l, struct session_row *row)
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

static void note_evaluation(struct worker *w, const struct evaluation *result)
{
    const enum jobspec_metric metric = w->settings.history.metric;
    if (metric != JOBSPEC_METRIC_EVAL_LOSS && metric != JOBSPEC_METRIC_EVAL_ACCURACY)
        return;
    w->history.has_pending = true;
    w->history.pending =
        (float)(metric == JOBSPEC_METRIC_EVAL_LOSS ? result->loss : result->accuracy);
}

static enum status evaluate(struct loop *l, struct session_row *row)
{
    struct evaluation result;
    enum status st = evaluation_run(l->worker, &result);
    if (is_of_data(st))
        return loop_fail_data(l, st, l->worker->eval_batches);
    if (st != ST_OK)
        return loop_fail(l, st, "evaluation");
    row->has_eval = true;
    row->eval_loss = result.loss;
    row->eval_accuracy = result.accuracy;
    row->eval_correct = result.correct;
    row->eval_count = result.counted;
    note_evaluation(l->worker, &result);
    return ST_OK;
}

/* Evaluates where a generation begins after a step that has an evaluation: its result is not part
 * of the state, but train.stop reads it. All ranks come here, whether they know it or not. */
static enum status recall_evaluation(struct loop *l)
{
    struct session_row row = { .step = l->step };
    const enum jobspec_metric metric = l->worker->settings.history.metric;
    if (metric == JOBSPEC_METRIC_NONE || metric == JOBSPEC_METRIC_LOSS || l->step == 0 ||
        !evaluation_due(l))
        return ST_OK;
    return evaluate(l, &row);
}

/* Ends the job where train.stop says so: all ranks have the same history. */
static void end_early(struct loop *l)
{
    struct worker *w = l->worker;
    if (l->early || l->step == 0 || l->step >= l->end ||
        !history_ends(&w->settings.history, &w->history))
        return;
    l->end = l->step;
    l->early = true;
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
        row->phase[i].ms = progress_ms(l->progress, phases[i]);
    }
}

/* ---- how often copies are taken ---- */

/* Agrees how often copies are taken. All ranks come here after the same steps, each with its own
 * measurements. */
static enum status revise_copy_interval(struct loop *l, double step_ms)
{
    struct session *session = l->options.session;
    uint32_t every = 0;
    session_note_step(session, step_ms);
    if (!session_copy_interval_revises(l->options.step, l->step) || l->step >= l->end)
        return ST_OK;
    const struct session_copy_cost copy_cost = session_copy_cost(session);
    progress_phase(l->progress, PHASE_SAVE);
    enum status st = copy_interval_agree(l->worker, session_copy_interval(&copy_cost), &every);
    if (st != ST_OK)
        return loop_fail(l, st, "agreeing how often copies in memory are taken");
    session_set_memory_every(session, every);
    return ST_OK;
}

/* ---- saving ---- */

static enum status save_if_due(struct loop *l)
{
    if (l->options.session == NULL)
        return ST_OK;
    enum session_due due = session_due_at(l->options.session, l->step);
    const bool last = l->early && l->step >= l->end;
    if (due == SESSION_DUE_NOTHING && !last)
        return ST_OK;
    l->leave = due == SESSION_DUE_SAVE_AND_EXIT;
    return begin_snapshot(l, due != SESSION_DUE_COPY || last, l->leave || l->step >= l->end);
}

/* The save of the step that a generation before finished: not where it is committed. */
static enum status save_again(struct loop *l)
{
    if (l->options.session == NULL || l->step == 0 || l->step <= l->options.committed)
        return ST_OK;
    l->unsaved = true;
    return save_if_due(l);
}

/* Waits until the last save is committed; where it was dropped (a full store) it is made again.
 * ST_REFUSED: this process is not to end yet. */
static enum status await_last_save(struct loop *l)
{
    struct session *session = l->options.session;
    uint64_t committed = 0;
    while (!session_is_over(session)) {
        enum status st = finish_snapshot(l);
        if (st != ST_OK)
            return st;
        st = session_settle(session, SETTLE_MS, &committed);
        if (st == ST_OK && committed >= l->step)
            return ST_OK;
        if (st == ST_TIMED_OUT || st == ST_AGAIN)
            continue;
        if (st == ST_REFUSED)
            return st;
        if (st != ST_OK)
            return loop_fail(l, st, "waiting for the last save");
        (void)poll(NULL, 0, SAVE_RETRY_MS);
        st = begin_snapshot(l, true, true);
        if (st != ST_OK)
            return st;
    }
    return ST_STALE;
}

/* ---- the loop ---- */

static void note_resume_point(struct loop *l, const struct session_row *row)
{
    l->resume = (struct loop_resume_point){ .step = l->step,
                                            .complete = true,
                                            .row = true,
                                            .loss = row->loss,
                                            .lr = row->lr,
                                            .grad_norm = row->grad_norm,
                                            .epoch = row->epoch,
                                            .samples_per_s = row->samples_per_s,
                                            .step_ms = row->step_ms };
}

void loop_resume_point_merge(struct loop_resume_point *resume,
                             const struct loop_resume_point *other)
{
    if (other->row && !resume->row)
        *resume = *other;
}

/* The evaluation after a step, if it is due, and the row. */
static enum status end_step(struct loop *l, struct session_row *row)
{
    if (evaluation_due(l)) {
        enum status st = evaluate(l, row);
        if (st != ST_OK)
            return st;
    }
    progress_phase(l->progress, PHASE_SAVE);
    add_phases(l, row);
    progress_clear(l->progress);
    if (l->options.row != NULL)
        l->options.row(l->options.row_arg, row);
    if (l->options.session != NULL && l->worker->options.rank == 0)
        session_add_row(l->options.session, row);
    l->resume.row = false;
    end_early(l);
    return ST_OK;
}

/* Does a step, and what follows it. The times of a row begin where those of the row before ended:
 * what the save before it waited counts here. */
static enum status one_step(struct loop *l)
{
    struct worker *w = l->worker;
    struct session_row row = { .step = l->step + 1 };
    int64_t begin = clock_mono_ns();
    enum status st = ST_OK;
    if (worker_skip_has(w, l->step)) {
        skip_step(l, &row);
    } else {
        st = train_step(l, &row);
    }
    if (st != ST_OK)
        return st;
    CHECK(!l->copying || worker_skip_has(w, l->step));
    history_step(&w->settings.history, &w->history, worker_skip_has(w, l->step) ? NULL : &row.loss);
    l->step++;
    l->unsaved = true;
    progress_step(l->progress, l->step);
    row.step_ms = (double)(clock_mono_ns() - begin) / 1e6;
    row.epoch = (double)l->step / (double)w->settings.steps_per_epoch;
    row.samples_per_s = (double)w->options.job->train.global_batch / (row.step_ms / 1e3);
    note_resume_point(l, &row);
    st = end_step(l, &row);
    if (st == ST_OK) /* before it is saved; the resume point is true already */
        st = compare_replicas(l, false);
    if (st == ST_OK && l->options.adapts_interval)
        st = revise_copy_interval(l, row.step_ms);
    return st == ST_OK ? save_if_due(l) : st;
}

/* Does what an earlier generation left of its last step. */
static enum status go_on(struct loop *l)
{
    const struct loop_resume_point *resume = &l->resume;
    enum status st = ST_OK;
    if (resume->row) {
        struct session_row row = { .step = l->step,
                                   .epoch = resume->epoch,
                                   .loss = resume->loss,
                                   .lr = resume->lr,
                                   .grad_norm = resume->grad_norm,
                                   .samples_per_s = resume->samples_per_s,
                                   .step_ms = resume->step_ms };
        st = end_step(l, &row);
    }
    return st == ST_OK ? save_again(l) : st;
}

/* Trains until the last step, or until this process is to leave. */
static enum status train(struct loop *l)
{
    enum status st = ST_OK;
    while (st == ST_OK && l->step < l->end && !l->leave) {
        if (l->options.session != NULL && session_is_over(l->options.session)) {
            st = ST_STALE;
        } else {
            st = one_step(l);
        }
    }
    return st;
}

/* ST_REFUSED: there is more to train, as a peer waits in the next step. */
static enum status finish(struct loop *l)
{
    enum status st = ST_OK;
    progress_phase(l->progress, PHASE_FINISHING);
    fault_point("trainer.finishing");
    if (l->unsaved) /* else the checkpoint that was restored is the last */
        st = await_last_save(l);
    if (st == ST_OK)
        session_finished(l->options.session, l->step);
    return st;
}

static enum status run(struct loop *l)
{
    enum status st = compare_replicas(l, true);
    if (st == ST_OK && !(l->options.goes_on && l->resume.row))
        st = recall_evaluation(l);
    end_early(l);
    if (st == ST_OK && l->options.goes_on)
        st = go_on(l);
    if (st == ST_OK)
        st = train(l);
    while (st == ST_OK && l->options.session != NULL) {
        st = finish(l);
        if (st != ST_REFUSED)
            break;
        l->leave = false;
        progress_clear(l->progress);
        st = train(l);
    }
    return st;
}

enum status loop_run(const struct loop_options *options, enum loop_end *out, struct reason *reason)
{
    struct loop l = { .options = *options,
                      .worker = options->worker,
                      .progress = options->worker->options.progress,
                      .step = options->step,
                      .end = options->worker->settings.total_steps,
                      .reason = reason };
    if (options->stop_at > 0 && options->stop_at < l.end)
        l.end = options->stop_at;
    if (options->goes_on) {
        CHECK(options->resume != NULL && options->resume->step == options->step);
        l.resume = *options->resume;
    }
    l.resume.step = options->step;
    l.resume.complete = true;
    progress_step(l.progress, l.step);
    progress_clear(l.progress);
    enum status st = run(&l);
    if (options->resume != NULL)
        *options->resume = l.resume;
    if (st == ST_STALE) {
        *out = LOOP_OVER;
        return ST_OK;
    }
    if (st == ST_OK)
        *out = l.leave ? LOOP_LEFT : LOOP_DONE;
    return st;
}
