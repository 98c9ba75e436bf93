/* Which lanes are computed twice, and who is wrong where they differ. */
#include <string.h>

#include "common/limits.h"
#include "tests/test.h"
#include "trainer/audit/audit_judge.h"

/* ---- the rule ---- */

#define LANES 16

/* Orders of lanes: the one of the rule's picture, and one in which no share is a range. */
static const uint32_t ascending[LANES] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
static const uint32_t mixed[LANES] = { 12, 3, 14, 5, 0, 7, 10, 1, 8, 15, 2, 11, 6, 9, 4, 13 };

static uint32_t owner_of(const struct audit_rule *rule, uint32_t lane)
{
    uint32_t at = 0, first = 0, r = 0;
    while (rule->order[at] != lane)
        at++;
    while (at >= first + rule->shares[r])
        first += rule->shares[r++];
    return r;
}

/* Each rank's own lane is another one's foreign one, and each lane comes within N steps. */
static void check_rule(const struct audit_rule *rule, uint32_t lanes)
{
    uint64_t last[64], longest = 0, audits = 0;
    for (uint32_t l = 0; l < lanes; l++)
        last[l] = UINT64_MAX;
    for (uint64_t step = 0; step < 4 * rule->every; step++) {
        bool seen[64] = { false };
        for (uint32_t r = 0; r < rule->size; r++) {
            uint32_t owner = 0, auditor = 0;
            const uint32_t lane = audit_rule_foreign(rule, step, r, &owner);
            assert_int_equal(lane == AUDIT_NO_LANE, (step + 1) % audit_rule_interval(rule) != 0);
            if (lane == AUDIT_NO_LANE)
                continue;
            audits++;
            assert_int_not_equal(owner, r);
            assert_int_equal(owner_of(rule, lane), owner);
            assert_int_equal(audit_rule_own(rule, step, owner, &auditor), lane);
            assert_int_equal(auditor, r);
            assert_false(seen[lane]);
            seen[lane] = true;
            const uint64_t since = last[lane] == UINT64_MAX ? step + 1 : step - last[lane];
            longest = since > longest ? since : longest;
            last[lane] = step;
        }
    }
    assert_true(audits > 0);
    assert_true(longest <= rule->every);
    for (uint32_t l = 0; l < lanes; l++)
        assert_int_not_equal(last[l], UINT64_MAX);
}

static void every_lane_is_computed_twice_within_n_steps(void **state)
{
    (void)state;
    const uint32_t even[] = { 2, 2, 2 }, odd[] = { 5, 1, 7, 3 }, two[] = { 11, 5 };
    check_rule(&(struct audit_rule){ 8, 3, even, ascending }, 6);
    check_rule(&(struct audit_rule){ 200, 4, odd, ascending }, LANES);
    check_rule(&(struct audit_rule){ 200, 4, odd, mixed }, LANES);
    check_rule(&(struct audit_rule){ 200, 2, two, mixed }, LANES);
    check_rule(&(struct audit_rule){ 64, 2, two, ascending }, LANES);
}

static void all_others_are_auditors_in_turn(void **state)
{
    (void)state;
    const uint32_t shares[] = { 2, 2, 2, 2 };
    const struct audit_rule rule = { 4, 4, shares, ascending };
    bool by[4] = { false };
    for (uint64_t step = 0; step < 40; step++) {
        uint32_t auditor = 0;
        if (audit_rule_own(&rule, step, 1, &auditor) != AUDIT_NO_LANE)
            by[auditor] = true;
    }
    assert_true(by[0] && !by[1] && by[2] && by[3]);
}

static void one_rank_alone_audits_nothing(void **state)
{
    (void)state;
    const uint32_t all[] = { 8 }, shares[] = { 4, 4 };
    assert_int_equal(audit_rule_interval(&(struct audit_rule){ 200, 1, all, ascending }), 0);
    assert_int_equal(audit_rule_interval(&(struct audit_rule){ 0, 2, shares, ascending }), 0);
    assert_int_equal(audit_rule_interval(&(struct audit_rule){ 3, 2, shares, ascending }), 1);
    assert_int_equal(audit_rule_own(&(struct audit_rule){ 0, 2, shares, ascending }, 199, 0, NULL),
                     AUDIT_NO_LANE);
}

/* An error that happens once is found if its lane is audited in that step: one in N. */
static void of_single_errors_one_in_n_is_found(void **state)
{
    (void)state;
    const uint32_t shares[] = { 4, 4, 4 };
    const struct audit_rule rule = { 20, 3, shares, ascending };
    uint32_t found = 0, errors = 0;
    for (uint64_t step = 0; step < 1000; step++) {
        for (uint32_t lane = 0; lane < 12; lane++, errors++)
            found += audit_rule_own(&rule, step, lane / 4, NULL) == lane;
    }
    assert_int_equal(errors, 12000);
    assert_int_equal(found, errors / 20);
}

/* ---- verdicts ---- */

static void the_minority_of_replicas_is_wrong(void **state)
{
    (void)state;
    struct rank_words words[4] = { { { 5 } }, { { 5 } }, { { 5 } }, { { 5 } } };
    struct audit_verdict v;
    audit_judge_replicas(words, 4, &v);
    assert_false(v.differ);
    words[0].word[0] = 6;
    audit_judge_replicas(words, 4, &v);
    assert_true(v.differ);
    assert_int_equal(v.wrong, 0);
    words[1].word[0] = 6; /* two against two */
    audit_judge_replicas(words, 4, &v);
    assert_true(v.differ);
    assert_int_equal(v.wrong, AUDIT_NOBODY);
    words[3].word[0] = 6; /* rank 2 alone is as it was */
    audit_judge_replicas(words, 4, &v);
    assert_int_equal(v.wrong, 2);
    audit_judge_replicas(words + 2, 2, &v);
    assert_true(v.differ);
    assert_int_equal(v.wrong, AUDIT_NOBODY);
}

/* Stages with 2, 1 and 3 ranks. */
static void replicas_are_those_of_a_stage(void **state)
{
    static const uint32_t sizes[] = { 2, 1, 3 };
    struct rank_words words[6] = {
        { { 5 } }, { { 5 } }, { { 7 } }, { { 9 } }, { { 9 } }, { { 9 } }
    };
    struct audit_verdict v;
    (void)state;
    audit_judge_groups(words, sizes, 3, &v);
    assert_false(v.differ);
    assert_false(v.compared); /* rank 2 with nobody */
    audit_judge_groups(words, sizes, 1, &v);
    assert_true(v.compared);
    audit_judge_groups(words + 3, sizes + 2, 1, &v);
    assert_true(v.compared);
    words[4].word[0] = 8;
    audit_judge_groups(words, sizes, 3, &v);
    assert_true(v.differ);
    assert_int_equal(v.wrong, 4);
    assert_int_equal(v.ranks[0], 3);
    assert_int_equal(v.ranks[1], 4);
    words[1].word[0] = 6; /* the first is told of */
    audit_judge_groups(words, sizes, 3, &v);
    assert_int_equal(v.wrong, AUDIT_NOBODY);
    assert_int_equal(v.ranks[1], 1);
}

static void a_third_rank_tells_whose_lane_is_wrong(void **state)
{
    (void)state;
    const uint32_t shares[] = { 2, 2, 2 };
    const struct audit_rule rule = { 4, 3, shares, ascending };
    const uint64_t step = 1; /* rank r computes a lane of r + 1 */
    struct rank_words words[3] = { { { 10, 11 } }, { { 11, 12 } }, { { 12, 10 } } };
    const uint64_t said[2] = { 99, 11 };
    struct audit_verdict v;
    audit_judge_lanes(&rule, step, words, &v);
    assert_false(v.differ);
    words[1].word[0] = 99; /* what rank 1 has of its own lane is not what rank 0 found */
    audit_judge_lanes(&rule, step, words, &v);
    assert_true(v.differ);
    assert_int_equal(v.ranks[0], 1);
    assert_int_equal(v.ranks[1], 0);
    assert_int_equal(audit_third(&v, 3), 2);
    assert_int_equal(audit_judge_third(&v, said, 11), 1);
    assert_int_equal(audit_judge_third(&v, said, 99), 0);
    assert_int_equal(audit_judge_third(&v, said, 7), AUDIT_NOBODY);
}

static void of_two_who_changes_its_mind_was_wrong(void **state)
{
    (void)state;
    const uint32_t shares[] = { 2, 2 };
    const struct audit_rule rule = { 4, 2, shares, ascending };
    struct rank_words words[2] = { { { 10, 11 } }, { { 99, 10 } } };
    const uint64_t said[2] = { 99, 11 };
    uint64_t again[2] = { 11, 11 };
    struct audit_verdict v;
    audit_judge_lanes(&rule, 1, words, &v);
    assert_true(v.differ);
    assert_int_equal(audit_third(&v, 2), AUDIT_NOBODY);
    assert_int_equal(audit_judge_again(&v, said, again), 1);
    again[0] = again[1] = 99;
    assert_int_equal(audit_judge_again(&v, said, again), 0);
    again[0] = 11;
    assert_int_equal(audit_judge_again(&v, said, again), AUDIT_NOBODY);
    again[0] = again[1] = 7; /* both were */
    assert_int_equal(audit_judge_again(&v, said, again), AUDIT_NOBODY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lane_is_computed_twice_within_n_steps),
        cmocka_unit_test(all_others_are_auditors_in_turn),
        cmocka_unit_test(one_rank_alone_audits_nothing),
        cmocka_unit_test(of_single_errors_one_in_n_is_found),
        cmocka_unit_test(the_minority_of_replicas_is_wrong),
        cmocka_unit_test(replicas_are_those_of_a_stage),
        cmocka_unit_test(a_third_rank_tells_whose_lane_is_wrong),
        cmocka_unit_test(of_two_who_changes_its_mind_was_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
