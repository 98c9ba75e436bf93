/* Which rows a new rank 0 tells: those that the coordinator may lack, with their own time. */
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "trainer/program/rank_rows.h"

struct told {
    uint64_t first, last, count;
    bool timed; /* all with the time that add gives them */
};

static void take(void *arg, const struct session_row *row)
{
    struct told *told = arg;
    told->first = told->count == 0 ? row->step : told->first;
    assert_true(told->count == 0 || row->step >= told->last);
    told->last = row->step;
    told->timed = (told->count == 0 || told->timed) && row->wall_ms == 1000 + (int64_t)row->step;
    told->count++;
}

static struct told tell(const struct rank_rows *rows, uint64_t metric_step, bool live)
{
    struct told told = { 0 };
    rank_rows_each_lacking(rows, metric_step, live, take, &told);
    return told;
}

static void add(struct rank_rows *rows, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step <= to; step++) {
        const struct session_row row = { .step = step, .loss = 1, .phase_count = 1 };
        rank_rows_keep(rows, &row, 1000 + (int64_t)step);
    }
}

static struct rank_rows *rows_of(uint64_t from, uint64_t to)
{
    struct rank_rows *rows = calloc(1, sizeof(*rows));
    assert_non_null(rows);
    add(rows, from, to);
    return rows;
}

static void another_rank_0_tells_what_is_beyond_the_newest_row(void **state)
{
    (void)state;
    struct rank_rows *rows = rows_of(1, 600);
    const struct told told = tell(rows, 590, true);
    assert_int_equal(told.first, 591);
    assert_int_equal(told.last, 600);
    assert_true(told.timed);
    assert_int_equal(rows->rows[0].phase_count, 0);
    assert_int_equal(tell(rows, 600, true).count, 0);
    assert_int_equal(tell(rows, 0, true).count, 600); /* nobody says what is known */
    assert_int_equal(tell(rows, 0, false).count, 0);
    free(rows);
}

static void the_same_rank_0_tells_what_was_not_acknowledged(void **state)
{
    (void)state;
    struct rank_rows *rows = rows_of(1, 50);
    rank_rows_known(rows, 40);
    rank_rows_known(rows, 0); /* a later session, that heard nothing yet */
    assert_int_equal(tell(rows, 0, true).first, 41);
    assert_int_equal(tell(rows, 45, true).first, 46);
    assert_int_equal(tell(rows, 0, false).first, 41); /* no step brings them back there either */
    rank_rows_known(rows, 50);
    assert_int_equal(tell(rows, 0, true).count, 0);
    free(rows);
}

static void rows_of_steps_that_are_computed_again_are_forgotten(void **state)
{
    (void)state;
    struct rank_rows *rows = rows_of(1, 50);
    rank_rows_known(rows, 50);
    rank_rows_begin(rows, 30);
    add(rows, 31, 35);
    const struct told told = tell(rows, 0, true);
    assert_int_equal(told.first, 31);
    assert_int_equal(told.last, 35);
    assert_int_equal(told.count, 5);
    rank_rows_begin(rows, 0);
    assert_int_equal(tell(rows, 0, true).count, 0);
    free(rows);
}

static void the_oldest_go(void **state)
{
    (void)state;
    struct rank_rows *rows = rows_of(1, LIMIT_METRIC_ROWS + 10);
    rank_rows_begin(rows, LIMIT_METRIC_ROWS + 5);
    const struct told told = tell(rows, 0, true);
    assert_int_equal(told.first, 11);
    assert_int_equal(told.last, LIMIT_METRIC_ROWS + 5);
    assert_int_equal(told.count, LIMIT_METRIC_ROWS - 5);
    free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_rank_0_tells_what_is_beyond_the_newest_row),
        cmocka_unit_test(the_same_rank_0_tells_what_was_not_acknowledged),
        cmocka_unit_test(rows_of_steps_that_are_computed_again_are_forgotten),
        cmocka_unit_test(the_oldest_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
