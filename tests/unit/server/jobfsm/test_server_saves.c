/* Saves and checkpoints in the job's state machine: the commit protocol, its failures, retention.
 */
#include <string.h>

#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

static size_t row(const struct bench *b, enum fsm_save_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < b->out.count; i++) {
        const struct fsm_action *act = &b->out.list[i];
        count += act->kind == FSM_ACT_SAVE_ROW && act->save_state == state;
    }
    return count;
}

/* ---- the protocol ---- */

static void the_folder_is_made_before_anybody_is_told_where(void **state)
{
    struct bench *b = *state;
    bench_begin(b, 0, 50);
    assert_non_null(bench_task(b, FSM_TASK_FOLDER));
    assert_null(bench_act(b, FSM_ACT_SEND_FOLDER, 0));
    bench_store(b, FSM_TASK_FOLDER, 50, 1, ST_OK);
    assert_int_equal(row(b, FSM_SAVE_COLLECTING), 1);
    const struct fsm_action *told = bench_act(b, FSM_ACT_SEND_FOLDER, 0);
    assert_non_null(told);
    assert_true(told->there);
    bench_begin(b, 1, 50); /* a late one is answered at once */
    told = bench_act(b, FSM_ACT_SEND_FOLDER, 0);
    assert_non_null(told);
    assert_int_equal(told->rank, 1);
}

static void a_report_is_journalled_once_and_nothing_is_answered_until_it_is_decided(void **state)
{
    struct bench *b = *state;
    bench_begin(b, 0, 50);
    bench_store(b, FSM_TASK_FOLDER, 50, 1, ST_OK);
    bench_report(b, 0, 50);
    assert_int_equal(bench_count(b, FSM_ACT_REPORT_ROW), 1);
    assert_int_equal(b->out.count, 1);
    bench_report(b, 0, 50); /* said again */
    assert_int_equal(b->out.count, 0);
    bench_report(b, 1, 50);
    assert_int_equal(bench_count(b, FSM_ACT_REPORT_ROW), 1);
    assert_non_null(bench_task(b, FSM_TASK_CHECK));
    bench_report(b, 0, 50);
    assert_int_equal(b->out.count, 0);
    bench_store(b, FSM_TASK_CHECK, 50, 1, ST_OK);
    bench_report(b, 0, 50);
    assert_int_equal(b->out.count, 0);
}

static void the_record_decides_and_only_publishing_acknowledges(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_CHECKING);
    assert_non_null(bench_task(b, FSM_TASK_CHECK));
    assert_null(bench_act(b, FSM_ACT_SEND_DONE, 0));
    bench_store(b, FSM_TASK_CHECK, 50, 1, ST_OK);
    assert_int_equal(row(b, FSM_SAVE_COMMITTING), 1);
    assert_non_null(bench_task(b, FSM_TASK_PUBLISH));
    assert_null(bench_act(b, FSM_ACT_SEND_DONE, 0));
    assert_null(fsm_newest(&b->m));
    bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_OK);
    const struct fsm_action *done = bench_act(b, FSM_ACT_SEND_DONE, 0);
    assert_non_null(done);
    assert_true(done->committed);
    assert_int_equal(fsm_newest(&b->m)->step, 50);
}

static void report_times(struct bench *b, uint32_t rank, const struct fsm_save_times *times)
{
    struct fsm_event report = {
        .kind = FSM_EV_SAVE_REPORT,
        .generation = 1,
        .rank = rank,
        .save_report = { .step = 50, .write_ms = 40 - rank, .times = *times },
    };
    assert_int_equal(bench_apply(b, report), ST_OK);
}

static void a_checkpoint_and_its_event_tell_what_it_took(void **state)
{
    struct bench *b = *state;
    static const struct fsm_save_times first = { 1500, 80000, 30000, 200, 0, 0 };
    static const struct fsm_save_times second = { 900, 70000, 31000, 100, 0, 0 };
    bench_save_until(b, 50, FSM_SAVE_COLLECTING);
    report_times(b, 0, &first);
    report_times(b, 0, &first); /* repeated: counted once */
    report_times(b, 1, &second);
    b->now += 12;
    bench_store(b, FSM_TASK_CHECK, 50, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_OK);
    const struct fsm_save_times *times = &fsm_newest(&b->m)->times;
    assert_int_equal(times->stall_us, 1500);
    assert_int_equal(times->encode_us, 150000);
    assert_int_equal(times->io_us, 31000);
    assert_int_equal(times->sync_us, 200);
    assert_int_equal(times->save_us, 40000);
    assert_int_equal(times->commit_us, 12000);
    assert_non_null(bench_told(b, "saved"));
    const char *took = strchr(bench_told(b, "saved"), ';');
    assert_non_null(took);
    assert_string_equal(took, "; the step waited 1.5 ms, saving took 150.0 ms of processor time, "
                              "writing 31.0 ms, syncing 0.2, committing 12");
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_STALL], 1); /* of the slowest rank */
    for (int i = 0; i < 5; i++)
        fsm_note_stall(&b->m, 300); /* shorter than a millisecond each */
    assert_int_equal(b->m.accounts.lost_ms[FSM_LOST_STALL], 3);
}

static void publishing_is_repeated_until_it_succeeds(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COMMITTING);
    for (int i = 0; i < 5; i++) {
        bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_IO);
        assert_null(bench_act(b, FSM_ACT_SEND_DONE, 0));
        for (int t = 0; t < 100 && bench_task(b, FSM_TASK_PUBLISH) == NULL; t++) {
            b->now += 900;
            bench_progress(b, 0, 50, "forward");
            if (bench_task(b, FSM_TASK_PUBLISH) == NULL)
                bench_progress(b, 1, 50, "forward");
        }
        assert_non_null(bench_task(b, FSM_TASK_PUBLISH));
    }
    bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_OK);
    assert_int_equal(fsm_newest(&b->m)->step, 50);
}

static void a_decided_save_whose_folder_stays_gone_is_dropped(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COMMITTING);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    int tries = 0;
    for (; tries < 20 && bench_task(b, FSM_TASK_DROP) == NULL; tries++) {
        assert_false(fsm_wants_slots(&b->m, b->now));
        bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_NOT_FOUND);
        if (bench_task(b, FSM_TASK_DROP) == NULL)
            bench_tick(b, 30000);
    }
    assert_in_range(tries, 3, 10); /* it may come back */
    bench_store(b, FSM_TASK_DROP, 50, 1, ST_OK);
    bench_place(b);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.restore.step, 0);
}

static void a_decided_save_is_published_whatever_becomes_of_the_generation(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COMMITTING);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_is_state(b, "RECOVERING");
    assert_false(fsm_wants_slots(&b->m, b->now)); /* the next one starts from it */
    bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_OK);
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_place(b);
    assert_int_equal(b->m.restore.step, 50);
}

static void reports_from_last_words_complete_a_save_of_a_dead_generation(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 50);
    bench_report(b, 0, 50); /* the core takes it from the words before the exit */
    assert_int_equal(b->out.count, 0);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_report(b, 1, 50);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_store(b, FSM_TASK_CHECK, 50, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, 50, 1, ST_OK);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 50);
}

/* The reports crossed the answer, or are in last words. */
static void reports_of_what_is_decided_are_answered_and_change_nothing(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    bench_save_until(b, 60, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 60);
    bench_save_fails(b, 1, 60);
    for (uint64_t step = 50; step <= 60; step += 10) {
        bench_report(b, 0, step);
        assert_int_equal(b->out.count, 1);
        const struct fsm_action *done = bench_act(b, FSM_ACT_SEND_DONE, 0);
        assert_non_null(done);
        assert_int_equal(done->committed, step == 50);
    }
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_store(b, FSM_TASK_DROP, 60, 1, ST_OK);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 50);
}

static void an_incomplete_save_of_a_dead_generation_is_removed(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 50);
    bench_exit(b, 1, FSM_EXIT_SIGNAL, 9);
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    assert_non_null(bench_task(b, FSM_TASK_DROP));
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_store(b, FSM_TASK_DROP, 50, 1, ST_OK);
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_place(b);
    assert_int_equal(b->m.restore.step, 0);
    assert_int_equal(b->m.generation, 2);
}

/* ---- failures of a save ---- */

static void a_killed_job_removes_a_folder_that_came_too_late(void **state)
{
    struct bench *b = *state;
    bench_begin(b, 0, 50);
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "KILLED");
    bench_store(b, FSM_TASK_FOLDER, 50, 1, ST_OK);
    assert_int_equal(bench_task(b, FSM_TASK_DROP)->step, 50);
    assert_null(bench_task(b, FSM_TASK_SWEEP));
    bench_store(b, FSM_TASK_DROP, 50, 1, ST_OK);
    assert_null(fsm_find_ckpt(&b->m, 50, 1));
    assert_int_equal(row(b, FSM_SAVE_FREE), 1);
    assert_non_null(bench_task(b, FSM_TASK_SWEEP));
}

static void what_an_ended_job_was_to_remove_goes_after_a_restart(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_all_exit(b);
    static const struct fsm_save rows[] = {
        { .state = FSM_SAVE_DROPPING, .step = 50, .generation = 1 },
        { .state = FSM_SAVE_COLLECTING, .step = 60, .generation = 1 },
    };
    for (int i = 0; i < 2; i++)
        fsm_load_save(&b->m, &rows[i]);
    fsm_resume(&b->m, b->now, b->now, &b->out);
    assert_int_equal(bench_tasks(b, FSM_TASK_DROP), 2);
}

static void a_failed_save_is_dropped_by_all_and_its_folder_removed(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 50);
    bench_save_fails(b, 1, 50);
    const struct fsm_action *done = bench_act(b, FSM_ACT_SEND_DONE, 0);
    assert_non_null(done);
    assert_false(done->committed);
    assert_int_equal(done->rank, FSM_ALL_RANKS);
    assert_null(bench_task(b, FSM_TASK_DROP)); /* rank 0 has a file there */
    bench_save_fails(b, 0, 50);                /* "removed" */
    assert_non_null(bench_task(b, FSM_TASK_DROP));
    bench_store(b, FSM_TASK_DROP, 50, 1, ST_OK);
    bench_is_state(b, "RUNNING");
    bench_commit(b, 100); /* the next one works */
    assert_int_equal(fsm_newest(&b->m)->step, 100);
}

static void a_full_store_at_the_last_save_waits_and_tries_again(void **state)
{
    struct bench *b = *state;
    bench_run(b, 1000);
    for (uint32_t i = 0; i < 2; i++) {
        bench_progress(b, i, 1000, "forward");
        bench_begin(b, i, 1000);
    }
    bench_is_state(b, "SAVING");
    bench_store(b, FSM_TASK_FOLDER, 1000, 1, ST_FULL);
    assert_non_null(strstr(b->m.reason, "waits to save step 1000"));
    bench_store(b, FSM_TASK_DROP, 1000, 1, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_begin(b, i, 1000); /* workers try again by themselves */
    for (int t = 0; t < 20 && bench_task(b, FSM_TASK_FOLDER) == NULL; t++)
        bench_tick(b, 100);
    assert_non_null(bench_task(b, FSM_TASK_FOLDER));
    bench_store(b, FSM_TASK_FOLDER, 1000, 1, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_report(b, i, 1000);
    bench_store(b, FSM_TASK_CHECK, 1000, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, 1000, 1, ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "SUCCEEDED");
}

static void files_that_do_not_match_their_reports_never_commit(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_CHECKING);
    bench_store(b, FSM_TASK_CHECK, 50, 1, ST_INCOMPLETE);
    assert_int_equal(row(b, FSM_SAVE_COMMITTING), 0);
    assert_null(bench_task(b, FSM_TASK_PUBLISH));
    assert_int_equal(row(b, FSM_SAVE_DROPPING), 1);
}

static void whoever_begins_a_later_save_gives_up_the_earlier(void **state)
{
    struct bench *b = *state;
    bench_begin(b, 0, 50);
    bench_store(b, FSM_TASK_FOLDER, 50, 1, ST_OK);
    bench_report(b, 0, 50);
    bench_begin(b, 0, 60); /* it reported: rank 1 may still write */
    assert_int_equal(row(b, FSM_SAVE_DROPPING), 0);
    bench_begin(b, 1, 60); /* it never will */
    assert_int_equal(row(b, FSM_SAVE_DROPPING), 1);
    bench_save_fails(b, 0, 50); /* "removed" */
    assert_int_equal(bench_task(b, FSM_TASK_DROP)->step, 50);
}

static void who_goes_on_before_there_is_a_folder_is_told_too(void **state)
{
    struct bench *b = *state;
    bench_begin(b, 0, 50);
    bench_begin(b, 1, 50);
    bench_begin(b, 0, 60);
    const struct fsm_action *all = bench_act(b, FSM_ACT_SEND_FOLDER, 0);
    const struct fsm_action *own = bench_act(b, FSM_ACT_SEND_FOLDER, 1);
    assert_true(all != NULL && all->step == 50 && all->rank == FSM_ALL_RANKS && !all->there);
    assert_true(own != NULL && own->step == 50 && own->rank == 0 && !own->there);
}

static void a_save_that_one_is_late_for_is_given_up_by_all_at_once(void **state)
{
    struct bench *b = *state;
    bench_save_fails(b, 1, 50); /* before anybody began it */
    assert_true(bench_event(b, "save-dropped"));
    const struct fsm_action *told = bench_act(b, FSM_ACT_SEND_DONE, 0);
    assert_non_null(told);
    assert_int_equal(told->rank, FSM_ALL_RANKS);
    assert_false(told->committed);
    bench_begin(b, 0, 50); /* crossed it */
    assert_null(bench_task(b, FSM_TASK_FOLDER));
    told = bench_act(b, FSM_ACT_SEND_FOLDER, 0);
    assert_non_null(told);
    assert_false(told->there);
    bench_commit(b, 60);
    assert_int_equal(fsm_newest(&b->m)->step, 60);
    bench_save_fails(b, 1, 60); /* of what is committed nothing is given up */
    assert_null(bench_act(b, FSM_ACT_SEND_DONE, 0));
    bench_save_fails(b, 1, 60);
    assert_false(bench_event(b, "save-dropped")); /* told once, until one is saved */
}

static void a_report_of_a_save_that_nobody_knows_is_refused(void **state)
{
    struct bench *b = *state;
    bench_report(b, 0, 70);
    const struct fsm_action *done = bench_act(b, FSM_ACT_SEND_DONE, 0);
    assert_non_null(done);
    assert_false(done->committed);
    assert_int_equal(b->out.count, 1);
}

static void a_worker_that_comes_back_hears_what_became_of_its_saves(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 50);
    bench_attach(b, 1, 51);
    const struct fsm_action *done = bench_act(b, FSM_ACT_SEND_DONE, 0);
    assert_non_null(done);
    assert_true(done->committed);
    assert_int_equal(done->step, 50);
    assert_int_equal(done->rank, 1);
}

static void a_restart_goes_on_with_what_was_decided_or_complete(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 50, FSM_SAVE_COMMITTING);
    bench_save_until(b, 60, FSM_SAVE_CHECKING);
    bench_save_until(b, 70, FSM_SAVE_COLLECTING);
    bench_report(b, 0, 70);
    bench_restart(b, 0);
    assert_int_equal(bench_tasks(b, FSM_TASK_PUBLISH), 1);
    assert_int_equal(bench_task(b, FSM_TASK_PUBLISH)->step, 50);
    assert_int_equal(bench_tasks(b, FSM_TASK_CHECK), 1);
    assert_int_equal(bench_task(b, FSM_TASK_CHECK)->step, 60);
}

/* ---- retention ---- */

static void older_ones_go_only_after_the_newest_was_read_back(void **state)
{
    struct bench *b = *state;
    for (uint64_t step = 10; step <= 30; step += 10) {
        bench_commit(b, step);
        assert_null(bench_act(b, FSM_ACT_READ_BACK, 0)); /* keep.last is 3 */
    }
    bench_commit(b, 40);
    const struct fsm_action *read = bench_act(b, FSM_ACT_READ_BACK, 0);
    assert_non_null(read);
    assert_int_equal(read->step, 40);
    bench_read(b, 0, 40, 1, ST_OK);
    assert_null(bench_task(b, FSM_TASK_REMOVE));
    bench_read(b, 1, 40, 1, ST_OK);
    const struct fsm_action *gone = bench_task(b, FSM_TASK_REMOVE);
    assert_non_null(gone);
    assert_int_equal(gone->step, 10);
    assert_int_equal(bench_tasks(b, FSM_TASK_REMOVE), 1);
    bench_store(b, FSM_TASK_REMOVE, 10, 1, ST_OK);
    assert_int_equal(b->m.catalog_count, 3);
    assert_int_equal(b->m.catalog[0].step, 20);
    assert_int_equal(b->m.catalog[2].step, 40);
}

static void a_newest_that_does_not_read_well_saves_the_older_ones(void **state)
{
    struct bench *b = *state;
    for (uint64_t step = 10; step <= 40; step += 10)
        bench_commit(b, step);
    bench_store(b, FSM_TASK_VERIFY, 40, 1, ST_CORRUPT);
    assert_null(bench_task(b, FSM_TASK_REMOVE));
    assert_non_null(bench_task(b, FSM_TASK_QUARANTINE));
    assert_true(bench_event(b, "damaged"));
    assert_non_null(bench_act(b, FSM_ACT_SAVE_AT, 0)); /* a good one, soon */
    assert_int_equal(fsm_newest(&b->m)->step, 30);
}

static void the_newest_of_a_live_job_is_not_removed_for_a_user(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    bench_commit(b, 20);
    assert_int_equal(bench_remove(b, 20), ST_REFUSED);
    assert_int_equal(bench_remove(b, 15), ST_NOT_FOUND);
    assert_int_equal(bench_remove(b, 10), ST_OK);
    assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, 10);
}

/* ---- damage ---- */

/* A generation that found its checkpoint damaged, all its workers gone. */
static void report_damage(struct bench *b)
{
    bench_exit(b, 0, FSM_EXIT_SIGNAL, 9);
    bench_all_exit(b);
    bench_place(b);
    bench_hello(b, 0);
    bench_hello(b, 1);
    bench_fault(b, 1, FSM_FAULT_DAMAGE, 0);
}

static void damage_is_read_here_before_the_next_generation(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    bench_commit(b, 20);
    report_damage(b);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->step, 20);
    bench_all_exit(b);
    bench_tick(b, 5000);
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_CORRUPT);
    assert_int_equal(bench_task(b, FSM_TASK_QUARANTINE)->step, 20);
    assert_true(fsm_wants_slots(&b->m, b->now)); /* it waits for no more than the decision */
    bench_place(b);
    bench_store(b, FSM_TASK_QUARANTINE, 20, 1, ST_OK);
    assert_int_equal(b->m.restore.step, 10);
}

static void a_newer_one_that_leans_on_nothing_suspected_is_restored_at_once(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    report_damage(b);
    bench_all_exit(b);
    assert_false(fsm_wants_slots(&b->m, b->now));
    struct fsm_ckpt newer = { .step = 20, .generation = 1, .shards = 2, .state = FSM_CKPT_GOOD };
    assert_int_equal(fsm_add_ckpt(&b->m, &newer), ST_OK); /* decided before, published now */
    bench_tick(b, 5000);
    assert_true(fsm_wants_slots(&b->m, b->now));
    bench_place(b);
    assert_int_equal(b->m.restore.step, 20);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_OK); /* says nothing about anybody now */
    assert_int_equal(b->m.suspect_count, 0);
}

/* cairnd went back to an earlier version: the job waits for the later one. */
static void a_checkpoint_of_a_later_version_is_waited_for_not_set_aside(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    report_damage(b);
    bench_all_exit(b);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_VERSION);
    assert_null(bench_task(b, FSM_TASK_QUARANTINE));
    assert_int_equal(fsm_newest(&b->m)->step, 10);
    assert_non_null(strstr(b->m.reason, "waits for a build that reads it"));
    assert_false(fsm_wants_slots(&b->m, b->now));
    bench_tick(b, 5000);
    assert_int_equal(bench_task(b, FSM_TASK_VERIFY)->step, 10); /* asked again */
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_OK);
    bench_tick(b, 5000);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 10);
}

static void with_no_good_one_left_training_starts_again_with_an_event(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    report_damage(b);
    bench_all_exit(b);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_INCOMPLETE);
    assert_true(bench_event(b, "restart"));
    bench_store(b, FSM_TASK_QUARANTINE, 10, 1, ST_OK);
    bench_tick(b, 5000);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 0);
    assert_int_equal(b->m.restore.generation, 0);
}

static void a_checkpoint_that_reads_well_here_stays(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    report_damage(b);
    bench_all_exit(b);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_OK);
    assert_null(bench_task(b, FSM_TASK_QUARANTINE));
    assert_true(bench_event(b, "verified"));
    assert_int_equal(b->m.suspect_count, 1);
    assert_string_equal(b->m.suspects[0], "node");
    bench_tick(b, 5000);
    bench_place(b);
    assert_int_equal(b->m.restore.step, 10);
}

static void a_failing_medium_is_no_damage(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    report_damage(b);
    bench_all_exit(b);
    bench_store(b, FSM_TASK_VERIFY, 10, 1, ST_TIMED_OUT);
    assert_null(bench_task(b, FSM_TASK_QUARANTINE));
    for (int t = 0; t < 20 && bench_task(b, FSM_TASK_VERIFY) == NULL; t++)
        bench_tick(b, 500);
    assert_non_null(bench_task(b, FSM_TASK_VERIFY)); /* asked again */
}

#define TEST(name)        cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)
#define TEST_QUEUED(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_folder_is_made_before_anybody_is_told_where),
        TEST(a_report_is_journalled_once_and_nothing_is_answered_until_it_is_decided),
        TEST(the_record_decides_and_only_publishing_acknowledges),
        TEST(a_checkpoint_and_its_event_tell_what_it_took),
        TEST(publishing_is_repeated_until_it_succeeds),
        TEST(a_decided_save_whose_folder_stays_gone_is_dropped),
        TEST(a_decided_save_is_published_whatever_becomes_of_the_generation),
        TEST(reports_from_last_words_complete_a_save_of_a_dead_generation),
        TEST(reports_of_what_is_decided_are_answered_and_change_nothing),
        TEST(an_incomplete_save_of_a_dead_generation_is_removed),
        TEST(a_killed_job_removes_a_folder_that_came_too_late),
        TEST(what_an_ended_job_was_to_remove_goes_after_a_restart),
        TEST(a_failed_save_is_dropped_by_all_and_its_folder_removed),
        TEST_QUEUED(a_full_store_at_the_last_save_waits_and_tries_again),
        TEST(files_that_do_not_match_their_reports_never_commit),
        TEST(whoever_begins_a_later_save_gives_up_the_earlier),
        TEST(who_goes_on_before_there_is_a_folder_is_told_too),
        TEST(a_save_that_one_is_late_for_is_given_up_by_all_at_once),
        TEST(a_report_of_a_save_that_nobody_knows_is_refused),
        TEST(a_worker_that_comes_back_hears_what_became_of_its_saves),
        TEST(a_restart_goes_on_with_what_was_decided_or_complete),
        TEST(older_ones_go_only_after_the_newest_was_read_back),
        TEST(a_newest_that_does_not_read_well_saves_the_older_ones),
        TEST(the_newest_of_a_live_job_is_not_removed_for_a_user),
        TEST(damage_is_read_here_before_the_next_generation),
        TEST(a_checkpoint_of_a_later_version_is_waited_for_not_set_aside),
        TEST(a_newer_one_that_leans_on_nothing_suspected_is_restored_at_once),
        TEST(with_no_good_one_left_training_starts_again_with_an_event),
        TEST(a_checkpoint_that_reads_well_here_stays),
        TEST(a_failing_medium_is_no_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
