/* How fast a job goes, and how long it will take: told at any time of a run, against how long it
 * took in the end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "server/throughput/throughput.h"
#include "tests/test.h"

/* What a run is made of. */
struct course {
    uint64_t total, eval_every, save_every;
    double step_ms, noise, eval_ms, save_ms; /* noise: of a step, as a fraction */
    double warm_ms; /* the first two steps of an attempt take so much more */
};

struct run {
    struct course course;
    struct throughput throughput;
    uint32_t generation;
    uint64_t step;
    double now_ms;
};

/* 0 to 1 */
static double draw(const struct run *r)
{
    return (double)rng_uniform(rng_words(1, (uint32_t)r->step, r->generation, 0, 0).word[0]);
}

/* One step, with what it takes beside it. */
static void go(struct run *r, uint32_t of_attempt)
{
    const struct course *c = &r->course;
    struct throughput_row row = { .generation = r->generation, .step = ++r->step };
    row.step_ms = c->step_ms * (1 + c->noise * (2 * draw(r) - 1)) +
                  (of_attempt < THROUGHPUT_SKIP ? c->warm_ms : 0);
    row.part_ms[1] = row.step_ms / 3;
    r->now_ms += row.step_ms;
    if (c->save_every > 0 && r->step > 1 && (r->step - 1) % c->save_every == 0)
        r->now_ms += c->save_ms; /* the step after it waits */
    row.evaluated = (c->eval_every > 0 && r->step % c->eval_every == 0) || r->step == c->total;
    if (row.evaluated)
        r->now_ms += c->eval_ms;
    row.wall_ms = (int64_t)r->now_ms;
    throughput_add(&r->throughput, &row);
}

static double left_ms(const struct run *r)
{
    const struct course *c = &r->course;
    return throughput_left_ms(&r->throughput, c->total - r->step,
                              throughput_evals_left(r->step, c->total, c->eval_every));
}

/* By how much what was told at step `at` was wrong, as a fraction of what was left; killed at
 * `dies` (0: never), from where it goes on at `from`, 30 s later. */
static double error_at(const struct course *course, uint64_t at, uint64_t dies, uint64_t from)
{
    struct run r = { .course = *course, .generation = 1 };
    double told = NAN, since = 0;
    uint32_t of_attempt = 0;
    while (r.step < course->total) {
        go(&r, of_attempt++);
        if (dies > 0 && r.step == dies) {
            r.now_ms += 30000;
            r.step = from;
            r.generation++;
            of_attempt = 0;
            dies = 0;
        }
        if (r.step == at && dies == 0) { /* the newest time, if it comes there twice */
            told = left_ms(&r);
            since = r.now_ms;
        }
    }
    assert_true(isfinite(told));
    return fabs(told - (r.now_ms - since)) / (r.now_ms - since);
}

static const struct course courses[] = {
    { 1000, 100, 50, 250, 0.05, 20000, 4000, 3000 }, /* evaluations are half of it */
    { 400, 0, 0, 1000, 0.3, 60000, 0, 0 },           /* one at the end, steps of any length */
    { 5000, 1000, 500, 2, 0.2, 300, 50, 200 },       /* a small one */
};

#define COURSES (sizeof(courses) / sizeof(courses[0]))

static void at_a_quarter_the_time_left_is_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < COURSES; i++) {
        const struct course *c = &courses[i];
        if (c->eval_every == 0) /* what takes part of the end was never seen */
            continue;
        assert_true(error_at(c, c->total / 4, 0, 0) < 0.1);
        assert_true(error_at(c, c->total / 4, c->total / 5, c->total / 6) < 0.1);
    }
}

/* Twelve steps after it went back, and one. */
static void it_is_right_after_a_resume(void **state)
{
    (void)state;
    for (size_t i = 0; i < COURSES; i++) {
        struct course c = courses[i];
        c.eval_ms = c.eval_every == 0 ? 0 : c.eval_ms;
        assert_true(error_at(&c, c.total / 2 + 12, 3 * c.total / 5, c.total / 2) < 0.1);
        assert_true(error_at(&c, c.total / 2 + 1, 3 * c.total / 5, c.total / 2) < 0.1);
    }
}

static void a_standstill_is_not_what_is_to_come(void **state)
{
    (void)state;
    struct run r = { .course = { .total = 1000, .step_ms = 100 }, .generation = 1 };
    for (uint32_t i = 0; i < 200; i++)
        go(&r, i);
    const double before = left_ms(&r);
    r.now_ms += 3600000; /* an hour */
    go(&r, 200);
    assert_true(left_ms(&r) < 1.6 * before);
    assert_true(fabs(throughput_step_ms(&r.throughput) - 100) < 1);
}

static void after_another_size_steps_count_anew(void **state)
{
    (void)state;
    struct run r = { .course = { .total = 1000, .step_ms = 100 }, .generation = 1 };
    for (uint32_t i = 0; i < 100; i++)
        go(&r, i);
    r.generation = 2;
    r.course.step_ms = 50;
    for (uint32_t i = 0; i < THROUGHPUT_SKIP + THROUGHPUT_LEAST - 1; i++)
        go(&r, i);
    assert_true(fabs(throughput_step_ms(&r.throughput) - 100) < 1); /* a few steps tell less */
    go(&r, THROUGHPUT_SKIP + THROUGHPUT_LEAST);
    assert_true(fabs(throughput_step_ms(&r.throughput) - 50) < 1);
    assert_true(fabs(left_ms(&r) - (double)(1000 - r.step) * 50) < 5 * 50);
}

static int compare(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* The median is that of the newest steps, in whatever order they come. */
static void a_plain_step_is_the_median_of_the_window(void **state)
{
    (void)state;
    struct throughput throughput = { 0 };
    double seen[1000], newest[THROUGHPUT_WINDOW];
    int64_t now_ms = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        seen[i] = 1 + rng_words(3, i, 0, 0, 0).word[0] % 20; /* some are equal */
        now_ms += (int64_t)seen[i];
        throughput_add(&throughput,
                       &(struct throughput_row){
                           .generation = 1, .step = i + 1, .wall_ms = now_ms, .step_ms = 1 });
        const uint32_t plain = i + 1 > THROUGHPUT_SKIP ? i + 1 - THROUGHPUT_SKIP : 0;
        const uint32_t count = plain < THROUGHPUT_WINDOW ? plain : THROUGHPUT_WINDOW;
        if (count == 0)
            continue;
        memcpy(newest, seen + i + 1 - count, count * sizeof(*newest));
        qsort(newest, count, sizeof(*newest), compare);
        const double lower = newest[(count - 1) / 2], upper = newest[count / 2];
        assert_true(fabs(throughput_step_ms(&throughput) - (lower + upper) / 2) < 1e-9);
    }
}

/* Wall times are whole milliseconds: of steps of less most take none. */
static void steps_of_less_than_a_millisecond_take_time_too(void **state)
{
    (void)state;
    const double steps_ms[] = { 0.1, 0.3, 0.45, 0.5, 0.8, 1.3 };
    for (size_t i = 0; i < sizeof(steps_ms) / sizeof(steps_ms[0]); i++) {
        struct run r = { .course = { .total = 10000, .step_ms = steps_ms[i] }, .generation = 1 };
        for (uint32_t n = 0; n < 2500; n++)
            go(&r, n);
        assert_true(fabs(left_ms(&r) / (7500 * steps_ms[i]) - 1) < 0.1);
    }
}

static void what_is_not_known_is_not_said(void **state)
{
    (void)state;
    struct run r = { .course = { .total = 1000, .step_ms = 100, .warm_ms = 1e6 }, .generation = 1 };
    assert_true(isnan(throughput_step_ms(&r.throughput)) &&
                isnan(throughput_average_ms(&r.throughput)) &&
                isnan(throughput_left_ms(&r.throughput, 10, 1)) &&
                isnan(throughput_part_ms(&r.throughput, 1)));
    for (uint32_t i = 0; i < THROUGHPUT_SKIP; i++)
        go(&r, i);
    assert_true(isnan(throughput_step_ms(&r.throughput)));
    go(&r, THROUGHPUT_SKIP);
    assert_true(fabs(throughput_step_ms(&r.throughput) - 100) < 1);
    assert_true(fabs(throughput_part_ms(&r.throughput, 1) - 100.0 / 3) < 1);
    assert_true(isnan(throughput_part_ms(&r.throughput, THROUGHPUT_PARTS)));
    assert_true(throughput_left_ms(&r.throughput, 0, 0) == 0);
}

static void evaluations_are_counted(void **state)
{
    (void)state;
    assert_int_equal(throughput_evals_left(0, 100, 0), 1);
    assert_int_equal(throughput_evals_left(0, 100, 10), 10);
    assert_int_equal(throughput_evals_left(10, 100, 10), 9);
    assert_int_equal(throughput_evals_left(19, 105, 10), 10);
    assert_int_equal(throughput_evals_left(100, 105, 10), 1);
    assert_int_equal(throughput_evals_left(105, 105, 10), 0);
    assert_int_equal(throughput_evals_left(106, 105, 10), 0);
}

static void mfu_is_of_this_attempt_alone(void **state)
{
    (void)state;
    struct run r = { .course = { .total = 1000, .step_ms = 100 }, .generation = 3 };
    for (uint32_t i = 0; i < THROUGHPUT_SKIP + THROUGHPUT_LEAST; i++) {
        assert_true(isnan(throughput_mfu(&r.throughput, 3, 4e9, 100e9))); /* too few steps */
        go(&r, i);
    }
    assert_true(fabs(throughput_mfu(&r.throughput, 3, 4e9, 100e9) - 0.4) < 1e-9);
    assert_true(fabs(throughput_mfu(&r.throughput, 3, 4e9, 200e9) - 0.2) < 1e-9);
    assert_true(fabs(throughput_mfu(&r.throughput, 3, 40e9, 100e9) - 4) <
                1e-9); /* nothing is cut off */
    assert_true(isnan(throughput_mfu(&r.throughput, 3, 0, 100e9)));
    assert_true(isnan(throughput_mfu(&r.throughput, 3, 4e9, 0)));
    assert_true(isnan(throughput_mfu(&r.throughput, 3, (double)NAN, 100e9)));
    assert_true(isnan(throughput_mfu(&r.throughput, 3, 4e9, (double)NAN)));
    assert_true(isnan(throughput_mfu(&r.throughput, 4, 4e9, 100e9))); /* it has told no step yet */
    r.generation = 4;
    go(&r, 0);
    assert_true(isfinite(throughput_step_ms(&r.throughput))); /* by the attempt before */
    assert_true(isnan(throughput_mfu(&r.throughput, 4, 4e9, 100e9)));
    r.course.step_ms = 50;
    for (uint32_t i = 1; i < THROUGHPUT_SKIP + THROUGHPUT_LEAST; i++)
        go(&r, i);
    assert_true(fabs(throughput_mfu(&r.throughput, 4, 4e9, 100e9) - 0.8) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_a_quarter_the_time_left_is_right),
        cmocka_unit_test(it_is_right_after_a_resume),
        cmocka_unit_test(a_standstill_is_not_what_is_to_come),
        cmocka_unit_test(after_another_size_steps_count_anew),
        cmocka_unit_test(a_plain_step_is_the_median_of_the_window),
        cmocka_unit_test(steps_of_less_than_a_millisecond_take_time_too),
        cmocka_unit_test(what_is_not_known_is_not_said),
        cmocka_unit_test(evaluations_are_counted),
        cmocka_unit_test(mfu_is_of_this_attempt_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
