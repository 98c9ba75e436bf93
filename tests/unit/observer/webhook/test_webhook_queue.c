/* Queues: order, tries, what is dropped and given up; cursors and queues over a restart. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "observer/webhook/queue.h"
#include "observer/webhook/state.h"
#include "tests/test.h"

static json_t *payload_of(int number)
{
    char delivery[WEBHOOK_DELIVERY];
    struct webhook_news news = { .event = WEBHOOK_FAILED,
                                 .job = "j-1",
                                 .name = "lenet",
                                 .state = "FAILED",
                                 .message = "lenet failed",
                                 .step = number,
                                 .rank = -1,
                                 .seconds_lost = (double)NAN,
                                 .steps_lost = -1 };
    (void)snprintf(delivery, sizeof(delivery), "%d", number);
    return webhook_payload(&news, delivery);
}

static size_t add(struct webhook_queue *queue, int number, int64_t wall)
{
    size_t dropped = 0;
    assert_int_equal(webhook_queue_add(queue, payload_of(number), wall, &dropped), ST_OK);
    return dropped;
}

static size_t answer(struct webhook_queue *queue, enum webhook_verdict verdict, int64_t after_ms,
                     int64_t now)
{
    struct webhook_answer said = { .verdict = verdict, .after_ms = after_ms, .what = { "said" } };
    return webhook_queue_answered(queue, &said, now, now);
}

/* The number of the message that is to be sent at that time; -1: none. */
static int take(struct webhook_queue *queue, int64_t now)
{
    const struct webhook_item *item = webhook_queue_take(queue, now);
    return item == NULL ? -1 : (int)strtol(item->delivery, NULL, 10);
}

static void messages_go_one_by_one_and_in_order(void **state)
{
    (void)state;
    static struct webhook_queue queue;
    webhook_queue_init(&queue, "team", 0);
    assert_true(webhook_queue_due(&queue) == INT64_MAX);
    assert_int_equal(take(&queue, 5), -1);
    for (int i = 0; i < 3; i++)
        assert_int_equal(add(&queue, i, 0), 0);
    assert_int_equal(queue.known.state, WEBHOOK_WAITING);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(take(&queue, 5), i);
        assert_int_equal(take(&queue, 5), -1); /* one is on its way */
        assert_int_equal(answer(&queue, WEBHOOK_TAKEN, 0, 5), 0);
    }
    assert_int_equal(queue.known.state, WEBHOOK_IDLE);
    assert_true(queue.known.delivered);
    assert_string_equal(queue.known.event, "failed");
    assert_string_equal(queue.known.job, "lenet");
    webhook_queue_release(&queue);
}

static void a_message_is_tried_again_and_then_given_up(void **state)
{
    (void)state;
    static struct webhook_queue queue;
    int64_t now = 1000;
    int tries = 0;
    webhook_queue_init(&queue, "team", 0);
    (void)add(&queue, 1, now);
    (void)add(&queue, 2, now + WEBHOOK_GIVE_UP_MS);
    size_t given_up = 0;
    int64_t wait = 0;
    while (given_up == 0) {
        assert_int_equal(take(&queue, now), 1);
        assert_true(++tries < 20);
        given_up = answer(&queue, WEBHOOK_AGAIN, 0, now);
        const int64_t next = webhook_queue_due(&queue) - now;
        assert_true(next >= wait && next >= WEBHOOK_RETRY_MS && next <= WEBHOOK_RETRY_MAX);
        assert_int_equal(take(&queue, now + next - 1), -1);
        wait = next;
        now += next;
    }
    assert_int_equal(given_up, 1);
    assert_int_equal(tries, 10); /* after 0, 5, 20, 65, 200, 605, 1505, ... 4205 s */
    assert_int_equal(queue.known.missed, 1);
    assert_int_equal(take(&queue, now), 2);
    assert_int_equal(queue.carried, 1); /* that is in what is sent */
    (void)answer(&queue, WEBHOOK_TAKEN, 0, now);
    assert_int_equal(queue.known.missed, 0);
    webhook_queue_release(&queue);
}

static void what_the_receiver_says_of_later_counts(void **state)
{
    (void)state;
    static struct webhook_queue queue;
    webhook_queue_init(&queue, "team", 0);
    (void)add(&queue, 1, 0);
    assert_int_equal(take(&queue, 0), 1);
    (void)answer(&queue, WEBHOOK_AGAIN, 120000, 0);
    assert_int_equal(webhook_queue_due(&queue), 120000);
    assert_int_equal(queue.known.state, WEBHOOK_RETRYING);
    webhook_queue_release(&queue);
}

static void of_too_many_the_oldest_goes_but_not_what_is_on_its_way(void **state)
{
    (void)state;
    static struct webhook_queue queue;
    webhook_queue_init(&queue, "team", 0);
    for (int i = 0; i < WEBHOOK_QUEUE_MAX; i++)
        assert_int_equal(add(&queue, i, 0), 0);
    assert_int_equal(add(&queue, 1000, 0), 1); /* 0 went */
    assert_int_equal(take(&queue, 0), 1);
    assert_int_equal(add(&queue, 1001, 0), 1); /* 2 went */
    assert_string_equal(webhook_queue_at(&queue, 0)->delivery, "1");
    assert_string_equal(webhook_queue_at(&queue, 1)->delivery, "3");
    assert_int_equal(queue.count, WEBHOOK_QUEUE_MAX);
    assert_int_equal(queue.known.missed, 2);
    assert_int_equal(queue.carried, 1);
    (void)answer(&queue, WEBHOOK_TAKEN, 0, 0);
    assert_int_equal(queue.known.missed, 1); /* the other one is told next time */
    for (int i = 3; i < WEBHOOK_QUEUE_MAX; i++) {
        assert_int_equal(take(&queue, 0), i);
        (void)answer(&queue, WEBHOOK_TAKEN, 0, 0);
    }
    assert_int_equal(take(&queue, 0), 1000);
    (void)answer(&queue, WEBHOOK_TAKEN, 0, 0);
    assert_int_equal(take(&queue, 0), 1001);
    (void)answer(&queue, WEBHOOK_TAKEN, 0, 0);
    assert_int_equal(queue.count, 0);
    webhook_queue_release(&queue);
}

static void a_refused_message_is_not_tried_again(void **state)
{
    (void)state;
    static struct webhook_queue queue;
    webhook_queue_init(&queue, "team", 0);
    (void)add(&queue, 1, 0);
    (void)add(&queue, 2, 0);
    assert_int_equal(take(&queue, 0), 1);
    assert_int_equal(answer(&queue, WEBHOOK_REFUSED, 0, 0), 1);
    assert_int_equal(take(&queue, 0), 2);
    assert_int_equal(queue.carried, 1);
    webhook_queue_cut(&queue); /* the program ends */
    assert_int_equal(take(&queue, 0), 2);
    (void)answer(&queue, WEBHOOK_TAKEN, 0, 0);
    webhook_queue_release(&queue);
}

static void what_is_gone_takes_nothing_until_its_list_changes(void **state)
{
    (void)state;
    static struct webhook_queue queue;
    webhook_queue_init(&queue, "team", 0);
    (void)add(&queue, 1, 0);
    (void)add(&queue, 2, 0);
    assert_int_equal(take(&queue, 0), 1);
    assert_int_equal(answer(&queue, WEBHOOK_GONE, 0, 0), 2);
    (void)add(&queue, 3, 0);
    assert_int_equal(queue.count, 0);
    assert_int_equal(queue.known.state, WEBHOOK_DISABLED);
    assert_true(webhook_queue_due(&queue) == INT64_MAX);
    webhook_queue_enable(&queue);
    (void)add(&queue, 4, 0);
    assert_int_equal(take(&queue, 0), 4);
    assert_int_equal(queue.carried, 3);
    webhook_queue_release(&queue);
}

/* ---- over a restart ---- */

static void marks_and_messages_outlive_the_program(void **state)
{
    (void)state;
    struct webhook_state before, after;
    struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(webhook_state_init(&before), ST_OK);
    assert_int_equal(webhook_state_init(&after), ST_OK);
    before.since_ms = 77;
    before.list_ns = 88;
    struct webhook_cursor *cursor = webhook_state_cursor(&before, "j-1");
    cursor->seen = true;
    cursor->event = UINT64_C(0xfedcba9876543210);
    cursor->event_ms = 5;
    cursor->recovered = 3;
    struct webhook_queue *queue = webhook_state_queue_add(&before, "team", 0);
    assert_non_null(queue);
    assert_ptr_equal(webhook_state_queue_add(&before, "team", 0), queue);
    (void)add(queue, 1, 1234);
    (void)add(queue, 2, 1235);
    assert_int_equal(take(queue, 0), 1); /* on its way: not known whether it arrives */
    queue->known.missed = 4;
    assert_int_equal(webhook_state_print(&before, &text), ST_OK);
    assert_int_equal(webhook_state_read(&after, text.data, text.size, 0), ST_OK);
    assert_true(after.since_ms == 77 && after.list_ns == 88 && after.cursor_count == 1);
    const struct webhook_cursor *back = webhook_state_cursor(&after, "j-1");
    assert_true(back->seen && back->event == cursor->event && back->event_ms == 5);
    assert_true(back->recovered == 3 && back->ended_ms == 0);
    queue = webhook_state_queue(&after, "team");
    assert_non_null(queue);
    assert_int_equal(queue->count, 2);
    assert_int_equal(queue->known.missed, 4);
    assert_int_equal(webhook_queue_at(queue, 1)->queued_ms, 1235);
    assert_int_equal(take(queue, 0), 1);
    /* Nothing is taken from a text that is cut off, or is something else. */
    for (size_t size = 0; size < text.size; size += 7)
        assert_int_equal(webhook_state_read(&after, text.data, size, 0), ST_CORRUPT);
    assert_int_equal(after.queue_count + after.cursor_count, 0);
    webhook_state_release(&before);
    webhook_state_release(&after);
    buf_release(&text);
}

static void of_too_many_jobs_the_one_that_ended_first_is_forgotten(void **state)
{
    (void)state;
    struct webhook_state s;
    char name[32];
    assert_int_equal(webhook_state_init(&s), ST_OK);
    for (int i = 0; i < WEBHOOK_JOBS_MAX; i++) {
        (void)snprintf(name, sizeof(name), "j-%d", i);
        struct webhook_cursor *cursor = webhook_state_cursor(&s, name);
        cursor->seen = true;
        cursor->ended_ms = i == 0 ? 0 : 100000 - i; /* the first one goes on */
    }
    struct webhook_cursor *new = webhook_state_cursor(&s, "j-new");
    assert_false(new->seen);
    assert_int_equal(s.cursor_count, WEBHOOK_JOBS_MAX);
    assert_int_equal(s.since_ms, 100000 - (WEBHOOK_JOBS_MAX - 1) + 1);
    assert_true(webhook_state_cursor(&s, "j-0")->seen);
    assert_true(webhook_state_cursor(&s, "j-1")->seen);
    webhook_state_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_go_one_by_one_and_in_order),
        cmocka_unit_test(a_message_is_tried_again_and_then_given_up),
        cmocka_unit_test(what_the_receiver_says_of_later_counts),
        cmocka_unit_test(of_too_many_the_oldest_goes_but_not_what_is_on_its_way),
        cmocka_unit_test(a_refused_message_is_not_tried_again),
        cmocka_unit_test(what_is_gone_takes_nothing_until_its_list_changes),
        cmocka_unit_test(marks_and_messages_outlive_the_program),
        cmocka_unit_test(of_too_many_jobs_the_one_that_ended_first_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
