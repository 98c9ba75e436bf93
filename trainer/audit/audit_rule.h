/*
 * Which lanes are computed twice: in the steps that are audited, every rank also computes one lane
 * of another rank, before its own. The rule alone says which, so that all ranks know all of them.
 *
 * With shares of n lanes at most an audit comes every N / n steps: within N steps each lane of each
 * rank is computed twice once. The lane changes from audit to audit, whose rank's after as many as
 * a rank has lanes.
 *
 *     N = 8, shares 2, 2, 2      step   4    8    12   16   20
 *                         rank 0 adds   2    3    4    5    2
 *                         rank 1 adds   4    5    0    1    4
 *                         rank 2 adds   0    1    2    3    0
 *
 * Pure functions. Thread: any.
 */
#pragma once

#include <stdint.h>

#define AUDIT_NO_LANE UINT32_MAX

struct audit_rule {
    uint64_t every; /* N; 0: nothing is audited */
    uint32_t size;
    const uint32_t *shares; /* [size] lanes per rank; borrowed, as is */
    const uint32_t *order;  /* all lanes, rank by rank */
};

/* Steps between two audits; 0: there are none (also with one rank). */
uint64_t audit_rule_interval(const struct audit_rule *rule);
/* Returns another rank's lane that this rank computes, too, in the step with that number, from 0
 * on, and its owner. AUDIT_NO_LANE: none. owner may be NULL. */
uint32_t audit_rule_foreign(const struct audit_rule *rule, uint64_t step, uint32_t rank,
                            uint32_t *owner);
/* Returns this rank's own lane that another one computes, too, and that rank. auditor may be
 * NULL. */
uint32_t audit_rule_own(const struct audit_rule *rule, uint64_t step, uint32_t rank,
                        uint32_t *auditor);
