/*
 * Job files that are no job files: bytes changed, cut out and doubled, no text, too much of it.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "jobspec/jobspec.h"
#include "tests/test.h"

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
    char *base auto_free = NULL;
    size_t base_size = 0;
    assert_int_equal(io_read_file(io_system(), SOURCE_DIR "/examples/resnet18-fashion.yaml",
                                  1 << 20, &base, &base_size),
                     ST_OK);
    size_t capacity = 2 * base_size;
    char *text auto_free = malloc(capacity);
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
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
        enum status st = jobspec_parse(text, size, "g.yaml", "/base", NULL, 0, job, &errors);
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
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    assert_int_equal(jobspec_parse("name: \0a\n", 9, "n.yaml", "/base", NULL, 0, job, &errors),
                     ST_CONFIG);
    assert_non_null(strstr(errors.data, "n.yaml:1:7: this byte is not text (UTF-8)"));
    buf_clear(&errors);
    assert_int_equal(
        jobspec_parse("a: 1\nb: \xc3(\n", 12, "n.yaml", "/base", NULL, 0, job, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "n.yaml:2:4: this byte is not text (UTF-8)"));
}

static void a_file_of_nothing_but_mistakes_is_cut_at_a_bound(void **state)
{
    (void)state;
    auto_buf struct buf text;
    buf_init(&text, 1 << 20);
    for (int i = 0; i < 500; i++)
        assert_int_equal(buf_printf(&text, "wrong%d: 1\n", i), ST_OK);
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    assert_int_equal(
        jobspec_parse(text.data, text.size, "job.yaml", "/base", NULL, 0, job, &errors), ST_CONFIG);
    assert_non_null(strstr(errors.data, "more mistakes are not shown"));
}

static void more_settings_than_a_job_takes_are_refused_in_words(void **state)
{
    (void)state;
    static const char *sets[JOBSPEC_SETS_MAX + 1];
    for (size_t i = 0; i <= JOBSPEC_SETS_MAX; i++)
        sets[i] = "train.seed=1";
    struct jobspec *job auto_free = calloc(1, sizeof(*job));
    auto_buf struct buf errors;
    buf_init(&errors, 1 << 20);
    assert_int_equal(jobspec_parse("name: a\n", 8, "job.yaml", "/base", sets, JOBSPEC_SETS_MAX + 1,
                                   job, &errors),
                     ST_CONFIG);
    assert_string_equal(errors.data, "job.yaml:1:1: a job takes at most 256 settings\n");
}

/* A file of LIMIT_JOB_FILE_BYTES is read; the job with the most that one can say is printed, as the
 * journal and workers have it, in no more. */
static void files_and_jobs_as_large_as_they_may_be(void **state)
{
    (void)state;
    struct jobspec *job auto_free = calloc(1, sizeof(*job)),
                        *again auto_free = calloc(1, sizeof(*job));
    auto_buf struct buf text, errors, printed;
    buf_init(&text, 1 << 20);
    buf_init(&errors, 1 << 20);
    buf_init(&printed, (size_t)LIMIT_JOB_FILE_BYTES);
    char path[LIMIT_PATH], store[LIMIT_STORE], name[LIMIT_NAME];
    memset(path, '"', sizeof(path) - 1); /* which is escaped */
    memset(store, '"', sizeof(store) - 1);
    memset(name, 'n', sizeof(name) - 1);
    path[0] = store[0] = '/';
    path[sizeof(path) - 1] = store[sizeof(store) - 1] = name[sizeof(name) - 1] = '\0';
    assert_int_equal(buf_printf(&text,
                                "name: %.60s\n"
                                "model: {arch: mlp, hidden: 1024}\n"
                                "data: {train: {format: idx, images: '%s', labels: '%s'},\n"
                                "       eval: {format: idx, images: '%s', labels: '%s'}}\n"
                                "train: {duration: 10 steps, global_batch: 4096, lanes: 4096,\n"
                                "        optimizer: {lr: 0.1}}\n"
                                "checkpoint: {store: '%s'}\n"
                                "workers: {count: 1024, device: cuda, shares: [",
                                name, path, path, path, path, store),
                     ST_OK);
    for (int i = 0; i < LIMIT_RANKS; i++)
        assert_int_equal(buf_printf(&text, "%s4", i ? ", " : ""), ST_OK);
    assert_int_equal(buf_append_text(&text, "]}\nnccl:\n"), ST_OK);
    for (int i = 0; i < JOBSPEC_ENV_MAX; i++)
        assert_int_equal(buf_printf(&text, "  NCCL_%056d: '%0255d'\n", i, 0), ST_OK);
    assert_int_equal(buf_append_text(&text, "#"), ST_OK);
    while (text.size < (size_t)LIMIT_JOB_FILE_BYTES)
        assert_int_equal(buf_append_text(&text, "x"), ST_OK);
    const struct jobspec_origin origin = { .file_name = "m.yaml", .base_dir = "/base" };
    if (jobspec_parse_within(&origin, text.data, text.size, NULL, 0, job, &errors) != ST_OK)
        fail_msg("%.2000s", errors.data);
    assert_int_equal(jobspec_print(job, &printed), ST_OK);
    assert_int_equal(
        jobspec_parse(printed.data, printed.size, "m.yaml", "/", NULL, 0, again, &errors), ST_OK);
    assert_memory_equal(job, again, sizeof(*job));
    assert_int_equal(buf_append_text(&text, "x"), ST_OK); /* one more */
    assert_int_equal(jobspec_parse_within(&origin, text.data, text.size, NULL, 0, job, &errors),
                     ST_CONFIG);
    assert_non_null(strstr(errors.data, "m.yaml:1:1: a job file has at most 262144 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_jobs_as_large_as_they_may_be),
        cmocka_unit_test(garbage_is_refused_or_read_but_never_crashes),
        cmocka_unit_test(what_is_no_text_at_all_is_refused_at_its_first_byte),
        cmocka_unit_test(a_file_of_nothing_but_mistakes_is_cut_at_a_bound),
        cmocka_unit_test(more_settings_than_a_job_takes_are_refused_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
