#include "trainer/loop/audit.h"

#include "common/check.h"
#include "common/limits.h"
#include "trainer/update/optimizer.h"

static enum status compute_again(struct worker *w, uint64_t step, const struct rank_words *before,
                                 struct audit_verdict *out)
{
    const struct audit_rule rule = worker_audits(w);
    const uint32_t rank = w->options.rank;
    const uint32_t third = audit_third(out, rule.size);
    const uint32_t lane = audit_rule_own(&rule, step, out->ranks[0], NULL);
    const bool asked =
        third == AUDIT_NOBODY ? rank == out->ranks[0] || rank == out->ranks[1] : rank == third;
    const uint32_t owner = out->ranks[0], auditor = out->ranks[1];
    /* The exchange writes over them. */
    const uint64_t said[2] = { before[owner].word[0], before[auditor].word[1] };
    struct rank_words mine = { { 0 } };
    const struct rank_words *again = NULL;
    enum status st = asked ? step_recompute(w, step, lane, &mine.word[0]) : ST_OK;
    if (st == ST_OK)
        st = agree_exchange(w, "audit", &mine, &again);
    if (st != ST_OK)
        return st;
    if (third == AUDIT_NOBODY) {
        const uint64_t both[2] = { again[owner].word[0], again[auditor].word[0] };
        out->wrong = audit_judge_again(out, said, both);
    } else {
        out->wrong = audit_judge_third(out, said, again[third].word[0]);
    }
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
    const struct rank_words word = { { mine->own, mine->foreign } }, *all = NULL;
    *out = (struct audit_verdict){ .wrong = AUDIT_NOBODY };
    if (mine->own_lane == AUDIT_NO_LANE)
        return ST_OK;
    enum status st = agree_exchange(worker, "audit", &word, &all);
    if (st != ST_OK)
        return st;
    audit_judge_lanes(&rule, step, all, out);
    return out->differ ? compute_again(worker, step, all, out) : ST_OK;
}

/* Returns the number of groups with equal states, and their sizes: a stage each, or all ranks. */
static uint32_t groups_of(const struct worker *w, uint32_t out_sizes[LIMIT_STAGES])
{
    const struct stage *s = w->stage;
    out_sizes[0] = w->group.size;
    for (uint32_t i = 0; s != NULL && i < s->layout.stage_count; i++)
        out_sizes[i] = s->stages[i].data_width;
    return s != NULL ? s->layout.stage_count : 1;
}

enum status audit_replicas(struct worker *worker, uint64_t step, struct audit_verdict *out)
{
    uint32_t sizes[LIMIT_STAGES];
    const uint32_t groups = groups_of(worker, sizes);
    struct rank_words mine = { { 0 } };
    const struct rank_words *all = NULL;
    enum status st = optimizer_checksum(worker->optimizer, worker->device.compute, &mine.word[0]);
    if (st == ST_OK)
        st = agree_exchange(worker, "checksum", &mine, &all);
    if (st != ST_OK)
        return st;
    audit_judge_groups(all, sizes, groups, out);
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
