/*
 * A rank's meetings (common/rendezvous.h), by the session's real state machine: what it brings, and
 * whether what it got is what the others of its generation brought for it.
 */
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "session/core.h"
#include "tests/sim/sim.h"

struct parts {
    char common[RENDEZVOUS_COMMON_MAX];
    uint16_t items[SIM_RANKS];
};

/* Of that rank, for all of its generation. */
static void make_parts(const struct session_core *core, const char *name, uint32_t from,
                       struct parts *out)
{
    (void)snprintf(out->common, sizeof out->common, "%s %s g%u r%u", core->job, name,
                   core->generation, from);
    for (uint32_t to = 0; to < SIM_RANKS; to++)
        out->items[to] = (uint16_t)(core->generation * 1009 + from * 101 + to);
}

static void check_parts(struct sim *sim, const struct session_core *core, const char *name,
                        const struct rendezvous_got *got, uint32_t ranks)
{
    struct parts theirs;
    for (uint32_t from = 0; from < ranks; from++) {
        make_parts(core, name, from, &theirs);
        if (got[from].common_size != strlen(theirs.common) ||
            memcmp(got[from].common, theirs.common, got[from].common_size) != 0 ||
            memcmp(got[from].item, &theirs.items[core->rank], sizeof theirs.items[0]) != 0)
            sim_fail(sim, "%s g%u r%u: what rank %u brought to %s came as something else",
                     core->job, core->generation, core->rank, from, name);
    }
}

bool sim_meet(struct sim *sim, struct session_core *core, const char *name)
{
    const uint32_t ranks = core->assigned->plan->size;
    const struct session_meeting *meeting = NULL;
    struct rendezvous_got got[SIM_RANKS];
    struct parts mine;
    CHECK(ranks <= SIM_RANKS);
    make_parts(core, name, core->rank, &mine);
    const struct rendezvous_part part = { .common = mine.common,
                                          .common_size = strlen(mine.common),
                                          .items = mine.items,
                                          .item_size = sizeof mine.items[0] };
    const enum status st = session_core_meet(core, name, &part, ranks, &meeting);
    if (st == ST_STALE)
        return false;
    CHECK(st == ST_OK);
    if (!meeting->answered)
        return false;
    if (session_core_met(meeting, got) != ST_OK)
        sim_fail(sim, "%s g%u r%u: refused at the meeting %s", core->job, core->generation,
                 core->rank, name);
    else
        check_parts(sim, core, name, got, ranks);
    return true;
}

bool sim_came_to(const struct session_core *core, const char *name)
{
    for (int i = 0; i < RENDEZVOUS_MEETINGS; i++) {
        if (strcmp(core->meetings[i].name, name) == 0)
            return core->up && core->hello_said;
    }
    return false;
}
