/* checkpoint.memory: what it is shared out to, and that it is never passed. */
#include "checkpoint/checkpoint.h"
#include "session/budget.h"
#include "session/copy_file.h"
#include "tests/test.h"

#define MIB ((size_t)1 << 20)

static const size_t shares[] = { 0, 1, MIB, 90 * MIB, 1500 * MIB };
#define SHARES (sizeof(shares) / sizeof(shares[0]))

static void without_a_bound_everything_is_as_wished(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        for (int every = 0; every < 2; every++) {
            const struct session_wish wish = { .share_bytes = shares[i],
                                               .threads = 4,
                                               .every = every != 0 };
            const struct ckpt_writer_use use = { .threads = 4, .share_bytes = shares[i] };
            struct session_budget budget;
            assert_int_equal(session_budget(&wish, &budget), ST_OK);
            assert_int_equal(budget.files, every ? 3 : 2);
            assert_int_equal(budget.threads, 4);
            assert_int_equal(budget.file_bytes, copy_file_bytes(shares[i]));
            assert_int_equal(budget.writer_bytes, ckpt_writer_bytes(&use));
            assert_int_equal(budget.bytes,
                             (size_t)budget.files * budget.file_bytes + budget.writer_bytes);
        }
    }
}

/* From the least on: never more than the bound, and never less than with a smaller one. */
static void bound_is_never_passed_and_more_of_it_is_never_worse(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        for (int kind = 0; kind < 4; kind++) {
            struct session_wish wish = { .share_bytes = shares[i],
                                         .threads = 4,
                                         .every = (kind & 1) != 0,
                                         .differs = (kind & 2) != 0,
                                         .bytes_max = 1 };
            struct session_budget budget;
            assert_int_equal(session_budget(&wish, &budget), ST_FULL);
            const size_t least = budget.least;
            int files = 0;
            uint32_t threads = 0;
            for (size_t more = 0; more < 4000 * MIB; more += 3 * MIB) {
                wish.bytes_max = least + more;
                assert_int_equal(session_budget(&wish, &budget), ST_OK);
                assert_true(budget.bytes <= wish.bytes_max);
                assert_true(budget.files > files || budget.threads >= threads);
                assert_true(budget.files >= files);
                files = budget.files;
                threads = budget.threads;
            }
            assert_int_equal(files, wish.every ? 3 : 2);
            assert_int_equal(threads, 4);
        }
    }
}

static void least_is_the_least(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        struct session_wish wish = { .share_bytes = shares[i], .threads = 2, .bytes_max = 1 };
        struct session_budget budget = { .files = 9 };
        assert_int_equal(session_budget(&wish, &budget), ST_FULL);
        assert_int_equal(budget.files, 0);
        wish.bytes_max = budget.least - 1;
        assert_int_equal(session_budget(&wish, &budget), ST_FULL);
        wish.bytes_max = budget.least;
        assert_int_equal(session_budget(&wish, &budget), ST_OK);
        assert_int_equal(budget.files, 1);
        assert_int_equal(budget.threads, 0);
        assert_int_equal(budget.bytes, budget.least);
        wish.every = true; /* a copy isn't overwritten before the next one is whole */
        assert_int_equal(session_budget(&wish, &budget), ST_FULL);
        assert_int_equal(budget.least, wish.bytes_max + copy_file_bytes(shares[i]));
    }
}

/* Two to send from, which no bound takes away, and two for each ward. */
static void copies_at_peers_have_slots_of_their_own(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        for (uint32_t wards = 0; wards < 4; wards++) {
            struct session_wish wish = {
                .share_bytes = shares[i], .threads = 1, .every = true, .peers = true, .wards = wards
            };
            struct session_budget budget;
            assert_int_equal(session_budget(&wish, &budget), ST_OK);
            assert_int_equal(budget.files, 5);
            assert_int_equal(budget.ward_files, 2 * wards);
            assert_int_equal(budget.bytes,
                             (5 + 2 * wards) * budget.file_bytes + budget.writer_bytes);
            wish.bytes_max = 1;
            assert_int_equal(session_budget(&wish, &budget), ST_FULL);
            wish.bytes_max = budget.least;
            assert_int_equal(session_budget(&wish, &budget), ST_OK);
            assert_int_equal(budget.files, 4);
            assert_int_equal(budget.bytes, wish.bytes_max);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_bound_everything_is_as_wished),
        cmocka_unit_test(bound_is_never_passed_and_more_of_it_is_never_worse),
        cmocka_unit_test(least_is_the_least),
        cmocka_unit_test(copies_at_peers_have_slots_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
