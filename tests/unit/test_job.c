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
#include "job/job.h"
#include "tests/test.h"

#define GOLDEN SOURCE_DIR "/tests/golden/job"

static const char good[] = "name: a\n"
                           "model: {arch: mlp}\n"
                           "data: {train: {format: synthetic}}\n"
                           "train: {duration: 10 steps, global_batch: 64, optimizer: {lr: 0.1}}\n";

static enum status parse(const char *text, const char *const *sets, size_t set_count,
                         struct job *out, struct buf *errors)
{
    return job_parse(text, strlen(text), "job.yaml", "/base", sets, set_count, out, errors);
}

/* Parses text that must be right. */
static void parse_good(const char *text, const char *const *sets, size_t set_count, struct job *out)
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
    struct job *job auto_free = calloc(1, sizeof(*job));
    enum status st = job_parse(text, size, file_name, "/base", sets, set_count, job, &errors);
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
    struct job *job auto_free = calloc(1, sizeof(*job));
    parse_good(good, NULL, 0, job);
    assert_string_equal(job->name, "a");
    assert_int_equal(job->model.classes, 10);
    assert_int_equal(job->model.hidden, 256);
    assert_int_equal(job->train.lanes, 8);
    assert_int_equal(job->train.micro_batch, 8);
    assert_int_equal(job->train.accumulate, 1);
    assert_string_equal(job->train.optimizer.name, "sgd");
    assert_string_equal(job->train.schedule.name, "constant");
    assert_string_equal(job->train.precision, "fp32");
    assert_int_equal(job->workers.count, 1);
    assert_int_equal(job->workers.shares[0], 8);
    assert_string_equal(job->workers.device, "cpu");
    assert_string_equal(job->checkpoint.store, "/base/checkpoints");
    assert_int_equal(job->checkpoint.keep_last, 3);
    assert_true(job->checkpoint.every.value == 100 && job->checkpoint.every.unit == JOB_STEPS);
    assert_true(job->eval_every.value == 0);
    assert_string_equal(job->recovery.exactness, "strict");
    assert_string_equal(job->recovery.on_nan, "skip");
}

static void lanes_default_to_the_largest_of_8_4_2_1_that_divides_the_batch(void **state)
{
    (void)state;
    static const int64_t cases[][2] = { { 256, 8 }, { 12, 4 }, { 10, 2 }, { 7, 1 } };
    struct job *job auto_free = calloc(1, sizeof(*job));
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
    struct job *job auto_free = calloc(1, sizeof(*job));
    parse_good(good, sets, 8, job);
    assert_string_equal(job->name, "b");
    assert_int_equal(job->train.lanes, 4);
    assert_int_equal(job->workers.count, 2);
    assert_int_equal(job->workers.shares[0], 3);
    assert_int_equal(job->workers.shares[1], 1);
    assert_true(job->train.optimizer.lr == 0.05);
    assert_int_equal(job->checkpoint.keep_last, 7);
    assert_string_equal(job->checkpoint.store, "/base/other/place");
    assert_string_equal(job->train.schedule.name, "cosine");
    assert_true(job->train.schedule.warmup.value == 2);
}

static void a_job_file_may_be_json(void **state)
{
    (void)state;
    struct job *job auto_free = calloc(1, sizeof(*job));
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

static void shares_are_even_and_aligned_with_the_tree_where_that_is_free(void **state)
{
    (void)state;
    static const struct {
        int64_t lanes, count;
        uint32_t shares[8];
    } cases[] = {
        { 4, 3, { 2, 1, 1 } }, { 4, 2, { 2, 2 } },
        { 8, 3, { 3, 3, 2 } }, { 8, 5, { 2, 2, 2, 1, 1 } },
        { 5, 2, { 2, 3 } },    { 6, 4, { 2, 2, 1, 1 } },
        { 1, 1, { 1 } },       { 7, 3, { 2, 2, 3 } },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t shares[8] = { 0 };
        assert_int_equal(job_shares(cases[i].lanes, cases[i].count, shares), ST_OK);
        for (int64_t w = 0; w < cases[i].count; w++)
            assert_int_equal(shares[w], cases[i].shares[w]);
    }
    uint32_t one = 0;
    assert_int_equal(job_shares(2, 3, &one), ST_INVALID);
    assert_int_equal(job_shares(LIMIT_LANES + 1, 1, &one), ST_INVALID);
}

static void any_lanes_on_any_workers_are_all_given_out(void **state)
{
    (void)state;
    static uint32_t shares[LIMIT_RANKS];
    for (int64_t lanes = 1; lanes <= 70; lanes++) {
        for (int64_t count = 1; count <= lanes; count++) {
            assert_int_equal(job_shares(lanes, count, shares), ST_OK);
            int64_t sum = 0;
            for (int64_t w = 0; w < count; w++) {
                assert_in_range(shares[w], lanes / count, lanes / count + 1);
                sum += shares[w];
            }
            assert_int_equal(sum, lanes);
        }
    }
    assert_int_equal(job_shares(LIMIT_LANES, LIMIT_RANKS - 1, shares), ST_OK);
}

/* ---- round trip ---- */

static void print_and_parse_again(const struct job *job)
{
    auto_buf struct buf text;
    buf_init(&text, 1 << 20);
    assert_int_equal(job_print(job, &text), ST_OK);
    struct job *again auto_free = calloc(1, sizeof(*again));
    parse_good(text.data, NULL, 0, again);
    auto_buf struct buf text_again;
    buf_init(&text_again, 1 << 20);
    assert_int_equal(job_print(again, &text_again), ST_OK);
    assert_string_equal(text.data, text_again.data);
    assert_memory_equal(job, again, sizeof(*job));
}

static void a_printed_job_parses_to_the_same_job(void **state)
{
    (void)state;
    static const char *const variants[][6] = {
        { NULL },
        { "workers={count: 3, min: 2}", "train.lanes=4", NULL },
        { "train.optimizer={name: adamw, lr: 0.0003, beta1: 0.85, eps: 1e-7}", NULL },
        { "train.schedule={name: step, every: 3 epochs, gamma: 0.3}",
          "train.optimizer={lr: 0.123456789012345678, momentum: 0.9, nesterov: true}", NULL },
        { "data.eval={format: idx, images: 'a \"b\" \\ c: #.gz', labels: /x/../y}",
          "eval.every=2 epochs", "data.augment=[flip]", NULL },
        { "train.micro_batch=2", "train.seed=9223372036854775807", "train.clip_norm=1.5",
          "train.label_smoothing=0.1", "checkpoint={every: 7 epochs, level: max}", NULL },
    };
    struct job *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++) {
        size_t count = 0;
        while (variants[i][count] != NULL)
            count++;
        parse_good(good, variants[i], count, job);
        print_and_parse_again(job);
    }
}

static void the_examples_are_right_and_survive_the_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = { "resnet18-fashion", "lenet-fashion", "mlp-fashion" };
    struct job *job auto_free = calloc(1, sizeof(*job));
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        (void)snprintf(path, sizeof(path), SOURCE_DIR "/examples/%s.yaml", names[i]);
        char *text auto_free = read_text(path);
        assert_non_null(text);
        parse_good(text, NULL, 0, job);
        assert_string_equal(job->name, names[i]);
        print_and_parse_again(job);
    }
}

/* ---- garbage ---- */

/* One change: a byte, a piece cut out, a piece doubled. */
static size_t mutate(char *text, size_t size, size_t capacity, uint64_t *random)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    uint64_t r = *random >> 11;
    size_t at = size == 0 ? 0 : (size_t)(r % size);
    size_t length = (size_t)(r >> 20) % 12;
    static const char bytes[] = "{}[]:,-#&*!|>'\"%@`\n\t 0aé\xff";
    switch ((r >> 40) % 3) {
    case 0:
        if (size > 0)
            text[at] = bytes[(r >> 44) % (sizeof(bytes) - 1)];
        return size;
    case 1:
        if (at + length > size)
            length = size - at;
        memmove(text + at, text + at + length, size - at - length);
        return size - length;
    default:
        if (at + length > size || size + length > capacity)
            return size;
        memmove(text + at + length, text + at, size - at);
        return size + length;
    }
}

static void garbage_is_refused_or_read_but_never_crashes(void **state)
{
    (void)state;
    char *base auto_free = read_text(SOURCE_DIR "/examples/resnet18-fashion.yaml");
    assert_non_null(base);
    size_t base_size = strlen(base);
    size_t capacity = 2 * base_size;
    char *text auto_free = malloc(capacity);
    struct job *job auto_free = calloc(1, sizeof(*job));
    assert_non_null(text);
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    uint64_t random = 7;
    size_t refused = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(text, base, base_size);
        size_t size = base_size;
        for (int change = 0; change <= round % 8; change++)
            size = mutate(text, size, capacity, &random);
        buf_clear(&errors);
        enum status st = job_parse(text, size, "g.yaml", "/base", NULL, 0, job, &errors);
        if (st == ST_OK)
            continue;
        refused++;
        assert_int_equal(st, ST_CONFIG);
        assert_true(errors.size > 0);
    }
    assert_true(refused > 1000);
}

static void what_is_no_text_at_all_is_refused_at_its_first_byte(void **state)
{
    (void)state;
    struct job *job auto_free = calloc(1, sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    assert_int_equal(job_parse("name: \0a\n", 9, "n.yaml", "/base", NULL, 0, job, &errors),
                     ST_CONFIG);
    assert_non_null(strstr(errors.data, "n.yaml:1:7: this byte is not text (UTF-8)"));
    buf_clear(&errors);
    assert_int_equal(job_parse("a: 1\nb: \xc3(\n", 12, "n.yaml", "/base", NULL, 0, job, &errors),
                     ST_CONFIG);
    assert_non_null(strstr(errors.data, "n.yaml:2:4: this byte is not text (UTF-8)"));
}

static void a_file_of_nothing_but_mistakes_is_cut_at_a_bound(void **state)
{
    (void)state;
    auto_buf struct buf text;
    buf_init(&text, 1 << 20);
    for (int i = 0; i < 500; i++)
        assert_int_equal(buf_printf(&text, "wrong%d: 1\n", i), ST_OK);
    struct job *job auto_free = calloc(1, sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    assert_int_equal(parse(text.data, NULL, 0, job, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "more mistakes are not shown"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_broken_file_says_what_is_wrong_where_and_what_helps),
        cmocka_unit_test(a_short_file_gets_the_defaults),
        cmocka_unit_test(lanes_default_to_the_largest_of_8_4_2_1_that_divides_the_batch),
        cmocka_unit_test(settings_replace_add_and_are_read_as_yaml),
        cmocka_unit_test(a_job_file_may_be_json),
        cmocka_unit_test(shares_are_even_and_aligned_with_the_tree_where_that_is_free),
        cmocka_unit_test(any_lanes_on_any_workers_are_all_given_out),
        cmocka_unit_test(a_printed_job_parses_to_the_same_job),
        cmocka_unit_test(the_examples_are_right_and_survive_the_round_trip),
        cmocka_unit_test(garbage_is_refused_or_read_but_never_crashes),
        cmocka_unit_test(what_is_no_text_at_all_is_refused_at_its_first_byte),
        cmocka_unit_test(a_file_of_nothing_but_mistakes_is_cut_at_a_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
