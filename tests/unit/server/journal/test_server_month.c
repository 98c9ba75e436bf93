/*
 * A month of a coordinator on a simulated clock: jobs come and end on nodes that come and go under
 * ever new names, beside one job that goes on all the time. What it needs levels off: the journal,
 * memory, descriptors, nodes. A small sample by default; the month with CAIRN_TEST_FULL=1.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define DAY_MS     INT64_C(86400000)
#define AT_ONCE    100 /* rows of metrics in a message */
#define PHASES     8
#define EVAL_EVERY 10

struct plan {
    int days, jobs, names; /* jobs: a day; names: of nodes, one after the other, again and again */
    uint64_t rows;         /* of each job */
    uint64_t long_rows;    /* of the one that goes on: a day */
    int64_t journal_bytes;
};

struct levels {
    int64_t file, wal, memory_kib;
    size_t descriptors, nodes, in_memory, jobs;
};

/* ---- what it needs ---- */

static int64_t size_of(const char *path, const char *end)
{
    char name[160];
    struct stat of;
    (void)snprintf(name, sizeof(name), "%s%s", path, end);
    return stat(name, &of) == 0 ? of.st_size : 0;
}

static size_t count_descriptors(void)
{
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir))
        count++;
    assert_int_equal(closedir(dir), 0);
    return count;
}

static int64_t resident_kib(void)
{
    int64_t kib = 0;
    char line[128];
    FILE *file = fopen("/proc/self/status", "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    }
    assert_int_equal(fclose(file), 0);
    return kib;
}

static struct levels look(struct coord_world *w, int day)
{
    int64_t seq;
    struct levels now = { .file = size_of(w->path, ""),
                          .wal = size_of(w->path, "-wal"),
                          .memory_kib = resident_kib(),
                          .descriptors = count_descriptors(),
                          .nodes = coord_nodes(w->coord, NULL, 0),
                          .in_memory = coord_jobs(w->coord, NULL, 0) };
    assert_int_equal(journal_count_jobs(w->journal, &now.jobs, &seq), ST_OK);
    (void)printf("# day %2d: journal %6.1f MB, WAL %4.1f MB, memory %5.1f MB, %zu descriptors, %zu "
                 "nodes, %zu jobs, %zu of them in memory\n",
                 day, (double)now.file / 1e6, (double)now.wal / 1e6, (double)now.memory_kib / 1e3,
                 now.descriptors, now.nodes, now.jobs, now.in_memory);
    return now;
}

/* ---- rows of metrics ---- */

static void fill_row(Cairn__V1__MetricRow *row, Cairn__V1__Eval *eval, uint64_t step)
{
    static Cairn__V1__Phase phases[PHASES];
    static Cairn__V1__Phase *list[PHASES];
    static const char *const names[PHASES] = { "data",   "forward", "backward", "reduce",
                                               "update", "gather",  "eval",     "other" };
    for (size_t i = 0; i < PHASES; i++) {
        cairn__v1__phase__init(&phases[i]);
        phases[i].name = (char *)names[i];
        phases[i].ms = 1.5;
        list[i] = &phases[i];
    }
    cairn__v1__metric_row__init(row);
    row->step = step;
    row->loss = 0.5F;
    row->step_ms = 12.5;
    row->samples_per_s = 1000;
    row->wall_ms = 1;
    row->phases = list;
    row->n_phases = PHASES;
    if (step % EVAL_EVERY != 0)
        return;
    cairn__v1__eval__init(eval);
    eval->loss = 0.25;
    row->eval__case = CAIRN__V1__METRIC_ROW__EVAL__EVAL;
    row->eval = eval;
}

static void say_rows(struct coord_world *w, struct far_end *trainer, uint64_t from)
{
    static Cairn__V1__MetricRow list[AT_ONCE];
    static Cairn__V1__Eval evals[AT_ONCE];
    Cairn__V1__MetricRow *all[AT_ONCE];
    for (size_t i = 0; i < AT_ONCE; i++) {
        fill_row(&list[i], &evals[i], from + i);
        all[i] = &list[i];
    }
    Cairn__V1__MetricRows rows = CAIRN__V1__METRIC_ROWS__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    rows.rows = all;
    rows.n_rows = AT_ONCE;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
    message.metrics = &rows;
    coord_trainer_message(w->coord, &trainer->conn, &message);
}

/* Puts rows as rank 0 sends them, of a job whose workers no test plays. */
static void put_rows(struct coord_world *w, const char *id, uint64_t from, uint64_t count)
{
    assert_int_equal(journal_begin(w->journal), ST_OK);
    for (uint64_t step = from; step < from + count; step += AT_ONCE) {
        struct journal_metric rows[AT_ONCE];
        static uint8_t data[AT_ONCE][512];
        for (uint64_t i = 0; i < AT_ONCE; i++) {
            Cairn__V1__MetricRow row;
            Cairn__V1__Eval eval;
            fill_row(&row, &eval, step + i);
            assert_true(cairn__v1__metric_row__get_packed_size(&row) <= sizeof(data[i]));
            const size_t size = cairn__v1__metric_row__pack(&row, data[i]);
            rows[i] =
                (struct journal_metric){ step + i, (step + i) % EVAL_EVERY == 0, data[i], size };
        }
        assert_int_equal(journal_put_metrics(w->journal, id, rows, AT_ONCE), ST_OK);
    }
    assert_int_equal(journal_commit(w->journal), ST_OK);
}

/* ---- jobs and nodes ---- */

static void commit(struct coord_world *w)
{
    w->open = false;
    coord_end_group(w);
    w->open = true;
}

static void say_left(struct coord_world *w, struct far_end *agent)
{
    Cairn__V1__AgentLeft left = CAIRN__V1__AGENT_LEFT__INIT;
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_LEFT;
    message.left = &left;
    coord_agent_message(w->coord, &agent->conn, &message);
}

/* A machine comes, trains a job, and leaves for good; every tenth one's certificates are
 * withdrawn. */
static void run_job(struct coord_world *w, const struct plan *plan, int n)
{
    struct far_end agent, trainer;
    struct coord_node *node;
    char name[32], boot[32];
    (void)snprintf(name, sizeof(name), "pod-%05d", n % plan->names);
    (void)snprintf(boot, sizeof(boot), "boot-%d", n);
    w->open = false; /* what is decided is said at once */
    far_join(w, &agent, name, boot);
    struct coord_job *job = coord_submit_one(w, "short");
    assert_false(agent.finished);
    assert_string_equal(job->m.ranks[0].node, name);
    far_open(&trainer, job->m.token);
    far_attach(w, &trainer, job, 0);
    w->open = true;
    assert_false(trainer.finished);
    for (uint64_t step = 1; step < plan->rows; step += AT_ONCE)
        say_rows(w, &trainer, step);
    assert_int_equal(job->rows.count, plan->rows);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    for (uint32_t rank = 0; rank < 2; rank++)
        far_say_killed(w, &agent, job->id, job->m.generation, rank);
    commit(w);
    struct store_task *swept = store_task_new(FSM_TASK_SWEEP);
    assert_non_null(swept);
    (void)snprintf(swept->job, sizeof(swept->job), "%s", job->id);
    swept->generation = job->m.sweep_asked;
    coord_store_done(w->coord, swept);
    commit(w);
    assert_int_equal(job->tasks, 0);
    assert_int_equal(job->ended, JOURNAL_OVER);
    far_close_trainer(w, &trainer);
    say_left(w, &agent);
    commit(w);
    far_close_agent(w, &agent);
    if (n % 10 == 0)
        assert_int_equal(coord_forget_node(w->coord, name, NULL, &node), ST_OK);
    commit(w);
}

static void pass(struct coord_world *w, int64_t ms)
{
    w->open = false;
    coord_pass(w, ms);
    w->open = true;
}

static void check(const struct plan *plan, const struct levels *middle, const struct levels *end)
{
    assert_true(end->file <= plan->journal_bytes + plan->journal_bytes / 4);
    assert_true(end->wal <= INT64_C(64) * 1024 * 1024);
    assert_true(end->memory_kib <= middle->memory_kib + 16 * 1024);
    assert_int_equal(end->descriptors, middle->descriptors);
    assert_in_range(end->nodes, 1, LIMIT_NODES);
    assert_in_range(end->jobs, 1, JOURNAL_JOBS_MAX);
    assert_in_range(end->in_memory, 1, COORD_ENDED_MAX + 8);
}

static void what_a_coordinator_needs_levels_off(void **state)
{
    static const struct plan sample = { .days = 6,
                                        .jobs = 40,
                                        .names = 2000,
                                        .rows = 1000,
                                        .long_rows = 20000,
                                        .journal_bytes = INT64_C(24) * 1024 * 1024 };
    static const struct plan month = { .days = 30,
                                       .jobs = 1000,
                                       .names = 10000,
                                       .rows = 1000,
                                       .long_rows = 86400,
                                       .journal_bytes = INT64_C(512) * 1024 * 1024 };
    const struct plan *plan = getenv("CAIRN_TEST_FULL") ? &month : &sample;
    struct coord_world *w = *state;
    struct levels middle = { 0 }, end = { 0 };
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", coord_submit_one(w, "long")->id);
    assert_int_equal(coord_ask(w->coord, coord_loaded(w->coord, id), FSM_EV_PAUSE, NULL), ST_OK);
    coord_end_group(w);
    journal_bound(w->journal, plan->journal_bytes);
    w->open = true;
    for (int day = 0; day < plan->days; day++) {
        for (int n = 0; n < plan->jobs; n++) {
            run_job(w, plan, day * plan->jobs + n);
            pass(w, DAY_MS / plan->jobs);
        }
        put_rows(w, id, 1 + (uint64_t)day * plan->long_rows, plan->long_rows);
        pass(w, 60000);
        end = look(w, day + 1);
        if (day == plan->days * 2 / 3)
            middle = end;
    }
    check(plan, &middle, &end);
    w->open = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_coordinator_needs_levels_off, coord_setup,
                                        coord_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
