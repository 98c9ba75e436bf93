/* What Prometheus is told of jobs and nodes: each number, its labels, and what is left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "observer/prometheus/put.h"
#include "observer/prometheus/text.h"
#include "tests/test.h"
#include "tests/unit/observer/prometheus/prometheus_fixture.h"

#define JOB "{job=\"j\",name=\"n\""

static void write_view(const struct prometheus_view *view, struct buf *out)
{
    buf_init(out, PROMETHEUS_BYTES_MAX);
    assert_int_equal(prometheus_write(view, out), ST_OK);
    (void)fixture_check(out);
}

static void write_job(const Cairn__V1__Job *job, struct buf *out)
{
    const struct prometheus_view view = {
        .jobs = &job, .job_count = 1, .up = true, .now_unix_s = FIXTURE_NOW
    };
    write_view(&view, out);
}

static void assert_value(const struct buf *text, const char *series, double value)
{
    const double found = fixture_value(text, series);
    if (!(fabs(found - value) < 1e-9))
        fail_msg("%s is %.17g, not %.17g", series, found, value);
}

static void every_family_has_a_line(void **state)
{
    (void)state;
    auto_buf struct buf out;
    write_view(fixture_full_view(), &out);
    for (enum prometheus_of of = PROMETHEUS_OF_OBSERVER; of < PROMETHEUS_OF_COUNT; of++) {
        const struct prometheus_table table = prometheus_families(of);
        for (size_t i = 0; i < table.count; i++) {
            char type[160];
            (void)snprintf(type, sizeof(type), "# TYPE %s %s\n", table.list[i].name,
                           table.list[i].type);
            if (fixture_count(&out, type) != 1)
                fail_msg("%s has no line", table.list[i].name);
        }
    }
}

static void a_job_is_told_in_base_units(void **state)
{
    (void)state;
    Cairn__V1__Job job;
    auto_buf struct buf out;
    fixture_fill_job(&job, "j", "n");
    write_job(&job, &out);
    assert_value(&out, "cairn_job_info" JOB ",model=\"resnet\"}", 1);
    assert_value(&out, "cairn_job_state" JOB ",state=\"running\"}", 1);
    assert_value(&out, "cairn_job_state" JOB ",state=\"failed\"}", 0);
    assert_int_equal(fixture_count(&out, "cairn_job_state{"), 11);
    assert_value(&out, "cairn_job_health" JOB ",health=\"ok\"}", 1);
    assert_value(&out, "cairn_job_started_timestamp_seconds" JOB "}", 1789995605.25);
    assert_value(&out, "cairn_job_step" JOB "}", 1234);
    assert_value(&out, "cairn_job_total_steps" JOB "}", 5000);
    assert_value(&out, "cairn_job_progress_ratio" JOB "}", 0.2468);
    assert_value(&out, "cairn_job_epochs" JOB "}", 2.468);
    assert_value(&out, "cairn_job_eta_seconds" JOB "}", 376.5);
    assert_value(&out, "cairn_job_loss" JOB ",split=\"train\"}", 0.125);
    assert_value(&out, "cairn_job_loss" JOB ",split=\"eval\"}", 0.25);
    assert_value(&out, "cairn_job_eval_accuracy_ratio" JOB "}", 0.875);
    assert_value(&out, "cairn_job_samples_per_second" JOB "}", 320.5);
    assert_value(&out, "cairn_job_step_seconds" JOB "}", 0.0995);
    assert_value(&out, "cairn_job_step_phase_seconds" JOB ",phase=\"forward\"}", 0.025);
    assert_value(&out, "cairn_job_goodput_ratio" JOB "}", 0.96875);
    assert_value(&out, "cairn_job_lost_seconds" JOB ",cause=\"replay\"}", 12);
    assert_value(&out, "cairn_job_generations_total" JOB "}", 3);
    assert_value(&out, "cairn_job_recoveries_total" JOB "}", 2);
    assert_value(&out, "cairn_job_failures_total" JOB "}", 2);
    assert_int_equal(fixture_count(&out, "cairn_job_tokens_per_second"), 0);
}

static void its_checkpoints_and_workers_are_told(void **state)
{
    (void)state;
    Cairn__V1__Job job;
    auto_buf struct buf out;
    fixture_fill_job(&job, "j", "n");
    job.workers[1]->step = 1230;
    write_job(&job, &out);
    assert_value(&out, "cairn_job_checkpoint_step" JOB "}", 1000); /* the newer one is bad */
    assert_value(&out, "cairn_job_checkpoint_timestamp_seconds" JOB "}", FIXTURE_NOW - 599.5);
    assert_value(&out, "cairn_job_checkpoint_save_seconds" JOB ",part=\"stall\"}", 0.0015);
    assert_value(&out, "cairn_job_checkpoints_refused_total" JOB "}", 1);
    assert_value(&out, "cairn_job_workers" JOB ",state=\"running\"}", 2);
    assert_value(&out, "cairn_job_workers" JOB ",state=\"gone\"}", 0);
    assert_value(&out, "cairn_job_spares" JOB ",state=\"warm\"}", 1);
    assert_value(&out, "cairn_job_worker_info" JOB ",rank=\"1\",node=\"n\\\"2\"}", 1);
    assert_value(&out, "cairn_job_worker_lag_steps" JOB ",rank=\"0\"}", 0);
    assert_value(&out, "cairn_job_worker_lag_steps" JOB ",rank=\"1\"}", 4);
    assert_value(&out, "cairn_job_worker_step_seconds" JOB ",rank=\"1\"}", 0.2);
    assert_value(&out, "cairn_job_memory_copy_steps" JOB "}", 10);
}

/* Nothing is known of rank 1, and that isn't 0. */
static void what_its_workers_use_is_told_where_it_is_known(void **state)
{
    static const struct {
        const char *name;
        double value;
    } told[] = { { "peak_flops_per_second", 107e9 },
                 { "cpu_seconds_total", 12.5 },
                 { "resident_memory_bytes", 123456 },
                 { "memory_limit_bytes", 1 << 20 },
                 { "threads", 9 },
                 { "sent_bytes_total", 1000 },
                 { "received_bytes_total", 0 } };
    (void)state;
    Cairn__V1__Job job;
    auto_buf struct buf out;
    fixture_fill_job(&job, "j", "n");
    write_job(&job, &out);
    for (size_t i = 0; i < sizeof(told) / sizeof(told[0]); i++) {
        char series[160];
        (void)snprintf(series, sizeof(series), "cairn_job_worker_%s" JOB ",rank=\"0\"}",
                       told[i].name);
        assert_value(&out, series, told[i].value);
        (void)snprintf(series, sizeof(series), "cairn_job_worker_%s{", told[i].name);
        assert_int_equal(fixture_count(&out, series), 1);
    }
    assert_value(&out, "cairn_job_mfu_ratio" JOB "}", 0.375);
    assert_value(&out, "cairn_job_step_flops" JOB "}", 3.5e9);
}

static void an_older_coordinator_leaves_no_zeros(void **state)
{
    (void)state;
    Cairn__V1__Job job;
    auto_buf struct buf out;
    fixture_fill_job(&job, "j", "n");
    job.mfu__case = CAIRN__V1__JOB__MFU___NOT_SET;
    job.flops_per_step__case = CAIRN__V1__JOB__FLOPS_PER_STEP___NOT_SET;
    write_job(&job, &out);
    assert_int_equal(fixture_count(&out, "cairn_job_mfu_ratio"), 0);
    assert_int_equal(fixture_count(&out, "cairn_job_step_flops"), 0);
}

static void a_worker_that_does_not_run_is_behind_nobody(void **state)
{
    (void)state;
    Cairn__V1__Job job;
    auto_buf struct buf out;
    fixture_fill_job(&job, "j", "n");
    job.workers[1]->state = "starting";
    job.workers[1]->step = 99999;
    write_job(&job, &out);
    assert_value(&out, "cairn_job_worker_up" JOB ",rank=\"1\"}", 0);
    assert_int_equal(fixture_count(&out, "cairn_job_worker_step{"), 1);
    assert_value(&out, "cairn_job_worker_lag_steps" JOB ",rank=\"0\"}", 0);
}

static void workers_have_series_only_while_there_are_some(void **state)
{
    (void)state;
    Cairn__V1__Job job;
    fixture_fill_job(&job, "j", "n");
    for (int i = CAIRN__V1__JOB_STATE__QUEUED; i <= CAIRN__V1__JOB_STATE__KILLED; i++) {
        auto_buf struct buf out;
        job.state = (Cairn__V1__JobState)i;
        job.ended_at = "2026-09-21T14:13:00Z";
        write_job(&job, &out);
        const bool has = i == CAIRN__V1__JOB_STATE__FORMING || i == CAIRN__V1__JOB_STATE__RUNNING ||
                         i == CAIRN__V1__JOB_STATE__SAVING || i == CAIRN__V1__JOB_STATE__RECOVERING;
        assert_int_equal(fixture_count(&out, "cairn_job_worker_up"), has ? 2 : 0);
        assert_int_equal(fixture_count(&out, "cairn_job_step{"), 1);
    }
}

static void a_node_and_its_gpus_are_told(void **state)
{
    (void)state;
    auto_buf struct buf out;
    write_view(fixture_full_view(), &out);
    assert_value(&out, "cairn_node_slots{node=\"n1\"}", 8);
    assert_value(&out, "cairn_node_slots_used{node=\"n1\"}", 3);
    assert_value(&out, "cairn_node_state{node=\"n1\",state=\"ready\"}", 1);
    assert_value(&out, "cairn_node_state{node=\"n1\",state=\"lost\"}", 0);
    assert_value(&out, "cairn_node_gpu_memory_bytes{node=\"n1\",gpu=\"0\"}", 150754820096.0);
    assert_value(&out, "cairn_node_gpu_temperature_celsius{node=\"n1\",gpu=\"1\"}", 61);
    assert_value(&out, "cairn_node_gpu_healthy{node=\"n1\",gpu=\"0\"}", 1);
    assert_value(&out, "cairn_node_gpu_healthy{node=\"n1\",gpu=\"1\"}", 0);
    assert_value(&out, "cairn_node_gpu_utilization_ratio{node=\"n1\",gpu=\"0\"}", 0.97);
    assert_value(&out, "cairn_node_gpu_power_watts{node=\"n1\",gpu=\"0\"}", 310.5);
    assert_int_equal(fixture_count(&out, "cairn_node_gpu_utilization_ratio{"), 1); /* not 0 */
    assert_int_equal(fixture_count(&out, "cairn_node_gpu_power_watts{"), 1);
    assert_value(&out, "cairn_node_cpu_seconds_total{node=\"n1\"}", 98765.25);
    assert_value(&out, "cairn_node_cpus{node=\"n1\"}", 2);
    assert_value(&out, "cairn_node_memory_bytes{node=\"n1\"}", 16777216000.0);
    assert_value(&out, "cairn_node_memory_available_bytes{node=\"n1\"}", 8388608000.0);
    assert_value(&out, "cairn_node_network_received_bytes_total{node=\"n1\"}", 77);
    assert_value(&out, "cairn_node_network_sent_bytes_total{node=\"n1\"}", 88);
    assert_value(&out, "cairn_node_gpu_throttled{node=\"n1\",gpu=\"1\"}", 1);
    assert_value(&out, "cairn_node_gpu_ecc_errors_total{node=\"n1\",gpu=\"1\"}", 7);
    assert_value(&out, "cairn_coordinator_agents", 1);
    assert_value(&out, "cairn_observer_streams", 1);
    assert_value(&out, "cairn_jobs{state=\"running\"}", 2);
    assert_value(&out, "cairn_jobs{state=\"failed\"}", 1);
    assert_value(&out, "cairn_jobs{state=\"queued\"}", 0);
}

static void what_is_not_known_has_no_line(void **state)
{
    (void)state;
    Cairn__V1__Job job = CAIRN__V1__JOB__INIT;
    auto_buf struct buf out;
    job.id = "j";
    job.name = "n";
    job.state = CAIRN__V1__JOB_STATE__QUEUED;
    job.loss = job.eval_loss = job.accuracy = job.throughput = (double)NAN;
    job.eta_seconds = job.step_ms = job.goodput = (double)NAN;
    write_job(&job, &out);
    static const char *const unknown[] = { "loss",     "eval_accuracy", "eta",     "step_seconds",
                                           "progress", "total_steps",   "goodput", "checkpoint_",
                                           "ended",    "epochs",        "memory_", "workers_min",
                                           "started",  "samples" };
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        char start[64];
        (void)snprintf(start, sizeof(start), "cairn_job_%s", unknown[i]);
        if (fixture_count(&out, start) != 0)
            fail_msg("%s is not known", start);
    }
    assert_value(&out, "cairn_job_step" JOB "}", 0);
    assert_int_equal(fixture_count(&out, "# HELP cairn_job_loss"), 0);
    job.loss = (double)INFINITY;
    auto_buf struct buf diverged;
    write_job(&job, &diverged);
    assert_true(isinf(fixture_value(&diverged, "cairn_job_loss" JOB ",split=\"train\"}")));
}

static void labels_are_escaped(void **state)
{
    (void)state;
    static const struct {
        const char *text, *written;
    } cases[] = {
        { "plain", "plain" },
        { "a\"b\\c\nd", "a\\\"b\\\\c\\nd" },
        { "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80" },
        { "\xff", "\xef\xbf\xbd" },
        { "\xc3", "\xef\xbf\xbd" },                                 /* cut off */
        { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },                 /* overlong */
        { "\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* overlong */
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" }, /* half of a pair */
        { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc3\"", "\xef\xbf\xbd\\\"" },
        { "", "" },
        { NULL, "" },
    };
    char out[PROMETHEUS_VALUE_BYTES];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        prometheus_label_value(cases[i].text, out);
        assert_string_equal(out, cases[i].written);
    }
}

static void long_labels_are_cut_between_characters(void **state)
{
    (void)state;
    static const char *const parts[] = { "\\", "\n", "\xe2\x82\xac", "\xff", "ab\"" };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char text[2000] = "x", out[PROMETHEUS_VALUE_BYTES];
        for (size_t used = 1; used + strlen(parts[i]) < sizeof(text); used += strlen(parts[i]))
            memcpy(text + used, parts[i], strlen(parts[i]));
        prometheus_label_value(text, out);
        assert_in_range(strlen(out), PROMETHEUS_LABEL_BYTES - 3, PROMETHEUS_LABEL_BYTES);
        Cairn__V1__Job job;
        fixture_fill_job(&job, text, text);
        auto_buf struct buf all;
        write_job(&job, &all); /* looks at escapes and UTF-8 */
        assert_int_equal(fixture_count(&all, "cairn_job_step{job=\"x"), 1);
    }
}

static void numbers_read_back_as_they_were(void **state)
{
    (void)state;
    static const double values[] = {
        0, 0.1, 1.0 / 3, 1e-300, 9007199254740991.0, 1789995605.25, -2.5, 6.02e23
    };
    Cairn__V1__Job job;
    fixture_fill_job(&job, "j", "n");
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        auto_buf struct buf out;
        job.loss = values[i];
        write_job(&job, &out);
        assert_true(fixture_value(&out, "cairn_job_loss" JOB ",split=\"train\"}") == values[i]);
    }
}

static void times_are_read(void **state)
{
    (void)state;
    assert_true(prometheus_time("1970-01-01T00:00:00Z") == 0);
    assert_true(prometheus_time("2026-09-21T14:13:20.125Z") == FIXTURE_NOW + 0.125);
    assert_true(prometheus_time("2026-09-21T14:13:20+00:00") == FIXTURE_NOW);
    static const char *const wrong[] = { "",
                                         "soon",
                                         "2026-09-21",
                                         "2026-09-21T14:13:20",
                                         "2026-09-21T14:13:20+02:00",
                                         "2026-13-21T14:13:20Z" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_true(isnan(prometheus_time(wrong[i])));
    assert_true(isnan(prometheus_time(NULL)));
}

static void a_coordinator_that_is_down_leaves_its_jobs_out(void **state)
{
    (void)state;
    struct prometheus_view view = *fixture_full_view();
    auto_buf struct buf out;
    view.up = false;
    write_view(&view, &out);
    assert_value(&out, "cairn_coordinator_up", 0);
    assert_value(&out, "cairn_coordinator_seen_timestamp_seconds", FIXTURE_NOW - 0.25);
    assert_int_equal(fixture_count(&out, "cairn_job"), 0);
    assert_int_equal(fixture_count(&out, "cairn_node"), 0);
}

static void an_empty_view_is_told(void **state)
{
    (void)state;
    const struct prometheus_view view = { .up = true };
    auto_buf struct buf out;
    write_view(&view, &out);
    assert_value(&out, "cairn_coordinator_up", 1);
    assert_value(&out, "cairn_jobs{state=\"running\"}", 0);
}

/* ---- what is left out ---- */

/* 200 that ended in the last 200 minutes, a minute apart, the newest last. */
static void only_the_newest_that_ended_have_series(void **state)
{
    (void)state;
    static Cairn__V1__Job jobs[300];
    static const Cairn__V1__Job *list[300];
    static char ids[300][16], ended[300][32];
    for (int i = 0; i < 300; i++) {
        (void)snprintf(ids[i], sizeof(ids[i]), "j%d", i);
        const int minute = i < 200 ? i : 199; /* the last hundred at one time */
        (void)snprintf(ended[i], sizeof(ended[i]), "2026-09-21T%02d:%02d:20Z", (654 + minute) / 60,
                       (654 + minute) % 60);
        fixture_fill_job(&jobs[i], ids[i], "n");
        jobs[i].state = CAIRN__V1__JOB_STATE__SUCCEEDED;
        jobs[i].ended_at = ended[i];
        list[i] = &jobs[i];
    }
    struct prometheus_view view = { .jobs = list, .job_count = 200, .up = true };
    view.now_unix_s = FIXTURE_NOW; /* 14:13:20 is minute 853 of the day */
    auto_buf struct buf hour;
    write_view(&view, &hour);
    assert_int_equal(fixture_count(&hour, "cairn_job_step{"), 61);
    assert_int_equal(fixture_count(&hour, "cairn_job_step{job=\"j139\""), 1);
    assert_int_equal(fixture_count(&hour, "cairn_job_step{job=\"j138\""), 0);
    assert_value(&hour, "cairn_observer_left_out{of=\"jobs\",why=\"ended\"}", 139);
    assert_value(&hour, "cairn_jobs{state=\"succeeded\"}", 200);
    view.job_count = 300;
    auto_buf struct buf many;
    write_view(&view, &many);
    assert_int_equal(fixture_count(&many, "cairn_job_step{"), PROMETHEUS_ENDED_MAX);
    assert_int_equal(fixture_count(&many, "cairn_job_step{job=\"j198\""), 0);
    assert_int_equal(fixture_count(&many, "cairn_job_step{job=\"j298\""), 1);
    assert_value(&many, "cairn_observer_left_out{of=\"jobs\",why=\"ended\"}", 200);
}

static void of_one_id_only_the_first_has_series(void **state)
{
    (void)state;
    Cairn__V1__Job jobs[4];
    const Cairn__V1__Job *list[5] = { &jobs[0], &jobs[1], NULL, &jobs[2], &jobs[3] };
    fixture_fill_job(&jobs[0], "same", "first");
    fixture_fill_job(&jobs[1], "same", "second");
    fixture_fill_job(&jobs[2], "\xff", "third");
    fixture_fill_job(&jobs[3], "\xfe", "fourth"); /* as written it is the same */
    const struct prometheus_view view = { .jobs = list, .job_count = 5, .up = true };
    auto_buf struct buf out;
    write_view(&view, &out);
    assert_int_equal(fixture_count(&out, "cairn_job_step{"), 2);
    assert_value(&out, "cairn_job_step{job=\"same\",name=\"first\"}", 1234);
    assert_value(&out, "cairn_observer_left_out{of=\"jobs\",why=\"twice\"}", 2);
}

#define MANY 1000
#define FEW  100

struct crowd {
    Cairn__V1__Job jobs[MANY];
    const Cairn__V1__Job *list[MANY];
    char ids[MANY][16], names[MANY][64];
    Cairn__V1__Worker *workers[64];
    Cairn__V1__Node nodes[MANY];
    Cairn__V1__Node *node_list[MANY];
    Cairn__V1__ListNodesReply reply;
};

/* A thousand jobs of 64 workers each, a thousand nodes. */
static struct crowd *crowd_make(struct prometheus_view *view)
{
    static Cairn__V1__Worker workers[64];
    struct crowd *crowd = calloc(1, sizeof(*crowd));
    assert_non_null(crowd);
    for (uint32_t i = 0; i < 64; i++) {
        cairn__v1__worker__init(&workers[i]);
        workers[i].rank = i;
        workers[i].node = "some node";
        workers[i].state = "running";
        crowd->workers[i] = &workers[i];
    }
    for (size_t i = 0; i < MANY; i++) {
        (void)snprintf(crowd->ids[i], sizeof(crowd->ids[i]), "j%03zu", i);
        (void)snprintf(crowd->names[i], sizeof(crowd->names[i]), "some \"job\" of ours, number %zu",
                       i);
        fixture_fill_job(&crowd->jobs[i], crowd->ids[i], crowd->names[i]);
        crowd->jobs[i].workers = crowd->workers;
        crowd->jobs[i].n_workers = 64;
        crowd->list[i] = &crowd->jobs[i];
        fixture_fill_node(&crowd->nodes[i], crowd->names[i]);
        crowd->node_list[i] = &crowd->nodes[i];
    }
    cairn__v1__list_nodes_reply__init(&crowd->reply);
    crowd->reply.nodes = crowd->node_list;
    crowd->reply.n_nodes = MANY;
    *view = (struct prometheus_view){ .jobs = crowd->list,
                                      .job_count = MANY,
                                      .jobs_left_out = 17,
                                      .nodes = &crowd->reply,
                                      .up = true };
    return crowd;
}

static void a_thousand_jobs_stay_within_the_bound(void **state)
{
    (void)state;
    struct prometheus_view view;
    auto_free struct crowd *crowd = crowd_make(&view);
    auto_buf struct buf out;
    write_view(&view, &out);
    assert_in_range(out.size, PROMETHEUS_BYTES_MAX * 3 / 4, PROMETHEUS_BYTES_MAX);
    assert_int_equal(fixture_count(&out, "cairn_job_step{"), MANY);
    assert_int_equal(fixture_count(&out, "cairn_node_slots{"), MANY);
    const size_t workers = fixture_count(&out, "cairn_job_worker_up{");
    assert_true(workers > 0);
    assert_value(&out, "cairn_observer_left_out{of=\"workers\",why=\"size\"}",
                 (double)((size_t)64 * MANY - workers));
    assert_value(&out, "cairn_observer_left_out{of=\"jobs\",why=\"size\"}", 0);
    assert_value(&out, "cairn_observer_left_out{of=\"jobs\",why=\"unseen\"}", 17);
}

/* Whatever the room, the text fits, and what there is and what is left out is all there was. */
static void any_room_is_kept_to(void **state)
{
    (void)state;
    struct prometheus_view view;
    auto_free struct crowd *crowd = crowd_make(&view);
    view.job_count = crowd->reply.n_nodes = FEW;
    crowd->jobs[FEW - 1].state = CAIRN__V1__JOB_STATE__KILLED;
    crowd->jobs[FEW - 1].ended_at = "2026-09-21T14:13:20Z";
    for (size_t room = (size_t)64 * 1024; room < (size_t)4 * 1024 * 1024; room = room * 5 / 3) {
        auto_buf struct buf out;
        buf_init(&out, room);
        assert_int_equal(prometheus_write(&view, &out), ST_OK);
        (void)fixture_check(&out);
        assert_value(&out, "cairn_observer_left_out{of=\"jobs\",why=\"size\"}",
                     (double)(FEW - fixture_count(&out, "cairn_job_step{")));
        assert_value(&out, "cairn_observer_left_out{of=\"nodes\",why=\"size\"}",
                     (double)(FEW - fixture_count(&out, "cairn_node_slots{")));
        assert_value(&out, "cairn_observer_left_out{of=\"gpus\",why=\"size\"}",
                     (double)((size_t)2 * FEW - fixture_count(&out, "cairn_node_gpu_healthy{")));
        assert_value(
            &out, "cairn_observer_left_out{of=\"workers\",why=\"size\"}",
            (double)((size_t)64 * (FEW - 1) - fixture_count(&out, "cairn_job_worker_up{")));
    }
}

static void too_little_room_is_said_and_changes_nothing(void **state)
{
    (void)state;
    auto_buf struct buf out;
    buf_init(&out, (size_t)64 * 1024 - 1);
    assert_int_equal(buf_append_text(&out, "kept"), ST_OK);
    assert_int_equal(prometheus_write(fixture_full_view(), &out), ST_FULL);
    assert_string_equal(out.data, "kept");
}

/* What has room always: all heads, and the observer's own lines, with labels as long as may be. */
static void what_is_always_there_has_its_room(void **state)
{
    (void)state;
    char text[2 * PROMETHEUS_LABEL_BYTES];
    memset(text, '\\', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    Cairn__V1__GetVersionReply version = CAIRN__V1__GET_VERSION_REPLY__INIT;
    version.version = version.git = text;
    struct prometheus_view view = *fixture_full_view();
    view.version = &version;
    view.observer_version = text;
    view.job_count = 0;
    view.nodes = NULL;
    auto_buf struct buf out;
    write_view(&view, &out);
    size_t size = out.size;
    for (enum prometheus_of of = PROMETHEUS_OF_JOB; of < PROMETHEUS_OF_COUNT; of++) {
        const struct prometheus_table table = prometheus_families(of);
        for (size_t i = 0; i < table.count; i++)
            size += 2 * strlen(table.list[i].name) + strlen(table.list[i].help) + 64;
    }
    assert_in_range(size, 1024, (size_t)48 * 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_has_a_line),
        cmocka_unit_test(a_job_is_told_in_base_units),
        cmocka_unit_test(its_checkpoints_and_workers_are_told),
        cmocka_unit_test(what_its_workers_use_is_told_where_it_is_known),
        cmocka_unit_test(an_older_coordinator_leaves_no_zeros),
        cmocka_unit_test(a_worker_that_does_not_run_is_behind_nobody),
        cmocka_unit_test(workers_have_series_only_while_there_are_some),
        cmocka_unit_test(a_node_and_its_gpus_are_told),
        cmocka_unit_test(what_is_not_known_has_no_line),
        cmocka_unit_test(labels_are_escaped),
        cmocka_unit_test(long_labels_are_cut_between_characters),
        cmocka_unit_test(numbers_read_back_as_they_were),
        cmocka_unit_test(times_are_read),
        cmocka_unit_test(a_coordinator_that_is_down_leaves_its_jobs_out),
        cmocka_unit_test(an_empty_view_is_told),
        cmocka_unit_test(only_the_newest_that_ended_have_series),
        cmocka_unit_test(of_one_id_only_the_first_has_series),
        cmocka_unit_test(a_thousand_jobs_stay_within_the_bound),
        cmocka_unit_test(any_room_is_kept_to),
        cmocka_unit_test(too_little_room_is_said_and_changes_nothing),
        cmocka_unit_test(what_is_always_there_has_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
