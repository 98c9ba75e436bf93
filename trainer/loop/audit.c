#include "trainer/loop/audit.h"

#include "common/check.h"
#include "trainer/update/optimizer.h"

/* ---- the rule ---- */

static uint32_t count_like(const struct worker_words *words, uint32_t size, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < size; r++)
        count += words[r].word[0] == words[rank].word[0];
    return count;
}

void audit_judge_replicas(const struct worker_words *words, uint32_t size,
                          struct audit_verdict *out)
{
    uint32_t most = 0; /* a rank that is like most others */
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY };
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

void audit_judge_lanes(const struct audit_rule *rule, uint64_t step,
                       const struct worker_words *words, struct audit_verdict *out)
{
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY };
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

uint32_t audit_judge_again(const struct worker_words *before, const struct worker_words *again,
                           const struct audit_verdict *of, uint32_t third)
{
    const uint32_t owner = of->ranks[0], auditor = of->ranks[1];
    const uint64_t own = before[owner].word[0], foreign = before[auditor].word[1];
    if (third != AUDIT_NOBODY) {
        const uint64_t word = again[third].word[0];
        if (word != own && word != foreign)
            return AUDIT_NOBODY;
        return word == own ? auditor : owner;
    }
    if (again[owner].word[0] != again[auditor].word[0])
        return AUDIT_NOBODY;
    return again[owner].word[0] == own ? auditor : owner;
}

/* ---- a step ---- */

static enum status compute_again(struct worker *w, uint64_t step, const struct worker_words *before,
                                 struct audit_verdict *out)
{
    const struct audit_rule rule = worker_audits(w);
    const uint32_t rank = w->options.rank;
    const uint32_t third = audit_third(out, rule.size);
    const uint32_t lane = audit_rule_own(&rule, step, out->ranks[0], NULL);
    const bool asked =
        third == AUDIT_NOBODY ? rank == out->ranks[0] || rank == out->ranks[1] : rank == third;
    struct worker_words kept[2], mine = { { 0 } };
    const struct worker_words *again = NULL;
    struct audit_verdict pair = *out;
    kept[0] = before[out->ranks[0]]; /* the exchange writes over them */
    kept[1] = before[out->ranks[1]];
    enum status st = asked ? step_recompute(w, step, lane, &mine.word[0]) : ST_OK;
    if (st == ST_OK)
        st = agree_exchange(w, "audit", &mine, &again);
    if (st != ST_OK)
        return st;
    struct worker_words said[3];
    if (third != AUDIT_NOBODY)
        said[2] = again[third];
    said[0] = again[out->ranks[0]];
    said[1] = again[out->ranks[1]];
    pair.ranks[0] = 0;
    pair.ranks[1] = 1;
    const uint32_t wrong =
        audit_judge_again(kept, said, &pair, third == AUDIT_NOBODY ? AUDIT_NOBODY : 2);
    out->wrong = wrong == AUDIT_NOBODY ? AUDIT_NOBODY : out->ranks[wrong];
    reason_set(&out->reason,
               "step %llu: ranks %u and %u computed different gradients of lane %u; computed once "
               "more by %s: %s",
               (unsigned long long)step + 1, out->ranks[0], out->ranks[1], lane,
               third == AUDIT_NOBODY ? "both" : "another rank",
               out->wrong == AUDIT_NOBODY ? "nobody can tell which of the two is wrong"
                                          : "that tells who is wrong");
    return ST_OK;
}

enum status audit_lanes(struct worker *worker, uint64_t step, const struct step_audit *mine,
                        struct audit_verdict *out)
{
    const struct audit_rule rule = worker_audits(worker);
    const struct worker_words word = { { mine->own, mine->foreign } }, *all = NULL;
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY };
    if (mine->own_lane == AUDIT_NO_LANE)
        return ST_OK;
    enum status st = agree_exchange(worker, "audit", &word, &all);
    if (st != ST_OK)
        return st;
    audit_judge_lanes(&rule, step, all, out);
    return out->differ ? compute_again(worker, step, all, out) : ST_OK;
}

enum status audit_replicas(struct worker *worker, uint64_t step, struct audit_verdict *out)
{
    struct worker_words mine = { { 0 } };
    const struct worker_words *all = NULL;
    enum status st = optimizer_checksum(worker->optimizer, worker->device.compute, &mine.word[0]);
    if (st == ST_OK)
        st = agree_exchange(worker, "checksum", &mine, &all);
    if (st != ST_OK)
        return st;
    audit_judge_replicas(all, worker->options.size, out);
    if (!out->differ)
        return ST_OK;
    if (out->wrong == AUDIT_NOBODY) {
        reason_set(&out->reason,
                   "step %llu: the states of ranks %u and %u differ, and nobody can tell which is "
                   "wrong",
                   (unsigned long long)step, out->ranks[0], out->ranks[1]);
    } else {
        reason_set(&out->reason, "step %llu: the state of rank %u differs from that of most others",
                   (unsigned long long)step, out->wrong);
    }
    return ST_OK;
}
