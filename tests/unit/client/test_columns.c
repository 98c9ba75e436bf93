/* Columns that are chosen by name, rows that are put in order, tables that fit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cairn/v1/control.pb-c.h"
#include "client/print/columns.h"
#include "client/print/format.h"
#include "client/print/job.h"
#include "client/print/job_columns.h"
#include "client/print/node.h"
#include "common/buf.h"
#include "tests/test.h"

#define JOBS 6

static Cairn__V1__Job jobs[JOBS];
static ProtobufCMessage *rows[JOBS];

static void set_job(size_t i, const char *id, const char *name, Cairn__V1__JobState state,
                    double loss)
{
    cairn__v1__job__init(&jobs[i]);
    jobs[i].id = (char *)id;
    jobs[i].name = (char *)name;
    jobs[i].state = state;
    jobs[i].loss = loss;
    jobs[i].goodput = jobs[i].eta_seconds = jobs[i].throughput = (double)NAN;
    jobs[i].step_ms = jobs[i].accuracy = jobs[i].eval_loss = (double)NAN;
    rows[i] = &jobs[i].base;
}

static int set_up(void **state)
{
    (void)state;
    set_job(0, "f", "net10", CAIRN__V1__JOB_STATE__RUNNING, 2);
    set_job(1, "e", "net2", CAIRN__V1__JOB_STATE__QUEUED, (double)NAN);
    set_job(2, "d", "net2", CAIRN__V1__JOB_STATE__SUCCEEDED, 1);
    set_job(3, "c", "a", CAIRN__V1__JOB_STATE__RUNNING, 10);
    set_job(4, "b", "net2", CAIRN__V1__JOB_STATE__FAILED, (double)INFINITY);
    set_job(5, "a", "z", CAIRN__V1__JOB_STATE__RUNNING, -1);
    jobs[0].submitted_at = "2026-11-01T10:00:00Z";
    jobs[3].submitted_at = "2026-11-01T10:00:00.5Z";
    return 0;
}

/* The ids of the rows in the order that words say. */
static const char *ordered(const char *words)
{
    static char ids[JOBS + 1];
    struct order order;
    assert_int_equal(columns_order(job_columns, "sort", words, &order), EXIT_DONE);
    for (size_t i = 0; i < JOBS; i++)
        rows[i] = &jobs[i].base;
    assert_int_equal(columns_sort(&order, rows, JOBS), ST_OK);
    for (size_t i = 0; i < JOBS; i++)
        ids[i] = ((const Cairn__V1__Job *)(const void *)rows[i])->id[0];
    ids[JOBS] = '\0';
    return ids;
}

static void numbers_are_ordered_by_value_and_what_is_not_known_comes_last(void **state)
{
    (void)state;
    assert_string_equal(ordered("loss"), "adfcbe");
    assert_string_equal(ordered("-loss"), "bcfdae");
    assert_string_equal(ordered("eta"), "fedcba"); /* nobody has one: as they came */
    assert_string_equal(ordered("-eta"), "fedcba");
    assert_string_equal(ordered("age"), "cfedba");
    assert_string_equal(ordered("-submitted"), "cfedba");
    assert_string_equal(ordered("submitted"), "fcedba");
}

static void texts_are_ordered_with_their_numbers_by_value(void **state)
{
    (void)state;
    assert_string_equal(ordered("name"), "cedbfa");
    assert_string_equal(ordered("-name"), "afedbc"); /* equal ones stay as they were */
    assert_string_equal(ordered("id"), "abcdef");
}

static void states_are_in_the_order_of_a_life_and_keys_follow_each_other(void **state)
{
    (void)state;
    assert_string_equal(ordered("state"), "efcadb");
    assert_string_equal(ordered("state,-loss"), "ecfadb");
    assert_string_equal(ordered("-STATE,name"), "bdcfae");
    assert_string_equal(ordered("name,loss"), "cdbefa");
}

static void unknown_and_too_many_names_are_refused(void **state)
{
    (void)state;
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    struct order order = { .count = 77 };
    static const char *const wrong[] = { "",        "losss", "id,",  ",id", "id,,name",
                                         "id name", "--id",  "live", "-" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(columns_order(job_columns, "sort", wrong[i], &order), EXIT_USAGE);
        assert_int_equal(order.count, 77);
        assert_int_equal(columns_choose(job_columns, "columns", wrong[i], chosen), EXIT_USAGE);
    }
    assert_int_equal(columns_choose(job_columns, "columns", "-id", chosen), EXIT_USAGE);
    assert_int_equal(columns_order(job_columns, "sort", "id,id,id,id,id,id,id,id", &order),
                     EXIT_DONE);
    assert_int_equal(columns_order(job_columns, "sort", "id,id,id,id,id,id,id,id,id", &order),
                     EXIT_USAGE);
    char many[3 * (OUTPUT_COLUMNS_MAX + 1)] = "id";
    for (size_t i = 1; i < OUTPUT_COLUMNS_MAX; i++)
        (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), ",id");
    assert_int_equal(columns_choose(job_columns, "columns", many, chosen), EXIT_DONE);
    (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), ",id");
    assert_int_equal(columns_choose(job_columns, "columns", many, chosen), EXIT_USAGE);
}

/* Every column can be named, ordered by both ways, and printed of a job of which nothing is known.
 */
static void every_column_can_be_chosen_and_ordered_by(void **state)
{
    (void)state;
    const struct column *const tables[] = { job_columns, node_columns };
    Cairn__V1__Node node = CAIRN__V1__NODE__INIT;
    ProtobufCMessage *nodes[] = { &node.base, &node.base };
    for (size_t t = 0; t < 2; t++) {
        char names[1024];
        columns_names(tables[t], ",", names, sizeof(names));
        assert_in_range(strlen(names), 1, sizeof(names) - 2);
        struct column chosen[OUTPUT_COLUMNS_MAX + 1];
        assert_int_equal(columns_choose(tables[t], "columns", names, chosen), EXIT_DONE);
        size_t count = 0;
        for (char *rest = NULL, *name = strtok_r(names, ",", &rest); name != NULL;
             name = strtok_r(NULL, ",", &rest), count++) {
            struct order order;
            assert_int_equal(columns_order(tables[t], "sort", name, &order), EXIT_DONE);
            assert_int_equal(columns_sort(&order, t == 0 ? rows : nodes, 2), ST_OK);
        }
        for (size_t i = 0; i < count; i++) {
            assert_string_equal(chosen[i].title, tables[t][i].title);
            assert_false(chosen[i].wide || chosen[i].asked);
        }
        assert_null(chosen[count].title);
        assert_null(tables[t][count].title);
        auto_buf struct buf out;
        buf_init(&out, 65536);
        assert_int_equal(output_table(chosen, false, true, t == 0 ? rows : nodes, 2, &out), ST_OK);
    }
}

static void columns_show_what_they_say(void **state)
{
    (void)state;
    Cairn__V1__Worker one = CAIRN__V1__WORKER__INIT, two = CAIRN__V1__WORKER__INIT;
    Cairn__V1__Worker *workers[] = { &one, &two, &one };
    Cairn__V1__LostSeconds lost = CAIRN__V1__LOST_SECONDS__INIT;
    Cairn__V1__LostSeconds *all_lost[] = { &lost, &lost };
    one.node = "n1";
    two.node = "n2";
    lost.seconds = 30;
    Cairn__V1__Job *job = &jobs[0];
    job->step = 5;
    job->total_steps = 20;
    job->throughput = 1234.4;
    job->throughput_unit = "samples/s";
    job->step_ms = 12.345;
    job->goodput = 0.9876;
    job->recovery_count = 3;
    job->workers = workers;
    job->n_workers = 3;
    job->lost_seconds = all_lost;
    job->n_lost_seconds = 2;
    job->started_at = "2026-11-01T10:00:01Z";
    job->ended_at = "2026-11-01T10:01:31Z";
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    assert_int_equal(columns_choose(job_columns, "columns",
                                    "name,progress,speed,step-time,goodput,recoveries,nodes,lost,"
                                    "elapsed,started,checkpoint",
                                    chosen),
                     EXIT_DONE);
    auto_buf struct buf out;
    buf_init(&out, 65536);
    assert_int_equal(output_table(chosen, false, false, rows, 1, &out), ST_OK);
    assert_string_equal(out.data,
                        "net10  25.0 %  1234 samples/s  12.3 ms  98.8 %  3  n1,n2  1m00s  "
                        "1m30s  2026-11-01T10:00:01Z  -\n");
}

static void a_table_that_has_to_fit_leaves_out_what_matters_less(void **state)
{
    (void)state;
    struct client client = { .color = false };
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    static const char long_reason[] = "needs 4 slots, 2 of 6 are free, and so on and on and on";
    jobs[1].reason = (char *)long_reason;
    assert_int_equal(columns_choose(job_columns, "columns",
                                    "name,state,step,loss,speed,eta,recoveries,reason", chosen),
                     EXIT_DONE);
    static const struct {
        size_t width;
        const char *title;
    } cases[] = {
        { 200, "NAME   STATE      STEP  LOSS  SPEED  ETA  RECOVERIES  REASON\n" },
        { 66, "NAME   STATE      STEP  LOSS  SPEED  ETA  RECOVERIES  REASON\n" },
        { 65, "NAME   STATE      STEP  LOSS  SPEED  ETA  REASON\n" },
        { 53, "NAME   STATE      STEP  LOSS  ETA  REASON\n" },
        { 46, "NAME   STATE      STEP  ETA  REASON\n" },
        { 40, "NAME   STATE      STEP  REASON\n" },
        { 1, "NAME   STATE      REASON\n" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        auto_buf struct buf out;
        buf_init(&out, 65536);
        assert_int_equal(output_fitted(&client, chosen, cases[i].width, rows, JOBS, &out), ST_OK);
        assert_int_equal(strncmp(out.data, cases[i].title, strlen(cases[i].title)), 0);
        assert_non_null(strstr(out.data, long_reason)); /* who paints it cuts it */
    }
}

static void a_state_is_colored_without_moving_what_follows(void **state)
{
    (void)state;
    struct client plain = { .color = false }, color = { .color = true };
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    assert_int_equal(columns_choose(job_columns, "columns", "state,id", chosen), EXIT_DONE);
    auto_buf struct buf a, b;
    buf_init(&a, 65536);
    buf_init(&b, 65536);
    assert_int_equal(output_fitted(&plain, chosen, 80, rows, 1, &a), ST_OK);
    assert_string_equal(a.data, "STATE    ID\nRUNNING  f\n");
    assert_int_equal(output_fitted(&color, chosen, 80, rows, 1, &b), ST_OK);
    assert_string_equal(b.data, "STATE    ID\n\033[32mRUNNING\033[0m  f\n");
}

static void what_would_move_the_cursor_is_shown_as_a_question_mark(void **state)
{
    (void)state;
    char out[OUTPUT_CELL_BYTES];
    jobs[0].name = "a\033[2J\nb\tü\177";
    output_cell(&job_columns[1], rows[0], out);
    assert_string_equal(out, "a?[2J?b?ü?");
}

/* ---- the parts of a step ---- */

static void the_parts_of_a_step_fit_their_lines(void **state)
{
    (void)state;
    static const char *const names[] = { "data",          "forward",   "backward",
                                         "communication", "optimizer", "snapshot" };
    Cairn__V1__Phase phases[6];
    Cairn__V1__Phase *list[6];
    for (size_t i = 0; i < 6; i++) {
        cairn__v1__phase__init(&phases[i]);
        phases[i].name = (char *)names[i];
        phases[i].ms = 1.26 * (double)i;
        list[i] = &phases[i];
    }
    jobs[0].step_ms = 18.9;
    jobs[0].phases = list;
    jobs[0].n_phases = 6;
    auto_buf struct buf one;
    buf_init(&one, 4096);
    assert_int_equal(job_step_parts(&jobs[0], "a step       ", SIZE_MAX, &one), ST_OK);
    assert_string_equal(one.data, "a step       18.9 ms = data 0.0 + forward 1.3 + backward 2.5 + "
                                  "communication 3.8 + optimizer 5.0 + snapshot 6.3\n");
    for (size_t width = 40; width < 140; width++) {
        auto_buf struct buf out;
        buf_init(&out, 4096);
        assert_int_equal(job_step_parts(&jobs[0], "1234 samples/s  step ", width, &out), ST_OK);
        size_t parts = 0;
        char *rest = NULL;
        for (char *line = strtok_r(out.data, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            assert_in_range(format_cells(line), 1, width);
            for (size_t i = 0; i < 6; i++)
                parts += strstr(line, names[i]) != NULL;
        }
        assert_int_equal(parts, 6);
    }
    auto_buf struct buf none;
    buf_init(&none, 4096);
    assert_int_equal(job_step_parts(&jobs[1], "x", 80, &none), ST_OK);
    assert_int_equal(none.size, 0);
}

/* The median of short steps may be nothing by the coordinator's clock. */
static void a_step_is_never_shorter_than_its_parts(void **state)
{
    (void)state;
    static const struct {
        double step, parts[3];
        const char *line, *cell;
    } cases[] = {
        { 0,
          { 0.0012, 0.3004, 0.02 },
          "0.321 ms = data 0.001 + forward 0.300 + communication 0.020\n",
          "0.321 ms\n" },
        { 0.0456,
          { 0.0012, 0.0004, 0.02 },
          "0.046 ms = data 0.001 + forward 0.000 + communication 0.020\n",
          "0.046 ms\n" },
        { 1,
          { 0.26, 0.26, 0.26 },
          "1.0 ms = data 0.3 + forward 0.3 + communication 0.3\n",
          "1.0 ms\n" },
        { 0.5,
          { 0.3, 0.3, 0.46 },
          "1.1 ms = data 0.3 + forward 0.3 + communication 0.5\n",
          "1.1 ms\n" },
        { 12.34,
          { 4.06, 4.06, 4.26 },
          "12.5 ms = data 4.1 + forward 4.1 + communication 4.3\n",
          "12.5 ms\n" },
        { (double)NAN, { 1, 1, 1 }, "", "-\n" },
    };
    static const char *const names[] = { "data", "forward", "communication" };
    struct column chosen[OUTPUT_COLUMNS_MAX + 1];
    assert_int_equal(columns_choose(job_columns, "columns", "step-time", chosen), EXIT_DONE);
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        Cairn__V1__Phase phases[3];
        Cairn__V1__Phase *list[3];
        for (size_t i = 0; i < 3; i++) {
            cairn__v1__phase__init(&phases[i]);
            phases[i].name = (char *)names[i];
            phases[i].ms = cases[c].parts[i];
            list[i] = &phases[i];
        }
        jobs[0].step_ms = cases[c].step;
        jobs[0].phases = list;
        jobs[0].n_phases = 3;
        auto_buf struct buf line, cell;
        buf_init(&line, 4096);
        buf_init(&cell, 4096);
        assert_int_equal(buf_append_text(&line, ""), ST_OK);
        assert_int_equal(job_step_parts(&jobs[0], "", SIZE_MAX, &line), ST_OK);
        assert_string_equal(line.data, cases[c].line);
        assert_int_equal(output_table(chosen, false, false, rows, 1, &cell), ST_OK);
        assert_string_equal(cell.data, cases[c].cell);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(numbers_are_ordered_by_value_and_what_is_not_known_comes_last,
                               set_up),
        cmocka_unit_test_setup(texts_are_ordered_with_their_numbers_by_value, set_up),
        cmocka_unit_test_setup(states_are_in_the_order_of_a_life_and_keys_follow_each_other,
                               set_up),
        cmocka_unit_test_setup(unknown_and_too_many_names_are_refused, set_up),
        cmocka_unit_test_setup(every_column_can_be_chosen_and_ordered_by, set_up),
        cmocka_unit_test_setup(columns_show_what_they_say, set_up),
        cmocka_unit_test_setup(a_table_that_has_to_fit_leaves_out_what_matters_less, set_up),
        cmocka_unit_test_setup(a_state_is_colored_without_moving_what_follows, set_up),
        cmocka_unit_test_setup(what_would_move_the_cursor_is_shown_as_a_question_mark, set_up),
        cmocka_unit_test_setup(the_parts_of_a_step_fit_their_lines, set_up),
        cmocka_unit_test_setup(a_step_is_never_shorter_than_its_parts, set_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
