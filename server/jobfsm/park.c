/*
 * Live recovery: a generation ends, and those of its workers that are not to blame stay.
 *
 *   RUNNING, SAVING, or FORMING with live workers
 *     | a failure                 [fsm_end_or_park]  who is to blame is ended, the others park
 *     v
 *   RECOVERING, it parks          each worker is gone, or says that it has parked; who does
 *     |                           neither in time (park_ms) is ended
 *     v                           [close_generation]
 *   RECOVERING, it keeps workers  slots are looked for, for the seats of those that are gone; none
 *     |                           for FSM_KEEP_MS: the kept ones are ended, as others wait
 *     v                           [fsm_on_placed]; PLACING while the store is asked, if it must be
 *   FORMING                       newcomers are started, the kept ones are told to regroup
 *
 * A kept worker has a process, a slot, its session of the generation that ended, and no part in any
 * generation. It says what it brings along with its hello to the next one, which decides from which
 * state that goes on when all have come (memory_copies.c).
 *
 * Workers may not outlive every failure. All are started anew if what is wrong may be in all of
 * them: numbers, data, checkpoints, pins. So they are if they would meet it again where they are (a
 * broken path), and after FSM_LIVE_TRIES generations without progress.
 *
 * A planned change (another number of workers, other lanes) goes the same way, once no save is
 * under way. A save that isn't complete when workers park is dropped, and they would wait for what
 * the store has. This takes 10 s at most if one save follows the other; a store that hangs is
 * waited for.
 */
#include "server/jobfsm/park.h"

#include "common/check.h"
#include "server/jobfsm/catalog.h"
#include "server/jobfsm/failure_kinds.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

#define STORE_STUCK_MS 2000 /* for what takes milliseconds */

/* ---- whether ---- */

/* True if the rank is to blame by its own report, or by its silence. A rank that others accuse of a
 * broken connection only may be as good as they are, and so is one whose program failed. */
static bool is_culprit(const struct fsm_fault *fault, uint32_t rank)
{
    return fault->rank == rank && !fault->stays && fault->kind != FSM_FAULT_COMMUNICATION &&
           fault->kind != FSM_FAULT_NONE;
}

/* True if a newcomer doesn't fit (its pins, its data, what it lacks): the survivors are not to
 * blame. */
static bool is_of_newcomer(const struct fsm *m, const struct fsm_fault *fault)
{
    const bool unfit = fault->kind == FSM_FAULT_PINS || fault->kind == FSM_FAULT_DATA ||
                       fault->kind == FSM_FAULT_USER;
    return unfit && fault->rank < m->size && m->ranks[fault->rank].birth == m->generation;
}

/* True if the rank is not to be kept. */
static bool is_to_go(const struct fsm *m, const struct fsm_fault *fault, uint32_t rank)
{
    return is_culprit(fault, rank) || m->ranks[rank].differs;
}

static bool may_park(const struct fsm *m, const struct fsm_fault *fault)
{
    const bool forms = m->state == FSM_FORMING && fsm_has_survivors(m);
    const bool ran = fsm_trains(m) && (m->ran & 1);
    const bool outlived = fsm_fault_outlived(fault) || (forms && is_of_newcomer(m, fault));
    if (m->config.restarts || !outlived || !(ran || forms) ||
        m->budget.no_progress >= FSM_LIVE_TRIES)
        return false;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].gone && !is_to_go(m, fault, i))
            return true;
    }
    return false;
}

/* Returns the time for the step thread to come to where it looks: that of some steps, if they take
 * long. A program of people's own is ended first. */
static int64_t park_ms(const struct fsm *m)
{
    const double steps = FSM_PARK_STEPS * m->usual_step_ms;
    const int64_t ms = steps < FSM_PARK_MAX_MS ? (int64_t)steps : FSM_PARK_MAX_MS;
    if (m->config.program)
        return FSM_PARK_MS + m->config.grace_ms;
    return ms > FSM_PARK_MS ? ms : FSM_PARK_MS;
}

/* True if a node leaves, so that all were to save and leave: those that go on are still to. */
static bool is_moving(const struct fsm *m)
{
    bool moves = m->due.moves;
    for (int i = 0; m->intent == FSM_INTENT_NONE && i < FSM_ANNOUNCED_MAX; i++)
        moves = moves || (m->due.announced[i].step > 0 && m->due.announced[i].exit);
    return moves;
}

/* ---- parking ---- */

static void park(struct fsm_ctx *t, const struct fsm_fault *fault)
{
    struct fsm *m = t->m;
    m->ending = (struct fsm_ending){ .to = FSM_RECOVERING,
                                     .parks = true,
                                     .hard_at = t->now + park_ms(m),
                                     .ended_at = t->now,
                                     .again_at = t->now + FSM_END_AGAIN_MS };
    m->due.moves = is_moving(m);
    FSM_MOVE(m, FSM_RECOVERING);
    FSM_GEN_MOVED(m);
    m->window_until = 0;
    m->dirty = true;
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        rank->ended = !rank->gone && is_to_go(m, fault, i);
        if (!rank->ended || t->out->count >= FSM_ACTIONS_MAX / 2)
            continue; /* the others a little later */
        struct fsm_action *act = fsm_act(t, FSM_ACT_CLOSE);
        act->rank = i;
        fsm_text(act->message, LIMIT_REASON, "this generation has ended");
        fsm_act(t, FSM_ACT_END)->rank = i;
    }
    fsm_act(t, FSM_ACT_PARK);
}

/* True if nobody of the generation goes on, but spares may take their places. */
static bool spares_stay(const struct fsm *m, enum fsm_state to, const struct fsm_fault *fault)
{
    return to == FSM_RECOVERING && !m->config.restarts && fsm_fault_outlived(fault) &&
           m->budget.no_progress < FSM_LIVE_TRIES;
}

void fsm_end_or_park(struct fsm_ctx *t, enum fsm_state to, const struct fsm_fault *fault)
{
    /* A pause is one of the generation that follows: it saves first. */
    const bool goes_on = to == FSM_RECOVERING || to == FSM_PAUSED;
    if (goes_on && may_park(t->m, fault)) {
        park(t, fault);
    } else if (spares_stay(t->m, to, fault)) {
        fsm_end_ranks(t, to, false);
    } else {
        fsm_end_generation(t, to, false);
    }
}

/* True if the store is working on the save: its folder, what is to be checked or published, what is
 * to be removed. */
static bool is_at_store(const struct fsm_save *save)
{
    return save->state != FSM_SAVE_COLLECTING && fsm_save_busy(save);
}

bool fsm_park_waits(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    bool busy = false, stuck = false;
    for (int i = 0; i < FSM_SAVES_MAX; i++) {
        const struct fsm_save *save = &m->saves[i];
        const int64_t since = save->reported_at > save->since ? save->reported_at : save->since;
        busy = busy || fsm_save_busy(save);
        stuck = stuck || (is_at_store(save) && t->now - since >= STORE_STUCK_MS);
    }
    if (!busy || t->now - m->awaits_asked_at >= FSM_AWAIT_SAVES_MS)
        m->awaits_saves_at = 0;
    m->awaits_asked_at = t->now;
    if (!busy)
        return false;
    if (m->awaits_saves_at == 0)
        m->awaits_saves_at = t->now;
    return stuck || t->now - m->awaits_saves_at < FSM_AWAIT_SAVES_MS;
}

void fsm_park_all(struct fsm_ctx *t)
{
    const struct fsm_fault none = { .kind = FSM_FAULT_NONE };
    park(t, &none);
}

void fsm_park_but(struct fsm_ctx *t, uint32_t rank)
{
    /* The rank goes like one that is to blame; the fault has no other use. */
    const struct fsm_fault goes = { .kind = FSM_FAULT_PROCESS, .rank = rank };
    park(t, &goes);
}

void fsm_park_again(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    m->ending.again_at = t->now + FSM_END_AGAIN_MS;
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        rank->ended = rank->ended || (!rank->parked && is_culprit(&m->cause, i));
        if (rank->ended && !rank->gone && t->out->count < FSM_ACTIONS_MAX / 2)
            fsm_act(t, FSM_ACT_END)->rank = i;
    }
}

void fsm_note_parked(struct fsm_ctx *t, uint32_t index, const struct fsm_parked_state *kept)
{
    struct fsm *m = t->m;
    struct fsm_rank *rank = &m->ranks[index];
    rank->parked_state = *kept;
    if (fsm_gen(m) != FSM_GEN_PARKING || rank->gone || rank->ended || rank->parked)
        return;
    rank->parked = true;
    m->dirty = true;
}

void fsm_on_parked(struct fsm_ctx *t)
{
    fsm_note_parked(t, t->ev->rank, &t->ev->parked);
}

/* ---- keeping ---- */

void fsm_keep(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    const int64_t from = m->retry_at > t->now ? m->retry_at : t->now; /* slots are wanted then */
    m->ending = (struct fsm_ending){ .ended_at = m->ending.ended_at,
                                     .survivors_until = from + FSM_KEEP_MS };
    for (uint32_t i = 0; i < m->size; i++)
        CHECK(m->ranks[i].gone || m->ranks[i].parked);
}

/* Counts the workers that go on, and spares that can take a seat. */
static uint32_t count_there(const struct fsm *m)
{
    return (fsm_gen(m) == FSM_GEN_KEPT ? m->size - m->gone_count : 0) + fsm_spares_ready(m);
}

/* Counts places for newcomers. Spares that start, and workers that were ended and are not gone,
 * have theirs for a while. */
static uint32_t count_places(const struct fsm *m)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < m->count; i++)
        taken += !m->ranks[i].gone;
    CHECK(taken <= fsm_capacity(m));
    return fsm_capacity(m) - taken;
}

uint32_t fsm_vacant_ranks(const struct fsm *m)
{
    const uint32_t there = count_there(m), places = count_places(m);
    if (there >= m->config.ranks || (there > 0 && there >= m->config.min))
        return 0;
    return m->config.ranks - there < places ? m->config.ranks - there : places;
}

bool fsm_reaches_min(const struct fsm *m)
{
    return count_there(m) + count_places(m) >= m->config.min;
}

bool fsm_awaits_word(const struct fsm *m)
{
    uint32_t silent = 0;
    for (uint32_t i = 0; i < m->size; i++)
        silent += !m->ranks[i].gone && !m->ranks[i].joined;
    return silent > 0 && (m->config.stages > 1 || m->size - m->gone_count > m->config.ranks);
}

bool fsm_wants_slots(const struct fsm *m, int64_t now)
{
    const bool waits = m->state == FSM_RECOVERING && !fsm_ends(m) && fsm_reaches_min(m) &&
                       !fsm_awaits_word(m) && !fsm_distrusts(m) &&
                       !fsm_damage_pending((struct fsm *)m); /* which only looks */
    return (m->state == FSM_QUEUED || waits) && now >= m->retry_at;
}

uint32_t fsm_least(const struct fsm *m)
{
    const uint32_t there = count_there(m);
    return there < m->config.min ? m->config.min - there : 0;
}

bool fsm_is_vacated(const struct fsm *m)
{
    uint32_t there = count_there(m);
    for (uint32_t i = 0; m->state == FSM_PLACING && i < m->count; i++)
        there += m->ranks[i].gone && m->ranks[i].birth > m->generation;
    return m->state == FSM_PLACING && there < m->config.min;
}

/* Resets a kept rank: its seat is as it was, its part in the generation that comes has not
 * begun. */
static void regroup(struct fsm_ctx *t, struct fsm_rank *rank)
{
    struct fsm_rank kept = { .slot = rank->slot,
                             .birth = rank->birth,
                             .number = rank->number,
                             .lane_us = rank->lane_us,
                             .stage = rank->stage,
                             .pid = rank->pid,
                             .started = rank->started,
                             .agent = rank->agent,
                             .heard_at = t->now };
    fsm_text(kept.node, sizeof(kept.node), rank->node);
    *rank = kept;
}

uint32_t fsm_regroup(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        if (rank->gone) {
            CHECK(rank->birth == m->generation); /* the newcomer has a slot of this placing */
            continue;
        }
        CHECK(rank->parked);
        regroup(t, rank);
        kept++;
    }
    return kept;
}
