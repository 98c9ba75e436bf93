/* Pages of rows as ReadMetrics answers them. */
#include <string.h>

#include "server/api/rows.h"
#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"

#define LAST (ROWS_PAGE + 100)

/* Rows of steps 1 to LAST, or from `first` on, as that generation made them. */
static void put_rows(struct journal_files *f, uint64_t first, uint32_t generation)
{
    for (uint64_t step = first; step <= LAST; step++) {
        Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
        uint8_t data[64];
        row.step = step;
        row.generation = generation;
        const size_t size = cairn__v1__metric_row__pack(&row, data);
        const struct journal_metric one = { step, false, data, size };
        assert_int_equal(journal_put_metrics(f->journal, "j-1", &one, 1), ST_OK);
    }
}

/* Returns the page as a client gets it. */
static Cairn__V1__ReadMetricsReply *told(struct rows_page *rows)
{
    Cairn__V1__ReadMetricsReply out = CAIRN__V1__READ_METRICS_REPLY__INIT;
    static uint8_t bytes[2 * ROWS_BYTES];
    rows_put(rows, &out);
    const size_t size = cairn__v1__read_metrics_reply__get_packed_size(&out);
    assert_in_range(size, 1, sizeof(bytes));
    (void)cairn__v1__read_metrics_reply__pack(&out, bytes);
    Cairn__V1__ReadMetricsReply *reply = cairn__v1__read_metrics_reply__unpack(NULL, size, bytes);
    assert_non_null(reply);
    return reply;
}

static void check(struct rows_page *rows, uint64_t first, uint64_t last, uint32_t generation)
{
    Cairn__V1__ReadMetricsReply *reply = told(rows);
    assert_int_equal(reply->n_rows, last - first + 1);
    for (size_t i = 0; i < reply->n_rows; i++) {
        assert_int_equal(reply->rows[i]->step, first + i);
        assert_int_equal(reply->rows[i]->generation, generation);
    }
    assert_int_equal(reply->next_step, last + 1);
    assert_int_equal(reply->more, last < LAST);
    cairn__v1__read_metrics_reply__free_unpacked(reply, NULL);
}

static void the_next_page_is_there_before_it_is_asked_for(void **state)
{
    struct journal_files *f = *state;
    struct rows_page rows = { .list = NULL };
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_rows(f, 1, 1);
    rows_read_ahead(&rows, f->journal); /* after nothing */
    assert_int_equal(rows_read(&rows, f->journal, "j-1", 0), ST_OK);
    rows_read_ahead(&rows, f->journal); /* nobody has that one yet */
    check(&rows, 1, ROWS_PAGE, 1);
    rows_read_ahead(&rows, f->journal);
    put_rows(f, ROWS_PAGE + 1, 2);
    assert_int_equal(rows_read(&rows, f->journal, "j-1", ROWS_PAGE + 1), ST_OK);
    check(&rows, ROWS_PAGE + 1, LAST, 1);
    rows_read_ahead(&rows, f->journal); /* the last one: there is none */
    assert_int_equal(rows_read(&rows, f->journal, "j-1", ROWS_PAGE + 1), ST_OK);
    check(&rows, ROWS_PAGE + 1, LAST, 1);
    rows_forget(&rows);
    assert_int_equal(rows_read(&rows, f->journal, "j-1", ROWS_PAGE + 1), ST_OK);
    check(&rows, ROWS_PAGE + 1, LAST, 2);
    assert_int_equal(rows_read(&rows, f->journal, "j-2", ROWS_PAGE + 1), ST_OK);
    assert_int_equal(rows.count, 0);
    rows_release(&rows);
    assert_int_equal(journal_commit(f->journal), ST_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_next_page_is_there_before_it_is_asked_for,
                                        journal_setup, journal_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
