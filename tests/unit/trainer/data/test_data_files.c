/* Files of data as people have them: padded, folders, and such as hold something else. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/rng.h"
#include "tests/test.h"
#include "trainer/data/dataset.h"
#include "trainer/data/stream.h"
#include "trainer/data/token_kind.h"

#define BYTES 5000

static char path[64];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/test_data_files_XXXXXX");
    int fd = mkstemp(path);
    return fd >= 0 ? close(fd) : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return remove(path);
}

static void append(const void *data, size_t size)
{
    FILE *file = fopen(path, "ae");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void append_gzip(const void *data, size_t size)
{
    gzFile file = gzopen(path, "ab");
    assert_non_null(file);
    assert_int_equal(gzwrite(file, data, (unsigned)size), (int)size);
    assert_int_equal(gzclose(file), Z_OK);
}

/* ---- gzip ---- */

static bool ends_after(const uint8_t *wanted, size_t size)
{
    const struct byte_stream_options options = { .io = io_system(), .path = path };
    struct byte_stream *stream = NULL;
    uint8_t got[BYTES];
    bool ended = false;
    assert_int_equal(byte_stream_open(&options, &stream), ST_OK);
    assert_int_equal(byte_stream_read(stream, got, size), ST_OK);
    assert_memory_equal(got, wanted, size);
    assert_int_equal(byte_stream_at_end(stream, &ended), ST_OK);
    byte_stream_close(stream);
    return ended;
}

/* Tapes and some mirrors pad, with more than is read at once, too, and between members. */
static void zeros_behind_a_gzip_file_are_no_part_of_it(void **state)
{
    (void)state;
    static const size_t lengths[] = { 1, 512, 3 * 1024 * 1024 };
    uint8_t bytes[BYTES];
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * i >> 3);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        uint8_t *zeros = calloc(1, lengths[i]);
        assert_non_null(zeros);
        assert_int_equal(truncate(path, 0), 0);
        append_gzip(bytes, 1000);
        append(zeros, lengths[i]);
        append_gzip(bytes + 1000, BYTES - 1000);
        assert_true(ends_after(bytes, BYTES));
        append(zeros, lengths[i]);
        assert_true(ends_after(bytes, BYTES));
        append("x", 1);
        assert_false(ends_after(bytes, BYTES));
        free(zeros);
    }
}

/* ---- what isn't images ---- */

static void must_refuse_images(const char *text)
{
    struct jobspec_dataset source = { .format = JOBSPEC_FORMAT_IDX };
    const struct dataset_options options = {
        .io = io_system(), .source = &source, .split = DATASET_TRAIN, .classes = 10
    };
    struct dataset *dataset = NULL;
    struct reason reason = { "" };
    (void)snprintf(source.labels, sizeof(source.labels), "%s", path);
    (void)snprintf(source.images, sizeof(source.images), "%s", path);
    assert_int_equal(dataset_open(&options, &dataset, &reason), ST_CONFIG);
    if (strstr(reason.text, text) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, reason.text);
}

static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\n";

static void a_folder_and_a_pointer_of_git_lfs_are_told_as_such(void **state)
{
    (void)state;
    append(pointer, sizeof(pointer) - 1);
    must_refuse_images("git lfs pull");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    must_refuse_images("is a folder; name a file in it");
}

/* ---- what isn't tokens ---- */

static void must_refuse(const void *bytes, size_t size, const char *text)
{
    struct reason reason = { "" };
    assert_int_equal(token_kind_check("/data/t.bin", bytes, size, &reason), ST_CONFIG);
    if (strstr(reason.text, text) == NULL || strstr(reason.text, "/data/t.bin: ") == NULL)
        fail_msg("\"%s\" is not in \"%s\"", text, reason.text);
}

static void must_take(const void *bytes, size_t size)
{
    struct reason reason = { "" };
    if (token_kind_check("/data/t.bin", bytes, size, &reason) != ST_OK)
        fail_msg("%s", reason.text);
}

static void files_of_other_formats_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *begins, *said;
        size_t size;
    } cases[] = {
        { "\x93NUMPY\x01\x00v\x00{'descr'", "a NumPy array (.npy)", 18 },
        { "PK\x03\x04\x14\x00", "a zip archive", 6 },
        { "\x89PNG\r\n\x1a\n", "an image (PNG)", 8 },
        { "\x89HDF\r\n\x1a\n", "an HDF5 file", 8 },
        { "PAR1\x15\x04", "a Parquet table", 6 },
        { "ARROW1\x00\x00", "an Arrow table", 8 },
        { "\x28\xb5\x2f\xfd\x04\x00", "unpack it", 6 },
        { "MMIDIDX\x00\x00\x01", "name the .bin file", 10 },
        { "\x8a\xd8\x34\x01\x01\x00\x00\x00", "llm.c's file of questions", 8 },
    };
    struct reason reason = { "" };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        must_refuse(cases[i].begins, cases[i].size, cases[i].said);
        assert_int_equal(
            token_kind_check_text("/t", (const uint8_t *)cases[i].begins, cases[i].size, &reason),
            ST_OK); /* bytes are bytes */
    }
    must_refuse(pointer, sizeof(pointer) - 1, "git lfs pull");
    assert_int_equal(
        token_kind_check_text("/t", (const uint8_t *)pointer, sizeof(pointer) - 1, &reason),
        ST_CONFIG);
}

static void text_is_told_from_tokens(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "To be, or not to be, that is the question:\n", "17,4,2025,0.5,\"a\"\r\n",
        "\xe5\xad\xa6\xe8\x80\x8c\xe6\x97\xb6\xe4\xb9\xa0\xe4\xb9\x8b "
        "\xc3\xa4\xc3\xb6\xc3\xbc\n"
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        char text[4096];
        const size_t length = strlen(lines[i]);
        for (size_t at = 0; at < sizeof(text); at++)
            text[at] = lines[i][at % length];
        for (size_t size = 130; size < 140; size++) /* wherever the file ends */
            must_refuse(text, size, "set format: text");
        must_refuse(text, sizeof(text), "set format: text");
        must_take(text, 20); /* too little to tell */
    }
}

/* Tokens below `vocab` in numbers of `width` bytes; every seventh is 0. */
static void fill(uint8_t *bytes, size_t count, size_t width, bool big_endian, uint32_t vocab)
{
    const uint64_t key = rng_key(vocab, RNG_SYNTHETIC);
    memset(bytes, 0, count * width);
    for (size_t i = 0; i < count; i++) {
        const uint32_t number = rng_below(rng_words(key, (uint32_t)i, 0, 0, 0).word[0], vocab);
        for (size_t b = 0; i % 7 != 0 && b < width && b < 4; b++)
            bytes[i * width + (big_endian ? width - 1 - b : b)] = (uint8_t)(number >> (8 * b));
    }
}

static void numbers_of_another_width_are_told_from_tokens(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = { 10, 65, 257, 32000, 50257, 65536, 128256 };
    static uint8_t bytes[8 * 10000];
    for (size_t i = 0; i < sizeof(vocabs) / sizeof(vocabs[0]); i++) {
        for (size_t count = 64; count <= 10000; count += 9936) {
            for (int big = 0; big <= 1; big++) {
                fill(bytes, count, 4, big == 1, vocabs[i]);
                must_refuse(bytes, 4 * count, "numbers of four or eight bytes");
                fill(bytes, count, 8, big == 1, vocabs[i]);
                must_refuse(bytes, 8 * count, "numbers of four or eight bytes");
            }
            fill(bytes, count, 2, false, vocabs[i]);
            must_take(bytes, 2 * count);
        }
    }
}

static void dull_streams_are_still_tokens(void **state)
{
    (void)state;
    static uint8_t bytes[4096];
    must_take(bytes, sizeof(bytes)); /* all of them 0 */
    bytes[0] = 17;
    must_take(bytes, sizeof(bytes)); /* padded */
    for (size_t i = 0; i < sizeof(bytes); i += 2)
        bytes[i] = (uint8_t)(i / 2 % 2); /* bits */
    must_take(bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i += 2)
        bytes[i] = 'a' + (uint8_t)(i / 2 % 26); /* characters, each in two bytes */
    must_take(bytes, sizeof(bytes));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(zeros_behind_a_gzip_file_are_no_part_of_it),
        TEST(a_folder_and_a_pointer_of_git_lfs_are_told_as_such),
        cmocka_unit_test(files_of_other_formats_are_named),
        cmocka_unit_test(text_is_told_from_tokens),
        cmocka_unit_test(numbers_of_another_width_are_told_from_tokens),
        cmocka_unit_test(dull_streams_are_still_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
