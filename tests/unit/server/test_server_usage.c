/* What agents and workers say of what is used and could be done, and what is told of it. */
#include <math.h>

#include "server/render/render.h"
#include "tests/test.h"
#include "tests/unit/server/coord/coord_fixture.h"

struct scene {
    struct far_end agent, trainers[2];
    struct coord_job *job;
};

/* A job of two workers. Streams stay where they are. */
static void begin(struct coord_world *w, struct scene *s)
{
    far_join(w, &s->agent, "n", "boot-1");
    s->job = coord_submit_one(w, "a");
}

/* Attaches two trainers, and has the job run. */
static void attach(struct coord_world *w, struct scene *s)
{
    for (uint32_t r = 0; r < 2; r++) {
        far_open(&s->trainers[r], s->job->m.token);
        far_attach(w, &s->trainers[r], s->job, r);
    }
    s->job->m.state = FSM_RUNNING;
    s->job->m.gen = FSM_GEN_TRAINING;
}

static void end(struct coord_world *w, struct scene *s)
{
    s->job->m.state = FSM_FORMING;
    s->job->m.gen = FSM_GEN_FORMING;
    for (uint32_t r = 0; r < 2; r++)
        far_close_trainer(w, &s->trainers[r]);
    far_close_agent(w, &s->agent);
}

static void say_progress(struct coord_world *w, struct far_end *trainer, double step_flops,
                         double peak_flops, const Cairn__V1__Traffic *traffic)
{
    Cairn__V1__Progress progress = CAIRN__V1__PROGRESS__INIT;
    Cairn__V1__Traffic copy = CAIRN__V1__TRAFFIC__INIT;
    Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
    progress.phase = (char *)"forward";
    progress.step_flops = step_flops;
    progress.peak_flops = peak_flops;
    if (traffic != NULL) {
        copy = *traffic;
        progress.traffic = &copy;
    }
    message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_PROGRESS;
    message.progress = &progress;
    coord_trainer_message(w->coord, &trainer->conn, &message);
    coord_end_group(w);
}

/* 100 ms each. */
static void say_steps(struct coord_world *w, struct scene *s, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step <= to; step++) {
        Cairn__V1__MetricRow row = CAIRN__V1__METRIC_ROW__INIT, *list[] = { &row };
        Cairn__V1__MetricRows rows = CAIRN__V1__METRIC_ROWS__INIT;
        Cairn__V1__TrainerMessage message = CAIRN__V1__TRAINER_MESSAGE__INIT;
        row.step = step;
        row.step_ms = 100;
        row.wall_ms = 1000000 + 100 * (int64_t)step;
        rows.n_rows = 1;
        rows.rows = list;
        message.body_case = CAIRN__V1__TRAINER_MESSAGE__BODY_METRICS;
        message.metrics = &rows;
        coord_trainer_message(w->coord, &s->trainers[0].conn, &message);
        coord_end_group(w);
    }
}

static void say_beat(struct coord_world *w, struct far_end *agent, Cairn__V1__AgentBeat *beat)
{
    Cairn__V1__AgentMessage message = CAIRN__V1__AGENT_MESSAGE__INIT;
    message.body_case = CAIRN__V1__AGENT_MESSAGE__BODY_BEAT;
    message.beat = beat;
    coord_agent_message(w->coord, &agent->conn, &message);
    coord_end_group(w);
}

static Cairn__V1__Job *shown(struct coord_world *w, const struct scene *s)
{
    Cairn__V1__Job *job = render_job(w->coord, s->job, 10);
    assert_non_null(job);
    assert_int_equal(job->n_workers, 2);
    return job;
}

static void free_job(Cairn__V1__Job *job)
{
    cairn__v1__job__free_unpacked(job, NULL);
}

static void mfu_needs_the_peak_of_each_worker(void **state)
{
    struct coord_world *w = *state;
    struct scene s;
    begin(w, &s);
    attach(w, &s);
    say_steps(w, &s, 1, 20);
    say_progress(w, &s.trainers[0], 4e9, 60e9, NULL);
    Cairn__V1__Job *job = shown(w, &s);
    assert_int_equal(job->mfu__case, CAIRN__V1__JOB__MFU___NOT_SET);
    assert_true(job->flops_per_step == 4e9);
    assert_true(job->workers[0]->peak_flops == 60e9);
    assert_int_equal(job->workers[1]->peak_flops__case, CAIRN__V1__WORKER__PEAK_FLOPS___NOT_SET);
    free_job(job);
    say_progress(w, &s.trainers[1], 4e9, 40e9, NULL);
    job = shown(w, &s);
    assert_int_equal(job->mfu__case, CAIRN__V1__JOB__MFU__MFU);
    assert_true(fabs(job->mfu - 0.4) < 1e-9); /* 4e9 in 0.1 s, of 100e9 a second */
    free_job(job);
    s.job->m.state = FSM_RECOVERING;
    s.job->m.gen = FSM_GEN_KEPT;
    assert_true(isnan(coord_mfu(s.job)));
    s.job->m.state = FSM_RUNNING;
    s.job->m.gen = FSM_GEN_TRAINING;
    assert_true(isfinite(coord_mfu(s.job)));
    s.job->m.generation++; /* others may be there now */
    assert_true(isnan(coord_mfu(s.job)));
    s.job->m.generation--;
    end(w, &s);
}

static void what_is_no_number_of_operations_is_not_known(void **state)
{
    static const double odd[] = { 0, -1e9, 1e300, (double)NAN, (double)INFINITY };
    struct coord_world *w = *state;
    struct scene s;
    begin(w, &s);
    attach(w, &s);
    say_steps(w, &s, 1, 20);
    for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
        say_progress(w, &s.trainers[0], odd[i], 60e9, NULL);
        say_progress(w, &s.trainers[1], odd[i], odd[i], NULL);
        Cairn__V1__Job *job = shown(w, &s);
        assert_int_equal(job->mfu__case, CAIRN__V1__JOB__MFU___NOT_SET);
        assert_int_equal(job->flops_per_step__case, CAIRN__V1__JOB__FLOPS_PER_STEP___NOT_SET);
        assert_int_equal(job->workers[1]->peak_flops__case,
                         CAIRN__V1__WORKER__PEAK_FLOPS___NOT_SET);
        free_job(job);
    }
    end(w, &s);
}

static void use_is_that_of_the_process_that_is_there(void **state)
{
    struct coord_world *w = *state;
    struct scene s;
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    Cairn__V1__NodeUsage machine = CAIRN__V1__NODE_USAGE__INIT;
    Cairn__V1__TrainerUsage rows[3], *list[3];
    Cairn__V1__TrainerRef refs[3];
    Cairn__V1__WorkerUsage usage = CAIRN__V1__WORKER_USAGE__INIT;
    const Cairn__V1__Traffic traffic = { .base = usage.base, .sent_bytes = 5, .received_bytes = 0 };
    begin(w, &s);
    attach(w, &s);
    usage.cpu_seconds = 12.5;
    usage.memory_bytes = 1 << 20;
    for (uint32_t i = 0; i < 3; i++) { /* rank 0; nobody's; without a name */
        cairn__v1__trainer_usage__init(&rows[i]);
        cairn__v1__trainer_ref__init(&refs[i]);
        refs[i].job = s.job->id;
        refs[i].generation = s.job->m.generation + i;
        rows[i].ref = i < 2 ? &refs[i] : NULL;
        rows[i].usage = &usage;
        list[i] = &rows[i];
    }
    beat.trainers = list;
    beat.n_trainers = 3;
    say_beat(w, &s.agent, &beat); /* an agent of before tells no machine: nothing is taken */
    Cairn__V1__Job *job = shown(w, &s);
    assert_null(job->workers[0]->usage);
    free_job(job);
    beat.usage = &machine;
    say_beat(w, &s.agent, &beat);
    say_progress(w, &s.trainers[0], 0, 0, &traffic);
    job = shown(w, &s);
    assert_non_null(job->workers[0]->usage);
    assert_true(job->workers[0]->usage->cpu_seconds == 12.5);
    assert_int_equal(job->workers[0]->sent__case, CAIRN__V1__WORKER__SENT__SENT_BYTES);
    assert_int_equal(job->workers[0]->received__case, CAIRN__V1__WORKER__RECEIVED__RECEIVED_BYTES);
    assert_null(job->workers[1]->usage);
    assert_int_equal(job->workers[1]->sent__case, CAIRN__V1__WORKER__SENT___NOT_SET);
    free_job(job);
    s.job->m.ranks[0].number += 7; /* another process has its place */
    assert_null(coord_usage(s.job, 0));
    s.job->m.ranks[0].number -= 7;
    assert_non_null(coord_usage(s.job, 0));
    s.job->m.ranks[0].gone = true;
    assert_null(coord_usage(s.job, 0));
    s.job->m.ranks[0].gone = false;
    end(w, &s);
    assert_null(coord_usage(s.job, 0)); /* the node isn't heard */
}

static void a_machine_is_told_while_it_is_heard(void **state)
{
    struct coord_world *w = *state;
    struct far_end agent;
    Cairn__V1__AgentBeat beat = CAIRN__V1__AGENT_BEAT__INIT;
    Cairn__V1__NodeUsage usage = CAIRN__V1__NODE_USAGE__INIT;
    far_join(w, &agent, "n", "boot-1");
    struct coord_node *node = coord_node_at(w->coord, "n");
    assert_null(coord_node_usage(node)); /* not said yet: not 0 */
    say_beat(w, &agent, &beat);
    assert_null(coord_node_usage(node));
    usage.cores = 1.5;
    beat.usage = &usage;
    say_beat(w, &agent, &beat);
    Cairn__V1__Node *shown_node = render_node(w->coord, node);
    assert_non_null(shown_node);
    assert_non_null(shown_node->usage);
    assert_true(shown_node->usage->cores == 1.5);
    cairn__v1__node__free_unpacked(shown_node, NULL);
    beat.usage = NULL; /* not sampled since */
    say_beat(w, &agent, &beat);
    assert_non_null(coord_node_usage(node));
    far_close_agent(w, &agent);
    assert_null(coord_node_usage(node));
    far_join(w, &agent, "n", "boot-1"); /* an agent that may tell nothing */
    assert_null(coord_node_usage(node));
    far_close_agent(w, &agent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(mfu_needs_the_peak_of_each_worker, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(what_is_no_number_of_operations_is_not_known, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(use_is_that_of_the_process_that_is_there, coord_setup,
                                        coord_teardown),
        cmocka_unit_test_setup_teardown(a_machine_is_told_while_it_is_heard, coord_setup,
                                        coord_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
