/*
 * A rank's rounds (common/rendezvous.h), by the session's real state machine: what it brings, and
 * whether what it got is what the others of its generation brought for it.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "tests/sim/worker/sim_trainer.h"

#define ANSWER_MS 7000 /* all have come to a coordinator that runs: each has its answer */

struct parts {
    char common[RENDEZVOUS_COMMON_MAX];
    uint16_t items[SIM_RANKS];
};

/* Makes the parts of a rank, for all of its generation. */
static void make_parts(const struct session_fsm *fsm, const char *name, uint32_t from,
                       struct parts *out)
{
    (void)snprintf(out->common, sizeof(out->common), "%s %s g%u r%u", fsm->job, name,
                   fsm->generation, from);
    for (uint32_t to = 0; to < SIM_RANKS; to++)
        out->items[to] = (uint16_t)(fsm->generation * 1009 + from * 101 + to);
}

static void check_parts(struct sim *sim, const struct session_fsm *fsm, const char *name,
                        const struct rendezvous_got *got, uint32_t ranks)
{
    struct parts theirs;
    for (uint32_t from = 0; from < ranks; from++) {
        make_parts(fsm, name, from, &theirs);
        if (got[from].common_size != strlen(theirs.common) ||
            memcmp(got[from].common, theirs.common, got[from].common_size) != 0 ||
            memcmp(got[from].item, &theirs.items[fsm->rank], sizeof(theirs.items[0])) != 0)
            sim_fail(sim, "%s g%u r%u: what rank %u brought to %s came as something else", fsm->job,
                     fsm->generation, fsm->rank, from, name);
    }
}

static bool meet_now(struct sim *sim, struct session_fsm *fsm, const char *name)
{
    const uint32_t ranks = fsm->assigned->plan->size;
    const struct session_rendezvous_round *round = NULL;
    struct rendezvous_got got[SIM_RANKS];
    struct parts mine;
    CHECK(ranks <= SIM_RANKS);
    make_parts(fsm, name, fsm->rank, &mine);
    const struct rendezvous_part part = { .common = mine.common,
                                          .common_size = strlen(mine.common),
                                          .items = mine.items,
                                          .item_size = sizeof(mine.items[0]) };
    const enum status st = session_fsm_rendezvous_join(fsm, name, &part, ranks, &round);
    if (st == ST_STALE)
        return false;
    CHECK(st == ST_OK);
    if (!round->answered)
        return false;
    if (session_fsm_rendezvous_result(round, got) != ST_OK)
        sim_fail(sim, "%s g%u r%u: refused at the meeting %s", fsm->job, fsm->generation, fsm->rank,
                 name);
    else
        check_parts(sim, fsm, name, got, ranks);
    return true;
}

static bool came_to(const struct session_fsm *fsm, const char *name)
{
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++) {
        if (strcmp(fsm->rounds[i].name, name) == 0)
            return fsm->up && fsm->hello_said;
    }
    return false;
}

/* All ranks of the generation run, have a session, and have begun that round. */
static bool all_came(struct sim *sim, const struct sim_trainer *t, const char *name)
{
    uint32_t count = 0;
    for (size_t i = 0; i < sim->trainer_count; i++) {
        const struct sim_trainer *other = sim->trainers[i];
        if (other->view.start.job != t->view.start.job || other->view.start.spare ||
            other->view.start.generation != t->view.start.generation)
            continue;
        if (other->view.exit != SIM_RUNS || other->view.hung || other->conn == NULL ||
            !came_to(&other->fsm, name) ||
            sim_control_away_ms(sim, sim_node_index(other->view.node), true) > 0 ||
            sim_control_away_ms(sim, sim_node_index(other->view.node), false) > 0)
            return false;
        count++;
    }
    return count == t->fsm.assigned->plan->size && sim_coordinator_runs(sim);
}

/* Whether it has the others' parts. An answer that doesn't come though all have come is lost. */
bool sim_meets(struct sim *sim, struct sim_trainer *t, const char *name)
{
    if (meet_now(sim, &t->fsm, name)) {
        t->all_came_at = 0;
        return true;
    }
    if (!all_came(sim, t, name))
        t->all_came_at = 0;
    else if (t->all_came_at == 0)
        t->all_came_at = sim->now;
    else if (sim->now > t->all_came_at + ANSWER_MS)
        sim_fail(sim, "%s g%u w%u has no answer of the meeting %s", t->id, t->view.start.generation,
                 t->view.start.number, name);
    return false;
}
