/* A store that is gone, empty or another one: what tasks say of it, and what a job does then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/hash.h"
#include "server/store/task.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/crash/late_io.h"
#include "tests/crash/memory_io.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

#define NONCE "00112233445566778899aabbccddeeff"
#define OTHER "ffeeddccbbaa99887766554433221100"
#define MARK  SAMPLE_STORE "/" SAMPLE_JOB "/" CKPT_MARK_NAME
#define DIR   SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000040.g2"

/* ---- tasks ---- */

struct store {
    struct memory_io *memory;
    struct store_task *task; /* the last */
};

/* A store with one checkpoint. */
static int open_store(void **state)
{
    struct store *s = calloc(1, sizeof(*s));
    struct sample sample;
    assert_non_null(s);
    s->memory = memory_io_new();
    sample_init(&sample, 20, 40, 2);
    assert_int_equal(sample_save(memory_io_table(s->memory), &sample, 1, NULL, NULL), ST_OK);
    sample_release(&sample);
    *state = s;
    return 0;
}

static int close_store(void **state)
{
    struct store *s = *state;
    assert_int_equal(memory_io_open_files(s->memory), 0);
    store_task_free(s->task);
    memory_io_free(s->memory);
    free(s);
    return 0;
}

/* Puts another, empty medium at the store's place. */
static void take_away(struct store *s)
{
    memory_io_free(s->memory);
    s->memory = memory_io_new();
}

static struct store_task *prepare_task(struct store *s, enum fsm_task kind, const char *mark,
                                       bool holds)
{
    store_task_free(s->task);
    struct store_task *task = s->task = store_task_new(kind);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), "%s", SAMPLE_JOB);
    (void)snprintf(task->store, sizeof(task->store), "%s", SAMPLE_STORE);
    (void)snprintf(task->dir, sizeof(task->dir), "%s", DIR);
    (void)snprintf(task->mark, sizeof(task->mark), "%s", mark);
    (void)snprintf(task->nonce, sizeof(task->nonce), "%s", NONCE);
    task->step = 40;
    task->generation = 2;
    task->holds = holds;
    return task;
}

static enum status run_task(struct store *s, enum fsm_task kind, const char *mark, bool holds)
{
    struct store_task *task = prepare_task(s, kind, mark, holds);
    store_task_run(task, memory_io_table(s->memory));
    assert_true(task->status == ST_OK || task->message[0] != '\0');
    return task->status;
}

static void the_mark_is_written_once_and_known_again(void **state)
{
    struct store *s = *state;
    size_t size = 0;
    take_away(s);
    assert_int_equal(run_task(s, FSM_TASK_PROBE, "", false), ST_OK);
    assert_string_equal(s->task->mark, NONCE);
    const uint8_t *bytes = memory_io_bytes(s->memory, MARK, &size);
    assert_int_equal(size, strlen("cairn-mark-1 " NONCE "\n"));
    assert_memory_equal(bytes, "cairn-mark-1 " NONCE "\n", size);
    memory_io_put(s->memory, MARK, "cairn-mark-1 " OTHER "\n", size); /* of who came before us */
    assert_int_equal(run_task(s, FSM_TASK_PROBE, "", false), ST_OK);
    assert_string_equal(s->task->mark, OTHER);
}

static void a_store_of_before_there_were_marks_gets_one_if_it_is_there(void **state)
{
    struct store *s = *state;
    assert_int_equal(run_task(s, FSM_TASK_PROBE, "", true), ST_OK);
    assert_string_equal(s->task->mark, NONCE);
    take_away(s);
    assert_int_equal(run_task(s, FSM_TASK_PROBE, "", true), ST_UNREACHABLE);
    assert_true(s->task->mark_mismatch);
    assert_false(memory_io_has(s->memory, SAMPLE_STORE));
}

static void nothing_is_made_or_found_damaged_in_a_store_that_is_not_the_jobs(void **state)
{
    struct store *s = *state;
    static const enum fsm_task kinds[] = { FSM_TASK_PROBE,  FSM_TASK_FOLDER, FSM_TASK_VERIFY,
                                           FSM_TASK_REMOVE, FSM_TASK_DROP,   FSM_TASK_PUBLISH };
    take_away(s);
    for (int other = 0; other < 2; other++) {
        if (other) {
            const struct io *io = memory_io_table(s->memory);
            assert_int_equal(io_mkdir_all(io, SAMPLE_STORE "/" SAMPLE_JOB), ST_OK);
            memory_io_put(s->memory, MARK, "cairn-mark-1 " OTHER "\n", 46);
        }
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            uint64_t before = memory_io_hash(s->memory, "/");
            assert_int_equal(run_task(s, kinds[i], NONCE, true), ST_UNREACHABLE);
            assert_true(s->task->mark_mismatch);
            assert_non_null(strstr(s->task->message, SAMPLE_STORE "/" SAMPLE_JOB));
            assert_int_equal(memory_io_hash(s->memory, "/"), before);
        }
    }
    assert_int_equal(run_task(s, FSM_TASK_PROBE, NONCE, false), ST_OK); /* nothing can be lost */
    assert_string_equal(s->task->mark, OTHER);
}

static void a_checkpoint_that_is_gone_from_its_store_is_damage(void **state)
{
    struct store *s = *state;
    assert_int_equal(run_task(s, FSM_TASK_PROBE, "", true), ST_OK);
    assert_int_equal(run_task(s, FSM_TASK_VERIFY, NONCE, true), ST_OK);
    assert_int_equal(run_task(s, FSM_TASK_REMOVE, NONCE, true), ST_OK);
    assert_int_equal(run_task(s, FSM_TASK_VERIFY, NONCE, true), ST_NOT_FOUND);
    assert_false(s->task->mark_mismatch);
}

static void damage_is_told_by_its_cause_not_by_a_stray_file(void **state)
{
    struct store *s = *state;
    memory_io_put(s->memory, DIR "/a-stray-file", "x", 1);
    memory_io_damage(s->memory, DIR "/shard-00000-of-00001.cairn", 5000, 1);
    assert_int_equal(run_task(s, FSM_TASK_VERIFY, "", true), ST_CORRUPT);
    assert_null(strstr(s->task->message, "stray"));
    assert_non_null(strstr(s->task->message, "shard-00000"));
}

static void a_checkpoint_of_another_version_is_named_with_both(void **state)
{
    struct store *s = *state;
    const size_t tail = sizeof(",\"xxh3_128\":\"") - 1 + 32 + 3;
    char hex[33];
    size_t size = 0;
    char *text = (char *)memory_io_bytes(s->memory, DIR "/manifest.json", &size);
    char *version = memmem(text, size, "\"cairn_checkpoint\":2", 20);
    assert_non_null(version);
    version[19] = '1';
    const struct ckpt_hash hash = ckpt_hash_of(text, size - tail);
    ckpt_hash_text(&hash, hex);
    memcpy(text + size - 35, hex, 32);
    assert_int_equal(run_task(s, FSM_TASK_VERIFY, "", true), ST_VERSION);
    assert_non_null(strstr(s->task->message, "format version 1, this build reads 2"));
}

static void what_was_given_up_is_removed_where_nothing_is(void **state)
{
    struct store *s = *state;
    take_away(s);
    store_task_free(s->task);
    s->task = store_task_new(FSM_TASK_REMOVE);
    assert_non_null(s->task);
    (void)snprintf(s->task->dir, sizeof(s->task->dir), "%s", DIR);
    (void)snprintf(s->task->mark, sizeof(s->task->mark), "%s", NONCE);
    s->task->given_up = true;
    store_task_run(s->task, memory_io_table(s->memory));
    assert_int_equal(s->task->status, ST_OK);
}

/* Two ask one after the other whether the store takes files. The first hangs in a call, which is
 * carried out at any moment of the second. false: the second has made fewer calls. */
static bool probe_beside_a_late_call(struct store *s, uint64_t slow_nth, uint64_t next_mth,
                                     bool *cut)
{
    struct late_io late;
    take_away(s);
    late_io_init(&late, memory_io_table(s->memory), slow_nth, next_mth);
    for (int second = 0; second < 2; second++) {
        struct store_task *task = prepare_task(s, FSM_TASK_PROBE, "", false);
        (void)snprintf(task->nonce, sizeof(task->nonce), "%s", second ? OTHER : NONCE);
        ckpt_call_name(7, task->nonce, task->call);
        store_task_run(task, second ? &late.next : &late.slow);
        assert_int_equal(task->status, second || !late.cut ? ST_OK : ST_CLOSED);
    }
    size_t size = 0;
    const uint8_t *bytes = memory_io_bytes(s->memory, MARK, &size);
    assert_int_equal(size, 46);
    assert_memory_equal(bytes + 13, s->task->mark, 32);
    *cut = late.cut;
    return late.made;
}

static void a_late_probe_cannot_touch_the_one_in_its_place(void **state)
{
    struct store *s = *state;
    bool cut = true;
    for (uint64_t slow = 1; cut; slow++) {
        uint64_t next = 1;
        while (probe_beside_a_late_call(s, slow, next, &cut) && cut)
            next++;
        assert_true(next > 8 || !cut);
    }
}

static void what_calls_left_goes_but_not_what_is_under_way(void **state)
{
    static const struct {
        const char *path;
        bool stays;
    } files[] = {
        { DIR "/manifest.json.g2.0123456789abcdef.tmp", false },
        { DIR "/manifest.json.g3.0123456789abcdef.tmp", true },
        { DIR "/manifest.json.tmp", false },
        { MARK ".g2.0123456789abcdef.tmp", false },
        { MARK ".g3.0123456789abcdef.tmp", true },
        { SAMPLE_STORE "/" SAMPLE_JOB "/.probe.g2.0123456789abcdef.tmp", false },
        { SAMPLE_STORE "/" SAMPLE_JOB "/.probe.g3.0123456789abcdef.tmp", true },
        { SAMPLE_STORE "/" SAMPLE_JOB "/.probe-4711", false },
    };
    struct store *s = *state;
    struct ckpt_entry *entries = NULL;
    size_t count = 0;
    const struct io *io = memory_io_table(s->memory);
    assert_int_equal(ckpt_list(io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    const uint64_t bytes = entries[0].bytes;
    free(entries);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        memory_io_put(s->memory, files[i].path, "x", 1);
    assert_int_equal(ckpt_list(io, SAMPLE_STORE, SAMPLE_JOB, &entries, &count), ST_OK);
    assert_true(count == 1 && entries[0].committed && entries[0].bytes == bytes);
    free(entries);
    struct store_task *task = prepare_task(s, FSM_TASK_SWEEP, "", true);
    task->generation = 3;
    store_task_run(task, io);
    assert_int_equal(task->status, ST_OK);
    assert_int_equal(task->swept, 0); /* it counts folders */
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        if (memory_io_has(s->memory, files[i].path) != files[i].stays)
            fail_msg("%s: %s", files[i].path, files[i].stays ? "went" : "stays");
    }
    assert_int_equal(ckpt_verify(io, DIR, NULL, NULL, NULL), ST_OK);
}

/* An NFS client of another machine keeps it; a sweep goes on with the other folders. */
static void a_folder_with_a_file_that_is_open_is_told_and_hinders_no_sweep(void **state)
{
    struct store *s = *state;
    const struct io *io = memory_io_table(s->memory);
    static const char left[] = SAMPLE_STORE "/" SAMPLE_JOB "/step-000000000030.g1";
    memory_io_put(s->memory, DIR "/.nfs000000000012", "x", 1);
    assert_int_equal(run_task(s, FSM_TASK_REMOVE, "", true), ST_AGAIN);
    assert_non_null(strstr(s->task->message, "still open on an NFS client"));
    assert_int_equal(io->mkdir(io->self, left), ST_OK);
    struct store_task *task = prepare_task(s, FSM_TASK_SWEEP, "", true);
    task->generation = 3;
    store_task_run(task, io);
    assert_int_equal(task->status, ST_OK);
    assert_int_equal(task->swept, 1);
    assert_false(memory_io_has(s->memory, left));
    assert_int_equal(io->unlink(io->self, DIR "/.nfs000000000012"), ST_OK);
    assert_int_equal(run_task(s, FSM_TASK_REMOVE, "", true), ST_OK);
    assert_false(memory_io_has(s->memory, DIR));
}

/* ---- the job ---- */

static void answer_away(struct bench *b, enum fsm_task task, uint64_t step)
{
    struct fsm_event event = { .kind = FSM_EV_STORE,
                               .answer = { .task = task,
                                           .step = step,
                                           .generation = 1,
                                           .status = ST_UNREACHABLE,
                                           .message = "the store is not there",
                                           .mark_mismatch = true } };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void restore_fails(struct bench *b, const char *said)
{
    struct fsm_fault fault = { .kind = FSM_FAULT_STORE, .rank = 0, .phase = "restore" };
    (void)snprintf(fault.message, sizeof(fault.message), "%s", said);
    struct fsm_event event = { .kind = FSM_EV_FAULT,
                               .generation = b->m.generation,
                               .fault = &fault };
    assert_int_equal(bench_apply(b, event), ST_OK);
    bench_all_exit(b);
}

static void is_waiting(struct bench *b)
{
    bench_is_state(b, "RECOVERING");
    assert_non_null(strstr(b->m.reason, "the store is not there"));
    assert_int_equal(fsm_find_ckpt(&b->m, 10, 1)->state, FSM_CKPT_GOOD);
    assert_int_equal(fsm_find_ckpt(&b->m, 20, 1)->state, FSM_CKPT_GOOD);
    assert_null(bench_task(b, FSM_TASK_QUARANTINE));
}

static void a_job_waits_for_its_store_and_goes_on_from_it(void **state)
{
    struct bench *b = *state;
    bench_all_exit(b);
    bench_tick(b, 1000);
    bench_place(b);
    restore_fails(b, "the store is not there");
    bench_tick(b, 1000);
    answer_away(b, FSM_TASK_VERIFY, 20);
    assert_true(bench_event(b, "store-away"));
    is_waiting(b);
    for (int i = 0; i < 20; i++) { /* asked again, and told once */
        bench_tick(b, 2000);
        assert_non_null(bench_task(b, FSM_TASK_VERIFY));
        answer_away(b, FSM_TASK_VERIFY, 20);
        assert_false(bench_event(b, "store-away"));
        is_waiting(b);
    }
    bench_tick(b, 2000);
    bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_OK);
    assert_int_equal(b->m.suspect_count, 0); /* the store was away from here, too */
    bench_tick(b, 100000);
    bench_run(b, BENCH_STEPS);
    assert_int_equal(b->m.restore.step, 20);
}

static void a_resumed_job_asks_for_its_store_first(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_PAUSE), ST_OK);
    bench_commit(b, b->m.due.announced[0].step);
    bench_all_exit(b);
    bench_is_state(b, "PAUSED");
    uint32_t generation = b->m.generation;
    assert_int_equal(bench_ask(b, FSM_EV_RESUME), ST_OK);
    for (int i = 0; i < 20; i++) {
        bench_tick(b, 60000);
        bench_place(b);
        assert_non_null(bench_task(b, FSM_TASK_PROBE));
        answer_away(b, FSM_TASK_PROBE, 0);
        is_waiting(b);
    }
    assert_int_equal(b->m.generation, generation);
    assert_int_equal(b->m.budget.used, 0);
}

static void checkpoints_of_a_store_that_is_gone_can_be_given_up(void **state)
{
    struct bench *b = *state;
    bench_all_exit(b);
    bench_tick(b, 1000);
    assert_int_equal(bench_remove(b, 20), ST_REFUSED); /* it would go on from it */
    bench_place(b);
    restore_fails(b, "the store is not there");
    answer_away(b, FSM_TASK_VERIFY, 20);
    for (uint64_t step = 20; step > 0; step -= 10) {
        assert_int_equal(bench_remove(b, step), ST_OK);
        assert_int_equal(bench_task(b, FSM_TASK_REMOVE)->step, step);
        bench_store(b, FSM_TASK_REMOVE, step, 1, ST_OK);
    }
    bench_tick(b, 10000);
    bench_place(b);
    bench_probe(b, ST_OK);
    bench_is_state(b, "FORMING");
    assert_int_equal(b->m.restore.generation, 0);
}

static void restoring_is_tried_as_long_as_the_store_fails_workers(void **state)
{
    struct bench *b = *state;
    bench_all_exit(b);
    for (int i = 0; i < 20; i++) {
        bench_tick(b, 100000);
        bench_place(b);
        if (b->m.state == FSM_PLACING)
            bench_probe(b, ST_OK);
        bench_is_state(b, "FORMING");
        restore_fails(b, "cannot connect");
        assert_non_null(strstr(b->m.reason, "cannot connect"));
        bench_store(b, FSM_TASK_VERIFY, 20, 1, ST_OK); /* from here it can be read */
        bench_is_state(b, "RECOVERING");
    }
    assert_int_equal(b->m.suspect_count, 1); /* others are taken, where there are any */
    assert_int_equal(b->m.budget.used, 0);
    bench_tick(b, 100000);
    bench_run(b, BENCH_STEPS);
    assert_int_equal(b->m.restore.step, 20);
}

/* ---- saves that the store fails ---- */

static void no_checkpoint_is_told_once_until_one_commits(void **state)
{
    struct bench *b = *state;
    int told = 0;
    for (uint64_t step = 30; step < 200; step += 10) { /* more than there are places for */
        for (uint32_t i = 0; i < 2; i++)
            bench_progress(b, i, step, "forward");
        bench_save_until(b, step, FSM_SAVE_OPENING);
        told += bench_event(b, "store-fails");
        bench_store(b, FSM_TASK_FOLDER, step, 1, ST_UNREACHABLE);
        told += bench_event(b, "store-fails");
        assert_false(bench_event(b, "save-dropped"));
        bench_store(b, FSM_TASK_DROP, step, 1, ST_UNREACHABLE);
        told += bench_event(b, "store-fails");
        assert_non_null(strstr(b->m.reason, "no checkpoint since step 20"));
    }
    assert_int_equal(told, 1);
    for (int i = 0; i < FSM_SAVES_MAX; i++)
        bench_store(b, FSM_TASK_DROP, b->m.saves[i].step, 1, ST_OK);
    for (uint32_t i = 0; i < 2; i++)
        bench_progress(b, i, 200, "forward");
    bench_save_until(b, 200, FSM_SAVE_CHECKING);
    bench_store(b, FSM_TASK_CHECK, 200, 1, ST_UNREACHABLE); /* again, whatever was written */
    bench_tick(b, 1000);
    assert_non_null(bench_task(b, FSM_TASK_CHECK));
    bench_store(b, FSM_TASK_CHECK, 200, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, 200, 1, ST_OK);
    assert_true(bench_event(b, "store-works"));
    assert_string_equal(b->m.reason, "");
}

static void a_save_whose_files_do_not_fit_together_is_followed_by_a_whole_one(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.delta = true;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint64_t step = 10; step <= 20; step += 10) {
        bench_commit(b, step);
        bench_store(b, FSM_TASK_VERIFY, step, 1, ST_OK);
    }
    bench_save_until(b, 30, FSM_SAVE_CHECKING);
    assert_int_equal(fsm_find_save(&b->m, 30, 1)->base_step, 20);
    bench_store(b, FSM_TASK_CHECK, 30, 1, ST_INVALID);
    assert_true(bench_event(b, "save-dropped"));
    bench_save_until(b, 40, FSM_SAVE_CHECKING);
    assert_int_equal(fsm_find_save(&b->m, 40, 1)->base_generation, 0);
    bench_store(b, FSM_TASK_CHECK, 40, 1, ST_OK);
    bench_store(b, FSM_TASK_PUBLISH, 40, 1, ST_OK);
    bench_store(b, FSM_TASK_VERIFY, 40, 1, ST_OK);
    bench_save_until(b, 50, FSM_SAVE_OPENING);
    assert_int_equal(fsm_find_save(&b->m, 50, 1)->base_step, 40);
}

static void a_catalog_that_is_full_says_so(void **state)
{
    struct bench *b = *state;
    struct fsm_config config = bench_config();
    config.keep_last = 0;
    bench_reopen(b, &config);
    bench_run(b, BENCH_STEPS);
    for (uint64_t step = 21; b->m.catalog_count < FSM_CATALOG_MAX; step++) {
        struct fsm_ckpt ckpt = { .step = step, .generation = 1, .state = FSM_CKPT_GOOD };
        assert_int_equal(fsm_add_ckpt(&b->m, &ckpt), ST_OK);
    }
    bench_commit(b, 90000);
    assert_non_null(strstr(b->m.reason, "65536 checkpoints at most"));
}

/* ---- paths as long as they may be ---- */

static void run_deep(struct store *s, enum fsm_task kind, uint64_t step)
{
    struct store_task *task = prepare_task(s, kind, "", false);
    memset(task->store, 'x', LIMIT_STORE - 1);
    for (size_t i = 0; i < LIMIT_STORE - 1; i += 40)
        task->store[i] = '/';
    (void)snprintf(task->job, sizeof(task->job), "j-0123456789abc");
    task->step = step;
    task->generation = task->try_number = UINT32_MAX;
    ckpt_call_name(UINT32_MAX, NONCE, task->call);
    assert_int_equal(ckpt_folder_path(task->store, task->job, step, task->generation,
                                      task->try_number, task->dir, sizeof(task->dir)),
                     ST_OK);
    assert_int_equal(buf_append_text(&task->manifest, "{}"), ST_OK);
    store_task_run(task, memory_io_table(s->memory));
    if (task->status != ST_OK)
        fail_msg("task %d: %s", (int)kind, task->message);
}

static void all_names_have_room_in_the_longest_store(void **state)
{
    struct store *s = *state;
    const uint64_t step = INT64_MAX / 10;
    run_deep(s, FSM_TASK_PROBE, 0);
    for (int i = 0; i < 12; i++) { /* the later ones have a number more in their names */
        run_deep(s, FSM_TASK_FOLDER, step);
        run_deep(s, FSM_TASK_PUBLISH, step);
        run_deep(s, FSM_TASK_QUARANTINE, step);
    }
    run_deep(s, FSM_TASK_SWEEP, step);
}

static void a_job_that_has_no_room_for_its_names_is_failed_with_that(void **state)
{
    struct bench *b = *state;
    bench_run(b, BENCH_STEPS);
    bench_save_until(b, 90000, FSM_SAVE_OPENING);
    bench_store(b, FSM_TASK_FOLDER, 90000, b->m.generation, ST_TOO_LONG);
    bench_all_exit(b);
    bench_is_state(b, "FAILED");
    assert_string_equal(b->m.reason, "the path is too long");
}

#define TASK(name) cmocka_unit_test_setup_teardown(name, open_store, close_store)
#define JOB(name)  cmocka_unit_test_setup_teardown(name, bench_setup_saved, bench_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TASK(the_mark_is_written_once_and_known_again),
        TASK(a_store_of_before_there_were_marks_gets_one_if_it_is_there),
        TASK(nothing_is_made_or_found_damaged_in_a_store_that_is_not_the_jobs),
        TASK(a_checkpoint_that_is_gone_from_its_store_is_damage),
        TASK(a_checkpoint_of_another_version_is_named_with_both),
        TASK(what_was_given_up_is_removed_where_nothing_is),
        TASK(a_late_probe_cannot_touch_the_one_in_its_place),
        TASK(what_calls_left_goes_but_not_what_is_under_way),
        TASK(a_folder_with_a_file_that_is_open_is_told_and_hinders_no_sweep),
        JOB(a_job_waits_for_its_store_and_goes_on_from_it),
        JOB(a_resumed_job_asks_for_its_store_first),
        JOB(checkpoints_of_a_store_that_is_gone_can_be_given_up),
        JOB(restoring_is_tried_as_long_as_the_store_fails_workers),
        TASK(damage_is_told_by_its_cause_not_by_a_stray_file),
        JOB(no_checkpoint_is_told_once_until_one_commits),
        JOB(a_save_whose_files_do_not_fit_together_is_followed_by_a_whole_one),
        JOB(a_catalog_that_is_full_says_so),
        TASK(all_names_have_room_in_the_longest_store),
        JOB(a_job_that_has_no_room_for_its_names_is_failed_with_that),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
