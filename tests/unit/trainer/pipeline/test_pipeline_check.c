/*
 * The checker: ten bad tables, each refused for its own reason; and random ones, against the clock.
 *
 * CAIRN_TEST_FULL=1 draws 100,000 tables, else 5,000; CAIRN_TEST_SEED=n draws others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/trainer/pipeline/pipeline_fixture.h"
#include "trainer/pipeline/schedule_check.h"
#include "trainer/pipeline/schedule_time.h"

/* ---- planted ---- */

static void swap(struct pipeline_row *row, uint32_t a, uint32_t b)
{
    const struct pipeline_action kept = row->actions[a];
    row->actions[a] = row->actions[b];
    row->actions[b] = kept;
}

/* Taken out of the row: what is behind it moves up. */
static void drop(struct pipeline_row *row, uint32_t at)
{
    for (uint32_t i = at; i + 1 < row->count; i++)
        row->actions[i] = row->actions[i + 1];
    row->count--;
}

/* Whether what the F at `from` left is still needed at `at`. */
static bool is_live(const struct pipeline_row *row, uint32_t from, uint32_t at)
{
    const struct pipeline_action *f = &row->actions[from];
    for (uint32_t i = from + 1; i < at; i++) {
        const struct pipeline_action *a = &row->actions[i];
        const bool gives_back = a->kind == PIPELINE_B || a->kind == PIPELINE_W;
        if (gives_back && a->micro == f->micro && a->chunk == f->chunk)
            return false;
    }
    return f->kind == PIPELINE_F;
}

/* The lowest free stash for each F, its stash for what follows; by brute force. */
static void give_stashes(struct pipeline_row *row)
{
    row->stashes = 0;
    for (uint32_t i = 0; i < row->count; i++) {
        struct pipeline_action *a = &row->actions[i];
        bool taken[512] = { false };
        a->stash = 0;
        assert_true(row->count <= 512);
        for (uint32_t j = 0; j < i; j++) {
            const struct pipeline_action *f = &row->actions[j];
            if (f->kind == PIPELINE_F && f->micro == a->micro && f->chunk == a->chunk)
                a->stash = f->stash;
            taken[f->stash] = taken[f->stash] || is_live(row, j, i);
        }
        if (a->kind == PIPELINE_F) {
            a->stash = 0;
            while (taken[a->stash])
                a->stash++;
        }
        row->stashes = a->stash + 1 > row->stashes ? a->stash + 1 : row->stashes;
    }
}

/* The faults below are put into 1f1b with 3 stages and 4 micro-batches, for sends that are met:
 *     stage 0   F0 F1 F2 B0 F3 B1 B2 B3
 *     stage 1   F0 F1 B0 F2 B1 F3 B2 B3
 *     stage 2   F0 B0 F1 B1 F2 B2 F3 B3 */
static void number_that_there_isnt(struct pipeline_table *t)
{
    t->rows[1].actions[3].micro = 4;
}

static void micro_batch_of_another_worker(struct pipeline_table *t)
{
    t->owner[4 + 2] = 0; /* stage 1, micro-batch 2 */
}

static void twice(struct pipeline_table *t)
{
    t->rows[2].actions[4].micro = 1;
}

static void backward_before_forward(struct pipeline_table *t)
{
    swap(&t->rows[2], 0, 1);
}

static void backward_unsorted(struct pipeline_table *t)
{
    swap(&t->rows[0], 6, 7);
}

static void stash_in_use(struct pipeline_table *t)
{
    t->rows[0].actions[1].stash = t->rows[0].actions[0].stash;
}

static void stash_of_another(struct pipeline_table *t)
{
    t->rows[0].actions[3].stash = t->rows[0].actions[1].stash;
}

static void stashes_too_many(struct pipeline_table *t)
{
    t->rows[1].stashes++;
}

static void never_sent(struct pipeline_table *t)
{
    drop(&t->rows[1], 7); /* B3 */
}

static void left_out(struct pipeline_table *t)
{
    drop(&t->rows[0], 7); /* B3, for which nobody waits */
}

static void circle(struct pipeline_table *t)
{
    /* stage 1: F0 B0 F1 ... with stage 2: F0 F1 B0 ...: each needs the other's first */
    swap(&t->rows[1], 1, 2);
    swap(&t->rows[2], 1, 2);
    give_stashes(&t->rows[1]);
    give_stashes(&t->rows[2]);
}

struct planted {
    void (*plant)(struct pipeline_table *table);
    enum pipeline_fault fault;
    const char *why;
};

static const struct planted planted[] = {
    { number_that_there_isnt, PIPELINE_RANGE,
      "stage 1, share 0: action 3: kind 0 of 4, chunk 0 of 1, micro-batch 4 of 4, stash 0 of 2" },
    { micro_batch_of_another_worker, PIPELINE_RANGE, "micro-batch 2 is no worker's in stage 1" },
    { twice, PIPELINE_TWICE,
      "stage 2, share 0, action 4 (F of micro-batch 1): what was done before" },
    { backward_before_forward, PIPELINE_EARLY,
      "stage 2, share 0, action 0 (B of micro-batch 0): before its F" },
    { backward_unsorted, PIPELINE_UNSORTED,
      "stage 0, share 0, action 7 (B of micro-batch 2): after that of micro-batch 3, of a later "
      "lane" },
    { stash_in_use, PIPELINE_STASH,
      "stage 0, share 0, action 1 (F of micro-batch 1): into stash 0, where micro-batch 0 still "
      "is" },
    { stash_of_another, PIPELINE_STASH,
      "stage 0, share 0, action 3 (B of micro-batch 0): from stash 1, but its F left it in 0" },
    { stashes_too_many, PIPELINE_STASH,
      "stage 1, share 0: 3 stashes are planned, 2 are in use at once" },
    { never_sent, PIPELINE_UNSENT,
      "stage 0, share 0, action 7 (B of micro-batch 3): needs what stage 1 doesn't compute" },
    { left_out, PIPELINE_MISSING, "stage 0, share 0: no B of micro-batch 3 in chunk 0" },
    { circle, PIPELINE_CIRCLE,
      "stage 1, share 0, action 1 (B of micro-batch 0): waits in a circle for stage 2, share 0, "
      "action 1 (F of micro-batch 1)" },
};

static void planted_bad_tables_are_refused_for_their_own_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(planted) / sizeof(planted[0]); i++) {
        struct fixture f;
        struct pipeline_verdict verdict;
        fixture_meets(&f, PIPELINE_1F1B, 3, 1, 4);
        planted[i].plant(&f.table);
        assert_int_equal(pipeline_check(&f.table, &verdict), ST_INVALID);
        assert_string_equal(verdict.reason.text, planted[i].why);
        assert_int_equal(verdict.fault, planted[i].fault);
        assert_false(verdict.may_meet);
        fixture_release(&f);
    }
}

/* Not of this world: what would be read out of range is refused before anything is. */
static void tables_of_nothing_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    struct pipeline_verdict verdict;
    fixture_plain(&f, PIPELINE_1F1B, 3, 1, 4);
    const struct pipeline_table good = f.table;
    struct pipeline_table bad[] = { good, good, good, good, good };
    bad[0].row_count = 0;
    bad[1].stages = 0;
    bad[2].chunks = PIPELINE_CHUNKS_MAX + 1;
    bad[3].micros = UINT32_MAX;
    bad[4].accumulate = 0;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(pipeline_check(&bad[i], &verdict), ST_INVALID);
        assert_int_equal(verdict.fault, PIPELINE_RANGE);
    }
    fixture_release(&f);
}

/* What only some tables can have wrong: several workers a stage, lanes of several micro-batches,
 * chunks, a split backward. */
static void faults_of_wider_tables_are_named(void **state)
{
    (void)state;
    static const uint32_t two[] = { 2, 2 };
    struct fixture f;
    struct pipeline_verdict verdict;
    fixture_even(&f, 2, 4, two);
    fixture_table(&f, PIPELINE_GPIPE, 1, 2);
    f.table.rows[3].actions[0].micro = 0; /* F4 F5 F6 F7 ... */
    assert_int_equal(pipeline_check(&f.table, &verdict), ST_INVALID);
    assert_int_equal(verdict.fault, PIPELINE_FOREIGN);
    assert_string_equal(verdict.reason.text, "stage 1, share 1, action 0 (F of micro-batch 0): a "
                                             "micro-batch of another worker");
    f.table.rows[3].actions[0].micro = 4;
    swap(&f.table.rows[3], 4, 5);
    assert_int_equal(pipeline_check(&f.table, &verdict), ST_INVALID);
    assert_string_equal(verdict.reason.text,
                        "stage 1, share 1, action 5 (B of micro-batch 4): after that of "
                        "micro-batch 5, of the same lane");
    fixture_release(&f);
    fixture_plain(&f, PIPELINE_ZB_H1, 2, 1, 2); /* stage 1: F0 I0 F1 I1 W0 W1 */
    for (int kind = PIPELINE_B; kind <= PIPELINE_I; kind++) {
        f.table.rows[1].actions[4].kind = (enum pipeline_kind)kind;
        assert_int_equal(pipeline_check(&f.table, &verdict), ST_INVALID);
        assert_int_equal(verdict.fault, PIPELINE_TWICE);
        assert_int_equal(verdict.action, 4);
    }
    fixture_release(&f);
    fixture_plain(&f, PIPELINE_ZB_H1, 2, 1, 2);
    drop(&f.table.rows[1], 5);
    assert_int_equal(pipeline_check(&f.table, &verdict), ST_INVALID);
    assert_string_equal(verdict.reason.text, "stage 1, share 0: no W of micro-batch 1 in chunk 0");
    fixture_release(&f);
    fixture_plain(&f, PIPELINE_INTERLEAVED, 2, 2, 4);
    assert_int_equal(pipeline_check(&f.table, &verdict), ST_OK);
    assert_false(verdict.may_meet);
    assert_string_equal(verdict.reason.text,
                        "where sends are met, stage 0, share 0, action 6 (F of micro-batch 3, "
                        "chunk 0) and stage 1, share 0, action 6 (F of micro-batch 2, chunk 0) "
                        "wait for each other");
    fixture_release(&f);
}

/* ---- random ---- */

/* In any order that keeps what a row needs of itself: F before B, B sorted. */
static void shuffle_sound(struct pipeline_row *row, struct chance *chance)
{
    for (uint32_t swaps = 0; swaps < 4 * row->count; swaps++) {
        const uint32_t i = chance_below(chance, row->count);
        const struct pipeline_action *a = &row->actions[i], *b = a + 1;
        if (i + 1 == row->count || (a->micro == b->micro && a->chunk == b->chunk))
            continue;
        if ((a->kind == PIPELINE_F) != (b->kind == PIPELINE_F))
            swap(row, i, i + 1);
    }
    give_stashes(row);
}

/* false: an action became another one, that some row may have already. */
static bool mutate(struct pipeline_table *t, struct chance *chance)
{
    struct pipeline_row *row = &t->rows[chance_below(chance, t->row_count)];
    const uint32_t i = chance_below(chance, row->count), j = chance_below(chance, row->count);
    struct pipeline_action *a = &row->actions[i];
    bool is_own = true;
    switch (chance_below(chance, 10)) {
    case 0:
        swap(row, i, j);
        break;
    case 1: /* of the same kind, so that more is left whole */
        if (a->kind == row->actions[j].kind)
            swap(row, i, j);
        break;
    case 2:
        for (uint32_t at = row->count - 1; at > 0; at--)
            swap(row, at, chance_below(chance, at + 1));
        break;
    case 3:
        a->micro = chance_below(chance, t->micros);
        is_own = false;
        break;
    case 4:
        a->kind = (enum pipeline_kind)chance_below(chance, PIPELINE_KINDS);
        is_own = false;
        break;
    case 5:
        a->stash = chance_below(chance, row->stashes);
        return true;
    case 6:
        if (row->count > 1)
            drop(row, i);
        break;
    default:
        shuffle_sound(row, chance);
        break;
    }
    if (chance_below(chance, 4) > 0)
        give_stashes(row);
    return is_own;
}

/* false: as mutate() has it. */
static bool draw_table(struct fixture *f, struct chance *chance)
{
    const uint32_t stages = 1 + chance_below(chance, 4), lanes = 1 + chance_below(chance, 6);
    const enum pipeline_schedule schedule =
        (enum pipeline_schedule)chance_below(chance, PIPELINE_SCHEDULES);
    const bool interleaved = schedule == PIPELINE_INTERLEAVED;
    static const uint32_t single[] = { 1, 1, 1, 1 };
    if (chance_below(chance, 2) == 0) {
        fixture_even(f, stages, lanes, single);
    } else {
        fixture_random(f, chance, stages, lanes);
    }
    const uint32_t accumulate = 1 + chance_below(chance, 2);
    fixture_table_for(f, schedule, interleaved ? 2 : 1, accumulate,
                      (enum pipeline_sends)chance_below(chance, 2));
    const uint32_t mutations = chance_below(chance, 4);
    bool is_own = true;
    for (uint32_t i = 0; i < mutations; i++)
        is_own = mutate(&f->table, chance) && is_own;
    return is_own;
}

static bool ends(const struct fixture *f, enum pipeline_sends sends)
{
    static const struct pipeline_cost costs[FIXTURE_STAGES_MAX] = {
        { { 1, 2, 1, 1 } }, { { 1, 2, 1, 1 } }, { { 2, 2, 1, 2 } }, { { 1, 2, 1, 1 } }
    };
    struct pipeline_time time;
    const enum status st = pipeline_clock(&f->table, costs, sends, &time, NULL);
    assert_true(st == ST_OK || st == ST_INVALID);
    return st == ST_OK;
}

#define FAULTS (PIPELINE_CIRCLE + 1)

/* What the checker lets pass ends on the clock, for either kind of sends; what it refuses as stuck
 * gets stuck there. (Before the first fault it knows nothing of a row behind it, which may compute
 * what it isn't to: of such a table only a circle, the last thing looked for, is told.) That this
 * returns at all shows that none hangs. */
static void checker_and_clock_say_the_same(void **state)
{
    (void)state;
    const uint32_t tables = getenv("CAIRN_TEST_FULL") != NULL ? 100000 : 5000;
    const char *seed = getenv("CAIRN_TEST_SEED");
    const uint64_t first = seed != NULL ? strtoull(seed, NULL, 10) : 1;
    uint32_t found[FAULTS] = { 0 }, met = 0;
    for (uint32_t i = 0; i < tables; i++) {
        struct chance chance = { (first << 32) + i, 0 };
        struct fixture f;
        struct pipeline_verdict verdict;
        const bool is_own = draw_table(&f, &chance);
        const enum status st = pipeline_check(&f.table, &verdict);
        const bool passes = verdict.fault == PIPELINE_FAULTLESS;
        const bool stuck =
            verdict.fault == PIPELINE_CIRCLE ||
            (is_own && (verdict.fault == PIPELINE_EARLY || verdict.fault == PIPELINE_UNSENT));
        bool agree = passes == (st == ST_OK);
        if (passes || stuck)
            agree = agree && ends(&f, PIPELINE_SENDS_ARE_STARTED) == passes;
        if (passes)
            agree = agree && ends(&f, PIPELINE_SENDS_ARE_MET) == verdict.may_meet;
        if (!agree) {
            fail_msg("table %u of seed %llu: status %d, fault %d, %s", i, (unsigned long long)first,
                     (int)st, (int)verdict.fault, verdict.reason.text);
        }
        found[verdict.fault]++;
        met += verdict.may_meet;
        fixture_release(&f);
    }
    print_message("%u tables: %u pass, %u of them where sends are met; %u circles\n", tables,
                  found[PIPELINE_FAULTLESS], met, found[PIPELINE_CIRCLE]);
    for (int fault = 0; fault < FAULTS; fault++) {
        if (fault != PIPELINE_RANGE)
            assert_true(found[fault] >= tables / 500);
    }
    assert_true(met > tables / 10);
    assert_true(found[PIPELINE_FAULTLESS] - met > tables / 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planted_bad_tables_are_refused_for_their_own_reason),
        cmocka_unit_test(tables_of_nothing_are_refused),
        cmocka_unit_test(faults_of_wider_tables_are_named),
        cmocka_unit_test(checker_and_clock_say_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
