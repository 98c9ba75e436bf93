/* The session with its real threads and real files (tests/unit/session/session_world.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/check.h"
#include "session/internal.h"
#include "tests/unit/session/session_world.h"

static void a_session_joins_trains_saves_and_finishes(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    struct training t;
    uint64_t committed = 0;
    for (uint64_t step = 1; step <= 20; step++) {
        session_mark(w->session, step, "update");
        session_tick(w->session);
        session_add_row(w->session, &(struct session_row){ .step = step, .loss = 1 });
        if (session_due_at(w->session, step) == SESSION_DUE_NOTHING)
            continue;
        assert_int_equal(step % 5, 0);
        training_init(&t, step);
        assert_int_equal(save(w->session, &t.state), ST_OK);
        free(t.values);
        assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
        assert_int_equal(committed, step);
        /* One folder serves all steps here. */
        (void)io_system()->list(NULL, w->c.dir, remove_name, w->c.dir);
    }
    session_finished(w->session, 20);
    await(w, &w->c.finished, 1);
    assert_int_equal(w->c.reports, 4);
    assert_int_equal(w->c.ready_total, 20);
    assert_int_equal(w->c.rows_through, 20);
    assert_int_equal(w->c.hellos, 1);
    assert_false(session_is_over(w->session));
    world_free(w);
}

/* Under the session's mutex, which is let go while it waits. */
static void await_made(struct session *session)
{
    (void)pthread_mutex_lock(&session->mutex);
    while (session->copies.made < session->copies.file_count) {
        assert_true(session->copies.needed);
        (void)session_wait(session, session_deadline(LONG_MS));
    }
    (void)pthread_mutex_unlock(&session->mutex);
}

static void copy_files_are_made_beside_the_first_step_only_if_it_is_due(void **state)
{
    (void)state;
    for (uint64_t first = 2; first <= 4; first++) {
        struct world *w = joined();
        const struct session_ready ready = { .total_steps = 20,
                                             .steps_per_epoch = 10,
                                             .step = first,
                                             .save_every = 5,
                                             .pins = "{}",
                                             .snapshot_bytes_max = ELEMENTS * sizeof(float) };
        assert_int_equal(session_set_ready(w->session, &ready), ST_OK);
        assert_true(w->session->copies.needed == (first == 4));
        if (first == 2) { /* else step 5 */
            assert_int_equal(session_due_at(w->session, first), SESSION_DUE_NOTHING);
            assert_false(w->session->copies.needed); /* of the step that it began with */
        }
        if (first < 4)
            assert_int_equal(session_due_at(w->session, first + 1), SESSION_DUE_NOTHING);
        await_made(w->session);
        world_free(w);
    }
}

static void what_is_stored_is_the_state_at_the_time_of_the_call(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.gives_folders = false;
    (void)pthread_mutex_unlock(&w->c.mutex);
    struct training t;
    training_init(&t, 5);
    struct ckpt_hash before, stored, made;
    assert_int_equal(ckpt_state_digest(&t.state, &before), ST_OK);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    await(w, &w->c.begins, 1);
    memset(t.values, 0x55, ELEMENTS * sizeof(float)); /* training goes on */
    t.skip[0] = 99;
    (void)pthread_mutex_lock(&w->c.mutex);
    order_folder(&w->c, 5);
    (void)pthread_mutex_unlock(&w->c.mutex);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 5);
    struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(ckpt_commit_check(io_system(), w->c.dir, &w->c.report, 1), ST_OK);
    assert_int_equal(
        ckpt_manifest_make(&w->c.report, 1, JOB, "2026-01-02T03:04:05Z", &manifest, &made), ST_OK);
    assert_int_equal(ckpt_manifest_publish(io_system(), w->c.dir, manifest.data, manifest.size),
                     ST_OK);
    assert_int_equal(ckpt_digest(io_system(), w->c.dir, &stored), ST_OK);
    assert_memory_equal(&made, &before, sizeof(before));
    assert_memory_equal(&stored, &before, sizeof(before));
    buf_release(&manifest);
    free(t.values);
    world_free(w);
}

static void a_save_is_committed_however_often_the_link_is_lost(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.loses = true;
    lose(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    free(t.values);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 5);
    assert_true(w->c.opened >= 3); /* one message, two messages, … are not enough */
    assert_int_equal(w->c.hellos - w->c.attached, 1);
    world_free(w);
}

static enum status join(struct world *w, const char *name, int64_t timeout_ms,
                        struct rendezvous_got *got)
{
    const struct rendezvous *rendezvous = session_rendezvous(w->session);
    const struct rendezvous_part mine = {
        .common = "host", .common_size = 4, .items = "pp", .item_size = 2
    };
    return rendezvous->join(rendezvous->self, name, &mine, 1, timeout_ms, got);
}

static void ranks_meet_and_one_that_gave_up_may_go_on_waiting(void **state)
{
    (void)state;
    struct world *w = joined();
    struct rendezvous_got got;
    assert_int_equal(join(w, "workers", LONG_MS, &got), ST_OK);
    assert_int_equal(got.common_size, 4);
    assert_memory_equal(got.common, "host", 4);
    assert_memory_equal(got.item, "pp", 2);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.meets_silent = true;
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_int_equal(join(w, "peers", 1, &got), ST_TIMED_OUT);
    await(w, &w->c.meets, 2);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.meets_silent = false;
    lose(&w->c);
    (void)pthread_mutex_unlock(&w->c.mutex);
    assert_int_equal(join(w, "peers", LONG_MS, &got), ST_OK);
    assert_int_equal(w->c.meets, 4); /* both were said again */
    const struct rendezvous *rendezvous = session_rendezvous(w->session);
    const struct rendezvous_part nothing = { 0 };
    assert_int_equal(rendezvous->join(rendezvous->self, "x", &nothing, 2, LONG_MS, &got),
                     ST_INVALID); /* there is one rank */
    assert_false(rendezvous->is_over(rendezvous->self));
    world_free(w);
}

static void *wait_for_others(void *arg)
{
    struct world *w = arg;
    struct rendezvous_got got;
    return (void *)(intptr_t)join(w, "never", LONG_MS, &got);
}

static void over_frees_whoever_waits_and_is_told_once(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.meets_silent = true;
    w->c.gives_folders = false;
    (void)pthread_mutex_unlock(&w->c.mutex);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_for_others, w), 0);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    await(w, &w->c.begins, 1);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_over(&w->c, "a newer generation");
    (void)pthread_mutex_unlock(&w->c.mutex);
    void *result = NULL;
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((int)(intptr_t)result, ST_STALE);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_STALE);
    assert_int_equal(save(w->session, &t.state), ST_STALE);
    await(w, &w->c.over_calls, 1);
    assert_true(session_is_over(w->session));
    const struct rendezvous *rendezvous = session_rendezvous(w->session);
    assert_true(rendezvous->is_over(rendezvous->self));
    assert_string_equal(w->c.over_reason, "a newer generation");
    free(t.values);
    session_close(w->session);
    w->session = NULL;
    assert_int_equal(w->c.over_calls, 1);
    world_free(w);
}

static void a_session_that_is_refused_is_over(void **state)
{
    (void)state;
    struct world *w = world_new(0);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.refuse = true;
    (void)pthread_mutex_unlock(&w->c.mutex);
    struct session_assignment assignment;
    assert_int_equal(session_join(w->session, "{}", LONG_MS, &assignment), ST_STALE);
    await(w, &w->c.over_calls, 1);
    world_free(w);
}

static void a_session_without_a_coordinator_says_so_and_leaves_in_the_end(void **state)
{
    (void)state;
    struct world *w = world_new(300);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.absent = true;
    (void)pthread_mutex_unlock(&w->c.mutex);
    struct session_assignment assignment;
    assert_int_equal(session_join(w->session, "{}", 10, &assignment), ST_UNREACHABLE);
    await(w, &w->c.over_calls, 1);
    assert_non_null(strstr(w->c.over_reason, "no coordinator"));
    world_free(w);
}

/* Odd within one, also after one that was never ended. */
static void collectives_and_exchanges_are_counted_where_they_begin_and_end(void **state)
{
    (void)state;
    const struct {
        bool exchange, inside;
        uint64_t collectives, exchanges;
    } marks[] = {
        { false, true, 1, 0 }, { false, false, 2, 0 }, { false, false, 2, 0 },
        { true, true, 2, 1 },  { false, true, 3, 1 },  { false, true, 5, 1 },
        { true, true, 5, 3 },  { true, false, 5, 4 },
    };
    struct world *w = joined();
    get_ready(w);
    session_mark(w->session, 3, "forward");
    await_place(w, "none", 0, 0);
    for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++) {
        if (marks[i].exchange) {
            session_mark_exchange(w->session, marks[i].inside);
        } else {
            session_mark_collective(w->session, "reduce", marks[i].inside);
        }
        await_place(w, "reduce", marks[i].collectives, marks[i].exchanges);
    }
    world_free(w);
}

static void a_fault_is_in_the_last_words_with_or_without_a_coordinator(void **state)
{
    (void)state;
    for (int absent = 0; absent < 2; absent++) {
        struct world *w = joined();
        get_ready(w);
        if (absent == 1) {
            (void)pthread_mutex_lock(&w->c.mutex);
            w->c.absent = true;
            lose(&w->c);
            (void)pthread_mutex_unlock(&w->c.mutex);
        }
        session_mark(w->session, 12, "reduce");
        const uint32_t blamed = 1;
        const struct session_fault first = { .kind = CAIRN__V1__FAULT_KIND__DAMAGED_CHECKPOINT,
                                             .shard = 8,
                                             .outside = true,
                                             .stays = true,
                                             .message = "rank 1 is gone",
                                             .ranks = &blamed,
                                             .rank_count = 1 };
        const struct session_fault second = { .kind = CAIRN__V1__FAULT_KIND__STORE,
                                              .of_node = true,
                                              .message = "what followed" };
        session_fault(w->session, &first);
        session_fault(w->session, &second);
        if (absent == 0) {
            await(w, &w->c.faults, 1);
            assert_string_equal(w->c.fault_message, "rank 1 is gone");
            assert_true(w->c.fault_outside);
        }
        Cairn__V1__LastWords *words = read_words(w);
        assert_non_null(words);
        assert_string_equal(words->fault->message, "rank 1 is gone");
        assert_string_equal(words->fault->phase, "reduce");
        assert_int_equal(words->fault->step, 12);
        assert_int_equal(words->fault->ranks[0], 1);
        assert_int_equal(words->fault->shard, 8);
        assert_true(words->fault->outside);
        assert_true(words->fault->stays);
        cairn__v1__last_words__free_unpacked(words, NULL);
        world_free(w);
    }
}

/* A copy in memory, as the step loop takes one after each step. */
static void take_copy(struct world *w, uint64_t step)
{
    struct training t;
    training_init(&t, step);
    const struct session_snapshot snapshot = { .state = &t.state };
    assert_int_equal(session_snapshot_begin(w->session, &snapshot), ST_OK);
    assert_int_equal(session_snapshot_wait(w->session), ST_OK);
    free(t.values);
}

static void a_copy_is_kept_for_another_node_while_training_goes_on(void **state)
{
    (void)state;
    struct world *w = joined();
    const struct session_ready ready = { .total_steps = 100,
                                         .save_every = 50,
                                         .pins = "{}",
                                         .memory_every = 1,
                                         .peers = true,
                                         .peer_copies = 1,
                                         .snapshot_bytes_max = ELEMENTS * sizeof(float) };
    assert_int_equal(session_set_ready(w->session, &ready), ST_OK);
    const struct copy_file *first = NULL, *second = NULL, *other = NULL;
    take_copy(w, 1);
    assert_int_equal(session_keep_newest(w->session, 0, &first), ST_OK);
    assert_int_equal(copy_file_state(first)->scalars.step, 1);
    take_copy(w, 2);
    assert_int_equal(session_keep(w->session, 2, &second), ST_OK);
    for (uint64_t step = 3; step <= 12; step++)
        take_copy(w, step);
    struct copy_view view;
    assert_int_equal(copy_view_parse(first->memory, first->size, first->size, &view), ST_OK);
    assert_int_equal(view.head->step, 1);
    assert_int_equal(copy_view_parse(second->memory, second->size, second->size, &view), ST_OK);
    assert_int_equal(view.head->step, 2);
    session_unkeep(w->session, first);
    assert_int_equal(session_keep(w->session, 5, &other), ST_INCOMPLETE);
    assert_int_equal(session_keep(w->session, 13, &other), ST_INCOMPLETE);
    assert_int_equal(session_keep_newest(w->session, 2, &other), ST_OK);
    assert_int_equal(copy_file_state(other)->scalars.step, 12);
    session_keep_end(w->session);
    assert_int_equal(session_keep_newest(w->session, 12, &first), ST_STALE);
    session_note_step(w->session, 80);
    const struct session_copy_cost copy_cost = session_copy_cost(w->session);
    assert_true(copy_cost.step_ms == 80 && copy_cost.stall_ms > 0 && copy_cost.cpu_ms > 0 &&
                copy_cost.busy_ms > 0);
    assert_int_equal(session_due_at(w->session, 13), SESSION_DUE_COPY);
    session_set_memory_every(w->session, 4);
    assert_int_equal(session_due_at(w->session, 14), SESSION_DUE_NOTHING);
    assert_int_equal(session_due_at(w->session, 16), SESSION_DUE_COPY);
    world_free(w);
}

static void a_dropped_save_leaves_no_file(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.commits = false;
    (void)pthread_mutex_unlock(&w->c.mutex);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    await(w, &w->c.reports, 1);
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/shard-00000-of-00001.cairn", w->c.dir);
    assert_int_equal(access(path, F_OK), 0);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_done(&w->c, 5, false);
    (void)pthread_mutex_unlock(&w->c.mutex);
    await(w, &w->c.removed, 1);
    assert_int_not_equal(access(path, F_OK), 0);
    uint64_t committed = 7;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 0);
    free(t.values);
    world_free(w);
}

/* A peer had passed step 3 when the order to leave after it came: it waits in step 4. */
static void an_exit_that_is_taken_back_ends_the_wait_for_its_save(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    (void)pthread_mutex_lock(&w->c.mutex);
    w->c.commits = false;
    order_save_at(&w->c, 3, true);
    (void)pthread_mutex_unlock(&w->c.mutex);
    struct rendezvous_got got;
    assert_int_equal(join(w, "x", LONG_MS, &got), ST_OK); /* what came before it is heard */
    assert_int_equal(session_due_at(w->session, 3), SESSION_DUE_SAVE_AND_EXIT);
    struct training t;
    training_init(&t, 3);
    assert_int_equal(save(w->session, &t.state), ST_OK);
    await(w, &w->c.reports, 1);
    (void)pthread_mutex_lock(&w->c.mutex);
    order_stay(&w->c, 3);
    order_done(&w->c, 3, false);
    (void)pthread_mutex_unlock(&w->c.mutex);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_REFUSED);
    await(w, &w->c.removed, 1);
    assert_int_equal(session_due_at(w->session, 4), SESSION_DUE_NOTHING);
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    free(t.values);
    world_free(w);
}

static void a_snapshot_larger_than_announced_is_refused_and_the_next_works(void **state)
{
    (void)state;
    struct world *w = joined();
    const struct session_ready ready = { .total_steps = 20,
                                         .pins = "{}",
                                         .snapshot_bytes_max = PIECE_ELEMENTS };
    assert_int_equal(session_set_ready(w->session, &ready), ST_OK);
    struct training t;
    training_init(&t, 5);
    assert_int_equal(save(w->session, &t.state), ST_FULL);
    t.buffer.count = 1000;
    t.tensor.dims[0] = 1000;
    assert_int_equal(save(w->session, &t.state), ST_OK);
    uint64_t committed = 0;
    assert_int_equal(session_settle(w->session, LONG_MS, &committed), ST_OK);
    assert_int_equal(committed, 5);
    free(t.values);
    world_free(w);
}

struct device_copy {
    struct training *training;
    pthread_mutex_t mutex;
    int starts;
    bool arrived;
};

static enum status start_copy(void *arg)
{
    struct device_copy *copy = arg;
    copy->starts++;
    return ST_OK;
}

/* The copier waits for the device; only then the host's copy is what it should be. */
static enum status wait_copy(void *arg)
{
    struct device_copy *copy = arg;
    (void)pthread_mutex_lock(&copy->mutex); /* until the test lets it arrive */
    memset(copy->training->values, 0x11, ELEMENTS * sizeof(float));
    copy->arrived = true;
    (void)pthread_mutex_unlock(&copy->mutex);
    return ST_OK;
}

static void a_devices_copy_is_waited_for_beside_the_step(void **state)
{
    (void)state;
    struct world *w = joined();
    get_ready(w);
    struct training t, arrived;
    training_init(&t, 5);
    training_init(&arrived, 5);
    memset(arrived.values, 0x11, ELEMENTS * sizeof(float));
    struct ckpt_hash wanted, made;
    assert_int_equal(ckpt_state_digest(&arrived.state, &wanted), ST_OK);
    struct device_copy copy = { .training = &t, .mutex = PTHREAD_MUTEX_INITIALIZER };
    const struct session_snapshot snapshot = {
        .state = &t.state, .saves = true, .start = start_copy, .wait = wait_copy, .arg = &copy
    };
    (void)pthread_mutex_lock(&copy.mutex);
    assert_int_equal(session_snapshot_begin(w->session, &snapshot), ST_OK);
    assert_int_equal(copy.starts, 1);
    assert_false(copy.arrived);
    (void)pthread_mutex_unlock(&copy.mutex);
    assert_int_equal(session_snapshot_wait(w->session), ST_OK);
    assert_true(copy.arrived);
    await(w, &w->c.reports, 1);
    struct buf manifest;
    buf_init(&manifest, LIMIT_MANIFEST_BYTES);
    assert_int_equal(
        ckpt_manifest_make(&w->c.report, 1, JOB, "2026-01-02T03:04:05Z", &manifest, &made), ST_OK);
    assert_memory_equal(&made, &wanted, sizeof(made));
    buf_release(&manifest);
    world_free(w);
    free(t.values);
    free(arrived.values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_joins_trains_saves_and_finishes),
        cmocka_unit_test(copy_files_are_made_beside_the_first_step_only_if_it_is_due),
        cmocka_unit_test(what_is_stored_is_the_state_at_the_time_of_the_call),
        cmocka_unit_test(a_save_is_committed_however_often_the_link_is_lost),
        cmocka_unit_test(ranks_meet_and_one_that_gave_up_may_go_on_waiting),
        cmocka_unit_test(over_frees_whoever_waits_and_is_told_once),
        cmocka_unit_test(a_session_that_is_refused_is_over),
        cmocka_unit_test(a_session_without_a_coordinator_says_so_and_leaves_in_the_end),
        cmocka_unit_test(collectives_and_exchanges_are_counted_where_they_begin_and_end),
        cmocka_unit_test(a_fault_is_in_the_last_words_with_or_without_a_coordinator),
        cmocka_unit_test(a_devices_copy_is_waited_for_beside_the_step),
        cmocka_unit_test(a_copy_is_kept_for_another_node_while_training_goes_on),
        cmocka_unit_test(a_dropped_save_leaves_no_file),
        cmocka_unit_test(an_exit_that_is_taken_back_ends_the_wait_for_its_save),
        cmocka_unit_test(a_snapshot_larger_than_announced_is_refused_and_the_next_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
