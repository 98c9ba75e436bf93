/*
 * The lowest layer of the machine, which all its files use: actions, the reason that people see,
 * what a state means. It also accounts for where the seconds went, and ends a generation or the
 * job.
 */
#include "server/jobfsm/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"

const char *fsm_lost_name(enum fsm_lost lost)
{
    static const char *const names[FSM_LOST_COUNT] = {
        [FSM_LOST_DETECT] = "detect", [FSM_LOST_FORM] = "form",   [FSM_LOST_RESTORE] = "restore",
        [FSM_LOST_REPLAY] = "replay", [FSM_LOST_STALL] = "stall", [FSM_LOST_WAIT] = "wait",
    };
    CHECK(lost < FSM_LOST_COUNT);
    return names[lost];
}

/* ---- actions ---- */

struct fsm_action *fsm_act(struct fsm_ctx *t, enum fsm_action_kind kind)
{
    CHECK(t->out->count < FSM_ACTIONS_MAX);
    struct fsm_action *act = &t->out->list[t->out->count++];
    *act =
        (struct fsm_action){ .kind = kind, .rank = FSM_ALL_RANKS, .generation = t->m->generation };
    if (kind < FSM_ACT_FIRST_OUTSIDE)
        t->m->dirty = true;
    return act;
}

struct fsm_action *fsm_act_on(struct fsm_ctx *t, enum fsm_action_kind kind, uint64_t step,
                              uint32_t generation)
{
    struct fsm_action *act = fsm_act(t, kind);
    act->step = step;
    act->generation = generation;
    return act;
}

void fsm_ask_store(struct fsm_ctx *t, enum fsm_task task, uint64_t step, uint32_t generation)
{
    fsm_act_on(t, FSM_ACT_STORE, step, generation)->task = task;
}

static void tell(struct fsm_ctx *t, uint64_t step, const char *what, const char *format,
                 va_list args)
{
    struct fsm_action *act = fsm_act(t, FSM_ACT_EVENT);
    fsm_text(act->what, sizeof(act->what), what);
    act->step = step;
    (void)vsnprintf(act->message, sizeof(act->message), format, args);
    reason_mend(act->message);
}

void fsm_emit_event(struct fsm_ctx *t, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(t, fsm_step_now(t->m), what, format, args);
    va_end(args);
}

void fsm_emit_event_of(struct fsm_ctx *t, uint64_t step, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(t, step, what, format, args);
    va_end(args);
}

void fsm_text(char *out, size_t capacity, const char *text)
{
    (void)snprintf(out, capacity, "%s", text != NULL ? text : "");
}

void fsm_set_reason(struct fsm *m, const char *format, ...)
{
    char text[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    reason_mend(text);
    if (strcmp(text, m->reason) == 0)
        return;
    fsm_text(m->reason, sizeof(m->reason), text);
    m->dirty = true;
}

/* ---- what people see ---- */

uint64_t fsm_step_now(const struct fsm *m)
{
    if (!fsm_trains(m))
        return m->state == FSM_FORMING ? m->restore.step : m->step_max;
    uint64_t step = m->restore.step;
    bool heard = false;
    for (uint32_t i = 0; i < m->size; i++) {
        heard = heard || m->ranks[i].joined;
        if (m->ranks[i].step > step)
            step = m->ranks[i].step;
    }
    return heard ? step : m->step_max;
}

const char *fsm_health(const struct fsm *m)
{
    if (m->state == FSM_RECOVERING)
        return "recovering";
    if (fsm_alive(m)) {
        for (uint32_t i = 0; i < m->size; i++) {
            const enum fsm_agent agent = m->ranks[i].agent;
            if (!m->ranks[i].gone && agent >= FSM_AGENT_SILENT)
                return "unsupervised";
        }
        if (m->window_until || m->store_full.unsaved || m->store_full.consecutive > 0)
            return "degraded"; /* the job trains, and what it trains is not saved */
    }
    return m->state == FSM_FAILED ? "degraded" : "ok";
}

enum fsm_state fsm_intended(enum fsm_intent intent)
{
    switch (intent) {
    case FSM_INTENT_PAUSE:
        return FSM_PAUSED;
    case FSM_INTENT_STOP:
        return FSM_STOPPED;
    case FSM_INTENT_DRAIN:
        return FSM_QUEUED;
    case FSM_INTENT_FINISH:
        return FSM_SUCCEEDED;
    case FSM_INTENT_NONE: /* its worker leaves */
        break;
    }
    return FSM_RECOVERING;
}

/* ---- silence ---- */

/* How long a session may be open without a message: longer than its agent may be silent. */
int64_t fsm_mute_ms(const struct fsm *m)
{
    const int64_t twice = 2 * m->config.silent_ms;
    return twice > FSM_SESSION_MS ? twice : FSM_SESSION_MS;
}

/* How long a lost session has to come back: where there are thousands, each waits for its turn. */
int64_t fsm_session_ms(const struct fsm *m)
{
    return fsm_mute_ms(m) + m->config.spread_ms;
}

bool fsm_is_silent(const struct fsm_ctx *t, const struct fsm_rank *rank)
{
    return rank->agent >= FSM_AGENT_SILENT && t->now - rank->heard_at >= t->m->config.silent_ms;
}

/* Counts a rank as gone that nobody saw go: no other trainer gets its slot until somebody did. */
void fsm_count_as_gone(struct fsm_ctx *t, uint32_t rank)
{
    fsm_rank_gone(t->m, rank);
    t->m->dirty = true;
    fsm_act(t, FSM_ACT_UNSEEN)->rank = rank;
}

/* ---- accounts ---- */

void fsm_note_stall(struct fsm *m, int64_t us)
{
    m->accounts.stall_us += us;
    m->accounts.lost_ms[FSM_LOST_STALL] += m->accounts.stall_us / 1000;
    m->accounts.stall_us %= 1000;
}

void fsm_account(struct fsm *m, int64_t now)
{
    int64_t ms = now - m->accounts.at;
    m->accounts.at = now;
    if (ms <= 0)
        return;
    switch (m->state) {
    case FSM_QUEUED:
        m->accounts.lost_ms[FSM_LOST_WAIT] += ms;
        break;
    case FSM_PLACING:
        m->accounts.lost_ms[FSM_LOST_FORM] += ms;
        break;
    case FSM_FORMING:
        m->accounts.lost_ms[m->ranks[0].assigned ? FSM_LOST_RESTORE : FSM_LOST_FORM] += ms;
        break;
    case FSM_RUNNING:
    case FSM_SAVING:
        if (fsm_step_now(m) < m->replay_until) {
            m->accounts.lost_ms[FSM_LOST_REPLAY] += ms;
        } else {
            m->accounts.train_ms += ms;
        }
        break;
    case FSM_RECOVERING:
        m->accounts.lost_ms[!fsm_ends(m) ? FSM_LOST_WAIT : FSM_LOST_FORM] += ms;
        break;
    case FSM_NONE:
    case FSM_PAUSED:
    case FSM_SUCCEEDED:
    case FSM_FAILED:
    case FSM_STOPPED:
    case FSM_KILLED:
        break;
    }
}

int64_t fsm_lost_total(const struct fsm *m)
{
    int64_t lost = 0;
    for (int i = 0; i < FSM_LOST_COUNT; i++)
        lost += i == FSM_LOST_STALL ? 0 : m->accounts.lost_ms[i];
    return lost;
}

double fsm_goodput(const struct fsm *m)
{
    const int64_t stall = m->accounts.lost_ms[FSM_LOST_STALL];
    const int64_t trained = m->accounts.train_ms > stall ? m->accounts.train_ms - stall : 0;
    const int64_t since = m->accounts.train_ms + fsm_lost_total(m) - m->unstarted_ms;
    return m->started_wall == 0 || since <= 0 ? __builtin_nan("") : (double)trained / (double)since;
}

/* ---- the record of a recovery ---- */

enum recovery_kind fsm_restored_from(const struct fsm *m)
{
    if (m->restore.live)
        return RECOVERY_LIVE;
    if (m->restore.memory_generation != 0)
        return RECOVERY_MEMORY;
    return m->restore.generation != 0 ? RECOVERY_CHECKPOINT : RECOVERY_SEED;
}

static enum recovery_part part_of_now(const struct fsm *m)
{
    const bool formed = m->recovery.state == RECOVERY_FORMING;
    if (formed && m->state == FSM_FORMING)
        return m->ranks[0].assigned ? RECOVERY_RESTORE : RECOVERY_FORM;
    if (formed)
        return RECOVERY_REPLAY;
    return fsm_alive(m) ? RECOVERY_END : RECOVERY_WAIT;
}

/* True while time is booked for the recovery: nobody waits for a job that is paused, or over. */
static bool is_booked(const struct fsm *m)
{
    return recovery_open(&m->recovery) && m->state != FSM_PAUSED && !fsm_state_final(m->state);
}

void fsm_recovery_book(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (is_booked(m))
        recovery_book(&m->recovery, part_of_now(m), t->now - m->accounts.at, t->wall);
}

static void close_recovery(struct fsm_ctx *t, bool done, int64_t late_ms)
{
    struct fsm *m = t->m;
    if (m->recovery.state != RECOVERY_FORMING)
        return;
    recovery_close(&m->recovery, done, late_ms);
    m->recovered = m->recovery;
    m->unbooked_ms = 0;
    fsm_act(t, FSM_ACT_RECOVERY);
}

void fsm_recovery_mend(struct fsm *m)
{
    const struct fsm_fault *cause = &m->cause;
    const bool blamed = cause->rank < m->size;
    if (m->recovery.state != RECOVERY_ENDING || cause->kind == FSM_FAULT_NONE)
        return;
    recovery_blame(&m->recovery, (uint32_t)cause->kind, cause->rank,
                   blamed ? m->ranks[cause->rank].node : "", cause->phase, cause->message);
}

/* Takes the steps into account of which nobody heard before the workers' last words. */
static void hear_last_words(struct fsm *m)
{
    for (uint32_t i = 0; i < m->size; i++) {
        if (m->ranks[i].step <= m->step_max)
            continue;
        m->step_max = m->ranks[i].step;
        m->progressed = true;
        m->dirty = true;
    }
    if (m->recovery.state == RECOVERY_ENDING)
        m->recovery.mark = m->step_max;
}

void fsm_recovery_fail(struct fsm_ctx *t, int64_t detect_ms)
{
    struct fsm *m = t->m;
    hear_last_words(m);
    close_recovery(t, false, detect_ms);
    recovery_begin(&m->recovery, m->generation, m->step_max, detect_ms, t->wall);
    fsm_recovery_mend(m);
}

/* Ends a generation's record, or begins one; a generation that failed has its own already. */
void fsm_recovery_end(struct fsm_ctx *t, enum fsm_state to)
{
    struct fsm *m = t->m;
    fsm_recovery_mend(m);
    hear_last_words(m);
    close_recovery(t, false, 0);
    if (m->recovery.state != RECOVERY_ENDING && !fsm_state_final(to))
        recovery_begin(&m->recovery, m->generation, m->step_max, 0, t->wall);
}

void fsm_recovery_form(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->recovery.state != RECOVERY_ENDING)
        return; /* the first generation, or one of before there were records */
    recovery_form(&m->recovery, m->generation);
    recovery_restored(&m->recovery, fsm_restored_from(m), m->restore.step, m->step_max);
    m->recoveries++;
}

/* True if a rank has finished what had been finished before. */
static bool is_caught_up(const struct fsm *m)
{
    bool caught_up = false;
    for (uint32_t i = 0; i < m->size && !caught_up; i++)
        caught_up = m->ranks[i].joined && m->ranks[i].step >= m->recovery.mark;
    return caught_up;
}

static bool is_any_joined(const struct fsm *m)
{
    bool joined = false;
    for (uint32_t i = 0; i < m->size && !joined; i++)
        joined = m->ranks[i].joined;
    return joined;
}

void fsm_recovery_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->since_state != m->state) {
        m->since_state = m->state;
        m->since_wall = t->wall;
    }
    if (m->recovery.state != RECOVERY_FORMING)
        return;
    if (m->state == FSM_FORMING)
        recovery_restored(&m->recovery, fsm_restored_from(m), m->restore.step, m->step_max);
    if (!fsm_trains(m))
        return;
    if (is_caught_up(m)) {
        close_recovery(t, true, 0);
    } else if (m->unbooked_ms > 0 && is_any_joined(m)) {
        recovery_book(&m->recovery, RECOVERY_REPLAY, m->unbooked_ms, t->wall);
        m->unbooked_ms = 0;
    }
}

/* Books the time without a coordinator for what was going on. Whether steps were repeated in it,
 * nobody knows until a worker says where it is. */
void fsm_recovery_resume(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!is_booked(m))
        return;
    const int64_t away = t->wall - m->recovery.booked_ms;
    if (m->recovery.state == RECOVERY_FORMING && fsm_trains(m)) {
        m->unbooked_ms = away;
    } else {
        recovery_book(&m->recovery, part_of_now(m), away, t->wall);
    }
}

/* ---- ending ---- */

void fsm_unplace(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    CHECK(m->state == FSM_PLACING);
    FSM_MOVE(m, m->generation == 0 ? FSM_QUEUED : FSM_RECOVERING);
    FSM_GEN_MOVED(m);
    fsm_act(t, FSM_ACT_SCHEDULE);
}

int64_t fsm_leave_ms(const struct fsm *m)
{
    return FSM_LEAVE_MS + m->config.grace_ms;
}

static void close_sessions(struct fsm_ctx *t)
{
    fsm_text(fsm_act(t, FSM_ACT_CLOSE)->message, LIMIT_REASON, "this generation has ended");
}

void fsm_end_ranks(struct fsm_ctx *t, enum fsm_state to, bool gently)
{
    struct fsm *m = t->m;
    bool again = fsm_ends(m);
    CHECK(fsm_alive(m));
    const bool parked = m->ending.parks || fsm_has_waiting(m);
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].parked = false; /* parked ranks are ended with the others */
    m->ending.parks = false;
    m->ending.to = to;
    m->dirty = true;
    m->window_until = 0;
    if (to == FSM_RECOVERING || to == FSM_FAILED || m->state == FSM_PLACING) {
        FSM_MOVE(m, FSM_RECOVERING);
    } else if (m->state == FSM_RUNNING) {
        FSM_MOVE(m, FSM_SAVING);
    }
    if (gently && !parked) {
        m->ending.hard_at = t->now + fsm_leave_ms(m);
        FSM_GEN_MOVED(m);
        if (m->config.saves_nothing) /* others know: they have saved */
            close_sessions(t);
        return;
    }
    if (again && !parked && m->ending.hard_at == 0)
        return;
    m->ending.hard_at = 0;
    FSM_GEN_MOVED(m);
    m->ending.ended_at = t->now;
    m->ending.again_at = t->now + FSM_END_AGAIN_MS;
    close_sessions(t);
    fsm_act(t, FSM_ACT_END);
}

void fsm_enter_idle(struct fsm_ctx *t, enum fsm_state to)
{
    static const char *const events[] = {
        [FSM_QUEUED] = "queued", [FSM_PAUSED] = "paused",   [FSM_SUCCEEDED] = "succeeded",
        [FSM_FAILED] = "failed", [FSM_STOPPED] = "stopped", [FSM_KILLED] = "killed",
    };
    struct fsm *m = t->m;
    CHECK(to < sizeof(events) / sizeof(events[0]));
    CHECK(events[to] != NULL);
    CHECK(fsm_all_gone(m) && fsm_spares_live(m) == 0); /* invariant 5 */
    m->count = m->size;
    FSM_MOVE(m, to);
    m->ending = (struct fsm_ending){ 0 };
    FSM_GEN_MOVED(m);
    m->intent = FSM_INTENT_NONE;
    m->dirty = true;
    m->retry_at = 0;
    if (fsm_state_final(to))
        m->ended_wall = t->wall;
    const struct fsm_ckpt *newest = fsm_newest(m);
    if (to == FSM_SUCCEEDED && newest != NULL)
        fsm_text(m->final_digest, sizeof(m->final_digest), newest->digest);
    if (to == FSM_SUCCEEDED || to == FSM_KILLED || to == FSM_STOPPED)
        fsm_set_reason(m, "%s", ""); /* the job waits for nothing any more */
    if (to == FSM_FAILED) {
        fsm_emit_event(t, events[to], "%s", m->reason);
    } else if (m->config.saves_nothing) {
        const bool goes_on = to == FSM_QUEUED || to == FSM_PAUSED || to == FSM_STOPPED;
        fsm_emit_event(t, events[to], "%s",
                       goes_on ? "if the job goes on, the program starts anew"
                               : "the program has ended");
    } else if (newest != NULL) {
        fsm_emit_event(t, events[to], "the newest checkpoint is of step %llu",
                       (unsigned long long)newest->step);
    } else {
        fsm_emit_event(t, events[to], "there is no checkpoint");
    }
    fsm_act(t, FSM_ACT_FORGET); /* what is left of it is in the store */
    fsm_act(t, FSM_ACT_SCHEDULE);
}
