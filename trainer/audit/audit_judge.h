/*
 * Finding the wrong rank, where ranks computed different bits. Equality of bits needs no threshold:
 * of two ranks that differ one is wrong.
 *
 *     two ranks differ in a lane   a third rank computes it, too: the one that differs from it is
 *                                  wrong. With two ranks both compute it again: if they agree then,
 *                                  the rank that said something else before was wrong; else nobody
 *                                  knows
 *     replicas differ              the minority is wrong; of two nobody knows. In a pipeline those
 *                                  of a stage are replicas of each other
 *
 * All ranks come to the same verdict, since all have the same words. The simulator's workers are
 * judged by these functions, too.
 *
 * Pure functions. Thread: any.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/reason.h"
#include "trainer/audit/audit_rule.h"

#define AUDIT_NOBODY UINT32_MAX /* nobody is known to be wrong */

/* The words of one rank in an agreement (trainer/worker/agree.h). */
#define RANK_WORDS 2
struct rank_words {
    uint64_t word[RANK_WORDS];
};

struct audit_verdict {
    bool differ;
    bool compared;        /* each rank with another one, if none differs */
    uint32_t wrong;       /* a rank; AUDIT_NOBODY: one of these two */
    uint32_t ranks[2];    /* that differ */
    struct reason reason; /* one line; the judges leave it empty */
};

/* Judges replicas. words: [size] of each rank its checksum, and 0. wrong is AUDIT_NOBODY without a
 * majority. */
void audit_judge_replicas(const struct rank_words *words, uint32_t size, struct audit_verdict *out);
/* Like audit_judge_replicas, within each of `count` groups, one after the other, up to the first
 * that differs. words: of all their ranks. A group of one rank isn't compared. */
void audit_judge_groups(const struct rank_words *words, const uint32_t *sizes, uint32_t count,
                        struct audit_verdict *out);
/* Judges lanes that two ranks computed, up to the first pair that differs: ranks[0] is the owner of
 * the lane, ranks[1] the other rank. words: of each rank its own lane's and the foreign one's. */
void audit_judge_lanes(const struct audit_rule *rule, uint64_t step, const struct rank_words *words,
                       struct audit_verdict *out);
/* Returns the rank that computes a disputed lane again, other than the two; AUDIT_NOBODY: there is
 * none, and both compute it. */
uint32_t audit_third(const struct audit_verdict *of, uint32_t size);
/* Return which of two ranks is wrong. said: their words about that lane, the owner's first. third,
 * again: the word computed again, by a third rank, or by both of them. */
uint32_t audit_judge_third(const struct audit_verdict *of, const uint64_t said[2], uint64_t third);
uint32_t audit_judge_again(const struct audit_verdict *of, const uint64_t said[2],
                           const uint64_t again[2]);
