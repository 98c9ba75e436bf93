/* Jobs that ended: out of memory, read when somebody asks, and forgotten some day. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/api/api.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

/* ---- a job that ended ---- */

static void kill_queued(struct coord_world *w, const char *name, char id[16])
{
    struct coord_job *job = coord_submit_one(w, name);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    assert_int_equal(job->ended, JOURNAL_OVER);
    (void)snprintf(id, 16, "%s", job->id);
}

static void put_ckpt(struct coord_world *w, const char *id, uint64_t step,
                     enum fsm_ckpt_state state)
{
    const struct fsm_ckpt ckpt = { .step = step, .generation = 1, .shards = 2, .state = state };
    assert_int_equal(journal_put_ckpt(w->journal, id, &ckpt), ST_OK);
}

static void put_metric(struct coord_world *w, const char *id, uint64_t step)
{
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT;
    uint8_t data[256];
    row.step = step;
    row.loss = 0.25F;
    row.generation = 1;
    size_t size = cairn__v1__metric_row__pack(&row, data);
    assert_int_equal(
        journal_put_metrics(w->journal, id, &(struct journal_metric){ step, false, data, size }, 1),
        ST_OK);
}

static struct coord_job *find(struct coord_world *w, const char *name)
{
    struct coord_job *job = NULL;
    assert_int_equal(coord_find(w->coord, name, &job), ST_OK);
    return job;
}

static size_t count_loaded(struct coord_world *w)
{
    return coord_jobs(w->coord, NULL, 0);
}

static void answer(struct coord_world *w, const char *id, enum fsm_task kind, uint64_t step)
{
    struct store_task *task = store_task_new(kind);
    assert_non_null(task);
    (void)snprintf(task->job, sizeof(task->job), "%s", id);
    task->step = step;
    task->generation = 1;
    coord_store_done(w->coord, task);
    coord_end_group(w);
}

static bool count_ckpt(void *arg, const struct fsm_ckpt *ckpt)
{
    (void)ckpt;
    (*(int *)arg)++;
    return true;
}

static bool count_metric(void *arg, uint64_t step, const void *row, size_t size)
{
    (void)step;
    (void)row;
    (void)size;
    (*(int *)arg)++;
    return true;
}

/* ---- read when somebody asks ---- */

static void a_job_that_ended_is_read_when_somebody_asks(void **state)
{
    struct coord_world *w = *state;
    char id[16];
    int count = 0;
    kill_queued(w, "a", id);
    put_ckpt(w, id, 10, FSM_CKPT_GOOD);
    put_ckpt(w, id, 20, FSM_CKPT_GOOD);
    put_metric(w, id, 20);
    coord_restart(w);
    coord_pass(w, 1000);
    assert_int_equal(count_loaded(w), 0);
    struct coord_job *job = find(w, "a");
    assert_string_equal(job->id, id);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_int_equal(job->m.catalog_count, 2);
    assert_true(job->loss == 0.25);
    assert_int_equal(journal_each_metric(w->journal, id, 0, 10, count_metric, &count), ST_OK);
    assert_int_equal(count, 1);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_RESUME, NULL), ST_REFUSED);
    coord_end_group(w);
    assert_int_equal(count_loaded(w), 1);

    uint32_t tasks = w->tasks; /* its checkpoints are read, and removed */
    assert_int_equal(coord_check_ckpt(w->coord, job, 20, 1), ST_OK);
    coord_end_group(w);
    assert_int_equal(w->tasks, tasks + 1);
    answer(w, id, FSM_TASK_VERIFY, 20);
    assert_int_equal(job->m.catalog[1].reads, 1);
    assert_int_equal(job->ended, JOURNAL_OVER);
    assert_int_equal(coord_remove_ckpt(w->coord, job, 10, NULL), ST_OK);
    coord_end_group(w);
    assert_int_equal(job->ended, JOURNAL_LEFT);
    answer(w, id, FSM_TASK_REMOVE, 10);
    assert_int_equal(job->ended, JOURNAL_OVER);
    count = 0;
    assert_int_equal(journal_each_ckpt(w->journal, id, count_ckpt, &count), ST_OK);
    assert_int_equal(count, 1);
}

static void a_repeated_submission_finds_a_job_that_ended_long_ago(void **state)
{
    struct coord_world *w = *state;
    char id[16];
    kill_queued(w, "a", id);
    assert_int_equal(journal_put_key(w->journal, "key", id, 1), ST_OK);
    coord_restart(w);
    struct coord_job *again = NULL;
    struct reason reason;
    struct jobspec *spec = calloc(1, sizeof(*spec));
    assert_int_equal(coord_submit(w->coord, spec, "", "key", NULL, &again, &reason), ST_OK);
    coord_end_group(w);
    assert_string_equal(again->id, id);
    free(spec);
}

static void count_ckpts(void *arg, struct coord_job *job)
{
    *(size_t *)arg += job->m.catalog_count;
}

/* By the core, and by a thread that has a journal of its own. */
static void a_look_leaves_one_that_ended_in_the_journal(void **state)
{
    struct coord_world *w = *state;
    char id[16], found[16] = "";
    struct coord_job *job = NULL;
    struct coord *reader = NULL;
    size_t count = 0;
    kill_queued(w, "a", id);
    put_ckpt(w, id, 10, FSM_CKPT_GOOD);
    coord_restart(w);
    assert_int_equal(coord_seek(w->coord, "b", found, &job), ST_NOT_FOUND);
    assert_int_equal(coord_seek(w->coord, "a", found, &job), ST_OK);
    assert_null(job);
    assert_string_equal(found, id);
    assert_int_equal(coord_look(w->coord, id, count_ckpts, &count), ST_OK);
    assert_int_equal(count, 1);
    assert_int_equal(count_loaded(w), 0);

    struct coord_options options = { .clock = &w->clock, .log = &w->log };
    assert_int_equal(journal_open_beside(w->path, &options.journal), ST_OK);
    assert_int_equal(coord_reader_new(&options, &reader), ST_OK);
    put_ckpt(w, id, 20, FSM_CKPT_GOOD); /* of which it hears, too */
    assert_int_equal(coord_look(reader, id, count_ckpts, &count), ST_OK);
    assert_int_equal(count, 3);
    assert_int_equal(coord_look(reader, "j-0", count_ckpts, &count), ST_NOT_FOUND);
    coord_free(reader);
    journal_close(options.journal);

    struct coord_job *loaded = find(w, "a"); /* that one is looked at as it is */
    assert_int_equal(coord_seek(w->coord, id, found, &job), ST_OK);
    assert_ptr_equal(job, loaded);
    assert_int_equal(coord_look(w->coord, id, count_ckpts, &count), ST_OK);
    assert_int_equal(count, 5);
    assert_int_equal(count_loaded(w), 1);
}

static void what_it_may_have_left_is_done_after_the_start(void **state)
{
    struct coord_world *w = *state;
    char over[16], left[16];
    kill_queued(w, "over", over);
    kill_queued(w, "left", left);
    put_ckpt(w, left, 10, FSM_CKPT_REMOVING);
    assert_int_equal(journal_put_ended(w->journal, left, JOURNAL_LEFT, NULL, 0), ST_OK);
    uint32_t tasks = w->tasks;
    coord_restart(w);
    assert_int_equal(w->tasks, tasks);
    coord_pass(w, 1000);
    assert_int_equal(w->tasks, tasks + 1);
    assert_int_equal(count_loaded(w), 1);
    answer(w, left, FSM_TASK_REMOVE, 10);
    assert_int_equal(find(w, left)->ended, JOURNAL_OVER);
    coord_restart(w);
    coord_pass(w, 1000);
    assert_int_equal(w->tasks, tasks + 1);
    assert_int_equal(count_loaded(w), 0);
}

/* The journal is as a coordinator leaves it that dies while the newest checkpoint is read back. */
static void retention_goes_on_after_the_start(void **state)
{
    struct coord_world *w = *state;
    char id[16];
    kill_queued(w, "a", id);
    for (uint64_t step = 10; step <= 40; step += 10)
        put_ckpt(w, id, step, FSM_CKPT_GOOD);
    assert_int_equal(journal_put_ended(w->journal, id, JOURNAL_LEFT, NULL, 0), ST_OK);
    uint32_t tasks = w->tasks;
    coord_restart(w);
    coord_pass(w, 1000);
    assert_int_equal(w->tasks, tasks + 1); /* three are kept: the newest is read first */
    answer(w, id, FSM_TASK_VERIFY, 40);
    assert_int_equal(find(w, id)->m.catalog[0].state, FSM_CKPT_REMOVING);
    answer(w, id, FSM_TASK_REMOVE, 10);
    assert_int_equal(find(w, id)->m.catalog_count, 3);
    assert_int_equal(find(w, id)->ended, JOURNAL_OVER);
}

/* ---- the bound ---- */

#define ENDED 20

static void few_of_them_stay_in_memory(void **state)
{
    struct coord_world *w = *state;
    char ids[ENDED][16];
    w->ended_max = 4;
    coord_restart(w);
    for (int i = 0; i < ENDED; i++)
        kill_queued(w, "a", ids[i]);
    coord_pass(w, 1000);
    assert_int_equal(count_loaded(w), 4);
    for (int i = 0; i < ENDED; i++) {
        assert_string_equal(find(w, ids[i])->id, ids[i]);
        assert_in_range(count_loaded(w), 1, 4);
    }
    coord_hold(w->coord, ids[ENDED - 1]); /* somebody waits for what comes of it */
    struct coord_job *held = find(w, ids[ENDED - 1]);
    for (int i = 0; i < ENDED - 1; i++)
        (void)find(w, ids[i]);
    assert_ptr_equal(coord_loaded(w->coord, ids[ENDED - 1]), held);
    assert_null(coord_loaded(w->coord, ids[0]));
    coord_release(w->coord, ids[ENDED - 1]);
    for (int i = 0; i < 4; i++)
        (void)find(w, ids[i]);
    assert_null(coord_loaded(w->coord, ids[ENDED - 1]));
    (void)coord_submit_one(w, "b"); /* one that lives stays */
    for (int i = 0; i < ENDED; i++)
        (void)find(w, ids[i]);
    assert_int_equal(count_loaded(w), 5);
}

/* A task that the store has of it would come back to nobody. */
static void one_that_the_store_works_for_stays(void **state)
{
    struct coord_world *w = *state;
    char ids[3][16];
    w->ended_max = 1;
    coord_restart(w);
    for (int i = 0; i < 3; i++)
        kill_queued(w, "a", ids[i]);
    put_ckpt(w, ids[0], 10, FSM_CKPT_GOOD);
    coord_restart(w);
    assert_int_equal(coord_check_ckpt(w->coord, find(w, ids[0]), 10, 1), ST_OK);
    coord_end_group(w);
    (void)find(w, ids[1]);
    (void)find(w, ids[2]);
    assert_non_null(coord_loaded(w->coord, ids[0]));
    answer(w, ids[0], FSM_TASK_VERIFY, 10);
    coord_pass(w, 1000);
    assert_int_equal(count_loaded(w), 1);
}

/* ---- lists ---- */

/* Names of one letter; the token of the next page: free(). */
static char *list_names(struct api *api, size_t size, const char *token, char *out)
{
    Cairn__V1__ListJobsReply *page = api_list(api, size, token);
    assert_non_null(page);
    out[page->n_jobs] = '\0';
    for (size_t i = 0; i < page->n_jobs; i++) {
        out[i] = page->jobs[i]->name[0];
        assert_true(page->jobs[i]->state == CAIRN__V1__JOB_STATE__KILLED ||
                    page->jobs[i]->state == CAIRN__V1__JOB_STATE__QUEUED);
        assert_true(page->jobs[i]->job_file[0] != '\0');
    }
    char *next = strdup(page->next_page_token);
    cairn__v1__list_jobs_reply__free_unpacked(page, NULL);
    return next;
}

static void lists_show_them_without_reading_them(void **state)
{
    struct coord_world *w = *state;
    struct api api = { .coord = NULL };
    char id[16], names[64];
    w->summary = api_summary;
    coord_restart(w);
    kill_queued(w, "a", id);
    (void)coord_submit_one(w, "b");
    kill_queued(w, "c", id);
    coord_restart(w);
    api.coord = w->coord;
    char *next = list_names(&api, 0, "", names);
    assert_string_equal(names, "cba");
    assert_string_equal(next, "");
    assert_int_equal(count_loaded(w), 1); /* b */
    free(next);
    next = list_names(&api, 2, "", names);
    assert_string_equal(names, "cb");
    char *end = list_names(&api, 2, next, names);
    assert_string_equal(names, "a");
    assert_string_equal(end, "");
    free(next);
    free(end);
    assert_int_equal(journal_put_ended(w->journal, id, JOURNAL_OVER, NULL, 0), ST_OK);
    next = list_names(&api, 0, "", names); /* one without a summary gets it, and goes again */
    assert_string_equal(names, "cba");
    assert_int_equal(count_loaded(w), 1);
    free(next);
    coord_end_group(w);
    w->summary = NULL; /* whoever wanted one now would end the test */
    coord_restart(w);
    api.coord = w->coord;
    next = list_names(&api, 0, "", names);
    assert_string_equal(names, "cba");
    free(next);
}

/* ---- ten thousand ---- */

struct model {
    char job_file[8192], state[65536];
};

static bool take_model(void *arg, const struct journal_job *row)
{
    struct model *out = arg;
    (void)snprintf(out->job_file, sizeof(out->job_file), "%s", row->job_file);
    (void)snprintf(out->state, sizeof(out->state), "%s", row->state);
    return true;
}

/* Jobs 0 to count - 1, all like the model; those that ended with a checkpoint and rows. */
static void put_jobs(struct coord_world *w, const struct model *model, int from, int count,
                     bool ended)
{
    assert_int_equal(journal_begin(w->journal), ST_OK);
    for (int i = from; i < from + count; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "j-%010d", i);
        struct journal_job row = { .id = id,
                                   .name = "many",
                                   .seq = i + 1,
                                   .job_file = model->job_file,
                                   .pins = "",
                                   .state = model->state };
        assert_int_equal(journal_put_job(w->journal, &row), ST_OK);
        for (uint64_t step = 1; ended && step <= 10; step++)
            put_metric(w, id, step);
        put_ckpt(w, id, 10, FSM_CKPT_GOOD);
        if (ended)
            assert_int_equal(journal_put_ended(w->journal, id, JOURNAL_OVER, NULL, 0), ST_OK);
    }
    assert_int_equal(journal_commit(w->journal), ST_OK);
}

static long resident_kib(void)
{
    long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    }
    if (file != NULL)
        (void)fclose(file);
    return kib;
}

static double now_s(void)
{
    struct timespec at;
    (void)clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

/* The journal gets these, next to nothing else. */
static void fill(struct coord_world *w, int ended, int live)
{
    static struct model dead, alive;
    char id[16];
    struct coord_job *job = coord_submit_one(w, "alive");
    assert_int_equal(journal_get_job(w->journal, job->id, take_model, &alive), ST_OK);
    kill_queued(w, "dead", id);
    assert_int_equal(journal_get_job(w->journal, id, take_model, &dead), ST_OK);
    put_jobs(w, &dead, 0, ended, true);
    put_jobs(w, &alive, ended, live, false);
}

/* Time and memory are printed, not judged. */
static void a_start_reads_what_lives(void **state)
{
    struct coord_world *w = *state;
    fill(w, JOURNAL_JOBS_MAX - 200, 100);
    coord_stop(w);
    const long before = resident_kib();
    const double begin = now_s();
    coord_start(w);
    (void)printf("# a start with %d jobs that ended and 101 that live: %.3f s, %ld KiB more\n",
                 JOURNAL_JOBS_MAX - 199, now_s() - begin, resident_kib() - before);
    assert_int_equal(count_loaded(w), 101);
    assert_string_equal(fsm_state_name(find(w, "j-0000000000")->m.state), "KILLED");
}

static void the_one_that_ended_first_is_forgotten_for_a_new_one(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job;
    int count = 0;
    fill(w, JOURNAL_JOBS_MAX - 2, 0); /* and two */
    coord_restart(w);
    assert_int_equal(coord_find(w->coord, "j-0000000000", &job), ST_OK);
    (void)coord_submit_one(w, "new"); /* "dead" ended first, though it was submitted last */
    assert_int_equal(coord_find(w->coord, "dead", &job), ST_NOT_FOUND);
    assert_int_equal(coord_find(w->coord, "j-0000000000", &job), ST_OK);
    (void)coord_submit_one(w, "newer");
    assert_int_equal(coord_find(w->coord, "j-0000000000", &job), ST_NOT_FOUND);
    assert_int_equal(coord_find(w->coord, "j-0000000001", &job), ST_OK);
    coord_pass(w, 2000); /* what it had goes a little later */
    assert_int_equal(journal_each_metric(w->journal, "j-0000000000", 0, 10, count_metric, &count),
                     ST_OK);
    assert_int_equal(count, 0);
    size_t stored;
    int64_t seq;
    assert_int_equal(journal_count_jobs(w->journal, &stored, &seq), ST_OK);
    assert_int_equal(stored, JOURNAL_JOBS_MAX);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_job_that_ended_is_read_when_somebody_asks),
        CASE(a_repeated_submission_finds_a_job_that_ended_long_ago),
        CASE(a_look_leaves_one_that_ended_in_the_journal),
        CASE(what_it_may_have_left_is_done_after_the_start),
        CASE(retention_goes_on_after_the_start),
        CASE(few_of_them_stay_in_memory),
        CASE(one_that_the_store_works_for_stays),
        CASE(lists_show_them_without_reading_them),
        CASE(a_start_reads_what_lives),
        CASE(the_one_that_ended_first_is_forgotten_for_a_new_one),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
