/* Saves in the session's state machine, against scripted orders: no thread, no clock. */
#include <stdio.h>

#include "tests/unit/session/session_bench.h"

/* ---- saves ---- */

/*
 * A save from begin to commit with a coordinator that forgets nothing, but to which the link is
 * lost after `cut` messages in either direction; `twice`: it says everything twice.
 */
static int save_with_a_cut(int cut, bool twice)
{
    struct bench *b = trained(1, 0);
    (void)begin_save(b, 10);
    bool has_report = false, removed = false;
    int events = 0, written = 0;
    for (int round = 0; round < 100 && !session_fsm_settled(&b->fsm); round++) {
        b->now_ms += 100;
        const int work = session_fsm_saver_work(&b->fsm);
        if (work >= 0) {
            assert_int_equal(b->fsm.saves[work].state, SESSION_SAVE_WRITING);
            assert_string_equal(b->fsm.saves[work].dir, "/store/step-10");
            session_fsm_save_written(&b->fsm, work, report_of(10));
            written++;
        }
        const Cairn__V1__TrainerMessage *message = say_news(b);
        if (message == NULL)
            continue;
        if (events++ == cut) { /* it did not arrive */
            reconnect(b);
            continue;
        }
        if (message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_REPORT) {
            assert_int_equal(message->save_report->n_pieces, 2);
            assert_int_equal(message->save_report->pieces[0]->xxh3_128.len, 32);
            has_report = true;
        }
        removed = removed || message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_FAILED;
        if (events++ == cut) { /* the answer did not arrive */
            reconnect(b);
            continue;
        }
        const bool begins = message->body_case == CAIRN__V1__TRAINER_MESSAGE__BODY_SAVE_BEGIN;
        for (int i = 0; begins && i < (twice ? 2 : 1); i++)
            hear(b, folder_order(10, "/store/step-10"));
        if (events++ == cut) { /* what the coordinator says by itself did not arrive */
            reconnect(b);
            continue;
        }
        for (int i = 0; has_report && i < (twice ? 2 : 1); i++)
            hear(b, done_order(10, true));
    }
    assert_true(session_fsm_settled(&b->fsm));
    assert_int_equal(b->fsm.committed_step, 10);
    assert_int_equal(written, 1);
    assert_false(removed);
    reconnect(b);
    assert_says(b, READY);
    assert_silent(b);
    bench_free(b);
    return events;
}

static void a_save_is_committed_wherever_the_link_is_lost_and_whatever_is_said_twice(void **state)
{
    (void)state;
    const int events = save_with_a_cut(-1, false);
    assert_true(events >= 4);
    for (int cut = -1; cut <= events + 2; cut++) {
        (void)save_with_a_cut(cut, false);
        (void)save_with_a_cut(cut, true);
    }
}

static void a_report_is_repeated_until_the_save_is_decided(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    (void)begin_save(b, 10);
    assert_says(b, SAVE_BEGIN);
    assert_silent(b);
    b->now_ms += SESSION_REPEAT_MS;
    assert_says(b, SAVE_BEGIN);
    hear(b, folder_order(10, "/store"));
    session_fsm_save_written(&b->fsm, session_fsm_saver_work(&b->fsm), report_of(10));
    for (int i = 0; i < 3; i++) {
        assert_says(b, SAVE_REPORT);
        assert_silent(b);
        b->now_ms += SESSION_REPEAT_MS;
    }
    assert_says(b, SAVE_REPORT);
    assert_false(session_fsm_settled(&b->fsm));
    hear(b, done_order(10, true));
    assert_true(session_fsm_settled(&b->fsm));
    b->now_ms += SESSION_REPEAT_MS;
    assert_silent(b);
    bench_free(b);
}

static void a_dropped_save_is_removed_and_that_is_said_once(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    for (int again = 0; again < 2; again++) {
        give_folder(b, 10);
        session_fsm_save_written(&b->fsm, session_fsm_saver_work(&b->fsm), report_of(10));
        assert_says(b, SAVE_REPORT);
        hear(b, done_order(10, false));
        assert_silent(b); /* not before it is so */
        const int work = session_fsm_saver_work(&b->fsm);
        assert_true(work >= 0);
        assert_int_equal(b->fsm.saves[work].state, SESSION_SAVE_REMOVING);
        assert_int_equal(session_fsm_saver_work(&b->fsm), -1);
        int index = -1;
        assert_int_equal(session_fsm_save_begin(&b->fsm, 10, false, &index), ST_AGAIN);
        session_fsm_save_removed(&b->fsm, work);
        assert_false(session_fsm_settled(&b->fsm));
        assert_says(b, SAVE_FAILED);
        assert_true(b->out.save_failed.removed);
        assert_true(session_fsm_settled(&b->fsm));
        hear(b, done_order(10, false));
        assert_silent(b);
    }
    assert_int_equal(b->fsm.committed_step, 0);
    bench_free(b);
}

static void a_save_that_is_dropped_while_it_is_written_is_removed_when_it_is(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    give_folder(b, 10);
    int work = session_fsm_saver_work(&b->fsm);
    hear(b, done_order(10, false));
    assert_silent(b);
    session_fsm_save_written(&b->fsm, work, report_of(10));
    work = session_fsm_saver_work(&b->fsm);
    assert_int_equal(b->fsm.saves[work].state, SESSION_SAVE_REMOVING);
    session_fsm_save_removed(&b->fsm, work);
    assert_says(b, SAVE_FAILED);
    assert_true(b->out.save_failed.removed);
    /* Dropped before the saver began: there is no file. */
    give_folder(b, 20);
    hear(b, done_order(20, false));
    assert_int_equal(session_fsm_saver_work(&b->fsm), -1);
    assert_says(b, SAVE_FAILED);
    assert_true(session_fsm_settled(&b->fsm));
    bench_free(b);
}

static void a_failed_save_is_told_and_can_be_made_again(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    give_folder(b, 10);
    session_fsm_save_failed(&b->fsm, session_fsm_saver_work(&b->fsm), ST_FULL,
                            status_string(ST_FULL), true);
    assert_says(b, SAVE_FAILED);
    assert_true(b->out.save_failed.full);
    assert_true(b->out.save_failed.removed);
    assert_false(session_fsm_settled(&b->fsm));
    hear(b, done_order(10, false));
    assert_true(session_fsm_settled(&b->fsm));
    assert_silent(b);
    (void)begin_save(b, 10);
    assert_says(b, SAVE_BEGIN);
    /* A file that could not be made because one is there: it goes when the save is dropped. */
    hear(b, folder_order(10, "/store"));
    session_fsm_save_failed(&b->fsm, session_fsm_saver_work(&b->fsm), ST_EXISTS,
                            status_string(ST_EXISTS), false);
    assert_says(b, SAVE_FAILED);
    assert_false(b->out.save_failed.removed);
    hear(b, done_order(10, false));
    session_fsm_save_removed(&b->fsm, session_fsm_saver_work(&b->fsm));
    assert_says(b, SAVE_FAILED);
    assert_true(b->out.save_failed.removed);
    bench_free(b);
}

static void a_failure_that_nobody_answers_is_forgotten(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    give_folder(b, 10);
    session_fsm_save_failed(&b->fsm, session_fsm_saver_work(&b->fsm), ST_IO, status_string(ST_IO),
                            true);
    assert_says(b, SAVE_FAILED);
    pass_ms(b, SESSION_FORGET_MS - 1);
    assert_false(session_fsm_settled(&b->fsm));
    pass_ms(b, 1);
    assert_true(session_fsm_settled(&b->fsm));
    bench_free(b);
}

static void a_save_that_waits_too_long_for_its_folder_gives_way_to_a_newer_one(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    int index = -1;
    (void)begin_save(b, 10);
    assert_says(b, SAVE_BEGIN);
    pass_ms(b, SESSION_FOLDER_MS - 1);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 20, false, &index), ST_REFUSED);
    pass_ms(b, 1);
    (void)begin_save(b, 20);
    assert_says(b, SAVE_FAILED);
    assert_int_equal(b->out.save_failed.step, 10);
    assert_true(b->out.save_failed.removed);
    assert_says(b, SAVE_BEGIN);
    assert_int_equal(b->out.save_begin.step, 20);
    hear(b, folder_order(10, "/store/10")); /* crossed our message */
    assert_int_equal(session_fsm_saver_work(&b->fsm), -1);
    hear(b, folder_order(20, "/store/20"));
    session_fsm_save_written(&b->fsm, session_fsm_saver_work(&b->fsm), report_of(20));
    hear(b, done_order(20, true));
    assert_true(session_fsm_settled(&b->fsm)); /* of the older one nothing was heard yet */
    hear(b, folder_order(10, ""));
    assert_int_equal(b->fsm.saves[0].state, SESSION_SAVE_FREE);
    assert_int_equal(b->fsm.saves[1].state, SESSION_SAVE_FREE);
    bench_free(b);
}

static void without_a_coordinator_saves_give_way_for_ever_and_nothing_is_left_of_them(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_link_down(&b->fsm, b->now_ms);
    for (uint64_t step = 10; step <= 1000; step += 10)
        (void)begin_save(b, step);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    assert_says(b, READY);
    assert_says(b, SAVE_BEGIN);
    assert_int_equal(b->out.save_begin.step, 1000);
    assert_silent(b);
    bench_free(b);
}

static void with_a_coordinator_that_answers_nothing_there_is_room_for_every_new_save(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    for (uint64_t step = 10; step <= 1000; step += 10) {
        (void)begin_save(b, step);
        while (say_news(b) != NULL)
            ;
        pass_ms(b, SESSION_FOLDER_MS);
    }
    bench_free(b);
}

static void one_slot_holds_one_save(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    int index = -1, other = -1;
    assert_int_equal(session_fsm_save_begin(&b->fsm, 10, false, &index), ST_OK);
    assert_silent(b); /* while it is copied */
    assert_int_equal(session_fsm_save_begin(&b->fsm, 20, false, &other), ST_AGAIN);
    session_fsm_save_copied(&b->fsm, index, true);
    assert_says(b, SAVE_BEGIN);
    hear(b, folder_order(10, "/store"));
    pass_ms(b, SESSION_RUSH_MS);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 20, false, &other), ST_REFUSED);
    const int work = session_fsm_saver_work(&b->fsm);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 20, false, &other), ST_REFUSED);
    session_fsm_save_written(&b->fsm, work, report_of(10));
    assert_int_equal(session_fsm_save_begin(&b->fsm, 10, false, &other), ST_EXISTS);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 20, false, &other), ST_OK);
    session_fsm_save_copied(&b->fsm, other, false);
    assert_says(b, SAVE_REPORT);
    assert_silent(b);
    bench_free(b);
}

static void a_save_waits_unsaid_while_another_is_written_and_one_more_is_late(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 2, 2);
    give_folder(b, 10);
    const int work = session_fsm_saver_work(&b->fsm);
    const int second = begin_save(b, 20); /* training goes on */
    assert_int_not_equal(b->fsm.saves[work].file, b->fsm.saves[second].file);
    assert_silent(b); /* whoever begins a later one has let the earlier one go */
    reconnect(b);
    assert_says(b, READY);
    pass_ms(b, 10 * SESSION_FOLDER_MS); /* of a store that is slow */
    assert_silent(b);
    int index = -1;
    assert_int_equal(session_fsm_save_begin(&b->fsm, 30, false, &index), ST_REFUSED);
    session_fsm_save_late(&b->fsm, 30);
    assert_says(b, SAVE_FAILED);
    assert_int_equal(b->out.save_failed.step, 30);
    assert_true(b->out.save_failed.removed);
    assert_silent(b);
    hear(b, done_order(30, false));
    session_fsm_save_written(&b->fsm, work, report_of(10));
    assert_says(b, SAVE_REPORT);
    assert_says(b, SAVE_BEGIN);
    assert_int_equal(b->out.save_begin.step, 20);
    assert_silent(b);
    bench_free(b);
}

static void saves_of_a_job_in_a_rush_wait_for_each_other(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 2, 2);
    give_folder(b, 10);
    (void)session_fsm_saver_work(&b->fsm);
    (void)begin_save(b, 20);
    int index = -1;
    pass_ms(b, SESSION_RUSH_MS - 1);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 30, false, &index), ST_AGAIN);
    pass_ms(b, 1);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 30, false, &index), ST_REFUSED);
    session_fsm_save_late(&b->fsm, 30);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 40, false, &index), ST_REFUSED); /* at once */
    bench_free(b);
}

static void the_last_save_waits_and_in_the_end_only_for_what_is_written(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 2, 2);
    give_folder(b, 10);
    assert_false(session_fsm_at_store(&b->fsm));
    const int work = session_fsm_saver_work(&b->fsm);
    assert_true(session_fsm_at_store(&b->fsm));
    (void)begin_save(b, 20);
    int index = -1;
    assert_int_equal(session_fsm_save_begin(&b->fsm, 30, true, &index), ST_AGAIN);
    pass_ms(b, SESSION_PATIENCE_MS);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 30, true, &index), ST_OK);
    session_fsm_save_copied(&b->fsm, index, true);
    assert_silent(b);
    session_fsm_save_written(&b->fsm, work, report_of(10));
    assert_false(session_fsm_at_store(&b->fsm));
    assert_says(b, SAVE_REPORT);
    assert_says(b, SAVE_BEGIN);
    assert_int_equal(b->out.save_begin.step, 30);
    bench_free(b);
}

static void a_copy_takes_the_oldest_slot_that_no_save_needs(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 3, 1);
    int files[6] = { -1 };
    for (uint64_t step = 1; step <= 3; step++) {
        assert_int_equal(session_fsm_copy_begin(&b->fsm, step, &files[step]), ST_OK);
        session_fsm_copied(&b->fsm, files[step], true);
    }
    assert_true(files[1] != files[2] && files[2] != files[3] && files[1] != files[3]);
    const int save = begin_save(b, 4);
    assert_int_equal(b->fsm.saves[save].file, files[1]);
    assert_int_equal(session_fsm_copy_begin(&b->fsm, 5, &files[5]), ST_OK);
    assert_int_equal(files[5], files[2]);
    int other = -1, index = -1;
    assert_int_equal(session_fsm_copy_begin(&b->fsm, 6, &other), ST_OK);
    assert_int_equal(other, files[3]);
    assert_int_equal(session_fsm_copy_begin(&b->fsm, 7, &index), ST_AGAIN);
    session_fsm_copied(&b->fsm, files[5], false); /* what failed is the first to go */
    session_fsm_copied(&b->fsm, other, true);
    assert_int_equal(session_fsm_copy_begin(&b->fsm, 7, &index), ST_OK);
    assert_int_equal(index, files[5]);
    pass_ms(b, SESSION_RUSH_MS);
    assert_int_equal(session_fsm_save_begin(&b->fsm, 8, false, &index), ST_REFUSED);
    bench_free(b);
}

static void a_copy_that_is_kept_is_not_overwritten(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    session_fsm_files(&b->fsm, 5, 1);
    assert_int_equal(session_fsm_newest(&b->fsm), -1);
    int file = -1, last = -1;
    for (uint64_t step = 1; step <= 3; step++) {
        assert_int_equal(session_fsm_copy_begin(&b->fsm, step, &file), ST_OK);
        assert_int_equal(session_fsm_newest(&b->fsm), last); /* not yet whole */
        session_fsm_copied(&b->fsm, file, true);
        last = file;
        assert_int_equal(session_fsm_newest(&b->fsm), file);
    }
    const int first = session_fsm_complete_copy(&b->fsm, 1),
              second = session_fsm_complete_copy(&b->fsm, 2);
    assert_true(first >= 0 && second >= 0 && first != second);
    b->fsm.files[first].kept = 1;
    b->fsm.files[second].kept = 1;
    const int save = begin_save(b, 4);
    for (uint64_t step = 5; step <= 20; step++) {
        const int newest = session_fsm_newest(&b->fsm);
        assert_int_equal(session_fsm_copy_begin(&b->fsm, step, &file), ST_OK);
        assert_true(file != first && file != second && file != b->fsm.saves[save].file);
        assert_true(file != newest || step == 5); /* the newest was the save's */
        session_fsm_copied(&b->fsm, file, true);
    }
    assert_int_equal(session_fsm_complete_copy(&b->fsm, 1), first);
    assert_int_equal(session_fsm_complete_copy(&b->fsm, 2), second);
    b->fsm.files[first].kept = 0;
    assert_int_equal(session_fsm_copy_begin(&b->fsm, 21, &file), ST_OK);
    assert_int_equal(file, first);
    assert_int_equal(session_fsm_complete_copy(&b->fsm, 1), -1);
    bench_free(b);
}

static void copies_in_memory_are_a_function_of_the_step(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    struct session_ready ready = ready_of_100;
    ready.memory_every = 3;
    assert_int_equal(session_fsm_ready(&b->fsm, &ready), ST_OK);
    for (uint64_t step = 1; step <= 100; step++) {
        const enum session_due wanted = step % 10 == 0  ? SESSION_DUE_SAVE
                                        : step % 3 == 0 ? SESSION_DUE_COPY
                                                        : SESSION_DUE_NOTHING;
        assert_int_equal(session_fsm_due(&b->fsm, step), wanted);
    }
    bench_free(b);
}

static void a_folder_that_nobody_asked_for_is_declined(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    hear(b, folder_order(50, "/store/50"));
    assert_says(b, SAVE_FAILED);
    assert_int_equal(b->out.save_failed.step, 50);
    assert_true(b->out.save_failed.removed);
    hear(b, folder_order(60, "")); /* nothing is expected of us */
    assert_silent(b);
    assert_true(session_fsm_settled(&b->fsm));
    (void)begin_save(b, 70);
    assert_says(b, SAVE_BEGIN);
    hear(b, folder_order(70, "")); /* no save now */
    assert_true(session_fsm_settled(&b->fsm));
    assert_silent(b);
    bench_free(b);
}

/* ---- which steps are saved ---- */

static void regular_saves_are_a_function_of_the_step(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    for (uint64_t step = 1; step <= 100; step++) {
        const enum session_due due = session_fsm_due(&b->fsm, step);
        assert_int_equal(due, step % 10 == 0 ? SESSION_DUE_SAVE : SESSION_DUE_NOTHING);
    }
    bench_free(b);
    b = bench_new(1);
    struct session_ready ready = { .total_steps = 7, .pins = "" }; /* only the end */
    assert_int_equal(session_fsm_ready(&b->fsm, &ready), ST_OK);
    for (uint64_t step = 1; step <= 7; step++)
        assert_int_equal(session_fsm_due(&b->fsm, step),
                         step == 7 ? SESSION_DUE_SAVE : SESSION_DUE_NOTHING);
    bench_free(b);
}

static void an_announced_save_happens_at_its_step_once(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    hear(b, save_at_order(13, false));
    hear(b, save_at_order(13, false));
    hear(b, save_at_order(17, true));
    hear(b, save_at_order(20, true)); /* regular, too */
    assert_int_equal(session_fsm_due(&b->fsm, 12), SESSION_DUE_NOTHING);
    assert_int_equal(session_fsm_due(&b->fsm, 13), SESSION_DUE_SAVE);
    hear(b, save_at_order(13, false)); /* repeated after it happened */
    assert_int_equal(session_fsm_due(&b->fsm, 14), SESSION_DUE_NOTHING);
    assert_int_equal(session_fsm_due(&b->fsm, 17), SESSION_DUE_SAVE_AND_EXIT);
    assert_int_equal(session_fsm_due(&b->fsm, 20), SESSION_DUE_SAVE_AND_EXIT);
    assert_silent(b);
    bench_free(b);
}

static void a_step_that_is_past_already_is_said_to_be(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    assert_int_equal(session_fsm_due(&b->fsm, 33), SESSION_DUE_NOTHING);
    hear(b, save_at_order(33, false)); /* just missed */
    assert_says(b, SAVE_PASSED);
    assert_int_equal(b->out.passed.step, 33);
    assert_int_equal(b->out.passed.at, 33);
    assert_silent(b);
    hear(b, save_at_order(33, false)); /* it did not hear */
    assert_says(b, SAVE_PASSED);
    reconnect(b);
    assert_says(b, READY);
    assert_says(b, SAVE_PASSED);
    hear(b, done_order(33, false));
    reconnect(b);
    assert_says(b, READY);
    assert_silent(b);
    assert_int_equal(session_fsm_due(&b->fsm, 40), SESSION_DUE_SAVE);
    hear(b, save_at_order(40, false)); /* saved as a regular one */
    assert_silent(b);
    hear(b, save_at_order(40, true)); /* but we did not leave */
    assert_says(b, SAVE_PASSED);
    bench_free(b);
}

static void the_last_step_is_never_past(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    assert_int_equal(session_fsm_due(&b->fsm, 100), SESSION_DUE_SAVE);
    hear(b, save_at_order(100, true)); /* a pause that comes late: what it wants happens anyway */
    assert_silent(b);
    bench_free(b);
}

static void saves_announced_before_the_plan_are_kept_and_old_ones_are_past(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    assert_int_equal(session_fsm_hello(&b->fsm, ""), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_says(b, HELLO);
    hear_plan(b, 1, 4, 25);
    hear(b, save_at_order(15, false));
    struct session_ready ready = ready_of_100;
    ready.step = 20; /* restored */
    assert_int_equal(session_fsm_ready(&b->fsm, &ready), ST_OK);
    assert_says(b, READY);
    assert_says(b, SAVE_PASSED);
    assert_int_equal(b->out.passed.step, 15);
    assert_int_equal(session_fsm_due(&b->fsm, 25), SESSION_DUE_SAVE);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_is_committed_wherever_the_link_is_lost_and_whatever_is_said_twice),
        cmocka_unit_test(a_report_is_repeated_until_the_save_is_decided),
        cmocka_unit_test(a_dropped_save_is_removed_and_that_is_said_once),
        cmocka_unit_test(a_save_that_is_dropped_while_it_is_written_is_removed_when_it_is),
        cmocka_unit_test(a_failed_save_is_told_and_can_be_made_again),
        cmocka_unit_test(a_failure_that_nobody_answers_is_forgotten),
        cmocka_unit_test(a_save_that_waits_too_long_for_its_folder_gives_way_to_a_newer_one),
        cmocka_unit_test(without_a_coordinator_saves_give_way_for_ever_and_nothing_is_left_of_them),
        cmocka_unit_test(with_a_coordinator_that_answers_nothing_there_is_room_for_every_new_save),
        cmocka_unit_test(one_slot_holds_one_save),
        cmocka_unit_test(a_save_waits_unsaid_while_another_is_written_and_one_more_is_late),
        cmocka_unit_test(saves_of_a_job_in_a_rush_wait_for_each_other),
        cmocka_unit_test(the_last_save_waits_and_in_the_end_only_for_what_is_written),
        cmocka_unit_test(a_copy_takes_the_oldest_slot_that_no_save_needs),
        cmocka_unit_test(a_copy_that_is_kept_is_not_overwritten),
        cmocka_unit_test(copies_in_memory_are_a_function_of_the_step),
        cmocka_unit_test(a_folder_that_nobody_asked_for_is_declined),
        cmocka_unit_test(regular_saves_are_a_function_of_the_step),
        cmocka_unit_test(an_announced_save_happens_at_its_step_once),
        cmocka_unit_test(a_step_that_is_past_already_is_said_to_be),
        cmocka_unit_test(the_last_step_is_never_past),
        cmocka_unit_test(saves_announced_before_the_plan_are_kept_and_old_ones_are_past),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
