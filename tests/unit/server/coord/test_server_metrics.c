/* Rows of metrics: what is told of a job's speed. */
#include <math.h>

#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

struct far_row {
    uint64_t step;
    int64_t wall_ms;
    double step_ms; /* as the trainer measured this one alone */
};

static void say_row(struct coord_world *w, struct far_end *trainer, struct far_row said)
{
    Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT, *list[] = { &row };
    Cairn__V1__MetricRows rows = CAIRN__V1__METRIC_ROWS__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    rows.n_rows = 1;
    rows.rows = list;
    row.step = said.step;
    row.wall_ms = said.wall_ms;
    row.step_ms = said.step_ms;
    row.samples_per_s = 1e12;
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
    message.metrics = &rows;
    coord_trainer_message(w->coord, &trainer->conn, &message);
    coord_end_group(w);
}

static void speed_is_that_of_many_steps_with_all_that_is_between_them(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent, trainer;
    far_join(w, &agent, "n", "boot-1");
    struct coord_job *job = coord_submit_one(w, "a");
    double batch = (double)job->spec->train.global_batch;
    far_open(&trainer, job->m.token);
    far_attach(w, &trainer, job, 0);
    assert_true(isnan(coord_throughput(job)) && isnan(coord_eta_s(job, 0)));
    int64_t wall = 1000000;
    for (uint64_t step = 1; step <= 200; step++) {
        wall += step % 10 == 0 ? 55 : 5; /* a save at each tenth */
        say_row(w, &trainer, (struct far_row){ step, wall, 5 });
    }
    assert_true(fabs(throughput_step_ms(&job->throughput) - 5) < 1e-6);
    const double whole = throughput_average_ms(&job->throughput); /* not 5 */
    assert_true(whole > 9 && whole < 11);
    assert_true(fabs(coord_throughput(job) - batch / (whole / 1e3)) < 1e-6);
    say_row(w, &trainer, (struct far_row){ 201, wall + 1, 1e-6 }); /* skipped: no work */
    assert_true(coord_throughput(job) < 1.1 * batch / (whole / 1e3));
    assert_true(isnan(coord_eta_s(job, 201))); /* it doesn't run */
    job->m.state = FSM_RUNNING;
    job->m.total_steps = 400;
    assert_true(fabs(coord_eta_s(job, 200) - 200 * throughput_average_ms(&job->throughput) / 1e3) <
                1e-6);
    say_row(w, &trainer, (struct far_row){ 150, wall + 9, 5 }); /* it went back: said again */
    assert_true(coord_throughput(job) > 0.9 * batch / (whole / 1e3));
    job->m.state = FSM_FORMING;
    far_close_trainer(w, &trainer);
    far_close_agent(w, &agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(speed_is_that_of_many_steps_with_all_that_is_between_them,
                                        coord_setup, coord_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
