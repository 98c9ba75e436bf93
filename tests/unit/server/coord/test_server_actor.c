/* The history of each job names who asked for a change of it, and the journal has that. */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define ALICE "operator/alice"

static bool add_event(void *arg, const struct journal_event *event)
{
    assert_int_equal(buf_printf(arg, "%s: %s\n", event->kind, event->message), ST_OK);
    return true;
}

/* Reads a job's history from the journal, a line per event, after another coordinator has read
 * it. */
static void history(struct coord_world *w, const char *id, struct buf *out)
{
    buf_init(out, 1 << 20);
    coord_restart(w);
    assert_int_equal(journal_each_event(w->journal, id, 1000, add_event, out), ST_OK);
}

static uint32_t count_of(const struct buf *text, const char *line)
{
    uint32_t count = 0;
    for (const char *at = strstr(text->data, line); at != NULL; at = strstr(at + 1, line))
        count++;
    return count;
}

static void what_is_asked_of_a_job_is_told_with_who_asked(void **state)
{
    struct coord_world *w = *state;
    auto_buf struct buf told;
    w->by = ALICE;
    struct coord_job *job = coord_submit_one(w, "one");
    char id[16];
    (void)snprintf(id, sizeof(id), "%s", job->id);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_PAUSE, ALICE), ST_OK);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_PAUSE, "operator/bob"), ST_OK);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_RESUME, "operator/carol"), ST_OK);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_RESUME, "operator/dave"), ST_REFUSED);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_STOP, "local"), ST_OK);
    coord_end_group(w);
    history(w, id, &told);
    assert_int_equal(count_of(&told, "submitted: one, by " ALICE "\n"), 1);
    assert_int_equal(count_of(&told, "pause: asked by " ALICE "\n"), 1);
    assert_int_equal(count_of(&told, "resumed: asked by operator/carol\n"), 1);
    assert_int_equal(count_of(&told, "stop: asked by local\n"), 1);
    assert_int_equal(count_of(&told, "bob") + count_of(&told, "dave"), 0); /* nothing was done */
}

static void a_kill_is_told_whatever_the_job_is_doing(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    auto_buf struct buf told;
    struct coord_job *waits = coord_submit_one(w, "waits");
    assert_int_equal(coord_ask(w->coord, waits, FSM_EV_KILL, ALICE), ST_OK);
    far_join(w, &agent, "a", "boot-1");
    struct coord_job *job = coord_submit_one(w, "forms");
    char id[2][16];
    (void)snprintf(id[0], sizeof(id[0]), "%s", waits->id);
    (void)snprintf(id[1], sizeof(id[1]), "%s", job->id);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, ALICE), ST_OK);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, "operator/bob"), ST_OK);
    coord_end_group(w);
    far_close_agent(w, &agent);
    for (int i = 0; i < 2; i++) {
        history(w, id[i], &told);
        assert_int_equal(count_of(&told, "kill: asked by "), 1);
        assert_int_equal(count_of(&told, "kill: asked by " ALICE "\n"), 1);
        buf_release(&told);
    }
}

static void jobs_are_told_who_took_their_node_or_the_coordinator(void **state)
{
    struct coord_world *w = *state;
    struct far_end agents[3];
    struct coord_node *node;
    auto_buf struct buf told;
    char id[3][16];
    static const char *const names[] = { "a", "b", "c" };
    for (int i = 0; i < 3; i++) {
        far_join(w, &agents[i], names[i], "boot-1");
        struct coord_job *job = coord_submit_one(w, names[i]);
        (void)snprintf(id[i], sizeof(id[i]), "%s", job->id);
        assert_int_equal(coord_drain_node(w->coord, names[i], "disks", 0, ALICE), ST_OK);
        if (i > 0)
            assert_int_equal(coord_undrain_node(w->coord, names[i], ALICE), ST_OK);
    }
    assert_int_equal(coord_forget_node(w->coord, "a", ALICE, &node), ST_OK);
    coord_drain(w->coord, false, 1000, ALICE);
    coord_drain(w->coord, true, 1000, NULL);
    coord_end_group(w);
    for (int i = 0; i < 3; i++)
        far_close_agent(w, &agents[i]);
    history(w, id[0], &told);
    assert_int_equal(count_of(&told, "node a is drained, asked by " ALICE ": disks"), 1);
    assert_int_equal(count_of(&told, "node: node a was forgotten, asked by " ALICE "\n"), 1);
    buf_release(&told);
    history(w, id[2], &told);
    assert_int_equal(count_of(&told, "down: the coordinator goes down, asked by " ALICE "\n"), 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(what_is_asked_of_a_job_is_told_with_who_asked),
        CASE(a_kill_is_told_whatever_the_job_is_doing),
        CASE(jobs_are_told_who_took_their_node_or_the_coordinator),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
