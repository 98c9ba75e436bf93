/*
 * Programs that Cairn saves, in worlds that have them (--programs): they train as models do, but
 * each generation starts them anew. So a worker that goes on has nothing of the state, and a
 * program reads copies in memory itself, on its own node. Some fail by themselves, some end too
 * early, and some say that they end before their last step. Some leave with an earlier save than
 * the announced one, as they can't come to its step in time.
 *
 * What is promised, beyond what is for all: no worker is a source; copies are restored if all of
 * them lie on the node where all run, and no others; and a job that succeeded has the digest of its
 * last step (sim_coordinator_end).
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "server/coord/coord.h"
#include "tests/sim/sim_coordinator.h"
#include "tests/sim/worker/sim_trainer.h"

#define GRACE_MS   4000
#define BUDGET     3 /* in every third job; others never fail by it */
#define NO_BUDGET  10000
#define COPIES_MAX 16 /* of a node: more may be passed over */

/* ---- the world ---- */

/* Which jobs follows from the seed alone, last of all: other worlds stay as they were. Nobody
 * compares what programs compute, so nothing is computed wrongly in these worlds. */
void sim_program_begin(struct sim *sim)
{
    if (!sim->options.programs)
        return;
    sim->wrong = SIM_WRONG_NOTHING;
    for (uint32_t i = 0; i < sim->job_count; i++) {
        struct sim_job *job = &sim->jobs[i];
        const uint64_t chance = sim_state(70 + i, sim->options.seed);
        if (chance % 4 == 0)
            continue;
        job->program = true;
        job->budget = chance / 4 % 3 == 0 ? BUDGET : NO_BUDGET;
        job->stages = 0;
        job->audit_every = job->checksum_every = 0;
        job->spares = 0;
        job->by_speed = job->owns = false;
        if (chance / 16 % 3 == 0) {
            job->promised = job->total;
            job->total = 1 + job->total * 2 / 3;
        }
    }
}

void sim_program_print(const struct sim_job *job, uint32_t index, const char *fewer,
                       const char *every, char *out, size_t capacity)
{
    (void)snprintf(out, capacity,
                   "name: job%u\n"
                   "command: {run: [program], grace: %d ms, restart: {budget: %u}}\n"
                   "workers: {count: %u%s}\n"
                   "checkpoint: {every: %s, delta: %s, store: /store, keep: {last: %d, every: "
                   "%d steps, best: {metric: loss, n: 1}}}\n",
                   index, GRACE_MS, job->budget, job->ranks, fewer, every,
                   job->delta ? "true" : "false", SIM_KEEP_LAST, SIM_KEEP_EVERY);
}

/* ---- a worker ---- */

bool sim_program_fails(struct sim *sim, struct sim_trainer *t)
{
    if (!sim->jobs[t->view.start.job].program || !sim->chaos || sim->options.calm ||
        !sim_chance(sim, 1) || !sim_chance(sim, 500))
        return false;
    if (sim_chance(sim, 200)) {
        session_fsm_finished(&t->fsm, t->view.step);
        t->stage = WAITING_OVER;
        t->stage_since = sim->now;
        sim_say(sim, "trainer %s g%u w%u: its program ends at step %llu, too early", t->id,
                t->view.start.generation, t->view.start.number, (unsigned long long)t->view.step);
        return true;
    }
    sim_trainer_fault(sim, t, CAIRN__V1__FAULT_KIND__PROCESS_GONE,
                      sim_chance(sim, 300) ? SIM_OUTSIDE : SIM_STAYS);
    return true;
}

/* Ends by itself with that step, which it says to the coordinator first. */
bool sim_program_ends(struct sim *sim, struct sim_trainer *t)
{
    const struct sim_job *job = &sim->jobs[t->view.start.job];
    if (job->promised > 0 && t->view.step > job->total)
        sim_fail(sim, "%s: its program is led beyond step %llu, with which it ends", t->id,
                 (unsigned long long)job->total);
    if (t->view.step != job->total || t->total == job->total)
        return false;
    session_fsm_last(&t->fsm, t->view.step, "it is good enough");
    return true;
}

static bool is_exit_ahead(const struct session_fsm *fsm, uint64_t step)
{
    bool ahead = false;
    for (int i = 0; i < SESSION_ANNOUNCED_MAX; i++) {
        const struct session_announced *one = &fsm->announced[i];
        ahead = ahead || (one->state == SESSION_ANNOUNCED_AHEAD && one->exits && one->step > step);
    }
    return ahead;
}

/* The first rank that hears of an exit to come decides for all of its generation: no rank has
 * passed the step after its own. */
bool sim_program_leaves_early(struct sim *sim, const struct sim_trainer *t)
{
    struct sim_job *job = &sim->jobs[t->view.start.job];
    const uint32_t generation = t->view.start.generation;
    if (!job->program || sim_state(generation, sim->options.seed) % 3 != 0)
        return false;
    if (job->early_in != generation && is_exit_ahead(&t->fsm, t->view.step)) {
        job->early_in = generation;
        job->early_at = t->view.step + 1;
    }
    return job->early_in == generation && job->early_at == t->view.step;
}

/* ---- promises ---- */

static bool is_left(const struct sim *sim, uint32_t job, uint32_t generation)
{
    bool left = true;
    for (size_t i = 0; i < sim->trainer_count && left; i++) {
        const struct sim_trainer_view *view = sim_trainer_view(sim->trainers[i]);
        left = view->start.job != job || view->start.generation != generation ||
               view->exit != SIM_RUNS;
    }
    return left;
}

static bool are_all_there(const struct session_copy *copies, size_t count,
                          const struct session_copy *like)
{
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++)
        found += copies[i].generation == like->generation && copies[i].step == like->step &&
                 copies[i].size == like->size;
    return found == like->size;
}

/* The newest of the copies that the generation may use, which all lie on the node where it runs,
 * is used, or a newer checkpoint. */
static void check_copies(struct sim *sim, uint32_t job, const struct fsm *m, uint64_t start)
{
    struct session_copy copies[COPIES_MAX + 1];
    const struct sim_node *node = NULL;
    for (uint32_t i = 0; i < sim->node_count; i++) {
        if (strcmp(sim_node_name(sim->nodes[i]), m->ranks[0].node) == 0)
            node = sim->nodes[i];
    }
    CHECK(node != NULL);
    const size_t count = sim_memory_list(sim, node, job, copies, COPIES_MAX + 1);
    for (size_t i = 0; count <= COPIES_MAX && i < count; i++) {
        const struct session_copy *copy = &copies[i];
        const uint32_t age = m->generation - copy->generation;
        if (copy->generation >= m->generation || copy->generation < m->restore.memory_from ||
            age >= 64 || !(m->ran >> age & 1) || copy->step >= sim->jobs[job].total ||
            copy->step <= start || !is_left(sim, job, copy->generation) ||
            !are_all_there(copies, count, copy))
            continue;
        sim_fail(sim,
                 "%s: generation %u starts from step %llu, and all copies of step %llu lie on %s",
                 m->id, m->generation, (unsigned long long)start, (unsigned long long)copy->step,
                 m->ranks[0].node);
    }
}

void sim_program_check_plan(struct sim *sim, struct coord *coord, uint32_t job,
                            const Cairn__V1__Plan *plan)
{
    const struct coord_job *of = coord_loaded(coord, plan->job);
    if (!sim->jobs[job].program || of == NULL || of->m.generation != plan->generation)
        return;
    const struct fsm *m = &of->m;
    bool spans = false;
    for (uint32_t i = 1; i < m->size; i++)
        spans = spans || strcmp(m->ranks[i].node, m->ranks[0].node) != 0;
    if (plan->live != NULL)
        sim_fail(sim, "%s: generation %u goes on from workers, whose programs are gone", m->id,
                 m->generation);
    if (plan->memory != NULL && spans)
        sim_fail(sim, "%s: generation %u restores copies of several nodes", m->id, m->generation);
    if (!spans && m->state == FSM_FORMING)
        check_copies(sim, job, m, plan->memory != NULL ? plan->memory->step : plan->restore_step);
}

/* Nothing but its last step is a success. */
void sim_program_look(struct sim *sim, uint32_t index, const struct coord_job *of)
{
    const struct fsm *m = &of->m;
    const struct sim_job *known = &sim->jobs[index];
    if (!known->program || m->state != FSM_SUCCEEDED)
        return;
    bool saved = false;
    for (size_t i = 0; i < m->catalog_count; i++)
        saved = saved || m->catalog[i].step >= known->total;
    if (!saved)
        sim_fail(sim, "%s succeeded, and its last step is not saved", m->id);
}
