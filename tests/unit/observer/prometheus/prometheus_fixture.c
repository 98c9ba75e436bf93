#include "tests/unit/observer/prometheus/prometheus_fixture.h"

#include <iconv.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "tests/test.h"

/* ---- made-up messages ---- */

static Cairn__V1__Checkpoint ckpt, bad_ckpt;
static Cairn__V1__SaveTimes times;
static Cairn__V1__CheckpointPlan plan;
static Cairn__V1__LostSeconds lost[2];
static Cairn__V1__Phase phases[2];
static Cairn__V1__Worker workers[2];
static Cairn__V1__Spare spare;
static Cairn__V1__Gpu gpus[2];
static Cairn__V1__WorkerUsage worker_usage;
static Cairn__V1__NodeUsage node_usage;

static void fill_checkpoints(Cairn__V1__Job *job)
{
    static Cairn__V1__Checkpoint *list[2] = { &bad_ckpt, &ckpt };
    cairn__v1__checkpoint__init(&ckpt);
    cairn__v1__checkpoint__init(&bad_ckpt);
    cairn__v1__save_times__init(&times);
    cairn__v1__checkpoint_plan__init(&plan);
    bad_ckpt.status = "bad";
    bad_ckpt.step = 1100;
    ckpt.status = "good";
    ckpt.step = 1000;
    ckpt.bytes = 123456789;
    ckpt.raw_bytes = 234567890;
    ckpt.committed_at = "2026-09-21T14:03:20.500Z";
    ckpt.verified__case = CAIRN__V1__CHECKPOINT__VERIFIED__VERIFIED;
    ckpt.verified = 1;
    times.stall_us = 1500;
    times.save_us = 2000000;
    ckpt.times = &times;
    plan.interval_s = 300;
    plan.cost_s = 0.25;
    plan.mtbf_s = 7200;
    plan.failures = 2;
    plan.refused = 1;
    job->checkpoints = list;
    job->n_checkpoints = 2;
    job->checkpoint_plan = &plan;
}

static void fill_workers(Cairn__V1__Job *job)
{
    static Cairn__V1__Worker *list[2] = { &workers[0], &workers[1] };
    static Cairn__V1__Spare *spares[1] = { &spare };
    for (uint32_t i = 0; i < 2; i++) {
        cairn__v1__worker__init(&workers[i]);
        workers[i].rank = i;
        workers[i].node = i == 0 ? "n1" : "n\"2";
        workers[i].share = 4;
        workers[i].step = 1234 - i;
        workers[i].state = "running";
        workers[i].seconds_per_step = 0.1 + 0.1 * i;
    }
    cairn__v1__worker_usage__init(&worker_usage); /* of the other one nothing is known */
    worker_usage.cpu_seconds = 12.5;
    worker_usage.cores = 0.75;
    worker_usage.memory_bytes = 123456;
    worker_usage.memory_limit__case = CAIRN__V1__WORKER_USAGE__MEMORY_LIMIT__MEMORY_LIMIT_BYTES;
    worker_usage.memory_limit_bytes = 1 << 20;
    worker_usage.threads = 9;
    workers[0].usage = &worker_usage;
    workers[0].peak_flops__case = CAIRN__V1__WORKER__PEAK_FLOPS__PEAK_FLOPS;
    workers[0].peak_flops = 107e9;
    workers[0].sent__case = CAIRN__V1__WORKER__SENT__SENT_BYTES;
    workers[0].sent_bytes = 1000;
    workers[0].received__case = CAIRN__V1__WORKER__RECEIVED__RECEIVED_BYTES;
    workers[0].received_bytes = 0;
    cairn__v1__spare__init(&spare);
    spare.state = "warm";
    job->workers = list;
    job->n_workers = 2;
    job->spares = spares;
    job->n_spares = 1;
    job->workers_count = 2;
    job->workers_min = 1;
    job->workers_spares = 1;
}

static void fill_times(Cairn__V1__Job *job)
{
    static Cairn__V1__LostSeconds *lost_list[2] = { &lost[0], &lost[1] };
    static Cairn__V1__Phase *phase_list[2] = { &phases[0], &phases[1] };
    for (int i = 0; i < 2; i++) {
        cairn__v1__lost_seconds__init(&lost[i]);
        cairn__v1__phase__init(&phases[i]);
    }
    lost[0].cause = "detect";
    lost[0].seconds = 1.5;
    lost[1].cause = "replay";
    lost[1].seconds = 12;
    phases[0].name = "forward";
    phases[0].ms = 25;
    phases[1].name = "backward";
    phases[1].ms = 50;
    job->lost_seconds = lost_list;
    job->n_lost_seconds = 2;
    job->phases = phase_list;
    job->n_phases = 2;
}

void fixture_fill_job(Cairn__V1__Job *job, const char *id, const char *name)
{
    cairn__v1__job__init(job);
    job->id = (char *)id;
    job->name = (char *)name;
    job->model = "resnet";
    job->state = CAIRN__V1__JOB_STATE__RUNNING;
    job->health = "ok";
    job->generation = 3;
    job->step = 1234;
    job->total_steps = 5000;
    job->steps_per_epoch = 500;
    job->loss = 0.125;
    job->eval_loss = 0.25;
    job->accuracy = 0.875;
    job->restarts = 2;
    job->recovery_count = 2;
    job->goodput = 0.96875;
    job->submitted_at = "2026-09-21T13:00:00.000Z";
    job->started_at = "2026-09-21T13:00:05.250Z";
    job->throughput = 320.5;
    job->throughput_unit = "samples/s";
    job->eta_seconds = 376.5;
    job->step_ms = 99.5;
    job->mfu__case = CAIRN__V1__JOB__MFU__MFU;
    job->mfu = 0.375;
    job->flops_per_step__case = CAIRN__V1__JOB__FLOPS_PER_STEP__FLOPS_PER_STEP;
    job->flops_per_step = 3.5e9;
    job->memory_every = 10;
    job->memory_bytes = 1 << 20;
    fill_times(job);
    fill_checkpoints(job);
    fill_workers(job);
}

void fixture_fill_node(Cairn__V1__Node *node, const char *name)
{
    static Cairn__V1__Gpu *list[2] = { &gpus[0], &gpus[1] };
    cairn__v1__node__init(node);
    node->name = (char *)name;
    node->state = "ready";
    node->device = "cpu";
    node->slots = 8;
    node->used = 3;
    node->version = "0.3.0";
    node->host = "10.0.0.1";
    node->gpus_used = 1;
    for (int i = 0; i < 2; i++) {
        cairn__v1__gpu__init(&gpus[i]);
        gpus[i].name = "NVIDIA H200";
        gpus[i].uuid = i == 0 ? "GPU-aa" : "GPU-bb";
        gpus[i].driver = "570.1";
        gpus[i].memory_bytes = UINT64_C(150754820096);
        gpus[i].memory_used_bytes = 4096;
        gpus[i].temperature = 61;
    }
    gpus[0].utilization__case = CAIRN__V1__GPU__UTILIZATION__UTILIZATION;
    gpus[0].utilization = 0.97;
    gpus[0].power__case = CAIRN__V1__GPU__POWER__POWER_WATTS;
    gpus[0].power_watts = 310.5;
    cairn__v1__node_usage__init(&node_usage);
    node_usage.cpu_seconds = 98765.25;
    node_usage.cores = 1.5;
    node_usage.cores_count = 2;
    node_usage.memory_bytes = UINT64_C(16777216000);
    node_usage.memory_available_bytes = UINT64_C(8388608000);
    node_usage.received_bytes = 77;
    node_usage.sent_bytes = 88;
    node->usage = &node_usage;
    gpus[1].problem = "fell off the bus";
    gpus[1].throttled = 1;
    gpus[1].ecc_errors = 7;
    node->gpus = list;
    node->n_gpus = 2;
}

const struct prometheus_view *fixture_full_view(void)
{
    static Cairn__V1__Job text, ended, running;
    static Cairn__V1__Node node;
    static Cairn__V1__Node *node_list[1] = { &node };
    static const Cairn__V1__Job *jobs[3] = { &running, &text, &ended };
    static Cairn__V1__ListNodesReply nodes;
    static Cairn__V1__GetVersionReply version;
    static struct prometheus_view view;
    fixture_fill_job(&running, "j1", "a \"quoted\"\\\nname \xff");
    fixture_fill_job(&text, "j2", "text");
    text.throughput_unit = "tokens/s";
    fixture_fill_job(&ended, "j3", "ended");
    ended.state = CAIRN__V1__JOB_STATE__FAILED;
    ended.ended_at = "2026-09-21T14:00:00.000Z";
    fixture_fill_node(&node, "n1");
    cairn__v1__list_nodes_reply__init(&nodes);
    nodes.nodes = node_list;
    nodes.n_nodes = 1;
    cairn__v1__get_version_reply__init(&version);
    version.version = "0.3.0";
    version.git = "abcdef";
    version.agents = 1;
    view = (struct prometheus_view){ .jobs = jobs,
                                     .job_count = 3,
                                     .nodes = &nodes,
                                     .version = &version,
                                     .up = true,
                                     .seen_unix_s = FIXTURE_NOW - 0.25,
                                     .now_unix_s = FIXTURE_NOW,
                                     .observer_version = "0.3.0",
                                     .started_unix_s = FIXTURE_NOW - 86400,
                                     .connections = 2,
                                     .streams = 1 };
    return &view;
}

/* ---- reading ---- */

static bool is_utf8(const char *text, size_t size)
{
    char out[4096];
    iconv_t with = iconv_open("UCS-4", "UTF-8");
    assert_int_not_equal((intptr_t)with, -1);
    char *in = (char *)text;
    bool good = true;
    while (good && size > 0) {
        char *to = out;
        size_t room = sizeof(out);
        const size_t before = size;
        good = iconv(with, &in, &size, &to, &room) != (size_t)-1 || size < before;
    }
    (void)iconv_close(with);
    return good;
}

/* name="value",…}: behind it; NULL: it is none. */
static const char *skip_labels(const char *at)
{
    for (;;) {
        const size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        if (name == 0 || at[name] != '=' || at[name + 1] != '"')
            return NULL;
        for (at += name + 2; *at != '"'; at++) {
            if (*at == '\0' || (*at == '\\' && (*++at == '\0' || strchr("\\\"n", *at) == NULL)))
                return NULL;
        }
        at++;
        if (*at == '}')
            return at + 1;
        if (*at++ != ',')
            return NULL;
    }
}

/* How long the name and labels are. The line has to be one. */
static size_t series_size(const char *line, const char *family)
{
    const size_t name = strspn(line, "abcdefghijklmnopqrstuvwxyz0123456789_");
    assert_int_equal(name, strlen(family));
    assert_memory_equal(line, family, name);
    const char *at = line + name;
    if (*at == '{')
        at = skip_labels(at + 1);
    assert_non_null(at);
    assert_int_equal(*at, ' ');
    char *end = NULL;
    (void)strtod(at + 1, &end);
    assert_true(end > at + 1 && *end == '\0');
    assert_null(strstr(at, "nan"));
    return (size_t)(at - line);
}

static int by_text(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void assert_unique(char **list, size_t count)
{
    qsort(list, count, sizeof(void *), by_text);
    for (size_t i = 1; i < count; i++)
        assert_string_not_equal(list[i - 1], list[i]);
}

size_t fixture_check(const struct buf *text)
{
    auto_free char *copy = malloc(text->size + 1);
    assert_non_null(copy);
    memcpy(copy, text->data, text->size + 1);
    assert_int_equal(strlen(copy), text->size);
    assert_true(is_utf8(copy, text->size));
    size_t lines = 0, families = 0, count = 0;
    for (const char *c = copy; *c != '\0'; c++)
        lines += *c == '\n';
    assert_true(lines > 0 && copy[text->size - 1] == '\n');
    auto_free char **series = calloc(lines + 1, sizeof(void *));
    auto_free char **seen = calloc(lines + 1, sizeof(void *));
    assert_non_null(series);
    assert_non_null(seen);
    char family[128] = "", typed[128] = "", type[16] = "";
    for (char *line = copy, *next = NULL; *line != '\0'; line = next) {
        next = strchr(line, '\n');
        *next++ = '\0';
        if (sscanf(line, "# HELP %127s", family) == 1) {
            assert_null(strchr(line, '\\'));
            seen[families++] = line + strlen("# HELP ");
            line[strlen("# HELP ") + strlen(family)] = '\0';
        } else if (sscanf(line, "# TYPE %127s %15s", typed, type) == 2) {
            assert_string_equal(typed, family);
            const char *end = strrchr(family, '_');
            assert_int_equal(strcmp(type, "counter") == 0, strcmp(end, "_total") == 0);
        } else {
            assert_string_equal(typed, family);
            line[series_size(line, family)] = '\0';
            series[count++] = line;
        }
    }
    assert_unique(series, count);
    assert_unique(seen, families);
    return count;
}

size_t fixture_count(const struct buf *text, const char *start)
{
    size_t count = 0;
    const size_t size = strlen(start);
    for (const char *line = text->data; line != NULL && *line != '\0';) {
        count += strncmp(line, start, size) == 0;
        line = strchr(line, '\n');
        line += line != NULL;
    }
    return count;
}

double fixture_value(const struct buf *text, const char *series)
{
    const size_t size = strlen(series);
    for (const char *line = text->data; line != NULL && *line != '\0';) {
        if (strncmp(line, series, size) == 0 && line[size] == ' ')
            return strtod(line + size, NULL);
        line = strchr(line, '\n');
        line += line != NULL;
    }
    return (double)NAN;
}
