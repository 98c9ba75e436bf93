/*
 * The job file: golden errors, defaults, settings, the round trip, garbage.
 *
 * tests/golden/job/NAME.yaml with NAME.err is a broken file and what is said about it; lines of
 * NAME.set, where there is one, are settings. CAIRN_GOLDEN_UPDATE=1 writes the .err files anew.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "jobspec/jobspec.h"
#include "jobspec/schema.h"
#include "tests/test.h"

#define GOLDEN SOURCE_DIR "/tests/golden/job"

static const char good[] = "name: a\n"
                           "model: {arch: mlp}\n"
                           "data: {train: {format: synthetic}}\n"
                           "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n";

static enum status parse(const char *text, const char *const *sets, size_t set_count,
                         struct jobspec *out, struct buf *errors)
{
    return jobspec_parse(text, strlen(text), "job.yaml", "/base", sets, set_count, out, errors);
}

/* Parses text that must be right. */
static void parse_good(const char *text, const char *const *sets, size_t set_count,
                       struct jobspec *out)
{
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    enum status st = parse(text, sets, set_count, out, &errors);
    if (st != ST_OK)
        fail_msg("%s", errors.size > 0 ? errors.data : status_string(st));
    assert_int_equal(errors.size, 0);
}

static char *read_text(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    if (io_read_file(io_system(), path, 1 << 20, &text, &size) != ST_OK)
        return NULL;
    return text;
}

/* ---- golden errors ---- */

static size_t split_lines(char *text, const char **out, size_t capacity)
{
    size_t count = 0;
    for (char *line = text; line != NULL && line[0] != '\0' && count < capacity;) {
        char *end = strchr(line, '\n');
        out[count++] = line;
        if (end != NULL)
            *end++ = '\0';
        line = end;
    }
    return count;
}

static void check_golden(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), GOLDEN "/%s.yaml", name);
    char *text auto_free = NULL;
    size_t size = 0;
    assert_int_equal(io_read_file(io_system(), path, 1 << 20, &text, &size), ST_OK);
    (void)snprintf(path, sizeof(path), GOLDEN "/%s.set", name);
    char *set_text auto_free = read_text(path);
    const char *sets[16];
    size_t set_count = split_lines(set_text, sets, 16);

    char file_name[300];
    (void)snprintf(file_name, sizeof(file_name), "%s.yaml", name);
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    enum status st = jobspec_parse(text, size, file_name, "/base", sets, set_count, job, &errors);
    assert_int_equal(st, ST_CONFIG);

    (void)snprintf(path, sizeof(path), GOLDEN "/%s.err", name);
    if (getenv("CAIRN_GOLDEN_UPDATE") != NULL)
        assert_int_equal(io_replace(io_system(), path, errors.data, errors.size), ST_OK);
    char *expected auto_free = read_text(path);
    if (expected == NULL)
        fail_msg("%s is missing", path);
    assert_string_equal(errors.data, expected);
}

static void every_broken_file_says_what_is_wrong_where_and_what_helps(void **state)
{
    (void)state;
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    size_t count = 0;
    const struct dirent *entry;
    while ((entry = readdir(dir)) != NULL) {
        char name[256];
        (void)snprintf(name, sizeof(name), "%s", entry->d_name);
        char *dot = strrchr(name, '.');
        if (dot == NULL || strcmp(dot, ".yaml") != 0)
            continue;
        *dot = '\0';
        check_golden(name);
        count++;
    }
    (void)closedir(dir);
    assert_true(count >= 30);
}

/* ---- values ---- */

static void a_short_file_gets_the_defaults(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(good, NULL, 0, job);
    assert_string_equal(job->name, "a");
    assert_int_equal(job->model.classes, 10);
    assert_int_equal(job->model.hidden, 256);
    assert_int_equal(job->train.lanes, 8);
    assert_int_equal(job->train.micro_batch, 8);
    assert_int_equal(job->train.accumulate, 1);
    assert_int_equal(job->train.optimizer.name, JOBSPEC_OPTIMIZER_SGD);
    assert_int_equal(job->train.schedule.name, JOBSPEC_SCHEDULE_CONSTANT);
    assert_int_equal(job->train.precision, JOBSPEC_PRECISION_FP32);
    assert_int_equal(job->workers.count, 1);
    assert_int_equal(job->workers.shares[0], 8);
    assert_int_equal(job->workers.device, JOBSPEC_DEVICE_CPU);
    assert_string_equal(job->checkpoint.store, "/base/checkpoints");
    assert_int_equal(job->checkpoint.keep_last, 3);
    assert_int_equal(job->checkpoint.keep_best.n, 0);
    assert_int_equal(job->checkpoint.grace_ms, 30000);
    assert_true(job->checkpoint.every.value == 100 && job->checkpoint.every.unit == JOBSPEC_STEPS);
    assert_true(job->eval_every.value == 0);
    assert_int_equal(job->recovery.exactness, JOBSPEC_EXACTNESS_STRICT);
    assert_int_equal(job->recovery.on_nan, JOBSPEC_ON_NAN_SKIP);
}

static const char text_job[] =
    "name: t\n"
    "model: {arch: gpt2}\n"
    "data: {train: {format: text, path: input.txt}}\n"
    "train: {duration: 10 steps, global_batch: 48, optimizer: {name: adamw, lr: 1e-3}}\n";

static void a_text_model_takes_the_numbers_of_its_size_and_of_its_tokenizer(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int64_t layers, heads, width, context, vocab;
    } cases[] = {
        { "model.size=124M", 12, 12, 768, 1024, 256 },
        { "model={arch: gpt2}", 12, 12, 768, 1024, 256 },
        { "model.size=774M", 36, 20, 1280, 1024, 256 },
        { "model={arch: gpt2, size: 1558M, context: 2048, vocab: 300}", 48, 25, 1600, 2048, 300 },
        { "model={arch: gpt2, layers: 6, heads: 6, width: 192, context: 128}", 6, 6, 192, 128,
          256 },
        { "data.train={format: tokens, path: 'shards/*.bin'}", 12, 12, 768, 1024, 50257 },
        { "data.train={format: synthetic}", 12, 12, 768, 1024, 50257 },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        parse_good(text_job, &cases[i].set, 1, job);
        assert_int_equal(job->model.layers, cases[i].layers);
        assert_int_equal(job->model.heads, cases[i].heads);
        assert_int_equal(job->model.width, cases[i].width);
        assert_int_equal(job->model.context, cases[i].context);
        assert_int_equal(job->model.vocab, cases[i].vocab);
        assert_int_equal(job->model.classes, 0);
        assert_true(jobspec_is_text(&job->model));
    }
}

static void a_size_is_the_same_job_as_its_numbers(void **state)
{
    (void)state;
    const char *size[] = { "model={arch: gpt2, size: 355M}" };
    const char *numbers[] = { "model={arch: gpt2, layers: 24, heads: 16, width: 1024}" };
    struct jobspec *a auto_free = calloc(1, sizeof(*a));
    struct jobspec *b auto_free = calloc(1, sizeof(*b));
    parse_good(text_job, size, 1, a);
    parse_good(text_job, numbers, 1, b);
    assert_memory_equal(a, b, sizeof(*a));
}

static void what_does_not_decay_depends_on_optimizer_and_model(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(text_job, NULL, 0, job);
    assert_true(job->train.optimizer.no_decay.bias);
    assert_true(job->train.optimizer.no_decay.norm);
    assert_false(job->train.optimizer.no_decay.embedding);
    const char *sgd[] = { "train.optimizer.name=sgd" };
    parse_good(text_job, sgd, 1, job);
    assert_false(job->train.optimizer.no_decay.bias);
    const char *all[] = { "train.optimizer.no_decay=[]" };
    parse_good(text_job, all, 1, job);
    assert_false(job->train.optimizer.no_decay.norm);
    const char *adamw[] = { "train.optimizer.name=adamw" };
    parse_good(good, adamw, 1, job);
    assert_false(job->train.optimizer.no_decay.norm);
    const char *embedding[] = { "train.optimizer.no_decay=[embedding]" };
    parse_good(text_job, embedding, 1, job);
    assert_true(job->train.optimizer.no_decay.embedding);
    assert_false(job->train.optimizer.no_decay.bias);
}

static void an_automatic_micro_batch_is_the_largest_part_within_its_bound(void **state)
{
    (void)state;
    static const struct {
        const char *set;
        int64_t micro, accumulate; /* of 48 samples in 8 lanes, or in one */
    } cases[] = {
        { "model.context=1024", 3, 2 },   { "model.context=64", 6, 1 },
        { "model.context=100000", 1, 6 }, { "train.lanes=1", 4, 12 },
        { "train.lanes=16", 3, 1 },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *sets[] = { "train.micro_batch=auto", cases[i].set };
        parse_good(text_job, sets, 2, job);
        assert_int_equal(job->train.micro_batch, cases[i].micro);
        assert_int_equal(job->train.accumulate, cases[i].accumulate);
    }
    const char *images[] = { "train.micro_batch=auto", "train.lanes=1" };
    parse_good(good, images, 2, job);
    assert_int_equal(job->train.micro_batch, 32);
    assert_int_equal(job->train.accumulate, 2);
    const char *cuda[] = { "train.micro_batch=auto", "workers.device=cuda" };
    parse_good(good, cuda, 2, job);
    assert_int_equal(job->train.micro_batch, 0);
    assert_int_equal(job->train.accumulate, 0);
}

static void loss_scaling_follows_the_precision(void **state)
{
    (void)state;
    static const struct {
        const char *precision, *scale;
        double want; /* 0: dynamic, or none in single precision */
    } cases[] = {
        { "fp32", NULL, 0 }, { "tf32", NULL, 0 },      { "bf16", NULL, 1 },
        { "fp16", NULL, 0 }, { "bf16", "dynamic", 0 }, { "fp16", "128", 128 },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char precision[64];
        char scale[64];
        (void)snprintf(precision, sizeof(precision), "train.precision=%s", cases[i].precision);
        (void)snprintf(scale, sizeof(scale), "train.loss_scale=%s",
                       cases[i].scale == NULL ? "" : cases[i].scale);
        const char *sets[] = { "workers.device=cuda", precision, scale };
        parse_good(good, sets, cases[i].scale == NULL ? 2 : 3, job);
        assert_true(job->train.loss_scale == cases[i].want);
        bool half =
            strcmp(cases[i].precision, "bf16") == 0 || strcmp(cases[i].precision, "fp16") == 0;
        assert_int_equal(job->train.amp, half ? JOBSPEC_AMP_O1 : JOBSPEC_AMP_NONE);
    }
}

static void settings_of_nccl_are_kept_by_name(void **state)
{
    (void)state;
    const char *sets[] = { "workers.device=cuda",
                           "nccl={NCCL_SOCKET_IFNAME: eth0, NCCL_DEBUG: INFO}",
                           "nccl.NCCL_IB_DISABLE=1" };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(good, sets, 3, job);
    assert_string_equal(job->nccl[0].name, "NCCL_DEBUG");
    assert_string_equal(job->nccl[0].value, "INFO");
    assert_string_equal(job->nccl[1].name, "NCCL_IB_DISABLE");
    assert_string_equal(job->nccl[1].value, "1");
    assert_string_equal(job->nccl[2].name, "NCCL_SOCKET_IFNAME");
    assert_string_equal(job->nccl[3].name, "");
}

static void lanes_default_to_the_largest_of_8_4_2_1_that_divides_the_batch(void **state)
{
    (void)state;
    static const int64_t cases[][2] = { { 256, 8 }, { 12, 4 }, { 10, 2 }, { 7, 1 } };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < 4; i++) {
        char set[64];
        (void)snprintf(set, sizeof(set), "train.global_batch=%lld", (long long)cases[i][0]);
        const char *sets[] = { set };
        parse_good(good, sets, 1, job);
        assert_int_equal(job->train.lanes, cases[i][1]);
    }
}

static void settings_replace_add_and_are_read_as_yaml(void **state)
{
    (void)state;
    const char *sets[] = { "train.lanes=4",
                           "workers={count: 2}",
                           "workers.shares=[3, 1]",
                           "train.optimizer.lr=5e-2",
                           "checkpoint.keep.last=7",
                           "checkpoint.store=other/./place//",
                           "train.schedule={name: cosine, "
                           "warmup: 2 steps}",
                           "name=\"b\"" };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(good, sets, 8, job);
    assert_string_equal(job->name, "b");
    assert_int_equal(job->train.lanes, 4);
    assert_int_equal(job->workers.count, 2);
    assert_int_equal(job->workers.shares[0], 3);
    assert_int_equal(job->workers.shares[1], 1);
    assert_true(job->train.optimizer.lr == 0.05);
    assert_int_equal(job->checkpoint.keep_last, 7);
    assert_string_equal(job->checkpoint.store, "/base/other/place");
    assert_int_equal(job->train.schedule.name, JOBSPEC_SCHEDULE_COSINE);
    assert_true(job->train.schedule.warmup.value == 2);
}

static void when_checkpoints_are_taken_and_what_they_may_take_has_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum jobspec_unit unit;
        double value;
    } times[] = {
        { "auto", JOBSPEC_AUTO, 0 },          { "10 m", JOBSPEC_MS, 600e3 },
        { "1.5 h", JOBSPEC_MS, 5400e3 },      { "250ms", JOBSPEC_MS, 250 },
        { "\"1 epoch\"", JOBSPEC_EPOCHS, 1 }, { "1e3 steps", JOBSPEC_STEPS, 1000 },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        char set[64];
        (void)snprintf(set, sizeof(set), "checkpoint.every=%s", times[i].text);
        const char *sets[] = { set };
        parse_good(good, sets, 1, job);
        assert_int_equal(job->checkpoint.every.unit, times[i].unit);
        assert_true(job->checkpoint.every.value == times[i].value);
    }
    static const struct {
        const char *set;
        int64_t every;
    } copies[] = { { "train.seed=0", JOBSPEC_EVERY_AUTO },
                   { "checkpoint.memory_every=auto", JOBSPEC_EVERY_AUTO },
                   { "checkpoint.memory_every=none", 0 },
                   { "checkpoint.memory_every=12 steps", 12 } };
    for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
        parse_good(good, &copies[i].set, 1, job);
        assert_int_equal(job->checkpoint.memory_every, copies[i].every);
    }
    const char *sets[] = { "checkpoint.memory=1.5GiB", "checkpoint.memory_every=0",
                           "checkpoint.keep={best: {metric: loss}, every: 50 steps}",
                           "checkpoint.store=s3://some.bucket/a/../b/", "checkpoint.grace=2 m" };
    parse_good(good, sets, 5, job);
    assert_int_equal(job->checkpoint.memory_bytes, 3ll << 29);
    assert_int_equal(job->checkpoint.memory_every, 0);
    assert_int_equal(job->checkpoint.keep_every, 50);
    assert_int_equal(job->checkpoint.keep_best.n, 1);
    assert_int_equal(job->checkpoint.keep_best.metric, JOBSPEC_METRIC_LOSS);
    assert_string_equal(job->checkpoint.store, "s3://some.bucket/a/../b/");
    assert_int_equal(job->checkpoint.grace_ms, 120000);
    assert_int_equal(job->checkpoint.threads, 1);
}

static void a_job_file_may_be_json(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good("{\"name\": \"j\", \"model\": {\"arch\": \"lenet\"},\n"
               " \"data\": {\"train\": {\"format\": \"synthetic\", \"samples\": 100}},\n"
               " \"train\": {\"duration\": \"2 epochs\", \"global_batch\": 10,\n"
               "  \"optimizer\": {\"name\": \"adamw\", \"lr\": 1e-3}}}\n",
               NULL, 0, job);
    assert_int_equal(job->data.train.samples, 100);
    assert_true(job->train.optimizer.weight_decay == 0.01);
    assert_true(job->train.optimizer.beta2 == 0.999);
    assert_true(job->train.optimizer.momentum == 0);
}

/* ---- round trip ---- */

static void print_and_parse_again(const struct jobspec *job)
{
    auto_buf struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(jobspec_print(job, &text), ST_OK);
    struct jobspec *again auto_free = calloc(1, sizeof(*again));
    parse_good(text.data, NULL, 0, again);
    auto_buf struct buf text_again;
    buf_init(&text_again, 1 << 20);
    assert_int_equal(jobspec_print(again, &text_again), ST_OK);
    assert_string_equal(text.data, text_again.data);
    assert_memory_equal(job, again, sizeof(*job));
}

static void a_printed_job_parses_to_the_same_job(void **state)
{
    (void)state;
    static const char *const variants[][6] = {
        { NULL },
        { "workers={count: 3, min: 1}", "train.lanes=4", NULL },
        { "train.optimizer={name: adamw, lr: 0.0003, beta1: 0.85, eps: 1e-7}", NULL },
        { "train.schedule={name: step, every: 3 epochs, gamma: 0.3}",
          "train.optimizer={lr: 0.123456789012345678, momentum: 0.9, nesterov: true}", NULL },
        { "data.eval={format: idx, images: 'a \"b\" \\ c: #.gz', labels: /x/../y}",
          "eval.every=2 epochs", "data.augment=[flip]", NULL },
        { "train.micro_batch=2", "train.seed=9223372036854775807", "train.clip_norm=1.5",
          "train.label_smoothing=0.1", "checkpoint={every: 7 epochs, level: max}", NULL },
        { "checkpoint={every: auto, memory: 1 GiB, memory_every: 1 step, peers: 1, threads: 2}",
          "checkpoint.keep={last: 2, best: {metric: loss, n: 4}, every: 1000 steps}",
          "checkpoint={store: 's3://a-bucket/of/jobs/', delta: true, grace: 1 m}", NULL },
        { "checkpoint={every: 90 s, memory: 1500 MB, memory_every: none, store: /}", NULL },
        { "checkpoint={memory: auto, memory_every: auto}", NULL },
        { "parallel={pipeline: 2, schedule: gpipe}", "workers.count=6", "train.lanes=4", NULL },
        { "parallel={pipeline: [3, 17], stages: [{shares: [5, 3]}, {workers: 1}, {workers: 3}]}",
          "audit.every=none", NULL },
        { "parallel={stages: [{workers: 1}, {workers: 2}]}", NULL },
        { "parallel={pipeline: 1, schedule: gpipe}", NULL },
        { "train.optimizer={name: lion, lr: 1e-4, beta2: 0.98}",
          "train.schedule={name: polynomial, power: 1.5, min_lr: 0.1, warmup: 1 epoch}", NULL },
        { "train.optimizer={name: lamb, lr: 0.01}", "parallel.zero=1", "train.ema=0.999",
          "train.schedule={name: one_cycle, warmup: 3 steps, start_lr: 0.1}", NULL },
        { "train.optimizer={name: muon, lr: 0.01, weight_decay: 0.2}", "train.ema=0.99",
          "train.eval_ema=true", "data.eval={format: synthetic}",
          "train.schedule={name: wsd, decay: 2 epochs, min_lr: 0.01}", NULL },
        { "train.stop={metric: eval_loss, patience: 4, min_delta: 0.001}", "eval.every=2 epochs",
          "recovery={on_spike: skip, spike: 3.5}", "data.eval={format: synthetic}", NULL },
    };
    static const char *const text_variants[][6] = {
        { NULL },
        { "model={arch: gpt2, size: 774M, dropout: 0.1}", "train.precision=bf16", "train.amp=O2",
          "train.micro_batch=auto", "train.recompute=full", NULL },
        { "workers={device: cuda, memory: managed}", "train.precision=fp16",
          "nccl={NCCL_DEBUG: 'a \"b\" \\ c', NCCL_ALGO: Ring}", "parallel.reduction=fast",
          "train.optimizer.no_decay=[norm, embedding]", NULL },
        { "workers.device=cuda", "train.micro_batch=auto", NULL },
        { "data.eval={format: tokens, path: '/x/*.bin'}", "train.optimizer.no_decay=[]",
          "workers.device=cuda", "train.precision=fp16", "train.loss_scale=0.5", NULL },
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(text_variants) / sizeof(text_variants[0]); i++) {
        size_t count = 0;
        while (text_variants[i][count] != NULL)
            count++;
        parse_good(text_job, text_variants[i], count, job);
        print_and_parse_again(job);
    }
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        size_t count = 0;
        while (variants[i][count] != NULL)
            count++;
        parse_good(good, variants[i], count, job);
        print_and_parse_again(job);
    }
}

static void a_setting_that_is_null_takes_a_key_away(void **state)
{
    (void)state;
    static const struct {
        const char *sets[5];
        const char *error; /* NULL: it is the job without any of them */
    } cases[] = {
        { { "train.precision=bf16", "train.amp=O2", "train.precision=fp32", "train.amp=null" },
          NULL },
        { { "eval.every=5 steps", "data.eval={format: text, path: x}", "data.eval=null", "eval=~" },
          NULL },
        { { "train.optimizer.eps=1e-7", "train.optimizer.eps=null" }, NULL },
        { { "train.optimizer.lr=null", "train.optimizer.lr=1e-3" }, NULL },
        { { "train.optimizer=null", "train.optimizer={name: adamw, lr: 1e-3}" }, NULL },
        { { "train.seed=null", "checkpoint.keep.best=null", "name.of.what=null" }, NULL },
        { { "train.optimizer.name=null", "train.optimizer.name=adamw" }, NULL },
        { { "train.optimizer.lr=null" }, "train.optimizer.lr is missing" },
        { { "train.optimizer=null" }, "train.optimizer is missing" },
        { { "train.seed=\"null\"" }, "--set:1:12: " },
        { { "train.seed=" }, "train.seed has no value" },
        { { "train.seed=---" }, "train.seed has no value" },
        { { "train={seed: null}" }, "train.seed has no value" },
    };
    struct jobspec *plain auto_free = calloc(1, sizeof(*plain));
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    parse_good(text_job, NULL, 0, plain);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        auto_buf struct buf errors;
        buf_init(&errors, 1 << 20);
        size_t count = 0;
        while (cases[i].sets[count] != NULL)
            count++;
        const enum status st = parse(text_job, cases[i].sets, count, job, &errors);
        if (cases[i].error == NULL) {
            assert_int_equal(st, ST_OK);
            assert_memory_equal(job, plain, sizeof(*job));
        } else {
            assert_int_equal(st, ST_CONFIG);
            assert_non_null(strstr(errors.data, cases[i].error));
        }
    }
    const char *name[] = { "name=\"null\"" };
    parse_good(text_job, name, 1, job);
    assert_string_equal(job->name, "null");
}

static void the_examples_are_right_and_survive_the_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {
        "resnet18-fashion",   "lenet-fashion", "mlp-fashion",       "gpt2-shakespeare", "gpt2-124m",
        "resnet50-synthetic", "command",       "llama-shakespeare", "vit-fashion",      "bert"
    };
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), SOURCE_DIR "/examples/%s.yaml", names[i]);
        char *text auto_free = read_text(path);
        assert_non_null(text);
        parse_good(text, NULL, 0, job);
        assert_string_equal(job->name, names[i]);
        print_and_parse_again(job);
    }
}

static void every_key_is_in_the_documentation(void **state)
{
    (void)state;
    char *text auto_free = read_text(SOURCE_DIR "/docs/job.md");
    assert_non_null(text);
    size_t count = 0;
    const struct field *fields = schema_fields(&count);
    for (size_t i = 0; i < count; i++) {
        char quoted[160];
        (void)snprintf(quoted, sizeof(quoted), "`%s`", fields[i].path);
        if (strstr(text, quoted) == NULL)
            fail_msg("%s is not in docs/job.md", fields[i].path);
    }
}

/* libfyaml loses memory over quotes in a row within single quotes. */
static void quotes_in_a_row_are_read_in_double_quotes_only(void **state)
{
    static struct jobspec job;
    char text[1024], quotes[101];
    auto_buf struct buf errors;
    (void)state;
    buf_init(&errors, 1 << 20);
    memset(quotes, '\'', 100);
    quotes[100] = '\0';
    (void)snprintf(text, sizeof(text), "%scheckpoint: {store: '%s'}\n", good, quotes);
    assert_int_equal(parse(text, NULL, 0, &job, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "quotes in a row"));
    assert_non_null(strstr(errors.data, "double quotes"));
    (void)snprintf(text, sizeof(text), "%scheckpoint: {store: \"%s\"}\n", good, quotes);
    parse_good(text, NULL, 0, &job);
    (void)snprintf(text, sizeof(text), "/base/%s", quotes);
    assert_string_equal(job.checkpoint.store, text);
    (void)snprintf(text, sizeof(text), "%scheckpoint: {store: 'it''s'}\n", good);
    parse_good(text, NULL, 0, &job);
    assert_string_equal(job.checkpoint.store, "/base/it's");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_broken_file_says_what_is_wrong_where_and_what_helps),
        cmocka_unit_test(a_short_file_gets_the_defaults),
        cmocka_unit_test(a_text_model_takes_the_numbers_of_its_size_and_of_its_tokenizer),
        cmocka_unit_test(a_size_is_the_same_job_as_its_numbers),
        cmocka_unit_test(what_does_not_decay_depends_on_optimizer_and_model),
        cmocka_unit_test(an_automatic_micro_batch_is_the_largest_part_within_its_bound),
        cmocka_unit_test(loss_scaling_follows_the_precision),
        cmocka_unit_test(settings_of_nccl_are_kept_by_name),
        cmocka_unit_test(lanes_default_to_the_largest_of_8_4_2_1_that_divides_the_batch),
        cmocka_unit_test(settings_replace_add_and_are_read_as_yaml),
        cmocka_unit_test(when_checkpoints_are_taken_and_what_they_may_take_has_units),
        cmocka_unit_test(a_job_file_may_be_json),
        cmocka_unit_test(quotes_in_a_row_are_read_in_double_quotes_only),
        cmocka_unit_test(a_printed_job_parses_to_the_same_job),
        cmocka_unit_test(a_setting_that_is_null_takes_a_key_away),
        cmocka_unit_test(the_examples_are_right_and_survive_the_round_trip),
        cmocka_unit_test(every_key_is_in_the_documentation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
