/*
 * The lowest layer of the machine, which all its files use: actions, the reason that people see,
 * what a state means. It also accounts for where the seconds went, and ends a generation or the
 * job.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "server/machine/internal.h"

static const char *const state_names[] = {
    [MACHINE_NONE] = "JOB_STATE_UNSPECIFIED",
    [MACHINE_QUEUED] = "QUEUED",
    [MACHINE_PLACING] = "PLACING",
    [MACHINE_FORMING] = "FORMING",
    [MACHINE_RUNNING] = "RUNNING",
    [MACHINE_SAVING] = "SAVING",
    [MACHINE_RECOVERING] = "RECOVERING",
    [MACHINE_PAUSED] = "PAUSED",
    [MACHINE_SUCCEEDED] = "SUCCEEDED",
    [MACHINE_FAILED] = "FAILED",
    [MACHINE_STOPPED] = "STOPPED",
    [MACHINE_KILLED] = "KILLED",
};

const char *machine_state_name(enum machine_state state)
{
    return state_names[state];
}

bool machine_state_final(enum machine_state state)
{
    return state >= MACHINE_SUCCEEDED;
}

const char *machine_lost_name(enum machine_lost lost)
{
    static const char *const names[MACHINE_LOST_COUNT] = {
        [MACHINE_LOST_DETECT] = "detect",   [MACHINE_LOST_FORM] = "form",
        [MACHINE_LOST_RESTORE] = "restore", [MACHINE_LOST_REPLAY] = "replay",
        [MACHINE_LOST_STALL] = "stall",     [MACHINE_LOST_WAIT] = "wait",
    };
    CHECK(lost < MACHINE_LOST_COUNT);
    return names[lost];
}

/* ---- actions ---- */

struct machine_action *machine_act(struct machine_turn *t, enum machine_action_kind kind)
{
    CHECK(t->out->count < MACHINE_ACTIONS_MAX);
    struct machine_action *act = &t->out->list[t->out->count++];
    *act = (struct machine_action){ .kind = kind,
                                    .rank = MACHINE_ALL_RANKS,
                                    .generation = t->m->generation };
    if (kind < MACHINE_ACT_FIRST_OUTSIDE)
        t->m->dirty = true;
    return act;
}

struct machine_action *machine_act_on(struct machine_turn *t, enum machine_action_kind kind,
                                      uint64_t step, uint32_t generation)
{
    struct machine_action *act = machine_act(t, kind);
    act->step = step;
    act->generation = generation;
    return act;
}

void machine_ask_store(struct machine_turn *t, enum machine_task task, uint64_t step,
                       uint32_t generation)
{
    machine_act_on(t, MACHINE_ACT_STORE, step, generation)->task = task;
}

static void tell(struct machine_turn *t, uint64_t step, const char *what, const char *format,
                 va_list args)
{
    struct machine_action *act = machine_act(t, MACHINE_ACT_TELL);
    machine_text(act->what, sizeof act->what, what);
    act->step = step;
    (void)vsnprintf(act->message, sizeof act->message, format, args);
    reason_mend(act->message);
}

void machine_tell(struct machine_turn *t, const char *what, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    tell(t, machine_step_now(t->m), what, format, args);
    va_end(args);
}

void machine_tell_of(struct machine_turn *t, uint64_t step, const char *what, const char *format,
                     ...)
{
    va_list args;
    va_start(args, format);
    tell(t, step, what, format, args);
    va_end(args);
}

void machine_text(char *out, size_t capacity, const char *text)
{
    (void)snprintf(out, capacity, "%s", text ? text : "");
}

void machine_set_reason(struct machine *m, const char *format, ...)
{
    char text[LIMIT_REASON];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    reason_mend(text);
    if (strcmp(text, m->reason) == 0)
        return;
    machine_text(m->reason, sizeof m->reason, text);
    m->dirty = true;
}

/* ---- what a state means ---- */

static bool is_ready_spare(const struct machine_rank *spare)
{
    return !spare->gone && spare->parked && !spare->ended;
}

uint32_t machine_spares_live(const struct machine *m)
{
    uint32_t live = 0;
    for (uint32_t i = m->size; i < m->count; i++)
        live += !m->ranks[i].gone;
    return live;
}

uint32_t machine_spares_ready(const struct machine *m)
{
    uint32_t ready = 0;
    for (uint32_t i = m->size; i < m->count; i++)
        ready += is_ready_spare(&m->ranks[i]);
    return ready;
}

bool machine_alive(const struct machine *m)
{
    return m->state == MACHINE_FORMING || m->state == MACHINE_RUNNING ||
           m->state == MACHINE_SAVING || (m->state == MACHINE_RECOVERING && machine_ends(m)) ||
           machine_holds(m);
}

bool machine_spans(const struct machine *m)
{
    bool spans = false;
    for (uint32_t i = 1; i < m->size && !spans; i++)
        spans = strcmp(m->ranks[i].node, m->ranks[0].node) != 0;
    return spans;
}

bool machine_trains(const struct machine *m)
{
    return m->state == MACHINE_RUNNING || m->state == MACHINE_SAVING;
}

bool machine_all_gone(const struct machine *m)
{
    return m->gone_count == m->size;
}

bool machine_all_left(const struct machine *m)
{
    uint32_t left = m->gone_count;
    for (uint32_t i = 0; m->ending.parks && i < m->size; i++)
        left += m->ranks[i].parked && !m->ranks[i].gone;
    return left == m->size;
}

bool machine_keeps(const struct machine *m)
{
    return (m->state == MACHINE_RECOVERING || m->state == MACHINE_PLACING) && !machine_ends(m) &&
           !machine_all_gone(m);
}

bool machine_holds(const struct machine *m)
{
    const bool rests = m->state == MACHINE_RECOVERING || m->state == MACHINE_PLACING;
    return rests && !machine_ends(m) && (!machine_all_gone(m) || machine_spares_live(m) > 0);
}

bool machine_goes_on(const struct machine *m)
{
    bool survivors = false;
    for (uint32_t i = 0; m->state == MACHINE_FORMING && !machine_ends(m) && i < m->size; i++)
        survivors = survivors || (!m->ranks[i].gone && m->ranks[i].birth < m->generation);
    return survivors || m->ending.parks || machine_keeps(m);
}

void machine_rank_gone(struct machine *m, uint32_t rank)
{
    m->gone_count += rank < m->size && !m->ranks[rank].gone;
    m->ranks[rank].gone = true;
}

bool machine_alive_rank(const struct machine *m, uint32_t rank)
{
    if (rank == MACHINE_ALL_RANKS)
        return machine_alive(m) && (!machine_all_gone(m) || machine_spares_live(m) > 0);
    CHECK(rank < m->count);
    return machine_alive(m) && !m->ranks[rank].gone;
}

bool machine_holds_slot(const struct machine *m, uint32_t rank)
{
    const struct machine_rank *of = &m->ranks[rank];
    const bool born = m->state == MACHINE_PLACING && of->birth > m->generation;
    return rank < m->count && (born || (machine_alive(m) && !of->gone));
}

uint64_t machine_step_now(const struct machine *m)
{
    if (!machine_trains(m))
        return m->state == MACHINE_FORMING ? m->restore.step : m->step_max;
    uint64_t step = m->restore.step;
    bool heard = false;
    for (uint32_t i = 0; i < m->size; i++) {
        heard = heard || m->ranks[i].joined;
        if (m->ranks[i].step > step)
            step = m->ranks[i].step;
    }
    return heard ? step : m->step_max;
}

const char *machine_health(const struct machine *m)
{
    if (m->state == MACHINE_RECOVERING)
        return "recovering";
    if (machine_alive(m)) {
        for (uint32_t i = 0; i < m->size; i++) {
            const enum machine_agent agent = m->ranks[i].agent;
            if (!m->ranks[i].gone && agent >= MACHINE_AGENT_SILENT)
                return "unsupervised";
        }
        if (m->window_until || m->room.unsaved || m->room.row > 0)
            return "degraded"; /* the job trains, and what it trains is not saved */
    }
    return m->state == MACHINE_FAILED ? "degraded" : "ok";
}

enum machine_state machine_intended(enum machine_intent intent)
{
    switch (intent) {
    case MACHINE_INTENT_PAUSE:
        return MACHINE_PAUSED;
    case MACHINE_INTENT_STOP:
        return MACHINE_STOPPED;
    case MACHINE_INTENT_DRAIN:
        return MACHINE_QUEUED;
    case MACHINE_INTENT_FINISH:
        return MACHINE_SUCCEEDED;
    case MACHINE_INTENT_NONE: /* its worker leaves */
        break;
    }
    return MACHINE_RECOVERING;
}

/* ---- silence ---- */

/* How long a session may be open without a message: longer than its agent may be silent. */
int64_t machine_mute_ms(const struct machine *m)
{
    const int64_t twice = 2 * m->config.silent_ms;
    return twice > MACHINE_SESSION_MS ? twice : MACHINE_SESSION_MS;
}

/* How long a lost session has to come back: where there are thousands, each waits for its turn. */
int64_t machine_session_ms(const struct machine *m)
{
    return machine_mute_ms(m) + m->config.spread_ms;
}

bool machine_is_silent(const struct machine_turn *t, const struct machine_rank *rank)
{
    return rank->agent >= MACHINE_AGENT_SILENT && t->now - rank->heard_at >= t->m->config.silent_ms;
}

/* Counts a rank as gone that nobody saw go: no other trainer gets its slot until somebody did. */
void machine_count_as_gone(struct machine_turn *t, uint32_t rank)
{
    machine_rank_gone(t->m, rank);
    t->m->dirty = true;
    machine_act(t, MACHINE_ACT_UNSEEN)->rank = rank;
}

/* ---- accounts ---- */

void machine_note_stall(struct machine *m, int64_t us)
{
    m->accounts.stall_us += us;
    m->accounts.lost_ms[MACHINE_LOST_STALL] += m->accounts.stall_us / 1000;
    m->accounts.stall_us %= 1000;
}

void machine_account(struct machine *m, int64_t now)
{
    int64_t ms = now - m->accounts.at;
    m->accounts.at = now;
    if (ms <= 0)
        return;
    switch (m->state) {
    case MACHINE_QUEUED:
        m->accounts.lost_ms[MACHINE_LOST_WAIT] += ms;
        break;
    case MACHINE_PLACING:
        m->accounts.lost_ms[MACHINE_LOST_FORM] += ms;
        break;
    case MACHINE_FORMING:
        m->accounts.lost_ms[m->ranks[0].assigned ? MACHINE_LOST_RESTORE : MACHINE_LOST_FORM] += ms;
        break;
    case MACHINE_RUNNING:
    case MACHINE_SAVING:
        if (machine_step_now(m) < m->replay_until) {
            m->accounts.lost_ms[MACHINE_LOST_REPLAY] += ms;
        } else {
            m->accounts.train_ms += ms;
        }
        break;
    case MACHINE_RECOVERING:
        m->accounts.lost_ms[!machine_ends(m) ? MACHINE_LOST_WAIT : MACHINE_LOST_FORM] += ms;
        break;
    case MACHINE_NONE:
    case MACHINE_PAUSED:
    case MACHINE_SUCCEEDED:
    case MACHINE_FAILED:
    case MACHINE_STOPPED:
    case MACHINE_KILLED:
        break;
    }
}

int64_t machine_lost_total(const struct machine *m)
{
    int64_t lost = 0;
    for (int i = 0; i < MACHINE_LOST_COUNT; i++)
        lost += i == MACHINE_LOST_STALL ? 0 : m->accounts.lost_ms[i];
    return lost;
}

double machine_goodput(const struct machine *m)
{
    const int64_t stall = m->accounts.lost_ms[MACHINE_LOST_STALL];
    const int64_t trained = m->accounts.train_ms > stall ? m->accounts.train_ms - stall : 0;
    const int64_t since = m->accounts.train_ms + machine_lost_total(m) - m->unstarted_ms;
    return m->started_wall == 0 || since <= 0 ? __builtin_nan("") : (double)trained / (double)since;
}

/* ---- the record of a recovery ---- */

enum recovery_kind machine_restored_from(const struct machine *m)
{
    if (m->restore.live)
        return RECOVERY_LIVE;
    if (m->restore.memory_generation != 0)
        return RECOVERY_MEMORY;
    return m->restore.generation != 0 ? RECOVERY_CHECKPOINT : RECOVERY_SEED;
}

static enum recovery_part part_of_now(const struct machine *m)
{
    const bool formed = m->recovery.state == RECOVERY_FORMING;
    if (formed && m->state == MACHINE_FORMING)
        return m->ranks[0].assigned ? RECOVERY_RESTORE : RECOVERY_FORM;
    if (formed)
        return RECOVERY_REPLAY;
    return machine_alive(m) ? RECOVERY_END : RECOVERY_WAIT;
}

/* True while time is booked for the recovery: nobody waits for a job that is paused, or over. */
static bool is_booked(const struct machine *m)
{
    return recovery_open(&m->recovery) && m->state != MACHINE_PAUSED &&
           !machine_state_final(m->state);
}

void machine_recovery_book(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (is_booked(m))
        recovery_book(&m->recovery, part_of_now(m), t->now - m->accounts.at, t->wall);
}

static void close_recovery(struct machine_turn *t, bool done, int64_t late_ms)
{
    struct machine *m = t->m;
    if (m->recovery.state != RECOVERY_FORMING)
        return;
    recovery_close(&m->recovery, done, late_ms);
    m->recovered = m->recovery;
    m->unbooked_ms = 0;
    machine_act(t, MACHINE_ACT_RECOVERY);
}

void machine_recovery_mend(struct machine *m)
{
    const struct machine_fault *cause = &m->cause;
    const bool blamed = cause->rank < m->size;
    if (m->recovery.state != RECOVERY_ENDING || cause->kind == MACHINE_FAULT_NONE)
        return;
    recovery_blame(&m->recovery, (uint32_t)cause->kind, cause->rank,
                   blamed ? m->ranks[cause->rank].node : "", cause->phase, cause->message);
}

/* Takes the steps into account of which nobody heard before the workers' last words. */
static void hear_last_words(struct machine *m)
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

void machine_recovery_fail(struct machine_turn *t, int64_t detect_ms)
{
    struct machine *m = t->m;
    hear_last_words(m);
    close_recovery(t, false, detect_ms);
    recovery_begin(&m->recovery, m->generation, m->step_max, detect_ms, t->wall);
    machine_recovery_mend(m);
}

/* Ends a generation's record, or begins one; a generation that failed has its own already. */
void machine_recovery_end(struct machine_turn *t, enum machine_state to)
{
    struct machine *m = t->m;
    machine_recovery_mend(m);
    hear_last_words(m);
    close_recovery(t, false, 0);
    if (m->recovery.state != RECOVERY_ENDING && !machine_state_final(to))
        recovery_begin(&m->recovery, m->generation, m->step_max, 0, t->wall);
}

void machine_recovery_form(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (m->recovery.state != RECOVERY_ENDING)
        return; /* the first generation, or one of before there were records */
    recovery_form(&m->recovery, m->generation);
    recovery_restored(&m->recovery, machine_restored_from(m), m->restore.step, m->step_max);
    m->recoveries++;
}

/* True if a rank has finished what had been finished before. */
static bool is_caught_up(const struct machine *m)
{
    bool caught_up = false;
    for (uint32_t i = 0; i < m->size && !caught_up; i++)
        caught_up = m->ranks[i].joined && m->ranks[i].step >= m->recovery.mark;
    return caught_up;
}

static bool is_any_joined(const struct machine *m)
{
    bool joined = false;
    for (uint32_t i = 0; i < m->size && !joined; i++)
        joined = m->ranks[i].joined;
    return joined;
}

void machine_recovery_tick(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (m->since_state != m->state) {
        m->since_state = m->state;
        m->since_wall = t->wall;
    }
    if (m->recovery.state != RECOVERY_FORMING)
        return;
    if (m->state == MACHINE_FORMING)
        recovery_restored(&m->recovery, machine_restored_from(m), m->restore.step, m->step_max);
    if (!machine_trains(m))
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
void machine_recovery_resume(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (!is_booked(m))
        return;
    const int64_t away = t->wall - m->recovery.booked_ms;
    if (m->recovery.state == RECOVERY_FORMING && machine_trains(m)) {
        m->unbooked_ms = away;
    } else {
        recovery_book(&m->recovery, part_of_now(m), away, t->wall);
    }
}

/* ---- ending ---- */

void machine_unplace(struct machine_turn *t)
{
    struct machine *m = t->m;
    CHECK(m->state == MACHINE_PLACING);
    m->state = m->generation == 0 ? MACHINE_QUEUED : MACHINE_RECOVERING;
    machine_act(t, MACHINE_ACT_SCHEDULE);
}

void machine_end_ranks(struct machine_turn *t, enum machine_state to, bool gently)
{
    struct machine *m = t->m;
    bool again = machine_ends(m);
    CHECK(machine_alive(m));
    const bool parked = m->ending.parks || machine_holds(m);
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].parked = false; /* parked ranks are ended with the others */
    m->ending.parks = false;
    m->ending.to = to;
    m->dirty = true;
    m->window_until = 0;
    if (to == MACHINE_RECOVERING || to == MACHINE_FAILED || m->state == MACHINE_PLACING) {
        m->state = MACHINE_RECOVERING;
    } else if (m->state == MACHINE_RUNNING) {
        m->state = MACHINE_SAVING;
    }
    if (gently && !parked) {
        m->ending.hard_at = t->now + MACHINE_LEAVE_MS;
        return;
    }
    if (again && !parked && m->ending.hard_at == 0)
        return;
    m->ending.hard_at = 0;
    m->ending.ended_at = t->now;
    m->ending.again_at = t->now + MACHINE_END_AGAIN_MS;
    machine_text(machine_act(t, MACHINE_ACT_OVER)->message, LIMIT_REASON,
                 "this generation has ended");
    machine_act(t, MACHINE_ACT_END);
}

void machine_rest(struct machine_turn *t, enum machine_state to)
{
    static const char *const events[] = {
        [MACHINE_QUEUED] = "queued",       [MACHINE_PAUSED] = "paused",
        [MACHINE_SUCCEEDED] = "succeeded", [MACHINE_FAILED] = "failed",
        [MACHINE_STOPPED] = "stopped",     [MACHINE_KILLED] = "killed",
    };
    struct machine *m = t->m;
    CHECK(to < sizeof events / sizeof events[0]);
    CHECK(events[to]);
    CHECK(machine_all_gone(m) && machine_spares_live(m) == 0); /* invariant 5 */
    m->count = m->size;
    m->state = to;
    m->ending = (struct machine_ending){ 0 };
    m->intent = MACHINE_INTENT_NONE;
    m->dirty = true;
    m->retry_at = 0;
    if (machine_state_final(to))
        m->ended_wall = t->wall;
    const struct machine_ckpt *newest = machine_newest(m);
    if (to == MACHINE_SUCCEEDED && newest)
        machine_text(m->final_digest, sizeof m->final_digest, newest->digest);
    if (to == MACHINE_SUCCEEDED || to == MACHINE_KILLED || to == MACHINE_STOPPED)
        machine_set_reason(m, "%s", ""); /* the job waits for nothing any more */
    if (to == MACHINE_FAILED) {
        machine_tell(t, events[to], "%s", m->reason);
    } else if (newest) {
        machine_tell(t, events[to], "the newest checkpoint is of step %llu",
                     (unsigned long long)newest->step);
    } else {
        machine_tell(t, events[to], "there is no checkpoint");
    }
    machine_act(t, MACHINE_ACT_FORGET); /* what is left of it is in the store */
    machine_act(t, MACHINE_ACT_SCHEDULE);
}
