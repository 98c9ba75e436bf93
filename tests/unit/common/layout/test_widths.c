/* How wide the stages are: the wish at its own number, one worker more or fewer, who is there. */
#include <string.h>

#include "common/layout/widths.h"
#include "tests/test.h"

#define STAGES 6

static uint32_t below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    assert_true(n > 0);
    return n > 0 ? (uint32_t)(*state >> 33) % n : 0;
}

/* out: its number of workers. */
static struct layout_wish draw_wish(uint64_t *state, uint32_t *workers, uint32_t *out)
{
    struct layout_wish wish = { .stages = 1 + below(state, STAGES), .workers = workers };
    wish.lanes = 1 + below(state, 9);
    *out = 0;
    for (uint32_t s = 0; s < wish.stages; s++)
        *out += workers[s] = 1 + below(state, wish.lanes);
    return wish;
}

/* Every number of workers: all are somewhere, each stage has one at least and lanes at most; the
 * wish comes out at its number; one worker more makes one stage wider. */
static void widths_are_legal_and_change_by_one(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        uint32_t workers[STAGES], count, before[STAGES] = { 0 };
        const struct layout_wish wish = draw_wish(&seed, workers, &count);
        for (uint32_t n = 1; n <= wish.stages * wish.lanes; n++) {
            uint32_t widths[STAGES] = { 0 }, sum = 0, more = 0;
            const uint32_t stages = layout_wish_stages(&wish, n);
            assert_int_equal(stages, n < wish.stages ? n : wish.stages);
            layout_wish_widths(&wish, n, NULL, widths);
            for (uint32_t s = 0; s < stages; s++) {
                assert_in_range(widths[s], 1, wish.lanes);
                assert_true(widths[s] >= before[s]);
                more += widths[s] - before[s];
                sum += widths[s];
            }
            assert_int_equal(sum, n);
            assert_int_equal(more, 1);
            if (n == count)
                assert_memory_equal(widths, workers, wish.stages * sizeof(*widths));
            memcpy(before, widths, sizeof(before));
        }
    }
}

/* Where it is open who gets one more, those who are there decide it: nobody moves for nothing. Who
 * is there changes nothing else. */
static void who_is_there_stays(void **state)
{
    (void)state;
    static const struct {
        uint32_t wish[4], there[4], workers, widths[4];
    } cases[] = {
        { { 2, 2 }, { 2, 1 }, 3, { 2, 1 } },
        { { 2, 2 }, { 1, 2 }, 3, { 1, 2 } },
        { { 2, 2 }, { 0, 2 }, 2, { 1, 1 } }, /* each has one */
        { { 2, 2 }, { 0, 2 }, 3, { 1, 2 } },
        { { 2, 2 }, { 1, 2 }, 4, { 2, 2 } },
        { { 3, 1 }, { 2, 1 }, 3, { 2, 1 } },
        { { 3, 1 }, { 1, 2 }, 3, { 2, 1 } }, /* the wish counts for more */
        { { 2, 2, 2, 2 }, { 1, 2, 1, 2 }, 6, { 1, 2, 1, 2 } },
        { { 2, 2, 2, 2 }, { 1, 2, 2, 2 }, 7, { 1, 2, 2, 2 } },
        { { 3, 3, 3 }, { 1, 3, 2 }, 6, { 2, 2, 2 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct layout_wish wish = { .lanes = 8, .workers = cases[i].wish };
        uint32_t widths[4] = { 0 };
        while (wish.stages < 4 && cases[i].wish[wish.stages] > 0)
            wish.stages++;
        layout_wish_widths(&wish, cases[i].workers, cases[i].there, widths);
        assert_memory_equal(widths, cases[i].widths, sizeof(widths));
    }
}

/* Alike with anybody there: what comes out is as even, only elsewhere. */
static void who_is_there_makes_no_stage_wider_than_it_may_be(void **state)
{
    (void)state;
    uint64_t seed = 2;
    for (int round = 0; round < 5000; round++) {
        uint32_t workers[STAGES], count, there[STAGES], plain[STAGES], widths[STAGES];
        struct layout_wish wish = draw_wish(&seed, workers, &count);
        for (uint32_t s = 0; s < wish.stages; s++) {
            workers[s] = workers[0];
            there[s] = below(&seed, wish.lanes + 1);
        }
        const uint32_t n = 1 + below(&seed, wish.stages * wish.lanes);
        uint32_t seen_plain[16] = { 0 }, seen[16] = { 0 };
        layout_wish_widths(&wish, n, NULL, plain);
        layout_wish_widths(&wish, n, there, widths);
        for (uint32_t s = 0; s < layout_wish_stages(&wish, n); s++) {
            seen_plain[plain[s]]++;
            seen[widths[s]]++;
        }
        assert_memory_equal(seen, seen_plain, sizeof(seen));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_are_legal_and_change_by_one),
        cmocka_unit_test(who_is_there_stays),
        cmocka_unit_test(who_is_there_makes_no_stage_wider_than_it_may_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
