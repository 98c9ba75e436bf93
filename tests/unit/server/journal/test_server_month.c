/*
 * A month of a coordinator on a simulated clock: jobs come and end on nodes that come and go under
 * ever new names, beside one job that goes on all the time. What it needs levels off: the journal,
 * memory, descriptors, nodes, its log. What people ask of its jobs is answered all the time; how
 * long that takes is printed, not judged. A small sample by default; the month with
 * CAIRN_TEST_FULL=1.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "server/jobfsm/persist.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"
#include "tests/unit/server/journal/asker.h"

#define DAY_MS     INT64_C(86400000)
#define DAYS_MAX   30
#define AT_ONCE    100  /* rows of metrics in a message */
#define ROWS_MS    1000 /* within that time, they are in the journal */
#define PHASES     8
#define EVAL_EVERY 10
#define SAVES      288 /* of the job that goes on: a day */
#define FAILURES   24  /* likewise: a generation each */

struct plan {
    int days, jobs, names; /* jobs: a day; names: of nodes, one after the other, again and again */
    uint64_t rows;         /* of each job */
    uint64_t long_rows;    /* of the one that goes on: a day */
    int64_t journal_bytes;
    uint64_t log_bytes; /* beyond, the log is turned over */
};

struct levels {
    int64_t file, wal, memory_kib;
    int64_t log, logged; /* the log's files; what a day added to them */
    size_t descriptors, nodes, in_memory, jobs, forgotten;
};

/* A month that is played. */
struct month {
    const struct plan *plan;
    struct coord_world *w;
    struct asker *asker;
    char log[160];             /* the path of the coordinator's log */
    int64_t log_size, logged;  /* of its file; what this day added to it */
    char id[16];               /* of the job that goes on */
    char newest[16];           /* of the job that came last */
    char firsts[DAYS_MAX][16]; /* of each day's first job */
};

/* ---- what it needs ---- */

static int64_t size_of(const char *path, const char *end)
{
    char name[192];
    struct stat of;
    (void)snprintf(name, sizeof(name), "%s%s", path, end);
    return stat(name, &of) == 0 ? of.st_size : 0;
}

static size_t count_descriptors(void)
{
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir) != NULL)
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
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    }
    assert_int_equal(fclose(file), 0);
    return kib;
}

static struct levels look(const struct month *m, int day)
{
    int64_t seq;
    struct coord_world *w = m->w;
    struct levels now = { .file = size_of(w->path, ""),
                          .wal = size_of(w->path, "-wal"),
                          .log = size_of(m->log, "") + size_of(m->log, LOG_TURN_SUFFIX),
                          .logged = m->logged,
                          .memory_kib = resident_kib(),
                          .descriptors = count_descriptors(),
                          .nodes = coord_nodes(w->coord, NULL, 0),
                          .in_memory = coord_jobs(w->coord, NULL, 0) };
    assert_int_equal(journal_count_jobs(w->journal, &now.jobs, &seq), ST_OK);
    (void)printf("# day %2d: journal %6.1f MB, WAL %4.1f MB, log %7.1f KB, %6.1f of them new, "
                 "memory %5.1f MB, %zu descriptors, %zu nodes, %zu jobs, %zu of them in memory\n",
                 day, (double)now.file / 1e6, (double)now.wal / 1e6, (double)now.log / 1e3,
                 (double)now.logged / 1e3, (double)now.memory_kib / 1e3, now.descriptors, now.nodes,
                 now.jobs, now.in_memory);
    (void)fflush(stdout);
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

/* ---- what happened to the job that goes on ---- */

static void put_event(const struct month *m, uint64_t step, const char *kind, const char *message)
{
    struct coord_world *w = m->w;
    const struct journal_event event = { .wall_ms = w->clock.wall_ms(w->clock.self),
                                         .generation = 1,
                                         .step = step,
                                         .kind = kind,
                                         .message = message };
    assert_int_equal(journal_put_event(w->journal, m->id, &event), ST_OK);
}

/* Puts a generation that a worker's failure ended, as the one before it. */
static void put_generation(const struct month *m, uint32_t generation, uint64_t step)
{
    struct coord_world *w = m->w;
    struct recovery r = { .state = RECOVERY_DONE,
                          .kind = RECOVERY_CHECKPOINT,
                          .generation = generation,
                          .ended = generation - 1,
                          .fault = FSM_FAULT_PROCESS,
                          .node = "pod-00001",
                          .message = "killed by signal 9",
                          .mark = step + 100,
                          .step = step,
                          .wall_ms = w->clock.wall_ms(w->clock.self),
                          .ms = { 1000, 100, 0, 2000, 500, 9000 } };
    auto_buf struct buf recovery;
    buf_init(&recovery, 8192);
    assert_int_equal(fsm_encode_recovery(&r, &recovery), ST_OK);
    const struct journal_generation row = { .generation = generation,
                                            .begin_ms = r.wall_ms - 3600000,
                                            .end_ms = r.wall_ms,
                                            .restore_step = step,
                                            .end_step = step + 100,
                                            .nodes = "pod-00001,pod-00002",
                                            .numbers = "",
                                            .cause = "process gone",
                                            .message = r.message,
                                            .recovery = generation > 1 ? recovery.data : "" };
    assert_int_equal(journal_put_generation(w->journal, m->id, &row), ST_OK);
    assert_int_equal(journal_end_generation(w->journal, m->id, &row), ST_OK);
}

/* Puts a day of saves and failures, of a job whose workers no test plays. */
static void put_history(const struct month *m, int day)
{
    const uint64_t begin = (uint64_t)day * m->plan->long_rows;
    assert_int_equal(journal_begin(m->w->journal), ST_OK);
    for (uint32_t i = 0; i < SAVES; i++) {
        const uint64_t step = begin + i * m->plan->long_rows / SAVES;
        put_event(m, step, "saved", "step saved: 2 shards, 12.5 MB; stall 1.0 ms, write 80 ms");
        if (i % (SAVES / FAILURES) != 0)
            continue;
        put_event(m, step, "fault", "process gone: rank 1 on pod-00001: killed by signal 9");
        put_generation(m, (uint32_t)day * FAILURES + i / (SAVES / FAILURES) + 1, step);
    }
    assert_int_equal(journal_commit(m->w->journal), ST_OK);
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

/* A machine, with the job that it trains. */
struct played {
    struct far_end agent, trainer;
    struct coord_job *job;
    char node[32];
};

/* A machine comes, and trains a job. */
static void begin_job(struct month *m, int n, struct played *p)
{
    char boot[32];
    struct coord_world *w = m->w;
    (void)snprintf(p->node, sizeof(p->node), "pod-%05d", n % m->plan->names);
    (void)snprintf(boot, sizeof(boot), "boot-%d", n);
    w->open = false; /* what is decided is said at once */
    far_join(w, &p->agent, p->node, boot);
    p->job = coord_submit_one(w, "short");
    (void)snprintf(m->newest, sizeof(m->newest), "%s", p->job->id);
    assert_false(p->agent.finished);
    assert_string_equal(p->job->m.ranks[0].node, p->node);
    far_open(&p->trainer, p->job->m.token);
    far_attach(w, &p->trainer, p->job, 0);
    w->open = true;
    assert_false(p->trainer.finished);
    for (uint64_t step = 1; step < m->plan->rows; step += AT_ONCE)
        say_rows(w, &p->trainer, step);
    assert_int_equal(p->job->rows.count, m->plan->rows);
}

/* The job is killed, and the machine leaves for good; every tenth one's certificates are
 * withdrawn. */
static void end_job(struct month *m, int n, struct played *p)
{
    struct coord_node *node;
    struct coord_world *w = m->w;
    struct coord_job *job = p->job;
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    for (uint32_t rank = 0; rank < 2; rank++)
        far_say_killed(w, &p->agent, job->id, job->m.generation, rank);
    commit(w);
    struct store_task *swept = store_task_new(FSM_TASK_SWEEP);
    assert_non_null(swept);
    (void)snprintf(swept->job, sizeof(swept->job), "%s", job->id);
    swept->generation = job->m.sweep_asked;
    coord_store_done(w->coord, swept);
    commit(w);
    assert_int_equal(job->tasks, 0);
    assert_int_equal(job->ended, JOURNAL_OVER);
    far_close_trainer(w, &p->trainer);
    say_left(w, &p->agent);
    commit(w);
    far_close_agent(w, &p->agent);
    if (n % 10 == 0)
        assert_int_equal(coord_forget_node(w->coord, p->node, NULL, &node), ST_OK);
    commit(w);
}

static void pass(struct coord_world *w, int64_t ms)
{
    w->open = false;
    coord_pass(w, ms);
    w->open = true;
}

/* ---- the month ---- */

/* Keeps the log as small as who starts a coordinator does. */
static void turn_log(struct month *m)
{
    bool turned;
    m->logged += size_of(m->log, "") - m->log_size;
    assert_int_equal(log_turn(m->log, m->plan->log_bytes, NULL, &turned), ST_OK);
    m->log_size = size_of(m->log, "");
}

static void play_day(struct month *m, int day)
{
    const struct plan *plan = m->plan;
    m->logged = 0;
    for (int i = 0; i < plan->jobs; i++) {
        struct played played;
        const int n = day * plan->jobs + i;
        begin_job(m, n, &played);
        if (i == 0)
            (void)snprintf(m->firsts[day], sizeof(m->firsts[day]), "%s", m->newest);
        if (i == plan->jobs - 1) {
            pass(m->w, ROWS_MS);
            assert_true(asker_ask(m->asker, m->newest, ASKER_LIVE));
        }
        end_job(m, n, &played);
        pass(m->w, DAY_MS / plan->jobs);
        turn_log(m);
    }
    put_rows(m->w, m->id, 1 + (uint64_t)day * plan->long_rows, plan->long_rows);
    put_history(m, day);
    pass(m->w, 60000);
    turn_log(m);
}

/* Asks about jobs of all days; those that ended first are forgotten first. Returns how many
 * are. */
static size_t ask(const struct month *m, int day)
{
    size_t forgotten = 0;
    assert_true(asker_ask(m->asker, m->id, ASKER_LIVE));
    assert_true(asker_ask(m->asker, m->newest, ASKER_ENDED));
    for (int of = 0; of <= day; of++) {
        const bool known = asker_ask(m->asker, m->firsts[of], ASKER_OLD);
        assert_true(known || forgotten == (size_t)of);
        forgotten += !known;
    }
    return forgotten;
}

/* The journal has the newest jobs. */
static void check_forgotten(const struct plan *plan, int days, const struct levels *now)
{
    const size_t all = (size_t)days * (size_t)plan->jobs;
    const size_t gone = all + 1 - now->jobs; /* the one that goes on stays */
    assert_int_equal(now->forgotten, (gone + (size_t)plan->jobs - 1) / (size_t)plan->jobs);
}

static void check(const struct plan *plan, const struct levels *middle, const struct levels *end)
{
    assert_true(end->file <= plan->journal_bytes + plan->journal_bytes / 4);
    assert_true(end->wal <= INT64_C(64) * 1024 * 1024);
    assert_true(end->log <= (int64_t)(3 * plan->log_bytes));
    assert_true(end->logged <= middle->logged + middle->logged / 4);
    assert_true(end->memory_kib <= middle->memory_kib + 16 * 1024);
    assert_int_equal(end->descriptors, middle->descriptors);
    assert_in_range(end->nodes, 1, LIMIT_NODES);
    assert_in_range(end->jobs, 1, JOURNAL_JOBS_MAX);
    assert_in_range(end->in_memory, 1, COORD_ENDED_MAX + 8);
}

static void open_month(struct month *m)
{
    struct coord_world *w = m->w;
    (void)snprintf(m->log, sizeof(m->log), "%s/log", w->dir);
    w->log.fd = open(m->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(w->log.fd >= 0);
    w->log.level = LOG_LEVEL_INFO;
    (void)snprintf(m->id, sizeof(m->id), "%s", coord_submit_one(w, "long")->id);
    assert_int_equal(coord_ask(w->coord, coord_loaded(w->coord, m->id), FSM_EV_PAUSE, NULL), ST_OK);
    coord_end_group(w);
    journal_bound(w->journal, m->plan->journal_bytes);
    m->asker = asker_open(w);
    w->open = true;
}

static void close_month(struct month *m)
{
    char turned[192];
    asker_close(m->asker);
    (void)snprintf(turned, sizeof(turned), "%s" LOG_TURN_SUFFIX, m->log);
    assert_int_equal(close(m->w->log.fd), 0);
    m->w->log.fd = -1;
    m->w->open = false;
    (void)unlink(m->log);
    (void)unlink(turned);
}

static void what_a_coordinator_needs_levels_off(void **state)
{
    static const struct plan sample = { .days = 6,
                                        .jobs = 40,
                                        .names = 2000,
                                        .rows = 1000,
                                        .long_rows = 20000,
                                        .journal_bytes = INT64_C(24) * 1024 * 1024,
                                        .log_bytes = 16384 };
    static const struct plan month = { .days = DAYS_MAX,
                                       .jobs = 1000,
                                       .names = 10000,
                                       .rows = 1000,
                                       .long_rows = 86400,
                                       .journal_bytes = INT64_C(512) * 1024 * 1024,
                                       .log_bytes = LOG_TURN_BYTES };
    struct levels middle = { 0 }, end = { 0 };
    struct month m = { .plan = getenv("CAIRN_TEST_FULL") != NULL ? &month : &sample, .w = *state };
    open_month(&m);
    for (int day = 0; day < m.plan->days; day++) {
        play_day(&m, day);
        const size_t forgotten = ask(&m, day);
        end = look(&m, day + 1);
        end.forgotten = forgotten;
        check_forgotten(m.plan, day + 1, &end);
        if (day == m.plan->days * 2 / 3)
            middle = end;
    }
    asker_print(m.asker);
    close_month(&m);
    check(m.plan, &middle, &end);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_a_coordinator_needs_levels_off, coord_setup,
                                        coord_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
