#include "trainer/audit/audit_judge.h"

#include <stddef.h>

static uint32_t count_like(const struct rank_words *words, uint32_t size, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < size; r++)
        count += words[r].word[0] == words[rank].word[0];
    return count;
}

void audit_judge_replicas(const struct rank_words *words, uint32_t size, struct audit_verdict *out)
{
    uint32_t most = 0; /* a rank that is like most others */
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY, .compared = size > 1 };
    for (uint32_t r = 1; r < size; r++)
        most = count_like(words, size, r) > count_like(words, size, most) ? r : most;
    uint32_t other = 0;
    while (other < size && words[other].word[0] == words[most].word[0])
        other++;
    out->differ = other < size;
    if (!out->differ)
        return;
    out->ranks[0] = most;
    out->ranks[1] = other;
    if (2 * count_like(words, size, most) > size)
        out->wrong = other;
}

void audit_judge_groups(const struct rank_words *words, const uint32_t *sizes, uint32_t count,
                        struct audit_verdict *out)
{
    uint32_t first = 0;
    bool compared = true;
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY };
    for (uint32_t g = 0; g < count && !out->differ; g++) {
        audit_judge_replicas(words + first, sizes[g], out);
        compared = compared && out->compared;
        out->ranks[0] += first;
        out->ranks[1] += first;
        if (out->wrong != AUDIT_NOBODY)
            out->wrong += first;
        first += sizes[g];
    }
    out->compared = compared;
}

void audit_judge_lanes(const struct audit_rule *rule, uint64_t step, const struct rank_words *words,
                       struct audit_verdict *out)
{
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY, .compared = rule->size > 1 };
    for (uint32_t r = 0; r < rule->size && !out->differ; r++) {
        uint32_t owner = 0;
        (void)audit_rule_foreign(rule, step, r, &owner);
        out->differ = words[owner].word[0] != words[r].word[1];
        out->ranks[0] = owner;
        out->ranks[1] = r;
    }
}

uint32_t audit_third(const struct audit_verdict *of, uint32_t size)
{
    uint32_t third = 0;
    while (third < size && (third == of->ranks[0] || third == of->ranks[1]))
        third++;
    return third < size ? third : AUDIT_NOBODY;
}

uint32_t audit_judge_third(const struct audit_verdict *of, const uint64_t said[2], uint64_t third)
{
    if (third != said[0] && third != said[1])
        return AUDIT_NOBODY;
    return third == said[0] ? of->ranks[1] : of->ranks[0];
}

uint32_t audit_judge_again(const struct audit_verdict *of, const uint64_t said[2],
                           const uint64_t again[2])
{
    return again[0] == again[1] ? audit_judge_third(of, said, again[0]) : AUDIT_NOBODY;
}
