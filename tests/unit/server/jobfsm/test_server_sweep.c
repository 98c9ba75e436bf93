/* Leftovers of saves that never committed: when they are looked for, and what is never touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "server/store/task.h"
#include "tests/test.h"
#include "tests/unit/server/server_fixture.h"

/* ---- when ---- */

static void next_generation(struct bench *b)
{
    bench_all_exit(b);
    for (int i = 0; i < 20 && !fsm_wants_slots(&b->m, b->now); i++)
        bench_tick(b, 1000);
    bench_run(b, BENCH_STEPS);
}

static void swept(struct bench *b, uint32_t before, enum status status, uint32_t count)
{
    struct fsm_event event = {
        .kind = FSM_EV_STORE,
        .answer = { .task = FSM_TASK_SWEEP,
                    .generation = before,
                    .status = status,
                    .message = "",
                    .swept = count },
    };
    assert_int_equal(bench_apply(b, event), ST_OK);
}

static void each_generation_looks_for_what_the_ones_before_left_once(void **state)
{
    struct bench *b = *state;
    bench_commit(b, 10);
    assert_null(bench_task(b, FSM_TASK_SWEEP)); /* nobody was before */
    next_generation(b);
    assert_null(bench_task(b, FSM_TASK_SWEEP));
    bench_commit(b, 20);
    assert_int_equal(bench_task(b, FSM_TASK_SWEEP)->generation, 2);
    bench_commit(b, 30);
    assert_null(bench_task(b, FSM_TASK_SWEEP)); /* under way */
    swept(b, 2, ST_OK, 3);
    assert_true(bench_event(b, "swept"));
    bench_commit(b, 40);
    assert_null(bench_task(b, FSM_TASK_SWEEP));
    next_generation(b);
    bench_commit(b, 50);
    assert_int_equal(bench_task(b, FSM_TASK_SWEEP)->generation, 3);
}

static void what_failed_is_tried_again_with_the_next_commit(void **state)
{
    struct bench *b = *state;
    next_generation(b);
    bench_commit(b, 10);
    swept(b, 2, ST_AGAIN, 64);
    assert_true(bench_event(b, "swept"));
    bench_tick(b, 1000);
    assert_null(bench_task(b, FSM_TASK_SWEEP));
    bench_commit(b, 20);
    assert_int_equal(bench_task(b, FSM_TASK_SWEEP)->generation, 2);
    swept(b, 2, ST_OK, 0);
    assert_false(bench_event(b, "swept"));
    assert_int_equal(b->m.swept, 2);
}

static void what_is_decided_is_published_before_anything_is_swept(void **state)
{
    struct bench *b = *state;
    bench_save_until(b, 10, FSM_SAVE_COMMITTING);
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_all_exit(b);
    bench_is_state(b, "KILLED");
    assert_null(bench_task(b, FSM_TASK_SWEEP));
    bench_store(b, FSM_TASK_PUBLISH, 10, 1, ST_IO);
    assert_null(bench_task(b, FSM_TASK_SWEEP));
    bench_tick(b, 1000);
    assert_non_null(bench_task(b, FSM_TASK_PUBLISH));
    bench_store(b, FSM_TASK_PUBLISH, 10, 1, ST_OK);
    assert_int_equal(bench_task(b, FSM_TASK_SWEEP)->generation, 2); /* of all of its generations */
}

static void an_ended_job_that_was_not_swept_is_after_a_restart(void **state)
{
    struct bench *b = *state;
    assert_int_equal(bench_ask(b, FSM_EV_KILL), ST_OK);
    bench_all_exit(b);
    assert_int_equal(bench_task(b, FSM_TASK_SWEEP)->generation, 2);
    bench_restart(b, 0); /* before it was swept */
    assert_int_equal(bench_task(b, FSM_TASK_SWEEP)->generation, 2);
    swept(b, 2, ST_OK, 1);
    bench_restart(b, 0);
    assert_null(bench_task(b, FSM_TASK_SWEEP));
}

/* ---- what ---- */

#define JOB "j-0123456789"

struct store {
    char dir[64];
};

static int open_store(void **state)
{
    struct store *s = calloc(1, sizeof(*s));
    (void)snprintf(s->dir, sizeof(s->dir), "/tmp/cairn-sweep-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    *state = s;
    return 0;
}

static int close_store(void **state)
{
    struct store *s = *state;
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf '%s'", s->dir);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    free(s);
    return 0;
}

static void folder(const struct store *s, const char *name, const char *file)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/" JOB "/%s", s->dir, name);
    assert_int_equal(io_mkdir_all(io_system(), path), ST_OK);
    (void)snprintf(path, sizeof(path), "%s/" JOB "/%s/%s", s->dir, name, file);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_int_equal(fputs("bytes", out) >= 0 && fclose(out) == 0, 1);
}

static bool is_there(const struct store *s, const char *name)
{
    char path[256];
    struct stat info;
    (void)snprintf(path, sizeof(path), "%s/" JOB "/%s", s->dir, name);
    return stat(path, &info) == 0;
}

/* Before generation 3, with step 30 of generation 2 in the catalog. */
static enum status sweep(const struct store *s, uint32_t *out_swept)
{
    struct store_task *task = store_task_new(FSM_TASK_SWEEP);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), JOB);
    (void)snprintf(task->store, sizeof(task->store), "%s", s->dir);
    task->generation = 3;
    task->kept = calloc(1, sizeof(*task->kept));
    assert_non_null(task->kept);
    task->kept[0] = (struct ckpt_folder_name){ .step = 30, .generation = 2 };
    task->kept_count = 1;
    store_task_run(task, io_system());
    enum status st = task->status;
    *out_swept = task->swept;
    store_task_free(task);
    return st;
}

#define SHARD "shard-00000-of-00002.cairn"

static void only_what_was_never_committed_goes(void **state)
{
    const struct store *s = *state;
    uint32_t count = 9;
    assert_int_equal(sweep(s, &count), ST_OK); /* no folder of the job */
    folder(s, "step-000000000010.g1", SHARD);
    folder(s, "step-000000000020.g2", "manifest.json.tmp");
    folder(s, "step-000000000030.g2", SHARD);           /* a checkpoint that lost its manifest */
    folder(s, "step-000000000040.g2", "manifest.json"); /* damaged as it is */
    folder(s, "step-000000000040.g3", SHARD);           /* may still commit */
    folder(s, "bad-step-000000000050.g1", SHARD);
    folder(s, "step-000000000060.g1", "notes.txt"); /* somebody else's file */
    folder(s, "backup", SHARD);
    assert_int_equal(sweep(s, &count), ST_OK);
    assert_int_equal(count, 2);
    assert_false(is_there(s, "step-000000000010.g1"));
    assert_false(is_there(s, "step-000000000020.g2"));
    assert_true(is_there(s, "step-000000000030.g2/" SHARD));
    assert_true(is_there(s, "step-000000000040.g2/manifest.json"));
    assert_true(is_there(s, "step-000000000040.g3/" SHARD));
    assert_true(is_there(s, "bad-step-000000000050.g1/" SHARD));
    assert_true(is_there(s, "step-000000000060.g1/notes.txt"));
    assert_true(is_there(s, "backup/" SHARD));
}

static void a_sweep_is_bounded_and_says_that_more_is_left(void **state)
{
    const struct store *s = *state;
    uint32_t count = 0, all = 0;
    for (int i = 1; i <= 70; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "step-%012d.g1", i);
        folder(s, name, SHARD);
    }
    assert_int_equal(sweep(s, &count), ST_AGAIN);
    all = count;
    assert_int_equal(sweep(s, &count), ST_OK);
    assert_int_equal(all + count, 70);
}

#define TEST(name)  cmocka_unit_test_setup_teardown(name, bench_setup_running, bench_teardown)
#define FILES(name) cmocka_unit_test_setup_teardown(name, open_store, close_store)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_generation_looks_for_what_the_ones_before_left_once),
        TEST(what_failed_is_tried_again_with_the_next_commit),
        TEST(what_is_decided_is_published_before_anything_is_swept),
        TEST(an_ended_job_that_was_not_swept_is_after_a_restart),
        FILES(only_what_was_never_committed_goes),
        FILES(a_sweep_is_bounded_and_says_that_more_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
