/* `cairn why`: told within one message, however long the job has run and however wide it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/jobfsm/persist.h"
#include "server/render/render.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

#define GENERATIONS 2000
#define WIDE        100 /* generations whose list of nodes is long: the newest */
#define NODE_BYTES  127

static const char wide_job[] =
    "name: wide\n"
    "model: {arch: mlp, classes: 10}\n"
    "data: {train: {format: synthetic, samples: 10000}}\n"
    "train: {duration: 50 steps, global_batch: 1024, lanes: 1024, seed: 1, optimizer: {name: sgd, "
    "lr: 0.1}}\n"
    "workers: {count: 1024}\n"
    "checkpoint: {every: 5 steps, store: /store}\n";

/* The nodes of a generation: each worker on one of its own, with a long name. */
static char *wide_nodes(void)
{
    const size_t capacity = (size_t)LIMIT_RANKS * LIMIT_NAME + 1;
    char *list = malloc(capacity);
    assert_non_null(list);
    for (size_t i = 0, used = 0; i < LIMIT_RANKS; i++)
        used +=
            (size_t)snprintf(list + used, capacity - used, "%s%0*zu", i ? "," : "", NODE_BYTES, i);
    return list;
}

/* What one after a failure has; texts as long as they may be. */
static void write_recovery(uint32_t generation, const char *message, struct buf *out)
{
    struct recovery r = { .state = RECOVERY_DONE,
                          .kind = RECOVERY_LIVE,
                          .generation = generation,
                          .ended = generation - 1,
                          .fault = FSM_FAULT_PROCESS,
                          .mark = generation,
                          .step = generation - 1,
                          .wall_ms = 1800000000000 };
    memset(r.node, 'n', sizeof(r.node) - 1);
    (void)snprintf(r.message, sizeof(r.message), "%s", message);
    assert_int_equal(fsm_encode_recovery(&r, out), ST_OK);
}

static void put_generations(struct coord_world *w, const char *id, uint32_t count,
                            const char *nodes)
{
    char message[LIMIT_REASON];
    memset(message, 'm', sizeof(message) - 1);
    message[sizeof(message) - 1] = '\0';
    assert_int_equal(journal_begin(w->journal), ST_OK);
    for (uint32_t g = 1; g <= count; g++) {
        auto_buf struct buf recovery;
        buf_init(&recovery, 8192);
        if (g > 1)
            write_recovery(g, message, &recovery);
        struct journal_generation row = { .generation = g,
                                          .begin_ms = 1800000000000 + g * 1000,
                                          .end_ms = g == count ? 0 : 1800000000500 + g * 1000,
                                          .end_step = g,
                                          .nodes = g + WIDE > count ? nodes : "a",
                                          .recovery = recovery.data != NULL ? recovery.data : "",
                                          .cause = "process gone",
                                          .message = message };
        assert_int_equal(journal_put_generation(w->journal, id, &row), ST_OK);
        assert_int_equal(journal_end_generation(w->journal, id, &row), ST_OK);
    }
    for (uint32_t i = 0; i < RENDER_EVENTS; i++) {
        struct journal_event event = { .generation = i, .kind = "fault", .message = message };
        assert_int_equal(journal_put_event(w->journal, id, &event), ST_OK);
    }
    assert_int_equal(journal_commit(w->journal), ST_OK);
}

static Cairn__V1__ExplainJobReply *explain(struct coord_world *w, struct coord_job *job)
{
    Cairn__V1__ExplainJobReply *out = NULL;
    struct explain *begun = explain_begin(w->coord, job, true);
    assert_non_null(begun);
    assert_int_equal(explain_end(begun, w->journal, &out), ST_OK);
    return out;
}

/* Nothing but its numbers says so. */
static void as_if_formed(struct coord_job *job, uint32_t generation)
{
    job->m.generation = generation;
    job->m.recoveries = generation > 0 ? generation - 1 : 0;
}

static void a_wide_job_of_many_generations_is_told_in_one_message(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = NULL;
    struct reason reason;
    assert_int_equal(coord_submit_text(w, wide_job, &job, &reason), ST_OK);
    char *nodes = wide_nodes();
    as_if_formed(job, GENERATIONS);
    put_generations(w, job->id, GENERATIONS, nodes);
    Cairn__V1__ExplainJobReply *out = explain(w, job);
    assert_in_range(cairn__v1__explain_job_reply__get_packed_size(out), 1, LIMIT_MESSAGE_BYTES);
    assert_int_equal(out->n_generations, 64);
    assert_int_equal(out->generations[0]->generation, GENERATIONS - 63);
    assert_int_equal(out->generations[63]->generation, GENERATIONS);
    assert_int_equal(out->generations_left_out, GENERATIONS - 64);
    assert_non_null(strstr(out->text, "1936 older ones are left out"));
    assert_int_equal(out->generations[5]->workers, LIMIT_RANKS);
    assert_int_equal(out->generations[5]->node_count, LIMIT_RANKS);
    assert_string_equal(out->generations[5]->nodes, "");
    assert_non_null(strstr(out->text, "on 1024 nodes (1024 workers): runs"));
    assert_in_range(out->lost_by_cause[0]->count, 63, GENERATIONS - 1); /* of those that are kept */
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
    free(nodes);
    as_if_formed(job, 0);
}

static void what_is_lost_is_of_all_generations(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = coord_submit_one(w, "short");
    as_if_formed(job, 500);
    put_generations(w, job->id, 500, "a,b");
    Cairn__V1__ExplainJobReply *out = explain(w, job);
    assert_int_equal(out->n_generations, 64);
    assert_int_equal(out->generations_left_out, 436);
    assert_int_equal(out->lost_by_cause[0]->count, 499);
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
    as_if_formed(job, 0);
}

static void a_list_of_nodes_that_is_short_is_told_whole(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = coord_submit_one(w, "short");
    as_if_formed(job, 2);
    put_generations(w, job->id, 2, "a,b,a,a");
    Cairn__V1__ExplainJobReply *out = explain(w, job);
    assert_int_equal(out->n_generations, 2);
    assert_int_equal(out->generations_left_out, 0);
    assert_null(strstr(out->text, "left out"));
    assert_string_equal(out->generations[1]->nodes, "a,b,a,a");
    assert_int_equal(out->generations[1]->workers, 4);
    assert_int_equal(out->generations[1]->node_count, 2);
    assert_non_null(strstr(out->text, " on a,b,a,a: "));
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
    as_if_formed(job, 0);
}

/* The job's workers live for 5 s, in which somebody sets the wall clock. */
static void run_while_the_clock_is_set(struct coord_world *w, int64_t by)
{
    struct far_end node, workers[2];
    far_join(w, &node, "a", "boot");
    struct coord_job *job = coord_submit_one(w, "clock");
    assert_int_equal(job->m.generation, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        far_open(&workers[rank], job->m.token);
        far_attach(w, &workers[rank], job, rank);
    }
    coord_pass(w, 5000);
    w->wall_step += by;
    for (uint32_t rank = 0; rank < 2; rank++)
        far_say_killed(w, &node, job->id, 1, rank);
    coord_end_group(w);
    coord_pass(w, 1000);
    Cairn__V1__ExplainJobReply *out = explain(w, job);
    assert_true(out->n_generations >= 1);
    assert_string_not_equal(out->generations[0]->end, "");
    if (strstr(out->text, ": 5.0 s, to step") == NULL)
        fail_msg("%s", out->text);
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
}

static void a_clock_that_is_set_forward_makes_no_generation_longer(void **state)
{
    run_while_the_clock_is_set(*state, 3600000);
}

static void a_clock_that_is_set_back_makes_no_generation_shorter(void **state)
{
    run_while_the_clock_is_set(*state, -90000000);
}

/* The row is as an older coordinator wrote it. */
static void a_row_that_ends_before_it_begins_lasted_no_time(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = coord_submit_one(w, "before");
    struct journal_generation row = { .generation = 1,
                                      .begin_ms = 1800000000000,
                                      .end_ms = 1799999000000,
                                      .nodes = "a",
                                      .recovery = "",
                                      .cause = "",
                                      .message = "" };
    assert_int_equal(journal_put_generation(w->journal, job->id, &row), ST_OK);
    assert_int_equal(journal_end_generation(w->journal, job->id, &row), ST_OK);
    Cairn__V1__ExplainJobReply *out = explain(w, job);
    assert_string_equal(out->generations[0]->end, out->generations[0]->begin);
    assert_non_null(strstr(out->text, ": 0.0 s, to step 0: ended as planned"));
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
}

/* The thread that tells of such a job has no coordinator. */
static void a_job_that_ended_long_ago_waits_for_nothing(void **state)
{
    struct coord_world *w = *state;
    struct coord_job *job = NULL;
    struct reason reason;
    Cairn__V1__ExplainJobReply *out = NULL;
    assert_int_equal(coord_submit_text(w, wide_job, &job, &reason), ST_OK);
    assert_int_equal(coord_ask(w->coord, job, FSM_EV_KILL, NULL), ST_OK);
    struct explain *begun = explain_begin(NULL, job, true);
    assert_non_null(begun);
    assert_int_equal(explain_end(begun, w->journal, &out), ST_OK);
    assert_null(out->blocked);
    cairn__v1__explain_job_reply__free_unpacked(out, NULL);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, coord_setup, coord_teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_wide_job_of_many_generations_is_told_in_one_message),
        CASE(a_job_that_ended_long_ago_waits_for_nothing),
        CASE(what_is_lost_is_of_all_generations),
        CASE(a_list_of_nodes_that_is_short_is_told_whole),
        CASE(a_clock_that_is_set_forward_makes_no_generation_longer),
        CASE(a_clock_that_is_set_back_makes_no_generation_shorter),
        CASE(a_row_that_ends_before_it_begins_lasted_no_time),
    };
#undef CASE
    return cmocka_run_group_tests(tests, NULL, NULL);
}
