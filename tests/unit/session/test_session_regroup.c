/* The session's threads when a process leaves one generation and goes on in the next. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "session/internal.h"
#include "tests/unit/session/session_world.h"

/* The step thread, while it is parked. */
struct parking {
    struct session *session;
    struct session_parked kept;
    struct session_regroup regroup;
    enum status status;
    pthread_t thread;
};

static void *parking_main(void *arg)
{
    struct parking *p = arg;
    p->status = session_park(p->session, &p->kept, &p->regroup);
    return NULL;
}

static void begin_parking(struct parking *p, struct session *session, uint64_t step)
{
    *p = (struct parking){ .session = session,
                           .kept = { .step = step, .complete = true, .computed_by = 3 } };
    assert_int_equal(pthread_create(&p->thread, NULL, parking_main, p), 0);
}

static void tell_to_park(struct world *w)
{
    (void)pthread_mutex_lock(&w->c.mutex);
    order_park(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    await(w, &w->c.park_calls, 1);
}

static void tell_to_go_on(struct world *w, uint32_t generation)
{
    (void)pthread_mutex_lock(&w->c.mutex);
    order_regroup(&w->c, generation, "next token");
    (void)pthread_mutex_unlock(&w->c.mutex);
}

/* Parked at that step, and told to go on as generation 4. */
static void park_and_go_on(struct world *w, uint64_t step)
{
    struct parking p;
    tell_to_park(w);
    begin_parking(&p, w->session, step);
    await(w, &w->c.parks, 1);
    tell_to_go_on(w, 4);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_OK);
    assert_int_equal(p.regroup.generation, 4);
    assert_string_equal(p.regroup.token, "next token");
}

static void a_process_goes_on_in_the_next_generation(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    park_and_go_on(w, 12);
    assert_int_equal(w->c.parked.step, 12);
    assert_true(w->c.parked.complete);
    assert_int_equal(w->c.parked.computed_by, 3);
    assert_true(session_is_over(w->session));
    assert_int_equal(w->c.over_calls, 0);
    struct session_retired *retired = NULL;
    assert_int_equal(session_retire(w->session, &retired), ST_OK);
    const struct session_parked kept = { .step = 12, .complete = true, .computed_by = 3 };
    w->session = next_session(w, 4, &kept);
    session_retired_join(retired);
    assert_int_equal(w->c.offers.step, 12);
    assert_int_equal(w->c.offers.computed_by, 3);
    assert_int_equal(w->c.attached, 0);
    assert_false(session_is_over(w->session));
    Cairn__V1__LastWords *words = read_words(w); /* of the generation that it is in now */
    assert_non_null(words);
    assert_int_equal(words->generation, 4);
    cairn__v1__last_words__free_unpacked(words, NULL);
    world_free(w);
}

static void who_is_parked_says_so_on_every_connection_and_waits(void **state)
{
    (void)state;
    struct world *w = joined();
    struct parking p;
    tell_to_park(w);
    begin_parking(&p, w->session, 12);
    for (int i = 1; i <= 3; i++) {
        await(w, &w->c.parks, i);
        assert_int_equal(w->c.attached, i - 1);
        (void)pthread_mutex_lock(&w->c.mutex);
        if (i < 3)
            lose(&w->c);
        (void)pthread_mutex_unlock(&w->c.mutex);
    }
    tell_to_go_on(w, 4);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_OK);
    world_free(w);
}

static void over_ends_one_that_is_parked(void **state)
{
    (void)state;
    struct world *w = joined();
    struct parking p;
    tell_to_park(w);
    begin_parking(&p, w->session, 12);
    await(w, &w->c.parks, 1);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_over(&w->c, "enough");
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_STALE);
    await(w, &w->c.over_calls, 1);
    assert_string_equal(w->c.over_reason, "enough");
    assert_false(session_parks(w->session));
    world_free(w);
}

static void who_is_parked_without_a_coordinator_ends_as_an_orphan(void **state)
{
    (void)state;
    struct world *w = world_new(300);
    struct session_assignment assignment;
    struct parking p;
    assert_int_equal(session_join(w->session, "{}", LONG_MS, &assignment), ST_OK);
    tell_to_park(w);
    begin_parking(&p, w->session, 12);
    await(w, &w->c.parks, 1);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.absent = true;
    lose(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_STALE);
    await(w, &w->c.over_calls, 1);
    world_free(w);
}

static void *await_the_end(void *arg)
{
    struct parking *p = arg;
    p->status = session_await_end(p->session, LONG_MS);
    return NULL;
}

static void a_failure_waits_for_park(void **state)
{
    (void)state;
    struct world *w = joined();
    struct parking p = { .session = w->session };
    assert_int_equal(session_await_end(w->session, 1), ST_TIMED_OUT);
    const struct session_fault fault = { .kind = CAIRN__V1__FAULT_KIND__COMMUNICATION,
                                         .message = "rank 1 closed" };
    session_fault(w->session, &fault);
    assert_int_equal(pthread_create(&p.thread, NULL, await_the_end, &p), 0);
    tell_to_park(w);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_OK);
    assert_true(session_parks(w->session));
    begin_parking(&p, w->session, 12);
    await(w, &w->c.parks, 1);
    tell_to_go_on(w, 4);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    Cairn__V1__LastWords *words = read_words(w);
    assert_non_null(words);
    assert_null(words->fault);
    cairn__v1__last_words__free_unpacked(words, NULL);
    world_free(w);
}

static enum status join(struct session *session)
{
    struct rendezvous_got got;
    const struct rendezvous *rendezvous = session_rendezvous(session);
    const struct rendezvous_part nothing = { 0 };
    return rendezvous->join(rendezvous->self, "workers", &nothing, 1, LONG_MS, &got);
}

static void *wait_in_a_meeting(void *arg)
{
    struct parking *p = arg;
    p->status = join(p->session);
    return NULL;
}

static void whoever_waits_is_let_go(void **state)
{
    (void)state;
    struct world *w = joined();
    struct parking p = { .session = w->session };
    uint64_t committed = 0;
    w->c.meets_silent = true;
    get_ready(w);
    assert_int_equal(pthread_create(&p.thread, NULL, wait_in_a_meeting, &p), 0);
    await(w, &w->c.meets, 1);
    tell_to_park(w);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_STALE);
    assert_true(session_rendezvous(w->session)->is_over(session_rendezvous(w->session)->self));
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_STALE);
    const struct copy_file *file = NULL;
    assert_int_equal(session_keep_newest(w->session, 0, &file), ST_STALE);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_STALE);
    free(t.values);
    world_free(w);
}

static void without_the_callback_park_is_as_over(void **state)
{
    (void)state;
    struct world *w = world_new(0);
    session_close(w->session);
    w->options.park = NULL;
    w->session = next_session(w, 3, NULL);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_park(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    await(w, &w->c.over_calls, 1);
    assert_string_equal(w->c.over_reason, "a worker died");
    world_free(w);
}

static void work_that_is_counted_outside_is_progress(void **state)
{
    (void)state;
    static _Atomic uint64_t ticks;
    struct world *w = world_new(0);
    session_close(w->session);
    atomic_store(&ticks, 1000); /* of generations before */
    w->options.ticks = &ticks;
    w->session = next_session(w, 3, NULL);
    const int64_t end_ms = clock_mono_ms(clock_system()) + LONG_MS;
    (void)pthread_mutex_lock(&w->c.mutex);
    while (w->c.progress_counter < 1000 && wait_until(&w->c, end_ms)) {
    }
    assert_int_equal(w->c.progress_counter, 1000);
    atomic_store(&ticks, 1007);
    while (w->c.progress_counter < 1007 && wait_until(&w->c, end_ms)) {
    }
    assert_int_equal(w->c.progress_counter, 1007);
    (void)pthread_mutex_unlock(&w->c.mutex);
    world_free(w);
}

/* ---- a spare ---- */

static void a_spare_waits_from_the_start_and_goes_on_with_a_seat(void **state)
{
    (void)state;
    const struct session_ready ready = { .total_steps = 20, .pins = "{}" };
    struct session_assignment assignment;
    struct parking p;
    struct world *w = world_new(0);
    w->c.plans_spare = true;
    assert_int_equal(session_join(w->session, "{}", LONG_MS, &assignment), ST_OK);
    assert_true(assignment.spare);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_park(&w->c); /* it has no part in what ends */
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_int_equal(session_set_warm(w->session, &ready), ST_OK);
    begin_parking(&p, w->session, 0);
    await(w, &w->c.parks, 1);
    assert_int_equal(w->c.ready_total, 20); /* before it */
    (void)pthread_mutex_lock(&w->c.mutex);
    const int said = w->c.parks; /* twice, if the order came when it was parked */
    lose(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    await(w, &w->c.attached, 1);
    assert_int_equal(w->c.parks, said + 1);             /* in its hello */
    assert_int_equal(w->session->copies.file_count, 0); /* it saves and copies nothing */
    w->c.plans_spare = false;
    tell_to_go_on(w, 4);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    assert_int_equal(p.status, ST_OK);
    assert_int_equal(w->c.park_calls, 0);
    struct session_retired *retired = NULL;
    assert_int_equal(session_retire(w->session, &retired), ST_OK);
    const struct session_parked kept = { 0 };
    w->session = next_session(w, 4, &kept);
    session_retired_join(retired);
    assert_false(session_is_over(w->session));
    get_ready(w);
    world_free(w);
}

/* ---- a store that stands still ---- */

static pthread_mutex_t store_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t store_changed = PTHREAD_COND_INITIALIZER;
static bool store_stands, store_reached;

static enum status slow_fsync(void *self, int fd)
{
    (void)pthread_mutex_lock(&store_mutex);
    store_reached = true;
    (void)pthread_cond_broadcast(&store_changed);
    while (store_stands)
        (void)pthread_cond_wait(&store_changed, &store_mutex);
    (void)pthread_mutex_unlock(&store_mutex);
    return io_system()->fsync(self, fd);
}

static void set_store(bool stands)
{
    (void)pthread_mutex_lock(&store_mutex);
    store_stands = stands;
    (void)pthread_cond_broadcast(&store_changed);
    (void)pthread_mutex_unlock(&store_mutex);
}

static void a_shard_that_is_being_written_holds_nobody_up(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    w->io.fsync = slow_fsync;
    set_store(true);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    (void)pthread_mutex_lock(&store_mutex);
    while (!store_reached)
        (void)pthread_cond_wait(&store_changed, &store_mutex);
    (void)pthread_mutex_unlock(&store_mutex);
    park_and_go_on(w, 6);
    struct session_retired *retired = NULL;
    assert_int_equal(session_retire(w->session, &retired), ST_OK); /* the store still stands */
    assert_false(session_retired_done(retired));
    const struct session_parked kept = { .step = 6, .complete = true, .computed_by = 3 };
    w->session = next_session(w, 4, &kept);
    get_ready(w);
    const struct session_fault fault = { .kind = CAIRN__V1__FAULT_KIND__NUMERIC,
                                         .message = "of generation 4" };
    session_fault(w->session, &fault);
    assert_false(session_retired_done(retired));
    set_store(false);
    while (!session_retired_done(retired))
        (void)usleep(1000);
    session_retired_join(retired);
    assert_int_equal(w->c.reports, 0); /* nothing was said of it */
    assert_int_equal(w->c.fails, 0);
    Cairn__V1__LastWords *words = read_words(w); /* and the new ones stand */
    assert_non_null(words);
    assert_int_equal(words->generation, 4);
    assert_non_null(words->fault);
    assert_int_equal(words->n_saves, 0);
    cairn__v1__last_words__free_unpacked(words, NULL);
    free(t.values);
    world_free(w);
}

/* ---- the copier ---- */

static _Atomic bool copier_waits;

static enum status start_nothing(void *arg)
{
    (void)arg;
    return ST_OK;
}

static enum status wait_to_copy(void *arg)
{
    struct world *w = arg;
    while (atomic_load(&copier_waits))
        (void)usleep(1000);
    (void)pthread_mutex_lock(&w->c.mutex);
    CHECK(w->c.parks == 0); /* the state is read, so it is not said to be left */
    (void)pthread_mutex_unlock(&w->c.mutex);
    return ST_OK;
}

static void parked_is_said_when_the_copier_no_longer_reads_the_state(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    struct training t;
    training_init(&t, 5);
    const struct session_snapshot snapshot = {
        .state = &t.state, .start = start_nothing, .wait = wait_to_copy, .arg = w
    };
    atomic_store(&copier_waits, true);
    assert_int_equal(session_snapshot_begin(w->session, &snapshot), ST_OK);
    struct parking p;
    tell_to_park(w);
    begin_parking(&p, w->session, 5);
    (void)usleep(20000);
    atomic_store(&copier_waits, false);
    await(w, &w->c.parks, 1);
    tell_to_go_on(w, 4);
    assert_int_equal(pthread_join(p.thread, NULL), 0);
    free(t.values);
    world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_goes_on_in_the_next_generation),
        cmocka_unit_test(who_is_parked_says_so_on_every_connection_and_waits),
        cmocka_unit_test(over_ends_one_that_is_parked),
        cmocka_unit_test(who_is_parked_without_a_coordinator_ends_as_an_orphan),
        cmocka_unit_test(a_failure_waits_for_park),
        cmocka_unit_test(whoever_waits_is_let_go),
        cmocka_unit_test(without_the_callback_park_is_as_over),
        cmocka_unit_test(work_that_is_counted_outside_is_progress),
        cmocka_unit_test(a_spare_waits_from_the_start_and_goes_on_with_a_seat),
        cmocka_unit_test(a_shard_that_is_being_written_holds_nobody_up),
        cmocka_unit_test(parked_is_said_when_the_copier_no_longer_reads_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
