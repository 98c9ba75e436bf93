/* What the core makes of a journal: thousands of jobs, and such that it can't read. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"
#include "tests/unit/server/journal/journal_fixture.h"

#define ORDER_END    CAIRN__V1__AGENT_ORDER__BODY_END
#define ORDER_ACK    CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK
#define ORDER_FORGET CAIRN__V1__AGENT_ORDER__BODY_FORGET

/* ---- many jobs ---- */

static void whoever_watches_hears_of_every_job_that_is_loaded(void **state)
{
    struct coord_world *w = *state;
    for (int i = 0; i < 400; i++)
        (void)coord_submit_one(w, "a");
    w->beats = 0;
    coord_restart(w);
    assert_int_equal(coord_jobs(w->coord, NULL, 0), 400);
    assert_true(w->beats >= 2 * 400); /* as it is read, and as it is resumed */
}

static void nobody_is_judged_by_the_time_that_loading_took(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = coord_submit_one(w, "a");
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    w->load_ms = 20000;
    coord_restart(w);
    assert_int_equal(coord_find(w->coord, "a", &job), ST_OK);
    coord_pass(w, 5000);
    assert_int_equal(job->m.ranks[0].agent, FSM_AGENT_HEARD);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
}

/* ---- a job whose file no longer parses ---- */

struct stored {
    char id[16], name[32], job_file[8192], state[65536];
    int64_t seq;
};

static bool take_row(void *arg, const struct journal_job *row)
{
    struct stored *out = arg;
    (void)snprintf(out->id, sizeof(out->id), "%s", row->id);
    (void)snprintf(out->name, sizeof(out->name), "%s", row->name);
    (void)snprintf(out->job_file, sizeof(out->job_file), "%s", row->job_file);
    (void)snprintf(out->state, sizeof(out->state), "%s", row->state);
    out->seq = row->seq;
    return true;
}

/* The journal's only job gets another file or state (NULL: as it was); *out has what it was. */
static void change_row(struct coord_world *w, const char *job_file, const char *text,
                       struct stored *out)
{
    struct journal *journal;
    assert_int_equal(journal_open(w->path, &journal), ST_OK);
    if (out->id[0] == '\0')
        assert_int_equal(journal_each_job(journal, take_row, out), ST_OK);
    struct journal_job row = { .id = out->id,
                               .name = out->name,
                               .seq = out->seq,
                               .job_file = job_file != NULL ? job_file : out->job_file,
                               .pins = "",
                               .state = text != NULL ? text : out->state };
    assert_int_equal(journal_begin(journal), ST_OK);
    assert_int_equal(journal_put_job(journal, &row), ST_OK);
    assert_int_equal(journal_commit(journal), ST_OK);
    journal_close(journal);
}

/* The agent of "n" joins: rank 0 of the first generation runs there, and a copy lies there. */
static void join_with_trainer(struct coord_world *w, struct far_end *agent, char *job)
{
    Cairn__V1__AgentHello hello = far_agent_hello("n", "boot-1");
    Cairn__V1__TrainerRef ref = CAIRN__V1__TRAINER_REF__INIT;
    Cairn__V1__RunningTrainer running = CAIRN__V1__RUNNING_TRAINER__INIT, *list[] = { &running };
    ref.job = job;
    ref.generation = 1;
    running.ref = &ref;
    running.pid = 100;
    hello.n_running = 1;
    hello.running = list;
    hello.n_copies = 1;
    hello.copies = &job;
    far_open(agent, "");
    far_say_hello(w, agent, &hello);
}

static void say_exit(struct coord_world *w, struct far_end *agent, const char *job)
{
    far_say_killed(w, agent, job, 1, 1);
    coord_end_group(w);
}

/* A job of two workers is FORMING on "n"; then its row is changed, and another core reads it. */
static struct coord_job *load_changed(struct coord_world *w, const char *job_file, const char *text,
                                      struct stored *row)
{
    struct far_end agent;
    far_join(w, &agent, "n", "boot-1");
    (void)coord_submit_one(w, "a");
    far_close_agent(w, &agent);
    coord_stop(w);
    *row = (struct stored){ .id = "" };
    change_row(w, job_file, text, row);
    coord_start(w);
    struct coord_job *job;
    assert_int_equal(coord_find(w->coord, row->id, &job), ST_OK);
    return job;
}

static void a_job_that_no_longer_parses_is_kept_as_it_is(void **state)
{
    struct coord_world *w = *state;
    static struct stored row;
    struct far_end agent, trainer;
    struct coord_job *job = load_changed(w, "name: a\nnonsense: 1\n", NULL, &row);
    assert_non_null(strstr(job->unreadable, "its job file: j-"));
    assert_string_equal(job->name, "a");
    coord_is_blocked(w, job, FSM_BLOCK_UNREADABLE, "its job file: j-");
    join_with_trainer(w, &agent, job->id);
    say_exit(w, &agent, job->id);
    coord_pass(w, 60000);
    for (int i = 0; i < 30; i++) {
        far_beat(w, &agent);
        coord_pass(w, 1000);
    }
    assert_int_equal(agent.sent[ORDER_END], 0);
    assert_int_equal(agent.sent[ORDER_ACK], 0); /* whoever can read it hears of the exit, too */
    assert_int_equal(agent.sent[ORDER_FORGET], 0);
    assert_int_equal(job->m.generation, 1);
    far_open(&trainer, job->m.token);
    far_attach(w, &trainer, job, 0);
    assert_int_equal(trainer.code, RPC_UNAVAILABLE); /* it asks again */
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_PAUSE, NULL), ST_REFUSED);
    coord_end_group(w);
    coord_drain(w->coord, true, 1000, NULL);
    coord_end_group(w);
    assert_int_equal(coord_draining(w->coord), 0);
    coord_drain_end(w->coord);
    far_close_trainer(w, &trainer);
    far_close_agent(w, &agent);

    coord_stop(w); /* the version comes back that can read it */
    change_row(w, NULL, NULL, &row);
    coord_start(w);
    assert_int_equal(coord_find(w->coord, row.id, &job), ST_OK);
    assert_string_equal(job->unreadable, "");
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(job->m.generation, 1);
}

static void its_slots_are_not_given_to_others(void **state)
{
    struct coord_world *w = *state;
    static struct stored row;
    struct far_end agent;
    struct coord_job *job = load_changed(w, "[", NULL, &row);
    join_with_trainer(w, &agent, job->id); /* two of four slots */
    struct coord_job *second = coord_submit_one(w, "b");
    struct coord_job *third = coord_submit_one(w, "c");
    assert_string_equal(fsm_state_name(second->m.state), "FORMING");
    assert_string_equal(fsm_state_name(third->m.state), "QUEUED");
    far_close_agent(w, &agent);
}

/* The state speaks of more workers than there are rows of. */
static void nor_are_those_of_one_that_was_to_grow(void **state)
{
    struct coord_world *w = *state;
    static struct stored row;
    struct far_end agent;
    struct coord_job *job;
    struct reason reason;
    far_join(w, &agent, "n", "boot-1");
    assert_int_equal(coord_set_workers(w->coord, coord_submit_one(w, "a"), 4, NULL, &reason),
                     ST_OK);
    coord_end_group(w);
    far_close_agent(w, &agent);
    coord_stop(w);
    row = (struct stored){ .id = "" };
    change_row(w, "[", NULL, &row);
    coord_start(w);
    assert_int_equal(coord_find(w->coord, row.id, &job), ST_OK);
    assert_string_not_equal(job->unreadable, "");
    join_with_trainer(w, &agent, job->id);
    assert_string_equal(fsm_state_name(coord_submit_one(w, "b")->m.state), "FORMING");
    assert_string_equal(fsm_state_name(coord_submit_one(w, "c")->m.state), "QUEUED");
    far_close_agent(w, &agent);
}

static void a_job_that_no_longer_parses_can_be_killed(void **state)
{
    struct coord_world *w = *state;
    static struct stored row;
    struct far_end agent, again;
    struct coord_job *job = load_changed(w, "", NULL, &row);
    join_with_trainer(w, &agent, job->id);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_true(agent.finished); /* it is to say hello again, and to hear what is over */
    far_close_agent(w, &agent);
    join_with_trainer(w, &again, job->id);
    assert_int_equal(again.sent[ORDER_END], 1);
    assert_int_equal(again.sent[ORDER_FORGET], 1);
    say_exit(w, &again, job->id);
    assert_int_equal(again.sent[ORDER_ACK], 1);
    far_close_agent(w, &again);
    coord_restart(w);
    assert_int_equal(coord_find(w->coord, row.id, &job), ST_OK);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_REFUSED);
    coord_end_group(w);
}

static void a_job_whose_state_is_broken_is_kept_as_well(void **state)
{
    struct coord_world *w = *state;
    static struct stored row;
    static const char *const broken[] = { "", "{}", "{\"ranks\":[{},{}],\"state\":77}", "[1",
                                          "{\"ranks\":7}" };
    struct coord_job *job = load_changed(w, NULL, broken[0], &row);
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        struct far_end agent;
        coord_stop(w);
        change_row(w, NULL, broken[i], &row);
        coord_start(w);
        assert_int_equal(coord_find(w->coord, row.id, &job), ST_OK);
        assert_non_null(strstr(job->unreadable, "state"));
        join_with_trainer(w, &agent, job->id);
        coord_pass(w, 10000);
        assert_int_equal(agent.sent[ORDER_END], 0);
        assert_int_equal(agent.sent[ORDER_FORGET], 0);
        far_close_agent(w, &agent);
    }
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
}

/* ---- rows of ranks ---- */

struct rows {
    struct fsm_rank_row list[2];
    uint32_t count;
};

static bool take_rank(void *arg, uint32_t rank, const struct fsm_rank_row *row)
{
    struct rows *rows = arg;
    assert_in_range(rank, 0, 1);
    rows->list[rank] = *row;
    rows->count++;
    return true;
}

static struct rows read_ranks(struct coord_world *w, const char *id)
{
    struct rows rows = { .count = 0 };
    assert_int_equal(journal_each_rank(w->journal, id, take_rank, &rows), ST_OK);
    return rows;
}

static void a_rank_is_written_when_it_changes_and_no_other_with_it(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *job = coord_submit_one(w, "a");
    assert_int_equal(read_ranks(w, job->id).count, 0); /* they have no place yet */
    far_join(w, &agent, "n", "boot-1");
    coord_pass(w, 5000);
    struct rows rows = read_ranks(w, job->id);
    assert_int_equal(rows.count, 2);
    assert_string_equal(rows.list[1].node, "n");
    assert_int_equal(rows.list[0].slot + rows.list[1].slot, 1);
    assert_false(rows.list[0].gone || rows.list[1].gone);
    journal_edit(w->path, "UPDATE ranks SET holder=7"); /* of which the core doesn't know */
    say_exit(w, &agent, job->id);                       /* rank 1 */
    rows = read_ranks(w, job->id);
    assert_int_equal(rows.list[0].holder, 7);
    assert_int_equal(rows.list[1].holder, 0);
    assert_true(rows.list[1].gone);
    far_close_agent(w, &agent);
}

/* The journal is as version 7 left it: the ranks in the text, none in rows. */
static void ranks_of_an_older_journal_get_their_rows(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *job;
    char id[16];
    far_join(w, &agent, "n", "boot-1");
    (void)snprintf(id, sizeof(id), "%s", coord_submit_one(w, "a")->id);
    far_close_agent(w, &agent);
    coord_stop(w);
    journal_edit(
        w->path,
        "UPDATE jobs SET state=json_set(state, '$.ranks', (SELECT json_group_array("
        "json_object('node', node, 'slot', slot, 'gone', json('false'), 'holder', holder)) "
        "FROM ranks)); DELETE FROM ranks; ALTER TABLE generations DROP COLUMN recovery; "
        "ALTER TABLE "
        "generations DROP COLUMN numbers; "
        "ALTER TABLE ranks DROP COLUMN birth; ALTER TABLE "
        "ranks DROP COLUMN parked; "
        "ALTER TABLE ranks DROP COLUMN lanes; ALTER TABLE ranks DROP COLUMN lane_us; "
        "ALTER TABLE ranks DROP COLUMN stage; "
        "ALTER TABLE ranks DROP COLUMN source; ALTER TABLE ranks DROP COLUMN "
        "number; " TO_14 "PRAGMA user_version=7;");
    coord_start(w);
    assert_int_equal(coord_find(w->coord, id, &job), ST_OK);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_string_equal(job->m.ranks[1].node, "n");
    assert_int_equal(job->m.ranks[0].slot + job->m.ranks[1].slot, 1);
    join_with_trainer(w, &agent, id);
    say_exit(w, &agent, id);
    assert_int_equal(read_ranks(w, id).count, 2); /* all of them with its first change */
    far_close_agent(w, &agent);
    coord_restart(w);
    assert_int_equal(coord_find(w->coord, id, &job), ST_OK);
    assert_string_equal(job->m.ranks[0].node, "n");
    assert_true(job->m.ranks[1].gone);
}

/* A row of a rank that the job doesn't have, or of a name that no node has. */
static void a_job_with_a_broken_row_is_kept_as_it_is(void **state)
{
    static const char *const broken[] = { "UPDATE ranks SET rank=9 WHERE rank=1",
                                          "UPDATE ranks SET node=printf('%0500d', 1)" };
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *job;
    far_join(w, &agent, "n", "boot-1");
    (void)coord_submit_one(w, "a");
    far_close_agent(w, &agent);
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        coord_stop(w);
        journal_edit(w->path, broken[i]);
        coord_start(w);
        assert_int_equal(coord_find(w->coord, "a", &job), ST_OK);
        assert_non_null(strstr(job->unreadable, "state in the journal"));
    }
}

/* The job never had a place, or its rows are gone: nothing says how many ranks it has. */
static void a_job_without_rows_that_no_longer_parses_stays_what_it_is(void **state)
{
    struct coord_world *w = *state;
    static struct stored row;
    struct coord_job *job = coord_submit_one(w, "a");
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    coord_stop(w);
    struct journal *journal;
    assert_int_equal(journal_open(w->path, &journal), ST_OK);
    assert_int_equal(journal_find_job(journal, "a", row.id), ST_OK);
    assert_int_equal(journal_get_job(journal, row.id, take_row, &row), ST_OK);
    journal_close(journal);
    journal_edit(w->path, "UPDATE jobs SET job_file='['");
    coord_start(w);
    assert_int_equal(coord_find(w->coord, row.id, &job), ST_OK);
    assert_string_not_equal(job->unreadable, "");
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_REFUSED);
    coord_end_group(w);
    assert_int_equal(journal_get_job(w->journal, row.id, take_row, &row), ST_OK);
    assert_non_null(strstr(row.state, "\"state\":11"));
}

/* ---- more workers than connections ---- */

static void a_job_with_more_workers_than_connections_is_refused(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = coord_submit_one(w, "a"); /* two workers */
    static const char wide[] = "name: wide\nmodel: {arch: mlp, classes: 10}\n"
                               "data: {train: {format: synthetic, samples: 4096}}\n"
                               "train: {duration: 50 steps, global_batch: 512, lanes: 512, "
                               "optimizer: {name: sgd, lr: 0.1}, seed: 1}\n"
                               "workers: {count: 200}\n"
                               "checkpoint: {every: 5 steps, store: /store}\n";
    struct reason reason;
    w->descriptors = 256;
    coord_restart(w);
    assert_int_equal(coord_submit_text(w, wide, &job, &reason), ST_REFUSED);
    assert_non_null(strstr(reason.text, "200 workers"));
    assert_non_null(strstr(reason.text, "330 open files"));
    assert_non_null(strstr(reason.text, "256"));
    assert_non_null(strstr(reason.text, "ulimit -n"));
    w->descriptors = 330;
    coord_restart(w);
    assert_int_equal(coord_submit_text(w, wide, &job, &reason), ST_OK);
}

/* ---- a backup ---- */

static void back_up(struct coord_world *w, char path[160])
{
    struct reason reason = { "" };
    (void)snprintf(path, 160, "%s/backup", w->dir);
    enum status st = journal_backup(w->path, path, &reason);
    if (st != ST_OK)
        fail_msg("%s", reason.text);
}

/* The coordinator dies; its journal's WAL lies there when the backup is put in place. */
static void put_in_place(struct coord_world *w, const char *backup)
{
    char wal[160], kept[160];
    (void)snprintf(wal, sizeof(wal), "%s-wal", w->path);
    (void)snprintf(kept, sizeof(kept), "%s/kept", w->dir);
    assert_int_equal(link(wal, kept), 0);
    coord_stop(w);
    (void)unlink(wal);
    assert_int_equal(rename(kept, wal), 0);
    assert_int_equal(rename(backup, w->path), 0);
    coord_start(w);
}

static void a_restored_journal_uses_no_number_of_an_attempt_again(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainer;
    char backup[160];
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = coord_submit_one(w, "a");
    assert_int_equal(job->m.generation, 1);
    back_up(w, backup); /* while the core has the journal open */
    char token[72];
    (void)snprintf(token, sizeof(token), "%s", job->m.token);
    (void)coord_submit_one(w, "b"); /* after it: not in it */
    far_close_agent(w, &agent);
    put_in_place(w, backup);
    struct coord_job *later;
    assert_int_equal(coord_find(w->coord, "b", &later), ST_NOT_FOUND);
    assert_int_equal(coord_find(w->coord, "a", &job), ST_OK);
    assert_int_equal(job->m.generation, 1 + FSM_RESTORE_GAP);
    join_with_trainer(w, &agent, job->id); /* of generation 1 */
    assert_int_equal(agent.sent[ORDER_END], 1);
    far_open(&trainer, token);
    Cairn__V1__TrainerHello hello = CAIRN__V1__TRAINER_HELLO__INIT;
    hello.job = job->id;
    hello.generation = 1;
    hello.version = CAIRN_VERSION;
    far_trainer_hello(w, &trainer, &hello);
    assert_non_null(strstr(trainer.text, "over"));
    far_close_trainer(w, &trainer);
    coord_pass(w, 1000);
    assert_int_equal(agent.sent[CAIRN__V1__AGENT_ORDER__BODY_START], 2); /* it goes on */
    far_close_agent(w, &agent);
    coord_restart(w); /* once is enough */
    assert_int_equal(coord_find(w->coord, "a", &job), ST_OK);
    assert_int_equal(job->m.generation, 1 + FSM_RESTORE_GAP);
    assert_false(journal_is_restored(w->journal));
}

static void a_backup_that_fails_leaves_the_one_before(void **state)
{
    struct coord_world *w = *state;
    struct reason reason = { "" };
    char backup[160], nowhere[160];
    back_up(w, backup);
    back_up(w, backup); /* takes its place */
    (void)snprintf(nowhere, sizeof(nowhere), "%s/no/backup", w->dir);
    assert_int_not_equal(journal_backup(w->path, nowhere, &reason), ST_OK);
    assert_non_null(strstr(reason.text, nowhere));
    assert_int_equal(journal_backup(nowhere, backup, &reason), ST_NOT_FOUND);
    assert_int_equal(access(backup, R_OK), 0);
    assert_int_equal(unlink(backup), 0);
}

/* ---- what is forgotten ---- */

static void the_rendezvous_of_a_generation_ends_with_it(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainer;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = coord_submit_one(w, "a");
    far_open(&trainer, job->m.token);
    far_attach(w, &trainer, job, 0);
    Cairn__V1__RendezvousJoin join = CAIRN__V1__RENDEZVOUS_JOIN__INIT;
    join.name = "workers";
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_JOIN;
    message.join = &join;
    coord_trainer_message(w->coord, &trainer.conn, &message);
    coord_end_group(w);
    assert_non_null(job->rounds);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    coord_end_group(w);
    for (uint32_t i = 0; i < 2; i++) {
        far_say_killed(w, &agent, job->id, job->m.generation, i);
        coord_end_group(w);
    }
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_null(job->rounds);
    far_close_trainer(w, &trainer);
    far_close_agent(w, &agent);
}

/* ---- drains ---- */

static void add_ckpt(struct coord_job *job, uint64_t step, int64_t wall)
{
    const struct fsm_ckpt ckpt = {
        .step = step, .generation = 1, .shards = 2, .state = FSM_CKPT_GOOD, .wall_ms = wall
    };
    assert_int_equal(fsm_add_ckpt(&job->m, &ckpt), ST_OK);
}

/* Where all processes are told to leave at once, workers may have saved before the drain begins. */
static void a_drain_counts_what_workers_saved_by_themselves(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *whole = coord_submit_one(w, "a");
    struct coord_job *loses = coord_submit_one(w, "b");
    struct coord_job *waits = coord_submit_one(w, "c");
    assert_string_equal(fsm_state_name(loses->m.state), "FORMING");
    assert_string_equal(fsm_state_name(waits->m.state), "QUEUED");
    const int64_t before = clock_wall_ms(&w->clock) - 1000;
    add_ckpt(whole, 30, before);
    add_ckpt(loses, 30, before);
    add_ckpt(waits, 30, before);
    whole->m.step_max = waits->m.step_max = 30;
    loses->m.step_max = 31;
    coord_drain(w->coord, false, 1000, NULL);
    coord_end_group(w);
    assert_int_equal(coord_drain_saved(w->coord), 1);
    coord_drain(w->coord, true, 1000, NULL); /* of the same drain, as is a second caller's */
    coord_end_group(w);
    assert_int_equal(coord_drain_saved(w->coord), 1);
    add_ckpt(loses, 31, clock_wall_ms(&w->clock));
    assert_int_equal(coord_drain_saved(w->coord), 2);
    coord_drain_end(w->coord);
    far_close_agent(w, &agent);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(whoever_watches_hears_of_every_job_that_is_loaded),
        CASE(nobody_is_judged_by_the_time_that_loading_took),
        CASE(a_job_that_no_longer_parses_is_kept_as_it_is),
        CASE(its_slots_are_not_given_to_others),
        CASE(nor_are_those_of_one_that_was_to_grow),
        CASE(a_job_that_no_longer_parses_can_be_killed),
        CASE(a_job_whose_state_is_broken_is_kept_as_well),
        CASE(a_rank_is_written_when_it_changes_and_no_other_with_it),
        CASE(ranks_of_an_older_journal_get_their_rows),
        CASE(a_job_with_a_broken_row_is_kept_as_it_is),
        CASE(a_job_without_rows_that_no_longer_parses_stays_what_it_is),
        CASE(a_job_with_more_workers_than_connections_is_refused),
        CASE(a_restored_journal_uses_no_number_of_an_attempt_again),
        CASE(a_backup_that_fails_leaves_the_one_before),
        CASE(the_rendezvous_of_a_generation_ends_with_it),
        CASE(a_drain_counts_what_workers_saved_by_themselves),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
