/*
 * A power failure at any moment of saves, commits and retention loses no checkpoint that was
 * acknowledged and makes none that isn't whole.
 *
 * A history is recorded once. For every prefix of its changes, and for every way in which the
 * unsynced ones may survive (all of them where they are few, else a sample), the store is built as
 * it would be found, the promises are checked, the coordinator's recovery is run on it, and the
 * promises are checked again. Of some states the recovery is cut off by a second crash, anywhere.
 *
 * CAIRN_TEST_FULL=1 looks at far more; CAIRN_TEST_SEED=n draws others.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "tests/crash/store_history.h"
#include "tests/test.h"

struct exploration {
    struct history history;
    struct crash_limits limits, again; /* of the first crash, and of one in the recovery */
    struct crash_seen *seen;           /* by all histories: they decide the same */
    size_t n;                          /* changes before the first crash */
    uint64_t nested;                   /* of so many states, one has its recovery cut off */
    uint64_t built, distinct, cut_off;
    bool done;       /* in the second crash: the recovery had ended */
    const char *why; /* the promise that was broken */
};

static bool is_full(void)
{
    return sample_setting("CAIRN_TEST_FULL", 0) != 0;
}

/* A sanitizer's run is slower by ten times. */
static uint32_t share(uint32_t amount)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return is_full() ? amount : (amount + 3) / 4;
#else
    return amount;
#endif
}

static struct exploration *exploration_new(uint64_t number, struct crash_seen *seen)
{
    struct exploration *it = calloc(1, sizeof(*it));
    assert_non_null(it);
    uint64_t seed = sample_setting("CAIRN_TEST_SEED", 0) + number;
    history_new(&it->history, seed);
    it->seen = seen;
    it->limits = (struct crash_limits){ .all_max = share(is_full() ? 2048 : 400),
                                        .draws = share(is_full() ? 40 : 20),
                                        .seed = seed };
    it->again = (struct crash_limits){ .all_max = 32, .draws = 2, .seed = seed + 1 };
    it->nested = is_full() ? 12 : 60;
    return it;
}

static void exploration_free(struct exploration *it)
{
    history_release(&it->history);
    free(it);
}

static void print_tally(const struct exploration *it)
{
    print_message("%" PRIu64 " states, %" PRIu64 " of them distinct; %" PRIu64
                  " recoveries cut off; %zu changes and syncs; seed %" PRIu64 "\n",
                  it->built, it->distinct, it->cut_off, memory_io_changes(it->history.memory),
                  it->limits.seed);
}

/* What the journal says, as far as it matters to the promises. */
static uint64_t journal(const struct exploration *it)
{
    uint8_t marks[SAVINGS_MAX] = { 0 };
    for (size_t i = 0; i < it->history.count; i++) {
        const struct saving *saving = &it->history.savings[i];
        marks[i] = (uint8_t)((it->n >= saving->begun) + (it->n >= saving->decided) +
                             (it->n >= saving->acknowledged) + 8 * (it->n >= saving->given_up) +
                             8 * (it->n > saving->given_up) + 32 * (it->n >= saving->damaged) +
                             32 * (it->n >= saving->condemned));
    }
    return ckpt_check_of(marks, sizeof(marks));
}

static bool is_new(struct exploration *it, struct memory_io *found, uint64_t stage)
{
    bool fresh = false;
    it->built++;
    uint64_t key = memory_io_hash(found, "/") * 31 + journal(it) * 7 + stage;
    (void)crash_seen_at(it->seen, key, &fresh);
    it->distinct += fresh;
    return fresh;
}

static bool holds(struct exploration *it, const char *why)
{
    if (why != NULL && it->why == NULL)
        it->why = why;
    return why == NULL;
}

/* After a second crash, in the recovery from the first or right after it. */
static bool look_again(void *arg, struct memory_io *found)
{
    struct exploration *it = arg;
    struct history *history = &it->history;
    if (!is_new(it, found, it->done ? 2 : 1))
        return true;
    if (it->done)
        return holds(it, history_check(history, found, it->n, HISTORY_RECOVERED));
    return holds(it, history_check(history, found, it->n, HISTORY_CUT_OFF)) &&
           holds(it, history_recover(history, found, it->n, false)) &&
           holds(it, history_check(history, found, it->n, HISTORY_RECOVERED));
}

/* The recovery was recorded: it is cut off anywhere, and begun again. */
static bool cut_off(struct exploration *it, const struct memory_io *recovered)
{
    size_t end = memory_io_changes(recovered);
    bool more = true;
    for (size_t m = 0; m <= end && more; m++) {
        it->done = m == end;
        struct crash_point *point = crash_point_new(recovered, m);
        more = crash_explore(point, &it->again, look_again, it);
        crash_point_free(point);
    }
    it->cut_off++;
    return more;
}

static bool look(void *arg, struct memory_io *found)
{
    struct exploration *it = arg;
    struct history *history = &it->history;
    if (!is_new(it, found, 0))
        return true;
    uint64_t number = it->distinct;
    bool nested = it->nested > 0 && number % it->nested == 0;
    if (!holds(it, history_check(history, found, it->n, HISTORY_FOUND)))
        return false;
    if (nested)
        memory_io_record(found);
    if (!holds(it, history_recover(history, found, it->n, number % 2 == 0)) ||
        !holds(it, history_check(history, found, it->n, HISTORY_RECOVERED)))
        return false;
    if (nested && !cut_off(it, found))
        return false;
    return nested || number % 16 != 0 || holds(it, history_go_on(history, found));
}

static void assert_promises(const struct exploration *it)
{
    if (it->why != NULL)
        fail_msg("after %zu changes, state %" PRIu64 ", seed %" PRIu64 ": %s", it->n, it->built,
                 it->limits.seed, it->why);
}

static uint64_t histories(void)
{
    return is_full() ? 12 : share(4);
}

static void crash_anywhere(uint64_t number, struct crash_seen *seen)
{
    struct exploration *it = exploration_new(number, seen);
    size_t total = memory_io_changes(it->history.memory);
    assert_true(total > 150);
    for (it->n = 0; it->n <= total; it->n++) {
        struct crash_point *point = crash_point_new(it->history.memory, it->n);
        (void)crash_explore(point, &it->limits, look, it);
        crash_point_free(point);
        assert_promises(it);
    }
    print_tally(it);
    exploration_free(it);
}

static void crash_anywhere_loses_nothing_and_makes_nothing_false(void **state)
{
    (void)state;
    struct crash_seen seen = { 0 };
    for (uint64_t number = 0; number < histories(); number++)
        crash_anywhere(number, &seen);
    print_message("%" PRIu64 " distinct states\n", seen.count);
    assert_true(seen.count > 5000);
    crash_seen_release(&seen);
}

/* The process alone dies: changes that weren't synced aren't lost yet, and not safe yet either. */
static void kill_anywhere(uint64_t number, struct crash_seen *seen)
{
    struct exploration *it = exploration_new(number, seen);
    struct history *history = &it->history;
    size_t total = memory_io_changes(history->memory);
    it->again = (struct crash_limits){ .all_max = share(is_full() ? 512 : 32),
                                       .draws = share(is_full() ? 20 : 2),
                                       .seed = it->limits.seed };
    for (it->n = 0; it->n <= total; it->n++) {
        struct crash_point *point = crash_point_new(history->memory, it->n);
        struct memory_io *found = crash_point_kill(point);
        bool fine = holds(it, history_check(history, found, it->n, HISTORY_FOUND)) &&
                    holds(it, history_recover(history, found, it->n, it->n % 2 == 0)) &&
                    holds(it, history_check(history, found, it->n, HISTORY_RECOVERED));
        if (fine)
            (void)cut_off(it, found);
        memory_io_free(found);
        crash_point_free(point);
        assert_promises(it);
    }
    print_tally(it);
    exploration_free(it);
}

static void coordinator_that_is_killed_is_followed_by_a_power_failure(void **state)
{
    (void)state;
    struct crash_seen seen = { 0 };
    for (uint64_t number = 0; number < (is_full() ? 4 : 2); number++)
        kill_anywhere(number, &seen);
    print_message("%" PRIu64 " distinct states\n", seen.count);
    assert_true(seen.count > 2000);
    crash_seen_release(&seen);
}

/* Whether a broken promise comes of it when the syncs of [first, end) do nothing. */
static bool is_found_out(struct exploration *it, size_t first, size_t end)
{
    struct memory_io *memory = it->history.memory;
    for (size_t i = first; i < end; i++) {
        if (memory_io_is_sync(memory, i))
            memory_io_lie(memory, i, true);
    }
    bool more = true;
    for (it->n = first + 1; it->n <= memory_io_changes(memory) && more; it->n++) {
        struct crash_point *point = crash_point_new(memory, it->n);
        more = crash_explore(point, &it->again, look, it);
        crash_point_free(point);
    }
    for (size_t i = first; i < end; i++) {
        if (memory_io_is_sync(memory, i))
            memory_io_lie(memory, i, false);
    }
    it->why = NULL;
    return !more;
}

/* The test of the tests: the explorer finds out an fsync that did nothing. All of a save's from its
 * folder to its publication, each alone; of a removal the first, before any file goes; and those
 * that make the folders durable in their parents, together, for they are made twice. */
static void every_fsync_of_the_protocol_is_needed(void **state)
{
    (void)state;
    struct crash_seen seen = { 0 };
    struct exploration *it = exploration_new(0, &seen);
    const struct history *history = &it->history;
    size_t syncs = 0;
    it->nested = 0;
    assert_true(is_found_out(it, history->savings[0].begun, history->savings[0].created));
    for (size_t i = 0; i < history->count; i++) {
        const struct saving *saving = &history->savings[i];
        if (saving->acknowledged == NEVER)
            continue;
        for (size_t at = saving->created; at < saving->acknowledged; at++) {
            if (!memory_io_is_sync(history->memory, at))
                continue;
            assert_true(is_found_out(it, at, at + 1));
            syncs++;
        }
        if (saving->given_up != NEVER) {
            size_t at = saving->given_up;
            while (!memory_io_is_sync(history->memory, at))
                at++;
            assert_true(is_found_out(it, at, at + 1));
            syncs++;
        }
    }
    assert_true(syncs > 25);
    print_message("%zu syncs; ", syncs);
    print_tally(it);
    exploration_free(it);
    crash_seen_release(&seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crash_anywhere_loses_nothing_and_makes_nothing_false),
        cmocka_unit_test(coordinator_that_is_killed_is_followed_by_a_power_failure),
        cmocka_unit_test(every_fsync_of_the_protocol_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
