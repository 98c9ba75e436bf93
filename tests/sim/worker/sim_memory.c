/*
 * The copies in the memory of the machines: each worker of a job that has them leaves its share of
 * every step, the newest three of a generation, until the machine dies or the agent is told to
 * forget the job. Some are damaged in a way that only using them shows.
 */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "tests/sim/sim.h"

#define KEPT 3

struct sim_copy {
    const struct sim_node *node; /* NULL: free */
    uint32_t job;
    struct session_copy copy;
    uint64_t content, taint;
    bool damaged;
};

struct sim_memory {
    struct sim_copy *list;
    size_t count, capacity;
};

/* A share of a state that was cut for so many ranks. */
static uint64_t content_of(uint32_t job, uint64_t step, uint32_t rank, uint32_t size)
{
    return sim_part(sim_state(job, step) + size, rank);
}

static struct sim_copy *vacant(struct sim_memory *memory)
{
    for (size_t i = 0; i < memory->count; i++) {
        if (memory->list[i].node == NULL)
            return &memory->list[i];
    }
    if (memory->count == memory->capacity) {
        memory->capacity = memory->capacity ? 2 * memory->capacity : 64;
        memory->list = realloc(memory->list, memory->capacity * sizeof(*memory->list));
        CHECK(memory->list != NULL);
    }
    return &memory->list[memory->count++];
}

static struct sim_memory *memory_of(struct sim *sim)
{
    if (sim->memory == NULL)
        sim->memory = calloc(1, sizeof(*sim->memory));
    CHECK(sim->memory != NULL);
    return sim->memory;
}

bool sim_memory_used(uint32_t job)
{
    return job % 2 == 1;
}

void sim_memory_put(struct sim *sim, const struct sim_trainer_view *view)
{
    struct sim_memory *memory = memory_of(sim);
    struct sim_copy *oldest = NULL;
    uint32_t kept = 0;
    for (size_t i = 0; i < memory->count; i++) {
        struct sim_copy *one = &memory->list[i];
        if (one->node != view->node || one->job != view->start.job ||
            one->copy.rank != view->rank || one->copy.generation != view->start.generation)
            continue;
        kept++;
        if (oldest == NULL || one->copy.step < oldest->copy.step)
            oldest = one;
    }
    struct sim_copy *to = kept == KEPT ? oldest : vacant(memory);
    *to = (struct sim_copy){
        .node = view->node,
        .job = view->start.job,
        .copy = { .generation = view->start.generation,
                  .rank = view->rank,
                  .size = view->size,
                  .step = view->step },
        .content = content_of(view->start.job, view->step, view->rank, view->size),
        .taint = view->taint,
        .damaged = sim->chaos && sim_chance(sim, 5),
    };
}

size_t sim_memory_list(struct sim *sim, const struct sim_node *node, uint32_t job,
                       struct session_copy *out, size_t capacity)
{
    const struct sim_memory *memory = memory_of(sim);
    size_t count = 0;
    for (size_t i = 0; i < memory->count && count < capacity; i++) {
        if (memory->list[i].node == node && memory->list[i].job == job)
            out[count++] = memory->list[i].copy;
    }
    return count;
}

static const struct sim_copy *find_copy(struct sim *sim, const struct sim_node *node, uint32_t job,
                                        const struct session_copy *wanted)
{
    const struct sim_memory *memory = memory_of(sim);
    for (size_t i = 0; i < memory->count; i++) {
        const struct sim_copy *one = &memory->list[i];
        if (one->node == node && one->job == job && one->copy.step == wanted->step &&
            one->copy.generation == wanted->generation && one->copy.rank == wanted->rank &&
            one->copy.size == wanted->size)
            return one;
    }
    return NULL;
}

/* Where a rank of that generation runs, or ran. */
static const struct sim_node *node_of(struct sim *sim, uint32_t job, uint32_t generation,
                                      uint32_t rank)
{
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == job && view->start.generation == generation && view->rank == rank)
            return view->node;
    }
    return NULL;
}

/* Once is enough, but for a report that is lost with its machine. */
static void note_damage(struct sim *sim, struct sim_job *job, const struct session_assignment *plan)
{
    if (job->memory_bad_in == plan->generation)
        return; /* another rank of it */
    const bool same =
        job->memory_bad_of == plan->memory.generation && job->memory_bad_step == plan->memory.step;
    job->memory_bad_times = same ? job->memory_bad_times + 1 : 1;
    job->memory_bad_in = plan->generation;
    job->memory_bad_of = plan->memory.generation;
    job->memory_bad_step = plan->memory.step;
    if (job->memory_bad_times > 2)
        sim_fail(sim, "%s: generation %u is the third to restore the same damaged copies", job->id,
                 plan->generation);
}

bool sim_memory_restore(struct sim *sim, uint32_t job, const struct session_assignment *plan,
                        uint64_t *taint)
{
    struct sim_job *known = &sim->jobs[job];
    uint64_t taints[SIM_RANKS];
    if (known->memory_of == plan->generation && known->memory_step != plan->memory.step)
        sim_fail(sim, "%s: ranks of generation %u restore different steps", known->id,
                 plan->generation);
    known->memory_of = plan->generation;
    known->memory_step = plan->memory.step;
    for (uint32_t r = 0; r < plan->memory.size; r++) {
        struct session_copy wanted = plan->memory;
        wanted.rank = r;
        const struct sim_copy *copy =
            find_copy(sim, node_of(sim, job, plan->generation, plan->holders[r]), job, &wanted);
        if (copy == NULL || copy->damaged) {
            note_damage(sim, known, plan);
            return false;
        }
        if (copy->content != content_of(job, plan->memory.step, r, plan->memory.size))
            sim_fail(sim, "%s: a copy in memory is of another state", known->id);
        taints[r] = copy->taint;
    }
    *taint = sim_audit_blend(taints, plan->memory.size);
    sim->memory_restores++;
    return true;
}

void sim_memory_forget(struct sim *sim, const struct sim_node *node, int job)
{
    struct sim_memory *memory = memory_of(sim);
    for (size_t i = 0; i < memory->count; i++) {
        if (memory->list[i].node == node && (job < 0 || memory->list[i].job == (uint32_t)job))
            memory->list[i].node = NULL;
    }
}

void sim_memory_free(struct sim *sim)
{
    if (sim->memory != NULL)
        free(sim->memory->list);
    free(sim->memory);
}
