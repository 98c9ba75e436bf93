/*
 * Paths between nodes. In a quarter of the worlds nodes are so small that jobs span them, and paths
 * break: connections across one get on in neither direction, whichever was cut, and a probe in the
 * direction that was cut gets no answer. One of them may never heal: the jobs have to do without.
 */
#include "server/coord/coord.h"
#include "tests/sim/sim.h"

#define NARROW_SLOTS 2
#define CUT_GAP_MS   20000 /* twice the mean time from one cut to the next */
#define CUT_MS       40000
#define CONTROL_MS   30000

bool sim_path_works(const struct sim *sim, uint32_t from, uint32_t to)
{
    return sim->now >= sim->cut_until[from][to];
}

static void cut(struct sim *sim, uint32_t a, uint32_t b, int64_t until)
{
    const uint64_t how = sim_below(sim, 3);
    sim->cuts++;
    sim_say(sim, "the path %s node%u %s node%u is cut until %lld", how == 0 ? "between" : "from", a,
            how == 0 ? "and" : "to", b, (long long)until);
    sim->cut_until[a][b] = until;
    if (how == 0)
        sim->cut_until[b][a] = until;
}

static void cut_some(struct sim *sim, void *arg, uint64_t number)
{
    const uint32_t a = (uint32_t)sim_below(sim, sim->node_count);
    const uint32_t b = (a + 1 + (uint32_t)sim_below(sim, sim->node_count - 1)) % sim->node_count;
    (void)arg;
    if (sim->now >= sim->options.chaos_ms)
        return;
    if (sim->cut_until[a][b] != INT64_MAX && sim->cut_until[b][a] != INT64_MAX)
        cut(sim, a, b, sim_hang_end(sim, CUT_MS));
    sim_at(sim, (int64_t)sim_below(sim, CUT_GAP_MS), cut_some, NULL, number);
}

static void cut_for_good(struct sim *sim, void *arg, uint64_t number)
{
    (void)arg;
    cut(sim, (uint32_t)number % sim->node_count, (uint32_t)(number + 1) % sim->node_count,
        INT64_MAX);
}

/* ---- between a node and the coordinator ---- */

int64_t sim_control_away_ms(const struct sim *sim, uint32_t node, bool to_core)
{
    const int64_t until = to_core ? sim->unheard_until[node] : sim->deaf_until[node];
    return sim->now < until ? until - sim->now : 0;
}

/* One node at a time, for jobs need others to go on; the next while, and one way or both. */
static void cut_control(struct sim *sim, void *arg, uint64_t number)
{
    const uint32_t node = (uint32_t)sim_below(sim, sim->node_count);
    const int64_t until = sim_hang_end(sim, CONTROL_MS);
    const uint64_t how = sim_below(sim, 4);
    (void)arg;
    (void)number;
    if (sim->now >= sim->options.chaos_ms)
        return;
    if (how == 3 && !sim->options.calm) {
        sim_node_power_cut(sim, sim->nodes[node]);
    } else {
        sim->cut_offs++;
        sim->was_unplugged = true;
        sim_say(sim, "node%u is cut off from the coordinator until %lld%s", node, (long long)until,
                how == 1   ? ", and still hears it"
                : how == 2 ? ", and is still heard"
                           : "");
        sim->unheard_until[node] = how == 2 ? sim->now : until;
        sim->deaf_until[node] = how == 1 ? sim->now : until;
    }
    sim_at(sim, until - sim->now + (int64_t)sim_below(sim, CUT_GAP_MS), cut_control, NULL, 0);
}

/* In three of ten worlds, of the seed alone. */
static void control_begin(struct sim *sim)
{
    sim->breaks_control = sim_state(3, sim->options.seed) % 1000 < 300;
    if (!sim->breaks_control)
        return;
    sim->slots = sim->flaw == SIM_NO_FLAW ? NARROW_SLOTS : SIM_SLOTS;
    sim_at(sim, 5000 + (int64_t)sim_below(sim, CUT_GAP_MS), cut_control, NULL, 0);
}

/* The choices depend on the seed alone, so other worlds stay as they were. A world with a bad node
 * gets no cut paths: a job that needs two of three nodes might find none. */
void sim_netpaths_begin(struct sim *sim)
{
    const uint64_t chance = sim_state(2, sim->options.seed);
    if (sim->crowded)
        return;
    sim->slots = SIM_SLOTS;
    control_begin(sim);
    if (sim->options.calm || chance % 1000 >= 350 || sim->flaw != SIM_NO_FLAW)
        return;
    sim->slots = NARROW_SLOTS;
    sim_at(sim, (int64_t)sim_below(sim, CUT_GAP_MS), cut_some, NULL, 0);
    if (chance / 1000 % 2 == 0)
        sim_at(sim, (int64_t)sim_below(sim, (uint64_t)sim->options.chaos_ms), cut_for_good, NULL,
               chance / 2000 % sim->node_count);
}

bool sim_netpaths_hold_up(const struct sim *sim, uint32_t job, uint32_t generation)
{
    bool has[SIM_NODES] = { false }, held = false;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        if (view->start.job == job && view->start.generation == generation && !view->start.spare)
            has[sim_node_index(view->node)] = true;
    }
    for (uint32_t a = 0; a < sim->node_count; a++)
        for (uint32_t b = 0; b < sim->node_count; b++)
            held = held || (has[a] && has[b] && !sim_path_works(sim, a, b));
    return held;
}

/* With the first order of a generation. In a group, what is known may be younger than the order. */
void sim_netpaths_check_start(struct sim *sim, struct coord *coord, const char *id,
                              uint32_t generation)
{
    const int job = sim_job_at(sim, id);
    const struct coord_job *of = coord_loaded(coord, id);
    if (job < 0 || of == NULL || generation <= sim->jobs[job].ordered ||
        of->m.generation != generation)
        return;
    sim->jobs[job].ordered = generation;
    for (uint32_t i = 0; i < of->m.size && sim->group_max == 1; i++) {
        for (uint32_t j = 0; j < i; j++) {
            const char *one = of->m.ranks[i].node, *other = of->m.ranks[j].node;
            if (coord_nodes_apart(coord, one, other))
                sim_fail(sim, "%s: generation %u forms on %s and %s, which don't reach each other",
                         id, generation, one, other);
        }
    }
}
