/*
 * Spares: workers that have no part in the generation, and are there to take one. This file has how
 * many there are, their numbers, and how they go; handlers/spare_orders.c has what becomes of one.
 */
#include "server/jobfsm/spares.h"

#include "common/check.h"
#include "server/jobfsm/state.h"

/* ---- how many ---- */

/* Counts the spares that are not ending. */
uint32_t fsm_spares_staying(const struct fsm *m)
{
    uint32_t staying = 0;
    for (uint32_t i = m->size; i < m->count; i++)
        staying += !m->ranks[i].gone && !m->ranks[i].ended;
    return staying;
}

bool fsm_replaces(const struct fsm *m, int64_t now)
{
    const struct fsm_balance *b = &m->balance;
    return b->by_speed && b->slow > 0 && b->held_up && now - b->slow_at >= FSM_REPLACE_MS &&
           (b->replaced_at == 0 || now - b->replaced_at >= FSM_REPLACED_MS);
}

uint32_t fsm_spares_wanted(const struct fsm *m)
{
    const uint32_t lacking = m->config.ranks > m->size ? m->config.ranks - m->size : 0;
    return lacking + m->config.spares + fsm_replaces(m, m->watched_at);
}

uint32_t fsm_capacity(const struct fsm *m)
{
    return m->config.most + m->config.spares;
}

bool fsm_lacks_workers(const struct fsm *m)
{
    return m->size + fsm_spares_staying(m) < m->config.ranks;
}

bool fsm_wants_workers(const struct fsm *m)
{
    const bool goes_well = m->step_max > m->replay_until; /* a start slows down the others' */
    return m->state == FSM_RUNNING && !m->config.restarts && (m->ran & 1) &&
           (goes_well || m->config.saves_nothing) && m->intent == FSM_INTENT_NONE &&
           fsm_spares_staying(m) < fsm_spares_wanted(m) &&
           m->size + fsm_spares_live(m) < fsm_capacity(m);
}

void fsm_note_reached(struct fsm_ctx *t, uint64_t step)
{
    struct fsm *m = t->m;
    const bool first = m->step_max <= m->replay_until;
    m->step_max = step;
    if (first && fsm_wants_workers(m))
        fsm_act(t, FSM_ACT_SCHEDULE);
}

bool fsm_wants_spare(const struct fsm *m, int64_t now)
{
    return fsm_wants_workers(m) && now >= m->spares.retry_at;
}

/* ---- numbers ---- */

uint32_t fsm_find_number(const struct fsm *m, uint32_t number, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++) {
        if (!m->ranks[i].gone && m->ranks[i].number == number)
            return i;
    }
    return FSM_ALL_RANKS;
}

/* True if no worker has that number; workers that are to be started have one, too. */
static bool is_free(const struct fsm *m, uint32_t number)
{
    bool taken = false;
    for (uint32_t i = 0; i < m->count && !taken; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        taken = rank->number == number && (!rank->gone || rank->birth > m->generation);
    }
    return !taken;
}

/* Returns a free number; none is given twice in one generation before all were. */
uint32_t fsm_new_number(struct fsm *m, uint32_t wanted)
{
    if (wanted != FSM_ALL_RANKS && is_free(m, wanted))
        return wanted;
    uint32_t number;
    do {
        number = m->config.most + m->spares.number % (LIMIT_NUMBERS - m->config.most);
        m->spares.number++;
    } while (!is_free(m, number));
    return number;
}

/* ---- going ---- */

void fsm_end_spare(struct fsm_ctx *t, uint32_t index)
{
    struct fsm_action *act = fsm_act(t, FSM_ACT_CLOSE);
    act->rank = index;
    fsm_text(act->message, LIMIT_REASON, "the job has no use for this worker any more");
    fsm_act(t, FSM_ACT_END)->rank = index;
}

void fsm_dismiss(struct fsm_ctx *t, uint32_t index)
{
    struct fsm_rank *spare = &t->m->ranks[index];
    if (spare->gone || spare->ended)
        return;
    spare->ended = true;
    spare->parked = false;
    spare->ended_at = t->now;
    t->m->dirty = true;
    if (t->out->count < FSM_ACTIONS_MAX / 2) /* else a little later */
        fsm_end_spare(t, index);
    t->m->spares.again_at = t->now + FSM_END_AGAIN_MS;
}

void fsm_dismiss_spares(struct fsm_ctx *t)
{
    for (uint32_t i = t->m->size; i < t->m->count; i++)
        fsm_dismiss(t, i);
}

void fsm_end_generation(struct fsm_ctx *t, enum fsm_state to, bool gently)
{
    fsm_end_ranks(t, to, gently);
    fsm_dismiss_spares(t);
}

void fsm_leave(struct fsm_ctx *t, enum fsm_state to)
{
    struct fsm *m = t->m;
    if (!fsm_ends(m)) {
        fsm_end_generation(t, to, fsm_trains(m));
        return;
    }
    if (!fsm_state_final(m->ending.to))
        m->ending.to = to;
    m->dirty = true;
}

/* The worker is told so at the end of the turn, when all that moved have their places. */
void fsm_let_go(struct fsm_ctx *t, uint32_t index)
{
    struct fsm_rank *rank = &t->m->ranks[index];
    CHECK(fsm_is_spare(t->m, index));
    if (rank->gone)
        return;
    rank->ended = true;
    rank->parked = false;
    rank->ended_at = t->m->spares.again_at = t->now;
}
