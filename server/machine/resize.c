/*
 * How many workers a generation has.
 *
 * A job is to have config.ranks, and goes on with no fewer than config.min of them. What a
 * generation lacks it gets later, as spares that are started for it: once they are ready, or as
 * many of them as there is room for, all workers park between two steps, and the next generation
 * has them as ranks. So it is, too, when people ask for another number.
 *
 *   RUNNING with too few, too many
 *     | [machine_resize_tick]  enough spares are ready, or there are too many
 *     v
 *   RECOVERING, it parks, without a cause; from there as park.c has it
 *     | [machine_seat]         who is kept stays where it is; spares take what is vacant, then
 *     v                        what is missing; of too many the last ones are ended
 *   FORMING
 */
#include "common/check.h"
#include "server/machine/internal.h"

#define RESIZE_WAIT_MS 5000 /* for those that find no slot: then without them */

/* ---- seats ---- */

/* To be started for the generation that comes: it has a slot. */
static bool is_born(const struct machine *m, const struct machine_rank *rank)
{
    return rank->gone && rank->birth > m->generation;
}

static void swap(struct machine *m, uint32_t a, uint32_t b)
{
    const struct machine_rank one = m->ranks[a];
    m->ranks[a] = m->ranks[b];
    m->ranks[b] = one;
}

/* Of those that have no seat yet; MACHINE_ALL_RANKS: none is left. */
static uint32_t find_next(const struct machine *m)
{
    for (uint32_t i = m->size; i < m->count; i++) {
        const struct machine_rank *rank = &m->ranks[i];
        if (is_born(m, rank) || (!rank->gone && rank->parked && !rank->ended))
            return i;
    }
    return MACHINE_ALL_RANKS;
}

static bool is_vacant(const struct machine *m, uint32_t index)
{
    return m->ranks[index].gone && !is_born(m, &m->ranks[index]);
}

/* Whoever is kept stays in its seat, and so do those that are born into one. */
static void fill_vacant(struct machine *m)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < m->size; i++)
        taken += !is_vacant(m, i);
    for (uint32_t i = 0; i < m->size && taken < m->config.ranks; i++) {
        const uint32_t next = is_vacant(m, i) ? find_next(m) : MACHINE_ALL_RANKS;
        if (next == MACHINE_ALL_RANKS)
            continue;
        swap(m, i, next);
        taken++;
    }
}

/* It is there, with a whole state, and that of the other is older, or none. */
static bool has_more(const struct machine_rank *one, const struct machine_rank *other)
{
    const uint64_t theirs = !other->gone && other->kept.whole ? other->kept.step + 1 : 0;
    return !one->gone && one->kept.whole && one->kept.step + 1 > theirs;
}

/* What nobody has taken is no seat any more; the order stays. */
static void close_up(struct machine *m)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        if (is_vacant(m, i))
            continue;
        if (taken != i)
            swap(m, taken, i);
        taken++;
    }
    m->size = taken;
}

/* Of those that are too many one may have what none of the others has: it stays for another one. */
static void keep_newest(struct machine *m)
{
    uint32_t newest = 0, least = 0;
    for (uint32_t i = 1; i < m->size; i++) {
        if (has_more(&m->ranks[i], &m->ranks[newest]))
            newest = i;
        if (i < m->config.ranks && has_more(&m->ranks[least], &m->ranks[i]))
            least = i;
    }
    if (newest >= m->config.ranks)
        swap(m, newest, least);
}

void machine_seat(struct machine_turn *t)
{
    struct machine *m = t->m;
    CHECK(m->state == MACHINE_PLACING);
    m->resizes = false; /* it has as many as there was room for */
    fill_vacant(m);
    close_up(m);
    for (uint32_t next; m->size < m->config.ranks; m->size++) {
        next = find_next(m);
        if (next == MACHINE_ALL_RANKS)
            break;
        swap(m, m->size, next);
    }
    const uint32_t seated = m->size;
    if (m->size > m->config.ranks) {
        keep_newest(m);
        m->size = m->config.ranks;
    }
    for (uint32_t i = m->size; i < seated; i++)
        machine_let_go(t, i);
    for (uint32_t i = m->size; i < m->count; i++)
        m->ranks[i].birth = m->ranks[i].gone ? 0 : m->ranks[i].birth; /* it isn't started */
    while (m->count > m->size && m->ranks[m->count - 1].gone)
        m->count--;
    CHECK(m->size >= 1);
}

/* ---- whether ---- */

static bool leaves(const struct machine *m)
{
    bool found = m->due.moves;
    for (int i = 0; i < MACHINE_ANNOUNCED_MAX; i++)
        found = found || (m->due.announced[i].step > 0 && m->due.announced[i].exit);
    return found;
}

static bool may_resize(const struct machine *m)
{
    return m->state == MACHINE_RUNNING && !machine_ends(m) && (m->ran & 1) &&
           m->intent == MACHINE_INTENT_NONE && m->window_until == 0 && !leaves(m);
}

/* Nobody who is to park, or to take a seat, is away: after a restart of the coordinator they come
 * back first. */
static bool are_all_heard(const struct machine *m)
{
    const uint32_t end = m->size < m->config.ranks ? m->count : m->size;
    bool all = true;
    for (uint32_t i = 0; i < end; i++)
        all = all && (m->ranks[i].session || m->ranks[i].gone || m->ranks[i].ended);
    return all;
}

bool machine_may_regroup(const struct machine *m)
{
    return may_resize(m) && are_all_heard(m);
}

/* Some are ready, and none is on its way. */
static bool is_none_awaited(const struct machine *m)
{
    const uint32_t ready = machine_spares_ready(m);
    return ready > 0 && ready == machine_spares_live(m);
}

/* Those that are missing are all ready, or those are that find a slot. */
static bool has_enough(const struct machine *m, int64_t now)
{
    if (m->size + machine_spares_ready(m) >= m->config.ranks)
        return true;
    return is_none_awaited(m) && now - m->spares.ready_at >= RESIZE_WAIT_MS;
}

void machine_resize_tick(struct machine_turn *t)
{
    struct machine *m = t->m;
    if (m->size == m->config.ranks || !may_resize(m) || !are_all_heard(m))
        return;
    if (m->config.restarts) {
        if (m->size > m->config.ranks || m->resizes) { /* fewer because there was no room: it stays
                                                        */
            machine_announce(t, true);
            m->resizes = false;
        }
        return;
    }
    if (m->size < m->config.ranks && !has_enough(m, t->now))
        return;
    if (machine_park_waits(t))
        return;
    const uint32_t there = m->size + machine_spares_ready(m);
    const uint32_t next = there < m->config.ranks ? there : m->config.ranks;
    machine_tell(t, "resizing", "from %u workers to %u", m->size, next);
    machine_set_reason(m, "goes on with %u workers instead of %u", next, m->size);
    machine_park_all(t);
}

int64_t machine_resize_deadline(const struct machine *m)
{
    const bool waits =
        m->size < m->config.ranks && may_resize(m) && is_none_awaited(m) && are_all_heard(m);
    return waits ? m->spares.ready_at + RESIZE_WAIT_MS : INT64_MAX;
}
