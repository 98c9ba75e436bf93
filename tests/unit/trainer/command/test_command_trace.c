/* Dumps of PyTorch's flight recorder: two that PyTorch 2.15 wrote with Gloo, and what is none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io.h"
#include "tests/test.h"
#include "trainer/command/trace.h"

#define FOLDER SOURCE_DIR "/tests/golden/torch_trace/"

struct dump {
    char *bytes; /* owned */
    size_t size;
};

static struct dump read_dump(const char *path)
{
    struct dump dump = { .size = 0 };
    assert_int_equal(io_read_file(io_system(), path, TRACE_BYTES_MAX, &dump.bytes, &dump.size),
                     ST_OK);
    return dump;
}

static void the_last_collective_is_read(void **state)
{
    (void)state;
    static const char *const paths[] = { FOLDER "gloo.0", FOLDER "gloo.1" };
    static const struct trace_last expected[] = { { 5, "gloo:all_reduce" },
                                                  { 4, "gloo:broadcast" } };
    for (int i = 0; i < 2; i++) {
        struct dump dump = read_dump(paths[i]);
        struct trace_last last;
        assert_int_equal(trace_read(dump.bytes, dump.size, &last), ST_OK);
        assert_int_equal(last.number, expected[i].number);
        assert_string_equal(last.name, expected[i].name);
        free(dump.bytes);
    }
}

static void what_is_cut_or_changed_is_none_or_says_something_else(void **state)
{
    (void)state;
    struct dump dump = read_dump(FOLDER "gloo.0");
    struct trace_last last;
    for (size_t size = 0; size < dump.size; size++) {
        char *part = malloc(size + 1); /* of that size: a sanitizer sees what lies behind */
        memcpy(part, dump.bytes, size);
        assert_int_equal(trace_read(part, size, &last), ST_CORRUPT);
        free(part);
    }
    for (size_t i = 0; i < dump.size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            dump.bytes[i] = (char)(dump.bytes[i] ^ 1 << bit);
            const enum status st = trace_read(dump.bytes, dump.size, &last);
            assert_true(st == ST_OK || st == ST_CORRUPT || st == ST_FULL);
            dump.bytes[i] = (char)(dump.bytes[i] ^ 1 << bit);
        }
    }
    free(dump.bytes);
}

static void a_pickle_that_calls_something_is_refused(void **state)
{
    (void)state;
    static const char calls[] = "\x80\x02"
                                "cos\nsystem\nX\x02\x00\x00\x00ls\x85R.";
    static const char deep[] = "\x80\x02(((u"; /* a mark is no dictionary */
    struct trace_last last;
    assert_int_equal(trace_read(calls, sizeof(calls) - 1, &last), ST_CORRUPT);
    assert_int_equal(trace_read(deep, sizeof(deep) - 1, &last), ST_CORRUPT);
    char *marks = malloc(TRACE_BYTES_MAX); /* more than a stack has room for */
    memset(marks, '(', TRACE_BYTES_MAX);
    assert_int_equal(trace_read(marks, TRACE_BYTES_MAX, &last), ST_FULL);
    free(marks);
}

static void put_dump(const char *folder, const char *from, uint32_t rank)
{
    char path[128];
    struct dump dump = read_dump(from);
    (void)snprintf(path, sizeof(path), "%s/dump_%u", folder, rank);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(dump.bytes, 1, dump.size, file), dump.size);
    assert_int_equal(fclose(file), 0);
    free(dump.bytes);
}

static void ranks_that_never_entered_it_are_named(void **state)
{
    (void)state;
    char folder[] = "/tmp/cairn-trace-XXXXXX", prefix[128];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(prefix, sizeof(prefix), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE=%s/dump_", folder);
    char other[] = "A=b";
    char *const env[] = { other, prefix, NULL };
    char *const without[] = { other, NULL };
    struct reason why = { "" };
    assert_false(trace_explain(env, 3, 0, &why));
    put_dump(folder, FOLDER "gloo.0", 0);
    assert_false(trace_explain(env, 3, 0, &why)); /* of the others nothing is known */
    put_dump(folder, FOLDER "gloo.1", 2);
    assert_true(trace_explain(env, 3, 0, &why));
    assert_string_equal(why.text, "collective 5 (gloo:all_reduce) was never entered by rank 2");
    assert_false(trace_explain(env, 3, INT64_MAX, &why)); /* of an earlier start */
    assert_false(trace_explain(without, 3, 0, &why));
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        char path[128];
        (void)snprintf(path, sizeof(path), "%s/dump_%u", folder, rank);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_collective_is_read),
        cmocka_unit_test(what_is_cut_or_changed_is_none_or_says_something_else),
        cmocka_unit_test(a_pickle_that_calls_something_is_refused),
        cmocka_unit_test(ranks_that_never_entered_it_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
