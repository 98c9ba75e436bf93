/* checkpoint.memory: what it is shared out to, and that it is never passed; the largest share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "common/limits.h"
#include "session/copies/copy_file.h"
#include "session/fsm.h"
#include "session/memory/budget.h"
#include "tests/test.h"

#define MIB ((size_t)1 << 20)

static const size_t shares[] = { 0, 1, MIB, 90 * MIB, 1500 * MIB };
#define SHARES (sizeof(shares) / sizeof(shares[0]))

static void without_a_bound_everything_is_as_wished(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        for (int every = 0; every < 2; every++) {
            const struct session_demand demand = { .share_bytes = shares[i],
                                                   .threads = 4,
                                                   .every = every != 0 };
            const struct ckpt_writer_use use = { .threads = 4, .share_bytes = shares[i] };
            struct session_budget budget;
            assert_int_equal(session_budget(&demand, &budget), ST_OK);
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
            struct session_demand demand = { .share_bytes = shares[i],
                                             .threads = 4,
                                             .every = (kind & 1) != 0,
                                             .differs = (kind & 2) != 0,
                                             .bytes_max = 1 };
            struct session_budget budget;
            assert_int_equal(session_budget(&demand, &budget), ST_FULL);
            const size_t least = budget.least;
            int files = 0;
            uint32_t threads = 0;
            for (size_t more = 0; more < 4000 * MIB; more += 3 * MIB) {
                demand.bytes_max = least + more;
                assert_int_equal(session_budget(&demand, &budget), ST_OK);
                assert_true(budget.bytes <= demand.bytes_max);
                assert_true(budget.files > files || budget.threads >= threads);
                assert_true(budget.files >= files);
                files = budget.files;
                threads = budget.threads;
            }
            assert_int_equal(files, demand.every ? 3 : 2);
            assert_int_equal(threads, 4);
        }
    }
}

static void least_is_the_least(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        struct session_demand demand = { .share_bytes = shares[i], .threads = 2, .bytes_max = 1 };
        struct session_budget budget = { .files = 9 };
        assert_int_equal(session_budget(&demand, &budget), ST_FULL);
        assert_int_equal(budget.files, 0);
        demand.bytes_max = budget.least - 1;
        assert_int_equal(session_budget(&demand, &budget), ST_FULL);
        demand.bytes_max = budget.least;
        assert_int_equal(session_budget(&demand, &budget), ST_OK);
        assert_int_equal(budget.files, 1);
        assert_int_equal(budget.threads, 0);
        assert_int_equal(budget.bytes, budget.least);
        demand.every = true; /* a copy isn't overwritten before the next one is complete */
        assert_int_equal(session_budget(&demand, &budget), ST_FULL);
        assert_int_equal(budget.least, demand.bytes_max + copy_file_bytes(shares[i]));
    }
}

/* Two to send from, which no bound takes away, and two for each peer. */
static void copies_at_peers_have_slots_of_their_own(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        for (uint32_t peer_copies = 0; peer_copies < 4; peer_copies++) {
            struct session_demand demand = { .share_bytes = shares[i],
                                             .threads = 1,
                                             .every = true,
                                             .peers = true,
                                             .peer_copies = peer_copies,
                                             .peer_copy_bytes = shares[i] };
            struct session_budget budget;
            assert_int_equal(session_budget(&demand, &budget), ST_OK);
            assert_int_equal(budget.files, 5);
            assert_int_equal(budget.peer_copy_files, 2 * peer_copies);
            assert_int_equal(budget.bytes,
                             (5 + 2 * peer_copies) * budget.file_bytes + budget.writer_bytes);
            demand.bytes_max = 1;
            assert_int_equal(session_budget(&demand, &budget), ST_FULL);
            demand.bytes_max = budget.least;
            assert_int_equal(session_budget(&demand, &budget), ST_OK);
            assert_int_equal(budget.files, 4);
            assert_int_equal(budget.bytes, demand.bytes_max);
        }
    }
}

/* In a pipeline a peer may have much more than this rank, or much less. */
static void peers_take_what_the_largest_of_them_has(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < SHARES; i++) {
        for (size_t j = 0; j < SHARES; j++) {
            struct session_demand demand = { .share_bytes = shares[i],
                                             .every = true,
                                             .peers = true,
                                             .peer_copies = 3,
                                             .peer_copy_bytes = shares[j] };
            const size_t peer_copies = 6 * copy_file_bytes(shares[j]);
            struct session_budget budget;
            assert_int_equal(session_budget(&demand, &budget), ST_OK);
            assert_int_equal(budget.bytes,
                             5 * copy_file_bytes(shares[i]) + peer_copies + budget.writer_bytes);
            assert_int_equal(session_budget_copies(&budget),
                             5 * copy_file_bytes(shares[i]) + peer_copies);
        }
    }
}

/* Four workers on two nodes, and the three that are left when one of them is gone. */
static void fill_demands(uint32_t count, size_t bound, struct session_demand *out)
{
    for (uint32_t i = 0; i < count; i++) {
        out[i] = (struct session_demand){ .share_bytes = 120 * MIB / count,
                                          .threads = 2,
                                          .every = true,
                                          .peers = true,
                                          .peer_copies = count == 3 && i == 2 ? 2 : 1,
                                          .peer_copy_bytes = 120 * MIB / count,
                                          .bytes_max = bound };
    }
}

static void a_lost_worker_costs_extras_never_the_job(void **unused)
{
    (void)unused;
    struct session_demand four[4], three[3];
    fill_demands(4, 0, four);
    assert_int_equal(session_lack_of(four, 4), SESSION_LACK_NOTHING);
    fill_demands(4, session_least(four, 4, SESSION_LACK_NOTHING), four);
    assert_int_equal(session_lack_of(four, 4), SESSION_LACK_NOTHING);
    fill_demands(3, four[0].bytes_max, three);
    /* One of the three alone has two peers: all do without. */
    assert_int_equal(session_lack_of(three, 3), SESSION_LACK_PEERS);
    for (uint32_t i = 0; i < 3; i++) {
        struct session_budget budget;
        session_do_without(SESSION_LACK_PEERS, &three[i]);
        assert_int_equal(session_budget(&three[i], &budget), ST_OK);
        assert_int_equal(budget.peer_copy_files, 0);
        assert_true(budget.files >= 2 && budget.bytes <= four[0].bytes_max);
    }
}

/* Bound by bound: what is given up, and what is left of it always has a budget. */
static void extras_go_before_the_bound(void **unused)
{
    (void)unused;
    const enum session_lack order[] = { SESSION_LACK_NOTHING, SESSION_LACK_PEERS,
                                        SESSION_LACK_EVERY, SESSION_LACK_BOUND };
    struct session_demand three[3];
    struct reason reason;
    fill_demands(3, 0, three);
    three[1].share_bytes /= 2; /* it needs less */
    for (size_t i = 0; i < 4; i++) {
        const size_t least = i < 3 ? session_least(three, 3, order[i]) : 1;
        const size_t below = i < 3 ? least - 1 : 1;
        for (uint32_t r = 0; r < 3; r++)
            three[r].bytes_max = least;
        assert_int_equal(session_lack_of(three, 3), order[i]);
        for (uint32_t r = 0; r < 3; r++)
            three[r].bytes_max = below;
        assert_int_equal(session_lack_of(three, 3), order[i < 3 ? i + 1 : i]);
        for (uint32_t r = 0; r < 3; r++) {
            struct session_demand demand = three[r];
            struct session_budget budget;
            session_do_without(session_lack_of(three, 3), &demand);
            assert_int_equal(session_budget(&demand, &budget), ST_OK);
            assert_true(demand.bytes_max >= below && budget.bytes <= demand.bytes_max);
            assert_true(i >= 2 || demand.bytes_max == below);
        }
    }
    session_lack_describe(SESSION_LACK_PEERS, 3 * MIB / 2, 3, &reason);
    assert_string_equal(reason.text, "with 3 workers one needs 1.5 MiB of checkpoint.memory for "
                                     "copies at other nodes: there are none");
}

/* every: copies between checkpoints are asked for. The bound that the reason names would do. */
static size_t begins_with_a_least(bool every)
{
    char text[LIMIT_REASON];
    struct session_demand demand;
    struct reason reason = { "" };
    fill_demands(1, 0, &demand);
    demand.every = every;
    demand.bytes_max = session_least(&demand, 1, SESSION_LACK_PEERS);
    assert_int_equal(session_bound_check(&demand, 1, &reason), ST_OK);
    assert_string_equal(reason.text, "");
    (void)snprintf(text, sizeof(text), "checkpoint.memory: a worker needs %.1f MiB at least",
                   (double)demand.bytes_max / (double)MIB);
    demand.bytes_max--;
    assert_int_equal(session_bound_check(&demand, 1, &reason), ST_CONFIG);
    assert_non_null(strstr(reason.text, text));
    return demand.bytes_max + 1;
}

static void only_what_the_job_asks_for_is_refused(void **unused)
{
    (void)unused;
    assert_true(begins_with_a_least(true) > begins_with_a_least(false));
}

/* The largest share, in the most extents, with every number as long as it gets. */
static void fill_largest_rows(Cairn__V1__MetricRow *rows[SESSION_SAVES_MAX])
{
    static Cairn__V1__Phase phase = CAIRN__V1__PHASE__INIT, *phases[SESSION_PHASES_MAX];
    static Cairn__V1__Eval eval = CAIRN__V1__EVAL__INIT;
    static Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    phase.name = "a name of thirty-one characters";
    phase.ms = eval.loss = eval.accuracy = row.epoch = 1;
    eval.correct = eval.count = row.step = UINT64_MAX;
    row.loss = 1;
    row.generation = UINT32_MAX;
    row.lr = row.grad_norm = 1;
    row.samples_per_s = row.step_ms = 1;
    row.wall_ms = -1;
    row.phases = phases;
    row.n_phases = SESSION_PHASES_MAX;
    row.eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    row.eval = &eval;
    for (size_t i = 0; i < SESSION_PHASES_MAX; i++)
        phases[i] = &phase;
    for (size_t i = 0; i < SESSION_SAVES_MAX; i++)
        rows[i] = &row;
}

static void a_report_of_the_largest_share_goes_into_a_message(void **unused)
{
    (void)unused;
    static struct ckpt_piece_extent extents[CKPT_REPORT_EXTENTS_MAX];
    struct ckpt_hash *hashes = calloc(CKPT_REPORT_HASHES_MAX, sizeof(*hashes));
    assert_non_null(hashes);
    struct ckpt_report report = { .step = UINT64_MAX,
                                  .generation = UINT32_MAX,
                                  .parent = { UINT64_MAX, UINT32_MAX },
                                  .rank = UINT32_MAX,
                                  .extent_count = CKPT_REPORT_EXTENTS_MAX,
                                  .size = UINT64_MAX,
                                  .raw_bytes = UINT64_MAX,
                                  .extents = extents,
                                  .encode_us = UINT64_MAX,
                                  .write_us = UINT64_MAX,
                                  .sync_us = UINT64_MAX };
    memset(report.file, 'f', sizeof(report.file) - 1);
    for (uint32_t i = 0; i < report.extent_count; i++) {
        extents[i] = (struct ckpt_piece_extent){
            .buffer = i, .first = UINT64_MAX, .each = UINT64_MAX, .hashes = hashes
        };
        extents[i].count = i == 0 ? CKPT_REPORT_HASHES_MAX - (report.extent_count - 1) : 1;
    }
    Cairn__V1__SaveReport *made = session_report_new(&report, INT64_MAX);
    assert_non_null(made);
    made->stall_us = UINT64_MAX;
    assert_true(cairn__v1__save_report__get_packed_size(made) <= LIMIT_REPORT_BYTES);
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT;
    message.save_report = made;
    assert_true(cairn__v1__trainer_message__get_packed_size(&message) <= LIMIT_MESSAGE_BYTES);

    char text[LIMIT_REASON], job[LIMIT_NAME];
    uint32_t ranks[LIMIT_RANKS];
    memset(text, 't', sizeof(text));
    memset(job, 'j', sizeof(job));
    text[sizeof(text) - 1] = job[sizeof(job) - 1] = '\0';
    memset(ranks, 0x55, sizeof(ranks));
    Cairn__V1__Fault fault = CAIRN__V1__FAULT__INIT;
    fault.message = fault.phase = text;
    fault.ranks = ranks;
    fault.n_ranks = LIMIT_RANKS;
    Cairn__V1__LastWords words = CAIRN__V1__LAST_WORDS__INIT;
    words.job = job;
    words.phase = text;
    words.saves = &made;
    words.n_saves = 1;
    words.fault__case = CAIRN__V1__LAST_WORDS__FAULT__FAULT;
    words.fault = &fault;
    Cairn__V1__MetricRow *rows[SESSION_SAVES_MAX];
    fill_largest_rows(rows);
    words.rows = rows;
    words.n_rows = SESSION_SAVES_MAX;
    assert_true(cairn__v1__last_words__get_packed_size(&words) <= LIMIT_LAST_WORDS_BYTES);
    cairn__v1__save_report__free_unpacked(made, NULL);
    free(hashes);
}

static void a_share_that_no_report_can_carry_is_refused_by_number(void **unused)
{
    (void)unused;
    struct reason reason = { "" };
    assert_int_equal(session_share_check(LIMIT_SHARE_BYTES, 4 * LIMIT_SHARE_BYTES, &reason), ST_OK);
    assert_string_equal(reason.text, "");
    assert_int_equal(session_share_check(LIMIT_SHARE_BYTES + 1, 2 * LIMIT_SHARE_BYTES, &reason),
                     ST_CONFIG);
    assert_non_null(strstr(reason.text, "1024.00 GiB of 2048.00 GiB"));
    assert_non_null(strstr(reason.text, "at least 3 workers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_bound_everything_is_as_wished),
        cmocka_unit_test(bound_is_never_passed_and_more_of_it_is_never_worse),
        cmocka_unit_test(least_is_the_least),
        cmocka_unit_test(a_report_of_the_largest_share_goes_into_a_message),
        cmocka_unit_test(a_share_that_no_report_can_carry_is_refused_by_number),
        cmocka_unit_test(copies_at_peers_have_slots_of_their_own),
        cmocka_unit_test(peers_take_what_the_largest_of_them_has),
        cmocka_unit_test(a_lost_worker_costs_extras_never_the_job),
        cmocka_unit_test(extras_go_before_the_bound),
        cmocka_unit_test(only_what_the_job_asks_for_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
