/* Forming a generation, from hello to Ready. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/fault.h"
#include "trainer/loop/step.h"
#include "trainer/program/rank_parts.h"
#include "trainer/state/copy_interval.h"
#include "trainer/state/copy_peers.h"
#include "trainer/state/copy_restore.h"
#include "trainer/state/state.h"
#include "trainer/worker/agree.h"

#define JOIN_MS    INT64_C(300000) /* every rank of the generation must have come */
#define ERRORS_MAX ((size_t)64 * 1024)
/* To kill what a program left behind, and to say so. */
#define COMMAND_LEAVE_MS INT64_C(15000)

/* Ends the process, on the link's thread. It doesn't unwind: its further work is worthless, and
 * another thread may be anywhere. A program is ended by the main thread, which then leaves. */
static void leave_at_once(void *arg, const char *reason)
{
    struct rank *r = arg;
    LOG_INFO(r->log, "leaving: %s", reason);
    (void)pthread_mutex_lock(&r->comm_mutex);
    struct command_worker *command = r->command;
    (void)pthread_mutex_unlock(&r->comm_mutex);
    if (command == NULL)
        _exit(RANK_OVER);
    command_stop(command, COMMAND_LEAVES);
}

enum status rank_join(struct rank *r)
{
    const struct rank_options *o = r->options;
    const struct trainer_link_options link = { o->coordinator, rank_token(r), o->tls_ca };
    (void)pthread_mutex_lock(&r->comm_mutex);
    r->aborted = false;
    if (r->command != NULL)
        command_go_on(r->command);
    (void)pthread_mutex_unlock(&r->comm_mutex);
    enum status st = trainer_link_new(&link, &r->link);
    if (st != ST_OK)
        return st;
    struct session_options options = { .job = o->job,
                                       .generation = r->generation,
                                       .number = r->number,
                                       .link = trainer_link_table(r->link),
                                       .io = ckpt_store_io(r->store),
                                       .clock = clock_system(),
                                       .log = r->log,
                                       .last_words_path = o->words_path,
                                       .copies = o->copies,
                                       .over = leave_at_once,
                                       .over_arg = r,
                                       .park = rank_abort_communication,
                                       .ticks = &r->progress.ticks,
                                       .kept = r->goes_on ? &r->kept : NULL };
    st = session_open(&options, &r->session);
    if (st != ST_OK)
        return st;
    if (r->signals != NULL) {
        signals_set_session(r->signals, r->session);
    } else {
        st = signals_open(r->session, r->log, &r->signals);
    }
    if (st != ST_OK)
        return st;
    progress_init(&r->progress, r->session, r->flight, r->number, r->generation);
    if (!r->goes_on)
        fault_point("trainer.start");
    st = session_join(r->session, "", JOIN_MS, &r->assignment);
    if (st == ST_OK)
        signals_leave_at_once(r->signals, r->assignment.spare);
    if (st == ST_OK && r->assignment.spare) {
        progress_phase(&r->progress, PHASE_SPARE);
    } else if (st == ST_OK) { /* from here on people are told its rank; fault points go by it */
        log_set_rank(r->log, r->assignment.rank);
        progress_rank(&r->progress, r->assignment.rank);
    }
    return st;
}

/* Returns how long the process may take to leave. A program has its own grace, and where Cairn
 * saves it, time for a last checkpoint before; that its worker ends without waiting for it is the
 * last way out. */
static int64_t grace_of(const struct jobspec *job)
{
    const int64_t saving = job->command.saves ? job->checkpoint.grace_ms : 0;
    return jobspec_is_command(job) ? saving + job->command.grace_ms + COMMAND_LEAVE_MS
                                   : job->checkpoint.grace_ms;
}

enum status rank_parse_job(struct rank *r)
{
    const char *text = r->assignment.job_file;
    if (r->job_text != NULL && strcmp(r->job_text, text) == 0)
        return ST_OK;
    auto_buf struct buf errors;
    auto_free char *copy = strdup(text);
    auto_free struct jobspec *fresh = calloc(1, sizeof(*fresh));
    buf_init(&errors, ERRORS_MAX);
    if (r->job == NULL)
        r->job = calloc(1, sizeof(*r->job));
    if (copy == NULL || fresh == NULL || r->job == NULL)
        return ST_NO_MEMORY;
    enum status st = jobspec_parse(text, strlen(text), "job", "/", NULL, 0, fresh, &errors);
    if (st == ST_OK) {
        *r->job = *fresh;
        free(r->job_text);
        r->job_text = copy;
        copy = NULL;
        signals_set_grace(r->signals, grace_of(r->job));
        return ST_OK;
    }
    char *line_end = errors.size > 0 ? strchr(errors.data, '\n') : NULL;
    if (line_end != NULL)
        *line_end = '\0';
    reason_set(&r->reason, "%s", errors.size > 0 ? errors.data : status_string(st));
    return st;
}

/* Reads the pins of the state to start from: the algorithms that were chosen on a device, to choose
 * the same again, and by what a library is known. Errors are ignored: damage shows again, and is
 * reported, when the state is restored. */
static void read_known(const struct rank *r, char **out)
{
    if (r->job->workers.device == JOBSPEC_DEVICE_CPU && r->job->model.arch != JOBSPEC_ARCH_LIBRARY)
        return;
    if (r->assignment.memory.generation > 0) {
        (void)!copy_restore_pins(r->options->copies, &r->assignment, out);
    } else if (r->assignment.restore[0] != '\0') {
        ckpt_await(&r->io, r->assignment.restore);
        (void)!state_read_pins(&r->io, r->assignment.restore, out);
    }
}

static enum status open_worker(struct rank *r)
{
    auto_free char *known = NULL;
    read_known(r, &known);
    const bool on_cpu = r->job->workers.device == JOBSPEC_DEVICE_CPU;
    struct worker_options options = { .job = r->job,
                                      .io = &r->io,
                                      .progress = &r->progress,
                                      .rank = r->assignment.rank,
                                      .size = r->assignment.size,
                                      .shares = r->assignment.shares,
                                      .stages = r->stages.count > 1 ? &r->stages : NULL,
                                      .data_known = r->assignment.data_known,
                                      .sums = r->options->sums,
                                      .choices = on_cpu ? NULL : known,
                                      .known = known,
                                      .of_node = &r->of_node };
    return worker_open(&options, &r->worker, &r->reason);
}

static void note_stages(struct rank *r)
{
    r->stages = (struct stage_plan){ .count = r->assignment.stage_count };
    for (uint32_t i = 0; i < r->stages.count; i++) {
        r->stages.of[i].workers = r->assignment.stages[i].workers;
        r->stages.of[i].first_node = r->assignment.stages[i].first_node;
    }
}

/* Takes the worker into a generation of a pipeline, or of one that was or becomes one. What was
 * built stays if its nodes are the same. */
static enum status restage(struct rank *r)
{
    const struct session_assignment *a = &r->assignment;
    if (r->worker == NULL || (r->worker->stage == NULL && r->stages.count < 2))
        return ST_OK;
    enum status st = worker_restage(r->worker, &r->stages, a->rank, a->size, a->shares, &r->reason);
    if (st != ST_NOT_FOUND)
        return st;
    worker_close(r->worker);
    r->worker = NULL;
    r->kept.complete = false; /* the state went with the worker */
    return ST_OK;
}

enum status rank_form(struct rank *r)
{
    fault_point("trainer.forming");
    enum status st = ST_OK;
    note_stages(r);
    if (r->worker != NULL)
        r->worker->options.data_known = r->assignment.data_known;
    st = restage(r);
    if (st != ST_OK)
        return st;
    if (r->worker == NULL) {
        st = open_worker(r);
    } else if (r->worker->stage == NULL) {
        st = worker_regroup(r->worker, r->assignment.rank, r->assignment.size, r->assignment.shares,
                            &r->reason);
    }
    return st == ST_OK && !r->assignment.spare ? rank_connect(r) : st;
}

/* ---- ready ---- */

static enum ckpt_level level_of(enum jobspec_level level)
{
    switch (level) {
    case JOBSPEC_LEVEL_FAST:
        return CKPT_FAST;
    case JOBSPEC_LEVEL_MAX:
        return CKPT_MAX;
    case JOBSPEC_LEVEL_NONE:
    case JOBSPEC_LEVEL_DEFAULT:
        break;
    }
    return CKPT_DEFAULT;
}

/* Chooses the node that holds each rank's copies, if the job wants them elsewhere and there is
 * one. */
static enum status choose_copy_peers(struct rank *r)
{
    if (r->job->checkpoint.peers == 0 || r->assignment.nodes == NULL)
        return ST_OK;
    auto_free uint32_t *copy_peers = calloc(r->assignment.size, sizeof(*copy_peers));
    if (copy_peers == NULL)
        return ST_NO_MEMORY;
    enum status st = copy_peers_choose(r->assignment.nodes, r->assignment.size, copy_peers);
    if (st == ST_NOT_FOUND) {
        if (r->assignment.rank == 0) {
            LOG_WARN(r->log, "checkpoint.peers: all workers are on node %s, no copy goes elsewhere",
                     r->assignment.nodes[0]);
        }
        return ST_OK;
    }
    if (st == ST_OK) {
        r->copy_peers = copy_peers;
        copy_peers = NULL;
    }
    return st;
}

/* Gathers what each rank keeps in memory, with all ranks. Stages of a pipeline differ in size, and
 * the ranks that hold copies change with every generation, so each expects peer copies of the
 * largest size. */
static enum status gather_demands(struct rank *r, const struct session_ready *ready,
                                  struct session_demand *out)
{
    const uint32_t size = r->assignment.size;
    const struct rank_words mine = { { ready->snapshot_bytes_max } }, *all;
    enum status st = agree_exchange(r->worker, "shares", &mine, &all);
    if (st != ST_OK) {
        reason_set(&r->reason, "agreeing how large copies in memory are: %s", status_string(st));
        return st;
    }
    r->peer_copy_bytes = 0;
    for (uint32_t i = 0; i < size; i++) {
        r->peer_copy_bytes =
            all[i].word[0] > r->peer_copy_bytes ? (size_t)all[i].word[0] : r->peer_copy_bytes;
    }
    for (uint32_t i = 0; i < size; i++) {
        out[i] = session_demand_of(ready);
        out[i].share_bytes = (size_t)all[i].word[0];
        out[i].every = r->job->checkpoint.memory_every > 0;
        out[i].peer_copies = r->copy_peers != NULL ? copy_peers_count(r->copy_peers, size, i) : 0;
        out[i].peer_copy_bytes = r->peer_copy_bytes;
    }
    return ST_OK;
}

/* Fits the demands of all ranks into checkpoint.memory (session/memory/budget.h). */
static enum status fit_memory(struct rank *r, struct session_ready *ready)
{
    const uint32_t size = r->assignment.size;
    const bool begins = rank_first_step(r) == 0 && size >= r->job->workers.count;
    auto_free struct session_demand *demands = calloc(size, sizeof(*demands));
    if (demands == NULL)
        return ST_NO_MEMORY;
    enum status st = gather_demands(r, ready, demands);
    if (st == ST_OK && begins)
        st = session_bound_check(demands, size, &r->reason);
    if (st != ST_OK)
        return st;
    struct session_demand *mine = &demands[r->assignment.rank];
    r->lack = session_lack_of(demands, size);
    if (r->lack != SESSION_LACK_NOTHING) {
        session_lack_describe(r->lack, session_least(demands, size, r->lack - 1), size, &r->lacks);
        session_do_without(r->lack, mine);
        free(r->copy_peers);
        r->copy_peers = NULL;
        if (r->assignment.rank == 0)
            LOG_WARN(r->log, "%s", r->lacks.text);
    }
    ready->peers = mine->peers;
    ready->peer_copies = mine->peer_copies;
    ready->peer_copy_bytes_max = mine->peer_copy_bytes;
    ready->memory_bytes_max = mine->bytes_max;
    return ST_OK;
}

/* If the exchange can't start there are no copies at other nodes, and the job goes on. */
void rank_start_exchange(struct rank *r)
{
    const struct copy_exchange_options options = { .session = r->session,
                                                   .assignment = &r->assignment,
                                                   .copy_peers = r->copy_peers,
                                                   .copies = r->options->copies,
                                                   .peer_copy_bytes = r->peer_copy_bytes,
                                                   .secret = rank_token(r),
                                                   .log = r->log };
    enum status st = ST_NOT_FOUND;
    if (r->copy_peers == NULL)
        return;
    if (r->options->copies != NULL)
        st = copy_exchange_open(&options, &r->exchange);
    if (st != ST_OK) {
        LOG_WARN(r->log, "no copies at other nodes, going on: %s", status_string(st));
        session_peers_complete(r->session);
    }
}

void rank_stop_exchange(struct rank *r, bool waits)
{
    copy_exchange_close(r->exchange, waits);
    r->exchange = NULL;
}

static enum status rehearse(struct rank *r)
{
    enum status st = step_rehearse(r->worker);
    if (st == ST_CONFIG || st == ST_CHANGED) {
        r->reason = *feed_reason(r->worker->batches);
    } else if (st != ST_OK) {
        reason_set(&r->reason, "the first step of a spare: %s", status_string(st));
    }
    return st;
}

enum status rank_get_warm(struct rank *r)
{
    fault_point("trainer.spare");
    enum status st = worker_warm(r->worker, &r->reason);
    if (st == ST_OK)
        st = worker_connect(r->worker, NULL, &r->reason);
    if (st == ST_OK)
        st = rehearse(r);
    if (st == ST_OK)
        st = worker_pins(r->worker, &r->pins, &r->reason);
    if (st != ST_OK)
        return st;
    const struct settings *s = &r->worker->settings;
    const struct session_ready ready = { .total_steps = s->total_steps,
                                         .steps_per_epoch = s->steps_per_epoch,
                                         .parameters = r->worker->layout.param_count,
                                         .state_bytes = state_bytes(r->worker),
                                         .pins = r->pins.data };
    return session_set_warm(r->session, &ready);
}

/* Copies between saves; all else of `ready` is known. With all ranks, where the job leaves it open
 * how often they are taken. */
static enum status choose_copies(struct rank *r, struct session_ready *ready)
{
    const struct copy_interval_options options = { .worker = r->worker,
                                                   .assignment = &r->assignment,
                                                   .copies = r->options->copies };
    const int64_t every = r->job->checkpoint.memory_every;
    ready->copy_cost = r->copy_cost;
    r->adapts_copy_interval = false;
    reason_set(&r->no_copies, "%s", every == 0 ? "checkpoint.memory_every: none" : "");
    if (every == 0 || (every != JOBSPEC_EVERY_AUTO && r->lack >= SESSION_LACK_EVERY))
        return ST_OK;
    enum status st = every == JOBSPEC_EVERY_AUTO
                         ? copy_interval_choose(&options, ready, &r->no_copies)
                         : copy_interval_ask(&options, (uint64_t)every, ready, &r->no_copies);
    if (st != ST_OK) {
        reason_set(&r->reason, "agreeing how often copies in memory are taken: %s",
                   status_string(st));
        return st;
    }
    r->adapts_copy_interval = every == JOBSPEC_EVERY_AUTO && ready->memory_every > 0;
    if (ready->memory_every == 0 && r->no_copies.text[0] != '\0')
        LOG_INFO(r->log, "no copies in memory between saves: %s", r->no_copies.text);
    return ST_OK;
}

/* Returns the operations of all lanes, of all ranks; lanes that are computed twice count once. */
static double step_flops(const struct worker *w)
{
    return w->micro_flops * w->settings.accumulate * w->settings.lanes;
}

enum status rank_get_ready(struct rank *r)
{
    const uint64_t step = rank_first_step(r);
    progress_step(&r->progress, step);
    enum status st = worker_start(r->worker, step, &r->reason);
    if (st == ST_OK)
        st = worker_pins(r->worker, &r->pins, &r->reason);
    if (st == ST_OK)
        st = state_allow_saves(r->worker);
    if (st == ST_OK)
        st = choose_copy_peers(r);
    if (st != ST_OK)
        return st;
    const struct settings *s = &r->worker->settings;
    struct session_ready ready = { .total_steps = s->total_steps,
                                   .steps_per_epoch = s->steps_per_epoch,
                                   .parameters = r->worker->layout.param_count,
                                   .state_bytes = state_bytes(r->worker),
                                   .step = step,
                                   .save_every = s->save_every,
                                   .step_flops = step_flops(r->worker),
                                   .peak_flops = rank_peak_flops(r),
                                   .pins = r->pins.data,
                                   .level = level_of(r->job->checkpoint.level),
                                   .threads = (uint32_t)r->job->checkpoint.threads,
                                   .differs = r->job->checkpoint.delta,
                                   .object = ckpt_store_is_object(r->job->checkpoint.store),
                                   .peers = r->copy_peers != NULL,
                                   .memory_bytes_max = (size_t)r->job->checkpoint.memory_bytes };
    st = state_share_bytes(r->worker, &ready.snapshot_bytes_max, &r->reason);
    if (st == ST_OK)
        st = session_share_check(ready.snapshot_bytes_max, ready.state_bytes, &r->reason);
    if (st == ST_OK && (ready.peers || ready.memory_bytes_max != 0))
        st = fit_memory(r, &ready);
    if (st == ST_OK)
        st = choose_copies(r, &ready);
    ready.memory_reason = r->lack != SESSION_LACK_NOTHING ? r->lacks.text : r->no_copies.text;
    return st == ST_OK ? session_set_ready(r->session, &ready) : st;
}
