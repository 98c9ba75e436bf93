/* checkpoint.memory_every: auto: how often copies pay, what ranks agree on, where there is room. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/copies/copy_file.h"
#include "session/memory/copy_interval.h"
#include "session/memory/headroom.h"
#include "tests/test.h"

#define MIB ((uint64_t)1 << 20)

static void copies_cost_no_more_than_their_share(void **unused)
{
    (void)unused;
    static const struct {
        struct session_copy_cost copy_cost;
        uint32_t every;
    } cases[] = {
        { { .step_ms = 0 }, 1 },                /* nothing was measured */
        { { .stall_ms = 3, .busy_ms = 9 }, 1 }, /* no step was */
        { { .step_ms = 100 }, 1 },              /* no copy was */
        { { .step_ms = 100, .stall_ms = 0.5 }, 1 } /* exactly the share */,
        { { .step_ms = 100, .stall_ms = 0.51 }, 2 },
        { { .step_ms = 100, .stall_ms = 5 }, 16 },
        { { .step_ms = 1, .stall_ms = 5 }, 1024 },
        { { .step_ms = 1, .stall_ms = 1e9 }, 1024 },
        /* The copier's time is the step's, unless it has a core to itself. */
        { { .step_ms = 100, .stall_ms = 0.1, .cpu_ms = 1.5 }, 4 },
        { { .step_ms = 100, .stall_ms = 0.1, .cpu_ms = 1.5, .core_free = true }, 1 },
        /* A copy takes longer than a step: the next one waits for no copy. */
        { { .step_ms = 100, .busy_ms = 50, .core_free = true }, 1 },
        { { .step_ms = 100, .busy_ms = 51, .core_free = true }, 2 },
        { { .step_ms = 100, .busy_ms = 700, .core_free = true }, 16 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(session_copy_interval(&cases[i].copy_cost), cases[i].every);
}

/* For any cost: a power of two, the share is kept, and half as many steps would break it. */
static void the_least_power_of_two_that_keeps_the_share(void **unused)
{
    (void)unused;
    for (double cost = 0.001; cost < 1000; cost *= 1.37) {
        const struct session_copy_cost copy_cost = { .step_ms = 40, .stall_ms = cost };
        const uint32_t every = session_copy_interval(&copy_cost);
        assert_true(every >= 1 && every <= SESSION_EVERY_MAX && (every & (every - 1)) == 0);
        if (every < SESSION_EVERY_MAX)
            assert_true(cost / (every * 40.0) <= SESSION_COPY_COST_SHARE);
        if (every > 1)
            assert_true(cost / (every / 2 * 40.0) > SESSION_COPY_COST_SHARE);
    }
}

static void an_average_follows_what_is_measured(void **unused)
{
    (void)unused;
    double average = 0;
    session_copy_cost_note(&average, 8);
    assert_true(average == 8); /* the first one counts whole */
    session_copy_cost_note(&average, 16);
    assert_true(average == 9);
    for (int i = 0; i < 100; i++)
        session_copy_cost_note(&average, 2);
    assert_true(average > 1.99 && average < 2.01);
}

static void the_highest_wins_and_one_without_room_turns_it_off(void **unused)
{
    (void)unused;
    assert_int_equal(session_copy_interval_agree((uint32_t[]){ 4 }, 1), 4);
    assert_int_equal(session_copy_interval_agree((uint32_t[]){ 1, 64, 2 }, 3), 64);
    assert_int_equal(session_copy_interval_agree((uint32_t[]){ 1, 64, 0 }, 3), 0);
    assert_int_equal(session_copy_interval_agree((uint32_t[]){ 0, 1, 1 }, 3), 0);
    assert_int_equal(session_copy_interval_agree((uint32_t[]){ 0 }, 1), 0);
}

/* Agreements follow from the step, which all ranks share: soon at first, then rarely. */
static void when_it_is_agreed_anew_follows_from_the_step_alone(void **unused)
{
    (void)unused;
    for (uint64_t first = 0; first < 3000; first += 513) {
        uint64_t last = first;
        int count = 0;
        for (uint64_t step = first; step <= first + 10240; step++) {
            if (!session_copy_interval_revises(first, step))
                continue;
            assert_true(step > first && step - last <= SESSION_EVERY_MAX);
            last = step;
            count++;
        }
        assert_true(count == 12 || count == 11); /* one of the first two may be a multiple */
        assert_true(session_copy_interval_revises(first, first + 16));
        assert_true(session_copy_interval_revises(first, first + 64));
    }
}

/* ---- room ---- */

static const struct session_demand demand = { .share_bytes = 90 * MIB, .threads = 1 };

static struct session_headroom room_of(uint64_t folder, uint64_t memory, uint64_t groups)
{
    return (struct session_headroom){
        .folder = folder, .memory = memory, .groups = groups, .bound = UINT64_MAX
    };
}

static void a_quarter_of_the_least_that_is_free_holds_all_copies(void **unused)
{
    (void)unused;
    const uint64_t each = 3 * copy_file_bytes(90 * MIB), most = 4 * each;
    struct session_budget budget;
    struct reason why;
    for (uint32_t workers = 1; workers < 5; workers++) {
        const uint64_t free = workers * most;
        const struct session_headroom rooms[] = { room_of(free, UINT64_MAX, UINT64_MAX),
                                                  room_of(UINT64_MAX, free, UINT64_MAX),
                                                  room_of(UINT64_MAX, UINT64_MAX, free) };
        static const char *const wheres[] = { "where copies lie", "memory available",
                                              "control group" };
        for (size_t i = 0; i < 3; i++) {
            assert_true(session_headroom_holds(&rooms[i], &demand, workers, &budget, &why));
            assert_int_equal(budget.files, 3);
            assert_false(session_headroom_holds(&rooms[i], &demand, workers + 1, &budget, &why));
            assert_non_null(strstr(why.text, wheres[i]));
        }
        struct session_headroom less = room_of(free - 4, free, free);
        assert_false(session_headroom_holds(&less, &demand, workers, &budget, &why));
        less.held = 4; /* by copies of an earlier generation, which are used again */
        assert_true(session_headroom_holds(&less, &demand, workers, &budget, &why));
        less.bound = free - 4;
        assert_false(session_headroom_holds(&less, &demand, workers, &budget, &why));
        assert_non_null(strstr(why.text, SESSION_HEADROOM_ENV));
    }
}

static void without_a_folder_or_with_too_small_a_bound_there_are_none(void **unused)
{
    (void)unused;
    struct session_budget budget;
    struct reason why;
    struct session_headroom headroom = room_of(0, UINT64_MAX, UINT64_MAX);
    assert_false(session_headroom_holds(&headroom, &demand, 1, &budget, &why));
    assert_non_null(strstr(why.text, "folder of copies"));
    headroom.folder = UINT64_MAX;
    struct session_demand bounded = demand;
    bounded.bytes_max = 150 * MIB; /* enough for saves */
    assert_int_equal(session_budget(&bounded, &budget), ST_OK);
    assert_false(session_headroom_holds(&headroom, &bounded, 1, &budget, &why));
    assert_non_null(strstr(why.text, "checkpoint.memory at least"));
    bounded.bytes_max = 250 * MIB; /* two files are enough */
    assert_true(session_headroom_holds(&headroom, &bounded, 1, &budget, &why));
    assert_int_equal(budget.files, 2);
}

/* The container's default, and a job that asks for copies of 102 MiB in all. */
static void what_is_asked_for_has_to_fit_into_the_file_system(void **unused)
{
    (void)unused;
    const struct session_budget budget = { .files = 3, .file_bytes = 17 * MIB };
    struct session_headroom headroom = room_of(64 * MIB, 0, 0); /* memory isn't asked */
    headroom.whole = 64 * MIB;
    struct reason why = { "" };
    assert_true(session_headroom_fits(&headroom, &budget, 1, &why));
    assert_string_equal(why.text, "");
    assert_false(session_headroom_fits(&headroom, &budget, 2, &why));
    assert_string_equal(why.text, "copies of 2 workers take 102.0 MiB, and 64.0 MiB are free where "
                                  "copies lie: make that file system larger (a container's: "
                                  "--shm-size=102m), or name another folder with CAIRN_COPIES");
    headroom.folder = 14 * MIB;
    assert_false(session_headroom_fits(&headroom, &budget, 1, &why));
    assert_non_null(strstr(why.text, "--shm-size=101m")); /* what others take stays */
    headroom.held = 37 * MIB; /* by copies of an earlier generation, which are used again */
    assert_true(session_headroom_fits(&headroom, &budget, 1, &why));
    headroom.held--;
    assert_false(session_headroom_fits(&headroom, &budget, 1, &why));
    assert_false(
        session_headroom_fits(&(struct session_headroom){ .memory = MIB }, &budget, 1, &why));
    assert_string_equal(why.text, "the folder of copies can't be written to");
    headroom = (struct session_headroom){ .whole = 64 * MIB }; /* full to the last byte */
    assert_false(session_headroom_fits(&headroom, &budget, 1, &why));
    assert_non_null(strstr(why.text, "and 0.0 MiB are free"));
}

static void a_file_system_that_is_too_small_for_a_quarter_names_the_way_out(void **unused)
{
    (void)unused;
    const struct session_headroom headroom = { 64 * MIB,   64 * MIB,   UINT64_MAX,
                                               UINT64_MAX, UINT64_MAX, 0 };
    struct session_budget budget;
    struct reason why;
    char wanted[64];
    assert_false(session_headroom_holds(&headroom, &demand, 1, &budget, &why));
    (void)snprintf(wanted, sizeof(wanted), "--shm-size=%zum", /* 64 MiB are no part of it */
                   (4 * 3 * copy_file_bytes(90 * MIB) + MIB - 1) / MIB);
    assert_non_null(strstr(why.text, wanted));
    assert_non_null(strstr(why.text, "CAIRN_COPIES"));
}

static void what_is_free_is_measured(void **unused)
{
    (void)unused;
    struct session_headroom headroom = session_headroom_measure("/dev/shm/not/there/yet");
    assert_true(headroom.folder > 0 && headroom.folder < UINT64_MAX);
    assert_true(headroom.whole >= headroom.folder && headroom.whole < UINT64_MAX);
    assert_true(headroom.memory > MIB && headroom.memory < UINT64_MAX);
    assert_true(headroom.groups > 0);
    assert_int_equal(headroom.held, 0);
    assert_int_equal(headroom.bound, UINT64_MAX);
    assert_int_equal(session_headroom_measure(NULL).folder, 0);
    assert_int_equal(session_headroom_measure("/proc/version/x").folder, 0); /* under a file */
    assert_int_equal(setenv(SESSION_HEADROOM_ENV, "12345", 1), 0);
    assert_int_equal(session_headroom_measure("/dev/shm").bound, 12345);
    assert_int_equal(unsetenv(SESSION_HEADROOM_ENV), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_cost_no_more_than_their_share),
        cmocka_unit_test(the_least_power_of_two_that_keeps_the_share),
        cmocka_unit_test(an_average_follows_what_is_measured),
        cmocka_unit_test(the_highest_wins_and_one_without_room_turns_it_off),
        cmocka_unit_test(when_it_is_agreed_anew_follows_from_the_step_alone),
        cmocka_unit_test(a_quarter_of_the_least_that_is_free_holds_all_copies),
        cmocka_unit_test(without_a_folder_or_with_too_small_a_bound_there_are_none),
        cmocka_unit_test(what_is_asked_for_has_to_fit_into_the_file_system),
        cmocka_unit_test(a_file_system_that_is_too_small_for_a_quarter_names_the_way_out),
        cmocka_unit_test(what_is_free_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
