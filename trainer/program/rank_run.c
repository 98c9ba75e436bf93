#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/clock.h"
#include "common/fault.h"
#include "rpc/rpc.h"
#include "trainer/program/rank.h"
#include "trainer/program/rank_parts.h"

/* ---- a generation ---- */

/* Removes this rank's own copies, and those of others that it received. */
static void forget_copies(const struct rank *r)
{
    const char *dir = r->options->copies;
    copy_folder_forget(dir, r->assignment.generation, r->assignment.rank);
    for (uint32_t w = 0; r->copy_peers != NULL && w < r->assignment.size; w++) {
        if (r->copy_peers[w] == r->assignment.rank)
            copy_folder_forget(dir, r->assignment.generation, w);
    }
}

static const char *loop_end_text(enum loop_end end)
{
    switch (end) {
    case LOOP_DONE:
        return "done";
    case LOOP_LEFT:
        return "saved and leaving";
    case LOOP_OVER:
        return "over";
    }
    check_failed("end", __FILE__, __LINE__);
}

#define LANES_BYTES 256 /* a share is few runs of lanes */

/* "0 to 7, 12 to 13, 14 to 14" */
static const char *lanes_text(const struct worker *w, char out[LANES_BYTES])
{
    size_t size = 0;
    for (uint32_t i = 0, first = 0; i < w->lane_count && size < LANES_BYTES; i++) {
        if (i + 1 < w->lane_count && w->lanes[i + 1] == w->lanes[i] + 1)
            continue;
        size += (size_t)snprintf(out + size, LANES_BYTES - size, "%s%u to %u",
                                 first > 0 ? ", " : "", w->lanes[first], w->lanes[i]);
        first = i + 1;
    }
    return out;
}

static void log_start(const struct rank *r)
{
    char lanes[LANES_BYTES];
    LOG_INFO(r->log, "training from step %llu of %llu, lanes %s of %u, %u workers",
             (unsigned long long)r->progress.step,
             (unsigned long long)r->worker->settings.total_steps, lanes_text(r->worker, lanes),
             r->worker->settings.lanes, r->assignment.size);
    const struct stage *stage = r->worker->stage;
    if (stage != NULL && stage->instead.text[0] != '\0')
        LOG_INFO(r->log, "%s", stage->instead.text);
    if (worker_is_fast(r->worker) && !r->goes_on) {
        LOG_WARN(r->log, "parallel.reduction: fast: the state depends on the number of workers "
                         "and how they share the lanes");
    }
}

/* The newest checkpoint's step, as far as the assignment says it. */
static uint64_t committed_step(const struct rank *r)
{
    return r->assignment.restore[0] != '\0' ? r->assignment.restore_step : 0;
}

static void keep_row(void *arg, const struct session_row *row)
{
    rank_rows_keep(arg, row, clock_wall_ms(clock_system()));
}

static void tell_row(void *session, const struct session_row *row)
{
    session_add_row(session, row);
}

static void tell_rows(struct rank *r)
{
    rank_rows_begin(&r->rows, r->progress.step);
    if (r->assignment.rank == 0) {
        rank_rows_each_lacking(&r->rows, r->assignment.metric_step, rank_is_live(r), tell_row,
                               r->session);
    }
}

static enum status train(struct rank *r, int *out_code)
{
    struct state_beside beside = { .job = r->assignment.job,
                                   .generation = r->assignment.generation,
                                   .job_file = r->assignment.job_file,
                                   .pins = r->pins.data };
    struct loop_options loop = { .worker = r->worker,
                                 .session = r->session,
                                 .adapts_interval = r->adapts_copy_interval,
                                 .beside = &beside,
                                 .step = r->progress.step,
                                 .resume = &r->resume,
                                 .goes_on = rank_is_live(r),
                                 .committed = committed_step(r),
                                 .wrong = &r->blamed,
                                 .good = &r->good_step,
                                 .row = keep_row,
                                 .row_arg = &r->rows };
    enum loop_end end = LOOP_DONE;
    const uint64_t first = r->kept.step;
    tell_rows(r);
    rank_start_exchange(r);
    enum status st = loop_run(&loop, &end, &r->reason);
    r->copy_cost = session_copy_cost(r->session);
    r->kept.step = r->resume.step;
    r->kept.complete = r->resume.complete && rank_may_keep(r);
    if (r->resume.step != first)
        r->kept.computed_by = r->generation;
    if (st != ST_OK)
        return st; /* the failure is reported first, before anything is waited for */
    rank_stop_exchange(r, end != LOOP_OVER);
    *out_code = end == LOOP_OVER ? RANK_OVER : RANK_DONE;
    if (end != LOOP_OVER) /* what was finished is committed */
        forget_copies(r);
    LOG_INFO(r->log, "%s at step %llu", loop_end_text(end), (unsigned long long)r->progress.step);
    return ST_OK;
}

static enum status run_generation(struct rank *r, int *out_code)
{
    enum status st = rank_join(r);
    if (st == ST_OK)
        st = rank_parse_job(r);
    if (st == ST_OK && jobspec_is_command(r->job))
        return rank_run_command(r, out_code);
    if (st == ST_OK)
        st = rank_form(r);
    if (st == ST_OK && r->assignment.spare) {
        *out_code = RANK_OVER; /* from here on as one that parks */
        return rank_get_warm(r);
    }
    if (st == ST_OK)
        st = rank_fill_state(r);
    if (st == ST_OK)
        st = rank_get_ready(r);
    if (st != ST_OK)
        return st;
    log_start(r);
    return train(r, out_code);
}

/* ---- from one to the next ---- */

/* NULL: everything that was left is still at its store. */
static struct rank_seat *free_seat(struct rank *r)
{
    struct rank_seat *found = NULL;
    for (int i = 0; i < RANK_SEATS; i++) {
        struct rank_seat *seat = &r->seats[i];
        if (seat == r->seat || !session_retired_done(seat->retired))
            continue;
        session_retired_join(seat->retired);
        seat->retired = NULL;
        found = seat;
    }
    return found;
}

static void take_seat(struct rank *r, struct rank_seat *seat)
{
    r->seat = seat;
    r->log = &seat->log;
    *r->log = log_open("cairn-trainer");
    r->log->job = r->options->job;
    r->log->rank = (int64_t)r->number; /* until it has a rank: rank_join */
    r->log->generation = (int64_t)r->generation;
}

/* Threads are still at the store, for generations that are over: nobody waits for what they do, and
 * what they use is not freed. */
static _Noreturn void exit_beside_savers(int code)
{
    (void)fflush(NULL);
    _exit(code);
}

/* Ends the generation; the state that the process keeps stays as it is. Returns once this process
 * is told where it goes on. */
static enum status leave_generation(struct rank *r)
{
    struct session_regroup next;
    struct rank_seat *seat = free_seat(r);
    if (seat == NULL) {
        LOG_ERROR(r->log,
                  "the checkpoint store holds up the saves of %d generations before this one: the "
                  "worker ends, to be started anew; look at the store",
                  RANK_SEATS - 1);
        exit_beside_savers(RANK_CHECKPOINT);
    }
    rank_stop_exchange(r, false);
    rank_disconnect(r);
    signals_set_session(r->signals, NULL);
    if (r->assignment.spare) {
        LOG_INFO(r->log, "a spare, ready to take a seat");
    } else {
        LOG_INFO(r->log, "parked: %s state of step %llu",
                 r->kept.complete ? "has the" : "has no whole", (unsigned long long)r->kept.step);
    }
    fault_point("trainer.parked");
    enum status st = session_park(r->session, &r->kept, &next);
    if (st != ST_OK)
        return st;
    rank_rows_known(&r->rows, session_rows_known(r->session));
    st = session_retire(r->session, &r->seat->retired);
    if (st != ST_OK)
        return st;
    r->session = NULL;
    trainer_link_free(r->link);
    r->link = NULL;
    free(r->copy_peers);
    r->copy_peers = NULL;
    buf_release(&r->pins);
    buf_init(&r->pins, WORKER_PINS_MAX);
    memset(&r->assignment, 0, sizeof(r->assignment));
    r->at_store = r->of_node = false;
    r->damaged = r->blamed = 0;
    r->reason.text[0] = '\0';
    r->goes_on = true;
    r->generation = next.generation;
    r->number = next.number;
    memcpy(r->token, next.token, sizeof(r->token));
    take_seat(r, seat);
    return ST_OK;
}

/* Generation after generation, until the process is to end. */
static int run_rank(struct rank *r)
{
    for (;;) {
        int code = RANK_FAILED;
        enum status st = run_generation(r, &code);
        if (r->session == NULL) {
            LOG_ERROR(r->log, "no session with %s: %s", r->options->coordinator, status_string(st));
            return st == ST_STALE ? RANK_OVER : RANK_COMMUNICATION;
        }
        const bool parks = session_parks(r->session);
        if (st != ST_OK && !(parks && rank_can_park(r, st)))
            code = rank_report_failure(r, st);
        const bool goes_on = st == ST_OK ? code == RANK_OVER : rank_can_park(r, st);
        if (!goes_on || !session_parks(r->session))
            return code;
        if (leave_generation(r) != ST_OK)
            return RANK_OVER;
    }
}

/* ---- the process ---- */

/* Callback of struct io: looking for a file for a minute is no hang. */
static bool still_waits(void *progress)
{
    progress_tick(progress);
    return true;
}

static void open_flight(struct rank *r)
{
    const struct rank_options *o = r->options;
    if (o->flight_path == NULL)
        return;
    enum status st = flight_open(o->flight_path, o->job, o->generation, o->number, &r->flight);
    if (st != ST_OK) {
        LOG_WARN(r->log, "%s: no flight recorder, ignoring: %s", o->flight_path, status_string(st));
    }
}

static enum status open_rank(struct rank *r)
{
    const struct rank_options *o = r->options;
    r->generation = o->generation;
    r->number = o->number;
    take_seat(r, &r->seats[0]);
    buf_init(&r->pins, WORKER_PINS_MAX);
    (void)pthread_mutex_init(&r->comm_mutex, NULL);
    fault_context((int64_t)o->number, (int64_t)o->generation, 0);
    open_flight(r);
    const char *token = o->token != NULL ? o->token : "";
    if (strlen(token) >= sizeof(r->token))
        return ST_INVALID;
    memcpy(r->token, token, strlen(token) + 1);
    enum status st = ckpt_store_new(&r->store);
    if (st != ST_OK)
        return st;
    r->io = *ckpt_store_io(r->store);
    r->io.waiting = still_waits;
    r->io.waiting_arg = &r->progress;
    return ST_OK;
}

static bool savers_are_through(const struct rank *r)
{
    bool through = true;
    for (int i = 0; i < RANK_SEATS; i++)
        through = through && session_retired_done(r->seats[i].retired);
    return through;
}

/* The session before the worker: its saver may still be writing what the worker owns. */
static void release_rank(struct rank *r, int code)
{
    signals_close(r->signals);
    rank_stop_exchange(r, false);
    if (r->session != NULL)
        session_close(r->session);
    if (!savers_are_through(r)) {
        flight_close(r->flight);
        exit_beside_savers(code);
    }
    for (int i = 0; i < RANK_SEATS; i++)
        session_retired_join(r->seats[i].retired);
    trainer_link_free(r->link);
    worker_close(r->worker);
    command_free(r->command);
    ckpt_store_free(r->store);
    buf_release(&r->pins);
    free(r->copy_peers);
    free(r->job);
    free(r->job_text);
    flight_close(r->flight);
    (void)pthread_mutex_destroy(&r->comm_mutex);
}

int rank_run(const struct rank_options *options)
{
    static struct rank r; /* large */
    r.options = options;
    signals_block();
    rpc_init();
    int code = RANK_FAILED;
    enum status st = open_rank(&r);
    if (st == ST_OK) {
        code = run_rank(&r);
    } else {
        LOG_ERROR(r.log, "cannot start: %s", status_string(st));
    }
    release_rank(&r, code);
    rpc_shutdown();
    return code;
}
