/*
 * How many workers a generation has.
 *
 * A job is to have config.ranks, and goes on with no fewer than config.min of them. A generation
 * gets what it lacks later, as spares that are started for it. Once they are ready, or as many of
 * them as there is room for, all workers park between two steps, and the next generation has them
 * as ranks. It goes the same way when people ask for another number.
 *
 *   RUNNING with too few, too many
 *     | [fsm_resize_tick]  enough spares are ready, or there are too many
 *     v
 *   RECOVERING, it parks, without a cause; from there as park.c has it
 *     | [fsm_assign_ranks]  who is kept stays where it is; spares take what is vacant, then
 *     v                        what is missing; of too many the last ones are ended
 *   FORMING
 *
 * In a pipeline a worker that is kept stays in its stage, whose state it has. The width of the
 * stages follows from how many come (common/layout/widths.h), and as far as that leaves it open
 * from who is kept: then nobody changes its stage. A worker that has to change is like a newcomer
 * there. So is everybody if there are more or fewer stages than before: what workers have doesn't
 * fit then.
 *
 * If those who stay don't have all of the state, or it can't be gone on from, a planned change
 * saves first, and starts all anew.
 */
#include "server/jobfsm/elastic.h"

#include "common/check.h"
#include "common/layout/widths.h"
#include "server/jobfsm/park.h"
#include "server/jobfsm/save_schedule.h"
#include "server/jobfsm/spares.h"
#include "server/jobfsm/state.h"

#define RESIZE_WAIT_MS 5000 /* for those that find no slot: then without them */

/* ---- seats ---- */

/* True if the worker is to be started for the generation that comes: it has a slot. */
static bool is_new(const struct fsm *m, const struct fsm_rank *rank)
{
    return rank->gone && rank->birth > m->generation;
}

static void swap(struct fsm *m, uint32_t a, uint32_t b)
{
    const struct fsm_rank one = m->ranks[a];
    m->ranks[a] = m->ranks[b];
    m->ranks[b] = one;
}

static bool can_sit(const struct fsm *m, uint32_t index)
{
    const struct fsm_rank *rank = &m->ranks[index];
    return is_new(m, rank) || (!rank->gone && rank->parked && !rank->ended);
}

/* Returns the next one that could sit and has no seat yet; FSM_ALL_RANKS: none is left. */
static uint32_t find_next(const struct fsm *m)
{
    for (uint32_t i = m->size; i < m->count; i++) {
        if (can_sit(m, i))
            return i;
    }
    return FSM_ALL_RANKS;
}

static bool is_vacant(const struct fsm *m, uint32_t index)
{
    return m->ranks[index].gone && !is_new(m, &m->ranks[index]);
}

/* Fills vacant seats. Whoever is kept stays in its seat, and so do those that are born into one. */
static void fill_vacant_ranks(struct fsm *m)
{
    uint32_t taken = 0;
    for (uint32_t i = 0; i < m->size; i++)
        taken += !is_vacant(m, i);
    for (uint32_t i = 0; i < m->size && taken < m->config.ranks; i++) {
        const uint32_t next = is_vacant(m, i) ? find_next(m) : FSM_ALL_RANKS;
        if (next == FSM_ALL_RANKS)
            continue;
        swap(m, i, next);
        taken++;
    }
}

/* True if `one` is there with a complete state, and that of `other` is older, or none. */
static bool has_more(const struct fsm_rank *one, const struct fsm_rank *other)
{
    const uint64_t theirs =
        !other->gone && other->parked_state.complete ? other->parked_state.step + 1 : 0;
    return !one->gone && one->parked_state.complete && one->parked_state.step + 1 > theirs;
}

/* Drops the seats that nobody has taken; the order stays. */
static void close_up(struct fsm *m)
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

/* When workers are too many, keeps the one with the newest complete state: it is swapped with one
 * that stays and has an older state. */
static void keep_newest(struct fsm *m)
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

static void assign_in_order(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    fill_vacant_ranks(m);
    close_up(m);
    for (uint32_t next; m->size < m->config.ranks; m->size++) {
        next = find_next(m);
        if (next == FSM_ALL_RANKS)
            break;
        swap(m, m->size, next);
    }
    const uint32_t seated = m->size;
    if (m->size > m->config.ranks) {
        keep_newest(m);
        m->size = m->config.ranks;
    }
    for (uint32_t i = m->size; i < seated; i++)
        fsm_let_go(t, i);
}

/* ---- seats of a pipeline ---- */

#define PLACES_MAX (2 * LIMIT_RANKS) /* ranks and spares */
#define NO_STAGE   UINT32_MAX

/* The next generation of a pipeline while it is being seated. A place is an index of m->ranks as
 * they are before that. */
struct seating {
    uint32_t stages, widths[LIMIT_STAGES];
    uint32_t stage[PLACES_MAX]; /* the stage whose state a place's worker has; NO_STAGE: none */
    bool kept[PLACES_MAX];      /* the worker had a seat */
    bool taken[PLACES_MAX];     /* the worker has one now: */
    uint32_t seated, place[LIMIT_RANKS], stage_of_rank[LIMIT_RANKS];
    uint64_t step; /* the newest that is there of every stage; 0: none is */
};

static struct layout_request request_of(const struct fsm *m)
{
    return (struct layout_request){ .stages = m->config.stages,
                                    .lanes = m->config.lanes,
                                    .workers = m->config.widths };
}

uint32_t fsm_widths(const struct fsm *m, uint32_t out[LIMIT_STAGES])
{
    for (uint32_t s = 0; s < LIMIT_STAGES; s++)
        out[s] = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        CHECK(m->ranks[i].stage < LIMIT_STAGES);
        out[m->ranks[i].stage]++;
    }
    return fsm_stages(m);
}

void fsm_cut(struct fsm *m)
{
    uint32_t widths[LIMIT_STAGES];
    if (m->config.stages <= 1)
        return;
    const struct layout_request request = request_of(m);
    layout_request_widths(&request, m->size, NULL, widths);
    for (uint32_t i = 0, stage = 0, left = widths[0]; i < m->size; i++, left--) {
        if (left == 0)
            left = widths[++stage];
        m->ranks[i].stage = stage;
    }
}

static uint32_t parts_of(const struct fsm_parked_state *kept)
{
    return kept->parts > 0 ? kept->parts : 1;
}

bool fsm_has_stage(const struct fsm *m, uint32_t rank)
{
    const struct fsm_parked_state *kept = &m->ranks[rank].parked_state;
    if (m->config.stages <= 1)
        return true;
    return parts_of(kept) == fsm_stages(m) && kept->part == m->ranks[rank].stage;
}

/* Returns the stage whose state the worker has, as it said; else the one that it was to have.
 * before: stages of the generation that ended. */
static uint32_t stage_of(const struct fsm_rank *rank, uint32_t before, uint32_t stages)
{
    if (rank->gone)
        return NO_STAGE;
    const uint32_t parts = rank->parked_state.complete ? parts_of(&rank->parked_state) : before;
    const uint32_t part = rank->parked_state.complete ? rank->parked_state.part : rank->stage;
    return parts == stages && part < stages ? part : NO_STAGE;
}

/* Counts who could sit and what they have, and finds how wide the stages are with as many as are
 * wanted. */
static void count_comers(const struct fsm *m, struct seating *out)
{
    uint32_t there[LIMIT_STAGES] = { 0 }, comers = 0;
    const uint32_t before = fsm_stages(m);
    const struct layout_request request = request_of(m);
    CHECK(m->count <= PLACES_MAX);
    for (uint32_t i = 0; i < m->count; i++) {
        out->kept[i] = i < m->size && !m->ranks[i].gone;
        out->taken[i] = i < m->size ? is_vacant(m, i) : !can_sit(m, i); /* nobody is there */
        comers += !out->taken[i];
    }
    const uint32_t size = comers < m->config.ranks ? comers : m->config.ranks;
    CHECK(size >= 1);
    out->stages = layout_request_stages(&request, size);
    for (uint32_t i = 0; i < m->count; i++) {
        out->stage[i] = out->kept[i] ? stage_of(&m->ranks[i], before, out->stages) : NO_STAGE;
        if (out->stage[i] != NO_STAGE)
            there[out->stage[i]]++;
    }
    layout_request_widths(&request, size, there, out->widths);
}

static bool is_of_step(const struct fsm *m, const struct seating *s, uint32_t place, uint64_t step)
{
    const struct fsm_parked_state *kept = &m->ranks[place].parked_state;
    return s->stage[place] != NO_STAGE && kept->complete && kept->step == step;
}

static bool is_step_complete(const struct fsm *m, const struct seating *s, uint64_t step)
{
    bool there[LIMIT_STAGES] = { false };
    uint32_t stages = 0;
    for (uint32_t i = 0; i < m->count; i++) {
        if (!is_of_step(m, s, i, step) || there[s->stage[i]])
            continue;
        there[s->stage[i]] = true;
        stages++;
    }
    return stages == s->stages;
}

static void find_step(const struct fsm *m, struct seating *s)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const uint64_t step = m->ranks[i].parked_state.step;
        if (step > s->step && is_of_step(m, s, i, step) && is_step_complete(m, s, step))
            s->step = step;
    }
}

/* Finds a worker with that stage's state: one that has it of the step that all have, else the
 * newest; FSM_ALL_RANKS: none is left. */
static uint32_t find_of_stage(const struct fsm *m, const struct seating *s, uint32_t stage)
{
    uint32_t best = FSM_ALL_RANKS;
    for (uint32_t i = 0; i < m->count; i++) {
        if (s->taken[i] || s->stage[i] != stage)
            continue;
        if (s->step > 0 && is_of_step(m, s, i, s->step))
            return i;
        if (best == FSM_ALL_RANKS || has_more(&m->ranks[i], &m->ranks[best]))
            best = i;
    }
    return best;
}

/* Finds one of those that are left; those that run come first. */
static uint32_t find_any(const struct fsm *m, const struct seating *s)
{
    uint32_t any = FSM_ALL_RANKS;
    for (uint32_t i = m->count; i-- > 0;) {
        if (!s->taken[i] && (any == FSM_ALL_RANKS || s->kept[i] || !s->kept[any]))
            any = i;
    }
    CHECK(any != FSM_ALL_RANKS);
    return any;
}

/* Seats those that stay in their stages, then the others in what is left of the seats. */
static void choose_assignment(const struct fsm *m, struct seating *s)
{
    uint32_t first[LIMIT_STAGES], filled[LIMIT_STAGES] = { 0 };
    for (uint32_t stage = 0; stage < s->stages; stage++) {
        first[stage] = s->seated;
        s->seated += s->widths[stage];
        while (filled[stage] < s->widths[stage]) {
            const uint32_t place = find_of_stage(m, s, stage);
            if (place == FSM_ALL_RANKS)
                break;
            s->taken[place] = true;
            s->place[first[stage] + filled[stage]++] = place;
        }
    }
    for (uint32_t stage = 0; stage < s->stages; stage++) {
        for (uint32_t i = 0; i < s->widths[stage]; i++) {
            const uint32_t seat = first[stage] + i;
            s->stage_of_rank[seat] = stage;
            if (i < filled[stage])
                continue;
            s->place[seat] = find_any(m, s);
            s->taken[s->place[seat]] = true;
        }
    }
}

static void assign_stages(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct seating s = { .seated = 0 };
    uint32_t now[PLACES_MAX] = { 0 }, was[PLACES_MAX] = { 0 }; /* where who was there is; who is */
    count_comers(m, &s);
    find_step(m, &s);
    choose_assignment(m, &s);
    for (uint32_t i = 0; i < m->count; i++)
        now[i] = was[i] = i;
    for (uint32_t seat = 0; seat < s.seated; seat++) {
        const uint32_t at = now[s.place[seat]], other = was[seat];
        swap(m, seat, at);
        was[at] = other;
        now[other] = at;
        was[seat] = s.place[seat];
        now[s.place[seat]] = seat;
        m->ranks[seat].stage = s.stage_of_rank[seat];
    }
    m->size = s.seated;
    for (uint32_t i = 0; i < m->count; i++) {
        if (s.kept[i] && now[i] >= m->size)
            fsm_let_go(t, now[i]);
    }
}

void fsm_assign_ranks(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    CHECK(m->state == FSM_PLACING);
    m->resizes = false; /* the job has as many as there was room for */
    if (m->config.stages > 1) {
        assign_stages(t);
    } else {
        assign_in_order(t);
    }
    for (uint32_t i = m->size; i < m->count; i++)
        m->ranks[i].birth = m->ranks[i].gone ? 0 : m->ranks[i].birth; /* none of these is started */
    while (m->count > m->size && m->ranks[m->count - 1].gone)
        m->count--;
    CHECK(m->size >= 1);
}

/* ---- whether ---- */

static bool may_resize(const struct fsm *m)
{
    return m->state == FSM_RUNNING && (m->ran & 1) && m->intent == FSM_INTENT_NONE &&
           m->window_until == 0 && !fsm_leaves(m) && !fsm_some_finished(m);
}

/* True of a spare that was never ready: nobody waits for it to take a seat. */
static bool is_starting(const struct fsm *m, uint32_t index)
{
    return index >= m->size && !m->ranks[index].parked;
}

/* True if nobody who is to park, or to take a seat, is away: after a restart of the coordinator
 * they come back first. */
static bool are_all_heard(const struct fsm *m)
{
    const uint32_t end = m->size < m->config.ranks ? m->count : m->size;
    bool all = true;
    for (uint32_t i = 0; i < end; i++) {
        const struct fsm_rank *rank = &m->ranks[i];
        all = all && (rank->session || rank->gone || rank->ended || is_starting(m, i));
    }
    return all;
}

bool fsm_may_regroup(const struct fsm *m)
{
    return may_resize(m) && are_all_heard(m);
}

/* True if some spares are ready, none is on its way, and with so many the job may go on. */
static bool is_none_awaited(const struct fsm *m)
{
    const uint32_t ready = fsm_spares_ready(m);
    return ready > 0 && ready == fsm_spares_live(m) && m->size + ready >= m->config.min;
}

/* True if all missing workers are ready; or no more slots are free, and the job may go on with the
 * ready ones. */
static bool has_enough(const struct fsm *m, int64_t now)
{
    if (m->size + fsm_spares_ready(m) >= m->config.ranks)
        return true;
    return is_none_awaited(m) && now - m->spares.ready_at >= RESIZE_WAIT_MS;
}

/* True if the model is cut into other stages with so many workers than now. */
static bool is_cut_anew(const struct fsm *m, uint32_t workers)
{
    const struct layout_request request = request_of(m);
    return m->config.stages > 1 && layout_request_stages(&request, workers) != fsm_stages(m);
}

/* True if those who stay, with so many workers, don't have all of the state. The part of one who
 * leaves is its own, and what workers of a stage have then goes to no other one (rank_may_keep in
 * trainer/program). */
static bool is_left_behind(const struct fsm *m, uint32_t workers)
{
    if (m->config.stages > 1 && fsm_stages(m) > 1)
        return m->config.owns || m->config.on_device;
    return m->config.owns && workers < m->size;
}

/* Returns why all save first; NULL: they needn't. */
static const char *why_save(const struct fsm *m, uint32_t workers)
{
    if (m->config.program && !m->config.saves_nothing)
        return "whose programs start anew";
    if (is_cut_anew(m, workers))
        return "in other stages";
    return is_left_behind(m, workers) ? "who have the state only together" : NULL;
}

void fsm_resize_tick(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->size == m->config.ranks || !may_resize(m) || !are_all_heard(m))
        return;
    if (m->config.restarts) {
        if (m->size > m->config.ranks || m->resizes) { /* fewer because there was no room: it stays
                                                        */
            m->resizes = false;
            if (m->config.saves_nothing) {
                fsm_leave(t, FSM_RECOVERING);
            } else {
                fsm_announce(t, true);
            }
        }
        return;
    }
    if (m->size < m->config.ranks && !has_enough(m, t->now))
        return;
    const uint32_t there = m->size + fsm_spares_ready(m);
    const uint32_t next = there < m->config.ranks ? there : m->config.ranks;
    const char *why = why_save(m, next);
    if (why != NULL) {
        fsm_emit_event(t, "resizing", "from %u worker%s to %u, %s: all save, and start anew",
                       m->size, m->size == 1 ? "" : "s", next, why);
        fsm_announce(t, true);
        return;
    }
    if (fsm_park_waits(t))
        return;
    fsm_emit_event(t, "resizing", "from %u worker%s to %u", m->size, m->size == 1 ? "" : "s", next);
    fsm_set_reason(m, "goes on with %u worker%s instead of %u", next, next == 1 ? "" : "s",
                   m->size);
    fsm_park_all(t);
}

int64_t fsm_resize_deadline(const struct fsm *m)
{
    const bool waits =
        m->size < m->config.ranks && may_resize(m) && is_none_awaited(m) && are_all_heard(m);
    const int64_t at = m->spares.ready_at + RESIZE_WAIT_MS;
    return waits && at > m->watched_at ? at : INT64_MAX; /* with each look since */
}
