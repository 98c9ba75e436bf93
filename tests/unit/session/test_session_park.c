/* The session's state machine: a rank leaves its generation and goes on in the next. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/session/session_bench.h"

static struct bench *parked(uint64_t step)
{
    struct bench *b = trained(1, 0);
    hear(b, park_order("worker 2 died"));
    session_fsm_parked(
        &b->fsm, &(struct session_parked){ .step = step, .complete = true, .computed_by = 7 });
    assert_says(b, PARKED);
    return b;
}

static bool regrouped(const struct bench *b, uint32_t generation, uint32_t rank, const char *token)
{
    uint32_t got_generation = 0, got_rank = 0;
    char got_token[SESSION_TOKEN] = "";
    return session_fsm_regrouped(&b->fsm, &got_generation, &got_rank, got_token) &&
           got_generation == generation && got_rank == rank && strcmp(got_token, token) == 0;
}

static bool has_regrouped(const struct bench *b)
{
    uint32_t generation = 0, rank = 0;
    char token[SESSION_TOKEN];
    return session_fsm_regrouped(&b->fsm, &generation, &rank, token);
}

/* ---- park ---- */

static void the_step_thread_has_nothing_more_to_do_once_it_is_to_park(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    const struct rendezvous_part nothing = { 0 };
    const struct session_rendezvous_round *round = NULL;
    struct readback_order read;
    int index = -1, file = -1;
    assert_false(session_fsm_ended(&b->fsm));
    hear(b, read_back_order(0, "/store/a", 4));
    hear(b, park_order("worker 2 died"));
    assert_true(session_fsm_ended(&b->fsm));
    assert_true(session_fsm_parks(&b->fsm));
    assert_false(b->fsm.over); /* the process lives */
    assert_string_equal(b->fsm.park.reason.text, "worker 2 died");
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &nothing, 4, &round), ST_STALE);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 10, false, &index), ST_STALE);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 100, true, &index), ST_STALE);
    assert_int_equal(session_fsm_copy_begin(&b->fsm, 10, &file), ST_STALE);
    assert_int_equal(session_fsm_due(&b->fsm, 10), SESSION_DUE_NOTHING);
    assert_false(session_fsm_read_order(&b->fsm, &read));
    session_fsm_save_late(&b->fsm, 10);
    hear(b, save_at_order(5, false));
    hear(b, folder_order(10, "/store/b"));
    assert_silent(b);
    bench_free(b);
}

static void parked_is_said_once_per_connection_and_the_heart_goes_on_beating(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    hear(b, park_order("worker 2 died"));
    assert_silent(b); /* not before the step thread has left */
    session_fsm_parked(&b->fsm,
                       &(struct session_parked){ .step = 41, .complete = true, .computed_by = 6 });
    session_fsm_parked(
        &b->fsm, &(struct session_parked){ .step = 40, .computed_by = 5 }); /* the first counts */
    assert_says(b, PARKED);
    assert_int_equal(b->out.parked.step, 41);
    assert_true(b->out.parked.complete);
    assert_int_equal(b->out.parked.computed_by, 6);
    assert_silent(b);
    for (int i = 0; i < 3; i++) {
        reconnect(b);
        assert_true(b->out.hello.attached);
        assert_non_null(b->out.hello.parked);
        assert_int_equal(b->out.hello.parked->step, 41);
        assert_int_equal(b->out.hello.parked->computed_by, 6);
        assert_silent(b); /* hello had it */
        b->now_ms += SESSION_HEARTBEAT_MS;
        assert_non_null(say(b));
        assert_int_equal(b->out.kind, SESSION_OUT_PROGRESS);
    }
    bench_free(b);
}

static void a_state_that_is_not_whole_was_computed_by_nobody(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    hear(b, park_order("worker 2 died"));
    session_fsm_parked(&b->fsm, &(struct session_parked){ .step = 41, .computed_by = 6 });
    assert_says(b, PARKED);
    assert_false(b->out.parked.complete);
    assert_int_equal(b->out.parked.computed_by, 0);
    bench_free(b);
}

static void who_asks_twice_did_not_hear_the_answer(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    hear(b, park_order("worker 2 died"));
    hear(b, park_order("worker 2 died"));
    assert_silent(b);
    session_fsm_parked(&b->fsm,
                       &(struct session_parked){ .step = 41, .complete = true, .computed_by = 7 });
    assert_says(b, PARKED);
    hear(b, park_order("worker 2 died"));
    assert_says(b, PARKED);
    assert_int_equal(b->out.parked.step, 41);
    hear(b, regroup_order(8, 0, "t"));
    hear(b, park_order("worker 2 died"));
    assert_says(b, PARKED);
    assert_true(regrouped(b, 8, 0, "t")); /* that stands */
    bench_free(b);
}

static void who_has_no_plan_yet_parks_too(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    hear(b, park_order("worker 2 died"));
    hear_plan(b, 1, 4, 0); /* too late */
    assert_null(b->fsm.assigned);
    session_fsm_parked(&b->fsm, &(struct session_parked){ .step = 0 });
    assert_says(b, PARKED);
    reconnect(b);
    assert_true(b->out.hello.attached);
    assert_non_null(b->out.hello.parked);
    bench_free(b);
}

/* ---- what is given up ---- */

static void saves_are_given_up_and_nothing_is_said_of_them(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 4, 4);
    give_folder(b, 10);
    const int writing = session_fsm_saver_work(&b->fsm);
    assert_true(writing >= 0);
    session_fsm_save_written(&b->fsm, writing, report_of(10));
    assert_says(b, SAVE_REPORT);
    give_folder(b, 20);
    const int taken = session_fsm_saver_work(&b->fsm);
    (void)begin_save(b, 30);
    int copying = -1;
    assert_int_equal(session_fsm_save_begin(&b->fsm, 40, false, &copying), ST_OK);
    hear(b, park_order("worker 2 died"));
    assert_silent(b);
    assert_int_equal(session_fsm_saver_work(&b->fsm), -1);
    hear(b, done_order(10, false));
    assert_int_equal(session_fsm_saver_work(&b->fsm), -1); /* nothing is removed either */
    session_fsm_save_written(&b->fsm, taken, report_of(20));
    session_fsm_save_copied(&b->fsm, copying, true);
    pass_ms(b, 2 * SESSION_REPEAT_MS);
    assert_silent(b);
    reconnect(b);
    assert_silent(b);
    for (int i = 0; i < SESSION_SAVES_MAX; i++)
        assert_int_equal(b->fsm.saves[i].state, SESSION_SAVE_FREE);
    assert_false(session_fsm_at_store(&b->fsm));
    assert_int_equal(session_fsm_newest(&b->fsm), 3); /* the copies are still whole */
    bench_free(b);
}

static void what_the_saver_fails_at_or_removes_ends_there(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 2, 2);
    give_folder(b, 10);
    int taken = session_fsm_saver_work(&b->fsm);
    hear(b, park_order("worker 2 died"));
    session_fsm_save_failed(&b->fsm, taken, ST_IO, "no", false);
    assert_silent(b);
    bench_free(b);
    b = trained(1, 0);
    give_folder(b, 10);
    taken = session_fsm_saver_work(&b->fsm);
    hear(b, done_order(10, false));
    session_fsm_save_written(&b->fsm, taken, report_of(10));
    taken = session_fsm_saver_work(&b->fsm);
    assert_int_equal(b->fsm.saves[taken].state, SESSION_SAVE_REMOVING);
    hear(b, park_order("worker 2 died"));
    session_fsm_save_removed(&b->fsm, taken);
    assert_int_equal(b->fsm.saves[taken].state, SESSION_SAVE_FREE);
    assert_silent(b);
    bench_free(b);
}

static void meetings_and_reads_of_it_are_not_said_again(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    const struct rendezvous_part part = { .common = "x", .common_size = 1 };
    const struct session_rendezvous_round *round = NULL;
    const struct readback_news news = { .step = 10, .done = true };
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &part, 4, &round), ST_OK);
    hear(b, read_back_order(10, "/store/a", 4));
    struct readback_order read;
    assert_true(session_fsm_read_order(&b->fsm, &read));
    hear(b, park_order("worker 2 died"));
    session_fsm_read_news(&b->fsm, &news);
    session_fsm_wanted(&b->fsm, true, 5000, "SIGTERM");
    assert_silent(b);
    reconnect(b);
    assert_silent(b);
    bench_free(b);
}

static void rows_that_nobody_acknowledged_go_before_parked(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    add_rows(b, 1, 3);
    hear(b, park_order("worker 2 died"));
    session_fsm_parked(&b->fsm,
                       &(struct session_parked){ .step = 3, .complete = true, .computed_by = 7 });
    assert_says(b, METRICS); /* at once: no others come */
    assert_int_equal(b->out.rows.n_rows, 3);
    assert_says(b, PARKED);
    hear(b, metric_ack_order(2));
    reconnect(b);
    assert_says(b, METRICS);
    assert_int_equal(b->out.rows.rows[0]->step, 3);
    assert_silent(b);
    bench_free(b);
}

static void a_fault_is_said_until_it_parks_and_is_then_no_longer_its_last_word(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    const struct session_fault_record fault = { .kind = CAIRN__V1__FAULT_KIND__COMMUNICATION };
    session_fsm_fault(&b->fsm, &fault);
    hear(b, park_order("worker 2 died"));
    assert_says(b, FAULT);
    const uint64_t version = b->fsm.last_words_version;
    session_fsm_parked(&b->fsm,
                       &(struct session_parked){ .step = 3, .complete = true, .computed_by = 7 });
    assert_true(b->fsm.last_words_version > version);
    uint8_t *bytes = NULL;
    size_t size = 0;
    assert_int_equal(session_fsm_last_words(&b->fsm, &b->progress, &bytes, &size), ST_OK);
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, bytes);
    assert_non_null(words);
    assert_int_equal(words->fault__case, CAIRN__V1__LAST_WORDS__FAULT___NOT_SET);
    assert_int_equal(words->n_saves, 0);
    cairn__v1__last_words__free_unpacked(words, NULL);
    free(bytes);
    assert_says(b, PARKED);
    reconnect(b);
    assert_silent(b);
    bench_free(b);
}

/* ---- regroup ---- */

static void regroup_is_handed_out_as_it_came(void **state)
{
    (void)state;
    struct bench *b = parked(41);
    assert_false(has_regrouped(b));
    hear(b, regroup_order(8, 3, "secret"));
    assert_true(regrouped(b, 8, 3, "secret"));
    assert_true(regrouped(b, 8, 3, "secret"));
    assert_false(b->fsm.over);
    bench_free(b);
}

static void of_two_the_higher_generation_counts(void **state)
{
    (void)state;
    struct bench *b = parked(41);
    hear(b, regroup_order(8, 3, "a"));
    hear(b, regroup_order(9, 2, "b"));
    assert_true(regrouped(b, 9, 2, "b"));
    hear(b, regroup_order(8, 3, "a"));
    hear(b, regroup_order(9, 1, "c"));
    assert_true(regrouped(b, 9, 2, "b"));
    bench_free(b);
}

static void who_is_not_parked_is_not_regrouped(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    hear(b, regroup_order(8, 3, "a"));
    assert_false(session_fsm_ended(&b->fsm));
    assert_false(has_regrouped(b));
    hear(b, park_order("worker 2 died"));
    hear(b, regroup_order(8, 3, "a"));
    assert_false(has_regrouped(b));
    session_fsm_parked(&b->fsm,
                       &(struct session_parked){ .step = 41, .complete = true, .computed_by = 7 });
    assert_false(has_regrouped(b));
    hear(b, regroup_order(8, LIMIT_NUMBERS - 1, "a"));
    assert_true(regrouped(b, 8, LIMIT_NUMBERS - 1, "a"));
    bench_free(b);
}

static void an_order_to_go_on_that_makes_no_sense_ends_it(void **state)
{
    (void)state;
    char token[SESSION_TOKEN + 1];
    memset(token, 'x', sizeof(token));
    token[SESSION_TOKEN] = '\0';
    struct bench *b = parked(41);
    hear(b, regroup_order(7, 3, "a")); /* that is this one */
    assert_true(b->fsm.over);
    bench_free(b);
    b = parked(41);
    hear(b, regroup_order(8, LIMIT_NUMBERS, "a"));
    assert_true(b->fsm.over);
    bench_free(b);
    b = parked(41);
    hear(b, regroup_order(8, 3, token));
    assert_true(b->fsm.over);
    bench_free(b);
}

static void over_wins_over_all(void **state)
{
    (void)state;
    struct bench *b = parked(41);
    hear(b, over_order("enough"));
    hear(b, regroup_order(8, 3, "a"));
    assert_true(b->fsm.over);
    assert_false(has_regrouped(b));
    assert_null(say(b));
    bench_free(b);
    b = parked(41);
    hear(b, regroup_order(8, 3, "a"));
    hear(b, over_order("enough"));
    assert_false(has_regrouped(b));
    bench_free(b);
    b = trained(1, 0);
    hear(b, over_order("enough"));
    hear(b, park_order("worker 2 died"));
    assert_false(session_fsm_parks(&b->fsm));
    session_fsm_parked(&b->fsm, &(struct session_parked){
                                    .step = 41,
                                    .complete = true,
                                    .computed_by = 7 }); /* the step thread had not yet heard */
    assert_null(say(b));
    bench_free(b);
}

/* ---- the next generation ---- */

static void hello_offers_the_state_until_the_plan_is_there(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    const struct session_parked kept = { .step = 41, .complete = true, .computed_by = 5 };
    session_fsm_offer_state(&b->fsm, &kept);
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            assert_says(b, HELLO);
        } else {
            reconnect(b);
        }
        assert_false(b->out.hello.attached);
        assert_non_null(b->out.hello.parked);
        assert_int_equal(b->out.hello.parked->step, 41);
        assert_true(b->out.hello.parked->complete);
        assert_int_equal(b->out.hello.parked->computed_by, 5);
        assert_silent(b); /* it is not parked in this one */
    }
    hear_plan(b, 1, 4, 0);
    reconnect(b);
    assert_true(b->out.hello.attached);
    assert_null(b->out.hello.parked);
    bench_free(b);
}

static enum status live_plan(uint64_t step, uint32_t *sources, size_t count,
                             struct session_assignment *out)
{
    uint32_t shares[4] = { 2, 1, 1, 4 };
    Cairn__V1__LiveRestore live = CAIRN__V1__LIVE_RESTORE__INIT;
    Cairn__V1__Plan plan = CAIRN__V1__PLAN__INIT;
    live.step = step;
    live.sources = sources;
    live.n_sources = count;
    plan.live = &live;
    struct bench *b = bench_new(1);
    hear(b, plan_order(&plan, 7, 1, shares, 4));
    const enum status st = session_fsm_assignment(&b->fsm, out);
    if (st == ST_OK) {
        assert_int_equal(out->live_source_count, count);
        assert_memory_equal(out->live_sources, sources, count * sizeof(*sources));
        out->live_sources = NULL; /* the core's */
    }
    bench_free(b);
    return st;
}

static void sources_of_the_state_are_checked(void **state)
{
    (void)state;
    struct session_assignment assignment;
    uint32_t good[3] = { 0, 2, 3 }, falling[2] = { 2, 0 }, twice[2] = { 2, 2 }, far[2] = { 1, 4 };
    assert_int_equal(live_plan(41, good, 3, &assignment), ST_OK);
    assert_int_equal(assignment.live_step, 41);
    assert_int_equal(live_plan(41, good, 0, &assignment), ST_INVALID);
    assert_int_equal(live_plan(41, falling, 2, &assignment), ST_INVALID);
    assert_int_equal(live_plan(41, twice, 2, &assignment), ST_INVALID);
    assert_int_equal(live_plan(41, far, 2, &assignment), ST_INVALID);
    struct bench *b = bench_new(1);
    hear_plan(b, 1, 4, 0);
    assert_int_equal(session_fsm_assignment(&b->fsm, &assignment), ST_OK);
    assert_int_equal(assignment.live_source_count, 0);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_step_thread_has_nothing_more_to_do_once_it_is_to_park),
        cmocka_unit_test(parked_is_said_once_per_connection_and_the_heart_goes_on_beating),
        cmocka_unit_test(a_state_that_is_not_whole_was_computed_by_nobody),
        cmocka_unit_test(who_asks_twice_did_not_hear_the_answer),
        cmocka_unit_test(who_has_no_plan_yet_parks_too),
        cmocka_unit_test(saves_are_given_up_and_nothing_is_said_of_them),
        cmocka_unit_test(what_the_saver_fails_at_or_removes_ends_there),
        cmocka_unit_test(meetings_and_reads_of_it_are_not_said_again),
        cmocka_unit_test(rows_that_nobody_acknowledged_go_before_parked),
        cmocka_unit_test(a_fault_is_said_until_it_parks_and_is_then_no_longer_its_last_word),
        cmocka_unit_test(regroup_is_handed_out_as_it_came),
        cmocka_unit_test(of_two_the_higher_generation_counts),
        cmocka_unit_test(who_is_not_parked_is_not_regrouped),
        cmocka_unit_test(an_order_to_go_on_that_makes_no_sense_ends_it),
        cmocka_unit_test(over_wins_over_all),
        cmocka_unit_test(hello_offers_the_state_until_the_plan_is_there),
        cmocka_unit_test(sources_of_the_state_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
