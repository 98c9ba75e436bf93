/*
 * Crowded worlds: more jobs than there are slots, and a third of the nodes dies for good. A job
 * that waits for them holds up nobody for whom there are slots: all others come to their end. And
 * what happens to a job that runs gives its slots to none that waits.
 */
#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_coordinator.h"

#define WORLDS  190    /* per mille of them */
#define USUAL   4      /* jobs at most, of a world that isn't crowded */
#define KEPT_MS 100000 /* a job that is about to go on finds its slots for so long at least */

static void lose_node(struct sim *sim, void *arg, uint64_t node)
{
    (void)arg;
    if (!sim_node_is_gone(sim->nodes[node]))
        sim_node_die(sim, sim->nodes[node]);
}

/* The choices depend on the seed alone, so other worlds stay as they were. */
void sim_queue_begin(struct sim *sim)
{
    const uint64_t chance = sim_state(40, sim->options.seed);
    const bool may = !sim->options.calm && !sim->options.once;
    sim->crowded = sim->options.queue || (may && chance % 1000 < WORLDS);
    sim->node_count = 3;
    if (!sim->crowded) {
        sim->job_count = 1 + (uint32_t)sim_below(sim, USUAL);
        return;
    }
    sim->node_count = 4 + (uint32_t)(chance / 1000 % 3);
    sim->job_count = 3 + (uint32_t)(chance / 3000 % 6);
    sim->slots = 1 + (chance / 18000 % 4 == 0);
    const uint64_t half = (uint64_t)sim->options.chaos_ms / 2; /* later a coordinator knows them */
    for (uint32_t i = 0; i < (sim->node_count + 1) / 3; i++) {
        sim_at(sim, (int64_t)(half + sim_below(sim, half)), lose_node, NULL,
               (chance / 72000 + i) % sim->node_count);
    }
}

bool sim_queue_is_hopeless(const struct sim *sim, const struct coord_job *of)
{
    const struct fsm *m = &of->m;
    const bool waits = m->state == FSM_QUEUED || (m->state == FSM_RECOVERING && !fsm_ends(m));
    const uint32_t least = m->config.min > 0 ? m->config.min : m->config.ranks;
    uint32_t slots = 0;
    for (uint32_t i = 0; i < sim->node_count; i++)
        slots += sim_node_is_gone(sim->nodes[i]) ? 0 : sim->slots;
    return sim->crowded && waits && least > slots;
}

/* ---- who gets slots ---- */

static bool takes_workers(const struct coord *coord, const struct coord_node *node)
{
    return node->known && node->conn != NULL && !node->silent && node->stay == COORD_STAYS &&
           !node->drains && node->suspicion.state == SUSPICION_NONE && !node->record.drained &&
           !coord_node_held(coord, node);
}

static uint32_t count_free(struct coord *coord)
{
    struct coord_node *nodes[SIM_NODES];
    const size_t count = coord_nodes(coord, nodes, SIM_NODES);
    uint32_t free_slots = 0;
    CHECK(count <= SIM_NODES);
    for (size_t i = 0; i < count; i++) {
        if (takes_workers(coord, nodes[i]))
            free_slots += nodes[i]->slots - coord_node_used(coord, nodes[i]);
    }
    return free_slots;
}

static uint32_t count_held(const struct fsm *m)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < m->count; i++)
        held += fsm_holds_slot(m, i);
    return held;
}

/* True if the job gets new workers, anywhere: it keeps away from no node. */
static bool is_to_go_on(const struct fsm *m)
{
    return m->state == FSM_RECOVERING && m->intent == FSM_INTENT_NONE &&
           (!fsm_ends(m) || m->ending.to == FSM_RECOVERING) && m->exclusions.count == 0 &&
           m->suspect_count == 0;
}

/* One that waited has slots now: were they those of this one? */
static void check_place(struct sim *sim, uint32_t index, const struct coord_job *of,
                        uint32_t free_slots, uint32_t taken, const char *by)
{
    const struct fsm *m = &of->m;
    const struct sim_job *known = &sim->jobs[index];
    const uint32_t held = count_held(m);
    const uint32_t lacking = held < m->config.ranks ? m->config.ranks - held : 0;
    const bool kept = sim->now - known->gone_since < KEPT_MS;
    if (known->gone_since == 0 || !is_to_go_on(m) || (!kept && !fsm_wants_slots(m, sim->now)))
        return;
    if (lacking > free_slots && lacking <= free_slots + taken)
        sim_fail(sim,
                 "%s is to go on with %u workers, %u are there and %u slots free: %u went to %s, "
                 "which waited; '%s'",
                 known->id, m->config.ranks, held, free_slots, taken, by, m->reason);
}

static void check_places(struct sim *sim, struct coord *coord, uint32_t index, uint32_t taken)
{
    const uint32_t free_slots = count_free(coord);
    sim->starts++;
    for (uint32_t i = 0; i < sim->job_count; i++) {
        const struct coord_job *of = coord_loaded(coord, sim->jobs[i].id);
        if (of != NULL && i != index)
            check_place(sim, i, of, free_slots, taken, sim->jobs[index].id);
    }
}

void sim_queue_look(struct sim *sim, struct coord *coord)
{
    for (uint32_t i = 0; i < sim->job_count && sim->crowded; i++) {
        const struct coord_job *of = coord_loaded(coord, sim->jobs[i].id);
        const bool has = of != NULL && (of->m.state == FSM_PLACING || of->m.state == FSM_FORMING);
        if (has && sim->jobs[i].waited)
            check_places(sim, coord, i, count_held(&of->m));
    }
    for (uint32_t i = 0; i < sim->job_count && sim->crowded; i++) {
        struct sim_job *known = &sim->jobs[i];
        const struct coord_job *of = coord_loaded(coord, known->id);
        known->waited = of != NULL && of->m.state == FSM_QUEUED;
        if (of == NULL || !is_to_go_on(&of->m))
            known->gone_since = 0;
        else if (known->gone_since == 0)
            known->gone_since = sim->now;
    }
}
