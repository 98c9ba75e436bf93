/*
 * Live recovery: a generation ends, and those of its workers that are not to blame stay.
 *
 *   RUNNING, SAVING, or FORMING with live workers
 *     | a failure                 [machine_end_or_park]  who is to blame is ended, the others park
 *     v
 *   RECOVERING, it parks          each worker is gone, or says that it has parked; who does
 *     |                           neither within MACHINE_PARK_MS is ended
 *     v                           [close_generation]
 *   RECOVERING, it keeps workers  slots are looked for, for the seats of those that are gone; none
 *     |                           for MACHINE_KEEP_MS: the kept ones are ended, as others wait
 *     v                           [machine_on_placed]
 *   FORMING                       newcomers are started, the kept ones are told to regroup
 *
 * A kept worker has a process, a slot, its session of the generation that ended, and no part in any
 * generation. It says what it brings along with its hello to the next one, which decides from which
 * state that goes on when all have come (copies.c).
 *
 * Workers may not outlive every failure. All are started anew if what is wrong may be in all of
 * them: numbers, data, checkpoints, pins. So they are if they would meet it again where they are (a
 * broken path), and after MACHINE_LIVE_TRIES generations without progress.
 *
 * A planned change (another number of workers, other lanes) goes the same way, once no save is
 * under way. A save that isn't whole when workers park is dropped, and they would wait for what the
 * store has. This takes 10 s at most if one save follows the other; a store that hangs is waited
 * for.
 */
#include "common/check.h"
#include "server/machine/internal.h"

#define STORE_STUCK_MS 2000 /* for what takes milliseconds */

/* ---- whether ---- */

/* True if the rank is to blame by its own report, or by its silence. A rank that others accuse of a
 * broken connection only may be as good as they are. */
static bool is_culprit(const struct machine_fault *fault, uint32_t rank)
{
    return fault->rank == rank && fault->kind != MACHINE_FAULT_COMMUNICATION &&
           fault->kind != MACHINE_FAULT_NONE;
}

/* True if a newcomer doesn't fit (its pins, its data, what it lacks): the survivors are not to
 * blame. */
static bool is_of_newcomer(const struct machine *m, const struct machine_fault *fault)
{
    const bool unfit = fault->kind == MACHINE_FAULT_PINS || fault->kind == MACHINE_FAULT_DATA ||
                       fault->kind == MACHINE_FAULT_USER;
    return unfit && fault->rank < m->size && m->ranks[fault->rank].birth == m->generation;
}

/* True if the rank is not to be kept. */
static bool is_to_go(const struct machine *m, const struct machine_fault *fault, uint32_t rank)
{
    return is_culprit(fault, rank) || m->ranks[rank].differs;
}

static bool may_park(const struct machine *m, const struct machine_fault *fault)
{
    const bool forms = m->state == MACHINE_FORMING && machine_goes_on(m);
    const bool ran = machine_trains(m) && (m->ran & 1);
    const bool outlived = machine_fault_outlived(fault) || (forms && is_of_newcomer(m, fault));
    if (m->config.restarts || !outlived || !(ran || forms) ||
        m->budget.barren >= MACHINE_LIVE_TRIES)
        return false;
    for (uint32_t i = 0; i < m->size; i++) {
        if (!m->ranks[i].gone && !is_to_go(m, fault, i))
            return true;
    }
    return false;
}

/* Returns the time for the step thread to come to where it looks: that of some steps, if they take
 * long. */
static int64_t park_ms(const struct machine *m)
{
    const double steps = MACHINE_PARK_STEPS * m->usual_step_ms;
    const int64_t ms = steps < MACHINE_PARK_MAX_MS ? (int64_t)steps : MACHINE_PARK_MAX_MS;
    return ms > MACHINE_PARK_MS ? ms : MACHINE_PARK_MS;
}

/* True if a node leaves, so that all were to save and leave: those that go on are still to. */
static bool is_moving(const struct machine *m)
{
    bool moves = m->due.moves;
    for (int i = 0; m->intent == MACHINE_INTENT_NONE && i < MACHINE_ANNOUNCED_MAX; i++)
        moves = moves || (m->due.announced[i].step > 0 && m->due.announced[i].exit);
    return moves;
}

/* ---- parking ---- */

static void park(struct machine_turn *t, const struct machine_fault *fault)
{
    struct machine *m = t->m;
    m->ending = (struct machine_ending){ .to = MACHINE_RECOVERING,
                                         .parks = true,
                                         .hard_at = t->now + park_ms(m),
                                         .ended_at = t->now,
                                         .again_at = t->now + MACHINE_END_AGAIN_MS };
    m->due.moves = is_moving(m);
    m->state = MACHINE_RECOVERING;
    m->window_until = 0;
    m->dirty = true;
    for (uint32_t i = 0; i < m->size; i++) {
        struct machine_rank *rank = &m->ranks[i];
        rank->ended = !rank->gone && is_to_go(m, fault, i);
        if (!rank->ended || t->out->count >= MACHINE_ACTIONS_MAX / 2)
            continue; /* the others a little later */
        struct machine_action *act = machine_act(t, MACHINE_ACT_OVER);
        act->rank = i;
        machine_text(act->message, LIMIT_REASON, "this generation has ended");
        machine_act(t, MACHINE_ACT_END)->rank = i;
    }
    machine_act(t, MACHINE_ACT_PARK);
}

/* True if nobody of the generation goes on, but spares may take their places. */
static bool spares_stay(const struct machine *m, enum machine_state to,
                        const struct machine_fault *fault)
{
    return to == MACHINE_RECOVERING && !m->config.restarts && machine_fault_outlived(fault) &&
           m->budget.barren < MACHINE_LIVE_TRIES;
}

void machine_end_or_park(struct machine_turn *t, enum machine_state to,
                         const struct machine_fault *fault)
{
    /* A pause is one of the generation that follows: it saves first. */
    const bool goes_on = to == MACHINE_RECOVERING || to == MACHINE_PAUSED;
    if (goes_on && may_park(t->m, fault)) {
        park(t, fault);
    } else if (spares_stay(t->m, to, fault)) {
        machine_end_ranks(t, to, false);
    } else {
        machine_end_generation(t, to, false);
    }
}

/* True if the store is working on the save: its folder, what is to be checked or published, what is
 * to be removed. */
static bool is_at_store(const struct machine_save *save)
{
    return save->state != MACHINE_SAVE_COLLECTING && machine_save_busy(save);
}

bool machine_park_waits(struct machine_turn *t)
{
    struct machine *m = t->m;
    bool busy = false, stuck = false;
    for (int i = 0; i < MACHINE_SAVES_MAX; i++) {
        const struct machine_save *save = &m->saves[i];
        const int64_t since = save->reported_at > save->since ? save->reported_at : save->since;
        busy = busy || machine_save_busy(save);
        stuck = stuck || (is_at_store(save) && t->now - since >= STORE_STUCK_MS);
    }
    if (!busy || t->now - m->awaits_asked_at >= MACHINE_AWAIT_SAVES_MS)
        m->awaits_saves_at = 0;
    m->awaits_asked_at = t->now;
    if (!busy)
        return false;
    if (m->awaits_saves_at == 0)
        m->awaits_saves_at = t->now;
    return stuck || t->now - m->awaits_saves_at < MACHINE_AWAIT_SAVES_MS;
}

void machine_park_all(struct machine_turn *t)
{
    const struct machine_fault none = { .kind = MACHINE_FAULT_NONE };
    park(t, &none);
}

void machine_park_but(struct machine_turn *t, uint32_t rank)
{
    /* The rank goes like one that is to blame; the fault has no other use. */
    const struct machine_fault goes = { .kind = MACHINE_FAULT_PROCESS, .rank = rank };
    park(t, &goes);
}

void machine_park_again(struct machine_turn *t)
{
    struct machine *m = t->m;
    m->ending.again_at = t->now + MACHINE_END_AGAIN_MS;
    for (uint32_t i = 0; i < m->size; i++) {
        struct machine_rank *rank = &m->ranks[i];
        rank->ended = rank->ended || (!rank->parked && is_culprit(&m->cause, i));
        if (rank->ended && !rank->gone && t->out->count < MACHINE_ACTIONS_MAX / 2)
            machine_act(t, MACHINE_ACT_END)->rank = i;
    }
}

void machine_note_parked(struct machine_turn *t, uint32_t index, const struct machine_kept *kept)
{
    struct machine *m = t->m;
    struct machine_rank *rank = &m->ranks[index];
    rank->kept = *kept;
    if (!m->ending.parks || machine_ends_hard(m) || rank->gone || rank->ended || rank->parked)
        return;
    rank->parked = true;
    m->dirty = true;
}

void machine_on_parked(struct machine_turn *t)
{
    machine_note_parked(t, t->ev->rank, &t->ev->parked);
}

/* ---- keeping ---- */

void machine_keep(struct machine_turn *t)
{
    struct machine *m = t->m;
    const int64_t from = m->retry_at > t->now ? m->retry_at : t->now; /* slots are wanted then */
    m->ending = (struct machine_ending){ .ended_at = m->ending.ended_at,
                                         .kept_until = from + MACHINE_KEEP_MS };
    for (uint32_t i = 0; i < m->size; i++)
        CHECK(m->ranks[i].gone || m->ranks[i].parked);
}

/* Counts the workers that go on, and spares that can take a seat. */
static uint32_t count_there(const struct machine *m)
{
    return (machine_keeps(m) ? m->size - m->gone_count : 0) + machine_spares_ready(m);
}

/* Counts places for newcomers. Spares that start, and workers that were ended and are not gone,
 * have theirs for a while. */
static uint32_t count_room(const struct machine *m)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < m->count; i++)
        taken += !m->ranks[i].gone;
    CHECK(taken <= machine_capacity(m));
    return machine_capacity(m) - taken;
}

uint32_t machine_vacant(const struct machine *m)
{
    const uint32_t there = count_there(m), room = count_room(m);
    if (there >= m->config.ranks || (there > 0 && there >= m->config.min))
        return 0;
    return m->config.ranks - there < room ? m->config.ranks - there : room;
}

bool machine_has_room(const struct machine *m)
{
    return count_there(m) + count_room(m) >= m->config.min;
}

bool machine_awaits_word(const struct machine *m)
{
    uint32_t silent = 0;
    for (uint32_t i = 0; i < m->size; i++)
        silent += !m->ranks[i].gone && !m->ranks[i].joined;
    return silent > 0 && (m->config.stages > 1 || m->size - m->gone_count > m->config.ranks);
}

bool machine_wants_slots(const struct machine *m, int64_t now)
{
    const bool waits = machine_recovers(m) && machine_has_room(m) && !machine_awaits_word(m) &&
                       !machine_distrusts(m) &&
                       !machine_damage_pending((struct machine *)m); /* which only looks */
    return (m->state == MACHINE_QUEUED || waits) && now >= m->retry_at;
}

uint32_t machine_least(const struct machine *m)
{
    const uint32_t there = count_there(m);
    return there < m->config.min ? m->config.min - there : 0;
}

bool machine_is_vacated(const struct machine *m)
{
    uint32_t there = count_there(m);
    for (uint32_t i = 0; m->state == MACHINE_PLACING && i < m->count; i++)
        there += m->ranks[i].gone && m->ranks[i].birth > m->generation;
    return m->state == MACHINE_PLACING && there < m->config.min;
}

/* Resets a kept rank: its seat is as it was, its part in the generation that comes has not
 * begun. */
static void regroup(struct machine_turn *t, struct machine_rank *rank)
{
    struct machine_rank kept = { .slot = rank->slot,
                                 .birth = rank->birth,
                                 .number = rank->number,
                                 .lane_us = rank->lane_us,
                                 .stage = rank->stage,
                                 .pid = rank->pid,
                                 .started = rank->started,
                                 .agent = rank->agent,
                                 .heard_at = t->now };
    machine_text(kept.node, sizeof kept.node, rank->node);
    *rank = kept;
}

uint32_t machine_regroup(struct machine_turn *t)
{
    struct machine *m = t->m;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        struct machine_rank *rank = &m->ranks[i];
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
