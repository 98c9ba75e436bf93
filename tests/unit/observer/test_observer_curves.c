/* Rows in memory: pages, jobs that go back, and points. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "observer/curves/arena.h"
#include "observer/curves/history.h"
#include "observer/curves/reduce.h"
#include "tests/test.h"

/* Steps [first, last] as generation `made` made them, and what the job says with them. */
struct page {
    Cairn__V1__ReadMetricsReply reply;
    Cairn__V1__MetricRow rows[64];
    Cairn__V1__MetricRow *list[64];
};

static void make_page(struct page *page, uint64_t first, uint64_t last, uint32_t made)
{
    page->reply = (Cairn__V1__ReadMetricsReply)CAIRN__V1__READ_METRICS_REPLY__INIT;
    page->reply.rows = page->list;
    page->reply.generation = made;
    page->reply.next_step = last + 1;
    for (uint64_t step = first; step <= last; step++) {
        const size_t i = page->reply.n_rows++;
        page->rows[i] = (Cairn__V1__MetricRow)CAIRN__V1__METRIC_ROW__INIT;
        page->rows[i].step = step;
        page->rows[i].generation = made;
        page->rows[i].loss = (float)step;
        page->rows[i].step_ms = 100;
        page->list[i] = &page->rows[i];
    }
}

static void pages_are_put_together(void **state)
{
    struct history history = { .rows = NULL };
    struct page page;
    (void)state;
    make_page(&page, 1, 10, 1);
    page.reply.more = true;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_MORE);
    assert_int_equal(history.next_step, 11);
    make_page(&page, 11, 15, 1);
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    assert_int_equal(history.count, 15);
    assert_int_equal(history.next_step, 16);
    assert_int_equal(history_find(&history, 11), 10);
    assert_int_equal(history_find(&history, 99), 15);
    history_release(&history);
}

/* Generation 2 goes on from step 4: what it makes takes the place of what was there, and the rest
 * stays until then. */
static void a_job_that_goes_back_is_asked_from_there(void **state)
{
    struct history history = { .rows = NULL };
    struct page page;
    (void)state;
    make_page(&page, 1, 10, 1);
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    make_page(&page, 11, 10, 2); /* nothing newer */
    page.reply.base_step = 4;
    page.reply.next_step = 11;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_MORE);
    assert_int_equal(history.next_step, 5);
    assert_int_equal(history.rewinds, 1);
    assert_int_equal(history.count, 10);

    make_page(&page, 5, 10, 2); /* it made 5 and 6 so far */
    page.reply.base_step = 4;
    for (size_t i = 2; i < 6; i++)
        page.rows[i].generation = 1;
    assert_int_equal(history_take(&history, &page.reply),
                     HISTORY_MORE); /* were those before, too? */
    assert_int_equal(history.next_step, 1);
    make_page(&page, 1, 10, 2);
    page.reply.base_step = 4;
    for (size_t i = 0; i < 10; i++)
        page.rows[i].generation = i == 4 || i == 5 ? 2 : 1;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    assert_int_equal(history.count, 10);
    assert_int_equal(history.rows[5].generation, 2);
    assert_int_equal(history.rows[6].generation, 1);
    assert_int_equal(history.next_step, 7);

    make_page(&page, 7, 12, 2);
    page.reply.base_step = 4;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    assert_int_equal(history.count, 12);
    assert_int_equal(history.next_step, 13);
    assert_int_equal(history.rewinds, 2);
    history_release(&history);
}

/* What the coordinator said of the job was taken before its rows were read, and a generation began
 * in between: no row of it is told before those that it makes again. */
static void rows_newer_than_their_answer_are_asked_for_once_more(void **state)
{
    struct history history = { .rows = NULL };
    struct page page;
    (void)state;
    make_page(&page, 1, 10, 1);
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    make_page(&page, 11, 12, 2); /* after 5 to 10 */
    page.reply.generation = 1;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_MORE);
    assert_int_equal(history.next_step, 11);
    assert_int_equal(history.count, 10);
    make_page(&page, 11, 13, 2);
    page.reply.base_step = 4;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_MORE);
    assert_int_equal(history.next_step, 5);
    assert_int_equal(history.rewinds, 1);
    history_release(&history);
    /* One that says so again and again is taken as it is. */
    history = (struct history){ .rows = NULL };
    make_page(&page, 1, 3, 7);
    page.reply.generation = 1;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_MORE);
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    assert_int_equal(history.count, 3);
    history_release(&history);
}

/* Nobody asked while generation 2 made steps 1001 to 1900 anew and ended; 3 goes on from there. */
static void what_a_generation_that_is_over_made_anew_is_found(void **state)
{
    struct history history = { .rows = NULL };
    struct page page;
    (void)state;
    for (uint64_t step = 1; step <= 1600; step += 50) {
        make_page(&page, step, step + 49, 1);
        page.reply.more = step < 1551;
        assert_int_equal(history_take(&history, &page.reply),
                         page.reply.more ? HISTORY_MORE : HISTORY_WHOLE);
    }
    make_page(&page, 1601, 1600, 3); /* says nothing of steps before */
    page.reply.base_step = 1900;
    page.reply.next_step = 1601;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);
    assert_int_equal(history.next_step, 1601);
    const uint64_t asked[] = { 1601, 1601 - 512, 1601 - 512 - 1024 };
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(history.next_step, asked[i]);
        make_page(&page, asked[i], asked[i] + 49, 2);
        page.reply.generation = 3;
        page.reply.base_step = 1900;
        page.reply.more = true;
        assert_int_equal(history_take(&history, &page.reply), HISTORY_MORE);
    }
    for (uint64_t step = asked[2]; step <= 1900; step += 50) {
        assert_int_equal(history.next_step, step);
        make_page(&page, step, step + 49, 2);
        page.reply.generation = 3;
        page.reply.base_step = 1900;
        page.reply.more = step + 50 <= 1900;
        for (size_t i = 0; i < 50; i++)
            page.rows[i].generation = page.rows[i].step <= 1000 ? 1 : 2;
        assert_int_equal(history_take(&history, &page.reply),
                         page.reply.more ? HISTORY_MORE : HISTORY_WHOLE);
    }
    assert_int_equal(history.rows[history_find(&history, 1000)].generation, 1);
    assert_int_equal(history.rows[history_find(&history, 1001)].generation, 2);
    assert_int_equal(history.rows[history_find(&history, 1600)].generation, 2);
    assert_int_equal(history.rewinds, 2);
    history_release(&history);
}

static json_t *reduced(const struct history *history, size_t points)
{
    auto_buf struct buf out;
    buf_init(&out, (size_t)1 << 20);
    assert_int_equal(reduce_json(history, "3f", 0, history->count, points, &out), ST_OK);
    json_t *value = json_loadb(out.data, out.size, 0, NULL);
    assert_non_null(value);
    return value;
}

static double number_of(const json_t *value, const char *group, const char *name, size_t i)
{
    const json_t *column = json_object_get(json_object_get(value, group), name);
    const json_t *number = json_array_get(column, i);
    assert_true(json_is_number(number) || json_is_null(number));
    return json_is_null(number) ? (double)NAN : json_number_value(number);
}

static void assert_near(double value, double expected, double tolerance)
{
    assert_true(fabs(value - expected) <= tolerance);
}

static void no_spike_gets_lost(void **state)
{
    struct history history = { .rows = NULL };
    struct page page;
    Cairn__V1__Eval eval = CAIRN__V1__EVAL__INIT;
    (void)state;
    make_page(&page, 1, 60, 1);
    page.rows[31].loss = 1000;
    page.rows[32].loss = NAN;
    eval.loss = 0.5;
    eval.accuracy = 0.75;
    page.rows[40].eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    page.rows[40].eval = &eval;
    assert_int_equal(history_take(&history, &page.reply), HISTORY_WHOLE);

    json_t *value = reduced(&history, 6);
    assert_int_equal(json_array_size(json_object_get(json_object_get(value, "columns"), "step")),
                     6);
    assert_near(number_of(value, "columns", "step", 3), 40, 0);
    assert_near(number_of(value, "columns", "loss_max", 3), 1000, 0);
    assert_near(number_of(value, "columns", "loss_min", 3), 31, 0);
    /* 31, 1000, 34 to 40; step 33 isn't known */
    assert_near(number_of(value, "columns", "loss", 3), (31 + 1000 + 259) / 9.0, 1e-3);
    assert_near(number_of(value, "columns", "seconds", 0), 0.1, 1e-6);
    assert_near(number_of(value, "evals", "step", 0), 41, 0);
    assert_near(number_of(value, "evals", "accuracy", 0), 0.75, 0);
    assert_true(json_is_null(
        json_array_get(json_object_get(json_object_get(value, "columns"), "forward_seconds"), 0)));
    json_decref(value);

    value = reduced(&history, 1000);
    assert_int_equal(json_array_size(json_object_get(json_object_get(value, "columns"), "loss")),
                     60);
    assert_true(isnan(number_of(value, "columns", "loss", 32)));
    json_decref(value);
    history_release(&history);
}

static void whatever_the_id_is_it_is_json(void **state)
{
    const struct history history = { .rows = NULL };
    auto_buf struct buf out;
    (void)state;
    buf_init(&out, 1 << 20);
    assert_int_equal(reduce_json(&history, "a\"b\\c\n\xff~", 0, 0, 10, &out), ST_OK);
    json_t *value = json_loadb(out.data, out.size, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(value, "job")), "a?b?c??~");
    json_decref(value);
}

static void a_job_without_rows_has_empty_curves(void **state)
{
    struct history history = { .rows = NULL };
    (void)state;
    json_t *value = reduced(&history, 100);
    assert_int_equal(json_array_size(json_object_get(json_object_get(value, "columns"), "loss")),
                     0);
    assert_int_equal(json_integer_value(json_object_get(value, "rows")), 0);
    json_decref(value);
}

/* A page as it comes, with phases in whatever order, into memory that goes at once. */
static void a_page_is_unpacked_into_an_arena(void **state)
{
    static struct page page;
    static uint8_t bytes[16384];
    struct history history = { .rows = NULL };
    struct arena arena;
    Cairn__V1__Phase last = CAIRN__V1__PHASE__INIT, first = CAIRN__V1__PHASE__INIT,
                     other = CAIRN__V1__PHASE__INIT;
    Cairn__V1__Phase *phases[] = { &last, &other, &first };
    (void)state;
    make_page(&page, 1, 64, 1);
    last.name = "snapshot";
    last.ms = 3000;
    other.name = "tea";
    first.name = "data";
    first.ms = 1000;
    page.rows[63].phases = phases;
    page.rows[63].n_phases = 3;
    const size_t size = cairn__v1__read_metrics_reply__get_packed_size(&page.reply);
    assert_in_range(size, 1, sizeof(bytes));
    (void)cairn__v1__read_metrics_reply__pack(&page.reply, bytes);
    arena_init(&arena);
    const void *where = NULL;
    for (int i = 0; i < 3; i++) {
        Cairn__V1__ReadMetricsReply *reply =
            cairn__v1__read_metrics_reply__unpack(&arena.allocator, size, bytes);
        assert_non_null(reply);
        assert_true(where == NULL || where == reply); /* the same memory again */
        where = reply;
        assert_int_equal(history_take(&history, reply), HISTORY_WHOLE);
        arena_reset(&arena);
        assert_int_equal(history.count, 64);
        assert_true(history.rows[63].phases[HISTORY_SNAPSHOT] == 3);
        assert_true(history.rows[63].phases[HISTORY_DATA] == 1);
        assert_true(isnan(history.rows[63].phases[HISTORY_FORWARD]));
        history.next_step = 1;
    }
    assert_null(arena.allocator.alloc(&arena, ARENA_BLOCK + 1));
    for (int i = 0; i < ARENA_MAX; i++)
        assert_non_null(arena.allocator.alloc(&arena, ARENA_BLOCK));
    assert_null(arena.allocator.alloc(&arena, 1));
    arena_release(&arena);
    history_release(&history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_put_together),
        cmocka_unit_test(a_job_that_goes_back_is_asked_from_there),
        cmocka_unit_test(what_a_generation_that_is_over_made_anew_is_found),
        cmocka_unit_test(rows_newer_than_their_answer_are_asked_for_once_more),
        cmocka_unit_test(a_page_is_unpacked_into_an_arena),
        cmocka_unit_test(no_spike_gets_lost),
        cmocka_unit_test(a_job_without_rows_has_empty_curves),
        cmocka_unit_test(whatever_the_id_is_it_is_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
