/*
 * Copies in memory (design 9, recovery (b)): which of those that the workers of a new generation
 * found on their nodes it starts from.
 *
 * Chosen once per generation, when every rank said hello, and journalled before any plan leaves: a
 * coordinator that restarts in between sends the same plan. Copies are offered by what is there,
 * so nothing else of them is journalled but memory_from: what failed once is not tried again.
 */
#include <stdlib.h>

#include "server/machine/internal.h"

#define COPIES_PER_RANK 16 /* slots of two generations, own and at a peer */

static struct jm_copy *find(struct job_machine *m, uint32_t generation, uint64_t step,
                            uint32_t rank)
{
    for (size_t i = 0; i < m->copy_count; i++) {
        struct jm_copy *copy = &m->copies[i];
        if (copy->generation == generation && copy->step == step && copy->rank == rank)
            return copy;
    }
    return NULL;
}

/* Of another size, of a generation that was given up or never was, or not newer than the store's:
 * of no use. The last step is repeated, so that it is saved. */
static bool is_usable(const struct job_machine *m, const struct jm_copy *copy)
{
    return copy->size == m->config.ranks && copy->rank < copy->size && copy->generation > 0 &&
           copy->generation >= m->memory_from && copy->generation < m->generation &&
           copy->step > m->restore_step && (m->total_steps == 0 || copy->step < m->total_steps);
}

void jm_memory_hear(struct jm_step *s)
{
    struct job_machine *m = s->m;
    const size_t capacity = (size_t)m->config.ranks * COPIES_PER_RANK;
    if (m->memory_decided || m->state != JOB_FORMING)
        return;
    if (s->ev->copy_count > 0 && !m->copies)
        m->copies = calloc(capacity, sizeof *m->copies);
    for (size_t i = 0; m->copies && i < s->ev->copy_count; i++) {
        struct jm_copy copy = s->ev->copies[i];
        copy.holder = s->ev->rank;
        struct jm_copy *known = find(m, copy.generation, copy.step, copy.rank);
        if (known && copy.holder == copy.rank) {
            *known = copy; /* the rank that will have that share is the best to have it */
        } else if (!known && is_usable(m, &copy) && m->copy_count < capacity) {
            m->copies[m->copy_count++] = copy;
        }
    }
}

void jm_memory_forget(struct job_machine *m)
{
    free(m->copies);
    m->copies = NULL;
    m->copy_count = 0;
}

/* The newest step before (*step, *generation), of one step the highest generation. */
static bool next_older(const struct job_machine *m, uint64_t *step, uint32_t *generation)
{
    const struct jm_copy *best = NULL;
    for (size_t i = 0; i < m->copy_count; i++) {
        const struct jm_copy *copy = &m->copies[i];
        bool older = copy->step < *step || (copy->step == *step && copy->generation < *generation);
        if (older && (!best || copy->step > best->step ||
                      (copy->step == best->step && copy->generation > best->generation)))
            best = copy;
    }
    if (!best)
        return false;
    *step = best->step;
    *generation = best->generation;
    return true;
}

/* All shares of it are there: notes who holds them. */
static bool gather(struct job_machine *m, uint64_t step, uint32_t generation)
{
    for (uint32_t r = 0; r < m->config.ranks; r++) {
        const struct jm_copy *copy = find(m, generation, step, r);
        if (!copy)
            return false;
        m->ranks[r].holder = copy->holder;
    }
    return true;
}

void jm_memory_choose(struct jm_step *s)
{
    struct job_machine *m = s->m;
    uint64_t step = UINT64_MAX;
    uint32_t generation = 0;
    if (m->memory_decided)
        return;
    m->memory_decided = true;
    m->dirty = true;
    bool found = false;
    while (!found && next_older(m, &step, &generation))
        found = gather(m, step, generation);
    jm_memory_forget(m);
    if (!found)
        return;
    m->memory_generation = generation;
    m->restore_step = step;
    m->restore_generation = 0; /* no folder of the store */
    if (step > m->step_max) {  /* finished before it could be told */
        m->step_max = step;
        m->progressed = true;
    }
    m->replay_until = m->step_max;
    for (uint32_t i = 0; i < m->config.ranks; i++)
        m->ranks[i].step = step;
    jm_event(s, "memory", "restored from memory: step %llu, as generation %u left it",
             (unsigned long long)step, generation);
}

bool jm_memory_failed(struct jm_step *s, const struct jm_fault *fault, bool budget)
{
    struct job_machine *m = s->m;
    bool forming = m->state == JOB_FORMING;
    if (m->memory_generation == 0 || !(fault->kind == FAULT_DAMAGE || (forming && budget)))
        return false;
    m->memory_from = m->generation;
    jm_event(s, "memory", "the copies of step %llu in memory are not tried again",
             (unsigned long long)m->restore_step);
    return true;
}
