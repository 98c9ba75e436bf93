#include "server/fleet/outage.h"

enum outage_turn outage_look(struct outage *outage, const struct outage_sight *sight, int64_t now)
{
    const bool all = sight->nodes >= 2 && sight->quiet == sight->nodes;
    if (outage->since == 0) {
        if (!all || !sight->due || outage->spent)
            return OUTAGE_NONE;
        outage->since = now;
        outage->looked_at = now;
        return OUTAGE_BEGINS;
    }
    outage->looked_at = now;
    if (all && now - outage->since < OUTAGE_MAX_MS)
        return OUTAGE_HOLDS;
    outage->since = 0;
    outage->spent = all;
    return OUTAGE_ENDS;
}

void outage_heard(struct outage *outage)
{
    outage->spent = false;
}
