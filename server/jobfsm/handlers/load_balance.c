/*
 * Lanes by speed: a slow worker gets fewer of them, and at last gives up its place.
 *
 * Each worker reports how long it computes for its share of a step, without what it waits for
 * others. These reports are looked at in windows. A window is worse if another spread of the lanes
 * (server/jobfsm/balance) would have been faster by GAIN_PERCENT. The count of worse windows begins
 * anew after one that is not worse, or if speeds are no longer those of the worse windows before:
 *
 *   EVEN   worse, and one takes SLOW_PERCENT more for a lane than the median, SLOW_STEPS in a row;
 *          once lanes were dealt by speed, as AUTO
 *   AUTO   worse, for FIRST_STEPS before lanes are dealt by speed for the first time, SLOW_STEPS
 *          from then on
 *     | [consider]   the rest of the job gains more than a move costs, and the one before is over
 *     v              for a minute
 *   all workers park between two steps; from there as server/jobfsm/park.c has it
 *     | [fsm_lanes_deal]   by what each took for a lane; who is new counts as the median
 *     v
 *   FORMING; the sums are the same bits, whoever computes a lane
 *
 * A worker that is still slow a minute after that is replaced: a spare is asked for, and takes its
 * seat once it is ready. One that takes longer for a single lane than the others do for all goes
 * after 20 s, if the job may train with fewer. Its node is no place for what is then missing
 * (EXCLUSION_SLOW). Either has to gain as much as a move. If it has parts of the state that no
 * other has, all save first, and it goes once that is committed: the steps since then are lost.
 *
 * The speeds of a generation that ended are kept (journalled, with its lanes): the next one begins
 * with them.
 */
#include "server/jobfsm/handlers/load_balance.h"

#include <stdio.h>

#include "common/check.h"
#include "server/jobfsm/balance/balance.h"
#include "server/jobfsm/elastic.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

#define WINDOW_STEPS  10   /* at least: beats come in the middle of steps */
#define WINDOW_MS     1000 /* at least: shorter ones see what else the machine does */
#define GAIN_PERCENT  3    /* of a step */
#define OTHER_PERCENT 10   /* of a step that lanes by earlier speeds would lose: they changed */
#define SLOW_PERCENT  30   /* more than the median for a lane: a worker is slow */
#define SLOW_STEPS    50
#define SLOW_WINDOWS  3
#define FIRST_STEPS   20
#define FIRST_WINDOWS 2
#define BETWEEN_MS    60000 /* two moves */
#define WORTH_MS      3000  /* gain of the rest of the job: ten times what a move takes */
#define NAMED_MAX     16    /* shares that are told */

/* ---- windows ---- */

/* The time that each rank takes for a lane; 0: it isn't known. */
struct speeds {
    uint32_t us[LIMIT_RANKS], lanes[LIMIT_RANKS];
    uint32_t count;
};

static bool watches(const struct fsm *m)
{
    return m->config.lanes > 0 && m->config.shares != FSM_SHARES_FILE && !m->config.restarts &&
           m->size > 1 && m->size + fsm_spares_ready(m) >= m->config.min && fsm_may_regroup(m);
}

static void open_window(struct fsm *m, int64_t now)
{
    m->balance.window_at = now;
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].window = m->ranks[i].timed;
}

static void forget(struct fsm *m)
{
    m->balance.window_at = 0;
    m->balance.worse = 0;
    m->balance.slow = 0;
    m->balance.held_up = false;
}

void fsm_note_timed(struct fsm_ctx *t, struct fsm_rank *rank)
{
    struct fsm *m = t->m;
    const struct fsm_progress *said = &t->ev->progress;
    if (said->lanes == 0 || said->lanes > m->config.lanes)
        return;
    if (said->lanes != rank->carries || said->timed.steps < rank->timed.steps ||
        said->timed.us < rank->timed.us)
        forget(m); /* the worker began to count anew */
    rank->carries = said->lanes;
    rank->timed = said->timed;
}

/* True if all have reported on the whole window. */
static bool is_complete(const struct fsm *m, int64_t now)
{
    if (now - m->balance.window_at < WINDOW_MS)
        return false;
    uint64_t lanes = 0;
    bool complete = true;
    for (uint32_t i = 0; i < m->size && complete; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        complete = rank->timed.steps >= rank->window.steps + WINDOW_STEPS &&
                   rank->timed.us > rank->window.us;
        lanes += rank->carries;
    }
    return complete && lanes == m->config.lanes;
}

static uint32_t each(uint64_t us, uint64_t n)
{
    const uint64_t one = n > 0 ? us / n : 0;
    if (one > UINT32_MAX)
        return UINT32_MAX;
    return one > 0 ? (uint32_t)one : 1;
}

/* Measures the speeds over this window; since: over the worse windows but the first. */
static void measure(const struct fsm *m, bool since, struct speeds *out)
{
    out->count = m->size;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        const struct fsm_timed *from = since ? &rank->since : &rank->window;
        const uint64_t steps = rank->timed.steps - from->steps;
        out->lanes[i] = rank->carries;
        out->us[i] = each(rank->timed.us - from->us, steps * rank->carries);
    }
}

/* True if it was so for long enough, in steps and in time. */
static bool lasts(const struct fsm *m, uint32_t windows, uint64_t from, bool first)
{
    const uint64_t steps = m->ranks[0].timed.steps - from;
    return first ? windows >= FIRST_WINDOWS && steps >= FIRST_STEPS
                 : windows >= SLOW_WINDOWS && steps >= SLOW_STEPS;
}

/* Returns the slow rank; FSM_ALL_RANKS: none is. */
static uint32_t find_slow(const struct speeds *speeds)
{
    const uint64_t median = balance_median(speeds->us, speeds->count);
    uint32_t slow = 0;
    for (uint32_t i = 1; i < speeds->count; i++)
        slow = speeds->us[i] > speeds->us[slow] ? i : slow;
    return speeds->us[slow] * 100ULL > median * (100 + SLOW_PERCENT) ? slow : FSM_ALL_RANKS;
}

/* True if a step that takes `us` is faster than one of now_us, by more than noise. */
static bool is_faster(uint64_t us, uint64_t now_us)
{
    return us * 100 <= now_us * (100 - GAIN_PERCENT);
}

/* Returns what a step would gain by the best spread, in microseconds; 0: it isn't worth it. */
static uint64_t gain_us(const struct fsm *m, const struct speeds *speeds)
{
    uint32_t best[LIMIT_RANKS];
    balance_lanes(speeds->us, speeds->count, m->config.lanes, best);
    const uint64_t now_us = balance_step_us(speeds->us, speeds->lanes, speeds->count);
    const uint64_t best_us = balance_step_us(speeds->us, best, speeds->count);
    return is_faster(best_us, now_us) ? now_us - best_us : 0;
}

/* True if the speeds measured since the first of the worse windows would lead to other lanes than
 * those of this window. */
static bool has_changed(const struct fsm *m, const struct speeds *now)
{
    uint32_t us[LIMIT_RANKS], by_then[LIMIT_RANKS], best[LIMIT_RANKS];
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        const uint64_t steps = rank->window.steps - rank->since.steps;
        if (steps == 0)
            return false;
        us[i] = each(rank->window.us - rank->since.us, steps * rank->carries);
    }
    balance_lanes(us, m->size, m->config.lanes, by_then);
    balance_lanes(now->us, m->size, m->config.lanes, best);
    return balance_step_us(now->us, by_then, m->size) * 100 >
           balance_step_us(now->us, best, m->size) * (100 + OTHER_PERCENT);
}

/* ---- moves ---- */

static bool is_worth(const struct fsm *m, uint64_t us)
{
    const uint64_t at = m->ranks[0].step; /* steps that are repeated count, too */
    const uint64_t left = m->total_steps > at ? m->total_steps - at : 0;
    return m->total_steps == 0 || left * us >= (uint64_t)WORTH_MS * 1000;
}

static void remember(struct fsm *m, const struct speeds *speeds)
{
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].lane_us = speeds->us[i];
    m->dirty = true;
}

static void describe_slow(const struct fsm *m, const struct speeds *speeds, uint32_t slow,
                          char out[LIMIT_REASON])
{
    (void)snprintf(
        out, LIMIT_REASON,
        "worker %u on node %s takes %.3g ms for a lane, half of the workers no more than "
        "%.3g ms",
        m->ranks[slow].number, m->ranks[slow].node, speeds->us[slow] / 1e3,
        balance_median(speeds->us, speeds->count) / 1e3);
}

/* Moves lanes, as was decided: all park once no save is under way. */
static void move(struct fsm_ctx *t)
{
    if (!fsm_park_waits(t))
        fsm_park_all(t);
}

static void consider(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_balance *b = &m->balance;
    struct speeds speeds = { .count = 0 };
    measure(m, true, &speeds);
    const uint64_t us = gain_us(m, &speeds);
    if (us == 0 || !is_worth(m, us) || (b->moved_at != 0 && t->now - b->moved_at < BETWEEN_MS))
        return;
    remember(m, &speeds);
    b->due = true;
    b->moved_at = t->now;
    fsm_set_reason(m, "lanes move: other shares are faster by %.0f%%",
                   100.0 * (double)us /
                       (double)balance_step_us(speeds.us, speeds.lanes, speeds.count));
    move(t);
}

/* ---- who stays slow ---- */

/* True if the others would be faster without the slow one, with all lanes among them. */
static bool is_useless(const struct fsm *m, const struct speeds *speeds, uint32_t slow)
{
    if (m->size - 1 < m->config.min || m->size - 1 < 1)
        return false;
    struct speeds without = { .count = 0 };
    for (uint32_t i = 0; i < speeds->count; i++) {
        if (i != slow)
            without.us[without.count++] = speeds->us[i];
    }
    uint32_t with[LIMIT_RANKS];
    balance_lanes(without.us, without.count, m->config.lanes, without.lanes);
    balance_lanes(speeds->us, speeds->count, m->config.lanes, with);
    const uint64_t without_us = balance_step_us(without.us, without.lanes, without.count);
    const uint64_t with_us = balance_step_us(speeds->us, with, speeds->count);
    return is_faster(without_us, with_us) && is_worth(m, with_us - without_us);
}

/* True if another worker in its seat, as fast as half of the others, would be worth the change. */
static bool is_held_up(const struct fsm *m, const struct speeds *speeds, uint32_t slow)
{
    struct speeds replaced = *speeds;
    replaced.us[slow] = balance_median(speeds->us, speeds->count);
    balance_lanes(replaced.us, replaced.count, m->config.lanes, replaced.lanes);
    const uint64_t replaced_us = balance_step_us(replaced.us, replaced.lanes, replaced.count);
    const uint64_t now_us = balance_step_us(speeds->us, speeds->lanes, speeds->count);
    return is_faster(replaced_us, now_us) && is_worth(m, now_us - replaced_us);
}

static void replace(struct fsm_ctx *t, const struct speeds *speeds, uint32_t slow, const char *how)
{
    struct fsm *m = t->m;
    char why[LIMIT_REASON];
    describe_slow(m, speeds, slow, why);
    remember(m, speeds);
    m->balance.due = true;
    m->balance.moved_at = m->balance.replaced_at = t->now;
    fsm_emit_event(t, "slow", "%s: %.400s", how, why);
    fsm_set_reason(m, "%s: %.400s", how, why);
    fsm_act(t, FSM_ACT_BLAME)->rank = slow;
    fsm_park_but(t, slow);
}

/* True if the others could go on without computing again what only the slow one has all of. */
static bool may_go(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const struct fsm_ckpt *newest = fsm_newest(m);
    if (!m->config.owns)
        return true;
    if (m->balance.saved_from == 0) {
        m->balance.saved_from = fsm_step_now(m) + 1;
        fsm_announce(t, false);
    }
    return newest != NULL && newest->step >= m->balance.saved_from;
}

/* Watches a worker that stays slow. true: it was replaced or left out, or that waits for a save. */
static bool watch_slow(struct fsm_ctx *t, const struct speeds *speeds)
{
    struct fsm *m = t->m;
    struct fsm_balance *b = &m->balance;
    const uint32_t slow = find_slow(speeds);
    if (slow == FSM_ALL_RANKS) {
        b->slow = 0;
        b->held_up = false;
        return false;
    }
    if (b->slow == 0 || b->slow_number != m->ranks[slow].number) {
        b->slow = 0;
        b->slow_number = m->ranks[slow].number;
        b->slow_at = t->now;
        b->slow_from = m->ranks[0].window.steps;
        b->saved_from = 0;
    }
    b->slow++;
    if (!lasts(m, b->slow, b->slow_from, false) ||
        (b->replaced_at != 0 && t->now - b->replaced_at < FSM_REPLACED_MS))
        return false;
    b->held_up = is_held_up(m, speeds, slow);
    const bool useless = t->now - b->slow_at >= FSM_USELESS_MS && is_useless(m, speeds, slow);
    const bool replaced = fsm_replaces(m, t->now) && fsm_spares_ready(m) > 0;
    if (!useless && !replaced) {
        b->saved_from = 0; /* if it is to go later, what is saved then counts */
        return false;
    }
    if (!may_go(t)) {
        open_window(m, t->now); /* and no lanes move, which would drop the save */
        return true;
    }
    if (useless) {
        (void)exclusion_add(&m->exclusions, m->ranks[slow].node, EXCLUSION_SLOW, 0, t->wall);
        replace(t, speeds, slow, "the job goes on without it, and starts none there for a while");
    } else {
        replace(t, speeds, slow, "a spare takes its place");
    }
    return true;
}

/* ---- after every look ---- */

void fsm_lanes_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_balance *b = &m->balance;
    if (!watches(m)) {
        forget(m);
        return;
    }
    if (b->due) {
        move(t);
        return;
    }
    if (b->window_at == 0) {
        open_window(m, t->now);
        return;
    }
    if (!is_complete(m, t->now))
        return;
    struct speeds speeds = { .count = 0 };
    measure(m, false, &speeds);
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].step_us = each((uint64_t)speeds.us[i] * speeds.lanes[i], 1);
    if (watch_slow(t, &speeds))
        return;
    const bool by_rule = m->config.shares == FSM_SHARES_AUTO || b->by_speed || b->slow > 0;
    const bool worse = gain_us(m, &speeds) > 0 && by_rule;
    if (worse && b->worse > 0 && has_changed(m, &speeds))
        b->worse = 0;
    if (worse && b->worse == 0) {
        b->worse_from = m->ranks[0].window.steps;
        for (uint32_t i = 0; i < m->size; i++)
            m->ranks[i].since = m->ranks[i].timed; /* in this window it began */
    }
    b->worse = worse ? b->worse + 1 : 0;
    const bool first = m->config.shares == FSM_SHARES_AUTO && !b->by_speed;
    if (worse && lasts(m, b->worse, b->worse_from, first))
        consider(t);
    open_window(m, t->now);
}

/* ---- a generation begins ---- */

static int print_lanes(const struct fsm *m, char *out, size_t capacity)
{
    int size = 0;
    for (uint32_t i = 0; i < m->size && i < NAMED_MAX; i++) {
        size += snprintf(out + size, capacity - (size_t)size, "%s%u", i > 0 ? ", " : "",
                         m->ranks[i].lanes);
    }
    if (m->size > NAMED_MAX)
        size += snprintf(out + size, capacity - (size_t)size, ", ...");
    return size;
}

static void tell(struct fsm_ctx *t, const struct speeds *speeds)
{
    const struct fsm *m = t->m;
    char lanes[NAMED_MAX * 8 + 8], why[LIMIT_REASON];
    const uint32_t slow = find_slow(speeds);
    (void)print_lanes(m, lanes, sizeof(lanes));
    if (slow != FSM_ALL_RANKS) {
        describe_slow(m, speeds, slow, why);
        fsm_emit_event_of(t, m->step_max, "lanes-moved", "lanes by rank: %s; %.300s", lanes, why);
    } else {
        fsm_emit_event_of(t, m->step_max, "lanes-moved",
                          "lanes by rank: %s, so that all take equally long", lanes);
    }
}

void fsm_lanes_deal(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct speeds speeds = { .count = m->size };
    for (uint32_t i = 0; i < m->size; i++)
        speeds.us[i] = m->ranks[i].lane_us;
    const uint32_t median = balance_median(speeds.us, m->size);
    const bool due = m->balance.due;
    forget(m);
    m->balance.due = false;
    m->balance.by_speed = m->balance.by_speed || due;
    if (!m->balance.by_speed)
        return;
    CHECK(m->config.lanes >= m->size);
    for (uint32_t i = 0; i < m->size; i++)
        speeds.us[i] = speeds.us[i] > 0 ? speeds.us[i] : (median > 0 ? median : 1);
    balance_lanes(speeds.us, m->size, m->config.lanes, speeds.lanes);
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].lanes = speeds.lanes[i];
    if (due)
        tell(t, &speeds);
}
