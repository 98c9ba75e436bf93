/* Calls of the step thread, from session_open to session_close; snapshots are in snapshot.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "common/cleanup.h"
#include "common/fault.h"
#include "session/internal.h"

#define ORPHAN_MS        600000
#define FAULT_WAIT_MS    200
#define FINISHED_WAIT_MS 1000

/* ---- reading back: what its thread calls ---- */

static void hear_news(void *arg, const struct readback_news *news)
{
    struct session *session = arg;
    if (news->done && news->status == ST_OK) {
        LOG_INFO(session->options.log, "step %llu was read back up to file %u (%.1f MB)",
                 (unsigned long long)news->step, news->shard, (double)news->bytes / 1e6);
    } else if (news->done) {
        LOG_WARN(session->options.log, "file %u of step %llu can't be read back: %s", news->shard,
                 (unsigned long long)news->step, news->why.text);
    }
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_read_news(&session->fsm, news);
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
}

static bool is_saving(void *arg)
{
    struct session *session = arg;
    (void)pthread_mutex_lock(&session->mutex);
    const bool saving = session_fsm_writes(&session->fsm);
    (void)pthread_mutex_unlock(&session->mutex);
    return saving;
}

/* ---- open and close ---- */

static enum status session_start(struct session *session)
{
    const struct session_options *o = &session->options;
    session->out = calloc(1, sizeof(*session->out));
    if (session->out == NULL)
        return ST_NO_MEMORY;
    enum status st = session_fsm_init(&session->fsm, o->job, o->generation, o->number,
                                      (uint32_t)getpid(), session_now(session));
    if (st == ST_OK && o->kept != NULL)
        session_fsm_offer_state(&session->fsm, o->kept);
    session->options.kept = NULL; /* the caller's */
    const struct readback_options readback = {
        .io = o->io, .news = hear_news, .busy = is_saving, .arg = session
    };
    if (st == ST_OK)
        st = readback_new(&readback, &session->readback);
    if (st != ST_OK)
        return st;
    session->has_link_thread =
        pthread_create(&session->link_thread, NULL, session_link_run, session) == 0;
    session->has_saver_thread =
        pthread_create(&session->saver_thread, NULL, session_saver_run, session) == 0;
    session->has_copier_thread =
        pthread_create(&session->copier_thread, NULL, session_copier_run, session) == 0;
    return session->has_link_thread && session->has_saver_thread && session->has_copier_thread
               ? ST_OK
               : ST_NO_MEMORY;
}

enum status session_open(const struct session_options *options, struct session **out)
{
    struct session *session = calloc(1, sizeof(*session));
    if (session == NULL)
        return ST_NO_MEMORY;
    session->options = *options;
    if (session->options.orphan_ms == 0)
        session->options.orphan_ms = ORPHAN_MS;
    atomic_init(&session->phase, "");
    atomic_init(&session->collective, "none");
    session_rendezvous_init(session);
    (void)pthread_mutex_init(&session->mutex, NULL);
    (void)pthread_mutex_init(&session->last_words_mutex, NULL);
    clock_cond_init(&session->changed);
    const enum status st = session_start(session);
    if (st != ST_OK) {
        session_close(session);
        return st;
    }
    *out = session;
    return ST_OK;
}

void session_end_threads(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->closing = true;
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
    if (session->has_link_thread)
        (void)pthread_join(session->link_thread, NULL);
    if (session->has_copier_thread)
        (void)pthread_join(session->copier_thread, NULL);
    (void)pthread_mutex_lock(&session->mutex);
    session->options.link = NULL; /* the other threads have nothing to say */
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_release(struct session *session)
{
    if (session->has_saver_thread)
        (void)pthread_join(session->saver_thread, NULL);
    readback_free(session->readback);
    session_fsm_release(&session->fsm);
    for (int i = 0; i < SESSION_FILES_MAX; i++)
        copy_file_close(&session->copies.files[i]);
    free(session->out);
    (void)pthread_cond_destroy(&session->changed);
    (void)pthread_mutex_destroy(&session->last_words_mutex);
    (void)pthread_mutex_destroy(&session->mutex);
    free(session);
}

void session_close(struct session *session)
{
    if (session == NULL)
        return;
    session_end_threads(session);
    session_release(session);
}

/* ---- joining ---- */

enum status session_join(struct session *session, const char *pins, int64_t timeout_ms,
                         struct session_assignment *out)
{
    const int64_t deadline_ms = session_deadline(timeout_ms);
    session_write_last_words(session); /* of a process that has left some already */
    auto_free struct session_copy *copies = NULL;
    size_t count = 0;
    enum status st =
        copy_folder_list(session->options.copies, session->options.job, &copies, &count);
    (void)pthread_mutex_lock(&session->mutex);
    if (st == ST_OK)
        st = session_fsm_offer(&session->fsm, copies, count);
    if (st == ST_OK)
        st = session_fsm_hello(&session->fsm, pins);
    session_wake(session);
    while (st == ST_OK && session->fsm.assigned == NULL && !session_fsm_ended(&session->fsm)) {
        if (!session_wait(session, deadline_ms))
            st = session->fsm.ever_up ? ST_TIMED_OUT : ST_UNREACHABLE;
    }
    const bool spare = session_fsm_is_spare(&session->fsm) && !session->fsm.over;
    if (st == ST_OK && session_fsm_ended(&session->fsm) && !spare)
        st = ST_STALE;
    if (st == ST_OK)
        st = session_fsm_assignment(&session->fsm, out);
    if (st == ST_OK) {
        session->rank = out->rank;
        session->size = out->size;
        session->copies.restored = out->memory;
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

struct session_demand session_demand_of(const struct session_ready *ready)
{
    return (struct session_demand){ .share_bytes = ready->snapshot_bytes_max,
                                    .threads = ready->threads,
                                    .every = ready->memory_every > 0,
                                    .differs = ready->differs,
                                    .state_bytes = (size_t)ready->state_bytes,
                                    .object = ready->object,
                                    .peers = ready->peers,
                                    .peer_copies = ready->peer_copies,
                                    .peer_copy_bytes = ready->peer_copy_bytes_max,
                                    .bytes_max = ready->memory_bytes_max };
}

enum status session_set_ready(struct session *session, const struct session_ready *ready)
{
    const struct session_demand demand = session_demand_of(ready);
    struct session_ready planned = *ready;
    struct session_budget budget;
    enum status st = session_budget(&demand, &budget);
    if (st != ST_OK)
        return st;
    planned.threads = budget.threads;
    (void)pthread_mutex_lock(&session->mutex);
    if (session_fsm_ended(&session->fsm)) {
        st = ST_STALE;
    } else {
        session_copies_want(session, &budget, ready);
        st = session_fsm_ready(&session->fsm, &planned);
        if (session_fsm_due_by_rule(&session->fsm, ready->step + 1) != SESSION_DUE_NOTHING)
            session_copies_need(session);
        session_hear_steps(session);
        session_tell_due(session);
    }
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

/* ---- how often copies are taken ---- */

void session_note_step(struct session *session, double step_ms)
{
    (void)pthread_mutex_lock(&session->mutex);
    session_copy_cost_note(&session->copies.copy_cost.step_ms, step_ms);
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_note_lanes(struct session *session, uint32_t lanes, int64_t us)
{
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_note_lanes(&session->fsm, lanes, us);
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_note_traffic(struct session *session, uint64_t sent_bytes, uint64_t received_bytes)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->fsm.traffic = (struct session_traffic){ true, sent_bytes, received_bytes };
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_note_audited(struct session *session, uint64_t step)
{
    (void)pthread_mutex_lock(&session->mutex);
    session->fsm.audited = step;
    (void)pthread_mutex_unlock(&session->mutex);
}

struct session_copy_cost session_copy_cost(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    const struct session_copy_cost copy_cost = session->copies.copy_cost;
    (void)pthread_mutex_unlock(&session->mutex);
    return copy_cost;
}

void session_set_memory_every(struct session *session, uint64_t every)
{
    CHECK(every > 0);
    (void)pthread_mutex_lock(&session->mutex);
    const uint64_t before = session->fsm.ready.memory_every;
    CHECK(before > 0); /* there are files for them */
    session->fsm.ready.memory_every = every;
    session_tell_due(session);
    (void)pthread_mutex_unlock(&session->mutex);
    if (every != before && session->rank == 0) {
        LOG_INFO(session->options.log, "copies in memory: after every %llu steps from now on",
                 (unsigned long long)every);
    }
}

/* ---- rows, saves ---- */

void session_add_row(struct session *session, const struct session_row *row)
{
    const int64_t wall_ms =
        row->wall_ms != 0 ? row->wall_ms : clock_wall_ms(session->options.clock);
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_row(&session->fsm, row, wall_ms);
    (void)pthread_mutex_unlock(&session->mutex);
}

uint64_t session_rows_known(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    const uint64_t step = session->fsm.row_known;
    (void)pthread_mutex_unlock(&session->mutex);
    return step;
}

enum session_due session_due_at(struct session *session, uint64_t step)
{
    (void)pthread_mutex_lock(&session->mutex);
    const enum session_due due = session_fsm_due(&session->fsm, step);
    if (due != SESSION_DUE_NOTHING || step > session->fsm.ready.step)
        session_copies_need(session);
    session_tell_due(session);
    (void)pthread_mutex_unlock(&session->mutex);
    return due;
}

enum status session_settle(struct session *session, int64_t timeout_ms, uint64_t *out_committed)
{
    const int64_t deadline_ms = session_deadline(timeout_ms);
    enum status st = ST_OK;
    (void)pthread_mutex_lock(&session->mutex);
    if (session_fsm_parks(&session->fsm))
        st = ST_STALE; /* saves that were not settled were given up */
    while (st == ST_OK && (session->fsm.stays || !session_fsm_settled(&session->fsm))) {
        if (session_fsm_ended(&session->fsm)) {
            st = ST_STALE;
        } else if (session->fsm.stays) {
            st = ST_REFUSED;
        } else if (!session_wait_at_store(session, deadline_ms)) {
            st = ST_TIMED_OUT;
        }
    }
    if (st == ST_OK)
        *out_committed = session->fsm.committed_step;
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

enum status session_last(struct session *session, uint64_t step, const char *reason)
{
    enum status st = ST_STALE;
    (void)pthread_mutex_lock(&session->mutex);
    if (!session_fsm_ended(&session->fsm)) {
        session_fsm_last(&session->fsm, step, reason);
        session_tell_due(session);
        session_wake(session);
        st = ST_OK;
    }
    (void)pthread_mutex_unlock(&session->mutex);
    return st;
}

void session_wanted(struct session *session, bool leaves, uint64_t grace_ms, const char *reason)
{
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_wanted(&session->fsm, leaves, grace_ms, reason);
    session_wake(session);
    (void)pthread_mutex_unlock(&session->mutex);
}

/* ---- the end ---- */

/* Writes the core's latest change into the last words and sends it to the coordinator. Waits until
 * *said, under the mutex, shows that it was sent. */
static void say_now(struct session *session, const bool *said, int64_t deadline_ms)
{
    session_write_last_words(session);
    (void)pthread_mutex_lock(&session->mutex);
    session_wake(session);
    bool waiting = true;
    while (waiting && !session->fsm.over && !*said)
        waiting = session_wait(session, deadline_ms);
    (void)pthread_mutex_unlock(&session->mutex);
}

void session_fault(struct session *session, const struct session_fault *said)
{
    const int64_t deadline_ms = session_deadline(FAULT_WAIT_MS);
    const struct session_progress progress = session_progress_of(session);
    struct session_fault_record fault = { .of_node = said->of_node,
                                          .outside = said->outside,
                                          .stays = said->stays,
                                          .kind = said->kind,
                                          .shard = said->shard,
                                          .good_step = said->good_step,
                                          .step = progress.step };
    reason_set(&fault.why, "%s", said->message);
    (void)snprintf(fault.phase, sizeof(fault.phase), "%s", progress.phase);
    for (size_t i = 0; i < said->rank_count && i < SESSION_BLAMED_MAX; i++)
        fault.ranks[fault.rank_count++] = said->ranks[i];
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_fault(&session->fsm, &fault);
    (void)pthread_mutex_unlock(&session->mutex);
    say_now(session, &session->fsm.fault.said_ever, deadline_ms);
}

void session_finished(struct session *session, uint64_t step)
{
    const int64_t deadline_ms = session_deadline(FINISHED_WAIT_MS);
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_finished(&session->fsm, step);
    (void)pthread_mutex_unlock(&session->mutex);
    say_now(session, &session->fsm.finished_said_ever, deadline_ms);
}

bool session_is_over(const struct session *session)
{
    struct session *mine = (struct session *)session; /* for the lock's sake */
    (void)pthread_mutex_lock(&mine->mutex);
    const bool over = session_fsm_ended(&mine->fsm);
    (void)pthread_mutex_unlock(&mine->mutex);
    return over;
}
