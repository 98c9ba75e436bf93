#include "trainer/audit/audit_rule.h"

#include <stdbool.h>
#include <stddef.h>

#include "common/check.h"

static uint32_t largest_share(const struct audit_rule *rule)
{
    uint32_t most = 1;
    for (uint32_t r = 0; r < rule->size; r++)
        most = rule->shares[r] > most ? rule->shares[r] : most;
    return most;
}

uint64_t audit_rule_interval(const struct audit_rule *rule)
{
    if (rule->every == 0 || rule->size < 2)
        return 0;
    const uint64_t interval = rule->every / largest_share(rule);
    return interval > 0 ? interval : 1;
}

/* The number of the audit, from 0 on; false: there is none in that step. */
static bool find_audit(const struct audit_rule *rule, uint64_t step, uint64_t *out)
{
    const uint64_t interval = audit_rule_interval(rule);
    if (interval == 0 || (step + 1) % interval != 0)
        return false;
    *out = (step + 1) / interval - 1;
    return true;
}

/* Returns the distance from an auditor to the owner, in ranks. */
static uint32_t distance_of(const struct audit_rule *rule, uint64_t audit)
{
    return 1 + (uint32_t)(audit / largest_share(rule) % (rule->size - 1));
}

static uint32_t lane_of(const struct audit_rule *rule, uint64_t audit, uint32_t owner)
{
    uint32_t first = 0;
    for (uint32_t r = 0; r < owner; r++)
        first += rule->shares[r];
    return rule->order[first + (uint32_t)(audit % rule->shares[owner])];
}

uint32_t audit_rule_foreign(const struct audit_rule *rule, uint64_t step, uint32_t rank,
                            uint32_t *owner)
{
    uint64_t audit = 0;
    if (!find_audit(rule, step, &audit))
        return AUDIT_NO_LANE;
    const uint32_t of = (rank + distance_of(rule, audit)) % rule->size;
    CHECK(of != rank);
    if (owner != NULL)
        *owner = of;
    return lane_of(rule, audit, of);
}

uint32_t audit_rule_own(const struct audit_rule *rule, uint64_t step, uint32_t rank,
                        uint32_t *auditor)
{
    uint64_t audit = 0;
    if (!find_audit(rule, step, &audit))
        return AUDIT_NO_LANE;
    if (auditor != NULL)
        *auditor = (rank + rule->size - distance_of(rule, audit)) % rule->size;
    return lane_of(rule, audit, rank);
}
