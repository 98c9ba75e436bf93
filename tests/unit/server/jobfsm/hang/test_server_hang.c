/* Which rank is at fault when none gets on: the rule, and the job's state machine with it. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* ---- the rule ---- */

#define RANKS 4

struct place {
    uint64_t collectives, exchanges;
    int64_t stopped_at;
    enum { MUTE = 1, PIPED } how; /* 0: it tells, and computes */
};

struct situation {
    const char *what;
    uint32_t culprit;
    const char *evidence; /* part of the text */
    struct place at[RANKS];
};

#define IN(n)    (2 * (n)-1)
#define AFTER(n) (2 * (n))

static const struct situation SITUATIONS[] = {
    { "one has not come",
      2,
      "rank 2 on node b has not come to collective 10 (reduce), in which ranks 0, 1 and 3 wait; "
      "last seen in phase backward, 31.0 s ago",
      { { IN(10), 0, 1, 0 }, { IN(10), 0, 2, 0 }, { AFTER(9), 0, 9, 0 }, { IN(10), 0, 3, 0 } } },
    { "it stopped last, and is to blame nevertheless",
      0,
      "in which ranks 1, 2 and 3 wait",
      { { AFTER(9), 0, 9, 0 }, { IN(10), 0, 1, 0 }, { IN(10), 0, 1, 0 }, { IN(10), 0, 1, 0 } } },
    { "of two the one that came to fewer",
      3,
      "collective 10 (reduce), in which rank 0 waits",
      { { IN(10), 0, 1, 0 }, { AFTER(9), 0, 2, 0 }, { IN(9), 0, 1, 0 }, { AFTER(8), 0, 5, 0 } } },
    { "of two that came as far the one that stopped first",
      1,
      "in which ranks 0 and 2 wait",
      { { IN(10), 0, 1, 0 }, { AFTER(9), 0, 4, 0 }, { IN(10), 0, 1, 0 }, { AFTER(9), 0, 5, 0 } } },
    { "before the first collective",
      3,
      "has not come to collective 1 (reduce)",
      { { IN(1), 0, 1, 0 }, { IN(1), 0, 1, 0 }, { IN(1), 0, 1, 0 }, { 0, 0, 9, 0 } } },
    { "all wait in the same one, and in no exchange",
      HANG_NOBODY,
      "no progress of any worker: all wait in collective 10 (reduce)",
      { { IN(10), 0, 1, 0 }, { IN(10), 0, 2, 0 }, { IN(10), 0, 3, 0 }, { IN(10), 0, 4, 0 } } },
    { "all wait in the same one, one between two exchanges",
      1,
      "rank 1 on node b has not come to exchange 77 of the reduction, in which ranks 0, 2 and 3 "
      "wait",
      { { IN(10), IN(77), 1, 0 },
        { IN(10), AFTER(76), 9, 0 },
        { IN(10), IN(77), 1, 0 },
        { IN(10), IN(77), 1, 0 } } },
    { "all wait in the same exchange: something is lost on its way",
      HANG_NOBODY,
      "no progress of any worker: all wait in collective 10 (reduce)",
      { { IN(10), IN(77), 1, 0 },
        { IN(10), IN(77), 2, 0 },
        { IN(10), IN(77), 3, 0 },
        { IN(10), IN(77), 4, 0 } } },
    { "nor is who waits in the one before to blame",
      HANG_NOBODY,
      "no progress of any worker: all wait in collective 10 (reduce)",
      { { IN(10), IN(77), 1, 0 },
        { IN(10), IN(76), 2, 0 },
        { IN(10), IN(77), 3, 0 },
        { IN(10), IN(77), 4, 0 } } },
    { "what a collective says comes before what exchanges say",
      2,
      "collective 10 (reduce)",
      { { IN(10), AFTER(70), 1, 0 },
        { IN(10), IN(77), 2, 0 },
        { AFTER(9), IN(77), 3, 0 },
        { IN(10), IN(77), 4, 0 } } },
    { "nobody waits: all stand in their own phases",
      HANG_NOBODY,
      "no progress of any worker",
      { { AFTER(9), 0, 1, 0 },
        { AFTER(9), 0, 2, 0 },
        { AFTER(9), 0, 3, 0 },
        { AFTER(9), 0, 4, 0 } } },
    { "who has come out of it keeps nobody in it",
      HANG_NOBODY,
      "no progress of any worker",
      { { IN(10), 0, 1, 0 }, { AFTER(10), 0, 2, 0 }, { IN(10), 0, 3, 0 }, { IN(10), 0, 4, 0 } } },
    { "one doesn't tell: the others are judged",
      3,
      "in which ranks 1 and 2 wait",
      { { 0, 0, 1, MUTE }, { IN(10), 0, 2, 0 }, { IN(10), 0, 3, 0 }, { AFTER(9), 0, 4, 0 } } },
    { "one doesn't tell, and the others wait: perhaps for it, perhaps not",
      HANG_NOBODY,
      "no progress of any worker",
      { { IN(10), 0, 1, 0 }, { IN(10), 0, 2, 0 }, { 0, 0, 3, MUTE }, { IN(10), 0, 4, 0 } } },
    { "who waits in the pipe waits for the one that computes, though it stopped first",
      2,
      "rank 2 on node b holds up the pipeline, in which ranks 0, 1 and 3 wait; last seen in phase "
      "backward, 31.0 s ago",
      { { AFTER(9), 0, 1, PIPED },
        { AFTER(9), 0, 2, PIPED },
        { AFTER(9), 0, 9, 0 },
        { AFTER(9), 0, 3, PIPED } } },
    { "of two that compute the one that stopped first",
      2,
      "rank 2 on node b holds up the pipeline, in which rank 0 waits",
      { { AFTER(9), 0, 1, PIPED },
        { AFTER(9), 0, 4, 0 },
        { AFTER(9), 0, 3, 0 },
        { AFTER(9), 0, 5, 0 } } },
    { "one has come further: who waits in the pipe is not who keeps it waiting",
      3,
      "has not come to collective 10 (reduce), in which rank 1 waits",
      { { AFTER(9), 0, 1, PIPED },
        { IN(10), 0, 2, 0 },
        { AFTER(9), 0, 3, PIPED },
        { AFTER(9), 0, 9, 0 } } },
    { "all wait in the pipe or in a collective: something is lost on its way",
      HANG_NOBODY,
      "no progress of any worker",
      { { AFTER(9), 0, 1, PIPED },
        { IN(10), 0, 2, 0 },
        { AFTER(9), 0, 3, PIPED },
        { AFTER(8), AFTER(70), 4, PIPED } } },
    { "nobody tells",
      HANG_NOBODY,
      "no progress of any worker",
      { { 0, 0, 1, MUTE }, { 0, 0, 2, MUTE }, { 0, 0, 3, MUTE }, { 0, 0, 4, MUTE } } },
};

static void the_culprit_is_who_keeps_the_others_waiting(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(SITUATIONS) / sizeof(*SITUATIONS); i++) {
        const struct situation *it = &SITUATIONS[i];
        struct hang hang;
        hang_init(&hang);
        for (uint32_t r = 0; r < RANKS; r++) {
            const struct place *at = &it->at[r];
            struct hang_place place = { at->collectives, at->exchanges, "reduce",
                                        at->how == PIPED };
            if (at->how == MUTE)
                place.name[0] = '\0';
            hang_add(&hang, r, 0, &place, at->stopped_at);
        }
        const uint32_t culprit = hang_culprit(&hang);
        const struct hang_suspect suspect = { culprit == HANG_NOBODY ? 0 : culprit, "b", "backward",
                                              31000 };
        char text[512];
        hang_describe(&hang, &suspect, text, sizeof(text));
        const bool all_wait = strstr(text, "all wait") != NULL;
        if (culprit != it->culprit || strstr(text, it->evidence) == NULL ||
            all_wait != (strstr(it->evidence, "all wait") != NULL))
            fail_msg("%s: rank %u; %s", it->what, culprit, text);
    }
}

static void of_many_that_wait_four_are_named(void **state)
{
    (void)state;
    struct hang hang;
    hang_init(&hang);
    for (uint32_t r = 0; r < 1000; r++) {
        struct hang_place place = { .collectives = r == 700 ? AFTER(4) : IN(5),
                                    .name = "evaluation" };
        hang_add(&hang, r, 0, &place, r);
    }
    assert_int_equal(hang_culprit(&hang), 700);
    const struct hang_suspect suspect = { 700, "n7", "", 2500 };
    char text[512], cut[20];
    hang_describe(&hang, &suspect, text, sizeof(text));
    assert_string_equal(
        text, "rank 700 on node n7 has not come to collective 5 (evaluation), in which "
              "ranks 0, 1, 2, 3 and 995 more wait; last seen in phase forming, 2.5 s ago");
    hang_describe(&hang, &suspect, cut, sizeof(cut));
    assert_string_equal(cut, "rank 700 on node n7");
}

/* Stage 0 has one worker, which reduces nothing; of stage 1 rank 2 stands between two exchanges. */
static void exchanges_are_compared_within_a_stage(void **state)
{
    static const struct hang_place at[2][3] = {
        { { IN(11), 0, "ties", false },
          { IN(10), IN(77), "reduce", false },
          { IN(10), AFTER(76), "reduce", false } },
        { { IN(11), 0, "ties", false },
          { IN(10), IN(77), "reduce", false },
          { IN(10), IN(77), "reduce", false } },
    };
    static const uint32_t culprits[2] = { 2, HANG_NOBODY };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct hang hang;
        hang_init(&hang);
        for (uint32_t r = 0; r < 3; r++)
            hang_add(&hang, r, r > 0, &at[i][r], r);
        assert_int_equal(hang_culprit(&hang), culprits[i]);
    }
}

/* ---- the machine ---- */

static void say(struct bench *b, uint32_t rank, uint64_t collectives, const char *phase,
                uint64_t counter)
{
    struct fsm_event event = { .kind = FSM_EV_PROGRESS,
                               .generation = b->m.generation,
                               .rank = rank };
    event.progress = (struct fsm_progress){ .step = 3,
                                            .phase = phase,
                                            .counter = counter,
                                            .collectives = collectives,
                                            .collective = "reduce" };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

/* Rank 0 waits from the beginning; rank 1 gets on a little longer, then stops, too. */
static void who_stopped_last_is_blamed_with_the_evidence(void **state)
{
    struct bench *b = *state;
    for (int s = 0; s < 40 && b->m.ending.to == FSM_NONE; s++) {
        b->now += 1000;
        say(b, 0, IN(4), "reduce", 77);
        say(b, 1, AFTER(3), "forward", s < 3 ? (uint64_t)s : 3);
    }
    bench_is_state(b, "RECOVERING");
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
    assert_int_equal(b->m.cause.rank, 1);
    assert_string_equal(b->m.cause.phase, "forward");
    assert_non_null(strstr(b->m.cause.message, "rank 1 on node node has not come to collective 4 "
                                               "(reduce), in which rank 0 waits; last seen in "
                                               "phase forward, 30."));
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9); /* of who waited nothing is told */
    assert_int_equal(bench_count(b, FSM_ACT_EVENT), 0);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    assert_string_equal(bench_told(b, "culprit"), "rank 1 on node node: it went");
}

/* The last stage, in whose turn it is, gets on longest. */
static void who_holds_up_the_pipe_is_blamed(void **state)
{
    struct bench *b = *state;
    for (int s = 0; s < 40 && b->m.ending.to == FSM_NONE; s++) {
        b->now += 1000;
        say(b, 0, AFTER(4), HANG_IN_PIPE, 77);
        say(b, 1, AFTER(4), "forward", s < 3 ? (uint64_t)s : 3);
    }
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
    assert_int_equal(b->m.cause.rank, 1);
    assert_non_null(strstr(b->m.cause.message, "rank 1 on node node holds up the pipeline, in "
                                               "which rank 0 waits; last seen in phase forward"));
}

static void without_evidence_who_stopped_first_is_blamed(void **state)
{
    struct bench *b = *state;
    for (int s = 0; s < 40 && b->m.ending.to == FSM_NONE; s++) {
        b->now += 1000;
        say(b, 0, IN(4), "reduce", 77);
        say(b, 1, IN(4), "reduce", s < 3 ? (uint64_t)s : 3);
    }
    assert_int_equal(b->m.cause.kind, FSM_FAULT_HANG);
    assert_int_equal(b->m.cause.rank, 0);
    assert_string_equal(b->m.cause.message,
                        "no progress of any worker: all wait in collective 4 (reduce)");
}

/* Rank 1 was in its forward when it was heard last: what it does since nobody knows. It is given up
 * before the one that waits counts as hung. */
static void who_is_not_heard_is_given_up_first(void **state)
{
    for (int lost = 0; lost < 2; lost++) {
        struct bench *b = *state;
        for (int s = 0; s < 22; s++) {
            b->now += 1000;
            say(b, 0, IN(4), "reduce", 77);
            say(b, 1, AFTER(3), "forward", 3);
        }
        if (lost)
            bench_session_lost(b, 1);
        for (int s = 0; s < 15 && b->m.ending.to == FSM_NONE; s++) {
            b->now += 1000;
            say(b, 0, IN(4), "reduce", 77);
        }
        bench_is_state(b, "RECOVERING");
        assert_int_equal(b->m.cause.kind, lost ? FSM_FAULT_SESSION : FSM_FAULT_HANG);
        assert_int_equal(b->m.cause.rank, 1);
        bench_all_exit(b);
        for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++)
            bench_tick(b, 1000);
        bench_run(b, BENCH_STEPS);
    }
}

/* A place is of a generation: in the next one all begin anew. */
static void the_next_generation_begins_without_places(void **state)
{
    struct bench *b = *state;
    say(b, 0, IN(4), "reduce", 77);
    assert_string_equal(b->m.ranks[0].place.name, "reduce");
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    for (int i = 0; i < 100 && !fsm_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
    bench_run(b, BENCH_STEPS);
    assert_int_equal(b->m.generation, 2);
    assert_int_equal(b->m.ranks[0].place.collectives, 0);
    assert_string_equal(b->m.ranks[0].place.name, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_culprit_is_who_keeps_the_others_waiting),
        cmocka_unit_test(of_many_that_wait_four_are_named),
        cmocka_unit_test(exchanges_are_compared_within_a_stage),
        cmocka_unit_test_setup_teardown(who_stopped_last_is_blamed_with_the_evidence,
                                        bench_setup_running, bench_teardown),
        cmocka_unit_test_setup_teardown(who_holds_up_the_pipe_is_blamed, bench_setup_running,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(without_evidence_who_stopped_first_is_blamed,
                                        bench_setup_running, bench_teardown),
        cmocka_unit_test_setup_teardown(who_is_not_heard_is_given_up_first, bench_setup_running,
                                        bench_teardown),
        cmocka_unit_test_setup_teardown(the_next_generation_begins_without_places,
                                        bench_setup_running, bench_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
