/* What the core keeps of jobs and nodes: the queue, slots in use. */
#include <stdio.h>
#include <string.h>

#include "server/coord/state.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define QUEUED 40

static void reason_is(struct coord_world *w, const struct coord_job *job, const char *wanted)
{
    struct reason reason;
    coord_reason(w->coord, job, &reason);
    assert_string_equal(reason.text, wanted);
}

static void waits_behind(struct coord_world *w, const struct coord_job *job,
                         const struct coord_job *head)
{
    char wanted[256];
    (void)snprintf(wanted, sizeof(wanted), "waits behind %s (%s), which was submitted before",
                   head->name, head->id);
    reason_is(w, job, wanted);
}

/* There are slots for two jobs of two workers: the third is told why it waits. */
static void submit_many(struct coord_world *w, struct far_end *agent, struct coord_job **jobs)
{
    far_join(w, agent, "n", "boot-1");
    for (int i = 0; i < QUEUED; i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "job%d", i);
        jobs[i] = coord_submit_one(w, name);
    }
    assert_string_equal(fsm_state_name(jobs[1]->m.state), "FORMING");
    assert_string_equal(fsm_state_name(jobs[2]->m.state), "QUEUED");
}

/* ---- the queue ---- */

struct search {
    const char *text;
    uint32_t count;
};

static bool find_text(void *arg, const struct journal_job *row)
{
    struct search *search = arg;
    search->count += strstr(row->state, search->text) != NULL;
    return true;
}

static void who_waits_behind_another_is_told_so_and_nothing_of_it_is_journalled(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *jobs[QUEUED];
    submit_many(w, &agent, jobs);
    reason_is(w, jobs[2], "needs 2 slots, 0 of 4 are free");
    coord_is_blocked(w, jobs[2], FSM_BLOCK_SLOTS, "0 of 4 are free");
    coord_is_blocked(w, jobs[3], FSM_BLOCK_QUEUE, "waits behind job2");
    for (int i = 3; i < QUEUED; i++)
        waits_behind(w, jobs[i], jobs[2]);
    struct search search = { .text = "waits behind" };
    assert_int_equal(journal_each_job(w->journal, find_text, &search), ST_OK);
    assert_int_equal(search.count, 0);
    search.text = "needs 2 slots";
    assert_int_equal(journal_each_job(w->journal, find_text, &search), ST_OK);
    assert_int_equal(search.count, 1);
    far_close_agent(w, &agent);
}

static void those_behind_hear_of_another_head(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *jobs[QUEUED];
    submit_many(w, &agent, jobs);
    const uint64_t version = jobs[20]->version;
    assert_int_equal(coord_ask(w->coord, jobs[2], FSM_EV_KILL, NULL), ST_OK);
    assert_true(jobs[20]->version > version); /* `cairn logs -f` and others look at it again */
    reason_is(w, jobs[2], "");
    reason_is(w, jobs[3], "needs 2 slots, 0 of 4 are free");
    waits_behind(w, jobs[20], jobs[3]);
    far_close_agent(w, &agent);
}

static void nothing_that_a_running_job_does_touches_the_queue(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainer;
    struct coord_job *jobs[QUEUED];
    submit_many(w, &agent, jobs);
    uint64_t versions = 0;
    for (int i = 2; i < QUEUED; i++)
        versions += jobs[i]->version;
    far_open(&trainer, jobs[0]->m.token);
    far_attach(w, &trainer, jobs[0], 0);
    far_beat(w, &agent);
    coord_pass(w, 1000);
    far_beat(w, &agent);
    coord_pass(w, COORD_LOOK_MS); /* the queue is looked at, and says what it said */
    for (int i = 2; i < QUEUED; i++)
        versions -= jobs[i]->version;
    assert_int_equal(versions, 0);
    far_close_trainer(w, &trainer);
    far_close_agent(w, &agent);
}

static void a_coordinator_that_goes_down_says_so_to_all_that_wait(void **state)
{
    static const char down[] = "the coordinator is going down; the job goes on when it is up again";
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *jobs[QUEUED];
    submit_many(w, &agent, jobs);
    coord_drain(w->coord, false, 1000, NULL);
    reason_is(w, jobs[2], down);
    reason_is(w, jobs[QUEUED - 1], down);
    coord_drain_end(w->coord);
    coord_pass(w, 1);
    reason_is(w, jobs[2], "needs 2 slots, 0 of 4 are free");
    waits_behind(w, jobs[QUEUED - 1], jobs[2]);
    far_close_agent(w, &agent);
}

/* ---- slots ---- */

static void slots_are_free_again_once_their_job_is_over(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    struct coord_job *jobs[QUEUED];
    submit_many(w, &agent, jobs);
    struct coord_node *node = coord_node_at(w->coord, "n");
    assert_int_equal(coord_node_used(w->coord, node), 4);
    assert_int_equal(coord_ask(w->coord, jobs[0], FSM_EV_KILL, NULL), ST_OK);
    for (int i = 0; i < 10; i++) { /* they never showed up: they count as gone */
        coord_pass(w, 1000);
        far_beat(w, &agent);
    }
    assert_string_equal(fsm_state_name(jobs[0]->m.state), "KILLED");
    assert_string_equal(fsm_state_name(jobs[2]->m.state), "FORMING");
    assert_int_equal(coord_node_used(w->coord, node), 4);
    assert_int_equal(coord_ask(w->coord, jobs[2], FSM_EV_KILL, NULL), ST_OK);
    coord_check(w->coord);
    far_close_agent(w, &agent);
}

/* A coordinator that goes down places nobody any more. */
static void who_waits_while_the_coordinator_goes_down_is_told_so(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = coord_submit_one(w, "a");
    coord_is_blocked(w, job, FSM_BLOCK_SLOTS, "needs 2 slots");
    coord_drain(w->coord, true, 1000, NULL);
    coord_end_group(w);
    coord_is_blocked(w, job, FSM_BLOCK_DRAINING, "the coordinator is going down");
    coord_drain_end(w->coord);
    coord_is_blocked(w, job, FSM_BLOCK_SLOTS, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
        TEST(who_waits_while_the_coordinator_goes_down_is_told_so),
        TEST(who_waits_behind_another_is_told_so_and_nothing_of_it_is_journalled),
        TEST(those_behind_hear_of_another_head),
        TEST(nothing_that_a_running_job_does_touches_the_queue),
        TEST(a_coordinator_that_goes_down_says_so_to_all_that_wait),
        TEST(slots_are_free_again_once_their_job_is_over),
#undef TEST
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
