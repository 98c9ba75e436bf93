/*
 * The link thread: opens, says, hears, opens again.
 *
 *     waiting -> opening   [wait_to_open]       once session_join has a hello to say, and after a
 *                                               pause within the plan's spread, or 1 s
 *     opening -> up        [session_link_run]   [link_talk] until it is lost
 *     up      -> waiting   [link_lost]
 *     any     -> over      [link_end]           refused as stale, or no coordinator for orphan_ms:
 *                                               `over` is called, the link is closed. An order Over
 *                                               does the same by way of session_fsm_end
 *
 * An order Park changes nothing here: `park` is called, and the session goes on saying and hearing.
 */
#include "common/backoff.h"
#include "common/fault.h"
#include "session/internal.h"

/* Units: milliseconds. */
#define OPEN_MS  2000
#define CLOSE_MS 1000
#define TICK_MS  250 /* looks at least so often for something to say */

static void link_end(struct session *session, const char *reason)
{
    (void)pthread_mutex_lock(&session->mutex);
    session_fsm_end(&session->fsm, reason);
    session_tell_due(session);
    (void)pthread_cond_broadcast(&session->changed);
    (void)pthread_mutex_unlock(&session->mutex);
}

static void link_lost(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    const bool was_up = session->fsm.up;
    session_fsm_link_down(&session->fsm, session_now(session));
    (void)pthread_cond_broadcast(&session->changed);
    (void)pthread_mutex_unlock(&session->mutex);
    if (was_up)
        LOG_INFO(session->options.log, "session lost, opening it again");
}

/* Sends what there is to send. ST_FULL: the rest waits. */
static enum status link_say(struct session *session)
{
    const struct session_link *link = session->options.link;
    for (;;) {
        const struct session_progress progress = session_progress_of(session);
        (void)pthread_mutex_lock(&session->mutex);
        const int64_t now_ms = session_now(session);
        session_fsm_tick(&session->fsm, now_ms);
        const bool some = session_fsm_next(&session->fsm, &progress, now_ms, session->out);
        (void)pthread_mutex_unlock(&session->mutex);
        if (!some)
            return ST_OK;
        const enum status st = link->send(link->self, &session->out->message);
        if (st != ST_OK)
            return st;
        (void)pthread_mutex_lock(&session->mutex);
        session_fsm_sent(&session->fsm, session->out, now_ms);
        (void)pthread_cond_broadcast(&session->changed);
        (void)pthread_mutex_unlock(&session->mutex);
        if (session->out->kind == SESSION_OUT_SAVE && session->out->state == SESSION_SAVE_REPORTING)
            fault_point("save.reported");
    }
}

/* Once, before anything else is heard: what the step thread waits for must let it go. */
static void link_park(struct session *session)
{
    const struct session_options *o = &session->options;
    (void)pthread_mutex_lock(&session->mutex);
    const bool tell = session_fsm_parks(&session->fsm) && !session->park_called &&
                      !session_fsm_is_spare(&session->fsm); /* a spare communicates with nobody */
    session->park_called = session->park_called || tell;
    if (tell && o->park == NULL)
        session_fsm_end(&session->fsm, session->fsm.park.reason.text);
    (void)pthread_mutex_unlock(&session->mutex);
    if (tell && o->park != NULL)
        o->park(o->over_arg, session->fsm.park.reason.text);
}

static enum status link_hear(struct session *session)
{
    const struct session_link *link = session->options.link;
    Cairn__V1__TrainerOrder *order = NULL;
    const enum status st = link->recv(link->self, TICK_MS, &order);
    if (st != ST_OK)
        return st;
    const bool is_done = order->body_case == CAIRN__V1__TRAINER_ORDER__BODY_SAVE_DONE;
    if (order->body_case == CAIRN__V1__TRAINER_ORDER__BODY_SAVE_AT)
        fault_point("save.announced");
    struct readback_order read;
    (void)pthread_mutex_lock(&session->mutex);
    session_hear_steps(session);
    session_fsm_order(&session->fsm, order, session_now(session));
    session_tell_due(session);
    const bool reads = session_fsm_read_order(&session->fsm, &read);
    (void)pthread_cond_broadcast(&session->changed);
    (void)pthread_mutex_unlock(&session->mutex);
    link_park(session);
    if (reads)
        readback_start(session->readback, &read);
    if (is_done)
        fault_point("save.done"); /* the last words still have the report */
    session_write_last_words(session);
    return ST_OK;
}

/* Talks while the link is up: until it is lost or there is no more use for it. */
static void link_talk(struct session *session)
{
    for (;;) {
        (void)pthread_mutex_lock(&session->mutex);
        const bool leave = session->closing || session->fsm.over;
        (void)pthread_mutex_unlock(&session->mutex);
        if (leave)
            return;
        enum status st = link_say(session);
        if (st == ST_OK || st == ST_FULL || st == ST_AGAIN)
            st = link_hear(session);
        if (st == ST_STALE) {
            link_end(session, "the coordinator refused the session: this generation is over");
            return;
        }
        if (st != ST_OK && st != ST_TIMED_OUT && st != ST_AGAIN) {
            link_lost(session);
            return;
        }
    }
}

static int64_t some_pause(struct session *session)
{
    uint32_t spread_ms = 0;
    (void)pthread_mutex_lock(&session->mutex);
    if (session->fsm.assigned != NULL)
        spread_ms = session->fsm.assigned->plan->spread_ms;
    (void)pthread_mutex_unlock(&session->mutex);
    return backoff_connect_ms(spread_ms);
}

static void check_orphaned(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    const int64_t alone_ms = session_now(session) - session->fsm.down_since_ms;
    (void)pthread_mutex_unlock(&session->mutex);
    if (alone_ms < session->options.orphan_ms)
        return;
    struct reason reason;
    reason_set(&reason, "no coordinator for %lld s", (long long)(alone_ms / 1000));
    link_end(session, reason.text);
}

/* Waits until there is something to open for. false: closing or over. */
static bool wait_to_open(struct session *session, int64_t backoff_ms)
{
    (void)pthread_mutex_lock(&session->mutex);
    while (!session->closing && !session->fsm.over && session->fsm.pins == NULL)
        (void)session_wait(session, session_deadline(BACKOFF_CONNECT_MS));
    const int64_t deadline_ms = session_deadline(backoff_ms);
    bool waiting = backoff_ms > 0;
    while (waiting && !session->closing && !session->fsm.over)
        waiting = session_wait(session, deadline_ms);
    const bool on = !session->closing && !session->fsm.over;
    (void)pthread_mutex_unlock(&session->mutex);
    return on;
}

/* Returns how long closing the link may wait. A retired session doesn't wait: the coordinator told
 * it to go on only after it had heard everything. */
static int64_t close_patience_ms(struct session *session)
{
    (void)pthread_mutex_lock(&session->last_words_mutex);
    const int64_t patience_ms = session->retired ? 0 : CLOSE_MS;
    (void)pthread_mutex_unlock(&session->last_words_mutex);
    return patience_ms;
}

void *session_link_run(void *arg)
{
    struct session *session = arg;
    const struct session_link *link = session->options.link;
    int64_t backoff_ms = 0;
    while (wait_to_open(session, backoff_ms)) {
        const enum status st = link->open(link->self, OPEN_MS);
        if (st == ST_OK) {
            (void)pthread_mutex_lock(&session->mutex);
            session_fsm_link_up(&session->fsm);
            (void)pthread_mutex_unlock(&session->mutex);
            link_talk(session);
            backoff_ms = some_pause(session);
            continue;
        }
        if (st == ST_STALE)
            link_end(session, "the coordinator refused the session: this generation is over");
        check_orphaned(session);
        backoff_ms = some_pause(session);
    }
    (void)pthread_mutex_lock(&session->mutex);
    const bool tell = session->fsm.over && !session->over_called;
    session->over_called = true;
    (void)pthread_mutex_unlock(&session->mutex);
    if (tell) {
        session_write_last_words(session);
        if (session->options.over != NULL)
            session->options.over(session->options.over_arg, session->fsm.over_reason.text);
    }
    link->close(link->self, close_patience_ms(session));
    return NULL;
}
