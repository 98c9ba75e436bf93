/* Schedules as tables: what each generator makes, for one worker a stage and for any layout. */
#include <stdio.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/pipeline/pipeline_fixture.h"
#include "trainer/pipeline/schedule_check.h"

static void words_are_there_and_back(void **state)
{
    (void)state;
    enum pipeline_schedule found = PIPELINE_GPIPE;
    for (int i = 0; i < PIPELINE_SCHEDULES; i++) {
        const char *word = pipeline_schedule_word((enum pipeline_schedule)i);
        assert_true(pipeline_schedule_parse(word, &found));
        assert_int_equal(found, i);
    }
    assert_string_equal(pipeline_schedule_word(PIPELINE_ZB_H1), "zb-h1");
    assert_false(pipeline_schedule_parse("GPipe", &found));
    assert_false(pipeline_schedule_parse("", &found));
    assert_int_equal(found, PIPELINE_ZB_H1);
}

static void row_is(const struct fixture *f, uint32_t row, const char *expected)
{
    char text[512] = "";
    size_t at = 0;
    const struct pipeline_row *r = &f->table.rows[row];
    for (uint32_t i = 0; i < r->count; i++) {
        const struct pipeline_action *a = &r->actions[i];
        at += (size_t)snprintf(text + at, sizeof(text) - at, i > 0 ? " %c" : "%c",
                               (f->table.chunks > 1 && a->chunk > 0 ? "fbiw" : "FBIW")[a->kind]);
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%u", a->micro);
        assert_true(at < sizeof(text));
    }
    assert_string_equal(text, expected);
}

/* The tables are as the header and docs/pipeline.md show them; letters of a second chunk are
 * small. */
static void small_tables_are_as_published(void **state)
{
    (void)state;
    struct fixture f;
    fixture_plain(&f, PIPELINE_GPIPE, 2, 1, 3);
    row_is(&f, 0, "F0 F1 F2 B0 B1 B2");
    row_is(&f, 1, "F0 F1 F2 B0 B1 B2");
    fixture_release(&f);
    fixture_meets(&f, PIPELINE_1F1B, 3, 1, 4);
    row_is(&f, 0, "F0 F1 F2 B0 F3 B1 B2 B3");
    row_is(&f, 1, "F0 F1 B0 F2 B1 F3 B2 B3");
    row_is(&f, 2, "F0 B0 F1 B1 F2 B2 F3 B3");
    fixture_release(&f);
    fixture_plain(&f, PIPELINE_1F1B, 3, 1, 6); /* twice as far ahead */
    row_is(&f, 0, "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5");
    row_is(&f, 1, "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5");
    row_is(&f, 2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5");
    fixture_release(&f);
    fixture_meets(&f, PIPELINE_ZB_H1, 3, 1, 4);
    row_is(&f, 0, "F0 F1 F2 B0 F3 B1 B2 B3");
    row_is(&f, 1, "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3");
    row_is(&f, 2, "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
    fixture_release(&f);
    fixture_plain(&f, PIPELINE_INTERLEAVED, 2, 2, 4);
    row_is(&f, 0, "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3");
    row_is(&f, 1, "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3");
    fixture_release(&f);
}

/* may_meet: so it must be; false: it needn't. */
static void passes(const struct fixture *f, bool may_meet)
{
    struct pipeline_verdict verdict;
    const enum status st = pipeline_check(&f->table, &verdict);
    if (st != ST_OK || (may_meet && !verdict.may_meet))
        print_error("%s\n", verdict.reason.text);
    assert_int_equal(st, ST_OK);
    assert_true(verdict.may_meet || !may_meet);
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void every_schedule_passes_for_all_sizes(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t m = 1; m <= 32; m++) {
            struct fixture f;
            fixture_plain(&f, PIPELINE_GPIPE, p, 1, m);
            passes(&f, true);
            for (uint32_t s = 0; s < p; s++)
                assert_int_equal(f.table.rows[s].stashes, m);
            fixture_release(&f);
            fixture_plain(&f, PIPELINE_1F1B, p, 1, m);
            passes(&f, p == 1);
            for (uint32_t s = 0; s < p; s++)
                assert_int_equal(f.table.rows[s].stashes, least(m, 2 * (p - 1 - s) + 1));
            fixture_release(&f);
            fixture_meets(&f, PIPELINE_1F1B, p, 1, m);
            passes(&f, true);
            for (uint32_t s = 0; s < p; s++)
                assert_int_equal(f.table.rows[s].stashes, least(m, p - s));
            fixture_release(&f);
            fixture_plain(&f, PIPELINE_ZB_H1, p, 1, m);
            passes(&f, p == 1);
            for (uint32_t s = 0; s < p; s++)
                assert_int_equal(f.table.rows[s].stashes, least(m, 2 * p - 1 - s));
            fixture_release(&f);
            fixture_meets(&f, PIPELINE_ZB_H1, p, 1, m);
            passes(&f, true);
            for (uint32_t s = 0; s < p; s++)
                assert_int_equal(f.table.rows[s].stashes, least(m, p));
            fixture_release(&f);
        }
    }
}

static void check_interleaved(uint32_t p, uint32_t v, uint32_t m)
{
    struct fixture f;
    fixture_plain(&f, PIPELINE_INTERLEAVED, p, v, m);
    passes(&f, p == 1 || m == p);
    for (uint32_t s = 0; s < p; s++) {
        const uint32_t behind = p - 1 - (m % p == 0 ? s : 0);
        assert_int_equal(f.table.rows[s].stashes, least(m * v, 2 * behind + (v - 1) * p + 1));
    }
    fixture_release(&f);
    fixture_meets(&f, PIPELINE_INTERLEAVED, p, v, m);
    passes(&f, true);
    for (uint32_t s = 0; s < p; s++)
        assert_true(f.table.rows[s].stashes <= least(m, p) * v);
    fixture_release(&f);
}

static void interleaved_passes_for_all_sizes_and_either_kind_of_sends(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 8; p++) {
        for (uint32_t m = 1; m <= 32; m++) {
            for (uint32_t v = 2; v <= 4; v++)
                check_interleaved(p, v, m);
        }
    }
}

/* Equal shares everywhere: each column of workers is a pipeline by itself, whatever its lanes. */
static void columns_are_pipelines_by_themselves(void **state)
{
    (void)state;
    static const uint32_t three[] = { 3, 3, 3, 3 };
    struct fixture f, plain;
    fixture_even(&f, 4, 8, three); /* lanes 0, 1, 6; 2, 3, 7; 4, 5 */
    fixture_table(&f, PIPELINE_1F1B, 1, 2);
    passes(&f, false);
    row_is(&f, 6, "F0 F1 F2 B0 F3 B1 F12 B2 F13 B3 B12 B13");
    row_is(&f, 11, "F8 B8 F9 B9 F10 B10 F11 B11");
    fixture_plain(&plain, PIPELINE_1F1B, 4, 1, 6);
    for (uint32_t s = 0; s < 4; s++) {
        const struct pipeline_row *row = f.table.rows + (size_t)3 * s, *one = &plain.table.rows[s];
        assert_int_equal(row->count, one->count);
        assert_int_equal(row->stashes, one->stashes);
        for (uint32_t i = 0; i < row->count; i++)
            assert_int_equal(row->actions[i].kind, one->actions[i].kind);
    }
    fixture_release(&plain);
    fixture_release(&f);
}

/* What a worker runs of its stage's order needs no more stashes than one that runs all of it. */
static void any_layout_passes(void **state)
{
    (void)state;
    uint32_t tables[PIPELINE_SCHEDULES] = { 0 };
    for (uint64_t number = 0; number < 4000; number++) {
        struct chance chance = { 0x1a7007 + number, 0 };
        struct fixture f;
        const uint32_t stages = 1 + chance_below(&chance, 5);
        const uint32_t lanes = 1 + chance_below(&chance, 16);
        const uint32_t accumulate = 1 + chance_below(&chance, 3);
        const enum pipeline_schedule schedule =
            (enum pipeline_schedule)chance_below(&chance, PIPELINE_SCHEDULES);
        const bool interleaved = schedule == PIPELINE_INTERLEAVED;
        fixture_random(&f, &chance, stages, lanes);
        fixture_table(&f, schedule, interleaved ? 2 : 1, accumulate);
        passes(&f, schedule == PIPELINE_GPIPE);
        tables[schedule]++;
        for (uint32_t r = 0; r < f.table.row_count && schedule == PIPELINE_1F1B; r++)
            assert_true(f.table.rows[r].stashes <= 2 * (stages - 1 - f.table.rows[r].stage) + 1);
        fixture_release(&f);
        fixture_table_for(&f, schedule, interleaved ? 2 : 1, accumulate, PIPELINE_SENDS_ARE_MET);
        passes(&f, true);
        for (uint32_t r = 0; r < f.table.row_count && schedule == PIPELINE_1F1B; r++)
            assert_true(f.table.rows[r].stashes <= stages - f.table.rows[r].stage);
        fixture_release(&f);
    }
    for (int i = 0; i < PIPELINE_SCHEDULES; i++)
        assert_true(tables[i] > 500);
}

static void refused(struct fixture *f, enum pipeline_schedule schedule, uint32_t chunks,
                    uint32_t accumulate, enum status with, const char *why)
{
    struct reason reason = { "" };
    f->options = (struct pipeline_options){ .schedule = schedule,
                                            .chunks = chunks,
                                            .accumulate = accumulate,
                                            .layout = &f->layout,
                                            .orders = f->orders };
    assert_int_equal(pipeline_table_init(&f->table, &f->options, &reason), with);
    assert_string_equal(reason.text, why);
}

static void what_a_schedule_cant_do_is_refused(void **state)
{
    (void)state;
    static const uint32_t single[] = { 1, 1, 1, 1 };
    struct fixture f;
    fixture_even(&f, 4, 6, single);
    refused(&f, PIPELINE_1F1B, 2, 1, ST_INVALID,
            "1f1b: 2 chunks a stage: it has one; interleaved has several");
    refused(&f, PIPELINE_INTERLEAVED, 1, 2, ST_INVALID,
            "interleaved: 1 chunks a stage: 2 to 16 are possible");
    refused(&f, PIPELINE_GPIPE, 1, 1000000, ST_FULL,
            "gpipe: 6000000 micro-batches in 4 stages: a table has 4194304 entries at most");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_there_and_back),
        cmocka_unit_test(small_tables_are_as_published),
        cmocka_unit_test(every_schedule_passes_for_all_sizes),
        cmocka_unit_test(interleaved_passes_for_all_sizes_and_either_kind_of_sends),
        cmocka_unit_test(columns_are_pipelines_by_themselves),
        cmocka_unit_test(any_layout_passes),
        cmocka_unit_test(what_a_schedule_cant_do_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
