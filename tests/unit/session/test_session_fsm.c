/* The session's state machine but for saves, against scripted orders: no thread, no clock. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/session/session_bench.h"

/* ---- joining ---- */

static void hello_comes_first_and_says_whether_the_plan_is_known(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    session_fsm_link_up(&b->fsm);
    assert_null(say(b)); /* nobody has joined yet */
    assert_int_equal(session_fsm_hello(&b->fsm, "pins"), ST_OK);
    assert_says(b, HELLO);
    assert_string_equal(b->out.hello.job, JOB);
    assert_int_equal(b->out.hello.generation, 7);
    assert_int_equal(b->out.hello.rank, 1);
    assert_int_equal(b->out.hello.pid, 4711);
    assert_string_equal(b->out.hello.pins, "pins");
    assert_false(b->out.hello.attached);
    reconnect(b);
    assert_false(b->out.hello.attached);
    hear_plan(b, 1, 4, 0);
    b->progress.step = 12;
    reconnect(b);
    assert_true(b->out.hello.attached);
    assert_int_equal(b->out.hello.step, 12);
    bench_free(b);
}

static void a_message_that_was_not_taken_is_offered_again(void **state)
{
    (void)state;
    struct bench *b = bench_new(1);
    assert_int_equal(session_fsm_hello(&b->fsm, "pins"), ST_OK);
    session_fsm_link_up(&b->fsm);
    assert_true(session_fsm_next(&b->fsm, &b->progress, b->now_ms, &b->out));
    assert_int_equal(b->out.kind, SESSION_OUT_HELLO);
    assert_says(b, HELLO);
    bench_free(b);
}

static void a_plan_is_checked_before_it_is_used(void **state)
{
    (void)state;
    struct session_assignment assignment;
    struct bench *b = bench_new(1);
    hear_plan(b, 1, 4, 0);
    assert_int_equal(session_fsm_assignment(&b->fsm, &assignment), ST_OK);
    assert_int_equal(assignment.size, 4);
    assert_int_equal(assignment.shares[3], 4);
    bench_free(b);
    b = bench_new(1);
    hear_plan(b, 1, 1, 0); /* no such rank in it */
    assert_int_equal(session_fsm_assignment(&b->fsm, &assignment), ST_INVALID);
    bench_free(b);
}

static void ready_is_said_again_on_every_connection(void **state)
{
    (void)state;
    struct bench *b = trained(1, 30);
    for (int i = 0; i < 3; i++) {
        reconnect(b);
        assert_says(b, READY);
        assert_int_equal(b->out.ready.total_steps, 100);
        assert_int_equal(b->out.ready.step, 30);
        assert_string_equal(b->out.ready.pins, ready_of_100.pins);
        assert_silent(b);
    }
    bench_free(b);
}

static void progress_is_told_twice_a_second_while_it_changes_and_once_while_not(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    int changing = 0, still = 0;
    for (int i = 0; i < 100; i++) {
        b->now_ms += 100;
        b->progress.counter++;
        changing += say(b) != NULL;
    }
    for (int i = 0; i < 100; i++) {
        b->now_ms += 100;
        still += say(b) != NULL;
    }
    assert_int_equal(changing, 20);
    assert_in_range(still, 10, 11);
    b->now_ms += SESSION_HEARTBEAT_MS;
    assert_non_null(say(b));
    b->progress.saving++; /* of the saver alone */
    b->now_ms += SESSION_HEARTBEAT_MS / 2;
    assert_non_null(say(b));
    assert_int_equal(b->out.progress_message.saving, 1);
    assert_string_equal(b->out.progress_message.collective, ""); /* they aren't told */
    bench_free(b);
}

static void where_it_is_among_the_collectives_is_told_as_soon_as_any_progress(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    b->progress.collective = "reduce";
    b->now_ms += SESSION_HEARTBEAT_MS;
    assert_non_null(say(b));
    b->progress.collectives = 7;
    b->now_ms += SESSION_HEARTBEAT_MS / 2;
    assert_non_null(say(b));
    assert_int_equal(b->out.progress_message.collectives, 7);
    assert_string_equal(b->out.progress_message.collective, "reduce");
    b->progress.exchanges = 9;
    b->now_ms += SESSION_HEARTBEAT_MS / 2;
    assert_non_null(say(b));
    assert_int_equal(b->out.progress_message.exchanges, 9);
    b->now_ms += SESSION_HEARTBEAT_MS / 2;
    assert_null(say(b));
    bench_free(b);
}

/* ---- rows ---- */

static void rows_go_in_company_and_are_kept_until_acknowledged(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    add_rows(b, 1, 3);
    b->now_ms += SESSION_ROWS_MS;
    assert_says(b, METRICS);
    assert_int_equal(b->out.rows.n_rows, 3);
    assert_int_equal(b->out.rows.rows[2]->step, 3);
    assert_int_equal(b->out.rows.rows[1]->eval->correct, 2);
    assert_string_equal(b->out.rows.rows[0]->phases[0]->name, "forward");
    assert_silent(b);
    assert_int_equal(b->fsm.row_known, 0);
    hear(b, metric_ack_order(1));
    assert_int_equal(b->fsm.row_known, 1);
    add_rows(b, 4, 100);
    reconnect(b);
    assert_says(b, READY);
    assert_says(b, METRICS); /* all that is unacknowledged again */
    assert_int_equal(b->out.rows.n_rows, SESSION_ROWS_PER_SEND);
    assert_int_equal(b->out.rows.rows[0]->step, 2);
    b->now_ms += SESSION_ROWS_MS;
    assert_says(b, METRICS);
    assert_int_equal(b->out.rows.rows[b->out.rows.n_rows - 1]->step, 100);
    hear(b, metric_ack_order(100));
    reconnect(b);
    assert_says(b, READY);
    assert_silent(b);
    bench_free(b);
}

static void the_oldest_rows_go_when_nobody_takes_them(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    add_rows(b, 1, LIMIT_METRIC_ROWS + 10);
    uint64_t next = 11, messages = 0;
    for (; say_news(b) != NULL; messages++) {
        for (size_t i = 0; i < b->out.rows.n_rows; i++)
            assert_int_equal(b->out.rows.rows[i]->step, next++);
    }
    assert_int_equal(messages, LIMIT_METRIC_ROWS / SESSION_ROWS_PER_SEND);
    assert_int_equal(next, LIMIT_METRIC_ROWS + 11);
    bench_free(b);
}

static void rows_of_a_step_are_told_before_its_save(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    add_rows(b, 1, 1);
    assert_says(b, METRICS);
    add_rows(b, 2, 10); /* wait for company */
    assert_silent(b);
    (void)begin_save(b, 10);
    assert_says(b, METRICS);
    assert_says(b, SAVE_BEGIN);
    bench_free(b);
}

/* ---- rendezvous ---- */

/* Comes to a round of three ranks, with items of two bytes. */
static const struct session_rendezvous_round *come(struct bench *b, const char *name)
{
    const struct rendezvous_part mine = {
        .common = "me", .common_size = 2, .items = "aabbcc", .item_size = 2
    };
    const struct session_rendezvous_round *round = NULL;
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, name, &mine, 3, &round), ST_OK);
    return round;
}

static void an_answer_finds_its_meeting_and_only_the_first_counts(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    struct rendezvous_got got[3];
    const struct session_rendezvous_round *one = come(b, "one"), *two = come(b, "two");
    assert_ptr_equal(come(b, "one"), one);
    assert_says(b, JOIN);
    assert_string_equal(b->out.join.name, "one");
    assert_int_equal(b->out.join.common.len, 2);
    assert_int_equal(b->out.join.items.len, 6);
    assert_memory_equal(b->out.join.items.data, "aabbcc", 6);
    assert_false(b->out.join.answered);
    assert_says(b, JOIN);
    assert_string_equal(b->out.join.name, "two");
    assert_silent(b);
    hear(b, joined_order("three", ST_OK, 3, "", ""));
    hear(b, joined_order("two", ST_OK, 3, "host", "xxyyzz"));
    hear(b, joined_order("two", ST_INVALID, 0, "", ""));
    assert_false(one->answered);
    assert_true(two->answered);
    assert_int_equal(session_fsm_rendezvous_result(two, got), ST_OK);
    assert_int_equal(got[2].common_size, 4);
    assert_memory_equal(got[2].common, "host", 4);
    assert_memory_equal(got[1].item, "yy", 2);
    hear(b, joined_order("one", ST_OK, 3, "host", "xxyyz"));
    assert_int_equal(session_fsm_rendezvous_result(one, got), ST_INVALID);
    bench_free(b);
}

/* Also what is answered: a coordinator that was restarted needs it for the others. */
static void what_was_brought_is_said_on_every_connection(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    (void)come(b, "one");
    (void)come(b, "two");
    assert_says(b, JOIN);
    reconnect(b);
    assert_says(b, JOIN);
    assert_says(b, JOIN);
    hear(b, joined_order("one", ST_OK, 3, "host", "xxyyzz"));
    reconnect(b);
    assert_says(b, JOIN);
    assert_string_equal(b->out.join.name, "one");
    assert_true(b->out.join.answered);
    assert_says(b, JOIN);
    assert_false(b->out.join.answered);
    bench_free(b);
}

static void meetings_have_bounds(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    struct rendezvous_got got[3];
    const struct session_rendezvous_round *round = NULL;
    const struct rendezvous_part nothing = { 0 };
    const struct rendezvous_part common = { .common_size = RENDEZVOUS_COMMON_MAX + 1 };
    const struct rendezvous_part item = { .item_size = RENDEZVOUS_ITEM_MAX + 1 };
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &common, 3, &round), ST_INVALID);
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &item, 3, &round), ST_INVALID);
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &nothing, 0, &round), ST_INVALID);
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &nothing, LIMIT_RANKS + 1, &round),
                     ST_INVALID);
    assert_int_equal(session_fsm_rendezvous_join(
                         &b->fsm, "a name that is longer than a name may be", &nothing, 3, &round),
                     ST_INVALID);
    for (int i = 0; i < RENDEZVOUS_ROUNDS; i++) {
        const char name[] = { (char)('a' + i), '\0' };
        assert_int_equal(session_fsm_rendezvous_join(&b->fsm, name, &nothing, 3, &round), ST_OK);
        assert_says(b, JOIN);
    }
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "z", &nothing, 3, &round), ST_FULL);
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &nothing, 3, &round), ST_OK);
    hear(b, joined_order("a", ST_FULL, 0, "", "")); /* refused */
    assert_int_equal(session_fsm_rendezvous_result(round, got), ST_FULL);
    bench_free(b);
}

/* ---- an exit that is taken back ---- */

static void who_was_to_leave_at_a_step_that_a_peer_had_passed_trains_on(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    hear(b, save_at_order(13, true));
    assert_int_equal(session_fsm_due(&b->fsm, 13), SESSION_DUE_SAVE_AND_EXIT);
    (void)begin_save(b, 13);
    assert_says(b, SAVE_BEGIN);
    hear(b, stay_order(12)); /* of another step */
    assert_false(b->fsm.stays);
    hear(b, stay_order(13));
    assert_true(b->fsm.stays);
    hear(b, folder_order(13, "")); /* the save is dropped */
    hear(b, save_at_order(20, true));
    assert_int_equal(session_fsm_due(&b->fsm, 14), SESSION_DUE_NOTHING);
    assert_false(b->fsm.stays);
    assert_int_equal(session_fsm_due(&b->fsm, 20), SESSION_DUE_SAVE_AND_EXIT);
    bench_free(b);
}

/* There is no step to train on: told to stay, it would ask for ever whether it may leave. */
static void nobody_stays_after_the_last_step(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    hear(b, save_at_order(100, true));
    assert_int_equal(session_fsm_due(&b->fsm, 100), SESSION_DUE_SAVE_AND_EXIT);
    (void)begin_save(b, 100);
    hear(b, stay_order(100));
    assert_false(b->fsm.stays);
    bench_free(b);
}

static void who_is_not_there_yet_never_leaves_at_it(void **state)
{
    (void)state;
    struct bench *b = trained(2, 0);
    hear(b, save_at_order(13, true));
    hear(b, stay_order(13));
    assert_int_equal(session_fsm_due(&b->fsm, 13), SESSION_DUE_NOTHING);
    assert_false(b->fsm.stays);
    assert_silent(b);
    bench_free(b);
}

static void who_passed_it_says_so_though_that_save_is_dropped(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    assert_int_equal(session_fsm_due(&b->fsm, 13), SESSION_DUE_NOTHING);
    hear(b, save_at_order(13, true));
    hear(b, done_order(13, false)); /* for the coordinator saw it go on */
    assert_says(b, SAVE_PASSED);
    hear(b, done_order(13, false));
    assert_silent(b);
    bench_free(b);
}

static void who_had_passed_it_needs_no_other_answer(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    assert_int_equal(session_fsm_due(&b->fsm, 13), SESSION_DUE_NOTHING);
    hear(b, save_at_order(13, true));
    assert_says(b, SAVE_PASSED);
    hear(b, stay_order(13));
    assert_false(b->fsm.stays);
    reconnect(b);
    assert_says(b, READY);
    assert_silent(b); /* it is not said again */
    bench_free(b);
}

/* ---- reading back ---- */

static void hear_news(struct bench *b, uint64_t step, uint64_t bytes, bool done)
{
    const struct readback_news news = { .step = step,
                                        .generation = 1,
                                        .shard = 1,
                                        .bytes = bytes,
                                        .done = done,
                                        .status = done ? ST_IO : ST_OK,
                                        .why = { "the medium failed" } };
    session_fsm_read_news(&b->fsm, &news);
}

static void what_is_read_back_is_told_once_a_second_and_at_its_end(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    struct readback_order order;
    assert_false(session_fsm_read_order(&b->fsm, &order));
    hear(b, read_back_order(10, "/store/j/step-10", 2));
    assert_true(session_fsm_read_order(&b->fsm, &order));
    assert_string_equal(order.dir, "/store/j/step-10");
    assert_int_equal(order.rank, 0);
    assert_true(order.ranks > 0);
    assert_false(session_fsm_read_order(&b->fsm, &order)); /* once */
    hear_news(b, 20, 5, false);                            /* of another order */
    assert_silent(b);
    hear_news(b, 10, 5, false);
    assert_says(b, READ_BACK);
    hear_news(b, 10, 6, false);
    assert_silent(b);
    pass_ms(b, SESSION_READ_MS);
    assert_says(b, READ_BACK);
    hear(b, read_back_order(10, "/store/j/step-10", 2)); /* asked again: it goes on */
    assert_false(session_fsm_read_order(&b->fsm, &order));
    hear_news(b, 10, 7, true);
    const Cairn__V1__TrainerMessage *said = say_news(b);
    assert_non_null(said);
    assert_true(said->read_back->done);
    assert_int_equal(said->read_back->status, ST_IO);
    assert_string_equal(said->read_back->message, "the medium failed");
    reconnect(b);
    assert_says(b, READY);
    assert_says(b, READ_BACK); /* on every connection */
    assert_silent(b);
    hear(b, read_back_order(10, "/store/j/step-10", 2)); /* it could not be read: anew */
    assert_true(session_fsm_read_order(&b->fsm, &order));
    bench_free(b);
}

/* ---- the end ---- */

static void the_first_fault_is_kept_and_said_on_every_connection(void **state)
{
    (void)state;
    struct bench *b = trained(2, 0);
    struct session_fault_record fault = { .kind = CAIRN__V1__FAULT_KIND__COMMUNICATION,
                                          .why = { "rank 1 is gone" },
                                          .ranks = { 1 },
                                          .rank_count = 1,
                                          .step = 12,
                                          .phase = "reduce" };
    session_fsm_fault(&b->fsm, &fault);
    fault.kind = CAIRN__V1__FAULT_KIND__STORE;
    reason_set(&fault.why, "what followed");
    session_fsm_fault(&b->fsm, &fault);
    assert_says(b, FAULT);
    assert_string_equal(b->out.fault.message, "rank 1 is gone");
    assert_int_equal(b->out.fault.kind, CAIRN__V1__FAULT_KIND__COMMUNICATION);
    assert_int_equal(b->out.fault.ranks[0], 1);
    assert_string_equal(b->out.fault.phase, "reduce");
    assert_silent(b);
    reconnect(b);
    assert_says(b, FAULT);
    bench_free(b);
}

static Cairn__V1__LastWords *words_of(struct bench *b)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    assert_int_equal(session_fsm_last_words(&b->fsm, &b->progress, &bytes, &size), ST_OK);
    Cairn__V1__LastWords *words = cairn__v1__last_words__unpack(NULL, size, bytes);
    assert_non_null(words);
    free(bytes);
    return words;
}

static void last_words_hold_the_fault_and_what_is_not_decided(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    b->progress.step = 10;
    uint64_t version = b->fsm.last_words_version;
    give_folder(b, 10);
    add_rows(b, 8, 12);
    session_fsm_save_written(&b->fsm, session_fsm_saver_work(&b->fsm), report_of(10));
    assert_true(b->fsm.last_words_version > version);
    Cairn__V1__LastWords *words = words_of(b);
    assert_string_equal(words->job, JOB);
    assert_int_equal(words->step, 10);
    assert_string_equal(words->phase, "forward");
    assert_int_equal(words->n_saves, 1);
    assert_int_equal(words->saves[0]->size, 12345);
    assert_int_equal(words->n_rows, 1); /* that of the step that is saved */
    assert_int_equal(words->rows[0]->step, 10);
    assert_false(words->finished);
    assert_int_equal(words->fault__case, CAIRN__V1__LAST_WORDS__FAULT___NOT_SET);
    cairn__v1__last_words__free_unpacked(words, NULL);
    version = b->fsm.last_words_version;
    assert_says(b, METRICS);
    assert_says(b, SAVE_REPORT);
    assert_int_equal(b->fsm.last_words_version, version); /* that it left decides nothing */
    hear(b, done_order(10, true));
    assert_true(b->fsm.last_words_version > version);
    struct session_fault_record fault = { .kind = CAIRN__V1__FAULT_KIND__USER, .why = { "no" } };
    session_fsm_fault(&b->fsm, &fault);
    session_fsm_finished(&b->fsm, 10);
    words = words_of(b);
    assert_int_equal(words->n_saves, 0);
    assert_int_equal(words->n_rows, 0);
    assert_string_equal(words->fault->message, "no");
    assert_true(words->finished);
    cairn__v1__last_words__free_unpacked(words, NULL);
    bench_free(b);
}

static void last_words_are_never_longer_than_an_agent_reads(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    static const size_t bytes[] = { LIMIT_REPORT_BYTES / 2, LIMIT_REPORT_BYTES / 3,
                                    LIMIT_REPORT_BYTES / 2 };
    for (uint64_t i = 0; i < 3; i++) {
        give_folder(b, 10 + 10 * i);
        Cairn__V1__SaveReport *report = report_of(10 + 10 * i);
        ProtobufCBinaryData *hashes = &report->pieces[0]->xxh3_128;
        free(hashes->data);
        *hashes = (ProtobufCBinaryData){ bytes[i], calloc(1, bytes[i]) };
        assert_non_null(hashes->data);
        session_fsm_save_written(&b->fsm, session_fsm_saver_work(&b->fsm), report);
        assert_says(b, SAVE_REPORT);
    }
    Cairn__V1__LastWords *words = words_of(b);
    assert_true(cairn__v1__last_words__get_packed_size(words) <= LIMIT_LAST_WORDS_BYTES);
    assert_int_equal(words->n_saves, 2);
    assert_int_equal(words->saves[0]->step, 30);
    assert_int_equal(words->saves[1]->step, 20);
    cairn__v1__last_words__free_unpacked(words, NULL);
    bench_free(b);
}

static void finished_is_said_after_the_last_rows(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    add_rows(b, 99, 99);
    assert_says(b, METRICS);
    add_rows(b, 100, 100);
    assert_silent(b);
    session_fsm_finished(&b->fsm, 100);
    assert_says(b, METRICS);
    assert_says(b, FINISHED);
    assert_int_equal(b->out.finished.step, 100);
    assert_silent(b);
    bench_free(b);
}

static void nothing_is_said_once_it_is_over(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    (void)begin_save(b, 10);
    hear(b, over_order("a newer generation"));
    assert_true(b->fsm.over);
    assert_string_equal(b->fsm.over_reason.text, "a newer generation");
    assert_null(say(b));
    session_fsm_link_up(&b->fsm);
    assert_null(say(b));
    const struct rendezvous_part nothing = { 0 };
    const struct session_rendezvous_round *round = NULL;
    assert_int_equal(session_fsm_rendezvous_join(&b->fsm, "a", &nothing, 3, &round), ST_STALE);
    bench_free(b);
}

static void orders_of_a_later_version_are_ignored(void **state)
{
    (void)state;
    struct bench *b = trained(1, 0);
    const Cairn__V1__TrainerOrder order = CAIRN__V1__TRAINER_ORDER__INIT;
    hear(b, order_new(&order));
    hear(b, metric_ack_order(50)); /* to a rank that has no rows */
    hear(b, done_order(5, false));
    assert_silent(b);
    bench_free(b);
}

static void progress_tells_what_a_rank_can_do_and_what_it_exchanged(void **state)
{
    (void)state;
    struct bench *b = trained(0, 0);
    const Cairn__V1__Progress *said = &b->out.progress_message;
    b->now_ms += SESSION_HEARTBEAT_MS;
    assert_non_null(say(b));
    assert_null(said->traffic); /* it isn't told, which is not 0 */
    b->fsm.ready.step_flops = 3.5e9;
    b->fsm.ready.peak_flops = 107e9;
    b->fsm.traffic = (struct session_traffic){ true, 0, 12 };
    b->now_ms += SESSION_HEARTBEAT_MS;
    assert_non_null(say(b));
    assert_true(said->step_flops == 3.5e9 && said->peak_flops == 107e9 && said->traffic != NULL);
    assert_int_equal(said->traffic->received_bytes, 12);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_comes_first_and_says_whether_the_plan_is_known),
        cmocka_unit_test(a_message_that_was_not_taken_is_offered_again),
        cmocka_unit_test(a_plan_is_checked_before_it_is_used),
        cmocka_unit_test(ready_is_said_again_on_every_connection),
        cmocka_unit_test(progress_is_told_twice_a_second_while_it_changes_and_once_while_not),
        cmocka_unit_test(where_it_is_among_the_collectives_is_told_as_soon_as_any_progress),
        cmocka_unit_test(progress_tells_what_a_rank_can_do_and_what_it_exchanged),
        cmocka_unit_test(rows_go_in_company_and_are_kept_until_acknowledged),
        cmocka_unit_test(the_oldest_rows_go_when_nobody_takes_them),
        cmocka_unit_test(rows_of_a_step_are_told_before_its_save),
        cmocka_unit_test(an_answer_finds_its_meeting_and_only_the_first_counts),
        cmocka_unit_test(what_was_brought_is_said_on_every_connection),
        cmocka_unit_test(meetings_have_bounds),
        cmocka_unit_test(who_was_to_leave_at_a_step_that_a_peer_had_passed_trains_on),
        cmocka_unit_test(nobody_stays_after_the_last_step),
        cmocka_unit_test(who_is_not_there_yet_never_leaves_at_it),
        cmocka_unit_test(who_passed_it_says_so_though_that_save_is_dropped),
        cmocka_unit_test(who_had_passed_it_needs_no_other_answer),
        cmocka_unit_test(what_is_read_back_is_told_once_a_second_and_at_its_end),
        cmocka_unit_test(the_first_fault_is_kept_and_said_on_every_connection),
        cmocka_unit_test(last_words_hold_the_fault_and_what_is_not_decided),
        cmocka_unit_test(last_words_are_never_longer_than_an_agent_reads),
        cmocka_unit_test(finished_is_said_after_the_last_rows),
        cmocka_unit_test(nothing_is_said_once_it_is_over),
        cmocka_unit_test(orders_of_a_later_version_are_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
