/* A group: what happens between two commits is journalled together, and told to nobody before that
 * is on the medium. */
#include <string.h>

#include "server/coord/apply.h"
#include "server/coord/state.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"
#include "tests/unit/server/journal/journal_vfs.h"

struct ends {
    struct coord_world *w;
    struct far_end agent, trainer[2];
    uint32_t told;  /* when the group began */
    uint32_t syncs; /* of its commit */
};

/* All that ever left the core. */
static uint32_t told(const struct ends *e)
{
    const struct far_end *all[] = { &e->agent, &e->trainer[0], &e->trainer[1] };
    uint32_t count = e->w->tasks;
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        count += all[i]->finished;
        for (size_t j = 0; j < sizeof(all[i]->sent) / sizeof(all[i]->sent[0]); j++)
            count += all[i]->sent[j];
    }
    return count;
}

static void begin_group(struct ends *e)
{
    e->w->open = true;
    e->told = told(e);
    e->syncs = 0;
}

static void at_call(void *arg, enum journal_call call)
{
    struct ends *e = arg;
    assert_int_equal(told(e), e->told); /* SQLite is still writing */
    e->syncs += call == JOURNAL_SYNC;
}

/* Returns what left with its commit. */
static uint32_t end_group(struct ends *e)
{
    assert_int_equal(told(e), e->told);
    journal_vfs_watch(at_call, e);
    assert_int_equal(coord_commit(e->w->coord), ST_OK);
    journal_vfs_watch(NULL, NULL);
    e->w->open = false;
    return told(e) - e->told;
}

/* An agent, and a job of two ranks that forms; each step of it in one group. */
static struct coord_job *form(struct coord_world *w, struct ends *e)
{
    *e = (struct ends){ .w = w };
    begin_group(e);
    far_join(w, &e->agent, "n", "boot-1");
    assert_true(end_group(e) > 0); /* the welcome */
    begin_group(e);
    struct coord_job *job = coord_submit_one(w, "a");
    assert_true(end_group(e) > 0); /* the store is asked */
    assert_true(e->syncs > 0);
    coord_pass(w, 1);
    for (uint32_t i = 0; i < 2; i++)
        far_open(&e->trainer[i], job->m.token);
    begin_group(e);
    far_attach(w, &e->trainer[0], job, 0);
    far_attach(w, &e->trainer[1], job, 1);
    assert_int_equal(end_group(e), 2); /* their plans */
    return job;
}

static void close_all(struct coord_world *w, struct ends *e)
{
    for (int i = 0; i < 2; i++)
        far_close_trainer(w, &e->trainer[i]);
    far_close_agent(w, &e->agent);
}

static void say_rows(struct coord_world *w, struct far_end *trainer, uint64_t step)
{
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT, *list[] = { &row };
    Cairn__V1__MetricRows rows = CAIRN__V1__METRIC_ROWS__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    rows.n_rows = 1;
    rows.rows = list;
    row.step = step;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
    message.metrics = &rows;
    coord_trainer_message(w->coord, &trainer->conn, &message);
}

static void say_exits(struct coord_world *w, struct ends *e, const struct coord_job *job)
{
    for (uint32_t i = 0; i < 2; i++)
        far_say_killed(w, &e->agent, job->id, job->m.generation, i);
}

static void nothing_is_told_before_its_group_is_on_the_medium(void **state)
{
    struct coord_world *w = *state;
    struct ends e;
    journal_vfs_watch(NULL, NULL);
    coord_restart(w); /* on the watched files */
    struct coord_job *job = form(w, &e);
    begin_group(&e);
    say_rows(w, &e.trainer[0], 1);
    say_rows(w, &e.trainer[0], 2);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    say_exits(w, &e, job);
    assert_int_equal(e.agent.sent[CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK], 0);
    assert_true(end_group(&e) >= 4); /* two exits, the rows, the end */
    assert_int_equal(e.syncs, 1);    /* of many events */
    assert_int_equal(e.agent.sent[CAIRN__V1__AGENT_ORDER__BODY_EXIT_ACK], 2);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    begin_group(&e);
    assert_int_equal(end_group(&e), 0);
    assert_int_equal(e.syncs, 0); /* nothing happened */
    close_all(w, &e);
}

/* Rows of metrics: nobody waits for that they are journalled, until something else happens. */
static void what_nobody_waits_for_is_not_committed_alone(void **state)
{
    struct coord_world *w = *state;
    struct ends e;
    journal_vfs_watch(NULL, NULL);
    coord_restart(w);
    struct coord_job *job = form(w, &e);
    assert_int_equal(coord_commit_by(w->coord), 0); /* nothing is open: it costs nothing */
    begin_group(&e);
    say_rows(w, &e.trainer[0], 1);
    assert_int_equal(coord_commit_by(w->coord), 0);
    coord_pass(w, COORD_ROWS_MS);
    assert_int_equal(job->rows.count, 1);
    const int64_t by = coord_commit_by(w->coord);
    assert_in_range(by, 1, w->now + COORD_COMMIT_DELAY_MS);
    coord_pass(w, 1);
    assert_int_equal(coord_commit_by(w->coord), by); /* from its first write on */
    say_exits(w, &e, job);
    assert_int_equal(coord_commit_by(w->coord), 0);
    assert_true(end_group(&e) >= 2); /* the exits */
    assert_int_equal(e.syncs, 1);
    assert_int_equal(job->rows.count, 0);
    close_all(w, &e);
}

static void what_was_not_committed_never_happened(void **state)
{
    struct coord_world *w = *state;
    struct ends e;
    struct coord_job *job = form(w, &e);
    begin_group(&e);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    (void)coord_submit_one(w, "b");
    say_exits(w, &e, job);
    assert_string_equal(fsm_state_name(job->m.state), "KILLED");
    assert_int_equal(told(&e), e.told);
    coord_restart(w); /* it dies so */
    w->open = false;
    assert_int_equal(told(&e), e.told);
    assert_int_equal(coord_find(w->coord, "b", &job), ST_NOT_FOUND);
    assert_int_equal(coord_find(w->coord, "a", &job), ST_OK);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
}

static void who_is_gone_before_the_commit_is_told_nothing(void **state)
{
    struct coord_world *w = *state;
    struct ends e;
    struct coord_job *job = form(w, &e);
    begin_group(&e);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    far_close_trainer(w, &e.trainer[0]); /* far_send fails the test if it is spoken to */
    far_close_agent(w, &e.agent);
    assert_true(end_group(&e) > 0); /* the other trainer */
    far_close_trainer(w, &e.trainer[1]);
}

static void a_stream_ends_after_what_is_on_its_way(void **state)
{
    struct coord_world *w = *state;
    struct ends e = { .w = w };
    begin_group(&e);
    far_join(w, &e.agent, "n", "boot-1");
    coord_half_closed(w->coord, &e.agent.conn);
    assert_false(e.agent.finished);
    assert_int_equal(end_group(&e), 2);
    assert_int_equal(e.agent.sent[CAIRN__V1__AGENT_ORDER__BODY_WELCOME], 1);
    assert_true(e.agent.finished);
    assert_int_equal(e.agent.code, RPC_OK);
    far_close_agent(w, &e.agent);
}

static void at_slow_call(void *arg, enum journal_call call)
{
    struct coord_world *w = arg;
    w->now += call == JOURNAL_SYNC ? 40000 : 0;
}

static void say_progress(struct coord_world *w, struct far_end *trainer)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS;
    message.progress = &progress;
    coord_trainer_message(w->coord, &trainer->conn, &message);
}

/* What they said meanwhile waits in the mailbox: who is taken from it first must not show that the
 * others are silent. */
static void a_disk_that_is_slow_is_no_silence_of_others(void **state)
{
    struct coord_world *w = *state;
    struct ends e;
    journal_vfs_watch(NULL, NULL);
    coord_restart(w);
    struct coord_job *job = form(w, &e);
    const uint32_t generation = job->m.generation;
    w->open = true;
    (void)coord_deadline(w->coord);
    coord_wake(w->coord);
    say_rows(w, &e.trainer[0], 1);
    const int64_t before = w->now;
    coord_flush_rows(w->coord, job);
    journal_vfs_watch(at_slow_call, w);
    assert_int_equal(coord_commit(w->coord), ST_OK);
    journal_vfs_watch(NULL, NULL);
    assert_true(w->now >= before + 40000);
    (void)coord_deadline(w->coord);
    coord_wake(w->coord);
    say_progress(w, &e.trainer[0]);
    coord_tick(w->coord);
    assert_int_equal(coord_commit(w->coord), ST_OK);
    assert_string_equal(fsm_state_name(job->m.state), "FORMING");
    assert_int_equal(job->m.ending.to, FSM_NONE);
    assert_int_equal(job->m.generation, generation);
    w->open = false;
    close_all(w, &e);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(nothing_is_told_before_its_group_is_on_the_medium),
        CASE(what_nobody_waits_for_is_not_committed_alone),
        CASE(what_was_not_committed_never_happened),
        CASE(who_is_gone_before_the_commit_is_told_nothing),
        CASE(a_stream_ends_after_what_is_on_its_way),
        CASE(a_disk_that_is_slow_is_no_silence_of_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
