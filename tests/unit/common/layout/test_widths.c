/* How wide the stages are: the request at its own number, one worker more or fewer, who is
 * there. */
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
static struct layout_request draw_request(uint64_t *state, uint32_t *workers, uint32_t *out)
{
    struct layout_request request = { .stages = 1 + below(state, STAGES), .workers = workers };
    request.lanes = 1 + below(state, 9);
    *out = 0;
    for (uint32_t s = 0; s < request.stages; s++)
        *out += workers[s] = 1 + below(state, request.lanes);
    return request;
}

/* Every number of workers: all are somewhere, each stage has one at least and lanes at most; the
 * request comes out at its number; one worker more makes one stage wider. */
static void widths_are_legal_and_change_by_one(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int round = 0; round < 2000; round++) {
        uint32_t workers[STAGES], count, before[STAGES] = { 0 };
        const struct layout_request request = draw_request(&seed, workers, &count);
        for (uint32_t n = 1; n <= request.stages * request.lanes; n++) {
            uint32_t widths[STAGES] = { 0 }, sum = 0, more = 0;
            const uint32_t stages = layout_request_stages(&request, n);
            assert_int_equal(stages, n < request.stages ? n : request.stages);
            layout_request_widths(&request, n, NULL, widths);
            for (uint32_t s = 0; s < stages; s++) {
                assert_in_range(widths[s], 1, request.lanes);
                assert_true(widths[s] >= before[s]);
                more += widths[s] - before[s];
                sum += widths[s];
            }
            assert_int_equal(sum, n);
            assert_int_equal(more, 1);
            if (n == count)
                assert_memory_equal(widths, workers, request.stages * sizeof(*widths));
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
        uint32_t request[4], there[4], workers, widths[4];
    } cases[] = {
        { { 2, 2 }, { 2, 1 }, 3, { 2, 1 } },
        { { 2, 2 }, { 1, 2 }, 3, { 1, 2 } },
        { { 2, 2 }, { 0, 2 }, 2, { 1, 1 } }, /* each has one */
        { { 2, 2 }, { 0, 2 }, 3, { 1, 2 } },
        { { 2, 2 }, { 1, 2 }, 4, { 2, 2 } },
        { { 3, 1 }, { 2, 1 }, 3, { 2, 1 } },
        { { 3, 1 }, { 1, 2 }, 3, { 2, 1 } }, /* the request counts for more */
        { { 2, 2, 2, 2 }, { 1, 2, 1, 2 }, 6, { 1, 2, 1, 2 } },
        { { 2, 2, 2, 2 }, { 1, 2, 2, 2 }, 7, { 1, 2, 2, 2 } },
        { { 3, 3, 3 }, { 1, 3, 2 }, 6, { 2, 2, 2 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct layout_request request = { .lanes = 8, .workers = cases[i].request };
        uint32_t widths[4] = { 0 };
        while (request.stages < 4 && cases[i].request[request.stages] > 0)
            request.stages++;
        layout_request_widths(&request, cases[i].workers, cases[i].there, widths);
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
        struct layout_request request = draw_request(&seed, workers, &count);
        for (uint32_t s = 0; s < request.stages; s++) {
            workers[s] = workers[0];
            there[s] = below(&seed, request.lanes + 1);
        }
        const uint32_t n = 1 + below(&seed, request.stages * request.lanes);
        uint32_t seen_plain[16] = { 0 }, seen[16] = { 0 };
        layout_request_widths(&request, n, NULL, plain);
        layout_request_widths(&request, n, there, widths);
        for (uint32_t s = 0; s < layout_request_stages(&request, n); s++) {
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
