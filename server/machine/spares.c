/*
 * Spares: workers that have no part in the generation, and are there to take one. This file has how
 * many there are, their numbers, and how they go; turn/spares.c has what becomes of one.
 */
#include "common/check.h"
#include "server/machine/internal.h"

/* ---- how many ---- */

/* Counts the spares that are not ending. */
uint32_t machine_spares_staying(const struct machine *m)
{
    uint32_t staying = 0;
    for (uint32_t i = m->size; i < m->count; i++)
        staying += !m->ranks[i].gone && !m->ranks[i].ended;
    return staying;
}

bool machine_replaces(const struct machine *m, int64_t now)
{
    const struct machine_balance *b = &m->balance;
    return b->by_speed && b->slow > 0 && b->held_up && now - b->slow_at >= MACHINE_REPLACE_MS &&
           (b->replaced_at == 0 || now - b->replaced_at >= MACHINE_REPLACED_MS);
}

uint32_t machine_spares_wanted(const struct machine *m)
{
    const uint32_t lacking = m->config.ranks > m->size ? m->config.ranks - m->size : 0;
    return lacking + m->config.spares + machine_replaces(m, m->watched_at);
}

uint32_t machine_capacity(const struct machine *m)
{
    return m->config.most + m->config.spares;
}

bool machine_is_short(const struct machine *m)
{
    return m->size + machine_spares_staying(m) < m->config.ranks;
}

bool machine_hungers(const struct machine *m)
{
    return m->state == MACHINE_RUNNING && !machine_ends(m) && !m->config.restarts && (m->ran & 1) &&
           m->step_max > m->replay_until && /* its start would slow down the others' */
           m->intent == MACHINE_INTENT_NONE &&
           machine_spares_staying(m) < machine_spares_wanted(m) &&
           m->size + machine_spares_live(m) < machine_capacity(m);
}

void machine_note_reached(struct machine_turn *t, uint64_t step)
{
    struct machine *m = t->m;
    const bool first = m->step_max <= m->replay_until;
    m->step_max = step;
    if (first && machine_hungers(m))
        machine_act(t, MACHINE_ACT_SCHEDULE);
}

bool machine_wants_spare(const struct machine *m, int64_t now)
{
    return machine_hungers(m) && now >= m->spares.retry_at;
}

/* ---- numbers ---- */

uint32_t machine_find_number(const struct machine *m, uint32_t number, uint32_t end)
{
    for (uint32_t i = 0; i < end; i++) {
        if (!m->ranks[i].gone && m->ranks[i].number == number)
            return i;
    }
    return MACHINE_ALL_RANKS;
}

/* True if no worker has that number; workers that are to be started have one, too. */
static bool is_free(const struct machine *m, uint32_t number)
{
    bool taken = false;
    for (uint32_t i = 0; i < m->count && !taken; i++) {
        const struct machine_rank *rank = &m->ranks[i];
        taken = rank->number == number && (!rank->gone || rank->birth > m->generation);
    }
    return !taken;
}

/* Returns a free number; none is given twice in one generation before all were. */
uint32_t machine_new_number(struct machine *m, uint32_t wanted)
{
    if (wanted != MACHINE_ALL_RANKS && is_free(m, wanted))
        return wanted;
    uint32_t number;
    do {
        number = m->config.most + m->spares.number % (LIMIT_NUMBERS - m->config.most);
        m->spares.number++;
    } while (!is_free(m, number));
    return number;
}

/* ---- going ---- */

void machine_end_spare(struct machine_turn *t, uint32_t index)
{
    struct machine_action *act = machine_act(t, MACHINE_ACT_OVER);
    act->rank = index;
    machine_text(act->message, LIMIT_REASON, "the job has no use for this worker any more");
    machine_act(t, MACHINE_ACT_END)->rank = index;
}

void machine_dismiss(struct machine_turn *t, uint32_t index)
{
    struct machine_rank *spare = &t->m->ranks[index];
    if (spare->gone || spare->ended)
        return;
    spare->ended = true;
    spare->parked = false;
    spare->ended_at = t->now;
    t->m->dirty = true;
    if (t->out->count < MACHINE_ACTIONS_MAX / 2) /* else a little later */
        machine_end_spare(t, index);
    t->m->spares.again_at = t->now + MACHINE_END_AGAIN_MS;
}

void machine_dismiss_spares(struct machine_turn *t)
{
    for (uint32_t i = t->m->size; i < t->m->count; i++)
        machine_dismiss(t, i);
}

void machine_end_generation(struct machine_turn *t, enum machine_state to, bool gently)
{
    machine_end_ranks(t, to, gently);
    machine_dismiss_spares(t);
}

/* The worker is told so at the end of the turn, when all that moved have their places. */
void machine_let_go(struct machine_turn *t, uint32_t index)
{
    struct machine_rank *rank = &t->m->ranks[index];
    CHECK(machine_is_spare(t->m, index));
    if (rank->gone)
        return;
    rank->ended = true;
    rank->parked = false;
    rank->ended_at = t->m->spares.again_at = t->now;
}
