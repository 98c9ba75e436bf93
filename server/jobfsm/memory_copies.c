/*
 * Copies in memory (docs/memory.md): from which of those that the workers of a new generation found
 * on their nodes it starts.
 *
 * That is chosen once per generation, when every rank said hello, and journalled before any rank
 * gets its assignment: a coordinator that restarts in between sends the same assignments. Which
 * copies there are is not journalled, since they are offered anew; memory_from is: copies that
 * failed once are not tried again.
 *
 * If workers of the generation before go on (park.c), theirs is the state that counts, provided
 * that none of the copies is newer, and that they have all of it. If ranks own parts of the state,
 * each is the only one that has its own; in a pipeline all of a stage have that stage's.
 *
 * Workers with programs of people's own never have a state. A program reads the copies itself, and
 * can't fetch one from another node: if the generation is on several nodes, none is used.
 */
#include "server/jobfsm/memory_copies.h"

#include <stdlib.h>

#include "common/check.h"
#include "server/jobfsm/elastic.h"
#include "server/jobfsm/state.h"

#define COPIES_PER_RANK 16 /* of two generations, own ones and those kept for a peer */

/* Has the generation start from that step, and not from a folder of the store. */
static void start_at(struct fsm *m, uint64_t step)
{
    m->restore.step = step;
    m->restore.generation = 0;
    if (step > m->step_max) { /* its ranks died before they could report it */
        m->step_max = step;
        m->progressed = true;
    }
    m->replay_until = m->step_max;
    for (uint32_t i = 0; i < m->size; i++)
        m->ranks[i].step = step;
}

static bool same_state(const struct fsm_copy *a, const struct fsm_copy *b)
{
    return a->generation == b->generation && a->step == b->step && a->size == b->size;
}

/* Returns rank's share of the state of which `like` is one, or NULL. */
static struct fsm_copy *find_share(struct fsm *m, const struct fsm_copy *like, uint32_t rank)
{
    for (size_t i = 0; i < m->copy_count; i++) {
        struct fsm_copy *copy = &m->copies[i];
        if (same_state(copy, like) && copy->rank == rank)
            return copy;
    }
    return NULL;
}

/* True if every rank of that generation said its pins and they are the job's. A generation whose
 * workers began while the coordinator was away may have trained on other data, and then died:
 * nobody would know. */
static bool has_run(const struct fsm *m, uint32_t generation)
{
    uint32_t age = m->generation - generation;
    return age < 64 && (m->ran >> age & 1);
}

/* True if the copy can be used. Copies are of no use if their generation was given up, never ran or
 * never was, or if their step is not beyond the store's checkpoint. The job's last step is of no
 * use, either: it is trained again, so that it is saved. The number of ranks that took them doesn't
 * matter: each reads what it holds. */
static bool is_usable(const struct fsm *m, const struct fsm_copy *copy)
{
    return copy->size <= LIMIT_RANKS && copy->rank < copy->size && copy->generation > 0 &&
           copy->generation >= m->restore.memory_from && copy->generation < m->generation &&
           has_run(m, copy->generation) && copy->step > m->restore.step &&
           (copy->generation > m->last.generation || copy->step < m->last.step) &&
           (m->total_steps == 0 || copy->step < m->total_steps);
}

/* Makes space for the copies of a generation of so many ranks, or of this one. */
static bool reserve_copies(struct fsm *m, uint32_t size)
{
    const size_t most = (size_t)(size > m->size ? size : m->size) * COPIES_PER_RANK;
    if (m->copy_count < m->copy_capacity)
        return true;
    if (m->copy_capacity >= most)
        return false;
    struct fsm_copy *more = realloc(m->copies, most * sizeof(*more));
    if (more == NULL)
        return false;
    m->copies = more;
    m->copy_capacity = most;
    return true;
}

void fsm_copies_hear(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    if (m->restore.decided || m->state != FSM_FORMING || m->config.saves_nothing)
        return;
    for (size_t i = 0; i < t->ev->hello.copy_count; i++) {
        struct fsm_copy copy = t->ev->hello.copies[i];
        copy.holder = t->ev->rank;
        struct fsm_copy *known = find_share(m, &copy, copy.rank);
        if (known != NULL && copy.holder == copy.rank) {
            *known = copy; /* the best place for a share is where it is needed */
        } else if (known == NULL && is_usable(m, &copy) && reserve_copies(m, copy.size)) {
            m->copies[m->copy_count++] = copy;
        }
    }
}

static void forget_holders(struct fsm *m)
{
    free(m->restore.holders);
    m->restore.holders = NULL;
    m->restore.memory_size = 0;
}

void fsm_copies_clear(struct fsm *m)
{
    free(m->copies);
    m->copies = NULL;
    m->copy_count = m->copy_capacity = 0;
}

void fsm_memory_forget(struct fsm *m)
{
    forget_holders(m);
    m->restore.memory_generation = 0;
    m->restore.memory_step = 0;
}

/* Compares by step, then generation, then the number of shares, which one generation has but one
 * of. */
static bool is_newer(const struct fsm_copy *a, const struct fsm_copy *b)
{
    if (a->step != b->step)
        return a->step > b->step;
    return a->generation != b->generation ? a->generation > b->generation : a->size > b->size;
}

/* Moves *state to a share of the newest state that is older; false: there is none. */
static bool next_older(const struct fsm *m, struct fsm_copy *state)
{
    const struct fsm_copy *best = NULL;
    for (size_t i = 0; i < m->copy_count; i++) {
        const struct fsm_copy *copy = &m->copies[i];
        if (is_newer(state, copy) && (best == NULL || is_newer(copy, best)))
            best = copy;
    }
    if (best == NULL)
        return false;
    *state = *best;
    return true;
}

/* Notes who holds each share of that state; false: one is missing. */
static bool find_holders(struct fsm *m, const struct fsm_copy *state)
{
    forget_holders(m);
    if (state->size != m->size)
        m->restore.holders = calloc(state->size, sizeof(*m->restore.holders));
    if (state->size != m->size && m->restore.holders == NULL)
        return false;
    for (uint32_t share = 0; share < state->size; share++) {
        const struct fsm_copy *copy = find_share(m, state, share);
        if (copy == NULL)
            return false;
        if (m->restore.holders != NULL) {
            m->restore.holders[share] = copy->holder;
        } else {
            m->ranks[share].holder = copy->holder;
        }
    }
    m->restore.memory_size = state->size;
    return true;
}

uint32_t fsm_memory_size(const struct fsm *m)
{
    return m->restore.memory_size > 0 ? m->restore.memory_size : m->size;
}

uint32_t fsm_memory_holder(const struct fsm *m, uint32_t share)
{
    CHECK(share < fsm_memory_size(m));
    return m->restore.holders != NULL ? m->restore.holders[share] : m->ranks[share].holder;
}

/* True if the rank's state can be gone on from. It is of an earlier generation, whose workers' pins
 * were compared, and is what the rank is to have. */
static bool is_live(const struct fsm *m, uint32_t rank)
{
    const struct fsm_parked_state *kept = &m->ranks[rank].parked_state;
    return kept->complete && !m->config.program && fsm_has_stage(m, rank) &&
           kept->computed_by > 0 && kept->computed_by < m->generation &&
           has_run(m, kept->computed_by) && kept->step >= m->restore.step &&
           (m->total_steps == 0 || kept->step <= m->total_steps);
}

static bool has_live(const struct fsm *m, uint32_t rank, uint64_t step, uint32_t parts)
{
    const struct fsm_parked_state *kept = &m->ranks[rank].parked_state;
    return is_live(m, rank) && kept->step == step && kept->parts == parts && parts <= LIMIT_RANKS &&
           kept->part < (parts == 0 ? 1 : parts);
}

/* True if the workers with that step have all of the state: all parts, if ranks own parts of it or
 * each has its stage's. */
static bool are_all_there(const struct fsm *m, uint64_t step, uint32_t parts)
{
    bool there[LIMIT_RANKS] = { false };
    uint32_t found = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_parked_state *kept = &m->ranks[i].parked_state;
        if (!has_live(m, i, step, parts) || there[kept->part])
            continue;
        there[kept->part] = true;
        found++;
    }
    return parts == 0 ? found > 0 : found == parts;
}

/* Finds the newest step whose state workers of this generation have, alone or together, and the
 * fewest parts in which they have it. */
static bool find_live(const struct fsm *m, uint64_t *out_step, uint32_t *out_parts)
{
    bool found = false;
    for (uint32_t i = 0; i < m->size; i++) {
        const struct fsm_parked_state *kept = &m->ranks[i].parked_state;
        const bool better = !found || kept->step > *out_step ||
                            (kept->step == *out_step && kept->parts < *out_parts);
        if (!is_live(m, i) || !better || !are_all_there(m, kept->step, kept->parts))
            continue;
        *out_step = kept->step;
        *out_parts = kept->parts;
        found = true;
    }
    return found;
}

/* Goes on from the workers that have the state. Copies stay where they are until there are newer
 * ones. */
static void go_on_live(struct fsm_ctx *t, uint64_t step, uint32_t parts)
{
    struct fsm *m = t->m;
    uint32_t sources = 0;
    for (uint32_t i = 0; i < m->size; i++) {
        struct fsm_rank *rank = &m->ranks[i];
        rank->source = has_live(m, i, step, parts);
        sources += rank->source;
    }
    m->restore.live = true;
    start_at(m, step);
    fsm_emit_event(t, "live", "goes on from step %llu, which %u of %u workers have%s",
                   (unsigned long long)step, sources, m->size, parts > 0 ? " together" : "");
}

void fsm_copies_choose(struct fsm_ctx *t)
{
    struct fsm *m = t->m;
    struct fsm_copy state = { .step = UINT64_MAX };
    if (m->restore.decided)
        return;
    CHECK(m->state == FSM_FORMING);
    m->restore.decided = true;
    m->dirty = true;
    bool found = false;
    while (!found && next_older(m, &state))
        found = find_holders(m, &state);
    fsm_copies_clear(m);
    if (found && m->config.program && fsm_spans(m)) {
        fsm_emit_event(
            t, "memory",
            "the copies of step %llu in memory are not used: a program needs all of them "
            "on its node, and they lie on several",
            (unsigned long long)state.step);
        found = false;
    }
    if (found) {
        m->restore.memory_generation = state.generation;
        m->restore.memory_step = state.step;
    } else {
        fsm_memory_forget(m);
    }
    uint64_t live = 0;
    uint32_t parts = 0;
    if (find_live(m, &live, &parts) && (!found || live >= state.step)) {
        go_on_live(t, live, parts);
        return;
    }
    if (!found)
        return;
    start_at(m, state.step);
    fsm_emit_event(t, "memory", "restored from memory: step %llu, as generation %u left it",
                   (unsigned long long)state.step, state.generation);
}

bool fsm_copies_failed(struct fsm_ctx *t, const struct fsm_fault *fault, bool budget)
{
    struct fsm *m = t->m;
    bool forming = m->state == FSM_FORMING;
    if (m->restore.memory_generation == 0 || m->restore.live ||
        !(fault->kind == FSM_FAULT_DAMAGE || (forming && budget)))
        return false;
    m->restore.memory_from = m->generation;
    fsm_emit_event(t, "memory", "the copies of step %llu in memory are not tried again",
                   (unsigned long long)m->restore.step);
    return true;
}
