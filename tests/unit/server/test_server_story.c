/* What happened to a job, in words. */
#include <stdio.h>
#include <string.h>

#include "server/story/story.h"
#include "tests/test.h"

static struct recovery record(uint32_t ended, enum fsm_fault_kind fault, enum recovery_kind kind,
                              uint64_t step, uint64_t mark)
{
    struct recovery r = { .state = RECOVERY_DONE,
                          .kind = kind,
                          .ended = ended,
                          .generation = ended + 1,
                          .fault = fault,
                          .rank = 1,
                          .node = "gpu-07",
                          .phase = "backward",
                          .message = "killed by signal 9",
                          .mark = mark,
                          .step = step,
                          .ms = { 250, 120, 0, 1410, 300, 900 } };
    return r;
}

static void is_line(const struct recovery *r, bool over, const char *wanted)
{
    auto_buf struct buf out;
    buf_init(&out, 4096);
    assert_int_equal(story_recovery(r, over, &out), ST_OK);
    assert_string_equal(out.data, wanted);
}

static void a_recovery_is_one_line(void **state)
{
    (void)state;
    struct recovery r = record(1, FSM_FAULT_PROCESS, RECOVERY_CHECKPOINT, 40, 47);
    is_line(&r, false,
            "process gone, rank 1 on gpu-07, in backward: killed by signal 9; generation 2 went on "
            "from step 40, from a checkpoint; 7 steps lost; 2.98 s: detect 0.25, end 0.12, wait "
            "0.00, form 1.41, restore 0.30, replay 0.90");
    r = record(4, FSM_FAULT_HANG, RECOVERY_MEMORY, 46, 47);
    r.state = RECOVERY_CUT;
    (void)snprintf(r.message, sizeof(r.message),
                   "last in phase forward"); /* which it says already */
    is_line(&r, false,
            "hang, rank 1 on gpu-07: last in phase forward; generation 5 went on from "
            "step 46, from copies in memory; 1 step lost; it ended before it had caught up; "
            "2.98 s: detect 0.25, end 0.12, wait 0.00, form 1.41, restore 0.30, replay 0.90");
}

static void what_is_not_known_is_not_said(void **state)
{
    (void)state;
    struct recovery r = record(2, FSM_FAULT_PATH, RECOVERY_SEED, 0, 0);
    r.state = RECOVERY_FORMING;
    r.rank = RECOVERY_ALL_RANKS;
    r.node[0] = r.phase[0] = '\0';
    (void)snprintf(r.message, sizeof(r.message), "%s", "a and b can't reach each other");
    is_line(&r, false,
            "path: a and b can't reach each other; generation 3 went on from step 0, from the "
            "beginning; 0 steps lost; under way; 2.98 s: detect 0.25, end 0.12, wait 0.00, form "
            "1.41, restore 0.30, replay 0.90");
    r = record(2, FSM_FAULT_NONE, RECOVERY_LIVE, 12, 12);
    is_line(&r, false,
            "generation 2 ended as planned; generation 3 went on from step 12, with the workers "
            "that were left; 0 steps lost; 2.98 s: detect 0.25, end 0.12, wait 0.00, form 1.41, "
            "restore 0.30, replay 0.90");
    r.fault = FSM_FAULT_USER;
    r.generation = 0;
    (void)snprintf(r.phase, sizeof(r.phase), "signal"); /* the message says it already */
    is_line(&r, true,
            "user error, rank 1 on gpu-07: killed by signal 9; no generation followed; 2.98 s: "
            "detect 0.25, end 0.12, wait 0.00, form 1.41, restore 0.30, replay 0.90");
}

static void causes_are_summed(void **state)
{
    struct story story = { .node_count = 0 };
    auto_buf struct buf out;
    (void)state;
    buf_init(&out, 4096);
    assert_int_equal(story_losses(&story, &out), ST_OK);
    assert_int_equal(out.size, 0);
    struct recovery r = record(1, FSM_FAULT_PROCESS, RECOVERY_CHECKPOINT, 40, 47);
    story_add(&story, &r);
    r = record(2, FSM_FAULT_PROCESS, RECOVERY_MEMORY, 60, 60);
    story_add(&story, &r);
    r = record(3, FSM_FAULT_NODE, RECOVERY_CHECKPOINT, 80, 85);
    story_add(&story, &r);
    r = (struct recovery){ .state = RECOVERY_NONE };
    story_add(&story, &r);
    assert_int_equal(story_losses(&story, &out), ST_OK);
    assert_string_equal(
        out.data,
        "  cause                times   steps   seconds   detect      end     wait     form  "
        "restore   replay\n"
        "  process gone             2       7      5.96     0.50     0.24     0.00     2.82     "
        "0.60     1.80\n"
        "  node lost                1       5      2.98     0.25     0.12     0.00     1.41     "
        "0.30     0.90\n");
}

/* The text about a cause, or NULL. */
static const char *about(const struct story_advice *list, uint32_t count, const char *what)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(list[i].about, what) == 0)
            return list[i].text.text;
    return NULL;
}

static void advice_is_given_where_it_applies(void **state)
{
    struct story story = { .node_count = 0 };
    struct story_facts facts = { .job = "mlp", .spare_node = true, .saves = true };
    struct story_advice list[STORY_ADVICE];
    (void)state;
    assert_int_equal(story_advise(&story, &facts, list), 0);
    struct recovery r = record(1, FSM_FAULT_NONE, RECOVERY_CHECKPOINT, 12, 12);
    r.ms[RECOVERY_REPLAY] = 0;
    story_add(&story, &r);
    assert_int_equal(story_advise(&story, &facts, list), 0); /* a pause */
    r = record(2, FSM_FAULT_MEMORY, RECOVERY_MEMORY, 40, 40);
    story_add(&story, &r);
    assert_int_equal(story_advise(&story, &facts, list), 1);
    assert_non_null(strstr(about(list, 1, "out of memory"), "micro_batch"));
    r = record(3, FSM_FAULT_PROCESS, RECOVERY_CHECKPOINT, 40, 90);
    r.ms[RECOVERY_REPLAY] = 20000;
    story_add(&story, &r);
    uint32_t count = story_advise(&story, &facts, list);
    assert_int_equal(count, 4);
    assert_string_equal(about(list, count, "process gone"),
                        "`cairn logs mlp --rank 1 --attempt 3` has what it said before");
    assert_string_equal(about(list, count, "node"),
                        "node gpu-07 is blamed for 2 failures: `cairn node drain gpu-07` keeps it "
                        "free");
    assert_non_null(strstr(about(list, count, "replay"), "checkpoint.memory_every: 1 step"));
    facts.spare_node = false;
    facts.copies = true;
    count = story_advise(&story, &facts, list);
    assert_int_equal(count, 2);
    assert_null(about(list, count, "node"));
}

static void each_cause_is_in_the_document_for_users(void **state)
{
    static char text[64 * 1024];
    char word[64];
    (void)state;
    FILE *file = fopen(SOURCE_DIR "/docs/why.md", "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
    assert_int_equal(fclose(file), 0);
    for (uint32_t fault = 0; fault < STORY_FAULTS; fault++) {
        (void)snprintf(word, sizeof(word), "`%s`", story_cause(fault));
        if (strstr(text, word) == NULL)
            fail_msg("%s is not in docs/why.md", word);
    }
}

/* Keys of models, and of checkpoints, help nobody there. */
static void advice_on_a_command_names_its_keys(void **state)
{
    (void)state;
    const struct story_facts facts = { .job = "mine", .command = true };
    struct story_advice list[STORY_ADVICE];
    struct story story = { .node_count = 0 };
    struct recovery r = record(1, FSM_FAULT_MEMORY, RECOVERY_CHECKPOINT, 40, 90);
    r.ms[RECOVERY_REPLAY] = 20000;
    story_add(&story, &r);
    r = record(2, FSM_FAULT_HANG, RECOVERY_CHECKPOINT, 40, 90);
    r.ms[RECOVERY_REPLAY] = 20000;
    story_add(&story, &r);
    r = record(3, FSM_FAULT_PROCESS, RECOVERY_CHECKPOINT, 40, 90);
    story_add(&story, &r);
    const uint32_t count = story_advise(&story, &facts, list);
    assert_int_equal(count, 3);
    assert_non_null(strstr(about(list, count, "out of memory"), "command.processes"));
    assert_non_null(strstr(about(list, count, "hang"), "command.hang"));
    assert_non_null(strstr(about(list, count, "process gone"), "cairn logs mine"));
    assert_null(about(list, count, "replay"));
    const struct story_facts saved = { .job = "mine", .command = true, .saves = true };
    assert_int_equal(story_advise(&story, &saved, list), 4);
    assert_non_null(strstr(about(list, 4, "replay"), "checkpoint.memory_every"));
}

static void each_cause_has_a_name_and_most_have_advice(void **state)
{
    struct story_facts facts = { .job = "mlp", .saves = true };
    struct story_advice list[STORY_ADVICE];
    struct story all = { .node_count = 0 };
    (void)state;
    for (uint32_t fault = 0; fault < STORY_FAULTS; fault++) {
        struct story story = { .node_count = 0 };
        struct recovery r = record(1, (enum fsm_fault_kind)fault, RECOVERY_MEMORY, 40, 40);
        story_add(&story, &r);
        story_add(&all, &r);
        assert_true(story_cause(fault)[0] != '\0');
        assert_int_equal(story_advise(&story, &facts, list), fault == FSM_FAULT_NONE ? 0 : 1);
    }
    assert_int_equal(story_advise(&all, &facts, list), STORY_FAULTS - 1);
    assert_string_equal(story_cause(STORY_FAULTS), "unknown");
}

static void nodes_beyond_the_bound_are_not_counted(void **state)
{
    struct story story = { .node_count = 0 };
    (void)state;
    for (uint32_t i = 0; i < 2 * STORY_NODES; i++) {
        struct recovery r = record(1, FSM_FAULT_PROCESS, RECOVERY_MEMORY, 1, 1);
        (void)snprintf(r.node, sizeof(r.node), "n%u", i);
        story_add(&story, &r);
    }
    assert_int_equal(story.node_count, STORY_NODES);
}

#define TEST(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_recovery_is_one_line),
        TEST(what_is_not_known_is_not_said),
        TEST(causes_are_summed),
        TEST(advice_is_given_where_it_applies),
        TEST(advice_on_a_command_names_its_keys),
        TEST(each_cause_is_in_the_document_for_users),
        TEST(each_cause_has_a_name_and_most_have_advice),
        TEST(nodes_beyond_the_bound_are_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
