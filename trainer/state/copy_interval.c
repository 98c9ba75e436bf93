#include "trainer/state/copy_interval.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "common/limits.h"
#include "session/memory/headroom.h"
#include "trainer/worker/agree.h"

enum status copy_interval_agree(struct worker *worker, uint32_t mine, uint32_t *out)
{
    const uint32_t size = worker->options.size;
    const struct rank_words word = { { mine } }, *all;
    uint32_t wanted[LIMIT_RANKS];
    enum status st = agree_exchange(worker, "copies", &word, &all);
    if (st != ST_OK)
        return st;
    for (uint32_t r = 0; r < size; r++)
        wanted[r] = (uint32_t)all[r].word[0];
    *out = session_copy_interval_agree(wanted, size);
    return ST_OK;
}

/* Counts the workers of this job on this worker's node; all workers if nodes aren't known. */
static uint32_t workers_here(const struct session_assignment *assignment)
{
    const struct session_assignment *a = assignment;
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->size; i++)
        count += a->nodes == NULL || strcmp(a->nodes[i], a->nodes[a->rank]) == 0;
    return count;
}

/* The copier has a core to itself, as long as nobody else computes on this machine. */
static bool is_core_free(const struct worker *worker, uint32_t workers)
{
    cpu_set_t set;
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        cores = CPU_COUNT(&set);
    return cores > (int64_t)workers * worker->options.job->workers.threads;
}

/* Names the node that has no room. */
static void say_why(const struct session_assignment *assignment, const struct reason *none,
                    struct reason *why)
{
    if (assignment->nodes == NULL) {
        *why = *none;
    } else {
        reason_set(why, "node %s: %s", assignment->nodes[assignment->rank], none->text);
    }
}

enum status copy_interval_choose(const struct copy_interval_options *options,
                                 struct session_ready *ready, struct reason *why)
{
    const struct session_assignment *a = options->assignment;
    const struct session_demand demand = session_demand_of(ready);
    const struct session_headroom headroom = session_headroom_measure(options->copies);
    const uint32_t workers = workers_here(a);
    struct session_budget budget;
    struct reason none;
    uint32_t every = 0;
    why->text[0] = '\0';
    ready->copy_cost.core_free = is_core_free(options->worker, workers);
    const bool holds = session_headroom_holds(&headroom, &demand, workers, &budget, &none);
    if (!holds)
        say_why(a, &none, why);
    enum status st = copy_interval_agree(
        options->worker, holds ? session_copy_interval(&ready->copy_cost) : 0, &every);
    ready->memory_every = every;
    return st;
}

enum status copy_interval_ask(const struct copy_interval_options *options, uint64_t every,
                              struct session_ready *ready, struct reason *why)
{
    struct session_demand demand = session_demand_of(ready);
    struct session_budget budget = { .least = 0 };
    struct reason none = { "" };
    uint32_t all_fit = 0;
    why->text[0] = '\0';
    demand.every = true;
    enum status st = session_budget(&demand, &budget);
    if (st != ST_OK)
        return st;
    const struct session_headroom headroom = session_headroom_measure(options->copies);
    const bool fits =
        session_headroom_fits(&headroom, &budget, workers_here(options->assignment), &none);
    if (!fits)
        say_why(options->assignment, &none, why);
    st = copy_interval_agree(options->worker, fits, &all_fit);
    ready->memory_every = all_fit > 0 ? every : 0;
    return st;
}
