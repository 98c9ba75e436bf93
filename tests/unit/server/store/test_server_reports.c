/* A save's reports, read from the journal where a task runs. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cairn/v1/training.pb-c.h"
#include "server/store/task.h"
#include "tests/test.h"
#include "tests/unit/server/journal/journal_fixture.h"

#define JOB        "j-1"
#define STEP       40
#define GENERATION 2

static void put_packed(struct journal_files *f, uint32_t rank, const void *data, size_t size)
{
    assert_int_equal(journal_put_report(f->journal, JOB, STEP, GENERATION, rank, data, size),
                     ST_OK);
}

/* said: the rank in the report itself. */
static void put_report(struct journal_files *f, uint32_t rank, uint32_t said, size_t hash_bytes)
{
    static const uint8_t hashes[48] = { 1, 2, 3 };
    uint8_t data[512];
    Cairn__V1__PieceRun extent = CAIRN__V1__PIECE_RUN__INIT, *extents[] = { &extent };
    Cairn__V1__SaveReport report = CAIRN__V1__SAVE_REPORT__INIT;
    extent.buffer = 1;
    extent.first = 7 + said;
    extent.xxh3_128 = (ProtobufCBinaryData){ hash_bytes, (uint8_t *)hashes };
    report.step = STEP;
    report.generation = GENERATION;
    report.rank = said;
    report.size = 1000 + said;
    report.file = "shard";
    report.xxh3_128 = report.scalars_xxh3_128 = (ProtobufCBinaryData){ 16, (uint8_t *)hashes };
    report.n_pieces = 1;
    report.pieces = extents;
    put_packed(f, rank, data, cairn__v1__save_report__pack(&report, data));
}

static struct store_task *make_task(const struct journal_files *f, uint32_t ranks)
{
    struct store_task *task = store_task_new(FSM_TASK_CHECK);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), JOB);
    (void)snprintf(task->journal, sizeof(task->journal), "%s", f->path);
    task->step = STEP;
    task->generation = GENERATION;
    task->ranks = ranks;
    return task;
}

static enum status read_all(const struct journal_files *f, uint32_t ranks)
{
    struct store_task *task = make_task(f, ranks);
    enum status st = store_task_read_reports(task);
    store_task_free(task);
    return st;
}

static void *run_reading(void *arg)
{
    struct store_task *task = arg;
    task->status = store_task_read_reports(task);
    return NULL;
}

/* The journal is open, with a transaction of the next group begun. */
static void reports_are_read_where_the_task_runs(void **state)
{
    struct journal_files *f = *state;
    pthread_t thread;
    for (uint32_t rank = 0; rank < 3; rank++)
        put_report(f, rank, rank, 32);
    assert_int_equal(journal_begin(f->journal), ST_OK);
    assert_int_equal(journal_drop_save(f->journal, JOB, STEP, GENERATION), ST_OK);
    struct store_task *task = make_task(f, 3);
    assert_int_equal(pthread_create(&thread, NULL, run_reading, task), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(task->status, ST_OK); /* what was committed */
    assert_int_equal(journal_commit(f->journal), ST_OK);
    assert_int_equal(task->report_count, 3);
    for (uint32_t rank = 0; rank < 3; rank++) {
        const struct ckpt_report *report = &task->reports[rank];
        assert_int_equal(report->rank, rank);
        assert_int_equal(report->size, 1000 + rank);
        assert_string_equal(report->file, "shard");
        assert_int_equal(report->extent_count, 1);
        assert_int_equal(report->extents[0].first, 7 + rank);
        assert_int_equal(report->extents[0].count, 2);
    }
    store_task_free(task);
    assert_int_equal(read_all(f, 3), ST_INCOMPLETE); /* it was dropped */
}

static void reports_are_those_of_all_ranks(void **state)
{
    struct journal_files *f = *state;
    put_report(f, 0, 0, 16);
    assert_int_equal(read_all(f, 2), ST_INCOMPLETE);
    put_report(f, 2, 2, 16);
    assert_int_equal(read_all(f, 2), ST_INCOMPLETE);
    assert_int_equal(read_all(f, 3), ST_INCOMPLETE);
    put_report(f, 1, 1, 16);
    assert_int_equal(read_all(f, 3), ST_OK);
    assert_int_equal(read_all(f, 2), ST_INCOMPLETE); /* one too many */
}

static void a_report_that_makes_no_sense_ends_the_check(void **state)
{
    struct journal_files *f = *state;
    put_packed(f, 0, "\xff\xff", 2);
    assert_int_equal(read_all(f, 1), ST_CORRUPT);
    put_report(f, 0, 1, 16); /* of another rank than its row */
    assert_int_equal(read_all(f, 1), ST_CORRUPT);
    put_report(f, 0, 0, 17); /* not a number of hashes */
    assert_int_equal(read_all(f, 1), ST_INVALID);
    put_report(f, 0, 0, 16);
    assert_int_equal(read_all(f, 1), ST_OK);
}

static void a_journal_that_is_not_there_is_no_answer(void **state)
{
    struct journal_files none = { .path = "/nowhere/cairnd.db" };
    (void)state;
    assert_int_equal(read_all(&none, 1), ST_IO);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, journal_setup, journal_teardown)
    const struct CMUnitTest tests[] = {
        CASE(reports_are_read_where_the_task_runs),
        CASE(reports_are_those_of_all_ranks),
        CASE(a_report_that_makes_no_sense_ends_the_check),
        CASE(a_journal_that_is_not_there_is_no_answer),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
