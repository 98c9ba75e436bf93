/*
 * Saves to come: how one is announced for a step, and when one is due by time (checkpoint.every in
 * seconds, or auto). It also handles a worker that is told to leave, or leaves with its node.
 */
#include "server/jobfsm/save_schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/save_interval.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

/* ---- the interval ---- */

double interval_best_ms(double cost_ms, double mtbf_ms)
{
    if (cost_ms >= 2 * mtbf_ms)
        return mtbf_ms;
    double ratio = cost_ms / (2 * mtbf_ms);
    return sqrt(2 * cost_ms * mtbf_ms) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_ms;
}

double interval_mtbf_ms(const struct interval_facts *facts)
{
    double nodes = facts->nodes > 0 ? facts->nodes : 1;
    return ((double)facts->trained_ms + INTERVAL_DAY_MS / nodes) / (facts->failures + 1.0);
}

int64_t interval_choose_ms(const struct interval_facts *facts)
{
    if (facts->cost_us <= 0)
        return INTERVAL_FIRST_MS;
    double best = interval_best_ms((double)facts->cost_us / 1e3, interval_mtbf_ms(facts));
    double floor_ms = fmax(INTERVAL_MIN_MS, 2.0 * (double)facts->write_ms);
    best = fmax(fmin(best, INTERVAL_MAX_MS), floor_ms);
    double current = (double)facts->current_ms;
    bool close =
        current >= floor_ms && best < current * INTERVAL_CHANGE && best * INTERVAL_CHANGE > current;
    return close ? facts->current_ms : (int64_t)best;
}

/* ---- announced saves ---- */

/* Returns how far ahead a save is announced: so far that no rank is there before it hears of it.
 * After each save whose step a rank had passed all the same it is twice as far, so that this ends
 * whatever a step takes. */
static uint64_t lead_steps(const struct fsm *m)
{
    uint64_t steps = 2;
    if (m->step_ms > 0)
        steps += (uint64_t)((double)FSM_LEAD_MS / m->step_ms);
    return steps << (m->due.passes < FSM_PASSES_MAX ? m->due.passes : FSM_PASSES_MAX);
}

/* True if a rank was heard since this generation began, or the coordinator started. */
static bool is_anybody_heard(const struct fsm *m)
{
    bool heard = false;
    for (uint32_t i = 0; i < m->size; i++)
        heard = heard || m->ranks[i].joined;
    return heard;
}

/* Returns where workers are by now: what they said last is up to some seconds old. Before their
 * first word after a start it is a low guess, which they mend: a worker that has passed a step says
 * so. A step beyond those that they repeat might come long after. */
static uint64_t step_by_now(const struct fsm_ctx *t)
{
    const struct fsm *m = t->m;
    if (!is_anybody_heard(m))
        return m->restore.step;
    int64_t ago = m->step_at != 0 ? t->now - m->step_at : 0;
    bool moves = m->step_ms > 0 && ago > 0 && ago < FSM_SILENT_MS;
    return fsm_step_now(m) + (moves ? (uint64_t)((double)ago / m->step_ms) : 0);
}

bool fsm_announced_exit(const struct fsm *m, uint64_t step)
{
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        if (m->due.announced[i].step == step && m->due.announced[i].exit)
            return true;
    }
    return false;
}

uint64_t fsm_exit_step(const struct fsm *m)
{
    uint64_t step = 0;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        const struct fsm_announced *one = &m->due.announced[i];
        if (one->exit && (step == 0 || one->step < step))
            step = one->step;
    }
    return step;
}

bool fsm_leaves(const struct fsm *m)
{
    return m->due.moves || fsm_exit_step(m) > 0;
}

bool fsm_leaves_at(const struct fsm *m, uint64_t step)
{
    return fsm_is_last(m, step) || fsm_announced_exit(m, step);
}

bool fsm_forget_announced(struct fsm *m, uint64_t step, bool *out_exit)
{
    bool found = false;
    *out_exit = false;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        if (m->due.announced[i].step != step || step == 0)
            continue;
        *out_exit = *out_exit || m->due.announced[i].exit;
        m->due.announced[i] = (struct fsm_announced){ 0 };
        m->dirty = true;
        found = true;
    }
    return found;
}

/* Returns the announced save that gives its place to an exit: of those that only save, that of the
 * lowest step. */
static int least_needed(const struct fsm *m)
{
    int found = -1;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        const struct fsm_announced *a = &m->due.announced[i];
        if (!a->exit && (found < 0 || a->step < m->due.announced[found].step))
            found = i;
    }
    return found;
}

void fsm_announce(struct fsm_ctx *t, bool exit)
{
    fsm_announce_from(t, 0, exit);
}

void fsm_announce_from(struct fsm_ctx *t, uint64_t from, bool exit)
{
    struct fsm *m = t->m;
    const uint64_t lead = lead_steps(m);
    if (m->config.saves_nothing)
        return;
    uint64_t step = step_by_now(t) + lead;
    if (step < from)
        step = from;
    if (fsm_is_last(m, step))
        step = fsm_last_step(m);
    int free_at = -1;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++) {
        struct fsm_announced *a = &m->due.announced[i];
        if (a->step == 0) {
            free_at = i;
        } else if (!exit && a->step > fsm_step_now(m) &&
                   (m->step_ms <= 0 || a->step <= step + lead)) {
            return; /* the one to come serves; not one that a wrong pace put far ahead */
        }
    }
    if (free_at < 0)
        free_at = least_needed(m);
    if (free_at < 0)
        return; /* all of them are exits: one of them comes */
    m->due.announced[free_at] = (struct fsm_announced){ .step = step, .exit = exit };
    m->dirty = true;
    m->due.exit_at = exit ? t->now : m->due.exit_at;
    struct fsm_action *act = fsm_act_on(t, FSM_ACT_SAVE_AT, step, m->generation);
    act->exit = exit;
}

/* ---- by time ---- */

static bool by_time(const struct fsm *m)
{
    return m->config.every_auto || m->config.every_ms > 0;
}

int64_t fsm_interval_ms(const struct fsm *m)
{
    if (!m->config.every_auto)
        return m->config.every_ms;
    return m->due.interval_ms > 0 ? m->due.interval_ms : INTERVAL_FIRST_MS;
}

/* Returns when the next save is announced: as long before its time as workers need to hear of
 * it. */
static int64_t announce_at(const struct fsm *m)
{
    int64_t interval = fsm_interval_ms(m);
    int64_t lead = FSM_LEAD_MS + (m->step_ms < 1e6 ? (int64_t)(2 * m->step_ms) : 0);
    return m->due.from + interval - (lead < interval / 2 ? lead : interval / 2);
}

/* Returns from when on no save is under way; INT64_MAX: one is. For a save that is being dropped
 * only a while is waited, not until the last rank has said that its file is gone: that message may
 * be lost. */
static int64_t free_at(const struct fsm *m)
{
    int64_t at = 0;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        if (!fsm_save_busy(save))
            continue;
        if (save->state != FSM_SAVE_DROPPING)
            return INT64_MAX;
        const int64_t end = save->since + FSM_ASSUMED_MS;
        at = end > at ? end : at;
    }
    return at;
}

static bool may_announce(const struct fsm *m)
{
    return by_time(m) && m->state == FSM_RUNNING && m->intent == FSM_INTENT_NONE &&
           is_anybody_heard(m);
}

/* Returns when the next save is announced, if one may be. */
static int64_t next_at(const struct fsm *m)
{
    const int64_t due = announce_at(m), free = free_at(m);
    return due > free ? due : free;
}

void fsm_due_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!may_announce(m) || t->now < next_at(m))
        return;
    m->due.from = t->now + fsm_interval_ms(m) / 2; /* counted anew when it begins */
    fsm_announce(t, false);
}

int64_t fsm_due_deadline(const struct fsm *m)
{
    return may_announce(m) ? next_at(m) : INT64_MAX;
}

void fsm_due_from(struct fsm_ctx *t)
{
    t->m->due.from = t->now;
    t->m->due.saved_wall = t->wall;
    t->m->dirty = true;
}

void fsm_due_resume(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    int64_t ago = t->wall - m->due.saved_wall;
    m->due.exit_at = t->now;                        /* whoever is to leave has time anew */
    bool known = m->due.saved_wall > 0 && ago >= 0; /* the clock may have been set back */
    int64_t interval = fsm_interval_ms(m);
    m->due.from = known ? t->now - (ago < interval ? ago : interval) : t->now;
}

/* ---- auto ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static uint32_t count_nodes(const struct fsm *m)
{
    const char *names[LIMIT_RANKS];
    uint32_t count = 0;
    CHECK(m->size <= LIMIT_RANKS);
    for (uint32_t i = 0; i < m->size; i++)
        names[i] = m->ranks[i].node;
    qsort(names, m->size, sizeof(names[0]), compare_names);
    for (uint32_t i = 0; i < m->size; i++)
        count += i == 0 || strcmp(names[i - 1], names[i]) != 0;
    return count;
}

struct interval_facts fsm_interval_facts(const struct fsm *m)
{
    return (struct interval_facts){ .cost_us = m->due.cost_us,
                                    .write_ms = m->due.write_ms,
                                    .trained_ms =
                                        m->accounts.train_ms + m->accounts.lost_ms[FSM_LOST_REPLAY],
                                    .failures = m->failures,
                                    .nodes = count_nodes(m),
                                    .current_ms = m->due.interval_ms };
}

static void decide_interval(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (!m->config.every_auto || m->due.cost_us <= 0)
        return;
    struct interval_facts facts = fsm_interval_facts(m);
    int64_t interval = interval_choose_ms(&facts);
    if (interval == m->due.interval_ms)
        return;
    m->due.interval_ms = interval;
    fsm_emit_event(
        t, "interval",
        "a checkpoint every %.1f s from now on: it costs %.3f s of training and takes %.1f s "
        "to store; %u failures in %.0f s on %u nodes let expect one every %.0f s",
        (double)interval / 1e3, (double)m->due.cost_us / 1e6, (double)m->due.write_ms / 1e3,
        m->failures, (double)facts.trained_ms / 1e3, facts.nodes, interval_mtbf_ms(&facts) / 1e3);
}

/* Returns a moving average: the new value weighs 3 in 10. */
static int64_t average(int64_t old, int64_t new)
{
    return old == 0 ? new : old + (new - old) * 3 / 10;
}

void fsm_note_cost(struct fsm_ctx *t, const struct fsm_save *save)
{
    struct fsm *m = t->m;
    if (save->cost_us > 0) {
        m->due.cost_us = average(m->due.cost_us, save->cost_us);
        m->due.write_ms = average(m->due.write_ms, save->write_ms);
        m->dirty = true;
    }
    decide_interval(t);
}

void fsm_note_failure(struct fsm_ctx *t)
{
    t->m->failures++;
    t->m->dirty = true;
    decide_interval(t);
}

/* ---- a worker that was asked for a save, or to leave ---- */

static const char *what_follows(const struct fsm *m)
{
    if (m->config.saves_nothing)
        return "all end, and the program starts anew";
    return fsm_trains(m) ? "all save before and go on anew"
                         : "none trains yet, so nothing new is to be saved: all start anew";
}

/* All end, and start anew elsewhere. Workers that wait have nothing to bring along. */
static void start_elsewhere(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (fsm_ends(m) && m->ending.to != FSM_RECOVERING)
        return; /* no generation follows */
    m->restarts++;
    fsm_end_generation(t, FSM_RECOVERING, fsm_trains(m));
}

/* All workers save what they trained, then another generation follows. */
static void go_elsewhere(struct fsm_ctx *t)
{
    if (t->m->config.saves_nothing) {
        start_elsewhere(t);
        return;
    }
    t->m->restarts++;
    if (fsm_trains(t->m)) {
        fsm_announce(t, true);
    } else if (fsm_has_survivors(t->m)) {
        t->m->due.moves = true;
    } else {
        fsm_end_generation(t, FSM_RECOVERING, false); /* there is nothing new to save */
    }
}

void fsm_on_save_wanted(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_event *ev = t->ev;
    bool leaves = ev->save_wanted.leaves;
    bool runs = fsm_trains(m);
    if (fsm_ends(m) || (!runs && !leaves) || fsm_leaves(m))
        return;
    if (!leaves && m->config.saves_nothing)
        return;
    if (!leaves) {
        fsm_emit_event(t, "save", "rank %u: %.300s", ev->rank, ev->save_wanted.why);
        fsm_announce(t, false);
        return;
    }
    fsm_emit_event(t, "preempted", "rank %u on node %s: %.200s; it leaves within %.1f s, %s",
                   ev->rank, m->ranks[ev->rank].node, ev->save_wanted.why,
                   (double)ev->save_wanted.grace_ms / 1e3, what_follows(m));
    go_elsewhere(t);
}

void fsm_on_leaving(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->state == FSM_PLACING)
        fsm_unplace(t);
    const bool ends = fsm_ends(m) && !m->ending.parks;
    if (!fsm_alive_rank(m, t->ev->rank) || ends || fsm_leaves(m))
        return;
    fsm_emit_event(t, "preempted", "%.400s; %s", t->ev->leaving.why, what_follows(m));
    go_elsewhere(t);
}

/* ---- a save that somebody waits for ---- */

struct fsm_awaited fsm_await_save(const struct fsm *m)
{
    struct fsm_awaited awaited = { .step = fsm_step_now(m) + 1,
                                   .generation = m->generation,
                                   .refused = m->store_full.refused };
    if (fsm_is_last(m, awaited.step))
        awaited.step = fsm_last_step(m); /* the last one, which is on its way */
    if (m->state == FSM_PAUSED || fsm_state_final(m->state))
        return (struct fsm_awaited){ .step = 0 };
    return awaited;
}

/* True if a save is announced, or under way. */
static bool save_comes(const struct fsm *m)
{
    bool comes = false;
    for (int i = 0; i < FSM_ANNOUNCED_MAX; i++)
        comes = comes || m->due.announced[i].step > 0;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        comes = comes || (fsm_save_busy(save) && save->state != FSM_SAVE_DROPPING);
    }
    return comes;
}

const struct fsm_ckpt *fsm_saved(const struct fsm *m, const struct fsm_awaited *awaited)
{
    for (size_t i = 0; i < m->catalog_count && awaited->generation > 0; i++) {
        if (m->catalog[i].state == FSM_CKPT_GOOD && m->catalog[i].step >= awaited->step)
            return &m->catalog[i];
    }
    return awaited->generation > 0 ? NULL : fsm_newest(m);
}

enum fsm_outcome fsm_save_outcome(const struct fsm *m, const struct fsm_awaited *awaited)
{
    if (fsm_saved(m, awaited) != NULL)
        return FSM_OUTCOME_SAVED;
    if (m->generation != awaited->generation)
        return FSM_OUTCOME_ENDED;
    if (m->store_full.refused > awaited->refused && !save_comes(m))
        return FSM_OUTCOME_REFUSED;
    if (fsm_alive_rank(m, FSM_ALL_RANKS) && m->ending.to != FSM_RECOVERING)
        return FSM_OUTCOME_OPEN;
    return FSM_OUTCOME_ENDED;
}
