#include "server/fleet/isolation.h"

enum isolation_turn isolation_look(struct isolation *isolation, const struct isolation_sight *sight,
                                   int64_t now)
{
    const bool all = sight->nodes >= 2 && sight->quiet == sight->nodes;
    if (isolation->since == 0) {
        if (!all || !sight->due || isolation->spent)
            return ISOLATION_NONE;
        isolation->since = now;
        isolation->looked_at = now;
        return ISOLATION_BEGINS;
    }
    isolation->looked_at = now;
    if (all && now - isolation->since < ISOLATION_MAX_MS)
        return ISOLATION_HOLDS;
    isolation->since = 0;
    isolation->spent = all;
    return ISOLATION_ENDS;
}

void isolation_heard(struct isolation *isolation)
{
    isolation->spent = false;
}
