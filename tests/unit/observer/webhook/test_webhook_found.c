/* What is new in a job: which events, once each, also after a restart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "observer/webhook/job_news.h"
#include "tests/test.h"

#define ROWS_MAX 16

struct made {
    Cairn__V1__Job job;
    Cairn__V1__Event events[ROWS_MAX], *event_list[ROWS_MAX];
    Cairn__V1__Recovery recoveries[ROWS_MAX], *recovery_list[ROWS_MAX];
    Cairn__V1__LostSeconds seconds, *second_list[1];
    Cairn__V1__Worker worker, *worker_list[1];
    char times[ROWS_MAX][32];
};

struct seen {
    char text[8192]; /* "EVENT KEY MESSAGE" lines */
    size_t size;
    struct webhook_news last;
    char last_node[32], last_cause[32];
    char keys[64][WEBHOOK_KEY];
    size_t count;
};

static void init(struct made *made)
{
    memset(made, 0, sizeof(*made));
    cairn__v1__job__init(&made->job);
    made->job.id = (char *)"j-1";
    made->job.name = (char *)"lenet";
    made->job.state = CAIRN__V1__JOB_STATE__RUNNING;
    made->job.step = 40;
    made->job.total_steps = 100;
    made->job.events = made->event_list;
    made->job.recoveries = made->recovery_list;
    cairn__v1__worker__init(&made->worker);
    made->worker.rank = 2;
    made->worker.node = (char *)"gpu-07";
    made->worker_list[0] = &made->worker;
    made->job.workers = made->worker_list;
    made->job.n_workers = 1;
    cairn__v1__lost_seconds__init(&made->seconds);
    made->seconds.cause = (char *)"form";
    made->seconds.seconds = 2.5;
    made->second_list[0] = &made->seconds;
}

/* Each a second after the one before it. */
static void add_event(struct made *made, const char *kind, const char *message)
{
    const size_t i = made->job.n_events++;
    Cairn__V1__Event *event = &made->events[i];
    cairn__v1__event__init(event);
    (void)snprintf(made->times[i], sizeof(made->times[i]), "2026-01-02T03:04:%02zu.000Z", i);
    event->time = made->times[i];
    event->kind = (char *)kind;
    event->message = (char *)message;
    event->step = 10 + i;
    made->event_list[i] = event;
}

static Cairn__V1__Recovery *add_recovery(struct made *made, const char *cause, const char *state)
{
    const size_t i = made->job.n_recoveries++;
    Cairn__V1__Recovery *r = &made->recoveries[i];
    cairn__v1__recovery__init(r);
    r->generation = (uint32_t)i + 2;
    r->time = (char *)"2026-01-02T03:04:30.000Z";
    r->kind = (char *)"checkpoint";
    r->cause = (char *)cause;
    r->state = (char *)state;
    r->rank = 2;
    r->node = (char *)"gpu-07";
    r->message = (char *)"signal 9";
    r->step = 30;
    r->steps_lost = 4;
    r->seconds = made->second_list;
    r->n_seconds = 1;
    made->recovery_list[i] = r;
    return r;
}

static void see(void *arg, const struct webhook_news *news, const char *key)
{
    struct seen *seen = arg;
    for (size_t i = 0; i < seen->count; i++)
        assert_string_not_equal(seen->keys[i], key);
    (void)snprintf(seen->keys[seen->count++], WEBHOOK_KEY, "%s", key);
    seen->last = *news;
    (void)snprintf(seen->last_node, sizeof(seen->last_node), "%s", news->node);
    (void)snprintf(seen->last_cause, sizeof(seen->last_cause), "%s", news->cause);
    seen->size +=
        (size_t)snprintf(seen->text + seen->size, sizeof(seen->text) - seen->size, "%s%s: %s\n",
                         webhook_event_word(news->event), news->over ? " over" : "", news->message);
    assert_true(seen->size < sizeof(seen->text));
}

/* What is new is this text. */
static void check(const struct made *made, struct webhook_cursor *cursor, const char *wanted)
{
    static struct seen seen;
    seen = (struct seen){ .size = 0 };
    webhook_find(&made->job, 0, cursor, see, &seen);
    assert_string_equal(seen.text, wanted);
}

static void each_is_told_once(void **state)
{
    (void)state;
    static struct made made;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    add_event(&made, "submitted", "");
    add_event(&made, "store-fails", "no checkpoint since step 0: it is gone");
    check(
        &made, &cursor,
        "store-trouble: lenet has trouble with its checkpoints or their store: no checkpoint since "
        "step 0: it is gone\n");
    check(&made, &cursor, "");
    add_event(&made, "store-works", "step 20 is saved");
    check(&made, &cursor,
          "store-trouble over: lenet has no more trouble with its checkpoints: step 20 is saved\n");
    struct webhook_cursor restored = cursor; /* as a restart has it */
    add_event(&made, "skip", "step 21 is not finite twice; it is left out");
    check(&made, &restored,
          "diverged: lenet diverges: step 21 is not finite twice; it is left out\n");
    check(&made, &cursor,
          "diverged: lenet diverges: step 21 is not finite twice; it is left out\n");
    made.job.state = CAIRN__V1__JOB_STATE__SUCCEEDED;
    made.job.ended_at = (char *)"2026-01-02T03:05:00.000Z";
    made.job.step = 100;
    made.job.loss = 0.25;
    check(&made, &cursor, "finished: lenet finished: 100 steps, loss 0.25, accuracy 0\n");
    check(&made, &cursor, "");
}

static void two_events_of_one_moment_are_two(void **state)
{
    (void)state;
    static struct made made;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    add_event(&made, "damaged", "one");
    check(&made, &cursor,
          "store-trouble: lenet has trouble with its checkpoints or their store: one\n");
    add_event(&made, "damaged", "two");
    made.events[1].time = made.events[0].time;
    check(&made, &cursor,
          "store-trouble: lenet has trouble with its checkpoints or their store: two\n");
    check(&made, &cursor, "");
}

static void what_was_before_is_not_told(void **state)
{
    (void)state;
    static struct made made;
    static struct seen seen;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    add_event(&made, "store-full", "old");
    add_event(&made, "store-room", "new");
    (void)add_recovery(&made, "process gone", "done");
    made.job.state = CAIRN__V1__JOB_STATE__STOPPED;
    made.job.ended_at = (char *)"2026-01-02T03:04:01.000Z";
    /* 2026-01-02T03:04:01Z: of the event at 00 and none later. */
    made.recoveries[0].time = (char *)"2026-01-02T03:04:00.999Z";
    webhook_find(&made.job, INT64_C(1767323041000), &cursor, see, &seen);
    assert_string_equal(seen.text,
                        "store-trouble over: lenet has no more trouble with its checkpoints: new\n"
                        "finished: lenet was stopped at step 40 of 100, loss 0, accuracy 0\n");
    struct webhook_cursor late = { .job = "j-1" };
    seen = (struct seen){ .size = 0 };
    webhook_find(&made.job, INT64_C(1767323042000), &late, see, &seen);
    assert_string_equal(seen.text, "");
    assert_int_equal(late.recovered, 2);
    assert_true(late.ended_ms != 0);
}

static void trouble_of_one_kind_is_told_until_it_is_over(void **state)
{
    (void)state;
    static struct made made;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    for (int i = 0; i < 3; i++) { /* the store is tried again and again */
        add_event(&made, "fault", "checkpoint store: rank 2: can't be opened");
        add_event(&made, "recovering", "a new generation follows");
    }
    add_event(&made, "running", "generation 4 runs after 1.0 s");
    add_event(&made, "damaged", "the checkpoint of step 5 is set aside");
    add_event(&made, "damaged", "the checkpoint of step 6 is set aside");
    add_event(&made, "fault", "checkpoint store: rank 2: can't be opened");
    check(
        &made, &cursor,
        "store-trouble: lenet has trouble with its checkpoints or their store: can't be opened\n"
        "store-trouble over: lenet has no more trouble with its checkpoints: generation 4 runs "
        "after 1.0 s\n"
        "store-trouble: lenet has trouble with its checkpoints or their store: the checkpoint of "
        "step 5 is set aside\n"
        "store-trouble: lenet has trouble with its checkpoints or their store: the checkpoint of "
        "step 6 is set aside\n"
        "store-trouble: lenet has trouble with its checkpoints or their store: can't be opened\n");
}

static void a_recovery_is_told_when_it_is_done(void **state)
{
    (void)state;
    static struct made made;
    static struct seen seen;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    (void)add_recovery(&made, "planned", "done");
    (void)add_recovery(&made, "process gone", "cut");
    Cairn__V1__Recovery *last = add_recovery(&made, "formation", "forming");
    check(&made, &cursor, "");
    last->state = (char *)"done";
    last->rank = -1;
    webhook_find(&made.job, 0, &cursor, see, &seen);
    assert_string_equal(
        seen.text, "recovered: lenet recovered from a failure (process gone, rank 2 on gpu-07: "
                   "signal 9): from step 30 from a checkpoint, 4 steps again, 5.0 s lost\n");
    assert_string_equal(seen.last_cause, "process gone");
    assert_int_equal(seen.last.rank, 2);
    assert_true(seen.last.seconds_lost == 5.0 && seen.last.steps_lost == 4);
    assert_int_equal(seen.last.step, 30);
    assert_string_equal(seen.keys[0], "recovered/4");
    check(&made, &cursor, "");
    (void)add_recovery(&made, "planned", "done"); /* a pause */
    check(&made, &cursor, "");
}

static void a_failure_names_its_cause(void **state)
{
    (void)state;
    static struct made made;
    static struct seen seen;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    add_event(&made, "fault", "out of memory: rank 2: killed by the kernel");
    made.job.state = CAIRN__V1__JOB_STATE__FAILED;
    made.job.reason = (char *)"out of memory: killed by the kernel (three times at the same place)";
    made.job.ended_at = (char *)"2026-01-02T03:05:00.000Z";
    webhook_find(&made.job, 0, &cursor, see, &seen);
    assert_string_equal(seen.text,
                        "failed: lenet failed at step 40 of 100: out of memory: killed by "
                        "the kernel (three times at the same place)\n");
    assert_string_equal(seen.last_cause, "out of memory");
    assert_string_equal(seen.last_node, "gpu-07");
    assert_int_equal(seen.last.rank, 2);
}

static void a_job_that_diverged_says_so_before_it_fails(void **state)
{
    (void)state;
    static struct made made;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    add_event(&made, "fault", "numeric: rank 2: the loss is nan");
    made.job.state = CAIRN__V1__JOB_STATE__FAILED;
    made.job.ended_at = (char *)"2026-01-02T03:05:00.000Z";
    check(&made, &cursor,
          "diverged: lenet diverges: the loss is nan\n"
          "failed: lenet failed at step 40 of 100: the loss is nan\n");
    struct webhook_cursor other = { .job = "j-1" };
    init(&made);
    add_event(&made, "fault", "user error: diverged since step 7: 3 steps in a row");
    made.job.state = CAIRN__V1__JOB_STATE__FAILED;
    made.job.total_steps = 0;
    made.job.ended_at = (char *)"2026-01-02T03:05:00.000Z";
    check(&made, &other,
          "diverged: lenet diverges: diverged since step 7: 3 steps in a row\n"
          "failed: lenet failed before its first step: diverged since step 7: 3 steps in a row\n");
}

static void a_job_that_was_stopped_and_resumed_ends_again(void **state)
{
    (void)state;
    static struct made made;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    made.job.state = CAIRN__V1__JOB_STATE__STOPPED;
    made.job.ended_at = (char *)"2026-01-02T03:05:00.000Z";
    check(&made, &cursor, "finished: lenet was stopped at step 40 of 100, loss 0, accuracy 0\n");
    check(&made, &cursor, "");
    made.job.state = CAIRN__V1__JOB_STATE__RUNNING;
    made.job.ended_at = (char *)"";
    check(&made, &cursor, "");
    made.job.state = CAIRN__V1__JOB_STATE__STOPPED;
    made.job.ended_at = (char *)"2026-01-02T03:06:00.000Z";
    check(&made, &cursor, "finished: lenet was stopped at step 40 of 100, loss 0, accuracy 0\n");
    check(&made, &cursor, "");
}

static void events_that_are_not_kept_any_more_are_found_by_time(void **state)
{
    (void)state;
    static struct made made;
    struct webhook_cursor cursor = { .job = "j-1" };
    init(&made);
    add_event(&made, "store-full", "one");
    check(&made, &cursor,
          "store-trouble: lenet has trouble with its checkpoints or their store: one\n");
    add_event(&made, "saved", "");
    add_event(&made, "damaged", "two");
    made.event_list[0] = made.event_list[1]; /* the first one is beyond the newest */
    made.event_list[1] = made.event_list[2];
    made.job.n_events = 2;
    check(&made, &cursor,
          "store-trouble: lenet has trouble with its checkpoints or their store: two\n");
    check(&made, &cursor, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_told_once),
        cmocka_unit_test(two_events_of_one_moment_are_two),
        cmocka_unit_test(what_was_before_is_not_told),
        cmocka_unit_test(trouble_of_one_kind_is_told_until_it_is_over),
        cmocka_unit_test(a_recovery_is_told_when_it_is_done),
        cmocka_unit_test(a_failure_names_its_cause),
        cmocka_unit_test(a_job_that_diverged_says_so_before_it_fails),
        cmocka_unit_test(a_job_that_was_stopped_and_resumed_ends_again),
        cmocka_unit_test(events_that_are_not_kept_any_more_are_found_by_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
