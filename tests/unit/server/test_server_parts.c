/* The coordinator's parts: journal, codec of the state, placement, rendezvous map, store worker. */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "server/core/place.h"
#include "server/core/rendezvous.h"
#include "server/journal/journal.h"
#include "server/machine/codec.h"
#include "server/store/worker.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* ---- journal ---- */

struct files {
    char dir[64];
    char path[128];
    struct journal *journal;
};

static int open_files(void **state)
{
    struct files *f = calloc(1, sizeof *f);
    (void)snprintf(f->dir, sizeof f->dir, "/tmp/cairn-journal-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof f->path, "%s/cairnd.db", f->dir);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
    *state = f;
    return 0;
}

static int close_files(void **state)
{
    struct files *f = *state;
    journal_close(f->journal);
    static const char *const ends[] = { "", "-wal", "-shm", ".lock" };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char name[160];
        (void)snprintf(name, sizeof name, "%s%s", f->path, ends[i]);
        (void)unlink(name);
    }
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

static void reopen(struct files *f)
{
    journal_close(f->journal);
    assert_int_equal(journal_open(f->path, &f->journal), ST_OK);
}

static bool count_jobs(void *arg, const struct journal_job *job)
{
    (void)job;
    (*(int *)arg)++;
    return true;
}

static void put_job(struct files *f, const char *id, int64_t seq)
{
    struct journal_job job = {
        .id = id, .name = "name", .seq = seq, .job_file = "a: 1\n", .pins = "", .state = "{}"
    };
    assert_int_equal(journal_put_job(f->journal, &job), ST_OK);
}

static void what_was_committed_survives_and_what_was_not_does_not(void **state)
{
    struct files *f = *state;
    int count = 0;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-1", 1);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-2", 2);
    reopen(f); /* in the middle of a transaction */
    assert_int_equal(journal_each_job(f->journal, count_jobs, &count), ST_OK);
    assert_int_equal(count, 1);
}

static void a_frozen_journal_commits_nothing(void **state)
{
    struct files *f = *state;
    int count = 0;
    journal_freeze(f->journal);
    assert_int_equal(journal_begin(f->journal), ST_OK);
    put_job(f, "j-1", 1);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    reopen(f);
    assert_int_equal(journal_each_job(f->journal, count_jobs, &count), ST_OK);
    assert_int_equal(count, 0);
}

static void a_second_coordinator_is_kept_out(void **state)
{
    struct files *f = *state;
    struct journal *second;
    assert_int_equal(journal_open(f->path, &second), ST_EXISTS);
}

static bool take_save(void *arg, const struct journal_save *save)
{
    struct journal_save *out = arg;
    *out = *save;
    assert_int_equal(save->manifest_size, 5);
    assert_memory_equal(save->manifest, "bytes", 5);
    assert_string_equal(save->digest, "0123");
    return true;
}

static bool count_reports(void *arg, uint32_t rank, const void *report, size_t size)
{
    int *count = arg;
    assert_int_equal(size, 3);
    assert_memory_equal(report, rank == 0 ? "abc" : "def", 3);
    (*count)++;
    return true;
}

static void the_decision_comes_back_with_its_manifest_and_reports(void **state)
{
    struct files *f = *state;
    struct journal_save row = { .step = 50,
                                .generation = 3,
                                .state = SAVE_COMMITTING,
                                .wall_ms = 7,
                                .manifest = "bytes",
                                .manifest_size = 5,
                                .digest = "0123",
                                .bytes = 10,
                                .raw_bytes = 20,
                                .shards = 2 };
    assert_int_equal(journal_begin(f->journal), ST_OK);
    assert_int_equal(journal_put_save(f->journal, "j-1", &row), ST_OK);
    assert_int_equal(journal_put_report(f->journal, "j-1", 50, 3, 0, "abc", 3), ST_OK);
    assert_int_equal(journal_put_report(f->journal, "j-1", 50, 3, 1, "def", 3), ST_OK);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    reopen(f);
    struct journal_save back = { 0 };
    int reports = 0;
    assert_int_equal(journal_each_save(f->journal, "j-1", take_save, &back), ST_OK);
    assert_int_equal(back.step, 50);
    assert_int_equal(back.generation, 3);
    assert_int_equal(back.state, SAVE_COMMITTING);
    assert_int_equal(back.raw_bytes, 20);
    assert_int_equal(journal_each_report(f->journal, "j-1", 50, 3, count_reports, &reports), ST_OK);
    assert_int_equal(reports, 2);
    assert_int_equal(journal_drop_save(f->journal, "j-1", 50, 3), ST_OK);
    reports = 0;
    assert_int_equal(journal_each_report(f->journal, "j-1", 50, 3, count_reports, &reports), ST_OK);
    assert_int_equal(reports, 0);
}

static bool count_events(void *arg, const struct journal_event *event)
{
    uint64_t *newest = arg;
    assert_true(event->step > newest[0] || newest[1] == 0);
    newest[0] = event->step;
    newest[1]++;
    return true;
}

static void events_are_bounded_and_come_oldest_first(void **state)
{
    struct files *f = *state;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    for (uint64_t i = 1; i <= LIMIT_EVENTS_PER_JOB + 500; i++) {
        struct journal_event event = { .step = i, .kind = "k", .message = "m" };
        assert_int_equal(journal_put_event(f->journal, "j-1", &event), ST_OK);
    }
    assert_int_equal(journal_commit(f->journal), ST_OK);
    uint64_t newest[2] = { 0, 0 };
    assert_int_equal(journal_each_event(f->journal, "j-1", 1u << 30, count_events, newest), ST_OK);
    assert_int_equal(newest[0], LIMIT_EVENTS_PER_JOB + 500);
    assert_in_range(newest[1], LIMIT_EVENTS_PER_JOB, LIMIT_EVENTS_PER_JOB + 100);
    newest[0] = newest[1] = 0;
    assert_int_equal(journal_each_event(f->journal, "j-1", 5, count_events, newest), ST_OK);
    assert_int_equal(newest[1], 5);
}

struct metrics {
    uint64_t count, evals, last;
};

static bool count_metrics(void *arg, uint64_t step, const void *row, size_t size)
{
    struct metrics *m = arg;
    (void)size;
    m->count++;
    m->evals += memcmp(row, "eval", 4) == 0;
    m->last = step;
    return true;
}

static void metrics_are_thinned_but_evaluations_and_the_newest_stay(void **state)
{
    struct files *f = *state;
    const uint64_t all = 100000;
    assert_int_equal(journal_begin(f->journal), ST_OK);
    for (uint64_t i = 1; i <= all; i++) {
        bool eval = i % 1001 == 0;
        assert_int_equal(journal_put_metric(f->journal, "j-1", i, eval, eval ? "eval" : "loss", 4),
                         ST_OK);
    }
    assert_int_equal(journal_bound_metrics(f->journal, "j-1"), ST_OK);
    assert_int_equal(journal_commit(f->journal), ST_OK);
    struct metrics m = { 0 };
    assert_int_equal(journal_each_metric(f->journal, "j-1", 0, UINT32_MAX, count_metrics, &m),
                     ST_OK);
    assert_true(m.count <= LIMIT_METRIC_ROWS);
    assert_int_equal(m.evals, all / 1001);
    assert_int_equal(m.last, all);
    uint64_t step = 0;
    assert_int_equal(journal_metric_back(f->journal, "j-1", 100, &step), ST_OK);
    assert_int_equal(step, all - 99);
    assert_int_equal(journal_metric_back(f->journal, "j-2", 100, &step), ST_NOT_FOUND);
}

static void a_row_of_a_repeated_step_takes_the_place_of_the_older(void **state)
{
    struct files *f = *state;
    struct metrics m = { 0 };
    assert_int_equal(journal_put_metric(f->journal, "j-1", 5, false, "loss", 4), ST_OK);
    assert_int_equal(journal_put_metric(f->journal, "j-1", 5, true, "eval", 4), ST_OK);
    assert_int_equal(journal_each_metric(f->journal, "j-1", 0, 10, count_metrics, &m), ST_OK);
    assert_int_equal(m.count, 1);
    assert_int_equal(m.evals, 1);
}

static void keys_are_remembered(void **state)
{
    struct files *f = *state;
    char what[32];
    assert_int_equal(journal_get_key(f->journal, "k", what, sizeof what), ST_NOT_FOUND);
    assert_int_equal(journal_put_key(f->journal, "k", "j-1", 5), ST_OK);
    assert_int_equal(journal_get_key(f->journal, "k", what, sizeof what), ST_OK);
    assert_string_equal(what, "j-1");
}

/* ---- the state as JSON ---- */

static void the_state_survives_the_journal(void **state)
{
    struct bench *b = malloc(sizeof *b);
    struct jm_config config = bench_config();
    (void)state;
    bench_open(b, &config);
    bench_run(b, 1000);
    bench_commit(b, 50);
    bench_fault(b, 1, FAULT_NUMERIC, 57);
    bench_all_exit(b);
    bench_run(b, 1000);
    bench_fault(b, 1, FAULT_NUMERIC, 57);
    bench_all_exit(b);
    bench_tick(b, 2000);
    bench_run(b, 1000);
    assert_int_equal(bench_ask(b, EV_PAUSE), ST_OK);

    struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(job_encode(&b->m, &text), ST_OK);
    struct job_machine back;
    struct job_event at = { .now = 1 };
    assert_int_equal(jm_init(&back, b->m.id, &config, &at), ST_OK);
    assert_int_equal(job_decode(&back, text.data), ST_OK);
    assert_int_equal(back.state, b->m.state);
    assert_int_equal(back.generation, 3);
    assert_int_equal(back.intent, INTENT_PAUSE);
    assert_int_equal(back.restore_step, 50);
    assert_int_equal(back.skip_count, 1);
    assert_int_equal(back.skip[0], 57);
    assert_int_equal(back.announced[0].step + back.announced[1].step + back.announced[2].step +
                         back.announced[3].step,
                     b->m.announced[0].step + b->m.announced[1].step + b->m.announced[2].step +
                         b->m.announced[3].step);
    assert_string_equal(back.token, "token");
    assert_string_equal(back.ranks[1].node, "node");
    assert_int_equal(back.ranks[1].slot, 1);
    assert_memory_equal(back.lost_ms, b->m.lost_ms, sizeof back.lost_ms);
    struct buf again;
    buf_init(&again, 1 << 20);
    assert_int_equal(job_encode(&back, &again), ST_OK);
    assert_string_equal(text.data, again.data);
    buf_release(&text);
    buf_release(&again);
    jm_release(&back);
    bench_close(b);
    free(b);
}

static void a_broken_state_is_refused(void **state)
{
    static const char *const broken[] = {
        "",
        "[]",
        "{}",
        "{\"state\":99,\"ranks\":[]}",
        "{\"state\":\"x\",\"ranks\":[]}",
        "{\"state\":1,\"ranks\":[{},{},{}]}",
        "{\"state\":1,\"skip\":[{\"n\":\"a\"}],\"ranks\":[]}",
    };
    struct jm_config config = bench_config();
    struct job_event at = { .now = 1 };
    (void)state;
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        struct job_machine m;
        assert_int_equal(jm_init(&m, "j-1", &config, &at), ST_OK);
        assert_int_equal(job_decode(&m, broken[i]), ST_CORRUPT);
        jm_release(&m);
    }
}

/* ---- placement ---- */

static const bool none_used[8];

static struct place_node node(const char *name, uint32_t slots, const bool *used)
{
    return (struct place_node){
        .name = name, .device = "cpu", .slots = slots, .used = used, .ready = true
    };
}

static void workers_share_the_fullest_node_that_fits(void **state)
{
    const bool half[4] = { true, false, true, false };
    struct place_node nodes[] = { node("a", 8, none_used), node("b", 4, half) };
    struct place_ask ask = { .count = 2, .device = "cpu" };
    struct place_slot out[2];
    char reason[LIMIT_REASON];
    (void)state;
    assert_int_equal(place_workers(nodes, 2, &ask, out, reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(out[0].slot, 1);
    assert_int_equal(out[1].node, 1);
    assert_int_equal(out[1].slot, 3);
}

static void workers_spread_over_few_nodes_when_none_has_room(void **state)
{
    struct place_node nodes[] = { node("a", 2, none_used), node("b", 4, none_used),
                                  node("c", 1, none_used) };
    struct place_ask ask = { .count = 5, .device = "cpu" };
    struct place_slot out[5];
    char reason[LIMIT_REASON];
    (void)state;
    assert_int_equal(place_workers(nodes, 3, &ask, out, reason), ST_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(out[i].node, 1);
    assert_int_equal(out[4].node, 2);
}

static void waiting_says_what_is_missing(void **state)
{
    const bool used[4] = { true, true, true, false };
    struct place_node nodes[] = { node("a", 4, used) };
    struct place_ask ask = { .count = 2, .device = "cpu" };
    struct place_slot out[2];
    char reason[LIMIT_REASON];
    (void)state;
    assert_int_equal(place_workers(nodes, 1, &ask, out, reason), ST_AGAIN);
    assert_string_equal(reason, "needs 2 slots, 1 of 4 is free");
    assert_int_equal(place_workers(nodes, 0, &ask, out, reason), ST_AGAIN);
    assert_string_equal(reason, "needs 2 slots, no node is registered yet");
    nodes[0].ready = false;
    assert_int_equal(place_workers(nodes, 1, &ask, out, reason), ST_AGAIN);
    ask.device = "cuda";
    assert_int_equal(place_workers(nodes, 1, &ask, out, reason), ST_REFUSED);
    assert_non_null(strstr(reason, "cuda"));
}

static void gpus_are_slots_after_the_cpu_shares(void **state)
{
    const bool one_used[2] = { true, false };
    struct place_node nodes[] = { node("a", 4, none_used), node("a", 2, one_used) };
    struct place_ask ask = { .count = 1, .device = "cuda" };
    struct place_slot out[2];
    char reason[LIMIT_REASON];
    (void)state;
    nodes[1].device = "cuda";
    nodes[1].first = 4;
    assert_int_equal(place_workers(nodes, 2, &ask, out, reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(out[0].slot, 5);
    ask.count = 2;
    assert_int_equal(place_workers(nodes, 2, &ask, out, reason), ST_AGAIN);
    assert_string_equal(reason, "needs 2 slots, 1 of 2 is free");
    ask.device = "cpu";
    assert_int_equal(place_workers(nodes, 2, &ask, out, reason), ST_OK);
    assert_int_equal(out[1].slot, 1);
}

static void excluded_and_avoided_nodes_take_nobody(void **state)
{
    struct place_node nodes[] = { node("a", 4, none_used), node("b", 4, none_used) };
    const char excluded[1][LIMIT_NAME] = { "a" };
    struct place_ask ask = {
        .count = 1, .device = "cpu", .excluded = excluded, .excluded_count = 1
    };
    struct place_slot out[1];
    char reason[LIMIT_REASON];
    (void)state;
    assert_int_equal(place_workers(nodes, 2, &ask, out, reason), ST_OK);
    assert_int_equal(out[0].node, 1);
    assert_int_equal(place_workers(nodes, 1, &ask, out, reason), ST_AGAIN);
    assert_non_null(strstr(reason, "pins"));
    ask.excluded_count = 0;
    ask.avoided = excluded;
    ask.avoided_count = 1;
    assert_int_equal(place_workers(nodes, 2, &ask, out, reason), ST_OK);
    assert_int_equal(out[0].node, 1);
}

/* ---- rendezvous ---- */

static void the_map_keeps_counts_and_forgets(void **state)
{
    struct kv_map map = { 0 };
    int64_t sum;
    (void)state;
    for (int i = 999; i >= 0; i--) {
        char key[16];
        (void)snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(kv_map_set(&map, key, &i, sizeof i), ST_OK);
    }
    for (int i = 0; i < 1000; i++) {
        char key[16];
        (void)snprintf(key, sizeof key, "k%d", i);
        const struct kv_entry *entry = kv_map_get(&map, key);
        assert_non_null(entry);
        assert_memory_equal(entry->value, &i, sizeof i);
    }
    assert_null(kv_map_get(&map, "k1000"));
    assert_int_equal(kv_map_add(&map, "n", 5, &sum), ST_OK);
    assert_int_equal(kv_map_add(&map, "n", -7, &sum), ST_OK);
    assert_int_equal(sum, -2);
    assert_int_equal(kv_map_add(&map, "n", INT64_MIN, &sum), ST_INVALID);
    assert_int_equal(kv_map_add(&map, "k1", 1, &sum), ST_INVALID);
    kv_map_remove(&map, "k500");
    assert_null(kv_map_get(&map, "k500"));
    assert_int_equal(map.count, 1000);
    kv_map_clear(&map);
    assert_int_equal(map.count, 0);
}

static void the_map_is_bounded(void **state)
{
    struct kv_map map = { 0 };
    static char value[LIMIT_KV_VALUE + 1];
    char key[LIMIT_KV_KEY + 2];
    (void)state;
    memset(key, 'k', sizeof key);
    key[LIMIT_KV_KEY] = '\0';
    assert_int_equal(kv_map_set(&map, key, "", 0), ST_FULL);
    assert_int_equal(kv_map_set(&map, "big", value, sizeof value), ST_FULL);
    enum status st = ST_OK;
    size_t count = 0;
    for (; st == ST_OK && count < 2000; count++) {
        (void)snprintf(key, sizeof key, "%zu", count);
        st = kv_map_set(&map, key, value, LIMIT_KV_VALUE);
    }
    assert_int_equal(st, ST_FULL);
    assert_true(map.bytes <= KV_BYTES_MAX);
    kv_map_clear(&map);
}

/* ---- the store's thread ---- */

struct answers {
    atomic_int count;
    atomic_int timed_out;
};

static void take_answer(void *arg, struct store_task *task)
{
    struct answers *answers = arg;
    if (task->status == ST_TIMED_OUT)
        atomic_fetch_add(&answers->timed_out, 1);
    store_task_free(task);
    atomic_fetch_add(&answers->count, 1);
}

/* A store whose first stat never comes back in time. */
struct stuck {
    struct io io;
    const struct io *real;
    atomic_int entered, released;
};

static enum status stuck_mkdir(void *self, const char *path)
{
    struct stuck *stuck = self;
    if (atomic_fetch_add(&stuck->entered, 1) == 0)
        while (!atomic_load(&stuck->released))
            (void)sched_yield();
    return stuck->real->mkdir(stuck->real->self, path);
}

static void submit_probe(struct store_worker *worker)
{
    struct store_task *task = store_task_new(STORE_PROBE);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof task->job, "j-1");
    (void)snprintf(task->store, sizeof task->store, "/proc/none/store");
    (void)snprintf(task->nonce, sizeof task->nonce, "%032d", 1);
    struct store_port port = store_worker_port(worker);
    port.submit(port.self, task);
}

static void await(atomic_int *counter, int at_least)
{
    int64_t end = clock_mono_ms(clock_system()) + 20000;
    while (atomic_load(counter) < at_least) {
        assert_true(clock_mono_ms(clock_system()) < end);
        (void)sched_yield();
    }
}

static void tasks_are_answered_in_their_turn(void **state)
{
    struct answers answers = { 0 };
    struct store_worker_options options = { .io = io_system(),
                                            .done = take_answer,
                                            .arg = &answers };
    struct store_worker *worker;
    (void)state;
    assert_int_equal(store_worker_new(&options, &worker), ST_OK);
    for (int i = 0; i < 10; i++)
        submit_probe(worker);
    await(&answers.count, 10);
    assert_int_equal(atomic_load(&answers.timed_out), 0);
    store_worker_free(worker);
}

static void a_task_that_hangs_is_answered_by_its_deadline_and_holds_up_nobody(void **state)
{
    static struct answers answers; /* the late thread may outlive this function */
    static struct stuck stuck;
    stuck.io = *io_system();
    stuck.real = io_system();
    stuck.io.self = &stuck;
    stuck.io.mkdir = stuck_mkdir;
    struct store_worker_options options = {
        .io = &stuck.io, .deadline_ms = 50, .done = take_answer, .arg = &answers
    };
    struct store_worker *worker;
    (void)state;
    assert_int_equal(store_worker_new(&options, &worker), ST_OK);
    submit_probe(worker);
    submit_probe(worker);
    await(&answers.count, 2);
    assert_int_equal(atomic_load(&answers.timed_out), 1);
    atomic_store(&stuck.released, 1);
    store_worker_free(worker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_committed_survives_and_what_was_not_does_not,
                                        open_files, close_files),
        cmocka_unit_test_setup_teardown(a_frozen_journal_commits_nothing, open_files, close_files),
        cmocka_unit_test_setup_teardown(a_second_coordinator_is_kept_out, open_files, close_files),
        cmocka_unit_test_setup_teardown(the_decision_comes_back_with_its_manifest_and_reports,
                                        open_files, close_files),
        cmocka_unit_test_setup_teardown(events_are_bounded_and_come_oldest_first, open_files,
                                        close_files),
        cmocka_unit_test_setup_teardown(metrics_are_thinned_but_evaluations_and_the_newest_stay,
                                        open_files, close_files),
        cmocka_unit_test_setup_teardown(a_row_of_a_repeated_step_takes_the_place_of_the_older,
                                        open_files, close_files),
        cmocka_unit_test_setup_teardown(keys_are_remembered, open_files, close_files),
        cmocka_unit_test(the_state_survives_the_journal),
        cmocka_unit_test(a_broken_state_is_refused),
        cmocka_unit_test(workers_share_the_fullest_node_that_fits),
        cmocka_unit_test(gpus_are_slots_after_the_cpu_shares),
        cmocka_unit_test(workers_spread_over_few_nodes_when_none_has_room),
        cmocka_unit_test(waiting_says_what_is_missing),
        cmocka_unit_test(excluded_and_avoided_nodes_take_nobody),
        cmocka_unit_test(the_map_keeps_counts_and_forgets),
        cmocka_unit_test(the_map_is_bounded),
        cmocka_unit_test(tasks_are_answered_in_their_turn),
        cmocka_unit_test(a_task_that_hangs_is_answered_by_its_deadline_and_holds_up_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
