/*
 * A checkpoint of the version of today, as it was written when it was new, can be read; one of an
 * older version is refused, and told from damage.
 *
 *     test_ckpt_golden --write FOLDER STEP RANKS     makes files of the version of today
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "common/cleanup.h"
#include "tests/crash/ckpt_sample.h"
#include "tests/test.h"

#define STEP            40
#define GENERATION      2
#define ELEMENTS        200
#define FOLDER          SOURCE_DIR "/tests/golden/checkpoint"
#define VERSION_1       FOLDER "/v1/" SAMPLE_JOB "/step-000000000040.g2"
#define VERSION_2       FOLDER "/v2/" SAMPLE_JOB "/step-000000000040.g2"
#define VERSION_2_ALONE FOLDER "/v2/" SAMPLE_JOB "/step-000000000041.g2"

static void note_line(void *arg, const char *line)
{
    (void)arg;
    print_message("%s\n", line);
}

static void version_2_is_read(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, ELEMENTS, STEP, GENERATION);
    bool equal = false;
    struct ckpt_hash digest;
    char text[33];
    assert_int_equal(ckpt_verify(io_system(), VERSION_2, NULL, note_line, NULL), ST_OK);
    assert_int_equal(sample_compare(io_system(), VERSION_2, &sample, &equal), ST_OK);
    assert_true(equal);
    assert_int_equal(ckpt_digest(io_system(), VERSION_2, &digest), ST_OK);
    ckpt_hash_text(&digest, text);
    assert_string_equal(text, "6c36269eaece0b031a8680a694253e91");
    sample_release(&sample);
}

static void version_2_of_one_rank_is_read(void **unused)
{
    (void)unused;
    struct sample sample;
    sample_init(&sample, ELEMENTS, STEP + 1, GENERATION);
    bool equal = false;
    assert_int_equal(ckpt_verify(io_system(), VERSION_2_ALONE, NULL, note_line, NULL), ST_OK);
    assert_int_equal(sample_compare(io_system(), VERSION_2_ALONE, &sample, &equal), ST_OK);
    assert_true(equal);
    sample_release(&sample);
}

/* Only what zstd makes of a plane may differ from one of its versions to the next. */
static void tables_are_written_as_version_2_has_them(void **unused)
{
    (void)unused;
    struct ckpt_manifest manifest;
    auto_free char *bytes = NULL;
    size_t size = 0;
    assert_int_equal(ckpt_manifest_read(io_system(), VERSION_2, &manifest, NULL), ST_OK);
    assert_int_equal(manifest.file_count, 2);
    assert_int_equal(manifest.step, STEP);
    assert_int_equal(manifest.generation, GENERATION);
    ckpt_manifest_release(&manifest);
    assert_int_equal(
        io_read_file(io_system(), VERSION_2 "/shard-00001-of-00002.cairn", 1 << 20, &bytes, &size),
        ST_OK);
    char base[] = "/tmp/cairn-golden-XXXXXX", path[64], command[96];
    assert_non_null(mkdtemp(base));
    struct sample sample;
    struct ckpt_report report;
    sample_init(&sample, ELEMENTS, STEP, GENERATION);
    assert_int_equal(ckpt_shard_write(io_system(), base, &sample.state, 1, 2, NULL, &report),
                     ST_OK);
    (void)snprintf(path, sizeof(path), "%s/shard-00001-of-00002.cairn", base);
    auto_free char *now = NULL;
    size_t now_size = 0;
    assert_int_equal(io_read_file(io_system(), path, 1 << 20, &now, &now_size), ST_OK);
    assert_memory_equal(bytes, now, 4096 + 24); /* the header, a chunk's place and buffer */
    assert_int_equal(size % 4096, 0);
    assert_memory_equal(bytes + size - 8, now + now_size - 8, 8);
    (void)snprintf(command, sizeof(command), "rm -r '%s'", base);
    assert_int_equal(system(command), 0);
    ckpt_report_release(&report);
    sample_release(&sample);
}

static void keep_line(void *arg, const char *line)
{
    char *kept = arg;
    (void)snprintf(kept, LIMIT_REASON, "%s", line);
}

static void version_1_is_refused_and_is_no_damage(void **unused)
{
    (void)unused;
    char line[LIMIT_REASON] = "";
    assert_int_equal(ckpt_verify(io_system(), VERSION_1, NULL, keep_line, line), ST_VERSION);
    assert_non_null(strstr(line, "of format version 1, this build reads 2"));
}

static int write_files(const char *folder, uint64_t step, uint32_t ranks)
{
    struct sample sample;
    char dir[LIMIT_PATH];
    sample_init(&sample, ELEMENTS, step, GENERATION);
    const struct sample_options options = { .store = folder };
    enum status st = sample_save(io_system(), &sample, ranks, &options, dir);
    sample_release(&sample);
    (void)fprintf(stderr, "%s: %s\n", st == ST_OK ? dir : folder,
                  st == ST_EXISTS ? "is there already" : status_string(st));
    return st == ST_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--write") == 0)
        return write_files(argv[2], strtoul(argv[3], NULL, 10),
                           (uint32_t)strtoul(argv[4], NULL, 10));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_1_is_refused_and_is_no_damage),
        cmocka_unit_test(version_2_is_read),
        cmocka_unit_test(version_2_of_one_rank_is_read),
        cmocka_unit_test(tables_are_written_as_version_2_has_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
