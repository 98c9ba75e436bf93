/* Which checkpoints stay, and which the next one may be read through. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* A running job that keeps the last keep_last checkpoints. */
static struct bench *open_running(struct fsm_config config, uint64_t keep_last)
{
    struct bench *b = malloc(sizeof(*b));
    assert_non_null(b);
    config.keep_last = keep_last;
    bench_open(b, &config);
    bench_run(b, BENCH_STEPS);
    return b;
}

static struct bench *open_keeping(uint64_t keep_last)
{
    return open_running(bench_config(), keep_last);
}

static struct bench *open_delta(uint64_t keep_last)
{
    struct fsm_config config = bench_config();
    config.delta = true;
    return open_running(config, keep_last);
}

/* Keeps the n best by that metric, too, and those of every `every` steps (0: none). */
static struct bench *open_best(uint64_t keep_last, enum fsm_metric metric, uint64_t n,
                               uint64_t every)
{
    struct fsm_config config = bench_config();
    config.best_metric = metric;
    config.keep_best = n;
    config.keep_every = every;
    return open_running(config, keep_last);
}

static void end(struct bench *b)
{
    bench_close(b);
    free(b);
}

/* A complete save; its bytes hold differences to base (0: to none). */
static void commit_with(struct bench *b, uint64_t step, uint64_t base, double loss, double accuracy)
{
    uint32_t generation = b->m.generation;
    bench_save_until(b, step, FSM_SAVE_COMMITTING);
    struct fsm_ckpt ckpt = { .step = step,
                             .generation = generation,
                             .shards = b->m.config.ranks,
                             .state = FSM_CKPT_GOOD,
                             .bytes = base ? 300 : 1000,
                             .parent_step = base,
                             .parent_generation = base ? generation : 0,
                             .loss = loss,
                             .eval_loss = (double)NAN,
                             .eval_accuracy = accuracy };
    bench_publish(b, &ckpt);
}

static void commit(struct bench *b, uint64_t step, uint64_t base, double loss)
{
    commit_with(b, step, base, loss, (double)NAN);
}

/* Answers what the last actions asked of the store, until they ask nothing more. */
static void store_works(struct bench *b)
{
    for (;;) {
        struct fsm_actions asked = b->out;
        size_t done = 0;
        if (b->m.read_back.generation != 0) {
            bench_read_all(b, b->m.read_back.step);
            continue;
        }
        for (size_t i = 0; i < asked.count; i++) {
            const struct fsm_action *act = &asked.list[i];
            if (act->kind == FSM_ACT_STORE &&
                (act->task == FSM_TASK_VERIFY || act->task == FSM_TASK_REMOVE)) {
                bench_store(b, act->task, act->step, act->generation, ST_OK);
                done++;
            }
        }
        if (done == 0)
            return;
    }
}

/* The steps that are left: "10 20 30". */
static void are_left(const struct bench *b, const char *want)
{
    char text[512] = "";
    size_t used = 0;
    for (size_t i = 0; i < b->m.catalog_count; i++) {
        if (b->m.catalog[i].state == FSM_CKPT_GOOD)
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%llu", used ? " " : "",
                                     (unsigned long long)b->m.catalog[i].step);
    }
    assert_string_equal(text, want);
}

static void the_last_the_best_and_every_so_many_stay(void **state)
{
    (void)state;
    struct bench *b = open_best(2, FSM_METRIC_LOSS, 2, 50);
    static const double loss[] = { 9, 5, 1, 8, 7, 6, (double)NAN, 2, 4, 3, 3.5, 9 };
    for (uint64_t i = 0; i < 12; i++) {
        commit(b, 10 * (i + 1), 0, loss[i]);
        store_works(b);
    }
    are_left(b, "30 50 80 100 110 120"); /* 30 and 80 are the best */
    end(b);
}

/* Nobody audits it. */
static void one_worker_alone_keeps_none_for_audits(void **state)
{
    (void)state;
    struct fsm_config config = bench_config();
    config.audited = 25;
    config.ranks = config.most = 1;
    struct bench *b = open_running(config, 1);
    for (uint64_t step = 10; step <= 80; step += 10) {
        bench_progress(b, 0, step, "forward");
        commit(b, step, 0, 1);
        store_works(b);
    }
    are_left(b, "80");
    end(b);
}

static void one_of_before_any_error_that_audits_may_find_stays(void **state)
{
    (void)state;
    static const char *const left[] = { "10",       "10 20",    "10 30",    "10 30 40",
                                        "10 30 50", "30 50 60", "30 50 70", "50 70 80" };
    struct fsm_config config = bench_config();
    config.audited = 25;
    struct bench *b = open_running(config, 1);
    for (uint64_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        for (uint32_t r = 0; r < config.ranks; r++)
            bench_progress(b, r, 10 * (i + 1), "forward");
        bench_audited(b, 10 * (i + 1));
        commit(b, 10 * (i + 1), 0, 1);
        store_works(b);
        are_left(b, left[i]);
    }
    end(b);
}

static void of_equals_the_newer_is_better_and_accuracy_counts_upwards(void **state)
{
    (void)state;
    struct bench *b = open_best(1, FSM_METRIC_LOSS, 1, 0);
    for (uint64_t i = 1; i <= 4; i++) {
        commit(b, 10 * i, 0, i == 4 ? 8 : 5);
        store_works(b);
    }
    are_left(b, "30 40");
    end(b);
    static const double accuracy[] = { 0.2, 0.9, (double)NAN };
    b = open_best(1, FSM_METRIC_EVAL_ACCURACY, 1, 0);
    for (uint64_t i = 0; i < 3; i++) {
        commit_with(b, 30 + 10 * i, 0, 1, accuracy[i]);
        store_works(b);
    }
    are_left(b, "40 50");
    end(b);
}

static void reading_back_does_not_fall_behind_saving(void **state)
{
    (void)state;
    struct bench *b = open_keeping(1);
    commit(b, 10, 0, 1);
    commit(b, 20, 0, 1);
    assert_int_equal(bench_act(b, FSM_ACT_READ_BACK, 0)->step, 20);
    commit(b, 30, 0, 1);
    assert_null(bench_act(b, FSM_ACT_READ_BACK, 0)); /* one at a time */
    commit(b, 40, 0, 1);
    bench_read_all(b, 20);
    assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, 10); /* older than one that was read */
    assert_int_equal(bench_tasks(b, FSM_TASK_REMOVE), 1);
    assert_int_equal(bench_act(b, FSM_ACT_READ_BACK, 0)->step, 40); /* the newest now */
    store_works(b);
    are_left(b, "40");
    end(b);
}

static void a_removal_that_fails_is_made_again(void **state)
{
    (void)state;
    struct bench *b = open_keeping(1);
    commit(b, 10, 0, 1);
    commit(b, 20, 0, 1);
    bench_read_all(b, 20);
    bench_store(b, FSM_TASK_REMOVE, 10, 1, ST_IO);
    assert_null(bench_task(b, FSM_TASK_REMOVE));
    commit(b, 30, 0, 1);
    assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, 10);
    store_works(b);
    are_left(b, "30");
    end(b);
}

static void a_removal_that_failed_can_be_asked_for_again(void **state)
{
    (void)state;
    struct bench *b = open_keeping(3);
    commit(b, 10, 0, 1);
    commit(b, 20, 0, 1);
    assert_int_equal(bench_remove(b, 10), ST_OK);
    assert_int_equal(bench_remove(b, 10), ST_NOT_FOUND); /* under way */
    bench_store(b, FSM_TASK_REMOVE, 10, 1, ST_IO);
    assert_int_equal(bench_remove(b, 10), ST_OK);
    assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, 10);
    end(b);
}

/* ---- differences ---- */

/* The base that ranks are told for a save of step; 0: none. */
static uint64_t base_of(struct bench *b, uint64_t step)
{
    bench_save_until(b, step, FSM_SAVE_OPENING);
    return fsm_find_save(&b->m, step, 1)->base_step;
}

static void a_chain_ends_with_a_whole_one_after_seven(void **state)
{
    (void)state;
    struct bench *b = open_delta(100);
    uint64_t whole = 0;
    for (uint64_t step = 1; step <= 24; step++) {
        uint64_t base = base_of(b, step);
        assert_int_equal(base, (step - 1) % 8 == 0 ? 0 : step - 1);
        whole += base == 0;
        commit(b, step, base, 1);
        store_works(b);
    }
    assert_int_equal(whole, 3);
    end(b);
}

static void what_was_not_read_back_is_no_base(void **state)
{
    (void)state;
    struct bench *b = open_delta(100);
    commit(b, 1, 0, 1);
    assert_int_equal(bench_act(b, FSM_ACT_READ_BACK, 0)->step, 1);
    assert_int_equal(base_of(b, 2), 0);
    commit(b, 2, 0, 1);
    bench_read_all(b, 1);
    assert_int_equal(base_of(b, 3), 1);
    end(b);
}

static void what_others_are_read_through_stays_until_they_went(void **state)
{
    (void)state;
    struct bench *b = open_delta(1);
    for (uint64_t step = 1; step <= 8; step++) {
        commit(b, step, step - 1, 1);
        store_works(b);
    }
    are_left(b, "1 2 3 4 5 6 7 8");
    assert_int_equal(bench_remove(b, 3), ST_REFUSED);
    commit(b, 9, 0, 1); /* whole: the chain may go, its end first */
    assert_int_equal(bench_act(b, FSM_ACT_READ_BACK, 0)->step, 9);
    bench_read_all(b, 9);
    for (uint64_t step = 8; step >= 1; step--) {
        assert_int_equal(bench_tasks(b, FSM_TASK_REMOVE), 1);
        assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, step);
        bench_store(b, FSM_TASK_REMOVE, step, 1, ST_OK);
    }
    are_left(b, "9");
    end(b);
}

static void the_base_of_a_save_under_way_stays(void **state)
{
    (void)state;
    struct bench *b = open_delta(1);
    commit(b, 1, 0, 1);
    store_works(b);
    assert_int_equal(base_of(b, 3), 1); /* it is slow ... */
    commit(b, 2, 0, 1);                 /* (another one, whole) */
    bench_read_all(b, 2);
    assert_null(bench_task(b, FSM_TASK_REMOVE));
    are_left(b, "1 2");
    end(b);
}

static void with_a_damaged_one_go_those_that_are_read_through_it(void **state)
{
    (void)state;
    struct bench *b = open_delta(100);
    for (uint64_t step = 1; step <= 4; step++) {
        commit(b, step, step == 3 ? 0 : step - 1, 1);
        store_works(b);
    }
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9); /* 4 is read through 3; 2 through 1 */
    bench_all_exit(b);
    bench_place(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_fault(b, 1, FSM_FAULT_DAMAGE, 0);
    assert_int_equal(bench_tasks(b, FSM_TASK_VERIFY), 2); /* both are read here */
    bench_all_exit(b);
    bench_store(b, FSM_TASK_VERIFY, 4, 2, ST_OK); /* of another generation: nothing */
    bench_store(b, FSM_TASK_VERIFY, 4, 1, ST_OK);
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_store(b, FSM_TASK_VERIFY, 3, 1, ST_CORRUPT);
    assert_int_equal(bench_tasks(b, FSM_TASK_QUARANTINE), 2);
    bench_tick(b, 5000);
    bench_place(b); /* what is set aside is no longer asked about */
    bench_store(b, FSM_TASK_QUARANTINE, 3, 1, ST_OK);
    bench_store(b, FSM_TASK_QUARANTINE, 4, 1, ST_OK);
    assert_int_equal(b->m.restore.step, 2);
    end(b);
}

/* ---- no room ---- */

static void the_oldest_of_the_last_gives_way_where_the_store_is_full(void **state)
{
    (void)state;
    struct bench *b = open_keeping(3);
    for (uint64_t step = 10; step <= 30; step += 10) {
        commit(b, step, 0, 1);
        store_works(b);
    }
    are_left(b, "10 20 30");
    for (uint64_t step = 40; step <= 60; step += 10) {
        bench_save_until(b, step, FSM_SAVE_OPENING);
        bench_store(b, FSM_TASK_FOLDER, step, 1, ST_FULL);
        store_works(b);
        are_left(b, "20 30"); /* one, not all of them */
    }
    commit(b, 70, 0, 1);
    store_works(b);
    are_left(b, "20 30 70");
    end(b);
}

static void what_the_next_would_not_push_out_stays(void **state)
{
    (void)state;
    struct bench *b = open_keeping(4);
    for (uint64_t step = 10; step <= 30; step += 10)
        commit(b, step, 0, 1);
    bench_save_until(b, 40, FSM_SAVE_OPENING);
    bench_store(b, FSM_TASK_FOLDER, 40, 1, ST_FULL);
    store_works(b);
    are_left(b, "10 20 30");
    end(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_the_best_and_every_so_many_stay),
        cmocka_unit_test(one_worker_alone_keeps_none_for_audits),
        cmocka_unit_test(one_of_before_any_error_that_audits_may_find_stays),
        cmocka_unit_test(of_equals_the_newer_is_better_and_accuracy_counts_upwards),
        cmocka_unit_test(reading_back_does_not_fall_behind_saving),
        cmocka_unit_test(a_removal_that_fails_is_made_again),
        cmocka_unit_test(a_removal_that_failed_can_be_asked_for_again),
        cmocka_unit_test(a_chain_ends_with_a_whole_one_after_seven),
        cmocka_unit_test(what_was_not_read_back_is_no_base),
        cmocka_unit_test(what_others_are_read_through_stays_until_they_went),
        cmocka_unit_test(the_base_of_a_save_under_way_stays),
        cmocka_unit_test(with_a_damaged_one_go_those_that_are_read_through_it),
        cmocka_unit_test(the_oldest_of_the_last_gives_way_where_the_store_is_full),
        cmocka_unit_test(what_the_next_would_not_push_out_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
